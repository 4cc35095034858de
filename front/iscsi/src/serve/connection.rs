//! One connection: a task that receives, a task that sends, and what its session asks for.

use super::Front;
use super::job::Job;
use crate::chap::Claim;
use crate::guard::{Finding, Knock};
use crate::login::Established;
use crate::session::{self, Action, Close, Fault as Guilt, Session, TaskKey, TaskManagement, Want};
use crate::wire::{Function, FunctionResponse, LoginStatus};
use lunar_core::io::{Completion, Fault, Outcome};
use lunar_core::mem::{Buf, PAGE, SgMut};
use lunar_core::port::NexusName;
use lunar_core::step::Tail;
use lunar_core::time::Instant;
use lunar_reactor::op::Handle;
use lunar_scsi::{Cdb, Command, Lun, Nexus, Status, TaskAttribute, TaskFunction, TaskResponse};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What is received at once when little comes: commands are some fifty bytes. It is what an idle session holds.
const CHUNK_MIN: usize = PAGE;
/// What is received at once when much comes.
const CHUNK_MAX: usize = 256 << 10;
/// The rest of a chunk is used again down to this many bytes: room for a few headers.
const CHUNK_REST: usize = 1024;
/// Replies of one turn leave together. But if the core had waited for its commands, their peer most likely waits for it
/// now: then so many bytes, or half of the replies, leave before the turn is over, and both sides work at the same
/// time.
const SEND_EARLY: usize = 32 << 10;
/// Fewer replies are not worth a send of their own.
const SEND_EARLY_REPLIES: usize = 8;
/// A peer that takes nothing of what is sent to it for so long is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last answer gets to reach the peer before a connection is closed over unread data.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that a peer may still send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// One connection.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) front: Rc<Front>,
    /// The portal group that it came in by.
    group: u16,
    socket: Handle,
    local: SocketAddr,
    peer: SocketAddr,
    pub(super) session: RefCell<Session>,
    /// What is known of a login that is not over.
    knock: RefCell<Option<Knock>>,
    nexus: RefCell<Option<Rc<Nexus>>>,
    tsih: Cell<u16>,
    /// Nothing more is received; what is queued is sent.
    ended: Cell<bool>,
    /// Nothing more is queued: the sender ends when the queue is empty.
    last: Cell<bool>,
    /// The sender has ended.
    sent: Cell<bool>,
    /// A send failed: nothing more is sent.
    broken: Cell<bool>,
    /// Bytes under way, since when, and where their end is told.
    pub(super) sending: Cell<usize>,
    sending_since: Cell<Instant>,
    under_way: RefCell<Completion>,
    /// What was queued since the last send, about, and how much of that is half of what the peer waits for.
    kicks: Cell<usize>,
    share: Cell<usize>,
    /// Whether something came since it was last looked at.
    active: Cell<bool>,
    chunk_len: Cell<usize>,
    sender: Cell<Option<Waker>>,
    receiver: Cell<Option<Waker>>,
    /// Commands that wait for room towards the peer.
    pub(super) crowd: RefCell<Vec<Waker>>,
    /// Commands that wait for data from the peer.
    pub(super) pulls: RefCell<HashMap<TaskKey, Waker>>,
}

impl Connection {
    pub(super) fn new(
        front: Rc<Front>,
        id: u64,
        group: u16,
        socket: Handle,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Rc<Self> {
        let (reactor, config) = (&front.reactor, front.session_config.clone());
        let now = reactor.now();
        let session = Session::new(config, reactor.arena().clone(), reactor.stats().clone(), now);
        Rc::new(Self {
            id,
            group,
            socket,
            local,
            peer,
            session: RefCell::new(session),
            knock: RefCell::default(),
            nexus: RefCell::default(),
            tsih: Cell::new(0),
            ended: Cell::new(false),
            last: Cell::new(false),
            sent: Cell::new(false),
            broken: Cell::new(false),
            sending: Cell::new(0),
            sending_since: Cell::new(now),
            under_way: RefCell::default(),
            kicks: Cell::new(0),
            share: Cell::new(SEND_EARLY_REPLIES),
            active: Cell::new(true),
            chunk_len: Cell::new(CHUNK_MIN),
            sender: Cell::default(),
            receiver: Cell::default(),
            crowd: RefCell::default(),
            pulls: RefCell::default(),
            front,
        })
    }

    pub(super) fn start(self: Rc<Self>) {
        let reactor = self.front.reactor.clone();
        let sender = self.clone();
        reactor.spawn(async move { sender.send().await });
        reactor.spawn(async move {
            self.receive().await;
            self.leave().await;
        });
    }

    /// Ends the connection: what is received from now on is not looked at.
    pub(super) fn end(&self) {
        if !self.ended.replace(true) {
            self.front.reactor.driver().cancel(&self.socket);
            self.go_on();
        }
        self.kick();
    }

    /// Whether nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        let session = self.session.borrow();
        session.tasks() == 0 && session.queued_bytes() == 0 && self.sending.get() == 0
    }

    pub(super) fn ask_to_log_out(&self, time: Duration, now: Instant) {
        self.session.borrow_mut().request_logout(time, now);
        self.kick();
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.session.borrow().deadline()
    }

    /// Looks after its time; tells whether it was active since the last look.
    pub(super) fn look(self: &Rc<Self>, now: Instant) -> bool {
        let mut actions = Vec::new();
        self.session.borrow_mut().tick(now, &mut actions);
        for action in actions {
            if let Action::Close(why) = action {
                self.closing(why);
                self.end();
            }
        }
        self.kick();
        if self.sending.get() > 0 && now.since(self.sending_since.get()) > SEND_TIMEOUT {
            self.front.reactor.stats().keepalive_timeouts.add(1);
            self.log("takes nothing of what is sent to it");
            self.end();
        }
        let active = self.active.replace(false);
        if !active && self.chunk_len.get() > CHUNK_MIN && self.is_quiet() {
            // The receive comes back with its large memory and is started anew with a page.
            self.chunk_len.set(CHUNK_MIN);
            self.front.reactor.driver().cancel(&self.socket);
        }
        active || self.sending.get() > 0
    }

    fn log(&self, what: &str) {
        let session = self.session.borrow();
        match session.candidate() {
            Some(candidate) => eprintln!("iscsi: {} ({}): {what}", candidate.initiator.escape_debug(), self.peer),
            None => eprintln!("iscsi: {}: {what}", self.peer),
        }
    }

    /// Counts and tells why a session closes its connection. Strangers that never logged in are only counted.
    fn closing(&self, why: Close) {
        let stats = self.front.reactor.stats();
        if let (Close::LoginRefused(status), Some(knock)) = (why, self.knock.take()) {
            self.front.settings.guard.refused(&knock, status, self.front.reactor.now());
        }
        match why {
            Close::LoginRefused(_) => stats.logins_refused.add(1),
            Close::Silent => stats.keepalive_timeouts.add(1),
            _ => {}
        }
        if self.nexus.borrow().is_some() || matches!(why, Close::LoginRefused(_)) || why.fault() == Guilt::Target {
            self.log(&why.to_string());
        }
    }

    /// Sees to it that what is queued leaves, at the end of the turn; much leaves at once.
    pub(super) fn kick(&self) {
        let may_send = self.sending.get() == 0 && !self.broken.get() && self.front.reactor.has_waited();
        if may_send && !self.is_held_back() {
            let queued = self.session.borrow().queued_bytes();
            self.kicks.set(self.kicks.get() + 1);
            if queued >= SEND_EARLY || queued > 0 && self.kicks.get() >= self.share.get() {
                self.begin_send();
            }
        }
        wake(&self.sender);
    }

    async fn receive(self: &Rc<Self>) {
        let mut receiver = Receiver { connection: self, completion: Completion::new(), rest: None, after_large: false };
        let mut actions = Vec::new();
        while !self.ended.get() {
            let want = self.session.borrow_mut().want();
            let goes_on = match want {
                Want::Nothing => {
                    self.until_it_goes_on().await;
                    self.session.borrow_mut().resume(&mut actions);
                    true
                }
                Want::Into(memory) => receiver.place(memory, &mut actions).await,
                Want::Chunk => receiver.chunk(&mut actions).await,
            };
            self.act(&mut actions).await;
            if !goes_on {
                return;
            }
        }
    }

    /// Waits while the session wants nothing: for what is queued to be taken.
    async fn until_it_goes_on(&self) {
        let mut asked = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) || self.ended.get() {
                return Poll::Ready(());
            }
            self.receiver.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn go_on(&self) {
        wake(&self.receiver);
    }

    /// Does what the session asks for.
    async fn act(self: &Rc<Self>, actions: &mut Vec<Action>) {
        self.share.set((actions.len() / 2).max(SEND_EARLY_REPLIES));
        while !actions.is_empty() {
            let mut more = Vec::new();
            for action in actions.drain(..) {
                match action {
                    Action::Command(command) => self.command(&command),
                    Action::DataReady(key) => {
                        let waiting = self.pulls.borrow_mut().remove(&key);
                        waiting.into_iter().for_each(Waker::wake);
                    }
                    Action::TaskManagement(function) => self.task_management(function),
                    Action::SendTargets(query) => {
                        let mut session = self.session.borrow_mut();
                        let host = session.candidate().map(|candidate| candidate.initiator.clone()).unwrap_or_default();
                        session.targets(&self.front.targets(&query, &host, (self.peer, self.local), self.group));
                    }
                    Action::Authorize(candidate) => {
                        let (verdict, knock) = self.front.judge(&candidate, self.group, self.peer);
                        self.knock.replace(knock);
                        self.session.borrow_mut().authorized(verdict, &mut more);
                    }
                    Action::Prove(claim) => self.prove(&claim, &mut more).await,
                    Action::Establish(established) => self.establish(*established, &mut more).await,
                    Action::Close(why) => {
                        self.closing(why);
                        self.ended.set(true);
                    }
                }
            }
            *actions = more;
        }
        self.kick();
    }

    async fn prove(&self, claim: &Claim, more: &mut Vec<Action>) {
        let Some(mut knock) = self.knock.take() else {
            return self.session.borrow_mut().proven(Err(LoginStatus::TARGET_ERROR), more);
        };
        let Finding { verdict, after } = self.front.settings.guard.prove(&mut knock, claim, self.front.reactor.now());
        if !after.is_zero() {
            self.within(after, |c| c.ended.get()).await;
        }
        // Of a refusal the guard has told.
        if verdict.is_ok() {
            self.knock.replace(Some(knock));
        }
        self.session.borrow_mut().proven(verdict, more);
    }

    async fn establish(&self, established: Established, more: &mut Vec<Action>) {
        let entered = self.front.enter(self.id, self.group, &established).await;
        let stats = self.front.reactor.stats();
        if let (Ok(tsih), Some(knock)) = (entered, self.knock.take()) {
            self.front.settings.guard.entered(&knock, self.front.reactor.now());
            let candidate = &established.candidate;
            self.tsih.set(tsih);
            if !candidate.discovery {
                let isid = candidate.isid.iter().fold(0_u64, |isid, byte| isid << 8 | u64::from(*byte));
                let initiator = format!("{},i,0x{isid:012x}", candidate.initiator).into();
                // One portal group is one target port.
                let name = NexusName { initiator, target_port: self.group };
                let target = &self.front.target;
                let nexus = knock
                    .map()
                    .map_or_else(|| target.nexus(name.clone()), |map| target.nexus_behind(name.clone(), map));
                *self.nexus.borrow_mut() = Some(nexus);
                stats.sessions.add(1);
                stats.logins.add(1);
            }
        }
        self.session.borrow_mut().established(entered, more);
        if entered.is_ok() && self.nexus.borrow().is_some() {
            self.log("has logged in");
        }
    }

    fn command(self: &Rc<Self>, command: &session::Command) {
        let key = command.task;
        let cdb = command.cdb.get(..usize::from(command.cdb_len)).and_then(Cdb::new);
        // A session without a nexus (discovery) hands out no commands, nor does any with longer CDBs.
        let (Some(nexus), Some(cdb)) = (self.nexus.borrow().clone(), cdb) else {
            return self.session.borrow_mut().drop_task(key);
        };
        let lun = Lun(command.lun);
        let task = nexus.tasks.enter((u64::from(command.tag), lun));
        let command = Command {
            lun,
            cdb,
            attribute: attribute(command.attribute),
            tag: u64::from(command.tag),
            data_in: command.data_in,
            data_out: command.data_out,
        };
        let job = Job { connection: self.clone(), nexus, key, task, command };
        if let Err(job) = self.front.slots.start(job) {
            drop(job);
            self.front.reactor.stats().task_set_full.add(1);
            self.session.borrow_mut().reply(key, Status::TASK_SET_FULL.0, &[], &mut Tail::default(), 0);
        }
    }

    fn task_management(self: &Rc<Self>, request: TaskManagement) {
        let connection = self.clone();
        let mut work = Box::pin(async move {
            let nexus = connection.nexus.borrow().clone();
            let Some(nexus) = nexus else { return };
            let function = TaskFunction(request.function.0);
            let (lun, tag) = (Lun(request.lun), u64::from(request.tag));
            let response = connection.front.target.task_management(&nexus, function, lun, tag).await;
            let (outcome, information) = function_response(response);
            connection.session.borrow_mut().function_done(request.task, outcome, information);
            connection.kick();
            // RFC 7143 11.5.1: the sessions of all initiators end.
            if request.function == Function::TARGET_COLD_RESET && response == TaskResponse::Complete {
                connection.front.end_all_sessions().await;
            }
        });
        // Begun at once: it ends what came before it (11.5.1), not the commands that lie behind it in the same bytes.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.front.reactor.spawn(work);
        }
    }

    /// Sends what is queued, turn by turn.
    async fn send(&self) {
        loop {
            poll_fn(|cx| self.poll_under_way(cx)).await;
            poll_fn(|cx| self.poll_queued(cx)).await;
            // What is ready in this turn leaves together.
            self.front.reactor.end_of_turn().await;
            if self.broken.get() {
                break;
            }
            if self.sending.get() > 0 {
                continue;
            }
            if self.has_to_send() {
                self.begin_send();
                continue;
            }
            if self.session.borrow().closed() == Some(Close::NoMemory) {
                self.end();
            }
            if self.last.get() {
                break;
            }
        }
        self.sent.set(true);
        self.go_on();
    }

    /// Whether the nexus ends: a logout is answered when it has ended, and all cores know.
    fn is_held_back(&self) -> bool {
        self.ended.get() && !self.last.get()
    }

    fn has_to_send(&self) -> bool {
        !self.is_held_back() && self.session.borrow().queued_bytes() > 0
    }

    /// Starts to send all that is queued; none is under way. Mostly it is over when this returns.
    fn begin_send(&self) {
        let reactor = &self.front.reactor;
        let data = self.session.borrow_mut().take_out();
        self.sending.set(data.len());
        self.kicks.set(0);
        self.sending_since.set(reactor.now());
        let mut under_way = self.under_way.borrow_mut();
        reactor.begin_send(&self.socket, data, &mut under_way);
        let outcome = under_way.take();
        drop(under_way);
        if let Some(outcome) = outcome {
            self.end_send(&outcome);
        }
    }

    fn end_send(&self, outcome: &Outcome) {
        let result = self.front.reactor.end_send(outcome);
        self.sending.set(0);
        self.crowd.take().into_iter().for_each(Waker::wake);
        self.go_on();
        if result.is_err() {
            self.broken.set(true);
            self.end();
        }
    }

    /// Waits for the end of what is under way.
    fn poll_under_way(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sending.get() == 0 {
            return Poll::Ready(());
        }
        let polled = self.under_way.borrow().poll(cx);
        polled.map(|outcome| self.end_send(&outcome))
    }

    fn poll_queued(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_to_send() || self.last.get() || self.broken.get() {
            return Poll::Ready(());
        }
        self.sender.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// The end: commands are aborted, the last answers leave, and the connection is closed.
    async fn leave(self: &Rc<Self>) {
        self.ended.set(true);
        let nexus = self.nexus.take();
        if let Some(nexus) = &nexus {
            self.front.target.close(nexus).await;
            self.front.reactor.stats().sessions.sub(1);
        }
        self.last.set(true);
        self.kick();
        if !self.within(LINGER, |c| c.sent.get()).await {
            self.front.reactor.driver().cancel(&self.socket);
        }
        self.front.reactor.driver().shutdown(&self.socket);
        self.linger().await;
        let tsih = self.tsih.get();
        if tsih != 0
            && let Some(candidate) = self.session.borrow().candidate()
        {
            self.front.registry.leave(candidate, self.group, tsih);
        }
        drop(nexus);
        self.front.forget(self);
    }

    /// Waits until something holds that the sender does; `false` if that takes too long.
    async fn within(&self, time: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let mut timeout = pin!(self.front.reactor.sleep(time));
        poll_fn(|cx| {
            if holds(self) {
                return Poll::Ready(true);
            }
            self.receiver.set(Some(cx.waker().clone()));
            timeout.as_mut().poll(cx).map(|()| false)
        })
        .await
    }

    /// Reads until the peer closes too: a socket that is closed over unread data takes back what was sent last.
    async fn linger(&self) {
        let reactor = &self.front.reactor;
        let mut completion = Completion::new();
        let mut left = LINGER_BYTES;
        let mut timeout = pin!(reactor.sleep(LINGER));
        while left > 0 {
            let Some(memory) = reactor.arena().take_reserved(PAGE) else { return };
            let mut receive = pin!(reactor.receive(&self.socket, memory.into(), &mut completion));
            let received = poll_fn(|cx| match receive.as_mut().poll(cx) {
                Poll::Ready((result, _)) => Poll::Ready(result.unwrap_or(0)),
                Poll::Pending => timeout.as_mut().poll(cx).map(|()| 0),
            })
            .await;
            if received == 0 {
                break;
            }
            left = left.saturating_sub(received);
        }
        reactor.driver().cancel(&self.socket);
    }
}

fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

/// What the receiving task keeps between two receives.
struct Receiver<'a> {
    connection: &'a Connection,
    completion: Completion,
    /// The part of the last chunk that is still free.
    rest: Option<Buf>,
    /// Payload went straight to its place last: most likely it does again, behind a header.
    after_large: bool,
}

impl Receiver<'_> {
    /// Receives payload to its place. Returns whether the connection lives.
    async fn place(&mut self, memory: SgMut, actions: &mut Vec<Action>) -> bool {
        let connection = self.connection;
        let reactor = &connection.front.reactor;
        let (result, memory) = reactor.receive(&connection.socket, memory, &mut self.completion).await;
        self.after_large = true;
        connection.active.set(true);
        let (count, goes_on) = received(result);
        connection.session.borrow_mut().placed(memory, count, reactor.now(), actions);
        goes_on
    }

    /// Receives whatever comes. Returns whether the connection lives.
    async fn chunk(&mut self, actions: &mut Vec<Action>) -> bool {
        let connection = self.connection;
        let reactor = &connection.front.reactor;
        let chunk = self.memory().await;
        let len = chunk.len();
        let (result, memory) = reactor.receive(&connection.socket, chunk.into(), &mut self.completion).await;
        let (count, goes_on) = received(result);
        let Some(mut chunk) = memory.into_pieces().next() else { return goes_on };
        if count == 0 {
            return goes_on;
        }
        connection.active.set(true);
        let chunk_len = connection.chunk_len.get();
        if count == len && !self.after_large {
            connection.chunk_len.set((chunk_len * 2).min(CHUNK_MAX));
        } else if count < chunk_len / 8 {
            connection.chunk_len.set((chunk_len / 2).max(CHUNK_MIN));
        }
        self.after_large = false;
        let part = chunk.split_to(count).share();
        self.rest = (chunk.len() >= CHUNK_REST).then_some(chunk);
        connection.session.borrow_mut().receive(part, reactor.now(), actions);
        goes_on
    }

    async fn memory(&mut self) -> Buf {
        let arena = self.connection.front.reactor.arena();
        let len = if self.after_large { CHUNK_MIN } else { self.connection.chunk_len.get() };
        if let Some(rest) = self.rest.take_if(|rest| rest.len() >= len / 4) {
            return rest;
        }
        // Commands may wait for the very data that this receive brings: for its header there is the reserve.
        if let Some(chunk) = arena.take(len).or_else(|| arena.take_reserved(CHUNK_MIN)) {
            return chunk;
        }
        let memory = arena.wait_sg(CHUNK_MIN).await;
        memory.into_pieces().next().expect("a page is one piece")
    }
}

/// How many bytes came, and whether the connection lives. A receive that was cancelled brought none: either its
/// memory was to come back, or the connection has ended, which its loop sees.
fn received(result: Result<usize, Fault>) -> (usize, bool) {
    match result {
        Ok(0) => (0, false),
        Ok(count) => (count, true),
        Err(Fault::Aborted) => (0, true),
        Err(_) => (0, false),
    }
}

/// RFC 7143 11.3.1.2; untagged commands are simple ones.
fn attribute(code: u8) -> TaskAttribute {
    match code {
        2 => TaskAttribute::ORDERED,
        3 => TaskAttribute::HEAD_OF_QUEUE,
        4 => TaskAttribute::ACA,
        _ => TaskAttribute::SIMPLE,
    }
}

/// RFC 7143 11.6.1, with what RFC 7144 adds to it.
fn function_response(response: TaskResponse) -> (FunctionResponse, [u8; 3]) {
    let outcome = match response {
        TaskResponse::Complete => FunctionResponse::COMPLETE,
        TaskResponse::Succeeded(information) => return (FunctionResponse::SUCCEEDED, information),
        TaskResponse::NoTask => FunctionResponse::NO_TASK,
        TaskResponse::IncorrectLun => FunctionResponse::NO_LUN,
        TaskResponse::Rejected => FunctionResponse::NOT_SUPPORTED,
    };
    (outcome, [0; 3])
}
