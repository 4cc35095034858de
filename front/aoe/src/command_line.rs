//! The options of `lunar serve` for ATA over Ethernet.

use crate::schema::SLOT_MAX;
use crate::wire::{Address, NotAnAddress};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{
    Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown, TARGET,
};
use lunar_link::LinkAddress;
use lunar_link::address::AddressError;

/// The options of ATA over Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct AoeOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct AoeRequest {
    /// Serve the volumes by ATA over Ethernet, the first one at this shelf and slot: eth0:1.0, xdp:eth0:1.0,
    /// tap:NAME:1.0 or unix:PATH,PEER:1.0; may be given several times. An interface needs the capability CAP_NET_RAW
    #[arg(long = "aoe", value_name = "LINK:SHELF.SLOT", value_parser = place)]
    places: Vec<ShelfLocation>,
}

/// A link, and the address of the first volume.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ShelfLocation {
    link: LinkAddress,
    address: Address,
}

fn place(text: &str) -> Result<ShelfLocation, String> {
    let (link, address) = text.rsplit_once(':').ok_or("is a link, a shelf and a slot: eth0:1.0")?;
    let address: Address = address.parse().map_err(|why: NotAnAddress| why.to_string())?;
    if address.is_wildcard() || address.slot > SLOT_MAX {
        return Err(format!("shelf and slot end at 65534.{SLOT_MAX}"));
    }
    let link = link.parse().map_err(|why: AddressError| why.to_string())?;
    Ok(ShelfLocation { link, address })
}

impl ShelfLocation {
    fn text(&self) -> String {
        format!("{}:{}", self.link, self.address)
    }
}

/// The name of the section of a place of this number.
fn name(number: usize) -> String {
    format!("{}", number + 1)
}

impl FrontOptions for AoeOptions {
    fn declare(&self, command: Command) -> Command {
        AoeRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(AoeRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for AoeRequest {
    fn is_addressed(&self) -> bool {
        // Stations are served beside the portals, and instead of none.
        false
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        Vec::new()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        for (at, place) in self.places.iter().enumerate() {
            let argument = format!("--aoe {}", place.text());
            if self.places[..at].contains(place) {
                return Err(OptionMistake::Twice { argument, advice: "give each shelf once" });
            }
            let mut keys = draft.object_of(&argument, "aoe", &name(at));
            keys.set("link", place.link.to_string()).set("shelf", i64::from(place.address.shelf));
            keys.set("first-slot", i64::from(place.address.slot)).set("target", TARGET);
            // The first, as for other hosts.
            keys.set("portal-group", given.groups[0].as_str());
        }
        Ok(())
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let Some(first) = self.places.first() else { return Vec::new() };
        let link = &first.link;
        let what = match given.is_restricted {
            true => {
                "--aoe: `--user` excludes stations, because these cannot authenticate; `--initiator` and `--map` \
                 exclude them unless a pattern is `*`: use a configuration with a group that lists their MAC addresses"
            }
            false => {
                "--aoe: every station of the Ethernet can use the volumes, because ATA over Ethernet has no \
                      authentication: use a VLAN or an interface of its own"
            }
        };
        vec![format!("{what} ({link})")]
    }

    fn shown(&self, _serving: &Serving<'_>) -> Option<Shown> {
        let first = self.places.first()?;
        let disk = format!("/dev/etherd/e{}", first.address);
        let place = |place: &ShelfLocation| format!("shelf    {} on {} (ATA over Ethernet)", place.address, place.link);
        let connect = vec![
            "Linux    modprobe aoe aoe_iflist=INTERFACE; ip link set INTERFACE up".to_owned(),
            format!("         aoe-discover; aoe-stat; then {disk}"),
        ];
        Some(Shown {
            transport: "ATA over Ethernet",
            places: self.places.iter().map(place).collect(),
            connect,
            keeps_local: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::FRONT;
    use crate::schema::Aoe;
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(places: &[&str]) -> AoeRequest {
        AoeRequest { places: places.iter().map(|text| place(text).expect(text)).collect() }
    }

    fn drafted(request: &AoeRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("nqn", "nqn.2026-01.org.example:s").set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn places_become_shelves() {
        let request = request(&["eth0:1.0", "unix:/run/a,/run/b:65534.254"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let shelf = config.find::<Aoe>("2").expect("it is there");
        assert_eq!((shelf.shelf.get(), shelf.slot(0), shelf.slot(1)), (65534, Some(254), None));
        assert_eq!(shelf.link.as_str(), "unix:/run/a,/run/b");
        for text in ["eth0", "eth0:1", "eth0:1.255", "eth0:65535.0", ":1.0", "unix:/a:1.0"] {
            assert!(place(text).is_err(), "{text}");
        }
        let why = drafted(&AoeRequest { places: [request.places.clone(), request.places].concat() });
        assert!(why.expect_err("twice").contains("--aoe eth0:1.0 is given twice"));
    }

    #[test]
    fn the_banner_says_how_linux_connects() {
        let (request, portals, sockets) = (request(&["eth0:7.3"]), BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request.shown(&serving).expect("one");
        assert_eq!(shown.places, ["shelf    7.3 on eth0 (ATA over Ethernet)"]);
        assert!(shown.connect.iter().any(|line| line.contains("/dev/etherd/e7.3")), "{:?}", shown.connect);
        assert_eq!(AoeRequest::default().shown(&serving), None);
    }
}
