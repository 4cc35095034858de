//! The operations of stations on their disks, and their events.

use std::rc::Rc;

/// An operation on a disk.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads sectors.
    Read {
        /// The first one.
        lba: u64,
        /// Their number.
        count: u32,
    },
    /// Writes sectors.
    Write {
        /// The first one.
        lba: u64,
        /// The data.
        data: Rc<[u8]>,
    },
    /// Brings what was written to the medium.
    Flush,
}

/// An event of a disk or of a command.
pub enum StationEvent<'a> {
    /// The disk was found.
    Ready,
    /// Data of a command, from this offset on.
    Data(u32, usize, &'a [u8]),
    /// A command has ended, or failed with these codes of its protocol.
    Done(u32, Result<(), (u8, u8)>),
    /// The target is silent.
    Lost,
}
