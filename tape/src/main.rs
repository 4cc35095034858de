//! `lunar-tape`: a virtual tape library.

use clap::{Parser, Subcommand};
use lunar_handler::program::size_argument;
use lunar_tape::control::{self, Request};
use lunar_tape::library::{Config, Library};
use lunar_tape::serve;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

/// A virtual tape library: drives and a changer that Lunar serves.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Creates a library in a folder
    Create {
        /// Folder of the library
        folder: PathBuf,
        /// Number of drives
        #[arg(long, default_value_t = 2)]
        drives: u16,
        /// Number of slots
        #[arg(long, default_value_t = 20)]
        slots: u16,
        /// Number of ports, which are the import/export elements
        #[arg(long, default_value_t = 2)]
        ports: u16,
        /// Number of blank cartridges in the first slots
        #[arg(long, default_value_t = 10)]
        cartridges: u16,
        /// LTO generation of drives and cartridges: 5 to 9
        #[arg(long, default_value_t = 8)]
        generation: u8,
        /// Capacity of a cartridge, as 100G; that of the generation by default
        #[arg(long, value_parser = size_argument)]
        capacity: Option<u64>,
        /// Drives compress unless the initiator says otherwise
        #[arg(long)]
        compression: bool,
        /// Beginning of the bar codes
        #[arg(long, default_value = "LUN")]
        prefix: String,
        /// Beginning of the serial numbers; a random one by default
        #[arg(long)]
        serial: Option<String>,
    },
    /// Lists the cartridges and their places
    List {
        /// Folder of the library
        folder: PathBuf,
    },
    /// Creates a blank cartridge outside of the library
    Add {
        /// Folder of the library
        folder: PathBuf,
        /// Bar code: capital letters and digits
        barcode: String,
        /// Written data cannot be overwritten
        #[arg(long)]
        worm: bool,
        /// Capacity, as 100G
        #[arg(long, value_parser = size_argument)]
        capacity: Option<u64>,
    },
    /// Puts a cartridge into a free port
    Insert {
        /// Folder of the library
        folder: PathBuf,
        /// Bar code
        barcode: String,
    },
    /// Takes a cartridge out of a port; its file remains
    Eject {
        /// Folder of the library
        folder: PathBuf,
        /// Bar code
        barcode: String,
    },
    /// Sets the write protection of a cartridge that is in no drive
    Protect {
        /// Folder of the library
        folder: PathBuf,
        /// Bar code
        barcode: String,
        /// Removes the write protection
        #[arg(long)]
        off: bool,
    },
    /// Serves the library as handlers, at sockets that Lunar makes
    Serve {
        /// Folder of the library
        folder: PathBuf,
        /// Folder of the sockets: changer.sock, drive0.sock, drive1.sock, and so on
        #[arg(long, default_value = "/run/lunar/handler")]
        sockets: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lunar-tape: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    let (folder, request) = match command {
        Command::Create {
            folder,
            drives,
            slots,
            ports,
            cartridges,
            generation,
            capacity,
            compression,
            prefix,
            serial,
        } => {
            let serial = serial.unwrap_or_else(Config::new_serial);
            let config = Config { generation, drives, slots, ports, serial, compression, capacity };
            Library::create(&folder, &config, cartridges, &prefix)?;
            return Ok(());
        }
        Command::Serve { folder, sockets } => return serve_library(&folder, &sockets),
        Command::List { folder } => (folder, Request::List),
        Command::Add { folder, barcode, worm, capacity } => (folder, Request::Add { barcode, worm, capacity }),
        Command::Insert { folder, barcode } => (folder, Request::Insert(barcode)),
        Command::Eject { folder, barcode } => (folder, Request::Eject(barcode)),
        Command::Protect { folder, barcode, off } => (folder, Request::Protect(barcode, !off)),
    };
    print!("{}", request.send(&folder)?);
    Ok(())
}

/// Serves until SIGTERM or SIGINT; then all cartridges are synchronized.
fn serve_library(folder: &Path, sockets: &Path) -> Result<(), Box<dyn Error>> {
    let library = Library::open(folder)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let listener = control::listen(folder)?;
    serve::start(&library, sockets)?;
    thread::scope(|scope| {
        let library = &library;
        thread::Builder::new().name("control".to_owned()).spawn_scoped(scope, move || {
            control::answer_all(&listener, library);
        })?;
        signals.forever().next();
        let result = library.shut_down();
        // The threads of the devices wait for locks that are never released.
        std::process::exit(match result {
            Ok(()) => 0,
            Err(why) => {
                eprintln!("lunar-tape: {why}");
                1
            }
        });
    })
}
