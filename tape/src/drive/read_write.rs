//! READ, WRITE, WRITE FILEMARKS and ERASE (SSC-3 6 and 7).

use super::{Drive, read_error, write_error};
use crate::cartridge::{BLOCK_BYTES_MAX, CartridgeError, FILEMARKS_MAX, Found};
use crate::scsi::{Answer, Asc, Cdb, Check, DataIn, DataOut, Sense, SenseKey};

/// A count of blocks or bytes as INFORMATION.
fn information(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The sense data of the early warning. All data was written.
fn early_warning() -> Sense {
    Sense { eom: true, ..Sense::new(SenseKey::NO_SENSE, Asc::END_OF_MEDIUM_DETECTED) }.with(0)
}

impl Drive {
    pub(super) fn read_6(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        self.read(cdb, cdb.length(2, 3), into)
    }

    pub(super) fn read_16(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        self.move_to_object(cdb)?;
        self.read(cdb, cdb.length(12, 3), into)
    }

    pub(super) fn write_6(&mut self, cdb: &Cdb<'_>, data: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.write(cdb, cdb.length(2, 3), data)
    }

    pub(super) fn write_16(&mut self, cdb: &Cdb<'_>, data: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.move_to_object(cdb)?;
        self.write(cdb, cdb.length(12, 3), data)
    }

    pub(super) fn write_filemarks_6(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.write_filemarks(cdb, cdb.number(2, 3), 2)
    }

    pub(super) fn write_filemarks_16(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.move_to_object(cdb)?;
        self.write_filemarks(cdb, cdb.number(12, 3), 12)
    }

    pub(super) fn erase_6(&mut self, _: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.erase()
    }

    pub(super) fn erase_16(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.move_to_object(cdb)?;
        self.erase()
    }

    /// Moves to the logical object of a command of the explicit address command set.
    fn move_to_object(&mut self, cdb: &Cdb<'_>) -> Result<(), Sense> {
        if cdb.byte(3) != 0 {
            return Err(Sense::cdb(3));
        }
        let object = cdb.number(4, 8);
        if self.loaded()?.position().object == object {
            return Ok(());
        }
        match self.settled()?.locate(object) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Sense::new(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED)),
            Err(why) => Err(read_error(&why)),
        }
    }

    /// The length of a block if FIXED is set.
    fn fixed_length(&self) -> Result<usize, Sense> {
        match self.mode.block_length as usize {
            0 => Err(Sense::cdb(1)),
            length => Ok(length),
        }
    }

    fn read(&mut self, cdb: &Cdb<'_>, count: usize, into: &mut DataIn<'_>) -> Answer {
        let (is_fixed, is_silent) = (cdb.bit(1, 0), cdb.bit(1, 1));
        if is_fixed && is_silent {
            return Err(Sense::cdb(1).into());
        }
        let result = match is_fixed {
            _ if count == 0 => Ok(0),
            true => self.read_fixed(self.fixed_length()?, count, into),
            false => self.read_variable(is_silent, count, into),
        };
        let moved = match &result {
            Ok(moved) => *moved,
            Err(check) => check.moved,
        };
        self.counters.read += moved as u64;
        result
    }

    fn read_fixed(&mut self, length: usize, count: usize, into: &mut DataIn<'_>) -> Answer {
        // The initiator must expect all blocks: those that it has no memory for would be lost.
        if count.checked_mul(length).is_none_or(|bytes| bytes > into.len()) {
            return Err(Sense::cdb(2).into());
        }
        for done in 0..count {
            let check =
                |sense: Sense| Err(Check { sense: sense.with(information(count - done)), moved: done * length });
            match self.loaded()?.read_into(into, done * length..(done + 1) * length) {
                Ok(Found::Block(found)) if found == length => {}
                Ok(Found::Block(_)) => {
                    return check(Sense {
                        ili: true,
                        ..Sense::new(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION)
                    });
                }
                Ok(Found::Filemark) => return check(filemark()),
                Ok(Found::EndOfData) => return check(end_of_data()),
                Err(why) => {
                    self.counters.read_errors += 1;
                    return check(read_error(&why));
                }
            }
        }
        Ok(count * length)
    }

    fn read_variable(&mut self, is_silent: bool, count: usize, into: &mut DataIn<'_>) -> Answer {
        let fits = count.min(into.len());
        let is_variable_mode = self.mode.block_length == 0;
        let check = |sense: Sense| Err(sense.with(information(count)).into());
        match self.loaded()?.read_into(into, 0..fits) {
            Ok(Found::Block(found)) => {
                let moved = found.min(fits);
                // SILI hides a short block, and a long one if blocks have no fixed length (SSC-3 6.4).
                let is_hidden = is_silent && (found < count || is_variable_mode);
                if found == count || is_hidden {
                    return Ok(moved);
                }
                let sense = Sense { ili: true, ..Sense::new(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION) };
                Err(Check { sense: sense.with(information(count) - information(found)), moved })
            }
            Ok(Found::Filemark) => check(filemark()),
            Ok(Found::EndOfData) => check(end_of_data()),
            Err(why) => {
                self.counters.read_errors += 1;
                check(read_error(&why))
            }
        }
    }

    fn write(&mut self, cdb: &Cdb<'_>, count: usize, data: DataOut<'_>) -> Answer {
        let is_fixed = cdb.bit(1, 0);
        let length = if is_fixed { self.fixed_length()? } else { count };
        if count == 0 {
            return Ok(0);
        }
        if length > BLOCK_BYTES_MAX {
            return Err(Sense::cdb(2).into());
        }
        let bytes = if is_fixed { count.saturating_mul(length) } else { count };
        let Some(data) = data.get(0..bytes) else {
            return Err(Sense::new(SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR).into());
        };
        let (compress, is_buffered) = (self.mode.compression, self.mode.is_buffered);
        let cartridge = self.loaded()?;
        let used = cartridge.used();
        let written = cartridge.write_data(data, length, compress);
        let synchronized = if is_buffered { Ok(()) } else { cartridge.synchronize() };
        let (is_warning, stored) = (cartridge.is_early_warning(), cartridge.used().saturating_sub(used));
        let moved = written.blocks * length;
        self.counters.written += moved as u64;
        self.counters.stored += stored;
        // Nothing of an unbuffered write is known to be on the medium if the synchronization failed.
        if let Err(why) = synchronized {
            self.counters.write_errors += 1;
            return Err(write_error(&why).with(information(count)).into());
        }
        if let Some(why) = written.stopped {
            // The end of the medium and its protection are no errors of it.
            let is_error = matches!(why, CartridgeError::Io(_) | CartridgeError::Failed | CartridgeError::Damaged(_));
            self.counters.write_errors += u64::from(is_error);
            let rest = information(if is_fixed { count - written.blocks } else { count });
            return Err(Check { sense: write_error(&why).with(rest), moved });
        }
        if is_warning {
            return Err(Check { sense: early_warning(), moved });
        }
        Ok(moved)
    }

    /// WRITE FILEMARKS: without IMMED, all data is on the medium when it ends.
    fn write_filemarks(&mut self, cdb: &Cdb<'_>, count: u64, field: u16) -> Answer {
        if count > FILEMARKS_MAX {
            return Err(Sense::cdb(field).into());
        }
        let is_immediate = cdb.bit(1, 0);
        let cartridge = self.loaded()?;
        let rest = i64::try_from(count).unwrap_or(i64::MAX);
        cartridge.write_filemarks(count).map_err(|why| write_error(&why).with(rest))?;
        if !is_immediate {
            cartridge.synchronize().map_err(|why| write_error(&why).with(rest))?;
        }
        if count > 0 && cartridge.is_early_warning() { Err(early_warning().into()) } else { Ok(0) }
    }

    fn erase(&mut self) -> Answer {
        self.settled()?.erase().map_err(|why| write_error(&why))?;
        Ok(0)
    }
}

/// A filemark ended a read.
pub(super) fn filemark() -> Sense {
    Sense { filemark: true, ..Sense::new(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED) }
}

/// The end of data ended a read or a movement.
pub(super) fn end_of_data() -> Sense {
    Sense::new(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED)
}
