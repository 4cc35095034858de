//! Sockets of datagrams: UDP over IPv4 and IPv6, and Unix datagram sockets.

use super::batch::{Address, Counters, Datagram, ReceiveBatch, SendBatch};
use super::interface::Interface;
use super::messages::{Messages, write_address};
use super::sending::{self, Sender};
use super::unix_socket::{UnixSocket, write_peer};
use crate::sys::raw;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

// Of linux/udp.h.
const UDP_NO_CHECK6_RX: libc::c_int = 102;
const UDP_GRO: libc::c_int = 104;

/// Bytes that the kernel queues for a socket until the core receives them, and until sent ones have left: some
/// milliseconds of a fast link. Further datagrams are dropped and counted.
const QUEUE_BYTES: usize = 4 << 20;
/// Most paths of Unix peers that are remembered, so that a datagram of one of them allocates nothing.
const PEERS_MAX: usize = 64;
/// The largest payload of UDP over IPv4 (65,535 bytes with both headers), and over IPv6 without jumbograms.
const UDP_MAX: (usize, usize) = (65_507, 65_527);
/// The headers of IPv4 and UDP, and of IPv6 and UDP.
const HEADERS: (usize, usize) = (28, 48);
/// The largest datagram of a Unix socket that fits into the default queue of its receiver with some others.
const UNIX_MAX: usize = 65_536;

/// The settings of a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// The local address. With an unspecified address each datagram states the local address to which it was sent.
    pub address: SocketAddr,
    /// Whether consecutive datagrams of one peer may arrive as one ([`Datagram::segment`], UDP_GRO). Each receive then
    /// needs room for 64 KiB.
    pub coalesces: bool,
    /// Whether datagrams without a checksum are accepted over IPv6, too (RFC 6935): for protocols with a checksum of
    /// their own, such as RoCEv2.
    pub accepts_no_checksum: bool,
}

impl UdpConfig {
    /// A socket at `address` with the usual checksums.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, coalesces: false, accepts_no_checksum: false }
    }
}

/// An open datagram socket. Any thread may open it, before its core starts.
#[derive(Debug)]
pub struct DatagramSocket(Kind);

#[derive(Debug)]
enum Kind {
    Udp { fd: OwnedFd, local: SocketAddr },
    Unix(UnixSocket),
}

impl DatagramSocket {
    /// A UDP socket. Datagrams that are longer than the path allows are not fragmented (IP_MTU_DISCOVER): they are
    /// dropped and counted.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` (a port below 1024), and others of the operating system.
    pub fn udp(config: &UdpConfig) -> io::Result<Self> {
        let is_v6 = config.address.is_ipv6();
        let socket = Socket::new(Domain::for_address(config.address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if is_v6 {
            // One family per socket, as for listeners.
            socket.set_only_v6(true)?;
        }
        let (level, info, discover) = match is_v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_MTU_DISCOVER),
            false => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_MTU_DISCOVER),
        };
        let fd = OwnedFd::from(socket);
        set(&fd, level, discover, libc::IP_PMTUDISC_DO)?;
        if config.address.ip().is_unspecified() {
            set(&fd, level, info, 1)?;
        }
        set(&fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        if config.coalesces {
            set(&fd, libc::SOL_UDP, UDP_GRO, 1)?;
        }
        if config.accepts_no_checksum && is_v6 {
            set(&fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        set_queues(&fd);
        let socket = SockRef::from(&fd);
        socket.bind(&config.address.into())?;
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self(Kind::Udp { fd, local }))
    }

    /// A Unix socket at `path`, whose file is removed when it is closed. With `remote` all datagrams are sent there;
    /// otherwise each is sent to its [`Datagram::peer`], and a datagram whose receiver's queue is full is dropped and
    /// counted.
    ///
    /// # Errors
    /// `AddrInUse` when another process uses the path, `AlreadyExists` when the file is no socket; others of the
    /// operating system.
    pub fn unix(path: &Path, remote: Option<&Path>) -> io::Result<Self> {
        let socket = UnixSocket::bind(path, remote)?;
        set_queues(&socket.fd);
        set_queues(socket.sender());
        Ok(Self(Kind::Unix(socket)))
    }

    /// The address at which it receives.
    #[must_use]
    pub fn local(&self) -> Address {
        match &self.0 {
            Kind::Udp { local, .. } => Address::Ip(*local),
            Kind::Unix(socket) => Address::Path(socket.path.as_path().into()),
        }
    }
}

/// Sets an integer option of a socket.
pub(super) fn set(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_to(fd, level, option, &value)
}

/// Sets an option of a socket to any value that the kernel reads by its size.
pub(super) fn set_to<T>(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let value: *const T = value;
    // SAFETY: the kernel reads as many bytes as the value has.
    let result = unsafe { libc::setsockopt(raw(fd), level, option, value.cast(), size_of::<T>() as libc::socklen_t) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Enlarges the queues of a socket: beyond the limits of the system if the process may (CAP_NET_ADMIN), else up to
/// them.
pub(super) fn set_queues(fd: &OwnedFd) {
    let bytes = QUEUE_BYTES as libc::c_int;
    for (force, usual) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        if set(fd, libc::SOL_SOCKET, force, bytes).is_err() {
            // A smaller queue drops datagrams earlier, and has no other effect.
            let _ = set(fd, libc::SOL_SOCKET, usual, bytes);
        }
    }
}

/// A datagram socket for a program without a reactor, such as a load generator. No call waits.
pub struct DirectSocket {
    datagrams: Datagrams,
    messages: Messages,
}

impl DirectSocket {
    /// A socket that is used without a reactor.
    #[must_use]
    pub fn new(socket: DatagramSocket) -> Self {
        Self { datagrams: Datagrams::new(socket), messages: Messages::default() }
    }

    /// The address at which it receives.
    #[must_use]
    pub fn local(&self) -> Address {
        self.datagrams.local()
    }

    /// The largest datagram that is not fragmented on the local link.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.datagrams.largest()
    }

    /// A descriptor that is readable when datagrams have arrived.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.datagrams.fd().as_fd()
    }

    /// The counters of datagrams.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.datagrams.counters()
    }

    /// Receives the datagrams that have arrived, as far as the batch has room; returns how many.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        match self.datagrams.receive(batch, &mut self.messages) {
            Err(libc::EAGAIN) => Ok(0),
            result => result.map_err(io::Error::from_raw_os_error),
        }
    }

    /// Sends as many datagrams as there is room for; the others stay in the batch.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&mut self, batch: &mut SendBatch) -> io::Result<()> {
        let result = self.datagrams.send(batch, &mut self.messages);
        batch.finish();
        match result {
            Err(libc::EAGAIN) => Ok(()),
            result => result.map_err(io::Error::from_raw_os_error),
        }
    }
}

impl std::fmt::Debug for DirectSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectSocket({:?})", self.local())
    }
}

/// A datagram socket, as a driver uses it.
pub(crate) struct Datagrams {
    socket: DatagramSocket,
    counters: Counters,
    /// Datagrams that the kernel has dropped so far, modulo 2^32.
    kernel_drops: u32,
    peers: Vec<Rc<Path>>,
}

impl Datagrams {
    pub(super) fn new(socket: DatagramSocket) -> Self {
        Self { socket, counters: Counters::default(), kernel_drops: 0, peers: Vec::new() }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        match &self.socket.0 {
            Kind::Udp { fd, .. } => fd,
            Kind::Unix(socket) => &socket.fd,
        }
    }

    pub(super) fn sender(&self) -> &OwnedFd {
        match &self.socket.0 {
            Kind::Udp { fd, .. } => fd,
            Kind::Unix(socket) => socket.sender(),
        }
    }

    pub(super) fn local(&self) -> Address {
        self.socket.local()
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// The largest datagram that is not fragmented on the local link.
    pub(super) fn largest(&self) -> usize {
        let Kind::Udp { local, .. } = &self.socket.0 else { return UNIX_MAX };
        let is_v6 = local.is_ipv6();
        let pick = |(v4, v6): (usize, usize)| if is_v6 { v6 } else { v4 };
        let interface = Interface::with_address(local.ip()).ok().and_then(|interface| interface.mtu().ok());
        interface.map_or(usize::MAX, |mtu| mtu.saturating_sub(pick(HEADERS))).min(pick(UDP_MAX))
    }

    /// Receives the datagrams that have arrived; returns how many. The error is the errno.
    pub(super) fn receive(&mut self, batch: &mut ReceiveBatch, messages: &mut Messages) -> Result<usize, i32> {
        let count = loop {
            match messages.receive(self.fd(), batch) {
                // An earlier datagram did not reach its receiver.
                Err(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ECONNRESET) => {}
                result => break result?,
            }
        };
        let mut taken = 0;
        for at in 0..count {
            let report = messages.report(at);
            let Some(mut memory) = batch.take_free() else { break };
            if let Some(drops) = report.drops {
                self.counters.receive_drops += u64::from(drops.wrapping_sub(self.kernel_drops));
                self.kernel_drops = drops;
            }
            if report.is_cut {
                self.counters.receive_drops += 1;
                batch.give_back(memory);
                continue;
            }
            memory.truncate(report.len);
            let peer = match messages.sender(at) {
                Some(address) => Address::Ip(address),
                None => messages.sender_path(at).map_or(Address::None, |path| self.peer(path)),
            };
            let (local, segment) = (report.local, report.segment);
            // A segment size that is not shorter than the datagram has no meaning.
            let segment = if usize::from(segment) < memory.len() { segment } else { 0 };
            batch.push(Datagram { data: memory.share().into(), peer, local, segment, ..Datagram::default() });
            taken += 1;
        }
        self.counters.received += taken as u64;
        Ok(taken)
    }

    /// The address of a Unix peer, by its path.
    fn peer(&mut self, path: &[u8]) -> Address {
        let known = self.peers.iter().find(|known| known.as_os_str().as_bytes() == path);
        let path = known.cloned().unwrap_or_else(|| {
            let path: Rc<Path> = Path::new(std::ffi::OsStr::from_bytes(path)).into();
            if self.peers.len() == PEERS_MAX {
                self.peers.remove(0);
            }
            self.peers.push(path.clone());
            path
        });
        Address::Path(path)
    }

    /// Sends as many datagrams as there is room for: `Ok` when none is left. The error is the errno: EAGAIN when there
    /// is no room.
    pub(super) fn send(&mut self, batch: &mut SendBatch, messages: &mut Messages) -> Result<(), i32> {
        let mut sender = UsedSocket(&mut self.socket.0);
        sending::send(&mut sender, batch, messages, &mut self.counters)
    }
}

struct UsedSocket<'a>(&'a mut Kind);

impl Sender for UsedSocket<'_> {
    fn address(&self, datagram: &Datagram, into: &mut libc::sockaddr_storage) -> Option<libc::socklen_t> {
        match (&*self.0, &datagram.peer) {
            (Kind::Udp { local, .. }, Address::Ip(peer)) if peer.is_ipv4() == local.is_ipv4() => {
                let is_own = datagram.local.is_none_or(|ip| ip.is_ipv4() == matches!(local.ip(), IpAddr::V4(_)));
                is_own.then(|| write_address(*peer, into))
            }
            (Kind::Udp { .. }, _) => None,
            (Kind::Unix(socket), _) => write_peer(socket.has_remote(), datagram, into),
        }
    }

    fn send(&mut self, messages: &mut Messages, number: usize) -> Result<usize, i32> {
        match self.0 {
            Kind::Udp { fd, .. } => messages.send(fd, number),
            Kind::Unix(socket) => match socket.send(messages, number) {
                // The kernel does not report when the queue of one of many receivers has room again.
                Err(libc::EAGAIN) if !socket.has_remote() => Err(libc::ENOBUFS),
                result => result,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;

    #[test]
    fn a_socket_without_a_reactor_moves_datagrams() {
        let arena = Arena::new(4 << 20);
        let config = UdpConfig::new(([127, 0, 0, 1], 0).into());
        let open = || DatagramSocket::udp(&config).map(DirectSocket::new).expect("a free port");
        let (mut one, mut other) = (open(), open());
        let mut batch = ReceiveBatch::new(2000, 4);
        batch.refill(&arena);
        assert_eq!(other.receive(&mut batch).expect("it is open"), 0);
        let mut sends = SendBatch::new();
        for byte in 0..3_u8 {
            let data = arena.copy(&[byte]).expect("room").into();
            sends.push(Datagram { data, peer: other.local(), ..Datagram::default() });
        }
        one.send(&mut sends).expect("it is open");
        assert!(sends.is_empty() && other.largest() > 1400);
        assert_eq!(other.receive(&mut batch).expect("it is open"), 3);
        let received: Vec<_> = batch.drain().map(|datagram| (datagram.peer, datagram.data.to_vec())).collect();
        assert_eq!(received, (0..3).map(|byte| (one.local(), vec![byte])).collect::<Vec<_>>());
    }
}
