//! `lunar`: shares volumes with hosts and virtual machines, from user space.

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, FromArgMatches};
use lunar::args::{Cli, Command, Demo, Serve};
use lunar::daemon::Daemon;
use lunar::volume::{Options, Volume};
use lunar_core::protection::Kind;
use lunar_reactor::log;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Size of the demo disk: large enough for a file system to be made on it, and it takes no space before.
const DEMO_BYTES: &str = "1G";

fn main() -> ExitCode {
    let program = Cli::command().subcommands(lunar_cli::commands());
    let matches = program.clone().get_matches();
    if let Some((name, inner)) = matches.subcommand()
        && let Some(result) = lunar_cli::run(name, inner, &program)
    {
        return operate(result);
    }
    let command = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli.command,
        Err(why) => why.exit(),
    };
    let result = match command {
        Command::Serve(serve) => share(serve),
        Command::Daemon(daemon) => follow(&daemon),
        Command::Demo(demo) => share_demo(demo),
        Command::Bench(options) => bench(&options),
        Command::Stats { socket } => show_stats(&socket),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log!("lunar: {why:#}");
            ExitCode::FAILURE
        }
    }
}

/// How a command of the operator ends.
fn operate(result: Result<(), lunar_cli::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log!("lunar: {why}");
            ExitCode::from(why.exit)
        }
    }
}

/// Serves what a file says, in its jails, with its API.
fn follow(daemon: &Daemon) -> Result<()> {
    let notify = lunar::notify::Notify::from_environment();
    lunar::operator::confine(&daemon.config, daemon.state.as_deref())?;
    lunar::daemon::run(daemon, &notify, lunar::operator::attach)
}

fn share(serve: Serve) -> Result<()> {
    let options = Options {
        read_only: serve.read_only,
        shared: serve.shared,
        block_size: serve.block_size,
        write_through: serve.write_through,
        direct: serve.direct,
        makes: true,
        protection: serve.protection.and_then(Kind::of),
    };
    let volumes = Volume::open_all(&serve.volumes, &options)?;
    serve.volumes.iter().filter_map(|name| lunar::volume::hint(name)).for_each(|hint| log!("{hint}"));
    lunar::serve::run(volumes, serve.volumes, serve.how)
}

/// A sparse file in the user's state directory, so that what was written to it is there the next time.
fn share_demo(demo: Demo) -> Result<()> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let folder = state.or_else(home).context("neither XDG_STATE_HOME nor HOME is set: where to keep the demo disk?")?;
    let folder = folder.join("lunar");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let spec = format!("{}:{DEMO_BYTES}", folder.join("demo.img").display());
    lunar::serve::run(vec![Volume::open_spec(&spec, &Options::PLAIN)?], vec![spec], demo.how)
}

/// The report is printed whether or not all was well; the exit status tells.
fn bench(options: &lunar_load::Options) -> Result<()> {
    match lunar_load::command(options)? {
        true => Ok(()),
        false => bail!("not all was well: see the report"),
    }
}

fn show_stats(socket: &std::path::Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&lunar::stats::read(socket)?)?;
    match writeln!(io::stdout(), "{text}") {
        // Whoever reads has seen enough.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
