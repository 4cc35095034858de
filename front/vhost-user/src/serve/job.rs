//! A request in a slot.

use super::blk::{BlkDevice, BlkWork};
use super::core::Core;
use super::rings::DeviceRings;
use super::scsi::{ScsiDevice, ScsiWork};
use crate::ring::Chain;
use crate::scsi as format;
use crate::session::RingIndex;
use crate::virtio::VirtioDevice;
use lunar_core::step::SlotContext;
use std::cell::Cell;
use std::rc::Rc;

/// The kind of a device, with the device as its command set knows it.
#[derive(Clone)]
pub(super) enum Kind {
    /// virtio-blk.
    Blk(Rc<BlkDevice>),
    /// virtio-scsi.
    Scsi(Rc<ScsiDevice>),
}

impl Kind {
    /// The state of a new device of this kind.
    pub(super) fn state(&self) -> VirtioDevice {
        match self {
            Self::Blk(blk) => VirtioDevice::new(blk.features(), blk.rings),
            Self::Scsi(scsi) => VirtioDevice::new(format::FEATURES, format::COMMANDS + scsi.queues)
                .with_reserve(ScsiDevice::event_ring())
                .with_slotless(ScsiDevice::control_ring()),
        }
    }

    pub(super) fn reset(&self) {
        match self {
            Self::Blk(blk) => blk.reset(),
            Self::Scsi(scsi) => scsi.reset(),
        }
    }

    /// Aborts the requests in progress.
    pub(super) fn abort(&self) -> u64 {
        match self {
            Self::Blk(blk) => blk.attachment.tasks.abort(|_| true),
            Self::Scsi(scsi) => scsi.nexus.tasks.abort(|_| true),
        }
    }
}

/// The request that a slot executes.
pub(super) enum Work {
    /// A request of virtio-blk.
    Blk(BlkWork),
    /// A command of virtio-scsi.
    Scsi(ScsiWork),
}

/// The work of a slot.
pub(super) struct Job {
    core: Rc<Core>,
    rings: Rc<DeviceRings>,
    kind: Kind,
    ring: RingIndex,
    pub(super) chain: Chain,
    work: Work,
    /// Whether the request was answered.
    has_ended: Cell<bool>,
}

impl Job {
    pub(super) fn new(
        core: &Rc<Core>,
        rings: &Rc<DeviceRings>,
        kind: Kind,
        ring: RingIndex,
        (chain, work): (Chain, Work),
    ) -> Self {
        rings.admitted.set(rings.admitted.get() + 1);
        Self { core: core.clone(), rings: rings.clone(), kind, ring, chain, work, has_ended: Cell::new(false) }
    }

    /// Carries out the request and answers it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { core, rings, kind, ring, chain, work, has_ended } = self;
        match (work, kind) {
            (Work::Blk(work), Kind::Blk(blk)) => work.run(rings, blk, (*ring, chain), slot).await,
            (Work::Scsi(work), Kind::Scsi(scsi)) => work.run(rings, scsi, (*ring, chain), slot).await,
            // A device has requests of its own kind only.
            _ => rings.forget(*ring),
        }
        has_ended.set(true);
        core.feed();
    }

    /// Answers the request, which a panic has ended: otherwise the ring could not stop, and devices that wait for a
    /// slot would wait forever. No store uses its memory any more: the guest may use it for something else.
    pub(super) fn fail(self) {
        let Self { core, rings, ring, chain, work, has_ended, .. } = &self;
        if !has_ended.get() {
            match work {
                Work::Blk(work) => work.fail(rings, *ring, chain),
                Work::Scsi(work) => work.fail(rings, *ring, chain),
            }
        }
        core.feed();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.rings.admitted.set(self.rings.admitted.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use crate::blk::{Header, Parsed, Status, Type, parse};
    use crate::testing::{DriverRing, started};
    use crate::wire::feature;
    use lunar_blk::testing::{BLOCK, Rig, UNIT, client};
    use lunar_core::io::{Done, Outcome};
    use lunar_core::mem::Region;
    use lunar_core::port::Transfer;
    use lunar_reactor::slots::Slots;
    use lunar_reactor::{Choice, Config, Reactor};
    use std::cell::RefCell;
    use std::time::Duration;
    use zerocopy::IntoBytes;

    /// Guest addresses of the data of the request and of its status.
    const DATA: u64 = 0x5000;
    const STATUS: u64 = 0x6000;

    /// A read that a device has taken from its ring.
    fn read(core: &Rc<Core>, rig: &Rig, (rings, driver): (&Rc<DeviceRings>, &mut DriverRing)) -> (Job, u16) {
        let blk = BlkDevice::new(&rig.set, rig.set.attach(UNIT, client(false)).expect("it is served"), 1);
        let ring = RingIndex::from(0);
        let header = Header { kind: Type::IN.0.into(), priority: 0.into(), sector: 0.into() };
        driver.write(0x4000, header.as_bytes());
        let pieces = [(0x4000, 16, false), (DATA, BLOCK, true), (STATUS, 1, true)];
        let id = driver.offer(&pieces, false).expect("there is room");
        let chain = rings.with(|state| state.take(ring)).expect("good").expect("one");
        let parsed = parse(&rings.state().memory, &chain);
        let Ok(Parsed::Block(request)) = parsed else { panic!("it is a read") };
        let work = Work::Blk(BlkWork::new(&blk, &chain, request));
        (Job::new(core, rings, Kind::Blk(Rc::new(blk)), ring, (chain, work)), id)
    }

    #[test]
    fn a_request_that_a_panic_ends_fails_when_its_store_has_answered_and_its_ring_goes_on() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let (mut state, mut driver) = started(0, 8);
        let bits = Region::zeroed(1 << 10);
        state.set_log(&bits);
        state.set_features(state.features() | feature::LOG_ALL).expect("the layout of the rings stays");
        let rings = DeviceRings::new(&reactor, "test", state);
        let held: Rc<RefCell<Option<Done>>> = Rc::default();
        let store = held.clone();
        let work = async move |job: &Job, slot: &mut SlotContext| {
            let Work::Blk(work) = &job.work else { panic!("it is a read") };
            let memory = work.path(&job.rings, &job.chain).place(0, BLOCK as usize);
            *store.borrow_mut() = Some(slot.completion.token());
            drop(memory.expect("it is in guest memory"));
            panic!("a command set is defective, as the test wants");
        };
        let slots = Slots::with_failure(&reactor, 1, work, Job::fail);
        let (job, id) = read(&core, &rig, (&rings, &mut driver));
        assert_eq!((rings.admitted.get(), rings.is_quiet()), (1, false));
        let other = DeviceRings::new(&reactor, "other", VirtioDevice::new(0, 1));
        other.schedule.wait_for_slot();
        core.wait_for_slot(other.me());
        assert!(slots.start(job).is_ok());
        let is_marked = |address: u64| {
            let mut byte = [0];
            let page = address / 4096;
            bits.read((page / 8) as usize, &mut byte) && byte[0] & 1 << (page % 8) != 0
        };
        reactor.run(reactor.sleep(Duration::from_millis(5)));
        assert_eq!((driver.returned(), rings.admitted.get(), rings.is_quiet()), (None, 1, false));
        assert!(!is_marked(DATA) && !other.schedule.is_due(), "the store may still write there");
        held.take().expect("it was given").complete(Outcome::new(Ok(BLOCK)));
        reactor.run(reactor.sleep(Duration::from_millis(5)));
        assert_eq!((rings.admitted.get(), rings.is_quiet()), (0, true));
        assert_eq!((driver.returned(), driver.read(STATUS, 1)), (Some((id, 1)), vec![Status::IOERR.0]));
        assert!(is_marked(DATA) && !rings.state().active().is_empty());
        assert!(other.schedule.is_due(), "there is a slot for it");
    }
}
