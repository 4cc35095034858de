//! Why a change of the configuration was not made.

use crate::affected::InUse;
use crate::apply::Refusal;
use crate::check::OutsideError;
use crate::document::Refused;
use crate::report::Problems;
use crate::versions::Trouble;
use std::fmt;

/// Why a change was not made. Nothing has changed.
#[derive(Debug)]
pub enum Failure {
    /// The edit is wrong.
    Edit(Refused),
    /// The configuration would be invalid.
    Invalid(Problems),
    /// The running target cannot be changed.
    Refused(Refusal),
    /// The file or its history cannot be read or written.
    Disk(Trouble),
    /// The change needs force.
    InUse(InUse),
    /// A new UUID could not be made.
    Outside(OutsideError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edit(why) => why.fmt(f),
            Self::Invalid(why) => why.fmt(f),
            Self::Refused(why) => why.fmt(f),
            Self::Disk(why) => why.fmt(f),
            Self::InUse(why) => why.fmt(f),
            Self::Outside(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Refused> for Failure {
    fn from(why: Refused) -> Self {
        Self::Edit(why)
    }
}

impl From<Problems> for Failure {
    fn from(why: Problems) -> Self {
        Self::Invalid(why)
    }
}

impl From<Refusal> for Failure {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl From<Trouble> for Failure {
    fn from(why: Trouble) -> Self {
        Self::Disk(why)
    }
}

impl From<OutsideError> for Failure {
    fn from(why: OutsideError) -> Self {
        Self::Outside(why)
    }
}
