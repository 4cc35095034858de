//! Packet sockets on a network interface (packet(7)), received through a ring in shared memory.

use super::super::batch::{Counters, ReceiveBatch};
use super::super::datagram::{set, set_queues, set_to};
use super::super::interface::Interface;
use super::frame::{ADDRESSES, Filter};
use super::rights;
use super::ring::{Ring, RingFormat};
use crate::sys::raw;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// Most EtherTypes that a link distinguishes: FCoE has two, RoCEv2 with its neighbours four.
pub(super) const TYPES_MAX: usize = 16;

/// The settings of a packet socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketConfig {
    /// The name of the interface.
    pub interface: String,
    /// The EtherTypes of the received frames, with a VLAN tag or without; none: all frames.
    pub types: Vec<u16>,
    /// Frames that are received in addition to those to the own address and to the broadcast address.
    pub filters: Vec<Filter>,
    /// How the kernel hands frames over.
    pub format: RingFormat,
}

/// A packet socket.
#[derive(Debug)]
pub(super) struct PacketSocket {
    /// Declared before the socket: unmapped first.
    ring: Ring,
    fd: OwnedFd,
    interface: Interface,
}

impl PacketSocket {
    pub(super) fn open(config: &PacketConfig) -> io::Result<Self> {
        let interface = Interface::named(&config.interface)?;
        // Nothing is received before the filter is in place.
        let fd = silent(&config.interface)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        let ring = Ring::new(&fd, config.format, interface.mtu()?)?;
        set_queues(&fd);
        let socket = Self { ring, fd, interface };
        socket.select(&config.types)?;
        for filter in &config.filters {
            socket.set_filter(*filter, true)?;
        }
        bind(&socket.fd, &socket.interface, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    /// Makes the kernel drop frames of other EtherTypes.
    ///
    /// A filter program does that, and the socket is bound to all types: the kernel reports VLAN tags only to such
    /// sockets, and delivers a frame of a foreign VLAN to a socket of one type as if it had no tag.
    fn select(&self, types: &[u16]) -> io::Result<()> {
        if types.is_empty() {
            return Ok(());
        }
        if types.len() > TYPES_MAX {
            let what = format!("a link distinguishes {TYPES_MAX} EtherTypes at most, and this one has {}", types.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        // The EtherType of a frame whose tag the kernel has taken off.
        let mut program = vec![statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, ADDRESSES as u32)];
        for (at, one) in types.iter().enumerate() {
            // Over the comparisons that are left, and over the refusal.
            let accept = types.len() - at;
            program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, accept, u32::from(*one)));
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0));
        program.push(statement(libc::BPF_RET | libc::BPF_K, 0, u32::MAX));
        attach(&self.fd, &mut program)
    }

    pub(super) fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        set_membership(&self.fd, &self.interface, filter, is_wanted)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn interface(&self) -> &Interface {
        &self.interface
    }

    pub(super) fn receive(&mut self, batch: &mut ReceiveBatch, counters: &mut Counters) -> Result<usize, i32> {
        match self.ring.receive(batch, counters) {
            0 => Err(libc::EAGAIN),
            count => Ok(count),
        }
    }

    /// Frames without room in the ring since the last call.
    pub(super) fn new_drops(&self) -> u64 {
        // The third version adds a member after the others.
        let mut stats = [0_u32; 3];
        let mut len = size_of_val(&stats) as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: the kernel writes at most as many bytes as `len` says.
        let result = unsafe { libc::getsockopt(raw(&self.fd), level, option, stats.as_mut_ptr().cast(), &raw mut len) };
        let [_, drops, _] = stats;
        if result == 0 { u64::from(drops) } else { 0 }
    }
}

/// An instruction of a filter.
fn statement(code: u32, jt: usize, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jt as u8, jf: 0, k }
}

/// Attaches a filter program.
fn attach(fd: &OwnedFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program, which lives until the call is over.
    set_to(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Begins to receive the frames of an EtherType, or of all.
fn bind(fd: &OwnedFd, interface: &Interface, ether_type: u16) -> io::Result<()> {
    // SAFETY: zeroes are an address of no family.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = ether_type.to_be();
    name.sll_ifindex = interface.index() as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads one address, which lives until the call is over.
    let result = unsafe { libc::bind(raw(fd), (&raw const name).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A packet socket that drops all frames: it has an error when the interface goes down or is removed, and memberships.
/// The kernel looks at it for frames of this EtherType only.
pub(super) fn sentinel(name: &str, interface: &Interface, ether_type: u16) -> io::Result<OwnedFd> {
    let fd = silent(name)?;
    attach(&fd, &mut [statement(libc::BPF_RET | libc::BPF_K, 0, 0)])?;
    bind(&fd, interface, ether_type)?;
    Ok(fd)
}

/// A packet socket that receives nothing (protocol 0).
fn silent(interface: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
    socket.map_err(|error| refused(interface, error.into()))
}

/// Makes an interface receive the frames of a filter, or no longer, for as long as this packet socket is open.
pub(super) fn set_membership(fd: &OwnedFd, interface: &Interface, filter: Filter, is_wanted: bool) -> io::Result<()> {
    let (kind, mac) = match filter {
        Filter::Unicast(mac) => (libc::PACKET_MR_UNICAST, Some(mac)),
        Filter::Group(mac) => (libc::PACKET_MR_MULTICAST, Some(mac)),
        Filter::AllGroups => (libc::PACKET_MR_ALLMULTI, None),
        Filter::Promiscuous => (libc::PACKET_MR_PROMISC, None),
    };
    let mut request = libc::packet_mreq {
        mr_ifindex: interface.index() as i32,
        mr_type: kind as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    if let Some(mac) = mac {
        request.mr_alen = mac.0.len() as u16;
        request.mr_address[..mac.0.len()].copy_from_slice(&mac.0);
    }
    let option = if is_wanted { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_to(fd, libc::SOL_PACKET, option, &request)
}

/// An error of opening a packet socket, with the command that grants the right to.
fn refused(interface: &str, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let remedy = match rights::missing(&[rights::NET_RAW])[..] {
        [] => "the process has the capability CAP_NET_RAW, but a seccomp filter refuses packet sockets".to_owned(),
        ref names => format!("raw frames need the capability CAP_NET_RAW: {}", rights::remedy(names)),
    };
    io::Error::new(error.kind(), format!("{interface}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_command_that_grants_the_right() {
        let error = refused("eth0", io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let words = error.to_string();
        assert!(words.starts_with("eth0: ") && words.contains("CAP_NET_RAW"), "{words}");
        assert!(words.contains("setcap cap_net_raw+ep") || words.contains("seccomp"), "{words}");
        let other = refused("eth0", io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(other.raw_os_error(), Some(libc::ENOMEM));
    }
}
