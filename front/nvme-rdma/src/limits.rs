//! Limits of what hosts may cause.

use std::time::Duration;

/// Bytes of in-capsule data, as IOCCSZ says: one page, as the controller of Linux has it. More would be assembled from
/// packets, which costs more than a READ.
pub const IN_CAPSULE_MAX: u32 = 4096;
/// Bytes of the largest command capsule.
pub const CAPSULE_MAX: usize = lunar_nvme::command::SQE_LEN + IN_CAPSULE_MAX as usize;
/// Commands of an I/O queue for which there has to be room when queues are granted: as many as Linux has unless it is
/// told otherwise.
pub const USUAL_COMMANDS: usize = 128;
/// Responses that a host has not acknowledged, besides one for each command that it may have outstanding: an
/// acknowledgement that was lost holds nothing up.
pub const UNACKNOWLEDGED: usize = 128;
/// Commands of I/O queues that one core executes at once. Each takes some 3 KiB for its task.
pub const SLOTS: usize = 1024;
/// Commands of admin queues that one core executes at once, apart from the others: hosts keep their controllers while
/// I/O waits.
pub const ADMIN_SLOTS: usize = 128;
/// Commands of one core that wait for a slot, shared by hosts and queues. Each takes some 500 bytes. One more is
/// refused with a status that its host tries again after.
pub const WAITING_MAX: usize = 16 << 10;
/// Bytes queued on a connection before its reads wait for room.
pub const SEND_QUEUE_MAX: usize = 1 << 20;
/// How long a connection may take to connect its queue, and its host to authenticate.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Refused connections that are reported in one minute, so that forged requests do not fill the log.
pub const REFUSALS_MAX: u32 = 16;
