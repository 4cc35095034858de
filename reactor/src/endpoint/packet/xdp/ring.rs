//! The rings between an AF_XDP socket and the kernel.

use super::super::super::datagram::set_to;
use libc::{xdp_mmap_offsets, xdp_ring_offset};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kind of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Chunks for frames that will arrive.
    Fill,
    /// Frames that have arrived.
    Receive,
    /// Frames to send.
    Transmit,
    /// Chunks of frames that were sent.
    Completion,
}

impl Kind {
    /// The option of the socket that makes the ring, and the place at which it is mapped.
    fn numbers(self) -> (libc::c_int, u64) {
        match self {
            Self::Fill => (libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_PGOFF_FILL_RING),
            Self::Receive => (libc::XDP_RX_RING, libc::XDP_PGOFF_RX_RING as u64),
            Self::Transmit => (libc::XDP_TX_RING, libc::XDP_PGOFF_TX_RING as u64),
            Self::Completion => (libc::XDP_UMEM_COMPLETION_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING),
        }
    }

    fn offsets(self, all: &xdp_mmap_offsets) -> xdp_ring_offset {
        match self {
            Self::Fill => all.fr,
            Self::Receive => all.rx,
            Self::Transmit => all.tx,
            Self::Completion => all.cr,
        }
    }
}

/// Makes the kernel make a ring for so many entries, a power of two.
///
/// # Errors
/// Errors of setsockopt(2).
pub(super) fn make(fd: &OwnedFd, kind: Kind, count: u32) -> io::Result<()> {
    set_to(fd, libc::SOL_XDP, kind.numbers().0, &count)
}

/// A mapped ring. One side adds entries, the other takes them.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    len: usize,
    offsets: xdp_ring_offset,
    count: u32,
    /// The number of entries that this side has added or taken, modulo 2^32.
    at: u32,
    entries: PhantomData<T>,
}

// SAFETY: this value alone owns the mapping.
unsafe impl<T: Send> Send for Ring<T> {}

/// An entry that any bytes are: the kernel writes some of them.
///
/// # Safety
/// Each pattern of bits is a value.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::xdp_desc {}

impl<T: Plain> Ring<T> {
    /// Maps a ring of a socket that [`make`] has made.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub(super) fn map(fd: &OwnedFd, kind: Kind, count: u32, all: &xdp_mmap_offsets) -> io::Result<Self> {
        let offsets = kind.offsets(all);
        let len = offsets.desc as usize + count as usize * size_of::<T>();
        let (protection, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe { mmap(null, len, protection, flags, fd, kind.numbers().1) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, offsets, count, at: 0, entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel has said that an aligned word is there, before the entries of the mapping; all accesses to
        // these words are atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    fn entry(&self, number: u32) -> *mut T {
        let at = (number & (self.count - 1)) as usize;
        // SAFETY: within the mapping, which has `count` entries from this offset on.
        unsafe { self.base.as_ptr().add(self.offsets.desc as usize).cast::<T>().add(at) }
    }

    /// The number of entries that the kernel has not taken yet, of a ring to which this side adds.
    pub(super) fn used(&self) -> u32 {
        self.at.wrapping_sub(self.word(self.offsets.consumer).load(Ordering::Acquire))
    }

    /// The number of entries that fit.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Adds an entry, which the kernel sees after [`Ring::publish`]; false if the ring is full.
    pub(super) fn add(&mut self, entry: T) -> bool {
        if self.used() >= self.count {
            return false;
        }
        // SAFETY: a place of this side, because it is not used; see `entry`.
        unsafe { self.entry(self.at).write(entry) };
        self.at = self.at.wrapping_add(1);
        true
    }

    /// Hands the added entries over.
    pub(super) fn publish(&self) {
        self.word(self.offsets.producer).store(self.at, Ordering::Release);
    }

    /// The entry `ahead` of the next, of a ring from which this side takes, if the kernel has added it.
    pub(super) fn look(&self, ahead: u32) -> Option<T> {
        let waiting = self.word(self.offsets.producer).load(Ordering::Acquire).wrapping_sub(self.at);
        // SAFETY: the kernel has handed the entry over; see `entry`. Each pattern of bits is a value.
        (ahead < waiting).then(|| unsafe { self.entry(self.at.wrapping_add(ahead)).read() })
    }

    /// Takes so many entries that [`Ring::look`] has shown; the kernel may use their places again after
    /// [`Ring::release`].
    pub(super) fn skip(&mut self, number: u32) {
        self.at = self.at.wrapping_add(number);
    }

    /// Hands the places of taken entries back.
    pub(super) fn release(&self) {
        self.word(self.offsets.consumer).store(self.at, Ordering::Release);
    }

    /// Whether the kernel waits for a call before it looks at the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nothing points into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
