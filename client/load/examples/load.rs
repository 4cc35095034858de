//! `lunar bench` as a program of its own: `cargo run --release -p lunar-load --example load -- URL [OPTIONS]`.

use clap::Parser;
use lunar_load::{Options, command};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "load", about = "Loads one unit of an iSCSI, NVMe/TCP or vfio-user target")]
struct CommandLine {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match command(&CommandLine::parse().options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
