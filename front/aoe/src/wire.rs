//! Formats of ATA over Ethernet (AoE r11), behind the Ethernet header: a header of ten bytes, then the part of the
//! command.
//!
//! A struct can express anything that a station may send; [`crate::target`] decides what is valid. Both sides use these
//! formats.

use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use lunar_link::MacAddress;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType.
pub const ETHER_TYPE: u16 = 0x88a2;
/// Bytes of an ATA sector.
pub const SECTOR: usize = 512;
/// Bytes of the Ethernet header and of the AoE header, after which the part of the command begins.
pub const HEADER_LEN: usize = 24;
/// Bytes of a frame before the data of an ATA command.
pub const ATA_LEN: usize = HEADER_LEN + size_of::<AtaPart>();
/// The shortest frame on an Ethernet, without its check sequence.
pub const FRAME_MIN: usize = 60;
/// The most bytes of a configuration string.
pub const CONFIG_STRING_MAX: usize = 1024;
/// The protocol version.
pub const VERSION: u8 = 1;
/// The shelf of all targets.
pub const ALL_SHELVES: u16 = 0xffff;
/// The slot of all targets of a shelf.
pub const ALL_SLOTS: u8 = 0xff;
/// Flag of the header: the frame is a response.
pub const RESPONSE: u8 = 0x08;
/// Flag of the header: the command failed, and the error field says why.
pub const ERROR: u8 = 0x04;

codes! {
    /// Commands.
    pub struct Command(u8) { ATA = 0, CONFIG = 1, MASK = 2, RESERVE = 3 }
}

codes! {
    /// Errors of the protocol.
    pub struct ErrorCode(u8) {
        UNRECOGNIZED_COMMAND = 1, BAD_ARGUMENT = 2, DEVICE_UNAVAILABLE = 3, CONFIG_STRING_PRESENT = 4,
        UNSUPPORTED_VERSION = 5, TARGET_RESERVED = 6,
    }
}

/// The header, behind that of Ethernet (AoE r11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version in the high four bits, flags in the low ones.
    pub version_and_flags: u8,
    /// The error of a response.
    pub error: u8,
    /// The shelf (major address).
    pub shelf: U16,
    /// The slot (minor address).
    pub slot: u8,
    /// The command.
    pub command: u8,
    /// The tag of a request, which its response repeats.
    pub tag: U32,
}

impl Header {
    /// The header of a request.
    #[must_use]
    pub fn request(address: Address, command: Command, tag: u32) -> Self {
        Self {
            version_and_flags: VERSION << 4,
            error: 0,
            shelf: address.shelf.into(),
            slot: address.slot,
            command: command.0,
            tag: tag.into(),
        }
    }

    /// The header of the response of a target to this request.
    #[must_use]
    pub fn response(&self, address: Address, error: Option<ErrorCode>) -> Self {
        Self {
            version_and_flags: VERSION << 4 | RESPONSE | if error.is_some() { ERROR } else { 0 },
            error: error.map_or(0, |error| error.0),
            shelf: address.shelf.into(),
            slot: address.slot,
            ..*self
        }
    }

    /// The protocol version.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version_and_flags >> 4
    }

    /// Whether it belongs to a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.version_and_flags & RESPONSE != 0
    }

    /// Whether it belongs to the response of a command that failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.version_and_flags & ERROR != 0
    }

    /// The address of the target.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { shelf: self.shelf.get(), slot: self.slot }
    }
}

/// The address of a target: shelf and slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The shelf (major address).
    pub shelf: u16,
    /// The slot (minor address).
    pub slot: u8,
}

impl Address {
    /// The address of all targets.
    pub const ALL: Self = Self { shelf: ALL_SHELVES, slot: ALL_SLOTS };

    /// Whether it names more than one target.
    #[must_use]
    pub fn is_wildcard(self) -> bool {
        self.shelf == ALL_SHELVES || self.slot == ALL_SLOTS
    }

    /// Whether it names this target, alone or with others.
    #[must_use]
    pub fn names(self, target: Self) -> bool {
        (self.shelf == target.shelf || self.shelf == ALL_SHELVES)
            && (self.slot == target.slot || self.slot == ALL_SLOTS)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.shelf, self.slot)
    }
}

/// A text is not an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotAnAddress(String);

impl std::fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' is not a shelf and a slot, as 1.0", self.0)
    }
}

impl std::error::Error for NotAnAddress {}

impl std::str::FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let parsed = text.split_once('.').and_then(|(shelf, slot)| Some((shelf.parse().ok()?, slot.parse().ok()?)));
        let (shelf, slot) = parsed.ok_or_else(|| NotAnAddress(text.to_owned()))?;
        Ok(Self { shelf, slot })
    }
}

/// Flag of an ATA part: the LBA has 48 bits.
pub const EXTENDED: u8 = 0x40;
/// Flag of an ATA part: the command writes, and its data follows.
pub const WRITE: u8 = 0x01;

codes! {
    /// ATA commands (ATA8-ACS 7).
    pub struct AtaCommand(u8) {
        NOP = 0x00, READ_SECTORS = 0x20, READ_SECTORS_EXT = 0x24, WRITE_SECTORS = 0x30, WRITE_SECTORS_EXT = 0x34,
        READ_VERIFY_SECTORS = 0x40, READ_VERIFY_SECTORS_EXT = 0x42, STANDBY_IMMEDIATE = 0xe0, IDLE_IMMEDIATE = 0xe1,
        STANDBY = 0xe2, IDLE = 0xe3, CHECK_POWER_MODE = 0xe5, SLEEP = 0xe6, FLUSH_CACHE = 0xe7, FLUSH_CACHE_EXT = 0xea,
        IDENTIFY_DEVICE = 0xec,
    }
}

/// ATA status: the device is ready (DRDY).
pub const DEVICE_READY: u8 = 0x40;
/// ATA status: the device cannot complete the command (DF).
pub const DEVICE_FAULT: u8 = 0x20;
/// ATA status: the command failed, and the error register says why (ERR).
pub const STATUS_ERROR: u8 = 0x01;
/// The bits of the ATA status that a client takes for a failure: BSY, DF, DRQ, ERR.
pub const FAILURE_MASK: u8 = 0xa9;
/// ATA error: the data is uncorrectable (UNC).
pub const UNCORRECTABLE: u8 = 0x40;
/// ATA error: there is no sector with this address (IDNF).
pub const NOT_FOUND: u8 = 0x10;
/// ATA error: the command was aborted (ABRT).
pub const ABORTED: u8 = 0x04;

/// The part of an ATA command (AoE r11): the registers of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtaPart {
    /// Flags.
    pub flags: u8,
    /// The feature register of a request, the error register of a response.
    pub feature_or_error: u8,
    /// The number of sectors.
    pub count: u8,
    /// The command of a request, the status of a response.
    pub command_or_status: u8,
    /// The LBA, least significant byte first.
    pub lba: [u8; 6],
    /// Reserved.
    pub reserved: [u8; 2],
}

impl AtaPart {
    /// The part of a request with an LBA of 48 bits.
    #[must_use]
    pub fn request(command: AtaCommand, lba: u64, count: u8) -> Self {
        let [a, b, c, d, e, f, ..] = lba.to_le_bytes();
        let writes = if command == AtaCommand::WRITE_SECTORS_EXT { WRITE } else { 0 };
        Self {
            flags: EXTENDED | writes,
            feature_or_error: 0,
            count,
            command_or_status: command.0,
            lba: [a, b, c, d, e, f],
            reserved: [0; 2],
        }
    }

    /// The LBA with 48 bits.
    #[must_use]
    pub fn lba48(&self) -> u64 {
        let [a, b, c, d, e, f] = self.lba;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// The LBA with 28 bits, of commands without EXT.
    #[must_use]
    pub fn lba28(&self) -> u64 {
        self.lba48() & 0x0fff_ffff
    }
}

codes! {
    /// Subcommands of Query Config Information.
    pub struct ConfigCommand(u8) { READ = 0, TEST_EXACT = 1, TEST_PREFIX = 2, SET = 3, FORCE_SET = 4 }
}

/// The part of Query Config Information (AoE r11); the string follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConfigPart {
    /// The most requests that the target queues.
    pub buffers: U16,
    /// The firmware version.
    pub firmware: U16,
    /// The most sectors of a request; 0 means 2.
    pub sectors: u8,
    /// The AoE version in the high four bits, the subcommand in the low ones.
    pub version_and_command: u8,
    /// Bytes of the string.
    pub len: U16,
}

impl ConfigPart {
    /// The subcommand.
    #[must_use]
    pub fn command(&self) -> ConfigCommand {
        ConfigCommand(self.version_and_command & 0x0f)
    }
}

codes! {
    /// Subcommands of MAC Mask List.
    pub struct MaskCommand(u8) { READ = 0, EDIT = 1 }
}

codes! {
    /// Errors of MAC Mask List.
    pub struct MaskError(u8) { UNSPECIFIED = 1, BAD_DIRECTIVE = 2, LIST_FULL = 3 }
}

codes! {
    /// Directives of MAC Mask List.
    pub struct MaskDirective(u8) { NONE = 0, ADD = 1, DELETE = 2 }
}

/// The part of MAC Mask List (AoE r11); directives follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MaskPart {
    /// Reserved.
    pub reserved: u8,
    /// The subcommand.
    pub command: u8,
    /// The error of a response.
    pub error: u8,
    /// The number of directives.
    pub count: u8,
}

/// A directive of MAC Mask List (AoE r11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Directive {
    /// Reserved.
    pub reserved: u8,
    /// The directive.
    pub command: u8,
    /// The MAC address.
    pub mac: [u8; 6],
}

codes! {
    /// Subcommands of Reserve/Release.
    pub struct ReserveCommand(u8) { READ = 0, SET = 1, FORCE_SET = 2 }
}

/// The part of Reserve/Release (AoE r11); MAC addresses follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReservePart {
    /// The subcommand.
    pub command: u8,
    /// The number of MAC addresses; none ends the reservation.
    pub count: u8,
}

/// The MAC address of this text, as `52:54:00:12:34:02`.
#[must_use]
pub fn mac_of(text: &str) -> Option<MacAddress> {
    lunar_control::stations::mac_bytes(text).map(MacAddress)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
