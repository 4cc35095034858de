use super::*;
use crate::config::Offer;
use lunar_core::access::Secret;
use lunar_iscsi::chap::CHALLENGE_LEN;
use lunar_iscsi::wire::{Pdu, login_flags};

const CHALLENGE: Challenge = Challenge { identifier: 9, bytes: [0x5c; CHALLENGE_LEN] };

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.into()).expect("long enough") }
}

fn start(mutual: bool) -> Login {
    let target = mutual.then(|| MutualChap { account: account("target", "the target's own"), challenge: CHALLENGE });
    let user = account("alice", "the secret of alice");
    let chap = Chap { user, algorithms: vec![Algorithm::SHA256, Algorithm::MD5], target };
    let offer = Offer { target: Some("iqn.x".into()), chap: Some(chap), ..Offer::default() };
    let (login, request) = Login::start(offer);
    assert!(request.text.ends_with(b"AuthMethod=CHAP\0"));
    assert_eq!((request.stage, request.transit), (Stage::SECURITY, None));
    login
}

fn open() -> LoginResponse {
    LoginResponse { flags: login_flags(Stage::SECURITY, None), ..LoginResponse::blank() }
}

fn granted() -> LoginResponse {
    LoginResponse { flags: login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)), ..LoginResponse::blank() }
}

fn goes_on(next: Result<Next, Error>) -> (Login, String) {
    match next {
        Ok(Next::Send(login, request)) => (login, String::from_utf8(request.text).expect("text")),
        other => panic!("{other:?}"),
    }
}

fn challenged(mutual: bool) -> (Login, String) {
    let (login, text) = goes_on(start(mutual).handle(&open(), b"AuthMethod=CHAP\0"));
    assert_eq!(text, "CHAP_A=7,5\0");
    goes_on(login.handle(&open(), b"CHAP_A=5\0CHAP_I=1\0CHAP_C=0x0102\0"))
}

/// Computed with Python's hashlib: md5(1, "the secret of alice", 1, 2), md5(9, "the target's own", 32 times 0x5c).
const ALICE: &str = "0x8db413e91a2793a099ac7ade938e056a";
const TARGET: &str = "0x79bf63eb57c8cf5f07e10d64877f8ad8";

#[test]
fn the_initiator_answers_the_challenge() {
    let (login, text) = challenged(false);
    assert_eq!(text, format!("CHAP_N=alice\0CHAP_R={ALICE}\0"));
    let (login, _) = goes_on(login.handle(&granted(), b""));
    assert!(matches!(login, Login::Operational(_)));
}

#[test]
fn the_target_answers_the_challenge_of_mutual_chap() {
    let (login, text) = challenged(true);
    let ours = text::as_hex(&CHALLENGE.bytes);
    assert_eq!(text, format!("CHAP_N=alice\0CHAP_R={ALICE}\0CHAP_I=9\0CHAP_C={ours}\0"));
    let (login, _) = goes_on(login.handle(&granted(), format!("CHAP_N=target\0CHAP_R={TARGET}\0").as_bytes()));
    assert!(matches!(login, Login::Operational(_)));
    for wrong in [
        String::new(),
        format!("CHAP_N=other\0CHAP_R={TARGET}\0"),
        format!("CHAP_N=target\0CHAP_R={ALICE}\0"),
        "CHAP_N=target\0".into(),
        "CHAP_N=target\0CHAP_R=0x\0".into(),
    ] {
        let error = challenged(true).0.handle(&granted(), wrong.as_bytes()).err();
        assert!(matches!(error, Some(Error::Authentication(_))), "{wrong}: {error:?}");
    }
}

#[test]
fn a_target_that_skips_or_breaks_chap_is_refused() {
    for (answer, text) in [(open(), "AuthMethod=None\0"), (open(), ""), (granted(), "AuthMethod=CHAP\0")] {
        assert!(start(false).handle(&answer, text.as_bytes()).is_err(), "{text}");
    }
    let reflected = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C={}\0", text::as_hex(&CHALLENGE.bytes));
    for text in [
        "CHAP_A=6\0CHAP_I=1\0CHAP_C=0x0102\0",
        "CHAP_I=1\0CHAP_C=0x0102\0",
        "CHAP_A=5\0CHAP_I=1\0CHAP_C=0x\0",
        "CHAP_A=5\0CHAP_I=256\0CHAP_C=0x01\0",
        "CHAP_A=5\0CHAP_C=0x01\0",
        "CHAP_A=5\0CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01\0",
        &reflected,
    ] {
        let (login, _) = goes_on(start(true).handle(&open(), b"AuthMethod=CHAP\0"));
        assert!(login.handle(&open(), text.as_bytes()).is_err(), "{text}");
    }
    assert!(challenged(false).0.handle(&open(), b"").is_err(), "it never grants");
}
