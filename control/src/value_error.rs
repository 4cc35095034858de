//! Why a text is no value of a type.

use std::fmt;
use std::net::IpAddr;

/// Why a text is no value of a type. The message follows the text: `'20GB' is not a size: write 20G`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueError {
    /// Not three octal digits.
    Permissions,
    /// Not a number of bytes.
    Size,
    /// A size with a unit that some programs take for a power of 1000: the number, and the letter to write.
    DecimalUnit {
        /// The number before the unit.
        number: String,
        /// The letter of the binary unit.
        letter: char,
    },
    /// Not a time span.
    Period,
    /// A path that does not begin with a slash.
    RelativePath,
    /// A path that is too long or has a zero byte.
    Path {
        /// The most bytes.
        most: usize,
    },
    /// Not one line of text, or too long.
    Line {
        /// The most bytes.
        most: usize,
    },
    /// Not printable ASCII of the width of its field.
    Ascii {
        /// The width of the field, in bytes.
        width: usize,
    },
    /// Not a UUID.
    Uuid,
    /// The UUID of which all bits are zero.
    NilUuid,
    /// Not an NAA identifier.
    Naa,
    /// An NAA identifier of another length than eight bytes.
    NaaFormat,
    /// Not a name of an initiator, target, host or subsystem, or not a pattern for such names.
    Name(NameError),
    /// Not an address, a network or a host.
    Address(AddressError),
    /// No value of a type that a front or a back end declares: its rule, in words that follow the text.
    Declared(&'static str),
}

/// Why a text is no name of an initiator, target, host or subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameError {
    /// Longer than the standard allows.
    TooLong {
        /// The kind of name.
        kind: NameKind,
        /// The most bytes.
        most: usize,
    },
    /// It does not begin as such a name does.
    Prefix(NameKind),
    /// After the prefix there is no month.
    Month(NameKind),
    /// After the month there is no reversed domain name.
    Domain(NameKind),
    /// It has this character.
    Character(NameKind, char),
    /// An iSCSI name with an upper-case letter.
    UpperCase,
    /// The digits after `eui.`
    Eui,
    /// The digits after `naa.`
    Naa,
    /// The NQN of all discovery services.
    Discovery,
    /// A pattern that is empty or too long.
    PatternLength {
        /// The most bytes.
        most: usize,
    },
    /// A pattern with this character.
    PatternCharacter(char),
}

/// The kinds of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// An iSCSI name.
    Iscsi,
    /// An NVMe Qualified Name.
    Nqn,
}

/// Why a text is no address, network or host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressError {
    /// Not an address.
    Address {
        /// The port in the examples of the message.
        port: u16,
    },
    /// Port 0 of an address to listen at.
    NoClientPort,
    /// Port 0 of a server.
    NoServerPort,
    /// Not a host.
    Host {
        /// The port in the examples of the message.
        port: u16,
    },
    /// Not a network.
    Network,
    /// The prefix of a network is longer than its address.
    Prefix {
        /// The bits of the address.
        width: u8,
    },
    /// Bits after the prefix of a network are not zero.
    HostBits {
        /// The first address of the network.
        first: IpAddr,
        /// The bits of the prefix.
        prefix: u8,
        /// The address that was given.
        address: IpAddr,
    },
}

impl From<NameError> for ValueError {
    fn from(why: NameError) -> Self {
        Self::Name(why)
    }
}

impl From<AddressError> for ValueError {
    fn from(why: AddressError) -> Self {
        Self::Address(why)
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permissions => f.write_str("are not permissions: write three octal digits, as 660"),
            Self::Size => f.write_str(
                "is not a size; a size is a number of bytes, or one with K, M, G, T or P (powers of 1024): 512M, 20G, \
                 1T",
            ),
            Self::DecimalUnit { number, letter } => {
                write!(f, "is not a size: write {number}{letter}, in powers of 1024 ({number} {letter}iB)")
            }
            Self::Period => {
                f.write_str("is not a time span; it is a whole number with us, ms, s, m, h or d: 15s, 250ms, 2h")
            }
            Self::RelativePath => {
                f.write_str("is not an absolute path: it begins with '/', because a service has no working directory")
            }
            Self::Path { most } => write!(f, "is not a path: at most {most} bytes, and no zero among them"),
            Self::Line { most } => write!(f, "is not a line of 1 to {most} bytes"),
            Self::Ascii { width } => {
                write!(f, "does not fit its field: 1 to {width} printable ASCII characters, no space at its ends")
            }
            Self::Uuid => f.write_str("is not a UUID, as f81d4fae-7dec-41d0-a765-00a0c91e6bf6 is one (RFC 9562 4)"),
            Self::NilUuid => f.write_str("is the nil UUID, which names nothing"),
            Self::Naa => f.write_str("is not an NAA identifier: it has 16 hexadecimal digits"),
            Self::NaaFormat => {
                f.write_str("is not an NAA identifier of eight bytes: its first digit is 2, 3 or 5 (SPC-6 7.7.6.6)")
            }
            Self::Name(why) => why.fmt(f),
            Self::Address(why) => why.fmt(f),
            Self::Declared(rule) => f.write_str(rule),
        }
    }
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iscsi => "an iSCSI name",
            Self::Nqn => "an NQN",
        })
    }
}

impl NameKind {
    /// The prefix of names with a month.
    fn prefix(self) -> &'static str {
        match self {
            Self::Iscsi => "iqn.",
            Self::Nqn => "nqn.",
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { kind, most } => write!(f, "is too long for {kind}: {most} bytes at most"),
            Self::Prefix(kind) => {
                let prefixes = match kind {
                    NameKind::Iscsi => "iqn., eui. or naa.",
                    NameKind::Nqn => "nqn.",
                };
                let prefix = kind.prefix();
                write!(f, "is not {kind}: it begins with {prefixes}, as {prefix}2026-01.org.example:disk")
            }
            Self::Month(kind) => {
                let prefix = kind.prefix();
                write!(
                    f,
                    "is not {kind}: after '{prefix}' there is a month in which you owned the domain, as in \
                     {prefix}2026-01.org.example:disk"
                )
            }
            Self::Domain(kind) => {
                write!(f, "is not {kind}: after the month there is a reversed domain name, as org.example")
            }
            Self::Character(kind, c) => {
                let allowed = match kind {
                    NameKind::Iscsi => "a-z, 0-9, '-', '.' and ':'",
                    NameKind::Nqn => "printable ASCII characters",
                };
                write!(f, "is not {kind}: it has no {c:?}, only {allowed}")
            }
            Self::UpperCase => f.write_str("is not an iSCSI name: its letters are lower case"),
            Self::Eui => {
                f.write_str("is not an iSCSI name: after 'eui.' there are 16 hexadecimal digits (RFC 7143 4.2.7.4)")
            }
            Self::Naa => f.write_str(
                "is not an iSCSI name: after 'naa.' there are 16 or 32 hexadecimal digits (RFC 7143 4.2.7.5)",
            ),
            Self::Discovery => f.write_str("is the name of every discovery service: choose another one"),
            Self::PatternLength { most } => write!(f, "is not a pattern for names: 1 to {most} bytes"),
            Self::PatternCharacter(c) => {
                write!(f, "is not a pattern for names: it has no {c:?}, only names with * and ?")
            }
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { port } => write!(
                f,
                "is not an address: 192.0.2.1, 192.0.2.1:{port}, ::1 or [::1]:{port} are (host names are not)"
            ),
            Self::NoClientPort => f.write_str("has port 0, to which no client can connect"),
            Self::NoServerPort => f.write_str("has port 0, at which no server listens"),
            Self::Host { port } => {
                write!(f, "is not a host: storage.example.org, storage.example.org:{port} and [::1]:{port} are")
            }
            Self::Network => f.write_str("is not a network: it is written as 10.0.0.0/24, 192.0.2.7 or fd00::/8"),
            Self::Prefix { width } => write!(f, "is not a network: the prefix is 0 to {width}"),
            Self::HostBits { first, prefix, address } => {
                write!(f, "is an address in a network: did you mean {first}/{prefix}, or {address} alone?")
            }
        }
    }
}

impl std::error::Error for ValueError {}
impl std::error::Error for NameError {}
impl std::error::Error for AddressError {}
