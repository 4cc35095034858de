//! Sockets, as both drivers set them up.

use crate::op::Incoming;
use crate::vector::Vector;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Connections that wait to be accepted: a rack of initiators that all log in again at once.
const BACKLOG: i32 = 4096;
/// Receives of one socket that are tried as they come while each is filled, before the others of the core have their
/// turn: what came in a row is answered together, and a peer that never pauses starves nobody.
pub(crate) const RECEIVES_AT_ONCE: u8 = 4;
/// Silence after which the peer's system is asked whether it still knows the connection, and how often and how
/// fast: a peer that lost power is noticed within about two minutes, whatever the protocol above does.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 6;

/// A socket that listens; tells where, with the port that the system chose.
pub(crate) fn listen(address: SocketAddr, nonblocking: bool) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // One family per listener: [::] and 0.0.0.0 may both be asked for.
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(nonblocking)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let local = address_of(socket.local_addr()?)?;
    Ok((socket.into(), local))
}

/// Makes an accepted connection ready for use; tells (local, peer).
pub(crate) fn join(incoming: Incoming, nonblocking: bool) -> io::Result<(OwnedFd, SocketAddr, SocketAddr)> {
    let Incoming::Socket(fd) = incoming else { return Err(io::ErrorKind::InvalidInput.into()) };
    let socket = SockRef::from(&fd);
    let peer = address_of(socket.peer_addr()?)?;
    let local = address_of(socket.local_addr()?)?;
    socket.set_nonblocking(nonblocking)?;
    // What is ready together is sent together: Nagle's algorithm could only delay it.
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_TRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    Ok((fd, local, peer))
}

fn address_of(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Ends the sending side. A connection that is gone already has none.
pub(crate) fn end_sending(socket: &OwnedFd) {
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Write);
}

/// Ends both sides, or the listening.
pub(crate) fn end(socket: &OwnedFd) {
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
}

/// What an eventfd is rung with.
pub(crate) static ONE: [u8; 8] = 1_u64.to_ne_bytes();

/// Adds one to an eventfd, unless that would have to wait.
pub(crate) fn signal(fd: &OwnedFd) {
    let mut ready = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::OUT)];
    let may = rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    if may.is_ok_and(|count| count > 0) {
        // It is the peer's: whoever gives something else gets nothing from it.
        let _ = rustix::io::write(fd, &ONE);
    }
}

/// The number of an open file, for the kernel.
pub(crate) fn raw(fd: &OwnedFd) -> i32 {
    let fd: BorrowedFd<'_> = fd.as_fd();
    fd.as_raw_fd()
}

/// Calls until no signal interrupts it; the error is the system's number.
pub(crate) fn call<T>(mut call: impl FnMut() -> io::Result<T>) -> Result<T, i32> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR => {}
                errno => return Err(errno),
            },
        }
    }
}

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn message(vector: &Vector) -> libc::msghdr {
    let (iov, len) = vector.raw();
    // SAFETY: a msghdr of zeroes is an empty message.
    let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
    head.msg_iov = iov.cast_mut();
    head.msg_iovlen = len;
    head
}

/// Receives what is there, without waiting; the error is the system's number.
pub(crate) fn receive_some(fd: &OwnedFd, vector: &Vector) -> Result<usize, i32> {
    let mut head = message(vector);
    // SAFETY: the vector points at memory that the operation owns, and the head at the vector.
    call(|| count(unsafe { libc::recvmsg(raw(fd), &raw mut head, libc::MSG_DONTWAIT) }))
}

/// Sends what there is room for, without waiting; the error is the system's number.
pub(crate) fn send_some(fd: &OwnedFd, vector: &Vector) -> Result<usize, i32> {
    let head = message(vector);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the vector points at memory that the operation holds, and the head at the vector.
    call(|| count(unsafe { libc::sendmsg(raw(fd), &raw const head, flags) }))
}
