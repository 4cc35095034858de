//! The one source of randomness of a simulation: SplitMix64, whose stream depends on the seed alone.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Odds are counted in parts of this.
pub const MILLION: u32 = 1_000_000;

/// A stream of numbers that a seed determines, on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// A separate stream, for a part that must not disturb the draws of others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    /// A number of the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        assert!(low <= high, "an empty range has no number");
        match (high - low).checked_add(1) {
            // The bias of the remainder is below 2^-32 for every range that a simulation draws from.
            Some(count) => low + self.draw() % count,
            None => self.draw(),
        }
    }

    /// An index of something that has `count` entries.
    ///
    /// # Panics
    /// When it has none.
    pub fn index(&mut self, count: usize) -> usize {
        assert!(count > 0, "nothing to choose from");
        (self.draw() % count as u64) as usize
    }

    /// Whether something happens whose odds are `parts` in a [`MILLION`].
    pub fn odds(&mut self, parts: u32) -> bool {
        // Draws nothing at odds of zero, so that a disabled fault does not shift later draws.
        parts > 0 && self.draw() % u64::from(MILLION) < u64::from(parts)
    }

    /// A random bit.
    pub fn coin(&mut self) -> bool {
        self.draw() & 1 == 1
    }

    /// A time between both ends; short times are more likely, as in reality.
    pub fn time(&mut self, between: &(Duration, Duration)) -> Duration {
        let low = nanos(between.0);
        let span = nanos(between.1).saturating_sub(low);
        let reach = span >> self.within(0..=6);
        Duration::from_nanos(low + self.within(0..=reach))
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.index(last + 1);
            list.swap(last, other);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Spreads a number's bits over all of a word: the finishing step of SplitMix64.
pub(super) fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut chance = Chance::new(0);
        assert_eq!([chance.draw(), chance.draw()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn draws_stay_within_their_ranges() {
        let mut chance = Chance::new(7);
        let between = (Duration::from_nanos(10), Duration::from_nanos(20));
        for _ in 0..1000 {
            assert!((3..=5).contains(&chance.within(3..=5)));
            assert!(chance.index(4) < 4);
            assert!((between.0..=between.1).contains(&chance.time(&between)));
        }
        assert!(!chance.odds(0));
        assert!(chance.odds(MILLION));
        let _ = chance.within(0..=u64::MAX);
    }

    #[test]
    fn odds_that_are_off_draw_nothing() {
        let mut one = Chance::new(1);
        let mut other = Chance::new(1);
        let _ = one.odds(0);
        assert_eq!(one.draw(), other.draw());
    }

    #[test]
    fn a_shuffle_keeps_every_entry() {
        let mut list: Vec<u32> = (0..50).collect();
        Chance::new(3).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
