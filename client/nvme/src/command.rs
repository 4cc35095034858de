//! Entries of commands that hosts need: NVMe Base 2.0, NVM Command Set 1.0, NVMe over Fabrics.

use lunar_core::wire::le;
use lunar_nvme::command::{FABRICS, Sqe};
use lunar_nvme::connect::ConnectData;
use zerocopy::{FromZeros, IntoBytes};

/// Operation codes.
pub mod opcode {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Create I/O Submission Queue (admin).
    pub const CREATE_SUBMISSIONS: u8 = 0x01;
    /// Get Log Page (admin).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Create I/O Completion Queue (admin).
    pub const CREATE_COMPLETIONS: u8 = 0x05;
    /// Identify (admin).
    pub const IDENTIFY: u8 = 0x06;
    /// Set Features (admin).
    pub const SET_FEATURES: u8 = 0x09;
    /// Keep Alive (admin).
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Doorbell Buffer Config (admin).
    pub const DOORBELL_BUFFERS: u8 = 0x7c;
}

/// Types of Fabrics commands.
mod fabrics {
    pub(super) const PROPERTY_SET: u32 = 0x00;
    pub(super) const CONNECT: u32 = 0x01;
    pub(super) const PROPERTY_GET: u32 = 0x04;
    pub(super) const AUTHENTICATION_SEND: u32 = 0x05;
    pub(super) const AUTHENTICATION_RECEIVE: u32 = 0x06;
}

/// Dword 12 of reads and writes: force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Dword 12 of Write Zeroes: the blocks may be deallocated.
const DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of Dataset Management: deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 0x04;
/// CATTR: the host does not want to know how far the queue was read.
const NO_FLOW_CONTROL: u32 = 0x04;
/// Dword 11 of the commands that create queues: it lies in one piece; it raises interrupts.
const CONTIGUOUS: u32 = 0x01;
const INTERRUPTS: u32 = 0x02;
/// The number of queues (NVMe Base 2.0 5.27.1.5).
const FEATURE_QUEUES: u32 = 0x07;

/// An entry of zeroes but for its code and namespace.
#[must_use]
pub fn entry(opcode: u8, namespace: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.nsid) = (opcode, namespace.into());
    sqe
}

/// An entry with its first command dwords, from dword 10 on.
#[must_use]
pub fn with(opcode: u8, namespace: u32, dwords: &[u32]) -> Sqe {
    let mut sqe = entry(opcode, namespace);
    sqe.cdw10.iter_mut().zip(dwords).for_each(|(dword, value)| dword.set(*value));
    sqe
}

/// A command on blocks. There are 1 to 65536.
#[must_use]
pub fn blocks(opcode: u8, namespace: u32, lba: u64, blocks: u32, flags: u32) -> Sqe {
    with(opcode, namespace, &[lba as u32, (lba >> 32) as u32, blocks.wrapping_sub(1) & 0xffff | flags])
}

/// Read.
#[must_use]
pub fn read(namespace: u32, lba: u64, count: u32, fua: bool) -> Sqe {
    blocks(opcode::READ, namespace, lba, count, if fua { FORCE_UNIT_ACCESS } else { 0 })
}

/// Write.
#[must_use]
pub fn write(namespace: u32, lba: u64, count: u32, fua: bool) -> Sqe {
    blocks(opcode::WRITE, namespace, lba, count, if fua { FORCE_UNIT_ACCESS } else { 0 })
}

/// Write Zeroes; the blocks may be deallocated or must not.
#[must_use]
pub fn write_zeroes(namespace: u32, lba: u64, count: u32, deallocate: bool) -> Sqe {
    blocks(opcode::WRITE_ZEROES, namespace, lba, count, if deallocate { DEALLOCATE } else { 0 })
}

/// Dataset Management that deallocates one range, with its data.
#[must_use]
pub fn deallocate(namespace: u32, lba: u64, count: u32) -> (Sqe, [u8; 16]) {
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&count.to_le_bytes());
    range[8..].copy_from_slice(&lba.to_le_bytes());
    (with(opcode::DATASET_MANAGEMENT, namespace, &[0, ATTRIBUTE_DEALLOCATE]), range)
}

/// Flush.
#[must_use]
pub fn flush(namespace: u32) -> Sqe {
    entry(opcode::FLUSH, namespace)
}

/// Identify: what (CNS) of which namespace.
#[must_use]
pub fn identify(what: u8, namespace: u32) -> Sqe {
    with(opcode::IDENTIFY, namespace, &[what.into()])
}

/// Get Log Page: so many bytes, whole words, from this one on.
#[must_use]
pub fn log_page(page: u8, offset: u32, bytes: u32) -> Sqe {
    let words = (bytes / 4).wrapping_sub(1);
    with(opcode::GET_LOG_PAGE, 0, &[u32::from(page) | words << 16, words >> 16, offset])
}

/// Set Features: so many I/O queues.
#[must_use]
pub fn set_queues(count: u16) -> Sqe {
    let last = u32::from(count.saturating_sub(1));
    with(opcode::SET_FEATURES, 0, &[FEATURE_QUEUES, last | last << 16])
}

/// Property Get.
#[must_use]
pub fn property_get(offset: u32, eight: bool) -> Sqe {
    with(FABRICS, fabrics::PROPERTY_GET, &[eight.into(), offset])
}

/// Property Set, of four bytes.
#[must_use]
pub fn property_set(offset: u32, value: u32) -> Sqe {
    with(FABRICS, fabrics::PROPERTY_SET, &[0, offset, value])
}

/// Dword 10: NVMe's own security protocol, and the one value of what is specific to it.
const AUTHENTICATION: u32 = 0xe901_0100;

/// Authentication Send, of so many bytes.
#[must_use]
pub fn authentication_send(bytes: u32) -> Sqe {
    with(FABRICS, fabrics::AUTHENTICATION_SEND, &[AUTHENTICATION, bytes])
}

/// Authentication Receive, with room for so many bytes.
#[must_use]
pub fn authentication_receive(bytes: u32) -> Sqe {
    with(FABRICS, fabrics::AUTHENTICATION_RECEIVE, &[AUTHENTICATION, bytes])
}

/// What a Fabrics command does with a property, which is a register of a controller in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// Reads the one at this offset, of eight bytes if so.
    Get(u32, bool),
    /// Writes the one at this offset, of four bytes.
    Set(u32, u32),
}

/// What this command does with a property, if it is about one.
#[must_use]
pub fn property(sqe: &Sqe) -> Option<Property> {
    match (sqe.opcode, sqe.nsid.get()) {
        (FABRICS, fabrics::PROPERTY_GET) => Some(Property::Get(sqe.cdw(11), sqe.cdw(10) & 1 != 0)),
        (FABRICS, fabrics::PROPERTY_SET) => Some(Property::Set(sqe.cdw(11), sqe.cdw(12))),
        _ => None,
    }
}

/// The same entry with both of its pointers to data in pages.
#[must_use]
pub fn in_pages(mut sqe: Sqe, [first, second]: [u64; 2]) -> Sqe {
    let [second_low, second_high] = [second as u32, (second >> 32) as u32];
    sqe.sgl.address = first.into();
    sqe.sgl.length = second_low.into();
    let [a, b, c, kind] = second_high.to_le_bytes();
    (sqe.sgl.reserved, sqe.sgl.kind) = ([a, b, c], kind);
    sqe
}

/// Create I/O Completion Queue: of so many entries at `address`, with this interrupt.
#[must_use]
pub fn create_completions(id: u16, entries: u16, address: u64, vector: Option<u16>) -> Sqe {
    let interrupts = vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16);
    let queue = u32::from(id) | u32::from(entries.wrapping_sub(1)) << 16;
    in_pages(with(opcode::CREATE_COMPLETIONS, 0, &[queue, CONTIGUOUS | interrupts]), [address, 0])
}

/// Create I/O Submission Queue: of so many entries at `address`, which completes in the queue of the same number.
#[must_use]
pub fn create_submissions(id: u16, entries: u16, address: u64) -> Sqe {
    let queue = u32::from(id) | u32::from(entries.wrapping_sub(1)) << 16;
    in_pages(with(opcode::CREATE_SUBMISSIONS, 0, &[queue, CONTIGUOUS | u32::from(id) << 16]), [address, 0])
}

/// Doorbell Buffer Config: both pages.
#[must_use]
pub fn doorbell_buffers(doorbells: u64, events: u64) -> Sqe {
    in_pages(entry(opcode::DOORBELL_BUFFERS, 0), [doorbells, events])
}

/// How a queue is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The queue: 0 is the admin queue, and makes a controller.
    pub queue: u16,
    /// Its entries: 32 at least for an admin queue.
    pub entries: u16,
    /// Whose queue it is; [`ANY_CONTROLLER`] for an admin queue.
    pub controller: u16,
    /// How long the host may be silent, in milliseconds; 0: for ever.
    pub keep_alive: u32,
    /// Whether the host is told how far the queue was read.
    pub flow_control: bool,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NQN of the host.
    pub host: String,
    /// Identifier of the host.
    pub host_id: [u8; 16],
}

/// The controller identifier that asks for any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

impl Connect {
    /// The entry and its data. Names that are too long are cut, and refused.
    #[must_use]
    pub fn entry(&self) -> (Sqe, Vec<u8>) {
        let attributes = if self.flow_control { 0 } else { NO_FLOW_CONTROL };
        let (queue, last) = (u32::from(self.queue), u32::from(self.entries.wrapping_sub(1)));
        let sqe = with(FABRICS, fabrics::CONNECT, &[queue << 16, last | attributes << 16, self.keep_alive]);
        let mut data = ConnectData::new_zeroed();
        (data.host, data.controller) = (self.host_id, le::U16::new(self.controller));
        for (field, name) in [(&mut data.subsystem, &self.subsystem), (&mut data.host_nqn, &self.host)] {
            let len = name.len().min(field.len());
            field[..len].copy_from_slice(&name.as_bytes()[..len]);
        }
        (sqe, data.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_on_blocks() {
        let sqe = write(7, 0x1_2345_6789, 8, true);
        let golden =
            [&[1, 0, 0, 0, 7, 0, 0, 0][..], &[0; 32], &[0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0, 7, 0, 0, 0x40], &[0; 12]];
        assert_eq!(sqe.as_bytes(), golden.concat());
        assert_eq!((read(1, 0, 65536, false).cdw(12), write_zeroes(1, 9, 1, true).cdw(12)), (0xffff, DEALLOCATE));
        let (sqe, range) = deallocate(3, 5, 6);
        assert_eq!((sqe.cdw(10), sqe.cdw(11)), (0, 4));
        assert_eq!(range, [0, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn admin_commands() {
        assert_eq!((log_page(0x70, 0, 8192).cdw(10), log_page(2, 0, 1 << 19).cdw(11)), (0x07ff_0070, 1));
        assert_eq!(log_page(0x70, 32768, 8192).cdw(12), 32768);
        assert_eq!((set_queues(4).cdw(10), set_queues(4).cdw(11)), (7, 0x3_0003));
        assert_eq!((property_get(0, true).cdw(10), property_set(0x14, 9).cdw(12)), (1, 9));
        assert_eq!(property(&property_get(0x1c, false)), Some(Property::Get(0x1c, false)));
        assert_eq!(property(&property_set(0x14, 9)), Some(Property::Set(0x14, 9)));
        assert_eq!(property(&entry(FABRICS, 1)), None);
    }

    #[test]
    fn queues_in_memory() {
        let sqe = create_completions(3, 128, 0x1_2345_6000, Some(2));
        assert_eq!((sqe.opcode, sqe.cdw(10), sqe.cdw(11)), (5, 0x7f_0003, 0x2_0003));
        assert_eq!(create_completions(3, 128, 0, None).cdw(11), 1);
        let sqe = create_submissions(3, 128, 0);
        assert_eq!((sqe.opcode, sqe.cdw(10), sqe.cdw(11)), (1, 0x7f_0003, 0x3_0001));
        let golden = [0, 0x60, 0x45, 0x23, 1, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 1];
        assert_eq!(doorbell_buffers(0x1_2345_6000, 0x0123_4567_89ab_cdef).sgl.as_bytes(), golden);
    }

    #[test]
    fn connect() {
        let connect = Connect {
            queue: 3,
            entries: 128,
            controller: 0x102,
            keep_alive: 15000,
            flow_control: false,
            subsystem: "nqn.x:y".into(),
            host: "nqn.h".into(),
            host_id: [9; 16],
        };
        let (sqe, data) = connect.entry();
        assert_eq!(sqe.as_bytes()[..8], [0x7f, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(sqe.as_bytes()[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x98, 0x3a, 0, 0]);
        assert_eq!((data.len(), &data[14..20], &data[256..264]), (1024, &[9, 9, 2, 1, 0, 0][..], &b"nqn.x:y\0"[..]));
        assert_eq!(&data[512..518], b"nqn.h\0");
    }
}
