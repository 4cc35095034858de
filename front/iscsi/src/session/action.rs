//! What a session asks its front to do.

use crate::chap::ChapAnswer;
use crate::config::CDB_MAX;
use crate::login::{Candidate, Established};
use crate::wire::{Function, LoginStatus};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// What the outside has to do.
#[derive(Debug)]
pub enum Action {
    /// Decide on a login: [`Session::authorized`].
    Authorize(Box<Candidate>),
    /// Look at what proves the initiator's name: [`Session::authenticated`].
    Authenticate(Box<ChapAnswer>),
    /// End older sessions of this name (11.12.6: same initiator, ISID and portal group), then number this one:
    /// [`Session::established`].
    Establish(Box<Established>),
    /// Carry out a command: [`Session::reply`] or [`Session::drop_task`].
    Command(Command),
    /// PullResult again: what [`PullResult::Pending`] promised is there, or will not come.
    DataReady(TaskKey),
    /// Carry out a task management function: [`Session::function_done`].
    TaskManagement(TaskManagement),
    /// Tell targets and their addresses: [`Session::targets`].
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
    /// The login was not over in time.
    LoginTimeout,
    /// The peer did not answer a ping.
    PingTimeout,
    /// A header's digest did not match (7.8).
    HeaderDigest,
    /// A PDU cannot be one (7.7), or none was expected.
    Malformed(&'static str),
    /// There was no memory for a header.
    NoMemory,
    /// The initiator was asked to log out and did not in time.
    LogoutTimeout,
}

/// By whose fault a connection was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Responsible {
    /// By nobody's.
    Nobody,
    /// By the peer's, or the network's.
    Peer,
    /// By ours.
    Target,
}

impl CloseReason {
    /// By whose fault.
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
            Self::PingTimeout => f.write_str("the initiator does not answer"),
            Self::HeaderDigest => f.write_str("a header arrived damaged"),
            Self::Malformed(what) => write!(f, "the initiator breaks the protocol: {what}"),
            Self::NoMemory => f.write_str("no memory for an answer"),
            Self::LogoutTimeout => f.write_str("the initiator did not log out when asked"),
        }
    }
}

/// A SCSI command, as its initiator sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The session's name for it.
    pub task: TaskKey,
    /// The initiator's name for it (ITT).
    pub tag: u32,
    /// The logical unit.
    pub lun: [u8; 8],
    /// The CDB, with zeroes behind it.
    pub cdb: [u8; CDB_MAX],
    /// Bytes of the CDB: 16, or more with an additional header.
    pub cdb_len: u8,
    /// The task attribute (11.3.1.2): 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// Bytes that the initiator expects.
    pub data_in: u32,
    /// Bytes that the initiator expects to send.
    pub data_out: u32,
}

/// A task management function, as its initiator sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskManagement {
    /// The session's name for it.
    pub task: TaskKey,
    /// What to do.
    pub function: Function,
    /// The logical unit.
    pub lun: [u8; 8],
    /// The initiator's name for the command that is meant, of functions that mean one.
    pub tag: u32,
    /// The session's name for that command.
    pub referenced: Option<TaskKey>,
}

/// Which targets an initiator asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SendTargetsQuery {
    /// All that it may see.
    All,
    /// One, by its name in lower case.
    One(Arc<str>),
}

/// A target, and where it can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetAddresses {
    /// TargetName.
    pub name: Arc<str>,
    /// Each with its portal group tag.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// A task of a session. Keys of tasks that are gone are harmless: nothing is found under them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    pub(super) index: u16,
    pub(super) generation: u32,
}
