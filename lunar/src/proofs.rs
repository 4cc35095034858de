//! Where proofs of names are computed: a thread of their own, for large numbers take milliseconds, and no command waits
//! for those.

use lunar_core::pace::host;
use lunar_core::time::Instant;
use lunar_nvme::auth::Outside;
use lunar_nvme::auth::exchange::{Computed, Work};
use lunar_reactor::Reactor;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{poll_fn, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Work that waits at most: two seconds of it, about. Whoever comes then is told to come again.
const WAITING_MAX: usize = 128;
/// How much the thread lets others go first: it competes with cores that serve.
const NICENESS: i32 = 10;

/// The thread, for all cores: it starts with the first work, and ends with this.
#[derive(Debug, Default)]
pub struct Thread {
    way: Mutex<Option<SyncSender<Given>>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// Where work comes from, and where its end is told.
struct Given(IpAddr, Work, Arc<Mutex<Answer>>);

/// How much of what waits comes from where.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<IpAddr, usize>);

impl Waiting {
    /// One more from there; `false`: as much waits from there as there is room left. So those who prove nothing, and
    /// begin again and again, leave room for others.
    fn enter(&mut self, source: IpAddr) -> bool {
        let left = WAITING_MAX.saturating_sub(self.0.values().sum());
        let own = self.0.get(&source).copied().unwrap_or(0);
        if own < left {
            self.0.insert(source, own + 1);
        }
        own < left
    }

    fn leave(&mut self, source: IpAddr) {
        if let Some(own) = self.0.get_mut(&source) {
            *own -= 1;
        }
        self.0.retain(|_, own| *own > 0);
    }
}

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
        let source = given.0;
        if !lock(&self.waiting).enter(source) {
            return false;
        }
        let is_given = self.send(given);
        if !is_given {
            lock(&self.waiting).leave(source);
        }
        is_given
    }

    fn send(&self, given: Given) -> bool {
        let mut sender = lock(&self.way);
        if sender.is_none() {
            let (way, work) = sync_channel(WAITING_MAX);
            let thread = std::thread::Builder::new().name("proofs".into());
            let waiting = self.waiting.clone();
            if thread.spawn(move || compute_all(&work, &waiting)).is_err() {
                return false;
            }
            *sender = Some(way);
        }
        sender.as_ref().is_some_and(|way| way.try_send(given).is_ok())
    }
}

fn compute_all(work: &Receiver<Given>, waiting: &Mutex<Waiting>) {
    // Where that is refused the thread is one like the others.
    let _ = rustix::process::nice(NICENESS);
    for Given(source, work, answer) in work {
        let computed = work.run();
        lock(waiting).leave(source);
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

    fn compute(&self, source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>> {
        let answer = Arc::<Mutex<Answer>>::default();
        if !self.thread.give(Given(host(source), work, answer.clone())) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_much_computed_leaves_room_for_others() {
        let (mut waiting, from) = (Waiting::default(), |last: u8| IpAddr::from([192, 0, 2, last]));
        let entered = |waiting: &mut Waiting, source| (0..1000).filter(|_| waiting.enter(source)).count();
        let shares: Vec<usize> = (1..6).map(|last| entered(&mut waiting, from(last))).collect();
        assert_eq!(shares, [64, 32, 16, 8, 4]);
        (0..64).for_each(|_| waiting.leave(from(1)));
        assert_eq!((waiting.0.len(), entered(&mut waiting, from(9))), (4, 34));
    }
}
