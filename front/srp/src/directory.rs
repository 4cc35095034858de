//! A port as a configuration has it: which initiators see which volumes.

use crate::names::PortId;
use crate::schema::Srp;
use lunar_control::common_sections::Target;
use lunar_core::access::{Access, Pattern};
use lunar_engine::published_config::PublishedConfig;
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortView {
    /// The name of its section.
    pub name: Arc<str>,
    /// The name of its target in the configuration.
    pub target: String,
    /// Its relative target port identifier.
    pub relative: u16,
    /// Its identifier.
    pub id: PortId,
    /// Its GUID.
    pub guid: u64,
    /// The port of the RDMA connection manager.
    pub service: u16,
    /// The initiators of each group, in the order of their priority.
    hosts: Vec<(Vec<Pattern>, View)>,
}

/// Whether initiators, which cannot authenticate, can belong to a group of this name.
fn fits(access: &Access, group: &str) -> bool {
    let mut same = access.groups().filter(|known| &*known.name == group).peekable();
    same.peek().is_some()
        && same.all(|group| group.sources.is_empty() && group.credentials.users.is_empty() && group.tls_keys.is_empty())
}

impl PortView {
    /// The port of a section in a configuration that is published; `None`: its target has no name.
    #[must_use]
    pub fn of(name: &str, port: &Srp, published: &PublishedConfig<'_>) -> Option<Self> {
        let config = &published.wanted.config;
        let names = port.names(name, config)?;
        let target = port.target.name();
        let is_here = |target: &Arc<Target>| target.enabled && target.moved_to.is_none();
        let access = published.accesses.get(target).filter(|_| config.targets.get(target).is_some_and(is_here));
        let groups = access.iter().flat_map(|access| access.groups());
        let fitting = groups.filter(|group| access.is_some_and(|access| fits(access, &group.name)));
        let host = |group: &lunar_core::access::Group| {
            (group.hosts.clone(), View { group: group.name.clone(), map: group.map.clone() })
        };
        Some(Self {
            name: name.into(),
            target: target.to_owned(),
            relative: published.ports.named(&names.port.scsi())?,
            id: names.port,
            guid: names.guid,
            // Checked when it was read.
            service: port.port.get() as u16,
            hosts: fitting.map(host).collect(),
        })
    }

    /// The view of an initiator; `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, initiator: PortId) -> Option<&View> {
        let name = initiator.to_string();
        let is_host = |(hosts, _): &&(Vec<Pattern>, View)| hosts.iter().any(|pattern| pattern.fits(&name));
        self.hosts.iter().find(is_host).map(|(_, view)| view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initiators_belong_to_the_first_group_that_fits() {
        let host = |pattern: &str, group: &str| {
            (vec![Pattern::new(pattern)], View { group: group.into(), map: Some(group.into()) })
        };
        let port = PortView {
            name: "a".into(),
            target: "t".into(),
            relative: 1,
            id: PortId::of_guid(1),
            guid: 1,
            service: 5555,
            hosts: vec![host("0x00000000000000010000000000000001", "one"), host("0x*2", "others")],
        };
        let of = |guid| port.view_of(PortId::of_guid(guid)).map(|view| &*view.group);
        assert_eq!([of(1), of(2), of(3)], [Some("one"), Some("others"), None]);
    }
}
