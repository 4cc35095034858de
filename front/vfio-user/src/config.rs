//! Limits that hold whatever a client or a guest wants.

use lunar_nvme::controller::QUEUES_MAX;

/// Bytes of a message at most, its header included: the largest access to a region, and then some.
pub const MESSAGE_MAX: usize = 16 << 10;
/// Bytes of one access to a region: what is announced (max_data_xfer_size). No region is larger.
pub const TRANSFER_MAX: u32 = 8 << 10;
/// Descriptors with one message: what is announced (max_msg_fds), so that vectors come some at a time.
pub const DESCRIPTORS_MAX: usize = 16;
/// Queues of each kind: the I/O queues, and the admin queue.
pub const QUEUES: usize = QUEUES_MAX as usize + 1;
/// Interrupt vectors.
pub use lunar_nvme::controller::VECTORS;
/// Pages of a list of pages: those of the largest transfer, and room for lists that begin anywhere.
pub const LISTS_MAX: usize = 4;
/// Descriptors of a scatter-gather list at most: two for each page of the largest transfer.
pub const SEGMENTS_MAX: usize = 512;
/// Commands that are taken from queues before others have their turn.
pub const BURST: usize = 64;
/// Bytes of what a device is, on its way to another process: completions that find no room are the most of it.
pub const RECORD_MAX: usize = 4 << 20;
