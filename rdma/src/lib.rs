//! RDMA over Converged Ethernet version 2 (RoCEv2) in user space, for targets.
//!
//! From the wire upwards:
//!
//! * [`wire`]: packets; [`icrc`]: their check; [`mad`]: messages of the connection manager
//! * [`connection`]: a reliable connection, whose two halves are [`requester`] and [`responder`]
//! * [`engine`]: the connections of an address, and the connection manager, without I/O; [`events`]: its events
//!   and packets; [`datagram`]: the datagrams of packets
//! * [`live`]: the record of live connections, for the process that follows one that was killed
//! * [`ethernet`]: IP, UDP and neighbours, for datagrams in Ethernet frames, without I/O
//! * [`limits`]: limits of what peers may cause; `admission`: the connections that a port takes
//! * [`address`]: where a port is; [`socket`]: how its UDP socket, its link or its RDMA device is opened
//! * [`port`]: an engine that several protocols use at the same time, on its socket or link (`carrier`), or a port on
//!   an RDMA device of the kernel ([`device`]). The only modules with I/O
//! * [`provider`]: what protocols use of a port, whatever provides it
//! * [`transfers`]: what a target reads and writes over a connection of a port; `pulls`: its requests for data
//!
//! A peer never reads or writes memory here: a target reads and writes the memory of its initiators.

pub mod address;
mod admission;
mod carrier;
pub mod connection;
pub mod datagram;
pub mod device;
pub mod engine;
pub mod ethernet;
pub mod events;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
#[cfg(any(test, feature = "testing"))]
pub mod golden;
pub mod icrc;
pub mod limits;
pub mod live;
pub mod mad;
pub mod port;
pub mod provider;
mod pulls;
pub mod requester;
pub mod responder;
pub mod runs;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transfers;
pub mod wire;
mod work;
