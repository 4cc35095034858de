//! An image that is served: opened once, for all cores.

use super::found;
use crate::core::HandlerStore;
use crate::life::Lifetime;
use crate::shared::Unit;
use lunar_control::api::HandlerView;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{Fingerprint, Mark, OpenedStore, PoolSpace, ProtectionRequest, Refusal, StoreTrouble};
use lunar_reactor::Reactor;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes below which the library ignores a discard (`rbd_discard_granularity_bytes`).
const DISCARD_BYTES: u32 = 64 << 10;
/// Bytes that a store of the cluster writes at once.
const PHYSICAL_BLOCK: u32 = 4096;

/// An image, on the terms of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct ImageVolume {
    life: Arc<Lifetime>,
    unit: Unit,
    traits: Traits,
    /// The identity of the image, as its process has reported it.
    identity: String,
}

impl ImageVolume {
    /// An image of so many bytes. A part of a block at its end is not used.
    pub(super) fn new(life: Arc<Lifetime>, unit: Unit, size: u64, identity: String) -> Self {
        let size = whole(size, &unit);
        let traits = Traits {
            size,
            read_only: unit.read_only,
            // The cache of the library is off.
            write_cache: false,
            thin: unit.discard,
            unmap_granularity: if unit.discard { DISCARD_BYTES } else { 0 },
            unmap_zeroes: false,
            physical_block: PHYSICAL_BLOCK,
            optimal_io: 0,
            rotational: false,
            // A write to two objects may be executed in part.
            atomic_write: 0,
        };
        Self { life, unit, traits, identity }
    }

    pub(super) fn life(&self) -> &Arc<Lifetime> {
        &self.life
    }

    pub(super) fn unit(&self) -> &Unit {
        &self.unit
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn size(&self) -> u64 {
        self.traits.size
    }
}

/// The bytes of whole blocks.
fn whole(size: u64, unit: &Unit) -> u64 {
    size - size % u64::from(unit.block_size)
}

/// The name of the image, from which the identity of a volume of a command line is derived: it is known without the
/// cluster.
pub(super) fn mark(image: &Path) -> Mark {
    Mark::Local { space: "rbd", parts: vec![image.display().to_string()] }
}

impl OpenedStore for ImageVolume {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark(&self.unit.path))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(found::fingerprint(&self.identity))
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(HandlerStore::open(reactor, &self.life, self.traits.clone(), true)))
    }

    // The lock of the image is that of its process.
    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {
        self.life.set_unit(&self.unit);
        self.life.set_halted(false);
    }

    fn has_other_size(&self) -> bool {
        self.life.size().is_some_and(|size| whole(size, &self.unit) != self.traits.size)
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        self.life.examine(&self.unit)
    }

    fn handler(&self) -> Option<HandlerView> {
        Some(self.life.view(&self.unit))
    }

    // The numbers are up to half a minute old, so the store does not answer `Op::Space`: its user sets thresholds by
    // what a write has just taken.
    fn pool_space(&self) -> Option<PoolSpace> {
        self.life.pool_space(&self.unit, self.traits.size)
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}
