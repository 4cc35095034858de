//! Limits of what initiators may cause.

use std::time::Duration;

/// Initiators that are logged in at a port: half of the connections of an engine, so that others can log in meanwhile.
/// One more takes the place of an initiator of which few commands have succeeded, so that forged names do not exclude
/// other initiators.
pub const INITIATORS_MAX: usize = 128;
/// Connections of a port that have not logged in. One more ends the one that has waited for the longest time. Together
/// with those that are logged in they are fewer than the connections of an engine.
pub const LOGINS_MAX: usize = 96;
/// Connections of one peer address, with those that are not logged in: initiators of one machine, and no more, so that
/// one machine cannot take all connections of the engine.
pub const PEER_CONNECTIONS_MAX: usize = 32;
/// Commands in progress of an initiator. Each has a Put and a Transfer, and some Slots are for others: both fit into
/// the Slots and identifiers of a connection.
pub const DEPTH_MAX: u16 = 48;
/// The Slots of a connection: as many as Scheduled Transfer allows.
pub const SLOTS: u16 = lunar_st::limits::SLOTS_MAX;
/// Commands that one core executes at once. Each takes some 3 KiB for its task.
pub const EXECUTED_MAX: usize = 1024;
/// Task management functions in progress at a port: each waits for commands that end.
pub const FUNCTIONS_MAX: usize = 256;
/// The time in which a connection has logged in and has its regions, or is closed.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which an initiator sends the data of a command.
pub const DATA_TIMEOUT: Duration = Duration::from_secs(60);
/// The time in which an initiator takes the data and the response of a command. Until then they keep a share of the
/// memory of the core.
pub const TAKEN_TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two looks at data that was not taken.
pub const TAKEN_INTERVAL: Duration = Duration::from_secs(15);
/// The pause before the engine is asked again for a sequence for which it had no room.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Refused initiators that are reported in one minute, so that forged names do not fill the log.
pub const REFUSALS_MAX: u32 = 16;
