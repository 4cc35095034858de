//! The order of writes. Stations send a request again when its answer is late, so one write may arrive several times,
//! and an old copy may arrive while newer writes wait.
//!
//! * Writes that overlap are executed in the order of their arrival ([`Writes`]).
//! * A copy of a write that is still in execution is not executed: both get the answer.
//! * A copy with the tag of a write that has ended is answered and not executed ([`Repeats`]): a newer write to the
//!   same sectors may have ended meanwhile.

use lunar_core::time::Instant;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The number of ended writes that are remembered for each station, some 64 KiB: about ten milliseconds of writes of a
/// fast station; older entries of a slower station expire by [`REPEAT_TIME`].
pub const REPEATS_MAX: usize = 1024;
/// The time for which an ended write is remembered: longer than a network keeps a frame.
pub const REPEAT_TIME: Duration = Duration::from_secs(10);

/// A write, as far as its copies are recognised by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The number of the station, at most one in use at a time.
    pub station: u64,
    /// The tag.
    pub tag: u32,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// A digest of the data.
    pub digest: u32,
}

impl Write {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }

    /// Whether it is a copy of another write, with any tag.
    fn is_copy(&self, other: &Self) -> bool {
        Self { tag: other.tag, ..*self } == *other
    }
}

/// The number of a write in its queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WriteId(u64);

/// The fate of a write that has arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival<J> {
    /// It is executed now; the job is given back.
    Execute(WriteId, J),
    /// It waits for earlier writes.
    Waits,
    /// It is answered together with the write of which it is a copy.
    Joined,
    /// It was received twice: the answer to the first one is enough.
    Duplicate,
}

/// The writes to a volume that are not answered yet, in the order of their arrival, each with a job `J` while it waits.
#[derive(Debug)]
pub struct Writes<J> {
    /// In the order of their numbers. Each arrival and each end looks at every entry once at most; the commands of a
    /// core in progress bound their number.
    entries: VecDeque<Entry<J>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<J> {
    id: WriteId,
    write: Write,
    /// The tags of copies that are answered as well.
    copies: Vec<u32>,
    /// The earlier writes that overlap it and have not ended.
    blockers: usize,
    /// `None` while it is executed.
    job: Option<J>,
}

/// The most copies of one write that are answered: a station sends each of them after a longer time.
const COPIES_MAX: usize = 16;

impl<J> Default for Writes<J> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next: 0 }
    }
}

impl<J> Writes<J> {
    /// Takes a write that has arrived.
    pub fn arrive(&mut self, write: Write, job: J) -> Arrival<J> {
        if let Some(entry) = self.entries.iter_mut().find(|entry| write.is_copy(&entry.write)) {
            let is_known = entry.write.tag == write.tag || entry.copies.contains(&write.tag);
            if is_known || entry.copies.len() >= COPIES_MAX {
                return Arrival::Duplicate;
            }
            entry.copies.push(write.tag);
            return Arrival::Joined;
        }
        let blockers = self.entries.iter().filter(|entry| entry.write.overlaps(&write)).count();
        let id = WriteId(self.next);
        self.next += 1;
        let entry = |job| Entry { id, write, copies: Vec::new(), blockers, job };
        if blockers > 0 {
            self.entries.push_back(entry(Some(job)));
            return Arrival::Waits;
        }
        self.entries.push_back(entry(None));
        Arrival::Execute(id, job)
    }

    /// A write has ended. Returns the tags of its copies; `ready` gets the jobs that need not wait any more.
    pub fn end(&mut self, id: WriteId, mut ready: impl FnMut(WriteId, J)) -> Vec<u32> {
        let Ok(at) = self.entries.binary_search_by_key(&id, |entry| entry.id) else { return Vec::new() };
        let Some(ended) = self.entries.remove(at) else { return Vec::new() };
        for later in self.entries.range_mut(at..).filter(|later| later.write.overlaps(&ended.write)) {
            later.blockers -= 1;
            if later.blockers == 0
                && let Some(job) = later.job.take()
            {
                ready(later.id, job);
            }
        }
        ended.copies
    }

    /// The number of writes that are not answered yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The writes of a station that have ended, with success.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    /// The tags in the order of their ends, each with the time of its end.
    order: VecDeque<(Instant, u32)>,
    ended: HashMap<u32, Write>,
    /// Whether the station gives several requests one tag: then a tag identifies nothing.
    reuses_tags: bool,
}

impl Repeats {
    /// Whether a write has ended already, and is not executed again.
    pub fn has_ended(&mut self, write: &Write, now: Instant) -> bool {
        while self.order.front().is_some_and(|(at, _)| now.since(*at) > REPEAT_TIME) {
            self.forget_first();
        }
        let Some(known) = self.ended.get(&write.tag) else { return false };
        if known != write {
            self.reuses_tags = true;
            self.order.clear();
            self.ended.clear();
        }
        !self.reuses_tags
    }

    /// Whether copies of ended writes may still arrive: a station that is forgotten now would have them executed again.
    #[must_use]
    pub fn are_needed(&self, now: Instant) -> bool {
        self.order.back().is_some_and(|(at, _)| now.since(*at) <= REPEAT_TIME)
    }

    /// Remembers a write that has ended with success.
    pub fn end(&mut self, write: Write, now: Instant) {
        if self.reuses_tags {
            return;
        }
        if self.order.len() >= REPEATS_MAX {
            self.forget_first();
        }
        if self.ended.insert(write.tag, write).is_none() {
            self.order.push_back((now, write.tag));
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, tag)) = self.order.pop_front() {
            self.ended.remove(&tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(station: u64, tag: u32, offset: u64, len: u64, digest: u32) -> Write {
        Write { station, tag, offset, len, digest }
    }

    fn executed(arrival: Arrival<u32>) -> WriteId {
        match arrival {
            Arrival::Execute(id, _) => id,
            other => panic!("{other:?}"),
        }
    }

    fn ended(writes: &mut Writes<u32>, id: WriteId) -> (Vec<u32>, Vec<(WriteId, u32)>) {
        let mut ready = Vec::new();
        let copies = writes.end(id, |id, job| ready.push((id, job)));
        (copies, ready)
    }

    #[test]
    fn writes_that_overlap_are_executed_in_order() {
        let mut writes = Writes::default();
        let first = executed(writes.arrive(write(1, 1, 0, 1024, 1), 1));
        assert_eq!(writes.arrive(write(1, 2, 512, 1024, 2), 2), Arrival::Waits);
        assert_eq!(writes.arrive(write(2, 3, 1024, 512, 3), 3), Arrival::Waits, "it overlaps one that waits");
        let apart = executed(writes.arrive(write(1, 4, 4096, 512, 4), 4));
        assert_eq!(ended(&mut writes, apart), (vec![], vec![]));
        let (_, ready) = ended(&mut writes, first);
        assert_eq!(ready.iter().map(|(_, job)| *job).collect::<Vec<_>>(), [2]);
        let (_, ready) = ended(&mut writes, ready[0].0);
        assert_eq!(ready.iter().map(|(_, job)| *job).collect::<Vec<_>>(), [3]);
        assert_eq!(ended(&mut writes, ready[0].0), (vec![], vec![]));
        assert!(writes.is_empty());
    }

    #[test]
    fn copies_of_a_write_are_answered_and_not_executed() {
        let mut writes = Writes::default();
        let id = executed(writes.arrive(write(1, 1, 0, 512, 7), 1));
        assert_eq!(writes.arrive(write(1, 2, 0, 512, 7), 2), Arrival::Joined);
        assert_eq!(writes.arrive(write(1, 2, 0, 512, 7), 2), Arrival::Duplicate);
        assert_eq!(writes.arrive(write(1, 1, 0, 512, 7), 2), Arrival::Duplicate);
        assert_eq!(writes.arrive(write(2, 2, 0, 512, 7), 3), Arrival::Waits, "another station");
        assert_eq!(writes.arrive(write(1, 3, 0, 512, 8), 4), Arrival::Waits, "other data");
        let (copies, ready) = ended(&mut writes, id);
        assert_eq!((copies, ready.len()), (vec![2], 1));
        assert_eq!(ended(&mut writes, WriteId(99)), (vec![], vec![]));
    }

    #[test]
    fn an_ended_write_is_not_executed_again() {
        let (mut repeats, start) = (Repeats::default(), Instant(1));
        let first = write(1, 1, 0, 512, 7);
        assert!(!repeats.has_ended(&first, start));
        repeats.end(first, start);
        repeats.end(write(1, 2, 0, 512, 8), start);
        assert!(repeats.has_ended(&first, start + REPEAT_TIME));
        assert!(!repeats.has_ended(&write(1, 3, 0, 512, 7), start), "another tag is another request");
        let late = start + REPEAT_TIME + Duration::from_nanos(1);
        assert!(repeats.are_needed(start + REPEAT_TIME) && !repeats.are_needed(late));
        assert!(!repeats.has_ended(&first, late), "it is forgotten");
    }

    #[test]
    fn the_tags_of_a_station_that_reuses_them_identify_nothing() {
        let (mut repeats, now) = (Repeats::default(), Instant(1));
        repeats.end(write(1, 5, 0, 512, 7), now);
        assert!(!repeats.has_ended(&write(1, 5, 512, 512, 7), now));
        repeats.end(write(1, 5, 512, 512, 7), now);
        assert!(!repeats.has_ended(&write(1, 5, 512, 512, 7), now));
    }

    #[test]
    fn only_so_many_writes_are_remembered() {
        let (mut repeats, now) = (Repeats::default(), Instant(1));
        (0..=REPEATS_MAX as u32).for_each(|tag| repeats.end(write(1, tag, 0, 512, tag), now));
        assert!(!repeats.has_ended(&write(1, 0, 0, 512, 0), now));
        assert!(repeats.has_ended(&write(1, 1, 0, 512, 1), now));
    }

    proptest! {
        /// In any order of arrivals and ends, no two overlapping writes are executed at the same time, each
        /// is executed after all earlier ones that overlap it, and all are executed.
        #[test]
        fn overlapping_writes_never_run_together(
            steps in prop::collection::vec(
                (0_u64..3, 0_u64..8, 1_u64..4, any::<bool>(), any::<prop::sample::Index>()),
                1..60,
            ),
        ) {
            let mut writes: Writes<Write> = Writes::default();
            let mut running: Vec<(WriteId, Write)> = Vec::new();
            let (mut order, mut arrived) = (Vec::new(), Vec::new());
            let mut steps = steps.into_iter().enumerate();
            loop {
                let step = steps.next();
                if let Some((tag, (station, at, len, _, _))) = step {
                    let one = write(station, tag as u32, at * 512, len * 512, tag as u32);
                    arrived.push(one);
                    if let Arrival::Execute(id, one) = writes.arrive(one, one) {
                        order.push(one.tag);
                        running.push((id, one));
                    }
                }
                for (at, (_, one)) in running.iter().enumerate() {
                    prop_assert!(running[..at].iter().all(|(_, other)| !other.overlaps(one)));
                }
                let ends = step.is_none_or(|(_, (.., ends, _))| ends);
                if ends && !running.is_empty() {
                    let which = step.map_or(0, |(_, (.., index))| index.index(running.len()));
                    let (id, _) = running.remove(which);
                    writes.end(id, |id, one| {
                        order.push(one.tag);
                        running.push((id, one));
                    });
                }
                if step.is_none() && running.is_empty() {
                    break;
                }
            }
            prop_assert!(writes.is_empty());
            prop_assert_eq!(order.len(), arrived.len());
            let place = |tag: u32| order.iter().position(|one| *one == tag);
            for (at, one) in arrived.iter().enumerate() {
                for earlier in arrived[..at].iter().filter(|earlier| earlier.overlaps(one)) {
                    prop_assert!(place(earlier.tag) < place(one.tag));
                }
            }
        }
    }
}
