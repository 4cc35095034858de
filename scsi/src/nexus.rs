//! I_T nexuses, and what each of them has to do with each disk.

use crate::access::AluaState;
use crate::attention::Attentions;
use crate::buffers::Buffers;
use crate::copy::results::Copies;
use crate::lu::LogicalUnit;
use crate::lun::Lun;
use crate::lun_map::{LunMap, Mapping};
use crate::manage::is_at;
use crate::order::Order;
use crate::sense::{Asc, Sense};
use crate::task::TaskSet;
use crate::tray::MediaEvent;
use lunar_core::port::NexusName;
pub use lunar_core::reserve::Held;
use lunar_core::task::Moment;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// An I_T_L nexus: what one nexus has to do with one disk.
#[derive(Debug)]
pub struct ItlNexus {
    /// The disk.
    pub lu: Rc<LogicalUnit>,
    /// By which number the nexus knows it.
    pub lun: u16,
    /// Whether the nexus may not write it.
    read_only: bool,
    /// In which order its commands run.
    pub order: Order,
    /// What READ BUFFER reads.
    pub buffers: Buffers,
    /// What GET EVENT STATUS NOTIFICATION tells next of the medium.
    pub event: Cell<MediaEvent>,
    attentions: Attentions,
    held: Cell<Held>,
    alua: Cell<AluaState>,
    /// Whether it stands in no command's way: nothing to tell, nothing reserved, active/optimized,
    /// not read-only.
    clear: Cell<bool>,
}

impl ItlNexus {
    /// A fresh one of a nexus that knows the disk by `lun`; it waits to tell `attention`.
    fn new(lu: Rc<LogicalUnit>, nexus: &Nexus, lun: u16, read_only: bool, attention: Option<Asc>) -> Self {
        let held = lu.shared.reservations().held(&nexus.name);
        let itl = Self::under(lu, (lun, read_only), held, nexus.group);
        attention.into_iter().for_each(|asc| itl.attend(asc));
        itl
    }

    fn under(lu: Rc<LogicalUnit>, (lun, read_only): (u16, bool), held: Held, group: u16) -> Self {
        let alua = Cell::new(lu.access(group).state);
        let itl = Self {
            lu,
            lun,
            read_only,
            order: Order::default(),
            buffers: Buffers::default(),
            event: Cell::default(),
            attentions: Attentions::default(),
            held: Cell::new(held),
            alua,
            clear: Cell::new(true),
        };
        itl.refresh();
        itl
    }

    /// The same with another view of the disk.
    pub(crate) fn with_lu(&self, lu: Rc<LogicalUnit>, group: u16) -> Self {
        let itl = Self::under(lu, (self.lun, self.read_only), self.held.get(), group);
        while let Some(sense) = self.attentions.take() {
            itl.attentions.add(sense.asc);
        }
        itl.event.set(self.event.get());
        itl.refresh();
        itl
    }

    /// Adds a unit attention.
    pub fn attend(&self, asc: Asc) {
        self.attentions.add(asc);
        self.refresh();
    }

    /// Takes the unit attention that is told next.
    pub fn take_attention(&self) -> Option<Sense> {
        let sense = self.attentions.take();
        self.refresh();
        sense
    }

    /// Forgets a unit attention.
    pub fn forget_attention(&self, asc: Asc) {
        self.attentions.forget(asc);
        self.refresh();
    }

    /// The unit attention that is told next, and how many wait.
    #[must_use]
    pub fn attention(&self) -> Option<(Asc, usize)> {
        self.attentions.peek()
    }

    /// What a reservation means for it.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    /// Sets what a reservation means for it.
    pub fn set_held(&self, held: Held) {
        self.held.set(held);
        self.refresh();
    }

    /// Its state of asymmetric access.
    #[must_use]
    pub fn alua(&self) -> AluaState {
        self.alua.get()
    }

    /// Sets its state of asymmetric access.
    pub fn set_alua(&self, state: AluaState) {
        self.alua.set(state);
        self.refresh();
    }

    /// Whether writes of this nexus are refused.
    #[must_use]
    pub fn write_protected(&self) -> bool {
        self.read_only || self.lu.write_protected()
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.clear.get()
    }

    fn refresh(&self) {
        let active = matches!(self.alua.get(), AluaState::ACTIVE_OPTIMIZED | AluaState::ACTIVE_NON_OPTIMIZED);
        let free = self.attentions.is_empty() && self.held.get() == Held::None;
        self.clear.set(free && active && !self.read_only);
    }
}

/// Whom a command's LUN names.
#[derive(Clone, Debug)]
pub enum Addressee {
    /// A disk, as the nexus sees it.
    Disk(Rc<ItlNexus>),
    /// The well-known logical unit REPORT LUNS.
    WellKnown,
    /// Nobody.
    Nobody,
}

impl Addressee {
    /// The disk, if it is one.
    pub(crate) fn disk(&self) -> Option<&Rc<ItlNexus>> {
        match self {
            Self::Disk(itl) => Some(itl),
            Self::WellKnown | Self::Nobody => None,
        }
    }
}

/// A LUN that showed this unit before this moment: tasks of then are still there.
#[derive(Clone, Copy, Debug)]
struct Former {
    lun: u16,
    unit: u16,
    before: Moment,
}

/// An I_T nexus: one initiator port joined to one target port. Dropping it ends it; see also
/// [`Target::close`](crate::Target::close).
#[derive(Debug)]
pub struct Nexus {
    /// Its names.
    pub name: NexusName,
    /// Its tasks.
    pub tasks: TaskSet,
    /// The third-party copies that it asked for.
    pub(crate) copies: Copies,
    /// What runs at units that it does not see any more, or not there.
    former: RefCell<Vec<Former>>,
    /// The target port group that it comes through.
    pub group: u16,
    /// The disks of the target.
    units: Rc<Units>,
    /// The name of the map that says which of them it sees; without, it sees all by their own numbers.
    pub(crate) map_name: Option<Arc<str>>,
    map: RefCell<Option<Rc<LunMap>>>,
    /// What it has to do with each disk that it has addressed, by LUN: thousands of sessions on thousands of disks
    /// take memory for what they use.
    luns: RefCell<Vec<Option<Rc<ItlNexus>>>>,
}

/// The disks of a target, by LUN.
pub(crate) type Units = RefCell<BTreeMap<u16, Rc<LogicalUnit>>>;

impl Nexus {
    pub(crate) fn new(name: NexusName, group: u16, units: Rc<Units>, map: Option<(Arc<str>, Rc<LunMap>)>) -> Self {
        let (map_name, map) = map.unzip();
        Self {
            name,
            tasks: TaskSet::default(),
            copies: Copies::default(),
            former: RefCell::default(),
            group,
            units,
            map_name,
            map: RefCell::new(map),
            luns: RefCell::default(),
        }
    }

    /// Whom a LUN names.
    #[must_use]
    pub fn addressee(&self, lun: Lun) -> Addressee {
        match lun.number().and_then(|number| self.itl(number)) {
            Some(itl) => Addressee::Disk(itl),
            None if lun == Lun::REPORT_LUNS => Addressee::WellKnown,
            None => Addressee::Nobody,
        }
    }

    /// What it has to do with the disk of this number. A disk that was not addressed yet has a POWER ON unit
    /// attention in store.
    #[must_use]
    pub fn itl(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        self.known(lun).or_else(|| self.first_itl(lun))
    }

    /// The same, for the disk that has this number at its target, if the nexus sees it.
    #[must_use]
    pub fn itl_of(&self, unit: u16) -> Option<Rc<ItlNexus>> {
        self.itl(self.lun_of(unit)?)
    }

    /// By which LUN it knows the disk that has this number at its target.
    #[must_use]
    pub fn lun_of(&self, unit: u16) -> Option<u16> {
        self.map.borrow().as_ref().map_or(Some(unit), |map| map.lun_of(unit))
    }

    /// The disk of this number, if it has addressed it.
    pub(crate) fn known(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        self.luns.borrow().get(usize::from(lun)).cloned().flatten()
    }

    #[cold]
    fn first_itl(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        let itl = Rc::new(self.fresh(lun, Some(Asc::POWER_ON_OR_RESET))?);
        self.set(lun, Some(itl.clone()));
        Some(itl)
    }

    /// What it has to do with the disk of this number, as from now: the one place where a LUN becomes a disk.
    pub(crate) fn fresh(&self, lun: u16, attention: Option<Asc>) -> Option<ItlNexus> {
        let Mapping { unit, read_only } = self.mapping(lun)?;
        let lu = self.units.borrow().get(&unit)?.clone();
        Some(ItlNexus::new(lu, self, lun, read_only, attention))
    }

    fn mapping(&self, lun: u16) -> Option<Mapping> {
        match &*self.map.borrow() {
            Some(map) => map.mapping(lun),
            None => Some(Mapping { unit: lun, read_only: false }),
        }
    }

    /// Goes by another map from now on; returns the LUNs that do not mean what they meant. What the nexus had to do
    /// with their disks is forgotten, and the others wait to tell that the inventory has changed.
    pub(crate) fn set_map(&self, map: Rc<LunMap>) -> Vec<u16> {
        let old = self.map.replace(Some(map.clone()));
        let was = |lun| old.as_ref().map_or(Some(Mapping { unit: lun, read_only: false }), |old| old.mapping(lun));
        let known = 0..u16::try_from(self.luns.borrow().len()).unwrap_or(u16::MAX);
        let changed: Vec<u16> = known.filter(|lun| was(*lun) != map.mapping(*lun)).collect();
        changed.iter().for_each(|lun| self.set(*lun, None));
        let before = self.tasks.moment();
        let former = |lun: &u16| Some(Former { lun: *lun, unit: was(*lun)?.unit, before });
        self.former.borrow_mut().extend(changed.iter().filter_map(former));
        if old.as_ref() != Some(&map) {
            self.each(|itl| itl.attend(Asc::REPORTED_LUNS_DATA_CHANGED));
        }
        changed
    }

    /// What ran when the map was changed, at this moment, at LUNs that show something else since, is gone.
    pub(crate) fn forget_former(&self, moment: Moment) {
        self.former.borrow_mut().retain(|former| former.before != moment);
    }

    /// Aborts what it runs at these units; returns how many tasks that were not aborted before.
    pub(crate) fn abort_at(&self, units: &[u16]) -> u64 {
        self.copies.stop_writing(units);
        let former =
            self.former.borrow().iter().filter(|former| units.contains(&former.unit)).fold(0, |count, former| {
                count + self.tasks.abort_before(former.before, |(_, lun)| lun.number() == Some(former.lun))
            });
        former + self.tasks.abort(|(_, task)| units.iter().any(|unit| is_at(self, *unit, task)))
    }

    /// Waits until what was aborted so is gone.
    pub(crate) async fn until_gone_at(&self, units: &[u16]) {
        self.copies.until_stopped(units).await;
        let former: Vec<Former> =
            self.former.borrow().iter().copied().filter(|former| units.contains(&former.unit)).collect();
        for Former { lun, before, .. } in former {
            self.tasks.until_left(before, |(_, task)| task.number() == Some(lun)).await;
        }
        self.tasks.until_gone(|(_, task)| units.iter().any(|unit| is_at(self, *unit, task))).await;
    }

    pub(crate) fn set(&self, lun: u16, itl: Option<Rc<ItlNexus>>) {
        let mut luns = self.luns.borrow_mut();
        let at = usize::from(lun);
        if luns.len() <= at {
            luns.resize(at + 1, None);
        }
        luns[at] = itl;
    }

    /// The first disk that it sees of those that `is_meant` names.
    pub(crate) fn seek(&self, is_meant: impl Fn(&LogicalUnit) -> bool) -> Option<Rc<ItlNexus>> {
        let meant: Vec<u16> =
            self.units.borrow().iter().filter(|(_, lu)| is_meant(lu)).map(|(unit, _)| *unit).collect();
        meant.into_iter().find_map(|unit| self.itl_of(unit))
    }

    /// Runs `what` for each disk that it sees, in the order of their numbers.
    pub(crate) fn each(&self, mut what: impl FnMut(&ItlNexus)) {
        let all: Vec<u16> = match &*self.map.borrow() {
            Some(map) => map.luns().map(|(lun, _)| lun).collect(),
            None => self.units.borrow().keys().copied().collect(),
        };
        all.into_iter().filter_map(|lun| self.itl(lun)).for_each(|itl| what(&itl));
    }
}
