//! The state that all ports of a core share.

use super::job::Job;
use super::{Common, RdmaPorts};
use crate::limits::{ADMIN_SLOTS, SLOTS, WAITING_MAX};
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::link_ports::PortCore;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all ports of a core share.
pub struct Core {
    context: CoreContext,
    pub(super) common: Arc<Common>,
    pub(super) slots: Slots<Job>,
    /// The slots of I/O queues and of admin queues, shared by hosts.
    pub(super) io_shares: PeerShares,
    pub(super) admin_shares: PeerShares,
    /// Commands that wait for a slot.
    pub(super) waiting_shares: PeerShares,
    pub(super) draining: End,
}

impl PortCore<RdmaPorts> for Core {
    fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        let run = async |job: &Job, slot: &mut SlotContext| job.run(slot).await;
        Rc::new(Self {
            slots: Slots::new(&context.reactor, SLOTS + ADMIN_SLOTS, run),
            io_shares: PeerShares::new(SLOTS),
            admin_shares: PeerShares::new(ADMIN_SLOTS),
            waiting_shares: PeerShares::new(WAITING_MAX),
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

    pub(super) fn subsystem(&self) -> &Rc<Subsystem> {
        &self.context.subsystem
    }
}
