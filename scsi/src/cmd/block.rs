//! What commands that name a range of blocks share: three CDB layouts, bounds, limits.

use crate::lu::LogicalUnit;
use crate::protect::Tags;
use crate::sense::{Asc, Sense};
use crate::table::{Alua, Code, Gate, Gates, Needs, OpCode, Persistent, Reach, Timeout, additional_length};
use lunar_core::step::PIECE_BYTES;
use lunar_core::unit::Unit;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// MAXIMUM TRANSFER LENGTH in bytes: what one command may move. 65,536 blocks of 4 KiB, so that nobody's largest
/// request is split; memory does not grow with it, for data moves piece by piece.
pub const TRANSFER_BYTES_MAX: u64 = 256 << 20;
/// Bytes that VERIFY without data and PRE-FETCH, which move nothing, may name.
pub const VERIFY_BYTES_MAX: u64 = 1 << 30;
/// MAXIMUM COMPARE AND WRITE LENGTH in blocks: all that one byte counts, within [`PIECE_BYTES`].
pub const COMPARE_AND_WRITE_BLOCKS_MAX: u64 = 255;
/// MAXIMUM WRITE SAME LENGTH in bytes: a store that knows no zeroes has this much written to it by one command.
pub const WRITE_SAME_BYTES_MAX: u64 = 512 << 20;
/// MAXIMUM UNMAP LBA COUNT: bounds the time of one command where unmapping is slow.
pub const UNMAP_BLOCKS_MAX: u64 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT: the parameter list fits a page with its header.
pub const UNMAP_DESCRIPTORS_MAX: usize = 255;

/// Byte 1, or 10 of 32: WRPROTECT, RDPROTECT, VRPROTECT, ORPROTECT.
pub const PROTECT: u8 = 0xe0;
/// Byte 1: disable page out. A hint, which is not needed.
pub const DPO: u8 = 0x10;
/// Byte 1: force unit access.
pub const FUA: u8 = 0x08;
/// Byte 1: the obsolete FUA_NV, which initiators still set: taken for FUA.
pub const FUA_NV: u8 = 0x02;
/// GROUP NUMBER: a hint, which is not needed.
pub const GROUP: u8 = 0x3f;

/// Blocks that a transfer may be long.
#[must_use]
pub fn transfer_blocks_max(unit: &Unit) -> u64 {
    TRANSFER_BYTES_MAX / u64::from(unit.geometry.block_size)
}

/// Blocks that COMPARE AND WRITE may be long.
#[must_use]
pub fn compare_and_write_blocks_max(unit: &Unit) -> u64 {
    COMPARE_AND_WRITE_BLOCKS_MAX.min(PIECE_BYTES as u64 / u64::from(unit.geometry.block_size))
}

/// Blocks that WRITE ATOMIC may be long: what the store promises, moved at once. 0: it is not supported.
#[must_use]
pub fn atomic_blocks_max(unit: &Unit) -> u64 {
    let bytes = u64::from(unit.traits().atomic_write).min(PIECE_BYTES as u64);
    (bytes / u64::from(unit.geometry.block_size)).min(u16::MAX.into())
}

/// Blocks that WRITE SAME may be long.
#[must_use]
pub fn write_same_blocks_max(unit: &Unit) -> u64 {
    WRITE_SAME_BYTES_MAX / u64::from(unit.geometry.block_size)
}

/// What stops commands that read the medium.
pub const READS: Gates = Gates {
    reach: Reach::Disk,
    needs: Needs::Nothing,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Transfer,
};

/// What stops commands that change the medium.
pub const WRITES: Gates = Gates {
    reach: Reach::Disk,
    needs: Needs::Nothing,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Transfer,
};

/// As [`READS`], for commands that units of protection type 2 have.
pub const TAGGED_READS: Gates = Gates { needs: Needs::TypeTwo, ..READS };
/// As [`WRITES`], for commands that units of protection type 2 have.
pub const TAGGED_WRITES: Gates = Gates { needs: Needs::TypeTwo, ..WRITES };
/// As [`LONG_WRITES`], for commands that units of protection type 2 have.
pub const LONG_TAGGED_WRITES: Gates = Gates { needs: Needs::TypeTwo, ..LONG_WRITES };

/// As [`WRITES`], for those that may take long.
pub const LONG_WRITES: Gates = Gates {
    reach: Reach::Disk,
    needs: Needs::Nothing,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Long,
};

/// A CDB that names a range of blocks.
pub trait Blocks {
    /// Offset of the flags, for field pointers.
    const FLAGS_AT: usize = 1;
    /// Whether it has tags of protection information.
    const HAS_TAGS: bool = false;
    /// Offset of the LBA, for field pointers.
    const LBA_AT: usize;
    /// Offset of the length, for field pointers.
    const LENGTH_AT: usize;
    /// First block.
    fn lba(&self) -> u64;
    /// How many.
    fn count(&self) -> u64;
    /// Byte 1, or 10 of 32.
    fn flags(&self) -> u8;
    /// Tags of protection information, if it has them.
    fn tags(&self) -> Option<Tags> {
        None
    }
}

/// Declares a CDB layout with one operation code per type.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name<const OP: u8> {
            /// Operation code.
            pub opcode: u8,
            /// Protection, DPO, FUA and what else a command has there.
            pub flags: u8,
            $($(#[$fmeta])* pub $field: $ty,)*
            /// CONTROL.
            pub control: u8,
        }

        impl<const OP: u8> Blocks for $name<OP> {
            const LBA_AT: usize = offset_of!(Self, lba);
            const LENGTH_AT: usize = offset_of!(Self, length);
            fn lba(&self) -> u64 {
                self.lba.get().into()
            }
            fn count(&self) -> u64 {
                self.length.get().into()
            }
            fn flags(&self) -> u8 {
                self.flags
            }
        }
    };
}

layout! {
    /// Ten bytes.
    Block10 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U32,
        /// GROUP NUMBER.
        group: u8,
        /// TRANSFER LENGTH in blocks, or what else a command calls it.
        length: be::U16,
    }
}
layout! {
    /// Twelve bytes.
    Block12 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U32,
        /// TRANSFER LENGTH in blocks, or what else a command calls it.
        length: be::U32,
        /// GROUP NUMBER.
        group: u8,
    }
}
layout! {
    /// Sixteen bytes.
    Block16 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U64,
        /// TRANSFER LENGTH in blocks, or what else a command calls it.
        length: be::U32,
        /// GROUP NUMBER.
        group: u8,
    }
}

impl<const OP: u8> Block10<OP> {
    /// The usage mask of a command that evaluates these bits of byte 1.
    #[must_use]
    pub const fn usage(flags: u8) -> Self {
        Self { opcode: OP, flags, lba: be::U32::MAX_VALUE, group: GROUP, length: be::U16::MAX_VALUE, control: 0 }
    }

    /// The operation code.
    pub const OP: OpCode = OpCode(OP);
    /// What names the command.
    pub const CODE: Code = Code::of(OpCode(OP));
}

impl<const OP: u8> Block12<OP> {
    /// The usage mask of a command that evaluates these bits of byte 1.
    #[must_use]
    pub const fn usage(flags: u8) -> Self {
        Self { opcode: OP, flags, lba: be::U32::MAX_VALUE, length: be::U32::MAX_VALUE, group: GROUP, control: 0 }
    }

    /// The operation code.
    pub const OP: OpCode = OpCode(OP);
    /// What names the command.
    pub const CODE: Code = Code::of(OpCode(OP));
}

impl<const OP: u8> Block16<OP> {
    /// The usage mask of a command that evaluates these bits of byte 1.
    #[must_use]
    pub const fn usage(flags: u8) -> Self {
        Self { opcode: OP, flags, lba: be::U64::MAX_VALUE, length: be::U32::MAX_VALUE, group: GROUP, control: 0 }
    }

    /// The operation code.
    pub const OP: OpCode = OpCode(OP);
    /// What names the command.
    pub const CODE: Code = Code::of(OpCode(OP));
}

/// Thirty-two bytes: with tags of protection information.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Block32<const ACTION: u16> {
    /// Operation code.
    pub opcode: u8,
    /// CONTROL.
    pub control: u8,
    /// Zero.
    pub reserved: [u8; 4],
    /// GROUP NUMBER.
    pub group: u8,
    /// ADDITIONAL CDB LENGTH.
    pub additional: u8,
    /// SERVICE ACTION.
    pub action: be::U16,
    /// Protection, DPO, FUA and what else a command has there.
    pub flags: u8,
    /// Zero.
    pub reserved2: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: be::U64,
    /// EXPECTED INITIAL LOGICAL BLOCK REFERENCE TAG.
    pub reference: be::U32,
    /// EXPECTED LOGICAL BLOCK APPLICATION TAG.
    pub application: be::U16,
    /// LOGICAL BLOCK APPLICATION TAG MASK.
    pub mask: be::U16,
    /// TRANSFER LENGTH in blocks, or what else a command calls it.
    pub length: be::U32,
}

impl<const ACTION: u16> Blocks for Block32<ACTION> {
    const FLAGS_AT: usize = offset_of!(Self, flags);
    const HAS_TAGS: bool = true;
    const LBA_AT: usize = offset_of!(Self, lba);
    const LENGTH_AT: usize = offset_of!(Self, length);
    fn lba(&self) -> u64 {
        self.lba.get()
    }
    fn count(&self) -> u64 {
        self.length.get().into()
    }
    fn flags(&self) -> u8 {
        self.flags
    }
    fn tags(&self) -> Option<Tags> {
        Some(Tags { first: self.reference.get(), application: self.application.get(), mask: self.mask.get() })
    }
}

impl<const ACTION: u16> Block32<ACTION> {
    /// What names the command.
    pub const CODE: Code = Code::long(ACTION);

    /// The usage mask of a command that evaluates these bits of byte 10.
    #[must_use]
    pub const fn usage(flags: u8) -> Self {
        Self {
            opcode: OpCode::VARIABLE_LENGTH.0,
            control: 0,
            reserved: [0; 4],
            group: GROUP,
            additional: additional_length::<Self>(),
            action: be::U16::new(ACTION),
            flags,
            reserved2: 0,
            lba: be::U64::MAX_VALUE,
            reference: be::U32::MAX_VALUE,
            application: be::U16::MAX_VALUE,
            mask: be::U16::MAX_VALUE,
            length: be::U32::MAX_VALUE,
        }
    }
}

/// Bytes of a unit: checked to lie within.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// Where.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Blocks as bytes.
///
/// # Errors
/// LOGICAL BLOCK ADDRESS OUT OF RANGE, with the first block that does not exist.
pub fn within(lu: &LogicalUnit, lba: u64, count: u64) -> Result<Bytes, Sense> {
    let geometry = &lu.unit.geometry;
    let past = lba.checked_add(count).is_none_or(|end| end > geometry.blocks);
    if past {
        return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(lba.max(geometry.blocks)));
    }
    let block = u64::from(geometry.block_size);
    Ok(Bytes { offset: lba * block, len: count * block })
}

/// The blocks that a CDB names, as bytes.
///
/// # Errors
/// LOGICAL BLOCK ADDRESS OUT OF RANGE, or INVALID FIELD IN CDB for more than `max` bytes.
pub fn range(lu: &LogicalUnit, cdb: &impl Blocks, max: u64) -> Result<Bytes, Sense> {
    bounded(within(lu, cdb.lba(), cdb.count())?, max, cdb)
}

fn bounded<C: Blocks>(bytes: Bytes, max: u64, _cdb: &C) -> Result<Bytes, Sense> {
    if bytes.len > max { Err(Sense::in_cdb(C::LENGTH_AT)) } else { Ok(bytes) }
}

/// Whether a write with these flags must be on the medium before it is answered.
#[must_use]
pub fn durable(lu: &LogicalUnit, flags: u8) -> bool {
    flags & (FUA | FUA_NV) != 0 || !lu.mode().write_cache
}
