//! MODE SENSE and MODE SELECT: block length, buffered mode, compression, and the format of sense data.

use super::Drive;
use super::state::{ALGORITHM, COMPRESSION, CONFIGURATION, CONTROL, DESCRIPTORS, ENABLED, Mode};
use crate::cartridge::BLOCK_BYTES_MAX;
use crate::scsi::{self, Answer, Asc, Cdb, DataIn, DataOut, Sense};

/// Density codes of MODE SELECT: the default, and that in force.
const DENSITY_DEFAULT: u8 = 0x00;
const DENSITY_UNCHANGED: u8 = 0x7f;

impl Drive {
    pub(super) fn mode_sense(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let cartridge = self.cartridge();
        let (is_protected, medium_type, density) = match cartridge {
            Some(cartridge) => {
                let generation = cartridge.generation();
                (cartridge.is_protected(), generation.medium_type(cartridge.is_worm()), generation.density())
            }
            None => (false, 0, self.facts.generation.density()),
        };
        let buffered = u8::from(self.mode.is_buffered) << 4;
        let specific = u8::from(is_protected) << 7 | buffered;
        let [_, length @ ..] = self.mode.block_length.to_be_bytes();
        let descriptor = [density, 0, 0, 0, 0, length[0], length[1], length[2]];
        let (mode, descriptor_sense) = (self.mode, self.common.descriptor_sense);
        // PC 10b asks for the defaults.
        let is_default = cdb.byte(2) >> 6 == 2;
        let compression = self.facts.compression;
        let pages = |is_mask| match is_mask {
            true => Mode::changeable(),
            false if is_default => Mode::new(compression).pages(false),
            false => mode.pages(descriptor_sense),
        };
        scsi::mode_sense(cdb, (medium_type, specific), &descriptor, pages, into)
    }

    /// MODE SELECT(6) and (10): all parameters are checked before one is changed.
    pub(super) fn mode_select(&mut self, cdb: &Cdb<'_>, data: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if cdb.bit(1, 0) {
            return Err(Sense::cdb(1).into());
        }
        let is_long = cdb.byte(0) == 0x55;
        let length = if is_long { cdb.length(7, 2) } else { cdb.length(4, 1) };
        if length == 0 {
            return Ok(0);
        }
        let header = if is_long { 8 } else { 4 };
        let too_short = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        let list = data.get(0..length).filter(|list| list.len() >= header).ok_or(too_short)?.to_vec();
        let descriptor_length = if is_long { usize::from(list[6]) << 8 | usize::from(list[7]) } else { list[3].into() };
        let specific = list[if is_long { 3 } else { 2 }];
        let mut mode = self.mode;
        // Buffered mode 0 or 1; SPEED is ignored as the only one is the default.
        mode.is_buffered = match specific >> 4 & 0x07 {
            0 => false,
            1 => true,
            _ => return Err(Sense::parameter(if is_long { 3 } else { 2 }).into()),
        };
        let rest = &list[header..];
        let (descriptor, pages) = rest.split_at_checked(descriptor_length).ok_or(too_short)?;
        match descriptor {
            [] => {}
            [density, _, _, _, _, length @ ..] if length.len() == 3 => {
                let known = [DENSITY_DEFAULT, DENSITY_UNCHANGED, self.facts.generation.density()];
                let of_medium = self.cartridge().map(|cartridge| cartridge.generation().density());
                if !known.contains(density) && Some(*density) != of_medium {
                    return Err(Sense::parameter(header as u16).into());
                }
                mode.block_length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
                if mode.block_length as usize > BLOCK_BYTES_MAX {
                    return Err(Sense::parameter(header as u16 + 5).into());
                }
            }
            _ => return Err(Sense::parameter(if is_long { 6 } else { 3 }).into()),
        }
        let descriptor_sense = self.select_pages(pages, header + descriptor_length, &mut mode)?;
        self.mode = mode;
        self.common.descriptor_sense = descriptor_sense;
        Ok(length)
    }

    /// Reads the pages of a parameter list; returns D_SENSE.
    fn select_pages(&self, mut pages: &[u8], mut offset: usize, mode: &mut Mode) -> Result<bool, Sense> {
        let mut descriptor_sense = self.common.descriptor_sense;
        let wrong = |at: usize| Sense::parameter(u16::try_from(at).unwrap_or(u16::MAX));
        while let [code, length, rest @ ..] = pages {
            let (code, length) = (code & 0x3f, usize::from(*length));
            let current = mode.pages(descriptor_sense).into_iter().find(|(own, _)| *own == code);
            let (_, current) = current.ok_or_else(|| wrong(offset))?;
            if current.len() != length {
                return Err(wrong(offset + 1));
            }
            let too_short = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
            let (content, next) = rest.split_at_checked(length).ok_or(too_short)?;
            let masks = Mode::changeable().into_iter().find(|(own, _)| *own == code).map(|(_, mask)| mask);
            let masks = masks.unwrap_or_default();
            let is_changed = |at: &usize| (content[*at] ^ current[*at]) & !masks[*at] != 0;
            if let Some(at) = (0..length).find(is_changed) {
                return Err(wrong(offset + 2 + at));
            }
            match code {
                CONTROL => descriptor_sense = content[0] & DESCRIPTORS != 0,
                COMPRESSION => mode.compression = content[0] & ENABLED != 0,
                CONFIGURATION => mode.compression = content[ALGORITHM] != 0,
                _ => {}
            }
            (pages, offset) = (next, offset + 2 + length);
        }
        if pages.is_empty() { Ok(descriptor_sense) } else { Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)) }
    }
}
