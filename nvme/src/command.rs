//! The input and the output of a command of a transport: [`Command`] and [`Reply`].

use lunar_core::codes;
use lunar_core::step::FinalData;
use lunar_core::wire::le;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a submission queue entry.
pub const SQE_LEN: usize = 64;

/// A scatter-gather list descriptor (NVMe Base 2.0 4.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sgl {
    /// Address, or offset.
    pub address: le::U64,
    /// Bytes.
    pub length: le::U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type and subtype.
    pub kind: u8,
}

/// A submission queue entry (NVMe Base 2.0 3.3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// Operation code.
    pub opcode: u8,
    /// Fused operation, and how the data is described.
    pub flags: u8,
    /// Command identifier.
    pub cid: le::U16,
    /// Namespace identifier; of Fabrics commands the first byte is their type.
    pub nsid: le::U32,
    /// Command dwords 2 and 3.
    pub cdw2: [le::U32; 2],
    /// Metadata pointer.
    pub metadata: le::U64,
    /// Where the data is.
    pub sgl: Sgl,
    /// Command dwords 10 to 15.
    pub cdw10: [le::U32; 6],
}

const _: () = assert!(size_of::<Sqe>() == SQE_LEN);

/// Flags: which half of a fused operation.
pub const FUSE: u8 = 0x03;
/// The first half.
pub const FUSE_FIRST: u8 = 0x01;
/// The second half.
pub const FUSE_SECOND: u8 = 0x02;

/// The operation code of all Fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// The direction of the data transfer of a command: two bits of its operation code (NVMe Base 2.0 3.3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// No data transfer.
    None,
    /// To the controller.
    Out,
    /// To the host.
    In,
}

impl Sqe {
    /// Command dword 10 to 15.
    ///
    /// # Panics
    /// For another one.
    #[must_use]
    pub fn cdw(&self, number: usize) -> u32 {
        self.cdw10[number - 10].get()
    }

    /// Two dwords, the lower one first.
    #[must_use]
    pub fn cdw_pair(&self, number: usize) -> u64 {
        u64::from(self.cdw(number + 1)) << 32 | u64::from(self.cdw(number))
    }

    /// The type of a Fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.as_bytes()[0]
    }

    /// PRP entries 1 and 2 (NVMe Base 2.0 4.1.1): the bytes that are an SGL descriptor otherwise.
    #[must_use]
    pub fn prp(&self) -> [u64; 2] {
        let both: [le::U64; 2] = zerocopy::transmute!(self.sgl);
        both.map(le::U64::get)
    }

    /// The direction of its data transfer.
    #[must_use]
    pub fn direction(&self) -> Direction {
        let code = if self.opcode == FABRICS { self.fabrics_type() } else { self.opcode };
        match code & 0x03 {
            1 => Direction::Out,
            2 => Direction::In,
            // No command transfers data in both directions.
            _ => Direction::None,
        }
    }
}

codes! {
    /// The status of a command: status code type and status code (NVMe Base 2.0 3.3.3.2.1). Where two command sets give
    /// one number different meanings both have a name. Invalid Protection Information has its Do Not Retry in it, for
    /// it shares its number with a refusal of Connect that passes.
    pub struct Status(u16) {
        SUCCESS = 0x000, INVALID_OPCODE = 0x001, INVALID_FIELD = 0x002, ID_CONFLICT = 0x003, TRANSFER_ERROR = 0x004,
        INTERNAL_ERROR = 0x006, ABORTED = 0x007, QUEUE_DELETED = 0x008, FUSED_FAILED = 0x009, FUSED_MISSING = 0x00a,
        INVALID_NAMESPACE = 0x00b, SEQUENCE_ERROR = 0x00c, SGL_SEGMENT = 0x00d,
        SGL_COUNT = 0x00e, PRP_OFFSET = 0x013, SGL_LENGTH = 0x00f,
        SGL_TYPE = 0x011, OPERATION_DENIED = 0x015, SGL_OFFSET = 0x016, HOST_INCONSISTENT = 0x018,
        PREEMPTED = 0x01b, SANITIZE_FAILED = 0x01c, SANITIZE_IN_PROGRESS = 0x01d, WRITE_PROTECTED = 0x020,
        INTERRUPTED = 0x021, TRANSPORT_ERROR = 0x022,
        LBA_RANGE = 0x080, CAPACITY = 0x081, NOT_READY = 0x082, RESERVATION_CONFLICT = 0x083, FORMATTING = 0x084,
        INVALID_COMPLETION_QUEUE = 0x100, INVALID_VECTOR = 0x108, INVALID_DELETION = 0x10c,
        INVALID_QUEUE = 0x101, QUEUE_SIZE = 0x102, ABORT_LIMIT = 0x103, EVENT_LIMIT = 0x105, INVALID_LOG_PAGE = 0x109,
        INVALID_FORMAT = 0x10a, NOT_SAVEABLE = 0x10d, NOT_CHANGEABLE = 0x10e, NOT_PER_NAMESPACE = 0x10f,
        INSUFFICIENT_CAPACITY = 0x115, IDENTIFIER_UNAVAILABLE = 0x116, ALREADY_ATTACHED = 0x118, IS_PRIVATE = 0x119,
        NOT_ATTACHED = 0x11a, THIN_PROVISIONING = 0x11b, CONTROLLER_LIST = 0x11c,
        CONNECT_FORMAT = 0x180, CONNECT_BUSY = 0x181, CONNECT_PARAMETERS = 0x182, CONNECT_HOST = 0x184,
        AUTHENTICATION_REQUIRED = 0x191,
        CONFLICTING_ATTRIBUTES = 0x180, INVALID_PROTECTION = 0x4181, COMMAND_SIZE = 0x183, INCOMPATIBLE = 0x185,
        QUEUE_TYPE = 0x185,
        WRITE_FAULT = 0x280, READ_ERROR = 0x281, GUARD_CHECK = 0x282, APPLICATION_CHECK = 0x283,
        REFERENCE_CHECK = 0x284,
        COMPARE_FAILURE = 0x285, UNWRITTEN = 0x287,
        PERSISTENT_LOSS = 0x301, INACCESSIBLE = 0x302, TRANSITION = 0x303,
    }
}

/// Do Not Retry: the same command would fail again.
const DO_NOT_RETRY: u16 = 0x4000;

/// The Error Information log has more information (M).
const MORE: u16 = 0x2000;

impl Status {
    /// The status with the bit M set.
    #[must_use]
    pub fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Status code type and status code alone.
    #[must_use]
    pub fn code(self) -> Self {
        Self(self.0 & !MORE)
    }

    /// Whether the same command may succeed later.
    #[must_use]
    pub fn is_transient(self) -> bool {
        const LATER: [Status; 16] = [
            Status::SUCCESS,
            Status::TRANSFER_ERROR,
            Status::INTERNAL_ERROR,
            Status::ABORTED,
            Status::QUEUE_DELETED,
            Status::PREEMPTED,
            Status::INTERRUPTED,
            Status::TRANSPORT_ERROR,
            Status::NOT_READY,
            Status::FORMATTING,
            Status::SANITIZE_IN_PROGRESS,
            Status::CONNECT_BUSY,
            Status::WRITE_FAULT,
            Status::READ_ERROR,
            Status::INACCESSIBLE,
            Status::TRANSITION,
        ];
        LATER.contains(&self.code())
    }

    /// The status field of a completion, without its phase: bits 15:1 of the entry's last word.
    #[must_use]
    pub fn field(self) -> u16 {
        let again = if self.is_transient() { 0 } else { DO_NOT_RETRY };
        (self.0 | again) << 1
    }
}

/// The failure of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// Dword 0 of the completion.
    pub result: u32,
    /// The first logical block that failed, if known.
    pub block: Option<u64>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, result: 0, block: None }
    }
}

/// A command as its transport received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The submission queue entry.
    pub sqe: Sqe,
    /// Bytes that the host sends; no more than these are pulled.
    pub sent: u32,
    /// Bytes that the host has room for.
    pub room: u32,
}

/// The completion of a command.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data that travels with the status.
    pub final_data: FinalData,
    /// The command has no completion yet: it waits for an event, and the controller completes it
    /// ([`Controller::event`](crate::controller::Controller::event)).
    pub parked: bool,
}

impl Default for Reply {
    fn default() -> Self {
        Self::of(Status::SUCCESS)
    }
}

impl Reply {
    /// A reply without data.
    #[must_use]
    pub fn of(status: Status) -> Self {
        Self { status, result: 0, final_data: FinalData::default(), parked: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn the_fields_of_an_entry() {
        let mut bytes = [0xa5; SQE_LEN];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
        assert_eq!((sqe.opcode, sqe.flags, sqe.cid.get(), sqe.nsid.get()), (0, 1, 0x0302, 0x0706_0504));
        assert_eq!(
            (sqe.sgl.address.get(), sqe.sgl.length.get(), sqe.sgl.kind),
            (0x1f1e_1d1c_1b1a_1918, 0x2322_2120, 39)
        );
        assert_eq!((sqe.cdw(10), sqe.cdw(15), sqe.cdw_pair(10)), (0x2b2a_2928, 0x3f3e_3d3c, 0x2f2e_2d2c_2b2a_2928));
        assert_eq!(sqe.fabrics_type(), 4);
        assert_eq!(sqe.prp(), [0x1f1e_1d1c_1b1a_1918, 0x2726_2524_2322_2120]);
    }

    #[test]
    fn statuses_say_whether_to_try_again() {
        assert_eq!(Status::SUCCESS.field(), 0);
        assert_eq!(Status::INVALID_OPCODE.field(), 0x8002);
        assert_eq!(Status::INACCESSIBLE.field(), 0x0604);
        assert_eq!(Status::COMPARE_FAILURE.field(), 0x850a);
        assert_eq!((Status::INVALID_PROTECTION.field(), Status::CONNECT_BUSY.field()), (0x8302, 0x0302));
    }

    #[test]
    fn opcodes_determine_the_direction_of_data() {
        let mut sqe = Sqe::new_zeroed();
        for (opcode, kind, way) in [
            (1, 0, Direction::Out),
            (2, 0, Direction::In),
            (0, 0, Direction::None),
            (FABRICS, 1, Direction::Out),
            (FABRICS, 4, Direction::None),
            (FABRICS, 6, Direction::In),
        ] {
            (sqe.opcode, sqe.nsid) = (opcode, le::U32::new(kind));
            assert_eq!(sqe.direction(), way, "{opcode:02x} {kind}");
        }
    }
}
