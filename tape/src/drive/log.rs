//! LOG SENSE, and READ ATTRIBUTE: counters of the drive, and attributes of the medium.

use super::Drive;
use crate::scsi::{self, Answer, Asc, Cdb, DataIn, DataOut, Sense, SenseKey, put};

/// Number of TapeAlert flags (SSC-3 annex A).
const TAPE_ALERT_FLAGS: u16 = 64;
/// A mebibyte, the unit of capacities.
const MIB: u64 = 1 << 20;

/// A parameter of a log page: its code, and its value.
fn push_parameter(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    /// Format and linking: a binary list, or a counter that has no threshold.
    const BINARY: u8 = 0x03;
    bytes.extend(code.to_be_bytes());
    bytes.extend([BINARY, value.len() as u8]);
    bytes.extend(value);
}

impl Drive {
    /// LOG SENSE (SPC-4 6.9): cumulative values only.
    pub(super) fn log_sense(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        const PAGES: [u8; 6] = [0x00, 0x02, 0x03, 0x0c, 0x2e, 0x31];
        if cdb.bit(1, 0) {
            return Err(Sense::cdb(1).into());
        }
        if cdb.byte(3) != 0 {
            return Err(Sense::cdb(3).into());
        }
        let page = cdb.byte(2) & 0x3f;
        let counters = self.counters;
        let mut content = Vec::new();
        match page {
            0x00 => content.extend(PAGES),
            0x02 => {
                push_parameter(&mut content, 0x0005, &counters.written.to_be_bytes());
                push_parameter(&mut content, 0x0006, &counters.write_errors.to_be_bytes());
            }
            0x03 => {
                push_parameter(&mut content, 0x0005, &counters.read.to_be_bytes());
                push_parameter(&mut content, 0x0006, &counters.read_errors.to_be_bytes());
            }
            0x0c => {
                // From the initiator, to the medium, from the medium, to the initiator.
                let values = [counters.written, counters.stored, counters.read, counters.read];
                for (code, value) in (0..).zip(values) {
                    push_parameter(&mut content, code, &value.to_be_bytes());
                }
            }
            0x2e => (1..=TAPE_ALERT_FLAGS).for_each(|flag| {
                let is_set = match flag {
                    // Read failure, write failure.
                    5 => counters.read_errors > 0,
                    6 => counters.write_errors > 0,
                    _ => false,
                };
                push_parameter(&mut content, flag, &[u8::from(is_set)]);
            }),
            0x31 => {
                let (remaining, most) = self.capacities();
                for (code, value) in [(1_u16, remaining), (2, 0), (3, most), (4, 0)] {
                    let value = u32::try_from(value).unwrap_or(u32::MAX);
                    push_parameter(&mut content, code, &value.to_be_bytes());
                }
            }
            _ => return Err(Sense::cdb(2).into()),
        }
        let mut bytes = vec![page, 0];
        bytes.extend((content.len() as u16).to_be_bytes());
        bytes.extend(content);
        put(&bytes, cdb.length(7, 2), into)
    }

    /// Remaining and whole capacity of the cartridge, in MiB.
    fn capacities(&self) -> (u64, u64) {
        let of = |cartridge: &crate::cartridge::Cartridge| {
            (cartridge.capacity().saturating_sub(cartridge.used()) / MIB, cartridge.capacity() / MIB)
        };
        self.cartridge().map_or((0, 0), of)
    }

    /// READ ATTRIBUTE (SPC-4 6.18): attributes of the medium auxiliary memory; their values, or a list.
    pub(super) fn read_attribute(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let Some(cartridge) = self.cartridge() else {
            return Err(Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT).into());
        };
        let (remaining, most) = self.capacities();
        let text = |text: &str, length| {
            let mut bytes = Vec::new();
            scsi::push_text(&mut bytes, text, length);
            bytes
        };
        let (number, barcode) = (cartridge.generation(), cartridge.barcode());
        let (binary, ascii) = (0_u8, 1_u8);
        let attributes: [(u16, u8, Vec<u8>); 8] = [
            (0x0000, binary, remaining.to_be_bytes().to_vec()),
            (0x0001, binary, most.to_be_bytes().to_vec()),
            (0x0003, binary, cartridge.loads().to_be_bytes().to_vec()),
            (0x0006, binary, vec![number.density()]),
            (0x0400, ascii, text(scsi::VENDOR, 8)),
            (0x0401, ascii, text(barcode, 32)),
            (0x0405, binary, vec![number.density()]),
            (0x0806, ascii, text(barcode, 32)),
        ];
        if cdb.byte(5) != 0 || cdb.byte(7) != 0 {
            return Err(Sense::cdb(if cdb.byte(5) == 0 { 7 } else { 5 }).into());
        }
        let first = cdb.number(8, 2);
        let mut content = Vec::new();
        for (id, format, value) in attributes.iter().filter(|(id, _, _)| u64::from(*id) >= first) {
            /// READ ONLY.
            const READ_ONLY: u8 = 0x80;
            content.extend(id.to_be_bytes());
            if cdb.byte(1) & 0x1f == 0 {
                content.push(READ_ONLY | format);
                content.extend((value.len() as u16).to_be_bytes());
                content.extend(value);
            }
        }
        let mut bytes = (content.len() as u32).to_be_bytes().to_vec();
        bytes.extend(content);
        put(&bytes, cdb.length(10, 4), into)
    }
}
