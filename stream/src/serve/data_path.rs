//! The path of one command's data between its steps and its session.

use super::StreamConnection;
use crate::protocol::{CommandData, PullResult};
use crate::record_layer::{Plain, RecordLayer};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::shares::Share;
use lunar_core::step::PIECE_BYTES;
use lunar_core::task::Task;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Bytes queued or being sent to a peer before its reads wait for room: enough to keep a link busy while the next data
/// is read, few enough that a peer that does not read ties up little memory.
const SEND_QUEUE_MAX: usize = 1 << 20;
/// A command fails if its peer does not send requested data for this long.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// The path of one command's data. To be dropped after the reply was queued: data that is neither reserved nor queued
/// is not counted, and others would take its share.
pub struct DataPath<'a, S: CommandData, K, C: RecordLayer = Plain> {
    stream: &'a StreamConnection<S, C>,
    key: S::Key,
    task: &'a Task<K>,
    /// Bytes of data that the peer sends for the command.
    expected: usize,
    /// The share of memory for requested data.
    owed: RefCell<Option<Share>>,
    /// Bytes of memory for data that the command reads for the peer and has not pushed.
    reading: Cell<usize>,
}

impl<S: CommandData, K, C: RecordLayer> Drop for DataPath<'_, S, K, C> {
    fn drop(&mut self) {
        let reading = self.reading.get();
        if reading > 0 {
            self.stream.end_reading(reading);
        }
    }
}

impl<'a, S: CommandData, K, C: RecordLayer> DataPath<'a, S, K, C> {
    /// The data path of a command for which the peer sends `expected` bytes.
    #[must_use]
    pub fn new(stream: &'a StreamConnection<S, C>, key: S::Key, task: &'a Task<K>, expected: u32) -> Self {
        Self { stream, key, task, expected: expected as usize, owed: RefCell::default(), reading: Cell::new(0) }
    }

    fn is_full(&self) -> bool {
        self.stream.outstanding() >= SEND_QUEUE_MAX
    }

    /// Memory for `wanted` bytes to request from the peer; waits for it if `waits`. With plenty of memory, takes more
    /// and requests data ahead: the peer sends it meanwhile.
    async fn memory(&self, wanted: usize, end: usize, waits: bool) -> Result<(SgMut, Share), Fault> {
        let (arena, member) = (self.stream.reactor.arena(), &self.stream.memory.solicited);
        let ahead = (self.expected - end).min(PIECE_BYTES);
        if arena.used() < arena.size() / 2
            && let Some(taken) = arena.take_for_peer(member, wanted, ahead)
        {
            return Ok(taken);
        }
        if !waits {
            return arena.take_for_peer(member, wanted, 0).ok_or(Fault::NoMemory);
        }
        self.task.unless_aborted(arena.wait_for_peer(member, wanted)).await
    }

    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        let end = offset + len;
        loop {
            if self.task.aborted() {
                return Err(Fault::Aborted);
            }
            let pull = self.stream.session().pull(self.key, offset, len);
            match pull {
                // The share is kept: the command has the memory until its store has taken the data.
                PullResult::Ready(data) => return Ok(data),
                PullResult::Failed(fault) => return Err(fault),
                PullResult::NeedsMemory(wanted) => {
                    // A command that waits for memory gives its share back first: two such commands would otherwise
                    // wait for each other for ever.
                    self.owed.take();
                    let (memory, share) = self.memory(wanted, end, waits).await?;
                    self.owed.replace(Some(share));
                    self.stream.session().supply(self.key, memory);
                    self.stream.schedule_send();
                }
                PullResult::Pending => self.data().await?,
            }
        }
    }

    /// Waits until the session reports that a pull may succeed.
    async fn data(&self) -> Result<(), Fault> {
        let mut timeout = pin!(self.stream.reactor.sleep(DATA_TIMEOUT));
        let mut asked = false;
        let arrived = poll_fn(|cx| {
            let mut waiters = self.stream.data_waiters.borrow_mut();
            if std::mem::replace(&mut asked, true) && !waiters.contains_key(&self.key) {
                return Poll::Ready(Ok(()));
            }
            waiters.insert(self.key, cx.waker().clone());
            timeout.as_mut().poll(cx).map(|()| Err(Fault::Timeout))
        });
        let result = self.task.unless_aborted(arrived).await;
        self.stream.data_waiters.borrow_mut().remove(&self.key);
        result?
    }
}

impl<S: CommandData, K, C: RecordLayer> Transfer for DataPath<'_, S, K, C> {
    async fn room(&self) -> Result<(), Fault> {
        if !self.is_full() {
            return Ok(());
        }
        let room = poll_fn(|cx| {
            if !self.is_full() {
                return Poll::Ready(());
            }
            self.stream.room_waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        });
        self.task.unless_aborted(room).await
    }

    async fn reserve(&self, len: usize, least: usize) -> Result<usize, Fault> {
        let reserved = self.task.unless_aborted(self.stream.begin_reading(len, least)).await?;
        self.reading.set(self.reading.get() + reserved);
        Ok(reserved)
    }

    fn has_room(&self) -> bool {
        !self.is_full() && self.stream.memory.outgoing.has_surplus(PIECE_BYTES)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        match self.stream.session().pull(self.key, offset, len) {
            PullResult::Ready(data) => Some(data),
            // The caller repeats the pull where it may wait.
            PullResult::NeedsMemory(_) | PullResult::Pending | PullResult::Failed(_) => None,
        }
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, true).await
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let len = data.len().min(self.reading.get());
        let result = self.stream.session().push(self.key, offset, data);
        if len > 0 {
            self.reading.set(self.reading.get() - len);
            self.stream.end_reading(len);
        }
        self.stream.schedule_send();
        result
    }

    fn aborted(&self) -> bool {
        self.task.aborted()
    }
}

impl<S: CommandData, K: fmt::Debug, C: RecordLayer> fmt::Debug for DataPath<'_, S, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataPath({:?}, {} bytes expected)", self.task, self.expected)
    }
}
