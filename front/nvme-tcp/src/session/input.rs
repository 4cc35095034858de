//! Bytes to PDUs: a header is looked at where it lies, data that lies whole in what was received stays there, any other
//! goes into memory of its own, and large ones are received straight into it.

use super::{Action, Fatal, Session};
use crate::config::{DIRECT_MIN, H2C_DATA_MAX, IN_CAPSULE_MAX};
use crate::wire::{
    COMMON_LEN, CapsuleCmd, Common, DIGEST_LEN, Digest, FatalStatus, H2cData, HEADER_MAX, IcReq, PduType, TOLD_MAX,
    TermReq, digest,
};
use lunar_core::mem::{Sg, SgMut, Slice};
use lunar_stream::machine::Want;
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// The longest header with its digest and padding: offsets are bytes.
const HEAD_MAX: usize = 255;
const _: () = assert!(HEADER_MAX + DIGEST_LEN <= HEAD_MAX);

/// Where the data of a PDU goes.
#[derive(Debug)]
pub(super) enum Plan {
    /// It stays where it lies, or into fresh memory.
    Keep,
    /// It goes here.
    Fill(SgMut),
    /// It is thrown away.
    Drain,
}

/// The data of a PDU, when all of it came.
#[derive(Debug)]
pub(super) struct Payload {
    /// `None` if it was thrown away.
    pub(super) data: Option<Sg>,
    /// Whether its digest matched.
    pub(super) intact: bool,
}

/// What a PDU of a host may be.
pub(super) struct Limits {
    pub(super) header: usize,
    pub(super) data: usize,
    pub(super) digests: bool,
}

/// The limits of a type; `None` for one that no host sends.
pub(super) fn limits(kind: PduType) -> Option<Limits> {
    let (header, data, digests) = match kind {
        PduType::IC_REQ => (size_of::<IcReq>(), 0, false),
        PduType::H2C_TERM_REQ => (size_of::<TermReq>(), TOLD_MAX, false),
        PduType::CAPSULE_CMD => (size_of::<CapsuleCmd>(), IN_CAPSULE_MAX as usize, true),
        PduType::H2C_DATA => (size_of::<H2cData>(), H2C_DATA_MAX as usize, true),
        _ => return None,
    };
    Some(Limits { header, data, digests })
}

/// How long the parts of a PDU are.
pub(super) struct Shape {
    /// Header and its digest.
    pub(super) head_len: usize,
    /// The same with the padding before the data.
    start: usize,
    /// `None` if the lengths do not add up.
    pub(super) data_len: Option<usize>,
    trailer_len: usize,
}

#[derive(Debug, Default)]
pub(super) struct Input {
    /// Received and not looked at: only while the session wants nothing.
    backlog: VecDeque<Slice>,
    /// A header of which a part came, or whose data is on its way.
    head: Vec<u8>,
    body: Option<Body>,
}

impl Input {
    pub(super) fn want(&mut self) -> Want {
        if !self.backlog.is_empty() {
            return Want::Nothing;
        }
        match &mut self.body {
            Some(Body { rest: Some(rest), .. }) if rest.len() >= DIRECT_MIN => Want::Into(std::mem::take(rest)),
            _ => Want::Chunk,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn enqueue(&mut self, chunk: Slice) {
        self.backlog.push_back(chunk);
    }
}

/// Data on its way.
#[derive(Debug)]
struct Body {
    /// What came, and what is to come; nothing if it is thrown away.
    filled: Sg,
    rest: Option<SgMut>,
    left: usize,
    digest: Option<Digest>,
    trailer: Vec<u8>,
    trailer_len: usize,
}

impl Body {
    fn is_complete(&self) -> bool {
        self.left == 0 && self.trailer.len() == self.trailer_len
    }

    /// Takes what it needs of `bytes`; returns how many that was.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.left);
        let part = &bytes[..count];
        if let Some(digest) = &mut self.digest {
            digest.update(part);
        }
        if let Some(rest) = &mut self.rest
            && count > 0
        {
            let mut memory = rest.split_to(count);
            memory.copy_from(0, part);
            join(&mut self.filled, memory.share());
        }
        self.left -= count;
        if self.left > 0 {
            return count;
        }
        let more = (bytes.len() - count).min(self.trailer_len - self.trailer.len());
        self.trailer.extend_from_slice(&bytes[count..count + more]);
        count + more
    }

    fn finish(self) -> Payload {
        let intact = self.digest.is_none_or(|digest| digest.bytes() == *self.trailer);
        Payload { data: self.rest.map(|_| self.filled), intact }
    }
}

/// Appends parts: neighbours in one block become one piece again.
pub(super) fn join(to: &mut Sg, more: Sg) {
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

impl Session {
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

    /// The first `count` bytes of memory that was handed out have been filled.
    pub(super) fn fill_direct(&mut self, mut memory: SgMut, count: usize, actions: &mut Vec<Action>) {
        let Some(body) = &mut self.input.body else { return };
        let Some(rest) = &mut body.rest else { return };
        let part = memory.split_to(count).share();
        *rest = memory;
        body.left -= count;
        if let Some(digest) = &mut body.digest {
            part.pieces().iter().for_each(|piece| _ = digest.update(piece));
        }
        join(&mut body.filled, part);
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
            self.answers += self.out.queued_bytes().saturating_sub(queued);
        }
        at
    }

    /// How long the parts of a PDU are.
    pub(super) fn shape(&self, common: &Common) -> Shape {
        let limits = limits(PduType(common.kind));
        let (len, digests) = (common.len.get() as usize, self.digests());
        let has_digests = limits.is_some_and(|limits| limits.digests);
        // A header that says it is shorter than what all have cannot be; it is taken whole, to be refused.
        let header_len = usize::from(common.header_len).max(COMMON_LEN);
        let head_len = header_len + if has_digests && digests.header { DIGEST_LEN } else { 0 };
        let is_term = PduType(common.kind) == PduType::H2C_TERM_REQ;
        if len == head_len {
            return Shape { head_len, start: head_len, data_len: Some(0), trailer_len: 0 };
        }
        // A termination request has its data directly behind its header.
        let start = if is_term { head_len } else { usize::from(common.data_offset) };
        let trailer_len = if has_digests && digests.data { DIGEST_LEN } else { 0 };
        let data_len = len.checked_sub(start.max(head_len) + trailer_len).filter(|data_len| *data_len > 0);
        Shape { head_len, start: start.max(head_len), data_len, trailer_len }
    }

    /// A PDU begins at `at`. Returns how many bytes of it were used.
    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Action>) -> usize {
        let bytes = &chunk[at..];
        let Ok((common, _)) = Common::ref_from_prefix(bytes) else { return self.read_head(bytes, actions) };
        let shape = self.shape(common);
        let data_len = shape.data_len.unwrap_or(0);
        let whole = shape.start + data_len + shape.trailer_len;
        if bytes.len() < whole || shape.data_len.is_none() {
            return self.read_head(bytes, actions);
        }
        let head = &bytes[..shape.start];
        if !self.check_head(head, actions) {
            return 0;
        }
        let header = &head[..usize::from(common.header_len)];
        let mut payload = Payload { data: Some(Sg::default()), intact: true };
        if data_len > 0 {
            let range = at + shape.start..at + shape.start + data_len;
            payload.intact =
                shape.trailer_len == 0 || digest(&chunk[range.clone()]) == bytes[whole - DIGEST_LEN..whole];
            payload.data = match self.plan(header) {
                Ok(Plan::Keep) => Some(Sg::from(chunk.part(range))),
                Ok(Plan::Fill(mut memory)) => {
                    memory.copy_from(0, &chunk[range]);
                    Some(memory.share())
                }
                Ok(Plan::Drain) => None,
                Err(fatal) => {
                    self.fail(fatal, header, actions);
                    return 0;
                }
            };
        }
        self.handle(header, &mut payload, actions);
        whole
    }

    /// More of a header that did not come at once. Returns how many bytes were used.
    fn read_head(&mut self, bytes: &[u8], actions: &mut Vec<Action>) -> usize {
        let mut used = 0;
        // First what all headers have, which tells the length of the rest.
        for _ in 0..2 {
            let need = match Common::ref_from_prefix(&self.input.head) {
                Ok((common, _)) => self.shape(common).start,
                Err(_) => COMMON_LEN,
            };
            let count = need.saturating_sub(self.input.head.len()).min(bytes.len() - used);
            self.input.head.extend_from_slice(&bytes[used..used + count]);
            used += count;
            if self.input.head.len() < need {
                return used;
            }
            // What cannot be is refused before more of it is taken.
            if let Ok((common, _)) = Common::ref_from_prefix(&self.input.head)
                && let Some(fatal) = self.malformed(common)
            {
                let head = std::mem::take(&mut self.input.head);
                self.fail(fatal, &head, actions);
                return used;
            }
        }
        let head = std::mem::take(&mut self.input.head);
        if self.check_head(&head, actions) {
            self.begin_body(&head, actions);
        }
        if self.closed.is_none() {
            self.input.head = head;
            self.complete_body(actions);
        }
        used
    }

    fn begin_body(&mut self, head: &[u8], actions: &mut Vec<Action>) {
        let Ok((common, _)) = Common::ref_from_prefix(head) else { return };
        let shape = self.shape(common);
        let data_len = shape.data_len.unwrap_or(0);
        let header = &head[..usize::from(common.header_len).min(head.len())];
        let rest = if data_len == 0 {
            Some(SgMut::default())
        } else {
            match self.plan(header) {
                Ok(Plan::Keep) => self.arena.take_sg(data_len),
                Ok(Plan::Fill(memory)) => Some(memory),
                Ok(Plan::Drain) => None,
                Err(fatal) => return self.fail(fatal, header, actions),
            }
        };
        self.input.body = Some(Body {
            filled: Sg::default(),
            rest,
            left: data_len,
            digest: (shape.trailer_len > 0).then(Digest::default),
            trailer: Vec::new(),
            trailer_len: shape.trailer_len,
        });
    }

    /// Hands the PDU on if its data is complete.
    fn complete_body(&mut self, actions: &mut Vec<Action>) {
        let Some(body) = self.input.body.take_if(|body| body.is_complete()) else { return };
        let mut head = std::mem::take(&mut self.input.head);
        if let Ok((common, _)) = Common::ref_from_prefix(&head) {
            let header = &head[..usize::from(common.header_len).min(head.len())];
            self.handle(header, &mut body.finish(), actions);
        }
        if self.closed.is_none() {
            head.clear();
            self.input.head = head;
        }
    }

    /// Whether a complete header is sound; else the connection is closed.
    fn check_head(&mut self, head: &[u8], actions: &mut Vec<Action>) -> bool {
        let Ok((common, _)) = Common::ref_from_prefix(head) else { return false };
        let header_len = usize::from(common.header_len);
        let fatal = self.malformed(common).or_else(|| {
            let has_digest = self.shape(common).head_len > header_len;
            let (bytes, rest) = head.split_at_checked(header_len)?;
            let sent = rest.first_chunk::<DIGEST_LEN>().filter(|_| has_digest)?;
            (digest(bytes) != *sent).then(|| Fatal(FatalStatus::HEADER_DIGEST, u32::from_le_bytes(*sent)))
        });
        if let Some(fatal) = fatal {
            if fatal.0 == FatalStatus::HEADER_DIGEST {
                self.stats.digest_errors.add(1);
            }
            self.fail(fatal, &head[..header_len.min(head.len())], actions);
            return false;
        }
        true
    }
}
