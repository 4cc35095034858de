//! SCSI commands for a disk (SPC-4, SBC-3), and the meaning of their ends.

use lunar_core::io::Fault;
use lunar_sst_initiator::Command;
use lunar_sst_initiator::initiator::STATUS_BROKEN;
use std::rc::Rc;

/// Status codes.
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;
/// Bytes that INQUIRY, READ CAPACITY(16) and MODE SENSE(6) ask for.
const INQUIRY_LEN: u8 = 255;
const CAPACITY_LEN: u8 = 32;
/// EROFS: write-protected.
const EROFS: i32 = 30;
/// EREMOTEIO: an answer that Lunar does not expect.
const EREMOTEIO: i32 = 121;

/// The LUN of a number below 256 (peripheral device addressing).
pub(crate) fn lun_of(number: u8) -> [u8; 8] {
    [0, number, 0, 0, 0, 0, 0, 0]
}

/// Commands for one logical unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands {
    pub(crate) lun: [u8; 8],
}

/// A range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u32,
}

impl Commands {
    fn command(self, cdb: &[u8], data_in: u32, data_out: Option<Rc<[u8]>>) -> Command {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        Command { lun: self.lun, cdb: whole, task: 0, data_in, data_out }
    }

    /// A command with a range of blocks: operation code, flags of byte 1.
    fn ranged(self, code: u8, flags: u8, blocks: Blocks, data_in: u32, data_out: Option<Rc<[u8]>>) -> Command {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (code, flags);
        cdb[2..10].copy_from_slice(&blocks.lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.count.to_be_bytes());
        self.command(&cdb, data_in, data_out)
    }

    /// TEST UNIT READY.
    pub(crate) fn test_unit_ready(self) -> Command {
        self.command(&[0; 6], 0, None)
    }

    /// INQUIRY: the standard data, or a page of vital product data.
    pub(crate) fn inquiry(self, page: Option<u8>) -> Command {
        let cdb = [0x12, u8::from(page.is_some()), page.unwrap_or(0), 0, INQUIRY_LEN, 0];
        self.command(&cdb, INQUIRY_LEN.into(), None)
    }

    /// READ CAPACITY(16).
    pub(crate) fn read_capacity(self) -> Command {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, CAPACITY_LEN);
        self.command(&cdb, CAPACITY_LEN.into(), None)
    }

    /// MODE SENSE(6) of the caching mode page, without block descriptors.
    pub(crate) fn mode_sense_caching(self) -> Command {
        self.command(&[0x1a, 0x08, 0x08, 0, INQUIRY_LEN, 0], INQUIRY_LEN.into(), None)
    }

    /// READ(16), of so many bytes.
    pub(crate) fn read(self, blocks: Blocks, bytes: u32) -> Command {
        self.ranged(0x88, 0, blocks, bytes, None)
    }

    /// WRITE(16), perhaps with FUA.
    pub(crate) fn write(self, blocks: Blocks, data: Rc<[u8]>, durable: bool) -> Command {
        self.ranged(0x8a, if durable { 0x08 } else { 0 }, blocks, 0, Some(data))
    }

    /// SYNCHRONIZE CACHE(16) of all blocks.
    pub(crate) fn flush(self) -> Command {
        self.ranged(0x91, 0, Blocks { lba: 0, count: 0 }, 0, None)
    }

    /// UNMAP of one range.
    pub(crate) fn unmap(self, blocks: Blocks) -> Command {
        let mut list = [0; 24];
        (list[1], list[3]) = (22, 16);
        list[8..16].copy_from_slice(&blocks.lba.to_be_bytes());
        list[16..20].copy_from_slice(&blocks.count.to_be_bytes());
        let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        self.command(&cdb, 0, Some(Rc::from(list)))
    }

    /// WRITE SAME(16) of a block of zeroes, which may unmap.
    pub(crate) fn zero(self, blocks: Blocks, block: Rc<[u8]>, unmap: bool) -> Command {
        self.ranged(0x93, if unmap { 0x08 } else { 0 }, blocks, 0, Some(block))
    }
}

/// The consequence of the end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It was executed.
    Good,
    /// It was not executed, and is sent again at once.
    Repeat,
    /// The logical unit has changed: it is looked at, then the command is sent again.
    Changed,
    /// It is sent again after a pause: sense key and code.
    Later(u8, u16),
    /// It has failed.
    Failed(Fault),
}

/// Sense key, and additional sense code with its qualifier, of sense data in the fixed or descriptor format.
pub(crate) fn sense_of(sense: &[u8]) -> (u8, u16) {
    let byte = |at: usize| sense.get(at).copied().unwrap_or(0);
    let (key, code, qualifier) = match byte(0) & 0x7f {
        0x72 | 0x73 => (byte(1), byte(2), byte(3)),
        _ => (byte(2), byte(12), byte(13)),
    };
    (key & 0x0f, u16::from_be_bytes([code, qualifier]))
}

/// Judges the end of a command by its status and its sense data.
pub(crate) fn judge(status: u8, sense: &[u8]) -> Verdict {
    let (key, code) = sense_of(sense);
    match status {
        0 => Verdict::Good,
        // The data of a read did not come, or another initiator has aborted the command: it may be repeated.
        STATUS_BROKEN | TASK_ABORTED => Verdict::Repeat,
        BUSY | TASK_SET_FULL => Verdict::Later(0, 0),
        RESERVATION_CONFLICT => Verdict::Failed(Fault::Conflict),
        CHECK_CONDITION => match (key, code) {
            // RECOVERED ERROR.
            (0x1, _) => Verdict::Good,
            (0x0 | 0x2, _) => Verdict::Later(key, code),
            (0x3 | 0x4, _) => Verdict::Failed(Fault::Medium),
            (0x6, _) => Verdict::Changed,
            (0x5, 0x2000 | 0x2400 | 0x2600) => Verdict::Failed(Fault::Unsupported),
            (0x5, 0x2100) => Verdict::Failed(Fault::OUT_OF_RANGE),
            (0x5, 0x2500) => Verdict::Changed,
            // SPACE ALLOCATION FAILED WRITE PROTECT.
            (0x7, 0x2707) => Verdict::Failed(Fault::NoSpace),
            (0x7, _) => Verdict::Failed(Fault::Os(EROFS)),
            // Of protection information, which no command has.
            (0xb, 0x1001..=0x1003) => Verdict::Failed(Fault::Medium),
            (0xb, _) => Verdict::Later(key, code),
            _ => Verdict::Failed(Fault::Os(EREMOTEIO)),
        },
        _ => Verdict::Failed(Fault::Os(EREMOTEIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_standard() {
        let commands = Commands { lun: lun_of(3) };
        let blocks = Blocks { lba: 0x1_0203_0405, count: 8 };
        let write = commands.write(blocks, Rc::from(vec![1; 4096]), true);
        assert_eq!(write.cdb, [0x8a, 8, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0, 8, 0, 0]);
        assert_eq!((write.lun[1], write.data_in), (3, 0));
        let unmap = commands.unmap(blocks);
        assert_eq!(unmap.cdb[..9], [0x42, 0, 0, 0, 0, 0, 0, 0, 24]);
        let list = unmap.data_out.expect("a list");
        assert_eq!(list[..4], [0, 22, 0, 16]);
        assert_eq!(list[8..20], [0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0, 8]);
        assert_eq!(commands.zero(blocks, Rc::from(vec![0; 512]), true).cdb[..2], [0x93, 8]);
        assert_eq!(commands.read(blocks, 4096).data_in, 4096);
    }

    #[test]
    fn ends_of_commands_are_judged() {
        let fixed = |key: u8, code: u8, qualifier: u8| {
            let mut sense = vec![0; 18];
            (sense[0], sense[2], sense[12], sense[13]) = (0x70, key, code, qualifier);
            judge(CHECK_CONDITION, &sense)
        };
        assert_eq!(judge(0, &[]), Verdict::Good);
        assert_eq!(judge(BUSY, &[]), Verdict::Later(0, 0));
        assert_eq!(judge(STATUS_BROKEN, &[]), Verdict::Repeat);
        assert_eq!(judge(RESERVATION_CONFLICT, &[]), Verdict::Failed(Fault::Conflict));
        assert_eq!(fixed(6, 0x29, 0), Verdict::Changed);
        assert_eq!(fixed(2, 4, 1), Verdict::Later(2, 0x0401));
        assert_eq!(fixed(3, 0x11, 0), Verdict::Failed(Fault::Medium));
        assert_eq!(fixed(5, 0x20, 0), Verdict::Failed(Fault::Unsupported));
        assert_eq!(fixed(7, 0x27, 7), Verdict::Failed(Fault::NoSpace));
        assert_eq!(judge(CHECK_CONDITION, &[0x72, 6, 0x2a, 9]), Verdict::Changed);
        assert_eq!(judge(CHECK_CONDITION, &[]), Verdict::Later(0, 0), "no sense data is no success");
        assert_eq!(judge(0x77, &[]), Verdict::Failed(Fault::Os(EREMOTEIO)));
    }
}
