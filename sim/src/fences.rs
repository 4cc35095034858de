//! The scenario of fences: nodes of a cluster write to one disk, some by iSCSI and some by NVMe, and throw each other
//! out by reservations while commands are under way and the target is killed. Nothing of a node lands after the answer
//! to the order that threw it out and ended its commands; who came by iSCSI is told; it stays out over a restart; and
//! the reservation is always there.

use crate::machine::{HOST, Kept, Machine, PORTAL, Setup, TARGET, Volume};
use crate::stamp::{self, SECTOR};
use crate::watch::Watch;
use crate::wire::{Controller, Who};
use lunar_core::keep::Keep;
use lunar_core::mem::Arena;
use lunar_core::outgoing::Data;
use lunar_core::time::Instant;
use lunar_host::command::{self, opcode};
use lunar_host::queue::Offer as Digests;
use lunar_initiator::cdb::{self, Status};
use lunar_initiator::config::{DigestOffer, Offer};
use lunar_initiator::session::{Command, Event, Moves, Session};
use lunar_nvme::Sqe;
use lunar_nvme::Status as NvmeStatus;
use lunar_reactor::Reactor;
use lunar_reactor::disk::Policy;
use lunar_reactor::sim::{Chance, Host, Peer};
use lunar_scsi::fuzzing::Lasting;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The machine of all nodes.
const CLIENTS: Host = Host(2);
/// Sectors of the disk: few, so that nodes meet.
const SECTORS: usize = 128;
/// A command that has no answer by then has none: whoever was thrown out is not told of its tasks (SAM-5 5.6).
const COMMAND_TIME: Duration = Duration::from_secs(100);
/// Reads of a node that looks after its fence, until it gives up: it may have been thrown out itself.
const LOOKS_MAX: usize = 4;
/// A sense key.
const UNIT_ATTENTION: u8 = 6;
/// PERSISTENT RESERVE OUT and IN, with the service actions that are used.
const RESERVE_OUT: u8 = 0x5f;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const RESERVE_IN: u8 = 0x5e;
const READ_RESERVATION: u8 = 1;
/// APTPL, in the parameter list.
const OUTLIVES: u8 = 1;
/// Bytes of READ RESERVATION without a reservation.
const NO_RESERVATION: usize = 8;
/// Types that admit registrants, and their numbers in NVMe.
const TYPES: [(u8, u32); 4] = [(5, 3), (6, 4), (7, 5), (8, 6)];
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

/// What is known of a node.
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
}

/// What all nodes share.
struct Cluster {
    watch: Watch,
    core: Reactor,
    members: RefCell<Vec<Member>>,
    kind: (u8, u32),
    /// Whether there is a reservation.
    ready: Cell<bool>,
    moments: Cell<Moment>,
    busy: Cell<usize>,
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

/// A command of a node, whatever it speaks.
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

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Good(Vec<u8>),
    Conflict,
    /// UNIT ATTENTION.
    Attention,
    /// Another status.
    Bad,
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
    setup.create_files(watch);
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
    });
    for number in 0..nodes {
        let is_nvme = chance.coin();
        let node = Node { cluster: cluster.clone(), chance: chance.fork(), number, is_nvme, link: None, sequence: 0 };
        cluster.core.spawn(node.work());
    }
    let keeps: Vec<Arc<dyn Keep>> = vec![Arc::new(Lasting::default())];
    let mut machine = Machine::start_keeping(watch, &setup, &keeps);
    for _ in 0..chance.index(3) {
        let at = world.now() + Duration::from_micros(chance.within(1..=300_000));
        run_until(&cluster, &machine, Some(at));
        if cluster.busy.get() > 0 && !watch.is_wrong() {
            world.note(format_args!("the target is killed"));
            world.crash(HOST, false);
            drop(machine);
            machine = Machine::start_keeping(watch, &setup, &keeps);
        }
    }
    run_until(&cluster, &machine, None);
}

/// Several cores, one disk on a medium, and a network and a store that only take their time.
fn setup(chance: &mut Chance) -> Setup {
    let mut setup = Setup::any(chance);
    let kept = Kept::File(Policy { durable: chance.coin(), direct: None });
    setup.volumes = vec![Volume { kept, sectors: SECTORS, block_size: SECTOR as u32 }];
    setup.faults.heal();
    setup
}

fn run_until(cluster: &Cluster, machine: &Machine, at: Option<Instant>) {
    let (watch, world) = (&cluster.watch, cluster.watch.world());
    if let Some(at) = at {
        let core = cluster.core.clone();
        cluster.core.spawn(async move { core.sleep_until(at).await });
    }
    let mut cores = machine.reactors();
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
    /// Writes so far.
    sequence: u64,
}

impl Node {
    fn key(node: usize) -> u64 {
        0xa0 + node as u64
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
                6..8 => drop(self.register().await),
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

    async fn register(&mut self) -> bool {
        let cluster = self.cluster.clone();
        cluster.change(self.number, |me| (me.registered, me.fenced) = (None, None));
        let end = self.run(Order::Register).await;
        // What was refused was not done; and what had no answer before has ended by now.
        if end != End::Lost {
            cluster.change(self.number, |me| me.registered = Some(cluster.moment()));
        }
        matches!(end, End::Good(_))
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
            (End::Conflict, _) if self.chance.coin() => drop(self.register().await),
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
        let is_out = cluster.member(victim).fenced == Some(since);
        if let Some((sector, value)) = second.into_iter().find(|found| is_out && !first.contains(found)) {
            self.report(format!("{value} of node {victim} came to sector {sector}, which is out since {since}"));
        }
    }

    /// What the disk has of a node: sectors and values.
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
        let end = self.attempt(order).await;
        cluster.watch.world().note(format_args!("node {}, {what}: {}", self.number, end.brief()));
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

    async fn attempt(&mut self, order: Order) -> End {
        let cluster = self.cluster.clone();
        let until = cluster.core.now() + COMMAND_TIME;
        if self.link.is_none() {
            self.link = match self.is_nvme {
                true => open_nvme(&cluster, self.number, until).await.map(|open| Link::Nvme(Box::new(open))),
                false => Connection::open(&cluster, self.number, until).await.map(|open| Link::Iscsi(Box::new(open))),
            };
        }
        let (own, kind) = (Self::key(self.number), cluster.kind);
        match &mut self.link {
            None => End::Lost,
            Some(Link::Iscsi(link)) => {
                let (cdb, moves) = scsi(order, own, kind.0);
                let command = Command { cookie: 1, lun: cdb::lun(0), cdb: &cdb, moves };
                if link.session.submit(command).is_err() {
                    return End::Lost;
                }
                link.until(&cluster.core, until).await
            }
            Some(Link::Nvme(controller)) => {
                let (sqe, moves) = nvme(order, own, kind.1);
                match controller.io.call(&cluster.core, sqe, moves, until).await {
                    Ok(answer) => match answer.status {
                        NvmeStatus::SUCCESS => End::Good(answer.data),
                        NvmeStatus::RESERVATION_CONFLICT => End::Conflict,
                        _ => End::Bad,
                    },
                    Err(_) => End::Lost,
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

async fn open_nvme(cluster: &Cluster, number: usize, until: Instant) -> Option<Controller> {
    let who = Who { number: number as u8, offer: Digests::default(), flow_control: false };
    let opened = Controller::open(cluster.watch.world(), &cluster.core, who, until).await;
    opened.ok()
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
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, OUTLIVES, 0, 0, 0]].concat()
}

/// A session of a node.
struct Connection {
    peer: Peer,
    session: Session,
    out: Vec<u8>,
}

impl Connection {
    async fn open(cluster: &Cluster, number: usize, until: Instant) -> Option<Self> {
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
        (link.until(&cluster.core, until).await != End::Lost).then_some(link)
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
                        _ => End::Bad,
                    });
                }
                _ => {}
            });
            if bytes.is_empty() || heard.is_err() {
                return End::Lost;
            }
            if let Some(end) = end {
                return end;
            }
        }
    }
}
