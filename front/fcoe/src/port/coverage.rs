//! The bytes of a burst that have arrived: in any order, each once.

use crate::limits::GAPS_MAX;

/// Parts of a burst, in ascending order, apart from each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    parts: Vec<(u32, u32)>,
}

/// The result of adding a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// All its bytes are new.
    New,
    /// All its bytes were there before.
    Known,
    /// It overlaps other parts, or there are too many gaps: it is not added.
    Refused,
}

impl Coverage {
    /// Adds the bytes from `start` to `end`, which is larger.
    pub fn add(&mut self, start: u32, end: u32) -> Added {
        let at = self.parts.partition_point(|(_, other)| *other < start);
        // Parts from `at` on end at `start` or later.
        let touched = self.parts[at..].iter().take_while(|(other, _)| *other <= end).count();
        let parts = &self.parts[at..at + touched];
        if parts.iter().any(|(from, to)| *from <= start && end <= *to) {
            return Added::Known;
        }
        if parts.iter().any(|(from, to)| *from < end && start < *to) {
            return Added::Refused;
        }
        if parts.is_empty() && self.parts.len() >= GAPS_MAX {
            return Added::Refused;
        }
        let from = parts.first().map_or(start, |(from, _)| (*from).min(start));
        let to = parts.last().map_or(end, |(_, to)| (*to).max(end));
        self.parts.splice(at..at + touched, [(from, to)]);
        Added::New
    }

    /// The end of the part that begins at `start`, or `start`.
    #[must_use]
    pub fn reached(&self, start: u32) -> u32 {
        self.parts.first().filter(|(from, _)| *from == start).map_or(start, |(_, to)| *to)
    }

    /// Forgets all bytes from `end` on.
    pub fn truncate(&mut self, end: u32) {
        self.parts.retain(|(from, _)| *from < end);
        if let Some((_, to)) = self.parts.last_mut() {
            *to = (*to).min(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_many_gaps_are_refused() {
        let mut coverage = Coverage::default();
        let added = (0..200).filter(|at| coverage.add(at * 8 + 4, at * 8 + 8) == Added::New).count();
        assert_eq!(added, GAPS_MAX);
        assert_eq!((coverage.add(0, 4), coverage.reached(0)), (Added::New, 8));
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_bytes(parts in prop::collection::vec((0u32..60, 1u32..20), 0..40), cut in 0u32..80) {
            let (mut coverage, mut model) = (Coverage::default(), [false; 80]);
            for (start, len) in parts {
                let bytes = &mut model[start as usize..(start + len) as usize];
                match coverage.add(start, start + len) {
                    Added::New => {
                        prop_assert!(bytes.iter().all(|byte| !byte));
                        bytes.fill(true);
                    }
                    Added::Known => prop_assert!(bytes.iter().all(|byte| *byte)),
                    Added::Refused => prop_assert!(bytes.iter().any(|byte| *byte)),
                }
                let reached = |from: usize| (from..80).take_while(|at| model[*at]).count();
                prop_assert_eq!(coverage.reached(0) as usize, reached(0));
            }
            coverage.truncate(cut);
            let kept = (0..cut as usize).take_while(|at| model[*at]).count();
            prop_assert_eq!(coverage.reached(0) as usize, kept);
        }
    }
}
