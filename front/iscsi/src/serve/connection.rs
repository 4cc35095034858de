//! One connection: a task that receives, a task that sends, and the ways that its commands' data takes.

use super::Front;
use crate::session::{self, Action, Close, Fault as Guilt, Pull, Session, TaskKey, TaskManagement, Want};
use crate::wire::{Function, FunctionResponse};
use lunar_core::io::{Completion, Fault};
use lunar_core::mem::{Buf, PAGE, Sg, SgMut};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::step::{PIECE_BYTES, Tools};
use lunar_core::time::Instant;
use lunar_reactor::op::Handle;
use lunar_scsi::{Cdb, Command, Lun, Nexus, Status, Task, TaskAttribute, TaskFunction, TaskResponse};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// What is received at once when little comes: commands are some fifty bytes. It is what an idle session holds.
const CHUNK_MIN: usize = PAGE;
/// What is received at once when much comes.
const CHUNK_MAX: usize = 256 << 10;
/// The rest of a chunk is used again down to this many bytes: room for a few headers.
const CHUNK_REST: usize = 1024;
/// Bytes queued or under way to a peer before its reads wait for room: enough to keep a wire busy while the next are
/// read, few enough that a peer that does not read ties up little.
const SEND_QUEUE_MAX: usize = 1 << 20;
/// A peer that takes nothing of what is sent to it for so long is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// An initiator that was asked for data and does not send it for so long has lost the command.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last answer gets to reach the peer before a connection is closed over unread data.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that a peer may still send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// One connection.
pub(super) struct Connection {
    pub(super) id: u64,
    front: Rc<Front>,
    socket: Handle,
    local: SocketAddr,
    peer: SocketAddr,
    session: RefCell<Session>,
    nexus: RefCell<Option<Rc<Nexus>>>,
    tsih: Cell<u16>,
    /// Nothing more is received; what is queued is sent.
    ended: Cell<bool>,
    /// What has been sent is all that will be.
    silent: Cell<bool>,
    /// Bytes under way, and since when.
    sending: Cell<usize>,
    sending_since: Cell<Instant>,
    /// Whether something came since it was last looked at.
    active: Cell<bool>,
    chunk_len: Cell<usize>,
    sender: Cell<Option<Waker>>,
    receiver: Cell<Option<Waker>>,
    /// Commands that wait for room towards the peer.
    crowd: RefCell<Vec<Waker>>,
    /// Commands that wait for data from the peer.
    pulls: RefCell<HashMap<TaskKey, Waker>>,
}

/// A command for a slot.
pub(super) struct Job {
    connection: Rc<Connection>,
    nexus: Rc<Nexus>,
    key: TaskKey,
    task: Task,
    command: Command,
}

impl Connection {
    pub(super) fn new(front: Rc<Front>, id: u64, socket: Handle, local: SocketAddr, peer: SocketAddr) -> Rc<Self> {
        let (reactor, config) = (&front.reactor, front.session_config.clone());
        let now = reactor.now();
        let session = Session::new(config, reactor.arena().clone(), reactor.stats().clone(), now);
        Rc::new(Self {
            id,
            socket,
            local,
            peer,
            session: RefCell::new(session),
            nexus: RefCell::default(),
            tsih: Cell::new(0),
            ended: Cell::new(false),
            silent: Cell::new(false),
            sending: Cell::new(0),
            sending_since: Cell::new(now),
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
            self.receiver.take().map_or((), Waker::wake);
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
        if actions.iter().any(|action| matches!(action, Action::Close(_))) {
            self.note_close();
            self.end();
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
            Some(candidate) => eprintln!("iscsi: {} ({}) {what}", candidate.initiator.escape_debug(), self.peer),
            None => eprintln!("iscsi: {} {what}", self.peer),
        }
    }

    /// Lets the sender look whether something is queued.
    fn kick(&self) {
        self.sender.take().map_or((), Waker::wake);
    }

    async fn receive(self: &Rc<Self>) {
        let reactor = &self.front.reactor;
        let mut completion = Completion::new();
        let mut actions = Vec::new();
        let mut rest: Option<Buf> = None;
        let mut after_large = false;
        while !self.ended.get() {
            let want = self.session.borrow_mut().want();
            let (result, memory) = match want {
                Want::Nothing => {
                    self.until_it_goes_on().await;
                    self.session.borrow_mut().resume(&mut actions);
                    self.act(&mut actions).await;
                    continue;
                }
                Want::Into(memory) => reactor.receive(&self.socket, memory, &mut completion).await,
                Want::Chunk => {
                    let chunk = self.chunk(rest.take(), after_large).await;
                    reactor.receive(&self.socket, chunk, &mut completion).await
                }
            };
            let now = reactor.now();
            let count = match result {
                Ok(0) => break,
                Ok(count) => count,
                // Cancelled to give memory back, or to end: the loop looks which.
                Err(Fault::Aborted) => 0,
                Err(_) => break,
            };
            self.active.set(true);
            after_large = matches!(want_kind(&memory, count), Kind::Large);
            if self.session.borrow().expects_placed() {
                self.session.borrow_mut().placed(memory, count, now, &mut actions);
            } else if count > 0 {
                rest = self.take_chunk(memory, count, now, &mut actions);
            }
            self.act(&mut actions).await;
        }
    }
}
