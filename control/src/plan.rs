//! The steps from one configuration to another, in words. In their order no step refers to a missing resource, and a
//! resource is removed before another one takes its name, path or address.
//!
//! 1. References are detached from resources that stay. 2. Resources are removed, in reverse order of creation.
//! 3. Resources that stay are changed. 4. Resources are created, in the order of creation. 5. References are attached
//!    to resources that stay.

use crate::check::Checked;
use crate::common_sections::Volume;
use crate::config::Config;
use crate::kind::{Id, Kind};
use crate::section::{Effect, Key, Object};
use crate::section::{Field, Naming};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Keys that name files, whose contents may change without a change of the key.
pub(crate) const SECRETS: [&str; 2] = ["secret", "certificate"];

/// A resource in a plan.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its name; the name of its group if it is a LUN; empty for a section that exists once.
    pub name: String,
    /// The logical unit number of a LUN.
    pub lun: Option<u16>,
}

impl ObjectId {
    /// The volume of this name.
    #[must_use]
    pub fn volume(name: &str) -> Self {
        Self { kind: Kind::Volume, name: name.to_owned(), lun: None }
    }

    /// The same, borrowed.
    #[must_use]
    pub fn id(&self) -> Id<'_> {
        Id { kind: self.kind, name: &self.name, lun: self.lun }
    }
}

impl From<Id<'_>> for ObjectId {
    fn from(id: Id<'_>) -> Self {
        Self { kind: id.kind, name: id.name.to_owned(), lun: id.lun }
    }
}

/// A reference of a key to a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The key, with underscores.
    pub field: &'static str,
    /// The kind of the resource.
    pub kind: Kind,
    /// The name of the resource.
    pub name: String,
}

/// The operation of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A reference is removed from one of its keys.
    Detach(Link),
    /// The resource is removed.
    Remove,
    /// These keys change (with underscores).
    Change(Vec<&'static str>),
    /// The resource is created, with all its references.
    Create,
    /// A reference is added to one of its keys.
    Attach(Link),
}

/// One step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The resource.
    pub object: ObjectId,
    /// The operation.
    pub action: Action,
    /// In words: `create volume disk1 (20 GiB file /srv/disk1.img)`. Without secrets.
    pub words: String,
    /// The effect on clients.
    pub effect: Effect,
    /// The targets whose sessions are affected.
    pub targets: Vec<String>,
    /// The clients with sessions from which the step takes something. The step needs force if there are any.
    pub hosts: Vec<String>,
}

/// The steps, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// The steps.
    pub changes: Vec<Change>,
    /// Further effects, and the parts of a restored version that are not restored, in words.
    pub notes: Vec<String>,
}

impl Plan {
    /// The steps from `old` to `new`.
    #[must_use]
    pub fn between(old: &Checked, new: &Checked) -> Self {
        let (before, after) = (old.config.objects(), new.config.objects());
        let mut steps = Steps::default();
        for (id, object) in before.iter().rev() {
            if !after.contains_key(id) {
                steps.remove(*id, *object);
            }
        }
        for (id, object) in &after {
            match before.get(id) {
                None => steps.create(*id, *object),
                Some(earlier) => steps.differences(*id, (*earlier, old), (*object, new)),
            }
        }
        steps.in_order(&Reach::of(&old.config, &new.config))
    }

    /// Whether there are no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The targets whose sessions are affected, each with the strongest effect.
    #[must_use]
    pub fn disturbed(&self) -> BTreeMap<&str, Effect> {
        let mut all = BTreeMap::new();
        for change in &self.changes {
            for target in &change.targets {
                let worst = all.entry(target.as_str()).or_insert(change.effect);
                *worst = change.effect.max(*worst);
            }
        }
        all
    }

    /// Whether a step takes effect only after a restart.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        self.changes.iter().any(|change| change.effect == Effect::Restart)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            f.write_str("nothing to do")?;
        }
        for (at, change) in self.changes.iter().enumerate() {
            write!(f, "{}{change}", if at == 0 { "" } else { "\n" })?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)?;
        let at = || match &self.targets[..] {
            [one] => format!("target {one}"),
            [one, other] => format!("targets {one} and {other}"),
            [one, rest @ ..] => format!("target {one} and {} others", rest.len()),
            [] => String::new(),
        };
        match self.effect {
            Effect::Restart => f.write_str(" [after a restart]"),
            Effect::Attention if !self.targets.is_empty() => write!(f, " [clients of {} are notified]", at()),
            Effect::EndsSessions if !self.targets.is_empty() => write!(f, " [sessions of {} end]", at()),
            _ => Ok(()),
        }?;
        match &self.hosts[..] {
            [] => Ok(()),
            [one] => write!(f, " [needs --force: {one} uses it]"),
            [one, rest @ ..] => write!(f, " [needs --force: {one} and {} others use it]", rest.len()),
        }
    }
}

/// The steps before they are put in order.
#[derive(Default)]
struct Steps {
    detach: Vec<Change>,
    remove: Vec<Change>,
    change: Vec<Change>,
    create: Vec<Change>,
    attach: Vec<Change>,
}

fn step(id: Id<'_>, action: Action, words: String, effect: Effect) -> Change {
    Change { object: id.into(), action, words, effect, targets: Vec::new(), hosts: Vec::new() }
}

impl Steps {
    fn remove(&mut self, id: Id<'_>, object: &dyn Object) {
        let words = match id.lun {
            Some(lun) => format!("unmap {} from LUN {lun} of group {}", mapped(object), id.name),
            None if id.kind == Kind::Volume => {
                let is_stored = object.any().downcast_ref::<Volume>().is_some_and(|volume| volume.place().is_some());
                format!("remove {id} (its data {})", if is_stored { "stays" } else { "is lost" })
            }
            None => format!("remove {id}"),
        };
        self.remove.push(step(id, Action::Remove, words, object.effects().1));
    }

    fn create(&mut self, id: Id<'_>, object: &dyn Object) {
        let summary = object.summary();
        let words = match id.lun {
            Some(lun) => format!("map {summary} as LUN {lun} for group {}", id.name),
            None if summary.is_empty() => format!("create {id}"),
            None => format!("create {id} ({summary})"),
        };
        self.create.push(step(id, Action::Create, words, object.effects().0));
    }

    fn differences(&mut self, id: Id<'_>, old: (&dyn Object, &Checked), new: (&dyn Object, &Checked)) {
        let secret_differs = old.1.secret(id) != new.1.secret(id);
        let differs = |(key, old, new): &Pair<'_>| {
            let is_same = match (old, new) {
                (Some(old), Some(new)) => new.same(*old),
                (None, None) => true,
                (Some(one), None) | (None, Some(one)) => one.show().is_null(),
            };
            !key.nested && (!is_same || SECRETS.contains(&key.field) && secret_differs)
        };
        let changed: Vec<Pair<'_>> = pairs(old.0, new.0).into_iter().filter(differs).collect();
        // A resource that depends on another one is a new resource if it refers to a new one.
        if changed.iter().any(|(key, ..)| key.naming == Naming::One) {
            self.remove(id, old.0);
            self.create(id, new.0);
            return;
        }
        let (links, plain): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(key, ..)| key.naming == Naming::Many);
        for (key, old, new) in links {
            let (old, new) = (old.map(names).unwrap_or_default(), new.map(names).unwrap_or_default());
            let link = |(kind, name): &(Kind, String)| Link { field: key.field, kind: *kind, name: name.clone() };
            let gone = old.difference(&new).map(link);
            self.detach.extend(gone.map(|link| {
                let words = format!("take {} {} from {id} ({})", link.kind, link.name, key.name());
                step(id, Action::Detach(link), words, key.effect)
            }));
            let come = new.difference(&old).map(link);
            self.attach.extend(come.map(|link| {
                let words = format!("add {} {} to {id} ({})", link.kind, link.name, key.name());
                step(id, Action::Attach(link), words, key.effect)
            }));
        }
        if let Some(effect) = plain.iter().map(|(key, ..)| key.effect).max() {
            let words: Vec<String> = plain.iter().map(difference).collect();
            let fields = plain.iter().map(|(key, ..)| key.field).collect();
            self.change.push(step(id, Action::Change(fields), format!("change {id}: {}", words.join("; ")), effect));
        }
    }

    fn in_order(mut self, reach: &Reach<'_>) -> Plan {
        self.remove.sort_by(|one, other| other.object.cmp(&one.object));
        self.create.sort_by(|one, other| one.object.cmp(&other.object));
        let parts = [self.detach, self.remove, self.change, self.create, self.attach];
        let mut changes: Vec<Change> = parts.into_iter().flatten().collect();
        for change in &mut changes {
            let notice = matches!(change.effect, Effect::Attention | Effect::EndsSessions);
            if notice {
                change.targets = reach.targets(&change.object, &change.action);
            }
        }
        Plan { changes, notes: Vec::new() }
    }
}

/// A key with its old and its new value; an object has no value for a key of another front or store.
type Pair<'a> = (&'static Key, Option<&'a dyn Field>, Option<&'a dyn Field>);

/// The keys of both objects with their values. The keys of two objects of one kind may differ: a front or a store adds
/// some.
fn pairs<'a>(old: &'a dyn Object, new: &'a dyn Object) -> Vec<Pair<'a>> {
    let mut before: Vec<_> = old.keys().into_iter().zip(old.fields()).collect();
    let mut pairs = Vec::with_capacity(before.len());
    for (key, field) in new.keys().into_iter().zip(new.fields()) {
        let found = before.iter().position(|(other, _)| std::ptr::eq(*other, key));
        let earlier = found.map(|at| before.remove(at).1);
        pairs.push((key, earlier, Some(field)));
    }
    pairs.extend(before.into_iter().map(|(key, field)| (key, Some(field), None)));
    pairs
}

/// The volume of a LUN.
fn mapped(object: &dyn Object) -> String {
    object.fields().into_iter().flat_map(names).map(|(_, name)| name).next().unwrap_or_default()
}

/// The references of a value.
fn names(field: &dyn Field) -> BTreeSet<(Kind, String)> {
    let mut names = BTreeSet::new();
    field.mentions(&mut |kind, name, _| {
        names.insert((kind, name.to_owned()));
    });
    names
}

/// The change of a key, in words.
fn difference((key, old, new): &Pair<'_>) -> String {
    let shown = |field: &Option<&dyn Field>| field.map_or(Json::Null, Field::show);
    let (name, old, new) = (key.name(), shown(old), shown(new));
    if old == new {
        // A secret is not shown.
        return format!("{name} has a new value");
    }
    format!("{name} {} -> {}", plain(&old), plain(&new))
}

fn plain(value: &Json) -> String {
    match value {
        Json::Null => "none".into(),
        Json::String(text) => text.clone(),
        Json::Array(list) if list.is_empty() => "none".into(),
        Json::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The targets of each resource, before and after.
struct Reach<'a> {
    volumes: HashMap<&'a str, BTreeSet<&'a str>>,
    portal_groups: HashMap<&'a str, BTreeSet<&'a str>>,
    groups: HashMap<&'a str, BTreeSet<&'a str>>,
    portals: HashMap<&'a str, BTreeSet<&'a str>>,
    fronts: HashMap<Id<'a>, BTreeSet<String>>,
    targets: BTreeSet<&'a str>,
}

impl<'a> Reach<'a> {
    fn of(old: &'a Config, new: &'a Config) -> Self {
        let mut reach = Self {
            volumes: HashMap::new(),
            portal_groups: HashMap::new(),
            groups: HashMap::new(),
            portals: HashMap::new(),
            fronts: HashMap::new(),
            targets: BTreeSet::new(),
        };
        for config in [old, new] {
            reach.targets.extend(config.targets.keys().map(String::as_str));
            for (name, target) in &config.targets {
                for group in target.portal_groups.names() {
                    reach.portal_groups.entry(group).or_default().insert(name);
                }
            }
            for (name, group) in &config.groups {
                reach.groups.entry(name).or_default().extend(group.targets.names());
                for lun in group.luns.0.values() {
                    reach.volumes.entry(lun.volume.name()).or_default().extend(group.targets.names());
                }
            }
        }
        for portal in [old, new].into_iter().flat_map(|config| &config.portals) {
            let behind = reach.portal_groups.get(portal.1.group.name()).cloned().unwrap_or_default();
            reach.portals.entry(portal.0).or_default().extend(behind);
        }
        for (id, object) in [old, new].into_iter().flat_map(Config::of_fronts) {
            let targets = object.fields().into_iter().flat_map(names).filter(|(kind, _)| *kind == Kind::Target);
            reach.fronts.entry(id).or_default().extend(targets.map(|(_, name)| name));
        }
        reach
    }

    fn targets(&self, object: &ObjectId, action: &Action) -> Vec<String> {
        let owned = |names: &BTreeSet<&str>| names.iter().map(|name| (*name).to_owned()).collect();
        let of = |map: &HashMap<&str, BTreeSet<&str>>| map.get(object.name.as_str()).map(owned).unwrap_or_default();
        match (object.kind, action) {
            // Only the clients of the target that is attached or detached.
            (Kind::Group, Action::Attach(link) | Action::Detach(link)) if link.kind == Kind::Target => {
                vec![link.name.clone()]
            }
            (Kind::Target, _) => vec![object.name.clone()],
            (Kind::Volume, _) => of(&self.volumes),
            (Kind::PortalGroup, _) => of(&self.portal_groups),
            (Kind::Group | Kind::Lun, _) => of(&self.groups),
            (Kind::Portal, _) => of(&self.portals),
            (Kind::Front(_), _) => self.fronts.get(&object.id()).into_iter().flatten().cloned().collect(),
            _ => owned(&self.targets),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
