//! Bytes on the wire: protocol codes as newtypes, a cursor for received bytes, a bounded writer for sent bytes.
//!
//! Formats are `#[repr(C)]` structs of these big-endian ([`be`]) or little-endian ([`le`]) fields that derive
//! zerocopy's traits; an unknown code is a value that can be printed, and never causes a panic.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
pub use zerocopy::{big_endian as be, little_endian as le};

/// Declares a protocol code: a newtype over an integer, its constants, and how they print.
///
/// ```text
/// codes! {
///     /// SAM-6 5.3.1
///     pub struct Status(u8) { GOOD = 0x00, CHECK_CONDITION = 0x02 }
/// }
/// ```
#[macro_export]
macro_rules! codes {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($int:ty) {
        $($(#[$cmeta:meta])* $code:ident = $value:expr),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        $vis struct $name(pub $int);
        #[allow(missing_docs, dead_code)]
        impl $name {
            $($(#[$cmeta])* pub const $code: Self = Self($value);)*
            /// Every code with a name, in the order of its declaration.
            pub const KNOWN: &'static [(Self, &'static str)] = &[$((Self::$code, stringify!($code))),*];
            /// The name of the code, if it has one.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                Self::KNOWN.iter().find(|(code, _)| *code == self).map(|(_, name)| *name)
            }
        }
        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "(0x{:02x})"), self.0),
                }
            }
        }
    };
}

/// Fewer bytes than a format needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short;

/// Reads formats from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `T`, in place.
    pub fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(&mut self) -> Result<&'a T, Short> {
        let (value, rest) = T::ref_from_prefix(self.0).map_err(|_| Short)?;
        self.0 = rest;
        Ok(value)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (value, rest) = self.0.split_at_checked(len).ok_or(Short)?;
        self.0 = rest;
        Ok(value)
    }

    /// The bytes that have not been read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Writes a response once: keeps the bytes within the limit (an allocation length) and counts the rest.
///
/// Lengths inside the response describe the whole, as SPC-6 4.2.5.6 requires, even if it is truncated.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// A writer that keeps at most `out.len()` bytes.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    /// Appends bytes; those past the limit are counted and dropped.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let start = self.at.min(self.out.len());
        let room = (self.out.len() - start).min(bytes.len());
        self.out[start..start + room].copy_from_slice(&bytes[..room]);
        self.at += bytes.len();
        self
    }

    /// Appends a format.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// Appends `count` zero bytes.
    pub fn zeros(&mut self, count: usize) -> &mut Self {
        let start = self.at.min(self.out.len());
        let room = (self.out.len() - start).min(count);
        self.out[start..start + room].fill(0);
        self.at += count;
        self
    }

    /// Overwrites bytes that were already written (a length that is known only at the end).
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        let start = at.min(self.out.len());
        let room = (self.out.len() - start).min(bytes.len());
        self.out[start..start + room].copy_from_slice(&bytes[..room]);
    }

    /// Bytes written so far, including the truncated ones.
    #[must_use]
    pub fn written(&self) -> usize {
        self.at
    }

    /// Bytes kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.at.min(self.out.len())
    }
}

/// Rounds up to a multiple of `to`, a power of two.
#[must_use]
pub const fn round_up(value: usize, to: usize) -> usize {
    (value + to - 1) & !(to - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unreachable_pub, reason = "declared in the same way as by other modules")]
    mod declared {
        crate::codes! {
            /// SAM-6 5.3.1
            pub struct Status(u8) { GOOD = 0x00, CHECK_CONDITION = 0x02 }
        }
    }

    #[test]
    fn a_code_prints_its_name_or_its_number() {
        use declared::Status;
        assert_eq!(format!("{:?} {:?}", Status::GOOD, Status(0x77)), "GOOD Status(0x77)");
    }

    #[test]
    fn cursor_takes_formats_and_stops_short() {
        let mut cursor = Cursor::new(&[0, 1, 2, 3, 4]);
        assert_eq!(cursor.take::<be::U16>().map(|v| v.get()), Ok(1));
        assert_eq!(cursor.bytes(2), Ok(&[2, 3][..]));
        assert_eq!(cursor.take::<be::U16>(), Err(Short));
        assert_eq!(cursor.rest(), &[4]);
    }

    #[test]
    fn writer_cuts_and_counts() {
        let mut out = [0xa5; 6];
        let mut writer = Writer::new(&mut out);
        writer.put(&be::U32::new(0)).bytes(b"abc").zeros(4);
        assert_eq!((writer.written(), writer.kept()), (11, 6));
        let total = u32::try_from(writer.written() - 4).expect("small");
        writer.patch(0, &total.to_be_bytes());
        assert_eq!(out, [0, 0, 0, 7, b'a', b'b']);
    }

    #[test]
    fn writer_of_nothing_counts() {
        let mut writer = Writer::new(&mut []);
        writer.bytes(b"abc").zeros(2).patch(1, b"x");
        assert_eq!((writer.written(), writer.kept()), (5, 0));
    }

    #[test]
    fn rounding() {
        assert_eq!((round_up(0, 4), round_up(1, 4), round_up(4, 4)), (0, 4, 4));
    }
}
