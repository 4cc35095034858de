//! TAP interfaces: a descriptor whose reads and writes are frames.

use super::super::batch::{Counters, ReceiveBatch, SendBatch};
use super::super::interface::Interface;
use super::super::messages::Messages;
use super::super::sending::is_of_socket;
use super::frame::{HEADER, untagged};
use crate::sys::{call, count, raw};
use libc::iovec;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// A TAP interface that is open.
#[derive(Debug)]
pub(super) struct Tap {
    fd: OwnedFd,
    interface: Interface,
}

impl Tap {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let file = File::options().read(true).write(true).custom_flags(flags).open("/dev/net/tun");
        let fd = OwnedFd::from(file.map_err(|error| explained(name, error))?);
        let interface = Interface::named(name).map_err(|error| explained(name, error))?;
        let mut request = interface.empty_request();
        // Frames without a header of the driver.
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request reads and writes one `ifreq`, which lives until it is over.
        if unsafe { libc::ioctl(raw(&fd), libc::TUNSETIFF, &raw mut request) } < 0 {
            return Err(explained(name, io::Error::last_os_error()));
        }
        Ok(Self { fd, interface })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Receives the frames that have arrived; returns how many. The error is the errno.
    pub(super) fn receive(&self, batch: &mut ReceiveBatch, counters: &mut Counters) -> Result<usize, i32> {
        let (mut taken, room) = (0, batch.room());
        for _ in 0..batch.free() {
            let Some(mut memory) = batch.take_free() else { break };
            match self.receive_one(memory.as_mut_ptr(), memory.len()) {
                Ok(len) if len > room || len < HEADER => {
                    counters.receive_drops += 1;
                    batch.give_back(memory);
                }
                Ok(len) => {
                    memory.truncate(len);
                    batch.push(untagged(memory));
                    taken += 1;
                }
                Err(errno) => {
                    batch.give_back(memory);
                    // The error is reported if it came before any frame.
                    return if taken > 0 { Ok(taken) } else { Err(errno) };
                }
            }
        }
        if taken > 0 { Ok(taken) } else { Err(libc::EAGAIN) }
    }

    /// Receives one frame; returns its length, or more than `room` if it is longer than that.
    fn receive_one(&self, start: *mut u8, room: usize) -> Result<usize, i32> {
        // The driver truncates a frame without a report: a byte after the room shows it.
        let mut behind = 0_u8;
        let pieces =
            [iovec { iov_base: start.cast(), iov_len: room }, iovec { iov_base: (&raw mut behind).cast(), iov_len: 1 }];
        // SAFETY: both pieces are memory of the caller's and of this function's, which live until the call is over.
        call(|| count(unsafe { libc::readv(raw(&self.fd), pieces.as_ptr(), pieces.len() as i32) }))
    }

    /// Sends as many frames as there is room for: `Ok` when none is left. The error is the errno.
    pub(super) fn send(
        &self,
        batch: &mut SendBatch,
        messages: &mut Messages,
        counters: &mut Counters,
    ) -> Result<(), i32> {
        while let Some(frame) = batch.left().first() {
            let pieces = messages.pieces(frame);
            // SAFETY: the pieces point at memory that the batch and `messages` hold during the call.
            match call(|| count(unsafe { libc::writev(raw(&self.fd), pieces.as_ptr(), pieces.len() as i32) })) {
                Ok(_) => {
                    batch.advance(1);
                    counters.sent += 1;
                }
                Err(errno) if is_of_socket(errno) => return Err(errno),
                Err(_) => {
                    batch.drop_first(1);
                    counters.send_drops += 1;
                }
            }
        }
        Ok(())
    }
}

/// An error of opening a TAP interface, with the command that helps.
fn explained(name: &str, error: io::Error) -> io::Error {
    let create = format!("`ip tuntap add dev {name} mode tap user USER` makes it for a user");
    let what = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("the TAP interface {name} belongs to another user: {create}"),
        Some(libc::EBUSY) => format!("another process uses the TAP interface {name}"),
        Some(libc::EINVAL) => format!("{name} is not a TAP interface: {create}"),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "this kernel has no TUN/TAP driver: `modprobe tun` loads it".to_owned()
        }
        None if error.kind() == io::ErrorKind::NotFound => format!("there is no TAP interface `{name}`: {create}"),
        _ => return error,
    };
    io::Error::new(error.kind(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_which_command_helps() {
        let words = |errno| explained("tap7", io::Error::from_raw_os_error(errno)).to_string();
        assert!(words(libc::EPERM).contains("ip tuntap add dev tap7 mode tap user"), "{}", words(libc::EPERM));
        assert!(words(libc::EBUSY).contains("another process"), "{}", words(libc::EBUSY));
        assert!(words(libc::ENOENT).contains("modprobe tun"), "{}", words(libc::ENOENT));
        let missing = Tap::open("none0").expect_err("there is none");
        assert!(missing.to_string().contains("ip tuntap add") || missing.to_string().contains("modprobe"), "{missing}");
    }
}
