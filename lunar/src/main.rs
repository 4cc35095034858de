//! `lunar`: shares volumes with hosts and virtual machines, from user space.

use anyhow::{Context, Result, bail};
use clap::Parser;
use lunar::args::{Cli, Command, Demo, Serve};
use lunar::volume::{Options, Volume};
use lunar_core::protection::Kind;
use std::path::PathBuf;
use std::process::ExitCode;

/// Size of the demo disk: large enough for a file system to be made on it, and it takes no space before.
const DEMO_BYTES: &str = "1G";

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(serve) => share(serve),
        Command::Demo(demo) => share_demo(demo),
        Command::Bench(options) => bench(&options),
        Command::Stats { socket } => show_stats(&socket),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lunar: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn share(serve: Serve) -> Result<()> {
    let options = Options {
        read_only: serve.read_only,
        block_size: serve.block_size,
        write_through: serve.write_through,
        direct: serve.direct,
        protection: serve.protection.and_then(Kind::of),
    };
    let volumes = Volume::open_all(&serve.volumes, &options)?;
    serve.volumes.iter().filter_map(|name| lunar::volume::hint(name)).for_each(|hint| eprintln!("{hint}"));
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
    let options = Options { read_only: false, block_size: 512, write_through: false, direct: false, protection: None };
    lunar::serve::run(vec![Volume::open_spec(&spec, &options)?], vec![spec], demo.how)
}

/// The report is printed whether or not all was well; the exit status tells.
fn bench(options: &lunar_load::Options) -> Result<()> {
    match lunar_load::command(options)? {
        true => Ok(()),
        false => bail!("not all was well: see the report"),
    }
}

fn show_stats(socket: &std::path::Path) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(&lunar::stats::read(socket)?)?);
    Ok(())
}
