//! The initiators of a port, as a configuration has them: which group they belong to, and which volumes they see.

use crate::published_config::PublishedConfig;
use lunar_control::common_sections::Target;
use lunar_core::access::{Group, Pattern};
use std::net::IpAddr;
use std::sync::Arc;

/// A group of initiators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The name of the group.
    pub group: Arc<str>,
    /// The name of its LUN map; `None`: all volumes.
    pub map: Option<Arc<str>>,
}

/// The properties of initiators that the groups of a transport can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Their names only, which can be forged.
    Names,
    /// Their addresses, too, if they have some that they have proved.
    Addresses,
}

/// The groups of a target to which initiators can belong that do not authenticate, in the order of their priority.
#[derive(Clone, Debug, Default)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// The groups of a target in a configuration that is published; a target that is not served here has none.
    #[must_use]
    pub fn of(target: &str, known: Known, published: &PublishedConfig<'_>) -> Self {
        let is_here = |target: &Arc<Target>| target.enabled && target.moved_to.is_none();
        let is_served = published.wanted.config.targets.get(target).is_some_and(is_here);
        let access = published.accesses.get(target).filter(|_| is_served);
        Self::fitting(access.map(|access| access.groups().cloned().collect()).unwrap_or_default(), known)
    }

    fn fitting(all: Vec<Group>, known: Known) -> Self {
        let is_open = |group: &Group| group.credentials.users.is_empty() && group.tls_keys.is_empty();
        let fits = |group: &Group| match known {
            Known::Addresses => is_open(group),
            // One group of the configuration may be several ones here: all of them have to fit.
            Known::Names => {
                all.iter().filter(|same| same.name == group.name).all(|same| is_open(same) && same.sources.is_empty())
            }
        };
        Self(all.iter().filter(|group| fits(group)).cloned().collect())
    }

    /// The view of an initiator by its name and its address, if it has one; `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, name: &str, source: Option<IpAddr>) -> Option<View> {
        let is_near = |group: &Group| {
            let contains = |source| group.sources.iter().any(|network| network.contains(source));
            group.sources.is_empty() || source.is_some_and(contains)
        };
        let names = |pattern: &Pattern| pattern.fits(name);
        let group = self.0.iter().find(|group| group.hosts.iter().any(names) && is_near(group))?;
        Some(View { group: group.name.clone(), map: group.map.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::access::Network;

    fn group(pattern: &str, name: &str, sources: Vec<Network>) -> Group {
        Group { name: name.into(), hosts: vec![Pattern::new(pattern)], sources, ..Group::everybody() }
    }

    #[test]
    fn initiators_belong_to_the_first_group_that_fits() {
        let network = Network::new(IpAddr::from([192, 0, 2, 0]), 24).expect("a network");
        let all =
            vec![group("iqn.a", "near", vec![network]), group("iqn.a", "one", vec![]), group("iqn.b*", "b", vec![])];
        for (known, near) in [(Known::Addresses, "near"), (Known::Names, "one")] {
            let groups = Groups::fitting(all.clone(), known);
            let of = |name, source: Option<[u8; 4]>| {
                groups.view_of(name, source.map(IpAddr::from)).map(|view| view.group.to_string())
            };
            assert_eq!(of("iqn.a", Some([192, 0, 2, 9])).as_deref(), Some(near));
            assert_eq!(of("iqn.a", Some([192, 0, 3, 9])).as_deref(), Some("one"));
            assert_eq!(of("iqn.a", None).as_deref(), Some("one"));
            assert_eq!((of("iqn.b1", None).as_deref(), of("iqn.c", None)), (Some("b"), None));
        }
    }

    #[test]
    fn groups_that_require_more_than_initiators_have_are_left_out() {
        let network = Network::new(IpAddr::from([192, 0, 2, 0]), 24).expect("a network");
        // Two parts of one group.
        let all = vec![group("a", "one", vec![network]), group("b", "one", vec![]), group("b", "two", vec![])];
        let of = |known| Groups::fitting(all.clone(), known).view_of("b", None).map(|view| view.group.to_string());
        assert_eq!((of(Known::Names).as_deref(), of(Known::Addresses).as_deref()), (Some("two"), Some("one")));
    }
}
