use super::*;
use crate::fuzzing::{HOST_NQN, NQN, Rig, caller, connect_data, connect_sqe};
use lunar_core::access::{Account, Credentials, Group, Pattern, Secret};

fn connect(rig: &Rig, queue: u16, entries: u16, data: &ConnectData) -> Result<(Rc<Queue>, u32), Refusal> {
    let command = Command { sqe: connect_sqe(queue, entries), sent: 1024, room: 0 };
    rig.subsystem.connect(&command, data.as_bytes(), Path::default(), caller(), Instant(0))
}

fn refused(result: Result<(Rc<Queue>, u32), Refusal>) -> (Status, u32) {
    let refusal = result.expect_err("it is refused");
    (refusal.status, refusal.result)
}

#[test]
fn hosts_get_controllers_and_queues() {
    let rig = Rig::default();
    let (admin, result) = connect(&rig, 0, 31, &connect_data(7, 0xffff, NQN)).expect("a new one");
    assert_eq!((result, admin.id, admin.entries, admin.flow_control), (2, 0, 32, true));
    let data = connect_data(7, 2, NQN);
    // NVMe Base 2.1 6.3.
    assert_eq!(refused(connect(&rig, 1, 127, &data)), (Status::CONNECT_PARAMETERS, 42), "not enabled");
    admin.controller.set_property(0x14, false, 0x46_0001).expect("enabled");
    let (queue, _) = connect(&rig, 1, 127, &data).expect("an I/O queue");
    assert_eq!((queue.id, queue.entries), (1, 128));
    assert_eq!(refused(connect(&rig, 1, 127, &data)), (Status::SEQUENCE_ERROR, 0), "there is one");
    drop(queue);
    assert!(connect(&rig, 1, 127, &data).is_ok());
    drop(admin);
    assert_eq!(refused(connect(&rig, 2, 127, &data)), (Status::CONNECT_PARAMETERS, 0x1_0010), "its controller is gone");
}

#[test]
fn connect_invalid_parameters_has_the_offset_of_the_parameter() {
    let rig = Rig::default();
    let good = connect_data(7, 0xffff, NQN);
    let own = connect_data(7, rig.admin.controller.id, NQN);
    let parameters = |place| (Status::CONNECT_PARAMETERS, place);
    assert_eq!(refused(connect(&rig, 0, 0, &good)), parameters(44), "no entries");
    assert_eq!(refused(connect(&rig, 0, 4096, &good)), parameters(44), "too many");
    assert_eq!(refused(connect(&rig, 2, 1024, &own)), parameters(44), "too many for I/O");
    let (largest, _) = connect(&rig, 2, 1023, &own).expect("SQSIZE counts from zero");
    let most = rig.admin.controller.property(0x00, true).map(|capabilities| capabilities & 0xffff);
    assert_eq!((largest.entries, most), (1024, Some(1023)), "MQES");
    drop(largest);
    assert_eq!(refused(connect(&rig, 0, 8, &good)), parameters(44), "too few for an admin queue");
    assert_eq!(refused(connect(&rig, 0, 31, &own)), parameters(0x1_0010), "a static controller");
    assert_eq!(refused(connect(&rig, 0, 31, &connect_data(7, 0xffff, "nqn.x:other"))), parameters(0x1_0100));
    assert_eq!(refused(connect(&rig, 1000, 31, &own)), parameters(42), "more queues than were granted");
    assert_eq!(refused(connect(&rig, 2, 31, &connect_data(8, 1, NQN))), parameters(0x1_0000), "another identifier");
    let renamed = ConnectData { host_nqn: field("nqn.2014-08.org.nvmexpress:uuid:other"), ..own };
    assert_eq!(refused(connect(&rig, 2, 31, &renamed)), parameters(0x1_0200), "another host");
    let endless = ConnectData { host_nqn: [b'n'; 256], ..good };
    assert_eq!(refused(connect(&rig, 0, 31, &endless)), parameters(0x1_0200));
    let command = Command { sqe: connect_sqe(0, 31), sent: 1023, room: 0 };
    let short = rig.subsystem.connect(&command, &good.as_bytes()[1..], Path::default(), caller(), Instant(0));
    assert_eq!(refused(short), (Status::SGL_LENGTH, 0));
    let mut sqe = connect_sqe(0, 31);
    sqe.cdw10[0] = 1.into();
    let command = Command { sqe, sent: 1024, room: 0 };
    let other = rig.subsystem.connect(&command, good.as_bytes(), Path::default(), caller(), Instant(0));
    assert_eq!(refused(other), (Status::CONNECT_FORMAT, 0));
}

/// An NQN in its field.
fn field(name: &str) -> [u8; 256] {
    let mut field = [0; 256];
    field[..name.len()].copy_from_slice(name.as_bytes());
    field
}

/// NVMe Base 2.1 5.1.25.1.28 and 6.3: CTRATT.ZHIDS is 0. All hosts without an identifier would be one registrant, and
/// pass each other's reservations.
#[test]
fn a_host_identifier_of_zero_is_refused() {
    let rig = Rig::default();
    let _ = rig.told();
    for (queue, controller, nqn) in [(0, 0xffff, NQN), (0, 0xffff, DISCOVERY_NQN), (2, 1, NQN)] {
        let ended = refused(connect(&rig, queue, 31, &connect_data(0, controller, nqn)));
        assert_eq!(ended, (Status::CONNECT_PARAMETERS, 0x1_0000), "queue {queue} of {nqn}");
        assert!(rig.told().iter().any(|told| told.contains("host identifier is zero")));
    }
}

/// NVMe Base 2.1 4.7 and 6.3.
#[test]
fn a_host_name_that_is_no_qualified_name_is_refused() {
    let rig = Rig::default();
    let connect = |name: &str| {
        let data = ConnectData { host_nqn: field(name), ..connect_data(7, 0xffff, NQN) };
        connect(&rig, 0, 31, &data).map(|_| ()).map_err(|refusal| (refusal.status, refusal.result))
    };
    for name in ["", "hello", "nqn", "nqn.", "iqn.2026-01.org.x:a", "nqn.2014-08.org.x:\n", "nqn.2014-08.\u{7f}"] {
        let _ = rig.told();
        assert_eq!(connect(name), Err((Status::CONNECT_PARAMETERS, 0x1_0200)), "{name:?}");
        assert!(rig.told().iter().any(|told| told.contains("nvme connect --hostnqn")), "{name:?}");
    }
    for name in [HOST_NQN, "nqn.2026-01.org.example:\u{fc}", "NQN.2014-08.org.nvmexpress:uuid:X"] {
        assert_eq!(connect(name), Ok(()), "{name:?}");
    }
}

#[test]
fn a_host_whose_access_ends_during_connect_gets_no_controller() {
    let rig = Rig::default();
    let sqe = connect_sqe(0, 31);
    let fields = Fields::ref_from_bytes(sqe.as_bytes()).expect("an entry");
    let data = connect_data(9, 0xffff, NQN);
    let attempt = attempt(&Command { sqe, sent: 1024, room: 0 }, data.as_bytes(), &caller()).expect("a host");
    let begin = || {
        let access_grant = AccessGrant { source: Some(attempt.source), ..rig.admin.controller.access_grant.clone() };
        rig.subsystem.begin(fields, &data, &attempt, (access_grant, false), Path::default(), Instant(0))
    };
    assert!(begin().is_ok());
    let before = rig.subsystem.config().controllers.all().len();
    // Between what it was judged by and its controller.
    rig.admit_groups(
        vec![Group { hosts: vec![Pattern::new("nqn.other")], ..Group::everybody() }],
        Credentials::default(),
    );
    let refused = begin().map(|controller| controller.id).map_err(|refusal| refusal.status);
    assert_eq!((refused, rig.subsystem.config().controllers.all().len()), (Err(Status::CONNECT_HOST), before));
    assert!(rig.told().last().is_some_and(|told| told.contains("no group matches the host")));
}

#[test]
fn sources_that_connect_too_often_wait_and_are_refused() {
    let rig = Rig::default();
    let _ = rig.told();
    let arrive = |queue| {
        let command = Command { sqe: connect_sqe(queue, 31), sent: 1024, room: 0 };
        rig.subsystem.arrive(&command, connect_data(7, 0xffff, NQN).as_bytes(), &caller(), Instant(0))
    };
    assert!((0..100).all(|_| arrive(0) == Ok(Duration::ZERO)), "there is no limit");
    let throttle = rig.subsystem.config().authenticator.throttling();
    throttle.lock().expect("whole").set_rate(Some(1));
    let waits: Vec<_> = (0..7).map(|_| arrive(0).map(|wait| wait.as_secs()).map_err(|why| why.status)).collect();
    assert_eq!(waits, [Ok(0), Ok(1), Ok(2), Ok(3), Ok(4), Ok(5), Err(Status::CONNECT_BUSY)]);
    assert!((0..100).all(|queue| arrive(queue + 1) == Ok(Duration::ZERO)), "queues of a controller do not count");
    let told = rig.told();
    assert!(
        told.len() == 1 && told[0].starts_with("login refused reason=\"too many connects from there\""),
        "{told:?}"
    );
}

#[test]
fn connects_to_unknown_subsystems_are_recorded() {
    let rig = Rig::default();
    let _ = rig.told();
    assert!(connect(&rig, 0, 31, &connect_data(7, 0xffff, "nqn.2026-01.org.x:other")).is_err());
    let told = rig.told();
    assert!(told.len() == 1 && told[0].starts_with("login refused reason=\"no such subsystem\""), "{told:?}");
}

#[test]
fn discovery_has_no_io_queues() {
    let rig = Rig::default();
    let (admin, _) = connect(&rig, 0, 31, &connect_data(7, 0xffff, DISCOVERY_NQN)).expect("a discovery service");
    assert_eq!(admin.controller.kind, Kind::Discovery);
    admin.controller.set_property(0x14, false, 1).expect("enabled without entry sizes");
    let io = connect(&rig, 1, 31, &connect_data(7, admin.controller.id, DISCOVERY_NQN));
    assert_eq!(refused(io), (Status::CONNECT_PARAMETERS, 0x1_0100));
}

#[test]
fn hosts_are_admitted_by_the_rules_of_their_group() {
    let rig = Rig::default();
    let secret = Secret::new(b"not for everybody".to_vec()).expect("long enough");
    let users = || Credentials { users: vec![Account { name: "alice".into(), secret: secret.clone() }], target: None };
    let of = |host: &str, source: &str| Group {
        hosts: vec![Pattern::new(host)],
        sources: vec![source.parse().expect("a network")],
        ..Group::everybody()
    };
    let named = of(HOST_NQN, "192.0.2.0/24");
    let (all, none) = ((true, true), (false, false));
    for (group, discovery, comes_in) in [
        (named.clone(), Credentials::default(), all),
        (of("NQN.2014-08.*:uuid:Rig", "192.0.2.7"), Credentials::default(), all),
        (of("iqn.*", "192.0.2.0/24"), Credentials::default(), none),
        (of(HOST_NQN, "198.51.100.0/24"), Credentials::default(), none),
        // A secret that is no DH-HMAC-CHAP key cannot authenticate a host.
        (Group { credentials: users(), ..named.clone() }, Credentials::default(), (false, true)),
        (Group { map: Some("map".into()), ..named.clone() }, Credentials::default(), all),
        (named.clone(), users(), (true, false)),
    ] {
        let told = format!("{group:?} {discovery:?}");
        rig.admit_groups(vec![group], discovery);
        let enters = |name, queue, controller| match connect(&rig, queue, 31, &connect_data(7, controller, name)) {
            Ok(_) => true,
            Err(refusal) if refusal.status == Status::CONNECT_HOST => false,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!((enters(NQN, 0, 0xffff), enters(DISCOVERY_NQN, 0, 0xffff)), comes_in, "{told}");
        // Nor by a queue of a controller that was there before.
        assert_eq!(enters(NQN, 2, rig.admin.controller.id), comes_in.0, "{told}");
    }
}
