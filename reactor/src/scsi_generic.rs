//! SCSI devices of this machine through the generic driver of Linux: `/dev/sgN`, interface version 3 (scsi/sg.h).
//!
//! A command is a header that is written to the device and names its CDB and its memory; its reply is the header, which
//! is read back. The kernel accesses the memory of a command only while the header is written (Data-Out is copied then)
//! and while it is read (Data-In is copied then), so memory that is dropped without a read is never accessed.
//!
//! * [`Node`]: an open device, and its commands and functions that wait: for threads other than those of cores
//! * [`Lane`]: the commands of one core through one open device, at most [`LANE_COMMANDS`] at a time
//! * `header`: the layout of the kernel; `helper`: the thread for calls that take long
//! * [`fake`]: a device in memory, for tests

mod header;
mod helper;
mod lane;

#[cfg(any(test, feature = "testing"))]
pub mod fake;

pub use lane::{Lane, Request, Token};

use crate::sys::{call, count, raw};
use header::{Direction, Header, SENSE_BYTES};
use lunar_core::io::Data;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Commands in progress through one open device: the kernel refuses more (SG_MAX_QUEUE).
pub const LANE_COMMANDS: usize = 16;

/// Bytes of the longest CDB: the kernel's limit for all drivers.
pub const CDB_BYTES_MAX: usize = 32;

/// Time for the error handling of the kernel after a time-out, until it returns the command.
const GRACE: Duration = Duration::from_secs(180);

/// Functions of ioctl(2) (scsi/sg.h).
const SG_SET_RESERVED_SIZE: libc::c_ulong = 0x2275;
const SG_GET_SG_TABLESIZE: libc::c_ulong = 0x227f;
const SG_SCSI_RESET: libc::c_ulong = 0x2284;
/// Of such a device: bytes of the longest transfer (linux/fs.h).
const BLKSECTGET: libc::c_ulong = 0x1267;
/// Bytes of a piece of the memory into which the kernel copies (SG_SCATTER_SZ).
const PIECE_BYTES: usize = 32 << 10;
/// SG_SCSI_RESET_DEVICE with SG_SCSI_RESET_NO_ESCALATE: if the logical unit cannot be reset, nothing else is.
const RESET_DEVICE_ONLY: libc::c_int = 0x101;

/// The end of a command, as the kernel reports it.
#[derive(Clone, Copy)]
pub struct Reply {
    /// SCSI status.
    pub status: u8,
    /// Status of the host adapter (DID_*).
    pub host_status: u16,
    /// Bytes that were not moved; negative if a device claims to have moved more than there was room for.
    pub residual: i32,
    sense: [u8; SENSE_BYTES],
    sense_len: u8,
}

impl Reply {
    fn of(header: &Header, sense: &[u8; SENSE_BYTES], padding: usize) -> Self {
        let Header { status, host_status, residual, sense_len, .. } = *header;
        let residual = residual.saturating_sub(padding as i32);
        Self { status, host_status, residual, sense: *sense, sense_len: sense_len.min(SENSE_BYTES as u8) }
    }

    /// Sense data; empty if there is none.
    #[must_use]
    pub fn sense(&self) -> &[u8] {
        &self.sense[..usize::from(self.sense_len)]
    }

    /// Bytes that were moved of `len`. A residual that makes no sense is corrected.
    #[must_use]
    pub fn moved(&self, len: usize) -> usize {
        len.saturating_sub(usize::try_from(self.residual).unwrap_or(0))
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, host_status, residual, .. } = self;
        write!(
            f,
            "Reply(status {status:02x}, host {host_status:02x}, residual {residual}, sense {:02x?})",
            self.sense()
        )
    }
}

/// The result of a command, and its memory.
#[derive(Debug)]
pub struct Outcome {
    /// The reply; an error if the kernel did not take the command.
    pub reply: io::Result<Reply>,
    /// The memory of the command.
    pub data: Data,
}

/// An open device.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
    /// Whether a command of [`Node::execute`] was given up: its reply must never be read.
    is_given_up: Cell<bool>,
}

impl Node {
    /// Opens the device at this path. The kernel lets a process use it only with the credentials with which it was
    /// opened, so a process opens it after it has given up its privileges.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Self::adopt(rustix::fs::open(path, flags, Mode::empty())?)
    }

    /// Takes over a descriptor of a device, which must not wait in read(2).
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let mut reserved: libc::c_int = 0;
        // The reserve buffer, which has data of earlier commands, shrinks to one page. A fake device has none.
        // SAFETY: the kernel reads a number.
        let _ = unsafe { libc::ioctl(raw(&fd), SG_SET_RESERVED_SIZE, &raw mut reserved) };
        Ok(Self { fd, is_given_up: Cell::new(false) })
    }

    /// Bytes of the longest transfer: the kernel refuses longer ones.
    ///
    /// # Errors
    /// `ENODEV` after the device has vanished; `ENOTTY` for a file that is no such device.
    pub fn transfer_bytes_max(&self) -> io::Result<usize> {
        let number = |function: libc::c_ulong| {
            let mut number: libc::c_int = 0;
            // SAFETY: the kernel writes a number.
            match unsafe { libc::ioctl(raw(&self.fd), function, &raw mut number) } {
                0.. => Ok(usize::try_from(number).unwrap_or(0)),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let pieces = number(SG_GET_SG_TABLESIZE)?.max(1);
        Ok(number(BLKSECTGET)?.min(pieces * PIECE_BYTES))
    }

    /// Whether the device is still there.
    #[must_use]
    pub fn is_present(&self) -> bool {
        is_present(&self.fd)
    }

    /// Resets the logical unit. Waits for it. Commands in progress end.
    ///
    /// # Errors
    /// `PermissionDenied` without the capabilities CAP_SYS_ADMIN and CAP_SYS_RAWIO; other errors of the operating
    /// system, when the host adapter cannot reset a single logical unit.
    pub fn reset(&self) -> io::Result<()> {
        let mut kind = RESET_DEVICE_ONLY;
        // SAFETY: the kernel reads a number.
        match unsafe { libc::ioctl(raw(&self.fd), SG_SCSI_RESET, &raw mut kind) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Executes a command that fills `into`, and waits for its reply. Only before the node is a lane.
    ///
    /// # Errors
    /// When the kernel does not take the command, or does not return it in time: then the node is of no use any more.
    pub fn execute(&mut self, cdb: &[u8], into: &mut [u8], timeout: Duration) -> io::Result<Reply> {
        if self.is_given_up.get() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut sense = [0; SENSE_BYTES];
        let mut own = [0; CDB_BYTES_MAX];
        own.get_mut(..cdb.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(cdb);
        into.fill(0);
        let mut header = Header::new(Direction::of_input(into.len()), timeout);
        header.set_cdb(&own, cdb.len());
        header.set_sense(&mut sense);
        header.set_memory(into.as_mut_ptr(), into.len());
        write_header(&self.fd, &header).map_err(io::Error::from_raw_os_error)?;
        let patience = Timespec::try_from(timeout + GRACE).map_err(io::Error::other)?;
        let ready = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&patience));
        let read =
            ready.map_err(io::Error::from).and_then(|_| read_header(&self.fd).0.map_err(io::Error::from_raw_os_error));
        if read.is_err() {
            self.is_given_up.set(true);
        }
        Ok(Reply::of(&read?, &sense, 0))
    }
}

/// Whether the device of this descriptor is still there. A sandbox may allow no ioctl(2).
fn is_present(fd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let gone = PollFlags::HUP | PollFlags::ERR;
    poll(&mut polled, Some(&Timespec::default())).is_err() || !polled[0].revents().intersects(gone)
}

/// Starts a command; an error is the errno.
fn write_header(fd: &OwnedFd, header: &Header) -> Result<(), i32> {
    // SAFETY: the header names memory of the caller, which lives until its reply was read or the descriptor is closed.
    let written = call(|| count(unsafe { libc::write(raw(fd), (&raw const *header).cast(), size_of::<Header>()) }));
    written.map(drop)
}

/// Reads the next reply; an error is the errno. A reply whose Data-In could not be copied is an error with a header.
fn read_header(fd: &OwnedFd) -> (Result<Header, i32>, Option<Header>) {
    let mut header = Header::EMPTY;
    // SAFETY: the kernel fills the header, and the memory that the header of the command named.
    let read = call(|| count(unsafe { libc::read(raw(fd), (&raw mut header).cast(), size_of::<Header>()) }));
    match read {
        Ok(_) => (Ok(header), None),
        Err(errno) => (Err(errno), header.is_filled().then_some(header)),
    }
}
