//! The CDBs that a load generator needs (SBC-5, SSC-5, SPC-6), READ CAPACITY (16) data and sense data.

use lunar_core::wire::be::{U16, U32, U64};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A command descriptor block of at most 16 bytes. Its actual length follows from the operation code.
pub type Cdb = [u8; 16];

/// TEST UNIT READY, 6 bytes.
pub const TEST_UNIT_READY: Cdb = [0; 16];
/// The allocation length of READ CAPACITY (16), in bytes.
pub const CAPACITY_LEN: u32 = 32;

/// The allocation length of INQUIRY, in bytes: the standard INQUIRY data that every device has.
pub const INQUIRY_LEN: u32 = 36;
/// The longest block of a tape, in bytes: a TRANSFER LENGTH has 24 bits.
pub const TAPE_BLOCK_MAX: u32 = (1 << 24) - 1;

const REWIND: u8 = 0x01;
const READ_6: u8 = 0x08;
const WRITE_6: u8 = 0x0a;
const WRITE_FILEMARKS_6: u8 = 0x10;
const INQUIRY: u8 = 0x12;
/// SILI (suppress incorrect length indicator) in byte 1 of READ (6).
const SILI: u8 = 0x02;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const SERVICE_ACTION_IN_16: u8 = 0x9e;
const READ_CAPACITY_16: u8 = 0x10;
/// FUA (force unit access) in byte 1 of reads and writes.
const FUA: u8 = 0x08;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Rw10 {
    opcode: u8,
    flags: u8,
    lba: U32,
    group: u8,
    blocks: U16,
    control: u8,
    unused: [u8; 6],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Rw16 {
    opcode: u8,
    flags: u8,
    lba: U64,
    blocks: U32,
    group: u8,
    control: u8,
}

const _: () = assert!(size_of::<Rw10>() == 16 && size_of::<Rw16>() == 16);

fn transfer(ten: u8, sixteen: u8, lba: u64, blocks: u32, fua: bool) -> Cdb {
    let flags = if fua { FUA } else { 0 };
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => zerocopy::transmute!(Rw10 {
            opcode: ten,
            flags,
            lba: lba.into(),
            group: 0,
            blocks: blocks.into(),
            control: 0,
            unused: [0; 6],
        }),
        _ => zerocopy::transmute!(Rw16 {
            opcode: sixteen,
            flags,
            lba: lba.into(),
            blocks: blocks.into(),
            group: 0,
            control: 0,
        }),
    }
}

/// READ (10), or READ (16) if `lba` or `blocks` does not fit. `blocks` is a number of logical blocks.
#[must_use]
pub fn read(lba: u64, blocks: u32, fua: bool) -> Cdb {
    transfer(READ_10, READ_16, lba, blocks, fua)
}

/// WRITE (10), or WRITE (16) if `lba` or `blocks` does not fit. `blocks` is a number of logical blocks.
#[must_use]
pub fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    transfer(WRITE_10, WRITE_16, lba, blocks, fua)
}

/// SYNCHRONIZE CACHE (10) of the whole unit.
#[must_use]
pub fn synchronize_cache() -> Cdb {
    transfer(SYNCHRONIZE_CACHE_10, SYNCHRONIZE_CACHE_10, 0, 0, false)
}

/// READ CAPACITY (16) with an allocation length of [`CAPACITY_LEN`].
#[must_use]
pub fn read_capacity() -> Cdb {
    transfer_length(SERVICE_ACTION_IN_16, READ_CAPACITY_16, CAPACITY_LEN)
}

/// INQUIRY, 6 bytes, with an allocation length of [`INQUIRY_LEN`].
#[must_use]
pub fn inquiry() -> Cdb {
    // Bytes 3 and 4.
    six(INQUIRY, 0, INQUIRY_LEN)
}

/// REWIND, 6 bytes.
#[must_use]
pub fn rewind() -> Cdb {
    six(REWIND, 0, 0)
}

/// READ (6) of one block of a tape, of at most `len` bytes (SSC-5 7.4). `len`: at most [`TAPE_BLOCK_MAX`].
#[must_use]
pub fn read_tape(len: u32) -> Cdb {
    six(READ_6, SILI, len)
}

/// WRITE (6) of one block of a tape (SSC-5 7.12). `len`: at most [`TAPE_BLOCK_MAX`].
#[must_use]
pub fn write_tape(len: u32) -> Cdb {
    six(WRITE_6, 0, len)
}

/// WRITE FILEMARKS (6) without a filemark: everything that was written is on the tape (SSC-5 7.14).
#[must_use]
pub fn synchronize_tape() -> Cdb {
    six(WRITE_FILEMARKS_6, 0, 0)
}

/// A CDB of 6 bytes with a length in its bytes 2 to 4.
fn six(opcode: u8, flags: u8, len: u32) -> Cdb {
    let [_, b2, b3, b4] = len.to_be_bytes();
    let mut cdb = [0; 16];
    cdb[..5].copy_from_slice(&[opcode, flags, b2, b3, b4]);
    cdb
}

/// The bytes of this CDB, which depend on the group of the operation code (SPC-6 4.2.5.1).
#[must_use]
pub fn in_its_length(cdb: &Cdb) -> &[u8] {
    match cdb[0] >> 5 {
        0 => &cdb[..6],
        1 | 2 => &cdb[..10],
        _ => cdb,
    }
}

fn transfer_length(opcode: u8, service_action: u8, len: u32) -> Cdb {
    zerocopy::transmute!(Rw16 {
        opcode,
        flags: service_action,
        lba: 0.into(),
        blocks: len.into(),
        group: 0,
        control: 0,
    })
}

/// The capacity of a logical unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// The number of logical blocks.
    pub blocks: u64,
    /// The logical block size, in bytes.
    pub block_size: u32,
}

impl Capacity {
    /// Parses READ CAPACITY (16) data. `None` if it is too short, or if the block size is not a power of two of at
    /// least 512.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let (last, rest) = U64::read_from_prefix(data).ok()?;
        let (block_size, _) = U32::read_from_prefix(rest).ok()?;
        let blocks = last.get().checked_add(1)?;
        Some(Self { blocks, block_size: block_size.get() })
            .filter(|c| c.block_size >= 512 && c.block_size.is_power_of_two())
    }

    /// The capacity in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}

/// The LUN field for a logical unit number: peripheral device addressing below 256, which every target supports, and
/// flat space addressing from 256 on (SAM-6 4.7.7.2).
#[must_use]
pub fn lun(number: u16) -> [u8; 8] {
    const FLAT_SPACE: u16 = 0x4000;
    let first = if number < 256 { number } else { number | FLAT_SPACE };
    let [a, b] = first.to_be_bytes();
    [a, b, 0, 0, 0, 0, 0, 0]
}

lunar_core::codes! {
    /// The status of a command (SAM-6 5.3.1).
    pub struct Status(u8) {
        GOOD = 0x00, CHECK_CONDITION = 0x02, CONDITION_MET = 0x04, BUSY = 0x08, RESERVATION_CONFLICT = 0x18,
        TASK_SET_FULL = 0x28, ACA_ACTIVE = 0x30, TASK_ABORTED = 0x40,
    }
}
lunar_core::codes! {
    /// The sense key (SPC-6 4.4.8).
    pub struct Key(u8) {
        NO_SENSE = 0, RECOVERED_ERROR = 1, NOT_READY = 2, MEDIUM_ERROR = 3, HARDWARE_ERROR = 4, ILLEGAL_REQUEST = 5,
        UNIT_ATTENTION = 6, DATA_PROTECT = 7, BLANK_CHECK = 8, COPY_ABORTED = 10, ABORTED_COMMAND = 11, MISCOMPARE = 14,
    }
}

/// The sense key and additional sense code of sense data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// The sense key.
    pub key: Key,
    /// The additional sense code and its qualifier.
    pub asc: (u8, u8),
}

impl Sense {
    /// Parses sense data of fixed or descriptor format (SPC-6 4.4). `None` for other formats and if it is too short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let sense = match bytes.first()? & 0x7f {
            0x70 | 0x71 => (bytes.get(2)?, bytes.get(12)?, bytes.get(13)?),
            0x72 | 0x73 => (bytes.get(1)?, bytes.get(2)?, bytes.get(3)?),
            _ => return None,
        };
        Some(Self { key: Key(sense.0 & 0x0f), asc: (*sense.1, *sense.2) })
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:02x}h/{:02x}h", self.key, self.asc.0, self.asc.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_use_10_byte_cdbs_where_they_fit_and_16_byte_cdbs_elsewhere() {
        assert_eq!(read(0x1234_5678, 8, false), [0x28, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(write(1, 2, true)[..10], [0x2a, 8, 0, 0, 0, 1, 0, 0, 2, 0]);
        assert_eq!(read(1 << 32, 1, true), [0x88, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(write(0, 65536, false), [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(synchronize_cache()[..10], [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read_capacity(), [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
    }

    #[test]
    fn commands_of_tapes_have_their_lengths_in_bytes_2_to_4() {
        assert_eq!(in_its_length(&read_tape(0x04_0201)), [0x08, 2, 4, 2, 1, 0]);
        assert_eq!(in_its_length(&write_tape(256 << 10)), [0x0a, 0, 4, 0, 0, 0]);
        assert_eq!(in_its_length(&synchronize_tape()), [0x10, 0, 0, 0, 0, 0]);
        assert_eq!(in_its_length(&rewind()), [1, 0, 0, 0, 0, 0]);
        assert_eq!(in_its_length(&inquiry()), [0x12, 0, 0, 0, 36, 0]);
        assert_eq!((in_its_length(&read(0, 1, false)).len(), in_its_length(&read_capacity()).len()), (10, 16));
    }

    #[test]
    fn capacity_data_is_checked() {
        let data = [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0x10, 0, 9, 9];
        assert_eq!(Capacity::parse(&data), Some(Capacity { blocks: 65536, block_size: 4096 }));
        assert_eq!(Capacity::parse(&data[..11]), None);
        assert_eq!(Capacity::parse(&[0xff; 12]), None);
        assert_eq!(Capacity::parse(&[0; 12]), None);
    }

    #[test]
    fn fixed_and_descriptor_sense_data_are_parsed() {
        let mut fixed = [0u8; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0xf0, 0x26, 0x29, 0x01);
        let want = Sense { key: Key::UNIT_ATTENTION, asc: (0x29, 1) };
        assert_eq!(Sense::parse(&fixed), Some(want));
        assert_eq!(Sense::parse(&[0x72, 6, 0x29, 1]), Some(want));
        assert_eq!(want.to_string(), "UNIT_ATTENTION 29h/01h");
        assert_eq!((Sense::parse(&[]), Sense::parse(&fixed[..13]), Sense::parse(&[0x7f; 20])), (None, None, None));
    }

    #[test]
    fn luns_from_256_on_use_flat_space_addressing() {
        assert_eq!(
            (lun(7)[..2].to_vec(), lun(256)[..2].to_vec(), lun(4095)[..2].to_vec()),
            (vec![0, 7], vec![0x41, 0], vec![0x4f, 0xff])
        );
    }
}
