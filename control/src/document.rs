//! Edits of the text of a configuration: everything else stays as it was written, comments and order included.

pub use crate::refused::{FormError, Refused};

use crate::config::is_name;
use crate::kind::Kind;
use crate::luns::LUN_MAX;
use crate::names::Uuid;
use crate::refused::{EditMistake, Missing};
use crate::report::did_you_mean;
use crate::schema::Schema;
use crate::secret::HIDDEN;
use crate::section::Key;
use crate::section::Shape;
use crate::value::Textual;
use serde_json::{Map, Value as Json, json};
use std::fmt;
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, TableLike, Value};

/// The key of secrets.
const SECRET: &str = "secret";

/// Keys with their new values; null removes a key. The values may be secret, so they are not shown.
#[derive(Clone, PartialEq, Default)]
pub struct Keys(pub Map<String, Json>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keys {
    /// Adds `KEY=VALUE` of a command line. Lists are written with commas; `none` removes a key; a secret is
    /// `file:/PATH`, `credential:NAME`, or the secret itself.
    ///
    /// # Errors
    /// If there is no such key, or its value has another form.
    pub fn add_text(&mut self, schema: &'static Schema, kind: Kind, text: &str) -> Result<(), Refused> {
        // The text may be a secret whose key was forgotten, so the mistake does not quote it.
        let (name, value) = text.split_once('=').ok_or(EditMistake::NoValue)?;
        let key = find_key(schema, kind, &name.replace('_', "-"))?;
        let value = from_text(&(key.shape)(), value).map_err(|why| Refused::Form { key: key.name(), why })?;
        self.0.insert(key.name(), value);
        Ok(())
    }
}

fn from_text(shape: &Shape, text: &str) -> Result<Json, FormError> {
    Ok(match shape {
        Shape::Optional(_) if text == "none" => Json::Null,
        Shape::Optional(some) => return from_text(some, text),
        Shape::Bool => match text {
            "true" | "yes" | "on" => json!(true),
            "false" | "no" | "off" => json!(false),
            _ => return Err(FormError::NotBool),
        },
        Shape::Whole { min, max } => {
            json!(text.parse::<u64>().map_err(|_| FormError::NotWhole { min: *min, max: *max })?)
        }
        Shape::List(_) if text == "none" || text.is_empty() => json!([]),
        Shape::List(each) => text.split(',').map(|part| from_text(each, part.trim())).collect::<Result<_, _>>()?,
        Shape::Secret => match text.split_once(':') {
            Some((word @ ("file" | "credential"), place)) => json!({ word: place }),
            _ => json!(text),
        },
        Shape::Luns => return Err(FormError::Luns),
        Shape::Text { .. } | Shape::Choice(_) | Shape::Store | Shape::Protocol | Shape::Name(_) => json!(text),
    })
}

/// One change of a configuration.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Creates a resource.
    Create {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its keys.
        keys: Keys,
    },
    /// Sets keys of a resource.
    Set {
        /// Its kind.
        kind: Kind,
        /// Its name; empty for a section that exists once.
        name: String,
        /// The keys that change.
        keys: Keys,
    },
    /// Removes a resource.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// Maps a volume to a logical unit number of a group; it replaces another volume there.
    Map {
        /// The group.
        group: String,
        /// The logical unit number.
        lun: u16,
        /// The volume.
        volume: String,
        /// Whether writes of the group are refused.
        read_only: bool,
        /// Its namespace ID for NVMe hosts, if it is not the default.
        namespace: Option<u16>,
        /// Whether NVMe hosts see the protection information of the volume.
        metadata: bool,
    },
    /// Removes a logical unit number from a group.
    Unmap {
        /// The group.
        group: String,
        /// The logical unit number.
        lun: u16,
    },
}

/// Edits the text of a configuration, all edits or none. The result is not checked.
///
/// # Errors
/// The first edit that cannot be made.
pub fn edit(schema: &'static Schema, text: &str, edits: &[Edit]) -> Result<String, Refused> {
    let mut document = read(text)?;
    for edit in edits {
        match edit {
            Edit::Create { kind, name, keys } => create(&mut document, schema, *kind, name, keys)?,
            Edit::Set { kind, name, keys } => set(&mut document, schema, *kind, name, keys)?,
            Edit::Delete { kind, name } => delete(&mut document, *kind, name)?,
            Edit::Map { group, lun, volume, read_only, namespace, metadata } => {
                map(&mut document, group, *lun, mapping(volume, *read_only, *namespace, *metadata))?;
            }
            Edit::Unmap { group, lun } => unmap(&mut document, group, *lun)?,
        }
    }
    Ok(document.to_string())
}

/// Adds the UUID that `uuid` returns for its name to each volume without one. Returns the text and the names of these
/// volumes.
///
/// # Errors
/// If the text cannot be read, or `uuid` fails.
pub fn name_volumes<E: From<Refused>>(
    text: &str,
    mut uuid: impl FnMut(&str) -> Result<Uuid, E>,
) -> Result<(String, Vec<String>), E> {
    let mut document = read(text)?;
    let mut named = Vec::new();
    let volumes = document.get_mut(Kind::Volume.section()).and_then(Item::as_table_like_mut);
    for (name, volume) in volumes.into_iter().flat_map(|volumes| volumes.iter_mut()) {
        if let Some(volume) = volume.as_table_like_mut()
            && !volume.contains_key("uuid")
        {
            let uuid = uuid(name.get())?;
            put(volume, "uuid", Value::from(uuid.text()));
            named.push(name.get().to_owned());
        }
    }
    if named.is_empty() { Ok((text.to_owned(), named)) } else { Ok((document.to_string(), named)) }
}

/// Fills the secrets that are redacted in an earlier text with those of the same resources in the present one. Returns
/// the text.
///
/// # Errors
/// If a resource has no secret in the present text.
pub(crate) fn fill_secrets(text: &str, present: &str) -> Result<String, Refused> {
    let (mut document, present) = (read(text)?, read(present)?);
    let secret = |item: &Item| item.get(SECRET).and_then(Item::as_str).map(str::to_owned);
    for kind in [Kind::User, Kind::TlsKey, Kind::ApiToken] {
        let all = document.get_mut(kind.section()).and_then(Item::as_table_like_mut);
        for (name, item) in all.into_iter().flat_map(|all| all.iter_mut()) {
            if secret(item).as_deref() != Some(HIDDEN) {
                continue;
            }
            let now = present.get(kind.section()).and_then(|all| secret(all.get(name.get())?));
            let Some(now) = now else {
                return Err(EditMistake::ForgottenSecret(kind, name.get().to_owned()).into());
            };
            if let Some(table) = item.as_table_like_mut() {
                put(table, SECRET, Value::from(now));
            }
        }
    }
    Ok(document.to_string())
}

fn read(text: &str) -> Result<DocumentMut, Refused> {
    // The message of the parser quotes the text, which may contain a secret.
    text.parse().map_err(|_| EditMistake::Unreadable.into())
}

fn find_key(schema: &'static Schema, kind: Kind, name: &str) -> Result<&'static Key, Refused> {
    let keys = schema.keys(kind);
    keys.iter().find(|key| key.is(name)).copied().ok_or_else(|| {
        let names: Vec<String> = keys.iter().map(|key| key.name()).collect();
        let guess = did_you_mean(name, names.iter().map(String::as_str));
        EditMistake::NoKey { kind, key: name.chars().take(64).collect(), guess }.into()
    })
}

fn no_such(kind: Kind, name: &str) -> Refused {
    Refused::Missing(Missing::Resource(kind, name.to_owned()))
}

/// A section, which is created if it is missing; without a header of its own, because its resources have headers.
fn section(document: &mut DocumentMut, kind: Kind) -> Result<&mut dyn TableLike, Refused> {
    let item = document.entry(kind.section()).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(kind.is_named());
        Item::Table(table)
    });
    item.as_table_like_mut().ok_or_else(|| EditMistake::NoTable(kind.section()).into())
}

fn create(
    document: &mut DocumentMut,
    schema: &'static Schema,
    kind: Kind,
    name: &str,
    keys: &Keys,
) -> Result<(), Refused> {
    if !kind.is_named() {
        return Err(EditMistake::Unnamed(kind).into());
    }
    if !is_name(name) {
        return Err(EditMistake::Name.into());
    }
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    set_keys(&mut table, schema, kind, keys)?;
    let is_first = document.is_empty();
    let all = section(document, kind)?;
    if all.contains_key(name) {
        return Err(Refused::Exists(kind, name.to_owned()));
    }
    if is_first {
        table.decor_mut().set_prefix("");
    }
    all.insert(name, Item::Table(table));
    Ok(())
}

fn set(
    document: &mut DocumentMut,
    schema: &'static Schema,
    kind: Kind,
    name: &str,
    keys: &Keys,
) -> Result<(), Refused> {
    if kind.is_single() {
        return set_keys(section(document, kind)?, schema, kind, keys);
    }
    set_keys(find(document, kind, name)?, schema, kind, keys)
}

fn find<'d>(document: &'d mut DocumentMut, kind: Kind, name: &str) -> Result<&'d mut dyn TableLike, Refused> {
    let all = document.get_mut(kind.section()).and_then(Item::as_table_like_mut);
    all.and_then(|all| all.get_mut(name)?.as_table_like_mut()).ok_or_else(|| no_such(kind, name))
}

fn set_keys(table: &mut dyn TableLike, schema: &'static Schema, kind: Kind, keys: &Keys) -> Result<(), Refused> {
    for (name, value) in &keys.0 {
        let key = find_key(schema, kind, name)?;
        let name = key.name();
        if key.nested && !value.is_null() {
            return Err(EditMistake::Luns.into());
        }
        match value {
            Json::Null => drop(table.remove(&name)),
            value => put(table, &name, to_toml(value).map_err(|why| Refused::Form { key: name.clone(), why })?),
        }
    }
    Ok(())
}

/// Sets a value; a comment behind the earlier value stays.
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

fn to_toml(value: &Json) -> Result<Value, FormError> {
    Ok(match value {
        Json::Bool(value) => Value::from(*value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Number(number) => Value::from(number.as_i64().ok_or(FormError::OutOfRange)?),
        Json::Array(list) => Value::Array(list.iter().map(to_toml).collect::<Result<Array, _>>()?),
        Json::Object(object) => {
            let entries = object.iter().map(|(key, value)| Ok::<_, FormError>((key.as_str(), to_toml(value)?)));
            Value::InlineTable(entries.collect::<Result<InlineTable, _>>()?)
        }
        Json::Null => return Err(FormError::Null),
    })
}

fn delete(document: &mut DocumentMut, kind: Kind, name: &str) -> Result<(), Refused> {
    if !kind.is_named() {
        return Err(EditMistake::Permanent(kind).into());
    }
    let all = document.get_mut(kind.section()).and_then(Item::as_table_like_mut);
    let gone = all.and_then(|all| all.remove(name)).ok_or_else(|| no_such(kind, name))?;
    if let Item::Table(gone) = &gone {
        keep_remarks(document, gone);
    }
    Ok(())
}

/// Comments before a table that are separated from it by an empty line, such as the first lines of a file, do not
/// belong to the table. They stay when the table is removed.
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

/// The first table with a header of its own after this place.
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

/// A volume in a LUN map, in its shortest form.
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
        return Err(EditMistake::LunTooLarge.into());
    }
    let group = find(document, Kind::Group, group)?;
    if group.get("luns").is_none() {
        group.insert("luns", Item::Table(Table::new()));
    }
    let luns = group.get_mut("luns").and_then(Item::as_table_like_mut);
    let luns = luns.ok_or(EditMistake::NoTable("luns"))?;
    put(luns, &lun.to_string(), value);
    Ok(())
}

fn unmap(document: &mut DocumentMut, group: &str, lun: u16) -> Result<(), Refused> {
    let missing = || Refused::Missing(Missing::Lun { group: group.to_owned(), lun });
    let luns = find(document, Kind::Group, group)?.get_mut("luns").and_then(Item::as_table_like_mut);
    luns.and_then(|luns| luns.remove(&lun.to_string())).map(drop).ok_or_else(missing)
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
