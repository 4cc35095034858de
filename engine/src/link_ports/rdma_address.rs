//! The address of a port over RDMA.

use lunar_control::value::{Textual, ValueError};
use std::net::IpAddr;

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
