//! Endpoints of datagrams and frames on the simulated network, and the packets in flight between them.

use crate::endpoint::packet::Filter;
use crate::endpoint::{Address, Counters, MacAddress, ReceiveBatch, VlanTag};
use crate::op::Handle;
use lunar_core::io::Done;
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::net::IpAddr;

/// An endpoint.
pub(super) struct Carrier {
    /// The core that it is attached to.
    pub(super) core: Option<usize>,
    pub(super) place: Place,
    /// Datagrams that have arrived, in a bounded queue.
    pub(super) arrived: VecDeque<Flight>,
    pub(super) receives: VecDeque<Receive>,
    pub(super) counters: Counters,
    /// When its newest packet arrives; later packets arrive later, unless they are reordered.
    pub(super) newest: Instant,
}

/// The network of an endpoint.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On the network of datagrams.
    Network(Address),
    /// On an Ethernet segment.
    Segment(Station),
}

/// A station of an Ethernet segment.
#[derive(Clone, Debug)]
pub(super) struct Station {
    pub(super) segment: u32,
    pub(super) mac: MacAddress,
    /// EtherTypes that it receives; none: all.
    pub(super) types: Vec<u16>,
    pub(super) filters: Vec<Filter>,
}

/// A receive that waits.
pub(super) struct Receive {
    pub(super) into: Box<ReceiveBatch>,
    pub(super) done: Done,
    pub(super) handle: Handle,
}

/// A datagram or frame in flight, or arrived.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) bytes: Vec<u8>,
    pub(super) from: Address,
    pub(super) local: Option<IpAddr>,
    pub(super) vlan: Option<VlanTag>,
}

impl Carrier {
    pub(super) fn new(place: Place) -> Self {
        Self {
            core: None,
            place,
            arrived: VecDeque::new(),
            receives: VecDeque::new(),
            counters: Counters::default(),
            newest: Instant::default(),
        }
    }
}

impl Station {
    /// Whether a frame is received: by its destination and its EtherType.
    pub(super) fn takes(&self, frame: &[u8]) -> bool {
        let Some((destination, rest)) = frame.split_first_chunk() else { return false };
        let destination = MacAddress(*destination);
        let is_for_it = destination == self.mac
            || destination == MacAddress::BROADCAST
            || self.filters.iter().any(|filter| match filter {
                Filter::Unicast(mac) | Filter::Group(mac) => destination == *mac,
                Filter::AllGroups => destination.is_group(),
                Filter::Promiscuous => true,
            });
        is_for_it && self.knows_type(rest)
    }

    /// Whether the frame whose bytes behind the destination address these are has an EtherType that is received.
    fn knows_type(&self, rest: &[u8]) -> bool {
        let ether_type = rest.get(6..8).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        ether_type.is_some_and(|one| self.types.is_empty() || self.types.contains(&one))
    }

    /// Whether a frame to another station may be received all the same, as on real interfaces.
    pub(super) fn may_stray(&self, frame: &[u8]) -> bool {
        frame.len() >= 14 && frame[0] & 1 == 0 && self.knows_type(&frame[6..])
    }
}
