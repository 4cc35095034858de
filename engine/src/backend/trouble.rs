//! Troubles of the medium of a store while it is served.

use std::fmt;

/// The kind of trouble of a store. A store has at most one trouble of each kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// The medium became smaller: data is lost.
    Truncated,
    /// The file has no name any more: its data ends with the process.
    Deleted,
    /// The path does not lead to the medium any more: the next start does not find it.
    Moved,
    /// The medium cannot be reached any more.
    Gone,
    /// The process that serves the medium is unavailable or does not answer: commands wait as long as the store lets
    /// them.
    Unserved,
    /// Data in the page cache could not be written; flushes fail.
    LostWrites,
    /// Commands end with medium errors.
    MediumErrors,
    /// Writes fail because there is no space.
    NoSpace,
}

/// A trouble of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreTrouble {
    /// Its kind.
    pub condition: Condition,
    /// The trouble, as a sentence without its end.
    pub words: String,
    /// The remedy: an action of the operator.
    pub remedy: String,
}

impl fmt::Display for StoreTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.words, self.remedy)
    }
}
