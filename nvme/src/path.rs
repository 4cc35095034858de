//! How hosts reach controllers.

use std::net::{IpAddr, SocketAddr};

/// The well-known NQN of the discovery service, which every subsystem accepts.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of the longest NQN, without the terminating zero.
pub const NQN_BYTES_MAX: usize = 223;

/// Transport type RDMA (NVMe Base 2.0 figure 264).
pub const RDMA: u8 = 1;
/// Transport type TCP.
pub const TCP: u8 = 3;
/// The word of NVMe/TCP in the configuration, in metrics and in records.
pub const TCP_WORD: &str = "nvme-tcp";
/// The word of NVMe/RDMA there.
pub const RDMA_WORD: &str = "nvme-rdma";

/// The type of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An I/O controller, which has namespaces.
    Io,
    /// A discovery controller, which reports the subsystems and their addresses.
    Discovery,
}

/// The portal of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortalRef {
    /// The number of the portal.
    pub portal: u32,
    /// The tag of its portal group. 0: none; the access state is Optimized then.
    pub group: u16,
    /// Whether the portal requires TLS.
    pub is_secure: bool,
}

/// How a host reached a controller, as a discovery controller reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Transport type (NVMe Base 2.0 figure 264).
    pub transport: u8,
    /// Address family.
    pub family: u8,
    /// Transport address.
    pub address: String,
    /// Transport service identifier.
    pub service: String,
    /// Bytes of in-capsule data that a command of an I/O queue may have.
    pub in_capsule: u32,
    /// Whether headers, and data, have digests.
    pub digests: (bool, bool),
    /// Whether the queues are in the host's memory, without messages.
    pub memory: bool,
    /// The portal.
    pub portal_ref: PortalRef,
}

/// The address family of an address, as discovery reports it (NVMe over Fabrics).
#[must_use]
pub fn family(address: IpAddr) -> u8 {
    const IPV4: u8 = 1;
    const IPV6: u8 = 2;
    if address.is_ipv4() { IPV4 } else { IPV6 }
}

impl Path {
    /// The word of the transport in metrics: the name of its front.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.transport {
            _ if self.memory => "vfio-user",
            RDMA => RDMA_WORD,
            _ => TCP_WORD,
        }
    }

    /// Whether the queues are those of RDMA: the controller reads and writes the memory of its host.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        self.transport == RDMA
    }

    /// The path to this address over TCP.
    #[must_use]
    pub fn tcp(to: SocketAddr, in_capsule: u32) -> Self {
        Self::of(TCP, to, in_capsule)
    }

    /// The path to this address over RDMA.
    #[must_use]
    pub fn rdma(to: SocketAddr, in_capsule: u32) -> Self {
        Self::of(RDMA, to, in_capsule)
    }

    fn of(transport: u8, to: SocketAddr, in_capsule: u32) -> Self {
        // A socket for both families has IPv4 addresses in IPv6 notation.
        let ip = to.ip().to_canonical();
        Self {
            transport,
            family: family(ip),
            address: ip.to_string(),
            service: to.port().to_string(),
            in_capsule,
            digests: (false, false),
            memory: false,
            portal_ref: PortalRef::default(),
        }
    }
}
