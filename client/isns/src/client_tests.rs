use super::*;
use crate::fuzzing::{any_server, sample};
use crate::wire::{Payload, REPLACE};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// A response: flags and payload of each PDU.
type Pdus = Vec<(u16, Vec<u8>)>;

const START: Instant = Instant(5_000_000_000);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ENTITY: &str = "host.example.org";

/// A client and its simulated server.
struct Rig {
    client: Client,
    now: Instant,
    reported: Vec<String>,
    sent: Vec<(Header, Vec<u8>)>,
    connects: usize,
    closes: usize,
}

impl Rig {
    fn new() -> Self {
        let (reported, sent) = (Vec::new(), Vec::new());
        Self { client: Client::new(), now: START, reported, sent, connects: 0, closes: 0 }
    }

    /// A client that has registered so many targets.
    fn registered(targets: u8) -> Self {
        let mut rig = Self::new();
        rig.set_desired(Some(targets));
        rig.connect();
        rig.answer(Status::SUCCESS, &Payload::default());
        assert!(rig.client.registered().is_some());
        rig
    }

    fn run(&mut self) {
        while let Some(action) = self.client.next_action() {
            match action {
                Action::Connect => self.connects += 1,
                Action::Close => self.closes += 1,
                Action::Report(event) => self.reported.push(event.to_string()),
                Action::Send(bytes) => {
                    let (header, payload) = Header::read_from_prefix(&bytes).expect("a header");
                    self.sent.push((header, payload.to_vec()));
                }
            }
        }
    }

    fn set_desired(&mut self, targets: Option<u8>) {
        self.client.set_desired(targets.map(sample), self.now);
        self.run();
    }

    fn connect(&mut self) {
        self.client.connected(LOCAL, self.now);
        self.run();
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.client.tick(self.now);
        self.run();
    }

    /// Sends the PDUs of a response to the last request.
    fn answer_in(&mut self, pdus: &[(u16, Vec<u8>)]) {
        let (asked, _) = self.sent.last().expect("a request was sent").clone();
        for (flags, payload) in pdus {
            let header = Header {
                function: asked.function().response().0.into(),
                length: (payload.len() as u16).into(),
                flags: (*flags | crate::wire::FROM_SERVER).into(),
                ..asked
            };
            use zerocopy::IntoBytes;
            // In pieces, as a stream may deliver it.
            for piece in [header.as_bytes(), &payload[..]].concat().chunks(5) {
                self.client.received(piece, self.now);
            }
        }
        self.run();
    }

    fn answer(&mut self, status: Status, attributes: &Payload) {
        let payload = [&status.0.to_be_bytes()[..], attributes.bytes()].concat();
        self.answer_in(&[(FIRST | LAST, payload)]);
    }

    fn last(&self) -> (Function, u16) {
        let (header, _) = self.sent.last().expect("something was sent");
        (header.function(), header.flags.get() & REPLACE)
    }
}

fn shows(entity: &str) -> Payload {
    let mut payload = Payload::default();
    payload.text(Tag::ISCSI_NAME, "iqn.2026-01.org.example:0", 224).empty(Tag::DELIMITER);
    payload.text(Tag::ENTITY_IDENTIFIER, entity, 256);
    payload
}

#[test]
fn the_desired_registration_is_registered_changed_and_removed() {
    let mut rig = Rig::new();
    rig.client.tick(START);
    assert!(rig.client.is_over() && rig.client.deadline().is_none(), "nothing is desired");
    rig.set_desired(Some(2));
    assert_eq!((rig.connects, rig.sent.len()), (1, 0));
    rig.connect();
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE), "it replaces the registration of an earlier process");
    assert!(rig.client.registered().is_none());
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.reported, ["registered 2 targets at 2 portals"]);
    rig.set_desired(Some(2));
    assert_eq!(rig.sent.len(), 1, "nothing has changed");
    rig.set_desired(Some(1));
    assert_eq!(rig.last(), (Function::DEV_DEREG, 0));
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.reported[1..], ["registered 1 target at 2 portals"]);
    rig.set_desired(None);
    assert_eq!((rig.last(), rig.client.is_over()), ((Function::DEV_DEREG, 0), false));
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.reported[2..], ["all targets are deregistered"]);
    assert!(rig.client.is_over() && rig.closes == 1);
}

#[test]
fn the_registration_is_renewed_three_times_per_period() {
    let mut rig = Rig::new();
    rig.set_desired(Some(1));
    rig.connect();
    // The server's period is shorter than the requested one.
    let mut shorter = Payload::default();
    shorter.number(Tag::REGISTRATION_PERIOD, 30);
    rig.answer(Status::SUCCESS, &shorter);
    assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(10)));
    for _ in 0..3 {
        rig.wait(Duration::from_secs(10));
        assert_eq!(rig.last().0, Function::DEV_ATTR_QRY);
        rig.answer(Status::SUCCESS, &shows("HOST.example.org"));
    }
    assert_eq!((rig.sent.len(), rig.reported.len()), (4, 1));
    // A period of 0 does not cause queries without a pause.
    let mut none = Payload::default();
    none.number(Tag::REGISTRATION_PERIOD, 0);
    let mut rig = Rig::new();
    rig.set_desired(Some(1));
    rig.connect();
    rig.answer(Status::SUCCESS, &none);
    assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(100)));
}

#[test]
fn a_registration_that_the_server_lost_is_registered_again() {
    for (status, attributes) in [
        (Status::NO_SUCH_ENTRY, Payload::default()),
        (Status::SUCCESS, shows("another")),
        (Status::SOURCE_UNKNOWN, shows(ENTITY)),
    ] {
        let mut rig = Rig::registered(1);
        rig.wait(Duration::from_secs(100));
        rig.answer(status, &attributes);
        assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0), "nothing to replace");
        rig.answer(Status::SUCCESS, &Payload::default());
        assert_eq!(rig.reported.len(), 3, "{:?}", rig.reported);
        assert!(rig.reported[1].contains("lost the registration") && rig.reported[2].contains("registered 1 target"));
        // If the queries never show the registration, that is reported once only.
        for _ in 0..3 {
            rig.wait(Duration::from_secs(100));
            rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
            rig.answer(Status::SUCCESS, &Payload::default());
        }
        assert_eq!(rig.reported.len(), 3, "{:?}", rig.reported);
    }
}

#[test]
fn after_a_reconnect_the_registration_is_verified_before_changes_are_sent() {
    let mut rig = Rig::registered(2);
    rig.client.lost("closed while idle", rig.now);
    rig.set_desired(Some(3));
    rig.wait(Duration::from_secs(1));
    rig.connect();
    assert_eq!(rig.last().0, Function::DEV_ATTR_QRY, "the server may have restarted");
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
    let whole = rig.sent.last().expect("sent").1.len();
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.client.registered().map(|all| all.nodes.len()), Some(3));
    // A server that still has the registration gets the difference only.
    let mut rig = Rig::registered(2);
    rig.client.lost("closed while idle", rig.now);
    rig.set_desired(Some(3));
    rig.wait(Duration::from_secs(1));
    rig.connect();
    rig.answer(Status::SUCCESS, &shows(ENTITY));
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
    assert!(rig.sent.last().expect("sent").1.len() < whole);
}

#[test]
fn a_missing_entry_at_a_removal_causes_a_full_registration() {
    let mut rig = Rig::registered(2);
    rig.set_desired(Some(1));
    assert_eq!(rig.last().0, Function::DEV_DEREG);
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE));
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.client.registered().map(|all| all.nodes.len()), Some(1));
}

#[test]
fn queries_name_each_target_in_turn() {
    let mut rig = Rig::registered(2);
    let mut asked = BTreeSet::new();
    for _ in 0..2 {
        rig.wait(Duration::from_secs(100));
        assert_eq!(rig.last().0, Function::DEV_ATTR_QRY);
        asked.insert(rig.sent.last().expect("sent").1.clone());
        rig.answer(Status::SUCCESS, &shows(ENTITY));
    }
    assert_eq!(asked.len(), 2);
}

#[test]
fn an_unreachable_server_is_retried_with_growing_pauses() {
    let mut rig = Rig::new();
    rig.set_desired(Some(1));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        rig.client.lost("connection refused", rig.now);
        rig.run();
        let at = rig.client.deadline().expect("a retry");
        pauses.push(at.since(rig.now).as_secs());
        rig.wait(at.since(rig.now));
    }
    assert_eq!((pauses, rig.connects), (vec![1, 2, 4, 8, 16, 32, 60, 60], 9));
    assert_eq!(rig.reported, ["connection refused; Lunar keeps trying"], "reported once");
    assert!(rig.client.trouble().is_some());
    rig.connect();
    rig.answer(Status::SUCCESS, &Payload::default());
    assert!(rig.reported.len() == 2 && rig.client.trouble().is_none());
}

#[test]
fn an_idle_connection_that_closes_is_reopened_silently() {
    let mut rig = Rig::registered(1);
    rig.client.lost("closed", rig.now);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.connects, 2);
    rig.connect();
    // It may be another server.
    assert_eq!(rig.last().0, Function::DEV_ATTR_QRY);
    rig.answer(Status::SUCCESS, &shows(ENTITY));
    assert_eq!(rig.reported.len(), 1);
    // After a loss in the middle of a request, the state of the server is not known.
    rig.set_desired(Some(2));
    rig.client.lost("closed", rig.now);
    rig.wait(Duration::from_secs(1));
    rig.connect();
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE));
}

#[test]
fn a_server_that_does_not_answer_is_disconnected() {
    let mut rig = Rig::new();
    rig.set_desired(Some(1));
    rig.connect();
    // A message with another transaction ID is not a response.
    let mut noise = rig.sent[0].0;
    noise.transaction = 99.into();
    noise.length = 0.into();
    use zerocopy::IntoBytes;
    for _ in 0..9 {
        rig.wait(Duration::from_secs(1));
        rig.client.received(noise.as_bytes(), rig.now);
        assert_eq!((rig.closes, rig.client.waiting()), (0, 0));
    }
    rig.wait(Duration::from_secs(1));
    assert_eq!((rig.closes, rig.reported.len()), (1, 1));
    assert!(rig.reported[0].starts_with("the server does not answer"));
}

#[test]
fn refusals_and_invalid_responses_are_reported_and_retried() {
    let status = |status: Status| status.0.to_be_bytes().to_vec();
    let success = status(Status::SUCCESS);
    let cut = [&success[..], &[0, 0, 0, 6, 0, 0, 0, 9]].concat();
    let cases: [(&str, Pdus); 6] = [
        ("refused the registration: INVALID_REGISTRATION", vec![(FIRST | LAST, status(Status::INVALID_REGISTRATION))]),
        ("malformed", vec![(FIRST | LAST, cut.clone())]),
        ("malformed", vec![(FIRST | LAST, Vec::new())]),
        ("lacks its first PDU", vec![(LAST, success.clone())]),
        ("authenticated", vec![(FIRST | LAST | SIGNED, success.clone())]),
        ("does not speak iSNS", vec![(FIRST | LAST, vec![0; 3])]),
    ];
    for (words, pdus) in cases {
        let mut rig = Rig::new();
        rig.set_desired(Some(1));
        rig.connect();
        rig.answer_in(&pdus);
        assert!(rig.reported.len() == 1 && rig.reported[0].contains(words), "{words}: {:?}", rig.reported);
        assert_eq!((rig.closes, rig.client.registered()), (1, None));
        assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(1)));
    }
    // A response of several PDUs may be split anywhere.
    let mut rig = Rig::new();
    rig.set_desired(Some(1));
    rig.connect();
    rig.answer_in(&[(FIRST, cut), (0, vec![1; 8]), (LAST, vec![])]);
    assert_eq!(rig.reported, ["registered 1 target at 2 portals"]);
}

#[test]
fn a_changed_entity_identifier_is_another_registration() {
    let mut rig = Rig::registered(1);
    let renamed = Registration { entity: "other".into(), ..sample(1) };
    rig.client.set_desired(Some(renamed), rig.now);
    rig.run();
    assert_eq!(rig.last().0, Function::DEV_DEREG);
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
}

#[test]
fn targets_without_a_portal_of_the_address_family_are_not_registered() {
    let mut rig = Rig::new();
    rig.set_desired(Some(0));
    rig.connect();
    assert!(rig.sent.is_empty() && rig.client.trouble().is_some());
    rig.set_desired(Some(1));
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn deregistration_does_not_wait_for_an_unreachable_server() {
    let mut rig = Rig::registered(1);
    rig.client.lost("closed", rig.now);
    rig.set_desired(None);
    assert!(rig.client.is_over() && rig.client.deadline().is_none());
    let mut rig = Rig::registered(1);
    rig.set_desired(None);
    rig.client.lost("closed", rig.now);
    rig.run();
    assert!(rig.client.is_over());
    assert!(rig.reported[1].contains("when its period ends"), "{:?}", rig.reported);
}

proptest! {
    #[test]
    fn no_server_makes_the_client_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        any_server(&bytes);
    }
}
