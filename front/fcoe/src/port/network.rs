//! The network of a port: its neighbours, or the switch of a fabric. Logins and exchanges are the same in both.

use super::Outgoing;
use super::Route;
use super::discovery::{Discovery, Found, Identity};
use super::fabric::Fabric;
use crate::wire::fip::ALL_VN2VN;
use crate::wire::fip::fabric::ALL_STATIONS;
use crate::wire::names::PortId;
use lunar_core::time::Instant;
use lunar_link::MacAddress;

/// The network of a port.
#[derive(Debug)]
pub enum Network {
    /// Ports without a fabric.
    Neighbours(Discovery),
    /// A fabric.
    Fabric(Fabric),
}

impl Network {
    /// This port.
    #[must_use]
    pub fn own(&self) -> &Identity {
        match self {
            Self::Neighbours(discovery) => discovery.own(),
            Self::Fabric(fabric) => fabric.own(),
        }
    }

    /// The identifier of the port, once it may be used.
    #[must_use]
    pub fn id(&self) -> Option<PortId> {
        match self {
            Self::Neighbours(discovery) => discovery.id(),
            Self::Fabric(fabric) => fabric.id(),
        }
    }

    /// The MAC address of the port, once it has an identifier.
    #[must_use]
    pub fn address(&self) -> Option<MacAddress> {
        match self {
            Self::Neighbours(discovery) => discovery.id().map(PortId::mac),
            Self::Fabric(fabric) => fabric.route().map(|route| route.from),
        }
    }

    /// The group address to which messages of FIP are sent.
    #[must_use]
    pub fn group(&self) -> MacAddress {
        match self {
            Self::Neighbours(_) => ALL_VN2VN,
            Self::Fabric(_) => ALL_STATIONS,
        }
    }

    /// The way of frames to another port.
    #[must_use]
    pub fn route(&self, to: PortId) -> Option<Route> {
        match self {
            Self::Neighbours(discovery) => Some(Route { to: to.mac(), from: discovery.id()?.mac() }),
            Self::Fabric(fabric) => fabric.route(),
        }
    }

    /// Whether frames of another port come from this MAC address.
    #[must_use]
    pub fn is_from(&self, source: MacAddress, other: PortId) -> bool {
        self.route(other).is_some_and(|route| route.to == source)
    }

    /// The time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        match self {
            Self::Neighbours(discovery) => discovery.deadline(),
            Self::Fabric(fabric) => fabric.deadline(),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        match self {
            Self::Neighbours(discovery) => discovery.tick(now, out, found),
            Self::Fabric(fabric) => fabric.tick(now, out, found),
        }
    }

    /// Keeps a neighbour that is logged in, or no longer.
    pub fn keep(&mut self, id: PortId, is_kept: bool) {
        if let Self::Neighbours(discovery) = self {
            discovery.keep(id, is_kept);
        }
    }
}
