//! The parameter lists of EXTENDED COPY (SPC-4 6.4.3): CSCD descriptors, segment descriptors, no inline data.

use super::results::CopyRequest;
use crate::lu::Emulated;
use crate::peripheral::PeripheralType;
use crate::sense::{Asc, Sense};
use crate::spc::designator::{DesignatorHeader, naa_designator};

use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// MAXIMUM CSCD DESCRIPTOR COUNT: initiators send one or two.
pub const CSCDS_MAX: usize = 64;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT: enough for a fragmented file, and the list with its header fits a page of memory.
pub const SEGMENTS_MAX: usize = 64;
/// MAXIMUM DESCRIPTOR LIST LENGTH in bytes: all CSCD descriptors and all segment descriptors of the longest type.
pub const DESCRIPTORS_BYTES_MAX: usize = CSCDS_MAX * size_of::<Cscd>() + SEGMENTS_MAX * size_of::<ByteSegment>();
/// Bytes of the longest parameter list: the descriptors and the longer header.
pub const LIST_BYTES_MAX: usize = DESCRIPTORS_BYTES_MAX + size_of::<HeaderLid4>();
/// MAXIMUM SEGMENT LENGTH in bytes: the maximum transfer length, for which the timeouts of initiators suffice.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 20;

/// Identification descriptor CSCD descriptor (SPC-4 6.4.5.2).
pub const CSCD_IDENTIFICATION: u8 = 0xe4;
/// Block device to block device segment descriptor (SPC-4 6.4.6.6).
pub const SEGMENT_BLOCKS: u8 = 0x02;
/// Block device to block device segment descriptor with offsets in bytes (SPC-4 6.4.6.14).
pub const SEGMENT_BYTES: u8 = 0x0a;
/// The supported descriptor types in ascending order.
pub const DESCRIPTOR_TYPES: [u8; 3] = [SEGMENT_BLOCKS, SEGMENT_BYTES, CSCD_IDENTIFICATION];

/// The sense data of a list that is shorter than its length fields or longer than the limits.
const LENGTH: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// The header of EXTENDED COPY (LID1) (SPC-4 6.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderLid1 {
    id: u8,
    flags: u8,
    cscds: be::U16,
    reserved: [u8; 4],
    segments: be::U32,
    inline: be::U32,
}

/// The header of EXTENDED COPY (LID4) (SPC-4 6.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderLid4 {
    format: u8,
    flags: u8,
    header_cscds: be::U16,
    reserved: [u8; 11],
    /// IMMED, G_SENSE.
    answer: u8,
    header_cscd: u8,
    reserved2: [u8; 3],
    id: be::U32,
    reserved3: [u8; 18],
    cscds: be::U16,
    segments: be::U16,
    inline: be::U16,
}

/// PARAMETER LIST FORMAT of LID4.
const FORMAT: u8 = 0x01;
/// HEADER CSCD DESCRIPTOR LIST LENGTH and HEADER CSCD DESCRIPTOR TYPE CODE, which have one valid value each.
const HEADER_CSCDS: u16 = 0x20;
const HEADER_CSCD: u8 = 0xff;
/// LIST ID USAGE. STR and PRIORITY are hints that Lunar ignores.
const USAGE_BITS: u8 = 0x18;
const RESERVED_FLAGS: u8 = 0xc0;

/// A CSCD descriptor that identifies a logical unit by a designator (SPC-4 6.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cscd {
    kind: u8,
    /// LU ID TYPE and NUL, which are obsolete; PERIPHERAL DEVICE TYPE.
    device: u8,
    port: be::U16,
    designator: [u8; 24],
    /// PAD and reserved bits.
    flags: u8,
    /// DISK BLOCK LENGTH.
    block: [u8; 3],
}

impl Cscd {
    /// Offset of the designator, for field pointers.
    pub const DESIGNATOR_AT: usize = offset_of!(Self, designator);
    /// Offset of the device type, for field pointers.
    pub const DEVICE_AT: usize = offset_of!(Self, device);
    /// Offset of the block length, for field pointers.
    pub const BLOCK_AT: usize = offset_of!(Self, block);

    /// The descriptor of a logical unit.
    #[must_use]
    pub fn of(lu: &Emulated) -> Self {
        let [_, block @ ..] = lu.block_size().to_be_bytes();
        let designator = naa_designator(&lu.unit.identity);
        Self {
            kind: CSCD_IDENTIFICATION,
            device: PeripheralType::DISK.0,
            port: be::U16::ZERO,
            designator,
            flags: 0,
            block,
        }
    }

    /// PERIPHERAL DEVICE TYPE.
    #[must_use]
    pub fn device_type(&self) -> PeripheralType {
        PeripheralType(self.device & 0x1f)
    }

    /// DISK BLOCK LENGTH: bytes of a block, as the initiator assumes.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        let [high, middle, low] = self.block;
        u32::from_be_bytes([0, high, middle, low])
    }

    /// The designator; `None` if its length exceeds its field.
    pub(crate) fn designator(&self) -> Option<(&DesignatorHeader, &[u8])> {
        let (header, rest) = DesignatorHeader::ref_from_prefix(&self.designator).ok()?;
        Some((header, rest.get(..header.length.into())?))
    }
}

/// The segment descriptor with a number of blocks (SPC-4 6.4.6.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BlockSegment {
    kind: u8,
    /// DC, CAT.
    flags: u8,
    length: be::U16,
    source: be::U16,
    destination: be::U16,
    reserved: [u8; 2],
    count: be::U16,
    source_lba: be::U64,
    destination_lba: be::U64,
}

/// The segment descriptor with a number of bytes (SPC-4 6.4.6.14).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ByteSegment {
    kind: u8,
    /// CAT.
    flags: u8,
    length: be::U16,
    source: be::U16,
    destination: be::U16,
    count: be::U32,
    source_lba: be::U64,
    destination_lba: be::U64,
    source_offset: be::U16,
    destination_offset: be::U16,
}

/// DC: the number of blocks refers to blocks of the destination.
const DESTINATION_COUNTS: u8 = 0x02;

/// The length of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Blocks of the source.
    SourceBlocks(u16),
    /// Blocks of the destination.
    DestinationBlocks(u16),
    /// Bytes, at most [`SEGMENT_BYTES_MAX`].
    Bytes(u32),
}

/// One side of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Index of its CSCD descriptor.
    pub cscd: u16,
    /// Offset of that index in the segment descriptor, for field pointers.
    pub cscd_at: usize,
    /// First block.
    pub lba: u64,
    /// Offset of the LBA in the segment descriptor, for field pointers.
    pub lba_at: usize,
    /// Byte offset in that block.
    pub offset: u16,
}

/// A segment of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its length.
    pub amount: Amount,
    /// Offset of the length in the segment descriptor, for field pointers.
    pub amount_at: usize,
    /// Source.
    pub source: End,
    /// Destination.
    pub destination: End,
}

impl BlockSegment {
    fn meaning(&self) -> Segment {
        let count = self.count.get();
        let by_destination = self.flags & DESTINATION_COUNTS != 0;
        Segment {
            amount: if by_destination { Amount::DestinationBlocks(count) } else { Amount::SourceBlocks(count) },
            amount_at: offset_of!(Self, count),
            source: End {
                cscd: self.source.get(),
                cscd_at: offset_of!(Self, source),
                lba: self.source_lba.get(),
                lba_at: offset_of!(Self, source_lba),
                offset: 0,
            },
            destination: End {
                cscd: self.destination.get(),
                cscd_at: offset_of!(Self, destination),
                lba: self.destination_lba.get(),
                lba_at: offset_of!(Self, destination_lba),
                offset: 0,
            },
        }
    }
}

impl ByteSegment {
    fn meaning(&self) -> Segment {
        Segment {
            amount: Amount::Bytes(self.count.get()),
            amount_at: offset_of!(Self, count),
            source: End {
                cscd: self.source.get(),
                cscd_at: offset_of!(Self, source),
                lba: self.source_lba.get(),
                lba_at: offset_of!(Self, source_lba),
                offset: self.source_offset.get(),
            },
            destination: End {
                cscd: self.destination.get(),
                cscd_at: offset_of!(Self, destination),
                lba: self.destination_lba.get(),
                lba_at: offset_of!(Self, destination_lba),
                offset: self.destination_offset.get(),
            },
        }
    }
}

/// The parameter list of EXTENDED COPY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyList {
    /// The request, with its list identifier and LIST ID USAGE.
    pub request: CopyRequest,
    /// Bytes of the header, after which the first CSCD descriptor starts.
    pub header: usize,
    /// Copy sources and copy destinations.
    pub cscds: Vec<Cscd>,
    /// Segments, in the order of the copy.
    pub segments: Vec<Segment>,
}

/// The fields of both headers; lengths with their offsets, for field pointers.
struct Head {
    action: u8,
    id: u32,
    flags: u8,
    bytes: usize,
    cscds: (usize, usize),
    segments: (usize, usize),
    inline: (usize, usize),
}

impl CopyList {
    /// The list of EXTENDED COPY (LID1).
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, or the sense data of the first invalid field with a field pointer.
    pub fn lid1(list: &[u8], action: u8) -> Result<Self, Sense> {
        type Header = HeaderLid1;
        let (header, rest) = Header::ref_from_prefix(list).map_err(|_| LENGTH)?;
        let head = Head {
            action,
            id: header.id.into(),
            flags: header.flags,
            bytes: size_of::<Header>(),
            cscds: (header.cscds.get().into(), offset_of!(Header, cscds)),
            segments: (header.segments.get() as usize, offset_of!(Header, segments)),
            inline: (header.inline.get() as usize, offset_of!(Header, inline)),
        };
        Self::parse(&head, rest)
    }

    /// The list of EXTENDED COPY (LID4).
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, or the sense data of the first invalid field with a field pointer.
    pub fn lid4(list: &[u8], action: u8) -> Result<Self, Sense> {
        type Header = HeaderLid4;
        let (header, rest) = Header::ref_from_prefix(list).map_err(|_| LENGTH)?;
        let fixed = [
            (header.format == FORMAT, offset_of!(Header, format)),
            (header.header_cscds.get() == HEADER_CSCDS, offset_of!(Header, header_cscds)),
            // IMMED and G_SENSE are not supported: a copy ends before its status, and GOOD has no sense data.
            (header.answer == 0, offset_of!(Header, answer)),
            (header.header_cscd == HEADER_CSCD, offset_of!(Header, header_cscd)),
        ];
        if let Some((_, at)) = fixed.into_iter().find(|(is_right, _)| !is_right) {
            return Err(Sense::in_list(at));
        }
        let head = Head {
            action,
            id: header.id.get(),
            flags: header.flags,
            bytes: size_of::<Header>(),
            cscds: (header.cscds.get().into(), offset_of!(Header, cscds)),
            segments: (header.segments.get().into(), offset_of!(Header, segments)),
            inline: (header.inline.get().into(), offset_of!(Header, inline)),
        };
        Self::parse(&head, rest)
    }

    fn parse(head: &Head, rest: &[u8]) -> Result<Self, Sense> {
        let (id, keeps) = usage(head)?;
        let ((cscds, cscds_at), (segments, segments_at), (inline, inline_at)) =
            (head.cscds, head.segments, head.inline);
        if cscds.checked_add(segments).is_none_or(|bytes| bytes > DESCRIPTORS_BYTES_MAX) {
            return Err(LENGTH);
        }
        if inline > 0 {
            return Err(pointed(Asc::INLINE_DATA_LENGTH_EXCEEDED, inline_at));
        }
        if !cscds.is_multiple_of(size_of::<Cscd>()) {
            return Err(Sense::in_list(cscds_at));
        }
        if cscds / size_of::<Cscd>() > CSCDS_MAX {
            return Err(pointed(Asc::TOO_MANY_TARGET_DESCRIPTORS, cscds_at));
        }
        let (cscds, rest) = rest.split_at_checked(cscds).ok_or(LENGTH)?;
        let rest = rest.get(..segments).ok_or(LENGTH)?;
        let segments = parse_segments(rest, head.bytes + cscds.len(), segments_at)?;
        let cscds = parse_cscds(cscds, head.bytes)?;
        Ok(Self { request: CopyRequest { action: head.action, id, keeps }, header: head.bytes, cscds, segments })
    }
}

fn pointed(asc: Asc, at: usize) -> Sense {
    Sense::illegal(asc).at(crate::sense::Within::List, at)
}

/// The list identifier, and whether the result is kept (SPC-4 6.4.3.2).
fn usage(head: &Head) -> Result<(Option<u32>, bool), Sense> {
    const FLAGS_AT: usize = offset_of!(HeaderLid1, flags);
    if head.flags & RESERVED_FLAGS != 0 {
        return Err(Sense::bit_in_list(FLAGS_AT, 7));
    }
    match (head.flags & USAGE_BITS) >> 3 {
        0b00 => Ok((Some(head.id), true)),
        0b10 => Ok((Some(head.id), false)),
        0b11 if head.id == 0 => Ok((None, false)),
        0b11 => Err(Sense::in_list(if head.bytes == size_of::<HeaderLid1>() { 0 } else { offset_of!(HeaderLid4, id) })),
        _ => Err(Sense::bit_in_list(FLAGS_AT, 4)),
    }
}

fn parse_cscds(bytes: &[u8], at: usize) -> Result<Vec<Cscd>, Sense> {
    let cscds = <[Cscd]>::ref_from_bytes(bytes).map_err(|_| LENGTH)?;
    for (number, cscd) in cscds.iter().enumerate() {
        let at = at + number * size_of::<Cscd>();
        if cscd.kind != CSCD_IDENTIFICATION {
            return Err(pointed(Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE, at));
        }
        if cscd.designator().is_none() {
            return Err(Sense::in_list(at + Cscd::DESIGNATOR_AT + offset_of!(DesignatorHeader, length)));
        }
    }
    Ok(cscds.to_vec())
}

fn parse_segments(bytes: &[u8], at: usize, length_at: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while let Some(kind) = rest.first() {
        let at = at + bytes.len() - rest.len();
        if segments.len() == SEGMENTS_MAX {
            return Err(pointed(Asc::TOO_MANY_SEGMENT_DESCRIPTORS, length_at));
        }
        let (segment, length, after) = match *kind {
            SEGMENT_BLOCKS => {
                let (segment, after) = BlockSegment::ref_from_prefix(rest).map_err(|_| LENGTH)?;
                (segment.meaning(), segment.length.get(), after)
            }
            SEGMENT_BYTES => {
                let (segment, after) = ByteSegment::ref_from_prefix(rest).map_err(|_| LENGTH)?;
                (segment.meaning(), segment.length.get(), after)
            }
            _ => return Err(pointed(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE, at)),
        };
        // DESCRIPTOR LENGTH counts the bytes after it.
        if usize::from(length) + offset_of!(BlockSegment, source) != rest.len() - after.len() {
            return Err(Sense::in_list(at + offset_of!(BlockSegment, length)));
        }
        if matches!(segment.amount, Amount::Bytes(bytes) if bytes > SEGMENT_BYTES_MAX) {
            return Err(Sense::in_list(at + segment.amount_at));
        }
        segments.push(segment);
        rest = after;
    }
    Ok(segments)
}
