//! The configuration space of the device (PCI Local Bus 3.0 6.1, PCI Express Base 4.0 7.5).

use crate::config::VECTORS;
use crate::registers::BAR_LEN;

/// Bytes of the configuration space.
pub const LEN: usize = 4096;
/// Bytes of it that are used: what lies beyond is zero, and nobody writes it.
pub const USED: usize = 256;
/// Bytes of the regions of vectors: a table of sixteen bytes each, and their pending bits.
pub const VECTORS_LEN: u32 = 4096;
/// Vendor and device: of no list, as nobody who makes processors in software is on one. No driver goes by them, for all
/// go by the class.
const IDENTIFIERS: u32 = 0x0001_4c4e;
/// Class: mass storage, non-volatile memory, NVMe I/O controller; and revision 1.
const CLASS: u32 = 0x0108_0201;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
/// Where each capability begins.
const POWER: usize = 0x40;
const EXPRESS: usize = 0x50;
const MSIX: usize = 0x90;
/// Device control of PCI Express.
const DEVICE_CONTROL: usize = EXPRESS + 8;

const _: () = assert!(VECTORS as u32 * 16 <= VECTORS_LEN, "the table of vectors has room");

/// What a write leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing more.
    None,
    /// The function is reset (FLR).
    Reset,
}

/// The configuration space.
#[derive(Clone, Debug)]
pub struct Space {
    bytes: Box<[u8; LEN]>,
    /// Bits that can be written.
    writable: Box<[u8; LEN]>,
}

impl Default for Space {
    fn default() -> Self {
        let mut space = Self { bytes: Box::new([0; LEN]), writable: Box::new([0; LEN]) };
        space.put(0, &IDENTIFIERS.to_le_bytes()).put(0x08, &CLASS.to_le_bytes());
        space.put(SUBSYSTEM, &IDENTIFIERS.to_le_bytes());
        // Capabilities there are; INTA.
        space.put(STATUS, &[0x10]).put(CAPABILITIES, &[POWER as u8]).put(INTERRUPT_PIN, &[1]);
        // BAR 0 of 64 bits with BAR 1, BAR 4 and 5 of 32 bits: their sizes are the bits that cannot be written.
        space.put(BARS, &[0x04]);
        space.free(BARS, &(!(BAR_LEN - 1)).to_le_bytes()).free(BARS + 4, &[0xff; 4]);
        space.free(BARS + 16, &(!(VECTORS_LEN - 1)).to_le_bytes()).free(BARS + 20, &(!(VECTORS_LEN - 1)).to_le_bytes());
        // Memory, bus master, parity, SERR, no INTx.
        space.free(COMMAND, &0x0546_u16.to_le_bytes()).free(INTERRUPT_LINE, &[0xff]);
        space.capabilities();
        space
    }
}

impl Space {
    fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn free(&mut self, at: usize, bits: &[u8]) -> &mut Self {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
        self
    }

    fn capabilities(&mut self) {
        // Power management, version 3: D0 and D3hot, which forgets nothing.
        self.put(POWER, &[0x01, EXPRESS as u8, 0x03, 0x00, 0x08]).free(POWER + 4, &[0x03]);
        // PCI Express, version 2, endpoint; role-based errors, function level reset; one lane of 2.5 GT/s.
        self.put(EXPRESS, &[0x10, MSIX as u8, 0x02, 0x00]).put(EXPRESS + 4, &0x1000_8000_u32.to_le_bytes());
        self.free(DEVICE_CONTROL, &0x7fff_u16.to_le_bytes());
        self.put(EXPRESS + 12, &0x11_u32.to_le_bytes()).put(EXPRESS + 18, &0x11_u16.to_le_bytes());
        // MSI-X: the table in BAR 4, what is pending in BAR 5.
        let control = (VECTORS - 1).to_le_bytes();
        self.put(MSIX, &[0x11, 0x00, control[0], control[1]]).put(MSIX + 4, &[0x04]).put(MSIX + 8, &[0x05]);
        self.free(MSIX + 2, &0xc000_u16.to_le_bytes());
    }

    /// Reads; what lies beyond is zero.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = offset.checked_add(at).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Effect {
        /// Initiate Function Level Reset: the highest bit of device control; it reads as zero.
        const RESET: u8 = 0x80;
        let mut effect = Effect::None;
        for (at, value) in from.iter().enumerate() {
            let Some(at) = offset.checked_add(at).filter(|at| *at < LEN) else { break };
            let free = self.writable[at];
            self.bytes[at] = self.bytes[at] & !free | value & free;
            if at == DEVICE_CONTROL + 1 && value & RESET != 0 {
                effect = Effect::Reset;
            }
        }
        effect
    }

    /// The bytes that are used.
    #[must_use]
    pub fn used(&self) -> &[u8; USED] {
        self.bytes.first_chunk().unwrap_or(&[0; USED])
    }

    /// Becomes what was saved elsewhere. `false`: it is not the same device, for it has other bits that nobody writes.
    #[must_use]
    pub fn restore(&mut self, saved: &[u8; USED]) -> bool {
        let new = Self::default();
        let is_same = (0..USED).all(|at| (saved[at] ^ new.bytes[at]) & !new.writable[at] == 0);
        if is_same {
            self.bytes[..USED].copy_from_slice(saved);
        }
        is_same
    }

    /// All is as at the beginning.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_device_is_restored() {
        let (mut one, mut other) = (Space::default(), Space::default());
        one.write(COMMAND, &[0x06, 0x04]);
        one.write(MSIX + 2, &[0xff, 0xff]);
        assert!(other.restore(one.used()));
        assert_eq!(other.used(), one.used());
        let mut foreign = *one.used();
        foreign[0x08] ^= 1;
        assert!(!other.restore(&foreign));
        assert_eq!(other.used(), one.used());
    }

    fn read(space: &Space, at: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn it_is_an_nvme_controller_with_its_capabilities() {
        let space = Space::default();
        assert_eq!((read(&space, 8) >> 8, read(&space, 4) >> 16, read(&space, 0x3c)), (0x01_0802, 0x10, 0x100));
        let (mut at, mut found) = ((read(&space, 0x34) & 0xff) as usize, Vec::new());
        while at != 0 {
            let head = read(&space, at);
            found.push(head & 0xff);
            at = (head >> 8 & 0xff) as usize;
        }
        assert_eq!(found, [0x01, 0x10, 0x11]);
        assert_eq!(read(&space, MSIX) >> 16 & 0x7ff, u32::from(VECTORS) - 1);
        let mut beyond = [1; 8];
        space.read(LEN - 4, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }

    #[test]
    fn sizes_show_and_most_cannot_be_written() {
        let mut space = Space::default();
        for at in (0..LEN).step_by(4) {
            if at != DEVICE_CONTROL {
                assert_eq!(space.write(at, &[0xff; 4]), Effect::None, "{at:x}");
            }
        }
        assert_eq!([read(&space, 0x10), read(&space, 0x14), read(&space, 0x18)], [0xffff_c004, 0xffff_ffff, 0]);
        assert_eq!([read(&space, 0x20), read(&space, 0x24)], [0xffff_f000; 2]);
        assert_eq!((read(&space, 0), read(&space, 8)), (IDENTIFIERS, CLASS));
        assert_eq!(space.write(usize::MAX, &[1; 8]), Effect::None);
        assert_eq!(space.write(DEVICE_CONTROL, &[0, 0x80]), Effect::Reset);
        assert_eq!(read(&space, DEVICE_CONTROL) & 0x8000, 0);
    }
}
