//! From one configuration to another: what has to be done, in words, in an order in which no step names anything that
//! is not there, and what goes is gone before what takes its place comes.
//!
//! 1. Names are taken out of what stays. 2. Things are removed, what names others first. 3. What stays changes.
//! 4. Things are made, what is named first. 5. Names are put into what stays.

use crate::check::Checked;
use crate::config::{Config, Id, Kind};
use crate::section::{Effect, Key, Object};
use crate::value::{Field, Naming};
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Keys whose files may hold something else than before.
pub(crate) const SECRETS: [&str; 2] = ["secret", "certificate"];

/// A thing in a plan.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its name; that of its group if it is a LUN; empty for what is there once.
    pub name: String,
    /// The number of a LUN.
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

/// A name that a key of something mentions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The key, with underscores.
    pub field: &'static str,
    /// The kind of what it names.
    pub kind: Kind,
    /// The name.
    pub name: String,
}

/// What is done to a thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A name is taken out of one of its keys.
    Detach(Link),
    /// It goes.
    Remove,
    /// These keys of it change (with underscores).
    Change(Vec<&'static str>),
    /// It comes, with all names in it.
    Create,
    /// A name is put into one of its keys.
    Attach(Link),
}

/// One step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Of what.
    pub object: ObjectId,
    /// What is done.
    pub action: Action,
    /// In words: `create volume disk1 (20 GiB file /srv/disk1.img)`. Without secrets.
    pub words: String,
    /// Who notices.
    pub effect: Effect,
    /// The targets whose sessions notice; none if nobody does.
    pub targets: Vec<String>,
}

/// All steps, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// The steps.
    pub changes: Vec<Change>,
}

impl Plan {
    /// What makes `new` out of `old`.
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

    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Targets whose sessions notice, with the worst that happens to them.
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

    /// Whether something of it is in force after a restart only.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        self.changes.iter().any(|change| change.effect == Effect::Restart)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing to do");
        }
        for (at, change) in self.changes.iter().enumerate() {
            write!(f, "{}{change}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
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
            Effect::Attention if !self.targets.is_empty() => write!(f, " [initiators of {} are told]", at()),
            Effect::EndsSessions if !self.targets.is_empty() => write!(f, " [sessions of {} end]", at()),
            _ => Ok(()),
        }
    }
}

/// What has to be done, before it is put in order.
#[derive(Default)]
struct Steps {
    detach: Vec<Change>,
    remove: Vec<Change>,
    change: Vec<Change>,
    create: Vec<Change>,
    attach: Vec<Change>,
}

fn step(id: Id<'_>, action: Action, words: String, effect: Effect) -> Change {
    Change { object: id.into(), action, words, effect, targets: Vec::new() }
}

impl Steps {
    fn remove(&mut self, id: Id<'_>, object: &dyn Object) {
        let words = match id.lun {
            Some(lun) => format!("unmap {} from LUN {lun} of group {}", mapped(object), id.name),
            None if id.kind == Kind::Volume => format!("remove {id} (its data stays)"),
            None => format!("remove {id}"),
        };
        self.remove.push(step(id, Action::Remove, words, id.kind.effects().1));
    }

    fn create(&mut self, id: Id<'_>, object: &dyn Object) {
        let summary = object.summary();
        let words = match id.lun {
            Some(lun) => format!("map {summary} as LUN {lun} for group {}", id.name),
            None if summary.is_empty() => format!("create {id}"),
            None => format!("create {id} ({summary})"),
        };
        self.create.push(step(id, Action::Create, words, id.kind.effects().0));
    }

    fn differences(&mut self, id: Id<'_>, old: (&dyn Object, &Checked), new: (&dyn Object, &Checked)) {
        let keys = new.0.keys();
        let fields = || keys.iter().zip(old.0.fields().into_iter().zip(new.0.fields()));
        let secret_differs = old.1.secret(id) != new.1.secret(id);
        let differs = |key: &Key, old: &dyn Field, new: &dyn Field| {
            !key.nested && (!new.same(old) || SECRETS.contains(&key.field) && secret_differs)
        };
        let changed: Vec<(&'static Key, &dyn Field, &dyn Field)> = fields()
            .map(|(key, (old, new))| (key, old, new))
            .filter(|(key, old, new)| differs(key, *old, *new))
            .collect();
        // What cannot be without the one that it names is another thing with another one.
        if changed.iter().any(|(key, ..)| key.naming == Naming::One) {
            self.remove(id, old.0);
            self.create(id, new.0);
            return;
        }
        let (links, plain): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(key, ..)| key.naming == Naming::Many);
        for (key, old, new) in links {
            let (old, new) = (names(old), names(new));
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
            let words: Vec<String> = plain.iter().map(|(key, old, new)| difference(key, *old, *new)).collect();
            let fields = plain.iter().map(|(key, ..)| key.field).collect();
            self.change.push(step(id, Action::Change(fields), format!("change {id}: {}", words.join("; ")), effect));
        }
    }

    fn in_order(mut self, reach: &Reach<'_>) -> Plan {
        // Found in the order in which things are made; they go the other way round.
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
        Plan { changes }
    }
}

/// The volume of a LUN.
fn mapped(object: &dyn Object) -> String {
    object.fields().into_iter().flat_map(names).map(|(_, name)| name).next().unwrap_or_default()
}

/// What a value names.
fn names(field: &dyn Field) -> BTreeSet<(Kind, String)> {
    let mut names = BTreeSet::new();
    field.mentions(&mut |kind, name, _| {
        names.insert((kind, name.to_owned()));
    });
    names
}

/// How a key changes, in words.
fn difference(key: &Key, old: &dyn Field, new: &dyn Field) -> String {
    let (name, old, new) = (key.name(), old.show(), new.show());
    if old == new {
        // A secret, which looks like any other.
        return format!("{name} is another one");
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

/// Which targets things belong to, before and after.
struct Reach<'a> {
    volumes: HashMap<&'a str, BTreeSet<&'a str>>,
    portal_groups: HashMap<&'a str, BTreeSet<&'a str>>,
    groups: HashMap<&'a str, BTreeSet<&'a str>>,
    portals: HashMap<&'a str, BTreeSet<&'a str>>,
    vms: HashMap<&'a str, BTreeSet<&'a str>>,
    targets: BTreeSet<&'a str>,
}

impl<'a> Reach<'a> {
    fn of(old: &'a Config, new: &'a Config) -> Self {
        let mut reach = Self {
            volumes: HashMap::new(),
            portal_groups: HashMap::new(),
            groups: HashMap::new(),
            portals: HashMap::new(),
            vms: HashMap::new(),
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
        for (name, vm) in [old, new].into_iter().flat_map(|config| &config.vms) {
            reach.vms.entry(name).or_default().insert(vm.target.name());
        }
        reach
    }

    fn targets(&self, object: &ObjectId, action: &Action) -> Vec<String> {
        let owned = |names: &BTreeSet<&str>| names.iter().map(|name| (*name).to_owned()).collect();
        let of = |map: &HashMap<&str, BTreeSet<&str>>| map.get(object.name.as_str()).map(owned).unwrap_or_default();
        match (object.kind, action) {
            // Only those at the target that comes or goes.
            (Kind::Group, Action::Attach(link) | Action::Detach(link)) if link.kind == Kind::Target => {
                vec![link.name.clone()]
            }
            (Kind::Target, _) => vec![object.name.clone()],
            (Kind::Volume, _) => of(&self.volumes),
            (Kind::PortalGroup, _) => of(&self.portal_groups),
            (Kind::Group | Kind::Lun, _) => of(&self.groups),
            (Kind::Portal, _) => of(&self.portals),
            (Kind::Vm, _) => of(&self.vms),
            _ => owned(&self.targets),
        }
    }
}

/// A change as programs see it.
impl Serialize for Change {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::api::ChangeView::of(self).serialize(serializer)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
