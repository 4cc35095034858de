//! The messages between stations and the switches of a fabric (FCF).

use super::{
    Descriptors, Kind, MacDescriptor, Message, NameDescriptor, Neighbour, Operation, PortDescriptor, SizeDescriptor,
    assembled, mac_descriptor, service,
};
use crate::wire::names::{PortId, Wwn};
use lunar_core::wire::be::{U16, U32};
use lunar_link::MacAddress;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The group address of all stations, to which switches send advertisements.
pub const ALL_STATIONS: MacAddress = MacAddress([0x01, 0x10, 0x18, 0x01, 0x00, 0x01]);
/// The group address of all switches.
pub const ALL_SWITCHES: MacAddress = MacAddress([0x01, 0x10, 0x18, 0x01, 0x00, 0x02]);
/// The prefix of MAC addresses of VN_Ports that fabrics use by default (FC-MAP).
pub const DEFAULT_MAP: [u8; 3] = [0x0e, 0xfc, 0x00];

/// FIP flag: the fabric grants the MAC addresses of VN_Ports (FPMA).
const FPMA: u16 = 0x8000;
/// FIP flag: the switch is available for logins.
const AVAILABLE: u16 = 0x0004;
/// FIP flag: the advertisement was solicited.
const SOLICITED: u16 = 0x0002;
/// FIP flag: the sender is a switch.
const SWITCH: u16 = 0x0001;
/// The flag of a keep-alive descriptor: the switch wants no keep-alives.
const NO_KEEP_ALIVES: u8 = 1;
/// The shortest and the longest period that a switch may announce (FC-BB-6: 250 ms to 90 s), and the usual one.
const PERIODS: (u32, u32) = (250, 90_000);
const PERIOD: u32 = 8000;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PriorityDescriptor {
    kind: u8,
    words: u8,
    reserved: u8,
    pub(super) priority: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FabricDescriptor {
    kind: u8,
    words: u8,
    number: U16,
    reserved: u8,
    map: [u8; 3],
    name: [u8; 8],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct KeepAliveDescriptor {
    kind: u8,
    words: u8,
    reserved: u8,
    flags: u8,
    milliseconds: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct VlanDescriptor {
    kind: u8,
    words: u8,
    pub(super) vlan: U16,
}

/// A switch (FCF), as it advertises itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// Its MAC address.
    pub mac: MacAddress,
    /// Its name.
    pub switch: Wwn,
    /// The name of its fabric.
    pub fabric: Wwn,
    /// The prefix of MAC addresses that it grants.
    pub map: [u8; 3],
    /// Its priority: the lowest one is best.
    pub priority: u8,
    /// The time between its advertisements, and between keep-alives of a station (FKA_ADV_PERIOD).
    pub period: Duration,
    /// Whether it wants keep-alives.
    pub wants_keep_alives: bool,
    /// Whether stations may log in.
    pub is_available: bool,
    /// Whether it answers a solicitation: such a frame is as long as the largest one.
    pub is_solicited: bool,
    /// Whether it grants MAC addresses.
    pub grants: bool,
}

/// Clear Virtual Links: logins at a switch are void.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clear<'a> {
    /// The MAC address of the switch.
    pub mac: MacAddress,
    /// Its name.
    pub switch: Wwn,
    descriptors: &'a [u8],
}

impl Clear<'_> {
    /// Whether the login of a port of this identifier, name and MAC address is void: it is named, or none is.
    #[must_use]
    pub fn is_for(&self, id: PortId, name: Wwn, mac: MacAddress) -> bool {
        let (mut rest, mut names_any) = (self.descriptors, false);
        // The lengths were checked.
        while let [kind, words, ..] = rest {
            let Some((descriptor, more)) = rest.split_at_checked(usize::from(*words) * 4) else { break };
            if Kind(*kind) == Kind::VN_PORT {
                names_any = true;
                let port = PortDescriptor::ref_from_bytes(descriptor);
                if port.is_ok_and(|port| port.id == id.bytes() && port.name == name.bytes() && port.mac == mac.0) {
                    return true;
                }
            }
            rest = more;
        }
        !names_any
    }
}

impl<'a> Descriptors<'a> {
    /// The message of a switch, or to one.
    pub(super) fn of_fabric(&self, operation: Operation, descriptors: &'a [u8], flags: u16) -> Option<Message<'a>> {
        let mac = self.mac.filter(|mac| !mac.is_group())?;
        Some(match operation {
            Operation::SOLICITATION => Message::Solicitation(mac, self.name?, self.size?),
            Operation::ADVERTISEMENT => Message::Advertisement(self.advertisement(mac, flags)?),
            Operation::KEEP_ALIVE => {
                let port = self.port.map(|port| (PortId::from_bytes(port.id), Wwn::from_bytes(port.name)));
                Message::KeepAlive(mac, port)
            }
            Operation::CLEAR => Message::Clear(Clear { mac, switch: self.name?, descriptors }),
            Operation::VLAN_REQUEST => Message::VlanRequest(mac),
            Operation::VLAN_NOTIFICATION => Message::Vlan(self.vlan? & 0xfff),
            _ => return None,
        })
    }

    fn advertisement(&self, mac: MacAddress, flags: u16) -> Option<Advertisement> {
        let (fabric, keep_alive) = (self.fabric?, self.keep_alive?);
        let milliseconds = keep_alive.milliseconds.get();
        let is_valid = (PERIODS.0..=PERIODS.1).contains(&milliseconds);
        let period = Duration::from_millis(if is_valid { milliseconds } else { PERIOD }.into());
        // A prefix without a bit of its own, or that of a group, makes no addresses.
        if fabric.map == [0; 3] || fabric.map[0] & 1 != 0 {
            return None;
        }
        Some(Advertisement {
            mac,
            switch: self.name.filter(|name| name.0 != 0)?,
            fabric: Wwn::from_bytes(fabric.name),
            map: fabric.map,
            priority: self.priority?,
            period,
            wants_keep_alives: keep_alive.flags & NO_KEEP_ALIVES == 0,
            is_available: flags & AVAILABLE != 0,
            is_solicited: flags & SOLICITED != 0,
            grants: flags & FPMA != 0,
        })
    }
}

fn name_descriptor(name: Wwn) -> NameDescriptor {
    NameDescriptor { kind: Kind::NAME.0, words: 3, reserved: [0; 2], name: name.bytes() }
}

fn port_descriptor(port: &Neighbour, mac: MacAddress) -> PortDescriptor {
    let (id, name) = (port.id.bytes(), port.name.bytes());
    PortDescriptor { kind: Kind::VN_PORT.0, words: 5, mac: mac.0, reserved: 0, id, name }
}

/// A solicitation of a station with this Node_Name, which receives FCoE frames of this size.
#[must_use]
pub fn solicitation(station: MacAddress, node: Wwn, size: u16) -> Vec<u8> {
    let size = SizeDescriptor { kind: Kind::SIZE.0, words: 1, size: size.into() };
    let (mac, name) = (mac_descriptor(station), name_descriptor(node));
    assembled(Operation::SOLICITATION, FPMA, &[mac.as_bytes(), name.as_bytes(), size.as_bytes()])
}

/// A request for the VLANs of switches.
#[must_use]
pub fn vlan_request(station: MacAddress) -> Vec<u8> {
    assembled(Operation::VLAN_REQUEST, FPMA, &[mac_descriptor(station).as_bytes()])
}

/// The answer of a switch to such a request.
#[must_use]
pub fn vlan_notification(mac: MacAddress, vlan: u16) -> Vec<u8> {
    let vlan = VlanDescriptor { kind: Kind::VLAN.0, words: 1, vlan: vlan.into() };
    assembled(Operation::VLAN_NOTIFICATION, FPMA | SWITCH, &[mac_descriptor(mac).as_bytes(), vlan.as_bytes()])
}

/// A keep-alive of a station, or of its port with this MAC address.
#[must_use]
pub fn keep_alive(station: MacAddress, port: Option<(&Neighbour, MacAddress)>) -> Vec<u8> {
    let mac = mac_descriptor(station);
    let port = port.map(|(port, mac)| port_descriptor(port, mac));
    let port = port.as_ref().map_or(&[][..], IntoBytes::as_bytes);
    assembled(Operation::KEEP_ALIVE, FPMA, &[mac.as_bytes(), port])
}

/// An advertisement. A solicited one is padded to the size of the largest FCoE frame of the station.
#[must_use]
pub fn advertisement(of: &Advertisement) -> Vec<u8> {
    let priority = PriorityDescriptor { kind: Kind::PRIORITY.0, words: 1, reserved: 0, priority: of.priority };
    let fabric = FabricDescriptor {
        kind: Kind::FABRIC.0,
        words: 4,
        number: 0.into(),
        reserved: 0,
        map: of.map,
        name: of.fabric.bytes(),
    };
    let keep_alive = KeepAliveDescriptor {
        kind: Kind::KEEP_ALIVE.0,
        words: 2,
        reserved: 0,
        flags: if of.wants_keep_alives { 0 } else { NO_KEEP_ALIVES },
        // A period has at most 90 seconds.
        milliseconds: (of.period.as_millis() as u32).into(),
    };
    let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    let flags = flag(of.grants, FPMA) | flag(of.is_available, AVAILABLE) | flag(of.is_solicited, SOLICITED) | SWITCH;
    let (mac, name): (MacDescriptor, _) = (mac_descriptor(of.mac), name_descriptor(of.switch));
    let parts = [priority.as_bytes(), mac.as_bytes(), name.as_bytes(), fabric.as_bytes(), keep_alive.as_bytes()];
    assembled(Operation::ADVERTISEMENT, flags, &parts)
}

/// Clear Virtual Links of a switch: for these ports, or for all.
#[must_use]
pub fn clear((mac, switch): (MacAddress, Wwn), ports: &[(Neighbour, MacAddress)]) -> Vec<u8> {
    let (mac, name) = (mac_descriptor(mac), name_descriptor(switch));
    let ports: Vec<PortDescriptor> = ports.iter().map(|(port, mac)| port_descriptor(port, *mac)).collect();
    assembled(Operation::CLEAR, FPMA | SWITCH, &[mac.as_bytes(), name.as_bytes(), ports.as_bytes()])
}

/// A link service between a station and a switch.
#[must_use]
pub fn link_service(operation: Operation, kind: Kind, frame: &[u8], mac: Option<MacAddress>) -> Vec<u8> {
    service(operation, FPMA, kind, (frame, mac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::golden;
    use proptest::prelude::*;

    fn switch() -> Advertisement {
        Advertisement {
            mac: MacAddress([0x02, 0xfc, 0, 0, 0, 1]),
            switch: Wwn(0x1000_02fc_0000_0001),
            fabric: Wwn(0x1001_02fc_0000_0001),
            map: DEFAULT_MAP,
            priority: 128,
            period: Duration::from_secs(8),
            wants_keep_alives: true,
            is_available: true,
            is_solicited: true,
            grants: true,
        }
    }

    /// The layouts of FC-BB-6: each byte of the messages.
    const ADVERTISEMENT: &str = "100000010002000c8007 01010080 020202fc00000001 04030000100002fc00000001 \
        05040000000efc00100102fc00000001 0c02000000001f40";
    const SOLICITATION: &str = "10000001000100068000 0202525400123401 040300001000525400123401 060105da";
    const KEEP_ALIVE: &str = "10000003000100078000 0202525400123401 0b050efc00010203000102032000525400123401";

    fn port() -> Neighbour {
        golden::port([1, 2, 3])
    }

    #[test]
    fn messages_have_the_layouts_of_the_standard() {
        let bytes = advertisement(&switch());
        assert_eq!(bytes, golden::frame(ADVERTISEMENT));
        assert_eq!(Message::parse(&bytes), Some(Message::Advertisement(switch())));
        let port = port();
        let bytes = solicitation(port.station, port.node, 1498);
        assert_eq!(bytes[..34], golden::frame(SOLICITATION));
        assert_eq!(Message::parse(&bytes), Some(Message::Solicitation(port.station, port.node, 1498)));
        let mac = port.id.mac_in(DEFAULT_MAP);
        let bytes = keep_alive(port.station, Some((&port, mac)));
        assert_eq!(bytes[..38], golden::frame(KEEP_ALIVE));
        assert_eq!(Message::parse(&bytes), Some(Message::KeepAlive(port.station, Some((port.id, port.name)))));
        assert_eq!(Message::parse(&vlan_request(mac)), Some(Message::VlanRequest(mac)));
        assert_eq!(Message::parse(&vlan_notification(mac, 1002)), Some(Message::Vlan(1002)));
    }

    #[test]
    fn links_are_cleared_by_name_or_all_together() {
        let (one, other) = (port(), Neighbour { id: PortId::from_bytes([1, 2, 4]), ..port() });
        let mac = |port: &Neighbour| port.id.mac_in(DEFAULT_MAP);
        let clears = |ports: &[Neighbour], port: &Neighbour| {
            let ports: Vec<_> = ports.iter().map(|port| (*port, mac(port))).collect();
            let bytes = clear((switch().mac, switch().switch), &ports);
            let Some(Message::Clear(clear)) = Message::parse(&bytes) else { panic!("it is read") };
            clear.is_for(port.id, port.name, mac(port))
        };
        assert!(clears(&[], &one) && clears(&[other, one], &one) && !clears(&[other], &one));
    }

    #[test]
    fn advertisements_without_a_part_are_refused() {
        let whole = advertisement(&switch());
        // Each descriptor is made unknown but optional.
        for at in [10, 14, 22, 34, 50] {
            let mut bytes = whole.clone();
            bytes[at] = 200;
            assert_eq!(Message::parse(&bytes), None, "byte {at}");
        }
        let mut bytes = whole;
        bytes[39..42].fill(0);
        assert_eq!(Message::parse(&bytes), None, "no prefix of addresses");
    }

    proptest! {
        #[test]
        fn damaged_messages_do_no_harm(at in 0usize..70, value in any::<u8>()) {
            let ports = [(port(), MacAddress([2; 6])); 2];
            for mut bytes in [advertisement(&switch()), clear((switch().mac, switch().switch), &ports)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                if let Some(Message::Clear(clear)) = Message::parse(&bytes) {
                    let _ = clear.is_for(port().id, port().name, MacAddress([2; 6]));
                }
            }
        }
    }
}
