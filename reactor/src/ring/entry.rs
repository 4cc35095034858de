//! One operation in the kernel: its memory and its progress.

use crate::endpoint::command::{Command, Encoded, NARROW, Request};
use crate::endpoint::{Carrier, Messages, ReceiveBatch, SendBatch, stream};
use crate::eventfd;
use crate::file::SECTOR;
use crate::op::{Handle, Op};
use crate::vector::Vector;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use libc::msghdr;
use lunar_core::io::{Data, Done, Fault, Outcome};
use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;

/// IORING_RECVSEND_POLL_FIRST of linux/io_uring.h: wait for data before the first try.
const POLL_FIRST: u16 = 1;
/// How often in a row the kernel may answer EAGAIN before the operation fails with it.
const RETRIES: u8 = 100;
/// The kernel takes registered memory in pieces of at most 1 GiB.
pub(super) const FIXED_PIECE: usize = 1 << 30;
const FIXED_PIECE_SHIFT: u32 = FIXED_PIECE.trailing_zeros();

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Receive,
    Send,
    Read,
    Write {
        durable: bool,
    },
    Sync,
    Ready {
        to_write: bool,
    },
    Signal,
    ReceiveBatch,
    SendBatch,
    Command,
    /// Work of a worker thread.
    Work,
}

pub(super) struct Entry {
    kind: Kind,
    done: Option<Done>,
    handle: Option<Handle>,
    data: Data,
    offset: u64,
    total: usize,
    moved: usize,
    retries: u8,
    is_cancelled: bool,
    vector: Vector,
    /// The kernel reads and writes it while the operation runs.
    head: UnsafeCell<msghdr>,
}

/// An open file as a submission names it.
pub(super) struct Target {
    pub(super) number: i32,
    pub(super) is_fixed: bool,
    /// Whether a receive must wait before it tries.
    pub(super) waits_first: bool,
}

impl Target {
    pub(super) fn flags(&self) -> squeue::Flags {
        if self.is_fixed { squeue::Flags::FIXED_FILE } else { squeue::Flags::empty() }
    }
}

/// The action after a completion.
pub(super) enum Next {
    /// The rest is submitted to the kernel.
    Again,
    Over(Result<u32, Fault>),
}

/// An answer that is to be given, with the handle that the operation held.
#[must_use]
pub(super) struct Answer {
    pub(super) done: Option<Done>,
    pub(super) outcome: Outcome,
    pub(super) handle: Option<Handle>,
}

impl Answer {
    pub(super) fn new(done: Done, result: Result<u32, Fault>) -> Self {
        Self { done: Some(done), outcome: Outcome::new(result), handle: None }
    }

    pub(super) fn with_handle(done: Done, result: Result<u32, Fault>, handle: Handle) -> Self {
        Self { handle: Some(handle), ..Self::new(done, result) }
    }

    /// Answers. The handle is dropped last: it may be the last one.
    pub(super) fn give(self) {
        if let Some(done) = self.done {
            done.complete(self.outcome);
        }
        drop(self.handle);
    }
}

/// The answers that follow from a completion: one for most, several for a bell or a failed listener.
#[must_use]
pub(super) enum Answers {
    None,
    One(Answer),
    Many(Vec<Answer>),
}

impl Answers {
    /// Gives them; returns how many there were.
    pub(super) fn give(self) -> usize {
        match self {
            Self::None => 0,
            Self::One(answer) => {
                answer.give();
                1
            }
            Self::Many(answers) => answers.into_iter().map(Answer::give).count(),
        }
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            kind: Kind::Work,
            done: None,
            handle: None,
            data: Data::None,
            offset: 0,
            total: 0,
            moved: 0,
            retries: 0,
            is_cancelled: false,
            vector: Vector::default(),
            // SAFETY: a msghdr of zeroes is an empty message.
            head: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        }
    }
}

impl Entry {
    /// Takes an operation over; returns its handle.
    pub(super) fn fill(&mut self, op: Op, done: Done) -> u32 {
        (self.moved, self.retries, self.is_cancelled, self.offset) = (0, 0, false, 0);
        let (kind, handle, data) = match op {
            Op::Receive { socket, into, .. } => (Kind::Receive, socket, Data::In(into)),
            Op::Send { socket, data } => (Kind::Send, socket, Data::Out(data)),
            Op::Read { file, offset, into } => {
                self.offset = offset;
                (Kind::Read, file, Data::In(into))
            }
            Op::Write { file, offset, data, durable } => {
                self.offset = offset;
                (Kind::Write { durable }, file, Data::Out(data))
            }
            Op::Sync { file } => (Kind::Sync, file, Data::None),
            Op::Ready { file, to_write } => (Kind::Ready { to_write }, file, Data::None),
            Op::Signal { file } => (Kind::Signal, file, Data::None),
            Op::ReceiveBatch { endpoint, into } => (Kind::ReceiveBatch, endpoint, Data::Carried(into)),
            Op::SendBatch { endpoint, batch } => (Kind::SendBatch, endpoint, Data::Carried(batch)),
            Op::Command { device, command } => (Kind::Command, device, Data::Carried(command)),
            Op::Allocate { file, .. } | Op::Extent { file, .. } | Op::Space { file } | Op::Copy { file, .. } => {
                (Kind::Work, file, Data::None)
            }
            Op::Accept { .. } | Op::Bell => unreachable!("neither an accept nor the bell has an entry"),
        };
        let id = handle.id();
        self.total = data.len();
        (self.kind, self.done, self.handle, self.data) = (kind, Some(done), Some(handle), data);
        id
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn id(&self) -> u32 {
        self.handle.as_ref().map_or(u32::MAX, Handle::id)
    }

    /// Whether it moves data, but of no length.
    pub(super) fn has_nothing_to_do(&self) -> bool {
        self.total == 0 && matches!(self.kind, Kind::Receive | Kind::Send | Kind::Read | Kind::Write { .. })
    }

    /// The submission for the rest of the operation.
    pub(super) fn prepare(&mut self, target: Target, fixed: Option<(usize, usize)>) -> squeue::Entry {
        let fd = Fd(target.number);
        self.vector.gather(&mut self.data, self.moved);
        let at = self.offset + self.moved as u64;
        let sqe = match self.kind {
            Kind::Receive => self.prepare_receive(fd, if target.waits_first { POLL_FIRST } else { 0 }),
            Kind::Send => self.prepare_send(fd),
            Kind::Read => self.prepare_read(fd, at, fixed),
            Kind::Write { durable } => self.prepare_write(fd, at, durable, fixed),
            Kind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Kind::Ready { to_write } => {
                let events = if to_write { libc::POLLOUT } else { libc::POLLIN | libc::POLLRDHUP };
                opcode::PollAdd::new(fd, events as u32).build()
            }
            Kind::Signal => opcode::Write::new(fd, eventfd::ONE.as_ptr(), eventfd::ONE.len() as u32).build(),
            Kind::ReceiveBatch => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
            Kind::SendBatch => opcode::PollAdd::new(fd, libc::POLLOUT as u32).build(),
            Kind::Command => self.prepare_command(fd),
            Kind::Work => unreachable!("the work of worker threads never reaches the ring"),
        };
        // The ring's own threads may wait where the kernel answered EAGAIN before.
        let flags = target.flags();
        sqe.flags(if self.retries > 1 { flags | squeue::Flags::ASYNC } else { flags })
    }

    fn message(&mut self) -> *mut msghdr {
        let (iov, count) = self.vector.raw();
        let head = self.head.get_mut();
        head.msg_iov = iov.cast_mut();
        head.msg_iovlen = count;
        self.head.get()
    }

    fn prepare_receive(&mut self, fd: Fd, ioprio: u16) -> squeue::Entry {
        match self.vector.single() {
            Some((start, len)) => opcode::Recv::new(fd, start, clip(len)).ioprio(ioprio).build(),
            None => opcode::RecvMsg::new(fd, self.message()).ioprio(ioprio).build(),
        }
    }

    fn prepare_send(&mut self, fd: Fd) -> squeue::Entry {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        match self.vector.single() {
            Some((start, len)) => opcode::Send::new(fd, start, clip(len)).flags(flags).build(),
            None => opcode::SendMsg::new(fd, self.message()).flags(flags as u32).build(),
        }
    }

    fn prepare_read(&mut self, fd: Fd, at: u64, fixed: Option<(usize, usize)>) -> squeue::Entry {
        let (iov, count) = self.vector.raw();
        match self.vector.single() {
            Some((start, len)) => match fixed_index(start, len, fixed) {
                Some(index) => opcode::ReadFixed::new(fd, start, clip(len), index).offset(at).build(),
                None => opcode::Read::new(fd, start, clip(len)).offset(at).build(),
            },
            None => opcode::Readv::new(fd, iov, count as u32).offset(at).build(),
        }
    }

    fn prepare_write(&mut self, fd: Fd, at: u64, durable: bool, fixed: Option<(usize, usize)>) -> squeue::Entry {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let (iov, count) = self.vector.raw();
        match self.vector.single() {
            Some((start, len)) => match fixed_index(start, len, fixed) {
                Some(index) => opcode::WriteFixed::new(fd, start, clip(len), index).offset(at).rw_flags(flags).build(),
                None => opcode::Write::new(fd, start, clip(len)).offset(at).rw_flags(flags).build(),
            },
            None => opcode::Writev::new(fd, iov, count as u32).offset(at).rw_flags(flags).build(),
        }
    }

    /// Tries the rest of a send or receive with a call of its own; returns the result in the form of a completion.
    pub(super) fn call(&mut self, socket: &OwnedFd) -> i32 {
        self.vector.gather(&mut self.data, self.moved);
        let result = match self.kind {
            Kind::Send => stream::send_some(socket, &self.vector),
            _ => stream::receive_some(socket, &self.vector),
        };
        // More than fits is more than one call moves.
        result.map_or_else(|errno| -errno, |count| i32::try_from(count).unwrap_or(i32::MAX))
    }

    /// Whether it moves a batch that has no room, or no datagram.
    pub(super) fn is_empty_batch(&self) -> bool {
        let Data::Carried(value) = &self.data else { return true };
        match (value.downcast_ref::<ReceiveBatch>(), value.downcast_ref::<SendBatch>()) {
            (Some(batch), _) => batch.free() == 0,
            (_, Some(batch)) => batch.is_empty(),
            _ => true,
        }
    }

    /// Receives the datagrams that have arrived, or sends as many as there is room for; the result has the form of a
    /// completion.
    pub(super) fn call_carrier(&mut self, carrier: &mut Carrier, messages: &mut Messages) -> i32 {
        let Data::Carried(value) = &mut self.data else { return -libc::EINVAL };
        let result = match (self.kind, value.as_mut()) {
            (Kind::ReceiveBatch, value) => match value.downcast_mut() {
                Some(batch) => carrier.receive(batch, messages).map(|count| count as i32),
                None => Err(libc::EINVAL),
            },
            (_, value) => match value.downcast_mut() {
                Some(batch) => carrier.send(batch, messages).map(|()| 0),
                None => Err(libc::EINVAL),
            },
        };
        result.unwrap_or_else(|errno| -errno)
    }

    /// The device command of the operation.
    pub(super) fn command(&mut self) -> Option<&mut Command> {
        match &mut self.data {
            Data::Carried(value) => value.downcast_mut(),
            _ => None,
        }
    }

    /// Whether it is a command of a ublk queue, which waits for a request, and which no cancellation ends.
    pub(super) fn is_fetch(&mut self) -> bool {
        self.done.is_some()
            && self.kind == Kind::Command
            && self.command().is_some_and(|command| matches!(command.request, Request::UblkQueue(_)))
    }

    /// Whether the memory of a device command has as many pieces as its layout can name.
    pub(super) fn has_fitting_pieces(&mut self) -> bool {
        let Data::Carried(value) = &mut self.data else { return false };
        value.downcast_mut::<Command>().is_some_and(|command| command.has_fitting_pieces(&mut self.vector))
    }

    /// The submission of a device command with 64 bytes.
    fn prepare_command(&mut self, fd: Fd) -> squeue::Entry {
        let Encoded { operation, bytes } = self.encode();
        let mut narrow = [0; NARROW];
        narrow.copy_from_slice(&bytes[..NARROW]);
        opcode::UringCmd16::new(fd, operation).cmd(narrow).build()
    }

    /// The device command, with the addresses of its memory.
    pub(super) fn encode(&mut self) -> Encoded {
        let Data::Carried(value) = &mut self.data else { unreachable!("a device command is carried") };
        let command = value.downcast_mut::<Command>().expect("a device command is carried");
        // The list stays in place as long as the operation: its entry owns it.
        command.encode(&mut self.vector)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.total - self.moved
    }

    /// The meaning of a completion.
    pub(super) fn advance(&mut self, result: i32, is_direct: bool) -> Next {
        match self.kind {
            Kind::Signal => return Next::Over(Ok(0)),
            Kind::Command => {
                let answer = u32::try_from(result).map_err(|_| Fault::from_errno(-result));
                return Next::Over(answer);
            }
            // Datagrams had arrived, and all of them were dropped.
            Kind::ReceiveBatch if result == 0 => return Next::Again,
            Kind::ReceiveBatch if result > 0 => return Next::Over(Ok(result as u32)),
            Kind::SendBatch if result == 0 => return Next::Over(Ok(self.finish_batch())),
            // The ring polls until there is data, or room.
            Kind::ReceiveBatch | Kind::SendBatch if result == -libc::EAGAIN => return Next::Again,
            _ => {}
        }
        let Ok(got) = usize::try_from(result) else { return self.fail(-result) };
        self.retries = 0;
        self.moved += got;
        let is_all = self.moved >= self.total;
        let over = match self.kind {
            Kind::Sync
            | Kind::Ready { .. }
            | Kind::Signal
            | Kind::ReceiveBatch
            | Kind::SendBatch
            | Kind::Command
            | Kind::Work => Ok(0),
            Kind::Receive => Ok(self.moved as u32),
            _ if is_all => Ok(self.total as u32),
            // A direct read that ends inside a sector has met the end of the file.
            Kind::Read if got == 0 || (is_direct && !self.moved.is_multiple_of(SECTOR as usize)) => Err(Fault::Medium),
            _ if self.is_cancelled => Err(Fault::Aborted),
            Kind::Write { .. } if got == 0 => Err(Fault::NoSpace),
            Kind::Send if got == 0 => Err(Fault::Os(libc::EPIPE)),
            _ => return Next::Again,
        };
        Next::Over(over)
    }

    fn finish_batch(&mut self) -> u32 {
        match &mut self.data {
            Data::Carried(value) => value.downcast_mut().map_or(0, SendBatch::finish),
            _ => 0,
        }
    }

    fn fail(&mut self, errno: i32) -> Next {
        if matches!(errno, libc::EINTR | libc::EAGAIN | libc::ENOBUFS) {
            if self.is_cancelled {
                return Next::Over(Err(Fault::Aborted));
            }
            if self.retries < RETRIES {
                self.retries += 1;
                return Next::Again;
            }
        }
        Next::Over(Err(Fault::from_errno(errno)))
    }

    /// If the kernel works on it for this handle, it is not started again; returns whether.
    pub(super) fn cancel(&mut self, id: u32) -> bool {
        let runs = self.id() == id && self.kind != Kind::Work;
        self.is_cancelled |= runs;
        runs
    }

    pub(super) fn cancel_all(&mut self) {
        self.is_cancelled = true;
    }

    /// Releases all resources, with the answer.
    pub(super) fn empty(&mut self, result: Result<u32, Fault>) -> Answer {
        if self.kind == Kind::SendBatch && result.is_err() {
            // Data that was sent before the fault does not come back.
            self.finish_batch();
        }
        Answer {
            done: self.done.take(),
            outcome: Outcome::with(result, std::mem::take(&mut self.data)),
            handle: self.handle.take(),
        }
    }
}

/// A piece's length: a block of the arena is far smaller than 4 GiB.
fn clip(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// The number of the registered piece that holds this memory.
fn fixed_index(start: *mut u8, len: usize, fixed: Option<(usize, usize)>) -> Option<u16> {
    let (base, size) = fixed?;
    let first = start.addr().checked_sub(base)?;
    let last = first + len - 1;
    (last < size && first >> FIXED_PIECE_SHIFT == last >> FIXED_PIECE_SHIFT)
        .then(|| u16::try_from(first >> FIXED_PIECE_SHIFT).ok())?
}
