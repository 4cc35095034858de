use super::*;
use crate::config::Config;
use crate::session::{Action, CloseReason, ProtocolMachine};
use crate::testing::{INITIATOR, NAMES, Peer, TARGET, login_request, text_of};
use crate::wire::{First, NO_TAG, NopOut, Opcode};
use std::time::Duration;

const SECURITY: Stage = Stage::SECURITY;
const OPERATIONAL: Stage = Stage::OPERATIONAL;
const FULL: Stage = Stage::FULL_FEATURE;

fn peer() -> Peer {
    Peer::new(Config::default())
}

fn refused(header: &LoginRequest, text: &[u8]) -> LoginStatus {
    let mut peer = peer();
    peer.send(header, text);
    let Some(CloseReason::LoginRefused(status)) = peer.session.closed() else {
        panic!("not refused: {:?}", peer.actions);
    };
    peer.assert_refused(status);
    status
}

fn response(peer: &mut Peer) -> LoginResponse {
    peer.only_pdu::<LoginResponse>().0
}

#[test]
fn a_login_may_take_all_stages() {
    let mut peer = peer();
    let got = peer.login(SECURITY, Some(OPERATIONAL), &text_of(&[NAMES, &[("AuthMethod", "CHAP,None")]].concat()));
    let header: LoginResponse = got[0].pdu();
    assert_eq!((header.flags, header.tsih.get(), header.status.get()), (0x81, 0, 0));
    assert_eq!((header.isid, header.itt.get(), header.stat_sn.get()), ([0x40, 1, 2, 3, 4, 5], 9, 500));
    assert_eq!((header.exp_cmd_sn.get(), header.max_cmd_sn.get()), (100, 227));
    assert_eq!(got[0].pairs(), [("TargetPortalGroupTag", "1"), ("TargetAlias", "the disk"), ("AuthMethod", "None")]);
    let got = peer.login(OPERATIONAL, Some(FULL), &text_of(&[("HeaderDigest", "None"), ("MaxBurstLength", "65536")]));
    let header: LoginResponse = got[0].pdu();
    assert_eq!((header.flags, header.tsih.get(), header.stat_sn.get()), (0x87, 7, 501));
    assert_eq!(
        got[0].pairs(),
        [("HeaderDigest", "None"), ("MaxBurstLength", "65536"), ("MaxRecvDataSegmentLength", "262144")]
    );
    assert!(peer.session.is_established());
    assert_eq!(peer.session.parameters().max_burst, 65536);
    assert_eq!(peer.session.candidate().map(|candidate| &*candidate.initiator), Some(INITIATOR));
}

#[test]
fn a_login_may_begin_with_the_operational_stage() {
    let mut peer = peer();
    let got = peer.login(OPERATIONAL, Some(FULL), &text_of(NAMES));
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x87);
    assert_eq!(got[0].pairs()[0], ("TargetPortalGroupTag", "1"));
    assert!(peer.session.is_established());
}

#[test]
fn a_login_without_the_operational_stage_keeps_the_defaults() {
    let mut peer = peer();
    let got = peer.login(SECURITY, Some(FULL), &text_of(&[NAMES, &[("AuthMethod", "None")]].concat()));
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x83);
    assert!(got[0].pairs().iter().all(|(key, _)| *key != "MaxRecvDataSegmentLength"));
    assert!(peer.session.is_established());
    // Without a declaration, the limit of the default applies.
    let nop = NopOut { first: First::new(Opcode::NOP_OUT).immediately(), ..NopOut::blank() };
    peer.send(&nop, &[0; 8193]);
    assert!(matches!(peer.session.closed(), Some(CloseReason::Malformed(_))));
}

#[test]
fn a_stage_lasts_until_the_initiator_requests_the_next() {
    let mut peer = peer();
    let got = peer.login(SECURITY, None, &text_of(NAMES));
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x00);
    let got = peer.login(SECURITY, Some(OPERATIONAL), &text_of(&[("AuthMethod", "None")]));
    assert_eq!(got[0].pairs(), [("AuthMethod", "None")]);
    let got = peer.login(OPERATIONAL, None, &text_of(&[("ImmediateData", "No")]));
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x04);
    assert_eq!(got[0].pairs(), [("ImmediateData", "No"), ("MaxRecvDataSegmentLength", "262144")]);
    let got = peer.login(OPERATIONAL, Some(FULL), &[]);
    assert_eq!(got[0].pairs(), []);
    assert_eq!(got[0].pdu::<LoginResponse>().stat_sn.get(), 503);
    assert!(peer.session.is_established());
    assert!(!peer.session.parameters().immediate_data);
}

#[test]
fn the_front_is_asked_to_authorize_the_names() {
    let mut peer = peer();
    let text =
        text_of(&[("InitiatorName", "IQN.2026-01.org.example:HOST"), ("TargetName", TARGET), ("InitiatorAlias", "x")]);
    peer.send(&login_request(SECURITY, None), &text);
    let [Action::Authorize(candidate)] = &peer.actions[..] else { panic!("{:?}", peer.actions) };
    assert_eq!(
        **candidate,
        Candidate {
            initiator: INITIATOR.into(),
            alias: Some("x".into()),
            target: Some(TARGET.into()),
            discovery: false,
            isid: [0x40, 1, 2, 3, 4, 5],
            tsih: 0,
            cid: 3,
            transport: Transport::Tcp,
        }
    );
}

#[test]
fn no_request_is_read_while_the_front_is_asked() {
    let mut peer = peer();
    let mut bytes = peer.bytes(&login_request(SECURITY, Some(OPERATIONAL)), &[], &text_of(NAMES));
    bytes.extend(peer.bytes(&login_request(OPERATIONAL, Some(FULL)), &[], &[]));
    peer.feed(&bytes);
    assert!(matches!(peer.session.receive_mode(), crate::session::ReceiveMode::Paused));
    assert_eq!((peer.actions.len(), peer.received().len()), (1, 0));
    peer.accept_login();
    assert_eq!(peer.received().len(), 2);
    assert!(peer.session.is_established());
}

#[test]
fn the_session_is_established_before_the_last_response() {
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    peer.actions.clear();
    peer.session.authorized(
        LoginDecision::Accepted { portal_group: 1, alias: None, challenge: None, offer: None, resumed: None },
        &mut peer.actions,
    );
    let [Action::Establish(established)] = &peer.actions[..] else { panic!("{:?}", peer.actions) };
    assert_eq!((&*established.candidate.initiator, established.cmd_sn), (INITIATOR, 100));
    assert_eq!(established.candidate.isid, [0x40, 1, 2, 3, 4, 5]);
    assert_eq!(peer.received(), []);
    peer.session.established(Ok(0x1234), &mut peer.actions);
    assert_eq!(response(&mut peer).tsih.get(), 0x1234);
}

#[test]
fn a_session_over_the_limit_is_refused_0302() {
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    peer.session.authorized(
        LoginDecision::Accepted { portal_group: 1, alias: None, challenge: None, offer: None, resumed: None },
        &mut peer.actions,
    );
    peer.session.established(Err(LoginStatus::OUT_OF_RESOURCES), &mut peer.actions);
    peer.assert_refused(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(
        CloseReason::LoginRefused(LoginStatus::OUT_OF_RESOURCES).responsible(),
        crate::session::Responsible::Target
    );
}

#[test]
fn login_without_initiator_name_is_refused_0207() {
    let header = login_request(SECURITY, Some(OPERATIONAL));
    assert_eq!(refused(&header, &text_of(&[("TargetName", TARGET)])), LoginStatus::MISSING_PARAMETER);
    assert_eq!(refused(&header, &[]), LoginStatus::MISSING_PARAMETER);
}

#[test]
fn a_normal_login_without_target_name_is_refused_0207() {
    let header = login_request(SECURITY, Some(OPERATIONAL));
    assert_eq!(refused(&header, &text_of(&[("InitiatorName", INITIATOR)])), LoginStatus::MISSING_PARAMETER);
    let normal = [("InitiatorName", INITIATOR), ("SessionType", "Normal")];
    assert_eq!(refused(&header, &text_of(&normal)), LoginStatus::MISSING_PARAMETER);
}

#[test]
fn a_discovery_login_needs_no_target() {
    let mut peer = peer();
    let text = text_of(&[("InitiatorName", INITIATOR), ("MaxConnections", "1"), ("SessionType", "Discovery")]);
    let got = peer.login(OPERATIONAL, Some(FULL), &text);
    // MaxBurstLength is irrelevant although it precedes SessionType; there is no portal group tag.
    assert_eq!(got[0].pairs(), [("MaxConnections", "Irrelevant"), ("MaxRecvDataSegmentLength", "262144")]);
    assert!(peer.session.is_established());
}

#[test]
fn a_first_burst_without_unsolicited_data_is_irrelevant_rfc7143_13_14() {
    let keys =
        [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "4096"), ("FirstBurstLength", "4096")];
    let mut peer = peer();
    let got = peer.login(OPERATIONAL, Some(FULL), &text_of(&[NAMES, &keys].concat()));
    let answers = got[0].pairs();
    let burst = |key: &str| answers.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    assert_eq!((burst("MaxBurstLength"), burst("FirstBurstLength")), (Some("4096"), Some("Irrelevant")));
    assert!(peer.session.is_established());
}

#[test]
fn login_with_an_unknown_session_type_is_refused_0209() {
    let text = text_of(&[NAMES, &[("SessionType", "Tape")]].concat());
    assert_eq!(refused(&login_request(SECURITY, None), &text), LoginStatus::SESSION_TYPE_NOT_SUPPORTED);
}

#[test]
fn login_with_an_invalid_name_is_refused() {
    let bad = text_of(&[("InitiatorName", "host"), ("TargetName", TARGET)]);
    assert_eq!(refused(&login_request(SECURITY, None), &bad), LoginStatus::INITIATOR_ERROR);
    let bad = text_of(&[("InitiatorName", INITIATOR), ("TargetName", "disk")]);
    assert_eq!(refused(&login_request(SECURITY, None), &bad), LoginStatus::NOT_FOUND);
}

#[test]
fn login_with_chap_only_is_refused_0201() {
    let mut peer = peer();
    peer.send(&login_request(SECURITY, Some(OPERATIONAL)), &text_of(&[NAMES, &[("AuthMethod", "CHAP")]].concat()));
    peer.accept_login();
    peer.assert_refused(LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn login_of_another_version_is_refused_0205() {
    let header = LoginRequest { version_max: 2, version_min: 1, ..login_request(SECURITY, None) };
    assert_eq!(refused(&header, &text_of(NAMES)), LoginStatus::UNSUPPORTED_VERSION);
    let mut peer = peer();
    let header = LoginRequest { version_max: 2, ..login_request(SECURITY, None) };
    peer.send(&header, &text_of(NAMES));
    assert_eq!(peer.session.closed(), None);
}

#[test]
fn a_refusal_of_the_front_is_the_status_of_the_response() {
    for status in [
        LoginStatus::NOT_FOUND,
        LoginStatus::AUTHORIZATION_FAILURE,
        LoginStatus::REMOVED,
        LoginStatus::NO_SUCH_SESSION,
        LoginStatus::TOO_MANY_CONNECTIONS,
        LoginStatus::SERVICE_UNAVAILABLE,
    ] {
        let mut peer = peer();
        peer.send(&login_request(SECURITY, Some(OPERATIONAL)), &text_of(NAMES));
        peer.actions.clear();
        peer.session.authorized(LoginDecision::Refused(status), &mut peer.actions);
        peer.assert_refused(status);
    }
}

#[test]
fn a_login_to_an_existing_session_has_its_tsih() {
    let mut peer = peer();
    let header = LoginRequest { tsih: U16::new(5), ..login_request(OPERATIONAL, Some(FULL)) };
    peer.send(&header, &text_of(NAMES));
    let [Action::Authorize(candidate)] = &peer.actions[..] else { panic!("{:?}", peer.actions) };
    assert_eq!(candidate.tsih, 5);
}

#[test]
fn a_redirected_target_names_its_address_0101() {
    for (permanently, status) in [(false, LoginStatus::MOVED_TEMPORARILY), (true, LoginStatus::MOVED_PERMANENTLY)] {
        let mut peer = peer();
        peer.send(&login_request(SECURITY, Some(OPERATIONAL)), &text_of(NAMES));
        peer.actions.clear();
        let address = "[2001:db8::1]:3260".to_owned();
        peer.session.authorized(LoginDecision::Moved { permanently, address }, &mut peer.actions);
        let got = peer.received();
        assert_eq!(got[0].pairs(), [("TargetAddress", "[2001:db8::1]:3260")]);
        assert_eq!(got[0].pdu::<LoginResponse>().status.get(), status.0);
        peer.assert_closed(CloseReason::LoginRefused(status));
        assert_eq!(CloseReason::LoginRefused(status).responsible(), crate::session::Responsible::Nobody);
    }
}

#[test]
fn stages_out_of_order_are_refused_0200() {
    for (stage, next) in [
        (SECURITY, SECURITY),
        (SECURITY, Stage(2)),
        (OPERATIONAL, SECURITY),
        (OPERATIONAL, OPERATIONAL),
        (OPERATIONAL, Stage(2)),
        (Stage(2), FULL),
        (FULL, FULL),
    ] {
        let header = login_request(stage, Some(next));
        assert_eq!(refused(&header, &text_of(NAMES)), LoginStatus::INITIATOR_ERROR, "{stage:?} {next:?}");
    }
    assert_eq!(refused(&login_request(FULL, None), &text_of(NAMES)), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn a_completed_stage_cannot_be_repeated_0200() {
    let mut peer = peer();
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
    peer.send(&login_request(SECURITY, Some(OPERATIONAL)), &[]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn transit_with_incomplete_text_is_refused_0200() {
    let mut header = login_request(SECURITY, Some(OPERATIONAL));
    header.flags |= CONTINUE;
    assert_eq!(refused(&header, &text_of(NAMES)), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn a_text_may_take_several_requests() {
    let mut peer = peer();
    let text = text_of(NAMES);
    let (front, back) = text.split_at(20);
    let mut header = login_request(OPERATIONAL, None);
    header.flags |= CONTINUE;
    peer.send(&header, front);
    let (empty, data) = peer.only_pdu::<LoginResponse>();
    assert_eq!((empty.flags, data.len(), empty.status.get()), (0x04, 0, 0));
    assert!(peer.actions.is_empty());
    let got = peer.login(OPERATIONAL, Some(FULL), back);
    assert_eq!(got[0].pdu::<LoginResponse>().flags, 0x87);
    assert!(peer.session.is_established());
}

#[test]
fn a_login_text_over_the_limit_is_refused_0200() {
    let mut header = login_request(SECURITY, None);
    header.flags |= CONTINUE;
    let mut peer = peer();
    for _ in 0..TEXT_MAX / 4096 {
        peer.send(&header, &[b'a'; 4096]);
        assert_eq!(response(&mut peer).status.get(), 0);
    }
    peer.send(&header, &[b'a'; 4]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn too_many_login_requests_are_refused_0200() {
    let mut peer = peer();
    peer.login(SECURITY, None, &text_of(NAMES));
    for _ in 1..LOGIN_REQUESTS_MAX {
        assert_eq!(peer.login(SECURITY, None, &[]).len(), 1);
        assert_eq!(peer.session.closed(), None);
    }
    peer.send(&login_request(SECURITY, None), &[]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn too_many_empty_login_requests_are_refused_0200() {
    let mut header = login_request(SECURITY, None);
    header.flags |= CONTINUE;
    let mut peer = peer();
    for _ in 0..LOGIN_REQUESTS_MAX {
        peer.send(&header, &[]);
    }
    assert_eq!(peer.session.closed(), None);
    peer.send(&header, &[]);
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn login_with_too_many_pairs_is_refused_0200() {
    let mut text = text_of(NAMES);
    for count in 0..PAIRS_MAX {
        text::put(&mut text, &format!("X-{count}"), "");
    }
    let mut peer = peer();
    peer.send(&login_request(SECURITY, None), &text);
    peer.accept_login();
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn the_longest_answer_fits_one_response() {
    let mut text = text_of(NAMES);
    for count in 2..PAIRS_MAX {
        text::put(&mut text, &format!("X-{count:061}"), "");
    }
    assert!(text.len() < LOGIN_SEGMENT_MAX);
    let mut peer = peer();
    let got = peer.login(OPERATIONAL, Some(FULL), &text);
    assert!(got[0].data.len() > 4000 && got[0].data.len() <= LOGIN_SEGMENT_MAX);
    assert!(peer.session.is_established());
}

#[test]
fn malformed_login_text_is_refused_0200() {
    for bad in [&b"InitiatorName=iqn.a"[..], b"InitiatorName\0", b"=a\0", b"A=\xff\0", b"A b=c\0"] {
        assert_eq!(refused(&login_request(SECURITY, None), bad), LoginStatus::INITIATOR_ERROR, "{bad:?}");
    }
}

#[test]
fn a_key_sent_twice_is_refused_0200() {
    let text = text_of(&[NAMES, NAMES].concat());
    assert_eq!(refused(&login_request(SECURITY, None), &text), LoginStatus::INITIATOR_ERROR);
    let mut peer = peer();
    peer.login(OPERATIONAL, None, &text_of(&[NAMES, &[("ImmediateData", "Yes")]].concat()));
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(&[("ImmediateData", "No")]));
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn a_login_that_changes_its_identifiers_is_refused_0200() {
    let good = login_request(OPERATIONAL, Some(FULL));
    for bad in [
        LoginRequest { isid: [0; 6], ..good },
        LoginRequest { cid: U16::new(4), ..good },
        LoginRequest { tsih: U16::new(4), ..good },
    ] {
        let mut peer = peer();
        peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
        peer.send(&bad, &[]);
        peer.assert_refused(LoginStatus::INITIATOR_ERROR);
    }
}

#[test]
fn a_connection_that_does_not_begin_with_a_login_is_closed_without_a_response() {
    let mut peer = peer();
    peer.feed(b"GET / HTTP/1.1\r\nHost: this is no iSCSI request at all\r\n\r\n");
    assert!(matches!(peer.session.closed(), Some(CloseReason::Malformed(_))));
    assert_eq!(peer.received(), []);
    let mut peer = self::peer();
    peer.send(&NopOut::blank(), &[]);
    peer.assert_closed(CloseReason::Malformed("the first PDU is not a login request"));
    assert_eq!(peer.received(), []);
}

#[test]
fn another_request_during_the_login_is_refused_020b() {
    let mut peer = peer();
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
    peer.send(&NopOut { itt: U32::new(5), ttt: U32::new(NO_TAG), ..NopOut::blank() }, &[]);
    peer.assert_refused(LoginStatus::INVALID_REQUEST);
}

#[test]
fn a_login_segment_longer_than_8192_bytes_closes_the_connection_early() {
    let mut peer = peer();
    let mut bytes = peer.bytes(&login_request(SECURITY, None), &[], &[0; 8193]);
    bytes.truncate(48);
    let used = peer.arena.used();
    peer.feed(&bytes);
    assert!(matches!(peer.session.closed(), Some(CloseReason::Malformed(_))));
    assert_eq!(peer.arena.used(), used);
}

#[test]
fn additional_headers_in_a_login_close_the_connection() {
    let mut peer = peer();
    let bytes = peer.bytes(&login_request(SECURITY, None), &[0; 8], &text_of(NAMES));
    peer.feed(&bytes);
    peer.assert_closed(CloseReason::Malformed("an additional header segment on a PDU that has none"));
}

#[test]
fn a_login_that_takes_too_long_is_closed() {
    let mut peer = peer();
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
    let deadline = peer.session.deadline().expect("a login has an end");
    assert_eq!(deadline, peer.now + Duration::from_secs(15));
    peer.session.tick(deadline - Duration::from_nanos(1), &mut peer.actions);
    assert_eq!(peer.session.closed(), None);
    peer.session.tick(deadline, &mut peer.actions);
    peer.assert_closed(CloseReason::LoginTimeout);
    assert_eq!(peer.session.deadline(), None);
}

#[test]
fn a_connection_before_its_login_holds_little_memory() {
    let mut peer = peer();
    peer.piece = 1;
    let before = peer.arena.used();
    let mut bytes = peer.bytes(&login_request(SECURITY, None), &[], &[b'a'; 8192]);
    bytes.truncate(8000);
    peer.feed(&bytes);
    assert!(peer.session.input_held_bytes() <= 16 << 10);
    assert!(peer.arena.used() - before <= 16 << 10);
}

#[test]
fn a_login_without_memory_is_refused() {
    let mut peer = peer();
    peer.piece = 100;
    let bytes = peer.bytes(&login_request(SECURITY, None), &[], &text_of(NAMES));
    let hog: Vec<_> = std::iter::from_fn(|| peer.arena.take(1)).collect();
    peer.feed(&bytes);
    peer.assert_refused(LoginStatus::OUT_OF_RESOURCES);
    drop(hog);
}

#[test]
fn an_unexpected_answer_of_the_front_changes_nothing() {
    let mut peer = peer();
    peer.session.authorized(LoginDecision::Refused(LoginStatus::NOT_FOUND), &mut peer.actions);
    peer.session.established(Ok(1), &mut peer.actions);
    peer.assert_quiet();
    peer.login(OPERATIONAL, Some(FULL), &text_of(NAMES));
    peer.session.authorized(LoginDecision::Refused(LoginStatus::NOT_FOUND), &mut peer.actions);
    peer.assert_quiet();
    assert!(peer.session.is_established());
}

#[test]
fn obsolete_and_unknown_keys_are_answered() {
    let mut peer = peer();
    let offers = [("IFMarker", "No"), ("OFMarkInt", "2048"), ("X-com.example", "1"), ("ErrorRecoveryLevel", "2")];
    let got = peer.login(OPERATIONAL, Some(FULL), &text_of(&[NAMES, &offers].concat()));
    let pairs = got[0].pairs();
    for answer in
        [("IFMarker", "No"), ("OFMarkInt", "Reject"), ("X-com.example", "NotUnderstood"), ("ErrorRecoveryLevel", "0")]
    {
        assert!(pairs.contains(&answer), "{answer:?} in {pairs:?}");
    }
}

#[test]
fn a_first_burst_longer_than_a_burst_is_limited() {
    let offers = [("MaxBurstLength", "4096"), ("FirstBurstLength", "65536")];
    let peer = Peer::logged_in_with(Config::default(), &offers);
    assert_eq!((peer.session.parameters().max_burst, peer.session.parameters().first_burst), (4096, 4096));
}

#[test]
fn a_session_knows_its_names_even_if_the_login_fails_after_the_tsih() {
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    assert_eq!(peer.session.candidate(), None);
    peer.session.authorized(
        LoginDecision::Accepted { portal_group: 1, alias: None, challenge: None, offer: None, resumed: None },
        &mut peer.actions,
    );
    let deadline = peer.session.deadline().expect("a login has an end");
    peer.session.tick(deadline, &mut peer.actions);
    peer.assert_closed(CloseReason::LoginTimeout);
    peer.session.established(Ok(7), &mut peer.actions);
    assert_eq!(peer.session.candidate().map(|candidate| &*candidate.initiator), Some(INITIATOR));
    assert!(!peer.session.is_established());
}

#[test]
fn a_reinstated_connection_keeps_the_parameters_of_its_session() {
    // RFC 7143 6.3.4: the session goes on; only what belongs to a connection is negotiated again.
    let mut peer = peer();
    let header = LoginRequest { tsih: U16::new(0x1234), ..login_request(OPERATIONAL, Some(FULL)) };
    peer.send(&header, &text_of(&[NAMES, &[("MaxRecvDataSegmentLength", "4096")]].concat()));
    let parameters = Parameters {
        initial_r2t: false,
        max_burst: 65_536,
        header_digest: true,
        max_send_segment: 1024,
        ..Parameters::initial()
    };
    let (portal_group, resumed) = (1, Some(parameters));
    let decision = LoginDecision::Accepted { portal_group, alias: None, challenge: None, offer: None, resumed };
    peer.session.authorized(decision, &mut peer.actions);
    peer.session.established(Ok(0x1234), &mut peer.actions);
    assert_eq!(response(&mut peer).tsih.get(), 0x1234);
    let wanted = Parameters { header_digest: false, max_send_segment: 4096, ..parameters };
    assert_eq!(*peer.session.parameters(), wanted);
}

#[test]
fn the_stage_does_not_change_within_a_text() {
    // RFC 7143 6.3, 11.12: a stage ends by a request with the T bit, so CSG stays as long as the C bit continues a
    // text.
    let continued = |stage: Stage| {
        let header = login_request(stage, None);
        LoginRequest { flags: header.flags | CONTINUE, ..header }
    };
    for (first, second, next) in
        [(OPERATIONAL, SECURITY, FULL), (OPERATIONAL, SECURITY, OPERATIONAL), (SECURITY, OPERATIONAL, FULL)]
    {
        let mut peer = peer();
        let text = text_of(NAMES);
        peer.send(&continued(first), &text[..20]);
        assert_eq!(response(&mut peer).status.get(), 0);
        peer.send(&login_request(second, Some(next)), &text[20..]);
        assert!(peer.actions.iter().all(|action| !matches!(action, Action::Authorize(_))));
        peer.assert_refused(LoginStatus::INITIATOR_ERROR);
        assert!(peer.session.refusal_reason().is_some_and(|why| why.contains("stage")));
    }
    // Nor in a later text.
    let mut peer = peer();
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
    peer.send(&continued(OPERATIONAL), b"MaxBurst");
    peer.received();
    peer.send(&login_request(SECURITY, Some(FULL)), b"Length=65536\0");
    peer.assert_refused(LoginStatus::INITIATOR_ERROR);
}

#[test]
fn a_declaration_may_be_repeated_in_a_later_request() {
    // RFC 7143 6.2 allows a key once. Libiscsi with credentials repeats its name after AuthMethod.
    let mut peer = peer();
    peer.login(SECURITY, None, &text_of(&[NAMES, &[("AuthMethod", "CHAP,None")]].concat()));
    let repeated = [("InitiatorName", "IQN.2026-01.org.example:host"), ("TargetName", TARGET)];
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(&[&repeated[..], &[("SessionType", "Normal")]].concat()));
    peer.login(OPERATIONAL, Some(FULL), &text_of(NAMES));
    assert!(peer.session.is_established());
    for other in [("InitiatorName", "iqn.2026-01.org.example:other"), ("SessionType", "Discovery")] {
        let mut peer = self::peer();
        peer.login(SECURITY, None, &text_of(&[NAMES, &[("SessionType", "Normal")]].concat()));
        peer.send(&login_request(SECURITY, Some(OPERATIONAL)), &text_of(&[other]));
        peer.assert_refused(LoginStatus::INITIATOR_ERROR);
        assert_eq!(peer.session.refusal_reason(), Some(&*format!("{} was sent twice", other.0)));
    }
}

#[test]
fn a_refused_login_has_a_reason_for_the_log() {
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("TargetName", TARGET)], "InitiatorName is missing"),
        (&[("InitiatorName", INITIATOR)], "TargetName is missing"),
        (&[("InitiatorName", "host"), ("TargetName", TARGET)], "the value of InitiatorName is not valid"),
        (&[("InitiatorName", INITIATOR), ("TargetName", TARGET), ("CHAP_N", "x")], "CHAP_N is not accepted here"),
    ];
    for (pairs, why) in cases {
        let mut peer = peer();
        peer.send(&login_request(SECURITY, None), &text_of(pairs));
        peer.accept_login();
        assert!(matches!(peer.session.closed(), Some(CloseReason::LoginRefused(_))));
        assert_eq!(peer.session.refusal_reason(), Some(why));
    }
}

#[test]
fn numbers_with_leading_zeros_are_rejected() {
    // RFC 7143 6.1: a decimal constant begins with a digit that is not zero.
    let mut peer = peer();
    let offers = [("MaxBurstLength", "0065536"), ("FirstBurstLength", "0x0010000"), ("MaxOutstandingR2T", "01")];
    let got = peer.login(OPERATIONAL, Some(FULL), &text_of(&[NAMES, &offers].concat()));
    let pairs = got[0].pairs();
    for answer in [("MaxBurstLength", "Reject"), ("FirstBurstLength", "65536"), ("MaxOutstandingR2T", "Reject")] {
        assert!(pairs.contains(&answer), "{answer:?} in {pairs:?}");
    }
    assert_eq!(peer.session.parameters().max_outstanding_r2t, 1, "the default");
}

#[test]
fn names_may_have_characters_that_are_in_use_although_the_standard_has_none_of_them() {
    // RFC 7143 4.2.7.1 and RFC 3722 allow letters, digits, '-', '.' and ':'. Initiators in use have '_' and '/' as
    // well.
    let mut peer = peer();
    let names = [("InitiatorName", "iqn.2026-01.org.example:my_host/1"), ("TargetName", TARGET)];
    peer.login(OPERATIONAL, Some(FULL), &text_of(&names));
    assert!(peer.session.is_established());
    for bad in ["iqn.2026-01.org.example:a,b", "iqn.2026-01.org.example:a b", "iqn.2026-01.org.example:a\tb"] {
        let text = text_of(&[("InitiatorName", bad), ("TargetName", TARGET)]);
        assert_eq!(refused(&login_request(OPERATIONAL, Some(FULL)), &text), LoginStatus::INITIATOR_ERROR);
    }
}

#[test]
fn each_login_response_has_the_task_tag_of_its_request() {
    // Initiators use one tag for all requests of a login (RFC 7143 11.12). A change does no harm: it is accepted.
    let mut peer = peer();
    peer.login(SECURITY, Some(OPERATIONAL), &text_of(NAMES));
    peer.send(&LoginRequest { itt: U32::new(77), ..login_request(OPERATIONAL, Some(FULL)) }, &[]);
    peer.accept_login();
    assert_eq!(response(&mut peer).itt.get(), 77);
    assert!(peer.session.is_established());
}

#[test]
fn the_time_of_a_login_begins_after_its_turn() {
    let mut peer = peer();
    peer.send(&login_request(OPERATIONAL, Some(FULL)), &text_of(NAMES));
    let before = peer.session.deadline().expect("a login has an end");
    peer.session.extend_login(lunar_core::pace::TURN_MAX);
    peer.session.tick(before, &mut peer.actions);
    assert_eq!((peer.session.closed(), peer.session.deadline()), (None, Some(before + lunar_core::pace::TURN_MAX)));
}
