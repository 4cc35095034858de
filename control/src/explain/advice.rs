//! The near miss and the remedy of a refusal, from the configuration in force.

use super::command::{line, list};
use super::{Place, RemedyView};
use crate::common_sections::{Group, PortalGroup, Target, place_of};
use crate::config::Config;
use crate::value::Textual;
use lunar_core::access::refusal::RefusalCode;
use std::net::IpAddr;
use std::sync::Arc;

/// Characters in which similar names differ at most: more are another name.
const DISTANCE_MAX: usize = 3;
/// Near misses and remedies of a kind that are listed: an operator reads the first ones.
const LISTED_MAX: usize = 5;

/// The facts of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The transport, such as `iscsi`.
    pub protocol: &'a str,
    /// The name of the client.
    pub host: &'a str,
    /// Its address; `None`: it is not known.
    pub source: Option<IpAddr>,
    /// The name of the target in the protocol; empty: discovery.
    pub target: &'a str,
    /// The user; empty: it is not known.
    pub user: &'a str,
    /// The tag of the portal group.
    pub portal_group: Option<u16>,
}

/// The near misses and the remedies of a refusal.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Advice {
    /// The near misses.
    pub near: Vec<String>,
    /// The remedies, the most likely one first.
    pub remedies: Vec<RemedyView>,
}

impl Advice {
    fn near(&mut self, words: String) {
        if self.near.len() < LISTED_MAX {
            self.near.push(words);
        }
    }

    /// Adds a command, unless one of its words cannot be written.
    fn remedy<'a>(&mut self, place: Place, words: impl Into<String>, command: impl IntoIterator<Item = &'a str>) {
        let Some(command) = line(command) else { return };
        if self.remedies.len() < LISTED_MAX && self.remedies.iter().all(|other| other.command != command) {
            self.remedies.push(RemedyView { place, words: words.into(), command });
        }
    }

    fn server<'a>(&mut self, words: impl Into<String>, command: impl IntoIterator<Item = &'a str>) {
        self.remedy(Place::Server, words, command);
    }

    fn client<'a>(&mut self, words: impl Into<String>, command: impl IntoIterator<Item = &'a str>) {
        self.remedy(Place::Client, words, command);
    }
}

/// The target of this name in a protocol, with the name of its section.
#[must_use]
pub fn target_of<'a>(config: &'a Config, name: &str) -> Option<(&'a str, &'a Target)> {
    let all = config.targets.iter().map(|(section, target)| (section.as_str(), &**target));
    all.into_iter().find(|(_, target)| {
        let iqn = target.iqn.as_ref().is_some_and(|iqn| iqn.as_str().eq_ignore_ascii_case(name));
        iqn || target.nqn.as_ref().is_some_and(|nqn| nqn.as_str() == name)
    })
}

/// The name of a target in a protocol.
fn protocol_name<'a>(target: &'a Target, protocol: &str) -> Option<&'a str> {
    match protocol {
        "iscsi" => target.iqn.as_ref().map(|iqn| iqn.as_str()),
        _ => target.nqn.as_ref().map(|nqn| nqn.as_str()),
    }
}

/// The number of characters in which two names differ, without regard to case, if that is few.
#[must_use]
pub fn difference(one: &str, other: &str) -> Option<usize> {
    // A longer name is not similar, and the comparison takes time.
    if one.len().abs_diff(other.len()) > DISTANCE_MAX * 4 || one.len() > 1024 {
        return None;
    }
    let distance = strsim::damerau_levenshtein(&one.to_lowercase(), &other.to_lowercase());
    // Names of one site have a common beginning: their last parts must be similar, too.
    let last = |name: &str| name.rsplit(':').next().unwrap_or_default().chars().count();
    let is_similar = distance * 2 <= last(one).min(last(other));
    (distance == 0 || distance <= DISTANCE_MAX && is_similar).then_some(distance)
}

fn differing(count: usize) -> String {
    if count == 1 { "1 character differs".to_owned() } else { format!("{count} characters differ") }
}

/// The near misses and the remedies of a refusal.
#[must_use]
pub fn of(config: &Config, code: RefusalCode, facts: &Facts<'_>) -> Advice {
    let mut advice = Advice::default();
    let found = target_of(config, facts.target);
    match (code, found) {
        (RefusalCode::NoTarget, found) => no_target(config, facts, found, &mut advice),
        (RefusalCode::NotShown, Some((section, _))) => not_shown(config, facts, section, &mut advice),
        (RefusalCode::WrongNetwork, Some((section, _))) => wrong_network(config, facts, section, &mut advice),
        (RefusalCode::OtherPortal, Some(found)) => other_portal(config, facts, found, &mut advice),
        (RefusalCode::Moved, Some((section, _))) => {
            let words = "if the target is to be served here again";
            advice.server(words, ["lunar", "target", "set", section, "--moved-to", "none"]);
        }
        (RefusalCode::NotAuthenticated, _) => not_authenticated(config, facts, found, &mut advice),
        (RefusalCode::UnknownUser, _) => unknown_user(config, facts, found, &mut advice),
        (RefusalCode::WrongSecret, _) => wrong_secret(config, facts, found, &mut advice),
        (RefusalCode::NoKey, Some((section, target))) => {
            advice.client("a key for this host", ["nvme", "gen-dhchap-key", "--nqn", facts.host]);
            let user = users_of(config, facts, Some((section, target))).into_iter().next();
            if let Some(user) = user {
                advice.server("sets the key as the secret", ["lunar", "user", "set", &user, "--secret", "-"]);
            }
        }
        (RefusalCode::NoProofOfOurs, Some((section, target))) => {
            no_proof_of_ours(config, facts, (section, target), &mut advice);
        }
        (RefusalCode::Reflected, _) => {
            let from = facts.source.map_or_else(|| "the client".to_owned(), |source| source.to_string());
            advice.near(format!("{from} does not know the secret, or its software is faulty: no initiator does this"));
            advice.server("lists what else was refused", ["lunar", "explain", "refusal"]);
        }
        (RefusalCode::NoHostId, _) => {
            advice.client("gives the host an identifier", ["sh", "-c", "uuidgen > /etc/nvme/hostid"]);
        }
        (RefusalCode::NotQualified, _) => {
            advice.client("gives the host a name", ["sh", "-c", "nvme gen-hostnqn > /etc/nvme/hostnqn"]);
        }
        (RefusalCode::TooOften, _) => {
            let rate = (config.limits.login_rate.get() * 2).min(10_000).to_string();
            let words = "if many clients share this address";
            advice.server(words, ["lunar", "config", "set", "limits", "--login-rate", &rate]);
        }
        (RefusalCode::Full, Some((section, Target { sessions: Some(sessions), .. }))) => {
            let most = (sessions.get() * 2).min(16_384).to_string();
            let words = "if so many sessions are wanted; `lunar session list` shows them";
            advice.server(words, ["lunar", "target", "set", section, "--sessions", &most]);
        }
        (RefusalCode::Full, _) => {
            let most = (config.limits.sessions.get() * 2).min(16_384).to_string();
            let words = "if so many sessions are wanted; `lunar session list` shows them";
            advice.server(words, ["lunar", "config", "set", "limits", "--sessions", &most]);
        }
        (RefusalCode::NoChannel | RefusalCode::TlsMissing, _) => {
            let command = ["nvme", "connect", "-t", "tcp", "-n", facts.target, "--tls"];
            advice.client("connects with TLS; add -a and -s of the portal", command);
        }
        (
            RefusalCode::TlsNoIdentity
            | RefusalCode::TlsNoKey
            | RefusalCode::TlsOtherKey
            | RefusalCode::TlsOtherHash
            | RefusalCode::TlsBroken
            | RefusalCode::OtherChannel,
            _,
        ) => tls_key(config, facts, found, &mut advice),
        _ => {}
    }
    advice
}

/// A host without the TLS key of its group, or with another one.
fn tls_key(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>, advice: &mut Advice) {
    let groups = found.map(|(section, _)| groups_of(config, facts, section)).unwrap_or_default();
    let keys: Vec<&str> = groups.iter().flat_map(|(_, group)| group.tls_keys.names()).take(LISTED_MAX).collect();
    if !keys.is_empty() {
        advice.near(format!("the TLS keys of its groups: {}", keys.join(", ")));
    }
    let names = ["--hostnqn", facts.host, "--subsysnqn", facts.target];
    let command = [&["nvme", "check-tls-key"][..], &names, &["--identity=1", "--insert", "--keydata", "KEY"]].concat();
    advice.client("inserts the key of the group", command);
}

fn no_target(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>, advice: &mut Advice) {
    if let Some((section, target)) = found {
        if !target.enabled {
            advice.near(format!("target {section} has this name, and is switched off"));
            advice.server("accepts logins again", ["lunar", "target", "set", section, "--enabled=true"]);
        } else {
            advice.near(format!("target {section} has this name in the other protocol"));
        }
        return;
    }
    for (section, target) in &config.targets {
        if let Some(name) = protocol_name(target, facts.protocol) {
            let near = match difference(name, facts.target) {
                Some(0) => format!("target {section} is {name}: the case of the letters differs"),
                Some(count) => format!("target {section} is {name}: {}", differing(count)),
                None if section == facts.target => format!("target {section} is {name} for clients"),
                None => continue,
            };
            advice.near(near);
            match facts.protocol {
                "iscsi" => advice.client("logs in with this name", ["iscsiadm", "-m", "node", "-T", name, "--login"]),
                _ => advice.client("connects with this name; add -t, -a and -s", ["nvme", "connect", "-n", name]),
            }
        }
    }
    let words = "if the client no longer needs the target";
    match facts.protocol {
        "iscsi" => advice.client(words, ["iscsiadm", "-m", "node", "-T", facts.target, "-o", "delete"]),
        _ => advice.client(words, ["nvme", "disconnect", "-n", facts.target]),
    }
}

/// Words that tell why a group with this pattern is near to a host.
fn near_pattern(group: &Group, host: &str) -> Option<(String, usize)> {
    let literal = group.initiators.iter().map(|pattern| pattern.as_str()).filter(|text| !text.contains(['*', '?']));
    let near = literal.filter_map(|text| Some((text.to_owned(), difference(text, host)?)));
    near.min_by_key(|(_, count)| *count)
}

fn names_host(group: &Group, host: &str) -> bool {
    group.initiators.iter().any(|pattern| pattern.fits(host))
}

fn of_target<'a>(config: &'a Config, section: &str) -> impl Iterator<Item = (&'a String, &'a Arc<Group>)> {
    config.groups.iter().filter(move |(_, group)| group.targets.contains(section))
}

fn add_initiator(advice: &mut Advice, name: &str, group: &Group, host: &str, words: &str) {
    let all = list(group.initiators.iter().map(|pattern| pattern.as_str()).chain([host]));
    advice.server(words, ["lunar", "group", "set", name, "--initiators", &all]);
}

fn not_shown(config: &Config, facts: &Facts<'_>, section: &str, advice: &mut Advice) {
    let host = facts.host;
    for (name, group) in of_target(config, section) {
        if let Some((pattern, count)) = near_pattern(group, host) {
            advice.near(format!("group {name} lists {pattern}: {}", differing(count)));
            add_initiator(advice, name, group, host, &format!("if {host} is this client of group {name}"));
        }
    }
    for (name, group) in config.groups.iter().filter(|(_, group)| !group.targets.contains(section)) {
        if names_host(group, host) && !group.initiators.iter().any(|pattern| pattern.as_str() == "*") {
            let targets = list(group.targets.names());
            advice.near(format!("group {name} lists the client, and is a group of {targets}, not of {section}"));
            let all = list(group.targets.names().chain([section]));
            let words = format!("if the clients of group {name} may use {section}, too");
            advice.server(words, ["lunar", "group", "set", name, "--targets", &all]);
        }
    }
    if is_generated(host) {
        advice.near("the name is one that open-iscsi generates for a new installation".to_owned());
    }
    if !advice.remedies.is_empty() {
        return;
    }
    for (name, group) in of_target(config, section) {
        add_initiator(advice, name, group, host, &format!("if the client may see the volumes of group {name}"));
    }
    if of_target(config, section).next().is_none() {
        advice.near(format!("target {section} has no group, so that it refuses every client"));
        let group = format!("{section}-clients");
        let command = ["lunar", "group", "create", &group, "--targets", section, "--initiators", host];
        advice.server("makes a group for the client; `lunar group map` gives it volumes", command);
    }
}

/// Whether a name is one that open-iscsi makes.
fn is_generated(host: &str) -> bool {
    const GENERATED: [&str; 3] =
        ["iqn.1993-08.org.debian:01:", "iqn.1994-05.com.redhat:", "iqn.2016-04.com.open-iscsi:"];
    GENERATED.iter().any(|prefix| host.to_ascii_lowercase().starts_with(prefix))
}

fn wrong_network(config: &Config, facts: &Facts<'_>, section: &str, advice: &mut Advice) {
    for (name, group) in of_target(config, section).filter(|(_, group)| names_host(group, facts.host)) {
        let sources = list(group.sources.iter().map(Textual::text).collect::<Vec<_>>().iter().map(String::as_str));
        let from = facts.source.map_or_else(|| "the address".to_owned(), |source| source.to_string());
        advice.near(format!("group {name} lists the client, and {from} is not in its sources {sources}"));
        if let Some(source) = facts.source {
            let all = format!("{sources},{source}");
            let words = format!("if the client may come from {source}");
            advice.server(words, ["lunar", "group", "set", name, "--sources", &all]);
        }
    }
}

fn other_portal(config: &Config, facts: &Facts<'_>, (section, target): (&str, &Target), advice: &mut Advice) {
    let own = list(target.portal_groups.names());
    let addresses = config.portals.values().filter(|portal| target.portal_groups.contains(portal.group.name()));
    let addresses: Vec<String> = addresses.map(|portal| portal.address().to_string()).collect();
    advice.near(format!("target {section} is reached through {own}: {}", addresses.join(", ")));
    let by_tag = |tag: u16| {
        let has_tag = |group: &PortalGroup| group.tag.get() == u64::from(tag);
        config.portal_groups.iter().find(move |(_, group)| has_tag(group)).map(|(name, _)| name)
    };
    if let Some(name) = facts.portal_group.and_then(by_tag) {
        let all = list(target.portal_groups.names().chain([name.as_str()]));
        let words = format!("if the target is to be reached through {name}, too");
        advice.server(words, ["lunar", "target", "set", section, "--portal-groups", &all]);
    }
}

/// The groups of the target that list the client, or all of its groups.
fn groups_of<'a>(config: &'a Config, facts: &Facts<'_>, section: &str) -> Vec<(&'a str, &'a Group)> {
    let all: Vec<_> = of_target(config, section).map(|(name, group)| (name.as_str(), &**group)).collect();
    let own: Vec<_> = all.iter().filter(|(_, group)| names_host(group, facts.host)).copied().collect();
    if own.is_empty() { all } else { own }
}

/// The sections of the users that may log in to a target, or for discovery.
fn users_of(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>) -> Vec<String> {
    let Some((section, target)) = found else {
        return config.discovery.users.names().map(str::to_owned).collect();
    };
    let groups = groups_of(config, facts, section);
    let mut all: Vec<String> = groups
        .iter()
        .flat_map(|(_, group)| group.users(target).names().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    all.sort();
    all.dedup();
    all
}

fn login_of<'a>(config: &'a Config, section: &'a str) -> Option<&'a str> {
    config.users.get(section).map(|user| user.login_name(section))
}

fn not_authenticated(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>, advice: &mut Advice) {
    if facts.target.is_empty() {
        advice.near("discovery has an authentication and users of its own: [discovery]".to_owned());
        return;
    }
    let users = users_of(config, facts, found);
    let user = users.first().and_then(|section| login_of(config, section)).unwrap_or("USER");
    for (key, value, words) in [
        ("node.session.auth.authmethod", "CHAP", "makes open-iscsi authenticate"),
        ("node.session.auth.username", user, "sets the name"),
        ("node.session.auth.password", "SECRET", "sets the secret"),
    ] {
        advice.client(words, update(facts.target, key, value));
    }
}

/// Changes a record of open-iscsi.
fn update<'a>(target: &'a str, key: &'a str, value: &'a str) -> [&'a str; 11] {
    ["iscsiadm", "-m", "node", "-T", target, "-o", "update", "-n", key, "-v", value]
}

fn unknown_user(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>, advice: &mut Advice) {
    let allowed = users_of(config, facts, found);
    for section in &allowed {
        let Some(login) = login_of(config, section) else { continue };
        match difference(login, facts.user) {
            Some(0) => advice.near(format!("user {section} is {login}: the case of the letters differs")),
            Some(count) => advice.near(format!("user {section} is {login}: {}", differing(count))),
            None => continue,
        }
        let command = update(facts.target, "node.session.auth.username", login);
        advice.client("corrects the name on the client", command);
    }
    let named = config.users.keys().find(|section| login_of(config, section) == Some(facts.user));
    let Some(user) = named else {
        if advice.near.is_empty() {
            let logins: Vec<_> = allowed.iter().filter_map(|section| login_of(config, section)).collect();
            advice.near(format!("no user has this name; the users here are {}", logins.join(", ")));
        }
        return;
    };
    advice.near(format!("user {user} has this name, and may not log in here"));
    let all = list(allowed.iter().map(String::as_str).chain([user.as_str()]));
    match found {
        None => advice.server("allows the user", ["lunar", "config", "set", "discovery", "--users", &all]),
        Some((section, _)) => {
            let own = groups_of(config, facts, section).into_iter().find(|(_, group)| !group.users.is_empty());
            match own {
                Some((group, _)) => {
                    advice.server("allows the user", ["lunar", "group", "set", group, "--users", &all]);
                }
                None => advice.server("allows the user", ["lunar", "target", "set", section, "--users", &all]),
            }
        }
    }
}

fn wrong_secret(config: &Config, facts: &Facts<'_>, found: Option<(&str, &Target)>, advice: &mut Advice) {
    let allowed = users_of(config, facts, found);
    let named = allowed.iter().find(|section| login_of(config, section) == Some(facts.user));
    // NVMe hosts give no name: their key belongs to their NQN.
    let of_host = allowed.iter().find(|section| login_of(config, section) == Some(facts.host));
    let Some(user) = named.or(of_host).or_else(|| allowed.first().filter(|_| facts.user.is_empty())) else { return };
    if let Some(model) = config.users.get(user) {
        advice.near(format!("user {user}: {}", place_of(&model.secret)));
    }
    advice.server("asks for the secret that the client has", ["lunar", "user", "set", user, "--secret", "-"]);
    if facts.protocol == "iscsi" && !facts.target.is_empty() {
        let command = update(facts.target, "node.session.auth.password", "SECRET");
        advice.client("sets the secret on the client", command);
    }
}

fn no_proof_of_ours(config: &Config, facts: &Facts<'_>, (section, _): (&str, &Target), advice: &mut Advice) {
    let user = format!("{section}-target");
    if !config.users.contains_key(&user) {
        advice.server("creates a user for the target", ["lunar", "user", "create", &user, "--secret", "-"]);
    }
    let own = groups_of(config, facts, section).into_iter().find(|(_, group)| group.authentication.is_some());
    let (kind, name) = own.map_or(("target", section), |(group, _)| ("group", group));
    let command = ["lunar", kind, "set", name, "--authentication", "mutual-chap", "--mutual-user", &user];
    advice.server("makes the target authenticate with it", command);
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
