//! The bytes of a cartridge file: two copies of a header, and records one after the other.
//!
//! A record is a header of 48 bytes and its data. Numbers are little-endian. The checksum of a header covers the
//! identity of the cartridge, so that a record of another file is never taken for one of this file.

use super::CartridgeError;
use crate::generation::Generation;

/// The beginning of a cartridge file.
const MAGIC: [u8; 8] = *b"LUNARTAP";
/// Version of the format.
const VERSION: u32 = 1;
/// Offsets of the two copies of the header. Each is in a block of its own, so that a torn write damages one only.
pub(super) const HEADERS: [u64; 2] = [0, 4096];
/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 128;
/// Offset of the first record.
pub(super) const FIRST_RECORD: u64 = 8192;
/// Bytes of the header of a record.
pub(super) const RECORD_BYTES: usize = 48;
/// The beginning of a record.
const RECORD_MAGIC: u32 = 0x3152_544c;
/// Most characters of a bar code: those of a volume tag (SMC-3 6.11.4).
pub const BARCODE_CHARACTERS_MAX: usize = 32;
/// Bytes of the longest block: that of LTO drives.
pub const BLOCK_BYTES_MAX: usize = 8 << 20;

/// Whether a text may be a bar code, and with it the name of a file.
#[must_use]
pub fn is_barcode(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit();
    (1..=BARCODE_CHARACTERS_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// The header of a cartridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Identity of the cartridge.
    pub(super) id: u64,
    /// Number of this version of the header. The copy with the higher one is valid.
    pub(super) sequence: u64,
    pub(super) generation: Generation,
    pub(super) is_worm: bool,
    pub(super) is_protected: bool,
    /// Bytes of all records.
    pub(super) capacity: u64,
    /// Number of times that the log was cut. Records do not have a higher one.
    pub(super) cuts: u64,
    /// All records before this offset reached the medium.
    pub(super) durable_end: u64,
    /// Number of loads into a drive.
    pub(super) loads: u64,
    pub(super) barcode: String,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Header {
    pub(super) fn emit(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.generation.number();
        bytes[13] = u8::from(self.is_worm) | u8::from(self.is_protected) << 1;
        let numbers = [self.id, self.sequence, self.capacity, self.cuts, self.durable_end, self.loads];
        for (at, number) in numbers.iter().enumerate() {
            bytes[16 + at * 8..24 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[64] = u8::try_from(self.barcode.len()).unwrap_or(0);
        bytes[65..65 + self.barcode.len()].copy_from_slice(self.barcode.as_bytes());
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a copy; `None` if it is damaged or of another kind.
    ///
    /// # Errors
    /// If the copy is whole and has a later version.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>, CartridgeError> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return Ok(None);
        }
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != u32_at(bytes, HEADER_BYTES - 4) {
            return Ok(None);
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(CartridgeError::LaterVersion(u32_at(bytes, 8)));
        }
        let Some(generation) = Generation::of_number(bytes[12]) else { return Ok(None) };
        let length = usize::from(bytes[64]).min(BARCODE_CHARACTERS_MAX);
        let barcode = String::from_utf8_lossy(&bytes[65..65 + length]).into_owned();
        if !is_barcode(&barcode) {
            return Ok(None);
        }
        Ok(Some(Self {
            id: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            generation,
            is_worm: bytes[13] & 1 != 0,
            is_protected: bytes[13] & 2 != 0,
            capacity: u64_at(bytes, 32),
            cuts: u64_at(bytes, 40),
            durable_end: u64_at(bytes, 48),
            loads: u64_at(bytes, 56),
            barcode,
        }))
    }
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Block,
    Filemark,
}

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) is_compressed: bool,
    /// Bytes of the data in the file.
    pub(super) stored: u32,
    /// Bytes of the block.
    pub(super) length: u32,
    /// Blocks and filemarks before it.
    pub(super) object: u64,
    /// Filemarks before it.
    pub(super) file: u64,
    /// Number of cuts when it was written. It never decreases from one record to the next: a record that an earlier
    /// version of the log left behind the end has a lower one than the record before it.
    pub(super) cuts: u64,
    /// Checksum of the stored data.
    pub(super) data_sum: u32,
}

impl Record {
    /// Bytes of the record in the file.
    pub(super) fn bytes(&self) -> u64 {
        RECORD_BYTES as u64 + u64::from(self.stored)
    }

    pub(super) fn emit(&self, id: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4] = match self.kind {
            Kind::Block => 1,
            Kind::Filemark => 2,
        };
        bytes[5] = u8::from(self.is_compressed);
        bytes[8..12].copy_from_slice(&self.stored.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.object.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.cuts.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.data_sum.to_le_bytes());
        let sum = Self::sum(&bytes, id);
        bytes[44..48].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses the header of a record; `None` if there is no valid one.
    pub(super) fn parse(bytes: &[u8], id: u64) -> Option<Self> {
        if bytes.len() < RECORD_BYTES || u32_at(bytes, 0) != RECORD_MAGIC || u32_at(bytes, 44) != Self::sum(bytes, id) {
            return None;
        }
        let record = Self {
            kind: match bytes[4] {
                1 => Kind::Block,
                2 => Kind::Filemark,
                _ => return None,
            },
            is_compressed: bytes[5] == 1,
            stored: u32_at(bytes, 8),
            length: u32_at(bytes, 12),
            object: u64_at(bytes, 16),
            file: u64_at(bytes, 24),
            cuts: u64_at(bytes, 32),
            data_sum: u32_at(bytes, 40),
        };
        record.is_consistent().then_some(record)
    }

    fn is_consistent(&self) -> bool {
        match self.kind {
            Kind::Filemark => self.stored == 0 && self.length == 0,
            Kind::Block if self.is_compressed => self.stored < self.length && self.length as usize <= BLOCK_BYTES_MAX,
            Kind::Block => self.stored == self.length && self.length > 0 && self.length as usize <= BLOCK_BYTES_MAX,
        }
    }

    fn sum(bytes: &[u8], id: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&id.to_le_bytes()), &bytes[..RECORD_BYTES - 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            id: 7,
            sequence: 3,
            generation: Generation::Lto8,
            is_worm: true,
            is_protected: false,
            capacity: 1 << 40,
            cuts: 2,
            durable_end: 9000,
            loads: 4,
            barcode: "LUN001L8".to_owned(),
        }
    }

    #[test]
    fn a_header_is_read_back_and_each_damaged_byte_is_noticed() {
        let bytes = header().emit();
        assert_eq!(Header::parse(&bytes).unwrap(), Some(header()));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(Header::parse(&damaged).unwrap(), None, "byte {at}");
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = header().emit();
        bytes[8] = 2;
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(Header::parse(&bytes), Err(CartridgeError::LaterVersion(2))));
    }

    #[test]
    fn a_record_is_read_back_and_each_damaged_byte_is_noticed() {
        let record = Record {
            kind: Kind::Block,
            is_compressed: true,
            stored: 10,
            length: 20,
            object: 5,
            file: 2,
            cuts: 1,
            data_sum: 0x1234,
        };
        let bytes = record.emit(9);
        assert_eq!(Record::parse(&bytes, 9), Some(record));
        assert_eq!(Record::parse(&bytes, 10), None, "a record of another cartridge");
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(Record::parse(&damaged, 9), None, "byte {at}");
        }
    }

    #[test]
    fn bar_codes_are_names_of_files() {
        assert!(is_barcode("LUN001L8") && is_barcode(&"A".repeat(32)));
        for wrong in ["", "../A", "a", "A B", "A.", &"A".repeat(33)] {
            assert!(!is_barcode(wrong), "{wrong}");
        }
    }
}
