//! Unit serial number, device identification, SCSI ports.

use crate::context::Context;
use crate::page::VpdPage;
use crate::sense::Sense;
use crate::spc::designator::{
    Association, CodeSet, Designator, PROTOCOL_FCP, PROTOCOL_SRP, write, write_name, write_unit,
};
use crate::target::PortConfig;
use lunar_core::wire::Writer;

/// Prefix of a SCSI name string that is an NAA designator in hexadecimal (SPC-4 7.8.6.11).
const NAA_PREFIX: &str = "naa.";
/// Before the identifier of a port of SRP in its name.
const EUI_PREFIX: &str = "eui.";

/// Unit serial number.
pub(crate) struct SerialNumber;

impl VpdPage for SerialNumber {
    const PAGE: u8 = 0x80;
    const NAME: &'static str = "Unit Serial Number";
    const CLAUSE: &'static str = "SPC-4 7.8.15";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        out.bytes(cx.lu()?.identity().serial.as_bytes());
        Ok(())
    }
}

/// Device identification.
pub(crate) struct DeviceIdentification;

impl VpdPage for DeviceIdentification {
    const PAGE: u8 = 0x83;
    const NAME: &'static str = "Device Identification";
    const CLAUSE: &'static str = "SPC-4 7.8.6";
    const IN_FORWARDED: bool = true;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        write_unit(cx.lu()?.identity(), out);
        if let Some(port) = cx.target.port(cx.nexus.name.target_port) {
            let (of, protocol) = (Association::Port, Some(port.protocol));
            let relative = port.relative.to_be_bytes();
            write(out, CodeSet::Binary, of, Designator::RelativePort, protocol, &[&[0; 2], &relative]);
            write_port(out, &port);
            // The name of a device with ports of several protocols belongs to none of them.
            let protocol = protocol.filter(|protocol| ![PROTOCOL_FCP, PROTOCOL_SRP].contains(protocol));
            write_name(out, Association::Device, protocol, &port.device);
        }
        Ok(())
    }
}

/// Writes the designators of a target port: its group and its name.
fn write_port(out: &mut Writer<'_>, port: &PortConfig) {
    let (of, protocol) = (Association::Port, Some(port.protocol));
    let group = port.group.to_be_bytes();
    write(out, CodeSet::Binary, of, Designator::PortGroup, protocol, &[&[0; 2], &group]);
    // The port of a Fibre Channel is named by its N_Port_Name (FCP-4 annex A).
    let digits = port.name.strip_prefix(NAA_PREFIX).filter(|_| port.protocol == PROTOCOL_FCP);
    if let Some(Ok(name)) = digits.map(|digits| u64::from_str_radix(digits, 16)) {
        write(out, CodeSet::Binary, of, Designator::Naa, protocol, &[&name.to_be_bytes()]);
    }
    // The port of SRP is named by its identifier, an EUI-64 with an extension (SRP-2 annex A).
    let digits = port.name.strip_prefix(EUI_PREFIX).filter(|_| port.protocol == PROTOCOL_SRP);
    if let Some(Ok(name)) = digits.map(|digits| u128::from_str_radix(digits, 16)) {
        write(out, CodeSet::Binary, of, Designator::Eui64, protocol, &[&name.to_be_bytes()]);
    }
    write_name(out, of, protocol, &port.name);
}

/// SCSI ports.
pub(crate) struct ScsiPorts;

impl VpdPage for ScsiPorts {
    const PAGE: u8 = 0x88;
    const NAME: &'static str = "SCSI Ports";
    const CLAUSE: &'static str = "SPC-4 7.8.14";
    const IN_FORWARDED: bool = true;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        for port in cx.target.ports_of_same_device(cx.nexus.name.target_port) {
            // A target port has no initiator port transport identifier.
            out.zeros(2).bytes(&port.relative.to_be_bytes()).zeros(6);
            let length_at = out.written();
            out.zeros(2);
            write_port(out, &port);
            // Two designators, each below 260 bytes.
            let length = (out.written() - length_at - 2) as u16;
            out.patch(length_at, &length.to_be_bytes());
        }
        Ok(())
    }
}
