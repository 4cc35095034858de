use super::*;
use crate::house::{Frame, House};
use lunar_core::io::{Done, Fault, Io, Op, Outcome, Store, Traits};
use lunar_core::metadata::VolatileMemory;
use lunar_core::unit::{Identity, OneCore};
use lunar_iscsi::directory::Directory;
use lunar_reactor::Choice;
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
            serial: id.to_string(),
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

fn house() -> House {
    let frame = Frame {
        cores: 1,
        driver: Choice::Epoll,
        memory: 8 << 20,
        spin: Duration::ZERO,
        register: false,
        drain: Duration::from_millis(100),
        advertise: None,
        has_channels: false,
    };
    let directory = Directory::new(frame.drain);
    House::start(frame, directory, Arc::new(|_| ())).expect("a core starts")
}

fn place(core: &Core, unit: Rc<Unit>) {
    core.ready.borrow_mut().insert(1, unit);
    core.place(1);
}

#[test]
fn a_unit_that_cannot_be_flushed_keeps_no_other_from_it() {
    const UNITS: u32 = 8;
    let (house, flushes) = (house(), Arc::<AtomicU32>::default());
    let counted = flushes.clone();
    let furnish = async move |core: Rc<Core>| (0..UNITS).for_each(|id| place(&core, unit(id, true, &counted, true)));
    house.cores().ask(0, furnish).wait().expect("the core runs");
    let why = house.end().expect_err("none can be flushed").to_string();
    assert_eq!(flushes.load(Ordering::Relaxed), UNITS);
    assert!((0..UNITS).all(|id| why.contains(&format!("unit {id} could not be flushed"))), "{why}");
}

#[test]
fn who_gets_no_cache_any_more_has_nothing_left_in_one() {
    let (house, flushes) = (house(), Arc::<AtomicU32>::default());
    let counted = flushes.clone();
    let told = house.cores().ask(0, async move |core: Rc<Core>| {
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
        let command = core.links.unit(UnitId(1));
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
    house.end().expect("it ends");
}
