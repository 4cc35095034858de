//! The OpenAPI document (3.1), generated from the routes, the declarations of the configuration's keys and the types of
//! the API.

use crate::audit::AuditRecord;
use crate::copies::{CopyRequest, CopyView};
use crate::history::HistoryView;
use crate::logins::{CallerView, LinkView, LoginRequest};
use crate::rights::Right;
use crate::route::{RequestContent, ResponseContent, Route};
use lunar_control::api::{
    Ejection, HandlerView, IdentityView, LocalDisksView, Mapping, MediumView, PROBLEM_TYPE, PlanView, ProblemDetails,
    SessionView, StatusView, VersionView,
};
use lunar_control::counters::{CountersView, LiveView};
use lunar_control::docs;
use lunar_control::doctor::examination::ExaminationView;
use lunar_control::explain::{ExplanationView, RefusalView, ReservationView};
use lunar_control::scsi::{ScsiRequest, ScsiView};
use lunar_control::slow::{AllStagesView, SlowLogView};
use lunar_control::{Kind, Schema};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value as Json, json};

/// The location of schemas in the document.
const SCHEMAS: &str = "/components/schemas";

/// The document for these routes.
#[must_use]
pub fn document(schema: &'static Schema, routes: &[Route]) -> Json {
    let path = |settings: &mut SchemaSettings| settings.definitions_path = SCHEMAS.into();
    let mut generator = SchemaSettings::draft2020_12().with(path).into_generator();
    let mut paths: Map<String, Json> = Map::new();
    for route in routes {
        let operation = operation(schema, route, &mut generator);
        let place = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        place[route.method.word().to_lowercase()] = operation;
    }
    let mut schemas = generator.take_definitions(true);
    schemas.extend(resources(schema));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lunar",
            "version": "1",
            "description": "Volumes, targets, clients and sessions of a Lunar target. Over the Unix socket the kernel \
                identifies the caller; over TCP a token is required.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "security": [{}, { "token": [] }, { "login": [] }],
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "login": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "lunar-PORT",
                    "description": "Of the page only. With TLS, the name begins with `__Host-`.",
                },
            },
        },
    })
}

/// The document as the repository stores it.
#[must_use]
pub fn page(schema: &'static Schema, routes: &[Route]) -> String {
    // Serializing a value in memory cannot fail.
    let mut text = serde_json::to_string_pretty(&document(schema, routes)).unwrap_or_default();
    text.push('\n');
    text
}

fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#{SCHEMAS}/{name}") })
}

fn list_of(schema: Json) -> Json {
    json!({ "type": "array", "items": schema })
}

/// The name of the schema of a new resource: nested resources are mapped one by one and are not part of it.
fn new_name(schema: &'static Schema, kind: Kind) -> String {
    let section = kind.section();
    if schema.keys(kind).iter().any(|key| key.nested) { format!("{section}-new") } else { section.to_owned() }
}

fn operation(schema: &'static Schema, route: &Route, generator: &mut SchemaGenerator) -> Json {
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.summary,
        "x-right": route.right.word(),
        "responses": responses(route, generator),
    });
    if route.right == Right::None {
        operation["security"] = json!([{}]);
    }
    let mut parameters: Vec<Json> = route.parameters().map(|name| parameter(name, route)).collect();
    if route.takes_force() {
        let all = [
            (route.takes_dry_run(), "dry-run", "Only return the steps that would be done."),
            (true, "force", "Make the change although clients with sessions use what it takes away."),
            (route.takes_with_data(), "with-data", "Delete the file of the volume, too."),
        ];
        for (_, name, description) in all.into_iter().filter(|(is_taken, ..)| *is_taken) {
            parameters.push(json!({
                "name": name,
                "in": "query",
                "description": description,
                "schema": { "type": "boolean", "default": false },
            }));
        }
    }
    for (name, description) in route.texts() {
        let schema = json!({ "type": "string" });
        parameters.push(json!({ "name": name, "in": "query", "description": description, "schema": schema }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = body(schema, route.request, generator) {
        operation["requestBody"] = json!({ "required": true, "content": body });
    }
    operation
}

fn parameter(name: &str, route: &Route) -> Json {
    let is_text = ["name", "volume"].contains(&name) || route.response == ResponseContent::Session;
    let schema = if is_text { json!({ "type": "string" }) } else { json!({ "type": "integer", "minimum": 0 }) };
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

fn body(schema: &'static Schema, takes: RequestContent, generator: &mut SchemaGenerator) -> Option<Json> {
    let schema = match takes {
        RequestContent::Nothing => return None,
        RequestContent::Text => return Some(json!({ "application/toml": { "schema": { "type": "string" } } })),
        RequestContent::Keys(kind) => reference(&new_name(schema, kind)),
        RequestContent::Changes(kind) => reference(&format!("{}-change", kind.section())),
        RequestContent::Copy => generator.subschema_for::<CopyRequest>().to_value(),
        RequestContent::Ejection => generator.subschema_for::<Ejection>().to_value(),
        RequestContent::Scsi => generator.subschema_for::<ScsiRequest>().to_value(),
        RequestContent::Mapping => generator.subschema_for::<Mapping>().to_value(),
        RequestContent::Login => generator.subschema_for::<LoginRequest>().to_value(),
    };
    Some(json!({ "application/json": { "schema": schema } }))
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Json {
    let of = |media: &str, schema: Json| json!({ "content": { media: { "schema": schema } } });
    let json = "application/json";
    let mut good = match route.response {
        ResponseContent::Text | ResponseContent::Health => of("text/plain", json!({ "type": "string" })),
        ResponseContent::Metrics => {
            let text = json!({ "schema": { "type": "string" } });
            json!({ "content": { "text/plain": text, "application/openmetrics-text": text } })
        }
        ResponseContent::Events => {
            let note = generator.subschema_for::<AuditRecord>().to_value();
            of("text/event-stream", json!({ "type": "string", "contentSchema": note }))
        }
        ResponseContent::Resource(kind) => of(json, reference(&format!("{}-thing", kind.section()))),
        ResponseContent::Resources(kind) => of(json, list_of(reference(&format!("{}-thing", kind.section())))),
        ResponseContent::Plan => of(json, generator.subschema_for::<PlanView<'_>>().to_value()),
        ResponseContent::Copy => of(json, generator.subschema_for::<CopyView>().to_value()),
        ResponseContent::Medium => of(json, generator.subschema_for::<MediumView>().to_value()),
        ResponseContent::Scsi => of(json, generator.subschema_for::<ScsiView>().to_value()),
        ResponseContent::Copies => of(json, list_of(generator.subschema_for::<CopyView>().to_value())),
        ResponseContent::Counters => of(json, generator.subschema_for::<CountersView>().to_value()),
        ResponseContent::Status => of(json, generator.subschema_for::<StatusView>().to_value()),
        ResponseContent::Versions => of(json, list_of(generator.subschema_for::<VersionView<'_>>().to_value())),
        ResponseContent::Sessions => of(json, list_of(generator.subschema_for::<SessionView>().to_value())),
        ResponseContent::LocalDisks => of(json, generator.subschema_for::<LocalDisksView>().to_value()),
        ResponseContent::Handlers => of(json, list_of(generator.subschema_for::<HandlerView>().to_value())),
        ResponseContent::Session => of(json, generator.subschema_for::<SessionView>().to_value()),
        ResponseContent::Stages => of(json, generator.subschema_for::<AllStagesView>().to_value()),
        ResponseContent::Refusals => of(json, list_of(generator.subschema_for::<RefusalView>().to_value())),
        ResponseContent::Explanation => of(json, generator.subschema_for::<ExplanationView>().to_value()),
        ResponseContent::Reservation => of(json, generator.subschema_for::<ReservationView>().to_value()),
        ResponseContent::History => of(json, generator.subschema_for::<HistoryView>().to_value()),
        ResponseContent::Examination => of(json, generator.subschema_for::<ExaminationView>().to_value()),
        ResponseContent::SlowLog => of(json, generator.subschema_for::<SlowLogView>().to_value()),
        ResponseContent::AuditRecords => of(json, list_of(generator.subschema_for::<AuditRecord>().to_value())),
        ResponseContent::Caller => of(json, generator.subschema_for::<CallerView>().to_value()),
        ResponseContent::Link => of(json, generator.subschema_for::<LinkView>().to_value()),
        ResponseContent::Live => {
            let frame = generator.subschema_for::<LiveView>().to_value();
            of("text/event-stream", json!({ "type": "string", "contentSchema": frame }))
        }
        ResponseContent::Config | ResponseContent::Statistics | ResponseContent::Schema => {
            of(json, json!({ "type": "object" }))
        }
    };
    good["description"] = json!("Success.");
    let mut bad = of(PROBLEM_TYPE, generator.subschema_for::<ProblemDetails>().to_value());
    bad["description"] = json!("The reason, and what to do.");
    json!({ "200": good, "default": bad })
}

/// The schemas of configured resources: as in the file, to create, to change and as shown.
fn resources(schema: &'static Schema) -> Map<String, Json> {
    let mut schemas = Map::new();
    let mut definitions = docs::json_schema(schema)["$defs"].take();
    move_references(&mut definitions);
    let Json::Object(definitions) = definitions else { return schemas };
    for kind in schema.kinds().into_iter().filter(|kind| kind.is_named() || kind.is_single()) {
        let section = kind.section();
        let Some(whole) = definitions.get(section) else { continue };
        let mut new = whole.clone();
        if let Some(properties) = new["properties"].as_object_mut() {
            let nested = schema.keys(kind).into_iter().filter(|key| key.nested);
            nested.for_each(|key| drop(properties.remove(&key.name())));
        }
        if kind.is_named() && new_name(schema, kind) != section {
            schemas.insert(new_name(schema, kind), new.clone());
        }
        schemas.insert(format!("{section}-change"), change(new));
        let kinds = json!({ "const": section });
        let mut thing = json!({
            "type": "object",
            "description": "With defaults and without secrets.",
            "properties": { "kind": kinds, "name": { "type": "string" }, "keys": reference(section) },
            "required": ["kind", "name", "keys"],
        });
        if kind == Kind::Volume {
            thing["properties"]["identity"] = schemars::schema_for!(IdentityView).to_value();
        }
        schemas.insert(format!("{section}-thing"), thing);
    }
    schemas.extend(definitions);
    schemas
}

/// The schema of a change: every key is optional, and `null` removes a key.
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
    use crate::routes::routes;
    use lunar_control::testing::SAMPLE;

    #[test]
    fn every_reference_has_a_target() {
        let document = document(&SAMPLE, &routes(&SAMPLE));
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 100, "{}", references.len());
        for target in references {
            let pointer = target.strip_prefix('#').unwrap_or_else(|| panic!("{target} refers to another document"));
            assert!(document.pointer(pointer).is_some(), "{target} has no target");
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
