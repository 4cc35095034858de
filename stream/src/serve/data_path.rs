//! The path of one command's data between its steps and its session.

use super::StreamConnection;
use crate::protocol::{CommandData, PullResult};
use crate::record_layer::{Plain, RecordLayer};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Promise, Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::PIECE_BYTES;
use lunar_core::task::Task;
use std::cell::RefCell;
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

/// The path of one command's data.
pub struct DataPath<'a, S: CommandData, K, C = Plain> {
    stream: &'a StreamConnection<S, C>,
    key: S::Key,
    task: &'a Task<K>,
    /// Bytes of data that the peer sends for the command.
    expected: usize,
    /// The promise of memory for requested data, and the offset at which that data ends.
    promise: RefCell<Option<(usize, Promise)>>,
}

impl<'a, S: CommandData, K, C: RecordLayer> DataPath<'a, S, K, C> {
    /// The data path of a command for which the peer sends `expected` bytes.
    #[must_use]
    pub fn new(stream: &'a StreamConnection<S, C>, key: S::Key, task: &'a Task<K>, expected: u32) -> Self {
        Self { stream, key, task, expected: expected as usize, promise: RefCell::default() }
    }

    fn is_full(&self) -> bool {
        self.stream.outstanding() >= SEND_QUEUE_MAX
    }

    /// Memory for `wanted` bytes to request from the peer; waits for it if `waits`. With plenty of memory, takes more
    /// and requests data ahead: the peer sends it meanwhile.
    async fn memory(&self, wanted: usize, end: usize, waits: bool) -> Result<(SgMut, Promise), Fault> {
        let arena = self.stream.reactor.arena();
        let ahead = (self.expected - end).min(PIECE_BYTES);
        if arena.used() < arena.size() / 2
            && let Some(taken) = arena.take_for_peer(wanted, ahead)
        {
            return Ok(taken);
        }
        if !waits {
            return arena.take_for_peer(wanted, 0).ok_or(Fault::NoMemory);
        }
        self.task.unless_aborted(arena.wait_for_peer(wanted)).await
    }

    async fn bytes(&self, offset: usize, len: usize, waits: bool) -> Result<Sg, Fault> {
        let end = offset + len;
        loop {
            if self.task.aborted() {
                return Err(Fault::Aborted);
            }
            let pull = self.stream.session().pull(self.key, offset, len);
            match pull {
                PullResult::Ready(data) => {
                    self.promise.borrow_mut().take_if(|(to, _)| *to <= end);
                    return Ok(data);
                }
                PullResult::Failed(fault) => return Err(fault),
                PullResult::NeedsMemory(wanted) => {
                    // A command that waits for memory gives its promise back first: two such commands would otherwise
                    // wait for each other for ever.
                    self.promise.take();
                    let (memory, promise) = self.memory(wanted, end, waits).await?;
                    self.promise.replace(Some((end + memory.len() - wanted, promise)));
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

    async fn fresh(&self, arena: &Arena, len: usize) -> Result<SgMut, Fault> {
        self.task.unless_aborted(arena.wait_sg(len)).await
    }

    fn has_room(&self) -> bool {
        !self.is_full()
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

    async fn pull_beside(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.bytes(offset, len, false).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let result = self.stream.session().push(self.key, offset, data);
        self.stream.schedule_send();
        result
    }

    fn aborted(&self) -> bool {
        self.task.aborted()
    }
}

impl<S: CommandData, K: fmt::Debug, C> fmt::Debug for DataPath<'_, S, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataPath({:?}, {} bytes expected)", self.task, self.expected)
    }
}
