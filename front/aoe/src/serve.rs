//! The glue between links, the block command set and the reactor: one [`Front`] per core.
//!
//! * `endpoint`: a shelf on its link; `changes`: what its stations change
//! * `station`: a station that uses volumes; `volume`: a volume and its writes in progress
//! * `job`: a command that moves data
//! * `core`: what all shelves of a core share; `common`: what all cores share
//! * here: the shelves of a core, and the end of service
//!
//! All links of one shelf are served by one core, so that the writes to a volume have one order, whichever path of an
//! initiator they take.

mod changes;
pub(crate) mod common;
mod core;
mod endpoint;
mod job;
mod station;
mod volume;

pub use common::OpenLink;

use self::core::Core;
use crate::directory::Shelf;
use common::Common;
use endpoint::Endpoint;
use lunar_core::unit::UnitId;
use lunar_engine::core_set::context::CoreContext;
use lunar_link::{LinkConfig, MacAddress, OpenedLink};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two checks whether commands have ended, while the core stops.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// The shelves that one core serves.
pub struct Front {
    core: Rc<Core>,
    endpoints: RefCell<BTreeMap<u64, Rc<Endpoint>>>,
}

impl Front {
    /// The front of a core.
    pub(crate) fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        Rc::new(Self { core: Core::new(context, common), endpoints: RefCell::default() })
    }

    /// Attaches a link under this number. Its frames are ignored before [`Front::publish`].
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn attach(&self, number: u64, config: LinkConfig, opened: OpenedLink) -> io::Result<()> {
        let endpoint = Endpoint::start(&self.core, config, opened)?;
        self.endpoints.borrow_mut().insert(number, endpoint);
        Ok(())
    }

    /// Closes the link of this number.
    pub fn close(&self, number: u64) {
        let endpoint = self.endpoints.borrow_mut().remove(&number);
        endpoint.iter().for_each(|endpoint| endpoint.close());
    }

    /// Serves these shelves at the links of these numbers.
    pub fn publish(&self, shelves: Vec<(u64, Shelf)>) {
        let units: BTreeSet<UnitId> = shelves.iter().flat_map(|(_, shelf)| shelf.units()).collect();
        let resized = self.core.set_units(&units);
        for (number, shelf) in shelves {
            let endpoint = self.endpoints.borrow().get(&number).cloned();
            endpoint.into_iter().for_each(|endpoint| endpoint.publish(shelf.clone(), &resized));
        }
    }

    fn all(&self) -> Vec<Rc<Endpoint>> {
        self.endpoints.borrow().values().cloned().collect()
    }

    /// Forgets the stations of these groups, and stops serving the units that no shelf shows any more.
    pub async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        let endpoints = self.all();
        endpoints.iter().for_each(|endpoint| endpoint.forget_groups(ended));
        let units = endpoints.iter().flat_map(|endpoint| endpoint.units()).collect();
        self.core.retain_units(&units).await;
    }

    /// Forgets a station at the link of this number; returns whether it was known.
    #[must_use]
    pub fn forget(&self, number: u64, mac: MacAddress) -> bool {
        self.endpoints.borrow().get(&number).is_some_and(|endpoint| endpoint.forget(mac))
    }

    /// Stations that use volumes.
    #[must_use]
    pub fn stations(&self) -> usize {
        self.all().iter().map(|endpoint| endpoint.stations()).sum()
    }

    /// Commands and changes in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.core.commands.get() + self.core.changes.get()
    }

    /// Takes no more commands: see [`Front::drained`].
    pub fn drain(&self) {
        self.core.draining.come();
    }

    /// Waits for [`Front::drain`], and then until the commands in progress have ended.
    pub async fn drained(&self) {
        self.core.draining.unless(pending::<()>()).await;
        let reactor = self.core.reactor();
        let end = reactor.now() + self.core.common.ports.shared.config.drain;
        while self.in_progress() > 0 && reactor.now() < end {
            reactor.sleep(DRAIN_INTERVAL).await;
        }
        // The last answers leave with the end of this turn.
        reactor.sleep(DRAIN_INTERVAL).await;
        self.abandon();
    }

    /// Closes all links at once.
    pub fn abandon(&self) {
        self.endpoints.take().values().for_each(|endpoint| endpoint.close());
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} stations)", self.stations())
    }
}
