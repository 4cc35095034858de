//! A connection, as the carrier of a session.

use crate::config::{IMMEDIATE_MAX, WINDOW_MAX};
use crate::iser::mover::{self, DataMover, Named, Operation, Received, Violation};
use crate::iser::wire::{Header, Hello};
use crate::serve::connection::Connection;
use crate::session::Action;
use crate::wire::R2t;
use lunar_core::io::Fault;
use lunar_core::mem::{Chunks, Sg, SgMut, Slice};
use lunar_rdma::engine::{ConnectionId, Ended};
use lunar_rdma::limits::READ_MAX;
use lunar_rdma::port::Port;
use lunar_rdma::requester::{Completed, Message};
use lunar_rdma::transfers::Transfers;
use lunar_rdma::wire::Remote;
use lunar_reactor::Reactor;
use lunar_stream::protocol::ProtocolMachine;
use lunar_stream::serve::{Carrier, FrontConnection};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use zerocopy::IntoBytes;

/// Bytes queued on a connection before its session waits with more.
const SEND_QUEUE_MAX: usize = 1 << 20;
/// Commands whose memory is known: those of the largest window, twice as many that have ended without a response, and
/// immediate ones. An initiator that names more violates the order of commands.
const COMMANDS_MAX: usize = 3 * WINDOW_MAX as usize + IMMEDIATE_MAX;

/// The endpoint of connections.
pub(super) trait Home {
    /// Ends a connection.
    fn disconnect(&self, id: ConnectionId);
}

/// A PDU that has arrived, and that the session has not received yet.
struct Arrived {
    bytes: Vec<u8>,
    /// Bytes that the session has received.
    at: usize,
    named: Option<Named>,
}

/// The parts that are known once there is a session.
struct Bound {
    connection: Weak<Connection>,
    transfers: Transfers,
}

/// A connection.
pub(super) struct RdmaCarrier {
    me: Weak<Self>,
    id: ConnectionId,
    reactor: Reactor,
    port: Rc<Port>,
    endpoint: Weak<dyn Home>,
    mover: RefCell<DataMover>,
    bound: OnceCell<Bound>,
    /// The header of PDUs that are sent.
    header: OnceCell<Slice>,
    chunks: Chunks,
    operations: Cell<Vec<Operation>>,
    /// The receives that are posted bound it.
    inbox: RefCell<VecDeque<Arrived>>,
    /// Receives that are posted when the initiator has logged in.
    held_back: Cell<usize>,
    is_cancelled: Cell<bool>,
    is_closed: Cell<bool>,
    /// The tasks that receive and send, while they wait.
    receiver: Cell<Option<Waker>>,
    is_receiving: Cell<bool>,
    sender: Cell<Option<Waker>>,
}

impl RdmaCarrier {
    /// The carrier of a connection. `invalidates`: the initiator allows that its keys are invalidated; `held_back`:
    /// receives that are posted when it has logged in.
    pub(super) fn new(
        id: ConnectionId,
        (invalidates, held_back): (bool, usize),
        reactor: &Reactor,
        port: &Rc<Port>,
        endpoint: Weak<dyn Home>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            id,
            reactor: reactor.clone(),
            port: port.clone(),
            endpoint,
            mover: RefCell::new(DataMover::new(invalidates)),
            bound: OnceCell::default(),
            header: OnceCell::default(),
            chunks: Chunks::default(),
            operations: Cell::default(),
            inbox: RefCell::default(),
            held_back: Cell::new(held_back),
            is_cancelled: Cell::default(),
            is_closed: Cell::default(),
            receiver: Cell::default(),
            is_receiving: Cell::default(),
            sender: Cell::default(),
        })
    }

    /// Serves this session.
    pub(super) fn bind(&self, connection: &Rc<Connection>) {
        let outgoing = &connection.stream.memory().outgoing;
        let transfers = Transfers::new(self.id, &self.port, outgoing, SEND_QUEUE_MAX);
        // It is bound once.
        let _ = self.bound.set(Bound { connection: Rc::downgrade(connection), transfers });
    }

    /// The session, until it has ended.
    pub(super) fn connection(&self) -> Option<Rc<Connection>> {
        self.bound.get()?.connection.upgrade()
    }

    /// A message has arrived.
    pub(super) fn message(&self, bytes: &[u8]) {
        match mover::received(bytes) {
            Ok(Received::Pdu(bytes, named)) => {
                self.inbox.borrow_mut().push_back(Arrived { bytes, at: 0, named });
                self.receiver.take().into_iter().for_each(Waker::wake);
            }
            Ok(Received::Hello(reads)) => self.hello(reads),
            Err(why) => self.violated(why),
        }
    }

    /// Answers a hello message of an initiator that takes so many READs (RFC 7145 5.1.3).
    fn hello(&self, reads: Option<u16>) {
        let agreed = mover::agreed_reads(reads, self.port.look(|engine| engine.reads(self.id)));
        let reply = self.chunks.copy(self.reactor.arena(), &[Hello::reply(agreed).as_bytes()]);
        let (Some(reply), Some(bound)) = (reply, self.bound.get()) else { return self.end() };
        bound.transfers.send(Message { posts: 1, ..Message::from(Sg::from(reply)) });
        match agreed {
            Some(reads) => self.port.with(|engine, _| engine.limit_reads(self.id, reads)),
            // A connection that is rejected ends when the initiator knows it.
            None => self.shut_down(),
        }
    }

    fn violated(&self, why: Violation) {
        self.reactor.stats().protocol_errors.add(1);
        if let Some(connection) = self.connection() {
            connection.log(&format!("the initiator violates iSER ({why:?}), and is disconnected"));
        }
        self.end();
    }

    /// Ends the connection at once.
    fn end(&self) {
        match self.endpoint.upgrade() {
            Some(endpoint) => endpoint.disconnect(self.id),
            None => self.close(),
        }
    }

    /// The connection has ended by itself.
    pub(super) fn failed(&self, why: Ended) {
        if let (Ended::Failed(why), Some(connection)) = (why, self.connection()) {
            connection.log(&format!("the connection has failed: {why:?}"));
        }
    }

    /// The connection has ended.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.bound.get().into_iter().for_each(|bound| bound.transfers.close());
        self.inbox.borrow_mut().clear();
        self.receiver.take().into_iter().for_each(Waker::wake);
        self.sender.take().into_iter().for_each(Waker::wake);
    }

    /// A READ is complete.
    pub(super) fn completed(&self, completed: Completed) {
        if let Some(bound) = self.bound.get() {
            bound.transfers.read(completed);
        }
    }

    /// Some of what was queued has arrived.
    pub(super) fn progress(&self) {
        self.bound.get().into_iter().for_each(|bound| bound.transfers.progress());
        self.sender.take().into_iter().for_each(Waker::wake);
    }

    fn carry_out(&self, bound: &Bound, connection: &Rc<Connection>, operation: Operation) {
        match operation {
            Operation::Send(pdu, invalidates) => {
                if self.header.get().is_none() {
                    let header = self.chunks.copy(self.reactor.arena(), &[Header::of_target().as_bytes()]);
                    header.into_iter().for_each(|header| _ = self.header.set(header));
                }
                // A PDU must not be lost: the initiator connects again, and repeats what was not answered.
                let Some(header) = self.header.get() else { return bound.transfers.fail() };
                let mut data = Sg::from(header.clone());
                data.append(pdu);
                bound.transfers.send(Message { invalidates, ..Message::from(data) });
            }
            Operation::Write(_, data) if data.is_empty() => {}
            // If the connection is gone, the response is discarded as well.
            Operation::Write(to, data) => _ = bound.transfers.write(to, data),
            Operation::Read(r2t, from) => {
                let memory = connection.stream.session().begin_read(&r2t);
                match memory {
                    Some(memory) => self.read(r2t, from, memory),
                    None => self.end_read(&r2t, None),
                }
            }
        }
    }

    /// Reads the data that an R2T requests.
    fn read(&self, r2t: R2t, from: Remote, memory: SgMut) {
        let Some(carrier) = self.me.upgrade() else { return };
        let mut work = Box::pin(async move {
            let (Some(bound), Some(connection)) = (carrier.bound.get(), carrier.connection()) else { return };
            let len = memory.len();
            let parts = (0..len).step_by(READ_MAX).map(|at| (from.plus(at), READ_MAX.min(len - at)));
            // The command counts the memory.
            let share = connection.stream.memory().solicited.empty_share();
            drop(connection);
            let Some(request) = bound.transfers.request(parts, memory, share) else { return };
            // Otherwise the connection has ended, and its commands end with it.
            if let Ok((data, _)) = request.data().await {
                carrier.end_read(&r2t, Some(data));
            }
        });
        // Begun at once: it is queued before what the session sends behind it.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.reactor.spawn(work);
        }
    }

    fn end_read(&self, r2t: &R2t, data: Option<Sg>) {
        let Some(connection) = self.connection() else { return };
        let mut actions = Vec::new();
        connection.stream.session().read(r2t.itt.get(), r2t.ttt.get(), data, &mut actions);
        for action in actions {
            if let Action::DataReady(key) = action {
                connection.stream.data_ready(key);
            }
        }
        connection.stream.schedule_send();
    }

    /// Copies PDUs to memory; returns how many bytes.
    fn take(&self, memory: &mut SgMut) -> Result<usize, Violation> {
        let (mut inbox, mut mover) = (self.inbox.borrow_mut(), self.mover.borrow_mut());
        let (mut done, mut taken) = (0, 0);
        while let Some(first) = inbox.front_mut() {
            let room = memory.len() - done;
            // A PDU that does not fit is received with the next buffer.
            if room == 0 || done > 0 && first.bytes.len() > room {
                break;
            }
            if first.at == 0 {
                if mover.commands() >= COMMANDS_MAX {
                    return Err(Violation::TooMany);
                }
                mover.deliver(first.named.take());
            }
            let copied = memory.copy_from(done, &first.bytes[first.at..]);
            (done, first.at) = (done + copied, first.at + copied);
            if first.at == first.bytes.len() {
                inbox.pop_front();
                taken += 1;
            }
        }
        drop(inbox);
        if taken > 0 {
            self.port.with(|engine, _| engine.post(self.id, taken));
        }
        Ok(done)
    }
}

impl Carrier for RdmaCarrier {
    fn send(&self, data: Sg) {
        let (Some(bound), Some(connection)) = (self.bound.get(), self.connection()) else { return };
        let (is_logged_in, tags_all_data) = {
            let session = connection.stream.session();
            (session.is_established(), session.parameters().tags_all_data)
        };
        // Before the response to the login: the initiator sends commands when it has it.
        if is_logged_in && self.held_back.get() > 0 {
            self.port.with(|engine, _| engine.post(self.id, self.held_back.take()));
        }
        let mut operations = self.operations.take();
        let result = self.mover.borrow_mut().send(data, tags_all_data, &mut operations);
        operations.drain(..).for_each(|operation| self.carry_out(bound, &connection, operation));
        self.operations.set(operations);
        if let Err(why) = result {
            return self.violated(why);
        }
        // The session has received all PDUs, so every command is a task or has ended.
        if self.is_receiving.get() {
            let session = connection.stream.session();
            if session.queued_bytes() == 0 {
                self.mover.borrow_mut().forget_ended(session.tasks(), |itt| session.has_task(itt));
            }
        }
    }

    fn poll_room(&self, cx: &Context<'_>) -> Poll<Result<(), Fault>> {
        if self.is_closed.get() {
            return Poll::Ready(Err(Fault::Aborted));
        }
        if !self.bound.get().is_some_and(|bound| bound.transfers.is_full()) {
            return Poll::Ready(Ok(()));
        }
        self.sender.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn poll_receive(&self, cx: &Context<'_>, memory: &mut SgMut) -> Poll<Result<usize, Fault>> {
        self.is_receiving.set(false);
        if self.is_cancelled.take() {
            return Poll::Ready(Err(Fault::Aborted));
        }
        if self.is_closed.get() {
            return Poll::Ready(Ok(0));
        }
        match self.take(memory) {
            Ok(0) => {
                self.is_receiving.set(true);
                self.receiver.set(Some(cx.waker().clone()));
                Poll::Pending
            }
            Ok(count) => Poll::Ready(Ok(count)),
            Err(why) => {
                self.violated(why);
                Poll::Ready(Ok(0))
            }
        }
    }

    fn until_read(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let carrier = self.me.upgrade();
        Box::pin(async move {
            if let Some(bound) = carrier.as_ref().and_then(|carrier| carrier.bound.get()) {
                bound.transfers.until_read().await;
            }
        })
    }

    fn cancel(&self) {
        self.is_cancelled.set(true);
        self.receiver.take().into_iter().for_each(Waker::wake);
    }

    fn shut_down(&self) {
        let Some(carrier) = self.me.upgrade() else { return };
        self.reactor.spawn(async move {
            if let Some(bound) = carrier.bound.get() {
                bound.transfers.settled().await;
            }
            carrier.end();
        });
    }
}

impl fmt::Debug for RdmaCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaCarrier({})", self.id.0)
    }
}
