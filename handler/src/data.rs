//! The data of a SCSI command: it stays in the memory that a handler shares with Lunar until the device moves it.
//!
//! Lunar does not change this memory before the command is answered. The types do not rely on that: a defect of Lunar
//! can make the data wrong, and nothing else. Memory of the handler itself serves as well, in tests for example.

use lunar_core::mem::Region;
use lunar_reactor::blocking;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Bytes of shared memory that are copied at once to be looked at: they stay in the cache of the processor, and CRC-32C
/// is fastest for multiples of this.
const PIECE_BYTES: usize = 24 << 10;
/// Parts of data were checked when they were made.
const WITHIN: &str = "the data is within the memory";

/// A part of the memory.
#[derive(Clone, Copy)]
struct Shared<'a> {
    region: &'a Region,
    at: usize,
    len: usize,
}

impl<'a> Shared<'a> {
    fn of(region: &'a Region, at: usize, len: usize) -> Option<Self> {
        region.slice(at, len).map(|_| Self { region, at, len })
    }

    fn read(&self, from: usize, into: &mut [u8]) {
        assert!(self.region.read(self.at + from, into), "{WITHIN}");
    }

    fn pieces(&self, range: Range<usize>, mut look: impl FnMut(&[u8])) {
        let mut memory = [0; PIECE_BYTES];
        let mut at = range.start;
        while at < range.end {
            let piece = &mut memory[..PIECE_BYTES.min(range.end - at)];
            self.read(at, piece);
            look(piece);
            at += piece.len();
        }
    }
}

#[derive(Clone, Copy)]
enum Out<'a> {
    Own(&'a [u8]),
    Shared(Shared<'a>),
}

/// Data from the initiator.
#[derive(Clone, Copy)]
pub struct DataOut<'a>(Out<'a>);

impl<'a> DataOut<'a> {
    /// The `len` bytes from `at` on; `None` if they do not lie within the region.
    #[must_use]
    pub fn shared(region: &'a Region, at: usize, len: usize) -> Option<Self> {
        Shared::of(region, at, len).map(|shared| Self(Out::Shared(shared)))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Out::Own(bytes) => bytes.len(),
            Out::Shared(shared) => shared.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part; `None` if there are fewer bytes.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        match self.0 {
            Out::Own(bytes) => bytes.get(range).map(|bytes| Self(Out::Own(bytes))),
            Out::Shared(Shared { region, at, len }) => {
                let count = range.end.checked_sub(range.start).filter(|_| range.end <= len)?;
                Some(Self(Out::Shared(Shared { region, at: at + range.start, len: count })))
            }
        }
    }

    /// Parts of `len` bytes in order; the last one has the remainder.
    ///
    /// # Panics
    /// When `len` is zero.
    pub fn chunks(&self, len: usize) -> impl Iterator<Item = Self> + use<'a> {
        let whole = *self;
        let part = move |at| whole.get(at..whole.len().min(at + len));
        (0..whole.len()).step_by(len).filter_map(part)
    }

    /// A copy.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends a copy.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        match self.0 {
            Out::Own(own) => bytes.extend_from_slice(own),
            Out::Shared(shared) => {
                let at = bytes.len();
                bytes.resize(at + shared.len, 0);
                shared.read(0, &mut bytes[at..]);
            }
        }
    }

    /// All bytes at once: a copy if they are shared.
    pub fn bytes<'b>(&self, copy: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if let Out::Own(bytes) = self.0 {
            return bytes;
        }
        copy.clear();
        self.append_to(copy);
        copy
    }

    /// Looks at all bytes in order, in pieces of any length. Shared ones are copied piece by piece, which costs little
    /// if there are many.
    pub fn pieces(&self, mut look: impl FnMut(&[u8])) {
        match self.0 {
            Out::Own(bytes) => look(bytes),
            Out::Shared(shared) => shared.pieces(0..shared.len, look),
        }
    }

    /// Writes `head`, the data behind it, and `tail` behind that at `offset` of a file, with one system call as a rule.
    ///
    /// # Errors
    /// Errors of the operating system: any part may have been written.
    pub fn write_at(&self, file: &File, head: &[u8], tail: &[u8], offset: u64) -> io::Result<()> {
        let (data_at, tail_at) = (head.len(), head.len() + self.len());
        let mut done = 0;
        while done < tail_at + tail.len() {
            let head = &head[done.min(data_at)..];
            let data = self.get(done.clamp(data_at, tail_at) - data_at..self.len()).expect("a part of the data");
            let tail = &tail[done.saturating_sub(tail_at)..];
            match data.write_once(file, [head, tail], offset + done as u64) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn write_once(&self, file: &File, [head, tail]: [&[u8]; 2], offset: u64) -> io::Result<usize> {
        match self.0 {
            Out::Own(bytes) => Ok(rustix::io::pwritev(file, &[head, bytes, tail].map(IoSlice::new), offset)?),
            Out::Shared(Shared { region, at, len }) => {
                let data = region.slice(at, len).expect(WITHIN);
                blocking::write_at(file.as_fd(), offset, head, &data, tail)
            }
        }
    }
}

/// No data.
impl Default for DataOut<'_> {
    fn default() -> Self {
        Self(Out::Own(&[]))
    }
}

impl<'a> From<&'a [u8]> for DataOut<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Out::Own(bytes))
    }
}

impl fmt::Debug for DataOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataOut({} bytes)", self.len())
    }
}

enum In<'a> {
    Own(&'a mut [u8]),
    Shared(Shared<'a>),
}

/// Memory for data to the initiator, as many bytes as it expects. Bytes that are moved although the device has not
/// filled them are zeroes, not those of an earlier command.
pub struct DataIn<'a> {
    memory: In<'a>,
    /// The bytes before it were filled by this command.
    filled: usize,
}

impl<'a> DataIn<'a> {
    /// The `len` bytes from `at` on; `None` if they do not lie within the region, or it is not writable.
    #[must_use]
    pub fn shared(region: &'a Region, at: usize, len: usize) -> Option<Self> {
        let shared = Shared::of(region, at, len).filter(|_| region.buf(at, len).is_some())?;
        Some(Self { memory: In::Shared(shared), filled: 0 })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.memory {
            In::Own(bytes) => bytes.len(),
            In::Shared(shared) => shared.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` to the byte at `at` and to those behind it, as many as fit; returns how many did.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len().saturating_sub(at));
        if count > 0 {
            self.fill_to(at);
            self.write(at, &bytes[..count]);
            self.filled = self.filled.max(at + count);
        }
        count
    }

    /// Fills a part from `offset` of a file on.
    ///
    /// # Errors
    /// Errors of the operating system, and `UnexpectedEof` if the file ends before: any part may have been filled.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn read_at(&mut self, range: Range<usize>, file: &File, offset: u64) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        self.fill_to(range.start);
        match &mut self.memory {
            In::Own(bytes) => file.read_exact_at(&mut bytes[range.clone()], offset)?,
            In::Shared(Shared { region, at, .. }) => {
                let mut done = range.start;
                while done < range.end {
                    let mut rest = region.buf(*at + done, range.end - done).expect(WITHIN);
                    match blocking::read_at(file.as_fd(), offset + (done - range.start) as u64, &mut rest) {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Ok(count) => done += count,
                        Err(why) if why.kind() == ErrorKind::Interrupted => {}
                        Err(why) => return Err(why),
                    }
                }
            }
        }
        self.filled = self.filled.max(range.end);
        Ok(())
    }

    /// Looks at the bytes of a part that was filled, in order and in pieces of any length.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn pieces(&self, range: Range<usize>, mut look: impl FnMut(&[u8])) {
        assert!(range.start <= range.end && range.end <= self.filled, "{range:?} of {} bytes", self.filled);
        match &self.memory {
            In::Own(bytes) => look(&bytes[range]),
            In::Shared(shared) => shared.pieces(range, look),
        }
    }

    /// Fills the bytes before `end` that were not filled with zeroes.
    pub(crate) fn fill_to(&mut self, end: usize) {
        const ZEROES: [u8; 4096] = [0; 4096];
        while self.filled < end {
            let count = ZEROES.len().min(end - self.filled);
            self.write(self.filled, &ZEROES[..count]);
            self.filled += count;
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        match &mut self.memory {
            In::Own(own) => own[at..at + bytes.len()].copy_from_slice(bytes),
            In::Shared(shared) => assert!(shared.region.write(shared.at + at, bytes), "{WITHIN}"),
        }
    }
}

impl<'a> From<&'a mut [u8]> for DataIn<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { memory: In::Own(bytes), filled: 0 }
    }
}

impl fmt::Debug for DataIn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataIn({} bytes)", self.len())
    }
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
