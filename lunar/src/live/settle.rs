//! From one shape to the next. New things come first; then everybody is judged by the new rules, and whoever may no
//! longer
//! be there is seen off; then what nobody sees any more goes. Sessions whose targets did not change notice nothing.

use super::shape::{self, Listener, Map};
use super::{Coming, Live, Placed};
use crate::cores::Face;
use crate::house::House;
use lunar_control::Checked;
use lunar_core::unit::UnitId;
use lunar_iscsi::directory::Way;
use lunar_scsi::access::AluaState;
use lunar_scsi::{LunMap, Mapping, PortConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;

/// Maps by the names of their groups, as the cores have them.
type Maps = BTreeMap<Arc<str>, LunMap>;

/// What the cores go by.
#[derive(Debug, Default)]
pub(super) struct Settled {
    ports: Vec<PortConfig>,
    maps: Maps,
    /// The states of portal groups at units that were asked for, where they are not as after power on.
    states: BTreeMap<(UnitId, u16), AluaState>,
    ways: BTreeMap<u32, Way>,
    /// Names of targets in the configuration, by their names in iSCSI.
    pub(super) names: BTreeMap<Arc<str>, String>,
    /// What went wrong and still is.
    pub(super) troubles: Vec<String>,
}

impl Settled {
    /// Accepts at an address that is listened at again as before.
    pub(super) fn accept_again(&self, house: &House, listener: Listener) {
        if let Some(way) = self.ways.get(&listener.id) {
            house.accept(listener.id, Face::Iscsi(*way));
        }
    }
}

/// A map as the cores have it. A volume that is there twice has the first LUN only; the check has refused that.
fn numbered(map: &Map, volumes: &BTreeMap<String, Placed>) -> LunMap {
    let mut seen = BTreeSet::new();
    let luns = map.iter().filter_map(|(lun, (volume, read_only))| {
        let unit = volumes.get(volume)?.unit;
        // Units are numbered below the last LUN.
        seen.insert(unit).then_some((*lun, Mapping { unit: unit.0 as u16, read_only: *read_only }))
    });
    LunMap::new(luns).unwrap_or_default()
}

impl Live {
    pub(super) fn settle_shape(&mut self, coming: &Coming, wanted: &Checked) {
        let ports = shape::target_ports(wanted, &self.ports);
        let seen = shape::maps(wanted);
        let maps: Maps = seen.iter().map(|(name, map)| (name.clone(), numbered(map, &self.volumes))).collect();
        self.furnish(coming, &ports, &maps);
        self.set_states(wanted, &ports, coming);
        let accesses = coming.accesses.clone().unwrap_or_default();
        let directory = shape::directory(wanted, &accesses, &self.ports, &self.listeners);
        let drain = directory.drain;
        let ways = directory.portals.iter().map(|portal| Way { portal: portal.id, group: portal.group });
        let ways: BTreeMap<u32, Way> = ways.map(|way| (way.portal, way)).collect();
        self.house.common().guard.set_directory(directory);
        // Who may come in, and how, is part of what is told.
        self.house.cores().ask(0, |core| ready(core.served.subsystem.tell_discovery()));
        coming.closing.iter().for_each(|listener| self.house.close(listener.id));
        for (id, way) in &ways {
            if self.settled.ways.get(id) != Some(way) {
                self.house.accept(*id, Face::Iscsi(*way));
            }
        }
        // Those who see a volume that is another disk now come back to it as to a new one.
        let touched = |map: &Map| map.values().any(|(volume, _)| coming.replaced.contains(volume));
        let ended: BTreeSet<Arc<str>> =
            seen.iter().filter(|(_, map)| touched(map)).map(|(name, _)| name.clone()).collect();
        let changed: Maps = maps
            .iter()
            .filter(|(name, map)| self.settled.maps.get(*name).is_some_and(|old| old != *map))
            .map(|(name, map)| (name.clone(), map.clone()))
            .collect();
        let (ended, changed) = (Arc::new(ended), Arc::new(changed));
        self.house.cores().ask_all(move |core| {
            let (ended, changed) = (ended.clone(), changed.clone());
            async move {
                core.served.iscsi.review(&ended).await;
                for (name, map) in &*changed {
                    let patience = core.reactor.sleep(drain);
                    core.served.target.set_map(name, map.clone(), patience).await;
                }
            }
        });
        self.clear(coming, &ports, &maps);
        let targets = wanted.config.targets.iter();
        let names = targets.map(|(name, target)| (target.iqn.as_str().to_ascii_lowercase().into(), name.clone()));
        let states = std::mem::take(&mut self.settled.states);
        self.settled = Settled { ports, maps, ways, states, names: names.collect(), troubles: Vec::new() };
    }

    /// Gives the cores what is new: nobody can see it yet.
    fn furnish(&self, coming: &Coming, ports: &[PortConfig], maps: &Maps) {
        let mut both = ports.to_vec();
        both.extend(self.settled.ports.iter().filter(|port| !ports.contains(port)).cloned());
        let fresh = maps.iter().filter(|(name, _)| !self.settled.maps.contains_key(*name));
        let fresh: Maps = fresh.map(|(name, map)| (name.clone(), map.clone())).collect();
        let (both, fresh): (Arc<[PortConfig]>, Arc<Maps>) = (both.into(), Arc::new(fresh));
        self.house.place(&coming.tickets);
        let is_new = !coming.new.is_empty();
        self.house.cores().ask_all(move |core| {
            let (both, fresh) = (both.clone(), fresh.clone());
            async move {
                core.served.target.set_ports(both.to_vec());
                for (name, map) in &*fresh {
                    core.served.target.set_map(name, map.clone(), ready(())).await;
                }
                if is_new && core.me == 0 {
                    // FORMAT UNIT or SANITIZE may have been under way when one of them was served last.
                    core.served.target.resume(core.reactor.arena());
                }
            }
        });
    }

    /// Brings portal groups into their states at the units, where these are others than were asked for before.
    fn set_states(&mut self, wanted: &Checked, ports: &[PortConfig], coming: &Coming) {
        let wanted = shape::states(wanted);
        let gone = |unit: &UnitId| coming.leaving.contains(unit) || coming.new.contains(unit);
        self.settled.states.retain(|(unit, _), _| !gone(unit));
        let there: BTreeSet<u16> = ports.iter().map(|port| port.group).collect();
        let groups: BTreeSet<u16> = self.settled.ports.iter().map(|port| port.group).chain(there.clone()).collect();
        let mut steps = Vec::new();
        for unit in self.volumes.values().map(|placed| placed.unit) {
            for group in &groups {
                // A group that goes leaves nothing behind that it would find when it comes back.
                let state = wanted.get(group).filter(|_| there.contains(group)).copied();
                let state = state.unwrap_or(AluaState::ACTIVE_OPTIMIZED);
                let before = match state {
                    AluaState::ACTIVE_OPTIMIZED => self.settled.states.remove(&(unit, *group)),
                    state => self.settled.states.insert((unit, *group), state),
                };
                if before.unwrap_or(AluaState::ACTIVE_OPTIMIZED) != state {
                    steps.push((unit.0 as u16, *group, state));
                }
            }
        }
        self.house
            .cores()
            .ask(0, move |core| async move {
                for (lun, group, state) in steps {
                    core.served.target.transition(lun, group, state).await;
                }
            })
            .wait();
    }

    /// Takes from the cores what nobody sees any more.
    fn clear(&self, coming: &Coming, ports: &[PortConfig], maps: &Maps) {
        let gone: Arc<[Arc<str>]> =
            self.settled.maps.keys().filter(|name| !maps.contains_key(*name)).cloned().collect();
        let (leaving, ports): (Arc<[UnitId]>, Arc<[PortConfig]>) = (coming.leaving.clone().into(), ports.into());
        self.house.cores().ask_all(move |core| {
            let (gone, leaving, ports) = (gone.clone(), leaving.clone(), ports.clone());
            async move {
                gone.iter().for_each(|name| core.served.target.forget_map(name));
                core.served.target.set_ports(ports.to_vec());
                for unit in &*leaving {
                    core.remove(*unit).await;
                }
            }
        });
    }
}
