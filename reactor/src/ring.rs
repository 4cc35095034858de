//! The io_uring driver.
//!
//! Every operation in the kernel has an entry that owns all memory that the kernel may use: the handle, the data, the
//! lists that describe it. Entries have stable addresses and are reused, so an operation allocates nothing. The
//! `user_data` of a submission is the key of its entry, or one of the few tags below.
//!
//! No foreign code runs while `inner` is borrowed: answers are taken out first and given afterwards
//! ([`Answers::give`]), because they wake tasks and may drop memory and handles, which call back into the driver.

mod accept;
mod batch;
mod command;
mod enter;
mod entry;
mod hot;
mod open;

use crate::clock;
use crate::endpoint::packet::Filter;
use crate::endpoint::stream;
use crate::endpoint::{Carrier, Endpoint, Messages, Status};
use crate::eventfd::Eventfd;
use crate::file::{self, OpenFile, Work};
use crate::op::{Bell, Driver, Handle, How, Incoming, Op, Wait};
use crate::sys::raw;
use crate::tcp::{self, TcpState};
use crate::worker::{Limits, Workers};
use command::CommandRing;
use enter::Entrance;
use entry::{Answer, Answers, Entry, FIXED_PIECE, Next, Target};
use hot::Hot;
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use lunar_core::io::{Done, Fault};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use open::{Listener, Open, Queue, Role};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Submissions between two system calls; a larger number costs another call.
const SUBMISSIONS: u32 = 1024;
/// Completions between two system calls: all slots of a core and its connections may complete at the same time.
const COMPLETIONS: u32 = 16384;
/// Files and sockets in the kernel's table of this ring; others are named by their descriptors.
const FIXED_FILES: u32 = 4096;
/// How long a driver that is dropped waits for the kernel to release memory; after that the memory is leaked.
const DRAIN: Duration = Duration::from_secs(5);

/// `user_data` of submissions whose completions are ignored.
const IGNORED: u64 = u64::MAX;
/// `user_data` of the read of the bell.
const BELL: u64 = u64::MAX - 1;
/// `user_data` of the poll of the ring of commands.
const COMMANDS: u64 = u64::MAX - 2;
/// `user_data` of an accept is this and the listener's id.
const ACCEPT: u64 = 1 << 62;

pub(crate) struct Ring {
    me: Weak<Self>,
    inner: RefCell<Inner>,
    workers: Workers<Work>,
    bell: Arc<Eventfd>,
}

struct Inner {
    /// Declared before the ring, because it must be dropped first.
    entrance: Entrance,
    ring: IoUring,
    /// Boxed: the kernel holds addresses inside.
    #[allow(clippy::vec_box)]
    entries: Vec<Box<Entry>>,
    free: Vec<u32>,
    open: Vec<Option<Open>>,
    free_ids: Vec<u32>,
    hot: Hot,
    /// Submissions without room in the queue.
    backlog: VecDeque<squeue::Entry>,
    /// Submissions whose last completion has not arrived.
    in_flight: usize,
    fixed_files: u32,
    /// Whether a file that leaves the table is released at once.
    releases_files: bool,
    /// Registered memory: address and bytes.
    fixed_memory: Option<(usize, usize)>,
    bell: BellState,
    /// Lists for calls that move several datagrams, made with the first call.
    messages: Option<Box<Messages>>,
    /// The ring of commands that need wide entries, made with the first device that needs it.
    commands: Option<Box<CommandRing>>,
    /// Whether the core has ended: no operation starts any more.
    is_over: bool,
}

struct BellState {
    fd: i32,
    /// The kernel writes the counter of the eventfd here.
    value: Box<u64>,
    waiting: Vec<Done>,
    has_rung: bool,
}

impl Ring {
    /// A ring for this thread.
    ///
    /// # Errors
    /// When the kernel refuses, or is too old (before 5.19).
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let ring = build()?;
        let bell = Arc::new(Eventfd::new(false)?);
        let fixed_files = FIXED_FILES.min(file_limit());
        let fixed_files = if ring.submitter().register_files_sparse(fixed_files).is_ok() { fixed_files } else { 0 };
        let mut inner = Inner {
            entrance: Entrance::new(&ring),
            ring,
            entries: Vec::new(),
            free: Vec::new(),
            open: Vec::new(),
            free_ids: Vec::new(),
            hot: Hot::default(),
            backlog: VecDeque::new(),
            in_flight: 0,
            fixed_files,
            releases_files: open::releases_files(),
            fixed_memory: None,
            bell: BellState { fd: raw(bell.fd()), value: Box::new(0), waiting: Vec::new(), has_rung: false },
            messages: None,
            commands: None,
            is_over: false,
        };
        inner.read_bell();
        Ok(Rc::new_cyclic(|me| Self {
            me: me.clone(),
            inner: RefCell::new(inner),
            workers: Workers::new(bell.clone(), Limits::DEFAULT),
            bell,
        }))
    }

    fn admit(&self, role: Role) -> Handle {
        let id = self.inner.borrow_mut().admit(role);
        let driver: Weak<dyn Driver> = self.me.clone();
        Handle::new(driver, id)
    }

    /// Answers the operations that the kernel has completed.
    fn harvest(&self) -> usize {
        let mut answered = 0;
        loop {
            let mut inner = self.inner.borrow_mut();
            let Some(cqe) = inner.ring.completion().next() else { return answered };
            let answers = inner.complete(&cqe);
            drop(inner);
            answered += answers.give();
        }
    }

    /// Answers the operations that worker threads have finished.
    fn harvest_workers(&self) -> usize {
        if !self.workers.has_answers() {
            return 0;
        }
        let answers = self.workers.answers();
        let count = answers.len();
        for (key, answer) in answers {
            let mut done = self.inner.borrow_mut().retire(key, answer.result);
            answer.complement(&mut done.outcome);
            done.give();
        }
        count
    }
}

/// Completions of the smallest ring that is tried: with more at the same time, the kernel keeps a list of them.
const COMPLETIONS_MIN: u32 = 2048;

/// A ring with the performance flags that the kernel supports. If the kernel has no memory for it at this moment,
/// because free memory is fragmented, a smaller ring is tried.
fn build() -> io::Result<IoUring> {
    let mut completions = COMPLETIONS;
    loop {
        match build_with(completions) {
            Err(why) if why.raw_os_error() == Some(libc::ENOMEM) && completions > COMPLETIONS_MIN => completions /= 2,
            built => return built,
        }
    }
}

fn build_with(completions: u32) -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(completions)
        .setup_clamp()
        .dontfork()
        .build(SUBMISSIONS);
    let ring = match best {
        // Before 6.1.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(completions)
            .setup_clamp()
            .dontfork()
            .build(SUBMISSIONS)?,
        other => other?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    // IORING_OP_SOCKET came with 5.19, like multishot accept and cancelling by file, which no probe shows.
    if !probe.is_supported(opcode::Socket::CODE) || !ring.params().is_feature_ext_arg() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is older than 5.19"));
    }
    Ok(ring)
}

/// Most files that the process may have open.
fn file_limit() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(u32::MAX)
}

impl Inner {
    fn admit(&mut self, role: Role) -> u32 {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.open.push(None);
            (self.open.len() - 1) as u32
        });
        let mut open = Open::new(role);
        let raw = raw(open.fd());
        open.is_fixed = open.may_be_fixed(self.releases_files)
            && id < self.fixed_files
            && self.ring.submitter().register_files_update(id, &[raw]).is_ok();
        self.open[id as usize] = Some(open);
        id
    }

    fn open(&mut self, id: u32) -> &mut Open {
        self.open[id as usize].as_mut().expect("a descriptor stays open until its last handle is dropped")
    }

    fn target(&self, id: u32) -> Target {
        let open = self.open[id as usize].as_ref().expect("a descriptor stays open until its last handle is dropped");
        if open.is_fixed {
            Target { number: id as i32, is_fixed: true, waits_first: open.is_drained }
        } else {
            Target { number: raw(open.fd()), is_fixed: false, waits_first: open.is_drained }
        }
    }

    /// Starts an operation, or answers it at once.
    fn start(&mut self, op: Op, done: Done, workers: &Workers<Work>) -> Answers {
        match op {
            _ if self.is_over => Answers::One(Answer::new(done, Err(Fault::Aborted))),
            Op::Bell if self.bell.has_rung => {
                self.bell.has_rung = false;
                Answers::One(Answer::new(done, Ok(0)))
            }
            Op::Bell => {
                self.bell.waiting.push(done);
                Answers::None
            }
            Op::Accept { listener } => self.start_accept(listener, done),
            Op::Allocate { .. } | Op::Extent { .. } | Op::Space { .. } | Op::Copy { .. } => {
                self.start_work(op, done, workers)
            }
            Op::ReceiveBatch { .. } | Op::SendBatch { .. } => self.start_batch(op, done),
            Op::Command { .. } => self.start_command(op, done),
            op => self.start_entry(op, done),
        }
    }

    fn new_entry(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(Box::default());
            (self.entries.len() - 1) as u32
        })
    }

    fn start_entry(&mut self, op: Op, done: Done) -> Answers {
        let key = self.new_entry();
        let at_once = matches!(op, Op::Receive { at_once: true, .. });
        let entry = &mut self.entries[key as usize];
        let id = entry.fill(op, done);
        if entry.has_nothing_to_do() {
            return Answers::One(self.retire_alone(key, Ok(0)));
        }
        if let Some(queue) = self.queue(key, id) {
            if queue.is_busy {
                queue.waiting.push_back(key);
                return Answers::None;
            }
            queue.is_busy = true;
        }
        match self.entries[key as usize].kind() {
            entry::Kind::Send => return self.send_now(key),
            entry::Kind::Receive if at_once && self.open(id).eager > 0 => return self.receive_now(key),
            entry::Kind::Receive if self.hot.add(key) => {}
            _ => self.issue(key),
        }
        Answers::None
    }

    /// Gives an operation that blocks its thread to the workers.
    fn start_work(&mut self, op: Op, done: Done, workers: &Workers<Work>) -> Answers {
        let key = self.new_entry();
        let file = |handle: &Handle| self.open[handle.id() as usize].as_ref().and_then(Open::file).cloned();
        let work = Work::of(&op, file);
        let id = self.entries[key as usize].fill(op, done);
        let given = match work {
            Some(work) => workers.give(work.device(), id, key, work),
            // Not a file: a socket has no space.
            None => Err(Fault::Unsupported),
        };
        match given {
            Ok(()) => Answers::None,
            Err(fault) => Answers::One(self.retire_alone(key, Err(fault))),
        }
    }

    /// The queue of an operation on a socket.
    fn queue(&mut self, key: u32, id: u32) -> Option<&mut Queue> {
        let kind = self.entries[key as usize].kind();
        let open = self.open[id as usize].as_mut()?;
        match kind {
            entry::Kind::Send | entry::Kind::SendBatch => Some(&mut open.sending),
            entry::Kind::Receive | entry::Kind::ReceiveBatch => Some(&mut open.receiving),
            _ => None,
        }
    }

    /// Submits an entry's operation, or the rest of it, to the kernel.
    fn issue(&mut self, key: u32) {
        let mut target = self.target(self.entries[key as usize].id());
        if self.entries[key as usize].kind() == entry::Kind::SendBatch {
            let id = self.entries[key as usize].id();
            target.number = self.carrier(id).map_or(-1, |carrier| raw(carrier.sender()));
        }
        let sqe = self.entries[key as usize].prepare(target, self.fixed_memory);
        self.push(sqe.user_data(u64::from(key)));
    }

    fn push(&mut self, sqe: squeue::Entry) {
        self.in_flight += 1;
        if self.backlog.is_empty() {
            // SAFETY: the memory of the submission is owned by its entry (or by `bell`), which lives until the kernel
            // has completed it: entries retire on their last completion only, and `end` waits or leaks them.
            if unsafe { self.ring.submission().push(&sqe) }.is_ok() {
                return;
            }
            self.enter(0, None);
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(&sqe) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(sqe);
    }

    fn flush_backlog(&mut self) {
        while let Some(sqe) = self.backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { self.ring.submission().push(sqe) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// The one system call: submits the queued entries, runs task work that the kernel deferred, waits for `want`
    /// completions.
    fn enter(&mut self, want: u32, timeout: Option<Duration>) {
        let queued = self.ring.submission().len() as u32;
        match self.entrance.enter(queued, want, timeout).map_err(|error| error.raw_os_error()) {
            // A signal; the timeout; no room for completions until some are taken; a temporary lack of memory.
            Ok(()) | Err(Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => panic!("io_uring_enter failed with {error:?}: the ring is not usable any more"),
        }
    }

    /// Whether a call has work: submissions, task work, or completions without room.
    fn needs_to_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    fn complete(&mut self, cqe: &cqueue::Entry) -> Answers {
        let has_more = cqueue::more(cqe.flags());
        if !has_more {
            self.in_flight -= 1;
        }
        match cqe.user_data() {
            IGNORED => Answers::None,
            BELL => self.ring_bell(),
            // The completions themselves are taken in every turn.
            COMMANDS => self.end_watch(),
            tag if tag & ACCEPT != 0 => self.complete_accept((tag & !ACCEPT) as u32, cqe.result(), has_more),
            key => self.complete_entry(key as u32, cqe),
        }
    }

    fn complete_entry(&mut self, key: u32, cqe: &cqueue::Entry) -> Answers {
        let entry = &mut self.entries[key as usize];
        let (kind, id) = (entry.kind(), entry.id());
        let open = self.open[id as usize].as_mut().expect("an operation holds its handle");
        if kind == entry::Kind::Receive {
            open.is_drained = !cqueue::sock_nonempty(cqe.flags());
            open.end_receive_of_turn();
        }
        if matches!(kind, entry::Kind::ReceiveBatch | entry::Kind::SendBatch) {
            return self.complete_batch(key, cqe.result());
        }
        if let (Role::Device(device), Some(command)) = (&open.role, entry.command())
            && let Some(descriptors) = &device.descriptors
        {
            descriptors.describe(command);
        }
        match entry.advance(cqe.result(), open.is_direct) {
            Next::Again => {
                self.issue(key);
                Answers::None
            }
            Next::Over(result) => Answers::One(self.retire(key, result)),
        }
    }

    /// Ends an entry and begins the one that waits behind it.
    fn retire(&mut self, key: u32, result: Result<u32, Fault>) -> Answer {
        let id = self.entries[key as usize].id();
        if let Some(queue) = self.queue(key, id) {
            let next = queue.waiting.pop_front();
            queue.is_busy = next.is_some();
            match next {
                Some(next) => self.issue(next),
                None => self.end_sending_if_due(id),
            }
        }
        self.retire_alone(key, result)
    }

    fn retire_alone(&mut self, key: u32, result: Result<u32, Fault>) -> Answer {
        self.free.push(key);
        self.entries[key as usize].empty(result)
    }

    fn end_sending_if_due(&mut self, id: u32) {
        let open = self.open(id);
        if open.ends_sending && !open.sending.is_busy {
            open.ends_sending = false;
            stream::end_sending(open.fd());
        }
    }

    fn read_bell(&mut self) {
        let at: *mut u64 = &raw mut *self.bell.value;
        let read = opcode::Read::new(Fd(self.bell.fd), at.cast(), size_of::<u64>() as u32);
        self.push(read.build().user_data(BELL));
    }

    fn ring_bell(&mut self) -> Answers {
        self.read_bell();
        if self.bell.waiting.is_empty() {
            self.bell.has_rung = true;
            return Answers::None;
        }
        Answers::Many(self.bell.waiting.drain(..).map(|done| Answer::new(done, Ok(0))).collect())
    }

    /// Ends the operations on a handle: at once if the kernel does not know them yet, the others when the kernel
    /// completes them.
    fn cancel(&mut self, id: u32, workers: &Workers<Work>) -> Vec<Answer> {
        if self.is_over {
            return Vec::new();
        }
        let open = self.open(id);
        let mut waiting: Vec<u32> = open.sending.waiting.drain(..).chain(open.receiving.waiting.drain(..)).collect();
        waiting.extend(workers.cancel(id));
        let accepts = self.listener(id).map(|listener| std::mem::take(&mut listener.waiting)).unwrap_or_default();
        let mut answers: Vec<Answer> =
            waiting.into_iter().map(|key| self.retire_alone(key, Err(Fault::Aborted))).collect();
        answers.extend(accepts.into_iter().map(|(d, h)| Answer::with_handle(d, Err(Fault::Aborted), h)));
        answers.extend(self.cancel_hot(id));
        let mut runs = self.listener(id).is_some_and(|listener| listener.is_armed);
        for entry in &mut self.entries {
            runs |= entry.cancel(id);
        }
        if runs {
            let target = self.target(id);
            let cancel = match target.is_fixed {
                true => CancelBuilder::fd(Fixed(id)),
                false => CancelBuilder::fd(Fd(target.number)),
            };
            self.push(opcode::AsyncCancel2::new(cancel.all()).build().user_data(IGNORED));
            if let Some(key) = self.waits_to_send(id) {
                self.push(opcode::AsyncCancel::new(u64::from(key)).build().user_data(IGNORED));
            }
        }
        answers
    }

    /// The last handle is gone, and so are all operations except the accept of a listener.
    fn close(&mut self, id: u32) {
        if !self.close_listener(id) {
            self.forget(id);
        }
    }

    /// Ends all operations and closes all files. The result may hold handles: the caller drops it.
    fn end(&mut self) -> (Vec<Answer>, Vec<Open>) {
        if std::mem::replace(&mut self.is_over, true) {
            return (Vec::new(), Vec::new());
        }
        let end = clock::now() + DRAIN;
        self.push(opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(IGNORED));
        self.entries.iter_mut().for_each(|entry| entry.cancel_all());
        let mut answers = self.end_hot();
        while self.in_flight > self.fetches() && clock::now() < end {
            self.flush_backlog();
            self.enter(1, Some(Duration::from_millis(100)));
            loop {
                let Some(cqe) = self.ring.completion().next() else { break };
                let has_more = cqueue::more(cqe.flags());
                self.in_flight -= usize::from(!has_more);
                let tag = cqe.user_data();
                if tag & ACCEPT == 0 {
                    answers.push(self.retire_alone(tag as u32, Err(Fault::Aborted)));
                } else if tag & !ACCEPT < u64::from(u32::MAX) && cqe.result() >= 0 {
                    // SAFETY: the kernel has just opened this file for this process, and no other code knows its
                    // number.
                    drop(unsafe { OwnedFd::from_raw_fd(cqe.result()) });
                }
            }
        }
        let commands = self.end_commands(end, &mut answers);
        let hangs = self.in_flight > self.fetches() || commands > 0;
        if self.in_flight > 0 || commands > 0 {
            // Most likely a disk does not answer. Memory that the kernel may still use must stay in place.
            std::mem::forget(std::mem::take(&mut self.entries));
            std::mem::forget(std::mem::take(&mut self.bell.value));
        }
        (answers, self.close_all(hangs))
    }

    /// Commands of ublk queues, which end with the ring. One that ends meanwhile, because its device stops, must not
    /// stand for another operation that is waited for.
    fn fetches(&mut self) -> usize {
        self.entries.iter_mut().map(|entry| usize::from(entry.is_fetch())).sum()
    }

    /// Closes all files at once. Otherwise the kernel would close the ring's table a moment after the ring, and after
    /// the process: a process that starts at once would find ports, locks and devices in use. While an operation
    /// `hangs`, they are in use: the table keeps the locks until the kernel has ended it, see
    /// [`crate::disk::Source::open`].
    fn close_all(&mut self, hangs: bool) -> Vec<Open> {
        self.open.iter().flatten().filter(|open| open.is_socket()).for_each(|open| stream::end(open.fd()));
        if !hangs {
            // Fails only if there is no table, or no longer one.
            let _ = self.ring.submitter().unregister_files();
        }
        self.open.iter_mut().filter_map(Option::take).collect()
    }

    fn forget(&mut self, id: u32) {
        let Some(open) = self.open[id as usize].take() else { return };
        if open.is_socket() {
            // The ring's table may keep it: see `open::releases_files`.
            stream::end(open.fd());
        }
        if open.is_fixed {
            // Fails only if the table has no such place.
            let _ = self.ring.submitter().register_files_update(id, &[-1]);
        }
        drop(open);
        self.free_ids.push(id);
    }
}

impl Driver for Ring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn submit(&self, op: Op, done: Done) {
        let _source = op.source();
        let answers = self.inner.borrow_mut().start(op, done, &self.workers);
        answers.give();
    }

    fn turn(&self, wait: Wait) -> usize {
        let answered = self.harvest_workers();
        let mut inner = self.inner.borrow_mut();
        inner.flush_backlog();
        let timeout = match wait {
            Wait::Until(Some(at)) => Some(at.since(clock::now())),
            Wait::Until(None) => Some(Duration::MAX),
            Wait::Poll => None,
        };
        if timeout.is_some() {
            inner.cool();
        }
        inner.submit_commands(timeout.is_some());
        let has_work = answered > 0
            || !inner.ring.completion().is_empty()
            || !inner.backlog.is_empty()
            || inner.has_command_answers();
        match timeout {
            Some(timeout) if !has_work && !timeout.is_zero() && self.workers.prepare_sleep() => {
                inner.enter(1, (timeout != Duration::MAX).then_some(timeout));
            }
            _ if inner.needs_to_enter() => inner.enter(0, None),
            _ => {}
        }
        drop(inner);
        self.workers.end_sleep();
        answered + self.harvest() + self.harvest_commands() + self.harvest_hot(wait) + self.harvest_workers()
    }

    fn has_completions(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let submission = inner.ring.submission();
        let has_more = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        has_more
            || !inner.ring.completion().is_empty()
            || inner.has_command_answers()
            || inner.try_hot(false)
            || self.workers.has_answers()
    }

    fn cancel(&self, handle: &Handle) {
        let answers = self.inner.borrow_mut().cancel(handle.id(), &self.workers);
        answers.into_iter().for_each(Answer::give);
    }

    fn close(&self, id: u32) {
        self.inner.borrow_mut().close(id);
    }

    fn end(&self) {
        // The workers of this driver use no memory of operations: running ones may continue alone.
        self.workers.end(DRAIN);
        // A panic may have left it borrowed: then the process ends without.
        let Ok(mut inner) = self.inner.try_borrow_mut() else { return };
        let (answers, open) = inner.end();
        drop(inner);
        drop(open);
        answers.into_iter().for_each(Answer::give);
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        self.adopt(file::open(path, how)?)
    }

    fn adopt(&self, file: OwnedFd) -> io::Result<Handle> {
        Ok(self.admit(Role::File(OpenFile::new(file))))
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        let (fd, local) = stream::listen(address, false)?;
        Ok((self.admit(Role::Listener(Listener::new(fd))), local))
    }

    fn accepted(&self, listener: &Handle) -> Option<Incoming> {
        self.inner.borrow_mut().listener(listener.id())?.accepted.pop_front().map(Incoming::Socket)
    }

    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)> {
        let (fd, local, peer) = stream::join(incoming, false)?;
        Ok((self.admit(Role::Stream(fd)), local, peer))
    }

    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle> {
        let role = match endpoint {
            Endpoint::Datagram(socket) => Role::Carrier(Carrier::of_datagrams(socket)),
            Endpoint::Packet(link) => Role::Carrier(Carrier::of_packets(link)),
            Endpoint::Command(device) => Role::Device(Box::new(device)),
            Endpoint::Simulated(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        if let Role::Device(device) = &role
            && device.is_wide()
        {
            self.inner.borrow_mut().open_command_ring()?;
        }
        Ok(self.admit(role))
    }

    fn status(&self, endpoint: &Handle) -> io::Result<Status> {
        let mut inner = self.inner.borrow_mut();
        inner.carrier(endpoint.id()).ok_or(io::ErrorKind::InvalidInput)?.status()
    }

    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()> {
        let mut inner = self.inner.borrow_mut();
        inner.carrier(link.id()).ok_or(io::ErrorKind::InvalidInput)?.set_filter(filter, is_wanted)
    }

    fn tcp_state(&self, socket: &Handle) -> Option<TcpState> {
        let mut inner = self.inner.borrow_mut();
        if inner.is_over { None } else { tcp::state(inner.open(socket.id()).fd()) }
    }

    fn shutdown(&self, socket: &Handle) {
        let mut inner = self.inner.borrow_mut();
        if !inner.is_over {
            inner.open(socket.id()).ends_sending = true;
            inner.end_sending_if_due(socket.id());
        }
    }

    fn register(&self, arena: &Arena) {
        let (base, len) = arena.extent();
        let pieces: Vec<libc::iovec> = (0..len)
            .step_by(FIXED_PIECE)
            .map(|at| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len: FIXED_PIECE.min(len - at) })
            .collect();
        let mut inner = self.inner.borrow_mut();
        // SAFETY: registration only pins the pages; reads and writes by their number come from entries, which hold the
        // memory. If the arena is dropped first, the pages stay until the ring is dropped.
        if unsafe { inner.ring.submitter().register_buffers(&pieces) }.is_ok() {
            inner.fixed_memory = Some((base.addr(), len));
        }
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.end();
    }
}
