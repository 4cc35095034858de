//! NVMe controllers for virtual machines over vfio-user: the guest's own NVMe driver, with its queues and data in guest
//! memory.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the formats of the messages
//! * [`session`]: a message in, a request out, and the replies that need no device
//! * [`feature`]: requests and replies about migration
//! * [`pci`]: the configuration space
//! * [`pointer`]: PRP lists and scatter-gather lists
//! * [`queue`]: submission and completion queues in guest memory
//! * [`registers`]: registers, doorbells and queues: the controller as its guest sees it
//! * [`record`]: the state of a controller as bytes, for another process
//! * [`config`]: limits that no client exceeds
//! * [`front`]: the front of the engine: virtual machines of a configuration, and their sockets
//! * [`serve`]: the glue to the reactor and the NVMe controller, and the only module with I/O

mod coalescing;
pub mod command_line;
pub mod config;
pub mod feature;
pub mod front;
mod hypervisor;
pub mod pci;
pub mod pointer;
pub mod queue;
pub mod record;
pub mod registers;
pub mod schema;
pub mod serve;
pub mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wire;
