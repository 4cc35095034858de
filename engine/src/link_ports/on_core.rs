//! The ports of a core, and the end of service.

use super::{PortCore, PortEndpoint, PortProtocol, StateOf};
use crate::core_set::context::CoreContext;
use crate::front::{FrontOnCore, Incoming, PortalRef};
use lunar_reactor::Reactor;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two checks whether commands have ended, while the core stops.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// The ports that one core serves, by the numbers of their links.
pub struct PortsOnCore<P: PortProtocol> {
    reactor: Reactor,
    state: Arc<StateOf<P>>,
    core: Rc<P::Core>,
    endpoints: RefCell<BTreeMap<u64, Rc<P::Endpoint>>>,
}

impl<P: PortProtocol> PortsOnCore<P> {
    /// The front of a core.
    pub(super) fn new(context: &CoreContext, state: &Arc<StateOf<P>>) -> Self {
        let (core, endpoints) = (P::Core::new(context, state), RefCell::default());
        Self { reactor: context.reactor.clone(), state: state.clone(), core, endpoints }
    }

    /// The state that all ports of the core share.
    #[must_use]
    pub fn core(&self) -> &Rc<P::Core> {
        &self.core
    }

    /// Attaches a link under this number. No initiator can log in before [`PortsOnCore::publish`].
    pub(super) fn attach(&self, number: u64, settings: P::Settings, opened: P::Opened) -> io::Result<()> {
        let endpoint = P::Endpoint::start(&self.core, settings, opened)?;
        self.endpoints.borrow_mut().insert(number, endpoint);
        Ok(())
    }

    /// Closes the link of this number; its commands have ended when this returns.
    pub(super) async fn close(&self, number: u64) {
        let endpoint = self.endpoints.borrow_mut().remove(&number);
        if let Some(endpoint) = endpoint {
            endpoint.close().await;
        }
    }

    /// Serves these ports at the links of these numbers.
    pub(super) fn publish(&self, ports: Vec<(u64, P::View)>) {
        for (number, port) in ports {
            if let Some(endpoint) = self.endpoint(number) {
                endpoint.publish(port);
            }
        }
    }

    /// Logs out an initiator at the link of this number; returns whether it was logged in.
    pub(super) async fn log_out(&self, number: u64, initiator: &P::Initiator) -> bool {
        match self.endpoint(number) {
            Some(endpoint) => endpoint.log_out(initiator).await,
            None => false,
        }
    }

    fn endpoint(&self, number: u64) -> Option<Rc<P::Endpoint>> {
        self.endpoints.borrow().get(&number).cloned()
    }

    fn all(&self) -> Vec<Rc<P::Endpoint>> {
        self.endpoints.borrow().values().cloned().collect()
    }

    /// Commands and task management functions in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.all().iter().map(|endpoint| endpoint.in_progress()).sum()
    }

    fn initiators(&self) -> usize {
        self.all().iter().map(|endpoint| endpoint.initiators()).sum()
    }

    /// Waits for the end of service, and then until the commands in progress have ended.
    async fn wait_for_end(&self) {
        self.core.draining().unless(pending::<()>()).await;
        let end = self.reactor.now() + self.state.shared.config.drain;
        while self.in_progress() > 0 && self.reactor.now() < end {
            self.reactor.sleep(DRAIN_INTERVAL).await;
        }
        self.all().iter().for_each(|endpoint| endpoint.log_all_out());
        // The last answers leave with the end of this turn.
        self.reactor.sleep(DRAIN_INTERVAL).await;
        self.abandon();
    }
}

impl<P: PortProtocol> FrontOnCore for PortsOnCore<P> {
    /// No portal is for initiators of these protocols.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.initiators() + self.in_progress()
    }

    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            for endpoint in self.all() {
                endpoint.review(&ended).await;
            }
        })
    }

    fn drain(&self) {
        self.core.draining().come();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.wait_for_end())
    }

    fn abandon(&self) {
        self.endpoints.take().values().for_each(|endpoint| endpoint.abandon());
    }
}

impl<P: PortProtocol> fmt::Debug for PortsOnCore<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortsOnCore({}, {} initiators)", P::NAME, self.initiators())
    }
}
