//! NVMe as a user of the unit state: the effects of a change on the hosts of this core.

use crate::event::Event;
use crate::namespace::AnaState;
use crate::queue::Queue;
use crate::reserve;
use crate::subsystem::Subsystem;
use lunar_core::unit::UnitId;
use lunar_unit::access::GroupAccess;
use lunar_unit::{Aborts, CommandSet, Effects, LocalFuture, Ordered, UnitChange};
use std::collections::BTreeMap;
use std::rc::Rc;

impl CommandSet for Subsystem {
    fn changed(&self, change: &Ordered) {
        let unit = change.unit;
        match &change.proposal.change {
            UnitChange::Reservations { .. } | UnitChange::NexusLost(_) | UnitChange::LogicalUnitReset => {
                self.queues().iter().for_each(|queue| queue.update_reservations(unit));
            }
            UnitChange::Access(_) | UnitChange::Store { .. } => {
                self.update_access(unit, &change.effects.access);
            }
            UnitChange::Rewrite(_) => self.unit(unit).iter().for_each(|namespace| namespace.refresh()),
            // Each command looks at the protection type. Removable media are no namespaces, and SCSI-only state does
            // not affect NVMe.
            UnitChange::Protection(_) | UnitChange::Removal(_) | UnitChange::CommandSet(_) => {}
        }
        // All commands are marked before the first one is waited for, so that none waits for the data of another.
        for (queue, ids) in self.aborted_queues(unit, &change.effects.aborts) {
            self.config().stats.tasks_aborted.add(queue.tasks.abort(|(_, id)| ids.contains(&id)));
        }
    }

    fn published(&self, change: &Ordered) {
        self.notify_hosts(change.unit, &change.effects);
        if let UnitChange::Protection(_) = change.proposal.change {
            // Hosts that see the protection information have to identify the namespace again.
            self.tell_namespaces(&BTreeMap::new(), &[change.unit]);
        }
    }

    fn aborted<'a>(&'a self, change: &'a Ordered) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            for (queue, ids) in self.aborted_queues(change.unit, &change.effects.aborts) {
                queue.tasks.until_gone(|(_, id)| ids.contains(&id)).await;
            }
        })
    }
}

impl Subsystem {
    /// The queues of this core whose commands at a unit a change aborts, and the identifiers of the unit there.
    fn aborted_queues(&self, unit: UnitId, aborts: &Aborts) -> Vec<(Rc<Queue>, Vec<u32>)> {
        let mut queues = self.queues();
        match aborts {
            Aborts::Registrants(names) => queues.retain(|queue| names.contains(queue.name())),
            // A task set is SCSI's: NVMe has no reset of a namespace.
            Aborts::None | Aborts::TaskSet => queues.clear(),
        }
        let with_ids = |queue: Rc<Queue>| {
            let ids = queue.ids_of(unit);
            (queue, ids)
        };
        queues.into_iter().map(with_ids).collect()
    }

    /// Brings the queues up to date with the access states of these portal groups, and tells their hosts of other
    /// states than `before`.
    fn update_access(&self, unit: UnitId, before: &BTreeMap<u16, GroupAccess>) {
        let Some(namespace) = self.unit(unit) else { return };
        for (group, before) in before {
            let state = namespace.access(*group);
            if state == AnaState::of(before.state) {
                continue;
            }
            self.count_access_change();
            for queue in self.queues().iter().filter(|queue| queue.controller.path.portal_ref.group == *group) {
                queue.set_access(unit, state);
                if queue.id == 0 && !queue.ids_of(unit).is_empty() {
                    queue.controller.raise(Event::ACCESS);
                }
            }
        }
    }

    /// Tells the hosts of all cores that the space that a unit takes space from is low. One core calls it.
    pub fn report_low_space(&self, unit: UnitId) {
        for controller in self.config().controllers.all() {
            if !self.space.ids_of(&controller, unit).is_empty() {
                controller.raise(Event::SPARE);
            }
        }
    }

    /// Tells the hosts of all cores of a reservation request of another client: once, whatever the number of cores.
    fn notify_hosts(&self, unit: UnitId, effects: &Effects) {
        if effects.notices.is_empty() {
            return;
        }
        for controller in self.config().controllers.all() {
            let Some(notice) = effects.notices.get(&controller.host.nexus()) else { continue };
            for id in self.space.ids_of(&controller, unit) {
                reserve::notify(&controller, id, *notice);
            }
        }
    }
}

#[cfg(test)]
#[path = "command_set_tests.rs"]
mod tests;
