//! The state that all ports of a core share.

use super::job::Job;
use super::{Common, FcoePorts};
use crate::limits::SLOTS;
use lunar_core::mem::{Chunks, Slice};
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::link_ports::PortCore;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use lunar_scsi::Target;
use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

/// The state that all ports of a core share.
pub struct Core {
    context: CoreContext,
    pub(super) common: Arc<Common>,
    pub(super) slots: Slots<Job>,
    /// The slots, shared by links and initiators.
    pub(super) slot_shares: PeerShares,
    /// The number of links so far.
    links: Cell<u16>,
    /// Memory for headers and trailers of frames.
    chunks: Chunks,
    pub(super) draining: End,
}

impl PortCore<FcoePorts> for Core {
    fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        let reactor = &context.reactor;
        Rc::new(Self {
            slots: Slots::new(reactor, SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await),
            slot_shares: PeerShares::new(SLOTS),
            context: context.clone(),
            common: common.clone(),
            links: Cell::default(),
            chunks: Chunks::default(),
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

    /// The host that the initiators of a new link are, as far as they share memory and slots: their names can be
    /// forged. It has an address that no client has, because it is in no block that is assigned (0100::/16).
    pub(super) fn next_host(&self) -> IpAddr {
        self.links.set(self.links.get().wrapping_add(1));
        Ipv6Addr::new(0x0100, 0xfc0e, 0, self.links.get(), 0, 0, 0, 0).into()
    }

    /// A copy of short parts of a frame, one after the other; `None` when memory is short.
    pub(super) fn chunk(&self, parts: &[&[u8]]) -> Option<Slice> {
        self.chunks.copy(self.reactor().arena(), parts)
    }
}
