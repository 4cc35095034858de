//! Removes mappings. The time for it grows with the pages that were used, and the last mapping of a file whose process
//! has gone frees all of its pages: more than a second for a large virtual machine. So another thread removes all but
//! small ones.

use super::{MAPPED, lost_bit, quota::Share};
use rustix::mm::munmap;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of mappings that are removed at once: a thousand pages take some ten microseconds.
const SMALL: usize = 4 << 20;
/// Bytes that are removed with one call: other threads cannot map anything meanwhile.
const STEP: usize = 64 << 20;

/// A mapping, and its place in the table.
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Bytes of a huge page, which is unmapped as a whole; else one.
    pub(super) page: usize,
    pub(super) place: usize,
    pub(super) share: Option<Share>,
}

// SAFETY: it is the only owner of its addresses, which are used by this module alone from its drop on.
unsafe impl Send for Mapping {}

impl Mapping {
    fn unmap(self) {
        let (base, _) = &MAPPED[self.place];
        let mut at = 0;
        while at < self.len {
            let count = STEP.max(self.page).min(self.len - at);
            // SAFETY: a part of a mapping of the module above that nobody uses any more, and that is not unmapped yet.
            let _ = unsafe { munmap(self.base.add(at).as_ptr().cast(), count) };
            at += count;
        }
        let (lost, bit) = lost_bit(self.place);
        lost.fetch_and(!bit, Ordering::SeqCst);
        base.store(0, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Waiting {
    left: VecDeque<Mapping>,
    /// A thread removes them.
    is_running: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { left: VecDeque::new(), is_running: false });

fn waiting() -> MutexGuard<'static, Waiting> {
    // Every change is complete before a call that could panic.
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a mapping that nobody uses any more, now or soon.
pub(super) fn remove(mut mapping: Mapping) {
    // A fault there is none of a peer from now on.
    MAPPED[mapping.place].1.store(0, Ordering::SeqCst);
    if mapping.len <= SMALL {
        return mapping.unmap();
    }
    mapping.share.iter_mut().for_each(Share::leave);
    let mut all = waiting();
    all.left.push_back(mapping);
    if !all.is_running {
        all.is_running = true;
        let thread = std::thread::Builder::new().name("lunar-unmap".to_owned()).spawn(run);
        drop(all);
        if thread.is_err() {
            run();
        }
    }
}

fn run() {
    loop {
        let mut all = waiting();
        let Some(mapping) = all.left.pop_front() else {
            all.is_running = false;
            return;
        };
        drop(all);
        mapping.unmap();
    }
}
