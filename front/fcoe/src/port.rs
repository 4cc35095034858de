//! The port without I/O: frames and time in, frames and events out.
//!
//! * [`discovery`]: the identifier of the port, and its neighbours (FIP, VN2VN)
//! * [`fabric`]: the login at a switch, and the registration with its services
//! * [`network`]: either of both
//! * [`login`]: logins with other ports, by extended link services
//! * [`exchange`]: the exchanges of commands that initiators send
//! * [`coverage`]: which bytes of a burst have arrived
//! * here: frames that are sent, and [`VnPort`], a target port

pub mod coverage;
pub mod discovery;
pub mod exchange;
pub mod fabric;
pub mod login;
pub mod network;
mod target;

pub use target::{CommandIn, PortEvent, VnPort};

use crate::wire::fip;
use crate::wire::frame::{self, Header, encapsulated};
use lunar_link::{HEADER_LEN, Header as EthernetHeader, MacAddress};

/// The way of a frame: its addresses in the Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destination.
    pub to: MacAddress,
    /// The source.
    pub from: MacAddress,
}

impl Route {
    /// The Ethernet header of a frame with this EtherType.
    #[must_use]
    pub fn header(self, ether_type: u16) -> [u8; HEADER_LEN] {
        EthernetHeader { destination: self.to, source: self.from, ether_type }.bytes()
    }
}

/// A frame to send that is not on the data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Its way.
    pub route: Route,
    /// The EtherType.
    pub ether_type: u16,
    /// The bytes behind the Ethernet header.
    pub body: Vec<u8>,
}

impl Outgoing {
    /// A message of FIP.
    #[must_use]
    pub fn fip(route: Route, body: Vec<u8>) -> Self {
        Self { route, ether_type: fip::ETHER_TYPE, body }
    }

    /// A frame of the Fibre Channel.
    #[must_use]
    pub fn fc(route: Route, header: Header, payload: &[u8]) -> Self {
        Self { route, ether_type: frame::ETHER_TYPE, body: encapsulated(header, payload) }
    }

    /// All its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        [&self.route.header(self.ether_type)[..], &self.body].concat()
    }
}

/// Pseudo-random numbers from a secret seed, for times and identifiers that neighbours must not choose at the same
/// time.
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// The next number below `most` (SplitMix64).
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % most.max(1)
    }
}

#[cfg(test)]
#[path = "port/port_tests.rs"]
mod tests;
