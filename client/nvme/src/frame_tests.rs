use super::*;
use lunar_nvme_tcp::wire::{C2hData, Pdu};
use proptest::prelude::*;
use zerocopy::IntoBytes;

#[derive(Default, PartialEq, Debug)]
struct Seen {
    open: Vec<u8>,
    pdus: Vec<(u16, Vec<u8>)>,
}

impl Sink for Seen {
    fn data(&mut self, _: &[u8], at: usize, _: usize, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(at, self.open.len());
        self.open.extend_from_slice(bytes);
        Ok(())
    }
    fn end(&mut self, header: &[u8], _: &mut Framing) -> Result<(), Error> {
        let pdu = C2hData::of(header).expect("24 bytes");
        self.pdus.push((pdu.cid.get(), std::mem::take(&mut self.open)));
        Ok(())
    }
}

fn framer(digests: u8) -> Framer {
    let framing = Framing { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0 };
    Framer { framing, ..Framer::default() }
}

/// A PDU with data that begins `pad` bytes after the header.
fn pdu(digests: u8, cid: u16, data: &[u8], pad: usize) -> Vec<u8> {
    let mut header = C2hData { cid: cid.into(), ..C2hData::blank(0) };
    let head = 24 + if digests & 1 != 0 { 4 } else { 0 };
    let start = if data.is_empty() { head } else { head + pad };
    let trailer = if digests & 2 != 0 && !data.is_empty() { 4 } else { 0 };
    header.common.data_offset = if data.is_empty() { 0 } else { start as u8 };
    header.common.len = ((start + data.len() + trailer) as u32).into();
    header.common.flags = digests & 1 | if trailer > 0 { 2 } else { 0 };
    let mut bytes = header.as_bytes().to_vec();
    if digests & 1 != 0 {
        bytes.extend(digest(header.as_bytes()));
    }
    bytes.resize(start, 0);
    bytes.extend_from_slice(data);
    if trailer > 0 {
        bytes.extend(digest(data));
    }
    bytes
}

proptest! {
    #[test]
    fn pdus_are_found_however_the_stream_is_split(
        lens in prop::collection::vec(0usize..300, 1..12), cuts in prop::collection::vec(1usize..200, 1..50),
        digests in 0u8..4, pad in 0usize..8,
    ) {
        let want: Vec<_> = lens.iter().zip(0..).map(|(len, cid)| (cid, vec![cid as u8 ^ 0x5a; *len])).collect();
        let stream: Vec<u8> = want.iter().flat_map(|(cid, data)| pdu(digests, *cid, data, pad * 4)).collect();
        let (mut framer, mut seen) = (framer(digests), Seen::default());
        let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (part, next) = rest.split_at((*cuts.next().expect("cycle")).min(rest.len()));
            prop_assert_eq!(framer.feed(part, &mut seen), Ok(()));
            rest = next;
        }
        prop_assert_eq!(seen.pdus, want);
    }

    #[test]
    fn any_bytes_are_accepted_or_refused(bytes: Vec<u8>, digests in 0u8..4) {
        let _ = framer(digests).feed(&bytes, &mut Seen::default());
    }
}

#[test]
fn a_flipped_bit_is_detected_however_the_stream_is_split() {
    let good = pdu(3, 7, b"hello", 0);
    for (at, want) in
        [(20, Error::HeaderDigest), (26, Error::HeaderDigest), (30, Error::DataDigest), (35, Error::DataDigest)]
    {
        let mut bad = good.clone();
        bad[at] ^= 1;
        for step in [1, 10, bad.len()] {
            let (mut framer, mut seen) = (framer(3), Seen::default());
            let got = bad.chunks(step).try_for_each(|part| framer.feed(part, &mut seen));
            assert_eq!(got, Err(want.clone()), "bit of byte {at}, {step} bytes at a time");
        }
    }
}

#[test]
fn headers_with_inconsistent_lengths_are_refused() {
    let good = pdu(0, 7, b"hello", 0);
    let refused = |bytes: &[u8]| matches!(framer(0).feed(bytes, &mut Seen::default()), Err(Error::Protocol(_)));
    for (at, byte) in [(0, 4), (0, 8), (2, 72), (3, 23), (3, 29), (4, 23), (4, 0)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert!(refused(&bad), "byte {at} is {byte}");
    }
    let mut answer = pdu(0, 7, b"hello", 0);
    answer[0] = 5;
    assert!(refused(&answer), "a response with data");
    let framer = &mut framer(1);
    assert!(framer.feed(&good, &mut Seen::default()).is_err(), "without the negotiated digest");
}
