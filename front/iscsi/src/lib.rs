//! iSCSI (RFC 7143), target side, without I/O: bytes and time go in, bytes and actions come out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the PDU formats, additional header segments, digests
//! * [`text`]: `key=value` text
//! * [`keys`]: the table of keys, and the negotiation that derives from it
//! * [`login`]: the states of a login, each consumed by what it handles
//! * [`session`]: the machine of one session: framing, numbers, tasks, data, text
//! * [`pdu_queue`]: what waits to be sent
//! * [`chap`]: how names are proved
//! * [`config`]: settings and limits
//! * [`directory`]: what there is to log in to
//! * `fuzzing`: entry points of the fuzz targets, with the feature `testing` only
//! * [`authenticator`]: who may log in: access, challenges, back-off, audit
//! * [`registry`]: the sessions of all cores
//! * [`serve`]: the glue to the reactor and the device server: the one module with I/O

pub mod authenticator;
pub mod chap;
pub mod config;
pub mod directory;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod keys;
pub mod login;
pub mod pdu_queue;
pub mod registry;
pub mod serve;
pub mod session;
pub mod text;
pub mod wire;

#[cfg(test)]
mod testing;
