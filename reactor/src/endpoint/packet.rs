//! Links that carry Ethernet frames: packet sockets on a network interface (AF_PACKET), sockets of its driver (AF_XDP),
//! Unix datagram sockets that carry one frame per datagram (QEMU's `-netdev dgram`), and TAP interfaces.

mod frame;
mod rights;
mod ring;
mod socket;
mod tap;
mod xdp;

pub use frame::{Filter, HEADER};
pub use ring::RingFormat;
pub use socket::PacketConfig;
pub use xdp::{COMMANDS as BPF_COMMANDS, XdpConfig};

use super::batch::{Counters, Datagram, MacAddress, ReceiveBatch, SendBatch};
use super::messages::Messages;
use super::sending::{self, Sender};
use super::unix_socket::{UnixSocket, write_peer};
use crate::sys::raw;
use frame::untagged;
use socket::PacketSocket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use tap::Tap;
use xdp::XdpSocket;

/// An open link. Any thread may open it, before its core starts.
#[derive(Debug)]
pub struct PacketLink(Kind);

#[derive(Debug)]
enum Kind {
    Socket(PacketSocket),
    Xdp(Box<XdpSocket>),
    Unix { socket: UnixSocket, station: Station },
    Tap { tap: Tap, mac: MacAddress },
}

/// The properties of a link without an interface of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Station {
    /// The address of this end.
    pub mac: MacAddress,
    /// The largest payload of a frame, behind the 14 bytes of its header.
    pub mtu: usize,
}

impl PacketLink {
    /// A packet socket on a network interface. Frames of other stations may be received as well, for instance while
    /// another process has the interface receive all frames: the user of the link checks the destination address.
    ///
    /// # Errors
    /// `NotFound` when there is no such interface, `PermissionDenied` without CAP_NET_RAW; the message names the
    /// command that helps. Others of the operating system.
    pub fn interface(config: &PacketConfig) -> io::Result<Self> {
        Ok(Self(Kind::Socket(PacketSocket::open(config)?)))
    }

    /// AF_XDP sockets on all queues of a network interface: its driver hands frames over before the network stack of
    /// the kernel sees them. Frames of the link do not reach other users of the interface, and all others do. The
    /// kernel ends this with the process.
    ///
    /// # Errors
    /// `NotFound` when there is no such interface, `PermissionDenied` without CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF,
    /// `ResourceBusy` when another program has XDP of the interface; each message names the missing thing and the
    /// command that helps. Others of the operating system.
    pub fn xdp(config: &XdpConfig) -> io::Result<Self> {
        Ok(Self(Kind::Xdp(Box::new(XdpSocket::open(config)?))))
    }

    /// A Unix datagram socket at `path` that exchanges frames with the one at `remote`, which may be created later and
    /// again: frames for a missing peer are dropped and counted. For QEMU: `-netdev
    /// dgram,local.type=unix,local.path=REMOTE,remote.type=unix,remote.path=PATH`.
    ///
    /// # Errors
    /// Errors of [`super::datagram::DatagramSocket::unix`].
    pub fn unix(path: &Path, remote: &Path, station: Station) -> io::Result<Self> {
        let socket = UnixSocket::bind(path, Some(remote))?;
        super::datagram::set_queues(&socket.fd);
        super::datagram::set_queues(socket.sender());
        Ok(Self(Kind::Unix { socket, station }))
    }

    /// The far side of the TAP interface `name`: frames that this host sends to the interface are received here, and
    /// frames sent here reach the host. `mac` is the address of this end.
    ///
    /// # Errors
    /// `NotFound` when there is no TUN/TAP driver, `PermissionDenied` when the interface belongs to another user,
    /// `ResourceBusy` when another process uses it; each message names the command that helps. Others of the operating
    /// system.
    pub fn tap(name: &str, mac: MacAddress) -> io::Result<Self> {
        Ok(Self(Kind::Tap { tap: Tap::open(name)?, mac }))
    }
}

/// A link for a program without a reactor, such as a load generator. No call waits.
pub struct DirectLink {
    packets: Packets,
    messages: Messages,
}

impl DirectLink {
    /// A link that is used without a reactor.
    #[must_use]
    pub fn new(link: PacketLink) -> Self {
        Self { packets: Packets::new(link), messages: Messages::default() }
    }

    /// The address of this end, and the largest payload of a frame.
    ///
    /// # Errors
    /// When the interface was removed.
    pub fn station(&self) -> io::Result<Station> {
        self.packets.station()
    }

    /// A descriptor that is readable when frames have arrived.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.packets.fd().as_fd()
    }

    /// Receives the frames that have arrived, as far as the batch has room; returns how many.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        match self.packets.receive(batch, &mut self.messages) {
            Err(libc::EAGAIN) => Ok(0),
            result => result.map_err(io::Error::from_raw_os_error),
        }
    }

    /// Sends as many frames as there is room for; the others stay in the batch.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&mut self, batch: &mut SendBatch) -> io::Result<()> {
        let result = self.packets.send(batch, &mut self.messages);
        batch.finish();
        match result {
            Err(libc::EAGAIN) => Ok(()),
            result => result.map_err(io::Error::from_raw_os_error),
        }
    }
}

impl std::fmt::Debug for DirectLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectLink({:?})", self.packets.link)
    }
}

/// A link, as a driver uses it.
pub(crate) struct Packets {
    link: PacketLink,
    counters: Counters,
}

impl Packets {
    pub(super) fn new(link: PacketLink) -> Self {
        Self { link, counters: Counters::default() }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        match &self.link.0 {
            Kind::Socket(socket) => socket.fd(),
            Kind::Xdp(socket) => socket.fd(),
            Kind::Unix { socket, .. } => &socket.fd,
            Kind::Tap { tap, .. } => tap.fd(),
        }
    }

    pub(super) fn sender(&self) -> &OwnedFd {
        match &self.link.0 {
            Kind::Xdp(socket) => socket.sender(),
            Kind::Unix { socket, .. } => socket.sender(),
            _ => self.fd(),
        }
    }

    /// Whether checking for frames costs no system call.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.link.0, Kind::Socket(_) | Kind::Xdp(_))
    }

    /// Whether its descriptor is readable, without a sign of its own, when there is an error.
    pub(super) fn hides_errors(&self) -> bool {
        matches!(self.link.0, Kind::Xdp(_))
    }

    /// The pending error of the link, which is cleared.
    pub(super) fn take_error(&self) -> Option<i32> {
        match &self.link.0 {
            Kind::Xdp(socket) => socket.take_error(),
            Kind::Socket(_) | Kind::Unix { .. } | Kind::Tap { .. } => pending_error(self.fd()),
        }
    }

    /// The address of this end, and the largest payload of a frame.
    pub(super) fn station(&self) -> io::Result<Station> {
        match &self.link.0 {
            Kind::Socket(socket) => Ok(Station { mac: socket.interface().mac()?, mtu: socket.interface().mtu()? }),
            Kind::Xdp(socket) => Ok(Station { mac: socket.interface().mac()?, mtu: socket.interface().mtu()? }),
            Kind::Unix { station, .. } => Ok(*station),
            Kind::Tap { tap, mac } => Ok(Station { mac: *mac, mtu: tap.interface().mtu()? }),
        }
    }

    pub(super) fn counters(&mut self) -> Counters {
        self.counters.receive_drops += match &mut self.link.0 {
            Kind::Socket(socket) => socket.new_drops(),
            Kind::Xdp(socket) => socket.new_drops(),
            Kind::Unix { .. } | Kind::Tap { .. } => 0,
        };
        self.counters
    }

    /// Adds or removes a filter. Other links than interfaces receive all frames in any case.
    pub(super) fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        match &self.link.0 {
            Kind::Socket(socket) => socket.set_filter(filter, is_wanted),
            Kind::Xdp(socket) => socket.set_filter(filter, is_wanted),
            _ => Ok(()),
        }
    }

    /// Receives the frames that have arrived; returns how many. The error is the errno.
    pub(super) fn receive(&mut self, batch: &mut ReceiveBatch, messages: &mut Messages) -> Result<usize, i32> {
        let counters = &mut self.counters;
        let taken = match &mut self.link.0 {
            Kind::Socket(socket) => socket.receive(batch, counters)?,
            Kind::Xdp(socket) => socket.receive(batch, counters)?,
            Kind::Unix { socket, .. } => receive_unix(&socket.fd, batch, messages, counters)?,
            Kind::Tap { tap, .. } => tap.receive(batch, counters)?,
        };
        self.counters.received += taken as u64;
        Ok(taken)
    }

    /// Sends as many frames as there is room for: `Ok` when none is left. The error is the errno: EAGAIN when there is
    /// no room.
    pub(super) fn send(&mut self, batch: &mut SendBatch, messages: &mut Messages) -> Result<(), i32> {
        let counters = &mut self.counters;
        match &mut self.link.0 {
            Kind::Socket(socket) => sending::send(&mut OnInterface(socket.fd()), batch, messages, counters),
            Kind::Xdp(socket) => socket.send(batch, messages, counters),
            Kind::Unix { socket, .. } => sending::send(&mut OnUnix(socket), batch, messages, counters),
            Kind::Tap { tap, .. } => tap.send(batch, messages, counters),
        }
    }
}

struct OnInterface<'a>(&'a OwnedFd);

impl Sender for OnInterface<'_> {
    fn address(&self, _: &Datagram, _: &mut libc::sockaddr_storage) -> Option<libc::socklen_t> {
        Some(0)
    }

    fn send(&mut self, messages: &mut Messages, number: usize) -> Result<usize, i32> {
        messages.send(self.0, number)
    }
}

struct OnUnix<'a>(&'a mut UnixSocket);

impl Sender for OnUnix<'_> {
    fn address(&self, datagram: &Datagram, into: &mut libc::sockaddr_storage) -> Option<libc::socklen_t> {
        write_peer(true, datagram, into)
    }

    fn send(&mut self, messages: &mut Messages, number: usize) -> Result<usize, i32> {
        self.0.send(messages, number)
    }
}

fn receive_unix(
    fd: &OwnedFd,
    batch: &mut ReceiveBatch,
    messages: &mut Messages,
    counters: &mut Counters,
) -> Result<usize, i32> {
    let count = messages.receive(fd, batch)?;
    let mut taken = 0;
    for at in 0..count {
        let report = messages.report(at);
        let Some(mut memory) = batch.take_free() else { break };
        if report.is_cut || report.len < HEADER {
            counters.receive_drops += 1;
            batch.give_back(memory);
            continue;
        }
        memory.truncate(report.len);
        batch.push(untagged(memory));
        taken += 1;
    }
    Ok(taken)
}

/// The error that is pending at a socket, which is cleared; `None` for a descriptor that is no socket.
pub(super) fn pending_error(fd: &OwnedFd) -> Option<i32> {
    let (mut error, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes one integer.
    let result =
        unsafe { libc::getsockopt(raw(fd), libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    (result == 0 && error != 0).then_some(error)
}
