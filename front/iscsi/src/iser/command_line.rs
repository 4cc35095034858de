//! The option of `lunar serve` for iSER.

use super::schema::WORD;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_control::common_sections::ISCSI_PORT;
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::rdma::ArgumentError;
use lunar_engine::link_ports::{PortOption, RdmaArgument};
use std::net::SocketAddr;

/// The options of iSER.
#[derive(Clone, Copy, Debug)]
pub struct IserOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct IserRequest {
    /// Serve the targets by iSCSI over RDMA (iSER, RoCEv2) at this IP address of this machine, without an RDMA device;
    /// may be given several times. Its UDP port 4791 must be free. With @verbs, on the RDMA device of this machine that
    /// has the address; with /PREFIX@LINK, at an address of its own on this link: eth0, tap:NAME or unix:PATH,PEER; an
    /// interface needs the capability CAP_NET_RAW
    #[arg(id = "iser", long = "iser", value_name = "ADDRESS[@verbs|/PREFIX@LINK]", value_parser = address)]
    addresses: Vec<RdmaArgument>,
}

fn address(text: &str) -> Result<RdmaArgument, String> {
    text.parse().map_err(|why: ArgumentError| why.to_string())
}

const OPTION: PortOption = PortOption {
    option: "--iser",
    section: WORD,
    key: "address",
    names_target: false,
    advice: "give each address once",
};

impl FrontOptions for IserOptions {
    fn declare(&self, command: Command) -> Command {
        IserRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(IserRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for IserRequest {
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

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let first = SocketAddr::new(self.addresses.first()?.address.ip, ISCSI_PORT);
        let place = |portal: &RdmaArgument| format!("portal   {} (RoCEv2)", portal.shown(ISCSI_PORT));
        let connect = vec![
            "Linux    modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE; modprobe ib_iser".to_owned(),
            format!("         iscsiadm -m discovery -t sendtargets -p {first} -I iser"),
            format!("         iscsiadm -m node -T {} -p {first} -I iser --login", serving.iqn),
        ];
        let mut places = vec![format!("target   {}", serving.iqn)];
        places.extend(self.addresses.iter().map(place));
        Some(Shown { transport: "iSER", places, connect, keeps_local: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iser::schema::{FRONT, Iser};
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(addresses: &[&str]) -> IserRequest {
        IserRequest { addresses: addresses.iter().map(|text| address(text).expect(text)).collect() }
    }

    fn drafted(request: &IserRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn addresses_become_portals() {
        let request = request(&["192.0.2.1", "2001:db8::1"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let portal = config.find::<Iser>("2").expect("it is there");
        assert_eq!((portal.address, portal.group(&config)), (request.addresses[1].address, Some(1)));
        assert!(address("0.0.0.0").is_err() && address("eth0").is_err());
        let why = drafted(&IserRequest { addresses: [request.addresses.clone(), request.addresses].concat() });
        assert!(why.expect_err("twice").contains("--iser 192.0.2.1 is given twice"));
    }

    #[test]
    fn the_banner_says_how_initiators_log_in() {
        let (portals, sockets) = (BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request(&["192.0.2.1"]).shown(&serving).expect("one");
        assert_eq!(shown.places, ["target   iqn.x", "portal   192.0.2.1:3260 (RoCEv2)"]);
        assert_eq!(shown.connect[2], "         iscsiadm -m node -T iqn.x -p 192.0.2.1:3260 -I iser --login");
        assert_eq!(IserRequest::default().shown(&serving), None);
    }
}
