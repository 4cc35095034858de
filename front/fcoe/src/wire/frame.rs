//! Frames of a Fibre Channel (FC-FS), and their encapsulation in Ethernet frames (FC-BB, FCoE).

use super::names::PortId;
use crc::{CRC_32_ISO_HDLC, Crc, Table};
use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType of FCoE.
pub const ETHER_TYPE: u16 = 0x8906;
/// The most bytes of the payload of a frame.
pub const PAYLOAD_MAX: usize = 2112;
/// The fewest bytes that the payload of a frame may be limited to.
pub const PAYLOAD_MIN: usize = 256;
/// Bytes behind the Ethernet header before those of the Fibre Channel.
pub const SHIM_LEN: usize = 14;
/// Bytes of a frame's header.
pub const HEADER_LEN: usize = size_of::<Header>();
/// Bytes behind the payload: CRC, end of frame, three zeroes.
pub const TRAILER_LEN: usize = 8;

/// The CRC of a frame, over its header and payload with fill bytes. It is sent in the order of little-endian bytes.
static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

codes! {
    /// Delimiters at the start of a frame of class 3: of the first frame of a sequence, and of others.
    pub struct Sof(u8) { INITIATE = 0x2e, NORMAL = 0x36 }
}
codes! {
    /// Delimiters at the end of a frame: of the last frame of a sequence, and of others.
    pub struct Eof(u8) { NORMAL = 0x41, TERMINATE = 0x42 }
}
codes! {
    /// R_CTL: the category of a frame.
    pub struct Routing(u8) {
        DATA = 0x01, CT_REQUEST = 0x02, CT_REPLY = 0x03, DATA_DESCRIPTOR = 0x05, COMMAND = 0x06, COMMAND_STATUS = 0x07,
        ELS_REQUEST = 0x22, ELS_REPLY = 0x23, FC4_ELS_REQUEST = 0x32, FC4_ELS_REPLY = 0x33,
        ABTS = 0x81, BA_ACC = 0x84, BA_RJT = 0x85,
    }
}
codes! {
    /// TYPE: the protocol of a frame.
    pub struct Protocol(u8) { BASIC = 0x00, ELS = 0x01, FCP = 0x08, CT = 0x20 }
}

/// F_CTL: the state of the exchange and of the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(pub u32);

impl Control {
    /// The sender is the responder of the exchange.
    pub const RESPONDER: Self = Self(1 << 23);
    /// First sequence of the exchange.
    pub const FIRST: Self = Self(1 << 21);
    /// Last sequence of the exchange.
    pub const LAST: Self = Self(1 << 20);
    /// Last frame of the sequence.
    pub const END: Self = Self(1 << 19);
    /// The sender gives the sequence initiative to its peer.
    pub const INITIATIVE: Self = Self(1 << 16);
    /// The parameter is a relative offset.
    pub const OFFSET: Self = Self(1 << 3);
    /// The number of fill bytes at the end of the payload.
    const FILL: u32 = 3;

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// With so many fill bytes.
    #[must_use]
    pub const fn filled(self, bytes: usize) -> Self {
        Self(self.0 | bytes as u32 & Self::FILL)
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The number of fill bytes.
    #[must_use]
    pub const fn fill(self) -> usize {
        (self.0 & Self::FILL) as usize
    }

    /// Of the only sequence of a request, and of a command.
    pub const REQUEST: Self = Self::FIRST.and(Self::END).and(Self::INITIATIVE);
    /// Of an answer that ends its exchange.
    pub const REPLY: Self = Self::RESPONDER.and(Self::LAST).and(Self::END).and(Self::INITIATIVE);
}

/// An exchange identifier that is not assigned yet.
pub const UNASSIGNED: u16 = 0xffff;

/// The header of a frame (FC-FS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// R_CTL.
    pub routing: u8,
    /// D_ID.
    pub destination: [u8; 3],
    /// CS_CTL.
    pub class_control: u8,
    /// S_ID.
    pub source: [u8; 3],
    /// TYPE.
    pub protocol: u8,
    /// F_CTL.
    pub control: [u8; 3],
    /// SEQ_ID.
    pub sequence: u8,
    /// DF_CTL: no optional headers are supported.
    pub data_field_control: u8,
    /// SEQ_CNT.
    pub count: U16,
    /// OX_ID.
    pub ox_id: U16,
    /// RX_ID.
    pub rx_id: U16,
    /// Parameter: the relative offset of data.
    pub parameter: U32,
}

/// The fields that identify an exchange and its parties, as one of them sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// S_ID.
    pub source: PortId,
    /// D_ID.
    pub destination: PortId,
    /// OX_ID.
    pub ox_id: u16,
    /// RX_ID.
    pub rx_id: u16,
}

impl Header {
    /// A header of these fields, for the first frame of a sequence.
    #[must_use]
    pub fn new(routing: Routing, protocol: Protocol, control: Control, address: Address) -> Self {
        let [_, a, b, c] = control.0.to_be_bytes();
        Self {
            routing: routing.0,
            destination: address.destination.bytes(),
            class_control: 0,
            source: address.source.bytes(),
            protocol: protocol.0,
            control: [a, b, c],
            sequence: 0,
            data_field_control: 0,
            count: 0.into(),
            ox_id: address.ox_id.into(),
            rx_id: address.rx_id.into(),
            parameter: 0.into(),
        }
    }

    /// F_CTL.
    #[must_use]
    pub fn control(&self) -> Control {
        let [a, b, c] = self.control;
        Control(u32::from_be_bytes([0, a, b, c]))
    }

    /// Sets F_CTL.
    pub fn set_control(&mut self, control: Control) {
        let [_, a, b, c] = control.0.to_be_bytes();
        self.control = [a, b, c];
    }

    /// R_CTL.
    #[must_use]
    pub fn routing(&self) -> Routing {
        Routing(self.routing)
    }

    /// S_ID.
    #[must_use]
    pub fn source(&self) -> PortId {
        PortId::from_bytes(self.source)
    }

    /// D_ID.
    #[must_use]
    pub fn destination(&self) -> PortId {
        PortId::from_bytes(self.destination)
    }
}

/// A frame as it was received: its header, and its payload without fill bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received<'a> {
    /// The header.
    pub header: &'a Header,
    /// The payload.
    pub payload: &'a [u8],
    /// Whether it begins a sequence.
    pub is_first: bool,
    /// Whether it ends a sequence.
    pub is_last: bool,
}

/// Why a frame was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It has not all bytes of an encapsulated frame.
    Short,
    /// The version, a delimiter, or a field of the header is not supported.
    Unsupported,
    /// The CRC does not match.
    Crc,
}

impl<'a> Received<'a> {
    /// The frame in the payload of an Ethernet frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (shim, rest) = bytes.split_at_checked(SHIM_LEN).ok_or(Malformed::Short)?;
        let at = rest.len().checked_sub(TRAILER_LEN).ok_or(Malformed::Short)?;
        let (frame, trailer) = rest.split_at(at);
        let (header, payload) = Header::ref_from_prefix(frame).map_err(|_| Malformed::Short)?;
        let (sof, eof) = (Sof(shim[SHIM_LEN - 1]), Eof(trailer[4]));
        let is_known = matches!(sof, Sof::INITIATE | Sof::NORMAL) && matches!(eof, Eof::NORMAL | Eof::TERMINATE);
        if shim[0] >> 4 != 0 || !is_known || header.data_field_control != 0 || payload.len() > PAYLOAD_MAX {
            return Err(Malformed::Unsupported);
        }
        if trailer[..4] != CRC.checksum(frame).to_le_bytes() {
            return Err(Malformed::Crc);
        }
        let control = header.control();
        // Only the last frame of a sequence may have fill bytes.
        let fill = if control.has(Control::END) { control.fill() } else { 0 };
        let len = payload.len().checked_sub(fill).ok_or(Malformed::Short)?;
        Ok(Self { header, payload: &payload[..len], is_first: sof == Sof::INITIATE, is_last: eof == Eof::TERMINATE })
    }
}

/// The bytes behind the Ethernet header before the payload of a frame.
pub const FRONT_LEN: usize = SHIM_LEN + HEADER_LEN;
/// The most bytes behind the payload: fill bytes and the trailer.
pub const BACK_MAX: usize = 3 + TRAILER_LEN;

/// The number of fill bytes behind a payload of this length.
#[must_use]
pub const fn fill_of(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The parts of an encapsulated frame around its payload.
#[derive(Clone, Copy, Debug)]
pub struct Wrapping {
    /// The bytes before the payload.
    pub front: [u8; FRONT_LEN],
    back: [u8; BACK_MAX],
    back_len: usize,
}

impl Wrapping {
    /// The bytes behind the payload.
    #[must_use]
    pub fn back(&self) -> &[u8] {
        &self.back[..self.back_len]
    }
}

/// Wraps a payload, which lies in these pieces. The header says whether the frame is the first and the last one of its
/// sequence; its number of fill bytes is set here.
pub fn wrap<'a>(mut header: Header, payload: impl Iterator<Item = &'a [u8]> + Clone) -> Wrapping {
    let fill = fill_of(payload.clone().map(<[u8]>::len).sum());
    let control = header.control().filled(fill);
    header.set_control(control);
    let sof = if header.count.get() == 0 { Sof::INITIATE } else { Sof::NORMAL };
    let eof = if control.has(Control::END) { Eof::TERMINATE } else { Eof::NORMAL };
    let mut front = [0; FRONT_LEN];
    front[SHIM_LEN - 1] = sof.0;
    front[SHIM_LEN..].copy_from_slice(header.as_bytes());
    let mut digest = CRC.digest();
    digest.update(header.as_bytes());
    payload.for_each(|piece| digest.update(piece));
    digest.update(&[0; 3][..fill]);
    let mut back = [0; BACK_MAX];
    back[fill..fill + 4].copy_from_slice(&digest.finalize().to_le_bytes());
    back[fill + 4] = eof.0;
    Wrapping { front, back, back_len: fill + TRAILER_LEN }
}

/// The bytes behind the Ethernet header of a frame with a payload in one piece.
#[must_use]
pub fn encapsulated(header: Header, payload: &[u8]) -> Vec<u8> {
    let wrapping = wrap(header, std::iter::once(payload));
    [&wrapping.front[..], payload, wrapping.back()].concat()
}

/// A digest of a payload.
#[must_use]
pub fn digest_of(payload: &[u8]) -> u32 {
    CRC.checksum(payload)
}

/// The most bytes of the payload of a frame on a link whose frames carry this number of bytes behind the Ethernet
/// header.
#[must_use]
pub fn payload_of(mtu: usize) -> usize {
    // The largest multiple of four that fits, as Linux computes it.
    let frame = mtu.saturating_sub(SHIM_LEN + TRAILER_LEN) & !3;
    frame.saturating_sub(HEADER_LEN).min(PAYLOAD_MAX)
}

/// The size of the largest FCoE frame, as claims announce it.
#[must_use]
pub fn fcoe_size_of(payload: usize) -> u16 {
    // A payload has at most `PAYLOAD_MAX` bytes.
    (payload + FRONT_LEN + TRAILER_LEN) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::golden;
    use proptest::prelude::*;

    #[test]
    fn recorded_frames_are_taken_apart_and_built() {
        for bytes in golden::FRAMES.iter().map(|text| golden::frame(text)) {
            let frame = Received::parse(&bytes[14..]).expect("a frame of Linux");
            let built = encapsulated(*frame.header, frame.payload);
            assert_eq!(built, bytes[14..], "{frame:x?}");
        }
    }

    #[test]
    fn fields_of_a_recorded_frame() {
        let bytes = golden::frame(golden::COMMAND);
        let frame = Received::parse(&bytes[14..]).expect("right");
        assert_eq!((frame.header.routing(), frame.header.protocol), (Routing::COMMAND, Protocol::FCP.0));
        assert_eq!((frame.header.control(), frame.header.rx_id.get()), (Control::REQUEST, UNASSIGNED));
        assert_eq!(format!("{:?}>{:?}", frame.header.source(), frame.header.destination()), "003402>003401");
        assert!(frame.is_first && frame.is_last);
        assert_eq!((Control::REPLY.0, frame.payload.len()), (0x99_0000, 32));
    }

    #[test]
    fn damaged_frames_are_refused() {
        let good = &golden::frame(golden::COMMAND)[14..];
        for at in 0..good.len() {
            let mut bytes = good.to_vec();
            bytes[at] ^= 0x10;
            let is_padding = (1..SHIM_LEN - 1).contains(&at) || at >= good.len() - 3;
            assert_eq!(Received::parse(&bytes).is_ok(), is_padding, "byte {at}");
        }
        for len in 0..good.len() {
            assert!(Received::parse(&good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn sizes_are_those_of_linux() {
        assert_eq!([1500, 2158, 2500, 9000].map(payload_of), [1452, 2112, 2112, 2112]);
        assert_eq!([1452, 2112].map(fcoe_size_of), [1498, 2158]);
        assert_eq!(payload_of(0), 0);
    }

    proptest! {
        #[test]
        fn payloads_come_back(payload in prop::collection::vec(any::<u8>(), 0..300), cut in 0..300usize) {
            let port = |number| PortId::of_neighbour(number).expect("valid");
            let address = Address { source: port(1), destination: port(2), ox_id: 3, rx_id: 4 };
            let header = Header::new(Routing::DATA, Protocol::FCP, Control::RESPONDER.and(Control::END), address);
            let (one, other) = payload.split_at(cut.min(payload.len()));
            let wrapping = wrap(header, [one, other].into_iter());
            let bytes = [&wrapping.front[..], one, other, wrapping.back()].concat();
            let frame = Received::parse(&bytes).expect("built here");
            prop_assert_eq!(frame.payload, &payload[..]);
            prop_assert!(frame.is_first && frame.is_last && bytes.len() % 4 == 2);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Received::parse(&bytes);
        }
    }
}
