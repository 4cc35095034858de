//! The units of a core, and the maps that show them to hosts as namespaces.

use crate::controller::Controller;
use crate::namespace::Namespace;
use crate::namespace_map::{Mapping, NamespaceMap};
use lunar_core::unit::UnitId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The units of a core, and the maps.
#[derive(Default)]
pub(crate) struct NamespaceTable {
    units: RefCell<BTreeMap<UnitId, Rc<Namespace>>>,
    maps: RefCell<BTreeMap<Arc<str>, Rc<NamespaceMap>>>,
    /// The namespaces of hosts without a map.
    whole: RefCell<Rc<NamespaceMap>>,
}

impl NamespaceTable {
    /// The namespaces of the map of this name, or of hosts without a map.
    pub(crate) fn map(&self, name: Option<&str>) -> Rc<NamespaceMap> {
        match name {
            None => self.whole.borrow().clone(),
            Some(name) => self.maps.borrow().get(name).cloned().unwrap_or_default(),
        }
    }

    /// The unit of this identifier in a map, and its mapping.
    pub(crate) fn find(&self, map: Option<&str>, id: u32) -> Option<(Rc<Namespace>, Mapping)> {
        let mapping = *self.map(map).0.get(&id)?;
        Some((self.unit(mapping.unit)?, mapping))
    }

    /// The same for a controller: it has a host-made namespace only if it is attached to it.
    pub(crate) fn find_for(&self, controller: &Controller, id: u32) -> Option<(Rc<Namespace>, Mapping)> {
        let found = self.find(controller.access_grant.map.as_deref(), id)?;
        let (namespace, mapping) = &found;
        let has = mapping.sharing.is_none() || controller.is_attached(&namespace.unit.identity.uuid);
        has.then_some(found)
    }

    /// This core's view of a unit.
    pub(crate) fn unit(&self, unit: UnitId) -> Option<Rc<Namespace>> {
        self.units.borrow().get(&unit).cloned()
    }

    /// The identifiers that a unit has at a controller.
    pub(crate) fn ids_of(&self, controller: &Controller, unit: UnitId) -> Vec<u32> {
        let map = self.map(controller.access_grant.map.as_deref());
        let ids = map.namespaces().filter(|(_, to)| to.unit == unit).map(|(id, _)| id);
        ids.filter(|id| self.find_for(controller, *id).is_some()).collect()
    }

    pub(crate) fn add(&self, namespace: Rc<Namespace>) {
        self.units.borrow_mut().insert(namespace.unit.id, namespace);
    }

    pub(crate) fn remove(&self, unit: UnitId) {
        self.units.borrow_mut().remove(&unit);
    }

    /// Shows a unit to hosts without a map.
    pub(crate) fn show(&self, id: u32, to: Mapping) {
        let mut whole = NamespaceMap::clone(&self.whole.borrow());
        whole.0.insert(id, to);
        *self.whole.borrow_mut() = Rc::new(whole);
    }

    /// Replaces a map; returns the identifiers whose units changed.
    pub(crate) fn set_map(&self, name: &Arc<str>, map: NamespaceMap) -> Vec<u32> {
        let map = Rc::new(map);
        let old = self.maps.borrow_mut().insert(name.clone(), map.clone()).unwrap_or_default();
        map.differs(&old)
    }

    pub(crate) fn forget_map(&self, name: &str) {
        self.maps.borrow_mut().remove(name);
    }

    /// The maps.
    pub(crate) fn maps(&self) -> Vec<(Arc<str>, Rc<NamespaceMap>)> {
        self.maps.borrow().iter().map(|(name, map)| (name.clone(), map.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Status;
    use crate::fuzzing::{Rig, at_once, entry};
    use crate::namespace_map::NamespaceSharing;
    use crate::queue::Queue;
    use lunar_core::access::{Credentials, Group};
    use lunar_unit::AccessState;
    use std::future::ready;

    const UNITS: [UnitId; 2] = [UnitId(0), UnitId(1)];

    fn map(all: &[(u32, UnitId, bool)]) -> NamespaceMap {
        let mapping = |(id, unit, read_only): &_| (*id, Mapping { read_only: *read_only, ..Mapping::plain(*unit) });
        NamespaceMap::new(all.iter().map(mapping))
    }

    fn set(rig: &Rig, all: &[(u32, UnitId, bool)]) {
        at_once(rig.subsystem.set_map(&"few".into(), map(all), ready(())));
    }

    /// A rig, and a host with a map that shows the second unit as namespace 7, read-only.
    fn behind() -> (Rig, [Rc<Queue>; 2]) {
        let rig = Rig::default();
        set(&rig, &[(7, UNITS[1], true)]);
        rig.admit_groups(vec![Group { map: Some("few".into()), ..Group::everybody() }], Credentials::default());
        let host = rig.host(9);
        (rig, host)
    }

    fn listed(rig: &Rig, admin: &Rc<Queue>) -> Vec<u8> {
        let list = rig.run(admin, &entry(0x06, 0, &[2]), &[]).data;
        list.chunks(4).map(|id| id[0]).take_while(|id| *id > 0).collect()
    }

    #[test]
    fn a_host_sees_only_the_namespaces_of_its_map() {
        let (rig, [admin, io]) = behind();
        let read = |id: u32| rig.run(&io, &entry(2, id, &[0, 0, 0]), &[]).status;
        assert_eq!(
            (read(7), read(1), read(2)),
            (Status::SUCCESS, Status::INVALID_NAMESPACE, Status::INVALID_NAMESPACE)
        );
        let write = |queue, id: u32| rig.run(queue, &entry(1, id, &[0, 0, 0]), &[1; 512]).status;
        assert_eq!((write(&io, 7), write(&rig.io, 2)), (Status::WRITE_PROTECTED, Status::SUCCESS), "others may write");
        assert_eq!((listed(&rig, &admin), listed(&rig, &rig.admin)), (vec![7], vec![1, 2]));
        let page = rig.run(&admin, &entry(0x06, 7, &[0]), &[]).data;
        assert_eq!((page[92], page[99], page[104]), (7, 1, rig.run(&rig.admin, &entry(0x06, 2, &[0]), &[]).data[104]));
        assert_eq!(rig.run(&admin, &entry(0x06, 1, &[0]), &[]).data, [0; 4096], "not shown");
        assert_eq!(rig.run(&admin, &entry(0x06, 1, &[3]), &[]).status, Status::INVALID_NAMESPACE);
        let access = rig.run(&admin, &entry(0x02, 0, &[0x0c | 13 << 16]), &[]).data;
        assert_eq!((access[8], access[16], access[48]), (1, 7, 7));
        assert_eq!(rig.run(&admin, &entry(0x80, u32::MAX, &[0]), &[]).status, Status::WRITE_PROTECTED);
        // Copy of a namespace that is not shown, in format 2.
        let mut list = [0; 64];
        list[..4].copy_from_slice(&1_u32.to_le_bytes());
        assert_eq!(rig.run(&io, &entry(0x19, 7, &[0, 0, 2 << 8]), &list).status, Status::WRITE_PROTECTED);
    }

    #[test]
    fn a_host_has_not_read_a_new_size_until_it_identifies_the_namespace() {
        let (rig, [admin, _io]) = behind();
        let unit = rig.subsystem.unit(UNITS[1]).expect("a unit").shared.clone();
        let unread = || unit.unread_capacity().len();
        rig.subsystem.resized(&[UNITS[1]]);
        assert_eq!(unread(), 2, "a host by its map, and one without a map");
        assert!(unit.unread_capacity().contains(&admin.controller.host.nqn));
        // The list of namespaces and the descriptors have no size.
        for (page, id) in [(2, 0), (3, 7)] {
            assert_eq!(rig.run(&admin, &entry(0x06, id, &[page]), &[]).status, Status::SUCCESS);
        }
        assert_eq!(unread(), 2);
        assert_eq!(rig.run(&admin, &entry(0x06, 7, &[0]), &[]).status, Status::SUCCESS);
        assert_eq!(unread(), 1);
        rig.subsystem.resized(&[UNITS[1]]);
        assert_eq!(unread(), 2);
        // A map that shows another unit under the identifier ends the notice, and so does a reset.
        rig.subsystem.tell_namespaces(&[("few".into(), vec![7])].into(), &[]);
        assert_eq!(unread(), 1);
        rig.admin.controller.set_property(0x14, false, 0).expect("a reset");
        assert_eq!(unread(), 0);
    }

    #[test]
    fn maps_change_for_connected_hosts() {
        let (rig, [admin, io]) = behind();
        assert_eq!(rig.run(&admin, &entry(0x09, 0, &[0x0b, 1 << 8]), &[]).status, Status::SUCCESS);
        assert!(rig.run(&admin, &entry(0x0c, 0, &[]), &[]).parked);
        let before = rig.run(&io, &entry(2, 7, &[0, 0, 0]), &[]).data;
        rig.memories[0].with(|bytes| bytes[..512].fill(3));
        set(&rig, &[(7, UNITS[0], false), (8, UNITS[1], false)]);
        let after = rig.run(&io, &entry(2, 7, &[0, 0, 0]), &[]).data;
        assert_eq!((before[0], after[0]), (0, 3));
        assert_eq!(listed(&rig, &admin), [7, 8]);
        rig.subsystem.tell_namespaces(&[("other".into(), vec![9])].into(), &[]);
        rig.subsystem.tell_namespaces(&[("few".into(), vec![8])].into(), &[UNITS[0]]);
        assert_eq!(at_once(admin.controller.event()), (0, Status::SUCCESS, 0x04_0002));
        // Retained, in parts, and then taken.
        let changed = |admin: &Rc<Queue>, dword: u32, offset: u32| {
            let list = rig.run(admin, &entry(0x02, 0, &[0x04 | dword | 1 << 16, 0, offset]), &[]).data;
            [list[0], list[4]]
        };
        assert_eq!((changed(&admin, 1 << 15, 0), changed(&admin, 1 << 15, 4)), ([7, 8], [8, 0]));
        assert!(rig.run(&admin, &entry(0x0c, 0, &[]), &[]).parked);
        assert_eq!((changed(&admin, 0, 0), changed(&admin, 0, 0)), ([7, 8], [0, 0]));
        assert_eq!(changed(&rig.admin, 0, 0), [1, 0], "a host without a map gets one change for the unit");
        rig.subsystem.tell_namespaces(&[("few".into(), vec![8])].into(), &[]);
        assert_eq!(
            at_once(admin.controller.event()).2,
            0x04_0002,
            "the page was read: the next change is reported again"
        );
        assert_eq!(changed(&admin, 0, 0), [8, 0]);
        at_once(rig.units.set_access(UNITS[1], 3, AccessState::Standby, false));
        assert_eq!(rig.run(&io, &entry(2, 8, &[0, 0, 0]), &[]).status, Status::SUCCESS, "by another group");
        rig.subsystem.forget_map("few");
        rig.subsystem.remove_unit(UNITS[0]);
        assert_eq!(rig.run(&io, &entry(2, 7, &[0, 0, 0]), &[]).status, Status::INVALID_NAMESPACE);
    }

    #[test]
    fn host_made_namespaces_are_reported_when_they_are_attached() {
        let [shown, made] =
            [None, Some(NamespaceSharing::Shared)].map(|made| Mapping { sharing: made, ..Mapping::plain(UNITS[1]) });
        let [none, shown, made] = [vec![], vec![(2, shown)], vec![(2, made)]].map(NamespaceMap::new);
        assert!(!made.is_news(&none, &[]) && !none.is_news(&made, &UNITS[1..]) && !made.is_news(&made, &[]));
        assert!(none.is_news(&made, &[]) && shown.is_news(&made, &[]) && made.is_news(&shown, &[]));
        assert!(shown.is_news(&none, &[]) && none.is_news(&shown, &UNITS[1..]));
    }

    #[test]
    fn controllers_whose_access_ends_are_ended() {
        let (rig, [admin, _io]) = behind();
        let is_over = || (rig.admin.controller.is_over(), admin.controller.is_over());
        let review = || rig.subsystem.config().controllers.review(&rig.subsystems.directory(), |_| false);
        review();
        assert_eq!(is_over(), (false, false), "both belong to the group of this name");
        rig.admit_groups(vec![Group { name: "others".into(), ..Group::everybody() }], Credentials::default());
        review();
        assert_eq!(is_over(), (true, true));
        let (rig, [admin, _io]) = behind();
        rig.subsystem.config().controllers.review(&rig.subsystems.directory(), |one| one.access_grant.map.is_some());
        assert_eq!((rig.admin.controller.is_over(), admin.controller.is_over()), (false, true));
    }
}
