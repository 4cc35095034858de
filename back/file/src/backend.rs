//! Files as a back end of the engine: the kind `file`.

use crate::error::{FileError, ProtectionFileError, SharingError, in_dev};
use crate::open::{Options, Refusal as FileRefusal};
use crate::{FileVolume, mark};
use lunar_control::files::{self, Access};
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, PoolSpace, ProtectionRequest,
    Refusal, StoreRequest, StoreTrouble, TextForm,
};
use lunar_reactor::block_device::{device_name, device_serial};
use lunar_reactor::{Reactor, log};
use rustix::fs::{AtFlags, StatxFlags, fstat, statx};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The end of the name of the file with the protection information of `disk.img`: `disk.img.pi`.
const PROTECTION_SUFFIX: &str = ".pi";

/// The kind `file`.
#[derive(Debug)]
pub struct FileBackend;

impl Backend for FileBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::OtherPath
    }

    fn examples(&self) -> &'static [&'static str] {
        &["disk.img", "disk.img:20G"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, path: &Path, is_protected: bool) -> JailPaths {
        let protection = with_suffix(path);
        // A file that is missing is created in the folder: that of the volume, or that of its protection information.
        let is_complete = path.exists() && (!is_protected || protection.exists());
        let folder = path.parent().filter(|folder| !is_complete && *folder != Path::new("/"));
        JailPaths {
            write: vec![protection, path.to_owned()],
            create: folder.map(Path::to_owned).into_iter().collect(),
            ..JailPaths::default()
        }
    }

    fn companions(&self) -> &'static [&'static str] {
        &[PROTECTION_SUFFIX]
    }

    fn mark_at(&self, path: &Path, read_only: bool) -> Option<Mark> {
        mark::at(path, read_only).map(mark_of)
    }

    fn fingerprint(&self, path: &Path, read_only: bool) -> Option<Fingerprint> {
        fingerprint_at(path, read_only)
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let path = request.required_path()?;
        let opened = match in_dev(path) && !path.exists() {
            // A file that is created instead of a missing device would be in memory, and the operator would not notice.
            true => Err(FileRefusal::Missing),
            false => match previous.and_then(Opened::downcast::<FileVolume>) {
                Some(previous) => previous.reopen(path, &options_of(request)),
                None => FileVolume::new(path, &options_of(request)),
            },
        };
        let volume = opened.map_err(|why| Refusal::store(FileError::new(path, why, request)))?;
        if request.grows
            && let Some(size) = request.size
            && let Ok(found) = std::fs::metadata(path)
            && found.len() > size
        {
            log!(
                warning,
                "volume {}: {} is larger than its size here; the rest is not used",
                request.name,
                path.display()
            );
        }
        Ok(Opened::Store(Arc::new(volume)))
    }
}

fn options_of(request: &StoreRequest<'_>) -> Options {
    Options {
        size: request.size,
        creates: request.creates,
        grows: request.grows,
        mark: request.mark,
        read_only: request.read_only,
        shared: request.shared,
        durable: request.write_through,
        direct: request.direct,
        block_size: request.block_size,
    }
}

fn mark_of(mark: mark::Mark) -> Mark {
    match mark {
        mark::Mark::Stored(number) => Mark::Number(number),
        mark::Mark::Place(place) => Mark::Local { space: "file", parts: vec![place] },
    }
}

/// The fingerprint of the file at this path.
fn fingerprint_at(path: &Path, read_only: bool) -> Option<Fingerprint> {
    let file = files::open(path, Access::Read).ok()?;
    let mark = mark::found(file.as_fd(), path, &fstat(&file).ok()?, read_only)?;
    fingerprint(file.as_fd(), &mark)
}

/// The fingerprint of an open file with this mark.
fn fingerprint(file: BorrowedFd<'_>, mark: &mark::Mark) -> Option<Fingerprint> {
    let known = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_dated = known.stx_mask & StatxFlags::BTIME.bits() != 0;
    let created = is_dated.then_some((known.stx_btime.tv_sec, known.stx_btime.tv_nsec));
    let device = fstat(file).ok()?.st_dev;
    // A serial number that a hypervisor gives is the same only on copies of a disk that it attaches with it.
    compose(mark, created, device_name(device).or_else(|| device_serial(device)))
}

/// The fingerprint of a file: its number, when it was created, and the name of the device that it is on. Snapshots and
/// copies of a file system have files with the same numbers and times, so both are its origin, or none. Any file may be
/// at a place.
fn compose(mark: &mark::Mark, created: Option<(i64, u32)>, device: Option<String>) -> Option<Fingerprint> {
    let mark::Mark::Stored(number) = mark else { return None };
    let with_device = |((seconds, nanoseconds), device)| format!("created {seconds}.{nanoseconds:09}, {device}");
    Some(Fingerprint { mark: Mark::Number(*number).to_string(), origin: created.zip(device).map(with_device) })
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PROTECTION_SUFFIX);
    PathBuf::from(name)
}

impl OpenedStore for FileVolume {
    fn traits(&self) -> &Traits {
        Self::traits(self)
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark_of(Self::mark(self).clone()))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        fingerprint(self.file(), Self::mark(self))
    }

    fn is_direct(&self) -> bool {
        Self::is_direct(self)
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        let shared =
            self.sharing(is_shared).map_err(|why| Refusal::store(SharingError(self.name().to_string(), why)))?;
        Ok(Arc::new(shared))
    }

    fn finalize(&self) {
        Self::finalize(self);
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        Self::examine(self)
    }

    fn pool_space(&self) -> Option<PoolSpace> {
        Self::pool_space(self)
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(protection_file(request)?))
    }
}

/// Opens the file with the protection information of a volume; it is created for a volume that never had any.
fn protection_file(request: &ProtectionRequest<'_>) -> Result<FileVolume, Refusal> {
    let volume = request.volume;
    let path = volume.required_path()?;
    // A file may have several names; its protection information has one.
    let real = path.canonicalize().map_err(|why| Refusal::store(ProtectionFileError::Path(path.to_owned(), why)))?;
    let file = with_suffix(&real);
    match (request.is_new, file.exists()) {
        (true, true) => {
            let volume = path.to_owned();
            return Err(Refusal::store(ProtectionFileError::Surplus { file, volume }));
        }
        (false, false) => log!(error, "{} is gone: blocks that were written before are not checked", file.display()),
        _ => {}
    }
    let options = Options {
        size: Some(request.size),
        creates: true,
        grows: false,
        mark: None,
        read_only: false,
        shared: volume.shared,
        durable: volume.write_through,
        // There are few bytes for each block: without the page cache they would be read before they are written.
        direct: false,
        block_size: 512,
    };
    FileVolume::new(&file, &options).map_err(|why| {
        Refusal::store(match why {
            FileRefusal::OtherSize { .. } => ProtectionFileError::OtherSize(file, volume.origin.option("block-size")),
            why => ProtectionFileError::Unusable(file, why),
        })
    })
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
