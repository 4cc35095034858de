//! The failure of a command and the exit code of the process.

use lunar_api::client::ClientError;
use std::fmt;

/// The exit code if the service is not running.
pub const EXIT_NOT_RUNNING: u8 = 3;
/// The exit code if the caller lacks a right.
pub const EXIT_NOT_ALLOWED: u8 = 4;

/// Why a command failed, as a message that says what to do.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the process.
    pub exit: u8,
    /// The message; empty if everything has been printed.
    pub message: String,
}

impl Failure {
    /// A failure with exit code 1.
    #[must_use]
    pub fn new(message: impl fmt::Display) -> Self {
        Self { exit: 1, message: message.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<ClientError> for Failure {
    fn from(why: ClientError) -> Self {
        let exit = match &why {
            ClientError::NotRunning(_) => EXIT_NOT_RUNNING,
            ClientError::NotAllowed(_) => EXIT_NOT_ALLOWED,
            ClientError::Refused(..) | ClientError::Broken(_) => 1,
        };
        Self { exit, message: why.to_string() }
    }
}
