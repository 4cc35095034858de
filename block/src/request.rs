//! The interface to a transport: [`Request`] and [`Reply`].

use crate::table::Code;
use lunar_core::io::Extent;
use lunar_core::step::FinalData;
use lunar_core::unit::Identity;
use std::sync::Arc;

/// Consecutive bytes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A request of a client.
///
/// Transports count in bytes (NBD) or in sectors of 512 bytes (the others), so a request counts in bytes. A range that
/// is not aligned to logical blocks is refused.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The command.
    pub code: Code,
    /// The bytes that the command is about: as many ranges as its row allows.
    pub ranges: &'a [ByteRange],
    /// Write, discard, write zeroes: the change is on the medium before the request ends (FUA).
    pub durable: bool,
    /// Write zeroes: the space may be deallocated.
    pub unmap: bool,
}

impl<'a> Request<'a> {
    /// A request without flags.
    #[must_use]
    pub fn new(code: Code, ranges: &'a [ByteRange]) -> Self {
        Self { code, ranges, durable: false, unmap: false }
    }
}

/// Why a request fails. Each transport has numbers of its own for these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The medium or the data path has failed, or the request was aborted.
    IoError,
    /// The unit does not support the command.
    Unsupported,
    /// The unit, or this client's access to it, is read-only.
    ReadOnly,
    /// The store has no space left.
    NoSpace,
    /// A reservation excludes this client.
    Conflict,
    /// The unit cannot be used now: it is being formatted or sanitized, has no medium or no active path, or memory is
    /// short. The same request may succeed later.
    NotReady,
    /// The request is malformed: its ranges are too many, not aligned, too long, or beyond the end of the unit.
    Invalid,
}

/// The result of a request besides data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Answer {
    /// Nothing.
    #[default]
    None,
    /// Extents: runs of bytes from the start of the range on, neighbours in different states. They may end before the
    /// range does.
    Extents(Vec<Extent>),
    /// Identify: names and serial number of the unit.
    Identity(Arc<Identity>),
}

/// How a request ended.
#[derive(Debug)]
pub struct Reply {
    /// Success, or the error.
    pub result: Result<(), Error>,
    /// The result besides data.
    pub answer: Answer,
    /// The last data of a read: everything before it was pushed.
    pub final_data: FinalData,
}

impl Default for Reply {
    fn default() -> Self {
        Self::of(Ok(()))
    }
}

impl Reply {
    /// A reply without data.
    #[must_use]
    pub fn of(result: Result<(), Error>) -> Self {
        Self { result, answer: Answer::None, final_data: FinalData::default() }
    }
}
