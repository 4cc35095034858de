//! Who may log in, from the command line. Secrets come from files: arguments can be read by everybody.

use clap::Args;
use lunar_core::access::{Access, Account, Group, Mistake, Pattern, Proofs, Secret};
use lunar_iscsi_initiator::secret;
use lunar_nvme::auth::exchange::Terms;
use lunar_nvme::auth::group::Group as DhGroup;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::key::Key;
use lunar_nvme::auth::psk::ChannelKey;
use lunar_scsi::{LunMap, Mapping};
use std::sync::Arc;

/// Who may log in.
#[derive(Args, Debug, Default)]
pub struct Who {
    /// Only initiators of this name, `*` for any characters, or NVMe hosts; may be given several times [default: all]
    #[arg(long, value_name = "IQN")]
    pub initiator: Vec<String>,
    /// Initiators of this name see these volumes (counted from 0) under these LUNs, and nothing else: IQN=LUN:VOLUME,
    /// or LUN:VOLUME:ro to keep them from writing, with commas between; may be given several times. Others do not come
    /// in, unless --initiator or --user say so
    #[arg(long, value_name = "IQN=LUN:VOLUME[:ro],...", value_parser = map)]
    pub map: Vec<Map>,
    /// Initiators have to prove themselves by CHAP as this user
    #[arg(long, value_name = "NAME", requires = "secret_file")]
    pub user: Option<String>,
    /// The file with the user's secret, 12 to 255 bytes; NVMe hosts come in by it if it is a key as nvme gen-dhchap-key
    /// writes it
    #[arg(long, value_name = "FILE", requires = "user", value_parser = secret::from_file)]
    pub secret_file: Option<Secret>,
    /// The NVMe host of this name has to prove itself with the key in the file, as nvme gen-dhchap-key writes it;
    /// behind a comma the file with the key that the subsystem proves its own name with. Hosts that are not named do
    /// not come in, unless --initiator, --map or --user say so; may be given several times
    #[arg(long, value_name = "NQN=FILE[,FILE]", value_parser = host_key)]
    pub host_key: Vec<HostKey>,
    /// The NVMe host of this name has to come by a secure channel (TLS 1.3), with the key in the file, as nvme
    /// gen-tls-key writes it (--hmac 1 or 2); may be given several times
    #[arg(long, value_name = "NQN=FILE", value_parser = tls_key)]
    pub tls_key: Vec<TlsKey>,
    /// Hash functions for proofs of NVMe hosts, the best first: sha256, sha384, sha512 [default: all of them]
    #[arg(long, value_name = "HASH", value_delimiter = ',', value_parser = hash)]
    pub dhchap_hash: Vec<Hash>,
    /// Groups for the exchange of keys in proofs of NVMe hosts, the best first: null (no exchange), ffdhe2048,
    /// ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192 [default: all of them]
    #[arg(long, value_name = "GROUP", value_delimiter = ',', value_parser = dh_group)]
    pub dhchap_group: Vec<DhGroup>,
    /// The name that the target proves to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "NAME", requires = "mutual_secret_file")]
    pub mutual_user: Option<String>,
    /// The file with the target's own secret: another than the user's
    #[arg(long, value_name = "FILE", requires = "mutual_user", value_parser = secret::from_file)]
    pub mutual_secret_file: Option<Secret>,
    /// Initiators have to prove themselves as this user before they are told what there is [default: nobody has to]
    #[arg(long, value_name = "NAME", requires = "discovery_secret_file")]
    pub discovery_user: Option<String>,
    /// The file with that user's secret
    #[arg(long, value_name = "FILE", requires = "discovery_user", value_parser = secret::from_file)]
    pub discovery_secret_file: Option<Secret>,
}

/// How an NVMe host proves its name.
#[derive(Clone, Debug)]
pub struct HostKey {
    /// Its NQN.
    pub host: Arc<str>,
    /// Its key.
    pub key: Secret,
    /// The key of the subsystem.
    pub own: Option<Secret>,
}

fn host_key(text: &str) -> Result<HostKey, String> {
    let wrong = || format!("{text:?} is not NQN=FILE or NQN=FILE,FILE");
    let (host, files) = text.split_once('=').ok_or_else(wrong)?;
    let host = nqn(host)?;
    let (key, own) = files.split_once(',').map_or((files, None), |(key, own)| (key, Some(own)));
    let read = |file: &str| {
        let secret = secret::from_file(file)?;
        Key::parse(secret.bytes()).map_err(|why| format!("{file}: {why}"))?;
        Ok::<_, String>(secret)
    };
    Ok(HostKey { host, key: read(key)?, own: own.map(read).transpose()? })
}

/// What an NVMe host opens a secure channel with.
#[derive(Clone, Debug)]
pub struct TlsKey {
    /// Its NQN.
    pub host: Arc<str>,
    /// The key.
    pub key: Secret,
}

impl TlsKey {
    fn account(&self) -> Account {
        Account { name: self.host.clone(), secret: self.key.clone() }
    }
}

fn tls_key(text: &str) -> Result<TlsKey, String> {
    let (host, file) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NQN=FILE"))?;
    let host = nqn(host)?;
    let key = secret::from_file(file)?;
    ChannelKey::parse(key.bytes()).map_err(|why| format!("{file}: {why}"))?;
    Ok(TlsKey { host, key })
}

fn nqn(text: &str) -> Result<Arc<str>, String> {
    if text.starts_with("nqn.") && !text.contains('*') {
        return Ok(text.into());
    }
    Err(format!("{text:?} is no name of an NVMe host, such as nqn.2014-08.org.nvmexpress:uuid:..."))
}

fn hash(text: &str) -> Result<Hash, String> {
    let named = |hash: &Hash| hash.name().is_some_and(|name| name.eq_ignore_ascii_case(text));
    Hash::ALL.into_iter().find(named).ok_or_else(|| "a hash function is sha256, sha384 or sha512".into())
}

fn dh_group(text: &str) -> Result<DhGroup, String> {
    let named = |group: &DhGroup| group.name().is_some_and(|name| name.eq_ignore_ascii_case(text));
    let wrong = || "a group is null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192".into();
    DhGroup::ALL.into_iter().find(named).ok_or_else(wrong)
}

/// What some initiators see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Their names, and the name of the map.
    pub initiator: Arc<str>,
    /// What they see.
    pub luns: LunMap,
}

fn map(text: &str) -> Result<Map, String> {
    let wrong = || format!("{text:?} is not IQN=LUN:VOLUME[:ro],... such as iqn.2026-01.org.example:host=0:1,1:0:ro");
    let (initiator, luns) = text.split_once('=').filter(|(initiator, _)| !initiator.is_empty()).ok_or_else(wrong)?;
    let mapping = |text: &str| {
        let (text, read_only) = text.strip_suffix(":ro").map_or((text, false), |text| (text, true));
        let (lun, unit) = text.split_once(':')?;
        Some((lun.parse().ok()?, Mapping { unit: unit.parse().ok()?, read_only }))
    };
    let luns: Option<Vec<_>> = luns.split(',').map(mapping).collect();
    let luns = LunMap::new(luns.ok_or_else(wrong)?).map_err(|why| format!("{text:?}: {why}"))?;
    Ok(Map { initiator: initiator.into(), luns })
}

impl Who {
    /// Whether anything is said of who may log in, and how.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.keeps_out() || self.mutual_user.is_some() || self.discovery_user.is_some()
    }

    /// Whether some who reach a port may not use the volumes.
    #[must_use]
    pub fn keeps_out(&self) -> bool {
        !self.initiator.is_empty() || !self.map.is_empty() || self.user.is_some() || self.names_hosts()
    }

    /// Whether NVMe hosts are named that have keys.
    #[must_use]
    pub fn names_hosts(&self) -> bool {
        !self.host_key.is_empty() || !self.tls_key.is_empty()
    }

    /// Whether NVMe hosts can prove their names.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        let is_key = |secret: &Secret| Key::parse(secret.bytes()).is_ok();
        !self.host_key.is_empty() || self.secret_file.as_ref().is_some_and(is_key)
    }

    /// How NVMe hosts prove their names.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let mut terms = Terms::default();
        if !self.dhchap_hash.is_empty() {
            terms.hashes.clone_from(&self.dhchap_hash);
        }
        if !self.dhchap_group.is_empty() {
            terms.groups.clone_from(&self.dhchap_group);
        }
        terms
    }

    /// The same as a value.
    ///
    /// # Errors
    /// What would not protect.
    pub fn access(&self) -> Result<Access, Mistake> {
        let user = account(self.user.as_deref(), self.secret_file.as_ref());
        let target = account(self.mutual_user.as_deref(), self.mutual_secret_file.as_ref());
        let looker = account(self.discovery_user.as_deref(), self.discovery_secret_file.as_ref());
        let mut group = Group::everybody();
        let says = !self.initiator.is_empty() || self.user.is_some();
        if !says && (!self.map.is_empty() || self.names_hosts()) {
            (group.name, group.hosts) = ("nobody".into(), Vec::new());
        }
        if !self.initiator.is_empty() {
            group.name = "initiators".into();
            group.hosts = self.initiator.iter().map(|text| Pattern::new(text)).collect();
        }
        group.proofs = Proofs { users: user.into_iter().collect(), target: target.clone() };
        let mapped = |map: &Map| Group {
            name: map.initiator.clone(),
            hosts: vec![Pattern::new(&map.initiator)],
            map: Some(map.initiator.clone()),
            ..group.clone()
        };
        let groups = self.named_hosts(&group, &target);
        let groups = groups.into_iter().chain(self.map.iter().map(mapped)).chain([group.clone()]).collect();
        Access::new(groups, Proofs { users: looker.into_iter().collect(), target })
    }
}

impl Who {
    /// NVMe hosts with keys of their own: each is a group, and comes in by no other key.
    fn named_hosts(&self, others: &Group, target: &Option<Account>) -> Vec<Group> {
        let mut names: Vec<&Arc<str>> = self.host_key.iter().map(|of| &of.host).collect();
        names.extend(self.tls_key.iter().map(|of| &of.host));
        names.sort();
        names.dedup();
        let group = |host: &Arc<str>| {
            let mut proofs = Proofs { target: target.clone(), ..others.proofs.clone() };
            if let Some(of) = self.host_key.iter().find(|of| of.host == *host) {
                proofs.users = vec![Account { name: host.clone(), secret: of.key.clone() }];
                let own = of.own.clone().map(|secret| Account { name: "subsystem".into(), secret });
                proofs.target = own.or(proofs.target);
            }
            Group {
                name: host.clone(),
                hosts: vec![Pattern::new(host)],
                sources: Vec::new(),
                proofs,
                channels: self.tls_key.iter().filter(|of| of.host == *host).map(TlsKey::account).collect(),
                map: self.map.iter().find(|map| map.initiator == *host).map(|map| map.initiator.clone()),
            }
        };
        names.into_iter().map(group).collect()
    }
}

fn account(name: Option<&str>, secret: Option<&Secret>) -> Option<Account> {
    Some(Account { name: name?.into(), secret: secret?.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::new(text.into()).expect("long enough"))
    }

    #[test]
    fn the_same_secret_for_both_sides_is_refused() {
        let name = Some("name".to_owned());
        let who = |own: &str| Who {
            user: name.clone(),
            secret_file: secret("secret of a user"),
            mutual_user: name.clone(),
            mutual_secret_file: secret(own),
            ..Who::default()
        };
        assert_eq!(who("secret of a user").access().err(), Some(Mistake::SameSecret));
        let access = who("secret of a target").access().expect("right");
        let group = access.group("iqn.x", [192, 0, 2, 1].into()).expect("everybody");
        assert_eq!((group.proofs.users.len(), access.discovery().users.len()), (1, 0));
    }

    #[test]
    fn maps() {
        let found = map("iqn.x=0:1,7:0:ro").expect("one");
        let luns: Vec<_> = found.luns.luns().collect();
        let mapping = |unit, read_only| Mapping { unit, read_only };
        assert_eq!((&*found.initiator, luns), ("iqn.x", vec![(0, mapping(1, false)), (7, mapping(0, true))]));
        for bad in ["iqn.x", "=0:0", "iqn.x=", "iqn.x=0", "iqn.x=0:0:rw", "iqn.x=0:0,0:1", "iqn.x=0:0,1:0", "x=a:0"] {
            assert!(map(bad).is_err(), "{bad}");
        }
        let who = Who { map: vec![found], initiator: vec!["iqn.y".into()], ..Who::default() };
        let access = who.access().expect("right");
        let map_of =
            |host| access.group(host, [192, 0, 2, 1].into()).map(|group| group.map.as_deref() == Some("iqn.x"));
        assert_eq!((map_of("iqn.x"), map_of("iqn.y"), map_of("iqn.z")), (Some(true), Some(false), None));
    }

    #[test]
    fn a_map_alone_keeps_others_out() {
        let from = [192, 0, 2, 1].into();
        let luns = || vec![map("iqn.x=0:1").expect("one")];
        let sees = |who: Who, host: &str| {
            let access = who.access().expect("right");
            access.group(host, from).map(|group| group.map.is_some())
        };
        let alone = || Who { map: luns(), ..Who::default() };
        assert!(alone().keeps_out());
        assert_eq!([sees(alone(), "iqn.x"), sees(alone(), "iqn.y")], [Some(true), None]);
        let all = || Who { initiator: vec!["*".into()], ..alone() };
        assert_eq!([sees(all(), "iqn.x"), sees(all(), "iqn.y")], [Some(true), Some(false)]);
        let user = || Who { user: Some("name".into()), secret_file: secret("secret of a user"), ..alone() };
        assert_eq!([sees(user(), "iqn.x"), sees(user(), "iqn.y")], [Some(true), Some(false)]);
    }

    #[test]
    fn only_those_who_are_named_are_let_in() {
        let who = Who { initiator: vec!["iqn.X:*".into()], ..Who::default() };
        let access = who.access().expect("right");
        let from = [192, 0, 2, 1].into();
        assert!(access.group("iqn.x:host", from).is_some() && access.group("iqn.y:host", from).is_none());
    }
}
