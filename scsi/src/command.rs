//! The interface to transports: a [`Command`] comes in, a [`Reply`] goes out.

use crate::lun::Lun;
use crate::sense::SenseData;
use lunar_core::codes;
use lunar_core::step::FinalData;
use std::fmt;

/// Bytes of the longest CDB that is accepted: no command of a disk has a longer one (SBC-5 5.1).
pub const CDB_BYTES_MAX: usize = 32;

/// Operation code of CDBs of variable length (SPC-4 4.2.3).
const VARIABLE_LENGTH: u8 = 0x7f;
/// Offset of ADDITIONAL CDB LENGTH in a CDB of variable length: the number of bytes after it.
const ADDITIONAL_AT: usize = 7;

/// A command descriptor block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; CDB_BYTES_MAX],
    len: u8,
}

impl Cdb {
    /// A CDB of these bytes; bytes after the length of the command are ignored. `None` for no bytes or more than
    /// [`CDB_BYTES_MAX`].
    #[must_use]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; CDB_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        (!from.is_empty()).then_some(Self { bytes, len: u8::try_from(from.len()).ok()? })
    }

    /// The bytes of the CDB.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Bytes of the command, by the group code of its operation code (SPC-4 4.2.2). `None` for reserved and vendor
    /// specific groups, whose length only the device knows.
    #[must_use]
    pub fn length(&self) -> Option<usize> {
        match self.bytes[0] >> 5 {
            0 => Some(6),
            1 | 2 => Some(10),
            4 => Some(16),
            5 => Some(12),
            _ if self.bytes[0] == VARIABLE_LENGTH => Some(ADDITIONAL_AT + 1 + usize::from(self.bytes[ADDITIONAL_AT])),
            _ => None,
        }
    }

    /// Offset of the CONTROL byte; `None` if only the device knows it.
    #[must_use]
    pub fn control_at(&self) -> Option<usize> {
        match self.bytes[0] {
            VARIABLE_LENGTH => Some(1),
            _ => self.length().map(|length| length - 1),
        }
    }

    /// The bytes of the command itself: without those that the transport has appended; all bytes if only the device
    /// knows the length.
    #[must_use]
    pub fn command_bytes(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[..self.length().unwrap_or(bytes.len()).min(bytes.len())]
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
    /// Task attribute: the order of a command among others of its task set (SAM-6 8.9).
    pub struct TaskAttribute(u8) { SIMPLE = 0, HEAD_OF_QUEUE = 1, ORDERED = 2, ACA = 4 }
}

impl TaskAttribute {
    /// The attribute in a command of FCP (FCP-4 9.1.2.5) or SRP, which have the same codes. Reserved ones are SIMPLE.
    #[must_use]
    pub fn of_port(code: u8) -> Self {
        match Self(code) {
            known @ (Self::HEAD_OF_QUEUE | Self::ORDERED | Self::ACA) => known,
            _ => Self::SIMPLE,
        }
    }
}

codes! {
    /// Status of a command (SAM-6 5.3.1).
    pub struct Status(u8) {
        GOOD = 0x00, CHECK_CONDITION = 0x02, CONDITION_MET = 0x04, BUSY = 0x08, RESERVATION_CONFLICT = 0x18,
        TASK_SET_FULL = 0x28, ACA_ACTIVE = 0x30, TASK_ABORTED = 0x40,
    }
}

/// A command as its transport received it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// LUN of the logical unit.
    pub lun: Lun,
    /// The CDB.
    pub cdb: Cdb,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The command identifier of the transport, by which ABORT TASK refers to it (SAM-6 4.7.2).
    pub tag: u64,
    /// Bytes that the initiator expects to receive.
    pub data_in: u32,
    /// Bytes that the initiator expects to send. The device server pulls no more.
    pub data_out: u32,
}

/// The result of a command.
#[derive(Debug)]
pub struct Reply {
    /// Status. [`Status::TASK_ABORTED`]: the task was aborted, and nothing is sent to the initiator (TAS is zero).
    pub status: Status,
    /// Sense data; empty unless the status is CHECK CONDITION.
    pub sense: SenseData,
    /// Last part of Data-In, which is sent with the status. The transport cuts it to the expected length.
    pub final_data: FinalData,
    /// Bytes that the command would have moved. The transport computes the residual count from it and the expected
    /// length.
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
        Self { status, sense: SenseData::default(), final_data: FinalData::default(), wanted: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdb_has_1_to_32_bytes() {
        assert_eq!(Cdb::new(&[]), None);
        assert_eq!(Cdb::new(&[0; CDB_BYTES_MAX + 1]), None);
        let cdb = Cdb::new(&[0x28, 1, 2]).expect("short");
        assert_eq!(cdb.bytes(), [0x28, 1, 2]);
        assert_eq!(format!("{cdb:?}"), "Cdb(280102)");
    }

    #[test]
    fn the_group_code_gives_the_length_of_a_command() {
        let length = |first: u8, more: u8| {
            let mut bytes = [0; CDB_BYTES_MAX];
            (bytes[0], bytes[7]) = (first, more);
            Cdb::new(&bytes).expect("not empty").command_bytes().len()
        };
        for (first, expected) in [(0x00, 6), (0x1f, 6), (0x28, 10), (0x5a, 10), (0x88, 16), (0xa8, 12), (0xc0, 32)] {
            assert_eq!(length(first, 0), expected, "{first:02x}");
        }
        assert_eq!((length(0x7f, 0x10), length(0x7f, 0xff), length(0x7e, 0)), (24, 32, 32));
        assert_eq!(
            Cdb::new(&[0x28, 1]).expect("not empty").command_bytes(),
            [0x28, 1],
            "fewer bytes than the command has"
        );
    }
}
