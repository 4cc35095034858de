//! What is derived from the declarations for those who write a configuration: the reference page, the explanation of a
//! key, and the JSON schema.

use crate::config::Kind;
use crate::report::did_you_mean;
use crate::section::Key;
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;

/// The page, as `docs/configuration.md` holds it.
#[must_use]
pub fn configuration() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Made from the declarations in `control/src/model.rs`; \
         `LUNAR_REGENERATE=1 cargo test -p lunar-control docs` writes it anew.\n\n\
         One file in [TOML](https://toml.io), `lunar.toml`, says what is shared and with whom; an example is \
         [lunar.example.toml](lunar.example.toml). Unknown keys are errors. What is changed through the API is written \
         to the same file, with its comments and its order; every version before is kept.\n",
    );
    for kind in Kind::ALL {
        let head = match kind {
            Kind::Lun => "group.NAME.luns.NUMBER".to_owned(),
            kind if kind.is_named() => format!("{}.NAME", kind.section()),
            kind => kind.section().to_owned(),
        };
        push(&mut page, format_args!("\n## {}\n\n`[{head}]`\n\n{}\n\n", kind.section(), kind.words()));
        page.push_str("| key | value | default | changes | meaning |\n|---|---|---|---|---|\n");
        for key in kind.keys() {
            let (value, default) = (value(key).replace('|', "\\|"), default(key));
            let line =
                format!("| `{}` | {value} | {default} | {} | {} |\n", key.name(), key.effect.words(), key.words());
            page.push_str(&line);
        }
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = page.write_fmt(text);
}

fn value(key: &Key) -> String {
    let words = (key.shape)().words();
    if key.unit.is_empty() || words.contains(key.unit) { words } else { format!("{words}, in {}", key.unit) }
}

fn default(key: &Key) -> String {
    match (key.default)() {
        None => "must be given".into(),
        Some(Json::Null) => "none".into(),
        Some(Json::Array(list)) if list.is_empty() => "none".into(),
        Some(Json::Object(map)) if map.is_empty() => "none".into(),
        Some(default) => format!("`{default}`"),
    }
}

/// What a section (`volume`) or a key (`volume.size`) means, in a few lines.
///
/// # Errors
/// When there is none of this name, with one that may have been meant.
pub fn explain(name: &str) -> Result<String, String> {
    let name = &*name.replace('_', "-");
    let (section, wanted) = name.split_once('.').map_or((name, None), |(section, key)| (section, Some(key)));
    let Some(kind) = Kind::of_section(section) else {
        // A key alone, if it is clear whose it is.
        let owners = |kind: &&Kind| kind.keys().iter().any(|key| key.is(name));
        let full: Vec<String> =
            Kind::ALL.iter().filter(owners).map(|kind| format!("{}.{name}", kind.section())).collect();
        return match &full[..] {
            [] => {
                let guess = did_you_mean(section, Kind::ALL.iter().map(|kind| kind.section()));
                Err(format!("there is no section '{section}'{guess}"))
            }
            [one] => explain(one),
            many => Err(format!("several sections have it: {}", many.join(", "))),
        };
    };
    // `volume.disk1.size` means the same as `volume.size`.
    match wanted.map(|wanted| wanted.rsplit('.').next().unwrap_or(wanted)) {
        None => {
            let keys: Vec<String> = kind.keys().iter().map(Key::name).collect();
            Ok(format!("{}: {}\nkeys: {}", kind.section(), kind.words(), keys.join(", ")))
        }
        Some(wanted) => {
            let Some(key) = kind.keys().iter().find(|key| key.is(wanted)) else {
                let names: Vec<String> = kind.keys().iter().map(Key::name).collect();
                let guess = did_you_mean(wanted, names.iter().map(String::as_str));
                return Err(format!("a {kind} has no key '{wanted}'{guess}"));
            };
            let (value, default) = (value(key).replace('`', ""), default(key).replace('`', ""));
            let head = format!("{}.{}: {}", kind.section(), key.name(), key.words());
            Ok(format!("{head}\nvalue: {value}\ndefault: {default}\nchanges: {}", key.effect.words()))
        }
    }
}

/// The JSON schema (draft 2020-12) of the configuration as a JSON object, for editors and forms. Each key has its
/// meaning as `description`, and who notices a change as `x-effect`.
#[must_use]
pub fn schema() -> Json {
    let (mut sections, mut definitions) = (Map::new(), Map::new());
    for kind in Kind::ALL {
        definitions.insert(kind.section().to_owned(), object(*kind));
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

fn object(kind: Kind) -> Json {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in kind.keys() {
        let mut property = (key.shape)().schema();
        property["description"] = json!(key.words());
        property["x-effect"] = json!(key.effect.word());
        if !key.unit.is_empty() {
            property["x-unit"] = json!(key.unit);
        }
        match (key.default)() {
            None => required.push(key.name()),
            Some(Json::Null) => {}
            Some(default) => property["default"] = default,
        }
        properties.insert(key.name(), property);
    }
    json!({
        "type": "object",
        "description": kind.words(),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
#[path = "docs_tests.rs"]
mod tests;
