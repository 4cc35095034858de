//! The options of `lunar serve` for NVMe/TCP.

use crate::schema::{NVME_PORT, WORD};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_control::common_sections::DISCOVERY_PORT;
use lunar_core::access::Secret;
use lunar_engine::command_line::address::{everywhere, parse, reached};
use lunar_engine::command_line::{
    Client, Draft, FrontOptions, FrontRequest, Given, Listen, OptionMistake, Serving, Shown, TARGET, keeps_local,
    listed, secret,
};
use lunar_nvme::auth::group::Group;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::key::Key;
use lunar_nvme::auth::psk::ConfiguredPsk;
use std::fmt;
use std::net::SocketAddr;

/// The options of NVMe/TCP.
#[derive(Clone, Copy, Debug)]
pub struct NvmeTcpOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct NvmeTcpRequest {
    /// Where to listen for NVMe/TCP, ADDRESS[:PORT]; of several, each is the same path as the --listen of its number
    /// [default: all addresses, port 4420, unless only --listen is given, or an option restricts who may log in]
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<NVME_PORT>)]
    nvme: Vec<SocketAddr>,
    /// Another discovery service to which NVMe hosts are referred, ADDRESS[:PORT] with port 8009 unless given; may be
    /// given several times
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<DISCOVERY_PORT>)]
    referral: Vec<SocketAddr>,
    /// The NVMe host of this name authenticates with the key in the file, as nvme gen-dhchap-key writes it; behind a
    /// comma the file with the key by which the subsystem authenticates. Hosts that are not named are refused, unless
    /// --initiator, --map or --user admit them; may be given several times
    #[arg(long, value_name = "NQN=FILE[,FILE]", value_parser = host_key)]
    host_key: Vec<HostKey>,
    /// The NVMe host of this name connects by TLS 1.3 only, with the key in the file, as nvme gen-tls-key writes it
    /// (--hmac 1 or 2); may be given several times
    #[arg(long, value_name = "NQN=FILE", value_parser = tls_key)]
    tls_key: Vec<TlsKey>,
    /// Hash functions for the authentication of NVMe hosts, the best first: sha256, sha384, sha512 [default: all of
    /// them]
    #[arg(long, value_name = "HASH", value_delimiter = ',', value_parser = hash)]
    dhchap_hash: Vec<Hash>,
    /// Groups for the exchange of keys in the authentication of NVMe hosts, the best first: null (no exchange),
    /// ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192 [default: all of them]
    #[arg(long, value_name = "GROUP", value_delimiter = ',', value_parser = dh_group)]
    dhchap_group: Vec<Group>,
}

/// How an NVMe host authenticates.
#[derive(Clone, Debug)]
struct HostKey {
    host: String,
    key: Secret,
    /// The key of the subsystem.
    own: Option<Secret>,
}

fn host_key(text: &str) -> Result<HostKey, String> {
    let wrong = || format!("{text:?} is not NQN=FILE or NQN=FILE,FILE");
    let (host, files) = text.split_once('=').ok_or_else(wrong)?;
    let host = nqn(host).map_err(|why| why.to_string())?;
    let (key, own) = files.split_once(',').map_or((files, None), |(key, own)| (key, Some(own)));
    let read = |file: &str| {
        let secret = secret::from_file(file).map_err(|why| why.to_string())?;
        Key::parse(secret.bytes()).map_err(|why| format!("{file}: {why}"))?;
        Ok::<_, String>(secret)
    };
    Ok(HostKey { host, key: read(key)?, own: own.map(read).transpose()? })
}

/// The pre-shared key of an NVMe host.
#[derive(Clone, Debug)]
struct TlsKey {
    host: String,
    key: Secret,
}

fn tls_key(text: &str) -> Result<TlsKey, String> {
    let (host, file) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NQN=FILE"))?;
    let host = nqn(host).map_err(|why| why.to_string())?;
    let key = secret::from_file(file).map_err(|why| why.to_string())?;
    ConfiguredPsk::parse(key.bytes()).map_err(|why| format!("{file}: {why}"))?;
    Ok(TlsKey { host, key })
}

/// A text is not the name of an NVMe host.
#[derive(Debug)]
struct NotAnNqn(String);

impl fmt::Display for NotAnNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no name of an NVMe host, such as nqn.2014-08.org.nvmexpress:uuid:...", self.0)
    }
}

impl std::error::Error for NotAnNqn {}

fn nqn(text: &str) -> Result<String, NotAnNqn> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if text.starts_with("nqn.") && text.chars().all(plain) {
        return Ok(text.into());
    }
    Err(NotAnNqn(text.to_owned()))
}

fn hash(text: &str) -> Result<Hash, String> {
    let named = |hash: &Hash| hash.name().is_some_and(|name| name.eq_ignore_ascii_case(text));
    Hash::ALL.into_iter().find(named).ok_or_else(|| "a hash function is sha256, sha384 or sha512".into())
}

fn dh_group(text: &str) -> Result<Group, String> {
    let named = |group: &Group| group.name().is_some_and(|name| name.eq_ignore_ascii_case(text));
    let wrong = || "a group is null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192".into();
    Group::ALL.into_iter().find(named).ok_or_else(wrong)
}

impl FrontOptions for NvmeTcpOptions {
    fn declare(&self, command: Command) -> Command {
        NvmeTcpRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(NvmeTcpRequest::from_arg_matches(matches)?))
    }
}

impl NvmeTcpRequest {
    fn names_hosts(&self) -> bool {
        !self.host_key.is_empty() || !self.tls_key.is_empty()
    }

    /// Whether access-control options for initiators disable NVMe/TCP: it must not bypass them.
    fn is_restricted_away(&self, given: &Given<'_>) -> bool {
        given.is_restricted && !self.names_hosts()
    }

    /// The portals, with whether this machine may lack the address.
    fn portals(&self, given: &Given<'_>) -> Vec<(SocketAddr, bool)> {
        match self.nvme.is_empty() {
            true if given.is_addressed || self.is_restricted_away(given) => Vec::new(),
            true => everywhere(NVME_PORT).into_iter().map(|address| (address, address.is_ipv6())).collect(),
            false => self.nvme.iter().map(|address| (*address, false)).collect(),
        }
    }

    fn terms(&self) -> [(&'static str, Vec<String>); 2] {
        let words = |name: Option<&'static str>| name.map(str::to_ascii_lowercase);
        [
            ("dhchap-hashes", self.dhchap_hash.iter().filter_map(|hash| words(hash.name())).collect()),
            ("dhchap-groups", self.dhchap_group.iter().filter_map(|group| words(group.name())).collect()),
        ]
    }
}

impl FrontRequest for NvmeTcpRequest {
    fn is_addressed(&self) -> bool {
        !self.nvme.is_empty()
    }

    fn clients(&self) -> Vec<Client> {
        let mut names: Vec<&String> = self.host_key.iter().map(|of| &of.host).collect();
        names.extend(self.tls_key.iter().map(|of| &of.host));
        names.sort();
        names.dedup();
        let client = |name: &String| {
            let key = self.host_key.iter().find(|of| of.host == *name);
            Client {
                name: name.clone(),
                key: key.map(|of| of.key.clone()),
                own: key.and_then(|of| of.own.clone()),
                tls_key: self.tls_key.iter().find(|of| of.host == *name).map(|of| of.key.clone()),
            }
        };
        names.into_iter().map(client).collect()
    }

    fn local_clients(&self) -> Vec<String> {
        Vec::new()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        for (at, (address, is_optional)) in self.portals(given).into_iter().enumerate() {
            let told = given.advertise.first().map(|told| SocketAddr::new(told.ip(), address.port()));
            draft.listen(&Listen {
                protocol: WORD,
                option: "--nvme",
                address,
                group: given.groups.get(at).filter(|_| !self.nvme.is_empty()).unwrap_or(&given.groups[0]),
                // Two portals at one port would advertise the address twice.
                advertise: told.filter(|_| !is_optional && address.port() != 0),
                is_listed: true,
                is_optional,
            })?;
        }
        for (number, other) in (1..).zip(&self.referral) {
            let name = format!("referral-{number:03}");
            let mut keys = draft.object_of(&format!("--referral {other}"), "referral", &name);
            keys.set("address", other.to_string());
        }
        for (key, words) in self.terms().into_iter().filter(|(_, words)| !words.is_empty()) {
            draft.object("target", TARGET).set(key, words.clone());
            draft.section("discovery").set(key, words);
        }
        Ok(())
    }

    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let is_key = |secret: &&Secret| Key::parse(secret.bytes()).is_ok();
        if self.nvme.is_empty() && !given.is_addressed && self.is_restricted_away(given) {
            let why = "NVMe/TCP is off, because options restrict which initiators may log in; with --nvme it serves \
                       the hosts that --initiator or --map names";
            return vec![why.to_owned()];
        }
        let is_refused = given.user.is_some() && self.host_key.is_empty() && given.user.filter(is_key).is_none();
        let why = "no host can connect over NVMe/TCP: all have to authenticate as --user, whose secret is no key of \
                   NVMe (nvme gen-dhchap-key makes one)";
        (!self.nvme.is_empty() && is_refused).then(|| why.to_owned()).into_iter().collect()
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let portals = serving.listening(WORD);
        let first = *portals.first()?;
        let ip = serving.advertise.map_or_else(|| first.ip(), |address| address.ip());
        let (at, nqn) = (reached(SocketAddr::new(ip, first.port())), serving.nqn);
        Some(Shown {
            transport: "NVMe/TCP",
            places: vec![format!("NQN      {nqn}"), format!("port     {}", listed(&portals))],
            connect: vec![format!("Linux    nvme connect -t tcp -a {} -s {} -n {nqn}", at.host, at.port)],
            keeps_local: keeps_local(&portals, "--nvme 127.0.0.1"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::FRONT;
    use lunar_control::Config;
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn read(line: &str) -> Box<dyn FrontRequest> {
        let command = NvmeTcpOptions.declare(Command::new("serve").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).expect("options");
        NvmeTcpOptions.read(&matches).expect("options")
    }

    fn given(groups: &[String]) -> Given<'_> {
        Given { groups, is_addressed: false, advertise: &[], is_restricted: false, user: None }
    }

    fn drafted(request: &dyn FrontRequest, given: &Given<'_>) -> Config {
        let mut draft = Draft::default();
        for (tag, group) in (1..).zip(given.groups) {
            draft.object("portal-group", group).set("tag", tag);
        }
        draft.object("target", TARGET).set("nqn", "nqn.2026-01.org.example:s").set("portal-groups", vec!["1"]);
        request.configure(given, &mut draft).expect("right");
        draft.check(&SCHEMA).expect("right").config
    }

    #[test]
    fn options_that_restrict_initiators_switch_it_off_unless_it_is_asked_for() {
        let groups = ["1".to_owned()];
        let portals = |line: &str, given: Given<'_>| drafted(&*read(line), &given).portals.len();
        assert_eq!(portals("", given(&groups)), 2);
        assert_eq!(portals("", Given { is_addressed: true, ..given(&groups) }), 0);
        let restricted = Given { is_restricted: true, ..given(&groups) };
        assert_eq!((portals("", restricted), portals("--nvme ::1", restricted)), (0, 1));
        assert_eq!(read("").remarks(&restricted).len(), 1);
        assert!(read("").remarks(&given(&groups)).is_empty());
        let secret = Secret::new(b"no key of NVMe".to_vec()).expect("long enough");
        let user = Given { user: Some(&secret), is_addressed: true, ..restricted };
        assert!(read("--nvme ::1").remarks(&user)[0].contains("gen-dhchap-key"));
    }

    #[test]
    fn portals_of_several_numbers_are_in_the_groups_of_these() {
        let groups = ["1", "2"].map(str::to_owned);
        let config = drafted(&*read("--nvme 127.0.0.1 --nvme 127.0.0.2 --nvme 127.0.0.3"), &given(&groups));
        let of: Vec<&str> = config.portals.values().map(|portal| portal.group.name()).collect();
        assert_eq!(of, ["1", "2", "1"]);
        let told = ["198.51.100.7:3260".parse().expect("an address")];
        let config = drafted(&*read(""), &Given { advertise: &told, ..given(&groups) });
        let told: Vec<_> = config.portals.values().filter_map(|portal| portal.advertise()).collect();
        assert_eq!(told, ["198.51.100.7:4420".parse().expect("an address")]);
    }

    #[test]
    fn terms_and_referrals_reach_the_configuration() {
        let groups = ["1".to_owned()];
        let line = "--dhchap-hash sha384,sha256 --dhchap-group null --referral 192.0.2.9 --referral 192.0.2.9:1";
        let config = drafted(&*read(line), &given(&groups));
        let target = &config.targets[TARGET];
        assert_eq!((target.dhchap_hashes.len(), config.discovery.dhchap_groups.len()), (2, 1));
        let referrals: Vec<String> = config.referrals.values().map(|other| other.address.0.to_string()).collect();
        assert_eq!(referrals, ["192.0.2.9:8009", "192.0.2.9:1"]);
        for bad in ["iqn.x=/x", "nqn.*=/x", "nqn.a b=/x", "nqn.x"] {
            assert!(host_key(bad).is_err() && tls_key(bad).is_err(), "{bad}");
        }
    }

    fn shown(address: &str, advertise: Option<&str>) -> Option<Shown> {
        let own = ("nvme-tcp-00002".to_owned(), address.parse().expect(address));
        let other = ("iscsi-00001".to_owned(), SocketAddr::from(([192, 0, 2, 9], 3260)));
        let (portals, sockets) = ([own, other].into(), BTreeMap::new());
        let advertise = advertise.map(|text| text.parse().expect(text));
        let serving = Serving { iqn: "iqn.x:disk", nqn: "nqn.x:disk", portals: &portals, advertise, sockets: &sockets };
        read("").shown(&serving)
    }

    #[test]
    fn the_banner_says_how_hosts_connect() {
        let other = shown("192.0.2.1:4420", None).expect("a portal");
        assert_eq!(other.places, ["NQN      nqn.x:disk", "port     192.0.2.1:4420"]);
        assert_eq!(other.connect, ["Linux    nvme connect -t tcp -a 192.0.2.1 -s 4420 -n nqn.x:disk"]);
        assert_eq!(other.keeps_local, Some("--nvme 127.0.0.1"));
        assert_eq!(shown("127.0.0.1:4420", None).expect("a portal").keeps_local, None);
    }

    #[test]
    fn hosts_connect_to_the_advertised_address_at_the_port_of_the_portal() {
        let shown = shown("0.0.0.0:4421", Some("[fd00::1]:3261")).expect("a portal");
        assert_eq!(shown.places[1], "port     0.0.0.0:4421");
        assert_eq!(shown.connect, ["Linux    nvme connect -t tcp -a fd00::1 -s 4421 -n nqn.x:disk"]);
    }
}
