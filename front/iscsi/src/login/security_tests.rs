use super::*;
use crate::chap::CHALLENGE_LEN;
use crate::config::Config;
use crate::session::{Action, CloseReason, ProtocolMachine};
use crate::testing::{Got, INITIATOR, NAMES, Peer, login_request, text_of};
use crate::wire::LoginResponse;

const SECURITY: Stage = Stage::SECURITY;
const OPERATIONAL: Stage = Stage::OPERATIONAL;
const FULL: Stage = Stage::FULL_FEATURE;
const CHALLENGE: Challenge = Challenge { identifier: 0x2a, bytes: [0x5c; CHALLENGE_LEN] };

type Pairs = &'static [(&'static str, &'static str)];
const METHOD: Pairs = &[("AuthMethod", "CHAP,None")];
const ANSWER: Pairs = &[("CHAP_N", "alice"), ("CHAP_R", "0x0102030405060708090a0b0c0d0e0f10")];
const COUNTER: Pairs = &[("CHAP_I", "0x07"), ("CHAP_C", "0bTHVuYXI=")];

fn peer() -> Peer {
    Peer { challenge: Some(CHALLENGE), ..Peer::new(Config::default()) }
}

fn security(peer: &mut Peer, transit: Option<Stage>, pairs: &[(&str, &str)]) -> Vec<Got> {
    peer.login(SECURITY, transit, &text_of(pairs))
}

/// A peer that has its method.
fn chosen() -> Peer {
    let mut peer = peer();
    let got = security(&mut peer, None, &[NAMES, METHOD].concat());
    assert_eq!(got[0].pairs().last(), Some(&("AuthMethod", "CHAP")));
    peer
}

/// A peer that has its challenge.
fn challenged() -> Peer {
    let mut peer = chosen();
    assert_eq!(security(&mut peer, None, &[("CHAP_A", "5")]).len(), 1);
    peer
}

/// What the outside is asked.
fn chap_answer(peer: &mut Peer) -> ChapAnswer {
    match peer.actions.pop() {
        Some(Action::Authenticate(chap_answer)) => *chap_answer,
        other => panic!("{other:?} instead of a proof"),
    }
}

/// A peer whose proof is looked at.
fn proving(transit: Option<Stage>, mutual: Pairs) -> (Peer, ChapAnswer) {
    let mut peer = challenged();
    assert_eq!(security(&mut peer, transit, &[ANSWER, mutual].concat()), []);
    let chap_answer = chap_answer(&mut peer);
    (peer, chap_answer)
}

fn refused(mut peer: Peer, transit: Option<Stage>, pairs: &[(&str, &str)]) -> LoginStatus {
    peer.send(&login_request(SECURITY, transit), &text_of(pairs));
    peer.agree();
    let Some(CloseReason::LoginRefused(status)) = peer.session.closed() else {
        panic!("not refused: {:?}", peer.actions);
    };
    peer.assert_refused(status);
    status
}

#[test]
fn a_login_by_chap() {
    let mut peer = peer();
    let got = security(&mut peer, Some(OPERATIONAL), &[NAMES, METHOD].concat());
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x00, "the stage is not over, whatever is asked for");
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
        "nothing is looked at meanwhile"
    );
    peer.session.authenticated(Ok(None), &mut peer.actions);
    let got = peer.got();
    assert_eq!((got[0].pdu::<LoginResponse>().flags, got[0].pairs()), (0x81, vec![]));
    assert_eq!(peer.login(OPERATIONAL, Some(FULL), &[])[0].pdu::<LoginResponse>().flags, 0x87);
    assert!(peer.session.is_established());
}

#[test]
fn a_proof_in_return() {
    let (mut peer, chap_answer) = proving(Some(FULL), COUNTER);
    assert_eq!(chap_answer.mutual, Some(MutualChallenge { identifier: 7, challenge: b"Lunar".to_vec() }));
    let response = Response::of(vec![0xab; 16]).expect("short");
    peer.session.authenticated(Ok(Some(TargetAnswer { name: "target".into(), response })), &mut peer.actions);
    peer.agree();
    let got = peer.got();
    let last = got.last().expect("a response");
    assert_eq!(last.pairs(), [("CHAP_N", "target"), ("CHAP_R", "0xabababababababababababababababab")]);
    assert!(peer.session.is_established(), "straight to the full-feature phase");
    assert_eq!(peer.session.candidate().map(|candidate| &*candidate.initiator), Some(INITIATOR));
}

#[test]
fn the_stage_may_go_on_after_the_proof() {
    let (mut peer, _) = proving(None, &[]);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    assert_eq!(peer.got()[0].pdu::<LoginResponse>().flags, 0x00);
    let got = security(&mut peer, Some(OPERATIONAL), &[]);
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x81);
    let (mut peer, _) = proving(None, &[]);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    assert_eq!(peer.got().len(), 1);
    assert_eq!(refused(peer, None, METHOD), LoginStatus::INITIATOR_ERROR, "not a second time");
}

#[test]
fn what_the_outside_says_ends_the_login() {
    let (mut peer, _) = proving(Some(OPERATIONAL), &[]);
    peer.session.authenticated(Err(LoginStatus::AUTHENTICATION_FAILURE), &mut peer.actions);
    peer.assert_refused(LoginStatus::AUTHENTICATION_FAILURE);
    let (mut peer, _) = proving(Some(OPERATIONAL), COUNTER);
    peer.session.authenticated(Ok(None), &mut peer.actions);
    peer.assert_refused(LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn who_must_prove_his_name_does_not_get_around_it() {
    let fails = LoginStatus::AUTHENTICATION_FAILURE;
    assert_eq!(refused(peer(), Some(OPERATIONAL), &[NAMES, &[("AuthMethod", "None")]].concat()), fails);
    assert_eq!(refused(peer(), Some(OPERATIONAL), NAMES), fails, "without a word of it");
    assert_eq!(refused(peer(), Some(FULL), NAMES), fails);
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    peer.agree();
    peer.assert_refused(fails);
    let mut peer = challenged();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &[]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn keys_of_chap_come_in_their_order_and_once() {
    let error = LoginStatus::INITIATOR_ERROR;
    let with = |pairs: Pairs| [NAMES, METHOD, pairs].concat();
    assert_eq!(refused(peer(), None, &with(&[("CHAP_A", "5")])), error, "before the method is agreed");
    assert_eq!(refused(peer(), None, &[NAMES, ANSWER].concat()), error);
    assert_eq!(refused(Peer::new(Config::default()), None, &[NAMES, &[("CHAP_A", "5")]].concat()), error, "without it");
    assert_eq!(refused(chosen(), None, &[]), error, "no algorithm");
    assert_eq!(refused(chosen(), None, ANSWER), error, "no challenge yet");
    assert_eq!(refused(chosen(), None, &[("CHAP_A", "5"), ("CHAP_A", "7")]), error);
    assert_eq!(refused(chosen(), None, &[("CHAP_A", "5"), ("CHAP_I", "1")]), error);
    assert_eq!(refused(chosen(), None, METHOD), error, "the method a second time");
    assert_eq!(refused(challenged(), None, &[("CHAP_A", "5")]), error);
    assert_eq!(refused(challenged(), None, &[]), error);
    assert_eq!(refused(challenged(), None, &ANSWER[..1]), error, "no response");
    assert_eq!(refused(challenged(), None, &ANSWER[1..]), error, "no name");
    assert_eq!(refused(challenged(), None, &[ANSWER, ANSWER].concat()), error);
    assert_eq!(refused(challenged(), None, &[ANSWER, &COUNTER[..1]].concat()), error, "no challenge of theirs");
    assert_eq!(refused(challenged(), None, &[ANSWER, &COUNTER[1..]].concat()), error, "no identifier of theirs");
}

#[test]
fn values_are_bounded() {
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
fn the_strongest_algorithm_that_both_have_is_taken() {
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
fn a_discovery_session_proves_its_name_like_others() {
    let mut peer = peer();
    let names = [("InitiatorName", INITIATOR), ("SessionType", "Discovery")];
    let got = security(&mut peer, None, &[&names[..], METHOD].concat());
    assert_eq!(got[0].pairs(), [("AuthMethod", "CHAP")]);
    assert_eq!(refused(peer, Some(FULL), &[]), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn texts_in_pieces_are_chap_as_well() {
    let mut peer = chosen();
    let mut part = login_request(SECURITY, None);
    part.flags |= crate::wire::CONTINUE;
    peer.send(&part, b"CHAP_");
    assert_eq!(peer.one::<LoginResponse>().1, b"");
    peer.send(&login_request(SECURITY, None), b"A=8\0");
    assert!(peer.one::<LoginResponse>().1.starts_with(b"CHAP_A=8\0CHAP_I=42\0CHAP_C=0x5c5c"));
}
