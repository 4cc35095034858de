//! The metrics of an engine, and the parts of its configuration that they name.

use crate::engine::Engine;
use crate::metrics::{Facts, PortalFacts, VolumeFacts};
use lunar_control::metrics::Measured;
use std::sync::Arc;

impl Engine {
    /// The metrics of this engine, for readers on any thread.
    #[must_use]
    pub fn metrics(&self) -> Arc<dyn Measured> {
        self.metrics.clone()
    }

    /// The parts of the configuration that metrics name.
    pub(crate) fn facts(&self, wanted: &lunar_control::Checked) -> Facts {
        let portals = wanted.config.portals.iter().map(|(name, portal)| {
            let bound = self.portals.get(name);
            let is_up = bound.is_some_and(|bound| !self.shape.closed.contains_key(&bound.id));
            let address = bound.map_or_else(|| portal.address(), |bound| bound.address);
            let transport = portal.protocol.word().to_owned();
            (name.clone(), PortalFacts { address: address.to_string(), transport, is_up })
        });
        let volumes = self.volumes.iter().map(|(name, placed)| (name.clone(), VolumeFacts::of(placed)));
        Facts { portals: portals.collect(), volumes: volumes.collect(), targets: self.shape.names.clone() }
    }
}
