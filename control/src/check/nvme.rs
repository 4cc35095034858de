//! What NVMe asks of a configuration: within an NVM subsystem an identifier means one namespace, and a namespace has
//! one identifier (NVMe Base 2.0 3.2.1.6), whoever sees it; and what virtual machines need.

use super::{Look, Once};
use crate::config::{Config, Id, Kind};
use crate::model::Group;
use crate::names::Pattern;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Bytes of a socket's path at most (`sun_path` of unix(7), without the zero that ends it).
pub const SOCKET_PATH_MAX: usize = 107;
/// Bytes of a virtual machine's name at most: it is part of the path of its socket.
const VM_NAME_MAX: usize = 64;
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

/// Where a subsystem has seen an identifier, or a volume: the other half, and the group.
type Seen<'c, K, V> = HashMap<(&'c str, K), (V, &'c str)>;

impl Look<'_> {
    /// Namespaces of subsystems, and virtual machines.
    pub(super) fn nvme(&mut self, config: &Config) {
        self.namespaces(config);
        self.machines(config);
    }

    fn namespaces(&mut self, config: &Config) {
        let (mut ids, mut volumes): (Seen<'_, u32, &str>, Seen<'_, &str, u32>) = Default::default();
        let is_subsystem = |target: &&str| config.targets.get(*target).is_some_and(|target| target.nqn.is_some());
        for (name, group) in config.groups.iter().filter(|(_, group)| may_have_hosts(group)) {
            for target in group.targets.names().filter(is_subsystem) {
                for (number, lun) in &group.luns.0 {
                    let Some(id) = lun.namespace_of(*number) else { continue };
                    let volume = lun.volume.name();
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
                        let id = Id { kind: Kind::Lun, name, lun: Some(*number) };
                        let key = if lun.namespace.is_some() { "namespace" } else { "" };
                        let what = format!(
                            "{twin}: within NVM subsystem {target} an identifier means one volume, and a volume has \
                             one identifier; say which with 'namespace'"
                        );
                        self.add(id, key, if key.is_empty() { lun.marks.whole } else { lun.marks.of(key) }, what);
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
