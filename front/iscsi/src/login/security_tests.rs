use super::*;
use crate::chap::CHALLENGE_LEN;
use crate::config::Config;
use crate::session::{Action, CloseReason, ProtocolMachine};
use crate::testing::{INITIATOR, NAMES, Peer, ReceivedPdu, login_request, text_of};
use crate::wire::LoginResponse;

const SECURITY: Stage = Stage::SECURITY;
const OPERATIONAL: Stage = Stage::OPERATIONAL;
const FULL: Stage = Stage::FULL_FEATURE;
const CHALLENGE: Challenge = Challenge { identifier: 0x2a, bytes: [0x5c; CHALLENGE_LEN] };

type Pairs = &'static [(&'static str, &'static str)];
const METHOD: Pairs = &[("AuthMethod", "CHAP,None")];
const ANSWER: Pairs = &[("CHAP_N", "alice"), ("CHAP_R", "0x0102030405060708090a0b0c0d0e0f10")];
const MUTUAL: Pairs = &[("CHAP_I", "0x07"), ("CHAP_C", "0bTHVuYXI=")];

fn peer() -> Peer {
    Peer { challenge: Some(CHALLENGE), ..Peer::new(Config::default()) }
}

fn security(peer: &mut Peer, transit: Option<Stage>, pairs: &[(&str, &str)]) -> Vec<ReceivedPdu> {
    peer.login(SECURITY, transit, &text_of(pairs))
}

/// A peer that has negotiated CHAP.
fn chosen() -> Peer {
    let mut peer = peer();
    let got = security(&mut peer, None, &[NAMES, METHOD].concat());
    assert_eq!(got[0].pairs().last(), Some(&("AuthMethod", "CHAP")));
    peer
}

/// A peer that has received the challenge.
fn challenged() -> Peer {
    let mut peer = chosen();
    assert_eq!(security(&mut peer, None, &[("CHAP_A", "5")]).len(), 1);
    peer
}

/// The CHAP answer that the front is asked to check.
fn chap_answer(peer: &mut Peer) -> ChapAnswer {
    match peer.actions.pop() {
        Some(Action::Authenticate(chap_answer)) => *chap_answer,
        other => panic!("{other:?} instead of a CHAP answer"),
    }
}

/// A peer whose CHAP answer is being checked.
fn authenticating(transit: Option<Stage>, mutual: Pairs) -> (Peer, ChapAnswer) {
    let mut peer = challenged();
    assert_eq!(security(&mut peer, transit, &[ANSWER, mutual].concat()), []);
    let chap_answer = chap_answer(&mut peer);
    (peer, chap_answer)
}

fn refused(mut peer: Peer, transit: Option<Stage>, pairs: &[(&str, &str)]) -> LoginStatus {
    peer.send(&login_request(SECURITY, transit), &text_of(pairs));
    peer.accept_login();
    let Some(CloseReason::LoginRefused(status)) = peer.session.closed() else {
        panic!("not refused: {:?}", peer.actions);
    };
    peer.assert_refused(status);
    status
}

#[test]
fn a_login_with_chap() {
    let mut peer = peer();
    let got = security(&mut peer, Some(OPERATIONAL), &[NAMES, METHOD].concat());
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x00, "the stage continues, whatever the initiator requests");
    assert_eq!(got[0].pairs(), [("TargetPortalGroupTag", "1"), ("TargetAlias", "the disk"), ("AuthMethod", "CHAP")]);
    let got = security(&mut peer, None, &[("CHAP_A", "5,7")]);
    let challenge = text::as_hex(&CHALLENGE.bytes);
    assert_eq!(got[0].pairs(), [("CHAP_A", "7"), ("CHAP_I", "42"), ("CHAP_C", &challenge)]);
    assert_eq!(security(&mut peer, Some(OPERATIONAL), ANSWER), []);
    let chap_answer = chap_answer(&mut peer);
    assert_eq!(
        (&*chap_answer.user, chap_answer.algorithm, chap_answer.challenge),
        ("alice", Algorithm::SHA256, CHALLENGE)
    );
    assert_eq!((chap_answer.response.bytes(), &chap_answer.mutual), (&(1..17).collect::<Vec<u8>>()[..], &None));
    assert!(
        matches!(peer.session.receive_mode(), crate::session::ReceiveMode::Paused),
        "no request is read while the front is asked"
    );
    peer.session.authenticated(Ok(None), &mut peer.actions);
    let got = peer.received();
    assert_eq!((got[0].pdu::<LoginResponse>().flags, got[0].pairs()), (0x81, vec![]));
    assert_eq!(peer.login(OPERATIONAL, Some(FULL), &[])[0].pdu::<LoginResponse>().flags, 0x87);
    assert!(peer.session.is_established());
}

#[test]
fn the_target_authenticates_itself_on_request() {
    let (mut peer, chap_answer) = authenticating(Some(FULL), MUTUAL);
    assert_eq!(chap_answer.mutual, Some(MutualChallenge { identifier: 7, challenge: b"Lunar".to_vec() }));
    let response = Response::of(vec![0xab; 16]).expect("short");
    peer.session.authenticated(Ok(Some(TargetAnswer { name: "target".into(), response })), &mut peer.actions);
    peer.accept_login();
    let got = peer.received();
    let last = got.last().expect("a response");
    assert_eq!(last.pairs(), [("CHAP_N", "target"), ("CHAP_R", "0xabababababababababababababababab")]);
    assert!(peer.session.is_established(), "directly to the full-feature phase");
    assert_eq!(peer.session.candidate().map(|candidate| &*candidate.initiator), Some(INITIATOR));
}

#[test]
fn the_security_stage_may_continue_after_authentication() {
    let (mut peer, _) = authenticating(None, &[]);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    assert_eq!(peer.received()[0].pdu::<LoginResponse>().flags, 0x00);
    let got = security(&mut peer, Some(OPERATIONAL), &[]);
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x81);
    let (mut peer, _) = authenticating(None, &[]);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    assert_eq!(peer.received().len(), 1);
    assert_eq!(refused(peer, None, METHOD), LoginStatus::INITIATOR_ERROR, "a second authentication is not allowed");
}

#[test]
fn a_refusal_of_the_front_ends_the_login() {
    let (mut peer, _) = authenticating(Some(OPERATIONAL), &[]);
    peer.session.authenticated(Err(LoginStatus::AUTHENTICATION_FAILURE), &mut peer.actions);
    peer.assert_refused(LoginStatus::AUTHENTICATION_FAILURE);
    let (mut peer, _) = authenticating(Some(OPERATIONAL), MUTUAL);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    peer.assert_refused(LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn authentication_cannot_be_skipped() {
    let fails = LoginStatus::AUTHENTICATION_FAILURE;
    assert_eq!(refused(peer(), Some(OPERATIONAL), &[NAMES, &[("AuthMethod", "None")]].concat()), fails);
    assert_eq!(refused(peer(), Some(OPERATIONAL), NAMES), fails, "without AuthMethod");
    assert_eq!(refused(peer(), Some(FULL), NAMES), fails);
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    peer.accept_login();
    peer.assert_refused(fails);
    let mut peer = challenged();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &[]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn keys_of_chap_are_valid_in_their_order_and_only_once() {
    let error = LoginStatus::INITIATOR_ERROR;
    let with = |pairs: Pairs| [NAMES, METHOD, pairs].concat();
    assert_eq!(refused(peer(), None, &with(&[("CHAP_A", "5")])), error, "before the method is chosen");
    assert_eq!(refused(peer(), None, &[NAMES, ANSWER].concat()), error);
    assert_eq!(
        refused(Peer::new(Config::default()), None, &[NAMES, &[("CHAP_A", "5")]].concat()),
        error,
        "without authentication"
    );
    assert_eq!(refused(chosen(), None, &[]), error, "no algorithm");
    assert_eq!(refused(chosen(), None, ANSWER), error, "no challenge yet");
    assert_eq!(refused(chosen(), None, &[("CHAP_A", "5"), ("CHAP_A", "7")]), error);
    assert_eq!(refused(chosen(), None, &[("CHAP_A", "5"), ("CHAP_I", "1")]), error);
    assert_eq!(refused(chosen(), None, METHOD), error, "the method again");
    assert_eq!(refused(challenged(), None, &[("CHAP_A", "5")]), error);
    assert_eq!(refused(challenged(), None, &[]), error);
    assert_eq!(refused(challenged(), None, &ANSWER[..1]), error, "no response");
    assert_eq!(refused(challenged(), None, &ANSWER[1..]), error, "no name");
    assert_eq!(refused(challenged(), None, &[ANSWER, ANSWER].concat()), error);
    assert_eq!(refused(challenged(), None, &[ANSWER, &MUTUAL[..1]].concat()), error, "no challenge of the initiator");
    assert_eq!(refused(challenged(), None, &[ANSWER, &MUTUAL[1..]].concat()), error, "no identifier of the initiator");
}

#[test]
fn values_of_chap_are_limited() {
    let long = "a".repeat(USER_MAX + 1);
    let challenge = |len: usize| text::as_hex(&vec![7; len]);
    let (longest, longer) = (challenge(CHALLENGE_MAX), challenge(CHALLENGE_MAX + 1));
    let response = ANSWER[1];
    let cases: &[&[(&str, &str)]] = &[
        &[("CHAP_N", ""), response],
        &[("CHAP_N", &long), response],
        &[ANSWER[0], ("CHAP_R", "secret")],
        &[ANSWER[0], ("CHAP_R", "0x")],
        &[ANSWER[0], ("CHAP_R", &longest)],
        &[ANSWER[0], response, ("CHAP_I", "256"), ("CHAP_C", "0x01")],
        &[ANSWER[0], response, ("CHAP_I", "-1"), ("CHAP_C", "0x01")],
        &[ANSWER[0], response, ("CHAP_I", "1"), ("CHAP_C", "")],
        &[ANSWER[0], response, ("CHAP_I", "1"), ("CHAP_C", "0x")],
        &[ANSWER[0], response, ("CHAP_I", "1"), ("CHAP_C", "0b")],
        &[ANSWER[0], response, ("CHAP_I", "1"), ("CHAP_C", "0xzz")],
        &[ANSWER[0], response, ("CHAP_I", "1"), ("CHAP_C", &longer)],
    ];
    for case in cases {
        assert_eq!(refused(challenged(), None, case), LoginStatus::INITIATOR_ERROR, "{case:?}");
    }
    let mut peer = challenged();
    let mutual = [ANSWER[0], response, ("CHAP_I", "255"), ("CHAP_C", &longest)];
    assert_eq!(security(&mut peer, None, &mutual), []);
    assert_eq!(chap_answer(&mut peer).mutual.map(|mutual| mutual.challenge.len()), Some(CHALLENGE_MAX));
}

#[test]
fn the_strongest_common_algorithm_is_chosen() {
    let agreed = |allowed: &[Algorithm], offered: &str| {
        let mut peer =
            Peer { challenge: Some(CHALLENGE), ..Peer::new(Config { chap: allowed.into(), ..Config::default() }) };
        security(&mut peer, None, &[NAMES, METHOD].concat());
        let got = security(&mut peer, None, &[("CHAP_A", offered)]);
        let pdu: LoginResponse = got[0].pdu();
        match LoginStatus(pdu.status.get()) {
            LoginStatus::SUCCESS => Ok(got[0].pairs()[0].1.to_owned()),
            status => Err(status),
        }
    };
    for (offered, taken) in [("5", "5"), ("5,6", "6"), ("5,6,7", "7"), ("8,7,6,5", "8"), ("5,0x8", "8"), ("9,5", "5")] {
        assert_eq!(agreed(&Algorithm::ALL, offered).as_deref(), Ok(taken), "{offered}");
    }
    let only = [Algorithm::SHA256];
    assert_eq!(agreed(&only, "5,7,8").as_deref(), Ok("7"));
    for offered in ["5", "", "MD5", "263", "9,10"] {
        assert_eq!(agreed(&only, offered), Err(LoginStatus::AUTHENTICATION_FAILURE), "{offered}");
    }
}

#[test]
fn a_discovery_session_authenticates_like_a_normal_one() {
    let mut peer = peer();
    let names = [("InitiatorName", INITIATOR), ("SessionType", "Discovery")];
    let got = security(&mut peer, None, &[&names[..], METHOD].concat());
    assert_eq!(got[0].pairs(), [("AuthMethod", "CHAP")]);
    assert_eq!(refused(peer, Some(FULL), &[]), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn chap_works_with_text_in_several_requests() {
    let mut peer = chosen();
    let mut part = login_request(SECURITY, None);
    part.flags |= crate::wire::CONTINUE;
    peer.send(&part, b"CHAP_");
    assert_eq!(peer.only_pdu::<LoginResponse>().1, b"");
    peer.send(&login_request(SECURITY, None), b"A=8\0");
    assert!(peer.only_pdu::<LoginResponse>().1.starts_with(b"CHAP_A=8\0CHAP_I=42\0CHAP_C=0x5c5c"));
}

#[test]
fn chap_cannot_be_bypassed_by_a_change_of_the_stage_within_a_text() {
    // A text that begins in the operational stage and ends in the security stage, and the other way round.
    for (first, second) in [(OPERATIONAL, SECURITY), (SECURITY, OPERATIONAL)] {
        let mut peer = peer();
        let text = text_of(NAMES);
        let header = login_request(first, None);
        peer.send(&LoginRequest { flags: header.flags | crate::wire::CONTINUE, ..header }, &text[..10]);
        peer.received();
        peer.send(&login_request(second, Some(FULL)), &text[10..]);
        peer.accept_login();
        peer.assert_refused(LoginStatus::INITIATOR_ERROR);
    }
}
