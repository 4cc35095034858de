//! A model of a running target for tests: it records what plans do to it and checks their order.

use crate::api::{IsnsView, MediumView, SessionView, TroubleView, VmView};
use crate::apply::Running;
use crate::check::Checked;
use crate::common_sections::Medium;
use crate::in_use::{AffectedHost, LostDisk, Taking};
use crate::kind::{Id, Kind};
use crate::live::{
    CopySource, Later, Live, MadeStore, Making, MediumError, Motion, StoreNotAccepted, StoreNotMade, StoreOrigin,
};
use crate::names::Uuid;
use crate::plan::{Action, Change, ObjectId, Plan, SECRETS};
use crate::scsi::{ScsiCall, ScsiError, ScsiOutcome};
use crate::secret::Secret;
use crate::section::Field;
use crate::section::Object;
use crate::write_freeze::Reach;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval of the test whether a change is finalized.
const LOOK: Duration = Duration::from_millis(1);

/// A resource in the model.
#[derive(Debug)]
struct Known {
    plain: BTreeMap<&'static str, Box<dyn Field>>,
    links: BTreeSet<(&'static str, Kind, String)>,
    secret: Option<Secret>,
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.links == other.links
            && self.secret == other.secret
            && self.plain.keys().eq(other.plain.keys())
            && self.plain.values().zip(other.plain.values()).all(|(one, other)| one.same(&**other))
    }
}

/// A model of a running target.
#[derive(Debug, Default)]
pub struct FakeTarget {
    things: BTreeMap<ObjectId, Known>,
    /// The step of a plan that fails, if one does: 0 is the first.
    pub fails_at: Option<usize>,
    /// Volumes that were served before and are not served now.
    pub expected: BTreeSet<String>,
    /// Resources that are unavailable.
    pub unavailable: BTreeSet<ObjectId>,
    /// Steps that are prepared and neither made nor rolled back.
    pub pending: usize,
    /// Plans that were applied completely.
    pub finalized: usize,
    /// The sessions.
    pub sessions: Vec<SessionView>,
    /// Disks of this machine that programs use, and that every change takes away.
    pub lost_disks: Vec<LostDisk>,
    /// Volumes whose medium an initiator has locked.
    pub locked: BTreeSet<String>,
    /// Volumes whose medium is ejected.
    pub out: BTreeSet<String>,
    /// The troubles.
    pub troubles: Vec<TroubleView>,
    /// Whether the last change is still being finalized; tests set it.
    pub finalizing: Arc<AtomicBool>,
    /// Whether the places of stores do not answer, and SCSI commands do not end; tests set it.
    pub silent: Arc<AtomicBool>,
    /// Whether every step fails; tests set it.
    pub refuses: Arc<AtomicBool>,
    /// The stores that were made and are there.
    pub made: MadeStores,
}

/// The places of stores that were made and are there.
#[derive(Clone, Debug, Default)]
pub struct MadeStores(Arc<Mutex<BTreeSet<PathBuf>>>);

impl MadeStores {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<PathBuf> {
        self.lock().iter().cloned().collect()
    }
}

/// A store that was made.
struct FakeStore(MadeStores, PathBuf);

impl MadeStore for FakeStore {
    fn keep(self: Box<Self>) {}

    fn remove(self: Box<Self>) -> Result<(), StoreNotMade> {
        self.0.lock().remove(&self.1);
        Ok(())
    }
}

/// Two models are equal if they have the same resources.
impl PartialEq for FakeTarget {
    fn eq(&self, other: &Self) -> bool {
        self.things == other.things
    }
}

/// The steps that a model is ready to make.
#[derive(Debug, Default)]
pub struct Transaction(Vec<(Change, Known)>);

impl FakeTarget {
    /// A target before its first configuration: only the sections that exist once.
    #[must_use]
    pub fn new() -> Self {
        let nothing = Checked::default();
        let objects = nothing.config.objects();
        let things = objects.into_iter().map(|(id, object)| (id.into(), known(id, object, &nothing)));
        Self { things: things.collect(), ..Self::default() }
    }

    fn medium_of(&self, volume: &str) -> Option<Medium> {
        let word = self.things.get(&ObjectId::volume(volume))?.plain.get("medium")?.show();
        [Medium::Disk, Medium::Removable, Medium::Cd].into_iter().find(|medium| word == medium.word())
    }

    /// References to missing resources: always empty.
    #[must_use]
    pub fn dangling(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (id, known) in &self.things {
            for (field, kind, name) in &known.links {
                let wanted = ObjectId { kind: *kind, name: name.clone(), lun: None };
                if !self.things.contains_key(&wanted) {
                    found.push(format!("{} names {kind} {name} ({field})", id.id()));
                }
            }
            let group = ObjectId { kind: Kind::Group, name: id.name.clone(), lun: None };
            if id.kind == Kind::Lun && !self.things.contains_key(&group) {
                found.push(format!("{} has no group", id.id()));
            }
        }
        found
    }
}

fn known(id: Id<'_>, object: &dyn Object, from: &Checked) -> Known {
    let mut known = Known { plain: BTreeMap::new(), links: BTreeSet::new(), secret: from.secret(id).cloned() };
    for (key, field) in object.keys().into_iter().zip(object.fields()) {
        match key.naming {
            _ if key.nested => {}
            // A key without a value and a key of another front or store are the same.
            crate::section::Naming::None if field.show().is_null() => {}
            crate::section::Naming::None => drop(known.plain.insert(key.field, field.copy())),
            _ => field.mentions(&mut |kind, name, _| {
                known.links.insert((key.field, kind, name.to_owned()));
            }),
        }
    }
    known
}

/// A resource of a configuration.
fn find(wanted: &Checked, id: &ObjectId) -> Option<Known> {
    let object: &dyn Object = match id.lun {
        Some(lun) => wanted.config.groups.get(&id.name)?.luns.0.get(&lun)?,
        None => wanted.config.get(id.kind, &id.name)?,
    };
    Some(known(id.id(), object, wanted))
}

/// Why a fake target refuses a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FakeError {
    /// It was told to fail.
    ToldToFail,
    /// It was told that the object is unavailable.
    Unavailable,
    /// The object is not in the configuration.
    NotConfigured(ObjectId),
}

impl fmt::Display for FakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToldToFail => f.write_str("it was told to fail"),
            Self::Unavailable => f.write_str("it is unavailable"),
            Self::NotConfigured(object) => write!(f, "{} is not in the configuration", object.id()),
        }
    }
}

impl std::error::Error for FakeError {}

impl Running for FakeTarget {
    type Transaction = Transaction;
    type Error = FakeError;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.expected = volumes;
    }

    fn begin(&mut self, _plan: &Plan, _wanted: &Checked) -> Result<Transaction, FakeError> {
        Ok(Transaction::default())
    }

    fn prepare(&mut self, transaction: &mut Transaction, change: &Change, wanted: &Checked) -> Result<(), FakeError> {
        if self.fails_at == Some(transaction.0.len()) || self.refuses.load(Ordering::Acquire) {
            return Err(FakeError::ToldToFail);
        }
        if change.action == Action::Create && self.unavailable.contains(&change.object) {
            return Err(FakeError::Unavailable);
        }
        let nothing = || Known { plain: BTreeMap::new(), links: BTreeSet::new(), secret: None };
        let ready = match (&change.action, find(wanted, &change.object)) {
            (Action::Remove | Action::Detach(_), known) => known.unwrap_or_else(nothing),
            (_, Some(known)) => known,
            (_, None) => return Err(FakeError::NotConfigured(change.object.clone())),
        };
        self.pending += 1;
        transaction.0.push((change.clone(), ready));
        Ok(())
    }

    fn commit(&mut self, transaction: Transaction, _plan: &Plan, _wanted: &Checked) {
        transaction.0.into_iter().for_each(|(change, ready)| self.make(&change, ready));
        self.finalized += 1;
    }

    fn roll_back(&mut self, transaction: Transaction) {
        self.pending -= transaction.0.len();
    }
}

impl FakeTarget {
    /// Makes a step that is prepared.
    fn make(&mut self, change: &Change, mut ready: Known) {
        self.pending -= 1;
        match &change.action {
            Action::Remove => drop(self.things.remove(&change.object)),
            // An existing resource is unchanged.
            Action::Create => drop(self.things.entry(change.object.clone()).or_insert(ready)),
            Action::Change(fields) => {
                if let Some(known) = self.things.get_mut(&change.object) {
                    for field in fields {
                        // A key of another front or store is removed with it.
                        known.plain.remove(field);
                        known.plain.extend(ready.plain.remove_entry(field));
                    }
                    if SECRETS.iter().any(|secret| fields.contains(secret)) {
                        known.secret = ready.secret;
                    }
                }
            }
            Action::Attach(link) => {
                if let Some(known) = self.things.get_mut(&change.object) {
                    known.links.insert((link.field, link.kind, link.name.clone()));
                }
            }
            Action::Detach(link) => {
                if let Some(known) = self.things.get_mut(&change.object) {
                    known.links.remove(&(link.field, link.kind, link.name.clone()));
                }
            }
        }
    }
}

/// The model has the sessions that tests give it, and no other statistics.
/// Waits for as long as the flag is set.
fn while_set(flag: &Arc<AtomicBool>) -> Later<()> {
    let flag = flag.clone();
    Box::new(move || {
        while flag.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
        }
    })
}

impl Live for FakeTarget {
    fn sessions(&mut self) -> Vec<SessionView> {
        self.sessions.clone()
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        let before = self.sessions.len();
        self.sessions.retain(|session| session.id != id);
        (self.sessions.len() < before).then(|| Box::new(|| true) as Later<bool>)
    }

    fn statistics(&mut self) -> Json {
        json!({ "sessions": self.sessions.len() })
    }

    /// Returns the data that the command was given, and sense data if there is none.
    fn scsi(&mut self, volume: &str, call: ScsiCall) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        self.medium_of(volume)?;
        let ScsiCall { order, offer, begins } = call;
        let Some(permit) = offer.accept(Reach::Volume) else { return Some(Box::new(|| Err(ScsiError::Copied))) };
        begins(&[0x3c, 0], Some(&order.command));
        let is_good = !order.data_out.is_empty();
        let outcome = ScsiOutcome {
            cdb: vec![0x3c, 0],
            name: Some(order.command),
            status: if is_good { 0 } else { 2 },
            status_name: if is_good { "GOOD" } else { "CHECK CONDITION" }.to_owned(),
            sense: if is_good { Vec::new() } else { vec![0x70, 0, 5] },
            sense_words: String::new(),
            wanted: order.data_out.len() as u64,
            data: order.data_out,
        };
        let wait = while_set(&self.silent);
        Some(Box::new(|| {
            wait();
            drop(permit);
            Ok(outcome)
        }))
    }

    fn lost_disks(&mut self, _taking: &Taking<'_>) -> Vec<LostDisk> {
        self.lost_disks.clone()
    }

    fn lost_with(&mut self, id: &str) -> Option<AffectedHost> {
        self.lost_disks.iter().map(|disk| &disk.host).find(|host| host.session == id).cloned()
    }

    fn vms(&mut self) -> Vec<VmView> {
        Vec::new()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        None
    }

    fn troubles(&mut self) -> Vec<TroubleView> {
        self.troubles.clone()
    }

    fn copy_source(&mut self, _: &str) -> Option<CopySource> {
        None
    }

    fn make_store(&mut self, volume: &str, wanted: &Checked, origin: StoreOrigin<'_>) -> Option<Making> {
        let place = wanted.config.volumes.get(volume)?.place()?.to_owned();
        if let StoreOrigin::Volume(source) = origin {
            self.things.get(&ObjectId::volume(source))?;
        }
        let made = self.made.clone();
        Some(Box::new(move || match made.lock().insert(place.clone()) {
            true => Ok(Box::new(FakeStore(made.clone(), place)) as Box<dyn MadeStore>),
            false => Err(StoreNotMade::new("there is one")),
        }))
    }

    fn set_records(&mut self, _: Uuid, _: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
        Ok(())
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        let medium = self.medium_of(volume)?.word();
        let (loaded, locked) = (!self.out.contains(volume), self.locked.contains(volume));
        Some(MediumView { volume: volume.to_owned(), medium, loaded, locked })
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>> {
        let is_fixed = !self.medium_of(volume)?.is_removable();
        let outcome = match motion {
            _ if is_fixed => Err(MediumError::Fixed),
            Motion::Eject { forced: false } if self.locked.contains(volume) => Err(MediumError::Prevented),
            Motion::Eject { .. } => {
                self.out.insert(volume.to_owned());
                Ok(())
            }
            Motion::Load => {
                self.out.remove(volume);
                Ok(())
            }
        };
        Some(Box::new(|| outcome))
    }

    fn store_answers(&mut self, _: &str, _: &Checked) -> Later<Result<(), StoreNotAccepted>> {
        let wait = while_set(&self.silent);
        Box::new(move || {
            wait();
            Ok(())
        })
    }

    fn finalizing(&mut self) -> Option<Later<()>> {
        self.finalizing.load(Ordering::Acquire).then(|| while_set(&self.finalizing))
    }
}
