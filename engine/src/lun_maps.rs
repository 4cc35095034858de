//! The configuration of the cores for SCSI: target ports, LUN maps, and asymmetric access states.

use crate::target_ports::{FrontPort, TargetPorts, port};
use lunar_control::Checked;
use lunar_control::common_sections::{self, AluaState as Wanted};
use lunar_core::unit::UnitId;
use lunar_scsi::{LunMap, Mapping, PortConfig};
use lunar_unit::AccessState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The LUN map of a group: LUN, volume, whether it is read-only.
pub type VolumeMap = BTreeMap<u16, (String, bool)>;

/// LUN maps by the names of their groups, as the cores have them.
pub type LunMaps = BTreeMap<Arc<str>, LunMap>;

/// The asymmetric access state of a portal group, and whether it is preferred.
pub type GroupState = (AccessState, bool);

/// The target ports, with those that fronts add.
#[must_use]
pub fn target_ports(wanted: &Checked, added: Vec<FrontPort>, ports: &TargetPorts) -> Vec<PortConfig> {
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
    all.extend(added.into_iter().filter_map(|FrontPort { name, device, group, protocol }| {
        Some(PortConfig { relative: ports.named(&name)?, group, name, device, protocol })
    }));
    all
}

/// The LUN map of each group.
#[must_use]
pub fn volume_maps(wanted: &Checked) -> BTreeMap<Arc<str>, VolumeMap> {
    let lun = |lun: &common_sections::Lun| (lun.volume.name().to_owned(), lun.read_only);
    let map = |group: &common_sections::Group| group.luns.0.iter().map(|(number, it)| (*number, lun(it))).collect();
    wanted.config.groups.iter().map(|(name, group)| (name.as_str().into(), map(group))).collect()
}

/// A map as the cores have it; `unit` has the units of volumes. The check of the configuration refuses a volume with
/// two LUNs.
pub fn numbered(map: &VolumeMap, unit: impl Fn(&str) -> Option<UnitId>) -> LunMap {
    let mut seen = BTreeSet::new();
    let luns = map.iter().filter_map(|(lun, (volume, read_only))| {
        let unit = unit(volume)?;
        // Units are numbered below the last LUN.
        seen.insert(unit).then_some((*lun, Mapping { unit: unit.0 as u16, read_only: *read_only }))
    });
    LunMap::new(luns).unwrap_or_default()
}

/// The asymmetric access state of each portal group, by its tag, and whether it is preferred.
#[must_use]
pub fn states(wanted: &Checked) -> BTreeMap<u16, GroupState> {
    let state = |group: &common_sections::PortalGroup| match group.alua_state {
        Wanted::ActiveOptimized => AccessState::ActiveOptimized,
        Wanted::ActiveNonOptimized => AccessState::ActiveNonOptimized,
        Wanted::Standby => AccessState::Standby,
        Wanted::Unavailable => AccessState::Unavailable,
    };
    let both = |group: &Arc<common_sections::PortalGroup>| (group.tag.get() as u16, (state(group), group.preferred));
    wanted.config.portal_groups.values().map(both).collect()
}
