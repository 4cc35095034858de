//! Commands whose data is a list of ranges: Dataset Management, Copy.

use super::io::bytes;
use super::{WRITES, io};
use crate::admit;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::plan::Plan;
use crate::table::{CommandType, Data, Effect, Policy};
use lunar_core::step::Step;
use lunar_core::unit::Unit;
use lunar_core::wire::le;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Dword 10: number of ranges, 0-based.
const RANGES: u32 = 0xff;

fn count(sqe: &Sqe) -> usize {
    (sqe.cdw(10) & RANGES) as usize + 1
}

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Range {
    attributes: le::U32,
    blocks: le::U32,
    first: le::U64,
}

/// Dataset Management
#[derive(Clone, Copy, Debug)]
pub struct DatasetManagement;

/// Dword 11: the ranges are deallocated. The other attributes are hints, which are not needed.
const DEALLOCATE: u32 = 0x04;

impl CommandType for DatasetManagement {
    const POLICY: Policy = Policy {
        name: "Dataset Management",
        clause: "NVM Command Set 1.0 3.2.3",
        code: io(0x09),
        effect: Effect::Content,
        gates: WRITES,
    };
    const DATA: Data = Data::List(|sqe| (count(sqe) * size_of::<Range>()) as u32);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let namespace = cx.namespace()?;
        let ranges = <[Range]>::ref_from_bytes(list).map_err(|_| Status::SGL_LENGTH)?;
        let mut unmapped = Vec::with_capacity(ranges.len());
        for range in ranges {
            unmapped.push(bytes(namespace, range.first.get(), range.blocks.get().into())?);
        }
        unmapped.retain(|(_, len)| *len > 0);
        let does = sqe.cdw(11) & DEALLOCATE != 0 && namespace.deallocates();
        Ok(if does { Plan::Steps(vec![Step::Unmap(unmapped)]) } else { Plan::Done(0) })
    }
}

/// Ranges of a copy at most (MSRC): what one list of any format holds, 0-based.
pub const COPY_RANGES_MAX: u8 = 127;
/// Bytes of a copy at most: as long as no host gives it up.
pub const COPY_BYTES_MAX: u64 = 64 << 20;

/// Copy
#[derive(Clone, Copy, Debug)]
pub struct Copy;

/// A source range, in all formats: 0 and 1 differ in protection information, which there is none of; 2 and 3 are the
/// same, and name a namespace.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Source {
    namespace: le::U32,
    reserved: [u8; 4],
    first: le::U64,
    blocks: le::U16,
    reserved2: [u8; 14],
}

/// Dword 12: format of the list, 0 to 3.
fn format(sqe: &Sqe) -> u32 {
    sqe.cdw(12) >> 8 & 0x0f
}

/// Bytes of a source range of formats 0 and 2, and of 1 and 3 with the longer protection information.
const SOURCE_LEN: [usize; 4] = [32, 40, 32, 40];
/// Dword 12: protection information in reads and in writes.
const PROTECTION: u32 = 0x3c00_f000;
/// Dword 12: force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

impl CommandType for Copy {
    const POLICY: Policy = Policy {
        name: "Copy",
        clause: "NVM Command Set 1.0 3.2.2",
        code: io(0x19),
        effect: Effect::Content,
        gates: WRITES,
    };
    const DATA: Data = Data::List(|sqe| {
        let length = SOURCE_LEN.get(format(sqe) as usize).copied().unwrap_or(0);
        (count12(sqe) * length) as u32
    });

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let format = format(sqe) as usize;
        let length = *SOURCE_LEN.get(format).ok_or(Status::INVALID_FIELD)?;
        if sqe.cdw(12) & PROTECTION != 0 {
            return Err(Status::INVALID_FIELD.into());
        }
        if count12(sqe) > usize::from(COPY_RANGES_MAX) + 1 {
            return Err(Status::COMMAND_SIZE.into());
        }
        let to = cx.namespace()?;
        let (mut at, mut all, mut steps) = (sqe.cdw_pair(10), 0, Vec::new());
        for entry in list.chunks_exact(length) {
            let (source, _) = Source::ref_from_prefix(entry).map_err(|_| Status::SGL_LENGTH)?;
            let blocks = u64::from(source.blocks.get()) + 1;
            let named = if format >= 2 { source.namespace.get() } else { sqe.nsid.get() };
            let (unit, from) = origin(cx, named, source.first.get(), blocks)?;
            let (offset, len) = bytes(to, at, blocks)?;
            all += len;
            if all > COPY_BYTES_MAX {
                return Err(Status::COMMAND_SIZE.into());
            }
            steps.push(Step::Copy { from: unit, at: from, offset, len });
            at += blocks;
        }
        // Without a cache one follows anyway.
        if sqe.cdw(12) & FORCE_UNIT_ACCESS != 0 {
            steps.push(Step::Flush);
        }
        Ok(Plan::Steps(steps))
    }
}

/// Dword 12: number of ranges, 0-based.
fn count12(sqe: &Sqe) -> usize {
    (sqe.cdw(12) & RANGES) as usize + 1
}

/// The unit that is copied from and where: it may be another namespace, with blocks of the same size, which the host
/// has to be allowed to read.
fn origin(cx: &Context<'_>, namespace: u32, first: u64, blocks: u64) -> Result<(Rc<Unit>, u64), Refusal> {
    let attached = cx.queue.attached(namespace).ok_or(Status::INVALID_NAMESPACE)?;
    admit::pass(&super::READS, &attached)?;
    let source = &attached.namespace;
    if source.block_size() != cx.namespace()?.block_size() {
        return Err(Status::INVALID_FIELD.into());
    }
    let (at, _) = bytes(source, first, blocks)?;
    Ok((source.unit.clone(), at))
}
