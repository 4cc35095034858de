//! The state that all portals of a core share.

use super::{Common, IserPorts};
use crate::config::Transport;
use crate::front::IscsiRuntime;
use crate::serve::Front;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::link_ports::PortCore;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all portals of a core share.
pub struct Core {
    reactor: Reactor,
    pub(super) common: Arc<Common>,
    /// The sessions.
    pub(super) front: Rc<Front>,
    pub(super) draining: End,
}

impl PortCore<IserPorts> for Core {
    fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        let iscsi =
            common.shared.front_of::<IscsiRuntime>().expect("a registry with iSER has iSCSI: `iser::front::ENTRY`");
        let core = Rc::new(Self {
            reactor: context.reactor.clone(),
            common: common.clone(),
            front: iscsi.serve_on(context, Transport::Rdma),
            draining: End::default(),
        });
        let drained = core.clone();
        context.reactor.spawn(async move {
            drained.draining.unless(pending::<()>()).await;
            drained.front.drain();
            drained.front.drained().await;
        });
        core
    }

    fn draining(&self) -> &End {
        &self.draining
    }
}

impl Core {
    pub(super) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Ends the session over the connection of this number, and waits until it has ended.
    pub(crate) async fn end_session(&self, connection: u64) {
        self.front.end_session(connection).await;
    }
}
