//! SCSI devices as a back end of the engine: the kind `scsi`.

use crate::device::{Device, Machine, Shared, ThisMachine, Wanted};
use crate::error::{DeviceError, Mistake};
use crate::resolve::resolve;
use crate::schema::{Exclusive, ScsiKeys};
use lunar_control::schema::StoreSchema;
use lunar_control::value::Whole;
use lunar_engine::backend::{Backend, Durability, JailPaths, Location, Mark, Opened, Refusal, StoreRequest, TextForm};
use lunar_scsi::forwarding::Terms;
use lunar_scsi::peripheral::PeripheralType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kind `scsi`.
#[derive(Debug)]
pub struct ScsiBackend;

impl Backend for ScsiBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndPath
    }

    fn examples(&self) -> &'static [&'static str] {
        &["scsi:/dev/sg3"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    // Its data outlives the process, and so do persistent reservations.
    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, path: &Path, _: bool) -> JailPaths {
        let nodes = resolve(path).ok().map(|nodes| [Some(nodes.generic), nodes.block]);
        let nodes = nodes.into_iter().flatten().flatten();
        // A device that comes back has a new node.
        JailPaths {
            write: std::iter::once(path.to_owned()).chain(nodes).collect(),
            devices: vec![PathBuf::from("/dev")],
            ..JailPaths::default()
        }
    }

    // A device says its name when it is opened.
    fn mark_at(&self, _: &Path, _: bool) -> Option<Mark> {
        None
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        open(Box::new(ThisMachine), request, previous)
    }
}

/// Opens a device of a machine.
pub(crate) fn open(
    machine: Box<dyn Machine>,
    request: &StoreRequest<'_>,
    previous: Option<&Opened>,
) -> Result<Opened, Refusal> {
    let path = request.required_path()?;
    let refused = |mistake| Refusal::store(DeviceError::new(path, mistake, request));
    if request.size.is_some() {
        return Err(refused(Mistake::HasSize));
    }
    if request.direct || request.write_through {
        return Err(refused(Mistake::Cache));
    }
    let keys = request.own.and_then(|own| own.get::<ScsiKeys>());
    let wanted = Wanted { path, is_claimed: !request.shared };
    let shared = match previous.and_then(Opened::downcast::<Device>).filter(|device| device.shared.is_at(&wanted)) {
        Some(device) => device.shared.clone(),
        None => {
            let opened = Shared::open(machine, &wanted).map_err(|why| refused(Mistake::Unusable(why)))?;
            Arc::new(opened)
        }
    };
    let terms = terms(keys, shared.found.device_type);
    Ok(Opened::Device(Arc::new(Device { shared, terms })))
}

/// The terms on which a device of this type is shared.
fn terms(keys: Option<&ScsiKeys>, device: PeripheralType) -> Terms {
    let exclusive = match keys.map_or(Exclusive::Tapes, |keys| keys.exclusive) {
        Exclusive::Tapes => device == PeripheralType::TAPE,
        Exclusive::Always => true,
        Exclusive::Never => false,
    };
    let allowed = keys.into_iter().flat_map(|keys| &keys.allow);
    Terms { exclusive, allowed: allowed.filter_map(|op| u8::try_from(Whole::get(*op)).ok()).collect() }
}
