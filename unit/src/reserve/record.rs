//! The metadata record of persistent reservations: registrants and reservation, if they persist through power loss
//! (APTPL, PTPL). PRGENERATION starts with zero again, and an SPC-2 reservation ends with the process (SPC-4 5.13.5).

use super::{REGISTRANTS_MAX, Reservation, ReservationType, Reservations};
use lunar_core::metadata::METADATA_BYTES_MAX;
use lunar_core::port::NexusName;
use lunar_core::wire::{Cursor, be};
use std::collections::BTreeMap;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Name of the metadata record.
pub const RESERVATIONS: &str = "reservations";

/// The record is damaged, or was written by a later version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedReservations;

impl fmt::Display for MalformedReservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the stored reservations are damaged, or were stored by a later version")
    }
}

impl std::error::Error for MalformedReservations {}

/// First bytes of the record; they change with the format.
const MAGIC: [u8; 8] = *b"LunarPR1";
/// Flag of the registrant that holds the reservation.
const HOLDER: u8 = 0x01;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// Type of the reservation; zero without a reservation.
    kind: u8,
    reserved: u8,
    count: be::U16,
}

/// A registrant; the name of its initiator port follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Registrant {
    key: be::U64,
    port: be::U16,
    flags: u8,
    length: u8,
}

const _: () = assert!(REGISTRANTS_MAX <= u16::MAX as usize);
const _: () = assert!(size_of::<Header>() + REGISTRANTS_MAX * (size_of::<Registrant>() + 255) <= METADATA_BYTES_MAX);

impl Reservations {
    /// The record; empty if nothing persists. `None` if a name has more than 255 bytes, which no transport allows.
    #[must_use]
    pub fn to_record(&self) -> Option<Vec<u8>> {
        if !self.ptpl || self.registrants.is_empty() {
            return Some(Vec::new());
        }
        let kind = self.persistent.as_ref().map_or(0, |reservation| reservation.kind.0);
        let holder = self.persistent.as_ref().and_then(|reservation| reservation.holder.as_ref());
        let count = u16::try_from(self.registrants.len()).ok()?;
        let mut bytes = Header { magic: MAGIC, kind, reserved: 0, count: count.into() }.as_bytes().to_vec();
        for (name, key) in &self.registrants {
            let registrant = Registrant {
                key: (*key).into(),
                port: name.target_port.into(),
                flags: if holder == Some(name) { HOLDER } else { 0 },
                length: u8::try_from(name.initiator.len()).ok()?,
            };
            bytes.extend_from_slice(registrant.as_bytes());
            bytes.extend_from_slice(name.initiator.as_bytes());
        }
        Some(bytes)
    }

    /// Restores reservations from their record.
    ///
    /// # Errors
    /// [`MalformedReservations`] for bytes that [`Reservations::to_record`] does not write.
    pub fn from_record(bytes: &[u8]) -> Result<Self, MalformedReservations> {
        Self::parsed(bytes).ok_or(MalformedReservations)
    }

    fn parsed(bytes: &[u8]) -> Option<Self> {
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
            let registrant: &Registrant = cursor.take().ok()?;
            let initiator = std::str::from_utf8(cursor.bytes(registrant.length.into()).ok()?).ok()?;
            let name = NexusName { initiator: initiator.into(), target_port: registrant.port.get() };
            let is_second = registrant.flags == HOLDER && holder.replace(name.clone()).is_some();
            if is_second || registrant.flags & !HOLDER != 0 || registrant.key.get() == 0 || initiator.is_empty() {
                return None;
            }
            if registrants.insert(name, registrant.key.get()).is_some() {
                return None;
            }
        }
        let kind = ReservationType(header.kind);
        let persistent = match (kind.name(), holder) {
            (None, None) if kind.0 == 0 => None,
            (Some(_), holder) if holder.is_none() == kind.is_held_by_all() => Some(Reservation { kind, holder }),
            _ => return None,
        };
        cursor.rest().is_empty().then_some(Self { ptpl: true, registrants, persistent, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = b"LunarPR1\x05\0\0\x02\
        \0\0\0\0\0\0\0\x07\0\x01\0\x05a,i,1\
        \x01\x02\x03\x04\x05\x06\x07\x08\0\x02\x01\x05b,i,2";

    fn state() -> Reservations {
        let name = |initiator: &str, target_port| NexusName { initiator: initiator.into(), target_port };
        Reservations {
            ptpl: true,
            registrants: [(name("a,i,1", 1), 7), (name("b,i,2", 2), 0x0102_0304_0506_0708)].into(),
            persistent: Some(Reservation {
                kind: ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
                holder: Some(name("b,i,2", 2)),
            }),
            ..Reservations::default()
        }
    }

    #[test]
    fn the_record_has_the_bytes_that_earlier_versions_wrote() {
        assert_eq!(state().to_record().as_deref(), Some(RECORD));
        assert_eq!(Reservations::from_record(RECORD), Ok(state()));
    }

    proptest::proptest! {
        #[test]
        fn a_changed_byte_is_refused_or_has_a_meaning_of_its_own(
            at in 0..RECORD.len(), byte in proptest::num::u8::ANY
        ) {
            let mut bytes = RECORD.to_vec();
            bytes[at] = byte;
            if let Ok(state) = Reservations::from_record(&bytes) {
                let again = state.to_record().map(|record| Reservations::from_record(&record));
                proptest::prop_assert_eq!(again, Some(Ok(state)));
            }
        }
    }

    #[test]
    fn the_record_is_empty_without_ptpl_and_without_registrants() {
        assert_eq!(Reservations { ptpl: false, ..state() }.to_record(), Some(vec![]));
        assert_eq!(Reservations { registrants: BTreeMap::new(), ..state() }.to_record(), Some(vec![]));
        assert_eq!(Reservations::from_record(&[]), Ok(Reservations::default()));
    }

    #[test]
    fn generation_and_spc2_reservations_end_with_the_process() {
        let spc2 = state().registrants.into_keys().next();
        let before = Reservations { generation: 9, spc2, ..state() };
        assert_eq!(before.to_record().map(|record| Reservations::from_record(&record)), Some(Ok(state())));
    }

    #[test]
    fn a_name_of_more_than_255_bytes_has_no_record() {
        let name = |length: usize| NexusName { initiator: "x".repeat(length).into(), target_port: 1 };
        let of = |length| Reservations { registrants: [(name(length), 1)].into(), persistent: None, ..state() };
        assert!(of(255).to_record().is_some());
        assert_eq!(of(256).to_record(), None);
    }

    #[test]
    fn malformed_records_are_refused() {
        for length in 1..RECORD.len() {
            assert_eq!(Reservations::from_record(&RECORD[..length]), Err(MalformedReservations), "{length} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = RECORD.to_vec();
            bytes[at] = byte;
            Reservations::from_record(&bytes)
        };
        for (at, byte, what) in [
            (7, b'2', "another format"),
            (8, 2, "no such type"),
            (8, 0, "a holder without a reservation"),
            (8, 7, "a holder where all registrants hold"),
            (9, 1, "reserved"),
            (11, 0, "no registrant"),
            (10, 0x20, "too many registrants"),
            (19, 0, "a key of zero"),
            (22, 1, "two holders"),
            (22, 2, "an unknown flag"),
            (24, 0xff, "not UTF-8"),
        ] {
            assert_eq!(changed(at, byte), Err(MalformedReservations), "{what}");
        }
        let mut long = RECORD.to_vec();
        long.push(0);
        assert_eq!(Reservations::from_record(&long), Err(MalformedReservations));
    }
}
