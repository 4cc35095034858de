//! Where proofs of names are computed: a thread of their own, for large numbers take milliseconds, and no command waits
//! for those.

use lunar_core::time::Instant;
use lunar_nvme::auth::Outside;
use lunar_nvme::auth::exchange::{Computed, Work};
use lunar_reactor::Reactor;
use std::fmt;
use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Work that waits at most: a second of it, about. Whoever comes then is told to come again.
const WAITING_MAX: usize = 64;
/// How much the thread lets others go first: it competes with cores that serve.
const NICENESS: i32 = 10;

/// The thread, for all cores: it starts with the first work, and ends with this.
#[derive(Debug, Default)]
pub struct Thread(Mutex<Option<SyncSender<Given>>>);

/// Work, and where its end is told.
struct Given(Work, Arc<Mutex<Answer>>);

/// What came of it, once that is known, and who waits for it.
#[derive(Default)]
struct Answer {
    computed: Option<Computed>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Thread {
    /// Gives work to the thread; `false` if it has too much, or cannot be.
    fn give(&self, given: Given) -> bool {
        let mut sender = lock(&self.0);
        if sender.is_none() {
            let (way, work) = sync_channel(WAITING_MAX);
            let thread = std::thread::Builder::new().name("proofs".into());
            if thread.spawn(move || compute_all(&work)).is_err() {
                return false;
            }
            *sender = Some(way);
        }
        sender.as_ref().is_some_and(|way| way.try_send(given).is_ok())
    }
}

fn compute_all(work: &Receiver<Given>) {
    // Where that is refused the thread is one like the others.
    let _ = rustix::process::nice(NICENESS);
    for Given(work, answer) in work {
        let computed = work.run();
        let mut answer = lock(&answer);
        answer.computed = Some(computed);
        let waker = answer.waker.take();
        drop(answer);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// What proofs need on one core.
pub struct Proofs {
    reactor: Reactor,
    thread: Arc<Thread>,
}

impl Proofs {
    /// That of this core.
    #[must_use]
    pub fn new(reactor: &Reactor, thread: &Arc<Thread>) -> Self {
        Self { reactor: reactor.clone(), thread: thread.clone() }
    }
}

impl fmt::Debug for Proofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proofs")
    }
}

impl Outside for Proofs {
    fn now(&self) -> Instant {
        self.reactor.now()
    }

    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>> {
        let reactor = self.reactor.clone();
        Box::pin(async move { reactor.sleep_until(at).await })
    }

    fn compute(&self, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>> {
        let answer = Arc::<Mutex<Answer>>::default();
        if !self.thread.give(Given(work, answer.clone())) {
            return Box::pin(ready(None));
        }
        Box::pin(poll_fn(move |cx| {
            let mut answer = lock(&answer);
            if let Some(computed) = answer.computed.take() {
                return Poll::Ready(Some(computed));
            }
            answer.waker = Some(cx.waker().clone());
            Poll::Pending
        }))
    }
}
