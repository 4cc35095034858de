//! Disks for virtual machines over vhost-user: virtio-blk and virtio-scsi, whose drivers guests have, with their rings
//! and data in guest memory.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the formats of the messages
//! * [`session`]: a message in, a request out
//! * [`ring`]: split and packed rings, chains of descriptors, the record of requests in progress
//! * [`virtio`]: features, memory and rings of a device, as messages change them
//! * [`bytes`]: small parts of requests in guest memory
//! * [`blk`]: requests and the configuration space of virtio-blk; [`scsi`]: requests, task management and events of
//!   virtio-scsi
//! * [`sessions`]: the front-ends that are connected, on all cores
//! * [`config`]: limits that no front-end and no guest exceeds
//! * [`front`]: the front of the engine: virtual machines of a configuration, and their sockets
//! * [`serve`]: the glue to the reactor and the command sets, and the only module with I/O

pub mod blk;
pub mod bytes;
pub mod command_line;
pub mod config;
pub mod front;
mod hypervisor;
pub mod ring;
pub mod schema;
pub mod scsi;
pub mod serve;
pub mod session;
pub mod sessions;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod virtio;
pub mod wire;
