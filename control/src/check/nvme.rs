//! The checks for NVMe. Within an NVM subsystem a namespace ID means one namespace, and a namespace has one namespace
//! ID for all hosts (NVMe Base 2.0 3.2.1.6).

use super::Look;
use crate::common_sections::{Authentication, DhchapGroup, DhchapHash, Group, Medium, Protection, User, Volume};
use crate::config::Config;
use crate::kind::{Id, Kind};
use crate::links::Links;
use crate::names::Pattern;
use crate::secret::Secret;
use lunar_core::access::written::Purpose;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// The most referrals: the discovery log page stays small, and no network has more discovery services.
const REFERRALS_MAX: usize = 64;
/// The prefix of the names of NVMe hosts.
const NQN: &str = "nqn.";

/// Whether NVMe hosts may belong to a group.
fn may_have_hosts(group: &Group) -> bool {
    let fits = |pattern: &Pattern| {
        let fixed = pattern.as_str().split(['*', '?']).next().unwrap_or_default();
        let is_open = fixed.len() < pattern.as_str().len();
        fixed.starts_with(NQN) || is_open && NQN.starts_with(fixed)
    };
    group.initiators.iter().any(fits)
}

/// The empty lists among the terms of DH-HMAC-CHAP.
fn terms(hashes: &[DhchapHash], groups: &[DhchapGroup]) -> impl Iterator<Item = (&'static str, &'static str)> {
    const WHAT: &str = "is empty: no NVMe host could authenticate";
    let both = [("dhchap-hashes", hashes.is_empty()), ("dhchap-groups", groups.is_empty())];
    both.into_iter().filter(|(_, is_empty)| *is_empty).map(|(key, _)| (key, WHAT))
}

/// Whether one of the users has a DH-HMAC-CHAP key, or a secret that could not be read, which is reported elsewhere.
fn has_key(users: &Links<User>, secrets: &BTreeMap<String, Secret>) -> bool {
    let is_key = |secret: &Secret| secret.bytes().starts_with(Purpose::DhHmacChap.prefix().as_bytes());
    users.names().any(|user| secrets.get(user).is_none_or(is_key))
}

/// The first use of a namespace ID or of a volume in a subsystem: its counterpart, and the group.
type Seen<'c, K, V> = HashMap<(&'c str, K), (V, &'c str)>;

impl Look<'_> {
    /// Pools and namespaces of NVM subsystems.
    pub(super) fn nvme(&mut self, config: &Config) {
        self.pools(config);
        self.namespaces(config);
        self.metadata(config);
    }

    /// Authentication and TLS of NVMe hosts.
    pub(super) fn hosts(&mut self, config: &Config, secrets: &BTreeMap<String, Secret>) {
        for (name, target) in config.targets.iter().filter(|(_, target)| target.nqn.is_some()) {
            let id = Id { kind: Kind::Target, name, lun: None };
            let groups = config.groups.values().filter(|group| group.targets.contains(name));
            let others = groups.filter_map(|group| group.authentication);
            if others.chain([target.authentication]).all(|side| side == Authentication::None) {
                continue;
            }
            for (key, what) in terms(&target.dhchap_hashes, &target.dhchap_groups) {
                self.add(id, key, target.marks.of(key), what);
            }
            let groups = config.groups.values().filter(|group| group.targets.names().any(|target| target == name));
            let mut users = groups.map(|group| &group.users).filter(|users| !users.is_empty()).chain([&target.users]);
            // Without an iSCSI name, NVMe hosts are the only clients: one of them must be able to authenticate.
            if target.iqn.is_none() && !target.users.is_empty() && !users.any(|users| has_key(users, secrets)) {
                let what = "none of them has a DH-HMAC-CHAP key (nvme gen-dhchap-key): no NVMe host could \
                            authenticate";
                self.add(id, "users", target.marks.of("users"), what);
            }
        }
        if config.discovery.authentication != Authentication::None {
            let id = Id { kind: Kind::Discovery, name: "", lun: None };
            for (key, what) in terms(&config.discovery.dhchap_hashes, &config.discovery.dhchap_groups) {
                self.add(id, key, config.discovery.marks.of(key), what);
            }
        }
        let is_subsystem = |target: &str| config.targets.get(target).is_none_or(|target| target.nqn.is_some());
        for (name, group) in config.groups.iter().filter(|(_, group)| !group.tls_keys.is_empty()) {
            if !group.targets.names().any(is_subsystem) {
                let id = Id { kind: Kind::Group, name, lun: None };
                let what = "are for NVMe hosts, but none of its targets has an 'nqn'";
                self.add(id, "tls-keys", group.marks.of("tls-keys"), what);
            }
        }
        for (name, referral) in config.referrals.iter().skip(REFERRALS_MAX) {
            let id = Id { kind: Kind::Referral, name, lun: None };
            self.add(id, "", referral.marks.whole, format!("is one too many: {REFERRALS_MAX} referrals at most"));
        }
    }

    /// Pools, and the volumes that NVMe hosts created in them.
    fn pools(&mut self, config: &Config) {
        for (name, volume) in &config.volumes {
            let id = Id { kind: Kind::Volume, name, lun: None };
            let keys = [
                ("namespace", volume.namespace.is_some()),
                ("private", volume.private),
                ("attached", !volume.attached.is_empty()),
            ];
            let is_made = volume.pool.is_some();
            for (key, _) in keys.into_iter().filter(|(_, is_there)| *is_there && !is_made) {
                let what = "is for volumes that NVMe hosts created: it needs its 'pool', or remove this key";
                self.add(id, key, volume.marks.of(key), what);
            }
            let is_file = volume.kind.is_file() && volume.medium == Medium::Disk && volume.size.is_some();
            if is_made && !is_file {
                let what = "is for volumes that NVMe hosts created: files with a size and a fixed medium";
                self.add(id, "pool", volume.marks.of("pool"), what);
            }
            if is_made && volume.namespace.is_none() {
                self.add(id, "pool", volume.marks.of("pool"), "needs a 'namespace', the namespace ID for hosts");
            }
        }
        let is_subsystem = |target: &str| config.targets.get(target).is_none_or(|target| target.nqn.is_some());
        for (name, group) in config.groups.iter().filter(|(_, group)| group.pool.is_some()) {
            if !group.targets.names().any(is_subsystem) {
                let id = Id { kind: Kind::Group, name, lun: None };
                let what = "is for NVMe hosts, but none of its targets has an 'nqn'";
                self.add(id, "pool", group.marks.of("pool"), what);
            }
        }
    }

    fn namespaces(&mut self, config: &Config) {
        let (mut ids, mut volumes): (Seen<'_, u32, &str>, Seen<'_, &str, u32>) = Default::default();
        let is_subsystem = |target: &&str| config.targets.get(*target).is_some_and(|target| target.nqn.is_some());
        for (name, group) in config.groups.iter().filter(|(_, group)| may_have_hosts(group)) {
            for target in group.targets.names().filter(is_subsystem) {
                let luns = group.luns.0.iter().filter_map(|(number, lun)| {
                    let at = Id { kind: Kind::Lun, name, lun: Some(*number) };
                    let key = if lun.namespace.is_some() { "namespace" } else { "" };
                    let mark = if key.is_empty() { lun.marks.whole } else { lun.marks.of(key) };
                    Some((at, key, mark, lun.volume.name(), config.namespace_of(*number, lun)?))
                });
                let pool = group.pool.as_ref().map(|pool| config.made_of(pool.name()));
                let made = pool.into_iter().flatten().map(|(volume, it, id)| {
                    (
                        Id { kind: Kind::Volume, name: volume, lun: None },
                        "namespace",
                        it.marks.of("namespace"),
                        &**volume,
                        id,
                    )
                });
                for (at, key, mark, volume, id) in luns.chain(made) {
                    let twin = match (ids.entry((target, id)), volumes.entry((target, volume))) {
                        (Entry::Occupied(other), _) if other.get().0 != volume => {
                            let (volume, group) = other.get();
                            Some(format!("is namespace {id}, as volume {volume} is in group {group}"))
                        }
                        (_, Entry::Occupied(other)) if other.get().0 != id => {
                            let (other, group) = other.get();
                            Some(format!("is namespace {id}, and in group {group} namespace {other}"))
                        }
                        (one, other) => {
                            one.or_insert((volume, name));
                            other.or_insert((id, name));
                            None
                        }
                    };
                    if let Some(twin) = twin {
                        let what = format!(
                            "{twin}: within NVM subsystem {target} a namespace ID means one volume, and a volume has \
                             one namespace ID; set 'namespace'"
                        );
                        self.add(at, key, mark, what);
                    }
                }
            }
        }
        self.named_twice(config);
    }

    /// A volume that a host created has one namespace ID in all LUN maps.
    fn named_twice(&mut self, config: &Config) {
        for (name, group) in &config.groups {
            for (number, lun) in &group.luns.0 {
                let made = config.volumes.get(lun.volume.name()).and_then(|volume| volume.made_namespace());
                let Some((own, said)) = made.zip(lun.namespace).filter(|(own, said)| u64::from(*own) != said.get())
                else {
                    continue;
                };
                let id = Id { kind: Kind::Lun, name, lun: Some(*number) };
                let what = format!("is {}, but an NVMe host created the volume as namespace {own}", said.get());
                self.add(id, "namespace", lun.marks.of("namespace"), what);
            }
        }
    }

    /// Metadata requires protection information, and all hosts of a subsystem see a namespace in one format.
    fn metadata(&mut self, config: &Config) {
        let mut seen: Seen<'_, &str, bool> = Seen::new();
        let is_subsystem = |target: &&str| config.targets.get(*target).is_some_and(|target| target.nqn.is_some());
        for (name, group) in &config.groups {
            for (number, lun) in &group.luns.0 {
                let (id, volume) = (Id { kind: Kind::Lun, name, lun: Some(*number) }, lun.volume.name());
                let at = if lun.metadata { lun.marks.of("metadata") } else { lun.marks.whole };
                let is_bare = |volume: &Volume| volume.protection == Protection::None;
                if lun.metadata && config.volumes.get(volume).is_some_and(|volume| is_bare(volume)) {
                    let what = format!(
                        "volume {volume} has no protection information: set its 'protection', or remove this key"
                    );
                    self.add(id, "metadata", at, what);
                }
                if !may_have_hosts(group) || lun.namespace_of(*number).is_none() {
                    continue;
                }
                for target in group.targets.names().filter(is_subsystem) {
                    let (before, other) = *seen.entry((target, volume)).or_insert((lun.metadata, name));
                    if before != lun.metadata {
                        let what = format!(
                            "is {}, and in group {other} {before}: within NVM subsystem {target} a namespace has one \
                             format",
                            lun.metadata
                        );
                        self.add(id, "metadata", at, what);
                    }
                }
            }
        }
    }
}
