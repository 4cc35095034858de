//! The kind `tape`: a back end that opens a device.

use crate::drive::{Drive, Tape};
use lunar_control::schema::{self, Serves, SizeRule, StoreSchema};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedDevice, Refusal, StoreRequest, TextForm,
};
use lunar_reactor::Reactor;
use lunar_scsi::device_server::DeviceServer;
use std::fmt;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Its declaration for the configuration.
static SCHEMA: StoreSchema = StoreSchema {
    word: "tape",
    doc: "a tape drive in memory",
    noun: "tape",
    location: schema::Location::Nowhere,
    size: SizeRule::Refused,
    serves: Serves::Device,
    keys: None,
};

/// The kind `tape`.
#[derive(Debug)]
pub struct TapeBackend;

impl Backend for TapeBackend {
    fn schema(&self) -> &'static StoreSchema {
        &SCHEMA
    }

    fn form(&self) -> TextForm {
        TextForm::Name
    }

    fn examples(&self) -> &'static [&'static str] {
        &["tape:"]
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
        if request.size.is_some() {
            return Err(Refusal::store(HasNoSize(request.name.to_owned())));
        }
        let previous = previous.and_then(Opened::downcast::<TapeDevice>);
        Ok(Opened::Device(Arc::new(previous.cloned().unwrap_or_default())))
    }
}

/// The drive of this name was given a size.
#[derive(Debug)]
struct HasNoSize(String);

impl fmt::Display for HasNoSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a tape drive has no size", self.0)
    }
}

impl std::error::Error for HasNoSize {}

/// A drive that was opened. All cores have the same tape.
#[derive(Clone, Default, Debug)]
struct TapeDevice {
    tape: Arc<Tape>,
}

impl OpenedDevice for TapeDevice {
    fn mark(&self) -> Option<Mark> {
        None
    }

    fn open(&self, _: &Reactor) -> io::Result<Rc<dyn DeviceServer>> {
        Ok(Rc::new(Drive::new(self.tape.clone())))
    }

    fn finalize(&self) {}
}
