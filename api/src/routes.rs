//! The table of routes. The server, the OpenAPI document and the reference page derive from it; the rows of configured
//! resources derive from their declarations.

use crate::control::Control;
use crate::request::{ApiRequest, Outcome, Reply};
use crate::rights::Right;
use crate::route::{Handler, KICK_SESSION, LoginStep, Method, RequestContent, ResponseContent, Route};
use crate::{copy, examine, explain, handlers, health, made, openapi, scsi};
use lunar_control::{Kind, Schema};

/// A row without a kind of resource.
fn row(
    (method, path, name): (Method, &str, &str),
    right: Right,
    (request, response): (RequestContent, ResponseContent),
    handler: Handler,
    summary: &str,
) -> Route {
    let (path, name, summary) = (path.to_owned(), name.to_owned(), summary.to_owned());
    Route { method, path, name, right, summary, request, response, kind: None, handler }
}

/// All routes for the resources of a schema, in the order of the reference page.
#[must_use]
pub fn routes(schema: &'static Schema) -> Vec<Route> {
    let mut all = service();
    all.extend(numbers());
    all.extend(configuration());
    all.extend(versions());
    for kind in schema.kinds() {
        if kind.is_named() {
            all.extend(named(kind));
        } else if kind.is_single() {
            all.extend(single(schema, kind));
        }
    }
    all.extend(luns());
    all.extend(media());
    all.push(scsi());
    all.extend(copies());
    all.extend(explanations());
    all.extend(reservations());
    all.extend(monitoring());
    all.extend(logins());
    all
}

/// The service: status, sessions, audit log.
fn service() -> Vec<Route> {
    use Method::{Delete, Get};
    use RequestContent::Nothing;
    use Right::{Read, Write};
    vec![
        row(
            (Get, "/v1/status", "status"),
            Read,
            (Nothing, ResponseContent::Status),
            Handler::Control(handlers::status),
            "The version of Lunar, what it serves, and its troubles.",
        ),
        row(
            (Get, "/v1/session", "list-session"),
            Read,
            (Nothing, ResponseContent::Sessions),
            Handler::Long(handlers::sessions),
            "All sessions, with the state of their TCP connections.",
        ),
        row(
            (Get, "/v1/session/{id}", "show-session"),
            Read,
            (Nothing, ResponseContent::Session),
            Handler::Long(handlers::session),
            "One session, with the state of its TCP connections.",
        ),
        row(
            (Delete, "/v1/session/{id}", KICK_SESSION),
            Write,
            (Nothing, ResponseContent::Session),
            Handler::Long(handlers::kick),
            "Ends a session; its client may reconnect. A disk of the machine is removed, one in use with `force` only.",
        ),
        row(
            (Get, "/v1/handler", "list-handler"),
            Read,
            (Nothing, ResponseContent::Handlers),
            Handler::Control(handlers::volume_handlers),
            "The handlers of volumes.",
        ),
        row(
            (Get, "/v1/local-disk", "list-local-disk"),
            Read,
            (Nothing, ResponseContent::LocalDisks),
            Handler::Long(handlers::local_disks),
            "The [disks of the machine](ublk.md) that are served, and what its kernel offers for them.",
        ),
        row(
            (Get, "/v1/events", "events"),
            Read,
            (Nothing, ResponseContent::Events),
            Handler::EventStream,
            "Audit records as they are made; `Last-Event-ID` requests the records after that number.",
        ),
        row(
            (Get, "/v1/audit", "audit"),
            Read,
            (Nothing, ResponseContent::AuditRecords),
            Handler::Local(handlers::audit),
            "The last logins, refusals and changes of the audit log.",
        ),
    ]
}

/// The numbers of the service.
fn numbers() -> Vec<Route> {
    use Method::Get;
    use RequestContent::Nothing;
    use Right::Read;
    vec![
        row(
            (Get, "/v1/statistics", "statistics"),
            Read,
            (Nothing, ResponseContent::Statistics),
            Handler::Control(handlers::statistics),
            "The statistics since the start.",
        ),
        row(
            (Get, "/v1/counters", "counters"),
            Read,
            (Nothing, ResponseContent::Counters),
            Handler::Counters,
            "All counters of cores, volumes and hosts at one moment, from which readers compute rates.",
        ),
        row(
            (Get, "/v1/live", "numbers"),
            Read,
            (Nothing, ResponseContent::Live),
            Handler::Live,
            "The counters and the troubles once a second: first all, then those that have changed.",
        ),
        row(
            (Get, "/v1/history", "history"),
            Read,
            (Nothing, ResponseContent::History),
            Handler::Local(handlers::history),
            "The rates of the last ten minutes, of all volumes together or of one of the busiest.",
        ),
        row(
            (Get, "/v1/doctor", "doctor"),
            Read,
            (Nothing, ResponseContent::Examination),
            Handler::Long(examine::examine),
            "The findings of `lunar doctor` about the service itself; it watches the load for two seconds.",
        ),
        row(
            (Get, "/v1/stages", "stages"),
            Read,
            (Nothing, ResponseContent::Stages),
            Handler::Control(handlers::stages),
            "Where the time of commands goes, by core and by volume.",
        ),
        row(
            (Get, "/v1/slow", "slow"),
            Read,
            (Nothing, ResponseContent::SlowLog),
            Handler::Control(handlers::slow),
            "The slow log: commands that took longer than `slow` in `[logging]`, with the parts of their time.",
        ),
    ]
}

fn get(path: &str, name: &str, response: ResponseContent, handler: Handler, summary: &str) -> Route {
    row((Method::Get, path, name), Right::Read, (RequestContent::Nothing, response), handler, summary)
}

fn post(
    path: &str,
    name: &str,
    request: RequestContent,
    response: ResponseContent,
    handler: Handler,
    summary: &str,
) -> Route {
    row((Method::Post, path, name), Right::Write, (request, response), handler, summary)
}

/// The configuration as a whole.
fn configuration() -> Vec<Route> {
    use RequestContent::{Nothing, Text};
    vec![
        get(
            "/v1/config",
            "config",
            ResponseContent::Config,
            Handler::Control(handlers::config),
            "The whole configuration as JSON, without secrets.",
        ),
        get(
            "/v1/config/text",
            "config-text",
            ResponseContent::Text,
            Handler::Control(handlers::text),
            "The configuration file, without secrets.",
        ),
        post(
            "/v1/plan",
            "plan",
            Text,
            ResponseContent::Plan,
            Handler::Control(handlers::plan),
            "The steps that applying a configuration would take.",
        ),
        post(
            "/v1/diff",
            "diff",
            Text,
            ResponseContent::Text,
            Handler::Control(handlers::diff),
            "The difference between the running configuration and the text; without a text, the file on disk.",
        ),
        post(
            "/v1/apply",
            "apply",
            Text,
            ResponseContent::Plan,
            Handler::Control(handlers::apply),
            "Applies a configuration completely or not at all.",
        ),
        post(
            "/v1/reload",
            "reload",
            Nothing,
            ResponseContent::Plan,
            Handler::Control(handlers::reload),
            "Applies the configuration file after it was edited.",
        ),
    ]
}

/// The stored versions of the configuration, and its schemas.
fn versions() -> Vec<Route> {
    vec![
        get(
            "/v1/version",
            "list-version",
            ResponseContent::Versions,
            Handler::Control(handlers::versions),
            "The stored versions.",
        ),
        get(
            "/v1/version/{number}",
            "show-version",
            ResponseContent::Text,
            Handler::Control(handlers::version),
            "The text of a version, without secrets.",
        ),
        get(
            "/v1/version/{number}/diff",
            "diff-version",
            ResponseContent::Text,
            Handler::Control(handlers::version_diff),
            "The difference between a version and the running configuration.",
        ),
        post(
            "/v1/version/{number}/restore",
            "restore-version",
            RequestContent::Nothing,
            ResponseContent::Plan,
            Handler::Control(handlers::restore),
            "Applies a stored version; volumes that have grown since keep their sizes.",
        ),
        get(
            "/v1/schema",
            "schema",
            ResponseContent::Schema,
            Handler::Local(handlers::schema),
            "The JSON schema of a configuration.",
        ),
        get(
            "/v1/openapi.json",
            "openapi",
            ResponseContent::Schema,
            Handler::Local(document),
            "This API as an OpenAPI document.",
        ),
    ]
}

/// The rows of a kind with named resources.
fn named(kind: Kind) -> Vec<Route> {
    use Method::{Delete, Get, Patch, Post};
    use Right::{Read, Write};
    let section = kind.section();
    let one = format!("/v1/{section}/{{name}}");
    let row = |method, path: &str, verb: &str, right, request, response, handler, summary: String| Route {
        method,
        path: path.to_owned(),
        name: format!("{verb}-{section}"),
        right,
        summary,
        request,
        response,
        kind: Some(kind),
        handler,
    };
    // The file of a volume is deleted after all sessions have left it, which may take long.
    let delete = match kind {
        Kind::Volume => Handler::Long(handlers::delete_volume),
        _ => Handler::Control(handlers::delete),
    };
    // The system that keeps the store of a volume may make it first.
    let create = match kind {
        Kind::Volume => Handler::Long(made::create),
        _ => Handler::Control(handlers::create),
    };
    let (resources, resource) = (ResponseContent::Resources(kind), ResponseContent::Resource(kind));
    let none = RequestContent::Nothing;
    let (keys, changes) = (RequestContent::Keys(kind), RequestContent::Changes(kind));
    vec![
        row(
            Get,
            &format!("/v1/{section}"),
            "list",
            Read,
            none,
            resources,
            Handler::Control(handlers::list),
            format!("All resources of kind {kind}."),
        ),
        row(Get, &one, "show", Read, none, resource, Handler::Control(handlers::show), format!("One {kind}.")),
        row(Post, &one, "create", Write, keys, ResponseContent::Plan, create, format!("Creates one {kind}.")),
        row(
            Patch,
            &one,
            "set",
            Write,
            changes,
            ResponseContent::Plan,
            Handler::Control(handlers::set),
            format!("Changes keys of one {kind}."),
        ),
        row(Delete, &one, "delete", Write, none, ResponseContent::Plan, delete, format!("Removes one {kind}.")),
    ]
}

/// The rows of a kind with a single resource.
fn single(schema: &'static Schema, kind: Kind) -> Vec<Route> {
    let section = kind.section();
    let row = |method, verb: &str, right, request, response, handler, summary: &str| Route {
        method,
        path: format!("/v1/{section}"),
        name: format!("{verb}-{section}"),
        right,
        summary: summary.to_owned(),
        request,
        response,
        kind: Some(kind),
        handler: Handler::Control(handler),
    };
    let words = schema.words(kind);
    vec![
        row(
            Method::Get,
            "show",
            Right::Read,
            RequestContent::Nothing,
            ResponseContent::Resource(kind),
            handlers::show,
            &words,
        ),
        row(
            Method::Patch,
            "set",
            Right::Write,
            RequestContent::Changes(kind),
            ResponseContent::Plan,
            handlers::set,
            "Changes keys.",
        ),
    ]
}

/// LUN maps.
fn luns() -> Vec<Route> {
    let path = "/v1/group/{name}/luns/{lun}";
    let row = |method, name, request, handler, summary| {
        row((method, path, name), Right::Write, (request, ResponseContent::Plan), Handler::Control(handler), summary)
    };
    vec![
        row(Method::Put, "map-lun", RequestContent::Mapping, handlers::map, "Maps a volume to a LUN of a group."),
        row(Method::Delete, "unmap-lun", RequestContent::Nothing, handlers::unmap, "Removes a LUN from a group."),
    ]
}

/// Media of volumes: those that can be removed, and stores that were unavailable.
fn media() -> Vec<Route> {
    use Method::{Get, Post};
    use Right::{Read, Write};
    let path = |what| format!("/v1/volume/{{name}}/{what}");
    vec![
        row(
            (Get, &path("medium"), "show-medium"),
            Read,
            (RequestContent::Nothing, ResponseContent::Medium),
            Handler::Control(handlers::medium),
            "The medium of a removable volume.",
        ),
        row(
            (Post, &path("eject"), "eject-volume"),
            Write,
            (RequestContent::Ejection, ResponseContent::Medium),
            Handler::Long(handlers::eject),
            "Ejects the medium: flushes it, then makes it inaccessible.",
        ),
        row(
            (Post, &path("load"), "load-volume"),
            Write,
            (RequestContent::Nothing, ResponseContent::Medium),
            Handler::Long(handlers::load),
            "Loads the medium; initiators get a unit attention that the medium may have changed.",
        ),
        row(
            (Post, &path("accept"), "accept-volume"),
            Write,
            (RequestContent::Nothing, ResponseContent::Medium),
            Handler::Long(handlers::accept),
            "Serves the file or device that is now at the path of a volume, although Lunar cannot verify that it is \
             the previous one.",
        ),
    ]
}

/// SCSI commands of the operator.
fn scsi() -> Route {
    row(
        (Method::Post, "/v1/volume/{name}/scsi", "scsi-volume"),
        Right::Write,
        (RequestContent::Scsi, ResponseContent::Scsi),
        Handler::Long(scsi::execute),
        "Executes a [SCSI command](scsi.md) at the logical unit of the volume.",
    )
}

/// Copies of volumes.
fn copies() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use Right::{Read, Write};
    let none = RequestContent::Nothing;
    vec![
        row(
            (Post, "/v1/volume/{name}/copy", "copy-volume"),
            Write,
            (RequestContent::Copy, ResponseContent::Copy),
            Handler::Control(copy::start),
            "Starts a copy of the volume to a new volume; the copy continues after the response.",
        ),
        row(
            (Get, "/v1/copy", "list-copy"),
            Read,
            (none, ResponseContent::Copies),
            Handler::Local(copy::list),
            "The running and the last copies.",
        ),
        row(
            (Get, "/v1/copy/{id}", "show-copy"),
            Read,
            (none, ResponseContent::Copy),
            Handler::Local(copy::show),
            "The progress of one copy.",
        ),
        row(
            (Delete, "/v1/copy/{id}", "stop-copy"),
            Write,
            (none, ResponseContent::Copy),
            Handler::Local(copy::stop),
            "Stops one copy.",
        ),
    ]
}

/// Explanations.
fn explanations() -> Vec<Route> {
    use ResponseContent::{Explanation, Refusals};
    use explain::units;
    type Work = fn(&mut dyn Control, &ApiRequest) -> Outcome;
    let explains =
        |path: &str, name, work: Work, summary| get(path, name, Explanation, Handler::Control(work), summary);
    vec![
        get(
            "/v1/refusal",
            "list-refusal",
            Refusals,
            Handler::Control(explain::refusals),
            "The refused logins, the latest first; they are kept across restarts.",
        ),
        explains(
            "/v1/explain/login/{name}",
            "explain-login",
            explain::login,
            "Whether a client of this name may log in, step by step, with what to do if not.",
        ),
        explains(
            "/v1/explain/refusal/{number}",
            "explain-refusal",
            explain::refusal,
            "Why a login was refused, and whether it would still be.",
        ),
        explains(
            "/v1/explain/lun/{name}/{lun}",
            "explain-lun",
            units::lun,
            "The volume that a client sees at a LUN, or why it sees none.",
        ),
        explains(
            "/v1/explain/path/{name}/{volume}",
            "explain-path",
            units::path,
            "The paths of a client to a volume, and those that are missing.",
        ),
        explains(
            "/v1/explain/volume/{name}",
            "explain-volume",
            units::volume,
            "The state of a volume, and who sees it.",
        ),
        explains(
            "/v1/explain/reservation/{name}",
            "explain-reservation",
            units::reservation,
            "The client that holds the reservation of a volume, and whether it is logged in.",
        ),
        get(
            "/v1/explain/slow/{name}",
            "explain-slow",
            Explanation,
            Handler::Long(explain::slow::slow),
            "Where the time of the slow commands of a volume or a client went, and the state of the network.",
        ),
    ]
}

/// Reservations of volumes.
fn reservations() -> Vec<Route> {
    use ResponseContent::Reservation;
    use explain::units;
    vec![
        get(
            "/v1/volume/{name}/reservation",
            "show-reservation",
            Reservation,
            Handler::Control(units::show_reservation),
            "The reservation and the registrants of a volume.",
        ),
        row(
            (Method::Delete, "/v1/volume/{name}/reservation", "clear-reservation"),
            Right::Write,
            (RequestContent::Nothing, Reservation),
            Handler::Long(units::clear_reservation),
            "Ends the reservation and all registrations of a volume, as CLEAR does.",
        ),
    ]
}

/// For monitoring. The paths are those that other programs expect.
fn monitoring() -> Vec<Route> {
    let health = |path, name, checks, summary| {
        let content = (RequestContent::Nothing, ResponseContent::Health);
        row((Method::Get, path, name), Right::None, content, Handler::Health(checks), summary)
    };
    vec![
        row(
            (Method::Get, "/metrics", "metrics"),
            Right::Metrics,
            (RequestContent::Nothing, ResponseContent::Metrics),
            Handler::Metrics,
            "[Metrics](metrics.md) for Prometheus.",
        ),
        health("/livez", "live", health::live, "Whether the process works; status 503 if it must be restarted."),
        health(
            "/readyz",
            "ready",
            health::ready,
            "Whether everything that is configured is served; status 503 if not. `?verbose` lists all checks.",
        ),
    ]
}

/// The logins of browsers. A login needs no right: it is how a browser gets one.
fn logins() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use RequestContent::{Login, Nothing};
    use ResponseContent::{Caller, Link};
    let login = |method, name, right, content, step, summary| {
        row((method, "/v1/login", name), right, content, Handler::Login(step), summary)
    };
    vec![
        login(
            Post,
            "log-in",
            Right::None,
            (Login, Caller),
            LoginStep::LogIn,
            "Exchanges a token or the key of a one-time link for a cookie; only [the page](web.md) may send it.",
        ),
        login(Get, "show-login", Right::None, (Nothing, Caller), LoginStep::Show, "The caller, and its role."),
        login(Delete, "log-out", Right::Read, (Nothing, Caller), LoginStep::LogOut, "Ends the session of the cookie."),
        row(
            (Post, "/v1/login/link", "create-login-link"),
            Right::Write,
            (Nothing, Link),
            Handler::Login(LoginStep::Link),
            "Makes a one-time link, with which a browser gets the rights of the caller.",
        ),
    ]
}

/// `GET /v1/openapi.json`
fn document(request: &ApiRequest) -> Outcome {
    let schema = request.shared.schema;
    Reply::json(&openapi::document(schema, &routes(schema)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::testing::SAMPLE;
    use std::collections::BTreeSet;

    #[test]
    fn routes_are_unique_and_all_but_get_need_the_right_to_write() {
        let all = routes(&SAMPLE);
        let places: BTreeSet<_> = all.iter().map(|route| (route.path.as_str(), route.method)).collect();
        let names: BTreeSet<_> = all.iter().map(|route| route.name.as_str()).collect();
        assert_eq!((places.len(), names.len()), (all.len(), all.len()));
        for route in all.iter().filter(|route| !route.path.starts_with("/v1/login")) {
            let looks = route.method == Method::Get;
            assert_eq!(route.right <= Right::Read, looks, "{} {}", route.method.word(), route.path);
            let is_monitoring = route.right < Right::Read;
            assert!(route.summary.ends_with('.') && route.path.starts_with("/v1/") != is_monitoring, "{}", route.path);
        }
    }
}
