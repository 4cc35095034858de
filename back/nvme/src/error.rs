//! Why a namespace cannot be served, with advice to the operator.

use crate::open::Unusable;
use crate::resolve::NoNamespace;
use lunar_engine::backend::{StoreRequest, UnevenSize};
use lunar_engine::origin::Wording;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// A namespace cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct NamespaceError {
    path: PathBuf,
    mistake: Mistake,
    wording: Wording,
    /// For the message about a size that does not fit.
    block_size: u32,
    is_disc: bool,
}

/// The reason.
#[derive(Debug)]
pub(crate) enum Mistake {
    /// A size is given, and a namespace has its own.
    HasSize,
    /// The namespace itself.
    Unusable(Unusable),
}

impl NamespaceError {
    pub(crate) fn new(path: &Path, mistake: Mistake, request: &StoreRequest<'_>) -> Self {
        let StoreRequest { block_size, is_disc, .. } = *request;
        Self { path: path.to_owned(), mistake, wording: request.origin.wording(), block_size, is_disc }
    }

    fn no_namespace(&self, f: &mut fmt::Formatter<'_>, why: NoNamespace) -> fmt::Result {
        let path = self.path.display();
        match why {
            NoNamespace::Path(Errno::NOENT) => {
                write!(f, "{path} does not exist: `nvme list` shows the namespaces of this machine")
            }
            NoNamespace::Path(why) => write!(f, "{path}: {why}"),
            NoNamespace::OtherFile => write!(
                f,
                "{path} is no NVMe namespace: name its generic node (/dev/ng0n1), its disk (/dev/nvme0n1) or a \
                 partition"
            ),
            NoNamespace::NoDisk => write!(
                f,
                "{path}: the kernel has no disk for this namespace, as with command sets and metadata formats that it \
                 does not know (`nvme id-ns`): format it with blocks without metadata"
            ),
            NoNamespace::NoGeneric => write!(
                f,
                "{path}: the kernel has no generic node (/dev/ng...) for it, which Linux has from 5.13 on: serve it as \
                 a block device"
            ),
        }
    }

    fn unusable(&self, f: &mut fmt::Formatter<'_>, why: &Unusable) -> fmt::Result {
        let (path, shared) = (self.path.display(), self.wording.option("shared"));
        match why {
            Unusable::NoNamespace(why) => self.no_namespace(f, *why),
            Unusable::InUse(block) => write!(
                f,
                "{path}: {} is in use, perhaps mounted (`lsblk`): serve an unused partition, or allow other \
                 users with {shared}",
                block.display()
            ),
            Unusable::NotClaimed(block, Errno::ACCESS | Errno::PERM) => write!(
                f,
                "{path}: {} cannot be opened to keep other programs away: give the user of Lunar the right to read it \
                 (`setfacl -m u:USER:r {0}`), or allow other users with {shared}",
                block.display()
            ),
            Unusable::NotClaimed(block, why) => write!(
                f,
                "{path}: {} cannot be opened to keep other programs away ({why}); {shared} leaves that out",
                block.display()
            ),
            Unusable::Closed(node, Errno::ACCESS | Errno::PERM) => write!(
                f,
                "{} cannot be opened: give the user of Lunar the right (`setfacl -m u:USER:rw {0}`), for good by a \
                 rule of udev for the subsystem nvme-generic",
                node.display()
            ),
            Unusable::Closed(node, why) => write!(f, "{}: {why}", node.display()),
            Unusable::Moved => write!(f, "{path}: another namespace took its number meanwhile: try again"),
            Unusable::NotIdentified => write!(
                f,
                "{path}: the kernel does not let this user send NVMe commands: Linux 6.2 or newer is needed, or the \
                 capability CAP_SYS_ADMIN"
            ),
            Unusable::Silent(why) => write!(f, "{path} does not answer Identify: {why}"),
            Unusable::Metadata(bytes) => write!(
                f,
                "{path}: its blocks have {bytes} bytes of metadata, which are not served: format it with blocks \
                 without metadata (`nvme format --lbaf`), which deletes its data"
            ),
            Unusable::Zoned => write!(f, "{path}: it is zoned, which is not served"),
            Unusable::Beyond(has) => write!(
                f,
                "{path}: the namespace has {has} bytes, less than the kernel has noticed: rescan it (`nvme ns-rescan`)"
            ),
            Unusable::LargeBlocks(bytes) => {
                let larger = self.wording.value("block-size", &bytes.to_string());
                write!(f, "{path}: its blocks have {bytes} bytes: add {larger}")
            }
            Unusable::Uneven(size) => {
                let Self { block_size, is_disc, wording, .. } = *self;
                write!(f, "{path}: {}", UnevenSize { size: *size, block_size, is_disc, wording })
            }
        }
    }
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mistake {
            Mistake::HasSize => {
                write!(f, "{} is a namespace and has its size: leave the size out", self.path.display())
            }
            Mistake::Unusable(why) => self.unusable(f, why),
        }
    }
}

impl std::error::Error for NamespaceError {}
