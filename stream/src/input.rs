//! Reads PDUs from received bytes. A header is read in place. Payload that was received whole stays where it is; other
//! payload is gathered in memory of its own, and large payload is received into that memory directly.

use crate::digest::{DIGEST_LEN, Digest};
use crate::protocol::{ProtocolMachine, ReceiveMode};
use lunar_core::mem::{Arena, Sg, SgMut, Slice};
use std::collections::VecDeque;

/// Payload of which at least this many bytes are missing is received directly into memory of its own: for fewer bytes a
/// copy is cheaper than a receive.
pub const DIRECT_MIN: usize = 16 << 10;
/// Bytes of the longest trailer: padding and digest.
const TRAILER_MAX: usize = 3 + DIGEST_LEN;

/// Where the payload of a PDU is put.
#[derive(Debug)]
pub enum PayloadPlan {
    /// It stays in the receive buffer if it was received whole, or is put into new memory.
    Keep,
    /// It is put into this memory.
    Fill(SgMut),
    /// It is discarded.
    Discard,
}

/// The complete payload of a PDU.
#[derive(Debug)]
pub struct Payload {
    /// `None` if it was discarded, or if there was no memory for it.
    pub data: Option<Sg>,
    /// Whether its digest matched, or it has none.
    pub intact: bool,
}

impl Payload {
    /// The payload of a PDU without data.
    #[inline]
    #[must_use]
    pub fn empty() -> Self {
        Self { data: Some(Sg::default()), intact: true }
    }

    /// Payload that was received whole: the bytes `range` of `chunk`.
    #[inline]
    #[must_use]
    pub fn whole(plan: PayloadPlan, chunk: &Slice, range: std::ops::Range<usize>, intact: bool) -> Self {
        let data = match plan {
            PayloadPlan::Keep => Some(Sg::from(chunk.part(range))),
            PayloadPlan::Fill(mut memory) => {
                memory.copy_from(0, &chunk[range]);
                Some(memory.share())
            }
            PayloadPlan::Discard => None,
        };
        Self { data, intact }
    }

    /// Bytes of the payload; zero if it was discarded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.as_ref().map_or(0, Sg::len)
    }

    /// Whether the payload has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that were received but do not make up a PDU yet.
#[derive(Debug, Default)]
pub struct Input {
    /// Bytes that were not read yet: only while the machine is blocked.
    backlog: VecDeque<Slice>,
    /// A header that is incomplete, or whose payload is.
    head: Vec<u8>,
    body: Option<PartialPayload>,
    /// Bytes of replies that reading PDUs has queued since the queue was taken last.
    answers: usize,
}

impl Input {
    /// Discards everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of replies that reading PDUs has queued since [`Input::answers_sent`].
    #[inline]
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        self.answers
    }

    /// The queue was taken: its replies no longer count.
    pub fn answers_sent(&mut self) {
        self.answers = 0;
    }

    /// Bytes of memory held, for tests of its limits.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.filled.len() + body.rest.as_ref().map_or(0, SgMut::len));
        self.head.capacity() + body + self.backlog.iter().map(|slice| slice.len()).sum::<usize>()
    }
}

/// Payload that is being received.
#[derive(Debug)]
pub struct PartialPayload {
    /// The received part, and the memory for the rest; `None` if the payload is discarded.
    filled: Sg,
    rest: Option<SgMut>,
    /// Bytes still to be received, without the trailer.
    left: usize,
    digest: Option<Digest>,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
    trailer_seen: usize,
}

impl PartialPayload {
    /// Payload of `len` bytes, followed by `trailer_len` bytes of padding and, if `has_digest`, of its digest. It is
    /// discarded if there is no memory for it.
    #[must_use]
    pub fn new(plan: PayloadPlan, len: usize, trailer_len: usize, has_digest: bool, arena: &Arena) -> Self {
        debug_assert!(trailer_len <= TRAILER_MAX && (!has_digest || trailer_len >= DIGEST_LEN));
        let rest = match plan {
            PayloadPlan::Keep => arena.take_sg(len),
            PayloadPlan::Fill(memory) => Some(memory),
            PayloadPlan::Discard => None,
        };
        let digest = has_digest.then(Digest::new);
        Self { rest, left: len, digest, trailer_len, ..Self::empty() }
    }

    /// The payload of a PDU without data.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            filled: Sg::default(),
            rest: Some(SgMut::default()),
            left: 0,
            digest: None,
            trailer: [0; TRAILER_MAX],
            trailer_len: 0,
            trailer_seen: 0,
        }
    }

    fn is_complete(&self) -> bool {
        self.left == 0 && self.trailer_seen == self.trailer_len
    }

    /// Takes the bytes that belong to the payload; returns their number.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.left);
        if count > 0 {
            let part = &bytes[..count];
            if let Some(digest) = &mut self.digest {
                digest.update(part);
            }
            if let Some(rest) = &mut self.rest {
                let mut memory = rest.split_to(count);
                memory.copy_from(0, part);
                join(&mut self.filled, memory.share());
            }
            self.left -= count;
        }
        if self.left > 0 {
            return count;
        }
        let more = (bytes.len() - count).min(self.trailer_len - self.trailer_seen);
        self.trailer[self.trailer_seen..self.trailer_seen + more].copy_from_slice(&bytes[count..count + more]);
        self.trailer_seen += more;
        count + more
    }

    /// Takes back memory whose first `count` bytes have been received.
    fn fill(&mut self, mut memory: SgMut, count: usize) {
        let Some(rest) = &mut self.rest else { return };
        let part = memory.split_to(count).share();
        *rest = memory;
        self.left -= count;
        if let Some(digest) = &mut self.digest {
            part.pieces().iter().for_each(|piece| _ = digest.update(piece));
        }
        join(&mut self.filled, part);
    }

    fn finish(self) -> Payload {
        let intact = self.digest.is_none_or(|mut digest| {
            let (padding, sent) = self.trailer[..self.trailer_len].split_at(self.trailer_len - DIGEST_LEN);
            // The digest is computed over padding of zeroes, whatever was sent.
            digest.update(&[0; 3][..padding.len()]).bytes() == sent
        });
        Payload { data: self.rest.map(|_| self.filled), intact }
    }
}

/// Appends pieces. A piece that follows the last one in the same block is joined with it.
pub fn join(to: &mut Sg, more: Sg) {
    for piece in more.into_pieces() {
        match to.pop() {
            Some(mut last) => {
                let apart = last.join(piece);
                to.push(last);
                apart.into_iter().for_each(|piece| to.push(piece));
            }
            None => to.push(piece),
        }
    }
}

/// A protocol whose bytes are PDUs: a header that determines its own length, and possibly a payload.
pub trait PduReader: ProtocolMachine {
    /// Bytes that every header begins with, and that determine its length.
    const HEADER_MIN: usize;

    /// The received bytes.
    fn input(&mut self) -> &mut Input;

    /// Whether no more bytes are read for now.
    fn is_blocked(&self) -> bool;

    /// Whether no more bytes are ever read.
    fn is_closed(&self) -> bool;

    /// Reads the PDU that begins at `at`, which most likely lies in the chunk as a whole; if not, calls [`read_head`].
    /// Returns how many bytes were used.
    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Self::Action>) -> usize;

    /// Bytes before the payload of a PDU, of which at least the first [`PduReader::HEADER_MIN`] are given.
    fn header_len(&self, start: &[u8]) -> usize;

    /// Whether the PDU is invalid by the given first bytes; the machine is then closed, and the rest is not awaited.
    fn reject_early(&mut self, start: &[u8], actions: &mut Vec<Self::Action>) -> bool;

    /// Takes a complete header and says what payload follows; `None` if it is invalid and the machine is closed.
    fn start_payload(&mut self, head: &[u8], actions: &mut Vec<Self::Action>) -> Option<PartialPayload>;

    /// Takes a complete PDU.
    fn complete(&mut self, head: &[u8], payload: &mut Payload, actions: &mut Vec<Self::Action>);
}

/// [`ProtocolMachine::receive_mode`] of a [`PduReader`].
pub fn receive_mode<F: PduReader>(machine: &mut F) -> ReceiveMode {
    if machine.is_blocked() || !machine.input().backlog.is_empty() {
        return ReceiveMode::Paused;
    }
    match &mut machine.input().body {
        Some(PartialPayload { rest: Some(rest), .. }) if rest.len() >= DIRECT_MIN => {
            ReceiveMode::Into(std::mem::take(rest))
        }
        _ => ReceiveMode::Chunk,
    }
}

/// [`ProtocolMachine::receive`] of a [`PduReader`].
pub fn receive<F: PduReader>(machine: &mut F, bytes: Slice, actions: &mut Vec<F::Action>) {
    machine.input().backlog.push_back(bytes);
    pump(machine, actions);
}

/// [`ProtocolMachine::placed`] of a [`PduReader`].
pub fn placed<F: PduReader>(machine: &mut F, memory: SgMut, count: usize, actions: &mut Vec<F::Action>) {
    let queued = machine.queued_bytes();
    if let Some(body) = &mut machine.input().body {
        body.fill(memory, count);
        complete(machine, actions);
        count_answers(machine, queued);
    }
    pump(machine, actions);
}

/// Reads received bytes until none are left or the machine is blocked.
pub fn pump<F: PduReader>(machine: &mut F, actions: &mut Vec<F::Action>) {
    while !machine.is_blocked() {
        let Some(mut chunk) = machine.input().backlog.pop_front() else { return };
        let used = consume(machine, &chunk, actions);
        if used < chunk.len() && !machine.is_closed() {
            chunk.advance(used);
            machine.input().backlog.push_front(chunk);
        }
    }
}

/// Reads the PDUs of `chunk` until none is left or the machine is blocked. Returns how many bytes were used.
fn consume<F: PduReader>(machine: &mut F, chunk: &Slice, actions: &mut Vec<F::Action>) -> usize {
    let mut at = 0;
    while at < chunk.len() && !machine.is_blocked() {
        let queued = machine.queued_bytes();
        let input = machine.input();
        at += if let Some(body) = &mut input.body {
            let used = body.take(&chunk[at..]);
            complete(machine, actions);
            used
        } else if input.head.is_empty() {
            machine.read_in_place(chunk, at, actions)
        } else {
            read_head(machine, &chunk[at..], actions)
        };
        count_answers(machine, queued);
    }
    at
}

fn count_answers<F: PduReader>(machine: &mut F, before: usize) {
    let more = machine.queued_bytes().saturating_sub(before);
    machine.input().answers += more;
}

/// Reads more bytes of a header that was not received whole. Returns how many bytes were used.
pub fn read_head<F: PduReader>(machine: &mut F, bytes: &[u8], actions: &mut Vec<F::Action>) -> usize {
    let mut head = std::mem::take(&mut machine.input().head);
    let mut used = 0;
    // First the common part of headers, which determines the length of the rest.
    for _ in 0..2 {
        let need = if head.len() < F::HEADER_MIN { F::HEADER_MIN } else { machine.header_len(&head) };
        let count = need.saturating_sub(head.len()).min(bytes.len() - used);
        head.extend_from_slice(&bytes[used..used + count]);
        used += count;
        if head.len() < need {
            machine.input().head = head;
            return used;
        }
        // Reject an invalid header before the rest of it is taken.
        if machine.reject_early(&head, actions) {
            return used;
        }
    }
    if let Some(body) = machine.start_payload(&head, actions) {
        let input = machine.input();
        (input.head, input.body) = (head, Some(body));
        complete(machine, actions);
    }
    used
}

/// Completes the PDU if its payload is complete.
fn complete<F: PduReader>(machine: &mut F, actions: &mut Vec<F::Action>) {
    let input = machine.input();
    let Some(body) = input.body.take_if(|body| body.is_complete()) else { return };
    let mut head = std::mem::take(&mut input.head);
    machine.complete(&head, &mut body.finish(), actions);
    if !machine.is_closed() {
        head.clear();
        machine.input().head = head;
    }
}
