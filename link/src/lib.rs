//! Links that carry Ethernet frames, for every protocol that stands on them. A link is a network interface, with or
//! without XDP, a pair of Unix datagram sockets that carry one frame per datagram (no root, for virtual machines), a
//! TAP interface, or a station of the simulator.
//!
//! * [`address`]: the names of links, as a configuration and a command line write them
//! * [`frame`]: the header of a frame, and a received frame
//! * [`link`]: a link on a core: received frames of one VLAN, and a bounded queue of frames to send
//! * [`rate`]: the rate of answers to requests that cost a station nothing

pub mod address;
pub mod frame;
pub mod link;
pub mod rate;
pub use address::LinkAddress;
pub use frame::{Frame, HEADER_LEN, Header};
pub use link::{Link, LinkConfig, MTU_MAX, OpenedLink, open_direct};
pub use lunar_reactor::endpoint::packet::{DirectLink, Filter};
pub use lunar_reactor::endpoint::{Counters, MacAddress, ReceiveBatch, SendBatch, Wrapped};
pub use rate::Rate;
