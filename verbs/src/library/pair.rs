//! A queue pair with its completions: it holds all memory that the device uses.

use super::check_number;
use super::device::{CompletionChannel, Device};
use super::layout::{
    CompletionQueue, INLINE, MemoryRegion, PairAttributes, Piece, PostSend, READ, RELIABLE, ReceiveRequest, SEND,
    SEND_WITH_INVALIDATE, SIGNALED, SendRequest, WRITE, WorkCompletion,
};
use super::manager::Identifier;
use super::status::Status;
use lunar_core::mem::{Sg, SgMut};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

/// Set in the numbers of receives.
const IS_RECEIVE: u64 = 1 << 63;
/// Bytes of a message that are sent without a look at memory, if the device has room for them in a request: responses
/// of SRP and NVMe.
const INLINE_BYTES: u32 = 128;
/// Completions that are taken at a time.
const COMPLETIONS: usize = 32;
/// Alignment of the memory for messages: that of a cache line.
const ALIGNMENT: usize = 64;

/// Something to do at the peer.
#[derive(Debug)]
pub enum Work {
    /// Sends a message, and invalidates a key of the peer with it.
    Send(Sg, Option<u32>),
    /// Writes into memory of the peer, at this address with this key.
    Write(u64, u32, Sg),
    /// Reads memory of the peer, at this address with this key.
    Read(u64, u32, SgMut),
}

impl Work {
    /// Pieces of memory.
    #[must_use]
    pub fn pieces(&self) -> usize {
        match self {
            Self::Send(data, _) | Self::Write(_, _, data) => data.pieces().len(),
            Self::Read(_, _, into) => into.pieces().len(),
        }
    }

    /// Bytes that go to the peer, and bytes that come from it.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        match self {
            Self::Send(data, _) | Self::Write(_, _, data) => (data.len(), 0),
            Self::Read(_, _, into) => (0, into.len()),
        }
    }
}

/// A completion.
#[derive(Debug)]
pub enum Completed {
    /// A message has arrived.
    Received(Received),
    /// The oldest work that was posted has taken effect: its memory.
    Done(Work),
    /// Work has failed, and with it the connection.
    Failed(Status),
}

/// The sizes of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Messages that the peer may send.
    pub receives: usize,
    /// Bytes of a message at most.
    pub bytes: usize,
    /// Requests in the send queue.
    pub sends: usize,
    /// Pieces of memory of a request.
    pub pieces: usize,
}

impl Sizes {
    /// Bytes from the memory of a message to the next one.
    fn stride(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT)
    }

    /// Bytes of memory for messages.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.stride() * self.receives.max(1)
    }
}

/// Memory for messages.
struct Inbox {
    base: NonNull<u8>,
    layout: Layout,
    stride: usize,
}

impl Inbox {
    fn new(sizes: &Sizes) -> io::Result<Self> {
        let layout = Layout::from_size_align(sizes.memory(), ALIGNMENT).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, layout, stride: sizes.stride() })
    }

    fn slot(&self, slot: u32) -> *mut u8 {
        let at = slot as usize * self.stride;
        assert!(at + self.stride <= self.layout.size(), "there is no slot {slot}");
        // SAFETY: the offset is within the memory.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // SAFETY: the memory has this layout. The device does not use it any more: the pair ends before.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A message. Its memory is used again after [`Pair::recycle`].
pub struct Received {
    inbox: Rc<Inbox>,
    slot: u32,
    len: usize,
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is not posted while this value exists, so nothing writes to it, and it has so many bytes.
        unsafe { std::slice::from_raw_parts(self.inbox.slot(self.slot), self.len) }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({} bytes in slot {})", self.len, self.slot)
    }
}

/// Work that a device has, the oldest first. A device answers in order: the completion of a request is that of all
/// before it.
struct Posted {
    work: VecDeque<Work>,
    /// The number of the oldest request.
    first: u64,
}

impl Posted {
    /// The number of the request for the work at this place, and whether its completion is reported. Each completion
    /// costs the device and the processor: the data that a command reads is written before its response, whose
    /// completion is enough. The last request is reported in any case.
    fn request(&self, at: usize) -> (u64, bool) {
        let is_last = at + 1 == self.work.len();
        (self.first + at as u64, is_last || !matches!(self.work[at], Work::Write(..)))
    }

    /// The request of this number has completed; `None`: there is none.
    fn complete(&mut self, number: u64) -> Option<impl Iterator<Item = Work> + '_> {
        let count = usize::try_from(number.checked_sub(self.first)?).ok()?.checked_add(1)?;
        if count > self.work.len() {
            return None;
        }
        self.first += count as u64;
        Some(self.work.drain(..count))
    }
}

/// A queue pair with its completions.
pub struct Pair {
    id: Rc<Identifier>,
    device: Rc<Device>,
    queue: *mut CompletionQueue,
    _channel: Rc<CompletionChannel>,
    inbox: Rc<Inbox>,
    inbox_region: *mut MemoryRegion,
    /// Slots of the inbox that are not posted.
    free: Vec<u32>,
    /// Receives to post as soon as there are slots.
    owed: usize,
    sizes: Sizes,
    inline: usize,
    /// Work that the device has.
    posted: Posted,
    /// Lists for the library, which are used again.
    pieces: Vec<Piece>,
    requests: Vec<SendRequest>,
}

impl Pair {
    /// A pair for a request. `number` names it in [`CompletionChannel::next`].
    ///
    /// # Errors
    /// Errors of the operating system, for instance when the device has no room for such a pair.
    pub fn new(
        id: &Rc<Identifier>,
        device: &Rc<Device>,
        channel: &Rc<CompletionChannel>,
        number: u32,
        sizes: Sizes,
    ) -> io::Result<Self> {
        let (verbs, inbox) = (&device.libraries.verbs, Rc::new(Inbox::new(&sizes)?));
        let entries = i32::try_from(sizes.receives + sizes.sends + 1).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the context is that of a device.
        let vectors = unsafe { (*device.context).vectors }.max(1);
        // The interrupts of connections are spread over the processors.
        let vector = number.cast_signed().rem_euclid(vectors);
        let number = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the context and the channel are open; the number is no address.
        let queue = unsafe { (verbs.ibv_create_cq)(device.context, entries, number, channel.raw, vector) };
        if queue.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut pair = Self {
            id: id.clone(),
            device: device.clone(),
            queue,
            _channel: channel.clone(),
            inbox,
            inbox_region: null_mut(),
            free: (0..sizes.receives as u32).rev().collect(),
            owed: 0,
            sizes,
            inline: 0,
            posted: Posted { work: VecDeque::with_capacity(sizes.sends), first: 0 },
            pieces: Vec::with_capacity(sizes.sends * sizes.pieces),
            requests: Vec::with_capacity(sizes.sends),
        };
        pair.inbox_region = device.register(pair.inbox.base.as_ptr().cast(), pair.inbox.layout.size())?;
        // Not every device has room for data in a request.
        pair.create(INLINE_BYTES).or_else(|_| pair.create(0))?;
        Ok(pair)
    }

    fn create(&mut self, inline: u32) -> io::Result<()> {
        let mut attributes = PairAttributes {
            context: null_mut(),
            send_cq: self.queue,
            receive_cq: self.queue,
            shared: null_mut(),
            max_sends: self.sizes.sends as u32,
            max_receives: self.sizes.receives as u32,
            max_send_pieces: self.sizes.pieces as u32,
            max_receive_pieces: 1,
            max_inline: inline,
            kind: RELIABLE,
            signals_all: 0,
        };
        let create = self.device.libraries.manager.rdma_create_qp;
        // SAFETY: the identifier is that of a request for the device of the domain, and has no pair yet.
        super::check(unsafe { create(self.id.raw().as_ptr(), self.device.domain, &raw mut attributes) })?;
        self.inline = attributes.max_inline as usize;
        Ok(())
    }

    /// Accepts the request; so many messages may come at first.
    ///
    /// # Errors
    /// Errors of the operating system, for instance when the peer has given up.
    pub fn accept(&mut self, private: &[u8], receives: usize, reads: u8) -> io::Result<()> {
        self.post_receives(receives)?;
        self.id.accept(private, reads)
    }

    /// So many more messages may come: now, or as soon as there is memory for them.
    ///
    /// # Errors
    /// Errors of the device: the connection has failed.
    pub fn post_receives(&mut self, count: usize) -> io::Result<()> {
        // SAFETY: the queue exists, and has a context.
        let post = unsafe { (*(*self.queue).context).operations.post_recv };
        let post = post.ok_or(io::ErrorKind::Unsupported)?;
        self.owed += count;
        while self.owed > 0
            && let Some(slot) = self.free.pop()
        {
            self.owed -= 1;
            let address = self.inbox.slot(slot).addr() as u64;
            // SAFETY: the region is registered.
            let lkey = unsafe { (*self.inbox_region).lkey };
            let mut piece = Piece { address, len: self.sizes.stride() as u32, lkey };
            piece.len = piece.len.min(self.sizes.bytes as u32);
            let mut request =
                ReceiveRequest { id: IS_RECEIVE | u64::from(slot), next: null_mut(), pieces: &raw mut piece, count: 1 };
            let mut bad = null_mut();
            // SAFETY: the pair exists. The slot is registered memory that no other request has, and that nobody looks
            // at before its completion; the lists are copied.
            check_number(unsafe { post(self.id.raw().as_ref().pair, &raw mut request, &raw mut bad) })?;
        }
        Ok(())
    }

    /// Work that the device has.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.work.len()
    }

    /// Posts work, all of it: with what the device has, no more than [`Sizes::sends`].
    ///
    /// # Errors
    /// Errors of the device: the connection has failed. [`io::ErrorKind::OutOfMemory`]: data that the device cannot
    /// reach could not be copied.
    ///
    /// # Panics
    /// When there is more work, or work with more pieces, than the pair was made for.
    pub fn post(&mut self, work: &mut Vec<Work>) -> io::Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        assert!(self.posted() + work.len() <= self.sizes.sends, "the send queue has no room");
        let (first, post) = (self.posted(), self.operation()?);
        self.pieces.clear();
        self.requests.clear();
        for mut work in work.drain(..) {
            assert!(work.pieces() <= self.sizes.pieces, "{} pieces", work.pieces());
            self.reachable(&mut work)?;
            self.posted.work.push_back(work);
        }
        for at in first..self.posted() {
            self.describe(at);
        }
        // The lists do not grow any more, so their elements stay in place.
        let (mut from, pieces, count) = (0, self.pieces.as_mut_ptr(), self.requests.len());
        let requests = self.requests.as_mut_ptr();
        for at in 0..count {
            // SAFETY: the list has so many requests, and the other one as many pieces as the requests have.
            unsafe {
                let request = requests.add(at);
                (*request).pieces = pieces.add(from);
                from += (*request).count as usize;
                (*request).next = if at + 1 < count { requests.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad = null_mut();
        // SAFETY: the pair exists, and the lists are complete. The memory is held in `posted` until the completion, or
        // until the pair has ended: messages and writes are not written to meanwhile, and READs have the only handle.
        check_number(unsafe { post(self.id.raw().as_ref().pair, requests, &raw mut bad) })
    }

    fn operation(&self) -> io::Result<PostSend> {
        // SAFETY: the queue exists, and has a context.
        let post = unsafe { (*(*self.queue).context).operations.post_send };
        Ok(post.ok_or(io::ErrorKind::Unsupported)?)
    }

    /// Copies data that the device cannot reach: memory that a store has lent.
    fn reachable(&self, work: &mut Work) -> io::Result<()> {
        let (Work::Send(data, _) | Work::Write(_, _, data)) = work else { return Ok(()) };
        if data.pieces().iter().all(|piece| self.device.has(piece)) {
            return Ok(());
        }
        let mut copy = Sg::default();
        for piece in std::mem::take(data).into_pieces() {
            if self.device.has(&piece) {
                copy.push(piece);
                continue;
            }
            let mut own = self.device.arena.take_reserved(piece.len()).ok_or(io::ErrorKind::OutOfMemory)?;
            piece.read(0, &mut own);
            copy.push(own.share());
        }
        *data = copy;
        Ok(())
    }

    /// Appends the request of work that was posted, and its pieces.
    fn describe(&mut self, at: usize) {
        let (lkey, invalidates_keys) = (self.device.lkey, self.device.limits().invalidates);
        let piece = |address: usize, len: usize| Piece { address: address as u64, len: len as u32, lkey };
        let before = self.pieces.len();
        let (number, is_signalled) = self.posted.request(at);
        let (opcode, remote) = match &mut self.posted.work[at] {
            Work::Send(data, invalidates) => {
                self.pieces.extend(data.pieces().iter().map(|data| piece(data.as_ptr().addr(), data.len())));
                // A peer has to invalidate its key by itself if no message does it.
                let is_possible = invalidates.is_some() && invalidates_keys;
                (if is_possible { SEND_WITH_INVALIDATE } else { SEND }, None)
            }
            Work::Write(address, key, data) => {
                self.pieces.extend(data.pieces().iter().map(|data| piece(data.as_ptr().addr(), data.len())));
                (WRITE, Some((*address, *key)))
            }
            Work::Read(address, key, into) => {
                self.pieces.extend(into.pieces_mut().iter_mut().map(|into| {
                    let len = into.len();
                    piece(into.as_mut_ptr().addr(), len)
                }));
                (READ, Some((*address, *key)))
            }
        };
        let mut request = SendRequest::new(number, opcode);
        request.flags = if is_signalled { SIGNALED } else { 0 };
        request.count = (self.pieces.len() - before) as i32;
        (request.remote, request.key) = remote.unwrap_or_default();
        if let Work::Send(data, invalidates) = &self.posted.work[at] {
            request.invalidates = invalidates.unwrap_or_default();
            if data.len() <= self.inline {
                request.flags |= INLINE;
            }
        }
        self.requests.push(request);
    }

    /// Takes completions, the oldest first; returns whether there were any.
    pub fn poll(&mut self, into: &mut Vec<Completed>) -> bool {
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        // SAFETY: the queue exists, and has a context.
        let poll = unsafe { (*(*self.queue).context).operations.poll_cq };
        let Some(poll) = poll else { return false };
        // SAFETY: the queue exists, and there is room for so many completions.
        let count = unsafe { poll(self.queue, COMPLETIONS as i32, completions.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            into.push(Completed::Failed(Status(u32::MAX)));
            return true;
        };
        for completion in &completions[..count.min(COMPLETIONS)] {
            self.completed(completion, into);
        }
        count > 0
    }

    fn completed(&mut self, completion: &WorkCompletion, into: &mut Vec<Completed>) {
        let status = Status(completion.status);
        if status != Status::SUCCESS {
            return into.push(Completed::Failed(status));
        }
        if completion.id & IS_RECEIVE != 0 {
            let slot = (completion.id & !IS_RECEIVE) as u32;
            let len = (completion.len as usize).min(self.sizes.bytes);
            return into.push(Completed::Received(Received { inbox: self.inbox.clone(), slot, len }));
        }
        match self.posted.complete(completion.id) {
            Some(done) => into.extend(done.map(Completed::Done)),
            None => into.push(Completed::Failed(Status(u32::MAX))),
        }
    }

    /// The memory of a message is used for another one.
    ///
    /// # Errors
    /// Errors of [`Pair::post_receives`].
    pub fn recycle(&mut self, received: Received) -> io::Result<()> {
        // A message of another pair has other slots.
        if Rc::ptr_eq(&received.inbox, &self.inbox) {
            self.free.push(received.slot);
        }
        self.post_receives(0)
    }

    /// Reports the next completion by the channel. Those that have come before are not reported.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists, and has a context.
        let arm = unsafe { (*(*self.queue).context).operations.req_notify_cq };
        // SAFETY: the queue exists.
        check_number(unsafe { arm.ok_or(io::ErrorKind::Unsupported)?(self.queue, 0) })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let libraries = self.device.libraries;
        // SAFETY: the identifier is one; nobody else uses its pair and the queue. Without a pair, there is none to
        // destroy. After that, the device does not use any memory of it.
        unsafe {
            if !self.id.raw().as_ref().pair.is_null() {
                (libraries.manager.rdma_destroy_qp)(self.id.raw().as_ptr());
            }
            (libraries.verbs.ibv_destroy_cq)(self.queue);
        }
        if !self.inbox_region.is_null() {
            self.device.unregister(self.inbox_region);
        }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({:?}, {} posted)", self.id, self.posted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_completion_of_a_response_is_that_of_the_data_before_it() {
        let mut posted = Posted { work: VecDeque::new(), first: 7 };
        let write = |address| Work::Write(address, 1, Sg::default());
        posted.work.extend([write(1), write(2), Work::Send(Sg::default(), None), write(3), write(4)]);
        let requests: Vec<_> = (0..5).map(|at| posted.request(at)).collect();
        assert_eq!(requests, [(7, false), (8, false), (9, true), (10, false), (11, true)]);
        let places = |done: Option<Vec<Work>>| {
            done.map(|done| done.iter().map(|work| matches!(work, Work::Write(..))).collect::<Vec<_>>())
        };
        let done = posted.complete(9).map(Iterator::collect);
        assert_eq!(places(done), Some(vec![true, true, false]));
        posted.work.push_back(Work::Read(0, 1, SgMut::default()));
        posted.work.push_back(write(5));
        assert_eq!((posted.request(2), posted.request(3)), ((12, true), (13, true)));
        // A number of none.
        assert!(posted.complete(9).is_none() && posted.complete(14).is_none());
        assert_eq!(posted.complete(11).map(Iterator::count), Some(2));
        assert_eq!(posted.complete(13).map(Iterator::count), Some(2));
        assert!(posted.work.is_empty() && posted.complete(14).is_none());
    }
}
