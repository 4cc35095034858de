//! The contents that a power cut may leave in each place of a writer's region.

/// Writes that a place may have after the last durable one; then its writer has to flush.
pub(super) const LATER_MAX: usize = 64;

/// The contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Zero,
    /// The data of the write with this number.
    Data(u64),
    /// A read fails, because the block was marked by Write Uncorrectable.
    Marked,
}

/// The contents that a place may have.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// One of these is on the medium.
    durable: Vec<Content>,
    /// Contents that were written since, in order. A power cut may leave any of them.
    later: Vec<Content>,
    /// How many of these were acknowledged.
    acknowledged: usize,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { durable: vec![Content::Zero], later: Vec::new(), acknowledged: 0 }
    }

    /// A write was sent.
    pub(super) fn issued(&mut self, content: Content) {
        self.later.push(content);
    }

    /// The write that was sent last was acknowledged.
    pub(super) fn acknowledged(&mut self) {
        self.acknowledged = self.later.len();
    }

    /// Every acknowledged write is durable.
    pub(super) fn flushed(&mut self) {
        if let Some(last) = self.acknowledged.checked_sub(1) {
            self.durable = vec![self.later[last]];
            self.later.drain(..=last);
            self.acknowledged = 0;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.later.len() >= LATER_MAX
    }

    /// Whether nothing was written since the last durable write.
    pub(super) fn is_settled(&self) -> bool {
        self.later.is_empty()
    }

    /// Whether a power cut may leave this.
    pub(super) fn allows(&self, content: Content) -> bool {
        self.durable.contains(&content) || self.later.contains(&content)
    }

    /// Whether an acknowledged write is not in what was found.
    pub(super) fn lost(&self, found: &[Content]) -> bool {
        let Some(last) = self.acknowledged.checked_sub(1) else { return false };
        found.iter().any(|content| !self.later[last..].contains(content))
    }

    /// The content that reads return: the acknowledged one. After a power cut blocks may differ.
    pub(super) fn current(&self) -> &[Content] {
        match self.acknowledged.checked_sub(1) {
            Some(last) => &self.later[last..=last],
            None => &self.durable,
        }
    }

    /// These contents were found after a power cut, so they are on the medium.
    pub(super) fn found(&mut self, found: &[Content]) {
        *self = Self { durable: found.to_vec(), later: Vec::new(), acknowledged: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Content::{Data, Marked, Zero};

    fn allowed(place: &Place) -> Vec<Content> {
        [Zero, Data(1), Data(2), Data(3), Marked].into_iter().filter(|content| place.allows(*content)).collect()
    }

    #[test]
    fn a_flush_covers_the_writes_that_were_acknowledged_before() {
        let mut place = Place::new();
        assert_eq!((allowed(&place), place.is_settled()), (vec![Zero], true));
        for number in [1, 2] {
            place.issued(Data(number));
            place.acknowledged();
        }
        place.issued(Data(3));
        assert_eq!(allowed(&place), [Zero, Data(1), Data(2), Data(3)]);
        assert!(!place.is_settled());
        place.flushed();
        assert_eq!((allowed(&place), place.is_settled()), (vec![Data(2), Data(3)], false));
        // The last write was not acknowledged: another flush does not cover it.
        place.flushed();
        assert_eq!(allowed(&place), [Data(2), Data(3)]);
    }

    #[test]
    fn only_an_acknowledged_write_can_be_lost() {
        let mut place = Place::new();
        place.issued(Data(1));
        assert!(!place.lost(&[Zero]));
        assert_eq!(place.current(), [Zero]);
        place.acknowledged();
        assert_eq!(place.current(), [Data(1)]);
        assert!(place.lost(&[Zero]) && place.lost(&[Data(1), Zero]) && !place.lost(&[Data(1)]));
        place.issued(Marked);
        assert!(!place.lost(&[Marked, Data(1)]));
        place.found(&[Zero, Data(1)]);
        assert_eq!((allowed(&place), place.is_settled()), (vec![Zero, Data(1)], true));
    }
}
