//! The FCoE Initialization Protocol (FC-BB-6): VN2VN discovery, and link services that are carried by it. The messages
//! of a switch and to it are in [`fabric`].

pub mod fabric;

use super::names::{PortId, Wwn};
use fabric::{Advertisement, Clear, FabricDescriptor, KeepAliveDescriptor, PriorityDescriptor, VlanDescriptor};
use lunar_core::codes;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U16;
use lunar_link::MacAddress;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType of FIP.
pub const ETHER_TYPE: u16 = 0x8914;
/// The group address of all ports without a fabric.
pub const ALL_VN2VN: MacAddress = MacAddress([0x01, 0x10, 0x18, 0x01, 0x00, 0x04]);
/// The version.
const VERSION: u8 = 1;
/// The fewest bytes behind the Ethernet header: the shortest frame on an Ethernet has 60 bytes.
const BODY_MIN: usize = 46;
/// Descriptors of a number from which on receivers ignore the unknown ones.
const OPTIONAL: u8 = 128;
/// The number of the TYPE of the Fibre Channel Protocol, which has a bit and a nibble in the FC-4 features.
const FCP_TYPE: usize = 8;

codes! {
    /// Operations: the code and the subcode.
    pub struct Operation(u32) {
        SOLICITATION = 0x1_01, ADVERTISEMENT = 0x1_02, KEEP_ALIVE = 0x3_01, CLEAR = 0x3_02,
        VLAN_REQUEST = 0x4_01, VLAN_NOTIFICATION = 0x4_02,
        LINK_SERVICE_REQUEST = 0x2_01, LINK_SERVICE_REPLY = 0x2_02,
        PROBE_REQUEST = 0x5_01, PROBE_REPLY = 0x5_02, CLAIM_NOTIFICATION = 0x5_03, CLAIM_RESPONSE = 0x5_04,
        BEACON = 0x5_05,
    }
}

codes! {
    /// Types of descriptors.
    pub struct Kind(u8) {
        PRIORITY = 1, MAC = 2, NAME = 4, FABRIC = 5, SIZE = 6, FLOGI = 7, FDISC = 8, LOGO = 9, ELP = 10, VN_PORT = 11,
        KEEP_ALIVE = 12, VLAN = 14, FEATURES = 15,
    }
}

impl Operation {
    fn is_link_service(self) -> bool {
        matches!(self, Self::LINK_SERVICE_REQUEST | Self::LINK_SERVICE_REPLY)
    }

    fn is_claim(self) -> bool {
        matches!(self, Self::CLAIM_NOTIFICATION | Self::CLAIM_RESPONSE)
    }

    fn is_announcement(self) -> bool {
        self.0 >> 8 == Self::BEACON.0 >> 8
    }

    /// Whether a descriptor may occur.
    fn may_have(self, kind: Kind) -> bool {
        match kind {
            Kind::MAC => true,
            Kind::FLOGI | Kind::FDISC | Kind::LOGO | Kind::ELP => self.is_link_service(),
            Kind::NAME => !self.is_link_service() && !matches!(self, Self::KEEP_ALIVE | Self::VLAN_NOTIFICATION),
            Kind::VN_PORT => self.is_announcement() || matches!(self, Self::KEEP_ALIVE | Self::CLEAR),
            Kind::SIZE => self.is_claim() || self == Self::SOLICITATION,
            Kind::FEATURES => self.is_claim(),
            Kind::PRIORITY | Kind::FABRIC | Kind::KEEP_ALIVE => self == Self::ADVERTISEMENT,
            Kind::VLAN => self == Self::VLAN_NOTIFICATION,
            _ => false,
        }
    }

    /// Whether a descriptor may occur several times.
    fn may_repeat(self, kind: Kind) -> bool {
        matches!((self, kind), (Self::CLEAR, Kind::VN_PORT) | (Self::VLAN_NOTIFICATION, Kind::VLAN))
    }
}

/// FIP flag: the identifier was used before (in probes), or the port is a point-to-point one.
pub const RECORDED: u16 = 0x0008;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    reserved: u8,
    operation: U16,
    reserved2: u8,
    subcode: u8,
    /// The length of all descriptors in words of 32 bits.
    words: U16,
    flags: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MacDescriptor {
    kind: u8,
    words: u8,
    mac: [u8; 6],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NameDescriptor {
    kind: u8,
    words: u8,
    reserved: [u8; 2],
    name: [u8; 8],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SizeDescriptor {
    kind: u8,
    words: u8,
    size: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PortDescriptor {
    kind: u8,
    words: u8,
    mac: [u8; 6],
    reserved: u8,
    id: [u8; 3],
    name: [u8; 8],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FeaturesDescriptor {
    kind: u8,
    words: u8,
    reserved: [u8; 2],
    types: [u8; 32],
    features: [u8; 128],
}

/// The functions of a port for the Fibre Channel Protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Functions {
    /// It is a target.
    pub target: bool,
    /// It is an initiator.
    pub initiator: bool,
}

impl Functions {
    fn nibble(self) -> u8 {
        u8::from(self.target) | u8::from(self.initiator) << 1
    }
}

/// Where the nibble of a type lies among the features: the last bytes of a word of 32 bits have the first types.
const FEATURE_AT: usize = FCP_TYPE / 8 * 4 + 3 - FCP_TYPE % 8 / 2;
/// Where the byte with the bit of a type lies among the types.
const TYPE_AT: usize = FCP_TYPE / 32 * 4 + 3 - FCP_TYPE % 32 / 8;
/// The types of the Fibre Channel Protocol and of Common Transport, which every port has.
const TYPES: [(usize, u8); 2] = [(TYPE_AT, 1 << (FCP_TYPE % 8)), (7, 1)];

/// A port without a fabric, as it announces itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The MAC address of its station (ENode).
    pub station: MacAddress,
    /// Node_Name.
    pub node: Wwn,
    /// N_Port_Name.
    pub name: Wwn,
    /// N_Port_ID.
    pub id: PortId,
}

/// The announcement of a port: a probe, a claim or a beacon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The port.
    pub port: Neighbour,
    /// Of a claim: the size of its largest FCoE frame.
    pub size: Option<u16>,
    /// Of a claim: its functions.
    pub functions: Option<Functions>,
    /// Whether the identifier was used before.
    pub is_recorded: bool,
}

/// A link service that is carried by FIP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkService<'a> {
    /// The descriptor that carries it.
    pub kind: Kind,
    /// The header of the frame of the Fibre Channel and its payload.
    pub frame: &'a [u8],
    /// The MAC address that follows it.
    pub mac: Option<MacAddress>,
}

/// A message, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A probe, a claim or a beacon.
    Announcement(Operation, Announcement),
    /// A request or a reply.
    LinkService(Operation, LinkService<'a>),
    /// A station looks for switches: its MAC address, its name, and the size of its largest FCoE frame.
    Solicitation(MacAddress, Wwn, u16),
    /// A switch.
    Advertisement(Advertisement),
    /// A station is alive, and one of its ports if there is one.
    KeepAlive(MacAddress, Option<(PortId, Wwn)>),
    /// A switch ends logins.
    Clear(Clear<'a>),
    /// A station looks for the VLANs of switches.
    VlanRequest(MacAddress),
    /// A switch serves this VLAN, and maybe others.
    Vlan(u16),
}

/// The descriptors of a message: the first one of each kind.
#[derive(Default)]
struct Descriptors<'a> {
    seen: u32,
    mac: Option<MacAddress>,
    name: Option<Wwn>,
    size: Option<u16>,
    port: Option<PortDescriptor>,
    functions: Option<Functions>,
    service: Option<(Kind, &'a [u8])>,
    priority: Option<u8>,
    fabric: Option<FabricDescriptor>,
    keep_alive: Option<KeepAliveDescriptor>,
    vlan: Option<u16>,
}

impl<'a> Descriptors<'a> {
    /// Takes all descriptors; `None` when one is malformed, occurs twice or does not belong to the operation.
    fn parse(operation: Operation, mut bytes: &'a [u8]) -> Option<Self> {
        let mut all = Self::default();
        while !bytes.is_empty() {
            let [kind, words, ..] = bytes else { return None };
            let (kind, len) = (Kind(*kind), usize::from(*words) * 4);
            let (descriptor, rest) = bytes.split_at_checked(len).filter(|_| len > 0)?;
            bytes = rest;
            if kind.0 >= OPTIONAL {
                continue;
            }
            let bit = 1_u32.checked_shl(kind.0.into())?;
            let is_first = all.seen & bit == 0;
            if !operation.may_have(kind) || !is_first && !operation.may_repeat(kind) {
                return None;
            }
            all.seen |= bit;
            if is_first {
                all.take(kind, descriptor)?;
            }
        }
        Some(all)
    }

    fn take(&mut self, kind: Kind, bytes: &'a [u8]) -> Option<()> {
        match kind {
            Kind::MAC => self.mac = Some(MacAddress(MacDescriptor::ref_from_bytes(bytes).ok()?.mac)),
            Kind::NAME => self.name = Some(Wwn::from_bytes(NameDescriptor::ref_from_bytes(bytes).ok()?.name)),
            Kind::SIZE => self.size = Some(SizeDescriptor::ref_from_bytes(bytes).ok()?.size.get()),
            Kind::VN_PORT => self.port = Some(*PortDescriptor::ref_from_bytes(bytes).ok()?),
            Kind::PRIORITY => self.priority = Some(PriorityDescriptor::ref_from_bytes(bytes).ok()?.priority),
            Kind::FABRIC => self.fabric = Some(*FabricDescriptor::ref_from_bytes(bytes).ok()?),
            Kind::KEEP_ALIVE => self.keep_alive = Some(*KeepAliveDescriptor::ref_from_bytes(bytes).ok()?),
            Kind::VLAN => self.vlan = Some(VlanDescriptor::ref_from_bytes(bytes).ok()?.vlan.get()),
            Kind::FEATURES => {
                let nibble = FeaturesDescriptor::ref_from_bytes(bytes).ok()?.features[FEATURE_AT];
                self.functions = Some(Functions { target: nibble & 1 != 0, initiator: nibble & 2 != 0 });
            }
            // Only one link service is in a message.
            _ => {
                if self.service.is_some() {
                    return None;
                }
                self.service = Some((kind, bytes.get(4..)?));
            }
        }
        Some(())
    }
}

impl<'a> Message<'a> {
    /// The message in the payload of an Ethernet frame; `None`: it is malformed, or of an unknown operation.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let head: &Head = cursor.take().ok()?;
        let operation = Operation(u32::from(head.operation.get()) << 8 | u32::from(head.subcode));
        if head.version >> 4 != VERSION || operation.name().is_none() {
            return None;
        }
        let descriptors = cursor.bytes(usize::from(head.words.get()) * 4).ok()?;
        let all = Descriptors::parse(operation, descriptors)?;
        if operation.is_link_service() {
            let (kind, frame) = all.service?;
            return Some(Self::LinkService(operation, LinkService { kind, frame, mac: all.mac }));
        }
        if !operation.is_announcement() {
            return all.of_fabric(operation, descriptors, head.flags.get());
        }
        let port = all.port?;
        let name = Wwn::from_bytes(port.name);
        let port = Neighbour { station: all.mac?, node: all.name?, name, id: PortId::from_bytes(port.id) };
        if port.station.is_group() {
            return None;
        }
        let is_recorded = head.flags.get() & RECORDED != 0;
        Some(Self::Announcement(
            operation,
            Announcement { port, size: all.size, functions: all.functions, is_recorded },
        ))
    }
}

fn assembled(operation: Operation, flags: u16, descriptors: &[&[u8]]) -> Vec<u8> {
    let descriptors = descriptors.concat();
    let head = Head {
        version: VERSION << 4,
        reserved: 0,
        // The subcode is the lowest byte.
        operation: ((operation.0 >> 8) as u16).into(),
        reserved2: 0,
        subcode: operation.0 as u8,
        words: ((descriptors.len() / 4) as u16).into(),
        flags: flags.into(),
    };
    let mut bytes = [head.as_bytes(), &descriptors].concat();
    bytes.resize(bytes.len().max(BODY_MIN), 0);
    bytes
}

fn mac_descriptor(mac: MacAddress) -> MacDescriptor {
    MacDescriptor { kind: Kind::MAC.0, words: 2, mac: mac.0 }
}

/// The announcement of a port, behind the Ethernet header. The functions and the size are in claims only.
#[must_use]
pub fn announcement(operation: Operation, port: &Neighbour, (functions, size): (Functions, u16)) -> Vec<u8> {
    let mac = mac_descriptor(port.station);
    let name = NameDescriptor { kind: Kind::NAME.0, words: 3, reserved: [0; 2], name: port.node.bytes() };
    let id = PortDescriptor {
        kind: Kind::VN_PORT.0,
        words: 5,
        mac: port.id.mac().0,
        reserved: 0,
        id: port.id.bytes(),
        name: port.name.bytes(),
    };
    let common = [mac.as_bytes(), name.as_bytes(), id.as_bytes()].concat();
    if !operation.is_claim() {
        return assembled(operation, 0, &[&common]);
    }
    let mut features =
        FeaturesDescriptor { kind: Kind::FEATURES.0, words: 41, reserved: [0; 2], types: [0; 32], features: [0; 128] };
    TYPES.iter().for_each(|(at, bit)| features.types[*at] |= bit);
    features.features[FEATURE_AT] = functions.nibble();
    let size = SizeDescriptor { kind: Kind::SIZE.0, words: 1, size: size.into() };
    assembled(operation, 0, &[&common, features.as_bytes(), size.as_bytes()])
}

/// A link service, behind the Ethernet header: the frame of the Fibre Channel, then a MAC address.
#[must_use]
pub fn link_service(operation: Operation, kind: Kind, frame: &[u8], mac: Option<MacAddress>) -> Vec<u8> {
    service(operation, 0, kind, (frame, mac))
}

fn service(operation: Operation, flags: u16, kind: Kind, (frame, mac): (&[u8], Option<MacAddress>)) -> Vec<u8> {
    // A link service has some 150 bytes, in whole words.
    let words = ((frame.len() + 4) / 4) as u8;
    let mac = mac.map(mac_descriptor);
    let mac = mac.as_ref().map_or(&[][..], IntoBytes::as_bytes);
    assembled(operation, flags, &[&[kind.0, words, 0, 0], frame, mac])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::golden;
    use proptest::prelude::*;

    fn port() -> Neighbour {
        golden::port([0, 0x34, 1])
    }

    #[test]
    fn recorded_announcements_are_taken_apart_and_built() {
        let both = Functions { target: true, initiator: true };
        for (text, operation) in [
            (golden::PROBE, Operation::PROBE_REQUEST),
            (golden::CLAIM, Operation::CLAIM_NOTIFICATION),
            (golden::BEACON, Operation::BEACON),
        ] {
            let bytes = golden::frame(text);
            assert_eq!(announcement(operation, &port(), (both, 1498)), bytes[14..], "{operation:?}");
            let Some(Message::Announcement(parsed, announced)) = Message::parse(&bytes[14..]) else {
                panic!("{operation:?} is not read")
            };
            assert_eq!((parsed, announced.port), (operation, port()));
            let claimed = (operation == Operation::CLAIM_NOTIFICATION).then_some((both, 1498));
            assert_eq!(announced.functions.zip(announced.size), claimed);
        }
    }

    #[test]
    fn recorded_link_services_are_taken_apart_and_built() {
        for text in [golden::FLOGI, golden::FLOGI_ACCEPT, golden::LOGO] {
            let bytes = &golden::frame(text)[14..];
            let Some(Message::LinkService(operation, service)) = Message::parse(bytes) else { panic!("{text}") };
            assert_eq!(link_service(operation, service.kind, service.frame, service.mac), bytes, "{text}");
        }
    }

    #[test]
    fn descriptors_that_do_not_belong_are_refused() {
        let claim = announcement(Operation::CLAIM_NOTIFICATION, &port(), (Functions::default(), 1498));
        let head = size_of::<Head>();
        let with = |operation: Operation, words: usize, more: &[u8]| {
            let mut bytes = claim[..head + words * 4].to_vec();
            bytes.extend(more);
            bytes[5] = operation.0 as u8;
            let words = (bytes.len() - head) as u16 / 4;
            bytes[6..8].copy_from_slice(&words.to_be_bytes());
            bytes.resize(bytes.len().max(BODY_MIN), 0);
            Message::parse(&bytes).is_some()
        };
        assert!(with(Operation::BEACON, 10, &[]) && with(Operation::BEACON, 10, &[200, 1, 0, 0]));
        assert!(!with(Operation::BEACON, 52, &[]), "sizes and features belong to claims");
        assert!(!with(Operation::BEACON, 10, &[2, 2, 2, 0, 0, 0, 0, 0]), "twice");
        assert!(!with(Operation::BEACON, 10, &[3, 1, 0, 0]), "an unknown one");
        assert!(!with(Operation::BEACON, 10, &[200, 0, 0, 0]), "of no length");
        assert!(!with(Operation::BEACON, 10, &[200, 9, 0, 0]), "longer than the message");
        assert!(!with(Operation::BEACON, 5, &[]), "without a port");
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..260)) {
            let _ = Message::parse(&bytes);
        }

        #[test]
        fn damaged_claims_do_no_harm(at in 0usize..218, value in any::<u8>()) {
            let mut claim = announcement(Operation::CLAIM_NOTIFICATION, &port(), (Functions::default(), 1498));
            claim[at] = value;
            let _ = Message::parse(&claim);
        }
    }
}
