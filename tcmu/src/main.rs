//! `lunar-tcmu`: a handler that serves the data of a plug-in of tcmu-runner.
//!
//! The plug-in is loaded unchanged, into this process, which has nothing else. `runner/runner.c` has the functions that
//! it expects in tcmu-runner; [`plugin`] calls it.

#![allow(missing_docs, reason = "a program has no public interface")]

mod plugin;

use clap::Parser;
use lunar_handler::program::{keep_serving, size_argument};
use lunar_handler::serve::serve;
use plugin::{Closing, Plugin};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

/// The name of the program, in front of its messages.
const PROGRAM: &str = "lunar-tcmu";

/// Serves the data of a plug-in of tcmu-runner as a volume of Lunar.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The plug-in: its name (qcow), or the path of its file
    plugin: OsString,
    /// The data that the plug-in opens, in its own words: for qcow the path of an image
    config: String,
    /// The socket that Lunar has made for the volume
    socket: PathBuf,
    /// Bytes of the data, as 20G; some plug-ins open nothing of another size
    #[arg(long, value_parser = size)]
    size: u64,
    /// Bytes of a block
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(512..=4096))]
    block_size: u32,
}

/// A number of bytes that is not zero.
fn size(text: &str) -> Result<u64, String> {
    match size_argument(text).map_err(|why| why.to_string())? {
        0 => Err("the data has at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Closes the data after the command in progress when a signal comes, and ends the process. Lunar gives a command
/// without an answer to the next one. A plug-in may keep an image consistent only between two commands.
fn end_with_signals(closing: Closing) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let end = move || {
        signals.forever().next();
        closing.close_and_exit();
    };
    thread::Builder::new().name("signals".into()).spawn(end).map(drop)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(never) => match never {},
        Err(why) => {
            eprintln!("{PROGRAM}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<std::convert::Infallible, Box<dyn Error>> {
    let Arguments { plugin, config, socket, size, block_size } = arguments;
    if !size.is_multiple_of(u64::from(*block_size)) || !block_size.is_power_of_two() {
        return Err(format!("{size} bytes are no multiple of a block of {block_size} bytes").into());
    }
    let plugin = Plugin::load(plugin)?;
    let (name, words) = plugin.about();
    let mut opened = plugin.open(config, *size, *block_size).map_err(|why| format!("{name} ({words}): {why}"))?;
    end_with_signals(opened.closing())?;
    eprintln!("{PROGRAM}: {name}: {config}, {size} bytes");
    keep_serving(PROGRAM, socket, |socket| serve(socket, &mut opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("512"), size("20G"), size("1T")), (Ok(512), Ok(20 << 30), Ok(1 << 40)));
        for wrong in ["", "0", "G", "1X", "-1", "99999999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
