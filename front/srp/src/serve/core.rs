//! The state that all ports of a core share.

use super::job::Job;
use super::{Common, SrpPorts};
use crate::limits::{DESCRIPTORS, SLOTS};
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::link_ports::PortCore;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use lunar_scsi::Target;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all ports of a core share.
pub struct Core {
    context: CoreContext,
    pub(super) common: Arc<Common>,
    pub(super) slots: Slots<Job>,
    /// The slots, shared by hosts and sessions.
    pub(super) slot_shares: PeerShares,
    /// The descriptors of commands, shared in the same way.
    pub(super) descriptor_shares: PeerShares,
    pub(super) draining: End,
}

impl PortCore<SrpPorts> for Core {
    fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        let reactor = &context.reactor;
        Rc::new(Self {
            slots: Slots::new(reactor, SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await),
            slot_shares: PeerShares::new(SLOTS),
            descriptor_shares: PeerShares::new(DESCRIPTORS),
            context: context.clone(),
            common: common.clone(),
            draining: End::default(),
        })
    }

    fn draining(&self) -> &End {
        &self.draining
    }
}

impl Core {
    pub(super) fn reactor(&self) -> &Reactor {
        &self.context.reactor
    }

    pub(super) fn target(&self) -> &Rc<Target> {
        &self.context.target
    }
}
