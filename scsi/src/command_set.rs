//! SCSI as a user of the unit state: the effects of a change on the nexuses of this core.

use crate::change::{Change, ScsiChange};
use crate::lu::{Emulated, LogicalUnit};
use crate::medium::MediaEvent;
use crate::nexus::Nexus;
use crate::reserve::attention;
use crate::sense::Asc;
use crate::target::Target;
use lunar_core::port::NexusName;
use lunar_unit::removal::request::{Motion, Mover, RemovalChange};
use lunar_unit::{Aborts, CommandSet, Effects, Event, LocalFuture, Ordered, UnitChange};
use std::rc::Rc;

/// The unit attention condition of an event.
fn attention_of(event: Event) -> Asc {
    match event {
        Event::AccessChanged => Asc::ASYMMETRIC_ACCESS_STATE_CHANGED,
        Event::ProtectionChanged => Asc::CAPACITY_DATA_CHANGED,
        Event::MediumLoaded => Asc::MEDIUM_MAY_HAVE_CHANGED,
        Event::Reset => Asc::BUS_DEVICE_RESET,
    }
}

impl CommandSet for Target {
    fn changed(&self, change: &Ordered) {
        let Some(lu) = self.unit_of(change.unit) else { return };
        let (proposal, effects) = (&change.proposal, &change.effects);
        let proposer = proposal.proposer.as_ref();
        match &proposal.change {
            UnitChange::Reservations { .. } | UnitChange::NexusLost(_) => self.update_reservations(&lu, effects),
            UnitChange::Access(_) | UnitChange::Store { .. } => self.update_access(&lu),
            UnitChange::Rewrite(_) | UnitChange::Protection(_) => lu.emulated().into_iter().for_each(Emulated::refresh),
            UnitChange::Removal(removal) => lu.emulated().into_iter().for_each(|lu| self.move_medium_here(lu, removal)),
            UnitChange::LogicalUnitReset => {
                self.update_reservations(&lu, effects);
                lu.emulated().into_iter().for_each(Emulated::reset);
                self.nexuses().iter().for_each(|nexus| nexus.copies.forget(lu.lun));
                self.wake_watcher();
            }
            UnitChange::CommandSet(opaque) => {
                if let Some(change) = opaque.get() {
                    self.change_parameters(&lu, change, proposer);
                }
            }
        }
        // All tasks are marked before the first one is waited for, so that none waits for the data of another.
        for nexus in self.aborted_nexuses(&effects.aborts) {
            self.config.stats.tasks_aborted.add(nexus.abort_at(&[lu.lun]));
        }
        if let Some(event) = effects.event.filter(|event| self.is_concerned(*event, effects)) {
            self.establish_unit_attention(lu.lun, attention_of(event), proposer);
        }
    }

    fn published(&self, _change: &Ordered) {}

    fn aborted<'a>(&'a self, change: &'a Ordered) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let Some(lu) = self.unit_of(change.unit) else { return };
            for nexus in self.aborted_nexuses(&change.effects.aborts) {
                nexus.until_gone_at(&[lu.lun]).await;
            }
        })
    }
}

impl Target {
    /// Whether an event concerns SCSI: not if it is the access of target port groups without SCSI ports.
    fn is_concerned(&self, event: Event, effects: &Effects) -> bool {
        event != Event::AccessChanged || effects.access.keys().any(|group| self.has_port_in(*group))
    }

    /// The nexuses of this core whose tasks a change aborts.
    fn aborted_nexuses(&self, aborts: &Aborts) -> Vec<Rc<Nexus>> {
        let mut nexuses = self.nexuses();
        match aborts {
            Aborts::None => nexuses.clear(),
            Aborts::Registrants(names) => nexuses.retain(|nexus| names.contains(&nexus.name)),
            Aborts::TaskSet => {}
        }
        nexuses
    }

    /// Updates the nexuses with the reservations, and notifies those that the change concerns.
    fn update_reservations(&self, lu: &LogicalUnit, effects: &Effects) {
        for nexus in self.nexuses() {
            // A nexus that has not addressed the unit yet reads the reservations when it does, and has a POWER ON unit
            // attention condition then.
            let Some(itl) = nexus.lun_of(lu.lun).and_then(|own| nexus.known(own)) else { continue };
            let held = lu.shared.reservations().held(&nexus.name);
            itl.set_held(held);
            if let Some(notice) = effects.notices.get(&nexus.name) {
                itl.establish_unit_attention(attention(*notice));
            }
        }
    }

    fn update_access(&self, lu: &LogicalUnit) {
        for nexus in self.nexuses() {
            if let Some(itl) = nexus.lun_of(lu.lun).and_then(|own| nexus.known(own)) {
                itl.set_access(lu.access(nexus.group).state);
            }
        }
    }

    fn move_medium_here(&self, lu: &Emulated, change: &RemovalChange) {
        if *change == RemovalChange::Move(Motion::Load, Mover::Operator { forced: true }) {
            // The data of a token may have been on another medium.
            self.config.tokens.forget(lu.unit.id);
        }
        let before = lu.tray();
        lu.refresh();
        let event = match change {
            RemovalChange::Requested => Some(MediaEvent::EjectRequest),
            _ => MediaEvent::of(before, lu.tray()),
        };
        if let Some(event) = event {
            let known = self.nexuses().into_iter().filter_map(|nexus| nexus.known(nexus.lun_of(lu.lun)?));
            known.for_each(|itl| itl.event.set(event));
        }
    }

    fn change_parameters(&self, lu: &LogicalUnit, change: &ScsiChange, proposer: Option<&NexusName>) {
        let is_told = lu.emulated().is_none_or(|lu| lu.apply(&change.change, change.record.is_some()));
        match &change.change {
            Change::Mode(_) => self.wake_watcher(),
            Change::Threshold(claim) => self.tell_threshold(lu.lun, claim.as_ref()),
            _ => {}
        }
        if let Some(asc) = change.change.attention().filter(|_| is_told) {
            self.establish_unit_attention(lu.lun, asc, proposer);
        }
    }
}
