//! The names of links that carry Ethernet frames, and of the stations on them.

use crate::value::{Textual, ValueError};

/// The most bytes of the name of a link: two paths of sockets.
const LINK_NAME_MAX: usize = 255;

/// The name of a link: the value of `link`. The front reads it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkName(String);

impl LinkName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Textual for LinkName {
    const WHAT: &'static str = "a network interface, or a TAP interface, or two Unix sockets: `\"eth0\"`, \
         `\"xdp:eth0\"`, `\"tap:lunar0\"`, `\"unix:/run/vm/lan.sock,/run/vm/peer.sock\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() || text.len() > LINK_NAME_MAX || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            const { assert!(LINK_NAME_MAX == 255, "the message names it") };
            return Err(ValueError::Declared("is not the name of a link: 1 to 255 bytes without spaces, as eth0"));
        }
        Ok(Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// The MAC address of a station: the value of `mac`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StationAddress(pub [u8; 6]);

impl Textual for StationAddress {
    const WHAT: &'static str = "the MAC address of one station: `\"02:00:00:12:34:56\"`";
    const PATTERN: Option<&'static str> = Some("^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        const RULE: &str = "is not the MAC address of one station, as 02:00:00:12:34:56";
        let mac = mac_bytes(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
        mac.map(Self).ok_or(ValueError::Declared(RULE))
    }

    fn text(&self) -> String {
        self.0.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// The bytes of a MAC address, which is written as `52:54:00:12:34:02`.
#[must_use]
pub fn mac_bytes(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_stations_are_read_and_written() {
        assert_eq!(LinkName::parse("unix:/a,/b").map(|name| name.text()).ok().as_deref(), Some("unix:/a,/b"));
        assert!(LinkName::parse("").is_err() && LinkName::parse("eth 0").is_err());
        assert_eq!(
            StationAddress::parse("02:00:00:12:34:5A").map(|mac| mac.text()).ok().as_deref(),
            Some("02:00:00:12:34:5a")
        );
        for wrong in ["01:00:00:00:00:00", "00:00:00:00:00:00", "02:00:00:00:00", "02:00:00:00:00:0g"] {
            assert!(StationAddress::parse(wrong).is_err(), "{wrong}");
        }
    }
}
