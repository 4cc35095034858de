//! What a unit's store tells about its space.

use super::kinds::{Tools, ask};
use crate::io::{Data, Extent, Fault, Op, Space};
use crate::unit::{Admitted, Unit};

/// How often [`survey`] asks a store at most: bounds the time of one command.
const SURVEY_ASKS_MAX: usize = 4096;

/// Tells which bytes of `offset..offset + len` take space, from the first on, as at most `runs` runs of whole blocks;
/// runs that follow each other differ. The answer ends early if the store would have to be asked too often.
///
/// # Errors
/// The fault of the store, but for [`Fault::Unsupported`]: then all bytes count as mapped.
pub async fn survey(unit: &Unit, offset: u64, len: u64, runs: usize, tools: &mut Tools) -> Result<Vec<Extent>, Fault> {
    let block = u64::from(unit.geometry.block_size);
    let unit = Admitted::to(unit);
    let (mut found, mut at) = (Vec::<Extent>::new(), 0);
    for _ in 0..SURVEY_ASKS_MAX {
        let rest = len - at;
        if rest == 0 {
            break;
        }
        let asked = ask(unit, Op::Extent { len: rest }, offset + at, tools).await;
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

/// How much space a unit takes and how much is left for it; `None` if its store cannot tell.
pub async fn space(unit: &Unit, tools: &mut Tools) -> Option<Space> {
    let asked = ask(Admitted::to(unit), Op::Space, 0, tools).await;
    match (asked.result, asked.data) {
        (Ok(_), Data::Space(space)) => Some(space),
        _ => None,
    }
}

/// The extent in whole blocks: a block is mapped if any part of it takes space.
fn whole_blocks(extent: Extent, block: u64) -> Extent {
    let whole = extent.len - extent.len % block;
    if extent.mapped || whole == 0 {
        return Extent { len: extent.len.max(1).next_multiple_of(block), mapped: true };
    }
    Extent { len: whole, mapped: false }
}
