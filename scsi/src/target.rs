//! One core's view of a SCSI target device: its ports, its logical units, and the I_T nexuses that this core serves.

use crate::copy::tokens::Tokens;
use crate::lu::LogicalUnit;
use crate::lun::Lun;
use crate::lun_map::LunMap;
use crate::nexus::{Nexus, Units};
use crate::sense::Asc;
use lunar_core::port::NexusName;
use lunar_core::stats::Stats;
use lunar_core::unit::UnitId;
use lunar_unit::CoreUnits;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A target port.
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

/// The configuration of a target device.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The ports that it starts with; see [`Target::set_ports`].
    pub ports: Vec<PortConfig>,
    /// The clock of the target.
    pub clock: Clock,
    /// The statistics of this core.
    pub stats: Arc<Stats>,
    /// The state of the units.
    pub units: Rc<CoreUnits>,
    /// The ROD tokens of the device: the same on all cores.
    pub tokens: Arc<Tokens>,
}

/// The target ports.
pub(crate) type Ports = Rc<[Rc<PortConfig>]>;

/// One core's view of the logical units of one SCSI target device, or of several that have units in common: a port
/// states the device that it belongs to, and the LUN map of a nexus the units that it sees.
pub struct Target {
    pub(crate) config: TargetConfig,
    /// Buffer for answers, which are copied from there to memory that can be sent.
    pub(crate) scratch: RefCell<Vec<u8>>,
    ports: RefCell<Ports>,
    pub(crate) logical_units: Rc<Units>,
    /// The LUN maps, by the names of the host groups that see them.
    maps: RefCell<BTreeMap<Arc<str>, Rc<LunMap>>>,
    nexuses: RefCell<Vec<Weak<Nexus>>>,
    /// The wakers of tasks that wait for an armed threshold.
    pub(crate) watcher: Cell<Option<Waker>>,
}

impl Target {
    /// A target device without logical units.
    #[must_use]
    pub fn new(config: TargetConfig) -> Rc<Self> {
        let ports = config.ports.iter().cloned().map(Rc::new).collect();
        let units = config.units.clone();
        let target = Rc::new(Self {
            config,
            ports: RefCell::new(ports),
            scratch: RefCell::default(),
            logical_units: Rc::default(),
            maps: RefCell::default(),
            nexuses: RefCell::default(),
            watcher: Cell::default(),
        });
        units.add_command_set(&target);
        target
    }

    /// A new nexus that sees all logical units. Each of them has a POWER ON unit attention condition for it.
    #[must_use]
    pub fn nexus(&self, name: NexusName) -> Rc<Nexus> {
        self.new_nexus(name, None)
    }

    /// A new nexus that sees the LUN map of this name; without such a map it sees nothing.
    #[must_use]
    pub fn nexus_behind(&self, name: NexusName, map: &Arc<str>) -> Rc<Nexus> {
        let shown = self.maps.borrow().get(map).cloned().unwrap_or_default();
        self.new_nexus(name, Some((map.clone(), shown)))
    }

    /// Publishes a LUN map under this name, on this core. A unit attention condition reports the changed inventory to
    /// its nexuses. Their tasks at LUNs that name another unit now may continue until `patience` is over; then they
    /// are aborted. None of them is left when this returns.
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

    /// Removes the LUN map of this name on this core. No nexus has it any more.
    pub fn forget_map(&self, name: &str) {
        self.maps.borrow_mut().remove(name);
    }

    fn new_nexus(&self, name: NexusName, map: Option<(Arc<str>, Rc<LunMap>)>) -> Rc<Nexus> {
        let group = self.port(name.target_port).map_or(0, |port| port.group);
        let nexus = Rc::new(Nexus::new(name, group, self.logical_units.clone(), map));
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

    /// The port of this relative target port identifier.
    #[must_use]
    pub fn port(&self, relative: u16) -> Option<Rc<PortConfig>> {
        self.ports.borrow().iter().find(|port| port.relative == relative).cloned()
    }

    /// Whether there is a port in this target port group.
    pub(crate) fn has_port_in(&self, group: u16) -> bool {
        self.ports.borrow().iter().any(|port| port.group == group)
    }

    /// The ports of the device that has a port of this relative target port identifier; none if no device has.
    pub(crate) fn ports_of_same_device(&self, relative: u16) -> Vec<Rc<PortConfig>> {
        let Some(own) = self.port(relative) else { return Vec::new() };
        self.ports.borrow().iter().filter(|port| port.device == own.device).cloned().collect()
    }

    /// The names of all ports.
    #[must_use]
    pub fn port_names(&self) -> Vec<String> {
        self.ports.borrow().iter().map(|port| format!("{} {}", port.relative, port.name)).collect()
    }

    /// All LUN maps and their names.
    #[must_use]
    pub fn maps(&self) -> Vec<(Arc<str>, Rc<LunMap>)> {
        self.maps.borrow().iter().map(|(name, map)| (name.clone(), map.clone())).collect()
    }

    /// Replaces the ports, on this core. Nexuses of ports that remain are not affected; the nexuses of other ports
    /// have ended.
    pub fn set_ports(&self, ports: Vec<PortConfig>) {
        *self.ports.borrow_mut() = ports.into_iter().map(Rc::new).collect();
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    pub(crate) fn units(&self) -> Vec<Rc<LogicalUnit>> {
        self.logical_units.borrow().values().cloned().collect()
    }

    pub(crate) fn unit(&self, lun: u16) -> Option<Rc<LogicalUnit>> {
        self.logical_units.borrow().get(&lun).cloned()
    }

    /// This core's view of a unit.
    pub(crate) fn unit_of(&self, unit: UnitId) -> Option<Rc<LogicalUnit>> {
        let units = self.logical_units.borrow();
        // Most units have the number of their logical unit.
        let same = u16::try_from(unit.0).ok().and_then(|lun| units.get(&lun)).filter(|lu| lu.id() == unit);
        same.or_else(|| units.values().find(|lu| lu.id() == unit)).cloned()
    }

    /// Establishes a unit attention condition at a logical unit for every nexus of this core, except those of this
    /// name.
    pub(crate) fn establish_unit_attention(&self, lun: u16, asc: Asc, except: Option<&NexusName>) {
        for nexus in self.nexuses() {
            if except != Some(&nexus.name)
                && let Some(itl) = nexus.itl_of(lun)
            {
                itl.establish_unit_attention(asc);
            }
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} ports, {} units)", self.ports.borrow().len(), self.logical_units.borrow().len())
    }
}
