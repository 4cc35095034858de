//! Changes of the state of a unit that only SCSI has. They travel through the ledger of the unit state, in its order.

use crate::information::Kind;
use crate::sbc::threshold::{Claim, Resource, Threshold};
use crate::sense::Asc;
use lunar_core::unit::Unit;
use lunar_unit::{CommandSetChange, Opaque, Record, UnitChange};
use std::sync::Arc;

/// Mode parameters that MODE SELECT may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModeValues {
    /// WCE: whether a write may be answered before it is on the medium (SBC-4 6.5.6).
    pub write_cache: bool,
    /// D_SENSE: descriptor format sense data (SPC-4 7.5.8).
    pub descriptor_sense: bool,
    /// SWP: software write protection (SPC-4 7.5.8).
    pub write_protect: bool,
    /// SITUA: the unit attention of a threshold is established for a single nexus (SBC-4 6.5.9).
    pub single_attention: bool,
    /// Thresholds of the space that the unit uses, by [`Resource`] (SBC-4 6.5.9).
    pub thresholds: [Threshold; Resource::ALL.len()],
    /// ATO: initiators own the application tags of protection information (SPC-4 7.5.8).
    pub application_tags_owned: bool,
}

impl ModeValues {
    /// The mode parameters of a unit after power on, if none were saved.
    #[must_use]
    pub fn default_of(unit: &Unit) -> Self {
        Self { write_cache: unit.traits().write_cache, ..Self::default() }
    }
}

/// A change of the state of a unit that only SCSI has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Mode parameters. Those with a record are saved: a reset brings them back.
    Mode(ModeValues),
    /// START STOP UNIT.
    Stopped(bool),
    /// SET TIMESTAMP: the milliseconds by which the clock of the target is behind.
    Clock(i64),
    /// SET IDENTIFYING INFORMATION.
    Information(Kind, Arc<[u8]>),
    /// LOG SELECT: the counters of the log pages start at zero, and the application client log is empty.
    LogReset,
    /// LOG SELECT: the application client log.
    ClientLog(Arc<[u8]>),
    /// The device of a forwarded logical unit, or the process that has commands of an emulated one, has changed, or
    /// reported a unit attention condition, which it reports once.
    Device(Asc),
    /// A threshold of the space that the unit uses is reached. The unit attention is established for all nexuses, or
    /// for the one that has the claim.
    Threshold(Option<Claim>),
}

impl Change {
    /// The unit attention condition of the other nexuses.
    #[must_use]
    pub(crate) fn attention(&self) -> Option<Asc> {
        match self {
            Self::Mode(_) => Some(Asc::MODE_PARAMETERS_CHANGED),
            Self::Stopped(_) => None,
            Self::Clock(_) => Some(Asc::TIMESTAMP_CHANGED),
            Self::Information(..) => Some(Asc::DEVICE_IDENTIFIER_CHANGED),
            Self::LogReset | Self::ClientLog(_) => Some(Asc::LOG_PARAMETERS_CHANGED),
            Self::Device(asc) => Some(*asc),
            Self::Threshold(_) => Some(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED),
        }
    }
}

/// A [`Change`] on its way through the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ScsiChange {
    pub(crate) change: Change,
    /// The metadata record that is durable before the change takes effect.
    pub(crate) record: Option<Record>,
}

impl CommandSetChange for ScsiChange {
    fn record(&self) -> Option<Record> {
        self.record.clone()
    }
}

impl From<ScsiChange> for UnitChange {
    fn from(change: ScsiChange) -> Self {
        Self::CommandSet(Opaque::new(change))
    }
}
