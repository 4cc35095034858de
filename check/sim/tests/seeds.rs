//! Seeds of every scenario; and the proof that a seed replays exactly.

use lunar_sim::{Scenario, run};

/// Seeds of whole targets, where `LUNAR_SEEDS` does not say how many: few, for who has just changed a line.
const SEEDS: u64 = 150;
/// Seeds of each of the other scenarios, in which less can happen, for a hundred of whole targets.
const OTHERS: u64 = 40;

/// Threads of each test: simulations share nothing.
const THREADS: u64 = 2;

/// Returns how many fences were watched, by protocol.
fn passes(scenario: Scenario) -> [u64; 2] {
    let seeds = std::env::var("LUNAR_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("LUNAR_SEEDS: a number"));
    let seeds = if scenario == Scenario::Targets { seeds } else { (seeds * OTHERS).div_ceil(100) };
    let add = |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a + c, b + d];
    std::thread::scope(|scope| {
        let own = |thread| (thread..seeds).step_by(THREADS as usize);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || own(thread).map(|seed| pass(scenario, seed)).fold([0; 2], add)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("every seed passes")).fold([0; 2], add)
    })
}

fn pass(scenario: Scenario, seed: u64) -> [u64; 2] {
    let outcome = run(scenario, seed, false);
    assert!(
        outcome.wrong.is_empty(),
        "seed {seed}: {:#?}\nreplay: cargo run -p lunar-sim -- --seed {seed} --scenario {}",
        outcome.wrong,
        scenario.name()
    );
    outcome.fences
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
    let fences = passes(Scenario::Fences);
    assert!(fences.iter().all(|count| *count > 0), "none of a protocol was thrown out and watched: {fences:?}");
}

#[test]
fn stations_of_an_ethernet_read_what_was_acknowledged() {
    passes(Scenario::Ethernet);
}

#[test]
fn initiators_of_a_fibre_channel_read_what_was_acknowledged() {
    passes(Scenario::Channel);
}

#[test]
fn no_write_over_scheduled_transfer_is_lost() {
    passes(Scenario::Transfer);
}

#[test]
fn every_byte_and_every_message_over_rdma_arrives_once() {
    passes(Scenario::Srp);
}

#[test]
fn hosts_over_rdma_keep_their_data() {
    passes(Scenario::NvmeRdma);
}

#[test]
fn sessions_over_rdma_keep_their_data() {
    passes(Scenario::Iser);
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
