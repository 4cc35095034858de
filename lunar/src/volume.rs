//! The volumes that the command line names, and the one list of back ends.
//!
//! * [`spec`]: what a name on the command line means; `configured`: what the configuration says of a volume
//! * [`identity`]: who a volume is, for ever
//! * `keep`: what a volume keeps across restarts besides its data
//! * `protection`: where it keeps protection information
//! * `advice`: what to do about a volume that cannot be served

mod advice;
mod configured;
pub mod identity;
pub(crate) mod keep;
mod protection;
pub mod spec;

use anyhow::{Context, Result, bail};
use keep::Folder;
use lunar_block::BlockVolume;
use lunar_core::io::{Store, Traits};
use lunar_core::medium::MediumKind;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::unit::Identity;
use lunar_file::FileVolume;
use lunar_null::NullVolume;
use lunar_ram::RamVolume;
use lunar_reactor::Reactor;
pub use protection::Protection;
use spec::{Named, Spec};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a block of a CD or DVD.
const DISC_BLOCK: u32 = 2048;

/// How volumes are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Writes are refused, and nothing of the volume is changed.
    pub read_only: bool,
    /// Other processes that say the same may serve its file, too.
    pub shared: bool,
    /// Bytes of a logical block: 512 or 4096. A CD or DVD has its own.
    pub block_size: u32,
    /// Each write is on the medium before it is answered.
    pub write_through: bool,
    /// Past the page cache.
    pub direct: bool,
    /// A file that is not there is made where its size is told; without, it was served before, and has to be there.
    pub makes: bool,
    /// Keep protection information; a volume that never did starts with this type.
    pub protection: Option<lunar_core::protection::Kind>,
}

impl Options {
    /// Nothing special: written to by this process alone, through the page cache, in blocks of 512 bytes.
    pub const PLAIN: Self = Self {
        read_only: false,
        shared: false,
        block_size: 512,
        write_through: false,
        direct: false,
        makes: true,
        protection: None,
    };
}

/// A volume: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct Volume {
    kind: Kind,
    medium: MediumKind,
    block_size: u32,
    identity: Arc<Identity>,
    keep: Arc<dyn MetadataStore>,
    protection: Option<Protection>,
}

/// The back ends.
#[derive(Clone, Debug)]
enum Kind {
    Null(NullVolume),
    Ram(RamVolume),
    File(FileVolume),
    Block(BlockVolume),
}

impl Volume {
    /// Opens the volumes that a command line names, in their order.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn open_all(specs: &[String], options: &Options) -> Result<Vec<Self>> {
        let mut places = Vec::new();
        let mut volumes: Vec<Self> = Vec::new();
        for (index, text) in specs.iter().enumerate() {
            let named = spec::parse(text)?;
            if let Spec::Path { path, .. } = &named.spec
                && let Some(place) = place(path)
            {
                if places.contains(&place) {
                    bail!("{text} is named twice: a volume is shared under one number");
                }
                places.push(place);
            }
            let volume = Self::open_parsed(text, &named, options, index)?;
            if let Some(twin) = volumes.iter().position(|other| other.identity == volume.identity) {
                bail!("{text} is the same volume as {}: name it once", specs[twin]);
            }
            volumes.push(volume);
        }
        Ok(volumes)
    }

    /// Opens one volume.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn open_spec(text: &str, options: &Options) -> Result<Self> {
        Self::open_parsed(text, &spec::parse(text)?, options, 0)
    }

    fn open_parsed(text: &str, named: &Named, options: &Options, index: usize) -> Result<Self> {
        // Through the page cache: its blocks are smaller than what many file systems read past it.
        let disc = Options { read_only: true, block_size: DISC_BLOCK, direct: false, ..*options };
        let options = if named.medium == MediumKind::Optical { &disc } else { options };
        let (kind, identity) = match &named.spec {
            Spec::Null { size } => {
                advice::whole_blocks(text, *size, options.block_size)?;
                let identity = identity::of_memory(text, index);
                (Kind::Null(NullVolume::new(*size, options.read_only)), identity)
            }
            Spec::Ram { size } => {
                advice::whole_blocks(text, *size, options.block_size)?;
                let volume = RamVolume::new(*size, options.read_only).with_context(|| {
                    format!("{text}: no machine has that much memory, {} bytes at most", lunar_ram::SIZE_MAX)
                })?;
                (Kind::Ram(volume), identity::of_memory(text, index))
            }
            Spec::Path { path, size } => Self::open_path(path, *size, options)?,
        };
        let keep: Arc<dyn MetadataStore> = match kind {
            // Their data is forgotten as well.
            Kind::Null(_) | Kind::Ram(_) => Arc::new(VolatileMemory::default()),
            Kind::File(_) | Kind::Block(_) => {
                Arc::new(Folder::open(identity.uuid, !options.read_only).with_context(|| format!("opening {text}"))?)
            }
        };
        let Options { block_size, .. } = *options;
        let protection = Protection::of(text, &kind, named, &*keep, options)?;
        Ok(Self { kind, medium: named.medium, block_size, identity: Arc::new(identity), keep, protection })
    }

    fn open_path(path: &Path, size: Option<u64>, options: &Options) -> Result<(Kind, Identity)> {
        let Options { read_only, shared, block_size, write_through: durable, direct, .. } = *options;
        if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) {
            if size.is_some() {
                bail!("{0} is a device and has its size: name it without one, {0}", path.display());
            }
            if shared {
                bail!("{}: a device is served by one process: leave out --shared", path.display());
            }
            let how = lunar_block::Options { read_only, durable, direct, block_size };
            let volume = BlockVolume::new(path, &how).map_err(|why| advice::on_block(path, &why, options))?;
            let identity = identity::of_block(volume.mark());
            return Ok((Kind::Block(volume), identity));
        }
        let (makes, grows, mark) = (options.makes, false, None);
        let how = lunar_file::Options { size, makes, grows, mark, read_only, shared, durable, direct, block_size };
        let volume = match advice::in_dev(path) {
            // A file in place of a device that is not there would be kept in memory, and nobody would know.
            true if !path.exists() => Err(lunar_file::Refusal::Missing),
            _ => FileVolume::new(path, &how),
        };
        let volume = volume.map_err(|why| advice::on_file(path, &why, size, options))?;
        let identity = identity::of_file(volume.mark());
        Ok((Kind::File(volume), identity))
    }

    /// What it says of itself.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        match &self.kind {
            Kind::Null(volume) => volume.traits(),
            Kind::Ram(volume) => volume.traits(),
            Kind::File(volume) => volume.traits(),
            Kind::Block(volume) => volume.traits(),
        }
    }

    /// What sort of medium it is to initiators.
    #[must_use]
    pub fn medium(&self) -> MediumKind {
        self.medium
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// What it keeps across restarts besides its data.
    #[must_use]
    pub fn keep(&self) -> &Arc<dyn MetadataStore> {
        &self.keep
    }

    /// What keeps its protection information, if anything does.
    #[must_use]
    pub fn protection(&self) -> Option<&Protection> {
        self.protection.as_ref()
    }

    /// Whether it goes past the page cache: then memory that is registered with the kernel pays.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match &self.kind {
            Kind::Null(_) | Kind::Ram(_) => false,
            Kind::File(volume) => volume.is_direct(),
            Kind::Block(volume) => volume.is_direct(),
        }
    }

    /// Of the ways in which its file was opened, this is the one from now on: others have it no less, and no more, than
    /// it says.
    pub fn settle(&self) {
        if let Kind::File(volume) = &self.kind {
            volume.settle();
        }
        self.protection.iter().for_each(Protection::settle);
    }

    /// A core's own store.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        match &self.kind {
            Kind::Null(volume) => volume.open(reactor),
            Kind::Ram(volume) => volume.open(reactor),
            Kind::File(volume) => volume.open(reactor),
            Kind::Block(volume) => volume.open(reactor),
        }
    }
}

/// What to tell somebody who may have meant something else by a name.
#[must_use]
pub fn hint(text: &str) -> Option<String> {
    advice::on_name(text)
}

/// What two names of one file or device have in common.
fn place(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    // A device is its number, wherever its node lies.
    Some(if found.file_type().is_block_device() { (0, found.rdev()) } else { (found.dev(), found.ino()) })
}

#[cfg(test)]
#[path = "volume/volume_tests.rs"]
mod tests;
