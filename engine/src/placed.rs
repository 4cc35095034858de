//! A volume that is served, as the engine keeps it.

use crate::volume::Volume;
use lunar_control::common_sections;
use lunar_control::schema::StoreKind;
use lunar_control::value::FilePath;
use lunar_core::medium::Medium;
use lunar_core::tally::SharedTally;
use lunar_core::unit::UnitId;

/// A volume that is served.
#[derive(Clone, Debug)]
pub(crate) struct PlacedVolume {
    pub(crate) unit: UnitId,
    pub(crate) volume: Volume,
    pub(crate) medium: Medium,
    pub(crate) tally: SharedTally,
    pub(crate) path: Option<FilePath>,
    pub(crate) kind: StoreKind,
    pub(crate) medium_kind: common_sections::Medium,
}
