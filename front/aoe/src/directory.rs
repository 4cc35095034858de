//! A shelf as a configuration has it: which stations see which volumes.

use crate::schema::Aoe;
use crate::wire::Address;
use lunar_control::common_sections::{Group, Target};
use lunar_core::access::{Access, Pattern};
use lunar_core::unit::UnitId;
use lunar_engine::published_config::PublishedConfig;
use lunar_link::MacAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A volume in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotVolume {
    /// Its unit.
    pub unit: UnitId,
    /// Whether stations may only read.
    pub read_only: bool,
}

/// The volumes that a group of stations sees, by their slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The name of the group.
    pub group: Arc<str>,
    /// The volumes.
    pub slots: BTreeMap<u8, SlotVolume>,
}

/// A shelf.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Its number.
    pub number: u16,
    /// The name of its target in the configuration.
    pub target: String,
    /// The tag of its portal group; 0: none.
    pub portal_group: u16,
    /// The stations of each view, in the order of their priority.
    hosts: Vec<(Vec<Pattern>, Arc<View>)>,
}

/// Whether stations, which cannot authenticate, can belong to a group of this name.
fn fits(access: &Access, group: &str) -> bool {
    let mut same = access.groups().filter(|known| &*known.name == group).peekable();
    same.peek().is_some()
        && same.all(|group| group.sources.is_empty() && group.credentials.users.is_empty() && group.tls_keys.is_empty())
}

impl Shelf {
    /// The shelf of a section in a configuration that is published.
    #[must_use]
    pub fn of(name: &str, aoe: &Aoe, published: &PublishedConfig<'_>) -> Self {
        let config = &published.wanted.config;
        let target = aoe.target.name();
        let portal_group = aoe.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
        let is_here = |target: &Arc<Target>| target.enabled && target.moved_to.is_none();
        let access = published.accesses.get(target).filter(|_| config.targets.get(target).is_some_and(is_here));
        let mut hosts = Vec::new();
        let mut views: BTreeMap<Arc<str>, Arc<View>> = BTreeMap::new();
        for group in access.iter().flat_map(|access| access.groups()) {
            let fits = access.is_some_and(|access| fits(access, &group.name));
            let Some(section) = config.groups.get(&*group.name).filter(|_| fits) else { continue };
            let view = || Arc::new(View { group: group.name.clone(), slots: slots(aoe, section, published) });
            let view = views.entry(group.name.clone()).or_insert_with(view).clone();
            hosts.push((group.hosts.clone(), view));
        }
        Self {
            name: name.into(),
            number: aoe.shelf.get() as u16,
            target: target.to_owned(),
            portal_group: portal_group.map_or(0, |group| group.tag.get() as u16),
            hosts,
        }
    }

    /// A shelf whose stations all see these volumes: for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn open(number: u16, slots: BTreeMap<u8, SlotVolume>) -> Self {
        let view = Arc::new(View { group: "all".into(), slots });
        let hosts = vec![(vec![Pattern::new("*")], view)];
        Self { name: "test".into(), number, target: "t".into(), portal_group: 0, hosts }
    }

    /// The view of a station; `None`: it belongs to no group.
    #[must_use]
    pub fn view_of(&self, station: MacAddress) -> Option<&Arc<View>> {
        let name = station.to_string();
        let is_host = |(hosts, _): &&(Vec<Pattern>, Arc<View>)| hosts.iter().any(|pattern| pattern.fits(&name));
        self.hosts.iter().find(is_host).map(|(_, view)| view)
    }

    /// The units of all volumes.
    #[must_use]
    pub fn units(&self) -> BTreeSet<UnitId> {
        self.hosts.iter().flat_map(|(_, view)| view.slots.values()).map(|volume| volume.unit).collect()
    }

    /// The slots in use, each with a unit that some station sees in it, and the stations that its announcement is for.
    #[must_use]
    pub fn announced(&self) -> Vec<(Address, UnitId, Vec<MacAddress>)> {
        let mut all: BTreeMap<(u8, UnitId), BTreeSet<MacAddress>> = BTreeMap::new();
        for (hosts, view) in &self.hosts {
            let named: Option<Vec<MacAddress>> =
                hosts.iter().map(|pattern| crate::wire::mac_of(pattern.as_str())).collect();
            // Only patterns that are whole names say which stations there are.
            let stations = named.unwrap_or_else(|| vec![MacAddress::BROADCAST]);
            for (slot, volume) in &view.slots {
                all.entry((*slot, volume.unit)).or_default().extend(stations.iter().copied());
            }
        }
        let announced = |((slot, unit), stations): ((u8, UnitId), BTreeSet<MacAddress>)| {
            let is_for_all = stations.contains(&MacAddress::BROADCAST);
            let stations = if is_for_all { vec![MacAddress::BROADCAST] } else { stations.into_iter().collect() };
            (Address { shelf: self.number, slot }, unit, stations)
        };
        all.into_iter().map(announced).collect()
    }
}

/// The volumes of a group, by their slots.
fn slots(aoe: &Aoe, group: &Group, published: &PublishedConfig<'_>) -> BTreeMap<u8, SlotVolume> {
    let volume = |(lun, mapped): (&u16, &lunar_control::common_sections::Lun)| {
        let unit = *published.units.get(mapped.volume.name())?;
        Some((aoe.slot(*lun)?, SlotVolume { unit, read_only: mapped.read_only }))
    };
    group.luns.0.iter().filter_map(volume).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(number: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, number])
    }

    fn shelf(groups: &[(&str, &[(u8, u32)])]) -> Shelf {
        let host = |(pattern, slots): &(&str, &[(u8, u32)])| {
            let volume = |(slot, unit): &(u8, u32)| (*slot, SlotVolume { unit: UnitId(*unit), read_only: false });
            let view = View { group: (*pattern).into(), slots: slots.iter().map(volume).collect() };
            (vec![Pattern::new(pattern)], Arc::new(view))
        };
        Shelf { hosts: groups.iter().map(host).collect(), ..Shelf::open(1, BTreeMap::new()) }
    }

    #[test]
    fn stations_see_the_volumes_of_their_group() {
        let shelf = shelf(&[("02:00:00:00:00:01", &[(0, 5)]), ("02:*", &[(0, 6), (1, 7)])]);
        assert_eq!(shelf.view_of(mac(1)).map(|view| view.slots.len()), Some(1));
        assert_eq!(shelf.view_of(mac(2)).map(|view| view.slots.len()), Some(2));
        assert!(shelf.view_of(MacAddress([4; 6])).is_none());
        assert_eq!(shelf.units(), [5, 6, 7].map(UnitId).into());
        let of = |slot| Address { shelf: 1, slot };
        let all = vec![MacAddress::BROADCAST];
        assert_eq!(
            shelf.announced(),
            [(of(0), UnitId(5), vec![mac(1)]), (of(0), UnitId(6), all.clone()), (of(1), UnitId(7), all)]
        );
    }
}
