//! Slots: a fixed number of long-lived tasks per core that carry out jobs, one at a time each.
//!
//! They bound memory and queue depth, and starting a job allocates nothing: it is moved into the slot's seat and
//! the slot's task runs at once, as far as it gets without waiting. A job that panics loses its own slot's future only,
//! which is made anew.

use crate::Reactor;
use lunar_core::io::Completion;
use lunar_core::step::Tools;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// A fixed number of tasks that carry out jobs.
pub struct Slots<J> {
    reactor: Reactor,
    seats: Rc<Seats<J>>,
}

struct Seats<J> {
    seats: Vec<Seat<J>>,
    free: RefCell<Vec<u32>>,
}

struct Seat<J> {
    /// It stays here while it is carried out: jobs are large, and moving them costs.
    job: RefCell<Option<J>>,
    /// The task that carries it out, by its index in the executor.
    task: Cell<u32>,
}

impl<J: 'static> Slots<J> {
    /// `count` slots that carry out jobs with `work`, each with tools of its own.
    #[must_use]
    pub fn new<W: AsyncFn(&J, &mut Tools) + 'static>(reactor: &Reactor, count: usize, work: W) -> Self {
        let count = u32::try_from(count).expect("a core has far fewer slots than 2^32");
        let seats = Rc::new(Seats {
            seats: (0..count).map(|_| Seat { job: RefCell::new(None), task: Cell::new(0) }).collect(),
            // The last is taken first: a light load stays on few slots, whose memory is warm.
            free: RefCell::new((0..count).rev().collect()),
        });
        let work = Rc::new(work);
        for index in 0..count {
            occupy(reactor, seats.clone(), index, work.clone());
        }
        Self { reactor: reactor.clone(), seats }
    }

    /// Starts a job; it has run as far as it gets when this returns.
    ///
    /// # Errors
    /// The job, when no slot is free.
    #[inline]
    pub fn start(&self, job: J) -> Result<(), J> {
        let Some(index) = self.seats.free.borrow_mut().pop() else { return Err(job) };
        let seat = &self.seats.seats[index as usize];
        *seat.job.borrow_mut() = Some(job);
        self.reactor.run_now(seat.task.get());
        Ok(())
    }

    /// Slots that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.seats.free.borrow().len()
    }
}

impl<J> Clone for Slots<J> {
    fn clone(&self) -> Self {
        Self { reactor: self.reactor.clone(), seats: self.seats.clone() }
    }
}

impl<J> fmt::Debug for Slots<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {} free)", self.seats.free.borrow().len(), self.seats.seats.len())
    }
}

fn occupy<J: 'static, W: AsyncFn(&J, &mut Tools) + 'static>(
    reactor: &Reactor,
    seats: Rc<Seats<J>>,
    index: u32,
    work: Rc<W>,
) {
    let guard = Guard { reactor: reactor.clone(), seats: seats.clone(), index, work: work.clone(), busy: false };
    let task = reactor.spawn_task(sit(guard));
    seats.seats[index as usize].task.set(task);
}

#[expect(clippy::await_holding_refcell_ref, reason = "a seat is written to when it is free, and that is after")]
async fn sit<J: 'static, W: AsyncFn(&J, &mut Tools) + 'static>(mut guard: Guard<J, W>) {
    let mut tools = Tools { arena: guard.reactor.arena().clone(), completion: Completion::new() };
    let (seats, work) = (guard.seats.clone(), guard.work.clone());
    let seat = &seats.seats[guard.index as usize];
    loop {
        // No waker is kept: `start` makes the task ready by its index.
        poll_fn(|_| if seat.job.borrow().is_some() { Poll::Ready(()) } else { Poll::Pending }).await;
        guard.busy = true;
        if let Some(job) = &*seat.job.borrow() {
            work(job, &mut tools).await;
        }
        *seat.job.borrow_mut() = None;
        guard.busy = false;
        seats.free.borrow_mut().push(guard.index);
    }
}

/// Makes the slot's task anew when a job's panic ends it.
struct Guard<J: 'static, W: AsyncFn(&J, &mut Tools) + 'static> {
    reactor: Reactor,
    seats: Rc<Seats<J>>,
    index: u32,
    work: Rc<W>,
    busy: bool,
}

impl<J: 'static, W: AsyncFn(&J, &mut Tools) + 'static> Drop for Guard<J, W> {
    fn drop(&mut self) {
        if self.busy && std::thread::panicking() {
            drop(self.seats.seats[self.index as usize].job.take());
            occupy(&self.reactor, self.seats.clone(), self.index, self.work.clone());
            self.seats.free.borrow_mut().push(self.index);
        }
    }
}
