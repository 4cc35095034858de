//! The messages of vfio-user: host byte order, which is little-endian on every machine that this runs on.

use lunar_core::codes;
use lunar_core::wire::le;
use lunar_guest::Range;
use lunar_guest::dirty::LogError;
use lunar_guest::map::MapError;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// What a message is about.
    pub struct Code(u16) {
        VERSION = 1, DMA_MAP = 2, DMA_UNMAP = 3, DEVICE_INFO = 4, REGION_INFO = 5, REGION_IO_FDS = 6, IRQ_INFO = 7,
        SET_IRQS = 8, REGION_READ = 9, REGION_WRITE = 10, DMA_READ = 11, DMA_WRITE = 12, RESET = 13,
        REGION_WRITE_MULTI = 15, FEATURE = 16, MIGRATION_READ = 17, MIGRATION_WRITE = 18,
    }
}

codes! {
    /// Why something is refused: numbers of the operating system.
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

/// Flags of a header: bits 3:0: a reply.
pub const REPLY: u32 = 0x01;
/// The bits that tell commands and replies apart.
pub const KIND: u32 = 0x0f;
/// The command is not answered.
pub const NO_REPLY: u32 = 0x10;
/// The reply is an error.
pub const ERROR: u32 = 0x20;

/// What every message begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The reply has that of its command.
    pub id: le::U16,
    /// A [`Code`].
    pub code: le::U16,
    /// Bytes of the message, this header included.
    pub size: le::U32,
    /// Kind, and whether it is answered, or an error.
    pub flags: le::U32,
    /// An [`Errno`], of an error.
    pub errno: le::U32,
}

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// The first bytes of VERSION; text follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Version {
    /// Versions that differ have nothing to say to each other.
    pub major: le::U16,
    /// What is new in it can be left out.
    pub minor: le::U16,
}

/// DMA_MAP: memory that may be read (bit 0) and written (bit 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this.
    pub argsz: le::U32,
    /// What may be done with it.
    pub flags: le::U32,
    /// Where it is in the file that came with it.
    pub offset: le::U64,
    /// Where the device finds it.
    pub address: le::U64,
    /// Bytes.
    pub size: le::U64,
}

/// DMA_MAP: it may be written.
pub const MAP_WRITABLE: u32 = 0x02;

/// DMA_UNMAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this.
    pub argsz: le::U32,
    /// Whether all is unmapped (bit 1), and what changed is asked for (bit 0).
    pub flags: le::U32,
    /// Where the device finds it.
    pub address: le::U64,
    /// Bytes.
    pub size: le::U64,
}

/// DMA_UNMAP: what changed is told.
pub const UNMAP_DIRTY: u32 = 0x01;
/// DMA_UNMAP: all of it.
pub const UNMAP_ALL: u32 = 0x02;

/// DEVICE_GET_INFO, IRQ_INFO and REGION_IO_FDS, and their replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Info {
    /// Bytes that are asked for, or that there are.
    pub argsz: le::U32,
    /// What it can.
    pub flags: le::U32,
    /// Regions; or which one is asked for.
    pub index: le::U32,
    /// Interrupts; or how many there are.
    pub count: le::U32,
}

/// DEVICE_GET_INFO: the device can be reset, and is a PCI device.
pub const DEVICE_FLAGS: u32 = 0x03;
/// IRQ_INFO: it comes by eventfd.
pub const IRQ_EVENTFD: u32 = 0x01;
/// IRQ_INFO: it can be masked.
pub const IRQ_MASKABLE: u32 = 0x02;
/// IRQ_INFO: it is masked when it has come.
pub const IRQ_AUTOMASKED: u32 = 0x04;

/// DEVICE_GET_REGION_INFO.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Bytes that are asked for, or that there are.
    pub argsz: le::U32,
    /// What can be done with it.
    pub flags: le::U32,
    /// Which.
    pub index: le::U32,
    /// Where what else there is to say begins.
    pub capabilities: le::U32,
    /// Bytes.
    pub size: le::U64,
    /// Where it is in the file that comes with this.
    pub offset: le::U64,
}

/// A region can be read and written.
pub const REGION_ACCESS: u32 = 0x03;
/// Parts of it can be mapped, and the reply tells which.
pub const REGION_SPARSE: u32 = 0x04 | 0x08;

/// The one part of a region that can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sparse {
    /// [`Sparse::ID`].
    pub id: le::U16,
    /// 1.
    pub version: le::U16,
    /// Nothing follows.
    pub next: le::U32,
    /// 1.
    pub areas: le::U32,
    /// Reserved.
    pub reserved: le::U32,
    /// Where it begins in the region.
    pub offset: le::U64,
    /// Bytes.
    pub size: le::U64,
}

impl Sparse {
    /// Its number among capabilities.
    pub const ID: u16 = 1;
}

/// DEVICE_SET_IRQS; data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    /// Bytes of this, and what follows.
    pub argsz: le::U32,
    /// What is done, and with what.
    pub flags: le::U32,
    /// Kind of interrupts.
    pub index: le::U32,
    /// The first.
    pub start: le::U32,
    /// How many.
    pub count: le::U32,
}

/// SET_IRQS: nothing comes with it.
pub const IRQ_DATA_NONE: u32 = 0x01;
/// SET_IRQS: a byte for each interrupt.
pub const IRQ_DATA_BOOL: u32 = 0x02;
/// SET_IRQS: a descriptor for each interrupt.
pub const IRQ_DATA_EVENTFD: u32 = 0x04;
/// SET_IRQS: mask.
pub const IRQ_MASK: u32 = 0x08;
/// SET_IRQS: unmask.
pub const IRQ_UNMASK: u32 = 0x10;
/// SET_IRQS: raise, or be raised by.
pub const IRQ_TRIGGER: u32 = 0x20;

/// REGION_READ, REGION_WRITE and their replies; data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Access {
    /// Where in the region.
    pub offset: le::U64,
    /// Which region.
    pub region: le::U32,
    /// Bytes.
    pub count: le::U32,
}

/// One of the writes of REGION_WRITE_MULTI, which follow their number, of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ShortWrite {
    /// Where, and how many bytes.
    pub access: Access,
    /// The first of these are written.
    pub data: [u8; 8],
}

codes! {
    /// What DEVICE_FEATURE is about.
    pub struct FeatureCode(u16) {
        MIGRATION = 1, STATE = 2, LOGGING_START = 6, LOGGING_STOP = 7, LOGGING_REPORT = 8,
    }
}

codes! {
    /// Whether a device runs, and what it does on its way to another process. It runs at the beginning.
    pub struct State(u32) {
        ERROR = 0, STOP = 1, RUNNING = 2, STOP_COPY = 3, RESUMING = 4, RUNNING_P2P = 5, PRE_COPY = 6, PRE_COPY_P2P = 7,
    }
}

/// DEVICE_FEATURE and its reply; data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Feature {
    /// Bytes that there is room for, or that there are.
    pub argsz: le::U32,
    /// A [`FeatureCode`], and what is done.
    pub flags: le::U32,
}

/// DEVICE_FEATURE: the bits of the [`FeatureCode`].
pub const FEATURE_INDEX: u32 = 0xffff;
/// DEVICE_FEATURE: it is asked for.
pub const FEATURE_GET: u32 = 1 << 16;
/// DEVICE_FEATURE: it is set.
pub const FEATURE_SET: u32 = 1 << 17;
/// DEVICE_FEATURE: it is only asked whether that can be done.
pub const FEATURE_PROBE: u32 = 1 << 18;
/// MIGRATION: what there is: the state can be read while the device stands still.
pub const MIGRATION_STOP_COPY: u64 = 0x01;

/// STATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceState {
    /// A [`State`].
    pub state: le::U32,
    /// Not used in this protocol.
    pub descriptor: le::U32,
}

/// LOGGING_START; ranges follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Logging {
    /// What is remembered of memory that was written: pages of so many bytes.
    pub page_size: le::U64,
    /// How many ranges follow; none: all memory.
    pub count: le::U32,
    /// Reserved.
    pub reserved: le::U32,
}

/// Some of the guest's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Span {
    /// The first.
    pub address: le::U64,
    /// Bytes.
    pub len: le::U64,
}

impl Span {
    /// The same as numbers.
    #[must_use]
    pub fn range(&self) -> Range {
        Range { address: self.address.get(), len: self.len.get() }
    }
}

/// LOGGING_REPORT; a bit for each page follows in the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Report {
    /// Which addresses.
    pub span: Span,
    /// Bytes of a page.
    pub page_size: le::U64,
}

/// MIGRATION_READ and its reply, MIGRATION_WRITE; data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Moved {
    /// Bytes that there is room for, or that there are.
    pub argsz: le::U32,
    /// Bytes of the data.
    pub size: le::U32,
}

/// Interrupts by INTx.
pub const IRQ_INTX: u32 = 0;
/// Interrupts by MSI-X.
pub const IRQ_MSIX: u32 = 2;
/// Kinds of interrupts of a PCI device.
pub const IRQS: u32 = 5;
/// The region of the registers.
pub const REGION_BAR0: u32 = 0;
/// The region of the table of vectors.
pub const REGION_BAR4: u32 = 4;
/// The region of pending vectors.
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
    fn sizes_are_those_of_the_protocol() {
        assert_eq!((HEADER_LEN, size_of::<DmaMap>(), size_of::<DmaUnmap>()), (16, 32, 24));
        assert_eq!((size_of::<Info>(), size_of::<RegionInfo>(), size_of::<Sparse>()), (16, 32, 32));
        assert_eq!((size_of::<SetIrqs>(), size_of::<Access>(), size_of::<ShortWrite>()), (20, 16, 24));
        assert_eq!((size_of::<Feature>(), size_of::<DeviceState>(), size_of::<Moved>()), (8, 8, 8));
        assert_eq!((size_of::<Logging>(), size_of::<Span>(), size_of::<Report>()), (16, 16, 24));
    }

    #[test]
    fn golden_bytes_come_apart_and_together_again() {
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
