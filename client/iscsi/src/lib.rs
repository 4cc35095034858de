//! An iSCSI initiator (RFC 7143) without I/O.
//!
//! * [`session`]: the session: takes received bytes, gives events and bytes to send
//! * [`config`]: the parameters that are offered at login and those that were negotiated
//! * [`chap`]: authentication with CHAP; [`secret`]: secrets from files
//! * [`cdb`]: the CDBs of reads, writes, flushes and READ CAPACITY; sense data
//! * [`fuzzing`]: entry points of the fuzz targets

pub mod cdb;
pub mod chap;
pub mod config;
mod frame;
pub mod fuzzing;
mod login;
mod output;
pub mod secret;
pub mod session;
mod task;

use lunar_iscsi::wire::LoginStatus;
use std::fmt;

/// Why a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The digest of a header was wrong.
    HeaderDigest,
    /// The digest of a data segment was wrong.
    DataDigest,
    /// The target violated the protocol.
    Protocol(&'static str),
    /// The target answered this login key with a value that was not offered, or did not answer a required key.
    Key(String),
    /// The target failed authentication, or refused to authenticate this initiator.
    Authentication(&'static str),
    /// The target refused the login with this status; with a redirection, the target's new address.
    Login(LoginStatus, Option<String>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderDigest => f.write_str("header digest mismatch in a PDU of the target"),
            Self::DataDigest => f.write_str("data digest mismatch in a PDU of the target"),
            Self::Protocol(what) => write!(f, "protocol error of the target: {what}"),
            Self::Key(key) => write!(f, "login negotiation failed: the target does not accept the offered {key}"),
            Self::Authentication(what) => write!(f, "authentication failed: {what}"),
            Self::Login(status, None) => write!(f, "the target refused the login: {status:?}"),
            Self::Login(status, Some(address)) => write!(f, "the target moved to {address} ({status:?})"),
        }
    }
}

impl std::error::Error for Error {}
