//! An iSCSI initiator (RFC 7143) without I/O.
//!
//! * [`session`]: the initiator: bytes in, events and bytes out
//! * [`config`]: what it offers at login, and what was agreed
//! * [`chap`]: how names are proved; [`secret`]: secrets from files
//! * [`cdb`]: the commands that a load needs, and sense data
//! * [`fuzzing`]: what fuzzers call

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

/// Why a session cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A header's digest was wrong.
    HeaderDigest,
    /// A data segment's digest was wrong.
    DataDigest,
    /// The target broke the protocol.
    Protocol(&'static str),
    /// The target answered a key of the login with what was not on offer, or not at all where an answer must be.
    Key(String),
    /// The target does not prove its name, or keeps us from proving ours.
    Authentication(&'static str),
    /// The target refused the login, or moved (then with its new address).
    Login(LoginStatus, Option<String>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderDigest => f.write_str("a header from the target has a wrong digest"),
            Self::DataDigest => f.write_str("data from the target has a wrong digest"),
            Self::Protocol(what) => write!(f, "the target broke the protocol: {what}"),
            Self::Key(key) => write!(f, "the target does not agree to {key} as it was offered"),
            Self::Authentication(what) => write!(f, "authentication failed: {what}"),
            Self::Login(status, None) => write!(f, "the target refused the login: {status:?}"),
            Self::Login(status, Some(address)) => write!(f, "the target moved to {address} ({status:?})"),
        }
    }
}

impl std::error::Error for Error {}
