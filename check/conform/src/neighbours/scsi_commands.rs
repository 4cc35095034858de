//! The commands of SCSI attackers, for all transports of SCSI.

use super::transport::{LARGE_BLOCKS, Request, SMALL_BLOCKS, volume};
use crate::session::cdb;

/// Most blocks of one UNMAP, VERIFY and WRITE SAME (VPD page B0h).
const UNMAP_BLOCKS: u32 = 1 << 20;
const UNMAP_DESCRIPTORS: u32 = 255;
const VERIFY_BLOCKS: u32 = (1 << 30) / 512;
/// Blocks of one segment of EXTENDED COPY.
const SEGMENT: u16 = 32_768;
/// Blocks of a scattered read: one for each piece of the longest scatter list.
pub(super) const SCATTERED_BLOCKS: u32 = 1024;
/// INQUIRY of VPD page 83h, which names the logical unit.
pub(super) const IDENTIFICATION: [u8; 6] = [0x12, 1, 0x83, 4, 0, 0];

/// The data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    None,
    /// So many bytes from the logical unit.
    In(u32),
    /// Bytes to the logical unit, which are few.
    Out(Vec<u8>),
    /// So many zeroes to the logical unit.
    Zeroes(u32),
}

/// A command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) cdb: Vec<u8>,
    pub(super) payload: Payload,
}

/// The logical unit of a request.
pub(super) fn unit(request: Request) -> u16 {
    match request {
        Request::Unmap | Request::Verify | Request::Compare | Request::CompareAndWrite | Request::Flush => {
            volume::LARGE
        }
        Request::Format | Request::Sanitize => volume::REWRITTEN,
        _ => volume::SMALL,
    }
}

/// The command of a request; `None` if SCSI has none that is the same for all transports. `count`: requests before this
/// one; `names`: the CSCD descriptor of the unit, for copies.
pub(super) fn command(request: Request, count: u32, names: &[u8]) -> Option<Command> {
    let make = |cdb: &[u8], payload| Some(Command { cdb: cdb.to_vec(), payload });
    match request {
        Request::LongRead => make(&cdb::read(0, 2048), Payload::In(1 << 20)),
        Request::ScatteredRead => make(&cdb::read(0, SCATTERED_BLOCKS), Payload::In(SCATTERED_BLOCKS * 512)),
        Request::Write => make(&cdb::write(64, 2048), Payload::Zeroes(1 << 20)),
        Request::Describe if count.is_multiple_of(2) => make(&IDENTIFICATION, Payload::In(1024)),
        Request::Describe => make(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], Payload::In(1024)),
        Request::Verify => make(&long(0x8f, 0, VERIFY_BLOCKS), Payload::None),
        Request::Format => make(&[4, 0, 0, 0, 0, 0], Payload::None),
        Request::Flush => make(&cdb::synchronize_cache(), Payload::None),
        // The operation code is vendor specific.
        Request::Unknown => make(&[0xff; 16], Payload::None),
        _ => {
            let (cdb, data) = with_parameters(request, count, names)?;
            make(&cdb, Payload::Out(data))
        }
    }
}

/// Commands with parameter data, or with one block of data.
fn with_parameters(request: Request, count: u32, names: &[u8]) -> Option<([u8; 16], Vec<u8>)> {
    Some(match request {
        Request::Unmap => unmap(),
        Request::WriteSame => (long(0x93, 0, SMALL_BLOCKS), vec![0x5a; 512]),
        Request::Compare => {
            let mut cdb = long(0x8f, 0, VERIFY_BLOCKS);
            // BYTCHK 11b: each block is compared with one block.
            cdb[1] = 0x06;
            (cdb, vec![0; 512])
        }
        Request::Copy => copy(names, (count % 255) as u8),
        Request::Sanitize => {
            // OVERWRITE with one pass, and IMMED.
            let mut cdb = [0; 16];
            (cdb[0], cdb[1], cdb[8]) = (0x48, 0x81, 8);
            (cdb, vec![1, 0, 0, 4, 0xa5, 0xa5, 0xa5, 0xa5])
        }
        Request::Register => {
            // REGISTER AND IGNORE EXISTING KEY.
            let (mut cdb, mut data) = ([0; 16], vec![0; 24]);
            (cdb[0], cdb[1], cdb[8]) = (0x5f, 6, 24);
            data[12..16].copy_from_slice(&count.to_be_bytes());
            (cdb, data)
        }
        Request::CompareAndWrite => {
            let mut cdb = long(0x89, 0, 0);
            cdb[13] = 1;
            (cdb, vec![0; 1024])
        }
        _ => return None,
    })
}

/// A CDB of 16 bytes with the LBA in bytes 2 to 9 and the number of blocks in bytes 10 to 13.
fn long(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn unmap() -> ([u8; 16], Vec<u8>) {
    let blocks = UNMAP_BLOCKS / (UNMAP_DESCRIPTORS + 1);
    let distance = LARGE_BLOCKS / UNMAP_DESCRIPTORS;
    let ranges = (0..UNMAP_DESCRIPTORS).flat_map(|number| {
        let lba = u64::from(number * distance).to_be_bytes();
        [&lba[..], &blocks.to_be_bytes(), &[0; 4]].concat()
    });
    let ranges: Vec<u8> = ranges.collect();
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    let list = [&length(ranges.len() + 6)[..], &length(ranges.len()), &[0; 4], &ranges].concat();
    let mut cdb = [0; 16];
    cdb[0] = 0x42;
    cdb[7..9].copy_from_slice(&length(list.len()));
    (cdb, list)
}

/// EXTENDED COPY (LID1) of the first half of the small unit to its second half.
fn copy(names: &[u8], list_id: u8) -> ([u8; 16], Vec<u8>) {
    let mut segments = Vec::new();
    for from in [0, u64::from(SEGMENT)] {
        segments.extend([0x02, 0, 0, 0x18, 0, 0, 0, 0, 0, 0]);
        segments.extend(SEGMENT.to_be_bytes());
        segments.extend([from, from + u64::from(SMALL_BLOCKS / 2)].map(u64::to_be_bytes).concat());
    }
    let mut list = vec![list_id, 0, 0, names.len() as u8, 0, 0, 0, 0, 0, 0, 0, segments.len() as u8, 0, 0, 0, 0];
    list.extend([names, &segments].concat());
    (long(0x83, 0, list.len() as u32), list)
}

/// The requests whose commands must end with GOOD when they are sent alone.
pub(super) const CHECKED: [Request; 12] = [
    Request::LongRead,
    Request::Describe,
    Request::Unmap,
    Request::WriteSame,
    Request::Verify,
    Request::Compare,
    Request::Copy,
    Request::CompareAndWrite,
    Request::Register,
    Request::Flush,
    Request::Format,
    Request::Sanitize,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_fields_at_the_specified_offsets() {
        let made = |request| command(request, 1, &[]).expect("SCSI has it");
        let verify = made(Request::Verify);
        assert_eq!((verify.cdb[0], &verify.cdb[10..14]), (0x8f, &[0, 0x20, 0, 0][..]));
        let Payload::Out(keys) = made(Request::Register).payload else { panic!("it has parameters") };
        assert_eq!((keys.len(), keys[15]), (24, 1));
        assert!(command(Request::Doorbell, 0, &[]).is_none() && command(Request::Abort, 0, &[]).is_none());
    }
}
