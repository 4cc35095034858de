//! The end of a command that was not executed: [`Refusal`].

use crate::command::Status;
use crate::sense::Sense;
use std::ops::Deref;

/// The end of a command that was refused. Boxed: refusals are rare, and results that carry one are moved for every
/// command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(Box<Ending>);

/// The content of a [`Refusal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// The status.
    pub status: Status,
    /// The sense data of CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Bytes that the command would have moved, or 0: see [`Reply::wanted`](crate::Reply::wanted).
    pub wanted: u64,
}

impl Refusal {
    /// A status without sense data.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self(Box::new(Ending { status, sense: None, wanted: 0 }))
    }

    /// The same refusal with the number of bytes that the command would have moved.
    #[must_use]
    pub fn wanting(mut self, wanted: u64) -> Self {
        self.0.wanted = wanted;
        self
    }
}

impl Deref for Refusal {
    type Target = Ending;
    fn deref(&self) -> &Ending {
        &self.0
    }
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self(Box::new(Ending { status: Status::CHECK_CONDITION, sense: Some(sense), wanted: 0 }))
    }
}
