//! The state of a slot that stations set: the configuration string and the MAC mask list, and their metadata record.

use crate::wire::{Address, CONFIG_STRING_MAX, Directive, MaskDirective, MaskError};
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U16;
use lunar_link::MacAddress;
use std::collections::BTreeMap;

/// The most entries of a MAC mask list: its answer fits into a frame of 1,500 bytes.
pub const MASKS_MAX: usize = 128;
/// The most stations for which a volume is reserved: their answer fits into a frame of 1,500 bytes.
pub const RESERVED_MAX: usize = 240;
/// The name of the metadata record.
pub const RECORD: &str = "aoe";
/// The version of the record.
const VERSION: u8 = 1;

/// The state of a slot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SlotState {
    /// The configuration string.
    pub string: Vec<u8>,
    /// The stations that are admitted; an empty list admits all.
    pub masks: Vec<MacAddress>,
}

impl SlotState {
    /// Whether the MAC mask list admits a station.
    #[must_use]
    pub fn admits(&self, station: MacAddress) -> bool {
        self.masks.is_empty() || self.masks.contains(&station)
    }

    /// The MAC mask list after these directives.
    ///
    /// # Errors
    /// Why none of them is carried out.
    pub fn edited_masks(&self, directives: &[Directive]) -> Result<Vec<MacAddress>, MaskError> {
        let mut masks = self.masks.clone();
        for directive in directives {
            let mac = MacAddress(directive.mac);
            match MaskDirective(directive.command) {
                MaskDirective::NONE => {}
                MaskDirective::ADD if mac.is_group() => return Err(MaskError::BAD_DIRECTIVE),
                MaskDirective::ADD if masks.contains(&mac) => {}
                MaskDirective::ADD if masks.len() >= MASKS_MAX => return Err(MaskError::LIST_FULL),
                MaskDirective::ADD => masks.push(mac),
                MaskDirective::DELETE => masks.retain(|known| *known != mac),
                _ => return Err(MaskError::BAD_DIRECTIVE),
            }
        }
        Ok(masks)
    }
}

/// The states of the slots of a volume, by their addresses.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SlotStates(pub BTreeMap<Address, SlotState>);

/// A record that is not readable: it may hold a MAC mask list, so the volume is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedRecord;

impl SlotStates {
    /// The states in a metadata record.
    ///
    /// # Errors
    /// [`MalformedRecord`].
    pub fn parse(record: &[u8]) -> Result<Self, MalformedRecord> {
        let mut cursor = Cursor::new(record);
        let mut states = BTreeMap::new();
        let version: &u8 = cursor.take().map_err(|_| MalformedRecord)?;
        if *version != VERSION {
            return Err(MalformedRecord);
        }
        while !cursor.rest().is_empty() {
            let (address, state) = Self::entry(&mut cursor).ok_or(MalformedRecord)?;
            states.insert(address, state);
        }
        Ok(Self(states))
    }

    fn entry(cursor: &mut Cursor<'_>) -> Option<(Address, SlotState)> {
        let shelf: &U16 = cursor.take().ok()?;
        let slot: &u8 = cursor.take().ok()?;
        let len: &U16 = cursor.take().ok()?;
        let string = cursor.bytes(usize::from(len.get())).ok()?;
        let count: &u8 = cursor.take().ok()?;
        let masks = cursor.bytes(usize::from(*count) * 6).ok()?;
        if string.len() > CONFIG_STRING_MAX || usize::from(*count) > MASKS_MAX {
            return None;
        }
        let masks = masks.chunks_exact(6).filter_map(|mac| Some(MacAddress(mac.try_into().ok()?))).collect();
        Some((Address { shelf: shelf.get(), slot: *slot }, SlotState { string: string.to_vec(), masks }))
    }

    /// The metadata record.
    #[must_use]
    pub fn record(&self) -> Vec<u8> {
        let mut record = vec![VERSION];
        for (address, state) in self.0.iter().filter(|(_, state)| **state != SlotState::default()) {
            record.extend(address.shelf.to_be_bytes());
            record.push(address.slot);
            // The lengths are bounded where the state changes.
            record.extend((state.string.len() as u16).to_be_bytes());
            record.extend(&state.string);
            record.push(state.masks.len() as u8);
            state.masks.iter().for_each(|mac| record.extend(mac.0));
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn directive(command: MaskDirective, mac: u8) -> Directive {
        Directive { reserved: 0, command: command.0, mac: [2, 0, 0, 0, 0, mac] }
    }

    fn mac(number: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, number])
    }

    #[test]
    fn directives_are_all_carried_out_or_none() {
        let (add, delete) = (|mac| directive(MaskDirective::ADD, mac), |mac| directive(MaskDirective::DELETE, mac));
        let state = SlotState { masks: vec![mac(1)], ..SlotState::default() };
        assert_eq!(
            state.edited_masks(&[add(2), add(2), delete(1), directive(MaskDirective::NONE, 9)]),
            Ok(vec![mac(2)])
        );
        assert_eq!(state.edited_masks(&[add(2), directive(MaskDirective(7), 1)]), Err(MaskError::BAD_DIRECTIVE));
        let group = Directive { mac: [0xff; 6], ..add(0) };
        assert_eq!(state.edited_masks(&[group]), Err(MaskError::BAD_DIRECTIVE));
        let many: Vec<_> = (0..MASKS_MAX as u8).map(|number| add(number + 2)).collect();
        assert_eq!(state.edited_masks(&many), Err(MaskError::LIST_FULL));
        assert_eq!(state.edited_masks(&many[1..]).map(|masks| masks.len()), Ok(MASKS_MAX));
        assert!(state.admits(mac(1)) && !state.admits(mac(2)) && SlotState::default().admits(mac(2)));
    }

    #[test]
    fn a_malformed_record_is_refused() {
        let states = SlotStates(BTreeMap::from([(
            Address { shelf: 1, slot: 2 },
            SlotState { string: b"name".to_vec(), masks: vec![mac(1)] },
        )]));
        let record = states.record();
        assert_eq!(SlotStates::parse(&record), Ok(states));
        for len in 2..record.len() {
            assert_eq!(SlotStates::parse(&record[..len]), Err(MalformedRecord), "{len}");
        }
        assert_eq!((SlotStates::parse(&[]), SlotStates::parse(&[9])), (Err(MalformedRecord), Err(MalformedRecord)));
        assert_eq!(SlotStates::parse(&[VERSION]), Ok(SlotStates::default()));
    }

    proptest! {
        #[test]
        fn states_survive_their_record(
            all in prop::collection::btree_map(
                (any::<u16>(), any::<u8>()),
                (prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<[u8; 6]>(), 0..5)),
                0..5,
            ),
        ) {
            let state = |(string, masks): (Vec<u8>, Vec<[u8; 6]>)| {
                SlotState { string, masks: masks.into_iter().map(MacAddress).collect() }
            };
            let entries = all.into_iter().map(|((shelf, slot), entry)| (Address { shelf, slot }, state(entry)));
            let states = SlotStates(entries.collect());
            prop_assert_eq!(SlotStates::parse(&states.record()), Ok(states));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SlotStates::parse(&bytes);
        }
    }
}
