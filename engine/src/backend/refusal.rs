//! Why a volume cannot be opened.

use super::UnevenSize;
use std::error::Error;
use std::fmt;

/// Why a volume cannot be opened, with a message that says what to do.
#[derive(Debug)]
pub enum Refusal {
    /// The request has no path.
    NoPath,
    /// The request has no size.
    NoSize,
    /// The size of the volume of this name is not a whole number of blocks.
    Uneven(String, UnevenSize),
    /// The kind of store keeps no protection information.
    NoProtection {
        /// The name of the volume.
        name: String,
        /// The option or key that asks for it.
        option: String,
    },
    /// An error of the kind of store, which only the kind knows.
    Store(Box<dyn Error + Send + Sync>),
}

impl Refusal {
    /// An error of a kind of store.
    #[must_use]
    pub fn store(why: impl Error + Send + Sync + 'static) -> Self {
        Self::Store(Box::new(why))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPath => f.write_str("it has no path"),
            Self::NoSize => f.write_str("it has no size"),
            Self::Uneven(name, why) => write!(f, "{name}: {why}"),
            Self::NoProtection { name, option } => {
                write!(f, "{name} has no place for protection information: leave out {option}")
            }
            Self::Store(why) => why.fmt(f),
        }
    }
}

impl Error for Refusal {}
