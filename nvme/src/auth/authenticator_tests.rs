use super::*;
use crate::auth::AuthServices;
use crate::auth::host::Host;
use crate::command::Status;
use crate::fuzzing::{
    HOST_KEY, HOST_NQN, NQN, OWN_KEY, Rig, SOURCE, auth_sqe, entry, prover, subsystem_entry, with_users,
};
use crate::queue::Queue;
use lunar_core::access::{Group, Pattern, Secret};
use std::rc::Rc;

/// A key of no user.
const OTHER: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

fn send(rig: &Rig, queue: &Rc<Queue>, message: &[u8]) -> Status {
    rig.run(queue, &auth_sqe(5, message.len()), message).status
}

fn receive(rig: &Rig, queue: &Rc<Queue>) -> Vec<u8> {
    let ended = rig.run(queue, &auth_sqe(6, 4096), &[]);
    assert_eq!((ended.status, ended.data.len()), (Status::SUCCESS, 4096));
    ended.data
}

/// The exchange up to its last message: what that was.
fn authenticate(rig: &Rig, queue: &Rc<Queue>, host: &Host) -> u8 {
    assert_eq!(send(rig, queue, &host.negotiate(&[1, 2, 3], &[0])), Status::SUCCESS);
    let challenge = receive(rig, queue);
    assert_eq!(send(rig, queue, &host.reply(&challenge).expect("a challenge")), Status::SUCCESS);
    let last = receive(rig, queue);
    if host.other.is_some() && host.believes(&challenge, &last[..16 + 64]) {
        assert_eq!(send(rig, queue, &host.success()), Status::SUCCESS);
    }
    last[1]
}

/// The guard of this subsystem alone.
fn authenticator_of(access: Access, nqn: &str) -> Arc<Authenticator> {
    let entry = crate::directory::Entry { nqn: nqn.into(), ..subsystem_entry(access) };
    let subsystems = Arc::<SubsystemRegistry>::default();
    subsystems.set(crate::Directory::new(vec![entry], Default::default(), None).expect("right"));
    Authenticator::new(subsystems, Arc::default(), Box::new(|_| true), Box::new(|_| {}))
}

fn attempt(host: &str) -> LoginAttempt {
    LoginAttempt {
        host: host.into(),
        subsystem: NQN.into(),
        kind: Kind::Io,
        queue: 0,
        transport: TCP_WORD,
        source: SOURCE,
        tls_peer: None,
    }
}

#[test]
fn a_failed_tls_handshake_is_recorded_in_one_line() {
    let record = |host: Option<&str>, why| Record::TlsRefused { source: SOURCE, host: host.map(Into::into), why };
    let told = |host: Option<&str>| record(host, TlsRefusal::Clear).to_string();
    let start = "login refused reason=\"TLS was not established: the connection does not use TLS: nvme connect \
                 --tls\" source=192.0.2.7:4000 tls=1.3";
    assert_eq!(told(None), start);
    for (why, what) in [
        (
            TlsRefusal::OtherHash(Hash::SHA384, Hash::SHA256),
            "has the hash SHA256, the key of its group SHA384: configure",
        ),
        (TlsRefusal::NoSuite(Hash::SHA384), "(nvme gen-tls-key --hmac)"),
        (TlsRefusal::Broken(Hash::SHA384), "nvme gen-tls-key --hmac=1"),
        (TlsRefusal::Generated, "not --concat"),
    ] {
        assert!(record(None, why).to_string().contains(what), "{why}");
    }
    assert_eq!(told(Some("nqn.x\n\"")), format!("{start} host=\"nqn.x\\n\\\"\""));
    let told = Arc::<Mutex<Vec<Record>>>::default();
    let heard = told.clone();
    let sink = move |record: &Record| heard.lock().expect("whole").push(record.clone());
    let authenticator = Authenticator::new(Arc::default(), Arc::default(), Box::new(|_| true), Box::new(sink));
    (0..1000).for_each(|_| authenticator.tls_refused(SOURCE, None, TlsRefusal::NoIdentity, Instant(5_000_000_000)));
    let count = told.lock().expect("whole").len();
    assert_eq!(count, lunar_core::access::audit::REFUSALS_PER_SECOND as usize, "a flood is counted");
}

#[test]
fn commands_require_authentication() {
    let rig = Rig::default();
    assert_eq!(rig.told().len(), 1, "the rig's own host");
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let (queue, must_authenticate) = rig.connect_admin(9);
    assert!(must_authenticate && !queue.passes() && rig.told().is_empty());
    let property = |queue: &Rc<Queue>| rig.run(queue, &entry(0x7f, 4, &[1, 0]), &[]).status;
    let identify = |queue: &Rc<Queue>| rig.run(queue, &entry(0x06, 0, &[1]), &[]).status;
    let required = Status::AUTHENTICATION_REQUIRED;
    assert_eq!((property(&queue), identify(&queue)), (required, required));
    assert_eq!(authenticate(&rig, &queue, &prover(HOST_KEY)), 3);
    assert_eq!((property(&queue), identify(&queue), queue.passes()), (Status::SUCCESS, Status::SEQUENCE_ERROR, true));
    assert_eq!(
        rig.told(),
        [format!(
            "login accepted source=192.0.2.7:4000 session=normal host=\"{HOST_NQN}\" subsystem=\"{NQN}\" queue=0 \
             group=\"everybody\" user=\"alice\" dhchap=SHA512,NULL"
        )]
    );
    // Once more, while commands go on; and wrong, which ends it.
    assert_eq!(
        (authenticate(&rig, &queue, &prover(HOST_KEY)), rig.told().len(), property(&queue)),
        (3, 0, Status::SUCCESS)
    );
    assert_eq!(send(&rig, &queue, &prover(HOST_KEY).negotiate(&[1], &[0])), Status::SUCCESS);
    assert_eq!(property(&queue), Status::SUCCESS);
    let challenge = receive(&rig, &queue);
    send(&rig, &queue, &prover(OWN_KEY).reply(&challenge).expect("a challenge"));
    assert_eq!((receive(&rig, &queue)[1], property(&queue)), (0xf1, required));
    assert!(queue.authentication().is_some_and(|authentication| authentication.has_failed()));
}

#[test]
fn unauthenticated_hosts_take_no_controllers_of_others() {
    let rig = Rig::default();
    // One place besides that of the rig's own host.
    let entry = crate::directory::Entry { controllers_max: 2, ..subsystem_entry(with_users(&[("alice", HOST_KEY)])) };
    rig.subsystems.set(crate::Directory::new(vec![entry], Default::default(), None).expect("right"));
    let [first, second, _third] = [8, 9, 10].map(|id| rig.connect_admin(id).0);
    assert_eq!((authenticate(&rig, &second, &prover(HOST_KEY)), second.passes()), (3, true));
    let _ = rig.told();
    assert_eq!(
        (authenticate(&rig, &first, &prover(HOST_KEY)), first.passes()),
        (3, false),
        "there is no place any more"
    );
    assert!(first.authentication().is_some_and(|authentication| authentication.has_failed()));
    assert!(rig.told().last().is_some_and(|told| told.contains("too many controllers")));
}

#[test]
fn both_sides_prove_their_names() {
    let rig = Rig::default();
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let mutual = |key: &str| Host { other: Some(Key::parse(key.as_bytes()).expect("a key")), ..prover(HOST_KEY) };
    let (queue, _) = rig.connect_admin(9);
    assert_eq!((authenticate(&rig, &queue, &mutual(OWN_KEY)), queue.passes()), (3, true));
    let (queue, _) = rig.connect_admin(9);
    assert_eq!((authenticate(&rig, &queue, &mutual(HOST_KEY)), queue.passes()), (3, false), "it does not believe us");
    assert_eq!(send(&rig, &queue, &prover(HOST_KEY).failure()), Status::SUCCESS);
    assert!(queue.authentication().is_some_and(|authentication| authentication.has_failed()));
    assert!(rig.told().last().is_some_and(|told| told.contains("the host gives up: FAILED")));
}

#[test]
fn a_host_authenticates_with_its_own_keys_or_those_of_users() {
    let parties = |users: &[(&str, &str)], host: &str| {
        let authenticator = authenticator_of(with_users(users), NQN);
        let entry = authenticator.admit(&attempt(host))?;
        let names = entry
            .participants
            .map(|participants| participants.users.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>());
        Ok(names.unwrap_or_default().join(" "))
    };
    let all = [("alice", HOST_KEY), ("nqn.x:a", OTHER), ("bob", "no key of NVMe"), ("carol", OTHER)];
    assert_eq!(parties(&all, "nqn.x:b").as_deref(), Ok("alice carol"));
    assert_eq!(parties(&all, "nqn.x:A").as_deref(), Ok("nqn.x:a"), "a host with a key of its own has no other");
    assert_eq!(parties(&all[1..3], "nqn.x:b").err(), Some(Reason::NoKey), "nor has another host that one");
    assert_eq!(parties(&all[2..3], "nqn.x:a").err(), Some(Reason::NoKey));
    assert_eq!(parties(&[], "nqn.x:a").as_deref(), Ok(""));
}

#[test]
fn a_group_with_tls_keys_requires_tls() {
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";
    const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let key = |name: &str, text: &str| Account { name: name.into(), secret: Secret::of_any_length(text.into()) };
    let tls_keys = vec![key("nqn.psk-alone", &TLS_KEY.replace(":01:", ":00:")), key("all", TLS_KEY)];
    let named = Group { hosts: vec![Pattern::new("nqn.psk-*")], tls_keys, ..Group::everybody() };
    let access = Access::new(vec![named, Group::everybody()], Credentials::default()).expect("right");
    let authenticator = authenticator_of(access, SUBSYSTEM);
    let wants = |attempt: &LoginAttempt| authenticator.requires_tls(SUBSYSTEM, &attempt.host, attempt.source.ip());
    let knock = |attempt: &LoginAttempt| authenticator.admit(attempt).map(|_| wants(attempt));
    let attempt = |host: &str| LoginAttempt { subsystem: SUBSYSTEM.into(), ..attempt(host) };
    let plain = attempt("nqn.psk-test-host");
    let identity = "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=";
    let tls_peer = authenticator.tls_psk(identity).ok().map(|(tls_peer, _)| tls_peer);
    let secure = LoginAttempt { tls_peer, ..plain.clone() };
    assert_eq!((knock(&plain), knock(&secure)), (Err(Reason::TlsRequired), Ok(true)));
    let asks = LoginAttempt { kind: Kind::Discovery, subsystem: DISCOVERY_NQN.into(), ..plain.clone() };
    assert_eq!(knock(&asks), Ok(true), "it may use discovery");
    assert_eq!(knock(&LoginAttempt { host: "nqn.other".into(), ..secure }), Err(Reason::TlsMismatch));
    assert_eq!(knock(&attempt("nqn.other")), Ok(false));
    let found = authenticator.tls_psk(identity).map(|(tls_peer, offer)| (tls_peer.host.to_string(), offer.key.len()));
    assert_eq!(found, Ok(("nqn.psk-test-host".to_owned(), 32)));
    let alone = "NVMe0R01 nqn.psk-alone nqn.psk-test-subsys";
    let own = ConfiguredPsk::parse(TLS_KEY.replace(":01:", ":00:").as_bytes()).expect("a key");
    let own = own.offers("nqn.psk-alone", SUBSYSTEM).pop().expect("offers");
    assert!(authenticator.tls_psk(alone).is_ok_and(|(_, offer)| offer.key == own.key), "the key of this host alone");
    for (other, why) in [
        (identity.replace("U=", "V="), TlsRefusal::OtherKey),
        (identity.replace("R01", "R02"), TlsRefusal::OtherHash(Hash::SHA256, Hash::SHA384)),
        (identity.replace("R01", "G01"), TlsRefusal::Generated),
        (identity.replace("psk", "other"), TlsRefusal::NoKey),
        (identity.replace("test-host", "alone"), TlsRefusal::OtherKey),
        ("NVMe1R01 a b c".into(), TlsRefusal::NoKey),
        ("Client_identity".into(), TlsRefusal::NoIdentity),
    ] {
        assert_eq!(authenticator.tls_psk(&other).err(), Some(why), "{other}");
    }
}

#[test]
fn keys_of_both_hashes_open_the_same_subsystem() {
    const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    let key = |text: &str| Account { name: text.into(), secret: Secret::of_any_length(text.into()) };
    let authenticator = |keys: &[&str]| {
        let tls_keys = keys.iter().map(|text| key(text)).collect();
        let all = Group { tls_keys, ..Group::everybody() };
        authenticator_of(Access::new(vec![all], Credentials::default()).expect("right"), NQN)
    };
    for text in [SHORT, LONG] {
        for offer in ConfiguredPsk::parse(text.as_bytes()).expect("a key").offers(HOST_NQN, NQN) {
            for keys in [[SHORT, LONG], [LONG, SHORT]] {
                let (tls_peer, found) = authenticator(&keys).tls_psk(&offer.identity).expect("it is known");
                assert!(found.key == offer.key && found.hash == offer.hash && tls_peer.key.bytes() == text.as_bytes());
            }
            let other = if text == SHORT { LONG } else { SHORT };
            let theirs = if text == SHORT { Hash::SHA256 } else { Hash::SHA384 };
            let ours = if text == SHORT { Hash::SHA384 } else { Hash::SHA256 };
            let why = authenticator(&[other]).tls_psk(&offer.identity).err();
            assert_eq!(why, Some(TlsRefusal::OtherHash(ours, theirs)));
        }
    }
}

#[test]
fn a_key_opens_its_own_group_in_its_own_subsystem_only() {
    const KEYS: [&str; 2] = [
        "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:",
    ];
    const DATABASE: &str = "nqn.x:database";
    const SCRATCH: &str = "nqn.x:scratch";
    let group = |host: &str, key: usize| Group {
        name: host.into(),
        hosts: vec![Pattern::new(host)],
        tls_keys: vec![Account { name: "key".into(), secret: Secret::of_any_length(KEYS[key].into()) }],
        ..Group::everybody()
    };
    let entry = |nqn: &str, groups| crate::directory::Entry {
        nqn: nqn.into(),
        ..subsystem_entry(Access::new(groups, Credentials::default()).expect("right"))
    };
    let database = entry(DATABASE, vec![group("nqn.h:db", 0), group("*", 1)]);
    let scratch = entry(SCRATCH, vec![group("nqn.h:db", 0), group("nqn.h:web", 1)]);
    let subsystems = Arc::<SubsystemRegistry>::default();
    subsystems.set(crate::Directory::new(vec![database, scratch], Default::default(), None).expect("right"));
    let authenticator = Authenticator::new(subsystems, Arc::default(), Box::new(|_| true), Box::new(|_| {}));
    // Shakes hands with a key under these names, and wants a queue then.
    let knock = |key: usize, (host, named): (&str, &str), wanted: &str, queue| {
        let offer = ConfiguredPsk::parse(KEYS[key].as_bytes()).expect("a key").offers(host, named).swap_remove(0);
        let (tls_peer, agreed) = authenticator.tls_psk(&offer.identity).ok()?;
        assert!(agreed.key == offer.key, "hands are shaken");
        let kind = if wanted == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io };
        let asks = LoginAttempt { subsystem: wanted.into(), kind, queue, tls_peer: Some(tls_peer), ..attempt(host) };
        Some(authenticator.admit(&asks).map(|entry| entry.group.to_string()))
    };
    let (refused, of) = (Some(Err(Reason::TlsMismatch)), |group: &str| Some(Ok(group.to_owned())));
    for queue in [0, 1] {
        assert_eq!(knock(0, ("nqn.h:db", DATABASE), DATABASE, queue), of("nqn.h:db"));
        assert_eq!(knock(1, ("nqn.h:web", DATABASE), DATABASE, queue), of("*"));
        assert_eq!(knock(1, ("nqn.h:db", DATABASE), DATABASE, queue), refused, "the key of another group");
        for named in [SCRATCH, DISCOVERY_NQN] {
            assert_eq!(knock(0, ("nqn.h:db", named), DATABASE, queue), refused, "a TLS connection for {named}");
        }
    }
    assert_eq!(knock(1, ("nqn.h:db", SCRATCH), SCRATCH, 0), None, "a group that this host is not of");
    for named in [DATABASE, DISCOVERY_NQN] {
        assert_eq!(knock(0, ("nqn.h:db", named), DISCOVERY_NQN, 0), of("nqn.h:db"), "it may use discovery");
        assert_eq!(knock(1, ("nqn.h:web", named), DISCOVERY_NQN, 0), of("*"));
        assert_eq!(knock(1, ("nqn.h:db", named), DISCOVERY_NQN, 0), refused, "not with another host NQN");
    }
}

#[test]
fn failed_authentications_are_delayed_and_too_many_are_refused() {
    let rig = Rig::default();
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (queue, _) = rig.connect_admin(9);
        let began = rig.services.now();
        assert_eq!(authenticate(&rig, &queue, &prover(OTHER)), 0xf1);
        waits.push(rig.services.now().since(began).as_millis());
        assert!(queue.authentication().is_some_and(|authentication| authentication.has_failed()));
    }
    assert_eq!((waits[0], waits[1], waits[2]), (0, 0, 0), "{waits:?}");
    assert!(waits[3] >= 250 && waits[7] >= 4000, "{waits:?}");
    // Several at once: each is looked at behind the one before.
    let queues: Vec<_> = (0..4).map(|_| rig.connect_admin(9).0).collect();
    let results: Vec<_> = queues
        .iter()
        .map(|queue| {
            send(&rig, queue, &prover(OTHER).negotiate(&[1], &[0]));
            let challenge = receive(&rig, queue);
            send(&rig, queue, &prover(OTHER).reply(&challenge).expect("a challenge"))
        })
        .collect();
    assert_eq!(results.last(), Some(&Status::AUTHENTICATION_REQUIRED), "{results:?}");
    let told = rig.told();
    assert!(told.iter().any(|line| line.contains("reason=\"wrong key\"")));
    assert!(told.last().is_some_and(|line| line.contains("too many failures from there")));
    assert!(told.iter().all(|line| !line.contains("DHHC")));
}

#[test]
fn authentication_fails_with_a_reason_if_no_keys_are_configured() {
    let rig = Rig::default();
    let (queue, must_authenticate) = rig.connect_admin(9);
    assert!(!must_authenticate && queue.passes());
    assert_eq!(send(&rig, &queue, &prover(HOST_KEY).negotiate(&[1], &[0])), Status::SUCCESS);
    assert_eq!(receive(&rig, &queue)[..8], [0, 0xf1, 0, 0, 0x34, 0x12, 1, Why::PROTOCOL.0]);
}

#[test]
fn entries_that_are_refused() {
    let rig = Rig::default();
    let message = prover(HOST_KEY).negotiate(&[1], &[0]);
    let status = |dwords: &[u32], out: &[u8], kind: u32| rig.run(&rig.admin, &entry(0x7f, kind, dwords), out).status;
    assert_eq!(status(&[0xe901_0100, 0], &[], 5), Status::INVALID_FIELD);
    assert_eq!(status(&[0xe901_0000, 72], &message, 5), Status::INVALID_FIELD);
    assert_eq!(status(&[0xea01_0100, 72], &message, 5), Status::INVALID_FIELD);
    assert_eq!(status(&[0xe901_0100, 73], &message, 5), Status::SGL_LENGTH);
    assert_eq!(status(&[0xe901_0100, 4096], &[0; 4096], 5), Status::INVALID_FIELD, "too long for any message");
    assert_eq!(status(&[0xe901_0100, 0], &[], 6), Status::INVALID_FIELD);
    assert_eq!(status(&[0xe901_0100, 64], &[], 6), Status::SEQUENCE_ERROR);
}

#[test]
fn an_invalid_challenge_of_the_host_is_ignored() {
    crate::fuzzing::authentication(&[84, 40, 9, 0, 0, 5, 40, 0, 0, 145, 64, 1, 0, 29, 0, 0, 0, 5, 8]);
}

proptest::proptest! {
    #[test]
    fn no_host_passes_without_authentication(data in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
        crate::fuzzing::authentication(&data);
    }
}
