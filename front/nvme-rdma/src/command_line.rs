//! The options of `lunar serve` for NVMe over RDMA.

use crate::schema::{PORT, WORD};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::rdma::ArgumentError;
use lunar_engine::link_ports::{PortOption, RdmaArgument};

/// The options of NVMe over RDMA.
#[derive(Clone, Copy, Debug)]
pub struct NvmeRdmaOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct NvmeRdmaRequest {
    /// Serve the volumes by NVMe over RDMA (RoCEv2) at this IP address of this machine, without an RDMA device;
    /// may be given several times. Its UDP port 4791 must be free. With @verbs, on the RDMA device of this machine that
    /// has the address; with /PREFIX@LINK, at an address of its own on this link: eth0, tap:NAME or unix:PATH,PEER; an
    /// interface needs the capability CAP_NET_RAW
    #[arg(id = "nvme-rdma", long = "nvme-rdma", value_name = "ADDRESS[@verbs|/PREFIX@LINK]", value_parser = address)]
    addresses: Vec<RdmaArgument>,
}

fn address(text: &str) -> Result<RdmaArgument, String> {
    text.parse().map_err(|why: ArgumentError| why.to_string())
}

const OPTION: PortOption = PortOption {
    option: "--nvme-rdma",
    section: WORD,
    key: "address",
    names_target: false,
    advice: "give each address once",
};

impl FrontOptions for NvmeRdmaOptions {
    fn declare(&self, command: Command) -> Command {
        NvmeRdmaRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(NvmeRdmaRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for NvmeRdmaRequest {
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
        let first = self.addresses.first()?;
        let place = |port: &RdmaArgument| format!("port     {} (RoCEv2)", port.shown(PORT));
        let connect = vec![
            "Linux    modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE; modprobe nvme-rdma".to_owned(),
            format!("         nvme connect -t rdma -a {} -s {PORT} -n {}", first.address.ip, serving.nqn),
        ];
        let mut places = vec![format!("NQN      {}", serving.nqn)];
        places.extend(self.addresses.iter().map(place));
        Some(Shown { transport: "NVMe/RDMA", places, connect, keeps_local: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{FRONT, NvmeRdma};
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(addresses: &[&str]) -> NvmeRdmaRequest {
        NvmeRdmaRequest { addresses: addresses.iter().map(|text| address(text).expect(text)).collect() }
    }

    fn drafted(request: &NvmeRdmaRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn addresses_become_ports() {
        let request = request(&["192.0.2.1", "2001:db8::1/64@eth0"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let port = config.find::<NvmeRdma>("2").expect("it is there");
        assert_eq!((port.address, port.group(&config)), (request.addresses[1].address, Some(1)));
        assert!(address("0.0.0.0").is_err() && address("eth0").is_err());
        let why = drafted(&NvmeRdmaRequest { addresses: [request.addresses.clone(), request.addresses].concat() });
        assert!(why.expect_err("twice").contains("--nvme-rdma 192.0.2.1 is given twice"));
    }

    #[test]
    fn the_banner_says_how_hosts_connect() {
        let (portals, sockets) = (BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request(&["192.0.2.1"]).shown(&serving).expect("one");
        assert_eq!(shown.places, ["NQN      nqn.x", "port     192.0.2.1:4420 (RoCEv2)"]);
        assert_eq!(shown.connect[1], "         nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.x");
        assert_eq!(NvmeRdmaRequest::default().shown(&serving), None);
    }
}
