//! Information units of the Fibre Channel Protocol for SCSI (FCP-4), which more than one transport carries.

use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of FCP_CMND before the CDB.
const HEAD_LEN: usize = 12;
/// Bytes of a CDB without additional ones.
const CDB_LEN: usize = 16;
/// Bytes of the shortest FCP_CMND.
pub const COMMAND_LEN: usize = HEAD_LEN + CDB_LEN + 4;
/// The most bytes of FCP_RSP: the response, its information, and the longest sense data.
pub const RESPONSE_MAX: usize = size_of::<ResponseHead>() + INFORMATION_LEN + SENSE_MAX;
/// Bytes of FCP_RSP_INFO.
const INFORMATION_LEN: usize = 8;
/// The most bytes of sense data: the initiator of Linux uses as many.
const SENSE_MAX: usize = 96;

codes! {
    /// Task management flags of FCP_CMND, of which at most one is set.
    pub struct TaskFlag(u8) {
        QUERY_TASK_SET = 0x01, ABORT_TASK_SET = 0x02, CLEAR_TASK_SET = 0x04, QUERY_ASYNC_EVENT = 0x08,
        LOGICAL_UNIT_RESET = 0x10, TARGET_RESET = 0x20, CLEAR_ACA = 0x40,
    }
}

codes! {
    /// Response codes of FCP_RSP_INFO.
    pub struct ResponseCode(u8) {
        COMPLETE = 0, DATA_LENGTH = 1, INVALID_FIELDS = 2, REJECTED = 4, FAILED = 5, SUCCEEDED = 8, INCORRECT_LUN = 9,
    }
}

/// FCP_CMND (FCP-4), taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// FCP_LUN.
    pub lun: [u8; 8],
    /// The task attribute: 0 simple, 1 head of queue, 2 ordered, 4 ACA.
    pub attribute: u8,
    /// Task management flags.
    pub task: u8,
    /// The CDB, with additional bytes.
    pub cdb: &'a [u8],
    /// Bytes that the initiator expects to receive.
    pub data_in: u32,
    /// Bytes that the initiator expects to send.
    pub data_out: u32,
}

/// Why a command is answered without being executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// It has not all its bytes.
    Short,
    /// It transfers data in both directions.
    Bidirectional,
}

impl<'a> Command<'a> {
    /// The command in the payload of a frame.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, CommandError> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>().ok_or(CommandError::Short)?;
        let [lun @ .., _reference, attribute, task, flags] = *head;
        let cdb_len = CDB_LEN + usize::from(flags >> 2) * 4;
        let (cdb, rest) = rest.split_at_checked(cdb_len).ok_or(CommandError::Short)?;
        let len = rest.first_chunk().ok_or(CommandError::Short)?;
        let len = u32::from_be_bytes(*len);
        let (data_in, data_out) = match flags & 3 {
            0 => (0, 0),
            1 => (0, len),
            2 => (len, 0),
            _ => return Err(CommandError::Bidirectional),
        };
        Ok(Self { lun, attribute: attribute & 7, task, cdb, data_in, data_out })
    }

    /// The bytes of FCP_CMND. The CDB has 16 bytes, or 4 more each.
    ///
    /// # Panics
    /// When the CDB has another length.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let additional = self.cdb.len().checked_sub(CDB_LEN).filter(|more| more.is_multiple_of(4));
        let words = additional.expect("a CDB of a whole number of words") / 4;
        let flags = (words as u8) << 2 | u8::from(self.data_in > 0) << 1 | u8::from(self.data_out > 0);
        let len = self.data_in.max(self.data_out).to_be_bytes();
        [&self.lun[..], &[0, self.attribute, self.task, flags], self.cdb, &len].concat()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ResponseHead {
    reserved: [u8; 8],
    /// Status qualifier.
    qualifier: U16,
    flags: u8,
    status: u8,
    residual: U32,
    sense_len: U32,
    information_len: U32,
}

const OVER: u8 = 0x04;
const UNDER: u8 = 0x08;
const SENSE_VALID: u8 = 0x02;
const INFORMATION_VALID: u8 = 0x01;

/// FCP_RSP (FCP-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Response<'a> {
    /// The SCSI status.
    pub status: u8,
    /// The bytes that the command would have transferred, minus those that the initiator expects.
    pub residual: i64,
    /// Sense data.
    pub sense: &'a [u8],
    /// The response code, and the additional information of a task management function.
    pub information: Option<(u8, [u8; 3])>,
}

/// The bytes of an FCP_RSP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseBytes {
    bytes: [u8; RESPONSE_MAX],
    len: usize,
}

impl std::ops::Deref for ResponseBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'a> Response<'a> {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> ResponseBytes {
        let sense = &self.sense[..self.sense.len().min(SENSE_MAX)];
        let residual = u32::try_from(self.residual.unsigned_abs()).unwrap_or(u32::MAX);
        let mut flags = match self.residual {
            0 => 0,
            1.. => OVER,
            _ => UNDER,
        };
        let mut information = [0; INFORMATION_LEN];
        let mut information_len = 0;
        if let Some((code, more)) = self.information {
            flags |= INFORMATION_VALID;
            information[..3].copy_from_slice(&more);
            information[3] = code;
            information_len = INFORMATION_LEN;
        }
        if !sense.is_empty() {
            flags |= SENSE_VALID;
        }
        let head = ResponseHead {
            reserved: [0; 8],
            qualifier: 0.into(),
            flags,
            status: self.status,
            residual: residual.into(),
            // Both are small constants.
            sense_len: (sense.len() as u32).into(),
            information_len: (information_len as u32).into(),
        };
        let mut all = ResponseBytes { bytes: [0; RESPONSE_MAX], len: 0 };
        for part in [head.as_bytes(), &information[..information_len], sense] {
            all.bytes[all.len..all.len + part.len()].copy_from_slice(part);
            all.len += part.len();
        }
        all
    }

    /// The response in the payload of a frame; `None`: it has not all its bytes.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = ResponseHead::ref_from_prefix(bytes).ok()?;
        let len = |flag: u8, len: U32| if head.flags & flag != 0 { len.get() as usize } else { 0 };
        let (information, rest) = rest.split_at_checked(len(INFORMATION_VALID, head.information_len))?;
        let (sense, _) = rest.split_at_checked(len(SENSE_VALID, head.sense_len))?;
        let count = i64::from(head.residual.get());
        let residual = match head.flags & (OVER | UNDER) {
            OVER => count,
            UNDER => -count,
            _ => 0,
        };
        let information = information.first_chunk().map(|[a, b, c, code]| (*code, [*a, *b, *c]));
        Some(Self { status: head.status, residual, sense, information })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_commands_are_taken_apart_as_they_were_built() {
        let long = Command { lun: [1; 8], attribute: 2, task: 0, cdb: &[0x7f; 32], data_in: 0, data_out: 512 };
        let bytes = long.bytes();
        assert_eq!((bytes.len(), Command::parse(&bytes)), (COMMAND_LEN + 16, Ok(long)));
        assert_eq!(Command::parse(&bytes[..bytes.len() - 1]), Err(CommandError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(command) = Command::parse(&bytes) {
                prop_assert!(command.cdb.len() >= 16);
            }
            if let Some(response) = Response::parse(&bytes) {
                prop_assert!(response.bytes().len() <= RESPONSE_MAX);
            }
        }
    }
}
