//! The state of a drive besides the medium: the mode parameters with their pages, and counters.

use crate::scsi::Page;

/// Read-Write Error Recovery (SSC-3 8.3.5).
const ERROR_RECOVERY: u8 = 0x01;
/// Control (SPC-4 7.5.8).
pub(super) const CONTROL: u8 = 0x0a;
/// Data Compression (SSC-3 8.3.2).
pub(super) const COMPRESSION: u8 = 0x0f;
/// Device Configuration (SSC-3 8.3.3).
pub(super) const CONFIGURATION: u8 = 0x10;
/// Informational Exceptions Control (SPC-4 7.5.11).
const EXCEPTIONS: u8 = 0x1c;
/// DCE and DDE of the Data Compression page, and DCC.
pub(super) const ENABLED: u8 = 0x80;
const CAPABLE: u8 = 0x40;
/// TST = 001b of the Control page: each nexus has a task set of its own, as Lunar keeps them.
const SEPARATE_TASK_SETS: u8 = 0x20;
/// D_SENSE of the Control page.
pub(super) const DESCRIPTORS: u8 = 0x04;
/// Byte of the Device Configuration page with SELECT DATA COMPRESSION ALGORITHM, behind the length.
pub(super) const ALGORITHM: usize = 12;

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
    pub(super) fn pages(self, descriptor_sense: bool) -> Vec<Page> {
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
        control[0] = SEPARATE_TASK_SETS | if descriptor_sense { DESCRIPTORS } else { 0 };
        vec![
            (ERROR_RECOVERY, vec![0; 10]),
            (CONTROL, control),
            (COMPRESSION, compression),
            (CONFIGURATION, configuration),
            (EXCEPTIONS, vec![0; 10]),
        ]
    }

    /// The masks of the bits that can be changed.
    pub(super) fn changeable() -> Vec<Page> {
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

/// Counters since the cartridge was inserted.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counters {
    /// Bytes of blocks from initiators.
    pub(super) written: u64,
    /// Bytes on the medium for them.
    pub(super) stored: u64,
    /// Bytes of blocks to initiators.
    pub(super) read: u64,
    pub(super) write_errors: u64,
    pub(super) read_errors: u64,
}
