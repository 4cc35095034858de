//! A few helper threads per core, for what the kernel only does while somebody waits: ioctls of devices, seeks for
//! holes, and on the epoll driver reads, writes and syncs. They start with the first work.

use crate::file::{Answer, Work, carry_out};
use crate::op::Bell;
use lunar_core::io::Fault;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads per core: a disk's queue is kept busy by a few, and each costs a stack.
const HELPERS: usize = 4;
/// Work that waits for a thread, per core: more than all slots of a core can ask for at once.
const WAITING_MAX: usize = 4096;

pub(crate) struct Helpers {
    shared: Arc<Shared>,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    work: Condvar,
    answers: Mutex<Vec<(u32, Answer)>>,
    /// Whether there are answers.
    answered: AtomicBool,
    /// Whether the core sleeps, or is about to.
    asleep: AtomicBool,
    bell: Arc<dyn Bell>,
}

#[derive(Default)]
struct Waiting {
    work: VecDeque<(u32, Work)>,
    idle: usize,
    is_over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helpers {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> Self {
        Self {
            shared: Arc::new(Shared {
                waiting: Mutex::default(),
                work: Condvar::new(),
                answers: Mutex::default(),
                answered: AtomicBool::new(false),
                asleep: AtomicBool::new(false),
                bell,
            }),
            threads: RefCell::default(),
        }
    }

    /// Gives work to a thread; its answer comes under `key`.
    ///
    /// # Errors
    /// When too much waits already, or no thread can be had.
    pub(crate) fn give(&self, key: u32, work: Work) -> Result<(), Fault> {
        let mut waiting = lock(&self.shared.waiting);
        if waiting.work.len() >= WAITING_MAX {
            return Err(Fault::NoMemory);
        }
        let mut threads = self.threads.borrow_mut();
        if waiting.idle <= waiting.work.len() && threads.len() < HELPERS {
            let shared = self.shared.clone();
            match std::thread::Builder::new().name("helper".into()).spawn(move || shared.help()) {
                Ok(thread) => threads.push(thread),
                Err(_) if threads.is_empty() => return Err(Fault::NoMemory),
                Err(_) => {}
            }
        }
        waiting.work.push_back((key, work));
        drop(waiting);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Whether there are answers: a cheap look.
    pub(crate) fn has_answers(&self) -> bool {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// The answers so far.
    pub(crate) fn answers(&self) -> Vec<(u32, Answer)> {
        if !self.has_answers() {
            return Vec::new();
        }
        self.shared.answered.swap(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.shared.answers))
    }

    /// Before the core sleeps: answers ring the bell from now on. False if it must not sleep.
    pub(crate) fn doze(&self) -> bool {
        self.shared.asleep.store(true, Ordering::SeqCst);
        !self.shared.answered.load(Ordering::SeqCst)
    }

    /// After the core slept.
    pub(crate) fn rise(&self) {
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Forgets what no thread has begun, and waits for the rest: after that no helper touches memory or files.
    pub(crate) fn end(&self) {
        let mut waiting = lock(&self.shared.waiting);
        waiting.is_over = true;
        waiting.work.clear();
        drop(waiting);
        self.shared.work.notify_all();
        for thread in self.threads.take() {
            // A helper does not panic; if one did, it is over as well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn help(&self) {
        while let Some((key, work)) = self.next() {
            let answer = carry_out(work);
            lock(&self.answers).push((key, answer));
            // SeqCst, here and in `doze`: one of the two sides must see the other's store.
            self.answered.store(true, Ordering::SeqCst);
            if self.asleep.load(Ordering::SeqCst) {
                self.bell.ring();
            }
        }
    }

    fn next(&self) -> Option<(u32, Work)> {
        let mut waiting = lock(&self.waiting);
        waiting.idle += 1;
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(work) = waiting.work.pop_front() {
                waiting.idle -= 1;
                return Some(work);
            }
            waiting = self.work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An eventfd: rings through a number that the core reads.
pub(crate) struct Eventfd(std::os::fd::OwnedFd);

impl Eventfd {
    pub(crate) fn new(nonblocking: bool) -> std::io::Result<Self> {
        let mut flags = rustix::event::EventfdFlags::CLOEXEC;
        flags.set(rustix::event::EventfdFlags::NONBLOCK, nonblocking);
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    pub(crate) fn fd(&self) -> &std::os::fd::OwnedFd {
        &self.0
    }
}

impl Bell for Eventfd {
    fn ring(&self) {
        // It cannot fail but for a full counter, and then it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
