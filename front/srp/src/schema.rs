//! The declaration of SRP for the configuration: the section `[srp.NAME]`.

use crate::names::PortId;
use lunar_control::Config;
use lunar_control::common_sections::{PortalGroup, Target};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, optional, required};
use lunar_control::value::{Textual, ValueError};
use lunar_engine::link_ports::{RdmaSection, check_rdma};
use lunar_engine::rdma_section;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Its name: the word of the transport.
pub const WORD: &str = "srp";

/// The kind of the section.
pub const SRP: FrontKind = FrontKind { place: 5, section: "srp", noun: "SRP port", may_be_missing: true };

/// The port of the RDMA connection manager, without `port`: that of the examples for the target of Linux.
pub const PORT: u16 = 5555;
/// The bits of the first byte of an EUI-64: it is assigned locally, and it is that of one device.
const LOCALLY_ASSIGNED: u64 = 1 << 57;
const GROUP: u64 = 1 << 56;

/// A GUID: the value of `guid`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guid(pub u64);

impl Textual for Guid {
    const WHAT: &'static str = "a GUID (EUI-64): `\"505400fffe123401\"`";
    const PATTERN: Option<&'static str> = Some("^[0-9A-Fa-f]{16}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        const RULE: &str = "is not a GUID of 16 hexadecimal digits, as 505400fffe123401";
        let digits = Some(text).filter(|text| text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let guid = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).filter(|guid| *guid != 0);
        guid.map(Self).ok_or(ValueError::Declared(RULE))
    }

    fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

rdma_section! {
    /// A target port of SRP, over RDMA (RoCEv2) in user space at an IP address of this machine, or at one of its own on
    /// a link. An initiator is a host whose name is its port identifier, such as `0x0000000000000000505400fffe123402`,
    /// and sees the volumes of its group. Initiators do not authenticate, and identifiers can be forged: only a network
    /// of its own protects the volumes. Groups with networks or with authentication do not fit. Without `link`, the UDP
    /// port 4791 of the address must be free: an RDMA device of the kernel on this machine uses it. NVMe/RDMA ports and
    /// iSER portals may have the same address.
    Srp (service: PORT) {
        /// The target whose volumes the initiators see.
        target: To<Target> = required() => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, the first one of the target.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The GUID of the port: initiators give it as `id_ext` and as `ioc_guid`. Without this key, a GUID derived
        /// from the name of the target and from that of this section, which stays the same.
        guid: Option<Guid> = optional() => EndsSessions;
    }
}

impl Resource for Srp {
    const KIND: Kind = Kind::Front(SRP);
}

/// The names of a port and of the device that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The identifier of the port.
    pub port: PortId,
    /// Its GUID.
    pub guid: u64,
    /// The name of the SCSI target device.
    pub device: String,
}

/// A GUID that follows from a text, and from no other one.
fn derived(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    (number | LOCALLY_ASSIGNED) & !GROUP
}

impl Srp {
    /// The names of the port of this section; `None` without its target. They depend on the names in the configuration
    /// only, of which those of targets are unique in the world: reservations and hosts know the port by its name.
    #[must_use]
    pub fn names(&self, name: &str, config: &Config) -> Option<Names> {
        let target = config.targets.get(self.target.name())?;
        let iqn = target.iqn.as_ref().map(|iqn| iqn.as_str().to_owned());
        let unique = iqn.clone().or_else(|| Some(target.nqn.as_ref()?.as_str().to_owned()))?;
        let guid = self.guid.map_or_else(|| Self::derived_guid(&unique, name), |guid| guid.0);
        let port = PortId::of_guid(guid);
        Some(Names { port, guid, device: iqn.unwrap_or_else(|| port.scsi()) })
    }

    /// The GUID of a section of this name, without `guid`.
    #[must_use]
    pub fn derived_guid(target: &str, name: &str) -> u64 {
        derived(&format!("{target} {name}"))
    }

    /// The tag of its portal group.
    #[must_use]
    pub fn group(&self, config: &Config) -> Option<u16> {
        let target = config.targets.get(self.target.name())?;
        let own = self.portal_group.as_ref().map(To::name);
        let group = own.or_else(|| target.portal_groups.names().next())?;
        config.portal_groups.get(group).map(|group| group.tag.get() as u16)
    }

    fn brief(&self) -> String {
        format!("port at {}, target {}", self.rdma().site(), self.target.name())
    }
}

/// Checks that ports have addresses and identifiers of their own.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    check_rdma::<Srp>(SRP.noun, objects, find);
    let mut guids = HashMap::new();
    for (name, port) in objects.all::<Srp>() {
        if let Some(twin) = port.guid.and_then(|own| guids.insert(own, name)) {
            find(name, "guid", port.marks.of("guid"), format!("is also that of SRP port {twin}"));
        }
    }
}

/// The declaration of SRP for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Srp>(SRP, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn checked(ports: &str) -> Result<Config, String> {
        let text = format!(
            "[portal-group.1]\ntag = 7\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['1']\n{ports}"
        );
        let checked = check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() });
        checked.map(|checked| checked.config).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_port_is_read_and_mistakes_are_found() {
        let good = "[srp.a]\naddress = '192.0.2.1'\ntarget = 't'\nport = 5000\nguid = '505400fffe123401'\n";
        let config = checked(good).expect("right");
        let port = config.find::<Srp>("a").expect("there");
        let names = port.names("a", &config).expect("named");
        assert_eq!((names.guid, names.device.as_str()), (0x5054_00ff_fe12_3401, "iqn.2026-01.org.example:t"));
        assert_eq!(port.group(&config), Some(7));
        let two = |more: &str| {
            let one = |name, last| format!("[srp.{name}]\naddress = '192.0.2.{last}'\ntarget = 't'\n{more}");
            one("a", 1) + &one("b", 2)
        };
        for (ports, what) in [
            ("[srp.a]\naddress = '0.0.0.0'\ntarget = 't'\n".to_owned(), "RDMA needs a definite one"),
            ("[srp.a]\naddress = '192.0.2.1'\ntarget = 't'\nlink = 'eth0'\n".to_owned(), "the prefix of its network"),
            ("[srp.a]\naddress = '192.0.2.1'\ntarget = 't'\nvlan = 7\n".to_owned(), "is for ports on a `link`"),
            ("[srp.a]\naddress = '::1'\ntarget = 't'\nguid = '1'\n".to_owned(), "is not a GUID"),
            (two("guid = '0000000000000001'\n"), "is also that of SRP port"),
            (two("").replace("192.0.2.2", "192.0.2.1"), "is also that of SRP port"),
        ] {
            let found = checked(&ports).expect_err(what);
            assert!(found.contains(what), "{ports}: {found}");
        }
    }

    #[test]
    fn names_follow_from_those_of_the_target_and_of_the_section() {
        let (one, other) = (Srp::derived_guid("iqn.x", "a"), Srp::derived_guid("iqn.x", "b"));
        assert_eq!((one >> 56 & 3, one), (2, Srp::derived_guid("iqn.x", "a")));
        assert_ne!(one, other);
    }
}
