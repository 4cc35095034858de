//! The state of an emulated disk that other device types do not have.

use crate::change::ModeValues;
use crate::sbc::threshold::{Resource, Threshold};
use lunar_core::io::Space;
use std::cell::Cell;

/// The state of an emulated disk.
#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// Whether START STOP UNIT stopped the disk.
    pub(crate) is_stopped: Cell<bool>,
    /// The used and available space at the last measurement for LOG SENSE.
    pub(crate) space: Cell<Option<Space>>,
    /// The thresholds at the last measurement for unit attentions.
    pub(crate) watch: Watch,
}

impl DiskState {
    /// The state after this core got another view of the unit: measurements of the old view are dropped.
    pub(crate) fn of_new_view(&self) -> Self {
        Self { is_stopped: self.is_stopped.clone(), ..Self::default() }
    }
}

/// The thresholds of a disk at the last measurement.
#[derive(Debug, Default)]
pub(crate) struct Watch(Cell<[Seen; Resource::ALL.len()]>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    threshold: Threshold,
    is_reached: bool,
}

impl Watch {
    /// Whether a measurement reaches a threshold that the last one did not reach. A threshold that was set since then
    /// counts as not reached before. `set` is the number of bytes of a threshold set.
    pub(crate) fn reaches(&self, values: &ModeValues, space: Space, set: u64) -> bool {
        let mut is_new = false;
        let mut seen = self.0.get();
        for ((resource, seen), threshold) in Resource::ALL.into_iter().zip(&mut seen).zip(values.thresholds) {
            let before = seen.threshold == threshold && seen.is_reached;
            let bytes = u64::from(threshold.count).saturating_mul(set);
            let is_reached = threshold.enabled && resource.reaches(space, bytes, set, before);
            is_new |= is_reached && !before;
            *seen = Seen { threshold, is_reached };
        }
        self.0.set(seen);
        is_new
    }
}
