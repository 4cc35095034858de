//! Identifying information: bytes and text that initiators assign to a logical unit (SPC-4 5.6).

use lunar_core::unit::Unit;
use std::sync::Arc;

/// INFORMATION TYPE (SPC-4 6.32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Peripheral device identifying information: any bytes.
    Bytes,
    /// Peripheral device text identifying information: UTF-8, terminated by a zero.
    Text,
}

impl Kind {
    /// All types, by ascending code.
    pub const ALL: [Self; 2] = [Self::Bytes, Self::Text];

    /// Its code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Bytes => 0,
            Self::Text => 2,
        }
    }

    /// The type of this code.
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Bytes of the longest value: the length that the standard requires at least (SPC-4 5.6.2).
    #[must_use]
    pub fn bytes_max(self) -> usize {
        match self {
            Self::Bytes => 64,
            Self::Text => 256,
        }
    }

    /// The name under which a unit stores the value.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "identifying-information",
            Self::Text => "identifying-text",
        }
    }
}

/// The stored value of a unit; empty if there is none or if it is too long to be valid.
#[must_use]
pub fn load(unit: &Unit, kind: Kind) -> Arc<[u8]> {
    let kept = unit.metadata.load(kind.name()).filter(|bytes| bytes.len() <= kind.bytes_max());
    kept.unwrap_or_default().into()
}
