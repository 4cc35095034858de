//! Chains of descriptors: the memory of one request.

use crate::config::CHAIN_MAX;
use lunar_core::wire::le;
use lunar_guest::Range;
use lunar_guest::memory::Memory;
use lunar_guest::scatter::ScatterList;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flags of a descriptor: the chain continues.
pub const NEXT: u16 = 1;
/// Flags of a descriptor: the device writes to its memory.
pub const WRITE: u16 = 2;
/// Flags of a descriptor: its memory is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// Why a ring cannot be served any more. Only a defective or hostile guest causes this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A part of the ring is not in guest memory, not aligned, or read-only.
    Unreachable,
    /// A size that such a ring cannot have.
    Size,
    /// More is available or in progress than the ring has entries.
    Index,
    /// A descriptor that the ring or the table does not have.
    Descriptor,
    /// More descriptors than a chain may have: mostly a loop.
    Long,
    /// Memory that the device reads follows memory that it writes.
    Order,
    /// A table of descriptors that is empty, not whole, not in guest memory, or refers to another table.
    Table,
    /// A request without room for its header or its status.
    Short,
}

/// A descriptor, as it was copied from guest memory (virtio 1.3 2.7.5 and 2.8.13). In a split ring the last two fields
/// are flags and next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    /// Guest address.
    pub address: le::U64,
    /// Bytes.
    pub len: le::U32,
    /// Split: flags. Packed: the identifier of the buffer.
    pub third: le::U16,
    /// Split: the next descriptor. Packed: flags.
    pub fourth: le::U16,
}

/// Bytes of a descriptor.
pub const DESCRIPTOR_LEN: usize = size_of::<Descriptor>();

/// The memory of one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// Its identifier in the ring: the head of a split ring, the buffer of a packed one.
    pub id: u16,
    /// Entries of the ring that it occupies, for a packed ring.
    pub entries: u16,
    /// Memory that the device reads.
    pub readable: ScatterList,
    /// Its bytes.
    pub readable_len: u64,
    /// Memory that the device writes.
    pub writable: ScatterList,
    /// Its bytes.
    pub writable_len: u64,
    /// Whether it was taken by a process before this one, which did not answer it.
    pub is_repeated: bool,
    pub(super) descriptors: usize,
}

impl Chain {
    /// An empty chain.
    #[must_use]
    pub fn new(id: u16) -> Self {
        Self { id, ..Self::default() }
    }

    /// Descriptors that were read for it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Appends the memory of a descriptor.
    #[inline]
    pub(super) fn push(&mut self, address: u64, len: u32, is_written: bool) -> Result<(), Broken> {
        self.descriptors += 1;
        if self.descriptors > CHAIN_MAX {
            return Err(Broken::Long);
        }
        let range = Range { address, len: len.into() };
        if is_written {
            self.writable.push(range);
            self.writable_len += range.len;
        } else if self.writable_len > 0 {
            return Err(Broken::Order);
        } else {
            self.readable.push(range);
            self.readable_len += range.len;
        }
        Ok(())
    }
}

/// Entries of its ring that a chain keeps from other chains; `entries`: those of a packed ring. In a split ring it is
/// one of the available ring.
#[inline]
pub(super) fn occupied(entries: u16) -> u32 {
    entries.max(1).into()
}

/// A table of descriptors in guest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    address: u64,
    /// Descriptors.
    pub(super) count: u32,
}

impl Table {
    /// The table to which a descriptor refers.
    pub(super) fn new(address: u64, len: u32) -> Result<Self, Broken> {
        let count = len / DESCRIPTOR_LEN as u32;
        let is_whole = len.is_multiple_of(DESCRIPTOR_LEN as u32) && count > 0;
        if is_whole { Ok(Self { address, count }) } else { Err(Broken::Table) }
    }

    /// Copies a descriptor.
    #[inline]
    pub(super) fn get(self, memory: &Memory, at: u32) -> Result<Descriptor, Broken> {
        let mut bytes = [0; DESCRIPTOR_LEN];
        let offset = u64::from(at) * DESCRIPTOR_LEN as u64;
        let address = self.address.checked_add(offset).filter(|_| at < self.count).ok_or(Broken::Descriptor)?;
        if !memory.read(address, &mut bytes) {
            return Err(Broken::Table);
        }
        Descriptor::read_from_bytes(&bytes).map_err(|_| Broken::Table)
    }
}
