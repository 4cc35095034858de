//! The commands of one core through one open device.

use super::header::{Direction, Header, PADDED_BYTES, PIECES_MAX, SENSE_BYTES};
use super::helper::{Done, Helper, Job};
use super::{CDB_BYTES_MAX, LANE_COMMANDS, Node, Outcome, Reply, is_present, read_header, write_header};
use crate::channel::Receiver;
use crate::op::{Handle, Op};
use crate::{Reactor, log};
use lunar_core::io::{Completion, Data};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Bytes above which the copy of a transfer occupies the core for longer than the change to another thread costs.
const LONG_BYTES: usize = 256 << 10;
/// The pause between two reads of a device that has vanished, while the kernel still has commands of it.
const PAUSE: Duration = Duration::from_millis(50);

/// A command.
#[derive(Debug)]
pub struct Request {
    /// The CDB: at most [`CDB_BYTES_MAX`] bytes.
    pub cdb: [u8; CDB_BYTES_MAX],
    /// Bytes of the CDB.
    pub cdb_len: usize,
    /// Its memory: [`Data::In`], [`Data::Out`] or [`Data::None`].
    pub data: Data,
    /// Whether the device may fill the memory in part, as with parameter data. If it does not report how many bytes it
    /// has moved, the rest is zeroes then.
    pub may_be_short: bool,
    /// The time after which the kernel aborts it, and resets the device if that does not help.
    pub timeout: Duration,
}

/// The owner of a command. It is told its end exactly once, unless the lane ends before: then it is dropped.
pub trait Token: 'static {
    /// The command has ended.
    fn complete(self, outcome: Outcome);
}

/// A command in progress. Its address is known to the kernel.
struct Entry<T> {
    cdb: [u8; CDB_BYTES_MAX],
    sense: [u8; SENSE_BYTES],
    pieces: Vec<libc::iovec>,
    /// The bytes of Data-Out in too many pieces; more memory for Data-In.
    own: Vec<u8>,
    data: Data,
    token: Option<T>,
}

/// The commands of one core through one open device.
pub struct Lane<T: Token> {
    reactor: Reactor,
    fd: Arc<OwnedFd>,
    handle: Handle,
    /// Whether a write may wait for room in the kernel, so that the helper does it.
    may_wait: bool,
    slots: RefCell<[Option<Box<Entry<T>>>; LANE_COMMANDS]>,
    in_progress: Cell<usize>,
    /// Commands in progress with long Data-In.
    long_inputs: Cell<usize>,
    helper: RefCell<Option<Helper>>,
    /// Writes that the helper has not done yet.
    writes: Cell<usize>,
    /// Whether the helper reads; the result of its last read.
    is_reading: Cell<bool>,
    was_read: Cell<Option<bool>>,
    reader: Cell<Option<Waker>>,
    is_gone: Cell<bool>,
    watcher: Cell<Option<Waker>>,
}

impl<T: Token> Lane<T> {
    /// The lane of a device on this core. `may_wait`: the host adapter takes so few commands at a time that the kernel
    /// may wait before it takes another one.
    ///
    /// # Errors
    /// When the driver has no room for it.
    pub fn new(reactor: &Reactor, node: Node, may_wait: bool) -> io::Result<Rc<Self>> {
        if node.is_given_up.get() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let handle = reactor.driver().adopt(node.fd.try_clone()?)?;
        let lane = Rc::new(Self {
            reactor: reactor.clone(),
            fd: Arc::new(node.fd),
            handle: handle.clone(),
            may_wait,
            slots: RefCell::new([const { None }; LANE_COMMANDS]),
            in_progress: Cell::new(0),
            long_inputs: Cell::new(0),
            helper: RefCell::new(None),
            writes: Cell::new(0),
            is_reading: Cell::new(false),
            was_read: Cell::new(None),
            reader: Cell::new(None),
            is_gone: Cell::new(false),
            watcher: Cell::new(None),
        });
        reactor.spawn(read_replies(Rc::downgrade(&lane), reactor.clone(), handle));
        Ok(lane)
    }

    /// Commands in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.in_progress.get()
    }

    /// Whether the device has vanished. Commands in progress end nevertheless.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// Waits until the device has vanished, or the lane has ended.
    pub async fn until_gone(lane: Weak<Self>) {
        poll_fn(|cx| match lane.upgrade() {
            Some(lane) if !lane.is_gone() => {
                lane.watcher.set(Some(cx.waker().clone()));
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    fn vanish(&self) {
        self.is_gone.set(true);
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }

    /// Starts a command. It ends at once with `ResourceBusy` while [`LANE_COMMANDS`] are in progress.
    pub fn start(self: &Rc<Self>, request: Request, token: T) {
        let Request { cdb, cdb_len, data, may_be_short, timeout } = request;
        let free = self.slots.borrow().iter().position(Option::is_none);
        let Some(slot) = free else {
            return token.complete(Outcome { reply: Err(io::ErrorKind::ResourceBusy.into()), data });
        };
        let is_long_input = matches!(&data, Data::In(memory) if memory.len() > LONG_BYTES);
        let is_long = data.len() > LONG_BYTES;
        let mut entry = Box::new(Entry {
            cdb,
            sense: [0; SENSE_BYTES],
            pieces: Vec::new(),
            own: Vec::new(),
            data,
            token: Some(token),
        });
        let mut header = entry.header(timeout, may_be_short);
        header.set_cdb(&entry.cdb, cdb_len.min(CDB_BYTES_MAX));
        header.set_sense(&mut entry.sense);
        header.slot = slot as i32;
        self.slots.borrow_mut()[slot] = Some(entry);
        self.in_progress.set(self.in_progress.get() + 1);
        self.long_inputs.set(self.long_inputs.get() + usize::from(is_long_input));
        // Behind other commands that the helper starts: commands keep their order.
        if (is_long || self.may_wait || self.writes.get() > 0) && self.give(Job::Write(header)) {
            self.writes.set(self.writes.get() + 1);
        } else if let Err(errno) = write_header(&self.fd, &header) {
            self.refused(slot, errno);
        }
    }

    /// Gives a call to the helper, which is started if it is not there; returns whether there is one.
    fn give(self: &Rc<Self>, job: Job) -> bool {
        let mut helper = self.helper.borrow_mut();
        if helper.is_none() {
            match Helper::start(&self.reactor, self.fd.clone()) {
                Ok((started, results)) => {
                    self.reactor.spawn(take_results(Rc::downgrade(self), results));
                    *helper = Some(started);
                }
                Err(why) => log!(warning, "a thread for a SCSI device cannot be started: {why}"),
            }
        }
        helper.as_ref().map(|helper| helper.give(job)).is_some()
    }

    fn refused(&self, slot: usize, errno: i32) {
        if [libc::ENODEV, libc::ENXIO, libc::EPIPE].contains(&errno) {
            self.vanish();
        }
        self.end(slot, Err(io::Error::from_raw_os_error(errno)));
    }

    /// Ends the command in a slot.
    fn end(&self, slot: usize, reply: io::Result<Header>) {
        let ended = self.slots.borrow_mut().get_mut(slot).and_then(Option::take);
        let Some(entry) = ended else { return };
        self.in_progress.set(self.in_progress.get() - 1);
        let Entry { sense, data, own, token, .. } = *entry;
        let padding = if matches!(data, Data::In(_)) { own.len() } else { 0 };
        if matches!(&data, Data::In(memory) if memory.len() > LONG_BYTES) {
            self.long_inputs.set(self.long_inputs.get() - 1);
        }
        if let Some(token) = token {
            token.complete(Outcome { reply: reply.map(|header| Reply::of(&header, &sense, padding)), data });
        }
    }

    /// Takes what a read has returned; returns whether it was a reply.
    fn take(&self, (read, half): (Result<Header, i32>, Option<Header>)) -> bool {
        let slot = |header: &Header| usize::try_from(header.slot).unwrap_or(usize::MAX);
        match (read, half) {
            (Ok(header), _) if header.is_filled() => {
                self.end(slot(&header), Ok(header));
                true
            }
            // The Data-In of this command could not be copied.
            (Err(errno), Some(header)) if errno != libc::EAGAIN => {
                self.end(slot(&header), Err(io::Error::from_raw_os_error(errno)));
                true
            }
            // The end of a file: a fake device whose other side is closed.
            (Ok(_), _) => {
                self.vanish();
                false
            }
            (Err(_), _) => false,
        }
    }

    /// Reads one reply; returns whether there was one.
    async fn read(self: &Rc<Self>) -> bool {
        if self.long_inputs.get() == 0 || !self.give(Job::Read) {
            return self.take(read_header(&self.fd));
        }
        self.is_reading.set(true);
        poll_fn(|cx| match self.was_read.take() {
            Some(found) => Poll::Ready(found),
            None => {
                self.reader.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    fn take_result(&self, done: Done) {
        match done {
            Done::Started => self.writes.set(self.writes.get() - 1),
            Done::Refused(slot, errno) => {
                self.writes.set(self.writes.get() - 1);
                self.refused(usize::try_from(slot).unwrap_or(usize::MAX), errno);
            }
            Done::Read(read, half) => {
                self.is_reading.set(false);
                self.was_read.set(Some(self.take((read, half))));
                if let Some(waker) = self.reader.take() {
                    waker.wake();
                }
            }
        }
    }
}

impl<T> Entry<T> {
    /// The header, with the memory of the command.
    fn header(&mut self, timeout: Duration, may_be_short: bool) -> Header {
        let mut len = self.data.len();
        let piece = |address: *mut u8, len: usize| libc::iovec { iov_base: address.cast(), iov_len: len };
        let direction = match &mut self.data {
            Data::In(memory) => {
                self.pieces.extend(memory.pieces_mut().iter_mut().map(|buf| piece(buf.as_mut_ptr(), buf.len())));
                if may_be_short && (1..PADDED_BYTES).contains(&len) {
                    self.own = vec![0; PADDED_BYTES - len];
                    self.pieces.push(piece(self.own.as_mut_ptr(), self.own.len()));
                    len = PADDED_BYTES;
                }
                Direction::of_input(len)
            }
            Data::Out(memory) if len > 0 => {
                if memory.pieces().len() > PIECES_MAX {
                    self.own = memory.to_vec();
                    self.pieces.push(piece(self.own.as_mut_ptr(), len));
                } else {
                    let pieces = memory.pieces().iter();
                    self.pieces.extend(pieces.map(|slice| piece(slice.as_ptr().cast_mut(), slice.len())));
                }
                Direction::ToDevice
            }
            _ => Direction::None,
        };
        let mut header = Header::new(direction, timeout);
        match &self.pieces[..] {
            [] => {}
            [one] => header.set_memory(one.iov_base.cast(), len),
            pieces => header.set_pieces(pieces, len),
        }
        header
    }
}

/// Reads the replies of a lane until it ends or its device has vanished.
async fn read_replies<T: Token>(lane: Weak<Lane<T>>, reactor: Reactor, handle: Handle) {
    loop {
        let mut completion = Completion::new();
        reactor.submit(Op::Ready { file: handle.clone(), to_write: false }, completion.token());
        let is_ready = completion.wait().await.result.is_ok();
        let Some(lane) = lane.upgrade() else { return };
        let mut found = 0;
        while is_ready && found < LANE_COMMANDS && lane.read().await {
            found += 1;
        }
        if found > 0 {
            continue;
        }
        if !is_ready || !is_present(&lane.fd) {
            lane.vanish();
        }
        if lane.is_gone.get() {
            if !is_ready || lane.in_progress.get() == 0 {
                return;
            }
            drop(lane);
            // The kernel is still to return commands, and until then says at once that there is something to read.
            reactor.sleep(PAUSE).await;
        }
    }
}

async fn take_results<T: Token>(lane: Weak<Lane<T>>, mut results: Receiver<Done>) {
    while let Some(done) = results.recv().await {
        let Some(lane) = lane.upgrade() else { return };
        lane.take_result(done);
    }
}

impl<T: Token> Drop for Lane<T> {
    fn drop(&mut self) {
        self.reactor.driver().cancel(&self.handle);
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
        if self.writes.get() > 0 || self.is_reading.get() {
            // The helper is in a call with the memory of a command: that memory stays for good.
            for mut entry in self.slots.get_mut().iter_mut().filter_map(Option::take) {
                drop(entry.token.take());
                std::mem::forget(entry);
            }
        }
    }
}

impl<T: Token> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({} commands)", self.in_progress.get())
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
