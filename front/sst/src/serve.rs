//! The glue between Scheduled Transfer, the SCSI device server and the reactor: one [`Front`] per core.
//!
//! * `endpoint`: a port on its link; `connection`: a connection, its regions and Transfers
//! * `target`: the initiators of a port and their commands; `job`: a command, and the path of its data
//! * `core`: what all ports of a core share; `common`: what all cores share
//! * here: the ports of a core, and the end of service

pub(crate) mod common;
mod connection;
mod core;
mod endpoint;
mod job;
mod target;

pub use common::OpenLink;

use self::core::Core;
use crate::directory::PortView;
use common::Common;
use endpoint::Endpoint;
use lunar_engine::core_set::context::CoreContext;
use lunar_st::Reason;
use lunar_st::port::{LinkSpec, OpenedPort};
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

/// The ports that one core serves.
pub struct Front {
    core: Rc<Core>,
    endpoints: RefCell<BTreeMap<u64, Rc<Endpoint>>>,
}

impl Front {
    /// The front of a core.
    pub(crate) fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        Rc::new(Self { core: Core::new(context, common), endpoints: RefCell::default() })
    }

    /// Attaches a link under this number. No initiator can connect before [`Front::publish`].
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn attach(&self, number: u64, spec: LinkSpec, opened: OpenedPort) -> io::Result<()> {
        let endpoint = Endpoint::start(&self.core, spec, opened)?;
        self.endpoints.borrow_mut().insert(number, endpoint);
        Ok(())
    }

    /// Closes the link of this number; its commands have ended when this returns.
    pub async fn close(&self, number: u64) {
        let endpoint = self.endpoints.borrow_mut().remove(&number);
        if let Some(endpoint) = endpoint {
            endpoint.close().await;
        }
    }

    /// Serves these ports at the links of these numbers.
    pub fn publish(&self, ports: Vec<(u64, PortView)>) {
        for (number, port) in ports {
            let endpoint = self.endpoints.borrow().get(&number).cloned();
            endpoint.into_iter().for_each(|endpoint| endpoint.publish(port.clone()));
        }
    }

    fn all(&self) -> Vec<Rc<Endpoint>> {
        self.endpoints.borrow().values().cloned().collect()
    }

    /// Ends the logins of these groups, and those that are not allowed any more; they have ended when this returns.
    pub async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        for endpoint in self.all() {
            endpoint.review(ended).await;
        }
    }

    /// Ends the login of an initiator at the link of this number; returns whether it was logged in. It may log in
    /// again.
    pub async fn log_out(&self, number: u64, initiator: &Arc<str>) -> bool {
        let endpoint = self.endpoints.borrow().get(&number).cloned();
        match endpoint {
            Some(endpoint) => endpoint.log_out(initiator).await,
            None => false,
        }
    }

    /// Initiators that are logged in.
    #[must_use]
    pub fn initiators(&self) -> usize {
        self.all().iter().map(|endpoint| endpoint.initiators()).sum()
    }

    /// Commands and task management functions in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.all().iter().map(|endpoint| endpoint.in_progress()).sum()
    }

    /// Takes no more commands: see [`Front::drained`].
    pub fn drain(&self) {
        self.core.draining.come();
    }

    /// Waits for [`Front::drain`], and then until the commands in progress have ended.
    pub async fn drained(&self) {
        self.core.draining.unless(pending::<()>()).await;
        let reactor = self.core.reactor();
        let end = reactor.now() + self.core.common.shared.config.drain;
        while self.in_progress() > 0 && reactor.now() < end {
            reactor.sleep(DRAIN_INTERVAL).await;
        }
        // Initiators connect to another port, or wait for this one.
        self.all().iter().for_each(|endpoint| endpoint.end_all(Reason::NONE));
        // The last packets leave with the end of this turn.
        reactor.sleep(DRAIN_INTERVAL).await;
        self.abandon();
    }

    /// Closes all links at once.
    pub fn abandon(&self) {
        self.endpoints.take().values().for_each(|endpoint| endpoint.abandon());
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} initiators)", self.initiators())
    }
}
