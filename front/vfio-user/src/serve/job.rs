//! A command in a slot: the path of its data, and its completion.

use super::device::Device;
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::{FinalData, SlotContext};
use lunar_guest::Range;
use lunar_guest::scatter::{Scatter, ScatterList};
use lunar_nvme::{Command, Queue, Reply, Sqe, Status, Task};
use std::cell::Cell;
use std::rc::Rc;

/// A command, or half of a fused operation.
pub(super) struct Half {
    pub(super) task: Task,
    pub(super) command: Command,
    pub(super) ranges: ScatterList,
}

impl Half {
    fn path<'a>(&'a self, device: &'a Device) -> DataPath<'a> {
        DataPath::new(device, &self.ranges, Some(&self.task))
    }
}

/// The work of a slot: a command, or both halves of a fused operation. Fused operations are rare, so everything large
/// of them is behind a pointer.
pub(super) struct Job {
    pub(super) device: Rc<Device>,
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    pub(super) second: Option<Box<Half>>,
}

impl Job {
    pub(super) fn new(device: Rc<Device>, queue: Rc<Queue>, first: Half, second: Option<Box<Half>>) -> Self {
        device.admitted.set(device.admitted.get() + 1);
        Self { device, queue, first, second }
    }

    /// Carries out the command and completes it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { device, queue, first, second } = self;
        let subsystem = device.subsystem();
        match second {
            None => {
                let mut reply = Reply::default();
                let path = first.path(device);
                subsystem.execute(queue, &first.task, &first.command, &path, slot, &mut reply).await;
                path.end(queue, &first.command.sqe, reply);
            }
            // Boxed, so that the future of the common case is not as large.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let (one, other) = (first.path(device), second.path(device));
                let paths = [&one, &other];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, paths, slot, &mut replies)).await;
                let [first_reply, second_reply] = replies;
                one.end(queue, &first.command.sqe, first_reply);
                other.end(queue, &second.command.sqe, second_reply);
            }
        }
        device.slot_is_free();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.device.admitted.set(self.device.admitted.get() - 1);
    }
}

/// The path of one command's data, to and from guest memory.
pub(super) struct DataPath<'a> {
    device: &'a Device,
    ranges: &'a [Range],
    /// `None` for a command that is carried out without waiting: it cannot be aborted.
    task: Option<&'a Task>,
    /// Whether some of the memory that the command names was not there.
    has_failed: Cell<bool>,
    /// The bytes that a store was given to fill: from, to.
    lent: Cell<Option<(usize, usize)>>,
}

impl<'a> DataPath<'a> {
    pub(super) fn new(device: &'a Device, ranges: &'a [Range], task: Option<&'a Task>) -> Self {
        Self { device, ranges, task, has_failed: Cell::new(false), lent: Cell::new(None) }
    }

    /// Sends the data that travels with the status, and completes the command.
    #[inline]
    pub(super) fn end(&self, queue: &Queue, sqe: &Sqe, reply: Reply) {
        self.mark_lent();
        if reply.parked {
            return;
        }
        let FinalData { offset, data } = reply.final_data;
        let mut status = reply.status;
        if status == Status::SUCCESS && !data.is_empty() {
            // A failure sets `has_failed`.
            let _ = self.push(offset, data);
        }
        if self.has_failed.get() {
            // Every other failure is in the log of errors already.
            let is_first = status == Status::SUCCESS;
            status = if is_first { queue.failed(sqe, Status::TRANSFER_ERROR) } else { Status::TRANSFER_ERROR };
        }
        self.device.complete(queue.id, sqe.cid.get(), status, reply.result);
    }

    /// Records the memory that stores were given as written: they have ended.
    fn mark_lent(&self) {
        let registers = self.device.registers();
        if let Some((from, to)) = self.lent.take().filter(|_| registers.memory.is_logged()) {
            Scatter::new(&registers.memory, self.ranges).mark(from, to - from);
        }
    }

    /// Fills memory of our own with the data from `offset` on.
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        let is_there = Scatter::new(&self.device.registers().memory, self.ranges).read(offset, &mut memory);
        if is_there { Ok(memory.share()) } else { Err(self.fail()) }
    }

    fn fail(&self) -> Fault {
        self.has_failed.set(true);
        Fault::Protocol
    }
}

impl Transfer for DataPath<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let memory = self.device.arena().wait_sg(len);
        let memory = match self.task {
            Some(task) => task.unless_aborted(memory).await?,
            None => memory.await,
        };
        self.fill(offset, memory)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.fill(offset, self.device.arena().take_sg(len).ok_or(Fault::NoMemory)?)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let is_there = Scatter::new(&self.device.registers().memory, self.ranges).write(offset, &data);
        if is_there { Ok(()) } else { Err(self.fail()) }
    }

    #[inline]
    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let memory = Scatter::new(&self.device.registers().memory, self.ranges).to_fill(offset, len)?;
        let (from, to) = self.lent.get().unwrap_or((offset, offset));
        self.lent.set(Some((from.min(offset), to.max(offset + len))));
        Some(memory)
    }

    #[inline]
    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        Scatter::new(&self.device.registers().memory, self.ranges).to_read(offset, len)
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}
