use super::super::host::Host;
use super::*;
use crate::fuzzing::{HOST_KEY, OWN_KEY, prover};

fn participants(terms: Terms) -> Arc<Participants> {
    let key = |text: &str| Key::parse(text.as_bytes()).expect("a key");
    let Host { name, subsystem, .. } = prover(HOST_KEY);
    let users = vec![("bob".into(), key(OWN_KEY)), ("alice".into(), key(HOST_KEY))];
    Arc::new(Participants { host: name.into(), subsystem: subsystem.into(), users, own: Some(key(OWN_KEY)), terms })
}

fn random() -> Zeroizing<Vec<u8>> {
    Zeroizing::new((0..RANDOM as u8).collect())
}

fn mutual() -> Host {
    Host { other: Some(Key::parse(OWN_KEY.as_bytes()).expect("a key")), ..prover(HOST_KEY) }
}

/// One that goes by a party.
struct Rig(Exchange, Arc<Participants>);

impl Default for Rig {
    fn default() -> Self {
        Self(Exchange::default(), participants(Terms::default()))
    }
}

impl Rig {
    fn at(&mut self, message: &[u8], seconds: u64) -> Result<MessageOutcome, Status> {
        let participants = self.1.clone();
        let now = Instant(0) + Duration::from_secs(seconds);
        match self.0.auth_send(message, now, || Ok((participants, random())))? {
            MessageOutcome::Work(work) => {
                self.0.computed(work.run(), now);
                Ok(MessageOutcome::Nothing)
            }
            heard => Ok(heard),
        }
    }

    fn auth_send(&mut self, message: &[u8]) -> MessageOutcome {
        self.at(message, 0).expect("the message is accepted")
    }

    fn auth_receive(&mut self) -> (Vec<u8>, Option<End>) {
        self.0.auth_receive(4096).expect("a message waits")
    }

    /// The reason code that a wrong message causes.
    fn fails(&mut self, message: &[u8]) -> (u16, Why) {
        let heard = self.auth_send(message);
        let told = self.auth_receive();
        assert!(matches!(told.1, Some(End::Over)), "{heard:?}");
        assert_eq!(
            (&told.0[..4], told.0[6], self.0.auth_receive(4096).err()),
            (&[0, 0xf1, 0, 0][..], 1, Some(Status::SEQUENCE_ERROR))
        );
        (u16::from_le_bytes([told.0[4], told.0[5]]), Why(told.0[7]))
    }
}

fn digest(bytes: &[u8]) -> String {
    Hash::SHA256.digest(&[bytes])[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Challenge, reply and Success1, as Python's hmac, hashlib and pow have them.
#[test]
fn golden() {
    for (hash, group, golden) in [
        (1, 0, ["c3187e59856909b8", "be5ee8e9fae36d17", "1f84b0586bd1a80e"]),
        (1, 1, ["77746e06a91be218", "4c910897c8e0ec4b", "88b2f44ac9286f25"]),
        (2, 0, ["0f6166df9f4b4740", "eeca0f733ec195ea", "638b5ab551e03048"]),
        (2, 1, ["e2dc23e95bea486e", "288528212049de32", "b8465b7069c7f0d3"]),
        (3, 0, ["d97cc0150db9de3a", "cb2cd43b146c75b1", "92679eaa69e1e890"]),
        (3, 1, ["d66fd8a0bd0ecc1c", "db8272696ca74138", "59c81f7cb1bc26fc"]),
    ] {
        let (mut rig, host) = (Rig::default(), mutual());
        assert!(matches!(rig.auth_send(&host.negotiate(&[hash], &[group])), MessageOutcome::Nothing));
        let challenge = rig.auth_receive().0;
        let reply = host.reply(&challenge).expect("a challenge");
        assert!(matches!(rig.auth_send(&reply), MessageOutcome::Nothing));
        let (success, end) = rig.auth_receive();
        assert!(matches!(end, Some(End::Shown(_))) && host.believes(&challenge, &success), "{hash} {group}");
        assert_eq!([challenge, reply, success].map(|message| digest(&message)), golden, "{hash} {group}");
        let MessageOutcome::Authenticated(authenticated) = rig.auth_send(&host.success()) else {
            panic!("it is proven")
        };
        assert_eq!((&*authenticated.user, authenticated.by), ("alice", (Hash(hash), Group(group))));
    }
}

#[test]
fn every_hash_with_every_group() {
    for group in Group::ALL {
        for hash in Hash::ALL {
            let (mut rig, host) = (Rig::default(), prover(HOST_KEY));
            rig.auth_send(&host.negotiate(&[9, hash.0], &[group.0, 99]));
            let challenge = rig.auth_receive().0;
            assert_eq!(rig.auth_receive().0, challenge, "it may be fetched again");
            rig.auth_send(&host.reply(&challenge).expect("a challenge"));
            let (message, end) = rig.auth_receive();
            assert!(
                matches!(end, Some(End::Authenticated(Authenticated { by, .. })) if by == (hash, group)),
                "{hash:?} {group:?}"
            );
            assert_eq!(
                (message[1], message[8], message.len()),
                (3, 0, 16 + hash.len()),
                "no response of the controller"
            );
        }
    }
}

#[test]
fn the_controller_selects_from_the_offers() {
    let host = prover(HOST_KEY);
    let terms = Terms { hashes: vec![Hash::SHA256, Hash::SHA384], groups: vec![Group::FFDHE2048, Group::NULL] };
    let chosen = |hashes: &[u8], groups: &[u8]| {
        let mut rig = Rig(Exchange::default(), participants(terms.clone()));
        rig.auth_send(&host.negotiate(hashes, groups));
        let message = rig.auth_receive().0;
        (message[1], if message[0] == 1 { [message[8], message[9]] } else { [message[6], message[7]] })
    };
    assert_eq!(chosen(&[3, 2, 1], &[0, 5, 1]), (1, [1, 1]));
    assert_eq!(chosen(&[3, 2], &[5, 0]), (1, [2, 0]));
    assert_eq!(chosen(&[3], &[0]), (0xf1, [1, Why::HASH.0]));
    assert_eq!(chosen(&[1], &[5]), (0xf1, [1, Why::GROUP.0]));
    assert_eq!(chosen(&[], &[]), (0xf1, [1, Why::HASH.0]));
}

#[test]
fn malformed_negotiations_fail_with_their_reason() {
    let good = prover(HOST_KEY).negotiate(&[1], &[0]);
    for (at, value, why) in [
        (6, 1, Why::CONCATENATION),
        (7, 0, Why::PROTOCOL),
        (8, 2, Why::PROTOCOL),
        (10, 31, Why::PAYLOAD),
        (7, 2, Why::PAYLOAD),
        (1, 1, Why::MESSAGE),
    ] {
        let mut other = good.clone();
        other[at] = value;
        assert_eq!(Rig::default().fails(&other), (0x1234, why), "byte {at}");
    }
    assert_eq!(Rig::default().fails(&[]), (0, Why::PAYLOAD));
    assert_eq!(Rig::default().fails(&good[..71]), (0x1234, Why::PAYLOAD));
}

#[test]
fn wrong_replies() {
    let host = prover(HOST_KEY);
    let asked = |group: u8| {
        let mut rig = Rig::default();
        rig.auth_send(&host.negotiate(&[1], &[group]));
        let challenge = rig.auth_receive().0;
        (rig, challenge)
    };
    let strange = Host { name: "nqn.other".into(), ..host.clone() };
    let (mut rig, challenge) = asked(0);
    assert_eq!(rig.fails(&strange.reply(&challenge).expect("a challenge")), (0x1234, Why::FAILED));
    for (at, why) in [(4, Why::MESSAGE), (6, Why::PAYLOAD), (16, Why::FAILED), (8, Why::PAYLOAD)] {
        let (mut rig, challenge) = asked(0);
        let mut reply = host.reply(&challenge).expect("a challenge");
        reply[at] ^= 2;
        assert_eq!(rig.fails(&reply).1, why, "byte {at}");
    }
    // A value where there is no exchange, none where there is one, and one that leaves no choice.
    let (mut rig, challenge) = asked(0);
    let mut reply = host.reply(&challenge).expect("a challenge");
    reply[10] = 1;
    reply.push(2);
    assert_eq!(rig.fails(&reply).1, Why::PAYLOAD);
    let (mut rig, challenge) = asked(1);
    let mut reply = host.reply(&challenge).expect("a challenge");
    let len = reply.len();
    reply[len - 256..].fill(0);
    assert_eq!(rig.fails(&reply).1, Why::PAYLOAD);
    // A proof of ours, where we have none.
    let mut rig = Rig::default();
    let without = Participants { own: None, ..Arc::into_inner(participants(Terms::default())).expect("one") };
    rig.1 = Arc::new(without);
    rig.auth_send(&host.negotiate(&[1], &[0]));
    let challenge = rig.auth_receive().0;
    assert_eq!(rig.fails(&mutual().reply(&challenge).expect("a challenge")).1, Why::PROTOCOL);
}

#[test]
fn messages_out_of_order() {
    let host = mutual();
    for message in [host.success(), [host.success(), vec![0; 600]].concat()] {
        assert_eq!(Rig::default().fails(&message), (0x1234, Why::MESSAGE), "nothing has begun");
    }
    let mut rig = Rig::default();
    assert_eq!(rig.0.auth_receive(4096).err(), Some(Status::SEQUENCE_ERROR), "nothing waits");
    rig.auth_send(&host.negotiate(&[1], &[0]));
    assert_eq!(rig.0.auth_receive(40).err(), Some(Status::INVALID_FIELD), "no room");
    let challenge = rig.auth_receive().0;
    let reply = host.reply(&challenge).expect("a challenge");
    rig.auth_send(&reply);
    assert_eq!(rig.fails(&reply), (0x1234, Why::MESSAGE), "once is enough");
    // A host that sends no Success2 is not authenticated; Failure2 ends the queue.
    let mut rig = Rig::default();
    rig.auth_send(&host.negotiate(&[1], &[0]));
    let challenge = rig.auth_receive().0;
    rig.auth_send(&host.reply(&challenge).expect("a challenge"));
    assert!(matches!(rig.auth_receive().1, Some(End::Shown(_))));
    let mut other = host.clone();
    other.transaction += 1;
    assert_eq!(rig.fails(&other.success()), (0x1235, Why::MESSAGE));
    let mut rig = Rig::default();
    assert!(matches!(rig.auth_send(&host.failure()), MessageOutcome::Doubted(Why::FAILED)));
    assert_eq!(rig.at(&host.negotiate(&[1], &[0]), 0).err(), Some(Status::SEQUENCE_ERROR), "it is over");
}

#[test]
fn the_number_of_unfinished_exchanges_is_limited() {
    let (mut rig, host) = (Rig::default(), prover(HOST_KEY));
    let begin = host.negotiate(&[1], &[0]);
    let proves = |rig: &mut Rig, host: &Host| {
        rig.auth_send(&begin);
        let challenge = rig.auth_receive().0;
        rig.auth_send(&host.reply(&challenge).expect("a challenge"));
        matches!(rig.auth_receive().1, Some(End::Authenticated(_) | End::Shown(_)))
            && (host.other.is_none() || { matches!(rig.auth_send(&host.success()), MessageOutcome::Authenticated(_)) })
    };
    for host in [host.clone(), mutual()] {
        (1..BEGINNINGS_MAX).for_each(|_| assert!(matches!(rig.auth_send(&begin), MessageOutcome::Nothing)));
        assert!(proves(&mut rig, &host), "the last one");
    }
    // As often again, and not once more.
    for _ in 0..BEGINNINGS_MAX {
        rig.auth_send(&begin);
        assert!(rig.auth_receive().1.is_none(), "a challenge");
    }
    assert_eq!(rig.fails(&begin), (0x1234, Why::FAILED));
}

#[test]
fn it_begins_anew_and_ends_in_time() {
    let (mut rig, host) = (Rig::default(), prover(HOST_KEY));
    rig.auth_send(&host.negotiate(&[1], &[0]));
    let old = host.reply(&rig.auth_receive().0).expect("a challenge");
    let second = Host { transaction: 7, ..host.clone() };
    rig.auth_send(&second.negotiate(&[2], &[0]));
    let challenge = rig.auth_receive().0;
    assert_eq!((challenge[4], challenge[8]), (7, 2));
    assert!(matches!(rig.at(&second.reply(&challenge).expect("a challenge"), 30), Ok(MessageOutcome::Nothing)));
    assert!(matches!(rig.auth_receive().1, Some(End::Authenticated(_))));
    assert_eq!(rig.fails(&old), (0x1234, Why::MESSAGE), "a finished exchange is not continued");
    let mut rig = Rig::default();
    rig.auth_send(&host.negotiate(&[1], &[0]));
    let late = host.reply(&rig.auth_receive().0).expect("a challenge");
    assert!(matches!(rig.at(&late, 31), Ok(MessageOutcome::Failed(Why::MESSAGE))));
    // The host may try again after a computation that was not run.
    let (mut rig, participants) = (Rig::default(), participants(Terms::default()));
    let begin = host.negotiate(&[1], &[0]);
    assert!(matches!(
        rig.0.auth_send(&begin, Instant(0), || Ok((participants, random()))),
        Ok(MessageOutcome::Work(_))
    ));
    assert_eq!(rig.at(&begin, 0).err(), Some(Status::SEQUENCE_ERROR), "one at a time");
    rig.0.dropped();
    assert!(matches!(rig.auth_send(&begin), MessageOutcome::Nothing));
}
