//! What a unit keeps of FORMAT UNIT and SANITIZE, so that no crash passes off a medium that is half of this and half of
//! that as a good one: SANITIZE goes on (SBC-4 4.11), and a medium that was to be formatted says so until it is.

use super::{Pass, Renewal};
use crate::lu::MediumState;
use lunar_core::keep::Keeping;
use lunar_core::step::PIECE_BYTES;
use lunar_core::unit::Unit;
use lunar_core::wire::{Cursor, be};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The name under which a unit keeps it. Nothing, or nothing in it: the medium is ready.
pub(crate) const KEPT_AS: &str = "medium";

/// The form of what is kept.
const VERSION: u8 = 1;

/// What is kept begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version: u8,
    state: u8,
}

/// Passes that are to be done, one after the other, each with its pattern behind.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PassHeader {
    unmap: u8,
    length: be::U32,
}

/// [`Header::state`]: FORMAT UNIT is under way.
const FORMATTING: u8 = 1;
/// FORMAT UNIT failed.
const FORMAT_FAILED: u8 = 2;
/// SANITIZE is under way, and will fail without a way out.
const SANITIZING: u8 = 3;
/// SANITIZE is under way (AUSE).
const SANITIZING_EXITS: u8 = 4;
/// SANITIZE failed.
const SANITIZE_FAILED: u8 = 5;
/// SANITIZE failed (AUSE).
const SANITIZE_FAILED_EXITS: u8 = 6;

/// What a medium is in after a restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Its state.
    pub(crate) state: MediumState,
    /// What goes on.
    pub(crate) unfinished: Option<Renewal>,
}

impl Kept {
    fn settled(state: MediumState) -> Self {
        Self { state, unfinished: None }
    }
}

/// Keeps that these passes are still to be done.
pub(super) fn under_way(unit: &Unit, renewal: &Renewal, passes: &[Pass]) -> Keeping {
    let state = match renewal.failed {
        MediumState::SanitizeFailed { exits: true } => SANITIZING_EXITS,
        MediumState::SanitizeFailed { exits: false } => SANITIZING,
        _ => FORMATTING,
    };
    let mut bytes = Header { version: VERSION, state }.as_bytes().to_vec();
    for pass in passes {
        // A pattern is a block at most.
        let length = (pass.pattern.len() as u32).into();
        bytes.extend(PassHeader { unmap: pass.unmap.into(), length }.as_bytes());
        bytes.extend(&pass.pattern);
    }
    unit.keep.keep(KEPT_AS, bytes)
}

/// Keeps that it could not be done.
pub(super) fn failed(unit: &Unit, renewal: &Renewal) -> Keeping {
    let state = match renewal.failed {
        MediumState::SanitizeFailed { exits: true } => SANITIZE_FAILED_EXITS,
        MediumState::SanitizeFailed { exits: false } => SANITIZE_FAILED,
        _ => FORMAT_FAILED,
    };
    unit.keep.keep(KEPT_AS, Header { version: VERSION, state }.as_bytes().to_vec())
}

/// Keeps that the medium is ready.
pub(super) fn done(unit: &Unit) -> Keeping {
    unit.keep.keep(KEPT_AS, Vec::new())
}

/// Keeps what it is in while and after another command set formats it.
pub(crate) fn format(unit: &Unit, state: MediumState) -> Keeping {
    let state = match state {
        MediumState::Ready => return done(unit),
        MediumState::Formatting => FORMATTING,
        _ => FORMAT_FAILED,
    };
    unit.keep.keep(KEPT_AS, Header { version: VERSION, state }.as_bytes().to_vec())
}

/// What a unit's medium is in, as far as it was kept. What cannot be understood may have been a SANITIZE: it is taken
/// for one that failed.
pub(crate) fn load(unit: &Unit) -> Kept {
    let kept = unit.keep.load(KEPT_AS).unwrap_or_default();
    let kept = parse(&kept).unwrap_or_else(|| Kept::settled(MediumState::SanitizeFailed { exits: false }));
    match kept.unfinished {
        // It goes on when it may be written again.
        Some(renewal) if unit.read_only => Kept::settled(renewal.failed),
        _ => kept,
    }
}

fn parse(bytes: &[u8]) -> Option<Kept> {
    if bytes.is_empty() {
        return Some(Kept::settled(MediumState::Ready));
    }
    let mut cursor = Cursor::new(bytes);
    let header: &Header = cursor.take().ok().filter(|header: &&Header| header.version == VERSION)?;
    let exits = matches!(header.state, SANITIZING_EXITS | SANITIZE_FAILED_EXITS);
    let failed = MediumState::SanitizeFailed { exits };
    match header.state {
        FORMATTING => Some(Kept::settled(MediumState::FormatCorrupted)),
        FORMAT_FAILED => Some(Kept::settled(MediumState::FormatFailed)),
        SANITIZE_FAILED | SANITIZE_FAILED_EXITS => Some(Kept::settled(failed)),
        SANITIZING | SANITIZING_EXITS => {
            let (during, passes) = (MediumState::Sanitizing, passes(cursor)?);
            Some(Kept {
                state: during,
                unfinished: Some(Renewal { during, failed, protection: None, passes, immediate: true }),
            })
        }
        _ => None,
    }
}

fn passes(mut cursor: Cursor<'_>) -> Option<Vec<Pass>> {
    let mut passes = Vec::new();
    while !cursor.rest().is_empty() {
        let header: &PassHeader = cursor.take().ok()?;
        let pattern = cursor.bytes(header.length.get() as usize).ok()?;
        // Pieces are filled with whole patterns.
        if !pattern.is_empty() && !PIECE_BYTES.is_multiple_of(pattern.len()) {
            return None;
        }
        passes.push(Pass { pattern: pattern.to_vec(), unmap: header.unmap != 0 });
    }
    Some(passes)
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
