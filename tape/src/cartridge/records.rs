//! Reading of records: recovery, reads, and movements of the position.

use super::format::{FIRST_RECORD, Kind, RECORD_BYTES, Record};
use super::index::Saved;
use super::log_file::LogFile;
use super::{
    BATCH_BYTES, BEGINNING, BLOCK_BYTES_MAX, COPIED_BYTES_MAX, Cartridge, CartridgeError, Found, Moved, Position, Stop,
    Writes,
};
use lunar_handler::data::DataIn;
use std::io;
use std::ops::Range;

/// Records that are in the page cache, and may not be on the medium: after a failed synchronization, the kernel reports
/// no second failure for them.
#[derive(Default)]
struct Unsure {
    /// Offset of the first one.
    at: u64,
    /// They, as they were read.
    bytes: Vec<u8>,
}

impl Unsure {
    /// Writes them again, so that the next synchronization covers them.
    fn write(&mut self, file: &mut LogFile) -> io::Result<()> {
        file.write_again(self.at, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

impl Cartridge {
    /// Finds the end of data, removes the rest of a torn write, and synchronizes the records that were not yet.
    pub(super) fn recover(&mut self) -> Result<(), CartridgeError> {
        let saved = self.file.saved_index();
        let mut cuts = 0;
        let is_usable = |saved: &Saved| {
            saved.id == self.header.id && saved.cuts == self.header.cuts && saved.end.offset <= self.file.len()
        };
        if let Some(saved) = saved.filter(is_usable) {
            self.index = saved.index;
            self.end = saved.end;
            self.saved_end = saved.end.offset;
            cuts = saved.cuts;
        }
        let sound = self.header.durable_end.max(self.end.offset);
        let mut unsure = Unsure::default();
        let mut written = Ok(());
        while let Some(record) = self.header_at(self.end)? {
            // The data of a record that was not synchronized may be torn although its header is not.
            let is_synchronized = self.end.offset < sound;
            if record.cuts < cuts || !(is_synchronized || self.has_data(self.end, &record)?) {
                break;
            }
            if !is_synchronized && self.writes == Writes::Allowed && written.is_ok() {
                if unsure.bytes.is_empty() {
                    unsure.at = self.end.offset;
                }
                unsure.bytes.extend(record.emit(self.header.id));
                unsure.bytes.extend(&self.scratch[..record.stored as usize]);
                if unsure.bytes.len() >= BATCH_BYTES {
                    written = unsure.write(&mut self.file);
                }
            }
            cuts = record.cuts;
            self.index.note(self.end);
            self.end = self.end.after(&record);
        }
        if self.end.offset < sound {
            self.is_damaged = true;
            return Ok(());
        }
        let is_torn = self.end.offset < self.file.len() && !self.file.ends_at(self.end.offset)?;
        if self.writes == Writes::Allowed && (is_torn || self.end.offset > sound) {
            let written = written.and_then(|()| unsure.write(&mut self.file));
            if written.map_err(CartridgeError::Io).and_then(|()| self.repair(is_torn)).is_err() {
                // It can be read, but nothing that follows would be safe.
                self.writes = Writes::Impossible;
            }
        }
        Ok(())
    }

    /// Brings the end of data to the medium: the records before it were written again.
    fn repair(&mut self, is_torn: bool) -> Result<(), CartridgeError> {
        self.header.cuts += u64::from(is_torn);
        self.write_header(true)?;
        if is_torn {
            self.file.truncate(self.end.offset)?;
            self.sync_file()?;
        }
        self.header.durable_end = self.end.offset;
        self.write_header(false)
    }

    /// The header of the record at a position; `None` if there is no valid one.
    fn header_at(&mut self, at: Position) -> Result<Option<Record>, CartridgeError> {
        let mut bytes = [0; RECORD_BYTES];
        if !self.file.read(at.offset, &mut bytes)? {
            return Ok(None);
        }
        let continues = |record: &Record| {
            record.object == at.object
                && record.file == at.file
                && record.cuts <= self.header.cuts
                && at.offset.checked_add(record.bytes()).is_some_and(|end| end <= self.file.len())
        };
        let record = Record::parse(&bytes, self.header.id).filter(continues);
        if let Some(record) = &record {
            self.file.expect(record.bytes());
        }
        Ok(record)
    }

    /// The record at a position before the end of data.
    fn record_at(&mut self, at: Position) -> Result<Record, CartridgeError> {
        self.header_at(at)?.ok_or(CartridgeError::Damaged(at.object))
    }

    /// Reads the stored data of a record into the scratch memory, and checks it.
    fn has_data(&mut self, at: Position, record: &Record) -> Result<bool, CartridgeError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(record.stored as usize, 0);
        let result = self.file.read(at.offset + RECORD_BYTES as u64, &mut scratch);
        let sum = crc32c::crc32c(&scratch);
        self.scratch = scratch;
        Ok(result? && sum == record.data_sum)
    }

    /// Reads the object at the position, and moves the position behind it. A block that is longer than the buffer is
    /// read as far as it fits.
    ///
    /// # Errors
    /// If the object is damaged, or cannot be read. The position is behind a block whose data is damaged; the content
    /// of the buffer is undefined.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Found, CartridgeError> {
        let place = 0..into.len();
        self.read_into(&mut into.into(), place)
    }

    /// Like [`Cartridge::read`], into a part of the memory of a handler.
    ///
    /// # Errors
    /// Errors of [`Cartridge::read`].
    pub fn read_into(&mut self, into: &mut DataIn<'_>, place: Range<usize>) -> Result<Found, CartridgeError> {
        if self.at.offset >= self.end.offset {
            return if self.is_damaged { Err(CartridgeError::Damaged(self.end.object)) } else { Ok(Found::EndOfData) };
        }
        let at = self.at;
        let record = self.record_at(at)?;
        self.at = at.after(&record);
        if record.kind == Kind::Filemark {
            return Ok(Found::Filemark);
        }
        let length = record.length as usize;
        if !record.is_compressed && length > COPIED_BYTES_MAX && place.len() >= length {
            let place = place.start..place.start + length;
            let is_there = self.file.read_into(at.offset + RECORD_BYTES as u64, into, place.clone())?;
            let mut sum = 0;
            if is_there {
                into.pieces(place, |piece| sum = crc32c::crc32c_append(sum, piece));
            }
            if !is_there || sum != record.data_sum {
                return Err(CartridgeError::Damaged(at.object));
            }
            return Ok(Found::Block(length));
        }
        if !self.has_data(at, &record)? {
            return Err(CartridgeError::Damaged(at.object));
        }
        let fits = place.len().min(length);
        if record.is_compressed {
            let plain = lz4_flex::block::decompress(&self.scratch, length.min(BLOCK_BYTES_MAX));
            let plain = plain.ok().filter(|plain| plain.len() == length);
            into.put(place.start, &plain.ok_or(CartridgeError::Damaged(at.object))?[..fits]);
        } else {
            into.put(place.start, &self.scratch[..fits]);
        }
        Ok(Found::Block(length))
    }

    /// Moves the position to the beginning.
    pub fn rewind(&mut self) {
        self.at = BEGINNING;
    }

    /// Moves the position to the end of data.
    ///
    /// # Errors
    /// If the end of data is unknown, because a record is damaged: the position is before it.
    pub fn space_to_end(&mut self) -> Result<(), CartridgeError> {
        self.at = self.end;
        if self.is_damaged { Err(CartridgeError::Damaged(self.end.object)) } else { Ok(()) }
    }

    /// Moves the position before an object; to the end of data, and returns `false`, if there is no such object.
    ///
    /// # Errors
    /// If a record in between is damaged.
    pub fn locate(&mut self, object: u64) -> Result<bool, CartridgeError> {
        if object > self.end.object {
            self.space_to_end()?;
            return Ok(false);
        }
        self.at = self.position_of(object)?;
        Ok(true)
    }

    /// Moves the position over blocks, backwards if `count` is negative. A filemark ends the movement.
    ///
    /// # Errors
    /// If a record in between is damaged.
    pub fn space_blocks(&mut self, count: i64) -> Result<Moved, CartridgeError> {
        let (start, wanted) = (self.at, count.unsigned_abs());
        if count < 0 {
            let target = self.position_of(start.object.saturating_sub(wanted))?;
            if target.file != start.file {
                // The filemark before the position stops the movement before it.
                let mark = self.filemark(start.file - 1)?;
                self.at = mark;
                return Ok(Moved { count: start.object - mark.object - 1, stop: Some(Stop::Filemark) });
            }
            self.at = target;
            let moved = start.object - target.object;
            return Ok(Moved { count: moved, stop: (moved < wanted).then_some(Stop::Beginning) });
        }
        let last = start.object.saturating_add(wanted).min(self.end.object);
        let target = self.position_of(last)?;
        if target.file != start.file {
            let mark = self.filemark(start.file)?;
            let record = self.record_at(mark)?;
            self.at = mark.after(&record);
            return Ok(Moved { count: mark.object - start.object, stop: Some(Stop::Filemark) });
        }
        let moved = target.object - start.object;
        if moved < wanted {
            self.space_to_end()?;
        }
        self.at = target;
        Ok(Moved { count: moved, stop: (moved < wanted).then_some(Stop::EndOfData) })
    }

    /// Moves the position over filemarks, backwards if `count` is negative: then it ends before the last of them.
    ///
    /// # Errors
    /// If a record in between is damaged.
    pub fn space_filemarks(&mut self, count: i64) -> Result<Moved, CartridgeError> {
        let (file, wanted) = (self.at.file, count.unsigned_abs());
        if wanted == 0 {
            return Ok(Moved { count: 0, stop: None });
        }
        if count < 0 {
            if wanted > file {
                self.rewind();
                return Ok(Moved { count: file, stop: Some(Stop::Beginning) });
            }
            self.at = self.filemark(file - wanted)?;
            return Ok(Moved { count: wanted, stop: None });
        }
        if file.saturating_add(wanted) > self.end.file {
            self.space_to_end()?;
            return Ok(Moved { count: self.end.file - file, stop: Some(Stop::EndOfData) });
        }
        let mark = self.filemark(file + wanted - 1)?;
        let record = self.record_at(mark)?;
        self.at = mark.after(&record);
        Ok(Moved { count: wanted, stop: None })
    }

    /// The nearest known position before a record: an entry of the index, or the position of the drive.
    fn start(&self, entry: Option<Position>, current: Option<Position>) -> Position {
        let nearer =
            |one: Option<Position>, other: Position| one.filter(|one| one.offset > other.offset).unwrap_or(other);
        nearer(current, nearer(entry, BEGINNING))
    }

    /// The position of an object that is not behind the end of data.
    fn position_of(&mut self, object: u64) -> Result<Position, CartridgeError> {
        if object == self.end.object {
            return Ok(self.end);
        }
        let current = Some(self.at).filter(|at| at.object <= object);
        let mut at = self.start(self.index.before_object(object), current);
        while at.object < object {
            let record = self.record_at(at)?;
            at = at.after(&record);
        }
        Ok(at)
    }

    /// The position of the filemark with a number, which is before the end of data.
    fn filemark(&mut self, number: u64) -> Result<Position, CartridgeError> {
        let current = Some(self.at).filter(|at| at.file <= number);
        let mut at = self.start(self.index.before_filemark(number), current);
        loop {
            let record = self.record_at(at)?;
            if record.kind == Kind::Filemark && at.file == number {
                return Ok(at);
            }
            at = at.after(&record);
        }
    }

    /// Saves the index, as far as the log is synchronized. A failure only makes the next load slower.
    pub(super) fn save_index(&mut self) {
        let index = std::mem::take(&mut self.index);
        let saved = Saved { id: self.header.id, cuts: self.header.cuts, end: self.end, index };
        if self.file.save_index(&saved).is_ok() {
            self.saved_end = self.end.offset.max(FIRST_RECORD);
        }
        self.index = saved.index;
    }
}
