//! A device with one small disk or disc in memory: what fuzz targets and tests run commands on. All is answered at
//! once.

mod lists;

pub use lists::lists;

use crate::command::{CDB_BYTES_MAX, Cdb, Command, Reply, Status, TaskAttribute};
use crate::copy::tokens::Tokens;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::table::{Flow, Needs, OpCode, Reach, Row, TABLE, rows};
use crate::target::{Clock, Everywhere, Nowhere, PortConfig, Target, TargetConfig};
use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Quick, Space, Store, Traits};
use lunar_core::keep::{Forgetful, Keep};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::protection::{INFO_BYTES, Kind, Protection};
use lunar_core::range::Ranges;
use lunar_core::reserve::SharedUnits;
use lunar_core::stats::Stats;
use lunar_core::step::Tools;
use lunar_core::tally::Tally;
use lunar_core::time::Instant;
use lunar_core::unit::{Geometry, Identity, OneCore, Unit, UnitId};
use lunar_core::wire::Writer;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// Blocks of the disk.
pub const BLOCKS: u64 = 2048;
/// Bytes of a block.
pub const BLOCK: u32 = 512;
/// Bytes of a block of a disc.
pub const DISC_BLOCK: u32 = 2048;
/// What the clock of the device shows, always: milliseconds since the beginning of 1970.
pub const NOW: u64 = 1_795_000_000_000;
const ARENA_BYTES: usize = 8 << 20;

/// What a store of bytes in memory shares with the one who watches it.
#[derive(Debug, Default)]
pub struct Memory {
    /// The bytes; a store that is larger has zeroes beyond them.
    pub bytes: RefCell<Vec<u8>>,
    /// What the next request is answered with instead.
    pub fault: Cell<Option<Fault>>,
    /// How much space it says it takes; nothing, and the store does not measure.
    pub space: Cell<Option<Space>>,
    /// What it was asked.
    pub asked: RefCell<Vec<Op>>,
    /// Whether its data is not at hand: see [`Quick`].
    pub is_slow: Cell<bool>,
}

impl Memory {
    /// So many zeroes.
    #[must_use]
    pub fn zeroes(count: u64) -> Rc<Self> {
        Rc::new(Self { bytes: RefCell::new(vec![0; count as usize]), ..Self::default() })
    }
}

struct MemoryStore {
    memory: Rc<Memory>,
    traits: Traits,
}

impl Quick for MemoryStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        self.memory.asked.borrow_mut().push(io.op);
        let beyond = (!io.within(self.traits.size)).then_some(Fault::OUT_OF_RANGE);
        if let Some(fault) = beyond.or_else(|| self.memory.fault.take()) {
            return Err(fault);
        }
        let mut bytes = self.memory.bytes.borrow_mut();
        let at = io.offset as usize;
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(into)) => {
                let end = at + into.len();
                match bytes.get(at..end) {
                    Some(bytes) => into.copy_from(0, bytes),
                    None => into.copy_from(0, &vec![0; end - at]),
                };
            }
            (Op::Write { .. }, Data::Out(from)) => {
                let end = at + from.len();
                from.copy_to(0, &mut bytes[at..end]);
            }
            (Op::Unmap { len } | Op::Zero { len, .. }, _) => bytes[at..at + len as usize].fill(0),
            (Op::Copy { .. } | Op::Space, _) => return Err(Fault::Unsupported),
            _ => {}
        }
        Ok(0)
    }
}

impl Store for MemoryStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn quick(&self) -> Option<&dyn Quick> {
        (!self.memory.is_slow.get()).then_some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        if let (Op::Space, Some(space)) = (io.op, self.memory.space.get()) {
            self.memory.asked.borrow_mut().push(io.op);
            return done.complete(Outcome::with(Ok(0), Data::Space(space)));
        }
        let result = self.carry_out(&mut io);
        let extent = match (io.op, result) {
            (Op::Extent { len }, Ok(_)) => {
                extent(&self.memory.bytes.borrow()[io.offset as usize..(io.offset + len) as usize])
            }
            _ => Extent::default(),
        };
        done.complete(Outcome { result, data: io.data, extent });
    }

    fn measures(&self) -> bool {
        self.memory.space.get().is_some()
    }
}

/// A block takes space if it is not all zeroes.
fn extent(bytes: &[u8]) -> Extent {
    let mut blocks = bytes.chunks(BLOCK as usize).map(|block| block.iter().any(|byte| *byte != 0)).peekable();
    let mapped = blocks.peek().copied().unwrap_or(false);
    let count = blocks.take_while(|state| *state == mapped).count();
    Extent { len: count as u64 * u64::from(BLOCK), mapped }
}

/// Moves the data of one command.
struct Wire<'a> {
    arena: Arena,
    out: &'a [u8],
    pushed: RefCell<Vec<u8>>,
    aborted: &'a Cell<bool>,
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

    async fn pull_beside(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.pull(offset, len).await
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let bytes = self.out.get(offset..offset + len)?;
        let mut memory = self.arena.take_sg(len)?;
        memory.copy_from(0, bytes);
        Some(memory.share())
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        assert_eq!(offset, self.pushed.borrow().len(), "Data-In comes in order");
        self.pushed.borrow_mut().extend(data.to_vec());
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.aborted.get()
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its status.
    pub status: Status,
    /// Its sense data.
    pub sense: Vec<u8>,
    /// Data-In, before the transport cuts it.
    pub data: Vec<u8>,
    /// Bytes that it would have moved.
    pub wanted: u64,
}

/// A device with one disk at LUN 0, and a nexus.
pub struct Rig {
    /// The device.
    pub target: Rc<Target>,
    /// The nexus.
    pub nexus: Rc<Nexus>,
    /// The disk's bytes.
    pub memory: Rc<Memory>,
    /// What is kept beside its blocks: their protection information, inverted.
    pub beside: Rc<Memory>,
    /// Whether commands are aborted.
    pub aborted: Cell<bool>,
    /// The LUN that commands go to.
    pub lun: Cell<Lun>,
    /// How commands are ordered.
    pub attribute: Cell<TaskAttribute>,
    arena: Arena,
    stats: Arc<Stats>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new(Self::traits())
    }
}

impl Rig {
    /// A thin disk with a write cache.
    #[must_use]
    pub fn traits() -> Traits {
        Traits {
            size: BLOCKS * u64::from(BLOCK),
            read_only: false,
            write_cache: true,
            thin: true,
            unmap_granularity: 4096,
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            atomic_write: 64 * BLOCK,
        }
    }

    /// A device whose disk has these traits; its nexus has taken the unit attention of power on.
    #[must_use]
    pub fn new(traits: Traits) -> Self {
        Self::with(traits, Rc::new(Nowhere))
    }

    /// As [`Rig::new`], with other cores.
    #[must_use]
    pub fn with(traits: Traits, everywhere: Rc<dyn Everywhere>) -> Self {
        Self::sharing(traits, everywhere, Arc::default())
    }

    /// As [`Rig::with`], of a device whose other cores share this.
    #[must_use]
    pub fn sharing(traits: Traits, everywhere: Rc<dyn Everywhere>, shared: Arc<SharedUnits>) -> Self {
        Self::with_all(traits, [1, 1], everywhere, shared)
    }

    /// As [`Rig::default`], with blocks that are protected so, or may be.
    #[must_use]
    pub fn protected(kind: Kind) -> Self {
        Self::default().protecting(kind)
    }

    fn protecting(mut self, kind: Kind) -> Self {
        let traits = self.target.unit(0).expect("a rig has one").unit.traits().clone();
        let size = BLOCKS * INFO_BYTES as u64;
        self.beside = Memory::zeroes(size);
        let store = MemoryStore { memory: self.beside.clone(), traits: Traits { size, ..Self::traits() } };
        let mut unit = Self::bare_unit(0, MediumKind::Fixed, traits, self.memory.clone());
        unit.protection = Some(Protection::new(Box::new(store), kind));
        self.target.add_unit(0, Rc::new(unit));
        self.nexus.each(|itl| while itl.take_attention().is_some() {});
        self
    }

    /// The same, with a unit that is capable of this command.
    #[must_use]
    pub fn for_row(self, row: &Row) -> Self {
        match row.policy.gates.needs {
            Needs::TypeTwo => self.protecting(Kind::Two),
            _ => self,
        }
    }

    /// As [`Rig::default`], with ports in these target port groups.
    #[must_use]
    pub fn with_groups(groups: [u16; 2]) -> Self {
        Self::with_all(Self::traits(), groups, Rc::new(Nowhere), Arc::default())
    }

    fn with_all(traits: Traits, groups: [u16; 2], everywhere: Rc<dyn Everywhere>, shared: Arc<SharedUnits>) -> Self {
        let memory = Memory::zeroes(traits.size);
        memory.space.set(Some(Space { used: 0, available: traits.size }));
        let unit = Self::unit(0, traits, memory.clone());
        Self::around(unit, memory, groups, everywhere, shared)
    }

    /// A device with such a medium; a CD if it is optical.
    #[must_use]
    pub fn of(kind: MediumKind) -> Self {
        Self::of_sharing(kind, Rc::new(Nowhere), Arc::default())
    }

    /// As [`Rig::of`], of a device whose other cores share this.
    #[must_use]
    pub fn of_sharing(kind: MediumKind, everywhere: Rc<dyn Everywhere>, shared: Arc<SharedUnits>) -> Self {
        let traits = if kind == MediumKind::Optical { Self::disc(BLOCKS / 4) } else { Self::traits() };
        let memory = Memory::zeroes(traits.size);
        let unit = Self::unit_of(0, kind, traits, memory.clone());
        Self::around(unit, memory, [1, 1], everywhere, shared)
    }

    /// A device with a DVD of zeroes.
    #[must_use]
    pub fn dvd() -> Self {
        let memory = Rc::new(Memory::default());
        let unit = Self::unit_of(0, MediumKind::Optical, Self::disc(2_000_000), memory.clone());
        Self::around(unit, memory, [1, 1], Rc::new(Nowhere), Arc::default())
    }

    /// A disc of so many blocks.
    fn disc(blocks: u64) -> Traits {
        Traits {
            size: blocks * u64::from(DISC_BLOCK),
            read_only: true,
            write_cache: false,
            unmap_granularity: 0,
            physical_block: DISC_BLOCK,
            atomic_write: 0,
            ..Self::traits()
        }
    }

    fn around(
        unit: Rc<Unit>,
        memory: Rc<Memory>,
        groups: [u16; 2],
        everywhere: Rc<dyn Everywhere>,
        shared: Arc<SharedUnits>,
    ) -> Self {
        let stats = Arc::new(Stats::default());
        let port = |relative: u16, group: u16| PortConfig {
            relative,
            group,
            name: format!("iqn.2026-11.example:disk,t,0x{relative:04x}"),
            device: "iqn.2026-11.example:disk".into(),
            protocol: 5,
        };
        let config = TargetConfig {
            ports: vec![port(1, groups[0]), port(2, groups[1])],
            clock: Clock(Rc::new(|| NOW)),
            core: 0,
            stats: stats.clone(),
            shared,
            tokens: Self::tokens(),
        };
        let target = Target::new(config, everywhere);
        target.add_unit(0, unit);
        let nexus = target.nexus(Self::name("a"));
        nexus.each(|itl| while itl.take_attention().is_some() {});
        let arena = Arena::new(ARENA_BYTES);
        let (aborted, lun) = (Cell::new(false), Cell::new(Lun::from_number(0)));
        let beside = Rc::default();
        Self { target, nexus, memory, beside, aborted, lun, attribute: Cell::new(TaskAttribute::SIMPLE), arena, stats }
    }

    /// As [`Rig::default`], with a disk that keeps what it keeps here.
    ///
    /// # Panics
    /// Never: nobody else has the disk yet.
    #[must_use]
    pub fn keeping(keep: Arc<dyn Keep>) -> Self {
        let rig = Self::default();
        let mut unit = Self::unit(0, Self::traits(), rig.memory.clone());
        Rc::get_mut(&mut unit).expect("nobody else has it").keep = keep;
        rig.target.remove_unit(0);
        rig.target.add_unit(0, unit);
        rig.nexus.each(|itl| while itl.take_attention().is_some() {});
        rig
    }

    /// No tokens; those that are made are all alike but for a number, and none expires.
    #[must_use]
    pub fn tokens() -> Arc<Tokens> {
        let count = AtomicU64::new(1);
        let random = move |into: &mut [u8]| {
            let number = count.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            into.iter_mut().zip(number.into_iter().cycle()).for_each(|(to, from)| *to = from);
            true
        };
        Tokens::new(Box::new(random), Box::new(Instant::default))
    }

    /// The name of a nexus.
    #[must_use]
    pub fn name(initiator: &str) -> NexusName {
        NexusName { initiator: initiator.into(), target_port: 1 }
    }

    /// A unit with these bytes.
    ///
    /// # Panics
    /// When they are not a whole number of blocks, or `id` is not small.
    #[must_use]
    pub fn unit(id: u32, traits: Traits, memory: Rc<Memory>) -> Rc<Unit> {
        Self::unit_of(id, MediumKind::Fixed, traits, memory)
    }

    /// As [`Rig::unit`], with such a medium.
    ///
    /// # Panics
    /// As [`Rig::unit`].
    #[must_use]
    pub fn unit_of(id: u32, kind: MediumKind, traits: Traits, memory: Rc<Memory>) -> Rc<Unit> {
        Rc::new(Self::bare_unit(id, kind, traits, memory))
    }

    fn bare_unit(id: u32, kind: MediumKind, traits: Traits, memory: Rc<Memory>) -> Unit {
        let block = if kind == MediumKind::Optical { DISC_BLOCK } else { BLOCK };
        let medium = Medium::of(kind);
        let ranges = Rc::new(Ranges::default());
        // Units are told apart by their last byte.
        let last = |byte: u8| byte + u8::try_from(id).expect("a few units");
        let uuid = [0xa0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, last(15)];
        Unit {
            id: UnitId(id),
            identity: Arc::new(Identity {
                vendor: "LUNAR".into(),
                product: "disk".into(),
                revision: "0001".into(),
                serial: "0123456789".into(),
                uuid,
                naa: [0x30, 1, 2, 3, 4, 5, 6, last(7)],
            }),
            geometry: Geometry::of(&traits, block).expect("a whole number of blocks"),
            read_only: traits.read_only,
            store: medium.guard(Box::new(MemoryStore { memory, traits })),
            protection: None,
            medium,
            tally: Tally::default(),
            exclusive: Rc::new(OneCore(ranges.clone())),
            keep: Arc::new(Forgetful::default()),
            ranges,
        }
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The command of a CDB.
    ///
    /// # Panics
    /// When the CDB is empty or too long.
    #[must_use]
    pub fn command(&self, cdb: &[u8], data_out: usize, data_in: u32) -> Command {
        Command {
            lun: self.lun.get(),
            cdb: Cdb::new(cdb).expect("1 to 32 bytes"),
            attribute: self.attribute.get(),
            tag: 1,
            data_in,
            data_out: u32::try_from(data_out).expect("small"),
        }
    }

    /// Runs a command of the rig's own nexus.
    pub fn run(&self, cdb: &[u8], data_out: &[u8], data_in: u32) -> Ended {
        self.run_as(&self.nexus, cdb, data_out, data_in)
    }

    /// The status of a command of the rig's own nexus without Data-In, which may take its time.
    #[cfg(test)]
    pub(crate) async fn later(&self, cdb: &[u8], data_out: &[u8]) -> Status {
        let command = self.command(cdb, data_out.len(), 0);
        let wire =
            Wire { arena: self.arena.clone(), out: data_out, pushed: RefCell::default(), aborted: &self.aborted };
        let mut tools = Tools { arena: self.arena.clone(), completion: lunar_core::io::Completion::new() };
        let mut reply = Reply::default();
        self.target.execute(&self.nexus, &command, &wire, &mut tools, &mut reply).await;
        reply.status
    }

    /// Runs a command.
    ///
    /// # Panics
    /// When it does not end at once.
    pub fn run_as(&self, nexus: &Rc<Nexus>, cdb: &[u8], data_out: &[u8], data_in: u32) -> Ended {
        let command = self.command(cdb, data_out.len(), data_in);
        let wire =
            Wire { arena: self.arena.clone(), out: data_out, pushed: RefCell::default(), aborted: &self.aborted };
        let mut tools = Tools { arena: self.arena.clone(), completion: lunar_core::io::Completion::new() };
        let mut reply = Reply::default();
        if !self.target.execute_now(nexus, &command, &wire, &self.arena, &mut reply) {
            at_once(self.target.execute(nexus, &command, &wire, &mut tools, &mut reply));
        }
        let mut data = wire.pushed.into_inner();
        assert!(reply.tail.data.is_empty() || reply.tail.offset == data.len(), "the tail follows what was pushed");
        data.extend(reply.tail.data.to_vec());
        Ended { status: reply.status, sense: reply.sense.to_vec(), data, wanted: reply.wanted }
    }
}

/// The result of a future that waits for nothing.
///
/// # Panics
/// When it waits.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a command waits for something that is not there"),
    }
}

/// Devices of all sorts that have a command.
fn rigs(reach: Reach) -> Vec<Rig> {
    match reach {
        Reach::Disk => vec![Rig::default()],
        Reach::Optical => vec![Rig::of(MediumKind::Optical), Rig::dvd()],
        Reach::Unit | Reach::WellKnown | Reach::Anywhere => {
            vec![Rig::of(MediumKind::Removable), Rig::of(MediumKind::Optical)]
        }
    }
}

/// Runs the command whose CDB `data` begins with, raw; what follows is its Data-Out.
pub fn raw(data: &[u8]) {
    let long = data.first() == Some(&OpCode::VARIABLE_LENGTH.0);
    let (cdb, rest) = data.split_at(data.len().min(if long { CDB_BYTES_MAX } else { 16 }));
    if let Some(op) = cdb.first() {
        let reach = rows(*op).first().map_or(Reach::Disk, |row| row.policy.gates.reach);
        // All kinds of protection have their turn.
        let protected = Kind::of(data.len() as u8 & 3).filter(|kind| *kind != Kind::None).map(Rig::protected);
        for rig in rigs(reach).iter().chain(&protected) {
            rig.memory.is_slow.set(data.len() & 4 != 0);
            rig.run(cdb, rest, u32::MAX);
        }
    }
}

/// Runs a command: the first byte picks its row, what follows is its CDB and'ed with the usage mask, and its
/// Data-Out. Never panics, and never answers more than the allocation length.
///
/// # Panics
/// When the command answers too much.
pub fn cdb(data: &[u8]) {
    let Some((pick, data)) = data.split_first() else { return };
    let row = &TABLE[usize::from(*pick) % TABLE.len()];
    let (bytes, rest) = data.split_at(data.len().min(row.length));
    let mut cdb = [0; CDB_BYTES_MAX];
    row.usage(&mut Writer::new(&mut cdb));
    let cdb = &mut cdb[..row.length];
    let given = bytes.iter().copied().chain(std::iter::repeat(0));
    cdb.iter_mut().zip(given).skip(1).for_each(|(mask, byte)| *mask &= byte);
    row.name(cdb);
    for rig in rigs(row.policy.gates.reach) {
        rig.memory.is_slow.set(data.len() & 1 != 0);
        let ended = rig.for_row(row).run(cdb, rest, u32::MAX);
        if row.flow == Flow::Answer {
            let allocation = row.amount(cdb).map_or(0, |length| length as usize);
            assert!(ended.data.len() <= allocation, "{} answers {} bytes", row.policy.name, ended.data.len());
        }
    }
}
