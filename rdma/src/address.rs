//! Where a port of RDMA is: its address, the port of its service there, and what carries its datagrams.

use crate::ethernet::network::Network;
use crate::ethernet::station::{ether_types, groups};
use crate::limits::DEVICE_INBOX_BYTES;
use lunar_link::{Filter, LinkAddress, LinkConfig, MacAddress};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The folder with the files of RDMA devices.
const DEVICES: &str = "/dev/infiniband";

/// The address of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// The IP address, and the TCP port of the service.
    pub at: SocketAddr,
    /// How peers reach it.
    pub place: Place,
}

/// How peers reach an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A UDP socket of this machine carries the datagrams.
    Socket,
    /// A link carries the datagrams in frames.
    Link(Box<OnLink>),
    /// An RDMA device of the kernel has the address.
    Device(DeviceName),
}

/// The RDMA device of an address, as operators write it: `verbs`, or `verbs:NAME`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceName(Option<String>);

impl DeviceName {
    /// The word for RDMA devices, in the place of a link.
    pub const WORD: &str = "verbs";

    /// The device that this text names in the place of a link; `None`: it names a link.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(Self::WORD)? {
            "" => Some(Self(None)),
            // No interface has a colon in its name.
            rest => rest.strip_prefix(':').filter(|name| !name.is_empty()).map(|name| Self(Some(name.to_owned()))),
        }
    }

    /// The name of the device; `None`: the device that has the address.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORD)?;
        self.0.as_ref().map_or(Ok(()), |name| write!(f, ":{name}"))
    }
}

/// An address on a link of frames: it is not one of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnLink {
    /// The link.
    pub link: LinkConfig,
    /// The network of the address.
    pub network: Network,
}

/// Settings of a link of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkSettings {
    /// The VLAN; `None`: frames without a tag.
    pub vlan: Option<u16>,
    /// The MAC address; `None`: that of the interface, or one that is derived from the name of the link.
    pub mac: Option<MacAddress>,
    /// The most bytes behind the header of a frame; `None`: as many as the interface has, 1500 without one.
    pub mtu: Option<usize>,
}

impl OnLink {
    /// The address of a network on this link.
    #[must_use]
    pub fn new(link: LinkAddress, network: Network, settings: LinkSettings) -> Self {
        let LinkSettings { vlan, mac, mtu } = settings;
        let mut filters = groups(network.address());
        // An interface has its own address as well.
        filters.extend(mac.filter(|_| link.has_own_mac()).map(Filter::Unicast));
        let types = ether_types(network.address());
        Self { link: LinkConfig { address: link, types, filters, vlan, mac, mtu }, network }
    }
}

impl PortAddress {
    /// The address of a service on a UDP socket of this machine.
    #[must_use]
    pub fn of_host(at: SocketAddr) -> Self {
        Self { at, place: Place::Socket }
    }

    /// Its link of frames.
    #[must_use]
    pub fn link(&self) -> Option<&OnLink> {
        match &self.place {
            Place::Link(on) => Some(on),
            Place::Socket | Place::Device(_) => None,
        }
    }

    /// Loads the libraries of its device: a process that is confined cannot do that any more. A failure is reported
    /// when the device is opened.
    pub fn preload(&self) {
        if matches!(self.place, Place::Device(_)) {
            let _ = lunar_verbs::library::preload();
        }
    }

    /// The most bytes of memory for its messages, besides the memory of its core.
    #[must_use]
    pub fn memory(&self) -> u64 {
        if matches!(self.place, Place::Device(_)) { DEVICE_INBOX_BYTES as u64 } else { 0 }
    }

    /// The folders with the files of its device.
    #[must_use]
    pub fn devices(&self) -> Vec<PathBuf> {
        match &self.place {
            Place::Device(_) => vec![PathBuf::from(DEVICES)],
            Place::Socket | Place::Link(_) => Vec::new(),
        }
    }

    /// The core that serves the address, of so many: one for all protocols, because they share what carries it.
    #[must_use]
    pub fn core(&self, cores: usize) -> usize {
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>();
        let sum = match self.at.ip() {
            IpAddr::V4(address) => sum(&address.octets()),
            IpAddr::V6(address) => sum(&address.octets()),
        };
        sum % cores.max(1)
    }

    /// The folders in which files of its link are made or opened.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        self.link().map(|on| on.link.address.folders()).unwrap_or_default()
    }

    /// The part that all services at the address have in common.
    #[must_use]
    pub fn site(&self) -> Site {
        let link = self.link().map(|on| (on.link.address.clone(), on.link.vlan));
        Site { address: self.at.ip(), link, is_device: matches!(self.place, Place::Device(_)) }
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        match &self.place {
            Place::Socket => Ok(()),
            Place::Link(on) => write!(f, " on {}", on.link.address),
            Place::Device(device) => write!(f, " on {device}"),
        }
    }
}

/// An address, which several services share: links have networks of their own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Site {
    address: IpAddr,
    /// The link with its VLAN.
    link: Option<(LinkAddress, Option<u16>)>,
    is_device: bool,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match &self.link {
            Some((link, Some(vlan))) => write!(f, " on {link} in VLAN {vlan}"),
            Some((link, None)) => write!(f, " on {link}"),
            None if self.is_device => write!(f, " on {}", DeviceName::WORD),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(link: &str, settings: LinkSettings) -> PortAddress {
        let network = Network::new([192, 0, 2, 1].into(), 24, None).expect("right");
        let link = OnLink::new(link.parse().expect(link), network, settings);
        PortAddress { at: ([192, 0, 2, 1], 4420).into(), place: Place::Link(Box::new(link)) }
    }

    #[test]
    fn an_address_has_one_core() {
        let core = |last: u8| PortAddress::of_host(([192, 0, 2, last], 1).into()).core(3);
        assert_eq!([core(1), core(2), core(3), core(4)], [0, 1, 2, 0]);
        let v6 = PortAddress::of_host(SocketAddr::new("2001:db8::1".parse().expect("right"), 1));
        assert_eq!(v6.core(1), 0);
    }

    #[test]
    fn an_address_says_where_it_is() {
        let host = PortAddress::of_host(([192, 0, 2, 1], 4420).into());
        assert_eq!((host.to_string(), host.site().to_string()), ("192.0.2.1:4420".into(), "192.0.2.1".into()));
        let tagged = on("eth0", LinkSettings { vlan: Some(7), ..LinkSettings::default() });
        assert_eq!(tagged.to_string(), "192.0.2.1:4420 on eth0");
        assert_eq!(tagged.site().to_string(), "192.0.2.1 on eth0 in VLAN 7");
        let unix = on("unix:/a/x,/b/y", LinkSettings::default());
        assert_ne!(unix.site(), tagged.site());
        assert_eq!((unix.folders().len(), host.folders().len()), (2, 0));
    }

    #[test]
    fn a_mac_address_of_its_own_is_received() {
        let mac = Some(MacAddress([2, 0, 0, 0, 0, 9]));
        let filters =
            |link| on(link, LinkSettings { mac, ..LinkSettings::default() }).link().expect("one").link.filters.clone();
        assert_eq!(filters("eth0"), [Filter::Unicast(MacAddress([2, 0, 0, 0, 0, 9]))]);
        assert_eq!(filters("tap:t0"), []);
    }
}
