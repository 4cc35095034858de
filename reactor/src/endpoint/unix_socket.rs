//! Unix datagram sockets, for datagrams and for whole Ethernet frames.
//!
//! A socket with only one peer sends through a second descriptor that is connected to the peer: the kernel then
//! reports when a peer whose queue was full takes datagrams again. The first descriptor stays unconnected, because a
//! connected socket refuses a peer that was restarted.

use super::batch::{Address, Datagram};
use super::messages::Messages;
use crate::socket_file;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Permissions of the file of a socket: other users cannot send to it, unless the operator allows it.
const MODE: u32 = 0o600;

/// A Unix datagram socket.
#[derive(Debug)]
pub(super) struct UnixSocket {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
    remote: Option<Remote>,
}

#[derive(Debug)]
struct Remote {
    path: PathBuf,
    fd: OwnedFd,
    is_connected: bool,
}

impl UnixSocket {
    /// A socket at `path`; a socket that no process uses is replaced. With `remote`, all datagrams are sent there,
    /// even before a socket exists there.
    pub(super) fn bind(path: &Path, remote: Option<&Path>) -> io::Result<Self> {
        let fd = new_socket()?;
        let address = SocketAddrUnix::new(path)?;
        match connect(&new_socket()?, &address) {
            Ok(()) => return Err(in_use(path)),
            Err(rustix::io::Errno::CONNREFUSED) => socket_file::clear(path)?,
            // There is none, or none that may be used: `bind` reports that.
            Err(_) => {}
        }
        bind(&fd, &address).map_err(|error| named(path, error))?;
        socket_file::Permission { mode: MODE, owner: None, group: None }.grant(path)?;
        let remote = match remote {
            Some(remote) => Some(Remote { path: remote.to_owned(), fd: new_socket()?, is_connected: false }),
            None => None,
        };
        Ok(Self { fd, path: path.to_owned(), remote })
    }

    /// The descriptor that datagrams are sent through.
    pub(super) fn sender(&self) -> &OwnedFd {
        self.remote.as_ref().map_or(&self.fd, |remote| &remote.fd)
    }

    /// Sends the first `number` datagrams of `messages`; returns how many. The error is the errno, and concerns the
    /// first.
    pub(super) fn send(&mut self, messages: &mut Messages, number: usize) -> Result<usize, i32> {
        let Some(remote) = &mut self.remote else { return messages.send(&self.fd, number) };
        // A restarted peer has another socket at the same path: the second try connects to it.
        for _ in 0..2 {
            if !remote.is_connected {
                let address = SocketAddrUnix::new(&remote.path).map_err(|error| error.raw_os_error())?;
                connect(&remote.fd, &address).map_err(|error| error.raw_os_error())?;
                remote.is_connected = true;
            }
            match messages.send(&remote.fd, number) {
                Err(libc::ECONNREFUSED | libc::ECONNRESET | libc::ENOTCONN | libc::EPIPE) => {
                    remote.is_connected = false;
                }
                result => return result,
            }
        }
        Err(libc::ECONNREFUSED)
    }

    /// Whether a datagram needs an address of its own.
    pub(super) fn has_remote(&self) -> bool {
        self.remote.is_some()
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Fails if the file was removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes the address of a Unix socket for the kernel; returns its length, `None` if the path is too long.
pub(super) fn write_path(path: &Path, into: &mut libc::sockaddr_storage) -> Option<libc::socklen_t> {
    let bytes = path.as_os_str().as_bytes();
    let begin = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    // SAFETY: zeroes are a valid address, and the storage has room for it.
    let name = unsafe { &mut *(&raw mut *into).cast::<libc::sockaddr_un>() };
    if bytes.is_empty() || bytes.len() >= name.sun_path.len() {
        return None;
    }
    name.sun_family = libc::AF_UNIX as _;
    for (to, from) in name.sun_path.iter_mut().zip(bytes.iter().chain(&[0])) {
        *to = *from as _;
    }
    Some((begin + bytes.len() + 1) as libc::socklen_t)
}

/// Writes the address of a datagram's peer, or none if the socket has one peer only.
pub(super) fn write_peer(
    has_remote: bool,
    datagram: &Datagram,
    into: &mut libc::sockaddr_storage,
) -> Option<libc::socklen_t> {
    match &datagram.peer {
        _ if has_remote => Some(0),
        Address::Path(path) => write_path(path, into),
        _ => None,
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

fn in_use(path: &Path) -> io::Error {
    let what = format!("{}: another process uses this socket: end it, or choose another path", path.display());
    io::Error::new(io::ErrorKind::AddrInUse, what)
}

fn named(path: &Path, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
