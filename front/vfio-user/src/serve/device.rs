//! A device: the registers that its guest sees, the NVMe controller behind them, and commands on their way from one to
//! the other.

use super::core::Core;
use super::interrupts::Interrupts;
use super::job::{DataPath, Half, Job, end};
use super::state::{Configuration, Delayed, Motion, Service};
use crate::config::{BURST, QUEUES};
use crate::pci::ConfigurationSpace;
use crate::pointer::resolve;
use crate::registers::{Effect, Fetched, NvmeRegisters};
use lunar_core::mem::{Arena, Region};
use lunar_guest::data_path::Lent;
use lunar_guest::faults::Faults;
use lunar_guest::memory::LossWatch;
use lunar_guest::poll::{Arming, Backoff, Look, PollSchedule, Rings};
use lunar_guest::scatter::ScatterList;
use lunar_nvme::command::Direction;
use lunar_nvme::plan::QueueChange;
use lunar_nvme::{Command, Queue, Reply, Sqe, Status, Subsystem};
use lunar_reactor::end::End;
use lunar_reactor::log;
use lunar_reactor::shared::{is_lost, losses};
use lunar_reactor::slots::contain;
use lunar_reactor::watch::Watch;
use std::cell::{Cell, Ref, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Looks in vain before the guest is asked to notify: some hundred microseconds, after which one more exit of the guest
/// does not show.
const MISSES_MAX: u32 = 1000;
/// Pauses between looks at doorbells that a client has mapped, while the core sleeps. A hundred looks a second, at the
/// longest pause, take a thousandth of a core.
const LOOK_SOONEST: Duration = Duration::from_micros(50);
const LOOK_LATEST: Duration = Duration::from_millis(10);
/// Delay before an interrupt is raised again whose eventfd was full.
const RAISE_AGAIN: Duration = Duration::from_millis(1);

/// A device, while its client is connected.
pub(super) struct Device {
    me: Weak<Self>,
    pub(super) core: Rc<Core>,
    name: String,
    /// Whether the log tells nothing of the connection.
    pub(super) is_silent: Cell<bool>,
    pub(super) configuration_space: RefCell<ConfigurationSpace>,
    registers: RefCell<NvmeRegisters>,
    pub(super) interrupts: RefCell<Interrupts>,
    pub(super) admin: Rc<Queue>,
    /// I/O queues, by identifier.
    pub(super) queues: RefCell<Vec<Option<Rc<Queue>>>>,
    pub(super) configuration: Configuration,
    pub(super) service: Cell<Service>,
    pub(super) motion: RefCell<Motion>,
    /// Slots that carry out its commands.
    pub(super) admitted: Cell<usize>,
    schedule: PollSchedule,
    losses: LossWatch,
    faults: Faults,
    /// Raises interrupts again whose eventfd was full.
    raise_again: Delayed,
    /// Raises interrupts that wait for more completions.
    raise_deferred: Delayed,
    /// The client has disconnected.
    pub(super) over: End,
    /// The device has failed by a panic: its client is disconnected.
    pub(super) failed: End,
}

impl Device {
    pub(super) fn new(core: &Rc<Core>, name: &str, admin: Rc<Queue>) -> Rc<Self> {
        let registers = NvmeRegisters::new(admin.controller.clone());
        let device = Rc::new_cyclic(|me| Self {
            me: me.clone(),
            core: core.clone(),
            name: name.to_owned(),
            is_silent: Cell::new(false),
            configuration_space: RefCell::default(),
            registers: RefCell::new(registers),
            interrupts: RefCell::default(),
            admin,
            queues: RefCell::new((0..QUEUES).map(|_| None).collect()),
            configuration: Configuration::default(),
            service: Cell::new(Service::Serving),
            motion: RefCell::default(),
            admitted: Cell::new(0),
            schedule: PollSchedule::new(MISSES_MAX),
            losses: LossWatch::new(losses()),
            faults: Faults::default(),
            raise_again: Delayed::default(),
            raise_deferred: Delayed::default(),
            over: End::default(),
            failed: End::default(),
        });
        let watch: Rc<dyn Watch> = device.clone();
        core.reactor.watch(&watch);
        let events = device.clone();
        core.reactor.spawn(async move { events.complete_events().await });
        device
    }

    pub(super) fn me(&self) -> Option<Rc<Self>> {
        self.me.upgrade()
    }

    pub(super) fn subsystem(&self) -> &Rc<Subsystem> {
        &self.core.subsystem
    }

    pub(super) fn arena(&self) -> &Arena {
        self.core.reactor.arena()
    }

    pub(super) fn registers(&self) -> Ref<'_, NvmeRegisters> {
        self.registers.borrow()
    }

    /// Changes the registers.
    pub(super) fn with<T>(&self, what: impl FnOnce(&mut NvmeRegisters) -> T) -> T {
        what(&mut self.registers.borrow_mut())
    }

    pub(super) fn log(&self, what: &str) {
        if !self.is_silent.get() {
            log!("vm {}: {what}", self.name);
        }
    }

    /// Logs what the client or its guest can cause again and again, unless there has been much of it.
    pub(super) fn log_fault(&self, what: &str) {
        self.faults.lines(what).for_each(|line| self.log(line));
    }

    /// Whether it runs, and is not being migrated.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.motion.borrow().is_running()
    }

    /// Whether its queues are looked at: it runs, and has not failed.
    #[inline]
    fn is_looked_at(&self) -> bool {
        self.is_running() && !self.failed.has_come()
    }

    /// The client has mapped the doorbells: writes to them cause no notification, so a task polls them while the core
    /// sleeps.
    pub(super) fn map_doorbells(self: &Rc<Self>, page: &Region, at: usize) {
        self.with(|registers| registers.map_doorbells(page, at));
        let device = self.clone();
        self.core.reactor.spawn(async move {
            let mut backoff = Backoff::new(LOOK_SOONEST, LOOK_LATEST);
            while !device.over.has_come() {
                let pause = backoff.next(device.wants_poll());
                device.core.reactor.sleep(pause).await;
            }
        });
    }

    /// Whether nothing is in progress: no command, and no rewrite of a medium that a command began.
    pub(super) fn is_quiet(&self) -> bool {
        let queues = self.queues.borrow();
        let mut all = queues.iter().flatten().chain([&self.admin]);
        let is_rewritten = || self.admin.namespaces().iter().any(|seen| seen.namespace.medium().is_rewriting());
        all.all(|queue| queue.tasks.is_empty()) && self.configuration.is_idle() && !is_rewritten()
    }

    /// Writes BAR 0.
    pub(super) fn write(&self, offset: u32, data: &[u8]) {
        match self.with(|registers| registers.write(offset, data)) {
            Effect::Configure => self.configure(),
            Effect::Notified => self.wake(),
            Effect::None => {}
        }
    }

    /// The next turn looks at the queues.
    pub(super) fn wake(&self) {
        self.schedule.wake();
    }

    /// Looks at the queues. Returns whether there was something.
    fn work(&self) -> bool {
        self.with(NvmeRegisters::flush);
        let has_fetched = self.fetch();
        self.raise();
        has_fetched || self.schedule.is_due()
    }

    /// Takes commands out of the queues. Returns whether there were any.
    fn fetch(&self) -> bool {
        let mut has_fetched = false;
        // Only messages of the client change these two, and none is handled meanwhile.
        if !self.is_running() || self.over.has_come() {
            return false;
        }
        for _ in 0..BURST {
            if self.service.get() != Service::Serving {
                return has_fetched;
            }
            if !self.core.has_slot(self.admitted.get()) {
                self.schedule.wait_for_slot();
                self.core.wait_for_slot(&self.me);
                return has_fetched;
            }
            let Some(fetched) = self.with(NvmeRegisters::fetch) else { return has_fetched };
            has_fetched = true;
            self.start(fetched);
        }
        // There may be more. Other devices have their turn first.
        self.wake();
        has_fetched
    }

    fn start(&self, fetched: Fetched) {
        let Fetched { queue: id, first, second } = fetched;
        if id == 0
            && let Some(planned) = self.subsystem().plan_queue_change(&self.admin, &first)
        {
            return match planned {
                Ok(change) => self.change_queues(&first, change),
                Err(status) => self.complete(0, first.cid.get(), status, 0),
            };
        }
        let queue = match id {
            0 => Some(self.admin.clone()),
            _ => self.queues.borrow().get(usize::from(id)).cloned().flatten(),
        };
        let Some(queue) = queue else { return };
        if let Some(second) = second {
            return self.start_fused(queue, [&first, &second]);
        }
        let cid = first.cid.get();
        let (command, ranges) = match self.resolve(&queue, first) {
            Ok(resolved) => resolved,
            Err(status) => return self.complete(id, cid, queue.failed(&first, status), 0),
        };
        let mut reply = Reply::default();
        let lent = Lent::default();
        let path = DataPath::new(self, &ranges, None, &lent);
        let now = || self.subsystem().execute_now(&queue, &command, &path, self.arena(), &mut reply);
        match contain(now) {
            Some(true) => end(&path, &queue, &command.sqe, reply),
            Some(false) => {
                let half = enter(&queue, command, ranges);
                self.seat(queue, half, None);
            }
            None => {
                path.mark_lent();
                self.complete(id, cid, queue.failed(&command.sqe, Status::INTERNAL_ERROR), 0);
            }
        }
    }

    /// Gives a command its slot.
    #[inline]
    fn seat(&self, queue: Rc<Queue>, first: Half, second: Option<Box<Half>>) {
        let Some(device) = self.me() else { return };
        if let Err(job) = self.core.slots.start(Job::new(device, queue, first, second)) {
            let halves = [Some(&job.first), job.second.as_deref()];
            for half in halves.into_iter().flatten() {
                let (queue, sqe) = (&job.queue, &half.command.sqe);
                self.complete(queue.id, sqe.cid.get(), queue.failed(sqe, Status::NOT_READY), 0);
            }
        }
    }

    #[cold]
    fn start_fused(&self, queue: Rc<Queue>, sqes: [&Sqe; 2]) {
        let half = |sqe: &Sqe| self.resolve(&queue, *sqe).map(|(command, ranges)| enter(&queue, command, ranges));
        let [one, other] = sqes.map(half);
        match (one, other) {
            (Ok(first), Ok(second)) => self.seat(queue, first, Some(Box::new(second))),
            // The half without an error fails together with the other one.
            halves => {
                for (sqe, half) in sqes.into_iter().zip([halves.0, halves.1]) {
                    let status = queue.failed(sqe, half.err().unwrap_or(Status::FUSED_FAILED));
                    self.complete(queue.id, sqe.cid.get(), status, 0);
                }
            }
        }
    }

    /// Finds the data of a command.
    fn resolve(&self, queue: &Queue, sqe: Sqe) -> Result<(Command, ScatterList), Status> {
        let bytes = queue.transfer_bytes(&sqe);
        let ranges = resolve(&sqe, bytes, &self.registers().memory)?;
        // `resolve` accepts no more than a command may move.
        let bytes = bytes as u32;
        let (sent, room) = match sqe.direction() {
            Direction::Out => (bytes, 0),
            Direction::In => (0, bytes),
            Direction::None => (0, 0),
        };
        Ok((Command { sqe, sent, room }, ranges))
    }

    /// Carries out a change of queues that an admin command asks for, and completes the command.
    fn change_queues(&self, sqe: &Sqe, change: QueueChange) {
        let changed = match change {
            QueueChange::DeleteSubmission { id } => {
                let queue = self.queues.borrow_mut().get_mut(usize::from(id)).and_then(Option::take);
                match queue {
                    Some(queue) => return self.delete_queue(queue, sqe),
                    None => Err(Status::INVALID_QUEUE),
                }
            }
            QueueChange::CreateSubmission { id, entries, .. } => self.create_queue(id, entries, change),
            _ => self.with(|registers| registers.change_queues(change)),
        };
        let status = changed.map_or_else(|status| self.admin.failed(sqe, status), |()| Status::SUCCESS);
        self.complete(0, sqe.cid.get(), status, 0);
    }

    fn create_queue(&self, id: u16, entries: u16, change: QueueChange) -> Result<(), Status> {
        self.with(|registers| registers.change_queues(change))?;
        match self.subsystem().open_queue(&self.admin.controller, id, entries) {
            Ok(queue) => {
                self.queues.borrow_mut()[usize::from(id)] = Some(queue);
                Ok(())
            }
            Err(status) => {
                self.with(|registers| registers.change_queues(QueueChange::DeleteSubmission { id }))?;
                Err(status)
            }
        }
    }

    /// Deletes an I/O submission queue once its commands have ended.
    fn delete_queue(&self, queue: Rc<Queue>, sqe: &Sqe) {
        let Some(device) = self.me() else { return };
        let sqe = *sqe;
        // A reset of the controller waits for this task.
        let task = self.admin.tasks.enter((sqe.cid.get(), 0));
        self.core.reactor.spawn(async move {
            let id = queue.id;
            device.core.reactor.stats().tasks_aborted.add(queue.tasks.abort(|_| true));
            queue.tasks.until_gone(|_| true).await;
            drop(queue);
            let deleted = device.with(|registers| registers.change_queues(QueueChange::DeleteSubmission { id }));
            let status = deleted.map_or_else(|status| device.admin.failed(&sqe, status), |()| Status::SUCCESS);
            device.complete(0, sqe.cid.get(), status, 0);
            drop(task);
        });
    }

    /// Completes a command.
    pub(super) fn complete(&self, queue: u16, cid: u16, status: Status, result: u64) {
        if self.losses.is_new(losses()) {
            self.look_for_losses();
        }
        if self.service.get() == Service::Lost {
            return;
        }
        self.with(|registers| registers.complete(queue, cid, status, result));
        self.wake();
    }

    /// Fails the controller while some of its guest's memory is lost: until the client has mapped it again and the
    /// guest has reset the controller. Returns whether some is lost.
    pub(super) fn look_for_losses(&self) -> bool {
        let is_lost = is_lost(self.registers().memory.regions());
        if is_lost {
            if self.service.replace(Service::Lost) != Service::Lost {
                self.log_fault("guest memory is truncated, out of space or broken: the controller has failed");
            }
            self.with(NvmeRegisters::fail);
        } else if self.service.get() == Service::Lost {
            self.service.set(Service::Ending);
        }
        is_lost
    }

    /// A command has left its slot.
    pub(super) fn slot_is_free(&self) {
        self.core.feed();
    }

    /// Completes Asynchronous Event Requests while the client is connected.
    async fn complete_events(self: Rc<Self>) {
        while let Some((cid, status, result)) = self.over.unless(self.admin.controller.event()).await {
            self.complete(0, cid, status, result.into());
        }
    }

    /// Raises the interrupts of what was completed. Those that cannot be raised now are raised a little later.
    pub(super) fn raise(&self) {
        self.raise_deferred_later();
        let raised = self.with(NvmeRegisters::take_raised);
        if raised.is_empty() {
            return;
        }
        let masks_intx = self.registers().masks_intx();
        if !self.interrupts.borrow_mut().raise(&raised, masks_intx) {
            self.raise_again_later();
        }
    }

    /// Raises the interrupts of all unread completions after a delay: a few too many do no harm.
    fn raise_again_later(&self) {
        let Some(device) = self.me().filter(|_| self.raise_again.begin()) else { return };
        self.core.reactor.spawn(async move {
            device.core.reactor.sleep(RAISE_AGAIN).await;
            device.raise_again.end();
            device.with(NvmeRegisters::raise_unread);
            device.wake();
        });
    }

    /// Raises interrupts that wait for more completions when their time is over.
    fn raise_deferred_later(&self) {
        let Some(time) = self.registers().coalescing_time() else { return };
        let Some(device) = self.me().filter(|_| self.raise_deferred.begin()) else { return };
        self.core.reactor.spawn(async move {
            device.core.reactor.sleep(time).await;
            device.raise_deferred.end();
            device.with(NvmeRegisters::raise_deferred);
            device.wake();
        });
    }

    /// Raises the interrupts of all unread completions: the client has set up its interrupts, or unmasked INTx.
    pub(super) fn raise_unread(&self) {
        self.with(NvmeRegisters::raise_unread);
        self.wake();
    }
}

/// Adds a command to its queue's task set.
fn enter(queue: &Queue, command: Command, ranges: ScatterList) -> Half {
    let task = queue.tasks.enter((command.sqe.cid.get(), command.sqe.nsid.get()));
    Half::new(task, command, ranges)
}

impl Rings for Device {
    #[inline]
    fn has_work(&self) -> bool {
        self.service.get() == Service::Serving && self.registers().has_work()
    }

    fn arm(&self) -> Arming {
        if self.service.get() != Service::Serving {
            return Arming::Unnotified;
        }
        let mut registers = self.registers.borrow_mut();
        match registers.arm() {
            false => Arming::Work,
            true if registers.has_mapped_doorbells() => Arming::Unnotified,
            true => Arming::Armed,
        }
    }
}

impl Watch for Device {
    fn wants_poll(&self) -> bool {
        self.is_looked_at() && self.schedule.has_work(self)
    }

    fn look(&self) -> bool {
        if !self.is_looked_at() {
            return false;
        }
        match self.schedule.look(self) {
            Look::Nothing => return false,
            Look::Again => return true,
            Look::Work => {}
        }
        // A panic would end the core.
        contain(|| self.work()).unwrap_or_else(|| {
            self.failed.come();
            true
        })
    }

    fn prepare_sleep(&self) -> bool {
        !self.is_looked_at() || self.schedule.prepare_sleep(self)
    }
}
