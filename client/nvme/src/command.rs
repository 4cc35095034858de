//! Submission queue entries of the commands that hosts need: NVMe Base 2.0, NVM Command Set 1.0, NVMe over Fabrics.

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

/// Fabrics command types (FCTYPE).
mod fabrics {
    pub(super) const PROPERTY_SET: u32 = 0x00;
    pub(super) const CONNECT: u32 = 0x01;
    pub(super) const PROPERTY_GET: u32 = 0x04;
    pub(super) const AUTHENTICATION_SEND: u32 = 0x05;
    pub(super) const AUTHENTICATION_RECEIVE: u32 = 0x06;
}

/// Dword 12 of reads and writes: force unit access (FUA).
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Dword 12 of Write Zeroes: the blocks may be deallocated (DEAC).
const DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of Dataset Management: deallocate (AD).
const ATTRIBUTE_DEALLOCATE: u32 = 0x04;
/// CATTR of Connect: disable submission queue flow control.
const NO_FLOW_CONTROL: u32 = 0x04;
/// Dword 11 of the commands that create queues: physically contiguous (PC); interrupts enabled (IEN).
const CONTIGUOUS: u32 = 0x01;
const INTERRUPTS: u32 = 0x02;
/// Feature identifier: Number of Queues (NVMe Base 2.0 5.27.1.5).
const FEATURE_QUEUES: u32 = 0x07;

/// An entry with this operation code and namespace ID.
#[must_use]
pub fn entry(opcode: u8, namespace: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.nsid) = (opcode, namespace.into());
    sqe
}

/// The same with command dwords, from dword 10 on.
#[must_use]
pub fn with(opcode: u8, namespace: u32, dwords: &[u32]) -> Sqe {
    let mut sqe = entry(opcode, namespace);
    sqe.cdw10.iter_mut().zip(dwords).for_each(|(dword, value)| dword.set(*value));
    sqe
}

/// A command on 1 to 65536 logical blocks. `flags` are those of dword 12.
#[must_use]
pub fn blocks(opcode: u8, namespace: u32, lba: u64, blocks: u32, flags: u32) -> Sqe {
    with(opcode, namespace, &[lba as u32, (lba >> 32) as u32, blocks.wrapping_sub(1) & 0xffff | flags])
}

/// Read of `count` logical blocks.
#[must_use]
pub fn read(namespace: u32, lba: u64, count: u32, fua: bool) -> Sqe {
    blocks(opcode::READ, namespace, lba, count, if fua { FORCE_UNIT_ACCESS } else { 0 })
}

/// Write of `count` logical blocks.
#[must_use]
pub fn write(namespace: u32, lba: u64, count: u32, fua: bool) -> Sqe {
    blocks(opcode::WRITE, namespace, lba, count, if fua { FORCE_UNIT_ACCESS } else { 0 })
}

/// Write Zeroes of `count` logical blocks, which the controller may or must not deallocate.
#[must_use]
pub fn write_zeroes(namespace: u32, lba: u64, count: u32, deallocate: bool) -> Sqe {
    blocks(opcode::WRITE_ZEROES, namespace, lba, count, if deallocate { DEALLOCATE } else { 0 })
}

/// Dataset Management that deallocates one range. Returns the entry and its data.
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

/// Identify with this CNS value and namespace ID.
#[must_use]
pub fn identify(what: u8, namespace: u32) -> Sqe {
    with(opcode::IDENTIFY, namespace, &[what.into()])
}

/// Get Log Page of `bytes` bytes, a multiple of 4, from `offset` on.
#[must_use]
pub fn log_page(page: u8, offset: u32, bytes: u32) -> Sqe {
    let words = (bytes / 4).wrapping_sub(1);
    with(opcode::GET_LOG_PAGE, 0, &[u32::from(page) | words << 16, words >> 16, offset])
}

/// Set Features, Number of Queues: `count` I/O submission and completion queues.
#[must_use]
pub fn set_queues(count: u16) -> Sqe {
    let last = u32::from(count.saturating_sub(1));
    with(opcode::SET_FEATURES, 0, &[FEATURE_QUEUES, last | last << 16])
}

/// Property Get of the property at `offset`; of eight bytes if `eight`, else of four.
#[must_use]
pub fn property_get(offset: u32, eight: bool) -> Sqe {
    with(FABRICS, fabrics::PROPERTY_GET, &[eight.into(), offset])
}

/// Property Set of four bytes.
#[must_use]
pub fn property_set(offset: u32, value: u32) -> Sqe {
    with(FABRICS, fabrics::PROPERTY_SET, &[0, offset, value])
}

/// Dword 10 of the authentication commands: SECP E9h, SPSP0 and SPSP1 01h.
const AUTHENTICATION: u32 = 0xe901_0100;

/// Authentication Send of a message of `bytes` bytes.
#[must_use]
pub fn authentication_send(bytes: u32) -> Sqe {
    with(FABRICS, fabrics::AUTHENTICATION_SEND, &[AUTHENTICATION, bytes])
}

/// Authentication Receive with an allocation length of `bytes`.
#[must_use]
pub fn authentication_receive(bytes: u32) -> Sqe {
    with(FABRICS, fabrics::AUTHENTICATION_RECEIVE, &[AUTHENTICATION, bytes])
}

/// A property access. For a controller with queues in memory, properties are registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// Reads the property at this offset: eight bytes if the flag is set, else four.
    Get(u32, bool),
    /// Writes four bytes to the property at this offset.
    Set(u32, u32),
}

/// The property access of a Property Get or Property Set entry.
#[must_use]
pub fn property(sqe: &Sqe) -> Option<Property> {
    match (sqe.opcode, sqe.nsid.get()) {
        (FABRICS, fabrics::PROPERTY_GET) => Some(Property::Get(sqe.cdw(11), sqe.cdw(10) & 1 != 0)),
        (FABRICS, fabrics::PROPERTY_SET) => Some(Property::Set(sqe.cdw(11), sqe.cdw(12))),
        _ => None,
    }
}

/// The same entry with PRP 1 and PRP 2 as its data pointer.
#[must_use]
pub fn in_pages(mut sqe: Sqe, [first, second]: [u64; 2]) -> Sqe {
    let [second_low, second_high] = [second as u32, (second >> 32) as u32];
    sqe.sgl.address = first.into();
    sqe.sgl.length = second_low.into();
    let [a, b, c, kind] = second_high.to_le_bytes();
    (sqe.sgl.reserved, sqe.sgl.kind) = ([a, b, c], kind);
    sqe
}

/// Create I/O Completion Queue with `entries` entries at `address`, and this interrupt vector.
#[must_use]
pub fn create_completions(id: u16, entries: u16, address: u64, vector: Option<u16>) -> Sqe {
    let interrupts = vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16);
    let queue = u32::from(id) | u32::from(entries.wrapping_sub(1)) << 16;
    in_pages(with(opcode::CREATE_COMPLETIONS, 0, &[queue, CONTIGUOUS | interrupts]), [address, 0])
}

/// Create I/O Submission Queue with `entries` entries at `address`; completes to the completion queue of the same ID.
#[must_use]
pub fn create_submissions(id: u16, entries: u16, address: u64) -> Sqe {
    let queue = u32::from(id) | u32::from(entries.wrapping_sub(1)) << 16;
    in_pages(with(opcode::CREATE_SUBMISSIONS, 0, &[queue, CONTIGUOUS | u32::from(id) << 16]), [address, 0])
}

/// Doorbell Buffer Config with both pages.
#[must_use]
pub fn doorbell_buffers(doorbells: u64, events: u64) -> Sqe {
    in_pages(entry(opcode::DOORBELL_BUFFERS, 0), [doorbells, events])
}

/// The parameters of Connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The queue ID; 0 is the admin queue and creates a controller.
    pub queue: u16,
    /// The number of entries; at least 32 for an admin queue.
    pub entries: u16,
    /// The controller ID; [`ANY_CONTROLLER`] for an admin queue.
    pub controller: u16,
    /// The keep-alive timeout (KATO), in milliseconds; 0 disables it.
    pub keep_alive: u32,
    /// Whether completions report the submission queue head.
    pub flow_control: bool,
    /// The NQN of the subsystem.
    pub subsystem: String,
    /// The NQN of the host.
    pub host: String,
    /// The host identifier.
    pub host_id: [u8; 16],
}

/// The controller ID that requests any controller (dynamic controller model).
pub const ANY_CONTROLLER: u16 = 0xffff;

impl Connect {
    /// The entry and its data. A name that is too long is truncated; the controller then refuses it.
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
    fn block_commands_have_the_layout_of_the_standard() {
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
    fn admin_and_fabrics_commands_have_the_layout_of_the_standard() {
        assert_eq!((log_page(0x70, 0, 8192).cdw(10), log_page(2, 0, 1 << 19).cdw(11)), (0x07ff_0070, 1));
        assert_eq!(log_page(0x70, 32768, 8192).cdw(12), 32768);
        assert_eq!((set_queues(4).cdw(10), set_queues(4).cdw(11)), (7, 0x3_0003));
        assert_eq!((property_get(0, true).cdw(10), property_set(0x14, 9).cdw(12)), (1, 9));
        assert_eq!(property(&property_get(0x1c, false)), Some(Property::Get(0x1c, false)));
        assert_eq!(property(&property_set(0x14, 9)), Some(Property::Set(0x14, 9)));
        assert_eq!(property(&entry(FABRICS, 1)), None);
    }

    #[test]
    fn queue_creation_has_the_layout_of_the_standard() {
        let sqe = create_completions(3, 128, 0x1_2345_6000, Some(2));
        assert_eq!((sqe.opcode, sqe.cdw(10), sqe.cdw(11)), (5, 0x7f_0003, 0x2_0003));
        assert_eq!(create_completions(3, 128, 0, None).cdw(11), 1);
        let sqe = create_submissions(3, 128, 0);
        assert_eq!((sqe.opcode, sqe.cdw(10), sqe.cdw(11)), (1, 0x7f_0003, 0x3_0001));
        let golden = [0, 0x60, 0x45, 0x23, 1, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 1];
        assert_eq!(doorbell_buffers(0x1_2345_6000, 0x0123_4567_89ab_cdef).sgl.as_bytes(), golden);
    }

    #[test]
    fn connect_has_the_layout_of_the_standard() {
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
