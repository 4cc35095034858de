//! The glue between RDMA, the SCSI device server and the reactor: one [`Front`] per core.
//!
//! * `endpoint`: a port on its socket: logins and information units
//! * `sessions`: the initiators of a port, and the end of their nexuses
//! * `channel`: a channel of an initiator: its credit, and what is read and written over it
//! * `commands`: commands and task management; `job`: a command, and the path of its data
//! * `core`: what all ports of a core share; `common`: what all cores share
//! * here: the ports of a core, and the end of service

mod channel;
mod commands;
pub(crate) mod common;
mod core;
mod endpoint;
mod job;
mod sessions;

pub use common::OpenSocket;

use self::core::Core;
use crate::directory::PortView;
use crate::names::PortId;
use common::Common;
use endpoint::Endpoint;
use lunar_engine::core_set::context::CoreContext;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::IpAddr;
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

    /// Attaches a socket under this number. Its initiators are rejected before [`Front::publish`].
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn attach(&self, number: u64, address: IpAddr, opened: lunar_reactor::endpoint::Endpoint) -> io::Result<()> {
        let endpoint = Endpoint::start(&self.core, address, opened)?;
        self.endpoints.borrow_mut().insert(number, endpoint);
        Ok(())
    }

    /// Closes the socket of this number; its commands have ended when this returns.
    pub async fn close(&self, number: u64) {
        let endpoint = self.endpoints.borrow_mut().remove(&number);
        if let Some(endpoint) = endpoint {
            endpoint.close().await;
        }
    }

    /// Serves these ports at the sockets of these numbers.
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

    /// Logs out an initiator at the socket of this number; returns whether it was logged in. It may log in again.
    pub async fn log_out(&self, number: u64, initiator: PortId) -> bool {
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
        // Initiators log in at another port, or wait for this one.
        self.all().iter().for_each(|endpoint| endpoint.log_all_out());
        // The last answers leave with the end of this turn.
        reactor.sleep(DRAIN_INTERVAL).await;
        self.abandon();
    }

    /// Closes all sockets at once.
    pub fn abandon(&self) {
        self.endpoints.take().values().for_each(|endpoint| endpoint.abandon());
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} initiators)", self.initiators())
    }
}
