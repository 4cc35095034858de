//! The common parts of commands with a range of blocks: CDB layouts, bounds, admission.

use super::limits::atomic_blocks_max;
use crate::lu::Emulated;
use crate::policy::{
    Admission, Alua, Capability, Code, Forwarding, Gate, OpCode, Persistent, Timeout, additional_length,
};
use crate::sense::{Asc, Sense};
use lunar_core::protection;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RDPROTECT, WRPROTECT, VRPROTECT or ORPROTECT, in byte 1, or byte 10 of a CDB of 32 bytes.
pub const PROTECT: u8 = 0xe0;
/// DPO, byte 1: disable page out. A hint that Lunar ignores.
pub const DPO: u8 = 0x10;
/// FUA, byte 1: force unit access.
pub const FUA: u8 = 0x08;
/// FUA_NV, byte 1: obsolete, but some initiators set it. It is treated as FUA.
pub const FUA_NV: u8 = 0x02;
/// GROUP NUMBER: a hint that Lunar ignores.
pub const GROUP: u8 = 0x3f;

/// Logical units with logical block provisioning management (SBC-3 4.7).
pub static THIN: Capability = Capability { name: "thin units", is_met: Emulated::provisioning };
/// Logical units whose store writes a number of blocks completely or not at all.
pub static ATOMIC_WRITES: Capability =
    Capability { name: "stores with atomic writes", is_met: |lu| atomic_blocks_max(&lu.unit) > 0 };
/// Logical units with protection type 2: only the CDBs of this type must have tags (SBC-3 4.22).
pub static PROTECTION_TYPE_2: Capability =
    Capability { name: "protection type 2", is_met: |lu| lu.protection() == protection::Kind::Two };

/// Admission of commands that read the medium.
pub const READS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Transfer,
};

/// Admission of commands that change the medium.
pub const WRITES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Transfer,
};

/// Admission of commands with tags that read the medium.
pub const TAGGED_READS: Admission = Admission {
    needs: Some(&PROTECTION_TYPE_2),
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Transfer,
};
/// Admission of commands with tags that change the medium.
pub const TAGGED_WRITES: Admission = Admission {
    needs: Some(&PROTECTION_TYPE_2),
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Transfer,
};
/// Admission of commands with tags that change many blocks.
pub const LONG_TAGGED_WRITES: Admission = Admission {
    needs: Some(&PROTECTION_TYPE_2),
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Long,
};

/// Admission of commands that change many blocks.
pub const LONG_WRITES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Stops,
    timeout: Timeout::Long,
};

/// Tags of protection information in a CDB of 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// EXPECTED INITIAL LOGICAL BLOCK REFERENCE TAG.
    pub first: u32,
    /// EXPECTED LOGICAL BLOCK APPLICATION TAG.
    pub application: u16,
    /// LOGICAL BLOCK APPLICATION TAG MASK.
    pub mask: u16,
}

/// A CDB with a range of blocks.
pub trait Blocks {
    /// Offset of the flags, for field pointers.
    const FLAGS_AT: usize = 1;
    /// Whether the CDB has tags of protection information.
    const HAS_TAGS: bool = false;
    /// Offset of the LBA, for field pointers.
    const LBA_AT: usize;
    /// Offset of the length, for field pointers.
    const LENGTH_AT: usize;
    /// First block.
    fn lba(&self) -> u64;
    /// Number of blocks.
    fn count(&self) -> u64;
    /// Byte 1, or byte 10 of a CDB of 32 bytes.
    fn flags(&self) -> u8;
    /// Tags of protection information, if the CDB has them.
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
            /// PROTECT field, DPO, FUA and bits of the command.
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
    /// A CDB of ten bytes.
    Block10 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U32,
        /// GROUP NUMBER.
        group: u8,
        /// TRANSFER LENGTH in blocks, or the field of the command in its place.
        length: be::U16,
    }
}
layout! {
    /// A CDB of twelve bytes.
    Block12 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U32,
        /// TRANSFER LENGTH in blocks, or the field of the command in its place.
        length: be::U32,
        /// GROUP NUMBER.
        group: u8,
    }
}
layout! {
    /// A CDB of sixteen bytes.
    Block16 {
        /// LOGICAL BLOCK ADDRESS.
        lba: be::U64,
        /// TRANSFER LENGTH in blocks, or the field of the command in its place.
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
    /// Operation code and service action.
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
    /// Operation code and service action.
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
    /// Operation code and service action.
    pub const CODE: Code = Code::of(OpCode(OP));
}

/// A CDB of 32 bytes, with tags of protection information.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Block32<const ACTION: u16> {
    /// Operation code.
    pub opcode: u8,
    /// CONTROL.
    pub control: u8,
    /// Reserved.
    pub reserved: [u8; 4],
    /// GROUP NUMBER.
    pub group: u8,
    /// ADDITIONAL CDB LENGTH.
    pub additional: u8,
    /// SERVICE ACTION.
    pub action: be::U16,
    /// PROTECT field, DPO, FUA and bits of the command.
    pub flags: u8,
    /// Reserved.
    pub reserved2: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: be::U64,
    /// EXPECTED INITIAL LOGICAL BLOCK REFERENCE TAG.
    pub reference: be::U32,
    /// EXPECTED LOGICAL BLOCK APPLICATION TAG.
    pub application: be::U16,
    /// LOGICAL BLOCK APPLICATION TAG MASK.
    pub mask: be::U16,
    /// TRANSFER LENGTH in blocks, or the field of the command in its place.
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
    /// Operation code and service action.
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

/// A range of bytes that lies within its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A range of blocks as bytes.
///
/// # Errors
/// LOGICAL BLOCK ADDRESS OUT OF RANGE, with the first block that does not exist.
pub fn within(lu: &Emulated, lba: u64, count: u64) -> Result<Bytes, Sense> {
    let geometry = &lu.unit.geometry;
    let past = lba.checked_add(count).is_none_or(|end| end > geometry.blocks);
    if past {
        return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(lba.max(geometry.blocks)));
    }
    let block = u64::from(geometry.block_size);
    Ok(Bytes { offset: lba * block, len: count * block })
}

/// The range of a CDB as bytes.
///
/// # Errors
/// LOGICAL BLOCK ADDRESS OUT OF RANGE, or INVALID FIELD IN CDB for more than `max` bytes.
pub fn range(lu: &Emulated, cdb: &impl Blocks, max: u64) -> Result<Bytes, Sense> {
    bounded(within(lu, cdb.lba(), cdb.count())?, max, cdb)
}

fn bounded<C: Blocks>(bytes: Bytes, max: u64, _cdb: &C) -> Result<Bytes, Sense> {
    if bytes.len > max { Err(Sense::in_cdb(C::LENGTH_AT)) } else { Ok(bytes) }
}

/// Whether a write with these flags must be on the medium before its status is returned.
#[must_use]
pub fn durable(lu: &Emulated, flags: u8) -> bool {
    flags & (FUA | FUA_NV) != 0 || !lu.mode().write_cache
}
