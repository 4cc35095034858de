//! One connection: what its session asks for, and its end.

use super::Front;
use super::job::{Half, Job};
use super::secure::Security;
use crate::config::IN_CAPSULE_MAX;
use crate::session::{Action, CloseReason, Session, TaskKey};
use lunar_core::mem::Sg;
use lunar_core::step::Tail;
use lunar_core::time::Instant;
use lunar_nvme::auth::Proof;
use lunar_nvme::command::{FABRICS, Refusal};
use lunar_nvme::directory::Way;
use lunar_nvme::{Caller, Command, Kind, Path, Queue, Reply, Status};
use lunar_reactor::log;
use lunar_reactor::slots::contain;
use lunar_stream::serve::{AcceptedSocket, FrontConnection, StreamConnection};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The type of Disconnect among Fabrics commands.
const DISCONNECT: u8 = 0x08;

/// What the other queues of a controller have heard is known when their own time has come, on their cores: so much
/// later its admin queue decides.
const HEARSAY: Duration = Duration::from_secs(1);

/// When something has to be done about the silence of a queue's host; `None`: never.
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
    way: Way,
    queue: RefCell<Option<Rc<Queue>>>,
}

impl Connection {
    pub(super) fn new(front: Rc<Front>, id: u64, (socket, local, peer): AcceptedSocket, way: Way) -> Self {
        let reactor = &front.reactor;
        let session = Session::new(reactor.arena().clone(), reactor.stats().clone(), reactor.now());
        let security = Security::new(front.settings.channels.as_ref(), way.is_secure);
        let stream = StreamConnection::new(reactor, socket, session, security);
        Self { id, stream, local, peer, way, queue: RefCell::default(), front }
    }

    /// Tells why a session closes its connection. Strangers that never had a queue are only counted.
    fn closing(&self, why: CloseReason) {
        let is_ours = why == CloseReason::NoMemory;
        if is_ours || why != CloseReason::Disconnected && self.queue.borrow().is_some() {
            self.log(&why.to_string());
        }
    }

    /// How the host came, and so how it is told to come again.
    fn path(&self) -> Path {
        let ip = self.front.settings.advertise.unwrap_or_else(|| self.local.ip());
        Path { way: self.way, ..Path::tcp((ip, self.local.port()).into(), IN_CAPSULE_MAX) }
    }

    fn caller(&self) -> Caller {
        Caller { source: self.peer, channel: self.stream.record_layer().bearer() }
    }

    /// Who comes too often waits for his turn.
    fn knock(self: &Rc<Self>, key: TaskKey, command: Command, data: &Sg) {
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

    /// There is a queue: it ends with its controller, and the admin queue tells of events.
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

    /// A Fabrics command was answered: the queue ends with it, or its host has proved its name.
    pub(super) fn after_fabrics(&self, queue: &Queue, kind: u8, status: Status) {
        let disconnects = kind == DISCONNECT && queue.id > 0 && status == Status::SUCCESS;
        if disconnects || queue.proof().is_some_and(Proof::has_failed) {
            self.stream.session().disconnected();
            self.stream.end();
        } else if queue.passes() && self.stream.session().authenticated() {
            self.has_connected(queue);
        }
    }

    /// A queue may be used.
    fn has_connected(&self, queue: &Queue) {
        self.front.connections.mark_identified(self.id);
        if queue.id > 0 {
            return;
        }
        self.front.reactor.stats().logins.add(1);
        if queue.controller.kind == Kind::Io {
            self.log("has connected");
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
        self.run(Job { connection: self.clone(), queue, first: half, second: None, is_fabrics });
    }

    fn reply(&self, key: TaskKey, reply: &mut Reply) {
        self.stream.session().reply(key, reply.status, reply.result, &mut reply.tail);
        self.stream.schedule_send();
    }

    fn fused(self: &Rc<Self>, halves: [(TaskKey, Command); 2]) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let [first, second] = halves.map(|(key, command)| self.half(&queue, key, command));
        self.run(Job { connection: self.clone(), queue, first, second: Some(Box::new(second)), is_fabrics: false });
    }

    fn run(self: &Rc<Self>, job: Job) {
        if let Err(job) = self.front.slots.start(job) {
            self.front.reactor.stats().task_set_full.add(1);
            // What a host tries again: it has no word for a device that is busy.
            let refuse = |half: &Half| (half.key, job.queue.failed(&half.command.sqe, Status::NOT_READY));
            let refused = [Some(refuse(&job.first)), job.second.as_deref().map(refuse)];
            drop(job);
            let mut session = self.stream.session();
            for (key, status) in refused.into_iter().flatten() {
                session.reply(key, status, 0, &mut Tail::default());
            }
        }
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
                    // Nothing more is to be said of it.
                    self.queue.borrow().iter().for_each(|queue| _ = queue.failed(&sqe, status));
                }
                Action::Connect(key, command, data) => self.knock(key, *command, &data),
                Action::Close(why) => {
                    self.closing(why);
                    self.stream.stop_receiving();
                }
            }
        }
    }

    async fn close(self: &Rc<Self>) {
        if let Some((host, why)) = self.stream.record_layer().failure() {
            let (guard, now) = (&self.front.subsystem.config().guard, self.front.reactor.now());
            guard.refused_channel(self.peer, host, why, now);
            self.front.reactor.stats().logins_refused.add(1);
        }
        // A reset waits for the queue, and not for the last bytes of its connection.
        if let Some(queue) = self.queue.take() {
            if queue.id == 0 {
                // Its I/O queues end as well, wherever they are.
                queue.controller.end();
                self.front.reactor.stats().sessions.sub(1);
            }
            self.front.reactor.stats().tasks_aborted.add(queue.tasks.abort(|_| true));
            queue.tasks.until_gone(|_| true).await;
        }
        self.stream.finish().await;
    }

    /// With its admin queue a controller ends, and with it the commands of its other queues: those come first.
    fn may_close(&self) -> bool {
        let queue = self.queue.borrow();
        !queue.as_ref().is_some_and(|queue| queue.id == 0 && queue.controller.has_io_queues())
    }

    /// What waits for an event is not under way.
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
            queue.controller.hear(now);
        } else if queue.id == 0 && given_up(queue).is_some_and(|at| at <= now) {
            self.front.reactor.stats().keepalive_timeouts.add(1);
            self.log("is silent for too long");
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
