//! I_T nexuses and I_T_L nexuses: the view that one initiator port has of the logical units.

use crate::attention::Attentions;
use crate::buffers::Buffers;
use crate::copy::results::Copies;
use crate::lu::{Emulated, LogicalUnit};
use crate::lun::Lun;
use crate::lun_map::{LunMap, Mapping};
use crate::medium::MediaEvent;
use crate::order::Order;
use crate::sense::{Asc, Sense};
use crate::task::TaskSet;
use lunar_core::counters::Counters;
use lunar_core::hosts::HostSession;
use lunar_core::port::NexusName;
use lunar_core::task::Moment;
use lunar_unit::AccessState;
use lunar_unit::capacity::UnreadCapacity;
use lunar_unit::reserve::Held;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The unit attention conditions that were established so far at all logical units of a nexus. A transport that reports
/// changes without being asked waits for them.
#[derive(Debug, Default)]
pub struct AttentionWatch {
    established: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl AttentionWatch {
    fn count(&self) {
        self.established.set(self.established.get() + 1);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// The number of them.
    #[must_use]
    pub fn established(&self) -> u64 {
        self.established.get()
    }

    /// Waits until there are more than this.
    pub async fn until_more(&self, established: u64) {
        poll_fn(|cx| {
            if self.established.get() > established {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// An I_T_L nexus: the view that one nexus has of one logical unit.
#[derive(Debug)]
pub struct ItlNexus {
    /// The logical unit.
    pub lu: Rc<LogicalUnit>,
    /// The LUN by which the nexus addresses it.
    pub lun: u16,
    /// Whether the nexus must not write it.
    read_only: bool,
    /// The order of its commands.
    pub order: Order,
    /// Its data buffers: READ BUFFER and WRITE BUFFER.
    pub buffers: Buffers,
    /// The media event that GET EVENT STATUS NOTIFICATION reports next.
    pub event: Cell<MediaEvent>,
    /// Whether it has taken a device that one nexus at a time has: see [`crate::forwarding`].
    pub(crate) possesses: Cell<bool>,
    attentions: Attentions,
    /// A new capacity that it has not read.
    unread_capacity: RefCell<Option<UnreadCapacity>>,
    watch: Rc<AttentionWatch>,
    held: Cell<Held>,
    access: Cell<AccessState>,
    /// Whether no state of it stops a command: no unit attention condition, no reservation of another nexus, active
    /// access, not read-only.
    clear: Cell<bool>,
}

impl ItlNexus {
    /// The first view that a nexus has of a logical unit, which it addresses by `lun`; with a unit attention condition.
    fn new(lu: Rc<LogicalUnit>, nexus: &Nexus, lun: u16, read_only: bool, attention: Option<Asc>) -> Self {
        let held = lu.shared.reservations().held(&nexus.name);
        let itl = Self::under(lu, (lun, read_only), held, nexus.group, nexus.watch.clone());
        attention.into_iter().for_each(|asc| itl.establish_unit_attention(asc));
        itl
    }

    fn under(
        lu: Rc<LogicalUnit>,
        (lun, read_only): (u16, bool),
        held: Held,
        group: u16,
        watch: Rc<AttentionWatch>,
    ) -> Self {
        let access = Cell::new(lu.access(group).state);
        let itl = Self {
            lu,
            lun,
            read_only,
            order: Order::default(),
            buffers: Buffers::default(),
            event: Cell::default(),
            possesses: Cell::default(),
            attentions: Attentions::default(),
            unread_capacity: RefCell::default(),
            watch,
            held: Cell::new(held),
            access,
            clear: Cell::new(true),
        };
        itl.refresh();
        itl
    }

    /// The same with another view of the logical unit.
    pub(crate) fn with_lu(&self, lu: Rc<LogicalUnit>, group: u16) -> Self {
        let itl = Self::under(lu, (self.lun, self.read_only), self.held.get(), group, self.watch.clone());
        while let Some(sense) = self.attentions.take() {
            itl.attentions.add(sense.asc);
        }
        itl.event.set(self.event.get());
        itl.unread_capacity.replace(self.unread_capacity.take());
        itl.refresh();
        itl
    }

    /// The logical unit, if Lunar emulates it.
    ///
    /// # Errors
    /// INVALID COMMAND OPERATION CODE if it is forwarded: it has no command that needs an emulated one.
    #[inline]
    pub(crate) fn emulated(&self) -> Result<&Emulated, Sense> {
        self.lu.emulated().ok_or(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE))
    }

    /// Establishes a unit attention condition.
    pub fn establish_unit_attention(&self, asc: Asc) {
        self.attentions.add(asc);
        self.refresh();
        self.watch.count();
    }

    /// The capacity has changed: establishes the unit attention condition that says so.
    pub(crate) fn resized(&self, nexus: &NexusName) {
        self.unread_capacity.replace(Some(self.lu.shared.capacity_changed(&nexus.initiator)));
        self.establish_unit_attention(Asc::CAPACITY_DATA_CHANGED);
    }

    /// The nexus has read the capacity.
    pub(crate) fn capacity_read(&self) {
        drop(self.unread_capacity.take());
    }

    /// Takes the unit attention condition that is reported next.
    pub fn take_attention(&self) -> Option<Sense> {
        let sense = self.attentions.take();
        self.refresh();
        sense
    }

    /// Clears a unit attention condition.
    pub fn forget_attention(&self, asc: Asc) {
        self.attentions.forget(asc);
        self.refresh();
    }

    /// The unit attention condition that is reported next, and the number of all.
    #[must_use]
    pub fn attention(&self) -> Option<(Asc, usize)> {
        self.attentions.peek()
    }

    /// How a reservation restricts it.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    /// Sets how a reservation restricts it.
    pub fn set_held(&self, held: Held) {
        self.held.set(held);
        self.refresh();
    }

    /// Its asymmetric access state.
    #[must_use]
    pub fn access(&self) -> AccessState {
        self.access.get()
    }

    /// Sets its asymmetric access state.
    pub fn set_access(&self, state: AccessState) {
        self.access.set(state);
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
        let active = self.access.get().is_active();
        let free = self.attentions.is_empty() && self.held.get() == Held::None;
        self.clear.set(free && active && !self.read_only);
    }
}

/// The logical unit that a LUN addresses.
#[derive(Clone, Debug)]
pub enum Addressee {
    /// A logical unit, with the view that the nexus has of it.
    Unit(Rc<ItlNexus>),
    /// The well-known logical unit REPORT LUNS.
    WellKnown,
    /// The LUN has no logical unit.
    NoUnit,
}

impl Addressee {
    /// The counters of a command of this nexus.
    #[inline]
    pub(crate) fn counters<'a>(&'a self, nexus: &'a Nexus) -> Counters<'a> {
        Counters { unit: self.itl().map(|itl| itl.lu.tally()), host: nexus.host.get() }
    }

    /// The view that the nexus has of the logical unit; `None` for the well-known one and for none.
    #[inline]
    pub(crate) fn itl(&self) -> Option<&Rc<ItlNexus>> {
        match self {
            Self::Unit(itl) => Some(itl),
            Self::WellKnown | Self::NoUnit => None,
        }
    }
}

/// A LUN that named this unit before this moment. Tasks that were entered then may still be in progress.
#[derive(Clone, Copy, Debug)]
struct Former {
    lun: u16,
    unit: u16,
    before: Moment,
}

/// An I_T nexus: an initiator port and a target port. Dropping it ends it; see also
/// [`Target::close`](crate::Target::close).
#[derive(Debug)]
pub struct Nexus {
    /// Its names.
    pub name: NexusName,
    /// Its tasks.
    pub tasks: TaskSet,
    /// The counters of its host; a transport that counts its hosts sets it.
    pub host: OnceCell<HostSession>,
    /// Its third-party copies.
    pub(crate) copies: Copies,
    /// LUNs whose tasks are at units that the LUN does not name any more.
    former: RefCell<Vec<Former>>,
    /// The target port group of its target port.
    pub group: u16,
    /// The logical units of the target.
    units: Rc<Units>,
    /// The name of its LUN map; without one it sees all logical units by their own numbers.
    pub(crate) map_name: Option<Arc<str>>,
    /// Its unit attention conditions so far.
    pub watch: Rc<AttentionWatch>,
    map: RefCell<Option<Rc<LunMap>>>,
    /// Its view of each logical unit that it has addressed, by LUN: thousands of sessions to thousands of logical units
    /// take memory for those that they use.
    luns: RefCell<Vec<Option<Rc<ItlNexus>>>>,
}

/// The logical units of a target, by number.
pub(crate) type Units = RefCell<BTreeMap<u16, Rc<LogicalUnit>>>;

impl Nexus {
    pub(crate) fn new(name: NexusName, group: u16, units: Rc<Units>, map: Option<(Arc<str>, Rc<LunMap>)>) -> Self {
        let (map_name, map) = map.unzip();
        Self {
            name,
            tasks: TaskSet::default(),
            host: OnceCell::new(),
            copies: Copies::default(),
            former: RefCell::default(),
            group,
            units,
            map_name,
            watch: Rc::default(),
            map: RefCell::new(map),
            luns: RefCell::default(),
        }
    }

    /// The LUNs of the logical units that it sees, in ascending order.
    #[must_use]
    pub fn luns(&self) -> Vec<u16> {
        let mut luns = Vec::new();
        self.each(|itl| luns.push(itl.lun));
        luns
    }

    /// The addressee of a LUN.
    #[must_use]
    pub fn addressee(&self, lun: Lun) -> Addressee {
        match lun.number().and_then(|number| self.itl(number)) {
            Some(itl) => Addressee::Unit(itl),
            None if lun == Lun::REPORT_LUNS => Addressee::WellKnown,
            None => Addressee::NoUnit,
        }
    }

    /// Its view of the logical unit of this LUN. One that was not addressed yet has a POWER ON unit attention
    /// condition.
    #[must_use]
    pub fn itl(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        self.known(lun).or_else(|| self.first_itl(lun))
    }

    /// Its view of the logical unit that has this number at the target, if it sees that.
    #[must_use]
    pub fn itl_of(&self, unit: u16) -> Option<Rc<ItlNexus>> {
        self.itl(self.lun_of(unit)?)
    }

    /// The LUN by which it addresses the logical unit that has this number at the target.
    #[must_use]
    pub fn lun_of(&self, unit: u16) -> Option<u16> {
        self.map.borrow().as_ref().map_or(Some(unit), |map| map.lun_of(unit))
    }

    /// Its view of the logical unit of this LUN, if it has addressed it.
    pub(crate) fn known(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        self.luns.borrow().get(usize::from(lun)).cloned().flatten()
    }

    #[cold]
    fn first_itl(&self, lun: u16) -> Option<Rc<ItlNexus>> {
        let itl = Rc::new(self.fresh(lun, Some(Asc::POWER_ON_OR_RESET))?);
        self.set(lun, Some(itl.clone()));
        Some(itl)
    }

    /// A first view of the logical unit of this LUN: the one place that translates a LUN.
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

    /// Replaces its LUN map; returns the LUNs that name another unit now, or none. Its views of their units are
    /// dropped. A unit attention condition at all others reports the changed inventory, and one at a LUN that it has
    /// addressed, and that names another unit now, reports that the INQUIRY data are others (SPC-4 5.14).
    pub(crate) fn set_map(&self, map: Rc<LunMap>) -> Vec<u16> {
        let old = self.map.replace(Some(map.clone()));
        let was = |lun| old.as_ref().map_or(Some(Mapping { unit: lun, read_only: false }), |old| old.mapping(lun));
        let known = 0..u16::try_from(self.luns.borrow().len()).unwrap_or(u16::MAX);
        let changed: Vec<u16> = known.filter(|lun| was(*lun) != map.mapping(*lun)).collect();
        for lun in &changed {
            let is_other = was(*lun).map(|old| old.unit) != map.mapping(*lun).map(|new| new.unit);
            let is_exchanged = is_other && self.known(*lun).is_some();
            let view = self.fresh(*lun, Some(Asc::POWER_ON_OR_RESET)).filter(|_| is_exchanged);
            view.iter().for_each(|itl| itl.establish_unit_attention(Asc::INQUIRY_DATA_CHANGED));
            self.set(*lun, view.map(Rc::new));
        }
        let before = self.tasks.moment();
        let former = |lun: &u16| Some(Former { lun: *lun, unit: was(*lun)?.unit, before });
        self.former.borrow_mut().extend(changed.iter().filter_map(former));
        if old.as_ref() != Some(&map) {
            self.each(|itl| itl.establish_unit_attention(Asc::REPORTED_LUNS_DATA_CHANGED));
        }
        changed
    }

    /// The tasks that were in progress when the map was replaced, at this moment, have ended.
    pub(crate) fn forget_former(&self, moment: Moment) {
        self.former.borrow_mut().retain(|former| former.before != moment);
    }

    /// Whether a task of it is at the unit of this number.
    pub(crate) fn is_at(&self, unit: u16, task: Lun) -> bool {
        task.number().is_some_and(|lun| self.lun_of(unit) == Some(lun))
    }

    /// Aborts its tasks at these units; returns the number of those that were not aborted before.
    pub(crate) fn abort_at(&self, units: &[u16]) -> u64 {
        self.copies.stop_writing(units);
        let former =
            self.former.borrow().iter().filter(|former| units.contains(&former.unit)).fold(0, |count, former| {
                count + self.tasks.abort_before(former.before, |(_, lun)| lun.number() == Some(former.lun))
            });
        former + self.tasks.abort(|(_, task)| units.iter().any(|unit| self.is_at(*unit, task)))
    }

    /// Waits until the tasks that it has aborted so have ended.
    pub(crate) async fn until_gone_at(&self, units: &[u16]) {
        self.copies.until_stopped(units).await;
        let former: Vec<Former> =
            self.former.borrow().iter().copied().filter(|former| units.contains(&former.unit)).collect();
        for Former { lun, before, .. } in former {
            self.tasks.until_left(before, |(_, task)| task.number() == Some(lun)).await;
        }
        self.tasks.until_gone(|(_, task)| units.iter().any(|unit| self.is_at(*unit, task))).await;
    }

    pub(crate) fn set(&self, lun: u16, itl: Option<Rc<ItlNexus>>) {
        let mut luns = self.luns.borrow_mut();
        let at = usize::from(lun);
        if luns.len() <= at {
            luns.resize(at + 1, None);
        }
        luns[at] = itl;
    }

    /// The first logical unit, of the ones that it sees, that `is_meant` selects.
    pub(crate) fn seek(&self, is_meant: impl Fn(&LogicalUnit) -> bool) -> Option<Rc<ItlNexus>> {
        let meant: Vec<u16> =
            self.units.borrow().iter().filter(|(_, lu)| is_meant(lu)).map(|(unit, _)| *unit).collect();
        meant.into_iter().find_map(|unit| self.itl_of(unit))
    }

    /// Calls `visit` for each logical unit that it sees, in the order of their LUNs.
    pub(crate) fn each(&self, mut visit: impl FnMut(&ItlNexus)) {
        let all: Vec<u16> = match &*self.map.borrow() {
            Some(map) => map.luns().map(|(lun, _)| lun).collect(),
            None => self.units.borrow().keys().copied().collect(),
        };
        all.into_iter().filter_map(|lun| self.itl(lun)).for_each(|itl| visit(&itl));
    }
}
