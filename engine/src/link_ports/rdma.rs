//! The keys that the sections of all ports over RDMA have in common: they say where a port is. Also their check, and
//! their form on the command line.
//!
//! A port is at an IP address of this machine, whose datagrams a UDP socket carries, or at one of an RDMA device of
//! this machine, or at an address of its own on a link of frames.

use super::options::{PortOption, Written};
use crate::command_line::{Draft, Given, OptionMistake};
use lunar_control::schema::Finder;
use lunar_control::section::{Marks, Objects, Resource};
use lunar_control::stations::{LinkName, StationAddress};
use lunar_control::value::{Textual, ValueError, Whole};
use lunar_link::address::AddressError;
use lunar_link::{LinkAddress, MacAddress};
use lunar_rdma::address::{DeviceName, LinkSettings, OnLink, Place, PortAddress};
use lunar_rdma::ethernet::network::{Network, NetworkError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The bit of the numbers of ports over RDMA, among those of all portals.
const OVER_RDMA: u32 = 1 << 31;

/// Declares the section of a port over RDMA, as `sections!` does: `service` is the port of the RDMA connection manager
/// without the key `port`. The keys of all ports over RDMA are added.
#[macro_export]
macro_rules! rdma_section {
    (
        $(#[doc = $doc:literal])+
        $name:ident (service: $service:expr) { $($own:tt)+ }
    ) => {
        lunar_control::sections! {
            $(#[doc = $doc])+
            $name (made: Live, removed: EndsSessions) {
                /// The IP address: one of this machine, or with `link` one that no machine has, with the prefix of its
                /// network.
                address: $crate::link_ports::RdmaAddress = lunar_control::section::required() => EndsSessions;
                /// The link on which the port has an address of its own: a network interface (`eth0`), which needs the
                /// capability CAP_NET_RAW; `tap:NAME`; or `unix:PATH,PEER`, where each datagram is a frame, for virtual
                /// machines. `verbs` uses the RDMA device of this machine that has the address, `verbs:mlx5_0` that of
                /// this name. Without this key, the UDP port 4791 of an address of this machine.
                link: Option<lunar_control::stations::LinkName> = lunar_control::section::optional() => EndsSessions;
                $($own)+
                /// The port of the RDMA connection manager.
                port: lunar_control::value::Whole<1, 65535> =
                    lunar_control::section::or(lunar_control::value::Whole::new($service as u64)) => EndsSessions;
                /// The gateway to hosts outside of the network, for a port on a link; without this key, they are not
                /// served.
                gateway: Option<$crate::link_ports::GatewayAddress> =
                    lunar_control::section::optional() => EndsSessions;
                /// The VLAN, for a port on a link; without this key, frames without a tag.
                vlan: Option<lunar_control::value::Whole<1, 4094>> =
                    lunar_control::section::optional() => EndsSessions;
                /// The MAC address, for a port on a link; without this key, that of the interface, or an address
                /// derived from the link.
                mac: Option<lunar_control::stations::StationAddress> =
                    lunar_control::section::optional() => EndsSessions;
                /// The largest payload of a frame, for a port on a link; without this key, that of the interface, 1500
                /// without an interface. With 4200 and more, a packet carries as much as RDMA allows.
                mtu: Option<lunar_control::value::Whole<1500, 9216>> ["bytes"] =
                    lunar_control::section::optional() => EndsSessions;
            }
        }

        impl $crate::link_ports::RdmaSection for $name {
            fn rdma(&self) -> $crate::link_ports::RdmaKeys<'_> {
                $crate::link_ports::RdmaKeys {
                    marks: &self.marks,
                    address: self.address,
                    link: self.link.as_ref(),
                    port: self.port,
                    gateway: self.gateway,
                    vlan: self.vlan,
                    mac: self.mac.as_ref(),
                    mtu: self.mtu,
                }
            }
        }
    };
}

/// The address of a port over RDMA: the value of `address`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RdmaAddress {
    /// The IP address.
    pub ip: IpAddr,
    /// The length of the prefix of its network, for an address on a link.
    pub prefix: Option<u8>,
}

impl Textual for RdmaAddress {
    const WHAT: &'static str = "an IP address of this machine, or one with the prefix of its network for a `link`: \
         `\"192.0.2.1\"`, `\"2001:db8::1\"`, `\"192.0.2.10/24\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        const RULE: &str = "is not an IP address, as 192.0.2.1, or 192.0.2.10/24 for a link: RDMA needs a definite one";
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix.parse().map_err(|_| ValueError::Declared(RULE))?)),
            None => (text, None),
        };
        let ip: Option<IpAddr> = ip.parse().ok();
        let definite = ip.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
        definite.map(|ip| Self { ip, prefix }).ok_or(ValueError::Declared(RULE))
    }

    fn text(&self) -> String {
        match self.prefix {
            Some(prefix) => format!("{}/{prefix}", self.ip),
            None => self.ip.to_string(),
        }
    }
}

/// The address of a gateway: the value of `gateway`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayAddress(pub IpAddr);

impl Textual for GatewayAddress {
    const WHAT: &'static str = "an IP address: `\"192.0.2.254\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| ValueError::Declared("is not an IP address, as 192.0.2.254"))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// A section that [`rdma_section!`] has declared.
pub trait RdmaSection: Resource {
    /// The keys that say where the port is.
    fn rdma(&self) -> RdmaKeys<'_>;
}

/// The keys that say where a port is.
#[derive(Clone, Copy, Debug)]
pub struct RdmaKeys<'a> {
    /// The places of the keys in the file.
    pub marks: &'a Marks,
    /// `address`.
    pub address: RdmaAddress,
    /// `link`.
    pub link: Option<&'a LinkName>,
    /// `port`.
    pub port: Whole<1, 65535>,
    /// `gateway`.
    pub gateway: Option<GatewayAddress>,
    /// `vlan`.
    pub vlan: Option<Whole<1, 4094>>,
    /// `mac`.
    pub mac: Option<&'a StationAddress>,
    /// `mtu`.
    pub mtu: Option<Whole<1500, 9216>>,
}

/// The words for a link through XDP.
const TAKES_ALL: &str = "takes all IP packets of the interface from this machine: use the interface without `xdp:`";

/// The value of `link`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Linked {
    /// A link of frames.
    Frames(LinkAddress),
    /// An RDMA device.
    Device(DeviceName),
}

impl fmt::Display for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames(link) => link.fmt(f),
            Self::Device(device) => device.fmt(f),
        }
    }
}

/// The link of this name. XDP chooses frames by their EtherType, and IP is not of RDMA only.
fn link_of(text: &str) -> Result<Option<LinkAddress>, AddressError> {
    let link: LinkAddress = text.parse()?;
    Ok(Some(link).filter(|link| !link.loads_program()))
}

/// Why keys do not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RdmaMistake {
    /// The address has a prefix, but is not on a link.
    NoLink,
    /// This key is for ports on a link.
    ForLinks(&'static str),
    /// An RDMA device has the address, whose network is that of the device.
    NoPrefix,
    /// The name of the link is wrong.
    Link(AddressError),
    /// The link takes packets of this machine.
    TakesAll,
    /// The address, its prefix and the gateway do not fit.
    Network(NetworkError),
}

impl RdmaMistake {
    /// The key that is wrong.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::ForLinks(key) => key,
            Self::Link(_) | Self::TakesAll => "link",
            Self::Network(NetworkError::Gateway(_)) => "gateway",
            Self::NoLink | Self::NoPrefix | Self::Network(_) => "address",
        }
    }
}

impl fmt::Display for RdmaMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLink => f.write_str("has a prefix: name the `link` of the address, or leave the prefix out"),
            Self::ForLinks(_) => f.write_str("is for ports on a `link` of frames"),
            Self::NoPrefix => f.write_str("has a prefix: an address of an RDMA device (`link = \"verbs\"`) has none"),
            Self::Link(why) => why.fmt(f),
            Self::TakesAll => f.write_str(TAKES_ALL),
            Self::Network(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for RdmaMistake {}

impl RdmaKeys<'_> {
    /// Where the port is.
    ///
    /// # Errors
    /// The keys do not fit.
    pub fn address(&self) -> Result<PortAddress, RdmaMistake> {
        let at = self.at();
        let device = self.link.and_then(|link| DeviceName::parse(link.as_str()));
        let Some(link) = self.link.filter(|_| device.is_none()) else {
            let others = [
                ("gateway", self.gateway.is_some()),
                ("vlan", self.vlan.is_some()),
                ("mac", self.mac.is_some()),
                ("mtu", self.mtu.is_some()),
            ];
            return match (others.into_iter().find(|(_, is_given)| *is_given), device) {
                (Some((key, _)), _) => Err(RdmaMistake::ForLinks(key)),
                (None, None) if self.address.prefix.is_some() => Err(RdmaMistake::NoLink),
                (None, Some(_)) if self.address.prefix.is_some() => Err(RdmaMistake::NoPrefix),
                (None, None) => Ok(PortAddress::of_host(at)),
                (None, Some(device)) => Ok(PortAddress { at, place: Place::Device(device) }),
            };
        };
        let link = link_of(link.as_str()).map_err(RdmaMistake::Link)?.ok_or(RdmaMistake::TakesAll)?;
        // Without a prefix, the message says that it is needed.
        let prefix = self.address.prefix.unwrap_or(0);
        let gateway = self.gateway.map(|gateway| gateway.0);
        let network = Network::new(self.address.ip, prefix, gateway).map_err(RdmaMistake::Network)?;
        let settings = LinkSettings {
            vlan: self.vlan.map(|vlan| vlan.get() as u16),
            mac: self.mac.map(|mac| MacAddress(mac.0)),
            mtu: self.mtu.map(|mtu| mtu.get() as usize),
        };
        Ok(PortAddress { at, place: Place::Link(Box::new(OnLink::new(link, network, settings))) })
    }

    /// The address at which hosts reach the port.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        // Checked when it was read.
        SocketAddr::new(self.address.ip, self.port.get() as u16)
    }

    /// Where the port is, in words.
    #[must_use]
    pub fn site(&self) -> String {
        match self.link {
            Some(link) => format!("{} on {}", self.address.text(), link.as_str()),
            None => self.address.text(),
        }
    }

    /// The number of the port of this section among the portals of the process, by where it is and by its portal group:
    /// another one if any of this differs.
    #[must_use]
    pub fn portal_number(&self, section: &str, portal_group: &str) -> u32 {
        let text = format!("{section} {} {} {portal_group}", self.site(), self.port.get());
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | OVER_RDMA
    }
}

/// Checks that the keys of all sections of a kind fit, and that each port has an address of its own; `noun` is that of
/// the kind.
pub fn check_rdma<S: RdmaSection>(noun: &str, objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut addresses = HashMap::new();
    for (name, section) in objects.all::<S>() {
        let keys = section.rdma();
        if let Err(why) = keys.address() {
            find(name, why.key(), keys.marks.of(why.key()), why.to_string());
        }
        let site = (keys.address.ip, keys.link, keys.vlan.map(Whole::get));
        if let Some(twin) = addresses.insert(site, name) {
            find(name, "address", keys.marks.of("address"), format!("is also that of {noun} {twin}"));
        }
    }
}

/// A port over RDMA on the command line: `ADDRESS`, or `ADDRESS/PREFIX@LINK`, or `ADDRESS@verbs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RdmaArgument {
    /// The address.
    pub address: RdmaAddress,
    link: Option<Linked>,
}

/// Why an argument is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArgumentError {
    /// The address is wrong.
    Address(ValueError),
    /// A prefix and a link are given both or not at all.
    Half,
    /// The link is wrong.
    Link(AddressError),
    /// The link takes packets of this machine.
    TakesAll,
    /// The address is not that of a network with this prefix.
    Network(NetworkError),
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(why) => why.fmt(f),
            Self::Half => f.write_str(
                "a prefix and a link of frames belong together, as in 192.0.2.10/24@eth0; an RDMA device needs no \
                 prefix, as in 192.0.2.10@verbs",
            ),
            Self::Link(why) => why.fmt(f),
            Self::TakesAll => f.write_str(TAKES_ALL),
            Self::Network(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ArgumentError {}

impl FromStr for RdmaArgument {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let (address, link) = match text.split_once('@') {
            Some((address, link)) => (address, Some(link)),
            None => (text, None),
        };
        let address = RdmaAddress::parse(address).map_err(ArgumentError::Address)?;
        let link = match link.map(|link| (link, DeviceName::parse(link))) {
            Some((_, Some(device))) => Some(Linked::Device(device)),
            Some((link, None)) => {
                let link = link_of(link).map_err(ArgumentError::Link)?;
                Some(Linked::Frames(link.ok_or(ArgumentError::TakesAll)?))
            }
            None => None,
        };
        match (address.prefix, &link) {
            (Some(prefix), Some(Linked::Frames(_))) => {
                Network::new(address.ip, prefix, None).map_err(ArgumentError::Network)?;
            }
            (None, None | Some(Linked::Device(_))) => {}
            _ => return Err(ArgumentError::Half),
        }
        Ok(Self { address, link })
    }
}

impl fmt::Display for RdmaArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address.text())?;
        self.link.as_ref().map_or(Ok(()), |link| write!(f, "@{link}"))
    }
}

impl RdmaArgument {
    /// The port with this service, as a banner names it.
    #[must_use]
    pub fn shown(&self, service: u16) -> String {
        let at = SocketAddr::new(self.address.ip, service);
        match &self.link {
            Some(link) => format!("{at} on {link}"),
            None => at.to_string(),
        }
    }

    /// Declares a port for each argument.
    ///
    /// # Errors
    /// An address is given twice.
    pub fn configure(
        option: &PortOption,
        all: &[Self],
        given: &Given<'_>,
        draft: &mut Draft,
    ) -> Result<(), OptionMistake> {
        let written = |argument: &Self| Written {
            argument: argument.to_string(),
            value: argument.address.text(),
            more: argument.link.iter().map(|link| ("link", link.to_string())).collect(),
        };
        option.configure_written(&all.iter().map(written).collect::<Vec<_>>(), given, draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<'a>(marks: &'a Marks, address: &str, link: Option<&'a LinkName>) -> RdmaKeys<'a> {
        let address = RdmaAddress::parse(address).expect(address);
        RdmaKeys { marks, address, link, port: Whole::new(4420), gateway: None, vlan: None, mac: None, mtu: None }
    }

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["192.0.2.1", "2001:db8::1", "192.0.2.10/24", "2001:db8::1/64"] {
            assert_eq!(RdmaAddress::parse(text).map(|address| address.text()).ok().as_deref(), Some(text));
        }
        for wrong in ["0.0.0.0", "::", "ff02::1", "eth0", "192.0.2.1/", "192.0.2.1/x", "192.0.2.1/300", ""] {
            assert!(RdmaAddress::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            GatewayAddress::parse("192.0.2.254").map(|gateway| gateway.text()).ok().as_deref(),
            Some("192.0.2.254")
        );
        assert!(GatewayAddress::parse("192.0.2.254/24").is_err());
    }

    #[test]
    fn keys_that_do_not_fit_are_found() {
        let (marks, link) = (Marks::default(), LinkName::parse("eth0").expect("right"));
        let bad = LinkName::parse("unix:/a").expect("a name");
        let mistake = |keys: RdmaKeys<'_>| {
            let why = keys.address().expect_err("wrong");
            (why.key(), why.to_string())
        };
        let host = keys(&marks, "192.0.2.1", None);
        assert_eq!(host.address(), Ok(PortAddress::of_host(host.at())));
        let (key, words) = mistake(keys(&marks, "192.0.2.1/24", None));
        assert!(key == "address" && words.contains("`link`"), "{words}");
        let (key, words) = mistake(RdmaKeys { vlan: Some(Whole::new(7)), ..host });
        assert!(key == "vlan" && words.contains("`link`"), "{words}");
        let (key, words) = mistake(keys(&marks, "192.0.2.1", Some(&link)));
        assert!(key == "address" && words.contains("prefix"), "{words}");
        let gateway = Some(GatewayAddress([192, 0, 3, 1].into()));
        let (key, _) = mistake(RdmaKeys { gateway, ..keys(&marks, "192.0.2.1/24", Some(&link)) });
        assert_eq!(key, "gateway");
        let (key, words) = mistake(keys(&marks, "192.0.2.1/24", Some(&bad)));
        assert!(key == "link" && words.contains("unix:PATH,PEER"), "{words}");
        let driver = LinkName::parse("xdp:eth0").expect("a name");
        let (key, words) = mistake(keys(&marks, "192.0.2.1/24", Some(&driver)));
        assert!(key == "link" && words.contains("without `xdp:`"), "{words}");
    }

    #[test]
    fn a_port_on_a_link_has_its_settings() {
        let (marks, link) = (Marks::default(), LinkName::parse("eth0").expect("right"));
        let mac = StationAddress([2, 0, 0, 0, 0, 1]);
        let keys = RdmaKeys {
            gateway: Some(GatewayAddress([192, 0, 2, 254].into())),
            vlan: Some(Whole::new(7)),
            mac: Some(&mac),
            mtu: Some(Whole::new(4200)),
            ..keys(&marks, "192.0.2.10/24", Some(&link))
        };
        let address = keys.address().expect("right");
        let on = address.link().expect("it is on a link");
        assert_eq!((on.link.vlan, on.link.mac.map(|mac| mac.0), on.link.mtu), (Some(7), Some(mac.0), Some(4200)));
        assert_eq!(on.network.next_hop([198, 51, 100, 1].into()), Some([192, 0, 2, 254].into()));
        assert_eq!((keys.site(), keys.at()), ("192.0.2.10/24 on eth0".into(), ([192, 0, 2, 10], 4420).into()));
        let other = RdmaKeys { link: None, ..keys };
        assert_ne!(keys.portal_number("a", "g"), other.portal_number("a", "g"));
    }

    #[test]
    fn a_port_on_a_device_has_no_settings_of_links() {
        let (marks, any) = (Marks::default(), LinkName::parse("verbs").expect("a name"));
        let at = |link: &LinkName| keys(&marks, "192.0.2.1", Some(link)).address().map(|address| address.to_string());
        assert_eq!(at(&any), Ok("192.0.2.1:4420 on verbs".into()));
        assert_eq!(at(&LinkName::parse("verbs:rxe0").expect("a name")), Ok("192.0.2.1:4420 on verbs:rxe0".into()));
        // These name interfaces.
        for link in ["verbs0", "verbs:"] {
            assert!(at(&LinkName::parse(link).expect("a name")).is_err(), "{link}");
        }
        let with_prefix = keys(&marks, "192.0.2.1/24", Some(&any)).address();
        assert_eq!(with_prefix, Err(RdmaMistake::NoPrefix));
        assert!(RdmaMistake::NoPrefix.to_string().contains("RDMA device"));
        let with_mtu = RdmaKeys { mtu: Some(Whole::new(4200)), ..keys(&marks, "192.0.2.1", Some(&any)) };
        assert_eq!(with_mtu.address(), Err(RdmaMistake::ForLinks("mtu")));
    }

    #[test]
    fn arguments_are_read_and_written() {
        for (text, shown) in [
            ("192.0.2.1", "192.0.2.1:4420"),
            ("192.0.2.10/24@eth0", "192.0.2.10:4420 on eth0"),
            ("192.0.2.10@verbs", "192.0.2.10:4420 on verbs"),
            ("192.0.2.10@verbs:rxe0", "192.0.2.10:4420 on verbs:rxe0"),
            ("2001:db8::1/64@unix:/a@b,/c", "[2001:db8::1]:4420 on unix:/a@b,/c"),
        ] {
            let argument: RdmaArgument = text.parse().expect(text);
            assert_eq!((argument.to_string().as_str(), argument.shown(4420).as_str()), (text, shown));
        }
        for (wrong, why) in [
            ("192.0.2.10@eth0", "belong together"),
            ("192.0.2.10/24", "belong together"),
            ("192.0.2.10/24@verbs", "needs no prefix"),
            ("192.0.2.10/24@unix:/a", "unix:PATH,PEER"),
            ("192.0.2.10/24@xdp:eth0", "without `xdp:`"),
            ("192.0.2.0/24@eth0", "one station"),
            ("eth0", "is not an IP address"),
        ] {
            let found = wrong.parse::<RdmaArgument>().expect_err(why).to_string();
            assert!(found.contains(why), "{wrong}: {found}");
        }
    }
}
