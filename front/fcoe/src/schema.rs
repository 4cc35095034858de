//! The declaration of Fibre Channel over Ethernet for the configuration: the section `[fcoe.NAME]`.

use lunar_control::Config;
use lunar_control::common_sections::{PortalGroup, Target};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::Finder;
use lunar_control::section::{Objects, Resource, optional, or, required};
use lunar_control::stations::{LinkName, StationAddress};
use lunar_control::value::{Textual, ValueError, Whole};
use lunar_control::{choices, sections};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Its name: the word of the transport.
pub const WORD: &str = "fcoe";

/// The kind of the section.
pub const FCOE: FrontKind = FrontKind { place: 4, section: "fcoe", noun: "FCoE port", may_be_missing: true };

/// Name Address Authority: locally assigned (FC-FS), in the first four bits of a derived name.
const LOCALLY_ASSIGNED: u64 = 3;

/// The N_Port_Name or Node_Name of a port: the value of `wwpn` and `wwnn`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortName(pub u64);

impl Textual for PortName {
    const WHAT: &'static str = "a name of a Fibre Channel port or node: `\"50:00:00:12:34:56:78:9a\"`";
    const PATTERN: Option<&'static str> = Some("^([0-9A-Fa-f]{2}:){7}[0-9A-Fa-f]{2}$");

    fn parse(text: &str) -> Result<Self, ValueError> {
        const RULE: &str = "is not a name of a Fibre Channel port or node, as 50:00:00:12:34:56:78:9a";
        let digits = || text.split(':').map(|part| u64::from_str_radix(part, 16).ok().filter(|_| part.len() == 2));
        let name = digits().try_fold(0_u64, |name, byte| Some(name << 8 | byte?));
        // The first four bits are the Name Address Authority, of which 0 is reserved.
        let name = name.filter(|name| text.split(':').count() == 8 && name >> 60 != 0);
        name.map(Self).ok_or(ValueError::Declared(RULE))
    }

    fn text(&self) -> String {
        self.0.to_be_bytes().map(|byte| format!("{byte:02x}")).join(":")
    }
}

choices! {
    /// The way in which a port finds initiators.
    Mode {
        /// initiators and the port find each other
        Vn2vn = "vn2vn",
        /// a Fibre Channel switch, with a name server
        Fabric = "fabric",
    }
}

sections! {
    /// A target port of a Fibre Channel on an Ethernet (FCoE), for initiators without a switch (VN2VN), or for those of
    /// a fabric. An initiator is a host whose name is its WWPN, such as `20:00:52:54:00:12:34:56`, and sees the volumes
    /// of its group. Initiators do not authenticate, and names can be forged: only a VLAN or an interface of its own
    /// protects the volumes. Groups with networks or with authentication do not fit.
    Fcoe (made: Live, removed: EndsSessions) {
        /// The link: a network interface (`eth0`), which needs the capability CAP_NET_RAW; `xdp:eth0`, the same through
        /// its driver (AF_XDP), which needs CAP_NET_ADMIN and CAP_BPF as well; `tap:NAME`; or `unix:PATH,PEER`, where
        /// each datagram is a frame, for virtual machines.
        link: LinkName = required() => EndsSessions;
        /// The target whose volumes the initiators see.
        target: To<Target> = required() => EndsSessions;
        /// `vn2vn`: initiators and this port find each other without a switch. `fabric`: the port logs in at a Fibre
        /// Channel switch (FCF) on the link, and is registered with its name server. Most switches need `vlan`, too.
        mode: Mode = or(Mode::Vn2vn) => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, the first one of the target.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The name of the port (WWPN, N_Port_Name); without this key, a name derived from those of the target and of
        /// this section, which stays the same.
        wwpn: Option<PortName> = optional() => EndsSessions;
        /// The name of the node (WWNN, Node_Name); without this key, a name derived from that of the target.
        wwnn: Option<PortName> = optional() => EndsSessions;
        /// The VLAN; without this key, frames without a tag. In a fabric, a switch that serves another VLAN is named in
        /// `lunar status`.
        vlan: Option<Whole<1, 4094>> = optional() => EndsSessions;
        /// The MAC address of a link without an interface; without this key, an address derived from the link.
        mac: Option<StationAddress> = optional() => EndsSessions;
        /// The largest payload of a frame; without this key, that of the interface, 1500 without an interface. With
        /// 2158 and more, a frame carries as much as a Fibre Channel allows.
        mtu: Option<Whole<1500, 9216>> ["bytes"] = optional() => EndsSessions;
    }
}

impl Resource for Fcoe {
    const KIND: Kind = Kind::Front(FCOE);
}

/// The names of a port and of the device that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// N_Port_Name.
    pub port: u64,
    /// Node_Name.
    pub node: u64,
    /// The name of the SCSI target device.
    pub device: String,
}

impl Names {
    /// The SCSI name of the port.
    #[must_use]
    pub fn scsi(&self) -> String {
        format!("naa.{:016x}", self.port)
    }
}

/// A name that follows from a text, and from no other one.
fn derived(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    LOCALLY_ASSIGNED << 60 | number >> 4
}

impl Fcoe {
    /// The names of the port of this section; `None` without its target. They depend on the names in the configuration
    /// only, of which those of targets are unique in the world: reservations and hosts know the port by its name.
    #[must_use]
    pub fn names(&self, name: &str, config: &Config) -> Option<Names> {
        let target = config.targets.get(self.target.name())?;
        let iqn = target.iqn.as_ref().map(|iqn| iqn.as_str().to_owned());
        let unique = iqn.clone().or_else(|| Some(target.nqn.as_ref()?.as_str().to_owned()))?;
        let node = self.wwnn.map_or_else(|| derived(&unique), |name| name.0);
        let port = self.wwpn.map_or_else(|| Self::derived_port(&unique, name), |name| name.0);
        Some(Names { port, node, device: iqn.unwrap_or_else(|| format!("naa.{node:016x}")) })
    }

    /// The name of the port of a section of this name, without `wwpn`.
    #[must_use]
    pub fn derived_port(target: &str, name: &str) -> u64 {
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
        format!("port on {}, target {}", self.link.as_str(), self.target.name())
    }
}

/// Checks that ports have links and names of their own.
pub fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let (mut links, mut names) = (HashMap::new(), HashMap::new());
    for (name, port) in objects.all::<Fcoe>() {
        if let Some(twin) = links.insert((port.link.clone(), port.vlan.map(Whole::get)), name) {
            find(name, "link", port.marks.of("link"), format!("is also that of FCoE port {twin}"));
        }
        if let Some(twin) = port.wwpn.and_then(|own| names.insert(own, name)) {
            find(name, "wwpn", port.marks.of("wwpn"), format!("is also that of FCoE port {twin}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_written_and_derived() {
        let name = PortName::parse("50:00:00:12:34:56:78:9A").expect("right");
        assert_eq!((name.0, name.text().as_str()), (0x5000_0012_3456_789a, "50:00:00:12:34:56:78:9a"));
        for wrong in
            ["", "50:00:00:12:34:56:78", "0:0:0:0:0:0:0:1", "00:00:00:00:00:00:00:01", "x0:00:00:12:34:56:78:9a"]
        {
            assert!(PortName::parse(wrong).is_err(), "{wrong}");
        }
        let (one, other) = (derived("iqn.x a"), derived("iqn.x b"));
        assert_eq!((one >> 60, other >> 60, one), (3, 3, derived("iqn.x a")));
        assert_ne!(one, other);
    }
}
