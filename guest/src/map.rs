//! Address ranges that do not overlap, each with a value.
//!
//! Guest memory is one such map, from guest addresses to regions. A transport whose client gives the addresses of
//! rings in an address space of the client has a second one, from those to guest addresses.

use crate::Range;
use std::cell::Cell;

/// Most ranges of one map: one for each of some thousand huge pages.
pub const RANGES_MAX: usize = 8192;

/// Why a range cannot be added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// Another range has some of these addresses.
    Overlap,
    /// The range is empty, extends beyond the address space, or differs in length from its memory.
    Invalid,
    /// There are [`RANGES_MAX`] ranges.
    TooMany,
    /// No range was added with exactly these addresses.
    Missing,
}

#[derive(Debug)]
struct Entry<T> {
    address: u64,
    len: u64,
    value: T,
}

/// The result of [`AddressMap::find`] for an address.
#[derive(Debug)]
pub struct Found<'a, T> {
    /// The value of its range.
    pub value: &'a T,
    /// The offset of the address in its range.
    pub offset: u64,
    /// Bytes from the address to the end of its range; at least one.
    pub left: u64,
}

/// Address ranges that do not overlap, each with a value.
#[derive(Debug)]
pub struct AddressMap<T> {
    /// Sorted by address.
    entries: Vec<Entry<T>>,
    /// The range of the last successful lookup: the next lookup is mostly for the same range.
    last: Cell<usize>,
}

impl<T> Default for AddressMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), last: Cell::default() }
    }
}

impl<T> AddressMap<T> {
    /// Adds a range.
    ///
    /// # Errors
    /// [`MapError::Overlap`], [`MapError::Invalid`], [`MapError::TooMany`]; then the map is unchanged.
    pub fn insert(&mut self, range: Range, value: T) -> Result<(), MapError> {
        let (first, last) = range.ends().ok_or(MapError::Invalid)?;
        // The offset of an address in its range and the bytes behind it are computed without a check for overflow.
        last.checked_add(1).ok_or(MapError::Invalid)?;
        if self.entries.len() >= RANGES_MAX {
            return Err(MapError::TooMany);
        }
        let at = self.entries.partition_point(|entry| entry.address < first);
        let overlaps_next = self.entries.get(at).is_some_and(|next| next.address <= last);
        let previous = at.checked_sub(1).map(|previous| &self.entries[previous]);
        if overlaps_next || previous.is_some_and(|entry| first - entry.address < entry.len) {
            return Err(MapError::Overlap);
        }
        self.entries.insert(at, Entry { address: first, len: range.len, value });
        Ok(())
    }

    /// Removes a range and returns its value.
    ///
    /// # Errors
    /// [`MapError::Missing`] unless a range was added with exactly these addresses.
    pub fn remove(&mut self, range: Range) -> Result<T, MapError> {
        let at = self.entries.binary_search_by_key(&range.address, |entry| entry.address);
        let at = at.ok().filter(|at| self.entries[*at].len == range.len).ok_or(MapError::Missing)?;
        Ok(self.entries.remove(at).value)
    }

    /// Removes all ranges and returns their values, by ascending address.
    pub fn clear(&mut self) -> impl Iterator<Item = T> + '_ {
        self.entries.drain(..).map(|entry| entry.value)
    }

    /// The values, by ascending address of their ranges.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// The range that contains an address.
    #[inline]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Found<'_, T>> {
        let found = |entry| contained(entry, address);
        if let Some(found) = self.entries.get(self.last.get()).and_then(found) {
            return Some(found);
        }
        let at = self.entries.partition_point(|entry| entry.address <= address).checked_sub(1)?;
        self.last.set(at);
        self.entries.get(at).and_then(found)
    }
}

#[inline]
fn contained<T>(entry: &Entry<T>, address: u64) -> Option<Found<'_, T>> {
    let offset = address.wrapping_sub(entry.address);
    (offset < entry.len).then(|| Found { value: &entry.value, offset, left: entry.len - offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(address: u64, len: u64) -> Range {
        Range { address, len }
    }

    #[test]
    fn ranges_do_not_overlap_and_are_removed_as_they_were_added() {
        let mut map = AddressMap::default();
        assert_eq!(map.insert(range(0x1000, 0x1000), 'a'), Ok(()));
        for (address, len) in [(0x1000, 0x1000), (0xfff, 2), (0x1fff, 1), (0, 0x9000)] {
            assert_eq!(map.insert(range(address, len), 'x'), Err(MapError::Overlap), "{address:x}");
        }
        for (address, len) in [(0x9000, 0), (u64::MAX, 1), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(map.insert(range(address, len), 'x'), Err(MapError::Invalid), "{address:x}");
        }
        assert_eq!(map.insert(range(0x2000, 0x1000), 'b'), Ok(()));
        assert_eq!(map.insert(range(0, 0x1000), 'c'), Ok(()));
        for (address, len) in [(0x1000, 0x2000), (0x1001, 0xfff), (0x3000, 1)] {
            assert_eq!(map.remove(range(address, len)), Err(MapError::Missing), "{address:x}");
        }
        assert_eq!(map.remove(range(0x1000, 0x1000)), Ok('a'));
        assert_eq!(map.values().collect::<String>(), "cb");
        assert_eq!((map.clear().collect::<String>(), map.values().count()), ("cb".into(), 0));
    }

    #[test]
    fn a_map_has_a_limit() {
        let mut map = AddressMap::default();
        (0..RANGES_MAX as u64).for_each(|at| map.insert(range(at * 2, 1), ()).expect("it is free"));
        assert_eq!(map.insert(range(u64::MAX - 1, 1), ()), Err(MapError::TooMany));
    }

    /// Addresses at which ranges meet, begin and end, and the ends of the address space.
    fn address() -> impl Strategy<Value = u64> {
        prop_oneof![0..64_u64, Just(u64::MAX), (0..64_u64).prop_map(|at| u64::MAX - at)]
    }

    proptest! {
        #[test]
        fn an_address_is_found_in_the_range_that_contains_it_and_in_no_other(
            ranges in proptest::collection::vec((address(), prop_oneof![0..20_u64, Just(u64::MAX)]), 0..24),
            removed in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
            asked in proptest::collection::vec(address(), 1..64),
        ) {
            let (mut map, mut model) = (AddressMap::default(), Vec::<Range>::new());
            for (address, len) in ranges {
                let new = range(address, len);
                let fits = u128::from(address) + u128::from(len) <= u128::from(u64::MAX) && len > 0;
                let is_free = model.iter().all(|old| {
                    let ends = |range: &Range| u128::from(range.address) + u128::from(range.len);
                    ends(old) <= u128::from(address) || ends(&new) <= u128::from(old.address)
                });
                prop_assert_eq!(map.insert(new, new).is_ok(), fits && is_free);
                if fits && is_free {
                    model.push(new);
                }
            }
            for index in removed {
                if !model.is_empty() {
                    let gone = model.swap_remove(index.index(model.len()));
                    prop_assert_eq!(map.remove(gone), Ok(gone));
                }
            }
            for address in asked {
                let wanted = model.iter().find(|range| range.address <= address && address - range.address < range.len);
                let found = map.find(address).map(|found| (*found.value, found.offset, found.left));
                let wanted = wanted.map(|range| {
                    (*range, address - range.address, range.len - (address - range.address))
                });
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
