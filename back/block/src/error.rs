//! Why a device cannot be a volume, with advice to the operator.

use crate::open::Refusal;
use lunar_control::files::{self, Access};
use lunar_engine::backend::{StoreRequest, UnevenSize};
use lunar_engine::origin::Wording;
use std::fmt;
use std::path::{Path, PathBuf};

/// A device cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct DeviceError {
    path: PathBuf,
    mistake: DeviceMistake,
    wording: Wording,
    /// The rest of the message about a size that does not fit.
    block_size: u32,
    is_disc: bool,
    /// Whether this user may read the device, and asked to write to it.
    is_readable: bool,
}

/// The reason for which a device cannot be opened.
#[derive(Debug)]
pub(crate) enum DeviceMistake {
    /// A size is given, and a device has its own.
    HasSize,
    /// It is to be shared, and a device is served by one process.
    NotShared,
    /// The device itself.
    Unusable(Refusal),
}

impl DeviceError {
    pub(crate) fn new(path: &Path, mistake: DeviceMistake, request: &StoreRequest<'_>) -> Self {
        let is_not_permitted = matches!(mistake, DeviceMistake::Unusable(Refusal::NotPermitted));
        Self {
            path: path.to_owned(),
            mistake,
            wording: request.origin.wording(),
            block_size: request.block_size,
            is_disc: request.is_disc,
            is_readable: is_not_permitted && !request.read_only && files::open(path, Access::ReadDevice).is_ok(),
        }
    }

    fn unusable(&self, f: &mut fmt::Formatter<'_>, why: &Refusal) -> fmt::Result {
        let (name, wording) = (self.path.display(), self.wording);
        let read_only = wording.serve_read_only();
        match why {
            Refusal::NotPermitted if self.is_readable => {
                write!(f, "this user may not write {name}: {read_only}, or run as a user with that permission")
            }
            Refusal::NotPermitted if rustix::process::geteuid().is_root() => write!(
                f,
                "{name} {why}, though it is root: the container, its device cgroup or a security module (AppArmor, \
                 SELinux) forbids it"
            ),
            Refusal::NotPermitted => {
                write!(f, "{name} {why}: run as root, or give this user the right: setfacl -m u:USER:rw {name}")
            }
            Refusal::WriteProtected => write!(f, "{name} {why}: {read_only}"),
            Refusal::Busy { by: Some(_) } => {
                write!(f, "{name} {why}. Release it first: two programs that write to a device destroy its data")
            }
            Refusal::Busy { by: None } => write!(f, "{name} {why}; `fuser -v {name}` shows which"),
            Refusal::Uneven { size } => {
                let Self { block_size, is_disc, .. } = *self;
                write!(f, "{name}: {}", UnevenSize { size: *size, block_size, is_disc, wording })
            }
            Refusal::NoDirect => write!(f, "{name} {why}: leave out {}", wording.option("direct")),
            Refusal::DirectBlocks { needs } => {
                let larger = wording.value("block-size", &needs.to_string());
                write!(f, "{name} {why}: add {larger}, or leave out {}", wording.option("direct"))
            }
            Refusal::NotBlock | Refusal::NoMedium => write!(f, "{name} {why}"),
            Refusal::Io(why) => write!(f, "{name} cannot be opened: {why}"),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.display();
        match &self.mistake {
            DeviceMistake::HasSize => write!(f, "{name} is a device and has its size: name it without one, {name}"),
            DeviceMistake::NotShared => {
                let shared = self.wording.option("shared");
                write!(f, "{name}: a device is served by one process: leave out {shared}")
            }
            DeviceMistake::Unusable(why) => self.unusable(f, why),
        }
    }
}

impl std::error::Error for DeviceError {}

/// An open device cannot be shared with other processes.
#[derive(Debug)]
pub(crate) struct OneProcess;

impl fmt::Display for OneProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device is served by one process")
    }
}

impl std::error::Error for OneProcess {}
