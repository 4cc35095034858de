//! The header of a command (`struct sg_io_hdr` of scsi/sg.h).

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Bytes of the longest sense data that the kernel keeps (SCSI_SENSE_BUFFERSIZE).
pub(super) const SENSE_BYTES: usize = 96;
/// Most pieces of memory of one command: the kernel's limit for all vectors (UIO_MAXIOV).
pub(super) const PIECES_MAX: usize = 1024;
/// Bytes of memory for Data-In that the device may fill in part only: for more than a page, the kernel takes zeroed
/// memory. A page is its reserve buffer, with data of an earlier command, and not every device reports how many bytes
/// it has moved.
pub(super) const PADDED_BYTES: usize = 4608;

/// Interface version 3.
const INTERFACE: i32 = b'S' as i32;
/// SG_FLAG_Q_AT_TAIL: commands are sent in their order.
const AT_TAIL: u32 = 0x10;
/// The smallest CDB that the kernel takes.
const CDB_BYTES_MIN: usize = 6;

/// The direction of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    None = -1,
    ToDevice = -2,
    FromDevice = -3,
}

impl Direction {
    /// The direction of a command that fills so many bytes.
    pub(super) fn of_input(len: usize) -> Self {
        if len == 0 { Self::None } else { Self::FromDevice }
    }
}

/// The header of a command.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    interface: i32,
    pub(super) direction: i32,
    pub(super) cdb_len: u8,
    sense_max: u8,
    pub(super) piece_count: u16,
    pub(super) data_len: u32,
    pub(super) data: *mut c_void,
    pub(super) cdb: *const u8,
    pub(super) sense: *mut u8,
    pub(super) timeout_ms: u32,
    flags: u32,
    pub(super) slot: i32,
    user: *mut c_void,
    pub(super) status: u8,
    masked_status: u8,
    message_status: u8,
    pub(super) sense_len: u8,
    pub(super) host_status: u16,
    pub(super) driver_status: u16,
    pub(super) residual: i32,
    duration_ms: u32,
    info: u32,
}

// SAFETY: its pointers are addresses for the kernel. The memory behind them stays in place for as long as the header is
// in use, whichever thread passes it to the kernel.
unsafe impl Send for Header {}

impl Header {
    /// A header that the kernel fills.
    pub(super) const EMPTY: Self = Self {
        interface: 0,
        direction: 0,
        cdb_len: 0,
        sense_max: 0,
        piece_count: 0,
        data_len: 0,
        data: null_mut(),
        cdb: null(),
        sense: null_mut(),
        timeout_ms: 0,
        flags: 0,
        slot: 0,
        user: null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_len: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration_ms: 0,
        info: 0,
    };

    /// A command without memory.
    pub(super) fn new(direction: Direction, timeout: Duration) -> Self {
        // Zero would be the kernel's default.
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        Self { interface: INTERFACE, direction: direction as i32, timeout_ms, flags: AT_TAIL, ..Self::EMPTY }
    }

    /// Whether the kernel has filled it.
    pub(super) fn is_filled(&self) -> bool {
        self.interface == INTERFACE
    }

    /// The first `len` bytes of a CDB, which is followed by zeroes if it is too short for the kernel.
    pub(super) fn set_cdb(&mut self, cdb: &[u8; super::CDB_BYTES_MAX], len: usize) {
        self.cdb = cdb.as_ptr();
        self.cdb_len = len.max(CDB_BYTES_MIN) as u8;
    }

    pub(super) fn set_sense(&mut self, sense: &mut [u8; SENSE_BYTES]) {
        self.sense = sense.as_mut_ptr();
        self.sense_max = SENSE_BYTES as u8;
    }

    /// Memory in one piece.
    pub(super) fn set_memory(&mut self, data: *mut u8, len: usize) {
        (self.data, self.data_len, self.piece_count) = (data.cast(), len as u32, 0);
    }

    /// Memory in several pieces.
    pub(super) fn set_pieces(&mut self, pieces: &[libc::iovec], len: usize) {
        (self.data, self.data_len) = (pieces.as_ptr().cast_mut().cast(), len as u32);
        self.piece_count = pieces.len() as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_header_has_the_layout_of_the_kernel() {
        let found = [
            offset_of!(Header, direction),
            offset_of!(Header, cdb_len),
            offset_of!(Header, piece_count),
            offset_of!(Header, data_len),
            offset_of!(Header, data),
            offset_of!(Header, cdb),
            offset_of!(Header, sense),
            offset_of!(Header, timeout_ms),
            offset_of!(Header, flags),
            offset_of!(Header, slot),
            offset_of!(Header, user),
            offset_of!(Header, status),
            offset_of!(Header, sense_len),
            offset_of!(Header, host_status),
            offset_of!(Header, residual),
            offset_of!(Header, info),
        ];
        assert_eq!(found, [4, 8, 10, 12, 16, 24, 32, 40, 44, 48, 56, 64, 67, 68, 72, 80]);
        assert_eq!(size_of::<Header>(), 88);
    }

    #[test]
    fn a_time_out_is_never_the_default_of_the_kernel() {
        assert_eq!(Header::new(Direction::None, Duration::ZERO).timeout_ms, 1);
        assert_eq!(Header::new(Direction::None, Duration::from_secs(14_000)).timeout_ms, 14_000_000);
        assert_eq!(Header::new(Direction::None, Duration::MAX).timeout_ms, u32::MAX);
    }
}
