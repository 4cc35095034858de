//! The generations of LTO: density codes, capacities and names.

/// A generation of LTO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Generation {
    /// LTO-5.
    Lto5,
    /// LTO-6.
    Lto6,
    /// LTO-7.
    Lto7,
    /// LTO-8.
    Lto8,
    /// LTO-9.
    Lto9,
}

impl Generation {
    /// All generations.
    pub const ALL: [Self; 5] = [Self::Lto5, Self::Lto6, Self::Lto7, Self::Lto8, Self::Lto9];

    /// Its number, as in LTO-8.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Lto5 => 5,
            Self::Lto6 => 6,
            Self::Lto7 => 7,
            Self::Lto8 => 8,
            Self::Lto9 => 9,
        }
    }

    /// The generation with a number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|generation| generation.number() == number)
    }

    /// Density code of the medium.
    #[must_use]
    pub const fn density(self) -> u8 {
        match self {
            Self::Lto5 => 0x58,
            Self::Lto6 => 0x5a,
            Self::Lto7 => 0x5c,
            Self::Lto8 => 0x5e,
            Self::Lto9 => 0x60,
        }
    }

    /// MEDIUM TYPE of the mode parameter header.
    #[must_use]
    pub const fn medium_type(self, is_worm: bool) -> u8 {
        let data = 0x08 + self.number() * 0x10;
        if is_worm { data + 4 } else { data }
    }

    /// Bytes of a cartridge without compression.
    #[must_use]
    pub const fn capacity(self) -> u64 {
        const GB: u64 = 1_000_000_000;
        match self {
            Self::Lto5 => 1500 * GB,
            Self::Lto6 => 2500 * GB,
            Self::Lto7 => 6000 * GB,
            Self::Lto8 => 12_000 * GB,
            Self::Lto9 => 18_000 * GB,
        }
    }

    /// Whether a drive of this generation reads and writes cartridges of another one.
    #[must_use]
    pub fn accepts(self, medium: Self) -> bool {
        medium == self || medium.number() + 1 == self.number()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_drives() {
        assert_eq!((Generation::Lto8.density(), Generation::Lto8.medium_type(false)), (0x5e, 0x88));
        assert_eq!(Generation::Lto8.medium_type(true), 0x8c);
        assert!(Generation::Lto8.accepts(Generation::Lto7) && !Generation::Lto8.accepts(Generation::Lto6));
        assert!(!Generation::Lto7.accepts(Generation::Lto8));
        assert_eq!(Generation::of_number(4), None);
    }
}
