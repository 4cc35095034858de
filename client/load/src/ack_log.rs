//! The acknowledgement log: the writes that a target has acknowledged, recorded outside of it for crash tests.
//!
//! One line per event, in the order of events:
//!
//! ```text
//! lunar-ack-log 1 seed=7 block=512 blocks=8
//! w 4096 17 v     write 17 (8 blocks from LBA 4096) was acknowledged; it may still be in a cache (volatile)
//! w 8192 18 d     ... and is durable: it had FUA
//! s 2             a SYNCHRONIZE CACHE completed that was sent after the first 2 writes were acknowledged
//! ```
//!
//! Writes of the same blocks never overlap in time, and their numbers rise: the blocks must hold the last durable write
//! or a newer one.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// The length of buffered text at which it is written to the file, in bytes.
const GATHER: usize = 1 << 16;

/// The parameters that all writes of a log share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The seed of the patterns.
    pub seed: u64,
    /// The logical block size, in bytes.
    pub block_size: u32,
    /// Logical blocks per write.
    pub blocks: u32,
}

/// A log that is being written.
#[derive(Debug)]
pub struct AckLog {
    file: File,
    text: String,
    writes: u64,
}

impl AckLog {
    /// Creates the file.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
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

    /// Records an acknowledged write.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, lba: u64, generation: u64, durable: bool) -> Result<()> {
        self.writes += 1;
        self.line(format_args!("w {lba} {generation} {}", if durable { 'd' } else { 'v' }))
    }

    /// The number of acknowledged writes so far, which a SYNCHRONIZE CACHE that is sent now covers.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Records a completed SYNCHRONIZE CACHE that covers the first `writes` writes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn synchronized(&mut self, writes: u64) -> Result<()> {
        self.line(format_args!("s {writes}"))
    }

    /// Writes the buffered text to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.file.write_all(self.text.as_bytes()).context("acknowledgement log")?;
        self.text.clear();
        Ok(())
    }
}

/// The acknowledged writes of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckedWrites {
    /// The number of the last durable write; 0 if there is none.
    pub durable: u64,
    /// The number of the last acknowledged write.
    pub acknowledged: u64,
}

/// The contents of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AckedLog {
    /// The parameters of all writes.
    pub header: Header,
    /// The acknowledged writes of each chunk, by the LBA of its first block.
    pub chunks: BTreeMap<u64, AckedWrites>,
    /// The number of writes in the log.
    pub writes: u64,
}

/// Reads a log. An incomplete last line is ignored: the process ended while it wrote the line.
///
/// # Errors
/// If the file cannot be read or is not an acknowledgement log.
pub fn read(path: &Path) -> Result<AckedLog> {
    let file = File::open(path).with_context(|| format!("acknowledgement log {}", path.display()))?;
    parse(BufReader::new(file)).with_context(|| format!("acknowledgement log {}", path.display()))
}

fn parse(mut input: impl BufRead) -> Result<AckedLog> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let header = parse_header(&line).context("the first line is no header of an acknowledgement log")?;
    let mut acked = AckedLog { header, chunks: BTreeMap::new(), writes: 0 };
    // Volatile writes in order, until a SYNCHRONIZE CACHE covers them.
    let mut volatile: VecDeque<(u64, u64, u64)> = VecDeque::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(acked);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["w", lba, generation, how @ ("v" | "d")] => {
                let (lba, generation): (u64, u64) = (lba.parse()?, generation.parse()?);
                acked.writes += 1;
                let chunk = acked.chunks.entry(lba).or_default();
                chunk.acknowledged = chunk.acknowledged.max(generation);
                match how {
                    "d" => chunk.durable = chunk.durable.max(generation),
                    _ => volatile.push_back((acked.writes, lba, generation)),
                }
            }
            ["s", covered] => {
                let covered: u64 = covered.parse()?;
                let count = volatile.partition_point(|(number, ..)| *number <= covered);
                for (_, lba, generation) in volatile.drain(..count) {
                    let chunk = acked.chunks.entry(lba).or_default();
                    chunk.durable = chunk.durable.max(generation);
                }
            }
            _ => bail!("invalid line {line:?}"),
        }
    }
}

fn parse_header(line: &str) -> Result<Header> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["lunar-ack-log", "1", seed, block, blocks] = words[..] else { bail!("invalid header {line:?}") };
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
    fn a_log_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("lunar-ack-log-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut log = AckLog::create(&path, HEADER).expect("new file");
        assert!(AckLog::create(&path, HEADER).is_err(), "the file exists");
        log.write(0, 1, false).expect("written");
        log.write(8, 2, true).expect("written");
        let covered = log.writes();
        log.write(0, 3, false).expect("written");
        log.synchronized(covered).expect("written");
        log.flush().expect("written");
        let acked = read(&path).expect("read");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!((acked.header, acked.writes), (HEADER, 3));
        let want = [(0, AckedWrites { durable: 1, acknowledged: 3 }), (8, AckedWrites { durable: 2, acknowledged: 2 })];
        assert_eq!(acked.chunks.into_iter().collect::<Vec<_>>(), want);
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_an_invalid_line_is_an_error() {
        let head = "lunar-ack-log 1 seed=1 block=512 blocks=1\n";
        assert_eq!(parse(format!("{head}w 1 1 v\nw 2 2").as_bytes()).map(|p| p.writes).ok(), Some(1));
        assert!(parse(format!("{head}x\n").as_bytes()).is_err());
        assert!(parse("something else\n".as_bytes()).is_err());
    }
}
