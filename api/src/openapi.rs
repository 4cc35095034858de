//! The OpenAPI document (3.1), made from the routes, from the declarations of the configuration's keys, and from the
//! types of what the API says.

use crate::copy::{CopyView, Order};
use crate::journal::Note;
use crate::routes::{Gives, Route, Takes, routes};
use lunar_control::Kind;
use lunar_control::api::{
    Ejection, Mapping, MediumView, PROBLEM_TYPE, PlanView, ProblemDetails, SessionView, StatusView, VersionView,
};
use lunar_control::docs;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value as Json, json};

/// Where schemas are in the document.
const SCHEMAS: &str = "/components/schemas";

/// The document.
#[must_use]
pub fn document() -> Json {
    let path = |settings: &mut SchemaSettings| settings.definitions_path = SCHEMAS.into();
    let mut generator = SchemaSettings::draft2020_12().with(path).into_generator();
    let mut paths: Map<String, Json> = Map::new();
    for route in routes() {
        let operation = operation(&route, &mut generator);
        let place = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        place[route.method.word().to_lowercase()] = operation;
    }
    let mut schemas = generator.take_definitions(true);
    schemas.extend(things());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lunar",
            "version": "1",
            "description": "What is shared, with whom, and who is logged in. Over the Unix socket the kernel says who \
                asks; over TCP a token does.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "security": [{}, { "token": [] }],
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// The document as the repository holds it.
#[must_use]
pub fn page() -> String {
    // A value that was just made can be written.
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#{SCHEMAS}/{name}") })
}

fn list_of(schema: Json) -> Json {
    json!({ "type": "array", "items": schema })
}

/// The schema of a new thing: things that are mapped one by one are no part of it.
fn new_name(kind: Kind) -> String {
    let section = kind.section();
    if kind.keys().iter().any(|key| key.nested) { format!("{section}-new") } else { section.to_owned() }
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Json {
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.words,
        "x-right": route.right.word(),
        "responses": responses(route, generator),
    });
    let mut parameters: Vec<Json> = route.parameters().map(|name| parameter(name, route)).collect();
    if route.is_plan() {
        parameters.push(json!({
            "name": "dry-run",
            "in": "query",
            "description": "Only say what would be done.",
            "schema": { "type": "boolean", "default": false },
        }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = body(route.takes, generator) {
        operation["requestBody"] = json!({ "required": true, "content": body });
    }
    operation
}

fn parameter(name: &str, route: &Route) -> Json {
    let is_text = name == "name" || route.gives == Gives::Session;
    let schema = if is_text { json!({ "type": "string" }) } else { json!({ "type": "integer", "minimum": 0 }) };
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

fn body(takes: Takes, generator: &mut SchemaGenerator) -> Option<Json> {
    let schema = match takes {
        Takes::Nothing => return None,
        Takes::Text => return Some(json!({ "application/toml": { "schema": { "type": "string" } } })),
        Takes::Keys(kind) => reference(&new_name(kind)),
        Takes::Changes(kind) => reference(&format!("{}-change", kind.section())),
        Takes::Copy => generator.subschema_for::<Order>().to_value(),
        Takes::Ejection => generator.subschema_for::<Ejection>().to_value(),
        Takes::Mapping => generator.subschema_for::<Mapping>().to_value(),
    };
    Some(json!({ "application/json": { "schema": schema } }))
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Json {
    let of = |media: &str, schema: Json| json!({ "content": { media: { "schema": schema } } });
    let json = "application/json";
    let mut good = match route.gives {
        Gives::Text => of("text/plain", json!({ "type": "string" })),
        Gives::Events => {
            let note = generator.subschema_for::<Note>().to_value();
            of("text/event-stream", json!({ "type": "string", "contentSchema": note }))
        }
        Gives::Thing(kind) => of(json, reference(&format!("{}-thing", kind.section()))),
        Gives::Things(kind) => of(json, list_of(reference(&format!("{}-thing", kind.section())))),
        Gives::Plan => of(json, generator.subschema_for::<PlanView<'_>>().to_value()),
        Gives::Copy => of(json, generator.subschema_for::<CopyView>().to_value()),
        Gives::Medium => of(json, generator.subschema_for::<MediumView>().to_value()),
        Gives::Copies => of(json, list_of(generator.subschema_for::<CopyView>().to_value())),
        Gives::Status => of(json, generator.subschema_for::<StatusView>().to_value()),
        Gives::Versions => of(json, list_of(generator.subschema_for::<VersionView<'_>>().to_value())),
        Gives::Sessions => of(json, list_of(generator.subschema_for::<SessionView>().to_value())),
        Gives::Session => of(json, generator.subschema_for::<SessionView>().to_value()),
        Gives::Notes => of(json, list_of(generator.subschema_for::<Note>().to_value())),
        Gives::Config | Gives::Statistics | Gives::Schema => of(json, json!({ "type": "object" })),
    };
    good["description"] = json!("It is so.");
    let mut bad = of(PROBLEM_TYPE, generator.subschema_for::<ProblemDetails>().to_value());
    bad["description"] = json!("Why not, and what to do.");
    json!({ "200": good, "default": bad })
}

/// The schemas of the configuration's things: as a file has them, as they are made, changed and shown.
fn things() -> Map<String, Json> {
    let mut schemas = Map::new();
    let mut definitions = docs::schema()["$defs"].take();
    move_references(&mut definitions);
    let Json::Object(definitions) = definitions else { return schemas };
    for kind in Kind::ALL.iter().filter(|kind| kind.is_named() || kind.is_single()) {
        let section = kind.section();
        let Some(whole) = definitions.get(section) else { continue };
        let mut new = whole.clone();
        if let Some(properties) = new["properties"].as_object_mut() {
            let nested = kind.keys().iter().filter(|key| key.nested);
            nested.for_each(|key| drop(properties.remove(&key.name())));
        }
        if kind.is_named() && new_name(*kind) != section {
            schemas.insert(new_name(*kind), new.clone());
        }
        schemas.insert(format!("{section}-change"), change(new));
        let kinds = json!({ "const": section });
        schemas.insert(
            format!("{section}-thing"),
            json!({
                "type": "object",
                "description": "With defaults, and without secrets.",
                "properties": { "kind": kinds, "name": { "type": "string" }, "keys": reference(section) },
                "required": ["kind", "name", "keys"],
            }),
        );
    }
    schemas.extend(definitions);
    schemas
}

/// The schema of a change: any of the keys, and null takes one out.
fn change(mut whole: Json) -> Json {
    if let Some(properties) = whole["properties"].as_object_mut() {
        for property in properties.values_mut() {
            if let Some(property) = property.as_object_mut() {
                property.remove("default");
            }
            *property = json!({ "anyOf": [property.take(), { "type": "null" }] });
        }
    }
    if let Some(whole) = whole.as_object_mut() {
        whole.remove("required");
    }
    whole
}

fn move_references(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            if let Some(Json::String(target)) = object.get_mut("$ref") {
                *target = target.replace("#/$defs", &format!("#{SCHEMAS}"));
            }
            object.values_mut().for_each(move_references);
        }
        Json::Array(list) => list.iter_mut().for_each(move_references),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_document_in_the_repository_is_fresh() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::write(&path, page()).expect("docs/ is there");
        }
        let there = std::fs::read_to_string(&path).expect("docs/openapi.json is there");
        assert!(there == page(), "run LUNAR_REGENERATE=1 cargo test -p lunar-api fresh");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 100, "{}", references.len());
        for target in references {
            let pointer = target.strip_prefix('#').unwrap_or_else(|| panic!("{target} leads outside"));
            assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
        }
    }

    fn collect(value: &Json, into: &mut Vec<String>) {
        match value {
            Json::Object(object) => {
                into.extend(object.get("$ref").and_then(Json::as_str).map(str::to_owned));
                object.values().for_each(|value| collect(value, into));
            }
            Json::Array(list) => list.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
}
