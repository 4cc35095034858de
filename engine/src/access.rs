//! The access control of a configuration: the host groups of each target, and the authentication of their clients.

use crate::error::EngineError;
use lunar_control::Checked;
use lunar_control::common_sections::{self, Authentication};
use lunar_control::names::{Network, Pattern};
use lunar_core::access::{Access, Account, Credentials, Group};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The access control of each target, by the target's name in the configuration.
pub type Accesses = BTreeMap<String, Arc<Access>>;

/// The access control of the targets of a configuration.
///
/// # Errors
/// Access control that would not protect.
pub fn accesses(wanted: &Checked) -> Result<Accesses, EngineError> {
    let config = &wanted.config;
    let mut groups: BTreeMap<&str, Vec<(&str, &common_sections::Group)>> = BTreeMap::new();
    for (name, group) in &config.groups {
        group.targets.names().for_each(|target| groups.entry(target).or_default().push((name, group)));
    }
    let discovery = discovery_credentials(wanted);
    let access = |(name, target): (&String, &Arc<common_sections::Target>)| {
        let groups = groups.remove(name.as_str()).unwrap_or_default();
        let access = Access::new(in_order(wanted, target, &groups), discovery.clone());
        Ok((name.clone(), Arc::new(access.map_err(|why| EngineError::Access(Some(name.clone()), why))?)))
    };
    config.targets.iter().map(access).collect()
}

/// The authentication of discovery.
pub fn discovery_credentials(wanted: &Checked) -> Credentials {
    let discovery = &wanted.config.discovery;
    authentication(wanted, discovery.authentication, discovery.users.names(), discovery.mutual_user.as_ref())
}

fn authentication<'a>(
    wanted: &Checked,
    method: Authentication,
    users: impl Iterator<Item = &'a str>,
    target: Option<&lunar_control::links::To<common_sections::User>>,
) -> Credentials {
    let account = |name: &str| {
        let login = wanted.config.users.get(name)?.login_name(name);
        Some(Account { name: login.into(), secret: wanted.user_secret(name)?.clone() })
    };
    match method {
        Authentication::None => Credentials::default(),
        Authentication::Chap => Credentials { users: users.filter_map(account).collect(), target: None },
        Authentication::MutualChap => Credentials {
            users: users.filter_map(account).collect(),
            target: target.and_then(|target| account(target.name())),
        },
    }
}

/// A pattern of a group and its network, the more specific first.
type Member<'a> = (Reverse<usize>, Reverse<u8>, &'a str, &'a Pattern, Option<Network>);

/// The groups of a target. The first one that matches a client is the most specific: by its pattern, then by its
/// network, then by its name.
fn in_order(
    wanted: &Checked,
    target: &common_sections::Target,
    groups: &[(&str, &common_sections::Group)],
) -> Vec<Group> {
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
    let proof_of: BTreeMap<&str, Credentials> = groups
        .iter()
        .map(|(name, group)| {
            let (users, mutual) = (group.users(target).names(), group.mutual_user(target));
            (*name, authentication(wanted, group.authentication(target), users, mutual))
        })
        .collect();
    let key = |name: &str| Some(Account { name: name.into(), secret: wanted.tls_key(name)?.clone() });
    let keys = |group: &common_sections::Group| group.tls_keys.names().filter_map(key).collect();
    let tls_keys: BTreeMap<&str, Vec<Account>> = groups.iter().map(|(name, group)| (*name, keys(group))).collect();
    let group = |(_, _, name, pattern, source): Member<'_>| Group {
        name: name.into(),
        hosts: vec![pattern.clone()],
        sources: source.into_iter().collect(),
        credentials: proof_of.get(name).cloned().unwrap_or_default(),
        tls_keys: tls_keys.get(name).cloned().unwrap_or_default(),
        map: Some(name.into()),
    };
    members.into_iter().map(group).collect()
}
