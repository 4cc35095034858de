//! The metrics of a target, for the page of metrics: [`Metrics`] sums the counters of all cores, without asking a core.
//!
//! * [`table`]: the families
//! * `volumes`, `space`, `hosts`, `cores`: their samples
//! * `counters`: the same counters for readers that compute rates
//! * `facts`: the configuration in force, as far as metrics name its parts; `histogram`: the buckets of latencies

mod cores;
pub(crate) mod counters;
mod facts;
mod histogram;
mod hosts;
mod space;
pub mod table;
mod volumes;

use crate::core_set::core::Core;
use crate::core_set::cores::Cores;
use crate::core_set::shared::Shared;
use crate::health::Spaces;
pub(crate) use facts::{Facts, PortalFacts, VolumeFacts};
use lunar_control::api::TroubleView;
use lunar_control::counters::CountersView;
use lunar_control::metrics::{Measured, Page};
use lunar_core::traffic::{CELLS, bound};
use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a core may take to read the state of its TCP connections. A core that stalls is counted the next time: a
/// scraper waits for a page that is on time.
const TCP_PATIENCE: Duration = Duration::from_millis(10);

/// The metrics of a target.
pub struct Metrics {
    shared: Arc<Shared>,
    cores: Cores,
    spaces: Spaces,
    facts: Mutex<Arc<Facts>>,
    /// When the target started, in milliseconds since the beginning of 1970.
    start: u64,
    /// How often the counters were read.
    readings: AtomicU64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new(shared: Arc<Shared>, cores: Cores, spaces: Spaces) -> Arc<Self> {
        let start = shared.host.wall_clock();
        Arc::new(Self { shared, cores, spaces, facts: Mutex::default(), start, readings: AtomicU64::new(0) })
    }

    /// Names the parts of the configuration that is in force now.
    pub(crate) fn publish(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    /// Has each core count the TCP segments that it has sent again.
    fn count_retransmits(&self) {
        let count = async |core: Rc<Core>| core.used_fronts().for_each(|front| front.count_retransmits());
        let asked: Vec<_> = (0..self.cores.count()).map(|core| self.cores.ask(core, count)).collect();
        let host = self.cores.host();
        let end = host.now() + TCP_PATIENCE;
        for answer in asked {
            // A core without an answer in time counts them later.
            let _ = answer.wait_for(end.since(host.now()));
        }
    }

    fn facts(&self) -> Arc<Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Measured for Metrics {
    fn write(&self, page: &mut Page, troubles: &[TroubleView]) {
        self.count_retransmits();
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

    fn counters(&self, troubles: &[TroubleView]) -> CountersView {
        let facts = self.facts();
        let sequence = self.readings.fetch_add(1, Ordering::Relaxed) + 1;
        let (time, nanoseconds) = (self.shared.host.wall_clock(), self.shared.host.now().0);
        let spaces = self.spaces.read();
        let (volumes, hidden_volumes) = counters::volumes(&facts.volumes, &self.shared.units, troubles, &spaces);
        CountersView {
            start: self.start,
            sequence,
            nanoseconds,
            time,
            bounds: (0..CELLS).map_while(bound).collect(),
            cores: counters::cores(&self.shared.stats),
            volumes,
            hidden_volumes,
            hosts: counters::hosts(&self.shared.hosts, &facts.targets),
            stores: counters::stores(&spaces),
            portals: counters::portals(&facts.portals),
            refused: counters::refused(&self.shared.hosts),
        }
    }

    fn commands(&self) -> u64 {
        self.shared.stats.iter().map(|stats| stats.commands.get()).sum()
    }

    fn silent_cores(&self, patience: Duration) -> Vec<usize> {
        let asked: Vec<_> = (0..self.cores.count()).map(|core| self.cores.ask(core, |_| ready(()))).collect();
        let host = self.cores.host();
        let end = host.now() + patience;
        let answers = asked.into_iter().map(|answer| answer.wait_for(end.since(host.now())).is_some());
        answers.enumerate().filter(|(_, answered)| !answered).map(|(core, _)| core).collect()
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
