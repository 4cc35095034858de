//! A command in a slot: the path of its data, and its completion.

use super::device::Device;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use lunar_core::step::{FinalData, SlotContext};
use lunar_guest::Range;
use lunar_guest::data_path::{self, GuestDevice, Lent};
use lunar_guest::memory::Memory;
use lunar_guest::scatter::ScatterList;
use lunar_nvme::queue::TaskKey;
use lunar_nvme::{Command, Queue, Reply, Sqe, Status, Task};
use std::cell::Cell;
use std::rc::Rc;

/// A command, or half of a fused operation.
pub(super) struct Half {
    task: Task,
    pub(super) command: Command,
    ranges: ScatterList,
    lent: Lent,
    /// Whether it was completed, or is completed by an event.
    has_ended: Cell<bool>,
}

impl Half {
    pub(super) fn new(task: Task, command: Command, ranges: ScatterList) -> Self {
        Self { task, command, ranges, lent: Lent::default(), has_ended: Cell::new(false) }
    }

    fn path<'a>(&'a self, device: &'a Device) -> DataPath<'a> {
        DataPath::new(device, &self.ranges, Some(&self.task), &self.lent)
    }

    fn end(&self, path: &DataPath<'_>, queue: &Queue, reply: Reply) {
        end(path, queue, &self.command.sqe, reply);
        self.has_ended.set(true);
    }

    /// Completes the command, which a panic has ended.
    fn fail(&self, device: &Device, queue: &Queue) {
        if !self.has_ended.get() {
            self.lent.mark(device, &&self.ranges[..]);
            let sqe = &self.command.sqe;
            device.complete(queue.id, sqe.cid.get(), queue.failed(sqe, Status::INTERNAL_ERROR), 0);
        }
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
                first.end(&path, queue, reply);
            }
            // Boxed, so that the future of the common case is not as large.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let (one, other) = (first.path(device), second.path(device));
                let paths = [&one, &other];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, paths, slot, &mut replies)).await;
                let [first_reply, second_reply] = replies;
                first.end(&one, queue, first_reply);
                second.end(&other, queue, second_reply);
            }
        }
        device.slot_is_free();
    }

    /// Completes the command, which a panic has ended: the guest would wait for it, and reset the controller. No store
    /// uses its memory any more: the guest may use it for something else.
    pub(super) fn fail(self) {
        let Self { device, queue, first, second } = &self;
        [Some(first), second.as_deref()].into_iter().flatten().for_each(|half| half.fail(device, queue));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::core::Core;
    use lunar_core::io::{Done, Outcome};
    use lunar_core::mem::Region;
    use lunar_core::time::Instant;
    use lunar_nvme::fuzzing::{Rig, entry, tenant};
    use lunar_reactor::slots::Slots;
    use lunar_reactor::{Choice, Config, Reactor};
    use std::cell::RefCell;
    use std::time::Duration;

    /// Guest address of the admin completion queue.
    const COMPLETIONS: usize = 0x2000;

    #[test]
    fn a_command_that_a_panic_ends_fails_when_its_store_has_answered() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let admin = rig.subsystem.open_controller(&tenant(), Instant(0)).expect("there is room");
        let device = Device::new(&Core::new(&reactor, &rig.subsystem), "test", admin.clone());
        let memory = Region::zeroed(0x10000);
        device.with(|registers| {
            registers.memory.map(0, 0x10000, Some(memory.clone())).expect("free");
            registers.write(0x24, &0x0007_0007_u32.to_le_bytes());
            registers.write(0x28, &0x1000_u64.to_le_bytes());
            registers.write(0x30, &(COMPLETIONS as u64).to_le_bytes());
            registers.enable().expect("valid admin queues");
        });
        let held: Rc<RefCell<Option<Done>>> = Rc::default();
        let store = held.clone();
        let work = async move |_: &Job, slot: &mut SlotContext| {
            *store.borrow_mut() = Some(slot.completion.token());
            panic!("a command set is defective, as the test wants");
        };
        let slots = Slots::with_failure(&reactor, 1, work, Job::fail);
        let mut sqe = entry(0x02, 0, &[]);
        sqe.cid = 9.into();
        let half = Half::new(admin.tasks.enter((9, 0)), Command { sqe, sent: 0, room: 0 }, ScatterList::new());
        assert!(slots.start(Job::new(device.clone(), admin, half, None)).is_ok());
        let pause = || reactor.run(reactor.sleep(Duration::from_millis(5)));
        let completed = || {
            let mut bytes = [0; 4];
            assert!(memory.read(COMPLETIONS + 12, &mut bytes));
            bytes
        };
        pause();
        // A reset of the controller waits for the task.
        assert_eq!((completed(), device.is_quiet(), device.admitted.get()), ([0; 4], false, 1));
        held.take().expect("it was given").complete(Outcome::new(Ok(0)));
        pause();
        let [cid, _, status, _] = completed();
        assert_eq!((cid, device.is_quiet(), device.admitted.get()), (9, true, 0));
        assert_eq!(u16::from(status) & 0xfe, Status::INTERNAL_ERROR.field() & 0xfe, "beside the phase");
    }
}
