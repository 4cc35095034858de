//! Every route, declared once: which right it takes, what it takes and gives, and what does it. The server's table, the
//! OpenAPI document and the reference page are made from these rows; those of the configuration's things are made from
//! their declarations.

use crate::copy;
use crate::rights::Right;
use crate::work::{self, Run};
use lunar_control::Kind;

/// Methods (RFC 9110 9.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each is the method of this name")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// As it is sent.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// What the body of a request holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// The keys of a new thing, as JSON.
    Keys(Kind),
    /// Keys that change, as JSON; null takes one out.
    Changes(Kind),
    /// What a LUN shall be, as JSON.
    Mapping,
    /// What a copy shall be, as JSON.
    Copy,
    /// How a medium shall be taken out, as JSON.
    Ejection,
    /// The text of a configuration.
    Text,
}

/// What the body of an answer holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// A thing of the configuration.
    Thing(Kind),
    /// All things of a kind.
    Things(Kind),
    /// What was done, step by step; with `dry-run`, what would be done.
    Plan,
    /// What runs, in a few words.
    Status,
    /// The whole configuration as JSON, without secrets.
    Config,
    /// Text: a configuration without its secrets, or how two of them differ.
    Text,
    /// Versions of the configuration.
    Versions,
    /// Who is logged in.
    Sessions,
    /// One of them.
    Session,
    /// How far a copy is.
    Copy,
    /// Copies.
    Copies,
    /// Where a medium is.
    Medium,
    /// What was counted.
    Statistics,
    /// What happened.
    Notes,
    /// What happens, as it happens (server-sent events).
    Events,
    /// A JSON schema, or an OpenAPI document.
    Schema,
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path, with its parameters in braces.
    pub path: String,
    /// What it is called in the OpenAPI document, for those who make clients from it.
    pub name: String,
    /// The right that it takes. There is no default: a route that forgets it does not compile.
    pub right: Right,
    /// What it does, in one line.
    pub words: String,
    /// What it takes.
    pub takes: Takes,
    /// What it gives.
    pub gives: Gives,
    /// The kind of thing that it is about, if it is about one.
    pub kind: Option<Kind>,
    /// What does it.
    pub run: Run,
}

impl Route {
    /// The names of the parameters in its path.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Whether it changes something, unless `dry-run` says otherwise.
    #[must_use]
    pub fn is_plan(&self) -> bool {
        self.gives == Gives::Plan && self.name != "plan"
    }
}

/// A row that is about no kind of thing.
fn row(
    (method, path, name): (Method, &str, &str),
    right: Right,
    (takes, gives): (Takes, Gives),
    run: Run,
    words: &str,
) -> Route {
    let (path, name, words) = (path.to_owned(), name.to_owned(), words.to_owned());
    Route { method, path, name, right, words, takes, gives, kind: None, run }
}

/// All of them, in the order of the page.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut all = service();
    all.extend(whole());
    for kind in Kind::ALL.iter().copied() {
        if kind.is_named() {
            all.extend(named(kind));
        } else if kind.is_single() {
            all.extend(single(kind));
        }
    }
    all.extend(luns());
    all.extend(media());
    all.extend(copies());
    all
}

/// What runs.
fn service() -> Vec<Route> {
    use Method::{Delete, Get};
    use Right::{Read, Write};
    use Takes::Nothing;
    vec![
        row((Get, "/v1/status", "status"), Read, (Nothing, Gives::Status), Run::Job(work::status), "What runs."),
        row(
            (Get, "/v1/statistics", "statistics"),
            Read,
            (Nothing, Gives::Statistics),
            Run::Job(work::statistics),
            "What was counted since the start.",
        ),
        row(
            (Get, "/v1/session", "list-session"),
            Read,
            (Nothing, Gives::Sessions),
            Run::Job(work::sessions),
            "Everybody who is logged in.",
        ),
        row(
            (Get, "/v1/session/{id}", "show-session"),
            Read,
            (Nothing, Gives::Session),
            Run::Job(work::session),
            "One session.",
        ),
        row(
            (Delete, "/v1/session/{id}", "kick-session"),
            Write,
            (Nothing, Gives::Session),
            Run::Long(work::kick),
            "Ends a session; its initiator may come back by itself.",
        ),
        row(
            (Get, "/v1/events", "events"),
            Read,
            (Nothing, Gives::Events),
            Run::Events,
            "What happens, as it happens; `Last-Event-ID` begins after the note of this number.",
        ),
        row(
            (Get, "/v1/audit", "audit"),
            Read,
            (Nothing, Gives::Notes),
            Run::Here(work::audit),
            "The last logins, refusals and changes.",
        ),
    ]
}

/// The configuration as a whole.
fn whole() -> Vec<Route> {
    use Method::{Get, Post};
    use Right::{Read, Write};
    use Takes::{Nothing, Text};
    let get = |path, name, gives, run, words| row((Get, path, name), Read, (Nothing, gives), run, words);
    let post = |path, name, takes, gives, run, words| row((Post, path, name), Write, (takes, gives), run, words);
    vec![
        get("/v1/config", "config", Gives::Config, Run::Job(work::config), "All of the configuration."),
        get(
            "/v1/config/text",
            "config-text",
            Gives::Text,
            Run::Job(work::text),
            "The text of the configuration, without secrets.",
        ),
        post("/v1/plan", "plan", Text, Gives::Plan, Run::Job(work::plan), "What putting a text in force would do."),
        post(
            "/v1/diff",
            "diff",
            Text,
            Gives::Text,
            Run::Job(work::diff),
            "How a text, or without one the file as it stands, differs from what is in force.",
        ),
        post(
            "/v1/apply",
            "apply",
            Text,
            Gives::Plan,
            Run::Job(work::apply),
            "Puts a text in force, all of it or nothing.",
        ),
        post(
            "/v1/reload",
            "reload",
            Nothing,
            Gives::Plan,
            Run::Job(work::reload),
            "Puts in force what somebody has written into the file by hand.",
        ),
        get("/v1/version", "list-version", Gives::Versions, Run::Job(work::versions), "The versions that are kept."),
        get(
            "/v1/version/{number}",
            "show-version",
            Gives::Text,
            Run::Job(work::version),
            "The text of a version, without secrets.",
        ),
        get(
            "/v1/version/{number}/diff",
            "diff-version",
            Gives::Text,
            Run::Job(work::version_diff),
            "How a version differs from what is in force.",
        ),
        post(
            "/v1/version/{number}/restore",
            "restore-version",
            Nothing,
            Gives::Plan,
            Run::Job(work::restore),
            "Puts a version in force again.",
        ),
        get("/v1/schema", "schema", Gives::Schema, Run::Here(work::schema), "The JSON schema of a configuration."),
        get("/v1/openapi.json", "openapi", Gives::Schema, Run::Here(work::openapi), "This API as an OpenAPI document."),
    ]
}

/// The rows of a kind of which there are any number.
fn named(kind: Kind) -> Vec<Route> {
    use Method::{Delete, Get, Patch, Post};
    use Right::{Read, Write};
    let section = kind.section();
    let one = format!("/v1/{section}/{{name}}");
    let row = |method, path: &str, verb: &str, right, takes, gives, run, words: String| Route {
        method,
        path: path.to_owned(),
        name: format!("{verb}-{section}"),
        right,
        words,
        takes,
        gives,
        kind: Some(kind),
        run: Run::Job(run),
    };
    let (things, thing) = (Gives::Things(kind), Gives::Thing(kind));
    let none = Takes::Nothing;
    let (keys, changes) = (Takes::Keys(kind), Takes::Changes(kind));
    vec![
        row(Get, &format!("/v1/{section}"), "list", Read, none, things, work::list, format!("All of kind {kind}.")),
        row(Get, &one, "show", Read, none, thing, work::show, format!("One {kind}.")),
        row(Post, &one, "create", Write, keys, Gives::Plan, work::create, format!("Makes one {kind}.")),
        row(Patch, &one, "set", Write, changes, Gives::Plan, work::set, format!("Changes keys of one {kind}.")),
        row(Delete, &one, "delete", Write, none, Gives::Plan, work::delete, format!("Removes one {kind}.")),
    ]
}

/// The rows of a kind of which there is one.
fn single(kind: Kind) -> Vec<Route> {
    let section = kind.section();
    let row = |method, verb: &str, right, takes, gives, run, words: &str| Route {
        method,
        path: format!("/v1/{section}"),
        name: format!("{verb}-{section}"),
        right,
        words: words.to_owned(),
        takes,
        gives,
        kind: Some(kind),
        run: Run::Job(run),
    };
    let words = kind.words();
    vec![
        row(Method::Get, "show", Right::Read, Takes::Nothing, Gives::Thing(kind), work::show, &words),
        row(Method::Patch, "set", Right::Write, Takes::Changes(kind), Gives::Plan, work::set, "Changes keys of it."),
    ]
}

/// What groups see.
fn luns() -> Vec<Route> {
    let path = "/v1/group/{name}/luns/{lun}";
    let row = |method, name, takes, run, words| {
        row((method, path, name), Right::Write, (takes, Gives::Plan), Run::Job(run), words)
    };
    vec![
        row(Method::Put, "map-lun", Takes::Mapping, work::map, "Gives a volume a number in a group."),
        row(Method::Delete, "unmap-lun", Takes::Nothing, work::unmap, "Takes a number out of a group."),
    ]
}

/// Media that come and go.
fn media() -> Vec<Route> {
    use Method::{Get, Post};
    use Right::{Read, Write};
    let path = |what| format!("/v1/volume/{{name}}/{what}");
    vec![
        row(
            (Get, &path("medium"), "show-medium"),
            Read,
            (Takes::Nothing, Gives::Medium),
            Run::Job(work::medium),
            "Whether the medium of a volume is in.",
        ),
        row(
            (Post, &path("eject"), "eject-volume"),
            Write,
            (Takes::Ejection, Gives::Medium),
            Run::Long(work::eject),
            "Takes the medium out: what was written is on it, and nobody reaches it.",
        ),
        row(
            (Post, &path("load"), "load-volume"),
            Write,
            (Takes::Nothing, Gives::Medium),
            Run::Long(work::load),
            "Puts the medium in; initiators are told that it may be another one.",
        ),
    ]
}

/// Copies of volumes.
fn copies() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use Right::{Read, Write};
    let none = Takes::Nothing;
    vec![
        row(
            (Post, "/v1/volume/{name}/copy", "copy-volume"),
            Write,
            (Takes::Copy, Gives::Copy),
            Run::Job(copy::start),
            "Makes a new volume of the blocks of this one; goes on after the answer.",
        ),
        row((Get, "/v1/copy", "list-copy"), Read, (none, Gives::Copies), Run::Here(copy::list), "The last copies."),
        row((Get, "/v1/copy/{id}", "show-copy"), Read, (none, Gives::Copy), Run::Here(copy::show), "How far one is."),
        row((Delete, "/v1/copy/{id}", "stop-copy"), Write, (none, Gives::Copy), Run::Here(copy::stop), "Stops one."),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_routes_are_the_same_and_changes_take_the_right_to_change() {
        let all = routes();
        let places: BTreeSet<_> = all.iter().map(|route| (route.path.as_str(), route.method)).collect();
        let names: BTreeSet<_> = all.iter().map(|route| route.name.as_str()).collect();
        assert_eq!((places.len(), names.len()), (all.len(), all.len()));
        for route in &all {
            let looks = route.method == Method::Get;
            assert_eq!(route.right == Right::Read, looks, "{} {}", route.method.word(), route.path);
            assert!(route.words.ends_with('.') && route.path.starts_with("/v1/"), "{}", route.path);
        }
    }
}
