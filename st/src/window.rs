//! Serial numbers that a peer has used: whether one is new.

/// The numbers below the highest one that are remembered. A sender does not use a number so far beyond one that is not
/// answered.
pub(crate) const SPAN: u32 = 2048;
const WORDS: usize = SPAN as usize / 64;

/// A set of serial numbers (RFC 1982) that have been seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// The highest number; `None` before the first.
    highest: Option<u32>,
    seen: [u64; WORDS],
}

fn bit(number: u32) -> (usize, u64) {
    let at = number % SPAN;
    ((at / 64) as usize, 1 << (at % 64))
}

impl Window {
    /// Whether a number was not seen, and is not so old that this is unknown.
    pub(crate) fn is_new(&self, number: u32) -> bool {
        let Some(highest) = self.highest else { return true };
        let (word, mask) = bit(number);
        let behind = highest.wrapping_sub(number);
        match behind {
            0..SPAN => self.seen[word] & mask == 0,
            // Ahead of the highest by less than half of all numbers.
            _ => behind > u32::MAX / 2,
        }
    }

    /// Adds a number that is new.
    pub(crate) fn insert(&mut self, number: u32) {
        let highest = self.highest.unwrap_or_else(|| number.wrapping_sub(1));
        let ahead = number.wrapping_sub(highest);
        if ahead <= u32::MAX / 2 {
            if ahead >= SPAN {
                self.seen = [0; WORDS];
            } else {
                for step in 1..=ahead {
                    let (word, mask) = bit(highest.wrapping_add(step));
                    self.seen[word] &= !mask;
                }
            }
            self.highest = Some(number);
        }
        let (word, mask) = bit(number);
        self.seen[word] |= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_number_is_new_once(start in any::<u32>(), steps in prop::collection::vec(-2200_i32..80, 1..300)) {
            let (mut window, mut model, mut at) = (Window::default(), BTreeSet::new(), 0_i64);
            let mut highest = i64::MIN;
            for step in steps {
                let number = at + i64::from(step);
                let wire = start.wrapping_add(number as u32);
                let expected = number > highest || (highest - number < i64::from(SPAN) && !model.contains(&number));
                prop_assert_eq!(window.is_new(wire), expected, "{}", number);
                if expected {
                    window.insert(wire);
                    model.insert(number);
                    highest = highest.max(number);
                }
                at = highest;
            }
        }
    }
}
