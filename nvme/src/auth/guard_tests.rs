use super::*;
use crate::auth::Outside;
use crate::auth::host::Host;
use crate::command::Status;
use crate::fuzzing::{
    HOST_KEY, HOST_NQN, NQN, OWN_KEY, Rig, SOURCE, auth_sqe, entry, prover, subsystem_entry, with_users,
};
use crate::queue::Queue;
use lunar_core::access::{Group, Pattern, Secret};
use std::rc::Rc;

/// A key that nobody has.
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
fn prove(rig: &Rig, queue: &Rc<Queue>, host: &Host) -> u8 {
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
fn guard_of(access: Access, nqn: &str) -> Arc<Guard> {
    let entry = crate::directory::Entry { nqn: nqn.into(), ..subsystem_entry(access) };
    let board = Arc::<Board>::default();
    board.set(crate::Directory::new(vec![entry], Default::default(), None).expect("right"));
    Guard::new(board, Arc::default(), Box::new(|_| true), Box::new(|_| {}))
}

fn visitor(host: &str) -> Visitor {
    Visitor { host: host.into(), subsystem: NQN.into(), kind: Kind::Io, queue: 0, source: SOURCE, channel: None }
}

#[test]
fn a_channel_that_is_not_agreed_is_told_of_in_one_line() {
    let record = |host: Option<&str>, why| Record::Channel { source: SOURCE, host: host.map(Into::into), why };
    let told = |host: Option<&str>| record(host, Unagreed::Clear).to_string();
    let start = "login refused reason=\"no secure channel was agreed: the host comes in the clear: nvme connect \
                 --tls\" source=192.0.2.7:4000 channel=TLS1.3";
    assert_eq!(told(None), start);
    for (why, what) in [
        (Unagreed::OtherHash(Hash::SHA384, Hash::SHA256), "one of SHA256, that of its group one of SHA384: give both"),
        (Unagreed::NoSuite(Hash::SHA384), "(nvme gen-tls-key --hmac)"),
        (Unagreed::Broken(Hash::SHA384), "nvme gen-tls-key --hmac=1"),
        (Unagreed::Generated, "not --concat"),
    ] {
        assert!(record(None, why).to_string().contains(what), "{why}");
    }
    assert_eq!(told(Some("nqn.x\n\"")), format!("{start} host=\"nqn.x\\n\\\"\""));
    let told = Arc::<Mutex<Vec<Record>>>::default();
    let heard = told.clone();
    let sink = move |record: &Record| heard.lock().expect("whole").push(record.clone());
    let guard = Guard::new(Arc::default(), Arc::default(), Box::new(|_| true), Box::new(sink));
    (0..1000).for_each(|_| guard.refused_channel(SOURCE, None, Unagreed::NoIdentity, Instant(5_000_000_000)));
    let count = told.lock().expect("whole").len();
    assert_eq!(count, lunar_core::access::audit::REFUSALS_PER_SECOND as usize, "a flood is counted");
}

#[test]
fn nothing_is_carried_out_before_the_name_is_proved() {
    let rig = Rig::default();
    assert_eq!(rig.told().len(), 1, "the rig's own host");
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let (queue, proves) = rig.knock(9);
    assert!(proves && !queue.passes() && rig.told().is_empty());
    let property = |queue: &Rc<Queue>| rig.run(queue, &entry(0x7f, 4, &[1, 0]), &[]).status;
    let identify = |queue: &Rc<Queue>| rig.run(queue, &entry(0x06, 0, &[1]), &[]).status;
    let required = Status::AUTHENTICATION_REQUIRED;
    assert_eq!((property(&queue), identify(&queue)), (required, required));
    assert_eq!(prove(&rig, &queue, &prover(HOST_KEY)), 3);
    assert_eq!((property(&queue), identify(&queue), queue.passes()), (Status::SUCCESS, Status::SEQUENCE_ERROR, true));
    assert_eq!(
        rig.told(),
        [format!(
            "login accepted source=192.0.2.7:4000 session=normal host=\"{HOST_NQN}\" subsystem=\"{NQN}\" queue=0 \
             group=\"everybody\" user=\"alice\" dhchap=SHA512,NULL"
        )]
    );
    // Once more, while commands go on; and wrong, which ends it.
    assert_eq!((prove(&rig, &queue, &prover(HOST_KEY)), rig.told().len(), property(&queue)), (3, 0, Status::SUCCESS));
    assert_eq!(send(&rig, &queue, &prover(HOST_KEY).negotiate(&[1], &[0])), Status::SUCCESS);
    assert_eq!(property(&queue), Status::SUCCESS);
    let challenge = receive(&rig, &queue);
    send(&rig, &queue, &prover(OWN_KEY).reply(&challenge).expect("a challenge"));
    assert_eq!((receive(&rig, &queue)[1], property(&queue)), (0xf1, required));
    assert!(queue.proof().is_some_and(|proof| proof.has_failed()));
}

#[test]
fn who_has_proved_nothing_takes_nobodys_place() {
    let rig = Rig::default();
    // One place besides that of the rig's own host.
    let entry = crate::directory::Entry { controllers_max: 2, ..subsystem_entry(with_users(&[("alice", HOST_KEY)])) };
    rig.board.set(crate::Directory::new(vec![entry], Default::default(), None).expect("right"));
    let [first, second, _third] = [8, 9, 10].map(|id| rig.knock(id).0);
    assert_eq!((prove(&rig, &second, &prover(HOST_KEY)), second.passes()), (3, true));
    let _ = rig.told();
    assert_eq!((prove(&rig, &first, &prover(HOST_KEY)), first.passes()), (3, false), "there is no place any more");
    assert!(first.proof().is_some_and(|proof| proof.has_failed()));
    assert!(rig.told().last().is_some_and(|told| told.contains("too many controllers")));
}

#[test]
fn both_sides_prove_their_names() {
    let rig = Rig::default();
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let mutual = |key: &str| Host { other: Some(Key::parse(key.as_bytes()).expect("a key")), ..prover(HOST_KEY) };
    let (queue, _) = rig.knock(9);
    assert_eq!((prove(&rig, &queue, &mutual(OWN_KEY)), queue.passes()), (3, true));
    let (queue, _) = rig.knock(9);
    assert_eq!((prove(&rig, &queue, &mutual(HOST_KEY)), queue.passes()), (3, false), "it does not believe us");
    assert_eq!(send(&rig, &queue, &prover(HOST_KEY).failure()), Status::SUCCESS);
    assert!(queue.proof().is_some_and(|proof| proof.has_failed()));
    assert!(rig.told().last().is_some_and(|told| told.contains("the host gives up: FAILED")));
}

#[test]
fn keys_are_those_of_hosts_and_of_users() {
    let parties = |users: &[(&str, &str)], host: &str| {
        let guard = guard_of(with_users(users), NQN);
        let entry = guard.knock(&visitor(host))?;
        let names = entry.party.map(|party| party.users.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>());
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
fn who_has_to_come_by_a_secure_channel() {
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";
    const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let key = |name: &str, text: &str| Account { name: name.into(), secret: Secret::of_any_length(text.into()) };
    let channels = vec![key("nqn.psk-alone", &TLS_KEY.replace(":01:", ":00:")), key("all", TLS_KEY)];
    let named = Group { hosts: vec![Pattern::new("nqn.psk-*")], channels, ..Group::everybody() };
    let access = Access::new(vec![named, Group::everybody()], Proofs::default()).expect("right");
    let guard = guard_of(access, SUBSYSTEM);
    let wants = |visitor: &Visitor| guard.wants_channel(SUBSYSTEM, &visitor.host, visitor.source.ip());
    let knock = |visitor: &Visitor| guard.knock(visitor).map(|_| wants(visitor));
    let visitor = |host: &str| Visitor { subsystem: SUBSYSTEM.into(), ..visitor(host) };
    let plain = visitor("nqn.psk-test-host");
    let identity = "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=";
    let channel = guard.channel(identity).ok().map(|(bearer, _)| bearer);
    let secure = Visitor { channel, ..plain.clone() };
    assert_eq!((knock(&plain), knock(&secure)), (Err(Reason::NoChannel), Ok(true)));
    let asks = Visitor { kind: Kind::Discovery, subsystem: DISCOVERY_NQN.into(), ..plain.clone() };
    assert_eq!(knock(&asks), Ok(true), "it may ask what there is");
    assert_eq!(knock(&Visitor { host: "nqn.other".into(), ..secure }), Err(Reason::OtherChannel));
    assert_eq!(knock(&visitor("nqn.other")), Ok(false));
    let found = guard.channel(identity).map(|(bearer, offer)| (bearer.host.to_string(), offer.key.len()));
    assert_eq!(found, Ok(("nqn.psk-test-host".to_owned(), 32)));
    let alone = "NVMe0R01 nqn.psk-alone nqn.psk-test-subsys";
    let own = ChannelKey::parse(TLS_KEY.replace(":01:", ":00:").as_bytes()).expect("a key");
    let own = own.offers("nqn.psk-alone", SUBSYSTEM).pop().expect("offers");
    assert!(guard.channel(alone).is_ok_and(|(_, offer)| offer.key == own.key), "the key of this host alone");
    for (other, why) in [
        (identity.replace("U=", "V="), Unagreed::OtherKey),
        (identity.replace("R01", "R02"), Unagreed::OtherHash(Hash::SHA256, Hash::SHA384)),
        (identity.replace("R01", "G01"), Unagreed::Generated),
        (identity.replace("psk", "other"), Unagreed::NoKey),
        (identity.replace("test-host", "alone"), Unagreed::OtherKey),
        ("NVMe1R01 a b c".into(), Unagreed::NoKey),
        ("Client_identity".into(), Unagreed::NoIdentity),
    ] {
        assert_eq!(guard.channel(&other).err(), Some(why), "{other}");
    }
}

#[test]
fn keys_of_both_hashes_open_the_same_subsystem() {
    const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    let key = |text: &str| Account { name: text.into(), secret: Secret::of_any_length(text.into()) };
    let guard = |keys: &[&str]| {
        let channels = keys.iter().map(|text| key(text)).collect();
        let all = Group { channels, ..Group::everybody() };
        guard_of(Access::new(vec![all], Proofs::default()).expect("right"), NQN)
    };
    for text in [SHORT, LONG] {
        for offer in ChannelKey::parse(text.as_bytes()).expect("a key").offers(HOST_NQN, NQN) {
            for keys in [[SHORT, LONG], [LONG, SHORT]] {
                let (bearer, found) = guard(&keys).channel(&offer.identity).expect("it is known");
                assert!(found.key == offer.key && found.hash == offer.hash && bearer.key.bytes() == text.as_bytes());
            }
            let other = if text == SHORT { LONG } else { SHORT };
            let theirs = if text == SHORT { Hash::SHA256 } else { Hash::SHA384 };
            let ours = if text == SHORT { Hash::SHA384 } else { Hash::SHA256 };
            let why = guard(&[other]).channel(&offer.identity).err();
            assert_eq!(why, Some(Unagreed::OtherHash(ours, theirs)));
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
        channels: vec![Account { name: "key".into(), secret: Secret::of_any_length(KEYS[key].into()) }],
        ..Group::everybody()
    };
    let entry = |nqn: &str, groups| crate::directory::Entry {
        nqn: nqn.into(),
        ..subsystem_entry(Access::new(groups, Proofs::default()).expect("right"))
    };
    let database = entry(DATABASE, vec![group("nqn.h:db", 0), group("*", 1)]);
    let scratch = entry(SCRATCH, vec![group("nqn.h:db", 0), group("nqn.h:web", 1)]);
    let board = Arc::<Board>::default();
    board.set(crate::Directory::new(vec![database, scratch], Default::default(), None).expect("right"));
    let guard = Guard::new(board, Arc::default(), Box::new(|_| true), Box::new(|_| {}));
    // Shakes hands with a key under these names, and wants a queue then.
    let knock = |key: usize, (host, named): (&str, &str), wanted: &str, queue| {
        let offer = ChannelKey::parse(KEYS[key].as_bytes()).expect("a key").offers(host, named).swap_remove(0);
        let (bearer, agreed) = guard.channel(&offer.identity).ok()?;
        assert!(agreed.key == offer.key, "hands are shaken");
        let kind = if wanted == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io };
        let asks = Visitor { subsystem: wanted.into(), kind, queue, channel: Some(bearer), ..visitor(host) };
        Some(guard.knock(&asks).map(|entry| entry.group.to_string()))
    };
    let (refused, of) = (Some(Err(Reason::OtherChannel)), |group: &str| Some(Ok(group.to_owned())));
    for queue in [0, 1] {
        assert_eq!(knock(0, ("nqn.h:db", DATABASE), DATABASE, queue), of("nqn.h:db"));
        assert_eq!(knock(1, ("nqn.h:web", DATABASE), DATABASE, queue), of("*"));
        assert_eq!(knock(1, ("nqn.h:db", DATABASE), DATABASE, queue), refused, "the key of another group");
        for named in [SCRATCH, DISCOVERY_NQN] {
            assert_eq!(knock(0, ("nqn.h:db", named), DATABASE, queue), refused, "a channel for {named}");
        }
    }
    assert_eq!(knock(1, ("nqn.h:db", SCRATCH), SCRATCH, 0), None, "a group that this host is not of");
    for named in [DATABASE, DISCOVERY_NQN] {
        assert_eq!(knock(0, ("nqn.h:db", named), DISCOVERY_NQN, 0), of("nqn.h:db"), "it may ask what there is");
        assert_eq!(knock(1, ("nqn.h:web", named), DISCOVERY_NQN, 0), of("*"));
        assert_eq!(knock(1, ("nqn.h:db", named), DISCOVERY_NQN, 0), refused, "not as somebody else");
    }
}

#[test]
fn whoever_fails_waits_and_too_many_are_refused() {
    let rig = Rig::default();
    rig.set_access(with_users(&[("alice", HOST_KEY)]));
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (queue, _) = rig.knock(9);
        let began = rig.outside.now();
        assert_eq!(prove(&rig, &queue, &prover(OTHER)), 0xf1);
        waits.push(rig.outside.now().since(began).as_millis());
        assert!(queue.proof().is_some_and(|proof| proof.has_failed()));
    }
    assert_eq!((waits[0], waits[1], waits[2]), (0, 0, 0), "{waits:?}");
    assert!(waits[3] >= 250 && waits[7] >= 4000, "{waits:?}");
    // Several at once: each is looked at behind the one before.
    let queues: Vec<_> = (0..4).map(|_| rig.knock(9).0).collect();
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
fn who_has_nothing_to_prove_is_told_that_nothing_can_be_proved() {
    let rig = Rig::default();
    let (queue, proves) = rig.knock(9);
    assert!(!proves && queue.passes());
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
fn who_asks_for_no_proof_may_send_any_challenge() {
    crate::fuzzing::proofs(&[84, 40, 9, 0, 0, 5, 40, 0, 0, 145, 64, 1, 0, 29, 0, 0, 0, 5, 8]);
}

proptest::proptest! {
    #[test]
    fn nobody_passes_without_a_proof(data in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
        crate::fuzzing::proofs(&data);
    }
}
