//! Names and addresses of ports.

use lunar_link::MacAddress;
use std::fmt;
use std::str::FromStr;

/// An N_Port_Name or a Node_Name (WWPN, WWNN), written `20:00:52:54:00:12:34:02`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wwn(pub u64);

impl Wwn {
    /// The name of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Wwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.bytes().iter().enumerate() {
            let separator = if at == 0 { "" } else { ":" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Wwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wwn({self})")
    }
}

/// A text is not a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAName;

impl FromStr for Wwn {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let mut bytes = [0; 8];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(NotAName)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAName)?;
        }
        if parts.next().is_some() { Err(NotAName) } else { Ok(Self::from_bytes(bytes)) }
    }
}

/// An N_Port_ID: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u32);

/// The prefix of MAC addresses of VN_Ports without a fabric (FC-BB-6, VN2VN).
const VN2VN_MAP: [u8; 3] = [0x0e, 0xfd, 0x00];

impl PortId {
    /// No port: the source of a login at a fabric.
    pub const NONE: Self = Self(0);
    /// The port of a switch at which ports log in (F_Port).
    pub const FABRIC_PORT: Self = Self(0xff_fffe);
    /// The fabric controller, which reports changes.
    pub const FABRIC_CONTROLLER: Self = Self(0xff_fffd);
    /// The name server.
    pub const NAME_SERVER: Self = Self(0xff_fffc);

    /// The identifier of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 3]) -> Self {
        let [a, b, c] = bytes;
        Self(u32::from_be_bytes([0, a, b, c]))
    }

    /// The identifier of a VN_Port without a fabric; `None` for 0 and FFFFh.
    #[must_use]
    pub fn of_neighbour(number: u16) -> Option<Self> {
        (number != 0 && number != u16::MAX).then_some(Self(number.into()))
    }

    /// Whether a VN_Port without a fabric can have it.
    #[must_use]
    pub fn is_neighbour(self) -> bool {
        u16::try_from(self.0).is_ok_and(|number| Self::of_neighbour(number).is_some())
    }

    /// Whether a port of a fabric can have it: others are those of services, or reserved.
    #[must_use]
    pub fn is_fabric_port(self) -> bool {
        (1..=0xef).contains(&(self.0 >> 16))
    }

    /// Whether it has the same first bytes as another one.
    #[must_use]
    pub fn has_prefix(self, other: Self, bytes: usize) -> bool {
        self.bytes()[..bytes.min(3)] == other.bytes()[..bytes.min(3)]
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The MAC address of the VN_Port without a fabric.
    #[must_use]
    pub fn mac(self) -> MacAddress {
        self.mac_in(VN2VN_MAP)
    }

    /// The MAC address of the VN_Port in a fabric with this FC-MAP, which grants such addresses (FPMA).
    #[must_use]
    pub fn mac_in(self, map: [u8; 3]) -> MacAddress {
        let ([a, b, c], [d, e, f]) = (map, self.bytes());
        MacAddress([a, b, c, d, e, f])
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let name: Wwn = "20:00:52:54:00:12:34:0A".parse().expect("right");
        assert_eq!((name.0, name.to_string().as_str()), (0x2000_5254_0012_340a, "20:00:52:54:00:12:34:0a"));
        for wrong in ["", "20:00:52:54:00:12:34", "20:00:52:54:00:12:34:0a:00", "2:00:52:54:00:12:34:0a0", "+1:00"] {
            assert!(wrong.parse::<Wwn>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_has_the_address_of_its_identifier() {
        let port = PortId::of_neighbour(0x3401).expect("valid");
        assert_eq!(port.mac(), MacAddress([0x0e, 0xfd, 0, 0, 0x34, 0x01]));
        assert_eq!((PortId::of_neighbour(0), PortId::of_neighbour(0xffff)), (None, None));
        assert!(port.is_neighbour() && !PortId::from_bytes([1, 0x34, 1]).is_neighbour());
    }
}
