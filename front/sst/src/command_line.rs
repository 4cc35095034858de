//! The options of `lunar serve` for SCSI over Scheduled Transfer.

use crate::links::shown;
use crate::schema::WORD;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown};
use lunar_engine::link_ports::PortOption;
use lunar_st::port::{LinkSpec, SpecError};

/// The options of SCSI over Scheduled Transfer.
#[derive(Clone, Copy, Debug)]
pub struct StOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct StRequest {
    /// Serve the volumes by SCSI over Scheduled Transfer (experimental, with a private layout) on this link:
    /// udp:ADDRESS:PORT, eth0, xdp:eth0, tap:NAME or unix:PATH,PEER; may be given several times. An interface needs the
    /// capability CAP_NET_RAW
    #[arg(long = "st", value_name = "LINK", value_parser = link)]
    st_links: Vec<LinkSpec>,
}

fn link(text: &str) -> Result<LinkSpec, String> {
    text.parse().map_err(|why: SpecError| why.to_string())
}

const OPTION: PortOption =
    PortOption { option: "--st", section: WORD, key: "link", names_target: true, advice: "give each link once" };

impl FrontOptions for StOptions {
    fn declare(&self, command: Command) -> Command {
        StRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(StRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for StRequest {
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
        let values: Vec<String> = self.st_links.iter().map(shown).collect();
        OPTION.configure(&values, given, draft)
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let Some(first) = self.st_links.first() else { return Vec::new() };
        let what = match given.is_restricted {
            true => {
                "--st: `--user` excludes initiators of Scheduled Transfer, because these cannot authenticate; \
                 `--initiator` and `--map` apply to them"
            }
            false => {
                "--st: every initiator that reaches the link can use the volumes, because Scheduled Transfer has no \
                 authentication: use a network of its own"
            }
        };
        vec![format!("{what} ({})", shown(first))]
    }

    fn shown(&self, _serving: &Serving<'_>) -> Option<Shown> {
        let first = self.st_links.first()?;
        let place = |link: &LinkSpec| format!("port     {} (Scheduled Transfer, private layout)", shown(link));
        let url = match first {
            LinkSpec::Udp(address) => format!("st:udp:{address}"),
            LinkSpec::Frames(_) => "st:INTERFACE@MAC".to_owned(),
        };
        Some(Shown {
            transport: "SCSI over Scheduled Transfer",
            places: self.st_links.iter().map(place).collect(),
            connect: vec![format!("Lunar    lunar attach '{url}'")],
            keeps_local: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::FRONT;
    use crate::schema::St;
    use lunar_control::Schema;
    use lunar_engine::command_line::TARGET;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };
    const IQN: &str = "iqn.2026-01.org.example:s";

    fn request(links: &[&str]) -> StRequest {
        StRequest { st_links: links.iter().map(|text| link(text).expect(text)).collect() }
    }

    fn drafted(request: &StRequest) -> Result<Draft, OptionMistake> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", IQN).set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft)
    }

    #[test]
    fn links_become_ports() {
        let request = request(&["udp:[::1]:18181", "unix:/run/a,/run/b"]);
        let config = drafted(&request).expect("right").check(&SCHEMA).expect("right").config;
        let links: Vec<&str> = config.section::<St>().map(|(_, port)| port.link.as_str()).collect();
        assert_eq!(links, ["udp:[::1]:18181", "unix:/run/a,/run/b"]);
        assert!(link("").is_err() && link("unix:/a").is_err() && link("udp:host").is_err());
        let why = drafted(&StRequest { st_links: [request.st_links.clone(), request.st_links].concat() });
        assert!(why.expect_err("twice").to_string().contains("--st udp:[::1]:18181 is given twice"));
    }

    #[test]
    fn the_banner_says_how_to_connect() {
        let (portals, sockets) = (BTreeMap::new(), BTreeMap::new());
        let serving = Serving { iqn: IQN, nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request(&["udp:192.0.2.1:18181"]).shown(&serving).expect("one");
        assert!(shown.connect[0].contains("st:udp:192.0.2.1:18181"), "{:?}", shown.connect);
        assert_eq!(StRequest::default().shown(&serving), None);
    }
}
