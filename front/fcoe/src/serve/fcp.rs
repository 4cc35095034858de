//! The Fibre Channel Protocol of a port: its initiators and their commands. It knows no frames.

use super::core::Core;
use super::exchange_port::ExchangePort;
use super::initiator::Initiator;
use super::job::{DataPath, Job, Origin, bare};
use crate::directory::PortView;
use crate::limits::{FUNCTIONS_MAX, INITIATORS_MAX};
use crate::port::CommandIn;
use crate::port::exchange::ExchangeKey;
use crate::schema::WORD;
use crate::wire::fcp::{self, Response, ResponseCode, TaskFlag};
use crate::wire::names::{PortId, Wwn};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::port::NexusName;
use lunar_engine::link_ports::{NexusTurns, Outcome, PortSession, View};
use lunar_reactor::slots::contain;
use lunar_scsi::{Cdb, Command, Lun, Reply, Status, TaskAttribute, TaskFunction, TaskResponse};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

/// The protocol of a port.
pub(super) struct FcpTarget {
    core: Rc<Core>,
    /// The host that all initiators of the link are, as far as they share memory and slots.
    host: IpAddr,
    initiators: RefCell<BTreeMap<PortId, Rc<Initiator>>>,
    /// Logins and logouts of one name take turns.
    pub(super) turns: Rc<NexusTurns<Wwn, PortId>>,
    /// Commands in progress.
    commands: Cell<usize>,
    /// Task management functions and aborts in progress.
    functions: Cell<usize>,
}

/// A counter that counts until this is dropped.
pub(super) struct Counted(Rc<FcpTarget>, fn(&FcpTarget) -> &Cell<usize>);

impl Counted {
    fn new(target: &Rc<FcpTarget>, counter: fn(&FcpTarget) -> &Cell<usize>) -> Self {
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

impl FcpTarget {
    pub(super) fn new(core: &Rc<Core>) -> Rc<Self> {
        Rc::new(Self {
            core: core.clone(),
            host: core.next_host(),
            initiators: RefCell::default(),
            turns: Rc::default(),
            commands: Cell::default(),
            functions: Cell::default(),
        })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// Commands, task management functions and aborts in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.commands.get() + self.functions.get()
    }

    /// The initiators that are logged in.
    pub(super) fn initiators(&self) -> Vec<Rc<Initiator>> {
        self.initiators.borrow().values().cloned().collect()
    }

    /// An initiator has logged in at this port. Its login before, if there is one, has ended for the port.
    pub(super) fn login(
        self: &Rc<Self>,
        port: &Rc<dyn ExchangePort>,
        (peer, name): (PortId, Wwn),
        view: &PortView,
        link: &str,
    ) {
        self.logout(port, peer);
        let Some(group) = view.view_of(name) else { return port.log_out(peer) };
        if self.initiators.borrow().len() >= INITIATORS_MAX {
            let most = format!("initiator {name} cannot log in: {INITIATORS_MAX} others are logged in at this port");
            self.core.common.notify(&name, Some((RefusalCode::Full, &view.target)), &most);
            return port.log_out(peer);
        }
        if self.turns.is_free(&name) {
            return self.admit(port, (peer, name), (view, group), link);
        }
        let turn = self.turns.wait(name, peer);
        let (target, port, link) = (self.clone(), port.clone(), link.to_owned());
        self.core.reactor().spawn(async move {
            match (turn.await, port.view()) {
                (Outcome::Turn, Some(view)) => target.login(&port, (peer, name), &view, &link),
                (Outcome::Replaced, _) => port.log_out(peer),
                (Outcome::Turn | Outcome::Cancelled, _) => {}
            }
        });
    }

    fn admit(
        &self,
        port: &Rc<dyn ExchangePort>,
        (peer, name): (PortId, Wwn),
        (view, group): (&PortView, View),
        link: &str,
    ) {
        let (reactor, target) = (self.core.reactor(), self.core.target());
        let nexus_name = NexusName { initiator: name.to_string().into(), target_port: view.relative };
        let nexus = match &group.map {
            Some(map) => target.nexus_behind(nexus_name, map),
            None => target.nexus(nexus_name),
        };
        let stats = reactor.stats();
        // It is new, and has no counters.
        let _ = nexus.host.set(stats.hosts.session(WORD, &view.target, &name.to_string()));
        stats.sessions.add(1);
        stats.logins.add(1);
        let memory = reactor.arena().join(self.host);
        port.open(peer, memory.outgoing.empty_share());
        let shares = (memory, self.core.slot_shares.join(self.host));
        let source = format!("{link} {peer:?}");
        let session =
            PortSession { since: reactor.now(), source, group: group.group.clone(), target: view.target.clone() };
        let words = format!(
            "initiator {name} has logged in at FCoE port {} of target {}, group {}",
            view.name, view.target, group.group
        );
        let initiator = Initiator::new((name, peer), (group, view.name.clone()), nexus, shares);
        self.initiators.borrow_mut().insert(peer, initiator);
        self.core.common.sessions().insert((view.name.clone(), name), session);
        self.core.common.notify(&name, None, &words);
    }

    /// The login of an initiator has ended: its commands are aborted.
    pub(super) fn logout(self: &Rc<Self>, port: &Rc<dyn ExchangePort>, peer: PortId) {
        port.shut(peer);
        self.turns.cancel(&peer);
        let removed = self.initiators.borrow_mut().remove(&peer);
        let Some(initiator) = removed else { return };
        self.core.reactor().stats().sessions.sub(1);
        self.core.common.sessions().remove(&(initiator.section.clone(), initiator.name));
        let (target, counted) = (self.clone(), Counted::new(self, |target| &target.functions));
        self.turns.end(self.core.reactor(), initiator.name, async move {
            let _counted = counted;
            target.core.target().close(&initiator.nexus).await;
        });
    }

    /// A command has arrived.
    pub(super) fn command(self: &Rc<Self>, port: &Rc<dyn ExchangePort>, arrived: &CommandIn<'_>) {
        let initiator = self.initiators.borrow().get(&arrived.peer).cloned();
        let answer = |response: &fcp::ResponseBytes| match arrived.key {
            Some(key) => port.respond(key, response),
            None => port.refuse(arrived.peer, arrived.ox_id, response),
        };
        let invalid = Some((ResponseCode::INVALID_FIELDS.0, [0; 3]));
        let Ok(parsed) = fcp::Command::parse(arrived.bytes) else {
            return answer(&Response { information: invalid, ..Response::default() }.bytes());
        };
        let (lun, cdb) = (Lun(parsed.lun), Cdb::new(parsed.cdb));
        let (Some(key), Some(cdb), Some(initiator)) = (arrived.key, cdb, initiator) else {
            // Too many commands, too long a CDB, or the login before has not ended yet.
            let (expected, is_full) = (parsed.data_in.max(parsed.data_out), arrived.key.is_none());
            if is_full {
                self.core.reactor().stats().task_set_full.add(1);
            }
            let status = if is_full { Status::TASK_SET_FULL } else { Status::BUSY };
            let information = if cdb.is_none() { invalid } else { None };
            let residual = -i64::from(expected);
            return answer(&Response { status: status.0, residual, information, ..Response::default() }.bytes());
        };
        let origin = Origin { target: self.clone(), port: port.clone(), initiator, key };
        if parsed.task != 0 {
            return self.task_management(&origin, TaskFlag(parsed.task), lun);
        }
        let command = Command {
            lun,
            cdb,
            attribute: TaskAttribute::of_port(parsed.attribute),
            tag: key.number,
            data_in: parsed.data_in,
            data_out: parsed.data_out,
        };
        self.execute(origin, command);
    }

    fn execute(self: &Rc<Self>, origin: Origin, command: Command) {
        let (initiator, target) = (origin.initiator.clone(), self.core.target());
        let task = initiator.nexus.tasks.enter((command.tag, command.lun));
        if self.core.draining.has_come() {
            return origin.port.respond(origin.key, &bare(&command, Status::BUSY));
        }
        let mut reply = Reply::default();
        let path = DataPath::new(&origin, &task);
        // Commands are executed in the order of their arrival: none goes before those that wait for a slot.
        let now = || {
            initiator.waiting.get() == 0
                && target.execute_now(&initiator.nexus, &command, &path, self.core.reactor().arena(), &mut reply)
        };
        let ended = contain(now);
        drop(path);
        match ended {
            Some(false) => {}
            Some(true) => return origin.reply(&command, &mut reply),
            None => return origin.reply(&command, &mut target.failed()),
        }
        let share = if initiator.waiting.get() == 0 { initiator.slots.take(1) } else { None };
        match share {
            Some(share) => self.start(Job { origin, task, command, share }),
            None => self.start_later(origin, task, command),
        }
    }

    fn start(self: &Rc<Self>, job: Job) {
        let origin = job.origin.clone();
        if let Err(job) = self.core.slots.start(job) {
            self.core.target().task_set_full(&origin.initiator.nexus, job.command.lun);
            origin.port.respond(origin.key, &bare(&job.command, Status::TASK_SET_FULL));
        }
    }

    /// Starts a command when its initiator has another slot: in the order of arrival. The limit of exchanges bounds how
    /// many wait.
    fn start_later(self: &Rc<Self>, origin: Origin, task: lunar_scsi::Task, command: Command) {
        let target = self.clone();
        let initiator = origin.initiator.clone();
        initiator.waiting.set(initiator.waiting.get() + 1);
        self.core.reactor().stats().slot_waits.add(1);
        let counted = Counted::new(self, |target| &target.commands);
        self.core.reactor().spawn(async move {
            let _counted = counted;
            let share = task.unless_aborted(initiator.slots.wait(1)).await;
            initiator.waiting.set(initiator.waiting.get() - 1);
            match share {
                Ok(share) => target.start(Job { origin, task, command, share }),
                // An aborted command has no response. `task` leaves the task set here.
                Err(_) => origin.port.release(origin.key),
            }
        });
    }

    fn task_management(self: &Rc<Self>, origin: &Origin, flag: TaskFlag, lun: Lun) {
        let respond = |code: ResponseCode, more| {
            let information = Some((code.0, more));
            origin.port.respond(origin.key, &Response { information, ..Response::default() }.bytes());
        };
        let function = match flag {
            TaskFlag::ABORT_TASK_SET => TaskFunction::ABORT_TASK_SET,
            TaskFlag::CLEAR_TASK_SET => TaskFunction::CLEAR_TASK_SET,
            TaskFlag::LOGICAL_UNIT_RESET => TaskFunction::LOGICAL_UNIT_RESET,
            TaskFlag::TARGET_RESET => TaskFunction::TARGET_WARM_RESET,
            TaskFlag::CLEAR_ACA => TaskFunction::CLEAR_ACA,
            TaskFlag::QUERY_TASK_SET => TaskFunction::QUERY_TASK_SET,
            TaskFlag::QUERY_ASYNC_EVENT => TaskFunction::QUERY_ASYNC_EVENT,
            _ => return respond(ResponseCode::INVALID_FIELDS, [0; 3]),
        };
        if self.functions.get() >= FUNCTIONS_MAX {
            return respond(ResponseCode::FAILED, [0; 3]);
        }
        let (target, origin) = (self.clone(), origin.clone());
        let counted = Counted::new(self, |target| &target.functions);
        self.core.reactor().spawn(async move {
            let _counted = counted;
            let response = target.core.target().task_management(&origin.initiator.nexus, function, lun, 0).await;
            let (code, more) = match response {
                TaskResponse::Complete | TaskResponse::NoTask => (ResponseCode::COMPLETE, [0; 3]),
                TaskResponse::Succeeded(information) => (ResponseCode::SUCCEEDED, information),
                TaskResponse::IncorrectLun => (ResponseCode::INCORRECT_LUN, [0; 3]),
                TaskResponse::Rejected => (ResponseCode::REJECTED, [0; 3]),
            };
            let information = Some((code.0, more));
            origin.port.respond(origin.key, &Response { information, ..Response::default() }.bytes());
        });
    }

    /// The data of a command has arrived.
    pub(super) fn data(&self, key: ExchangeKey) {
        let initiator = self.initiators.borrow().get(&key.peer).cloned();
        initiator.into_iter().for_each(|initiator| initiator.arrived(key));
    }

    /// An initiator aborts a command, and is answered when the command has ended. `is_answered`: otherwise it has used
    /// the identifier of the exchange again, and gets no answer.
    pub(super) fn abort(self: &Rc<Self>, port: &Rc<dyn ExchangePort>, key: ExchangeKey, is_answered: bool) {
        let initiator = self.initiators.borrow().get(&key.peer).cloned();
        let Some(initiator) = initiator else { return port.release(key) };
        let (stats, tasks) = (self.core.reactor().stats(), &initiator.nexus.tasks);
        let matches = move |(tag, _): (u64, Lun)| tag == key.number;
        stats.tasks_aborted.add(tasks.abort(matches));
        if let Some(host) = initiator.nexus.host.get() {
            host.aborted(1);
        }
        if !is_answered {
            return;
        }
        let (tasks, port) = (tasks.clone(), port.clone());
        let counted = Counted::new(self, |target| &target.functions);
        self.core.reactor().spawn(async move {
            let _counted = counted;
            tasks.until_gone(matches).await;
            port.aborted(key);
        });
    }
}
