//! The links of shelves: their names in a configuration, and the checks that need them.

use crate::schema::{self, AOE, Aoe};
use crate::wire;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::Objects;
use lunar_link::address::AddressError;
use lunar_link::{LinkConfig, MacAddress};

/// The settings of the link of a shelf.
///
/// # Errors
/// Why the name of the link is wrong.
pub fn config(aoe: &Aoe) -> Result<LinkConfig, AddressError> {
    Ok(LinkConfig {
        address: aoe.link.as_str().parse()?,
        types: vec![wire::ETHER_TYPE],
        filters: Vec::new(),
        vlan: aoe.vlan.map(|vlan| vlan.get() as u16),
        mac: aoe.mac.as_ref().map(|mac| MacAddress(mac.0)),
        mtu: aoe.mtu.map(|mtu| mtu.get() as usize),
    })
}

/// Checks links, then everything else of shelves.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    for (name, aoe) in objects.all::<Aoe>() {
        match config(aoe).map(|config| config.address) {
            Ok(link) if link.has_own_mac() && aoe.mac.is_some() => {
                let what = "is for links without an interface: this one has the MAC address of its interface";
                find(name, "mac", aoe.marks.of("mac"), what.into());
            }
            Ok(_) => {}
            Err(why) => find(name, "link", aoe.marks.of("link"), why.to_string()),
        }
    }
    schema::check(objects, find);
}

/// The declaration of ATA over Ethernet for the configuration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Aoe>(AOE, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use std::path::PathBuf;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn problems(aoe: &str) -> String {
        let text = format!(
            "[portal-group.1]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['1']\n{aoe}"
        );
        match check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() }) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn a_shelf_is_read_and_mistakes_are_found() {
        let good = "[aoe.a]\nlink = 'eth0'\nshelf = 1\ntarget = 't'\nvlan = 5\nmtu = 9000\n";
        assert_eq!(problems(good), "");
        for (aoe, what) in [
            ("[aoe.a]\nlink = 'eth0'\nshelf = 4095\ntarget = 't'\n", "Linux refuses"),
            ("[aoe.a]\nlink = 'eth0'\nshelf = 1\ntarget = 't'\nmac = '02:00:00:00:00:01'\n", "without an interface"),
            ("[aoe.a]\nlink = 'tap:t0'\nshelf = 1\ntarget = 't'\nmac = 'ff:ff:ff:ff:ff:ff'\n", "one station"),
            ("[aoe.a]\nlink = 'unix:/a'\nshelf = 1\ntarget = 't'\n", "unix:PATH,PEER"),
            (
                "[aoe.a]\nlink = 'eth0'\nshelf = 1\ntarget = 't'\n[aoe.b]\nlink = 'eth0'\nshelf = 1\ntarget = 't'\n",
                "also that of",
            ),
        ] {
            assert!(problems(aoe).contains(what), "{aoe}: {}", problems(aoe));
        }
    }
}
