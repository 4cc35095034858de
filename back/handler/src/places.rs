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

    fn flip(&mut self, place: Place) {
        let mut page = place.at / PAGE;
        let end = page + place.pages;
        while page < end {
            let count = (BITS - page % BITS).min(end - page);
            self.used[page / BITS] ^= u64::MAX >> (BITS - count) << (page % BITS);
            page += count;
        }
    }

    /// Takes the first consecutive free pages for `len` bytes: those that were used last are still in the cache.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        let wanted = len.div_ceil(PAGE);
        let (mut first, mut page) = (0, 0);
        while page - first < wanted {
            if page >= self.pages {
                return None;
            }
            let rest = self.used[page / BITS] >> (page % BITS);
            if rest & 1 == 0 {
                page += (rest.trailing_zeros() as usize).min(BITS - page % BITS);
            } else {
                page += rest.trailing_ones() as usize;
                first = page;
            }
        }
        // The last word may have bits without pages.
        if first + wanted > self.pages {
            return None;
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
                    let is_free = |page: &usize| {
                        let page = page * PAGE;
                        !taken.iter().any(|place| (place.at..place.at + place.pages * PAGE).contains(&page))
                    };
                    let wanted = size.div_ceil(2);
                    let first = (0..=130 - wanted).find(|first| (*first..first + wanted).all(|page| is_free(&page)));
                    let place = places.take(size * PAGE / 2);
                    prop_assert_eq!(place.map(|place| place.at), first.map(|first| first * PAGE));
                    match place {
                        Some(place) => {
                            prop_assert!(place.at + place.pages * PAGE <= 130 * PAGE);
                            let overlaps = |other: &Place| {
                                place.at < other.at + other.pages * PAGE && other.at < place.at + place.pages * PAGE
                            };
                            prop_assert!(!taken.iter().any(overlaps));
                            taken.push(place);
                        }
                        None => prop_assert!(!taken.is_empty()),
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
