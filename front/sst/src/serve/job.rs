//! A command, and the path of its data.

use super::connection::Connection;
use super::target::{Counted, SstTarget, information};
use crate::exchange::CommandId;
use crate::limits::DATA_TIMEOUT;
use crate::wire::fcp::{Response, ResponseBytes, ResponseCode};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::shares::Share;
use lunar_core::step::{PIECE_BYTES, SlotContext};
use lunar_core::task::Task;
use lunar_scsi::{Command, Reply, Status};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// A command for a slot.
pub(super) struct Job {
    pub(super) origin: Origin,
    pub(super) task: lunar_scsi::Task,
    pub(super) command: Command,
    /// Its share of the slots.
    #[expect(dead_code, reason = "dropping it with the job gives it back")]
    pub(super) share: Share,
    #[expect(dead_code, reason = "it counts the job until it is dropped")]
    pub(super) counted: Counted,
}

/// The exchange of a command.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) target: Rc<SstTarget>,
    pub(super) connection: Rc<Connection>,
    pub(super) place: CommandId,
}

/// Data that a command has sent, and the share of its memory.
pub(super) type Sent = (Sg, Option<Share>);

impl Job {
    /// Executes the command and answers it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { origin, task, command, .. } = self;
        let Some(session) = origin.connection.session() else { return };
        let path = DataPath::new(origin, task, command);
        let mut reply = Reply::default();
        origin.target.core().target().execute(&session.nexus, command, &path, slot, &mut reply).await;
        let sent = path.into_sent();
        // An aborted command has no response.
        match task.aborted() {
            true => origin.connection.release(origin.place),
            false => origin.reply(command, &mut reply, sent),
        }
    }
}

impl Origin {
    /// Answers a command, with the data that it has sent before.
    pub(super) fn reply(&self, command: &Command, reply: &mut Reply, (mut data, share): Sent) {
        let last = std::mem::take(&mut reply.final_data);
        // Data is sent in order and without gaps.
        data.append(last.data);
        let room = command.data_in as usize;
        if data.len() > room {
            data = data.split_to(room);
        }
        if reply.status == Status::GOOD {
            self.connection.succeed();
        }
        self.respond(response(command, reply), (data, share));
    }

    /// Ends a command with a response.
    pub(super) fn respond(&self, response: ResponseBytes, sent: Sent) {
        self.connection.respond(self.place, response, sent);
        self.target.watch(&self.connection);
    }

    /// Ends a task management function, or a command that was not executed.
    pub(super) fn inform(&self, code: ResponseCode, more: [u8; 3]) {
        self.respond(information(code, more), (Sg::default(), None));
    }
}

/// The response to a command.
fn response(command: &Command, reply: &Reply) -> ResponseBytes {
    let expected = i64::from(command.data_in.max(command.data_out));
    let wanted = i64::try_from(reply.wanted).unwrap_or(i64::MAX);
    Response { status: reply.status.0, residual: wanted - expected, sense: &reply.sense, information: None }.bytes()
}

/// The response of this status without data.
pub(super) fn bare(command: &Command, status: Status) -> ResponseBytes {
    response(command, &Reply::bare(status))
}

/// The path of the data of a command.
pub(super) struct DataPath<'a> {
    origin: &'a Origin,
    task: &'a lunar_scsi::Task,
    command: &'a Command,
    /// The data of the initiator, all of it, and the share of its memory.
    arrived: RefCell<Option<(Sg, Share)>>,
    /// Data for the initiator, which is sent with the response: a Transfer has one length.
    sent: RefCell<Sg>,
    /// The share of memory for it, all of it: commands that hold a part of their memory and wait for the rest would
    /// wait for each other for ever.
    reserved: RefCell<Option<Share>>,
}

impl<'a> DataPath<'a> {
    pub(super) fn new(origin: &'a Origin, task: &'a lunar_scsi::Task, command: &'a Command) -> Self {
        let (arrived, sent, reserved) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { origin, task, command, arrived, sent, reserved }
    }

    /// The data that was sent.
    pub(super) fn into_sent(self) -> Sent {
        (self.sent.into_inner(), self.reserved.into_inner())
    }

    /// A part of the data of the initiator, if it has arrived.
    fn part(&self, offset: usize, len: usize) -> Option<Result<Sg, Fault>> {
        let arrived = self.arrived.borrow();
        let (data, _) = arrived.as_ref()?;
        let end = offset.checked_add(len).filter(|end| *end <= data.len());
        Some(end.map(|end| data.part(offset..end)).ok_or(Fault::Protocol))
    }

    /// Memory for all data of the initiator; waits for it if `waits`.
    async fn memory(&self, waits: bool) -> Result<(SgMut, Share), Fault> {
        let session = self.origin.connection.session().ok_or(Fault::Aborted)?;
        let (arena, member) = (self.origin.target.core().reactor().arena(), &session.memory.solicited);
        // At most `DATA_MAX`.
        let len = self.command.data_out as usize;
        if !waits {
            return arena.take_for_peer(member, len, 0).ok_or(Fault::NoMemory);
        }
        let share = self.task.unless_aborted(member.wait(len)).await?;
        let memory = self.task.unless_aborted(arena.wait_sg(len)).await?;
        Ok((memory, share))
    }

    /// Asks the initiator for all of its data, and waits for it.
    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        if let Some(part) = self.part(offset, len) {
            return part;
        }
        if self.task.aborted() {
            return Err(Fault::Aborted);
        }
        let (mut memory, share) = self.memory(waits).await?;
        let Origin { connection, place, target } = self.origin;
        // The arena gives whole pages.
        trim(&mut memory, self.command.data_out as usize);
        if !connection.request(*place, memory) {
            return Err(Fault::Aborted);
        }
        let mut timeout = pin!(target.core().reactor().sleep(DATA_TIMEOUT));
        let data = poll_fn(|cx| match connection.poll_data(*place, cx) {
            Poll::Ready(data) => Poll::Ready(data.ok_or(Fault::Aborted)),
            Poll::Pending => timeout.as_mut().poll(cx).map(|()| Err(Fault::Timeout)),
        });
        let data = self.task.unless_aborted(data).await??;
        self.arrived.replace(Some((data, share)));
        self.part(offset, len).unwrap_or(Err(Fault::Protocol))
    }
}

/// Cuts memory to a length.
fn trim(memory: &mut SgMut, len: usize) {
    if memory.len() > len {
        *memory = memory.split_to(len);
    }
}

impl Transfer for DataPath<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn reserve(&self, len: usize, _least: usize) -> Result<usize, Fault> {
        let session = self.origin.connection.session().ok_or(Fault::Aborted)?;
        if len > 0 && self.reserved.borrow().is_none() {
            let all = len.max(self.command.data_in as usize);
            let share = self.task.unless_aborted(session.memory.outgoing.wait(all)).await?;
            self.reserved.replace(Some(share));
        }
        Ok(len)
    }

    fn has_room(&self) -> bool {
        if self.reserved.borrow().is_none()
            && let Some(session) = self.origin.connection.session()
        {
            // Data behind the length that the initiator expects is not kept.
            let len = (self.command.data_in as usize).min(PIECE_BYTES);
            self.reserved.replace(session.memory.outgoing.take_surplus(len));
        }
        self.reserved.borrow().is_some()
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, true).await
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        self.part(offset, len)?.ok()
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, _offset: usize, data: Sg) -> Result<(), Fault> {
        if self.origin.connection.is_closed() {
            return Err(Fault::Aborted);
        }
        self.sent.borrow_mut().append(data);
        Ok(())
    }

    fn aborted(&self) -> bool {
        Task::aborted(self.task)
    }
}
