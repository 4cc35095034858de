//! The address of a port over RDMA.

use lunar_control::value::{Textual, ValueError};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

/// The bit of the numbers of ports over RDMA, among those of all portals.
const OVER_RDMA: u32 = 1 << 31;

/// The address of an RDMA device: the value of `address`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RdmaAddress(pub IpAddr);

impl Textual for RdmaAddress {
    const WHAT: &'static str = "an IP address of this machine: `\"192.0.2.1\"`, `\"2001:db8::1\"`";

    fn parse(text: &str) -> Result<Self, ValueError> {
        const RULE: &str = "is not an IP address of this machine, as 192.0.2.1: RDMA needs a definite one";
        let address: Option<IpAddr> = text.parse().ok();
        let definite = address.filter(|address| !address.is_unspecified() && !address.is_multicast());
        definite.map(Self).ok_or(ValueError::Declared(RULE))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

impl RdmaAddress {
    /// The number of the port of this section among the portals of the process, by its service and its portal group:
    /// another one if any of this differs.
    #[must_use]
    pub fn portal_number(self, section: &str, service: u16, portal_group: &str) -> u32 {
        let text = format!("{section} {} {service} {portal_group}", self.0);
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | OVER_RDMA
    }
}
