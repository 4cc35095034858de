//! UNMAP and WRITE SAME.

use super::block_range::{
    Block10, Block16, Block32, Blocks, Bytes, GROUP, LONG_TAGGED_WRITES, LONG_WRITES, PROTECT, THIN, within,
};
use super::limits::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BYTES_MAX};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data, Pulled};
use crate::sbc::protect::{About, asked};
use crate::sense::{Asc, Sense};
use lunar_core::protection::Kind;
use lunar_core::step::{Protected, Step};
use lunar_core::wire::{Cursor, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UNMAP
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Unmap {
    opcode: u8,
    anchor: u8,
    reserved: [u8; 4],
    group: u8,
    length: be::U16,
    control: u8,
}

/// The header of the parameter list of UNMAP (SBC-3 5.28.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnmapHeader {
    data_length: be::U16,
    descriptors_length: be::U16,
    reserved: [u8; 4],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnmapDescriptor {
    lba: be::U64,
    count: be::U32,
    reserved: [u8; 4],
}

impl CommandType for Unmap {
    const POLICY: Policy = Policy {
        name: "UNMAP",
        clause: "SBC-3 5.28",
        code: Code::of(OpCode::UNMAP),
        effect: Effect::Write,
        admission: Admission {
            needs: Some(&THIN),
            forwarded: Forwarding::Device,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Stops,
            timeout: Timeout::Long,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::UNMAP.0,
        // ANCHOR is refused: anchored blocks are not supported (ANC_SUP is zero).
        anchor: 0,
        reserved: [0; 4],
        group: GROUP,
        length: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        if self.length.get() == 0 {
            return Ok(Plan::Done);
        }
        if list.len() < usize::from(self.length.get()) {
            return Err(SHORT);
        }
        let mut cursor = Cursor::new(list);
        let header: &UnmapHeader = cursor.take().map_err(|_| SHORT)?;
        let length = usize::from(header.descriptors_length.get());
        let descriptors = cursor.rest().get(..length).ok_or(SHORT)?;
        // A trailing incomplete descriptor is ignored (SBC-3 5.28.2).
        let whole = descriptors.len() - descriptors.len() % size_of::<UnmapDescriptor>();
        let descriptors = <[UnmapDescriptor]>::ref_from_bytes(&descriptors[..whole]).map_err(|_| SHORT)?;
        if descriptors.len() > UNMAP_DESCRIPTORS_MAX {
            return Err(Sense::in_list(offset_of!(UnmapHeader, descriptors_length)));
        }
        let ranges = ranges(cx, descriptors)?;
        Ok(if ranges.is_empty() { Plan::Done } else { Plan::Do(Step::Unmap(ranges)) })
    }
}

/// The ranges of the descriptors in bytes, without empty ones.
fn ranges(cx: &Context<'_>, descriptors: &[UnmapDescriptor]) -> Result<Vec<(u64, u64)>, Sense> {
    let lu = cx.emulated()?;
    let mut ranges = Vec::new();
    let mut blocks = 0;
    for (at, descriptor) in descriptors.iter().enumerate() {
        let bytes = within(lu, descriptor.lba.get(), descriptor.count.get().into())?;
        blocks += u64::from(descriptor.count.get());
        if blocks > UNMAP_BLOCKS_MAX {
            let at = size_of::<UnmapHeader>() + at * size_of::<UnmapDescriptor>();
            return Err(Sense::in_list(at + offset_of!(UnmapDescriptor, count)));
        }
        if bytes.len > 0 {
            ranges.push((bytes.offset, bytes.len));
        }
    }
    Ok(ranges)
}

/// WRITE SAME(10)
pub type WriteSame10 = Block10<{ OpCode::WRITE_SAME_10.0 }>;
/// WRITE SAME(16)
pub type WriteSame16 = Block16<{ OpCode::WRITE_SAME_16.0 }>;
/// WRITE SAME(32)
pub type WriteSame32 = Block32<0x000d>;

/// UNMAP, byte 1: the blocks may be unmapped.
const UNMAP: u8 = 0x08;
/// NDOB, byte 1 of WRITE SAME(16): no Data-Out, the blocks are zeroed.
const NO_DATA: u8 = 0x01;

/// Plans WRITE SAME of any layout. `pattern` is the block, or empty for zeroes. A length of zero is refused, as WSNZ
/// reports: a missing length must not overwrite all blocks up to the last one.
fn write_same<C: Blocks>(cx: &Context<'_>, cdb: &C, no_data: bool, pattern: &[u8]) -> Result<Plan, Sense> {
    let lu = cx.emulated()?;
    let unmap = cdb.flags() & UNMAP != 0;
    if unmap && !lu.provisioning() {
        return Err(const { Sense::bit_in_cdb(C::FLAGS_AT, 3) });
    }
    // Some initiators send no block with UNMAP. Without UNMAP a missing block is an error.
    if pattern.is_empty() && !unmap && !no_data {
        return Err(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    let Bytes { offset, len } = within(lu, cdb.lba(), cdb.count())?;
    if len == 0 || len > WRITE_SAME_BYTES_MAX {
        return Err(Sense::in_cdb(C::LENGTH_AT));
    }
    let terms = asked(lu, cdb, About::Write)?;
    // A protected block is always written: zeroes have protection information as well.
    let is_zero = pattern.iter().all(|byte| *byte == 0) && lu.protection() == Kind::None;
    let pattern = if is_zero { Vec::new() } else { pattern.to_vec() };
    let step = Step::Fill { offset, len, pattern, unmap };
    let fill = match terms {
        Some(terms) => Step::Protected(Box::new(Protected { step, terms, other: terms })),
        None => step,
    };
    Ok(Plan::Do(fill))
}

impl CommandType for WriteSame10 {
    const POLICY: Policy = Policy {
        name: "WRITE SAME(10)",
        clause: "SBC-3 5.43",
        code: Code::of(Self::OP),
        effect: Effect::Write,
        admission: LONG_WRITES,
    };
    const USAGE: Self = Self::usage(PROTECT | UNMAP);
    const DATA: Data<Self> = Data::Block(one_block);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        write_same(cx, self, false, list)
    }
}

impl CommandType for WriteSame16 {
    const POLICY: Policy = Policy {
        name: "WRITE SAME(16)",
        clause: "SBC-3 5.44",
        code: Code::of(Self::OP),
        effect: Effect::Write,
        admission: LONG_WRITES,
    };
    const USAGE: Self = Self::usage(PROTECT | UNMAP | NO_DATA);
    const DATA: Data<Self> = Data::Block(|cdb| if cdb.flags & NO_DATA == 0 { one_block(cdb) } else { Pulled::Nothing });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        write_same(cx, self, self.flags & NO_DATA != 0, list)
    }
}

impl CommandType for WriteSame32 {
    const POLICY: Policy = Policy {
        name: "WRITE SAME(32)",
        clause: "SBC-3 5.45",
        code: Self::CODE,
        effect: Effect::Write,
        admission: LONG_TAGGED_WRITES,
    };
    const USAGE: Self = Self::usage(PROTECT | UNMAP | NO_DATA);
    const DATA: Data<Self> = Data::Block(|cdb| if cdb.flags & NO_DATA == 0 { one_block(cdb) } else { Pulled::Nothing });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        write_same(cx, self, self.flags & NO_DATA != 0, list)
    }
}

/// Data-Out: the block, and its protection information if the CDB has a WRPROTECT field.
fn one_block(cdb: &impl Blocks) -> Pulled {
    if cdb.flags() & PROTECT == 0 { Pulled::Block } else { Pulled::ProtectedBlock }
}

#[cfg(test)]
mod tests {
    use crate::change::{Change, ModeValues, ScsiChange};
    use crate::command::Status;
    use crate::sense::Asc;
    use crate::testing::{BLOCKS, Ended, Rig, at_once};
    use lunar_core::io::{Op, Traits};

    fn unmap(rig: &Rig, descriptors: &[(u64, u32)]) -> Ended {
        let length = u16::try_from(16 * descriptors.len()).expect("short");
        let mut list = [(length + 6).to_be_bytes(), length.to_be_bytes(), [0; 2], [0; 2]].concat();
        for (lba, count) in descriptors {
            list.extend(lba.to_be_bytes().into_iter().chain(count.to_be_bytes()).chain([0; 4]));
        }
        let [high, low] = (length + 8).to_be_bytes();
        rig.run(&[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], &list, 0)
    }

    fn asc(ended: &Ended) -> Asc {
        assert_eq!(ended.status, Status::CHECK_CONDITION);
        Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]))
    }

    #[test]
    fn unmap_deallocates_the_ranges() {
        let rig = Rig::default();
        rig.memory.bytes.borrow_mut().fill(7);
        let ended = unmap(&rig, &[(1, 2), (5, 0), (BLOCKS - 1, 1), (BLOCKS, 0)]);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 72));
        assert_eq!(rig.memory.asked.take(), [Op::Unmap { len: 1024 }, Op::Unmap { len: 512 }]);
        let kept = rig.memory.bytes.borrow().iter().filter(|byte| **byte == 7).count();
        assert_eq!(kept as u64, (BLOCKS - 3) * 512);
        assert_eq!(unmap(&rig, &[]).status, Status::GOOD);
        assert_eq!(rig.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    }

    #[test]
    fn invalid_unmap_lists_are_refused() {
        let rig = Rig::default();
        let past = unmap(&rig, &[(0, 1), (BLOCKS - 1, 2)]);
        assert_eq!((asc(&past), &past.sense[3..7]), (Asc::LBA_OUT_OF_RANGE, &[0, 0, 8, 0][..]));
        assert_eq!(asc(&unmap(&rig, &[(u64::MAX, u32::MAX)])), Asc::LBA_OUT_OF_RANGE);
        assert_eq!(unmap(&rig, &[(0, 1); 255]).status, Status::GOOD);
        let many = unmap(&rig, &[(0, 1); 256]);
        assert_eq!((asc(&many), &many.sense[15..]), (Asc::INVALID_FIELD_IN_PARAMETER_LIST, &[0x80, 0, 2][..]));
        let short = |list: &[u8]| asc(&rig.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list, 0));
        assert_eq!(short(&[0; 20]), Asc::PARAMETER_LIST_LENGTH_ERROR);
        assert_eq!(short(&[&[0, 38, 0, 32, 0, 0, 0, 0][..], &[0; 16]].concat()), Asc::PARAMETER_LIST_LENGTH_ERROR);
        let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
        assert_eq!(asc(&unmap(&thick, &[])), Asc::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(rig.run(&[0x42, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).sense[15..], [0xc8, 0, 1], "ANCHOR");
    }

    fn same16(rig: &Rig, flags: u8, lba: u8, count: u8, block: &[u8]) -> Ended {
        rig.run(&[0x93, flags, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, count, 0, 0], block, 0)
    }

    #[test]
    fn write_same_writes_its_block_to_every_block() {
        let rig = Rig::default();
        assert_eq!(same16(&rig, 0, 2, 3, &[9; 512]).status, Status::GOOD);
        let bytes = rig.memory.bytes.borrow();
        assert!(bytes[1024..2560].iter().all(|byte| *byte == 9));
        assert_eq!((bytes[1023], bytes[2560]), (0, 0));
    }

    #[test]
    fn write_same_of_zeroes_moves_no_data() {
        let rig = Rig::default();
        let end = |len| Op::Zero { len, unmap: false };
        assert_eq!(same16(&rig, 1, 0, 0, &[]).status, Status::CHECK_CONDITION, "a length of zero");
        assert_eq!(same16(&rig, 1, 0, 4, &[]).status, Status::GOOD, "NDOB");
        assert_eq!(same16(&rig, 0, 8, 2, &[0; 512]).status, Status::GOOD);
        assert_eq!(same16(&rig, 8, 8, 2, &[0; 512]).status, Status::GOOD, "UNMAP");
        assert_eq!(same16(&rig, 8, 8, 1, &[]).status, Status::GOOD, "UNMAP without a block");
        let unmaps = |len| Op::Zero { len, unmap: true };
        assert_eq!(rig.memory.asked.take(), [end(2048), end(1024), unmaps(1024), unmaps(512)]);
        let through = Rig::new(Traits { write_cache: false, ..Rig::traits() });
        assert_eq!(same16(&through, 1, 0, 1, &[]).status, Status::GOOD);
        assert_eq!(through.memory.asked.take(), [end(512)], "the write cache is disabled");
        assert_eq!(through.stats().write_commands.get(), 0);
    }

    #[test]
    fn writes_and_unmaps_are_flushed_while_the_cache_is_disabled() {
        let rig = Rig::default();
        let values = ModeValues { write_cache: false, ..rig.target.unit(0).expect("LUN exists").of_test().mode() };
        let unit = rig.target.unit(0).expect("LUN exists").of_test().unit.clone();
        let change = ScsiChange { change: Change::Mode(values), record: None };
        at_once(rig.units.propose(&unit, Some(&rig.nexus.name), change.into())).expect("never refused");
        assert_eq!(same16(&rig, 1, 0, 1, &[]).status, Status::GOOD);
        assert_eq!(unmap(&rig, &[(0, 8)]).status, Status::GOOD);
        let asked = [Op::Zero { len: 512, unmap: false }, Op::Flush, Op::Unmap { len: 4096 }, Op::Flush];
        assert_eq!(rig.memory.asked.take(), asked);
    }

    #[test]
    fn invalid_write_same_commands_are_refused() {
        let rig = Rig::default();
        for block in [0, 256, 1024] {
            let ended = same16(&rig, 0, 0, 1, &vec![0; block]);
            assert_eq!(asc(&ended), Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
        }
        assert_eq!(same16(&rig, 0x10, 0, 1, &[0; 512]).sense[15..], [0xcc, 0, 1], "ANCHOR");
        let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
        assert_eq!(same16(&thick, 8, 0, 1, &[0; 512]).sense[15..], [0xcb, 0, 1]);
        let ten = rig.run(&[0x41, 0, 0, 0, 8, 0, 0, 0, 1, 0], &[0; 512], 0);
        assert_eq!(asc(&ten), Asc::LBA_OUT_OF_RANGE);
    }
}
