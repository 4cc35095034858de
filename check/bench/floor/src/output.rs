//! The output of a server: headers, and payload of fixed content that is never copied.

use anyhow::Result;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;

/// The most I/O vectors per send.
const SLICES: usize = 128;
/// The longest payload that is copied after its header, in bytes.
const COPY_MAX: usize = 1024;

/// Bytes of `out`, or bytes of payload.
enum Piece {
    Bytes(usize),
    Payload(usize),
}

/// The bytes to send.
pub(crate) struct Output {
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    spent: usize,
    pieces: VecDeque<Piece>,
    payload: Vec<u8>,
}

impl Output {
    /// Creates an empty output. `payload_max` is the longest payload of one piece, in bytes.
    pub(crate) fn new(payload_max: usize) -> Self {
        Self { out: Vec::new(), spent: 0, pieces: VecDeque::new(), payload: vec![0; payload_max] }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.count(bytes.len());
    }

    /// Appends `len` bytes of payload.
    pub(crate) fn payload(&mut self, len: usize) {
        if len > COPY_MAX {
            return self.pieces.push_back(Piece::Payload(len));
        }
        self.out.extend_from_slice(&self.payload[..len]);
        self.count(len);
    }

    fn count(&mut self, len: usize) {
        match self.pieces.back_mut() {
            Some(Piece::Bytes(last)) => *last += len,
            _ => self.pieces.push_back(Piece::Bytes(len)),
        }
    }

    /// Sends as much as possible. Returns whether everything was sent.
    pub(crate) fn send(&mut self, mut socket: &TcpStream) -> Result<bool> {
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (mut at, mut used) = (self.spent, 0);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(match piece {
                    Piece::Bytes(len) => {
                        at += len;
                        &self.out[at - len..at]
                    }
                    Piece::Payload(len) => &self.payload[..*len],
                });
                used += 1;
            }
            let sent = match socket.write_vectored(&slices[..used]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            self.sent(sent);
        }
        self.out.clear();
        self.spent = 0;
        Ok(true)
    }

    fn sent(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut().filter(|_| count > 0) {
            let (Piece::Bytes(len) | Piece::Payload(len)) = piece;
            let part = count.min(*len);
            (*len, count) = (*len - part, count - part);
            let done = *len == 0;
            if matches!(piece, Piece::Bytes(_)) {
                self.spent += part;
            }
            if done {
                self.pieces.pop_front();
            }
        }
    }
}
