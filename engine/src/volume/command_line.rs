//! Volumes that are opened from texts on the command line.

use super::text::{self, VolumeKeys};
use super::{DISC_BLOCK, Volume, VolumeError, identity, metadata, metadata_store, protection, protection_store};
use crate::backend::{Backend, StoreRequest};
use crate::host::StateFolder;
use crate::origin::{Arguments, Origin};
use lunar_core::medium::MediumKind;
use lunar_core::protection::Kind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// How volumes are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Writes are refused, and nothing of the volume is changed.
    pub read_only: bool,
    /// Other processes may serve the same file, too, if they ask for the same.
    pub shared: bool,
    /// Bytes of a logical block: 512 or 4096. A CD or DVD has its own.
    pub block_size: u32,
    /// Each write is on the medium before it is answered.
    pub write_through: bool,
    /// I/O bypasses the page cache.
    pub direct: bool,
    /// Keep protection information; a volume that never did starts with this type.
    pub protection: Option<Kind>,
}

impl Options {
    /// The options of a command line without options: written by this process alone, through the page cache, in blocks
    /// of 512 bytes.
    pub const PLAIN: Self = Self {
        read_only: false,
        shared: false,
        block_size: 512,
        write_through: false,
        direct: false,
        protection: None,
    };
}

static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());

impl Volume {
    /// Opens the volumes that a command line names, in their order.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn open_all(
        backends: &[&'static dyn Backend],
        texts: &[String],
        options: &Options,
    ) -> Result<Vec<Self>, VolumeError> {
        let mut places = Vec::new();
        let mut volumes: Vec<Self> = Vec::new();
        for (position, text) in texts.iter().enumerate() {
            let keys = text::parse(backends, text)?;
            if let Some(place) = keys.path.as_deref().and_then(place) {
                if places.contains(&place) {
                    return Err(VolumeError::NamedTwice(text.clone()));
                }
                places.push(place);
            }
            let volume = Self::open_keys(text, &keys, options, position)?;
            if let Some(twin) = volumes.iter().position(|other| other.identity == volume.identity) {
                return Err(VolumeError::SameVolume(text.clone(), texts[twin].clone()));
            }
            volumes.push(volume);
        }
        Ok(volumes)
    }

    /// Opens one volume.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn open_text(backends: &[&'static dyn Backend], text: &str, options: &Options) -> Result<Self, VolumeError> {
        Self::open_keys(text, &text::parse(backends, text)?, options, 0)
    }

    fn open_keys(text: &str, keys: &VolumeKeys, options: &Options, position: usize) -> Result<Self, VolumeError> {
        let is_disc = keys.medium == MediumKind::Optical;
        let request = StoreRequest {
            size: keys.size,
            read_only: options.read_only || is_disc,
            shared: options.shared,
            write_through: options.write_through,
            // The blocks of a disc are smaller than what many file systems read past the page cache.
            direct: options.direct && !is_disc,
            block_size: if is_disc { DISC_BLOCK } else { options.block_size },
            is_disc,
            ..StoreRequest::of_command_line(text, &COMMAND_LINE, keys.path.as_deref())
        };
        let opened = keys.backend.open(&request, None)?;
        let identity =
            opened.mark().map_or_else(|| identity::of_process(text, position), |mark| identity::of_mark(&mark));
        let state = StateFolder::shared(&metadata::state_folder());
        let metadata = metadata_store(keys.backend.durability(), &state, identity.uuid, !request.read_only)
            .map_err(|why| VolumeError::Metadata(Some(text.to_owned()), why))?;
        let wanted = protection::Wanted { medium: keys.medium, kind: options.protection };
        let protection = protection_store(&opened, &request, wanted, &*metadata)?;
        Ok(Self {
            opened,
            medium: keys.medium,
            block_size: request.block_size,
            read_only: request.read_only,
            identity: Arc::new(identity),
            metadata,
            protection,
        })
    }
}

/// The identity of a file or device, equal for all of its names.
fn place(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    // A device is identified by its number; its nodes may be at several paths.
    Some(if found.file_type().is_block_device() { (0, found.rdev()) } else { (found.dev(), found.ino()) })
}
