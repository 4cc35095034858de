//! A command, and the path of its data.

use super::channel::Channel;
use super::endpoint::Endpoint;
use crate::buffers::{Buffer, Expected};
use crate::wire::{Response, ResponseCode, Tag};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::shares::Share;
use lunar_core::step::{PIECE_BYTES, SlotContext};
use lunar_core::task::Task;
use lunar_rdma::limits::READ_MAX;
use lunar_scsi::{Asc, Command, Reply, Sense, Status};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// A command for a slot.
pub(super) struct Job {
    pub(super) origin: Origin,
    pub(super) task: lunar_scsi::Task,
    pub(super) command: Command,
    /// The memory of the initiator for its data.
    pub(super) buffer: Option<Buffer>,
    /// Its share of the slots.
    #[expect(dead_code, reason = "dropping it with the job gives it back")]
    pub(super) share: Share,
}

/// Where a command has come from.
pub(super) struct Origin {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) channel: Rc<Channel>,
    pub(super) tag: Tag,
    /// Its share of the descriptors.
    pub(super) descriptors: Cell<Option<Share>>,
    /// The data that has come with the command, and the share that counts its memory until the command has ended.
    pub(super) immediate: OnceCell<(Sg, Share)>,
}

impl Job {
    /// Executes the command and answers it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { origin, task, command, buffer, share: _ } = self;
        let path = DataPath::new(origin, task, buffer.as_ref());
        let mut reply = Reply::default();
        let target = origin.endpoint.core.target();
        target.execute(&origin.channel.session.nexus, command, &path, slot, &mut reply).await;
        match Task::aborted(task) {
            true => origin.release(),
            false => path.reply(command, &mut reply),
        }
    }
}

impl Origin {
    /// Answers a command with this status, and without data.
    pub(super) fn answer_bare(&self, command: &Command, status: Status) {
        self.answer(command, &Reply::bare(status));
    }

    fn answer(&self, command: &Command, reply: &Reply) {
        let expected = Expected { data_out: command.data_out, data_in: command.data_in };
        self.channel.answer(response(self.tag, expected, reply), self.descriptors.take());
    }

    /// Ends a command whose descriptors, or whose CDB, are wrong.
    pub(super) fn answer_invalid(&self, expected: Expected) {
        let reply = invalid();
        self.channel.answer(invalid_response(self.tag, expected, &reply), self.descriptors.take());
    }

    /// Ends a command without a response: it was aborted.
    pub(super) fn release(&self) {
        self.channel.release(self.descriptors.take());
    }

    /// Keeps the data that has come with the command; returns whether there was memory for it.
    pub(super) fn keep(&self, data: &[u8]) -> bool {
        if data.is_empty() {
            return true;
        }
        let (arena, member) = (self.endpoint.core.reactor().arena(), &self.channel.session.memory.unsolicited);
        let Some((mut memory, share)) = arena.take_for_peer(member, data.len(), 0) else { return false };
        memory.copy_from(0, data);
        self.immediate.set((memory.share(), share)).is_ok()
    }

    /// Takes so many descriptors; returns whether there were so many.
    pub(super) fn take_descriptors(&self, count: usize) -> bool {
        if count == 0 {
            return true;
        }
        let share = self.channel.session.descriptors.take(count);
        let has_some = share.is_some();
        self.descriptors.set(share);
        has_some
    }

    /// Waits until there are as many descriptors as a buffer has, unless it has them, and reads its table.
    pub(super) async fn prepare(&self, task: &lunar_scsi::Task, buffer: &mut Buffer) -> Result<(), Fault> {
        let count = buffer.descriptors();
        let held = self.descriptors.take();
        let is_missing = count > 0 && held.is_none();
        self.descriptors.set(held);
        if is_missing {
            self.channel.give_back();
            let share = task.unless_aborted(self.channel.session.descriptors.wait(count)).await?;
            self.descriptors.set(Some(share));
        }
        self.read_table(task, buffer).await
    }

    /// Memory for data that is requested; waits for it if `waits`.
    async fn memory(&self, task: &lunar_scsi::Task, len: usize, waits: bool) -> Result<(SgMut, Share), Fault> {
        let (arena, member) = (self.endpoint.core.reactor().arena(), &self.channel.session.memory.solicited);
        if !waits {
            return arena.take_for_peer(member, len, 0).ok_or(Fault::NoMemory);
        }
        task.unless_aborted(arena.wait_for_peer(member, len)).await
    }

    /// Reads the table of a buffer.
    async fn read_table(&self, task: &lunar_scsi::Task, buffer: &mut Buffer) -> Result<(), Fault> {
        let Some(table) = buffer.table() else { return Ok(()) };
        let mut bytes = Vec::new();
        while bytes.len() < table.len as usize {
            let (memory, share) = self.memory(task, table.len as usize - bytes.len(), true).await?;
            let part = (table.memory.plus(bytes.len()), memory.len());
            let requested = self.channel.transfers.request(std::iter::once(part), memory, share);
            // As for data, an abort waits for this.
            let (data, _share) = requested.ok_or(Fault::Aborted)?.data().await?;
            if Task::aborted(task) {
                return Err(Fault::Aborted);
            }
            bytes.extend(data.to_vec());
        }
        buffer.set_table(&bytes).map_err(|_| Fault::Protocol)
    }
}

/// The response to a command that expected so many bytes.
fn response(tag: Tag, expected: Expected, reply: &Reply) -> Response<'_> {
    let wanted = i64::try_from(reply.wanted).unwrap_or(i64::MAX);
    Response {
        tag,
        status: reply.status.0,
        residual: wanted - i64::from(expected.data_in.max(expected.data_out)),
        is_out: expected.data_out > 0,
        sense: &reply.sense,
        ..Response::default()
    }
}

/// The reply to a command that cannot be executed, because its information unit is wrong.
fn invalid() -> Reply {
    let sense = Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    Reply { sense: sense.data(false), ..Reply::bare(Status::CHECK_CONDITION) }
}

/// The response to such a command. SRP has a code for it, but the initiator of Linux looks at the code in responses to
/// task management only: without a status that is not GOOD, it takes the command for one that has succeeded.
fn invalid_response(tag: Tag, expected: Expected, reply: &Reply) -> Response<'_> {
    Response { code: Some(ResponseCode::INVALID_FIELDS), ..response(tag, expected, reply) }
}

/// The path of the data of a command. To be dropped after the reply was queued.
pub(super) struct DataPath<'a> {
    origin: &'a Origin,
    task: &'a lunar_scsi::Task,
    buffer: Option<&'a Buffer>,
    /// The share of memory for requested data.
    owed: RefCell<Option<Share>>,
    /// The share of memory for data that the command reads and has not sent.
    reading: RefCell<Option<Share>>,
}

impl<'a> DataPath<'a> {
    pub(super) fn new(origin: &'a Origin, task: &'a lunar_scsi::Task, buffer: Option<&'a Buffer>) -> Self {
        Self { origin, task, buffer, owed: RefCell::default(), reading: RefCell::default() }
    }

    /// Answers a command.
    pub(super) fn reply(&self, command: &Command, reply: &mut Reply) {
        let last = std::mem::take(&mut reply.final_data);
        let mut data = last.data;
        let room = (command.data_in as usize).saturating_sub(last.offset);
        if data.len() > room {
            data = data.split_to(room);
        }
        if !data.is_empty() {
            self.write(last.offset, data);
        }
        // If the connection is gone, the response is discarded as well.
        self.origin.answer(command, reply);
    }

    /// Writes data into the memory of the initiator.
    fn write(&self, offset: usize, mut data: Sg) -> bool {
        let Some(buffer) = self.buffer else { return false };
        for (memory, len) in buffer.range(offset, data.len(), usize::MAX) {
            let part = data.split_to(len.min(data.len()));
            if !self.origin.channel.transfers.write(memory, part) {
                return false;
            }
        }
        data.is_empty()
    }

    /// Requests data in bursts and waits for it.
    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        if let Some(data) = self.arrived(offset, len) {
            return Ok(data);
        }
        let buffer = self.buffer.ok_or(Fault::Protocol)?;
        let memory = async |wanted| self.origin.memory(self.task, wanted, waits).await;
        let parts = |at, len| buffer.range(offset + at, len, READ_MAX);
        self.origin.channel.transfers.pull(len, &self.owed, memory, parts, || self.task.aborted()).await
    }
}

impl Transfer for DataPath<'_> {
    async fn room(&self) -> Result<(), Fault> {
        if !self.origin.channel.transfers.is_full() {
            return Ok(());
        }
        self.task.unless_aborted(self.origin.channel.transfers.room()).await
    }

    async fn reserve(&self, len: usize, least: usize) -> Result<usize, Fault> {
        if len == 0 {
            return Ok(0);
        }
        let outgoing = &self.origin.channel.session.memory.outgoing;
        let share = self.task.unless_aborted(outgoing.wait_first(len, least)).await?;
        let reserved = share.amount();
        match &mut *self.reading.borrow_mut() {
            Some(reading) => reading.absorb(share),
            none => *none = Some(share),
        }
        Ok(reserved)
    }

    fn has_room(&self) -> bool {
        !self.origin.channel.transfers.is_full() && self.origin.channel.session.memory.outgoing.has_surplus(PIECE_BYTES)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let (data, _) = self.origin.immediate.get()?;
        (offset + len <= data.len()).then(|| data.part(offset..offset + len))
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, true).await
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let len = data.len();
        let is_queued = self.write(offset, data);
        // The queue counts it now.
        self.reading.borrow_mut().iter_mut().for_each(|reading| reading.shrink(len));
        if is_queued { Ok(()) } else { Err(Fault::Aborted) }
    }

    fn aborted(&self) -> bool {
        Task::aborted(self.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_wrong_descriptors_has_failed_for_every_initiator() {
        let reply = invalid();
        let expected = Expected { data_out: 0x1800, data_in: 0 };
        let response = invalid_response([7; 8], expected, &reply).bytes();
        // Response data and sense data are there, and nothing of the Data-Out was taken.
        assert_eq!((response[18], response[19]), (0x01 | 0x02 | 0x08, 0x02));
        assert_eq!(response[20..28], [0, 0, 0x18, 0, 0, 0, 0, 0]);
        let (code, sense) = response[36..].split_at(4);
        assert_eq!((code, sense[2] & 15, &sense[12..14]), (&[0, 0, 0, 1][..], 5, &[0x0e, 3][..]));
        let expected = Expected { data_out: 0, data_in: 512 };
        let response = invalid_response([7; 8], expected, &reply).bytes();
        assert_eq!((response[18], &response[24..28]), (0x01 | 0x02 | 0x20, &[0, 0, 2, 0][..]));
    }
}
