//! The boundaries of PDUs: header, padding, data, digests.

use super::{Action, Session, Violation};
use crate::config::{ANSWERS_MAX, H2C_DATA_MAX, IN_CAPSULE_MAX};
use crate::wire::{
    COMMON_LEN, CapsuleCmd, Common, DIGEST_LEN, FatalStatus, H2cData, IcReq, PduType, RETURNED_HEADER_MAX, TermReq,
    digest,
};
use lunar_core::mem::Slice;
use lunar_stream::input::{self, Input, PartialPayload, Payload, PduReader};
use zerocopy::FromBytes;

/// The limits of a PDU type that hosts send.
pub(super) struct Limits {
    pub(super) header: usize,
    pub(super) data: usize,
    pub(super) digests: bool,
}

/// The limits of a type; `None` for a type that hosts do not send.
pub(super) fn limits(kind: PduType) -> Option<Limits> {
    let (header, data, digests) = match kind {
        PduType::IC_REQ => (size_of::<IcReq>(), 0, false),
        PduType::H2C_TERM_REQ => (size_of::<TermReq>(), RETURNED_HEADER_MAX, false),
        PduType::CAPSULE_CMD => (size_of::<CapsuleCmd>(), IN_CAPSULE_MAX as usize, true),
        PduType::H2C_DATA => (size_of::<H2cData>(), H2C_DATA_MAX as usize, true),
        _ => return None,
    };
    Some(Limits { header, data, digests })
}

/// The lengths of the parts of a PDU.
pub(super) struct Shape {
    /// Bytes of the header and its digest.
    pub(super) head_len: usize,
    /// The offset of the data, after padding.
    start: usize,
    /// Bytes of the data; `None` if the lengths are inconsistent.
    pub(super) data_len: Option<usize>,
    trailer_len: usize,
}

impl PduReader for Session {
    const HEADER_MIN: usize = COMMON_LEN;

    fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    fn is_blocked(&self) -> bool {
        self.closed().is_some() || self.input.answer_bytes() > ANSWERS_MAX
    }

    fn is_closed(&self) -> bool {
        self.closed().is_some()
    }

    fn read_in_place(&mut self, chunk: &Slice, at: usize, actions: &mut Vec<Action>) -> usize {
        let bytes = &chunk[at..];
        let Ok((common, _)) = Common::ref_from_prefix(bytes) else { return input::read_head(self, bytes, actions) };
        let shape = self.shape(common);
        let data_len = shape.data_len.unwrap_or(0);
        let whole = shape.start + data_len + shape.trailer_len;
        if bytes.len() < whole || shape.data_len.is_none() {
            return input::read_head(self, bytes, actions);
        }
        let head = &bytes[..shape.start];
        if !self.check_head(head, actions) {
            return 0;
        }
        let header = &head[..usize::from(common.header_len)];
        let mut payload = Payload::empty();
        if data_len > 0 {
            let range = at + shape.start..at + shape.start + data_len;
            let intact = shape.trailer_len == 0 || digest(&chunk[range.clone()]) == bytes[whole - DIGEST_LEN..whole];
            payload = match self.payload_plan(header) {
                Ok(plan) => Payload::whole(plan, chunk, range, intact),
                Err(violation) => {
                    self.fail(violation, header, actions);
                    return 0;
                }
            };
        }
        self.handle(header, &mut payload, actions);
        whole
    }

    fn header_len(&self, start: &[u8]) -> usize {
        Common::ref_from_prefix(start).map_or(COMMON_LEN, |(common, _)| self.shape(common).start)
    }

    fn reject_early(&mut self, start: &[u8], actions: &mut Vec<Action>) -> bool {
        let violation = Common::ref_from_prefix(start).ok().and_then(|(common, _)| self.malformed(common));
        violation.is_some_and(|violation| {
            self.fail(violation, start, actions);
            true
        })
    }

    fn start_payload(&mut self, head: &[u8], actions: &mut Vec<Action>) -> Option<PartialPayload> {
        let (common, _) = Common::ref_from_prefix(head).ok()?;
        if !self.check_head(head, actions) {
            return None;
        }
        let shape = self.shape(common);
        let data_len = shape.data_len.unwrap_or(0);
        if data_len == 0 {
            return Some(PartialPayload::empty());
        }
        let header = &head[..usize::from(common.header_len).min(head.len())];
        match self.payload_plan(header) {
            Ok(plan) => {
                Some(PartialPayload::new(plan, data_len, shape.trailer_len, shape.trailer_len > 0, &self.arena))
            }
            Err(violation) => {
                self.fail(violation, header, actions);
                None
            }
        }
    }

    fn complete(&mut self, head: &[u8], payload: &mut Payload, actions: &mut Vec<Action>) {
        if let Ok((common, _)) = Common::ref_from_prefix(head) {
            let header = &head[..usize::from(common.header_len).min(head.len())];
            self.handle(header, payload, actions);
        }
    }
}

impl Session {
    /// The lengths of the parts of a PDU.
    pub(super) fn shape(&self, common: &Common) -> Shape {
        let limits = limits(PduType(common.kind));
        let (len, digests) = (common.len.get() as usize, self.digests());
        let has_digests = limits.is_some_and(|limits| limits.digests);
        // A header shorter than the common header is invalid; it is taken as the common header, to be rejected.
        let header_len = usize::from(common.header_len).max(COMMON_LEN);
        let head_len = header_len + if has_digests && digests.header { DIGEST_LEN } else { 0 };
        let is_term = PduType(common.kind) == PduType::H2C_TERM_REQ;
        if len == head_len {
            return Shape { head_len, start: head_len, data_len: Some(0), trailer_len: 0 };
        }
        // The data of a termination request follows its header directly.
        let start = if is_term { head_len } else { usize::from(common.data_offset) };
        let trailer_len = if has_digests && digests.data { DIGEST_LEN } else { 0 };
        let data_len = len.checked_sub(start.max(head_len) + trailer_len).filter(|data_len| *data_len > 0);
        Shape { head_len, start: start.max(head_len), data_len, trailer_len }
    }

    /// Whether a complete header is valid; closes the connection if it is not.
    fn check_head(&mut self, head: &[u8], actions: &mut Vec<Action>) -> bool {
        let Ok((common, _)) = Common::ref_from_prefix(head) else { return false };
        let header_len = usize::from(common.header_len);
        let violation = self.malformed(common).or_else(|| {
            let has_digest = self.shape(common).head_len > header_len;
            let (bytes, rest) = head.split_at_checked(header_len)?;
            let sent = rest.first_chunk::<DIGEST_LEN>().filter(|_| has_digest)?;
            (digest(bytes) != *sent).then(|| Violation(FatalStatus::HEADER_DIGEST, u32::from_le_bytes(*sent)))
        });
        if let Some(violation) = violation {
            if violation.0 == FatalStatus::HEADER_DIGEST {
                self.stats.digest_errors.add(1);
            }
            self.fail(violation, &head[..header_len.min(head.len())], actions);
            return false;
        }
        true
    }
}
