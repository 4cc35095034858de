//! The epoll driver: for kernels and containers that refuse io_uring.
//!
//! Sockets do not block: an operation is tried when it is submitted, and again when the socket becomes ready. Each
//! is told of once per change (edge-triggered), so what is known of its readiness is kept here. Reads of files that
//! the page cache holds are done at once; all else that touches files goes to helper threads.
//!
//! Nothing foreign runs while `inner` is borrowed: answers are taken out first ([`Answer::give`]), because they wake
//! tasks, and may drop memory and handles, which come back here.

mod polled;
mod socket;

use crate::clock;
use crate::file::{self, Work};
use crate::helper::{Eventfd, Helpers};
use crate::net;
use crate::op::{Bell, Driver, Handle, How, Incoming, Op, Wait};
use crate::vector::Vector;
use libc::epoll_event;
use lunar_core::io::{Data, Done, Fault, Outcome};
use lunar_core::mem::{Arena, Sg, SgMut};
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

/// Events taken from the kernel at once; the rest comes with the next turn.
const EVENTS: usize = 256;
/// The event data of the bell; all others are ids.
const BELL: u64 = u64::MAX;

pub(crate) struct Epoll {
    me: Weak<Self>,
    poll: OwnedFd,
    inner: RefCell<Inner>,
    helpers: Helpers,
    bell: Arc<Eventfd>,
    /// Whether the kernel has epoll_pwait2, which counts nanoseconds.
    is_fine: Cell<bool>,
}

struct Inner {
    open: Vec<Option<Open>>,
    free_ids: Vec<u32>,
    jobs: Vec<Option<Job>>,
    free_jobs: Vec<u32>,
    events: Box<[epoll_event; EVENTS]>,
    /// Events that [`Driver::ripe`] has found already.
    found: usize,
    vector: Vector,
    waiting_for_bell: Vec<Done>,
    has_rung: bool,
}

/// What a socket is watched for: the kernel tells it once, until it is asked again.
const SOCKET_INTEREST: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

struct Open {
    fd: OwnedFd,
    kind: Kind,
}

enum Kind {
    File {
        is_direct: bool,
    },
    Socket(Box<Socket>),
    Listener(Box<Listener>),
    /// A file that was waited for.
    Polled(Box<Polled>),
}

/// What a helper works on.
struct Job {
    done: Done,
    /// The operation holds it.
    handle: Handle,
    /// What a copy comes from.
    origin: Option<Handle>,
    data: Data,
    /// Bytes that were moved before the helper began.
    moved: usize,
}

/// An answer on its way out, with the handle that the operation held.
#[must_use]
struct Answer {
    done: Done,
    outcome: Outcome,
    handle: Option<Handle>,
    origin: Option<Handle>,
}

impl Answer {
    fn new(done: Done, result: Result<u32, Fault>, data: Data, handle: Handle) -> Self {
        Self { done, outcome: Outcome::with(result, data), handle: Some(handle), origin: None }
    }

    fn of_job(job: Job, result: Result<u32, Fault>) -> Self {
        Self { origin: job.origin, ..Self::new(job.done, result, job.data, job.handle) }
    }

    fn of_bell(done: Done) -> Self {
        Self { done, outcome: Outcome::new(Ok(0)), handle: None, origin: None }
    }

    /// Answers. The handles go last: they may be the last ones.
    fn give(self) {
        self.done.complete(self.outcome);
        drop((self.handle, self.origin));
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
            waiting_for_bell: Vec::new(),
            has_rung: false,
        };
        Ok(Rc::new_cyclic(|me| Self {
            me: me.clone(),
            poll,
            inner: RefCell::new(inner),
            helpers: Helpers::new(bell.clone()),
            bell,
            is_fine: Cell::new(true),
        }))
    }

    fn admit(&self, fd: OwnedFd, kind: Kind) -> io::Result<Handle> {
        let mut inner = self.inner.borrow_mut();
        let id = inner.free_ids.pop().unwrap_or_else(|| {
            inner.open.push(None);
            (inner.open.len() - 1) as u32
        });
        let interest = match kind {
            Kind::File { .. } => EventFlags::empty(),
            Kind::Socket(_) => SOCKET_INTEREST,
            Kind::Listener(_) => EventFlags::IN | EventFlags::ET,
            Kind::Polled(_) => polled::INTEREST,
        };
        if !interest.is_empty()
            && let Err(error) = epoll::add(&self.poll, &fd, EventData::new_u64(u64::from(id)), interest)
        {
            inner.free_ids.push(id);
            return Err(error.into());
        }
        inner.open[id as usize] = Some(Open { fd, kind });
        let driver: Weak<dyn Driver> = self.me.clone();
        Ok(Handle::new(driver, id))
    }

    /// Asks the kernel for events; waits as long as `timeout` says (`None`: for as long as it takes).
    fn wait(&self, events: &mut [epoll_event; EVENTS], timeout: Option<Duration>) -> usize {
        let (room, poll) = (EVENTS as i32, net::raw(&self.poll));
        if self.is_fine.get()
            && let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero())
        {
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
            };
            let (at, none) = (events.as_mut_ptr(), std::ptr::null::<libc::sigset_t>());
            // SAFETY: `events` has room for as many as we say, and `time` lives until the call is over.
            let count = unsafe { libc::syscall(libc::SYS_epoll_pwait2, poll, at, room, &raw const time, none, 0) };
            if let Ok(count) = usize::try_from(count) {
                return count;
            }
            match io::Error::last_os_error().raw_os_error() {
                // Older than 5.11, or a profile that has never heard of it.
                Some(libc::ENOSYS | libc::EPERM) => self.is_fine.set(false),
                _ => return 0,
            }
        }
        // Rounded up: to wake too early would mean to turn until it is time.
        let milliseconds = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: `events` has room for as many as we say.
        let count = unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), room, milliseconds) };
        // The only error that can come is a signal.
        usize::try_from(count).unwrap_or(0)
    }

    /// Answers what the helpers have answered.
    fn harvest_helpers(&self) -> usize {
        let answers = self.helpers.answers();
        let count = answers.len();
        for (key, answer) in answers {
            let job = self.inner.borrow_mut().take_job(key);
            let result = match (&job.data, answer.result) {
                // The file ends before.
                (Data::In(sg), Ok(read)) if job.moved + (read as usize) < sg.len() => Err(Fault::Medium),
                (data, result) => result.map(|_| data.len() as u32),
            };
            let mut over = Answer::of_job(job, result);
            answer.tell(&mut over.outcome);
            over.give();
        }
        count
    }

    /// Starts what only a thread that may wait can do, or answers it at once.
    fn submit_file(&self, op: Op, done: Done) {
        let begun = self.inner.borrow_mut().begin_file(op);
        let (key, work) = match begun {
            Begun::Over { handle, data, result } => return Answer::new(done, result, data, handle).give(),
            Begun::Work { handle, origin, data, moved, work } => {
                (self.inner.borrow_mut().keep_job(Job { done, handle, origin, data, moved }), work)
            }
        };
        if let Err(fault) = self.helpers.give(key, work) {
            let job = self.inner.borrow_mut().take_job(key);
            Answer::of_job(job, Err(fault)).give();
        }
    }

    /// Answers what the events found allow.
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

/// How far a file's operation has come when it was submitted.
enum Begun {
    Over { handle: Handle, data: Data, result: Result<u32, Fault> },
    Work { handle: Handle, origin: Option<Handle>, data: Data, moved: usize, work: Work },
}

impl Inner {
    fn open(&mut self, id: u32) -> &mut Open {
        self.open[id as usize].as_mut().expect("what is open stays until its last handle is gone")
    }

    fn begin_file(&mut self, op: Op) -> Begun {
        match op {
            Op::Read { file, offset, into } => self.begin_read(file, offset, into),
            Op::Write { file, offset, data, durable } => self.begin_write(file, offset, data, durable),
            Op::Sync { file } => self.begin(file, |file| Work::Sync { file }),
            Op::Allocate { file, how, offset, len } => {
                self.begin(file, |file| Work::Allocate { file, how, offset, len })
            }
            Op::Space { file } => self.begin(file, |file| Work::Space { file }),
            Op::Extent { file, offset, len } => self.begin(file, |file| Work::Extent { file, offset, len }),
            Op::Copy { from, at, file, offset, len } => {
                let raw = net::raw(&self.open(from.id()).fd);
                self.begin_with(file, Some(from), |file| Work::Copy { from: raw, at, file, offset, len })
            }
            Op::Accept { .. }
            | Op::Receive { .. }
            | Op::Send { .. }
            | Op::Bell
            | Op::Ready { .. }
            | Op::Signal { .. } => {
                unreachable!("these are not of files")
            }
        }
    }

    fn begin(&mut self, handle: Handle, work: impl FnOnce(i32) -> Work) -> Begun {
        self.begin_with(handle, None, work)
    }

    fn begin_with(&mut self, handle: Handle, origin: Option<Handle>, work: impl FnOnce(i32) -> Work) -> Begun {
        let file = net::raw(&self.open(handle.id()).fd);
        Begun::Work { handle, origin, data: Data::None, moved: 0, work: work(file) }
    }

    fn begin_read(&mut self, handle: Handle, offset: u64, into: SgMut) -> Begun {
        let open = self.open(handle.id());
        // A direct read would wait for the disk even so.
        let may_be_cached = matches!(open.kind, Kind::File { is_direct: false });
        let file = net::raw(&open.fd);
        let (total, mut moved) = (into.len(), 0);
        let mut data = Data::In(into);
        while may_be_cached && moved < total {
            let count = self.vector.gather(&mut data, moved);
            match file::read(file, &mut self.vector, offset + moved as u64, libc::RWF_NOWAIT) {
                Ok(read) if read as usize == count => moved += count,
                // The file ends before.
                Ok(_) => return Begun::Over { handle, data, result: Err(Fault::Medium) },
                // Not in memory, or a file system that cannot tell.
                Err((read, Fault::Os(libc::EAGAIN) | Fault::Unsupported)) => {
                    moved += read as usize;
                    break;
                }
                Err((_, fault)) => return Begun::Over { handle, data, result: Err(fault) },
            }
        }
        if moved == total {
            return Begun::Over { handle, data, result: Ok(total as u32) };
        }
        let into = Vector::of(&mut data, moved);
        Begun::Work {
            handle,
            origin: None,
            data,
            moved,
            work: Work::Read { file, into, offset: offset + moved as u64 },
        }
    }

    fn begin_write(&mut self, handle: Handle, offset: u64, data: Sg, durable: bool) -> Begun {
        let file = net::raw(&self.open(handle.id()).fd);
        let mut data = Data::Out(data);
        if data.is_empty() {
            return Begun::Over { handle, data, result: Ok(0) };
        }
        let from = Vector::of(&mut data, 0);
        Begun::Work { handle, origin: None, data, moved: 0, work: Work::Write { file, from, offset, durable } }
    }

    fn keep_job(&mut self, job: Job) -> u32 {
        let key = self.free_jobs.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            (self.jobs.len() - 1) as u32
        });
        self.jobs[key as usize] = Some(job);
        key
    }

    fn take_job(&mut self, key: u32) -> Job {
        self.free_jobs.push(key);
        self.jobs[key as usize].take().expect("a job is answered once")
    }

    fn ring_bell(&mut self, bell: &OwnedFd) -> Vec<Answer> {
        // It is level-triggered and rings until the number is read.
        let _ = rustix::io::read(bell, &mut [0; 8]);
        self.has_rung = self.waiting_for_bell.is_empty();
        self.waiting_for_bell.drain(..).map(Answer::of_bell).collect()
    }

    /// An event may be one of an id's last owner: then it is one try in vain.
    fn handle_event(&mut self, id: usize, events: u32) -> Vec<Answer> {
        let Some(Some(open)) = self.open.get_mut(id) else { return Vec::new() };
        match &mut open.kind {
            Kind::File { .. } => Vec::new(),
            Kind::Socket(socket) => socket.become_ready(&open.fd, events, &mut self.vector),
            Kind::Listener(listener) => listener.become_ready(&open.fd),
            Kind::Polled(polled) => polled.become_ready(events),
        }
    }

    fn start(&mut self, op: Op, done: Done, poll: &OwnedFd) -> Option<Answer> {
        match op {
            Op::Ready { file, to_write } => self.start_ready(poll, file, to_write, done),
            Op::Signal { file } => {
                net::signal(&self.open(file.id()).fd);
                Some(Answer::new(done, Ok(0), Data::None, file))
            }
            Op::Bell if std::mem::take(&mut self.has_rung) => Some(Answer::of_bell(done)),
            Op::Bell => {
                self.waiting_for_bell.push(done);
                None
            }
            Op::Accept { listener } => match self.open(listener.id()) {
                Open { fd, kind: Kind::Listener(state) } => state.accept(fd, done, listener),
                _ => Some(Answer::new(done, Err(Fault::Os(libc::EINVAL)), Data::None, listener)),
            },
            Op::Receive { socket, into, .. } => match self.open[socket.id() as usize].as_mut() {
                Some(Open { fd, kind: Kind::Socket(state) }) => {
                    let id = EventData::new_u64(u64::from(socket.id()));
                    let again = |fd: &OwnedFd| epoll::modify(poll, fd, id, SOCKET_INTEREST).is_ok();
                    state.receive(fd, again, done, into, socket, &mut self.vector)
                }
                _ => Some(Answer::new(done, Err(Fault::Os(libc::ENOTSOCK)), Data::In(into), socket)),
            },
            Op::Send { socket, data } => match self.open[socket.id() as usize].as_mut() {
                Some(Open { fd, kind: Kind::Socket(state) }) => state.send(fd, done, data, socket, &mut self.vector),
                _ => Some(Answer::new(done, Err(Fault::Os(libc::ENOTSOCK)), Data::Out(data), socket)),
            },
            _ => unreachable!("files have their own way"),
        }
    }

    fn start_ready(&mut self, poll: &OwnedFd, file: Handle, to_write: bool, done: Done) -> Option<Answer> {
        let open = self.open(file.id());
        if !matches!(open.kind, Kind::Polled(_)) {
            let id = EventData::new_u64(u64::from(file.id()));
            if let Err(error) = epoll::add(poll, &open.fd, id, polled::INTEREST) {
                return Some(Answer::new(done, Err(Fault::from_errno(error.raw_os_error())), Data::None, file));
            }
            open.kind = Kind::Polled(Box::default());
        }
        match &mut open.kind {
            Kind::Polled(polled) => polled.wait(to_write, done, file),
            _ => None,
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
        let is_of_files = !matches!(
            op,
            Op::Bell | Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } | Op::Ready { .. } | Op::Signal { .. }
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
        let answered = self.harvest_helpers();
        let timeout = match wait {
            Wait::Until(Some(at)) if answered == 0 => Some(at.since(clock::now())),
            Wait::Until(None) if answered == 0 => None,
            _ => Some(Duration::ZERO),
        };
        let mut inner = self.inner.borrow_mut();
        let mut count = std::mem::take(&mut inner.found);
        if count == 0 {
            let timeout = if self.helpers.doze() { timeout } else { Some(Duration::ZERO) };
            count = self.wait(&mut inner.events, timeout);
            self.helpers.rise();
        }
        drop(inner);
        answered + self.handle_events(count) + self.harvest_helpers()
    }

    fn ripe(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.found == 0 {
            inner.found = self.wait(&mut inner.events, Some(Duration::ZERO));
        }
        inner.found > 0 || self.helpers.has_answers()
    }

    fn cancel(&self, handle: &Handle) {
        let answers = match &mut self.inner.borrow_mut().open(handle.id()).kind {
            // A helper that has begun cannot be stopped: its answer comes.
            Kind::File { .. } => Vec::new(),
            Kind::Socket(socket) => socket.cancel(),
            Kind::Listener(listener) => listener.cancel(),
            Kind::Polled(polled) => polled.cancel(),
        };
        answers.into_iter().for_each(Answer::give);
    }

    fn close(&self, id: u32) {
        let mut inner = self.inner.borrow_mut();
        let open = inner.open[id as usize].take();
        inner.free_ids.push(id);
        drop(inner);
        // Closing ends the interest of epoll as well, but where the file has another number, too.
        if let Some(Open { fd, kind: Kind::Polled(_) }) = &open {
            let _ = epoll::delete(&self.poll, fd);
        }
        drop(open);
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        self.adopt(file::open(path, how)?)
    }

    fn adopt(&self, file: OwnedFd) -> io::Result<Handle> {
        let is_direct = file::is_direct(&file);
        self.admit(file, Kind::File { is_direct })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        let (fd, local) = net::listen(address, true)?;
        Ok((self.admit(fd, Kind::Listener(Box::default()))?, local))
    }

    fn accepted(&self, listener: &Handle) -> Option<Incoming> {
        match &mut self.inner.borrow_mut().open(listener.id()).kind {
            Kind::Listener(listener) => listener.accepted.pop_front().map(Incoming::Socket),
            _ => None,
        }
    }

    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)> {
        let (fd, local, peer) = net::join(incoming, true)?;
        Ok((self.admit(fd, Kind::Socket(Box::default()))?, local, peer))
    }

    fn shutdown(&self, socket: &Handle) {
        if let Open { fd, kind: Kind::Socket(state) } = self.inner.borrow_mut().open(socket.id()) {
            state.shutdown(fd);
        }
    }

    /// There is nothing to register with.
    fn register(&self, _: &Arena) {}

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // After that nobody but us knows of the memory of jobs.
        self.helpers.end();
    }
}
