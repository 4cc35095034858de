//! The provisioning of a unit's store.

use super::kinds::{SlotContext, ask};
use super::long::LongStep;
use crate::io::{Data, Extent, Fault, Op, Space};
use crate::port::Transfer;
use crate::unit::{Admitted, Unit};

/// Most requests of [`survey`] to a store that answers at once.
const SURVEY_ASKS_MAX: usize = 4096;
/// The time after which [`survey`] asks no more, in nanoseconds: a store behind a network takes milliseconds for each
/// request, and initiators wait for a command for some seconds.
const SURVEY_NANOSECONDS: u64 = 1_000_000_000;

/// Reports which bytes of `offset..offset + len` are mapped, from the first on, as at most `runs` runs of whole
/// blocks; runs that follow each other differ. The answer ends early if it would take too many requests or too long,
/// and when the command is aborted.
///
/// # Errors
/// The fault of the store, except [`Fault::Unsupported`]: then all bytes count as mapped.
pub async fn survey(
    unit: &Unit,
    offset: u64,
    len: u64,
    runs: usize,
    transfer: &impl Transfer,
    slot: &mut SlotContext,
) -> Result<Vec<Extent>, Fault> {
    let block = u64::from(unit.geometry.block_size);
    let unit = Admitted::to(unit);
    let mut long = LongStep::spacing(&unit, len);
    let end = slot.watch.now() + SURVEY_NANOSECONDS;
    let (mut found, mut at) = (Vec::<Extent>::new(), 0);
    for _ in 0..SURVEY_ASKS_MAX {
        let rest = len - at;
        if rest == 0 || at > 0 && (transfer.aborted() || slot.watch.now() >= end) {
            break;
        }
        let turn = long.turn().await;
        let asked = ask(&unit, Op::Extent { len: long.extent(rest) }, offset + at, slot).await;
        drop(turn);
        let next = match asked.result {
            Ok(_) => whole_blocks(asked.extent, block),
            Err(Fault::Unsupported) => Extent { len: rest, mapped: true },
            Err(why) => return Err(why),
        };
        let next = Extent { len: next.len.min(rest), ..next };
        let is_full = found.len() == runs;
        match found.last_mut() {
            Some(last) if last.mapped == next.mapped => last.len += next.len,
            _ if is_full => break,
            _ => found.push(next),
        }
        at += next.len;
    }
    Ok(found)
}

/// How much space a unit uses and how much is available to it; `None` if its store cannot tell.
pub async fn space(unit: &Unit, slot: &mut SlotContext) -> Option<Space> {
    let asked = ask(unit, Op::Space, 0, slot).await;
    match (asked.result, asked.data) {
        (Ok(_), Data::Space(space)) => Some(space),
        _ => None,
    }
}

/// The extent in whole blocks: a block is mapped if any part of it is.
fn whole_blocks(extent: Extent, block: u64) -> Extent {
    let whole = extent.len - extent.len % block;
    if extent.mapped || whole == 0 {
        return Extent { len: extent.len.max(1).next_multiple_of(block), mapped: true };
    }
    Extent { len: whole, mapped: false }
}
