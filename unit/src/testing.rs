//! Units, metadata stores and command sets of tests.

use crate::change::{Ordered, UnitChange};
use crate::core_units::CoreUnits;
use crate::ledger::LocalFuture;
use crate::publish::{CommandSet, NoOtherCores, OtherCores, UnitMessage};
use crate::shared::SharedUnits;
use lunar_core::io::{Data, Done, Fault, Io, Op, Outcome, Store, Traits};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, Saving, VolatileMemory};
use lunar_core::port::NexusName;
use lunar_core::protection::{INFO_BYTES, Kind, Protection};
use lunar_core::range::Ranges;
use lunar_core::tally::Tally;
use lunar_core::unit::{Geometry, Identity, OneCore, Unit, UnitId};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

pub(crate) const BLOCK: u32 = 512;
pub(crate) const BLOCKS: u64 = 64;
/// The unit of tests that need one.
pub(crate) const ID: UnitId = UnitId(3);

/// Polls a future once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The result of a future that does not wait.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut Box::pin(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

pub(crate) fn name(initiator: &str) -> NexusName {
    NexusName { initiator: initiator.into(), target_port: 1 }
}

/// The behaviour of a metadata store for the next records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Saves {
    /// Saves them.
    All = 0,
    /// Fails, without having saved.
    None = 1,
    /// Fails half-way: the record is saved nevertheless.
    HalfWay = 2,
    /// Saves them, and never answers.
    Slowly = 3,
}

/// A durable metadata store that can fail.
#[derive(Default)]
pub(crate) struct Metadata {
    records: VolatileMemory,
    saves: AtomicU8,
    /// Names and bytes of the records that were to be saved.
    pub(crate) asked: Mutex<Vec<(&'static str, Vec<u8>)>>,
}

impl Metadata {
    pub(crate) fn set(&self, saves: Saves) {
        self.saves.store(saves as u8, Ordering::Relaxed);
    }

    pub(crate) fn take_asked(&self) -> Vec<(&'static str, Vec<u8>)> {
        std::mem::take(&mut *self.asked.lock().expect("not poisoned"))
    }
}

impl MetadataStore for Metadata {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.records.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        self.asked.lock().expect("not poisoned").push((name, bytes.clone()));
        let saves = self.saves.load(Ordering::Relaxed);
        let saved = (saves != Saves::None as u8).then(|| self.records.save(name, bytes));
        if saves == Saves::Slowly as u8 {
            return Box::pin(std::future::pending());
        }
        let fails = saves != Saves::All as u8;
        Box::pin(async move {
            match saved {
                Some(saved) if !fails => saved.await,
                _ => Err(Fault::Medium),
            }
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// The bytes of a unit.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: RefCell<Vec<u8>>,
    pub(crate) asked: RefCell<Vec<Op>>,
    /// The next request fails with this fault.
    pub(crate) fault: Cell<Option<Fault>>,
}

struct MemoryStore(Rc<Memory>, Traits);

impl Store for MemoryStore {
    fn traits(&self) -> &Traits {
        &self.1
    }

    fn submit(&self, io: Io, done: Done) {
        self.0.asked.borrow_mut().push(io.op);
        if let Some(fault) = self.0.fault.take() {
            return done.complete(Outcome::with(Err(fault), io.data));
        }
        let (mut bytes, at) = (self.0.bytes.borrow_mut(), io.offset as usize);
        match (io.op, &io.data) {
            (Op::Zero { len, .. } | Op::Unmap { len }, _) => bytes[at..at + len as usize].fill(0),
            (Op::Write { .. }, Data::Out(data)) => {
                let data = data.to_vec();
                bytes[at..at + data.len()].copy_from_slice(&data);
            }
            _ => {}
        }
        done.complete(Outcome::with(Ok(0), io.data));
    }
}

fn traits(size: u64, read_only: bool) -> Traits {
    Traits {
        size,
        read_only,
        write_cache: true,
        thin: true,
        unmap_granularity: 4096,
        unmap_zeroes: true,
        physical_block: 4096,
        optimal_io: 0,
        rotational: false,
        atomic_write: 0,
    }
}

fn memory(size: u64) -> Rc<Memory> {
    Rc::new(Memory { bytes: RefCell::new(vec![7; size as usize]), ..Memory::default() })
}

/// The properties of a test unit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) kind: MediumKind,
    pub(crate) read_only: bool,
    pub(crate) protection: Option<Kind>,
}

/// A view of the unit of a test, its bytes, and the bytes of its protection store.
pub(crate) fn unit(metadata: Arc<dyn MetadataStore>, options: Options) -> (Rc<Unit>, [Rc<Memory>; 2]) {
    let [bytes, protection] = [memory(BLOCKS * u64::from(BLOCK)), memory(BLOCKS * INFO_BYTES as u64)];
    let traits_of = |memory: &Memory| traits(memory.bytes.borrow().len() as u64, options.read_only);
    let store = |memory: &Rc<Memory>| Box::new(MemoryStore(memory.clone(), traits_of(memory)));
    let (medium, ranges) = (Medium::of(options.kind), Rc::new(Ranges::default()));
    let unit = Unit {
        id: ID,
        identity: Arc::new(Identity {
            vendor: "".into(),
            product: "".into(),
            revision: "".into(),
            serial: "".into(),
            uuid: [0; 16],
            naa: [0x30; 8],
        }),
        geometry: Geometry { block_size: BLOCK, blocks: BLOCKS, physical_exponent: 3 },
        read_only: options.read_only,
        store: medium.guard(store(&bytes)),
        protection: options.protection.map(|kind| Protection::new(store(&protection), kind)),
        ranges: ranges.clone(),
        medium,
        tally: Tally::default(),
        exclusive: Rc::new(OneCore(ranges)),
        metadata,
    };
    (Rc::new(unit), [bytes, protection])
}

/// A command set that records its notifications, and whose tasks end when the test says so.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) changed: RefCell<Vec<UnitChange>>,
    pub(crate) published: RefCell<Vec<UnitChange>>,
    pub(crate) waited: Cell<u32>,
    /// Whether an aborted task has not ended yet.
    pub(crate) has_tasks: Cell<bool>,
}

impl CommandSet for Notes {
    fn changed(&self, change: &Ordered) {
        self.changed.borrow_mut().push(change.proposal.change.clone());
    }

    fn published(&self, change: &Ordered) {
        self.published.borrow_mut().push(change.proposal.change.clone());
    }

    fn aborted<'a>(&'a self, _change: &'a Ordered) -> LocalFuture<'a, ()> {
        self.waited.set(self.waited.get() + 1);
        Box::pin(std::future::poll_fn(|_| if self.has_tasks.get() { Poll::Pending } else { Poll::Ready(()) }))
    }
}

/// The other core of two, which answers unless it is asleep.
#[derive(Default)]
pub(crate) struct OtherCore {
    pub(crate) core: RefCell<Weak<CoreUnits>>,
    pub(crate) is_asleep: Cell<bool>,
}

impl OtherCores for Rc<OtherCore> {
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()> {
        let other = self.clone();
        Box::pin(async move {
            std::future::poll_fn(|_| if other.is_asleep.get() { Poll::Pending } else { Poll::Ready(()) }).await;
            let core = other.core.borrow().upgrade();
            if let Some(core) = core {
                core.deliver(message).await;
            }
        })
    }
}

/// One core with a unit, and the two command sets that it has.
pub(crate) struct Core {
    pub(crate) units: Rc<CoreUnits>,
    pub(crate) unit: Rc<Unit>,
    pub(crate) memory: Rc<Memory>,
    pub(crate) protection: Rc<Memory>,
    pub(crate) command_sets: [Rc<Notes>; 2],
    pub(crate) arena: Arena,
}

impl Core {
    pub(crate) fn new(metadata: &Arc<Metadata>, options: Options) -> Self {
        Self::sharing(metadata, options, &Arc::default(), Rc::new(NoOtherCores))
    }

    pub(crate) fn sharing(
        metadata: &Arc<Metadata>,
        options: Options,
        shared: &Arc<SharedUnits>,
        others: Rc<dyn OtherCores>,
    ) -> Self {
        let units = CoreUnits::new(shared.clone(), others);
        let command_sets = [Rc::<Notes>::default(), Rc::default()];
        command_sets.iter().for_each(|command_set| units.add_command_set(command_set));
        let (unit, [memory, protection]) = unit(metadata.clone(), options);
        units.add(&unit);
        Self { units, unit, memory, protection, command_sets, arena: Arena::new(1 << 20) }
    }

    /// Two cores of one process, and the queues between them.
    pub(crate) fn two(metadata: &Arc<Metadata>) -> ([Self; 2], [Rc<OtherCore>; 2]) {
        let (ways, shared) = ([Rc::<OtherCore>::default(), Rc::default()], Arc::default());
        let core = |way: &Rc<OtherCore>| Self::sharing(metadata, Options::default(), &shared, Rc::new(way.clone()));
        let cores = [core(&ways[0]), core(&ways[1])];
        for (way, other) in ways.iter().zip(cores.iter().rev()) {
            *way.core.borrow_mut() = Rc::downgrade(&other.units);
        }
        (cores, ways)
    }
}
