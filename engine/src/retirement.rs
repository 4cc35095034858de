//! The end of a change: no session is granted by the old rules any more, and the sessions that the new rules do not
//! allow get the drain time to finish. Then the units that no map shows any more are removed.

use crate::core_set::core::Core;
use crate::core_set::cores::Cores;
use crate::lun_maps::LunMaps;
use crate::namespaces::NamespaceMaps;
use lunar_core::unit::UnitId;
use lunar_nvme::{Controllers, NamespaceMap};
use lunar_scsi::PortConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The identifier of a namespace in each map, by the names of the maps.
pub type NamespaceIds = BTreeMap<Arc<str>, u32>;

/// A state that is closed until it opens, once. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    /// An open latch.
    #[must_use]
    pub fn opened() -> Self {
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
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it opens.
    pub fn wait(&self) {
        let mut is_open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_open {
            is_open = self.0.1.wait(is_open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Opens a latch when it drops, also if the thread that has it panics.
struct Opens(Latch);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The end of a change. A thread of its own waits for it, so that the control thread has time for others.
#[derive(Debug)]
pub struct Retirement {
    /// The cores.
    pub cores: Cores,
    /// The NVMe controllers.
    pub controllers: Arc<Controllers>,
    /// The drain time of commands.
    pub drain: Duration,
    /// Groups whose sessions end, because one of their volumes was replaced.
    pub ended: Arc<BTreeSet<Arc<str>>>,
    /// LUN maps that change.
    pub changed: Arc<LunMaps>,
    /// Namespace maps that change.
    pub remapped: Arc<NamespaceMaps>,
    /// Units that NVMe hosts see in another shape.
    pub reshaped: Vec<UnitId>,
    /// Units that have another size, of these.
    pub resized: Vec<UnitId>,
    /// Identifiers that mean another namespace, or none, by the names of the maps.
    pub renamed: BTreeMap<Arc<str>, Vec<u32>>,
    /// LUN maps that no session uses any more.
    pub unused: Arc<[Arc<str>]>,
    /// Namespace maps that no host uses any more.
    pub hidden: Arc<[Arc<str>]>,
    /// Units that no map shows any more.
    pub leaving: Arc<[UnitId]>,
    /// The UUIDs of their volumes, and the identifiers of their namespaces.
    pub left: Vec<([u8; 16], NamespaceIds)>,
    /// All target ports.
    pub ports: Arc<[PortConfig]>,
}

impl Retirement {
    /// Ends sessions, changes maps, and removes units.
    pub fn run(self) {
        let (ended, changed, remapped, drain) = (self.ended, self.changed, self.remapped, self.drain);
        self.cores.ask_all(move |core| {
            let (ended, changed, remapped) = (ended.clone(), changed.clone(), remapped.clone());
            async move {
                core.review(&ended).await;
                for (name, map) in &*changed {
                    let patience = core.reactor.sleep(drain);
                    core.target.set_map(name, map.clone(), patience).await;
                }
                for (name, map) in &*remapped {
                    let patience = core.reactor.sleep(drain);
                    core.subsystem.set_map(name, map.clone(), patience).await;
                }
            }
        });
        for controller in self.controllers.all() {
            let id = |ids: &NamespaceIds| ids.get(controller.access_grant.map.as_ref()?).copied();
            let all = self.left.iter().filter_map(|(volume, ids)| Some((*volume, id(ids)?)));
            all.for_each(|(volume, id)| controller.set_attached(volume, id, false));
        }
        // NVMe hosts are told that their namespaces have changed: once for all cores.
        let (renamed, reshaped, resized) = (self.renamed, self.reshaped, self.resized);
        let tell = async move |core: Rc<Core>| {
            core.subsystem.resized(&resized);
            core.subsystem.tell_namespaces(&renamed, &reshaped);
        };
        self.cores.ask(0, tell).wait();
        let (unused, hidden, leaving, ports) = (self.unused, self.hidden, self.leaving, self.ports);
        self.cores.ask_all(move |core| {
            let (unused, hidden, leaving, ports) = (unused.clone(), hidden.clone(), leaving.clone(), ports.clone());
            async move {
                unused.iter().for_each(|name| core.target.forget_map(name));
                hidden.iter().for_each(|name| core.subsystem.forget_map(name));
                core.target.set_ports(ports.to_vec());
                for unit in &*leaving {
                    core.remove(*unit).await;
                }
                // The operator may rely on write-through when the change has ended.
                core.flushed().await;
            }
        });
    }

    /// Runs the retirement on a thread of its own, if the host has threads; the latch opens when it is done.
    #[must_use]
    pub fn start(self) -> Latch {
        let latch = Latch::default();
        let opens = Opens(latch.clone());
        let host = self.cores.host().clone();
        let work = Box::new(move || {
            self.run();
            drop(opens);
        });
        if let Err(work) = host.spawn("retirement", work) {
            work();
        }
        latch
    }
}

/// Maps that existed before and are different now.
#[must_use]
pub fn differing(before: &NamespaceMaps, after: &NamespaceMaps) -> NamespaceMaps {
    let differs = |name: &Arc<str>, map: &NamespaceMap| before.get(name).is_some_and(|old| old != map);
    let changed = after.iter().filter(|(name, map)| differs(name, map));
    changed.map(|(name, map)| (name.clone(), map.clone())).collect()
}

/// The identifier of a unit in each map.
#[must_use]
pub fn ids_of(maps: &NamespaceMaps, unit: UnitId) -> NamespaceIds {
    let id = |map: &NamespaceMap| map.namespaces().find(|(_, to)| to.unit == unit).map(|(id, _)| id);
    maps.iter().filter_map(|(name, map)| Some((name.clone(), id(map)?))).collect()
}

/// Identifiers whose namespace has changed. Attachments report host-made namespaces to their hosts.
#[must_use]
pub fn renamed(before: &NamespaceMaps, now: &NamespaceMaps, leaving: &[UnitId]) -> BTreeMap<Arc<str>, Vec<u32>> {
    let differs = |(name, map): (&Arc<str>, &NamespaceMap)| {
        let old = before.get(name).filter(|old| map.is_news(old, leaving))?;
        Some((name.clone(), map.differs(old)))
    };
    now.iter().filter_map(differs).collect()
}
