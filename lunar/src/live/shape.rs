//! What the cores make of a configuration: who may log in where, which target ports there are, which units whose maps
//! show, and how well each portal group reaches them.

use super::ports::Ports;
use crate::serve::port;
use lunar_control::Checked;
use lunar_control::model::{self, AluaState as Wanted, Authentication, Hash, Protocol};
use lunar_control::names::{Network, Pattern};
use lunar_core::access::{Access, Account, Group, Proofs};
use lunar_iscsi::chap::Algorithm;
use lunar_iscsi::config::Config;
use lunar_iscsi::directory::{Directory, Moved, Portal, TargetEntry};
use lunar_iscsi::registry::SESSIONS_MAX;
use lunar_scsi::PortConfig;
use lunar_unit::AccessState;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a group sees: LUN, volume, whether it may only read.
pub(super) type Map = BTreeMap<u16, (String, bool)>;

/// Where a portal is listened at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Listener {
    /// Its number.
    pub(super) id: u32,
    /// The address.
    pub(super) address: std::net::SocketAddr,
}

/// How well a portal group reaches its units, and whether it should be preferred.
pub(super) type State = (AccessState, bool);

/// Who may log in to each target, by the target's name in the configuration.
pub(super) type Accesses = BTreeMap<String, Arc<Access>>;

/// Who may log in where.
///
/// # Errors
/// What would not protect, in words.
pub(super) fn accesses(wanted: &Checked) -> Result<Accesses, String> {
    let config = &wanted.config;
    let mut groups: BTreeMap<&str, Vec<(&str, &model::Group)>> = BTreeMap::new();
    for (name, group) in &config.groups {
        group.targets.names().for_each(|target| groups.entry(target).or_default().push((name, group)));
    }
    let discovery = discovery_proofs(wanted);
    let access = |(name, target): (&String, &model::Target)| {
        let groups = groups.remove(name.as_str()).unwrap_or_default();
        let access = Access::new(in_order(wanted, target, &groups), discovery.clone());
        Ok((name.clone(), Arc::new(access.map_err(|why| format!("target {name}: {why}"))?)))
    };
    config.targets.iter().map(access).collect()
}

/// Who may ask what there is.
pub(super) fn discovery_proofs(wanted: &Checked) -> Proofs {
    let discovery = &wanted.config.discovery;
    proofs(wanted, discovery.authentication, discovery.users.names(), discovery.mutual_user.as_ref())
}

fn proofs<'a>(
    wanted: &Checked,
    authentication: Authentication,
    users: impl Iterator<Item = &'a str>,
    target: Option<&lunar_control::links::To<model::User>>,
) -> Proofs {
    let account = |name: &str| Some(Account { name: name.into(), secret: wanted.user_secret(name)?.clone() });
    match authentication {
        Authentication::None => Proofs::default(),
        Authentication::Chap => Proofs { users: users.filter_map(account).collect(), target: None },
        Authentication::MutualChap => Proofs {
            users: users.filter_map(account).collect(),
            target: target.and_then(|target| account(target.name())),
        },
    }
}

/// A pattern of a group and where from, those that say more first.
type Member<'a> = (Reverse<usize>, Reverse<u8>, &'a str, &'a Pattern, Option<Network>);

/// The groups of a target, in such an order that the first one that fits is the one that says most: by its pattern,
/// then by its network, then by its name.
fn in_order(wanted: &Checked, target: &model::Target, groups: &[(&str, &model::Group)]) -> Vec<Group> {
    let mut members: Vec<Member<'_>> = Vec::new();
    for (name, group) in groups {
        for pattern in &group.initiators {
            let weight = Reverse(pattern.weight());
            if group.sources.is_empty() {
                members.push((weight, Reverse(0), name, pattern, None));
            }
            for source in &group.sources {
                members.push((weight, Reverse(source.bits().saturating_add(1)), name, pattern, Some(*source)));
            }
        }
    }
    members.sort();
    let proofs: BTreeMap<&str, Proofs> = groups
        .iter()
        .map(|(name, group)| {
            let users = if group.users.is_empty() { &target.users } else { &group.users };
            (*name, proofs(wanted, target.authentication, users.names(), target.mutual_user.as_ref()))
        })
        .collect();
    let key = |name: &str| Some(Account { name: name.into(), secret: wanted.tls_key(name)?.clone() });
    let keys = |group: &model::Group| group.tls_keys.names().filter_map(key).collect();
    let channels: BTreeMap<&str, Vec<Account>> = groups.iter().map(|(name, group)| (*name, keys(group))).collect();
    let group = |(_, _, name, pattern, source): Member<'_>| Group {
        name: name.into(),
        hosts: vec![pattern.clone()],
        sources: source.into_iter().collect(),
        proofs: proofs.get(name).cloned().unwrap_or_default(),
        channels: channels.get(name).cloned().unwrap_or_default(),
        map: Some(name.into()),
    };
    members.into_iter().map(group).collect()
}

fn algorithms(hashes: &[Hash]) -> Arc<[Algorithm]> {
    let algorithm = |hash: &Hash| match hash {
        Hash::Sha3_256 => Algorithm::SHA3_256,
        Hash::Sha256 => Algorithm::SHA256,
        Hash::Sha1 => Algorithm::SHA1,
        Hash::Md5 => Algorithm::MD5,
    };
    hashes.iter().map(algorithm).collect()
}

/// What sessions are offered.
fn session(limits: &model::Limits, window: u32, hashes: &[Hash]) -> Arc<Config> {
    let usual = Config::default();
    let chap = if hashes.is_empty() { usual.chap.clone() } else { algorithms(hashes) };
    Arc::new(Config {
        chap,
        window,
        // Every command of the window with a whole first burst.
        unsolicited_max: window as usize * usual.first_burst as usize,
        login_timeout: limits.login_time.0,
        ..usual
    })
}

/// What there is to log in to, with the portals as they are listened at.
#[must_use]
pub(super) fn directory(
    wanted: &Checked,
    accesses: &Accesses,
    ports: &Ports,
    listeners: &BTreeMap<String, Listener>,
) -> Directory {
    let (config, limits) = (&wanted.config, &wanted.config.limits);
    let mut directory = Directory::new(config.server.drain.0);
    let depth = limits.queue_depth.get() as u32;
    directory.session = session(limits, depth, &config.discovery.hashes);
    directory.sessions_max = limits.sessions.get() as usize;
    directory.login_rate = Some(limits.login_rate.get() as u32);
    for (name, portal) in config.portals.iter().filter(|(_, portal)| portal.protocol == Protocol::Iscsi) {
        let group = config.portal_groups.get(portal.group.name());
        if let (Some(listener), Some(group)) = (listeners.get(name), group) {
            let own = Some(listener.address).filter(|address| !address.ip().is_unspecified());
            let address = portal.advertise().or(own);
            directory.portals.push(Portal {
                id: listener.id,
                group: group.tag.get() as u16,
                address,
                is_advertised: true,
            });
        }
    }
    for (name, target) in config.targets.iter().filter(|(_, target)| target.enabled) {
        let (Some(access), Some(iqn)) = (accesses.get(name), &target.iqn) else { continue };
        directory.discovery = access.discovery().clone();
        let tags = target.portal_groups.names().filter_map(|name| config.portal_groups.get(name));
        let iqn = iqn.as_str();
        let port = |tag: u16| Some((tag, ports.of(iqn, tag)?));
        directory.add(TargetEntry {
            name: iqn.to_ascii_lowercase().into(),
            alias: target.alias.as_ref().map_or("", |alias| alias.as_str()).into(),
            ports: tags.filter_map(|group| port(group.tag.get() as u16)).collect(),
            access: access.clone(),
            session: session(limits, target.queue_depth.map_or(depth, |depth| depth.get() as u32), &target.hashes),
            sessions_max: target.sessions.map_or(SESSIONS_MAX, |sessions| sessions.get() as usize),
            moved: target.moved_to.map(|to| Moved { address: to.0, permanently: target.moved_for_good }),
        });
    }
    directory
}

/// The target ports.
#[must_use]
pub(super) fn target_ports(wanted: &Checked, ports: &Ports) -> Vec<PortConfig> {
    let config = &wanted.config;
    let mut all = Vec::new();
    for target in config.targets.values() {
        let Some(iqn) = &target.iqn else { continue };
        let iqn = iqn.as_str();
        for group in target.portal_groups.names().filter_map(|name| config.portal_groups.get(name)) {
            let tag = group.tag.get() as u16;
            all.extend(ports.of(iqn, tag).map(|relative| port(iqn, tag, relative)));
        }
    }
    all
}

/// What each group sees.
#[must_use]
pub(super) fn maps(wanted: &Checked) -> BTreeMap<Arc<str>, Map> {
    let lun = |lun: &model::Lun| (lun.volume.name().to_owned(), lun.read_only);
    let map = |group: &model::Group| group.luns.0.iter().map(|(number, it)| (*number, lun(it))).collect();
    wanted.config.groups.iter().map(|(name, group)| (name.as_str().into(), map(group))).collect()
}

/// How well each portal group reaches its units, and whether it should be preferred, by its tag.
#[must_use]
pub(super) fn states(wanted: &Checked) -> BTreeMap<u16, State> {
    let state = |group: &model::PortalGroup| match group.alua_state {
        Wanted::ActiveOptimized => AccessState::ActiveOptimized,
        Wanted::ActiveNonOptimized => AccessState::ActiveNonOptimized,
        Wanted::Standby => AccessState::Standby,
        Wanted::Unavailable => AccessState::Unavailable,
    };
    let both = |group: &model::PortalGroup| (group.tag.get() as u16, (state(group), group.preferred));
    wanted.config.portal_groups.values().map(both).collect()
}
