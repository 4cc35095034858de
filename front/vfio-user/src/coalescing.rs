//! Interrupts of I/O completion queues that wait for more completions (NVMe Base 2.0 5.27.1.6), as features 08h and
//! 09h say.

use lunar_nvme::features::Coalescing;
use std::time::Duration;

/// Which vectors wait, and for how many completions so far.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    terms: Coalescing,
    vectors: Vec<(u16, u32)>,
}

impl Waiting {
    /// On these terms from now on. Tells whether they are others.
    pub(crate) fn set(&mut self, terms: Coalescing) -> bool {
        let differs = terms != self.terms;
        self.terms = terms;
        differs
    }

    /// Whether any interrupt waits for anything.
    #[inline]
    pub(crate) fn applies(&self) -> bool {
        !self.terms.time.is_zero()
    }

    /// So many more completions for a vector: whether its interrupt waits for others.
    pub(crate) fn wait(&mut self, vector: u16, count: u32) -> bool {
        if self.terms.exempt.contains(&vector) {
            return false;
        }
        let at = self.vectors.iter().position(|(waiting, _)| *waiting == vector);
        let there = at.map_or(0, |at| self.vectors[at].1).saturating_add(count);
        match at {
            _ if there >= self.terms.entries => return false,
            Some(at) => self.vectors[at].1 = there,
            None => self.vectors.push((vector, there)),
        }
        true
    }

    /// The interrupt of a vector is raised: it is for all that there is.
    pub(crate) fn raised(&mut self, vector: u16) {
        self.vectors.retain(|(waiting, _)| *waiting != vector);
    }

    /// How long the first of those that wait does so at most; `None`: none waits.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (!self.vectors.is_empty()).then_some(self.terms.time)
    }

    /// Those that wait, which do so no longer.
    pub(crate) fn take(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.vectors).into_iter().map(|(vector, _)| vector).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_waits_for_its_completions_and_not_for_others() {
        let mut waiting = Waiting::default();
        assert!(!waiting.applies() && waiting.patience().is_none());
        let time = Duration::from_micros(300);
        assert!(waiting.set(Coalescing { entries: 3, time, exempt: vec![2] }) && waiting.applies());
        assert_eq!(
            [waiting.wait(1, 1), waiting.wait(2, 1), waiting.wait(3, 2), waiting.wait(1, 1)],
            [true, false, true, true]
        );
        assert!(!waiting.wait(1, 1), "the third");
        waiting.raised(1);
        assert!(!waiting.wait(1, 9) && waiting.patience() == Some(time));
        assert_eq!((waiting.take(), waiting.patience()), (vec![3], None));
    }
}
