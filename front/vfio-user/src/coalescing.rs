//! Interrupt coalescing (NVMe Base 2.0 5.27.1.6, 5.27.1.7): interrupts of I/O completion queues that wait for more
//! completions, as features 08h and 09h say.

use lunar_nvme::features::Coalescing;
use std::time::Duration;

/// Which vectors wait, and for how many completions so far.
#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    terms: Coalescing,
    deferred: Vec<(u16, u32)>,
}

impl Coalescer {
    /// Sets the terms. Returns whether they are others than before.
    pub(crate) fn set(&mut self, terms: Coalescing) -> bool {
        let differs = terms != self.terms;
        self.terms = terms;
        differs
    }

    /// Whether any interrupt waits at all.
    #[inline]
    pub(crate) fn applies(&self) -> bool {
        !self.terms.time.is_zero()
    }

    /// Counts more completions for a vector. Returns whether its interrupt waits for others.
    pub(crate) fn defer(&mut self, vector: u16, count: u32) -> bool {
        if self.terms.exempt.contains(&vector) {
            return false;
        }
        let at = self.deferred.iter().position(|(waiting, _)| *waiting == vector);
        let there = at.map_or(0, |at| self.deferred[at].1).saturating_add(count);
        match at {
            _ if there >= self.terms.entries => return false,
            Some(at) => self.deferred[at].1 = there,
            None => self.deferred.push((vector, there)),
        }
        true
    }

    /// The interrupt of a vector is raised, for all its completions.
    pub(crate) fn raised(&mut self, vector: u16) {
        self.deferred.retain(|(waiting, _)| *waiting != vector);
    }

    /// How long the first interrupt that waits does so at most; `None`: none waits.
    pub(crate) fn time(&self) -> Option<Duration> {
        (!self.deferred.is_empty()).then_some(self.terms.time)
    }

    /// The vectors that wait, which do so no longer.
    pub(crate) fn take(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.deferred).into_iter().map(|(vector, _)| vector).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_waits_for_completions_of_its_own_vector() {
        let mut coalescer = Coalescer::default();
        assert!(!coalescer.applies() && coalescer.time().is_none());
        let time = Duration::from_micros(300);
        assert!(coalescer.set(Coalescing { entries: 3, time, exempt: vec![2] }) && coalescer.applies());
        assert_eq!(
            [coalescer.defer(1, 1), coalescer.defer(2, 1), coalescer.defer(3, 2), coalescer.defer(1, 1)],
            [true, false, true, true]
        );
        assert!(!coalescer.defer(1, 1), "the third");
        coalescer.raised(1);
        assert!(!coalescer.defer(1, 9) && coalescer.time() == Some(time));
        assert_eq!((coalescer.take(), coalescer.time()), (vec![3], None));
    }
}
