//! Why the edited file of the configuration is not in force.

use crate::failure::Failure;
use crate::versions::Trouble;
use std::fmt;

/// Why the edited file is not in force, until a change succeeds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RefusedFile {
    /// It is missing or empty, so it was not edited. The words say what to do.
    Lost(String),
    /// The change would take something from clients.
    InUse {
        /// The file.
        file: String,
        /// The clients.
        why: String,
    },
    /// It is wrong, or its change cannot be made.
    Wrong {
        /// The file.
        file: String,
        /// The first mistake.
        why: String,
    },
}

impl RefusedFile {
    /// The reason for which this file was refused.
    #[must_use]
    pub fn of(failure: &Failure, file: &str) -> Self {
        let file = file.to_owned();
        match failure {
            Failure::Disk(Trouble::Lost(..)) => Self::Lost(failure.to_string()),
            Failure::InUse(why) => Self::InUse { file, why: why.reason() },
            why => Self::Wrong { file, why: why.to_string().lines().next().unwrap_or_default().to_owned() },
        }
    }

    /// The remedy; empty if the words contain it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Lost(_) => "",
            Self::InUse { .. } => {
                "see `lunar plan`; correct the file, then `lunar apply`, or apply it with `lunar apply --force`"
            }
            Self::Wrong { .. } => "correct it, then `lunar apply`",
        }
    }
}

impl fmt::Display for RefusedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => f.write_str(why),
            Self::InUse { file, why } | Self::Wrong { file, why } => {
                write!(f, "{file} was edited and is not in force: {why}")
            }
        }
    }
}
