//! What a target has acknowledged, kept outside of it: the witness of a crash test.
//!
//! One line per event, in the order in which they happened:
//!
//! ```text
//! lunar-ack-log 1 seed=7 block=512 blocks=8
//! w 4096 17 v     write 17, of 8 blocks from LBA 4096, was acknowledged; it may still be in a cache (v)
//! w 8192 18 d     ... and is durable: it had FUA (d)
//! s 2             a SYNCHRONIZE CACHE is done that was sent after the first 2 writes were acknowledged
//! ```
//!
//! Writes of one place never overlap in time, and their numbers rise: what is there must be as new as the last
//! durable write, or newer.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// Bytes that gather before they are written, within one wake-up.
const GATHER: usize = 1 << 16;

/// What all writes of a log have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Seed of the patterns.
    pub seed: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Logical blocks of a write.
    pub blocks: u32,
}

/// A log being written.
#[derive(Debug)]
pub struct AckLog {
    file: File,
    text: String,
    writes: u64,
}

impl AckLog {
    /// A new file.
    ///
    /// # Errors
    /// When it exists, or cannot be written.
    pub fn create(path: &Path, header: Header) -> Result<Self> {
        let file = File::create_new(path).with_context(|| format!("acknowledgement log {}", path.display()))?;
        let mut log = Self { file, text: String::with_capacity(GATHER), writes: 0 };
        let Header { seed, block_size, blocks } = header;
        log.line(format_args!("lunar-ack-log 1 seed={seed} block={block_size} blocks={blocks}"))?;
        log.flush()?;
        Ok(log)
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) -> Result<()> {
        writeln!(self.text, "{line}")?;
        if self.text.len() >= GATHER - 128 { self.flush() } else { Ok(()) }
    }

    /// A write was acknowledged.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, lba: u64, generation: u64, durable: bool) -> Result<()> {
        self.writes += 1;
        self.line(format_args!("w {lba} {generation} {}", if durable { 'd' } else { 'v' }))
    }

    /// Writes acknowledged so far: what a SYNCHRONIZE CACHE that is sent now will cover.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// A SYNCHRONIZE CACHE is done that covers the first `writes`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn synchronized(&mut self, writes: u64) -> Result<()> {
        self.line(format_args!("s {writes}"))
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.file.write_all(self.text.as_bytes()).context("acknowledgement log")?;
        self.text.clear();
        Ok(())
    }
}

/// What must be, or may be, at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// The last write that is durable; 0 if none is.
    pub durable: u64,
    /// The last write that was acknowledged.
    pub acknowledged: u64,
}

/// A log that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promises {
    /// What all writes have in common.
    pub header: Header,
    /// By the LBA of the first block.
    pub places: BTreeMap<u64, Promise>,
    /// Writes in the log.
    pub writes: u64,
}

/// Reads a log. A last line without an end is left out: it was being written.
///
/// # Errors
/// When the file cannot be read, or is no such log.
pub fn read(path: &Path) -> Result<Promises> {
    let file = File::open(path).with_context(|| format!("acknowledgement log {}", path.display()))?;
    parse(BufReader::new(file)).with_context(|| format!("acknowledgement log {}", path.display()))
}

fn parse(mut input: impl BufRead) -> Result<Promises> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let header = parse_header(&line).context("it does not begin as one")?;
    let mut promises = Promises { header, places: BTreeMap::new(), writes: 0 };
    // Volatile writes in their order, until a SYNCHRONIZE CACHE covers them.
    let mut volatile: VecDeque<(u64, u64, u64)> = VecDeque::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(promises);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["w", lba, generation, how @ ("v" | "d")] => {
                let (lba, generation): (u64, u64) = (lba.parse()?, generation.parse()?);
                promises.writes += 1;
                let place = promises.places.entry(lba).or_default();
                place.acknowledged = place.acknowledged.max(generation);
                match how {
                    "d" => place.durable = place.durable.max(generation),
                    _ => volatile.push_back((promises.writes, lba, generation)),
                }
            }
            ["s", covered] => {
                let covered: u64 = covered.parse()?;
                let count = volatile.partition_point(|(number, ..)| *number <= covered);
                for (_, lba, generation) in volatile.drain(..count) {
                    let place = promises.places.entry(lba).or_default();
                    place.durable = place.durable.max(generation);
                }
            }
            _ => bail!("it has the line {line:?}"),
        }
    }
}

fn parse_header(line: &str) -> Result<Header> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["lunar-ack-log", "1", seed, block, blocks] = words[..] else { bail!("the first line is {line:?}") };
    let value = |word: &str, key: &str| word.strip_prefix(key).map(str::to_owned).context("a key is missing");
    Ok(Header {
        seed: value(seed, "seed=")?.parse()?,
        block_size: value(block, "block=")?.parse()?,
        blocks: value(blocks, "blocks=")?.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { seed: 7, block_size: 512, blocks: 8 };

    #[test]
    fn what_was_written_is_read() {
        let path = std::env::temp_dir().join(format!("lunar-ack-log-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut log = AckLog::create(&path, HEADER).expect("new file");
        assert!(AckLog::create(&path, HEADER).is_err(), "it exists");
        log.write(0, 1, false).expect("written");
        log.write(8, 2, true).expect("written");
        let covered = log.writes();
        log.write(0, 3, false).expect("written");
        log.synchronized(covered).expect("written");
        log.flush().expect("written");
        let promises = read(&path).expect("read");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!((promises.header, promises.writes), (HEADER, 3));
        let want = [(0, Promise { durable: 1, acknowledged: 3 }), (8, Promise { durable: 2, acknowledged: 2 })];
        assert_eq!(promises.places.into_iter().collect::<Vec<_>>(), want);
    }

    #[test]
    fn a_line_without_an_end_is_left_out_and_nonsense_is_an_error() {
        let head = "lunar-ack-log 1 seed=1 block=512 blocks=1\n";
        assert_eq!(parse(format!("{head}w 1 1 v\nw 2 2").as_bytes()).map(|p| p.writes).ok(), Some(1));
        assert!(parse(format!("{head}x\n").as_bytes()).is_err());
        assert!(parse("something else\n".as_bytes()).is_err());
    }
}
