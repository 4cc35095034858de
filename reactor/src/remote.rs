//! Requests that other threads answer: completions of libraries with threads of their own, of handlers in other
//! processes, of slow devices.
//!
//! [`crate::Reactor::remote`] exchanges the [`Done`] of a request and its memory for a [`RemoteDone`], which may go to
//! any thread. The core keeps the memory and does not use it until the answer arrives. An answer travels through a
//! queue of the core and wakes the core, even if it sleeps.

use crate::log;
use crate::vector::Vector;
use libc::iovec;
use lunar_core::io::{Data, Done, Fault, Outcome};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Most requests of one core that other threads hold at the same time: more than its slots can have. It bounds the
/// queue of answers, too.
pub const REMOTE_MAX: usize = 4096;
/// How long a core that ends waits for answers; after that the memory of the requests is leaked.
const DRAIN: Duration = Duration::from_secs(5);

/// The right and the duty to answer one request, from any thread, exactly once. Dropping it answers
/// [`Fault::Aborted`].
///
/// The memory of the request can be reached through it until it is answered: as raw pieces for system calls and C
/// libraries ([`RemoteDone::iovecs`]), or by copying ([`RemoteDone::read`], [`RemoteDone::write`]).
///
/// The token may be sent to another thread: the core holds the handles of the memory and keeps them until it has taken
/// the answer, or forever if it ends first, so the addresses stay valid as long as the token exists. Memory that is to
/// be filled has no other user meanwhile, and memory that is to be read is not written (a guest's pages may change at
/// any time, which is why no references to the bytes are given out).
#[must_use = "a request must be answered"]
pub struct RemoteDone {
    key: u32,
    /// Taken by the answer.
    memory: Option<Memory>,
    shared: Arc<Shared>,
}

/// The addresses of the memory of a request. The lists are reused, so that a request allocates nothing.
#[derive(Default)]
struct Memory {
    vector: Vector,
    len: usize,
    is_writable: bool,
}

/// The state that a core and the threads that answer it share.
struct Shared {
    inbox: Mutex<Inbox>,
    /// Signalled at each answer after the core has ended.
    answered: Condvar,
}

struct Inbox {
    answers: Vec<Answer>,
    waker: Option<Waker>,
    /// The core takes no more answers.
    is_closed: bool,
}

struct Answer {
    key: u32,
    result: Result<u32, Fault>,
    memory: Memory,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, answer: Answer) {
        let mut inbox = self.lock();
        if inbox.is_closed {
            return;
        }
        inbox.answers.push(answer);
        let waker = inbox.waker.take();
        drop(inbox);
        self.answered.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl RemoteDone {
    /// Answers: bytes moved, or the fault. All memory of a read request must have been filled.
    pub fn complete(mut self, result: Result<u32, Fault>) {
        self.answer(result);
    }

    fn answer(&mut self, result: Result<u32, Fault>) {
        if let Some(memory) = self.memory.take() {
            self.shared.put(Answer { key: self.key, result, memory });
        }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only the answer takes the memory, and consumes the token")
    }

    /// Bytes of the request's memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory().len
    }

    /// Whether the request has no memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the memory is to be filled; otherwise it is to be read.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.memory().is_writable
    }

    /// The pieces of the memory, in order, for system calls and libraries. They are valid until this token is answered
    /// or dropped. No reference to their bytes may be made, and bytes may be written only if
    /// [`RemoteDone::is_writable`].
    #[must_use]
    pub fn iovecs(&self) -> &[iovec] {
        self.memory().vector.pieces()
    }

    /// Copies the bytes from `at` on into `into`, as many as there are; returns how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.memory().parts(at, into.len(), |from, range| {
            // SAFETY: `parts` gives addresses within the request's memory, which the core keeps in place, and as many
            // bytes as the range has. The target is a slice of this thread's, which that memory does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into[range.clone()].as_mut_ptr(), range.len()) }
        })
    }

    /// Copies `from` to the bytes from `at` on, as many as there is room for; returns how many: none if the memory is
    /// not to be filled.
    pub fn write(&mut self, at: usize, from: &[u8]) -> usize {
        if !self.is_writable() {
            return 0;
        }
        self.memory().parts(at, from.len(), |to, range| {
            // SAFETY: as in `read`; the memory is to be filled, and `&mut self` is its only user.
            unsafe { std::ptr::copy_nonoverlapping(from[range.clone()].as_ptr(), to, range.len()) }
        })
    }
}

impl Drop for RemoteDone {
    fn drop(&mut self) {
        self.answer(Err(Fault::Aborted));
    }
}

impl fmt::Debug for RemoteDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteDone({})", self.key)
    }
}

impl Memory {
    /// Calls `visit` for each piece of the `len` bytes from `at` on, with the address and the range of the bytes that
    /// it stands for, counted from `at`. Returns how many bytes there are.
    fn parts(&self, at: usize, len: usize, mut visit: impl FnMut(*mut u8, std::ops::Range<usize>)) -> usize {
        let (mut skip, mut done) = (at, 0);
        for piece in self.vector.pieces() {
            let from = skip.min(piece.iov_len);
            skip -= from;
            let count = (piece.iov_len - from).min(len - done);
            if count > 0 {
                // Within the piece: `from` + `count` <= `iov_len`.
                visit(piece.iov_base.cast::<u8>().wrapping_add(from), done..done + count);
                done += count;
            }
        }
        done
    }
}

/// The requests of one core that other threads hold.
pub(crate) struct Remotes {
    shared: Arc<Shared>,
    requests: RefCell<Vec<Option<Request>>>,
    free: RefCell<Vec<u32>>,
    /// Lists that no request uses.
    unused: RefCell<Vec<Memory>>,
    /// An empty list with capacity, in exchange for the list of answers.
    spare: RefCell<Vec<Answer>>,
    held: Cell<usize>,
}

struct Request {
    done: Option<Done>,
    data: Data,
}

impl Remotes {
    pub(crate) fn new() -> Rc<Self> {
        let inbox = Inbox { answers: Vec::new(), waker: None, is_closed: false };
        Rc::new(Self {
            shared: Arc::new(Shared { inbox: Mutex::new(inbox), answered: Condvar::new() }),
            requests: RefCell::default(),
            free: RefCell::default(),
            unused: RefCell::default(),
            spare: RefCell::default(),
            held: Cell::new(0),
        })
    }

    /// A token for `done` and its memory. `None` when [`REMOTE_MAX`] are held or the core has ended: then the request
    /// is answered.
    pub(crate) fn give(&self, done: Done, mut data: Data) -> Option<RemoteDone> {
        let refusal = match self.held.get() {
            _ if self.shared.lock().is_closed => Some(Fault::Aborted),
            REMOTE_MAX.. => Some(Fault::NoMemory),
            _ => None,
        };
        if let Some(fault) = refusal {
            done.complete(Outcome::with(Err(fault), data));
            return None;
        }
        let mut memory = self.unused.borrow_mut().pop().unwrap_or_default();
        memory.len = memory.vector.gather_all(&mut data);
        memory.is_writable = matches!(data, Data::In(_));
        let mut requests = self.requests.borrow_mut();
        let key = self.free.borrow_mut().pop().unwrap_or_else(|| {
            requests.push(None);
            (requests.len() - 1) as u32
        });
        requests[key as usize] = Some(Request { done: Some(done), data });
        self.held.set(self.held.get() + 1);
        Some(RemoteDone { key, memory: Some(memory), shared: self.shared.clone() })
    }

    /// Answers requests as their answers arrive, forever.
    pub(crate) async fn answer_all(self: Rc<Self>) {
        loop {
            let mut answers = poll_fn(|cx| {
                let mut inbox = self.shared.lock();
                if inbox.answers.is_empty() {
                    inbox.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(std::mem::replace(&mut inbox.answers, self.spare.take()))
            })
            .await;
            for answer in answers.drain(..) {
                self.take(answer);
            }
            self.spare.replace(answers);
        }
    }

    fn take(&self, answer: Answer) {
        let Answer { key, result, memory } = answer;
        let request = self.requests.borrow_mut()[key as usize].take();
        self.free.borrow_mut().push(key);
        self.unused.borrow_mut().push(memory);
        self.held.set(self.held.get() - 1);
        let Request { done, data } = request.expect("a request is answered once");
        if let Some(done) = done {
            done.complete(Outcome::with(result, data));
        }
    }

    /// The core has ended: its requests are aborted. Their memory is freed as the other threads answer; memory of
    /// unanswered requests is leaked after a time, because those threads may still use it.
    pub(crate) fn end(&self) {
        let aborted: Vec<Option<Done>> =
            self.requests.borrow_mut().iter_mut().flatten().map(|request| request.done.take()).collect();
        drop(aborted);
        let deadline = Instant::now() + DRAIN;
        let mut inbox = self.shared.lock();
        inbox.waker = None;
        loop {
            let answers = std::mem::take(&mut inbox.answers);
            drop(inbox);
            answers.into_iter().for_each(|answer| self.take(answer));
            inbox = self.shared.lock();
            let left = deadline.saturating_duration_since(Instant::now());
            if (self.held.get() == 0 && inbox.answers.is_empty()) || left.is_zero() {
                break;
            }
            if inbox.answers.is_empty() {
                inbox = self.shared.answered.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        inbox.is_closed = true;
        drop(inbox);
        let leaked = self.requests.take();
        if self.held.get() > 0 {
            log!(
                "a core has ended, and after {} s other threads still hold requests of it: {}. Their memory stays in \
                 use",
                DRAIN.as_secs(),
                self.held.get()
            );
            std::mem::forget(leaked);
        }
    }
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
