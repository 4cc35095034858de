//! REWIND, SPACE, LOCATE and READ POSITION (SSC-3 7).

use super::read_write::{end_of_data, filemark};
use super::{Drive, read_error};
use crate::cartridge::{CartridgeError, Moved, Stop};
use crate::scsi::{Answer, Asc, Cdb, DataIn, DataOut, Sense, SenseKey, put};

impl Drive {
    pub(super) fn rewind(&mut self, _: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.settled()?.rewind();
        Ok(0)
    }

    pub(super) fn space_6(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.space(cdb.byte(1) & 0x0f, cdb.signed24(2))
    }

    pub(super) fn space_16(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if cdb.number(12, 2) != 0 {
            return Err(Sense::cdb(12).into());
        }
        self.space(cdb.byte(1) & 0x0f, cdb.number(4, 8) as i64)
    }

    fn space(&mut self, code: u8, count: i64) -> Answer {
        if !matches!(code, 0 | 1 | 3) {
            return Err(Sense::cdb(1).into());
        }
        let cartridge = self.settled()?;
        let moved: Result<Moved, CartridgeError> = match code {
            0 => cartridge.space_blocks(count),
            1 => cartridge.space_filemarks(count),
            _ => cartridge.space_to_end().map(|()| Moved { count: count.unsigned_abs(), stop: None }),
        };
        let moved = moved.map_err(|why| read_error(&why))?;
        let rest = i64::try_from(count.unsigned_abs() - moved.count).unwrap_or(i64::MAX);
        match moved.stop {
            None => Ok(0),
            Some(Stop::Filemark) => Err(filemark().with(rest).into()),
            Some(Stop::EndOfData) => Err(end_of_data().with(rest).into()),
            Some(Stop::Beginning) => {
                let sense = Sense::new(SenseKey::NO_SENSE, Asc::BEGINNING_OF_MEDIUM_DETECTED).with(rest);
                Err(Sense { eom: true, ..sense }.into())
            }
        }
    }

    /// LOCATE(10). The vendor-specific address format (BT) is the logical object number, too.
    pub(super) fn locate_10(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if cdb.bit(1, 1) && cdb.byte(8) != 0 {
            return Err(Sense::cdb(8).into());
        }
        self.locate(cdb.number(3, 4))
    }

    /// LOCATE(16): to a logical object, a logical file, or the end of data.
    pub(super) fn locate_16(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if cdb.bit(1, 1) && cdb.byte(3) != 0 {
            return Err(Sense::cdb(3).into());
        }
        let destination = cdb.number(4, 8);
        match cdb.byte(1) >> 3 & 0x07 {
            0 => self.locate(destination),
            1 => {
                let cartridge = self.settled()?;
                cartridge.rewind();
                let moved = cartridge.space_filemarks(i64::try_from(destination).unwrap_or(i64::MAX));
                match moved.map_err(|why| read_error(&why))?.stop {
                    None => Ok(0),
                    Some(_) => Err(end_of_data().into()),
                }
            }
            3 => {
                self.settled()?.space_to_end().map_err(|why| read_error(&why))?;
                Ok(0)
            }
            _ => Err(Sense::cdb(1).into()),
        }
    }

    fn locate(&mut self, object: u64) -> Answer {
        match self.settled()?.locate(object).map_err(|why| read_error(&why))? {
            true => Ok(0),
            false => Err(end_of_data().into()),
        }
    }

    /// READ POSITION (SSC-3 7.7): short, long and extended form.
    pub(super) fn read_position(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        const BEGINNING: u8 = 0x80;
        const END: u8 = 0x40;
        /// LOLU of the short form: the position does not fit.
        const UNKNOWN: u8 = 0x04;
        let allocation = cdb.length(7, 2);
        let cartridge = self.loaded()?;
        let position = cartridge.position();
        let mut flags = if position.object == 0 { BEGINNING } else { 0 };
        flags |= if cartridge.is_early_warning() { END } else { 0 };
        let object = position.object.to_be_bytes();
        let mut bytes = [0; 32];
        match cdb.byte(1) & 0x1f {
            0x00 | 0x01 if allocation == 0 => {
                match u32::try_from(position.object) {
                    Ok(number) => {
                        bytes[4..8].copy_from_slice(&number.to_be_bytes());
                        bytes[8..12].copy_from_slice(&number.to_be_bytes());
                    }
                    Err(_) => flags |= UNKNOWN,
                }
                bytes[0] = flags;
                put(&bytes[..20], 20, into)
            }
            0x06 if allocation == 0 => {
                bytes[0] = flags;
                bytes[8..16].copy_from_slice(&object);
                bytes[16..24].copy_from_slice(&position.file.to_be_bytes());
                put(&bytes, 32, into)
            }
            0x08 => {
                bytes[0] = flags;
                bytes[3] = 28;
                bytes[8..16].copy_from_slice(&object);
                bytes[16..24].copy_from_slice(&object);
                put(&bytes, allocation, into)
            }
            0x00 | 0x01 | 0x06 => Err(Sense::cdb(7).into()),
            _ => Err(Sense::cdb(1).into()),
        }
    }
}
