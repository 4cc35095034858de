//! Commands and task management of the initiators of a port.

use super::channel::Channel;
use super::endpoint::{Counted, Endpoint};
use super::job::{DataPath, Job, Origin};
use crate::buffers::{Buffer, Expected};
use crate::limits::FUNCTIONS_MAX;
use crate::wire::{self, Function, Response, ResponseCode, Tag};
use lunar_core::io::Fault;
use lunar_reactor::slots::contain;
use lunar_scsi::{Cdb, Command, Lun, Reply, Status, TaskAttribute, TaskFunction, TaskResponse};
use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Bytes of the longest CDB that a command can have.
const CDB_MAX: usize = 16 + 252;

impl Endpoint {
    /// A command has arrived.
    pub(super) fn command(self: &Rc<Self>, channel: &Rc<Channel>, arrived: &wire::Command<'_>) {
        channel.arrived();
        let mut cdb = [0; CDB_MAX];
        let len = arrived.cdb.len() + arrived.additional.len();
        cdb[..arrived.cdb.len()].copy_from_slice(&arrived.cdb);
        cdb[arrived.cdb.len()..len].copy_from_slice(arrived.additional);
        let tag = arrived.tag;
        let (descriptors, immediate) = (Cell::default(), OnceCell::new());
        let origin = Origin { endpoint: self.clone(), channel: channel.clone(), tag, descriptors, immediate };
        let expected = match &arrived.buffer {
            Ok(buffer) => buffer.as_ref().map_or_else(Expected::default, Buffer::expected),
            Err(refused) => refused.expected,
        };
        let (Ok(buffer), Some(cdb)) = (arrived.buffer.clone(), Cdb::new(&cdb[..len])) else {
            return origin.answer_invalid(expected);
        };
        let command = Command {
            lun: Lun(arrived.lun),
            cdb,
            attribute: TaskAttribute::of_port(arrived.attribute),
            tag: u64::from_be_bytes(tag),
            data_in: expected.data_in,
            data_out: expected.data_out,
        };
        let session = &channel.session;
        let task = session.nexus.tasks.enter((command.tag, command.lun));
        if self.core.draining.has_come() {
            return origin.answer_bare(&command, Status::BUSY);
        }
        if !origin.keep(arrived.immediate.unwrap_or_default()) {
            self.core.reactor().stats().busy_refused.add(1);
            return origin.answer_bare(&command, Status::BUSY);
        }
        match buffer {
            Some(buffer) if buffer.table().is_some() || !origin.take_descriptors(buffer.descriptors()) => {
                self.execute_later(origin, task, command, Some(buffer));
            }
            buffer if session.starts.is_free() => self.execute(origin, task, command, buffer),
            buffer => self.execute_later(origin, task, command, buffer),
        }
    }

    /// Executes a command when its descriptors are here, and after those that have arrived before it.
    fn execute_later(
        self: &Rc<Self>,
        origin: Origin,
        task: lunar_scsi::Task,
        command: Command,
        mut buffer: Option<Buffer>,
    ) {
        let (endpoint, session) = (self.clone(), origin.channel.session.clone());
        let mut work = Box::pin(async move {
            let mut turn = pin!(session.starts.take());
            let first = poll_fn(|cx| Poll::Ready(turn.as_mut().poll(cx))).await;
            if let Some(buffer) = &mut buffer {
                match origin.prepare(&task, buffer).await {
                    Ok(()) => {}
                    Err(Fault::Protocol) => return origin.answer_invalid(buffer.expected()),
                    Err(_) => return origin.release(),
                }
            }
            let _turn = match first {
                Poll::Ready(turn) => turn,
                Poll::Pending => turn.await,
            };
            endpoint.execute(origin, task, command, buffer);
        });
        // Begun at once: it has its turn before a command that arrives now.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.core.reactor().spawn(work);
        }
    }

    fn execute(self: &Rc<Self>, origin: Origin, task: lunar_scsi::Task, command: Command, buffer: Option<Buffer>) {
        let (session, target) = (origin.channel.session.clone(), self.core.target());
        let mut reply = Reply::default();
        let path = DataPath::new(&origin, &task, buffer.as_ref());
        // Commands are executed in the order of their arrival: none goes before those that wait for a slot.
        let now = || {
            session.waiting.get() == 0
                && target.execute_now(&session.nexus, &command, &path, self.core.reactor().arena(), &mut reply)
        };
        let ended = contain(now);
        match ended {
            Some(false) => {}
            Some(true) => return path.reply(&command, &mut reply),
            None => return path.reply(&command, &mut target.failed()),
        }
        drop(path);
        let share = if session.waiting.get() == 0 { session.slots.take(1) } else { None };
        match share {
            Some(share) => self.start_job(Job { origin, task, command, buffer, share }),
            None => self.start_later(origin, task, command, buffer),
        }
    }

    fn start_job(self: &Rc<Self>, job: Job) {
        if let Err(Job { origin, command, .. }) = self.core.slots.start(job) {
            self.core.target().task_set_full(&origin.channel.session.nexus, command.lun);
            origin.answer_bare(&command, Status::TASK_SET_FULL);
        }
    }

    /// Starts a command when its initiator has another slot: in the order of arrival. The request limit bounds how many
    /// wait.
    fn start_later(self: &Rc<Self>, origin: Origin, task: lunar_scsi::Task, command: Command, buffer: Option<Buffer>) {
        let (endpoint, session) = (self.clone(), origin.channel.session.clone());
        session.waiting.set(session.waiting.get() + 1);
        self.core.reactor().stats().slot_waits.add(1);
        self.core.reactor().spawn(async move {
            let share = task.unless_aborted(session.slots.wait(1)).await;
            session.waiting.set(session.waiting.get() - 1);
            match share {
                Ok(share) => endpoint.start_job(Job { origin, task, command, buffer, share }),
                // An aborted command has no response. `task` leaves the task set here.
                Err(_) => origin.release(),
            }
        });
    }

    /// A task management request has arrived.
    pub(super) fn task_management(
        self: &Rc<Self>,
        channel: &Rc<Channel>,
        (tag, lun): (Tag, [u8; 8]),
        function: Function,
        task: Tag,
    ) {
        channel.arrived();
        let answer = move |channel: &Channel, code| {
            channel.answer(Response { tag, code: Some(code), ..Response::default() }, None);
        };
        let function = match function {
            Function::ABORT_TASK => TaskFunction::ABORT_TASK,
            Function::ABORT_TASK_SET => TaskFunction::ABORT_TASK_SET,
            Function::CLEAR_TASK_SET => TaskFunction::CLEAR_TASK_SET,
            Function::LOGICAL_UNIT_RESET => TaskFunction::LOGICAL_UNIT_RESET,
            Function::CLEAR_ACA => TaskFunction::CLEAR_ACA,
            _ => return answer(channel, ResponseCode::NOT_SUPPORTED),
        };
        if self.functions.get() >= FUNCTIONS_MAX {
            return answer(channel, ResponseCode::FAILED);
        }
        let (endpoint, channel, counted) = (self.clone(), channel.clone(), Counted::new(self));
        self.core.reactor().spawn(async move {
            let _counted = counted;
            let (target, nexus) = (endpoint.core.target(), &channel.session.nexus);
            let task = u64::from_be_bytes(task);
            let code = match target.task_management(nexus, function, Lun(lun), task).await {
                TaskResponse::Complete | TaskResponse::NoTask | TaskResponse::Succeeded(_) => ResponseCode::COMPLETE,
                TaskResponse::Rejected => ResponseCode::NOT_SUPPORTED,
                TaskResponse::IncorrectLun => ResponseCode::FAILED,
            };
            endpoint.until_settled(&channel).await;
            answer(&channel, code);
        });
    }

    /// Waits until the data that aborted commands have sent over other channels has arrived: the initiator uses its
    /// memory for something else when it has the response. Data of the same channel arrives before the response.
    async fn until_settled(&self, own: &Channel) {
        let others: Vec<_> = own.session.channels.borrow().iter().copied().filter(|id| *id != own.id).collect();
        for id in others {
            if let Some(channel) = self.channel(id) {
                channel.transfers.settled().await;
            }
        }
    }
}
