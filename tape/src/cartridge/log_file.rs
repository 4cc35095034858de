//! The file of a cartridge: reads through a window, writes, the two copies of the header, and the file of the index.

#[cfg(test)]
pub(crate) mod disk;

use super::CartridgeError;
use super::format::{FIRST_RECORD, HEADER_BYTES, HEADERS, Header};
use super::index::{FILE_BYTES_MAX, Saved};
use lunar_durable::Access;
use lunar_handler::data::{DataIn, DataOut};
use lunar_reactor::blocking::begin_write_back;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are read at once when headers of records are read.
const WINDOW_BYTES: usize = 128 << 10;

/// Bytes of new data after which their write-back begins.
const WRITE_BACK_BYTES: u64 = 8 << 20;
/// While records are appended, the file ends at a multiple of this: zeroes follow the log. A write that begins in the
/// middle of a page of the page cache, or needs many small pages, takes several times as long as one whose pages are
/// there or begin at such a multiple. Write-back has the same unit, because what is not full is written again.
pub(super) const PADDED_BYTES: u64 = 256 << 10;
static ZEROES: [u8; PADDED_BYTES as usize] = [0; PADDED_BYTES as usize];

/// A random number: identities of cartridges only have to differ.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Opens the file: for reading only, and returns `false`, if it cannot be written.
fn open(path: &Path) -> io::Result<(File, bool)> {
    #[cfg(test)]
    if disk::is_read_only() {
        return Ok((File::open(path)?, false));
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(why) if matches!(why.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            Ok((File::open(path)?, false))
        }
        Err(why) => Err(why),
    }
}

fn put(file: &File, offset: u64, (head, data, tail): (&[u8], DataOut<'_>, &[u8])) -> io::Result<()> {
    #[cfg(test)]
    disk::write(offset, &[head, &data.to_vec(), tail].concat())?;
    data.write_at(file, head, tail, offset)
}

/// The file of a cartridge.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    path: PathBuf,
    is_writable: bool,
    /// Bytes of the headers and of the log.
    len: u64,
    /// The end of the zeroes that follow the log in the file.
    padded: u64,
    /// Bytes of the file from `window_at` on, as they were read.
    window: Vec<u8>,
    window_at: u64,
    /// Bytes that are read at once.
    ahead: usize,
    /// The bytes before it are on the way to the medium, or there.
    begun: u64,
}

impl LogFile {
    pub(super) fn create(path: &Path, header: &Header) -> Result<(), CartridgeError> {
        // Backups hold whatever the machines hold: they are for their owner alone.
        lunar_durable::create(path, Access::AtMost(0o600), |file| {
            file.write_all_at(&header.emit(), HEADERS[0])?;
            file.set_len(FIRST_RECORD)
        })?;
        Ok(())
    }

    pub(super) fn open(path: &Path) -> Result<(Self, Header), CartridgeError> {
        let (file, is_writable) = open(path)?;
        // Some file systems lock a file that is open for reading only against writers alone.
        match if is_writable { file.try_lock() } else { file.try_lock_shared() } {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(CartridgeError::InUse),
            Err(TryLockError::Error(why)) => return Err(why.into()),
        }
        let len = file.metadata()?.len();
        let mut newest: Option<Header> = None;
        for at in HEADERS {
            let mut bytes = [0; HEADER_BYTES];
            match file.read_exact_at(&mut bytes, at) {
                Ok(()) => {}
                Err(why) if why.kind() == ErrorKind::UnexpectedEof => continue,
                Err(why) => return Err(why.into()),
            }
            if let Some(header) = Header::parse(&bytes)?
                && newest.as_ref().is_none_or(|newest| newest.sequence < header.sequence)
            {
                newest = Some(header);
            }
        }
        let header = newest.ok_or(CartridgeError::NotACartridge)?;
        let (path, window) = (path.to_owned(), Vec::new());
        let (window_at, ahead) = (0, WINDOW_BYTES);
        Ok((Self { file, path, is_writable, len, padded: len, window, window_at, ahead, begun: len }, header))
    }

    /// Whether the file is open for writing.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Bytes of the headers and of the log.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether only padding follows `end`, which is the end of the log then. The process that wrote it did not end as
    /// it should.
    pub(super) fn ends_at(&mut self, end: u64) -> io::Result<bool> {
        let rest = self.len.saturating_sub(end);
        if rest >= PADDED_BYTES {
            return Ok(false);
        }
        let mut bytes = vec![0; rest as usize];
        self.file.read_exact_at(&mut bytes, end)?;
        let is_padding = bytes.iter().all(|byte| *byte == 0);
        if is_padding {
            self.len = end;
        }
        Ok(is_padding)
    }

    /// Says how long the record at the last read is: the headers of long records are not in one window, so nothing is
    /// read ahead.
    pub(super) fn expect(&mut self, record: u64) {
        self.ahead = if record > (WINDOW_BYTES / 4) as u64 { 0 } else { WINDOW_BYTES };
    }

    /// Fills `into` from `offset` on; `false` if the file ends before.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return Ok(false);
        }
        if into.len() > WINDOW_BYTES / 2 {
            self.file.read_exact_at(into, offset)?;
            return Ok(true);
        }
        let start = offset.checked_sub(self.window_at).and_then(|start| usize::try_from(start).ok());
        let inside = start.and_then(|start| self.window.get(start..start.checked_add(into.len())?));
        if let Some(bytes) = inside {
            into.copy_from_slice(bytes);
            return Ok(true);
        }
        let rest = usize::try_from(self.len - offset).unwrap_or(usize::MAX);
        self.window.clear();
        self.window.resize(into.len().max(self.ahead).min(rest), 0);
        self.window_at = offset;
        if let Err(why) = self.file.read_exact_at(&mut self.window, offset) {
            self.window.clear();
            return Err(why);
        }
        into.copy_from_slice(&self.window[..into.len()]);
        Ok(true)
    }

    /// Fills a part of `into` from `offset` on; `false` if the file ends before.
    pub(super) fn read_into(&mut self, offset: u64, into: &mut DataIn<'_>, place: Range<usize>) -> io::Result<bool> {
        if offset.checked_add(place.len() as u64).is_none_or(|end| end > self.len) {
            return Ok(false);
        }
        into.read_at(place, &self.file, offset)?;
        Ok(true)
    }

    /// Writes records again that are in the log.
    pub(super) fn write_again(&mut self, offset: u64, records: &[u8]) -> io::Result<()> {
        self.window.clear();
        put(&self.file, offset, (records, DataOut::default(), &[]))
    }

    /// Writes `head`, and `data` behind it, at the end of the log.
    pub(super) fn append(&mut self, head: &[u8], data: DataOut<'_>) -> io::Result<()> {
        self.window.clear();
        let end = self.len + (head.len() + data.len()) as u64;
        // The pages of the padding are there for the next records.
        let padded = if end > self.padded { end.next_multiple_of(PADDED_BYTES) } else { end };
        let written = put(&self.file, self.len, (head, data, &ZEROES[..(padded - end) as usize]));
        match written {
            // There may be space for the records alone.
            Err(_) if padded > end => put(&self.file, self.len, (head, data, &[]))?,
            written => written?,
        }
        self.len = end;
        self.padded = self.padded.max(padded);
        self.write_back();
        Ok(())
    }

    /// Begins to write new data to the medium, so that a synchronization waits for little.
    fn write_back(&mut self) {
        let end = self.len / PADDED_BYTES * PADDED_BYTES;
        if let Some(new) = end.checked_sub(self.begun).filter(|new| *new >= WRITE_BACK_BYTES) {
            // A hint: errors appear when the file is synchronized.
            let _ = begin_write_back(self.file.as_fd(), self.begun, new);
            self.begun = end;
        }
    }

    /// Makes the file end at `offset`.
    pub(super) fn truncate(&mut self, offset: u64) -> io::Result<()> {
        self.window.clear();
        self.file.set_len(offset)?;
        #[cfg(test)]
        disk::truncate(offset);
        (self.len, self.padded) = (offset, offset);
        self.begun = self.begun.min(offset);
        Ok(())
    }

    /// Brings the data of the file to the medium.
    pub(super) fn synchronize(&self) -> io::Result<()> {
        #[cfg(test)]
        disk::synchronize()?;
        self.file.sync_data()
    }

    /// Writes the copy of the header that is the older one.
    pub(super) fn write_header(&self, header: &Header) -> io::Result<()> {
        let at = HEADERS[usize::from(header.sequence.is_multiple_of(2))];
        put(&self.file, at, (&header.emit(), DataOut::default(), &[]))
    }

    fn index_path(&self) -> PathBuf {
        self.path.with_extension("index")
    }

    /// The saved index, if there is a sound one.
    pub(super) fn saved_index(&self) -> Option<Saved> {
        let file = File::open(self.index_path()).ok()?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Saved::parse(&bytes)
    }

    /// Saves the index.
    pub(super) fn save_index(&self, saved: &Saved) -> io::Result<()> {
        let path = self.index_path();
        let new = path.with_extension("index.new");
        fs::write(&new, saved.emit())?;
        fs::rename(&new, &path)
    }
}

impl Drop for LogFile {
    /// Removes the padding. If that fails, the next process finds out that it is none of the log.
    fn drop(&mut self) {
        if self.padded > self.len {
            let _ = self.truncate(self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;
    use crate::test_folder::TestFolder;

    #[test]
    fn new_data_is_on_its_way_to_the_medium_before_it_is_synchronized() {
        let folder = TestFolder::new();
        let path = folder.path().join("A.tape");
        let header = Header {
            id: 1,
            sequence: 1,
            generation: Generation::Lto8,
            is_worm: false,
            is_protected: false,
            capacity: 1 << 40,
            cuts: 0,
            durable_end: FIRST_RECORD,
            loads: 0,
            barcode: "A".into(),
        };
        LogFile::create(&path, &header).unwrap();
        let (mut file, _) = LogFile::open(&path).unwrap();
        let data = vec![7; 1 << 20];
        for _ in 0..8 {
            assert_eq!(file.begun, FIRST_RECORD);
            file.append(&[1; 48], DataOut::from(&data[..])).unwrap();
        }
        assert_eq!(file.begun, FIRST_RECORD, "the last part is not full");
        file.append(&[1; 48], DataOut::from(&data[..])).unwrap();
        assert_eq!(file.begun, 9 << 20);
        file.truncate(10_000).unwrap();
        assert_eq!(file.begun, 10_000);
    }
}
