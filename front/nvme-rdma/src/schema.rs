//! The declaration of NVMe over RDMA for the configuration: the section `[nvme-rdma.NAME]`.

use lunar_control::Config;
use lunar_control::common_sections::PortalGroup;
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, required};
use lunar_engine::link_ports::{RdmaSection, check_rdma};
use lunar_engine::rdma_section;

/// Its name: the word of the transport.
pub const WORD: &str = lunar_nvme::path::RDMA_WORD;

/// The kind of the section.
pub const NVME_RDMA: FrontKind = FrontKind { place: 6, section: WORD, noun: "NVMe/RDMA port", may_be_missing: true };

/// The port of the RDMA connection manager (IANA).
pub const PORT: u16 = 4420;

rdma_section! {
    /// A port of NVMe over RDMA (RoCEv2) in user space at an IP address of this machine, or at one of its own on a
    /// link. Hosts find the subsystems of its portal group there, with the rules of NVMe/TCP: groups by NQN and
    /// network, and authentication (DH-HMAC-CHAP). A group whose hosts must use TLS is not reached. Without `link`, the
    /// UDP port 4791 of the address must be free: an RDMA device of the kernel on this machine uses it. SRP ports and
    /// iSER portals may have the same address.
    NvmeRdma (service: PORT) {
        /// The portal group: the targets that name it are reached, in its asymmetric access state.
        portal_group: To<PortalGroup> = required() => EndsSessions;
    }
}

impl Resource for NvmeRdma {
    const KIND: Kind = Kind::Front(NVME_RDMA);
}

impl NvmeRdma {
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
        format!("port at {}, portal group {}", self.rdma().site(), self.portal_group.name())
    }
}

/// Checks that ports have addresses of their own.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    check_rdma::<NvmeRdma>(NVME_RDMA.noun, objects, find);
}

/// The declaration of NVMe over RDMA for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<NvmeRdma>(NVME_RDMA, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn checked(ports: &str) -> Result<Config, String> {
        let text = format!("[portal-group.1]\ntag = 7\n{ports}");
        let checked = check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() });
        checked.map(|checked| checked.config).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_port_is_read_and_mistakes_are_found() {
        let good = "[nvme-rdma.a]\naddress = '192.0.2.1'\nportal-group = '1'\n";
        let config = checked(good).expect("right");
        let port = config.find::<NvmeRdma>("a").expect("there");
        assert_eq!((port.group(&config), port.rdma().at().port()), (Some(7), 4420));
        assert_ne!(port.number("a"), port.number("b"));
        let linked = good.replace("192.0.2.1'", "192.0.2.1/24'\nlink = 'eth0'");
        let config = checked(&linked).expect("right");
        let address = config.find::<NvmeRdma>("a").expect("there").rdma().address().expect("right");
        assert_eq!(address.to_string(), "192.0.2.1:4420 on eth0");
        let two = good.to_owned() + &good.replace(".a]", ".b]");
        for (ports, what) in [
            (good.replace("192.0.2.1", "0.0.0.0"), "RDMA needs a definite one"),
            (good.replace("'1'", "'2'"), "portal-group"),
            (linked.replace("/24", ""), "the prefix of its network"),
            (two, "is also that of NVMe/RDMA port"),
        ] {
            let found = checked(&ports).expect_err(what);
            assert!(found.contains(what), "{ports}: {found}");
        }
    }
}
