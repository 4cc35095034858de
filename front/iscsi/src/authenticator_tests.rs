use super::*;
use crate::chap::{Algorithm, CHALLENGE_LEN, Response};
use lunar_core::access::{Access, Group, Mistake, Pattern, Secret};
use std::sync::atomic::{AtomicU8, Ordering};

const NOW: Instant = Instant(1_000_000_000_000);
const ALICE: &str = "the secret of alice";
const BOB: &str = "the secret of bob, too";
const OWN: &str = "what the target knows";

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.into()).expect("long enough") }
}

fn source() -> SocketAddr {
    ([192, 0, 2, 1], 4000).into()
}

fn candidate(initiator: &str, discovery: bool) -> Candidate {
    Candidate {
        initiator: initiator.into(),
        alias: None,
        target: Some("iqn.x:disk".into()),
        discovery,
        isid: [0; 6],
        tsih: 0,
        cid: 0,
    }
}

/// Two users for hosts, one of whom has a map; another for discovery.
fn access() -> Result<Access, Mistake> {
    let users = vec![account("alice", ALICE), account("bob", BOB)];
    let hosts = Group {
        name: "hosts".into(),
        hosts: vec![Pattern::new("iqn.x:*")],
        proofs: Proofs { users, target: Some(account("target", OWN)) },
        map: Some("hosts".into()),
        ..Group::everybody()
    };
    let free = Group { name: "free".into(), hosts: vec![Pattern::new("iqn.free")], ..Group::everybody() };
    let looks = Proofs { users: vec![account("looker", "a secret for looking")], target: None };
    Access::new(vec![hosts, free], looks)
}

/// A target that lets these in.
fn directory(access: Access) -> Directory {
    let mut directory = Directory::new(Duration::from_secs(1));
    directory.discovery = access.discovery().clone();
    directory.add(TargetEntry {
        name: "iqn.x:disk".into(),
        alias: "".into(),
        ports: [(1, 1)].into(),
        access: Arc::new(access),
        session: Arc::default(),
        sessions_max: 1,
        moved: None,
    });
    directory
}

struct Rig {
    authenticator: Arc<Authenticator>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (sink, count) = (told.clone(), AtomicU8::new(0));
        // Each time another byte.
        let random = move |into: &mut [u8]| {
            into.fill(count.fetch_add(1, Ordering::Relaxed));
            true
        };
        let sink = move |record: &AuditRecord| sink.lock().expect("whole").push(record.to_string());
        let authenticator = Authenticator::new(directory(access().expect("right")), Box::new(random), Box::new(sink));
        Self { authenticator, told }
    }

    fn attempt(&self) -> LoginAttempt {
        self.authenticator.begin_login(&candidate("iqn.x:host", false), source(), NOW).expect("shown")
    }

    /// The answer of somebody login takes `secret` for the user's.
    fn chap_answer(&self, attempt: &LoginAttempt, user: &str, secret: &str, mutual: Option<Vec<u8>>) -> ChapAnswer {
        let challenge = attempt.challenge().expect("it must be proved");
        let algorithm = Algorithm::SHA256;
        let response = algorithm.response(challenge.identifier, &account("", secret).secret, &challenge.bytes);
        let mutual = mutual.map(|challenge| MutualChallenge { identifier: 9, challenge });
        ChapAnswer { user: user.into(), algorithm, challenge, response, mutual }
    }

    fn prove(&self, user: &str, secret: &str, mutual: Option<Vec<u8>>) -> AuthOutcome {
        let mut attempt = self.attempt();
        let chap_answer = self.chap_answer(&attempt, user, secret, mutual);
        self.authenticator.authenticate(&mut attempt, &chap_answer, NOW)
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("whole"))
    }

    fn reason(&self) -> String {
        let told = self.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!([ALICE, BOB, OWN].iter().all(|secret| !told[0].contains(secret)));
        told[0].split('"').nth(1).map(str::to_owned).unwrap_or_default()
    }
}

const FAILS: Result<Option<TargetAnswer>, LoginStatus> = Err(LoginStatus::AUTHENTICATION_FAILURE);

#[test]
fn users_prove_their_names_with_their_own_secrets() {
    let rig = Rig::new();
    for (user, secret, is_right) in [
        ("alice", ALICE, true),
        ("bob", BOB, true),
        ("alice", BOB, false),
        ("Alice", ALICE, false),
        ("target", OWN, false),
        ("looker", "a secret for looking", false),
        ("mallory", ALICE, false),
    ] {
        let found = rig.prove(user, secret, None).verdict;
        assert_eq!(found, if is_right { Ok(None) } else { FAILS }, "{user}");
    }
    assert_eq!(rig.told().len(), 5);
}

#[test]
fn the_audit_tells_unknown_users_and_wrong_secrets_apart_and_the_initiator_cannot() {
    let rig = Rig::new();
    let unknown = rig.prove("mallory", ALICE, None);
    assert_eq!(rig.reason(), "unknown user");
    let wrong = rig.prove("alice", BOB, None);
    assert_eq!(rig.reason(), "wrong secret");
    assert_eq!(unknown, wrong);
}

#[test]
fn the_target_proves_itself_to_users_only() {
    let rig = Rig::new();
    let theirs = b"their challenge".to_vec();
    let proof = rig.prove("alice", ALICE, Some(theirs.clone())).verdict;
    let response = Algorithm::SHA256.response(9, &account("", OWN).secret, &theirs);
    assert_eq!(proof, Ok(Some(TargetAnswer { name: "target".into(), response })));
    assert_eq!(rig.prove("alice", BOB, Some(theirs)).verdict, FAILS);
}

#[test]
fn our_own_challenges_are_not_answered() {
    let rig = Rig::new();
    let mut attempt = rig.attempt();
    let own = attempt.challenge().expect("one").bytes.to_vec();
    let chap_answer = rig.chap_answer(&attempt, "alice", ALICE, Some(own.clone()));
    assert_eq!(rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).verdict, FAILS);
    assert_eq!(rig.reason(), "reflected challenge");
    // Nor through another connection, as long as the first waits.
    assert_eq!(rig.prove("alice", ALICE, Some(own.clone())).verdict, FAILS);
    assert_eq!(rig.reason(), "reflected challenge");
    drop(attempt);
    assert!(rig.prove("alice", ALICE, Some(own)).verdict.is_ok(), "nobody waits for it any more");
    assert!(rig.authenticator.lock().challenges.is_empty(), "none is kept for longer than its login");
}

#[test]
fn an_answer_is_worth_nothing_for_another_challenge() {
    let rig = Rig::new();
    let (first, mut second) = (rig.attempt(), rig.attempt());
    let heard = rig.chap_answer(&first, "alice", ALICE, None);
    let replayed = ChapAnswer { challenge: second.challenge().expect("one"), ..heard };
    assert_eq!(rig.authenticator.authenticate(&mut second, &replayed, NOW).verdict, FAILS);
    let of_other_length = ChapAnswer { response: Response::of(vec![1; 16]).expect("short"), ..replayed };
    assert_eq!(rig.authenticator.authenticate(&mut second, &of_other_length, NOW).verdict, FAILS);
}

#[test]
fn a_group_may_do_without_proofs_and_strangers_are_shown_nothing() {
    let rig = Rig::new();
    let free = rig.authenticator.begin_login(&candidate("iqn.free", false), source(), NOW).expect("shown");
    assert_eq!((free.challenge(), free.map()), (None, None));
    assert_eq!(rig.attempt().map().map(|name| &**name), Some("hosts"));
    let stranger = rig.authenticator.begin_login(&candidate("iqn.stranger", false), source(), NOW);
    assert_eq!(stranger.err(), Some(LoginStatus::NOT_FOUND));
    assert_eq!(rig.reason(), "no group fits");
}

#[test]
fn discovery_has_users_of_its_own() {
    let rig = Rig::new();
    let look = |user: &str, secret: &str, mutual: Option<Vec<u8>>| {
        let mut attempt =
            rig.authenticator.begin_login(&candidate("iqn.stranger", true), source(), NOW).expect("all may ask");
        let chap_answer = rig.chap_answer(&attempt, user, secret, mutual);
        rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).verdict
    };
    assert_eq!(look("looker", "a secret for looking", None), Ok(None));
    assert_eq!(look("alice", ALICE, None), FAILS);
    rig.told();
    assert_eq!(look("looker", "a secret for looking", Some(vec![1])), FAILS);
    assert_eq!(rig.reason(), "mutual authentication is not set up");
}

#[test]
fn failures_are_answered_later_and_later_and_successes_are_not() {
    let rig = Rig::new();
    let late: Vec<u128> = (0..6).map(|_| rig.prove("alice", BOB, None).after.as_millis()).collect();
    assert_eq!(late[..4], [0, 0, 0, 250]);
    assert!(late[5] > late[4] && late[4] > late[3], "{late:?}");
    while rig.prove("alice", BOB, None).verdict == FAILS {}
    let refused = rig.prove("alice", ALICE, None);
    assert_eq!(refused, AuthOutcome { verdict: Err(LoginStatus::SERVICE_UNAVAILABLE), after: Duration::ZERO });
    let mut elsewhere = rig
        .authenticator
        .begin_login(&candidate("iqn.x:host", false), ([198, 51, 100, 1], 5).into(), NOW)
        .expect("shown");
    let chap_answer = rig.chap_answer(&elsewhere, "alice", ALICE, None);
    let finding = rig.authenticator.authenticate(&mut elsewhere, &chap_answer, NOW);
    assert_eq!(finding, AuthOutcome { verdict: Ok(None), after: Duration::ZERO }, "alice herself does not wait");
}

#[test]
fn logins_and_refusals_are_told() {
    let rig = Rig::new();
    let mut attempt = rig.attempt();
    let chap_answer = rig.chap_answer(&attempt, "alice", ALICE, None);
    assert!(rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).verdict.is_ok());
    rig.authenticator.log_accepted(&attempt, NOW);
    let told = "login accepted source=192.0.2.1:4000 session=normal initiator=\"iqn.x:host\" target=\"iqn.x:disk\" \
                group=\"hosts\" user=\"alice\" chap=SHA256";
    assert_eq!(rig.told(), [told]);
    rig.authenticator.log_refused(&attempt, LoginStatus::INITIATOR_ERROR, NOW);
    assert_eq!(rig.reason(), "INITIATOR_ERROR");
}

#[test]
fn without_randomness_nobody_is_challenged() {
    let with = |random: RandomSource| Authenticator::new(directory(access().expect("right")), random, Box::new(|_| {}));
    let attempt =
        |authenticator: &Arc<Authenticator>| authenticator.begin_login(&candidate("iqn.x:host", false), source(), NOW);
    assert_eq!(attempt(&with(Box::new(|_| false))).err(), Some(LoginStatus::TARGET_ERROR));
    // A generator that repeats itself.
    let stuck = with(Box::new(|_| true));
    let first = attempt(&stuck).expect("the first");
    assert_eq!(first.challenge().map(|challenge| challenge.bytes), Some([0; CHALLENGE_LEN]));
    assert_eq!(attempt(&stuck).err(), Some(LoginStatus::TARGET_ERROR));
}

#[test]
fn another_access_holds_for_the_next_login() {
    let rig = Rig::new();
    rig.authenticator.set_directory(directory(Access::open()));
    assert_eq!(rig.attempt().challenge(), None);
}

#[test]
fn who_is_refused_is_told_before_its_login_times_out() {
    use lunar_core::access::throttle::{PAUSE_MAX, WAIT_MAX};
    assert!(PAUSE_MAX + WAIT_MAX + lunar_core::pace::TURN_MAX < crate::config::Config::default().login_timeout);
}

#[test]
fn a_host_logs_in_so_often_in_a_second_and_waits_or_is_turned_away_then() {
    let rig = Rig::new();
    let arrive = || rig.authenticator.login_delay(&candidate("iqn.x:host", false), source(), NOW);
    assert!((0..100).all(|_| arrive() == Ok(Duration::ZERO)), "without a limit nobody waits");
    let mut limited = directory(access().expect("right"));
    limited.login_rate = Some(2);
    rig.authenticator.set_directory(limited);
    let waits: Vec<_> = (0..7).map(|_| arrive().map(|wait| wait.as_millis())).collect();
    let refused = Err(LoginStatus::SERVICE_UNAVAILABLE);
    assert_eq!(waits, [Ok(0), Ok(0), Ok(500), Ok(1000), Ok(1500), Ok(2000), refused]);
    assert!(rig.reason().contains("too many logins"));
    let other = rig.authenticator.login_delay(&candidate("iqn.x:host", false), ([198, 51, 100, 1], 5).into(), NOW);
    assert_eq!(other, Ok(Duration::ZERO));
}
