//! How much space thin disks take, and who is told when that reaches a threshold (SBC-4 4.7.3.8).
//!
//! What a disk may take yet shrinks without any command of ours: others write to the same file system. So it is not
//! counted with writes, which then cost nothing more, but looked at from time to time, by one core, and only where
//! somebody has armed a threshold.

use crate::lu::{LogicalUnit, ModeValues};
use crate::sense::Asc;
use crate::target::{Mail, Target};
use lunar_core::io::Space;
use lunar_core::step::{self, Tools};
use lunar_core::unit::Unit;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Bytes of a threshold set at least: finer than anybody plans space, and large disks still count in 32 bits.
const SET_BYTES_MIN: u64 = 1 << 20;
/// Bits of a number of threshold sets.
const COUNT_BITS: u32 = 32;

/// A resource that a threshold is about, by its code: the parameter of the log page that tells how much of it there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Space that the disk may take yet: a threshold is reached from above.
    Available = 1,
    /// Space that it takes: a threshold is reached from below.
    Used = 2,
}

impl Resource {
    /// All, in the order of their thresholds.
    pub const ALL: [Self; 2] = [Self::Available, Self::Used];

    /// Bytes of it.
    fn of(self, space: Space) -> u64 {
        match self {
            Self::Available => space.available,
            Self::Used => space.used,
        }
    }

    /// Threshold sets of it, as far as they can be told. What is taken by halves is taken.
    #[must_use]
    pub fn sets(self, space: Space, set: u64) -> u32 {
        let sets = match self {
            Self::Available => self.of(space) / set,
            Self::Used => self.of(space).div_ceil(set),
        };
        u32::try_from(sets).unwrap_or(u32::MAX)
    }

    /// Whether a threshold is reached, or still is: it is left half a set beyond, or a disk that writes a block and
    /// unmaps it would tell of it each time.
    fn reaches(self, space: Space, threshold: u64, set: u64, before: bool) -> bool {
        let slack = if before { set / 2 } else { 0 };
        match self {
            Self::Available => self.of(space) <= threshold.saturating_add(slack),
            Self::Used => self.of(space).saturating_add(slack) >= threshold,
        }
    }
}

/// A soft threshold, as MODE SELECT arms it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Threshold {
    /// ENABLED
    pub enabled: bool,
    /// THRESHOLD COUNT, in sets.
    pub count: u32,
}

/// Whether a unit counts the space that it takes and may have thresholds.
#[must_use]
pub fn is_counted(unit: &Unit) -> bool {
    unit.traits().unmap_granularity > 0 && unit.store.measures()
}

/// THRESHOLD EXPONENT: logical blocks of a threshold set, as a power of two; 0 for a unit that has none.
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

/// What was seen of a disk's thresholds.
#[derive(Debug, Default)]
pub(crate) struct Watch(Cell<[Seen; Resource::ALL.len()]>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    threshold: Threshold,
    reached: bool,
}

impl Watch {
    /// Looks at what was measured: whether a threshold is reached that was not. One that was just set was not.
    fn reaches(&self, values: &ModeValues, space: Space, set: u64) -> bool {
        let mut news = false;
        let mut seen = self.0.get();
        for ((resource, seen), threshold) in Resource::ALL.into_iter().zip(&mut seen).zip(values.thresholds) {
            let before = seen.threshold == threshold && seen.reached;
            let bytes = u64::from(threshold.count).saturating_mul(set);
            let reached = threshold.enabled && resource.reaches(space, bytes, set, before);
            news |= reached && !before;
            *seen = Seen { threshold, reached };
        }
        self.0.set(seen);
        news
    }
}

/// The right to be the only one who is told. The first who asks has it, on whatever core.
#[derive(Clone, Debug, Default)]
pub struct Claim(Arc<AtomicBool>);

impl Claim {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Claim {}

impl LogicalUnit {
    /// Whether a threshold is armed.
    fn is_watched(&self) -> bool {
        is_counted(&self.unit) && self.mode().thresholds.iter().any(|threshold| threshold.enabled)
    }
}

impl Target {
    /// Waits until some disk has a threshold that is armed.
    pub async fn until_watched(&self) {
        poll_fn(|cx| {
            if self.units().iter().any(|lu| lu.is_watched()) {
                return Poll::Ready(());
            }
            self.watcher.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Has whoever waits for a threshold look again.
    pub(crate) fn rearmed(&self) {
        if let Some(waker) = self.watcher.take() {
            waker.wake();
        }
    }

    /// Measures the disks that have armed thresholds, and has all cores tell of those that are reached. For one core,
    /// from time to time.
    pub async fn watch_space(&self, tools: &mut Tools) {
        for lu in self.units().into_iter().filter(|lu| lu.is_watched()) {
            let Some(space) = step::space(&lu.unit, tools).await else { continue };
            let values = lu.mode();
            if lu.watch.reaches(&values, space, set_bytes(&lu.unit)) {
                let claim = values.single_attention.then(Claim::default);
                self.tell_threshold(lu.lun, claim.as_ref());
                self.everywhere.broadcast(Mail::Threshold { lun: lu.lun, claim }).await;
            }
        }
    }

    /// Tells the nexuses of this core that a threshold is reached; with a claim only one that has addressed the disk,
    /// and only if no other core was faster.
    pub(crate) fn tell_threshold(&self, lun: u16, claim: Option<&Claim>) {
        const REACHED: Asc = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
        let Some(claim) = claim else { return self.attend(lun, REACHED, None) };
        let first = self.nexuses().iter().find_map(|nexus| nexus.known(lun));
        if let Some(itl) = first.filter(|_| claim.take()) {
            itl.attend(REACHED);
        }
    }
}

#[cfg(test)]
#[path = "thin_tests.rs"]
mod tests;
