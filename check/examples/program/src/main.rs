//! `lunar-examples serve`: the command of `lunar` with the example fronts and back ends.

use anyhow::{Result, anyhow};
use lunar::args::{self, Command, How, Serve};
use lunar_core::protection::Kind;
use lunar_engine::volume::command_line::Options;
use lunar_examples::PROGRAM;
use lunar_reactor::log;
use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = args::command(&PROGRAM).name("lunar-examples").get_matches();
    let command = args::read(&PROGRAM, &matches).unwrap_or_else(|why| why.exit());
    let result = match command {
        Command::Serve(serve, how) => run(serve, how),
        _ => Err(anyhow!("this program has the command `serve` only")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log!("lunar-examples: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(serve: Serve, how: How) -> Result<()> {
    let options = Options {
        read_only: serve.read_only,
        shared: serve.shared,
        block_size: serve.block_size,
        write_through: serve.write_through,
        direct: serve.direct,
        protection: serve.protection.and_then(Kind::of),
    };
    lunar::serve::run(&PROGRAM, serve.volumes, &options, how)
}
