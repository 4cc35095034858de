//! The bare server: reads requests of a fixed size and sends replies of a fixed size.

use crate::net::Peer;
use crate::options::{HEADER, Sizes};
use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

/// The longest send, in bytes. All replies have the same content, so one buffer serves all.
const SEND: usize = 1 << 20;

pub(crate) struct Connection {
    request: usize,
    reply: usize,
    /// Received bytes of requests that are not answered yet.
    received: usize,
    /// Bytes of replies to send.
    pending: usize,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(sizes: &Sizes) -> Self {
        let (request, reply) = (HEADER + sizes.request, HEADER + sizes.reply);
        Self { request, reply, received: 0, pending: 0, buffer: vec![0x5a; SEND] }
    }
}

impl Peer for Connection {
    fn serve(&mut self, mut socket: &TcpStream, bytes: &[u8]) -> Result<bool> {
        self.received += bytes.len();
        self.pending += self.received / self.request * self.reply;
        self.received %= self.request;
        while self.pending > 0 {
            match socket.write(&self.buffer[..self.pending.min(SEND)]) {
                Ok(sent) => self.pending -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
