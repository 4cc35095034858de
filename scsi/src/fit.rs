//! Cuts the step of a command to the data that the initiator sends or expects.

use crate::admit::Refusal;
use crate::command::Command;
use crate::sense::{Asc, Sense};
use lunar_core::protection::INFO_BYTES;
use lunar_core::step::{Protected, Step};

/// The refusal of a command whose expected length contradicts its CDB, if cutting the command would change its meaning
/// (FCP-4 9.4.2 lists the choices; iSCSI does not prescribe one).
pub(crate) fn mismatch(wanted: u64) -> Refusal {
    Refusal::from(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)).wanting(wanted)
}

/// Cuts a step to the blocks that the initiator sends or expects, and adds its uncut length to `wanted`. Returns the
/// number of bytes that the step moves; `None` for a step without data. Incomplete blocks are never written.
#[inline]
pub(crate) fn fit(step: &mut Step, block: u32, command: &Command, wanted: &mut u64) -> Result<Option<u64>, Refusal> {
    match step {
        Step::Protected(protected) => fit_protected(protected, u64::from(block), command, wanted),
        plain => fit_plain(plain, block, command, wanted),
    }
}

/// [`fit`] for blocks without protection information. Inlined: it is part of every read and write.
#[inline(always)]
fn fit_plain(step: &mut Step, block: u32, command: &Command, wanted: &mut u64) -> Result<Option<u64>, Refusal> {
    let (sends, expects) = (u64::from(command.data_out), u64::from(command.data_in));
    let block = u64::from(block);
    let cut = |len: &mut u64| match sends < *len {
        true if !sends.is_multiple_of(block) => Err(mismatch(*len)),
        true => Ok(std::mem::replace(len, sends)),
        false => Ok(*len),
    };
    let (whole, moved) = match step {
        Step::Read { len, .. } => {
            let whole = *len;
            // The division is needed only for a short expected length.
            if expects < whole {
                *len = whole.min(expects.next_multiple_of(block));
            }
            (whole, whole.min(expects))
        }
        Step::Write { len, .. }
        | Step::OrWrite { len, .. }
        | Step::WriteVerify { len, .. }
        | Step::Compare { len, block: None, .. } => (cut(len)?, *len),
        Step::WriteAtomic { len, .. } if sends < *len => return Err(mismatch(*len)),
        Step::WriteAtomic { len, .. } => (*len, *len),
        Step::Compare { block: Some(size), .. } if sends < u64::from(*size) => return Err(mismatch(u64::from(*size))),
        Step::Compare { block: Some(size), .. } => (u64::from(*size), u64::from(*size)),
        Step::CompareWrite { len, .. } if sends != 2 * *len => return Err(mismatch(2 * *len)),
        Step::CompareWrite { len, .. } => (2 * *len, 2 * *len),
        _ => return Ok(None),
    };
    *wanted += whole;
    Ok(Some(moved))
}

/// [`fit`] for a step whose protection information may be transferred: cut without it, counted with it.
#[cold]
fn fit_protected(
    protected: &mut Protected,
    block: u64,
    command: &Command,
    wanted: &mut u64,
) -> Result<Option<u64>, Refusal> {
    let plain = block as u32;
    if !protected.terms.carried {
        return fit_plain(&mut protected.step, plain, command, wanted);
    }
    let each = plain + INFO_BYTES as u32;
    // An incomplete block stays incomplete.
    let without = |bytes: u32| bytes / each * plain + (bytes % each).min(plain - 1);
    let with = |bytes: u64| bytes / block * u64::from(each) + bytes % block;
    let cut = Command { data_in: without(command.data_in), data_out: without(command.data_out), ..*command };
    let mut blocks = 0;
    let moved = fit_plain(&mut protected.step, plain, &cut, &mut blocks);
    *wanted += with(blocks);
    moved.map(|moved| moved.map(with)).map_err(|refusal| {
        let wanted = with(refusal.wanted);
        refusal.wanting(wanted)
    })
}
