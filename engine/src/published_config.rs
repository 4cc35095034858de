//! A configuration as it is published to fronts.

use crate::access::Accesses;
use crate::target_ports::TargetPorts;
use lunar_control::Checked;
use lunar_core::unit::UnitId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A portal with a listening socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundPortal {
    /// Its number in this process: never used again.
    pub id: u32,
    /// The address.
    pub address: SocketAddr,
}

/// A configuration as it is published.
#[derive(Clone, Copy, Debug)]
pub struct PublishedConfig<'a> {
    /// The configuration.
    pub wanted: &'a Checked,
    /// The access control of each target, by the name of the target in the configuration.
    pub accesses: &'a Accesses,
    /// The relative identifiers of target ports.
    pub ports: &'a TargetPorts,
    /// The numbers of the units, by the names of their volumes in the configuration.
    pub units: &'a BTreeMap<String, UnitId>,
    /// The portals with listening sockets, by their names in the configuration.
    pub portals: &'a BTreeMap<String, BoundPortal>,
}

impl<'a> PublishedConfig<'a> {
    /// The portals of this protocol with listening sockets: each with its number and address, its keys, and the tag of
    /// its portal group.
    pub fn portals_of(
        &self,
        protocol: &'a str,
    ) -> impl Iterator<Item = (BoundPortal, &'a lunar_control::common_sections::Portal, u16)> + use<'a> {
        let (config, portals) = (&self.wanted.config, self.portals);
        let of_front = config.portals.iter().filter(move |(_, portal)| portal.protocol.word() == protocol);
        of_front.filter_map(move |(name, portal)| {
            let group = config.portal_groups.get(portal.group.name())?;
            Some((*portals.get(name)?, &**portal, group.tag.get() as u16))
        })
    }
}
