//! Why a volume with a handler cannot be opened, with advice to the operator.

use lunar_control::value::{Size, Textual};
use lunar_engine::backend::StoreRequest;
use lunar_engine::origin::Wording;
use lunar_reactor::unix::SOCKET_PATH_MAX;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A volume with a handler cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct HandlerError {
    path: PathBuf,
    mistake: Mistake,
    wording: Wording,
}

/// The reason.
#[derive(Debug)]
pub(crate) enum Mistake {
    /// The page cache is that of the handler.
    Direct,
    /// The path of the socket is too long.
    LongPath,
    /// Another process listens there.
    InUse,
    /// The socket cannot be made.
    Socket(io::Error),
    /// The handler that is connected has fewer bytes.
    Small(u64),
    /// A SCSI device has no size that is configured.
    HasSize,
    /// A SCSI device has its own cache.
    Cache,
    /// A SCSI device has no blocks that are released.
    Discard,
}

impl HandlerError {
    pub(crate) fn new(path: &Path, mistake: Mistake, request: &StoreRequest<'_>) -> Self {
        Self { path: path.to_owned(), mistake, wording: request.origin.wording() }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.mistake {
            Mistake::Direct => write!(
                f,
                "{path}: a handler decides itself about the page cache: leave out {}",
                self.wording.option("direct")
            ),
            Mistake::LongPath => {
                write!(f, "{path} is too long for the path of a socket: {SOCKET_PATH_MAX} bytes at most")
            }
            Mistake::InUse => write!(f, "another process listens at {path}: choose another path, or end that process"),
            Mistake::Socket(why) if why.kind() == io::ErrorKind::AlreadyExists => write!(f, "{why}"),
            Mistake::Socket(why) if why.kind() == io::ErrorKind::PermissionDenied => write!(
                f,
                "the socket {path} cannot be made: {why}. Choose a path below the folder of the API socket, or put its \
                 folder into `folders` in [server] and restart"
            ),
            Mistake::Socket(why) => write!(f, "the socket {path} cannot be made: {why}"),
            Mistake::HasSize => write!(f, "{path}: a SCSI device has no size: leave it out"),
            Mistake::Cache => write!(
                f,
                "{path}: a SCSI device decides itself about its cache: leave out {}",
                self.wording.option("write-through")
            ),
            Mistake::Discard => write!(f, "{path}: `discard` is for handlers that serve blocks, not for SCSI devices"),
            Mistake::Small(size) => write!(
                f,
                "{path}: the handler that is connected has {}: end it, extend its data, and start it again first",
                Size(*size).text()
            ),
        }
    }
}

impl std::error::Error for HandlerError {}
