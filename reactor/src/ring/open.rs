//! The open objects of the ring, and the order of the operations on them.

use crate::block_device::kernel_name;
use crate::endpoint::Carrier;
use crate::endpoint::command::CommandDevice;
use crate::endpoint::stream;
use crate::file::OpenFile;
use crate::op::Handle;
use lunar_core::io::Done;
use rustix::fs::{FileType, fstat};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An open object.
pub(super) struct Open {
    pub(super) role: Role,
    /// Whether the ring's table has it, at the index of its id.
    pub(super) is_fixed: bool,
    /// Whether it is a file that was opened with O_DIRECT.
    pub(super) is_direct: bool,
    /// Whether the last receive took all data: the next waits before it tries.
    pub(super) is_drained: bool,
    /// Receives that may still be tried when they are submitted, before the next turn.
    pub(super) eager: u8,
    /// Whether the sending side is closed after the last send.
    pub(super) ends_sending: bool,
    /// Sends and receives of a socket run one after the other, each in the order of submission.
    pub(super) sending: Queue,
    pub(super) receiving: Queue,
}

/// The kind of an open object.
pub(super) enum Role {
    /// A file, a device, or a descriptor that is waited for.
    File(Arc<OpenFile>),
    /// A connected socket.
    Stream(OwnedFd),
    /// A socket that accepts connections.
    Listener(Box<Listener>),
    /// An endpoint of datagrams or frames.
    Carrier(Box<Carrier>),
    /// A device that takes commands.
    Device(Box<CommandDevice>),
}

/// Operations of one direction of a socket.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) is_busy: bool,
    /// Keys of the entries that wait for the running one.
    pub(super) waiting: VecDeque<u32>,
}

/// A socket that accepts connections.
pub(super) struct Listener {
    pub(super) fd: OwnedFd,
    pub(super) accepted: VecDeque<OwnedFd>,
    pub(super) waiting: VecDeque<(Done, Handle)>,
    /// Whether the kernel accepts for it.
    pub(super) is_armed: bool,
    /// Whether its last handle is gone, and only the kernel still has it.
    pub(super) is_closing: bool,
}

impl Listener {
    pub(super) fn new(fd: OwnedFd) -> Box<Self> {
        let (accepted, waiting) = (VecDeque::new(), VecDeque::new());
        Box::new(Self { fd, accepted, waiting, is_armed: false, is_closing: false })
    }
}

impl Open {
    pub(super) fn new(role: Role) -> Self {
        Self {
            is_direct: matches!(&role, Role::File(file) if file.is_direct()),
            role,
            is_fixed: false,
            is_drained: false,
            eager: 0,
            ends_sending: false,
            sending: Queue::default(),
            receiving: Queue::default(),
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        match &self.role {
            Role::File(file) => file.fd(),
            Role::Stream(fd) => fd,
            Role::Listener(listener) => &listener.fd,
            Role::Carrier(carrier) => carrier.fd(),
            Role::Device(device) => &device.fd,
        }
    }

    /// The file, where it is one.
    pub(super) fn file(&self) -> Option<&Arc<OpenFile>> {
        match &self.role {
            Role::File(file) => Some(file),
            _ => None,
        }
    }

    /// Whether a peer learns of its end.
    pub(super) fn is_socket(&self) -> bool {
        matches!(self.role, Role::Stream(_) | Role::Listener(_))
    }

    /// Whether the ring's table has it: not objects that are only polled, nor devices, and files only if the kernel
    /// `releases` them at once when they leave the table, because they have locks and space. Sockets are shut down
    /// first. A disk of ublk stays in the table: a process that is killed would close it while it may serve it itself,
    /// and the close waits for the last writes; the ring closes it after the process.
    pub(super) fn may_be_fixed(&self, releases: bool) -> bool {
        match self.role {
            Role::Stream(_) | Role::Listener(_) => true,
            Role::File(ref file) => releases || is_ublk(file.fd()),
            Role::Carrier(_) | Role::Device(_) => false,
        }
    }

    /// A receive ended in a turn.
    pub(super) fn end_receive_of_turn(&mut self) {
        self.eager = if self.is_drained { 0 } else { stream::RECEIVES_AT_ONCE };
    }
}

/// Whether this is a disk of ublk.
fn is_ublk(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice
            && kernel_name(found.st_rdev).is_some_and(|name| name.starts_with("ublkb"))
    })
}

/// The first kernel that releases a file when the file leaves the table. Earlier ones keep it until all operations on
/// files of the table that were started before have ended, and a receive does not end while its connection is idle.
const RELEASES_FILES: (u32, u32) = (6, 13);
/// Whether this kernel releases a file when the file leaves the table.
pub(super) fn releases_files() -> bool {
    version(&rustix::system::uname().release().to_string_lossy()) >= Some(RELEASES_FILES)
}

/// The first two numbers of the release of a kernel: `6.12.117+deb13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(version("6.12.117+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("6.13-rc1"), Some((6, 13)));
        assert_eq!((version("6"), version("linux"), version("")), (None, None, None));
        assert!(version("6.2.0") < Some(RELEASES_FILES) && version("7.0") >= Some(RELEASES_FILES));
    }
}
