//! LUN maps: the units that a host group sees, their LUNs, and whether the group may write to them.

use crate::lun::LUNS_MAX;
use std::collections::BTreeMap;
use std::fmt;

/// The unit behind a LUN of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Number of the unit in the device server.
    pub unit: u16,
    /// Whether commands that write are refused at this LUN, even if the unit is writable.
    pub read_only: bool,
}

/// Why a list of LUNs is no valid map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadMap {
    /// A LUN is not below [`LUNS_MAX`].
    Beyond(u16),
    /// A LUN has two units.
    Lun(u16),
    /// A unit has two LUNs. Task management and unit attentions refer to a unit, and could not tell its LUNs apart.
    Unit(u16),
}

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beyond(lun) => write!(f, "LUN {lun} is too high: the highest is {}", LUNS_MAX - 1),
            Self::Lun(lun) => write!(f, "LUN {lun} is assigned to two volumes"),
            Self::Unit(unit) => write!(f, "volume {unit} has two LUNs"),
        }
    }
}

impl std::error::Error for BadMap {}

/// A one-to-one map of LUNs and units.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LunMap {
    luns: BTreeMap<u16, Mapping>,
    units: BTreeMap<u16, u16>,
}

impl LunMap {
    /// A map of these LUNs.
    ///
    /// # Errors
    /// When a LUN is too high, or a LUN or a unit occurs twice.
    pub fn new(luns: impl IntoIterator<Item = (u16, Mapping)>) -> Result<Self, BadMap> {
        let mut map = Self::default();
        for (lun, mapping) in luns {
            if lun >= LUNS_MAX {
                return Err(BadMap::Beyond(lun));
            }
            if map.luns.insert(lun, mapping).is_some() {
                return Err(BadMap::Lun(lun));
            }
            if map.units.insert(mapping.unit, lun).is_some() {
                return Err(BadMap::Unit(mapping.unit));
            }
        }
        Ok(map)
    }

    /// The unit of a LUN.
    #[must_use]
    pub fn mapping(&self, lun: u16) -> Option<Mapping> {
        self.luns.get(&lun).copied()
    }

    /// The LUN of a unit.
    #[must_use]
    pub fn lun_of(&self, unit: u16) -> Option<u16> {
        self.units.get(&unit).copied()
    }

    /// All LUNs in ascending order, with their units.
    pub fn luns(&self) -> impl Iterator<Item = (u16, Mapping)> {
        self.luns.iter().map(|(lun, mapping)| (*lun, *mapping))
    }
}

#[cfg(test)]
#[path = "lun_map_tests.rs"]
mod tests;
