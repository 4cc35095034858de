//! What to do next, and what became of it.

use crate::ack_log::AckLog;
use crate::histogram::Histogram;
use crate::options::Shape;
use crate::verify::{Expect, Verifier};
use anyhow::Result;
use lunar_core::outgoing::Data;

/// Failed commands that are told one by one; the rest is counted.
const TOLD_MAX: usize = 10;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// A command to carry out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    /// Which command's worth of blocks of the region.
    pub(crate) place: u64,
    /// Of a write: its number. Of a flush: the acknowledged writes that it covers.
    pub(crate) number: u64,
    pub(crate) expect: Expect,
    /// Whether nothing was under way for a rest before it.
    pub(crate) is_first: bool,
}

/// Commands of a load that comes and goes.
#[derive(Clone, Copy, Debug)]
struct Burst {
    of: u64,
    left: u64,
}

/// What does not change while a load runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) block_size: u32,
    /// Logical blocks of a command.
    pub(crate) blocks: u32,
    /// Bytes of a command.
    pub(crate) bytes: u32,
    /// First block of the region.
    pub(crate) base: u64,
    /// The number before that of the first write: higher from run to run, so that what an earlier one left behind with
    /// the same seed does not pass for this one's.
    pub(crate) before: u64,
    /// Commands' worths of blocks in the region.
    pub(crate) places: u64,
    pub(crate) shape: Shape,
    /// Percent of reads.
    pub(crate) reads: u64,
    pub(crate) fua: bool,
    pub(crate) flush_every: Option<u64>,
}

impl Plan {
    pub(crate) fn lba(&self, place: u64) -> u64 {
        self.base + place * u64::from(self.blocks)
    }
}

/// Latencies by kind of command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) reads: Histogram,
    pub(crate) writes: Histogram,
    pub(crate) flushes: Histogram,
    /// Those of any kind after a rest.
    pub(crate) first: Histogram,
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) plan: Plan,
    random: u64,
    /// The next place of each lane's sequence, its first and its end.
    sequences: Vec<(u64, u64, u64)>,
    payload: Data,
    pub(crate) verifier: Option<Verifier>,
    pub(crate) log: Option<AckLog>,
    generation: u64,
    unflushed: u64,
    stopped: bool,
    burst: Option<Burst>,
    read_back: Option<std::vec::IntoIter<(u64, Expect)>>,
    pub(crate) latencies: Latencies,
    /// Commands that ended well, from the first on.
    pub(crate) total: u64,
    /// Commands that were answered, in whatever way.
    pub(crate) answered: u64,
    pub(crate) retries: u64,
    pub(crate) errors: u64,
    pub(crate) told: Vec<String>,
}

impl Latencies {
    /// How many of each kind.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.count(),
            writes: self.writes.count(),
            flushes: self.flushes.count(),
            first: self.first.count(),
        }
    }
}

/// Commands that ended in the measured time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) first: u64,
}

impl Load {
    pub(crate) fn new(plan: Plan, lanes: u32, seed: u64, verifier: Option<Verifier>, log: Option<AckLog>) -> Self {
        let lanes = u64::from(lanes);
        let share =
            |lane: u64| u64::try_from(u128::from(plan.places) * u128::from(lane) / u128::from(lanes)).unwrap_or(0);
        // With fewer places than lanes some share one.
        let sequences = (0..lanes).map(|lane| (share(lane), share(lane + 1).max(share(lane) + 1)));
        let sequences = sequences.map(|(first, end)| (first, first, end)).collect();
        let mut random = seed;
        let payload: Vec<u8> = (0..plan.bytes).map(|_| (next_random(&mut random) >> 56) as u8).collect();
        Self {
            generation: plan.before,
            plan,
            random,
            sequences,
            payload: Data::new(payload.into()),
            verifier,
            log,
            unflushed: 0,
            stopped: false,
            burst: None,
            read_back: None,
            latencies: Latencies::default(),
            total: 0,
            answered: 0,
            retries: 0,
            errors: 0,
            told: Vec::new(),
        }
    }

    /// Rests after so many commands, until it is [woken](Self::wake).
    pub(crate) fn in_bursts(&mut self, of: u64) {
        self.burst = Some(Burst { of, left: of });
    }

    /// Whether it has come to a rest.
    pub(crate) fn rests(&self) -> bool {
        !self.stopped && self.burst.is_some_and(|burst| burst.left == 0)
    }

    /// It goes on after a rest.
    pub(crate) fn wake(&mut self) {
        if let Some(burst) = &mut self.burst {
            burst.left = burst.of;
        }
    }

    /// No further command starts.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.read_back = None;
    }

    /// From now on these places are read and checked, once.
    pub(crate) fn read_back(&mut self, places: Vec<(u64, Expect)>) {
        self.read_back = Some(places.into_iter());
    }

    /// Whether there are places that are still to be read back.
    pub(crate) fn has_more(&self) -> bool {
        self.read_back.as_ref().is_some_and(|places| places.len() > 0)
    }

    /// The next command of a lane; `None` if there is none now.
    pub(crate) fn next(&mut self, lane: usize) -> Option<Job> {
        if let Some(places) = &mut self.read_back {
            let (place, expect) = places.next()?;
            return Some(Job { kind: Kind::Read, place, number: 0, expect, is_first: false });
        }
        if self.stopped || self.rests() {
            return None;
        }
        let job = self.choose(lane)?;
        let is_first = self.burst.as_mut().is_some_and(|burst| {
            burst.left -= 1;
            burst.left + 1 == burst.of
        });
        Some(Job { is_first, ..job })
    }

    /// What a lane does next.
    fn choose(&mut self, lane: usize) -> Option<Job> {
        if self.plan.flush_every.is_some_and(|every| self.unflushed >= every) {
            self.unflushed = 0;
            let number = self.log.as_ref().map_or(0, AckLog::writes);
            return Some(Job { kind: Kind::Flush, place: 0, number, expect: Expect::Anything, is_first: false });
        }
        let wanted = self.place(lane);
        let place = match &mut self.verifier {
            Some(verifier) => verifier.take(wanted)?,
            None => wanted,
        };
        let read = match self.plan.reads {
            0 => false,
            100 => true,
            percent => next_random(&mut self.random) % 100 < percent,
        };
        if read {
            let expect = self.verifier.as_ref().map_or(Expect::Anything, |verifier| verifier.expect(place));
            return Some(Job { kind: Kind::Read, place, number: 0, expect, is_first: false });
        }
        self.generation += 1;
        Some(Job { kind: Kind::Write, place, number: self.generation, expect: Expect::Anything, is_first: false })
    }

    fn place(&mut self, lane: usize) -> u64 {
        if self.plan.shape.is_random() {
            let random = u128::from(next_random(&mut self.random)) * u128::from(self.plan.places);
            return (random >> 64) as u64;
        }
        let (next, first, end) = &mut self.sequences[lane];
        let place = *next;
        *next = if place + 1 == *end { *first } else { place + 1 };
        place
    }

    /// The bytes of a write. `buffer` is the slot's own, for patterns; it is made when it is missing or still in use.
    pub(crate) fn data(&self, job: &Job, buffer: &mut Option<std::rc::Rc<[u8]>>) -> Data {
        let Some(verifier) = &self.verifier else { return self.payload.clone() };
        if buffer.as_mut().and_then(std::rc::Rc::get_mut).is_none() {
            *buffer = Some(vec![0; self.plan.bytes as usize].into());
        }
        let buffer = buffer.as_mut().expect("made above");
        if let Some(bytes) = std::rc::Rc::get_mut(buffer) {
            verifier.fill(self.plan.lba(job.place), job.number, bytes);
        }
        Data::new(buffer.clone())
    }

    /// Data of a read, block by block.
    pub(crate) fn check(&mut self, job: &Job, lba: u64, block: &[u8]) {
        if let Some(verifier) = &mut self.verifier {
            verifier.check(job.expect, lba, block);
        }
    }

    /// A command ended well after so many nanoseconds.
    ///
    /// # Errors
    /// When the acknowledgement cannot be recorded.
    pub(crate) fn done(&mut self, job: &Job, latency: u64) -> Result<()> {
        self.total += 1;
        if job.is_first {
            self.latencies.first.record(latency);
        }
        match job.kind {
            Kind::Read => self.latencies.reads.record(latency),
            Kind::Write => {
                self.latencies.writes.record(latency);
                self.unflushed += 1;
                if let Some(log) = &mut self.log {
                    log.write(self.plan.lba(job.place), job.number, self.plan.fua)?;
                }
            }
            Kind::Flush => {
                self.latencies.flushes.record(latency);
                if let Some(log) = &mut self.log {
                    log.synchronized(job.number)?;
                }
            }
        }
        self.give(job, Some(job.number));
        Ok(())
    }

    /// A command failed.
    pub(crate) fn failed(&mut self, job: &Job, why: &str) {
        self.errors += 1;
        if self.told.len() < TOLD_MAX {
            let lba = self.plan.lba(job.place);
            self.told.push(format!("{:?} of {} blocks at LBA {lba}: {why}", job.kind, self.plan.blocks));
        }
        self.give(job, None);
    }

    fn give(&mut self, job: &Job, number: Option<u64>) {
        let Some(verifier) = &mut self.verifier else { return };
        match job.kind {
            // Reading back takes no places.
            Kind::Read if self.read_back.is_some() => {}
            Kind::Read => verifier.give(job.place, None),
            Kind::Write => verifier.give(job.place, Some(number)),
            Kind::Flush => {}
        }
    }
}

/// SplitMix64: good enough to scatter, and a few instructions.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shape: Shape, reads: u64) -> Plan {
        Plan {
            block_size: 512,
            blocks: 8,
            bytes: 4096,
            base: 100,
            before: 0,
            places: 10,
            shape,
            reads,
            fua: false,
            flush_every: None,
        }
    }

    fn load(plan: Plan, lanes: u32) -> Load {
        Load::new(plan, lanes, 1, None, None)
    }

    #[test]
    fn sequences_share_the_region_and_start_over() {
        let mut load = load(plan(Shape::Read, 100), 3);
        let mut places =
            |lane, count| (0..count).filter_map(|_| load.next(lane)).map(|job| job.place).collect::<Vec<_>>();
        assert_eq!(places(0, 4), [0, 1, 2, 0]);
        assert_eq!(places(1, 4), [3, 4, 5, 3]);
        assert_eq!(places(2, 5), [6, 7, 8, 9, 6]);
        assert_eq!(load.plan.lba(9), 172);
    }

    #[test]
    fn more_lanes_than_places() {
        let mut load = load(plan(Shape::Write, 0), 64);
        for lane in 0..64 {
            let place = load.next(lane).expect("a job").place;
            assert!(place < 10 && load.next(lane).expect("a job").place < 10);
        }
    }

    #[test]
    fn random_places_are_all_met_and_the_mix_holds() {
        let mut load = load(plan(Shape::Randrw, 70), 1);
        let (mut met, mut reads) = ([0u32; 10], 0);
        for _ in 0..10_000 {
            let job = load.next(0).expect("a job");
            met[job.place as usize] += 1;
            reads += u32::from(job.kind == Kind::Read);
        }
        assert!(met.iter().all(|count| (800..1200).contains(count)), "{met:?}");
        assert!((6700..7300).contains(&reads), "{reads}");
    }

    #[test]
    fn a_flush_comes_after_so_many_acknowledged_writes() {
        let mut load = load(Plan { flush_every: Some(2), ..plan(Shape::Write, 0) }, 1);
        let mut kinds = Vec::new();
        for _ in 0..6 {
            let job = load.next(0).expect("a job");
            load.done(&job, 1).expect("no log");
            kinds.push(job.kind);
        }
        assert_eq!(kinds, [Kind::Write, Kind::Write, Kind::Flush, Kind::Write, Kind::Write, Kind::Flush]);
        assert_eq!((load.latencies.writes.count(), load.latencies.flushes.count(), load.total), (4, 2, 6));
    }

    #[test]
    fn what_an_earlier_run_has_written_is_not_this_ones() {
        let write = |before| {
            let verifier = Verifier::new(1, 512, 10, false);
            let mut load = Load::new(Plan { before, ..plan(Shape::Write, 0) }, 1, 1, Some(verifier), None);
            let job = load.next(0).expect("a job");
            load.done(&job, 1).expect("no log");
            (job.number, load.verifier.as_ref().expect("set").written())
        };
        assert_eq!(write(0), (1, vec![(0, Expect::Write(1))]));
        assert_eq!(write(1 << 40), ((1 << 40) + 1, vec![(0, Expect::Write((1 << 40) + 1))]));
    }

    #[test]
    fn what_is_read_back_is_waited_for() {
        let mut load = load(plan(Shape::Write, 0), 1);
        load.stop();
        assert!(!load.has_more());
        load.read_back(vec![(3, Expect::Write(1))]);
        assert!(load.has_more());
        assert_eq!(load.next(0).map(|job| job.place), Some(3));
        assert!(!load.has_more());
    }

    #[test]
    fn bursts_end_and_their_first_commands_are_told_apart() {
        let mut load = load(plan(Shape::Read, 100), 1);
        load.in_bursts(3);
        for rest in 0..2 {
            for number in 0..3 {
                let job = load.next(0).expect("a job");
                assert_eq!((job.is_first, load.rests()), (number == 0, number == 2));
                load.done(&job, 7).expect("no log");
            }
            assert!(load.next(0).is_none());
            assert_eq!((load.latencies.first.count(), load.latencies.reads.count()), (rest + 1, 3 * (rest + 1)));
            load.wake();
        }
        load.stop();
        assert!(!load.rests() && load.next(0).is_none());
    }

    #[test]
    fn a_failed_write_is_not_read_back() {
        let verifier = Verifier::new(1, 512, 10, false);
        let mut load = Load::new(plan(Shape::Write, 0), 1, 1, Some(verifier), None);
        let (good, bad) = (load.next(0).expect("a job"), load.next(0).expect("a job"));
        load.done(&good, 5).expect("no log");
        load.failed(&bad, "MEDIUM_ERROR");
        let verifier = load.verifier.as_ref().expect("set");
        assert_eq!(verifier.written(), [(0, Expect::Write(1))]);
        assert_eq!((load.errors, load.told.len()), (1, 1));
        load.stop();
        assert!(load.next(0).is_none());
    }

    #[test]
    fn a_buffer_in_use_is_not_written() {
        let load = Load::new(plan(Shape::Write, 0), 1, 1, Some(Verifier::new(1, 512, 10, false)), None);
        let job = |number| Job { kind: Kind::Write, place: 0, number, expect: Expect::Anything, is_first: false };
        let mut buffer = None;
        let first = load.data(&job(1), &mut buffer);
        let second = load.data(&job(2), &mut buffer);
        assert_eq!(crate::pattern::check(&first.bytes()[..512], 1, 100), Ok(1));
        assert_eq!(crate::pattern::check(&second.bytes()[..512], 1, 100), Ok(2));
    }
}
