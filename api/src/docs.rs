//! The reference page of the API, generated from the routes.

use crate::route::{RequestContent, ResponseContent, Route};
use lunar_control::{Kind, Schema};

const HEAD: &str = "\
# The API

Generated from the routes in `api/src/routes.rs` with `LUNAR_REGENERATE=1 cargo test -p lunar fresh`. The same as an
OpenAPI document: [openapi.json](openapi.json), or `GET /v1/openapi.json`.

The API is REST with JSON, over two transports:

* a Unix socket (`/run/lunar/api.sock`, or `socket` in `[api]`): root, the user that runs Lunar and the members of
  `group` in `[api]` may use it; the kernel identifies the caller;
* TCP, at each `[api-listener.NAME]`, with TLS unless the address is a loopback address. Every request needs a token of
  an `[api-token.NAME]`, whose role is `metrics`, `read` or `write`, each of which includes the ones before it. The
  routes with the right `none` need no token.

The `lunar` commands use this API and nothing else.

    curl --unix-socket /run/lunar/api.sock http://lunar/v1/status
    curl --unix-socket /run/lunar/api.sock -X POST http://lunar/v1/volume/disk1 \\
         -d '{\"kind\": \"file\", \"path\": \"/srv/lunar/disk1.img\", \"size\": \"20G\"}'
    curl --header @/etc/lunar/token.header https://storage.example:3280/v1/session

When a change is acknowledged, it is in effect and in the configuration file; when it fails, it is in neither. The
response lists the steps. With `?dry-run=true` it lists the steps that would be done, and nothing is changed. The keys
are those of [the configuration](configuration.md). Secrets are never returned.

A change that takes a LUN, a namespace, a volume, a target, a portal, a group or a user from clients that have sessions
is refused with status 409 and the type `/problems/in-use`; `hosts` lists the sessions and what each of them loses. So
is a change that removes more than half of the volumes, targets, groups, portals, portal groups and virtual machines.
`?force=true` makes the change anyway. In a plan, `hosts` of a step names the clients from which it takes something.
A volume is deleted without its data, unless `?with-data=true` is given.

An error is a problem report (RFC 9457): `detail` says what to do, and `errors` has the position of each mistake.

| status | meaning |
|---|---|
| 400 | the request is malformed |
| 401, 403 | the caller has no valid token, or not the required right |
| 404 | there is no such resource |
| 409 | the resource exists already, or is in use, or the request cannot be carried out now |
| 413, 431 | the body or the head of the request is too long |
| 421 | the Host field of a browser's request names another site (DNS rebinding) |
| 422 | the configuration would be invalid |
| 429 | too many logins have failed |
| 503 | too many requests; try again later |

`GET /v1/events` is a stream of server-sent events, one for each record of the audit log: `event` is the topic, `id` the
number, `data` the record as JSON. `GET /v1/live` is another one, described in [the page](web.md#the-stream-of-numbers).

Requests of browsers are authenticated by the cookie of a login (`POST /v1/login`), over both transports. They are
refused with status 421 if their Host field has a name that is not one of the service, and with status 403 if a page of
another origin has sent them. Requests of browsers that change something have the field `Lunar-Page`.

`GET /v1/counters` has all counters of cores, volumes and hosts at one moment, and that moment as `nanoseconds` of a
clock that never steps. A rate is the difference of two answers, divided by that of their moments; it is meaningful if
`start` is the same in both. `cells` of a class are a histogram of latencies with the upper `bounds`, in microseconds.
Reading the counters does not interrupt the cores. Requests within 200 ms get the same reading, with the same
`sequence`.

| route | right | request | response | |
|---|---|---|---|---|
";

/// The page.
#[must_use]
pub fn page(schema: &'static Schema, routes: &[Route]) -> String {
    let mut page = String::from(HEAD);
    let mut lines: Vec<String> = Vec::new();
    for route in routes {
        let line = line(route);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    page.extend(lines);
    let kinds = |is: fn(Kind) -> bool| {
        let all = schema.kinds().into_iter().filter(|kind| is(*kind)).map(|kind| format!("`{}`", kind.section()));
        all.collect::<Vec<_>>().join(", ")
    };
    page.push_str(&format!("\n`KIND` is one of {}.\n", kinds(Kind::is_named)));
    page.push_str(&format!("`SINGLE` is one of {}.\n", kinds(Kind::is_single)));
    page
}

/// The row of a route. The routes of all kinds with the same operations are one row.
fn line(route: &Route) -> String {
    let (mut path, mut summary) = (route.path.clone(), route.summary.clone());
    if let Some(kind) = route.kind {
        let general = if kind.is_single() { "SINGLE" } else { "KIND" };
        path = path.replacen(kind.section(), general, 1);
        summary = if kind.is_single() && route.request == RequestContent::Nothing {
            "The settings of this section.".into()
        } else {
            summary.replace(&kind.to_string(), "KIND")
        };
    }
    let (method, right) = (route.method.word(), route.right.word());
    let (request, response) = (request(route.request), response(route.response));
    format!("| `{method} {path}` | {right} | {request} | {response} | {summary} |\n")
}

fn request(content: RequestContent) -> &'static str {
    match content {
        RequestContent::Nothing => "",
        RequestContent::Keys(_) => "keys",
        RequestContent::Changes(_) => "keys; `null` removes a key",
        RequestContent::Copy => "`name`, `path`, `share`, `read-only`",
        RequestContent::Ejection => "`forced`",
        RequestContent::Scsi => "`command`, `data-in`, `data-out`, `seconds`",
        RequestContent::Mapping => "`volume`, `read-only`, `namespace`, `metadata`",
        RequestContent::Text => "a configuration as TOML",
        RequestContent::Login => "`token` or `link`",
    }
}

fn response(content: ResponseContent) -> &'static str {
    match content {
        ResponseContent::Resource(_) => "a resource",
        ResponseContent::Resources(_) => "resources",
        ResponseContent::Plan => "the steps",
        ResponseContent::Copy => "the progress",
        ResponseContent::Copies => "copies",
        ResponseContent::Medium => "the medium",
        ResponseContent::Scsi => "the end of the command",
        ResponseContent::Status => "the status",
        ResponseContent::Config => "the configuration",
        ResponseContent::Text => "text",
        ResponseContent::Versions => "versions",
        ResponseContent::Sessions => "sessions",
        ResponseContent::Session => "the session",
        ResponseContent::Handlers => "handlers",
        ResponseContent::LocalDisks => "disks",
        ResponseContent::Statistics => "statistics",
        ResponseContent::Counters => "counters",
        ResponseContent::AuditRecords => "audit records",
        ResponseContent::Stages => "the stages",
        ResponseContent::Refusals => "refusals",
        ResponseContent::Explanation => "the explanation",
        ResponseContent::Reservation => "the reservations",
        ResponseContent::History => "the rates",
        ResponseContent::Examination => "the findings",
        ResponseContent::SlowLog => "the slow log",
        ResponseContent::Events => "a stream of audit records",
        ResponseContent::Schema => "a document",
        ResponseContent::Metrics => "metrics",
        ResponseContent::Health => "failed checks",
        ResponseContent::Caller => "the caller",
        ResponseContent::Link => "the link",
        ResponseContent::Live => "a stream of numbers",
    }
}
