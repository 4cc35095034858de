//! The SCSI target of a port: its initiators and their commands. It knows no Transfers.

use super::connection::{Connection, Session};
use super::core::Core;
use super::job::{DataPath, Job, Origin, bare};
use crate::directory::PortView;
use crate::exchange::{Broken, CommandId};
use crate::limits::{FUNCTIONS_MAX, INITIATORS_MAX, LOGINS_MAX, TAKEN_INTERVAL, TAKEN_TIMEOUT};
use crate::schema::WORD;
use crate::wire::fcp::{Response, ResponseCode, TaskFlag};
use crate::wire::{CommandBlock, LoginStatus, name_hash};
use lunar_core::mem::Sg;
use lunar_core::port::NexusName;
use lunar_engine::link_ports::{NexusTurns, PortSession, View};
use lunar_reactor::slots::contain;
use lunar_scsi::{Cdb, Command, Lun, Reply, Status, TaskAttribute, TaskFunction, TaskResponse};
use lunar_st::{Peer, Reason, VcId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The part of the name of an initiator port behind the name of its initiator: an ISID (RFC 7143 11.12.5) of a type
/// that no iSCSI initiator uses.
const PORT_NAME: &str = ",i,0xc00000005354";

/// The target of a port.
pub(super) struct SstTarget {
    core: Rc<Core>,
    /// The host that all stations of the link are, as far as they share memory and slots.
    host: IpAddr,
    connections: RefCell<BTreeMap<VcId, Rc<Connection>>>,
    /// Logins and logouts of one name take turns.
    pub(super) turns: Rc<NexusTurns<Arc<str>, VcId>>,
    /// Commands in progress that wait for a slot, or are executed.
    commands: Cell<usize>,
    /// Task management functions in progress.
    functions: Cell<usize>,
    /// Ends of nexuses in progress.
    ends: Cell<usize>,
}

/// A counter that counts until this is dropped.
pub(super) struct Counted(Rc<SstTarget>, fn(&SstTarget) -> &Cell<usize>);

impl Counted {
    fn new(target: &Rc<SstTarget>, counter: fn(&SstTarget) -> &Cell<usize>) -> Self {
        let count = counter(target);
        count.set(count.get() + 1);
        Self(target.clone(), counter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = (self.1)(&self.0);
        count.set(count.get() - 1);
    }
}

/// The address of a peer, if it has one that it has proved.
pub(super) fn address(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Ip(address) => Some(address.ip().to_canonical()),
        Peer::Station(_) => None,
    }
}

impl SstTarget {
    pub(super) fn new(core: &Rc<Core>) -> Rc<Self> {
        Rc::new(Self {
            core: core.clone(),
            host: core.next_host(),
            connections: RefCell::default(),
            turns: Rc::default(),
            commands: Cell::default(),
            functions: Cell::default(),
            ends: Cell::default(),
        })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// Commands, task management functions and ends of nexuses in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.commands.get() + self.functions.get() + self.ends.get()
    }

    pub(super) fn connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }

    pub(super) fn connection(&self, vc: VcId) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&vc).cloned()
    }

    /// The connections whose initiators are logged in.
    pub(super) fn sessions(&self) -> Vec<Rc<Connection>> {
        self.connections().into_iter().filter(|connection| connection.session().is_some()).collect()
    }

    pub(super) fn insert(&self, connection: Rc<Connection>) {
        self.connections.borrow_mut().insert(connection.vc, connection);
    }

    /// Decides about the login of an initiator, whose other login ends. Returns its view.
    pub(super) fn decide(
        self: &Rc<Self>,
        connection: &Connection,
        (name, target): (&str, &str),
        view: &PortView,
    ) -> Result<View, LoginStatus> {
        if self.core.draining.has_come() {
            return Err(LoginStatus::STOPPING);
        }
        if !target.is_empty() && !target.eq_ignore_ascii_case(&view.device) {
            return Err(LoginStatus::NO_TARGET);
        }
        let group = view.view_of(name, address(connection.peer)).ok_or(LoginStatus::NOT_SHOWN)?;
        let sessions = self.sessions();
        let is_same = |other: &&Rc<Connection>| other.session().is_some_and(|session| *session.name == *name);
        match sessions.iter().find(is_same) {
            Some(before) => self.end(before, Reason::ABORTED),
            None if sessions.len() >= INITIATORS_MAX => self.make_room(&sessions)?,
            None => {}
        }
        Ok(group)
    }

    /// Ends a session for another one. Initiators without end, which log in and vanish, must not keep others out.
    fn make_room(self: &Rc<Self>, sessions: &[Rc<Connection>]) -> Result<(), LoginStatus> {
        let order = |connection: &&Rc<Connection>| connection.session().and_then(Session::eviction_order);
        let unused = sessions.iter().filter_map(|connection| Some((order(&connection)?, connection)));
        let (_, first) = unused.min_by_key(|(order, _)| *order).ok_or(LoginStatus::FULL)?;
        self.end(first, Reason::NO_RESOURCES);
        Ok(())
    }

    /// Ends the connection that has waited for its login for the longest time, if as many as may wait.
    pub(super) fn limit_logins(self: &Rc<Self>) {
        let waiting = self.connections().into_iter().filter(|connection| connection.session().is_none());
        let waiting: Vec<Rc<Connection>> = waiting.collect();
        if waiting.len() >= LOGINS_MAX {
            let oldest = waiting.iter().min_by_key(|connection| connection.since);
            oldest.into_iter().for_each(|connection| self.end(connection, Reason::NO_RESOURCES));
        }
    }

    /// Admits an initiator, whose name has its turn.
    pub(super) fn admit(
        &self,
        connection: &Rc<Connection>,
        (name, depth): (Arc<str>, u16),
        (view, group): (&PortView, View),
        link: &str,
    ) {
        let (reactor, target) = (self.core.reactor(), self.core.target());
        let initiator = format!("{name}{PORT_NAME}").into();
        let nexus_name = NexusName { initiator, target_port: view.relative };
        let nexus = match &group.map {
            Some(map) => target.nexus_behind(nexus_name, map),
            None => target.nexus(nexus_name),
        };
        let stats = reactor.stats();
        // It is new, and has no counters.
        let _ = nexus.host.set(stats.hosts.session(WORD, &view.target, &name));
        stats.sessions.add(1);
        stats.logins.add(1);
        let host = address(connection.peer).unwrap_or(self.host);
        let shares = (reactor.arena().join(host), self.core.slot_shares.join(host));
        let source = format!("{link} {}", connection.peer);
        let target = view.target.clone();
        let words = format!(
            "initiator {name} has logged in at ST port {} of target {target}, group {}",
            view.name, group.group
        );
        let session = PortSession { since: reactor.now(), source, group: group.group.clone(), target };
        self.core.common.sessions().insert((view.name.clone(), name.clone()), session);
        self.core.common.notify(&name, None, &words);
        connection.begin(Session::new((name, group, view.name.clone()), nexus, shares, (depth, reactor.now())));
    }

    /// Sees to it that an initiator takes its data: a connection whose initiator leaves it for too long ends, and its
    /// memory is free.
    pub(super) fn watch(self: &Rc<Self>, connection: &Rc<Connection>) {
        let is_idle = |connection: &Connection| connection.is_closed() || connection.waiting_since().is_none();
        if is_idle(connection) || connection.is_watched.replace(true) {
            return;
        }
        let (target, connection) = (self.clone(), connection.clone());
        self.core.reactor().spawn(async move {
            let reactor = target.core.reactor();
            while !is_idle(&connection) && connection.is_open_after(TAKEN_INTERVAL).await {
                let since = connection.waiting_since();
                if since.is_some_and(|since| reactor.now().since(since) >= TAKEN_TIMEOUT) {
                    target.end(&connection, Reason::TIME_OUT);
                }
            }
            connection.is_watched.set(false);
        });
    }

    /// Ends a connection.
    pub(super) fn end(self: &Rc<Self>, connection: &Rc<Connection>, reason: Reason) {
        connection.close(reason);
        self.ended(connection.vc);
    }

    /// A connection has ended: the commands of its initiator are aborted.
    pub(super) fn ended(self: &Rc<Self>, vc: VcId) {
        let removed = self.connections.borrow_mut().remove(&vc);
        let Some(connection) = removed else { return };
        connection.shut();
        self.turns.cancel(&vc);
        let Some(session) = connection.session() else { return };
        let name = session.name.clone();
        self.core.reactor().stats().sessions.sub(1);
        self.core.common.sessions().remove(&(session.section.clone(), name.clone()));
        let (target, counted) = (self.clone(), Counted::new(self, |target| &target.ends));
        let nexus = session.nexus.clone();
        self.turns.end(self.core.reactor(), name, async move {
            let _counted = counted;
            target.core.target().close(&nexus).await;
        });
    }

    /// A command has arrived in a place.
    ///
    /// # Errors
    /// When the initiator breaks the rules of the transport.
    pub(super) fn command(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16) -> Result<(), Broken> {
        let Some(session) = connection.session() else { return Err(Broken::Slot) };
        let bytes = connection.command_bytes(slot);
        let block = CommandBlock::parse(&bytes).map_err(|_| Broken::Transfer)?;
        if block.name != name_hash(&session.name) {
            return Err(Broken::Slot);
        }
        let place = connection.begin_command(slot, &block)?;
        let origin = Origin { target: self.clone(), connection: connection.clone(), place };
        if let Some(tag) = block.aborted() {
            // A task that is gone has no number.
            let number = connection.tagged(tag).map_or(0, |place| place.number);
            self.task_management(&origin, TaskFunction::ABORT_TASK, (Lun(block.command.lun), number));
            return Ok(());
        }
        let lun = Lun(block.command.lun);
        if block.command.task != 0 {
            match function(TaskFlag(block.command.task)) {
                Some(function) => self.task_management(&origin, function, (lun, 0)),
                None => origin.inform(ResponseCode::INVALID_FIELDS, [0; 3]),
            }
            return Ok(());
        }
        let Some(cdb) = Cdb::new(block.command.cdb) else {
            origin.inform(ResponseCode::INVALID_FIELDS, [0; 3]);
            return Ok(());
        };
        let command = Command {
            lun,
            cdb,
            attribute: TaskAttribute::of_port(block.command.attribute),
            tag: place.number,
            data_in: block.command.data_in,
            data_out: block.command.data_out,
        };
        self.execute(origin, command);
        Ok(())
    }

    fn execute(self: &Rc<Self>, origin: Origin, command: Command) {
        let connection = origin.connection.clone();
        let Some(session) = connection.session() else { return };
        let target = self.core.target();
        let task = session.nexus.tasks.enter((command.tag, command.lun));
        if self.core.draining.has_come() {
            return origin.respond(bare(&command, Status::BUSY), (Sg::default(), None));
        }
        let mut reply = Reply::default();
        let path = DataPath::new(&origin, &task, &command);
        // Commands are executed in the order of their arrival: none goes before those that wait for a slot.
        let now = || {
            session.waiting.get() == 0
                && target.execute_now(&session.nexus, &command, &path, self.core.reactor().arena(), &mut reply)
        };
        let ended = contain(now);
        let sent = path.into_sent();
        match ended {
            Some(false) => {}
            Some(true) => return origin.reply(&command, &mut reply, sent),
            None => return origin.reply(&command, &mut target.failed(), sent),
        }
        let share = if session.waiting.get() == 0 { session.slots.take(1) } else { None };
        let counted = Counted::new(self, |target| &target.commands);
        match share {
            Some(share) => self.start(Job { origin, task, command, share, counted }),
            None => self.start_later(origin, (task, command), counted),
        }
    }

    fn start(self: &Rc<Self>, job: Job) {
        let (origin, command) = (job.origin.clone(), job.command);
        if let Err(job) = self.core.slots.start(job) {
            if let Some(session) = origin.connection.session() {
                self.core.target().task_set_full(&session.nexus, job.command.lun);
            }
            origin.respond(bare(&command, Status::TASK_SET_FULL), (Sg::default(), None));
        }
    }

    /// Starts a command when its initiator has another slot: in the order of arrival. The places of the region bound
    /// how many wait.
    fn start_later(self: &Rc<Self>, origin: Origin, (task, command): (lunar_scsi::Task, Command), counted: Counted) {
        let target = self.clone();
        let connection = origin.connection.clone();
        if let Some(session) = connection.session() {
            session.waiting.set(session.waiting.get() + 1);
        }
        self.core.reactor().stats().slot_waits.add(1);
        self.core.reactor().spawn(async move {
            let Some(session) = connection.session() else { return };
            let share = task.unless_aborted(session.slots.wait(1)).await;
            session.waiting.set(session.waiting.get() - 1);
            match share {
                Ok(share) => target.start(Job { origin, task, command, share, counted }),
                // An aborted command has no response. `task` leaves the task set here.
                Err(_) => origin.connection.release(origin.place),
            }
        });
    }

    fn task_management(self: &Rc<Self>, origin: &Origin, function: TaskFunction, (lun, tag): (Lun, u64)) {
        if self.functions.get() >= FUNCTIONS_MAX {
            return origin.inform(ResponseCode::FAILED, [0; 3]);
        }
        let (target, origin) = (self.clone(), origin.clone());
        let counted = Counted::new(self, |target| &target.functions);
        self.core.reactor().spawn(async move {
            let _counted = counted;
            let Some(session) = origin.connection.session() else { return };
            let response = target.core.target().task_management(&session.nexus, function, lun, tag).await;
            let (code, more) = match response {
                TaskResponse::Complete | TaskResponse::NoTask => (ResponseCode::COMPLETE, [0; 3]),
                TaskResponse::Succeeded(information) => (ResponseCode::SUCCEEDED, information),
                TaskResponse::IncorrectLun => (ResponseCode::INCORRECT_LUN, [0; 3]),
                TaskResponse::Rejected => (ResponseCode::REJECTED, [0; 3]),
            };
            origin.inform(code, more);
        });
    }

    /// The initiator has ended the Transfer of a command: the command is aborted.
    pub(super) fn abort(&self, connection: &Connection, place: CommandId) {
        let Some(session) = connection.session() else { return };
        let aborted = session.nexus.tasks.abort(move |(tag, _): (u64, Lun)| tag == place.number);
        self.core.reactor().stats().tasks_aborted.add(aborted);
        if let Some(host) = session.nexus.host.get() {
            host.aborted(aborted);
        }
    }
}

/// The task management function of a flag.
fn function(flag: TaskFlag) -> Option<TaskFunction> {
    Some(match flag {
        TaskFlag::ABORT_TASK_SET => TaskFunction::ABORT_TASK_SET,
        TaskFlag::CLEAR_TASK_SET => TaskFunction::CLEAR_TASK_SET,
        TaskFlag::LOGICAL_UNIT_RESET => TaskFunction::LOGICAL_UNIT_RESET,
        TaskFlag::TARGET_RESET => TaskFunction::TARGET_WARM_RESET,
        TaskFlag::CLEAR_ACA => TaskFunction::CLEAR_ACA,
        TaskFlag::QUERY_TASK_SET => TaskFunction::QUERY_TASK_SET,
        TaskFlag::QUERY_ASYNC_EVENT => TaskFunction::QUERY_ASYNC_EVENT,
        _ => return None,
    })
}

/// The response of a code without a command.
pub(super) fn information(code: ResponseCode, more: [u8; 3]) -> crate::wire::fcp::ResponseBytes {
    Response { information: Some((code.0, more)), ..Response::default() }.bytes()
}
