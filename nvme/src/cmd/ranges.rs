//! Commands whose data is a list of ranges: Dataset Management, Copy.

use super::io::bytes;
use super::{WRITES, io};
use crate::admit;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::limits::{COPY_BYTES_MAX, COPY_RANGES_MAX};
use crate::namespace::Attached;
use crate::plan::Plan;
use crate::policy::{Effect, Policy};
use crate::protect::{self, About, Prinfo, Tags};
use crate::row::{CommandType, Data};
use lunar_core::protection::Terms;
use lunar_core::step::{Protected, Step};
use lunar_core::wire::le;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Dword 10: number of ranges, 0-based.
const RANGES: u32 = 0xff;

fn count(sqe: &Sqe) -> usize {
    (sqe.cdw(10) & RANGES) as usize + 1
}

/// A range of Dataset Management (NVM Command Set 1.0 3.2.3).
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

/// Dword 11: the ranges are deallocated. The other attributes are hints and ignored.
const DEALLOCATE: u32 = 0x04;

impl CommandType for DatasetManagement {
    const POLICY: Policy = Policy {
        name: "Dataset Management",
        clause: "NVM Command Set 1.0 3.2.3",
        code: io(0x09),
        effect: Effect::Content,
        admission: WRITES,
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

/// Copy
#[derive(Clone, Copy, Debug)]
pub struct Copy;

/// A source range, in all formats (NVM Command Set 1.0 3.2.2): 2 and 3 have a namespace identifier; 1 and 3 have the
/// tags of protection formats that are not supported.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Source {
    namespace: le::U32,
    reserved: [u8; 4],
    first: le::U64,
    blocks: le::U16,
    reserved2: [u8; 6],
    reference: le::U32,
    application: le::U16,
    mask: le::U16,
}

impl Source {
    fn tags(&self) -> Tags {
        Tags { first: self.reference.get(), application: self.application.get(), mask: self.mask.get() }
    }
}

/// Dword 12: format of the list, 0 to 3.
fn format(sqe: &Sqe) -> u32 {
    sqe.cdw(12) >> 8 & 0x0f
}

/// Bytes of a source range of formats 0 and 2, and of 1 and 3 with the longer protection information.
const SOURCE_LEN: [usize; 4] = [32, 40, 32, 40];
/// Dword 12: force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

impl CommandType for Copy {
    const POLICY: Policy = Policy {
        name: "Copy",
        clause: "NVM Command Set 1.0 3.2.2",
        code: io(0x19),
        effect: Effect::Content,
        admission: WRITES,
    };
    const DATA: Data = Data::List(|sqe| {
        let length = SOURCE_LEN.get(format(sqe) as usize).copied().unwrap_or(0);
        (count12(sqe) * length) as u32
    });

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let format = format(sqe) as usize;
        let length = *SOURCE_LEN.get(format).ok_or(Status::INVALID_FIELD)?;
        let names_namespaces = format >= 2;
        if names_namespaces && !cx.controller().takes_copies_of(format) {
            return Err(Status::INVALID_FIELD.into());
        }
        if count12(sqe) > usize::from(COPY_RANGES_MAX) + 1 {
            return Err(Status::COMMAND_SIZE.into());
        }
        let to = cx.attached()?;
        let (mut copied, mut steps, mut way) = (0, Vec::new(), None);
        for entry in list.chunks_exact(length) {
            let (source, _) = Source::ref_from_prefix(entry).map_err(|_| Status::SGL_LENGTH)?;
            let blocks = u64::from(source.blocks.get()) + 1;
            let named = if names_namespaces { source.namespace.get() } else { sqe.nsid.get() };
            let (from, at) = origin(cx, named, source.first.get(), blocks)?;
            let first = sqe.cdw_pair(10).checked_add(copied).ok_or(Status::LBA_RANGE)?;
            let (offset, len) = bytes(&to.namespace, first, blocks)?;
            // NVM Command Set 1.1 3.3.2.4.2: what the first one is all are.
            let is_shown = from.shown().is_some();
            if *way.get_or_insert(is_shown) != is_shown {
                return Err(Status::INCOMPATIBLE.into());
            }
            let terms = terms(sqe, source, (&from, to), copied)?;
            copied += blocks;
            if copied * u64::from(to.namespace.block_size()) > COPY_BYTES_MAX {
                return Err(Status::COMMAND_SIZE.into());
            }
            let step = Step::Copy { from: from.namespace.unit.clone(), at, offset, len };
            steps.push(match terms {
                None => step,
                Some((other, terms)) => Step::Protected(Box::new(Protected { step, terms, other })),
            });
        }
        // Without a volatile write cache, a flush follows anyway.
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

/// The source namespace and range: the namespace may be another one, with the same block size, which the host may read.
fn origin(cx: &Context<'_>, namespace: u32, first: u64, blocks: u64) -> Result<(Rc<Attached>, u64), Refusal> {
    let attached = cx.queue.attached(namespace).ok_or(Status::INVALID_NAMESPACE)?;
    admit::pass(&super::READS, &attached)?;
    if attached.namespace.block_size() != cx.namespace()?.block_size() {
        return Err(Status::INVALID_FIELD.into());
    }
    let (at, _) = bytes(&attached.namespace, first, blocks)?;
    Ok((attached, at))
}

/// The protection checks for reading a range, and for writing it after the `copied` blocks (NVM Command Set 1.1
/// 3.3.2.4.2); none if the host sees the protection information of neither namespace.
fn terms(
    sqe: &Sqe,
    source: &Source,
    (from, to): (&Attached, &Attached),
    copied: u64,
) -> Result<Option<(Terms, Terms)>, Status> {
    let (reads, writes) = (Prinfo::of_source(sqe), Prinfo::of(sqe));
    let (shown, is_short) = ((from.shown(), to.shown()), format(sqe).is_multiple_of(2));
    let read = |kind| protect::terms(kind, About::Read, (reads, source.tags()), source.first.get());
    let write = |kind| {
        let tags = Tags::of(sqe).behind(kind, copied);
        protect::terms(kind, About::Write, (writes, tags), sqe.cdw_pair(10) + copied)
    };
    match shown {
        (None, None) if reads.is_set() || writes.is_set() => Err(Status::INVALID_FIELD),
        (None, None) => Ok(None),
        _ if !is_short => Err(Status::INVALID_NAMESPACE),
        (Some(one), Some(other)) if one != other => Err(Status::INCOMPATIBLE),
        (Some(_), Some(_)) if reads.acts() != writes.acts() => Err(Status::INVALID_FIELD),
        (Some(_), None) if !reads.acts() => Err(Status::INCOMPATIBLE),
        (None, Some(_)) if !writes.acts() => Err(Status::INCOMPATIBLE),
        (from, to) => Ok(Some((from.map_or(Ok(Terms::PLAIN), read)?, to.map_or(Ok(Terms::PLAIN), write)?))),
    }
}
