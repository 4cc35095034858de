//! Neighbour discovery for IPv6 (RFC 4861): solicitations and advertisements of neighbours. Routers are configured, and
//! not discovered.

use super::icmp;
use super::ip::{NEIGHBOUR_HOP_LIMIT, Packet};
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U32;
use lunar_link::MacAddress;
use std::net::{IpAddr, Ipv6Addr};

/// The types of messages (RFC 4861 section 4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with the MAC address of the sender, and of the target (RFC 4861 section 4.6.1).
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
/// Lengths of options count such units.
const OPTION_UNIT: usize = 8;
/// The flags of an advertisement: it was solicited; it replaces what is known.
const IS_SOLICITED: u32 = 1 << 30;
const OVERRIDES: u32 = 1 << 29;

/// All nodes of the link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node group of an address (RFC 4291 section 2.7.1).
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u128::from(u32::from_be_bytes([0, a, b, c]));
    Ipv6Addr::from_bits(0xff02_u128 << 112 | 0x01_ff00_0000 | low)
}

/// The MAC address of a group (RFC 2464 section 7).
#[must_use]
pub fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A question for the MAC address of the target, with that of the sender. Without one, a station that begins to
    /// use the address asks whether another one has it (RFC 4862 section 5.4).
    Solicitation {
        /// The target.
        target: Ipv6Addr,
        /// The MAC address of the sender.
        sender: Option<MacAddress>,
    },
    /// The MAC address of the target.
    Advertisement {
        /// The target.
        target: Ipv6Addr,
        /// Its MAC address.
        mac: Option<MacAddress>,
        /// Whether it is the answer to a solicitation.
        is_solicited: bool,
        /// Whether it replaces a MAC address that is known.
        overrides: bool,
    },
}

/// The MAC address in the option of this kind. The error: an option is malformed.
fn option(mut bytes: &[u8], wanted: u8) -> Result<Option<MacAddress>, ()> {
    let mut found = None;
    while let [kind, units, ..] = bytes {
        let (option, rest) = bytes.split_at_checked(usize::from(*units) * OPTION_UNIT).ok_or(())?;
        let mac = option.get(2..8).and_then(|mac| mac.first_chunk::<6>()).ok_or(())?;
        if *kind == wanted {
            found = Some(MacAddress(*mac)).filter(|mac| !mac.is_group());
        }
        bytes = rest;
    }
    if bytes.is_empty() { Ok(found) } else { Err(()) }
}

impl Message {
    /// The message of a packet of ICMPv6; `None`: it is another one, or breaks a rule of RFC 4861 sections 7.1.1 and
    /// 7.1.2.
    #[must_use]
    pub fn parse(packet: &Packet<'_>, message: &icmp::Message<'_>) -> Option<Self> {
        let (IpAddr::V6(from), IpAddr::V6(to)) = (packet.from, packet.to) else { return None };
        if packet.hop_limit != NEIGHBOUR_HOP_LIMIT || message.code != 0 {
            return None;
        }
        let mut cursor = Cursor::new(message.body);
        let flags = cursor.take::<U32>().ok()?.get();
        let target = Ipv6Addr::from(*cursor.take::<[u8; 16]>().ok()?);
        let options = cursor.rest();
        if target.is_multicast() {
            return None;
        }
        match message.kind {
            SOLICITATION => {
                let sender = option(options, SOURCE_MAC).ok()?;
                let is_probe = from.is_unspecified();
                if is_probe && (to != solicited_node(target) || sender.is_some()) {
                    return None;
                }
                Some(Self::Solicitation { target, sender })
            }
            ADVERTISEMENT => {
                let mac = option(options, TARGET_MAC).ok()?;
                let is_solicited = flags & IS_SOLICITED != 0;
                if to.is_multicast() && is_solicited {
                    return None;
                }
                Some(Self::Advertisement { target, mac, is_solicited, overrides: flags & OVERRIDES != 0 })
            }
            _ => None,
        }
    }

    /// The packet of the message between these addresses.
    #[must_use]
    pub fn packet(&self, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let (kind, flags, target, option) = match *self {
            Self::Solicitation { target, sender } => (SOLICITATION, 0, target, sender.map(|mac| (SOURCE_MAC, mac))),
            Self::Advertisement { target, mac, is_solicited, overrides } => {
                let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
                let flags = flag(is_solicited, IS_SOLICITED) | flag(overrides, OVERRIDES);
                (ADVERTISEMENT, flags, target, mac.map(|mac| (TARGET_MAC, mac)))
            }
        };
        let mut body = [&flags.to_be_bytes()[..], &target.octets()].concat();
        if let Some((kind, mac)) = option {
            body.extend([kind, 1]);
            body.extend(mac.0);
        }
        icmp::packet(from.into(), to.into(), NEIGHBOUR_HOP_LIMIT, kind, &body)
    }
}

#[cfg(test)]
#[path = "ndp_tests.rs"]
mod tests;
