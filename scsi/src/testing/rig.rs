//! A device server with a small logical unit in memory, on which tests and fuzz targets execute commands. Requests are
//! answered immediately.

use crate::command::{Cdb, Command, Reply, Status, TaskAttribute};
use crate::copy::tokens::Tokens;
use crate::device_server::DeviceServer;
use crate::device_types::DEVICE_TYPES;
use crate::lu::{Emulated, ForwardedUnit, LogicalUnit};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::peripheral::PeripheralType;
use crate::row::{DeviceType, Row};
use crate::sbc::block_range::PROTECTION_TYPE_2;
use crate::target::{Clock, PortConfig, Target, TargetConfig};
use lunar_core::io::{Data, Done, Extent, Fault, ImmediateStore, Io, Op, Outcome, Space, Store, Traits};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::mem::{Arena, Sg};
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::protection::{INFO_BYTES, Kind, Protection};
use lunar_core::range::Ranges;
use lunar_core::stats::Stats;
use lunar_core::step::SlotContext;
use lunar_core::tally::Tally;
use lunar_core::time::Instant;
use lunar_core::unit::{Geometry, Identity, OneCore, Unit, UnitId};
use lunar_unit::{CoreUnits, NoOtherCores, OtherCores, SharedUnits};
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
/// The time of the device's clock, which stands still: milliseconds since 1970-01-01 00:00 UTC.
pub const NOW: u64 = 1_795_000_000_000;
const ARENA_BYTES: usize = 8 << 20;

/// The content of a store in memory, shared with the test.
#[derive(Debug, Default)]
pub struct Memory {
    /// The bytes. A larger store reads zeroes beyond them.
    pub bytes: RefCell<Vec<u8>>,
    /// The fault of the next request.
    pub fault: Cell<Option<Fault>>,
    /// The space that the store reports; `None` if it cannot measure.
    pub space: Cell<Option<Space>>,
    /// The operations that were requested.
    pub asked: RefCell<Vec<Op>>,
    /// Whether requests are not answered immediately: see [`ImmediateStore`].
    pub is_slow: Cell<bool>,
}

impl Memory {
    /// `count` zeroes.
    #[must_use]
    pub fn zeroes(count: u64) -> Rc<Self> {
        Rc::new(Self { bytes: RefCell::new(vec![0; count as usize]), ..Self::default() })
    }
}

struct MemoryStore {
    memory: Rc<Memory>,
    traits: Traits,
}

impl ImmediateStore for MemoryStore {
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

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
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

/// The first run of blocks in one state. Blocks of zeroes are unmapped.
fn extent(bytes: &[u8]) -> Extent {
    let mut blocks = bytes.chunks(BLOCK as usize).map(|block| block.iter().any(|byte| *byte != 0)).peekable();
    let mapped = blocks.peek().copied().unwrap_or(false);
    let count = blocks.take_while(|state| *state == mapped).count();
    Extent { len: count as u64 * u64::from(BLOCK), mapped }
}

/// The transfer of one command.
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

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
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

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Status.
    pub status: Status,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Data-In, before the transport cuts it.
    pub data: Vec<u8>,
    /// Bytes that the command would have moved.
    pub wanted: u64,
}

/// A device server with one logical unit at LUN 0, and a nexus.
pub struct Rig {
    /// The device server.
    pub target: Rc<Target>,
    /// The state of its units.
    pub units: Rc<CoreUnits>,
    /// The nexus.
    pub nexus: Rc<Nexus>,
    /// The content of the logical unit.
    pub memory: Rc<Memory>,
    /// The content of the protection store: protection information, inverted.
    pub protection_store: Rc<Memory>,
    /// Whether commands are aborted.
    pub aborted: Cell<bool>,
    /// The LUN that commands are sent to.
    pub lun: Cell<Lun>,
    /// The task attribute of commands.
    pub attribute: Cell<TaskAttribute>,
    pub(super) arena: Arena,
    stats: Arc<Stats>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new(Self::traits())
    }
}

impl LogicalUnit {
    /// The emulated logical unit of a test.
    #[must_use]
    pub fn of_test(&self) -> &Emulated {
        self.emulated().expect("the logical unit is emulated")
    }
}

impl Rig {
    /// The traits of a thin store with a write cache.
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

    /// A device with a disk of these traits. The POWER ON unit attention of its nexus was taken.
    #[must_use]
    pub fn new(traits: Traits) -> Self {
        Self::with(traits, Rc::new(NoOtherCores))
    }

    /// As [`Rig::new`], with other cores.
    #[must_use]
    pub fn with(traits: Traits, others: Rc<dyn OtherCores>) -> Self {
        Self::sharing(traits, others, Arc::default())
    }

    /// As [`Rig::with`], with the state that all cores share.
    #[must_use]
    pub fn sharing(traits: Traits, others: Rc<dyn OtherCores>, shared: Arc<SharedUnits>) -> Self {
        Self::with_all(traits, [1, 1], others, shared)
    }

    /// As [`Rig::default`], with a protection store and this protection type.
    #[must_use]
    pub fn protected(kind: Kind) -> Self {
        Self::default().protecting(kind)
    }

    fn protecting(mut self, kind: Kind) -> Self {
        let traits = self.target.unit(0).expect("a rig has one").of_test().unit.traits().clone();
        let size = BLOCKS * INFO_BYTES as u64;
        self.protection_store = Memory::zeroes(size);
        let store = MemoryStore { memory: self.protection_store.clone(), traits: Traits { size, ..Self::traits() } };
        let mut unit = Self::bare_unit(0, MediumKind::Fixed, traits, self.memory.clone());
        unit.protection = Some(Protection::new(Box::new(store), kind));
        self.target.add_unit(0, Rc::new(unit));
        self.nexus.each(|itl| while itl.take_attention().is_some() {});
        self
    }

    /// The same with the capability that a command needs.
    #[must_use]
    pub fn for_row(self, row: &Row) -> Self {
        if row.policy.admission.needs == Some(&PROTECTION_TYPE_2) { self.protecting(Kind::Two) } else { self }
    }

    /// As [`Rig::default`], with ports in these target port groups.
    #[must_use]
    pub fn with_groups(groups: [u16; 2]) -> Self {
        Self::with_all(Self::traits(), groups, Rc::new(NoOtherCores), Arc::default())
    }

    fn with_all(traits: Traits, groups: [u16; 2], others: Rc<dyn OtherCores>, shared: Arc<SharedUnits>) -> Self {
        let memory = Memory::zeroes(traits.size);
        memory.space.set(Some(Space { used: 0, available: traits.size }));
        let unit = Self::unit(0, traits, memory.clone());
        Self::around(unit, memory, groups, others, shared)
    }

    /// A device whose unit has this kind of medium; a CD if optical.
    #[must_use]
    pub fn of(kind: MediumKind) -> Self {
        Self::of_sharing(kind, Rc::new(NoOtherCores), Arc::default())
    }

    /// As [`Rig::of`], with other cores and the state that all cores share.
    #[must_use]
    pub fn of_sharing(kind: MediumKind, others: Rc<dyn OtherCores>, shared: Arc<SharedUnits>) -> Self {
        let traits = if kind == MediumKind::Optical { Self::disc(BLOCKS / 4) } else { Self::traits() };
        let memory = Memory::zeroes(traits.size);
        let unit = Self::unit_of(0, kind, traits, memory.clone());
        Self::around(unit, memory, [1, 1], others, shared)
    }

    /// A device with a DVD of zeroes.
    #[must_use]
    pub fn dvd() -> Self {
        let memory = Rc::new(Memory::default());
        let unit = Self::unit_of(0, MediumKind::Optical, Self::disc(2_000_000), memory.clone());
        Self::around(unit, memory, [1, 1], Rc::new(NoOtherCores), Arc::default())
    }

    /// The traits of a disc.
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
        others: Rc<dyn OtherCores>,
        shared: Arc<SharedUnits>,
    ) -> Self {
        let stats = Arc::new(Stats::default());
        let units = CoreUnits::new(shared, others);
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
            stats: stats.clone(),
            units: units.clone(),
            tokens: Self::tokens(),
        };
        let target = Target::new(config);
        target.add_unit(0, unit);
        let nexus = target.nexus(Self::name("a"));
        nexus.each(|itl| while itl.take_attention().is_some() {});
        let arena = Arena::new(ARENA_BYTES);
        let (aborted, lun) = (Cell::new(false), Cell::new(Lun::from_number(0)));
        let protection_store = Rc::default();
        Self {
            target,
            units,
            nexus,
            memory,
            protection_store,
            aborted,
            lun,
            attribute: Cell::new(TaskAttribute::SIMPLE),
            arena,
            stats,
        }
    }

    /// A device whose unit with LUN 0 is forwarded to this device server.
    #[must_use]
    pub fn forwarding(device: Rc<dyn DeviceServer>) -> Self {
        let rig = Self::default();
        rig.target.remove_unit(0);
        let unit = ForwardedUnit {
            id: UnitId(0),
            identity: Self::unit(0, Self::traits(), rig.memory.clone()).identity.clone(),
            read_only: false,
            metadata: Arc::new(VolatileMemory::default()),
            tally: Tally::default(),
            device,
        };
        rig.target.add_forwarded(0, unit);
        rig.nexus.each(|itl| while itl.take_attention().is_some() {});
        rig
    }

    /// As [`Rig::default`], with a disk that has this metadata store.
    ///
    /// # Panics
    /// Never: the unit is not shared yet.
    #[must_use]
    pub fn keeping(keep: Arc<dyn MetadataStore>) -> Self {
        let rig = Self::default();
        let mut unit = Self::unit(0, Self::traits(), rig.memory.clone());
        Rc::get_mut(&mut unit).expect("the unit is not shared yet").metadata = keep;
        rig.target.remove_unit(0);
        rig.units.shared().restore(unit.id, &*unit.metadata).expect("reservations that are whole");
        rig.target.add_unit(0, unit);
        rig.nexus.each(|itl| while itl.take_attention().is_some() {});
        rig
    }

    /// An empty set of tokens. Tokens differ in a number only, and do not expire.
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

    /// A unit with this content.
    ///
    /// # Panics
    /// When the size is no multiple of the block size, or `id` is above 200.
    #[must_use]
    pub fn unit(id: u32, traits: Traits, memory: Rc<Memory>) -> Rc<Unit> {
        Self::unit_of(id, MediumKind::Fixed, traits, memory)
    }

    /// As [`Rig::unit`], with this kind of medium.
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
        // The identities of units differ in their last byte.
        let last = |byte: u8| byte + u8::try_from(id).expect("at most 200 units");
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
            metadata: Arc::new(VolatileMemory::default()),
            ranges,
        }
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// A command with this CDB.
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

    /// Executes a command of the rig's nexus.
    pub fn run(&self, cdb: &[u8], data_out: &[u8], data_in: u32) -> Ended {
        self.run_as(&self.nexus, cdb, data_out, data_in)
    }

    /// Executes a command of the rig's nexus without Data-In, which may wait.
    #[cfg(test)]
    pub(crate) async fn later(&self, cdb: &[u8], data_out: &[u8]) -> Status {
        self.later_as(&self.nexus, cdb, data_out).await
    }

    /// The same of another nexus.
    #[cfg(test)]
    pub(crate) async fn later_as(&self, nexus: &Rc<Nexus>, cdb: &[u8], data_out: &[u8]) -> Status {
        let command = self.command(cdb, data_out.len(), 0);
        let wire =
            Wire { arena: self.arena.clone(), out: data_out, pushed: RefCell::default(), aborted: &self.aborted };
        let mut slot = SlotContext::new(self.arena.clone());
        let mut reply = Reply::default();
        self.target.execute(nexus, &command, &wire, &mut slot, &mut reply).await;
        reply.status
    }

    /// Executes a command of a nexus.
    ///
    /// # Panics
    /// When the command waits.
    pub fn run_as(&self, nexus: &Rc<Nexus>, cdb: &[u8], data_out: &[u8], data_in: u32) -> Ended {
        let command = self.command(cdb, data_out.len(), data_in);
        let wire =
            Wire { arena: self.arena.clone(), out: data_out, pushed: RefCell::default(), aborted: &self.aborted };
        let mut slot = SlotContext::new(self.arena.clone());
        let mut reply = Reply::default();
        if !self.target.execute_now(nexus, &command, &wire, &self.arena, &mut reply) {
            at_once(self.target.execute(nexus, &command, &wire, &mut slot, &mut reply));
        }
        let mut data = wire.pushed.into_inner();
        assert!(
            reply.final_data.data.is_empty() || reply.final_data.offset == data.len(),
            "the last part of Data-In follows the pushed parts"
        );
        data.extend(reply.final_data.data.to_vec());
        Ended { status: reply.status, sense: reply.sense.to_vec(), data, wanted: reply.wanted }
    }
}

/// The result of a future that does not wait.
///
/// # Panics
/// When the future waits.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

/// Rigs whose commands are sent to logical units of a device type.
///
/// # Panics
/// When there is no rig of this device type.
#[must_use]
pub fn rigs(device: &DeviceType) -> Vec<Rig> {
    let at = |lun| {
        let rig = Rig::default();
        rig.lun.set(lun);
        vec![rig]
    };
    match device.code {
        PeripheralType::DISK => vec![Rig::default(), Rig::of(MediumKind::Removable)],
        PeripheralType::CD_DVD => vec![Rig::of(MediumKind::Optical), Rig::dvd()],
        PeripheralType::WELL_KNOWN => at(Lun::REPORT_LUNS),
        PeripheralType::UNKNOWN => at(Lun::from_number(9)),
        other => panic!("no rig of device type {other:?}"),
    }
}

/// Every row of every device type.
pub fn every_row() -> impl Iterator<Item = (&'static DeviceType, &'static Row)> + Clone {
    DEVICE_TYPES.iter().flat_map(|device| device.commands.rows().iter().map(|row| (*device, row)))
}
