use super::*;
use crate::chap::{Algorithm, CHALLENGE_LEN, Response};
use crate::config::Transport;
use lunar_core::access::{Access, Account, Group, Mistake, Pattern, Secret};
use std::sync::atomic::{AtomicU8, Ordering};

const NOW: Instant = Instant(1_000_000_000_000);
const ALICE: &str = "the secret of alice";
const BOB: &str = "the secret of bob, too";
const OWN: &str = "the secret of the target";

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
        transport: Transport::Tcp,
    }
}

/// A group with two users and a LUN map, a group without users, and a user for discovery.
fn access() -> Result<Access, Mistake> {
    let users = vec![account("alice", ALICE), account("bob", BOB)];
    let hosts = Group {
        name: "hosts".into(),
        hosts: vec![Pattern::new("iqn.x:*")],
        credentials: Credentials { users, target: Some(account("target", OWN)) },
        map: Some("hosts".into()),
        ..Group::everybody()
    };
    let free = Group { name: "free".into(), hosts: vec![Pattern::new("iqn.free")], ..Group::everybody() };
    let discovery = Credentials { users: vec![account("looker", "a secret for discovery")], target: None };
    Access::new(vec![hosts, free], discovery)
}

/// A directory with one target.
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
    log: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sink, count) = (log.clone(), AtomicU8::new(0));
        // A different byte each time.
        let random = move |into: &mut [u8]| {
            into.fill(count.fetch_add(1, Ordering::Relaxed));
            true
        };
        let sink = move |record: &AuditRecord| sink.lock().expect("whole").push(record.to_string());
        let authenticator = Authenticator::new(directory(access().expect("right")), Box::new(random), Box::new(sink));
        Self { authenticator, log }
    }

    fn attempt(&self) -> LoginAttempt {
        self.authenticator.begin_login(&candidate("iqn.x:host", false), source(), NOW).expect("a target")
    }

    /// The CHAP answer of an initiator that takes `secret` for the secret of `user`.
    fn chap_answer(&self, attempt: &LoginAttempt, user: &str, secret: &str, mutual: Option<Vec<u8>>) -> ChapAnswer {
        let challenge = attempt.challenge().expect("the initiator is challenged");
        let algorithm = Algorithm::SHA256;
        let response = algorithm.response(challenge.identifier, &account("", secret).secret, &challenge.bytes);
        let mutual = mutual.map(|challenge| MutualChallenge { identifier: 9, challenge });
        ChapAnswer { user: user.into(), algorithm, challenge, response, mutual }
    }

    fn authenticate(&self, user: &str, secret: &str, mutual: Option<Vec<u8>>) -> AuthOutcome {
        let mut attempt = self.attempt();
        let chap_answer = self.chap_answer(&attempt, user, secret, mutual);
        self.authenticator.authenticate(&mut attempt, &chap_answer, NOW)
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("whole"))
    }

    fn reason(&self) -> String {
        let log = self.log();
        assert_eq!(log.len(), 1, "{log:?}");
        assert!([ALICE, BOB, OWN].iter().all(|secret| !log[0].contains(secret)));
        log[0].split('"').nth(1).map(str::to_owned).unwrap_or_default()
    }
}

const FAILS: Result<Option<TargetAnswer>, LoginStatus> = Err(LoginStatus::AUTHENTICATION_FAILURE);

#[test]
fn users_authenticate_with_their_own_secrets() {
    let rig = Rig::new();
    for (user, secret, is_right) in [
        ("alice", ALICE, true),
        ("bob", BOB, true),
        ("alice", BOB, false),
        ("Alice", ALICE, false),
        ("target", OWN, false),
        ("looker", "a secret for discovery", false),
        ("mallory", ALICE, false),
    ] {
        let found = rig.authenticate(user, secret, None).result;
        assert_eq!(found, if is_right { Ok(None) } else { FAILS }, "{user}");
    }
    assert_eq!(rig.log().len(), 5);
}

#[test]
fn only_the_audit_log_distinguishes_unknown_users_from_wrong_secrets() {
    let rig = Rig::new();
    let unknown = rig.authenticate("mallory", ALICE, None);
    assert_eq!(rig.reason(), "unknown user");
    let wrong = rig.authenticate("alice", BOB, None);
    assert_eq!(rig.reason(), "wrong secret");
    assert_eq!(unknown, wrong);
}

#[test]
fn the_target_authenticates_only_to_authenticated_users() {
    let rig = Rig::new();
    let theirs = b"their challenge".to_vec();
    let proof = rig.authenticate("alice", ALICE, Some(theirs.clone())).result;
    let response = Algorithm::SHA256.response(9, &account("", OWN).secret, &theirs);
    assert_eq!(proof, Ok(Some(TargetAnswer { name: "target".into(), response })));
    assert_eq!(rig.authenticate("alice", BOB, Some(theirs)).result, FAILS);
}

#[test]
fn a_reflected_challenge_is_refused() {
    let rig = Rig::new();
    let mut attempt = rig.attempt();
    let own = attempt.challenge().expect("one").bytes.to_vec();
    let chap_answer = rig.chap_answer(&attempt, "alice", ALICE, Some(own.clone()));
    assert_eq!(rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).result, FAILS);
    assert_eq!(rig.reason(), "reflected challenge");
    // Nor on another connection, while the first one waits.
    assert_eq!(rig.authenticate("alice", ALICE, Some(own.clone())).result, FAILS);
    assert_eq!(rig.reason(), "reflected challenge");
    drop(attempt);
    assert!(rig.authenticate("alice", ALICE, Some(own)).result.is_ok(), "the challenge is no longer outstanding");
    assert!(rig.authenticator.lock().challenges.is_empty(), "no challenge is kept after its login");
}

#[test]
fn an_answer_is_valid_for_its_own_challenge_only() {
    let rig = Rig::new();
    let (first, mut second) = (rig.attempt(), rig.attempt());
    let heard = rig.chap_answer(&first, "alice", ALICE, None);
    let replayed = ChapAnswer { challenge: second.challenge().expect("one"), ..heard };
    assert_eq!(rig.authenticator.authenticate(&mut second, &replayed, NOW).result, FAILS);
    let of_other_length = ChapAnswer { response: Response::of(vec![1; 16]).expect("short"), ..replayed };
    assert_eq!(rig.authenticator.authenticate(&mut second, &of_other_length, NOW).result, FAILS);
}

#[test]
fn a_group_may_need_no_authentication_and_other_initiators_find_no_target() {
    let rig = Rig::new();
    let free = rig.authenticator.begin_login(&candidate("iqn.free", false), source(), NOW).expect("a target");
    assert_eq!((free.challenge(), free.map()), (None, None));
    assert_eq!(rig.attempt().map().map(|name| &**name), Some("hosts"));
    let stranger = rig.authenticator.begin_login(&candidate("iqn.stranger", false), source(), NOW);
    assert_eq!(stranger.err(), Some(LoginStatus::NOT_FOUND));
    assert_eq!(rig.reason(), "no host group matches");
}

#[test]
fn discovery_has_its_own_users() {
    let rig = Rig::new();
    let discover = |user: &str, secret: &str, mutual: Option<Vec<u8>>| {
        let mut attempt = rig
            .authenticator
            .begin_login(&candidate("iqn.stranger", true), source(), NOW)
            .expect("everyone may open a discovery session");
        let chap_answer = rig.chap_answer(&attempt, user, secret, mutual);
        rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).result
    };
    assert_eq!(discover("looker", "a secret for discovery", None), Ok(None));
    assert_eq!(discover("alice", ALICE, None), FAILS);
    rig.log();
    assert_eq!(discover("looker", "a secret for discovery", Some(vec![1])), FAILS);
    assert_eq!(rig.reason(), "mutual authentication is not set up");
}

#[test]
fn failed_logins_are_delayed_more_and_more_and_successful_ones_are_not() {
    let rig = Rig::new();
    let late: Vec<u128> = (0..6).map(|_| rig.authenticate("alice", BOB, None).delay.as_millis()).collect();
    assert_eq!(late[..4], [0, 0, 0, 250]);
    assert!(late[5] > late[4] && late[4] > late[3], "{late:?}");
    while rig.authenticate("alice", BOB, None).result == FAILS {}
    let refused = rig.authenticate("alice", ALICE, None);
    assert_eq!(refused, AuthOutcome { result: Err(LoginStatus::SERVICE_UNAVAILABLE), delay: Duration::ZERO });
    let mut elsewhere = rig
        .authenticator
        .begin_login(&candidate("iqn.x:host", false), ([198, 51, 100, 1], 5).into(), NOW)
        .expect("a target");
    let chap_answer = rig.chap_answer(&elsewhere, "alice", ALICE, None);
    let outcome = rig.authenticator.authenticate(&mut elsewhere, &chap_answer, NOW);
    assert_eq!(
        outcome,
        AuthOutcome { result: Ok(None), delay: Duration::ZERO },
        "an initiator at another address is not delayed"
    );
}

#[test]
fn logins_and_refusals_are_recorded() {
    let rig = Rig::new();
    let mut attempt = rig.attempt();
    let chap_answer = rig.chap_answer(&attempt, "alice", ALICE, None);
    assert!(rig.authenticator.authenticate(&mut attempt, &chap_answer, NOW).result.is_ok());
    rig.authenticator.log_accepted(&attempt, NOW);
    let log = "login accepted source=192.0.2.1:4000 session=normal initiator=\"iqn.x:host\" target=\"iqn.x:disk\" \
                group=\"hosts\" user=\"alice\" chap=SHA256";
    assert_eq!(rig.log(), [log]);
    rig.authenticator.log_refused(attempt.login().clone(), LoginStatus::INITIATOR_ERROR, None, NOW);
    assert_eq!(rig.reason(), "INITIATOR_ERROR");
    let why = Some("InitiatorName was sent twice");
    rig.authenticator.log_refused(
        LoginDetails::unknown(source(), Transport::Tcp),
        LoginStatus::INITIATOR_ERROR,
        why,
        NOW,
    );
    assert_eq!(rig.reason(), "INITIATOR_ERROR: InitiatorName was sent twice");
}

#[test]
fn without_randomness_a_login_that_needs_a_challenge_fails() {
    let with = |random: RandomSource| Authenticator::new(directory(access().expect("right")), random, Box::new(|_| {}));
    let attempt =
        |authenticator: &Arc<Authenticator>| authenticator.begin_login(&candidate("iqn.x:host", false), source(), NOW);
    assert_eq!(attempt(&with(Box::new(|_| false))).err(), Some(LoginStatus::TARGET_ERROR));
    // A generator that repeats its output.
    let stuck = with(Box::new(|_| true));
    let first = attempt(&stuck).expect("the first");
    assert_eq!(first.challenge().map(|challenge| challenge.bytes), Some([0; CHALLENGE_LEN]));
    assert_eq!(attempt(&stuck).err(), Some(LoginStatus::TARGET_ERROR));
}

#[test]
fn a_new_directory_applies_to_the_next_login() {
    let rig = Rig::new();
    rig.authenticator.set_directory(directory(Access::open()));
    assert_eq!(rig.attempt().challenge(), None);
}

#[test]
fn a_refusal_is_sent_before_the_login_times_out() {
    use lunar_core::access::throttle::{PAUSE_MAX, WAIT_MAX};
    assert!(PAUSE_MAX + WAIT_MAX < crate::config::Config::default().login_timeout);
}

#[test]
fn logins_above_the_rate_limit_wait_and_then_are_refused() {
    let rig = Rig::new();
    let login_delay = || rig.authenticator.login_delay(&candidate("iqn.x:host", false), source(), NOW);
    assert!((0..100).all(|_| login_delay() == Ok(Duration::ZERO)), "no login is delayed without a limit");
    let mut limited = directory(access().expect("right"));
    limited.login_rate = Some(2);
    rig.authenticator.set_directory(limited);
    let waits: Vec<_> = (0..13).map(|_| login_delay().map(|wait| wait.as_millis())).collect();
    let refused = Err(LoginStatus::SERVICE_UNAVAILABLE);
    assert_eq!((&waits[..4], &waits[11..]), (&[Ok(0), Ok(0), Ok(500), Ok(1000)][..], &[Ok(5000), refused][..]));
    assert!(rig.reason().contains("too many logins"));
    let other = rig.authenticator.login_delay(&candidate("iqn.x:host", false), ([198, 51, 100, 1], 5).into(), NOW);
    assert_eq!(other, Ok(Duration::ZERO));
}
