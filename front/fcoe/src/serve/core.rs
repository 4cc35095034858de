//! The state that all ports of a core share.

use super::job::Job;
use super::{Common, FcoePorts};
use crate::limits::SLOTS;
use lunar_core::mem::{Buf, PAGE, Slice};
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::link_ports::PortCore;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use lunar_scsi::Target;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of memory that parts of frames begin at: a cache line.
const LINE: usize = 64;

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
    chunks: RefCell<Option<Buf>>,
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
            chunks: RefCell::default(),
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
    /// forged. It has an address that no client has, because it is in no block that is assigned to anybody (0100::/16).
    pub(super) fn next_host(&self) -> IpAddr {
        self.links.set(self.links.get().wrapping_add(1));
        Ipv6Addr::new(0x0100, 0xfc0e, 0, self.links.get(), 0, 0, 0, 0).into()
    }

    /// A copy of short parts of a frame, one after the other, in a part of a page that frames share; `None` when memory
    /// is short.
    pub(super) fn chunk(&self, parts: &[&[u8]]) -> Option<Slice> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let room = len.next_multiple_of(LINE);
        let mut chunks = self.chunks.borrow_mut();
        let mut page = match chunks.take().filter(|page| page.len() >= room) {
            Some(page) => page,
            None => self.reactor().arena().take_reserved(PAGE)?,
        };
        let mut chunk = page.split_to(room);
        *chunks = (!page.is_empty()).then_some(page);
        drop(chunks);
        let mut at = 0;
        for part in parts {
            chunk.write(at, part);
            at += part.len();
        }
        chunk.truncate(len);
        Some(chunk.share())
    }
}
