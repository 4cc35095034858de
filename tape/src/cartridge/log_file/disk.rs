//! A model of a disk below the page cache, for the cartridge of a test: a synchronization that fails loses what was
//! written since the last one, and the page cache still has it.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;

/// A change that is in the page cache only.
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

#[derive(Default)]
struct Disk {
    /// The content of the file on the disk.
    durable: Vec<u8>,
    pending: Vec<Change>,
    fails: bool,
    is_read_only: bool,
    /// Bytes of a file that fit.
    space: Option<u64>,
}

thread_local! {
    static DISK: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

fn with<T: Default>(work: impl FnOnce(&mut Disk) -> T) -> T {
    DISK.with_borrow_mut(|disk| disk.as_mut().map(work).unwrap_or_default())
}

/// Begins: the disk has the file as it is.
pub(crate) fn begin(path: &Path) {
    let durable = fs::read(path).unwrap();
    DISK.set(Some(Disk { durable, ..Disk::default() }));
}

/// Synchronizations fail from now on, or succeed.
pub(crate) fn fail(fails: bool) {
    with(|disk| disk.fails = fails);
}

/// The file can only be read from now on.
pub(crate) fn make_read_only() {
    with(|disk| disk.is_read_only = true);
}

/// So many bytes of the file fit from now on.
pub(crate) fn limit_space(bytes: u64) {
    with(|disk| disk.space = Some(bytes));
}

/// The power is cut: the file has the content of the disk.
pub(crate) fn cut_power(path: &Path) {
    let disk = DISK.take().unwrap();
    fs::write(path, disk.durable).unwrap();
}

pub(super) fn is_read_only() -> bool {
    with(|disk| disk.is_read_only)
}

pub(super) fn write(offset: u64, bytes: &[u8]) -> io::Result<()> {
    if with(|disk| disk.space).is_some_and(|space| offset + bytes.len() as u64 > space) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    with(|disk| disk.pending.push(Change::Write(offset, bytes.to_vec())));
    if is_read_only() { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
}

pub(super) fn truncate(length: u64) {
    with(|disk| disk.pending.push(Change::Truncate(length)));
}

pub(super) fn synchronize() -> io::Result<()> {
    let has_failed = with(|disk| {
        let pending = std::mem::take(&mut disk.pending);
        let fails = disk.fails;
        for change in pending.into_iter().filter(|_| !fails) {
            match change {
                Change::Truncate(length) => disk.durable.resize(length as usize, 0),
                Change::Write(offset, bytes) => {
                    let (from, to) = (offset as usize, offset as usize + bytes.len());
                    disk.durable.resize(disk.durable.len().max(to), 0);
                    disk.durable[from..to].copy_from_slice(&bytes);
                }
            }
        }
        fails
    });
    if has_failed { Err(io::Error::other("the disk fails")) } else { Ok(()) }
}
