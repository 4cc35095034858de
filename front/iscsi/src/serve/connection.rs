//! One connection: what its session asks for, and its end.

use super::Front;
use super::job::Job;
use crate::authenticator::audit::LoginDetails;
use crate::authenticator::{AuthOutcome, LoginAttempt};
use crate::chap::ChapAnswer;
use crate::directory::{Directory, PortalRef};
use crate::login::{Candidate, Established, LoginDecision};
use crate::registry::{SessionLocation, SessionRecord};
use crate::session::{self, Action, CloseReason, Responsible, Session, TaskKey, TaskManagement};
use crate::wire::{Function, FunctionResponse, LoginStatus};
use lunar_core::port::NexusName;
use lunar_core::shares::Member;
use lunar_core::step::FinalData;
use lunar_core::time::Instant;
use lunar_reactor::log;
use lunar_reactor::slots::contain;
use lunar_reactor::tcp::TcpState;
use lunar_scsi::{Cdb, Command, Lun, Nexus, Reply, Status, Task, TaskAttribute, TaskFunction, TaskResponse};
use lunar_stream::record_layer::Plain;
use lunar_stream::serve::{self, AcceptedWire, FrontConnection, StreamConnection};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// One connection.
pub(super) struct Connection {
    id: u64,
    pub(super) front: Rc<Front>,
    pub(super) stream: StreamConnection<Session>,
    /// Its share of the slots of the core, and the number of commands that wait for one.
    slot_share: Member,
    waiting: Cell<usize>,
    /// The portal it came in through.
    portal_ref: PortalRef,
    /// The target port that this is, by its relative identifier, once it has logged in.
    port: Cell<u16>,
    local: SocketAddr,
    peer: SocketAddr,
    /// The names and the address of a login in progress.
    attempt: RefCell<Option<LoginAttempt>>,
    /// Whether the authenticator has recorded that the login is refused.
    is_recorded: Cell<bool>,
    nexus: RefCell<Option<Rc<Nexus>>>,
    /// The group that its initiator belongs to, once it has logged in.
    group: RefCell<Option<Arc<str>>>,
    tsih: Cell<u16>,
}

impl Connection {
    /// The TSIH, once the initiator has logged in, and the state of the TCP connection, if its session is wanted.
    pub(super) fn tcp_state(&self, is_wanted: impl Fn(u16) -> bool) -> Option<(u16, TcpState)> {
        let tsih = Some(self.tsih.get()).filter(|tsih| *tsih != 0 && is_wanted(*tsih))?;
        Some((tsih, self.stream.tcp_state()?))
    }

    /// Adds the TCP segments that were sent again to the counters of the host.
    pub(super) fn count_retransmits(&self) {
        if let Some(host) = self.nexus.borrow().as_ref().and_then(|nexus| nexus.host.get()) {
            host.retransmitted(self.stream.new_retransmits());
        }
    }

    pub(super) fn new(front: Rc<Front>, id: u64, portal_ref: PortalRef, (socket, local, peer): AcceptedWire) -> Self {
        let (reactor, config) =
            (&front.reactor, Rc::new(front.authenticator.directory().session.over(front.transport)));
        let (arena, source) = (reactor.arena(), peer.ip());
        let memory = arena.join(source);
        let session = Session::new(config, arena.clone(), &memory.unsolicited, reactor.stats().clone(), reactor.now());
        Self {
            id,
            stream: StreamConnection::new(reactor, socket, memory, session, Plain),
            slot_share: front.slot_shares.join(source),
            waiting: Cell::new(0),
            portal_ref,
            port: Cell::new(0),
            local,
            peer,
            attempt: RefCell::default(),
            is_recorded: Cell::new(false),
            nexus: RefCell::default(),
            group: RefCell::default(),
            tsih: Cell::new(0),
            front,
        }
    }

    pub(super) fn ask_to_log_out(&self, time: Duration, now: Instant) {
        self.stream.session().request_logout(time, now);
        self.stream.schedule_send();
    }

    /// Whether the directory still allows the session. A login in progress is checked again at its end.
    pub(super) fn may_stay(&self, directory: &Directory) -> bool {
        let (group, session) = (self.group.borrow(), self.stream.session());
        match (&*group, session.candidate()) {
            (Some(group), Some(Candidate { initiator, target: Some(target), discovery: false, .. })) => {
                directory.allows_session(target, self.portal_ref, self.port.get(), (initiator, self.peer.ip()), group)
            }
            _ => directory.has_portal(self.portal_ref),
        }
    }

    /// Whether its initiator belongs to one of these groups.
    pub(super) fn is_in(&self, groups: &BTreeSet<Arc<str>>) -> bool {
        self.group.borrow().as_ref().is_some_and(|group| groups.contains(group))
    }

    /// Counts and tells why a session closes its connection. Strangers that never logged in are only counted.
    fn closing(&self, why: CloseReason) {
        let stats = self.front.reactor.stats();
        if let CloseReason::LoginRefused(status) = why
            && !self.is_recorded.get()
        {
            let session = self.stream.session();
            let known = self.attempt.take().map(|attempt| attempt.login().clone());
            let login = known.unwrap_or_else(|| LoginDetails::unknown(self.peer, self.front.transport));
            self.front.authenticator.log_refused(login, status, session.refusal_reason(), self.front.reactor.now());
        }
        match why {
            CloseReason::LoginRefused(_) => stats.logins_refused.add(1),
            CloseReason::PingTimeout => stats.keepalive_timeouts.add(1),
            _ => {}
        }
        // The audit log has refused logins.
        let is_refusal = matches!(why, CloseReason::LoginRefused(_));
        if self.nexus.borrow().is_some() || !is_refusal && why.responsible() == Responsible::Target {
            self.log(&why.to_string());
        }
    }

    async fn authenticate(&self, chap_answer: &ChapAnswer, more: &mut Vec<Action>) {
        let Some(mut attempt) = self.attempt.take() else {
            return self.stream.session().authenticated(Err(LoginStatus::TARGET_ERROR), more);
        };
        let AuthOutcome { result, delay } =
            self.front.authenticator.authenticate(&mut attempt, chap_answer, self.front.reactor.now());
        if !delay.is_zero() {
            self.stream.pause(delay).await;
        }
        // The authenticator has recorded a refusal.
        self.is_recorded.set(result.is_err());
        if result.is_ok() {
            self.attempt.replace(Some(attempt));
        }
        self.stream.session().authenticated(result, more);
    }

    /// Waits for its turn, if its host logs in more often than it may.
    async fn arrive(&self, candidate: &Candidate) -> Result<(), LoginStatus> {
        let wait = self.front.authenticator.login_delay(candidate, self.peer, self.front.reactor.now())?;
        if !wait.is_zero() {
            self.stream.session().extend_login(wait);
            self.stream.pause(wait).await;
        }
        Ok(())
    }

    async fn establish(&self, established: Established, more: &mut Vec<Action>) {
        let (stats, candidate) = (self.front.reactor.stats(), &established.candidate);
        let Some(attempt) = self.attempt.take() else {
            return self.stream.session().established(Err(LoginStatus::TARGET_ERROR), more);
        };
        let mut registered = self.enter(&established, &attempt).await;
        if let Ok(tsih) = registered {
            self.tsih.set(tsih);
            self.group.replace(attempt.login().group.clone());
            // The directory may have changed since the decision, and its review may have run before this session was
            // registered.
            if !self.may_stay(&self.front.authenticator.directory()) {
                registered = Err(LoginStatus::NOT_FOUND);
            }
        }
        if registered.is_err() {
            self.attempt.replace(Some(attempt));
        } else {
            self.front.authenticator.log_accepted(&attempt, self.front.reactor.now());
            if !candidate.discovery {
                let isid = candidate.isid.iter().fold(0_u64, |isid, byte| isid << 8 | u64::from(*byte));
                let initiator = format!("{},i,0x{isid:012x}", candidate.initiator).into();
                let name = NexusName { initiator, target_port: self.port.get() };
                let target = &self.front.target;
                let nexus = attempt
                    .map()
                    .map_or_else(|| target.nexus(name.clone()), |map| target.nexus_behind(name.clone(), map));
                let at = candidate.target.as_deref().unwrap_or_default();
                // It is new, and has no counters.
                let _ = nexus.host.set(stats.hosts.session(self.front.transport.word(), at, &candidate.initiator));
                *self.nexus.borrow_mut() = Some(nexus);
                stats.sessions.add(1);
                stats.logins.add(1);
            }
        }
        self.stream.session().established(registered, more);
    }

    fn location(&self) -> SessionLocation {
        SessionLocation { core: self.front.me, connection: self.id, transport: self.front.transport }
    }

    /// Gives its session a number.
    async fn enter(&self, established: &Established, attempt: &LoginAttempt) -> Result<u16, LoginStatus> {
        let (front, group) = (&self.front, self.portal_ref.group);
        // One portal group of a target is one target port.
        let port = attempt.entry().and_then(|entry| entry.ports.get(&group)).copied().unwrap_or(0);
        self.port.set(port);
        let (candidate, parameters) = (established.candidate.clone(), established.parameters);
        let (login, location, since) = (attempt.login().clone(), self.location(), front.reactor.now());
        let record = SessionRecord { candidate, login, group, port, location, since, parameters };
        front.enter(self.id, record, attempt).await
    }

    fn command(self: &Rc<Self>, command: &session::Command) {
        let key = command.task;
        let cdb = command.cdb.get(..usize::from(command.cdb_len)).and_then(Cdb::new);
        // A session without a nexus (discovery) hands out no commands, nor does any with longer CDBs.
        let (Some(nexus), Some(cdb)) = (self.nexus.borrow().clone(), cdb) else {
            return self.stream.session().drop_task(key);
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
        let data_path = serve::DataPath::new(&self.stream, key, &task, command.data_out);
        let mut reply = Reply::default();
        // Commands are executed in the order of their arrival: none goes before those that wait for a slot.
        let now = || {
            self.waiting.get() == 0
                && self.front.target.execute_now(&nexus, &command, &data_path, self.front.reactor.arena(), &mut reply)
        };
        match contain(now) {
            Some(false) => {}
            Some(true) => return self.reply(key, &mut reply),
            None => return self.reply(key, &mut self.front.target.failed()),
        }
        drop(data_path);
        let share = if self.waiting.get() == 0 { self.slot_share.take(1) } else { None };
        match share {
            Some(share) => {
                self.start(Job { connection: self.clone(), nexus, key, task, command, arrived: None, share });
            }
            None => self.start_later(nexus, key, task, command),
        }
        self.stream.session().detach(key);
    }

    fn start(&self, job: Job) {
        let key = job.key;
        if let Err(job) = self.front.slots.start(job) {
            self.front.target.task_set_full(&job.nexus, job.command.lun);
            drop(job);
            self.stream.session().reply(key, Status::TASK_SET_FULL.0, &[], &mut FinalData::default(), 0);
        }
    }

    /// Starts a command when its session has another slot: commands of one session take slots in the order in which
    /// they arrived. The command window bounds how many wait.
    fn start_later(self: &Rc<Self>, nexus: Rc<Nexus>, key: TaskKey, task: Task, command: Command) {
        let (connection, arrived) = (self.clone(), Some(self.front.reactor.now()));
        self.waiting.set(self.waiting.get() + 1);
        self.front.reactor.stats().slot_waits.add(1);
        self.front.reactor.spawn(async move {
            let share = task.unless_aborted(connection.slot_share.wait(1)).await;
            connection.waiting.set(connection.waiting.get() - 1);
            match share {
                Ok(share) => {
                    let own = connection.clone();
                    connection.start(Job { connection: own, nexus, key, task, command, arrived, share });
                }
                // An aborted command has no reply. `task` leaves the task set here.
                Err(_) => connection.drop_task(key),
            }
        });
    }

    /// Ends an aborted command.
    pub(super) fn drop_task(&self, key: TaskKey) {
        self.stream.session().drop_task(key);
        self.stream.schedule_send();
    }

    pub(super) fn reply(&self, key: TaskKey, reply: &mut Reply) {
        self.stream.session().reply(key, reply.status.0, &reply.sense, &mut reply.final_data, reply.wanted);
        self.stream.schedule_send();
    }

    fn task_management(self: &Rc<Self>, request: TaskManagement) {
        let connection = self.clone();
        let mut work = Box::pin(async move {
            let nexus = connection.nexus.borrow().clone();
            let Some(nexus) = nexus else { return };
            let function = TaskFunction(request.function.0);
            let (lun, tag) = (Lun(request.lun), u64::from(request.tag));
            let response = connection.front.target.task_management(&nexus, function, lun, tag).await;
            connection.stream.until_read().await;
            let (outcome, information) = function_response(response);
            connection.stream.session().function_done(request.task, outcome, information);
            connection.stream.schedule_send();
            // RFC 7143 11.5.1: the sessions of all initiators end.
            if request.function == Function::TARGET_COLD_RESET && response == TaskResponse::Complete {
                let target = connection.stream.session().candidate().and_then(|candidate| candidate.target.clone());
                connection.front.end_sessions_of(&target.unwrap_or_default()).await;
            }
        });
        // Begun at once: it ends what came before it (11.5.1), not the commands that lie behind it in the same bytes.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.front.reactor.spawn(work);
        }
    }
}

impl FrontConnection for Connection {
    type Session = Session;
    type RecordLayer = Plain;

    fn stream(&self) -> &StreamConnection<Session> {
        &self.stream
    }

    async fn perform(self: &Rc<Self>, actions: &mut Vec<Action>) {
        while !actions.is_empty() {
            let mut more = Vec::new();
            for action in actions.drain(..) {
                match action {
                    Action::Command(command) => self.command(&command),
                    Action::DataReady(key) => self.stream.data_ready(key),
                    Action::TaskManagement(function) => self.task_management(function),
                    Action::SendTargets(query) => {
                        let mut session = self.stream.session();
                        let host = session.candidate().map(|candidate| candidate.initiator.clone()).unwrap_or_default();
                        session.targets(&self.front.targets(
                            &query,
                            &host,
                            (self.peer, self.local),
                            self.portal_ref.group,
                        ));
                    }
                    Action::Authorize(candidate) => {
                        let (verdict, attempt) = match self.arrive(&candidate).await {
                            Ok(()) => self.front.judge(&candidate, self.portal_ref, self.peer),
                            Err(status) => (LoginDecision::Refused(status), None),
                        };
                        self.is_recorded.set(attempt.is_none());
                        self.attempt.replace(attempt);
                        self.stream.session().authorized(verdict, &mut more);
                    }
                    Action::Authenticate(chap_answer) => self.authenticate(&chap_answer, &mut more).await,
                    Action::Establish(established) => self.establish(*established, &mut more).await,
                    Action::Close(why) => {
                        self.closing(why);
                        self.stream.stop_receiving();
                    }
                }
            }
            *actions = more;
        }
    }

    async fn close(self: &Rc<Self>) {
        self.count_retransmits();
        let nexus = self.nexus.take();
        if let Some(nexus) = &nexus {
            self.front.target.close(nexus).await;
            self.front.reactor.stats().sessions.sub(1);
        }
        self.stream.finish().await;
        let tsih = self.tsih.get();
        if tsih != 0 {
            self.front.registry.remove(tsih, self.location());
        }
    }

    fn is_idle(&self) -> bool {
        self.stream.session().tasks() == 0
    }

    fn deadline(&self) -> Option<Instant> {
        self.stream.session().deadline()
    }

    fn tick(&self, now: Instant, _active: bool) {
        let mut actions = Vec::new();
        self.stream.session().tick(now, &mut actions);
        for action in actions {
            if let Action::Close(why) = action {
                self.closing(why);
                self.stream.end();
            }
        }
    }

    fn log(&self, what: &str) {
        let (session, word) = (self.stream.session(), self.front.transport.word());
        match session.candidate() {
            Some(candidate) => log!("{word}: {} ({}): {what}", candidate.initiator.escape_debug(), self.peer),
            None => log!("{word}: {}: {what}", self.peer),
        }
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
