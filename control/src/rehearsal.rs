//! A model of what runs: keeps what it was told, and holds plans to their promises. For tests, and for whoever wants
//! to know what a plan would leave.

use crate::api::{IsnsView, MachineView, MediumView, SessionView};
use crate::apply::Running;
use crate::check::Checked;
use crate::config::{Id, Kind};
use crate::live::{Later, Live, Motion};
use crate::model::Medium;
use crate::plan::{Action, Change, ObjectId, Plan, SECRETS};
use crate::secret::Secret;
use crate::section::Object;
use crate::value::Field;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is looked whether a change still goes on.
const LOOK: Duration = Duration::from_millis(1);

/// What a model knows of a thing.
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

/// A model of what runs.
#[derive(Debug, Default)]
pub struct Rehearsal {
    things: BTreeMap<ObjectId, Known>,
    /// The step of a plan that fails, if one shall: 0 is the first.
    pub fails_at: Option<usize>,
    /// Volumes that were served before, and are not now.
    pub expected: BTreeSet<String>,
    /// What is away.
    pub away: BTreeSet<ObjectId>,
    prepared: usize,
    /// Steps that are prepared and neither made nor rolled back.
    pub pending: usize,
    /// Plans that were carried out to their end.
    pub settled: usize,
    /// Who shall be logged in.
    pub sessions: Vec<SessionView>,
    /// Volumes whose medium somebody prevents from being taken out.
    pub locked: BTreeSet<String>,
    /// Volumes whose medium is out.
    pub out: BTreeSet<String>,
    /// Whether the last change still goes on, as whoever sets this says.
    pub settling: Arc<AtomicBool>,
}

/// Two models are the same when they know the same.
impl PartialEq for Rehearsal {
    fn eq(&self, other: &Self) -> bool {
        self.things == other.things
    }
}

/// A step that a model is ready to make.
#[derive(Debug)]
pub struct Ready(Known);

impl Rehearsal {
    /// A model of what runs before anything was configured: what is there once is there.
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

    /// What names something that is not there: nothing, at any time.
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
    for (key, field) in object.keys().iter().zip(object.fields()) {
        match key.naming {
            _ if key.nested => {}
            crate::value::Naming::None => drop(known.plain.insert(key.field, field.copy())),
            _ => field.mentions(&mut |kind, name, _| {
                known.links.insert((key.field, kind, name.to_owned()));
            }),
        }
    }
    known
}

/// What a configuration says of a thing.
fn find(wanted: &Checked, id: &ObjectId) -> Option<Known> {
    let object: &dyn Object = match id.lun {
        Some(lun) => wanted.config.groups.get(&id.name)?.luns.0.get(&lun)?,
        None => wanted.config.get(id.kind, &id.name)?,
    };
    Some(known(id.id(), object, wanted))
}

impl Running for Rehearsal {
    type Prepared = Ready;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.expected = volumes;
    }

    fn prepare(&mut self, change: &Change, wanted: &Checked) -> Result<Ready, String> {
        if self.fails_at == Some(self.prepared) {
            return Err("it was told to fail".into());
        }
        if change.action == Action::Create && self.away.contains(&change.object) {
            return Err("it is away".into());
        }
        let nothing = || Known { plain: BTreeMap::new(), links: BTreeSet::new(), secret: None };
        let ready = match (&change.action, find(wanted, &change.object)) {
            (Action::Remove | Action::Detach(_), known) => known.unwrap_or_else(nothing),
            (_, Some(known)) => known,
            (_, None) => return Err(format!("{} is not in the configuration", change.object.id())),
        };
        self.prepared += 1;
        self.pending += 1;
        Ok(Ready(ready))
    }

    fn commit(&mut self, change: &Change, Ready(mut ready): Ready) {
        self.pending -= 1;
        self.prepared -= 1;
        match &change.action {
            Action::Remove => drop(self.things.remove(&change.object)),
            // What is there already stays as it is.
            Action::Create => drop(self.things.entry(change.object.clone()).or_insert(ready)),
            Action::Change(fields) => {
                if let Some(known) = self.things.get_mut(&change.object) {
                    for field in fields {
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

    fn settle(&mut self, _plan: &Plan, _wanted: &Checked) {
        self.settled += 1;
    }

    fn roll_back(&mut self, _change: &Change, _prepared: Ready) {
        self.pending -= 1;
        self.prepared -= 1;
    }
}

/// A model has the sessions that it was given, and counts nothing else.
impl Live for Rehearsal {
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

    fn machines(&mut self) -> Vec<MachineView> {
        Vec::new()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        None
    }

    fn troubles(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        let medium = self.medium_of(volume)?.word();
        let (loaded, locked) = (!self.out.contains(volume), self.locked.contains(volume));
        Some(MediumView { volume: volume.to_owned(), medium, loaded, locked })
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>> {
        let is_fixed = !self.medium_of(volume)?.comes_and_goes();
        let outcome = match motion {
            _ if is_fixed => Err("it is a fixed disk".to_owned()),
            Motion::Eject { forced: false } if self.locked.contains(volume) => Err("an initiator uses it".to_owned()),
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

    fn settling(&mut self) -> Option<Later<()>> {
        let settling = self.settling.clone();
        let wait = move || {
            while settling.load(Ordering::Acquire) {
                std::thread::sleep(LOOK);
            }
        };
        self.settling.load(Ordering::Acquire).then(|| Box::new(wait) as Later<()>)
    }
}
