//! The kinds of endpoints that move bytes into and out of a core.
//!
//! * [`stream`]: bytes in order over a connection (TCP); Unix streams that pass descriptors are in [`crate::unix`]
//! * [`datagram`]: datagrams over UDP and over Unix sockets
//! * [`packet`]: Ethernet frames on an interface, over a Unix socket, over a TAP interface
//! * [`command`]: commands to a device through io_uring; [`ublk`]: block devices that this process serves
//!
//! Batches ([`batch`]) of datagrams and frames are moved together.

pub mod batch;
pub mod command;
pub mod datagram;
mod interface;
mod messages;
pub mod packet;
mod sending;
pub(crate) mod stream;
pub mod ublk;
mod unix_socket;

pub use batch::{
    Address, BATCH_MAX, Counters, Datagram, Edges, HEAD_MAX, MacAddress, ReceiveBatch, SendBatch, TAIL_MAX, VlanTag,
    Wrapped,
};
pub(crate) use messages::Messages;

use command::CommandDevice;
use datagram::{DatagramSocket, Datagrams};
use lunar_core::io::Data;
use packet::{Filter, PacketLink, Packets};
use std::io;
use std::os::fd::OwnedFd;

/// The number of receives without a datagram, because all were dropped, before other endpoints of the core get their
/// turn.
const EMPTY_ROUNDS: usize = 4;

/// An open endpoint, on its way to the core that will use it ([`crate::op::Driver::attach`]).
#[derive(Debug)]
pub enum Endpoint {
    /// A datagram socket.
    Datagram(DatagramSocket),
    /// A link that carries frames.
    Packet(PacketLink),
    /// A device that takes commands.
    Command(CommandDevice),
    /// An endpoint of the simulator, by its number.
    Simulated(u32),
}

/// The properties of an endpoint of datagrams or frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The address at which it receives.
    pub local: Address,
    /// The hardware address of this end of a link.
    pub mac: Option<MacAddress>,
    /// Most bytes of a payload that is not fragmented: of a UDP or Unix datagram, or of a frame after the 14 bytes of
    /// its header. Longer datagrams are dropped.
    pub mtu: usize,
    /// The counters of datagrams and frames.
    pub counters: Counters,
}

/// The value that an operation carried, if it is a `T`.
pub(crate) fn carried<T: 'static>(data: Data) -> Option<Box<T>> {
    match data {
        Data::Carried(value) => value.downcast().ok(),
        _ => None,
    }
}

/// An endpoint that moves batches, for the drivers of real kernels.
pub(crate) enum Carrier {
    Datagrams(Datagrams),
    Packets(Packets),
}

impl Carrier {
    pub(crate) fn of_datagrams(socket: DatagramSocket) -> Box<Self> {
        Box::new(Self::Datagrams(Datagrams::new(socket)))
    }

    pub(crate) fn of_packets(link: PacketLink) -> Box<Self> {
        Box::new(Self::Packets(Packets::new(link)))
    }

    /// The descriptor that becomes readable.
    pub(crate) fn fd(&self) -> &OwnedFd {
        match self {
            Self::Datagrams(datagrams) => datagrams.fd(),
            Self::Packets(packets) => packets.fd(),
        }
    }

    /// The descriptor that becomes writable: a second one where a Unix socket has one peer.
    pub(crate) fn sender(&self) -> &OwnedFd {
        match self {
            Self::Datagrams(datagrams) => datagrams.sender(),
            Self::Packets(packets) => packets.sender(),
        }
    }

    /// Whether checking for datagrams costs no system call.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self, Self::Packets(packets) if packets.is_mapped())
    }

    pub(crate) fn status(&mut self) -> io::Result<Status> {
        Ok(match self {
            Self::Datagrams(datagrams) => {
                Status { local: datagrams.local(), mac: None, mtu: datagrams.largest(), counters: datagrams.counters() }
            }
            Self::Packets(packets) => {
                let station = packets.station()?;
                let (mac, mtu, counters) = (Some(station.mac), station.mtu, packets.counters());
                Status { local: Address::None, mac, mtu, counters }
            }
        })
    }

    pub(crate) fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        match self {
            Self::Datagrams(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Packets(packets) => packets.set_filter(filter, is_wanted),
        }
    }

    /// Receives the datagrams that have arrived, without waiting; returns how many. 0: some had arrived, and all were
    /// dropped. The error is the errno.
    pub(crate) fn receive(&mut self, batch: &mut ReceiveBatch, messages: &mut Messages) -> Result<usize, i32> {
        for _ in 0..EMPTY_ROUNDS {
            let count = match self {
                Self::Datagrams(datagrams) => datagrams.receive(batch, messages)?,
                Self::Packets(packets) => packets.receive(batch, messages)?,
            };
            if count > 0 {
                return Ok(count);
            }
        }
        Ok(0)
    }

    /// The pending error of the link or socket, for a descriptor that is ready without data.
    pub(crate) fn take_error(&self) -> Option<i32> {
        match self {
            Self::Datagrams(datagrams) => packet::pending_error(datagrams.fd()),
            Self::Packets(packets) => packets.take_error(),
        }
    }

    /// Whether its descriptor is readable, without a sign of its own, when there is an error.
    pub(crate) fn hides_errors(&self) -> bool {
        matches!(self, Self::Packets(packets) if packets.hides_errors())
    }

    /// Sends as many datagrams as there is room for, without waiting: `Ok` when none is left. The error is the errno,
    /// EAGAIN when there is no room.
    pub(crate) fn send(&mut self, batch: &mut SendBatch, messages: &mut Messages) -> Result<(), i32> {
        match self {
            Self::Datagrams(datagrams) => datagrams.send(batch, messages),
            Self::Packets(packets) => packets.send(batch, messages),
        }
    }
}
