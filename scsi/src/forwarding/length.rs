//! The bytes that a CDB moves, if Lunar knows them: the device gets exactly as much memory. The data length that the
//! initiator expects may be shorter or longer.

use crate::command::Command;
use crate::peripheral::PeripheralType;

/// Direction and bytes of the data of a CDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moves {
    /// From the device.
    In(usize),
    /// To the device.
    Out(usize),
}

/// FIXED, in byte 1 of reads and writes of a tape: the length counts blocks of the length of the block descriptor.
const FIXED: u8 = 0x01;
/// RDPROTECT, WRPROTECT: protection information is transferred as well.
const PROTECT: u8 = 0xe0;

/// The data of a read or write; `None` for other commands, and while the length of blocks is not known.
pub(crate) fn of(device: PeripheralType, cdb: &[u8], block_length: u32) -> Option<Moves> {
    let block = (block_length > 0).then_some(block_length as usize);
    if device == PeripheralType::TAPE { tape(cdb, block) } else { disk(device, cdb, block?) }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn tape(cdb: &[u8], block: Option<usize>) -> Option<Moves> {
    let (length, is_fixed) = match cdb {
        [0x08 | 0x0a | 0x0f, flags, length @ .., _] if cdb.len() == 6 => (number(length), flags & FIXED != 0),
        [0x88 | 0x8a | 0x81, flags, ..] if cdb.len() >= 16 => (number(&cdb[12..15]), flags & FIXED != 0),
        _ => return None,
    };
    let bytes = if is_fixed { length.checked_mul(block?)? } else { length };
    Some(if matches!(cdb[0], 0x0a | 0x8a) { Moves::Out(bytes) } else { Moves::In(bytes) })
}

fn disk(device: PeripheralType, cdb: &[u8], block: usize) -> Option<Moves> {
    /// A transfer length of zero in a CDB of six bytes.
    const ALL_OF_SIX: usize = 256;
    let is_known = matches!(
        device,
        PeripheralType::DISK
            | PeripheralType::SIMPLE_DISK
            | PeripheralType::ZONED
            | PeripheralType::OPTICAL_MEMORY
            | PeripheralType::CD_DVD
    );
    let is_protected = cdb.len() > 6 && cdb[1] & PROTECT != 0;
    if !is_known || is_protected {
        return None;
    }
    let blocks = match *cdb.first()? {
        0x08 | 0x0a if device != PeripheralType::CD_DVD => match *cdb.get(4)? {
            0 => ALL_OF_SIX,
            blocks => blocks.into(),
        },
        0x28 | 0x2a => number(cdb.get(7..9)?),
        0xa8 | 0xaa => number(cdb.get(6..10)?),
        0x88 | 0x8a => number(cdb.get(10..14)?),
        _ => return None,
    };
    let bytes = blocks.checked_mul(block)?;
    Some(if matches!(cdb[0], 0x0a | 0x2a | 0xaa | 0x8a) { Moves::Out(bytes) } else { Moves::In(bytes) })
}

/// The data that the initiator expects, as if the CDB said so.
pub(crate) fn expected(command: &Command) -> Option<Moves> {
    match (command.data_in, command.data_out) {
        (0, 0) => None,
        (0, out) => Some(Moves::Out(out as usize)),
        (input, _) => Some(Moves::In(input as usize)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tapes_count_bytes_or_blocks() {
        let of = |cdb: &[u8], block| of(PeripheralType::TAPE, cdb, block);
        assert_eq!(of(&[0x08, 0, 1, 0, 0, 0], 0), Some(Moves::In(65536)));
        assert_eq!(of(&[0x0a, 0, 0, 0, 10, 0], 512), Some(Moves::Out(10)));
        assert_eq!(of(&[0x0a, 1, 0, 0, 10, 0], 1000), Some(Moves::Out(10_000)));
        assert_eq!(of(&[0x08, 1, 0, 0, 10, 0], 0), None, "blocks of a length that is not known");
        assert_eq!(of(&[0x88, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 512), Some(Moves::In(131_072)));
        assert_eq!(of(&[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 512), Some(Moves::Out(256)));
        assert_eq!(of(&[0x01, 0, 0, 0, 0, 0], 512), None);
    }

    #[test]
    fn disks_count_blocks() {
        let of = |cdb: &[u8]| of(PeripheralType::DISK, cdb, 512);
        assert_eq!(of(&[0x08, 0, 0, 0, 0, 0]), Some(Moves::In(131_072)));
        assert_eq!(of(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0]), Some(Moves::Out(4096)));
        assert_eq!(of(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 8, 0]), None, "with protection information");
        assert_eq!(of(&[0xa8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]), Some(Moves::In(1024)));
        assert_eq!(of(&[0x41, 0, 0, 0, 0, 0, 0, 0, 8, 0]), None);
    }

    proptest! {
        #[test]
        fn any_cdb_has_a_length_or_none(
            device in 0u8..32,
            cdb in prop::collection::vec(any::<u8>(), 0..32),
            block: u32,
        ) {
            let _ = of(PeripheralType(device), &cdb, block);
        }
    }
}
