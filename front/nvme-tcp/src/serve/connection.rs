//! One connection: the actions of its session, and its end.

use super::job::{Half, Job, Request};
use super::secure::Security;
use super::{Front, Shares};
use crate::config::IN_CAPSULE_MAX;
use crate::pdu_queue::Digests;
use crate::schema::WORD;
use crate::session::{Action, CloseReason, Session, TaskKey};
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::shares::{Member, Share};
use lunar_core::step::FinalData;
use lunar_core::time::Instant;
use lunar_nvme::auth::QueueAuthentication;
use lunar_nvme::command::{FABRICS, Refusal};
use lunar_nvme::directory::PortalRef;
use lunar_nvme::{Caller, Command, Controller, Kind, Path, Queue, Reply, Status};
use lunar_reactor::log;
use lunar_reactor::slots::contain;
use lunar_reactor::tcp::TcpState;
use lunar_stream::serve::{AcceptedWire, FrontConnection, StreamConnection};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The type of Disconnect among Fabrics commands.
const DISCONNECT: u8 = 0x08;

/// The queues of a controller are checked on their own cores. The admin queue applies the keep-alive timeout this much
/// later, so that the activity of all queues counts.
const HEARSAY: Duration = Duration::from_secs(1);

/// The time at which the keep-alive timeout of a queue is applied; `None`: never.
fn given_up(queue: &Rc<Queue>) -> Option<Instant> {
    let silent = queue.controller.deadline()?;
    Some(if queue.id == 0 { silent + HEARSAY } else { silent })
}

/// One connection.
pub(super) struct Connection {
    id: u64,
    pub(super) front: Rc<Front>,
    pub(super) stream: StreamConnection<Session, Security>,
    local: SocketAddr,
    peer: SocketAddr,
    portal_ref: PortalRef,
    queue: RefCell<Option<Rc<Queue>>>,
    /// Its shares of the slots, as an I/O queue and as an admin queue, and of the commands that wait for one.
    io_share: Member,
    admin_share: Member,
    waiting_share: Member,
    /// Its share of the memory for data that its commands have brought along and that wait for a slot.
    unsolicited_share: Member,
}

impl Connection {
    /// Its controller, once it has one, and the state of the TCP connection, if the controller is wanted.
    pub(super) fn tcp_state(&self, is_wanted: impl Fn(&Controller) -> bool) -> Option<(Arc<Controller>, TcpState)> {
        let queue = self.queue.borrow();
        let controller = queue.as_ref().map(|queue| queue.controller.clone()).filter(|own| is_wanted(own))?;
        Some((controller, self.stream.tcp_state()?))
    }

    /// Adds the TCP segments that were sent again to the counters of the host.
    pub(super) fn count_retransmits(&self) {
        self.queue.borrow().iter().for_each(|queue| queue.retransmitted(self.stream.new_retransmits()));
    }

    pub(super) fn new(front: Rc<Front>, id: u64, (socket, local, peer): AcceptedWire, portal_ref: PortalRef) -> Self {
        let reactor = &front.reactor;
        let session = Session::new(reactor.arena().clone(), reactor.stats().clone(), reactor.now());
        let security = Security::new(front.settings.tls.as_ref(), portal_ref.is_secure);
        let source = peer.ip();
        let memory = reactor.arena().join(source);
        let unsolicited_share = memory.unsolicited.clone();
        let stream = StreamConnection::new(reactor, socket, memory, session, security);
        let Shares { io, admin, waiting } = &front.shares;
        let (io_share, admin_share, waiting_share) = (io.join(source), admin.join(source), waiting.join(source));
        let queue = RefCell::default();
        Self {
            id,
            stream,
            local,
            peer,
            portal_ref,
            queue,
            io_share,
            admin_share,
            waiting_share,
            unsolicited_share,
            front,
        }
    }

    /// Logs why a session closes its connection, if the host had a queue.
    fn closing(&self, why: CloseReason) {
        let is_ours = why == CloseReason::NoMemory;
        if is_ours || why != CloseReason::Disconnected && self.queue.borrow().is_some() {
            self.log(&why.to_string());
        }
    }

    /// The path of the host, which discovery reports to it.
    fn path(&self) -> Path {
        let ip = self.front.settings.advertise.unwrap_or_else(|| self.local.ip());
        let Digests { header, data } = self.stream.session().digests();
        let tcp = Path::tcp((ip, self.local.port()).into(), IN_CAPSULE_MAX);
        Path { portal_ref: self.portal_ref, digests: (header, data), ..tcp }
    }

    fn caller(&self) -> Caller {
        Caller { transport: WORD, source: self.peer, tls_peer: self.stream.record_layer().tls_peer() }
    }

    /// Executes Connect, after a delay if the source connects too often.
    fn connect_in_turn(self: &Rc<Self>, key: TaskKey, command: Command, data: &Sg) {
        let (reactor, data) = (&self.front.reactor, data.to_vec());
        match self.front.subsystem.arrive(&command, &data, &self.caller(), reactor.now()) {
            Ok(Duration::ZERO) => self.connect(key, &command, &data),
            Ok(wait) => {
                let connection = self.clone();
                reactor.spawn(async move {
                    let turn = connection.front.reactor.sleep(wait);
                    if connection.stream.unless_closed(turn).await.is_some() {
                        connection.connect(key, &command, &data);
                        connection.stream.schedule_send();
                    }
                });
            }
            Err(refusal) => self.refuse(key, refusal),
        }
    }

    fn refuse(&self, key: TaskKey, refusal: Refusal) {
        self.stream.session().connected(key, Err(refusal.status), refusal.result);
        self.front.reactor.stats().logins_refused.add(1);
    }

    fn connect(self: &Rc<Self>, key: TaskKey, command: &Command, data: &[u8]) {
        let front = &self.front;
        let answer = match front.connections.is_draining() {
            true => Err(Status::CONNECT_BUSY.into()),
            false => {
                let (path, now) = (self.path(), front.reactor.now());
                front.subsystem.connect(command, data, path, self.caller(), now)
            }
        };
        match answer {
            Ok((queue, result)) => {
                let mut session = self.stream.session();
                session.connected(key, Ok((queue.id, queue.entries, queue.flow_control)), result);
                let passes = queue.passes();
                if !passes {
                    session.require_authentication();
                }
                drop(session);
                self.begin(queue.clone());
                if passes {
                    self.has_connected(&queue);
                }
            }
            Err(refusal) => self.refuse(key, refusal),
        }
    }

    /// Starts the tasks of a queue: it ends with its controller, and the admin queue reports events.
    fn begin(self: &Rc<Self>, queue: Rc<Queue>) {
        let reactor = &self.front.reactor;
        *self.queue.borrow_mut() = Some(queue.clone());
        let (connection, controller) = (self.clone(), queue.controller.clone());
        let id = queue.id;
        reactor.spawn(async move {
            if connection.stream.unless_closed(controller.until_over(id)).await.is_some() {
                connection.stream.end();
            }
        });
        if id > 0 {
            return;
        }
        let (connection, controller) = (self.clone(), queue.controller.clone());
        reactor.spawn(async move {
            while let Some((cid, status, result)) = connection.stream.unless_closed(controller.event()).await {
                connection.stream.session().reply_to(cid, status, result.into());
                connection.stream.schedule_send();
            }
        });
        reactor.stats().sessions.add(1);
    }

    /// A Fabrics command has completed: the queue may end with it, or its host be authenticated.
    pub(super) fn after_fabrics(&self, queue: &Queue, kind: u8, status: Status) {
        let disconnects = kind == DISCONNECT && queue.id > 0 && status == Status::SUCCESS;
        if disconnects || queue.authentication().is_some_and(QueueAuthentication::has_failed) {
            self.stream.session().disconnected();
            self.stream.end();
        } else if queue.passes() && self.stream.session().authenticated() {
            self.has_connected(queue);
        }
    }

    /// The queue is connected, and its host authenticated if necessary.
    fn has_connected(&self, queue: &Queue) {
        self.front.connections.mark_identified(self.id);
        if queue.id > 0 {
            return;
        }
        self.front.reactor.stats().logins.add(1);
        if queue.controller.kind == Kind::Io {
            self.log("connected");
        }
    }

    fn half(self: &Rc<Self>, queue: &Rc<Queue>, key: TaskKey, command: Command) -> Half {
        let sqe = &command.sqe;
        let task = queue.tasks.enter((sqe.cid.get(), sqe.nsid.get()));
        Half { key, task, command }
    }

    fn command(self: &Rc<Self>, key: TaskKey, command: Command) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let half = self.half(&queue, key, command);
        let mut reply = Reply::default();
        let now = || {
            let (subsystem, arena) = (&self.front.subsystem, self.front.reactor.arena());
            subsystem.execute_now(&queue, &half.command, &half.data_path(self), arena, &mut reply)
        };
        match contain(now) {
            Some(false) => {}
            Some(true) => return self.reply(key, &mut reply),
            None => {
                let status = queue.failed(&half.command.sqe, Status::INTERNAL_ERROR);
                return self.reply(key, &mut Reply::of(status));
            }
        }
        let is_fabrics = half.command.sqe.opcode == FABRICS;
        self.run(Request { queue, first: half, second: None, is_fabrics });
    }

    fn reply(&self, key: TaskKey, reply: &mut Reply) {
        self.stream.session().reply(key, reply.status, reply.result, &mut reply.final_data);
        self.stream.schedule_send();
    }

    fn fused(self: &Rc<Self>, halves: [(TaskKey, Command); 2]) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let [first, second] = halves.map(|(key, command)| self.half(&queue, key, command));
        self.run(Request { queue, first, second: Some(Box::new(second)), is_fabrics: false });
    }

    /// Executes a request in a slot, or queues it for one.
    fn run(self: &Rc<Self>, request: Request) {
        let can_run = !request.first.reads() || request.first.data_path(self).has_room();
        let share = if can_run { self.slot_share(&request).take(1) } else { None };
        match share {
            Some(share) => self.start(request.with(self, None, share)),
            None => self.start_later(request),
        }
    }

    fn slot_share(&self, request: &Request) -> &Member {
        if request.queue.id == 0 { &self.admin_share } else { &self.io_share }
    }

    fn start(&self, job: Job) {
        // There are as many slots as shares.
        if let Err(job) = self.front.slots.start(job) {
            let halves = std::iter::once(&job.first).chain(job.second.as_deref());
            self.end_unstarted(&job.queue, halves, Status::NOT_READY);
        }
    }

    /// Starts a request when it can run: when its connection has room for what the host reads, and its queue has a
    /// slot. A host that does not read therefore takes no slots.
    fn start_later(self: &Rc<Self>, request: Request) {
        let kept = self.keep_waiting(&request);
        let Some(kept) = kept else {
            self.front.subsystem.task_set_full(&request.queue, &request.first.command);
            return self.end_unstarted(&request.queue, request.halves(), Status::NOT_READY);
        };
        self.front.reactor.stats().slot_waits.add(1);
        let (connection, arrived) = (self.clone(), Some(self.front.reactor.now()));
        self.front.reactor.spawn(async move {
            let share = connection.slot(&request).await;
            drop(kept);
            match share {
                Ok(share) => connection.start(request.with(&connection, arrived, share)),
                Err(_) => connection.end_unstarted(&request.queue, request.halves(), Status::ABORTED),
            }
        });
    }

    async fn slot(&self, request: &Request) -> Result<Share, Fault> {
        if request.first.reads() {
            request.first.data_path(self).room().await?;
        }
        let share = request.first.task.unless_aborted(self.slot_share(request).wait(1));
        match &request.second {
            Some(second) => second.task.unless_aborted(share).await?,
            None => share.await,
        }
    }

    /// The shares of a request while it waits: a place, and memory for its in-capsule data, which leaves the receive
    /// buffer. `None`: the share of the host is used up.
    fn keep_waiting(&self, request: &Request) -> Option<[Share; 2]> {
        let place = self.waiting_share.take(1)?;
        let mut session = self.stream.session();
        let keys = || request.halves().map(|half| half.key);
        let mut memory = self.unsolicited_share.empty_share();
        for key in keys() {
            let bytes = session.in_capsule_bytes(key);
            if !memory.grow(bytes) || !session.detach(key) {
                return None;
            }
        }
        Some([place, memory])
    }

    /// Completes a request that was not started. NVMe has no status for a busy device; hosts retry after this one.
    fn end_unstarted<'a>(&self, queue: &Queue, halves: impl Iterator<Item = &'a Half>, status: Status) {
        let mut session = self.stream.session();
        for half in halves {
            let status = queue.failed(&half.command.sqe, status);
            session.reply(half.key, status, 0, &mut FinalData::default());
        }
        drop(session);
        self.stream.schedule_send();
    }

    /// The host has not sent requested data in time, so the session is closed.
    pub(super) fn end_late(&self) {
        self.closing(CloseReason::DataTimeout);
        self.stream.end();
    }
}

impl FrontConnection for Connection {
    type Session = Session;
    type RecordLayer = Security;

    fn stream(&self) -> &StreamConnection<Session, Security> {
        &self.stream
    }

    async fn perform(self: &Rc<Self>, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Command(key, command) => self.command(key, command),
                Action::Fused(halves) => self.fused(*halves),
                Action::DataReady(key) => self.stream.data_ready(key),
                Action::EventReplaced(cid) => {
                    self.queue.borrow().iter().for_each(|queue| queue.controller.withdraw_event(cid));
                }
                Action::Refused(sqe, status) => {
                    // The session has completed the command; only the error is logged.
                    self.queue.borrow().iter().for_each(|queue| _ = queue.failed(&sqe, status));
                }
                Action::Connect(key, command, data) => self.connect_in_turn(key, *command, &data),
                Action::Close(why) => {
                    self.closing(why);
                    self.stream.stop_receiving();
                }
            }
        }
    }

    async fn close(self: &Rc<Self>) {
        if let Some((host, why)) = self.stream.record_layer().failure() {
            let (authenticator, now) = (&self.front.subsystem.config().authenticator, self.front.reactor.now());
            authenticator.tls_refused(self.peer, host, why, now);
            self.front.reactor.stats().logins_refused.add(1);
        }
        self.count_retransmits();
        // A reset waits for the end of the queue, not for the last bytes of the connection.
        if let Some(queue) = self.queue.take() {
            if queue.id == 0 {
                // Its I/O queues end as well, on all cores.
                queue.controller.end();
                self.front.reactor.stats().sessions.sub(1);
            }
            self.front.reactor.stats().tasks_aborted.add(queue.tasks.abort(|_| true));
            queue.tasks.until_gone(|_| true).await;
        }
        self.stream.finish().await;
    }

    /// The end of the admin queue ends the controller and the commands of its I/O queues, so the I/O queues end first.
    fn may_close(&self) -> bool {
        let queue = self.queue.borrow();
        !queue.as_ref().is_some_and(|queue| queue.id == 0 && queue.controller.has_io_queues())
    }

    /// Commands that wait for an event are not in progress.
    fn is_idle(&self) -> bool {
        self.queue.borrow().as_ref().is_none_or(|queue| queue.tasks.is_empty())
    }

    fn deadline(&self) -> Option<Instant> {
        let silent = self.queue.borrow().as_ref().and_then(given_up);
        [self.stream.session().deadline(), silent].into_iter().flatten().min()
    }

    fn tick(&self, now: Instant, active: bool) {
        let mut actions = Vec::new();
        self.stream.session().tick(now, &mut actions);
        if !actions.is_empty() {
            self.closing(CloseReason::ConnectTimeout);
            self.stream.end();
        }
        let Some(queue) = &*self.queue.borrow() else { return };
        if active {
            queue.controller.restart_keep_alive(now);
        } else if queue.id == 0 && given_up(queue).is_some_and(|at| at <= now) {
            self.front.reactor.stats().keepalive_timeouts.add(1);
            self.log("keep-alive timeout");
            queue.controller.end();
        }
    }

    fn log(&self, what: &str) {
        match &*self.queue.borrow() {
            Some(queue) => {
                let controller = &queue.controller;
                let (host, id) = (controller.host.nqn.escape_debug(), controller.id);
                log!("nvme: {host} ({}, controller {id}, queue {}): {what}", self.peer, queue.id);
            }
            None => log!("nvme: {}: {what}", self.peer),
        }
    }
}
