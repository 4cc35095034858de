//! The block command set: read, write, flush, discard, write zeroes, extents, identify. It is the common part of
//! virtio-blk, ublk, ATA over Ethernet and NBD: a request goes in, steps and a result come out. Pure, and knows no
//! transport.
//!
//! * [`request`]: requests, their results, and errors; each transport has numbers of its own for them
//! * [`table`]: the list of commands, one type each, and everything that derives from it; [`cmd`]: the commands
//! * [`limits`]: limits of requests, which transports advertise
//! * [`unit`]: a unit as this command set sees it on one core; [`attachment`]: a client of a unit
//! * [`admit`]: the one place that decides whether a request may run
//! * [`set`]: all units and attachments of one core; changes of unit state come in here
//! * [`execute`]: a request from its arrival to its result
//! * [`reserve`]: lists of clients that reserve a unit for themselves
//!
//! The reservations of all other clients restrict the clients of these transports. A client without a name cannot make
//! reservations.

pub mod admit;
pub mod attachment;
pub mod cmd;
pub mod execute;
mod fault;
pub mod limits;
pub mod request;
pub mod reserve;
pub mod set;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unit;

pub use attachment::{Attachment, Client};
pub use limits::Limits;
pub use request::{Answer, ByteRange, Error, Reply, Request};
pub use set::BlockSet;
pub use table::Code;
