//! From one shape to the next. New things come first; then everybody is judged by the new rules, and whoever may no
//! longer be there is seen off; then what nobody sees any more goes. Sessions whose targets did not change notice
//! nothing.

use super::hosts::{self, Machine, NamespaceMaps};
use super::shape::{self, Listener, Map, State};
use super::{Coming, Live, Placed};
use crate::cores::Face;
use crate::house::{Cores, House};
use lunar_control::Checked;
use lunar_core::unit::UnitId;
use lunar_nvme::directory::Directory as Subsystems;
use lunar_nvme::{Controller, Controllers, NamespaceMap};
use lunar_scsi::{LunMap, Mapping, PortConfig};
use lunar_unit::AccessState;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Maps by the names of their groups, as the cores have them.
type Maps = BTreeMap<Arc<str>, LunMap>;
/// The identifier of a namespace behind each map.
type Called = BTreeMap<Arc<str>, u32>;

/// What the cores go by.
#[derive(Debug, Default)]
pub(super) struct Settled {
    ports: Vec<PortConfig>,
    maps: Maps,
    /// The states of portal groups at units that were asked for, where they are not as after power on.
    states: BTreeMap<(UnitId, u16), State>,
    faces: BTreeMap<u32, Face>,
    namespaces: NamespaceMaps,
    /// Virtual machines, by their sockets.
    pub(super) machines: BTreeMap<PathBuf, Machine>,
    /// Names of targets in the configuration, by their names in iSCSI and NVMe.
    pub(super) names: BTreeMap<Arc<str>, String>,
    /// What went wrong and still is, until the next change.
    pub(super) troubles: Vec<String>,
    /// Listeners, by their numbers, that could not listen again, and why.
    pub(super) deaf: BTreeMap<u32, String>,
}

impl Settled {
    /// Accepts at an address that is listened at again as before.
    pub(super) fn accept_again(&self, house: &House, listener: Listener) {
        if let Some(face) = self.faces.get(&listener.id) {
            house.accept(listener.id, *face);
        }
    }
}

/// How a portal group is after power on.
const AS_AFTER_POWER_ON: State = (AccessState::ActiveOptimized, false);

/// Something that is under way until it opens. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    /// One that is open.
    pub(super) fn opened() -> Self {
        let latch = Self::default();
        latch.open();
        latch
    }

    fn open(&self) {
        let Self(both) = self;
        *both.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        both.1.notify_all();
    }

    /// Whether it has opened.
    pub(super) fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it opens.
    pub(super) fn wait(&self) {
        let mut is_open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_open {
            is_open = self.0.1.wait(is_open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Opens a latch, whatever becomes of the thread that has it.
struct Opens(Latch);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The end of a change: nobody comes in by the old rules any more, and those who did may take as long as they have to
/// get to their ends. A thread of its own waits for that, so that the control thread has time for others.
struct Farewell {
    cores: Cores,
    /// Those of NVMe hosts.
    controllers: Arc<Controllers>,
    /// How long commands get to finish.
    drain: Duration,
    /// Groups whose sessions come back to what they see as to something new.
    ended: Arc<BTreeSet<Arc<str>>>,
    /// Maps that others see from now on.
    changed: Arc<Maps>,
    /// The same for NVMe hosts.
    remapped: Arc<NamespaceMaps>,
    /// Units that are another disk to NVMe hosts.
    reshaped: Vec<UnitId>,
    /// Identifiers that mean another namespace, or none, behind those maps.
    renamed: BTreeMap<Arc<str>, Vec<u32>>,
    /// Maps that nobody sees any more.
    gone: Arc<[Arc<str>]>,
    /// The same of NVMe hosts.
    hidden: Arc<[Arc<str>]>,
    /// Units that nobody sees any more.
    leaving: Arc<[UnitId]>,
    /// The UUIDs of their volumes, and what these were called.
    left: Vec<([u8; 16], Called)>,
    /// All ports that there are.
    ports: Arc<[PortConfig]>,
}

impl Farewell {
    fn say(self) {
        let Self {
            cores,
            controllers,
            drain,
            ended,
            changed,
            remapped,
            reshaped,
            renamed,
            gone,
            hidden,
            leaving,
            ports,
            left,
        } = self;
        cores.ask_all(move |core| {
            let (ended, changed, remapped) = (ended.clone(), changed.clone(), remapped.clone());
            async move {
                core.served.iscsi.review(&ended).await;
                for (name, map) in &*changed {
                    let patience = core.reactor.sleep(drain);
                    core.served.target.set_map(name, map.clone(), patience).await;
                }
                for (name, map) in &*remapped {
                    let patience = core.reactor.sleep(drain);
                    core.served.subsystem.set_map(name, map.clone(), patience).await;
                }
            }
        });
        for controller in controllers.all() {
            let id = |ids: &Called| ids.get(controller.standing.map.as_ref()?).copied();
            let all = left.iter().filter_map(|(volume, ids)| Some((*volume, id(ids)?)));
            all.for_each(|(volume, id)| controller.set_attached(volume, id, false));
        }
        // NVMe hosts are told that their namespaces are others: once for all cores.
        cores.ask(0, async move |core| core.served.subsystem.tell_namespaces(&renamed, &reshaped)).wait();
        // What nobody sees any more.
        cores.ask_all(move |core| {
            let (gone, hidden, leaving, ports) = (gone.clone(), hidden.clone(), leaving.clone(), ports.clone());
            async move {
                gone.iter().for_each(|name| core.served.target.forget_map(name));
                hidden.iter().for_each(|name| core.served.subsystem.forget_map(name));
                core.served.target.set_ports(ports.to_vec());
                for unit in &*leaving {
                    core.remove(*unit).await;
                }
            }
        });
    }

    /// Has a thread of its own do it; the latch opens when that is done.
    fn start(self) -> Latch {
        let latch = Latch::default();
        let opens = Opens(latch.clone());
        // Shared, so that it is still here if there is no thread for it.
        let farewell = Arc::new(Mutex::new(Some((self, opens))));
        let say = move |farewell: &Mutex<Option<(Self, Opens)>>| {
            let both = farewell.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((farewell, opens)) = both {
                farewell.say();
                drop(opens);
            }
        };
        let thread = std::thread::Builder::new().name("settle".into());
        let in_thread = farewell.clone();
        if thread.spawn(move || say(&in_thread)).is_err() {
            say(&farewell);
        }
        latch
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

/// Maps that were there before and are others now.
fn differing(before: &NamespaceMaps, after: &NamespaceMaps) -> NamespaceMaps {
    let differs = |name: &Arc<str>, map: &NamespaceMap| before.get(name).is_some_and(|old| old != map);
    let changed = after.iter().filter(|(name, map)| differs(name, map));
    changed.map(|(name, map)| (name.clone(), map.clone())).collect()
}

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

/// What a unit is called behind each map.
fn called(maps: &NamespaceMaps, unit: UnitId) -> Called {
    let id = |map: &NamespaceMap| map.namespaces().find(|(_, to)| to.unit == unit).map(|(id, _)| id);
    maps.iter().filter_map(|(name, map)| Some((name.clone(), id(map)?))).collect()
}

/// Identifiers that mean something else now. Of namespaces that hosts make they are told when they are attached, or
/// detached.
fn renamed(before: &NamespaceMaps, now: &NamespaceMaps, leaving: &[UnitId]) -> BTreeMap<Arc<str>, Vec<u32>> {
    let differs = |(name, map): (&Arc<str>, &NamespaceMap)| {
        let old = before.get(name).filter(|old| map.is_news(old, leaving))?;
        Some((name.clone(), map.differs(old)))
    };
    now.iter().filter_map(differs).collect()
}

impl Live {
    pub(super) fn settle_shape(&mut self, coming: &Coming, wanted: &Checked) {
        let ports = shape::target_ports(wanted, &self.ports);
        let seen = shape::maps(wanted);
        let maps: Maps = seen.iter().map(|(name, map)| (name.clone(), numbered(map, &self.volumes))).collect();
        let namespaces = hosts::maps(wanted, &self.volumes);
        self.furnish(coming, &ports, (&maps, &namespaces));
        self.set_states(wanted, coming);
        let accesses = coming.accesses.clone().unwrap_or_default();
        let directory = shape::directory(wanted, &accesses, &self.ports, &self.listeners);
        let (drain, faces) = (directory.drain, hosts::faces(wanted, &self.listeners));
        self.house.common().guard.set_directory(directory);
        // That it can be made was seen before anything was changed.
        hosts::remember(wanted, &self.state, &mut self.histories);
        let hosts = hosts::directory(wanted, &accesses, &self.listeners, &self.histories);
        let hosts = hosts.unwrap_or_else(|_| Subsystems::nothing());
        self.house.common().board.set(hosts.clone());
        coming.closing.iter().for_each(|listener| self.house.close(listener.id));
        for (id, face) in &faces {
            if self.settled.faces.get(id) != Some(face) {
                self.house.accept(*id, *face);
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
        let is_ended = |controller: &Controller| controller.standing.group.as_ref().is_some_and(|g| ended.contains(g));
        self.house.common().controllers.review(&hosts, is_ended);
        self.settled.machines = hosts::machines(wanted, &self.runtime);
        self.settle_machines();
        let gone = self.settled.maps.keys().filter(|name| !maps.contains_key(*name)).cloned().collect();
        let hidden = self.settled.namespaces.keys().filter(|name| !namespaces.contains_key(*name)).cloned().collect();
        let remapped = differing(&self.settled.namespaces, &namespaces);
        let before = &self.settled.namespaces;
        let left = coming.left.iter().map(|(volume, unit)| (*volume, called(before, *unit))).collect();
        let renamed = renamed(before, &remapped, &coming.leaving);
        let farewell = Farewell {
            cores: self.house.cores().clone(),
            controllers: self.house.common().controllers.clone(),
            drain,
            ended: Arc::new(ended),
            changed: Arc::new(changed),
            remapped: Arc::new(remapped),
            reshaped: coming.reshaped.clone(),
            renamed,
            gone,
            hidden,
            leaving: coming.leaving.clone().into(),
            left,
            ports: ports.clone().into(),
        };
        self.settling = farewell.start();
        self.settled.names = names(wanted);
        self.settled.troubles.clear();
        let settled = &mut self.settled;
        (settled.ports, settled.maps, settled.faces, settled.namespaces) = (ports, maps, faces, namespaces);
        self.hear_again();
    }

    /// Gives the cores what is new: nobody can see it yet.
    fn furnish(&self, coming: &Coming, ports: &[PortConfig], (maps, namespaces): (&Maps, &NamespaceMaps)) {
        let mut both = ports.to_vec();
        both.extend(self.settled.ports.iter().filter(|port| !ports.contains(port)).cloned());
        let fresh = maps.iter().filter(|(name, _)| !self.settled.maps.contains_key(*name));
        let fresh: Maps = fresh.map(|(name, map)| (name.clone(), map.clone())).collect();
        let (both, fresh): (Arc<[PortConfig]>, Arc<Maps>) = (both.into(), Arc::new(fresh));
        let shown = namespaces.iter().filter(|(name, _)| !self.settled.namespaces.contains_key(*name));
        let shown: Arc<NamespaceMaps> = Arc::new(shown.map(|(name, map)| (name.clone(), map.clone())).collect());
        self.house.place(&coming.tickets);
        let is_new = !coming.new.is_empty();
        self.house.cores().ask_all(move |core| {
            let (both, fresh, shown) = (both.clone(), fresh.clone(), shown.clone());
            async move {
                core.served.target.set_ports(both.to_vec());
                for (name, map) in &*fresh {
                    core.served.target.set_map(name, map.clone(), ready(())).await;
                }
                for (name, map) in &*shown {
                    core.served.subsystem.set_map(name, map.clone(), ready(())).await;
                }
                if is_new && core.me == 0 {
                    // FORMAT UNIT or SANITIZE may have been under way when one of them was served last.
                    core.served.units.resume(core.reactor.arena());
                }
            }
        });
    }

    /// Sets the access states of portal groups at the units, where the configuration asks for others than before.
    fn set_states(&mut self, wanted: &Checked, coming: &Coming) {
        let wanted = shape::states(wanted);
        let fresh: BTreeSet<UnitId> = coming.leaving.iter().chain(&coming.new).copied().collect();
        self.settled.states.retain(|(unit, _), _| !fresh.contains(unit));
        let before = self.settled.states.keys().map(|(_, group)| *group);
        let groups: BTreeSet<u16> = wanted.keys().copied().chain(before).collect();
        let mut steps = Vec::new();
        for unit in self.volumes.values().map(|placed| placed.unit) {
            for group in &groups {
                let state = wanted.get(group).copied().unwrap_or(AS_AFTER_POWER_ON);
                let before = match state {
                    AS_AFTER_POWER_ON => self.settled.states.remove(&(unit, *group)),
                    state => self.settled.states.insert((unit, *group), state),
                };
                if before.unwrap_or(AS_AFTER_POWER_ON) != state {
                    steps.push((unit, *group, state));
                }
            }
        }
        self.house
            .cores()
            .ask(0, move |core| async move {
                for (unit, group, (state, preferred)) in steps {
                    core.served.units.set_access(unit, group, state, preferred).await;
                }
            })
            .wait();
    }
}
