//! The configuration of the cores for NVMe: NVM subsystems, and the namespaces of each group. A target that has an NQN
//! is an NVM subsystem; its groups and their maps are those of SCSI.

use crate::access::{Accesses, discovery_credentials};
use crate::error::EngineError;
use crate::front::PrivateMap;
use crate::host::Host;
use crate::volume::identity::own_revision;
use lunar_control::common_sections::{DhchapGroup, DhchapHash, Group, Target};
use lunar_control::value::Textual;
use lunar_control::{Checked, Config};
use lunar_core::unit::UnitId;
use lunar_nvme::auth::exchange::Terms;
use lunar_nvme::auth::group::Group as DhGroup;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::controller::CONTROLLERS_MAX;
use lunar_nvme::directory::{Directory, Entry, Portal};
use lunar_nvme::history::History;
use lunar_nvme::namespace_management::Pool;
use lunar_nvme::{Mapping, NamespaceMap, NamespaceSharing, Path as NvmePath};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Hexadecimal digits of a serial number, as many as its field has characters.
const SERIAL_DIGITS: usize = 20;
/// Model number of all subsystems.
const MODEL: &str = "LUNAR VOLUME";

/// The units of volumes, by the names of the volumes.
pub type UnitsByName = BTreeMap<String, UnitId>;

/// Maps by their names, as the cores have them: those of groups, and those that are for single clients.
pub type NamespaceMaps = BTreeMap<Arc<str>, NamespaceMap>;

/// The histories of subsystems, by their names.
pub type Histories = BTreeMap<String, Arc<History>>;

/// The NQN of a target that is an NVM subsystem.
#[must_use]
pub fn subsystem(target: &Target) -> Option<&str> {
    let is_here = target.enabled && target.moved_to.is_none();
    target.nqn.as_ref().filter(|_| is_here).map(|nqn| nqn.as_str())
}

/// The tags of the portal groups of a target.
fn tags(wanted: &Checked, target: &Target) -> BTreeSet<u16> {
    let groups = target.portal_groups.names().filter_map(|name| wanted.config.portal_groups.get(name));
    groups.map(|group| group.tag.get() as u16).collect()
}

/// A serial number derived from a name.
fn serial(nqn: &str) -> String {
    let digits: String = Sha256::digest(nqn.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..SERIAL_DIGITS].to_owned()
}

/// Loads the histories of new subsystems, and drops those of subsystems that are gone.
pub fn update_histories(wanted: &Checked, host: &dyn Host, histories: &mut Histories) {
    let all: BTreeSet<&str> = wanted.config.targets.values().filter_map(|target| subsystem(target)).collect();
    histories.retain(|nqn, _| all.contains(nqn.as_str()));
    for nqn in all {
        let load = || Arc::new(History::new(host.state().subsystem(nqn), &own_revision(), host.wall_clock()));
        histories.entry(nqn.to_owned()).or_insert_with(load);
    }
}

/// The hash functions and groups of the authentication of hosts.
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

/// The NVM subsystems, which are reached at these portals.
///
/// # Errors
/// Access control that would not protect.
pub fn directory(
    wanted: &Checked,
    accesses: &Accesses,
    (portals, private): (Vec<Portal>, &[PrivateMap]),
    histories: &Histories,
) -> Result<Directory, EngineError> {
    let entry = |(name, target): (&String, &Arc<Target>)| {
        let nqn = subsystem(target)?;
        Some(Entry {
            nqn: nqn.into(),
            serial: target.serial.as_ref().map_or_else(|| serial(nqn), Textual::text),
            model: MODEL.to_owned(),
            firmware: own_revision(),
            groups: Some(tags(wanted, target)),
            access: accesses.get(name)?.clone(),
            terms: terms(&target.dhchap_hashes, &target.dhchap_groups),
            history: histories.get(nqn).cloned().unwrap_or_default(),
            controllers_max: target.sessions.map_or(CONTROLLERS_MAX, |most| most.get() as usize),
            pools: pools(&wanted.config, name, private),
        })
    };
    let entries = wanted.config.targets.iter().filter_map(entry).collect();
    let discovery = &wanted.config.discovery;
    let discovery = (discovery_credentials(wanted), terms(&discovery.dhchap_hashes, &discovery.dhchap_groups));
    let directory = Directory::new(entries, discovery, Some(portals));
    let mut directory = directory.map_err(|why| EngineError::Access(None, why))?;
    directory.referrals = wanted.config.referrals.values().map(|other| NvmePath::tcp(other.address.0, 0)).collect();
    Ok(directory)
}

/// The namespaces of a group: those that the operator maps, and those that hosts have created in its pool.
fn namespaces(config: &Config, group: &Group, units: &UnitsByName) -> NamespaceMap {
    let shown = group.luns.0.iter().filter_map(|(number, lun)| {
        let unit = *units.get(lun.volume.name())?;
        let mapping = Mapping { read_only: lun.read_only, metadata: lun.metadata, ..Mapping::plain(unit) };
        Some((config.namespace_of(*number, lun)?, mapping))
    });
    let made = group.pool.as_ref().map(|pool| config.made_of(pool.name()));
    let made = made.into_iter().flatten().filter_map(|(name, volume, id)| {
        let made = Some(if volume.private { NamespaceSharing::Private } else { NamespaceSharing::Shared });
        Some((id, Mapping { sharing: made, ..Mapping::plain(*units.get(name)?) }))
    });
    // Hosts do not attach namespaces that the operator maps.
    NamespaceMap::new(made.chain(shown))
}

/// The pools in which the hosts of a target may create namespaces, by the names of their maps.
fn pools(config: &Config, target: &str, private: &[PrivateMap]) -> BTreeMap<Arc<str>, Arc<Pool>> {
    let groups = config.groups.iter().filter(|(_, group)| group.targets.contains(target));
    let groups = groups.map(|(name, group)| (Arc::from(name.as_str()), group));
    let private = private.iter().filter(|map| map.target == target);
    let private = private.filter_map(|map| Some((map.name.clone(), config.groups.get(map.group.as_ref()?)?)));
    let pool =
        |(map, group): (Arc<str>, &Arc<Group>)| Some((map, Arc::new(pool(config, group.pool.as_ref()?.name())?)));
    groups.chain(private).filter_map(pool).collect()
}

fn pool(config: &Config, name: &str) -> Option<Pool> {
    let section = config.pools.get(name)?;
    let capacity = section.space.0;
    let namespaces_max = u32::try_from(section.namespaces.get()).unwrap_or(u32::MAX);
    let mut pool = Pool { name: name.into(), capacity, left: config.left_of(name), namespaces_max, ..Pool::default() };
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

/// The namespaces of each group, and of each client that has a map of its own.
#[must_use]
pub fn maps(wanted: &Checked, private: &[PrivateMap], units: &UnitsByName) -> NamespaceMaps {
    let config = &wanted.config;
    let groups = config.groups.iter();
    let groups = groups.map(|(name, group)| (Arc::from(name.as_str()), namespaces(config, group, units)));
    let private = private.iter().map(|map| {
        let group = map.group.as_ref().and_then(|group| config.groups.get(group));
        (map.name.clone(), group.map(|group| namespaces(config, group, units)).unwrap_or_default())
    });
    groups.chain(private).collect()
}
