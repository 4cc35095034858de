//! Limits that no client and no guest can exceed.

use lunar_nvme::controller::QUEUES_MAX;

/// Bytes of a message, with its header: the largest access to a region, with room for its fields.
pub const MESSAGE_MAX: usize = 16 << 10;
/// Bytes of one access to a region, announced as `max_data_xfer_size`. No region needs more at once.
pub const TRANSFER_MAX: u32 = 8 << 10;
/// Bytes of a page of guest memory, announced as `pgsizes`: memory is mapped in whole pages.
pub const PAGE_SIZE: u64 = 4096;
/// Descriptors of one message, announced as `max_msg_fds`: a client sends the eventfds of its vectors in portions.
pub const DESCRIPTORS_MAX: usize = 16;
/// Queues of each kind: the I/O queues and the admin queue.
pub const QUEUES: usize = QUEUES_MAX as usize + 1;
/// Interrupt vectors.
pub use lunar_nvme::controller::VECTORS;
/// Pages of a PRP list: enough for the largest transfer wherever its lists begin.
pub const LISTS_MAX: usize = 4;
/// Descriptors of a scatter-gather list: two for each page of the largest transfer.
pub const SEGMENTS_MAX: usize = 512;
/// Commands that are taken from the queues of a device before other devices have their turn.
pub const BURST: usize = 64;
/// Bytes of a migration record. Deferred completions are the most of it.
pub const RECORD_MAX: usize = 4 << 20;
