//! SYNCHRONIZE CACHE and PRE-FETCH.

use super::block_range::{Block10, Block16, Blocks, READS, range, within};
use super::limits::VERIFY_BYTES_MAX;
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_core::step::Step;

/// SYNCHRONIZE CACHE(10)
pub type SynchronizeCache10 = Block10<{ OpCode::SYNCHRONIZE_CACHE_10.0 }>;
/// SYNCHRONIZE CACHE(16)
pub type SynchronizeCache16 = Block16<{ OpCode::SYNCHRONIZE_CACHE_16.0 }>;
/// PRE-FETCH(10)
pub type PreFetch10 = Block10<{ OpCode::PRE_FETCH_10.0 }>;
/// PRE-FETCH(16)
pub type PreFetch16 = Block16<{ OpCode::PRE_FETCH_16.0 }>;

/// IMMED: the status may be returned before the work is done. Lunar does the work first.
const IMMEDIATE: u8 = 0x02;
/// SYNC_NV: obsolete, but some initiators set it to ask for a non-volatile cache only (SBC-2 5.18). Lunar writes to the
/// medium in any case.
const SYNC_NV: u8 = 0x04;

/// Admission of SYNCHRONIZE CACHE.
const FLUSHES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Long,
};

/// Plans a flush of all cached data, whatever the range.
fn synchronize(cx: &Context<'_>, cdb: &impl Blocks) -> Result<Plan, Sense> {
    within(cx.emulated()?, cdb.lba(), cdb.count())?;
    Ok(Plan::Do(Step::Flush))
}

/// Plans no step: GOOD means that not all of the blocks fit the cache.
fn pre_fetch(cx: &Context<'_>, cdb: &impl Blocks) -> Result<Plan, Sense> {
    range(cx.emulated()?, cdb, VERIFY_BYTES_MAX).map(|_| Plan::Done)
}

/// Implements a command of one layout that moves no data.
macro_rules! dataless {
    ($command:ty, $name:literal, $clause:literal, $effect:expr, $admission:expr, $flags:expr, $run:ident) => {
        impl CommandType for $command {
            const POLICY: Policy = Policy {
                name: $name,
                clause: $clause,
                code: Code::of(Self::OP),
                effect: $effect,
                admission: $admission,
            };
            const USAGE: Self = Self::usage($flags);
            const DATA: Data<Self> = Data::None;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                $run(cx, self)
            }
        }
    };
}

/// Bits of byte 1 that SYNCHRONIZE CACHE evaluates.
const SYNC: u8 = IMMEDIATE | SYNC_NV;

dataless!(SynchronizeCache10, "SYNCHRONIZE CACHE(10)", "SBC-3 5.26", Effect::None, FLUSHES, SYNC, synchronize);
dataless!(SynchronizeCache16, "SYNCHRONIZE CACHE(16)", "SBC-3 5.27", Effect::None, FLUSHES, SYNC, synchronize);
dataless!(PreFetch10, "PRE-FETCH(10)", "SBC-3 5.8", Effect::Read, READS, IMMEDIATE, pre_fetch);
dataless!(PreFetch16, "PRE-FETCH(16)", "SBC-3 5.9", Effect::Read, READS, IMMEDIATE, pre_fetch);
