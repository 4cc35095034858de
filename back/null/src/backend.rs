//! Zeroes as a back end of the engine: the kind `null`.

use crate::NullVolume;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal, StoreRequest,
    TextForm,
};
use lunar_reactor::Reactor;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The kind `null`.
#[derive(Debug)]
pub struct NullBackend;

impl Backend for NullBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndSize
    }

    fn examples(&self) -> &'static [&'static str] {
        &["null:1T"]
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

    fn open(&self, request: &StoreRequest<'_>, _: Option<&Opened>) -> Result<Opened, Refusal> {
        Ok(Opened::Store(Arc::new(NullVolume::new(request.required_size()?, request.read_only))))
    }
}

impl OpenedStore for NullVolume {
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

    // There is no data that processes could share.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {}

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}
