//! Why there is no disk, with messages that say what to do.

use lunar_ublk::error::{DeviceError, ServeError};
use lunar_ublk::wire::disk_at;
use lunar_vhost_client::Defect;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a process does not serve a disk.
#[derive(Debug)]
pub enum ServerError {
    /// Its core or its signals cannot be made.
    Start(io::Error),
    /// The memory that is shared with Lunar cannot be made.
    Memory(io::Error),
    /// So many queues and requests do not fit into rings.
    TooMany,
    /// The kernel does not do its part.
    Kernel(ServeError),
    /// The connection to this socket cannot be used.
    Session(PathBuf, SessionError),
    /// The memory that is shared with Lunar is lost.
    MemoryLost(u32),
    /// Another process has removed the disk of this number.
    Removed(u32),
    /// A device has no owner besides root.
    Privileged(u32),
}

/// Why a connection to Lunar cannot be used, or has ended.
#[derive(Debug)]
pub enum SessionError {
    /// The operating system says so.
    Io(io::Error),
    /// Lunar has closed it.
    Closed,
    /// The back-end breaks the rules, or has no such disk.
    Defect(Defect),
    /// The memory that is shared with it is lost.
    Memory,
    /// It is another volume than before.
    OtherVolume,
    /// The volume has changed so that the disk cannot use it: how.
    Changed(&'static str),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(why) => match why.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => f.write_str(
                    "Lunar does not listen there: is it running, and does its configuration have this [vhost.NAME]?",
                ),
                io::ErrorKind::PermissionDenied => f.write_str(
                    "this user may not open it: give [vhost.NAME] `mode`, `owner` or `group`, and permission to the \
                     folders above",
                ),
                io::ErrorKind::WouldBlock => f.write_str("another process uses the disk, or Lunar is busy"),
                _ => why.fmt(f),
            },
            Self::Closed => f.write_str("Lunar has closed the connection: its log says why"),
            Self::Defect(why) => why.fmt(f),
            Self::Memory => f.write_str("the memory of its requests is lost"),
            Self::OtherVolume => f.write_str(
                "it serves another volume than before, and the requests of this disk are for that one: serve the old \
                 volume there once more",
            ),
            Self::Changed(how) => write!(f, "its volume {how}: give it its old properties again"),
        }
    }
}

impl std::error::Error for SessionError {}

impl From<io::Error> for SessionError {
    fn from(why: io::Error) -> Self {
        Self::Io(why)
    }
}

impl From<Defect> for SessionError {
    fn from(why: Defect) -> Self {
        Self::Defect(why)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(why) => write!(f, "ublk needs io_uring: {why}"),
            Self::Memory(why) => write!(f, "the memory of its requests: {why}: lower --depth or --queues"),
            Self::TooMany => f.write_str("so many queues and requests are not possible: lower --depth or --queues"),
            Self::Kernel(why) => why.fmt(f),
            Self::Session(path, why) => write!(f, "{}: {why}", path.display()),
            Self::MemoryLost(number) => write!(
                f,
                "the memory of the requests of {} is broken, or the machine has none left: start this process again",
                disk_at(*number)
            ),
            Self::Removed(number) => write!(f, "another process has removed {}", disk_at(*number)),
            Self::Privileged(number) => write!(f, "{} is that of a privileged process", disk_at(*number)),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<ServeError> for ServerError {
    fn from(why: ServeError) -> Self {
        Self::Kernel(why)
    }
}

impl From<DeviceError> for ServerError {
    fn from(why: DeviceError) -> Self {
        Self::Kernel(why.into())
    }
}
