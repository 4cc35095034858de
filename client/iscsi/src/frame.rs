//! Splits the received stream into PDUs in place. Data segments are passed on as they arrive; this module buffers none.

use crate::Error;
use lunar_iscsi::wire::{BHS_LEN, Bhs, DIGEST_LEN, Digest, digest, padded};
use zerocopy::FromBytes;

/// The framing of PDUs. It changes once, at the end of the login.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// The MaxRecvDataSegmentLength that was declared to the target, in bytes.
    pub(crate) segment_max: usize,
}

impl Framing {
    fn header_len(&self) -> usize {
        BHS_LEN + if self.header_digest { DIGEST_LEN } else { 0 }
    }

    /// The length of padding and digest after a data segment.
    fn trailer_len(&self, data_len: usize) -> usize {
        padded(data_len) - data_len + if self.data_digest { DIGEST_LEN } else { 0 }
    }
}

/// The receiver of the PDUs.
pub(crate) trait Sink {
    /// Takes a piece of a data segment that begins at byte `at` of it.
    fn data(&mut self, header: &Bhs, at: usize, bytes: &[u8]) -> Result<(), Error>;
    /// Takes the header of a complete PDU, whose digests are right.
    fn end(&mut self, header: &Bhs, framing: &mut Framing) -> Result<(), Error>;
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So many bytes of the header are in `held`.
    Header(usize),
    /// So many bytes of the data segment were passed on.
    Data(usize),
    /// So many bytes of padding and digest are in `trailer`.
    Trailer(usize),
}

/// The splitter: its state between two received pieces.
#[derive(Debug)]
pub(crate) struct Framer {
    pub(crate) framing: Framing,
    state: State,
    held: [u8; BHS_LEN + DIGEST_LEN],
    trailer: [u8; 3 + DIGEST_LEN],
    digest: Digest,
}

impl Framer {
    pub(crate) fn new(framing: Framing) -> Self {
        Self { framing, state: State::Header(0), held: [0; 52], trailer: [0; 7], digest: Digest::new() }
    }

    /// Takes all of `bytes`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Header(0) => self.whole(bytes, sink)?,
                State::Header(have) => self.header(have, bytes, sink)?,
                State::Data(at) => self.data(at, bytes, sink)?,
                State::Trailer(have) => self.trailer(have, bytes, sink)?,
            };
        }
        Ok(())
    }

    /// The fast path: the whole PDU is in `bytes`, which holds for nearly all PDUs.
    fn whole<'a>(&mut self, bytes: &'a [u8], sink: &mut impl Sink) -> Result<&'a [u8], Error> {
        let start = self.framing.header_len();
        let Some(header) = Bhs::peek(bytes).filter(|_| bytes.len() >= start) else {
            return self.header(0, bytes, sink);
        };
        let len = header.data_len.get();
        let end = start + len + if len > 0 { self.framing.trailer_len(len) } else { 0 };
        if bytes.len() < end {
            return self.header(0, bytes, sink);
        }
        self.check_header(header, &bytes[..start])?;
        if len > 0 {
            let data = &bytes[start..start + len];
            if self.framing.data_digest && digest(&bytes[start..start + padded(len)]) != bytes[end - DIGEST_LEN..end] {
                return Err(Error::DataDigest);
            }
            sink.data(header, 0, data)?;
        }
        sink.end(header, &mut self.framing)?;
        Ok(&bytes[end..])
    }

    fn check_header(&self, header: &Bhs, bytes: &[u8]) -> Result<(), Error> {
        if self.framing.header_digest && digest(&bytes[..BHS_LEN]) != bytes[BHS_LEN..] {
            return Err(Error::HeaderDigest);
        }
        if header.ahs_words > 0 {
            return Err(Error::Protocol("a PDU of the target has an additional header segment"));
        }
        if header.data_len.get() > self.framing.segment_max {
            return Err(Error::Protocol("a data segment is longer than MaxRecvDataSegmentLength"));
        }
        Ok(())
    }

    fn header<'a>(&mut self, have: usize, bytes: &'a [u8], sink: &mut impl Sink) -> Result<&'a [u8], Error> {
        let want = self.framing.header_len();
        let (part, rest) = bytes.split_at((want - have).min(bytes.len()));
        self.held[have..have + part.len()].copy_from_slice(part);
        self.state = State::Header(have + part.len());
        if have + part.len() == want {
            let header = self.held_header();
            self.check_header(&header, &self.held[..want])?;
            self.digest = Digest::new();
            match header.data_len.get() {
                0 => self.end(&header, sink)?,
                _ => self.state = State::Data(0),
            }
        }
        Ok(rest)
    }

    fn data<'a>(&mut self, at: usize, bytes: &'a [u8], sink: &mut impl Sink) -> Result<&'a [u8], Error> {
        let header = self.held_header();
        let len = header.data_len.get();
        let (part, rest) = bytes.split_at((len - at).min(bytes.len()));
        if self.framing.data_digest {
            self.digest.update(part);
        }
        sink.data(&header, at, part)?;
        self.state = State::Data(at + part.len());
        if at + part.len() == len {
            match self.framing.trailer_len(len) {
                0 => self.end(&header, sink)?,
                _ => self.state = State::Trailer(0),
            }
        }
        Ok(rest)
    }

    fn trailer<'a>(&mut self, have: usize, bytes: &'a [u8], sink: &mut impl Sink) -> Result<&'a [u8], Error> {
        let header = self.held_header();
        let len = header.data_len.get();
        let want = self.framing.trailer_len(len);
        let (part, rest) = bytes.split_at((want - have).min(bytes.len()));
        self.trailer[have..have + part.len()].copy_from_slice(part);
        self.state = State::Trailer(have + part.len());
        if have + part.len() == want {
            let (pad, sum) = self.trailer[..want].split_at(padded(len) - len);
            if self.framing.data_digest && self.digest.update(pad).bytes() != sum {
                return Err(Error::DataDigest);
            }
            self.end(&header, sink)?;
        }
        Ok(rest)
    }

    fn end(&mut self, header: &Bhs, sink: &mut impl Sink) -> Result<(), Error> {
        self.state = State::Header(0);
        sink.end(header, &mut self.framing)
    }

    fn held_header(&self) -> Bhs {
        Bhs::read_from_prefix(&self.held).expect("a header is shorter than its buffer").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_iscsi::wire::{DataIn, Pdu, U24};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[derive(Default, PartialEq, Debug)]
    struct Seen {
        open: Vec<u8>,
        pdus: Vec<(u32, Vec<u8>)>,
    }

    impl Sink for Seen {
        fn data(&mut self, _: &Bhs, at: usize, bytes: &[u8]) -> Result<(), Error> {
            assert_eq!(at, self.open.len());
            self.open.extend_from_slice(bytes);
            Ok(())
        }
        fn end(&mut self, header: &Bhs, _: &mut Framing) -> Result<(), Error> {
            self.pdus.push((header.itt.get(), std::mem::take(&mut self.open)));
            Ok(())
        }
    }

    fn framing(header_digest: bool, data_digest: bool) -> Framing {
        Framing { header_digest, data_digest, segment_max: 4096 }
    }

    fn pdu(framing: Framing, tag: u32, data: &[u8]) -> Vec<u8> {
        let mut header = DataIn::blank();
        header.itt.set(tag);
        header.data_len = U24::new(data.len());
        let mut bytes = header.as_bytes().to_vec();
        if framing.header_digest {
            bytes.extend(digest(header.as_bytes()));
        }
        if !data.is_empty() {
            bytes.extend_from_slice(data);
            bytes.resize(padded(bytes.len()), 0);
            if framing.data_digest {
                bytes.extend(Digest::new().update(data).pad(data.len()).bytes());
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn pdus_are_found_however_the_stream_is_split(
            lens in prop::collection::vec(0usize..300, 1..12), cuts in prop::collection::vec(1usize..200, 1..50),
            header_digest: bool, data_digest: bool,
        ) {
            let framing = framing(header_digest, data_digest);
            let want: Vec<_> = lens.iter().zip(0..).map(|(len, tag)| (tag, vec![tag as u8 ^ 0x5a; *len])).collect();
            let stream: Vec<u8> = want.iter().flat_map(|(tag, data)| pdu(framing, *tag, data)).collect();
            let (mut framer, mut seen) = (Framer::new(framing), Seen::default());
            let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (part, next) = rest.split_at((*cuts.next().expect("cycle")).min(rest.len()));
                prop_assert!(framer.feed(part, &mut seen).is_ok());
                rest = next;
            }
            prop_assert_eq!(seen.pdus, want);
        }

        #[test]
        fn any_bytes_are_accepted_or_refused(bytes: Vec<u8>, header_digest: bool, data_digest: bool) {
            let _ = Framer::new(framing(header_digest, data_digest)).feed(&bytes, &mut Seen::default());
        }
    }

    #[test]
    fn a_flipped_bit_is_detected_however_the_stream_is_split() {
        let framing = framing(true, true);
        let good = pdu(framing, 7, b"hello");
        for (at, want) in
            [(20, Error::HeaderDigest), (50, Error::HeaderDigest), (54, Error::DataDigest), (63, Error::DataDigest)]
        {
            let mut bad = good.clone();
            bad[at] ^= 1;
            for step in [1, 10, bad.len()] {
                let (mut framer, mut seen) = (Framer::new(framing), Seen::default());
                let got = bad.chunks(step).try_for_each(|part| framer.feed(part, &mut seen));
                assert_eq!(got, Err(want.clone()), "bit of byte {at}, {step} bytes at a time");
            }
        }
    }

    #[test]
    fn a_segment_longer_than_declared_is_refused_at_its_header() {
        let mut header = DataIn::blank();
        header.data_len = U24::new(4097);
        let got = Framer::new(framing(false, false)).feed(header.as_bytes(), &mut Seen::default());
        assert!(matches!(got, Err(Error::Protocol(_))));
    }
}
