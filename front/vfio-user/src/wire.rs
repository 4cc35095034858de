//! The messages of vfio-user (QEMU docs/interop/vfio-user.rst, version 0.1): host byte order, which is little-endian on
//! every machine that Lunar runs on.

use lunar_core::codes;
use lunar_core::wire::le;
use lunar_guest::Range;
use lunar_guest::dirty::LogError;
use lunar_guest::map::MapError;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// The command of a message.
    pub struct Code(u16) {
        VERSION = 1, DMA_MAP = 2, DMA_UNMAP = 3, DEVICE_INFO = 4, REGION_INFO = 5, REGION_IO_FDS = 6, IRQ_INFO = 7,
        SET_IRQS = 8, REGION_READ = 9, REGION_WRITE = 10, DMA_READ = 11, DMA_WRITE = 12, RESET = 13,
        REGION_WRITE_MULTI = 15, FEATURE = 16, MIGRATION_READ = 17, MIGRATION_WRITE = 18,
    }
}

codes! {
    /// Why a command is refused: error numbers of the operating system.
    pub struct Errno(u32) {
        NOENT = 2, IO = 5, NOMEM = 12, FAULT = 14, BUSY = 16, EXIST = 17, INVAL = 22, NOSPC = 28, NOTSUP = 95,
    }
}

impl From<MapError> for Errno {
    fn from(why: MapError) -> Self {
        match why {
            MapError::Overlap => Self::EXIST,
            MapError::Invalid => Self::INVAL,
            MapError::TooMany => Self::NOSPC,
            MapError::Missing => Self::NOENT,
        }
    }
}

impl From<LogError> for Errno {
    fn from(LogError: LogError) -> Self {
        Self::INVAL
    }
}

/// Flags of a header: the message is a reply.
pub const REPLY: u32 = 0x01;
/// Flags of a header: the bits that tell commands and replies apart.
pub const KIND: u32 = 0x0f;
/// Flags of a header: the command has no reply.
pub const NO_REPLY: u32 = 0x10;
/// Flags of a header: the reply is an error.
pub const ERROR: u32 = 0x20;

/// The header of every message (vfio-user 0.1, Header).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Message identifier: a reply has that of its command.
    pub id: le::U16,
    /// A [`Code`].
    pub code: le::U16,
    /// Bytes of the message, with this header.
    pub size: le::U32,
    /// [`REPLY`], [`NO_REPLY`], [`ERROR`].
    pub flags: le::U32,
    /// An [`Errno`], in the reply of a command that failed.
    pub errno: le::U32,
}

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// VERSION and its reply (vfio-user 0.1, VFIO_USER_VERSION): text in JSON with a NUL follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Version {
    /// Both sides must have the same one.
    pub major: le::U16,
    /// The lower one of both sides is used.
    pub minor: le::U16,
}

/// DMA_MAP (vfio-user 0.1, VFIO_USER_DMA_MAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: le::U32,
    /// The device may read ([`MAP_READABLE`]) and write ([`MAP_WRITABLE`]).
    pub flags: le::U32,
    /// Offset in the file whose descriptor comes with the message.
    pub offset: le::U64,
    /// Guest address.
    pub address: le::U64,
    /// Bytes.
    pub size: le::U64,
}

/// DMA_MAP: the device may read.
pub const MAP_READABLE: u32 = 0x01;
/// DMA_MAP: the device may write.
pub const MAP_WRITABLE: u32 = 0x02;

/// DMA_UNMAP and its reply (vfio-user 0.1, VFIO_USER_DMA_UNMAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this structure.
    pub argsz: le::U32,
    /// [`UNMAP_DIRTY`], [`UNMAP_ALL`].
    pub flags: le::U32,
    /// Guest address.
    pub address: le::U64,
    /// Bytes.
    pub size: le::U64,
}

/// DMA_UNMAP: the reply contains the dirty pages.
pub const UNMAP_DIRTY: u32 = 0x01;
/// DMA_UNMAP: all memory is unmapped.
pub const UNMAP_ALL: u32 = 0x02;

/// DEVICE_INFO, IRQ_INFO, REGION_IO_FDS and their replies (vfio-user 0.1, VFIO_USER_DEVICE_GET_INFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Info {
    /// Bytes that the client has room for; in a reply, bytes of the structure.
    pub argsz: le::U32,
    /// The capabilities of the device or of the interrupts.
    pub flags: le::U32,
    /// DEVICE_INFO: number of regions. Otherwise the index that is asked for.
    pub index: le::U32,
    /// Number of interrupts.
    pub count: le::U32,
}

/// DEVICE_INFO: a PCI device that can be reset.
pub const DEVICE_FLAGS: u32 = 0x03;
/// IRQ_INFO: interrupts are raised through an eventfd.
pub const IRQ_EVENTFD: u32 = 0x01;
/// IRQ_INFO: interrupts can be masked.
pub const IRQ_MASKABLE: u32 = 0x02;
/// IRQ_INFO: an interrupt is masked once it was raised.
pub const IRQ_AUTOMASKED: u32 = 0x04;

/// REGION_INFO and its reply (vfio-user 0.1, VFIO_USER_DEVICE_GET_REGION_INFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Bytes that the client has room for; in a reply, bytes of the structure and all capabilities.
    pub argsz: le::U32,
    /// [`REGION_ACCESS`], [`REGION_SPARSE`].
    pub flags: le::U32,
    /// Index of the region.
    pub index: le::U32,
    /// Offset of the first capability; zero: none.
    pub capabilities: le::U32,
    /// Bytes of the region.
    pub size: le::U64,
    /// Offset in the file whose descriptor comes with the reply.
    pub offset: le::U64,
}

/// REGION_INFO: the region can be read and written.
pub const REGION_ACCESS: u32 = 0x03;
/// REGION_INFO: parts of the region can be mapped, and a capability tells which.
pub const REGION_SPARSE: u32 = 0x04 | 0x08;

/// The capability that tells the one part of a region that can be mapped (vfio-user 0.1,
/// VFIO_REGION_INFO_CAP_SPARSE_MMAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sparse {
    /// [`Sparse::ID`].
    pub id: le::U16,
    /// 1.
    pub version: le::U16,
    /// Offset of the next capability; zero: none.
    pub next: le::U32,
    /// Number of parts: 1.
    pub areas: le::U32,
    /// Reserved.
    pub reserved: le::U32,
    /// Offset of the part in the region.
    pub offset: le::U64,
    /// Bytes of the part.
    pub size: le::U64,
}

impl Sparse {
    /// Identifier of this capability.
    pub const ID: u16 = 1;
}

/// SET_IRQS (vfio-user 0.1, VFIO_USER_DEVICE_SET_IRQS): data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    /// Bytes of this structure and the data.
    pub argsz: le::U32,
    /// One of IRQ_DATA_* and one of [`IRQ_MASK`], [`IRQ_UNMASK`], [`IRQ_TRIGGER`].
    pub flags: le::U32,
    /// Kind of interrupts.
    pub index: le::U32,
    /// The first one.
    pub start: le::U32,
    /// How many.
    pub count: le::U32,
}

/// SET_IRQS: there is no data.
pub const IRQ_DATA_NONE: u32 = 0x01;
/// SET_IRQS: a byte for each interrupt tells whether it is meant.
pub const IRQ_DATA_BOOL: u32 = 0x02;
/// SET_IRQS: a descriptor for each interrupt comes with the message.
pub const IRQ_DATA_EVENTFD: u32 = 0x04;
/// SET_IRQS: masks.
pub const IRQ_MASK: u32 = 0x08;
/// SET_IRQS: unmasks.
pub const IRQ_UNMASK: u32 = 0x10;
/// SET_IRQS: raises, or sets the eventfds through which interrupts are raised.
pub const IRQ_TRIGGER: u32 = 0x20;

/// REGION_READ, REGION_WRITE and their replies (vfio-user 0.1, VFIO_USER_REGION_READ, VFIO_USER_REGION_WRITE): data
/// follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Access {
    /// Offset in the region.
    pub offset: le::U64,
    /// Index of the region.
    pub region: le::U32,
    /// Bytes.
    pub count: le::U32,
}

/// One write of REGION_WRITE_MULTI (vfio-user 0.1, VFIO_USER_REGION_WRITE_MULTI). The number of writes comes first, in
/// eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ShortWrite {
    /// Where, and how many bytes.
    pub access: Access,
    /// The bytes, from the first on.
    pub data: [u8; 8],
}

codes! {
    /// The feature of a FEATURE message.
    pub struct FeatureCode(u16) {
        MIGRATION = 1, STATE = 2, LOGGING_START = 6, LOGGING_STOP = 7, LOGGING_REPORT = 8,
    }
}

codes! {
    /// States of a device that can migrate (linux/vfio.h). A device starts in the state `RUNNING`.
    pub struct State(u32) {
        ERROR = 0, STOP = 1, RUNNING = 2, STOP_COPY = 3, RESUMING = 4, RUNNING_P2P = 5, PRE_COPY = 6, PRE_COPY_P2P = 7,
    }
}

/// FEATURE and its reply (vfio-user 0.1, VFIO_USER_DEVICE_FEATURE): data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Feature {
    /// Bytes that the client has room for; in a reply, bytes of the structure and the data.
    pub argsz: le::U32,
    /// A [`FeatureCode`], and [`FEATURE_GET`], [`FEATURE_SET`], [`FEATURE_PROBE`].
    pub flags: le::U32,
}

/// FEATURE: the bits of the [`FeatureCode`].
pub const FEATURE_INDEX: u32 = 0xffff;
/// FEATURE: reads the feature.
pub const FEATURE_GET: u32 = 1 << 16;
/// FEATURE: sets the feature.
pub const FEATURE_SET: u32 = 1 << 17;
/// FEATURE: asks only whether the feature can be read or set.
pub const FEATURE_PROBE: u32 = 1 << 18;
/// MIGRATION: the state is read in `STOP_COPY`.
pub const MIGRATION_STOP_COPY: u64 = 0x01;

/// STATE (vfio-user 0.1, VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceState {
    /// A [`State`].
    pub state: le::U32,
    /// Unused: in this protocol the state is read by messages.
    pub descriptor: le::U32,
}

/// LOGGING_START (vfio-user 0.1, VFIO_DEVICE_FEATURE_DMA_LOGGING_START): ranges follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Logging {
    /// Bytes of a page; in a reply, the page size that is used.
    pub page_size: le::U64,
    /// Number of ranges that follow; zero: all guest memory.
    pub count: le::U32,
    /// Reserved.
    pub reserved: le::U32,
}

/// A range of guest addresses (vfio-user 0.1, VFIO_DEVICE_FEATURE_DMA_LOGGING_START).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Span {
    /// The first address.
    pub address: le::U64,
    /// Bytes.
    pub len: le::U64,
}

impl Span {
    /// The range in the byte order of this machine.
    #[must_use]
    pub fn range(&self) -> Range {
        Range { address: self.address.get(), len: self.len.get() }
    }
}

/// LOGGING_REPORT and its reply (vfio-user 0.1, VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT): in the reply, a bitmap of the
/// dirty pages follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Report {
    /// Guest addresses.
    pub span: Span,
    /// Bytes of a page.
    pub page_size: le::U64,
}

/// MIGRATION_READ and its reply, MIGRATION_WRITE (vfio-user 0.1, VFIO_USER_MIG_DATA_READ, VFIO_USER_MIG_DATA_WRITE):
/// data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StateData {
    /// Bytes that the client has room for, with this structure; in a reply, bytes of the structure and the data.
    pub argsz: le::U32,
    /// Bytes of the data.
    pub size: le::U32,
}

const _: () = {
    assert!(HEADER_LEN == 16 && offset_of!(Header, flags) == 8);
    assert!(size_of::<DmaMap>() == 32 && offset_of!(DmaMap, address) == 16);
    assert!(size_of::<DmaUnmap>() == 24 && offset_of!(DmaUnmap, address) == 8);
    assert!(size_of::<Info>() == 16 && size_of::<RegionInfo>() == 32 && offset_of!(RegionInfo, size) == 16);
    assert!(size_of::<Sparse>() == 32 && offset_of!(Sparse, offset) == 16);
    assert!(size_of::<SetIrqs>() == 20 && size_of::<Access>() == 16 && size_of::<ShortWrite>() == 24);
    assert!(size_of::<Feature>() == 8 && size_of::<DeviceState>() == 8 && size_of::<StateData>() == 8);
    assert!(size_of::<Logging>() == 16 && size_of::<Span>() == 16 && size_of::<Report>() == 24);
};

/// SET_IRQS, IRQ_INFO: INTx.
pub const IRQ_INTX: u32 = 0;
/// SET_IRQS, IRQ_INFO: MSI-X.
pub const IRQ_MSIX: u32 = 2;
/// Kinds of interrupts of a PCI device.
pub const IRQS: u32 = 5;
/// The region of the registers and doorbells.
pub const REGION_BAR0: u32 = 0;
/// The region of the MSI-X table.
pub const REGION_BAR4: u32 = 4;
/// The region of the MSI-X pending bits.
pub const REGION_BAR5: u32 = 5;
/// The region of the configuration space.
pub const REGION_CONFIG: u32 = 7;
/// Regions of a PCI device.
pub const REGIONS: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn golden_bytes_are_parsed_and_emitted() {
        let golden = [0x34, 0x12, 9, 0, 32, 0, 0, 0, 0x11, 0, 0, 0, 22, 0, 0, 0];
        let header = Header::read_from_bytes(&golden).expect("16 bytes");
        assert_eq!((header.id.get(), Code(header.code.get()), header.size.get()), (0x1234, Code::REGION_READ, 32));
        assert_eq!((header.flags.get(), Errno(header.errno.get())), (REPLY | NO_REPLY, Errno::INVAL));
        assert_eq!(header.as_bytes(), golden);
        let mut map = DmaMap::new_zeroed();
        map.as_mut_bytes().fill(0xa5);
        map.argsz = 32.into();
        map.size = 0x1_0000_0000.into();
        assert_eq!(map.as_bytes()[..5], [32, 0, 0, 0, 0xa5]);
        assert_eq!(map.as_bytes()[24..], [0, 0, 0, 0, 1, 0, 0, 0]);
        let golden = [32, 0, 0, 0, 8, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x10];
        let (feature, rest) = Feature::read_from_prefix(&golden).expect("8 bytes");
        assert_eq!((feature.argsz.get(), feature.flags.get()), (32, FEATURE_GET | 8));
        let (span, rest) = Span::read_from_prefix(rest).expect("16 bytes");
        assert_eq!((span.address.get(), span.len.get(), rest), (0x1000, 0x2000, &[0, 0x10][..]));
        let mut report = Report::new_zeroed();
        report.as_mut_bytes().fill(0xa5);
        (report.span, report.page_size) = (span, 0x1000.into());
        assert_eq!(report.as_bytes()[..18], golden[8..26]);
        assert_eq!(report.as_bytes()[18..], [0; 6]);
    }
}
