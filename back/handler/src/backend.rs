//! Handlers as a back end of the engine: the kind `handler`.

use crate::error::{HandlerError, Mistake};
use crate::schema::{HandlerKeys, PATIENCE, SOCKET_MODE};
use crate::shared::Unit;
use crate::volume::HandlerVolume;
use lunar_control::api::HandlerView;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal, StoreRequest,
    StoreTrouble, TextForm,
};
use lunar_reactor::Reactor;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The kind `handler`.
#[derive(Debug)]
pub struct HandlerBackend;

impl Backend for HandlerBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndPathAndSize
    }

    fn examples(&self) -> &'static [&'static str] {
        &["handler:disk.sock:20G"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    // The data is the handler's, and outlives this process.
    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, path: &Path, _: bool) -> JailPaths {
        // The socket is made in the folder.
        let folder = path.parent().filter(|folder| *folder != Path::new("/"));
        JailPaths { create: folder.map(Path::to_owned).into_iter().collect(), ..JailPaths::default() }
    }

    fn mark_at(&self, path: &Path, _: bool) -> Option<Mark> {
        Some(mark(path))
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let path = request.required_path()?;
        let refused = |mistake| Refusal::store(HandlerError::new(path, mistake, request));
        if request.direct {
            return Err(refused(Mistake::Direct));
        }
        let keys = request.own.and_then(|own| own.get::<HandlerKeys>());
        let unit = Unit {
            name: request.name.to_owned(),
            path: path.to_owned(),
            size: request.required_size()?,
            block_size: request.block_size,
            read_only: request.read_only,
            discard: keys.is_some_and(|keys| keys.discard),
            mode: keys.map_or(SOCKET_MODE, |keys| keys.socket_mode.0),
            command_timeout: keys.map_or(PATIENCE, |keys| keys.command_timeout.0),
            restart_time: keys.map_or(PATIENCE, |keys| keys.restart_time.0),
        };
        let previous = previous.and_then(Opened::downcast::<HandlerVolume>);
        let volume = match previous.filter(|previous| previous.path() == path) {
            Some(previous) => previous.reopen(unit, request.write_through),
            None => HandlerVolume::new(unit, request.write_through),
        };
        Ok(Opened::Store(Arc::new(volume.map_err(refused)?)))
    }
}

/// The place of the socket on this server: the data has no other name that Lunar knows.
fn mark(path: &Path) -> Mark {
    Mark::Local { space: "handler", parts: vec![path.display().to_string()] }
}

impl OpenedStore for HandlerVolume {
    fn traits(&self) -> &Traits {
        Self::traits(self)
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark(self.path()))
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    // The handler has its data to itself, or not: Lunar cannot tell.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {
        Self::finalize(self);
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        Self::examine(self)
    }

    fn handler(&self) -> Option<HandlerView> {
        Some(self.view())
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}
