//! The rig of fuzz targets and tests: a subsystem with two namespaces in memory, and a host with its queues.

use crate::auth::AuthServices;
use crate::auth::authenticator::Authenticator;
use crate::auth::exchange::{Computed, Terms, Work};
use crate::auth::host::{Host, RANDOM};
use crate::auth::key::Key;
use crate::auth::wire;
use crate::command::{Command, Direction, FABRICS, FUSE, FUSE_FIRST, FUSE_SECOND, Reply, SQE_LEN, Sqe, Status};
use crate::connect::{Caller, ConnectData};
use crate::directory::{Directory, Entry, SubsystemRegistry};
use crate::memory_based::Tenant;
use crate::namespace_map::Mapping;
use crate::path::{DISCOVERY_NQN, Path, TCP_WORD};
use crate::policy::Set;
use crate::queue::Queue;
use crate::subsystem::{SingleCoreServices, Subsystem, SubsystemConfig, SubsystemServices};
use crate::table::TABLE;
use lunar_core::access::{Access, Account, Credentials, Group, Secret};
use lunar_core::io::{Data, Done, Fault, ImmediateStore, Io, Op, Outcome, Store, Traits};
use lunar_core::mem::{Arena, Sg};
use lunar_core::metadata::VolatileMemory;
use lunar_core::port::Transfer;
use lunar_core::protection::{INFO_BYTES, Kind, Protection};
use lunar_core::range::Ranges;
use lunar_core::step::{Failure, FinalData, SlotContext, Step, carry_out};
use lunar_core::time::Instant;
use lunar_core::unit::{Admitted, Geometry, Identity, OneCore, Unit, UnitId};
use lunar_unit::{CoreUnits, NoOtherCores, UnitChange};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Blocks of each namespace.
pub const BLOCKS: u64 = 2048;
/// Bytes of a block.
pub const BLOCK: u32 = 512;
/// Name of the subsystem.
pub const NQN: &str = "nqn.2026-01.io.lunar:rig";
/// The constant time of the clock: milliseconds since the beginning of 1970.
pub const NOW: u64 = 1_795_000_000_000;
/// The address of the host.
pub const SOURCE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 4000);
/// The caller, without TLS.
#[must_use]
pub fn caller() -> Caller {
    Caller { transport: TCP_WORD, source: SOURCE, tls_peer: None }
}

/// The NQN of the host.
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:rig";
/// The unit whose blocks are protected.
const PROTECTED: u32 = 1;
const ARENA_BYTES: usize = 8 << 20;

/// A store in memory that can fail its next request.
pub struct Memory {
    bytes: RefCell<Vec<u8>>,
    /// The fault.
    pub fault: Cell<Option<Fault>>,
    /// Whether its data is not available at once: see [`ImmediateStore`].
    pub is_slow: Cell<bool>,
    /// The flushes so far.
    pub flushes: Cell<u32>,
    next: RefCell<Option<Box<dyn FnOnce()>>>,
    traits: Traits,
}

impl Memory {
    fn new(traits: Traits) -> Rc<Self> {
        let (bytes, fault, is_slow) = (RefCell::new(vec![0; traits.size as usize]), Cell::default(), Cell::default());
        Rc::new(Self { bytes, fault, is_slow, flushes: Cell::default(), next: RefCell::default(), traits })
    }

    /// Reads or changes its bytes without the subsystem.
    pub fn with<T>(&self, what: impl FnOnce(&mut [u8]) -> T) -> T {
        what(&mut self.bytes.borrow_mut())
    }

    /// Calls this when the next request comes.
    pub fn on_request(&self, call: impl FnOnce() + 'static) {
        *self.next.borrow_mut() = Some(Box::new(call));
    }
}

struct MemoryStore(Rc<Memory>);

impl ImmediateStore for MemoryStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        if let Some(call) = self.0.next.take() {
            call();
        }
        self.0.flushes.set(self.0.flushes.get() + u32::from(io.op == Op::Flush));
        let beyond = (!io.within(self.0.traits.size)).then_some(Fault::OUT_OF_RANGE);
        if let Some(fault) = beyond.or_else(|| self.0.fault.take()) {
            return Err(fault);
        }
        let mut bytes = self.0.bytes.borrow_mut();
        let at = io.offset as usize;
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(into)) => {
                let end = at + into.len();
                into.copy_from(0, &bytes[at..end]);
            }
            (Op::Write { .. }, Data::Out(from)) => {
                let end = at + from.len();
                from.copy_to(0, &mut bytes[at..end]);
            }
            (Op::Unmap { len } | Op::Zero { len, .. }, _) => bytes[at..at + len as usize].fill(0),
            (Op::Copy { .. }, _) => return Err(Fault::Unsupported),
            _ => {}
        }
        Ok(0)
    }
}

impl Store for MemoryStore {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        (!self.0.is_slow.get()).then_some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        let result = self.carry_out(&mut io);
        done.complete(Outcome::with(result, io.data));
    }
}

/// Moves the data of one command.
struct Wire<'a> {
    arena: Arena,
    out: &'a [u8],
    pushed: RefCell<Vec<u8>>,
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
        assert_eq!(offset, self.pushed.borrow().len(), "data arrives in order");
        self.pushed.borrow_mut().extend(data.to_vec());
        Ok(())
    }

    fn aborted(&self) -> bool {
        false
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its status.
    pub status: Status,
    /// Dwords 0 and 1.
    pub result: u64,
    /// Data to the host.
    pub data: Vec<u8>,
    /// Whether it waits for an event.
    pub parked: bool,
}

/// The rig's subsystem.
#[must_use]
pub fn subsystem_entry(access: Access) -> Entry {
    Entry {
        nqn: NQN.into(),
        serial: "0123456789".into(),
        model: "LUNAR VOLUME".into(),
        firmware: "0.1".into(),
        groups: None,
        access: Arc::new(access),
        terms: Terms::default(),
        history: Arc::default(),
        controllers_max: crate::controller::CONTROLLERS_MAX,
        pools: std::collections::BTreeMap::new(),
    }
}

fn open_subsystems() -> Arc<SubsystemRegistry> {
    let subsystems = Arc::new(SubsystemRegistry::default());
    let directory = Directory::new(vec![subsystem_entry(Access::open())], Default::default(), None);
    let mut directory = directory.unwrap_or_else(|_| Directory::nothing());
    directory.referrals = vec![Path::tcp((std::net::Ipv6Addr::LOCALHOST, 8009).into(), 0)];
    subsystems.set(directory);
    subsystems
}

/// A host on this machine, which sees all namespaces.
#[must_use]
pub fn tenant() -> Tenant {
    Tenant { host: "nqn.x:vm".into(), subsystem: NQN.into(), map: None, group: 0, address: "/run/x".into() }
}

/// A subsystem with namespaces 1 and 2, and a host with an admin queue and an I/O queue.
pub struct Rig {
    /// The subsystem.
    pub subsystem: Rc<Subsystem>,
    /// The state of its units.
    pub units: Rc<CoreUnits>,
    /// The admin queue.
    pub admin: Rc<Queue>,
    /// The I/O queue.
    pub io: Rc<Queue>,
    /// The bytes of the namespaces.
    pub memories: [Rc<Memory>; 2],
    /// The protection store of the second namespace, with inverted bytes.
    pub protection_store: Rc<Memory>,
    /// The time of the rig.
    pub services: Rc<Still>,
    /// The directory with one subsystem, for all hosts.
    pub subsystems: Arc<SubsystemRegistry>,
    told: Arc<Mutex<Vec<String>>>,
    arena: Arena,
}

impl Default for Rig {
    fn default() -> Self {
        Self::with(Rc::new(SingleCoreServices))
    }
}

impl Rig {
    /// A rig whose subsystem has other cores.
    ///
    /// # Panics
    /// When its host cannot connect.
    #[must_use]
    pub fn with(others: Rc<dyn SubsystemServices>) -> Self {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let services = Rc::new(Still::default());
        let subsystems = open_subsystems();
        let units = CoreUnits::new(Arc::default(), Rc::new(NoOtherCores));
        let config = SubsystemConfig {
            clock: Rc::new(|| NOW),
            stats: Arc::default(),
            units: units.clone(),
            controllers: Arc::default(),
            subsystems: subsystems.clone(),
            authenticator: authenticator(subsystems.clone(), told.clone()),
            services: services.clone(),
        };
        let subsystem = Subsystem::new(config, others);
        let memories = [0, PROTECTED].map(|id| {
            let (unit, memories) = unit(id);
            subsystem.add_namespace(id + 1, unit);
            memories
        });
        let [[first, _], [second, protection_store]] = memories;
        let memories = [first, second];
        let arena = Arena::new(ARENA_BYTES);
        let [admin, io] = connect_pair(&subsystem, 7);
        Self { subsystem, units, admin, io, memories, protection_store, services, subsystems, told, arena }
    }

    /// Admits the hosts of these groups from now on; `discovery` are the credentials for the discovery service.
    ///
    /// # Panics
    /// When the credentials would not protect.
    pub fn admit_groups(&self, groups: Vec<Group>, discovery: Credentials) {
        self.set_access(Access::new(groups, discovery).expect("right"));
    }

    /// Replaces the access rules.
    ///
    /// # Panics
    /// When the rules would not protect.
    pub fn set_access(&self, access: Access) {
        let discovery = Credentials::clone(access.discovery());
        let directory = Directory::new(vec![subsystem_entry(access)], (discovery, Terms::default()), None);
        self.subsystems.set(directory.expect("right"));
    }

    /// The audit records since the last call.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The admin queue of an admitted host, and whether it must authenticate.
    ///
    /// # Panics
    /// When the host is refused.
    #[must_use]
    pub fn connect_admin(&self, id: u8) -> (Rc<Queue>, bool) {
        let command = Command { sqe: connect_sqe(0, 31), sent: 1024, room: 0 };
        let data = connect_data(id, 0xffff, NQN);
        let made = self.subsystem.connect(&command, data.as_bytes(), Path::default(), caller(), self.services.now());
        let (queue, result) = made.expect("the host is admitted");
        (queue, result & 1 << 17 != 0)
    }

    /// Sets the type of protection information of the second namespace, and whether it is transferred with the blocks.
    /// No queue may have addressed the namespace before.
    ///
    /// # Panics
    /// When there is no second one.
    pub fn protect(&self, kind: Kind, metadata: bool) {
        let unit = self.subsystem.unit(UnitId(PROTECTED)).expect("it is there").unit.clone();
        at_once(self.units.propose(&unit, None, UnitChange::Protection(kind))).expect("memory saves it");
        self.subsystem.show(PROTECTED + 1, Mapping { metadata, ..Mapping::plain(unit.id) });
    }

    /// The host has enabled all formats of copies.
    pub fn enable_copies(&self) {
        let mut behavior = [0; 512];
        behavior[4] = 0x0c;
        self.admin.controller.set_behavior(Some(Box::new(behavior)));
    }

    /// Executes a step of another command set on the unit of the second namespace; returns the result and the data.
    ///
    /// # Panics
    /// When it does not end at once.
    pub fn carry(&self, step: &Step, out: &[u8]) -> (Result<(), Failure>, Vec<u8>) {
        let unit = self.subsystem.unit(UnitId(PROTECTED)).expect("it is there").unit.clone();
        let mut slot = SlotContext::new(self.arena.clone());
        let (wire, mut final_data) = (self.wire(out), FinalData::default());
        let result = at_once(carry_out(Admitted::to(&unit), step, &wire, &mut slot, &mut final_data));
        (result, ended(wire, Reply { final_data, ..Reply::default() }).data)
    }

    /// Another host, by the bytes of its identifier: its admin queue and an I/O queue.
    #[must_use]
    pub fn host(&self, id: u8) -> [Rc<Queue>; 2] {
        connect_pair(&self.subsystem, id)
    }

    /// An I/O queue of this rig's host that another core serves.
    ///
    /// # Panics
    /// When it has such a queue.
    #[must_use]
    pub fn queue_of(&self, core: &Subsystem, id: u16) -> Rc<Queue> {
        connect_queue(core, 7, id, self.admin.controller.id)
    }

    /// Runs a command with this data.
    ///
    /// # Panics
    /// When it does not end at once.
    pub fn run(&self, queue: &Rc<Queue>, sqe: &Sqe, out: &[u8]) -> Ended {
        let (command, wire) = (command(sqe, out), self.wire(out));
        let task = queue.tasks.enter((sqe.cid.get(), sqe.nsid.get()));
        let mut slot = SlotContext::new(self.arena.clone());
        let mut reply = Reply::default();
        if !self.subsystem.execute_now(queue, &command, &wire, &self.arena, &mut reply) {
            at_once(self.subsystem.execute(queue, &task, &command, &wire, &mut slot, &mut reply));
        }
        ended(wire, reply)
    }

    /// Runs both halves of a fused operation.
    ///
    /// # Panics
    /// When they do not end at once.
    pub fn run_fused(&self, sqes: [&Sqe; 2], outs: [&[u8]; 2]) -> [Ended; 2] {
        let commands = [command(sqes[0], outs[0]), command(sqes[1], outs[1])];
        let wires = outs.map(|out| self.wire(out));
        let tasks = sqes.map(|sqe| self.io.tasks.enter((sqe.cid.get(), sqe.nsid.get())));
        let mut slot = SlotContext::new(self.arena.clone());
        let mut replies = [Reply::default(), Reply::default()];
        at_once(self.subsystem.execute_fused(
            &self.io,
            tasks.each_ref(),
            commands.each_ref(),
            wires.each_ref(),
            &mut slot,
            &mut replies,
        ));
        let ([one, other], [first, second]) = (wires, replies);
        [ended(one, first), ended(other, second)]
    }

    fn wire<'a>(&self, out: &'a [u8]) -> Wire<'a> {
        Wire { arena: self.arena.clone(), out, pushed: RefCell::default() }
    }
}

/// A clock that advances only when a task waits, and immediate computations.
#[derive(Debug, Default)]
pub struct Still(Cell<Instant>);

impl Still {
    /// Sets the time.
    pub fn set(&self, now: Instant) {
        self.0.set(now);
    }
}

impl AuthServices for Still {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.set(at);
        Box::pin(std::future::ready(()))
    }

    fn compute(&self, _source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>> {
        Box::pin(std::future::ready(Some(work.run())))
    }
}

fn authenticator(subsystems: Arc<SubsystemRegistry>, told: Arc<Mutex<Vec<String>>>) -> Arc<Authenticator> {
    let next = AtomicU8::new(0);
    let random = Box::new(move |into: &mut [u8]| {
        into.fill_with(|| next.fetch_add(1, Ordering::Relaxed));
        true
    });
    let sink = move |record: &crate::auth::authenticator::Record| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(record.to_string());
    };
    Authenticator::new(subsystems, Arc::default(), random, Box::new(sink))
}

/// The key of hosts of this rig.
pub const HOST_KEY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
/// The key of its subsystem.
pub const OWN_KEY: &str = "DHHC-1:01:YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXowMTIzNDVMR01i:";

/// Requires authentication of all hosts, with these users and secrets.
///
/// # Panics
/// When the secrets are none.
#[must_use]
pub fn with_users(users: &[(&str, &str)]) -> Access {
    let secret = |text: &str| Secret::new(text.into()).expect("long enough");
    let account = |(name, text): &(&str, &str)| Account { name: (*name).into(), secret: secret(text) };
    let target = Some(Account { name: NQN.into(), secret: secret(OWN_KEY) });
    let credentials = Credentials { users: users.iter().map(account).collect(), target };
    Access::new(vec![Group { credentials, ..Group::everybody() }], Credentials::default()).expect("right")
}

/// A host that knows this key.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn prover(key: &str) -> Host {
    /// Random bytes of the host: the challenge and its sequence number.
    const BEHIND: [u8; 68] = {
        let mut bytes = [0x3c; 68];
        [bytes[64], bytes[65], bytes[66], bytes[67]] = 0x0001_0002_u32.to_le_bytes();
        bytes
    };
    let key = Key::parse(key.as_bytes()).expect("a key");
    let mut random = [0x77; RANDOM];
    random[RANDOM - BEHIND.len()..].copy_from_slice(&BEHIND);
    Host { name: HOST_NQN.into(), subsystem: NQN.into(), key, other: None, transaction: 0x1234, random }
}

/// The entry of Authentication Send, or Receive, of so many bytes.
#[must_use]
pub fn auth_sqe(kind: u8, length: usize) -> Sqe {
    entry(FABRICS, u32::from(kind), &[0xe901_0100, u32::try_from(length).unwrap_or(u32::MAX)])
}

fn command(sqe: &Sqe, out: &[u8]) -> Command {
    let sent = u32::try_from(out.len()).expect("small");
    match sqe.direction() {
        Direction::Out => Command { sqe: *sqe, sent, room: 0 },
        Direction::In => Command { sqe: *sqe, sent: 0, room: sqe.sgl.length.get() },
        Direction::None => Command { sqe: *sqe, sent: 0, room: 0 },
    }
}

fn ended(wire: Wire<'_>, reply: Reply) -> Ended {
    let mut data = wire.pushed.into_inner();
    assert!(
        reply.final_data.data.is_empty() || reply.final_data.offset == data.len(),
        "the final data follows the pushed data"
    );
    data.extend(reply.final_data.data.to_vec());
    Ended { status: reply.status.code(), result: reply.result, data, parked: reply.parked }
}

pub(crate) fn unit(id: u32) -> (Rc<Unit>, [Rc<Memory>; 2]) {
    let traits = Traits {
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
    };
    let memory = Memory::new(traits.clone());
    let protection_store = Memory::new(Traits { size: BLOCKS * INFO_BYTES as u64, ..traits });
    let ranges = Rc::new(Ranges::default());
    // Units are told apart by their last bytes.
    let [high, last] = u16::try_from(id).expect("as many as there may be").to_be_bytes();
    let unit = Unit {
        id: UnitId(id),
        identity: Arc::new(Identity {
            vendor: "LUNAR".into(),
            product: "VOLUME".into(),
            revision: "0.1".into(),
            serial: "0123456789".into(),
            uuid: [0xa0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14 + high, last],
            naa: [0x30, 1, 2, 3, 4, 5, 6 + high, last],
        }),
        geometry: Geometry::of(&traits, BLOCK).expect("a whole number of blocks"),
        read_only: false,
        store: Box::new(MemoryStore(memory.clone())),
        protection: (id == PROTECTED)
            .then(|| Protection::new(Box::new(MemoryStore(protection_store.clone())), Kind::One)),
        medium: lunar_core::medium::Medium::default(),
        tally: lunar_core::tally::Tally::default(),
        exclusive: Rc::new(OneCore(ranges.clone())),
        metadata: Arc::new(VolatileMemory::default()),
        ranges,
    };
    (Rc::new(unit), [memory, protection_store])
}

/// The entry of Connect.
#[must_use]
pub fn connect_sqe(queue: u16, entries: u16) -> Sqe {
    let mut sqe = entry(FABRICS, 1, &[u32::from(queue) << 16, entries.into(), 0]);
    sqe.sgl.length = 1024.into();
    sqe
}

/// The data of Connect.
///
/// # Panics
/// When the name is too long.
#[must_use]
pub fn connect_data(host: u8, controller: u16, subsystem: &str) -> ConnectData {
    let mut data = ConnectData::new_zeroed();
    data.host = [host; 16];
    data.controller = controller.into();
    data.subsystem[..subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data.host_nqn[..HOST_NQN.len()].copy_from_slice(HOST_NQN.as_bytes());
    data
}

/// The entry of a command: operation code, namespace, dwords 10 and on. It has room for all that it may ask for.
#[must_use]
pub fn entry(opcode: u8, namespace: u32, dwords: &[u32]) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.nsid, sqe.sgl.length) = (opcode, namespace.into(), u32::MAX.into());
    sqe.cdw10.iter_mut().zip(dwords).for_each(|(field, dword)| *field = (*dword).into());
    sqe
}

fn connect_queue(subsystem: &Subsystem, host: u8, queue: u16, controller: u16) -> Rc<Queue> {
    let command = Command { sqe: connect_sqe(queue, 31), sent: 1024, room: 0 };
    let data = connect_data(host, controller, NQN);
    let made = subsystem.connect(&command, data.as_bytes(), Path::default(), caller(), Instant(0));
    made.expect("the host is admitted").0
}

fn connect_pair(subsystem: &Subsystem, host: u8) -> [Rc<Queue>; 2] {
    let admin = connect_queue(subsystem, host, 0, 0xffff);
    admin.controller.set_property(crate::controller::property::CC, false, 0x46_0001).expect("it can be enabled");
    let io = connect_queue(subsystem, host, 1, admin.controller.id);
    [admin, io]
}

/// The result of a future that may yield, but waits for nothing.
///
/// # Panics
/// When it waits.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    /// More than a format of all the rig's namespaces takes.
    const TURNS: usize = 100;
    let mut future = pin!(future);
    for _ in 0..TURNS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("a command waits for something that is not there")
}

/// Whether a reply's response, or the value of the group that it is made with, has this byte. The challenge between
/// them and the fields before belong to the authentication of the subsystem, if the host asks for it.
fn is_of_proof(reply: &[u8], at: usize) -> bool {
    let Ok((head, _)) = wire::Reply::ref_from_prefix(reply) else { return false };
    let (response, length) = (size_of::<wire::Reply>(), usize::from(head.hash_len));
    (response..response + length).contains(&at) || at >= response + 2 * length
}

/// Messages of a host that must authenticate: right ones, right ones with changed bytes, and arbitrary ones. A host
/// whose messages were never right is not authenticated.
pub fn authentication(data: &[u8]) {
    /// Groups whose numbers are small enough for many rounds.
    const GROUPS: [u8; 2] = [0, 1];
    let rig = Rig::default();
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let (queue, _) = rig.connect_admin(9);
    let Some((first, data)) = data.split_first() else { return };
    let mut host = prover(if first & 1 == 0 { HOST_KEY } else { OWN_KEY });
    host.other = (first & 2 != 0).then(|| Key::parse(OWN_KEY.as_bytes()).ok()).flatten();
    let (mut got, mut is_right) = (Vec::new(), false);
    for step in data.chunks(4) {
        let [what, at, flip, ..] = *step else { continue };
        let mut message = match what & 7 {
            0 => host.negotiate(&[1 + what % 3], &GROUPS[usize::from(what >> 3 & 1)..]),
            1 => host.reply(&got).unwrap_or_default(),
            2 => host.success(),
            3 => host.failure(),
            4 => step.repeat(usize::from(at) + 1),
            _ => {
                got = rig.run(&queue, &auth_sqe(6, usize::from(at) << 3), &[]).data;
                continue;
            }
        };
        let counts = is_of_proof(&message, at.into());
        let changed = message.get_mut(usize::from(at)).map(|byte| *byte ^= flip).is_some() && flip != 0 && counts;
        is_right |= first & 1 == 0 && what & 7 == 1 && !message.is_empty() && !changed;
        let length = message.len();
        rig.run(&queue, &auth_sqe(5, length), &message);
        rig.services.set(rig.services.now() + std::time::Duration::from_secs(2));
    }
    assert!(is_right || !queue.passes(), "an unauthenticated host passes");
}

/// Runs commands, any of them with any bits: each is a queue, an entry and its data.
pub fn commands(mut data: &[u8]) {
    let rig = Rig::default();
    rig.memories.iter().for_each(|memory| memory.is_slow.set(data.len() & 1 != 0));
    rig.protect(Kind::ALL[data.len() >> 1 & 3], data.len() & 8 != 0);
    rig.enable_copies();
    while let Some((queue, rest)) = data.split_first() {
        let (bytes, rest) = rest.split_at(rest.len().min(SQE_LEN));
        let mut sqe = Sqe::new_zeroed();
        sqe.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        // Mostly commands that exist.
        let row = &TABLE[usize::from(sqe.opcode) % TABLE.len()];
        let set = row.policy.code.set;
        if queue & 0x80 == 0 {
            match set {
                Set::Fabrics => (sqe.opcode, sqe.nsid) = (FABRICS, u32::from(row.policy.code.op).into()),
                _ => (sqe.opcode, sqe.nsid) = (row.policy.code.op, (sqe.nsid.get() & 3).into()),
            }
        }
        sqe.sgl.length = (sqe.sgl.length.get() % (1 << 16)).into();
        let (out, rest) = rest.split_at(rest.len().min(usize::from(queue & 0x3f) * 16));
        data = rest;
        let queue = if set == Set::Io { &rig.io } else { &rig.admin };
        match sqe.flags & FUSE {
            0 => _ = rig.run(queue, &sqe, out),
            FUSE_FIRST | FUSE_SECOND => fuse(&rig, &sqe, out),
            // Mostly commands that are not fused: a single half is refused at once.
            _ if sqe.cid.get() & 0x0f > 0 => {
                sqe.flags &= !FUSE;
                rig.run(queue, &sqe, out);
            }
            _ => _ = rig.run(queue, &sqe, out),
        }
    }
}

/// Compare and Write, of the same blocks and of as much data as that takes, unless the entry's rarer bits say
/// otherwise.
pub(crate) fn fuse(rig: &Rig, sqe: &Sqe, out: &[u8]) {
    const BLOCKS_MAX: u32 = 4;
    const COMPARE: u8 = 0x05;
    const WRITE: u8 = 0x01;
    let [same, other, wrong, ..] = sqe.cdw10[5].get().to_le_bytes();
    let (first, count) = (sqe.cdw(10) % (BLOCKS as u32 + 1), sqe.cdw(12) % BLOCKS_MAX);
    let half = |opcode, fuse: u8, dwords: &[u32]| {
        let mut half = entry(opcode, 1 + (sqe.nsid.get() & 1), dwords);
        (half.flags, half.cid) = (fuse, sqe.cid.get().wrapping_add(fuse.into()).into());
        half
    };
    let mut halves = [half(COMPARE, FUSE_FIRST, &[first, 0, count]), half(WRITE, FUSE_SECOND, &[first, 0, count])];
    match wrong {
        0xf0 => halves[1].cdw10[0] = (first + 1).into(),
        0xf1 => halves[1].cdw10[2] = (count + 1).into(),
        0xf2 => halves[1].nsid = 3.into(),
        0xf3 => halves.swap(0, 1),
        0xf4 => (halves[0].opcode, halves[1].opcode) = (same, other),
        0xf5 => halves[0].cdw10[3] = u32::MAX.into(),
        _ => {}
    }
    // Unwritten blocks are zero; compared blocks may have been written before.
    let data = |byte: u8| vec![byte & 1; (count as usize + 1) * BLOCK as usize];
    let (mut compared, mut written) = (data(same), data(other));
    if wrong > 0xf8 {
        (compared, written) = (out.to_vec(), out.to_vec());
    }
    let there = || {
        let at = first as usize * BLOCK as usize;
        let most = (BLOCKS_MAX as usize + 1) * BLOCK as usize;
        rig.memories
            .each_ref()
            .map(|memory| memory.with(|bytes| bytes.iter().skip(at).take(most).copied().collect::<Vec<_>>()))
    };
    let before = there();
    let [compare, write] = rig.run_fused([&halves[0], &halves[1]], [&compared, &written]);
    assert_eq!(compare.status == Status::SUCCESS, write.status == Status::SUCCESS, "both go well, or neither does");
    assert!(write.status == Status::SUCCESS || there() == before, "a failed write has changed the medium");
}

/// Hosts that connect queues: with right commands, and with changed bytes of entry and data. A host that gets a queue
/// is the named host, and has no more rights than it may.
pub fn connects(data: &[u8]) {
    let rig = Rig::default();
    let Some((first, data)) = data.split_first() else { return };
    if first & 1 != 0 {
        rig.set_access(with_users(&[("alice", HOST_KEY)]));
    }
    let mut held: Vec<Rc<Queue>> = Vec::new();
    for step in data.chunks_exact(8) {
        let [what, host, number, entries, low, high, flip, cut] = *step else { return };
        let number = if what & 1 == 0 { 0 } else { number.into() };
        let known = held.iter().rfind(|queue| queue.id == 0).map(|queue| queue.controller.id);
        let controller = if number == 0 { 0xffff } else { known.unwrap_or_else(|| host.into()) };
        let name = if what & 2 == 0 { NQN } else { DISCOVERY_NQN };
        let mut sqe = connect_sqe(number, if what & 4 == 0 { 31 } else { u16::from(entries) << 4 });
        let mut bytes = connect_data(host & 1, controller, name).as_bytes().to_vec();
        let at = usize::from(u16::from_le_bytes([low, high]));
        match at.checked_sub(SQE_LEN) {
            None => sqe.as_mut_bytes()[at] ^= flip,
            Some(at) => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= flip),
        }
        if what & 0xf0 == 0xf0 {
            bytes.truncate(usize::from(cut) * 4);
        }
        let command = Command { sqe, sent: bytes.len() as u32, room: 0 };
        let now = rig.services.now();
        rig.services.set(now + std::time::Duration::from_millis(u64::from(cut) * 10));
        if rig.subsystem.arrive(&command, &bytes, &caller(), now).is_err() {
            continue;
        }
        match rig.subsystem.connect(&command, &bytes, Path::default(), caller(), now) {
            Ok((queue, result)) => {
                connected(&rig, &queue, &bytes, result);
                held.push(queue);
            }
            Err(refusal) => assert_ne!(refusal.status, Status::SUCCESS),
        }
        if what & 8 != 0 && !held.is_empty() {
            held.swap_remove(usize::from(cut) % held.len());
        }
    }
    let controllers = &rig.subsystem.config().controllers;
    drop((held, rig.admin, rig.io));
    assert!(controllers.all().is_empty(), "controllers go with their admin queues");
}

/// The invariants of every connected queue.
fn connected(rig: &Rig, queue: &Rc<Queue>, data: &[u8], result: u32) {
    let said = ConnectData::ref_from_bytes(data).expect("others connect nothing");
    let controller = &queue.controller;
    assert!(said.host == controller.host.id && said.host_nqn.starts_with(controller.host.nqn.as_bytes()));
    assert!(said.subsystem.starts_with(controller.access_grant.subsystem.nqn.as_bytes()) && !controller.is_over());
    assert_eq!((result as u16, result & 1 << 17 == 0), (controller.id, queue.passes()));
    assert!(
        queue.id <= controller.granted().submission && queue.entries > 1 && (queue.id == 0 || controller.is_enabled())
    );
    let identified = rig.run(queue, &entry(0x06, 0, &[1]), &[]).status;
    assert!(queue.id > 0 || identified != Status::SUCCESS, "Identify fails before the controller is enabled");
    if queue.passes() && queue.id == 0 {
        let _ = controller.set_property(crate::controller::property::CC, false, 0x46_0001);
    }
}
