//! Designation descriptors (SPC-4 7.8.6.1): the names of logical units, target ports and target devices.

use lunar_core::unit::Identity;
use lunar_core::wire::{Cursor, Writer, round_up};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// PROTOCOL IDENTIFIER of the Fibre Channel Protocol (SPC-4 7.6.1).
pub(crate) const PROTOCOL_FCP: u8 = 0;
/// PROTOCOL IDENTIFIER of the SCSI RDMA Protocol.
pub(crate) const PROTOCOL_SRP: u8 = 4;
/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 7.6.1).
pub(crate) const PROTOCOL_ISCSI: u8 = 5;

/// CODE SET.
#[derive(Clone, Copy)]
pub(crate) enum CodeSet {
    Binary = 1,
    Ascii = 2,
    Utf8 = 3,
}

/// ASSOCIATION.
#[derive(Clone, Copy)]
pub(crate) enum Association {
    LogicalUnit = 0,
    Port = 1,
    Device = 2,
}

/// DESIGNATOR TYPE.
#[derive(Clone, Copy)]
pub(crate) enum Designator {
    T10Vendor = 1,
    Eui64 = 2,
    Naa = 3,
    RelativePort = 4,
    PortGroup = 5,
    ScsiName = 8,
    Uuid = 0xa,
}

/// UUID TYPE: a UUID of RFC 9562 (SPC-5 7.7.6.12).
const RFC_9562: u8 = 0x10;
/// PIV: the PROTOCOL IDENTIFIER is valid.
const PROTOCOL_VALID: u8 = 0x80;

/// A field of left-aligned ASCII, padded with blanks (SPC-4 4.3.1). Other characters are left out.
pub(crate) fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let printable = text.bytes().filter(|byte| matches!(byte, 0x20..=0x7e));
    field.iter_mut().zip(printable).for_each(|(to, from)| *to = from);
    field
}

/// Writes a designation descriptor whose designator is `parts`, one after the other.
pub(crate) fn write(
    out: &mut Writer<'_>,
    set: CodeSet,
    of: Association,
    kind: Designator,
    protocol: Option<u8>,
    parts: &[&[u8]],
) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let valid = if protocol.is_some() { PROTOCOL_VALID } else { 0 };
    let first = protocol.unwrap_or(0) << 4 | set as u8;
    // Names are below 256 bytes: an iSCSI name has at most 223, and a longer name is truncated.
    let length = length.min(u8::MAX.into()) as u8;
    out.bytes(&[first, valid | (of as u8) << 4 | kind as u8, 0, length]);
    let mut room = usize::from(length);
    for part in parts {
        let count = part.len().min(room);
        out.bytes(&part[..count]);
        room -= count;
    }
}

/// Writes a SCSI name string: UTF-8, terminated by a zero and padded to a multiple of four (SPC-4 7.8.6.11).
pub(crate) fn write_name(out: &mut Writer<'_>, of: Association, protocol: Option<u8>, name: &str) {
    let padding = round_up(name.len() + 1, 4) - name.len();
    write(out, CodeSet::Utf8, of, Designator::ScsiName, protocol, &[name.as_bytes(), &[0; 4][..padding]]);
}

/// Writes the designators of a logical unit.
pub(crate) fn write_unit(identity: &Identity, out: &mut Writer<'_>) {
    let unit = Association::LogicalUnit;
    write(out, CodeSet::Binary, unit, Designator::Naa, None, &[&identity.naa]);
    write(out, CodeSet::Binary, unit, Designator::Uuid, None, &[&[RFC_9562, 0], &identity.uuid]);
    let vendor: [u8; 8] = ascii(&identity.vendor);
    let product: [u8; 16] = ascii(&identity.product);
    let serial = identity.serial.as_bytes();
    write(out, CodeSet::Ascii, unit, Designator::T10Vendor, None, &[&vendor, &product, serial]);
    let naa = identity.naa.iter().fold(String::from("naa."), |name, byte| name + &format!("{byte:02X}"));
    write_name(out, unit, None, &naa);
}

/// The header of a designation descriptor (SPC-4 7.8.6.1), which CSCD descriptors have as well.
#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DesignatorHeader {
    /// PROTOCOL IDENTIFIER, CODE SET.
    set: u8,
    /// PIV, ASSOCIATION, DESIGNATOR TYPE.
    kind: u8,
    reserved: u8,
    /// DESIGNATOR LENGTH.
    pub(crate) length: u8,
}

impl DesignatorHeader {
    /// CODE SET, ASSOCIATION with DESIGNATOR TYPE, and DESIGNATOR LENGTH.
    fn meaning(&self) -> (u8, u8, u8) {
        (self.set & 0x0f, self.kind & 0x3f, self.length)
    }
}

/// The first designator of a logical unit, which is its NAA designator, in the field of a CSCD descriptor.
pub(crate) fn naa_designator(identity: &Identity) -> [u8; 24] {
    let mut field = [0; 24];
    let length = size_of::<DesignatorHeader>() + identity.naa.len();
    write_unit(identity, &mut Writer::new(&mut field[..length]));
    field
}

/// Whether a logical unit with this identity reports this designator.
pub(crate) fn is_named(identity: &Identity, header: &DesignatorHeader, designator: &[u8]) -> bool {
    /// Room for the designators of a unit: 80 bytes of names, 32 of the serial number, and the headers.
    const ROOM: usize = 256;
    let mut bytes = [0; ROOM];
    let mut out = Writer::new(&mut bytes);
    write_unit(identity, &mut out);
    let kept = out.kept();
    let mut cursor = Cursor::new(&bytes[..kept]);
    while let Ok(own) = cursor.take::<DesignatorHeader>() {
        let Ok(value) = cursor.bytes(own.length.into()) else { return false };
        if own.meaning() == header.meaning() && value == designator {
            return true;
        }
    }
    false
}
