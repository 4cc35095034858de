//! The drive: it stores variable blocks in memory, and answers CDBs by a script (SPC-4, SSC-5).

use lunar_core::io::Fault;
use lunar_scsi::command::Status;
use lunar_scsi::device_server::{DeviceServer, ForwardDone, ForwardedCommand, ForwardedData, ForwardedReply};
use lunar_scsi::forwarding::{DeviceFacts, Terms};
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::sense::{Asc, SenseData, SenseKey};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the longest block. The data of a command is in memory as a whole, and readers read with 64 KiB.
pub const BLOCK_BYTES_MAX: usize = 256 << 10;

/// Bytes of all blocks: an example needs no more memory.
pub const TAPE_BYTES_MAX: usize = 64 << 20;

/// Bytes that count for a block besides its data, so that the number of short blocks is bounded, too.
const BLOCK_OVERHEAD: usize = 64;

/// Additional sense codes (SPC-4 annex F).
const NO_CODE: u16 = 0x0000;
const END_OF_MEDIUM_DETECTED: u16 = 0x0002;
const END_OF_DATA_DETECTED: u16 = 0x0005;
const INVALID_OPERATION_CODE: u16 = 0x2000;
const INVALID_FIELD_IN_CDB: u16 = 0x2400;

/// INCORRECT LENGTH in byte 2 of fixed format sense data.
const INCORRECT_LENGTH: u8 = 0x20;

/// A tape: blocks, and the position; the properties of the drive.
#[derive(Default, Debug)]
pub(crate) struct Tape {
    blocks: Mutex<Blocks>,
    facts: DeviceFacts,
}

#[derive(Default, Debug)]
struct Blocks {
    blocks: Vec<Vec<u8>>,
    /// Blocks before the position.
    position: usize,
    /// Bytes that all blocks count.
    bytes: usize,
}

impl Tape {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    /// Writes a block at the position. The blocks after it are lost. Returns whether there was room.
    fn write(&mut self, block: Vec<u8>) -> bool {
        for lost in self.blocks.drain(self.position..) {
            self.bytes -= lost.len() + BLOCK_OVERHEAD;
        }
        let bytes = self.bytes + block.len() + BLOCK_OVERHEAD;
        if bytes > TAPE_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.blocks.push(block);
        self.position = self.blocks.len();
        true
    }
}

/// One core's connection to the drive.
#[derive(Debug)]
pub(crate) struct Drive {
    tape: Arc<Tape>,
    terms: Terms,
}

/// The answer to a command: status, sense data, bytes moved.
struct Answer {
    status: Status,
    sense: SenseData,
    moved: usize,
}

impl Answer {
    fn good(moved: usize) -> Self {
        Self { status: Status::GOOD, sense: SenseData::default(), moved }
    }

    /// Data-In of these bytes, as many as fit the memory and the allocation length.
    fn data(data: &mut ForwardedData, bytes: &[u8], allocation: usize) -> Self {
        let ForwardedData::In(memory) = data else { return Self::good(0) };
        let count = bytes.len().min(allocation).min(memory.len());
        memory.copy_from(0, &bytes[..count]);
        Self::good(count)
    }

    /// CHECK CONDITION with fixed format sense data (SPC-4 4.5.3), and INFORMATION.
    fn check(key: SenseKey, flags: u8, code: u16, information: i32) -> Self {
        /// VALID, and the response code of current information.
        const CURRENT: u8 = 0xf0;
        /// ADDITIONAL SENSE LENGTH of 18 bytes.
        const ADDITIONAL: u8 = 10;
        let mut sense = vec![CURRENT, 0, flags | key.0];
        sense.extend(information.to_be_bytes());
        sense.extend([ADDITIONAL, 0, 0, 0, 0]);
        sense.extend(code.to_be_bytes());
        sense.extend([0; 4]);
        Self { status: Status::CHECK_CONDITION, sense: SenseData::of_device(&sense), moved: 0 }
    }

    fn illegal(code: u16) -> Self {
        Self::check(SenseKey::ILLEGAL_REQUEST, 0, code, 0)
    }
}

impl Drive {
    pub(crate) fn new(tape: Arc<Tape>) -> Self {
        Self { tape, terms: Terms::default() }
    }

    fn execute(&self, cdb: &[u8], data: &mut ForwardedData) -> Answer {
        match cdb {
            // TEST UNIT READY
            [0x00, ..] => Answer::good(0),
            // REWIND
            [0x01, ..] => {
                self.tape.lock().position = 0;
                Answer::good(0)
            }
            // READ BLOCK LIMITS
            [0x05, ..] => {
                let [_, high, middle, low] = (BLOCK_BYTES_MAX as u32).to_be_bytes();
                Answer::data(data, &[0, high, middle, low, 0, 1], usize::MAX)
            }
            // READ(6) and WRITE(6) of a variable block
            [0x08, 0, high, middle, low, _] => self.read(length([*high, *middle, *low]), data),
            [0x0a, 0, high, middle, low, _] => self.write(length([*high, *middle, *low]), data),
            // Standard INQUIRY data
            [0x12, 0, 0, high, low, _] => {
                Answer::data(data, &inquiry(), usize::from(u16::from_be_bytes([*high, *low])))
            }
            // The list of supported VPD pages: this page only. Lunar adds its own.
            [0x12, 1, 0, high, low, _] => Answer::data(
                data,
                &[PeripheralType::TAPE.0, 0, 0, 1, 0],
                usize::from(u16::from_be_bytes([*high, *low])),
            ),
            // MODE SENSE(6): a header that says buffered mode, and a block descriptor of variable blocks
            [0x1a, _, _, _, allocation, _] => {
                Answer::data(data, &[11, 0, 0x10, 8, 0x40, 0, 0, 0, 0, 0, 0, 0], (*allocation).into())
            }
            [0x08 | 0x0a | 0x12 | 0x1a, ..] => Answer::illegal(INVALID_FIELD_IN_CDB),
            _ => Answer::illegal(INVALID_OPERATION_CODE),
        }
    }

    fn read(&self, wanted: usize, data: &mut ForwardedData) -> Answer {
        let mut tape = self.tape.lock();
        let Some(block) = tape.blocks.get(tape.position) else {
            return Answer::check(SenseKey::BLANK_CHECK, 0, END_OF_DATA_DETECTED, wanted as i32);
        };
        let (answer, difference) = (Answer::data(data, block, wanted), wanted as i32 - block.len() as i32);
        tape.position += 1;
        match difference {
            0 => answer,
            // INFORMATION is the requested length minus the length of the block.
            _ => Answer {
                moved: answer.moved,
                ..Answer::check(SenseKey::NO_SENSE, INCORRECT_LENGTH, NO_CODE, difference)
            },
        }
    }

    fn write(&self, len: usize, data: &ForwardedData) -> Answer {
        let ForwardedData::Out(sent) = data else {
            return if len == 0 { Answer::good(0) } else { Answer::illegal(INVALID_FIELD_IN_CDB) };
        };
        let mut block = sent.to_vec();
        if len > BLOCK_BYTES_MAX || block.len() < len {
            return Answer::illegal(INVALID_FIELD_IN_CDB);
        }
        block.truncate(len);
        match self.tape.lock().write(block) {
            true => Answer::good(len),
            false => Answer::check(SenseKey::VOLUME_OVERFLOW, 0, END_OF_MEDIUM_DETECTED, len as i32),
        }
    }
}

/// TRANSFER LENGTH of a CDB of six bytes.
fn length([high, middle, low]: [u8; 3]) -> usize {
    u32::from_be_bytes([0, high, middle, low]) as usize
}

/// Standard INQUIRY data: a sequential-access device with a removable medium (SPC-4 6.6.2).
fn inquiry() -> Vec<u8> {
    let mut data = vec![PeripheralType::TAPE.0, 0x80, 6, 2, 31, 0, 0, 0];
    data.extend(b"EXAMPLE TAPE DRIVE      0001");
    data
}

impl DeviceServer for Drive {
    fn device_type(&self) -> PeripheralType {
        PeripheralType::TAPE
    }

    fn transfer_bytes_max(&self) -> usize {
        BLOCK_BYTES_MAX
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn facts(&self) -> &DeviceFacts {
        &self.tape.facts
    }

    fn take_event(&self) -> Option<Asc> {
        None
    }

    fn submit(&self, mut command: ForwardedCommand, done: ForwardDone) {
        let Answer { status, sense, moved } = self.execute(command.cdb.command_bytes(), &mut command.data);
        done.complete(Ok(ForwardedReply { status, sense, moved, data: command.data }));
    }

    // A command ends in the call that starts it.
    fn abort(&self, _: u64) {}

    // The drive establishes no unit attention: the conditions of Lunar are enough for its only initiator.
    fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        self.tape.lock().position = 0;
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_is_bounded_and_a_write_discards_what_follows() {
        let mut tape = Blocks::default();
        let block = || vec![1; BLOCK_BYTES_MAX];
        let count = TAPE_BYTES_MAX / (BLOCK_BYTES_MAX + BLOCK_OVERHEAD);
        assert!((0..count).all(|_| tape.write(block())) && !tape.write(block()), "{count} blocks fit");
        tape.position = 1;
        assert!(tape.write(vec![2; 3]));
        assert_eq!((tape.blocks.len(), tape.position), (2, 2));
        assert_eq!(tape.bytes, BLOCK_BYTES_MAX + 3 + 2 * BLOCK_OVERHEAD);
    }

    #[test]
    fn a_cdb_that_the_script_does_not_know_is_an_illegal_request() {
        let drive = Drive::new(Arc::default());
        for cdb in [&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0xc0; 6], &[0x08, 1, 0, 0, 1, 0], &[]] {
            let answer = drive.execute(cdb, &mut ForwardedData::None);
            assert_eq!(answer.status, Status::CHECK_CONDITION, "{cdb:?}");
            assert_eq!(answer.sense.meaning().map(|(key, _)| key), Some(SenseKey::ILLEGAL_REQUEST), "{cdb:?}");
        }
    }
}
