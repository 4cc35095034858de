//! The registry of running and ended copies of volumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
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
    /// The path of the new file, which must not exist.
    pub path: String,
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

/// A copy that runs or has ended.
#[derive(Debug)]
pub(crate) struct CopyJob {
    id: u64,
    words: String,
    pub(crate) total: u64,
    pub(crate) done: AtomicU64,
    /// Set to stop the copy.
    pub(crate) stop: AtomicBool,
    end: Mutex<Option<Result<(), String>>>,
}

impl CopyJob {
    /// The result; `None` while the copy runs.
    pub(crate) fn end(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress of the copy.
    pub(crate) fn view(&self) -> CopyView {
        let end = self.end().clone();
        let why = end.as_ref().and_then(|end| end.clone().err());
        let (id, words, done) = (self.id, self.words.clone(), self.done.load(Ordering::Relaxed));
        CopyView { id, words, done, total: self.total, ended: end.is_some(), why }
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
    pub(crate) fn add(&self, words: String, total: u64) -> Option<Arc<CopyJob>> {
        let mut registry = self.lock();
        let (last, all) = &mut *registry;
        if all.iter().filter(|copy| copy.end().is_none()).count() >= COPIES_MAX {
            return None;
        }
        *last += 1;
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let copy = Arc::new(CopyJob { id: *last, words, total, done, stop, end: Mutex::new(None) });
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
