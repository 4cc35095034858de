//! Information units of the Fibre Channel Protocol for SCSI (FCP-4).

use lunar_core::wire::be::U32;
pub use lunar_scsi::fcp::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// FCP_XFER_RDY (FCP-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TransferReady {
    /// The relative offset of the requested data.
    pub offset: U32,
    /// Its length.
    pub len: U32,
    reserved: U32,
}

impl TransferReady {
    /// The request for data.
    #[must_use]
    pub fn new(offset: u32, len: u32) -> Self {
        Self { offset: offset.into(), len: len.into(), reserved: 0.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::Received;
    use crate::wire::golden;

    fn payload(text: &str) -> Vec<u8> {
        Received::parse(&golden::frame(text)[14..]).expect("a frame of Linux").payload.to_vec()
    }

    #[test]
    fn commands_are_those_of_linux() {
        let bytes = payload(golden::COMMAND);
        let command = Command::parse(&bytes).expect("right");
        assert_eq!((command.cdb[0], command.data_in, command.data_out, command.task), (0x12, 0x24, 0, 0));
        assert_eq!(command.bytes(), bytes);
        let bytes = payload(golden::WRITE);
        let command = Command::parse(&bytes).expect("right");
        assert_eq!((command.cdb[0], command.data_in, command.data_out), (0x2a, 0, 512));
        let bytes = payload(golden::LUN_RESET);
        assert_eq!(Command::parse(&bytes).map(|command| command.task), Ok(TaskFlag::LOGICAL_UNIT_RESET.0));
        let long = Command { cdb: &[0x7f; 32], data_out: 512, ..Command::parse(&bytes).expect("right") }.bytes();
        assert_eq!(Command::parse(&long).map(|command| (command.cdb.len(), command.data_out)), Ok((32, 512)));
        assert_eq!(Command::parse(&long[..long.len() - 1]), Err(CommandError::Short));
        let mut both = payload(golden::COMMAND);
        both[11] = 3;
        assert_eq!(Command::parse(&both), Err(CommandError::Bidirectional));
    }

    #[test]
    fn answers_are_those_of_linux() {
        assert_eq!(TransferReady::new(0, 512).as_bytes(), payload(golden::XFER_RDY));
        assert_eq!(*Response::default().bytes(), payload(golden::RESPONSE));
        let under = Response { residual: -0x18, ..Response::default() };
        assert_eq!(*under.bytes(), payload(golden::UNDERRUN));
        let done = Response { information: Some((0, [0; 3])), ..Response::default() };
        assert_eq!(*done.bytes(), payload(golden::LUN_RESET_DONE));
        let bytes = payload(golden::SENSE);
        let failed = Response::parse(&bytes).expect("right");
        assert_eq!((failed.status, failed.sense.len(), failed.sense[2]), (2, 96, 5));
        assert_eq!(*failed.bytes(), bytes);
    }
}
