//! Assembles a storage target: fronts, stores, unit state and cores, in one way, from a configuration.
//!
//! The engine knows no transport and no store by name. Their crates implement the contracts, and the registry of the
//! program lists them.
//!
//! * [`registry`]: the fronts and back ends of a program
//! * [`front`]: the contract of a transport; [`command_line`]: its options of `lunar serve`;
//!   [`published_config`]: the configuration as fronts are given it
//! * [`vm_sockets`]: the sockets of fronts for virtual machines
//! * [`backend`]: the contract of a kind of store; [`volume`]: volumes, which are opened through it
//! * [`budget`]: the limits of a configuration, summed and compared with the machine
//! * [`service_unit`]: advice in refusals about the systemd unit of the service
//! * [`core_set`]: the cores, on threads or on simulated drivers
//! * [`engine`]: the configuration in force; [`transaction`]: its changes; `publication`, [`retirement`]: their
//!   effects, and the end of sessions and units; `status`: its state for the API;
//!   `health`: faults of the stores of volumes; `space`: file systems that have promised more than they have;
//!   [`returning_stores`]: the thread that looks for unavailable stores, which `wake` wakes
//! * [`access`], [`lun_maps`], [`namespaces`], [`target_ports`]: a configuration in the form that the cores use
//! * [`control_thread`]: the owner of the configuration and the engine; [`namespace_manager`],
//!   [`namespace_requests`]: changes that NVMe hosts ask for
//! * [`local_nexus`]: SCSI commands of the operator
//! * [`nvme_sessions`]: NVMe controllers as sessions of the API
//! * [`origin`]: the origin of a configuration, for the words of messages
//! * [`host`]: the services of the machine; [`participant`]: other configured parts of the program; [`name_service`]:
//!   iSNS
//! * [`link_ports`]: the skeleton of fronts whose ports have links of their own
//! * [`authentication`]: the thread with the computations of DH-HMAC-CHAP
//! * [`notice`]: notices for operators; [`statistics`]: the counters of the cores; [`metrics`]: all counters and states
//!   for monitoring; [`error`]: errors;
//!   `slow`: the slow log; [`refusals`]: refused logins

pub mod access;
pub mod answer;
pub mod answering;
pub mod authentication;
pub mod backend;
pub mod budget;
pub mod command_line;
pub mod control_thread;
pub mod core_set;
pub mod engine;
pub mod error;
pub mod front;
mod health;
pub mod host;
pub mod link_ports;
pub mod local_nexus;
pub mod lun_maps;
mod measured;
pub mod metrics;
pub mod name_service;
pub mod namespace_manager;
pub mod namespace_requests;
pub mod namespaces;
mod new_files;
pub mod notice;
pub mod nvme_sessions;
pub mod origin;
pub mod participant;
mod placed;
mod publication;
pub mod published_config;
pub mod refusals;
pub mod registry;
pub mod retirement;
pub mod returning_stores;
pub mod service_unit;
mod slow;
mod space;
pub mod statistics;
mod status;
pub mod target_ports;
pub mod transaction;
pub mod unavailable;
mod unit_numbers;
pub mod vm_sockets;
pub mod volume;
mod wake;
