//! The actions that a session requests from its front.

use crate::chap::ChapAnswer;
use crate::config::CDB_MAX;
use crate::login::{Candidate, Established};
use crate::wire::{Function, LoginStatus};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A request of the session to its front.
#[derive(Debug)]
pub enum Action {
    /// Decide on a login. The answer is `Session::authorized`.
    Authorize(Box<Candidate>),
    /// Check the CHAP answer of the initiator. The answer is `Session::authenticated`.
    Authenticate(Box<ChapAnswer>),
    /// End an older session of the same initiator, ISID and portal group (RFC 7143 6.3.5), and give this one a TSIH.
    /// The answer is `Session::established`.
    Establish(Box<Established>),
    /// Execute a command. The answer is `Session::reply` or `Session::drop_task`.
    Command(Command),
    /// Repeat a pull that was `PullResult::Pending`: the data has arrived, or will not arrive.
    DataReady(TaskKey),
    /// Execute a task management function. The answer is `Session::function_done`.
    TaskManagement(TaskManagement),
    /// List targets and their addresses. The answer is `Session::targets`.
    SendTargets(SendTargetsQuery),
    /// Send what is queued, abort all commands and close the connection.
    Close(CloseReason),
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The initiator has logged out.
    LoggedOut,
    /// The login has failed with this status.
    LoginRefused(LoginStatus),
    /// The login took longer than `Config::login_timeout`.
    LoginTimeout,
    /// The initiator did not answer a NOP-In in time.
    PingTimeout,
    /// A header digest did not match (RFC 7143 7.8).
    HeaderDigest,
    /// A PDU is malformed (RFC 7143 7.7), or was not expected.
    Malformed(&'static str),
    /// Commands have waited too long for one with a lower CmdSN, which did not arrive.
    MissingCommand,
    /// There was no memory for a header.
    NoMemory,
    /// The initiator was asked to log out and did not in time.
    LogoutTimeout,
}

/// The side that is responsible for the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Responsible {
    /// Neither side: it ended in order.
    Nobody,
    /// The initiator, or the network.
    Peer,
    /// The target.
    Target,
}

impl CloseReason {
    /// The responsible side.
    #[must_use]
    pub fn responsible(self) -> Responsible {
        match self {
            Self::LoggedOut | Self::LogoutTimeout => Responsible::Nobody,
            Self::LoginRefused(status) if status.0 >= LoginStatus::TARGET_ERROR.0 => Responsible::Target,
            Self::LoginRefused(LoginStatus::MOVED_TEMPORARILY | LoginStatus::MOVED_PERMANENTLY) => Responsible::Nobody,
            Self::NoMemory => Responsible::Target,
            Self::LoginRefused(_)
            | Self::LoginTimeout
            | Self::PingTimeout
            | Self::HeaderDigest
            | Self::MissingCommand
            | Self::Malformed(_) => Responsible::Peer,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoggedOut => f.write_str("the initiator has logged out"),
            Self::LoginRefused(status) => write!(f, "the login was refused: {status:?} (0x{:04x})", status.0),
            Self::LoginTimeout => f.write_str("the login took too long"),
            Self::PingTimeout => {
                f.write_str("the initiator did not answer a NOP-In in time: check the initiator and the network")
            }
            Self::HeaderDigest => f.write_str("a header digest does not match"),
            Self::Malformed(what) => write!(f, "the initiator violates the protocol: {what}"),
            Self::MissingCommand => f.write_str("the initiator violates the protocol: a CmdSN is missing"),
            Self::NoMemory => f.write_str("no memory for a reply"),
            Self::LogoutTimeout => f.write_str("the initiator did not log out when asked"),
        }
    }
}

/// A SCSI command as the initiator sent it (RFC 7143 11.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Identifies the command within the session.
    pub task: TaskKey,
    /// The initiator task tag.
    pub tag: u32,
    /// The LUN.
    pub lun: [u8; 8],
    /// The CDB, padded with zeroes.
    pub cdb: [u8; CDB_MAX],
    /// Bytes of the CDB: 16, or more with an additional header segment.
    pub cdb_len: u8,
    /// The task attribute (RFC 7143 11.3.1.2): 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// Bytes that the initiator expects to receive.
    pub data_in: u32,
    /// Bytes that the initiator expects to send.
    pub data_out: u32,
}

/// A task management function as the initiator sent it (RFC 7143 11.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskManagement {
    /// Identifies the function within the session.
    pub task: TaskKey,
    /// The function.
    pub function: Function,
    /// The LUN.
    pub lun: [u8; 8],
    /// The initiator task tag of the referenced command, for functions that reference one.
    pub tag: u32,
    /// The referenced command, if it is known.
    pub referenced: Option<TaskKey>,
}

/// The value of SendTargets: which targets an initiator asks for (RFC 7143 appendix C).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SendTargetsQuery {
    /// All targets that it may access.
    All,
    /// One target, by its name in lower case.
    One(Arc<str>),
}

/// A target and its portals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetAddresses {
    /// TargetName.
    pub name: Arc<str>,
    /// The address and the portal group tag of each portal.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// Identifies a task of a session. The key of a task that has ended finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    pub(super) index: u16,
    pub(super) generation: u32,
}
