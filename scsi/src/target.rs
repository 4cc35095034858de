//! One core's view of a SCSI target device: its ports, its logical units, the I_T nexuses that this core serves.

use crate::copy::tokens::Tokens;
use crate::lu::{Change, LogicalUnit, Stamp};
use crate::lun::{LUNS_MAX, Lun};
use crate::lun_map::LunMap;
use crate::nexus::{Nexus, Units};
use crate::reserve::News;
use crate::sense::Asc;
use crate::thin::Claim;
use crate::tray::MediaEvent;
use lunar_core::port::NexusName;
use lunar_core::reserve::SharedUnits;
use lunar_core::stats::Stats;
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A target port, as the device server describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Relative target port identifier (SPC-4 7.8.6.7); starts with 1.
    pub relative: u16,
    /// Target port group (SPC-4 7.8.6.8).
    pub group: u16,
    /// SCSI name string of the port: for iSCSI `name,t,0x<portal group tag>`.
    pub name: String,
    /// SCSI name string of the target device that it is a port of: for iSCSI its name.
    pub device: String,
    /// Protocol identifier (SPC-4 7.6.1): 5 for iSCSI.
    pub protocol: u8,
}

/// A clock: milliseconds since the beginning of 1970, UTC.
#[derive(Clone)]
pub struct Clock(pub Rc<dyn Fn() -> u64>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", (self.0)())
    }
}

/// What a target device is made from.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The ports of the first moment: [`Target::set_ports`].
    pub ports: Vec<PortConfig>,
    /// What time it is where the target runs.
    pub clock: Clock,
    /// Which core this is: settles which of two changes made at once is the later one.
    pub core: u16,
    /// Where this core counts.
    pub stats: Arc<Stats>,
    /// What its logical units have in common with their views on other cores; one for all cores.
    pub shared: Arc<SharedUnits>,
    /// The ROD tokens of the device: the same on all cores.
    pub tokens: Arc<Tokens>,
}

/// What the other cores must know before a command or function may be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mail {
    /// A change of a logical unit; the nexuses are told of it. A reset ends the unit's tasks first.
    Change {
        /// Which.
        lun: u16,
        /// The change.
        change: Change,
        /// When it was made.
        stamp: Stamp,
    },
    /// A reset of these logical units.
    TargetReset {
        /// Which.
        luns: Arc<[u16]>,
        /// When it was made.
        stamp: Stamp,
    },
    /// A unit attention for every nexus.
    UnitAttention {
        /// Which logical unit.
        lun: u16,
        /// What happened.
        asc: Asc,
    },
    /// A threshold of the space that a logical unit takes is reached.
    Threshold {
        /// Which unit.
        lun: u16,
        /// Who is told, if not all nexuses: the one on the core that has the claim.
        claim: Option<Claim>,
    },
    /// The reservations of a logical unit have changed.
    Reservations {
        /// Which.
        lun: u16,
        /// Who is told what.
        news: Arc<News>,
    },
    /// Tasks of those who were preempted end.
    Preempted {
        /// At which logical unit.
        lun: u16,
        /// Who they are.
        news: Arc<News>,
    },
}

/// The same target device on all other cores.
pub trait Everywhere {
    /// Has [`Target::deliver`] run with `mail` on every other core; done when all are.
    fn broadcast(&self, mail: Mail) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// [`Everywhere`] of a program with one core.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl Everywhere for Nowhere {
    fn broadcast(&self, _mail: Mail) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

/// Runs work that goes on after its command.
pub type Spawn = Rc<dyn Fn(Pin<Box<dyn Future<Output = ()>>>)>;

/// The target ports.
pub(crate) type Ports = Rc<[Rc<PortConfig>]>;

/// One core's view of the logical units of one SCSI target device, or of several that have units in common: a port says
/// which device it belongs to, and the map of a nexus which units it sees.
pub struct Target {
    this: Weak<Self>,
    background: RefCell<Option<Spawn>>,
    pub(crate) config: TargetConfig,
    pub(crate) everywhere: Rc<dyn Everywhere>,
    /// Where answers are written before they are copied to memory that can be sent.
    pub(crate) scratch: RefCell<Vec<u8>>,
    ports: RefCell<Ports>,
    units: Rc<Units>,
    /// Which units groups of initiators see.
    maps: RefCell<BTreeMap<Arc<str>, Rc<LunMap>>>,
    nexuses: RefCell<Vec<Weak<Nexus>>>,
    changes: Cell<u64>,
    /// Who waits for a threshold that is armed.
    pub(crate) watcher: Cell<Option<Waker>>,
}

impl Target {
    /// A target device without logical units.
    #[must_use]
    pub fn new(config: TargetConfig, everywhere: Rc<dyn Everywhere>) -> Rc<Self> {
        let ports = config.ports.iter().cloned().map(Rc::new).collect();
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            ports: RefCell::new(ports),
            background: RefCell::default(),
            config,
            everywhere,
            scratch: RefCell::default(),
            units: Rc::default(),
            maps: RefCell::default(),
            nexuses: RefCell::default(),
            changes: Cell::new(0),
            watcher: Cell::default(),
        })
    }

    /// Gives work that goes on after its command to `spawn`. Without, such a command ends with its work, and the work
    /// goes on only as long as somebody waits for the command.
    pub fn run_in_background(&self, spawn: Spawn) {
        *self.background.borrow_mut() = Some(spawn);
    }

    pub(crate) fn background(&self) -> Option<Spawn> {
        self.background.borrow().clone()
    }

    pub(crate) fn this(&self) -> Option<Rc<Self>> {
        self.this.upgrade()
    }

    /// Adds a logical unit, or puts another in its place. The nexuses are told: of a changed capacity if it is
    /// the same unit, else of a changed inventory.
    ///
    /// # Panics
    /// When `lun` is not below [`LUNS_MAX`].
    pub fn add_unit(&self, lun: u16, unit: Rc<Unit>) {
        assert!(lun < LUNS_MAX, "LUN {lun} is beyond flat space addressing");
        self.rearmed();
        let before = self.units.borrow().get(&lun).cloned();
        match before {
            Some(old) if old.unit.id == unit.id => {
                let resized = old.unit.geometry != unit.geometry;
                let moded =
                    old.unit.read_only != unit.read_only || old.unit.traits().write_cache != unit.traits().write_cache;
                let lu = Rc::new(old.with_unit(unit));
                self.units.borrow_mut().insert(lun, lu.clone());
                for nexus in self.nexuses() {
                    let Some(itl) = nexus.itl_of(lun) else { continue };
                    let itl = itl.with_lu(lu.clone(), nexus.group);
                    if resized {
                        itl.attend(Asc::CAPACITY_DATA_CHANGED);
                    }
                    if moded {
                        itl.attend(Asc::MODE_PARAMETERS_CHANGED);
                    }
                    nexus.set(itl.lun, Some(Rc::new(itl)));
                }
            }
            _ => {
                let shared = self.config.shared.of(&unit);
                let lu = Rc::new(LogicalUnit::new(lun, unit, shared));
                self.units.borrow_mut().insert(lun, lu);
                for nexus in self.nexuses() {
                    let Some(own) = nexus.lun_of(lun) else { continue };
                    nexus.set(own, nexus.fresh(own, Some(Asc::POWER_ON_OR_RESET)).map(Rc::new));
                    nexus.each(|itl| {
                        if itl.lun != own {
                            itl.attend(Asc::REPORTED_LUNS_DATA_CHANGED)
                        }
                    });
                }
            }
        }
    }

    /// Removes a logical unit; the nexuses are told. Commands that run end as they would.
    pub fn remove_unit(&self, lun: u16) {
        if self.units.borrow_mut().remove(&lun).is_none() {
            return;
        }
        for nexus in self.nexuses() {
            let Some(own) = nexus.lun_of(lun) else { continue };
            nexus.set(own, None);
            nexus.each(|itl| itl.attend(Asc::REPORTED_LUNS_DATA_CHANGED));
        }
    }

    /// A new nexus that sees all logical units; each has a POWER ON unit attention for it.
    #[must_use]
    pub fn nexus(&self, name: NexusName) -> Rc<Nexus> {
        self.new_nexus(name, None)
    }

    /// A new nexus that sees what the map of this name shows; nothing, as long as there is none.
    #[must_use]
    pub fn nexus_behind(&self, name: NexusName, map: &Arc<str>) -> Rc<Nexus> {
        let shown = self.maps.borrow().get(map).cloned().unwrap_or_default();
        self.new_nexus(name, Some((map.clone(), shown)))
    }

    /// Puts a map in force under this name, on this core. Nexuses behind it are told that what they see has changed;
    /// what they run at LUNs that mean something else now gets to finish until `patience` is over, is aborted then, and
    /// gone when this returns.
    pub async fn set_map(&self, name: &Arc<str>, map: LunMap, patience: impl Future<Output = ()>) {
        let map = Rc::new(map);
        self.maps.borrow_mut().insert(name.clone(), map.clone());
        let behind = self.nexuses().into_iter().filter(|nexus| nexus.map_name.as_ref() == Some(name));
        let changed: Vec<_> = behind.map(|nexus| (nexus.set_map(map.clone()), nexus.tasks.moment(), nexus)).collect();
        let at = |luns: &[u16], lun: Lun| lun.number().is_some_and(|lun| luns.contains(&lun));
        let finish = async {
            for (luns, moment, nexus) in &changed {
                nexus.tasks.until_left(*moment, |(_, lun)| at(luns, lun)).await;
            }
        };
        let (mut finish, mut patience) = (pin!(finish), pin!(patience));
        poll_fn(|cx| if finish.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { patience.as_mut().poll(cx) })
            .await;
        for (luns, moment, nexus) in &changed {
            self.config.stats.tasks_aborted.add(nexus.tasks.abort_before(*moment, |(_, lun)| at(luns, lun)));
        }
        for (luns, moment, nexus) in &changed {
            nexus.tasks.until_gone(|(_, lun)| at(luns, lun)).await;
            nexus.forget_former(*moment);
        }
    }

    /// Forgets the map of this name on this core; no nexus is behind it any more.
    pub fn forget_map(&self, name: &str) {
        self.maps.borrow_mut().remove(name);
    }

    fn new_nexus(&self, name: NexusName, map: Option<(Arc<str>, Rc<LunMap>)>) -> Rc<Nexus> {
        let group = self.port(name.target_port).map_or(0, |port| port.group);
        let nexus = Rc::new(Nexus::new(name, group, self.units.clone(), map));
        let mut nexuses = self.nexuses.borrow_mut();
        nexuses.retain(|old| old.strong_count() > 0);
        nexuses.push(Rc::downgrade(&nexus));
        nexus
    }

    /// The nexuses of this core.
    #[must_use]
    pub fn nexuses(&self) -> Vec<Rc<Nexus>> {
        self.nexuses.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The port of this relative identifier.
    #[must_use]
    pub fn port(&self, relative: u16) -> Option<Rc<PortConfig>> {
        self.ports.borrow().iter().find(|port| port.relative == relative).cloned()
    }

    /// All ports.
    pub(crate) fn ports(&self) -> Ports {
        self.ports.borrow().clone()
    }

    /// The ports of the device that this one is a port of; none, if there is no such port.
    pub(crate) fn ports_beside(&self, relative: u16) -> Vec<Rc<PortConfig>> {
        let Some(own) = self.port(relative) else { return Vec::new() };
        self.ports.borrow().iter().filter(|port| port.device == own.device).cloned().collect()
    }

    /// The names of all ports.
    #[must_use]
    pub fn port_names(&self) -> Vec<String> {
        self.ports.borrow().iter().map(|port| format!("{} {}", port.relative, port.name)).collect()
    }

    /// All maps that are in force, by their names.
    #[must_use]
    pub fn maps(&self) -> Vec<(Arc<str>, Rc<LunMap>)> {
        self.maps.borrow().iter().map(|(name, map)| (name.clone(), map.clone())).collect()
    }

    /// Has these ports from now on, on this core. Nexuses through ports that are there before and after notice nothing;
    /// those through others have ended.
    pub fn set_ports(&self, ports: Vec<PortConfig>) {
        *self.ports.borrow_mut() = ports.into_iter().map(Rc::new).collect();
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    pub(crate) fn units(&self) -> Vec<Rc<LogicalUnit>> {
        self.units.borrow().values().cloned().collect()
    }

    pub(crate) fn unit(&self, lun: u16) -> Option<Rc<LogicalUnit>> {
        self.units.borrow().get(&lun).cloned()
    }

    /// A stamp that is later than all that this core has seen.
    pub(crate) fn stamp(&self) -> Stamp {
        self.changes.set(self.changes.get() + 1);
        Stamp { count: self.changes.get(), core: self.config.core }
    }

    /// Sees another core's stamp.
    pub(crate) fn see(&self, stamp: Stamp) {
        self.changes.set(self.changes.get().max(stamp.count));
    }

    /// Makes a change on all cores, and tells every nexus but the one that made it, if one did.
    pub(crate) async fn change(&self, by: Option<&Nexus>, lun: u16, change: Change) {
        let stamp = self.stamp();
        self.make(lun, &change, stamp, by);
        self.everywhere.broadcast(Mail::Change { lun, change, stamp }).await;
    }

    /// Makes a change on this core.
    pub(crate) fn make(&self, lun: u16, change: &Change, stamp: Stamp, but: Option<&Nexus>) {
        let Some(lu) = self.unit(lun) else { return };
        let event = MediaEvent::of(change, lu.tray());
        let told = lu.apply(change, stamp);
        if let Change::Access(_) = change {
            for nexus in self.nexuses() {
                if let Some(itl) = nexus.itl_of(lun) {
                    itl.set_alua(lu.access(nexus.group).state);
                }
            }
        }
        if let Change::Mode { .. } | Change::Reset = change {
            self.rearmed();
        }
        if let Some(event) = event {
            let known = self.nexuses().into_iter().filter_map(|nexus| nexus.known(lun));
            known.for_each(|itl| itl.event.set(event));
        }
        if *change == Change::Reset {
            self.nexuses().iter().for_each(|nexus| nexus.copies.forget(lun));
        }
        if told && let Some(asc) = change.attention() {
            self.attend(lun, asc, but);
        }
    }

    /// Adds a unit attention for every nexus of this core but one.
    pub(crate) fn attend(&self, lun: u16, asc: Asc, but: Option<&Nexus>) {
        for nexus in self.nexuses() {
            if !but.is_some_and(|but| std::ptr::eq(but, &*nexus))
                && let Some(itl) = nexus.itl_of(lun)
            {
                itl.attend(asc);
            }
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} ports, {} units)", self.ports.borrow().len(), self.units.borrow().len())
    }
}
