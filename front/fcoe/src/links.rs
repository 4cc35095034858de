//! The links of ports: their names in a configuration, and the checks that need them.

use crate::schema::{self, FCOE, Fcoe};
use crate::wire::{fip, frame};
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::Objects;
use lunar_link::address::AddressError;
use lunar_link::{LinkConfig, MacAddress};

/// The settings of the link of a port.
///
/// # Errors
/// Why the name of the link is wrong.
pub fn config(port: &Fcoe) -> Result<LinkConfig, AddressError> {
    Ok(LinkConfig {
        address: port.link.as_str().parse()?,
        types: vec![frame::ETHER_TYPE, fip::ETHER_TYPE],
        // The address of the port depends on its identifier, which is known later.
        filters: Vec::new(),
        vlan: port.vlan.map(|vlan| vlan.get() as u16),
        mac: port.mac.as_ref().map(|mac| MacAddress(mac.0)),
        mtu: port.mtu.map(|mtu| mtu.get() as usize),
    })
}

/// Checks links, then everything else of ports.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    for (name, port) in objects.all::<Fcoe>() {
        match config(port).map(|config| config.address) {
            Ok(link) if link.has_own_mac() && port.mac.is_some() => {
                let what = "is for links without an interface: this one has the MAC address of its interface";
                find(name, "mac", port.marks.of("mac"), what.into());
            }
            Ok(_) => {}
            Err(why) => find(name, "link", port.marks.of("link"), why.to_string()),
        }
    }
    schema::check(objects, find);
}

/// The declaration of Fibre Channel over Ethernet for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Fcoe>(FCOE, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn problems(port: &str) -> String {
        let text = format!(
            "[portal-group.1]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['1']\n{port}"
        );
        match check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() }) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn a_port_is_read_and_mistakes_are_found() {
        let good = "[fcoe.a]\nlink = 'eth0'\ntarget = 't'\nvlan = 5\nmtu = 2500\nwwpn = '50:00:00:12:34:56:78:9a'\n";
        assert_eq!(problems(good), "");
        let two = "[fcoe.a]\nlink = 'eth0'\ntarget = 't'\n[fcoe.b]\nlink = 'eth0'\ntarget = 't'\n";
        for (port, what) in [
            ("[fcoe.a]\nlink = 'eth0'\ntarget = 't'\nmac = '02:00:00:00:00:01'\n", "without an interface"),
            ("[fcoe.a]\nlink = 'unix:/a'\ntarget = 't'\n", "unix:PATH,PEER"),
            ("[fcoe.a]\nlink = 'eth0'\ntarget = 't'\nwwpn = '0'\n", "is not a name"),
            (two, "is also that of FCoE port"),
        ] {
            assert!(problems(port).contains(what), "{port}: {}", problems(port));
        }
    }

    #[test]
    fn names_follow_from_those_of_the_target_and_of_the_section() {
        let text = "[portal-group.1]\ntag = 7\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['1']\n\
                    [fcoe.a]\nlink = 'eth0'\ntarget = 't'\n[fcoe.b]\nlink = 'eth1'\ntarget = 't'\n";
        let config = check_config(text);
        let names = |name: &str| config.find::<Fcoe>(name).and_then(|port| port.names(name, &config)).expect(name);
        let (one, other) = (names("a"), names("b"));
        assert_eq!((one.node, one.device.as_str()), (other.node, "iqn.2026-01.org.example:t"));
        assert!(one.port != other.port && one.port != one.node && one.scsi().starts_with("naa.3"));
        assert_eq!(config.find::<Fcoe>("a").and_then(|port| port.group(&config)), Some(7));
    }

    fn check_config(text: &str) -> lunar_control::Config {
        check(&SCHEMA, "test", text, &LocalHost { config: PathBuf::new() }).expect("right").config
    }
}
