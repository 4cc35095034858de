//! `lunar bench` without the rest of Lunar: `cargo run --release -p lunar-initiator --example load -- URL [OPTIONS]`.

use clap::Parser;
use lunar_initiator::bench::{Options, command};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "load", about = "A load on one logical unit of any iSCSI target")]
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
