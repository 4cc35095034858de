//! The declaration of SCSI over Scheduled Transfer for the configuration: the section `[st.NAME]`.

use lunar_control::Config;
use lunar_control::common_sections::{PortalGroup, Target};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::Finder;
use lunar_control::section::{Objects, Resource, optional, required};
use lunar_control::sections;
use lunar_control::stations::{LinkName, StationAddress};
use lunar_control::value::Whole;
use std::collections::HashMap;

/// Its name: the word of the transport.
pub const WORD: &str = "st";

/// The kind of the section.
pub const ST: FrontKind = FrontKind { place: 5, section: "st", noun: "ST port", may_be_missing: true };

sections! {
    /// A target port of SCSI over Scheduled Transfer, an experimental transport with a private layout, for the
    /// initiator of Lunar. An initiator is a host whose name is that of an iSCSI initiator, and sees the volumes of
    /// its group. Initiators do not authenticate, and names can be forged: only a network of its own protects the
    /// volumes. Groups with authentication do not fit; groups with networks fit over UDP only.
    St (made: Live, removed: EndsSessions) {
        /// The link: `udp:ADDRESS:PORT`; a network interface (`eth0`), which needs the capability CAP_NET_RAW;
        /// `xdp:eth0`, the same through its driver (AF_XDP), which needs CAP_NET_ADMIN and CAP_BPF as well; `tap:NAME`;
        /// or `unix:PATH,PEER`, where each datagram is a frame.
        link: LinkName = required() => EndsSessions;
        /// The target whose volumes the initiators see.
        target: To<Target> = required() => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, the first one of the target.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The VLAN, not over UDP; without this key, frames without a tag.
        vlan: Option<Whole<1, 4094>> = optional() => EndsSessions;
        /// The MAC address of a link of frames without an interface; without this key, an address derived from the
        /// link.
        mac: Option<StationAddress> = optional() => EndsSessions;
        /// The largest payload of a frame; without this key, that of the interface, 1500 without an interface. Over UDP
        /// the network decides.
        mtu: Option<Whole<1500, 9216>> ["bytes"] = optional() => EndsSessions;
    }
}

impl Resource for St {
    const KIND: Kind = Kind::Front(ST);
}

/// The names of a port and of the device that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The SCSI name of the port.
    pub port: String,
    /// The name of the SCSI target device, which initiators log in to.
    pub device: String,
}

impl St {
    /// The names of the port of this section; `None` without its target or when that has no `iqn`.
    #[must_use]
    pub fn names(&self, name: &str, config: &Config) -> Option<Names> {
        let device = config.targets.get(self.target.name())?.iqn.as_ref()?.as_str().to_ascii_lowercase();
        // A portal group of iSCSI has the name of the target and a number.
        Some(Names { port: format!("{device},t,{WORD}-{name}"), device })
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

/// Checks that ports have links of their own, and targets with names.
pub fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut links = HashMap::new();
    for (name, port) in objects.all::<St>() {
        if let Some(twin) = links.insert((port.link.clone(), port.vlan.map(Whole::get)), name) {
            find(name, "link", port.marks.of("link"), format!("is also that of ST port {twin}"));
        }
        let mut targets = objects.all::<Target>();
        if targets.any(|(target, object)| target == port.target.name() && object.iqn.is_none()) {
            let what = "is a target without `iqn`, by which initiators log in to it";
            find(name, "target", port.marks.of("target"), what.into());
        }
    }
}
