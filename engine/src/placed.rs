//! A volume that is served, as the engine keeps it.

use crate::volume::Volume;
use lunar_control::common_sections;
use lunar_control::schema::StoreKind;
use lunar_core::medium::Medium;
use lunar_core::tally::SharedTally;
use lunar_core::unit::UnitId;
use std::path::PathBuf;

/// A volume that is served.
#[derive(Clone, Debug)]
pub(crate) struct PlacedVolume {
    pub(crate) unit: UnitId,
    pub(crate) volume: Volume,
    pub(crate) medium: Medium,
    pub(crate) tally: SharedTally,
    /// Where its data is.
    pub(crate) place: Option<PathBuf>,
    pub(crate) kind: StoreKind,
    pub(crate) medium_kind: common_sections::Medium,
}
