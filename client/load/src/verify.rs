//! Verification: the expected contents of the region, and checks of the blocks that are read.

use crate::ack_log::AckedWrites;
use crate::pattern::{self, Mismatch};
use serde::Serialize;

/// The most chunks that a run can keep track of (9 bytes each).
pub(crate) const CHUNKS_MAX: u64 = 1 << 26;
/// Bad blocks that are reported one by one; further ones are only counted.
const REPORTED_MAX: usize = 20;
/// Chunks that are tried after one that is in use.
const PROBES_MAX: u64 = 64;

/// The expected content of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// Unknown: not checked.
    Anything,
    /// A pattern with the seed of the run, of any write.
    Pattern,
    /// The pattern of this write.
    Write(u64),
    /// A pattern that is at least as new as the durable write in an acknowledgement log.
    Kept(AckedWrites),
}

/// The result of verification.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// Blocks that were checked.
    pub checked_blocks: u64,
    /// Blocks that were wrong.
    pub bad_blocks: u64,
    /// Descriptions of the first wrong blocks.
    pub bad: Vec<String>,
    /// Blocks whose last acknowledged write was not durable.
    pub volatile_blocks: u64,
    /// Blocks of these that hold an older write.
    pub volatile_lost_blocks: u64,
}

/// The last write of each chunk.
#[derive(Debug)]
pub(crate) struct Verifier {
    seed: u64,
    block_size: usize,
    /// The number of the last acknowledged write of each chunk; 0 if this run has not written it.
    written: Vec<u64>,
    busy: Vec<bool>,
    /// Whether chunks that this run has not written must contain patterns.
    all_written: bool,
    pub(crate) found: Verified,
}

/// Marks a chunk whose write failed: its content is unknown until the next write.
const UNKNOWN: u64 = u64::MAX;

impl Verifier {
    pub(crate) fn new(seed: u64, block_size: u32, chunks: usize, all_written: bool) -> Self {
        Self {
            seed,
            block_size: block_size as usize,
            written: vec![0; chunks],
            busy: vec![false; chunks],
            all_written,
            found: Verified::default(),
        }
    }

    /// Reserves a chunk for a command: `wanted`, or a following one that no other command uses.
    pub(crate) fn take(&mut self, wanted: u64) -> Option<u64> {
        let chunks = self.busy.len() as u64;
        let free =
            (0..PROBES_MAX.min(chunks)).map(|step| (wanted + step) % chunks).find(|at| !self.busy[*at as usize])?;
        self.busy[free as usize] = true;
        Some(free)
    }

    /// Releases a chunk. `write` is the number of the write that it was written with; `Some(None)` if that write
    /// failed, `None` if it was read.
    pub(crate) fn release(&mut self, chunk: u64, write: Option<Option<u64>>) {
        self.busy[chunk as usize] = false;
        if let Some(write) = write {
            self.written[chunk as usize] = write.unwrap_or(UNKNOWN);
        }
    }

    pub(crate) fn expect(&self, chunk: u64) -> Expect {
        match self.written[chunk as usize] {
            0 if self.all_written => Expect::Pattern,
            0 | UNKNOWN => Expect::Anything,
            write => Expect::Write(write),
        }
    }

    /// The chunks that this run wrote, with their expected contents.
    pub(crate) fn written(&self) -> Vec<(u64, Expect)> {
        let known = self.written.iter().zip(0..).filter(|(write, _)| **write != 0 && **write != UNKNOWN);
        known.map(|(write, chunk)| (chunk, Expect::Write(*write))).collect()
    }

    pub(crate) fn fill(&self, lba: u64, generation: u64, data: &mut [u8]) {
        for (block, at) in data.chunks_exact_mut(self.block_size).zip(lba..) {
            pattern::fill(block, self.seed, at, generation);
        }
    }

    /// Checks one block.
    pub(crate) fn check(&mut self, expect: Expect, lba: u64, block: &[u8]) {
        let found = match expect {
            Expect::Anything => return,
            _ => pattern::check(block, self.seed, lba),
        };
        let writes = match expect {
            Expect::Kept(writes) => writes,
            _ => AckedWrites::default(),
        };
        let verdict = match (expect, found) {
            (Expect::Write(wanted), Ok(found)) if found != wanted => Err(Mismatch::Generation { found, wanted }),
            (Expect::Kept(AckedWrites { durable: wanted, .. }), Ok(found)) if found < wanted => {
                Err(Mismatch::Generation { found, wanted })
            }
            (Expect::Kept(AckedWrites { durable: 0, .. }), Err(_)) => Ok(()),
            (_, found) => found.map(|_| ()),
        };
        if writes.acknowledged > writes.durable {
            self.found.volatile_blocks += 1;
            self.found.volatile_lost_blocks += u64::from(!found.is_ok_and(|found| found >= writes.acknowledged));
        }
        if !matches!(expect, Expect::Kept(AckedWrites { durable: 0, .. })) {
            self.found.checked_blocks += 1;
        }
        if let Err(mismatch) = verdict {
            self.bad(format!("LBA {lba} holds {mismatch}"));
        }
    }

    fn bad(&mut self, what: String) {
        self.found.bad_blocks += 1;
        if self.found.bad.len() < REPORTED_MAX {
            self.found.bad.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lba: u64, generation: u64) -> Vec<u8> {
        let mut data = vec![0; 512];
        Verifier::new(1, 512, 4, false).fill(lba, generation, &mut data);
        data
    }

    fn verdict(expect: Expect, block: &[u8]) -> (u64, u64, u64, u64) {
        let mut verifier = Verifier::new(1, 512, 4, false);
        verifier.check(expect, 5, block);
        let found = verifier.found;
        (found.checked_blocks, found.bad_blocks, found.volatile_blocks, found.volatile_lost_blocks)
    }

    #[test]
    fn a_read_must_return_the_last_write() {
        assert_eq!(verdict(Expect::Write(7), &block(5, 7)), (1, 0, 0, 0));
        assert_eq!(verdict(Expect::Write(7), &block(5, 6)), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Write(7), &block(4, 7)), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Pattern, &block(5, 3)), (1, 0, 0, 0));
        assert_eq!(verdict(Expect::Pattern, &[0; 512]), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Anything, &[0; 512]), (0, 0, 0, 0));
    }

    #[test]
    fn a_chunk_must_be_as_new_as_its_durable_write() {
        let both = Expect::Kept(AckedWrites { durable: 7, acknowledged: 9 });
        assert_eq!(verdict(both, &block(5, 10)), (1, 0, 1, 0));
        assert_eq!(verdict(both, &block(5, 8)), (1, 0, 1, 1));
        assert_eq!(verdict(both, &block(5, 6)), (1, 1, 1, 1));
        assert_eq!(verdict(both, &[0; 512]), (1, 1, 1, 1));
        let volatile = Expect::Kept(AckedWrites { durable: 0, acknowledged: 9 });
        assert_eq!(verdict(volatile, &[0; 512]), (0, 0, 1, 1));
        assert_eq!(verdict(volatile, &block(5, 9)), (0, 0, 1, 0));
    }

    #[test]
    fn no_two_commands_use_the_same_chunk() {
        let mut verifier = Verifier::new(1, 512, 3, false);
        assert_eq!(
            (verifier.take(1), verifier.take(1), verifier.take(1), verifier.take(1)),
            (Some(1), Some(2), Some(0), None)
        );
        verifier.release(2, Some(Some(4)));
        verifier.release(0, Some(None));
        assert_eq!((verifier.take(1), verifier.expect(2)), (Some(2), Expect::Write(4)));
        assert_eq!((verifier.expect(0), verifier.expect(1)), (Expect::Anything, Expect::Anything));
        assert_eq!(verifier.written(), [(2, Expect::Write(4))]);
    }
}
