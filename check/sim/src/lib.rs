//! Simulates whole targets in virtual time, with faults, from a seed. Each run checks that acknowledged data is not
//! lost, that a read returns data that was written, that every command ends, and that the target frees all resources.
//!
//! * [`model`]: the values that the sectors of a disk may have, as its clients know them
//! * [`stamp`]: sector contents that identify the write
//! * [`stores`]: the scenario of steps on stores, without a transport
//! * [`ethernet`]: the scenarios of ATA over Ethernet, of Fibre Channel over Ethernet, of SCSI over Scheduled Transfer,
//!   and of SRP, NVMe and iSCSI over RDMA, on a network that loses, duplicates and reorders packets
//! * [`stations`]: their initiators, of which [`srp_disk`], [`nvme_rdma_disk`] and [`iser_disk`] are on an
//!   [`rdma_adapter`]; [`operation`]: their operations; [`carrier`]: their links and sockets
//! * [`fences`]: the scenario of clusters whose nodes fence each other by reservations
//! * [`targets`]: the scenario of whole targets: [`initiator`]s, NVMe/TCP [`host`]s, [`guest`]s of vfio-user and
//!   [`block_client`]s use the same volumes
//! * [`target`]: a target of the engine in the simulator, from a [`setup`]
//! * [`configuration`]: the text of its configuration; [`engine_host`]: the host of the engine, with virtual time
//! * [`backends`]: the store on a simulated disk; [`block_front`], [`block_port`]: the front of block clients
//! * [`shared`]: the state that all clients share; [`job`], [`nvme_command`]: their commands
//! * [`vfio_control`], [`vfio_controller`]: the driver of a guest
//! * [`wire`]: queues of NVMe hosts over the simulated network
//! * [`watch`]: collects violations, and panics of tasks
//!
//! A seed determines everything: the set-up, the commands of the clients, the faults, and the crashes of the target.
//! `cargo run -p lunar-sim -- --seed N` replays one with its trace.

pub mod backends;
pub mod block_client;
pub mod block_front;
pub mod block_port;
pub mod carrier;
pub mod configuration;
pub mod engine_host;
pub mod ethernet;
pub mod exchange;
pub mod fences;
pub mod guest;
pub mod host;
pub mod initiator;
pub mod iser_disk;
pub mod job;
pub mod model;
pub mod nvme_command;
pub mod nvme_rdma_disk;
pub mod operation;
pub mod order;
pub mod rdma_adapter;
pub mod setup;
pub mod shared;
pub mod srp_disk;
pub mod stamp;
pub mod stations;
pub mod stores;
pub mod target;
pub mod targets;
#[cfg(test)]
mod ublk_tests;
pub mod vfio_control;
pub mod vfio_controller;
pub mod watch;
pub mod wire;

pub use watch::Outcome;

use watch::Watch;

/// A scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Steps on stores.
    Stores,
    /// A whole target with all kinds of clients.
    Targets,
    /// Nodes of a cluster that fence each other.
    Fences,
    /// ATA over Ethernet.
    Ethernet,
    /// Fibre Channel over Ethernet.
    Channel,
    /// SCSI over Scheduled Transfer.
    Transfer,
    /// SRP over RDMA.
    Srp,
    /// NVMe over RDMA.
    NvmeRdma,
    /// iSCSI over RDMA.
    Iser,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: &'static [Self] = &[
        Self::Stores,
        Self::Targets,
        Self::Fences,
        Self::Ethernet,
        Self::Channel,
        Self::Transfer,
        Self::Srp,
        Self::NvmeRdma,
        Self::Iser,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stores => "stores",
            Self::Targets => "targets",
            Self::Fences => "fences",
            Self::Ethernet => "ethernet",
            Self::Channel => "channel",
            Self::Transfer => "transfer",
            Self::Srp => "srp",
            Self::NvmeRdma => "nvme-rdma",
            Self::Iser => "iser",
        }
    }

    /// The scenarios that take turns: a seed without a named scenario keeps its one when a scenario is added.
    const TURNS: u64 = 3;

    /// The scenario of a seed if none is named: the first ones take turns.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::TURNS) as usize]
    }
}

/// Runs one seed.
#[must_use]
pub fn run(scenario: Scenario, seed: u64, keep_trace: bool) -> Outcome {
    let watch = Watch::new(seed, keep_trace);
    watch.guard(|| match scenario {
        Scenario::Stores => stores::run(&watch),
        Scenario::Targets => targets::run(&watch),
        Scenario::Fences => fences::run(&watch),
        Scenario::Ethernet => ethernet::run(&watch),
        Scenario::Channel => ethernet::run_channel(&watch),
        Scenario::Transfer => ethernet::run_transfer(&watch),
        Scenario::Srp => ethernet::run_srp(&watch),
        Scenario::NvmeRdma => ethernet::run_nvme_rdma(&watch),
        Scenario::Iser => ethernet::run_iser(&watch),
    });
    watch.outcome()
}
