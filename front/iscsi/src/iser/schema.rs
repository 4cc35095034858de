//! The declaration of iSER for the configuration: the section `[iser.NAME]`.

use crate::config::Transport;
use lunar_control::Config;
use lunar_control::common_sections::{ISCSI_PORT, PortalGroup};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, or, required};
use lunar_engine::link_ports::{RdmaSection, check_rdma};
use lunar_engine::rdma_section;

/// Its name: the word of the transport.
pub const WORD: &str = Transport::Rdma.word();

/// The kind of the section.
pub const ISER: FrontKind = FrontKind { place: 7, section: WORD, noun: "iSER portal", may_be_missing: true };

rdma_section! {
    /// A portal of iSCSI over RDMA (iSER, RoCEv2) in user space at an IP address of this machine, or at one of its own
    /// on a link. Initiators reach the targets of its portal group there, with the rules of iSCSI over TCP: groups by
    /// name and network, and CHAP. Without `link`, the UDP port 4791 of the address must be free: an RDMA device of the
    /// kernel on this machine uses it. SRP and NVMe/RDMA ports may have the same address.
    Iser (service: ISCSI_PORT) {
        /// The portal group: the targets that name it are reached, in its asymmetric access state.
        portal_group: To<PortalGroup> = required() => EndsSessions;
        /// Whether SendTargets returns the portal to initiators over RDMA. Initiators that know its address may log in
        /// anyway.
        listed: bool = or(true) => Live;
    }
}

impl Resource for Iser {
    const KIND: Kind = Kind::Front(ISER);
}

impl Iser {
    /// The tag of its portal group.
    #[must_use]
    pub fn group(&self, config: &Config) -> Option<u16> {
        config.portal_groups.get(self.portal_group.name()).map(|group| group.tag.get() as u16)
    }

    /// Its number among the portals of the process: another one if any of this differs.
    #[must_use]
    pub fn number(&self, name: &str) -> u32 {
        self.rdma().portal_number(name, self.portal_group.name())
    }

    fn brief(&self) -> String {
        format!("portal at {}, portal group {}", self.rdma().site(), self.portal_group.name())
    }
}

/// Checks that portals have addresses of their own.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    check_rdma::<Iser>(ISER.noun, objects, find);
}

/// The declaration of iSER for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Iser>(ISER, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn checked(portals: &str) -> Result<Config, String> {
        let text = format!("[portal-group.1]\ntag = 7\n{portals}");
        let checked = check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() });
        checked.map(|checked| checked.config).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_portal_is_read_and_mistakes_are_found() {
        let good = "[iser.a]\naddress = '192.0.2.1'\nportal-group = '1'\n";
        let config = checked(good).expect("right");
        let portal = config.find::<Iser>("a").expect("there");
        assert_eq!((portal.group(&config), portal.rdma().at().port(), portal.listed), (Some(7), 3260, true));
        assert_ne!(portal.number("a"), portal.number("b"));
        let two = good.to_owned() + &good.replace(".a]", ".b]");
        for (portals, what) in [
            (good.replace("192.0.2.1", "0.0.0.0"), "RDMA needs a definite one"),
            (good.replace("'1'", "'2'"), "portal-group"),
            (good.replace("192.0.2.1", "192.0.2.1/24"), "name the `link`"),
            (two, "is also that of iSER portal"),
        ] {
            let found = checked(&portals).expect_err(what);
            assert!(found.contains(what), "{portals}: {found}");
        }
    }
}
