//! Protection information (SBC-5 4.21): eight bytes for each block, in a protection store.
//!
//! The protection store has them with all bits inverted: bytes that were never written or were unmapped read as zeroes
//! there, and stand for the all-ones value of the standard, which means that the block is not checked.

use crate::io::Store;
use crate::wire::be;
use crc::{CRC_16_T10_DIF, Crc, Table};
use std::cell::Cell;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one block's protection information.
pub const INFO_BYTES: usize = 8;

/// SBC-5 4.21.4: the polynomial of the guard, processed sixteen bytes at a time.
const GUARD: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_T10_DIF);

/// How blocks are protected (SBC-5 4.21.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Type 0: no protection.
    #[default]
    None,
    /// Type 1: the reference tag is the block's address.
    One,
    /// Type 2: the reference tag counts from a value in the command.
    Two,
    /// Type 3: the reference tag belongs to the initiators.
    Three,
}

impl Kind {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::One, Self::Two, Self::Three];

    /// The type with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The protection information of one block (SBC-5 4.21.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Info {
    /// LOGICAL BLOCK GUARD.
    pub guard: be::U16,
    /// LOGICAL BLOCK APPLICATION TAG.
    pub application: be::U16,
    /// LOGICAL BLOCK REFERENCE TAG.
    pub reference: be::U32,
}

const _: () = assert!(size_of::<Info>() == INFO_BYTES);

/// The application tag that disables the check of its block.
const UNCHECKED: u16 = u16::MAX;

impl Info {
    /// The value of a block without protection information: all ones.
    pub const BLANK: Self =
        Self { guard: be::U16::MAX_VALUE, application: be::U16::MAX_VALUE, reference: be::U32::MAX_VALUE };

    /// Converts to and from the inverted form of the protection store.
    #[must_use]
    pub fn inverted(self) -> Self {
        Self {
            guard: (!self.guard.get()).into(),
            application: (!self.application.get()).into(),
            reference: (!self.reference.get()).into(),
        }
    }

    /// Whether the information disables the check of its block (SBC-5 4.21.3).
    fn says_unchecked(self, kind: Kind) -> bool {
        let is_open = self.application.get() == UNCHECKED;
        is_open && (kind != Kind::Three || self.reference.get() == u32::MAX)
    }
}

/// The guard of a block: the CRC of its bytes.
#[must_use]
pub fn guard(block: &[u8]) -> u16 {
    GUARD.checksum(block)
}

/// Which fields are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checks {
    /// LOGICAL BLOCK GUARD.
    pub guard: bool,
    /// LOGICAL BLOCK APPLICATION TAG, in the bits of [`Terms::mask`].
    pub application: bool,
    /// LOGICAL BLOCK REFERENCE TAG, if its expected value is known.
    pub reference: bool,
}

impl Checks {
    /// None.
    pub const NONE: Self = Self { guard: false, application: false, reference: false };
    /// All.
    pub const ALL: Self = Self { guard: true, application: true, reference: true };
}

/// The field that failed a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// LOGICAL BLOCK GUARD.
    Guard,
    /// LOGICAL BLOCK APPLICATION TAG.
    Application,
    /// LOGICAL BLOCK REFERENCE TAG.
    Reference,
}

/// The standard whose rules apply to tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// SBC-5 4.21: application tags belong to the initiators if ATO is set; otherwise Lunar generates them and does
    /// not check them. Information from the initiator is always checked, even if it says that it is not to be checked.
    Scsi,
    /// NVM Command Set 1.0 5.2: the command states all tags. Information that disables its check is not checked, from
    /// the host or from the medium.
    Nvme,
}

/// The parameters of a command for protection information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The standard whose rules apply.
    pub rules: Rules,
    /// Whether the information travels with the data, behind each block.
    pub carried: bool,
    /// The fields that are checked in the data of the initiator.
    pub sent: Checks,
    /// The fields that are checked in the data of the medium.
    pub kept: Checks,
    /// The fields that a compare operation compares.
    pub compared: Checks,
    /// The reference tag of the first block, for [`Kind::Two`], and by the rules of NVMe that of all blocks for
    /// [`Kind::Three`]; `None`: it is not known.
    pub first: Option<u32>,
    /// The application tag.
    pub application: u16,
    /// The bits of the application tag that are checked.
    pub mask: u16,
}

impl Terms {
    /// The parameters of a command without any: no information travels, and every known field is checked.
    pub const PLAIN: Self = Self {
        rules: Rules::Scsi,
        carried: false,
        sent: Checks::NONE,
        kept: Checks::ALL,
        compared: Checks::NONE,
        first: None,
        application: 0,
        mask: 0,
    };

    /// The length on the wire of this number of bytes of blocks.
    #[must_use]
    pub fn wire(&self, bytes: u64, block: u32) -> u64 {
        if self.carried { bytes + bytes / u64::from(block) * INFO_BYTES as u64 } else { bytes }
    }
}

/// One block and its position.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its address.
    pub lba: u64,
    /// The number of blocks of the command before it.
    pub index: u64,
}

/// The protection information of a unit and its use, from the view of one core.
pub struct Protection {
    /// [`INFO_BYTES`] for each block, inverted.
    pub store: Box<dyn Store>,
    kind: Cell<Kind>,
    is_owned: Cell<bool>,
}

impl Protection {
    /// Protection information in this store.
    #[must_use]
    pub fn new(store: Box<dyn Store>, kind: Kind) -> Self {
        Self { store, kind: Cell::new(kind), is_owned: Cell::new(false) }
    }

    /// How blocks are protected.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind.get()
    }

    /// Changes the type of protection. No command may be in progress, and the protection store must be blank.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.set(kind);
    }

    /// Sets whether application tags belong to the initiators (ATO).
    pub fn set_owned(&self, is_owned: bool) {
        self.is_owned.set(is_owned);
    }

    /// The information of a block that came without any (SBC-5 5.40): if initiators own the application tags, it
    /// disables the check of the tag. NVMe hosts state its tags.
    #[must_use]
    pub fn made(&self, block: &[u8], place: Place, terms: &Terms) -> Info {
        let reference = match (self.kind(), terms.first) {
            (Kind::One, _) => place.lba as u32,
            (Kind::Two, Some(first)) => first.wrapping_add(place.index as u32),
            (Kind::Three, Some(first)) if terms.rules == Rules::Nvme => first,
            _ => u32::MAX,
        };
        let application = match terms.rules {
            Rules::Nvme => terms.application,
            Rules::Scsi if self.is_owned.get() => UNCHECKED,
            Rules::Scsi => 0,
        };
        Info { guard: guard(block).into(), application: application.into(), reference: reference.into() }
    }

    /// The first field of the information from the initiator that fails its check.
    #[must_use]
    pub fn check_sent(&self, block: &[u8], info: Info, place: Place, terms: &Terms) -> Option<Field> {
        if terms.rules == Rules::Nvme && info.says_unchecked(self.kind()) {
            return None;
        }
        self.check(block, info, place, terms, terms.sent)
    }

    /// The first field of the information on the medium that fails its check, unless the information disables the
    /// check.
    #[must_use]
    pub fn check_kept(&self, block: &[u8], info: Info, place: Place, terms: &Terms) -> Option<Field> {
        if terms.kept == Checks::NONE || info.says_unchecked(self.kind()) {
            return None;
        }
        self.check(block, info, place, terms, terms.kept)
    }

    fn check(&self, block: &[u8], info: Info, place: Place, terms: &Terms, checks: Checks) -> Option<Field> {
        if checks.guard && info.guard.get() != guard(block) {
            return Some(Field::Guard);
        }
        let tag = info.application.get() ^ terms.application;
        let is_owned = self.is_owned.get() || terms.rules == Rules::Nvme;
        if checks.application && is_owned && tag & terms.mask != 0 {
            return Some(Field::Application);
        }
        let expected = match self.kind() {
            Kind::One => Some(place.lba as u32),
            Kind::Two => terms.first.map(|first| first.wrapping_add(place.index as u32)),
            Kind::None | Kind::Three => None,
        };
        let differs = expected.is_some_and(|tag| tag != info.reference.get());
        (checks.reference && differs).then_some(Field::Reference)
    }

    /// The first field that differs, of the fields that are compared.
    #[must_use]
    pub fn compare(&self, sent: Info, kept: Info, terms: &Terms) -> Option<Field> {
        let Checks { guard, application, reference } = terms.compared;
        if guard && sent.guard != kept.guard {
            return Some(Field::Guard);
        }
        if application && self.is_owned.get() && sent.application != kept.application {
            return Some(Field::Application);
        }
        // The owner of the application tags is the owner of the reference tags of type 3.
        let counts = self.kind() != Kind::Three || self.is_owned.get();
        (reference && counts && sent.reference != kept.reference).then_some(Field::Reference)
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protection({:?})", self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Done, Io, Traits};

    struct Nowhere;

    impl Store for Nowhere {
        fn traits(&self) -> &Traits {
            unreachable!("nobody asks")
        }
        fn submit(&self, _io: Io, _done: Done) {}
    }

    fn info(guard: u16, application: u16, reference: u32) -> Info {
        Info { guard: guard.into(), application: application.into(), reference: reference.into() }
    }

    const PLACE: Place = Place { lba: 0x1_0000_0007, index: 2 };

    /// SBC-5 4.21.4, table of test cases.
    #[test]
    fn guards_are_those_of_the_standard() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).map(|at| 0xff - at).collect();
        let cases: [(&[u8], u16); 4] = [(&[0; 32], 0), (&[0xff; 32], 0xa293), (&rising, 0x0224), (&falling, 0xa0b7)];
        for (bytes, expected) in cases {
            assert_eq!(guard(bytes), expected, "{bytes:02x?}");
        }
        assert_eq!(guard(b"123456789"), 0xd0db);
    }

    #[test]
    fn blocks_that_were_never_written_are_blank() {
        assert_eq!(info(0, 0, 0).inverted(), Info::BLANK);
        assert_eq!(info(1, 2, 3).inverted().inverted(), info(1, 2, 3));
    }

    #[test]
    fn a_block_without_information_gets_that_of_its_type() {
        let block = [7; 512];
        let crc = guard(&block);
        let two = Terms { first: Some(u32::MAX), ..Terms::PLAIN };
        let cases = [(Kind::One, Terms::PLAIN, 7), (Kind::Two, Terms::PLAIN, u32::MAX), (Kind::Two, two, 1)];
        for (kind, terms, reference) in cases.into_iter().chain([(Kind::Three, Terms::PLAIN, u32::MAX)]) {
            let protection = Protection::new(Box::new(Nowhere), kind);
            assert_eq!(protection.made(&block, PLACE, &terms), info(crc, 0, reference), "{kind:?}");
            let made = protection.made(&block, PLACE, &terms);
            assert_eq!(protection.check_kept(&block, made, PLACE, &terms), None, "{kind:?}");
            protection.set_owned(true);
            assert_eq!(protection.made(&block, PLACE, &terms), info(crc, 0xffff, reference), "{kind:?}");
        }
    }

    #[test]
    fn each_field_is_checked_where_it_is_known() {
        let block = [7; 512];
        let crc = guard(&block);
        let asked = Terms { sent: Checks::ALL, first: Some(5), application: 0x1200, mask: 0xff00, ..Terms::PLAIN };
        for (kind, reference) in [(Kind::One, 7), (Kind::Two, 7), (Kind::Three, 99)] {
            let protection = Protection::new(Box::new(Nowhere), kind);
            protection.set_owned(true);
            let check = |info| protection.check_kept(&block, info, PLACE, &asked);
            assert_eq!(check(info(crc, 0x1234, reference)), None, "{kind:?}");
            assert_eq!(check(info(crc ^ 1, 0x1334, reference + 1)), Some(Field::Guard), "{kind:?}");
            assert_eq!(check(info(crc, 0x1334, reference + 1)), Some(Field::Application), "{kind:?}");
            let wrong = if kind == Kind::Three { None } else { Some(Field::Reference) };
            assert_eq!(check(info(crc, 0x1234, reference + 1)), wrong, "{kind:?}");
            // The rules of data from the medium, not of data from the initiator.
            let open = info(crc ^ 1, 0xffff, if kind == Kind::Three { u32::MAX } else { 0 });
            assert_eq!(check(open), None, "{kind:?}");
            assert_eq!(protection.check_sent(&block, open, PLACE, &asked), Some(Field::Guard), "{kind:?}");
            protection.set_owned(false);
            assert_eq!(check(info(crc, 0x1334, reference)), None, "{kind:?}: no initiator owns it");
        }
        let three = Protection::new(Box::new(Nowhere), Kind::Three);
        assert_eq!(three.check_kept(&block, info(1, 0xffff, 0), PLACE, &asked), Some(Field::Guard));
        let unknown = Protection::new(Box::new(Nowhere), Kind::Two);
        assert_eq!(unknown.check_kept(&block, info(crc, 0, 1), PLACE, &Terms::PLAIN), None);
    }
}
