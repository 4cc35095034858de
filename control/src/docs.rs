//! The documentation of a schema for operators: the reference page, the explanation of a key, and the JSON schema.

use crate::kind::Kind;
use crate::report::did_you_mean;
use crate::schema::Schema;
use crate::section::Key;
use serde_json::{Map, Value as Json, json};
use std::fmt::{self, Write};

/// The reference page, as `docs/configuration.md` stores it.
#[must_use]
pub fn configuration(schema: &'static Schema) -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Generated from the declarations in `control/src/common_sections.rs` and the files `schema.rs` of fronts and \
         stores with `LUNAR_REGENERATE=1 cargo test -p lunar fresh`.\n\n\
         One file in [TOML](https://toml.io), `lunar.toml`, declares the volumes, the targets and the clients; an \
         example is [lunar.example.toml](lunar.example.toml). Unknown keys are errors. Changes through the API are \
         written to the same file, with its comments and its order, and earlier versions are kept.\n",
    );
    for kind in schema.kinds() {
        let head = match kind {
            Kind::Lun => "group.NAME.luns.NUMBER".to_owned(),
            kind if kind.is_named() => format!("{}.NAME", kind.section()),
            kind => kind.section().to_owned(),
        };
        push(&mut page, format_args!("\n## {}\n\n`[{head}]`\n\n{}\n\n", kind.section(), schema.words(kind)));
        page.push_str("| key | value | default | changes | meaning |\n|---|---|---|---|---|\n");
        for key in schema.keys(kind) {
            let (value, default) = (value(schema, key).replace('|', "\\|"), default(schema, key));
            let line =
                format!("| `{}` | {value} | {default} | {} | {} |\n", key.name(), key.effect.words(), key.words());
            page.push_str(&line);
        }
    }
    page
}

fn push(page: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = page.write_fmt(text);
}

fn value(schema: &'static Schema, key: &Key) -> String {
    let words = schema.shape(key).words();
    if key.unit.is_empty() || words.contains(key.unit) { words } else { format!("{words}, in {}", key.unit) }
}

fn default(schema: &'static Schema, key: &Key) -> String {
    match (key.default)(schema) {
        None => "must be given".into(),
        Some(Json::Null) => "none".into(),
        Some(Json::Array(list)) if list.is_empty() => "none".into(),
        Some(Json::Object(map)) if map.is_empty() => "none".into(),
        Some(default) => format!("`{default}`"),
    }
}

/// Why a section or key was not explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotExplained {
    /// There is no section of this name; a suggestion, or nothing.
    NoSection(String, String),
    /// There is no key of this name in resources of this kind; a suggestion, or nothing.
    NoKey(Kind, String, String),
    /// Several sections have the key: their names with the key.
    Ambiguous(Vec<String>),
}

impl fmt::Display for NotExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSection(section, guess) => write!(f, "there is no section '{section}'{guess}"),
            Self::NoKey(kind, key, guess) => write!(f, "a {kind} has no key '{key}'{guess}"),
            Self::Ambiguous(all) => write!(f, "several sections have it: {}", all.join(", ")),
        }
    }
}

impl std::error::Error for NotExplained {}

/// Explains a section (`volume`) or a key (`volume.size`) in a few lines.
///
/// # Errors
/// If there is none of this name, or the key is in several sections.
pub fn explain(schema: &'static Schema, name: &str) -> Result<String, NotExplained> {
    let name = &*name.replace('_', "-");
    let (section, wanted) = name.split_once('.').map_or((name, None), |(section, key)| (section, Some(key)));
    let Some(kind) = schema.kind(section) else {
        // A key alone, if only one section has it.
        let kinds = schema.kinds();
        let has_key = |kind: &&Kind| schema.keys(**kind).iter().any(|key| key.is(name));
        let full: Vec<String> = kinds.iter().filter(has_key).map(|kind| format!("{}.{name}", kind.section())).collect();
        return match &full[..] {
            [] => {
                let guess = did_you_mean(section, kinds.iter().map(|kind| kind.section()));
                Err(NotExplained::NoSection(section.to_owned(), guess))
            }
            [one] => explain(schema, one),
            _ => Err(NotExplained::Ambiguous(full)),
        };
    };
    let keys = schema.keys(kind);
    // `volume.disk1.size` means the same as `volume.size`.
    match wanted.map(|wanted| wanted.rsplit('.').next().unwrap_or(wanted)) {
        None => {
            let keys: Vec<String> = keys.iter().map(|key| key.name()).collect();
            Ok(format!("{}: {}\nkeys: {}", kind.section(), schema.words(kind), keys.join(", ")))
        }
        Some(wanted) => {
            let Some(key) = keys.iter().find(|key| key.is(wanted)) else {
                let names: Vec<String> = keys.iter().map(|key| key.name()).collect();
                let guess = did_you_mean(wanted, names.iter().map(String::as_str));
                return Err(NotExplained::NoKey(kind, wanted.to_owned(), guess));
            };
            let (value, default) = (value(schema, key).replace('`', ""), default(schema, key).replace('`', ""));
            let head = format!("{}.{}: {}", kind.section(), key.name(), key.words());
            Ok(format!("{head}\nvalue: {value}\ndefault: {default}\nchanges: {}", key.effect.words()))
        }
    }
}

/// The JSON schema (draft 2020-12) of the configuration as a JSON object, for editors and forms. Each key has its
/// documentation as `description`, and the effect of a change as `x-effect`.
#[must_use]
pub fn json_schema(schema: &'static Schema) -> Json {
    let (mut sections, mut definitions) = (Map::new(), Map::new());
    for kind in schema.kinds() {
        definitions.insert(kind.section().to_owned(), object(schema, kind));
        let reference = json!({ "$ref": format!("#/$defs/{}", kind.section()) });
        if kind.is_single() {
            sections.insert(kind.section().to_owned(), reference);
        } else if kind.is_named() {
            sections.insert(kind.section().to_owned(), json!({ "type": "object", "additionalProperties": reference }));
        }
    }
    let lun = json!({ "oneOf": [{ "type": "string" }, { "$ref": "#/$defs/lun" }] });
    definitions.insert(
        "luns".into(),
        json!({
            "type": "object",
            "patternProperties": { "^(0|[1-9][0-9]{0,4})$": lun },
            "additionalProperties": false,
        }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lunar",
        "type": "object",
        "properties": sections,
        "additionalProperties": false,
        "$defs": definitions,
    })
}

fn object(schema: &'static Schema, kind: Kind) -> Json {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let optional = schema.keys_of_some(kind);
    for key in schema.keys(kind) {
        let mut property = schema.shape(key).schema();
        property["description"] = json!(key.words());
        property["x-effect"] = json!(key.effect.word());
        if !key.unit.is_empty() {
            property["x-unit"] = json!(key.unit);
        }
        match (key.default)(schema) {
            // Required only of some resources of the kind: the check knows which.
            None if optional.contains(&key.field) => {}
            None => required.push(key.name()),
            Some(Json::Null) => {}
            Some(default) => property["default"] = default,
        }
        properties.insert(key.name(), property);
    }
    json!({
        "type": "object",
        "description": schema.words(kind),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
#[path = "docs_tests.rs"]
mod tests;
