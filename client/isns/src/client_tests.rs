use super::*;
use crate::fuzzing::{any_server, sample};
use crate::wire::{Payload, REPLACE};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// An answer in parts: the flags and the payload of each.
type Pdus = Vec<(u16, Vec<u8>)>;

const START: Instant = Instant(5_000_000_000);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ENTITY: &str = "host.example.org";

/// A client, and the server that it talks to.
struct Rig {
    client: Client,
    now: Instant,
    told: Vec<String>,
    sent: Vec<(Header, Vec<u8>)>,
    connects: usize,
    closes: usize,
}

impl Rig {
    fn new() -> Self {
        let (told, sent) = (Vec::new(), Vec::new());
        Self { client: Client::new(), now: START, told, sent, connects: 0, closes: 0 }
    }

    /// One that has registered this many targets.
    fn registered(targets: u8) -> Self {
        let mut rig = Self::new();
        rig.want(Some(targets));
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
                Action::Tell(event) => self.told.push(event.to_string()),
                Action::Send(bytes) => {
                    let (header, payload) = Header::read_from_prefix(&bytes).expect("a header");
                    self.sent.push((header, payload.to_vec()));
                }
            }
        }
    }

    fn want(&mut self, targets: Option<u8>) {
        self.client.want(targets.map(sample), self.now);
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

    /// The PDUs of an answer to the last request.
    fn answer_in(&mut self, pdus: &[(u16, Vec<u8>)]) {
        let (asked, _) = self.sent.last().expect("something was asked").clone();
        for (flags, payload) in pdus {
            let header = Header {
                function: asked.function().response().0.into(),
                length: (payload.len() as u16).into(),
                flags: (*flags | crate::wire::FROM_SERVER).into(),
                ..asked
            };
            use zerocopy::IntoBytes;
            // Piece by piece, as a stream may bring it.
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
fn what_is_wanted_is_registered_and_taken_back() {
    let mut rig = Rig::new();
    rig.client.tick(START);
    assert!(rig.client.is_over() && rig.client.deadline().is_none(), "nothing is wanted");
    rig.want(Some(2));
    assert_eq!((rig.connects, rig.sent.len()), (1, 0));
    rig.connect();
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE), "what an earlier life has left goes");
    assert!(rig.client.registered().is_none());
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.told, ["registered 2 targets at 2 portals"]);
    rig.want(Some(2));
    assert_eq!(rig.sent.len(), 1, "nothing has changed");
    rig.want(Some(1));
    assert_eq!(rig.last(), (Function::DEV_DEREG, 0));
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.told[1..], ["registered 1 target at 2 portals"]);
    rig.want(None);
    assert_eq!((rig.last(), rig.client.is_over()), ((Function::DEV_DEREG, 0), false));
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.told[2..], ["everything is deregistered"]);
    assert!(rig.client.is_over() && rig.closes == 1);
}

#[test]
fn a_server_hears_of_us_three_times_in_the_period() {
    let mut rig = Rig::new();
    rig.want(Some(1));
    rig.connect();
    // It keeps us for less than we asked for.
    let mut shorter = Payload::default();
    shorter.number(Tag::REGISTRATION_PERIOD, 30);
    rig.answer(Status::SUCCESS, &shorter);
    assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(10)));
    for _ in 0..3 {
        rig.wait(Duration::from_secs(10));
        assert_eq!(rig.last().0, Function::DEV_ATTR_QRY);
        rig.answer(Status::SUCCESS, &shows("HOST.example.org"));
    }
    assert_eq!((rig.sent.len(), rig.told.len()), (4, 1));
    // A period of none is no reason to ask without end.
    let mut none = Payload::default();
    none.number(Tag::REGISTRATION_PERIOD, 0);
    let mut rig = Rig::new();
    rig.want(Some(1));
    rig.connect();
    rig.answer(Status::SUCCESS, &none);
    assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(100)));
}

#[test]
fn a_server_that_has_forgotten_is_told_anew() {
    for (status, attributes) in [
        (Status::NO_SUCH_ENTRY, Payload::default()),
        (Status::SUCCESS, shows("another")),
        (Status::SOURCE_UNKNOWN, shows(ENTITY)),
    ] {
        let mut rig = Rig::registered(1);
        rig.wait(Duration::from_secs(100));
        rig.answer(status, &attributes);
        assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0), "nothing is there that would have to go");
        rig.answer(Status::SUCCESS, &Payload::default());
        assert_eq!(rig.told.len(), 3, "{:?}", rig.told);
        assert!(rig.told[1].contains("forgotten") && rig.told[2].contains("registered 1 target"));
        // One that never shows anything is told again and again, and that is no news.
        for _ in 0..3 {
            rig.wait(Duration::from_secs(100));
            rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
            rig.answer(Status::SUCCESS, &Payload::default());
        }
        assert_eq!(rig.told.len(), 3, "{:?}", rig.told);
    }
}

#[test]
fn what_has_changed_is_told_to_a_server_that_knows_the_rest() {
    let mut rig = Rig::registered(2);
    rig.client.lost("closed while idle", rig.now);
    rig.want(Some(3));
    rig.wait(Duration::from_secs(1));
    rig.connect();
    assert_eq!(rig.last().0, Function::DEV_ATTR_QRY, "it may have restarted");
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
    let whole = rig.sent.last().expect("sent").1.len();
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.client.registered().map(|all| all.nodes.len()), Some(3));
    // One that still knows it hears of the difference only.
    let mut rig = Rig::registered(2);
    rig.client.lost("closed while idle", rig.now);
    rig.want(Some(3));
    rig.wait(Duration::from_secs(1));
    rig.connect();
    rig.answer(Status::SUCCESS, &shows(ENTITY));
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
    assert!(rig.sent.last().expect("sent").1.len() < whole);
}

#[test]
fn what_was_to_go_and_is_not_there_makes_all_doubtful() {
    let mut rig = Rig::registered(2);
    rig.want(Some(1));
    assert_eq!(rig.last().0, Function::DEV_DEREG);
    rig.answer(Status::NO_SUCH_ENTRY, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE));
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.client.registered().map(|all| all.nodes.len()), Some(1));
}

#[test]
fn every_target_is_asked_about_in_its_turn() {
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
fn a_server_that_is_away_is_tried_later_and_later() {
    let mut rig = Rig::new();
    rig.want(Some(1));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        rig.client.lost("nobody listens", rig.now);
        rig.run();
        let at = rig.client.deadline().expect("it is tried again");
        pauses.push(at.since(rig.now).as_secs());
        rig.wait(at.since(rig.now));
    }
    assert_eq!((pauses, rig.connects), (vec![1, 2, 4, 8, 16, 32, 60, 60], 9));
    assert_eq!(rig.told, ["nobody listens; it is tried again from time to time"], "told once");
    assert!(rig.client.trouble().is_some());
    rig.connect();
    rig.answer(Status::SUCCESS, &Payload::default());
    assert!(rig.told.len() == 2 && rig.client.trouble().is_none());
}

#[test]
fn a_connection_that_ends_while_it_rests_is_made_again_without_a_word() {
    let mut rig = Rig::registered(1);
    rig.client.lost("closed", rig.now);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.connects, 2);
    rig.connect();
    // Another server may have taken its place.
    assert_eq!(rig.last().0, Function::DEV_ATTR_QRY);
    rig.answer(Status::SUCCESS, &shows(ENTITY));
    assert_eq!(rig.told.len(), 1);
    // In the middle of a request nobody knows what came of it.
    rig.want(Some(2));
    rig.client.lost("closed", rig.now);
    rig.wait(Duration::from_secs(1));
    rig.connect();
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, REPLACE));
}

#[test]
fn a_server_that_does_not_answer_is_left() {
    let mut rig = Rig::new();
    rig.want(Some(1));
    rig.connect();
    // What nobody asked for does not count as an answer.
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
    assert_eq!((rig.closes, rig.told.len()), (1, 1));
    assert!(rig.told[0].starts_with("it does not answer"));
}

#[test]
fn refusals_and_nonsense_are_told_and_tried_again() {
    let status = |status: Status| status.0.to_be_bytes().to_vec();
    let success = status(Status::SUCCESS);
    let cut = [&success[..], &[0, 0, 0, 6, 0, 0, 0, 9]].concat();
    let cases: [(&str, Pdus); 6] = [
        ("refuses the registration: INVALID_REGISTRATION", vec![(FIRST | LAST, status(Status::INVALID_REGISTRATION))]),
        ("malformed", vec![(FIRST | LAST, cut.clone())]),
        ("malformed", vec![(FIRST | LAST, Vec::new())]),
        ("no beginning", vec![(LAST, success.clone())]),
        ("signed", vec![(FIRST | LAST | SIGNED, success.clone())]),
        ("no iSNS", vec![(FIRST | LAST, vec![0; 3])]),
    ];
    for (words, pdus) in cases {
        let mut rig = Rig::new();
        rig.want(Some(1));
        rig.connect();
        rig.answer_in(&pdus);
        assert!(rig.told.len() == 1 && rig.told[0].contains(words), "{words}: {:?}", rig.told);
        assert_eq!((rig.closes, rig.client.registered()), (1, None));
        assert_eq!(rig.client.deadline(), Some(rig.now + Duration::from_secs(1)));
    }
    // An answer in several PDUs may be divided anywhere.
    let mut rig = Rig::new();
    rig.want(Some(1));
    rig.connect();
    rig.answer_in(&[(FIRST, cut), (0, vec![1; 8]), (LAST, vec![])]);
    assert_eq!(rig.told, ["registered 1 target at 2 portals"]);
}

#[test]
fn another_name_of_the_machine_is_another_machine() {
    let mut rig = Rig::registered(1);
    let renamed = Registration { entity: "other".into(), ..sample(1) };
    rig.client.want(Some(renamed), rig.now);
    rig.run();
    assert_eq!(rig.last().0, Function::DEV_DEREG);
    rig.answer(Status::SUCCESS, &Payload::default());
    assert_eq!(rig.last(), (Function::DEV_ATTR_REG, 0));
}

#[test]
fn targets_without_an_address_there_are_not_registered() {
    let mut rig = Rig::new();
    rig.want(Some(0));
    rig.connect();
    assert!(rig.sent.is_empty() && rig.client.trouble().is_some());
    rig.want(Some(1));
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn who_leaves_while_the_server_is_away_does_not_wait() {
    let mut rig = Rig::registered(1);
    rig.client.lost("closed", rig.now);
    rig.want(None);
    assert!(rig.client.is_over() && rig.client.deadline().is_none());
    let mut rig = Rig::registered(1);
    rig.want(None);
    rig.client.lost("closed", rig.now);
    rig.run();
    assert!(rig.client.is_over());
    assert!(rig.told[1].contains("forget by itself"), "{:?}", rig.told);
}

proptest! {
    #[test]
    fn any_server_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        any_server(&bytes);
    }
}
