//! Bytes to PDUs: a header is looked at where it lies, payload that lies whole in what was received stays there, any
//! other goes into memory of its own, and the large ones are received straight into it.

use crate::digest::{DIGEST_LEN, Digest};
use crate::protocol::{ProtocolMachine, ReceiveMode};
use lunar_core::mem::{Arena, Sg, SgMut, Slice};
use std::collections::VecDeque;

/// Payload of which at least this much is still to come is received straight into memory of its own; below it, copying
/// is cheaper than one more receive.
pub const DIRECT_MIN: usize = 16 << 10;
/// The longest trailer: padding and digest.
const TRAILER_MAX: usize = 3 + DIGEST_LEN;

/// Where the payload of a PDU goes.
#[derive(Debug)]
pub enum PayloadPlan {
    /// It stays where it lies, or into fresh memory.
    Keep,
    /// It goes here.
    Fill(SgMut),
    /// It is thrown away.
    Discard,
}

/// The payload of a PDU, when all of it came.
#[derive(Debug)]
pub struct Payload {
    /// `None` if it was thrown away.
    pub data: Option<Sg>,
    /// Whether its digest matched.
    pub intact: bool,
}

impl Payload {
    /// Of a PDU without one.
    #[inline]
    #[must_use]
    pub fn empty() -> Self {
        Self { data: Some(Sg::default()), intact: true }
    }

    /// Of a PDU whose payload came whole: the bytes of `chunk` in this range.
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

    /// Bytes that are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.as_ref().map_or(0, Sg::len)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What was received and not handed on yet.
#[derive(Debug, Default)]
pub struct Input {
    /// Received and not looked at: only while the session wants nothing.
    backlog: VecDeque<Slice>,
    /// A header of which a part came, or whose payload is on its data_path.
    head: Vec<u8>,
    body: Option<PartialPayload>,
    /// Bytes that PDUs have queued by themselves since what was queued was taken last.
    answers: usize,
}

impl Input {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes that PDUs have queued by themselves since [`Input::answers_sent`].
    #[inline]
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        self.answers
    }

    /// What was queued was taken.
    pub fn answers_sent(&mut self) {
        self.answers = 0;
    }

    /// Memory that it holds, for tests of its bounds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.filled.len() + body.rest.as_ref().map_or(0, SgMut::len));
        self.head.capacity() + body + self.backlog.iter().map(|slice| slice.len()).sum::<usize>()
    }
}

/// Payload on its data_path.
#[derive(Debug)]
pub struct PartialPayload {
    /// What came, and what is to come; nothing if it is thrown away.
    filled: Sg,
    rest: Option<SgMut>,
    /// Bytes that still have to come, without the trailer.
    left: usize,
    digest: Option<Digest>,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
    trailer_seen: usize,
}

impl PartialPayload {
    /// Payload of `len` bytes, behind which come padding and, if `has_digest`, its digest: `trailer_len` bytes
    /// together. It is thrown away where there is no memory for it.
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

    /// Of a PDU without payload.
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

    /// Takes what it needs of `bytes`; returns how many that was.
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

    /// The first `count` bytes of memory that was handed out have been filled.
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
            // Padding counts as zeroes, whatever it is.
            digest.update(&[0; 3][..padding.len()]).bytes() == sent
        });
        Payload { data: self.rest.map(|_| self.filled), intact }
    }
}

/// Appends parts: neighbours in one block become one piece again.
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

/// A machine whose bytes are PDUs: a header, which tells how long it is itself, and then perhaps a payload.
pub trait PduReader: ProtocolMachine {
    /// Bytes of a header that all have, and which tell the length of the rest.
    const HEADER_MIN: usize;

    /// What was received.
    fn input(&mut self) -> &mut Input;

    /// Whether nothing more is looked at for now.
    fn is_blocked(&self) -> bool;

    /// Whether nothing more is looked at ever.
    fn is_closed(&self) -> bool;

    /// A PDU begins at `at`; most likely it lies in the chunk whole. Returns how many bytes of it were used, by
    /// [`read_head`] if it does not.
    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Self::Action>) -> usize;

    /// Bytes of a header, of which at least [`PduReader::HEADER_MIN`] are there, and of all that is before its payload.
    fn header_len(&self, start: &[u8]) -> usize;

    /// Whether the rest of what begins so need not come: it cannot be, and the machine is closed.
    fn reject_early(&mut self, start: &[u8], actions: &mut Vec<Self::Action>) -> bool;

    /// A header is complete: what follows it. `None` if it is not sound, and the machine is closed.
    fn start_payload(&mut self, head: &[u8], actions: &mut Vec<Self::Action>) -> Option<PartialPayload>;

    /// A PDU is complete.
    fn complete(&mut self, head: &[u8], payload: &mut Payload, actions: &mut Vec<Self::Action>);
}

/// [`ProtocolMachine::receive_mode`].
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

/// [`ProtocolMachine::receive`].
pub fn receive<F: PduReader>(machine: &mut F, bytes: Slice, actions: &mut Vec<F::Action>) {
    machine.input().backlog.push_back(bytes);
    pump(machine, actions);
}

/// [`ProtocolMachine::placed`].
pub fn placed<F: PduReader>(machine: &mut F, memory: SgMut, count: usize, actions: &mut Vec<F::Action>) {
    let queued = machine.queued_bytes();
    if let Some(body) = &mut machine.input().body {
        body.fill(memory, count);
        complete(machine, actions);
        count_answers(machine, queued);
    }
    pump(machine, actions);
}

/// Looks at what was received, as far as the machine wants it.
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

/// Takes apart what `chunk` holds, until all is used or the machine wants nothing more. Returns how much it used.
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

/// More of a header that did not come at once. Returns how many bytes were used.
pub fn read_head<F: PduReader>(machine: &mut F, bytes: &[u8], actions: &mut Vec<F::Action>) -> usize {
    let mut head = std::mem::take(&mut machine.input().head);
    let mut used = 0;
    // First what all headers have, which tells the length of the rest.
    for _ in 0..2 {
        let need = if head.len() < F::HEADER_MIN { F::HEADER_MIN } else { machine.header_len(&head) };
        let count = need.saturating_sub(head.len()).min(bytes.len() - used);
        head.extend_from_slice(&bytes[used..used + count]);
        used += count;
        if head.len() < need {
            machine.input().head = head;
            return used;
        }
        // What cannot be is refused before more of it is taken.
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

/// Hands a PDU on if its payload is complete.
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
