//! Formats. **They are private (version 1).** A connection begins with a [`Login`] and a [`LoginAnswer`], each a
//! Transfer. Then each end has a region of the other one: the initiator puts a [`CommandBlock`] of [`COMMAND_LEN`]
//! bytes into the place of its command, and the target puts an FCP_RSP into the place of the same number, of
//! [`RESPONSE_LEN`] bytes. Data moves in Transfers whose identifier at the initiator is in the command.

use lunar_core::codes;
use lunar_core::digest::fnv_64;
use lunar_core::wire::be::{U16, U32, U64};
pub use lunar_scsi::fcp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The port of Scheduled Transfer at which targets listen: the first one that is not for sockets.
pub const PORT: u16 = 4096;
/// The version of these formats.
pub const VERSION: u16 = 1;
/// Bytes of a command.
pub const COMMAND_LEN: usize = 64;
/// Bytes for a response.
pub const RESPONSE_LEN: usize = 256;
/// Bytes of an FCP_CMND with the longest CDB, of 32 bytes.
const FCP_LEN: usize = fcp::COMMAND_LEN + 16;
/// The longest name of an initiator or target (RFC 7143 4.2.7.2).
pub const NAME_MAX: usize = 223;
/// Bytes of the shortest and of the longest login.
pub const LOGIN_LEN: (usize, usize) = (size_of::<LoginHead>() + 1, size_of::<LoginHead>() + 2 * NAME_MAX);
/// Bytes of the answer.
pub const ANSWER_LEN: usize = size_of::<LoginAnswer>();
/// The most bytes of data of a command: both ends have memory for all of it. A read or write of a store moves as many.
pub const DATA_MAX: u32 = lunar_core::step::PIECE_BYTES as u32;

const _: () = assert!(fcp::RESPONSE_MAX <= RESPONSE_LEN, "a response fits");

codes! {
    /// The answer to a login.
    pub struct LoginStatus(u8) {
        GOOD = 0, VERSION = 1, MALFORMED = 2, NO_TARGET = 3, NOT_SHOWN = 4, FULL = 5, STOPPING = 6,
    }
}

/// Flags of a command.
pub mod flags {
    /// The initiator has the Transfer for Data-Out.
    pub const DATA_OUT: u16 = 1;
    /// The initiator has asked for the Transfer with Data-In.
    pub const DATA_IN: u16 = 2;
    /// ABORT TASK: the first four bytes of the CDB are the tag of the task.
    pub const ABORT: u16 = 4;
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LoginHead {
    version: U16,
    depth: U16,
    initiator_len: u8,
    target_len: u8,
    reserved: [u8; 2],
}

/// A login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Login<'a> {
    /// Commands that the initiator wants to have in progress.
    pub depth: u16,
    /// Its name, as that of an iSCSI initiator.
    pub initiator: &'a str,
    /// The name of the target; empty: the target of the port.
    pub target: &'a str,
}

impl<'a> Login<'a> {
    /// The login in a Transfer.
    ///
    /// # Errors
    /// The answer to one that is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LoginStatus> {
        let (head, names) = LoginHead::ref_from_prefix(bytes).map_err(|_| LoginStatus::MALFORMED)?;
        if head.version.get() != VERSION {
            return Err(LoginStatus::VERSION);
        }
        let (initiator, target) = (usize::from(head.initiator_len), usize::from(head.target_len));
        let is_right = (1..=NAME_MAX).contains(&initiator) && target <= NAME_MAX && names.len() == initiator + target;
        let names = std::str::from_utf8(names).ok().filter(|_| is_right).ok_or(LoginStatus::MALFORMED)?;
        let (initiator, target) = names.split_at_checked(initiator).ok_or(LoginStatus::MALFORMED)?;
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        let has_type = ["iqn.", "eui.", "naa."].iter().any(|prefix| initiator.starts_with(prefix));
        if !is_plain(initiator) || !is_plain(target) || !has_type {
            return Err(LoginStatus::MALFORMED);
        }
        Ok(Self { depth: head.depth.get(), initiator, target })
    }

    /// Its bytes.
    ///
    /// # Panics
    /// When a name is longer than [`NAME_MAX`].
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let len = |name: &str| {
            assert!(name.len() <= NAME_MAX, "a name of at most {NAME_MAX} bytes");
            name.len() as u8
        };
        let (initiator_len, target_len) = (len(self.initiator), len(self.target));
        let (version, depth) = (VERSION.into(), self.depth.into());
        let head = LoginHead { version, depth, initiator_len, target_len, reserved: [0; 2] };
        [head.as_bytes(), self.initiator.as_bytes(), self.target.as_bytes()].concat()
    }
}

/// The answer to a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoginAnswer {
    status: u8,
    reserved: u8,
    depth: U16,
    data_max: U32,
}

impl LoginAnswer {
    /// The answer, with so many commands that may be in progress.
    #[must_use]
    pub fn new(status: LoginStatus, depth: u16) -> Self {
        Self { status: status.0, reserved: 0, depth: depth.into(), data_max: DATA_MAX.into() }
    }

    /// The answer in a Transfer.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// Whether the initiator is logged in.
    #[must_use]
    pub fn status(&self) -> LoginStatus {
        LoginStatus(self.status)
    }

    /// Commands that may be in progress.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth.get()
    }

    /// The most bytes of data of a command.
    #[must_use]
    pub fn data_max(&self) -> u32 {
        self.data_max.get()
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    command: [u8; FCP_LEN],
    tag: U32,
    transfer: U16,
    flags: U16,
    name: U64,
}

const _: () = assert!(size_of::<Layout>() == COMMAND_LEN, "FCP_CMND and four fields");

/// A command in its place of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandBlock<'a> {
    /// FCP_CMND.
    pub command: fcp::Command<'a>,
    /// The tag of the task.
    pub tag: u32,
    /// The identifier that the initiator has chosen for the Transfer of the data; 0 without data.
    pub transfer: u16,
    /// [`flags`].
    pub flags: u16,
    /// [`name_hash`] of the initiator.
    pub name: u64,
}

/// Why a command is answered without being executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCommand {
    /// Its tag.
    pub tag: u32,
}

impl<'a> CommandBlock<'a> {
    /// The command in these bytes.
    ///
    /// # Errors
    /// When the command is malformed: its FCP_CMND does not fit, or its data and its Transfer contradict each other.
    pub fn parse(bytes: &'a [u8; COMMAND_LEN]) -> Result<Self, BadCommand> {
        let layout: &Layout = zerocopy::transmute_ref!(bytes);
        let tag = layout.tag.get();
        let command = fcp::Command::parse(&layout.command).map_err(|_| BadCommand { tag })?;
        let (transfer, flags) = (layout.transfer.get(), layout.flags.get());
        let moves = (command.data_out > 0, command.data_in > 0);
        let has_transfer = transfer != 0 && (moves.0 || moves.1);
        let is_right = (flags & flags::DATA_OUT != 0, flags & flags::DATA_IN != 0) == moves
            && has_transfer == (moves.0 || moves.1)
            && command.data_out.max(command.data_in) <= DATA_MAX;
        if !is_right {
            return Err(BadCommand { tag });
        }
        Ok(Self { command, tag, transfer, flags, name: layout.name.get() })
    }

    /// The bytes of the command.
    ///
    /// # Panics
    /// When the CDB is longer than 32 bytes, or has no whole number of words.
    #[must_use]
    pub fn bytes(&self) -> [u8; COMMAND_LEN] {
        let fcp = self.command.bytes();
        let mut command = [0; FCP_LEN];
        command[..fcp.len()].copy_from_slice(&fcp);
        let (tag, transfer) = (self.tag.into(), self.transfer.into());
        let layout = Layout { command, tag, transfer, flags: self.flags.into(), name: self.name.into() };
        zerocopy::transmute!(layout)
    }

    /// The tag of the task to abort.
    #[must_use]
    pub fn aborted(&self) -> Option<u32> {
        let tag = self.command.cdb.first_chunk().map(|tag| u32::from_be_bytes(*tag));
        tag.filter(|_| self.flags & flags::ABORT != 0)
    }
}

/// The hash of the name of an initiator in its commands: a command that another initiator has put into a region by
/// mistake is noticed.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    fnv_64(name)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
