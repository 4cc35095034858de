//! NVMe over RDMA, controller side.
//!
//! From the wire upwards:
//!
//! * [`wire`]: private data of the connection manager, capsules, and data pointers
//! * [`session`]: a connection, which is one queue: the commands, in their order
//! * [`limits`]: limits of what hosts may cause
//! * [`schema`], [`command_line`]: the section of the configuration, and the options of `lunar serve`
//! * [`front`]: the front of the engine: the ports of a configuration, and their sockets
//! * [`serve`]: the glue to RDMA, the reactor and the controllers, and the only module with I/O

pub mod command_line;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
pub mod schema;
pub mod serve;
pub mod session;
pub mod wire;
