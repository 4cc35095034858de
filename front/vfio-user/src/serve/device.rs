//! A device: the controller as its guest sees it, the controller behind it, and what happens between the two.

use super::Front;
use super::job::{Half, Job, Way};
use super::motion::Motion;
use crate::pci;
use crate::pointer::resolve;
use crate::registers::{Effect, Fetched, NvmeRegisters};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Region};
use lunar_core::step::flush_now;
use lunar_guest::scatter::ScatterList;
use lunar_nvme::command::Direction;
use lunar_nvme::controller::property;
use lunar_nvme::{Command, Queue, Reply, Sqe, Status, Subsystem};
use lunar_reactor::end::End;
use lunar_reactor::log;
use lunar_reactor::shared::{is_lost, losses};
use lunar_reactor::slots::contain;
use lunar_reactor::unix::Signal;
use lunar_reactor::watch::Watch;
use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// CC.EN, CC.SHN.
pub(super) const ENABLE: u32 = 0x01;
const SHUTDOWN: u32 = 0xc000;
/// Admin commands that are about queues, and so are carried out here.
const DELETE_SUBMISSIONS: u8 = 0x00;
const CREATE_SUBMISSIONS: u8 = 0x01;
const DELETE_COMPLETIONS: u8 = 0x04;
const CREATE_COMPLETIONS: u8 = 0x05;
const DOORBELL_BUFFERS: u8 = 0x7c;

/// Looks in vain before the guest is asked to ring: some hundred microseconds, after which one more exit of the guest's
/// does not show.
const MISSES_MAX: u32 = 1000;

/// Doorbells that a client has mapped are looked at so often while they are rung, and ever more seldom after that: at
/// the end a hundred looks a second cost a thousandth of a core.
const LOOK_SOONEST: Duration = Duration::from_micros(50);
const LOOK_LATEST: Duration = Duration::from_millis(10);
/// When an interrupt is raised again that could not be.
const RAISE_AGAIN: Duration = Duration::from_millis(1);

/// The interrupts that a client has set up.
#[derive(Default)]
pub(super) struct Interrupts {
    /// By vector.
    pub(super) vectors: Vec<Option<Signal>>,
    pub(super) line: Option<Signal>,
    /// INTx has come, or is masked: the client says when it may come again.
    pub(super) line_is_masked: bool,
}

/// A device, as long as its client is there.
pub(super) struct Device {
    me: Weak<Self>,
    pub(super) front: Rc<Front>,
    name: String,
    pub(super) space: RefCell<pci::Space>,
    machine: RefCell<NvmeRegisters>,
    pub(super) interrupts: RefCell<Interrupts>,
    pub(super) admin: Rc<Queue>,
    /// I/O queues, by identifier.
    pub(super) queues: RefCell<Vec<Option<Rc<Queue>>>>,
    /// CC as it is in force.
    pub(super) applied: Cell<u32>,
    /// Whether CC is being put in force.
    is_configuring: Cell<bool>,
    /// Nothing is fetched: queues end.
    is_stopped: Cell<bool>,
    /// A look may find something, though nobody has rung.
    is_due: Cell<bool>,
    /// There is something, but no slot for it: who lets go of one says so.
    is_starved: Cell<bool>,
    /// The guest rings: its memory need not be looked at.
    is_armed: Cell<bool>,
    /// An interrupt could not be raised, and will be.
    is_late: Cell<bool>,
    /// Interrupts wait for more completions, and will be raised.
    is_patient: Cell<bool>,
    /// Looks in vain, one after the other.
    misses: Cell<u32>,
    /// Whether it runs, and what it does on its way to another process.
    pub(super) motion: RefCell<Motion>,
    /// Nothing is fetched, completed or told: it stands still.
    pub(super) is_still: Cell<bool>,
    /// Losses of shared memory that were seen, and whether one was of this guest's.
    losses: Cell<usize>,
    has_lost: Cell<bool>,
    /// The client is gone.
    over: End,
    /// Who waits for CC to be in force.
    configured: RefCell<Vec<Waker>>,
}

impl Device {
    pub(super) fn new(front: &Rc<Front>, name: &str, admin: Rc<Queue>) -> Rc<Self> {
        let machine = NvmeRegisters::new(admin.controller.clone());
        let device = Rc::new_cyclic(|me| Self {
            me: me.clone(),
            front: front.clone(),
            name: name.to_owned(),
            space: RefCell::default(),
            machine: RefCell::new(machine),
            interrupts: RefCell::default(),
            admin,
            queues: RefCell::new((0..crate::config::QUEUES).map(|_| None).collect()),
            applied: Cell::new(0),
            is_configuring: Cell::new(false),
            is_stopped: Cell::new(false),
            is_due: Cell::new(false),
            is_starved: Cell::new(false),
            is_armed: Cell::new(false),
            is_late: Cell::new(false),
            is_patient: Cell::new(false),
            misses: Cell::new(0),
            motion: RefCell::default(),
            is_still: Cell::new(false),
            losses: Cell::new(losses()),
            has_lost: Cell::new(false),
            over: End::default(),
            configured: RefCell::default(),
        });
        let watch: Rc<dyn Watch> = device.clone();
        front.reactor.watch(&watch);
        let events = device.clone();
        front.reactor.spawn(async move { events.tell_events().await });
        device
    }

    pub(super) fn subsystem(&self) -> &Rc<Subsystem> {
        &self.front.subsystem
    }

    pub(super) fn arena(&self) -> &Arena {
        self.front.reactor.arena()
    }

    pub(super) fn machine(&self) -> Ref<'_, NvmeRegisters> {
        self.machine.borrow()
    }

    pub(super) fn with<T>(&self, what: impl FnOnce(&mut NvmeRegisters) -> T) -> T {
        what(&mut self.machine.borrow_mut())
    }

    pub(super) fn log(&self, what: &str) {
        log!("vm {}: {what}", self.name);
    }

    /// The client has mapped the doorbells: nobody tells when they are rung.
    pub(super) fn map_doorbells(self: &Rc<Self>, page: &Region, at: usize) {
        self.with(|machine| machine.map_doorbells(page, at));
        let device = self.clone();
        self.front.reactor.spawn(async move {
            let mut pause = LOOK_SOONEST;
            while !device.over.has_come() {
                let is_ripe = device.is_ripe();
                pause = if is_ripe { LOOK_SOONEST } else { (pause * 2).min(LOOK_LATEST) };
                device.front.reactor.sleep(pause).await;
            }
        });
    }

    /// Whether nothing is under way: no command, and no work on a whole medium that a command began.
    pub(super) fn is_quiet(&self) -> bool {
        let queues = self.queues.borrow();
        let mut all = queues.iter().flatten().chain([&self.admin]);
        let is_worked_on = || self.admin.namespaces().iter().any(|seen| seen.namespace.unit.medium.is_worked_on());
        all.all(|queue| queue.tasks.is_empty()) && !self.is_configuring.get() && !is_worked_on()
    }

    /// Writes BAR 0.
    pub(super) fn write(&self, offset: u32, data: &[u8]) {
        match self.with(|machine| machine.write(offset, data)) {
            Effect::Configure => self.configure(),
            Effect::Rung => self.look_again(),
            Effect::None => {}
        }
    }

    pub(super) fn look_again(&self) {
        self.is_due.set(true);
        self.is_starved.set(false);
        self.is_armed.set(false);
    }

    /// Whether the guest's memory is looked at, though nobody has rung.
    fn is_watched(&self) -> bool {
        !self.is_armed.get() && !self.is_starved.get() && !self.is_stopped.get() && !self.is_still.get()
    }

    /// Has the guest ring; `false`: there is something already.
    fn arm(&self) -> bool {
        let mut machine = self.machine.borrow_mut();
        let is_armed = machine.arm();
        // Nobody rings doorbells that are mapped.
        self.is_armed.set(is_armed && !machine.is_mapped());
        is_armed
    }

    /// Has CC put in force, one value after the other.
    fn configure(&self) {
        if self.is_configuring.replace(true) {
            return;
        }
        let Some(device) = self.me.upgrade() else { return };
        self.front.reactor.spawn(async move {
            loop {
                let wanted = device.machine().wanted();
                if wanted == device.applied.get() || device.over.has_come() {
                    break;
                }
                device.apply(wanted).await;
                device.applied.set(wanted);
            }
            device.is_configuring.set(false);
            device.configured.take().into_iter().for_each(Waker::wake);
        });
    }

    async fn apply(&self, wanted: u32) {
        let controller = &self.admin.controller;
        let is_enabled = self.applied.get() & ENABLE != 0;
        if wanted & ENABLE == 0 && is_enabled {
            self.stop().await;
        }
        if wanted & SHUTDOWN != 0 && self.applied.get() & SHUTDOWN == 0 {
            self.end_queues().await;
            // What cannot be flushed is in the log, and what writes it next hears of it.
            let _ = self.flush_all().await;
        }
        let set = |machine: &mut NvmeRegisters| {
            if wanted & ENABLE != 0 && !is_enabled {
                machine.enable()?;
            }
            self.front.subsystem.set_property(controller, property::CC, false, wanted.into())
        };
        if self.with(set).is_err() {
            self.log("its guest has configured the controller as it cannot be");
            self.with(NvmeRegisters::fail);
        }
        self.is_stopped.set(false);
        self.look_for_losses();
        self.look_again();
    }

    /// Ends all commands, and all queues.
    async fn stop(&self) {
        self.is_stopped.set(true);
        let stats = self.front.reactor.stats();
        let abort = |queue: &Rc<Queue>| stats.tasks_aborted.add(queue.tasks.abort(|_| true));
        self.queues.borrow().iter().flatten().chain([&self.admin]).for_each(abort);
        self.end_queues().await;
        self.admin.tasks.until_gone(|_| true).await;
        self.with(NvmeRegisters::disable);
    }

    /// Ends the I/O queues when their commands have ended.
    async fn end_queues(&self) {
        let queues = self.queues.take();
        *self.queues.borrow_mut() = (0..queues.len()).map(|_| None).collect();
        for queue in queues.into_iter().flatten() {
            queue.tasks.until_left(queue.tasks.moment(), |_| true).await;
        }
    }

    /// What the guest has written stays when it is off, or elsewhere.
    ///
    /// # Errors
    /// That of the last namespace that could not be flushed.
    pub(super) async fn flush_all(&self) -> Result<(), Fault> {
        let mut all = Ok(());
        for seen in self.admin.namespaces() {
            match flush_now(&seen.namespace.unit).await {
                Ok(()) | Err(Fault::Unsupported) => {}
                Err(why) => {
                    self.log(&format!("namespace {} could not be flushed: {why:?}", seen.id));
                    all = Err(why);
                }
            }
        }
        all
    }

    /// Resets the device: all is as at the beginning, and it runs.
    pub(super) async fn reset(&self) {
        self.clear().await;
        self.motion.take();
        self.go_on();
    }

    /// All is as at the beginning, but for the guest's memory, who is told of interrupts, and whether it runs.
    pub(super) async fn clear(&self) {
        self.with(|machine| _ = machine.write(property::CC, &[0; 4]));
        self.configure();
        poll_fn(|cx| {
            if !self.is_configuring.get() {
                return Poll::Ready(());
            }
            self.configured.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.with(NvmeRegisters::reset);
        self.space.borrow_mut().reset();
    }

    /// The client is gone: commands end, and nothing of the guest is touched after that.
    pub(super) async fn end(&self) {
        self.reset().await;
        self.over.come();
        self.admin.controller.end();
        self.with(|machine| drop(machine.forget_memory()));
        *self.interrupts.borrow_mut() = Interrupts::default();
    }

    /// Takes commands out of the queues; tells whether there were any.
    fn fetch(&self) -> bool {
        let (mut seen, burst) = (false, self.machine().burst());
        for _ in 0..burst {
            if self.is_stopped.get() || self.is_still.get() || self.over.has_come() {
                return seen;
            }
            if self.front.slots.free() == 0 {
                self.is_starved.set(true);
                self.front.starve(&self.me);
                return seen;
            }
            let Some(fetched) = self.with(NvmeRegisters::fetch) else { return seen };
            seen = true;
            self.start(fetched);
        }
        // There may be more: others have their turn first.
        self.look_again();
        seen
    }

    fn start(&self, fetched: Fetched) {
        let Fetched { queue: id, first, second } = fetched;
        if id == 0 && self.manage(&first) {
            return;
        }
        let queue = match id {
            0 => Some(self.admin.clone()),
            _ => self.queues.borrow().get(usize::from(id)).cloned().flatten(),
        };
        let Some(queue) = queue else { return };
        if let Some(second) = second {
            return self.start_both(queue, [&first, &second]);
        }
        let cid = first.cid.get();
        let (command, ranges) = match self.resolve(&queue, first) {
            Ok(resolved) => resolved,
            Err(status) => return self.complete(id, cid, queue.failed(&first, status), 0),
        };
        let mut reply = Reply::default();
        let way = Way::new(self, &ranges, None);
        let now = || self.subsystem().execute_now(&queue, &command, &way, self.arena(), &mut reply);
        match contain(now) {
            Some(true) => way.end(&queue, &command.sqe, reply),
            Some(false) => {
                let half = enter(&queue, command, ranges);
                self.seat(queue, half, None);
            }
            None => self.complete(id, cid, queue.failed(&command.sqe, Status::INTERNAL_ERROR), 0),
        }
    }

    /// Gives a job its slot.
    #[inline]
    fn seat(&self, queue: Rc<Queue>, first: Half, second: Option<Box<Half>>) {
        let Some(device) = self.me.upgrade() else { return };
        if let Err(job) = self.front.slots.start(Job { device, queue, first, second }) {
            let halves = [Some(&job.first), job.second.as_deref()];
            for half in halves.into_iter().flatten() {
                let (queue, sqe) = (&job.queue, &half.command.sqe);
                self.complete(queue.id, sqe.cid.get(), queue.failed(sqe, Status::NOT_READY), 0);
            }
        }
    }

    /// A fused operation.
    #[cold]
    fn start_both(&self, queue: Rc<Queue>, sqes: [&Sqe; 2]) {
        let half = |sqe: &Sqe| self.resolve(&queue, *sqe).map(|(command, ranges)| enter(&queue, command, ranges));
        let [one, other] = sqes.map(half);
        match (one, other) {
            (Ok(first), Ok(second)) => self.seat(queue, first, Some(Box::new(second))),
            // The half that is not to blame ends with the other.
            halves => {
                for (sqe, half) in sqes.into_iter().zip([halves.0, halves.1]) {
                    let status = queue.failed(sqe, half.err().unwrap_or(Status::FUSED_FAILED));
                    self.complete(queue.id, sqe.cid.get(), status, 0);
                }
            }
        }
    }

    /// Finds where a command's data lies.
    fn resolve(&self, queue: &Queue, sqe: Sqe) -> Result<(Command, ScatterList), Status> {
        let bytes = queue.transfer_bytes(&sqe);
        let ranges = resolve(&sqe, bytes, &self.machine().memory)?;
        // It fits what a command may move.
        let bytes = bytes as u32;
        let (sent, room) = match sqe.direction() {
            Direction::Out => (bytes, 0),
            Direction::In => (0, bytes),
            Direction::None => (0, 0),
        };
        Ok((Command { sqe, sent, room }, ranges))
    }

    /// Carries out admin commands that are about queues; tells whether it is one.
    fn manage(&self, sqe: &Sqe) -> bool {
        let id = sqe.cdw(10) as u16;
        let ended = match sqe.opcode {
            CREATE_COMPLETIONS => {
                let granted = self.admin.controller.granted();
                self.with(|machine| machine.create_completions(sqe, granted))
            }
            DELETE_COMPLETIONS => self.with(|machine| machine.delete_completions(id)),
            CREATE_SUBMISSIONS => self.create(sqe),
            DOORBELL_BUFFERS => self.with(|machine| machine.set_shadow(sqe)),
            DELETE_SUBMISSIONS if self.machine().has_submissions(id) => {
                self.delete(id, sqe.cid.get());
                return true;
            }
            DELETE_SUBMISSIONS => Err(Status::INVALID_QUEUE),
            _ => return false,
        };
        self.subsystem().config().stats.commands.add(1);
        let status = ended.map_or_else(|status| self.admin.failed(sqe, status), |()| Status::SUCCESS);
        self.complete(0, sqe.cid.get(), status, 0);
        true
    }

    fn create(&self, sqe: &Sqe) -> Result<(), Status> {
        let (id, entries) = self.with(|machine| machine.create_submissions(sqe))?;
        match self.subsystem().open_queue(&self.admin.controller, id, entries) {
            Ok(queue) => {
                self.queues.borrow_mut()[usize::from(id)] = Some(queue);
                Ok(())
            }
            Err(status) => {
                self.with(|machine| machine.delete_submissions(id))?;
                Err(status)
            }
        }
    }

    /// Ends a queue, once its commands have ended.
    fn delete(&self, id: u16, cid: u16) {
        let queue = self.queues.borrow_mut().get_mut(usize::from(id)).and_then(Option::take);
        let (Some(queue), Some(device)) = (queue, self.me.upgrade()) else {
            // It is ending already.
            return self.complete(0, cid, Status::INVALID_QUEUE, 0);
        };
        self.subsystem().config().stats.commands.add(1);
        // It belongs to the admin queue meanwhile: a reset waits for it.
        let task = self.admin.tasks.enter((cid, 0));
        self.front.reactor.spawn(async move {
            device.front.reactor.stats().tasks_aborted.add(queue.tasks.abort(|_| true));
            queue.tasks.until_gone(|_| true).await;
            drop(queue);
            let ended = device.with(|machine| machine.delete_submissions(id));
            device.complete(0, cid, ended.err().unwrap_or(Status::SUCCESS), 0);
            drop(task);
        });
    }

    /// A command has ended.
    pub(super) fn complete(&self, queue: u16, cid: u16, status: Status, result: u64) {
        if self.has_lost_memory() {
            return;
        }
        self.with(|machine| machine.complete(queue, cid, status, result));
        self.look_again();
    }

    /// Whether some of the guest's memory is not shared any more. Then the controller has failed, and says nothing of
    /// commands that may have written what the guest never did.
    fn has_lost_memory(&self) -> bool {
        let losses = losses();
        if losses != self.losses.replace(losses) {
            self.look_for_losses();
        }
        self.has_lost.get()
    }

    /// Fails the controller as long as some of the guest's memory is gone: until it is mapped anew.
    fn look_for_losses(&self) {
        let has_lost = is_lost(self.machine().memory.regions());
        if has_lost && !self.has_lost.get() {
            self.log("memory of its guest is gone: cut off, or without room, or broken; the controller has failed");
        }
        self.has_lost.set(has_lost);
        if has_lost {
            self.is_stopped.set(true);
            self.with(NvmeRegisters::fail);
        }
    }

    /// A command lets go of its slot.
    pub(super) fn free_slot(&self) {
        self.front.feed();
    }

    /// Tells the guest of events, as long as it is there.
    async fn tell_events(self: Rc<Self>) {
        while let Some((cid, status, result)) = self.over.unless(self.admin.controller.event()).await {
            self.complete(0, cid, status, result.into());
        }
    }

    /// Raises the interrupts of what was completed. One that cannot be raised now is raised a little later.
    pub(super) fn raise(&self) {
        self.raise_in_time();
        let raised = self.with(NvmeRegisters::take_raised);
        if raised.is_empty() {
            return;
        }
        let mut interrupts = self.interrupts.borrow_mut();
        let mut late = false;
        if interrupts.vectors.is_empty() {
            let masked = interrupts.line_is_masked || self.machine().is_masked();
            if let Some(line) = interrupts.line.as_ref().filter(|_| !masked) {
                late = !line.ring();
                interrupts.line_is_masked = !late;
            }
        } else {
            for vector in raised {
                let signal = interrupts.vectors.get(usize::from(vector)).and_then(Option::as_ref);
                late |= signal.is_some_and(|signal| !signal.ring());
            }
        }
        if late {
            // Which one it was is not remembered: a host bears one too many.
            drop(interrupts);
            self.raise_later();
        }
    }

    fn raise_later(&self) {
        let Some(device) = self.me.upgrade().filter(|_| !self.is_late.replace(true)) else { return };
        self.front.reactor.spawn(async move {
            device.front.reactor.sleep(RAISE_AGAIN).await;
            device.is_late.set(false);
            device.with(NvmeRegisters::raise_unread);
            device.look_again();
        });
    }

    /// Has interrupts that wait for more completions raised when the time of the first of them is up.
    fn raise_in_time(&self) {
        let Some(patience) = self.machine().patience() else { return };
        let Some(device) = self.me.upgrade().filter(|_| !self.is_patient.replace(true)) else { return };
        self.front.reactor.spawn(async move {
            device.front.reactor.sleep(patience).await;
            device.is_patient.set(false);
            device.with(NvmeRegisters::raise_waiting);
            device.look_again();
        });
    }

    /// INTx may come again.
    pub(super) fn unmask_line(&self) {
        self.interrupts.borrow_mut().line_is_masked = false;
        self.with(NvmeRegisters::raise_unread);
        self.look_again();
    }
}

/// A command is under way.
fn enter(queue: &Queue, command: Command, ranges: ScatterList) -> Half {
    let task = queue.tasks.enter((command.sqe.cid.get(), command.sqe.nsid.get()));
    Half { task, command, ranges }
}

impl Watch for Device {
    fn is_ripe(&self) -> bool {
        !self.is_still.get() && (self.is_due.get() || self.is_watched() && self.machine().is_ripe())
    }

    fn look(&self) -> bool {
        if self.is_still.get() {
            return false;
        }
        if !self.is_due.replace(false) {
            if !self.is_watched() {
                return false;
            }
            if !self.machine().is_ripe() {
                self.misses.set(self.misses.get() + 1);
                // Others keep the core awake.
                return self.misses.get() > MISSES_MAX && !self.arm();
            }
        }
        self.misses.set(0);
        self.with(NvmeRegisters::flush);
        let seen = self.fetch();
        self.raise();
        seen || self.is_due.get()
    }

    fn doze(&self) -> bool {
        self.is_still.get() || !self.is_due.get() && (!self.is_watched() || self.arm())
    }
}
