//! Logical unit numbers (SAM-6 4.7). Lunar uses one level of the eight bytes.

use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of LUNs of a target: flat space addressing has 14 bits.
pub const LUNS_MAX: u16 = 1 << 14;

/// A logical unit number in its format of eight bytes (SAM-6 4.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct Lun(pub [u8; 8]);

impl Lun {
    /// The well-known logical unit REPORT LUNS (SPC-6 8.2).
    pub const REPORT_LUNS: Self = Self([0xc1, 0x01, 0, 0, 0, 0, 0, 0]);

    /// The LUN of a number in the addressing method that initiators expect: peripheral device addressing below 256,
    /// else flat space addressing.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let method = if number < 256 { 0 } else { 0x40 };
        Self([method | high & 0x3f, low, 0, 0, 0, 0, 0, 0])
    }

    /// The number of peripheral device addressing on bus 0 or of flat space addressing; `None` for other methods.
    #[must_use]
    pub fn number(self) -> Option<u16> {
        let [first, second, rest @ ..] = self.0;
        let number = u16::from_be_bytes([first & 0x3f, second]);
        let known = match first >> 6 {
            0 => first == 0,
            1 => true,
            _ => false,
        };
        (known && rest == [0; 6]).then_some(number)
    }

    /// The same LUN in the addressing method of [`Lun::from_number`].
    #[must_use]
    pub fn canonical(self) -> Self {
        self.number().map_or(self, Self::from_number)
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "Lun({number})"),
            None => write!(f, "Lun({:016x})", u64::from_be_bytes(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_256_use_peripheral_addressing_and_others_flat_space() {
        assert_eq!(Lun::from_number(0).0, [0; 8]);
        assert_eq!(Lun::from_number(255).0, [0, 0xff, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::from_number(256).0, [0x41, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::from_number(16383).0, [0x7f, 0xff, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_number_is_parsed_back() {
        for number in 0..LUNS_MAX {
            assert_eq!(Lun::from_number(number).number(), Some(number));
        }
        assert_eq!(Lun([0x40, 5, 0, 0, 0, 0, 0, 0]).number(), Some(5));
    }

    #[test]
    fn other_addressing_methods_have_no_number() {
        for bytes in [[0, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0x80, 0, 0, 0, 0, 0, 0, 0], [0xff; 8]] {
            assert_eq!(Lun(bytes).number(), None);
        }
        assert_eq!(Lun::REPORT_LUNS.number(), None);
    }
}
