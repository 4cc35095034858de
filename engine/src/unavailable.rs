//! Volumes whose stores are unavailable: at a start, or since their device or file system went away. Such a volume
//! stays a logical unit and a namespace with its identity and its reservations; no target port group reaches it. Its
//! store is served again by itself only if it is certainly the one before; else an operator accepts it.
//!
//! The control thread makes the changes here. The checks that may wait for a disk run in threads of their own: see
//! [`crate::returning_stores`].

use crate::answer::block_on;
use crate::answering::{answers, ask_all};
use crate::backend::{self, Backend, Fingerprint};
use crate::core_set::core::Opening;
use crate::engine::Engine;
use crate::error::{EngineError, IdentityError};
use crate::placed::PlacedVolume;
use crate::transaction::{Step, Transaction};
use crate::volume::remembered::RememberedStore;
use crate::volume::{Volume, VolumeContext};
use lunar_control::api::TroubleView;
use lunar_control::apply::{Running, TargetError};
use lunar_control::kind::Kind;
use lunar_control::live::{Later, StoreNotAccepted};
use lunar_control::plan::{Action, Change, ObjectId, Plan};
use lunar_control::section::Effect;
use lunar_control::trouble::TroubleCode;
use lunar_control::{Checked, common_sections};
use lunar_core::metadata::Saving;
use lunar_core::unit::UnitId;
use lunar_reactor::log;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// A volume whose store is unavailable.
#[derive(Clone, Debug)]
pub(crate) struct Lack {
    /// The reason, in words.
    why: String,
    /// Commands that show the reason.
    inspection: String,
    /// Seconds since the beginning of 1970.
    since: u64,
    /// It went away while it was served with a write cache.
    may_have_lost_writes: bool,
    /// The finding at its place, if that is not certainly the store.
    found: Option<Found>,
}

/// The finding at the place of a store that was unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The store that was served before.
    Same,
    /// A store that is certainly another one.
    Other,
    /// A store that cannot be told from others.
    Unknown,
}

impl Found {
    /// Compares the store that was remembered with the one that was found.
    #[must_use]
    pub fn compare(remembered: Option<&Fingerprint>, found: Option<&Fingerprint>) -> Self {
        match (remembered, found) {
            (Some(remembered), Some(found)) if remembered.mark != found.mark => Self::Other,
            (Some(Fingerprint { origin: Some(known), .. }), Some(Fingerprint { origin: Some(found), .. })) => {
                if known == found { Self::Same } else { Self::Other }
            }
            _ => Self::Unknown,
        }
    }
}

/// Where the store of a volume may be again.
#[derive(Clone)]
pub struct Place {
    /// The volume.
    pub name: Arc<str>,
    pub(crate) backend: &'static dyn Backend,
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) remembered: Option<Fingerprint>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({}, {})", self.name, self.path.display())
    }
}

impl Place {
    /// Looks at the place, which may take as long as the disk takes; `None`: nothing can be opened there.
    #[must_use]
    pub fn look(&self) -> Option<Found> {
        self.backend.is_there(&self.path).then(|| {
            let found = self.backend.fingerprint(&self.path, self.read_only);
            Found::compare(self.remembered.as_ref(), found.as_ref())
        })
    }
}

impl Engine {
    /// Serves a volume without its store: it was served before, and its store cannot be opened now. Returns whether
    /// that is possible: its store was remembered.
    pub(crate) fn stand_in(
        &mut self,
        tx: &mut Transaction,
        change: &Change,
        wanted: &Checked,
        why: &dyn fmt::Display,
    ) -> Result<bool, EngineError> {
        let name = change.object.name.as_str();
        if change.object.kind == Kind::Pool {
            log!(error, "pool {name}: hosts cannot create volumes there: {why}");
            return Ok(true);
        }
        let Some(model) = wanted.config.volumes.get(name) else { return Ok(false) };
        let host = self.host().clone();
        let context = VolumeContext {
            backends: self.registry.backends,
            state: host.state(),
            origin: &self.core_set().shared().origin.clone(),
            previous: None,
            creates: false,
            known: None,
            is_return: false,
        };
        let Some(volume) = Volume::without_store(name, model, &context).map_err(EngineError::Volume)? else {
            return Ok(false);
        };
        let placed = self.new_unit(name, volume, model)?;
        self.core_set().shared().units.begin_without_store(placed.unit);
        let PlacedVolume { unit, volume, medium, tally, .. } = placed.clone();
        let ticket = self.ticket();
        if let Err(why) = self.core_set().open(&Opening { ticket, unit, volume, medium, tally }) {
            self.give_back(unit);
            return Err(why);
        }
        let remembered = RememberedStore::load(&**placed.volume.metadata());
        let may_have_lost_writes = remembered.is_some_and(|store| store.may_have_lost_writes);
        self.lack(name, why.to_string(), may_have_lost_writes, wanted);
        self.lacks.get(name).iter().for_each(|lack| log!(error, "{}", trouble(name, lack)));
        tx.add(change.clone(), Step::Volume { ticket, placed: Arc::new(placed) });
        Ok(true)
    }

    fn lack(&mut self, name: &str, why: String, may_have_lost_writes: bool, wanted: &Checked) {
        let since = self.host().wall_clock() / 1000;
        let model = wanted.config.volumes.get(name);
        let inspection = model.and_then(|model| {
            let backend = backend::find(self.registry.backends, model.kind.word())?;
            Some(backend.inspection(model.place()?))
        });
        let inspection = inspection.unwrap_or_default();
        self.lacks.insert(name.into(), Lack { why, inspection, since, may_have_lost_writes, found: None });
        self.store_wake.wake();
    }

    /// Refuses to open a store that is not certainly the one that was served before, where that matters: at a start, if
    /// it is certainly another one; afterwards, while the store of the volume is unavailable. Returns the fingerprint
    /// of the store that is remembered: once it is open, another one may be at its path.
    pub(crate) fn check_same_store(
        &self,
        name: &str,
        model: &common_sections::Volume,
        context: &VolumeContext<'_>,
    ) -> Result<Option<Fingerprint>, EngineError> {
        let lack = self.lacks.get(name);
        let is_first = context.previous.is_none() && !context.creates;
        if self.accepting.as_deref() == Some(name) || lack.is_none() && !is_first {
            return Ok(None);
        }
        let Some((remembered, _)) = Volume::remembered(model, context) else { return Ok(None) };
        let (Some(backend), Some(path)) = (backend::find(context.backends, model.kind.word()), model.place()) else {
            return Ok(None);
        };
        if remembered.may_have_lost_writes || lack.is_some_and(|lack| lack.may_have_lost_writes) {
            return Err(IdentityError::MayHaveLostWrites(path.to_owned(), name.to_owned()).into());
        }
        let found = backend.fingerprint(path, model.read_only);
        let known = remembered.fingerprint;
        let is_refused = match lack {
            Some(_) => Found::compare(known.as_ref(), found.as_ref()) != Found::Same,
            // A copy that was restored from a backup has no mark.
            None => known.as_ref().zip(found).is_some_and(|(known, found)| known.mark != found.mark),
        };
        match is_refused {
            true => Err(IdentityError::Another(path.to_owned(), name.to_owned()).into()),
            false => Ok(known),
        }
    }

    /// Remembers the store of a volume that is served: see [`RememberedStore::keep`].
    pub(crate) fn remember_store(&self, placed: &PlacedVolume) -> Option<Saving> {
        let store = placed.volume.opened().store().filter(|_| placed.place.is_some())?;
        let backend = backend::find(self.registry.backends, placed.kind.word())?;
        if backend.durability() != backend::Durability::Durable || self.core_set().shared().origin.is_command_line() {
            return None;
        }
        let (fingerprint, traits) = (store.fingerprint(), store.traits().clone());
        let store = RememberedStore { fingerprint, traits, may_have_lost_writes: false };
        store.keep(&**placed.volume.metadata())
    }

    /// Sets whether the stores of units are available, on all cores.
    pub(crate) fn set_store_available(&self, units: Vec<UnitId>, is_available: bool, wanted: &Checked) {
        if units.is_empty() {
            return;
        }
        let groups = wanted.config.portal_groups.values().map(|group| group.tag.get() as u16);
        // Virtual machines and other local clients are in group 0, which no portal group has.
        let groups: BTreeSet<u16> = groups.chain(self.shape.ports.iter().map(|port| port.group)).chain([0]).collect();
        let groups: Vec<u16> = groups.into_iter().collect();
        let set = self.core_set().cores().ask(0, move |core| async move {
            for unit in units {
                core.units.set_store_available(unit, is_available, groups.clone()).await;
            }
            if is_available {
                // FORMAT UNIT or SANITIZE may have been in progress when the store was served last.
                core.units.resume(core.reactor.arena());
            }
        });
        set.wait();
    }

    /// Whether a store is unavailable: its place is looked at from time to time.
    #[must_use]
    pub fn has_unavailable_stores(&self) -> bool {
        !self.lacks.is_empty()
    }

    /// Receives a wake-up when there is something to do for [`Engine::look_after_stores`]; `None` after the first call.
    pub fn store_wake_ups(&mut self) -> Option<Receiver<()>> {
        self.store_wake_ups.take()
    }

    /// Tells the clients of volumes when the space of their pools falls below the soft threshold.
    fn report_low_space(&mut self) {
        let low = self.health.low_space();
        let mut told = Vec::new();
        for (name, placed) in &self.volumes {
            placed.medium.set_low_space(low.get(name).copied());
            if low.contains_key(name) && !self.low_on_space.contains(name) {
                told.push(placed.unit);
            }
        }
        self.low_on_space = low.into_keys().collect();
        if !told.is_empty() {
            // Nothing waits for it.
            drop(self.core_set().cores().ask(0, move |core| async move {
                for unit in told {
                    core.target.report_low_space(unit).await;
                    core.subsystem.report_low_space(unit);
                }
            }));
        }
    }

    /// Looks at the findings about the stores that are served, without waiting for any disk: the units of those that
    /// went away are not ready any more. Returns the places where unavailable stores may be again.
    pub fn look_after_stores(&mut self, wanted: &Checked) -> Vec<Place> {
        self.report_low_space();
        let gone = self.health.gone();
        let (mut lost, mut back, mut resized) = (Vec::new(), Vec::new(), Vec::new());
        for (name, placed) in self.volumes.clone() {
            // The device of a forwarded logical unit says by itself whether it is ready.
            let Some(traits) = placed.volume.opened().store().map(|store| store.traits().clone()) else { continue };
            let has_other_size = placed.volume.opened().store().is_some_and(|store| store.has_other_size());
            match (gone.get(&name), self.lacks.get(&name)) {
                (None, None) if has_other_size => resized.push(name),
                (Some(words), None) => {
                    log!(error, "volume {name} is not ready: {words}");
                    let may_have_lost_writes = traits.write_cache && !traits.read_only;
                    if may_have_lost_writes {
                        RememberedStore::mark_lost_writes(&**placed.volume.metadata());
                    }
                    self.lack(&name, words.clone(), may_have_lost_writes, wanted);
                    lost.push(placed.unit);
                }
                (None, Some(lack)) if !placed.volume.is_without_store() && !lack.may_have_lost_writes => {
                    log!("volume {name}: the store answers again");
                    self.lacks.remove(&name);
                    back.push(placed.unit);
                }
                _ => {}
            }
        }
        self.set_store_available(lost, false, wanted);
        self.set_store_available(back, true, wanted);
        for name in resized {
            match self.serve_store(&name, wanted) {
                Ok(()) => log!("volume {name}: its store has another size, which hosts see from now on"),
                Err(why) => log!(error, "volume {name}: its store has another size, which cannot be served: {why}"),
            }
        }
        self.lacks.keys().filter_map(|name| self.place_of(name, wanted)).collect()
    }

    /// Looks for the stores of volumes that are unavailable, because the operator asks for it.
    pub(crate) fn look_for_stores(&mut self, wanted: &Checked) {
        let places = self.look_after_stores(wanted);
        ask_all(places.iter().map(|place| place.path.as_path()));
        for place in places {
            if answers(&place.path) {
                self.store_found(&place.name, place.look(), wanted);
            }
        }
    }

    fn place_of(&self, name: &Arc<str>, wanted: &Checked) -> Option<Place> {
        let model = wanted.config.volumes.get(&**name)?;
        let backend = backend::find(self.registry.backends, model.kind.word())?;
        let placed = self.volumes.get(name)?;
        let remembered = RememberedStore::load(&**placed.volume.metadata())?.fingerprint;
        let (path, read_only) = (model.place()?.to_owned(), placed.volume.is_read_only());
        Some(Place { name: name.clone(), backend, path, read_only, remembered })
    }

    /// The store of a volume was looked for: serves it if it is certainly the one before, and remembers the finding for
    /// the operator otherwise.
    pub fn store_found(&mut self, name: &str, found: Option<Found>, wanted: &Checked) {
        let Some(lack) = self.lacks.get_mut(name) else { return };
        if found == Some(Found::Same) && !lack.may_have_lost_writes {
            match self.serve_store(name, wanted) {
                Ok(()) => log!("volume {name}: its store is back and is served"),
                Err(why) => {
                    let why = why.to_string();
                    if let Some(lack) = self.lacks.get_mut(name).filter(|lack| lack.why != why) {
                        log!(error, "volume {name}: its store is back, and cannot be opened: {why}");
                        lack.why = why;
                    }
                }
            }
        } else if lack.found != found {
            lack.found = found;
            log!(error, "{}", trouble(name, lack));
        }
    }

    /// Finds out whether the place of the store of a volume answers, which may take long.
    pub(crate) fn store_answers(&self, name: &str, wanted: &Checked) -> Later<Result<(), StoreNotAccepted>> {
        let path = wanted.config.volumes.get(name).and_then(|volume| volume.path.as_ref());
        let path = path.map(|path| path.path().to_owned()).filter(|_| self.host().has_threads());
        Box::new(move || match path {
            Some(path) if !answers(&path) => {
                Err(StoreNotAccepted::Refused(TargetError::new(EngineError::NoAnswer(path))))
            }
            _ => Ok(()),
        })
    }

    /// Serves the store that is at the place of a volume now, because an operator says that it is the right one.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn accept_store(&mut self, name: &str, wanted: &Checked) -> Result<(), StoreNotAccepted> {
        if !self.volumes.contains_key(name) {
            return Err(StoreNotAccepted::NoVolume);
        }
        if !self.lacks.contains_key(name) {
            return Err(StoreNotAccepted::IsServed);
        }
        self.accepting = Some(name.into());
        let served = self.serve_store(name, wanted);
        self.accepting = None;
        let kept = served.and_then(|()| {
            // A restart serves the store, too: the operator is answered when the record is on the medium.
            let saving = self.volumes.get(name).and_then(|placed| self.remember_store(placed));
            saving.map_or(Ok(()), block_on).map_err(|why| IdentityError::AcceptanceNotKept(name.to_owned(), why).into())
        });
        kept.map_err(|why| StoreNotAccepted::Refused(TargetError::new(why)))
    }

    /// Opens the store of a volume again and serves it as the same unit.
    fn serve_store(&mut self, name: &str, wanted: &Checked) -> Result<(), EngineError> {
        // A missing file is not created.
        self.expect([name.to_owned()].into());
        let change = Change {
            object: ObjectId::volume(name),
            action: Action::Change(Vec::new()),
            words: format!("serve the store of volume {name}"),
            effect: Effect::Attention,
            targets: Vec::new(),
            hosts: Vec::new(),
        };
        let plan = Plan { changes: vec![change.clone()], ..Plan::default() };
        let mut transaction = self.begin(&plan, wanted)?;
        let outcome = self.open(&transaction, name, true, wanted);
        self.expect(BTreeSet::new());
        match outcome {
            Ok(step) => {
                transaction.add(change, step);
                self.commit(transaction, &plan, wanted);
                Ok(())
            }
            Err(why) => {
                self.roll_back(transaction);
                Err(why)
            }
        }
    }

    /// The troubles of volumes without their stores.
    pub(crate) fn store_troubles(&self) -> impl Iterator<Item = TroubleView> {
        self.lacks.iter().map(|(name, lack)| trouble(name, lack))
    }
}

/// The trouble of a volume without its store.
fn trouble(name: &str, lack: &Lack) -> TroubleView {
    let accept = format!("lunar volume accept {name}");
    let (finding, remedy) = match (lack.may_have_lost_writes, lack.found) {
        (true, Some(_)) => (
            "; a store is at its place again, and writes that no flush confirmed may be missing in it",
            format!("check the file systems of the clients, then `{accept}`"),
        ),
        (_, Some(Found::Other)) => {
            ("; another store is at its place", format!("put the right one there; if it is the right one, `{accept}`"))
        }
        (_, Some(Found::Unknown)) => {
            ("; a store is at its place that cannot be told from others", format!("if it is the right one, `{accept}`"))
        }
        (true, None) => (
            "; writes that no flush confirmed may be missing in its store",
            format!("make it available ({}), then `{accept}`", lack.inspection),
        ),
        (false, _) => ("", format!("make it available ({}): it is served by itself then", lack.inspection)),
    };
    TroubleView {
        kind: TroubleCode::Unavailable.word(),
        subject: format!("volume {name}"),
        since: lack.since,
        words: format!("clients find it not ready: {}{finding}", lack.why),
        remedy,
    }
}
