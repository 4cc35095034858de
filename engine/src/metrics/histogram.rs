//! The buckets of latencies in the metrics.

use lunar_control::metrics::Samples;
use lunar_core::traffic::{CELLS, ClassSums, bound};

/// Bounds of a coarse histogram: every second one of the cells.
const COARSE: usize = 2;

/// Adds a histogram with all cells.
pub(super) fn add_fine(samples: &mut Samples<'_>, labels: &[&str], sums: &ClassSums) {
    let buckets = sums.cells.iter().enumerate().map(|(cell, count)| (bound(cell), *count));
    samples.add_histogram(labels, buckets, sums.nanoseconds);
}

/// Adds a histogram with a quarter of the resolution: its bounds are bounds of cells.
pub(super) fn add_coarse(samples: &mut Samples<'_>, labels: &[&str], sums: &ClassSums) {
    const { assert!(CELLS.is_multiple_of(COARSE)) };
    let cells = sums.cells.chunks(COARSE).enumerate();
    let buckets = cells.map(|(at, cells)| (bound(COARSE * at + COARSE - 1), cells.iter().sum()));
    samples.add_histogram(labels, buckets, sums.nanoseconds);
}
