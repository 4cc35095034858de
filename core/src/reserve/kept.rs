//! Persistent reservations as bytes that outlive a restart (APTPL): registrants and reservation, nothing else.
//! PRGENERATION starts with zero again, and an SPC-2 reservation ends with the process (SPC-4 5.13.5).

use super::{Kind, REGISTRANTS_MAX, Reservation, Reservations};
use crate::keep::KEEP_BYTES_MAX;
use crate::port::NexusName;
use crate::wire::{Cursor, be};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the bytes begin with: it changes with the format.
const MAGIC: [u8; 8] = *b"LunarPR1";
/// The flag of the record whose nexus holds the reservation.
const HOLDER: u8 = 0x01;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// Type of the reservation; zero if there is none.
    kind: u8,
    reserved: u8,
    count: be::U16,
}

/// A registrant; its initiator port follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Record {
    key: be::U64,
    port: be::U16,
    flags: u8,
    length: u8,
}

const _: () = assert!(REGISTRANTS_MAX <= u16::MAX as usize);
const _: () = assert!(size_of::<Header>() + REGISTRANTS_MAX * (size_of::<Record>() + 255) <= KEEP_BYTES_MAX);

impl Reservations {
    /// The bytes to be kept; empty when nothing outlives a restart. `None` for a name of more than 255 bytes, which no
    /// transport has.
    #[must_use]
    pub fn to_kept(&self) -> Option<Vec<u8>> {
        if !self.outlives || self.registrants.is_empty() {
            return Some(Vec::new());
        }
        let kind = self.persistent.as_ref().map_or(0, |reservation| reservation.kind.0);
        let holder = self.persistent.as_ref().and_then(|reservation| reservation.holder.as_ref());
        let count = u16::try_from(self.registrants.len()).ok()?;
        let mut bytes = Header { magic: MAGIC, kind, reserved: 0, count: count.into() }.as_bytes().to_vec();
        for (name, key) in &self.registrants {
            let record = Record {
                key: (*key).into(),
                port: name.target_port.into(),
                flags: if holder == Some(name) { HOLDER } else { 0 },
                length: u8::try_from(name.initiator.len()).ok()?,
            };
            bytes.extend_from_slice(record.as_bytes());
            bytes.extend_from_slice(name.initiator.as_bytes());
        }
        Some(bytes)
    }

    /// What was kept. `None` when it is nothing that [`Reservations::to_kept`] makes.
    #[must_use]
    pub fn from_kept(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let mut cursor = Cursor::new(bytes);
        let header: &Header = cursor.take().ok()?;
        let count = usize::from(header.count.get());
        if header.magic != MAGIC || header.reserved != 0 || !(1..=REGISTRANTS_MAX).contains(&count) {
            return None;
        }
        let (mut registrants, mut holder) = (BTreeMap::new(), None);
        for _ in 0..count {
            let record: &Record = cursor.take().ok()?;
            let initiator = std::str::from_utf8(cursor.bytes(record.length.into()).ok()?).ok()?;
            let name = NexusName { initiator: initiator.into(), target_port: record.port.get() };
            let is_second = record.flags == HOLDER && holder.replace(name.clone()).is_some();
            if is_second || record.flags & !HOLDER != 0 || record.key.get() == 0 || initiator.is_empty() {
                return None;
            }
            if registrants.insert(name, record.key.get()).is_some() {
                return None;
            }
        }
        let kind = Kind(header.kind);
        let persistent = match (kind.name(), holder) {
            (None, None) if kind.0 == 0 => None,
            (Some(_), holder) if holder.is_none() == kind.is_held_by_all() => Some(Reservation { kind, holder }),
            _ => return None,
        };
        cursor.rest().is_empty().then_some(Self { outlives: true, registrants, persistent, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: &[u8] = b"LunarPR1\x05\0\0\x02\
        \0\0\0\0\0\0\0\x07\0\x01\0\x05a,i,1\
        \x01\x02\x03\x04\x05\x06\x07\x08\0\x02\x01\x05b,i,2";

    fn state() -> Reservations {
        let name = |initiator: &str, target_port| NexusName { initiator: initiator.into(), target_port };
        Reservations {
            outlives: true,
            registrants: [(name("a,i,1", 1), 7), (name("b,i,2", 2), 0x0102_0304_0506_0708)].into(),
            persistent: Some(Reservation {
                kind: Kind::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
                holder: Some(name("b,i,2", 2)),
            }),
            ..Reservations::default()
        }
    }

    #[test]
    fn golden() {
        assert_eq!(state().to_kept().as_deref(), Some(KEPT));
        assert_eq!(Reservations::from_kept(KEPT), Some(state()));
    }

    proptest::proptest! {
        #[test]
        fn any_change_is_told_or_means_what_it_says(at in 0..KEPT.len(), byte in proptest::num::u8::ANY) {
            let mut bytes = KEPT.to_vec();
            bytes[at] = byte;
            if let Some(state) = Reservations::from_kept(&bytes) {
                proptest::prop_assert_eq!(state.to_kept().and_then(|kept| Reservations::from_kept(&kept)), Some(state));
            }
        }
    }

    #[test]
    fn nothing_is_kept_without_aptpl_or_registrants() {
        assert_eq!(Reservations { outlives: false, ..state() }.to_kept(), Some(vec![]));
        assert_eq!(Reservations { registrants: BTreeMap::new(), ..state() }.to_kept(), Some(vec![]));
        assert_eq!(Reservations::from_kept(&[]), Some(Reservations::default()));
    }

    #[test]
    fn generation_and_spc2_do_not_outlive_a_restart() {
        let spc2 = state().registrants.into_keys().next();
        let lived = Reservations { generation: 9, spc2, ..state() };
        assert_eq!(lived.to_kept().and_then(|bytes| Reservations::from_kept(&bytes)), Some(state()));
    }

    #[test]
    fn anything_else_is_told_from_it() {
        for length in 1..KEPT.len() {
            assert_eq!(Reservations::from_kept(&KEPT[..length]), None, "{length} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = KEPT.to_vec();
            bytes[at] = byte;
            Reservations::from_kept(&bytes)
        };
        for (at, byte, what) in [
            (7, b'2', "another format"),
            (8, 2, "no type"),
            (8, 0, "a holder of nothing"),
            (8, 7, "a holder where all hold"),
            (9, 1, "reserved"),
            (11, 0, "no registrant"),
            (10, 0x20, "too many"),
            (19, 0, "a key of zero"),
            (22, 1, "two holders"),
            (22, 2, "an unknown flag"),
            (24, 0xff, "no text"),
        ] {
            assert_eq!(changed(at, byte), None, "{what}");
        }
        let mut long = KEPT.to_vec();
        long.push(0);
        assert_eq!(Reservations::from_kept(&long), None);
    }
}
