//! The group that a client belongs to at a target.

use crate::common_sections::Group;
use crate::config::Config;
use std::net::IpAddr;

/// How well a group fits a client: how specific its pattern is, then the length of its network prefix.
type Fit = (usize, u8);

/// The group of `target` that the client of this name at this address belongs to: the group with the most specific
/// pattern, then with the longest network prefix, then with the first name. `None`: the client is refused.
#[must_use]
pub fn group_of<'a>(config: &'a Config, target: &str, initiator: &str, source: IpAddr) -> Option<(&'a str, &'a Group)> {
    best(config, target, initiator, Some(source))
}

/// The group of a host without an address, such as a virtual machine on this host. Groups with networks do not fit.
#[must_use]
pub fn group_of_local<'a>(config: &'a Config, target: &str, host: &str) -> Option<(&'a str, &'a Group)> {
    best(config, target, host, None)
}

fn best<'a>(config: &'a Config, target: &str, initiator: &str, source: Option<IpAddr>) -> Option<(&'a str, &'a Group)> {
    let mut best: Option<(Fit, &str, &Group)> = None;
    for (name, group) in config.groups.iter().filter(|(_, group)| group.targets.contains(target)) {
        if let Some(fit) = fit(group, initiator, source)
            && best.as_ref().is_none_or(|(so_far, ..)| fit > *so_far)
        {
            best = Some((fit, name, group));
        }
    }
    best.map(|(_, name, group)| (name, group))
}

fn fit(group: &Group, initiator: &str, source: Option<IpAddr>) -> Option<Fit> {
    let by_name = group.initiators.iter().filter(|pattern| pattern.fits(initiator)).map(|pattern| pattern.weight());
    let by_address = match group.sources.is_empty() {
        // No network fits less than an explicit network of all addresses.
        true => Some(0),
        false => {
            let source = source?;
            let fitting = group.sources.iter().filter(|network| network.contains(source));
            fitting.map(|network| network.bits().saturating_add(1)).max()
        }
    };
    by_name.max().zip(by_address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    #[test]
    fn the_group_that_says_most_wins() {
        let text = "
            [group.all]\ntargets = ['t']\ninitiators = ['*']\n
            [group.esx]\ntargets = ['t']\ninitiators = ['iqn.1998-01.com.vmware:*']\n
            [group.esx1]\ntargets = ['t']\ninitiators = ['x', 'iqn.1998-01.com.vmware:esx1']\n
            [group.esx-lab]\ntargets = ['t']\ninitiators = ['iqn.1998-01.com.vmware:*']\nsources = ['10.0.0.0/8']\n
            [group.esx-room]\ntargets = ['t']\ninitiators = ['iqn.1998-01.com.vmware:*']\nsources = ['10.1.0.0/16']\n
            [group.twin]\ntargets = ['t']\ninitiators = ['*']\n
            [group.other]\ntargets = ['u']\ninitiators = ['iqn.x']\nsources = ['192.0.2.0/24']\n";
        let mut report = Report::new(&crate::schema::EMPTY);
        let (config, _) = crate::config::parse(text, &mut report);
        assert!(report.is_clean(), "{}", report.finish("x", text));
        let of = |target, name, source: &str| {
            group_of(&config, target, name, source.parse().expect(source)).map(|(name, _)| name)
        };
        let esx = "iqn.1998-01.com.vmware:esx";
        for (name, source, group) in [
            ("iqn.x", "192.0.2.1", "all"),
            (esx, "192.0.2.1", "esx"),
            ("IQN.1998-01.com.VMware:ESX", "192.0.2.1", "esx"),
            ("iqn.1998-01.com.vmware:esx1", "10.1.0.1", "esx1"),
            (esx, "10.0.0.1", "esx-lab"),
            (esx, "10.1.0.1", "esx-room"),
        ] {
            assert_eq!(of("t", name, source), Some(group), "{name} {source}");
        }
        assert_eq!(of("u", "iqn.x", "192.0.2.1"), Some("other"));
        assert_eq!(of("u", "iqn.x", "192.0.3.1"), None);
        assert_eq!(of("u", "iqn.y", "192.0.2.1"), None);
    }
}
