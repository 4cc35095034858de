//! What NVMe asks of a configuration: within an NVM subsystem an identifier means one namespace, and a namespace has
//! one identifier (NVMe Base 2.0 3.2.1.6), whoever sees it; and what virtual machines need.

use super::{Look, Once};
use crate::config::{Config, Id, Kind};
use crate::links::Links;
use crate::model::{
    Authentication, DhchapGroup, DhchapHash, Group, Medium, Protection, Protocol, StoreKind, Tls, User, Volume,
};
use crate::names::Pattern;
use crate::secret::Secret;
use lunar_core::access::written::Purpose;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Bytes of a socket's path at most (`sun_path` of unix(7), without the zero that ends it).
pub const SOCKET_PATH_MAX: usize = 107;
/// Bytes of a virtual machine's name at most: it is part of the path of its socket.
const VM_NAME_MAX: usize = 64;
/// Referrals at most: what discovery tells fits one answer, and nobody has more services to be sent to.
const REFERRALS_MAX: usize = 64;
/// What the names of NVMe hosts begin with.
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

/// What is empty of what DH-HMAC-CHAP may agree to.
fn terms(hashes: &[DhchapHash], groups: &[DhchapGroup]) -> impl Iterator<Item = (&'static str, &'static str)> {
    const WHAT: &str = "is empty: no NVMe host could prove its name";
    let both = [("dhchap-hashes", hashes.is_empty()), ("dhchap-groups", groups.is_empty())];
    both.into_iter().filter(|(_, is_empty)| *is_empty).map(|(key, _)| (key, WHAT))
}

/// Whether one of them has a key of DH-HMAC-CHAP. One whose secret is wrong may have: that is told elsewhere.
fn has_key(users: &Links<User>, secrets: &BTreeMap<String, Secret>) -> bool {
    let is_key = |secret: &Secret| secret.bytes().starts_with(Purpose::Proof.prefix().as_bytes());
    users.names().any(|user| secrets.get(user).is_none_or(is_key))
}

/// Where a subsystem has seen an identifier, or a volume: the other half, and the group.
type Seen<'c, K, V> = HashMap<(&'c str, K), (V, &'c str)>;

impl Look<'_> {
    /// Namespaces of subsystems, and virtual machines.
    pub(super) fn nvme(&mut self, config: &Config) {
        self.pools(config);
        self.namespaces(config);
        self.metadata(config);
        self.machines(config);
    }

    /// How NVMe hosts prove their names, and come by secure channels.
    pub(super) fn hosts(&mut self, config: &Config, secrets: &BTreeMap<String, Secret>) {
        for (name, target) in config.targets.iter().filter(|(_, target)| target.nqn.is_some()) {
            let id = Id { kind: Kind::Target, name, lun: None };
            if target.authentication == Authentication::None {
                continue;
            }
            for (key, what) in terms(&target.dhchap_hashes, &target.dhchap_groups) {
                self.add(id, key, target.marks.of(key), what);
            }
            let groups = config.groups.values().filter(|group| group.targets.names().any(|target| target == name));
            let mut users = groups.map(|group| &group.users).filter(|users| !users.is_empty()).chain([&target.users]);
            // Over iSCSI others may come in; without that, somebody has to be able to.
            if target.iqn.is_none() && !target.users.is_empty() && !users.any(|users| has_key(users, secrets)) {
                let what = "none of them has a key of DH-HMAC-CHAP (nvme gen-dhchap-key makes one): no NVMe host could \
                            prove its name";
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
        for (name, portal) in &config.portals {
            if portal.tls == Tls::Required && portal.protocol != Protocol::NvmeTcp {
                let id = Id { kind: Kind::Portal, name, lun: None };
                self.add(
                    id,
                    "tls",
                    portal.marks.of("tls"),
                    "is for protocol = \"nvme-tcp\": iSCSI has no such channels",
                );
            }
        }
        for (name, referral) in config.referrals.iter().skip(REFERRALS_MAX) {
            let id = Id { kind: Kind::Referral, name, lun: None };
            self.add(id, "", referral.marks.whole, format!("is one too many: there are {REFERRALS_MAX} at most"));
        }
    }

    /// What hosts may make namespaces of, and what they have made.
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
                let what = "is of a volume that an NVMe host has made: it needs its 'pool', or is left out";
                self.add(id, key, volume.marks.of(key), what);
            }
            let is_file = volume.kind == StoreKind::File && volume.medium == Medium::Disk && volume.size.is_some();
            if is_made && !is_file {
                let what = "is of what NVMe hosts have made: files with a size, and always there";
                self.add(id, "pool", volume.marks.of("pool"), what);
            }
            if is_made && volume.namespace.is_none() {
                self.add(id, "pool", volume.marks.of("pool"), "needs a 'namespace', by which hosts name it");
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
                            "{twin}: within NVM subsystem {target} an identifier means one volume, and a volume has \
                             one identifier; say which with 'namespace'"
                        );
                        self.add(at, key, mark, what);
                    }
                }
            }
        }
        self.named_twice(config);
    }

    /// What hosts have made is called by its own identifier, whoever maps it.
    fn named_twice(&mut self, config: &Config) {
        for (name, group) in &config.groups {
            for (number, lun) in &group.luns.0 {
                let made = config.volumes.get(lun.volume.name()).and_then(Volume::made_namespace);
                let Some((own, said)) = made.zip(lun.namespace).filter(|(own, said)| u64::from(*own) != said.get())
                else {
                    continue;
                };
                let id = Id { kind: Kind::Lun, name, lun: Some(*number) };
                let what = format!("is {}, but an NVMe host has made the volume as namespace {own}", said.get());
                self.add(id, "namespace", lun.marks.of("namespace"), what);
            }
        }
    }

    /// What is shown of protection has to be there, and all hosts of a subsystem see a namespace in one format.
    fn metadata(&mut self, config: &Config) {
        let mut seen: Seen<'_, &str, bool> = Seen::new();
        let is_subsystem = |target: &&str| config.targets.get(*target).is_some_and(|target| target.nqn.is_some());
        for (name, group) in &config.groups {
            for (number, lun) in &group.luns.0 {
                let (id, volume) = (Id { kind: Kind::Lun, name, lun: Some(*number) }, lun.volume.name());
                let at = if lun.metadata { lun.marks.of("metadata") } else { lun.marks.whole };
                let is_bare = |volume: &Volume| volume.protection == Protection::None;
                if lun.metadata && config.volumes.get(volume).is_some_and(is_bare) {
                    let what = format!(
                        "volume {volume} keeps no protection information that could be shown: give it 'protection', or \
                         leave this out"
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

    fn machines(&mut self, config: &Config) {
        let (mut hosts, mut sockets) = (Once::new(), Once::new());
        for (name, vm) in &config.vms {
            let id = Id { kind: Kind::Vm, name, lun: None };
            if name.starts_with('.') || name.len() > VM_NAME_MAX {
                let what = format!("a virtual machine's name has at most {VM_NAME_MAX} bytes, and begins with no '.'");
                self.add(id, "", vm.marks.whole, what);
            }
            let target = vm.target.name();
            if config.targets.get(target).is_some_and(|target| target.nqn.is_none()) {
                let what = format!("target {target} has no 'nqn', so it is no NVM subsystem");
                self.add(id, "target", vm.marks.of("target"), what);
            }
            if let Some(twin) = hosts.also(vm.host(name), name) {
                self.add(id, "host", vm.marks.of("host"), format!("is that of VM {twin}, too"));
            }
            let Some(socket) = &vm.socket else { continue };
            if socket.path().as_os_str().len() > SOCKET_PATH_MAX {
                let what = format!("is too long for a socket: {SOCKET_PATH_MAX} bytes at most");
                self.add(id, "socket", vm.marks.of("socket"), what);
            }
            if let Some(twin) = sockets.also(socket.path().to_owned(), name) {
                self.add(id, "socket", vm.marks.of("socket"), format!("is that of VM {twin}, too"));
            }
        }
    }
}
