//! The socket of an address, as it is opened before it is attached to a core.

use crate::wire::PORT;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::datagram::{DatagramSocket, UdpConfig};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The socket of an address, for one service.
#[derive(Debug)]
pub struct Opened {
    /// The address, and the TCP port of the service.
    pub(crate) at: SocketAddr,
    /// The error is that the address is in use. That may be by another protocol of this process, which then shares its
    /// socket.
    pub(crate) socket: io::Result<Endpoint>,
}

impl Opened {
    /// The outcome of an attempt to open the socket of an address, for the service of this TCP port.
    ///
    /// # Errors
    /// Those of the attempt, but not that the address is in use.
    pub fn new(at: SocketAddr, socket: io::Result<Endpoint>) -> io::Result<Self> {
        match socket {
            Err(why) if why.kind() != io::ErrorKind::AddrInUse => Err(why),
            socket => Ok(Self { at, socket }),
        }
    }
}

/// Opens the socket of an address, for the service of this TCP port, on any thread.
///
/// # Errors
/// Those of [`DatagramSocket::udp`], but not that the address is in use.
pub fn open(at: &SocketAddr) -> io::Result<Opened> {
    let config = UdpConfig { without_checksum: true, ..UdpConfig::new(SocketAddr::new(at.ip(), PORT)) };
    Opened::new(*at, DatagramSocket::udp(&config).map(Endpoint::Datagram))
}

/// The core that serves an address: one for all protocols, because they share its socket.
#[must_use]
pub fn core_of(address: IpAddr, cores: usize) -> usize {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    let sum = match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    };
    sum % cores.max(1)
}

/// Another protocol has this service of this address.
#[derive(Debug)]
pub struct ServiceInUse(pub SocketAddr);

impl fmt::Display for ServiceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, port) = (self.0.ip(), self.0.port());
        write!(f, "another section serves the port {port} of {address} over RDMA: give this one another `port`")
    }
}

impl std::error::Error for ServiceInUse {}

/// Why there is no socket for an address.
#[derive(Debug)]
pub struct NoSocket {
    /// The address.
    pub address: IpAddr,
    /// The error of the operating system.
    pub why: io::Error,
}

impl fmt::Display for NoSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, why } = self;
        write!(f, "UDP port {PORT} of {address} cannot be used for RDMA: {why}")?;
        match why.kind() {
            io::ErrorKind::AddrInUse => f.write_str(
                " (an RDMA device of the kernel, as of rdma_rxe, uses it on all addresses, or another program has it: \
                 remove the device, or use another address)",
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

    #[test]
    fn an_address_has_one_core() {
        let core = |last: u8| core_of([192, 0, 2, last].into(), 3);
        assert_eq!([core(1), core(2), core(3), core(4)], [0, 1, 2, 0]);
        assert_eq!(core_of("2001:db8::1".parse().expect("an address"), 1), 0);
    }

    #[test]
    fn a_socket_that_cannot_be_opened_is_explained() {
        let address = [192, 0, 2, 1].into();
        let words = |kind: io::ErrorKind| NoSocket { address, why: kind.into() }.to_string();
        assert!(words(io::ErrorKind::AddrInUse).contains("remove the device"));
        let taken = ServiceInUse(SocketAddr::new(address, 4420)).to_string();
        assert!(taken.contains("port 4420 of 192.0.2.1"), "{taken}");
        assert!(words(io::ErrorKind::AddrNotAvailable).starts_with("UDP port 4791 of 192.0.2.1"));
    }
}
