//! How much an initiator has used a port. A port whose table is full gives up the one that has used it least: the
//! addresses of frames can be forged, and forged ones must not displace hosts.

use lunar_core::time::Instant;
use std::cell::Cell;

/// Commands that have succeeded, as far as they are counted: a host that has used a volume for a moment has more, and
/// an attacker needs as many for each forged address to displace it.
pub const SUCCESSES_MAX: u32 = 64;

/// The use of a port by one initiator.
#[derive(Debug)]
pub struct Usage {
    /// Its commands that have succeeded, at most [`SUCCESSES_MAX`].
    successes: Cell<u32>,
    last_seen: Cell<Instant>,
}

impl Usage {
    /// It was seen now for the first time.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { successes: Cell::new(0), last_seen: Cell::new(now) }
    }

    /// A command of it has succeeded.
    pub fn succeed(&self) {
        self.successes.set((self.successes.get() + 1).min(SUCCESSES_MAX));
    }

    /// It was seen.
    pub fn see(&self, now: Instant) {
        self.last_seen.set(now);
    }

    /// When it was seen last.
    #[must_use]
    pub fn last_seen(&self) -> Instant {
        self.last_seen.get()
    }

    /// Its order among the initiators that may be given up for another one, the first one first: those of which the
    /// fewest commands have succeeded, then those that were silent for the longest time.
    #[must_use]
    pub fn eviction_order(&self) -> (u32, Instant) {
        (self.successes.get(), self.last_seen.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_the_fewest_successes_come_first_and_then_the_silent_ones() {
        let (old, new, forged) = (Usage::new(Instant(1)), Usage::new(Instant(2)), Usage::new(Instant(3)));
        // A forged address has a read that succeeds, and was seen last.
        forged.succeed();
        (0..2).for_each(|_| old.succeed());
        assert!(forged.eviction_order() < old.eviction_order());
        (0..SUCCESSES_MAX).for_each(|_| old.succeed());
        (0..=SUCCESSES_MAX).for_each(|_| new.succeed());
        assert!(old.eviction_order() < new.eviction_order(), "of two hosts, the one that was silent for longer");
        old.see(Instant(4));
        assert!(new.eviction_order() < old.eviction_order() && old.last_seen() == Instant(4));
    }
}
