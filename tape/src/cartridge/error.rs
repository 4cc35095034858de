//! Errors of cartridges.

use std::fmt;
use std::io::{self, ErrorKind};

/// An error of a cartridge.
#[derive(Debug)]
pub enum CartridgeError {
    /// The file could not be read or written.
    Io(io::Error),
    /// The file system or the quota is full.
    NoSpace(io::Error),
    /// The file is no cartridge, or both copies of its header are damaged.
    NotACartridge,
    /// A later version of the program wrote the file.
    LaterVersion(u32),
    /// Another process or drive has the cartridge.
    InUse,
    /// The bar code is not made of 1 to 32 capital letters and digits.
    BadBarcode,
    /// The capacity is too small.
    BadCapacity,
    /// The record with this number is damaged.
    Damaged(u64),
    /// The capacity is used up.
    Full,
    /// The cartridge is write-protected.
    WriteProtected,
    /// The file can only be read, or could not be repaired when it was opened.
    Unwritable,
    /// A write would change data of a WORM cartridge.
    Worm,
    /// An earlier write or synchronization failed.
    Failed,
}

impl CartridgeError {
    /// The error of a write.
    pub(super) fn of_write(why: io::Error) -> Self {
        match why.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::NoSpace(why),
            _ => Self::Io(why),
        }
    }
}

impl From<io::Error> for CartridgeError {
    fn from(why: io::Error) -> Self {
        Self::Io(why)
    }
}

impl fmt::Display for CartridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(why) => write!(f, "the file of the cartridge: {why}"),
            Self::NoSpace(why) => write!(f, "no space for the cartridge: {why}; free some space in its file system"),
            Self::NotACartridge => f.write_str("the file is no cartridge, or its header is damaged"),
            Self::LaterVersion(version) => write!(f, "the file has version {version}: use a later lunar-tape"),
            Self::InUse => f.write_str("the cartridge is in use by another process"),
            Self::BadBarcode => f.write_str("a bar code has 1 to 32 capital letters and digits"),
            Self::BadCapacity => f.write_str("the capacity of a cartridge is at least 32 MiB"),
            Self::Damaged(object) => write!(f, "object {object} of the cartridge is damaged"),
            Self::Full => f.write_str("the cartridge is full"),
            Self::WriteProtected => f.write_str("the cartridge is write-protected"),
            Self::Unwritable => f.write_str(
                "the file of the cartridge cannot be written: see its permissions, its file system and its disk",
            ),
            Self::Worm => f.write_str("data of a WORM cartridge cannot be overwritten"),
            Self::Failed => f.write_str("an earlier write to the cartridge failed: unload it and load it again"),
        }
    }
}

impl std::error::Error for CartridgeError {}
