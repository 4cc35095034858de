//! What a transport hands over and what it gets back: [`Command`] and [`Reply`].

use crate::lun::Lun;
use crate::sense::SenseData;
use lunar_core::codes;
use lunar_core::step::Tail;
use std::fmt;

/// The longest CDB that is taken: the longest that any command of a disk has (SBC-5 5.1).
pub const CDB_BYTES_MAX: usize = 32;

/// A command descriptor block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; CDB_BYTES_MAX],
    len: u8,
}

impl Cdb {
    /// A CDB of these bytes, of which those behind the command's own length do not count.
    /// `None` when there is no byte or there are more than [`CDB_BYTES_MAX`].
    #[must_use]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; CDB_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        (!from.is_empty()).then_some(Self { bytes, len: u8::try_from(from.len()).ok()? })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Cdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cdb(")?;
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

codes! {
    /// How a command is ordered among those of its task set (SAM-6 8.9).
    pub struct TaskAttribute(u8) { SIMPLE = 0, HEAD_OF_QUEUE = 1, ORDERED = 2, ACA = 4 }
}

codes! {
    /// The status a command ends with (SAM-6 5.3.1).
    pub struct Status(u8) {
        GOOD = 0x00, CHECK_CONDITION = 0x02, CONDITION_MET = 0x04, BUSY = 0x08, RESERVATION_CONFLICT = 0x18,
        TASK_SET_FULL = 0x28, ACA_ACTIVE = 0x30, TASK_ABORTED = 0x40,
    }
}

/// A command as its transport received it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Which logical unit.
    pub lun: Lun,
    /// What to do.
    pub cdb: Cdb,
    /// In which order.
    pub attribute: TaskAttribute,
    /// The transport's name for it (SAM-6 4.7.2): what ABORT TASK names it by.
    pub tag: u64,
    /// Bytes that the initiator expects to receive.
    pub data_in: u32,
    /// Bytes that the initiator expects to send. No more than these are pulled.
    pub data_out: u32,
}

/// How a command ended.
#[derive(Debug)]
pub struct Reply {
    /// Its status. [`Status::TASK_ABORTED`]: the task was aborted, nothing is sent to the initiator (TAS is zero).
    pub status: Status,
    /// Sense data; empty unless the status is CHECK CONDITION.
    pub sense: SenseData,
    /// Data-In that travels with the status; the transport cuts it to the length that the initiator expects.
    pub tail: Tail,
    /// Bytes that the command would have moved: with the expected length it makes the residual count.
    pub wanted: u64,
}

impl Default for Reply {
    fn default() -> Self {
        Self::bare(Status::GOOD)
    }
}

impl Reply {
    /// A reply without data.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self { status, sense: SenseData::default(), tail: Tail::default(), wanted: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdb_is_one_to_thirty_two_bytes() {
        assert_eq!(Cdb::new(&[]), None);
        assert_eq!(Cdb::new(&[0; CDB_BYTES_MAX + 1]), None);
        let cdb = Cdb::new(&[0x28, 1, 2]).expect("short");
        assert_eq!(cdb.bytes(), [0x28, 1, 2]);
        assert_eq!(format!("{cdb:?}"), "Cdb(280102)");
    }
}
