//! The socket, the link or the device of an address, as it is opened before it is attached to a core.

use crate::address::{DeviceName, Place, PortAddress, Site};
use crate::device;
use crate::ethernet::network::Network;
use crate::wire::PORT;
use lunar_link::{LinkAddress, MacAddress, OpenedLink};
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::datagram::{DatagramSocket, UdpConfig};
use lunar_verbs::library::manager::Identifier;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

/// The socket or link of an address, for one service.
#[derive(Debug)]
pub struct Opened {
    /// The address.
    pub(crate) address: PortAddress,
    /// The error is that it is in use. That may be by another protocol of this process, which then shares what it has
    /// opened.
    pub(crate) carrier: io::Result<OpenedCarrier>,
}

/// The carrier of the datagrams of an address.
#[derive(Debug)]
pub enum OpenedCarrier {
    /// A UDP socket.
    Socket(Endpoint),
    /// A link of frames, with the network of the address, and its MAC address if it is not that of the link.
    Link(OpenedLink, Network, Option<MacAddress>),
    /// A listener at an address of an RDMA device, which needs no datagrams.
    Device(Identifier),
}

impl Opened {
    /// The outcome of an attempt to open the socket or link of an address.
    ///
    /// # Errors
    /// Errors of the attempt, but not that it is in use.
    pub fn new(address: &PortAddress, carrier: io::Result<OpenedCarrier>) -> io::Result<Self> {
        match carrier {
            Err(why) if !matches!(why.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::ResourceBusy) => Err(why),
            carrier => Ok(Self { address: address.clone(), carrier }),
        }
    }
}

/// Opens the socket or the link of an address, on any thread.
///
/// # Errors
/// Errors of [`DatagramSocket::udp`] and [`OpenedLink::open`], but not that it is in use; the address on a link is one
/// of this machine.
pub fn open(address: &PortAddress) -> io::Result<Opened> {
    let ip = address.at.ip();
    let carrier = match &address.place {
        Place::Socket => {
            let config = UdpConfig { accepts_no_checksum: true, ..UdpConfig::new(SocketAddr::new(ip, PORT)) };
            DatagramSocket::udp(&config).map(|socket| OpenedCarrier::Socket(Endpoint::Datagram(socket)))
        }
        // The network of a virtual machine is not that of this one.
        Place::Link(on) if !matches!(on.link.address, LinkAddress::Unix { .. }) && is_of_host(ip) => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, OwnAddress));
        }
        Place::Link(on) => OpenedLink::open(&on.link).map(|link| OpenedCarrier::Link(link, on.network, on.link.mac)),
        Place::Device(name) if name.name().is_none() && is_interface(DeviceName::WORD) => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, SameName));
        }
        Place::Device(name) => {
            device::port::open(address.at, name.name()).map(OpenedCarrier::Device).map_err(io::Error::from)
        }
    };
    Opened::new(address, carrier)
}

/// Whether this machine has an address: packets to such an address have it as their source. No packet is sent.
fn is_of_host(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, PORT))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Whether this machine has a network interface of this name.
fn is_interface(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// A network interface has the name that stands for RDMA devices.
#[derive(Debug)]
pub struct SameName;

impl fmt::Display for SameName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = DeviceName::WORD;
        write!(
            f,
            "this machine has a network interface named {word}: write `{word}:DEVICE` for an RDMA device, or rename \
             the interface"
        )
    }
}

impl std::error::Error for SameName {}

/// The address on a link is one of this machine, whose kernel would answer, too.
#[derive(Debug)]
pub struct OwnAddress;

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this machine has the address itself: use one of the network that no machine has, or leave `link` out",
        )
    }
}

impl std::error::Error for OwnAddress {}

/// Another protocol has this service of this address.
#[derive(Debug)]
pub struct ServiceInUse(pub PortAddress);

impl fmt::Display for ServiceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (site, port) = (self.0.site(), self.0.at.port());
        write!(f, "another section serves the port {port} of {site} over RDMA: give this one another `port`")
    }
}

impl std::error::Error for ServiceInUse {}

/// The address is served with other settings, by another protocol or until now.
#[derive(Debug)]
pub struct OtherSettings(pub Site);

impl fmt::Display for OtherSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is served with another prefix, `gateway`, `mac` or `mtu`: write the same in all its sections, and \
             restart Lunar to change them",
            self.0
        )
    }
}

impl std::error::Error for OtherSettings {}

/// Why there is no socket or link for an address.
#[derive(Debug)]
pub struct NoSocket {
    /// The address.
    pub address: PortAddress,
    /// The error of the operating system.
    pub why: io::Error,
}

impl fmt::Display for NoSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, why } = self;
        let ip = address.at.ip();
        match &address.place {
            // The messages of links say what to do.
            Place::Link(on) => {
                write!(f, "{ip} on {} cannot be used for RDMA: {why}", on.link.address)?;
                return match why.kind() {
                    io::ErrorKind::AddrInUse | io::ErrorKind::ResourceBusy => {
                        f.write_str(" (sections with this link in common need the same address and VLAN)")
                    }
                    _ => Ok(()),
                };
            }
            // So do those of devices.
            Place::Device(device) => return write!(f, "{ip} on {device} cannot be used for RDMA: {why}"),
            Place::Socket => {}
        }
        write!(f, "UDP port {PORT} of {ip} cannot be used for RDMA: {why}")?;
        match why.kind() {
            io::ErrorKind::AddrInUse => f.write_str(
                " (an RDMA device of the kernel, as of rdma_rxe, uses it on all addresses, or another program has it: \
                 serve on the device with `link = \"verbs\"`, or remove it; with another `link`, an address that no \
                 machine has is served beside the device)",
            ),
            io::ErrorKind::AddrNotAvailable => f.write_str(" (give this machine the address first)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for NoSocket {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{LinkSettings, OnLink};

    fn at(last: u8) -> PortAddress {
        PortAddress::of_host(([192, 0, 2, last], 4420).into())
    }

    fn on(address: [u8; 4], link: &str) -> PortAddress {
        let network = Network::new(address.into(), 24, None).expect("right");
        let link = OnLink::new(link.parse().expect(link), network, LinkSettings::default());
        PortAddress { at: (address, 4420).into(), place: Place::Link(Box::new(link)) }
    }

    #[test]
    fn a_socket_that_cannot_be_opened_is_explained() {
        let words = |kind: io::ErrorKind| NoSocket { address: at(1), why: kind.into() }.to_string();
        assert!(words(io::ErrorKind::AddrInUse).contains("verbs"));
        let taken = ServiceInUse(at(1)).to_string();
        assert!(taken.contains("port 4420 of 192.0.2.1"), "{taken}");
        assert!(words(io::ErrorKind::AddrNotAvailable).starts_with("UDP port 4791 of 192.0.2.1"));
        let address = on([192, 0, 2, 1], "eth0");
        let other = OtherSettings(address.site()).to_string();
        assert!(other.contains("192.0.2.1 on eth0"), "{other}");
        let busy = NoSocket { address, why: io::ErrorKind::ResourceBusy.into() }.to_string();
        assert!(busy.starts_with("192.0.2.1 on eth0") && busy.contains("the same address"), "{busy}");
    }

    #[test]
    fn an_address_of_this_machine_is_not_served_on_a_link() {
        assert!(is_of_host([127, 0, 0, 1].into()) && !is_of_host([192, 0, 2, 77].into()));
        let missing = open(&on([192, 0, 2, 77], "none0")).expect_err("there is no such interface").to_string();
        assert!(missing.contains("ip link"), "{missing}");
        assert!(OwnAddress.to_string().contains("leave `link` out"));
    }

    #[test]
    fn a_missing_device_is_explained() {
        let address = PortAddress { place: Place::Device(DeviceName::default()), ..at(1) };
        let why = open(&address).expect_err("no device has such an address");
        let words = NoSocket { address, why }.to_string();
        assert!(words.starts_with("192.0.2.1 on verbs cannot be used for RDMA: "), "{words}");
        assert!(is_interface("lo") && !is_interface("none0") && SameName.to_string().contains("verbs:DEVICE"));
    }
}
