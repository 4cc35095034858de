//! The memory of the frames of AF_XDP sockets (UMEM).

use super::super::super::batch::ReceiveBatch;
use super::super::super::datagram::set_to;
use lunar_core::mem::Buf;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Bytes that the kernel keeps free in front of a received frame (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// The sizes of chunks: the kernel takes at most a page.
const CHUNKS: [usize; 2] = [2048, 4096];

/// The memory, in chunks of one size. The kernel writes into chunks of the fill rings, and reads those of the transmit
/// ring; the others belong to this side.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    chunk: usize,
}

// SAFETY: this value alone owns the mapping.
unsafe impl Send for Memory {}

/// The size of a chunk for frames of so many bytes, and whether they need several chunks.
pub(super) fn chunk_for(frame: usize) -> (usize, bool) {
    match CHUNKS.into_iter().find(|chunk| frame <= chunk - HEADROOM) {
        Some(chunk) => (chunk, false),
        None => (CHUNKS[CHUNKS.len() - 1], true),
    }
}

impl Memory {
    /// Takes memory for so many chunks.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn new(count: usize, chunk: usize) -> io::Result<Self> {
        let len = count * chunk;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self { base, len, chunk };
        // The kernel keeps pages of this process: they must not be copied on a write after a fork. Data of volumes does
        // not belong into a core dump.
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the mapping belongs to this value; its contents stay.
            unsafe { madvise(memory.base.as_ptr().cast(), len, advice) }?;
        }
        Ok(memory)
    }

    /// Makes it the memory of a socket.
    ///
    /// # Errors
    /// Errors of setsockopt(2): ENOBUFS when the process may not lock so much memory.
    pub(super) fn register(&self, fd: &OwnedFd) -> io::Result<()> {
        let request = libc::xdp_umem_reg {
            addr: self.base.as_ptr().expose_provenance() as u64,
            len: self.len as u64,
            chunk_size: self.chunk as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_to(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
    }

    /// Bytes of a chunk.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// The address of the chunk of an address.
    pub(super) fn chunk_of(&self, address: u64) -> u64 {
        address & !(self.chunk as u64 - 1)
    }

    /// Whether so many bytes from this address on are within the memory.
    pub(super) fn has(&self, address: u64, len: usize) -> bool {
        usize::try_from(address).is_ok_and(|at| at.checked_add(len).is_some_and(|end| end <= self.len))
    }

    /// Copies bytes of a received frame; false if they are not within the memory. The chunk belongs to this side.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if !self.has(address, into.len()) {
            return false;
        }
        // SAFETY: within the mapping, as was checked, and the kernel does not write to a chunk of this side.
        unsafe {
            let from = self.base.as_ptr().add(address as usize);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
        true
    }

    /// Copies the bytes of a frame to send, from these pieces on; false if they are not within the memory. The chunk
    /// belongs to this side.
    ///
    /// # Safety
    /// `from` has `len` bytes that can be read.
    pub(super) unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> bool {
        if !self.has(address, len) {
            return false;
        }
        // SAFETY: within the mapping, as was checked; the kernel does not read a chunk of this side; the caller vouches
        // for the source.
        unsafe { std::ptr::copy_nonoverlapping(from, self.base.as_ptr().add(address as usize), len) };
        true
    }

    /// Writes zeroes; false if they are not within the memory. The chunk belongs to this side.
    pub(super) fn clear(&self, address: u64, len: usize) -> bool {
        if !self.has(address, len) {
            return false;
        }
        // SAFETY: within the mapping, as was checked, and the kernel does not read a chunk of this side.
        unsafe { self.base.as_ptr().add(address as usize).write_bytes(0, len) };
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nothing points into it. The kernel holds the pages for as long
        // as it uses them.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Free memory of a batch for a frame of so many bytes, if it has room for it.
pub(super) fn room_for(batch: &mut ReceiveBatch, len: usize) -> Option<Buf> {
    let mut memory = if len <= batch.room() { batch.take_free()? } else { return None };
    memory.truncate(len);
    Some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_chunks_that_the_kernel_takes() {
        assert_eq!(chunk_for(1518), (2048, false));
        assert_eq!(chunk_for(2048 - HEADROOM), (2048, false));
        assert_eq!(chunk_for(2176), (4096, false));
        assert_eq!(chunk_for(9018), (4096, true));
    }

    #[test]
    fn nothing_outside_of_the_memory_is_touched() {
        let memory = Memory::new(2, 2048).expect("memory");
        let bytes = [7; 10];
        for (address, is_within) in [(0, true), (4086, true), (4087, false), (u64::MAX, false), (u64::MAX - 9, false)] {
            // SAFETY: the bytes live until the call is over.
            assert_eq!(unsafe { memory.write(address, bytes.as_ptr(), bytes.len()) }, is_within, "{address}");
            assert_eq!(memory.read(address, &mut [0; 10]), is_within, "{address}");
            assert_eq!(memory.clear(address, 10), is_within, "{address}");
        }
        assert_eq!(memory.chunk_of(2300), 2048);
    }
}
