//! Requests of a disk (virtio-blk) in the memory of their slots: header, range, status and identity.

use crate::disk::PIECES_MAX;
use crate::form::{Form, Pieces, SlotMemory};
use crate::lane::{Answer, Lane};
use crate::layout::{Layout, Room};
use lunar_blk::{Code, Error};
use lunar_vhost_user::blk::{HEADER_LEN, Header, ID_LEN, IDENTITY_LEN, SECTOR, Segment, Status, Type, UNMAP};
use zerocopy::IntoBytes;

/// The places of the parts of a request: the header is at the start.
const SEGMENT_AT: usize = HEADER_LEN;
const STATUS_AT: usize = SEGMENT_AT + size_of::<Segment>();
const IDENTITY_AT: usize = STATUS_AT + 4;
const _: () = assert!(IDENTITY_AT + IDENTITY_LEN <= Blk::CONTROL);
/// The status before the back-end has written one.
const NO_STATUS: u8 = 0xff;

/// A request to a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRequest {
    /// The command: [`Code::Read`], [`Code::Write`], [`Code::Flush`], [`Code::Discard`], [`Code::WriteZeroes`] or
    /// [`Code::Identify`].
    pub code: Code,
    /// The first byte of the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether a write of zeroes may deallocate.
    pub unmap: bool,
}

/// The requests of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Blk;

/// The requests of one ring of a disk.
pub type DiskLane = Lane<Blk>;

/// The answer to a request of a disk.
pub type DiskAnswer = Answer<Result<(), Error>>;

impl Layout {
    /// A layout for so many queues of a disk, with so many slots for requests with `buffer` bytes of data each, and one
    /// slot without data. `None`: there is no such ring.
    #[must_use]
    pub fn new(queues: u16, slots: u16, buffer: usize) -> Option<Self> {
        Self::with_room(queues, slots, buffer, Room { pieces: PIECES_MAX, control: Blk::CONTROL })
    }
}

impl Form for Blk {
    type Request = DiskRequest;
    type End = Result<(), Error>;

    // Two cache lines. The second has the end of the identity, which no read or write uses.
    const CONTROL: usize = 128;

    #[inline]
    fn data_len(request: &DiskRequest) -> Option<u64> {
        matches!(request.code, Code::Read | Code::Write).then_some(request.len)
    }

    fn describe(slot: &SlotMemory<'_>, request: &DiskRequest, pieces: &mut Pieces) -> bool {
        let (kind, is_written) = match request.code {
            Code::Read => (Type::IN, true),
            Code::Write => (Type::OUT, false),
            Code::Flush => (Type::FLUSH, false),
            Code::Discard => (Type::DISCARD, false),
            Code::WriteZeroes => (Type::WRITE_ZEROES, false),
            Code::Identify => (Type::GET_ID, true),
            _ => return false,
        };
        let sector = if matches!(request.code, Code::Read | Code::Write) { request.offset / SECTOR } else { 0 };
        let header = Header { kind: kind.0.into(), priority: 0.into(), sector: sector.into() };
        let mut is_there = slot.write(0, header.as_bytes());
        pieces.push(slot.part(0, HEADER_LEN, false));
        match request.code {
            // No more than the memory of the slot.
            Code::Read | Code::Write => pieces.push_data((slot.place.data, request.len as usize, is_written)),
            Code::Discard | Code::WriteZeroes => {
                let Ok(sectors) = u32::try_from(request.len / SECTOR) else { return false };
                let flags = if request.unmap && request.code == Code::WriteZeroes { UNMAP } else { 0 };
                let sector = (request.offset / SECTOR).into();
                let segment = Segment { sector, sectors: sectors.into(), flags: flags.into() };
                is_there &= slot.write(SEGMENT_AT, segment.as_bytes());
                pieces.push(slot.part(SEGMENT_AT, size_of::<Segment>(), is_written));
            }
            Code::Identify => {
                // A back-end that returns less must not leave there what another one has written.
                is_there &= slot.write(IDENTITY_AT, &[0; IDENTITY_LEN]);
                pieces.push(slot.part(IDENTITY_AT, IDENTITY_LEN, is_written));
            }
            _ => {}
        }
        pieces.push(slot.part(STATUS_AT, 1, true));
        is_there
    }

    #[inline]
    fn clear_answer(slot: &SlotMemory<'_>) {
        // The parts lie within the memory, which is writable.
        let _ = slot.write(STATUS_AT, &[NO_STATUS]);
    }

    #[inline]
    fn end(slot: &SlotMemory<'_>) -> Result<(), Error> {
        let mut status = [NO_STATUS];
        let is_there = slot.read(STATUS_AT, &mut status);
        match Status(status[0]) {
            Status::OK if is_there => Ok(()),
            Status::UNSUPP => Err(Error::Unsupported),
            _ => Err(Error::IoError),
        }
    }
}

impl Lane<Blk> {
    /// The UUID of the volume, which the back-end has written for the request of a slot; `None`: it does not tell it.
    #[must_use]
    pub fn uuid(&self, slot: u16) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        let is_there = self.slot_memory(slot).read(IDENTITY_AT + ID_LEN, &mut bytes);
        (is_there && bytes != [0; 16]).then_some(bytes)
    }
}
