//! `lunar-tcmu`: a handler that serves the data of a plug-in of tcmu-runner.
//!
//! The plug-in is loaded unchanged, into this process, which has nothing else. `runner/runner.c` has the functions that
//! it expects in tcmu-runner; [`plugin`] calls it.

#![allow(missing_docs, reason = "a program has no public interface")]

mod plugin;

use clap::Parser;
use lunar_handler::serve::{Device, ServeError, Unit, serve};
use lunar_handler::wire::Status;
use plugin::{Opened, Plugin};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two attempts to connect: Lunar was started again, or starts later.
const RETRY: Duration = Duration::from_millis(500);
/// Time before a connection that Lunar refused is tried again: the operator has to change something.
const RETRY_REFUSED: Duration = Duration::from_secs(10);

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

/// A number of bytes: digits, and K, M, G or T.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: &[(char, u32)] = &[('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = UNITS.iter().find(|(letter, _)| text.ends_with(*letter));
    let digits = unit.map_or(text, |_| &text[..text.len() - 1]);
    let number =
        digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << unit.map_or(0, |(_, bits)| *bits)));
    number.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text:?} is no size, as 20G"))
}

/// The data of the plug-in, until a signal ends the process.
#[derive(Clone)]
struct Shared {
    name: String,
    bytes: u64,
    opened: Arc<Mutex<Opened>>,
}

impl Shared {
    fn new(opened: Opened) -> Self {
        let (name, bytes) = (opened.name().to_owned(), opened.size());
        Self { name, bytes, opened: Arc::new(Mutex::new(opened)) }
    }

    fn lock(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the data after the command in progress, and ends the process. Lunar gives a command without an answer to
    /// the next one. Plug-ins keep an image consistent between two commands, and not always within one.
    fn end_with_signals(&self) -> std::io::Result<()> {
        let (shared, mut signals) = (self.clone(), Signals::new([SIGTERM, SIGINT])?);
        let end = move || {
            signals.forever().next();
            let mut opened = shared.lock();
            opened.close();
            // The lock stays: no command begins any more.
            std::process::exit(0);
        };
        thread::Builder::new().name("signals".into()).spawn(end).map(drop)
    }
}

impl Device for Shared {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.bytes
    }

    fn features(&self) -> u64 {
        self.lock().features()
    }

    fn begin(&mut self, unit: &Unit) {
        self.lock().begin(unit);
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        self.lock().read(offset, into)
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Result<(), Status> {
        self.lock().write(offset, data, durable)
    }

    fn flush(&mut self) -> Result<(), Status> {
        self.lock().flush()
    }

    fn unmap(&mut self, offset: u64, length: u64) -> Result<(), Status> {
        self.lock().unmap(offset, length)
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(never) => match never {},
        Err(why) => {
            eprintln!("lunar-tcmu: {why}");
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
    let opened = plugin.open(config, *size, *block_size).map_err(|why| format!("{name} ({words}): {why}"))?;
    let mut shared = Shared::new(opened);
    shared.end_with_signals()?;
    eprintln!("lunar-tcmu: {name}: {config}, {size} bytes");
    let mut is_told = false;
    loop {
        match serve(socket, &mut shared) {
            Ok(()) => is_told = false,
            Err(ServeError::Io(why)) => {
                if !is_told {
                    eprintln!("lunar-tcmu: waits for Lunar at {}: {why}", socket.display());
                    is_told = true;
                }
            }
            Err(why) => {
                eprintln!("lunar-tcmu: {}: {why}", socket.display());
                thread::sleep(RETRY_REFUSED);
            }
        }
        thread::sleep(RETRY);
    }
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
