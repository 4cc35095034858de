//! `lunar config`: explains and checks configurations without a service; shows and changes the sections of the running
//! configuration that exist once.

use crate::failure::Failure;
use crate::{act, declare, show};
use clap::{Arg, ArgMatches, Command};
use lunar_control::check::LocalHost;
use lunar_control::{Kind, Schema, check, docs};

/// The command.
#[must_use]
pub fn command(schema: &'static Schema) -> Command {
    let singles = || schema.kinds().into_iter().filter(|kind| kind.is_single());
    let set = singles().map(|kind| {
        let about = schema.words(kind);
        Command::new(kind.section())
            .about(about.trim_end_matches('.').to_owned())
            .args(declare::options(schema, kind, false))
            .args(declare::change_options())
            .arg_required_else_help(true)
    });
    let sections: Vec<&'static str> = singles().map(Kind::section).collect();
    let verbs = [
        Command::new("explain")
            .about("Explain a section or a key: `volume`, `volume.size`")
            .arg(Arg::new("key").value_name("KEY").help("Section or key [default: all sections]")),
        Command::new("check")
            .about("Check a file on this host; prints all mistakes with their positions")
            .arg(Arg::new("file").value_name("FILE").required(true).help("File to check")),
        Command::new("schema").about("Print the JSON schema of the configuration, for editors"),
        Command::new("show")
            .about("Show the running configuration without secrets, or a section with all its keys")
            .arg(Arg::new("section").value_name("SECTION").value_parser(sections).help("Section without names")),
        Command::new("set")
            .about("Change keys of a section without names; `none` removes a key")
            .subcommands(set)
            .subcommand_required(true)
            .arg_required_else_help(true),
    ];
    declare::api_command("config", "Explain, check, show and change the configuration")
        .subcommands(verbs)
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// Runs the command.
///
/// # Errors
/// Why it failed.
pub fn run(schema: &'static Schema, matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("explain", inner)) => say(&explain(schema, inner.get_one::<String>("key").map(String::as_str))?),
        Some(("schema", _)) => say(&format!("{:#}", docs::json_schema(schema))),
        Some(("check", inner)) => {
            let file = inner.get_one::<String>("file").cloned().unwrap_or_default();
            say(&check_file(schema, &file)?)
        }
        Some((verb, inner)) => act::settings(schema, matches, verb, inner),
        None => Err(Failure::new("a verb is missing; see --help")),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    match show::print(&format!("{text}\n")) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(why)),
        _ => Ok(()),
    }
}

fn explain(schema: &'static Schema, key: Option<&str>) -> Result<String, Failure> {
    let Some(key) = key else {
        let line = |kind: &Kind| format!("{:<14}{}", kind.section(), schema.words(*kind));
        return Ok(schema.kinds().iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    docs::explain(schema, key).map_err(|why| Failure::new(format!("{why}; `lunar config explain` lists all sections")))
}

fn check_file(schema: &'static Schema, file: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|why| Failure::new(format!("{file} cannot be read: {why}")))?;
    let checked = check(schema, file, &text, &LocalHost { config: file.into() }).map_err(Failure::new)?;
    let count = |kind: &&Kind| checked.config.names(**kind).len();
    let all: usize = schema.kinds().iter().filter(|kind| kind.is_named()).map(|kind| count(&kind)).sum();
    Ok(format!("{file} is valid: {all} resources"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::testing::SAMPLE;

    #[test]
    fn keys_are_explained_without_a_service() {
        assert!(explain(&SAMPLE, Some("volume.size")).is_ok_and(|text| text.contains("The size")));
        assert!(explain(&SAMPLE, None).is_ok_and(|text| text.lines().count() == SAMPLE.kinds().len()));
        let why = explain(&SAMPLE, Some("volume.siez")).expect_err("a misspelled key").message;
        assert!(why.contains("did you mean 'size'?") && why.contains("lists all"), "{why}");
    }

    #[test]
    fn a_file_is_valid_or_all_its_mistakes_are_listed() {
        let file = std::env::temp_dir().join(format!("lunar-check-{}.toml", std::process::id()));
        let name = file.display().to_string();
        std::fs::write(&file, "[volume.a]\nkind = 'ram'\nsize = '1M'\n").expect("written");
        assert_eq!(check_file(&SAMPLE, &name).ok(), Some(format!("{name} is valid: 1 resources")));
        std::fs::write(&file, "[volume.a]\nkind = 'rom'\nsiez = 1\n").expect("written");
        let why = check_file(&SAMPLE, &name).expect_err("two mistakes").message;
        std::fs::remove_file(&file).expect("our file");
        assert!(why.contains(":2:8: ") && why.contains(":3:1: "), "{why}");
    }
}
