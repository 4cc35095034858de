//! Why a device cannot be served, with advice to the operator.

use crate::device::Unusable;
use lunar_engine::backend::StoreRequest;
use lunar_engine::origin::Wording;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A device cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct DeviceError {
    path: PathBuf,
    mistake: Mistake,
    wording: Wording,
}

/// The reason.
#[derive(Debug)]
pub(crate) enum Mistake {
    /// A size is given, and a device has its own.
    HasSize,
    /// An option about a cache that the device has itself.
    Cache,
    /// The device itself.
    Unusable(Unusable),
}

impl DeviceError {
    pub(crate) fn new(path: &Path, mistake: Mistake, request: &StoreRequest<'_>) -> Self {
        Self { path: path.to_owned(), mistake, wording: request.origin.wording() }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.mistake {
            Mistake::HasSize => write!(f, "{path} is a device and has its size: leave the size out"),
            Mistake::Cache => write!(
                f,
                "{path} is a SCSI device and has its own cache, which initiators configure: leave out {} and {}",
                self.wording.option("direct"),
                self.wording.option("write-through")
            ),
            Mistake::Unusable(Unusable::NoDevice(why)) if why.kind() == io::ErrorKind::InvalidInput => {
                write!(f, "{path} is no SCSI device: `lsscsi -g` shows those of this machine")
            }
            Mistake::Unusable(Unusable::NoDevice(why)) if why.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "{path} does not exist: `lsscsi -g` shows the SCSI devices of this machine; if it shows no \
                     /dev/sg nodes, load the module: modprobe sg"
                )
            }
            Mistake::Unusable(Unusable::NoDevice(why)) => write!(f, "{path}: {why}"),
            Mistake::Unusable(Unusable::Closed(node, why)) if why.kind() == io::ErrorKind::PermissionDenied => write!(
                f,
                "{} cannot be opened: the user of Lunar needs read and write permission for it, as a member of its \
                 group (`ls -l {0}`)",
                node.display()
            ),
            Mistake::Unusable(Unusable::Closed(node, why)) => write!(f, "{}: {why}", node.display()),
            Mistake::Unusable(Unusable::InUse(block)) => write!(
                f,
                "{path}: {} is in use, perhaps mounted (`lsblk`): unmount it, or allow other users with {}",
                block.display(),
                self.wording.option("shared")
            ),
            Mistake::Unusable(Unusable::Silent(why)) => write!(f, "{path} does not answer INQUIRY: {why}"),
        }
    }
}

impl std::error::Error for DeviceError {}
