//! A change of the configuration as a transaction: everything that can fail is prepared first, in the order of the
//! plan, and rolled back if anything fails.

use crate::access::{Accesses, accesses};
use crate::answering::{answers, ask_all};
use crate::backend::{Condition, Fingerprint, OpenedStore, StoreTrouble};
use crate::core_set::core::Opening;
use crate::engine::{Engine, PORT_PATIENCE};
use crate::error::{EngineError, IdentityError};
use crate::front::{Prepared, PrivateMap};
use crate::namespaces::{self, UnitsByName};
use crate::new_files::NewFiles;
use crate::placed::PlacedVolume;
use crate::published_config::{BoundPortal, PublishedConfig};
use crate::target_ports::FrontPort;
use crate::volume::{Volume, VolumeContext, VolumeError};
use lunar_control::Checked;
use lunar_control::Kind;
use lunar_control::apply::{Running, TargetError};
use lunar_control::common_sections;
use lunar_control::plan::{Action, Change, Plan};
use lunar_core::medium::Medium;
use lunar_core::tally::SharedTally;
use lunar_core::unit::UnitId;
use lunar_scsi::lun::LUNS_MAX;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Keys of a volume that change how its unit is served, and not which unit it is.
const SAME_UNIT: [&str; 6] = ["size", "read_only", "shared", "write_through", "direct", "revision"];

/// Keys of a volume that only NVMe hosts see: in their maps, and when they connect.
const OF_HOSTS: [&str; 4] = ["pool", "namespace", "private", "attached"];

/// Keys of a portal that determine its address.
const ADDRESS: [&str; 2] = ["address", "protocol"];

/// A change of the configuration in progress.
#[derive(Debug)]
pub struct Transaction {
    /// The access control after it.
    pub(crate) accesses: Accesses,
    /// Which volume is at which path before it.
    places: HashMap<PathBuf, Arc<str>>,
    /// Whether the participants are prepared.
    has_participants: bool,
    /// The steps that are prepared.
    steps: Vec<(Change, Step)>,
    /// The files that they created.
    new_files: NewFiles,
}

/// A step that is prepared.
pub(crate) enum Step {
    /// Nothing in it can fail.
    Nothing,
    /// A volume is open; the cores know it by the ticket.
    Volume { ticket: u64, placed: Arc<PlacedVolume> },
    /// A socket listens at an address.
    Portal {
        portal: BoundPortal,
        /// Our own portals that had to be closed for it.
        displaced: Vec<BoundPortal>,
        /// Whether it listened before.
        is_taken_over: bool,
    },
    /// The front of this index has prepared its step.
    Front(usize, Prepared),
    /// The participants are prepared.
    Participants,
}

impl Transaction {
    /// Adds a step that is prepared.
    pub(crate) fn add(&mut self, change: Change, step: Step) {
        self.steps.push((change, step));
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Volume { placed, .. } => write!(f, "Volume({:?})", placed.unit),
            Self::Portal { portal, .. } => write!(f, "Portal({})", portal.address),
            Self::Front(index, _) => write!(f, "Front({index})"),
            Self::Participants => f.write_str("Participants"),
        }
    }
}

/// The changes of a transaction, to be published to the cores.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub(crate) accesses: Accesses,
    pub(crate) has_participants: bool,
    /// Units to be served.
    pub(crate) tickets: Vec<u64>,
    /// Units that are not served any more.
    pub(crate) leaving: Vec<UnitId>,
    /// The UUIDs of volumes that are not served any more, and their units.
    pub(crate) left: Vec<([u8; 16], UnitId)>,
    /// Volumes that are other units than before.
    pub(crate) replaced: BTreeSet<String>,
    /// Units that are served for the first time.
    pub(crate) new: Vec<UnitId>,
    /// Units that are served in another shape.
    pub(crate) reshaped: Vec<UnitId>,
    /// Units that have another size, of these.
    pub(crate) resized: Vec<UnitId>,
    /// Units whose stores are available again.
    pub(crate) returned: Vec<UnitId>,
    /// Portals that are not wanted any more.
    pub(crate) closing: Vec<BoundPortal>,
}

impl Running for Engine {
    type Transaction = Transaction;
    type Error = EngineError;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.expected = volumes;
    }

    fn begin(&mut self, plan: &Plan, wanted: &Checked) -> Result<Transaction, EngineError> {
        // A unit number is free when its unit is removed.
        self.wait_until_final();
        let place = |(name, placed): (&Arc<str>, &Arc<PlacedVolume>)| Some((placed.place.clone()?, name.clone()));
        let places = self.volumes.iter().filter_map(place).collect();
        self.ask_file_systems(plan, wanted);
        let accesses = accesses(wanted)?;
        // Access control of NVM subsystems that would not protect is refused here.
        let private = self.private_maps(wanted);
        namespaces::directory(wanted, &accesses, (Vec::new(), &private), &self.histories)?;
        let host = self.host().clone();
        let added = self.front_ports(wanted);
        self.ports.provide(&wanted.config, &added, host.state())?;
        Ok(Transaction { accesses, places, has_participants: false, steps: Vec::new(), new_files: NewFiles::default() })
    }

    fn prepare(&mut self, transaction: &mut Transaction, change: &Change, wanted: &Checked) -> Result<(), EngineError> {
        let volume = wanted.config.volumes.get(&change.object.name).filter(|_| change.object.kind == Kind::Volume);
        let path = volume.and_then(|volume| volume.path.as_ref());
        let path = path.map(|path| path.path()).filter(|_| change.action != Action::Remove);
        path.map_or(Ok(()), |path| self.check_answer(path))?;
        let new_files = path.map(NewFiles::of_volume).unwrap_or_default();
        let step = self.prepare_step(transaction, change, wanted);
        if step.is_err() {
            new_files.remove();
            // A failed step may have locked a file already, and is not rolled back.
            let place = wanted.config.volumes.get(&change.object.name).and_then(|volume| volume.place());
            let touched = |(name, own): &(&Arc<str>, &Arc<PlacedVolume>)| {
                ***name == *change.object.name || place.is_some() && own.place.as_deref() == place
            };
            self.volumes.iter().filter(touched).for_each(|(_, own)| own.volume.finalize());
        } else {
            transaction.new_files.add(new_files);
        }
        transaction.has_participants |= matches!(step, Ok(Step::Participants));
        transaction.steps.push((change.clone(), step?));
        Ok(())
    }

    fn commit(&mut self, transaction: Transaction, _plan: &Plan, wanted: &Checked) {
        let Transaction { accesses, has_participants, steps, .. } = transaction;
        let mut committed = Committed { accesses, has_participants, ..Committed::default() };
        for (change, step) in steps {
            self.commit_step(&mut committed, &change, step);
        }
        self.publish(&committed, wanted);
        self.set_store_available(committed.returned, true, wanted);
    }

    fn prepare_unavailable(
        &mut self,
        transaction: &mut Transaction,
        change: &Change,
        wanted: &Checked,
        why: &TargetError,
    ) -> Result<bool, EngineError> {
        self.stand_in(transaction, change, wanted, why)
    }

    fn roll_back(&mut self, transaction: Transaction) {
        // The last step is rolled back first, because it may depend on earlier ones.
        for (change, step) in transaction.steps.into_iter().rev() {
            self.roll_back_step(&change, step);
        }
        transaction.new_files.remove();
    }

    fn repeat(&mut self, wanted: &Checked) {
        self.wait_until_final();
        self.look_for_stores(wanted);
        // The start of the transaction that put it in force has checked the access control.
        if let Ok(accesses) = accesses(wanted) {
            self.finalize_fronts(&Committed { accesses, ..Committed::default() }, wanted);
        }
    }
}

/// Whether acknowledged writes may be in a cache.
fn has_cache(volume: &Volume) -> bool {
    volume.opened().store().is_some_and(|store| store.traits().write_cache)
}

/// Whether a store is not certainly the one that is known, if one is.
fn is_another(store: Option<&Arc<dyn OpenedStore>>, known: Option<&Fingerprint>) -> bool {
    known.is_some() && store.and_then(|store| store.fingerprint()).as_ref() != known
}

/// Refuses to open the store of a unit again whose file was moved or deleted: another file would be opened or made.
fn check_place(own: &PlacedVolume, model: &common_sections::Volume) -> Result<(), IdentityError> {
    let is_elsewhere = |found: &StoreTrouble| matches!(found.condition, Condition::Moved | Condition::Deleted);
    match store_that_stays(own, model).and_then(|store| store.examine().into_iter().find(is_elsewhere)) {
        Some(StoreTrouble { words, remedy, .. }) => Err(IdentityError::Moved { words, remedy }),
        None => Ok(()),
    }
}

/// Whether a volume is at the place that this section says.
fn stays_at(placed: &PlacedVolume, model: &common_sections::Volume) -> bool {
    model.place().is_some() && placed.place.as_deref() == model.place()
}

/// The store of a volume that is served and stays at its place.
fn store_that_stays<'a>(placed: &'a PlacedVolume, model: &common_sections::Volume) -> Option<&'a Arc<dyn OpenedStore>> {
    placed.volume.opened().store().filter(|_| stays_at(placed, model))
}

impl Engine {
    /// Asks the file systems of the volumes that a plan opens, all at once.
    fn ask_file_systems(&self, plan: &Plan, wanted: &Checked) {
        let opened = plan.changes.iter().filter(|change| change.object.kind == Kind::Volume);
        let volumes = opened.filter_map(|change| wanted.config.volumes.get(&change.object.name));
        if self.host().has_threads() {
            ask_all(volumes.filter_map(|volume| Some(volume.path.as_ref()?.path())));
        }
    }

    /// Whether the file system of a path answers. The control thread opens no file without it.
    fn check_answer(&self, path: &Path) -> Result<(), EngineError> {
        match self.host().has_threads() && !answers(path) {
            true => Err(EngineError::NoAnswer(path.to_owned())),
            false => Ok(()),
        }
    }

    pub(crate) fn private_maps(&self, wanted: &Checked) -> Vec<PrivateMap> {
        self.core_set().shared().fronts().iter().flat_map(|front| front.private_maps(wanted)).collect()
    }

    fn prepare_step(&mut self, tx: &Transaction, change: &Change, wanted: &Checked) -> Result<Step, EngineError> {
        let name = &change.object.name;
        match (change.object.kind, &change.action) {
            (Kind::Volume, Action::Create) => self.open(tx, name, false, wanted),
            (Kind::Volume, Action::Change(fields)) if fields.iter().all(|field| OF_HOSTS.contains(field)) => {
                Ok(Step::Nothing)
            }
            (Kind::Volume, Action::Change(fields)) => {
                let is_same = fields.iter().all(|field| SAME_UNIT.contains(field) || OF_HOSTS.contains(field));
                self.open(tx, name, is_same, wanted)
            }
            (Kind::Portal, Action::Create) => self.listen(name, wanted),
            (Kind::Portal, Action::Change(fields)) if ADDRESS.iter().any(|field| fields.contains(field)) => {
                self.listen(name, wanted)
            }
            (Kind::Pool, Action::Create | Action::Change(_)) => self.check_pool(name, wanted),
            (Kind::Api | Kind::ApiListener | Kind::ApiToken | Kind::Logging | Kind::Server, _) => {
                self.prepare_participants(tx, wanted)
            }
            _ => self.prepare_fronts(tx, change, wanted),
        }
    }

    /// Prepares a step by the front that it concerns.
    fn prepare_fronts(&self, tx: &Transaction, change: &Change, wanted: &Checked) -> Result<Step, EngineError> {
        let Kind::Front(_) = change.object.kind else { return Ok(Step::Nothing) };
        let opened = tx.steps.iter().filter_map(|(change, step)| match step {
            Step::Volume { placed, .. } => Some((change.object.name.as_str().into(), placed.volume.identity().clone())),
            _ => None,
        });
        let identities = self.identities().into_iter().chain(opened).collect();
        for (index, front) in self.core_set().shared().fronts().iter().enumerate() {
            front.identify(&identities);
            if let Some(prepared) = front.prepare(&self.core_set().front_handle(index), change, wanted)? {
                return Ok(Step::Front(index, prepared));
            }
        }
        Ok(Step::Nothing)
    }

    /// Opens the volume of this name as the configuration says.
    pub(crate) fn open(
        &mut self,
        tx: &Transaction,
        name: &str,
        is_same: bool,
        wanted: &Checked,
    ) -> Result<Step, EngineError> {
        let model = wanted.config.volumes.get(name).ok_or(EngineError::NotConfigured)?;
        if let Some(path) = &model.path {
            self.host().allows_path(path.path()).map_err(EngineError::Path)?;
            self.check_answer(path.path())?;
        }
        let own = self.volumes.get(name).cloned();
        if let Some(own) = own.as_ref().filter(|own| is_same || stays_at(own, model)) {
            let (has, wanted) = (own.volume.size().unwrap_or(0), model.size.map_or(u64::MAX, |size| size.0));
            if wanted < has {
                return Err(EngineError::VolumeShrinks(has));
            }
        }
        // Another volume may be at this path until now; memory belongs to one volume only.
        let in_place = || self.volumes.get(tx.places.get(model.place()?)?);
        let before = own.as_ref().filter(|_| is_same).or_else(in_place);
        let context = VolumeContext {
            backends: self.registry.backends,
            state: self.host().state(),
            origin: &self.core_set().shared().origin,
            previous: before.map(|before| &before.volume),
            creates: !self.expected.contains(name),
            known: None,
            is_return: self.lacks.contains_key(name),
        };
        if let Some(own) = own.as_ref().filter(|_| is_same && !context.is_return) {
            check_place(own, model)?;
        }
        let remembered = self.check_same_store(name, model, &context)?;
        let stays = || store_that_stays(before?, model)?.fingerprint();
        let is_accepted = self.accepting.as_deref() == Some(name);
        let known = remembered.clone().or_else(|| stays().filter(|_| !is_accepted));
        let context = VolumeContext { known: known.as_ref(), ..context };
        let shown = context.origin.name("volume", name);
        let volume = Volume::configured(&shown, model, &context).map_err(EngineError::Volume)?;
        // The clients of a unit must not go on with other blocks.
        let expected = if context.is_return { remembered.as_ref() } else { known.as_ref().filter(|_| is_same) };
        if is_another(volume.opened().store(), expected) {
            let error = if context.is_return { IdentityError::Another } else { IdentityError::Replaced };
            return Err(error(model.place().map(Path::to_owned).unwrap_or_default(), name.to_owned()).into());
        }
        if let Some(own) = own.as_ref().filter(|own| is_same && has_cache(&own.volume) && !has_cache(&volume)) {
            self.flush(own.unit)?;
        }
        let about = context.origin.is_command_line().then_some(shown);
        let placed = match own.filter(|_| is_same) {
            Some(own) => {
                let (place, kind, medium_kind) = (model.place().map(Path::to_owned), model.kind, model.medium);
                let (unit, medium, tally) = (own.unit, own.medium.clone(), own.tally.clone());
                PlacedVolume { unit, volume, medium, tally, place, kind, medium_kind }
            }
            None => self.new_unit(name, volume, model).map_err(|why| why.about(about.as_deref()))?,
        };
        let PlacedVolume { unit, volume, medium, tally, .. } = placed.clone();
        let ticket = self.ticket();
        if let Err(why) = self.core_set().open(&Opening { ticket, unit, volume, medium, tally }) {
            if !is_same {
                self.give_back(unit);
            }
            return Err(why.about(about.as_deref()));
        }
        Ok(Step::Volume { ticket, placed: Arc::new(placed) })
    }

    /// Flushes a unit before it loses its write cache: later its clients flush nothing any more.
    fn flush(&self, unit: UnitId) -> Result<(), EngineError> {
        let flushed = self.core_set().cores().ask(0, move |core| async move { core.flush(unit).await });
        flushed.wait().ok_or(EngineError::CoreEnded)?.map_err(EngineError::NotFlushedBefore)
    }

    /// A unit for a volume that is not served yet, with the state that it had.
    pub(crate) fn new_unit(
        &mut self,
        name: &str,
        volume: Volume,
        model: &common_sections::Volume,
    ) -> Result<PlacedVolume, EngineError> {
        let unit = UnitId(self.units.take().ok_or(EngineError::TooManyVolumes(LUNS_MAX))?);
        let restored = self.core_set().shared().units.restore(unit, &**volume.metadata());
        let restored = restored.map_err(|why| EngineError::Volume(VolumeError::Reservations(why)));
        let medium = restored.and_then(|()| {
            let medium = Medium::restored(volume.medium(), &**volume.metadata());
            medium.map_err(|why| EngineError::Volume(VolumeError::UnreadableBlocks(why)))
        });
        let medium = medium.inspect_err(|_| self.give_back(unit))?;
        let tally = SharedTally::named(self.core_set().cores().count(), name);
        let (place, kind, medium_kind) = (model.place().map(Path::to_owned), model.kind, model.medium);
        Ok(PlacedVolume { unit, volume, medium, tally, place, kind, medium_kind })
    }

    /// Listens at the address of the portal of this name.
    fn listen(&mut self, name: &str, wanted: &Checked) -> Result<Step, EngineError> {
        let portal = wanted.config.portals.get(name).ok_or(EngineError::NotConfigured)?;
        let address = portal.address();
        let listens = |portal: &&BoundPortal| portal.address == address && !self.shape.closed.contains_key(&portal.id);
        if let Some(portal) = self.portals.values().find(listens) {
            return Ok(Step::Portal { portal: *portal, displaced: Vec::new(), is_taken_over: true });
        }
        // A wildcard address and one of its addresses exclude each other, so removed portals are closed first.
        let is_kept = |bound: &BoundPortal| {
            wanted
                .config
                .portals
                .iter()
                .any(|(name, portal)| self.portals.get(name) == Some(bound) && portal.address() == bound.address)
        };
        let overlaps = |other: SocketAddr| {
            let any = other.ip().is_unspecified() || address.ip().is_unspecified();
            any && other.port() == address.port() && other.is_ipv4() == address.is_ipv4()
        };
        let in_the_way = |other: &&BoundPortal| overlaps(other.address) && !is_kept(other);
        let displaced: Vec<BoundPortal> = self.portals.values().filter(in_the_way).copied().collect();
        displaced.iter().for_each(|displaced| self.core_set().close(displaced.id));
        let id = self.portal_number();
        match self.listen_when_free(id, address, PORT_PATIENCE) {
            Ok(address) => Ok(Step::Portal { portal: BoundPortal { id, address }, displaced, is_taken_over: false }),
            Err(why) => {
                displaced.iter().for_each(|displaced| self.listen_again(*displaced, PORT_PATIENCE));
                let choose = self.core_set().shared().origin.key("portal", name, "address");
                Err(EngineError::Listen(address, why, choose))
            }
        }
    }

    fn prepare_participants(&mut self, tx: &Transaction, wanted: &Checked) -> Result<Step, EngineError> {
        if tx.has_participants {
            return Ok(Step::Nothing);
        }
        for at in 0..self.participants.len() {
            if let Err(why) = self.participants[at].prepare(wanted) {
                self.participants[..at].iter_mut().rev().for_each(|participant| participant.roll_back());
                return Err(EngineError::Participant(why));
            }
        }
        Ok(Step::Participants)
    }

    /// Whether volumes can be made in the folder of the pool of this name.
    fn check_pool(&self, name: &str, wanted: &Checked) -> Result<Step, EngineError> {
        let Some(pool) = wanted.config.pools.get(name) else { return Ok(Step::Nothing) };
        let folder = pool.folder.path();
        self.host().allows_path(&folder.join("any")).map_err(EngineError::Path)?;
        self.check_answer(&folder.join("any")).map_err(|_| EngineError::NoAnswer(folder.to_owned()))?;
        match std::fs::metadata(folder) {
            Ok(found) if found.is_dir() => Ok(Step::Nothing),
            Ok(_) => Err(EngineError::NoFolder(folder.to_owned())),
            Err(why) => Err(EngineError::Pool(folder.to_owned(), why)),
        }
    }

    fn commit_step(&mut self, committed: &mut Committed, change: &Change, step: Step) {
        let name = &change.object.name;
        match (step, &change.action) {
            (Step::Volume { ticket, placed }, _) => {
                placed.volume.finalize();
                let unit = placed.unit;
                committed.tickets.push(ticket);
                if !placed.volume.is_without_store() {
                    drop(self.remember_store(&placed));
                    committed.returned.extend(self.lacks.remove(name.as_str()).map(|_| unit));
                }
                let size = placed.volume.size();
                match self.volumes.insert(name.as_str().into(), placed) {
                    Some(old) if old.unit == unit => {
                        committed.reshaped.push(unit);
                        // A device knows its size itself.
                        let is_resized = old.volume.size().zip(size).is_some_and(|(old, new)| old != new);
                        committed.resized.extend(is_resized.then_some(unit));
                    }
                    old => {
                        committed.new.push(unit);
                        if let Some(old) = old {
                            committed.leaving.push(old.unit);
                            committed.replaced.insert(name.clone());
                        }
                    }
                }
            }
            (Step::Portal { portal, displaced, .. }, _) => {
                let old = self.portals.insert(name.clone(), portal);
                committed.closing.extend(old.filter(|old| !displaced.contains(old)));
                committed.closing.retain(|other| *other != portal);
            }
            (_, Action::Remove) if change.object.kind == Kind::Volume => {
                self.lacks.remove(name.as_str());
                if let Some(old) = self.volumes.remove(name.as_str()) {
                    committed.leaving.push(old.unit);
                    committed.left.push((old.volume.identity().uuid, old.unit));
                }
            }
            (_, Action::Remove) if change.object.kind == Kind::Portal => {
                committed.closing.extend(self.portals.remove(name));
            }
            _ => {}
        }
    }

    fn roll_back_step(&mut self, change: &Change, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Volume { ticket, placed } => {
                self.core_set().withdraw(ticket);
                // It is open already with other options, perhaps for another volume.
                self.volumes.values().for_each(|own| own.volume.finalize());
                if self.volumes.get(change.object.name.as_str()).is_none_or(|own| own.unit != placed.unit) {
                    self.give_back(placed.unit);
                }
                if placed.volume.is_without_store() {
                    self.lacks.remove(change.object.name.as_str());
                }
            }
            Step::Portal { portal, displaced, is_taken_over } => {
                if !is_taken_over {
                    self.core_set().close(portal.id);
                }
                displaced.into_iter().for_each(|displaced| self.listen_again(displaced, PORT_PATIENCE));
            }
            Step::Front(index, prepared) => {
                let front = self.core_set().shared().fronts()[index].clone();
                front.roll_back(&self.core_set().front_handle(index), prepared);
            }
            Step::Participants => self.participants.iter_mut().rev().for_each(|participant| participant.roll_back()),
        }
    }

    /// The SCSI target ports that fronts add.
    pub(crate) fn front_ports(&self, wanted: &Checked) -> Vec<FrontPort> {
        let fronts = self.core_set().shared().fronts();
        fronts.iter().flat_map(|front| front.ports(&wanted.config)).collect()
    }

    /// The configuration as it is published to fronts.
    pub(crate) fn published<'a>(
        &'a self,
        wanted: &'a Checked,
        accesses: &'a Accesses,
        units: &'a UnitsByName,
    ) -> PublishedConfig<'a> {
        PublishedConfig { wanted, accesses, ports: &self.ports, units, portals: &self.portals }
    }
}
