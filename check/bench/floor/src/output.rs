//! What a server has to send: headers, and payload of nothing in particular, which is never copied.

use anyhow::Result;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;

/// Vectors of one send.
const SLICES: usize = 128;
/// Payload up to this long is copied behind its header.
const COPY_MAX: usize = 1024;

/// Bytes of `out`, or so many bytes of nothing in particular.
enum Piece {
    Bytes(usize),
    Payload(usize),
}

/// What waits to be sent.
pub(crate) struct Output {
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    spent: usize,
    pieces: VecDeque<Piece>,
    payload: Vec<u8>,
}

impl Output {
    /// Payload of one piece is at most so many bytes.
    pub(crate) fn new(payload_max: usize) -> Self {
        Self { out: Vec::new(), spent: 0, pieces: VecDeque::new(), payload: vec![0; payload_max] }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.count(bytes.len());
    }

    /// So many bytes, whatever they are.
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

    /// Says whether all was sent.
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
