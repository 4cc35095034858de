//! What a command decided to do.

use crate::lu::Change;
use crate::renew::Renewal;
use lunar_core::step::Step;

/// What is to be done for a command; all that it needs has been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Nothing more: GOOD.
    Done,
    /// What was written to [`Context::out`](crate::context::Context::out) is the Data-In.
    Answer,
    /// A step.
    Do(Step),
    /// Which blocks from this one on take space, in so many runs at most, is the Data-In: GET LBA STATUS.
    Survey {
        /// First block.
        lba: u64,
        /// Runs.
        runs: usize,
    },
    /// Two steps, one after the other. Behind a pointer, for it is seldom.
    Both(Box<[Step; 2]>),
    /// The whole medium is written anew. Behind a pointer, for it is seldom.
    Renew(Box<Renewal>),
    /// A change of the logical unit that all cores must know of first.
    Change {
        /// Whether what is cached goes to the medium before.
        flush: bool,
        /// The change.
        change: Change,
    },
}
