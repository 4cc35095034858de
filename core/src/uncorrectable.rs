//! Blocks that an initiator or host has marked as unreadable (NVM Command Set 1.0 3.2.7; SBC-3 4.18.2): what reads them
//! fails, until they are written. One state of a unit for all cores and command sets. It outlives a restart where what
//! the unit keeps does ([`Keep::outlives`]): volumes in memory, and those that several processes serve, promise
//! nothing.
//!
//! Who marks holds the range on every core, who writes has entered it; so nobody reads or writes a block while it is
//! marked, and no two disagree about a block but those who both write it.

use crate::io::Fault;
use crate::keep::{KEEP_BYTES_MAX, Keep, Keeping};
use crate::range::Span;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name under which a unit keeps what is marked.
pub const UNCORRECTABLE: &str = "uncorrectable";
/// Marked blocks of a unit at most. Whoever writes every other one of them leaves as many ranges, and all of them are
/// kept anew with each change: so few still are written in one go.
pub const MARKED_BLOCKS_MAX: u64 = 16384;

/// Bytes of a range as it is kept: its two ends.
const KEPT_LEN: usize = 16;

const _: () = assert!(MARKED_BLOCKS_MAX as usize * KEPT_LEN <= KEEP_BYTES_MAX);

/// What is kept are no ranges.
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
    /// Whether there is one: all that those look at who read and write where there is none.
    is_any: AtomicBool,
    lists: Mutex<Lists>,
}

/// A mark goes only when that is kept: until then whoever else writes the block has to wait for it, too.
#[derive(Debug, Default)]
struct Lists {
    /// What cannot be read.
    marked: Spans,
    /// What was last asked to be kept: part of the other.
    kept: Spans,
}

/// Ranges in ascending order that do not touch each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Spans(Vec<Span>);

impl Spans {
    /// Which of them have a byte in common with this one.
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
        // Neighbours become one.
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
    /// What a unit has kept.
    ///
    /// # Errors
    /// When that cannot be understood: nobody could know which blocks have no data.
    pub fn restored(keep: &dyn Keep) -> Result<Self, Malformed> {
        let kept = keep.load(UNCORRECTABLE).unwrap_or_default();
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

    /// The first marked byte of these.
    #[inline]
    #[must_use]
    pub fn first_in(&self, span: Span) -> Option<u64> {
        if self.is_any() { self.find(span) } else { None }
    }

    #[cold]
    fn find(&self, span: Span) -> Option<u64> {
        self.lock().marked.within(span).first().map(|found| found.start.max(span.start))
    }

    /// Marks these bytes, blocks of so many bytes each, whose range is held on every core. They are marked for good
    /// when the future ends well; when it does not, perhaps.
    ///
    /// # Errors
    /// [`Fault::NoSpace`] if there would be too many: then nothing is changed.
    pub fn mark(&self, span: Span, block: u32, keep: &dyn Keep) -> Result<Keeping, Fault> {
        let mut lists = self.lock();
        let mut marked = lists.marked.clone();
        marked.add(span);
        if marked.bytes() > MARKED_BLOCKS_MAX * u64::from(block) {
            return Err(Fault::NoSpace);
        }
        lists.marked = marked;
        lists.kept.add(span);
        self.is_any.store(true, Ordering::Release);
        Ok(keep.keep(UNCORRECTABLE, lists.kept.to_kept()))
    }

    /// Begins to take away the marks of bytes that were written, whose range has been entered; `None` if there are
    /// none. When the future has ended well, [`Uncorrectable::unmarked`] does the rest.
    #[must_use]
    pub fn unmark(&self, span: Span, keep: &dyn Keep) -> Option<Keeping> {
        let mut lists = self.lock();
        if lists.marked.within(span).is_empty() {
            return None;
        }
        lists.kept.remove(span);
        // Under the lock: what is asked first is kept first.
        Some(keep.keep(UNCORRECTABLE, lists.kept.to_kept()))
    }

    /// These bytes can be read again: no mark of them is kept any more.
    pub fn unmarked(&self, span: Span) {
        let mut lists = self.lock();
        lists.marked.remove(span);
        self.is_any.store(!lists.marked.0.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::Forgetful;
    use proptest::prelude::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now(keeping: Keeping) -> Result<(), Fault> {
        match pin!(keeping).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("memory waits for nothing"),
        }
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    const BLOCK: u32 = 512;

    fn mark(marks: &Uncorrectable, keep: &dyn Keep, range: Span) {
        now(marks.mark(range, BLOCK, keep).expect("room")).expect("kept");
    }

    fn write(marks: &Uncorrectable, keep: &dyn Keep, range: Span) {
        if let Some(keeping) = marks.unmark(range, keep) {
            now(keeping).expect("kept");
            marks.unmarked(range);
        }
    }

    proptest! {
        #[test]
        fn marks_are_what_a_model_says(steps in prop::collection::vec((any::<bool>(), 0..60_u64, 1..12_u64), 1..60)) {
            let (marks, keep) = (Uncorrectable::default(), Forgetful::default());
            let mut model = [false; 80];
            for (marks_them, start, len) in steps {
                let range = span(start, start + len);
                if marks_them { mark(&marks, &keep, range) } else { write(&marks, &keep, range) }
                model[start as usize..(start + len) as usize].fill(marks_them);
                let again = Uncorrectable::restored(&keep).expect("what was kept");
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
    fn there_are_so_many_at_most() {
        let (marks, keep) = (Uncorrectable::default(), Forgetful::default());
        let all = MARKED_BLOCKS_MAX * u64::from(BLOCK);
        mark(&marks, &keep, span(0, all));
        mark(&marks, &keep, span(512, all));
        assert_eq!(marks.mark(span(all, all + 512), BLOCK, &keep).err(), Some(Fault::NoSpace));
        assert_eq!(marks.first_in(span(all, all + 512)), None);
        // Every other one is written: the most ranges that there can be are kept.
        for at in (0..all).step_by(1024) {
            write(&marks, &keep, span(at, at + 512));
        }
        assert_eq!(marks.lock().marked.0.len() as u64, MARKED_BLOCKS_MAX / 2);
        mark(&marks, &keep, span(all, all + 512));
        assert_eq!(Uncorrectable::restored(&keep).expect("kept").first_in(span(0, 1024)), Some(512));
    }

    /// Keeps nothing.
    struct Broken;

    impl Keep for Broken {
        fn load(&self, _name: &str) -> Option<Vec<u8>> {
            None
        }

        fn keep(&self, _name: &'static str, _bytes: Vec<u8>) -> Keeping {
            Box::pin(std::future::ready(Err(Fault::Medium)))
        }

        fn outlives(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_mark_that_is_still_kept_stays() {
        let (marks, keep) = (Uncorrectable::default(), Forgetful::default());
        mark(&marks, &keep, span(0, 1024));
        let failed = marks.unmark(span(0, 512), &Broken).expect("one is marked");
        // Another one who writes the same is not told that nothing is marked there.
        assert!(marks.unmark(span(0, 512), &Broken).is_some());
        assert_eq!(now(failed), Err(Fault::Medium));
        assert_eq!(marks.first_in(span(0, 1024)), Some(0));
        write(&marks, &keep, span(0, 512));
        assert_eq!(Uncorrectable::restored(&keep).expect("kept").first_in(span(0, 1024)), Some(512));
    }

    #[test]
    fn what_is_no_list_is_not_taken_for_one() {
        for (kept, is_right) in [
            (vec![], true),
            (vec![span(0, 512), span(1024, 2048)], true),
            (vec![span(0, 0)], false),
            (vec![span(512, 0)], false),
            (vec![span(0, 512), span(512, 1024)], false),
            (vec![span(1024, 2048), span(0, 512)], false),
        ] {
            let keep = Forgetful::default();
            now(keep.keep(UNCORRECTABLE, Spans(kept.clone()).to_kept())).expect("kept");
            assert_eq!(Uncorrectable::restored(&keep).is_ok(), is_right, "{kept:?}");
        }
        let keep = Forgetful::default();
        now(keep.keep(UNCORRECTABLE, vec![0; 15])).expect("kept");
        assert_eq!(Uncorrectable::restored(&keep).err(), Some(Malformed));
    }
}
