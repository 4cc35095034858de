//! GET LBA STATUS.

use super::block_range::{READS, within};
use crate::context::Context;
use crate::fault;
use crate::lu::Emulated;
use crate::plan::Plan;
use crate::policy::{Code, Effect, OpCode, Policy, SERVICE_ACTION_BITS, additional_length};
use crate::refusal::Refusal;
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use crate::target::Target;
use lunar_core::io::Extent;
use lunar_core::port::Transfer;
use lunar_core::step::{self, SlotContext};
use lunar_core::unit::Geometry;
use lunar_core::wire::{Writer, be};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// GET LBA STATUS(16)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetLbaStatus16 {
    opcode: u8,
    action: u8,
    lba: be::U64,
    allocation: be::U32,
    reserved: u8,
    control: u8,
}

/// Service action of GET LBA STATUS(16).
const ACTION: u8 = 0x12;
const _: () = assert!(ACTION & !SERVICE_ACTION_BITS == 0);

/// LBA status descriptors of one answer: bounds the requests to the store. An initiator continues with the next block.
const DESCRIPTORS_MAX: usize = 256;

/// The header of the parameter data (SBC-3 5.4.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    length: be::U32,
    reserved: [u8; 3],
    /// COMPLETION CONDITION and RTP of SBC-4; reserved in SBC-3.
    condition: u8,
}

/// LBA status descriptor (SBC-3 5.4.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Descriptor {
    lba: be::U64,
    count: be::U32,
    status: u8,
    reserved: [u8; 3],
}

/// PROVISIONING STATUS: mapped, also for units without provisioning.
const MAPPED: u8 = 0;
/// PROVISIONING STATUS: deallocated.
const DEALLOCATED: u8 = 1;
/// COMPLETION CONDITION: the allocation length or the limit of descriptors was reached.
const FULL: u8 = 1 << 1;
/// COMPLETION CONDITION: SCAN LENGTH was reached.
const SCANNED: u8 = 2 << 1;
/// COMPLETION CONDITION: the last block was reached.
const COMPLETE: u8 = 3 << 1;

impl CommandType for GetLbaStatus16 {
    const POLICY: Policy = Policy {
        name: "GET LBA STATUS(16)",
        clause: "SBC-3 5.4",
        code: Code::with_action(OpCode::SERVICE_ACTION_IN_16, ACTION),
        effect: Effect::Read,
        admission: READS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::SERVICE_ACTION_IN_16.0,
        action: ACTION,
        lba: be::U64::MAX_VALUE,
        allocation: be::U32::MAX_VALUE,
        reserved: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        status(cx, self.lba.get(), u64::MAX, self.allocation.get())
    }
}

/// GET LBA STATUS(32)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetLbaStatus32 {
    opcode: u8,
    control: u8,
    reserved: [u8; 5],
    length: u8,
    action: be::U16,
    /// REPORT TYPE: only all blocks (0) is supported.
    kind: u8,
    reserved2: u8,
    lba: be::U64,
    /// SCAN LENGTH in blocks; zero for all blocks.
    scan: be::U32,
    /// ELEMENT IDENTIFIER: disks have no elements.
    element: be::U32,
    allocation: be::U32,
}

impl CommandType for GetLbaStatus32 {
    const POLICY: Policy = Policy {
        name: "GET LBA STATUS(32)",
        clause: "SBC-4 5.8",
        code: Code::long(ACTION as u16),
        effect: Effect::Read,
        admission: READS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::VARIABLE_LENGTH.0,
        control: 0,
        reserved: [0; 5],
        length: additional_length::<Self>(),
        action: be::U16::new(ACTION as u16),
        kind: 0,
        reserved2: 0,
        lba: be::U64::MAX_VALUE,
        scan: be::U32::MAX_VALUE,
        element: be::U32::ZERO,
        allocation: be::U32::MAX_VALUE,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let scan = match self.scan.get() {
            0 => u64::MAX,
            blocks => blocks.into(),
        };
        status(cx, self.lba.get(), scan, self.allocation.get())
    }
}

/// Plans a report of at most `scan` blocks.
fn status(cx: &mut Context<'_>, lba: u64, scan: u64, allocation: u32) -> Result<Plan, Sense> {
    let lu = cx.emulated()?;
    within(lu, lba, 1)?;
    let geometry = &lu.unit.geometry;
    let blocks = scan.min(geometry.blocks - lba);
    if !lu.provisioning() {
        let all = Extent { len: geometry.bytes(), mapped: true };
        report(geometry, lba..lba + blocks, &[all], &mut cx.out);
        return Ok(Plan::Answer);
    }
    let room = (allocation as usize).saturating_sub(size_of::<Header>()) / size_of::<Descriptor>();
    Ok(Plan::Survey { lba, blocks, runs: room.clamp(1, DESCRIPTORS_MAX) })
}

/// Writes the parameter data: for each run of blocks, whether it is mapped.
fn report(geometry: &Geometry, blocks: Range<u64>, runs: &[Extent], out: &mut Writer<'_>) {
    let start = out.written();
    out.zeros(size_of::<Header>());
    let mut at = blocks.start;
    for run in runs {
        let status = if run.mapped { MAPPED } else { DEALLOCATED };
        let mut rest = (run.len / u64::from(geometry.block_size)).min(blocks.end - at);
        while rest > 0 {
            let count = u32::try_from(rest).unwrap_or(u32::MAX);
            out.put(&Descriptor { lba: at.into(), count: count.into(), status, reserved: [0; 3] });
            at += u64::from(count);
            rest -= u64::from(count);
        }
    }
    let condition = match at {
        at if at == geometry.blocks => COMPLETE,
        at if at == blocks.end => SCANNED,
        _ => FULL,
    };
    // A few runs in descriptors of up to 2^32 blocks: far shorter than 4 GiB.
    let length = (out.written() - start - size_of::<be::U32>()) as u32;
    out.patch(start, Header { length: length.into(), reserved: [0; 3], condition }.as_bytes());
}

impl Target {
    /// Asks the store which blocks are mapped, and writes the data of GET LBA STATUS to `self.scratch`.
    pub(crate) async fn survey(
        &self,
        lu: &Emulated,
        blocks: Range<u64>,
        (runs, amount): (usize, u32),
        transfer: &impl Transfer,
        slot: &mut SlotContext,
    ) -> Result<(), Refusal> {
        let geometry = &lu.unit.geometry;
        let block = u64::from(geometry.block_size);
        let len = (blocks.end - blocks.start) * block;
        let found = step::survey(&lu.unit, blocks.start * block, len, runs, transfer, slot).await;
        let found = found.map_err(fault::transfer)?;
        let mut scratch = self.answer_memory(amount);
        let mut out = Writer::new(&mut scratch);
        report(geometry, blocks, &found, &mut out);
        let kept = out.kept();
        scratch.truncate(kept);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::Asc;
    use crate::testing::{BLOCKS, Ended, Rig};
    use lunar_core::io::{Fault, Traits};

    fn ask(rig: &Rig, lba: u64, allocation: u32) -> Ended {
        let cdb = [&[0x9e, 0x12][..], &lba.to_be_bytes(), &allocation.to_be_bytes(), &[0, 0]].concat();
        rig.run(&cdb, &[], allocation)
    }

    fn descriptor(lba: u64, count: u32, status: u8) -> Vec<u8> {
        [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[status, 0, 0, 0]].concat()
    }

    /// A rig whose blocks 8 to 15 and last block were written.
    fn written() -> Rig {
        let rig = Rig::default();
        let mut bytes = rig.memory.bytes.borrow_mut();
        bytes[8 * 512..16 * 512].fill(1);
        bytes[(BLOCKS as usize - 1) * 512..].fill(1);
        drop(bytes);
        rig
    }

    #[test]
    fn runs_are_reported_up_to_the_last_block() {
        let last = BLOCKS - 1;
        let expected = [
            vec![0, 0, 0, 4 + 4 * 16, 0, 0, 0, COMPLETE],
            descriptor(0, 8, 1),
            descriptor(8, 8, 0),
            descriptor(16, BLOCKS as u32 - 17, 1),
            descriptor(last, 1, 0),
        ];
        assert_eq!(ask(&written(), 0, 1000).data, expected.concat());
        let end = ask(&written(), last, 24).data;
        assert_eq!(end, [vec![0, 0, 0, 20, 0, 0, 0, COMPLETE], descriptor(last, 1, 0)].concat());
    }

    #[test]
    fn the_allocation_length_limits_the_descriptors_and_one_is_reported_at_least() {
        let first = [vec![0, 0, 0, 20, 0, 0, 0, FULL], descriptor(9, 7, 0)].concat();
        for allocation in [0, 1, 8, 23, 24, 39] {
            let data = ask(&written(), 9, allocation).data;
            assert_eq!(data, first[..first.len().min(allocation as usize)], "{allocation}");
        }
        assert_eq!(ask(&written(), 9, 40).data.len(), 40);
    }

    #[test]
    fn blocks_are_mapped_if_the_store_cannot_tell() {
        let all = [vec![0, 0, 0, 20, 0, 0, 0, COMPLETE], descriptor(5, BLOCKS as u32 - 5, 0)].concat();
        let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
        assert_eq!(ask(&thick, 5, 100).data, all);
        assert_eq!(thick.memory.asked.take(), []);
        let silent = Rig::default();
        silent.memory.fault.set(Some(Fault::Unsupported));
        assert_eq!(ask(&silent, 5, 100).data, all);
        silent.memory.fault.set(Some(Fault::Gone));
        assert_eq!(ask(&silent, 5, 100).sense[12..14], Asc::NOT_READY_UNAVAILABLE.0.to_be_bytes());
    }

    #[test]
    fn scan_length_limits_the_blocks() {
        let scan = |rig: &Rig, lba: u64, blocks: u32| {
            let cdb = [
                &[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x12, 0, 0][..],
                &lba.to_be_bytes(),
                &blocks.to_be_bytes(),
                &[0; 4],
                &1000_u32.to_be_bytes(),
            ];
            rig.run(&cdb.concat(), &[], 1000).data
        };
        let told = |condition: u8, descriptors: &[Vec<u8>]| {
            let length = 4 + 16 * u8::try_from(descriptors.len()).expect("few");
            [vec![0, 0, 0, length, 0, 0, 0, condition], descriptors.concat()].concat()
        };
        let rig = written();
        assert_eq!(scan(&rig, 0, 0), ask(&rig, 0, 1000).data);
        assert_eq!(scan(&rig, 0, u32::MAX), ask(&rig, 0, 1000).data);
        assert_eq!(scan(&rig, 4, 6), told(SCANNED, &[descriptor(4, 4, 1), descriptor(8, 2, 0)]));
        assert_eq!(scan(&rig, BLOCKS - 1, 1), told(COMPLETE, &[descriptor(BLOCKS - 1, 1, 0)]));
        let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
        assert_eq!(scan(&thick, 5, 7), told(SCANNED, &[descriptor(5, 7, 0)]));
    }

    #[test]
    fn an_address_beyond_the_last_block_is_refused() {
        for lba in [BLOCKS, BLOCKS + 1, 1 << 63, u64::MAX] {
            assert_eq!(ask(&Rig::default(), lba, 24).sense[12..14], Asc::LBA_OUT_OF_RANGE.0.to_be_bytes());
        }
    }

    #[test]
    fn a_run_longer_than_a_descriptor_is_split() {
        let geometry = Geometry { block_size: 512, blocks: 1 << 33, physical_exponent: 0 };
        let mut bytes = [0; 64];
        let mut out = Writer::new(&mut bytes);
        report(&geometry, 1..1 << 33, &[Extent { len: u64::MAX, mapped: false }], &mut out);
        assert_eq!(out.written(), 8 + 3 * 16);
        let max = u64::from(u32::MAX);
        let parts = [descriptor(1, u32::MAX, 1), descriptor(1 + max, u32::MAX, 1), descriptor(1 + 2 * max, 1, 1)];
        assert_eq!(bytes[8..56], parts.concat());
    }
}
