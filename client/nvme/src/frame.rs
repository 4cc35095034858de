//! Splits the received stream into PDUs in place. Data is passed on as it arrives; this module buffers none.

use crate::Error;
use lunar_nvme_tcp::wire::{
    COMMON_LEN, Common, DATA_DIGEST, DIGEST_LEN, Digest, HEADER_DIGEST, IcResp, PduType, R2t, RETURNED_HEADER_MAX,
    TermReq, digest,
};
use zerocopy::FromBytes;

/// Whether PDUs have digests. It changes once, with ICResp.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
}

/// The lengths of the parts of a PDU, in bytes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The header without its digest.
    header: usize,
    /// The header with its digest.
    head: usize,
    /// The offset of the data.
    start: usize,
    data: usize,
    trailer: usize,
}

impl Shape {
    fn end(&self) -> usize {
        self.start + self.data + self.trailer
    }
}

impl Framing {
    fn shape(&self, common: &Common) -> Result<Shape, Error> {
        let kind = PduType(common.kind);
        let (header, has_digests, has_data) = match kind {
            PduType::IC_RESP => (size_of::<IcResp>(), false, false),
            PduType::C2H_TERM_REQ => (size_of::<TermReq>(), false, true),
            PduType::CAPSULE_RESP | PduType::R2T => (size_of::<R2t>(), true, false),
            PduType::C2H_DATA => (size_of::<R2t>(), true, true),
            _ => return Err(Error::Protocol("a PDU has a type that controllers do not send")),
        };
        if usize::from(common.header_len) != header {
            return Err(Error::Protocol("the header length of a PDU does not match its type"));
        }
        let head = header + if has_digests && self.header_digest { DIGEST_LEN } else { 0 };
        let len = common.len.get() as usize;
        if len == head {
            return Ok(Shape { header, head, start: head, data: 0, trailer: 0 });
        }
        let start = if has_digests { usize::from(common.data_offset) } else { head };
        let trailer = if has_digests && self.data_digest { DIGEST_LEN } else { 0 };
        let data = len.checked_sub(start + trailer).filter(|data| has_data && *data > 0 && start >= head);
        let data = data.ok_or(Error::Protocol("the lengths in a PDU header are inconsistent"))?;
        if kind == PduType::C2H_TERM_REQ && data > RETURNED_HEADER_MAX {
            return Err(Error::Protocol("a C2HTermReq is too long"));
        }
        Ok(Shape { header, head, start, data, trailer })
    }

    fn check(&self, shape: &Shape, common: &Common, head: &[u8]) -> Result<(), Error> {
        let wanted =
            if shape.head > shape.header { HEADER_DIGEST } else { 0 } | if shape.trailer > 0 { DATA_DIGEST } else { 0 };
        if common.flags & wanted != wanted {
            return Err(Error::Protocol("a PDU lacks a negotiated digest"));
        }
        if shape.head > shape.header && digest(&head[..shape.header]) != head[shape.header..shape.head] {
            return Err(Error::HeaderDigest);
        }
        Ok(())
    }
}

/// The receiver of the PDUs.
pub(crate) trait Sink {
    /// Takes a piece of a PDU's data that begins at byte `at` of it. The data has `len` bytes in total.
    fn data(&mut self, header: &[u8], at: usize, len: usize, bytes: &[u8]) -> Result<(), Error>;
    /// Takes the header of a complete PDU, whose digests are right.
    fn end(&mut self, header: &[u8], framing: &mut Framing) -> Result<(), Error>;
}

/// The splitter: its state between two received pieces.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    framing: Framing,
    /// The received part of a header, with digest and padding, unless it arrived in one piece.
    held: Vec<u8>,
    /// The lengths of the PDU whose header is complete, and how much of its data has arrived.
    body: Option<(Shape, usize)>,
    digest: Digest,
    trailer: Vec<u8>,
}

impl Framer {
    /// Takes all of `bytes`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        while !bytes.is_empty() {
            let used = match self.body {
                Some((shape, at)) => self.body(shape, at, bytes, sink)?,
                None if self.held.is_empty() => self.whole(bytes, sink)?,
                None => self.header(bytes, sink)?,
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// The fast path: the whole PDU is in `bytes`, which holds for nearly all PDUs.
    fn whole(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Error> {
        let Ok((common, _)) = Common::ref_from_prefix(bytes) else { return self.header(bytes, sink) };
        let shape = self.framing.shape(common)?;
        let Some(pdu) = bytes.get(..shape.end()) else { return self.header(bytes, sink) };
        self.framing.check(&shape, common, pdu)?;
        let header = &pdu[..shape.header];
        if shape.data > 0 {
            let (data, sum) = pdu[shape.start..].split_at(shape.data);
            if shape.trailer > 0 && digest(data) != sum {
                return Err(Error::DataDigest);
            }
            sink.data(header, 0, shape.data, data)?;
        }
        sink.end(header, &mut self.framing)?;
        Ok(shape.end())
    }

    fn header(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Error> {
        let mut used = 0;
        // The common header comes first: it contains the lengths of the rest.
        loop {
            let shape = match Common::ref_from_prefix(&self.held) {
                Ok((common, _)) => Some(self.framing.shape(common)?),
                Err(_) => None,
            };
            let need = shape.map_or(COMMON_LEN, |shape| shape.start);
            let part = (need - self.held.len()).min(bytes.len() - used);
            self.held.extend_from_slice(&bytes[used..used + part]);
            used += part;
            if self.held.len() < need {
                return Ok(used);
            }
            let Some(shape) = shape else { continue };
            if let Ok((common, _)) = Common::ref_from_prefix(&self.held) {
                self.framing.check(&shape, common, &self.held)?;
            }
            (self.digest, self.body) = (Digest::default(), Some((shape, 0)));
            if shape.data == 0 {
                self.end(&shape, sink)?;
            }
            return Ok(used);
        }
    }

    fn body(&mut self, shape: Shape, at: usize, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Error> {
        let part = &bytes[..(shape.data - at).min(bytes.len())];
        if !part.is_empty() {
            if shape.trailer > 0 {
                self.digest.update(part);
            }
            sink.data(&self.held[..shape.header], at, shape.data, part)?;
            self.body = Some((shape, at + part.len()));
        }
        if at + part.len() < shape.data {
            return Ok(part.len());
        }
        let rest = &bytes[part.len()..];
        let sum = &rest[..(shape.trailer - self.trailer.len()).min(rest.len())];
        self.trailer.extend_from_slice(sum);
        if self.trailer.len() == shape.trailer {
            if shape.trailer > 0 && self.digest.bytes() != *self.trailer {
                return Err(Error::DataDigest);
            }
            self.end(&shape, sink)?;
        }
        Ok(part.len() + sum.len())
    }

    fn end(&mut self, shape: &Shape, sink: &mut impl Sink) -> Result<(), Error> {
        sink.end(&self.held[..shape.header], &mut self.framing)?;
        self.body = None;
        self.held.clear();
        self.trailer.clear();
        Ok(())
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
