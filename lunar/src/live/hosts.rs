//! What the cores make of a configuration for NVMe: subsystems, ways to them, who sees which volume as which namespace,
//! and virtual machines. A target that has an NQN is an NVM subsystem; its groups and their maps are those of iSCSI.

use super::Placed;
use super::shape::{Accesses, Listener, discovery_proofs};
use crate::cores::Face;
use crate::serve::history;
use crate::volume::identity::own_revision;
use lunar_control::model::{DhchapGroup, DhchapHash, Group, Protocol, Target, Tls};
use lunar_control::visibility::group_of_machine;
use lunar_control::{Checked, Config};
use lunar_iscsi::directory as iscsi;
use lunar_nvme::auth::exchange::Terms;
use lunar_nvme::auth::group::Group as DhGroup;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::controller::CONTROLLERS_MAX;
use lunar_nvme::directory::{Directory, Entry, Portal, Way};
use lunar_nvme::history::History;
use lunar_nvme::manage::Pool;
use lunar_nvme::{Made, Mapping, NamespaceMap, Path as NvmePath, Tenant};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Hexadecimal digits of a serial number, as many as its field has characters.
const SERIAL_DIGITS: usize = 20;
/// Model number of all subsystems.
const MODEL: &str = "LUNAR VOLUME";

/// Maps by their names, as the cores have them: those of groups, and one for each virtual machine.
pub(super) type NamespaceMaps = BTreeMap<Arc<str>, NamespaceMap>;

/// What subsystems remember, by their names.
pub(super) type Histories = BTreeMap<String, Arc<History>>;

/// A virtual machine that is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    /// What it is called.
    pub(super) name: String,
    /// As whom it comes, and what it sees.
    pub(super) tenant: Tenant,
    /// The group that it belongs to.
    pub(super) group: Option<String>,
}

/// Whether a target is reached over NVMe, and as what.
fn subsystem(target: &Target) -> Option<&str> {
    let is_here = target.enabled && target.moved_to.is_none();
    target.nqn.as_ref().filter(|_| is_here).map(|nqn| nqn.as_str())
}

/// The tags of the portal groups of a target.
fn tags(wanted: &Checked, target: &Target) -> BTreeSet<u16> {
    let groups = target.portal_groups.names().filter_map(|name| wanted.config.portal_groups.get(name));
    groups.map(|group| group.tag.get() as u16).collect()
}

/// A serial number that stays with a name.
fn serial(nqn: &str) -> String {
    let digits: String = Sha256::digest(nqn.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..SERIAL_DIGITS].to_owned()
}

/// Reads what subsystems remember that are new, and lets go of those that are no more.
pub(super) fn remember(wanted: &Checked, state: &Path, histories: &mut Histories) {
    let all: BTreeSet<&str> = wanted.config.targets.values().filter_map(subsystem).collect();
    histories.retain(|nqn, _| all.contains(nqn.as_str()));
    for nqn in all {
        histories.entry(nqn.to_owned()).or_insert_with(|| history(state, nqn, &own_revision()));
    }
}

/// What is agreed to when hosts prove their names.
fn terms(hashes: &[DhchapHash], groups: &[DhchapGroup]) -> Terms {
    let hash = |hash: &DhchapHash| match hash {
        DhchapHash::Sha512 => Hash::SHA512,
        DhchapHash::Sha384 => Hash::SHA384,
        DhchapHash::Sha256 => Hash::SHA256,
    };
    let group = |group: &DhchapGroup| match group {
        DhchapGroup::Ffdhe8192 => DhGroup::FFDHE8192,
        DhchapGroup::Ffdhe6144 => DhGroup::FFDHE6144,
        DhchapGroup::Ffdhe4096 => DhGroup::FFDHE4096,
        DhchapGroup::Ffdhe3072 => DhGroup::FFDHE3072,
        DhchapGroup::Ffdhe2048 => DhGroup::FFDHE2048,
        DhchapGroup::Null => DhGroup::NULL,
    };
    Terms { hashes: hashes.iter().map(hash).collect(), groups: groups.iter().map(group).collect() }
}

/// What NVM subsystems there are, with the portals as they are listened at.
///
/// # Errors
/// What would not protect, in words.
pub(super) fn directory(
    wanted: &Checked,
    accesses: &Accesses,
    listeners: &BTreeMap<String, Listener>,
    histories: &Histories,
) -> Result<Directory, String> {
    let entry = |(name, target): (&String, &Target)| {
        let nqn = subsystem(target)?;
        Some(Entry {
            nqn: nqn.into(),
            serial: serial(nqn),
            model: MODEL.to_owned(),
            firmware: own_revision(),
            groups: Some(tags(wanted, target)),
            access: accesses.get(name)?.clone(),
            terms: terms(&target.dhchap_hashes, &target.dhchap_groups),
            history: histories.get(nqn).cloned().unwrap_or_default(),
            controllers_max: target.sessions.map_or(CONTROLLERS_MAX, |most| most.get() as usize),
            pools: pools(&wanted.config, name),
        })
    };
    let portals = wanted.config.portals.iter().filter(|(_, portal)| portal.protocol == Protocol::NvmeTcp);
    let portals = portals.filter_map(|(name, portal)| {
        let (listener, group) = (listeners.get(name)?, wanted.config.portal_groups.get(portal.group.name())?);
        let own = Some(listener.address).filter(|address| !address.ip().is_unspecified());
        let (address, is_secure) = (portal.advertise().or(own), portal.tls == Tls::Required);
        Some(Portal { id: listener.id, group: group.tag.get() as u16, address, is_secure })
    });
    let entries = wanted.config.targets.iter().filter_map(entry).collect();
    let discovery = &wanted.config.discovery;
    let discovery = (discovery_proofs(wanted), terms(&discovery.dhchap_hashes, &discovery.dhchap_groups));
    let directory = Directory::new(entries, discovery, Some(portals.collect()));
    let mut directory = directory.map_err(|why| why.to_string())?;
    directory.referrals = wanted.config.referrals.values().map(|other| NvmePath::tcp(other.address.0, 0)).collect();
    Ok(directory)
}

/// By which way those come in who call at each portal, by the number of its listener.
#[must_use]
pub(super) fn faces(wanted: &Checked, listeners: &BTreeMap<String, Listener>) -> BTreeMap<u32, Face> {
    let face = |(name, portal): (&String, &lunar_control::model::Portal)| {
        let (listener, group) = (listeners.get(name)?, wanted.config.portal_groups.get(portal.group.name())?);
        let (portal_id, group) = (listener.id, group.tag.get() as u16);
        Some(match portal.protocol {
            Protocol::Iscsi => (portal_id, Face::Iscsi(iscsi::PortalRef { portal: portal_id, group })),
            Protocol::NvmeTcp => {
                let is_secure = portal.tls == Tls::Required;
                (portal_id, Face::Nvme(Way { portal: portal_id, group, is_secure }))
            }
        })
    };
    wanted.config.portals.iter().filter_map(face).collect()
}

/// What a group sees over NVMe: what the operator shows it, and what hosts have made of its pool.
fn namespaces(config: &Config, group: &Group, volumes: &BTreeMap<String, Placed>) -> NamespaceMap {
    let shown = group.luns.0.iter().filter_map(|(number, lun)| {
        let unit = volumes.get(lun.volume.name())?.unit;
        let mapping = Mapping { read_only: lun.read_only, metadata: lun.metadata, ..Mapping::plain(unit) };
        Some((config.namespace_of(*number, lun)?, mapping))
    });
    let made = group.pool.as_ref().map(|pool| config.made_of(pool.name()));
    let made = made.into_iter().flatten().filter_map(|(name, volume, id)| {
        let made = Some(if volume.private { Made::Private } else { Made::Shared });
        Some((id, Mapping { made, ..Mapping::plain(volumes.get(name)?.unit) }))
    });
    // What the operator shows is not for hosts to attach.
    NamespaceMap::new(made.chain(shown))
}

/// What the hosts of a target may make namespaces of, by the names of their maps.
fn pools(config: &Config, target: &str) -> BTreeMap<Arc<str>, Arc<Pool>> {
    let groups = config.groups.iter().filter(|(_, group)| group.targets.contains(target));
    let groups = groups.map(|(name, group)| (Arc::from(name.as_str()), group));
    let machines = config.vms.iter().filter(|(_, vm)| vm.target.name() == target);
    let machines = machines.filter_map(|(name, _)| Some((map_of(name), group_of_machine(config, name)?.1)));
    let pool = |(map, group): (Arc<str>, &Group)| Some((map, Arc::new(pool(config, group.pool.as_ref()?.name())?)));
    groups.chain(machines).filter_map(pool).collect()
}

fn pool(config: &Config, name: &str) -> Option<Pool> {
    let capacity = config.pools.get(name)?.space.0;
    let mut pool = Pool { name: name.into(), capacity, left: config.left_of(name), ..Pool::default() };
    for (volume, uuid) in config.made_of(name).filter_map(|(_, volume, _)| Some((volume, volume.uuid?.0))) {
        for host in &volume.attached {
            pool.attached.entry(host.as_str().to_ascii_lowercase().into()).or_default().insert(uuid);
        }
        if volume.private {
            pool.private.insert(uuid);
        }
    }
    Some(pool)
}

/// The name of a virtual machine's own map: no group is called so.
fn map_of(machine: &str) -> Arc<str> {
    format!("vm/{machine}").into()
}

/// What each group, and each virtual machine, sees.
#[must_use]
pub(super) fn maps(wanted: &Checked, volumes: &BTreeMap<String, Placed>) -> NamespaceMaps {
    let groups = wanted.config.groups.iter();
    let groups = groups.map(|(name, group)| (Arc::from(name.as_str()), namespaces(&wanted.config, group, volumes)));
    let machines = wanted.config.vms.keys().map(|name| {
        let group = group_of_machine(&wanted.config, name);
        let seen = group.map(|(_, group)| namespaces(&wanted.config, group, volumes));
        (map_of(name), seen.unwrap_or_default())
    });
    groups.chain(machines).collect()
}

/// The virtual machines, by their sockets. One whose target is not here now keeps its socket, and nobody is let in.
#[must_use]
pub(super) fn machines(wanted: &Checked, runtime: &Path) -> BTreeMap<PathBuf, Machine> {
    let config = &wanted.config;
    let machine = |(name, vm): (&String, &lunar_control::model::Vm)| {
        let path = vm.socket(name, runtime);
        let group = vm.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
        let tenant = Tenant {
            host: vm.host(name).into(),
            subsystem: config.targets.get(vm.target.name()).and_then(subsystem).unwrap_or_default().into(),
            map: Some(map_of(name)),
            group: group.map_or(0, |group| group.tag.get() as u16),
            address: path.display().to_string(),
        };
        let group = group_of_machine(config, name).map(|(name, _)| name.to_owned());
        (path, Machine { name: name.clone(), tenant, group })
    };
    config.vms.iter().map(machine).collect()
}
