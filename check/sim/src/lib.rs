//! Whole targets in virtual time, with faults, from a seed: what is acknowledged is not lost, what is read was
//! written, every command ends, and nothing is left over.
//!
//! * [`model`]: what a disk may hold, as its users know it
//! * [`stamp`]: sectors that say which write filled them
//! * [`stores`]: the scenario of steps on stores, without a transport
//! * [`fences`]: the scenario of clusters whose nodes throw each other out
//! * [`targets`]: the scenario of whole targets: [`machine`] serves, [`initiator`]s, NVMe [`host`]s and virtual
//!   machines with [`block`] devices use it
//! * [`wire`]: queues of NVMe hosts over the simulated network
//! * [`watch`]: what went wrong, and panics that a task kept to itself
//!
//! A seed determines everything: the set-up, what the initiators do, when what fails, and when the machine
//! crashes. `cargo run -p lunar-sim -- --seed N` replays one with its trace.

pub mod block;
pub mod exchange;
pub mod fences;
pub mod host;
pub mod initiator;
pub mod job;
pub mod machine;
pub mod model;
pub mod order;
pub mod stamp;
pub mod stores;
pub mod targets;
pub mod watch;
pub mod wire;

use lunar_core::unit::Identity;
use watch::Watch;

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Steps on stores.
    Stores,
    /// Initiators, NVMe hosts, and a whole target.
    Targets,
    /// Nodes of a cluster that fence each other.
    Fences,
}

impl Scenario {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Stores, Self::Targets, Self::Fences];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stores => "stores",
            Self::Targets => "targets",
            Self::Fences => "fences",
        }
    }

    /// The one that a seed belongs to when none is named: they take turns.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }
}

/// What became of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// The number of all that happened.
    pub hash: u64,
    /// What went wrong; empty when all is well.
    pub wrong: Vec<String>,
    /// The lines of the trace, if they were to be kept.
    pub trace: Vec<String>,
    /// Virtual nanoseconds.
    pub virtual_nanoseconds: u64,
    /// Commands that were answered.
    pub commands: u64,
    /// Nodes that were thrown out and of which it was seen that nothing came after: by iSCSI, by NVMe.
    pub fences: [u64; 2],
}

/// Runs one seed.
#[must_use]
pub fn run(scenario: Scenario, seed: u64, keep_trace: bool) -> Outcome {
    let watch = Watch::new(seed, keep_trace);
    watch.guard(|| match scenario {
        Scenario::Stores => stores::run(&watch),
        Scenario::Targets => targets::run(&watch),
        Scenario::Fences => fences::run(&watch),
    });
    watch.outcome()
}

/// An identity like any other.
fn identity(number: u8) -> Identity {
    Identity {
        vendor: "LUNAR".to_owned(),
        product: "SIMULATED".to_owned(),
        revision: "1".to_owned(),
        serial: number.to_string(),
        uuid: [number; 16],
        naa: [0x30, 0, 0, 0, 0, 0, 0, number],
    }
}
