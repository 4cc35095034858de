//! Connections on an RDMA device of the kernel.
//!
//! * [`queue`]: the order of the operations of a connection, without I/O
//! * [`connections`]: the connections of a port
//! * [`port`]: a port on its device: its events and completions

pub mod connections;
pub(crate) mod port;
pub mod queue;
