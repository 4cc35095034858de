//! The options of `lunar serve` for iSCSI.

use crate::schema::WORD;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_control::common_sections::ISCSI_PORT;
use lunar_engine::command_line::address::{everywhere, parse, reached};
use lunar_engine::command_line::{
    Client, Draft, FrontOptions, FrontRequest, Given, Listen, OptionMistake, Serving, Shown, keeps_local, listed,
};
use std::net::SocketAddr;

/// The options of iSCSI.
#[derive(Clone, Copy, Debug)]
pub struct IscsiOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct IscsiRequest {
    /// Where to listen for iSCSI, ADDRESS[:PORT]; each is a target port, a path of its own, if given several times
    /// [default: all addresses, port 3260, unless only --nvme is given]
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<ISCSI_PORT>)]
    listen: Vec<SocketAddr>,
}

impl FrontOptions for IscsiOptions {
    fn declare(&self, command: Command) -> Command {
        IscsiRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(IscsiRequest::from_arg_matches(matches)?))
    }
}

impl IscsiRequest {
    /// The portals: address, position of the portal group, whether this machine may lack the address.
    fn portals(&self, given: &Given<'_>) -> Vec<(SocketAddr, usize, bool)> {
        match self.listen.is_empty() {
            true if given.is_addressed => Vec::new(),
            // All addresses are one group; a machine may have no IPv6.
            true => everywhere(ISCSI_PORT).into_iter().map(|address| (address, 0, address.is_ipv6())).collect(),
            false => self.listen.iter().enumerate().map(|(at, address)| (*address, at, false)).collect(),
        }
    }
}

impl FrontRequest for IscsiRequest {
    fn is_addressed(&self) -> bool {
        !self.listen.is_empty()
    }

    fn portal_groups(&self) -> usize {
        self.listen.len().max(1)
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        Vec::new()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        let Given { groups, advertise, .. } = *given;
        if advertise.len() > self.portal_groups() {
            let (option, of) = ("--advertise", "--listen");
            return Err(OptionMistake::Surplus { option, times: advertise.len(), of });
        }
        for (address, at, is_optional) in self.portals(given) {
            let told = advertise.get(at).copied();
            draft.listen(&Listen {
                protocol: WORD,
                option: "--listen",
                address,
                group: groups.get(at).unwrap_or(&groups[0]),
                advertise: told,
                // If some portals have an address to advertise, portals without one cannot be reached from outside.
                is_listed: told.is_some() || advertise.is_empty(),
                is_optional,
            })?;
        }
        Ok(())
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let portals = serving.listening(WORD);
        let first = serving.advertise.or_else(|| portals.first().copied()).filter(|_| !portals.is_empty())?;
        let (at, iqn) = (reached(first), serving.iqn);
        Some(Shown {
            transport: "iSCSI",
            places: vec![format!("target   {iqn}"), format!("portal   {}", listed(&portals))],
            connect: vec![
                format!("Linux    iscsiadm -m discovery -t sendtargets -p {at}"),
                format!("         iscsiadm -m node -T {iqn} -p {at} --login"),
                format!("libiscsi iscsi-ls -s iscsi://{at}"),
                format!("QEMU     qemu-system-x86_64 -drive file=iscsi://{at}/{iqn}/0,format=raw,if=virtio"),
                format!(
                    "Windows  New-IscsiTargetPortal -TargetPortalAddress {} -TargetPortalPortNumber {}",
                    at.host, at.port
                ),
                format!("         Connect-IscsiTarget -NodeAddress {iqn}"),
            ],
            keeps_local: keeps_local(&portals, "--listen 127.0.0.1"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{FRONT, is_listed};
    use lunar_control::Config;
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    const SEVERAL: [&str; 2] = ["1", "2"];

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn drafted(line: &str, advertise: &[SocketAddr]) -> Result<Config, String> {
        let command = IscsiOptions.declare(Command::new("serve").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).expect("options");
        let request = IscsiOptions.read(&matches).expect("options");
        let groups: Vec<String> = SEVERAL[..request.portal_groups()].iter().map(ToString::to_string).collect();
        let mut draft = Draft::default();
        for (tag, group) in (1..).zip(&groups) {
            draft.object("portal-group", group).set("tag", tag);
        }
        let is_addressed = request.is_addressed();
        let given = Given { groups: &groups, is_addressed, advertise, is_restricted: false, user: None };
        request.configure(&given, &mut draft).map_err(|why| why.to_string())?;
        draft.check(&SCHEMA).map(|checked| checked.config).map_err(|why| why.to_string())
    }

    /// The addresses that SendTargets will list. Portals with an address of their own list that.
    fn told(line: &str, advertise: &str) -> String {
        let advertise: Vec<SocketAddr> = advertise.split_whitespace().map(|text| text.parse().expect(text)).collect();
        let config = drafted(line, &advertise).expect("right");
        let own = |address: SocketAddr| (!address.ip().is_unspecified()).then_some(address);
        let listed = config.portals.values().filter(|portal| is_listed(portal)).map(|portal| {
            let address = portal.advertise().or_else(|| own(portal.address()));
            let address = address.map_or_else(|| "-".to_owned(), |address| address.to_string());
            format!("{address},{}", portal.group.name())
        });
        let mut listed: Vec<String> = listed.collect();
        listed.dedup();
        listed.join(" ")
    }

    #[test]
    fn each_address_to_listen_at_is_a_portal_group() {
        assert_eq!(told("", ""), "-,1");
        assert_eq!(drafted("", &[]).expect("right").portals.len(), 2);
        assert_eq!(told("--listen 192.0.2.1", ""), "192.0.2.1:3260,1");
        let two = "--listen 192.0.2.1 --listen 0.0.0.0:99";
        assert_eq!(told(two, ""), "192.0.2.1:3260,1 -,2");
        assert_eq!(told(two, "198.51.100.7:3260"), "198.51.100.7:3260,1");
        assert_eq!(told(two, "198.51.100.7:3260 198.51.100.8:5"), "198.51.100.7:3260,1 198.51.100.8:5,2");
    }

    #[test]
    fn a_surplus_address_to_advertise_is_refused() {
        let advertise = ["198.51.100.7:3260", "198.51.100.8:3260"].map(|text| text.parse().expect(text));
        for line in ["", "--listen 192.0.2.1"] {
            let why = drafted(line, &advertise).expect_err("one too many");
            assert!(why.contains("--advertise is given 2 times") && why.contains("once for each --listen"), "{why}");
        }
    }

    fn shown(address: &str, advertise: Option<&str>) -> Option<Shown> {
        let own = ("iscsi-00001".to_owned(), address.parse().expect(address));
        let other = ("nvme-tcp-00002".to_owned(), SocketAddr::from(([192, 0, 2, 9], 4420)));
        let (portals, sockets) = ([own, other].into(), BTreeMap::new());
        let advertise = advertise.map(|text| text.parse().expect(text));
        let serving = Serving { iqn: "iqn.x:disk", nqn: "nqn.x:disk", portals: &portals, advertise, sockets: &sockets };
        IscsiRequest::default().shown(&serving)
    }

    #[test]
    fn the_banner_says_how_clients_connect() {
        let other = shown("192.0.2.1:3260", None).expect("a portal");
        assert_eq!(other.places, ["target   iqn.x:disk", "portal   192.0.2.1:3260"]);
        assert_eq!(other.keeps_local, Some("--listen 127.0.0.1"));
        let text = other.connect.join("\n");
        for part in [
            "iscsiadm -m discovery -t sendtargets -p 192.0.2.1:3260\n",
            "iscsiadm -m node -T iqn.x:disk -p 192.0.2.1:3260 --login\n",
            "iscsi-ls -s iscsi://192.0.2.1:3260\n",
            "file=iscsi://192.0.2.1:3260/iqn.x:disk/0,format=raw",
            "-TargetPortalAddress 192.0.2.1 -TargetPortalPortNumber 3260\n",
            "Connect-IscsiTarget -NodeAddress iqn.x:disk",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert_eq!(shown("127.0.0.1:3260", None).expect("a portal").keeps_local, None);
        assert_eq!(shown("[::1]:1", None).expect("a portal").places[1], "portal   [::1]:1");
    }

    #[test]
    fn clients_connect_to_the_advertised_address() {
        let shown = shown("0.0.0.0:3260", Some("[fd00::1]:3261")).expect("a portal");
        assert_eq!(shown.places[1], "portal   0.0.0.0:3260", "where it listens");
        let text = shown.connect.join("\n");
        assert!(text.contains("-T iqn.x:disk -p [fd00::1]:3261 --login"), "{text}");
        assert!(text.contains("-TargetPortalAddress fd00::1 -TargetPortalPortNumber 3261"), "{text}");
        assert!(!text.contains("3260"), "{text}");
    }

    #[test]
    fn without_portals_the_banner_has_no_part_of_iscsi() {
        let (portals, sockets) = (BTreeMap::new(), BTreeMap::new());
        let advertise = Some(SocketAddr::from(([192, 0, 2, 1], 3260)));
        let serving = Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise, sockets: &sockets };
        assert_eq!(IscsiRequest::default().shown(&serving), None);
    }
}
