//! A log-linear histogram of times in nanoseconds: values are kept with a relative error of 1/64, in a table of fixed
//! size.

/// Buckets per power of two; the relative error of a percentile is at most 1/SUB.
const SUB: u64 = 64;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Values of 2^42 ns (73 minutes) and more are counted in the last bucket.
const BITS_MAX: u32 = 42;
const BUCKETS: usize = ((BITS_MAX - SUB_BITS + 1) as usize) * SUB as usize;

/// The counts of values by bucket.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value; 0 if there is none.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The largest value; 0 if there is none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 if there is none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The value that a fraction `part` (0 to 1) of the values do not exceed; 0 if there is none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> u64 {
        let rank = ((self.count as f64 * part).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return top(at).min(self.max);
            }
        }
        self.max
    }
}

/// Each value below `SUB` has its own bucket; above, each power of two has `SUB` buckets.
fn bucket(value: u64) -> usize {
    let value = value.min((1 << BITS_MAX) - 1);
    let power = (value | (SUB - 1)).ilog2() + 1 - SUB_BITS;
    let index = match power {
        0 => value,
        _ => u64::from(power) * SUB + (value >> (power - 1)) - SUB,
    };
    usize::try_from(index).expect("the table fits into memory")
}

/// The largest value of a bucket.
fn top(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match bucket / SUB {
        0 => bucket,
        power => ((bucket % SUB + SUB + 1) << (power - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_have_no_gaps() {
        assert_eq!((bucket(0), bucket(SUB - 1), bucket(SUB)), (0, 63, 64));
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(top(at)), at);
            assert_eq!(bucket(top(at) + 1), at + 1, "after {}", top(at));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_histogram_returns_zeroes() {
        let empty = Histogram::new();
        assert_eq!((empty.count(), empty.min(), empty.max(), empty.quantile(0.5)), (0, 0, 0, 0));
        assert!(empty.mean().abs() < f64::EPSILON);
    }

    #[test]
    fn quantiles_of_known_values() {
        let mut row = Histogram::new();
        (1..=1000).for_each(|v| row.record(v * 1000));
        assert!((row.mean() - 500_500.0).abs() < 1e-6);
        for (part, want) in [(0.5, 500_000), (0.99, 990_000), (0.999, 999_000), (1.0, 1_000_000), (0.0, 1000)] {
            let got = row.quantile(part);
            assert!(got >= want && got <= want + want / SUB, "{part}: {got}");
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_a_64th_too_large_and_never_too_small(
            mut values in prop::collection::vec(0u64..1 << 41, 1..200),
            part in 0.0..1.0f64,
        ) {
            let mut all = Histogram::new();
            let (mut left, mut right) = (Histogram::new(), Histogram::new());
            for (at, value) in values.iter().enumerate() {
                all.record(*value);
                if at % 2 == 0 { left.record(*value) } else { right.record(*value) }
            }
            left.merge(&right);
            values.sort_unstable();
            let rank = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len());
            let (want, got) = (values[rank - 1], all.quantile(part));
            prop_assert!(got >= want && got <= want + want / SUB, "{} for {}", got, want);
            prop_assert_eq!(left.quantile(part), got);
            let last = *values.last().expect("not empty");
            prop_assert_eq!((left.min(), left.max(), left.count()), (values[0], last, all.count()));
        }
    }
}
