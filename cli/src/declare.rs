//! The commands and their options. The options of a resource derive from the declarations of its keys.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use lunar_control::document::{Keys, Refused};
use lunar_control::section::{Key, Shape};
use lunar_control::{Kind, Schema};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The option value that removes a key.
const NONE: &str = "none";

/// The options that select the service and the output format.
fn service() -> Vec<Arg> {
    let path = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).global(true).help_heading("Service")
    };
    let file = |arg: Arg| arg.value_parser(value_parser!(PathBuf));
    vec![
        file(path("socket", "PATH", "Path of the API socket [default: $LUNAR_SOCKET, or the service on this host]")),
        path("url", "URL", "Service on the network: https://HOST[:PORT] [default: $LUNAR_URL]")
            .conflicts_with("socket"),
        file(path("token-file", "FILE", "File with the token for --url [default: $LUNAR_TOKEN_FILE]")),
        file(path(
            "trust",
            "FILE",
            "File with trusted certificates for --url, in PEM [default: $LUNAR_TRUST, or those of the system]",
        )),
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .global(true)
            .help("Print the response of the API as JSON")
            .help_heading("Service"),
    ]
}

/// The options that may stand before the command, too: `lunar --json volume list`.
#[must_use]
pub fn leading_options() -> Vec<Arg> {
    // Commands that use the API show it by themselves, and for others it means nothing.
    service().into_iter().filter(|option| option.get_id() == "json").map(|option| option.hide(true)).collect()
}

/// A command that uses the API.
pub(crate) fn api_command(name: impl Into<clap::builder::Str>, about: impl Into<clap::builder::StyledStr>) -> Command {
    Command::new(name).about(about).args(service())
}

/// An option that is given or not.
fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// The options of a change.
pub(crate) fn change_options() -> [Arg; 2] {
    [
        flag("dry-run", "Only print the steps that would be done"),
        flag("force", "Make the change even if it removes a resource that clients with sessions use"),
    ]
}

/// The query of a change: its options that were given.
pub(crate) fn change_query(matches: &ArgMatches) -> &'static str {
    match (matches.get_flag("dry-run"), matches.get_flag("force")) {
        (true, true) => "?dry-run=true&force=true",
        (true, false) => "?dry-run=true",
        (false, true) => "?force=true",
        (false, false) => "",
    }
}

/// The options that delete the data of a volume.
fn with_data() -> [Arg; 2] {
    [
        flag("with-data", "Delete the file of the volume, too; asks for confirmation"),
        flag("yes", "Delete the data without asking").requires("with-data"),
    ]
}

fn name(kind: Kind) -> Arg {
    Arg::new("name").value_name("NAME").required(true).help(format!("Name of the {kind}"))
}

/// The description of a key as help text: clap's convention is no full stop at the end.
fn help(words: &str) -> String {
    words.trim_end_matches('.').to_owned()
}

/// The commands for resources, one for each kind, and for sessions.
#[must_use]
pub fn resource_commands(schema: &'static Schema) -> Vec<Command> {
    let named = schema.kinds().into_iter().filter(|kind| kind.is_named());
    let mut all: Vec<Command> = named.map(|kind| resource(schema, kind)).collect();
    all.push(sessions());
    all.push(handlers());
    all
}

fn resource(schema: &'static Schema, kind: Kind) -> Command {
    let section = kind.section();
    let mut verbs = vec![
        Command::new("create")
            .about(format!("Create a {kind}"))
            .arg(name(kind))
            .args(options(schema, kind, true))
            .args(change_options()),
        Command::new("list").about("List all"),
        Command::new("show").about("Show one with all its keys").arg(name(kind)),
        Command::new("set")
            .about(format!("Change keys of a {kind}; `{NONE}` removes a key"))
            .arg(name(kind))
            .args(options(schema, kind, false))
            .args(change_options()),
        Command::new("delete")
            .about(format!("Delete a {kind}"))
            .arg(name(kind))
            .args(change_options())
            .args(with_data().into_iter().filter(|_| kind == Kind::Volume)),
    ];
    match kind {
        Kind::Volume => {
            verbs.push(
                Command::new("resize")
                    .about("Extend a volume; clients are notified")
                    .arg(name(kind))
                    .arg(
                        Arg::new("size")
                            .value_name("SIZE")
                            .required(true)
                            .help("New size such as 20G, or +5G to add 5 GiB"),
                    )
                    .args(change_options()),
            );
            verbs.extend(copies());
            verbs.extend(media());
            verbs.push(reservation());
            verbs.push(
                Command::new("accept")
                    .about(
                        "Serve the file or device that is now at the path of a volume, although Lunar cannot verify \
                         that it is the previous one",
                    )
                    .arg(name(Kind::Volume)),
            );
        }
        Kind::Group => verbs.extend(mappings()),
        _ => {}
    }
    api_command(section, help(&schema.words(kind)))
        .subcommands(verbs)
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// The copies of a volume.
fn copies() -> [Command; 3] {
    let verb = |verb: &'static str, about: &'static str| {
        let new = Arg::new("new").value_name("NEW").required(true).help("Name of the new volume");
        let path = Arg::new("path").long("path").value_name("PATH");
        let path = path.help(
            "Path of its file [default: NEW.img in the folder of the source]; of a Ceph image, the name of the clone \
             or of the snapshot [default: NEW beside the source, IMAGE@NEW]",
        );
        Command::new(verb).about(about).args([name(Kind::Volume), new, path])
    };
    [
        verb("snapshot", "Create a read-only snapshot; takes no time and no space"),
        verb("clone", "Create a writable clone; takes no time and no space"),
        verb("copy", "Create a full copy"),
    ]
}

/// The commands for the medium of a removable volume.
fn media() -> [Command; 3] {
    let force = Arg::new("force").long("force").action(ArgAction::SetTrue);
    let eject = Command::new("eject").about("Flush and eject the medium of a CD or removable volume");
    [
        Command::new("medium").about("Show whether the medium is loaded").arg(name(Kind::Volume)),
        eject.args([name(Kind::Volume), force.help("Eject it even if an initiator has locked it")]),
        Command::new("load")
            .about("Load the medium again; initiators are notified of a possible medium change")
            .arg(name(Kind::Volume)),
    ]
}

/// The reservations of a volume.
fn reservation() -> Command {
    let clear = Arg::new("clear").long("clear").action(ArgAction::SetTrue);
    Command::new("reservation")
        .about("Show who holds the reservation of a volume")
        .args([name(Kind::Volume), clear.help("End the reservation and all registrations of all hosts")])
}

/// The explanations.
fn explain() -> Command {
    let name = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).value_name(value).required(true).help(help)
    };
    let client = || name("name", "CLIENT", "iSCSI name of the initiator, or NQN of the host");
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let target = || option("target", "TARGET", "Target [default: the one that the client asked for last]");
    let from = || option("from", "ADDRESS", "Address of the client [default: the one that it came from last]");
    let number = Arg::new("number").value_name("N").value_parser(value_parser!(u64));
    api_command("explain", "Explain why a login is refused, a LUN is missing, a volume is slow")
        .subcommands([
            Command::new("login").about("Explain whether a client may log in").args([
                client(),
                target(),
                from(),
                option("portal", "PORTAL", "Portal through which it logs in [default: any]"),
                option("user", "USER", "User as whom it authenticates"),
            ]),
            Command::new("refusal")
                .about("List refused logins, or explain one")
                .arg(number.help("Number of the refusal [default: list them]")),
            Command::new("lun").about("Explain what a client sees at a LUN").args([
                client(),
                name("lun", "LUN", "LUN: logical unit number").value_parser(value_parser!(u16)),
                target(),
                from(),
            ]),
            Command::new("path").about("Explain the paths of a client to a volume").args([
                client(),
                name("volume", "VOLUME", "Name of the volume"),
                target(),
                from(),
            ]),
            Command::new("volume").about("Explain the state of a volume, and who sees it").arg(name(
                "name",
                "VOLUME",
                "Name of the volume",
            )),
            Command::new("reservation").about("Explain who holds the reservation of a volume").arg(name(
                "name",
                "VOLUME",
                "Name of the volume",
            )),
            Command::new("slow").about("Explain where the time of slow commands went").arg(name(
                "name",
                "VOLUME|CLIENT",
                "Name of the volume or of the client",
            )),
        ])
        .subcommand_required(true)
        .arg_required_else_help(true)
}

fn mappings() -> [Command; 2] {
    let lun = || {
        Arg::new("lun")
            .value_name("LUN")
            .required(true)
            .value_parser(value_parser!(u16))
            .help("LUN: logical unit number")
    };
    let group = || name(Kind::Group);
    let volume = Arg::new("volume").value_name("VOLUME").required(true).help("Name of the volume");
    let read_only = Arg::new("read-only").long("read-only").action(ArgAction::SetTrue);
    [
        Command::new("map")
            .about("Map a volume to a LUN of a group")
            .args([
                group(),
                lun(),
                volume,
                read_only.help("Refuse writes of this group"),
                Arg::new("namespace")
                    .long("namespace")
                    .value_name("ID")
                    .value_parser(value_parser!(u16))
                    .help("Namespace ID for NVMe hosts [default: LUN + 1]"),
                Arg::new("metadata")
                    .long("metadata")
                    .action(ArgAction::SetTrue)
                    .help("Expose the protection information of the volume to NVMe hosts as metadata"),
            ])
            .args(change_options()),
        Command::new("unmap").about("Remove a LUN from a group").args([group(), lun()]).args(change_options()),
    ]
}

fn sessions() -> Command {
    let id = || Arg::new("id").value_name("ID").help("ID, as `list` shows it");
    let kick = Command::new("kick").about("End sessions; their clients may reconnect").args([
        id().num_args(0..),
        Arg::new("initiator").long("initiator").value_name("NAME").help("End all sessions of this initiator or host"),
        Arg::new("target").long("target").value_name("NAME").help("End all sessions with this target"),
        flag("force", "Remove disks of the service's machine although they are mounted or otherwise used"),
    ]);
    let kick = kick.group(clap::ArgGroup::new("which").args(["id", "initiator", "target"]).required(true));
    api_command("session", "Sessions of initiators and hosts")
        .subcommands([
            Command::new("list").about("List all"),
            Command::new("show").about("Show one").arg(id().required(true)),
            kick,
        ])
        .subcommand_required(true)
        .arg_required_else_help(true)
}

fn handlers() -> Command {
    api_command("handler", "Handlers: processes that serve the data of volumes")
        .subcommand(Command::new("list").about("List all, with the commands that were sent again or failed"))
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// The commands for the service and the configuration as a whole.
#[must_use]
pub fn service_commands() -> Vec<Command> {
    let file = |help: &'static str| Arg::new("file").value_name("FILE").help(help);
    let number = || Arg::new("number").value_name("N").value_parser(value_parser!(u64));
    vec![
        api_command("status", "Show the state of the service and its troubles").arg(
            Arg::new("stages")
                .long("stages")
                .action(ArgAction::SetTrue)
                .help("Show where the time of commands goes instead, by core and by volume"),
        ),
        api_command("statistics", "Show the statistics since the start"),
        api_command("plan", "Show the steps that applying a file would take")
            .arg(file("File, or - for standard input [default: the service's configuration file]")),
        api_command("apply", "Apply a file completely or not at all")
            .arg(file("File, or - for standard input [default: the service's configuration file, after it was edited]"))
            .args(change_options()),
        api_command("diff", "Compare a file with the running configuration, line by line")
            .arg(file("File, or - for standard input [default: the service's configuration file]")),
        api_command("history", "List the versions of the configuration, or compare one with the running configuration")
            .arg(number().help("Number of the version"))
            .arg(
                Arg::new("text")
                    .long("text")
                    .action(ArgAction::SetTrue)
                    .requires("number")
                    .help("Show the text of the version without secrets instead"),
            ),
        api_command(
            "rollback",
            "Apply an earlier version of the configuration; volumes that have grown since keep their sizes",
        )
        .arg(number().required(true).help("Number of the version, as `lunar history` shows it"))
        .args(change_options()),
        api_command("audit", "Show the last logins, refusals and changes"),
        explain(),
        api_command("log", "Show the slow log: commands that took long, and where their time went").arg(
            Arg::new("slow")
                .long("slow")
                .action(ArgAction::SetTrue)
                .required(true)
                .help("Commands that took longer than `slow` in [logging]"),
        ),
        api_command("events", "Follow logins, refusals and changes until Ctrl-C"),
        api_command("web", "Print a one-time link to the page, and serve it to browsers of this host until Ctrl-C")
            .arg(
                Arg::new("port")
                    .long("port")
                    .value_name("PORT")
                    .value_parser(value_parser!(u16))
                    .help("Port of the loopback address, such as 3280 for a forwarding over SSH [default: a free one]"),
            ),
    ]
}

/// The options of a kind: one for each key that has a value of its own.
#[must_use]
pub fn options(schema: &'static Schema, kind: Kind, create: bool) -> Vec<Arg> {
    let of_some = schema.keys_of_some(kind);
    let all = schema.keys(kind).into_iter().filter(|key| !key.nested);
    // Only some resources of the kind need a key that a front or a store adds.
    all.map(|key| option(schema, key, create && !of_some.contains(&key.field))).collect()
}

fn option(schema: &'static Schema, key: &'static Key, create: bool) -> Arg {
    let shape = schema.shape(key);
    let shape = if let Shape::Optional(some) = &shape { some } else { &shape };
    let arg = Arg::new(key.field).long(key.name()).help(help(&key.words()));
    let is_required = create && (key.default)(schema).is_none();
    let arg = arg.required(is_required);
    match shape {
        Shape::Bool => {
            let words = PossibleValuesParser::new(["true", "false"]);
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_parser(words)
        }
        Shape::Choice(words) => {
            let each = words.iter().map(|(word, doc)| PossibleValue::new(*word).help(*doc));
            let none = (!create && !is_required).then(|| PossibleValue::new(NONE).help("remove the key"));
            arg.value_name("WORD").value_parser(PossibleValuesParser::new(each.chain(none)))
        }
        Shape::List(each) => {
            let name = if let Shape::Name(_) = **each { "NAME,..." } else { "VALUE,..." };
            arg.value_name(name).action(ArgAction::Append)
        }
        Shape::Whole { .. } => arg.value_name("NUMBER"),
        Shape::Name(_) => arg.value_name("NAME"),
        Shape::Secret => {
            let forms = "file:PATH, credential:NAME, or - to type it";
            arg.value_name("WHERE").help(format!("{}: {forms}", help(&key.words())))
        }
        Shape::Text { .. } | Shape::Store | Shape::Protocol | Shape::Luns | Shape::Optional(_) => {
            arg.value_name("VALUE")
        }
    }
}

/// A mistake in an option that gives a key.
#[derive(Debug)]
pub enum KeyMistake {
    /// The secret of this key is an argument.
    Visible(String),
    /// The secret of this key cannot be read from the terminal.
    Unreadable(String, io::Error),
    /// The value is not one of the key.
    Refused(Refused),
}

impl fmt::Display for KeyMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Visible(key) => write!(
                f,
                "--{key}: other users on this host can read the arguments: give file:PATH, credential:NAME, or -"
            ),
            Self::Unreadable(key, why) => write!(f, "the {key} cannot be read: {why}"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for KeyMistake {}

/// The keys that were given as options. `ask` reads a secret from the terminal.
///
/// # Errors
/// [`KeyMistake`].
pub fn keys(
    schema: &'static Schema,
    kind: Kind,
    matches: &ArgMatches,
    mut ask: impl FnMut(&str) -> io::Result<String>,
) -> Result<Keys, KeyMistake> {
    let mut keys = Keys::default();
    for key in schema.keys(kind).into_iter().filter(|key| !key.nested) {
        let Some(values) = matches.get_many::<String>(key.field) else { continue };
        let mut value = values.map(String::as_str).collect::<Vec<_>>().join(",");
        let mut is_asked = false;
        if is_secret(key) {
            if value == "-" {
                value = ask(&key.name()).map_err(|why| KeyMistake::Unreadable(key.name(), why))?;
                is_asked = true;
            } else if !["file:", "credential:"].iter().any(|form| value.starts_with(form)) {
                return Err(KeyMistake::Visible(key.name()));
            }
        }
        if is_asked {
            keys.0.insert(key.name(), value.into());
        } else {
            keys.add_text(schema, kind, &format!("{}={value}", key.name())).map_err(KeyMistake::Refused)?;
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
    use lunar_control::testing::SAMPLE;

    fn program() -> Command {
        Command::new("lunar").subcommands(crate::commands(&SAMPLE))
    }

    fn given(kind: Kind, line: &str) -> Result<Keys, String> {
        let words = line.split_whitespace();
        let matches = program().try_get_matches_from(words).map_err(|why| why.to_string())?;
        let (_, noun) = matches.subcommand().expect("a noun");
        let (_, verb) = noun.subcommand().expect("a verb");
        keys(&SAMPLE, kind, verb, |_| Ok("a typed secret".into())).map_err(|why| why.to_string())
    }

    #[test]
    fn the_commands_are_consistent() {
        program().debug_assert();
    }

    #[test]
    fn each_key_has_an_option_with_help() {
        for kind in SAMPLE.kinds().into_iter().filter(|kind| kind.is_named()) {
            let noun = resource(&SAMPLE, kind);
            for verb in ["create", "set"] {
                let verb = noun.find_subcommand(verb).expect("the verb");
                for key in SAMPLE.keys(kind).into_iter().filter(|key| !key.nested) {
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
        let keys = given(Kind::Volume, line).expect("valid options");
        let shown = serde_json::Value::Object(keys.0);
        let wanted = serde_json::json!({
            "kind": "file", "path": "/srv/d", "size": "20G", "read-only": true, "block-size": "4096",
        });
        assert_eq!(shown, wanted);
        let keys = given(Kind::Target, "lunar target set t --users a,b --users c --alias none").expect("valid options");
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
    fn secrets_are_not_accepted_as_arguments() {
        let why = given(Kind::User, "lunar user create u --secret correct-horse").expect_err("an argument");
        assert!(why.contains("other users on this host can read") && !why.contains("horse"), "{why}");
        let keys = given(Kind::User, "lunar user create u --secret -").expect("typed");
        assert_eq!(keys.0["secret"], serde_json::json!("a typed secret"));
        let keys = given(Kind::User, "lunar user create u --secret file:/etc/x").expect("in a file");
        assert_eq!(keys.0["secret"], serde_json::json!({ "file": "/etc/x" }));
    }
}
