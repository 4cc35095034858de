//! An NVMe host without I/O, over TCP and in memory that is shared with the controller.
//!
//! * [`queue`]: one connection, which is one queue: bytes in, events and bytes out
//! * [`rings`]: a queue in memory: entries and doorbells
//! * [`vfio`]: how memory comes to be shared with a controller of vfio-user, and its registers are accessed
//! * [`command`]: the entries of commands that hosts need
//! * `proof`: how a host proves its name
//! * [`bringup`]: from an admin queue to a controller that serves a namespace
//! * [`discovery`]: what a discovery service says
//! * [`fuzzing`]: what fuzzers call

pub mod bringup;
pub mod command;
pub mod discovery;
mod frame;
pub mod fuzzing;
mod output;
mod proof;
pub mod queue;
pub mod rings;
mod task;
pub mod vfio;

use lunar_nvme::Status;
use lunar_nvme::auth::wire::Why;
use lunar_nvme_tcp::wire::FatalStatus;
use lunar_vfio_user::wire::{Code, Errno};
use std::fmt;

/// Why a queue cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A header's digest was wrong.
    HeaderDigest,
    /// A digest of data was wrong.
    DataDigest,
    /// The controller broke the protocol.
    Protocol(&'static str),
    /// The controller says that the host broke the protocol: why, and where.
    Blamed(FatalStatus, u32),
    /// The controller does not have the digests that were asked for.
    Digests,
    /// Connect was refused: how, and dword 0 of the completion.
    Connect(Status, u32),
    /// A command that the host cannot do without was refused.
    Refused(&'static str, Status),
    /// The host has to prove its name, and has no key.
    NoKey,
    /// The subsystem does not believe that the host is who it says.
    Disbelieved(Why),
    /// The subsystem cannot prove its own name.
    Doubts,
    /// What the controller says of itself, or of a namespace, cannot be.
    Nonsense(&'static str),
    /// The controller does not have this namespace.
    NoNamespace(u32),
    /// A message was refused.
    Errno(Code, Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderDigest => f.write_str("a header from the controller has a wrong digest"),
            Self::DataDigest => f.write_str("data from the controller has a wrong digest"),
            Self::Protocol(what) => write!(f, "the controller broke the protocol: {what}"),
            Self::Blamed(status, at) => write!(f, "the controller gives up: {status:?} at {at}"),
            Self::Digests => f.write_str("the controller does not have the digests that were asked for"),
            Self::Connect(status, result) => write!(f, "Connect was refused: {status:?} ({result:#x})"),
            Self::Refused(what, status) => write!(f, "{what} was refused: {status:?}"),
            Self::NoKey => f.write_str("the host has to prove its name, and has no key"),
            Self::Disbelieved(why) => write!(f, "the host's proof of its name was refused: {why:?}"),
            Self::Doubts => f.write_str("the subsystem cannot prove its name: it has another key, or is another"),
            Self::Nonsense(what) => write!(f, "the controller says nonsense: {what}"),
            Self::NoNamespace(id) => write!(f, "the controller does not have namespace {id}"),
            Self::Errno(code, errno) => write!(f, "{code:?} was refused: {errno:?}"),
        }
    }
}

impl std::error::Error for Error {}
