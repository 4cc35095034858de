//! The memory that one peer may have mapped: it leaves room for the others.
//!
//! The kernel limits the mappings of a process and its address space. Up to a floor, each peer may map whatever the
//! others do. All beyond the floor comes from a part that the peers have in common, and of which each leaves as much as
//! it takes: one alone gets half of that part, and the next one half of the rest.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Amount {
    pub(super) regions: usize,
    /// Bytes of address space.
    pub(super) bytes: usize,
}

/// Peers that may have the whole floor at the same time: a server has fewer virtual machines with much memory, and the
/// others need far less.
const PEERS: usize = 128;
/// The memory that each peer may have. A virtual machine with some DIMMs has a dozen regions. Its front-end has all of
/// its memory mapped twice while it replaces a table, and once for each of its disks: each disk is a peer of its own.
const FLOOR: Amount = Amount { regions: 64, bytes: 512 << 30 };
/// The memory that peers share beyond the floor. A client of huge pages has some thousand regions, and the largest
/// virtual machines have 8 TiB, which may be mapped twice.
const COMMON: Amount = Amount { regions: 16384, bytes: 32 << 40 };
/// Most of it that one peer gets.
#[cfg(test)]
const ALONE: Amount = Amount { regions: COMMON.regions / 2, bytes: COMMON.bytes / 2 };
/// The memory that all peers may have.
pub(super) const ALL: Amount =
    Amount { regions: PEERS * FLOOR.regions + COMMON.regions, bytes: PEERS * FLOOR.bytes + COMMON.bytes };

const _: () = assert!(ALL.bytes <= 96 << 40, "the address space has 128 TiB, and Lunar needs some for itself");

/// The memory that peers have beyond the floor.
static BEYOND: Mutex<Amount> = Mutex::new(Amount { regions: 0, bytes: 0 });

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one assignment, so a panic of another thread leaves the numbers consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Amount {
    /// A region of so many bytes.
    pub(super) fn region(bytes: usize) -> Self {
        Self { regions: 1, bytes }
    }

    fn plus(self, other: Self) -> Self {
        let Self { regions, bytes } = other;
        Self { regions: self.regions.saturating_add(regions), bytes: self.bytes.saturating_add(bytes) }
    }

    fn minus(self, other: Self) -> Self {
        let Self { regions, bytes } = other;
        Self { regions: self.regions.saturating_sub(regions), bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// The mapped memory of a peer.
#[derive(Debug)]
struct Mapped {
    amount: Amount,
    /// Regions that are being unmapped.
    leaving: usize,
}

/// The mapped memory of a peer, and its limit.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Mutex<Mapped>>);

impl Default for Quota {
    fn default() -> Self {
        let amount = Amount { regions: 0, bytes: 0 };
        Self(Arc::new(Mutex::new(Mapped { amount, leaving: 0 })))
    }
}

impl Quota {
    /// Counts one more region.
    ///
    /// # Errors
    /// [`OverQuota`].
    pub(super) fn take(&self, amount: Amount) -> Result<Share, OverQuota> {
        let mut own = locked(&self.0);
        let (before, after) = (own.amount, own.amount.plus(amount));
        let (had, has) = (before.minus(FLOOR), after.minus(FLOOR));
        let mut beyond = locked(&BEYOND);
        let all = beyond.minus(had).plus(has);
        // It has as much as it leaves, unless it takes nothing more.
        let may = |had: usize, has: usize, all: usize, most: usize| has == had || all.saturating_add(has) <= most;
        let fits = may(had.regions, has.regions, all.regions, COMMON.regions)
            && may(had.bytes, has.bytes, all.bytes, COMMON.bytes);
        if !fits {
            return Err(OverQuota { mapped: before });
        }
        (own.amount, *beyond) = (after, all);
        drop((own, beyond));
        Ok(Share { quota: self.clone(), amount, is_leaving: false })
    }

    /// Whether no region is being unmapped: what was let go of is free.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        locked(&self.0).leaving == 0
    }
}

/// The part of a quota that a region has.
#[derive(Debug)]
pub(super) struct Share {
    quota: Quota,
    amount: Amount,
    is_leaving: bool,
}

impl Share {
    /// The region is about to be unmapped.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
        locked(&self.quota.0).leaving += 1;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut own = locked(&self.quota.0);
        let (before, after) = (own.amount, own.amount.minus(self.amount));
        let mut beyond = locked(&BEYOND);
        *beyond = beyond.minus(before.minus(FLOOR)).plus(after.minus(FLOOR));
        own.amount = after;
        own.leaving -= usize::from(self.is_leaving);
    }
}

/// A peer wants more mapped memory than it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverQuota {
    mapped: Amount,
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amount { regions, bytes } = self.mapped;
        write!(
            f,
            "it has {regions} regions of {bytes} bytes in total already, and leaves the rest of the address space to \
             others: give it its memory in fewer and larger pieces, or less memory"
        )
    }
}

impl std::error::Error for OverQuota {}

impl From<OverQuota> for io::Error {
    fn from(why: OverQuota) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, why)
    }
}

/// Tests of one process share what is beyond the floor: one at a time takes some of it.
#[cfg(test)]
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    locked(&ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many such regions as it gets.
    fn fill(quota: &Quota, amount: Amount) -> Vec<Share> {
        std::iter::from_fn(|| quota.take(amount).ok()).collect()
    }

    #[test]
    fn peers_that_take_all_they_get_leave_the_floor_to_each_other_one() {
        let _alone = alone();
        for amount in [Amount::region(4096), Amount { regions: 0, bytes: 1 << 30 }] {
            let quotas: Vec<Quota> = (0..PEERS).map(|_| Quota::default()).collect();
            let taken: Vec<Vec<Share>> = quotas.iter().map(|quota| fill(quota, amount)).collect();
            let (floor, alone) = match amount.regions {
                0 => (FLOOR.bytes / amount.bytes, ALONE.bytes / amount.bytes),
                _ => (FLOOR.regions, ALONE.regions),
            };
            let counts: Vec<usize> = taken.iter().map(Vec::len).collect();
            assert_eq!((counts[0], counts[1]), (floor + alone, floor + alone / 2));
            assert_eq!((counts[PEERS - 1], counts.iter().min()), (floor, Some(&floor)));
            drop(taken);
            assert_eq!(*locked(&BEYOND), Amount { regions: 0, bytes: 0 });
        }
    }

    #[test]
    fn a_peer_that_is_refused_keeps_what_it_has_and_may_map_again_after_it_has_let_go() {
        let _alone = alone();
        let quota = Quota::default();
        let whole = quota.take(Amount::region(FLOOR.bytes)).expect("the floor");
        assert!(quota.take(Amount::region(ALONE.bytes + 1)).is_err(), "more than one peer gets");
        let more = quota.take(Amount::region(ALONE.bytes)).expect("all that one peer gets");
        let why = quota.take(Amount::region(1)).expect_err("it is all").to_string();
        assert!(why.starts_with(&format!("it has 2 regions of {} bytes", FLOOR.bytes + ALONE.bytes)), "{why}");
        assert!(quota.take(Amount::region(usize::MAX)).is_err());
        drop(whole);
        assert!(quota.take(Amount::region(FLOOR.bytes)).is_ok());
        drop(more);
        assert_eq!(locked(&quota.0).amount, Amount { regions: 0, bytes: 0 });
    }

    #[test]
    fn a_region_counts_until_it_is_unmapped() {
        let quota = Quota::default();
        let mut share = quota.take(Amount::region(1)).expect("the floor");
        assert!(quota.is_settled());
        share.leave();
        assert!(!quota.is_settled() && locked(&quota.0).amount == Amount::region(1));
        drop(share);
        assert!(quota.is_settled());
    }
}
