//! A cartridge: a log of blocks and filemarks in a file.
//!
//! A write at the end of data appends a record; a write before it cuts the log there first, as a write on a tape makes
//! the data behind it unreadable. All records before the last successful [`Cartridge::synchronize`] survive a power
//! cut; each record survives the end of the process as soon as the write returns. When a file is opened, the end of
//! data is the first record that is torn. The records behind the last synchronization are then written again and
//! synchronized: if an earlier synchronization failed, the page cache has them, and the medium may not. A record
//! that is damaged although it was synchronized is no end: the cartridge then refuses to append, so that the records
//! behind it are not lost.

mod error;
mod format;
mod index;
mod log_file;
mod records;
#[cfg(test)]
mod tests;

pub use error::CartridgeError;
pub use format::{BARCODE_CHARACTERS_MAX, BLOCK_BYTES_MAX, is_barcode};
#[cfg(test)]
pub(crate) use log_file::disk;

use crate::generation::Generation;
use format::{FIRST_RECORD, Header, Kind, RECORD_BYTES, Record};
use index::Index;
use log_file::LogFile;
use lunar_handler::data::DataOut;
use std::path::Path;

/// Bytes of small records that are written at once.
const BATCH_BYTES: usize = 1 << 20;
/// Most records that are written at once: the memory of their headers is bounded, and one of them has an entry in the
/// index.
const BATCH_RECORDS: usize = 4096;
/// A block of fewer bytes is copied to a batch of several; a longer one is written and read where it is.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Bytes of new records after which they are synchronized and the index is saved, so that less of the log is read and
/// written again after a crash: a minute on a slow disk.
const SAVE_BYTES: u64 = if cfg!(test) { 4 << 20 } else { 1 << 30 };
/// The early warning is given before the end of the capacity: 1/32 of it, but at most this.
const WARNING_BYTES_MAX: u64 = 5 << 30;
/// Most filemarks of a call: 3 MiB of records.
pub const FILEMARKS_MAX: u64 = 1 << 16;
/// Fewest bytes of a capacity: room for one longest block, and for the early warning before it.
pub const CAPACITY_BYTES_MIN: u64 = 32 << 20;

/// A position between two records: the blocks and filemarks before it, and the offset of the record after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Blocks and filemarks before it: the logical object number.
    pub object: u64,
    /// Filemarks before it: the logical file number.
    pub file: u64,
    /// Offset in the file.
    offset: u64,
}

/// The beginning of the medium.
const BEGINNING: Position = Position { object: 0, file: 0, offset: FIRST_RECORD };

impl Position {
    /// The position after a record at this one.
    fn after(self, record: &Record) -> Self {
        Self {
            object: self.object + 1,
            file: self.file + u64::from(record.kind == Kind::Filemark),
            offset: self.offset + record.bytes(),
        }
    }
}

/// The properties of a new cartridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewCartridge {
    /// Bar code: 1 to 32 capital letters and digits.
    pub barcode: String,
    /// Generation of the medium.
    pub generation: Generation,
    /// Bytes; that of the generation if `None`.
    pub capacity: Option<u64>,
    /// Written data cannot be overwritten.
    pub is_worm: bool,
}

/// The result of a write of blocks.
#[derive(Debug)]
pub struct Written {
    /// Blocks that were written.
    pub blocks: usize,
    /// The reason why the others were not.
    pub stopped: Option<CartridgeError>,
}

/// The object at the position, as [`Cartridge::read`] found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A block of so many bytes. The beginning of the buffer has them, or as many as fit.
    Block(usize),
    /// A filemark.
    Filemark,
    /// The end of data.
    EndOfData,
}

/// The reason why a movement ended before its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A filemark: the position is behind it, in the direction of the movement.
    Filemark,
    /// The end of data.
    EndOfData,
    /// The beginning of the medium.
    Beginning,
}

/// The result of a movement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Objects that were passed, without the filemark that stopped the movement.
    pub count: u64,
    /// `None` if all were.
    pub stop: Option<Stop>,
}

/// Whether the file may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writes {
    Allowed,
    /// The file can only be read, or could not be repaired when it was opened. Nothing was written since.
    Impossible,
    /// A write or a synchronization failed: the kernel may have lost data, so the durable end of data is unknown until
    /// the file is opened again.
    Failed,
}

/// An open cartridge. Its file is locked.
#[derive(Debug)]
pub struct Cartridge {
    file: LogFile,
    header: Header,
    index: Index,
    /// The position of the drive.
    at: Position,
    /// The end of data.
    end: Position,
    /// The record at the end was synchronized, and is damaged.
    is_damaged: bool,
    writes: Writes,
    /// The end of data when the index was saved.
    saved_end: u64,
    /// Memory of records that are written or read.
    scratch: Vec<u8>,
    /// Memory of a block that is compressed.
    plain: Vec<u8>,
}

impl Cartridge {
    /// Creates the file of a blank cartridge.
    ///
    /// # Errors
    /// If the file exists, or cannot be written.
    pub fn create(path: &Path, new: &NewCartridge) -> Result<(), CartridgeError> {
        if !is_barcode(&new.barcode) {
            return Err(CartridgeError::BadBarcode);
        }
        let capacity = new.capacity.unwrap_or_else(|| new.generation.capacity());
        if capacity < CAPACITY_BYTES_MIN {
            return Err(CartridgeError::BadCapacity);
        }
        let header = Header {
            id: log_file::random(),
            sequence: 1,
            generation: new.generation,
            is_worm: new.is_worm,
            is_protected: false,
            capacity,
            cuts: 0,
            durable_end: FIRST_RECORD,
            loads: 0,
            barcode: new.barcode.clone(),
        };
        LogFile::create(path, &header)
    }

    /// Opens a cartridge: finds the end of data, removes a torn record behind it, and brings the records before it to
    /// the medium. The position is the beginning. If the file can only be read, the cartridge is write-protected.
    ///
    /// # Errors
    /// If the file is no cartridge, is open elsewhere, or cannot be read.
    pub fn open(path: &Path) -> Result<Self, CartridgeError> {
        let (file, header) = LogFile::open(path)?;
        let mut cartridge = Self {
            writes: if file.is_writable() { Writes::Allowed } else { Writes::Impossible },
            file,
            header,
            index: Index::default(),
            at: BEGINNING,
            end: BEGINNING,
            is_damaged: false,
            saved_end: FIRST_RECORD,
            scratch: Vec::new(),
            plain: Vec::new(),
        };
        cartridge.recover()?;
        Ok(cartridge)
    }

    /// The bar code.
    #[must_use]
    pub fn barcode(&self) -> &str {
        &self.header.barcode
    }

    /// The generation of the medium.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.header.generation
    }

    /// Whether written data cannot be overwritten.
    #[must_use]
    pub fn is_worm(&self) -> bool {
        self.header.is_worm
    }

    /// Whether the cartridge is write-protected, or its file cannot be written.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.header.is_protected || self.writes == Writes::Impossible
    }

    /// Whether the file can be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes != Writes::Impossible
    }

    /// Bytes for all records.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.header.capacity
    }

    /// Bytes of all records before the end of data.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.end.offset - FIRST_RECORD
    }

    /// Number of loads into a drive.
    #[must_use]
    pub fn loads(&self) -> u64 {
        self.header.loads
    }

    /// The position.
    #[must_use]
    pub fn position(&self) -> Position {
        self.at
    }

    /// The end of data.
    #[must_use]
    pub fn end(&self) -> Position {
        self.end
    }

    /// Whether the position is behind the early warning.
    #[must_use]
    pub fn is_early_warning(&self) -> bool {
        let warning = self.header.capacity - (self.header.capacity / 32).min(WARNING_BYTES_MAX);
        self.at.offset - FIRST_RECORD >= warning
    }

    /// Sets or removes the write protection.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_protected(&mut self, is_protected: bool) -> Result<(), CartridgeError> {
        self.check_writable()?;
        self.header.is_protected = is_protected;
        self.write_header(true)
    }

    /// Counts a load. If the file cannot be written, the cartridge is write-protected.
    pub fn count_load(&mut self) {
        if self.writes == Writes::Allowed {
            self.header.loads = self.header.loads.saturating_add(1);
            if self.write_header(false).is_err() {
                self.writes = Writes::Impossible;
            }
        }
    }

    /// Writes blocks of `block` bytes at the position, and moves the position behind them. A remainder of `data` is a
    /// shorter block.
    pub fn write_blocks(&mut self, data: &[u8], block: usize, compress: bool) -> Written {
        self.write_data(data.into(), block, compress)
    }

    /// Like [`Cartridge::write_blocks`], with data in the memory of a handler. A long block goes from there to the
    /// file: if Lunar changed it before the end of the call, which it must not, the record would count as damaged.
    pub fn write_data(&mut self, data: DataOut<'_>, block: usize, compress: bool) -> Written {
        debug_assert!(block > 0 && block <= BLOCK_BYTES_MAX, "the drive checks the length of a block");
        if let Err(why) = self.begin_write() {
            return Written { blocks: 0, stopped: Some(why) };
        }
        let per_batch = (BATCH_BYTES / block).clamp(1, BATCH_RECORDS) * block;
        let per_batch = if block > COPIED_BYTES_MAX { block } else { per_batch };
        let mut blocks = 0;
        for batch in data.chunks(per_batch) {
            match self.write_batch(batch, block, compress) {
                Written { blocks: written, stopped: None } => blocks += written,
                Written { blocks: written, stopped } => return Written { blocks: blocks + written, stopped },
            }
            if self.end.offset.saturating_sub(self.header.durable_end) >= SAVE_BYTES
                && let Err(why) = self.synchronize()
            {
                return Written { blocks, stopped: Some(why) };
            }
        }
        Written { blocks, stopped: None }
    }

    /// Writes filemarks at the position, and moves the position behind them.
    ///
    /// # Errors
    /// If they cannot be written: none of them was.
    pub fn write_filemarks(&mut self, count: u64) -> Result<(), CartridgeError> {
        debug_assert!(count <= FILEMARKS_MAX, "the drive checks the number of filemarks");
        if count == 0 {
            return Ok(());
        }
        self.begin_write()?;
        if !self.has_room(count * RECORD_BYTES as u64) {
            return Err(CartridgeError::Full);
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let mut at = self.at;
        for _ in 0..count {
            let record = self.record(at, Kind::Filemark, 0, 0, false, 0);
            bytes.extend(record.emit(self.header.id));
            at = at.after(&record);
        }
        let result = self.append(&bytes, DataOut::default());
        self.scratch = bytes;
        result?;
        self.passed(at);
        Ok(())
    }

    /// Brings all records to the medium: they survive a power cut.
    ///
    /// # Errors
    /// If that failed. The cartridge accepts no more data until it is opened again.
    pub fn synchronize(&mut self) -> Result<(), CartridgeError> {
        match self.writes {
            Writes::Allowed => {}
            // Nothing was written.
            Writes::Impossible => return Ok(()),
            Writes::Failed => return Err(CartridgeError::Failed),
        }
        // The records behind a damaged one are durable, although they cannot be reached: the end that the header says
        // keeps them, and nothing was appended.
        if self.is_damaged || self.header.durable_end == self.end.offset {
            return Ok(());
        }
        self.sync_file()?;
        self.header.durable_end = self.end.offset;
        // The offset is written after the data is on the medium. The next synchronization brings it there, too.
        self.write_header(false)?;
        if self.end.offset - self.saved_end.min(self.end.offset) >= SAVE_BYTES {
            self.save_index();
        }
        Ok(())
    }

    /// Makes the data behind the position unreadable.
    ///
    /// # Errors
    /// If the cartridge may not be written, or the file cannot be changed.
    pub fn erase(&mut self) -> Result<(), CartridgeError> {
        self.begin_write()?;
        self.sync_file()
    }

    /// Ends the use of the cartridge: synchronizes it, and saves its index.
    ///
    /// # Errors
    /// If the synchronization failed.
    pub fn close(mut self) -> Result<(), CartridgeError> {
        self.synchronize()?;
        if self.saved_end != self.end.offset && !self.is_damaged && self.writes == Writes::Allowed {
            self.save_index();
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), CartridgeError> {
        match self.writes {
            Writes::Allowed => Ok(()),
            Writes::Impossible => Err(CartridgeError::Unwritable),
            Writes::Failed => Err(CartridgeError::Failed),
        }
    }

    /// Checks whether a write is allowed here, and cuts the log at the position.
    fn begin_write(&mut self) -> Result<(), CartridgeError> {
        self.check_writable()?;
        if self.header.is_protected {
            return Err(CartridgeError::WriteProtected);
        }
        let is_end = self.at.offset == self.end.offset;
        // Behind a damaged record there is data.
        if self.header.is_worm && (!is_end || self.is_damaged) {
            return Err(CartridgeError::Worm);
        }
        // A damaged first record must not make the cartridge useless: it can be written from its beginning.
        if self.is_damaged && is_end && self.at != BEGINNING {
            return Err(CartridgeError::Damaged(self.end.object));
        }
        if is_end && !self.is_damaged {
            return Ok(());
        }
        self.cut()
    }

    /// Cuts the log at the position.
    ///
    /// Records of the old log may outlive a crash behind the new end. They have fewer cuts than the new records, so
    /// that they do not continue them.
    fn cut(&mut self) -> Result<(), CartridgeError> {
        self.header.cuts += 1;
        self.header.durable_end = self.header.durable_end.min(self.at.offset);
        self.write_header(true)?;
        self.file.truncate(self.at.offset).map_err(|why| self.fail(why))?;
        self.index.cut(self.at.object);
        self.end = self.at;
        self.is_damaged = false;
        // A saved index of fewer cuts is not used.
        self.saved_end = 0;
        Ok(())
    }

    /// Whether records of so many bytes fit.
    fn has_room(&self, bytes: u64) -> bool {
        (self.at.offset - FIRST_RECORD).checked_add(bytes).is_some_and(|sum| sum <= self.header.capacity)
    }

    fn record(
        &self,
        at: Position,
        kind: Kind,
        stored: usize,
        length: usize,
        is_compressed: bool,
        data_sum: u32,
    ) -> Record {
        let bytes = |length| u32::try_from(length).expect("a block has at most 8 MiB");
        Record {
            kind,
            is_compressed,
            stored: bytes(stored),
            length: bytes(length),
            object: at.object,
            file: at.file,
            cuts: self.header.cuts,
            data_sum,
        }
    }

    /// Writes blocks at once: either one block from where it is, or some short ones.
    fn write_batch(&mut self, data: DataOut<'_>, block: usize, compress: bool) -> Written {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let (mut at, mut blocks, mut stopped) = (self.at, 0, None);
        let is_alone = data.len() <= block;
        let mut in_place = DataOut::default();
        for one in data.chunks(block) {
            let start = bytes.len();
            bytes.extend([0; RECORD_BYTES]);
            let packed = if compress { packed(one, &mut self.plain) } else { None };
            match &packed {
                Some(packed) => bytes.extend(packed),
                None if is_alone => in_place = one,
                None => one.append_to(&mut bytes),
            }
            let mut sum = crc32c::crc32c(&bytes[start + RECORD_BYTES..]);
            in_place.pieces(|piece| sum = crc32c::crc32c_append(sum, piece));
            let stored = bytes.len() - start - RECORD_BYTES + in_place.len();
            let record = self.record(at, Kind::Block, stored, one.len(), packed.is_some(), sum);
            if !self.has_room(at.after(&record).offset - self.at.offset) {
                stopped = Some(CartridgeError::Full);
                bytes.truncate(start);
                in_place = DataOut::default();
                break;
            }
            bytes[start..start + RECORD_BYTES].copy_from_slice(&record.emit(self.header.id));
            at = at.after(&record);
            blocks += 1;
        }
        let result = self.append(&bytes, in_place);
        self.scratch = bytes;
        if let Err(why) = result {
            return Written { blocks: 0, stopped: Some(why) };
        }
        if blocks > 0 {
            self.passed(at);
        }
        Written { blocks, stopped }
    }

    /// Appends bytes, and data behind them, at the position, which is the end.
    fn append(&mut self, head: &[u8], data: DataOut<'_>) -> Result<(), CartridgeError> {
        debug_assert_eq!(self.at.offset, self.file.len(), "the position is the end of the log");
        let Err(why) = self.file.append(head, data) else { return Ok(()) };
        // The part of a record that was written is removed. If that fails, nothing more is written.
        match self.file.truncate(self.at.offset) {
            Ok(()) => Err(CartridgeError::of_write(why)),
            Err(_) => Err(self.fail(why)),
        }
    }

    /// Moves the end and the position behind new records.
    fn passed(&mut self, end: Position) {
        // Only the first record of a batch has an entry: its successors are found from there.
        self.index.note(self.at);
        self.at = end;
        self.end = end;
    }

    fn sync_file(&mut self) -> Result<(), CartridgeError> {
        self.file.synchronize().map_err(|why| self.fail(why))
    }

    fn write_header(&mut self, is_durable: bool) -> Result<(), CartridgeError> {
        self.header.sequence += 1;
        self.file.write_header(&self.header).map_err(|why| self.fail(why))?;
        if is_durable { self.sync_file() } else { Ok(()) }
    }

    /// Remembers that the state of the file is unknown.
    fn fail(&mut self, why: std::io::Error) -> CartridgeError {
        self.writes = Writes::Failed;
        CartridgeError::Io(why)
    }
}

/// A block that is shorter if it is compressed; `plain` is memory for a copy.
fn packed(block: DataOut<'_>, plain: &mut Vec<u8>) -> Option<Vec<u8>> {
    let packed = lz4_flex::block::compress(block.bytes(plain));
    Some(packed).filter(|packed| packed.len() < block.len())
}
