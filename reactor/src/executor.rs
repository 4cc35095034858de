//! The tasks of one core: a slab of futures, the list of those that are ready, and wakers that are numbers.
//!
//! A waker holds no memory: it is (executor, generation, task) packed into one word. Waking on the core's own thread
//! pushes the task's index onto the ready list; waking from another thread goes through [`Remote`]. A waker that
//! outlived its task wakes no task, or at worst another task without need, which futures allow.

use crate::log;
use crate::op::Bell;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
/// The index of the future of [`crate::Reactor::run`]: it lives on the caller's stack.
pub(crate) const MAIN: u32 = INDEX_MASK;

const _: () = assert!(usize::BITS == 64, "a waker is one word of 64 bits");

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// All executors that exist, by number: a waker on another thread finds its core here.
static REMOTES: RwLock<Remotes> = RwLock::new(Remotes { entries: Vec::new(), next: 0 });

struct Remotes {
    entries: Vec<Option<Arc<Remote>>>,
    /// The start of the search for a free number, when all were used once.
    next: usize,
}

impl Remotes {
    /// The number of an executor that has ended is reused as late as possible: its wakers may still exist, and would
    /// wake tasks of another executor.
    fn enter(&mut self, remote: Arc<Remote>) -> u16 {
        if let Ok(id) = u16::try_from(self.entries.len()) {
            self.entries.push(Some(remote));
            return id;
        }
        let count = self.entries.len();
        let mut numbers = (self.next..count).chain(0..self.next);
        let free = numbers.find(|at| self.entries[*at].is_none()).expect("a process has far fewer cores than 65,536");
        self.entries[free] = Some(remote);
        self.next = free + 1;
        u16::try_from(free).expect("a process has fewer executors")
    }
}

thread_local! {
    /// The executor that was last made or run on this thread, while it exists.
    static LOCAL: Cell<*const Executor> = const { Cell::new(ptr::null()) };
}

pub(crate) struct Executor {
    id: u16,
    tasks: RefCell<Tasks>,
    /// Wakers of tasks that wait for the end of the turn.
    ending: RefCell<Vec<Waker>>,
    /// Ends of turns so far.
    ended: Cell<u64>,
    /// Whether a task runs within another.
    is_nested: Cell<bool>,
    remote: Arc<Remote>,
}

#[derive(Default)]
struct Tasks {
    entries: Vec<Entry>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    main_is_ready: bool,
    closed: bool,
}

#[derive(Default)]
struct Entry {
    /// `None` while it is polled, and when the entry is free.
    task: Option<Task>,
    generation: u32,
    /// Whether the index is in the ready list.
    is_ready: bool,
}

impl Executor {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> Self {
        let remote = Arc::new(Remote::new(bell));
        let id = REMOTES.write().unwrap_or_else(PoisonError::into_inner).enter(remote.clone());
        Self {
            id,
            tasks: RefCell::default(),
            ending: RefCell::default(),
            ended: Cell::new(0),
            is_nested: Cell::new(false),
            remote,
        }
    }

    /// From now on, wakers of this executor's tasks take the short path on this thread.
    pub(crate) fn be_local(self: &Rc<Self>) {
        LOCAL.set(Rc::as_ptr(self));
    }

    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Adds a task and makes it ready.
    pub(crate) fn spawn(&self, task: Task) {
        let index = self.enter(task);
        self.make_ready(index);
    }

    /// Adds a task; returns its index.
    pub(crate) fn enter(&self, task: Task) -> u32 {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.closed {
            drop(tasks);
            drop(task);
            return INDEX_MASK - 1;
        }
        let index = tasks.free.pop().unwrap_or_else(|| {
            tasks.entries.push(Entry::default());
            (tasks.entries.len() - 1) as u32
        });
        assert!(index < INDEX_MASK - 1, "a core has far fewer than 16 million tasks");
        tasks.entries[index as usize].task = Some(task);
        index
    }

    /// Makes a task ready.
    pub(crate) fn make_ready(&self, index: u32) {
        self.tasks.borrow_mut().make_ready(index);
    }

    /// Runs a task inside the running one: its data is still in the cache. Such a task only makes other tasks ready,
    /// because the depth of the stack must be bounded.
    #[inline]
    pub(crate) fn run_now(&self, index: u32) {
        if self.is_nested.get() {
            return self.make_ready(index);
        }
        let Some((generation, task)) = self.tasks.borrow_mut().take(index) else { return self.make_ready(index) };
        let waker = self.waker(index, generation);
        self.is_nested.set(true);
        self.poll(index, task, &mut Context::from_waker(&waker));
        self.is_nested.set(false);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.tasks.borrow().ready.is_empty()
    }

    /// Polls tasks that are ready, at most `budget` of them; `main` polls the future of `run`. Returns how many.
    pub(crate) fn burst(&self, budget: usize, main: &mut dyn FnMut(&mut Context<'_>)) -> usize {
        for polled in 0..budget {
            let Some((index, generation, task)) = self.tasks.borrow_mut().next() else { return polled };
            let waker = self.waker(index, generation);
            let mut cx = Context::from_waker(&waker);
            match task {
                Some(task) => self.poll(index, task, &mut cx),
                None if index == MAIN => main(&mut cx),
                None => {}
            }
        }
        budget
    }

    fn poll(&self, index: u32, mut task: Task, cx: &mut Context<'_>) {
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {
                let mut tasks = self.tasks.borrow_mut();
                if !tasks.closed {
                    tasks.entries[index as usize].task = Some(task);
                    return;
                }
                drop(tasks);
            }
            Ok(Poll::Ready(())) => self.tasks.borrow_mut().retire(index),
            Err(panic) => {
                self.tasks.borrow_mut().retire(index);
                log!(error, "a task ended by a panic: {}", describe(&*panic));
            }
        }
        // The task's own drop may spawn, wake and panic: nothing is borrowed here.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(task))) {
            log!(error, "a task panicked as it was dropped: {}", describe(&*panic));
        }
    }

    /// Wakes the tasks that wait for the end of the turn; returns whether there were any.
    pub(crate) fn end_turn(&self) -> bool {
        if self.ending.borrow().is_empty() {
            return false;
        }
        self.ended.set(self.ended.get() + 1);
        let mut ending = self.ending.take();
        ending.drain(..).for_each(Waker::wake);
        // Keeps the allocation, unless new waiters were added meanwhile.
        let mut current = self.ending.borrow_mut();
        if current.is_empty() {
            *current = ending;
        }
        true
    }

    /// Ends of turns so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Wakes at the next end of a turn.
    pub(crate) fn at_end(&self, waker: Waker) {
        self.ending.borrow_mut().push(waker);
    }

    /// Makes the tasks ready that other threads woke.
    pub(crate) fn take_remote(&self) {
        if self.remote.is_pending() {
            self.take_remote_now();
        }
    }

    #[cold]
    fn take_remote_now(&self) {
        for key in self.remote.take() {
            self.wake(key);
        }
    }

    /// Drops all tasks, and tasks that are spawned from now on.
    pub(crate) fn close(&self) {
        self.tasks.borrow_mut().closed = true;
        let mut at = 0;
        loop {
            let task = match self.tasks.borrow_mut().entries.get_mut(at) {
                Some(entry) => entry.task.take(),
                None => break,
            };
            drop(task);
            at += 1;
        }
        drop(self.ending.take());
    }

    fn waker(&self, index: u32, generation: u32) -> Waker {
        let key = (u64::from(self.id) << (INDEX_BITS + GENERATION_BITS))
            | (u64::from(generation) << INDEX_BITS)
            | u64::from(index);
        // SAFETY: the table's functions treat the pointer as a number, so they may be called from any thread, at
        // any time, any number of times.
        unsafe { Waker::from_raw(raw_waker(ptr::without_provenance(key as usize))) }
    }

    fn wake(&self, key: u64) {
        let index = key as u32 & INDEX_MASK;
        let generation = (key >> INDEX_BITS) as u32 & GENERATION_MASK;
        let mut tasks = self.tasks.borrow_mut();
        if index == MAIN || tasks.entries.get(index as usize).is_some_and(|entry| entry.generation == generation) {
            tasks.make_ready(index);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if ptr::eq(LOCAL.get(), self) {
            LOCAL.set(ptr::null());
        }
        let mut remotes = REMOTES.write().unwrap_or_else(PoisonError::into_inner);
        remotes.entries[usize::from(self.id)] = None;
    }
}

impl Tasks {
    fn make_ready(&mut self, index: u32) {
        let is_ready = match self.entries.get_mut(index as usize) {
            Some(entry) => &mut entry.is_ready,
            None if index == MAIN => &mut self.main_is_ready,
            None => return,
        };
        if !*is_ready {
            *is_ready = true;
            self.ready.push_back(index);
        }
    }

    /// The task of this index, unless it runs, is already ready, or is gone.
    fn take(&mut self, index: u32) -> Option<(u32, Task)> {
        let entry = self.entries.get_mut(index as usize).filter(|entry| !entry.is_ready)?;
        Some((entry.generation, entry.task.take()?))
    }

    fn next(&mut self) -> Option<(u32, u32, Option<Task>)> {
        let index = self.ready.pop_front()?;
        let Some(entry) = self.entries.get_mut(index as usize) else {
            self.main_is_ready = false;
            return Some((index, 0, None));
        };
        entry.is_ready = false;
        Some((index, entry.generation, entry.task.take()))
    }

    /// The entry is free for another task; wakers of the old one find another generation.
    fn retire(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push(index);
    }
}

/// The message of a panic.
pub(crate) fn describe(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

const VTABLE: RawWakerVTable = RawWakerVTable::new(raw_waker, raw_wake, raw_wake, |_| {});

fn raw_waker(data: *const ()) -> RawWaker {
    RawWaker::new(data, &VTABLE)
}

fn raw_wake(data: *const ()) {
    let key = data.addr() as u64;
    let local = LOCAL.get();
    // SAFETY: `LOCAL` is null or points to an executor of this thread: its `drop` resets it, and until then it
    // stays where it is, inside an `Rc`. Only shared references to it exist.
    if let Some(executor) = unsafe { local.as_ref() }
        && u64::from(executor.id) == key >> (INDEX_BITS + GENERATION_BITS)
    {
        return executor.wake(key);
    }
    wake_remote(key);
}

#[cold]
fn wake_remote(key: u64) {
    let id = (key >> (INDEX_BITS + GENERATION_BITS)) as usize;
    let remotes = REMOTES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(remote)) = remotes.entries.get(id) {
        remote.wake(key);
    }
}

/// The side of an executor that other threads see.
pub(crate) struct Remote {
    woken: Mutex<Vec<u64>>,
    /// Whether `woken` may hold keys.
    pending: AtomicBool,
    /// Whether the core sleeps, or is about to.
    asleep: AtomicBool,
    bell: Arc<dyn Bell>,
}

impl Remote {
    fn new(bell: Arc<dyn Bell>) -> Self {
        Self { woken: Mutex::default(), pending: AtomicBool::new(false), asleep: AtomicBool::new(false), bell }
    }

    fn wake(&self, key: u64) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        // A thread that finds `pending` set leaves the bell to the thread that set it: the core takes the list after
        // it has reset `pending`, so it takes this key as well. SeqCst, here and in `prepare_sleep`: of "pending set,
        // asleep read" and "asleep set, pending read", one side must see the other's store.
        if !self.pending.swap(true, Ordering::SeqCst) && self.asleep.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    fn take(&self) -> Vec<u64> {
        self.pending.swap(false, Ordering::SeqCst);
        std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Before the core sleeps: the bell is rung from now on. False if it must not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.rise();
            return false;
        }
        true
    }

    /// After the core slept.
    pub(crate) fn rise(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
