//! One connection of a byte stream: how it receives, sends and ends.

use super::FrontConnection;
use super::carrier::Wire;
use crate::protocol::{CommandData, ProtocolMachine, ReceiveMode};
use crate::record_layer::{Plain, RecordLayer};
use lunar_core::io::{Completion, Fault, Outcome};
use lunar_core::mem::{Buf, PAGE, PeerMemory, SgMut, Slice};
use lunar_core::shares::Share;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::tcp::TcpState;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Bytes of the smallest receive buffer, which an idle connection holds: a page takes some eighty commands without
/// data.
const CHUNK_MIN: usize = PAGE;
/// Bytes of the largest receive buffer, for a connection that fills its buffers.
const CHUNK_MAX: usize = 256 << 10;
/// The unused rest of a receive buffer is received into again if it has at least this many bytes: room for a few
/// headers.
const CHUNK_REST: usize = 1024;
/// Replies of one turn of the reactor leave in one send. If the core had been idle before their commands came, their
/// peer most likely waits for them: then this many bytes, or half of the expected replies, leave before the turn is
/// over, so that both sides work at the same time.
const SEND_EARLY: usize = 32 << 10;
/// Bytes that a connection queues before they are counted. Peers that receive nothing would otherwise queue more than
/// their share in one turn of a busy core; counting each small reply would cost more than it gains.
const UNCOUNTED_MAX: usize = 8 << 10;
/// An early send has at least this many replies, or [`SEND_EARLY`] bytes: a send costs more than fewer replies gain.
const SEND_EARLY_REPLIES: usize = 8;
/// A connection ends if its peer accepts no byte of a send for this long.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last replies of a connection may take to leave, and how long its peer may then take to close its side.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are received and discarded while the peer closes its side.
const LINGER_BYTES: usize = 1 << 20;

/// Where a connection is in its life. It goes through the states in this order, and may skip some.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    /// It receives and sends.
    Open,
    /// It receives nothing more. Its commands end; replies to them are held back until all of them have ended.
    Ending,
    /// All commands have ended. The queued replies are sent, and then the sending task stops.
    Flushing,
    /// A send failed, or the peer does not accept bytes. Queued bytes are discarded.
    Broken,
    /// The sending task has stopped. Queued bytes are discarded.
    Stopped,
}

/// An event that one task waits for. Raised while the task does not wait, it is remembered.
#[derive(Default)]
struct Signal {
    is_raised: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    fn raise(&self) {
        self.is_raised.set(true);
        wake(&self.waker);
    }

    /// Whether the event was raised since it was taken last.
    fn take(&self) -> bool {
        self.is_raised.take()
    }

    /// Has the task woken when the event is raised.
    fn wake_later(&self, cx: &Context<'_>) {
        self.waker.set(Some(cx.waker().clone()));
    }
}

/// A connection: its session, its socket or carrier, and the states of the two tasks that receive and send.
pub struct StreamConnection<S: CommandData, C = Plain> {
    pub(super) reactor: Reactor,
    wire: Wire,
    /// Its shares of the memory that waits for peers.
    pub(super) memory: PeerMemory,
    /// The share of memory for queued bytes, bytes being sent, and data read in order to be sent; and the last part of
    /// it.
    outgoing: RefCell<Share>,
    reading: Cell<usize>,
    record_layer: C,
    session: RefCell<S>,
    state: Cell<State>,
    /// Bytes of the send in progress; zero without one. When it began, and its completion.
    sending: Cell<usize>,
    sending_since: Cell<Instant>,
    send_completion: RefCell<Completion>,
    /// Replies queued since the last send, approximately, and the number of them that makes an early send worthwhile.
    replies_queued: Cell<usize>,
    early_replies: Cell<usize>,
    /// Whether bytes were received since [`StreamConnection::was_active`] was called last.
    active: Cell<bool>,
    /// TCP segments that were sent again, up to the last call of [`StreamConnection::new_retransmits`].
    retransmits: Cell<u32>,
    /// Bytes of the next receive buffer.
    chunk_len: Cell<usize>,
    /// Bytes of the arena block that is received into. A block is held as long as any part of it is.
    block_len: Cell<usize>,
    sender: Cell<Option<Waker>>,
    /// Wakes the receiving task: a send has ended, or the state has changed.
    receiver: Signal,
    /// Comes when all commands have ended: nothing more is queued.
    commands_ended: End,
    /// Commands that wait for room in the send queue.
    pub(super) room_waiters: RefCell<Vec<Waker>>,
    /// Commands that wait for data of the peer.
    pub(super) data_waiters: RefCell<HashMap<S::Key, Waker>>,
}

impl<S: CommandData, C: RecordLayer> StreamConnection<S, C> {
    /// A connection over a socket or a carrier, with its session and its record layer. `memory`: from [`Arena::join`].
    ///
    /// [`Arena::join`]: lunar_core::mem::Arena::join
    #[must_use]
    pub fn new(reactor: &Reactor, wire: Wire, memory: PeerMemory, session: S, record_layer: C) -> Self {
        Self {
            reactor: reactor.clone(),
            wire,
            outgoing: RefCell::new(memory.outgoing.empty_share()),
            reading: Cell::new(0),
            memory,
            record_layer,
            session: RefCell::new(session),
            state: Cell::new(State::Open),
            sending: Cell::new(0),
            sending_since: Cell::new(reactor.now()),
            send_completion: RefCell::default(),
            replies_queued: Cell::new(0),
            early_replies: Cell::new(SEND_EARLY_REPLIES),
            active: Cell::new(true),
            retransmits: Cell::new(0),
            chunk_len: Cell::new(CHUNK_MIN),
            block_len: Cell::new(CHUNK_MIN),
            sender: Cell::default(),
            receiver: Signal::default(),
            commands_ended: End::default(),
            room_waiters: RefCell::default(),
            data_waiters: RefCell::default(),
        }
    }

    /// The state of the TCP connection; `None` if the kernel does not know it.
    pub fn tcp_state(&self) -> Option<TcpState> {
        match &self.wire {
            Wire::Socket(socket) => self.reactor.driver().tcp_state(socket),
            Wire::Carrier(_) => None,
        }
    }

    /// TCP segments that were sent again since the last call.
    pub fn new_retransmits(&self) -> u32 {
        let all = self.tcp_state().map_or(0, |state| state.retransmits);
        all.saturating_sub(self.retransmits.replace(all))
    }

    /// Borrows the session. A caller that queues something in it calls [`StreamConnection::schedule_send`] afterwards.
    pub fn session(&self) -> RefMut<'_, S> {
        self.session.borrow_mut()
    }

    /// Its shares of the memory that waits for peers.
    pub fn memory(&self) -> &PeerMemory {
        &self.memory
    }

    /// The record layer between the session and the socket.
    pub fn record_layer(&self) -> &C {
        &self.record_layer
    }

    /// Moves on to a state, if the connection is not beyond it.
    fn advance(&self, to: State) {
        self.state.set(self.state.get().max(to));
    }

    fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// Whether nothing more is sent.
    fn is_broken(&self) -> bool {
        self.state.get() >= State::Broken
    }

    /// Ends the connection. Bytes that are received from now on are ignored.
    pub fn end(&self) {
        if self.is_open() {
            self.stop_receiving();
            self.cancel();
            self.receiver.raise();
        }
        self.schedule_send();
    }

    /// Ends the connection and sends nothing more.
    pub(super) fn abort(&self) {
        let was_open = self.is_open();
        self.advance(State::Broken);
        if was_open {
            self.cancel();
            self.receiver.raise();
        }
        self.schedule_send();
    }

    /// Ends the connection from [`FrontConnection::perform`]: nothing more is received once that returns.
    pub fn stop_receiving(&self) {
        self.advance(State::Ending);
    }

    /// Whether nothing is queued and no send is in progress.
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

    /// Bytes queued, and bytes of the send in progress.
    pub(super) fn outstanding(&self) -> usize {
        self.queued_bytes() + self.sending.get()
    }

    /// Reserves a part of the peer's share for `len` bytes that a command reads for it, or for `least` of them if the
    /// peer has none and there is only the reserve. Waits until there is room. Returns for how many.
    pub(super) async fn begin_reading(&self, len: usize, least: usize) -> usize {
        if len == 0 {
            return 0;
        }
        let share = self.memory.outgoing.wait_first(len, least).await;
        let reserved = share.amount();
        self.outgoing.borrow_mut().absorb(share);
        self.reading.set(self.reading.get() + reserved);
        reserved
    }

    /// A command no longer holds that many of the bytes: they are queued, or will not be sent.
    pub(super) fn end_reading(&self, len: usize) {
        self.reading.set(self.reading.get() - len);
        self.count_outgoing();
    }

    /// Bytes queued that are not counted as a part of the peer's share: usually they leave with this turn.
    fn uncounted(&self) -> usize {
        let amount = self.reading.get() + self.outstanding();
        amount.saturating_sub(self.outgoing.borrow().amount())
    }

    /// Counts what is queued and sent as a part of the peer's share.
    fn count_outgoing(&self) {
        let amount = self.reading.get() + self.outstanding();
        self.outgoing.borrow_mut().follow(amount);
    }

    /// Whether the send in progress has lasted longer than [`SEND_TIMEOUT`].
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.is_sending() && now.since(self.sending_since.get()) > SEND_TIMEOUT
    }

    /// Whether bytes were received since this was called last.
    pub(super) fn was_active(&self) -> bool {
        self.active.replace(false)
    }

    /// Returns the large receive buffer of a connection that is no longer busy.
    pub(super) fn shrink(&self) {
        if self.block_len.replace(CHUNK_MIN) > CHUNK_MIN {
            // The receive in progress returns its memory, and the next one takes a page.
            self.chunk_len.set(CHUNK_MIN);
            self.cancel();
        }
    }

    /// Wakes the command that waits for data: it pulls again.
    pub fn data_ready(&self, key: S::Key) {
        let waiting = self.data_waiters.borrow_mut().remove(&key);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Has the queued bytes sent at the end of this turn of the reactor, or at once if they are many.
    pub fn schedule_send(&self) {
        if self.is_broken() {
            // Free the memory: other connections may wait for it.
            drop(self.session.borrow_mut().take_out());
            return self.count_outgoing();
        }
        if self.is_sending() || self.uncounted() >= UNCOUNTED_MAX {
            self.count_outgoing();
        }
        let may_send = self.sending.get() == 0 && self.reactor.has_waited();
        if may_send && !self.is_held_back() {
            let queued = self.queued_bytes();
            self.replies_queued.set(self.replies_queued.get() + 1);
            if queued >= SEND_EARLY || queued > 0 && self.replies_queued.get() >= self.early_replies.get() {
                self.begin_send();
            }
        }
        wake(&self.sender);
    }

    fn cancel(&self) {
        match &self.wire {
            Wire::Socket(socket) => self.reactor.driver().cancel(socket),
            Wire::Carrier(carrier) => carrier.cancel(),
        }
    }

    /// Whether payload can be received directly to its place.
    fn places_payload(&self) -> bool {
        // Encrypted bytes cannot, and carriers place large payload themselves.
        self.record_layer.is_plain() && matches!(self.wire, Wire::Socket(_))
    }

    /// Receives some bytes; returns how many, and the memory.
    async fn receive_some(&self, memory: SgMut, completion: &mut Completion) -> (Result<usize, Fault>, SgMut) {
        match &self.wire {
            Wire::Socket(socket) => self.reactor.receive(socket, memory, completion).await,
            Wire::Carrier(carrier) => {
                let mut memory = memory;
                let result = poll_fn(|cx| carrier.poll_receive(cx, &mut memory)).await;
                (result, memory)
            }
        }
    }

    /// Waits, while the session does not receive, until a send has ended.
    async fn resumed(&self) {
        poll_fn(|cx| {
            if self.receiver.take() || !self.is_open() {
                return Poll::Ready(());
            }
            self.receiver.wake_later(cx);
            Poll::Pending
        })
        .await;
    }

    /// The sending task: sends what is queued, once per turn of the reactor.
    pub(super) async fn send(&self) {
        loop {
            poll_fn(|cx| self.poll_sending(cx)).await;
            poll_fn(|cx| self.poll_queued(cx)).await;
            // All replies that are ready in this turn leave together.
            self.reactor.end_of_turn().await;
            if self.is_broken() {
                break;
            }
            if self.sending.get() > 0 {
                continue;
            }
            if self.has_to_send() {
                self.begin_send();
                continue;
            }
            if self.state.get() == State::Flushing {
                break;
            }
        }
        self.advance(State::Stopped);
        self.receiver.raise();
    }

    /// Whether queued replies wait until all commands have ended, on all cores.
    fn is_held_back(&self) -> bool {
        self.state.get() == State::Ending
    }

    fn has_to_send(&self) -> bool {
        !self.is_held_back() && (self.queued_bytes() > 0 || self.session.borrow().is_out_of_memory())
    }

    /// Starts to send all that is queued, while no send is in progress. Usually the send has ended when this returns.
    /// If the session lacked memory for a header, its output has a gap and is not sent: the connection ends.
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
        self.replies_queued.set(0);
        self.sending_since.set(self.reactor.now());
        let socket = match &self.wire {
            Wire::Socket(socket) => socket,
            Wire::Carrier(carrier) => {
                carrier.send(data);
                return match carrier.poll_room(&Context::from_waker(Waker::noop())) {
                    Poll::Ready(result) => self.sent(result.is_ok()),
                    Poll::Pending => self.count_outgoing(),
                };
            }
        };
        let mut completion = self.send_completion.borrow_mut();
        self.reactor.begin_send(socket, data, &mut completion);
        let outcome = completion.take();
        drop(completion);
        match outcome {
            Some(outcome) => self.end_send(&outcome),
            // The peer does not take it as fast as it is sent.
            None => self.count_outgoing(),
        }
    }

    fn end_send(&self, outcome: &Outcome) {
        self.sent(self.reactor.end_send(outcome).is_ok());
    }

    /// The send in progress has ended.
    fn sent(&self, is_right: bool) {
        self.sending.set(0);
        self.count_outgoing();
        self.room_waiters.take().into_iter().for_each(Waker::wake);
        self.receiver.raise();
        if !is_right {
            self.abort();
        }
    }

    /// Waits for the end of the send in progress.
    fn poll_sending(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sending.get() == 0 {
            return Poll::Ready(());
        }
        if let Wire::Carrier(carrier) = &self.wire {
            return carrier.poll_room(cx).map(|result| self.sent(result.is_ok()));
        }
        let polled = self.send_completion.borrow().poll(cx);
        polled.map(|outcome| self.end_send(&outcome))
    }

    fn poll_queued(&self, cx: &mut Context<'_>) -> Poll<()> {
        // An early send may be in progress: the sending task waits for its end as well.
        if self.is_sending() || self.has_to_send() || self.state.get() >= State::Flushing {
            return Poll::Ready(());
        }
        self.sender.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Sends the last replies and closes the socket, after all commands have ended.
    pub async fn finish(&self) {
        self.advance(State::Flushing);
        self.commands_ended.come();
        self.schedule_send();
        if !self.within(LINGER, |connection| connection.state.get() == State::Stopped).await {
            self.cancel();
        }
        match &self.wire {
            Wire::Socket(socket) => self.reactor.driver().shutdown(socket),
            Wire::Carrier(carrier) => carrier.shut_down(),
        }
        self.linger().await;
    }

    /// Waits until no data that was requested so far is read from memory of the peer any more: a peer that is told of
    /// the end of a command uses that memory for something else. Over a socket there is no such memory.
    pub async fn until_read(&self) {
        if let Wire::Carrier(carrier) = &self.wire {
            carrier.until_read().await;
        }
    }

    /// Waits for this long, or until the connection ends. For the receiving task.
    pub async fn pause(&self, time: Duration) {
        self.within(time, |connection| !connection.is_open()).await;
    }

    /// The outcome of `future`; `None` if [`StreamConnection::finish`] is called before.
    pub async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.commands_ended.unless(future).await
    }

    /// Waits until `holds` is true, and checks it when the receiving task is woken; `false` after `time`.
    async fn within(&self, time: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let mut timeout = pin!(self.reactor.sleep(time));
        poll_fn(|cx| {
            if holds(self) {
                return Poll::Ready(true);
            }
            self.receiver.wake_later(cx);
            timeout.as_mut().poll(cx).map(|()| false)
        })
        .await
    }

    /// Receives until the peer closes its side. The kernel resets a connection that is closed with unread bytes, and
    /// the peer then may lose what was sent last.
    async fn linger(&self) {
        let mut completion = Completion::new();
        let mut left = LINGER_BYTES;
        let mut timeout = pin!(self.reactor.sleep(LINGER));
        while left > 0 {
            let Some(memory) = self.reactor.arena().take_reserved(PAGE) else { return };
            let mut receive = pin!(self.receive_some(memory.into(), &mut completion));
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
        let (queued, sending) = (self.session.borrow().queued_bytes(), self.sending.get());
        write!(f, "StreamConnection({:?}, {queued} bytes queued, {sending} being sent)", self.state.get())
    }
}

fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

/// The receiving task: receives until the connection ends, and performs what the session asks for.
pub(super) async fn receive<C: FrontConnection>(connection: &Rc<C>) {
    let stream = connection.stream();
    let mut receiver = Receiver { stream, completion: Completion::new(), rest: None, after_large: false };
    let mut actions = Vec::new();
    while stream.is_open() {
        let mode = stream.session.borrow_mut().receive_mode();
        let goes_on = match mode {
            ReceiveMode::Paused => {
                stream.resumed().await;
                stream.session.borrow_mut().resume(&mut actions);
                true
            }
            ReceiveMode::Into(memory) if !stream.places_payload() => {
                stream.session.borrow_mut().placed(memory, 0, stream.reactor.now(), &mut actions);
                receiver.chunk(&mut actions).await
            }
            ReceiveMode::Into(memory) => receiver.place(memory, &mut actions).await,
            ReceiveMode::Chunk => receiver.chunk(&mut actions).await,
        };
        stream.early_replies.set((actions.len() / 2).max(SEND_EARLY_REPLIES));
        connection.perform(&mut actions).await;
        stream.schedule_send();
        if !goes_on {
            break;
        }
    }
    stream.stop_receiving();
}

/// The state of the receiving task between two receives.
struct Receiver<'a, S: CommandData, C> {
    stream: &'a StreamConnection<S, C>,
    completion: Completion,
    /// The part of the last receive buffer that is still free.
    rest: Option<Buf>,
    /// The last receive placed payload directly. Most likely the next one does as well, after a header.
    after_large: bool,
}

impl<S: CommandData, C: RecordLayer> Receiver<'_, S, C> {
    /// Receives payload directly to its place. Returns whether the connection goes on.
    async fn place(&mut self, memory: SgMut, actions: &mut Vec<S::Action>) -> bool {
        let stream = self.stream;
        let Wire::Socket(socket) = &stream.wire else { return false };
        let (room, mut into) = (memory.len(), memory);
        // The next header most likely follows the payload.
        let rest = self.rest.take().filter(|rest| rest.len() <= CHUNK_MIN);
        rest.or_else(|| self.block(CHUNK_MIN)).into_iter().for_each(|tail| into.push(tail));
        // A peer that sends faster than this core receives does not wait for one reply; any other peer does.
        let at_once = !stream.reactor.has_waited();
        let received_all = stream.reactor.receive_in_row(socket, into, at_once, &mut self.completion);
        let (result, mut into) = received_all.await;
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

    /// Receives into a buffer of the connection. Returns whether the connection goes on.
    async fn chunk(&mut self, actions: &mut Vec<S::Action>) -> bool {
        let stream = self.stream;
        let Some(chunk) = self.memory().await else { return true };
        let len = chunk.len();
        let (result, memory) = stream.receive_some(chunk.into(), &mut self.completion).await;
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

    /// The first `count` bytes of the free part, which a receive has filled.
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

    /// Memory to receive into; `None` when the connection ends before there is some.
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
        // Commands that hold the arena's memory may wait for data that only this receive brings, so its header may take
        // from the reserve.
        stream.block_len.set(CHUNK_MIN);
        let arena = stream.reactor.arena();
        let mut enough = pin!(arena.wait_sg(CHUNK_MIN));
        poll_fn(|cx| {
            if !stream.is_open() {
                return Poll::Ready(None);
            }
            if let Some(chunk) = arena.take_reserved(CHUNK_MIN) {
                return Poll::Ready(Some(chunk));
            }
            stream.receiver.wake_later(cx);
            enough.as_mut().poll(cx).map(|memory| memory.into_pieces().next())
        })
        .await
    }
}

/// The bytes that were received, and whether the connection goes on. A receive that was cancelled has received none:
/// either its memory is wanted back, or the connection has ended, which the receiving task sees by its state.
fn received(result: Result<usize, Fault>) -> (usize, bool) {
    match result {
        Ok(0) => (0, false),
        Ok(count) => (count, true),
        Err(Fault::Aborted) => (0, true),
        Err(_) => (0, false),
    }
}
