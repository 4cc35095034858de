//! Limits that no front-end and no guest can exceed.

/// Bytes of a configuration space, as far as messages reach: the limit of QEMU and of the specification.
pub const CONFIG_MAX: usize = 256;
/// Bytes of a message without its header: the largest is a whole configuration space with its head, and a memory table
/// with eight regions is shorter.
pub const PAYLOAD_MAX: usize = 512;
/// Regions of a memory table: as many descriptors as a message carries (VHOST_MEMORY_BASELINE_NREGIONS).
pub const TABLE_MAX: usize = 8;
/// Regions that are added one by one: as many as QEMU has at most, with all hot-plugged memory.
pub const SLOTS_MAX: u64 = 509;
/// Rings of a device: the messages have eight bits for their number.
pub const RINGS_MAX: usize = 256;
/// Bytes of the memory of a guest: more than the largest virtual machines have. A dirty log covers as much. The quota
/// of the front-end limits how much of it is mapped.
pub const MEMORY_MAX: u64 = 8 << 40;
/// Entries of a ring (virtio 1.3, 2.7 and 2.8).
pub const RING_SIZE_MAX: u16 = 32768;
/// Descriptors of one chain: as many pieces of memory as a store moves with one system call, with the header and the
/// status of the request.
pub const CHAIN_MAX: usize = 1026;
/// Requests that are taken from the rings of a device before other devices have their turn.
pub const BURST: usize = 64;
/// Bytes of these requests: many of them are executed as soon as they are taken, and this number takes a core some
/// hundred microseconds, as a part of a long command does.
pub const BURST_BYTES: u64 = 1 << 20;
/// Descriptors of these requests, for the same reason: each is read from guest memory.
pub const BURST_DESCRIPTORS: usize = CHAIN_MAX;
/// Bytes of the memory in which requests in progress are recorded: 256 packed rings of 8,192 entries.
pub const INFLIGHT_MAX: u64 = 64 << 20;
/// Requests of a ring that a process before this one has not answered: a device has fewer in progress, and rings of
/// QEMU have fewer entries.
pub const LEFT_MAX: usize = 4096;
/// Bytes of a dirty log: one bit for each page of 8 TiB.
pub const LOG_MAX: u64 = 256 << 20;
