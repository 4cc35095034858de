//! `lunar bench` without the rest of Lunar: `cargo run --release -p lunar-load --example load -- URL [OPTIONS]`.

use clap::Parser;
use lunar_load::{Options, command};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "load", about = "A load on one unit of any iSCSI or NVMe/TCP target")]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match command(&Line::parse().options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
