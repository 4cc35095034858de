//! TransportIDs (SPC-4 7.6.4): initiator ports as PERSISTENT RESERVE names them.
//!
//! Of the protocols of the standard, iSCSI, the Fibre Channel Protocol and SRP are implemented here. An iSCSI port is
//! named by its own spelling, `name,i,0x<ISID>`, as text; a port of a Fibre Channel by its N_Port_Name in binary, of
//! which the spelling is `20:00:52:54:00:12:34:02`; a port of SRP by its identifier in binary, of which the spelling is
//! `0x0000000000000000505400fffe123402`. Registered hosts of another command set are reported as text, with no
//! specific protocol.

use lunar_core::wire::{Cursor, Writer, be, round_up};
use lunar_unit::reserve::{BLOCK_PREFIX, HOST_PREFIX};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// FORMAT CODE 01b: an initiator port. 00b names an initiator device, whose ports the target cannot enumerate.
const PORT_FORMAT: u8 = 0x40;
/// PROTOCOL IDENTIFIER.
const PROTOCOL: u8 = 0x0f;
/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 0x05;
/// PROTOCOL IDENTIFIER of a host of another command set.
const NO_PROTOCOL: u8 = 0x0f;
/// Smallest ADDITIONAL LENGTH (SPC-4 7.6.4.6).
const ADDITIONAL_MIN: usize = 20;
/// Longest iSCSI name (RFC 7143 4.2.7.2).
const NAME_BYTES_MAX: usize = 223;
/// Separates an iSCSI name and the ISID.
const SEPARATOR: &str = ",i,0x";
/// Hexadecimal digits of an ISID.
const ISID_DIGITS: usize = 12;

/// FORMAT CODE 00b and PROTOCOL IDENTIFIER of the Fibre Channel Protocol.
const FCP: u8 = 0x00;

/// The TransportID of a port of a Fibre Channel (SPC-4 7.6.4.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FcpPort {
    format: u8,
    reserved: [u8; 7],
    /// N_PORT_NAME.
    name: [u8; 8],
    reserved2: [u8; 8],
}

impl FcpPort {
    /// The port of this spelling.
    fn of(initiator: &str) -> Option<Self> {
        let mut name = [0; 8];
        let mut parts = initiator.split(':');
        for byte in &mut name {
            let part = parts.next().filter(|part| part.len() == 2)?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        let port = Self { format: FCP, reserved: [0; 7], name, reserved2: [0; 8] };
        (parts.next().is_none() && port.spelling() == initiator).then_some(port)
    }

    fn spelling(&self) -> String {
        self.name.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// FORMAT CODE 00b and PROTOCOL IDENTIFIER of SRP.
const SRP: u8 = 0x04;
/// The spelling of a port of SRP: this, and the digits of its identifier.
const SRP_PREFIX: &str = "0x";
const SRP_DIGITS: usize = 32;

/// The TransportID of a port of SRP (SPC-4 7.6.4.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SrpPort {
    format: u8,
    reserved: [u8; 7],
    /// INITIATOR PORT IDENTIFIER.
    identifier: be::U128,
}

impl SrpPort {
    /// The port of this spelling.
    fn of(initiator: &str) -> Option<Self> {
        let digits = initiator.strip_prefix(SRP_PREFIX).filter(|digits| digits.len() == SRP_DIGITS)?;
        let identifier = u128::from_str_radix(digits, 16).ok()?.into();
        let port = Self { format: SRP, reserved: [0; 7], identifier };
        (port.spelling() == initiator).then_some(port)
    }

    fn spelling(&self) -> String {
        format!("{SRP_PREFIX}{:0SRP_DIGITS$x}", self.identifier.get())
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    format: u8,
    reserved: u8,
    additional: be::U16,
}

/// Bytes of the TransportID of an initiator port.
#[must_use]
pub fn length(initiator: &str) -> usize {
    if FcpPort::of(initiator).is_some() {
        return size_of::<FcpPort>();
    }
    if SrpPort::of(initiator).is_some() {
        return size_of::<SrpPort>();
    }
    size_of::<Header>() + additional(initiator)
}

/// The text ends with a zero.
fn additional(initiator: &str) -> usize {
    round_up(initiator.len() + 1, 4).max(ADDITIONAL_MIN)
}

/// Writes the TransportID of an initiator port.
pub fn write(initiator: &str, out: &mut Writer<'_>) {
    if let Some(port) = FcpPort::of(initiator) {
        out.put(&port);
        return;
    }
    if let Some(port) = SrpPort::of(initiator) {
        out.put(&port);
        return;
    }
    let additional = additional(initiator);
    // Names have at most 255 bytes.
    let is_foreign = [HOST_PREFIX, BLOCK_PREFIX].iter().any(|prefix| initiator.starts_with(prefix));
    let protocol = if is_foreign { NO_PROTOCOL } else { ISCSI };
    out.put(&Header { format: PORT_FORMAT | protocol, reserved: 0, additional: (additional as u16).into() });
    out.bytes(initiator.as_bytes()).zeros(additional - initiator.len());
}

/// The initiator port of the TransportID at the front, and the bytes behind it. `None` for an initiator port that
/// cannot exist at this device.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Arc<str>, &[u8])> {
    let mut cursor = Cursor::new(bytes);
    if bytes.first() == Some(&FCP) {
        let port: &FcpPort = cursor.take().ok()?;
        let is_plain = port.reserved == [0; 7] && port.reserved2 == [0; 8];
        return is_plain.then(|| (port.spelling().into(), cursor.rest()));
    }
    if bytes.first() == Some(&SRP) {
        let port: &SrpPort = cursor.take().ok()?;
        return (port.reserved == [0; 7]).then(|| (port.spelling().into(), cursor.rest()));
    }
    let header: &Header = cursor.take().ok()?;
    let additional = usize::from(header.additional.get());
    if header.format & !PROTOCOL != PORT_FORMAT || header.format & PROTOCOL != ISCSI {
        return None;
    }
    if additional < ADDITIONAL_MIN || !additional.is_multiple_of(4) {
        return None;
    }
    let text = cursor.bytes(additional).ok()?;
    let end = text.iter().position(|byte| *byte == 0)?;
    let (text, padding) = text.split_at(end);
    if padding.iter().any(|byte| *byte != 0) {
        return None;
    }
    Some((port(std::str::from_utf8(text).ok()?)?, cursor.rest()))
}

/// An initiator port in the spelling that names nexuses: lower case, and all digits of the ISID.
fn port(text: &str) -> Option<Arc<str>> {
    let lower = text.to_lowercase();
    let (name, isid) = lower.split_once(SEPARATOR)?;
    let plain = !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',');
    let digits = (1..=ISID_DIGITS).contains(&isid.len()) && isid.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !plain || !digits || name.len() > NAME_BYTES_MAX {
        return None;
    }
    Some(format!("{name}{SEPARATOR}{isid:0>ISID_DIGITS$}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "iqn.a:b,i,0x00023d000001";
    const GOLDEN: &[u8] = b"\x45\0\0\x1ciqn.a:b,i,0x00023d000001\0\0\0\0";

    #[test]
    fn golden() {
        let mut out = [0xa5; 40];
        let mut writer = Writer::new(&mut out);
        write(NAME, &mut writer);
        assert_eq!(writer.written(), length(NAME));
        assert_eq!(out[..GOLDEN.len()], *GOLDEN);
        assert_eq!(parse(GOLDEN), Some((NAME.into(), &[][..])));
    }

    #[test]
    fn ports_of_a_fibre_channel_are_named_in_binary() {
        const NAME: &str = "20:00:52:54:00:12:34:0a";
        const GOLDEN: &[u8] = b"\0\0\0\0\0\0\0\0\x20\0\x52\x54\0\x12\x34\x0a\0\0\0\0\0\0\0\0";
        let mut out = [0xa5; 40];
        let mut writer = Writer::new(&mut out);
        write(NAME, &mut writer);
        assert_eq!((writer.written(), length(NAME)), (24, 24));
        assert_eq!(out[..24], *GOLDEN);
        assert_eq!(parse(&[GOLDEN, &[7]].concat()), Some((NAME.into(), &[7][..])));
        for at in [1, 16, 23] {
            let mut bytes = GOLDEN.to_vec();
            bytes[at] = 1;
            assert_eq!(parse(&bytes), None, "byte {at} is reserved");
        }
        assert_eq!(parse(&GOLDEN[..23]), None);
        for other in ["20:00:52:54:00:12:34", "20:00:52:54:00:12:34:0A", "20:00:52:54:00:12:34:0a:00"] {
            assert!(FcpPort::of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn ports_of_srp_are_named_in_binary() {
        const NAME: &str = "0x0000000000000001505400fffe12340a";
        const GOLDEN: &[u8] = b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x50\x54\0\xff\xfe\x12\x34\x0a";
        let mut out = [0xa5; 40];
        let mut writer = Writer::new(&mut out);
        write(NAME, &mut writer);
        assert_eq!((writer.written(), length(NAME)), (24, 24));
        assert_eq!(out[..24], *GOLDEN);
        assert_eq!(parse(&[GOLDEN, &[7]].concat()), Some((NAME.into(), &[7][..])));
        let mut reserved = GOLDEN.to_vec();
        reserved[7] = 1;
        assert_eq!((parse(&reserved), parse(&GOLDEN[..23])), (None, None));
        for other in ["0x1", "0x0000000000000001505400fffe12340A", "0x+000000000000001505400fffe12340a"] {
            assert!(SrpPort::of(other).is_none(), "{other}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            if let Some((initiator, _)) = parse(&bytes) {
                let mut out = [0; 300];
                let mut writer = Writer::new(&mut out);
                write(&initiator, &mut writer);
                let written = writer.written();
                proptest::prop_assert_eq!(parse(&out[..written]), Some((initiator, &[][..])));
            }
        }
    }

    #[test]
    fn hosts_of_other_command_sets_are_notified_and_not_named() {
        let mut out = [0xa5; 40];
        let mut writer = Writer::new(&mut out);
        write("nvme,0123", &mut writer);
        let written = writer.written();
        assert_eq!((out[0], written), (0x4f, length("nvme,0123")));
        assert_eq!(parse(&out[..written]), None);
    }

    #[test]
    fn one_follows_another() {
        let two = [GOLDEN, GOLDEN].concat();
        let (_, rest) = parse(&two).expect("the first");
        assert_eq!(rest, GOLDEN);
    }

    #[test]
    fn spellings_of_one_port_are_one() {
        for spelling in ["IQN.A:b,i,0x00023D000001", "iqn.a:b,I,0X23d000001"] {
            assert_eq!(port(spelling).as_deref(), Some(NAME));
        }
    }

    #[test]
    fn a_short_name_fills_twenty_bytes() {
        assert_eq!(length("a,i,0x0"), 24);
    }

    #[test]
    fn other_transport_ids_are_refused() {
        let padded = |head: [u8; 4], text: &str| {
            let mut bytes = head.to_vec();
            bytes.extend(text.as_bytes());
            bytes.resize(32, 0);
            bytes
        };
        let cases = [
            (padded([0x05, 0, 0, 28], "iqn.a:b"), "a device"),
            (padded([0x46, 0, 0, 28], NAME), "SAS"),
            (padded([0x45, 0, 0, 16], "a,i,0x000000000"), "too short"),
            (padded([0x45, 0, 0, 27], NAME), "no multiple of four"),
            (padded([0x45, 0, 0, 32], NAME), "more than the list has"),
            (padded([0x45, 0, 0, 24], NAME), "no end of the text"),
            (padded([0x45, 0, 0, 28], "iqn.a:b"), "no ISID"),
            (padded([0x45, 0, 0, 28], ",i,0x00023d000001"), "no name"),
            (padded([0x45, 0, 0, 28], "a b,i,0x00023d000001"), "a space"),
            (padded([0x45, 0, 0, 28], "a,i,0x00023d0000010"), "too many digits"),
            (padded([0x45, 0, 0, 28], "a,i,0x0\0x"), "bytes behind the end"),
            (b"\x45\0\0".to_vec(), "less than a header"),
        ];
        for (bytes, what) in cases {
            assert_eq!(parse(&bytes), None, "{what}");
        }
    }
}
