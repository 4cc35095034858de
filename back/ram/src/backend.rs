//! Memory as a back end of the engine: the kind `ram`.

use crate::{RamVolume, SIZE_MAX};
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal, StoreRequest,
    TextForm,
};
use lunar_reactor::Reactor;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The kind `ram`.
#[derive(Debug)]
pub struct RamBackend;

impl Backend for RamBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndSize
    }

    fn examples(&self) -> &'static [&'static str] {
        &["ram:1G"]
    }

    fn location(&self) -> Location {
        Location::Process
    }

    fn durability(&self) -> Durability {
        Durability::Volatile
    }

    fn jail_paths(&self, _: &Path, _: bool) -> JailPaths {
        JailPaths::default()
    }

    fn mark_at(&self, _: &Path, _: bool) -> Option<Mark> {
        None
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let size = request.required_size()?;
        let volume = match previous.and_then(Opened::downcast::<RamVolume>) {
            Some(previous) => previous.reopen(size, request.read_only),
            None => RamVolume::new(size, request.read_only),
        };
        let volume = volume.map_err(|_| too_large(request.name))?;
        Ok(Opened::Store(Arc::new(volume)))
    }
}

fn too_large(name: &str) -> Refusal {
    Refusal::store(TooLarge(name.to_owned()))
}

/// The volume of this name would have more than [`SIZE_MAX`] bytes.
#[derive(Debug)]
struct TooLarge(String);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: no machine has that much memory, {SIZE_MAX} bytes at most", self.0)
    }
}

impl std::error::Error for TooLarge {}

impl OpenedStore for RamVolume {
    fn traits(&self) -> &Traits {
        Self::traits(self)
    }

    fn mark(&self) -> Option<Mark> {
        None
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    // Other processes cannot have this memory.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {}

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        let store = Self::new(request.size, false).map_err(|_| too_large(request.volume.name))?;
        Ok(Arc::new(store))
    }
}
