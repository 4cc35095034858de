//! The options of `lunar serve` for Fibre Channel over Ethernet.

use crate::schema::{Fcoe, Mode, WORD};
use crate::wire::names::Wwn;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::PortOption;
use lunar_link::LinkAddress;
use lunar_link::address::AddressError;
use std::fmt;

/// The options of Fibre Channel over Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct FcoeOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct FcoeRequest {
    /// Serve the volumes by Fibre Channel over Ethernet on this link: eth0, xdp:eth0, tap:NAME or unix:PATH,PEER;
    /// without a switch (VN2VN), or with ",fabric" at one (FCF); may be given several times. An interface needs the
    /// capability CAP_NET_RAW
    #[arg(long = "fcoe", value_name = "LINK[,fabric]", value_parser = link)]
    links: Vec<PortLink>,
}

/// The link of a port, and whether there is a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PortLink {
    address: LinkAddress,
    mode: Mode,
}

/// The end of a link with a switch.
const FABRIC: &str = ",fabric";

fn link(text: &str) -> Result<PortLink, String> {
    let fabric = text.strip_suffix(FABRIC);
    let mode = if fabric.is_some() { Mode::Fabric } else { Mode::Vn2vn };
    let address = fabric.unwrap_or(text).parse().map_err(|why: AddressError| why.to_string())?;
    Ok(PortLink { address, mode })
}

impl fmt::Display for PortLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.mode == Mode::Fabric { FABRIC } else { "" })
    }
}

const OPTION: PortOption =
    PortOption { option: "--fcoe", section: WORD, key: "link", names_target: true, advice: "give each link once" };

impl FrontOptions for FcoeOptions {
    fn declare(&self, command: Command) -> Command {
        FcoeRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(FcoeRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for FcoeRequest {
    fn is_addressed(&self) -> bool {
        // Ports are served beside the portals, and instead of none.
        false
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        Vec::new()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        let values: Vec<String> = self.links.iter().map(|link| link.address.to_string()).collect();
        OPTION.configure(&values, given, draft)?;
        for (at, link) in self.links.iter().enumerate() {
            draft.object(WORD, &PortOption::name(at)).set("mode", link.mode.word());
        }
        Ok(())
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let Some(first) = self.links.first() else { return Vec::new() };
        let what = match given.is_restricted {
            true => {
                "--fcoe: `--user` excludes FCoE initiators, because these cannot authenticate; `--initiator` and \
                 `--map` exclude them unless a pattern is `*`: use a configuration with a group that lists their WWPNs"
            }
            false => {
                "--fcoe: every initiator on the Ethernet, or in the zones of the port, can use the volumes, because \
                      initiators of a Fibre Channel do not authenticate: use a VLAN, an interface or a zone of its own"
            }
        };
        vec![format!("{what} ({first})")]
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        self.links.first()?;
        let place = |(at, link): (usize, &PortLink)| {
            let port = Wwn(Fcoe::derived_port(serving.iqn, &PortOption::name(at)));
            let network = if link.mode == Mode::Fabric { "fabric" } else { "VN2VN" };
            format!("port     {port} on {} (Fibre Channel over Ethernet, {network})", link.address)
        };
        let has = |mode| self.links.iter().any(|link| link.mode == mode);
        let enable = "echo 1 > /sys/bus/fcoe/devices/ctlr_0/enabled";
        let mut connect = vec![
            "Linux    modprobe fcoe; ip link set INTERFACE up".to_owned(),
            "         echo INTERFACE > /sys/bus/fcoe/ctlr_create".to_owned(),
        ];
        if has(Mode::Vn2vn) {
            connect.push(format!("         echo vn2vn > /sys/bus/fcoe/devices/ctlr_0/mode; {enable}"));
        }
        if has(Mode::Fabric) {
            connect.push(format!("         with the switch: {enable}"));
        }
        connect.push("         then lsscsi -t".to_owned());
        Some(Shown {
            transport: "Fibre Channel over Ethernet",
            places: self.links.iter().enumerate().map(place).collect(),
            connect,
            keeps_local: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::FRONT;
    use lunar_control::Schema;
    use lunar_engine::command_line::TARGET;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };
    const IQN: &str = "iqn.2026-01.org.example:s";

    fn request(links: &[&str]) -> FcoeRequest {
        FcoeRequest { links: links.iter().map(|text| link(text).expect(text)).collect() }
    }

    fn drafted(request: &FcoeRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", IQN).set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn links_become_ports() {
        let request = request(&["eth0", "unix:/run/a,/run/b"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let port = config.find::<Fcoe>("2").expect("it is there");
        assert_eq!((port.link.as_str(), port.group(&config)), ("unix:/run/a,/run/b", Some(1)));
        assert!(link("").is_err() && link("unix:/a").is_err() && link(",fabric").is_err());
        let why = drafted(&FcoeRequest { links: [request.links.clone(), request.links].concat() });
        assert!(why.expect_err("twice").contains("--fcoe eth0 is given twice"));
    }

    #[test]
    fn a_link_may_have_a_switch() {
        let request = request(&["eth0,fabric", "unix:/run/a,/run/b,fabric", "eth1"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let port = |name| config.find::<Fcoe>(name).expect("it is there");
        let modes = ["1", "2", "3"].map(|name| (port(name).mode, port(name).link.as_str()));
        let fabric = Mode::Fabric;
        assert_eq!(modes, [(fabric, "eth0"), (fabric, "unix:/run/a,/run/b"), (Mode::Vn2vn, "eth1")]);
        let twice = ["eth0", "eth0,fabric"].map(|text| link(text).expect(text));
        assert!(drafted(&FcoeRequest { links: twice.into() }).is_err());
    }

    #[test]
    fn the_banner_names_the_port_as_the_configuration_does() {
        let (request, portals, sockets) = (request(&["eth0"]), BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: IQN, nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request.shown(&serving).expect("one");
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let names = config.find::<Fcoe>("1").and_then(|port| port.names("1", &config)).expect("it has a target");
        assert!(shown.places[0].contains(&Wwn(names.port).to_string()), "{:?}", shown.places);
        assert_eq!(FcoeRequest::default().shown(&serving), None);
    }
}
