//! Virtual machines as hosts, and the devices that they see.

use lunar_core::unit::UnitId;
use std::sync::Arc;

/// A virtual machine as a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its name as a host.
    pub host: Arc<str>,
    /// The host group that it belongs to; `None`: it is refused.
    pub group: Option<Arc<str>>,
    /// The tag of the portal group whose access state applies; zero: none, and its path is always active.
    pub tag: u16,
    /// Rings for requests.
    pub queues: usize,
    /// Its device.
    pub device: DeviceView,
}

impl Tenant {
    /// The name of its SCSI initiator port, in the spelling of iSCSI, which persistent reservations know. A virtual
    /// machine has one port.
    #[must_use]
    pub fn port(&self) -> Arc<str> {
        format!("{},i,0x000000000000", self.host).into()
    }
}

/// The device of a virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceView {
    /// virtio-blk. `None`: its group does not show it the volume.
    Blk(Option<Disk>),
    /// virtio-scsi: all volumes of the group. `None`: it has no group.
    Scsi(Option<ScsiPort>),
}

/// The target port of a virtio-scsi device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScsiPort {
    /// The relative target port identifier.
    pub relative: u16,
}

/// The unit of a virtio-blk device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The unit.
    pub unit: UnitId,
    /// Whether the group may only read it.
    pub read_only: bool,
}
