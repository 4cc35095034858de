//! The index of a cartridge: the places of some records, from which the others are found.
//!
//! It has a bounded number of entries: when it is full, every second one is dropped. A copy is in a file beside the
//! cartridge, so that a long log is not read as a whole when the cartridge is loaded. The copy is only ever used
//! if it fits the header of the cartridge; it is made from the log otherwise.

use super::Position;

/// Most entries: 1.5 MiB. A cartridge of 12 TB in blocks of 64 KiB has an entry for every 4096th record.
const ENTRIES_MAX: usize = 1 << 16;
/// The beginning of the copy in a file.
const MAGIC: [u8; 8] = *b"LUNARIX1";
/// Bytes before the entries in the file, and of an entry.
const HEAD_BYTES: usize = 56;
const ENTRY_BYTES: usize = 24;
/// Most bytes of the file.
pub(super) const FILE_BYTES_MAX: u64 = (HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + 4) as u64;

/// The places of some records, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    entries: Vec<Position>,
    /// Objects from one entry to the next, at least.
    stride: u64,
}

/// A copy of an index, and the log that it describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Saved {
    pub(super) id: u64,
    pub(super) cuts: u64,
    pub(super) end: Position,
    pub(super) index: Index,
}

impl Default for Index {
    fn default() -> Self {
        Self { entries: Vec::new(), stride: 1 }
    }
}

impl Index {
    /// Adds a record. Records are added in the order of the log.
    pub(super) fn note(&mut self, at: Position) {
        if self.entries.last().is_some_and(|last| at.object < last.object.saturating_add(self.stride)) {
            return;
        }
        if self.entries.len() == ENTRIES_MAX {
            self.stride *= 2;
            let mut position = 0;
            self.entries.retain(|_| {
                position += 1;
                position % 2 == 1
            });
        }
        self.entries.push(at);
    }

    /// Forgets the records from `object` on.
    pub(super) fn cut(&mut self, object: u64) {
        let kept = self.entries.partition_point(|entry| entry.object < object);
        self.entries.truncate(kept);
    }

    /// The last known record at or before an object.
    pub(super) fn before_object(&self, object: u64) -> Option<Position> {
        let after = self.entries.partition_point(|entry| entry.object <= object);
        after.checked_sub(1).map(|at| self.entries[at])
    }

    /// The last known record before which there are at most `file` filemarks: filemark number `file` is not before it.
    pub(super) fn before_filemark(&self, file: u64) -> Option<Position> {
        let after = self.entries.partition_point(|entry| entry.file <= file);
        after.checked_sub(1).map(|at| self.entries[at])
    }
}

fn put(bytes: &mut Vec<u8>, at: Position) {
    for number in [at.object, at.file, at.offset] {
        bytes.extend(number.to_le_bytes());
    }
}

fn position_of(bytes: &[u8]) -> Option<Position> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Position { object: number(0)?, file: number(8)?, offset: number(16)? })
}

impl Saved {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.index.entries.len() * ENTRY_BYTES + 4);
        bytes.extend(MAGIC);
        for number in [self.id, self.cuts, self.index.stride] {
            bytes.extend(number.to_le_bytes());
        }
        put(&mut bytes, self.end);
        self.index.entries.iter().for_each(|entry| put(&mut bytes, *entry));
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Parses the file; `None` if it is damaged or contradicts itself.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if u32::from_le_bytes(sum.try_into().ok()?) != crc32c::crc32c(body) {
            return None;
        }
        let (head, rest) = body.split_at_checked(HEAD_BYTES)?;
        let number = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let (entries, remainder) = rest.as_chunks::<ENTRY_BYTES>();
        if head[..8] != MAGIC || !remainder.is_empty() || entries.len() > ENTRIES_MAX {
            return None;
        }
        let entries: Vec<Position> = entries.iter().filter_map(|entry| position_of(entry)).collect();
        let end = position_of(head.get(32..)?)?;
        let stride = number(24)?;
        let ascends = |pair: &[Position]| {
            pair[0].object < pair[1].object && pair[0].file <= pair[1].file && pair[0].offset < pair[1].offset
        };
        let is_before_end =
            |last: &Position| last.object < end.object && last.file <= end.file && last.offset < end.offset;
        let is_sound = stride.is_power_of_two() && entries.windows(2).all(ascends);
        let is_sound = is_sound && entries.last().is_none_or(is_before_end);
        is_sound.then_some(Self { id: number(8)?, cuts: number(16)?, end, index: Index { entries, stride } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object: u64) -> Position {
        Position { object, file: object / 10, offset: 8192 + object * 100 }
    }

    fn of(objects: u64) -> Index {
        let mut index = Index::default();
        (0..objects).for_each(|object| index.note(at(object)));
        index
    }

    #[test]
    fn entries_are_bounded_and_still_lead_to_every_object() {
        let index = of(5 * ENTRIES_MAX as u64);
        assert!(index.stride > 1);
        assert!(index.entries.len() <= ENTRIES_MAX);
        for object in [0, 1, 4095, 65_536, 300_000] {
            let before = index.before_object(object).unwrap();
            assert!(before.object <= object && object - before.object < 2 * index.stride);
            let before = index.before_filemark(at(object).file).unwrap();
            assert!(before.file <= at(object).file);
        }
    }

    #[test]
    fn a_cut_forgets_the_records_behind_it() {
        let mut index = of(100);
        index.cut(50);
        assert_eq!(index.before_object(80), Some(at(49)));
        index.cut(0);
        assert_eq!(index.before_object(80), None);
    }

    #[test]
    fn the_file_is_read_back_and_each_damaged_byte_is_noticed() {
        let saved = Saved { id: 1, cuts: 2, end: at(20), index: of(20) };
        let bytes = saved.emit();
        assert_eq!(Saved::parse(&bytes), Some(saved));
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert_eq!(Saved::parse(&damaged), None, "byte {place}");
            assert_eq!(Saved::parse(&bytes[..place]), None, "{place} bytes");
        }
    }

    #[test]
    fn an_index_that_contradicts_itself_is_refused() {
        let mut saved = Saved { id: 1, cuts: 2, end: at(20), index: of(20) };
        saved.index.entries.swap(3, 4);
        assert_eq!(Saved::parse(&saved.emit()), None);
        let beyond = Saved { id: 1, cuts: 2, end: at(10), index: of(20) };
        assert_eq!(Saved::parse(&beyond.emit()), None);
    }
}
