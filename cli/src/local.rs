//! `lunar config`: what a configuration means and whether it is right, which needs no service; and what there is once
//! of the one in force.

use crate::{Failure, act, declare, show};
use clap::{Arg, ArgMatches, Command};
use lunar_control::check::Machine;
use lunar_control::{Kind, check, docs};

/// The command.
#[must_use]
pub fn command() -> Command {
    let singles = || Kind::ALL.iter().copied().filter(|kind| kind.is_single());
    let set = singles().map(|kind| {
        let about = kind.words();
        Command::new(kind.section())
            .about(about.trim_end_matches('.').to_owned())
            .args(declare::options(kind, false))
            .arg(declare::dry_run())
            .arg_required_else_help(true)
    });
    let sections: Vec<&'static str> = singles().map(Kind::section).collect();
    let verbs = [
        Command::new("explain")
            .about("What a section or a key means: `volume`, `volume.size`")
            .arg(Arg::new("key").value_name("KEY").help("The section, or the key [default: all sections]")),
        Command::new("check")
            .about("Whether a file is right on this machine; says all that is wrong, with places")
            .arg(Arg::new("file").value_name("FILE").required(true).help("The file")),
        Command::new("schema").about("The JSON schema of a configuration, for editors"),
        Command::new("show")
            .about("The text in force, without secrets, or a section of it with all its keys")
            .arg(Arg::new("section").value_name("SECTION").value_parser(sections).help("One of which there is one")),
        Command::new("set")
            .about("Change what there is once; `none` takes a key out")
            .subcommands(set)
            .subcommand_required(true)
            .arg_required_else_help(true),
    ];
    declare::asking("config", "What can be configured, and what is")
        .subcommands(verbs)
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// Does it.
///
/// # Errors
/// Why not.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("explain", inner)) => say(&explain(inner.get_one::<String>("key").map(String::as_str))?),
        Some(("schema", _)) => say(&format!("{:#}", docs::schema())),
        Some(("check", inner)) => {
            let file = inner.get_one::<String>("file").cloned().unwrap_or_default();
            say(&right(&file)?)
        }
        Some((verb, inner)) => act::settings(matches, verb, inner),
        None => Err(Failure::new("do what?")),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    match show::print(&format!("{text}\n")) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(why)),
        _ => Ok(()),
    }
}

fn explain(key: Option<&str>) -> Result<String, Failure> {
    let Some(key) = key else {
        let line = |kind: &Kind| format!("{:<14}{}", kind.section(), kind.words());
        return Ok(Kind::ALL.iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    docs::explain(key).map_err(|why| Failure::new(format!("{why}; `lunar config explain` lists all")))
}

fn right(file: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|why| Failure::new(format!("{file} cannot be read: {why}")))?;
    let checked = check(file, &text, &Machine { config: file.into() }).map_err(Failure::new)?;
    let count = |kind: &&Kind| checked.config.names(**kind).len();
    let all: usize = Kind::ALL.iter().filter(|kind| kind.is_named()).map(|kind| count(&kind)).sum();
    Ok(format!("{file} is right: {all} things"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_explained_without_a_service() {
        assert!(explain(Some("volume.size")).is_ok_and(|text| text.contains("How large")));
        assert!(explain(None).is_ok_and(|text| text.lines().count() == Kind::ALL.len()));
        let why = explain(Some("volume.siez")).expect_err("a slip").words;
        assert!(why.contains("did you mean 'size'?") && why.contains("lists all"), "{why}");
    }

    #[test]
    fn a_file_is_right_or_all_that_is_wrong_is_told() {
        let file = std::env::temp_dir().join(format!("lunar-check-{}.toml", std::process::id()));
        let name = file.display().to_string();
        std::fs::write(&file, "[volume.a]\nkind = 'ram'\nsize = '1M'\n").expect("it takes it");
        assert_eq!(right(&name).ok(), Some(format!("{name} is right: 1 things")));
        std::fs::write(&file, "[volume.a]\nkind = 'rom'\nsiez = 1\n").expect("it takes it");
        let why = right(&name).expect_err("two mistakes").words;
        std::fs::remove_file(&file).expect("it is ours");
        assert!(why.contains(":2:8: ") && why.contains(":3:1: "), "{why}");
    }
}
