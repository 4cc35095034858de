//! The space that thinly provisioned units use, and its thresholds (SBC-4 4.7.3.8).
//!
//! The space that is available to a unit shrinks without a command of this target, because other programs write to the
//! same file system. So writes do not count it. One core measures it from time to time, and only for units with an
//! armed threshold.

use crate::change::{Change, ScsiChange};
use crate::lu::Emulated;
use crate::sbc::threshold::Claim;
use crate::sense::Asc;
use crate::target::Target;
use lunar_core::step::{self, SlotContext};
use lunar_core::unit::{Unit, UnitId};
use std::future::poll_fn;
use std::task::Poll;

/// Smallest threshold set in bytes: a finer granularity is useless, and large units still count in 32 bits.
const SET_BYTES_MIN: u64 = 1 << 20;
/// Bits of the number of threshold sets.
const COUNT_BITS: u32 = 32;

/// Whether a unit measures the space that it uses, and so may have thresholds.
#[must_use]
pub fn is_counted(unit: &Unit) -> bool {
    unit.traits().unmap_granularity > 0 && unit.store.measures()
}

/// THRESHOLD EXPONENT: logical blocks of a threshold set, as a power of two; 0 for a unit without thresholds.
#[must_use]
pub fn exponent(unit: &Unit) -> u8 {
    if is_counted(unit) { (set_bytes(unit) / u64::from(unit.geometry.block_size)).ilog2() as u8 } else { 0 }
}

/// Bytes of a threshold set.
#[must_use]
pub fn set_bytes(unit: &Unit) -> u64 {
    let bits = unit.geometry.bytes().max(1).ilog2() + 1;
    SET_BYTES_MIN.max(1 << bits.saturating_sub(COUNT_BITS))
}

impl Emulated {
    /// Whether a threshold is armed.
    fn is_watched(&self) -> bool {
        is_counted(&self.unit) && self.mode().thresholds.iter().any(|threshold| threshold.enabled)
    }
}

impl Target {
    /// Waits until a unit has an armed threshold.
    pub async fn until_watched(&self) {
        poll_fn(|cx| {
            if self.units().iter().any(|lu| lu.emulated().is_some_and(Emulated::is_watched)) {
                return Poll::Ready(());
            }
            self.watcher.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Makes [`Target::until_watched`] check again.
    pub(crate) fn wake_watcher(&self) {
        if let Some(waker) = self.watcher.take() {
            waker.wake();
        }
    }

    /// Measures the units with armed thresholds, and notifies the nexuses of all cores of those that are reached. One
    /// core calls it from time to time.
    pub async fn watch_space(&self, slot: &mut SlotContext) {
        for lu in self.units() {
            let Some((lu, disk)) = lu.emulated().and_then(|lu| Some((lu, lu.device.disk()?))) else { continue };
            if !lu.is_watched() {
                continue;
            }
            let Some(space) = step::space(&lu.unit, slot).await else { continue };
            let values = lu.mode();
            if disk.watch.reaches(&values, space, set_bytes(&lu.unit)) {
                let claim = values.single_attention.then(Claim::default);
                let change = ScsiChange { change: Change::Threshold(claim), record: None };
                // It is never refused: it needs no metadata.
                let _ = self.config.units.propose(&lu.unit, None, change.into()).await;
            }
        }
    }

    /// Notifies the nexuses of all cores that the pool of a unit has fallen below its soft threshold, whether they have
    /// armed a threshold or not. One core calls it.
    pub async fn report_low_space(&self, unit: UnitId) {
        let units = self.units();
        let Some(lu) = units.iter().filter_map(|lu| lu.emulated()).find(|lu| lu.unit.id == unit) else { return };
        if lu.device.disk().is_some() {
            let change = ScsiChange { change: Change::Threshold(None), record: None };
            // It is never refused: it needs no metadata.
            let _ = self.config.units.propose(&lu.unit, None, change.into()).await;
        }
    }

    /// Notifies the nexuses of this core that a threshold is reached; with a claim only one nexus that has addressed
    /// the unit, unless another core has taken the claim.
    pub(crate) fn tell_threshold(&self, lun: u16, claim: Option<&Claim>) {
        const REACHED: Asc = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
        let Some(claim) = claim else { return self.establish_unit_attention(lun, REACHED, None) };
        let first = self.nexuses().iter().find_map(|nexus| nexus.known(nexus.lun_of(lun)?));
        if let Some(itl) = first.filter(|_| claim.take()) {
            itl.establish_unit_attention(REACHED);
        }
    }
}

#[cfg(test)]
#[path = "thin_tests.rs"]
mod tests;
