//! The trace of a simulation, as text and as one number: equal seeds must give equal numbers.

use super::chance::scramble;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::time::Instant;
use std::fmt::{self, Write as _};

/// The record of a world.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: Hash,
    /// The lines, if they are kept: a run of a thousand seeds keeps none and replays the one that fails.
    lines: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hash(u64);

impl Hash {
    fn word(&mut self, word: u64) {
        self.0 = scramble(self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }
}

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

impl Trace {
    /// Keeps lines from now on.
    pub(super) fn keep(&mut self) {
        self.lines.get_or_insert_default();
    }

    /// Adds an event.
    pub(super) fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        self.hash.word(now.0);
        // Writing to a hash cannot fail.
        let _ = self.hash.write_fmt(what);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.3} us  {what}", now.0 as f64 / 1000.0));
        }
    }

    /// The hash of all events.
    pub(super) fn hash(&self) -> u64 {
        self.hash.0
    }

    /// The lines kept.
    pub(super) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}

/// Bytes as a number, to see in a trace whether they are the same.
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut hash = Hash::default();
        hash.bytes(bytes);
        Self(hash.0)
    }

    pub(super) fn of_in(memory: &SgMut) -> Self {
        Self::over(memory.pieces().iter().map(|piece| (piece.len(), |into: &mut [u8]| piece.read(0, into))))
    }

    pub(super) fn of_out(memory: &Sg) -> Self {
        Self::over(memory.pieces().iter().map(|piece| (piece.len(), |into: &mut [u8]| piece.read(0, into))))
    }

    /// Pieces may be guest memory, which is copied.
    fn over(pieces: impl Iterator<Item = (usize, impl Fn(&mut [u8]))>) -> Self {
        let (mut hash, mut bytes) = (Hash::default(), Vec::new());
        for (len, read) in pieces {
            bytes.resize(len, 0);
            read(&mut bytes);
            hash.bytes(&bytes);
        }
        Self(hash.0)
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_order_and_words_all_count() {
        let run = |lines: &[(u64, &str)]| {
            let mut trace = Trace::default();
            lines.iter().for_each(|(at, line)| trace.note(Instant(*at), format_args!("{line}")));
            trace.hash()
        };
        assert_eq!(run(&[(1, "a"), (2, "b")]), run(&[(1, "a"), (2, "b")]));
        assert_ne!(run(&[(1, "a"), (2, "b")]), run(&[(1, "b"), (2, "a")]));
        assert_ne!(run(&[(1, "a")]), run(&[(2, "a")]));
    }

    #[test]
    fn lines_are_kept_on_demand_and_change_nothing() {
        let mut silent = Trace::default();
        let mut kept = Trace::default();
        kept.keep();
        silent.note(Instant(1500), format_args!("x"));
        kept.note(Instant(1500), format_args!("x"));
        assert_eq!(silent.hash(), kept.hash());
        assert_eq!((silent.lines().len(), kept.lines()), (0, &["       1.500 us  x".to_owned()][..]));
    }
}
