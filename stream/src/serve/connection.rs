//! How a connection receives, sends and ends.

use super::FrontConnection;
use crate::protocol::{CommandData, ProtocolMachine, ReceiveMode};
use crate::record_layer::{Plain, RecordLayer};
use lunar_core::io::{Completion, Fault, Outcome};
use lunar_core::mem::{Buf, PAGE, SgMut, Slice};
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::op::Handle;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
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
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last answer gets to reach the peer before a connection is closed over unread data.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that a peer may still send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// A session and the bytes that come to it and go from it: a task receives, a task sends.
pub struct StreamConnection<S: CommandData, C = Plain> {
    pub(super) reactor: Reactor,
    socket: Handle,
    record_layer: C,
    session: RefCell<S>,
    /// Nothing more is received; what is queued is sent.
    ended: Cell<bool>,
    /// The sender has ended.
    sent: Cell<bool>,
    /// A send failed: nothing more is sent.
    broken: Cell<bool>,
    /// Bytes under data_path, since when, and where their end is told.
    sending: Cell<usize>,
    sending_since: Cell<Instant>,
    under_way: RefCell<Completion>,
    /// What was queued since the last send, about, and how much of that is half of what the peer waits for.
    kicks: Cell<usize>,
    share: Cell<usize>,
    /// Whether something came since it was last looked at.
    active: Cell<bool>,
    chunk_len: Cell<usize>,
    /// Bytes of the block that is received into: as long as any of it is free, all of it is held.
    block_len: Cell<usize>,
    sender: Cell<Option<Waker>>,
    receiver: Cell<Option<Waker>>,
    /// What the receiving task may wait for has happened since it was last asked.
    goes_on: Cell<bool>,
    /// Nothing more is queued: the sender ends when the queue is empty.
    over: End,
    /// Commands that wait for room towards the peer.
    pub(super) crowd: RefCell<Vec<Waker>>,
    /// Commands that wait for data from the peer.
    pub(super) pulls: RefCell<HashMap<S::Key, Waker>>,
}

impl<S: CommandData, C: RecordLayer> StreamConnection<S, C> {
    /// A session over a socket, and what lies between.
    #[must_use]
    pub fn new(reactor: &Reactor, socket: Handle, session: S, record_layer: C) -> Self {
        Self {
            reactor: reactor.clone(),
            socket,
            record_layer,
            session: RefCell::new(session),
            ended: Cell::new(false),
            sent: Cell::new(false),
            broken: Cell::new(false),
            sending: Cell::new(0),
            sending_since: Cell::new(reactor.now()),
            under_way: RefCell::default(),
            kicks: Cell::new(0),
            share: Cell::new(SEND_EARLY_REPLIES),
            active: Cell::new(true),
            chunk_len: Cell::new(CHUNK_MIN),
            block_len: Cell::new(CHUNK_MIN),
            sender: Cell::default(),
            receiver: Cell::default(),
            goes_on: Cell::new(false),
            over: End::default(),
            crowd: RefCell::default(),
            pulls: RefCell::default(),
        }
    }

    /// The session, for a moment. Whoever queues something in it calls [`StreamConnection::schedule_send`] after.
    pub fn session(&self) -> RefMut<'_, S> {
        self.session.borrow_mut()
    }

    /// What lies between the session and the socket.
    pub fn record_layer(&self) -> &C {
        &self.record_layer
    }

    /// Ends the connection: what is received from now on is not looked at.
    pub fn end(&self) {
        if !self.ended.get() {
            self.stop_receiving();
            self.cancel();
            self.go_on();
        }
        self.schedule_send();
    }

    /// Ends the connection, whose peer takes nothing: nothing more is sent.
    pub(super) fn abort(&self) {
        self.broken.set(true);
        self.end();
    }

    /// Ends it from within an action: nothing more is received when that is done.
    pub fn stop_receiving(&self) {
        self.ended.set(true);
    }

    /// Whether nothing is queued or under data_path to the peer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued_bytes() == 0 && !self.is_sending()
    }

    fn queued_bytes(&self) -> usize {
        self.session.borrow().queued_bytes() + self.record_layer.queued_bytes()
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.get() > 0
    }

    /// Bytes queued or under data_path to the peer.
    pub(super) fn outstanding(&self) -> usize {
        self.queued_bytes() + self.sending.get()
    }

    /// Whether the peer takes nothing of what is sent to it, for too long.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.is_sending() && now.since(self.sending_since.get()) > SEND_TIMEOUT
    }

    /// Whether something came since it was last asked.
    pub(super) fn was_active(&self) -> bool {
        self.active.replace(false)
    }

    /// Gives back the memory that a busy connection receives into.
    pub(super) fn shrink(&self) {
        if self.block_len.replace(CHUNK_MIN) > CHUNK_MIN {
            // The receive comes back with its large memory and is started anew with a page.
            self.chunk_len.set(CHUNK_MIN);
            self.cancel();
        }
    }

    /// What a command waits for has come, or will not come: it pulls again.
    pub fn data_ready(&self, key: S::Key) {
        let waiting = self.pulls.borrow_mut().remove(&key);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Sees to it that what is queued leaves, at the end of the turn; much leaves at once.
    pub fn schedule_send(&self) {
        if self.broken.get() {
            // Nobody gets it, and others wait for its memory.
            return drop(self.session.borrow_mut().take_out());
        }
        let may_send = self.sending.get() == 0 && self.reactor.has_waited();
        if may_send && !self.is_held_back() {
            let queued = self.queued_bytes();
            self.kicks.set(self.kicks.get() + 1);
            if queued >= SEND_EARLY || queued > 0 && self.kicks.get() >= self.share.get() {
                self.begin_send();
            }
        }
        wake(&self.sender);
    }

    fn cancel(&self) {
        self.reactor.driver().cancel(&self.socket);
    }

    /// Waits while the session wants nothing: for what is queued to be taken.
    async fn until_it_goes_on(&self) {
        poll_fn(|cx| {
            if self.goes_on.take() || self.ended.get() {
                return Poll::Ready(());
            }
            self.receiver.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn go_on(&self) {
        self.goes_on.set(true);
        wake(&self.receiver);
    }

    /// Sends what is queued, turn by turn.
    pub(super) async fn send(&self) {
        loop {
            poll_fn(|cx| self.poll_under_way(cx)).await;
            poll_fn(|cx| self.poll_queued(cx)).await;
            // What is ready in this turn leaves together.
            self.reactor.end_of_turn().await;
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
            if self.over.has_come() {
                break;
            }
        }
        self.sent.set(true);
        self.go_on();
    }

    /// Whether the nexus ends: what is queued leaves when its commands are gone, and all cores know.
    fn is_held_back(&self) -> bool {
        self.ended.get() && !self.over.has_come()
    }

    fn has_to_send(&self) -> bool {
        !self.is_held_back() && (self.queued_bytes() > 0 || self.session.borrow().is_out_of_memory())
    }

    /// Starts to send all that is queued; none is under data_path. Mostly it is over when this returns. What has a hole, for
    /// want of memory, does not leave: the connection ends.
    fn begin_send(&self) {
        let mut session = self.session.borrow_mut();
        let data = session.take_out();
        let is_lost = data.is_empty() && session.is_out_of_memory();
        drop(session);
        let sealed = if is_lost { None } else { self.record_layer.seal(data, self.reactor.arena()) };
        let Some(data) = sealed else {
            return self.abort();
        };
        self.sending.set(data.len());
        self.kicks.set(0);
        self.sending_since.set(self.reactor.now());
        let mut under_way = self.under_way.borrow_mut();
        self.reactor.begin_send(&self.socket, data, &mut under_way);
        let outcome = under_way.take();
        drop(under_way);
        if let Some(outcome) = outcome {
            self.end_send(&outcome);
        }
    }

    fn end_send(&self, outcome: &Outcome) {
        let result = self.reactor.end_send(outcome);
        self.sending.set(0);
        self.crowd.take().into_iter().for_each(Waker::wake);
        self.go_on();
        if result.is_err() {
            self.abort();
        }
    }

    /// Waits for the end of what is under data_path.
    fn poll_under_way(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sending.get() == 0 {
            return Poll::Ready(());
        }
        let polled = self.under_way.borrow().poll(cx);
        polled.map(|outcome| self.end_send(&outcome))
    }

    fn poll_queued(&self, cx: &mut Context<'_>) -> Poll<()> {
        // What left early may be under data_path yet: its end is waited for, too.
        if self.is_sending() || self.has_to_send() || self.over.has_come() || self.broken.get() {
            return Poll::Ready(());
        }
        self.sender.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// The end, when all commands are gone: the last answers leave, and the socket is closed.
    pub async fn finish(&self) {
        self.over.come();
        self.schedule_send();
        if !self.within(LINGER, |stream| stream.sent.get()).await {
            self.cancel();
        }
        self.reactor.driver().shutdown(&self.socket);
        self.linger().await;
    }

    /// Waits so long, or until the connection ends; for the receiving task.
    pub async fn pause(&self, time: Duration) {
        self.within(time, |stream| stream.ended.get()).await;
    }

    /// The outcome of `future`, unless the connection is over first.
    pub async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.over.unless(future).await
    }

    /// Waits until something holds that the sender does; `false` if that takes too long.
    async fn within(&self, time: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let mut timeout = pin!(self.reactor.sleep(time));
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
        let mut completion = Completion::new();
        let mut left = LINGER_BYTES;
        let mut timeout = pin!(self.reactor.sleep(LINGER));
        while left > 0 {
            let Some(memory) = self.reactor.arena().take_reserved(PAGE) else { return };
            let mut receive = pin!(self.reactor.receive(&self.socket, memory.into(), &mut completion));
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
        self.cancel();
    }
}

impl<S: CommandData, C> fmt::Debug for StreamConnection<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.over.has_come() { ", over" } else { "" };
        write!(
            f,
            "StreamConnection({} bytes queued, {} under data_path{state})",
            self.session.borrow().queued_bytes(),
            self.sending.get()
        )
    }
}

fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

/// Receives for a connection until it ends, and has it do what its session asks for.
pub(super) async fn receive<C: FrontConnection>(connection: &Rc<C>) {
    let stream = connection.stream();
    let mut receiver = Receiver { stream, completion: Completion::new(), rest: None, after_large: false };
    let mut actions = Vec::new();
    while !stream.ended.get() {
        let want = stream.session.borrow_mut().receive_mode();
        let goes_on = match want {
            ReceiveMode::Paused => {
                stream.until_it_goes_on().await;
                stream.session.borrow_mut().resume(&mut actions);
                true
            }
            ReceiveMode::Into(memory) if !stream.record_layer.is_plain() => {
                // What comes is not what goes there.
                stream.session.borrow_mut().placed(memory, 0, stream.reactor.now(), &mut actions);
                receiver.chunk(&mut actions).await
            }
            ReceiveMode::Into(memory) => receiver.place(memory, &mut actions).await,
            ReceiveMode::Chunk => receiver.chunk(&mut actions).await,
        };
        stream.share.set((actions.len() / 2).max(SEND_EARLY_REPLIES));
        connection.perform(&mut actions).await;
        stream.schedule_send();
        if !goes_on {
            break;
        }
    }
    stream.stop_receiving();
}

/// What the receiving task keeps between two receives.
struct Receiver<'a, S: CommandData, C> {
    stream: &'a StreamConnection<S, C>,
    completion: Completion,
    /// The part of the last chunk that is still free.
    rest: Option<Buf>,
    /// Payload went straight to its place last: most likely it does again, behind a header.
    after_large: bool,
}

impl<S: CommandData, C: RecordLayer> Receiver<'_, S, C> {
    /// Receives payload to its place. Returns whether the connection lives.
    async fn place(&mut self, memory: SgMut, actions: &mut Vec<S::Action>) -> bool {
        let stream = self.stream;
        let (room, mut into) = (memory.len(), memory);
        // The next header most likely lies behind it.
        let rest = self.rest.take().filter(|rest| rest.len() <= CHUNK_MIN);
        rest.or_else(|| self.block(CHUNK_MIN)).into_iter().for_each(|tail| into.push(tail));
        // A peer that is faster than this core can wait for the answers of several; another waits for this one.
        let at_once = !stream.reactor.has_waited();
        let (result, mut into) =
            stream.reactor.receive_in_row(&stream.socket, into, at_once, &mut self.completion).await;
        self.after_large = true;
        stream.active.set(true);
        let (count, goes_on) = received(result);
        let memory = into.split_to(room);
        self.rest = into.into_pieces().next();
        let now = stream.reactor.now();
        stream.session.borrow_mut().placed(memory, count.min(room), now, actions);
        if count > room
            && let Some(part) = self.received(count - room)
        {
            stream.session.borrow_mut().receive(part, now, actions);
        }
        goes_on
    }

    /// Receives whatever comes. Returns whether the connection lives.
    async fn chunk(&mut self, actions: &mut Vec<S::Action>) -> bool {
        let stream = self.stream;
        let Some(chunk) = self.memory().await else { return true };
        let len = chunk.len();
        let (result, memory) = stream.reactor.receive(&stream.socket, chunk.into(), &mut self.completion).await;
        let (count, goes_on) = received(result);
        self.rest = memory.into_pieces().next();
        let Some(part) = self.received(count) else { return goes_on };
        stream.active.set(true);
        let chunk_len = stream.chunk_len.get();
        if count == len && !self.after_large {
            stream.chunk_len.set((chunk_len * 2).min(CHUNK_MAX));
        } else if count < chunk_len / 8 {
            stream.chunk_len.set((chunk_len / 2).max(CHUNK_MIN));
        }
        self.after_large = false;
        let hand_on = |part| stream.session.borrow_mut().receive(part, stream.reactor.now(), actions);
        stream.record_layer.open(part, stream.reactor.arena(), hand_on) && goes_on
    }

    /// The first `count` bytes of the rest, which have been filled.
    fn received(&mut self, count: usize) -> Option<Slice> {
        let mut rest = self.rest.take().filter(|_| count > 0)?;
        let part = rest.split_to(count).share();
        self.rest = (rest.len() >= CHUNK_REST).then_some(rest);
        Some(part)
    }

    /// A block of the arena to receive into.
    fn block(&self, len: usize) -> Option<Buf> {
        let block = self.stream.reactor.arena().take(len)?;
        self.stream.block_len.set(len);
        Some(block)
    }

    /// What to receive a chunk into; `None` when the connection ends meanwhile.
    async fn memory(&mut self) -> Option<Buf> {
        let stream = self.stream;
        let len = if self.after_large { CHUNK_MIN } else { stream.chunk_len.get() };
        if let Some(rest) = self.rest.take_if(|rest| rest.len() >= len / 4) {
            return Some(rest);
        }
        let block = self.block(len);
        if block.is_some() {
            return block;
        }
        // Commands may wait for the very data that this receive brings: for its header there is the reserve.
        stream.block_len.set(CHUNK_MIN);
        let arena = stream.reactor.arena();
        let mut enough = pin!(arena.wait_sg(CHUNK_MIN));
        poll_fn(|cx| {
            if stream.ended.get() {
                return Poll::Ready(None);
            }
            if let Some(chunk) = arena.take_reserved(CHUNK_MIN) {
                return Poll::Ready(Some(chunk));
            }
            stream.receiver.set(Some(cx.waker().clone()));
            enough.as_mut().poll(cx).map(|memory| memory.into_pieces().next())
        })
        .await
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
