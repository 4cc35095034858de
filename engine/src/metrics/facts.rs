//! The configuration in force, as far as metrics name its parts.

use crate::placed::PlacedVolume;
use lunar_core::tally::SharedTally;
use lunar_core::unit::{Identity, UnitId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume that is served, without its store, which must not outlive its service.
#[derive(Debug)]
pub(crate) struct VolumeFacts {
    pub(super) unit: UnitId,
    pub(super) tally: SharedTally,
    pub(super) identity: Arc<Identity>,
    pub(super) kind: &'static str,
    pub(super) block_size: u32,
    pub(super) size: Option<u64>,
    pub(super) is_read_only: bool,
}

impl VolumeFacts {
    pub(crate) fn of(placed: &PlacedVolume) -> Self {
        let volume = &placed.volume;
        Self {
            unit: placed.unit,
            tally: placed.tally.clone(),
            identity: volume.identity().clone(),
            kind: placed.kind.word(),
            block_size: volume.block_size(),
            size: volume.size(),
            is_read_only: volume.is_read_only(),
        }
    }
}

/// A portal of the configuration in force.
#[derive(Debug)]
pub(crate) struct PortalFacts {
    pub(crate) address: String,
    pub(crate) transport: String,
    pub(crate) is_up: bool,
}

/// The configuration in force, as far as metrics name its parts.
#[derive(Default, Debug)]
pub(crate) struct Facts {
    pub(crate) volumes: BTreeMap<Arc<str>, VolumeFacts>,
    pub(crate) portals: BTreeMap<String, PortalFacts>,
    /// Names of targets in the configuration, by their names in iSCSI and NVMe.
    pub(crate) targets: BTreeMap<Arc<str>, String>,
}
