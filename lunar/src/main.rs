//! `lunar`: serves volumes to hosts and virtual machines, from user space.

use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use lunar::args::{self, Command, How, Serve};
use lunar::daemon::Daemon;
use lunar::registry::PROGRAM;
use lunar::schema::SCHEMA;
use lunar_core::protection::Kind;
use lunar_engine::volume::command_line::Options;
use lunar_reactor::log;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Size of the demo disk: large enough for a file system to be made on it, and it takes no space before.
const DEMO_BYTES: &str = "1G";

fn main() -> ExitCode {
    let command = match command() {
        Ok(command) => command,
        Err(status) => return status,
    };
    let result = match command {
        Command::Serve(serve, how) => serve_volumes(serve, how),
        Command::Daemon(daemon) => follow(&daemon),
        Command::Demo(how) => serve_demo(how),
        Command::Bench(options) => bench(&options),
        Command::UblkServer(options) => lunar::ublk_server::run(&options),
        Command::FileHelper { secrets } => lunar::file_helper::serve::run(secrets),
        Command::ProgramHelper { files } => lunar::program_helper::run(files),
        Command::Stats { socket } => show_stats(&socket),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log!(error, "lunar: {why:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the command line; the declaration of all commands and options (more than a megabyte) is dropped afterwards.
///
/// # Errors
/// The exit status, when the command was one of the operator's and has been executed.
fn command() -> Result<Command, ExitCode> {
    let program = program();
    let matches = program.clone().get_matches();
    if let Some((name, inner)) = matches.subcommand()
        && let Some(result) = lunar_cli::run(&SCHEMA, name, inner, &program)
    {
        return Err(operate(result));
    }
    if matches.get_flag("json") && !has_own_json(&program, &matches) {
        let why = "--json is for commands that use the API, such as `lunar --json volume list`";
        program.clone().error(ErrorKind::ArgumentConflict, why).exit();
    }
    args::read(&PROGRAM, &matches).map_err(|why| why.exit())
}

/// Whether the command declares `--json` itself, as `bench` does.
fn has_own_json(program: &clap::Command, matches: &clap::ArgMatches) -> bool {
    let command = matches.subcommand_name().and_then(|name| program.find_subcommand(name));
    command.is_some_and(|command| command.get_arguments().any(|option| option.get_id() == "json"))
}

/// The whole command line.
fn program() -> clap::Command {
    args::command(&PROGRAM).args(lunar_cli::declare::leading_options()).subcommands(lunar_cli::commands(&SCHEMA))
}

/// The outcome of a command of the operator.
fn operate(result: Result<(), lunar_cli::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Without a message, everything has been printed.
            if !why.message.is_empty() {
                log!(error, "lunar: {why}");
            }
            ExitCode::from(why.exit)
        }
    }
}

/// Serves the configuration of a file, confined, with its API.
fn follow(daemon: &Daemon) -> Result<()> {
    let notify = lunar::notify::Notify::from_environment();
    lunar::jail::forbid_core_dumps()?;
    lunar::operator::confine(&daemon.config, daemon.state.as_deref())?;
    lunar::daemon::run(daemon, &notify, lunar::operator::open)
}

fn serve_volumes(serve: Serve, how: How) -> Result<()> {
    lunar::jail::forbid_core_dumps()?;
    let options = Options {
        read_only: serve.read_only,
        shared: serve.shared,
        block_size: serve.block_size,
        write_through: serve.write_through,
        direct: serve.direct,
        protection: serve.protection.and_then(Kind::of),
    };
    lunar::serve::run(&PROGRAM, serve.texts(), &options, how)
}

/// A sparse file in the user's state directory, so that its data is still there the next time.
fn serve_demo(how: How) -> Result<()> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let folder = state.or_else(home).context("neither XDG_STATE_HOME nor HOME is set: where to keep the demo disk?")?;
    let folder = folder.join("lunar");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let spec = format!("{}:{DEMO_BYTES}", folder.join("demo.img").display());
    lunar::serve::run(&PROGRAM, vec![spec], &Options::PLAIN, how)
}

/// The report is printed in any case; the exit status shows errors.
fn bench(options: &lunar_load::Options) -> Result<()> {
    match lunar_load::command(options)? {
        true => Ok(()),
        false => bail!("the run had errors: the report lists them"),
    }
}

fn show_stats(socket: &std::path::Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&lunar::stats::read(socket)?)?;
    match writeln!(io::stdout(), "{text}") {
        // The reader has closed the pipe.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_format_is_given_before_or_behind_the_command() {
        for line in ["lunar --json volume list", "lunar volume --json list", "lunar volume list --json"] {
            let matches = program().try_get_matches_from(line.split_whitespace()).expect(line);
            let (_, inner) = matches.subcommand().expect("a command");
            let (_, list) = inner.subcommand().expect("a verb");
            assert!(list.get_flag("json") && inner.get_flag("json"), "{line}");
        }
        let matches = program().try_get_matches_from(["lunar", "volume", "list"]).expect("a command");
        assert!(!matches.subcommand().expect("a command").1.get_flag("json"));
        program().debug_assert();
    }

    #[test]
    fn a_benchmark_has_an_output_format_and_a_server_has_none() {
        let own = |line: &str| {
            let matches = program().try_get_matches_from(line.split_whitespace()).expect(line);
            assert!(matches.get_flag("json"), "{line}");
            has_own_json(&program(), &matches)
        };
        assert!(own("lunar bench iscsi://127.0.0.1 --json"));
        assert!(!own("lunar --json serve ram:1M"));
    }

    /// The first word of a command, written as in the documentation, that is no command and no option of this program.
    fn unknown(program: &clap::Command, line: &str) -> Option<String> {
        let mut command = program;
        for word in line.split_whitespace() {
            if let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) {
                let name = option.split('=').next().unwrap_or_default();
                if !command.get_arguments().any(|known| known.get_long() == Some(name)) {
                    return Some(word.to_owned());
                }
                continue;
            }
            let is_name = word.chars().all(|c| c.is_ascii_lowercase() || "-|\\".contains(c)) && !word.starts_with('-');
            if !is_name || !command.has_subcommands() {
                continue;
            }
            // Alternatives are separated by bars, which are escaped in tables.
            let mut all = word.split('|').map(|one| command.find_subcommand(one.trim_end_matches('\\')));
            match all.next().flatten() {
                Some(first) if all.all(|one| one.is_some()) => command = first,
                _ => return Some(word.to_owned()),
            }
        }
        None
    }

    #[test]
    fn commands_and_options_are_found_as_the_documentation_writes_them() {
        let mut program = program();
        program.build();
        for line in ["volume create|list NAME", "volume create\\|list", "top --once --json", "serve disk.img", "status"]
        {
            assert_eq!(unknown(&program, line), None, "{line}");
        }
        for (line, word) in [("session end", "end"), ("top --often", "--often"), ("volume list|lost", "list|lost")] {
            assert_eq!(unknown(&program, line).as_deref(), Some(word), "{line}");
        }
    }

    /// Commands in blocks are run by the conformance program.
    #[test]
    fn the_sentences_of_the_documentation_name_commands_that_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let pages = ["docs", "docs/how-to"].into_iter().flat_map(|folder| {
            std::fs::read_dir(root.join(folder))
                .expect("the folder exists")
                .map(|entry| entry.expect("an entry").path())
        });
        let pages = pages.filter(|page| page.extension().is_some_and(|it| it == "md")).chain([root.join("README.md")]);
        let mut program = program();
        program.build();
        let (mut found, mut wrong) = (0, Vec::new());
        for page in pages {
            let text = std::fs::read_to_string(&page).expect("a page");
            for (at, line) in text.lines().enumerate() {
                let commands = line.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("lunar "));
                for command in commands {
                    found += 1;
                    let word = unknown(&program, command);
                    wrong.extend(word.map(|word| format!("{}:{}: {word} in {command}", page.display(), at + 1)));
                }
            }
        }
        assert!(found > 200, "{found} commands");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
