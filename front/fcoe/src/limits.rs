//! Limits of what other ports may cause.

use std::time::Duration;

/// Neighbours that a port knows: a group of ports without a fabric has some hundred at most. Each takes less than
/// 1 KiB, and its claim costs nothing, so that there may be any number of forged ones.
pub const NEIGHBOURS_MAX: usize = 512;
/// Neighbours that are new in one second. Each causes a login.
pub const NEW_NEIGHBOURS_MAX: u32 = 64;
/// Neighbours that are new in one second and belong to no group: they are kept to be reported only, and any number of
/// them must not keep others out.
pub const NEW_STRANGERS_MAX: u32 = 16;
/// Switches that a port knows: a station sees some few. Advertisements can be forged.
pub const SWITCHES_MAX: usize = 16;
/// Solicitations to switches in one second: each answer is as long as the largest frame.
pub const SOLICITATIONS_MAX: u32 = 16;
/// Answers to probes and claims in one second. Answers to claims are as long as the largest frame, and the claims are
/// shorter: others must not be able to fill the link with them.
pub const ANNOUNCED_MAX: u32 = 128;
/// Of these, answers to one station.
pub const STATION_ANSWERS_MAX: u32 = 16;
/// Answers in one second to link services of ports that are not logged in, and requests to log out.
pub const STRANGERS_MAX: u32 = 256;
/// Of these, to one station.
pub const STRANGER_MAX: u32 = 16;
/// Answers in one second to link services of a port that is logged in: an initiator sends a few for each command that
/// takes long.
pub const SERVICES_MAX: u32 = 4096;
/// Initiators that are logged in at a port. Each may have [`RESULTS_MAX`] results, some 256 KiB.
pub const INITIATORS_MAX: usize = 128;
/// Commands in progress of an initiator: four times as many as Linux has outstanding at a port.
pub const INITIATOR_EXCHANGES_MAX: usize = 2048;
/// Commands in progress of a port: further ones are answered with TASK SET FULL.
pub const EXCHANGES_MAX: usize = 8192;
/// Results of commands that an initiator may ask for again: as many as the exchange identifiers of Linux.
pub const RESULTS_MAX: usize = 4096;
/// How long a result may be asked for. The initiator of Linux asks after three seconds, and three times.
pub const RESULT_TIME: Duration = Duration::from_secs(30);
/// Parts of a burst that arrive apart from each other. A link that loses frames leaves gaps; a peer that sends every
/// other frame gets no further.
pub const GAPS_MAX: usize = 64;
/// Bytes of one burst: as much as a step moves at once.
pub const BURST_MAX: usize = lunar_core::step::PIECE_BYTES;
/// Commands that one core executes at once. Each takes some 3 KiB for its task.
pub const SLOTS: usize = 1024;
/// Task management functions and aborts in progress at a port: each waits for commands that end.
pub const FUNCTIONS_MAX: usize = 256;
/// Bytes queued to an initiator before its reads wait for room.
pub const SEND_QUEUE_MAX: usize = 1 << 20;
/// Bytes queued at a link before frames of exchanges wait for their turn: enough to keep the link busy.
pub const LINK_QUEUE: usize = 512 << 10;
/// The time in which an initiator sends the data that it was asked for.
pub const DATA_TIMEOUT: Duration = Duration::from_secs(60);
/// Refused initiators that are reported in one minute, so that forged names do not fill the log.
pub const REFUSALS_MAX: u32 = 16;
