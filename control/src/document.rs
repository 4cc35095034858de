//! Changes in the text of a configuration: what is not changed stays as it was written, comments and order included.

use crate::config::{Kind, is_name};
use crate::links::LUN_MAX;
use crate::names::Uuid;
use crate::report::did_you_mean;
use crate::section::Key;
use crate::value::{Shape, Textual};
use serde_json::{Map, Value as Json, json};
use std::fmt;
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, TableLike, Value};

/// Keys and what they shall hold; null takes a key out. What they hold may be secret, so it is not shown.
#[derive(Clone, PartialEq, Default)]
pub struct Keys(pub Map<String, Json>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keys {
    /// Adds `KEY=VALUE` as somebody writes it on a command line. Lists are written with commas; `none` takes a key out;
    /// a secret is `file:/PATH`, `credential:NAME`, or the secret itself.
    ///
    /// # Errors
    /// When there is no such key, or its value has another form.
    pub fn add_text(&mut self, kind: Kind, text: &str) -> Result<(), Refused> {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            // The text may be a secret whose key was forgotten.
            Refused::Wrong("a key is given its value by KEY=VALUE".into())
        })?;
        let key = find_key(kind, &name.replace('_', "-"))?;
        let value = from_text(&(key.shape)(), value).map_err(|why| Refused::Wrong(format!("{}: {why}", key.name())))?;
        self.0.insert(key.name(), value);
        Ok(())
    }
}

fn from_text(shape: &Shape, text: &str) -> Result<Json, String> {
    Ok(match shape {
        Shape::Optional(_) if text == "none" => Json::Null,
        Shape::Optional(some) => return from_text(some, text),
        Shape::Bool => match text {
            "true" | "yes" | "on" => json!(true),
            "false" | "no" | "off" => json!(false),
            _ => return Err("it is true or false".into()),
        },
        Shape::Whole { min, max } => {
            json!(text.parse::<u64>().map_err(|_| format!("it is a whole number, {min} to {max}"))?)
        }
        Shape::List(_) if text == "none" || text.is_empty() => json!([]),
        Shape::List(each) => text.split(',').map(|part| from_text(each, part.trim())).collect::<Result<_, _>>()?,
        Shape::Secret => match text.split_once(':') {
            Some((word @ ("file" | "credential"), place)) => json!({ word: place }),
            _ => json!(text),
        },
        Shape::Luns => return Err("logical units are mapped and unmapped one by one".into()),
        Shape::Text { .. } | Shape::Choice(_) | Shape::Name(_) => json!(text),
    })
}

/// One change of a configuration.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Makes a thing.
    Create {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its keys.
        keys: Keys,
    },
    /// Sets keys of a thing.
    Set {
        /// Its kind.
        kind: Kind,
        /// Its name; empty for what is there once.
        name: String,
        /// The keys that change.
        keys: Keys,
    },
    /// Removes a thing.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// Gives a volume a number in a group; another volume that had it loses it.
    Map {
        /// The group.
        group: String,
        /// The logical unit number.
        lun: u16,
        /// The volume.
        volume: String,
        /// Whether the group may only read.
        read_only: bool,
        /// Its namespace identifier for NVMe hosts, if it is not the usual one.
        namespace: Option<u16>,
        /// Whether NVMe hosts see the volume's protection information.
        metadata: bool,
    },
    /// Takes a number out of a group.
    Unmap {
        /// The group.
        group: String,
        /// The logical unit number.
        lun: u16,
    },
}

/// Why a text was not changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such thing.
    Missing(String),
    /// There is one already.
    Exists(String),
    /// It makes no sense.
    Wrong(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Missing(why) | Self::Exists(why) | Self::Wrong(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for Refused {}

/// Makes changes in the text of a configuration, all or none. Whether the result can be put in force, a check tells.
///
/// # Errors
/// The first change that cannot be made.
pub fn edit(text: &str, edits: &[Edit]) -> Result<String, Refused> {
    let mut document = read(text)?;
    for edit in edits {
        match edit {
            Edit::Create { kind, name, keys } => create(&mut document, *kind, name, keys)?,
            Edit::Set { kind, name, keys } => set(&mut document, *kind, name, keys)?,
            Edit::Delete { kind, name } => delete(&mut document, *kind, name)?,
            Edit::Map { group, lun, volume, read_only, namespace, metadata } => {
                map(&mut document, group, *lun, mapping(volume, *read_only, *namespace, *metadata))?;
            }
            Edit::Unmap { group, lun } => unmap(&mut document, group, *lun)?,
        }
    }
    Ok(document.to_string())
}

/// Gives each volume without a UUID the one that `uuid` says for its name, and tells their names. Written into the file
/// once, it is theirs for ever.
///
/// # Errors
/// When the text cannot be read, or `uuid` fails.
pub fn name_volumes(
    text: &str,
    mut uuid: impl FnMut(&str) -> Result<Uuid, String>,
) -> Result<(String, Vec<String>), Refused> {
    let mut document = read(text)?;
    let mut named = Vec::new();
    let volumes = document.get_mut(Kind::Volume.section()).and_then(Item::as_table_like_mut);
    for (name, volume) in volumes.into_iter().flat_map(|volumes| volumes.iter_mut()) {
        if let Some(volume) = volume.as_table_like_mut()
            && !volume.contains_key("uuid")
        {
            let uuid = uuid(name.get()).map_err(Refused::Wrong)?;
            put(volume, "uuid", Value::from(uuid.text()));
            named.push(name.get().to_owned());
        }
    }
    if named.is_empty() { Ok((text.to_owned(), named)) } else { Ok((document.to_string(), named)) }
}

fn read(text: &str) -> Result<DocumentMut, Refused> {
    // The message of the parser would quote the text, and with it perhaps a secret.
    text.parse().map_err(|_| Refused::Wrong("the configuration cannot be read: mend the file first".into()))
}

fn find_key(kind: Kind, name: &str) -> Result<&'static Key, Refused> {
    kind.keys().iter().find(|key| key.is(name)).ok_or_else(|| {
        let names: Vec<String> = kind.keys().iter().map(Key::name).collect();
        let guess = did_you_mean(name, names.iter().map(String::as_str));
        let shown: String = name.chars().take(64).collect();
        Refused::Wrong(format!("a {kind} has no key '{shown}'{guess}"))
    })
}

fn no_such(kind: Kind, name: &str) -> Refused {
    Refused::Missing(format!("there is no {kind} '{name}'"))
}

/// A section, which is made if it is missing; without a header of its own, for its things have theirs.
fn section(document: &mut DocumentMut, kind: Kind) -> Result<&mut dyn TableLike, Refused> {
    let item = document.entry(kind.section()).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(kind.is_named());
        Item::Table(table)
    });
    item.as_table_like_mut().ok_or_else(|| Refused::Wrong(format!("'{}' is not a table", kind.section())))
}

fn create(document: &mut DocumentMut, kind: Kind, name: &str, keys: &Keys) -> Result<(), Refused> {
    if !kind.is_named() {
        return Err(Refused::Wrong(format!("a {kind} is not made by name")));
    }
    if !is_name(name) {
        return Err(Refused::Wrong("a name is made of letters, digits, '-', '_', '.', ':' and '@'".into()));
    }
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    set_keys(&mut table, kind, keys)?;
    let is_first = document.is_empty();
    let all = section(document, kind)?;
    if all.contains_key(name) {
        return Err(Refused::Exists(format!("there is a {kind} '{name}' already")));
    }
    if is_first {
        table.decor_mut().set_prefix("");
    }
    all.insert(name, Item::Table(table));
    Ok(())
}

fn set(document: &mut DocumentMut, kind: Kind, name: &str, keys: &Keys) -> Result<(), Refused> {
    if kind.is_single() {
        return set_keys(section(document, kind)?, kind, keys);
    }
    set_keys(find(document, kind, name)?, kind, keys)
}

fn find<'d>(document: &'d mut DocumentMut, kind: Kind, name: &str) -> Result<&'d mut dyn TableLike, Refused> {
    let all = document.get_mut(kind.section()).and_then(Item::as_table_like_mut);
    all.and_then(|all| all.get_mut(name)?.as_table_like_mut()).ok_or_else(|| no_such(kind, name))
}

fn set_keys(table: &mut dyn TableLike, kind: Kind, keys: &Keys) -> Result<(), Refused> {
    for (name, value) in &keys.0 {
        let key = find_key(kind, name)?;
        let name = key.name();
        if key.nested && !value.is_null() {
            return Err(Refused::Wrong("logical units are mapped and unmapped one by one".into()));
        }
        match value {
            Json::Null => drop(table.remove(&name)),
            value => put(table, &name, to_toml(value).map_err(|why| Refused::Wrong(format!("{name}: {why}")))?),
        }
    }
    Ok(())
}

/// Puts a value in its place; a comment behind the one before stays.
fn put(table: &mut dyn TableLike, key: &str, mut value: Value) {
    match table.get_mut(key) {
        Some(item) => {
            if let Some(old) = item.as_value() {
                *value.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(value);
        }
        None => drop(table.insert(key, Item::Value(value))),
    }
}

fn to_toml(value: &Json) -> Result<Value, String> {
    Ok(match value {
        Json::Bool(value) => Value::from(*value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Number(number) => Value::from(number.as_i64().ok_or("is no whole number that fits")?),
        Json::Array(list) => Value::Array(list.iter().map(to_toml).collect::<Result<Array, _>>()?),
        Json::Object(object) => {
            let entries = object.iter().map(|(key, value)| Ok::<_, String>((key.as_str(), to_toml(value)?)));
            Value::InlineTable(entries.collect::<Result<InlineTable, _>>()?)
        }
        Json::Null => return Err("holds nothing where something is needed".into()),
    })
}

fn delete(document: &mut DocumentMut, kind: Kind, name: &str) -> Result<(), Refused> {
    if !kind.is_named() {
        return Err(Refused::Wrong(format!("the {kind} section is always there: take out its keys")));
    }
    let all = document.get_mut(kind.section()).and_then(Item::as_table_like_mut);
    let gone = all.and_then(|all| all.remove(name)).ok_or_else(|| no_such(kind, name))?;
    if let Item::Table(gone) = &gone {
        keep_remarks(document, gone);
    }
    Ok(())
}

/// Comments before a table that stand apart from it, by an empty line, are about what comes there, not about it: such
/// as the first lines of a file. They stay when the table goes.
fn keep_remarks(document: &mut DocumentMut, gone: &Table) {
    let prefix = gone.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
    let Some(end) = prefix.rfind("\n\n").filter(|end| prefix[..*end].contains('#')) else { return };
    let remarks = prefix[..end + 1].to_owned();
    let place = gone.position().unwrap_or(isize::MAX);
    match next_table(document.as_table_mut(), place) {
        Some(next) => {
            let own = next.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
            let gap = if own.starts_with('\n') { "" } else { "\n" };
            let both = format!("{remarks}{gap}{own}");
            next.decor_mut().set_prefix(both);
        }
        None => {
            let own = document.trailing().as_str().unwrap_or_default();
            let both = format!("{remarks}{own}");
            document.set_trailing(both);
        }
    }
}

/// The table with a header of its own that comes first after this place.
fn next_table(table: &mut Table, place: isize) -> Option<&mut Table> {
    let mut best: Option<&mut Table> = None;
    for (_, item) in table.iter_mut() {
        let Item::Table(inner) = item else { continue };
        let at = |table: &Table| table.position().filter(|at| *at > place && !table.is_implicit());
        let found = if at(inner).is_some() { Some(inner) } else { next_table(inner, place) };
        if let Some(found) = found
            && best.as_ref().and_then(|best| at(best)).is_none_or(|best| at(found).is_some_and(|found| found < best))
        {
            best = Some(found);
        }
    }
    best
}

/// A volume as a group sees it, as short as it can be said.
fn mapping(volume: &str, read_only: bool, namespace: Option<u16>, metadata: bool) -> Value {
    if !read_only && namespace.is_none() && !metadata {
        return volume.into();
    }
    let read_only = read_only.then(|| ("read-only", Value::from(true)));
    let namespace = namespace.map(|id| ("namespace", Value::from(i64::from(id))));
    let metadata = metadata.then(|| ("metadata", Value::from(true)));
    let keys = [("volume", Value::from(volume))].into_iter().chain(read_only).chain(namespace).chain(metadata);
    Value::InlineTable(keys.collect())
}

fn map(document: &mut DocumentMut, group: &str, lun: u16, value: Value) -> Result<(), Refused> {
    if lun > LUN_MAX {
        return Err(Refused::Wrong(format!("a logical unit number is 0 to {LUN_MAX}")));
    }
    let group = find(document, Kind::Group, group)?;
    if group.get("luns").is_none() {
        group.insert("luns", Item::Table(Table::new()));
    }
    let luns = group.get_mut("luns").and_then(Item::as_table_like_mut);
    let luns = luns.ok_or_else(|| Refused::Wrong("'luns' is not a table".into()))?;
    put(luns, &lun.to_string(), value);
    Ok(())
}

fn unmap(document: &mut DocumentMut, group: &str, lun: u16) -> Result<(), Refused> {
    let missing = || Refused::Missing(format!("group '{group}' has no LUN {lun}"));
    let luns = find(document, Kind::Group, group)?.get_mut("luns").and_then(Item::as_table_like_mut);
    luns.and_then(|luns| luns.remove(&lun.to_string())).map(drop).ok_or_else(missing)
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
