//! The links of ports: their names in a configuration, and the checks that need them.

use crate::schema::{self, ST, St};
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::Objects;
use lunar_link::MacAddress;
use lunar_st::port::{LinkSpec, SpecError};

/// The settings of the link of a port.
///
/// # Errors
/// Why the name of the link is wrong.
pub fn config(port: &St) -> Result<LinkSpec, SpecError> {
    let mut spec = port.link.as_str().parse()?;
    if let LinkSpec::Frames(config) = &mut spec {
        config.vlan = port.vlan.map(|vlan| vlan.get() as u16);
        config.mac = port.mac.as_ref().map(|mac| MacAddress(mac.0));
        config.mtu = port.mtu.map(|mtu| mtu.get() as usize);
    }
    Ok(spec)
}

/// The link as the configuration names it.
#[must_use]
pub fn shown(spec: &LinkSpec) -> String {
    match spec {
        LinkSpec::Udp(address) => format!("udp:{address}"),
        LinkSpec::Frames(config) => config.address.to_string(),
    }
}

/// Checks links, then everything else of ports.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    for (name, port) in objects.all::<St>() {
        match config(port) {
            Ok(LinkSpec::Udp(address)) => {
                let keys = [("vlan", port.vlan.is_some()), ("mac", port.mac.is_some()), ("mtu", port.mtu.is_some())];
                for (key, _) in keys.iter().filter(|(_, is_given)| *is_given) {
                    let what = "is for links of Ethernet frames: over UDP the network decides";
                    find(name, key, port.marks.of(key), what.into());
                }
                if address.port() == 0 {
                    let what = "needs a port, as udp:192.0.2.1:18181: initiators must know it";
                    find(name, "link", port.marks.of("link"), what.into());
                }
            }
            Ok(LinkSpec::Frames(link)) => {
                if link.address.has_own_mac() && port.mac.is_some() {
                    let what = "is for links without an interface: this one has the MAC address of its interface";
                    find(name, "mac", port.marks.of("mac"), what.into());
                }
            }
            Err(why) => find(name, "link", port.marks.of("link"), why.to_string()),
        }
    }
    schema::check(objects, find);
}

/// The declaration of SCSI over Scheduled Transfer for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<St>(ST, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn checked(port: &str) -> Result<lunar_control::Config, String> {
        let text = format!(
            "[portal-group.1]\ntag = 7\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['1']\n{port}"
        );
        let found = check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() });
        found.map(|checked| checked.config).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_port_is_read_and_mistakes_are_found() {
        let port = "[st.a]\ntarget = 't'\n";
        for good in ["link = 'udp:192.0.2.1:18181'", "link = 'eth0'\nvlan = 5\nmtu = 9000", "link = 'unix:/a,/b'"] {
            assert!(checked(&format!("{port}{good}\n")).is_ok(), "{good}");
        }
        for (bad, what) in [
            ("link = 'udp:192.0.2.1'", "is not an address with a port"),
            ("link = 'udp:192.0.2.1:0'", "needs a port"),
            ("link = 'udp:192.0.2.1:1'\nmtu = 9000", "over UDP the network decides"),
            ("link = 'eth0'\nmac = '02:00:00:00:00:01'", "without an interface"),
            ("link = 'xdp:eth0'\nmac = '02:00:00:00:00:01'", "without an interface"),
            ("link = 'unix:/a'", "unix:PATH,PEER"),
            ("link = 'eth0'\n[st.b]\nlink = 'eth0'\ntarget = 't'", "is also that of ST port"),
        ] {
            let why = checked(&format!("{port}{bad}\n")).expect_err(bad);
            assert!(why.contains(what), "{bad}: {why}");
        }
    }

    #[test]
    fn names_follow_from_those_of_the_target_and_of_the_section() {
        let config = checked("[st.a]\nlink = 'eth0'\ntarget = 't'\n").expect("right");
        let port = config.find::<St>("a").expect("it is there");
        let names = port.names("a", &config).expect("it has a target");
        assert_eq!((&*names.port, port.group(&config)), ("iqn.2026-01.org.example:t,t,st-a", Some(7)));
    }
}
