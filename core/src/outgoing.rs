//! The bytes that an initiator waits to send: headers and short data in one buffer, longer data as references.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::rc::Rc;

/// Data up to this length is copied behind its header: an I/O vector of its own would cost more than the copy.
const COPY_MAX: usize = 1024;
/// Sent bytes at the front of the buffer beyond which the rest is moved forward, if the buffer never becomes empty.
const COMPACT: usize = 1 << 20;

/// The data of a write command: shared, so that a retry or a second R2T needs no copy.
#[derive(Clone)]
pub struct Data {
    bytes: Rc<[u8]>,
    range: Range<usize>,
}

impl Data {
    /// All of `bytes`.
    #[must_use]
    pub fn new(bytes: Rc<[u8]>) -> Self {
        let range = 0..bytes.len();
        Self { bytes, range }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of the data.
    ///
    /// # Panics
    /// When `range` does not lie within.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        Self { bytes: self.bytes.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.len())
    }
}

/// The data of a command.
#[derive(Clone, Debug)]
pub enum Moves {
    /// No data.
    Nothing,
    /// At most this number of bytes from the target.
    In(u32),
    /// These bytes to the target.
    Out(Data),
}

enum Piece {
    /// The next bytes of the buffer, by their number.
    Buffered(usize),
    Data(Data),
}

/// The queue of bytes to send.
#[derive(Default)]
pub struct Outgoing {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were sent.
    spent: usize,
    pieces: VecDeque<Piece>,
    len: usize,
}

impl Outgoing {
    /// Bytes that wait to be sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the bytes that `build` adds to the buffer, whose earlier bytes it must not change.
    pub fn append(&mut self, build: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        build(&mut self.buffer);
        if self.buffer.len() > start {
            self.buffered(start);
        }
    }

    /// Appends data; long data is referenced, not copied.
    pub fn data(&mut self, data: &Data) {
        if data.len() <= COPY_MAX {
            return self.append(|buffer| buffer.extend_from_slice(data.bytes()));
        }
        self.len += data.len();
        self.pieces.push_back(Piece::Data(data.clone()));
    }

    /// Counts the bytes of the buffer from `start` on.
    fn buffered(&mut self, start: usize) {
        let len = self.buffer.len() - start;
        self.len += len;
        match self.pieces.back_mut() {
            Some(Piece::Buffered(last)) => *last += len,
            _ => self.pieces.push_back(Piece::Buffered(len)),
        }
    }

    /// Fills `slices` with the next bytes to send; returns how many slices it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.spent;
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(match piece {
                Piece::Buffered(len) => {
                    at += len;
                    &self.buffer[at - len..at]
                }
                Piece::Data(data) => data.bytes(),
            });
            count += 1;
        }
        count
    }

    /// The first `count` bytes were sent.
    ///
    /// # Panics
    /// When there are fewer bytes.
    pub fn sent(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let front = self.pieces.front_mut().expect("there are as many bytes as were counted");
            let len = match front {
                Piece::Buffered(len) => {
                    let part = count.min(*len);
                    *len -= part;
                    self.spent += part;
                    count -= part;
                    *len
                }
                Piece::Data(data) => {
                    let part = count.min(data.len());
                    data.range.start += part;
                    count -= part;
                    data.len()
                }
            };
            if len == 0 {
                self.pieces.pop_front();
            }
        }
        if self.spent == self.buffer.len() {
            self.buffer.clear();
            self.spent = 0;
        } else if self.spent > COMPACT {
            self.buffer.drain(..self.spent);
            self.spent = 0;
        }
    }

    /// All bytes that wait, in one vector: for tests and simulations.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); self.pieces.len()];
        self.slices(&mut slices);
        slices.iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes in {} pieces)", self.len, self.pieces.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(len: usize) -> Data {
        Data::new((0..len).map(|at| (at % 251) as u8).collect())
    }

    #[test]
    fn short_data_joins_its_header_and_long_data_stays_where_it_is() {
        let mut output = Outgoing::default();
        output.append(|buffer| buffer.extend([1; 48]));
        output.data(&data(COPY_MAX));
        output.append(|buffer| buffer.extend([2; 48]));
        let long = data(COPY_MAX + 1);
        output.data(&long);
        output.append(|_| {});
        output.append(|buffer| buffer.extend([3; 3]));
        let mut slices = [IoSlice::new(&[]); 8];
        let count = output.slices(&mut slices);
        assert_eq!(slices[..count].iter().map(|s| s.len()).collect::<Vec<_>>(), [96 + COPY_MAX, COPY_MAX + 1, 3]);
        assert_eq!(slices[1].as_ptr(), long.bytes().as_ptr());
        assert_eq!(output.len(), 96 + COPY_MAX + COPY_MAX + 4);
    }

    proptest! {
        #[test]
        fn bytes_leave_in_order_however_sends_are_cut(
            lens in prop::collection::vec(0usize..3000, 1..20),
            cuts in prop::collection::vec(1usize..2500, 1..80),
        ) {
            let mut output = Outgoing::default();
            let mut want = Vec::new();
            for len in lens {
                output.append(|buffer| buffer.extend([7; 48]));
                output.data(&data(len));
                want.extend_from_slice(&[7; 48]);
                want.extend_from_slice(data(len).bytes());
            }
            let mut got = Vec::new();
            for cut in cuts.iter().cycle().take(10_000) {
                if output.is_empty() { break; }
                let cut = (*cut).min(output.len());
                got.extend_from_slice(&output.to_vec()[..cut]);
                output.sent(cut);
            }
            prop_assert_eq!(got, want);
        }
    }
}
