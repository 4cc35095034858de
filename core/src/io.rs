//! The back-end contract, in one file: a request to a unit's store ([`Io`]), its answer ([`Done`], [`Outcome`],
//! [`Fault`]), the properties of a store ([`Traits`]), and the [`Store`] itself.
//!
//! Offsets and lengths are bytes and multiples of the unit's block size; the caller has checked the bounds. A store
//! belongs to one core: each core opens each store for itself.

use crate::mem::{Sg, SgMut};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// An operation of a store. A store that does not support an operation answers [`Fault::Unsupported`], and
/// [`crate::step`] has the only fall-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the whole of the [`Data::In`] from `offset` on. Parts that were never written read as zeroes.
    Read,
    /// Write the whole of the [`Data::Out`]. `durable`: the data is on the medium before the answer (FUA).
    Write {
        /// FUA: on stable storage before the answer.
        durable: bool,
    },
    /// Bring every write that was answered before this request to the medium.
    Flush,
    /// Release the space of `len` bytes. They read as zeroes afterwards if [`Traits::unmap_zeroes`].
    Unmap {
        /// Bytes.
        len: u64,
    },
    /// Write zeroes without transferring them. `unmap`: the store may release the space.
    Zero {
        /// Bytes.
        len: u64,
        /// Whether the store may release the space.
        unmap: bool,
    },
    /// Ask how far the bytes from `offset` on, at most `len`, have one provisioning state: [`Outcome::extent`].
    Extent {
        /// Bytes.
        len: u64,
    },
    /// Ask how much space the store uses and how much is available to it; the answer comes back as [`Data::Space`].
    Space,
    /// Copy bytes of another store of the same core, or of another part of this store, without moving them through
    /// memory. The source is the request's [`Data::From`]; ranges of one store do not overlap.
    Copy {
        /// Offset of the bytes in the source.
        from: u64,
        /// Bytes.
        len: u64,
    },
}

/// One request to a store.
#[derive(Debug)]
pub struct Io {
    /// The operation.
    pub op: Op,
    /// Offset in bytes from the start of the unit.
    pub offset: u64,
    /// The memory to fill or to write from; none if the operation moves no data.
    pub data: Data,
}

impl Io {
    /// The number of bytes of the unit that the request covers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.op {
            Op::Read | Op::Write { .. } => self.data.len() as u64,
            Op::Flush | Op::Space => 0,
            Op::Unmap { len } | Op::Zero { len, .. } | Op::Extent { len } | Op::Copy { len, .. } => len,
        }
    }

    /// Whether the request lies within a unit of `size` bytes: a last check of the store before it changes anything.
    #[must_use]
    pub fn within(&self, size: u64) -> bool {
        self.offset.checked_add(self.bytes()).is_some_and(|end| end <= size)
    }
}

/// Memory that travels with a request and comes back with its answer.
#[derive(Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// Memory to be filled.
    In(SgMut),
    /// Memory to be read.
    Out(Sg),
    /// The source of an [`Op::Copy`].
    From(Origin),
    /// The answer to [`Op::Space`].
    Space(Space),
    /// A value that only the submitter and the driver of an operation know, by its type: datagrams, a device command.
    Carried(Box<dyn Any>),
}

/// The space of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes in use.
    pub used: u64,
    /// Bytes available. Other stores may use them first.
    pub available: u64,
}

/// A store as the source of a copy: the handle that it shows to stores of its own kind, which identify it by its type.
/// The handle keeps its source open.
#[derive(Clone)]
pub struct Origin(Rc<dyn Any>);

impl Origin {
    /// The handle of a store.
    #[must_use]
    pub fn new(shown: Rc<dyn Any>) -> Self {
        Self(shown)
    }

    /// The handle, if it has the type `T`.
    #[must_use]
    pub fn is<T: 'static>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin")
    }
}

impl Data {
    /// The memory to fill; empty if there is none.
    #[must_use]
    pub fn into_in(self) -> SgMut {
        match self {
            Self::In(sg) => sg,
            _ => SgMut::default(),
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None | Self::From(_) | Self::Space(_) | Self::Carried(_) => 0,
            Self::In(sg) => sg.len(),
            Self::Out(sg) => sg.len(),
        }
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a request failed. Command sets translate it into sense data or a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The medium could not be read or written.
    Medium,
    /// A block was marked as unreadable and has not been written since.
    Marked,
    /// No space is left for a thinly provisioned unit.
    NoSpace,
    /// The store is unavailable, or was closed.
    Gone,
    /// The store cannot be reached now and is expected back: the process that serves it has ended, for example.
    NotReady,
    /// Another host has reserved the device that the store is on.
    Conflict,
    /// The store does not support this operation: the caller takes the fall-back.
    Unsupported,
    /// The command was aborted, or the [`Done`] of the request was dropped.
    Aborted,
    /// The whole medium was formatted or sanitized while the command was in progress.
    Cleared,
    /// The peer or the medium did not answer in time.
    Timeout,
    /// Memory for the request is not available now.
    NoMemory,
    /// The data of the peer does not match its announcement.
    Protocol,
    /// Any other error of the operating system, with its number.
    Os(i32),
}

impl Fault {
    /// A request beyond the end of the unit reached its store: EINVAL. Callers check the bounds, so this is a defect
    /// of Lunar.
    pub const OUT_OF_RANGE: Self = Self::Os(22);

    /// The fault for an error number of the operating system.
    #[must_use]
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            5 => Self::Medium,         // EIO
            12 => Self::NoMemory,      // ENOMEM
            28 | 122 => Self::NoSpace, // ENOSPC, EDQUOT
            52 => Self::Conflict,      // EBADE
            95 => Self::Unsupported,   // EOPNOTSUPP
            110 => Self::Timeout,      // ETIMEDOUT
            125 => Self::Aborted,      // ECANCELED
            6 | 19 | 9 => Self::Gone,  // ENXIO, ENODEV, EBADF
            other => Self::Os(other),
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes moved, or the fault.
    pub result: Result<u32, Fault>,
    /// The memory that came with the request.
    pub data: Data,
    /// The answer to [`Op::Extent`].
    pub extent: Extent,
}

impl Outcome {
    /// An answer without memory.
    #[must_use]
    pub fn new(result: Result<u32, Fault>) -> Self {
        Self { result, data: Data::None, extent: Extent::default() }
    }

    /// An answer that returns the memory.
    #[must_use]
    pub fn with(result: Result<u32, Fault>, data: Data) -> Self {
        Self { result, data, extent: Extent::default() }
    }
}

/// A run of bytes in one state of provisioning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Whether the bytes have space allocated.
    pub mapped: bool,
}

/// The right and the duty to answer one request exactly once. Dropping it answers [`Fault::Aborted`].
#[must_use = "a request must be answered"]
pub struct Done(Option<Rc<Slot>>);

#[derive(Default)]
struct Slot {
    outcome: RefCell<Option<Outcome>>,
    waker: Cell<Option<Waker>>,
}

impl Done {
    /// Answers the request.
    #[inline]
    pub fn complete(mut self, outcome: Outcome) {
        if let Some(slot) = self.0.take() {
            slot.answer(outcome);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.answer(Outcome::new(Err(Fault::Aborted)));
        }
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

impl Slot {
    #[inline]
    fn answer(&self, outcome: Outcome) {
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The place where the answer to one request is awaited. It is reused, so that a request allocates nothing.
#[derive(Default)]
pub struct Completion(Rc<Slot>);

impl Completion {
    /// A new completion.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The token for the next request. An abandoned request (its future was dropped) keeps its own slot.
    #[inline]
    pub fn token(&mut self) -> Done {
        if Rc::strong_count(&self.0) > 1 {
            self.0 = Rc::default();
        }
        // No task waits for the answer.
        if self.0.outcome.borrow().is_some() {
            self.0.outcome.take();
        }
        Done(Some(self.0.clone()))
    }

    /// Whether the request that holds the last token has no answer yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// The answer to the request that holds the last token.
    pub async fn wait(&self) -> Outcome {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// [`Completion::wait`] as a poll function.
    #[inline]
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// The answer, if it has arrived.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<Outcome> {
        self.0.outcome.take()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

/// The properties of a store, which it reports when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a completed write may be lost at a power failure until a flush: the write-cache bit (WCE, VWC).
    pub write_cache: bool,
    /// Whether space is allocated only when it is written.
    pub thin: bool,
    /// Granularity in bytes in which space is released; 0: never.
    pub unmap_granularity: u32,
    /// Whether unmapped bytes read as zeroes.
    pub unmap_zeroes: bool,
    /// Bytes that the medium writes at once: the physical block.
    pub physical_block: u32,
    /// Optimal length of a request in bytes; 0: no preference.
    pub optimal_io: u32,
    /// Whether the medium rotates.
    pub rotational: bool,
    /// Bytes of a write that are atomic: after a power failure the medium has all or none of them, and a concurrent
    /// read sees all or none. 0: no such promise (the page cache exposes a write in progress block by block, or in
    /// smaller parts).
    pub atomic_write: u32,
}

/// The store of a unit's bytes.
pub trait Store {
    /// The properties of the store.
    fn traits(&self) -> &Traits;

    /// Starts a request. `done` is answered exactly once, now or later, with the request's memory.
    fn submit(&self, io: Io, done: Done);

    /// This store, if it would complete a read or a write at once.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    /// Memory of the store that holds these bytes and will not change: a read without a copy. The caller asks before
    /// it takes memory for a read. The store puts the memory into `to`, which is empty; the result tells whether it
    /// did.
    fn lend(&self, offset: u64, len: usize, to: &mut Sg) -> bool {
        let _ = (offset, len, to);
        false
    }

    /// Whether the store can report its space: see [`Op::Space`].
    fn measures(&self) -> bool {
        false
    }

    /// The handle by which other stores copy from this one: see [`Op::Copy`]. `None`: its bytes are read instead.
    fn origin(&self) -> Option<Origin> {
        None
    }
}

/// A store whose data is in memory. A request to it completes at once, so the caller needs no task to wait in.
pub trait ImmediateStore {
    /// Executes an [`Op::Read`] or an [`Op::Write`]; the memory stays in `io`. Returns the number of bytes moved.
    ///
    /// # Errors
    /// Errors of [`Store::submit`]; [`Fault::Unsupported`] for all other operations.
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault>;
}

/// The async adaptor of [`Store::submit`].
pub async fn submit(store: &dyn Store, io: Io, completion: &mut Completion) -> Outcome {
    let done = completion.token();
    store.submit(io, done);
    completion.wait().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll_once(completion: &Completion) -> Option<Outcome> {
        let future = pin!(completion.wait());
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_answer_arrives_once() {
        let mut completion = Completion::new();
        assert!(!completion.is_pending());
        let done = completion.token();
        assert!(poll_once(&completion).is_none() && completion.is_pending());
        done.complete(Outcome::new(Ok(7)));
        assert!(!completion.is_pending());
        assert_eq!(poll_once(&completion).map(|o| o.result), Some(Ok(7)));
        assert!(poll_once(&completion).is_none());
    }

    #[test]
    fn a_dropped_token_is_an_answer() {
        let mut completion = Completion::new();
        drop(completion.token());
        assert_eq!(poll_once(&completion).map(|o| o.result), Some(Err(Fault::Aborted)));
    }

    #[test]
    fn a_request_knows_whether_it_stays_within() {
        let io = |op, offset| Io { op, offset, data: Data::None };
        assert!(io(Op::Unmap { len: 512 }, 512).within(1024));
        assert!(!io(Op::Unmap { len: 513 }, 512).within(1024));
        assert!(!io(Op::Zero { len: 2, unmap: false }, u64::MAX).within(u64::MAX));
        assert!(io(Op::Flush, 0).within(0));
    }

    #[test]
    fn a_late_answer_to_a_request_given_up_is_not_the_next_ones() {
        let mut completion = Completion::new();
        let late = completion.token();
        let next = completion.token();
        late.complete(Outcome::new(Ok(1)));
        assert!(poll_once(&completion).is_none());
        next.complete(Outcome::new(Ok(2)));
        assert_eq!(poll_once(&completion).map(|o| o.result), Some(Ok(2)));
    }
}
