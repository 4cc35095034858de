//! The boundaries of PDUs: basic header, additional headers, data segment, digests (RFC 7143 11.2).

use super::action::{Action, CloseReason};
use super::{Phase, Session};
use crate::config::ANSWERS_MAX;
use crate::wire::{BHS_LEN, Bhs, DIGEST_LEN, digest};
use lunar_core::mem::Slice;
use lunar_stream::input::{self, Input, PartialPayload, Payload, PduReader};

impl PduReader for Session {
    const HEADER_MIN: usize = BHS_LEN;

    fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    fn is_blocked(&self) -> bool {
        match &self.phase {
            Phase::FullFeature => self.input.answer_bytes() > ANSWERS_MAX,
            Phase::Login(login) => login.awaits_answer(),
            Phase::Advancing | Phase::Closed(_) => true,
        }
    }

    fn is_closed(&self) -> bool {
        self.closed().is_some()
    }

    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Action>) -> usize {
        let bytes = &chunk[at..];
        let Some(header) = Bhs::peek(bytes) else { return input::read_head(self, bytes, actions) };
        let head_len = self.whole_head_len(header);
        let (data_len, trailer_len) = self.body_len(header);
        let whole = head_len + data_len + trailer_len;
        if bytes.len() < whole {
            return input::read_head(self, bytes, actions);
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
            Payload::whole(self.payload_plan(header), chunk, range, intact)
        };
        self.handle(header, ahs, &mut payload, actions);
        whole
    }

    fn header_len(&self, start: &[u8]) -> usize {
        Bhs::peek(start).map_or(BHS_LEN, |header| self.whole_head_len(header))
    }

    fn reject_early(&mut self, start: &[u8], actions: &mut Vec<Action>) -> bool {
        let why = Bhs::peek(start).and_then(|header| self.malformed(header));
        why.is_some_and(|why| {
            self.close(why, actions);
            true
        })
    }

    fn start_payload(&mut self, head: &[u8], actions: &mut Vec<Action>) -> Option<PartialPayload> {
        let (header, _) = self.checked_head(head, actions)?;
        let (data_len, trailer_len) = self.body_len(header);
        if data_len == 0 {
            return Some(PartialPayload::empty());
        }
        let has_digest = self.digests().data;
        Some(PartialPayload::new(self.payload_plan(header), data_len, trailer_len, has_digest, &self.arena))
    }

    fn complete(&mut self, head: &[u8], payload: &mut Payload, actions: &mut Vec<Action>) {
        if let Some(header) = Bhs::peek(head) {
            let ahs = &head[BHS_LEN..BHS_LEN + header.ahs_len()];
            self.handle(header, ahs, payload, actions);
        }
    }
}

impl Session {
    /// Bytes of memory held by PDUs that are not complete, for tests of its limits.
    #[cfg(test)]
    pub(crate) fn input_held_bytes(&self) -> usize {
        self.input.held_bytes()
    }

    /// Bytes of a header with its additional header segments and its digest.
    fn whole_head_len(&self, header: &Bhs) -> usize {
        BHS_LEN + header.ahs_len() + if self.digests().header { DIGEST_LEN } else { 0 }
    }

    /// Bytes of a data segment, and of its padding and digest.
    fn body_len(&self, header: &Bhs) -> (usize, usize) {
        let len = header.data_len.get();
        let digest = if self.digests().data && len > 0 { DIGEST_LEN } else { 0 };
        (len, header.padded_len() - len + digest)
    }

    /// A complete header and its additional header segments. Closes the connection if they are invalid.
    fn checked_head<'a>(&mut self, head: &'a [u8], actions: &mut Vec<Action>) -> Option<(&'a Bhs, &'a [u8])> {
        let header = Bhs::peek(head)?;
        let (bytes, sent) = head.split_at(BHS_LEN + header.ahs_len());
        let why = if !sent.is_empty() && digest(bytes) != sent {
            self.stats.digest_errors.add(1);
            // RFC 7143 7.8: at recovery level 0 the position of the next header is lost.
            Some(CloseReason::HeaderDigest)
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
