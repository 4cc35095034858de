//! The receiving half of a reliable connection: messages that a peer sends.

use crate::wire::{Kind, NUMBER_BITS, Packet, Psn, Syndrome};
use std::borrow::Cow;

/// The messages that a peer may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// The most bytes of a message.
    pub bytes: usize,
    /// How many messages may come before one is answered ([`Responder::post`]).
    pub count: usize,
}

/// The receiving half.
#[derive(Debug)]
pub struct Responder {
    mtu: usize,
    expected: Psn,
    /// Messages that were completed, modulo 2^24.
    sequence: u32,
    message: Option<Vec<u8>>,
    receives: Receives,
    /// A packet was missing, and the peer was told.
    has_reported_gap: bool,
    answer: Option<(Psn, Syndrome)>,
}

/// The peer has broken the rules: the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

impl Responder {
    /// A half that expects this number first.
    #[must_use]
    pub fn new(mtu: usize, expected: Psn, receives: Receives) -> Self {
        Self { mtu, expected, sequence: 0, message: None, receives, has_reported_gap: false, answer: None }
    }

    /// So many more messages may come.
    pub fn post(&mut self, count: usize) {
        self.receives.count += count;
    }

    /// Takes a request. Returns a message that is complete now.
    ///
    /// # Errors
    /// The peer has broken the rules, and an answer says so.
    pub fn receive<'a>(&mut self, packet: &Packet<'a>) -> Result<Option<Cow<'a, [u8]>>, Broken> {
        if packet.psn != self.expected {
            if packet.psn.is_before(self.expected) {
                // Its acknowledgement was lost.
                self.acknowledge();
            } else if !self.has_reported_gap {
                self.has_reported_gap = true;
                self.answer = Some((self.expected, Syndrome::SEQUENCE_ERROR));
            }
            return Ok(None);
        }
        let layout = packet.layout;
        if layout.kind != Kind::Send {
            // Nothing here is open to a peer: there are no keys that it could know.
            let is_known = matches!(layout.kind, Kind::Write | Kind::ReadRequest);
            return Err(self.refuse(if is_known { Syndrome::ACCESS_ERROR } else { Syndrome::INVALID_REQUEST }));
        }
        if layout.is_first && self.message.is_none() && self.receives.count == 0 {
            // Packets behind it are no gap.
            self.has_reported_gap = true;
            self.answer = Some((self.expected, Syndrome::WAIT));
            return Ok(None);
        }
        let (len, so_far) = (packet.payload.len(), self.message.as_ref().map_or(0, Vec::len));
        let is_right = layout.is_first == self.message.is_none()
            && so_far + len <= self.receives.bytes
            && match (layout.is_first, layout.is_last) {
                (_, false) => len == self.mtu,
                (true, true) => len <= self.mtu,
                (false, true) => (1..=self.mtu).contains(&len),
            };
        if !is_right {
            return Err(self.refuse(Syndrome::INVALID_REQUEST));
        }
        self.has_reported_gap = false;
        self.expected = self.expected.plus(1);
        let message = match (layout.is_last, self.message.take()) {
            (true, None) => Some(Cow::Borrowed(packet.payload)),
            (is_last, part) => {
                let mut message = part.unwrap_or_default();
                message.extend_from_slice(packet.payload);
                match is_last {
                    true => Some(Cow::Owned(message)),
                    false => {
                        self.message = Some(message);
                        None
                    }
                }
            }
        };
        if message.is_some() {
            self.sequence = (self.sequence + 1) & NUMBER_BITS;
            self.receives.count -= 1;
        }
        if packet.wants_acknowledge {
            self.acknowledge();
        }
        Ok(message)
    }

    fn acknowledge(&mut self) {
        // A report of a gap acknowledges everything before it, too.
        if self.answer == Some((self.expected, Syndrome::SEQUENCE_ERROR)) {
            return;
        }
        self.answer = Some((self.expected.plus(NUMBER_BITS), Syndrome::ACKNOWLEDGED));
    }

    fn refuse(&mut self, syndrome: Syndrome) -> Broken {
        self.answer = Some((self.expected, syndrome));
        Broken
    }

    /// The answer to send: number, syndrome, and message sequence number. Of several ones the last one is enough.
    pub fn poll(&mut self) -> Option<(Psn, Syndrome, u32)> {
        self.answer.take().map(|(psn, syndrome)| (psn, syndrome, self.sequence))
    }

    /// Whether there is an answer to send.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.answer.is_some()
    }
}
