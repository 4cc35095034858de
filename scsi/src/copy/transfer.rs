//! The parameter lists of POPULATE TOKEN and WRITE USING TOKEN (SBC-3 5.7, 5.46).

use super::results::CopyRequest;
use super::tokens::{ACCESS_UPON_REFERENCE, Data, INACTIVITY_DEFAULT, INACTIVITY_MAX, RANGES_MAX, Token};
use crate::lu::Emulated;
use crate::sbc::block_range::within;
use crate::sense::{Asc, Sense, SenseKey, Within};
use lunar_core::unit::UnitId;
use lunar_core::wire::be;
use std::mem::offset_of;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// MAXIMUM TOKEN TRANSFER SIZE in bytes. Windows waits four seconds for a command before it copies without tokens;
/// every disk copies this much in that time.
pub const TOKEN_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the longer parameter list with one range more than the limit, so that an additional range is seen and
/// reported.
pub const LIST_BYTES_MAX: usize = size_of::<WriteHeader>() + (RANGES_MAX + 1) * size_of::<Range>();

const LENGTH: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// The header of the parameter list of POPULATE TOKEN (SBC-3 5.7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PopulateHeader {
    data_length: be::U16,
    /// RTV, IMMED.
    flags: u8,
    reserved: u8,
    inactivity: be::U32,
    kind: be::U32,
    reserved2: [u8; 2],
    ranges: be::U16,
}

/// The header of the parameter list of WRITE USING TOKEN (SBC-3 5.46).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WriteHeader {
    data_length: be::U16,
    /// DEL_TKN, IMMED.
    flags: u8,
    reserved: [u8; 5],
    /// OFFSET INTO ROD, in blocks.
    offset: be::U64,
    token: Token,
    reserved2: [u8; 6],
    ranges: be::U16,
}

/// A block device range descriptor of both (SBC-3 5.7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Range {
    lba: be::U64,
    count: be::U32,
    reserved: [u8; 4],
}

/// IMMED: the status may be returned before the end of the copy. Lunar returns it at the end.
const IMMED: u8 = 0x01;
/// RTV: ROD TYPE is valid.
const TYPE_VALID: u8 = 0x02;
/// DEL_TKN: the token is deleted after use.
const DELETE: u8 = 0x02;

/// The parameter list of POPULATE TOKEN.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Populate {
    /// Offsets and lengths in bytes of the disk.
    pub ranges: Vec<(u64, u64)>,
    /// INACTIVITY TIMEOUT of the token.
    pub inactivity: Duration,
}

impl Populate {
    /// Parses the list.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, or the sense data of the first invalid field with a field pointer.
    pub fn parse(list: &[u8], lu: &Emulated) -> Result<Self, Sense> {
        type Header = PopulateHeader;
        let (header, rest) = Header::ref_from_prefix(list).map_err(|_| LENGTH)?;
        check_length(header.data_length, list)?;
        check_flags(header.flags, IMMED | TYPE_VALID)?;
        if header.flags & TYPE_VALID != 0 && header.kind.get() != ACCESS_UPON_REFERENCE {
            return Err(Sense::illegal(Asc::UNSUPPORTED_TOKEN_TYPE).at(Within::List, offset_of!(Header, kind)));
        }
        let inactivity = match header.inactivity.get() {
            0 => INACTIVITY_DEFAULT,
            seconds if seconds > INACTIVITY_MAX => return Err(Sense::in_list(offset_of!(Header, inactivity))),
            seconds => seconds,
        };
        let ranges = ranges(header.ranges, offset_of!(Header, ranges), rest, lu)?;
        Ok(Self { ranges, inactivity: Duration::from_secs(inactivity.into()) })
    }
}

/// The parameter list of WRITE USING TOKEN.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The token.
    pub token: Box<Token>,
    /// Whether the token is deleted after use.
    pub deletes: bool,
    /// Bytes to skip at the start of the token's data.
    pub offset: u64,
    /// Offsets and lengths in bytes of the disk.
    pub ranges: Vec<(u64, u64)>,
}

impl Write {
    /// Offset of the token in the list, for field pointers.
    pub const TOKEN_AT: usize = offset_of!(WriteHeader, token);

    /// Parses the list.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, or the sense data of the first invalid field with a field pointer.
    pub fn parse(list: &[u8], lu: &Emulated) -> Result<Self, Sense> {
        type Header = WriteHeader;
        let (header, rest) = Header::ref_from_prefix(list).map_err(|_| LENGTH)?;
        check_length(header.data_length, list)?;
        check_flags(header.flags, IMMED | DELETE)?;
        let offset = header.offset.get().checked_mul(lu.block_size().into());
        let offset = offset.ok_or(Sense::in_list(offset_of!(Header, offset)))?;
        let ranges = ranges(header.ranges, offset_of!(Header, ranges), rest, lu)?;
        Ok(Self { token: Box::new(header.token), deletes: header.flags & DELETE != 0, offset, ranges })
    }

    /// The parts to copy; parts to zero if there is no data.
    ///
    /// # Errors
    /// INVALID FIELD IN PARAMETER LIST for an offset beyond the data; COPY TARGET DEVICE DATA UNDERRUN when the token
    /// represents less data than the ranges need.
    pub fn parts(&self, data: Option<&Data>) -> Result<Vec<Part>, Sense> {
        let Some(data) = data else {
            return Ok(self
                .ranges
                .iter()
                .map(|(offset, len)| Part { from: None, offset: *offset, len: *len })
                .collect());
        };
        if self.offset >= data.bytes() {
            return Err(Sense::in_list(offset_of!(WriteHeader, offset)));
        }
        let mut skipped = self.offset;
        let mut sources = data.ranges.iter().filter_map(|(at, len)| {
            let skip = skipped.min(*len);
            skipped -= skip;
            (*len > skip).then_some((at + skip, len - skip))
        });
        let mut source = (0, 0);
        let mut parts = Vec::new();
        for (offset, len) in &self.ranges {
            let mut done = 0;
            while done < *len {
                if source.1 == 0 {
                    const UNDERRUN: Sense = Sense::new(SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_DATA_UNDERRUN);
                    source = sources.next().ok_or(UNDERRUN)?;
                }
                let count = source.1.min(len - done);
                parts.push(Part { from: Some((data.unit, source.0)), offset: offset + done, len: count });
                source = (source.0 + count, source.1 - count);
                done += count;
            }
        }
        Ok(parts)
    }
}

/// A contiguous part of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Source unit and byte offset; `None` for zeroes.
    pub from: Option<(UnitId, u64)>,
    /// Byte offset at the destination.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A WRITE USING TOKEN in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenWrite {
    /// The request.
    pub request: CopyRequest,
    /// The token to delete at the end, if any.
    pub deletes: Option<Box<Token>>,
    /// Parts to write.
    pub parts: Vec<Part>,
}

/// Checks the length field of a list, which counts the bytes after it.
fn check_length(length: be::U16, list: &[u8]) -> Result<(), Sense> {
    if usize::from(length.get()) + size_of::<be::U16>() > list.len() { Err(LENGTH) } else { Ok(()) }
}

fn check_flags(flags: u8, known: u8) -> Result<(), Sense> {
    const FLAGS_AT: usize = offset_of!(PopulateHeader, flags);
    match (flags & !known).checked_ilog2() {
        Some(bit) => Err(Sense::bit_in_list(FLAGS_AT, bit as u8)),
        None => Ok(()),
    }
}

/// The ranges in bytes of the disk, without empty ones. Ranges must not overlap.
fn ranges(length: be::U16, length_at: usize, rest: &[u8], lu: &Emulated) -> Result<Vec<(u64, u64)>, Sense> {
    let length = usize::from(length.get());
    if length == 0 || !length.is_multiple_of(size_of::<Range>()) {
        return Err(Sense::in_list(length_at));
    }
    let descriptors = rest.get(..length).ok_or(LENGTH)?;
    let descriptors = <[Range]>::ref_from_bytes(descriptors).map_err(|_| LENGTH)?;
    if descriptors.len() > RANGES_MAX {
        return Err(Sense::illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS).at(Within::List, length_at));
    }
    let mut ranges = Vec::new();
    let mut total = 0;
    for (number, range) in descriptors.iter().enumerate() {
        let bytes = within(lu, range.lba.get(), range.count.get().into())?;
        let at = length_at + size_of::<be::U16>() + number * size_of::<Range>();
        let is_again = |(offset, len): &(u64, u64)| bytes.offset < offset + len && *offset < bytes.offset + bytes.len;
        if ranges.iter().any(is_again) {
            return Err(Sense::in_list(at + offset_of!(Range, lba)));
        }
        total += bytes.len;
        if total > TOKEN_BYTES_MAX {
            return Err(Sense::in_list(at + offset_of!(Range, count)));
        }
        if bytes.len > 0 {
            ranges.push((bytes.offset, bytes.len));
        }
    }
    Ok(ranges)
}
