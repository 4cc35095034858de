//! `cargo run -p lunar-sim -- --seeds 1000`: simulates that many seeds; `--seed N` replays one with its trace.

use clap::Parser;
use lunar_sim::{Outcome, Scenario, run};
use std::process::ExitCode;
use std::time::Instant;

/// Simulates whole targets in virtual time, with faults, from seeds.
#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// This seed alone, with its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// One scenario for all seeds; else they take turns.
    #[arg(long, value_parser = scenario)]
    scenario: Option<Scenario>,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let found = Scenario::ALL.iter().copied().find(|scenario| scenario.name() == name);
    let names: Vec<&str> = Scenario::ALL.iter().map(|scenario| scenario.name()).collect();
    found.ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let scenario = args.scenario.unwrap_or_else(|| Scenario::of(seed));
        return replay(scenario, seed);
    }
    let begun = Instant::now();
    let (mut commands, mut virtual_nanoseconds) = (0, 0);
    for seed in args.from..args.from + args.seeds {
        let scenario = args.scenario.unwrap_or_else(|| Scenario::of(seed));
        let outcome = run(scenario, seed, false);
        if !outcome.wrong.is_empty() {
            println!("seed {seed} failed: {:#?}\nIts trace, replayed:", outcome.wrong);
            return replay(scenario, seed);
        }
        commands += outcome.commands;
        virtual_nanoseconds += outcome.virtual_nanoseconds;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} seeds passed in {seconds:.1} s ({:.0} per second): {commands} commands in {:.0} virtual seconds",
        args.seeds,
        args.seeds as f64 / seconds,
        virtual_nanoseconds as f64 / 1e9
    );
    ExitCode::SUCCESS
}

fn replay(scenario: Scenario, seed: u64) -> ExitCode {
    let outcome: Outcome = run(scenario, seed, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("seed {seed} ({}): {} commands, trace {:016x}", scenario.name(), outcome.commands, outcome.hash);
    if outcome.wrong.is_empty() {
        println!("all is well");
        return ExitCode::SUCCESS;
    }
    outcome.wrong.iter().for_each(|what| println!("WRONG: {what}"));
    println!("replay: cargo run -p lunar-sim -- --seed {seed} --scenario {}", scenario.name());
    ExitCode::FAILURE
}
