//! The jobs of a simulated machine: file operations, device commands, and requests that foreign threads hold.

use super::device::Shared;
use crate::endpoint::command::Command;
use crate::op::{Handle, How, Op};
use crate::remote::RemoteDone;
use lunar_core::io::{Done, Fault};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A file operation that runs.
pub(super) struct Job {
    pub(super) core: usize,
    pub(super) disk: usize,
    pub(super) how: How,
    pub(super) op: Op,
    pub(super) done: Done,
    pub(super) fault: Option<Fault>,
    /// The point in the stream of writes when it began.
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
        Op::ReceiveBatch { endpoint, .. } | Op::SendBatch { endpoint, .. } => Some(endpoint),
        Op::Command { device, .. } => Some(device),
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

/// A signal on its way to an eventfd.
pub(super) struct Signal {
    pub(super) core: usize,
    pub(super) eventfd: Rc<OwnedFd>,
    pub(super) done: Done,
    pub(super) handle: Handle,
}

/// A command that a device executes.
pub(super) struct CommandJob {
    pub(super) core: usize,
    pub(super) device: Shared,
    pub(super) command: Box<Command>,
    pub(super) done: Done,
    pub(super) handle: Handle,
    /// The fault with which it fails before it reaches the device.
    pub(super) fault: Option<Fault>,
}

impl CommandJob {
    /// Executes it on the device.
    pub(super) fn execute(&mut self) -> Result<u32, Fault> {
        match self.fault {
            Some(fault) => Err(fault),
            None => self.device.borrow_mut().execute(&mut self.command),
        }
    }
}
