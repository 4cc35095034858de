//! The half of a reliable connection that answers the peer: it takes messages, and the peer writes and reads memory.
//!
//! A request that was executed before is answered again, but not executed again. A packet that is missing is reported
//! once. Acknowledgements are sent when the peer requests them; of several the last one is enough, and a response of a
//! READ acknowledges what was before it.

use crate::keys::Keys;
use lunar_core::mem::Sg;
use lunar_rdma::requester::{Attempt, Outgoing};
use lunar_rdma::wire::{Extension, Kind, Layout, NUMBER_BITS, Opcode, Packet, Psn, Remote, Syndrome};
use std::borrow::Cow;
use std::collections::VecDeque;

/// A message or a write whose last packet is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Partial {
    Nothing,
    /// Of the message that is collected.
    Message,
    /// To this memory, and so many bytes more.
    Write(Remote, usize),
}

/// A READ whose responses are sent.
#[derive(Debug)]
struct Reading {
    first: Psn,
    packets: u32,
    /// Responses that were sent.
    sent: u32,
    data: Sg,
    sequence: u32,
    /// Whether the responses are sent for the first time.
    attempt: Attempt,
}

/// The half that answers.
#[derive(Debug)]
pub(crate) struct Responder {
    mtu: usize,
    pub(crate) keys: Keys,
    expected: Psn,
    /// Requests that were completed, modulo 2^24.
    sequence: u32,
    /// The most bytes of a message.
    message_max: usize,
    /// READs that may wait for their responses.
    reads_max: usize,
    partial: Partial,
    message: Vec<u8>,
    /// A packet was missing, and the peer was told.
    has_reported_gap: bool,
    /// In the order of their numbers.
    reads: VecDeque<Reading>,
    answer: Option<(Psn, Syndrome)>,
}

/// The peer has broken the rules: the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// The operation of a request, and its place in its message; `None`: the peer has no use for it.
fn layout(packet: &Packet<'_>) -> Option<Layout> {
    match (packet.layout.kind, packet.opcode) {
        (Kind::Send | Kind::Write | Kind::ReadRequest, _) => Some(packet.layout),
        (_, Opcode::SEND_ONLY_INVALIDATE) => Some(Layout { kind: Kind::Send, is_first: true, is_last: true }),
        (_, Opcode::SEND_LAST_INVALIDATE) => Some(Layout { kind: Kind::Send, is_first: false, is_last: true }),
        _ => None,
    }
}

impl Responder {
    /// A half that expects this number first.
    pub(crate) fn new(mtu: usize, expected: Psn, message_max: usize, reads_max: u8) -> Self {
        Self {
            mtu,
            keys: Keys::default(),
            expected,
            sequence: 0,
            message_max,
            reads_max: reads_max.into(),
            partial: Partial::Nothing,
            message: Vec::new(),
            has_reported_gap: false,
            reads: VecDeque::new(),
            answer: None,
        }
    }

    /// Takes a request. Returns a message that is complete now.
    ///
    /// # Errors
    /// The peer has broken the rules, and an answer says so.
    pub(crate) fn receive<'a>(&mut self, packet: &Packet<'a>) -> Result<Option<Cow<'a, [u8]>>, Broken> {
        if packet.psn != self.expected {
            if packet.psn.is_before(self.expected) {
                self.repeat(packet);
            } else if !self.has_reported_gap {
                self.has_reported_gap = true;
                self.answer = Some((self.expected, Syndrome::SEQUENCE_ERROR));
            }
            return Ok(None);
        }
        let layout = layout(packet).ok_or(Syndrome::INVALID_REQUEST);
        let executed = layout.and_then(|layout| match layout.kind {
            Kind::Write => self.write(packet, layout).map(|()| (1, None)),
            Kind::ReadRequest => self.read(packet).map(|packets| (packets, None)),
            _ => self.send(packet, layout).map(|message| (1, message)),
        });
        let (packets, message) = executed.map_err(|syndrome| self.refuse(syndrome))?;
        self.has_reported_gap = false;
        self.expected = self.expected.plus(packets);
        if packet.wants_acknowledge && packet.layout.kind != Kind::ReadRequest {
            self.acknowledge();
        }
        Ok(message)
    }

    /// Whether a packet of a message has as many bytes as it must have.
    fn has_right_length(&self, layout: Layout, len: usize) -> bool {
        match (layout.is_first, layout.is_last) {
            (_, false) => len == self.mtu,
            (true, true) => len <= self.mtu,
            (false, true) => (1..=self.mtu).contains(&len),
        }
    }

    fn complete(&mut self) {
        self.sequence = (self.sequence + 1) & NUMBER_BITS;
    }

    fn send<'a>(&mut self, packet: &Packet<'a>, layout: Layout) -> Result<Option<Cow<'a, [u8]>>, Syndrome> {
        let begun = if layout.is_first { Partial::Nothing } else { Partial::Message };
        let (len, so_far) = (packet.payload.len(), self.message.len());
        if self.partial != begun || !self.has_right_length(layout, len) || so_far + len > self.message_max {
            return Err(Syndrome::INVALID_REQUEST);
        }
        if let Extension::Invalidate(key) = packet.extension
            && !self.keys.invalidate(key)
        {
            return Err(Syndrome::ACCESS_ERROR);
        }
        if !layout.is_last {
            self.message.extend_from_slice(packet.payload);
            self.partial = Partial::Message;
            return Ok(None);
        }
        self.partial = Partial::Nothing;
        self.complete();
        if layout.is_first {
            return Ok(Some(Cow::Borrowed(packet.payload)));
        }
        self.message.extend_from_slice(packet.payload);
        Ok(Some(Cow::Owned(std::mem::take(&mut self.message))))
    }

    fn write(&mut self, packet: &Packet<'_>, layout: Layout) -> Result<(), Syndrome> {
        let len = packet.payload.len();
        let (to, left) = match (packet.extension, self.partial) {
            (Extension::Remote(to, left), Partial::Nothing) => (to, left as usize),
            (Extension::None, Partial::Write(to, left)) => (to, left),
            _ => return Err(Syndrome::INVALID_REQUEST),
        };
        let is_whole = if layout.is_last { left == len } else { left > len };
        if !is_whole || !self.has_right_length(layout, len) {
            return Err(Syndrome::INVALID_REQUEST);
        }
        // A write of nothing needs no key: peers ask with it whether this end is there.
        if left > 0 && !(self.keys.is_writable(to, left) && self.keys.write(to, packet.payload)) {
            return Err(Syndrome::ACCESS_ERROR);
        }
        self.partial = Partial::Write(to.plus(len), left - len);
        if layout.is_last {
            self.partial = Partial::Nothing;
            self.complete();
        }
        Ok(())
    }

    /// Takes the request of a READ; returns the number of its responses.
    fn read(&mut self, packet: &Packet<'_>) -> Result<u32, Syndrome> {
        let Extension::Remote(from, len) = packet.extension else { return Err(Syndrome::INVALID_REQUEST) };
        if self.partial != Partial::Nothing || self.reads.len() >= self.reads_max || !packet.payload.is_empty() {
            return Err(Syndrome::INVALID_REQUEST);
        }
        let data = self.data(from, len).ok_or(Syndrome::ACCESS_ERROR)?;
        self.complete();
        let reading = self.reading(packet.psn, data);
        let packets = reading.packets;
        self.reads.push_back(reading);
        Ok(packets)
    }

    /// The memory of a READ; `None`: the peer may not read it.
    fn data(&mut self, from: Remote, len: u32) -> Option<Sg> {
        if len == 0 { Some(Sg::default()) } else { self.keys.readable(from, len as usize) }
    }

    fn reading(&self, first: Psn, data: Sg) -> Reading {
        // A request has fewer than 4 GiB, and packets have 256 bytes at least.
        let packets = data.len().div_ceil(self.mtu).max(1) as u32;
        let attempt = if first == self.expected { Attempt::First } else { Attempt::Again };
        Reading { first, packets, sent: 0, data, sequence: self.sequence, attempt }
    }

    /// Answers a request that was executed before.
    fn repeat(&mut self, packet: &Packet<'_>) {
        match (packet.layout.kind, packet.extension) {
            // Its responses were lost, or those from this one on.
            (Kind::ReadRequest, Extension::Remote(from, len)) => self.read_again(packet.psn, from, len),
            _ => self.acknowledge(),
        }
    }

    fn read_again(&mut self, first: Psn, from: Remote, len: u32) {
        // The memory of a command that has ended is not there any more: its responses have arrived.
        let Some(data) = self.data(from, len) else { return };
        let reading = self.reading(first, data);
        if reading.packets > self.expected.since(first) {
            return;
        }
        if let Some(known) = self.reads.iter_mut().find(|known| first.since(known.first) < known.packets) {
            *known = reading;
        } else if self.reads.len() < self.reads_max {
            let at = self.reads.iter().position(|later| first.is_before(later.first));
            self.reads.insert(at.unwrap_or(self.reads.len()), reading);
        }
    }

    fn acknowledge(&mut self) {
        // A report of a gap acknowledges everything before it, too.
        if self.answer != Some((self.expected, Syndrome::SEQUENCE_ERROR)) {
            self.answer = Some((self.expected.plus(NUMBER_BITS), Syndrome::ACKNOWLEDGED));
        }
    }

    fn refuse(&mut self, syndrome: Syndrome) -> Broken {
        self.reads.clear();
        self.answer = Some((self.expected, syndrome));
        Broken
    }

    /// Whether there is an answer to send.
    pub(crate) fn has_answer(&self) -> bool {
        self.answer.is_some() || !self.reads.is_empty()
    }

    /// The next answer to send.
    pub(crate) fn poll(&mut self) -> Option<Outgoing> {
        let Some(read) = self.reads.front_mut() else {
            let (psn, syndrome) = self.answer.take()?;
            let extension = Extension::Acknowledge(syndrome, self.sequence);
            return Some(Outgoing::acknowledgement(psn, extension));
        };
        let (number, at) = (read.sent, read.sent as usize * self.mtu);
        let opcode = match (number == 0, number + 1 == read.packets) {
            (true, true) => Opcode::READ_RESPONSE_ONLY,
            (true, false) => Opcode::READ_RESPONSE_FIRST,
            (false, false) => Opcode::READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::READ_RESPONSE_LAST,
        };
        let extension = match opcode {
            Opcode::READ_RESPONSE_MIDDLE => Extension::None,
            _ => Extension::Acknowledge(Syndrome::ACKNOWLEDGED, read.sequence),
        };
        let payload = read.data.part(at..read.data.len().min(at + self.mtu));
        let psn = read.first.plus(number);
        let outgoing = Outgoing { opcode, psn, wants_acknowledge: false, extension, payload, attempt: read.attempt };
        read.sent += 1;
        if read.sent == read.packets {
            self.reads.pop_front();
        }
        Some(outgoing)
    }
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
