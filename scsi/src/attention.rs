//! Unit attention conditions: conditions that a logical unit reports to a nexus before its next command (SAM-5 5.14).

use crate::sense::{Asc, Sense, SenseKey};
use std::cell::Cell;

/// Unit attention conditions of a nexus at a logical unit at most: each code is established once, and there are fewer
/// codes than that.
pub const ATTENTIONS_MAX: usize = 16;

/// The unit attention conditions of one nexus at one logical unit, in the order in which they are reported.
#[derive(Debug, Default)]
pub struct Attentions(Cell<Queue>);

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    codes: [Option<Asc>; ATTENTIONS_MAX],
}

/// Power on and resets: they clear all other conditions, and are reported first.
const RESET_ASC: u16 = 0x29;

impl Attentions {
    /// Establishes a condition, unless it is there already. A reset replaces all others.
    pub fn add(&self, asc: Asc) {
        let mut queue = self.0.get();
        if queue.codes.contains(&Some(asc)) {
            return;
        }
        if asc.0 >> 8 == RESET_ASC {
            queue = Queue::default();
        }
        if let Some(place) = queue.codes.iter_mut().find(|place| place.is_none()) {
            *place = Some(asc);
        }
        self.0.set(queue);
    }

    /// Takes the condition that is reported next.
    pub fn take(&self) -> Option<Sense> {
        let mut queue = self.0.get();
        let first = queue.codes[0].take();
        queue.codes.rotate_left(1);
        self.0.set(queue);
        first.map(|asc| Sense::new(SenseKey::UNIT_ATTENTION, asc))
    }

    /// Clears a condition whose cause the nexus has learned by other means.
    pub fn forget(&self, asc: Asc) {
        let mut queue = Queue::default();
        let kept = self.0.get().codes.into_iter().flatten().filter(|code| *code != asc);
        queue.codes.iter_mut().zip(kept).for_each(|(place, code)| *place = Some(code));
        self.0.set(queue);
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.get().codes[0].is_none()
    }

    /// The condition that is reported next, and the number of all.
    #[must_use]
    pub fn peek(&self) -> Option<(Asc, usize)> {
        let queue = self.0.get();
        queue.codes[0].map(|asc| (asc, queue.codes.iter().flatten().count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(attentions: &Attentions) -> Vec<Asc> {
        std::iter::from_fn(|| attentions.take().map(|sense| sense.asc)).collect()
    }

    #[test]
    fn conditions_are_reported_in_order_and_once() {
        let attentions = Attentions::default();
        for asc in [Asc::CAPACITY_DATA_CHANGED, Asc::MODE_PARAMETERS_CHANGED, Asc::CAPACITY_DATA_CHANGED] {
            attentions.add(asc);
        }
        assert_eq!(attentions.peek(), Some((Asc::CAPACITY_DATA_CHANGED, 2)));
        assert_eq!(told(&attentions), [Asc::CAPACITY_DATA_CHANGED, Asc::MODE_PARAMETERS_CHANGED]);
        assert!(attentions.is_empty());
    }

    #[test]
    fn a_reset_clears_earlier_conditions() {
        let attentions = Attentions::default();
        attentions.add(Asc::CAPACITY_DATA_CHANGED);
        attentions.add(Asc::BUS_DEVICE_RESET);
        attentions.add(Asc::MODE_PARAMETERS_CHANGED);
        assert_eq!(told(&attentions), [Asc::BUS_DEVICE_RESET, Asc::MODE_PARAMETERS_CHANGED]);
    }

    #[test]
    fn the_number_of_conditions_is_limited() {
        let attentions = Attentions::default();
        (0..100).for_each(|code| attentions.add(Asc(code)));
        assert_eq!(told(&attentions).len(), ATTENTIONS_MAX);
    }

    #[test]
    fn a_condition_can_be_cleared() {
        let attentions = Attentions::default();
        attentions.add(Asc::REPORTED_LUNS_DATA_CHANGED);
        attentions.add(Asc::MODE_PARAMETERS_CHANGED);
        attentions.forget(Asc::REPORTED_LUNS_DATA_CHANGED);
        assert_eq!(told(&attentions), [Asc::MODE_PARAMETERS_CHANGED]);
    }
}
