//! Memory that the kernel fills with frames (PACKET_RX_RING).
//!
//! Frames are copied into the memory of the core, so a slot is free again at once: a command that waits for its store
//! does not keep the kernel from receiving.

use super::super::batch::{Counters, Datagram, ReceiveBatch, VlanTag};
use super::super::datagram::{set, set_to};
use super::frame::HEADER;
use libc::{tpacket_req, tpacket_req3, tpacket2_hdr, tpacket3_hdr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a ring: some milliseconds of a fast link. Further frames are dropped and counted.
const RING: usize = 4 << 20;
/// Bytes of a block, which the kernel allocates as a whole.
const BLOCK: usize = 256 << 10;
/// Milliseconds after which a block that is not full is handed over: the shortest that the kernel knows.
const BLOCK_TIME: u32 = 1;
/// Bytes of a slot before the frame: the header of the slot and an address, aligned, with room for its alignment.
const SLOT_HEADER: usize = 96;
/// The number of slots that one call examines for each frame that there is room for: further slots hold frames that
/// are dropped.
const LOOKS_PER_FRAME: usize = 4;

/// How the kernel hands frames over through the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RingFormat {
    /// Each frame at once, in a slot of its own (TPACKET_V2).
    #[default]
    Frames,
    /// In blocks of many frames, when a block is full, or after a millisecond (TPACKET_V3). This costs the kernel less
    /// work for each frame and adds up to two milliseconds to the latency of a single frame.
    Blocks,
}

/// A mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// Bytes of a slot, or of a block.
    part: usize,
    /// Slots or blocks.
    count: usize,
    /// The next slot or block.
    at: usize,
    blocks: Option<Block>,
}

/// The position in the current block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The number of frames left; 0: the block belongs to the kernel, or was not examined.
    left: u32,
    /// The offset of the next frame in the block.
    next: usize,
}

// SAFETY: this value alone owns the mapping.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a packet socket for frames of this payload.
    pub(super) fn new(fd: &OwnedFd, format: RingFormat, mtu: usize) -> io::Result<Self> {
        let (part, blocks) = match format {
            RingFormat::Frames => {
                set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
                // A power of two, so that whole slots fill a block.
                let slot = (SLOT_HEADER + HEADER + 4 + mtu).next_power_of_two();
                let block = BLOCK.max(slot);
                let request = tpacket_req {
                    tp_block_size: block as u32,
                    tp_block_nr: (RING / block).max(2) as u32,
                    tp_frame_size: slot as u32,
                    tp_frame_nr: ((RING / block).max(2) * (block / slot)) as u32,
                };
                set_to(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
                (slot, None)
            }
            RingFormat::Blocks => {
                set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V3 as i32)?;
                // A block holds some frames of any size.
                let block = BLOCK.max((4 * (SLOT_HEADER + HEADER + 4 + mtu)).next_power_of_two());
                let request = tpacket_req3 {
                    tp_block_size: block as u32,
                    tp_block_nr: (RING / block).max(2) as u32,
                    // The kernel packs frames of any size; these two only have to fit together.
                    tp_frame_size: 2048,
                    tp_frame_nr: ((RING / block).max(2) * (block / 2048)) as u32,
                    tp_retire_blk_tov: BLOCK_TIME,
                    tp_sizeof_priv: 0,
                    tp_feature_req_word: 0,
                };
                set_to(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
                (block, Some(Block::default()))
            }
        };
        let block = BLOCK.max(part);
        let len = (RING / block).max(2) * block;
        let (protection, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe { mmap(null, len, protection, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, part, count: len / part, at: 0, blocks })
    }

    /// Copies the frames that have arrived into the batch; returns how many.
    pub(super) fn receive(&mut self, batch: &mut ReceiveBatch, counters: &mut Counters) -> usize {
        let mut taken = 0;
        let mut looks = batch.free() * LOOKS_PER_FRAME;
        while batch.free() > 0 && looks > 0 {
            looks -= 1;
            let Some(frame) = self.next() else { break };
            match frame.copy(batch) {
                Some(datagram) => {
                    batch.push(datagram);
                    taken += 1;
                }
                None => counters.receive_drops += 1,
            }
            self.release();
        }
        taken
    }

    /// The status word at `offset` of the current slot or block, which the kernel writes as well.
    fn status(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, because `at` < `count` and `offset` lies in the header of a slot or block;
        // aligned, because both are; and all accesses to these words are atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(self.at * self.part + offset).cast()) }
    }

    /// The next frame, if the kernel has handed one over.
    fn next(&mut self) -> Option<Frame> {
        let Some(block) = self.blocks else {
            let status = self.status(std::mem::offset_of!(tpacket2_hdr, tp_status)).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                return None;
            }
            // SAFETY: the slot belongs to this side now, and begins with such a header.
            let header = unsafe { self.base.as_ptr().add(self.at * self.part).cast::<tpacket2_hdr>().read() };
            return Some(Frame {
                base: self.base.as_ptr().wrapping_add(self.at * self.part),
                room: self.part,
                status,
                begin: header.tp_mac.into(),
                len: header.tp_len,
                copied: header.tp_snaplen,
                vlan: (header.tp_vlan_tpid, header.tp_vlan_tci),
            });
        };
        let block = if block.left > 0 { block } else { self.open_block()? };
        self.blocks = Some(block);
        let base = self.base.as_ptr().wrapping_add(self.at * self.part);
        let room = self.part.checked_sub(block.next).filter(|room| *room >= size_of::<tpacket3_hdr>());
        let base = base.wrapping_add(block.next);
        // SAFETY: the block belongs to this side now; the header lies within it, as was checked, and is copied byte by
        // byte.
        let header = room.map(|_| unsafe { base.cast::<tpacket3_hdr>().read_unaligned() });
        Some(Frame {
            base,
            room: room.unwrap_or(0),
            status: header.map_or(0, |header| header.tp_status),
            begin: header.map_or(0, |header| header.tp_mac.into()),
            len: header.map_or(0, |header| header.tp_len),
            copied: header.map_or(u32::MAX, |header| header.tp_snaplen),
            vlan: header.map_or((0, 0), |header| (header.hv1.tp_vlan_tpid, header.hv1.tp_vlan_tci as u16)),
        })
    }

    /// The current block, if the kernel has handed it over and it has frames.
    fn open_block(&mut self) -> Option<Block> {
        for _ in 0..self.count {
            if self.status(BLOCK_STATUS).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return None;
            }
            let left = self.status(BLOCK_STATUS + 4).load(Ordering::Relaxed);
            let next = self.status(BLOCK_STATUS + 8).load(Ordering::Relaxed) as usize;
            if left > 0 {
                return Some(Block { left, next });
            }
            self.give_back(BLOCK_STATUS);
        }
        None
    }

    /// Returns the slot of the current frame to the kernel, or its block when all of its frames were read.
    fn release(&mut self) {
        let Some(mut block) = self.blocks else { return self.give_back(0) };
        block.left = block.left.saturating_sub(1);
        let base = self.base.as_ptr().wrapping_add(self.at * self.part);
        if block.left > 0 && block.next + size_of::<tpacket3_hdr>() <= self.part {
            // SAFETY: within the block, as was checked; the offset is the first member of the header.
            let offset = unsafe { base.add(block.next).cast::<u32>().read_unaligned() };
            block.next = block.next.saturating_add(offset as usize);
            self.blocks = Some(block);
        } else {
            self.blocks = Some(Block::default());
            self.give_back(BLOCK_STATUS);
        }
    }

    fn give_back(&mut self, offset: usize) {
        self.status(offset).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.at = (self.at + 1) % self.count;
    }
}

/// The offset of the status of a block: after its version and the offset of private data. The number of frames and the
/// offset of the first follow it (`struct tpacket_block_desc` of linux/if_packet.h).
const BLOCK_STATUS: usize = 8;

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nothing points into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.count * self.part) };
    }
}

/// A frame in the ring, as its header describes it.
struct Frame {
    base: *mut u8,
    /// Bytes from `base` to the end of the slot or block.
    room: usize,
    status: u32,
    begin: usize,
    len: u32,
    copied: u32,
    vlan: (u16, u16),
}

impl Frame {
    /// Copies the frame into free memory of the batch; `None` if it is too long for that, or for the ring.
    fn copy(&self, batch: &mut ReceiveBatch) -> Option<Datagram> {
        let len = self.copied as usize;
        let is_whole = self.len == self.copied && self.begin.checked_add(len).is_some_and(|end| end <= self.room);
        if !is_whole || len < HEADER || len > batch.room() {
            return None;
        }
        let mut memory = batch.take_free()?;
        // SAFETY: `len` bytes from `begin` on lie within the slot or block, which is this side's until it is released;
        // the memory is the batch's, has at least as many, and does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(self.begin), memory.as_mut_ptr(), len) };
        memory.truncate(len);
        let (protocol, control) = self.vlan;
        let vlan = (self.status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag {
            protocol: if self.status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { protocol } else { VlanTag::C_VLAN },
            control,
        });
        Some(Datagram { data: memory.share().into(), vlan, ..Datagram::default() })
    }
}
