//! The numbers of units.

use lunar_scsi::lun::LUNS_MAX;
use std::collections::BTreeSet;

/// Numbers of units, in rotation: work that is still in progress at a removed unit has its number, and must not reach
/// another unit.
#[derive(Default, Debug)]
pub(crate) struct UnitNumbers {
    taken: BTreeSet<u32>,
    /// The number after the last one taken.
    next: u32,
}

impl UnitNumbers {
    /// Takes the number that was not taken for the longest time; `None` if all are.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = (self.next..u32::from(LUNS_MAX)).chain(0..self.next).find(|one| !self.taken.contains(one))?;
        self.taken.insert(number);
        self.next = number + 1;
        Some(number)
    }

    /// Gives a number back.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.taken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_as_late_as_can_be() {
        let mut numbers = UnitNumbers::default();
        let all = u32::from(LUNS_MAX);
        assert_eq!([numbers.take(), numbers.take()], [Some(0), Some(1)]);
        numbers.give_back(0);
        assert!((2..all).all(|number| numbers.take() == Some(number)));
        assert_eq!([numbers.take(), numbers.take()], [Some(0), None]);
        [7, 5].into_iter().for_each(|number| numbers.give_back(number));
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(5), Some(7), None]);
    }
}
