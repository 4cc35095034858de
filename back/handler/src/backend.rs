//! Handlers as a back end of the engine: the kind `handler`.

use crate::error::{HandlerError, Mistake};
use crate::life::{Lifetime, until_all_ended};
use crate::schema::{DEVICE_TYPES, DeviceType, HandlerKeys, PATIENCE, SOCKET_MODE};
use crate::shared::Unit;
use crate::volume::{HandlerUnit, HandlerVolume};
use lunar_control::api::HandlerView;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedDevice, OpenedStore, PoolSpace, ProtectionRequest,
    Refusal, StoreRequest, StoreTrouble, TextForm,
};
use lunar_reactor::Reactor;
use lunar_scsi::device_server::DeviceServer;
use lunar_scsi::forwarding::Terms;
use lunar_scsi::peripheral::PeripheralType;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// The kind `handler`.
#[derive(Debug)]
pub struct HandlerBackend;

impl Backend for HandlerBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndPathAndSizeOr("device-type", DEVICE_TYPES)
    }

    fn examples(&self) -> &'static [&'static str] {
        &["handler:disk.sock:20G", "handler:drive.sock:tape"]
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
        let device = keys.and_then(|keys| keys.device_type).map(DeviceType::code);
        let unit = Unit {
            name: request.name.to_owned(),
            path: path.to_owned(),
            size: if device.is_some() { 0 } else { request.required_size()? },
            block_size: if device.is_some() { 0 } else { request.block_size },
            read_only: request.read_only,
            discard: keys.is_some_and(|keys| keys.discard),
            device,
            mode: keys.map_or(SOCKET_MODE, |keys| keys.socket_mode.0),
            command_timeout: keys.and_then(|keys| keys.command_timeout).map(|time| time.0),
            restart_time: keys.map_or(PATIENCE, |keys| keys.restart_time.0),
            image: None,
        };
        let previous = previous.and_then(life_of).filter(|(_, unit)| unit.path == path).map(|(life, _)| life);
        let Some(device_type) = device else {
            let volume = match previous {
                Some(life) => HandlerVolume::reopen(life, unit, request.write_through),
                None => HandlerVolume::new(unit, request.write_through),
            };
            return Ok(Opened::Store(Arc::new(volume.map_err(refused)?)));
        };
        let wrong = [
            (request.size.is_some(), Mistake::HasSize),
            (request.write_through, Mistake::Cache),
            (unit.discard, Mistake::Discard),
        ];
        if let Some((_, mistake)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(refused(mistake));
        }
        let life = previous.cloned().map_or_else(|| Lifetime::begin(&unit), Ok).map_err(refused)?;
        // Two writers ruin a tape.
        let terms = Terms { exclusive: device_type == PeripheralType::TAPE, ..Terms::default() };
        Ok(Opened::Device(Arc::new(HandlerUnit { life, unit, device_type, terms })))
    }

    fn finish(&self) {
        until_all_ended();
    }
}

/// The socket of what is open, and its terms.
fn life_of(opened: &Opened) -> Option<(&Arc<Lifetime>, &Unit)> {
    let of_volume = opened.downcast::<HandlerVolume>().map(|volume| (volume.life(), volume.unit()));
    of_volume.or_else(|| opened.downcast::<HandlerUnit>().map(|device| (&device.life, &device.unit)))
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
        Some(mark(&self.unit().path))
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    fn open_commands(&self, reactor: &Reactor) -> Option<Rc<dyn DeviceServer>> {
        Some(Self::open_commands(self, reactor))
    }

    // The handler has its data to itself, or not: Lunar cannot tell.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {
        self.life().set_unit(self.unit());
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        self.life().examine(self.unit())
    }

    fn handler(&self) -> Option<HandlerView> {
        Some(self.life().view(self.unit()))
    }

    fn pool_space(&self) -> Option<PoolSpace> {
        self.life().pool_space(self.unit(), self.unit().size)
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

impl OpenedDevice for HandlerUnit {
    fn mark(&self) -> Option<Mark> {
        Some(mark(&self.unit.path))
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Rc<dyn DeviceServer>> {
        Ok(Self::open(self, reactor))
    }

    fn finalize(&self) {
        self.life.set_unit(&self.unit);
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        self.life.examine(&self.unit)
    }

    fn handler(&self) -> Option<HandlerView> {
        Some(self.life.view(&self.unit))
    }
}
