//! Answers of the epoll driver that are to be given.

use crate::op::Handle;
use lunar_core::io::{Data, Done, Fault, Outcome};

/// An answer that is to be given, with the handle that the operation held.
#[must_use]
pub(super) struct Answer {
    pub(super) done: Done,
    pub(super) outcome: Outcome,
    handle: Option<Handle>,
}

impl Answer {
    pub(super) fn new(done: Done, result: Result<u32, Fault>, data: Data, handle: Handle) -> Self {
        Self { done, outcome: Outcome::with(result, data), handle: Some(handle) }
    }

    pub(super) fn of_bell(done: Done) -> Self {
        Self { done, outcome: Outcome::new(Ok(0)), handle: None }
    }

    /// Answers. The handle is dropped last: it may be the last one.
    pub(super) fn give(self) {
        self.done.complete(self.outcome);
        drop(self.handle);
    }
}
