//! The metadata record of format and sanitize. After a crash a sanitize continues (SBC-4 4.11), and a medium whose
//! format was interrupted reports that until it is formatted again.

use super::request::{Pass, Rewrite, RewriteKind};
use crate::change::Record;
use crate::medium::MediumState;
use lunar_core::metadata::MetadataStore;
use lunar_core::step::PIECE_BYTES;
use lunar_core::wire::{Cursor, be};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Name of the record. Without a record, or with an empty one, the medium is ready.
const NAME: &str = "medium";
/// Version of the format.
const VERSION: u8 = 1;

/// The head of the record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version: u8,
    state: u8,
}

/// A pass that is to be done; its pattern follows, then the next pass.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PassHeader {
    unmap: u8,
    length: be::U32,
}

/// [`Header::state`]: a format is in progress.
const FORMATTING: u8 = 1;
/// A format failed.
const FORMAT_FAILED: u8 = 2;
/// A sanitize is in progress.
const SANITIZING: u8 = 3;
/// A sanitize is in progress, with AUSE.
const SANITIZING_CAN_EXIT: u8 = 4;
/// A sanitize failed.
const SANITIZE_FAILED: u8 = 5;
/// A sanitize failed, with AUSE.
const SANITIZE_FAILED_CAN_EXIT: u8 = 6;

/// The medium as described by its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    /// Its state.
    pub(crate) medium: MediumState,
    /// The sanitize that continues.
    pub(crate) unfinished: Option<Rewrite>,
}

impl From<MediumState> for Stored {
    fn from(medium: MediumState) -> Self {
        Self { medium, unfinished: None }
    }
}

fn header(state: u8) -> Vec<u8> {
    Header { version: VERSION, state }.as_bytes().to_vec()
}

/// The record while all passes of this rewrite are still to be done.
pub(super) fn in_progress(rewrite: &Rewrite) -> Record {
    let mut bytes = header(match rewrite.kind {
        RewriteKind::Format { .. } => FORMATTING,
        RewriteKind::Sanitize { can_exit: false } => SANITIZING,
        RewriteKind::Sanitize { can_exit: true } => SANITIZING_CAN_EXIT,
    });
    for pass in &rewrite.passes {
        // A pattern has at most the length of a block.
        let length = (pass.pattern.len() as u32).into();
        bytes.extend(PassHeader { unmap: pass.unmap.into(), length }.as_bytes());
        bytes.extend(&pass.pattern);
    }
    Record::required(NAME, bytes)
}

/// The record after a failure. If it cannot be saved, the record of the begin stays, and the rewrite counts as
/// interrupted.
pub(super) fn failed(state: MediumState) -> Record {
    let code = match state {
        MediumState::SanitizeFailed { can_exit: false } => SANITIZE_FAILED,
        MediumState::SanitizeFailed { can_exit: true } => SANITIZE_FAILED_CAN_EXIT,
        _ => FORMAT_FAILED,
    };
    Record { is_required: false, ..Record::required(NAME, header(code)) }
}

/// The record of a medium that is ready.
pub(super) fn ready() -> Record {
    Record::required(NAME, Vec::new())
}

/// The medium as described by the metadata of its unit. An unknown record may have been that of a sanitize, so the
/// medium is treated as one whose sanitize failed.
pub(crate) fn stored(metadata: &dyn MetadataStore) -> Stored {
    let record = metadata.load(NAME).unwrap_or_default();
    parse(&record).unwrap_or_else(|| MediumState::SanitizeFailed { can_exit: false }.into())
}

fn parse(bytes: &[u8]) -> Option<Stored> {
    if bytes.is_empty() {
        return Some(MediumState::Ready.into());
    }
    let mut cursor = Cursor::new(bytes);
    let header: &Header = cursor.take().ok().filter(|header: &&Header| header.version == VERSION)?;
    let can_exit = matches!(header.state, SANITIZING_CAN_EXIT | SANITIZE_FAILED_CAN_EXIT);
    match header.state {
        FORMATTING => Some(MediumState::FormatCorrupted.into()),
        FORMAT_FAILED => Some(MediumState::FormatFailed.into()),
        SANITIZE_FAILED | SANITIZE_FAILED_CAN_EXIT => Some(MediumState::SanitizeFailed { can_exit }.into()),
        SANITIZING | SANITIZING_CAN_EXIT => {
            let kind = RewriteKind::Sanitize { can_exit };
            Some(Stored { medium: kind.in_progress(), unfinished: Some(Rewrite { kind, passes: passes(cursor)? }) })
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
mod tests {
    use super::*;
    use lunar_core::metadata::VolatileMemory;
    use proptest::prelude::*;

    /// Two passes, as earlier versions wrote them.
    const TWO_PASSES: &[u8] = b"\x00\x00\x00\x00\x04\x01\x02\x03\x04\x01\x00\x00\x00\x00";

    fn two_passes(kind: RewriteKind) -> Rewrite {
        let passes = vec![Pass { pattern: vec![1, 2, 3, 4], unmap: false }, Pass { pattern: Vec::new(), unmap: true }];
        Rewrite { kind, passes }
    }

    #[test]
    fn records_have_the_bytes_that_earlier_versions_wrote() {
        let format = RewriteKind::Format { protection: None };
        let [without, with] = [false, true].map(|can_exit| RewriteKind::Sanitize { can_exit });
        for (kind, code) in [(format, 1), (without, 3), (with, 4)] {
            let record = in_progress(&two_passes(kind));
            assert_eq!((record.name, record.is_required), ("medium", true));
            assert_eq!(record.bytes, [&[1, code], TWO_PASSES].concat(), "{kind:?}");
        }
        for (kind, code) in [(format, 2), (without, 5), (with, 6)] {
            let record = failed(kind.failed());
            assert_eq!((record.name, record.is_required, record.bytes), ("medium", false, vec![1, code]), "{kind:?}");
        }
        assert_eq!((ready().name, ready().bytes), ("medium", vec![]));
    }

    #[test]
    fn records_of_earlier_versions_are_understood() {
        let whole = |code: u8| [&[1, code], TWO_PASSES].concat();
        assert_eq!(parse(&[]), Some(MediumState::Ready.into()));
        for corrupted in [vec![1, 1], whole(1)] {
            assert_eq!(parse(&corrupted), Some(MediumState::FormatCorrupted.into()));
        }
        assert_eq!(parse(&[1, 2]), Some(MediumState::FormatFailed.into()));
        for (code, can_exit) in [(3, false), (4, true)] {
            let rewrite = two_passes(RewriteKind::Sanitize { can_exit });
            let medium = MediumState::Sanitizing { can_exit };
            assert_eq!(parse(&whole(code)), Some(Stored { medium, unfinished: Some(rewrite) }));
            assert_eq!(parse(&[1, code + 2]), Some(MediumState::SanitizeFailed { can_exit }.into()));
        }
    }

    proptest! {
        #[test]
        fn a_record_that_is_not_understood_is_taken_for_a_failed_sanitize(
            bytes in proptest::collection::vec(any::<u8>(), 1..40)
        ) {
            let is_known = bytes[0] == VERSION && matches!(bytes.get(1), Some(FORMATTING..=SANITIZE_FAILED_CAN_EXIT));
            let parsed = parse(&bytes);
            prop_assert!(is_known || parsed.is_none());
            let metadata = VolatileMemory::default();
            drop(metadata.save(NAME, bytes));
            let stored = stored(&metadata);
            prop_assert!(stored.medium != MediumState::Ready);
            let failed = MediumState::SanitizeFailed { can_exit: false };
            prop_assert!(parsed.is_some() || stored == failed.into());
        }

        #[test]
        fn passes_are_read_as_they_were_written(
            passes in proptest::collection::vec((0_u32..12, any::<u8>(), any::<bool>()), 0..5),
            can_exit in any::<bool>()
        ) {
            let pass = |(exponent, byte, unmap): (u32, u8, bool)| {
                Pass { pattern: if unmap { Vec::new() } else { vec![byte; 1 << exponent] }, unmap }
            };
            let kind = RewriteKind::Sanitize { can_exit };
            let rewrite = Rewrite { kind, passes: passes.into_iter().map(pass).collect() };
            let stored = parse(&in_progress(&rewrite).bytes);
            prop_assert_eq!(stored.and_then(|stored| stored.unfinished), Some(rewrite));
        }
    }
}
