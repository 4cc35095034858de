//! The commands that use the API.

use crate::call::Service;
use crate::failure::Failure;
use crate::{declare, explained, show, web};
use clap::ArgMatches;
use lunar_api::client::{ClientError, RequestBody, encoded};
use lunar_api::route::Method;
use lunar_control::value::{Size, Textual};
use lunar_control::{Kind, Schema};
use serde_json::{Value as Json, json};
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

/// Runs the command of this name; `None` if it is not one of these.
#[must_use]
pub fn run(schema: &'static Schema, name: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let work: fn(&Service, &ArgMatches) -> Result<(), Failure> = match name {
        "session" => session,
        "handler" => handlers,
        "status" => status,
        "statistics" => statistics,
        "plan" => plan,
        "apply" => apply,
        "diff" => diff,
        "history" => history,
        "rollback" => rollback,
        "audit" => audit,
        "log" => slow,
        "explain" => explain,
        "events" => events,
        "attach" => crate::attach::attach,
        "detach" => crate::attach::detach,
        "scsi" => crate::scsi::run,
        "top" => crate::top::run,
        "doctor" => {
            let examine = |service| crate::doctor::run(schema, &service, matches);
            return Some(Service::of(matches).and_then(examine));
        }
        "web" => web::run,
        section => {
            let kind = schema.kind(section).filter(|kind| kind.is_named())?;
            return Some(Service::of(matches).and_then(|service| resource(schema, &service, kind, matches)));
        }
    };
    Some(Service::of(matches).and_then(|service| work(&service, matches)))
}

/// The value of an argument; empty if it was not given.
fn word(matches: &ArgMatches, name: &str) -> String {
    matches.get_one::<String>(name).cloned().unwrap_or_default()
}

fn resource(schema: &'static Schema, service: &Service, kind: Kind, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else { return Err(Failure::new("a verb is missing; see --help")) };
    let section = kind.section();
    if verb == "list" {
        let all = service.get(&format!("/v1/{section}"))?;
        return service.print(&all, show::resources(schema, kind, &all));
    }
    let name = word(matches, "name");
    let one = format!("/v1/{section}/{}", encoded(&name));
    if verb == "show" {
        let thing = service.get(&one)?;
        return service.print(&thing, show::resource(schema, kind, &thing));
    }
    if ["snapshot", "clone", "copy"].contains(&verb) {
        return copy(service, verb, &one, matches);
    }
    if verb == "reservation" {
        return reservation(service, &name, &one, matches);
    }
    if verb == "accept" {
        let accepted = service.request(Method::Post, &format!("{one}/accept"), RequestBody::Nothing)?;
        return service.print(&accepted, format!("volume {name}: its store is served\n"));
    }
    if ["medium", "eject", "load"].contains(&verb) {
        return medium(service, verb, &one, matches);
    }
    let path = format!("{one}{}", declare::change_query(matches));
    let (method, path, body) = match verb {
        "create" => (Method::Post, path, RequestBody::Json(keys(schema, kind, matches)?)),
        "set" => (Method::Patch, path, RequestBody::Json(keys(schema, kind, matches)?)),
        "delete" => (Method::Delete, path + with_data(kind, &name, matches)?, RequestBody::Nothing),
        "resize" => (
            Method::Patch,
            path,
            RequestBody::Json(json!({ "size": new_size(service, &one, &word(matches, "size"))? })),
        ),
        "map" | "unmap" => {
            let lun = matches.get_one::<u16>("lun").copied().unwrap_or_default();
            let path = format!("{one}/luns/{lun}{}", declare::change_query(matches));
            if verb == "unmap" {
                (Method::Delete, path, RequestBody::Nothing)
            } else {
                let (read_only, metadata) = (matches.get_flag("read-only"), matches.get_flag("metadata"));
                let mut mapping =
                    json!({ "volume": word(matches, "volume"), "read-only": read_only, "metadata": metadata });
                if let Some(id) = matches.get_one::<u16>("namespace") {
                    mapping["namespace"] = json!(id);
                }
                (Method::Put, path, RequestBody::Json(mapping))
            }
        }
        _ => return Err(Failure::new(format!("there is no verb {verb} for a {kind}"))),
    };
    changed(service, &service.request(method, &path, body)?, matches)
}

/// The end of the query that deletes the data of a volume, once the user has confirmed that.
fn with_data(kind: Kind, name: &str, matches: &ArgMatches) -> Result<&'static str, Failure> {
    if kind != Kind::Volume || !matches.get_flag("with-data") {
        return Ok("");
    }
    let has_query = matches.get_flag("dry-run") || matches.get_flag("force");
    let query = if has_query { "&with-data=true" } else { "?with-data=true" };
    if matches.get_flag("yes") || matches.get_flag("dry-run") {
        return Ok(query);
    }
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::new(
            "the data cannot be restored: give --yes to delete it without a terminal that can confirm",
        ));
    }
    eprint!("The data of volume {name} cannot be restored. Type the name of the volume to delete it: ");
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(|why| Failure::new(format!("the answer cannot be read: {why}")))?;
    confirmed(name, &line).then_some(query).ok_or_else(|| Failure::new("nothing was deleted"))
}

/// Whether the answer is the name of the volume.
fn confirmed(name: &str, answer: &str) -> bool {
    answer.trim() == name
}

/// Prints the steps that were or would be done.
fn changed(service: &Service, plan: &Json, matches: &ArgMatches) -> Result<(), Failure> {
    service.print(plan, show::plan(plan, !matches.get_flag("dry-run")))
}

fn keys(schema: &'static Schema, kind: Kind, matches: &ArgMatches) -> Result<Json, Failure> {
    let keys = declare::keys(schema, kind, matches, secret).map_err(Failure::new)?;
    Ok(Json::Object(keys.0))
}

/// Reads a secret from the terminal without echo, or from a pipe.
fn secret(key: &str) -> std::io::Result<String> {
    let input = std::io::stdin();
    let mut line = String::new();
    if input.is_terminal() {
        eprint!("{key}: ");
        let _ = std::io::stderr().flush();
        let echo_off = EchoOff::new();
        input.lock().read_line(&mut line)?;
        drop(echo_off);
        eprintln!();
    } else {
        input.lock().read_line(&mut line)?;
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Switches the echo of the terminal off until it is dropped.
struct EchoOff(Option<rustix::termios::Termios>);

impl EchoOff {
    fn new() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut echo_off) = before.clone() {
            echo_off.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &echo_off);
        }
        Self(before)
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, before);
        }
    }
}

/// The requested size: absolute, or relative to the present size.
fn new_size(service: &Service, path: &str, requested: &str) -> Result<String, Failure> {
    let now = service.get(path)?["keys"]["size"].as_str().map(parse_size).transpose()?;
    Ok(checked_size(now, requested)?.text())
}

fn parse_size(text: &str) -> Result<Size, Failure> {
    Size::parse(text).map_err(|why| Failure::new(format!("'{text}' {why}")))
}

fn checked_size(now: Option<Size>, requested: &str) -> Result<Size, Failure> {
    let read = parse_size;
    let size = match (requested.strip_prefix('+'), now) {
        (None, _) => read(requested)?,
        (Some(more), Some(now)) => Size(now.0.saturating_add(read(more)?.0)),
        (Some(_), None) => {
            return Err(Failure::new(
                "the size of the volume is not in the configuration: give the new size, not an increment",
            ));
        }
    };
    if now.is_some_and(|now| size < now) {
        let why = "smaller than the volume, and its data would be cut off; to do that anyway, delete the volume, which \
                   keeps its file, and create it again with this size: the rest of the file is then unused";
        return Err(Failure::new(format!("{size} is {why}")));
    }
    Ok(size)
}

/// The interval of progress queries during a copy.
const COPY_PULSE: Duration = Duration::from_millis(200);

fn copy(service: &Service, verb: &str, volume: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let new = word(matches, "new");
    let mut order = json!({ "name": new, "share": verb != "copy", "read-only": verb == "snapshot" });
    if let Some(path) = matches.get_one::<String>("path") {
        order["path"] = json!(path);
    }
    let mut state = service.request(Method::Post, &format!("{volume}/copy"), RequestBody::Json(order))?;
    let bar = show::progress(state["total"].as_u64().unwrap_or_default());
    while state["ended"] != true {
        std::thread::sleep(COPY_PULSE);
        state = service.get(&format!("/v1/copy/{}", state["id"]))?;
        bar.set_position(state["done"].as_u64().unwrap_or_default());
    }
    bar.finish_and_clear();
    match state["why"].as_str() {
        Some(why) => Err(Failure::new(why)),
        None => {
            let place = state["place"].as_str().unwrap_or_default();
            service.print(&state, format!("volume {new} was created: {place}\n"))
        }
    }
}

/// Shows, ejects or loads the medium of a volume.
fn medium(service: &Service, verb: &str, path: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let state = match verb {
        "eject" => {
            let order = json!({ "forced": matches.get_flag("force") });
            service.request(Method::Post, &format!("{path}/eject"), RequestBody::Json(order))?
        }
        "load" => service.request(Method::Post, &format!("{path}/load"), RequestBody::Nothing)?,
        _ => service.get(&format!("{path}/medium"))?,
    };
    service.print(&state, show::medium(&state))
}

fn session(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else { return Err(Failure::new("a verb is missing; see --help")) };
    match verb {
        "list" => {
            let all = service.get("/v1/session")?;
            service.print(&all, show::sessions(&all))
        }
        "show" => {
            let one = service.get(&format!("/v1/session/{}", encoded(&word(matches, "id"))))?;
            service.print(&one, show::session(&one))
        }
        _ => kick(service, matches),
    }
}

fn handlers(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/handler")?;
    service.print(&all, show::handlers(&all))
}

fn kick(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let named: Vec<String> = matches.get_many("id").into_iter().flatten().cloned().collect();
    let mut found = Vec::new();
    let by = |key: &'static str| matches.get_one::<String>(key).map(|value| (key, value.clone()));
    if let Some((key, value)) = by("initiator").or_else(|| by("target")) {
        let all = service.get("/v1/session")?;
        let matching = all
            .as_array()
            .into_iter()
            .flatten()
            .filter(|session| session[key].as_str().is_some_and(|known| known.eq_ignore_ascii_case(&value)));
        found.extend(matching.filter_map(|session| session["id"].as_str().map(str::to_owned)));
        if found.is_empty() && named.is_empty() {
            return Err(Failure::new(format!(
                "no session has the {key} {value}; `lunar session list` shows the sessions"
            )));
        }
    }
    let (ended, failures) = end_all(&named, &found, |id| service.end_session(id, matches.get_flag("force")));
    let ended = Json::Array(ended);
    service.print(&ended, show::ended_sessions(&ended))?;
    match failures.iter().map(|why| why.exit).max() {
        None => Ok(()),
        Some(exit) => {
            let mut messages: Vec<String> = failures.into_iter().map(|why| why.message).collect();
            messages.dedup();
            Err(Failure { exit, message: messages.join("\n") })
        }
    }
}

/// Ends the sessions that were named by ID and those that were found by initiator or target. Returns the ended sessions
/// and the failures. A found session that has ended meanwhile is no failure.
fn end_all(
    named: &[String],
    found: &[String],
    end_session: impl Fn(&str) -> Result<Json, ClientError>,
) -> (Vec<Json>, Vec<Failure>) {
    let (mut ended, mut failures) = (Vec::new(), Vec::new());
    let both = named.iter().map(|id| (id, true)).chain(found.iter().map(|id| (id, false)));
    for (id, is_named) in both {
        match end_session(id) {
            Ok(session) => ended.push(session),
            Err(ClientError::Refused(404, ..)) if !is_named => {}
            Err(why) => failures.push(why.into()),
        }
    }
    (ended, failures)
}

fn status(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    if matches.get_flag("stages") {
        let all = service.get("/v1/stages")?;
        return service.print(&all, show::stages(&all));
    }
    let status = service.get("/v1/status")?;
    service.print(&status, show::status(&status))
}

fn statistics(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/statistics")?;
    service.print(&all, show::statistics(&all))
}

/// Reads the given file; `None` if none was given and the service is to use its own.
fn text(matches: &ArgMatches) -> Result<Option<String>, Failure> {
    let unreadable = |name: &str, why: std::io::Error| Failure::new(format!("{name} cannot be read: {why}"));
    let Some(file) = matches.get_one::<String>("file") else { return Ok(None) };
    let text = match file.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).map_err(|why| unreadable("standard input", why)),
        file => std::fs::read_to_string(file).map_err(|why| unreadable(file, why)),
    };
    // The API takes an empty body for the service's own file, so an empty file is sent as an empty line.
    text.map(|text| Some(if text.is_empty() { "\n".into() } else { text }))
}

fn plan(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let plan = match text(matches)? {
        Some(text) => service.request(Method::Post, "/v1/plan", RequestBody::Text(text))?,
        None => service.request(Method::Post, "/v1/reload?dry-run=true", RequestBody::Nothing)?,
    };
    service.print(&plan, show::plan(&plan, false))
}

fn apply(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let query = declare::change_query(matches);
    let plan = match text(matches)? {
        Some(text) => service.request(Method::Post, &format!("/v1/apply{query}"), RequestBody::Text(text))?,
        None => service.request(Method::Post, &format!("/v1/reload{query}"), RequestBody::Nothing)?,
    };
    changed(service, &plan, matches)
}

fn diff(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let lines = service.text(Method::Post, "/v1/diff", RequestBody::Text(text(matches)?.unwrap_or_default()))?;
    service.print(&json!({ "diff": lines }), show::diff(&lines))
}

fn history(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let Some(number) = matches.get_one::<u64>("number") else {
        let all = service.get("/v1/version")?;
        return service.print(&all, show::versions(&all));
    };
    if matches.get_flag("text") {
        let text = service.text(Method::Get, &format!("/v1/version/{number}"), RequestBody::Nothing)?;
        return service.print(&json!({ "text": text }), text.clone());
    }
    let lines = service.text(Method::Get, &format!("/v1/version/{number}/diff"), RequestBody::Nothing)?;
    service.print(&json!({ "diff": lines }), show::diff(&lines))
}

fn rollback(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let number = matches.get_one::<u64>("number").copied().unwrap_or_default();
    let path = format!("/v1/version/{number}/restore{}", declare::change_query(matches));
    changed(service, &service.request(Method::Post, &path, RequestBody::Nothing)?, matches)
}

fn audit(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/audit")?;
    let lines = all.as_array().into_iter().flatten().map(show::audit_record).collect();
    service.print(&all, lines)
}

/// Shows or ends the reservation of a volume.
fn reservation(service: &Service, name: &str, volume: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let path = format!("{volume}/reservation");
    let state = match matches.get_flag("clear") {
        true => service.request(Method::Delete, &path, RequestBody::Nothing)?,
        false => service.get(&path)?,
    };
    service.print(&state, explained::reservation(name, &state))
}

fn explain(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((topic, matches)) = matches.subcommand() else {
        return Err(Failure::new("a topic is missing; see --help"));
    };
    let mut path = format!("/v1/explain/{topic}");
    match topic {
        "refusal" => match matches.get_one::<u64>("number") {
            Some(number) => path.push_str(&format!("/{number}")),
            None => {
                let all = service.get("/v1/refusal")?;
                return service.print(&all, explained::refusals(&all));
            }
        },
        "lun" => {
            let lun = matches.get_one::<u16>("lun").copied().unwrap_or_default();
            path.push_str(&format!("/{}/{lun}", encoded(&word(matches, "name"))));
        }
        "path" => path.push_str(&format!("/{}/{}", encoded(&word(matches, "name")), encoded(&word(matches, "volume")))),
        _ => path.push_str(&format!("/{}", encoded(&word(matches, "name")))),
    }
    let given = |name: &'static str| {
        let value = matches.try_get_one::<String>(name).ok().flatten()?;
        Some(format!("{name}={}", encoded(value)))
    };
    let query: Vec<String> = ["target", "from", "portal", "user"].into_iter().filter_map(given).collect();
    if !query.is_empty() {
        path.push_str(&format!("?{}", query.join("&")));
    }
    let explanation = service.get(&path)?;
    service.print(&explanation, explained::explanation(&explanation))
}

fn slow(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    let all = service.get("/v1/slow")?;
    service.print(&all, show::slow(&all))
}

fn events(service: &Service, _: &ArgMatches) -> Result<(), Failure> {
    service.follow(|data| {
        let note: Json = serde_json::from_str(data).unwrap_or_default();
        let line = if service.json { format!("{data}\n") } else { show::audit_record(&note) };
        // The reader of the output has closed it.
        show::print(&line).is_ok()
    })
}

impl Service {
    /// Prints a response: as JSON with `--json`, otherwise as text.
    pub(crate) fn print(&self, answer: &Json, words: String) -> Result<(), Failure> {
        let text = if self.json { format!("{answer:#}\n") } else { words };
        match show::print(&text) {
            // A reader such as `head` that closes the output early is no failure.
            Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(why)),
            _ => Ok(()),
        }
    }
}

/// `lunar config show` and `lunar config set`.
pub(crate) fn settings(
    schema: &'static Schema,
    matches: &ArgMatches,
    verb: &str,
    inner: &ArgMatches,
) -> Result<(), Failure> {
    let service = Service::of(matches)?;
    if verb == "set" {
        let section = inner.subcommand();
        let found = section.and_then(|(section, matches)| Some((schema.kind(section)?, matches)));
        let Some((kind, matches)) = found else { return Err(Failure::new("a section is missing; see --help")) };
        let path = format!("/v1/{}{}", kind.section(), declare::change_query(matches));
        let plan = service.request(Method::Patch, &path, RequestBody::Json(keys(schema, kind, matches)?))?;
        return changed(&service, &plan, matches);
    }
    match inner.get_one::<String>("section") {
        Some(section) => {
            let kind = schema.kind(section).filter(|kind| kind.is_single());
            let Some(kind) = kind else {
                return Err(Failure::new(format!("use `lunar {section} list` for this section")));
            };
            let thing = service.get(&format!("/v1/{section}"))?;
            service.print(&thing, show::resource(schema, kind, &thing))
        }
        None => {
            let text = service.text(Method::Get, "/v1/config/text", RequestBody::Nothing)?;
            let all = if service.json { service.get("/v1/config")? } else { Json::Null };
            service.print(&all, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_api::client_error::NotRunning;

    #[test]
    fn a_volume_is_extended_and_shrinking_is_refused_with_a_way_out() {
        let now = Some(Size(2 << 20));
        let of = |requested| checked_size(now, requested).map_err(|why| why.message);
        assert_eq!((of("3M"), of("+1M"), of("2M")), (Ok(Size(3 << 20)), Ok(Size(3 << 20)), Ok(Size(2 << 20))));
        let why = of("1M").expect_err("smaller");
        assert!(why.contains("delete the volume") && !why.contains("--size"), "{why}");
        assert!(checked_size(None, "+1M").is_err() && checked_size(None, "1X").is_err());
    }

    #[test]
    fn data_is_deleted_after_a_confirmation() {
        let delete = |words: &[&str]| {
            let program = clap::Command::new("lunar").subcommands(crate::commands(&lunar_control::testing::SAMPLE));
            let line = ["lunar", "volume", "delete", "v"].into_iter().chain(words.iter().copied());
            let matches = program.try_get_matches_from(line).map_err(Failure::new)?;
            let (_, noun) = matches.subcommand().expect("a noun");
            let (_, verb) = noun.subcommand().expect("a verb");
            Ok::<_, Failure>(format!("{}{}", declare::change_query(verb), with_data(Kind::Volume, "v", verb)?))
        };
        let of = |words: &[&str]| delete(words).ok();
        assert_eq!(of(&[]).as_deref(), Some(""));
        assert_eq!(of(&["--with-data", "--yes"]).as_deref(), Some("?with-data=true"));
        assert_eq!(of(&["--with-data", "--yes", "--force"]).as_deref(), Some("?force=true&with-data=true"));
        assert_eq!(of(&["--with-data", "--dry-run"]).as_deref(), Some("?dry-run=true&with-data=true"));
        assert_eq!(of(&["--yes"]), None, "there is nothing to confirm");
        assert!(confirmed("v", "v\n") && !confirmed("v", "yes\n") && !confirmed("v", ""));
    }

    #[test]
    fn sessions_are_ended_although_others_cannot_be() {
        let refused = |status, words: &str| Err(ClientError::Refused(status, words.into(), Json::Null));
        let end_session = |id: &str| match id {
            "gone" => refused(404, "there is no session gone"),
            "late" => refused(504, "session late ends when its commands have completed"),
            id => Ok(json!({ "id": id })),
        };
        let all = ["gone", "late", "one", "two"].map(str::to_owned);
        let ids = |all: &[&str]| all.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>();
        for (named, found, missed) in [(&all[..], &[][..], 2), (&[], &all[..], 1)] {
            let (ended, failures) = end_all(named, found, end_session);
            assert_eq!((ended, failures.len()), (ids(&["one", "two"]), missed));
            assert!(failures.iter().any(|why| why.message.contains("late ends") && why.exit == 1));
        }
        let (ended, failures) = end_all(&[], &all[..1], end_session);
        assert!(ended.is_empty() && failures.is_empty(), "a session that has ended is no failure");
        let (_, failures) = end_all(&all, &[], |_| Err(NotRunning::Socket("/socket".into()).into()));
        assert!(failures.iter().all(|why| why.exit == crate::EXIT_NOT_RUNNING));
    }
}
