//! Parts of the memory of the data of one queue, in pages.

/// Bytes of a page: the unit in which memory is lent.
pub(crate) const PAGE: usize = 4096;
const BITS: usize = u64::BITS as usize;

/// Consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The first byte.
    pub(crate) at: usize,
    pages: usize,
}

/// The pages that are in use.
#[derive(Debug)]
pub(crate) struct Places {
    used: Vec<u64>,
    pages: usize,
}

impl Places {
    /// All of `bytes` are free.
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = bytes / PAGE;
        Self { used: vec![0; pages.div_ceil(BITS)], pages }
    }

    fn is_used(&self, page: usize) -> bool {
        self.used[page / BITS] & (1 << (page % BITS)) != 0
    }

    fn flip(&mut self, place: Place) {
        for page in place.at / PAGE..place.at / PAGE + place.pages {
            self.used[page / BITS] ^= 1 << (page % BITS);
        }
    }

    /// Takes the first consecutive free pages for `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        let wanted = len.div_ceil(PAGE);
        let (mut first, mut page) = (0, 0);
        while page - first < wanted {
            if page >= self.pages {
                return None;
            }
            if page % BITS == 0 && self.used[page / BITS] == u64::MAX {
                page += BITS;
                first = page;
            } else {
                page += 1;
                first = if self.is_used(page - 1) { page } else { first };
            }
        }
        let place = Place { at: first * PAGE, pages: wanted };
        self.flip(place);
        Some(place)
    }

    /// Gives pages back that were taken.
    pub(crate) fn give(&mut self, place: Place) {
        self.flip(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_never_overlap_and_all_come_back(
            steps in proptest::collection::vec((any::<bool>(), 0..40_usize), 0..300),
        ) {
            let mut places = Places::new(130 * PAGE);
            let mut taken: Vec<Place> = Vec::new();
            for (takes, size) in steps {
                if takes {
                    let free = 130 - taken.iter().map(|place| place.pages).sum::<usize>();
                    match places.take(size * PAGE / 2) {
                        Some(place) => {
                            prop_assert!(place.at + place.pages * PAGE <= 130 * PAGE);
                            let overlaps = |other: &Place| {
                                place.at < other.at + other.pages * PAGE && other.at < place.at + place.pages * PAGE
                            };
                            prop_assert!(!taken.iter().any(overlaps));
                            taken.push(place);
                        }
                        None => prop_assert!(free < 130 && (!taken.is_empty())),
                    }
                } else if !taken.is_empty() {
                    places.give(taken.swap_remove(size % taken.len()));
                }
            }
            taken.into_iter().for_each(|place| places.give(place));
            prop_assert!(places.take(130 * PAGE).is_some());
        }
    }
}
