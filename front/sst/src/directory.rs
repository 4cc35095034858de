//! A port as a configuration has it: which initiators see which volumes.

use crate::schema::St;
use lunar_control::common_sections::Target;
use lunar_core::access::{Group, Pattern};
use lunar_engine::published_config::PublishedConfig;
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

/// A port.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The name of its section.
    pub name: Arc<str>,
    /// The name of its target in the configuration.
    pub target: String,
    /// The name by which initiators log in to the target.
    pub device: String,
    /// Its relative target port identifier.
    pub relative: u16,
    /// The groups of initiators that fit, in the order of their priority.
    groups: Vec<Group>,
}

/// Whether initiators, which do not authenticate, can belong to a group.
fn fits(group: &Group) -> bool {
    group.credentials.users.is_empty() && group.tls_keys.is_empty()
}

impl PortView {
    /// The port of a section in a configuration that is published; `None`: its target has no name.
    #[must_use]
    pub fn of(name: &str, port: &St, published: &PublishedConfig<'_>) -> Option<Self> {
        let config = &published.wanted.config;
        let names = port.names(name, config)?;
        let target = port.target.name();
        let is_here = |target: &Arc<Target>| target.enabled && target.moved_to.is_none();
        let access = published.accesses.get(target).filter(|_| config.targets.get(target).is_some_and(is_here));
        let groups = access.iter().flat_map(|access| access.groups()).filter(|group| fits(group)).cloned();
        Some(Self {
            name: name.into(),
            target: target.to_owned(),
            relative: published.ports.named(&names.port)?,
            device: names.device,
            groups: groups.collect(),
        })
    }

    /// The view of an initiator by its name in lower case and its address, which one on an Ethernet does not have;
    /// `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, initiator: &str, source: Option<IpAddr>) -> Option<View> {
        let is_near = |group: &Group| {
            let contains = |source| group.sources.iter().any(|network| network.contains(source));
            group.sources.is_empty() || source.is_some_and(contains)
        };
        let names = |pattern: &Pattern| pattern.fits(initiator);
        let group = self.groups.iter().find(|group| group.hosts.iter().any(names) && is_near(group))?;
        Some(View { group: group.name.clone(), map: group.map.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::access::Network;

    #[test]
    fn initiators_belong_to_the_first_group_that_fits() {
        let group = |pattern: &str, name: &str, sources: Vec<Network>| Group {
            name: name.into(),
            hosts: vec![Pattern::new(pattern)],
            sources,
            ..Group::everybody()
        };
        let network = Network::new(IpAddr::from([192, 0, 2, 0]), 24).expect("a network");
        let groups =
            vec![group("iqn.a", "near", vec![network]), group("iqn.a", "one", vec![]), group("iqn.b*", "b", vec![])];
        let port = PortView { name: "a".into(), target: "t".into(), device: "iqn.t".into(), relative: 1, groups };
        let of = |name, source: Option<[u8; 4]>| port.view_of(name, source.map(IpAddr::from)).map(|view| view.group);
        assert_eq!(of("iqn.a", Some([192, 0, 2, 9])).as_deref(), Some("near"));
        assert_eq!(of("iqn.a", Some([192, 0, 3, 9])).as_deref(), Some("one"));
        assert_eq!(of("iqn.a", None).as_deref(), Some("one"));
        assert_eq!((of("iqn.b1", None).as_deref(), of("iqn.c", None)), (Some("b"), None));
    }
}
