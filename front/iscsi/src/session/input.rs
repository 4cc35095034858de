//! Bytes to PDUs: a header is looked at where it lies, a payload that lies whole in what was received stays there,
//! any other goes into memory of its own, and the large ones are received straight into it.

use super::joined::Joined;
use super::{Action, Close, Session};
use crate::config::DIRECT_MIN;
use crate::wire::{AHS_MAX, BHS_LEN, Bhs, DIGEST_LEN, Digest, digest};
use lunar_core::mem::{Sg, SgMut, Slice};
use lunar_stream::machine::Want;
use std::collections::VecDeque;

/// The longest header: basic, additional, digest.
const HEAD_MAX: usize = BHS_LEN + AHS_MAX + DIGEST_LEN;
/// The longest trailer: padding and digest.
const TRAILER_MAX: usize = 3 + DIGEST_LEN;

/// Where the payload of a PDU goes.
#[derive(Debug)]
pub(super) enum Plan {
    /// It stays where it lies, or into fresh memory.
    Keep,
    /// It goes here.
    Fill(SgMut),
    /// It is thrown away.
    Drain,
}

/// The payload of a PDU, when all of it came.
#[derive(Debug)]
pub(super) struct Payload {
    /// `None` if it was thrown away.
    pub(super) data: Option<Sg>,
    /// Whether its digest matched.
    pub(super) intact: bool,
}

impl Payload {
    /// Of a PDU without one.
    pub(super) fn empty() -> Self {
        Self { data: Some(Sg::default()), intact: true }
    }

    /// Bytes that are there.
    pub(super) fn len(&self) -> usize {
        self.data.as_ref().map_or(0, Sg::len)
    }
}

#[derive(Debug, Default)]
pub(super) struct Input {
    /// Received and not looked at: only while the session wants nothing.
    backlog: VecDeque<Slice>,
    /// A header of which a part came, or whose payload is on its way.
    head: Vec<u8>,
    body: Option<Body>,
}

/// A payload on its way.
#[derive(Debug)]
struct Body {
    sink: Sink,
    /// Bytes that still have to come, without the trailer.
    left: usize,
    digest: Option<Digest>,
    data_len: usize,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
    trailer_seen: usize,
}

#[derive(Debug)]
enum Sink {
    Drain,
    Fill { filled: Joined, rest: SgMut },
}

impl Body {
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
            if let Sink::Fill { filled, rest } = &mut self.sink {
                let mut memory = rest.split_to(count);
                memory.copy_from(0, part);
                filled.append(memory.share());
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

    fn finish(self) -> Payload {
        let Self { sink, digest, data_len, trailer, trailer_len, .. } = self;
        let intact = digest.is_none_or(|mut digest| {
            let sent = &trailer[trailer_len - DIGEST_LEN..trailer_len];
            digest.pad(data_len).bytes() == sent
        });
        let data = match sink {
            Sink::Drain => None,
            Sink::Fill { mut filled, .. } => Some(filled.take(filled.len())),
        };
        Payload { data, intact }
    }
}

impl Input {
    pub(super) fn want(&mut self) -> Want {
        if !self.backlog.is_empty() {
            return Want::Nothing;
        }
        match &mut self.body {
            Some(Body { sink: Sink::Fill { rest, .. }, .. }) if rest.len() >= DIRECT_MIN => {
                Want::Into(std::mem::take(rest))
            }
            _ => Want::Chunk,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Memory that it holds, for tests of its bounds.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        let body = match &self.body {
            Some(Body { sink: Sink::Fill { filled, rest }, .. }) => filled.len() + rest.len(),
            _ => 0,
        };
        self.head.capacity() + body + self.backlog.iter().map(|slice| slice.len()).sum::<usize>()
    }
}

impl Session {
    /// Memory that what was received and not handed on takes, for tests of its bounds.
    #[cfg(test)]
    pub(crate) fn input_held_bytes(&self) -> usize {
        self.input.held_bytes()
    }

    pub(super) fn pump(&mut self, actions: &mut Vec<Action>) {
        while !self.is_blocked() {
            let Some(mut chunk) = self.input.backlog.pop_front() else { return };
            let used = self.consume(&chunk, actions);
            if used < chunk.len() && self.closed.is_none() {
                chunk.advance(used);
                self.input.backlog.push_front(chunk);
            }
        }
    }

    pub(super) fn enqueue(&mut self, chunk: Slice) {
        self.input.backlog.push_back(chunk);
    }

    /// The first `count` bytes of memory that was handed out have been filled.
    pub(super) fn fill_direct(&mut self, mut memory: SgMut, count: usize, actions: &mut Vec<Action>) {
        let Some(body) = &mut self.input.body else { return };
        let Sink::Fill { filled, rest } = &mut body.sink else { return };
        let part = memory.split_to(count).share();
        *rest = memory;
        body.left -= count;
        if let Some(digest) = &mut body.digest {
            part.pieces().iter().for_each(|piece| _ = digest.update(piece));
        }
        filled.append(part);
        self.complete_body(actions);
    }

    /// Takes apart what `chunk` holds, until all is used or the session wants nothing more. Returns how much it used.
    fn consume(&mut self, chunk: &Slice, actions: &mut Vec<Action>) -> usize {
        let mut at = 0;
        while at < chunk.len() && !self.is_blocked() {
            let queued = self.out.queued_bytes();
            at += if let Some(body) = &mut self.input.body {
                let used = body.take(&chunk[at..]);
                self.complete_body(actions);
                used
            } else if self.input.head.is_empty() {
                self.read_in_place(chunk, at, actions)
            } else {
                self.read_head(&chunk[at..], actions)
            };
            self.answers += self.out.queued_bytes() - queued;
        }
        at
    }

    /// A PDU begins at `at`. Returns how many bytes of it were used.
    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Action>) -> usize {
        let bytes = &chunk[at..];
        let Some(header) = Bhs::peek(bytes) else { return self.read_head(bytes, actions) };
        let head_len = self.head_len(header);
        let (data_len, trailer_len) = self.body_len(header);
        let whole = head_len + data_len + trailer_len;
        if bytes.len() < whole {
            return self.read_head(bytes, actions);
        }
        let Some((header, ahs)) = self.checked_head(&bytes[..head_len], actions) else { return 0 };
        let mut payload = if data_len == 0 {
            Payload::empty()
        } else {
            let range = at + head_len..at + head_len + data_len;
            let intact = !self.digests().data || {
                let padded = &bytes[head_len..whole - DIGEST_LEN];
                digest(padded) == bytes[whole - DIGEST_LEN..whole]
            };
            let data = match self.plan(header) {
                Plan::Keep => Some(Sg::from(chunk.part(range))),
                Plan::Fill(mut memory) => {
                    memory.copy_from(0, &chunk[range]);
                    Some(memory.share())
                }
                Plan::Drain => None,
            };
            Payload { data, intact }
        };
        self.handle(header, ahs, &mut payload, actions);
        whole
    }

    /// More of a header that did not come at once. Returns how many bytes were used.
    fn read_head(&mut self, bytes: &[u8], actions: &mut Vec<Action>) -> usize {
        let mut used = 0;
        // First the basic header, which tells the length of the rest.
        for _ in 0..2 {
            let need = Bhs::peek(&self.input.head).map_or(BHS_LEN, |header| self.head_len(header));
            debug_assert!(need <= HEAD_MAX);
            let count = (need - self.input.head.len()).min(bytes.len() - used);
            self.input.head.extend_from_slice(&bytes[used..used + count]);
            used += count;
            if self.input.head.len() < need {
                return used;
            }
            // What cannot be is refused before more of it is taken.
            if let Some(why) = Bhs::peek(&self.input.head).and_then(|header| self.malformed(header)) {
                self.close(why, actions);
                return used;
            }
        }
        let head = std::mem::take(&mut self.input.head);
        if self.checked_head(&head, actions).is_some() {
            self.begin_body(&head);
        }
        if self.closed.is_none() {
            self.input.head = head;
            self.complete_body(actions);
        }
        used
    }

    fn begin_body(&mut self, head: &[u8]) {
        let Some(header) = Bhs::peek(head) else { return };
        let (data_len, trailer_len) = self.body_len(header);
        let sink = if data_len == 0 {
            Sink::Fill { filled: Joined::default(), rest: SgMut::default() }
        } else {
            match self.plan(header) {
                Plan::Keep => match self.arena.take_sg(data_len) {
                    Some(rest) => Sink::Fill { filled: Joined::default(), rest },
                    None => Sink::Drain,
                },
                Plan::Fill(rest) => Sink::Fill { filled: Joined::default(), rest },
                Plan::Drain => Sink::Drain,
            }
        };
        let digest = (self.digests().data && data_len > 0).then(Digest::new);
        self.input.body = Some(Body {
            sink,
            left: data_len,
            digest,
            data_len,
            trailer: [0; TRAILER_MAX],
            trailer_len,
            trailer_seen: 0,
        });
    }

    /// Hands the PDU on if its payload is complete.
    fn complete_body(&mut self, actions: &mut Vec<Action>) {
        let Some(body) = self.input.body.take_if(|body| body.is_complete()) else { return };
        let mut head = std::mem::take(&mut self.input.head);
        if let Some(header) = Bhs::peek(&head) {
            let ahs = &head[BHS_LEN..BHS_LEN + header.ahs_len()];
            self.handle(header, ahs, &mut body.finish(), actions);
        }
        if self.closed.is_none() {
            head.clear();
            self.input.head = head;
        }
    }

    /// Bytes of a header with its additional segments and its digest.
    fn head_len(&self, header: &Bhs) -> usize {
        BHS_LEN + header.ahs_len() + if self.digests().header { DIGEST_LEN } else { 0 }
    }

    /// Bytes of a data segment, and of what follows it.
    fn body_len(&self, header: &Bhs) -> (usize, usize) {
        let len = header.data_len.get();
        let digest = if self.digests().data && len > 0 { DIGEST_LEN } else { 0 };
        (len, header.padded_len() - len + digest)
    }

    /// A complete header, if it is sound; else the connection is closed.
    fn checked_head<'a>(&mut self, head: &'a [u8], actions: &mut Vec<Action>) -> Option<(&'a Bhs, &'a [u8])> {
        let header = Bhs::peek(head)?;
        let (bytes, sent) = head.split_at(BHS_LEN + header.ahs_len());
        let why = if !sent.is_empty() && digest(bytes) != sent {
            self.stats.digest_errors.add(1);
            // 7.8: at recovery level 0 there is no way to find the next header.
            Some(Close::HeaderDigest)
        } else {
            self.malformed(header)
        };
        match why {
            Some(why) => {
                self.close(why, actions);
                None
            }
            None => Some((header, &bytes[BHS_LEN..])),
        }
    }
}
