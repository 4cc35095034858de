//! Flush, Write, Read, Write Uncorrectable, Compare, Write Zeroes, Verify.

use super::{READS, WRITES, io};
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::namespace::{ALL, Namespace};
use crate::plan::Plan;
use crate::policy::{Admission, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::protect::{self, About, Prinfo, Tags};
use crate::row::{CommandType, Data};
use lunar_core::protection::Terms;
use lunar_core::step::{Protected, Step};

/// Dword 12: number of logical blocks, 0-based.
const BLOCKS: u32 = 0xffff;
/// Dword 12: the blocks may be deallocated.
const DEALLOCATE: u32 = 1 << 25;
/// Dword 12: force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

/// The byte range of dwords 10 to 12, and its protection checks if the host sees the protection information.
struct Named {
    offset: u64,
    len: u64,
    terms: Option<Terms>,
}

impl Named {
    fn of(sqe: &Sqe, cx: &Context<'_>, about: About) -> Result<Self, Status> {
        let (attached, asked) = (cx.attached()?, Prinfo::of(sqe));
        let shown = attached.shown();
        if shown.is_none() && asked.is_set() {
            return Err(Status::INVALID_FIELD);
        }
        let first = sqe.cdw_pair(10);
        let (offset, len) = bytes(&attached.namespace, first, u64::from(sqe.cdw(12) & BLOCKS) + 1)?;
        let terms = shown.map(|kind| protect::terms(kind, about, (asked, Tags::of(sqe)), first)).transpose()?;
        Ok(Self { offset, len, terms })
    }

    /// The same, for a command that transfers the blocks.
    fn moved(sqe: &Sqe, cx: &Context<'_>, about: About) -> Result<Self, Status> {
        let named = Self::of(sqe, cx, about)?;
        let block = cx.namespace()?.block_size();
        let moved = named.terms.map_or(named.len, |terms| terms.wire(named.len, block));
        if moved > TRANSFER_BYTES_MAX { Err(Status::INVALID_FIELD) } else { Ok(named) }
    }

    /// The step with these protection checks.
    fn step(&self, step: Step) -> Step {
        match self.terms {
            None => step,
            Some(terms) => Step::Protected(Box::new(Protected { step, terms, other: terms })),
        }
    }
}

/// The byte range of blocks, which must exist.
pub(super) fn bytes(namespace: &Namespace, first: u64, count: u64) -> Result<(u64, u64), Status> {
    let geometry = &namespace.unit.geometry;
    let end = first.checked_add(count).ok_or(Status::LBA_RANGE)?;
    if end > geometry.blocks {
        return Err(Status::LBA_RANGE);
    }
    let block = u64::from(geometry.block_size);
    Ok((first * block, count * block))
}

/// Whether a write must be on the medium before its completion.
fn durable(sqe: &Sqe, cx: &Context<'_>) -> bool {
    sqe.cdw(12) & FORCE_UNIT_ACCESS != 0 || !cx.controller().caches_writes()
}

/// Flush
#[derive(Clone, Copy, Debug)]
pub struct Flush;

impl CommandType for Flush {
    const POLICY: Policy = Policy {
        name: "Flush",
        clause: "NVMe Base 2.0 7.1",
        code: io(0x00),
        effect: Effect::None,
        admission: Admission {
            scope: CommandScope::Namespaces,
            transport: Transport::Every,
            discovery: Gate::Stops,
            unauthenticated: Gate::Stops,
            disabled: Gate::Stops,
            persistent: Persistent::Conflict,
            inaccessible: Gate::Stops,
            rewrite: Gate::Stops,
            unformatted: Gate::Stops,
            write_protect: Gate::Passes,
        },
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        Ok(if sqe.nsid.get() == ALL { Plan::Flush } else { Plan::Do(Step::Flush) })
    }
}

/// Write
#[derive(Clone, Copy, Debug)]
pub struct Write;

impl CommandType for Write {
    const POLICY: Policy = Policy {
        name: "Write",
        clause: "NVM Command Set 1.0 3.2.6",
        code: io(0x01),
        effect: Effect::Content,
        admission: WRITES,
    };
    const DATA: Data = Data::Step;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let named = Named::moved(sqe, cx, About::Write)?;
        let Named { offset, len, .. } = named;
        Ok(Plan::Do(named.step(Step::Write { offset, len, durable: durable(sqe, cx) })))
    }
}

/// Read
#[derive(Clone, Copy, Debug)]
pub struct Read;

impl CommandType for Read {
    const POLICY: Policy = Policy {
        name: "Read",
        clause: "NVM Command Set 1.0 3.2.4",
        code: io(0x02),
        effect: Effect::None,
        admission: READS,
    };
    const DATA: Data = Data::Step;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let named = Named::moved(sqe, cx, About::Read)?;
        let Named { offset, len, .. } = named;
        Ok(Plan::Do(named.step(Step::Read { offset, len })))
    }
}

/// Write Uncorrectable
#[derive(Clone, Copy, Debug)]
pub struct WriteUncorrectable;

impl CommandType for WriteUncorrectable {
    const POLICY: Policy = Policy {
        name: "Write Uncorrectable",
        clause: "NVM Command Set 1.0 3.2.7",
        code: io(0x04),
        effect: Effect::Content,
        admission: WRITES,
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let (offset, len) = bytes(cx.namespace()?, sqe.cdw_pair(10), u64::from(sqe.cdw(12) & BLOCKS) + 1)?;
        Ok(Plan::Do(Step::Mark { offset, len }))
    }
}

/// Compare
#[derive(Clone, Copy, Debug)]
pub struct Compare;

impl CommandType for Compare {
    const POLICY: Policy = Policy {
        name: "Compare",
        clause: "NVM Command Set 1.0 3.2.1",
        code: io(0x05),
        effect: Effect::None,
        admission: READS,
    };
    const DATA: Data = Data::Step;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let named = Named::moved(sqe, cx, About::Compare)?;
        let Named { offset, len, .. } = named;
        Ok(Plan::Do(named.step(Step::Compare { offset, len, block: None })))
    }
}

/// Write Zeroes
#[derive(Clone, Copy, Debug)]
pub struct WriteZeroes;

impl CommandType for WriteZeroes {
    const POLICY: Policy = Policy {
        name: "Write Zeroes",
        clause: "NVM Command Set 1.0 3.2.8",
        code: io(0x08),
        effect: Effect::Content,
        admission: WRITES,
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let named = Named::of(sqe, cx, About::Zeroes)?;
        let Named { offset, len, .. } = named;
        let unmap = sqe.cdw(12) & DEALLOCATE != 0;
        // Blocks that get no protection information count as deallocated.
        let is_made = named.terms.is_some() && Prinfo::of(sqe).acts();
        let pattern = if is_made { vec![0; cx.namespace()?.block_size() as usize] } else { Vec::new() };
        let fill = named.step(Step::Fill { offset, len, pattern, unmap });
        // Without a volatile write cache, a flush follows anyway.
        let is_forced = sqe.cdw(12) & FORCE_UNIT_ACCESS != 0;
        Ok(if is_forced { Plan::Steps(vec![fill, Step::Flush]) } else { Plan::Do(fill) })
    }
}

/// Verify
#[derive(Clone, Copy, Debug)]
pub struct Verify;

impl CommandType for Verify {
    const POLICY: Policy = Policy {
        name: "Verify",
        clause: "NVM Command Set 1.0 3.2.5",
        code: io(0x0c),
        effect: Effect::None,
        admission: READS,
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let named = Named::of(sqe, cx, About::Verify)?;
        let Named { offset, len, .. } = named;
        Ok(Plan::Do(named.step(Step::Verify { offset, len })))
    }
}
