//! For tests and fuzz targets: accesses to guest memory, compared with a model of it.

use crate::Range;
use crate::dirty::{DirtyLog, DirtyPages};
use crate::memory::Memory;
use crate::scatter::{Scatter, ScatterList};
use lunar_core::mem::{Arena, Region};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a page of the dirty log.
const PAGE: u64 = 4096;
/// Guest addresses that are used: `0..SPACE`, and as many before the end of the address space.
const SPACE: u64 = 4 * PAGE;
/// Most bytes of one access.
const ACCESS_MAX: u64 = 700;
/// Bytes of one operation in the input.
const STEP: usize = 8;

/// A number of a few bytes as an address near one of both ends of the address space.
fn address(low: u8, high: u8) -> u64 {
    let at = u64::from(u16::from_le_bytes([low, high]));
    if at & 0x8000 == 0 { at % SPACE } else { u64::MAX - at % SPACE }
}

/// The expected content of guest memory.
#[derive(Default)]
struct Model {
    /// By first address: bytes, or `None` for addresses without memory.
    ranges: BTreeMap<u64, (u64, Option<Vec<u8>>)>,
    /// Pages that were written since the last report.
    dirty: BTreeSet<u64>,
}

impl Model {
    fn byte(&mut self, address: u64) -> Option<&mut u8> {
        let (first, (_, bytes)) = self.ranges.range_mut(..=address).next_back()?;
        bytes.as_mut()?.get_mut(usize::try_from(address - first).ok()?)
    }

    /// Whether all of these bytes are there. An address that wraps is not.
    fn has(&mut self, range: Range) -> bool {
        range.len == 0 || range.ends().is_some_and(|(first, last)| (first..=last).all(|at| self.byte(at).is_some()))
    }

    fn read(&mut self, range: Range) -> Option<Vec<u8>> {
        self.has(range).then(|| (0..range.len).filter_map(|at| self.byte(range.address + at).copied()).collect())
    }

    /// Writes bytes that are all there.
    fn write(&mut self, range: Range, bytes: &[u8]) {
        for (at, value) in (0..).zip(bytes) {
            let byte = self.byte(range.address + at).expect("all bytes are there");
            *byte = *value;
            self.dirty.insert((range.address + at) / PAGE);
        }
    }

    /// Whether two ranges have an address in common, or the new one cannot be.
    fn refuses(&self, new: Range) -> bool {
        let Some((first, last)) = new.ends().filter(|(_, last)| *last < u64::MAX) else { return true };
        self.ranges.iter().any(|(start, (len, _))| *start <= last && first <= start + (len - 1))
    }
}

/// Executes the operations that `data` encodes, on guest memory and on a model of it.
///
/// # Panics
/// When they differ: an access to other bytes than those that it names, or a written page that is not in the log.
pub fn accesses(data: &[u8]) {
    let (mut memory, mut model) = (Memory::default(), Model::default());
    let arena = Arena::new(1 << 20);
    memory.start_log(DirtyLog::Pages(DirtyPages::new(PAGE, &[]).expect("a page size")));
    for step in data.chunks_exact(STEP) {
        let [what, a, b, c, d, e, f, seed] = *step.first_chunk().expect("eight bytes");
        let range = Range { address: address(a, b), len: u64::from(u16::from_le_bytes([c, d])) % ACCESS_MAX };
        let other = Range { address: address(e, f), len: u64::from(c) };
        let pattern = |len: u64| (0..len).map(|at| (at as u8).wrapping_mul(7) ^ seed).collect::<Vec<u8>>();
        match what % 8 {
            0 | 1 => map(&mut memory, &mut model, Range { len: range.len.next_multiple_of(8), ..range }, what & 8 != 0),
            2 => {
                let known = model.ranges.range(..=range.address).next_back().map(|(first, (len, _))| (*first, *len));
                let (first, len) = known.unwrap_or((range.address, range.len));
                assert_eq!(memory.unmap(first, len).is_ok(), known.is_some());
                model.ranges.remove(&first);
            }
            3 => {
                let mut found = vec![0; range.len as usize];
                assert_eq!(memory.read(range.address, &mut found).then_some(found), model.read(range));
            }
            4 if model.has(range) => {
                let bytes = pattern(range.len);
                assert!(memory.write(range.address, &bytes));
                model.write(range, &bytes);
            }
            4 => assert_eq!(memory.window(range.address, range.len.max(1) as usize).is_some(), {
                let one = model.ranges.range(..=range.address).next_back();
                one.is_some_and(|(first, (len, bytes))| {
                    bytes.is_some() && range.address - first < *len && range.len.max(1) <= len - (range.address - first)
                })
            }),
            5 | 6 => scattered(&memory, &mut model, [range, other], &arena, (what & 8 != 0, seed)),
            _ => check_log(&memory, &mut model),
        }
    }
    check_log(&memory, &mut model);
    for (first, (len, bytes)) in &model.ranges {
        let mut found = vec![0; *len as usize];
        assert_eq!(memory.read(*first, &mut found).then_some(&found), bytes.as_ref(), "at {first:x}");
    }
}

fn map(memory: &mut Memory, model: &mut Model, range: Range, has_memory: bool) {
    let region = (has_memory && range.len > 0).then(|| Region::zeroed(range.len as usize));
    let bytes = region.as_ref().map(|region| vec![0; region.len()]);
    let is_mapped = memory.map(range.address, range.len, region).is_ok();
    assert_eq!(is_mapped, !model.refuses(range));
    if is_mapped {
        model.ranges.insert(range.address, (range.len, bytes));
    }
}

/// Reads or writes the data of one command in two ranges, from an offset on.
fn scattered(memory: &Memory, model: &mut Model, ranges: [Range; 2], arena: &Arena, (writes, seed): (bool, u8)) {
    let mut list = ScatterList::new();
    ranges.iter().for_each(|range| list.push(*range));
    let all: u64 = ranges.iter().map(|range| range.len).sum();
    assert_eq!(list.iter().map(|range| range.len).sum::<u64>(), all);
    let offset = (u64::from(seed) % (all + 1)) as usize;
    let count = all as usize - offset;
    // The bytes from the offset on, range by range.
    let mut skipped = offset as u64;
    let rest = ranges.map(|range| {
        let gone = skipped.min(range.len);
        skipped -= gone;
        Range { address: range.address.wrapping_add(gone), len: range.len - gone }
    });
    let is_there = rest.into_iter().all(|range| model.has(range));
    let scatter = Scatter::new(memory, &list);
    assert_eq!(scatter.to_read(offset, count).is_some(), is_there);
    assert_eq!(scatter.to_fill(offset, count).is_some(), is_there);
    assert!(scatter.to_read(offset, count + 1).is_none());
    let mut buffer = arena.take_sg(count.max(1)).expect("room").split_to(count);
    if !writes {
        let found = scatter.read(offset, &mut buffer).then(|| buffer.share().to_vec());
        let wanted = is_there.then(|| rest.iter().filter_map(|range| model.read(*range)).flatten().collect());
        return assert_eq!(found, wanted);
    }
    if is_there {
        let bytes: Vec<u8> = (0..count).map(|at| (at as u8) ^ seed).collect();
        buffer.copy_from(0, &bytes);
        assert!(scatter.write(offset, &buffer.share()));
        let mut done = 0;
        for range in rest {
            model.write(range, &bytes[done..done + range.len as usize]);
            done += range.len as usize;
        }
    }
}

/// Every page that was written is reported as dirty, once, and no other.
fn check_log(memory: &Memory, model: &mut Model) {
    let mut log = memory.log().expect("it is on");
    let DirtyLog::Pages(pages) = &mut *log else { return };
    for first in [0, u64::MAX - SPACE + 1] {
        let bits = pages.report(Range { address: first, len: SPACE }, PAGE).expect("a small range");
        for page in 0..SPACE / PAGE {
            let is_dirty = bits[(page / 8) as usize] & 1 << (page % 8) != 0;
            assert_eq!(is_dirty, model.dirty.contains(&(first / PAGE + page)), "page {page} of {first:x}");
        }
    }
    model.dirty.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn guest_memory_equals_its_model(data in proptest::collection::vec(any::<u8>(), 0..1600)) {
            accesses(&data);
        }

        #[test]
        fn guest_memory_in_one_place_equals_its_model(
            steps in proptest::collection::vec((0..16_u8, 0..4_u8, 0..3_u8, any::<[u8; 5]>()), 0..200),
        ) {
            // Few addresses: most accesses meet a region, its ends, or its neighbour.
            let data = steps.iter().flat_map(|(what, low, high, [a, b, c, d, e])| {
                [*what, *low * 8, *high, *a, b % 3, c % 32, d % 3, *e]
            });
            accesses(&data.collect::<Vec<u8>>());
        }
    }
}
