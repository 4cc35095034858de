//! The state that all shelves of a core share.

use super::common::Common;
use super::job::Job;
use super::volume::Volume;
use crate::limits::SLOTS;
use lunar_blk::BlockSet;
use lunar_core::mem::{Buf, PAGE, Slice};
use lunar_core::step::SlotContext;
use lunar_core::unit::{Unit, UnitId};
use lunar_engine::core_set::context::CoreContext;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of memory for the header of an answer: a cache line.
const CHUNK: usize = 64;

/// The state that all shelves of a core share.
pub(super) struct Core {
    pub(super) context: CoreContext,
    pub(super) common: Arc<Common>,
    pub(super) set: Rc<BlockSet>,
    pub(super) slots: Slots<Job>,
    volumes: RefCell<BTreeMap<UnitId, Rc<Volume<Job>>>>,
    /// Commands in progress.
    pub(super) commands: Cell<usize>,
    /// Changes of slots and reservations in progress.
    pub(super) changes: Cell<usize>,
    numbers: Cell<u64>,
    /// Memory for headers of answers.
    chunks: RefCell<Option<Buf>>,
    pub(super) draining: End,
}

impl Core {
    pub(super) fn new(context: &CoreContext, common: &Arc<Common>) -> Rc<Self> {
        let reactor = &context.reactor;
        Rc::new(Self {
            set: BlockSet::new(reactor.stats().clone(), context.units.clone()),
            slots: Slots::new(reactor, SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await),
            context: context.clone(),
            common: common.clone(),
            volumes: RefCell::default(),
            commands: Cell::default(),
            changes: Cell::default(),
            numbers: Cell::default(),
            chunks: RefCell::default(),
            draining: End::default(),
        })
    }

    pub(super) fn reactor(&self) -> &Reactor {
        &self.context.reactor
    }

    /// A number that was not used before on this core.
    pub(super) fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    pub(super) fn volume(&self, unit: UnitId) -> Option<Rc<Volume<Job>>> {
        self.volumes.borrow().get(&unit).cloned()
    }

    /// Serves these units, with the views that the core has of them now. Returns those whose size has changed.
    pub(super) fn set_units(&self, units: &BTreeSet<UnitId>) -> BTreeSet<UnitId> {
        let mut resized = BTreeSet::new();
        for unit in units.iter().filter_map(|id| self.context.mesh.unit(*id)).filter(|unit| is_disk(unit)) {
            let known = self.volume(unit.id);
            if known.as_ref().is_some_and(|known| Rc::ptr_eq(&known.unit(), &unit)) {
                continue;
            }
            self.set.add_unit(unit.clone());
            match known {
                Some(known) if known.set_unit(&unit) => drop(resized.insert(unit.id)),
                Some(_) => {}
                None => drop(self.volumes.borrow_mut().insert(unit.id, Volume::new(&unit, &self.common))),
            }
        }
        resized
    }

    /// Stops serving all other units: their commands have `drain` to end.
    pub(super) async fn retain_units(&self, units: &BTreeSet<UnitId>) {
        let gone: Vec<UnitId> = self.volumes.borrow().keys().filter(|unit| !units.contains(unit)).copied().collect();
        for unit in gone {
            let drain = self.common.ports.shared.config.drain;
            self.set.remove_unit(unit, self.reactor().sleep(drain)).await;
            // Dropped after the map is free again: its waiting commands look for their volume there.
            let removed = self.volumes.borrow_mut().remove(&unit);
            drop(removed);
        }
    }

    /// A copy of the header of an answer, in a part of a page that answers share; `None` when memory is short.
    pub(super) fn chunk(&self, bytes: &[u8]) -> Option<Slice> {
        let mut chunks = self.chunks.borrow_mut();
        let mut page = match chunks.take().filter(|page| page.len() >= CHUNK) {
            Some(page) => page,
            None => self.reactor().arena().take(PAGE)?,
        };
        let mut chunk = page.split_to(CHUNK);
        *chunks = Some(page);
        drop(chunks);
        chunk.write(0, bytes);
        chunk.truncate(bytes.len());
        Some(chunk.share())
    }

    /// Runs a job whose turn has come in a task of its own: the slot of the job before is not free yet.
    pub(super) fn run_later(&self, job: Job) {
        let mut slot = SlotContext::timed(self.reactor().arena().clone(), self.reactor().stats());
        self.reactor().spawn(async move { job.run(&mut slot).await });
    }
}

/// Whether a unit can be a disk with sectors of ATA.
fn is_disk(unit: &Unit) -> bool {
    unit.geometry.block_size as usize == crate::wire::SECTOR
        && unit.medium.kind() == lunar_core::medium::MediumKind::Fixed
}
