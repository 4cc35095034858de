//! Worker threads of a core, for operations during which the kernel blocks the calling thread: requests to block
//! devices (BLKDISCARD, BLKZEROOUT), fallocate, SEEK_DATA and SEEK_HOLE, copies within the kernel, and on the epoll
//! driver all I/O of files.
//!
//! Tasks are queued per device. A device that does not answer occupies the threads that work for it, at most
//! [`Limits::threads_per_device`]; other devices get threads of their own, up to [`Limits::threads`]. When that many
//! run, devices share threads: a thread that has finished a part of a task takes the next part from the next device
//! in turn. Threads start on demand and end when they have been idle for [`Limits::idle`].
//!
//! A task is executed in parts ([`Task::step`]). Between two parts the other tasks of its device get their turn, and
//! a cancellation is noticed.

use crate::op::Bell;
use lunar_core::io::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The block device that a file lies on: tasks of one device share a queue.
pub(crate) type Device = u64;

/// The work of a worker thread.
pub(crate) trait Task: Send + 'static {
    /// The core's part of a task, when the task is over.
    type Answer: Send + From<Fault>;

    /// Executes the next part, which takes as long as the device takes; `None` while more parts are left.
    fn step(&mut self) -> Option<Self::Answer>;
}

/// The limits of the workers of one core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most threads.
    pub(crate) threads: usize,
    /// Most threads that work for one device at the same time.
    pub(crate) threads_per_device: usize,
    /// Most tasks that wait in the queue of one device.
    pub(crate) waiting_per_device: usize,
    /// Time after which a thread without work ends.
    pub(crate) idle: Duration,
}

impl Limits {
    pub(crate) const DEFAULT: Self = Self {
        // Each thread costs a stack and a place in the scheduler. 16 hanging devices at the same time leave threads
        // for others; a server that loses more has lost its controller.
        threads: 32,
        // A few threads keep the queue of a disk busy, and a disk that hangs takes no more than these.
        threads_per_device: 4,
        // More than all slots of a core can request of a device at the same time.
        waiting_per_device: 4096,
        // Longer than the pauses between commands of one job, such as a backup that asks for holes.
        idle: Duration::from_secs(10),
    };
}

/// The worker threads of one core, and the queues of its devices.
pub(crate) struct Workers<T: Task> {
    shared: Arc<Shared<T>>,
}

struct Shared<T: Task> {
    limits: Limits,
    queues: Mutex<Queues<T>>,
    /// Signalled when a device has work for an idle thread, and when the workers end.
    work: Condvar,
    /// Signalled when a thread has finished a part after the end.
    quiet: Condvar,
    answers: Mutex<Vec<(u32, T::Answer)>>,
    /// Whether `answers` may hold answers.
    answered: AtomicBool,
    /// Whether the core sleeps, or is about to.
    asleep: AtomicBool,
    bell: Arc<dyn Bell>,
}

struct Queues<T> {
    devices: BTreeMap<Device, Queue<T>>,
    /// Devices that have a task for another thread, each once, in the order in which they get one.
    ready: VecDeque<Device>,
    threads: usize,
    /// Threads that wait for a task, or look for one.
    idle: usize,
    is_over: bool,
}

struct Queue<T> {
    waiting: VecDeque<Job<T>>,
    running: Vec<Running>,
    /// Whether the device is in the list of those that are ready.
    is_ready: bool,
}

struct Job<T> {
    /// The key of the operation in the driver.
    key: u32,
    /// The open file that a cancellation names.
    file: u32,
    task: T,
}

struct Running {
    key: u32,
    file: u32,
    is_cancelled: bool,
}

impl<T> Queue<T> {
    fn is_unused(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Task> Workers<T> {
    pub(crate) fn new(bell: Arc<dyn Bell>, limits: Limits) -> Self {
        let queues = Queues { devices: BTreeMap::new(), ready: VecDeque::new(), threads: 0, idle: 0, is_over: false };
        Self {
            shared: Arc::new(Shared {
                limits,
                queues: Mutex::new(queues),
                work: Condvar::new(),
                quiet: Condvar::new(),
                answers: Mutex::default(),
                answered: AtomicBool::new(false),
                asleep: AtomicBool::new(false),
                bell,
            }),
        }
    }

    /// Queues a task for `device`; its answer comes under `key`. `file` names it in [`Workers::cancel`].
    ///
    /// # Errors
    /// [`Fault::NoMemory`] when the queue of the device is full or no thread can be started,
    /// [`Fault::Aborted`] after [`Workers::end`].
    pub(crate) fn give(&self, device: Device, file: u32, key: u32, task: T) -> Result<(), Fault> {
        let limits = &self.shared.limits;
        let mut queues = lock(&self.shared.queues);
        if queues.is_over {
            return Err(Fault::Aborted);
        }
        let queue = queues.devices.entry(device).or_insert_with(|| Queue {
            waiting: VecDeque::new(),
            running: Vec::new(),
            is_ready: false,
        });
        if queue.waiting.len() >= limits.waiting_per_device {
            return Err(Fault::NoMemory);
        }
        queue.waiting.push_back(Job { key, file, task });
        queues.make_ready(device, limits);
        self.shared.employ(&mut queues);
        if queues.threads == 0 {
            // Without a thread there is no other task either: it would never be executed.
            queues.devices.clear();
            queues.ready.clear();
            return Err(Fault::NoMemory);
        }
        Ok(())
    }

    /// Ends the tasks of an open file: those that wait are answered with [`Fault::Aborted`] by the caller, who gets
    /// their keys; those that run are answered when their part is over.
    pub(crate) fn cancel(&self, file: u32) -> Vec<u32> {
        let mut queues = lock(&self.shared.queues);
        let mut keys = Vec::new();
        for queue in queues.devices.values_mut() {
            queue.running.iter_mut().filter(|job| job.file == file).for_each(|job| job.is_cancelled = true);
            let (gone, kept): (VecDeque<_>, _) =
                std::mem::take(&mut queue.waiting).into_iter().partition(|job| job.file == file);
            queue.waiting = kept;
            keys.extend(gone.iter().map(|job| job.key));
        }
        keys
    }

    /// Whether there are answers: one load.
    pub(crate) fn has_answers(&self) -> bool {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// The answers so far, with the keys of their operations.
    pub(crate) fn answers(&self) -> Vec<(u32, T::Answer)> {
        if !self.has_answers() {
            return Vec::new();
        }
        self.shared.answered.swap(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.shared.answers))
    }

    /// Before the core sleeps: answers ring the bell from now on. False if there are answers already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.shared.asleep.store(true, Ordering::SeqCst);
        !self.shared.answered.load(Ordering::SeqCst)
    }

    /// After the core slept.
    pub(crate) fn end_sleep(&self) {
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Drops the tasks that wait, lets those that run end after their part, and waits for them, at most for
    /// `patience`. Returns the keys of those that still run: the memory that they use must stay where it is.
    pub(crate) fn end(&self, patience: Duration) -> Vec<u32> {
        let deadline = Instant::now() + patience;
        let mut queues = lock(&self.shared.queues);
        queues.is_over = true;
        queues.devices.values_mut().for_each(|queue| queue.waiting.clear());
        queues.ready.clear();
        self.shared.work.notify_all();
        loop {
            let running = queues.devices.values().flat_map(|queue| &queue.running).map(|job| job.key);
            let left = deadline.saturating_duration_since(Instant::now());
            let running: Vec<u32> = running.collect();
            if running.is_empty() || left.is_zero() {
                return running;
            }
            queues = self.shared.quiet.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Queues<T> {
    /// Threads that one device may have now: fewer when half of all are busy, so that devices that hang do not take
    /// the last ones.
    fn share(&self, limits: &Limits) -> usize {
        let is_scarce = (self.threads - self.idle) * 2 >= limits.threads;
        if is_scarce { 1 } else { limits.threads_per_device }
    }

    /// Adds a device to the ready ones, if it has work for another thread.
    fn make_ready(&mut self, device: Device, limits: &Limits) {
        let share = self.share(limits);
        let Some(queue) = self.devices.get_mut(&device) else { return };
        if !queue.is_ready && !queue.waiting.is_empty() && queue.running.len() < share {
            queue.is_ready = true;
            self.ready.push_back(device);
        }
    }

    /// The next task, from the next device in turn.
    fn take(&mut self, limits: &Limits) -> Option<(Device, Job<T>)> {
        while let Some(device) = self.ready.pop_front() {
            let Some(queue) = self.devices.get_mut(&device) else { continue };
            queue.is_ready = false;
            // A cancellation may have emptied the queue.
            let Some(job) = queue.waiting.pop_front() else {
                if queue.is_unused() {
                    self.devices.remove(&device);
                }
                continue;
            };
            queue.running.push(Running { key: job.key, file: job.file, is_cancelled: false });
            self.make_ready(device, limits);
            return Some((device, job));
        }
        None
    }

    /// Ends a part of a task; returns whether the task was cancelled meanwhile.
    fn finish_part(&mut self, device: Device, key: u32) -> bool {
        let Some(queue) = self.devices.get_mut(&device) else { return true };
        let Some(at) = queue.running.iter().position(|job| job.key == key) else { return true };
        queue.running.swap_remove(at).is_cancelled || self.is_over
    }
}

impl<T: Task> Shared<T> {
    /// Makes a thread take the next task: an idle one, else a new one.
    fn employ(self: &Arc<Self>, queues: &mut Queues<T>) {
        if queues.ready.is_empty() {
            return;
        }
        // Each idle thread that was woken for a device has not taken its task yet.
        if queues.idle >= queues.ready.len() {
            return self.work.notify_one();
        }
        if queues.threads < self.limits.threads {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("worker".into()).spawn(move || shared.run());
            queues.threads += usize::from(thread.is_ok());
            queues.idle += usize::from(thread.is_ok());
        }
    }

    /// The life of a thread.
    fn run(self: &Arc<Self>) {
        while let Some((device, mut job)) = self.next() {
            let answer = job.task.step();
            let mut queues = lock(&self.queues);
            queues.idle += 1;
            let is_cancelled = queues.finish_part(device, job.key);
            let key = job.key;
            let answer = match answer {
                None if !is_cancelled => {
                    if let Some(queue) = queues.devices.get_mut(&device) {
                        queue.waiting.push_back(job);
                    }
                    None
                }
                None => Some(Fault::Aborted.into()),
                answer => answer,
            };
            queues.make_ready(device, &self.limits);
            if queues.devices.get(&device).is_some_and(Queue::is_unused) {
                queues.devices.remove(&device);
            }
            let is_over = queues.is_over;
            drop(queues);
            if is_over {
                self.quiet.notify_all();
            } else if let Some(answer) = answer {
                self.answer(key, answer);
            }
        }
    }

    fn answer(&self, key: u32, answer: T::Answer) {
        lock(&self.answers).push((key, answer));
        // SeqCst, here and in `prepare_sleep`: of "answered set, asleep read" and "asleep set, answered read", one
        // side must see the store of the other.
        self.answered.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// The next task; `None` when the thread must end.
    fn next(self: &Arc<Self>) -> Option<(Device, Job<T>)> {
        let mut queues = lock(&self.queues);
        let deadline = Instant::now() + self.limits.idle;
        loop {
            let next = if queues.is_over { None } else { queues.take(&self.limits) };
            let left = deadline.saturating_duration_since(Instant::now());
            if next.is_some() || queues.is_over || left.is_zero() {
                queues.idle -= 1;
                queues.threads -= usize::from(next.is_none());
                self.employ(&mut queues);
                return next;
            }
            queues = self.work.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
