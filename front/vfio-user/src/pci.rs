//! The configuration space of the device (PCI Local Bus 3.0 6.1, PCI Express Base 4.0 7.5).

use crate::config::VECTORS;
use crate::registers::BAR_LEN;
use lunar_core::wire::le;
use std::mem::offset_of;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the configuration space.
pub const LEN: usize = 4096;
/// Bytes of the configuration space that are used. The rest is zero and read-only.
pub const USED: usize = 256;
/// Bytes of each of the regions of MSI-X: a table with sixteen bytes for each vector, and the pending bits.
pub const VECTORS_LEN: u32 = 4096;

/// Vendor and device: in no register of the PCI-SIG, as no vendor of virtual processors has an entry for this device.
/// Drivers find it by its class.
const VENDOR: u16 = 0x4c4e;
const DEVICE: u16 = 0x0001;

const _: () = assert!(VECTORS as u32 * 16 <= VECTORS_LEN, "the table of vectors has room");

/// The header (PCI Local Bus 3.0 6.1, type 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    vendor: le::U16,
    device: le::U16,
    command: le::U16,
    status: le::U16,
    revision: u8,
    programming_interface: u8,
    subclass: u8,
    class: u8,
    cache_line: u8,
    latency: u8,
    header_type: u8,
    self_test: u8,
    bars: [le::U32; 6],
    card_bus: le::U32,
    subsystem_vendor: le::U16,
    subsystem: le::U16,
    expansion_rom: le::U32,
    capabilities: u8,
    reserved: [u8; 7],
    interrupt_line: u8,
    interrupt_pin: u8,
    min_grant: u8,
    max_latency: u8,
}

/// Identifier of a capability, and where the next one is (PCI Local Bus 3.0 6.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Capability {
    id: u8,
    next: u8,
}

/// Power management (PCI Power Management 1.2 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PowerManagement {
    capability: Capability,
    capabilities: le::U16,
    control: le::U16,
    bridge: u8,
    data: u8,
}

/// PCI Express (PCI Express Base 4.0 7.5.3). The registers after the link status are zero for an endpoint like this
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Express {
    capability: Capability,
    capabilities: le::U16,
    device_capabilities: le::U32,
    device_control: le::U16,
    device_status: le::U16,
    link_capabilities: le::U32,
    link_control: le::U16,
    link_status: le::U16,
    unused: [le::U32; 10],
}

/// MSI-X (PCI Local Bus 3.0 6.8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MsiX {
    capability: Capability,
    control: le::U16,
    table: le::U32,
    pending: le::U32,
}

/// The bytes that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    header: Header,
    power: PowerManagement,
    gap: [u8; 8],
    express: Express,
    other_gap: [u8; 4],
    msi_x: MsiX,
    rest: [u8; 100],
}

const POWER: usize = offset_of!(Layout, power);
const EXPRESS: usize = offset_of!(Layout, express);
const MSI_X: usize = offset_of!(Layout, msi_x);
/// Device Control of PCI Express; its upper byte has Initiate Function Level Reset.
const DEVICE_CONTROL: usize = EXPRESS + offset_of!(Express, device_control);

const _: () = {
    assert!(offset_of!(Header, command) == 0x04 && offset_of!(Header, status) == 0x06);
    assert!(offset_of!(Header, revision) == 0x08 && offset_of!(Header, class) == 0x0b);
    assert!(offset_of!(Header, bars) == 0x10 && offset_of!(Header, subsystem_vendor) == 0x2c);
    assert!(offset_of!(Header, capabilities) == 0x34 && offset_of!(Header, interrupt_line) == 0x3c);
    assert!(size_of::<Header>() == 0x40 && size_of::<PowerManagement>() == 8);
    assert!(offset_of!(Express, device_control) == 0x08 && offset_of!(Express, link_status) == 0x12);
    assert!(size_of::<Express>() == 0x3c && size_of::<MsiX>() == 12);
    assert!(POWER == 0x40 && EXPRESS == 0x50 && MSI_X == 0x90);
    assert!(size_of::<Layout>() == USED);
};

/// The effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing more.
    None,
    /// The function is reset (Initiate Function Level Reset).
    Reset,
}

/// The configuration space.
#[derive(Clone, Debug)]
pub struct ConfigurationSpace {
    values: Box<Layout>,
    /// The bits that a write changes.
    writable: Box<Layout>,
}

impl Default for ConfigurationSpace {
    fn default() -> Self {
        Self { values: Box::new(values()), writable: Box::new(writable()) }
    }
}

/// The configuration space after a reset.
fn values() -> Layout {
    let mut space = Layout::new_zeroed();
    let header = &mut space.header;
    (header.vendor, header.device) = (VENDOR.into(), DEVICE.into());
    (header.subsystem_vendor, header.subsystem) = (VENDOR.into(), DEVICE.into());
    // Mass storage, non-volatile memory, NVMe I/O controller.
    (header.class, header.subclass, header.programming_interface, header.revision) = (0x01, 0x08, 0x02, 0x01);
    // There is a list of capabilities; INTA.
    header.status = 0x0010.into();
    (header.capabilities, header.interrupt_pin) = (POWER as u8, 1);
    // BAR 0 has 64 bits, together with BAR 1; BARs 4 and 5 have 32.
    header.bars[0] = 0x04.into();
    // Version 3: D0 and D3hot, without a soft reset.
    space.power.capability = Capability { id: 0x01, next: EXPRESS as u8 };
    (space.power.capabilities, space.power.control) = (0x0003.into(), 0x0008.into());
    // Version 2, endpoint; role-based error reporting, function level reset; one lane of 2.5 GT/s.
    space.express.capability = Capability { id: 0x10, next: MSI_X as u8 };
    (space.express.capabilities, space.express.device_capabilities) = (0x0002.into(), 0x1000_8000.into());
    (space.express.link_capabilities, space.express.link_status) = (0x11.into(), 0x11.into());
    // The table is in BAR 4, the pending bits are in BAR 5.
    space.msi_x.capability = Capability { id: 0x11, next: 0 };
    space.msi_x.control = (VECTORS - 1).into();
    (space.msi_x.table, space.msi_x.pending) = (4.into(), 5.into());
    space
}

/// The bits that a write changes.
fn writable() -> Layout {
    let mut space = Layout::new_zeroed();
    // Memory, bus master, parity error response, SERR, INTx disable.
    space.header.command = 0x0546.into();
    space.header.interrupt_line = 0xff;
    // The read-only bits of a BAR tell its size.
    space.header.bars[0] = (!(BAR_LEN - 1)).into();
    space.header.bars[1] = u32::MAX.into();
    (space.header.bars[4], space.header.bars[5]) = ((!(VECTORS_LEN - 1)).into(), (!(VECTORS_LEN - 1)).into());
    // Power state.
    space.power.control = 0x0003.into();
    // All but Initiate Function Level Reset, which reads as zero.
    space.express.device_control = 0x7fff.into();
    // MSI-X Enable, Function Mask.
    space.msi_x.control = 0xc000.into();
    space
}

impl ConfigurationSpace {
    /// Reads. Everything beyond the bytes that are used is zero.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.values.as_bytes().get(offset..).unwrap_or(&[]);
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        into[count..].fill(0);
    }

    /// Writes the writable bits.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Effect {
        /// Initiate Function Level Reset, in the upper byte of Device Control.
        const RESET: u8 = 0x80;
        let values = self.values.as_mut_bytes().iter_mut().zip(self.writable.as_bytes()).enumerate().skip(offset);
        let mut effect = Effect::None;
        for ((at, (byte, writable)), value) in values.zip(from) {
            *byte = *byte & !writable | value & writable;
            if at == DEVICE_CONTROL + 1 && value & RESET != 0 {
                effect = Effect::Reset;
            }
        }
        effect
    }

    /// The bytes that are used.
    #[must_use]
    pub fn used(&self) -> [u8; USED] {
        zerocopy::transmute!(*self.values)
    }

    /// Restores the bytes that another process has saved. `false` when they are of another device, with other read-only
    /// bits; then all is as before.
    #[must_use]
    pub fn restore(&mut self, saved: &[u8; USED]) -> bool {
        let (new, writable) = (values(), self.writable.as_bytes());
        let is_same = new
            .as_bytes()
            .iter()
            .zip(writable)
            .zip(saved)
            .all(|((new, writable), saved)| (saved ^ new) & !writable == 0);
        if is_same {
            *self.values = zerocopy::transmute!(*saved);
        }
        is_same
    }

    /// All values are as after a reset.
    pub fn reset(&mut self) {
        *self.values = values();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: usize = 0x04;
    const MSI_X_CONTROL: usize = MSI_X + 2;

    #[test]
    fn only_the_same_device_is_restored() {
        let (mut one, mut other) = (ConfigurationSpace::default(), ConfigurationSpace::default());
        one.write(COMMAND, &[0x06, 0x04]);
        one.write(MSI_X_CONTROL, &[0xff, 0xff]);
        assert!(other.restore(&one.used()));
        assert_eq!(other.used(), one.used());
        let mut foreign = one.used();
        foreign[0x08] ^= 1;
        assert!(!other.restore(&foreign));
        assert_eq!(other.used(), one.used());
        other.reset();
        assert_eq!(other.used(), ConfigurationSpace::default().used());
    }

    fn read(space: &ConfigurationSpace, at: usize) -> u32 {
        let mut bytes = [0xa5; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_device_is_an_nvme_controller_with_its_capabilities() {
        let space = ConfigurationSpace::default();
        assert_eq!((read(&space, 0), read(&space, 0x2c)), (0x0001_4c4e, 0x0001_4c4e));
        assert_eq!((read(&space, 8), read(&space, 4) >> 16, read(&space, 0x3c)), (0x0108_0201, 0x10, 0x100));
        let (mut at, mut found) = ((read(&space, 0x34) & 0xff) as usize, Vec::new());
        while at != 0 {
            let head = read(&space, at);
            found.push(head & 0xff);
            at = (head >> 8 & 0xff) as usize;
        }
        assert_eq!(found, [0x01, 0x10, 0x11]);
        assert_eq!((read(&space, 0x40), read(&space, 0x44)), (0x0003_5001, 8));
        assert_eq!((read(&space, 0x50), read(&space, 0x54)), (0x0002_9010, 0x1000_8000));
        assert_eq!((read(&space, 0x5c), read(&space, 0x60)), (0x11, 0x11_0000));
        assert_eq!((read(&space, 0x94), read(&space, 0x98)), (4, 5));
        assert_eq!(read(&space, MSI_X) >> 16 & 0x7ff, u32::from(VECTORS) - 1);
        let mut beyond = [1; 8];
        space.read(LEN - 4, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }

    #[test]
    fn bars_tell_their_sizes_and_identity_is_read_only() {
        let mut space = ConfigurationSpace::default();
        for at in (0..LEN).step_by(4) {
            if at != DEVICE_CONTROL {
                assert_eq!(space.write(at, &[0xff; 4]), Effect::None, "{at:x}");
            }
        }
        assert_eq!([read(&space, 0x10), read(&space, 0x14), read(&space, 0x18)], [0xffff_c004, 0xffff_ffff, 0]);
        assert_eq!([read(&space, 0x20), read(&space, 0x24)], [0xffff_f000; 2]);
        assert_eq!((read(&space, 0), read(&space, 8)), (0x0001_4c4e, 0x0108_0201));
        assert_eq!((read(&space, 4), read(&space, 0x44), read(&space, 0x3c)), (0x0010_0546, 0x0b, 0x1ff));
        assert_eq!(space.write(usize::MAX, &[1; 8]), Effect::None);
        assert_eq!(space.write(DEVICE_CONTROL, &[0, 0x80]), Effect::Reset);
        assert_eq!(read(&space, DEVICE_CONTROL) & 0x8000, 0);
    }
}
