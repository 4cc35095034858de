//! Which disks a group of initiators sees, by which numbers, and whether it may write them.

use crate::lun::LUNS_MAX;
use std::collections::BTreeMap;
use std::fmt;

/// What a LUN of a map stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The number of the logical unit at its target.
    pub unit: u16,
    /// Whether writes through this LUN are refused, whatever the unit itself admits.
    pub read_only: bool,
}

/// Why LUNs make no map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadMap {
    /// A LUN is not below [`LUNS_MAX`].
    Beyond(u16),
    /// A LUN stands for two units.
    Lun(u16),
    /// A unit has two LUNs: task management and unit attentions go by the unit, and would hit the wrong one.
    Unit(u16),
}

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beyond(lun) => write!(f, "LUN {lun} is too high: {} is the last", LUNS_MAX - 1),
            Self::Lun(lun) => write!(f, "LUN {lun} is given twice"),
            Self::Unit(unit) => write!(f, "volume {unit} is given two LUNs"),
        }
    }
}

impl std::error::Error for BadMap {}

/// LUNs and what they stand for, one to one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LunMap {
    luns: BTreeMap<u16, Mapping>,
    units: BTreeMap<u16, u16>,
}

impl LunMap {
    /// A map of these LUNs.
    ///
    /// # Errors
    /// When they make no map.
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

    /// What a LUN stands for.
    #[must_use]
    pub fn mapping(&self, lun: u16) -> Option<Mapping> {
        self.luns.get(&lun).copied()
    }

    /// The LUN of a unit.
    #[must_use]
    pub fn lun_of(&self, unit: u16) -> Option<u16> {
        self.units.get(&unit).copied()
    }

    /// All LUNs in ascending order, with what they stand for.
    pub fn luns(&self) -> impl Iterator<Item = (u16, Mapping)> {
        self.luns.iter().map(|(lun, mapping)| (*lun, *mapping))
    }
}

#[cfg(test)]
#[path = "lun_map_tests.rs"]
mod tests;
