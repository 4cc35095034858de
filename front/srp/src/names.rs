//! Port identifiers.

use std::fmt;

/// An SRP port identifier: an extension of 8 bytes, and a GUID of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub [u8; 16]);

impl PortId {
    /// The identifier with this GUID in both halves.
    #[must_use]
    pub fn of_guid(guid: u64) -> Self {
        Self((u128::from(guid) << 64 | u128::from(guid)).to_be_bytes())
    }

    /// The name of a target port with this identifier (SAM-6): that of an EUI-64 with an extension.
    #[must_use]
    pub fn scsi(&self) -> String {
        format!("eui.{:032X}", u128::from_be_bytes(self.0))
    }
}

/// The spelling of initiators in configurations, nexuses and logs.
impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_spelled() {
        let id = PortId::of_guid(0x5054_00ff_fe12_3401);
        assert_eq!(id.to_string(), "0x505400fffe123401505400fffe123401");
        assert_eq!(id.scsi(), "eui.505400FFFE123401505400FFFE123401");
    }
}
