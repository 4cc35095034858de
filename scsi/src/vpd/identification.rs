//! Unit serial number, device identification, SCSI ports.

use super::VpdPage;
use crate::cmd::inquiry::text;
use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::table::Reach;
use crate::target::PortConfig;
use lunar_core::wire::{Cursor, Writer, round_up};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 7.6.1).
pub(crate) const PROTOCOL_ISCSI: u8 = 5;

/// Unit serial number.
pub(super) struct SerialNumber;

impl VpdPage for SerialNumber {
    const PAGE: u8 = 0x80;
    const NAME: &'static str = "Unit Serial Number";
    const CLAUSE: &'static str = "SPC-4 7.8.15";
    const REACH: Reach = Reach::Unit;

    fn write(_cx: &Context<'_>, lu: &LogicalUnit, out: &mut Writer<'_>) {
        out.bytes(lu.unit.identity.serial.as_bytes());
    }
}

/// Device identification.
pub(super) struct DeviceIdentification;

/// CODE SET.
#[derive(Clone, Copy)]
enum CodeSet {
    Binary = 1,
    Ascii = 2,
    Utf8 = 3,
}

/// ASSOCIATION.
#[derive(Clone, Copy)]
enum Association {
    LogicalUnit = 0,
    Port = 1,
    Device = 2,
}

/// DESIGNATOR TYPE.
#[derive(Clone, Copy)]
enum Designator {
    T10Vendor = 1,
    Naa = 3,
    RelativePort = 4,
    PortGroup = 5,
    ScsiName = 8,
    Uuid = 0xa,
}

/// UUID TYPE: as RFC 9562 has it (SPC-5 7.7.6.12).
const RFC_9562: u8 = 0x10;

/// A designation descriptor (SPC-4 7.8.6.1).
fn designator(
    out: &mut Writer<'_>,
    set: CodeSet,
    of: Association,
    kind: Designator,
    protocol: Option<u8>,
    parts: &[&[u8]],
) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let piv = if protocol.is_some() { 0x80 } else { 0 };
    let first = protocol.unwrap_or(0) << 4 | set as u8;
    // Names are below 256 bytes: iSCSI's are below 224, and longer ones are cut.
    let length = length.min(u8::MAX.into()) as u8;
    out.bytes(&[first, piv | (of as u8) << 4 | kind as u8, 0, length]);
    let mut room = usize::from(length);
    for part in parts {
        let count = part.len().min(room);
        out.bytes(&part[..count]);
        room -= count;
    }
}

/// A SCSI name string: UTF-8, ended with a zero and filled up to a multiple of four (SPC-4 7.8.6.11).
fn name(out: &mut Writer<'_>, of: Association, protocol: Option<u8>, name: &str) {
    let fill = round_up(name.len() + 1, 4) - name.len();
    designator(out, CodeSet::Utf8, of, Designator::ScsiName, protocol, &[name.as_bytes(), &[0; 4][..fill]]);
}

/// The designators of a logical unit.
fn write_unit(lu: &LogicalUnit, out: &mut Writer<'_>) {
    let identity = &lu.unit.identity;
    let unit = Association::LogicalUnit;
    designator(out, CodeSet::Binary, unit, Designator::Naa, None, &[&identity.naa]);
    designator(out, CodeSet::Binary, unit, Designator::Uuid, None, &[&[RFC_9562, 0], &identity.uuid]);
    let vendor: [u8; 8] = text(&identity.vendor);
    let product: [u8; 16] = text(&identity.product);
    let serial = identity.serial.as_bytes();
    designator(out, CodeSet::Ascii, unit, Designator::T10Vendor, None, &[&vendor, &product, serial]);
    let naa = identity.naa.iter().fold(String::from("naa."), |name, byte| name + &format!("{byte:02X}"));
    name(out, unit, None, &naa);
}

/// A designation descriptor's header (SPC-4 7.8.6.1), as CSCD descriptors have it, too.
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
    /// CODE SET, ASSOCIATION, DESIGNATOR TYPE and DESIGNATOR LENGTH.
    fn meaning(&self) -> (u8, u8, u8) {
        (self.set & 0x0f, self.kind & 0x3f, self.length)
    }
}

/// The first designator of a logical unit, which is its NAA designator, in the field of a CSCD descriptor.
pub(crate) fn naa_designator(lu: &LogicalUnit) -> [u8; 24] {
    let mut field = [0; 24];
    let length = size_of::<DesignatorHeader>() + lu.unit.identity.naa.len();
    write_unit(lu, &mut Writer::new(&mut field[..length]));
    field
}

/// Whether a logical unit tells this designator of itself.
pub(crate) fn is_named(lu: &LogicalUnit, header: &DesignatorHeader, designator: &[u8]) -> bool {
    /// A unit's designators: 80 bytes of text and numbers, the serial number's 32 and the headers.
    const ROOM: usize = 256;
    let mut bytes = [0; ROOM];
    let mut out = Writer::new(&mut bytes);
    write_unit(lu, &mut out);
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

impl VpdPage for DeviceIdentification {
    const PAGE: u8 = 0x83;
    const NAME: &'static str = "Device Identification";
    const CLAUSE: &'static str = "SPC-4 7.8.6";
    const REACH: Reach = Reach::Unit;

    fn write(cx: &Context<'_>, lu: &LogicalUnit, out: &mut Writer<'_>) {
        write_unit(lu, out);
        if let Some(port) = cx.target.port(cx.nexus.name.target_port) {
            let (of, protocol) = (Association::Port, Some(port.protocol));
            let relative = port.relative.to_be_bytes();
            designator(out, CodeSet::Binary, of, Designator::RelativePort, protocol, &[&[0; 2], &relative]);
            of_port(out, &port);
            name(out, Association::Device, protocol, &port.device);
        }
    }
}

/// Which group a port belongs to, and its name.
fn of_port(out: &mut Writer<'_>, port: &PortConfig) {
    let (of, protocol) = (Association::Port, Some(port.protocol));
    let group = port.group.to_be_bytes();
    designator(out, CodeSet::Binary, of, Designator::PortGroup, protocol, &[&[0; 2], &group]);
    name(out, of, protocol, &port.name);
}

/// SCSI ports.
pub(super) struct ScsiPorts;

impl VpdPage for ScsiPorts {
    const PAGE: u8 = 0x88;
    const NAME: &'static str = "SCSI Ports";
    const CLAUSE: &'static str = "SPC-4 7.8.14";
    const REACH: Reach = Reach::Unit;

    fn write(cx: &Context<'_>, _lu: &LogicalUnit, out: &mut Writer<'_>) {
        for port in cx.target.ports_beside(cx.nexus.name.target_port) {
            // No initiator port transport identifier: it is a target port.
            out.zeros(2).bytes(&port.relative.to_be_bytes()).zeros(6);
            let length_at = out.written();
            out.zeros(2);
            of_port(out, &port);
            // Two designators, each below 260 bytes.
            let length = (out.written() - length_at - 2) as u16;
            out.patch(length_at, &length.to_be_bytes());
        }
    }
}
