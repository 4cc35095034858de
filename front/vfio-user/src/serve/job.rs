//! A command in a slot: the ways that its data takes, and its completion.

use super::device::Device;
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::{Tail, Tools};
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
    fn way<'a>(&'a self, device: &'a Device) -> Way<'a> {
        Way::new(device, &self.ranges, Some(&self.task))
    }
}

/// What a slot carries out: a command, or both halves of a fused operation. Those are seldom: what is large of them
/// lies elsewhere.
pub(super) struct Job {
    pub(super) device: Rc<Device>,
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    pub(super) second: Option<Box<Half>>,
}

impl Job {
    /// Carries it out and completes it.
    pub(super) async fn run(&self, tools: &mut Tools) {
        let Self { device, queue, first, second } = self;
        let subsystem = device.subsystem();
        match second {
            None => {
                let mut reply = Reply::default();
                let way = first.way(device);
                subsystem.execute(queue, &first.task, &first.command, &way, tools, &mut reply).await;
                way.end(queue, &first.command.sqe, reply);
            }
            // Seldom, and larger than the other: it does not make its future larger.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let (one, other) = (first.way(device), second.way(device));
                let ways = [&one, &other];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, ways, tools, &mut replies)).await;
                let [first_reply, second_reply] = replies;
                one.end(queue, &first.command.sqe, first_reply);
                other.end(queue, &second.command.sqe, second_reply);
            }
        }
        device.free_slot();
    }
}

/// The way of one command's data: to and from the guest's memory.
pub(super) struct Way<'a> {
    device: &'a Device,
    ranges: &'a [Range],
    /// What can be aborted; nothing, while nothing is waited for.
    task: Option<&'a Task>,
    /// Memory that the command names was not there.
    is_lost: Cell<bool>,
    /// The bytes that stores were given to fill: from, to.
    placed: Cell<Option<(usize, usize)>>,
}

impl<'a> Way<'a> {
    pub(super) fn new(device: &'a Device, ranges: &'a [Range], task: Option<&'a Task>) -> Self {
        Self { device, ranges, task, is_lost: Cell::new(false), placed: Cell::new(None) }
    }

    /// Tells the guest how the command has ended.
    pub(super) fn end(&self, queue: &Queue, sqe: &Sqe, reply: Reply) {
        self.tell_placed();
        if reply.parked {
            return;
        }
        let Tail { offset, data } = reply.tail;
        let mut status = reply.status;
        if status == Status::SUCCESS && !data.is_empty() {
            // Says by itself that it failed.
            let _ = self.push(offset, data);
        }
        if self.is_lost.get() {
            // What failed before is remembered already.
            let is_first = status == Status::SUCCESS;
            status = if is_first { queue.failed(sqe, Status::TRANSFER_ERROR) } else { Status::TRANSFER_ERROR };
        }
        self.device.complete(queue.id, sqe.cid.get(), status, reply.result);
    }

    /// What stores were given is written by now, if it ever is.
    fn tell_placed(&self) {
        let machine = self.device.machine();
        if let Some((from, to)) = self.placed.take().filter(|_| machine.memory.is_logged()) {
            Scatter::new(&machine.memory, self.ranges).mark(from, to - from);
        }
    }

    /// Copies bytes of the guest's into this memory, which is as long.
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        let machine = self.device.machine();
        let found = Scatter::new(&machine.memory, self.ranges).read(offset, &mut memory);
        if found { Ok(memory.share()) } else { Err(self.lose()) }
    }

    fn lose(&self) -> Fault {
        self.is_lost.set(true);
        Fault::Protocol
    }
}

impl Transfer for Way<'_> {
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

    async fn pull_beside(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.fill(offset, self.device.arena().take_sg(len).ok_or(Fault::NoMemory)?)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let found = Scatter::new(&self.device.machine().memory, self.ranges).write(offset, &data);
        if found { Ok(()) } else { Err(self.lose()) }
    }

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let memory = Scatter::new(&self.device.machine().memory, self.ranges).to_fill(offset, len)?;
        let (from, to) = self.placed.get().unwrap_or((offset, offset));
        self.placed.set(Some((from.min(offset), to.max(offset + len))));
        Some(memory)
    }

    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        Scatter::new(&self.device.machine().memory, self.ranges).to_read(offset, len)
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}
