//! The protection store of a volume: eight bytes of protection information for each block, in a store of their own.
//!
//! The back end of the volume says where the store is, for example in the file `disk.img.pi`. Some kinds of store keep
//! no protection information.

use super::error::{ProtectionError, VolumeError};
use crate::answer::block_on;
use crate::backend::{OpenedStore, ProtectionRequest, Refusal, StoreRequest};
use lunar_core::medium::MediumKind;
use lunar_core::metadata::MetadataStore;
use lunar_core::protection::{self, INFO_BYTES};
use lunar_reactor::Reactor;
use lunar_unit::protection as stored;
use std::io;
use std::sync::Arc;

/// The size of a protection store is a multiple of this many bytes, as those of files are.
const BLOCK: u64 = 4096;

/// The protection store of a volume: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct Protection {
    store: Arc<dyn OpenedStore>,
    kind: protection::Kind,
}

/// The protection information that a volume is asked to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) medium: MediumKind,
    /// The type of a volume that never had protection information.
    pub(super) kind: Option<protection::Kind>,
}

impl Protection {
    /// The protection store of a volume that has had protection information, or is asked to have some.
    ///
    /// # Errors
    /// In words that say what to do.
    pub(super) fn open_for(
        volume: &dyn OpenedStore,
        request: &StoreRequest<'_>,
        wanted: Wanted,
        metadata: &dyn MetadataStore,
    ) -> Result<Option<Self>, VolumeError> {
        let refused = |why| VolumeError::Protection(request.name.to_owned(), why);
        let had = stored::stored(metadata).map_err(|why| refused(ProtectionError::Unknown(why)))?;
        let (Some(kind), is_new) = (had.or(wanted.kind), had.is_none()) else { return Ok(None) };
        if request.read_only {
            // Blocks that are read are not checked, and none is written.
            return Ok(None);
        }
        if wanted.medium != MediumKind::Fixed {
            return Err(refused(ProtectionError::Ejectable(request.origin.option("protection"))));
        }
        let blocks = volume.traits().size / u64::from(request.block_size);
        let size = (blocks * INFO_BYTES as u64).next_multiple_of(BLOCK);
        let store = volume.open_protection(&ProtectionRequest { volume: request, size, is_new })?;
        if is_new {
            // No core is needed: memory is saved at once, and files in a thread.
            block_on(stored::save(metadata, kind)).map_err(|why| refused(ProtectionError::NotStored(why)))?;
        }
        Ok(Some(Self { store, kind }))
    }

    /// The place of a protection store that is unavailable.
    pub(super) fn standing_in(store: Arc<dyn OpenedStore>, kind: protection::Kind) -> Self {
        Self { store, kind }
    }

    /// The type of the protection information.
    #[must_use]
    pub fn kind(&self) -> protection::Kind {
        self.kind
    }

    /// See [`OpenedStore::with_sharing`].
    ///
    /// # Errors
    /// When another process has the store open.
    pub fn with_sharing(&self, is_shared: bool) -> Result<Self, Refusal> {
        Ok(Self { store: self.store.with_sharing(is_shared)?, kind: self.kind })
    }

    /// See [`OpenedStore::finalize`].
    pub fn finalize(&self) {
        self.store.finalize();
    }

    /// The store, for all cores.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn OpenedStore> {
        &self.store
    }

    /// The protection store of one core.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    pub fn open(&self, reactor: &Reactor) -> io::Result<protection::Protection> {
        Ok(protection::Protection::new(self.store.open(reactor)?, self.kind))
    }
}
