//! The iSCSI target (RFC 7143). Everything but [`serve`] is without I/O: bytes and time go in, bytes and actions come
//! out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: PDU formats, additional header segments, digests
//! * [`text`]: `key=value` text
//! * [`keys`]: the table of keys, and the negotiation that follows from it
//! * [`login`]: the states of a login, each of which is consumed by the request that it handles
//! * [`session`]: one session: framing, sequence numbers, tasks, data, text
//! * [`pdu_queue`]: PDUs that wait to be sent
//! * [`chap`]: CHAP authentication
//! * [`config`]: settings and limits
//! * [`directory`]: targets and portals
//! * [`authenticator`]: who may log in: access control, challenges, delays, audit log
//! * [`registry`]: the sessions of all cores; [`displaced`]: those that another machine ended
//! * `dry_run`: logins without effect, for operators
//! * [`iser`]: the same sessions over RDMA
//! * [`serve`]: connects sessions to the reactor and to the SCSI device server; the only module with I/O
//! * [`front`]: the front of the engine: directories from a configuration, sessions for operators
//! * `fuzzing`: entry points of the fuzz targets, with the feature `testing` only

pub mod authenticator;
pub mod chap;
pub mod command_line;
pub mod config;
pub mod directory;
pub mod displaced;
mod dry_run;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod iser;
pub mod keys;
pub mod login;
pub mod pdu_queue;
pub mod registry;
pub mod schema;
pub mod serve;
pub mod session;
pub mod text;
pub mod wire;

#[cfg(test)]
mod testing;
