//! SYNCHRONIZE CACHE and PRE-FETCH.

use super::block::{Block10, Block16, Blocks, READS, VERIFY_BYTES_MAX, range, within};
use crate::context::Context;
use crate::plan::Plan;
use crate::sense::Sense;
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use lunar_core::step::Step;

/// SYNCHRONIZE CACHE(10)
pub type SynchronizeCache10 = Block10<{ OpCode::SYNCHRONIZE_CACHE_10.0 }>;
/// SYNCHRONIZE CACHE(16)
pub type SynchronizeCache16 = Block16<{ OpCode::SYNCHRONIZE_CACHE_16.0 }>;
/// PRE-FETCH(10)
pub type PreFetch10 = Block10<{ OpCode::PRE_FETCH_10.0 }>;
/// PRE-FETCH(16)
pub type PreFetch16 = Block16<{ OpCode::PRE_FETCH_16.0 }>;

/// IMMED: an answer before the work is done. Allowed, not promised: the work is done first all the same.
const IMMEDIATE: u8 = 0x02;
/// The obsolete SYNC_NV, which initiators still set: a non-volatile cache would do (SBC-2 5.18). More is done all the
/// same.
const SYNC_NV: u8 = 0x04;

/// What stops SYNCHRONIZE CACHE.
const FLUSHES: Gates = Gates {
    reach: Reach::Disk,
    needs: Needs::Nothing,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Long,
};

/// All that was written goes to the medium, whichever blocks are named.
fn synchronize(cx: &Context<'_>, cdb: &impl Blocks) -> Result<Plan, Sense> {
    within(cx.disk()?, cdb.lba(), cdb.count())?;
    Ok(Plan::Do(Step::Flush))
}

/// Nothing is read ahead of need; GOOD says that not all of the blocks are in the cache.
fn pre_fetch(cx: &Context<'_>, cdb: &impl Blocks) -> Result<Plan, Sense> {
    range(cx.disk()?, cdb, VERIFY_BYTES_MAX).map(|_| Plan::Done)
}

/// A command of one layout that moves no data.
macro_rules! dataless {
    ($command:ty, $name:literal, $clause:literal, $effect:expr, $gates:expr, $flags:expr, $run:ident) => {
        impl CommandType for $command {
            const POLICY: Policy =
                Policy { name: $name, clause: $clause, code: Code::of(Self::OP), effect: $effect, gates: $gates };
            const USAGE: Self = Self::usage($flags);
            const DATA: Data<Self> = Data::None;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                $run(cx, self)
            }
        }
    };
}

/// What SYNCHRONIZE CACHE evaluates of byte 1.
const SYNC: u8 = IMMEDIATE | SYNC_NV;

dataless!(SynchronizeCache10, "SYNCHRONIZE CACHE(10)", "SBC-3 5.26", Effect::None, FLUSHES, SYNC, synchronize);
dataless!(SynchronizeCache16, "SYNCHRONIZE CACHE(16)", "SBC-3 5.27", Effect::None, FLUSHES, SYNC, synchronize);
dataless!(PreFetch10, "PRE-FETCH(10)", "SBC-3 5.8", Effect::Read, READS, IMMEDIATE, pre_fetch);
dataless!(PreFetch16, "PRE-FETCH(16)", "SBC-3 5.9", Effect::Read, READS, IMMEDIATE, pre_fetch);
