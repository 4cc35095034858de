//! The messages of vhost-user (QEMU docs/interop/vhost-user.rst): host byte order, which is little-endian on every
//! machine that Lunar runs on.

use lunar_core::codes;
use lunar_core::wire::le;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// The request of a message of the front-end.
    pub struct Code(u32) {
        GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, RESET_OWNER = 4, SET_MEM_TABLE = 5, SET_LOG_BASE = 6,
        SET_LOG_FD = 7, SET_VRING_NUM = 8, SET_VRING_ADDR = 9, SET_VRING_BASE = 10, GET_VRING_BASE = 11,
        SET_VRING_KICK = 12, SET_VRING_CALL = 13, SET_VRING_ERR = 14, GET_PROTOCOL_FEATURES = 15,
        SET_PROTOCOL_FEATURES = 16, GET_QUEUE_NUM = 17, SET_VRING_ENABLE = 18, SET_BACKEND_REQ_FD = 21,
        GET_CONFIG = 24, SET_CONFIG = 25, GET_INFLIGHT_FD = 31, SET_INFLIGHT_FD = 32, RESET_DEVICE = 34,
        GET_MAX_MEM_SLOTS = 36, ADD_MEM_REG = 37, REM_MEM_REG = 38, SET_STATUS = 39, GET_STATUS = 40,
    }
}

codes! {
    /// The request of a message of the back-end, on its own channel.
    pub struct BackendCode(u32) {
        CONFIG_CHANGE = 2,
    }
}

/// Flags of a header: the version of the protocol.
pub const VERSION: u32 = 0x01;
/// Flags of a header: the bits of the version.
pub const VERSION_MASK: u32 = 0x03;
/// Flags of a header: the message is a reply.
pub const REPLY: u32 = 0x04;
/// Flags of a header: the message needs a reply, if REPLY_ACK is negotiated.
pub const NEED_REPLY: u32 = 0x08;

/// The header of every message (vhost-user.rst, Header).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// A [`Code`].
    pub code: le::U32,
    /// [`VERSION`], [`REPLY`], [`NEED_REPLY`].
    pub flags: le::U32,
    /// Bytes that follow.
    pub size: le::U32,
}

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// The state of a ring (vhost-user.rst, A vring state description): its number, and a number that the message explains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VringState {
    /// The ring.
    pub index: le::U32,
    /// Its size, its next index, or whether it is enabled.
    pub num: le::U32,
}

/// SET_VRING_ADDR (vhost-user.rst, A vring address description). The addresses are those of the front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VringAddress {
    /// The ring.
    pub index: le::U32,
    /// Bit 0: writes to the used ring are logged.
    pub flags: le::U32,
    /// The descriptor table, or the packed ring.
    pub descriptors: le::U64,
    /// The used ring, or the device event suppression structure of a packed ring.
    pub used: le::U64,
    /// The available ring, or the driver event suppression structure of a packed ring.
    pub available: le::U64,
    /// Guest address of the used ring, for the log.
    pub log: le::U64,
}

/// A part of guest memory (vhost-user.rst, Memory region description).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MemoryRegion {
    /// Guest address.
    pub guest: le::U64,
    /// Bytes.
    pub size: le::U64,
    /// Address in the front-end.
    pub user: le::U64,
    /// Offset in the file.
    pub offset: le::U64,
}

/// The head of SET_MEM_TABLE (vhost-user.rst, Multiple Memory regions description); the regions follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MemoryTable {
    /// Regions.
    pub count: le::U32,
    /// Unused.
    pub padding: le::U32,
}

/// ADD_MEM_REG and REM_MEM_REG (vhost-user.rst, Single memory region description).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SingleRegion {
    /// Unused.
    pub padding: le::U64,
    /// The region.
    pub region: MemoryRegion,
}

/// The head of GET_CONFIG and SET_CONFIG (vhost-user.rst, Virtio device config space); as many bytes of the
/// configuration space follow as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConfigHead {
    /// The first byte.
    pub offset: le::U32,
    /// Bytes.
    pub size: le::U32,
    /// Zero: the driver has written. One: the values of a virtual machine that has migrated.
    pub flags: le::U32,
}

/// GET_INFLIGHT_FD and SET_INFLIGHT_FD (vhost-user.rst, Inflight description).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Inflight {
    /// Bytes of the shared memory.
    pub size: le::U64,
    /// Offset in the file.
    pub offset: le::U64,
    /// Rings.
    pub queues: le::U16,
    /// Entries of a ring.
    pub queue_size: le::U16,
    /// The end of the structure, as compilers align it.
    pub padding: [u8; 4],
}

/// SET_LOG_BASE (vhost-user.rst, Log description).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LogBase {
    /// Bytes of the log.
    pub size: le::U64,
    /// Offset in the file.
    pub offset: le::U64,
}

/// The ring in SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR: the lower bits.
pub const RING_MASK: u64 = 0xff;
/// SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: no descriptor comes, the ring is polled.
pub const NO_DESCRIPTOR: u64 = 0x100;

/// Features of the protocol.
pub mod protocol {
    /// Several rings.
    pub const MQ: u64 = 1 << 0;
    /// The dirty log is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Messages are acknowledged on request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back-end sends messages on a channel of its own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back-end has the configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in progress are recorded in shared memory.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory is added and removed region by region.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The back-end has the device status.
    pub const STATUS: u64 = 1 << 16;
}

/// Features of all virtio devices.
pub mod feature {
    /// Writes are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// A descriptor may refer to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Both sides say at which index they are to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The protocol has features of its own.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: u64 = 1 << 35;
}
