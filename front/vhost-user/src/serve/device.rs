//! A device while its front-end is connected: rings on one side, the command set on the other.

use super::blk::{self, BlkDevice};
use super::core::Core;
use super::job::{Job, Kind, Work};
use super::rings::DeviceRings;
use super::scsi::{self, ScsiDevice};
use crate::config::{BURST, BURST_BYTES, BURST_DESCRIPTORS};
use crate::ring::Chain;
use crate::session::{RingIndex, notice};
use crate::virtio::{PROTOCOL, Refused, VirtioDevice};
use crate::wire::{BackendCode, protocol};
use lunar_guest::poll::{Backoff, Look};
use lunar_reactor::slots::contain;
use lunar_reactor::watch::Watch;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Chains that are taken from one ring before the others have their turn.
const RING_BURST: usize = 16;

/// The chains that a device has taken in its turn.
#[derive(Default)]
struct Burst {
    chains: usize,
    bytes: u64,
    /// Descriptors. Several may describe one piece of memory, and an empty one describes none.
    descriptors: usize,
}

impl Burst {
    fn add(&mut self, chain: &Chain) {
        self.chains += 1;
        // The length of a chain is bounded, but not the sum of the lengths that its descriptors claim.
        self.bytes = self.bytes.saturating_add(chain.readable_len).saturating_add(chain.writable_len);
        self.descriptors += chain.descriptors();
    }

    /// Whether other devices have their turn now.
    fn is_over(&self) -> bool {
        self.chains >= BURST || self.bytes >= BURST_BYTES || self.descriptors >= BURST_DESCRIPTORS
    }
}

/// How far chains were taken from a ring.
enum Fetched {
    /// As far as it has some, or as they are its turn.
    All,
    /// Other devices have their turn now.
    Enough,
    /// There is no slot for the next one.
    NoSlot,
}

/// A device, while its front-end is connected.
pub(super) struct Device {
    core: Rc<Core>,
    pub(super) rings: Rc<DeviceRings>,
    kind: Kind,
    /// The first ring of the next turn.
    first: Cell<usize>,
}

impl Device {
    pub(super) fn new(core: &Rc<Core>, name: &str, kind: Kind) -> Rc<Self> {
        kind.reset();
        let rings = DeviceRings::new(&core.reactor, name, kind.state());
        let device = Rc::new(Self { core: core.clone(), rings, kind, first: Cell::new(0) });
        let watch: Rc<dyn Watch> = device.clone();
        core.reactor.watch(&watch);
        let changes = device.clone();
        core.reactor.spawn(async move { changes.report_changes().await });
        device
    }

    /// The driver has accepted features.
    pub(super) fn set_features(&self, features: u64) -> Result<(), Refused> {
        self.rings.with(|state| state.set_features(features))?;
        if let Kind::Blk(blk) = &self.kind {
            blk.set_features(features);
        }
        // They may enable rings.
        self.rings.wake();
        Ok(())
    }

    /// Resets the device, once its requests have ended.
    pub(super) fn reset(&self) {
        self.rings.with(VirtioDevice::reset);
        self.kind.reset();
    }

    /// The features of the protocol that it offers.
    pub(super) fn protocol(&self) -> u64 {
        match &self.kind {
            Kind::Blk(_) => PROTOCOL,
            // The front-end has the configuration space of virtio-scsi.
            Kind::Scsi(_) => PROTOCOL & !protocol::CONFIG,
        }
    }

    /// Bytes of the configuration space; `None` while there is none.
    pub(super) fn config_space(&self) -> Option<Vec<u8>> {
        match &self.kind {
            Kind::Blk(blk) => blk.config_space(),
            Kind::Scsi(_) => None,
        }
    }

    /// The driver has written bytes of the configuration space; returns whether it may.
    pub(super) fn write_config(&self, offset: usize, bytes: &[u8]) -> bool {
        match &self.kind {
            Kind::Blk(blk) => {
                let may_write = blk.write_config(offset, bytes);
                self.note();
                may_write
            }
            Kind::Scsi(_) => false,
        }
    }

    /// Keeps the choices of the driver beside the record of requests in progress.
    pub(super) fn note(&self) {
        if let Kind::Blk(blk) = &self.kind {
            self.rings.state().note(blk.noted_choice());
        }
    }

    /// Takes over the choices of the driver from a process before this one.
    pub(super) fn recall(&self) {
        if let Kind::Blk(blk) = &self.kind {
            let noted = self.rings.state().noted();
            if blk.recall(noted) {
                self.note();
            }
        }
    }

    /// Tells the front-end or the driver what has changed.
    async fn report_changes(&self) {
        match &self.kind {
            Kind::Blk(blk) => self.report_config(blk).await,
            Kind::Scsi(scsi) => scsi::report_changes(&self.rings, scsi).await,
        }
    }

    /// Tells the front-end when the configuration space has changed.
    async fn report_config(&self, blk: &BlkDevice) {
        let mut seen = blk.attachment.changes();
        while self.rings.over.unless(blk.attachment.until_changed(seen)).await.is_some() {
            seen = blk.attachment.changes();
            if blk.attachment.limits().is_none() {
                continue;
            }
            self.rings.with(|state| state.offer(blk.features()));
            let channel = self.rings.channel.borrow();
            if let Some(channel) = channel.as_ref().filter(|_| self.rings.state().uses(protocol::CONFIG))
                && let Err(why) = channel.send_now(&notice(BackendCode::CONFIG_CHANGE.0))
            {
                self.rings.log(&format!("its front-end could not be told that the volume has changed: {why}"));
            }
        }
    }

    /// Looks at the rings. Returns whether there was something.
    fn work(&self) -> bool {
        if self.rings.is_armed.replace(false) {
            self.rings.state().disarm();
        }
        let has_fetched = self.fetch();
        self.rings.signal();
        has_fetched || self.rings.schedule.is_due()
    }

    /// Takes chains out of the rings. Returns whether there were any.
    fn fetch(&self) -> bool {
        let (rings, mut burst) = (&self.rings, Burst::default());
        rings.with(|state| state.await_slot(false));
        loop {
            let before = burst.chains;
            let active = rings.state().active().len();
            for turn in 0..active {
                let at = (self.first.get() + turn) % active;
                // A chain that ends at once may end a ring.
                let Some(ring) = rings.state().active().get(at).copied() else { break };
                match self.fetch_from(ring, &mut burst) {
                    Fetched::All => {}
                    Fetched::Enough => {
                        // There may be more. Other devices have their turn first.
                        self.first.set(at);
                        rings.wake();
                        return true;
                    }
                    Fetched::NoSlot => {
                        self.core.wait_for_slot(rings.me());
                        if !rings.with(|state| state.await_slot(true)) {
                            rings.schedule.wait_for_slot();
                            return burst.chains > 0;
                        }
                        // Task management is there for commands that keep their slots: it goes on, and other rings are
                        // active now.
                        return self.fetch_slotless(&mut burst);
                    }
                }
            }
            if burst.chains == before {
                return burst.chains > 0;
            }
        }
    }

    /// Takes chains out of the rings whose requests need no slot. Returns whether the device has taken any.
    fn fetch_slotless(&self, burst: &mut Burst) -> bool {
        let active = self.rings.state().active().to_vec();
        for ring in active {
            if matches!(self.fetch_from(ring, burst), Fetched::Enough) {
                self.rings.wake();
            }
        }
        burst.chains > 0
    }

    /// Takes chains out of a ring, as many as are its turn.
    fn fetch_from(&self, ring: RingIndex, burst: &mut Burst) -> Fetched {
        let rings = &self.rings;
        if let Kind::Scsi(scsi) = &self.kind
            && ring == ScsiDevice::event_ring()
        {
            scsi::report(rings, scsi);
            return Fetched::All;
        }
        let needs_slot = rings.state().needs_slot(ring);
        for _ in 0..RING_BURST {
            if burst.is_over() {
                return Fetched::Enough;
            }
            if needs_slot && !self.core.has_slot(rings.admitted.get()) {
                return Fetched::NoSlot;
            }
            if !self.may_take(ring) {
                break;
            }
            match rings.with(|state| state.take(ring)) {
                Ok(Some(chain)) => {
                    burst.add(&chain);
                    self.start(ring, chain);
                }
                Ok(None) => break,
                Err(why) => {
                    rings.report_broken(ring, &why);
                    break;
                }
            }
        }
        Fetched::All
    }

    /// Starts the request of a chain; there is a free slot.
    fn start(&self, ring: RingIndex, chain: Chain) {
        let rings = &self.rings;
        let left = match &self.kind {
            Kind::Blk(blk) => blk::start(rings, blk, ring, chain).map(|(chain, work)| (chain, Work::Blk(work))),
            Kind::Scsi(scsi) => scsi::start(rings, scsi, ring, chain).map(|(chain, work)| (chain, Work::Scsi(work))),
        };
        let Some((chain, work)) = left else { return };
        let job = Job::new(&self.core, rings, self.kind.clone(), ring, (chain, work));
        if let Err(job) = self.core.slots.start(job) {
            match &self.kind {
                Kind::Blk(_) => blk::refuse(rings, ring, &job.chain),
                Kind::Scsi(_) => scsi::refuse(rings, ring, &job.chain),
            }
        }
    }

    /// Whether one more chain of this ring may be taken.
    fn may_take(&self, ring: RingIndex) -> bool {
        match &self.kind {
            Kind::Blk(_) => true,
            Kind::Scsi(scsi) => scsi::may_take(scsi, ring),
        }
    }

    /// Ends the device when its front-end has disconnected: requests end, and guest memory is not touched any more.
    /// Requests that need more time than `finish` are aborted: the next front-end has the record of requests in
    /// progress, and they are repeated. An aborted request ends when its store answers: while a handler is not
    /// connected, that takes as long as the volume waits for it.
    pub(super) async fn end(&self, finish: Option<Duration>) {
        self.rings.over.come();
        self.rings.with(VirtioDevice::pause_all);
        let rings: Vec<RingIndex> = self.rings.state().all().collect();
        rings.iter().for_each(|ring| self.rings.end_kick(*ring));
        let end = finish.map(|finish| self.core.reactor.now() + finish);
        let mut pauses = Backoff::for_stores();
        while !self.rings.is_quiet() {
            if self.core.is_draining() || end.is_some_and(|end| self.core.reactor.now() >= end) {
                self.core.reactor.stats().tasks_aborted.add(self.kind.abort());
            }
            self.core.reactor.sleep(pauses.next(false)).await;
        }
        // The virtual machine may be there, although its front-end is not connected.
        self.rings.signal();
        if let Kind::Scsi(scsi) = &self.kind {
            scsi.target.close(&scsi.nexus).await;
        }
        self.rings.clear();
    }
}

impl Watch for Device {
    fn wants_poll(&self) -> bool {
        self.rings.schedule.has_work(&*self.rings)
    }

    fn look(&self) -> bool {
        match self.rings.schedule.look(&*self.rings) {
            Look::Nothing => return false,
            Look::Again => return true,
            Look::Work => {}
        }
        // A panic would end the core.
        contain(|| self.work()).unwrap_or_else(|| {
            self.rings.fail();
            true
        })
    }

    fn prepare_sleep(&self) -> bool {
        self.rings.schedule.prepare_sleep(&*self.rings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use crate::scsi::{ANSWER_LEN, COMMANDS, CONTROL, CommandHeader, HEADER_LEN, TaskManagement, address_of};
    use crate::testing::{DriverRing, MEMORY_LEN, region, started};
    use crate::wire::feature;
    use lunar_blk::testing::{Rig, UNIT, client};
    use lunar_core::mem::Region;
    use lunar_core::port::NexusName;
    use lunar_reactor::{Choice, Config, Reactor};
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn long_requests_of_a_front_end_that_has_disconnected_are_aborted() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let attachment = rig.set.attach(UNIT, client(false)).expect("it is served");
        let kind = Kind::Blk(Rc::new(BlkDevice::new(&rig.set, attachment.clone(), 1)));
        let (look, finish) = (Duration::from_millis(1), Duration::from_millis(20));
        for is_limited in [true, false] {
            let device = Device::new(&core, "test", kind.clone());
            let (state, mut driver) = started(0, 8);
            device.rings.with(|own| *own = state);
            driver.offer(&[(0x4000, 16, false), (0x6000, 1, true)], false).expect("there is room");
            device.rings.with(|state| state.take(0.into())).expect("good").expect("one");
            let task = attachment.tasks.enter(1);
            let (rings, executing) = (device.rings.clone(), reactor.clone());
            let was_aborted = Rc::new(Cell::new(None));
            let outcome = was_aborted.clone();
            let begun = reactor.now();
            reactor.spawn(async move {
                while !task.aborted() && executing.now().since(begun) < finish * 10 {
                    executing.sleep(look).await;
                }
                outcome.set(Some(task.aborted()));
                rings.forget(0.into());
            });
            reactor.run(device.end(is_limited.then_some(finish)));
            assert_eq!(was_aborted.get(), Some(is_limited));
            assert!(reactor.now().since(begun) >= finish);
        }
    }

    #[test]
    fn a_panic_at_the_rings_ends_the_device_and_not_the_core() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let attachment = rig.set.attach(UNIT, client(false)).expect("it is served");
        let device = Device::new(&core, "test", Kind::Blk(Rc::new(BlkDevice::new(&rig.set, attachment, 1))));
        // A defect: the state is in use.
        let state = device.rings.state();
        device.rings.wake();
        assert!(device.look() && device.rings.failed.has_come());
        drop(state);
        assert!(device.rings.is_quiet());
    }

    #[test]
    fn a_store_that_does_not_answer_costs_next_to_nothing() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let attachment = rig.set.attach(UNIT, client(false)).expect("it is served");
        let device = Device::new(&core, "test", Kind::Blk(Rc::new(BlkDevice::new(&rig.set, attachment, 1))));
        let (state, mut driver) = started(0, 8);
        device.rings.with(|own| *own = state);
        driver.offer(&[(0x4000, 16, false), (0x6000, 1, true)], false).expect("there is room");
        device.rings.with(|state| state.take(0.into())).expect("good").expect("one");
        let (rings, answering, turns) = (device.rings.clone(), reactor.clone(), reactor.stats().turns.get());
        reactor.spawn(async move {
            answering.sleep(Duration::from_millis(300)).await;
            rings.forget(0.into());
        });
        reactor.run(device.end(Some(Duration::ZERO)));
        let turns = reactor.stats().turns.get() - turns;
        assert!(turns < 200, "{turns} turns, for some looks at first and then one in 5 ms");
    }

    /// A device of virtio-scsi with a ring for task management and one for commands, and their drivers.
    fn with_task_management(core: &Rc<Core>) -> (Rc<Device>, [DriverRing; 2]) {
        let nexus = core.target.nexus(NexusName { initiator: "x".into(), target_port: 1 });
        let device = Device::new(core, "test", Kind::Scsi(Rc::new(ScsiDevice::new(&core.target, nexus, 1))));
        let memory = Region::zeroed(MEMORY_LEN);
        let features = feature::PROTOCOL_FEATURES | feature::VERSION_1;
        let drivers = device.rings.with(|state| {
            state.set_features(features).expect("no ring is started");
            state.set_memory(vec![(region(), memory.clone())]).expect("one region");
            [(CONTROL, 0x1000), (COMMANDS, 0x2000)].map(|(at, address)| {
                let (ring, driver) = (RingIndex::from(at as u8), DriverRing::new(&memory, features, 8, address));
                state.set_size(ring, 8).expect("it exists");
                state.set_address(ring, driver.address(at as u32)).expect("it exists");
                state.start(ring).expect("its parts are in memory");
                state.enable(ring, true).expect("it exists");
                driver
            })
        });
        (device, drivers)
    }

    #[test]
    fn task_management_does_not_wait_for_a_slot() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let (device, [mut control, mut commands]) = with_task_management(&core);
        let pause = || reactor.run(reactor.sleep(Duration::from_millis(5)));
        let header = CommandHeader { lun: address_of(0), ..CommandHeader::new_zeroed() };
        commands.write(0x4000, header.as_bytes());
        let command = [(0x4000, HEADER_LEN as u32, false), (0x5000, ANSWER_LEN as u32, true)];
        // It has all slots that it may have, for commands that do not end.
        device.rings.admitted.set(usize::MAX);
        commands.offer(&command, false).expect("there is room");
        // Also when the device waits for a slot already.
        for _ in 0..2 {
            let abort = TaskManagement { lun: address_of(0), ..TaskManagement::new_zeroed() };
            control.write(0x6000, abort.as_bytes());
            let pieces = [(0x6000, size_of::<TaskManagement>() as u32, false), (0x7000, 1, true)];
            control.offer(&pieces, false).expect("there is room");
            pause();
            assert!(control.returned().is_some_and(|(_, len)| len == 1) && commands.returned().is_none());
        }
        device.rings.admitted.set(0);
        core.feed();
        pause();
        assert!(commands.returned().is_some(), "there is a slot");
    }

    /// The number of chains of this kind that a device takes in its turn.
    fn taken(pieces: &[(u64, u32, bool)]) -> usize {
        let (mut device, mut driver) = started(0, 256);
        let mut burst = Burst::default();
        while !burst.is_over() {
            driver.offer(pieces, true).expect("there is room");
            burst.add(&device.take(0.into()).expect("good").expect("one"));
        }
        burst.chains
    }

    #[test]
    fn other_devices_have_their_turn_after_a_number_of_requests_of_bytes_or_of_descriptors() {
        assert_eq!(taken(&[(0x4000, 16, false), (0x5000, 4096, true)]), BURST);
        assert_eq!(taken(&[(0x4000, 16, false), (0x5000, 128 << 10, true)]), 8);
        assert_eq!(taken(&[(0x4000, 16, false), (0x5000, u32::MAX, true)]), 1);
        let scattered: Vec<_> = (0..60).map(|piece| (0x4000 + piece * 32, 16, piece > 0)).collect();
        assert_eq!(taken(&scattered), BURST_DESCRIPTORS.div_ceil(60));
        // All of one piece, and empty ones.
        let joined: Vec<_> = (0..60).map(|piece| (0x4000 + piece * 16, 16 * u32::from(piece < 30), false)).collect();
        assert_eq!(taken(&joined), BURST_DESCRIPTORS.div_ceil(60));
    }
}
