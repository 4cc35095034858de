//! A command, and the path of its data.

use super::exchange_port::ExchangePort;
use super::fcp::FcpTarget;
use super::initiator::Initiator;
use crate::limits::{BURST_MAX, DATA_TIMEOUT, SEND_QUEUE_MAX};
use crate::port::exchange::{ExchangeKey, Requested};
use crate::wire::fcp::{Response, ResponseBytes};
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
}

/// The exchange of a command.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) target: Rc<FcpTarget>,
    pub(super) port: Rc<dyn ExchangePort>,
    pub(super) initiator: Rc<Initiator>,
    pub(super) key: ExchangeKey,
}

impl Job {
    /// Executes the command and answers it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { origin, task, command, share: _ } = self;
        let path = DataPath::new(origin, task);
        let mut reply = Reply::default();
        let target = origin.target.core().target();
        target.execute(&origin.initiator.nexus, command, &path, slot, &mut reply).await;
        origin.finish(task, command, &mut reply);
    }
}

impl Origin {
    /// Answers a command, unless it was aborted.
    pub(super) fn finish(&self, task: &lunar_scsi::Task, command: &Command, reply: &mut Reply) {
        match task.aborted() {
            true => self.port.release(self.key),
            false => self.reply(command, reply),
        }
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
            // Within FCP_DL, which has 32 bits. Without its exchange the response finds nothing, either.
            self.port.send(self.key, last.offset as u32, data);
        }
        self.port.respond(self.key, &response(command, reply));
    }
}

/// The response to a command.
pub(super) fn response(command: &Command, reply: &Reply) -> ResponseBytes {
    let expected = i64::from(command.data_in.max(command.data_out));
    let wanted = i64::try_from(reply.wanted).unwrap_or(i64::MAX);
    Response { status: reply.status.0, residual: wanted - expected, sense: &reply.sense, information: None }.bytes()
}

/// The response of this status without data.
pub(super) fn bare(command: &Command, status: Status) -> ResponseBytes {
    response(command, &Reply::bare(status))
}

/// The path of the data of a command. To be dropped after the reply was queued.
pub(super) struct DataPath<'a> {
    origin: &'a Origin,
    task: &'a lunar_scsi::Task,
    /// The share of memory for requested data.
    owed: RefCell<Option<Share>>,
    /// The share of memory for data that the command reads and has not sent.
    reading: RefCell<Option<Share>>,
}

impl<'a> DataPath<'a> {
    pub(super) fn new(origin: &'a Origin, task: &'a lunar_scsi::Task) -> Self {
        Self { origin, task, owed: RefCell::default(), reading: RefCell::default() }
    }

    fn is_full(&self) -> bool {
        self.origin.port.queued(self.origin.key.peer) >= SEND_QUEUE_MAX
    }

    /// Memory for data that is requested; waits for it if `waits`.
    async fn memory(&self, len: usize, waits: bool) -> Result<(SgMut, Share), Fault> {
        let (arena, member) = (self.origin.target.core().reactor().arena(), &self.origin.initiator.memory.solicited);
        if !waits {
            return arena.take_for_peer(member, len, 0).ok_or(Fault::NoMemory);
        }
        self.task.unless_aborted(arena.wait_for_peer(member, len)).await
    }

    /// Requests data in bursts and waits for it.
    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        let Origin { port, key, .. } = self.origin;
        let mut data = Sg::default();
        while data.len() < len {
            if self.task.aborted() {
                return Err(Fault::Aborted);
            }
            // A command that waits for memory gives its share back first: two such commands would otherwise wait for
            // each other for ever.
            self.owed.take();
            let (memory, share) = self.memory((len - data.len()).min(BURST_MAX), waits).await?;
            // The share is kept: the command has the memory until its store has taken the data.
            self.owed.replace(Some(share));
            // FCP_DL has 32 bits, and bounds what commands pull.
            let at = u32::try_from(offset + data.len()).map_err(|_| Fault::Protocol)?;
            if !port.request(*key, at, memory) {
                return Err(Fault::Aborted);
            }
            let burst = self.burst().await?;
            burst.into_pieces().for_each(|piece| data.push(piece));
        }
        Ok(data)
    }

    /// Waits for a burst.
    async fn burst(&self) -> Result<Sg, Fault> {
        let Origin { port, key, initiator, target } = self.origin;
        let mut timeout = pin!(target.core().reactor().sleep(DATA_TIMEOUT));
        let arrived = poll_fn(|cx| match port.take(*key) {
            Requested::Arrived(data) => Poll::Ready(Ok(data)),
            Requested::Gone => Poll::Ready(Err(Fault::Aborted)),
            Requested::Waiting => {
                initiator.wait(*key, cx.waker());
                timeout.as_mut().poll(cx).map(|()| Err(Fault::Timeout))
            }
        });
        let result = self.task.unless_aborted(arrived).await;
        initiator.end_wait(*key);
        result?
    }
}

impl Transfer for DataPath<'_> {
    async fn room(&self) -> Result<(), Fault> {
        if !self.is_full() {
            return Ok(());
        }
        self.task.unless_aborted(self.origin.port.room(self.origin.key.peer)).await
    }

    async fn reserve(&self, len: usize, least: usize) -> Result<usize, Fault> {
        if len == 0 {
            return Ok(0);
        }
        let outgoing = &self.origin.initiator.memory.outgoing;
        let share = self.task.unless_aborted(outgoing.wait_first(len, least)).await?;
        let reserved = share.amount();
        match &mut *self.reading.borrow_mut() {
            Some(reading) => reading.absorb(share),
            none => *none = Some(share),
        }
        Ok(reserved)
    }

    fn has_room(&self) -> bool {
        !self.is_full() && self.origin.initiator.memory.outgoing.has_surplus(PIECE_BYTES)
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, true).await
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let len = data.len();
        let at = u32::try_from(offset).map_err(|_| Fault::Protocol)?;
        let is_sent = self.origin.port.send(self.origin.key, at, data);
        // The queue counts it now.
        self.reading.borrow_mut().iter_mut().for_each(|reading| reading.shrink(len));
        if is_sent { Ok(()) } else { Err(Fault::Aborted) }
    }

    fn aborted(&self) -> bool {
        Task::aborted(self.task)
    }
}
