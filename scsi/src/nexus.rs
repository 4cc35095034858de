//! I_T nexuses, and what each of them has to do with each disk.

use crate::access::AluaState;
use crate::attention::Attentions;
use crate::buffers::Buffers;
use crate::copy::results::Copies;
use crate::lu::LogicalUnit;
use crate::lun::Lun;
use crate::order::Order;
use crate::sense::{Asc, Sense};
use crate::task::TaskSet;
use lunar_core::port::NexusName;
pub use lunar_core::reserve::Held;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// An I_T_L nexus: what one nexus has to do with one disk.
#[derive(Debug)]
pub struct ItlNexus {
    /// The disk.
    pub lu: Rc<LogicalUnit>,
    /// In which order its commands run.
    pub order: Order,
    /// What READ BUFFER reads.
    pub buffers: Buffers,
    attentions: Attentions,
    held: Cell<Held>,
    alua: Cell<AluaState>,
    /// Whether it stands in no command's way: nothing to tell, nothing reserved, active/optimized.
    clear: Cell<bool>,
}

impl ItlNexus {
    /// A fresh one of the nexus `name`, which comes through this target port group; it waits to tell `attention`.
    #[must_use]
    pub fn new(lu: Rc<LogicalUnit>, name: &NexusName, group: u16, attention: Option<Asc>) -> Self {
        let held = lu.shared.reservations().held(name);
        let itl = Self::under(lu, held, group);
        attention.into_iter().for_each(|asc| itl.attend(asc));
        itl
    }

    fn under(lu: Rc<LogicalUnit>, held: Held, group: u16) -> Self {
        let alua = Cell::new(lu.access(group).state);
        let itl = Self {
            lu,
            order: Order::default(),
            buffers: Buffers::default(),
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
        let itl = Self::under(lu, self.held.get(), group);
        while let Some(sense) = self.attentions.take() {
            itl.attentions.add(sense.asc);
        }
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

    pub(crate) fn is_clear(&self) -> bool {
        self.clear.get()
    }

    fn refresh(&self) {
        let active = matches!(self.alua.get(), AluaState::ACTIVE_OPTIMIZED | AluaState::ACTIVE_NON_OPTIMIZED);
        self.clear.set(self.attentions.is_empty() && self.held.get() == Held::None && active);
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
    /// The target port group that it comes through.
    pub group: u16,
    /// The disks of the target.
    units: Rc<Units>,
    /// What it has to do with each disk that it has addressed, by LUN: thousands of sessions on thousands of disks
    /// take memory for what they use.
    luns: RefCell<Vec<Option<Rc<ItlNexus>>>>,
}

/// The disks of a target, by LUN.
pub(crate) type Units = RefCell<BTreeMap<u16, Rc<LogicalUnit>>>;

impl Nexus {
    pub(crate) fn new(name: NexusName, group: u16, units: Rc<Units>) -> Self {
        Self { name, tasks: TaskSet::default(), copies: Copies::default(), group, units, luns: RefCell::default() }
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

    /// The same, for a disk that it has addressed.
    pub(crate) fn known(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        self.luns.borrow().get(usize::from(lun)).cloned().flatten()
    }

    #[cold]
    fn first_itl(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        let lu = self.units.borrow().get(&lun)?.clone();
        let itl = Rc::new(ItlNexus::new(lu, &self.name, self.group, Some(Asc::POWER_ON_OR_RESET)));
        self.set(lun, Some(itl.clone()));
        Some(itl)
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
        let meant: Vec<u16> = self.units.borrow().iter().filter(|(_, lu)| is_meant(lu)).map(|(lun, _)| *lun).collect();
        meant.into_iter().find_map(|lun| self.itl(lun))
    }

    /// Runs `what` for each disk, in the order of their numbers.
    pub(crate) fn each(&self, mut what: impl FnMut(&ItlNexus)) {
        let all: Vec<u16> = self.units.borrow().keys().copied().collect();
        all.into_iter().filter_map(|lun| self.itl(lun)).for_each(|itl| what(&itl));
    }
}
