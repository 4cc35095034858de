//! The computations of DH-HMAC-CHAP run on a thread of their own, because large numbers take milliseconds, and no
//! command may wait for them.

use lunar_core::pace::host;
use lunar_core::time::Instant;
use lunar_nvme::auth::AuthServices;
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

/// The limit of waiting computations, about two seconds of work. Over the limit, hosts are told to connect later.
const WAITING_MAX: usize = 128;
/// The nice value of the thread: it competes with cores that serve.
const NICENESS: i32 = 10;

/// The thread, for all cores: it starts with the first computation, and ends with this value.
#[derive(Debug, Default)]
pub struct AuthenticationThread {
    has_threads: bool,
    sender: Mutex<Option<SyncSender<Computation>>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// A computation, the address of its host, and its answer.
struct Computation(IpAddr, Work, Arc<Mutex<Answer>>);

/// The number of waiting computations of each address.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<IpAddr, usize>);

impl Waiting {
    /// Counts one more for an address; `false` if the address has as many as there is room left, so that hosts that
    /// authenticate again and again without success leave room for others.
    fn admit(&mut self, source: IpAddr) -> bool {
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

/// The result, once it is known, and the task that waits for it.
#[derive(Default)]
struct Answer {
    computed: Option<Computed>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AuthenticationThread {
    /// The thread, if the host has threads; otherwise computations run at once.
    #[must_use]
    pub fn new(has_threads: bool) -> Self {
        Self { has_threads, ..Self::default() }
    }

    /// Gives a computation to the thread; `false` if too many are waiting, or if the thread cannot be started.
    fn give(&self, given: Computation) -> bool {
        let source = given.0;
        if !lock(&self.waiting).admit(source) {
            return false;
        }
        let is_given = self.send(given);
        if !is_given {
            lock(&self.waiting).leave(source);
        }
        is_given
    }

    fn send(&self, given: Computation) -> bool {
        let mut sender = lock(&self.sender);
        if sender.is_none() {
            let (started, work) = sync_channel(WAITING_MAX);
            let thread = std::thread::Builder::new().name("authentication".into());
            let waiting = self.waiting.clone();
            if thread.spawn(move || compute_all(&work, &waiting)).is_err() {
                return false;
            }
            *sender = Some(started);
        }
        sender.as_ref().is_some_and(|sender| sender.try_send(given).is_ok())
    }
}

fn compute_all(work: &Receiver<Computation>, waiting: &Mutex<Waiting>) {
    // If the kernel refuses, the thread keeps the normal priority.
    let _ = rustix::process::nice(NICENESS);
    for Computation(source, work, answer) in work {
        let computed = work.run();
        lock(waiting).leave(source);
        let mut answer = lock(&answer);
        answer.computed = Some(computed);
        let waker = answer.waker.take();
        drop(answer);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The services for authentication on one core.
pub struct CoreAuthentication {
    reactor: Reactor,
    thread: Arc<AuthenticationThread>,
}

impl CoreAuthentication {
    /// The services of this core.
    #[must_use]
    pub fn new(reactor: &Reactor, thread: &Arc<AuthenticationThread>) -> Self {
        Self { reactor: reactor.clone(), thread: thread.clone() }
    }
}

impl fmt::Debug for CoreAuthentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoreAuthentication")
    }
}

impl AuthServices for CoreAuthentication {
    fn now(&self) -> Instant {
        self.reactor.now()
    }

    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>> {
        let reactor = self.reactor.clone();
        Box::pin(async move { reactor.sleep_until(at).await })
    }

    fn compute(&self, source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>> {
        if !self.thread.has_threads {
            return Box::pin(ready(Some(work.run())));
        }
        let answer = Arc::<Mutex<Answer>>::default();
        if !self.thread.give(Computation(host(source), work, answer.clone())) {
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
    fn an_address_with_many_computations_leaves_room_for_others() {
        let (mut waiting, from) = (Waiting::default(), |last: u8| IpAddr::from([192, 0, 2, last]));
        let admitted = |waiting: &mut Waiting, source| (0..1000).filter(|_| waiting.admit(source)).count();
        let shares: Vec<usize> = (1..6).map(|last| admitted(&mut waiting, from(last))).collect();
        assert_eq!(shares, [64, 32, 16, 8, 4]);
        (0..64).for_each(|_| waiting.leave(from(1)));
        assert_eq!((waiting.0.len(), admitted(&mut waiting, from(9))), (4, 34));
    }
}
