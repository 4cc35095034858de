//! virtio-blk (virtio 1.3, 5.2): requests, and the configuration space.

use crate::bytes;
use crate::ring::{Broken, Chain};
use lunar_blk::limits::{DISCARD_RANGES_MAX, TRANSFER_BYTES_MAX};
use lunar_blk::{ByteRange, Code, Error, Limits};
use lunar_core::codes;
use lunar_core::wire::le;
use lunar_guest::memory::Memory;
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Features of the device.
pub mod feature {
    /// `size_max` is valid.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device is read-only.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The device has a write cache, and flushes it.
    pub const FLUSH: u64 = 1 << 9;
    /// The topology is valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver switches the write cache.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There are several rings.
    pub const MQ: u64 = 1 << 12;
    /// The device discards.
    pub const DISCARD: u64 = 1 << 13;
    /// The device writes zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

codes! {
    /// The type of a request.
    pub struct Type(u32) {
        IN = 0, OUT = 1, FLUSH = 4, GET_ID = 8, DISCARD = 11, WRITE_ZEROES = 13,
    }
}

codes! {
    /// The status of a request.
    pub struct Status(u8) {
        OK = 0, IOERR = 1, UNSUPP = 2,
    }
}

impl From<Error> for Status {
    fn from(why: Error) -> Self {
        match why {
            Error::Unsupported => Self::UNSUPP,
            Error::IoError | Error::ReadOnly | Error::NoSpace | Error::Conflict | Error::NotReady | Error::Invalid => {
                Self::IOERR
            }
        }
    }
}

/// Bytes of a sector: the unit of all addresses and lengths.
pub const SECTOR: u64 = 512;
/// Segments of a request: header, data and status fit into a ring of the usual 128 entries without indirect
/// descriptors.
pub const SEGMENTS_MAX: u32 = 126;
/// Bytes of a segment: all of a request together are no more than the block command set moves.
pub const SEGMENT_BYTES_MAX: u32 = (TRANSFER_BYTES_MAX / SEGMENTS_MAX as u64 / 4096 * 4096) as u32;
/// Bytes that GET_ID returns.
pub const ID_LEN: usize = 20;
/// Bytes that GET_ID returns to a driver with room for them: those of [`ID_LEN`], which the serial number may exceed,
/// and then the UUID of the volume. Drivers that follow the standard offer room for [`ID_LEN`].
pub const IDENTITY_LEN: usize = ID_LEN + 16;
/// Flags of a range: the space may be deallocated.
pub const UNMAP: u32 = 1;

/// The header of a request (virtio 1.3 5.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// A [`Type`].
    pub kind: le::U32,
    /// Unused.
    pub priority: le::U32,
    /// The first sector.
    pub sector: le::U64,
}

/// Bytes of the header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// A range of DISCARD or WRITE_ZEROES (virtio 1.3 5.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Segment {
    /// The first sector.
    pub sector: le::U64,
    /// Sectors.
    pub sectors: le::U32,
    /// Bit 0 of WRITE_ZEROES: the space may be deallocated.
    pub flags: le::U32,
}

/// The configuration space (virtio 1.3 5.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConfigSpace {
    /// Sectors.
    pub capacity: le::U64,
    /// Bytes of a segment at most.
    pub size_max: le::U32,
    /// Segments of a request at most.
    pub seg_max: le::U32,
    /// Cylinders, heads, sectors: not used.
    pub geometry: [u8; 4],
    /// Bytes of a logical block.
    pub blk_size: le::U32,
    /// Logical blocks of a physical block, as a power of two.
    pub physical_block_exponent: u8,
    /// Offset of the first aligned logical block.
    pub alignment_offset: u8,
    /// Logical blocks of the smallest efficient transfer.
    pub min_io_size: le::U16,
    /// Logical blocks of the optimal transfer.
    pub opt_io_size: le::U32,
    /// Whether the write cache is on.
    pub writeback: u8,
    /// Unused.
    pub unused0: u8,
    /// Rings.
    pub num_queues: le::U16,
    /// Sectors of one range of a discard at most.
    pub max_discard_sectors: le::U32,
    /// Ranges of a discard at most.
    pub max_discard_seg: le::U32,
    /// Sectors on which discards are aligned.
    pub discard_sector_alignment: le::U32,
    /// Sectors of one range of a write of zeroes at most.
    pub max_write_zeroes_sectors: le::U32,
    /// Ranges of a write of zeroes at most.
    pub max_write_zeroes_seg: le::U32,
    /// Whether a write of zeroes may deallocate.
    pub write_zeroes_may_unmap: u8,
    /// Unused.
    pub unused1: [u8; 3],
    /// Secure erase and zones: not supported.
    pub unsupported: [u8; 36],
}

/// Offset of the switch of the write cache in the configuration space: the only byte that a driver may write.
pub const WRITEBACK_AT: usize = 32;

/// The features of a unit with these limits, for a device with this number of rings.
#[must_use]
pub fn features(limits: &Limits, rings: usize) -> u64 {
    let when = |is_offered: bool, feature: u64| if is_offered { feature } else { 0 };
    feature::SIZE_MAX
        | feature::SEG_MAX
        | feature::BLK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::CONFIG_WCE
        | when(limits.read_only, feature::RO)
        | when(rings > 1, feature::MQ)
        | when(limits.discard_bytes_max > 0 && !limits.read_only, feature::DISCARD)
        | when(!limits.read_only, feature::WRITE_ZEROES)
}

/// The configuration space of a unit with these limits, for a device with this number of rings.
#[must_use]
pub fn config_space(limits: &Limits, rings: usize, caches_writes: bool) -> ConfigSpace {
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX).into();
    let blocks = |bytes: u32| bytes / limits.block_size;
    let exponent = blocks(limits.physical_block_size).max(1).ilog2();
    ConfigSpace {
        capacity: (limits.capacity / SECTOR).into(),
        size_max: SEGMENT_BYTES_MAX.into(),
        seg_max: SEGMENTS_MAX.into(),
        geometry: [0; 4],
        blk_size: limits.block_size.into(),
        // A physical block has far fewer than 2^256 logical ones.
        physical_block_exponent: exponent as u8,
        alignment_offset: 0,
        min_io_size: 1.into(),
        opt_io_size: blocks(limits.optimal_io_size).into(),
        writeback: caches_writes.into(),
        unused0: 0,
        num_queues: u16::try_from(rings).unwrap_or(u16::MAX).into(),
        max_discard_sectors: sectors(limits.discard_bytes_max),
        max_discard_seg: (DISCARD_RANGES_MAX as u32).into(),
        discard_sector_alignment: sectors(limits.discard_granularity.into()),
        max_write_zeroes_sectors: sectors(limits.write_zeroes_bytes_max),
        max_write_zeroes_seg: 1.into(),
        write_zeroes_may_unmap: limits.write_zeroes_may_unmap.into(),
        unused1: [0; 3],
        unsupported: [0; 36],
    }
}

/// The ranges of a request. All but discards have at most one.
pub type Ranges = SmallVec<[ByteRange; 1]>;

/// A request that goes to the block command set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRequest {
    /// The command.
    pub code: Code,
    /// Its bytes of the unit.
    pub ranges: Ranges,
    /// Whether a write of zeroes may deallocate.
    pub unmap: bool,
    /// Bytes that the driver receives with success, before the status.
    pub returned: u64,
}

/// A request that was taken from a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// It goes to the block command set.
    Block(BlockRequest),
    /// It is answered with this status.
    Refused(Status),
}

/// Takes a request apart. Its header is copied once.
///
/// # Errors
/// [`Broken::Short`] without header or without room for the status: the ring ends.
pub fn parse(memory: &Memory, chain: &Chain) -> Result<Parsed, Broken> {
    let mut header = [0; HEADER_LEN];
    if chain.writable_len == 0 || !bytes::read(memory, &chain.readable, 0, &mut header) {
        return Err(Broken::Short);
    }
    let header = Header::read_from_bytes(&header).map_err(|_| Broken::Short)?;
    let (sent, room) = (chain.readable_len - HEADER_LEN as u64, chain.writable_len - 1);
    let data = |code, len, returned| match header.sector.get().checked_mul(SECTOR) {
        Some(offset) => block(code, [ByteRange { offset, len }].into(), returned),
        None => Parsed::Refused(Status::IOERR),
    };
    Ok(match Type(header.kind.get()) {
        Type::IN => data(Code::Read, room, room),
        Type::OUT => data(Code::Write, sent, 0),
        Type::FLUSH => block(Code::Flush, Ranges::new(), 0),
        Type::GET_ID => block(Code::Identify, Ranges::new(), identity_len(room)),
        Type::DISCARD => segments(memory, chain, sent, Code::Discard),
        Type::WRITE_ZEROES => segments(memory, chain, sent, Code::WriteZeroes),
        _ => Parsed::Refused(Status::UNSUPP),
    })
}

/// Bytes that GET_ID returns to a driver with so much room.
fn identity_len(room: u64) -> u64 {
    let whole = IDENTITY_LEN as u64;
    if room >= whole { whole } else { room.min(ID_LEN as u64) }
}

fn block(code: Code, ranges: Ranges, returned: u64) -> Parsed {
    Parsed::Block(BlockRequest { code, ranges, unmap: false, returned })
}

fn segments(memory: &Memory, chain: &Chain, sent: u64, code: Code) -> Parsed {
    let count = sent / size_of::<Segment>() as u64;
    let most = if code == Code::Discard { DISCARD_RANGES_MAX as u64 } else { 1 };
    if !sent.is_multiple_of(size_of::<Segment>() as u64) || !(1..=most).contains(&count) {
        return Parsed::Refused(Status::IOERR);
    }
    let (mut ranges, mut unmap) = (Ranges::new(), false);
    for at in 0..count {
        let mut bytes = [0; size_of::<Segment>()];
        let offset = HEADER_LEN as u64 + at * size_of::<Segment>() as u64;
        if !bytes::read(memory, &chain.readable, offset, &mut bytes) {
            return Parsed::Refused(Status::IOERR);
        }
        let Ok(segment) = Segment::read_from_bytes(&bytes) else { return Parsed::Refused(Status::IOERR) };
        let flags = segment.flags.get();
        let allowed = if code == Code::WriteZeroes { UNMAP } else { 0 };
        if flags & !allowed != 0 {
            return Parsed::Refused(Status::UNSUPP);
        }
        unmap = flags & UNMAP != 0;
        let Some(offset) = segment.sector.get().checked_mul(SECTOR) else { return Parsed::Refused(Status::IOERR) };
        ranges.push(ByteRange { offset, len: u64::from(segment.sectors.get()) * SECTOR });
    }
    Parsed::Block(BlockRequest { code, ranges, unmap, returned: 0 })
}

#[cfg(test)]
#[path = "blk_tests.rs"]
mod tests;
