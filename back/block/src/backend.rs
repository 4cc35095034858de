//! Block devices as a back end of the engine: the kind `block`.

use crate::BlockVolume;
use crate::error::{DeviceError, DeviceMistake, OneProcess};
use crate::open::{Mark as BlockMark, Options, mark_at};
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal,
    StoreRequest, StoreTrouble, TextForm,
};
use lunar_reactor::Reactor;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// The kind `block`.
#[derive(Debug)]
pub struct BlockBackend;

impl Backend for BlockBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::PathIf(|path| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()))
    }

    fn examples(&self) -> &'static [&'static str] {
        &["/dev/sdb"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, path: &Path, _: bool) -> JailPaths {
        JailPaths { write: vec![path.to_owned()], ..JailPaths::default() }
    }

    fn mark_at(&self, path: &Path, _: bool) -> Option<Mark> {
        mark_at(path).map(mark_of)
    }

    fn fingerprint(&self, path: &Path, _: bool) -> Option<Fingerprint> {
        fingerprint(&mark_at(path)?)
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let path = request.required_path()?;
        let refused = |mistake| Refusal::store(DeviceError::new(path, mistake, request));
        if request.size.is_some() {
            return Err(refused(DeviceMistake::HasSize));
        }
        if request.shared {
            return Err(refused(DeviceMistake::NotShared));
        }
        let options = Options {
            read_only: request.read_only,
            durable: request.write_through,
            direct: request.direct,
            block_size: request.block_size,
        };
        let volume = match previous.and_then(Opened::downcast::<BlockVolume>) {
            Some(previous) => previous.reopen(path, &options),
            None => BlockVolume::new(path, &options),
        };
        Ok(Opened::Store(Arc::new(volume.map_err(|why| refused(DeviceMistake::Unusable(why)))?)))
    }
}

/// The fingerprint of a device with this mark.
fn fingerprint(mark: &BlockMark) -> Option<Fingerprint> {
    match mark {
        BlockMark::Named(_) => Some(Fingerprint::of_mark(&mark_of(mark.clone()))),
        // Any device may be at a place.
        BlockMark::Place(_) => None,
    }
}

fn mark_of(mark: BlockMark) -> Mark {
    match mark {
        BlockMark::Named(name) => Mark::Global { space: "device", name },
        BlockMark::Place(place) => Mark::Local { space: "place", parts: vec![place] },
    }
}

/// The same store on a device, which one process has for itself.
pub(crate) fn unshared<S: OpenedStore + Clone>(store: &S, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
    match is_shared {
        true => Err(Refusal::store(OneProcess)),
        false => Ok(Arc::new(store.clone())),
    }
}

impl OpenedStore for BlockVolume {
    fn traits(&self) -> &Traits {
        Self::traits(self)
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark_of(Self::mark(self).clone()))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        fingerprint(Self::mark(self))
    }

    fn is_direct(&self) -> bool {
        Self::is_direct(self)
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        unshared(self, is_shared)
    }

    // A device has one way of being open for this process alone.
    fn finalize(&self) {}

    fn has_other_size(&self) -> bool {
        self.has_grown()
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        Self::examine(self)
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_engine::origin::{Arguments, Origin};

    static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());

    #[test]
    fn a_device_takes_neither_a_size_nor_sharing() {
        let path = Path::new("/dev/sdzz");
        let request = StoreRequest::of_command_line("disk", &COMMAND_LINE, Some(path));
        let refused = |request: StoreRequest<'_>| BlockBackend.open(&request, None).expect_err("refused").to_string();
        let sized = StoreRequest { size: Some(1 << 30), ..request };
        assert_eq!(refused(sized), "/dev/sdzz is a device and has its size: name it without one, /dev/sdzz");
        let shared = refused(StoreRequest { shared: true, ..request });
        assert_eq!(shared, "/dev/sdzz: a device is served by one process: leave out --shared");
        assert!(refused(request).starts_with("/dev/sdzz "));
        let TextForm::PathIf(takes) = BlockBackend.form() else { panic!("devices are found by their type") };
        assert!(!takes(path) && !takes(Path::new("/dev/null")));
    }
}
