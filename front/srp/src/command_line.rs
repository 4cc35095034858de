//! The options of `lunar serve` for SRP.

use crate::schema::{PORT, Srp, WORD};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::rdma::ArgumentError;
use lunar_engine::link_ports::{PortOption, RdmaArgument};
use std::net::SocketAddr;

/// The options of SRP.
#[derive(Clone, Copy, Debug)]
pub struct SrpOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct SrpRequest {
    /// Serve the volumes by SRP over RDMA (RoCEv2) at this IP address of this machine, without an RDMA device;
    /// may be given several times. Its UDP port 4791 must be free. With @verbs, on the RDMA device of this machine that
    /// has the address; with /PREFIX@LINK, at an address of its own on this link: eth0, tap:NAME or unix:PATH,PEER; an
    /// interface needs the capability CAP_NET_RAW
    #[arg(long = "srp", value_name = "ADDRESS[@verbs|/PREFIX@LINK]", value_parser = address)]
    addresses: Vec<RdmaArgument>,
}

fn address(text: &str) -> Result<RdmaArgument, String> {
    text.parse().map_err(|why: ArgumentError| why.to_string())
}

const OPTION: PortOption =
    PortOption { option: "--srp", section: WORD, key: "address", names_target: true, advice: "give each address once" };

impl FrontOptions for SrpOptions {
    fn declare(&self, command: Command) -> Command {
        SrpRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(SrpRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for SrpRequest {
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
        RdmaArgument::configure(&OPTION, &self.addresses, given, draft)
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let Some(first) = self.addresses.first() else { return Vec::new() };
        let what = match given.is_restricted {
            true => {
                "--srp: `--user` excludes SRP initiators, because these cannot authenticate; `--initiator` and `--map` \
                 exclude them unless a pattern is `*`: use a configuration with a group that lists their port \
                 identifiers"
            }
            false => {
                "--srp: every host on the network can use the volumes, because SRP has no authentication: use a \
                      network of its own"
            }
        };
        vec![format!("{what} ({first})")]
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let first = self.addresses.first()?;
        let guid = |at| Srp::derived_guid(serving.iqn, &PortOption::name(at));
        let place = |(at, port): (usize, &RdmaArgument)| {
            format!("port     {:016x} at {} (SRP, RoCEv2)", guid(at), port.shown(PORT))
        };
        let (guid, destination) = (guid(0), SocketAddr::new(first.address.ip, PORT));
        let connect = vec![
            "Linux    modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE; modprobe ib_srp".to_owned(),
            format!("         echo id_ext={guid:016x},ioc_guid={guid:016x},dest={destination} \\"),
            "             > /sys/class/infiniband_srp/srp-rxe0-1/add_target".to_owned(),
        ];
        Some(Shown {
            transport: "SRP",
            places: self.addresses.iter().enumerate().map(place).collect(),
            connect,
            keeps_local: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::FRONT;
    use lunar_control::Schema;
    use lunar_engine::command_line::TARGET;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };
    const IQN: &str = "iqn.2026-01.org.example:s";

    fn request(addresses: &[&str]) -> SrpRequest {
        SrpRequest { addresses: addresses.iter().map(|text| address(text).expect(text)).collect() }
    }

    fn drafted(request: &SrpRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", IQN).set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn addresses_become_ports() {
        let request = request(&["192.0.2.1", "2001:db8::1/64@unix:/a,/b"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let port = config.find::<Srp>("2").expect("it is there");
        assert_eq!((port.address, port.group(&config)), (request.addresses[1].address, Some(1)));
        assert!(address("0.0.0.0").is_err() && address("eth0").is_err());
        let why = drafted(&SrpRequest { addresses: [request.addresses.clone(), request.addresses].concat() });
        assert!(why.expect_err("twice").contains("--srp 192.0.2.1 is given twice"));
    }

    #[test]
    fn the_banner_names_the_port_as_the_configuration_does() {
        let (request, portals, sockets) = (request(&["192.0.2.1"]), BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: IQN, nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request.shown(&serving).expect("one");
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let names = config.find::<Srp>("1").and_then(|port| port.names("1", &config)).expect("it has a target");
        assert!(shown.places[0].contains(&format!("{:016x} at 192.0.2.1:5555", names.guid)), "{:?}", shown.places);
        assert_eq!(SrpRequest::default().shown(&serving), None);
    }
}
