//! The registry of running and ended copies of volumes.

use lunar_control::failure::Failure;
use lunar_control::live::StoreNotMade;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Copies that may run at the same time. More would slow each other down on the same disks.
pub const COPIES_MAX: usize = 4;
/// Copies that are listed, including ended ones, so that clients can query their results.
const LISTED_MAX: usize = 64;

/// The parameters of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "copy-order")]
pub struct CopyRequest {
    /// The name of the new volume.
    pub name: String,
    /// The path of the new file, which must not exist; of a Ceph image, the name of the clone or of the snapshot. By
    /// default, it is beside the source, with the name of the new volume.
    #[serde(default)]
    pub path: Option<String>,
    /// Whether the copy must share blocks: it then takes no time, or fails.
    #[serde(default)]
    pub share: bool,
    /// Whether the new volume is read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// The progress of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "copy")]
pub struct CopyView {
    /// The number of the copy.
    pub id: u64,
    /// Source and destination.
    pub words: String,
    /// The new file, or the new image or snapshot.
    pub place: String,
    /// Bytes copied so far.
    pub done: u64,
    /// Bytes to copy.
    pub total: u64,
    /// Whether the copy has ended.
    pub ended: bool,
    /// The reason why the copy failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Why a copy failed, with a message that says what to do.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Clients may write to a volume with protection information.
    ProtectedInUse,
    /// Clients may write to the volume, and its file system cannot share blocks.
    InUse,
    /// The file system cannot share blocks, as requested.
    CannotShare(Errno),
    /// The file system shares blocks, and a shared block may have older bytes than a read returns.
    SharesOldBytes,
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
    /// The copy was stopped.
    Stopped,
    /// The service is stopping.
    ServiceStops,
    /// The metadata records of the new volume cannot be written.
    Records(io::Error),
    /// The new volume cannot be created.
    Create(Failure),
    /// The system that keeps the store does not make a copy.
    Store(StoreNotMade),
    /// The copy failed for this reason, and the system that keeps it does not remove it.
    Left(Box<Self>, StoreNotMade),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtectedInUse => f.write_str(
                "the volume keeps protection information, and clients may write to it: set read-only first, and \
                     wait for commands of `lunar scsi`",
            ),
            Self::InUse => f.write_str(
                "clients may write to the volume, and this file system cannot share blocks: set read-only first, and \
                 wait for commands of `lunar scsi`",
            ),
            Self::CannotShare(why) => {
                write!(f, "this file system cannot share blocks ({why}): copy the bytes instead (`lunar volume copy`)")
            }
            Self::SharesOldBytes => f.write_str(
                "ZFS may share blocks from before the last UNMAP: copy the bytes instead (`lunar volume copy`), or \
                 make a snapshot of the dataset (`zfs snapshot`, `zfs clone`)",
            ),
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Stopped => f.write_str("the copy was stopped"),
            Self::ServiceStops => f.write_str("the service is stopping"),
            Self::Records(why) => why.fmt(f),
            Self::Create(why) => why.fmt(f),
            Self::Store(why) => why.fmt(f),
            Self::Left(why, left) => write!(f, "{why}; {left}"),
        }
    }
}

impl std::error::Error for CopyError {}

/// A copy that runs or has ended.
#[derive(Debug)]
pub(crate) struct CopyJob {
    id: u64,
    words: String,
    place: String,
    pub(crate) total: u64,
    pub(crate) done: AtomicU64,
    /// Set to stop the copy.
    pub(crate) stop: AtomicBool,
    end: Mutex<Option<Result<(), CopyError>>>,
}

impl CopyJob {
    /// The result; `None` while the copy runs.
    pub(crate) fn end(&self) -> MutexGuard<'_, Option<Result<(), CopyError>>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress of the copy.
    pub(crate) fn view(&self) -> CopyView {
        let (ended, why) = match &*self.end() {
            None => (false, None),
            Some(end) => (true, end.as_ref().err().map(ToString::to_string)),
        };
        let (words, place) = (self.words.clone(), self.place.clone());
        let (id, done) = (self.id, self.done.load(Ordering::Relaxed));
        CopyView { id, words, place, done, total: self.total, ended, why }
    }
}

/// The running and the last ended copies.
#[derive(Debug, Default)]
pub struct Copies(Mutex<(u64, VecDeque<Arc<CopyJob>>)>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Arc<CopyJob>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a copy, unless too many run.
    pub(crate) fn add(&self, words: String, total: u64, place: String) -> Option<Arc<CopyJob>> {
        let mut registry = self.lock();
        let (last, all) = &mut *registry;
        if all.iter().filter(|copy| copy.end().is_none()).count() >= COPIES_MAX {
            return None;
        }
        *last += 1;
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let copy = Arc::new(CopyJob { id: *last, words, place, total, done, stop, end: Mutex::new(None) });
        all.push_back(copy.clone());
        if all.len() > LISTED_MAX
            && let Some(oldest) = all.iter().position(|copy| copy.end().is_some())
        {
            all.remove(oldest);
        }
        Some(copy)
    }

    /// The copy with this number; `None` if there is none or it is not listed any more.
    pub(crate) fn find(&self, id: u64) -> Option<Arc<CopyJob>> {
        self.lock().1.iter().find(|copy| copy.id == id).cloned()
    }

    /// All listed copies, in the order of their start.
    pub(crate) fn views(&self) -> Vec<CopyView> {
        self.lock().1.iter().map(|copy| copy.view()).collect()
    }
}
