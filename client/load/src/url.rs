//! The URL of a unit: `iscsi://host[:port][/target-name[/lun]]`, `nvme-tcp://host[:port][/nqn[/namespace]]`,
//! `nvme-rdma://host[:port][/nqn[/namespace]]`, `vfio-user:/socket[#namespace]`, `vhost-user:/socket`,
//! `vhost-scsi:/socket[#lun]`, `aoe:link:shelf.slot`, `fcoe:link[,fabric][@wwpn][#lun]`, `st:udp:address:port[#lun]` or
//! `st:link@mac[#lun]`.

use lunar_aoe::wire::{Address, NotAnAddress};
use lunar_fcoe::wire::names::Wwn;
use lunar_link::address::AddressError;
use lunar_link::{LinkAddress, MacAddress};
use lunar_st::port::LinkSpec;
use std::fmt;
use std::str::FromStr;

/// The protocol of a URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    NvmeTcp,
    /// NVMe over RDMA.
    NvmeRdma,
    /// NVMe over vfio-user.
    VfioUser,
    /// A disk (virtio-blk) over vhost-user.
    VhostUser,
    /// A SCSI host adapter (virtio-scsi) over vhost-user.
    VhostScsi,
    /// ATA over Ethernet.
    Aoe,
    /// Fibre Channel over Ethernet.
    Fcoe,
    /// SCSI over Scheduled Transfer.
    St,
}

impl Protocol {
    /// The network protocols.
    const ALL: [Self; 3] = [Self::Iscsi, Self::NvmeTcp, Self::NvmeRdma];

    fn scheme(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::NvmeTcp => "nvme-tcp",
            Self::NvmeRdma => "nvme-rdma",
            Self::VfioUser => "vfio-user",
            Self::VhostUser => "vhost-user",
            Self::VhostScsi => "vhost-scsi",
            Self::Aoe => "aoe",
            Self::Fcoe => "fcoe",
            Self::St => "st",
        }
    }

    /// The port number that IANA assigned; 0 for protocols without ports.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Iscsi => 3260,
            Self::NvmeTcp | Self::NvmeRdma => 4420,
            Self::VfioUser | Self::VhostUser | Self::VhostScsi | Self::Aoe | Self::Fcoe | Self::St => 0,
        }
    }

    /// The valid unit numbers. For iSCSI and virtio-scsi those of flat space addressing (SAM-6 4.7.7.2).
    fn units(self) -> std::ops::RangeInclusive<u32> {
        match self {
            Self::Iscsi | Self::VhostScsi => 0..=0x3fff,
            Self::NvmeTcp | Self::NvmeRdma | Self::VfioUser => 1..=0xffff_fffe,
            // A socket has one disk.
            Self::VhostUser => 0..=0,
            // Shelf and slot.
            Self::Aoe => 0..=0xff_ffff,
            // Peripheral device addressing.
            Self::Fcoe | Self::St => 0..=0xff,
        }
    }
}

/// The end of a link that leads to a Fibre Channel switch.
const FABRIC: &str = ",fabric";

/// The URL of a unit. Without a target name it stands for the first target that discovery returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// The protocol.
    pub protocol: Protocol,
    /// Host name or address, IPv6 without brackets. For vhost-user: the path of the socket; for vfio-user also that of
    /// a folder with a socket `cntrl`. For protocols on Ethernet frames: the link. For Scheduled Transfer over UDP:
    /// `udp:ADDRESS:PORT`.
    pub host: String,
    /// The TCP port; over RDMA, that of the connection manager.
    pub port: u16,
    /// The IQN of the target, the NQN of the subsystem, the WWPN of the port, or its MAC address.
    pub target: Option<String>,
    /// LUN or namespace ID; the lowest valid number unless the URL has one. For ATA over Ethernet: 256 times the shelf,
    /// plus the slot.
    pub unit: u32,
}

impl Url {
    /// Host and port, as `connect` takes them.
    #[must_use]
    pub fn portal(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// A socket of which a URL may name a unit.
    fn of_socket(protocol: Protocol, rest: &str) -> Result<Self, String> {
        let (path, unit) = rest.split_once('#').map_or((rest, None), |(path, unit)| (path, Some(unit)));
        if path.is_empty() {
            return Err(format!("{}: the path of the socket is missing", protocol.scheme()));
        }
        let unit = unit_of(unit, protocol)?;
        Ok(Self { protocol, host: path.to_owned(), port: 0, target: None, unit })
    }

    fn of_disk(path: &str) -> Result<Self, String> {
        if path.is_empty() {
            return Err("vhost-user: the path of the socket is missing".to_owned());
        }
        Ok(Self { protocol: Protocol::VhostUser, host: path.to_owned(), port: 0, target: None, unit: 0 })
    }

    fn of_link(rest: &str) -> Result<Self, String> {
        let (link, address) = rest.rsplit_once(':').ok_or("aoe: write a link, a shelf and a slot: aoe:eth0:1.0")?;
        let Address { shelf, slot } = address.parse().map_err(|why: NotAnAddress| why.to_string())?;
        let link: LinkAddress = link.parse().map_err(|why: AddressError| why.to_string())?;
        let unit = u32::from(shelf) << 8 | u32::from(slot);
        Ok(Self { protocol: Protocol::Aoe, host: link.to_string(), port: 0, target: None, unit })
    }

    fn of_port(rest: &str) -> Result<Self, String> {
        let (rest, unit) = rest.split_once('#').map_or((rest, None), |(rest, unit)| (rest, Some(unit)));
        let (link, target) = rest.split_once('@').map_or((rest, None), |(link, name)| (link, Some(name)));
        let (link, end) = match link.strip_suffix(FABRIC) {
            Some(link) => (link, FABRIC),
            None => (link, ""),
        };
        let link: LinkAddress = link.parse().map_err(|why: AddressError| why.to_string())?;
        let is_name = |name: &&str| name.parse::<Wwn>().is_err();
        if let Some(wrong) = target.filter(is_name) {
            return Err(format!("{wrong:?} is no WWPN, as 50:00:00:12:34:56:78:9a"));
        }
        let (unit, target) = (unit_of(unit, Protocol::Fcoe)?, target.map(str::to_owned));
        Ok(Self { protocol: Protocol::Fcoe, host: format!("{link}{end}"), port: 0, target, unit })
    }

    /// The link of a protocol on Ethernet frames, and whether it leads to a Fibre Channel switch.
    #[must_use]
    pub fn link(&self) -> (&str, bool) {
        let link = self.host.strip_suffix(FABRIC).filter(|_| self.protocol == Protocol::Fcoe);
        (link.unwrap_or(&self.host), link.is_some())
    }

    fn of_st(rest: &str) -> Result<Self, String> {
        let (rest, unit) = rest.split_once('#').map_or((rest, None), |(rest, unit)| (rest, Some(unit)));
        let unit = unit_of(unit, Protocol::St)?;
        let (host, target) = match rest.split_once('@') {
            None => match rest.parse() {
                Ok(LinkSpec::Udp(address)) => (format!("udp:{address}"), None),
                Ok(LinkSpec::Frames(_)) => return Err(format!("st: {rest:?} lacks the MAC address: st:eth0@MAC")),
                Err(why) => return Err(why.to_string()),
            },
            Some((link, mac)) => {
                let link: LinkAddress = link.parse().map_err(|why: AddressError| why.to_string())?;
                self::mac(mac).ok_or_else(|| format!("{mac:?} is no MAC address, as 02:00:00:12:34:56"))?;
                (link.to_string(), Some(mac.to_owned()))
            }
        };
        Ok(Self { protocol: Protocol::St, host, port: 0, target, unit })
    }

    /// The address of an ATA over Ethernet target.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { shelf: (self.unit >> 8) as u16, slot: self.unit as u8 }
    }

    /// The same unit at another portal, which is written `host[:port][,group]` (RFC 7143 13.8).
    ///
    /// # Errors
    /// A message that says what is wrong with the portal.
    pub fn at_portal(&self, portal: &str) -> Result<Self, String> {
        let portal = portal.split(',').next().unwrap_or_default();
        let (host, port) = split_portal(portal, self.protocol)?;
        Ok(Self { host, port, ..self.clone() })
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("vfio-user:") {
            return Self::of_socket(Protocol::VfioUser, rest);
        }
        if let Some(rest) = text.strip_prefix("vhost-scsi:") {
            return Self::of_socket(Protocol::VhostScsi, rest);
        }
        if let Some(path) = text.strip_prefix("vhost-user:") {
            return Self::of_disk(path);
        }
        if let Some(rest) = text.strip_prefix("aoe:") {
            return Self::of_link(rest);
        }
        if let Some(rest) = text.strip_prefix("fcoe:") {
            return Self::of_port(rest);
        }
        if let Some(rest) = text.strip_prefix("st:") {
            return Self::of_st(rest);
        }
        let (protocol, rest) = (Protocol::ALL.into_iter())
            .find_map(|protocol| Some((protocol, text.strip_prefix(protocol.scheme())?.strip_prefix("://")?)))
            .ok_or_else(|| {
                format!(
                    "{text:?} is neither iscsi://HOST[:PORT][/TARGET-NAME[/LUN]] nor \
                     nvme-tcp://HOST[:PORT][/NQN[/NAMESPACE]] nor nvme-rdma://HOST[:PORT][/NQN[/NAMESPACE]] nor \
                     vfio-user:/SOCKET[#NAMESPACE] nor vhost-user:/SOCKET nor vhost-scsi:/SOCKET[#LUN] nor \
                     aoe:LINK:SHELF.SLOT nor fcoe:LINK[,fabric][@WWPN][#LUN] nor \
                     st:udp:ADDRESS:PORT[#LUN] nor st:LINK@MAC[#LUN]"
                )
            })?;
        let mut parts = rest.splitn(3, '/');
        let (host, port) = split_portal(parts.next().unwrap_or_default(), protocol)?;
        let target = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
        let unit = unit_of(parts.next(), protocol)?;
        Ok(Self { protocol, host, port, target, unit })
    }
}

/// The MAC address of this text.
pub(crate) fn mac(text: &str) -> Option<MacAddress> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = parts.next().filter(|part| part.len() == 2).and_then(|part| u8::from_str_radix(part, 16).ok())?;
    }
    parts.next().is_none().then_some(MacAddress(bytes))
}

fn unit_of(text: Option<&str>, protocol: Protocol) -> Result<u32, String> {
    let units = protocol.units();
    match text.filter(|unit| !unit.is_empty()) {
        None => Ok(*units.start()),
        Some(unit) => unit.parse().ok().filter(|unit| units.contains(unit)).ok_or_else(|| {
            format!("{unit:?} is no unit number of {}: use {} to {}", protocol.scheme(), units.start(), units.end())
        }),
    }
}

fn split_portal(portal: &str, protocol: Protocol) -> Result<(String, u16), String> {
    let (host, rest) = match portal.strip_prefix('[') {
        Some(bracketed) => {
            bracketed.split_once(']').ok_or_else(|| format!("{portal:?} lacks the ] of its IPv6 address"))?
        }
        None => portal.split_at(portal.find(':').unwrap_or(portal.len())),
    };
    if host.is_empty() {
        return Err(format!("{portal:?} has no host"));
    }
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => protocol.port(),
        Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
        None => return Err(format!("{rest:?} after the IPv6 address is not :PORT")),
    };
    Ok((host.to_owned(), port))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.protocol.scheme();
        if matches!(self.protocol, Protocol::VfioUser | Protocol::VhostScsi) {
            return write!(f, "{scheme}:{}#{}", self.host, self.unit);
        }
        if self.protocol == Protocol::VhostUser {
            return write!(f, "{scheme}:{}", self.host);
        }
        if self.protocol == Protocol::Aoe {
            return write!(f, "{scheme}:{}:{}", self.host, self.address());
        }
        if matches!(self.protocol, Protocol::Fcoe | Protocol::St) {
            let target = self.target.as_ref().map_or_else(String::new, |name| format!("@{name}"));
            return write!(f, "{scheme}:{}{target}#{}", self.host, self.unit);
        }
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port)?,
            false => write!(f, "{scheme}://{}:{}", self.host, self.port)?,
        }
        match &self.target {
            Some(target) => write!(f, "/{target}/{}", self.unit),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_urls_are_parsed() {
        for (text, host, port, target, unit) in [
            ("iscsi://a", "a", 3260, None, 0),
            ("iscsi://a:77/", "a", 77, None, 0),
            ("iscsi://10.0.0.1/iqn.2026-01.io.x:y", "10.0.0.1", 3260, Some("iqn.2026-01.io.x:y"), 0),
            ("iscsi://[fe80::1]:9/iqn.x/3", "fe80::1", 9, Some("iqn.x"), 3),
            ("iscsi://[::1]/eui.02004567A425678D/16383", "::1", 3260, Some("eui.02004567A425678D"), 16383),
            ("nvme-tcp://a", "a", 4420, None, 1),
            ("nvme-rdma://10.0.0.1/nqn.x/3", "10.0.0.1", 4420, Some("nqn.x"), 3),
            ("vfio-user:/run/vm/cntrl", "/run/vm/cntrl", 0, None, 1),
            ("vfio-user:here#7", "here", 0, None, 7),
            ("vhost-user:/run/vhost/web", "/run/vhost/web", 0, None, 0),
            ("vhost-scsi:/run/vhost/db", "/run/vhost/db", 0, None, 0),
            ("vhost-scsi:here#16383", "here", 0, None, 16383),
            ("aoe:eth0:1.2", "eth0", 0, None, 0x102),
            ("aoe:unix:/a,/b:65534.254", "unix:/a,/b", 0, None, 0xff_fefe),
            ("fcoe:eth0", "eth0", 0, None, 0),
            ("fcoe:eth0,fabric#3", "eth0,fabric", 0, None, 3),
            ("st:udp:192.0.2.1:18181", "udp:192.0.2.1:18181", 0, None, 0),
            ("st:udp:[::1]:9#5", "udp:[::1]:9", 0, None, 5),
            ("st:eth0@02:00:00:00:00:01#255", "eth0", 0, Some("02:00:00:00:00:01"), 255),
            ("fcoe:unix:/a,/b@50:00:00:00:00:00:00:01#7", "unix:/a,/b", 0, Some("50:00:00:00:00:00:00:01"), 7),
            (
                "nvme-tcp://[::1]:8009/nqn.2026-01.io.x:y/4294967294",
                "::1",
                8009,
                Some("nqn.2026-01.io.x:y"),
                0xffff_fffe,
            ),
        ] {
            let url: Url = text.parse().expect(text);
            assert_eq!((&*url.host, url.port, url.target.as_deref(), url.unit), (host, port, target, unit), "{text}");
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in [
            "a/b",
            "iscsi://",
            "iscsi://:1/x",
            "iscsi://a:x",
            "iscsi://[::1",
            "iscsi://[::1]9",
            "iscsi://a/b/c",
            "iscsi://a/b/16384",
            "nvme://a",
            "nvme-tcp://a/b/0",
            "nvme-tcp:/a",
            "nvme-rdma://a/b/0",
            "vfio-user:",
            "vfio-user:#2",
            "vfio-user:/a#0",
            "vhost-user:",
            "vhost-scsi:",
            "vhost-scsi:#1",
            "vhost-scsi:/a#16384",
            "vhost-scsi:/a#x",
            "aoe:eth0",
            "aoe:eth0:1",
            "aoe:unix:/a:1.0",
            "fcoe:",
            "fcoe:,fabric",
            "fcoe:eth0@1",
            "fcoe:eth0#256",
            "st:",
            "st:eth0",
            "st:eth0@1",
            "st:udp:1.2.3.4",
            "st:udp:1.2.3.4:5#256",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_portal_of_a_target_replaces_host_and_port() {
        let url: Url = "iscsi://a:1/iqn.x/2".parse().expect("good");
        assert_eq!(url.at_portal("[::1]:3261,1").map(|u| u.to_string()), Ok("iscsi://[::1]:3261/iqn.x/2".to_owned()));
    }
}
