//! The volumes of the operator, opened once for all cores.
//!
//! * [`configured`]: a volume as the configuration describes it
//! * [`text`]: volume texts of the command line; [`command_line`]: volumes that are opened from such texts
//! * [`error`]: why a volume cannot be served
//! * [`identity`]: the identity of a volume
//! * [`metadata`]: the metadata stores in the state folder
//! * [`protection`]: the protection store
//! * `remembered`: the store as it was served last; `stand_in`: the place of a store that is unavailable

pub mod command_line;
pub mod configured;
pub mod error;
pub mod identity;
pub mod metadata;
pub mod protection;
pub(crate) mod remembered;
mod stand_in;
pub mod text;

pub use configured::VolumeContext;
pub use error::VolumeError;
pub use protection::Protection;

use crate::backend::{Durability, Opened, StoreRequest};
use crate::host::StateStore;
use error::ProtectionError;
use lunar_core::medium::MediumKind;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::unit::Identity;
use metadata::MetadataError;
use std::sync::Arc;

/// Bytes of a block of a CD or DVD (MMC-6).
const DISC_BLOCK: u32 = 2048;

/// A volume: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct Volume {
    opened: Opened,
    medium: MediumKind,
    block_size: u32,
    read_only: bool,
    identity: Arc<Identity>,
    metadata: Arc<dyn MetadataStore>,
    protection: Option<Protection>,
}

impl Volume {
    /// The store or the device.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Bytes; `None`: a device knows its size itself.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.opened.store().map(|store| store.traits().size)
    }

    /// The medium that initiators see.
    #[must_use]
    pub fn medium(&self) -> MediumKind {
        self.medium
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether all writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The identity.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The metadata store.
    #[must_use]
    pub fn metadata(&self) -> &Arc<dyn MetadataStore> {
        &self.metadata
    }

    /// The protection store; `None`: the volume keeps no protection information.
    #[must_use]
    pub fn protection(&self) -> Option<&Protection> {
        self.protection.as_ref()
    }

    /// Whether its I/O bypasses the page cache. Memory that is registered with the kernel makes that faster.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.opened.store().is_some_and(|store| store.is_direct())
    }

    /// Declares that of all the ways in which the process has this volume open, this is the one that stays.
    pub fn finalize(&self) {
        match &self.opened {
            Opened::Store(store) => store.finalize(),
            Opened::Device(device) => device.finalize(),
        }
        self.protection.iter().for_each(Protection::finalize);
    }
}

/// The metadata store of a new volume: kept with the state if the data of the volume outlives the process.
fn metadata_store(
    durability: Durability,
    state: &dyn StateStore,
    uuid: [u8; 16],
    is_exclusive: bool,
) -> Result<Arc<dyn MetadataStore>, MetadataError> {
    match durability {
        Durability::Volatile => Ok(Arc::<VolatileMemory>::default()),
        Durability::Durable => state.volume(uuid, is_exclusive),
    }
}

/// The protection store of a volume. A device keeps its protection information itself.
fn protection_store(
    opened: &Opened,
    request: &StoreRequest<'_>,
    wanted: protection::Wanted,
    metadata: &dyn MetadataStore,
) -> Result<Option<Protection>, VolumeError> {
    match opened {
        Opened::Store(store) => Protection::open_for(&**store, request, wanted, metadata),
        Opened::Device(_) => {
            let refused = |why| Err(VolumeError::Protection(request.name.to_owned(), why));
            if wanted.medium != MediumKind::Fixed {
                return refused(ProtectionError::MediumOfDevice);
            }
            if wanted.kind.is_some() {
                return refused(ProtectionError::OfDevice(request.origin.option("protection")));
            }
            Ok(None)
        }
    }
}
