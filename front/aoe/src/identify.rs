//! The data of IDENTIFY DEVICE (ATA8-ACS 7.16).

use crate::wire::SECTOR;
use lunar_blk::Limits;
use lunar_core::unit::Identity;

/// The most sectors that a command with an LBA of 28 bits can name.
const SECTORS_28_MAX: u64 = 0x0fff_ffff;
/// Word 47: bits 15 to 8 are 80h, and READ MULTIPLE is not supported.
const NO_MULTIPLE: u16 = 0x8000;
/// Word 49: LBA is supported.
const LBA: u16 = 0x0200;
/// Words 50, 83, 84, 87, 106: bits 15 and 14 are 01b where the word is valid.
const VALID: u16 = 0x4000;
/// Word 83, 86: FLUSH CACHE EXT.
const FLUSH_EXT: u16 = 0x2000;
/// Word 83, 86: FLUSH CACHE.
const FLUSH: u16 = 0x1000;
/// Word 83, 86: the LBA has 48 bits.
const LBA_48: u16 = 0x0400;
/// Word 93: the result of a hardware reset, as device 0 on a cable reports it.
const RESET_RESULT: u16 = 0x400b;
/// Word 106: a physical sector has several logical ones.
const LARGE_PHYSICAL: u16 = 0x2000;
/// Word 217: the medium does not rotate.
const NOT_ROTATING: u16 = 1;

/// The data for a unit. The write cache is reported as absent: each write is durable when it is acknowledged.
#[must_use]
pub fn data(identity: &Identity, limits: &Limits) -> [u8; SECTOR] {
    let mut data = [0; SECTOR];
    let sectors = limits.capacity / SECTOR as u64;
    let model = format!("{} {}", identity.vendor, identity.product);
    // The end of a serial number differs most.
    let serial = &identity.serial[identity.serial.len().saturating_sub(20)..];
    text(&mut data, 10..20, serial);
    text(&mut data, 23..27, &identity.revision);
    text(&mut data, 27..47, &model);
    let per_physical = (limits.physical_block_size as usize / SECTOR).max(1);
    let physical = if per_physical > 1 { LARGE_PHYSICAL | per_physical.ilog2() as u16 } else { 0 };
    for (word, value) in [
        (47, NO_MULTIPLE),
        (49, LBA),
        (50, VALID),
        (83, VALID | FLUSH_EXT | FLUSH | LBA_48),
        (84, VALID),
        (86, FLUSH_EXT | FLUSH | LBA_48),
        (87, VALID),
        (93, RESET_RESULT),
        (106, VALID | physical),
        (217, if limits.is_rotational { 0 } else { NOT_ROTATING }),
    ] {
        put(&mut data, word, &value.to_le_bytes());
    }
    put(&mut data, 60, &(sectors.min(SECTORS_28_MAX) as u32).to_le_bytes());
    put(&mut data, 100, &sectors.min((1 << 48) - 1).to_le_bytes());
    data
}

/// The number of sectors in the data.
#[must_use]
pub fn sectors(data: &[u8]) -> Option<u64> {
    let word = |word: usize| Some(u16::from_le_bytes([*data.get(2 * word)?, *data.get(2 * word + 1)?]));
    let number = |words: std::ops::Range<usize>| {
        words.rev().try_fold(0_u64, |number, at| Some(number << 16 | u64::from(word(at)?)))
    };
    if word(83)? & LBA_48 != 0 || word(86)? & LBA_48 != 0 { number(100..104) } else { number(60..62) }
}

fn put(data: &mut [u8; SECTOR], word: usize, bytes: &[u8]) {
    data[2 * word..2 * word + bytes.len()].copy_from_slice(bytes);
}

/// Writes a text in ATA's way: two characters in each word, the first one in its high byte, filled with spaces.
fn text(data: &mut [u8; SECTOR], words: std::ops::Range<usize>, text: &str) {
    let mut bytes = text.bytes().map(|byte| if byte.is_ascii_graphic() { byte } else { b' ' });
    for word in words {
        let pair = [bytes.next().unwrap_or(b' '), bytes.next().unwrap_or(b' ')];
        put(data, word, &[pair[1], pair[0]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_blk::testing::Rig;

    fn shown(data: &[u8], words: std::ops::Range<usize>) -> String {
        words.flat_map(|word| [data[2 * word + 1], data[2 * word]]).map(char::from).collect()
    }

    #[test]
    fn a_disk_reports_its_names_size_and_no_write_cache() {
        let rig = Rig::default();
        let limits = rig.client.limits().expect("the unit is there");
        let data = data(&rig.unit.identity, &limits);
        assert_eq!(shown(&data, 10..20), "0123456789          ");
        assert_eq!((shown(&data, 23..27), shown(&data, 27..47)), ("0.1     ".into(), format!("{:40}", "LUNAR VOLUME")));
        let word = |word: usize| u16::from_le_bytes([data[2 * word], data[2 * word + 1]]);
        // The words that vblade reports, and FLUSH CACHE EXT.
        assert_eq!(
            [47, 49, 50, 83, 84, 86, 87, 93].map(word),
            [0x8000, 0x0200, 0x4000, 0x7400, 0x4000, 0x3400, 0x4000, 0x400b]
        );
        assert_eq!((word(82) & 0x20, word(85) & 0x20), (0, 0), "there is no write cache");
        assert_eq!((word(106), word(217)), (0x6003, 1));
        assert_eq!((sectors(&data), word(60)), (Some(2048), 2048));
        assert_eq!((sectors(&[0; 10]), sectors(&[0; 512])), (None, Some(0)));
    }

    #[test]
    fn a_large_disk_has_a_limited_size_in_the_old_field() {
        let rig = Rig::default();
        let limits = Limits { capacity: 3 << 40, ..rig.client.limits().expect("the unit is there") };
        let data = data(&rig.unit.identity, &limits);
        assert_eq!(sectors(&data), Some(3 << 31));
        assert_eq!(data[120..124], 0x0fff_ffff_u32.to_le_bytes());
    }
}
