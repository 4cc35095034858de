//! What is under way on a simulated machine: file operations, and requests that foreign threads hold.

use crate::op::{Handle, How, Op};
use crate::remote::RemoteDone;
use lunar_core::io::{Done, Fault};

/// A file operation that runs.
pub(super) struct Job {
    pub(super) core: usize,
    pub(super) disk: usize,
    pub(super) how: How,
    pub(super) op: Op,
    pub(super) done: Done,
    pub(super) fault: Option<Fault>,
    /// Where the stream of writes was when it began.
    pub(super) mark: u64,
    /// Sectors of a write that took effect already.
    pub(super) applied: usize,
}

impl Job {
    pub(super) fn handle(&self) -> Option<Handle> {
        handle_of(&self.op).cloned()
    }
}

pub(super) fn handle_of(op: &Op) -> Option<&Handle> {
    match op {
        Op::Accept { listener } => Some(listener),
        Op::Receive { socket, .. } | Op::Send { socket, .. } => Some(socket),
        Op::Read { file, .. }
        | Op::Write { file, .. }
        | Op::Sync { file }
        | Op::Allocate { file, .. }
        | Op::Extent { file, .. }
        | Op::Space { file }
        | Op::Copy { file, .. }
        | Op::Ready { file, .. }
        | Op::Signal { file } => Some(file),
        Op::Bell => None,
    }
}

/// A request that a foreign thread holds, and how it will answer.
pub(super) struct HeldRequest {
    pub(super) core: usize,
    pub(super) token: RemoteDone,
    pub(super) answer: Box<dyn FnOnce(RemoteDone)>,
}

impl HeldRequest {
    pub(super) fn answer(self) {
        (self.answer)(self.token);
    }
}
