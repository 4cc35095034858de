//! The front-end of a vhost-user disk (virtio-blk) or SCSI host adapter (virtio-scsi), without I/O: a process that
//! uses volumes of Lunar through rings in memory that it shares with it. The back-end is not trusted: each number that
//! it writes is checked.
//!
//! * [`message`]: messages to the back-end, and its answers
//! * [`disk`]: features, and the limits of a disk from its configuration space
//! * `features`: those without which no device is used
//! * [`layout`]: the places of rings and requests in the shared memory
//! * [`ring`]: a split ring, as its driver has it
//! * [`lane`]: the requests of one ring, from their start to their answer, over the loss of a connection
//! * [`form`]: what differs between the requests of devices; [`blk`]: those of a disk
//! * [`scsi`]: features and commands of a host adapter
//! * `fuzzing`: the entry point of the fuzz target, with the feature `testing` only

pub mod blk;
pub mod disk;
mod features;
pub mod form;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod lane;
pub mod layout;
pub mod message;
pub mod ring;
pub mod scsi;
#[cfg(test)]
mod testing;

use std::fmt;

/// Why a back-end cannot be used, or is not used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// A message that has not the form of the protocol, or answers another message.
    Message,
    /// It refuses a message, named by its number.
    Refused(u32),
    /// It does not offer a feature.
    Lacks(&'static str),
    /// It does not tell the UUID of its volume, so another one would not be noticed.
    NoUuid,
    /// Its configuration space describes no disk that can be served: this field.
    Space(&'static str),
    /// It has fewer rings than this.
    Rings(u16),
    /// It has returned a request that it did not have, or more requests than were in progress.
    Ring,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => f.write_str("it sends messages that are none of vhost-user"),
            Self::Refused(code) => write!(f, "it refuses message {code} of vhost-user"),
            Self::Lacks(what) => write!(f, "it does not offer {what}: is it another kind of device?"),
            Self::NoUuid => f.write_str("it does not tell the UUID of its volume: is it an older Lunar?"),
            Self::Space(what) => write!(f, "the {what} of its disk cannot be served"),
            Self::Rings(rings) => {
                write!(f, "it has fewer than {rings} queues: raise `queues` of its section, or lower those of the disk")
            }
            Self::Ring => f.write_str("it has returned a request that it did not have"),
        }
    }
}

impl std::error::Error for Defect {}
