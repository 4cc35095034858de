//! The structures of linux/ublk_cmd.h, in the byte order of the machine: control commands, the description of a device,
//! its parameters, and the descriptor of a request.

use lunar_core::codes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

codes! {
    /// The number of a control command.
    pub struct Control(u8) {
        GET_DEV_INFO = 0x02,
        ADD_DEV = 0x04,
        DEL_DEV = 0x05,
        START_DEV = 0x06,
        STOP_DEV = 0x07,
        SET_PARAMS = 0x08,
        GET_PARAMS = 0x09,
        START_USER_RECOVERY = 0x10,
        END_USER_RECOVERY = 0x11,
        GET_DEV_INFO2 = 0x12,
        GET_FEATURES = 0x13,
        DEL_DEV_ASYNC = 0x14,
        UPDATE_SIZE = 0x15,
        QUIESCE_DEV = 0x16,
        TRY_STOP_DEV = 0x17,
    }
}

impl Control {
    /// Whether its number is encoded as that of a command that only reads (`_IOR`).
    #[must_use]
    pub fn only_reads(self) -> bool {
        matches!(
            self,
            Self::GET_DEV_INFO | Self::GET_DEV_INFO2 | Self::GET_PARAMS | Self::GET_FEATURES | Self::DEL_DEV_ASYNC
        )
    }

    /// Whether it is about a device that exists: an unprivileged process has to name the node of the device then.
    #[must_use]
    pub fn is_about_device(self) -> bool {
        !matches!(self, Self::ADD_DEV | Self::GET_FEATURES)
    }
}

/// A control command (`struct ublksrv_ctrl_cmd`), without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlCommand {
    /// Its number.
    pub number: Control,
    /// The number of the device.
    pub device: u32,
    /// The data that some commands have.
    pub data: u64,
}

/// A command of a tag (`struct ublksrv_io_cmd`), without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagCommand {
    /// [`FETCH_REQ`] or [`COMMIT_AND_FETCH_REQ`].
    pub number: u8,
    /// The queue.
    pub queue: u16,
    /// The tag.
    pub tag: u16,
    /// The result of the request that the tag had: bytes, or a negative errno.
    pub result: i32,
}

/// The path of each disk, without its number.
pub const DISK: &str = "/dev/ublkb";

/// The path of the disk of this number.
#[must_use]
pub fn disk_at(number: u32) -> String {
    format!("{DISK}{number}")
}

/// The command of a tag that asks for its first request.
pub const FETCH_REQ: u8 = 0x20;
/// The command of a tag that answers a request and asks for the next one.
pub const COMMIT_AND_FETCH_REQ: u8 = 0x21;
/// No queue, in a control command.
pub const NO_QUEUE: u16 = u16::MAX;
/// A new device gets the lowest free number.
pub const ANY_NUMBER: u32 = u32::MAX;
/// Bytes of a sector: the unit of all addresses and lengths.
pub const SECTOR: u64 = 512;

/// Features of the driver, and of a device.
pub mod feature {
    /// Requests carry the numbers of pages, and no data.
    pub const SUPPORT_ZERO_COPY: u64 = 1;
    /// The memory of a write is asked for by another command.
    pub const NEED_GET_DATA: u64 = 1 << 2;
    /// A device survives the process that serves it, until it is recovered.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that a dead process had are issued again.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The device is one of a user without CAP_SYS_ADMIN: the kernel kills a process that is slow.
    pub const UNPRIVILEGED_DEV: u64 = 1 << 5;
    /// Numbers of commands are encoded as those of ioctl(2).
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Data is moved by reads and writes of the character device.
    pub const USER_COPY: u64 = 1 << 7;
    /// The device has zones.
    pub const ZONED: u64 = 1 << 8;
    /// Requests fail while no process serves the device.
    pub const USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
    /// The size of a device can change.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// The memory of a request is registered with the ring.
    pub const AUTO_BUF_REG: u64 = 1 << 11;
    /// A device can be left to the next process without losing requests.
    pub const QUIESCE: u64 = 1 << 12;
    /// One command stands for many tags.
    pub const BATCH_IO: u64 = 1 << 15;
    /// Requests have metadata.
    pub const INTEGRITY: u64 = 1 << 16;
    /// A device can be stopped on the condition that no program has it open.
    pub const SAFE_STOP: u64 = 1 << 17;

    /// The names of all features that are known, by their bits, as linux/ublk_cmd.h has them.
    pub const NAMES: [&str; 20] = [
        "SUPPORT_ZERO_COPY",
        "URING_CMD_COMP_IN_TASK",
        "NEED_GET_DATA",
        "USER_RECOVERY",
        "USER_RECOVERY_REISSUE",
        "UNPRIVILEGED_DEV",
        "CMD_IOCTL_ENCODE",
        "USER_COPY",
        "ZONED",
        "USER_RECOVERY_FAIL_IO",
        "UPDATE_SIZE",
        "AUTO_BUF_REG",
        "QUIESCE",
        "PER_IO_DAEMON",
        "BUF_REG_OFF_DAEMON",
        "BATCH_IO",
        "INTEGRITY",
        "SAFE_STOP",
        "NO_AUTO_PART_SCAN",
        "SHMEM_ZC",
    ];
}

codes! {
    /// The state of a device.
    pub struct State(u16) { DEAD = 0, LIVE = 1, QUIESCED = 2, FAIL_IO = 3 }
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    /// Queues.
    pub queues: u16,
    /// Tags of each queue.
    pub depth: u16,
    /// A [`State`].
    pub state: u16,
    /// Unused.
    pub pad0: u16,
    /// The most bytes of a request.
    pub buffer_bytes: u32,
    /// The number of the device.
    pub number: u32,
    /// The process that serves it.
    pub pid: i32,
    /// Unused.
    pub pad1: u32,
    /// Features.
    pub flags: u64,
    /// A number that the kernel only keeps.
    pub private: u64,
    /// The user that made it.
    pub uid: u32,
    /// The group of that user.
    pub gid: u32,
    /// The last 16 bytes, which the kernel reserves, keeps and returns: the UUID of the volume.
    pub volume: [u8; 16],
}

/// Attributes of a device.
pub mod attribute {
    /// It is read-only.
    pub const READ_ONLY: u32 = 1;
    /// Its medium rotates.
    pub const ROTATIONAL: u32 = 1 << 1;
    /// It has a write cache, and gets flushes.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// It supports Force Unit Access.
    pub const FUA: u32 = 1 << 3;
}

/// The types of parameters that are present.
pub mod present {
    /// The basic ones.
    pub const BASIC: u32 = 1;
    /// The parameters of discards and of writes of zeroes.
    pub const DISCARD: u32 = 1 << 1;
}

/// `struct ublk_params`, as far as it is used: the kernel takes a shorter structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Params {
    /// Bytes of the structure.
    pub len: u32,
    /// The types that are present.
    pub types: u32,
    /// Attributes.
    pub attributes: u32,
    /// The power of two of the bytes of a logical block.
    pub logical_shift: u8,
    /// The same of a physical block.
    pub physical_shift: u8,
    /// The same of the optimal length of a request.
    pub optimal_shift: u8,
    /// The same of the shortest efficient length.
    pub minimum_shift: u8,
    /// The most sectors of a request.
    pub sectors_max: u32,
    /// Requests do not cross multiples of so many sectors; 0: they may.
    pub chunk_sectors: u32,
    /// Sectors of the device.
    pub sectors: u64,
    /// A limit of devices of virtual machines; 0: none.
    pub boundary_mask: u64,
    /// Discards: the offset of the first unit of deallocation.
    pub discard_alignment: u32,
    /// Bytes of a unit of deallocation.
    pub discard_granularity: u32,
    /// The most sectors of a discard; 0: there are none.
    pub discard_sectors_max: u32,
    /// The most sectors of a write of zeroes; 0: there are none.
    pub zeroes_sectors_max: u32,
    /// The ranges of a discard: 1.
    pub discard_segments_max: u16,
    /// Unused.
    pub reserved: u16,
    /// Unused: the structure ends on a multiple of 8 bytes.
    pub pad: u32,
}

codes! {
    /// The operation of a request.
    pub struct Operation(u8) { READ = 0, WRITE = 1, FLUSH = 2, DISCARD = 3, WRITE_ZEROES = 5 }
}

/// Flags of a request.
pub mod flag {
    /// The data is on the medium before the request ends.
    pub const FUA: u32 = 1 << 13;
    /// A write of zeroes must not deallocate.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// The first 16 bytes of `struct ublksrv_io_desc`: the last 8 are the address of our own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// The operation, and flags.
    pub op_flags: u32,
    /// Sectors.
    pub sectors: u32,
    /// The first sector.
    pub start: u64,
}

impl Descriptor {
    /// As the reactor returns it.
    #[must_use]
    pub fn of(halves: [u64; 2]) -> Self {
        let [low, start] = halves;
        // The first number is two fields in the order of the machine's bytes.
        let bytes = low.to_ne_bytes();
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { op_flags: word(0), sectors: word(4), start }
    }

    /// As the reactor returns it: for tests.
    #[must_use]
    pub fn halves(self) -> [u64; 2] {
        let [a, b] = [self.op_flags, self.sectors].map(u32::to_ne_bytes);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&a);
        bytes[4..].copy_from_slice(&b);
        [u64::from_ne_bytes(bytes), self.start]
    }

    /// The operation.
    #[must_use]
    pub fn operation(self) -> Operation {
        // The lowest 8 bits.
        Operation(self.op_flags as u8)
    }

    /// Whether it has a flag.
    #[must_use]
    pub fn has(self, flag: u32) -> bool {
        self.op_flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_layout_of_the_kernel() {
        assert_eq!(size_of::<DeviceInfo>(), 64);
        let info = [
            (offset_of!(DeviceInfo, depth), 2),
            (offset_of!(DeviceInfo, state), 4),
            (offset_of!(DeviceInfo, buffer_bytes), 8),
            (offset_of!(DeviceInfo, number), 12),
            (offset_of!(DeviceInfo, pid), 16),
            (offset_of!(DeviceInfo, flags), 24),
            (offset_of!(DeviceInfo, private), 32),
            (offset_of!(DeviceInfo, uid), 40),
            (offset_of!(DeviceInfo, gid), 44),
            (offset_of!(DeviceInfo, volume), 48),
        ];
        assert!(info.iter().all(|(found, wanted)| found == wanted), "{info:?}");
        let params = [
            (offset_of!(Params, attributes), 8),
            (offset_of!(Params, logical_shift), 12),
            (offset_of!(Params, sectors_max), 16),
            (offset_of!(Params, sectors), 24),
            (offset_of!(Params, boundary_mask), 32),
            (offset_of!(Params, discard_alignment), 40),
            (offset_of!(Params, zeroes_sectors_max), 52),
            (offset_of!(Params, discard_segments_max), 56),
            (size_of::<Params>(), 64),
        ];
        assert!(params.iter().all(|(found, wanted)| found == wanted), "{params:?}");
    }

    #[test]
    fn a_descriptor_is_taken_apart() {
        let descriptor = Descriptor { op_flags: 0x2001, sectors: 8, start: 1 << 40 };
        assert_eq!(Descriptor::of(descriptor.halves()), descriptor);
        assert_eq!(descriptor.operation(), Operation::WRITE);
        assert!(descriptor.has(flag::FUA) && !descriptor.has(flag::NO_UNMAP));
    }

    #[test]
    fn commands_know_their_direction() {
        assert!(Control::GET_FEATURES.only_reads() && !Control::ADD_DEV.only_reads());
        assert!(Control::GET_DEV_INFO2.only_reads() && Control::GET_DEV_INFO2.is_about_device());
        assert_eq!(feature::NAMES.iter().position(|name| *name == "QUIESCE"), Some(12));
        assert_eq!(1 << 12, feature::QUIESCE);
    }
}
