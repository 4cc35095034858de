//! The parameter lists of POPULATE TOKEN and WRITE USING TOKEN (SBC-3 5.7, 5.46), and where the data goes.

use super::results::Ask;
use super::tokens::{ACCESS_UPON_REFERENCE, Data, INACTIVITY_DEFAULT, INACTIVITY_MAX, RANGES_MAX, Token};
use crate::cmd::block::within;
use crate::lu::LogicalUnit;
use crate::sense::{Asc, Sense, SenseKey, Within};
use lunar_core::unit::UnitId;
use lunar_core::wire::be;
use std::mem::offset_of;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// MAXIMUM TOKEN TRANSFER SIZE in bytes. Windows gives a command four seconds before it moves the data itself: in these
/// any disk copies so much.
pub const TOKEN_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the longer of both parameter lists, and of one range more: so it is seen what there is too much of.
pub const LIST_BYTES_MAX: usize = size_of::<WriteHeader>() + (RANGES_MAX + 1) * size_of::<Range>();

const LENGTH: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

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

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Range {
    lba: be::U64,
    count: be::U32,
    reserved: [u8; 4],
}

/// IMMED asks for an answer before the end. It comes at the end, which is early for those who then ask how far it is.
const IMMED: u8 = 0x01;
/// RTV: the ROD TYPE counts.
const TYPE_VALID: u8 = 0x02;
/// DEL_TKN: the token is used up.
const DELETE: u8 = 0x02;

/// What POPULATE TOKEN asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Populate {
    /// Bytes of the disk: where, and how many.
    pub ranges: Vec<(u64, u64)>,
    /// How long the token lives unused.
    pub inactivity: Duration,
}

impl Populate {
    /// Takes the list apart.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(list: &[u8], lu: &LogicalUnit) -> Result<Self, Sense> {
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

/// What WRITE USING TOKEN asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The token.
    pub token: Box<Token>,
    /// Whether it is used up.
    pub deletes: bool,
    /// Bytes of what it stands for that are left out.
    pub offset: u64,
    /// Bytes of the disk: where, and how many.
    pub ranges: Vec<(u64, u64)>,
}

impl Write {
    /// Where the token is in the list, for field pointers.
    pub const TOKEN_AT: usize = offset_of!(WriteHeader, token);

    /// Takes the list apart.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(list: &[u8], lu: &LogicalUnit) -> Result<Self, Sense> {
        type Header = WriteHeader;
        let (header, rest) = Header::ref_from_prefix(list).map_err(|_| LENGTH)?;
        check_length(header.data_length, list)?;
        check_flags(header.flags, IMMED | DELETE)?;
        let offset = header.offset.get().checked_mul(lu.block_size().into());
        let offset = offset.ok_or(Sense::in_list(offset_of!(Header, offset)))?;
        let ranges = ranges(header.ranges, offset_of!(Header, ranges), rest, lu)?;
        Ok(Self { token: Box::new(header.token), deletes: header.flags & DELETE != 0, offset, ranges })
    }

    /// The parts to copy or, of no data, to zero.
    ///
    /// # Errors
    /// An offset past the data; COPY TARGET DEVICE DATA UNDERRUN when the token stands for less than is asked for.
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

/// A part of what is written: from where (zeroes, if from nowhere), to where, and how much, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The disk that is copied from, and where.
    pub from: Option<(UnitId, u64)>,
    /// Where it is written.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A write from a token, as it is carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Writing {
    /// Who asks.
    pub ask: Ask,
    /// The token that is used up by it, if it is.
    pub deletes: Option<Box<Token>>,
    /// What is written.
    pub parts: Vec<Part>,
}

/// The length in the list counts what follows it.
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

/// The ranges as bytes of the disk; those of no blocks left out. None may be named twice.
fn ranges(length: be::U16, length_at: usize, rest: &[u8], lu: &LogicalUnit) -> Result<Vec<(u64, u64)>, Sense> {
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
