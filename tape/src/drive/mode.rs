//! MODE SENSE and MODE SELECT: block length, buffered mode, compression, and the format of sense data.

use super::Drive;
use crate::cartridge::BLOCK_BYTES_MAX;
use crate::scsi::{self, Answer, Asc, Cdb, Page, Sense};

/// Read-Write Error Recovery (SSC-3 8.3.5).
const ERROR_RECOVERY: u8 = 0x01;
/// Control (SPC-4 7.5.8).
const CONTROL: u8 = 0x0a;
/// Data Compression (SSC-3 8.3.2).
const COMPRESSION: u8 = 0x0f;
/// Device Configuration (SSC-3 8.3.3).
const CONFIGURATION: u8 = 0x10;
/// Informational Exceptions Control (SPC-4 7.5.11).
const EXCEPTIONS: u8 = 0x1c;
/// DCE and DDE of the Data Compression page, and DCC.
const ENABLED: u8 = 0x80;
const CAPABLE: u8 = 0x40;
/// D_SENSE of the Control page.
const DESCRIPTORS: u8 = 0x04;
/// Byte of the Device Configuration page with SELECT DATA COMPRESSION ALGORITHM, behind the length.
const ALGORITHM: usize = 12;
/// Density codes of MODE SELECT: the default, and that in force.
const DENSITY_DEFAULT: u8 = 0x00;
const DENSITY_UNCHANGED: u8 = 0x7f;

/// The mode parameters that can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mode {
    /// BLOCK LENGTH of the block descriptor; 0: blocks of any length.
    pub(super) block_length: u32,
    /// A write is answered before its data is on the medium.
    pub(super) is_buffered: bool,
    /// Data is compressed.
    pub(super) compression: bool,
}

impl Mode {
    pub(super) fn new(compression: bool) -> Self {
        Self { block_length: 0, is_buffered: true, compression }
    }

    /// The pages behind their lengths, with these parameters.
    fn pages(self, descriptor_sense: bool) -> Vec<Page> {
        let mut configuration = vec![0; 14];
        // LOIS: positions are logical objects. EEG: the drive writes the end of data by itself.
        (configuration[6], configuration[12]) = (0x40, u8::from(self.compression));
        configuration[8] = 0x10;
        let enabled = if self.compression { ENABLED } else { 0 };
        let mut compression = vec![0; 14];
        (compression[0], compression[1]) = (CAPABLE | enabled, ENABLED);
        // LZ4 has no registered number: FFh is that of unregistered algorithms.
        (compression[5], compression[9]) = (0xff, 0xff);
        let mut control = vec![0; 10];
        control[0] = if descriptor_sense { DESCRIPTORS } else { 0 };
        vec![
            (ERROR_RECOVERY, vec![0; 10]),
            (CONTROL, control),
            (COMPRESSION, compression),
            (CONFIGURATION, configuration),
            (EXCEPTIONS, vec![0; 10]),
        ]
    }

    /// The masks of the bits that can be changed.
    fn changeable() -> Vec<Page> {
        let masks = Self::new(false).pages(false).into_iter().map(|(code, content)| {
            let mut mask = vec![0; content.len()];
            match code {
                CONTROL => mask[0] = DESCRIPTORS,
                COMPRESSION => mask[0] = ENABLED,
                CONFIGURATION => mask[ALGORITHM] = 0xff,
                _ => {}
            }
            (code, mask)
        });
        masks.collect()
    }
}

impl Drive {
    pub(super) fn mode_sense(&mut self, cdb: &Cdb<'_>, _: &[u8], into: &mut [u8]) -> Answer {
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
    pub(super) fn mode_select(&mut self, cdb: &Cdb<'_>, data: &[u8], _: &mut [u8]) -> Answer {
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
        let list = data.get(..length).filter(|list| list.len() >= header).ok_or(too_short)?;
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
