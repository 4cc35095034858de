//! A command, and the path of its data.

use super::queue_pair::QueuePair;
use crate::session::Arrived;
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::shares::Share;
use lunar_core::step::{PIECE_BYTES, SlotContext};
use lunar_core::time::Instant;
use lunar_nvme::{Command, Queue, Reply, Task};
use lunar_rdma::limits::READ_MAX;
use lunar_rdma::wire::Remote;
use std::cell::RefCell;
use std::rc::Rc;

/// In-capsule data, and the share that counts its memory until the command has ended.
pub(super) type InCapsule = (Sg, Share);

/// A command, or half of a fused operation.
pub(super) struct Half {
    pub(super) task: Task,
    pub(super) arrived: Arrived<InCapsule>,
}

impl Half {
    pub(super) fn command(&self) -> &Command {
        &self.arrived.command
    }

    pub(super) fn cid(&self) -> u16 {
        self.command().sqe.cid.get()
    }

    /// Whether the host reads data of the command.
    pub(super) fn reads(&self) -> bool {
        self.command().room > 0
    }

    pub(super) fn data_path<'a>(&'a self, pair: &'a QueuePair) -> DataPath<'a> {
        DataPath { pair, half: self, owed: RefCell::default(), reading: RefCell::default() }
    }
}

/// A command, or both halves of a fused operation, without a slot.
pub(super) struct Request {
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    /// Rare, and so behind a pointer: jobs are moved.
    pub(super) second: Option<Box<Half>>,
}

impl Request {
    pub(super) fn halves(&self) -> impl Iterator<Item = &Half> {
        std::iter::once(&self.first).chain(self.second.as_deref())
    }

    /// The job of the request. `arrived`: when it arrived, if it has waited for its slot.
    pub(super) fn with(self, pair: &Rc<QueuePair>, arrived: Option<Instant>, share: Share) -> Job {
        Job { pair: pair.clone(), request: self, arrived, share }
    }
}

/// The work of a slot.
pub(super) struct Job {
    pub(super) pair: Rc<QueuePair>,
    pub(super) request: Request,
    arrived: Option<Instant>,
    /// Its share of the slots.
    #[expect(dead_code, reason = "dropping it with the job gives it back")]
    share: Share,
}

impl Job {
    /// Executes the command and answers it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { pair, request: Request { queue, first, second }, .. } = self;
        let subsystem = pair.subsystem();
        self.arrived.iter().for_each(|arrived| slot.watch.waited_since(*arrived));
        match second {
            None => {
                let (mut reply, data_path) = (Reply::default(), first.data_path(pair));
                subsystem.execute(queue, &first.task, first.command(), &data_path, slot, &mut reply).await;
                pair.reply(queue, first, &mut reply);
            }
            // Rare and large, so boxed: it does not enlarge the common future.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [first.command(), second.command()]);
                let data_paths = [&first.data_path(pair), &second.data_path(pair)];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, data_paths, slot, &mut replies)).await;
                let [one, other] = &mut replies;
                pair.reply(queue, first, one);
                pair.reply(queue, second, other);
            }
        }
    }
}

/// The path of the data of a command. To be dropped after the reply was queued.
pub(super) struct DataPath<'a> {
    pair: &'a QueuePair,
    half: &'a Half,
    /// The share of memory for requested data.
    owed: RefCell<Option<Share>>,
    /// The share of memory for data that the command reads and has not sent.
    reading: RefCell<Option<Share>>,
}

/// The parts of memory of a host, from an offset on.
pub(super) fn parts(memory: Remote, offset: usize, len: usize) -> impl Iterator<Item = (Remote, usize)> {
    (0..len).step_by(READ_MAX).map(move |at| (memory.plus(offset + at), READ_MAX.min(len - at)))
}

impl DataPath<'_> {
    /// Memory for data that is requested; waits for it if `waits`.
    async fn memory(&self, len: usize, waits: bool) -> Result<(SgMut, Share), Fault> {
        let (arena, member) = (self.pair.reactor().arena(), &self.pair.memory.solicited);
        if !waits {
            return arena.take_for_peer(member, len, 0).ok_or(Fault::NoMemory);
        }
        self.half.task.unless_aborted(arena.wait_for_peer(member, len)).await
    }

    /// Requests data in bursts and waits for it.
    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        if let Some(data) = self.arrived(offset, len) {
            return Ok(data);
        }
        let end = offset.checked_add(len).filter(|end| *end <= self.half.command().sent as usize);
        let (Some(memory), Some(_)) = (self.half.arrived.memory, end) else { return Err(Fault::Protocol) };
        let take = async |wanted| self.memory(wanted, waits).await;
        let parts = |at, len| parts(memory, offset + at, len);
        self.pair.transfers.pull(len, &self.owed, take, parts, || self.half.task.aborted()).await
    }
}

impl Transfer for DataPath<'_> {
    async fn room(&self) -> Result<(), Fault> {
        if !self.pair.transfers.is_full() {
            return Ok(());
        }
        self.half.task.unless_aborted(self.pair.transfers.room()).await
    }

    async fn reserve(&self, len: usize, least: usize) -> Result<usize, Fault> {
        if len == 0 {
            return Ok(0);
        }
        let share = self.half.task.unless_aborted(self.pair.memory.outgoing.wait_first(len, least)).await?;
        let reserved = share.amount();
        match &mut *self.reading.borrow_mut() {
            Some(reading) => reading.absorb(share),
            none => *none = Some(share),
        }
        Ok(reserved)
    }

    fn has_room(&self) -> bool {
        !self.pair.transfers.is_full() && self.pair.memory.outgoing.has_surplus(PIECE_BYTES)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let (data, _) = self.half.arrived.in_capsule.as_ref()?;
        let end = offset.checked_add(len).filter(|end| *end <= data.len())?;
        Some(data.part(offset..end))
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, true).await
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let len = data.len();
        let is_queued = self.pair.write(self.half, offset, data)?;
        // The queue counts it now.
        self.reading.borrow_mut().iter_mut().for_each(|reading| reading.shrink(len));
        if is_queued { Ok(()) } else { Err(Fault::Aborted) }
    }

    fn aborted(&self) -> bool {
        self.half.task.aborted()
    }
}
