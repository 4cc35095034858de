//! The change from one shape of the target to the next. New units and maps come first; then new sessions are judged by
//! the new configuration, and sessions that it no longer allows are ended; then units that no map shows any more are
//! removed. Sessions whose targets did not change notice nothing.

use crate::engine::{Engine, Shape};
use crate::front::{PortalRef, PrivateMap};
use crate::lun_maps::{GroupState, LunMaps, VolumeMap, numbered, states, target_ports, volume_maps};
use crate::namespaces::{self, NamespaceMaps};
use crate::published_config::BoundPortal;
use crate::retirement::{Retirement, differing, ids_of, renamed};
use crate::transaction::Committed;
use lunar_control::Checked;
use lunar_control::common_sections::Portal;
use lunar_core::unit::UnitId;
use lunar_nvme::directory::Directory as Subsystems;
use lunar_nvme::{Controller, NamespaceMap};
use lunar_scsi::{LunMap, PortConfig};
use lunar_unit::AccessState;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The state of a portal group after power on.
const AFTER_POWER_ON: GroupState = (AccessState::ActiveOptimized, false);

/// Names of targets in a configuration, by their names in iSCSI, in lower case, and in NVMe.
fn names(wanted: &Checked) -> BTreeMap<Arc<str>, String> {
    let mut names: BTreeMap<Arc<str>, String> = BTreeMap::new();
    for (name, target) in &wanted.config.targets {
        let iqn = target.iqn.as_ref().map(|iqn| iqn.as_str().to_ascii_lowercase());
        let nqn = target.nqn.as_ref().map(|nqn| nqn.as_str().to_owned());
        names.extend(iqn.into_iter().chain(nqn).map(|own| (own.into(), name.clone())));
    }
    names
}

/// Entries of `after` whose names are not in `before`.
fn added<T: Clone>(before: &BTreeMap<Arc<str>, T>, after: &BTreeMap<Arc<str>, T>) -> BTreeMap<Arc<str>, T> {
    let added = after.iter().filter(|(name, _)| !before.contains_key(*name));
    added.map(|(name, map)| (name.clone(), map.clone())).collect()
}

/// Names of `before` that are not in `after`.
fn removed<T>(before: &BTreeMap<Arc<str>, T>, after: &BTreeMap<Arc<str>, T>) -> Arc<[Arc<str>]> {
    before.keys().filter(|name| !after.contains_key(*name)).cloned().collect()
}

/// LUN maps that existed before and are different now.
fn changed(before: &LunMaps, after: &LunMaps) -> LunMaps {
    let differs = |(name, map): &(&Arc<str>, &LunMap)| before.get(*name).is_some_and(|old| old != *map);
    after.iter().filter(differs).map(|(name, map)| (name.clone(), map.clone())).collect()
}

impl Engine {
    /// Publishes the changes of a transaction.
    pub(crate) fn publish(&mut self, committed: &Committed, wanted: &Checked) {
        if committed.has_participants {
            self.participants.iter_mut().for_each(|participant| participant.commit(wanted));
        }
        let ports = target_ports(wanted, self.front_ports(wanted), &self.ports);
        self.core_set().shared().slow.set_threshold(wanted.config.logging.slow.0);
        self.health.set_space_threshold(wanted.config.server.space_threshold.get() as u8);
        let seen = volume_maps(wanted);
        let units = self.units_by_name();
        let unit = |volume: &str| units.get(volume).copied();
        let maps: LunMaps = seen.iter().map(|(name, map)| (name.clone(), numbered(map, unit))).collect();
        let private = self.private_maps(wanted);
        let namespaces = namespaces::maps(wanted, &private, &units);
        self.give_cores(committed, &ports, (&maps, &namespaces));
        self.set_states(wanted, committed);
        let portals = self.portal_fronts(wanted);
        let subsystems = self.publish_to_fronts(committed, wanted, &private);
        committed.closing.iter().for_each(|portal| self.core_set().close(portal.id));
        for (id, front) in &portals {
            if self.shape.portals.get(id) != Some(front) {
                self.core_set().accept(*id, *front);
            }
        }
        // Sessions that see a volume which is another one now end; their clients find the new one when they come back.
        let touched = |map: &VolumeMap| map.values().any(|(volume, _)| committed.replaced.contains(volume));
        let ended: BTreeSet<Arc<str>> =
            seen.iter().filter(|(_, map)| touched(map)).map(|(name, _)| name.clone()).collect();
        let is_ended =
            |controller: &Controller| controller.access_grant.group.as_ref().is_some_and(|g| ended.contains(g));
        self.core_set().shared().controllers.review(&subsystems, is_ended);
        self.finalize_fronts(committed, wanted);
        let drain = wanted.config.server.drain.0;
        self.retire(committed, (&maps, &namespaces), &ports, (ended, drain));
        let closed = std::mem::take(&mut self.shape.closed);
        let states = std::mem::take(&mut self.shape.states);
        self.shape = Shape { ports, maps, states, portals, namespaces, names: names(wanted), closed };
        self.reopen_portals();
        self.health.watch(&self.volumes);
        self.metrics.publish(self.facts(wanted));
        committed.leaving.iter().for_each(|unit| self.units.give_back(unit.0));
        let addresses: BTreeMap<String, SocketAddr> =
            self.portals.iter().map(|(name, portal)| (name.clone(), portal.address)).collect();
        if let Some(service) = &mut self.name_service {
            service.register(wanted, &addresses);
        }
    }

    /// Has the fronts judge new sessions by the configuration; returns the NVM subsystems.
    fn publish_to_fronts(&mut self, committed: &Committed, wanted: &Checked, private: &[PrivateMap]) -> Subsystems {
        let shared = self.core_set().shared().clone();
        namespaces::update_histories(wanted, &*shared.host, &mut self.histories);
        let units = self.units_by_name();
        let published = self.published(wanted, &committed.accesses, &units);
        shared.fronts().iter().for_each(|front| front.publish(&published));
        let portals = shared.fronts().iter().flat_map(|front| front.discovery_portals(&published)).collect();
        let subsystems = namespaces::directory(wanted, &committed.accesses, (portals, private), &self.histories);
        // The start of the transaction has checked the access control.
        let subsystems = subsystems.unwrap_or_else(|_| Subsystems::nothing());
        shared.subsystems.set(subsystems.clone());
        subsystems
    }

    pub(crate) fn finalize_fronts(&self, committed: &Committed, wanted: &Checked) {
        let units = self.units_by_name();
        let published = self.published(wanted, &committed.accesses, &units);
        let identities = self.identities();
        for (index, front) in self.core_set().shared().fronts().iter().enumerate() {
            front.identify(&identities);
            front.finalize(&self.core_set().front_handle(index), &published);
        }
    }

    /// The front of each portal with a listening socket, by the number of the portal.
    fn portal_fronts(&self, wanted: &Checked) -> BTreeMap<u32, (usize, PortalRef)> {
        let front = |(name, portal): (&String, &Arc<Portal>)| {
            let (bound, group) = (self.portals.get(name)?, wanted.config.portal_groups.get(portal.group.name())?);
            let front = self.registry.front_index(portal.protocol.word())?;
            Some((bound.id, (front, PortalRef { portal: bound.id, group: group.tag.get() as u16 })))
        };
        wanted.config.portals.iter().filter_map(front).collect()
    }

    /// Gives new units and maps to the cores: no session sees them yet.
    fn give_cores(&self, committed: &Committed, ports: &[PortConfig], (maps, namespaces): (&LunMaps, &NamespaceMaps)) {
        let mut both = ports.to_vec();
        both.extend(self.shape.ports.iter().filter(|port| !ports.contains(port)).cloned());
        let (both, maps): (Arc<[PortConfig]>, _) = (both.into(), Arc::new(added(&self.shape.maps, maps)));
        let namespaces: Arc<BTreeMap<Arc<str>, NamespaceMap>> = Arc::new(added(&self.shape.namespaces, namespaces));
        self.core_set().place(&committed.tickets);
        let is_new = !committed.new.is_empty();
        self.core_set().cores().ask_all(move |core| {
            let (both, maps, namespaces) = (both.clone(), maps.clone(), namespaces.clone());
            async move {
                core.target.set_ports(both.to_vec());
                for (name, map) in &*maps {
                    core.target.set_map(name, map.clone(), ready(())).await;
                }
                for (name, map) in &*namespaces {
                    core.subsystem.set_map(name, map.clone(), ready(())).await;
                }
                if is_new && core.index == 0 {
                    // FORMAT UNIT or SANITIZE may have been in progress when one of them was served last.
                    core.units.resume(core.reactor.arena());
                }
            }
        });
    }

    /// Sets the asymmetric access states of portal groups at the units, if they have changed.
    fn set_states(&mut self, wanted: &Checked, committed: &Committed) {
        let wanted = states(wanted);
        let fresh: BTreeSet<UnitId> = committed.leaving.iter().chain(&committed.new).copied().collect();
        self.shape.states.retain(|(unit, _), _| !fresh.contains(unit));
        let before = self.shape.states.keys().map(|(_, group)| *group);
        let groups: BTreeSet<u16> = wanted.keys().copied().chain(before).collect();
        let mut steps = Vec::new();
        for unit in self.volumes.values().map(|placed| placed.unit) {
            for group in &groups {
                let state = wanted.get(group).copied().unwrap_or(AFTER_POWER_ON);
                let before = match state {
                    AFTER_POWER_ON => self.shape.states.remove(&(unit, *group)),
                    state => self.shape.states.insert((unit, *group), state),
                };
                if before.unwrap_or(AFTER_POWER_ON) != state {
                    steps.push((unit, *group, state));
                }
            }
        }
        let set = self.core_set().cores().ask(0, move |core| async move {
            for (unit, group, (state, preferred)) in steps {
                core.units.set_access(unit, group, state, preferred).await;
            }
        });
        set.wait();
    }

    /// Starts the end of the change.
    fn retire(
        &mut self,
        committed: &Committed,
        (maps, namespaces): (&LunMaps, &NamespaceMaps),
        ports: &[PortConfig],
        (ended, drain): (BTreeSet<Arc<str>>, Duration),
    ) {
        let before = &self.shape;
        let remapped = differing(&before.namespaces, namespaces);
        let ids = |(volume, unit): &([u8; 16], UnitId)| (*volume, ids_of(&before.namespaces, *unit));
        let retirement = Retirement {
            cores: self.core_set().cores().clone(),
            controllers: self.core_set().shared().controllers.clone(),
            drain,
            ended: Arc::new(ended),
            changed: Arc::new(changed(&before.maps, maps)),
            renamed: renamed(&before.namespaces, &remapped, &committed.leaving),
            remapped: Arc::new(remapped),
            reshaped: committed.reshaped.clone(),
            resized: committed.resized.clone(),
            unused: removed(&before.maps, maps),
            hidden: removed(&before.namespaces, namespaces),
            leaving: committed.leaving.clone().into(),
            left: committed.left.iter().map(ids).collect(),
            ports: ports.into(),
        };
        self.finalizing = retirement.start();
    }

    /// Listens again at portals that failed before, if the configuration still has them.
    fn reopen_portals(&mut self) {
        let closed = std::mem::take(&mut self.shape.closed);
        let is_closed = |portal: &&BoundPortal| closed.contains_key(&portal.id);
        let wanted: Vec<BoundPortal> = self.portals.values().filter(is_closed).copied().collect();
        wanted.into_iter().for_each(|portal| self.listen_again(portal, Duration::ZERO));
    }
}
