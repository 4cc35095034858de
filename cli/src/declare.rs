//! The commands and their options. An option is made from the declaration of its key: a new key needs no line here.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use lunar_control::Kind;
use lunar_control::document::Keys;
use lunar_control::section::Key;
use lunar_control::value::Shape;
use std::path::PathBuf;

/// What stands for nothing.
const NONE: &str = "none";

/// How to reach the service, and how to say what it answers.
fn service() -> Vec<Arg> {
    let place = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).global(true).help_heading("Service")
    };
    let file = |arg: Arg| arg.value_parser(value_parser!(PathBuf));
    vec![
        file(place("socket", "PATH", "Its socket [default: $LUNAR_SOCKET, or that of the service on this machine]")),
        place("url", "URL", "A service elsewhere: https://HOST[:PORT] [default: $LUNAR_URL]").conflicts_with("socket"),
        file(place("token-file", "FILE", "The file with the token for --url [default: $LUNAR_TOKEN_FILE]")),
        file(place(
            "trust",
            "FILE",
            "Certificates to trust with --url, in PEM [default: $LUNAR_TRUST, or the system's]",
        )),
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .global(true)
            .help("Say it in JSON, as the API does")
            .help_heading("Service"),
    ]
}

/// A command that asks the service.
pub(crate) fn asking(name: impl Into<clap::builder::Str>, about: impl Into<clap::builder::StyledStr>) -> Command {
    Command::new(name).about(about).args(service())
}

pub(crate) fn dry_run() -> Arg {
    Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Only say what would be done")
}

fn name(kind: Kind) -> Arg {
    Arg::new("name").value_name("NAME").required(true).help(format!("The name of the {kind}"))
}

/// The words of a declaration as help: without the last full stop, as clap has it.
fn help(words: &str) -> String {
    words.trim_end_matches('.').to_owned()
}

/// One command for each kind of thing, and one for sessions.
#[must_use]
pub fn nouns() -> Vec<Command> {
    let named = Kind::ALL.iter().copied().filter(|kind| kind.is_named());
    let mut all: Vec<Command> = named.map(noun).collect();
    all.push(sessions());
    all
}

fn noun(kind: Kind) -> Command {
    let section = kind.section();
    let mut verbs = vec![
        Command::new("create").about(format!("Make a {kind}")).arg(name(kind)).args(options(kind, true)).arg(dry_run()),
        Command::new("list").about("Show all"),
        Command::new("show").about("Show one, with all its keys").arg(name(kind)),
        Command::new("set")
            .about(format!("Change keys of a {kind}; `{NONE}` takes one out"))
            .arg(name(kind))
            .args(options(kind, false))
            .arg(dry_run()),
        Command::new("delete").about(format!("Remove a {kind}")).arg(name(kind)).arg(dry_run()),
    ];
    match kind {
        Kind::Volume => {
            verbs.push(
                Command::new("resize")
                    .about("Make a volume larger; initiators are told")
                    .arg(name(kind))
                    .arg(Arg::new("size").value_name("SIZE").required(true).help("20G, or +5G for so much more"))
                    .arg(dry_run()),
            );
            verbs.extend(copies());
            verbs.extend(media());
        }
        Kind::Group => verbs.extend(mappings()),
        _ => {}
    }
    asking(section, help(&kind.words())).subcommands(verbs).subcommand_required(true).arg_required_else_help(true)
}

/// Copies of a volume that is a file.
fn copies() -> [Command; 3] {
    let verb = |verb: &'static str, about: &'static str| {
        let new = Arg::new("new").value_name("NEW").required(true).help("The name of the new volume");
        let path = Arg::new("path").long("path").value_name("PATH");
        let path = path.help("Where its file shall be [default: NEW.img in the folder of the other]");
        Command::new(verb).about(about).args([name(Kind::Volume), new, path])
    };
    [
        verb("snapshot", "Keep what is on a volume now, in a volume that can only be read; takes no time and no space"),
        verb("clone", "Make a volume that begins with what is on another now; takes no time and no space"),
        verb("copy", "Make a volume with all the blocks of another"),
    ]
}

/// Where the medium of a volume is, and which way it goes.
fn media() -> [Command; 3] {
    let force = Arg::new("force").long("force").action(ArgAction::SetTrue);
    let eject =
        Command::new("eject").about("Take out the medium of a volume that is a CD or removable; flushes it first");
    [
        Command::new("medium").about("Whether the medium of a volume is in").arg(name(Kind::Volume)),
        eject.args([name(Kind::Volume), force.help("Even if an initiator uses it and has locked it")]),
        Command::new("load")
            .about("Put the medium in again; initiators are told that it may be another one")
            .arg(name(Kind::Volume)),
    ]
}

fn mappings() -> [Command; 2] {
    let lun = || {
        Arg::new("lun").value_name("LUN").required(true).value_parser(value_parser!(u16)).help("Logical unit number")
    };
    let group = || name(Kind::Group);
    let volume = Arg::new("volume").value_name("VOLUME").required(true).help("The name of the volume");
    let read_only = Arg::new("read-only").long("read-only").action(ArgAction::SetTrue);
    [
        Command::new("map").about("Give a volume a number in a group").args([
            group(),
            lun(),
            volume,
            read_only.help("This group may only read"),
            Arg::new("namespace")
                .long("namespace")
                .value_name("ID")
                .value_parser(value_parser!(u16))
                .help("Its namespace identifier for NVMe hosts [default: LUN + 1]"),
            Arg::new("metadata")
                .long("metadata")
                .action(ArgAction::SetTrue)
                .help("NVMe hosts see the volume's protection information, as metadata"),
            dry_run(),
        ]),
        Command::new("unmap").about("Take a number out of a group").args([group(), lun(), dry_run()]),
    ]
}

fn sessions() -> Command {
    let id = || Arg::new("id").value_name("ID").help("What it is called, as `list` shows it");
    let kick = Command::new("kick").about("End sessions; their initiators may come back by themselves").args([
        id().num_args(0..),
        Arg::new("initiator").long("initiator").value_name("NAME").help("All sessions of this initiator"),
        Arg::new("target").long("target").value_name("NAME").help("All sessions at this target"),
    ]);
    let kick = kick.group(clap::ArgGroup::new("which").args(["id", "initiator", "target"]).required(true));
    asking("session", "Who is logged in")
        .subcommands([
            Command::new("list").about("Show all"),
            Command::new("show").about("Show one").arg(id().required(true)),
            kick,
        ])
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// The commands about the service and the whole of its configuration.
#[must_use]
pub fn whole() -> Vec<Command> {
    let file = |help: &'static str| Arg::new("file").value_name("FILE").help(help);
    let number = || Arg::new("number").value_name("N").value_parser(value_parser!(u64));
    vec![
        asking("status", "What runs, and whether all is well"),
        asking("statistics", "What was counted since the start"),
        asking("plan", "What putting a file in force would do")
            .arg(file("The file, or - for standard input [default: the service's own, as it stands]")),
        asking("apply", "Put a file in force, all of it or nothing")
            .arg(file("The file, or - for standard input [default: the service's own, after changes by hand]"))
            .arg(dry_run()),
        asking("diff", "How a file differs from what is in force, line by line")
            .arg(file("The file, or - for standard input [default: the service's own, as it stands]")),
        asking("history", "The versions of the configuration, or how one of them differs from what is in force")
            .arg(number().help("The version"))
            .arg(
                Arg::new("text")
                    .long("text")
                    .action(ArgAction::SetTrue)
                    .requires("number")
                    .help("Show its text instead, without secrets"),
            ),
        asking("rollback", "Put a version of the history in force again")
            .arg(number().required(true).help("The version, as `lunar history` shows it"))
            .arg(dry_run()),
        asking("audit", "The last logins, refusals and changes"),
        asking("events", "Logins, refusals and changes as they come, until Ctrl-C"),
    ]
}

/// The options of a kind: one for each key that has a value of its own.
#[must_use]
pub fn options(kind: Kind, create: bool) -> Vec<Arg> {
    let all = kind.keys().iter().filter(|key| !key.nested);
    all.map(|key| option(key, create)).collect()
}

fn option(key: &Key, create: bool) -> Arg {
    let shape = (key.shape)();
    let shape = if let Shape::Optional(some) = &shape { some } else { &shape };
    let arg = Arg::new(key.field).long(key.name()).help(help(&key.words()));
    let is_required = create && (key.default)().is_none();
    let arg = arg.required(is_required);
    match shape {
        Shape::Bool => {
            let words = PossibleValuesParser::new(["true", "false"]);
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_parser(words)
        }
        Shape::Choice(words) => {
            let each = words.iter().map(|(word, doc)| PossibleValue::new(*word).help(*doc));
            let none = (!create && !is_required).then(|| PossibleValue::new(NONE).help("what holds without it"));
            arg.value_name("WORD").value_parser(PossibleValuesParser::new(each.chain(none)))
        }
        Shape::List(each) => {
            let name = if let Shape::Name(_) = **each { "NAME,..." } else { "VALUE,..." };
            arg.value_name(name).action(ArgAction::Append)
        }
        Shape::Whole { .. } => arg.value_name("NUMBER"),
        Shape::Name(_) => arg.value_name("NAME"),
        Shape::Secret => {
            let forms = "file:PATH, credential:NAME, or - to be asked for it";
            arg.value_name("WHERE").help(format!("{}: {forms}", help(&key.words())))
        }
        Shape::Text { .. } | Shape::Luns | Shape::Optional(_) => arg.value_name("VALUE"),
    }
}

/// The keys that options gave. `ask` gets a secret from whoever types.
///
/// # Errors
/// What is wrong with them.
pub fn keys(
    kind: Kind,
    matches: &ArgMatches,
    mut ask: impl FnMut(&str) -> Result<String, String>,
) -> Result<Keys, String> {
    let mut keys = Keys::default();
    for key in kind.keys().iter().filter(|key| !key.nested) {
        let Some(values) = matches.get_many::<String>(key.field) else { continue };
        let mut value = values.map(String::as_str).collect::<Vec<_>>().join(",");
        let mut is_asked = false;
        if is_secret(key) {
            if value == "-" {
                value = ask(&key.name())?;
                is_asked = true;
            } else if !["file:", "credential:"].iter().any(|form| value.starts_with(form)) {
                let why =
                    "whatever is typed here, others on this machine can read: give file:PATH, credential:NAME, or -";
                return Err(format!("--{}: {why}", key.name()));
            }
        }
        if is_asked {
            keys.0.insert(key.name(), value.into());
        } else {
            keys.add_text(kind, &format!("{}={value}", key.name())).map_err(|why| why.to_string())?;
        }
    }
    Ok(keys)
}

fn is_secret(key: &Key) -> bool {
    let shape = (key.shape)();
    shape == Shape::Secret || matches!(shape, Shape::Optional(some) if *some == Shape::Secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        Command::new("lunar").subcommands(crate::commands())
    }

    fn given(kind: Kind, line: &str) -> Result<Keys, String> {
        let words = line.split_whitespace();
        let matches = program().try_get_matches_from(words).map_err(|why| why.to_string())?;
        let (_, noun) = matches.subcommand().expect("a noun");
        let (_, verb) = noun.subcommand().expect("a verb");
        keys(kind, verb, |_| Ok("asked for and given".into()))
    }

    #[test]
    fn clap_finds_nothing_wrong() {
        program().debug_assert();
    }

    #[test]
    fn each_key_is_an_option_and_says_what_it_means() {
        for kind in Kind::ALL.iter().filter(|kind| kind.is_named()) {
            let noun = noun(*kind);
            for verb in ["create", "set"] {
                let verb = noun.find_subcommand(verb).expect("each has it");
                for key in kind.keys().iter().filter(|key| !key.nested) {
                    let option = verb.get_arguments().find(|arg| arg.get_long() == Some(&key.name()));
                    let option = option.unwrap_or_else(|| panic!("{kind} has no --{}", key.name()));
                    assert!(option.get_help().is_some());
                }
            }
        }
    }

    #[test]
    fn options_become_keys() {
        let line = "lunar volume create d --kind file --path /srv/d --size 20G --read-only --block-size 4096";
        let keys = given(Kind::Volume, line).expect("all are right");
        let shown = serde_json::Value::Object(keys.0);
        let wanted = serde_json::json!({
            "kind": "file", "path": "/srv/d", "size": "20G", "read-only": true, "block-size": "4096",
        });
        assert_eq!(shown, wanted);
        let keys = given(Kind::Target, "lunar target set t --users a,b --users c --alias none").expect("all are right");
        assert_eq!(serde_json::Value::Object(keys.0), serde_json::json!({ "users": ["a", "b", "c"], "alias": null }));
        for (line, words) in [
            ("lunar volume create d --size 20G", "--kind"),
            ("lunar volume create d --kind rom", "possible values"),
            ("lunar volume create d --kind ram --siez 1G", "--size"),
        ] {
            let why = given(Kind::Volume, line).expect_err(line);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn secrets_are_not_typed_where_others_read_them() {
        let why = given(Kind::User, "lunar user create u --secret correct-horse").expect_err("it is shown to all");
        assert!(why.contains("others on this machine can read") && !why.contains("horse"), "{why}");
        let keys = given(Kind::User, "lunar user create u --secret -").expect("it is asked for");
        assert_eq!(keys.0["secret"], serde_json::json!("asked for and given"));
        let keys = given(Kind::User, "lunar user create u --secret file:/etc/x").expect("it is in a file");
        assert_eq!(keys.0["secret"], serde_json::json!({ "file": "/etc/x" }));
    }
}
