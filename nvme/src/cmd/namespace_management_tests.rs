use super::*;

use crate::controller::Controllers;
use crate::directory::{Directory, Entry};
use crate::fuzzing::{NQN, Rig, at_once, entry, subsystem_entry};
use crate::namespace::NAMESPACES_MAX;
use crate::namespace_management::{Request, listed};
use crate::namespace_map::{Mapping, NamespaceMap, NamespaceSharing};
use crate::queue::Queue;
use crate::subsystem::{SingleCoreServices, SubsystemServices};
use lunar_core::access::{Access, Credentials, Group};
use lunar_core::unit::UnitId;
use lunar_unit::rewrite::request::{Rewrite, RewriteChange, RewriteKind};
use lunar_unit::{LocalFuture, UnitChange};
use std::cell::RefCell;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

/// Notes what is asked for, and makes namespace 9 of it.
#[derive(Default)]
struct Notes(RefCell<Vec<Request>>);

impl SubsystemServices for Notes {
    fn abort(&self, controller: u16, queue: u16, command: u16) -> LocalFuture<'static, bool> {
        SingleCoreServices.abort(controller, queue, command)
    }

    fn manage(&self, request: Request) -> LocalFuture<'static, Result<u32, Status>> {
        self.0.borrow_mut().push(request);
        Box::pin(ready(Ok(9)))
    }
}

const LEFT: u64 = 1 << 20;

fn pool(rig: &Rig) -> Pool {
    let (_, volume) = second(rig);
    let attached = [("nqn.2014-08.org.nvmexpress:uuid:later".into(), [volume].into())].into();
    Pool { name: "few".into(), capacity: 4 * LEFT, left: LEFT, namespaces_max: 7, attached, private: [].into() }
}

/// The second unit, which a host has made.
fn second(rig: &Rig) -> (UnitId, [u8; 16]) {
    let unit = UnitId(1);
    (unit, rig.subsystem.unit(unit).expect("it is there").unit.identity.uuid)
}

/// Puts a pool in force for hosts behind the map that shows unit 0 as namespace 1, and as namespace 5 what a host made.
fn set(rig: &Rig, pool: Option<Pool>, sort: NamespaceSharing) {
    let group = Group { map: Some("few".into()), ..Group::everybody() };
    let access = Access::new(vec![group], Credentials::default()).expect("right");
    let pools = pool.into_iter().map(|pool| ("few".into(), Arc::new(pool))).collect();
    let entry = Entry { pools, ..subsystem_entry(access) };
    rig.subsystems.set(Directory::new(vec![entry], Default::default(), None).expect("right"));
    let shown = Mapping::plain(UnitId(0));
    let map = NamespaceMap::new([(1, shown), (5, Mapping { unit: second(rig).0, sharing: Some(sort), ..shown })]);
    at_once(rig.subsystem.set_map(&"few".into(), map, ready(())));
}

fn rig() -> (Rig, Rc<Notes>, [Rc<Queue>; 2]) {
    let notes = Rc::new(Notes::default());
    let rig = Rig::with(notes.clone());
    set(&rig, Some(pool(&rig)), NamespaceSharing::Shared);
    let host = rig.host(9);
    (rig, notes, host)
}

fn fields(blocks: u64, capacity: u64, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut list = vec![0; 4096];
    list[..8].copy_from_slice(&blocks.to_le_bytes());
    list[8..16].copy_from_slice(&capacity.to_le_bytes());
    bytes.iter().for_each(|(at, byte)| list[*at] = *byte);
    list
}

fn ids(list: &[u16]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [&[list.len() as u16], list].concat().iter().flat_map(|id| id.to_le_bytes()).collect();
    bytes.resize(4096, 0);
    bytes
}

fn listed_ids(rig: &Rig, admin: &Rc<Queue>, what: u32) -> Vec<u8> {
    let list = rig.run(admin, &entry(0x06, 0, &[what]), &[]).data;
    list.chunks(4).map(|id| id[0]).take_while(|id| *id > 0).collect()
}

#[test]
fn namespace_requests_are_checked_before_they_reach_the_manager() {
    let (rig, notes, [admin, _io]) = rig();
    let create = |nsid, list: &[u8]| rig.run(&admin, &entry(0x0d, nsid, &[0]), list);
    let all = LEFT / 512;
    for (nsid, list, status) in [
        (1, fields(8, 8, &[]), Status::INVALID_FIELD),
        (0, fields(0, 0, &[]), Status::INVALID_FIELD),
        (0, fields(8, 9, &[]), Status::INVALID_FIELD),
        (0, fields(8, 7, &[]), Status::THIN_PROVISIONING),
        (0, fields(8, 8, &[(26, 2)]), Status::INVALID_FORMAT),
        (0, fields(8, 8, &[(26, 0x10)]), Status::INVALID_FORMAT),
        (0, fields(8, 8, &[(29, 1)]), Status::INVALID_FORMAT),
        (0, fields(8, 8, &[(30, 2)]), Status::INVALID_FIELD),
        (0, fields(8, 8, &[(92, 1)]), Status::INVALID_FIELD),
        (0, fields(8, 8, &[(100, 1)]), Status::INVALID_FIELD),
        (0, fields(8, 8, &[(102, 1)]), Status::INVALID_FIELD),
        (0, fields(all + 1, all + 1, &[]), Status::INSUFFICIENT_CAPACITY),
        (0, fields(u64::MAX, u64::MAX, &[(26, 1)]), Status::INSUFFICIENT_CAPACITY),
    ] {
        assert_eq!(create(nsid, &list).status, status, "{:?}", &list[..104]);
    }
    assert_eq!(rig.run(&admin, &entry(0x0d, 0, &[2]), &[]).status, Status::INVALID_FIELD);
    assert_eq!(notes.0.borrow().len(), 0);
    let made = create(0, &fields(all / 8, all / 8, &[(26, 1), (30, 1)]));
    assert_eq!((made.status, made.result), (Status::SUCCESS, 9));
    assert_eq!(create(0, &fields(all, all, &[])).status, Status::SUCCESS);
    let asked = notes.0.take();
    assert_eq!((&*asked[0].subsystem, &*asked[0].pool), (NQN, "few"));
    assert_eq!(asked[0].operation, NamespaceOperation::Create { blocks: all / 8, block_size: 4096, private: false });
    assert_eq!(asked[1].operation, NamespaceOperation::Create { blocks: all, block_size: 512, private: true });
}

#[test]
fn only_namespaces_of_hosts_are_deleted_and_attached() {
    let (rig, notes, [admin, _io]) = rig();
    let (_, volume) = second(&rig);
    let delete = |nsid| rig.run(&admin, &entry(0x0d, nsid, &[1]), &[]).status;
    assert_eq!((delete(1), delete(4)), (Status::OPERATION_DENIED, Status::INVALID_NAMESPACE));
    let unit = rig.units.unit(second(&rig).0).expect("it is there");
    let rewrite = |change| at_once(rig.units.propose(&unit, None, UnitChange::Rewrite(change))).expect("allowed");
    let kind = RewriteKind::Format { protection: None };
    rewrite(RewriteChange::Begin(Rewrite { kind, passes: Vec::new() }));
    assert_eq!((delete(5), delete(ALL)), (Status::FORMATTING, Status::FORMATTING));
    rewrite(RewriteChange::Done);
    assert_eq!((delete(5), delete(ALL)), (Status::SUCCESS, Status::SUCCESS));
    let attach = |nsid, sel, list: &[u8]| rig.run(&admin, &entry(0x15, nsid, &[sel]), list).status;
    let own = ids(&[admin.controller.id]);
    assert_eq!((attach(1, 0, &own), attach(1, 1, &own)), (Status::ALREADY_ATTACHED, Status::OPERATION_DENIED));
    assert_eq!((attach(4, 0, &own), attach(ALL, 0, &own)), (Status::INVALID_NAMESPACE, Status::INVALID_FIELD));
    assert_eq!(attach(5, 2, &own), Status::INVALID_FIELD);
    for wrong in [ids(&[]), ids(&[7, 7]), vec![0xff; 4096]] {
        assert_eq!(attach(5, 0, &wrong), Status::CONTROLLER_LIST);
    }
    assert_eq!(attach(5, 1, &ids(&[8, 7])), Status::SUCCESS);
    let asked: Vec<NamespaceOperation> = notes.0.take().into_iter().map(|request| request.operation).collect();
    let gone = NamespaceOperation::Delete(vec![(5, volume)]);
    assert_eq!(asked[..2], [gone.clone(), gone]);
    assert_eq!(asked[2], NamespaceOperation::Attach { namespace: (5, volume), controllers: vec![7, 8], attach: false });
}

#[test]
fn without_a_pool_there_are_no_such_commands() {
    let (rig, notes, [admin, _io]) = rig();
    let told = |admin: &Rc<Queue>| {
        let page = rig.run(admin, &entry(0x06, 0, &[1]), &[]).data;
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let effects = rig.run(admin, &entry(0x02, 0, &[0x05 | 1023 << 16]), &[]).data;
        (page[256] & 8, page[96] & 0x80, number(280), number(296), [effects[0x0d * 4], effects[0x15 * 4]])
    };
    assert_eq!(told(&admin), (8, 0x80, 4 * LEFT, LEFT, [9, 9]));
    let common = rig.run(&admin, &entry(0x06, ALL, &[0]), &[]).data;
    assert_eq!((common[25], common[130], common[134]), (1, 9, 12));
    let granularity = rig.run(&admin, &entry(0x06, 0, &[0x16]), &[]).data;
    assert_eq!((granularity[33], granularity[41]), (16, 16));
    set(&rig, None, NamespaceSharing::Shared);
    assert_eq!(told(&admin), (0, 0, 0, 0, [0, 0]));
    assert_eq!(rig.run(&admin, &entry(0x06, ALL, &[0]), &[]).data, [0; 4096]);
    assert_eq!(rig.run(&admin, &entry(0x06, 0, &[0x16]), &[]).status, Status::INVALID_FIELD);
    assert_eq!(rig.run(&admin, &entry(0x0d, 5, &[1]), &[]).status, Status::INVALID_OPCODE);
    assert_eq!(rig.run(&admin, &entry(0x15, 5, &[0]), &ids(&[1])).status, Status::INVALID_OPCODE);
    assert_eq!(rig.run(&rig.admin, &entry(0x0d, 5, &[1]), &[]).status, Status::INVALID_OPCODE, "behind no map");
    assert_eq!(notes.0.borrow().len(), 0);
}

#[test]
fn a_controller_has_the_namespaces_it_is_attached_to() {
    let (rig, _notes, [admin, io]) = rig();
    let [other, other_io] = rig.host(10);
    let (unit, volume) = second(&rig);
    let read = |io: &Rc<Queue>| rig.run(io, &entry(2, 5, &[0, 0, 0]), &[]).status;
    let attached_to = || {
        let list = rig.run(&admin, &entry(0x06, 5, &[0x12]), &[]).data;
        (list[0], u16::from_le_bytes([list[2], list[3]]))
    };
    assert_eq!((listed_ids(&rig, &admin, 0x02), listed_ids(&rig, &admin, 0x10)), (vec![1], vec![1, 5]));
    assert_eq!((read(&io), attached_to()), (Status::INVALID_NAMESPACE, (0, 0)));
    let active = rig.run(&admin, &entry(0x06, 5, &[0]), &[]).data;
    let allocated = rig.run(&admin, &entry(0x06, 5, &[0x11]), &[]).data;
    assert_eq!((active, allocated[30]), (vec![0; 4096], 1));
    assert_eq!(rig.run(&admin, &entry(0x09, 0, &[0x0b, 1 << 8]), &[]).status, Status::SUCCESS);
    assert!(rig.run(&admin, &entry(0x0c, 0, &[]), &[]).parked);
    admin.controller.set_attached(volume, 5, true);
    assert_eq!(at_once(admin.controller.event()), (0, Status::SUCCESS, 0x04_0002));
    assert_eq!((read(&io), read(&other_io)), (Status::SUCCESS, Status::INVALID_NAMESPACE));
    assert_eq!((listed_ids(&rig, &admin, 0x02), listed_ids(&rig, &other, 0x02)), (vec![1, 5], vec![1]));
    assert_eq!(attached_to(), (1, admin.controller.id));
    assert_eq!((admin.ids_of(unit), other.ids_of(unit)), (vec![5], vec![]));
    admin.controller.set_attached(volume, 5, false);
    at_once(rig.subsystem.detach(&[admin.controller.id], &[5], ready(())));
    assert_eq!((read(&io), attached_to()), (Status::INVALID_NAMESPACE, (0, 0)));
}

#[test]
fn a_new_controller_has_the_attachments_of_its_host() {
    let (rig, _notes, _host) = rig();
    let (_, volume) = second(&rig);
    let make = |pool: Pool| {
        set(&rig, Some(pool), NamespaceSharing::Private);
        let subsystem = rig.subsystems.directory().subsystem(NQN).expect("it is there").clone();
        let access_grant =
            crate::controller::AccessGrant { subsystem, group: None, map: Some("few".into()), source: None };
        let host = crate::host::Host { nqn: "NQN.2014-08.org.nvmexpress:uuid:later".into(), id: [3; 16] };
        let controllers = &rig.subsystem.config().controllers;
        let made = controllers.make(
            crate::Kind::Io,
            host,
            crate::path::Path::default(),
            (access_grant, false),
            lunar_core::time::Instant(0),
        );
        made.expect("room").is_attached(&volume)
    };
    assert!(make(pool(&rig)) && make(pool(&rig)));
    assert!(!make(Pool { attached: [].into(), ..pool(&rig) }));
    assert!(make(Pool { private: [volume].into(), ..pool(&rig) }), "the one before may be lost");
}

#[test]
fn a_list_names_controllers_of_the_pool_that_are_not_there_yet() {
    let (rig, _notes, [admin, _io]) = rig();
    let [other, _other_io] = rig.host(10);
    let (_, volume) = second(&rig);
    let request = |pool: &str| Request {
        subsystem: NQN.into(),
        pool: pool.into(),
        host: "nqn.x".into(),
        operation: NamespaceOperation::Delete(Vec::new()),
    };
    let (one, two) = (admin.controller.id, other.controller.id);
    let all: &Controllers = &rig.subsystem.config().controllers;
    let ask = |pool: &str, list: &[u16], attach| {
        listed(all, &rig.subsystems.directory(), &request(pool), (list, attach), &volume).map(|found| found.len())
    };
    assert_eq!(ask("few", &[one, two], true), Ok(2));
    assert_eq!(ask("few", &[one, 999], true), Err(Status::CONTROLLER_LIST));
    assert_eq!(ask("few", &[rig.admin.controller.id], true), Err(Status::CONTROLLER_LIST), "behind no map");
    assert_eq!(ask("other", &[one], true), Err(Status::CONTROLLER_LIST));
    assert_eq!(ask("few", &[one], false), Err(Status::NOT_ATTACHED));
    admin.controller.set_attached(volume, 5, true);
    assert_eq!(ask("few", &[one, two], true), Err(Status::ALREADY_ATTACHED));
    assert_eq!((ask("few", &[one], false), ask("few", &[two], true)), (Ok(1), Ok(1)));
    set(&rig, Some(Pool { private: [volume].into(), ..pool(&rig) }), NamespaceSharing::Private);
    assert_eq!(ask("few", &[two], true), Err(Status::IS_PRIVATE));
    admin.controller.set_attached(volume, 5, false);
    assert_eq!(ask("few", &[one, two], true), Err(Status::IS_PRIVATE));
    assert_eq!(ask("few", &[two], true), Ok(1));
}

#[test]
fn a_detach_does_not_wait_for_commands_that_stand_aside() {
    let (rig, _notes, [admin, _io]) = rig();
    let aside = admin.tasks.enter((77, 5));
    let guard = admin.stand_aside(77);
    at_once(rig.subsystem.detach(&[admin.controller.id], &[5], ready(())));
    assert!(!aside.aborted());
    drop(guard);
    assert!(admin.is_at((77, 5), &[5]) && !admin.is_at((77, 5), &[6]));
}

/// NVMe Base 2.1 figure 328, MNAN: the namespace of the operator, and the seven that the pool allows.
#[test]
fn mnan_counts_the_namespaces_that_the_pool_allows() {
    let (rig, _, [admin, _io]) = rig();
    let allowed = || {
        let data = rig.run(&admin, &entry(0x06, 0, &[0x01]), &[]).data;
        u32::from_le_bytes(*data[540..].first_chunk().expect("four bytes"))
    };
    assert_eq!(allowed(), 8);
    set(&rig, Some(Pool { namespaces_max: u32::MAX, ..pool(&rig) }), NamespaceSharing::Shared);
    assert_eq!(allowed(), NAMESPACES_MAX, "NN");
}
