//! The kinds of endpoints through which bytes leave and enter a core.
//!
//! * [`stream`]: bytes in order over a connection (TCP); Unix streams that pass descriptors are in [`crate::unix`]
//! * [`datagram`]: datagrams over UDP and over Unix sockets
//! * [`packet`]: Ethernet frames on an interface, over a Unix socket, over a TAP interface
//! * [`command`]: commands to a device through io_uring
//!
//! Datagrams and frames are moved in batches ([`batch`]).

pub mod batch;
pub mod command;
pub mod datagram;
mod interface;
mod messages;
pub mod packet;
mod sending;
pub(crate) mod stream;
mod unix_socket;

pub use batch::{Address, BATCH_MAX, Counters, Datagram, MacAddress, ReceiveBatch, SendBatch, VlanTag};
pub(crate) use messages::Messages;

use command::CommandDevice;
use datagram::{DatagramSocket, Datagrams};
use lunar_core::io::Data;
use packet::{Filter, PacketLink, Packets};
use std::io;
use std::os::fd::OwnedFd;

/// Receives that bring no datagram, because all were dropped, before others of the core get their turn.
const EMPTY_ROUNDS: usize = 4;

/// An endpoint that is open, on its way to the core that will use it ([`crate::op::Driver::attach`]).
#[derive(Debug)]
pub enum Endpoint {
    /// A socket of datagrams.
    Datagram(DatagramSocket),
    /// A link that carries frames.
    Packet(PacketLink),
    /// A device that takes commands.
    Command(CommandDevice),
    /// An endpoint of the simulator, by its number.
    Simulated(u32),
}

/// What an endpoint of datagrams or frames knows of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The address at which it receives.
    pub local: Address,
    /// The hardware address of this end of a link.
    pub mac: Option<MacAddress>,
    /// Bytes of the largest payload that travels whole: of a UDP or Unix datagram, or of a frame behind the 14 bytes of
    /// its header. Datagrams that are longer are dropped.
    pub mtu: usize,
    /// Datagrams and frames so far.
    pub counters: Counters,
}

/// What an operation carried, if it is a `T`.
pub(crate) fn carried<T: 'static>(data: Data) -> Option<Box<T>> {
    match data {
        Data::Carried(value) => value.downcast().ok(),
        _ => None,
    }
}

/// An endpoint that moves batches, as the drivers of real kernels use it.
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

    /// Whether a look for datagrams costs no system call.
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

    /// Receives what is there, without waiting; returns how many datagrams. 0: some were there, and all were dropped.
    /// The error is the errno.
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

    /// The error of the link or socket, if there is one: for a descriptor that is ready and has nothing.
    pub(crate) fn take_error(&self) -> Option<i32> {
        packet::pending_error(self.fd())
    }

    /// Sends what there is room for, without waiting: `Ok` when nothing is left. The error is the errno, EAGAIN when
    /// there is no room.
    pub(crate) fn send(&mut self, batch: &mut SendBatch, messages: &mut Messages) -> Result<(), i32> {
        match self {
            Self::Datagrams(datagrams) => datagrams.send(batch, messages),
            Self::Packets(packets) => packets.send(batch, messages),
        }
    }
}
