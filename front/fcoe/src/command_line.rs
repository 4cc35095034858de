//! The options of `lunar serve` for Fibre Channel over Ethernet.

use crate::schema::{Fcoe, WORD};
use crate::wire::names::Wwn;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::PortOption;
use lunar_link::LinkAddress;
use lunar_link::address::AddressError;

/// The options of Fibre Channel over Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct FcoeOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct FcoeRequest {
    /// Serve the volumes by Fibre Channel over Ethernet (VN2VN, without a switch) on this link: eth0, tap:NAME or
    /// unix:PATH,PEER; may be given several times. An interface needs the capability CAP_NET_RAW
    #[arg(long = "fcoe", value_name = "LINK", value_parser = link)]
    links: Vec<LinkAddress>,
}

fn link(text: &str) -> Result<LinkAddress, String> {
    text.parse().map_err(|why: AddressError| why.to_string())
}

const OPTION: PortOption = PortOption { option: "--fcoe", section: WORD, key: "link", advice: "give each link once" };

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
        let values: Vec<String> = self.links.iter().map(LinkAddress::to_string).collect();
        OPTION.configure(&values, given, draft)
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let Some(first) = self.links.first() else { return Vec::new() };
        let what = match given.is_restricted {
            true => {
                "--fcoe: initiators of a Fibre Channel cannot authenticate, so the options that restrict initiators \
                     leave them out"
            }
            false => {
                "--fcoe: every initiator on the Ethernet can use the volumes, because a Fibre Channel without a \
                      switch has no authentication: use a VLAN or an interface of its own"
            }
        };
        vec![format!("{what} ({first})")]
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        self.links.first()?;
        let place = |(at, link): (usize, &LinkAddress)| {
            let port = Wwn(Fcoe::derived_port(serving.iqn, &PortOption::name(at)));
            format!("port     {port} on {link} (Fibre Channel over Ethernet, VN2VN)")
        };
        let connect = vec![
            "Linux    modprobe fcoe; ip link set INTERFACE up".to_owned(),
            "         echo INTERFACE > /sys/bus/fcoe/ctlr_create".to_owned(),
            "         echo vn2vn > /sys/bus/fcoe/devices/ctlr_0/mode; echo 1 > /sys/bus/fcoe/devices/ctlr_0/enabled"
                .to_owned(),
            "         then lsscsi -t".to_owned(),
        ];
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
        assert!(link("").is_err() && link("unix:/a").is_err());
        let why = drafted(&FcoeRequest { links: [request.links.clone(), request.links].concat() });
        assert!(why.expect_err("twice").contains("--fcoe eth0 is given twice"));
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
