//! Byte streams over sockets (TCP), as both real drivers set them up.

use crate::op::Incoming;
use crate::sys::{call, count, raw};
use crate::vector::Vector;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Most connections that wait to be accepted: the initiators of a rack that all log in again at the same time.
const BACKLOG: i32 = 4096;
/// Receives of one socket that are executed as they are submitted while each is filled, before the other sockets of
/// the core get their turn: data that arrived together is answered together, and a peer that never pauses does not
/// starve the others.
pub(crate) const RECEIVES_AT_ONCE: u8 = 4;
/// TCP keep-alive: the silence after which the first probe is sent, the time between probes, and their number. The
/// loss of a peer's power is noticed within about two minutes, for every protocol.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 6;

/// A listening socket and its address, with the port that the system chose.
pub(crate) fn listen(address: SocketAddr, nonblocking: bool) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // One family per listener: an operator may configure both [::] and 0.0.0.0.
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(nonblocking)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let local = address_of(socket.local_addr()?)?;
    Ok((socket.into(), local))
}

/// Sets an accepted connection up; returns its local and peer addresses with it.
pub(crate) fn join(incoming: Incoming, nonblocking: bool) -> io::Result<(OwnedFd, SocketAddr, SocketAddr)> {
    let Incoming::Socket(fd) = incoming else { return Err(io::ErrorKind::InvalidInput.into()) };
    let socket = SockRef::from(&fd);
    let peer = address_of(socket.peer_addr()?)?;
    let local = address_of(socket.local_addr()?)?;
    socket.set_nonblocking(nonblocking)?;
    // Replies that are ready at the same time are sent in one call: Nagle's algorithm could only delay them.
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_TRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    Ok((fd, local, peer))
}

fn address_of(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Closes the sending side.
pub(crate) fn end_sending(socket: &OwnedFd) {
    // Fails if the connection is gone already.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Write);
}

/// Closes both sides of a connection, or ends listening.
pub(crate) fn end(socket: &OwnedFd) {
    // Fails if the connection is gone already.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
}

fn message(vector: &Vector) -> libc::msghdr {
    let (iov, len) = vector.raw();
    // SAFETY: a msghdr of zeroes is an empty message.
    let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
    head.msg_iov = iov.cast_mut();
    head.msg_iovlen = len;
    head
}

/// Receives the bytes that have arrived, without waiting; the error is the errno.
pub(crate) fn receive_some(fd: &OwnedFd, vector: &Vector) -> Result<usize, i32> {
    let mut head = message(vector);
    // SAFETY: the vector points at memory that the operation owns, and the head at the vector.
    call(|| count(unsafe { libc::recvmsg(raw(fd), &raw mut head, libc::MSG_DONTWAIT) }))
}

/// Sends as many bytes as there is room for, without waiting; the error is the errno.
pub(crate) fn send_some(fd: &OwnedFd, vector: &Vector) -> Result<usize, i32> {
    let head = message(vector);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the vector points at memory that the operation holds, and the head at the vector.
    call(|| count(unsafe { libc::sendmsg(raw(fd), &raw const head, flags) }))
}
