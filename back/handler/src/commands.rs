//! The commands of one core for a SCSI device that a handler serves.

use crate::job::{Job, ScsiRequest, Work};
use crate::known::{is_inquiry, learned_bytes};
use crate::lane::{Common, Lane};
use crate::life::Lifetime;
use crate::queue::{Ended, SCSI_SIZES, Taken, result};
use crate::schema::PATIENCE;
use lunar_core::io::Fault;
use lunar_core::port::NexusName;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::watch::Watch;
use lunar_scsi::command::Status as ScsiStatus;
use lunar_scsi::device_server::{
    DeviceServer, ForwardDone, ForwardedCommand, ForwardedData, ForwardedReply, PendingReply,
};
use lunar_scsi::forwarding::{DeviceFacts, Terms};
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::policy::OpCode;
use lunar_scsi::sense::{Asc, Sense, SenseData, SenseKey};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The connection of one core to the device.
pub(crate) struct HandlerDevice {
    core: Rc<Core>,
    device_type: PeripheralType,
    terms: Terms,
    port: u32,
    /// The thread ends with the last device.
    volume: Arc<Lifetime>,
}

impl HandlerDevice {
    pub(crate) fn open(reactor: &Reactor, volume: &Arc<Lifetime>, device_type: PeripheralType, terms: Terms) -> Self {
        let common = Common::new(reactor, volume.shared());
        let core = Rc::new(Core { common, nexuses: RefCell::default(), port: Cell::default() });
        let port = Lane::connect(&core);
        core.port.set(port);
        Self { core, device_type, terms, port, volume: volume.clone() }
    }
}

impl Drop for HandlerDevice {
    fn drop(&mut self) {
        self.core.close();
        self.volume.shared().remove_port(self.port);
    }
}

impl DeviceServer for HandlerDevice {
    fn device_type(&self) -> PeripheralType {
        self.device_type
    }

    fn has_command(&self, code: OpCode) -> bool {
        self.volume.shared().device.has_code(code.0)
    }

    fn transfer_bytes_max(&self) -> usize {
        SCSI_SIZES.transfer
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn facts(&self) -> &DeviceFacts {
        &self.volume.shared().device.facts
    }

    // Every command gets it until all nexuses know it: none may go to the new handler before.
    fn take_event(&self) -> Option<Asc> {
        self.volume.shared().device.has_event().then_some(Asc::POWER_ON_OR_RESET)
    }

    fn event_told(&self, generation: u64) {
        self.volume.shared().device.event_told(generation);
    }

    fn generation(&self) -> u64 {
        self.volume.shared().device.generation()
    }

    fn lose_nexus(&self, nexus: &NexusName) {
        let lost = self.core.nexuses.borrow_mut().names.remove(nexus);
        if let Some(Begun { number, .. }) = lost {
            self.core.add(Work::Detach(number), PATIENCE, Place::Last);
            Lane::tick(&self.core);
            self.core.submit_waiting();
        }
    }

    fn submit(&self, command: ForwardedCommand, done: ForwardDone) {
        let Common { shared, queue, .. } = &self.core.common;
        let is_missing = || queue.borrow().is_none() && shared.state().connected.is_none();
        if is_inquiry(command.cdb.command_bytes()) && is_missing() {
            return self.core.answer_missing(command, done);
        }
        let patience = shared.command_timeout().unwrap_or(command.timeout);
        let request = Box::new(ScsiRequest::new(command, done));
        self.core.add(Work::Command(request), patience, Place::Last);
        Lane::tick(&self.core);
        self.core.submit_waiting();
    }

    fn abort(&self, id: u64) {
        let waiting = self.core.common.take_waiting(|job| job.is_command(id));
        if !waiting.is_empty() {
            return waiting.into_iter().for_each(|job| job.fail(Fault::Aborted));
        }
        let limit = self.core.common.reactor.now() + PATIENCE;
        let number = {
            let mut queue = self.core.common.queue.borrow_mut();
            let found = queue.as_mut().and_then(|queue| queue.find(|job| job.is_command(id)));
            found.map(|(job, number)| {
                // The nexus that has aborted it waits for its end.
                job.patience = job.patience.min(PATIENCE);
                job.deadline = job.deadline.min(limit);
                number
            })
        };
        if let Some(number) = number {
            self.core.add(Work::Abort(number), PATIENCE, Place::First);
            self.core.submit_waiting();
        }
    }

    fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        if self.core.common.queue.borrow().is_none() {
            // The next handler begins as after a reset.
            return Box::pin(std::future::ready(Ok(())));
        }
        let pending = PendingReply::default();
        self.core.add(Work::Reset(pending.duty()), PATIENCE, Place::First);
        Lane::tick(&self.core);
        self.core.submit_waiting();
        Box::pin(async move { pending.wait().await.map(drop) })
    }
}

/// A nexus at the handler.
struct Begun {
    number: u64,
    /// Whether the handler has answered that it knows it.
    is_attached: bool,
}

/// The nexuses that the handler knows.
#[derive(Default)]
struct Nexuses {
    /// As many as there are sessions on this core at most.
    names: BTreeMap<NexusName, Begun>,
    /// Numbers that were given.
    given: u32,
}

/// Where a job is put among those that wait.
#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
}

/// The needs of a job before it can be submitted.
enum Needs {
    Nothing,
    /// A later handler, whose queue is not here yet, or the answer to an ATTACH.
    Time,
    /// It was admitted for an earlier handler.
    Repetition,
    /// Its nexus begins first.
    Attach(u64, NexusName),
}

/// The commands of one core, and its queue if there is a handler.
struct Core {
    common: Common<Job>,
    nexuses: RefCell<Nexuses>,
    /// The number of the core, which is part of the numbers of its nexuses.
    port: Cell<u32>,
}

impl Core {
    /// A handler may execute its commands one after the other: while it has time for an older one, a command that it
    /// has not answered begins to wait for its own time only then.
    fn wait_for_older(&self, now: Instant) {
        let mut queue = self.common.queue.borrow_mut();
        let in_time = queue.as_mut().and_then(|queue| {
            let all = queue.in_progress().filter(|(job, _)| job.deadline > now);
            all.map(|(_, age)| age).min()
        });
        let port = self.port.get();
        let Some(oldest) = self.common.shared.oldest_in_time(port, in_time) else { return };
        let all = queue.iter_mut().flat_map(|queue| queue.in_progress());
        // Strictly older: two commands of one turn must not wait for each other without end.
        let is_younger = |(submitted, order)| (submitted, port, order) > oldest;
        for (job, _) in all.filter(|(job, age)| job.deadline <= now && is_younger(*age)) {
            job.deadline = now + job.patience;
        }
    }

    fn add(&self, work: Work, patience: Duration, place: Place) {
        let now = self.common.reactor.now();
        let job = Job { work, since: now, patience, deadline: now };
        let mut waiting = self.common.waiting.borrow_mut();
        match place {
            Place::First => waiting.push_front(job),
            Place::Last => waiting.push_back(job),
        }
    }

    /// INQUIRY while there is no handler: hosts that look for logical units find this one if it was there before.
    fn answer_missing(&self, mut command: ForwardedCommand, done: ForwardDone) {
        let known = self.common.shared.device.answer(command.cdb.command_bytes());
        let (Some(known), ForwardedData::In(memory)) = (known, &mut command.data) else {
            return done.complete(Err(Fault::Gone));
        };
        let moved = memory.copy_from(0, &known);
        let (status, sense) = (ScsiStatus::GOOD, SenseData::default());
        done.complete(Ok(ForwardedReply { status, sense, moved, data: command.data }));
    }

    /// The needs of a job before the handler of this generation may get it.
    fn needs(&self, job: &mut Job, generation: u64) -> Needs {
        let Work::Command(request) = &mut job.work else { return Needs::Nothing };
        match request.command.generation.cmp(&generation) {
            Ordering::Less => return Needs::Repetition,
            Ordering::Greater => return Needs::Time,
            Ordering::Equal => {}
        }
        let Some(name) = &request.command.nexus else { return Needs::Nothing };
        let Nexuses { names, given } = &mut *self.nexuses.borrow_mut();
        match names.get(name) {
            Some(Begun { number, is_attached: true }) => {
                request.nexus = *number;
                Needs::Nothing
            }
            Some(_) => Needs::Time,
            None => {
                *given = given.wrapping_add(1);
                let number = u64::from(self.port.get()) << 32 | u64::from(*given);
                names.insert(name.clone(), Begun { number, is_attached: false });
                Needs::Attach(number, name.clone())
            }
        }
    }

    /// The handler has answered, or not answered in time, that it knows the nexus of this number.
    fn attached(&self, number: u64, is_attached: bool) {
        let names = &mut self.nexuses.borrow_mut().names;
        if is_attached {
            let begun = names.values_mut().find(|begun| begun.number == number);
            begun.into_iter().for_each(|begun| begun.is_attached = true);
        } else {
            names.retain(|_, begun| begun.number != number);
        }
    }

    /// A command was executed: what its reply says about the device is kept.
    fn learn(&self, request: &mut ScsiRequest, status: ScsiStatus, moved: u32) {
        let cdb = request.command.cdb;
        let cdb = cdb.command_bytes();
        let (ForwardedData::In(memory), ScsiStatus::GOOD) = (&mut request.command.data, status) else { return };
        let count = learned_bytes(cdb).min(memory.len()).min(usize::try_from(moved).unwrap_or(0));
        if count > 0 {
            let mut head = vec![0; count];
            memory.copy_to(0, &mut head);
            self.common.shared.device.learn(cdb, &head);
        }
    }
}

impl Lane for Core {
    type Request = Job;

    fn common(&self) -> &Common<Job> {
        &self.common
    }

    fn submit_waiting(&self) {
        let Common { shared, reactor, queue, waiting, .. } = &self.common;
        let now = reactor.now();
        let mut outdated = Vec::new();
        {
            let (mut queue, mut waiting) = (queue.borrow_mut(), waiting.borrow_mut());
            let Some(queue) = queue.as_mut() else { return };
            while queue.has_room() {
                let Some(mut job) = waiting.pop_front() else { break };
                if shared.is_late() && !job.is_urgent() {
                    waiting.push_front(job);
                    break;
                }
                match self.needs(&mut job, queue.generation.into()) {
                    Needs::Nothing => {}
                    Needs::Time => {
                        waiting.push_front(job);
                        break;
                    }
                    Needs::Repetition => {
                        outdated.push(job);
                        continue;
                    }
                    Needs::Attach(number, name) => {
                        waiting.push_front(job);
                        job = Job { work: Work::Attach(number, name), since: now, patience: PATIENCE, deadline: now };
                    }
                }
                job.deadline = now + job.patience;
                let milliseconds = u32::try_from(job.patience.as_millis()).unwrap_or(u32::MAX);
                if let Some(job) = queue.submit(job, now, milliseconds) {
                    waiting.push_front(job);
                    break;
                }
            }
        }
        for job in outdated {
            if let Work::Command(request) = job.work {
                // The initiator repeats it, and learns what has happened.
                request.end(ScsiStatus::BUSY, SenseData::default());
            }
        }
    }

    fn finish(&self, ended: Ended<Job>) {
        let Ended { taken, answer } = ended;
        match taken {
            Taken::Late(_) => self.common.shared.end_late(1),
            Taken::InProgress { request: job, .. } => match job.work {
                Work::Command(mut request) => {
                    // At the mixed level, it may have changed blocks.
                    self.common.shared.add_change();
                    self.learn(&mut request, ScsiStatus(answer.scsi.status), answer.scsi.moved);
                    request.answer(&answer);
                }
                Work::Attach(number, _) => self.attached(number, true),
                Work::Detach(_) | Work::Abort(_) => {}
                Work::Reset(done) => {
                    let (status, sense) = (ScsiStatus::GOOD, SenseData::default());
                    let reply = ForwardedReply { status, sense, moved: 0, data: ForwardedData::None };
                    done.complete(result(answer.status).map(|()| reply));
                }
            },
        }
    }

    /// Commands are not repeated: the handler may have executed them. Those that wait are for the next handler.
    fn end_unanswered(&self, jobs: Vec<Job>) {
        self.nexuses.borrow_mut().names.clear();
        let waiting = self.common.take_waiting(|job| !matches!(job.work, Work::Command(_)));
        for job in jobs.into_iter().chain(waiting) {
            match job.work {
                Work::Command(request) => {
                    self.common.shared.add_change();
                    let descriptor = self.common.shared.device.facts.is_descriptor_sense();
                    let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER);
                    request.end(ScsiStatus::CHECK_CONDITION, sense.data(descriptor));
                }
                Work::Reset(done) => {
                    // The next handler begins as after a reset.
                    let (status, sense) = (ScsiStatus::GOOD, SenseData::default());
                    done.complete(Ok(ForwardedReply { status, sense, moved: 0, data: ForwardedData::None }));
                }
                Work::Attach(..) | Work::Detach(_) | Work::Abort(_) => {}
            }
        }
    }

    fn give_up_late(&self) {
        let now = self.common.reactor.now();
        self.wait_for_older(now);
        for job in self.common.take_late(|job, _| job.deadline <= now) {
            if let Work::Attach(number, _) = &job.work {
                self.attached(*number, false);
            }
            job.fail(Fault::Timeout);
        }
        for job in self.common.take_unserved(|job, begun| job.since.max(begun)) {
            if let Work::Attach(number, _) = &job.work {
                self.attached(*number, false);
            }
            job.fail(Fault::NotReady);
        }
    }
}

impl Watch for Core {
    fn wants_poll(&self) -> bool {
        self.has_answers()
    }

    fn look(&self) -> bool {
        self.look_once()
    }

    fn prepare_sleep(&self) -> bool {
        self.may_sleep()
    }
}
