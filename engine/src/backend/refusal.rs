//! Why a volume cannot be opened.

use std::fmt;

/// Why a volume cannot be opened, in words that say what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(String);

impl Refusal {
    /// A refusal in these words.
    #[must_use]
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}
