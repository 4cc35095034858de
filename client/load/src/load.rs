//! The choice of the next command, and the accounting of completed ones.

use crate::ack_log::AckLog;
use crate::histogram::Histogram;
use crate::options::Shape;
use crate::verify::{Expect, Verifier};
use anyhow::Result;
use lunar_core::outgoing::Data;

/// Failed commands that are reported one by one; further ones are only counted.
const REPORTED_MAX: usize = 10;

/// The operation of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
}

/// A command to execute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) kind: Operation,
    /// The chunk of the region.
    pub(crate) chunk: u64,
    /// Of a write: its number. Of a flush: the number of acknowledged writes that it covers.
    pub(crate) number: u64,
    pub(crate) expect: Expect,
    /// Whether the command is the first after a pause.
    pub(crate) is_first: bool,
}

/// The state of `--burst`.
#[derive(Clone, Copy, Debug)]
struct Burst {
    of: u64,
    left: u64,
}

/// The parameters of a load.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) block_size: u32,
    /// Logical blocks per command.
    pub(crate) blocks: u32,
    /// Bytes per command.
    pub(crate) bytes: u32,
    /// The first block of the region.
    pub(crate) base: u64,
    /// The number before the first write. It rises from run to run, so that blocks of an earlier run with the same seed
    /// are not mistaken for blocks of this run.
    pub(crate) number_base: u64,
    /// The number of chunks in the region; a chunk is as long as one command.
    pub(crate) chunks: u64,
    pub(crate) shape: Shape,
    /// Percentage of reads.
    pub(crate) reads: u64,
    pub(crate) fua: bool,
    pub(crate) flush_every: Option<u64>,
}

impl Plan {
    pub(crate) fn lba(&self, chunk: u64) -> u64 {
        self.base + chunk * u64::from(self.blocks)
    }
}

/// Latencies by operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) reads: Histogram,
    pub(crate) writes: Histogram,
    pub(crate) flushes: Histogram,
    /// Latencies of the first commands after a pause.
    pub(crate) first: Histogram,
}

/// A load that is running.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) plan: Plan,
    random: u64,
    /// Of each lane: the next chunk of its sequence, the first one and the end.
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
    /// Commands that succeeded since the start.
    pub(crate) total: u64,
    /// Commands that completed, successful or not.
    pub(crate) answered: u64,
    pub(crate) retries: u64,
    pub(crate) errors: u64,
    pub(crate) reported: Vec<String>,
}

impl Latencies {
    /// The number of latencies of each operation.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.count(),
            writes: self.writes.count(),
            flushes: self.flushes.count(),
            first: self.first.count(),
        }
    }
}

/// Commands that completed in the measured time.
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
            |lane: u64| u64::try_from(u128::from(plan.chunks) * u128::from(lane) / u128::from(lanes)).unwrap_or(0);
        // With fewer chunks than lanes, some lanes use the same chunk.
        let sequences = (0..lanes).map(|lane| (share(lane), share(lane + 1).max(share(lane) + 1)));
        let sequences = sequences.map(|(first, end)| (first, first, end)).collect();
        let mut random = seed;
        let payload: Vec<u8> = (0..plan.bytes).map(|_| (next_random(&mut random) >> 56) as u8).collect();
        Self {
            generation: plan.number_base,
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
            reported: Vec::new(),
        }
    }

    /// Pauses after each `of` commands until [`Self::resume`] is called.
    pub(crate) fn pause_after(&mut self, of: u64) {
        self.burst = Some(Burst { of, left: of });
    }

    /// Whether the load pauses.
    pub(crate) fn is_pausing(&self) -> bool {
        !self.stopped && self.burst.is_some_and(|burst| burst.left == 0)
    }

    /// Continues after a pause.
    pub(crate) fn resume(&mut self) {
        if let Some(burst) = &mut self.burst {
            burst.left = burst.of;
        }
    }

    /// Starts no further commands.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.read_back = None;
    }

    /// Switches to reading and checking each of these chunks once.
    pub(crate) fn read_back(&mut self, chunks: Vec<(u64, Expect)>) {
        self.read_back = Some(chunks.into_iter());
    }

    /// Whether there are chunks left to read back.
    pub(crate) fn has_more(&self) -> bool {
        self.read_back.as_ref().is_some_and(|chunks| chunks.len() > 0)
    }

    /// The next command of a lane; `None` if there is none now.
    pub(crate) fn next(&mut self, lane: usize) -> Option<Job> {
        if let Some(chunks) = &mut self.read_back {
            let (chunk, expect) = chunks.next()?;
            return Some(Job { kind: Operation::Read, chunk, number: 0, expect, is_first: false });
        }
        if self.stopped || self.is_pausing() {
            return None;
        }
        let job = self.choose(lane)?;
        let is_first = self.burst.as_mut().is_some_and(|burst| {
            burst.left -= 1;
            burst.left + 1 == burst.of
        });
        Some(Job { is_first, ..job })
    }

    /// Chooses the next command of a lane.
    fn choose(&mut self, lane: usize) -> Option<Job> {
        if self.plan.flush_every.is_some_and(|every| self.unflushed >= every) {
            self.unflushed = 0;
            let number = self.log.as_ref().map_or(0, AckLog::writes);
            return Some(Job { kind: Operation::Flush, chunk: 0, number, expect: Expect::Anything, is_first: false });
        }
        let wanted = self.chunk(lane);
        let chunk = match &mut self.verifier {
            Some(verifier) => verifier.take(wanted)?,
            None => wanted,
        };
        let read = match self.plan.reads {
            0 => false,
            100 => true,
            percent => next_random(&mut self.random) % 100 < percent,
        };
        if read {
            let expect = self.verifier.as_ref().map_or(Expect::Anything, |verifier| verifier.expect(chunk));
            return Some(Job { kind: Operation::Read, chunk, number: 0, expect, is_first: false });
        }
        self.generation += 1;
        Some(Job { kind: Operation::Write, chunk, number: self.generation, expect: Expect::Anything, is_first: false })
    }

    fn chunk(&mut self, lane: usize) -> u64 {
        if self.plan.shape.is_random() {
            let random = u128::from(next_random(&mut self.random)) * u128::from(self.plan.chunks);
            return (random >> 64) as u64;
        }
        let (next, first, end) = &mut self.sequences[lane];
        let chunk = *next;
        *next = if chunk + 1 == *end { *first } else { chunk + 1 };
        chunk
    }

    /// The data of a write. `buffer` is the pattern buffer of the slot; it is allocated if it is missing or still in
    /// use.
    pub(crate) fn data(&self, job: &Job, buffer: &mut Option<std::rc::Rc<[u8]>>) -> Data {
        let Some(verifier) = &self.verifier else { return self.payload.clone() };
        if buffer.as_mut().and_then(std::rc::Rc::get_mut).is_none() {
            *buffer = Some(vec![0; self.plan.bytes as usize].into());
        }
        let buffer = buffer.as_mut().expect("made above");
        if let Some(bytes) = std::rc::Rc::get_mut(buffer) {
            verifier.fill(self.plan.lba(job.chunk), job.number, bytes);
        }
        Data::new(buffer.clone())
    }

    /// Checks one block of a read.
    pub(crate) fn check(&mut self, job: &Job, lba: u64, block: &[u8]) {
        if let Some(verifier) = &mut self.verifier {
            verifier.check(job.expect, lba, block);
        }
    }

    /// Records a successful command and its latency in nanoseconds.
    ///
    /// # Errors
    /// If the acknowledgement log cannot be written.
    pub(crate) fn done(&mut self, job: &Job, latency: u64) -> Result<()> {
        self.total += 1;
        if job.is_first {
            self.latencies.first.record(latency);
        }
        match job.kind {
            Operation::Read => self.latencies.reads.record(latency),
            Operation::Write => {
                self.latencies.writes.record(latency);
                self.unflushed += 1;
                if let Some(log) = &mut self.log {
                    log.write(self.plan.lba(job.chunk), job.number, self.plan.fua)?;
                }
            }
            Operation::Flush => {
                self.latencies.flushes.record(latency);
                if let Some(log) = &mut self.log {
                    log.synchronized(job.number)?;
                }
            }
        }
        self.release(job, Some(job.number));
        Ok(())
    }

    /// Records a failed command.
    pub(crate) fn failed(&mut self, job: &Job, why: &str) {
        self.errors += 1;
        if self.reported.len() < REPORTED_MAX {
            let lba = self.plan.lba(job.chunk);
            self.reported.push(format!("{:?} of {} blocks at LBA {lba}: {why}", job.kind, self.plan.blocks));
        }
        self.release(job, None);
    }

    fn release(&mut self, job: &Job, number: Option<u64>) {
        let Some(verifier) = &mut self.verifier else { return };
        match job.kind {
            // Reading back does not reserve chunks.
            Operation::Read if self.read_back.is_some() => {}
            Operation::Read => verifier.release(job.chunk, None),
            Operation::Write => verifier.release(job.chunk, Some(number)),
            Operation::Flush => {}
        }
    }
}

/// SplitMix64: a fast generator whose quality suffices for choosing chunks.
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
            number_base: 0,
            chunks: 10,
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
    fn sequences_divide_the_region_and_wrap() {
        let mut load = load(plan(Shape::Read, 100), 3);
        let mut chunks =
            |lane, count| (0..count).filter_map(|_| load.next(lane)).map(|job| job.chunk).collect::<Vec<_>>();
        assert_eq!(chunks(0, 4), [0, 1, 2, 0]);
        assert_eq!(chunks(1, 4), [3, 4, 5, 3]);
        assert_eq!(chunks(2, 5), [6, 7, 8, 9, 6]);
        assert_eq!(load.plan.lba(9), 172);
    }

    #[test]
    fn there_may_be_more_lanes_than_chunks() {
        let mut load = load(plan(Shape::Write, 0), 64);
        for lane in 0..64 {
            let chunk = load.next(lane).expect("a job").chunk;
            assert!(chunk < 10 && load.next(lane).expect("a job").chunk < 10);
        }
    }

    #[test]
    fn random_chunks_are_all_used_and_the_mix_is_kept() {
        let mut load = load(plan(Shape::Randrw, 70), 1);
        let (mut met, mut reads) = ([0u32; 10], 0);
        for _ in 0..10_000 {
            let job = load.next(0).expect("a job");
            met[job.chunk as usize] += 1;
            reads += u32::from(job.kind == Operation::Read);
        }
        assert!(met.iter().all(|count| (800..1200).contains(count)), "{met:?}");
        assert!((6700..7300).contains(&reads), "{reads}");
    }

    #[test]
    fn a_flush_follows_every_n_acknowledged_writes() {
        let mut load = load(Plan { flush_every: Some(2), ..plan(Shape::Write, 0) }, 1);
        let mut kinds = Vec::new();
        for _ in 0..6 {
            let job = load.next(0).expect("a job");
            load.done(&job, 1).expect("no log");
            kinds.push(job.kind);
        }
        assert_eq!(
            kinds,
            [
                Operation::Write,
                Operation::Write,
                Operation::Flush,
                Operation::Write,
                Operation::Write,
                Operation::Flush
            ]
        );
        assert_eq!((load.latencies.writes.count(), load.latencies.flushes.count(), load.total), (4, 2, 6));
    }

    #[test]
    fn write_numbers_differ_from_run_to_run() {
        let write = |number_base| {
            let verifier = Verifier::new(1, 512, 10, false);
            let mut load = Load::new(Plan { number_base, ..plan(Shape::Write, 0) }, 1, 1, Some(verifier), None);
            let job = load.next(0).expect("a job");
            load.done(&job, 1).expect("no log");
            (job.number, load.verifier.as_ref().expect("set").written())
        };
        assert_eq!(write(0), (1, vec![(0, Expect::Write(1))]));
        assert_eq!(write(1 << 40), ((1 << 40) + 1, vec![(0, Expect::Write((1 << 40) + 1))]));
    }

    #[test]
    fn reading_back_reads_each_chunk_once() {
        let mut load = load(plan(Shape::Write, 0), 1);
        load.stop();
        assert!(!load.has_more());
        load.read_back(vec![(3, Expect::Write(1))]);
        assert!(load.has_more());
        assert_eq!(load.next(0).map(|job| job.chunk), Some(3));
        assert!(!load.has_more());
    }

    #[test]
    fn bursts_end_and_their_first_commands_are_counted_separately() {
        let mut load = load(plan(Shape::Read, 100), 1);
        load.pause_after(3);
        for rest in 0..2 {
            for number in 0..3 {
                let job = load.next(0).expect("a job");
                assert_eq!((job.is_first, load.is_pausing()), (number == 0, number == 2));
                load.done(&job, 7).expect("no log");
            }
            assert!(load.next(0).is_none());
            assert_eq!((load.latencies.first.count(), load.latencies.reads.count()), (rest + 1, 3 * (rest + 1)));
            load.resume();
        }
        load.stop();
        assert!(!load.is_pausing() && load.next(0).is_none());
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
        assert_eq!((load.errors, load.reported.len()), (1, 1));
        load.stop();
        assert!(load.next(0).is_none());
    }

    #[test]
    fn a_buffer_in_use_is_not_overwritten() {
        let load = Load::new(plan(Shape::Write, 0), 1, 1, Some(Verifier::new(1, 512, 10, false)), None);
        let job = |number| Job { kind: Operation::Write, chunk: 0, number, expect: Expect::Anything, is_first: false };
        let mut buffer = None;
        let first = load.data(&job(1), &mut buffer);
        let second = load.data(&job(2), &mut buffer);
        assert_eq!(crate::pattern::check(&first.bytes()[..512], 1, 100), Ok(1));
        assert_eq!(crate::pattern::check(&second.bytes()[..512], 1, 100), Ok(2));
    }
}
