//! A station that uses volumes of a shelf.

use crate::directory::{Shelf, SlotVolume, View};
use crate::order::Repeats;
use lunar_blk::{Attachment, BlockSet, Client};
use lunar_core::hosts::HostSession;
use lunar_core::mem::PeerMemory;
use lunar_core::time::Instant;
use lunar_engine::link_ports::Usage;
use lunar_link::MacAddress;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A station.
pub(super) struct Station {
    pub(super) mac: MacAddress,
    /// Its number on the core: never used again.
    pub(super) number: u64,
    /// Its name, under which it may hold reservations.
    pub(super) name: Arc<str>,
    view: RefCell<Arc<View>>,
    /// Its attachments to volumes, by slot.
    attachments: RefCell<BTreeMap<u8, Rc<Attachment>>>,
    /// The writes that have ended.
    pub(super) repeats: RefCell<Repeats>,
    /// Commands in progress.
    pub(super) commands: Cell<usize>,
    pub(super) usage: Usage,
    /// Its shares of the memory of the core.
    pub(super) memory: PeerMemory,
    /// The counters of its session.
    session: OnceCell<HostSession>,
}

impl Station {
    pub(super) fn new(mac: MacAddress, number: u64, view: Arc<View>, (now, memory): (Instant, PeerMemory)) -> Rc<Self> {
        Rc::new(Self {
            mac,
            number,
            name: mac.to_string().into(),
            view: RefCell::new(view),
            attachments: RefCell::default(),
            repeats: RefCell::default(),
            commands: Cell::new(0),
            usage: Usage::new(now),
            memory,
            session: OnceCell::new(),
        })
    }

    /// Counts its session and commands here.
    pub(super) fn count(&self, session: HostSession) {
        // A station has one session.
        let _ = self.session.set(session);
    }

    /// The volumes that it sees.
    pub(super) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// The volumes that it sees, its rights, or the portal group of its shelf are others now. Commands that wait and
    /// that the new view does not allow are not executed any more.
    pub(super) fn set_view(&self, view: Arc<View>, shelf: &Shelf) {
        let mut gone = Vec::new();
        self.attachments.borrow_mut().retain(|slot, attachment| {
            let (now, client) = (view.slots.get(slot), &attachment.client);
            let is_same = now.is_some_and(|now| now.unit == attachment.id && now.read_only == client.read_only);
            let is_kept = is_same && client.group == shelf.portal_group;
            gone.extend((!is_kept).then(|| attachment.clone()));
            is_kept
        });
        gone.iter().for_each(|attachment| attachment.revoke());
        self.view.replace(view);
    }

    /// It is forgotten: its commands that wait are not executed any more.
    pub(super) fn revoke(&self) {
        self.attachments.take().values().for_each(|attachment| attachment.revoke());
    }

    /// Its order among the stations that may be forgotten for another one. `None`: it has commands in progress, or
    /// copies of its writes may still arrive.
    pub(super) fn eviction_order(&self, now: Instant) -> Option<(u32, Instant)> {
        let is_busy = self.commands.get() > 0 || self.repeats.borrow().are_needed(now);
        (!is_busy).then(|| self.usage.eviction_order())
    }

    /// Its attachment to the volume in a slot; `None` when the volume is not served.
    pub(super) fn attachment(
        &self,
        set: &BlockSet,
        shelf: &Shelf,
        (slot, volume): (u8, SlotVolume),
    ) -> Option<Rc<Attachment>> {
        if let Some(attachment) = self.attachments.borrow().get(&slot).filter(|known| known.id == volume.unit) {
            return Some(attachment.clone());
        }
        let client = Client { name: self.name.clone(), group: shelf.portal_group, read_only: volume.read_only };
        let attachment = set.attach_named(volume.unit, client, &self.name)?;
        // Stations send no flush: each write is on the medium when it is acknowledged.
        attachment.set_write_cache(false);
        if let Some(session) = self.session.get() {
            // It is new, and has no counters.
            let _ = attachment.host.set(session.connection());
        }
        self.attachments.borrow_mut().insert(slot, attachment.clone());
        Some(attachment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{REPEAT_TIME, Write};
    use lunar_blk::testing::{Rig, UNIT};
    use lunar_core::mem::Arena;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn view(read_only: bool) -> Arc<View> {
        Arc::new(View { group: "g".into(), slots: [(0, SlotVolume { unit: UNIT, read_only })].into() })
    }

    fn station(now: Instant) -> Rc<Station> {
        Station::new(MAC, 1, view(false), (now, Arena::new(1 << 20).join([192, 0, 2, 1].into())))
    }

    #[test]
    fn a_change_of_rights_or_of_the_portal_group_revokes_an_attachment() {
        let (rig, station) = (Rig::default(), station(Instant(1)));
        let mut shelf = Shelf::open(1, BTreeMap::new());
        let attached = |shelf: &Shelf, read_only| {
            station.attachment(&rig.set, shelf, (0, SlotVolume { unit: UNIT, read_only })).expect("it is served")
        };
        let first = attached(&shelf, false);
        station.set_view(view(false), &shelf);
        assert!(!first.is_revoked() && Rc::ptr_eq(&first, &attached(&shelf, false)), "nothing has changed");
        shelf.portal_group = 5;
        station.set_view(view(false), &shelf);
        let second = attached(&shelf, false);
        assert!(first.is_revoked() && first.unit().is_none());
        assert_eq!((second.client.group, second.client.read_only), (5, false));
        station.set_view(view(true), &shelf);
        let third = attached(&shelf, true);
        assert!(second.is_revoked() && third.client.read_only);
        station.revoke();
        // Another view of the unit does not bring it back.
        rig.set.add_unit(rig.unit.clone());
        assert!(third.is_revoked() && third.unit().is_none() && attached(&shelf, true).unit().is_some());
    }

    #[test]
    fn busy_stations_and_those_whose_writes_may_be_repeated_are_never_forgotten() {
        let now = Instant(1) + REPEAT_TIME * 3;
        let station = station(Instant(1));
        assert!(station.eviction_order(now).is_some());
        station.commands.set(1);
        assert_eq!(station.eviction_order(now), None);
        station.commands.set(0);
        station.repeats.borrow_mut().end(Write { station: 1, tag: 1, offset: 0, len: 512, digest: 0 }, now);
        assert_eq!(station.eviction_order(now), None);
        assert!(station.eviction_order(now + REPEAT_TIME * 2).is_some());
    }
}
