//! One thread per core: tasks, timers, mailboxes and slots on a driver that does the input and output.
//!
//! * [`op`]: the operations, and the [`op::Driver`] that executes them: io_uring, epoll, or the simulator
//! * [`Reactor`]: the loop of a core: runs ready tasks, submits operations, polls or sleeps until the next event
//! * [`channel`]: mailboxes between cores
//! * [`clock`]: the monotonic clock
//! * [`disk`]: an open file or block device, for every store over one
//! * [`slots`]: long-lived tasks that execute commands without an allocation per command
//! * [`unix`], [`shared`], [`watch`]: sockets that pass descriptors, memory shared with a guest, and the polling of
//!   such memory
//! * [`packets`]: sockets of messages, for threads that wait by themselves
//! * [`end`]: the end of an object that tasks work for
//! * [`heap`]: the heap of the process
//! * [`pages`]: memory of volumes in memory
//! * [`scsi_generic`]: SCSI devices of this machine
//! * [`nvme_generic`]: NVMe namespaces of this machine
//! * [`linger`]: resources that the kernel frees a moment after their process has ended
//! * [`log!`]: lines of the log
//! * [`sim`]: the driver with simulated time, network and files, generated from a seed
//!
//! One turn of the loop: tasks run until none is ready; then the tasks that wait for [`Reactor::end_of_turn`] run
//! (replies that are ready at the same time leave together); then the driver submits the new operations to the kernel
//! and collects the completed ones. An idle core polls while its load justifies that ([`Spin`]) and then sleeps in the
//! kernel.

// The wakers, the rings and the system calls that hand memory to the kernel need it; each block has its argument.
#![allow(unsafe_code)]

pub mod anonymous;
pub mod block_device;
pub mod blocking;
pub mod channel;
pub mod clock;
pub mod disk;
pub mod end;
pub mod endpoint;
mod epoll;
mod eventfd;
mod executor;
mod file;
pub mod flusher;
pub mod heap;
pub mod linger;
pub mod log;
mod longest;
pub mod nvme_generic;
pub mod op;
pub mod packets;
pub mod pages;
mod peer_file;
pub mod remote;
mod ring;
pub mod scsi_generic;
pub mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
pub mod slots;
mod socket_file;
mod spin;
mod sys;
pub mod tcp;
mod timer;
pub mod unix;
mod vector;
pub mod watch;
mod worker;

#[cfg(test)]
mod core_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod endpoint_tests;
#[cfg(test)]
mod testing;

pub use spin::Spin;

use endpoint::command::Command;
use endpoint::{Endpoint, ReceiveBatch, SendBatch};
use executor::Executor;
use longest::LongestTurn;
use lunar_core::io::{Completion, Data, Done, Fault, Outcome};
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use op::{Driver, Handle, Incoming, Op, Wait};
use remote::{RemoteDone, Remotes};
use spin::Policy;
use std::any::{Any, TypeId};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use timer::Timers;
use watch::{Watch, Watches};

/// Most tasks that one turn runs before the driver gets its share: enough that the cost of a turn is negligible, and
/// few enough (some hundred microseconds) that a peer that keeps its tasks ready cannot starve the others.
const TASKS_PER_TURN: usize = 1024;
/// Time after which a turn ends even if fewer tasks ran: parts of long commands take some hundred microseconds each,
/// and are ready again at once.
const TURN_TIME: Duration = Duration::from_millis(1);
/// Tasks between two readings of the clock within a turn.
const TASKS_PER_LOOK: usize = 4;
/// Ends of turns before the clock is read within a turn: replies leave at the first one, and the tasks that have sent
/// them may end at the second one. A peer that sends all the time keeps a task waiting for the next one.
const ENDS_PER_LOOK: usize = 2;
/// Polls of the driver between two readings of the clock: some microseconds.
const LOOKS_PER_CLOCK: usize = 16;
/// Nanoseconds without work that count as a wait: shorter ones are the cost of polling.
const SHORTEST_WAIT: u64 = 1_000;
/// The default size of the arena of a core.
const ARENA_BYTES: usize = 64 << 20;

/// The driver of a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// io_uring; epoll where the kernel refuses it.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// epoll with helper threads.
    Epoll,
}

/// The settings of a core.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its driver.
    pub driver: Choice,
    /// Bytes of memory for payload and headers.
    pub arena_bytes: usize,
    /// Whether to register the memory with the kernel, where that is possible.
    pub register: bool,
    /// Its statistics.
    pub stats: Arc<Stats>,
    /// How long it polls before it sleeps.
    pub spin: Spin,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            driver: Choice::default(),
            arena_bytes: ARENA_BYTES,
            register: true,
            stats: Arc::default(),
            spin: Spin::default(),
        }
    }
}

/// The loop of one core. Clones are the same loop; they stay on its thread.
///
/// Dropping the first clone, which `new` returned, drops the tasks (they may hold clones themselves).
pub struct Reactor {
    inner: Rc<Inner>,
    is_first: bool,
}

struct Inner {
    executor: Rc<Executor>,
    timers: Timers,
    driver: Rc<dyn Driver>,
    arena: Arena,
    stats: Arc<Stats>,
    policy: RefCell<Policy>,
    watches: Watches,
    /// Made with the first request that another thread answers.
    remotes: OnceCell<Rc<Remotes>>,
    now: Cell<Instant>,
    is_running: Cell<bool>,
    /// Whether the core was idle before the current turn.
    has_waited: Cell<bool>,
    /// Whether [`Reactor::prepare_sleep`] has put the core to sleep.
    is_dozing: Cell<bool>,
    longest_turn: LongestTurn,
    common: RefCell<HashMap<TypeId, Rc<dyn Any>>>,
}

/// Excludes the data of volumes and of logins from core dumps, if the process makes any.
fn exclude_from_core_dumps(arena: &Arena) {
    let (base, len) = arena.extent();
    // SAFETY: whole pages that belong to the arena; their contents stay. Advice may be ignored.
    let advised = unsafe { rustix::mm::madvise(base.cast(), len, rustix::mm::Advice::LinuxDontDump) };
    if let Err(why) = advised {
        log!(warning, "data memory is not excluded from core dumps: {why}");
    }
}

impl Reactor {
    /// A core on this thread.
    ///
    /// # Errors
    /// When the kernel refuses the driver.
    pub fn new(config: Config) -> io::Result<Self> {
        let driver = open_driver(config.driver)?;
        let arena = Arena::new(config.arena_bytes);
        exclude_from_core_dumps(&arena);
        config.stats.sampler.set_clock(clock::now);
        if config.register {
            driver.register(&arena);
        }
        Ok(Self::build(driver, arena, config.stats, config.spin))
    }

    /// A core on an existing driver: the simulator. It never polls, because simulated time stands still meanwhile.
    #[must_use]
    pub fn with_driver(driver: Rc<dyn Driver>, arena: Arena, stats: Arc<Stats>) -> Self {
        Self::build(driver, arena, stats, Spin::NEVER)
    }

    fn build(driver: Rc<dyn Driver>, arena: Arena, stats: Arc<Stats>, spin: Spin) -> Self {
        let executor = Rc::new(Executor::new(driver.bell()));
        executor.be_local();
        let inner = Rc::new(Inner {
            executor,
            timers: Timers::default(),
            now: Cell::new(driver.now()),
            driver,
            arena,
            stats,
            policy: RefCell::new(Policy::new(spin)),
            watches: Watches::default(),
            remotes: OnceCell::new(),
            is_running: Cell::new(false),
            has_waited: Cell::new(false),
            is_dozing: Cell::new(false),
            longest_turn: LongestTurn::default(),
            common: RefCell::default(),
        });
        inner.stats.buffer_bytes.set(inner.arena.size() as u64);
        let reactor = Self { inner, is_first: true };
        reactor.spawn(answer_bell(reactor.inner.driver.clone()));
        reactor
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Rc<dyn Driver> {
        &self.inner.driver
    }

    /// The core's memory.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.inner.arena
    }

    /// The statistics of the core.
    #[must_use]
    pub fn stats(&self) -> &Arc<Stats> {
        &self.inner.stats
    }

    /// The state of this type that all users of the core have in common. It must not keep the core alive.
    ///
    /// # Panics
    /// Never: the type is the key.
    #[must_use]
    pub fn common<T: Any + Default>(&self) -> Rc<T> {
        let mut all = self.inner.common.borrow_mut();
        let found = all.entry(TypeId::of::<T>()).or_insert_with(|| Rc::new(T::default()));
        found.clone().downcast().expect("the type is the key")
    }

    /// The time, read once per turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        if !self.inner.is_running.get() {
            self.inner.now.set(self.inner.driver.now());
        }
        self.inner.now.get()
    }

    /// Starts a task. A panic inside ends that task only, and is logged.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.inner.executor.spawn(Box::pin(future));
    }

    /// Adds a task that runs when it is made ready.
    pub(crate) fn enter_task(&self, future: impl Future<Output = ()> + 'static) -> u32 {
        self.inner.executor.enter(Box::pin(future))
    }

    #[inline]
    pub(crate) fn run_now(&self, task: u32) {
        self.inner.executor.run_now(task);
    }

    /// Polls memory that a guest writes, in every turn, as long as `watch` exists.
    pub fn watch(&self, watch: &Rc<dyn Watch>) {
        self.inner.watches.add(watch);
    }

    /// Runs the loop until `future` is done. Other tasks are kept for the next `run`.
    ///
    /// # Panics
    /// When called from within a task, or when `future` panics.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        assert!(!self.inner.is_running.replace(true), "a core's loop runs once at a time");
        let _running = Running(&self.inner.is_running);
        let mut future = pin!(future);
        let mut result = None;
        let mut main = |cx: &mut Context<'_>| {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                result = Some(value);
                return true;
            }
            false
        };
        self.inner.run(&mut main);
        result.expect("the loop ends when the future is done")
    }

    /// One turn without sleep; returns whether there was work. For the simulator, which runs several cores on one
    /// thread.
    ///
    /// # Panics
    /// When called from within a task.
    pub fn turn(&self) -> bool {
        assert!(!self.inner.is_running.replace(true), "a core's loop runs once at a time");
        let _running = Running(&self.inner.is_running);
        self.inner.executor.be_local();
        // Simulated time advances while no core has work; tasks run in the turn after their wake-up.
        let (last, now) = (self.inner.now.get(), self.inner.driver.now());
        if self.inner.is_dozing.get() && !self.inner.is_woken(now) {
            return false;
        }
        self.inner.is_dozing.set(false);
        let has_waited = self.has_waited() || nanoseconds(last, now) > SHORTEST_WAIT;
        self.inner.has_waited.set(has_waited);
        let polled = self.inner.run_tasks(now, &mut |_| {}) + self.inner.watches.look();
        self.inner.has_waited.set(has_waited && polled == 0);
        let answered = self.inner.driver.turn(Wait::Poll);
        polled + answered > 0 || self.inner.has_ready()
    }

    /// Whether the core looks at memory that others write.
    #[must_use]
    pub fn has_watches(&self) -> bool {
        !self.inner.watches.is_empty()
    }

    /// Puts the core to sleep, as a core that has nothing to do does: until an answer, a timer or another core wakes
    /// it, [`Reactor::turn`] looks at no memory. Returns `false`, and does not sleep, if there is something to do. For
    /// the simulator.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.inner.is_dozing.set(self.inner.watches.prepare_sleep());
        self.inner.is_dozing.get()
    }

    /// Whether a task, an answer or a timer waits for the next turn. For the simulator.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_woken(&self) -> bool {
        self.inner.is_woken(self.inner.driver.now())
    }

    /// When the next timer is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.inner.timers.next()
    }

    /// Waits until `at`.
    pub async fn sleep_until(&self, at: Instant) {
        let timer = Timer { timers: &self.inner.timers, key: self.inner.timers.key(at) };
        poll_fn(|cx| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            timer.timers.set(timer.key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }

    /// Waits until every task that is ready in this turn has run, so that replies that are ready at the same time
    /// leave together.
    pub async fn end_of_turn(&self) {
        let executor = &self.inner.executor;
        let begun = executor.ended();
        poll_fn(|cx| {
            if executor.ended() != begun {
                return Poll::Ready(());
            }
            executor.at_end(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether the core was idle before this turn: then its peers most likely wait for the results of this turn.
    #[must_use]
    pub fn has_waited(&self) -> bool {
        self.inner.has_waited.get()
    }

    /// Starts an operation that answers `done`: for stores.
    pub fn submit(&self, op: Op, done: Done) {
        self.inner.driver.submit(op, done);
    }

    /// Exchanges the duty to answer a request for a token that any thread may answer: for stores whose completions
    /// come from other threads. The core keeps `data` in place and unchanged until the token is answered or dropped.
    ///
    /// `None` when too many requests are held by other threads ([`remote::REMOTE_MAX`]): then the request has been
    /// answered with [`Fault::NoMemory`].
    #[must_use]
    pub fn remote(&self, done: Done, data: Data) -> Option<RemoteDone> {
        let remotes = self.inner.remotes.get_or_init(|| {
            let remotes = Remotes::new();
            self.spawn(remotes.clone().answer_all());
            remotes
        });
        remotes.give(done, data)
    }

    /// The next connection.
    ///
    /// # Errors
    /// The error of the operating system; a lack of file descriptors, for one, is temporary.
    pub async fn accept(&self, listener: &Handle) -> io::Result<Incoming> {
        let mut completion = Completion::new();
        loop {
            if let Some(incoming) = self.inner.driver.accepted(listener) {
                return Ok(incoming);
            }
            self.inner.driver.submit(Op::Accept { listener: listener.clone() }, completion.token());
            completion.wait().await.result.map_err(os_error)?;
        }
    }

    /// Receives bytes of a peer: their number (0: the peer has closed its side), and the memory, filled from its
    /// start.
    pub async fn receive(
        &self,
        socket: &Handle,
        into: SgMut,
        completion: &mut Completion,
    ) -> (Result<usize, Fault>, SgMut) {
        self.receive_in_row(socket, into, false, completion).await
    }

    /// [`Reactor::receive`], optionally `at_once` if the last one was filled: before other sockets have their turn.
    pub async fn receive_in_row(
        &self,
        socket: &Handle,
        into: SgMut,
        at_once: bool,
        completion: &mut Completion,
    ) -> (Result<usize, Fault>, SgMut) {
        let done = completion.token();
        self.inner.driver.submit(Op::Receive { socket: socket.clone(), into, at_once }, done);
        let outcome = completion.wait().await;
        let stats = &self.inner.stats;
        stats.receives.add(1);
        stats.received_bytes.add(u64::from(outcome.result.unwrap_or(0)));
        (outcome.result.map(|len| len as usize), outcome.data.into_in())
    }

    /// Sends all bytes to a peer.
    ///
    /// # Errors
    /// When the connection broke.
    pub async fn send(&self, socket: &Handle, data: Sg, completion: &mut Completion) -> Result<usize, Fault> {
        self.begin_send(socket, data, completion);
        let outcome = completion.wait().await;
        self.end_send(&outcome)
    }

    /// The first half of [`Reactor::send`]: a send whose answer, which may arrive at once, goes to `completion`.
    pub fn begin_send(&self, socket: &Handle, data: Sg, completion: &mut Completion) {
        let done = completion.token();
        self.inner.driver.submit(Op::Send { socket: socket.clone(), data }, done);
    }

    /// The second half: evaluates the answer.
    ///
    /// # Errors
    /// When the connection broke.
    pub fn end_send(&self, outcome: &Outcome) -> Result<usize, Fault> {
        let stats = &self.inner.stats;
        stats.sends.add(1);
        stats.sent_bytes.add(u64::from(outcome.result.unwrap_or(0)));
        outcome.result.map(|len| len as usize)
    }
}

/// Endpoints of datagrams, frames and commands.
impl Reactor {
    /// Attaches an endpoint to this core.
    ///
    /// # Errors
    /// `Unsupported` where the driver has no such endpoints; those of the operating system.
    pub fn attach(&self, endpoint: Endpoint) -> io::Result<Handle> {
        self.inner.driver.attach(endpoint)
    }

    /// Waits for datagrams or frames; returns how many have arrived, and the batch that has them. Takes memory for
    /// them first, and waits until the arena has some.
    pub async fn receive_batch(
        &self,
        endpoint: &Handle,
        mut into: Box<ReceiveBatch>,
        completion: &mut Completion,
    ) -> (Result<usize, Fault>, Box<ReceiveBatch>) {
        if into.refill(&self.inner.arena) == 0 {
            into.wait(&self.inner.arena).await;
        }
        let kind = into.kind();
        self.inner.driver.submit(Op::ReceiveBatch { endpoint: endpoint.clone(), into }, completion.token());
        let outcome = completion.wait().await;
        let batch = endpoint::carried(outcome.data).unwrap_or_else(|| ReceiveBatch::of_kind(kind));
        let stats = &self.inner.stats;
        stats.receives.add(1);
        stats.received_bytes.add(batch.datagrams().iter().map(|datagram| datagram.data.len() as u64).sum());
        (outcome.result.map(|count| count as usize), batch)
    }

    /// Sends datagrams or frames, all of them; returns how many were sent and not dropped, and the batch, which is
    /// empty if none failed.
    pub async fn send_batch(
        &self,
        endpoint: &Handle,
        batch: Box<SendBatch>,
        completion: &mut Completion,
    ) -> (Result<usize, Fault>, Box<SendBatch>) {
        let stats = &self.inner.stats;
        stats.sends.add(1);
        stats.sent_bytes.add(batch.bytes());
        self.inner.driver.submit(Op::SendBatch { endpoint: endpoint.clone(), batch }, completion.token());
        let outcome = completion.wait().await;
        (outcome.result.map(|count| count as usize), endpoint::carried(outcome.data).unwrap_or_default())
    }

    /// Gives a command to a device; returns the answer of the device, and the command with its memory; `None` if the
    /// core has ended.
    pub async fn command(
        &self,
        device: &Handle,
        command: Box<Command>,
        completion: &mut Completion,
    ) -> (Result<u32, Fault>, Option<Box<Command>>) {
        self.inner.driver.submit(Op::Command { device: device.clone(), command }, completion.token());
        let outcome = completion.wait().await;
        (outcome.result, endpoint::carried(outcome.data))
    }
}

impl Clone for Reactor {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), is_first: false }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.is_first {
            self.inner.executor.close();
            self.inner.driver.end();
            self.inner.remotes.get_or_init(Remotes::new).end();
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reactor on {}", self.inner.driver.name())
    }
}

impl Inner {
    /// The loop. `main` polls the future of the loop, and returns whether it is done.
    fn run(&self, main: &mut dyn FnMut(&mut Context<'_>) -> bool) {
        self.executor.make_ready(executor::MAIN);
        let is_done = Cell::new(false);
        let mut main = |cx: &mut Context<'_>| {
            if main(cx) {
                is_done.set(true);
            }
        };
        let mut begun = self.driver.now();
        loop {
            let polled = self.run_tasks(begun, &mut main);
            if is_done.get() {
                return;
            }
            let seen = self.watches.look();
            let answered = self.driver.turn(Wait::Poll);
            let found = polled + seen + answered > 0;
            let ended = self.driver.now();
            self.stats.sampler.end_turn(ended);
            if found {
                self.stats.turns.add(1);
                self.stats.busy_nanoseconds.add(nanoseconds(begun, ended));
                self.stats.buffer_used_bytes.set(self.arena.used() as u64);
                self.longest_turn.look(&self.stats, begun, ended);
            }
            let is_quiet = seen + answered == 0 && !self.has_ready();
            begun = if is_quiet { self.rest(ended) } else { ended };
            self.has_waited.set(nanoseconds(ended, begun) > SHORTEST_WAIT);
        }
    }

    /// The first half of a turn: the work that needs no driver.
    fn run_tasks(&self, now: Instant, main: &mut dyn FnMut(&mut Context<'_>)) -> usize {
        self.now.set(now);
        self.stats.set_now(now);
        self.timers.fire(now);
        self.executor.take_remote();
        self.run_ready(main)
    }

    /// Whether there is work for the next turn, which wakes a core that sleeps.
    fn is_woken(&self, now: Instant) -> bool {
        self.has_ready() || self.driver.has_completions() || self.timers.next().is_some_and(|due| due <= now)
    }

    fn has_ready(&self) -> bool {
        self.executor.has_ready() || self.executor.remote().is_pending()
    }

    /// The time within a turn, for latencies: the time of the turn stays.
    fn read_clock(&self) -> Instant {
        let now = self.driver.now();
        self.stats.set_now(now);
        now
    }

    /// Runs tasks until none is ready, with ends of turns in between, or until the turn has run its share of tasks.
    fn run_ready(&self, main: &mut dyn FnMut(&mut Context<'_>)) -> usize {
        let (mut polled, mut ends, begun) = (0, 0, self.now.get());
        loop {
            let ran = self.executor.burst(TASKS_PER_LOOK, main);
            polled += ran;
            let may_be_more = ran == TASKS_PER_LOOK;
            let is_long = may_be_more || ends >= ENDS_PER_LOOK;
            let is_over = is_long && (polled >= TASKS_PER_TURN || self.read_clock().since(begun) > TURN_TIME);
            if may_be_more && !is_over {
                continue;
            }
            if !self.executor.end_turn() || is_over {
                return polled;
            }
            ends += 1;
        }
    }

    /// Polls, then sleeps, until there is work; returns the time after it.
    fn rest(&self, from: Instant) -> Instant {
        let due = self.timers.next();
        let budget = self.policy.borrow().budget();
        let now = if budget > 0 { self.spin(from, budget, due) } else { Some(from) };
        let Some(now) = now else {
            let now = self.driver.now();
            self.policy.borrow_mut().gap(nanoseconds(from, now));
            self.stats.idle_spin_nanoseconds.add(nanoseconds(from, now));
            // The next turn takes the results of the driver; the watches need no driver.
            if self.driver.has_completions() {
                self.driver.turn(Wait::Poll);
            }
            return now;
        };
        self.stats.idle_spin_nanoseconds.add(nanoseconds(from, now));
        if due.is_none_or(|due| due > now) && self.watches.prepare_sleep() && self.executor.remote().prepare_sleep() {
            self.stats.sleeps.add(1);
            self.driver.turn(Wait::Until(due));
            self.executor.remote().rise();
            let risen = self.driver.now();
            self.stats.sleep_nanoseconds.add(nanoseconds(now, risen));
            self.policy.borrow_mut().gap(nanoseconds(from, risen));
            return risen;
        }
        let risen = self.driver.now();
        self.policy.borrow_mut().gap(nanoseconds(from, risen));
        risen
    }

    /// Polls for `budget` nanoseconds; `None` as soon as there is work, else the time after it.
    fn spin(&self, from: Instant, budget: u64, due: Option<Instant>) -> Option<Instant> {
        let end = Instant(from.0.saturating_add(budget));
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.driver.has_completions() || self.executor.remote().is_pending() || self.watches.want_poll() {
                    return None;
                }
                std::hint::spin_loop();
            }
            let now = self.driver.now();
            if due.is_some_and(|due| due <= now) {
                return Some(now);
            }
            if now >= end {
                self.policy.borrow_mut().miss();
                return Some(now);
            }
        }
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.0.saturating_sub(from.0)
}

fn open_driver(choice: Choice) -> io::Result<Rc<dyn Driver>> {
    match choice {
        Choice::Epoll => Ok(epoll::Epoll::new()?),
        Choice::IoUring => Ok(ring::Ring::new()?),
        Choice::Auto => match ring::Ring::new() {
            Ok(ring) => Ok(ring),
            Err(error) => {
                log!(warning, "io_uring is not available ({error}): using epoll with helper threads");
                Ok(epoll::Epoll::new()?)
            }
        },
    }
}

struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A timer that leaves the list when its future is dropped.
struct Timer<'a> {
    timers: &'a Timers,
    key: timer::Key,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.timers.cancel(self.key);
    }
}

/// Keeps one [`Op::Bell`] waiting; its only purpose is to make the loop turn.
async fn answer_bell(driver: Rc<dyn Driver>) {
    let mut completion = Completion::new();
    loop {
        driver.submit(Op::Bell, completion.token());
        if completion.wait().await.result.is_err() {
            return;
        }
    }
}

/// The error of the operating system for a fault.
#[must_use]
pub fn os_error(fault: Fault) -> io::Error {
    match fault {
        Fault::Os(errno) => io::Error::from_raw_os_error(errno),
        Fault::Medium | Fault::Marked => io::Error::from_raw_os_error(libc::EIO),
        Fault::NoSpace => io::Error::from_raw_os_error(libc::ENOSPC),
        Fault::Gone => io::Error::from_raw_os_error(libc::EBADF),
        Fault::Conflict => io::Error::from_raw_os_error(libc::EBADE),
        Fault::Unsupported => io::ErrorKind::Unsupported.into(),
        Fault::Aborted | Fault::Cleared => io::Error::from_raw_os_error(libc::ECANCELED),
        Fault::Timeout => io::ErrorKind::TimedOut.into(),
        Fault::NoMemory => io::ErrorKind::OutOfMemory.into(),
        Fault::NotReady => io::ErrorKind::NotConnected.into(),
        Fault::Protocol => io::ErrorKind::InvalidData.into(),
    }
}
