//! A simulated initiator: logs in, keeps commands in progress, aborts some, loses or ends its connections, and logs in
//! again, until its commands are used up and the outcome of all of them is known.

use crate::configuration::{PORTAL, TARGET};
use crate::exchange::{Woken, exchange, take};
use crate::job::{Answer, Job, Lun, Maker};
use crate::model::Value;
use crate::order::Order;
use crate::shared::Shared;
use lunar_core::time::Instant;
use lunar_iscsi::wire::{AsyncEvent, Function, FunctionResponse, LoginStatus};
use lunar_iscsi_initiator::cdb::{self, Status};
use lunar_iscsi_initiator::config::{DigestOffer, Offer};
use lunar_iscsi_initiator::session::{Command, Event, Session};
use lunar_iscsi_initiator::{Error, cdb::Key};
use lunar_reactor::sim::{Chance, Peer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Longer than any command takes that is not lost, with all stalls and slow operations.
const COMMAND_TIME: Duration = Duration::from_secs(180);
/// Longer than any task management function takes that is not lost.
const FUNCTION_TIME: Duration = Duration::from_secs(180);
/// A connection that was replaced is closed by then.
const REPLACED_TIME: Duration = Duration::from_secs(120);
/// Longer than the target waits for data, for an answer to a ping, or for a client that receives nothing.
const TARGET_PATIENCE: Duration = Duration::from_secs(70);
/// Longer than a login takes; the target gives it 15 seconds.
const LOGIN_TIME: Duration = Duration::from_secs(30);
/// Blocks of one of the last reads.
const READ_BLOCKS: usize = 64;
/// Logins that may fail one after the other; more are a violation.
const LOGINS_MAX: u32 = 500;

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// After a logout, or closed by the initiator.
    Own,
    /// By the target, or the network.
    Other,
    /// Kept, but replaced by the next.
    Replaced,
}

/// A command or a task management function in progress.
enum Pending {
    Command { lun: usize, job: Job, since: Instant, resets: Option<u64> },
    Function { function: Function, lun: usize, of: Option<u32>, since: Instant },
}

/// An event of the session, with its own data.
enum Said {
    LoggedIn,
    Data(u32, u32, Vec<u8>),
    Done(u32, Answer),
    Managed(u32, FunctionResponse),
    Rejected(Option<u32>),
    LogOut,
    LoggedOut,
}

/// One initiator port.
pub struct Initiator {
    shared: Rc<Shared>,
    chance: Chance,
    offer: Offer,
    depth: usize,
    /// Commands that it will still start.
    left: u64,
    /// Commands of connections that were lost: their tasks end at the latest with the next login.
    lost: Vec<(usize, Job)>,
    /// Functions of such connections.
    lost_functions: Vec<(Function, usize)>,
    seen: Option<(u16, usize, Vec<Value>)>,
    failures: u32,
    /// Reads to be made: unit and blocks. With them it does nothing else.
    reads: VecDeque<(usize, Range<usize>)>,
    /// Whether it neither disturbs nor ends its connections.
    is_calm: bool,
}

impl Initiator {
    /// An initiator with this number.
    #[must_use]
    pub fn any(shared: &Rc<Shared>, mut chance: Chance, number: u8) -> Self {
        let digest =
            |chance: &mut Chance| *chance.pick(&[DigestOffer::Never, DigestOffer::IfWanted, DigestOffer::Prefer]);
        let first_burst_length = 512 << chance.within(0..=9);
        let offer = Offer {
            chap: None,
            initiator: format!("iqn.2026-01.io.lunar:initiator{}", number / 2),
            target: Some(TARGET.to_owned()),
            isid: [0x80, 0, 0, 0, 0, number],
            header_digest: digest(&mut chance),
            data_digest: digest(&mut chance),
            max_recv_data_segment_length: 512 << chance.within(0..=9),
            max_burst_length: first_burst_length << chance.within(0..=4),
            first_burst_length,
            initial_r2t: chance.odds(300_000),
            immediate_data: chance.odds(700_000),
            max_outstanding_r2t: 1 + chance.within(0..=7) as u32,
        };
        Self {
            shared: shared.clone(),
            depth: 1 << chance.within(0..=5),
            left: chance.within(10..=120),
            offer,
            chance,
            lost: Vec::new(),
            lost_functions: Vec::new(),
            seen: None,
            failures: 0,
            reads: VecDeque::new(),
            is_calm: false,
        }
    }

    /// The initiator that logs in last and reads everything.
    #[must_use]
    pub fn last(shared: &Rc<Shared>, chance: Chance) -> Self {
        let everything = shared.luns.iter().enumerate().flat_map(|(number, lun)| {
            let blocks = lun.volume.sectors / lun.volume.block_sectors();
            let starts = (0..blocks).step_by(READ_BLOCKS);
            starts.map(move |start| (number, start..(start + READ_BLOCKS).min(blocks)))
        });
        let reads: VecDeque<_> = everything.collect();
        let calm = Self::any(shared, chance, u8::MAX);
        Self { left: reads.len() as u64, reads, is_calm: true, ..calm }
    }

    /// Works until its commands are used up.
    pub async fn work(mut self) {
        while (self.left > 0 || !self.lost.is_empty() || !self.lost_functions.is_empty())
            && !self.shared.watch.is_wrong()
        {
            Connection::new(&mut self).live().await;
            let pause = Duration::from_micros(self.chance.within(0..=50_000));
            self.shared.core.sleep(pause).await;
        }
        self.shared.busy.set(self.shared.busy.get() - 1);
    }

    fn report(&self, what: impl Into<String>) {
        let what = what.into();
        self.shared.watch.report(format!("initiator {:02x}: {what}", self.offer.isid[5]));
    }
}

/// One connection of an initiator.
struct Connection<'a> {
    port: &'a mut Initiator,
    peer: Peer,
    session: Session,
    order: Order,
    out: Vec<u8>,
    pending: BTreeMap<u32, Pending>,
    /// Commands that were aborted: no answer may come any more.
    aborted: BTreeSet<u32>,
    next_cookie: u32,
    /// CmdSN of the next command: starts with 1, as the session's does.
    sent: u32,
    logged_in: bool,
    /// Set when the logout was sent.
    leaving: bool,
    begun: Instant,
    /// It reads nothing until then.
    reads_from: Instant,
    /// It sends nothing until then.
    sends_from: Instant,
    /// Whether the connection was stalled or silent at all: the target waits less time for a login.
    disturbed: bool,
    /// Whether the initiator was silent for so long that the target may end the connection.
    strange: bool,
    deaths: u64,
}

impl<'a> Connection<'a> {
    fn new(port: &'a mut Initiator) -> Self {
        let shared = port.shared.clone();
        let peer = shared.watch.world().connect(PORTAL);
        let session = Session::new(port.offer.clone());
        let now = shared.core.now();
        Self {
            port,
            peer,
            session,
            order: Order::default(),
            out: Vec::new(),
            pending: BTreeMap::new(),
            aborted: BTreeSet::new(),
            next_cookie: 0,
            sent: 1,
            logged_in: false,
            leaving: false,
            begun: now,
            reads_from: now,
            sends_from: now,
            disturbed: false,
            strange: false,
            deaths: shared.deaths.get(),
        }
    }

    fn now(&self) -> Instant {
        self.port.shared.core.now()
    }

    fn report(&self, what: impl Into<String>) {
        self.port.report(format!("link {}: {}", self.peer.link(), what.into()));
    }

    /// From connect to close.
    async fn live(mut self) {
        let ending = loop {
            if self.port.shared.watch.is_wrong() {
                break Ending::Own;
            }
            if let Some(ending) = self.act() {
                break ending;
            }
            let more = self.wants_more();
            let pause = if more { self.port.chance.within(0..=3_000) } else { 1_000_000 };
            let ended = match self.wait(self.now() + Duration::from_micros(pause)).await {
                Woken::Bytes(bytes) => self.take_in(&bytes),
                Woken::Ended => Some(self.judge_end()),
                Woken::Time => self.look_at_time(),
            };
            if let Some(ending) = ended {
                break ending;
            }
        };
        self.end(ending);
    }

    /// Whether it would start another command now.
    fn wants_more(&self) -> bool {
        self.logged_in
            && !self.leaving
            && self.port.left > 0
            && self.pending.len() < self.port.depth
            && self.session.room() > 0
    }

    /// Does something: starts commands, aborts some, or ends the connection in one way or another.
    fn act(&mut self) -> Option<Ending> {
        if !self.port.is_calm && self.port.chance.odds(2_000) {
            return self.disturb();
        }
        if !self.logged_in || self.leaving {
            return None;
        }
        let idle = self.pending.is_empty() && self.port.left == 0;
        if idle {
            if self.port.chance.odds(200_000) {
                return Some(Ending::Own);
            }
            self.log_out();
            return None;
        }
        while self.wants_more() && !self.port.chance.odds(300_000) {
            self.start();
        }
        if !self.port.is_calm && !self.pending.is_empty() && self.port.chance.odds(10_000) {
            self.manage();
        }
        None
    }

    fn log_out(&mut self) {
        if self.session.log_out().is_ok() {
            self.sent += 1;
            self.leaving = true;
        }
    }

    /// An event that happens to connections.
    fn disturb(&mut self) -> Option<Ending> {
        let world = self.port.shared.watch.world();
        let (what, chance) = (self.port.chance.index(6), &mut self.port.chance);
        // Sometimes longer than the target waits.
        let patient = what < 4 || !chance.odds(100_000);
        let until = self.port.shared.core.now() + Duration::from_micros(chance.within(1..=3_000_000));
        let until = if patient { until } else { until + TARGET_PATIENCE };
        match what {
            0 => {
                self.peer.reset();
                return Some(Ending::Own);
            }
            1 => return Some(Ending::Own),
            2 => return Some(Ending::Replaced),
            3 => self.peer.stall(until),
            4 => self.reads_from = until,
            _ => self.sends_from = until,
        }
        self.disturbed = true;
        self.strange |= !patient;
        let what = ["stalls", "reads nothing", "sends nothing"][what - 3];
        world.note(format_args!("link {}: {what} until {until:?}", self.peer.link()));
        None
    }

    fn start(&mut self) {
        let shared = self.port.shared.clone();
        let port = &mut *self.port;
        let read = port.reads.pop_front();
        let number = read.as_ref().map_or_else(|| port.chance.index(shared.luns.len()), |(number, _)| *number);
        let lun = &shared.luns[number];
        let mut maker = Maker { watch: &shared.watch, lun, chance: &mut port.chance, seen: &mut port.seen };
        let made = match &read {
            Some((_, blocks)) => maker.read_blocks(blocks, None),
            None => maker.any(),
        };
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let command = Command { cookie, lun: cdb::lun(lun.number), cdb: &made.cdb, moves: made.moves };
        let (since, resets) = (shared.core.now(), lun.resets_so_far());
        if self.session.submit(command).is_err() {
            self.report("a command did not start although there was room");
        }
        self.sent += 1;
        self.port.left -= 1;
        let world = shared.watch.world();
        world.note(format_args!(
            "link {} command {cookie} lun {number}: {:02x?} {:?}",
            self.peer.link(),
            made.cdb,
            made.job
        ));
        self.pending.insert(cookie, Pending::Command { lun: number, job: made.job, since, resets });
    }

    /// A task management function.
    fn manage(&mut self) {
        let commands = self.pending.iter().filter(|(_, pending)| matches!(pending, Pending::Command { .. }));
        let cookies: Vec<u32> = commands.map(|(cookie, _)| *cookie).collect();
        if cookies.is_empty() {
            return;
        }
        let of = *self.port.chance.pick(&cookies);
        let Some(Pending::Command { lun, .. }) = self.pending.get(&of) else { return };
        let lun = *lun;
        let function = match self.port.chance.index(20) {
            0..12 => Function::ABORT_TASK,
            12..14 => Function::ABORT_TASK_SET,
            14..16 => Function::CLEAR_TASK_SET,
            16..18 => Function::LOGICAL_UNIT_RESET,
            18 => Function::TARGET_WARM_RESET,
            _ => Function::TARGET_COLD_RESET,
        };
        self.ask(function, lun, (function == Function::ABORT_TASK).then_some(of));
    }

    fn ask(&mut self, function: Function, lun: usize, of: Option<u32>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.port
            .shared
            .watch
            .world()
            .note(format_args!("link {} command {cookie} lun {lun}: {function:?} of {of:?}", self.peer.link()));
        self.port.shared.reset_luns(function, lun).for_each(Lun::begin_reset);
        if function == Function::TARGET_COLD_RESET {
            self.port.shared.cold_until.set(self.now() + FUNCTION_TIME);
        }
        if self.session.manage_task(cookie, function, cdb::lun(lun as u16), of).is_err() {
            return self.report("a task management function did not start");
        }
        self.pending.insert(cookie, Pending::Function { function, lun, of, since: self.now() });
    }

    /// Sends and receives until bytes were received or the time has come.
    async fn wait(&mut self, until: Instant) -> Woken {
        while !self.session.output().is_empty() {
            let count = take(self.session.output(), &mut self.out);
            self.session.sent(count);
        }
        let now = self.now();
        let (reads, sends) = (now >= self.reads_from, now >= self.sends_from);
        let waits = [(reads, self.reads_from), (sends, self.sends_from)];
        let until = waits.into_iter().filter(|(may, _)| !may).map(|(_, at)| at).fold(until, Instant::min);
        let max = 1 + self.port.chance.index(8192);
        let core = self.port.shared.core.clone();
        exchange(&core, &self.peer, &mut self.out, until, (reads, sends), max).await
    }

    fn take_in(&mut self, bytes: &[u8]) -> Option<Ending> {
        let mut said = Vec::new();
        let result = self.session.receive(bytes, &mut |event| said.extend(owned(&event)));
        for said in said {
            if let Some(ending) = self.hear(said) {
                return Some(ending);
            }
        }
        match result {
            Ok(()) => {}
            // A target without memory admits the initiator later.
            Err(Error::Login(LoginStatus::OUT_OF_RESOURCES, _)) => return Some(Ending::Own),
            // A target that stops refuses all logins.
            Err(Error::Login(LoginStatus::SERVICE_UNAVAILABLE, _)) if self.port.shared.has_died_since(self.deaths) => {
                return Some(Ending::Own);
            }
            Err(why) => {
                self.report(why.to_string());
                return Some(Ending::Own);
            }
        }
        if let Err(what) = self.order.receive(bytes, self.sent, self.session.agreed()) {
            self.report(what);
        }
        None
    }

    fn hear(&mut self, said: Said) -> Option<Ending> {
        match said {
            Said::LoggedIn => {
                self.logged_in = true;
                self.port.failures = 0;
                let shared = self.port.shared.clone();
                shared.watch.world().note(format_args!("link {}: logged in", self.peer.link()));
                // The old session's tasks have ended before the new one began.
                self.port.lost.drain(..).for_each(|(lun, job)| job.unanswered(&shared.luns[lun]));
                for (function, lun) in self.port.lost_functions.drain(..) {
                    shared.reset_luns(function, lun).for_each(Lun::end_reset);
                }
            }
            Said::Data(cookie, offset, data) => match self.pending.get_mut(&cookie) {
                Some(Pending::Command { job: Job::Read { bytes, .. }, .. }) if bytes.len() == offset as usize => {
                    bytes.extend(data);
                }
                Some(Pending::Command { job: Job::Harmless | Job::Illegal, .. }) => {}
                _ => self.report(format!("Data-In at {offset} for command {cookie}, which waits for none")),
            },
            Said::Done(cookie, answer) => self.done(cookie, &answer),
            Said::Managed(cookie, response) => self.managed(cookie, response),
            Said::Rejected(cookie) => self.report(format!("command {cookie:?} was rejected")),
            Said::LogOut => {
                if !self.leaving && self.port.chance.coin() {
                    self.log_out();
                }
            }
            Said::LoggedOut => return Some(Ending::Own),
        }
        None
    }

    fn done(&mut self, cookie: u32, answer: &Answer) {
        let shared = self.port.shared.clone();
        shared.watch.world().note(format_args!("link {} command {cookie}: {:?}", self.peer.link(), answer.status));
        let Some(Pending::Command { lun, job, resets, .. }) = self.pending.remove(&cookie) else {
            let when = if self.aborted.contains(&cookie) { "after it was aborted" } else { "twice" };
            return self.report(format!("command {cookie} was answered {when}"));
        };
        shared.watch.count_command();
        let unit = &shared.luns[lun];
        // A reset by another initiator, or missing data, may end a command with a status that says so.
        let was_reset = unit.was_reset_since(resets);
        let is_told = answer.status == Status::TASK_ABORTED
            || cdb::Sense::parse(&answer.sense).is_some_and(|sense| sense.key == Key::ABORTED_COMMAND);
        if (was_reset || self.strange) && is_told {
            return job.unanswered(unit);
        }
        let first = match &job {
            Job::Read { first, .. } => *first,
            _ => 0,
        };
        match job.answered(&shared.watch, unit, &shared.faults.borrow(), answer) {
            Ok(values) if self.port.is_calm && values.is_empty() => self.read_again(lun, first),
            Ok(values) if !values.is_empty() => self.port.seen = Some((unit.number, first, values)),
            Ok(_) => {}
            Err(what) => self.report(format!("command {cookie}, lun {lun}: {what}")),
        }
    }

    /// The last reads are repeated when a unit attention came in between.
    fn read_again(&mut self, lun: usize, first_sector: usize) {
        let volume = &self.port.shared.luns[lun].volume;
        let start = first_sector / volume.block_sectors();
        let end = (start + READ_BLOCKS).min(volume.sectors / volume.block_sectors());
        self.port.reads.push_back((lun, start..end));
        self.port.left += 1;
    }

    fn managed(&mut self, cookie: u32, response: FunctionResponse) {
        let Some(Pending::Function { function, lun, of, .. }) = self.pending.remove(&cookie) else {
            return self.report(format!("function {cookie} was answered twice"));
        };
        let shared = self.port.shared.clone();
        shared.watch.world().note(format_args!("link {} function {cookie}: {response:?}", self.peer.link()));
        shared.reset_luns(function, lun).for_each(Lun::end_reset);
        match (response, of) {
            (FunctionResponse::COMPLETE, Some(of)) => self.over(of),
            (FunctionResponse::NO_TASK, Some(of)) => {
                if let Some(Pending::Command { lun, resets, .. }) = self.pending.get(&of) {
                    if !shared.luns[*lun].was_reset_since(*resets) && !self.is_being_aborted(of, *lun) {
                        self.report(format!("command {of} is not known any more and was not answered"));
                    }
                    self.over(of);
                }
            }
            (FunctionResponse::COMPLETE, None) => {
                let all = matches!(function, Function::TARGET_WARM_RESET | Function::TARGET_COLD_RESET);
                let is_meant =
                    |pending: &Pending| matches!(pending, Pending::Command { lun: at, .. } if all || *at == lun);
                // A command that was started after the function may be aborted or not.
                let before = self.pending.range(..cookie);
                let meant: Vec<u32> =
                    before.filter(|(_, pending)| is_meant(pending)).map(|(cookie, _)| *cookie).collect();
                meant.into_iter().for_each(|cookie| self.over(cookie));
            }
            _ => self.report(format!("{function:?} ended with {response:?}")),
        }
    }

    /// Whether a function that is not over may have aborted a command of this unit.
    fn is_being_aborted(&self, cookie: u32, lun: usize) -> bool {
        self.pending.range(cookie..).any(|(_, pending)| match pending {
            // A second ABORT TASK may be answered before the first one, which waits for the end of the task.
            Pending::Function { of: Some(of), .. } => *of == cookie,
            Pending::Function { function, lun: at, .. } => *function == Function::ABORT_TASK_SET && *at == lun,
            Pending::Command { .. } => false,
        })
    }

    /// A command is over and will not be answered.
    fn over(&mut self, cookie: u32) {
        if let Some(Pending::Command { lun, job, .. }) = self.pending.remove(&cookie) {
            self.aborted.insert(cookie);
            job.unanswered(&self.port.shared.luns[lun]);
        }
    }

    fn look_at_time(&mut self) -> Option<Ending> {
        let now = self.now();
        if !self.logged_in {
            if now.since(self.begun) <= LOGIN_TIME {
                return None;
            }
            // A connection that the network resets fails at once.
            if !self.disturbed && !self.port.shared.has_died_since(self.deaths) {
                self.report("the login is not answered");
            }
            return Some(Ending::Other);
        }
        let mut late = Vec::new();
        for (cookie, pending) in &self.pending {
            match pending {
                Pending::Function { since, function, .. } if now.since(*since) > FUNCTION_TIME => {
                    self.report(format!("{function:?} ({cookie}) is not answered"));
                    return Some(Ending::Own);
                }
                Pending::Command { since, lun, resets, .. } if now.since(*since) > COMMAND_TIME => {
                    late.push((*cookie, *lun, *resets));
                }
                _ => {}
            }
        }
        for (cookie, lun, resets) in late {
            if !self.port.shared.luns[lun].was_reset_since(resets) {
                self.report(format!("command {cookie} is not answered"));
            }
            let is_asked = |pending: &Pending| matches!(pending, Pending::Function { of, .. } if *of == Some(cookie));
            if !self.pending.values().any(is_asked) {
                self.ask(Function::ABORT_TASK, lun, Some(cookie));
            }
        }
        None
    }

    /// The target or the network ended the connection: reports it unless it is allowed.
    fn judge_end(&self) -> Ending {
        let shared = &self.port.shared;
        let excused = self.leaving
            || self.strange
            || self.disturbed && !self.logged_in
            || shared.breaks()
            || shared.has_died_since(self.deaths)
            || self.now() < shared.cold_until.get();
        if !excused {
            self.report("the target closed the connection");
        }
        Ending::Other
    }

    fn end(self, ending: Ending) {
        let Self { port, peer, pending, logged_in, .. } = self;
        let shared = port.shared.clone();
        shared.watch.world().note(format_args!("link {}: ends, {ending:?}", peer.link()));
        for pending in pending.into_values() {
            match pending {
                Pending::Command { lun, job, .. } => port.lost.push((lun, job)),
                Pending::Function { function, lun, .. } => port.lost_functions.push((function, lun)),
            }
        }
        if !logged_in {
            port.failures += 1;
            if port.failures > LOGINS_MAX {
                port.report("no login succeeds any more");
            }
        }
        if ending == Ending::Replaced && logged_in {
            let core = shared.core.clone();
            core.spawn(until_replaced(shared, peer));
        }
    }
}

/// A connection that the next login replaces: the target ends it.
async fn until_replaced(shared: Rc<Shared>, peer: Peer) {
    let mut timer = pin!(shared.core.sleep(REPLACED_TIME));
    let in_time = poll_fn(|cx| {
        loop {
            match peer.poll_receive(cx, 4096) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(true),
                Poll::Pending => return timer.as_mut().poll(cx).map(|()| false),
            }
        }
    })
    .await;
    if !in_time {
        shared.watch.report(format!("link {}: it was replaced and is still open", peer.link()));
    }
}

fn owned(event: &Event<'_>) -> Option<Said> {
    Some(match event {
        Event::LoggedIn => Said::LoggedIn,
        Event::Data { cookie, offset, bytes } => Said::Data(*cookie, *offset, bytes.to_vec()),
        Event::Done { cookie, response, status, residual, sense } => {
            let status = Status(*status);
            Said::Done(*cookie, Answer { response: *response, status, residual: *residual, sense: sense.to_vec() })
        }
        Event::FunctionDone { cookie, response } => Said::Managed(*cookie, *response),
        Event::Rejected { cookie, .. } => Said::Rejected(*cookie),
        Event::Async(AsyncEvent::REQUEST_LOGOUT) => Said::LogOut,
        Event::LoggedOut => Said::LoggedOut,
        Event::Async(_) | Event::Targets(_) => return None,
    })
}
