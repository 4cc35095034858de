//! For tests and fuzz targets: a unit in memory, and a client of it.

use crate::attachment::{Attachment, Client};
use crate::request::{Answer, Error, Reply, Request};
use crate::set::BlockSet;
use lunar_core::io::{Data, Done, Extent, Fault, ImmediateStore, Io, Op, Outcome, Store, Traits};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::mem::{Arena, Sg};
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::protection::{self, INFO_BYTES, Protection};
use lunar_core::range::Ranges;
use lunar_core::step::SlotContext;
use lunar_core::tally::Tally;
use lunar_core::unit::{Geometry, Identity, OneCore, Unit, UnitId};
use lunar_unit::reserve::{Action, PersistentRequest, Request as ReserveRequest, ReservationType};
use lunar_unit::{CoreUnits, NoOtherCores, UnitChange};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Blocks of the unit.
pub const BLOCKS: u64 = 2048;
/// Bytes of a block.
pub const BLOCK: u32 = 512;
/// Bytes in which its store deallocates space.
pub const GRAIN: u64 = 4096;
/// The number of the unit.
pub const UNIT: UnitId = UnitId(7);
/// The portal group of the client.
pub const GROUP: u16 = 3;
const ARENA_BYTES: usize = 8 << 20;

/// A store in memory, and its behaviour.
#[derive(Debug)]
pub struct Memory {
    bytes: RefCell<Vec<u8>>,
    /// For each grain, whether it is allocated.
    allocated: RefCell<Vec<bool>>,
    /// The answer to the next request, which is then not executed.
    pub fault: Cell<Option<Fault>>,
    /// Whether it never answers at once: see [`ImmediateStore`].
    pub is_slow: Cell<bool>,
    /// Requests that are held back until the test releases them.
    pub holds: Cell<bool>,
    /// Whether the store panics after it has taken the next request that is held back.
    pub panics: Cell<bool>,
    held: RefCell<Vec<(Io, Done)>>,
    /// Bytes that were written and are not on the medium.
    pub cached: Cell<u64>,
    traits: Traits,
}

impl Memory {
    fn new(traits: Traits) -> Rc<Self> {
        Rc::new(Self {
            bytes: RefCell::new(vec![0; traits.size as usize]),
            allocated: RefCell::new(vec![false; traits.size.div_ceil(GRAIN) as usize]),
            fault: Cell::default(),
            is_slow: Cell::default(),
            holds: Cell::default(),
            panics: Cell::default(),
            held: RefCell::default(),
            cached: Cell::default(),
            traits,
        })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }

    /// Changes a byte without a request.
    pub fn damage(&self, at: usize) {
        self.bytes.borrow_mut()[at] ^= 0xff;
    }

    /// Executes the requests that were held back.
    pub fn release(&self) {
        for (mut io, done) in self.held.take() {
            let result = self.carry_out(&mut io);
            done.complete(Outcome { extent: self.extent(&io), ..Outcome::with(result, io.data) });
        }
    }

    fn grains(&self, io: &Io, len: u64, is_allocated: bool) {
        // Space is deallocated in whole grains only.
        let (first, end) = match is_allocated {
            true => (io.offset / GRAIN, (io.offset + len).div_ceil(GRAIN)),
            false => (io.offset.div_ceil(GRAIN), (io.offset + len) / GRAIN),
        };
        let mut allocated = self.allocated.borrow_mut();
        (first..end).for_each(|grain| allocated[grain as usize] = is_allocated);
    }

    fn extent(&self, io: &Io) -> Extent {
        let Op::Extent { len } = io.op else { return Extent::default() };
        let allocated = self.allocated.borrow();
        let mapped = allocated[(io.offset / GRAIN) as usize];
        let end = (io.offset / GRAIN..).find(|grain| allocated.get(*grain as usize) != Some(&mapped));
        Extent { len: (end.unwrap_or(0) * GRAIN - io.offset).min(len), mapped }
    }

    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        // A request beyond the end, which the command set admitted.
        assert!(io.within(self.traits.size), "{io:?} is beyond the end");
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let at = io.offset as usize;
        let (moved, is_change) = (io.data.len(), !matches!(io.op, Op::Read | Op::Extent { .. } | Op::Flush));
        let mut bytes = self.bytes.borrow_mut();
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(into)) => drop(into.copy_from(0, &bytes[at..at + moved])),
            (Op::Write { .. }, Data::Out(from)) => drop(from.copy_to(0, &mut bytes[at..at + moved])),
            (Op::Unmap { len } | Op::Zero { len, .. }, _) => bytes[at..at + len as usize].fill(0),
            (Op::Copy { .. } | Op::Space, _) => return Err(Fault::Unsupported),
            _ => {}
        }
        match io.op {
            Op::Write { .. } => self.grains(io, moved as u64, true),
            Op::Unmap { len } | Op::Zero { len, unmap: true } => self.grains(io, len, false),
            Op::Zero { len, .. } => self.grains(io, len, true),
            _ => {}
        }
        match io.op {
            Op::Flush => self.cached.set(0),
            Op::Write { durable: true } => {}
            _ if is_change => self.cached.set(self.cached.get() + io.bytes()),
            _ => {}
        }
        // A request moves less than a u32 counts.
        Ok(moved as u32)
    }
}

struct MemoryStore(Rc<Memory>);

impl ImmediateStore for MemoryStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        self.0.carry_out(io)
    }
}

impl Store for MemoryStore {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        (!self.0.is_slow.get() && !self.0.holds.get()).then_some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        if self.0.holds.get() {
            self.0.held.borrow_mut().push((io, done));
            return assert!(!self.0.panics.take(), "the store panics");
        }
        let result = self.0.carry_out(&mut io);
        let extent = self.0.extent(&io);
        done.complete(Outcome { extent, ..Outcome::with(result, io.data) });
    }
}

/// The properties of a test unit.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its number.
    pub id: UnitId,
    /// Whether its store can deallocate space.
    pub can_unmap: bool,
    /// Whether its store refuses writes.
    pub read_only: bool,
    /// Its protection type.
    pub protection: protection::Kind,
    /// The kind of its medium.
    pub medium: MediumKind,
    /// Its blocks.
    pub blocks: u64,
    /// Its metadata.
    pub metadata: Arc<dyn MetadataStore>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            id: UNIT,
            can_unmap: true,
            read_only: false,
            protection: protection::Kind::None,
            medium: MediumKind::Fixed,
            blocks: BLOCKS,
            metadata: Arc::new(VolatileMemory::default()),
        }
    }
}

impl Setup {
    /// A unit, its bytes, and its protection information if it has any.
    #[must_use]
    pub(crate) fn unit(&self) -> (Rc<Unit>, Rc<Memory>, Rc<Memory>) {
        let traits = Traits {
            size: self.blocks * u64::from(BLOCK),
            read_only: self.read_only,
            write_cache: true,
            thin: true,
            unmap_granularity: if self.can_unmap { GRAIN as u32 } else { 0 },
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 64 << 10,
            rotational: false,
            atomic_write: 0,
        };
        let memory = Memory::new(traits.clone());
        let info = Memory::new(Traits { size: self.blocks * INFO_BYTES as u64, ..traits.clone() });
        let protection = Protection::new(Box::new(MemoryStore(info.clone())), self.protection);
        let (ranges, medium) = (Rc::new(Ranges::default()), Medium::of(self.medium));
        let unit = Unit {
            id: self.id,
            identity: Arc::new(identity()),
            geometry: Geometry::of(&traits, BLOCK).expect("whole blocks"),
            read_only: self.read_only,
            store: medium.guard(Box::new(MemoryStore(memory.clone()))),
            protection: (self.protection != protection::Kind::None).then_some(protection),
            exclusive: Rc::new(OneCore(ranges.clone())),
            ranges,
            medium,
            tally: Tally::default(),
            metadata: self.metadata.clone(),
        };
        (Rc::new(unit), memory, info)
    }
}

fn identity() -> Identity {
    Identity {
        vendor: "LUNAR".into(),
        product: "VOLUME".into(),
        revision: "0.1".into(),
        serial: "0123456789".into(),
        uuid: [7; 16],
        naa: [0x37; 8],
    }
}

/// Moves the data of one request.
pub struct Wire<'a> {
    arena: Arena,
    out: &'a [u8],
    pushed: RefCell<Vec<u8>>,
    /// Whether the request was aborted.
    pub is_aborted: Cell<bool>,
}

impl Transfer for Wire<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.arrived(offset, len).ok_or(Fault::Protocol)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let bytes = self.out.get(offset..offset + len)?;
        let mut memory = self.arena.take_sg(len)?;
        memory.copy_from(0, bytes);
        Some(memory.share())
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        assert_eq!(offset, self.pushed.borrow().len(), "data comes in order");
        self.pushed.borrow_mut().extend(data.to_vec());
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.is_aborted.get()
    }
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Success, or the error.
    pub result: Result<(), Error>,
    /// The result besides data.
    pub answer: Answer,
    /// Its data.
    pub data: Vec<u8>,
}

/// A unit and a client of it.
pub struct Rig {
    /// The command set.
    pub set: Rc<BlockSet>,
    /// The client.
    pub client: Rc<Attachment>,
    /// The bytes of the unit.
    pub memory: Rc<Memory>,
    /// Its protection information, if it has any: inverted.
    pub info: Rc<Memory>,
    /// The unit.
    pub unit: Rc<Unit>,
    /// The state that the unit shares with other command sets.
    pub core_units: Rc<CoreUnits>,
    arena: Arena,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new(&Setup::default())
    }
}

impl Rig {
    /// A client that may write, through the portal group [`GROUP`].
    ///
    /// # Panics
    /// Never: the unit exists.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let (unit, memory, info) = setup.unit();
        let core_units = CoreUnits::new(Arc::default(), Rc::new(NoOtherCores));
        let set = BlockSet::new(Arc::default(), core_units.clone());
        set.add_unit(unit.clone());
        let client = set.attach(UNIT, client(false)).expect("the unit exists");
        Self { set, client, memory, info, unit, core_units, arena: Arena::new(ARENA_BYTES) }
    }

    /// Replaces the unit by one with these properties.
    pub fn replace_unit(&mut self, setup: &Setup) {
        (self.unit, self.memory, self.info) = setup.unit();
        self.set.add_unit(self.unit.clone());
    }

    /// Another client reserves the unit: by RESERVE(6), or by a persistent reservation of this type.
    pub fn reserve(&self, kind: Option<ReservationType>) {
        let register =
            Action::Register { ignore_key: false, ptpl: Some(false), ports: vec![1], initiators: Vec::new() };
        let request = |action, key, action_key| {
            let scope_and_type = kind.map_or(0, |kind| kind.0);
            ReserveRequest::Persistent(PersistentRequest { action, scope_and_type, key, action_key })
        };
        match kind {
            None => self.request_reservation(ReserveRequest::Reserve),
            Some(_) => {
                self.request_reservation(request(register, 0, 1));
                self.request_reservation(request(Action::Reserve, 1, 0));
            }
        }
    }

    /// The other client gives up its reservation of this type.
    pub fn release(&self, kind: Option<ReservationType>) {
        self.request_reservation(match kind {
            None => ReserveRequest::Release,
            Some(kind) => {
                let (action, scope_and_type) = (Action::Clear, kind.0);
                ReserveRequest::Persistent(PersistentRequest { action, scope_and_type, key: 1, action_key: 0 })
            }
        });
    }

    fn request_reservation(&self, request: ReserveRequest) {
        let nexus = NexusName { initiator: "iqn.2026-01.example:other".into(), target_port: 1 };
        self.change(UnitChange::Reservations { nexus, request });
    }

    /// Changes the state of the unit, as another command set does.
    ///
    /// # Panics
    /// When the change is refused.
    pub fn change(&self, change: UnitChange) {
        at_once(self.core_units.propose(&self.unit, None, change)).expect("the change is allowed");
    }

    /// Moves the data of a request that sends `out`.
    #[must_use]
    pub fn wire<'a>(&self, out: &'a [u8]) -> Wire<'a> {
        Wire { arena: self.arena.clone(), out, pushed: RefCell::default(), is_aborted: Cell::default() }
    }

    /// The resources that a slot lends to a request.
    #[must_use]
    pub fn slot(&self) -> SlotContext {
        SlotContext::new(self.arena.clone())
    }

    /// Runs a request of the client.
    ///
    /// # Panics
    /// When it does not end at once.
    pub fn run(&self, request: &Request<'_>, out: &[u8]) -> Ended {
        self.run_for(&self.client, request, out)
    }

    /// Runs a request of this client.
    ///
    /// # Panics
    /// When it does not end at once.
    pub fn run_for(&self, client: &Attachment, request: &Request<'_>, out: &[u8]) -> Ended {
        let (wire, mut slot, mut reply) = (self.wire(out), self.slot(), Reply::default());
        if !self.set.execute_now(client, request, &wire, &self.arena, &mut reply) {
            assert!(reply.final_data.data.is_empty() && wire.pushed.borrow().is_empty(), "nothing was done");
            at_once(self.set.execute(client, request, &wire, &mut slot, &mut reply));
        }
        let mut data = wire.pushed.into_inner();
        assert!(
            reply.final_data.data.is_empty() || reply.final_data.offset == data.len(),
            "the last data follows the rest"
        );
        data.extend(reply.final_data.data.to_vec());
        Ended { result: reply.result, answer: reply.answer, data }
    }
}

/// The client of the rig, or one that may only read.
#[must_use]
pub fn client(read_only: bool) -> Client {
    Client { name: "vm".into(), group: GROUP, read_only }
}

/// Most polls of a request that lets other tasks run between its parts: more than any request of the tests has
/// parts.
const POLLS_MAX: usize = 1 << 16;

/// The outcome of a future that waits for nothing but the other tasks of its core.
///
/// # Panics
/// When it waits.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("a request waits for nothing")
}
