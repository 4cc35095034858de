//! The discovery log page (NVMe Base 2.0 5.16.1.23).

use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The log page identifier.
pub const PAGE: u8 = 0x70;
/// The length of a record, and of the header before the first record, in bytes.
pub const ENTRY_LEN: u32 = 1024;
/// Records that are read with one command: fits the smallest transfer size that controllers have been seen to allow.
pub const ENTRIES_MAX: u32 = 31;
/// Records of the longest log page that is read. No fabric is known to have as many.
pub const RECORDS_MAX: u32 = 4096;
/// Subtype of a record (SUBTYPE): an NVM subsystem.
const SUBSYSTEM: u8 = 2;
/// Transport types of a record (TRTYPE): RDMA and TCP.
pub const RDMA: u8 = 1;
/// See [`RDMA`].
pub const TCP: u8 = 3;

/// A record of the discovery log page (NVMe Base 2.0 5.16.1.23).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    transport: u8,
    family: u8,
    subtype: u8,
    head: [u8; 29],
    service: [u8; 32],
    reserved: [u8; 192],
    subsystem: [u8; 256],
    address: [u8; 256],
    specific: [u8; 256],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_LEN as usize && offset_of!(Entry, subsystem) == 256);

/// An NVM subsystem at one of its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveredSubsystem {
    /// The NQN.
    pub subsystem: String,
    /// The address of the port (TRADDR).
    pub address: String,
    /// The TCP port (TRSVCID).
    pub service: String,
}

/// The text in a field that is padded with zeroes or spaces.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}

/// The length of the whole log page, from its header, in bytes. `None` if it has more than [`RECORDS_MAX`] records.
#[must_use]
pub fn length(start: &[u8]) -> Option<u32> {
    let count = u32::try_from(records(start)).ok().filter(|count| *count <= RECORDS_MAX)?;
    Some((count + 1) * ENTRY_LEN)
}

/// The number of records (NUMREC), which follows the generation counter.
fn records(page: &[u8]) -> u64 {
    page.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The subsystems in a log page that are reached over this transport.
#[must_use]
pub fn subsystems(page: &[u8], transport: u8) -> Vec<DiscoveredSubsystem> {
    let entries = page.chunks_exact(ENTRY_LEN as usize);
    let count = usize::try_from(records(page)).unwrap_or(usize::MAX);
    let entries = entries.skip(1).take(count).filter_map(|bytes| Entry::ref_from_bytes(bytes).ok());
    entries
        .filter(|entry| entry.subtype == SUBSYSTEM && entry.transport == transport)
        .map(|entry| DiscoveredSubsystem {
            subsystem: text(&entry.subsystem),
            address: text(&entry.address),
            service: text(&entry.service),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_of_subsystems_over_a_transport_are_returned() {
        let mut page = vec![0; 4096];
        page[8] = 2;
        for (at, subtype, name) in [(1024, 3, "nqn.discovery"), (2048, 2, "nqn.a"), (3072, 2, "nqn.behind")] {
            (page[at], page[at + 2]) = (TCP, subtype);
            page[at + 32..at + 40].copy_from_slice(b"4420    ");
            page[at + 256..at + 256 + name.len()].copy_from_slice(name.as_bytes());
            page[at + 512..at + 521].copy_from_slice(b"10.0.0.1\0");
        }
        let want =
            DiscoveredSubsystem { subsystem: "nqn.a".into(), address: "10.0.0.1".into(), service: "4420".into() };
        assert_eq!((subsystems(&page, TCP), subsystems(&page, RDMA)), (vec![want], vec![]));
        assert_eq!((length(&page), length(&[]), length(&[255; 16])), (Some(3 * ENTRY_LEN), Some(ENTRY_LEN), None));
        assert_eq!((subsystems(&page[..2000], TCP).len(), subsystems(&[], TCP).len()), (0, 0));
    }
}
