//! The device types that Lunar knows, one line each.

use crate::forwarding::{CHANGER, ENCLOSURE, OPTICAL_MEMORY, SIMPLE_DISK, TAPE, ZONED_DISK};
use crate::mmc::table::DRIVE;
use crate::nexus::Addressee;
use crate::peripheral::PeripheralType;
use crate::row::DeviceType;
use crate::sbc::table::DISK;
use crate::spc::table::{NO_UNIT, OTHER, WELL_KNOWN_UNIT};
use lunar_core::medium::MediumKind;

/// Every device type that Lunar emulates.
pub static DEVICE_TYPES: &[&DeviceType] = &[&DISK, &DRIVE, &WELL_KNOWN_UNIT, &NO_UNIT];

/// Every device type that is forwarded only.
pub static FORWARDED_TYPES: &[&DeviceType] = &[&TAPE, &OPTICAL_MEMORY, &CHANGER, &ENCLOSURE, &SIMPLE_DISK, &ZONED_DISK];

/// The device type of each code. [`OTHER`] stands for codes without a device type.
static BY_CODE: [&DeviceType; PeripheralType::COUNT] = by_code();

const fn by_code() -> [&'static DeviceType; PeripheralType::COUNT] {
    let mut types = [&OTHER; PeripheralType::COUNT];
    let lists = [DEVICE_TYPES, FORWARDED_TYPES];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        if at < lists[list].len() {
            types[lists[list][at].code.0 as usize] = lists[list][at];
            at += 1;
        } else {
            (list, at) = (list + 1, 0);
        }
    }
    types
}

/// The device type of an emulated unit with such a medium.
///
/// # Panics
/// Never: a test holds that each kind of medium belongs to a device type.
#[must_use]
pub fn of_medium(kind: MediumKind) -> &'static DeviceType {
    let found = DEVICE_TYPES.iter().find(|device| device.media.contains(&kind));
    found.expect("each kind of medium belongs to a device type")
}

/// The device type of the logical unit that a LUN addresses.
#[inline]
#[must_use]
pub fn of(addressee: &Addressee) -> &'static DeviceType {
    match addressee {
        Addressee::Unit(itl) => BY_CODE[usize::from(itl.lu.device_type.0) % PeripheralType::COUNT],
        Addressee::WellKnown => &WELL_KNOWN_UNIT,
        Addressee::NoUnit => &NO_UNIT,
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
