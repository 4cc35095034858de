//! What the commands do that ask the service.

use crate::call::{Service, encoded};
use crate::{Failure, declare, show};
use clap::ArgMatches;
use lunar_api::client::{Sent, Trouble};
use lunar_api::routes::Method;
use lunar_control::Kind;
use lunar_control::value::{Size, Textual};
use serde_json::{Value as Json, json};
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Does what the command of this name is told to, if it is one of these.
#[must_use]
pub fn run(name: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let work: fn(&Service, &ArgMatches) -> Result<(), Failure> = match name {
        "session" => session,
        "status" => status,
        "statistics" => statistics,
        "plan" => plan,
        "apply" => apply,
        "diff" => diff,
        "history" => history,
        "rollback" => rollback,
        "audit" => audit,
        "events" => events,
        section => {
            let kind = Kind::of_section(section).filter(|kind| kind.is_named())?;
            return Some(Service::of(matches).and_then(|service| noun(&service, kind, matches)));
        }
    };
    Some(Service::of(matches).and_then(|service| work(&service, matches)))
}

/// What stands on the command line under this name.
fn word(matches: &ArgMatches, name: &str) -> String {
    matches.get_one::<String>(name).cloned().unwrap_or_default()
}

/// Whether only to say what would be done.
fn query(matches: &ArgMatches) -> &'static str {
    if matches.get_flag("dry-run") { "?dry-run=true" } else { "" }
}

fn noun(service: &Service, kind: Kind, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else { return Err(Failure::new("do what?")) };
    let section = kind.section();
    if verb == "list" {
        let all = service.get(&format!("/v1/{section}"))?;
        return service.say(&all, show::things(kind, &all));
    }
    let name = word(matches, "name");
    let one = format!("/v1/{section}/{}", encoded(&name));
    if verb == "show" {
        let thing = service.get(&one)?;
        return service.say(&thing, show::thing(kind, &thing));
    }
    if ["snapshot", "clone", "copy"].contains(&verb) {
        return copy(service, verb, &one, matches);
    }
    if ["medium", "eject", "load"].contains(&verb) {
        return medium(service, verb, &one, matches);
    }
    let place = format!("{one}{}", query(matches));
    let (method, place, sent) = match verb {
        "create" => (Method::Post, place, Sent::Json(keys(kind, matches)?)),
        "set" => (Method::Patch, place, Sent::Json(keys(kind, matches)?)),
        "delete" => (Method::Delete, place, Sent::Nothing),
        "resize" => {
            (Method::Patch, place, Sent::Json(json!({ "size": larger(service, &one, &word(matches, "size"))? })))
        }
        "map" | "unmap" => {
            let lun = matches.get_one::<u16>("lun").copied().unwrap_or_default();
            let place = format!("{one}/luns/{lun}{}", query(matches));
            if verb == "unmap" {
                (Method::Delete, place, Sent::Nothing)
            } else {
                let (read_only, metadata) = (matches.get_flag("read-only"), matches.get_flag("metadata"));
                let mut mapping =
                    json!({ "volume": word(matches, "volume"), "read-only": read_only, "metadata": metadata });
                if let Some(id) = matches.get_one::<u16>("namespace") {
                    mapping["namespace"] = json!(id);
                }
                (Method::Put, place, Sent::Json(mapping))
            }
        }
        _ => return Err(Failure::new(format!("a {kind} cannot {verb}"))),
    };
    changed(service, &service.ask(method, &place, sent)?, matches)
}

/// Says what was done.
fn changed(service: &Service, plan: &Json, matches: &ArgMatches) -> Result<(), Failure> {
    service.say(plan, show::plan(plan, !matches.get_flag("dry-run")))
}

fn keys(kind: Kind, matches: &ArgMatches) -> Result<Json, Failure> {
    let keys = declare::keys(kind, matches, secret).map_err(Failure::new)?;
    Ok(Json::Object(keys.0))
}

/// Asks whoever types for a secret, or reads it from a pipe.
fn secret(key: &str) -> Result<String, String> {
    let input = std::io::stdin();
    let mut line = String::new();
    let unreadable = |why: std::io::Error| format!("the {key} cannot be read: {why}");
    if input.is_terminal() {
        eprint!("{key}: ");
        let _ = std::io::stderr().flush();
        let quiet = Quiet::new();
        input.lock().read_line(&mut line).map_err(unreadable)?;
        drop(quiet);
        eprintln!();
    } else {
        input.lock().read_line(&mut line).map_err(unreadable)?;
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// A terminal that does not show what is typed, until this drops.
struct Quiet(Option<rustix::termios::Termios>);

impl Quiet {
    fn new() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut quiet) = before.clone() {
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet);
        }
        Self(before)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, before);
        }
    }
}

/// The size that is asked for: as it is written, or so much more than now.
fn larger(service: &Service, place: &str, wanted: &str) -> Result<String, Failure> {
    let now = service.get(place)?["keys"]["size"].as_str().map(read_size).transpose()?;
    Ok(at_least(now, wanted)?.text())
}

fn read_size(text: &str) -> Result<Size, Failure> {
    Size::parse(text).map_err(|why| Failure::new(format!("'{text}' {why}")))
}

fn at_least(now: Option<Size>, wanted: &str) -> Result<Size, Failure> {
    let read = read_size;
    let size = match (wanted.strip_prefix('+'), now) {
        (None, _) => read(wanted)?,
        (Some(more), Some(now)) => Size(now.0.saturating_add(read(more)?.0)),
        (Some(_), None) => return Err(Failure::new("its size is not in the configuration: give the whole new size")),
    };
    if now.is_some_and(|now| size < now) {
        let why = "smaller, and would cut off what is on it; if that is meant, delete the volume, which leaves its \
                   file, and create it again with this size: the rest of the file is not used then";
        return Err(Failure::new(format!("{size} is {why}")));
    }
    Ok(size)
}

/// How often somebody who waits for a copy asks how far it is.
const COPY_PULSE: Duration = Duration::from_millis(200);

fn copy(service: &Service, verb: &str, place: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let new = word(matches, "new");
    let path = match matches.get_one::<String>("path") {
        Some(path) => path.clone(),
        None => {
            let volume = service.get(place)?;
            let own =
                volume["keys"]["path"].as_str().ok_or_else(|| Failure::new("it is no file: only files are copied"))?;
            Path::new(own).with_file_name(format!("{new}.img")).display().to_string()
        }
    };
    let order = json!({ "name": new, "path": path, "share": verb != "copy", "read-only": verb == "snapshot" });
    let mut state = service.ask(Method::Post, &format!("{place}/copy"), Sent::Json(order))?;
    let bar = show::progress(state["total"].as_u64().unwrap_or_default());
    while state["ended"] != true {
        std::thread::sleep(COPY_PULSE);
        state = service.get(&format!("/v1/copy/{}", state["id"]))?;
        bar.set_position(state["done"].as_u64().unwrap_or_default());
    }
    bar.finish_and_clear();
    match state["why"].as_str() {
        Some(why) => Err(Failure::new(why)),
        None => service.say(&state, format!("{new} is there: {path}\n")),
    }
}

/// Looks where the medium of a volume is, takes it out, or puts it in.
fn medium(service: &Service, verb: &str, place: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let state = match verb {
        "eject" => {
            let order = json!({ "forced": matches.get_flag("force") });
            service.ask(Method::Post, &format!("{place}/eject"), Sent::Json(order))?
        }
        "load" => service.ask(Method::Post, &format!("{place}/load"), Sent::Nothing)?,
        _ => service.get(&format!("{place}/medium"))?,
    };
    service.say(&state, show::medium(&state))
}

fn session(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else { return Err(Failure::new("do what?")) };
    match verb {
        "list" => {
            let all = service.get("/v1/session")?;
            service.say(&all, show::sessions(&all))
        }
        "show" => {
            let one = service.get(&format!("/v1/session/{}", encoded(&word(matches, "id"))))?;
            service.say(&one, show::session(&one))
        }
        _ => kick(service, matches),
    }
}

fn kick(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let named: Vec<String> = matches.get_many("id").into_iter().flatten().cloned().collect();
    let mut found = Vec::new();
    let by = |key: &'static str| matches.get_one::<String>(key).map(|value| (key, value.clone()));
    if let Some((key, value)) = by("initiator").or_else(|| by("target")) {
        let all = service.get("/v1/session")?;
        let fitting = all
            .as_array()
            .into_iter()
            .flatten()
            .filter(|session| session[key].as_str().is_some_and(|known| known.eq_ignore_ascii_case(&value)));
        found.extend(fitting.filter_map(|session| session["id"].as_str().map(str::to_owned)));
        if found.is_empty() && named.is_empty() {
            return Err(Failure::new(format!("no session has the {key} {value}; `lunar session list` shows all")));
        }
    }
    let (ended, left) = end_all(&named, &found, |id| service.end(id));
    let ended = Json::Array(ended);
    service.say(&ended, show::kicked(&ended))?;
    match left.iter().map(|why| why.exit).max() {
        None => Ok(()),
        Some(exit) => {
            let mut words: Vec<String> = left.into_iter().map(|why| why.words).collect();
            words.dedup();
            Err(Failure { exit, words: words.join("\n") })
        }
    }
}

/// Ends sessions: those that were named by their numbers, and those that were found by what they are. Returns those
/// that it ended, and why others are left; one that was found and has ended by itself is none of them.
fn end_all(
    named: &[String],
    found: &[String],
    end: impl Fn(&str) -> Result<Json, Trouble>,
) -> (Vec<Json>, Vec<Failure>) {
    let (mut ended, mut left) = (Vec::new(), Vec::new());
    let both = named.iter().map(|id| (id, true)).chain(found.iter().map(|id| (id, false)));
    for (id, is_named) in both {
        match end(id) {
            Ok(session) => ended.push(session),
            Err(Trouble::Refused(404, ..)) if !is_named => {}
            Err(why) => left.push(why.into()),
        }
    }
    (ended, left)
}

fn status(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let status = service.get("/v1/status")?;
    service.say(&status, show::status(&status))
}

fn statistics(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/statistics")?;
    service.say(&all, show::statistics(&all))
}

/// The text of the file that is named; `None`: the service's own is meant, which it reads itself.
fn text(matches: &ArgMatches) -> Result<Option<String>, Failure> {
    let unreadable = |name: &str, why: std::io::Error| Failure::new(format!("{name} cannot be read: {why}"));
    let Some(file) = matches.get_one::<String>("file") else { return Ok(None) };
    let text = match file.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).map_err(|why| unreadable("standard input", why)),
        file => std::fs::read_to_string(file).map_err(|why| unreadable(file, why)),
    };
    // An empty one is a text, too, and not none.
    text.map(|text| Some(if text.is_empty() { "\n".into() } else { text }))
}

fn plan(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let plan = match text(matches)? {
        Some(text) => service.ask(Method::Post, "/v1/plan", Sent::Text(text))?,
        None => service.ask(Method::Post, "/v1/reload?dry-run=true", Sent::Nothing)?,
    };
    service.say(&plan, show::plan(&plan, false))
}

fn apply(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let query = query(matches);
    let plan = match text(matches)? {
        Some(text) => service.ask(Method::Post, &format!("/v1/apply{query}"), Sent::Text(text))?,
        None => service.ask(Method::Post, &format!("/v1/reload{query}"), Sent::Nothing)?,
    };
    changed(service, &plan, matches)
}

fn diff(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let lines = service.text(Method::Post, "/v1/diff", Sent::Text(text(matches)?.unwrap_or_default()))?;
    service.say(&json!({ "diff": lines }), show::diff(&lines))
}

fn history(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let Some(number) = matches.get_one::<u64>("number") else {
        let all = service.get("/v1/version")?;
        return service.say(&all, show::versions(&all));
    };
    if matches.get_flag("text") {
        let text = service.text(Method::Get, &format!("/v1/version/{number}"), Sent::Nothing)?;
        return service.say(&json!({ "text": text }), text.clone());
    }
    let lines = service.text(Method::Get, &format!("/v1/version/{number}/diff"), Sent::Nothing)?;
    service.say(&json!({ "diff": lines }), show::diff(&lines))
}

fn rollback(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let number = matches.get_one::<u64>("number").copied().unwrap_or_default();
    let place = format!("/v1/version/{number}/restore{}", query(matches));
    changed(service, &service.ask(Method::Post, &place, Sent::Nothing)?, matches)
}

fn audit(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/audit")?;
    let lines = all.as_array().into_iter().flatten().map(show::note).collect();
    service.say(&all, lines)
}

fn events(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    service.follow(|data| {
        let note: Json = serde_json::from_str(data).unwrap_or_default();
        let line = if service.json { format!("{data}\n") } else { show::note(&note) };
        // Who does not read any more has enough.
        show::print(&line).is_ok()
    })
}

impl Service {
    /// Says an answer: as JSON if that is wanted, else in words.
    fn say(&self, answer: &Json, words: String) -> Result<(), Failure> {
        let text = if self.json { format!("{answer:#}\n") } else { words };
        match show::print(&text) {
            // A reader such as `head` that has enough is no failure.
            Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(why)),
            _ => Ok(()),
        }
    }
}

/// `lunar config show` and `lunar config set`.
pub(crate) fn settings(matches: &ArgMatches, verb: &str, inner: &ArgMatches) -> Result<(), Failure> {
    let service = Service::of(matches)?;
    if verb == "set" {
        let section = inner.subcommand();
        let found = section.and_then(|(section, matches)| Some((Kind::of_section(section)?, matches)));
        let Some((kind, matches)) = found else { return Err(Failure::new("set what?")) };
        let place = format!("/v1/{}{}", kind.section(), query(matches));
        let plan = service.ask(Method::Patch, &place, Sent::Json(keys(kind, matches)?))?;
        return changed(&service, &plan, matches);
    }
    match inner.get_one::<String>("section") {
        Some(section) => {
            let kind = Kind::of_section(section).filter(|kind| kind.is_single());
            let Some(kind) = kind else { return Err(Failure::new(format!("`lunar {section} list` shows these"))) };
            let thing = service.get(&format!("/v1/{section}"))?;
            service.say(&thing, show::thing(kind, &thing))
        }
        None => {
            let text = service.text(Method::Get, "/v1/config/text", Sent::Nothing)?;
            let all = if service.json { service.get("/v1/config")? } else { Json::Null };
            service.say(&all, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_gets_larger_and_who_wants_less_is_told_how() {
        let now = Some(Size(2 << 20));
        let of = |wanted| at_least(now, wanted).map_err(|why| why.words);
        assert_eq!((of("3M"), of("+1M"), of("2M")), (Ok(Size(3 << 20)), Ok(Size(3 << 20)), Ok(Size(2 << 20))));
        let why = of("1M").expect_err("it is smaller");
        assert!(why.contains("delete the volume") && !why.contains("--size"), "{why}");
        assert!(at_least(None, "+1M").is_err() && at_least(None, "1X").is_err());
    }

    #[test]
    fn all_sessions_are_ended_that_can_be() {
        let refused = |status, words: &str| Err(Trouble::Refused(status, words.into(), Json::Null));
        let end = |id: &str| match id {
            "gone" => refused(404, "there is no session gone"),
            "late" => refused(504, "session late waits for what is in the store"),
            id => Ok(json!({ "id": id })),
        };
        let all = ["gone", "late", "one", "two"].map(str::to_owned);
        let ids = |all: &[&str]| all.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>();
        for (named, found, missed) in [(&all[..], &[][..], 2), (&[], &all[..], 1)] {
            let (ended, left) = end_all(named, found, end);
            assert_eq!((ended, left.len()), (ids(&["one", "two"]), missed));
            assert!(left.iter().any(|why| why.words.contains("late waits") && why.exit == 1));
        }
        let (ended, left) = end_all(&[], &all[..1], end);
        assert!(ended.is_empty() && left.is_empty(), "who has gone by himself is no failure");
        let (_, left) = end_all(&all, &[], |_| Err(Trouble::NotRunning("nobody".into())));
        assert!(left.iter().all(|why| why.exit == crate::EXIT_NOT_RUNNING));
    }
}
