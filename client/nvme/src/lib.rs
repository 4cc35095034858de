//! An NVMe host without I/O, for NVMe/TCP, NVMe over RDMA, and queues in memory that is shared with the controller.
//!
//! * [`queue`]: a queue over TCP, which is one connection: takes received bytes, gives events and bytes to send
//! * [`rdma`]: capsules and private data of NVMe over RDMA
//! * [`rings`]: a queue pair in memory: entries and doorbells
//! * [`vfio`]: the client's messages of vfio-user: memory maps, interrupts, register accesses
//! * [`command`]: submission queue entries
//! * [`auth`]: DH-HMAC-CHAP, the host's side
//! * [`bringup`]: initializes a controller and identifies a namespace
//! * [`discovery`]: the discovery log page
//! * [`fuzzing`]: entry points of the fuzz targets

pub mod auth;
pub mod bringup;
pub mod command;
pub mod discovery;
mod frame;
pub mod fuzzing;
mod output;
pub mod queue;
pub mod rdma;
pub mod rings;
mod task;
pub mod vfio;

use lunar_nvme::Status;
use lunar_nvme::auth::wire::Why;
use lunar_nvme_tcp::wire::FatalStatus;
use lunar_vfio_user::wire::{Code, Errno};
use std::fmt;

/// Why a queue ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The digest of a header was wrong.
    HeaderDigest,
    /// The digest of data was wrong.
    DataDigest,
    /// The controller violated the protocol.
    Protocol(&'static str),
    /// The controller sent C2HTermReq: its fatal error status, and the offset of the field in error.
    Terminated(FatalStatus, u32),
    /// The controller does not enable the requested digests.
    Digests,
    /// Connect failed: its status, and dword 0 of its completion.
    Connect(Status, u32),
    /// A command of the initialization failed: its name and status.
    Refused(&'static str, Status),
    /// The controller requires authentication, and the host has no key.
    KeyRequired,
    /// The subsystem refused the host's authentication, with this reason.
    AuthenticationFailed(Why),
    /// The subsystem did not authenticate itself.
    SubsystemNotAuthenticated,
    /// The controller returned invalid data.
    InvalidData(&'static str),
    /// The controller has no active namespace with this ID.
    NoNamespace(u32),
    /// A vfio-user message was refused.
    Errno(Code, Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderDigest => f.write_str("header digest mismatch in a PDU of the controller"),
            Self::DataDigest => f.write_str("data digest mismatch in a PDU of the controller"),
            Self::Protocol(what) => write!(f, "protocol error of the controller: {what}"),
            Self::Terminated(status, at) => write!(f, "C2HTermReq of the controller: {status:?}, field at byte {at}"),
            Self::Digests => f.write_str("the controller does not support the requested digests"),
            Self::Connect(status, result) => write!(f, "Connect failed: {status:?} ({result:#x})"),
            Self::Refused(what, status) => write!(f, "{what} failed: {status:?}"),
            Self::KeyRequired => f.write_str("the controller requires authentication: give the host's key"),
            Self::AuthenticationFailed(why) => write!(f, "the subsystem refused the host's authentication: {why:?}"),
            Self::SubsystemNotAuthenticated => {
                f.write_str("authentication of the subsystem failed: it has a different key")
            }
            Self::InvalidData(what) => write!(f, "the controller returned invalid data: {what}"),
            Self::NoNamespace(id) => write!(f, "the controller has no namespace {id}"),
            Self::Errno(code, errno) => write!(f, "{code:?} was refused: {errno:?}"),
        }
    }
}

impl std::error::Error for Error {}
