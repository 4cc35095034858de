//! The result of planning a command: [`Plan`].

use crate::change::Change;
use crate::copy::list::CopyList;
use crate::copy::results::CopyRequest;
use crate::copy::tokens::Data;
use crate::copy::transfer::TokenWrite;
use lunar_core::step::Step;
use lunar_unit::removal::request::Motion;
use lunar_unit::rewrite::request::Rewrite;
use lunar_unit::rewrite::task::Until;
use lunar_unit::{Record, UnitChange};
use std::time::Duration;

/// The work of a command whose CDB and parameter list are valid. Rare and large variants are boxed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// No work: GOOD.
    Done,
    /// Data-In was written to [`Context::out`](crate::context::Context::out).
    Answer,
    /// Execute a step.
    Do(Step),
    /// Ask the store which blocks are mapped, and return them as Data-In (GET LBA STATUS).
    Survey {
        /// First block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Limit of runs in the answer.
        runs: usize,
    },
    /// Measure the space of the unit, and return a log page about it as Data-In.
    Log(LogRequest),
    /// SANITIZE (EXIT FAILURE MODE).
    ExitFailureMode,
    /// Execute EXTENDED COPY.
    Copy(Box<CopyList>),
    /// Create a token for this data, with this inactivity timeout.
    Populate(CopyRequest, Box<Data>, Duration),
    /// Write the data of a token.
    Write(Box<TokenWrite>),
    /// Stop the nexus's copy with this list identifier and wait until it has ended.
    StopCopy(u32),
    /// Eject or load the medium.
    Move(Motion),
    /// Rewrite the whole medium.
    Rewrite(Box<(Rewrite, Until)>),
    /// Change the state that only SCSI has of the unit.
    Change {
        /// Whether the cache is flushed after all cores know the change.
        flush: bool,
        /// The metadata record that is durable before the change.
        record: Option<Box<Record>>,
        /// The change.
        change: Change,
    },
    /// Change the unit state.
    Propose(Box<UnitChange>),
    /// Send the command of a forwarded logical unit to its device, and edit the Data-In.
    Forward(Edit),
    /// RESERVATION CONFLICT that `run` decided: the command does not work while the unit has an SPC-2 reservation, not
    /// even for its holder.
    Conflict,
}

/// The edit of the Data-In of a device, because Lunar and not the device keeps LUNs, ports and reservations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Nothing.
    None,
    /// Standard INQUIRY data.
    StandardInquiry,
    /// The VPD page of supported VPD pages.
    SupportedPages,
    /// Another VPD page.
    Page,
}

/// The values of log parameters that LOG SENSE requests (PC): cumulative or default. No parameter has thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogValues {
    /// The counted values.
    Current,
    /// The values after a reset: zeroes.
    Default,
}

/// The page and parameters that LOG SENSE requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRequest {
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// PC.
    pub values: LogValues,
    /// PARAMETER POINTER: parameters of lower codes are left out.
    pub from: u16,
}
