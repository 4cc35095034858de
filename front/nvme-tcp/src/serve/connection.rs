//! One connection: a task that receives, a task that sends, and what its session asks for.

use super::Front;
use super::job::{Half, Job};
use super::secure::Security;
use crate::config::IN_CAPSULE_MAX;
use crate::session::{Action, Close, Session, TaskKey, Want};
use lunar_core::io::{Completion, Fault, Outcome};
use lunar_core::mem::{Buf, PAGE, Sg, SgMut};
use lunar_core::step::Tail;
use lunar_core::time::Instant;
use lunar_nvme::auth::Proof;
use lunar_nvme::command::FABRICS;
use lunar_nvme::connect::Caller;
use lunar_nvme::{Command, Kind, Path, Queue, Status};
use lunar_reactor::op::Handle;
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

/// The type of Disconnect among Fabrics commands.
const DISCONNECT: u8 = 0x08;

/// One connection.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) front: Rc<Front>,
    socket: Handle,
    local: SocketAddr,
    peer: SocketAddr,
    pub(super) session: RefCell<Session>,
    security: Security,
    queue: RefCell<Option<Rc<Queue>>>,
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
    /// Who waits for the end.
    over: RefCell<Vec<Waker>>,
    /// Commands that wait for room towards the peer.
    pub(super) crowd: RefCell<Vec<Waker>>,
    /// Commands that wait for data from the peer.
    pub(super) pulls: RefCell<HashMap<TaskKey, Waker>>,
}

impl Connection {
    pub(super) fn new(front: Rc<Front>, id: u64, socket: Handle, local: SocketAddr, peer: SocketAddr) -> Rc<Self> {
        let reactor = &front.reactor;
        let now = reactor.now();
        let session = Session::new(reactor.arena().clone(), reactor.stats().clone(), now);
        Rc::new(Self {
            id,
            socket,
            local,
            peer,
            session: RefCell::new(session),
            security: Security::new(front.settings.channels.as_ref()),
            queue: RefCell::default(),
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
            over: RefCell::default(),
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

    /// Whether nothing is under way. What waits for an event is not.
    pub(super) fn is_quiet(&self) -> bool {
        let is_idle = self.queue.borrow().as_ref().is_none_or(|queue| queue.tasks.is_empty());
        is_idle && self.session.borrow().queued_bytes() == 0 && self.sending.get() == 0
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let silent = self.queue.borrow().as_ref().and_then(|queue| queue.controller.deadline());
        [self.session.borrow().deadline(), silent].into_iter().flatten().min()
    }

    /// Looks after its time; tells whether it was active since the last look.
    pub(super) fn look(self: &Rc<Self>, now: Instant) -> bool {
        let mut actions = Vec::new();
        self.session.borrow_mut().tick(now, &mut actions);
        if !actions.is_empty() {
            self.closing(Close::ConnectTimeout);
            self.end();
        }
        let active = self.active.replace(false);
        if let Some(queue) = &*self.queue.borrow() {
            if active {
                queue.controller.hear(now);
            } else if queue.id == 0 && queue.controller.deadline().is_some_and(|at| at <= now) {
                self.front.reactor.stats().keepalive_timeouts.add(1);
                self.log("is silent for longer than it said");
                queue.controller.end();
            }
        }
        self.kick();
        if self.sending.get() > 0 && now.since(self.sending_since.get()) > SEND_TIMEOUT {
            self.front.reactor.stats().keepalive_timeouts.add(1);
            self.log("takes nothing of what is sent to it");
            self.end();
        }
        if !active && self.chunk_len.get() > CHUNK_MIN && self.is_quiet() {
            // The receive comes back with its large memory and is started anew with a page.
            self.chunk_len.set(CHUNK_MIN);
            self.front.reactor.driver().cancel(&self.socket);
        }
        active || self.sending.get() > 0
    }

    fn log(&self, what: &str) {
        match &*self.queue.borrow() {
            Some(queue) => {
                let controller = &queue.controller;
                let (host, id) = (controller.host.nqn.escape_debug(), controller.id);
                eprintln!("nvme: {host} ({}, controller {id}, queue {}): {what}", self.peer, queue.id);
            }
            None => eprintln!("nvme: {}: {what}", self.peer),
        }
    }

    /// Tells why a session closes its connection. Strangers that never had a queue are only counted.
    fn closing(&self, why: Close) {
        let is_ours = why == Close::NoMemory;
        if is_ours || why != Close::Disconnected && self.queue.borrow().is_some() {
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
                Want::Into(memory) if self.security.is_on() => {
                    // What comes is not what goes there.
                    self.session.borrow_mut().placed(memory, 0, &mut actions);
                    receiver.chunk(&mut actions).await
                }
                Want::Into(memory) => receiver.place(memory, &mut actions).await,
                Want::Chunk => receiver.chunk(&mut actions).await,
            };
            self.act(&mut actions);
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
    fn act(self: &Rc<Self>, actions: &mut Vec<Action>) {
        self.share.set((actions.len() / 2).max(SEND_EARLY_REPLIES));
        for action in actions.drain(..) {
            match action {
                Action::Command(key, command) => self.command(key, command),
                Action::Fused(halves) => self.fused(*halves),
                Action::DataReady(key) => {
                    let waiting = self.pulls.borrow_mut().remove(&key);
                    waiting.into_iter().for_each(Waker::wake);
                }
                Action::Withdrawn(cid) => {
                    self.queue.borrow().iter().for_each(|queue| queue.controller.withdraw_event(cid));
                }
                Action::Connect(key, command, data) => self.connect(key, &command, &data),
                Action::Close(why) => {
                    self.closing(why);
                    self.ended.set(true);
                }
            }
        }
        self.kick();
    }

    /// How the host came, and so how it is told to come again.
    fn path(&self) -> Path {
        /// Transport type TCP; address families IPv4 and IPv6.
        const TCP: u8 = 3;
        const IPV4: u8 = 1;
        const IPV6: u8 = 2;
        // An IPv4 peer of a socket for both is told so.
        let ip = self.front.settings.advertise.unwrap_or_else(|| self.local.ip()).to_canonical();
        Path {
            transport: TCP,
            family: if ip.is_ipv4() { IPV4 } else { IPV6 },
            address: ip.to_string(),
            service: self.local.port().to_string(),
            in_capsule: IN_CAPSULE_MAX,
        }
    }

    fn connect(self: &Rc<Self>, key: TaskKey, command: &Command, data: &Sg) {
        let (front, stats) = (&self.front, self.front.reactor.stats());
        let answer = match front.is_draining() {
            true => Err(Status::CONNECT_BUSY.into()),
            false => {
                let (path, now) = (self.path(), front.reactor.now());
                let caller = Caller { source: self.peer, channel: self.security.host() };
                front.subsystem.connect(command, &data.to_vec(), path, caller, now)
            }
        };
        let mut session = self.session.borrow_mut();
        match answer {
            Ok((queue, result)) => {
                session.connected(key, Ok((queue.id, queue.entries, queue.flow_control)), result);
                let passes = queue.passes();
                if !passes {
                    session.prove();
                }
                drop(session);
                self.begin(queue.clone());
                if passes {
                    self.has_connected(&queue);
                }
            }
            Err(refusal) => {
                session.connected(key, Err(refusal.status), refusal.result);
                stats.logins_refused.add(1);
            }
        }
    }

    /// There is a queue: it ends with its controller, and the admin queue tells of events.
    fn begin(self: &Rc<Self>, queue: Rc<Queue>) {
        let reactor = &self.front.reactor;
        *self.queue.borrow_mut() = Some(queue.clone());
        let (connection, controller) = (self.clone(), queue.controller.clone());
        let id = queue.id;
        reactor.spawn(async move {
            if connection.unless_over(controller.until_over(id)).await.is_some() {
                connection.end();
            }
        });
        if id > 0 {
            return;
        }
        let (connection, controller) = (self.clone(), queue.controller.clone());
        reactor.spawn(async move {
            while let Some((cid, status, result)) = connection.unless_over(controller.event()).await {
                connection.session.borrow_mut().reply_to(cid, status, result.into());
                connection.kick();
            }
        });
        reactor.stats().sessions.add(1);
    }

    /// A Fabrics command was answered: the queue ends with it, or its host has proved its name.
    pub(super) fn after_fabrics(&self, queue: &Queue, kind: u8, status: Status) {
        let disconnects = kind == DISCONNECT && queue.id > 0 && status == Status::SUCCESS;
        if disconnects || queue.proof().is_some_and(Proof::has_failed) {
            self.session.borrow_mut().disconnected();
            self.end();
        } else if queue.passes() && self.session.borrow_mut().proven() {
            self.has_connected(queue);
        }
    }

    /// A queue may be used.
    fn has_connected(&self, queue: &Queue) {
        self.front.is_connected(self.id);
        if queue.id > 0 {
            return;
        }
        self.front.reactor.stats().logins.add(1);
        if queue.controller.kind == Kind::Io {
            self.log("has connected");
        }
    }

    /// The outcome of `future`, unless the connection is over first.
    async fn unless_over<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.last.get() {
                return Poll::Ready(None);
            }
            let mut over = self.over.borrow_mut();
            if !over.iter().any(|waker| waker.will_wake(cx.waker())) {
                over.push(cx.waker().clone());
            }
            drop(over);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    fn half(self: &Rc<Self>, queue: &Rc<Queue>, key: TaskKey, command: Command) -> Half {
        let sqe = &command.sqe;
        let task = queue.tasks.enter((sqe.cid.get(), sqe.nsid.get()));
        Half { key, task, command }
    }

    fn command(self: &Rc<Self>, key: TaskKey, command: Command) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let is_fabrics = command.sqe.opcode == FABRICS;
        let half = self.half(&queue, key, command);
        self.run(Job { connection: self.clone(), queue, first: half, second: None, is_fabrics });
    }

    fn fused(self: &Rc<Self>, halves: [(TaskKey, Command); 2]) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let [first, second] = halves.map(|(key, command)| self.half(&queue, key, command));
        self.run(Job { connection: self.clone(), queue, first, second: Some(second), is_fabrics: false });
    }

    fn run(self: &Rc<Self>, job: Job) {
        if let Err(job) = self.front.slots.start(job) {
            self.front.reactor.stats().task_set_full.add(1);
            let keys = [Some(job.first.key), job.second.as_ref().map(|half| half.key)];
            drop(job);
            let mut session = self.session.borrow_mut();
            for key in keys.into_iter().flatten() {
                // What a host tries again: it has no word for a device that is busy.
                session.reply(key, Status::NOT_READY, 0, &mut Tail::default());
            }
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

    /// Whether the queue ends: what is queued leaves when its commands are gone.
    fn is_held_back(&self) -> bool {
        self.ended.get() && !self.last.get()
    }

    fn has_to_send(&self) -> bool {
        !self.is_held_back() && self.session.borrow().queued_bytes() + self.security.queued_bytes() > 0
    }

    /// Starts to send all that is queued; none is under way. Mostly it is over when this returns.
    fn begin_send(&self) {
        let reactor = &self.front.reactor;
        let data = self.session.borrow_mut().take_out();
        let Some(data) = self.security.seal(data, reactor.arena()) else {
            self.broken.set(true);
            return self.end();
        };
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
        let queue = self.queue.take();
        if let Some(queue) = &queue {
            if queue.id == 0 {
                // Its I/O queues end as well, wherever they are.
                queue.controller.end();
                self.front.reactor.stats().sessions.sub(1);
            }
            self.front.reactor.stats().tasks_aborted.add(queue.tasks.abort(|_| true));
            queue.tasks.until_gone(|_| true).await;
        }
        self.last.set(true);
        self.over.take().into_iter().for_each(Waker::wake);
        self.kick();
        if !self.within(LINGER, |c| c.sent.get()).await {
            self.front.reactor.driver().cancel(&self.socket);
        }
        self.front.reactor.driver().shutdown(&self.socket);
        self.linger().await;
        drop(queue);
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
        connection.session.borrow_mut().placed(memory, count, actions);
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
        let arena = connection.front.reactor.arena();
        goes_on
            && connection.security.take_in(part, arena, |part| connection.session.borrow_mut().receive(part, actions))
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
