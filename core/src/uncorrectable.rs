//! Blocks that a client has marked as unreadable (NVM Command Set 1.0 3.2.7; SBC-3 4.18.2). A read of such a block
//! fails until the block is written. The list belongs to the unit: it is the same for all cores and command sets, and
//! durable if the unit's metadata is ([`MetadataStore::is_durable`]).
//!
//! A command that marks blocks holds their range exclusively on every core; a command that writes blocks holds a shared
//! lock. So no block is read or written while it is being marked, and only writers of the same block can race.

use crate::io::Fault;
use crate::metadata::{METADATA_BYTES_MAX, MetadataStore, Saving};
use crate::range::Span;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name of the metadata record.
pub const UNCORRECTABLE: &str = "uncorrectable";
/// Most marked blocks of a unit. A client that writes every second block leaves as many ranges, and each change saves
/// all ranges: a record of this size is still saved in one write.
pub const MARKED_BLOCKS_MAX: u64 = 16384;

/// Bytes of a range in the record: its two ends.
const KEPT_LEN: usize = 16;

const _: () = assert!(MARKED_BLOCKS_MAX as usize * KEPT_LEN <= METADATA_BYTES_MAX);

/// The record is not a list of ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the list of blocks marked as unreadable is damaged, or of a later version")
    }
}

impl std::error::Error for Malformed {}

/// The marked blocks of a unit.
#[derive(Debug, Default)]
pub struct Uncorrectable {
    /// Whether any block is marked. Reads and writes check only this while none is.
    is_any: AtomicBool,
    lists: Mutex<Lists>,
}

/// A mark is removed only when the removal is durable; until then other writers of the block wait for it as well.
#[derive(Debug, Default)]
struct Lists {
    /// Ranges that cannot be read.
    marked: Spans,
    /// Ranges in the record that was saved last: a part of `marked`.
    kept: Spans,
}

/// Ranges in ascending order that neither overlap nor adjoin.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Spans(Vec<Span>);

impl Spans {
    /// The indices of the ranges that overlap this one.
    fn part(&self, Span { start, end }: Span) -> std::ops::Range<usize> {
        let first = self.0.partition_point(|span| span.end <= start);
        let last = self.0.partition_point(|span| span.start < end);
        if start < end { first..last } else { first..first }
    }

    fn within(&self, span: Span) -> &[Span] {
        &self.0[self.part(span)]
    }

    fn remove(&mut self, span: Span) {
        let part = self.part(span);
        let before = self.0[part.clone()].first().map(|first| Span { start: first.start, end: span.start });
        let after = self.0[part.clone()].last().map(|last| Span { start: span.end, end: last.end });
        let left = [before, after].into_iter().flatten().filter(|left| left.start < left.end);
        drop(self.0.splice(part, left));
    }

    fn add(&mut self, span: Span) {
        self.remove(span);
        // Adjoining ranges become one.
        let first = self.0.partition_point(|other| other.end < span.start);
        let last = self.0.partition_point(|other| other.start <= span.end);
        let start = self.0[first..last].first().map_or(span.start, |other| other.start.min(span.start));
        let end = self.0[first..last].last().map_or(span.end, |other| other.end.max(span.end));
        drop(self.0.splice(first..last, [Span { start, end }]));
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.end - span.start).sum()
    }

    fn to_kept(&self) -> Vec<u8> {
        self.0.iter().flat_map(|span| [span.start.to_le_bytes(), span.end.to_le_bytes()]).flatten().collect()
    }

    fn from_kept(kept: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (ranges, []) = kept.as_chunks::<KEPT_LEN>() else { return None };
        let spans = ranges.iter().map(|range| Some(Span { start: number(range)?, end: number(&range[8..])? }));
        let spans: Vec<Span> = spans.collect::<Option<_>>()?;
        let is_right = spans.iter().all(|span| span.start < span.end) && spans.is_sorted_by(|a, b| a.end < b.start);
        is_right.then_some(Self(spans))
    }
}

impl Uncorrectable {
    /// Restores the list from the unit's metadata.
    ///
    /// # Errors
    /// [`Malformed`]: it is unknown which blocks have no data, so the unit must not be served.
    pub fn restored(metadata: &dyn MetadataStore) -> Result<Self, Malformed> {
        let kept = metadata.load(UNCORRECTABLE).unwrap_or_default();
        let marked = Spans::from_kept(&kept).ok_or(Malformed)?;
        let lists = Lists { kept: marked.clone(), marked };
        Ok(Self { is_any: AtomicBool::new(!lists.marked.0.is_empty()), lists: Mutex::new(lists) })
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any block is marked.
    #[inline]
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// The first marked byte of this range.
    #[inline]
    #[must_use]
    pub fn first_in(&self, span: Span) -> Option<u64> {
        if self.is_any() { self.find(span) } else { None }
    }

    #[cold]
    fn find(&self, span: Span) -> Option<u64> {
        self.lock().marked.within(span).first().map(|found| found.start.max(span.start))
    }

    /// Marks a range of blocks of `block` bytes. The caller holds the range exclusively on every core. The mark is
    /// durable when the future returns `Ok`; after an error it may be.
    ///
    /// # Errors
    /// [`Fault::NoSpace`] if more than [`MARKED_BLOCKS_MAX`] blocks would be marked: nothing is changed then.
    pub fn mark(&self, span: Span, block: u32, metadata: &dyn MetadataStore) -> Result<Saving, Fault> {
        let mut lists = self.lock();
        let mut marked = lists.marked.clone();
        marked.add(span);
        if marked.bytes() > MARKED_BLOCKS_MAX * u64::from(block) {
            return Err(Fault::NoSpace);
        }
        lists.marked = marked;
        lists.kept.add(span);
        self.is_any.store(true, Ordering::Release);
        Ok(metadata.save(UNCORRECTABLE, lists.kept.to_kept()))
    }

    /// Begins to remove the marks of a range that was written, on which the caller holds a shared lock; `None` if there
    /// are none. After the future has returned `Ok`, call [`Uncorrectable::unmarked`].
    #[must_use]
    pub fn unmark(&self, span: Span, metadata: &dyn MetadataStore) -> Option<Saving> {
        let mut lists = self.lock();
        if lists.marked.within(span).is_empty() {
            return None;
        }
        lists.kept.remove(span);
        // Under the lock, so that records are saved in the order of the changes.
        Some(metadata.save(UNCORRECTABLE, lists.kept.to_kept()))
    }

    /// Removes the marks of a range whose removal is durable.
    pub fn unmarked(&self, span: Span) {
        let mut lists = self.lock();
        lists.marked.remove(span);
        self.is_any.store(!lists.marked.0.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::VolatileMemory;
    use proptest::prelude::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now(saving: Saving) -> Result<(), Fault> {
        match pin!(saving).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("memory answers at once"),
        }
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    const BLOCK: u32 = 512;

    fn mark(marks: &Uncorrectable, metadata: &dyn MetadataStore, range: Span) {
        now(marks.mark(range, BLOCK, metadata).expect("room")).expect("saved");
    }

    fn write(marks: &Uncorrectable, metadata: &dyn MetadataStore, range: Span) {
        if let Some(saving) = marks.unmark(range, metadata) {
            now(saving).expect("saved");
            marks.unmarked(range);
        }
    }

    proptest! {
        #[test]
        fn marks_agree_with_a_model(steps in prop::collection::vec((any::<bool>(), 0..60_u64, 1..12_u64), 1..60)) {
            let (marks, metadata) = (Uncorrectable::default(), VolatileMemory::default());
            let mut model = [false; 80];
            for (marks_them, start, len) in steps {
                let range = span(start, start + len);
                if marks_them { mark(&marks, &metadata, range) } else { write(&marks, &metadata, range) }
                model[start as usize..(start + len) as usize].fill(marks_them);
                let again = Uncorrectable::restored(&metadata).expect("the saved record");
                for marks in [&marks, &again] {
                    for start in 0..79 {
                        let wanted = model[start as usize..].iter().position(|marked| *marked);
                        prop_assert_eq!(marks.first_in(span(start, 80)), wanted.map(|at| at as u64 + start));
                        prop_assert_eq!(marks.first_in(span(start, start)), None);
                    }
                    let count = model.iter().filter(|marked| **marked).count();
                    prop_assert_eq!(marks.lock().marked.bytes(), count as u64);
                    prop_assert_eq!(marks.is_any(), count > 0);
                    prop_assert!(marks.lock().marked.0.is_sorted_by(|a, b| a.end < b.start));
                }
            }
        }
    }

    #[test]
    fn the_number_of_marked_blocks_is_limited() {
        let (marks, metadata) = (Uncorrectable::default(), VolatileMemory::default());
        let all = MARKED_BLOCKS_MAX * u64::from(BLOCK);
        mark(&marks, &metadata, span(0, all));
        mark(&marks, &metadata, span(512, all));
        assert_eq!(marks.mark(span(all, all + 512), BLOCK, &metadata).err(), Some(Fault::NoSpace));
        assert_eq!(marks.first_in(span(all, all + 512)), None);
        // Every other block is written: that leaves the most ranges.
        for at in (0..all).step_by(1024) {
            write(&marks, &metadata, span(at, at + 512));
        }
        assert_eq!(marks.lock().marked.0.len() as u64, MARKED_BLOCKS_MAX / 2);
        mark(&marks, &metadata, span(all, all + 512));
        assert_eq!(Uncorrectable::restored(&metadata).expect("saved").first_in(span(0, 1024)), Some(512));
    }

    /// A metadata store that saves nothing.
    struct Broken;

    impl MetadataStore for Broken {
        fn load(&self, _name: &str) -> Option<Vec<u8>> {
            None
        }

        fn save(&self, _name: &'static str, _bytes: Vec<u8>) -> Saving {
            Box::pin(std::future::ready(Err(Fault::Medium)))
        }

        fn is_durable(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_mark_stays_until_its_removal_is_durable() {
        let (marks, metadata) = (Uncorrectable::default(), VolatileMemory::default());
        mark(&marks, &metadata, span(0, 1024));
        let failed = marks.unmark(span(0, 512), &Broken).expect("one is marked");
        // Another writer of the same block still sees the mark.
        assert!(marks.unmark(span(0, 512), &Broken).is_some());
        assert_eq!(now(failed), Err(Fault::Medium));
        assert_eq!(marks.first_in(span(0, 1024)), Some(0));
        write(&marks, &metadata, span(0, 512));
        assert_eq!(Uncorrectable::restored(&metadata).expect("saved").first_in(span(0, 1024)), Some(512));
    }

    #[test]
    fn a_malformed_record_is_refused() {
        for (kept, is_right) in [
            (vec![], true),
            (vec![span(0, 512), span(1024, 2048)], true),
            (vec![span(0, 0)], false),
            (vec![span(512, 0)], false),
            (vec![span(0, 512), span(512, 1024)], false),
            (vec![span(1024, 2048), span(0, 512)], false),
        ] {
            let metadata = VolatileMemory::default();
            now(metadata.save(UNCORRECTABLE, Spans(kept.clone()).to_kept())).expect("saved");
            assert_eq!(Uncorrectable::restored(&metadata).is_ok(), is_right, "{kept:?}");
        }
        let metadata = VolatileMemory::default();
        now(metadata.save(UNCORRECTABLE, vec![0; 15])).expect("saved");
        assert_eq!(Uncorrectable::restored(&metadata).err(), Some(Malformed));
    }
}
