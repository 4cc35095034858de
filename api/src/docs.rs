//! The page about the API, made from the routes.

use crate::routes::{Gives, Route, Takes, routes};
use lunar_control::Kind;

const HEAD: &str = "\
# The API

Made from the routes in `api/src/routes.rs`; `LUNAR_REGENERATE=1 cargo test -p lunar-api fresh` writes it anew. The same
as an OpenAPI document: [openapi.json](openapi.json), or `GET /v1/openapi.json`.

REST with JSON, over a Unix socket (`/run/lunar/api.sock`, or `socket` in `[api]`): root may use it, the user that Lunar
runs as, and the members of `group` in `[api]`; the kernel says who asks. Over TCP where `[api-listener.NAME]` says so:
with TLS, or on this machine only, and with a token of `[api-token.NAME]`, whose role is `read` or `write`. `lunar`
itself uses nothing else.

    curl --unix-socket /run/lunar/api.sock http://lunar/v1/status
    curl --unix-socket /run/lunar/api.sock -X POST http://lunar/v1/volume/disk1 \\
         -d '{\"kind\": \"file\", \"path\": \"/srv/lunar/disk1.img\", \"size\": \"20G\"}'
    curl --header @/etc/lunar/token.header https://storage.example:3280/v1/session

Every change is in force and in the file when it is answered, or neither; what it did comes back step by step. With
`?dry-run=true` it says what it would do. Keys are those of [the configuration](configuration.md); secrets are never
shown. An error is a problem report (RFC 9457) whose `detail` says what to do, with the place of each mistake in
`errors`. Statuses: 400 the request makes no sense, 401 and 403 who asks may not, 404, 409 there is one already, or it
cannot be done now, 413 and 431 too large, 422 the configuration would not be valid, 503 too busy: later.

`GET /v1/events` is a stream of server-sent events, one for each line of the audit log: `event` is the topic, `id` the
number, `data` the note as JSON.

| route | right | takes | gives | |
|---|---|---|---|---|
";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(HEAD);
    let mut lines: Vec<String> = Vec::new();
    for route in routes() {
        let line = line(&route);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    page.extend(lines);
    let kinds = |is: fn(Kind) -> bool| {
        let all = Kind::ALL.iter().filter(|kind| is(**kind)).map(|kind| format!("`{}`", kind.section()));
        all.collect::<Vec<_>>().join(", ")
    };
    page.push_str(&format!("\n`KIND` is one of {}.\n", kinds(Kind::is_named)));
    page.push_str(&format!("`SINGLE` is one of {}.\n", kinds(Kind::is_single)));
    page
}

/// A row; what there is for each kind is said once.
fn line(route: &Route) -> String {
    let (mut path, mut words) = (route.path.clone(), route.words.clone());
    if let Some(kind) = route.kind {
        let general = if kind.is_single() { "SINGLE" } else { "KIND" };
        path = path.replacen(kind.section(), general, 1);
        words = if kind.is_single() && route.takes == Takes::Nothing {
            "What there is once.".into()
        } else {
            words.replace(&kind.to_string(), "KIND")
        };
    }
    let method = route.method.word();
    let (takes, gives) = (takes(route.takes), gives(route.gives));
    format!("| `{method} {path}` | {} | {takes} | {gives} | {words} |\n", route.right.word())
}

fn takes(takes: Takes) -> &'static str {
    match takes {
        Takes::Nothing => "",
        Takes::Keys(_) => "keys",
        Takes::Changes(_) => "keys, null takes one out",
        Takes::Copy => "`name`, `path`, `share`, `read-only`",
        Takes::Ejection => "`forced`",
        Takes::Mapping => "`volume`, `read-only`, `namespace`, `metadata`",
        Takes::Text => "a configuration as TOML",
    }
}

fn gives(gives: Gives) -> &'static str {
    match gives {
        Gives::Thing(_) => "a thing",
        Gives::Things(_) => "things",
        Gives::Plan => "the steps",
        Gives::Copy => "how far it is",
        Gives::Copies => "copies",
        Gives::Medium => "where it is",
        Gives::Status => "status",
        Gives::Config => "all of it",
        Gives::Text => "text",
        Gives::Versions => "versions",
        Gives::Sessions => "sessions",
        Gives::Session => "the session",
        Gives::Statistics => "numbers",
        Gives::Notes => "notes",
        Gives::Events => "events",
        Gives::Schema => "a document",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_in_the_repository_is_fresh() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::write(&path, page()).expect("docs/ is there");
        }
        let there = std::fs::read_to_string(&path).expect("docs/api.md is there");
        assert!(there == page(), "run LUNAR_REGENERATE=1 cargo test -p lunar-api fresh");
    }
}
