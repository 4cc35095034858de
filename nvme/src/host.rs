//! Hosts and their names among the registrants of reservations.

use lunar_core::digest::fnv_128;
use lunar_core::port::NexusName;
use lunar_unit::reserve::HOST_PREFIX;
use std::fmt::Write;
use std::sync::Arc;

/// A host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its NQN.
    pub nqn: Arc<str>,
    /// Its host identifier.
    pub id: [u8; 16],
}

impl Host {
    /// Its name among the registrants of a unit. A host has its reservations through all of its controllers, so the
    /// name has target port 0, which no SCSI target port has.
    #[must_use]
    pub fn nexus(&self) -> NexusName {
        let mut name = String::from(HOST_PREFIX);
        for byte in self.id {
            write!(name, "{byte:02x}").expect("a String can always be written to");
        }
        NexusName { initiator: name.into(), target_port: 0 }
    }

    /// The host identifier of a registrant. For an initiator of another command set, it is a hash of its name.
    #[must_use]
    pub fn id_of(name: &NexusName) -> [u8; 16] {
        let digits = name.initiator.strip_prefix(HOST_PREFIX).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        digits.unwrap_or_else(|| fnv_128(&name.to_string())).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registrant_name_of_a_host_is_made_of_its_identifier() {
        let host = Host { nqn: "nqn.2014-08.org.nvmexpress:uuid:x".into(), id: [7; 16] };
        let name = host.nexus();
        assert_eq!((&*name.initiator, name.target_port), ("nvme,07070707070707070707070707070707", 0));
        assert_eq!(Host::id_of(&name), [7; 16]);
        let other = |text: &str| Host::id_of(&NexusName { initiator: text.into(), target_port: 1 });
        assert_ne!(other("iqn.a:b,i,0x00023d000001"), other("iqn.a:b,i,0x00023d000002"));
    }
}
