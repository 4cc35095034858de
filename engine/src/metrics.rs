//! The metrics of a target, for the page of metrics: [`Metrics`] sums the counters of all cores, without asking a core.
//!
//! * [`table`]: the families
//! * `volumes`, `space`, `hosts`, `cores`: their samples

mod cores;
mod hosts;
mod space;
pub mod table;
mod volumes;

use crate::core_set::cores::Cores;
use crate::core_set::shared::Shared;
use crate::health::Spaces;
use crate::placed::PlacedVolume;
use lunar_control::api::TroubleView;
use lunar_control::metrics::{Measured, Page, Samples};
use lunar_core::tally::SharedTally;
use lunar_core::traffic::{CELLS, ClassSums, bound};
use lunar_core::unit::{Identity, UnitId};
use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A volume that is served, without its store, which must not outlive its service.
#[derive(Debug)]
pub(crate) struct VolumeFacts {
    unit: UnitId,
    tally: SharedTally,
    identity: Arc<Identity>,
    kind: &'static str,
    block_size: u32,
    size: Option<u64>,
    is_read_only: bool,
}

impl VolumeFacts {
    pub(crate) fn of(placed: &PlacedVolume) -> Self {
        let volume = &placed.volume;
        Self {
            unit: placed.unit,
            tally: placed.tally.clone(),
            identity: volume.identity().clone(),
            kind: placed.kind.word(),
            block_size: volume.block_size(),
            size: volume.size(),
            is_read_only: volume.is_read_only(),
        }
    }
}

/// A portal of the configuration in force.
#[derive(Debug)]
pub(crate) struct PortalFacts {
    pub(crate) address: String,
    pub(crate) transport: String,
    pub(crate) is_up: bool,
}

/// The configuration in force, as far as metrics name its parts.
#[derive(Default, Debug)]
pub(crate) struct Facts {
    pub(crate) volumes: BTreeMap<Arc<str>, VolumeFacts>,
    pub(crate) portals: BTreeMap<String, PortalFacts>,
    /// Names of targets in the configuration, by their names in iSCSI and NVMe.
    pub(crate) targets: BTreeMap<Arc<str>, String>,
}

/// The metrics of a target.
pub struct Metrics {
    shared: Arc<Shared>,
    cores: Cores,
    spaces: Spaces,
    facts: Mutex<Arc<Facts>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new(shared: Arc<Shared>, cores: Cores, spaces: Spaces) -> Arc<Self> {
        Arc::new(Self { shared, cores, spaces, facts: Mutex::default() })
    }

    /// Names the parts of the configuration that is in force now.
    pub(crate) fn publish(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    fn facts(&self) -> Arc<Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Measured for Metrics {
    fn write(&self, page: &mut Page, troubles: &[TroubleView]) {
        let facts = self.facts();
        page.family(&table::BUILD_INFO, |samples| samples.add(&[env!("CARGO_PKG_VERSION")], 1));
        cores::write(page, &self.shared.stats);
        page.family(&table::PORTAL_UP, |samples| {
            for (name, PortalFacts { address, transport, is_up }) in &facts.portals {
                samples.add(&[name, address, transport], u64::from(*is_up));
            }
        });
        hosts::write(page, &self.shared.hosts, &facts.targets);
        volumes::write(page, &facts.volumes, &self.shared.units, troubles);
        space::write(page, &self.spaces.read());
    }

    fn silent_cores(&self, patience: Duration) -> Vec<usize> {
        let asked: Vec<_> = (0..self.cores.count()).map(|core| self.cores.ask(core, |_| ready(()))).collect();
        let host = self.cores.host();
        let end = host.now() + patience;
        let answers = asked.into_iter().map(|answer| answer.wait_for(end.since(host.now())).is_some());
        answers.enumerate().filter(|(_, answered)| !answered).map(|(core, _)| core).collect()
    }
}

/// Bounds of a coarse histogram: every second one of the cells.
const COARSE: usize = 2;

/// Adds a histogram with all cells.
fn add_fine(samples: &mut Samples<'_>, labels: &[&str], sums: &ClassSums) {
    let buckets = sums.cells.iter().enumerate().map(|(cell, count)| (bound(cell), *count));
    samples.add_histogram(labels, buckets, sums.nanoseconds);
}

/// Adds a histogram with a quarter of the resolution: its bounds are bounds of cells.
fn add_coarse(samples: &mut Samples<'_>, labels: &[&str], sums: &ClassSums) {
    const { assert!(CELLS.is_multiple_of(COARSE)) };
    let cells = sums.cells.chunks(COARSE).enumerate();
    let buckets = cells.map(|(at, cells)| (bound(COARSE * at + COARSE - 1), cells.iter().sum()));
    samples.add_histogram(labels, buckets, sums.nanoseconds);
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
