//! A command in a slot: the path of its data, and its completion.

use super::device::Device;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use lunar_core::step::{FinalData, SlotContext};
use lunar_guest::Range;
use lunar_guest::data_path::{self, GuestDevice};
use lunar_guest::memory::Memory;
use lunar_guest::scatter::ScatterList;
use lunar_nvme::queue::TaskKey;
use lunar_nvme::{Command, Queue, Reply, Sqe, Status, Task};
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
                end(&path, queue, &first.command.sqe, reply);
            }
            // Boxed, so that the future of the common case is not as large.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let (one, other) = (first.path(device), second.path(device));
                let paths = [&one, &other];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, paths, slot, &mut replies)).await;
                let [first_reply, second_reply] = replies;
                end(&one, queue, &first.command.sqe, first_reply);
                end(&other, queue, &second.command.sqe, second_reply);
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

/// The path of one command's data.
pub(super) type DataPath<'a> = data_path::DataPath<'a, Device, &'a [Range], TaskKey>;

impl GuestDevice for Device {
    #[inline]
    fn with_memory<T>(&self, work: impl FnOnce(&Memory) -> T) -> T {
        work(&self.registers().memory)
    }

    #[inline]
    fn arena(&self) -> &Arena {
        self.core.reactor.arena()
    }
}

/// Sends the data that travels with the status, and completes the command.
#[inline]
pub(super) fn end(path: &DataPath<'_>, queue: &Queue, sqe: &Sqe, reply: Reply) {
    path.mark_lent();
    if reply.parked {
        return;
    }
    let FinalData { offset, data } = reply.final_data;
    let mut status = reply.status;
    if status == Status::SUCCESS && !data.is_empty() {
        // The path remembers a failure.
        let _ = path.push(offset, data);
    }
    if path.has_failed() {
        // Every other failure is in the log of errors already.
        let is_first = status == Status::SUCCESS;
        status = if is_first { queue.failed(sqe, Status::TRANSFER_ERROR) } else { Status::TRANSFER_ERROR };
    }
    path.device().complete(queue.id, sqe.cid.get(), status, reply.result);
}
