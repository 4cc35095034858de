//! A request in a slot.

use super::blk::{self, BlkDevice, BlkWork};
use super::core::Core;
use super::rings::DeviceRings;
use super::scsi::{self, ScsiDevice, ScsiWork};
use crate::ring::Chain;
use crate::scsi as format;
use crate::session::RingIndex;
use crate::virtio::VirtioDevice;
use lunar_core::step::SlotContext;
use lunar_reactor::slots::contain;
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
                .with_reserve(ScsiDevice::event_ring()),
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

    /// Answers the request that a panic has ended: otherwise the ring could not stop, and devices that wait for a slot
    /// would wait forever.
    fn fail(&self) {
        match &self.kind {
            Kind::Blk(_) => blk::refuse(&self.rings, self.ring, &self.chain),
            Kind::Scsi(_) => scsi::fail(&self.rings, self.ring, &self.chain),
        }
        self.core.feed();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.rings.admitted.set(self.rings.admitted.get() - 1);
        if std::thread::panicking() && !self.has_ended.get() {
            // A panic out of this one would end the process.
            let _ = contain(|| self.fail());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use crate::blk::{Header, Parsed, Status, Type, parse};
    use crate::testing::started;
    use lunar_blk::testing::{BLOCK, Rig, UNIT, client};
    use lunar_reactor::{Choice, Config, Reactor};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use zerocopy::IntoBytes;

    #[test]
    fn a_request_that_a_panic_ends_fails_and_its_ring_goes_on() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let core = Core::new(&reactor, (&rig.set, &target(&rig)), &std::sync::Arc::default());
        let blk = BlkDevice::new(&rig.set, rig.set.attach(UNIT, client(false)).expect("it is served"), 1);
        let (state, mut driver) = started(0, 8);
        let (rings, ring) = (DeviceRings::new(&reactor, "test", state), RingIndex::from(0));
        let header = Header { kind: Type::IN.0.into(), priority: 0.into(), sector: 0.into() };
        driver.write(0x4000, header.as_bytes());
        let pieces = [(0x4000, 16, false), (0x5000, BLOCK, true), (0x5000 + u64::from(BLOCK), 1, true)];
        let id = driver.offer(&pieces, false).expect("there is room");
        let chain = rings.with(|state| state.take(ring)).expect("good").expect("one");
        let parsed = parse(&rings.state().memory, &chain);
        let Ok(Parsed::Block(request)) = parsed else { panic!("it is a read") };
        let work = Work::Blk(BlkWork::new(&blk, &chain, request));
        let job = Job::new(&core, &rings, Kind::Blk(Rc::new(blk)), ring, (chain, work));
        assert_eq!((rings.admitted.get(), rings.is_quiet()), (1, false));
        let other = DeviceRings::new(&reactor, "other", VirtioDevice::new(0, 1));
        other.schedule.wait_for_slot();
        core.wait_for_slot(other.me());
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _job = job;
            panic!("a store is defective");
        }));
        assert!(ended.is_err());
        assert_eq!((rings.admitted.get(), rings.is_quiet()), (0, true));
        assert_eq!(driver.returned(), Some((id, 1)));
        assert_eq!(driver.read(0x5000 + u64::from(BLOCK), 1), [Status::IOERR.0]);
        assert!(!rings.state().active().is_empty());
        assert!(other.schedule.is_due(), "there is a slot for it");
    }
}
