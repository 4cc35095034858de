//! The epoll driver: for kernels and containers that refuse io_uring.
//!
//! Sockets do not block: an operation is tried when it is submitted, and again when the socket becomes ready. Each
//! change of readiness is reported once (edge-triggered), so the driver keeps the last known readiness. Reads of files
//! that the page cache holds are executed at once; all other operations on files are executed by worker threads.
//!
//! No foreign code runs while `inner` is borrowed: answers are taken out first and given afterwards
//! ([`Answer::give`]), because they wake tasks and may drop memory and handles, which call back into the driver.

mod answer;
mod batch;
mod file;
mod polled;
mod socket;

use crate::clock;
use crate::endpoint::command::Family;
use crate::endpoint::packet::Filter;
use crate::endpoint::stream;
use crate::endpoint::{Carrier, Endpoint, Messages, Status};
use crate::eventfd::{self, Eventfd};
use crate::file::{OpenFile, Work};
use crate::op::{Bell, Driver, Handle, How, Incoming, Op, Wait};
use crate::sys::raw;
use crate::tcp::{self, TcpState};
use crate::vector::Vector;
use crate::worker::{Limits, Workers};
use answer::Answer;
use batch::Batches;
use file::{Begun, Job};
use libc::epoll_event;
use lunar_core::io::{Data, Done, Fault};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use polled::Polled;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use socket::{Listener, Socket};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Most events taken from the kernel at once; further events follow with the next turn.
const EVENTS: usize = 256;
/// How long a driver that is dropped waits for its worker threads; the memory that those still use is leaked then.
const DRAIN: Duration = Duration::from_secs(5);
/// The event data of the bell; all others are ids.
const BELL: u64 = u64::MAX;

pub(crate) struct Epoll {
    me: Weak<Self>,
    poll: OwnedFd,
    inner: RefCell<Inner>,
    workers: Workers<Work>,
    bell: Arc<Eventfd>,
    /// Whether the kernel has epoll_pwait2, whose timeout counts nanoseconds.
    is_fine: Cell<bool>,
}

struct Inner {
    open: Vec<Option<Open>>,
    free_ids: Vec<u32>,
    jobs: Vec<Option<Job>>,
    free_jobs: Vec<u32>,
    events: Box<[epoll_event; EVENTS]>,
    /// Events that [`Driver::has_completions`] has found already.
    found: usize,
    vector: Vector,
    /// Lists for calls that move several datagrams, made with the first call.
    messages: Option<Box<Messages>>,
    /// Endpoints of datagrams or frames that may have more to receive: tried in the next turn.
    ready_batches: Vec<u32>,
    waiting_for_bell: Vec<Done>,
    has_rung: bool,
}

/// The readiness of a socket that the kernel reports, each change once.
const SOCKET_INTEREST: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// An open object.
enum Open {
    File(Arc<OpenFile>),
    Socket(OwnedFd, Box<Socket>),
    Listener(OwnedFd, Box<Listener>),
    /// An endpoint of datagrams or frames.
    Batches(Box<Batches>),
    /// A file whose readiness was waited for.
    Polled(Arc<OpenFile>, Box<Polled>),
    /// A device whose commands worker threads execute.
    Device(Arc<OpenFile>),
}

impl Open {
    fn fd(&self) -> &OwnedFd {
        match self {
            Self::File(file) | Self::Polled(file, _) | Self::Device(file) => file.fd(),
            Self::Socket(fd, _) | Self::Listener(fd, _) => fd,
            Self::Batches(batches) => batches.carrier.fd(),
        }
    }
}

impl Epoll {
    /// A driver for this thread.
    ///
    /// # Errors
    /// When the process may not open more files.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = Arc::new(Eventfd::new(true)?);
        epoll::add(&poll, bell.fd(), EventData::new_u64(BELL), EventFlags::IN)?;
        let inner = Inner {
            open: Vec::new(),
            free_ids: Vec::new(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            events: Box::new([epoll_event { events: 0, u64: 0 }; EVENTS]),
            found: 0,
            vector: Vector::default(),
            messages: None,
            ready_batches: Vec::new(),
            waiting_for_bell: Vec::new(),
            has_rung: false,
        };
        Ok(Rc::new_cyclic(|me| Self {
            me: me.clone(),
            poll,
            inner: RefCell::new(inner),
            workers: Workers::new(bell.clone(), Limits::DEFAULT),
            bell,
            is_fine: Cell::new(true),
        }))
    }

    fn admit(&self, open: Open) -> io::Result<Handle> {
        let mut inner = self.inner.borrow_mut();
        let id = inner.free_ids.pop().unwrap_or_else(|| {
            inner.open.push(None);
            (inner.open.len() - 1) as u32
        });
        let interest = match open {
            Open::File(_) | Open::Device(_) => EventFlags::empty(),
            Open::Socket(..) => SOCKET_INTEREST,
            Open::Listener(..) => EventFlags::IN | EventFlags::ET,
            Open::Polled(..) => polled::INTEREST,
            Open::Batches(ref batches) => {
                // A second descriptor is the one that becomes writable.
                let is_one = std::ptr::eq(batches.carrier.fd(), batches.carrier.sender());
                if is_one { SOCKET_INTEREST } else { EventFlags::IN | EventFlags::ET }
            }
        };
        if !interest.is_empty()
            && let Err(error) = epoll::add(&self.poll, open.fd(), EventData::new_u64(u64::from(id)), interest)
        {
            inner.free_ids.push(id);
            return Err(error.into());
        }
        if let Open::Batches(batches) = &open
            && !std::ptr::eq(batches.carrier.fd(), batches.carrier.sender())
            && let Err(error) = epoll::add(
                &self.poll,
                batches.carrier.sender(),
                EventData::new_u64(u64::from(id)),
                EventFlags::OUT | EventFlags::ET,
            )
        {
            inner.free_ids.push(id);
            return Err(error.into());
        }
        inner.open[id as usize] = Some(open);
        let driver: Weak<dyn Driver> = self.me.clone();
        Ok(Handle::new(driver, id))
    }

    /// Asks the kernel for events; waits at most for `timeout` (`None`: for as long as it takes).
    fn wait(&self, events: &mut [epoll_event; EVENTS], timeout: Option<Duration>) -> usize {
        let (room, poll) = (EVENTS as i32, raw(&self.poll));
        if self.is_fine.get()
            && let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero())
        {
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
            };
            let (at, none) = (events.as_mut_ptr(), std::ptr::null::<libc::sigset_t>());
            // SAFETY: `events` has room for as many as the call is told, and `time` lives until the call is over.
            let count = unsafe { libc::syscall(libc::SYS_epoll_pwait2, poll, at, room, &raw const time, none, 0) };
            if let Ok(count) = usize::try_from(count) {
                return count;
            }
            match io::Error::last_os_error().raw_os_error() {
                // The kernel is older than 5.11, or a seccomp profile does not know the call.
                Some(libc::ENOSYS | libc::EPERM) => self.is_fine.set(false),
                _ => return 0,
            }
        }
        // Rounded up: a core that wakes too early would turn until the time has come.
        let milliseconds = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: `events` has room for as many as the call is told.
        let count = unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), room, milliseconds) };
        // The only error that can occur is EINTR.
        usize::try_from(count).unwrap_or(0)
    }

    /// Answers the operations that worker threads have finished.
    fn harvest_workers(&self) -> usize {
        let answers = self.workers.answers();
        let count = answers.len();
        for (key, answer) in answers {
            let mut over = self.inner.borrow_mut().take_job(key).into_answer(answer.result);
            answer.complement(&mut over.outcome);
            over.give();
        }
        count
    }

    /// Receives once from each endpoint that may have data.
    fn receive_ready(&self) -> usize {
        let ready = std::mem::take(&mut self.inner.borrow_mut().ready_batches);
        let receive = |id: &u32| {
            let answer = self.inner.borrow_mut().receive_ready(*id);
            answer.map(Answer::give).is_some()
        };
        ready.iter().filter(|id| receive(id)).count()
    }

    fn submit_file(&self, op: Op, done: Done) {
        let _source = op.source();
        let mut inner = self.inner.borrow_mut();
        let (job, work) = match inner.begin_file(op, done) {
            Begun::Over(answer) => {
                drop(inner);
                return answer.give();
            }
            Begun::Work { job, work } => (job, work),
        };
        let (id, key) = (job.file(), inner.keep_job(job));
        if let Err(fault) = self.workers.give(work.device(), id, key, work) {
            let answer = inner.take_job(key).into_answer(Err(fault));
            drop(inner);
            answer.give();
        }
    }

    /// Answers the operations that the events allow.
    fn handle_events(&self, count: usize) -> usize {
        let mut answered = 0;
        for at in 0..count {
            let mut inner = self.inner.borrow_mut();
            let event = inner.events[at];
            let answers = match event.u64 {
                BELL => inner.ring_bell(self.bell.fd()),
                id => inner.handle_event(id as usize, event.events),
            };
            drop(inner);
            answered += answers.len();
            answers.into_iter().for_each(Answer::give);
        }
        answered
    }
}

impl Inner {
    fn open(&mut self, id: u32) -> &mut Open {
        self.open[id as usize].as_mut().expect("a descriptor stays open until its last handle is dropped")
    }

    fn ring_bell(&mut self, bell: &OwnedFd) -> Vec<Answer> {
        // The interest is level-triggered: it is reported until the counter is read.
        let _ = rustix::io::read(bell, &mut [0; 8]);
        self.has_rung = self.waiting_for_bell.is_empty();
        self.waiting_for_bell.drain(..).map(Answer::of_bell).collect()
    }

    /// An event may concern the previous owner of an id: then the descriptor is tried once without result.
    fn handle_event(&mut self, id: usize, events: u32) -> Vec<Answer> {
        match self.open.get_mut(id) {
            Some(Some(Open::Socket(fd, socket))) => socket.become_ready(fd, events, &mut self.vector),
            Some(Some(Open::Listener(fd, listener))) => listener.become_ready(fd),
            Some(Some(Open::Polled(_, polled))) => polled.become_ready(events),
            Some(Some(Open::Batches(batches))) => {
                let answers = batches.become_ready(events, self.messages.get_or_insert_default());
                self.note_ready(id as u32);
                answers
            }
            _ => Vec::new(),
        }
    }

    /// Makes the next turn try to receive, if data may have arrived.
    fn note_ready(&mut self, id: u32) {
        if let Some(Some(Open::Batches(batches))) = self.open.get(id as usize)
            && batches.is_ready()
            && !self.ready_batches.contains(&id)
        {
            self.ready_batches.push(id);
        }
    }

    /// One receive of the next endpoint of a list of those that may have data.
    fn receive_ready(&mut self, id: u32) -> Option<Answer> {
        let Some(Some(Open::Batches(batches))) = self.open.get_mut(id as usize) else { return None };
        let answer = batches.try_receive(self.messages.get_or_insert_default());
        self.note_ready(id);
        answer
    }

    fn start(&mut self, op: Op, done: Done, poll: &OwnedFd) -> Option<Answer> {
        match op {
            Op::Ready { file, to_write } => self.start_ready(poll, file, to_write, done),
            Op::Signal { file } => {
                eventfd::signal(self.open(file.id()).fd());
                Some(Answer::new(done, Ok(0), Data::None, file))
            }
            Op::Bell if std::mem::take(&mut self.has_rung) => Some(Answer::of_bell(done)),
            Op::Bell => {
                self.waiting_for_bell.push(done);
                None
            }
            Op::Accept { listener } => match self.open(listener.id()) {
                Open::Listener(fd, state) => state.accept(fd, done, listener),
                _ => Some(Answer::new(done, Err(Fault::Os(libc::EINVAL)), Data::None, listener)),
            },
            Op::Receive { socket, into, .. } => match self.open[socket.id() as usize].as_mut() {
                Some(Open::Socket(fd, state)) => {
                    let id = EventData::new_u64(u64::from(socket.id()));
                    let again = |fd: &OwnedFd| epoll::modify(poll, fd, id, SOCKET_INTEREST).is_ok();
                    state.receive(fd, again, done, into, socket, &mut self.vector)
                }
                _ => Some(Answer::new(done, Err(Fault::Os(libc::ENOTSOCK)), Data::In(into), socket)),
            },
            Op::Send { socket, data } => match self.open[socket.id() as usize].as_mut() {
                Some(Open::Socket(fd, state)) => state.send(fd, done, data, socket, &mut self.vector),
                _ => Some(Answer::new(done, Err(Fault::Os(libc::ENOTSOCK)), Data::Out(data), socket)),
            },
            Op::ReceiveBatch { endpoint, into } => match self.open(endpoint.id()) {
                Open::Batches(batches) => {
                    let id = endpoint.id();
                    let answer = batches.receive(done, endpoint, into);
                    self.note_ready(id);
                    answer
                }
                _ => Some(Answer::new(done, Err(Fault::Os(libc::EINVAL)), Data::Carried(into), endpoint)),
            },
            Op::SendBatch { endpoint, batch } => match self.open[endpoint.id() as usize].as_mut() {
                Some(Open::Batches(batches)) => {
                    batches.send(done, endpoint, batch, self.messages.get_or_insert_default())
                }
                _ => Some(Answer::new(done, Err(Fault::Os(libc::EINVAL)), Data::Carried(batch), endpoint)),
            },
            _ => unreachable!("operations of files are started by `begin_file`"),
        }
    }

    fn start_ready(&mut self, poll: &OwnedFd, handle: Handle, to_write: bool, done: Done) -> Option<Answer> {
        let open = self.open(handle.id());
        if let Open::File(file) = open {
            let id = EventData::new_u64(u64::from(handle.id()));
            if let Err(error) = epoll::add(poll, file.fd(), id, polled::INTEREST) {
                return Some(Answer::new(done, Err(Fault::from_errno(error.raw_os_error())), Data::None, handle));
            }
            *open = Open::Polled(file.clone(), Box::default());
        }
        match open {
            Open::Polled(_, polled) => polled.wait(to_write, done, handle),
            _ => Some(Answer::new(done, Err(Fault::Os(libc::EINVAL)), Data::None, handle)),
        }
    }

    /// Ends the waiting operations on a handle.
    fn cancel(&mut self, id: u32, workers: &Workers<Work>) -> Vec<Answer> {
        match self.open(id) {
            Open::Socket(_, socket) => socket.cancel(),
            Open::Listener(_, listener) => listener.cancel(),
            Open::Polled(_, polled) => polled.cancel(),
            Open::Batches(batches) => batches.cancel(),
            Open::File(_) | Open::Device(_) => {
                let keys = workers.cancel(id);
                keys.into_iter().map(|key| self.take_job(key).into_answer(Err(Fault::Aborted))).collect()
            }
        }
    }
}

impl Driver for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn submit(&self, op: Op, done: Done) {
        let is_of_files = matches!(
            op,
            Op::Read { .. }
                | Op::Write { .. }
                | Op::Sync { .. }
                | Op::Allocate { .. }
                | Op::Extent { .. }
                | Op::Space { .. }
                | Op::Copy { .. }
                | Op::Command { .. }
        );
        if is_of_files {
            return self.submit_file(op, done);
        }
        let answer = self.inner.borrow_mut().start(op, done, &self.poll);
        if let Some(answer) = answer {
            answer.give();
        }
    }

    fn turn(&self, wait: Wait) -> usize {
        let answered = self.harvest_workers() + self.receive_ready();
        let timeout = match wait {
            Wait::Until(Some(at)) if answered == 0 => Some(at.since(clock::now())),
            Wait::Until(None) if answered == 0 => None,
            _ => Some(Duration::ZERO),
        };
        let mut inner = self.inner.borrow_mut();
        let mut count = std::mem::take(&mut inner.found);
        if count == 0 {
            let may_sleep = inner.ready_batches.is_empty() && self.workers.prepare_sleep();
            let timeout = if may_sleep { timeout } else { Some(Duration::ZERO) };
            count = self.wait(&mut inner.events, timeout);
            self.workers.end_sleep();
        }
        drop(inner);
        answered + self.handle_events(count) + self.harvest_workers()
    }

    fn has_completions(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.found == 0 {
            inner.found = self.wait(&mut inner.events, Some(Duration::ZERO));
        }
        inner.found > 0 || !inner.ready_batches.is_empty() || self.workers.has_answers()
    }

    fn cancel(&self, handle: &Handle) {
        let answers = self.inner.borrow_mut().cancel(handle.id(), &self.workers);
        answers.into_iter().for_each(Answer::give);
    }

    fn close(&self, id: u32) {
        let mut inner = self.inner.borrow_mut();
        let open = inner.open[id as usize].take();
        inner.free_ids.push(id);
        drop(inner);
        // Closing a descriptor ends the interest of epoll as well, except if the file has another descriptor.
        if let Some(Open::Polled(file, _)) = &open {
            let _ = epoll::delete(&self.poll, file.fd());
        }
        drop(open);
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        self.adopt(crate::file::open(path, how)?)
    }

    fn adopt(&self, file: OwnedFd) -> io::Result<Handle> {
        self.admit(Open::File(OpenFile::new(file)))
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        let (fd, local) = stream::listen(address, true)?;
        Ok((self.admit(Open::Listener(fd, Box::default()))?, local))
    }

    fn accepted(&self, listener: &Handle) -> Option<Incoming> {
        match self.inner.borrow_mut().open(listener.id()) {
            Open::Listener(_, listener) => listener.accepted.pop_front().map(Incoming::Socket),
            _ => None,
        }
    }

    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)> {
        let (fd, local, peer) = stream::join(incoming, true)?;
        Ok((self.admit(Open::Socket(fd, Box::default()))?, local, peer))
    }

    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle> {
        let carrier = match endpoint {
            Endpoint::Datagram(socket) => Carrier::of_datagrams(socket),
            Endpoint::Packet(link) => Carrier::of_packets(link),
            // The only commands that exist as calls that wait.
            Endpoint::Command(device) if device.family == Family::Nvme => {
                return self.admit(Open::Device(OpenFile::new(device.fd)));
            }
            Endpoint::Command(_) => {
                let what = "device commands need io_uring, and this core runs on epoll: allow io_uring (sysctl \
                            kernel.io_uring_disabled, seccomp profile of the container)";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            Endpoint::Simulated(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.admit(Open::Batches(Box::new(Batches::new(carrier))))
    }

    fn status(&self, endpoint: &Handle) -> io::Result<Status> {
        match self.inner.borrow_mut().open(endpoint.id()) {
            Open::Batches(batches) => batches.carrier.status(),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()> {
        match self.inner.borrow_mut().open(link.id()) {
            Open::Batches(batches) => batches.carrier.set_filter(filter, is_wanted),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn tcp_state(&self, socket: &Handle) -> Option<TcpState> {
        tcp::state(self.inner.borrow_mut().open(socket.id()).fd())
    }

    fn shutdown(&self, socket: &Handle) {
        if let Open::Socket(fd, state) = self.inner.borrow_mut().open(socket.id()) {
            state.shutdown(fd);
        }
    }

    /// epoll has no registered memory.
    fn register(&self, _: &Arena) {}

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let stuck = self.workers.end(DRAIN);
        let mut inner = self.inner.borrow_mut();
        for key in stuck {
            // A disk does not answer. Its thread may still use the memory, which must stay in place.
            std::mem::forget(inner.jobs[key as usize].take());
        }
    }
}
