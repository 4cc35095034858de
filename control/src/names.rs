//! Names and addresses, as their standards spell them.

use crate::value::{AddressError, NameError, NameKind, Textual, ValueError};
pub use lunar_core::access::{Network, Pattern};
pub use lunar_core::ascii::Ascii;
use std::net::{IpAddr, SocketAddr};

/// An iSCSI name of a node (RFC 7143 4.2.7), in the form that stringprep leaves it: small letters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IscsiName(String);

/// Bytes of an iSCSI name at most (RFC 7143 4.2.7.1).
pub const ISCSI_NAME_BYTES_MAX: usize = 223;

impl IscsiName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Textual for IscsiName {
    const WHAT: &'static str = "an iSCSI name (RFC 7143 4.2.7): `\"iqn.2026-01.org.example:disk\"`";
    const PATTERN: Option<&'static str> = Some(
        "^(iqn\\.[0-9]{4}-[0-9]{2}\\.[a-z0-9.-]+(:[a-z0-9.:-]*)?|eui\\.[0-9A-Fa-f]{16}|naa\\.([0-9A-Fa-f]{16}){1,2})$",
    );

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.len() > ISCSI_NAME_BYTES_MAX {
            return Err(NameError::TooLong { kind: NameKind::Iscsi, most: ISCSI_NAME_BYTES_MAX }.into());
        }
        let (kind, rest) = text.split_once('.').unwrap_or((text, ""));
        let is_hex = |digits: &[usize]| digits.contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_hexdigit());
        match kind {
            "iqn" => Ok(qualified(rest).map(|()| Self(text.to_owned()))?),
            "eui" if is_hex(&[16]) => Ok(Self(text.to_owned())),
            "eui" => Err(NameError::Eui.into()),
            "naa" if is_hex(&[16, 32]) => Ok(Self(text.to_owned())),
            "naa" => Err(NameError::Naa.into()),
            _ => Err(NameError::Prefix(NameKind::Iscsi).into()),
        }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// The part after `iqn.` (RFC 7143 4.2.7.3): a month, a reversed domain name, and an optional part after a colon.
fn qualified(rest: &str) -> Result<(), NameError> {
    let (_, name) = rest.split_at_checked(8).unwrap_or((rest, ""));
    if !has_month(rest) {
        return Err(NameError::Month(NameKind::Iscsi));
    }
    let domain = name.split(':').next().unwrap_or_default();
    if domain.is_empty() || domain.split('.').any(str::is_empty) {
        return Err(NameError::Domain(NameKind::Iscsi));
    }
    match name.chars().find(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit() && !"-.:".contains(*c)) {
        Some(c) if c.is_ascii_uppercase() => Err(NameError::UpperCase),
        Some(c) => Err(NameError::Character(NameKind::Iscsi, c)),
        None => Ok(()),
    }
}

/// An NVMe Qualified Name (NVMe Base 2.0 4.5), of a subsystem or of a host. Names are compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nqn(String);

/// Bytes of an NQN at most (NVMe Base 2.0 4.5).
pub const NQN_BYTES_MAX: usize = 223;
/// The NQN of all discovery services, which no subsystem may have.
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

impl Nqn {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Textual for Nqn {
    const WHAT: &'static str = "an NVMe Qualified Name (NVMe Base 2.0 4.5): `\"nqn.2026-01.org.example:disk\"`";
    const PATTERN: Option<&'static str> = Some("^nqn\\.[0-9]{4}-[0-9]{2}\\.[!-~]+$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NameError::TooLong { kind: NameKind::Nqn, most: NQN_BYTES_MAX }.into());
        }
        if text == DISCOVERY_NQN {
            return Err(NameError::Discovery.into());
        }
        let rest = text.strip_prefix("nqn.").ok_or(NameError::Prefix(NameKind::Nqn))?;
        if !has_month(rest) {
            return Err(NameError::Month(NameKind::Nqn).into());
        }
        let domain = rest[8..].split(':').next().unwrap_or_default();
        if domain.is_empty() || domain.split('.').any(str::is_empty) {
            return Err(NameError::Domain(NameKind::Nqn).into());
        }
        match text.chars().find(|c| !c.is_ascii_graphic()) {
            Some(c) => Err(NameError::Character(NameKind::Nqn, c).into()),
            None => Ok(Self(text.to_owned())),
        }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// Whether a text begins with a month and a full stop: `2026-01.`
fn has_month(text: &str) -> bool {
    let Some((date, _)) = text.split_at_checked(8) else { return false };
    let digits = |range: std::ops::Range<usize>| date.as_bytes()[range].iter().all(u8::is_ascii_digit);
    let month = || date.get(5..7).and_then(|month| month.parse::<u8>().ok());
    let plain = digits(0..4) && digits(5..7) && &date[4..5] == "-" && date.ends_with('.');
    plain && month().is_some_and(|month| (1..=12).contains(&month))
}

impl Textual for Pattern {
    const WHAT: &'static str = "the name of an initiator or of an NVMe host, with `*` and `?` for what is left open: \
         `\"iqn.1998-01.com.vmware:*\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() || text.len() > ISCSI_NAME_BYTES_MAX {
            return Err(NameError::PatternLength { most: ISCSI_NAME_BYTES_MAX }.into());
        }
        match text.chars().find(|c| c.is_whitespace() || c.is_control() || "[]{}|\\".contains(*c)) {
            Some(c) => Err(NameError::PatternCharacter(c).into()),
            None => Ok(Self::new(text)),
        }
    }

    fn text(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Textual for Network {
    const WHAT: &'static str = "an address, or a network with its prefix: `\"10.0.0.0/24\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| AddressError::Network)?;
        let width = width(address);
        let network = match prefix.map(str::parse::<u8>) {
            None => Self::new(address, width),
            Some(Ok(prefix)) => Self::new(address, prefix),
            Some(Err(_)) => None,
        };
        let network = network.ok_or(AddressError::Prefix { width })?;
        // All bits after the prefix must be zero: otherwise the address or the prefix is a mistake.
        if network.first() != address {
            let (first, prefix) = (network.first(), network.bits());
            return Err(AddressError::HostBits { first, prefix, address }.into());
        }
        Ok(network)
    }

    fn text(&self) -> String {
        let first = self.first();
        if width(first) == self.bits() { first.to_string() } else { format!("{first}/{}", self.bits()) }
    }
}

/// Bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An address with a port, which is `PORT` where none is given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address<const PORT: u16>(pub SocketAddr);

impl<const PORT: u16> Address<PORT> {
    /// An address whose port may be 0: a listener with any free port.
    ///
    /// # Errors
    /// If the text is not an address.
    pub fn of_any_port(text: &str) -> Result<Self, AddressError> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let found = text.parse::<SocketAddr>().or_else(|_| bare.parse::<IpAddr>().map(|ip| (ip, PORT).into()));
        found.map(Self).map_err(|_| AddressError::Address { port: PORT })
    }
}

impl<const PORT: u16> Textual for Address<PORT> {
    const WHAT: &'static str = "an address with or without a port: `\"192.0.2.1\"`, `\"[2001:db8::1]:3260\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let found = Self::of_any_port(text)?.0;
        if found.port() == 0 { Err(AddressError::NoClientPort.into()) } else { Ok(Self(found)) }
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// An address whose port may be missing: then it is the default port of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpenAddress {
    ip: IpAddr,
    port: Option<u16>,
}

impl OpenAddress {
    /// The address, with this port where none is given.
    #[must_use]
    pub fn or(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

/// The port in the examples of errors about [`OpenAddress`]: that of iSCSI.
const EXAMPLE_PORT: u16 = 3260;

impl Textual for OpenAddress {
    const WHAT: &'static str = "an address with or without a port: `\"192.0.2.1\"`, `\"[2001:db8::1]:3260\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse() {
            return Ok(Self { ip, port: None });
        }
        match text.parse::<SocketAddr>() {
            Ok(at) => Ok(Self { ip: at.ip(), port: Some(at.port()) }),
            Err(_) => Err(AddressError::Address { port: EXAMPLE_PORT }.into()),
        }
    }

    fn text(&self) -> String {
        self.port.map_or_else(|| self.ip.to_string(), |port| SocketAddr::new(self.ip, port).to_string())
    }
}

/// A host by its name or its address, with a port, which is `PORT` where none is given.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Host<const PORT: u16> {
    name: String,
    port: u16,
}

/// Bytes of a host's name at most (RFC 1123 2.1).
const HOST_BYTES_MAX: usize = 253;

impl<const PORT: u16> Host<PORT> {
    /// Its name, or its address without brackets.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn of(ip: IpAddr, port: u16) -> Self {
        Self { name: ip.to_string(), port }
    }
}

impl<const PORT: u16> Textual for Host<PORT> {
    const WHAT: &'static str = "a host, by its name or its address, and a port: `\"storage.example.org:3205\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let no_port = AddressError::NoServerPort;
        if let Ok(ip) = bare.parse() {
            return Ok(Self::of(ip, PORT));
        }
        if let Ok(at) = text.parse::<SocketAddr>() {
            return if at.port() == 0 { Err(no_port.into()) } else { Ok(Self::of(at.ip(), at.port())) };
        }
        let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
        let wrong = AddressError::Host { port: PORT };
        let port = port.map_or(Ok(PORT), str::parse::<u16>).map_err(|_| wrong.clone())?;
        let is_label = |label: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && label.bytes().all(plain)
        };
        let labels = name.strip_suffix('.').unwrap_or(name);
        // A name that ends with a number is a misspelled address (RFC 3696 2).
        let is_number = labels.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if name.len() > HOST_BYTES_MAX || is_number || !labels.split('.').all(is_label) {
            return Err(wrong.into());
        }
        if port == 0 { Err(no_port.into()) } else { Ok(Self { name: name.to_owned(), port }) }
    }

    fn text(&self) -> String {
        let Self { name, port } = self;
        let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
        if *port == PORT { name } else { format!("{name}:{port}") }
    }
}

/// A UUID (RFC 9562 4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Sixteen bytes with a version below 16 and the variant put into them (RFC 9562 4.1, 4.2).
    #[must_use]
    pub fn of_version(version: u8, mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | version << 4;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// A UUID of version 4 (RFC 9562 5.4) from sixteen random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::of_version(4, bytes)
    }
}

impl Textual for Uuid {
    const WHAT: &'static str = "a UUID: `\"f81d4fae-7dec-41d0-a765-00a0c91e6bf6\"`";
    const PATTERN: Option<&'static str> = Some("^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        let digits = text.replace('-', "");
        let plain = groups == [8, 4, 4, 4, 12] && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| plain);
        let number = number.ok_or(ValueError::Uuid)?;
        if number == 0 { Err(ValueError::NilUuid) } else { Ok(Self(number.to_be_bytes())) }
    }

    fn text(&self) -> String {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }
}

/// An NAA identifier of eight bytes (SPC-6 7.7.6.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Naa(pub [u8; 8]);

impl Textual for Naa {
    const WHAT: &'static str =
        "an NAA identifier of 16 hexadecimal digits, the first of them 2, 3 or 5: `\"3a765000c91e6bf6\"`";
    const PATTERN: Option<&'static str> = Some("^[235][0-9A-Fa-f]{15}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        let plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| plain);
        let number = number.ok_or(ValueError::Naa)?;
        match number >> 60 {
            2 | 3 | 5 => Ok(Self(number.to_be_bytes())),
            _ => Err(ValueError::NaaFormat),
        }
    }

    fn text(&self) -> String {
        format!("{:016x}", u64::from_be_bytes(self.0))
    }
}

impl<const WIDTH: usize> Textual for Ascii<WIDTH> {
    const WHAT: &'static str = "printable ASCII characters, as many as the field of INQUIRY data has";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let plain = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        // Spaces at the ends would be lost among those that pad the field.
        if text.is_empty() || text.len() > WIDTH || !plain || text.trim() != text {
            return Err(ValueError::Ascii { width: WIDTH });
        }
        Ok(Self::cut(text))
    }

    fn text(&self) -> String {
        self.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn iscsi_names_by_rfc_7143() {
        for good in [
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "iqn.2026-01.io.lunar:a-b.c:d",
            "eui.02004567a425678d",
            "naa.52004567BA64678D",
            "naa.62004567ba64678d0123456789abcdef",
        ] {
            assert_eq!(IscsiName::parse(good).map(|name| name.text()).as_deref(), Ok(good));
        }
        let (month, domain) = (NameError::Month(NameKind::Iscsi), NameError::Domain(NameKind::Iscsi));
        let long = format!("iqn.2026-01.{}", "a".repeat(220));
        for (bad, why) in [
            ("disk", NameError::Prefix(NameKind::Iscsi)),
            ("", NameError::Prefix(NameKind::Iscsi)),
            ("iqn.", month.clone()),
            ("iqn.2026-13.org.example", month.clone()),
            ("iqn.2026-00.org.example", month.clone()),
            ("iqn.26-01.org.example", month.clone()),
            ("iqn.2026-01", month.clone()),
            ("iqn.2026-01.", domain.clone()),
            ("iqn.2026-01.:x", domain.clone()),
            ("iqn.2026-01.org..example", domain),
            ("iqn.2026-01.io.lunar:Disk", NameError::UpperCase),
            ("iqn.2026-01.io.lunar:my disk", NameError::Character(NameKind::Iscsi, ' ')),
            ("iqn.2026-01.io.lunar:my_disk", NameError::Character(NameKind::Iscsi, '_')),
            ("iqn.2026-0ü.io", month),
            ("eui.02004567a425678", NameError::Eui),
            ("naa.0200", NameError::Naa),
            (&long, NameError::TooLong { kind: NameKind::Iscsi, most: 223 }),
        ] {
            assert_eq!(IscsiName::parse(bad), Err(why.into()), "{bad}");
        }
        assert_eq!(
            NameError::Prefix(NameKind::Iscsi).to_string(),
            "is not an iSCSI name: it begins with iqn., eui. or naa., as iqn.2026-01.org.example:disk"
        );
    }

    #[test]
    fn hosts_by_name_or_address() {
        type Own = Host<3205>;
        for (text, name, port, shown) in [
            ("storage.example.org", "storage.example.org", 3205, "storage.example.org"),
            ("storage:99", "storage", 99, "storage:99"),
            ("storage.:3205", "storage.", 3205, "storage."),
            ("192.0.2.1", "192.0.2.1", 3205, "192.0.2.1"),
            ("192.0.2.1:1", "192.0.2.1", 1, "192.0.2.1:1"),
            ("::1", "::1", 3205, "[::1]"),
            ("[::1]", "::1", 3205, "[::1]"),
            ("[::1]:7", "::1", 7, "[::1]:7"),
            ("1a", "1a", 3205, "1a"),
        ] {
            let host = Own::parse(text).unwrap_or_else(|why| panic!("{text} {why}"));
            assert_eq!((host.name(), host.port(), host.text().as_str()), (name, port, shown));
            assert_eq!(Own::parse(shown).as_ref(), Ok(&host));
        }
        let long = format!("{}.{}", "a".repeat(63), "b.".repeat(100));
        for bad in
            ["", ":1", "a:", "a:x", "a:65536", "a..b", "-a", "a b", "192.0.2", "300.1.1.1", "a:1:2", "a/b", &long]
        {
            assert_eq!(Own::parse(bad), Err(AddressError::Host { port: 3205 }.into()), "{bad}");
        }
        for bad in ["a:0", "192.0.2.1:0", "[::1]:0"] {
            assert_eq!(Own::parse(bad), Err(AddressError::NoServerPort.into()), "{bad}");
        }
    }

    #[test]
    fn names_of_nvme() {
        for good in [
            "nqn.2026-01.org.example:disk",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6bf6",
            "nqn.2026-01.org.example:My_Disk",
        ] {
            assert_eq!(Nqn::parse(good).map(|name| name.text()).as_deref(), Ok(good));
        }
        let kind = NameKind::Nqn;
        let long = format!("nqn.2026-01.{}", "a".repeat(220));
        for (bad, why) in [
            ("disk", NameError::Prefix(kind)),
            ("iqn.2026-01.org.example", NameError::Prefix(kind)),
            ("nqn.", NameError::Month(kind)),
            ("nqn.2026-13.org.example", NameError::Month(kind)),
            ("nqn.2026-01.", NameError::Domain(kind)),
            ("nqn.2026-01.:x", NameError::Domain(kind)),
            ("nqn.2026-01.org.example:my disk", NameError::Character(kind, ' ')),
            (DISCOVERY_NQN, NameError::Discovery),
            (&long, NameError::TooLong { kind, most: 223 }),
        ] {
            assert_eq!(Nqn::parse(bad), Err(why.into()), "{bad}");
        }
        assert_eq!(
            NameError::Month(kind).to_string(),
            "is not an NQN: after 'nqn.' there is a month in which you owned the domain, as in \
             nqn.2026-01.org.example:disk"
        );
    }

    #[test]
    fn patterns_match_with_wildcards() {
        let matches = |pattern: &str, name: &str| Pattern::parse(pattern).expect(pattern).fits(name);
        for (pattern, name) in [
            ("*", ""),
            ("*", "anything"),
            ("iqn.1998-01.com.vmware:*", "iqn.1998-01.com.vmware:esx1-0a"),
            ("IQN.*", "iqn.x"),
            ("iqn.*", "IQN.X"),
            ("a?c", "abc"),
            ("*a*b*", "xxaxxbxx"),
            ("a*a*a", "aaa"),
            ("***", "x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a?c", "ac"), ("a", "ab"), ("*b", "ba"), ("a*a", "a"), ("?", ""), ("a*b?", "ab")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        // Stars that a careless matcher would try in all combinations.
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
        for bad in ["", &"a".repeat(224)] {
            assert_eq!(Pattern::parse(bad), Err(NameError::PatternLength { most: 223 }.into()), "{bad}");
        }
        for (bad, c) in [("a b", ' '), ("[a-z]*", '['), ("a\\*", '\\')] {
            assert_eq!(Pattern::parse(bad), Err(NameError::PatternCharacter(c).into()), "{bad}");
        }
    }

    #[test]
    fn the_more_a_pattern_settles_the_more_it_weighs() {
        let weights: Vec<usize> = ["*", "iqn.*", "iqn.1998-01.com.vmware:*", "a"]
            .map(|text| Pattern::parse(text).expect(text).weight())
            .to_vec();
        assert!(weights.is_sorted(), "{weights:?}");
    }

    #[test]
    fn networks() {
        let contains = |network: &str, address: &str| {
            Network::parse(network).expect(network).contains(address.parse().expect(address))
        };
        for (network, address) in [
            ("10.0.0.0/24", "10.0.0.255"),
            ("0.0.0.0/0", "203.0.113.1"),
            ("192.0.2.7", "192.0.2.7"),
            ("fd00::/8", "fdff::1"),
            ("::/0", "::1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3"),
        ] {
            assert!(contains(network, address), "{network} {address}");
        }
        for (network, address) in [("10.0.0.0/24", "10.0.1.0"), ("0.0.0.0/0", "::1"), ("::/0", "10.0.0.1")] {
            assert!(!contains(network, address), "{network} {address}");
        }
        let address = |text: &str| text.parse::<IpAddr>().expect(text);
        let host_bits = AddressError::HostBits { first: address("10.0.0.0"), prefix: 24, address: address("10.0.0.1") };
        assert_eq!(host_bits.to_string(), "is an address in a network: did you mean 10.0.0.0/24, or 10.0.0.1 alone?");
        for (bad, why) in [
            ("10.0.0.1/24", host_bits),
            ("10.0.0.0/33", AddressError::Prefix { width: 32 }),
            ("10.0.0/8", AddressError::Network),
        ] {
            assert_eq!(Network::parse(bad), Err(why.into()), "{bad}");
        }
    }

    #[test]
    fn addresses_in_every_spelling() {
        let shown = |text| Address::<3260>::parse(text).map(|address| address.text()).ok();
        assert_eq!(shown("192.0.2.1").as_deref(), Some("192.0.2.1:3260"));
        assert_eq!(shown("192.0.2.1:99").as_deref(), Some("192.0.2.1:99"));
        assert_eq!(shown("::1").as_deref(), Some("[::1]:3260"));
        assert_eq!(shown("[::1]").as_deref(), Some("[::1]:3260"));
        assert_eq!(shown("[::1]:5").as_deref(), Some("[::1]:5"));
        let open = |text| OpenAddress::parse(text).map(|address| (address.text(), address.or(4420).to_string())).ok();
        for (text, full) in [
            ("192.0.2.1", "192.0.2.1:4420"),
            ("192.0.2.1:99", "192.0.2.1:99"),
            ("::1", "[::1]:4420"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(open(text), Some((text.to_owned(), full.to_owned())));
        }
        for bad in ["localhost", "192.0.2.1:", ":3260", ""] {
            assert_eq!((shown(bad), open(bad)), (None, None), "{bad}");
        }
        // The check of the whole configuration refuses it: there it is known whether any port will do.
        let any = "192.0.2.1:0";
        assert_eq!((shown(any), open(any).map(|(_, full)| full).as_deref()), (None, Some(any)));
    }

    #[test]
    fn identifiers() {
        let uuid = Uuid::from_random([0xff; 16]);
        assert_eq!(uuid.text(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(Uuid::parse(&uuid.text()), Ok(uuid));
        for bad in ["", "ffffffffffff4fffbfffffffffffffff", "ffffffff-ffff-4fff-bfff-fffffffffff+", &"-".repeat(36)] {
            assert_eq!(Uuid::parse(bad), Err(ValueError::Uuid), "{bad}");
        }
        assert_eq!(Naa::parse("3a765000c91e6bf6").map(|naa| naa.text()).as_deref(), Ok("3a765000c91e6bf6"));
        assert_eq!(Uuid::parse("00000000-0000-0000-0000-000000000000"), Err(ValueError::NilUuid));
        for bad in ["", "3a765000c91e6bf", "+a765000c91e6bf6"] {
            assert_eq!(Naa::parse(bad), Err(ValueError::Naa), "{bad}");
        }
        assert_eq!(Naa::parse("6a765000c91e6bf6"), Err(ValueError::NaaFormat));
        assert!(Ascii::<8>::parse("LUNAR").is_ok());
        for bad in ["", "too long for it", " x", "é"] {
            assert_eq!(Ascii::<8>::parse(bad), Err(ValueError::Ascii { width: 8 }), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            let _ = (Nqn::parse(&text), OpenAddress::parse(&text));
            let _ = (IscsiName::parse(&text), Network::parse(&text), Address::<1>::parse(&text), Uuid::parse(&text));
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert!(pattern.fits(&text.replace('*', "").replace('?', "x")));
            }
        }
    }
}
