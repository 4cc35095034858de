//! Slots: a bounded number of long-lived tasks per core that execute jobs, one at a time each.
//!
//! They bound memory and queue depth. A slot has its task from its first job on; after that, starting a job allocates
//! nothing: it is moved into the slot's seat, and the slot's task runs at once, until it has to wait. A job that
//! panics loses its own slot's future only, which is made anew. It keeps its seat until the store has answered the
//! request that it was waiting for, which uses the memory of its peer and changes the unit until then.

use crate::Reactor;
use crate::executor::describe;
use crate::log;
use lunar_core::step::SlotContext;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// A bounded number of tasks that execute jobs.
pub struct Slots<J> {
    reactor: Reactor,
    seats: Rc<Seats<J>>,
    occupy: Rc<Occupy<J>>,
}

/// Makes the task of a seat; returns its index in the executor.
type Occupy<J> = dyn Fn(&Rc<Seat<J>>) -> u32;

struct Seats<J> {
    count: usize,
    /// Seats that were made: as many as there were jobs at the same time.
    made: Cell<usize>,
    /// Free seats. The last is taken first: a light load uses few, whose memory is in the cache.
    free: RefCell<Vec<Rc<Seat<J>>>>,
    /// Takes the jobs that a panic has ended.
    failed: Box<dyn Fn(J)>,
}

struct Seat<J> {
    /// The job stays here while it is executed: jobs are large, and moving them costs.
    job: RefCell<Option<J>>,
    /// The task that executes it; none after a panic.
    task: Cell<Option<u32>>,
}

impl<J> Seats<J> {
    fn take(&self) -> Option<Rc<Seat<J>>> {
        self.free.borrow_mut().pop().or_else(|| {
            let made = self.made.get();
            (made < self.count).then(|| {
                self.made.set(made + 1);
                Rc::new(Seat { job: RefCell::new(None), task: Cell::new(None) })
            })
        })
    }

    fn free(&self) -> usize {
        self.count - self.made.get() + self.free.borrow().len()
    }
}

impl<J: 'static> Slots<J> {
    /// At most `count` slots that execute jobs with `work`, each with resources of its own. A slot that was never used
    /// takes no memory.
    #[must_use]
    pub fn new<W: AsyncFn(&J, &mut SlotContext) + 'static>(reactor: &Reactor, count: usize, work: W) -> Self {
        Self::with_failure(reactor, count, work, drop)
    }

    /// The same. `failed` gets each job that a panic has ended, once the store has answered its request.
    #[must_use]
    pub fn with_failure<W>(reactor: &Reactor, count: usize, work: W, failed: impl Fn(J) + 'static) -> Self
    where
        W: AsyncFn(&J, &mut SlotContext) + 'static,
    {
        let (made, free, failed) = (Cell::new(0), RefCell::default(), Box::new(failed));
        let seats = Rc::new(Seats { count, made, free, failed });
        let (work, core, all) = (Rc::new(work), reactor.clone(), seats.clone());
        let occupy = Rc::new(move |seat: &Rc<Seat<J>>| {
            let slot = SlotContext::timed(core.arena().clone(), core.stats());
            let guard = Guard { reactor: core.clone(), seats: all.clone(), seat: seat.clone(), slot, busy: false };
            core.enter_task(sit(guard, work.clone()))
        });
        Self { reactor: reactor.clone(), seats, occupy }
    }

    /// Starts a job; when this returns, the job has run until its first wait.
    ///
    /// # Errors
    /// The job, when no slot is free.
    #[inline]
    pub fn start(&self, job: J) -> Result<(), J> {
        let Some(seat) = self.seats.take() else { return Err(job) };
        *seat.job.borrow_mut() = Some(job);
        let task = seat.task.get().unwrap_or_else(|| {
            let task = (self.occupy)(&seat);
            seat.task.set(Some(task));
            task
        });
        self.reactor.run_now(task);
        Ok(())
    }

    /// Slots that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.seats.free()
    }
}

impl<J> Clone for Slots<J> {
    fn clone(&self) -> Self {
        Self { reactor: self.reactor.clone(), seats: self.seats.clone(), occupy: self.occupy.clone() }
    }
}

impl<J> fmt::Debug for Slots<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {} free)", self.seats.free(), self.seats.count)
    }
}

/// Runs a function whose panic must not end another task: `None` then.
#[inline]
pub fn contain<T>(what: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(what));
    result.map_err(|panic| log!(error, "a command or a connection ended by a panic: {}", describe(&*panic))).ok()
}

/// Awaits a future whose panic must not end the task: `None` then.
pub async fn contained<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| match contain(|| work.as_mut().poll(cx)) {
        Some(poll) => poll.map(Some),
        None => Poll::Ready(None),
    })
    .await
}

#[expect(clippy::await_holding_refcell_ref, reason = "a free seat is written to, and it is free after its job")]
async fn sit<J: 'static, W: AsyncFn(&J, &mut SlotContext)>(mut guard: Guard<J>, work: Rc<W>) {
    let (seats, seat) = (guard.seats.clone(), guard.seat.clone());
    loop {
        // No waker is kept: `start` makes the task ready by its index.
        poll_fn(|_| if seat.job.borrow().is_some() { Poll::Ready(()) } else { Poll::Pending }).await;
        guard.busy = true;
        if let Some(job) = &*seat.job.borrow() {
            work(job, &mut guard.slot).await;
        }
        *seat.job.borrow_mut() = None;
        guard.busy = false;
        seats.free.borrow_mut().push(seat.clone());
    }
}

/// Frees the seat after a panic of its job has ended its task.
struct Guard<J: 'static> {
    reactor: Reactor,
    seats: Rc<Seats<J>>,
    seat: Rc<Seat<J>>,
    slot: SlotContext,
    busy: bool,
}

impl<J: 'static> Drop for Guard<J> {
    fn drop(&mut self) {
        if !self.busy || !std::thread::panicking() {
            return;
        }
        let Some(job) = self.seat.job.take() else { return };
        self.seat.task.set(None);
        let (seats, seat, completion) = (self.seats.clone(), self.seat.clone(), take(&mut self.slot.completion));
        // A task of its own, also without a wait: a panic out of this one would end the process.
        self.reactor.spawn(async move {
            if completion.is_pending() {
                completion.wait().await;
            }
            seats.free.borrow_mut().push(seat);
            (seats.failed)(job);
        });
    }
}
