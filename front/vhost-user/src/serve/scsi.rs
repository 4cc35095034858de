//! A virtio-scsi device: its commands on their way to the device server and back, task management, events.

use super::rings::DeviceRings;
use super::transfer::{self, DataPath};
use crate::bytes;
use crate::ring::Chain;
use crate::scsi::{
    ANSWER_LEN, CONTROL, CommandAnswer, Control, EVENTS, EVENTS_MISSED, Event, EventKind, HEADER_LEN, Parsed, REMOVED,
    RESCAN, Response, answer, changed, moved, parse, parse_control, response, unsure,
};
use crate::session::RingIndex;
use lunar_core::step::SlotContext;
use lunar_guest::data_path::Lent;
use lunar_reactor::slots::{contain, contained};
use lunar_scsi::{Asc, Command, Nexus, Reply, Status, Target, Task};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Where the data of a command begins in the readable and in the writable part.
const DATA: (usize, usize) = (HEADER_LEN, ANSWER_LEN);
/// Control requests in progress: more wait in their ring.
const CONTROLS_MAX: usize = 16;
/// Events that wait for a buffer of the driver; more are missed, and the driver is told so.
const EVENTS_MAX: usize = 16;
/// The code of unit attention conditions about changed parameters (SPC-4 4.5.2).
const PARAMETERS_CHANGED: u8 = 0x2a;

/// A virtio-scsi device.
pub(super) struct ScsiDevice {
    pub(super) target: Rc<Target>,
    pub(super) nexus: Rc<Nexus>,
    /// Rings for commands.
    pub(super) queues: usize,
    /// Control requests in progress.
    controls: Cell<usize>,
    /// The logical units that the driver knows.
    known: RefCell<BTreeSet<u16>>,
    events: RefCell<VecDeque<Event>>,
    has_missed: Cell<bool>,
}

impl ScsiDevice {
    pub(super) fn new(target: &Rc<Target>, nexus: Rc<Nexus>, queues: usize) -> Self {
        let known = RefCell::new(nexus.luns().into_iter().collect());
        Self {
            target: target.clone(),
            nexus,
            queues,
            controls: Cell::new(0),
            known,
            events: RefCell::default(),
            has_missed: Cell::new(false),
        }
    }

    /// The ring of task management.
    pub(super) fn control_ring() -> RingIndex {
        RingIndex::from(CONTROL as u8)
    }

    /// The ring of events.
    pub(super) fn event_ring() -> RingIndex {
        RingIndex::from(EVENTS as u8)
    }

    /// Forgets what was not reported: the driver looks at everything when it starts.
    pub(super) fn reset(&self) {
        self.events.take();
        self.has_missed.set(false);
        self.known.replace(self.nexus.luns().into_iter().collect());
    }

    /// Queues the events about what has changed since the last time.
    fn collect(&self) {
        let luns: BTreeSet<u16> = self.nexus.luns().into_iter().collect();
        let known = self.known.replace(luns.clone());
        known.difference(&luns).for_each(|lun| self.queue(moved(*lun, REMOVED)));
        luns.difference(&known).for_each(|lun| self.queue(moved(*lun, RESCAN)));
        for lun in luns.intersection(&known) {
            let attention = self.nexus.itl(*lun).and_then(|itl| itl.attention());
            let Some((asc, _)) = attention else { continue };
            if asc.0.to_be_bytes()[0] == PARAMETERS_CHANGED {
                self.queue(changed(*lun, asc));
            } else if asc == Asc::INQUIRY_DATA_CHANGED {
                self.queue(moved(*lun, RESCAN));
            }
        }
    }

    fn queue(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        match events.len() < EVENTS_MAX {
            true if events.contains(&event) => {}
            true => events.push_back(event),
            false => self.has_missed.set(true),
        }
    }

    /// Whether there is something to report.
    fn has_news(&self) -> bool {
        self.has_missed.get() || !self.events.borrow().is_empty()
    }

    fn next_event(&self) -> Event {
        let missed = if self.has_missed.take() { EVENTS_MISSED } else { 0 };
        let none = || Event { kind: EventKind::NO_EVENT.0.into(), lun: [0; 8], reason: 0.into() };
        let event = self.events.borrow_mut().pop_front().unwrap_or_else(none);
        Event { kind: (event.kind.get() | missed).into(), ..event }
    }
}

/// Reports changes of what the nexus sees, until the front-end has disconnected.
pub(super) async fn report_changes(device: &Rc<DeviceRings>, scsi: &ScsiDevice) {
    let watch = scsi.nexus.watch.clone();
    let mut seen = watch.established();
    while device.over.unless(watch.until_more(seen)).await.is_some() {
        // Several changes mostly come together.
        device.reactor.end_of_turn().await;
        scsi.collect();
        // Looking at a logical unit for the first time establishes a condition, too.
        seen = watch.established();
        device.wake();
        report(device, scsi);
    }
}

/// Writes events into buffers of the driver, as far as there are any.
pub(super) fn report(device: &DeviceRings, scsi: &ScsiDevice) {
    let ring = ScsiDevice::event_ring();
    while scsi.has_news() && device.state().is_running(ring) {
        match device.with(|state| state.take(ring)) {
            Ok(Some(chain)) => send(device, ring, &chain, &scsi.next_event()),
            Ok(None) => break,
            Err(why) => {
                device.report_broken(ring, &why);
                break;
            }
        }
    }
    device.with(|state| state.need_reserve(scsi.has_news()));
}

fn send(device: &DeviceRings, ring: RingIndex, chain: &Chain, event: &Event) {
    let is_there = bytes::write(&device.state().memory, &chain.writable, 0, event.as_bytes());
    if is_there {
        device.put_back(ring, chain, event.as_bytes().len() as u64);
    } else {
        device.break_down(ring, "a buffer for events is too short or has no memory");
    }
}

/// Starts the request of a chain: at once, if it waits for nothing; else a command is returned, for a slot.
pub(super) fn start(
    device: &Rc<DeviceRings>,
    scsi: &Rc<ScsiDevice>,
    ring: RingIndex,
    chain: Chain,
) -> Option<(Chain, ScsiWork)> {
    if ring.at() == CONTROL {
        control(device, scsi, ring, chain);
        return None;
    }
    command(device, scsi, ring, chain)
}

/// Answers a command for which there is no slot.
pub(super) fn refuse(device: &DeviceRings, ring: RingIndex, chain: &Chain) {
    end(device, ring, chain, &answer(Response::BUSY, 0, &[], 0), 0);
}

/// Whether one more request of this ring may be taken.
pub(super) fn may_take(scsi: &ScsiDevice, ring: RingIndex) -> bool {
    ring.at() != CONTROL || scsi.controls.get() < CONTROLS_MAX
}

/// Executes a control request in a task of its own: it does not wait behind commands, whose slots may all be in use.
fn control(device: &Rc<DeviceRings>, scsi: &Rc<ScsiDevice>, ring: RingIndex, chain: Chain) {
    let parsed = parse_control(&device.state().memory, &chain);
    let (function, lun, tag) = match parsed {
        Ok(Control::Function(function, lun, tag)) => (function, lun, tag),
        Ok(Control::Refused(response)) => return end_control(device, ring, &chain, &[response.0]),
        Ok(Control::NoNotifications) => return end_control(device, ring, &chain, &[0, 0, 0, 0, Response::OK.0]),
        Err(why) => return device.break_down(ring, &format!("{why:?}")),
    };
    scsi.controls.set(scsi.controls.get() + 1);
    // The ring is no work meanwhile: the core may sleep.
    device.with(|state| state.hold_back((!may_take(scsi, ring)).then_some(ring)));
    let (device, scsi) = (device.clone(), scsi.clone());
    device.clone().reactor.spawn(async move {
        // The driver waits for an answer, and the ring must be able to stop.
        let done = contained(scsi.target.task_management(&scsi.nexus, function, lun, tag)).await;
        end_control(&device, ring, &chain, &[done.map_or(Response::FAILURE, response).0]);
        scsi.controls.set(scsi.controls.get() - 1);
        device.with(|state| state.hold_back(None));
        device.wake();
    });
}

fn end_control(device: &DeviceRings, ring: RingIndex, chain: &Chain, bytes: &[u8]) {
    if bytes::write(&device.state().memory, &chain.writable, 0, bytes) {
        device.put_back(ring, chain, bytes.len() as u64);
    } else {
        device.break_down(ring, "the answer of a control request has no memory");
    }
}

/// A command in a slot.
pub(super) struct ScsiWork {
    command: Command,
    task: Task,
    lent: Lent,
}

impl ScsiWork {
    /// Carries out the command and answers it.
    pub(super) async fn run(
        &self,
        device: &DeviceRings,
        scsi: &ScsiDevice,
        (ring, chain): (RingIndex, &Chain),
        slot: &mut SlotContext,
    ) {
        let Self { command, task, lent } = self;
        let mut reply = Reply::default();
        let path = transfer::path(device, chain, DATA, Some(task), lent);
        scsi.target.execute(&scsi.nexus, command, &path, slot, &mut reply).await;
        if task.aborted() && device.over.has_come() {
            // The record of requests in progress says that it was not answered: it is repeated.
            device.forget(ring);
        } else {
            complete(device, ring, chain, command, &path, &reply);
        }
    }

    /// Answers the command, which a panic has ended.
    pub(super) fn fail(&self, device: &DeviceRings, ring: RingIndex, chain: &Chain) {
        transfer::mark(device, chain, DATA, &self.lent);
        end(device, ring, chain, &answer(Response::FAILURE, 0, &[], 0), 0);
    }
}

fn command(device: &DeviceRings, scsi: &ScsiDevice, ring: RingIndex, chain: Chain) -> Option<(Chain, ScsiWork)> {
    let parsed = parse(&device.state().memory, &chain);
    let command = match parsed {
        // A device or a process may have executed it: a tape, for instance, would move or be written once more.
        Ok(Parsed::Command(command)) if chain.is_repeated && !scsi.nexus.stays_in_lunar(&command) => {
            let answer = answer(Response::OK, Status::CHECK_CONDITION.0, &unsure(), 0);
            end(device, ring, &chain, &answer, 0);
            return None;
        }
        Ok(Parsed::Command(command)) => command,
        Ok(Parsed::Refused(response)) => {
            end(device, ring, &chain, &answer(response, 0, &[], 0), 0);
            return None;
        }
        Ok(Parsed::Unsure) => {
            let answer = answer(Response::OK, Status::CHECK_CONDITION.0, &unsure(), 0);
            end(device, ring, &chain, &answer, 0);
            return None;
        }
        Err(why) => {
            device.break_down(ring, &format!("{why:?}"));
            return None;
        }
    };
    let mut reply = Reply::default();
    let task = scsi.nexus.tasks.enter((command.tag, command.lun.canonical()));
    let lent = Lent::default();
    let path = transfer::path(device, &chain, DATA, Some(&task), &lent);
    match contain(|| scsi.target.execute_now(&scsi.nexus, &command, &path, device.arena(), &mut reply)) {
        Some(true) => complete(device, ring, &chain, &command, &path, &reply),
        Some(false) => return Some((chain, ScsiWork { command, task, lent })),
        None => {
            path.mark_lent();
            end(device, ring, &chain, &answer(Response::FAILURE, 0, &[], 0), 0);
        }
    }
    None
}

fn complete<K: Copy>(
    device: &DeviceRings,
    ring: RingIndex,
    chain: &Chain,
    command: &Command,
    path: &DataPath<'_, K>,
    reply: &Reply,
) {
    let is_there = transfer::end(path, &reply.final_data);
    let expected = u64::from(command.data_in.max(command.data_out));
    let moved = reply.wanted.min(expected);
    // Both are lengths of 32 bits.
    let residual = (expected - moved) as u32;
    let made = match (is_there, reply.status) {
        (false, _) => answer(Response::FAILURE, 0, &[], residual),
        (true, Status::TASK_ABORTED) => answer(Response::ABORTED, 0, &[], residual),
        (true, status) => answer(Response::OK, status.0, &reply.sense, residual),
    };
    // No more than was certainly written: a command that fails may have written less than it wanted.
    let is_whole = is_there && matches!(reply.status, Status::GOOD | Status::CONDITION_MET);
    let returned = if is_whole { moved.min(command.data_in.into()) } else { 0 };
    end(device, ring, chain, &made, returned);
}

/// Answers a command, after so many bytes of data.
fn end(device: &DeviceRings, ring: RingIndex, chain: &Chain, answer: &CommandAnswer, returned: u64) {
    if bytes::write(&device.state().memory, &chain.writable, 0, answer.as_bytes()) {
        device.put_back(ring, chain, ANSWER_LEN as u64 + returned);
    } else {
        device.break_down(ring, "the answer of a command has no memory");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use crate::scsi::address_of;
    use crate::testing::started;
    use lunar_blk::testing::Rig;
    use lunar_core::io::Fault;
    use lunar_core::metadata::VolatileMemory;
    use lunar_core::port::NexusName;
    use lunar_core::unit::UnitId;
    use lunar_reactor::{Choice, Config, Reactor};
    use lunar_scsi::Asc;
    use lunar_scsi::device_server::{DeviceServer, ForwardDone, ForwardedCommand};
    use lunar_scsi::forwarding::{DeviceFacts, Terms};
    use lunar_scsi::lu::ForwardedUnit;
    use lunar_scsi::peripheral::PeripheralType;
    use std::pin::Pin;
    use std::sync::Arc;

    /// A tape, which is never reached.
    #[derive(Default)]
    struct Tape {
        terms: Terms,
        facts: DeviceFacts,
    }

    impl DeviceServer for Tape {
        fn device_type(&self) -> PeripheralType {
            PeripheralType::TAPE
        }

        fn transfer_bytes_max(&self) -> usize {
            1 << 20
        }

        fn terms(&self) -> &Terms {
            &self.terms
        }

        fn facts(&self) -> &DeviceFacts {
            &self.facts
        }

        fn take_event(&self) -> Option<Asc> {
            None
        }

        fn submit(&self, _command: ForwardedCommand, _done: ForwardDone) {
            panic!("the command was executed");
        }

        fn abort(&self, _id: u64) {}

        fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[test]
    fn commands_of_a_device_or_a_process_are_not_repeated() {
        let (rig, reactor) =
            (Rig::default(), Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver"));
        let target = target(&rig);
        let unit = ForwardedUnit {
            id: UnitId(3),
            identity: rig.unit.identity.clone(),
            read_only: false,
            metadata: Arc::new(VolatileMemory::default()),
            tally: lunar_core::tally::Tally::default(),
            device: Rc::new(Tape::default()),
        };
        target.add_forwarded(3, unit);
        target.add_unit_with(4, rig.unit.clone(), Some(Rc::new(Tape::default())));
        let nexus = target.nexus(NexusName { initiator: "x".into(), target_port: 1 });
        let scsi = ScsiDevice::new(&target, nexus, 1);
        // WRITE(6) of a tape, a command of a vendor that the process has or not, and READ(10) of Lunar.
        for (lun, code, may_repeat) in [(3, 0x0a, false), (4, 0xc5, false), (4, 0x28, true)] {
            for is_repeated in [false, true] {
                let (mut device, mut driver) = started(0, 8);
                let mut header = [0; HEADER_LEN];
                header[..8].copy_from_slice(&address_of(lun));
                header[19] = code;
                driver.write(0x4000, &header);
                let room = ANSWER_LEN as u32;
                driver.offer(&[(0x4000, HEADER_LEN as u32, false), (0x6000, room, true)], false).expect("room");
                let mut chain = device.take(0.into()).expect("good").expect("one");
                chain.is_repeated = is_repeated;
                let rings = DeviceRings::new(&reactor, "test", device);
                let left = command(&rings, &scsi, 0.into(), chain);
                let is_executed = may_repeat || !is_repeated;
                assert_eq!((left.is_some(), driver.returned().is_some()), (is_executed, !is_executed), "{code:x}");
                if !is_executed {
                    assert_eq!(driver.read(0x6000, 12)[10..], [Status::CHECK_CONDITION.0, Response::OK.0]);
                }
            }
        }
    }

    #[test]
    fn the_used_length_counts_data_only_if_all_of_it_was_written() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        for (status, len) in [(Status::GOOD, ANSWER_LEN + 512), (Status::CHECK_CONDITION, ANSWER_LEN)] {
            let (mut device, mut driver) = started(0, 8);
            let room = (ANSWER_LEN + 1024) as u32;
            driver.write(0x4000, &address_of(0));
            driver.offer(&[(0x4000, HEADER_LEN as u32, false), (0x6000, room, true)], false).expect("room");
            let chain = device.take(0.into()).expect("good").expect("one");
            let Ok(Parsed::Command(command)) = parse(&device.memory, &chain) else { panic!("it is a command") };
            let (rings, lent) = (DeviceRings::new(&reactor, "test", device), Lent::default());
            let path: DataPath<'_, u64> = transfer::path(&rings, &chain, DATA, None, &lent);
            let reply = Reply { status, wanted: 512, ..Reply::default() };
            complete(&rings, 0.into(), &chain, &command, &path, &reply);
            assert_eq!(driver.returned().map(|(_, returned)| returned as usize), Some(len));
            assert_eq!(driver.read(0x6004, 4), 512_u32.to_le_bytes(), "the residual count is that of the command");
        }
    }
}
