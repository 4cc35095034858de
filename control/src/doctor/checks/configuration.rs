//! The configuration: parts without use, without protection, or without a way to them.

use crate::Kind;
use crate::common_sections::{AluaState, Authentication, Target};
use crate::config::Config;
use crate::doctor::facts::{Facts, shell};
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::table::Code;
use crate::value::Textual;
use std::collections::BTreeSet;

/// Days before its end from which a certificate is a finding.
const CERTIFICATE_DAYS: i32 = 30;

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(mistakes) = &facts.mistakes {
        let file = facts.file.display();
        let found = Finding::new(Code::ConfigurationInvalid, format!("file {file}"));
        let first = mistakes.lines().next().unwrap_or_default();
        let command = format!("lunar config check {}", shell(&facts.file));
        findings.push(found.shows("mistake", first).command(command));
    }
    secrets(facts, findings);
    certificates(facts, findings);
    for (name, target) in &facts.config.targets {
        reachability(&facts.config, name, target, findings);
        authentication(facts, name, target, findings);
    }
    discovery(&facts.config, findings);
    findings.extend(discovery_users(&facts.config));
    lun_zero(&facts.config, findings);
    unused(&facts.config, findings);
}

fn secrets(facts: &Facts, findings: &mut Vec<Finding>) {
    for secret in &facts.secrets {
        let (path, mode) = (shell(&secret.path), secret.mode & 0o7777);
        if mode & 0o077 != 0 {
            let found = Finding::new(Code::SecretReadable, &secret.owner).shows("file", secret.path.display());
            findings.push(found.shows("mode", format!("{mode:04o}")).command(format!("chmod 600 {path}")));
        }
        if secret.ends_blank == Some(true) {
            let found = Finding::new(Code::SecretBlank, &secret.owner).shows("file", secret.path.display());
            findings.push(found.command(format!("sed -i 's/[ \\t]*\\r*$//' {path}")));
        }
    }
}

fn certificates(facts: &Facts, findings: &mut Vec<Finding>) {
    for certificate in facts.certificates.iter().filter(|certificate| certificate.days < CERTIFICATE_DAYS) {
        let code = if certificate.days < 0 { Code::CertificateExpired } else { Code::CertificateExpires };
        let found = Finding::new(code, format!("API listener {}", certificate.listener));
        let path = shell(&certificate.path);
        let command = format!("openssl x509 -noout -subject -enddate -in {path}; lunar apply");
        findings.push(found.shows("file", &path).shows("days", certificate.days).command(command));
    }
}

/// The resources that refer to one of this kind.
fn mentioned(config: &Config, wanted: Kind) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for object in config.objects().values() {
        for field in object.fields() {
            field.mentions(&mut |kind, name, _| {
                if kind == wanted {
                    names.insert(name.to_owned());
                }
            });
        }
    }
    names
}

/// The names of the portals that lead to a target.
pub(super) fn portals_of<'a>(config: &'a Config, target: &Target) -> Vec<&'a str> {
    let leads = config.portals.iter().filter(|(_, portal)| target.portal_groups.contains(portal.group.name()));
    leads.map(|(name, _)| name.as_str()).collect()
}

fn reachability(config: &Config, name: &str, target: &Target, findings: &mut Vec<Finding>) {
    let subject = format!("target {name}");
    let groups: Vec<&str> = target.portal_groups.names().collect();
    // Virtual machines reach targets without portals.
    let is_used_elsewhere = config.objects().into_iter().any(|(id, object)| {
        let is_front = matches!(id.kind, Kind::Front(_));
        let mut mentions = false;
        let mut look = |kind, other: &str, _| mentions |= kind == Kind::Target && other == name;
        object.fields().into_iter().filter(|_| is_front).for_each(|field| field.mentions(&mut look));
        mentions
    });
    if portals_of(config, target).is_empty() && !is_used_elsewhere {
        let group = groups.first().copied().unwrap_or("GROUP");
        let command = format!("lunar portal create portal-of-{name} --address 0.0.0.0 --group {}", quoted(group));
        let found = Finding::new(Code::TargetWithoutPortals, &subject).shows("portal groups", groups.join(" "));
        findings.push(found.command(command));
    }
    let states: Vec<_> = groups.iter().filter_map(|group| config.portal_groups.get(*group)).collect();
    if !states.is_empty() && states.iter().all(|group| group.alua_state != AluaState::ActiveOptimized) {
        let group = groups.first().copied().unwrap_or_default();
        let words: Vec<_> = states.iter().map(|group| group.alua_state.word()).collect();
        let command = format!("lunar portal-group set {} --alua-state active-optimized", quoted(group));
        findings.push(Finding::new(Code::NoOptimizedPath, subject).shows("states", words.join(" ")).command(command));
    }
}

fn authentication(facts: &Facts, name: &str, target: &Target, findings: &mut Vec<Finding>) {
    let (config, subject) = (&facts.config, format!("target {name}"));
    if target.authentication == Authentication::None && !target.users.is_empty() {
        let found = Finding::new(Code::UsersWithoutAuthentication, &subject)
            .shows("users", target.users.names().collect::<Vec<_>>().join(" "));
        let command = format!("lunar target set {} --authentication chap", quoted(name));
        findings.push(found.command(command));
    }
    let portals = portals_of(config, target);
    let is_public = portals.iter().any(|portal| !config.portals[*portal].address().ip().is_loopback());
    if !is_public {
        return;
    }
    for (group_name, group) in config.groups.iter().filter(|(_, group)| group.targets.contains(name)) {
        let is_open = group.initiators.iter().any(|pattern| pattern.text() == "*")
            && group.sources.is_empty()
            && group.tls_keys.is_empty()
            && group.authentication(target) == Authentication::None;
        if is_open {
            let command = format!("lunar group set {} --sources 192.0.2.0/24", quoted(group_name));
            let found = Finding::new(Code::TargetOpen, &subject).shows("group", group_name);
            let remedy = format!("{} Replace the network of the command with yours.", Code::TargetOpen.remedy());
            findings.push(found.shows("portals", portals.join(" ")).remedy(remedy).command(command));
        }
    }
}

fn discovery(config: &Config, findings: &mut Vec<Finding>) {
    let asks = |target: &Target| target.authentication != Authentication::None;
    let all_ask = !config.targets.is_empty() && config.targets.values().all(|target| asks(target));
    if all_ask && config.discovery.authentication == Authentication::None {
        let users: BTreeSet<&str> = config.targets.values().flat_map(|target| target.users.names()).collect();
        let users: Vec<&str> = users.into_iter().collect();
        let command = format!("lunar config set discovery --authentication chap --users {}", quoted(&users.join(",")));
        let found = Finding::new(Code::DiscoveryDiffers, "discovery").shows("targets", config.targets.len());
        findings.push(found.command(command));
    }
}

/// Hosts have one user as a rule, and use it for both.
fn discovery_users(config: &Config) -> Option<Finding> {
    let discovery = &config.discovery;
    if discovery.authentication == Authentication::None || discovery.users.is_empty() {
        return None;
    }
    let own: BTreeSet<&str> = discovery.users.names().collect();
    let found = config.targets.iter().find_map(|(name, target)| {
        let groups = config.groups.values().filter(|group| group.targets.contains(name));
        let of_groups = groups.flat_map(|group| group.users.names());
        let users: BTreeSet<&str> = target.users.names().chain(of_groups).collect();
        let differs = target.iqn.is_some() && target.authentication != Authentication::None;
        (differs && !users.is_empty() && users.is_disjoint(&own)).then_some((name, users))
    });
    let (target, users) = found?;
    let list = |users: &BTreeSet<&str>| users.iter().copied().collect::<Vec<_>>().join(" ");
    let all: Vec<&str> = own.union(&users).copied().collect();
    let command = format!("lunar config set discovery --users {}", quoted(&all.join(",")));
    let found = Finding::new(Code::DiscoveryUsersDiffer, format!("target {target}"));
    Some(found.shows("users", list(&users)).shows("users of discovery", list(&own)).command(command))
}

fn lun_zero(config: &Config, findings: &mut Vec<Finding>) {
    let is_iscsi = |name: &str| config.targets.get(name).is_some_and(|target| target.iqn.is_some());
    for (name, group) in config.groups.iter().filter(|(_, group)| group.targets.names().any(is_iscsi)) {
        let Some((first, lun)) = group.luns.0.first_key_value().filter(|(first, _)| **first > 0) else { continue };
        let (group, volume) = (quoted(name), quoted(lun.volume.name()));
        let command = format!("lunar group unmap {group} {first} --force && lunar group map {group} 0 {volume}");
        let found = Finding::new(Code::LunZeroMissing, format!("group {name}")).shows("first LUN", first);
        findings.push(found.command(command));
    }
}

fn unused(config: &Config, findings: &mut Vec<Finding>) {
    let used = mentioned(config, Kind::Volume);
    for (name, _) in config.volumes.iter().filter(|(name, volume)| !used.contains(*name) && volume.pool.is_none()) {
        let group = config.groups.iter().next();
        let lun = group.map(|(_, group)| (0..).find(|lun| !group.luns.0.contains_key(lun)).unwrap_or(0));
        let group = group.map_or("GROUP", |(group, _)| group);
        let command = format!("lunar group map {} {} {}", quoted(group), lun.unwrap_or(0), quoted(name));
        findings.push(Finding::new(Code::VolumeUnmapped, format!("volume {name}")).shows("maps", 0).command(command));
    }
    for (name, group) in &config.groups {
        if group.luns.0.is_empty() && group.pool.is_none() {
            let found = Finding::new(Code::GroupUnused, format!("group {name}"));
            findings.push(found.shows("LUNs", 0).command(format!("lunar group delete {}", quoted(name))));
        }
    }
    let used = mentioned(config, Kind::User);
    for name in config.users.keys().filter(|name| !used.contains(*name)) {
        let found = Finding::new(Code::UserUnused, format!("user {name}")).shows("references", 0);
        findings.push(found.command(format!("lunar user delete {}", quoted(name))));
    }
}
