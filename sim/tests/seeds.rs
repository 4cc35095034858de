//! Seeds of every scenario; and the proof that a seed replays exactly.

use lunar_sim::{Scenario, run};

/// Seeds of whole targets, where `LUNAR_SEEDS` does not say how many: few, for who has just changed a line.
const SEEDS: u64 = 150;
/// Seeds of each of the other scenarios, in which less can happen, for a hundred of whole targets.
const OTHERS: u64 = 40;

/// Threads of each test: simulations share nothing.
const THREADS: u64 = 2;

fn passes(scenario: Scenario) {
    let seeds = std::env::var("LUNAR_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("LUNAR_SEEDS: a number"));
    let seeds = if scenario == Scenario::Targets { seeds } else { (seeds * OTHERS).div_ceil(100) };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (thread..seeds).step_by(THREADS as usize).for_each(|seed| pass(scenario, seed)));
        }
    });
}

fn pass(scenario: Scenario, seed: u64) {
    let outcome = run(scenario, seed, false);
    assert!(
        outcome.wrong.is_empty(),
        "seed {seed}: {:#?}\nreplay: cargo run -p lunar-sim -- --seed {seed} --scenario {}",
        outcome.wrong,
        scenario.name()
    );
}

#[test]
fn stores_keep_their_promises() {
    passes(Scenario::Stores);
}

#[test]
fn targets_keep_their_promises() {
    passes(Scenario::Targets);
}

#[test]
fn fences_keep_their_promises() {
    passes(Scenario::Fences);
}

#[test]
fn a_seed_replays_exactly_and_another_does_not() {
    for &scenario in Scenario::ALL {
        for seed in 0..20 {
            let (first, second) = (run(scenario, seed, false), run(scenario, seed, true));
            assert_eq!(first.hash, second.hash, "{scenario:?} {seed}");
            assert_eq!(first.commands, second.commands);
            assert_ne!(first.hash, run(scenario, seed + 1, false).hash);
            assert!(!second.trace.is_empty() && first.trace.is_empty());
        }
    }
}
