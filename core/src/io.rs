//! The back-end contract, in one file: what a unit's store is asked ([`Io`]), how it answers ([`Done`],
//! [`Outcome`], [`Fault`]), what it says of itself ([`Traits`]), and the [`Store`] itself.
//!
//! Offsets and lengths are bytes and multiples of the unit's block size; bounds were checked before.
//! A store belongs to one core: each core opens each store for itself.

use crate::mem::{Sg, SgMut};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What a store is asked to do. A store that cannot do one answers [`Fault::Unsupported`] and
/// [`crate::step`] has the one fall-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the whole of the [`Data::In`] from `offset` on. Parts never written read as zeroes.
    Read,
    /// Write the whole of the [`Data::Out`]. `durable`: on the medium before it is done (FUA).
    Write {
        /// FUA: on stable storage before the answer.
        durable: bool,
    },
    /// Everything whose write was done before this was submitted is on the medium.
    Flush,
    /// Give back the space of `len` bytes. They read as zeroes after if [`Traits::unmap_zeroes`].
    Unmap {
        /// Bytes.
        len: u64,
    },
    /// Zeroes without moving them. `unmap`: may give back the space.
    Zero {
        /// Bytes.
        len: u64,
        /// Whether the space may be given back.
        unmap: bool,
    },
    /// How far from `offset` on, at most `len`, the space has one state: [`Outcome::extent`].
    Extent {
        /// Bytes.
        len: u64,
    },
    /// How much space it takes and may take yet: comes back as [`Data::Space`].
    Space,
    /// Bytes of another store of the same core, or of this one elsewhere, without moving them through memory. The other
    /// is the request's [`Data::From`]; ranges of one store do not overlap.
    Copy {
        /// Where the bytes are in the other store.
        from: u64,
        /// Bytes.
        len: u64,
    },
}

/// One request to a store.
#[derive(Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Where, in bytes from the start of the unit.
    pub offset: u64,
    /// Memory to fill or to write from; none where the operation moves no data.
    pub data: Data,
}

impl Io {
    /// Bytes of the unit that it touches.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.op {
            Op::Read | Op::Write { .. } => self.data.len() as u64,
            Op::Flush | Op::Space => 0,
            Op::Unmap { len } | Op::Zero { len, .. } | Op::Extent { len } | Op::Copy { len, .. } => len,
        }
    }

    /// Whether it stays within a unit of `size` bytes: a store's own last look before it touches anything.
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
    /// To be filled.
    In(SgMut),
    /// To be read.
    Out(Sg),
    /// Where [`Op::Copy`] copies from.
    From(Origin),
    /// The answer to [`Op::Space`].
    Space(Space),
    /// A value that only the submitter and the driver of an operation know, by its type: datagrams, a device command.
    Carried(Box<dyn Any>),
}

/// Space that a store takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes that it takes.
    pub used: u64,
    /// Bytes that it may take yet. Others may take them first.
    pub available: u64,
}

/// A store as others copy from it: what it shows of itself to stores of its own kind, which know it by its type. It
/// keeps open what it names.
#[derive(Clone)]
pub struct Origin(Rc<dyn Any>);

impl Origin {
    /// What a store shows of itself.
    #[must_use]
    pub fn new(shown: Rc<dyn Any>) -> Self {
        Self(shown)
    }

    /// What it is, if it is a `T`.
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

/// Why a request failed; command sets translate it into sense data or a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The medium could not be read or written.
    Medium,
    /// A block was marked as unreadable, and not written since.
    Marked,
    /// No space is left for a thinly provisioned unit.
    NoSpace,
    /// The store is gone, or was closed.
    Gone,
    /// The store cannot do this operation: take the fall-back.
    Unsupported,
    /// The command was aborted, or the one who was to answer dropped its [`Done`].
    Aborted,
    /// The whole medium was formatted or sanitized while the command was under way.
    Cleared,
    /// The peer or the medium did not answer in time.
    Timeout,
    /// The memory for it is not to be had now.
    NoMemory,
    /// What the peer sent cannot be what it announced.
    Protocol,
    /// Any other error of the operating system, by its number.
    Os(i32),
}

impl Fault {
    /// A request beyond the unit's end reached its store: EINVAL. Bounds are checked before, so it is ours.
    pub const OUT_OF_RANGE: Self = Self::Os(22);

    /// The fault that an operating system's error number stands for.
    #[must_use]
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            5 => Self::Medium,         // EIO
            12 => Self::NoMemory,      // ENOMEM
            28 | 122 => Self::NoSpace, // ENOSPC, EDQUOT
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
    /// Bytes moved, or why not.
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

    /// An answer that gives the memory back.
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
    /// Whether space is taken for them.
    pub mapped: bool,
}

/// The right and the duty to answer one request: exactly once. Dropping it answers [`Fault::Aborted`].
#[must_use = "a request must be answered"]
pub struct Done(Option<Rc<Slot>>);

#[derive(Default)]
struct Slot {
    outcome: RefCell<Option<Outcome>>,
    waker: Cell<Option<Waker>>,
}

impl Done {
    /// Answers.
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

/// Where one request's answer is awaited. Kept and used again, so that a request allocates nothing.
#[derive(Default)]
pub struct Completion(Rc<Slot>);

impl Completion {
    /// A fresh one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The token for the next request. A request that was given up (its future dropped) keeps its own slot.
    #[inline]
    pub fn token(&mut self) -> Done {
        if Rc::strong_count(&self.0) > 1 {
            self.0 = Rc::default();
        }
        // Nobody waited for it.
        if self.0.outcome.borrow().is_some() {
            self.0.outcome.take();
        }
        Done(Some(self.0.clone()))
    }

    /// The answer to the request that holds the last token.
    pub async fn wait(&self) -> Outcome {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The same, as a poll.
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

    /// The answer, if it is there.
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

/// What a store says of itself, when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a write that is done may be lost with power until a flush: the write-cache bit (WCE, VWC).
    pub write_cache: bool,
    /// Whether space is taken only as it is written.
    pub thin: bool,
    /// Bytes that space is given back in; 0: never.
    pub unmap_granularity: u32,
    /// Whether what was unmapped reads as zeroes.
    pub unmap_zeroes: bool,
    /// Bytes that the medium writes at once: the physical block.
    pub physical_block: u32,
    /// Bytes that a request does best with; 0: no preference.
    pub optimal_io: u32,
    /// Whether it turns (a disk) or not.
    pub rotational: bool,
    /// Bytes of a write that the medium has all or none of, even if power fails meanwhile, and that a read beside it
    /// sees all or nothing of; 0: not promised (the page cache shows a write on its way, block by block or less).
    pub atomic_write: u32,
}

/// What a unit's bytes are kept in.
pub trait Store {
    /// What it says of itself.
    fn traits(&self) -> &Traits;

    /// Starts a request. `done` is answered once, now or later, with the request's memory.
    fn submit(&self, io: Io, done: Done);

    /// Itself, if it would carry out a read or a write now, without waiting for anybody.
    fn quick(&self) -> Option<&dyn Quick> {
        None
    }

    /// Memory of the store's own that holds these bytes and will not change: a read without a copy. Asked before
    /// memory is taken for a read. Puts it into `to`, which is empty, and tells whether it did.
    fn lend(&self, offset: u64, len: usize, to: &mut Sg) -> bool {
        let _ = (offset, len, to);
        false
    }

    /// Whether it can tell how much space it takes: see [`Op::Space`].
    fn measures(&self) -> bool {
        false
    }

    /// What others copy from it by: see [`Op::Copy`]. None: its bytes are read.
    fn origin(&self) -> Option<Origin> {
        None
    }
}

/// A store whose data is at hand: who asks it waits for nothing, and needs no task to wait in.
pub trait Quick {
    /// Carries out an [`Op::Read`] or an [`Op::Write`]; the memory stays in `io`. Tells how many bytes it moved.
    ///
    /// # Errors
    /// As of [`Store::submit`]; [`Fault::Unsupported`] for all else.
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault>;
}

/// The one async adaptor of [`Store::submit`].
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
        let done = completion.token();
        assert!(poll_once(&completion).is_none());
        done.complete(Outcome::new(Ok(7)));
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
