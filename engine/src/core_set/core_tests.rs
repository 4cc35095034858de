use super::*;
use crate::core_set::CoreSet;
use crate::core_set::shared::CoreConfig;
use crate::host::{StateFolder, SystemHost};
use lunar_core::ascii::Ascii;
use lunar_core::io::{Done, Fault, Io, Op, Outcome, Store, Traits};
use lunar_core::metadata::VolatileMemory;
use lunar_core::tally::Tally;
use lunar_core::unit::{Identity, OneCore};
use lunar_reactor::Choice;
use lunar_scsi::device_server::{DeviceServer, ForwardDone, ForwardedCommand};
use lunar_scsi::forwarding::{DeviceFacts, Terms};
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::sense::Asc;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};

/// A store that counts its flushes.
struct Counting {
    traits: Traits,
    flushes: Arc<AtomicU32>,
    is_broken: bool,
}

impl Store for Counting {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, io: Io, done: Done) {
        let is_flush = io.op == Op::Flush;
        self.flushes.fetch_add(is_flush.into(), Ordering::Relaxed);
        let result = if is_flush && self.is_broken { Err(Fault::Medium) } else { Ok(0) };
        done.complete(Outcome::with(result, io.data));
    }
}

fn unit(id: u32, write_cache: bool, flushes: &Arc<AtomicU32>, is_broken: bool) -> Rc<Unit> {
    let traits = Traits {
        size: 1 << 20,
        read_only: false,
        write_cache,
        thin: false,
        unmap_granularity: 0,
        unmap_zeroes: false,
        physical_block: 4096,
        optimal_io: 0,
        rotational: false,
        atomic_write: 0,
    };
    let ranges = Rc::new(Ranges::default());
    Rc::new(Unit {
        id: UnitId(id),
        identity: Arc::new(Identity {
            vendor: "LUNAR".into(),
            product: "VOLUME".into(),
            revision: "0.1".into(),
            serial: Ascii::cut(&id.to_string()),
            uuid: [7; 16],
            naa: [0x37; 8],
        }),
        geometry: Geometry::of(&traits, 512).expect("a whole number of blocks"),
        read_only: false,
        store: Box::new(Counting { traits, flushes: flushes.clone(), is_broken }),
        protection: None,
        ranges: ranges.clone(),
        medium: Medium::default(),
        tally: Tally::default(),
        exclusive: Rc::new(OneCore(ranges)),
        metadata: Arc::new(VolatileMemory::default()),
    })
}

fn core_set() -> CoreSet {
    let config = CoreConfig {
        cores: 1,
        driver: Choice::Epoll,
        memory: 8 << 20,
        spin: Duration::ZERO,
        register: false,
        drain: Duration::from_millis(100),
    };
    let host = SystemHost {
        state: StateFolder::open(&std::env::temp_dir()).expect("a folder"),
        runtime: std::env::temp_dir(),
        allows_path: |_| Ok(()),
        user_number: |_| None,
        group_number: |_| None,
    };
    CoreSet::start(Shared::new(config, Arc::new(host), crate::origin::Origin::Configuration, Arc::new(|_| ())))
        .expect("a core starts")
}

fn place(core: &Core, unit: Rc<Unit>) {
    core.opened.borrow_mut().insert(1, ReadyUnit::Store(unit, None));
    core.place(1);
}

#[test]
fn a_unit_that_cannot_be_flushed_keeps_no_other_from_it() {
    const UNITS: u32 = 8;
    let (core_set, flushes) = (core_set(), Arc::<AtomicU32>::default());
    let counted = flushes.clone();
    let give = async move |core: Rc<Core>| (0..UNITS).for_each(|id| place(&core, unit(id, true, &counted, true)));
    core_set.cores().ask(0, give).wait().expect("the core runs");
    let why = core_set.end().expect_err("none can be flushed").to_string();
    assert_eq!(flushes.load(Ordering::Relaxed), UNITS);
    assert!((0..UNITS).all(|id| why.contains(&format!("unit {id} could not be flushed"))), "{why}");
}

/// A device that answers nothing.
#[derive(Default)]
struct Silent {
    terms: Terms,
    facts: DeviceFacts,
}

impl DeviceServer for Silent {
    fn device_type(&self) -> PeripheralType {
        PeripheralType::TAPE
    }

    fn transfer_bytes_max(&self) -> usize {
        0
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

    fn submit(&self, _: ForwardedCommand, _: ForwardDone) {}

    fn abort(&self, _: u64) {}

    fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        Box::pin(ready(Ok(())))
    }
}

#[test]
fn a_device_is_a_logical_unit_and_no_namespace() {
    let core_set = core_set();
    let placed = async |core: Rc<Core>| {
        let id = UnitId(1);
        let identity = unit(1, false, &Arc::default(), false).identity.clone();
        let metadata = Arc::new(VolatileMemory::default());
        let device = ForwardedUnit {
            id,
            identity,
            read_only: false,
            metadata,
            tally: Tally::default(),
            device: Rc::new(Silent::default()),
        };
        core.opened.borrow_mut().insert(1, ReadyUnit::Device(device));
        core.place(1);
        [core.mesh.unit(id).is_none(), core.subsystem.unit(id).is_none(), core.block.unit(id).is_none()]
    };
    assert_eq!(core_set.cores().ask(0, placed).wait(), Some([true; 3]));
    core_set.end().expect("there is nothing to flush");
}

#[test]
fn a_unit_without_its_write_cache_is_flushed() {
    let (core_set, flushes) = (core_set(), Arc::<AtomicU32>::default());
    let counted = flushes.clone();
    let told = core_set.cores().ask(0, async move |core: Rc<Core>| {
        let mut told = Vec::new();
        let others = Arc::default();
        place(&core, unit(1, true, &others, false));
        // Nothing changes for who flushes.
        for (write_cache, counter) in [(true, &counted), (true, &others)] {
            place(&core, unit(1, write_cache, counter, false));
            core.reactor.end_of_turn().await;
            told.push(counted.load(Ordering::Relaxed));
        }
        place(&core, unit(1, true, &counted, false));
        // A command that is under way has it until it ends.
        let command = core.mesh.unit(UnitId(1));
        place(&core, unit(1, false, &others, false));
        for _ in 0..2 {
            core.reactor.sleep(2 * LEFT_INTERVAL).await;
            told.push(counted.load(Ordering::Relaxed));
        }
        drop(command);
        core.reactor.sleep(2 * LEFT_INTERVAL).await;
        told.push(counted.load(Ordering::Relaxed));
        told
    });
    assert_eq!(told.wait().expect("the core runs"), [0, 0, 1, 1, 2]);
    core_set.end().expect("it ends");
}

#[test]
fn a_change_to_write_through_ends_when_the_cache_is_flushed() {
    let (core_set, flushes) = (core_set(), Arc::<AtomicU32>::default());
    let counted = flushes.clone();
    let told = core_set.cores().ask(0, async move |core: Rc<Core>| {
        place(&core, unit(1, true, &counted, false));
        let command = core.mesh.unit(UnitId(1));
        place(&core, unit(1, false, &Arc::default(), false));
        let (reactor, ended) = (core.reactor.clone(), Rc::new(std::cell::Cell::new(false)));
        let (waiting, done) = (core.clone(), ended.clone());
        reactor.spawn(async move {
            waiting.flushed().await;
            done.set(true);
        });
        reactor.sleep(2 * LEFT_INTERVAL).await;
        let before = (ended.get(), counted.load(Ordering::Relaxed));
        drop(command);
        reactor.sleep(2 * LEFT_INTERVAL).await;
        (before, (ended.get(), counted.load(Ordering::Relaxed)))
    });
    assert_eq!(told.wait().expect("the core runs"), ((false, 1), (true, 2)));
    core_set.end().expect("it ends");
}

#[test]
fn a_cache_that_cannot_be_flushed_is_told_before_the_change() {
    let core_set = core_set();
    let told = core_set.cores().ask(0, async move |core: Rc<Core>| {
        place(&core, unit(1, true, &Arc::default(), true));
        place(&core, unit(2, true, &Arc::default(), false));
        (core.flush(UnitId(1)).await.is_err(), core.flush(UnitId(2)).await, core.flush(UnitId(3)).await)
    });
    assert_eq!(told.wait(), Some((true, Ok(()), Ok(()))));
    assert!(core_set.end().is_err(), "the broken unit");
}
