//! Memory of the data path: one [`Arena`] per core, handed out as [`Buf`] (one owner, writable) and shared as
//! [`Slice`] (any number of readers). Lists of them are [`SgMut`] and [`Sg`]. A guest's pages, which the guest may
//! change, are a [`Region`], and parts of it travel in the same lists.
//!
//! The types keep writers and readers apart: a `Buf` has one owner, which fills it (a receive, a read of a store). It
//! becomes readable for others only by [`Buf::share`], and it is not writable again until every `Slice` of it is gone.
//! A block returns to the arena when its last handle drops. Handles stay on one thread.
//!
//! New memory contains old data, so the owner of a `Buf` fills all of it before it is sent.
//!
//! Memory of a region may change at any time, so no code has a reference to it: the kernel moves it, or
//! [`Slice::read`] and [`Buf::write`] copy it.

// The arena hands out raw memory that I/O fills; every block has its argument.
#![allow(unsafe_code)]

mod chunks;
mod promise;
mod region;

pub use chunks::Chunks;
pub(crate) use promise::LEAST;
pub use promise::PeerMemory;
pub use region::Region;
use smallvec::SmallVec;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The smallest block: a page, which has the alignment that direct I/O and DMA need.
pub const PAGE: usize = 4096;
/// The largest block is `PAGE << ORDER_MAX`: 1 MiB, the largest piece that a command moves at once.
const ORDER_MAX: usize = 8;
/// The largest block.
pub const BLOCK_MAX: usize = PAGE << ORDER_MAX;
/// The zeroes that an arena lends, in bytes: as many as a step moves at once.
pub const ZEROES: usize = 256 << 10;
/// Pages that payload may not use: memory for a reply header, a login response or a TMF response must always be
/// available.
const RESERVE_PAGES: usize = 64;

/// The memory of one core: a fixed number of bytes, reserved at the start. Pages are touched when they are first used.
#[derive(Clone)]
pub struct Arena(Rc<Inner>);

/// The owner of the memory.
enum Backing {
    /// Allocated by the arena.
    Own { raw: NonNull<u8>, layout: Layout },
    /// Memory of another owner, which is released when this value drops.
    Foreign(#[allow(dead_code)] Box<dyn Any>),
}

struct Inner {
    backing: Backing,
    base: NonNull<u8>,
    pages: usize,
    free: RefCell<Free>,
    /// Handles per block, at the index of its first page.
    refs: Box<[Cell<u32>]>,
    /// Order of the block that starts at this page.
    orders: Box<[Cell<u8>]>,
    waiters: RefCell<VecDeque<Waker>>,
    /// The parts of the arena that wait for peers.
    promises: promise::Promises,
    /// First page of the block of zeroes, after its first use.
    zeroes: Cell<Option<u32>>,
}

struct Free {
    /// Free blocks of each order, by their first page. They are merged only when an order is empty.
    lists: [Vec<u32>; ORDER_MAX + 1],
    pages: usize,
}

impl Arena {
    /// An arena of `bytes`, rounded up to whole blocks of [`BLOCK_MAX`].
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let blocks = bytes.div_ceil(BLOCK_MAX).max(1);
        let size = blocks * BLOCK_MAX;
        // Aligned by hand: an aligned zeroed allocation would touch every page, and this one touches none.
        let layout = Layout::from_size_align(size + BLOCK_MAX, 16).expect("an arena is far smaller than isize::MAX");
        // SAFETY: the layout's size is not zero.
        let Some(raw) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let skip = raw.align_offset(BLOCK_MAX);
        // SAFETY: `skip` < BLOCK_MAX, which the allocation has over `size`.
        let base = unsafe { raw.add(skip) };
        let pages = size / PAGE;
        let mut lists: [Vec<u32>; ORDER_MAX + 1] = Default::default();
        lists[ORDER_MAX] = (0..blocks).rev().map(|b| (b << ORDER_MAX) as u32).collect();
        Self(Rc::new(Inner {
            backing: Backing::Own { raw, layout },
            base,
            pages,
            free: RefCell::new(Free { lists, pages }),
            refs: (0..pages).map(|_| Cell::new(0)).collect(),
            orders: (0..pages).map(|_| Cell::new(0)).collect(),
            waiters: RefCell::default(),
            promises: promise::Promises::new(size),
            zeroes: Cell::new(None),
        }))
    }

    /// Memory for `len` bytes of payload, or `None` when the arena has none. `len` is 1 to [`BLOCK_MAX`].
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Buf> {
        self.take_above(len, RESERVE_PAGES)
    }

    /// Memory for headers and short answers: it may use the reserve that payload may not use.
    #[must_use]
    pub fn take_reserved(&self, len: usize) -> Option<Buf> {
        self.take_above(len, 0)
    }

    fn take_above(&self, len: usize, reserve: usize) -> Option<Buf> {
        assert!(len > 0 && len <= BLOCK_MAX, "a block of {len} bytes does not exist");
        let order = len.div_ceil(PAGE).next_power_of_two().trailing_zeros() as usize;
        let page = self.0.free.borrow_mut().take(order, reserve.min(self.0.pages / 2))?;
        self.0.refs[page].set(1);
        self.0.orders[page].set(order as u8);
        Some(Buf(Handle { arena: self.0.clone(), start: self.0.page(page), head: page as u32, len: len as u32 }))
    }

    /// Memory for `len` bytes, in as few pieces as [`BLOCK_MAX`] allows, or `None`.
    #[must_use]
    pub fn take_sg(&self, len: usize) -> Option<SgMut> {
        let mut sg = SgMut::default();
        while sg.len() < len {
            sg.push(self.take((len - sg.len()).min(BLOCK_MAX))?);
        }
        Some(sg)
    }

    /// Like [`Arena::take_sg`], but waits until there is enough. Waiters are served in turn.
    pub async fn wait_sg(&self, len: usize) -> SgMut {
        if self.0.waiters.borrow().is_empty()
            && let Some(sg) = self.take_sg(len)
        {
            return sg;
        }
        poll_fn(|cx| match self.take_sg(len) {
            Some(sg) => Poll::Ready(sg),
            None => {
                self.0.waiters.borrow_mut().push_back(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// A shared copy of `bytes` from the reserve, or `None`.
    #[must_use]
    pub fn copy(&self, bytes: &[u8]) -> Option<Slice> {
        let mut buf = self.take_reserved(bytes.len().max(1))?;
        buf[..bytes.len()].copy_from_slice(bytes);
        buf.truncate(bytes.len());
        Some(buf.share())
    }

    /// [`ZEROES`] bytes of zeroes to lend, the same for all callers; `None` when there is no memory for the first use.
    #[must_use]
    pub fn zeroes(&self) -> Option<Slice> {
        let head = match self.0.zeroes.get() {
            Some(head) => head,
            None => {
                let mut buf = self.take(ZEROES)?;
                buf.fill(0);
                let head = buf.0.head;
                // Counted once for the arena itself: the block is never returned, and no handle keeps the arena alive.
                self.0.retain(head);
                self.0.zeroes.set(Some(head));
                head
            }
        };
        self.0.retain(head);
        let start = self.0.page(head as usize);
        Some(Slice(Handle { arena: self.0.clone(), start, head, len: ZEROES as u32 }))
    }

    /// The whole memory: address and bytes, for registration with a ring.
    #[must_use]
    pub fn extent(&self) -> (*mut u8, usize) {
        (self.0.base.as_ptr(), self.0.pages * PAGE)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        (self.0.pages - self.0.free.borrow().pages) * PAGE
    }

    /// Bytes in total.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.pages * PAGE
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} bytes used)", self.used(), self.size())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Backing::Own { raw, layout } = self.backing {
            // SAFETY: `raw` came from `alloc_zeroed` with this layout; every handle holds an Rc, so no handle is left.
            unsafe { dealloc(raw.as_ptr(), layout) }
        }
    }
}

impl Inner {
    /// The address of a page of the arena.
    fn page(&self, page: usize) -> NonNull<u8> {
        // SAFETY: the arena has this page.
        unsafe { self.base.add(page * PAGE) }
    }

    /// Counts one more handle of the block at `head`.
    fn retain(&self, head: u32) {
        let count = &self.refs[head as usize];
        count.set(count.get() + 1);
    }

    fn release(&self, head: u32) {
        let count = &self.refs[head as usize];
        count.set(count.get() - 1);
        if count.get() > 0 {
            return;
        }
        let order = self.orders[head as usize].get() as usize;
        let mut free = self.free.borrow_mut();
        free.lists[order].push(head);
        free.pages += 1 << order;
        drop(free);
        if !self.waiters.borrow().is_empty() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // All waiters are woken: the free memory may be enough for a small request behind a large one.
        for waker in self.waiters.take() {
            waker.wake();
        }
    }
}

impl Free {
    fn take(&mut self, order: usize, reserve: usize) -> Option<usize> {
        if self.pages < reserve + (1 << order) {
            return None;
        }
        if let Some(page) = self.lists[order].pop().or_else(|| self.split(order)) {
            self.pages -= 1 << order;
            return Some(page as usize);
        }
        self.merge();
        let page = self.lists[order].pop().or_else(|| self.split(order))?;
        self.pages -= 1 << order;
        Some(page as usize)
    }

    /// Splits the smallest larger block; keeps the upper halves.
    fn split(&mut self, order: usize) -> Option<u32> {
        let from = (order + 1..=ORDER_MAX).find(|&o| !self.lists[o].is_empty())?;
        let page = self.lists[from].pop()?;
        for lower in (order..from).rev() {
            self.lists[lower].push(page + (1 << lower));
        }
        Some(page)
    }

    /// Joins buddies into blocks of the next order.
    #[cold]
    fn merge(&mut self) {
        for order in 0..ORDER_MAX {
            let mut blocks = std::mem::take(&mut self.lists[order]);
            blocks.sort_unstable();
            let mut at = 0;
            while at < blocks.len() {
                let page = blocks[at];
                let is_lower = page & (1 << order) == 0;
                if is_lower && blocks.get(at + 1) == Some(&(page + (1 << order))) {
                    self.lists[order + 1].push(page);
                    at += 2;
                } else {
                    self.lists[order].push(page);
                    at += 1;
                }
            }
        }
    }
}

/// The block of a handle in a [`Region`], which is not divided.
const FOREIGN: u32 = u32::MAX;

/// A part of a block or of a region; it keeps the block alive.
struct Handle {
    arena: Rc<Inner>,
    /// The address lies inside the block, and so do the `len` bytes from there on.
    start: NonNull<u8>,
    head: u32,
    len: u32,
}

impl Handle {
    fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address, for access through a reference.
    #[inline]
    fn own(&self) -> *mut u8 {
        assert!(self.head != FOREIGN, "memory that a guest may change must be copied");
        self.ptr()
    }

    /// The address of the byte at `at`, or of the end.
    #[inline]
    fn at(&self, at: usize) -> NonNull<u8> {
        debug_assert!(at <= self.len as usize);
        // SAFETY: callers have checked that the offset is within the `len` bytes.
        unsafe { self.start.add(at) }
    }

    #[inline]
    fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len as usize, "{range:?} of {} bytes", self.len);
        if self.head != FOREIGN {
            self.arena.retain(self.head);
        }
        Self {
            arena: self.arena.clone(),
            start: self.at(range.start),
            head: self.head,
            len: (range.end - range.start) as u32,
        }
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.len as usize, "{count} of {} bytes", self.len);
        self.start = self.at(count);
        self.len -= count as u32;
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if self.head != FOREIGN {
            self.arena.release(self.head);
        }
    }
}

/// The functions that need no access to the bytes, which may be a guest's.
macro_rules! extent {
    ($name:ident) => {
        impl $name {
            /// Bytes.
            #[inline]
            #[must_use]
            pub fn len(&self) -> usize {
                self.0.len as usize
            }

            /// Whether there are no bytes.
            #[inline]
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.len == 0
            }

            /// The address of the bytes, for the kernel.
            #[inline]
            #[must_use]
            pub fn as_ptr(&self) -> *const u8 {
                self.0.ptr()
            }

            /// Copies the bytes from `at` on, until `into` is full.
            ///
            /// # Panics
            /// When there are fewer bytes.
            #[inline]
            pub fn read(&self, at: usize, into: &mut [u8]) {
                assert!(is_within(at, into.len(), self.len()), "{} bytes at {at} of {}", into.len(), self.len());
                // SAFETY: the range was checked. The destination is a slice of this process, and no region is. A guest
                // may change the bytes during the copy: then some are old and some are new, and every value is a valid
                // byte.
                unsafe {
                    std::ptr::copy_nonoverlapping(self.0.at(at).as_ptr().cast_const(), into.as_mut_ptr(), into.len())
                }
            }
        }
    };
}

extent!(Buf);
extent!(Slice);

#[inline]
fn is_within(at: usize, count: usize, len: usize) -> bool {
    at.checked_add(count).is_some_and(|end| end <= len)
}

/// Memory with one owner, which may write it.
pub struct Buf(Handle);

impl Buf {
    /// Splits off the first `at` bytes as a `Buf` of their own; `self` keeps the rest.
    #[inline]
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        let front = self.0.part(0..at);
        self.0.advance(at);
        Self(front)
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// When there are fewer bytes.
    #[inline]
    pub fn write(&mut self, at: usize, from: &[u8]) {
        assert!(is_within(at, from.len(), self.len()), "{} bytes at {at} of {}", from.len(), self.len());
        // SAFETY: the range was checked. The source is a slice of this process, and no region is. A guest may see half
        // of the copy, and no other reference to the destination exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.0.at(at).as_ptr(), from.len()) }
    }

    /// Fills `count` bytes from `at` on with `value`.
    ///
    /// # Panics
    /// When there are fewer bytes.
    pub fn fill_part(&mut self, at: usize, count: usize, value: u8) {
        assert!(is_within(at, count, self.len()), "{count} bytes at {at} of {}", self.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(self.0.at(at).as_ptr(), value, count) }
    }

    /// The address of the bytes, for the kernel to fill.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.ptr()
    }

    /// Drops all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len as u32);
    }

    /// Ends writing, so that any number of readers can share the memory.
    #[must_use]
    pub fn share(self) -> Slice {
        Slice(self.0)
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised (the arena began zeroed), alive as long as the handle, and disjoint from
        // every other handle's: `take` gives blocks out once, `split_to` gives parts that do not overlap. The memory
        // is no region's, or `own` had panicked.
        unsafe { std::slice::from_raw_parts(self.0.own(), self.0.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and `&mut self` of the only handle that covers these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.own(), self.0.len as usize) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

/// Memory with any number of readers and no writer.
pub struct Slice(Handle);

impl Slice {
    /// A part of the memory.
    ///
    /// # Panics
    /// When `range` does not lie within.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

    /// Splits off the first `at` bytes; `self` keeps the rest.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        let front = self.0.part(0..at);
        self.advance(at);
        front.into()
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// When there are fewer bytes.
    pub fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    /// Appends `next` if it lies directly behind in the same block; otherwise returns it.
    pub fn join(&mut self, next: Self) -> Option<Self> {
        let adjoins = Rc::ptr_eq(&self.0.arena, &next.0.arena)
            && self.0.head == next.0.head
            && self.0.at(self.len()) == next.0.start;
        match self.0.len.checked_add(next.0.len) {
            Some(len) if adjoins => {
                self.0.len = len;
                None
            }
            _ => Some(next),
        }
    }
}

impl From<Handle> for Slice {
    fn from(handle: Handle) -> Self {
        Self(handle)
    }
}

impl Clone for Slice {
    fn clone(&self) -> Self {
        self.part(0..self.len())
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised and alive as for `Buf`; a shared part is never writable while a handle to it exists.
        unsafe { std::slice::from_raw_parts(self.0.own(), self.0.len as usize) }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes)", self.len())
    }
}

/// Most pieces without an allocation: a payload is one block, or two halves of received chunks.
const PIECES_INLINE: usize = 2;

macro_rules! list {
    ($(#[$meta:meta])* $name:ident of $piece:ident) => {
        $(#[$meta])*
        #[derive(Default, Debug)]
        pub struct $name {
            pieces: SmallVec<[$piece; PIECES_INLINE]>,
            len: usize,
        }

        impl $name {
            /// Bytes in all pieces.
            #[must_use]
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether there are no bytes.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Appends a piece; an empty one is dropped.
            // Inlined, so that a piece is built in its final place: reading it back immediately costs tenfold.
            #[inline(always)]
            pub fn push(&mut self, piece: $piece) {
                if !piece.is_empty() {
                    self.len += piece.len();
                    self.pieces.push(piece);
                }
            }

            /// Reserves space for `more` pieces, if many will follow: growing step by step costs more.
            pub fn reserve(&mut self, more: usize) {
                self.pieces.reserve(more);
            }

            /// Removes the last piece.
            #[inline]
            pub fn pop(&mut self) -> Option<$piece> {
                let piece = self.pieces.pop()?;
                self.len -= piece.len();
                Some(piece)
            }

            /// The pieces in order.
            #[must_use]
            pub fn pieces(&self) -> &[$piece] {
                &self.pieces
            }

            /// The pieces by value, in order.
            pub fn into_pieces(self) -> impl Iterator<Item = $piece> {
                self.pieces.into_iter()
            }

            /// Splits off the first `at` bytes; `self` keeps the rest.
            ///
            /// # Panics
            /// When there are fewer bytes.
            #[must_use]
            pub fn split_to(&mut self, at: usize) -> Self {
                assert!(at <= self.len, "{at} of {} bytes", self.len);
                if at == self.len {
                    return std::mem::take(self);
                }
                let mut front = Self::default();
                let mut whole = 0;
                while front.len + self.pieces[whole].len() <= at {
                    front.len += self.pieces[whole].len();
                    whole += 1;
                }
                front.pieces.extend(self.pieces.drain(..whole));
                let rest = at - front.len;
                if rest > 0 {
                    front.push(self.pieces[0].split_to(rest));
                }
                self.len -= at;
                front
            }

            /// Copies the bytes from `at` on into `to`, as many as there are; returns their number.
            pub fn copy_to(&self, mut at: usize, to: &mut [u8]) -> usize {
                let mut done = 0;
                for piece in &self.pieces {
                    let skip = at.min(piece.len());
                    at -= skip;
                    let count = (piece.len() - skip).min(to.len() - done);
                    piece.read(skip, &mut to[done..done + count]);
                    done += count;
                }
                done
            }
        }

        impl From<$piece> for $name {
            #[inline]
            fn from(piece: $piece) -> Self {
                let mut list = Self::default();
                list.push(piece);
                list
            }
        }
    };
}

list! {
    /// Pieces to read from: for a send, or for a write to a store.
    Sg of Slice
}
list! {
    /// Pieces to fill: the destination of a receive or of a read of a store.
    SgMut of Buf
}

impl SgMut {
    /// The pieces in order, to write.
    pub fn pieces_mut(&mut self) -> &mut [Buf] {
        &mut self.pieces
    }

    /// Fills the bytes from `at` on with `value`.
    pub fn fill_from(&mut self, mut at: usize, value: u8) {
        for piece in &mut self.pieces {
            let skip = at.min(piece.len());
            at -= skip;
            piece.fill_part(skip, piece.len() - skip, value);
        }
    }

    /// Copies `from` to the bytes from `at` on, as many as fit; returns their number.
    pub fn copy_from(&mut self, mut at: usize, from: &[u8]) -> usize {
        let mut done = 0;
        for piece in &mut self.pieces {
            let skip = at.min(piece.len());
            at -= skip;
            let count = (piece.len() - skip).min(from.len() - done);
            piece.write(skip, &from[done..done + count]);
            done += count;
        }
        done
    }

    /// Ends writing.
    #[must_use]
    pub fn share(self) -> Sg {
        let len = self.len;
        Sg { pieces: self.pieces.into_iter().map(Buf::share).collect(), len }
    }
}

impl Sg {
    /// Appends all pieces of `other`.
    pub fn append(&mut self, other: Self) {
        for piece in other.pieces {
            self.push(piece);
        }
    }

    /// A part of the memory, which is shared.
    ///
    /// # Panics
    /// When `range` does not lie within.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let (mut skip, mut want) = (range.start, range.len());
        let mut part = Self::default();
        for piece in &self.pieces {
            let from = skip.min(piece.len());
            skip -= from;
            let count = (piece.len() - from).min(want);
            want -= count;
            if count > 0 {
                part.push(piece.part(from..from + count));
            }
        }
        part
    }

    /// All bytes in one vector: for short parameter lists, not for payload.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

impl Clone for Sg {
    fn clone(&self) -> Self {
        Self { pieces: self.pieces.clone(), len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_returns_when_its_last_part_goes() {
        let arena = Arena::new(BLOCK_MAX);
        let mut buf = arena.take(10_000).expect("empty arena");
        assert_eq!(arena.used(), 16384);
        let front = buf.split_to(100).share();
        let again = front.clone();
        drop((buf, front));
        assert_eq!(arena.used(), 16384);
        drop(again);
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn small_blocks_merge_back_into_large_ones() {
        let arena = Arena::new(BLOCK_MAX);
        let small: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(1)).collect();
        assert_eq!(small.len(), BLOCK_MAX / PAGE);
        drop(small);
        assert_eq!(arena.take_reserved(BLOCK_MAX).map(|b| b.len()), Some(BLOCK_MAX));
    }

    #[test]
    fn payload_leaves_the_reserve() {
        let arena = Arena::new(BLOCK_MAX);
        let payload: Vec<Buf> = std::iter::from_fn(|| arena.take(PAGE)).collect();
        assert_eq!(payload.len(), BLOCK_MAX / PAGE - RESERVE_PAGES);
        assert!(arena.take_reserved(PAGE).is_some());
    }

    #[test]
    fn blocks_lie_on_their_own_size() {
        let arena = Arena::new(4 * BLOCK_MAX);
        for len in [1, PAGE, PAGE + 1, 65536, BLOCK_MAX] {
            let buf = arena.take(len).expect("room");
            assert_eq!(buf.as_ptr().align_offset(len.next_power_of_two().max(PAGE)), 0);
        }
    }

    #[test]
    fn zeroes_are_there_once() {
        let arena = Arena::new(BLOCK_MAX);
        let (a, b) = (arena.zeroes().expect("room"), arena.zeroes().expect("there"));
        assert_eq!((arena.used(), a.len(), a.as_ptr()), (ZEROES, ZEROES, b.as_ptr()));
        assert!(a.iter().all(|byte| *byte == 0));
        drop((a, b));
        assert_eq!(arena.used(), ZEROES);
        assert!(arena.zeroes().is_some());
    }

    #[test]
    fn neighbours_join() {
        let arena = Arena::new(BLOCK_MAX);
        let mut buf = arena.take(PAGE).expect("room");
        buf[..6].copy_from_slice(b"abcdef");
        let (mut a, b, c) = (buf.split_to(2).share(), buf.split_to(2).share(), buf.split_to(2).share());
        let c = a.join(c).expect("not a neighbour yet");
        assert!(a.join(b).is_none() && a.join(c).is_none());
        assert_eq!(&a[..], b"abcdef");
        drop((a, buf));
        assert_eq!(arena.used(), 0);
    }

    fn sg(arena: &Arena, cuts: &[usize]) -> SgMut {
        let mut sg = SgMut::default();
        for &len in cuts {
            sg.push(arena.take(len).expect("room"));
        }
        sg
    }

    proptest! {
        #[test]
        fn lists_copy_split_and_part_like_one_slice(
            cuts in prop::collection::vec(1usize..50, 1..6), at in 0usize..300, to in 0usize..300,
        ) {
            let arena = Arena::new(BLOCK_MAX);
            let mut list = sg(&arena, &cuts);
            let bytes: Vec<u8> = (0..list.len()).map(|i| i as u8).collect();
            prop_assert_eq!(list.copy_from(0, &bytes), bytes.len());
            let mut list = list.share();
            prop_assert_eq!(list.to_vec(), bytes.clone());
            let at = at.min(bytes.len());
            let to = to.clamp(at, bytes.len());
            prop_assert_eq!(list.part(at..to).to_vec(), bytes[at..to].to_vec());
            let mut out = vec![0; to - at];
            prop_assert_eq!(list.copy_to(at, &mut out), to - at);
            prop_assert_eq!(&out[..], &bytes[at..to]);
            let front = list.split_to(at);
            prop_assert_eq!((front.len(), list.len()), (at, bytes.len() - at));
            prop_assert_eq!(front.to_vec(), bytes[..at].to_vec());
            prop_assert_eq!(list.to_vec(), bytes[at..].to_vec());
            drop((front, list));
            prop_assert_eq!(arena.used(), 0);
        }

        #[test]
        fn any_order_of_takes_and_drops_loses_nothing(
            ops in prop::collection::vec((1usize..=BLOCK_MAX, any::<bool>()), 1..200),
        ) {
            let arena = Arena::new(4 * BLOCK_MAX);
            let mut held: Vec<Buf> = Vec::new();
            for (len, drop_one) in ops {
                if drop_one && !held.is_empty() {
                    held.swap_remove(len % held.len());
                } else if let Some(mut buf) = arena.take(len) {
                    buf.fill(len as u8);
                    held.push(buf);
                }
            }
            for buf in &held {
                prop_assert!(buf.iter().all(|b| *b == buf.len() as u8));
            }
            held.clear();
            prop_assert_eq!(arena.used(), 0);
            for _ in 0..4 {
                held.push(arena.take_reserved(BLOCK_MAX).expect("merged"));
            }
        }
    }
}
