//! A zvol that is served.

use super::identity;
use super::schema::Dataset;
use super::space::Measured;
use crate::BlockVolume;
use crate::backend::unshared;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{Fingerprint, Mark, OpenedStore, PoolSpace, ProtectionRequest, Refusal, StoreTrouble};
use lunar_reactor::Reactor;
use lunar_reactor::block_device::device_folder;
use std::io;
use std::sync::Arc;

/// A zvol: its device, its name, and its space.
#[derive(Clone, Debug)]
pub(super) struct ZvolVolume {
    device: BlockVolume,
    dataset: Dataset,
    /// See [`identity::of`].
    identity: Option<String>,
    measured: Arc<Measured>,
}

impl ZvolVolume {
    /// The zvol of this name, whose device was opened. `previous`: the same one, opened before.
    pub(super) fn new(dataset: Dataset, device: BlockVolume, previous: Option<&Self>) -> Self {
        let measured = match previous.filter(|previous| previous.dataset == dataset) {
            Some(previous) => previous.measured.clone(),
            None => Measured::new(dataset.clone()),
        };
        let device = device.with_space(measured.clone());
        // A device that was open all the time is the same zvol, whether ZFS answers now or not.
        let held = previous.filter(|previous| previous.device.device() == device.device());
        let identity = held.and_then(|previous| previous.identity.clone()).or_else(|| identity::of(&dataset));
        Self { device, identity, dataset, measured }
    }

    /// Its device.
    pub(super) fn device(&self) -> &BlockVolume {
        &self.device
    }

    /// Its name.
    pub(super) fn dataset(&self) -> &Dataset {
        &self.dataset
    }
}

/// The mark of a zvol with this identity.
pub(super) fn mark(dataset: &Dataset, identity: Option<String>) -> Mark {
    match identity {
        // The datasets of one pool are the same on every server that imports it.
        Some(identity) => Mark::Global { space: "zvol", name: identity },
        None => Mark::Local { space: "zvol", parts: vec![dataset.name().to_owned()] },
    }
}

/// The fingerprint of a zvol with this identity: without one, any zvol may have its name.
pub(super) fn fingerprint(dataset: &Dataset, identity: Option<String>) -> Option<Fingerprint> {
    identity.map(|identity| Fingerprint::of_mark(&mark(dataset, Some(identity))))
}

/// The writes and discards of a device since the start of the machine (Documentation/block/stat.rst of Linux): the
/// fifth and the twelfth number.
fn changes(device: u64) -> u64 {
    let text = std::fs::read_to_string(device_folder(device).join("stat")).unwrap_or_default();
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    [4, 11].into_iter().filter_map(|place| numbers.get(place)).fold(0, |sum, number| sum.wrapping_add(*number))
}

impl OpenedStore for ZvolVolume {
    fn traits(&self) -> &Traits {
        self.device.traits()
    }

    fn mark(&self) -> Option<Mark> {
        Some(mark(&self.dataset, self.identity.clone()))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        fingerprint(&self.dataset, self.identity.clone())
    }

    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        self.device.open(reactor)
    }

    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        unshared(self, is_shared)
    }

    // A device has one way of being open for this process alone.
    fn finalize(&self) {}

    fn has_other_size(&self) -> bool {
        self.device.has_grown()
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        self.device.examine()
    }

    fn pool_space(&self) -> Option<PoolSpace> {
        let space = self.measured.pool_space(changes(self.device.device()))?;
        // A volume that is not written takes none.
        Some(if self.traits().read_only { PoolSpace { missing: 0, ..space } } else { space })
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}
