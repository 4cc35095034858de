//! Limits of what initiators may cause.

/// The requests that an initiator may have outstanding on a channel: twice as many as Linux uses.
pub const REQUEST_LIMIT: u32 = 128;
/// Information units of an initiator that need no credit: answers to the target, and a logout.
pub const UNCREDITED: usize = 4;
/// Responses of a channel that the initiator has not acknowledged, besides one for each request that it may have
/// outstanding: an acknowledgement that was lost holds nothing up. No further request is taken then.
pub const UNACKNOWLEDGED: usize = REQUEST_LIMIT as usize;
/// The most bytes of an information unit of an initiator. Linux asks for as many, whether or not it uses them.
pub const UNIT_MAX: usize = 8260;
/// The fewest bytes that an initiator may ask for.
pub const UNIT_MIN: u32 = 64;
/// The most bytes of sense data.
pub const SENSE_MAX: usize = 252;
/// Parts of the memory of a command: Linux has as many segments in a list at most.
pub const DESCRIPTORS_MAX: usize = 2048;
/// Descriptors of all commands of one core, without those that a command itself has room for. Each takes some 150 bytes
/// with what is written to its memory, until the initiator has the response. A command that finds none waits.
pub const DESCRIPTORS: usize = 1 << 16;
/// Channels of a session: Linux opens one for each processor at most, and few targets have as many queues.
pub const CHANNELS_MAX: usize = 64;
/// Initiators that are logged in at a port.
pub const SESSIONS_MAX: usize = 128;
/// Commands that one core executes at once. Each takes some 3 KiB for its task.
pub const SLOTS: usize = 1024;
/// Task management functions in progress at a port: each waits for commands that end.
pub const FUNCTIONS_MAX: usize = 256;
/// Bytes queued on a channel before its reads wait for room.
pub const SEND_QUEUE_MAX: usize = 1 << 20;
/// Refused logins that are reported in one minute, so that forged names do not fill the log.
pub const REFUSALS_MAX: u32 = 16;
