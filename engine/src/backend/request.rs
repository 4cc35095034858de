//! How a volume is opened.

use super::{Fingerprint, Refusal};
use crate::origin::{Origin, Wording};
use lunar_control::section::OwnKeys;
use lunar_control::value::{Size, Textual};
use std::fmt;
use std::path::Path;

/// How a volume is opened. The values come from the configuration, or from the options of the command line.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// The operator's name for the volume: its name in the configuration, or its text on the command line.
    pub name: &'a str,
    /// Where the request comes from: refusals name its options or its keys.
    pub origin: &'a Origin,
    /// Where the data is.
    pub path: Option<&'a Path>,
    /// Bytes; `None`: the volume exists and keeps its size.
    pub size: Option<u64>,
    /// A volume that is missing or empty is created. Without it, the volume was served before: it must be there.
    pub creates: bool,
    /// A volume that is smaller than `size` grows, and the rest of one that is larger is not used. Without it, another
    /// size is refused.
    pub grows: bool,
    /// The number that a volume without a mark gets; without it, a random number.
    pub mark: Option<[u8; 16]>,
    /// The fingerprint of the store that was served before, if it must be the same: a store that shows its fingerprint
    /// only when it is open is compared by its kind. `None`: any store is right.
    pub known: Option<&'a Fingerprint>,
    /// All writes are refused, and nothing of the volume is changed.
    pub read_only: bool,
    /// Other processes may open the volume, too, if they ask for the same.
    pub shared: bool,
    /// Each write is on the medium before it is answered.
    pub write_through: bool,
    /// I/O bypasses the page cache.
    pub direct: bool,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// The volume is the image of a CD or DVD.
    pub is_disc: bool,
    /// The keys that the kind of store declares; `None` on the command line, where all have their defaults.
    pub own: Option<&'a OwnKeys>,
}

impl<'a> StoreRequest<'a> {
    /// The request for a volume of a command line without options.
    #[must_use]
    pub const fn of_command_line(name: &'a str, origin: &'a Origin, path: Option<&'a Path>) -> Self {
        Self {
            name,
            origin,
            path,
            size: None,
            creates: true,
            grows: false,
            mark: None,
            known: None,
            read_only: false,
            shared: false,
            write_through: false,
            direct: false,
            block_size: 512,
            is_disc: false,
            own: None,
        }
    }

    /// The path.
    ///
    /// # Errors
    /// When there is none.
    pub fn required_path(&self) -> Result<&'a Path, Refusal> {
        self.path.ok_or(Refusal::NoPath)
    }

    /// The size of a volume that exists in this process only. It is a whole number of blocks.
    ///
    /// # Errors
    /// When there is none, or when it is not a whole number of blocks.
    pub fn required_size(&self) -> Result<u64, Refusal> {
        let size = self.size.ok_or(Refusal::NoSize)?;
        match size.is_multiple_of(self.block_size.into()) {
            true => Ok(size),
            false => Err(Refusal::Uneven(self.name.to_owned(), self.uneven(size))),
        }
    }

    /// The mistake of a size that is not a whole number of blocks.
    #[must_use]
    pub fn uneven(&self, size: u64) -> UnevenSize {
        UnevenSize { size, block_size: self.block_size, is_disc: self.is_disc, wording: self.origin.wording() }
    }
}

/// A size that is not a whole number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnevenSize {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The volume is the image of a CD or DVD.
    pub is_disc: bool,
    /// How the message names the block size.
    pub wording: Wording,
}

impl fmt::Display for UnevenSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, block_size, is_disc, wording } = *self;
        if is_disc {
            return write!(
                f,
                "{size} bytes are no CD or DVD: its blocks have {block_size} bytes. Is the image complete?"
            );
        }
        let below = size / u64::from(block_size) * u64::from(block_size);
        write!(f, "{size} bytes are not a whole number of {block_size}-byte blocks; ")?;
        if below > 0 {
            write!(f, "{} or ", Size(below).text())?;
        }
        write!(f, "{} would do", Size(size.next_multiple_of(block_size.into())).text())?;
        if block_size > 512 && size.is_multiple_of(512) {
            write!(f, ", or {}", wording.value("block-size", "512"))?;
        }
        Ok(())
    }
}

impl std::error::Error for UnevenSize {}

/// How the store of the protection information of a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct ProtectionRequest<'a> {
    /// How the volume was opened.
    pub volume: &'a StoreRequest<'a>,
    /// Bytes of protection information.
    pub size: u64,
    /// The volume has never had protection information, so there must be no store of it.
    pub is_new: bool,
}

impl ProtectionRequest<'_> {
    /// The refusal of a kind of store that keeps no protection information.
    #[must_use]
    pub fn no_place(&self) -> Refusal {
        let (name, option) = (self.volume.name.to_owned(), self.volume.origin.option("protection"));
        Refusal::NoProtection { name, option }
    }
}
