//! Identifying information: what initiators write on a disk, for people (SPC-4 5.6).

use lunar_core::unit::Unit;
use std::sync::Arc;

/// What there is to identify a disk by: INFORMATION TYPE (SPC-4 6.32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Peripheral device identifying information: any bytes.
    Bytes,
    /// Peripheral device text identifying information: UTF-8, ended with a zero.
    Text,
}

impl Kind {
    /// All, by their codes.
    pub const ALL: [Self; 2] = [Self::Bytes, Self::Text];

    /// Its code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Bytes => 0,
            Self::Text => 2,
        }
    }

    /// The one of this code.
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Bytes of it at most: what every initiator may count on (SPC-4 5.6.2), and no more.
    #[must_use]
    pub fn bytes_max(self) -> usize {
        match self {
            Self::Bytes => 64,
            Self::Text => 256,
        }
    }

    /// The name that a unit keeps it under.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "identifying-information",
            Self::Text => "identifying-text",
        }
    }
}

/// What a unit has kept. More than there may be was not kept by us.
#[must_use]
pub fn load(unit: &Unit, kind: Kind) -> Arc<[u8]> {
    let kept = unit.keep.load(kind.name()).filter(|bytes| bytes.len() <= kind.bytes_max());
    kept.unwrap_or_default().into()
}
