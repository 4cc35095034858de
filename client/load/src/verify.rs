//! What should be where: the memory of a run that checks what it reads.

use crate::ack_log::Promise;
use crate::pattern::{self, Mismatch};
use serde::Serialize;

/// Places that a run can keep in mind (9 bytes each).
pub(crate) const PLACES_MAX: u64 = 1 << 26;
/// Bad blocks that are told one by one; the rest is counted.
const TOLD_MAX: usize = 20;
/// Free places that are looked for beside one that is in use.
const PROBES_MAX: u64 = 64;

/// What a read must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// Nothing is known.
    Anything,
    /// A pattern of this seed, of any write.
    Pattern,
    /// The pattern of this write.
    Write(u64),
    /// What an acknowledgement log promises.
    Kept(Promise),
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// Blocks that had to be right.
    pub checked_blocks: u64,
    /// Those that were not.
    pub bad_blocks: u64,
    /// The first of them.
    pub bad: Vec<String>,
    /// Blocks whose last acknowledged write needed not survive.
    pub volatile_blocks: u64,
    /// Those of them that did not.
    pub volatile_lost_blocks: u64,
}

/// Places: one command's blocks each.
#[derive(Debug)]
pub(crate) struct Verifier {
    seed: u64,
    block_size: usize,
    /// The last acknowledged write of each place: 0 if there is none in this run.
    written: Vec<u64>,
    busy: Vec<bool>,
    /// Whether places that this run did not write must hold patterns.
    all_written: bool,
    pub(crate) found: Verified,
}

/// Stands for a write that failed: nothing is known of its place until the next one.
const UNKNOWN: u64 = u64::MAX;

impl Verifier {
    pub(crate) fn new(seed: u64, block_size: u32, places: usize, all_written: bool) -> Self {
        Self {
            seed,
            block_size: block_size as usize,
            written: vec![0; places],
            busy: vec![false; places],
            all_written,
            found: Verified::default(),
        }
    }

    /// Takes a place for one command: `wanted`, or one near it that no other command uses.
    pub(crate) fn take(&mut self, wanted: u64) -> Option<u64> {
        let places = self.busy.len() as u64;
        let free =
            (0..PROBES_MAX.min(places)).map(|step| (wanted + step) % places).find(|at| !self.busy[*at as usize])?;
        self.busy[free as usize] = true;
        Some(free)
    }

    /// Gives a place back. `write`: that it was written by this write; `None` for a write that failed.
    pub(crate) fn give(&mut self, place: u64, write: Option<Option<u64>>) {
        self.busy[place as usize] = false;
        if let Some(write) = write {
            self.written[place as usize] = write.unwrap_or(UNKNOWN);
        }
    }

    pub(crate) fn expect(&self, place: u64) -> Expect {
        match self.written[place as usize] {
            0 if self.all_written => Expect::Pattern,
            0 | UNKNOWN => Expect::Anything,
            write => Expect::Write(write),
        }
    }

    /// Places that this run wrote, with what they hold.
    pub(crate) fn written(&self) -> Vec<(u64, Expect)> {
        let known = self.written.iter().zip(0..).filter(|(write, _)| **write != 0 && **write != UNKNOWN);
        known.map(|(write, place)| (place, Expect::Write(*write))).collect()
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
        let promise = match expect {
            Expect::Kept(promise) => promise,
            _ => Promise::default(),
        };
        let verdict = match (expect, found) {
            (Expect::Write(wanted), Ok(found)) if found != wanted => Err(Mismatch::Generation { found, wanted }),
            (Expect::Kept(Promise { durable: wanted, .. }), Ok(found)) if found < wanted => {
                Err(Mismatch::Generation { found, wanted })
            }
            (Expect::Kept(Promise { durable: 0, .. }), Err(_)) => Ok(()),
            (_, found) => found.map(|_| ()),
        };
        if promise.acknowledged > promise.durable {
            self.found.volatile_blocks += 1;
            self.found.volatile_lost_blocks += u64::from(!found.is_ok_and(|found| found >= promise.acknowledged));
        }
        if !matches!(expect, Expect::Kept(Promise { durable: 0, .. })) {
            self.found.checked_blocks += 1;
        }
        if let Err(mismatch) = verdict {
            self.bad(format!("LBA {lba} holds {mismatch}"));
        }
    }

    fn bad(&mut self, what: String) {
        self.found.bad_blocks += 1;
        if self.found.bad.len() < TOLD_MAX {
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
    fn a_read_finds_the_last_write() {
        assert_eq!(verdict(Expect::Write(7), &block(5, 7)), (1, 0, 0, 0));
        assert_eq!(verdict(Expect::Write(7), &block(5, 6)), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Write(7), &block(4, 7)), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Pattern, &block(5, 3)), (1, 0, 0, 0));
        assert_eq!(verdict(Expect::Pattern, &[0; 512]), (1, 1, 0, 0));
        assert_eq!(verdict(Expect::Anything, &[0; 512]), (0, 0, 0, 0));
    }

    #[test]
    fn a_promise_is_kept_by_what_is_as_new() {
        let both = Expect::Kept(Promise { durable: 7, acknowledged: 9 });
        assert_eq!(verdict(both, &block(5, 10)), (1, 0, 1, 0));
        assert_eq!(verdict(both, &block(5, 8)), (1, 0, 1, 1));
        assert_eq!(verdict(both, &block(5, 6)), (1, 1, 1, 1));
        assert_eq!(verdict(both, &[0; 512]), (1, 1, 1, 1));
        let volatile = Expect::Kept(Promise { durable: 0, acknowledged: 9 });
        assert_eq!(verdict(volatile, &[0; 512]), (0, 0, 1, 1));
        assert_eq!(verdict(volatile, &block(5, 9)), (0, 0, 1, 0));
    }

    #[test]
    fn no_two_commands_share_a_place() {
        let mut verifier = Verifier::new(1, 512, 3, false);
        assert_eq!(
            (verifier.take(1), verifier.take(1), verifier.take(1), verifier.take(1)),
            (Some(1), Some(2), Some(0), None)
        );
        verifier.give(2, Some(Some(4)));
        verifier.give(0, Some(None));
        assert_eq!((verifier.take(1), verifier.expect(2)), (Some(2), Expect::Write(4)));
        assert_eq!((verifier.expect(0), verifier.expect(1)), (Expect::Anything, Expect::Anything));
        assert_eq!(verifier.written(), [(2, Expect::Write(4))]);
    }
}
