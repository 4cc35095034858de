//! What a command decided to do.

use crate::copy::list::CopyList;
use crate::copy::results::Ask;
use crate::copy::tokens::Data;
use crate::copy::transfer::Writing;
use crate::log;
use crate::lu::Change;
use crate::renew::Renewal;
use crate::reserve::Request;
use crate::tray::Move;
use lunar_core::step::Step;
use std::time::Duration;

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
        /// Blocks to look at.
        blocks: u64,
        /// Runs.
        runs: usize,
    },
    /// A log page that tells how much space there is, which is measured first, is the Data-In.
    Log(log::Ask),
    /// What a SANITIZE that failed left behind is left as it is.
    ExitFailureMode,
    /// A third-party copy.
    Copy(Box<CopyList>),
    /// A token is made that stands for this, and lives unused for so long.
    Populate(Ask, Box<Data>, Duration),
    /// What a token stands for is written.
    Write(Box<Writing>),
    /// The copy of this list identifier that the nexus asked this logical unit for ends; done when it has.
    StopCopy(u32),
    /// The medium is ejected or loaded.
    Move(Move),
    /// The whole medium is written anew. Behind a pointer, for it is seldom.
    Renew(Box<Renewal>),
    /// A change of the logical unit that all cores must know of first.
    Change {
        /// Whether what is cached goes to the medium once all know, before the answer.
        flush: bool,
        /// What must be kept before. Behind a pointer, for it is seldom.
        keep: Option<Box<Kept>>,
        /// The change.
        change: Change,
    },
    /// A change of reservations. Behind a pointer, for it is seldom.
    Reserve(Box<Request>),
    /// Nothing: what is asked for is not told while SPC-2 reservations are in use, not even to their holder.
    Conflict,
}

/// Something for [`Keep::keep`](lunar_core::keep::Keep::keep).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its name.
    pub name: &'static str,
    /// What is kept under it.
    pub bytes: Vec<u8>,
}
