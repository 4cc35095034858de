//! The scenario of fences: nodes of a cluster write to one disk, some by iSCSI and some by NVMe, and preempt each
//! other's registrations while commands are in progress and the target is killed. No write of a node takes effect after
//! the answer to the command that preempted it and aborted its commands; a node with iSCSI gets a unit attention; its
//! registration stays removed after a restart; and the reservation always exists.

use crate::configuration::{PORTAL, TARGET};
use crate::host::is_excused;
use crate::setup::{Kept, Setup, Volume};
use crate::stamp::{self, SECTOR};
use crate::target::{HOST, SimulatedTarget};
use crate::watch::Watch;
use crate::wire::{Controller, ENTRIES, HostConfig, Lost};
use lunar_core::mem::Arena;
use lunar_core::metadata::{DurableMemory, MetadataStore};
use lunar_core::outgoing::Data;
use lunar_core::time::Instant;
use lunar_iscsi_initiator::cdb::{self, Status};
use lunar_iscsi_initiator::config::{DigestOffer, Offer};
use lunar_iscsi_initiator::session::{Command, Event, Moves, Session};
use lunar_nvme::Sqe;
use lunar_nvme::Status as NvmeStatus;
use lunar_nvme_host::command::{self, opcode};
use lunar_nvme_host::queue::Offer as Digests;
use lunar_reactor::Reactor;
use lunar_reactor::disk::Policy;
use lunar_reactor::sim::{Chance, Host, Peer};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The host that all nodes run on.
const CLIENTS: Host = Host(2);
/// Sectors of the disk: few, so that nodes meet.
const SECTORS: usize = 128;
/// A command without an answer by then gets none: a preempted node is not told that its tasks were aborted (SAM-5 5.6).
const COMMAND_TIME: Duration = Duration::from_secs(100);
/// The time in which the requests of an aborted command reach the other cores.
const LETTERS_TIME: Duration = Duration::from_secs(1);
/// Reads of a node that looks after its fence, until it gives up: it may have been thrown out itself.
const LOOKS_MAX: usize = 4;
/// Sense keys.
const UNIT_ATTENTION: u8 = 6;
const ABORTED_COMMAND: u8 = 11;
/// PERSISTENT RESERVE OUT and IN, with the service actions that are used.
const RESERVE_OUT: u8 = 0x5f;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const RESERVE_IN: u8 = 0x5e;
const READ_RESERVATION: u8 = 1;
/// The key of the first node.
const FIRST_KEY: u64 = 0xa0;
/// APTPL, in the parameter list.
const APTPL: u8 = 1;
/// Bytes of READ RESERVATION without a reservation.
const NO_RESERVATION: usize = 8;
/// Types that admit registrants, and their numbers in NVMe.
const TYPES: [(u8, u32); 4] = [(5, 3), (6, 4), (7, 5), (8, 6)];
/// The types of these that allow all nodes to read.
const READABLE: [u8; 2] = [5, 7];
/// Reservation Register: replace the key, whatever it is, and keep all over restarts.
const REPLACE: u32 = 0x02 | 0x08 | 0xc000_0000;
/// Reservation Acquire: acquire, preempt, preempt and abort.
const ACQUIRE: [(u8, u32); 3] = [(RESERVE, 0), (PREEMPT, 1), (PREEMPT_AND_ABORT, 2)];
/// Reservation Report, of the long structure.
const REPORT: u8 = 0x0e;
const EXTENDED: u32 = 0x01;
/// The namespace.
const NAMESPACE: u32 = 1;

/// Begins and ends of commands are counted.
type Moment = u64;

/// The state of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// When its last registration was answered; `None` while one is under way, or was and had no answer.
    registered: Option<Moment>,
    /// Since when it is out for certain.
    fenced: Option<Moment>,
    /// When its last command was over; `None` while one is under way.
    quiet: Option<Moment>,
    /// Its next command is answered with a unit attention.
    told: bool,
    /// It is registered for certain.
    sure: bool,
    /// Orders that throw it out.
    thrown: Threat,
    /// Orders of these that end its commands, too.
    aborted: Threat,
    is_nvme: bool,
}

impl Member {
    /// An order to throw it out begins.
    fn threaten(&mut self, aborts: bool) {
        self.sure = false;
        self.thrown.begin();
        if aborts {
            self.aborted.begin();
        }
    }

    /// It is over, and does nothing any more after `until`.
    fn spare(&mut self, aborts: bool, now: Instant, until: Instant) {
        self.thrown.end(now);
        if aborts {
            self.aborted.end(until);
        }
    }
}

/// Orders against a node.
#[derive(Clone, Copy, Debug, Default)]
struct Threat {
    begun: u64,
    open: u32,
    /// When the last one that is over had done what it did.
    until: Instant,
}

impl Threat {
    fn begin(&mut self) {
        (self.begun, self.open) = (self.begun + 1, self.open + 1);
    }

    fn end(&mut self, until: Instant) {
        (self.open, self.until) = (self.open - 1, self.until.max(until));
    }

    /// Whether one may have met what began at `start`, when they were `before`.
    fn met(&self, before: &Self, start: Instant) -> bool {
        before.open > 0 || before.until > start || self.begun > before.begun
    }
}

/// The state that all nodes share.
struct Cluster {
    watch: Watch,
    core: Reactor,
    members: RefCell<Vec<Member>>,
    kind: (u8, u32),
    /// Whether there is a reservation.
    ready: Cell<bool>,
    moments: Cell<Moment>,
    busy: Cell<usize>,
    /// How often the target was killed.
    deaths: Cell<u64>,
}

impl Cluster {
    fn moment(&self) -> Moment {
        self.moments.set(self.moments.get() + 1);
        self.moments.get()
    }

    fn change(&self, node: usize, change: impl FnOnce(&mut Member)) {
        change(&mut self.members.borrow_mut()[node]);
    }

    fn member(&self, node: usize) -> Member {
        self.members.borrow()[node]
    }
}

/// A command of a node, for both protocols.
#[derive(Clone, Debug)]
enum Order {
    /// Register, whatever the key was.
    Register,
    /// Reserve, or preempt the node of this key.
    Reserve(u8, u64),
    /// How is it reserved?
    Look,
    Write(usize, Rc<[u8]>),
    /// Everything.
    Read,
}

impl Order {
    /// The node that it throws out, and whether it ends its commands.
    fn victim(&self) -> Option<(usize, bool)> {
        match self {
            Self::Reserve(action, key) if *action != RESERVE => {
                Some(((key - FIRST_KEY) as usize, *action == PREEMPT_AND_ABORT))
            }
            _ => None,
        }
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Good(Vec<u8>),
    Conflict,
    /// UNIT ATTENTION.
    Attention,
    /// There is no room now.
    Busy,
    /// Another node aborted it.
    Aborted,
    /// In another way.
    Bad(String),
    /// Without an answer.
    Lost,
}

impl End {
    fn brief(&self) -> String {
        match self {
            Self::Good(data) => format!("good, {} bytes", data.len()),
            other => format!("{other:?}"),
        }
    }
}

/// Runs the scenario.
pub fn run(watch: &Watch) {
    let world = watch.world().clone();
    let mut chance = world.chance();
    let setup = setup(&mut chance);
    world.note(format_args!("{setup:?}"));
    setup.create_files(watch.world());
    world.set_faults(setup.faults.clone());
    let nodes = chance.within(2..=4) as usize;
    let cluster = Rc::new(Cluster {
        watch: watch.clone(),
        core: Reactor::with_driver(world.core(CLIENTS), Arena::new(1 << 20), Arc::default()),
        members: RefCell::new(vec![Member::default(); nodes]),
        kind: *chance.pick(&TYPES),
        ready: Cell::new(false),
        moments: Cell::new(0),
        busy: Cell::new(nodes),
        deaths: Cell::new(0),
    });
    for number in 0..nodes {
        let is_nvme = chance.coin();
        cluster.change(number, |member| member.is_nvme = is_nvme);
        let (cluster, chance) = (cluster.clone(), chance.fork());
        let node = Node { cluster: cluster.clone(), chance, number, is_nvme, link: None, deaths: 0, sequence: 0 };
        cluster.core.spawn(node.work());
    }
    let keeps: Vec<Arc<dyn MetadataStore>> = vec![Arc::new(DurableMemory::default())];
    let mut target = SimulatedTarget::start_keeping(watch.world(), &setup, &keeps);
    for _ in 0..chance.index(3) {
        let at = world.now() + Duration::from_micros(chance.within(1..=300_000));
        run_until(&cluster, &target, Some(at));
        if cluster.busy.get() > 0 && !watch.is_wrong() {
            world.note(format_args!("the target is killed"));
            cluster.deaths.set(cluster.deaths.get() + 1);
            world.crash(HOST, false);
            drop(target);
            target = SimulatedTarget::start_keeping(watch.world(), &setup, &keeps);
        }
    }
    run_until(&cluster, &target, None);
}

/// Several cores, one disk on a medium, and a network and a store that only take their time.
fn setup(chance: &mut Chance) -> Setup {
    let mut setup = Setup::any(chance);
    let kept = Kept::File(Policy { durable: chance.coin(), direct: None });
    setup.volumes = vec![Volume { kept, sectors: SECTORS, growth: 0, block_size: SECTOR as u32, is_contended: false }];
    setup.vm_sockets = 0;
    setup.faults.heal();
    setup
}

fn run_until(cluster: &Cluster, target: &SimulatedTarget, at: Option<Instant>) {
    let (watch, world) = (&cluster.watch, cluster.watch.world());
    if let Some(at) = at {
        let core = cluster.core.clone();
        cluster.core.spawn(async move { core.sleep_until(at).await });
    }
    let mut cores = target.reactors();
    cores.push(&cluster.core);
    world.run(&cores, || cluster.busy.get() == 0 || watch.is_wrong() || at.is_some_and(|at| world.now() >= at));
}

/// A node of the cluster: one command at a time.
struct Node {
    cluster: Rc<Cluster>,
    chance: Chance,
    number: usize,
    is_nvme: bool,
    link: Option<Link>,
    /// How often the target had been killed when the link was made.
    deaths: u64,
    /// Writes so far.
    sequence: u64,
}

impl Node {
    fn key(node: usize) -> u64 {
        FIRST_KEY + node as u64
    }

    /// Which node wrote a value.
    fn writer(value: u64) -> Option<usize> {
        (value != 0).then(|| (value % 8) as usize - 1)
    }

    fn report(&self, what: impl Into<String>) {
        self.cluster.watch.report(format!("node {}: {}", self.number, what.into()));
    }

    async fn work(mut self) {
        let cluster = self.cluster.clone();
        while !cluster.ready.get() && !cluster.watch.is_wrong() {
            if self.number == 0 {
                self.found().await;
            }
            self.rest(1000).await;
        }
        for _ in 0..self.chance.within(10..=50) {
            if cluster.watch.is_wrong() {
                break;
            }
            match self.chance.index(12) {
                0..6 => self.write().await,
                6..8 => self.register().await,
                8 => self.look().await,
                9 => {
                    let victim = self.other();
                    self.order(PREEMPT, victim).await;
                }
                _ => self.fence().await,
            }
            self.rest(2000).await;
        }
        cluster.busy.set(cluster.busy.get() - 1);
    }

    async fn rest(&mut self, microseconds: u64) {
        let pause = Duration::from_micros(self.chance.within(0..=microseconds));
        self.cluster.core.sleep(pause).await;
    }

    fn other(&mut self) -> usize {
        let nodes = self.cluster.members.borrow().len();
        (self.number + 1 + self.chance.index(nodes - 1)) % nodes
    }

    /// Registers and reserves, whatever gets lost.
    async fn found(&mut self) {
        self.register().await;
        self.order(RESERVE, self.number).await;
        let there = matches!(self.run(Order::Look).await, End::Good(data) if self.is_reserved(&data));
        self.cluster.ready.set(there);
    }

    fn is_reserved(&self, data: &[u8]) -> bool {
        match self.is_nvme {
            // The type of the reservation.
            true => data.get(4).is_some_and(|kind| *kind != 0),
            false => data.len() > NO_RESERVATION,
        }
    }

    async fn register(&mut self) {
        let (cluster, start) = (self.cluster.clone(), self.cluster.core.now());
        cluster.change(self.number, |me| (me.registered, me.fenced) = (None, None));
        let before = cluster.member(self.number).thrown;
        let end = self.run(Order::Register).await;
        let is_good = matches!(end, End::Good(_));
        cluster.change(self.number, |me| {
            // A refused command was not executed, and the commands without an answer have ended by now.
            if end != End::Lost {
                me.registered = Some(cluster.moment());
            }
            me.sure |= is_good && !me.thrown.met(&before, start);
        });
    }

    /// A reservation order against a node.
    async fn order(&mut self, action: u8, node: usize) -> End {
        let key = if action == RESERVE { 0 } else { Self::key(node) };
        self.run(Order::Reserve(action, key)).await
    }

    async fn look(&mut self) {
        if let End::Good(data) = self.run(Order::Look).await
            && !self.is_reserved(&data)
        {
            self.report("the reservation is gone");
        }
    }

    async fn write(&mut self) {
        let count = self.chance.within(1..=SECTORS as u64 / 2) as usize;
        let first = self.chance.index(SECTORS - count + 1);
        self.sequence += 1;
        let value = self.sequence * 8 + self.number as u64 + 1;
        let bytes = stamp::fill(self.cluster.watch.seed(), first..first + count, value);
        let before = self.cluster.member(self.number).fenced;
        let end = self.run(Order::Write(first, bytes.into())).await;
        match (end, before) {
            (End::Good(_), Some(since)) => self.report(format!("wrote {value} although it was out since {since}")),
            (End::Conflict, _) if self.chance.coin() => self.register().await,
            _ => {}
        }
    }

    /// Throws another node out, and watches that nothing of it comes any more.
    async fn fence(&mut self) {
        let (victim, cluster) = (self.other(), self.cluster.clone());
        let (start, before) = (cluster.moment(), cluster.member(victim));
        if !matches!(self.order(PREEMPT_AND_ABORT, victim).await, End::Good(_)) {
            return;
        }
        let since = cluster.moment();
        let after = cluster.member(victim);
        // It was registered before, if ever, and has not asked to be again: it is out.
        if before.registered.is_none_or(|at| at > start) || after.registered != before.registered {
            return;
        }
        cluster.change(victim, |member| {
            member.fenced = Some(since);
            member.told = before.fenced.is_none() && before.quiet.is_some() && after.quiet == before.quiet;
        });
        let Some(first) = self.of(victim).await else { return };
        self.rest(100_000).await;
        let Some(second) = self.of(victim).await else { return };
        if cluster.member(victim).fenced != Some(since) {
            return;
        }
        cluster.watch.count_fence(after.is_nvme);
        if let Some((sector, value)) = second.into_iter().find(|found| !first.contains(found)) {
            self.report(format!("{value} of node {victim} came to sector {sector}, which is out since {since}"));
        }
    }

    /// The sectors of the disk with data of a node, and their values.
    async fn of(&mut self, node: usize) -> Option<Vec<(usize, u64)>> {
        for _ in 0..LOOKS_MAX {
            if let End::Good(bytes) = self.run(Order::Read).await {
                // A sector that two wrote at once is one of theirs or the other's: stores write whole sectors.
                let values = stamp::read(self.cluster.watch.seed(), 0, &bytes);
                let values = values.map_err(|what| self.report(what)).ok()?;
                let found = values.into_iter().enumerate();
                return Some(found.filter(|(_, value)| Self::writer(*value) == Some(node)).collect());
            }
        }
        None
    }

    async fn run(&mut self, order: Order) -> End {
        let cluster = self.cluster.clone();
        cluster.moment();
        let told = std::mem::take(&mut cluster.members.borrow_mut()[self.number].told);
        cluster.change(self.number, |me| me.quiet = None);
        let what = match &order {
            Order::Write(first, bytes) => format!("write of {} bytes to sector {first}", bytes.len()),
            other => format!("{other:?}"),
        };
        let (start, me) = (cluster.core.now(), cluster.member(self.number));
        let victim = order.victim().map(|(node, aborts)| (node, aborts, cluster.member(node)));
        if let Some((node, aborts, _)) = victim {
            cluster.change(node, |victim| victim.threaten(aborts));
        }
        let end = self.attempt(order.clone()).await;
        cluster.watch.world().note(format_args!("node {}, {what}: {}", self.number, end.brief()));
        if let Some((node, aborts, _)) = victim {
            let now = cluster.core.now();
            let until = if matches!(end, End::Good(_)) { now } else { now + LETTERS_TIME };
            cluster.change(node, |victim| victim.spare(aborts, now, until));
        }
        let was_aborted = cluster.member(self.number).aborted.met(&me.aborted, start);
        let may_be = match &end {
            End::Good(_) | End::Attention | End::Busy => true,
            End::Conflict => self.may_conflict(&order, victim.map(|(node, _, before)| (node, before))),
            End::Aborted => was_aborted,
            End::Lost => was_aborted || cluster.deaths.get() != self.deaths,
            End::Bad(_) => false,
        };
        if !may_be {
            self.report(format!("{what} ended with {end:?}"));
        }
        if end == End::Lost {
            self.link = None;
        } else {
            cluster.watch.count_command();
            // NVMe hosts are told by an event and a log page.
            if told && !self.is_nvme && end != End::Attention {
                self.report(format!("was thrown out and not told: {end:?}"));
            }
        }
        cluster.change(self.number, |me| me.quiet = Some(cluster.moment()));
        end
    }

    /// Whether an order may end with a conflict: not that of a node which is registered for certain, and whose victim,
    /// if it has one, was so when the order began and was thrown out by nobody else meanwhile.
    fn may_conflict(&self, order: &Order, victim: Option<(usize, Member)>) -> bool {
        match order {
            Order::Register | Order::Look => return false,
            Order::Read if READABLE.contains(&self.cluster.kind.0) => return false,
            _ => {}
        }
        let may_be_missing = |(node, before): (usize, Member)| {
            !before.sure || self.cluster.member(node).thrown.begun != before.thrown.begun + 1
        };
        !self.cluster.member(self.number).sure || victim.is_some_and(may_be_missing)
    }

    async fn attempt(&mut self, order: Order) -> End {
        let cluster = self.cluster.clone();
        let until = cluster.core.now() + COMMAND_TIME;
        if self.link.is_none() {
            self.deaths = cluster.deaths.get();
            let opened = match self.is_nvme {
                true => open_nvme(&cluster, self.number, until).await,
                false => Connection::open(&cluster, self.number, until).await,
            };
            match opened {
                Ok(link) => self.link = Some(link),
                Err(end) => return end,
            }
        }
        let (own, kind) = (Self::key(self.number), cluster.kind);
        match &mut self.link {
            None => End::Lost,
            Some(Link::Iscsi(link)) => {
                let (cdb, moves) = scsi(order, own, kind.0);
                let command = Command { cookie: 1, lun: cdb::lun(0), cdb: &cdb, moves };
                if link.session.submit(command).is_err() {
                    return End::Bad("the window is shut although nothing is under way".to_owned());
                }
                link.until(&cluster.core, until).await
            }
            Some(Link::Nvme(controller)) => {
                let (sqe, moves) = nvme(order, own, kind.1);
                match controller.io.call(&cluster.core, sqe, moves, until).await {
                    Ok(answer) => match answer.status {
                        NvmeStatus::SUCCESS => End::Good(answer.data),
                        NvmeStatus::RESERVATION_CONFLICT => End::Conflict,
                        NvmeStatus::NOT_READY => End::Busy,
                        NvmeStatus::ABORTED => End::Aborted,
                        other => End::Bad(format!("{other:?}")),
                    },
                    Err(Lost::Gone | Lost::Time) => End::Lost,
                    Err(Lost::Error(why)) => End::Bad(why.to_string()),
                }
            }
        }
    }
}

/// How a node speaks to the target.
enum Link {
    Iscsi(Box<Connection>),
    Nvme(Box<Controller>),
}

async fn open_nvme(cluster: &Cluster, number: usize, until: Instant) -> Result<Link, End> {
    let config = HostConfig { number: number as u8, offer: Digests::default(), flow_control: false, entries: ENTRIES };
    let deaths = cluster.deaths.get();
    let opened = Controller::open(cluster.watch.world(), &cluster.core, config, until).await;
    let died = cluster.deaths.get() != deaths;
    opened.map(|controller| Link::Nvme(Box::new(controller))).map_err(|why| match is_excused(&why, died, died) {
        true => End::Lost,
        false => End::Bad(format!("no controller: {why:?}")),
    })
}

fn scsi(order: Order, own: u64, kind: u8) -> (Vec<u8>, Moves) {
    let reserve =
        |action: u8, kind: u8, list: Vec<u8>| (cdb_out(action, kind).to_vec(), Moves::Out(Data::new(list.into())));
    match order {
        Order::Register => reserve(REGISTER_AND_IGNORE, 0, list(0, own)),
        Order::Reserve(action, key) => reserve(action, kind, list(own, key)),
        Order::Look => (vec![RESERVE_IN, READ_RESERVATION, 0, 0, 0, 0, 0, 0, 64, 0], Moves::In(64)),
        Order::Write(first, bytes) => {
            let count = (bytes.len() / SECTOR) as u32;
            (cdb::write(first as u64, count, false)[..10].to_vec(), Moves::Out(Data::new(bytes)))
        }
        Order::Read => (cdb::read(0, SECTORS as u32, false)[..10].to_vec(), Moves::In((SECTORS * SECTOR) as u32)),
    }
}

fn nvme(order: Order, own: u64, kind: u32) -> (Sqe, Moves) {
    let keys = |one: u64, other: u64| {
        let list = [one.to_le_bytes(), other.to_le_bytes()].concat();
        Moves::Out(Data::new(list.into()))
    };
    match order {
        Order::Register => (command::with(opcode::RESERVATION_REGISTER, NAMESPACE, &[REPLACE]), keys(0, own)),
        Order::Reserve(action, key) => {
            let action = ACQUIRE.iter().find(|(scsi, _)| *scsi == action).map_or(0, |(_, nvme)| *nvme);
            (command::with(opcode::RESERVATION_ACQUIRE, NAMESPACE, &[action | kind << 8]), keys(own, key))
        }
        Order::Look => (command::with(REPORT, NAMESPACE, &[64 / 4 - 1, EXTENDED]), Moves::In(64)),
        Order::Write(first, bytes) => {
            let count = (bytes.len() / SECTOR) as u32;
            (command::write(NAMESPACE, first as u64, count, false), Moves::Out(Data::new(bytes)))
        }
        Order::Read => (command::read(NAMESPACE, 0, SECTORS as u32, false), Moves::In((SECTORS * SECTOR) as u32)),
    }
}

fn cdb_out(action: u8, kind: u8) -> [u8; 10] {
    [RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0]
}

fn list(key: u64, action_key: u64) -> Vec<u8> {
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, APTPL, 0, 0, 0]].concat()
}

/// A session of a node.
struct Connection {
    peer: Peer,
    session: Session,
    out: Vec<u8>,
}

impl Connection {
    async fn open(cluster: &Cluster, number: usize, until: Instant) -> Result<Link, End> {
        let offer = Offer {
            initiator: format!("iqn.2026-01.io.lunar:node{number}"),
            target: Some(TARGET.to_owned()),
            isid: [0x80, 0, 0, 0, 0, number as u8],
            chap: None,
            header_digest: DigestOffer::Never,
            data_digest: DigestOffer::Never,
            max_recv_data_segment_length: 8192,
            max_burst_length: 16384,
            first_burst_length: 512,
            initial_r2t: true,
            immediate_data: false,
            max_outstanding_r2t: 1,
        };
        let peer = cluster.watch.world().connect(PORTAL);
        let mut link = Self { peer, session: Session::new(offer), out: Vec::new() };
        match link.until(&cluster.core, until).await {
            End::Good(_) => Ok(Link::Iscsi(Box::new(link))),
            other => Err(other),
        }
    }

    /// Sends and receives until the login or the command is over.
    async fn until(&mut self, core: &Reactor, until: Instant) -> End {
        let mut data = Vec::new();
        let mut timer = pin!(core.sleep_until(until));
        loop {
            while !self.session.output().is_empty() {
                let mut slices = [IoSlice::new(&[]); 16];
                let filled = self.session.output().slices(&mut slices);
                let before = self.out.len();
                slices[..filled].iter().for_each(|slice| self.out.extend_from_slice(slice));
                self.session.sent(self.out.len() - before);
            }
            let (peer, out) = (&self.peer, &mut self.out);
            let bytes = poll_fn(|cx| {
                while !out.is_empty() {
                    match peer.poll_send(cx, out) {
                        Poll::Ready(Ok(count)) => drop(out.drain(..count)),
                        Poll::Ready(Err(_)) | Poll::Pending => break,
                    }
                }
                match peer.poll_receive(cx, 8192) {
                    Poll::Ready(received) => Poll::Ready(received.unwrap_or_default()),
                    Poll::Pending => timer.as_mut().poll(cx).map(|()| Vec::new()),
                }
            })
            .await;
            let mut end = None;
            let heard = self.session.receive(&bytes, &mut |event| match event {
                Event::LoggedIn => end = Some(End::Good(Vec::new())),
                Event::Data { bytes, .. } => data.extend_from_slice(bytes),
                Event::Done { status, sense, .. } => {
                    end = Some(match (Status(status), sense.get(2)) {
                        (Status::GOOD, _) => End::Good(std::mem::take(&mut data)),
                        (Status::RESERVATION_CONFLICT, _) => End::Conflict,
                        (Status::CHECK_CONDITION, Some(&UNIT_ATTENTION)) => End::Attention,
                        (Status::BUSY | Status::TASK_SET_FULL, _) => End::Busy,
                        (Status::TASK_ABORTED, _) | (_, Some(&ABORTED_COMMAND)) => End::Aborted,
                        (status, _) => End::Bad(format!("{status:?}, {sense:02x?}")),
                    });
                }
                Event::Rejected { .. } => end = Some(End::Bad("it was rejected".to_owned())),
                _ => {}
            });
            if let Err(why) = heard {
                return End::Bad(why.to_string());
            }
            if bytes.is_empty() {
                return End::Lost;
            }
            if let Some(end) = end {
                return end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_meets_what_runs_at_the_same_time() {
        let (early, late) = (Instant(10), Instant(20));
        let mut threat = Threat::default();
        let before = threat;
        assert!(!threat.met(&before, early));
        threat.begin();
        assert!(threat.met(&before, early), "it began meanwhile");
        let during = threat;
        threat.end(late);
        assert!(threat.met(&during, early), "it was under way before");
        let after = threat;
        assert!(threat.met(&after, early) && !threat.met(&after, late), "it lasted until then");
    }

    #[test]
    fn who_is_ordered_out_is_not_registered_for_certain() {
        let mut member = Member { sure: true, ..Member::default() };
        member.threaten(false);
        assert_eq!((member.sure, member.thrown.open, member.aborted.open), (false, 1, 0));
        member.spare(false, Instant(5), Instant(9));
        member.threaten(true);
        member.spare(true, Instant(6), Instant(9));
        assert_eq!((member.thrown.until, member.aborted.until), (Instant(6), Instant(9)));
        assert_eq!(Order::Reserve(PREEMPT_AND_ABORT, FIRST_KEY + 2).victim(), Some((2, true)));
        assert_eq!(Order::Reserve(RESERVE, 0).victim(), None);
    }
}
