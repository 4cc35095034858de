//! Requests to rewrite a whole medium: FORMAT UNIT, SANITIZE, Format NVM and Sanitize.

use crate::medium::MediumState;
use lunar_core::protection;

/// A request to rewrite a whole medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rewrite {
    /// Format or sanitize.
    pub kind: RewriteKind,
    /// The passes, in their order.
    pub passes: Vec<Pass>,
}

/// The kind of a rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RewriteKind {
    /// A format: all blocks are zero after it.
    Format {
        /// The protection type after it; `None` leaves it as it is.
        protection: Option<protection::Kind>,
    },
    /// A sanitize.
    Sanitize {
        /// Whether EXIT FAILURE MODE is allowed if it fails (AUSE).
        can_exit: bool,
    },
}

impl RewriteKind {
    /// The state of the medium while the rewrite is in progress.
    #[must_use]
    pub fn in_progress(self) -> MediumState {
        match self {
            Self::Format { .. } => MediumState::Formatting,
            Self::Sanitize { can_exit } => MediumState::Sanitizing { can_exit },
        }
    }

    /// The state of the medium after the rewrite has failed.
    #[must_use]
    pub fn failed(self) -> MediumState {
        match self {
            Self::Format { .. } => MediumState::FormatFailed,
            Self::Sanitize { can_exit } => MediumState::SanitizeFailed { can_exit },
        }
    }
}

/// One pass over the whole medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pass {
    /// The content of each block; empty for zeroes that need not be transferred to the store.
    pub pattern: Vec<u8>,
    /// Whether the store may deallocate the space.
    pub unmap: bool,
}

/// A step in the life of a rewrite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RewriteChange {
    /// It begins.
    Begin(Rewrite),
    /// It continues after a restart of the process: all of its passes are still to be done.
    Resume(Rewrite),
    /// A pass is done; these remain.
    Advance(Rewrite),
    /// It is done.
    Done,
    /// It has failed.
    Failed,
    /// EXIT FAILURE MODE: the medium is used as the failed sanitize has left it.
    ExitFailureMode,
}
