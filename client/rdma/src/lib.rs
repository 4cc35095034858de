//! RDMA over Converged Ethernet version 2 (RoCEv2) in user space, for initiators: packets and time go in, packets and
//! events come out. Nothing here moves data or waits.
//!
//! * [`client`]: the connections to one peer, and the active side of the connection manager
//! * [`keys`]: the memory that the peer reads and writes, by keys
//! * `connection`: a reliable connection; `responder`: its half that answers the peer
//! * [`limits`]: limits of what a peer may cause
//!
//! Packets, their check and the half that sends are those of `lunar-rdma`.

pub mod client;
mod connection;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod keys;
pub mod limits;
mod responder;
