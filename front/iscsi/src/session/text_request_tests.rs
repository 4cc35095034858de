use super::*;
use crate::config::Config;
use crate::session::CloseReason;
use crate::testing::{INITIATOR, Peer, TARGET, text_of, text_request};
use crate::wire::{AsyncEvent, AsyncMessage, Reject};

fn all() -> Vec<u8> {
    text_of(&[("SendTargets", "All")])
}

fn query(peer: &mut Peer) -> SendTargetsQuery {
    let actions = std::mem::take(&mut peer.actions);
    let [Action::SendTargets(query)] = &actions[..] else { panic!("{actions:?}") };
    query.clone()
}

fn send_text(peer: &mut Peer, text: &[u8]) {
    let request = text_request(8, None, peer.next_cmd_sn(), false);
    peer.send(&request, text);
}

fn addresses(name: &str) -> TargetAddresses {
    let portals = [("192.0.2.1:3260", 1), ("[2001:db8::1]:3261", 2)];
    TargetAddresses {
        name: name.into(),
        portals: portals.map(|(address, group)| (address.parse().expect("an address"), group)).into(),
    }
}

fn rejected(peer: &mut Peer) -> RejectReason {
    peer.only_pdu::<Reject>().0.reason
}

#[test]
fn a_discovery_session_lists_all_targets() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &all());
    assert_eq!(query(&mut peer), SendTargetsQuery::All);
    peer.assert_quiet();
    peer.session.targets(&[addresses("iqn.a"), addresses("iqn.b")]);
    let got = peer.received();
    let header: TextResponse = got[0].pdu();
    assert_eq!((got.len(), header.flags, header.itt.get(), header.ttt.get()), (1, FINAL, 8, NO_TAG));
    assert_eq!(
        got[0].pairs(),
        [
            ("TargetName", "iqn.a"),
            ("TargetAddress", "192.0.2.1:3260,1"),
            ("TargetAddress", "[2001:db8::1]:3261,2"),
            ("TargetName", "iqn.b"),
            ("TargetAddress", "192.0.2.1:3260,1"),
            ("TargetAddress", "[2001:db8::1]:3261,2"),
        ]
    );
}

#[test]
fn without_targets_the_answer_is_empty() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &all());
    query(&mut peer);
    peer.session.targets(&[]);
    let (header, data) = peer.only_pdu::<TextResponse>();
    assert_eq!((header.flags, data.len()), (FINAL, 0));
}

#[test]
fn a_target_can_be_queried_by_name() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &text_of(&[("SendTargets", "IQN.X")]));
    assert_eq!(query(&mut peer), SendTargetsQuery::One("iqn.x".into()));
    let mut peer = Peer::logged_in();
    send_text(&mut peer, &text_of(&[("SendTargets", TARGET)]));
    assert_eq!(query(&mut peer), SendTargetsQuery::One(TARGET.into()));
}

#[test]
fn a_normal_session_lists_its_own_target_only() {
    for value in ["", "All", TARGET] {
        let mut peer = Peer::logged_in();
        send_text(&mut peer, &text_of(&[("SendTargets", value)]));
        assert_eq!(query(&mut peer), SendTargetsQuery::One(TARGET.into()));
    }
}

#[test]
fn other_queries_are_answered_with_reject() {
    let refusal = [("SendTargets", "Reject")];
    let mut peer = Peer::logged_in();
    for value in ["all", "iqn.other", INITIATOR] {
        send_text(&mut peer, &text_of(&[("SendTargets", value)]));
        assert_eq!(peer.received()[0].pairs(), refusal);
    }
    let mut peer = Peer::discovering();
    send_text(&mut peer, &text_of(&[("SendTargets", "")]));
    assert_eq!(peer.received()[0].pairs(), refusal);
}

#[test]
fn a_long_answer_takes_several_responses() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &all());
    query(&mut peer);
    let targets: Vec<TargetAddresses> = (0..300).map(|count| addresses(&format!("iqn.x:{count:03}"))).collect();
    peer.session.targets(&targets);
    let (first, mut text) = peer.only_pdu::<TextResponse>();
    assert_eq!((first.flags, text.len()), (CONTINUE, 8192));
    let mut ttt = first.ttt.get();
    loop {
        assert_ne!(ttt, NO_TAG);
        let request = text_request(8, Some(ttt), peer.next_cmd_sn(), false);
        peer.send(&request, &[]);
        let (next, part) = peer.only_pdu::<TextResponse>();
        text.extend(part);
        assert_ne!(next.ttt.get(), ttt);
        ttt = next.ttt.get();
        if next.flags == FINAL {
            break;
        }
        assert_eq!(next.flags, CONTINUE);
    }
    assert_eq!(ttt, NO_TAG);
    assert_eq!(text::pairs(&text).filter(|pair| matches!(pair, Ok(("TargetName", _)))).count(), 300);
}

#[test]
fn an_answer_is_divided_at_the_limit_of_the_initiator() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("MaxRecvDataSegmentLength", "512")]);
    send_text(&mut peer, &text_of(&[("SendTargets", "")]));
    query(&mut peer);
    peer.session.targets(&[addresses(&format!("iqn.{}", "x".repeat(1000)))]);
    assert_eq!(peer.only_pdu::<TextResponse>().1.len(), 512);
}

#[test]
fn a_new_exchange_ends_an_unfinished_one() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &all());
    query(&mut peer);
    peer.session.targets(&[addresses(&format!("iqn.{}", "x".repeat(9000)))]);
    let old = peer.only_pdu::<TextResponse>().0.ttt.get();
    send_text(&mut peer, &text_of(&[("X-a", "b")]));
    assert_eq!(peer.received()[0].pairs(), [("X-a", "NotUnderstood")]);
    let request = text_request(8, Some(old), peer.next_cmd_sn(), false);
    peer.send(&request, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
}

#[test]
fn a_text_may_take_several_requests() {
    let mut peer = Peer::discovering();
    let text = all();
    let request = text_request(8, None, peer.next_cmd_sn(), true);
    peer.send(&request, &text[..5]);
    let (answer, data) = peer.only_pdu::<TextResponse>();
    assert_eq!((answer.flags, data.len()), (0, 0));
    let request = text_request(8, Some(answer.ttt.get()), peer.next_cmd_sn(), false);
    peer.send(&request, &text[5..]);
    assert_eq!(query(&mut peer), SendTargetsQuery::All);
}

#[test]
fn an_initiator_with_more_text_is_asked_for_it() {
    let mut peer = Peer::discovering();
    let mut request = text_request(8, None, peer.next_cmd_sn(), false);
    request.flags = 0;
    peer.send(&request, &all());
    query(&mut peer);
    peer.session.targets(&[addresses("iqn.a")]);
    let (answer, _) = peer.only_pdu::<TextResponse>();
    assert_eq!(answer.flags, 0);
    let request = text_request(8, Some(answer.ttt.get()), peer.next_cmd_sn(), false);
    peer.send(&request, &text_of(&[("X-b", "c")]));
    let got = peer.received();
    assert_eq!((got[0].pdu::<TextResponse>().flags, got[0].pairs()), (FINAL, vec![("X-b", "NotUnderstood")]));
}

#[test]
fn a_text_that_is_too_long_is_rejected() {
    let mut peer = Peer::discovering();
    let mut ttt = None;
    for _ in 0..TEXT_MAX / 4096 {
        let request = text_request(8, ttt, peer.next_cmd_sn(), true);
        peer.send(&request, &[b'a'; 4096]);
        ttt = Some(peer.only_pdu::<TextResponse>().0.ttt.get());
    }
    let request = text_request(8, ttt, peer.next_cmd_sn(), true);
    peer.send(&request, &[b'a'; 4]);
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    // Too long in one PDU.
    let mut peer = Peer::logged_in();
    send_text(&mut peer, &[b'a'; TEXT_MAX + 1]);
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    peer.assert_quiet();
}

#[test]
fn a_second_text_request_before_the_answer_is_rejected() {
    let mut peer = Peer::discovering();
    send_text(&mut peer, &all());
    query(&mut peer);
    send_text(&mut peer, &all());
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    peer.session.targets(&[addresses("iqn.a")]);
    assert_eq!(peer.received()[0].pairs().len(), 3);
    peer.session.targets(&[addresses("iqn.a")]);
    peer.assert_quiet();
}

#[test]
fn malformed_text_is_rejected() {
    let mut peer = Peer::logged_in();
    for bad in [&b"SendTargets=All"[..], b"SendTargets\0", b"=\0", b"A=\xff\0"] {
        send_text(&mut peer, bad);
        assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    }
    let twice = text_of(&[("SendTargets", ""), ("SendTargets", "")]);
    send_text(&mut peer, &twice);
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    let many: Vec<(&str, &str)> = vec![("X-a", ""); PAIRS_MAX + 1];
    send_text(&mut peer, &text_of(&many));
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
}

#[test]
fn text_without_a_tag_and_with_contradicting_flags_is_rejected() {
    let mut peer = Peer::logged_in();
    let mut request = text_request(8, None, peer.next_cmd_sn(), true);
    request.flags |= FINAL;
    peer.send(&request, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    let request = text_request(NO_TAG, None, peer.next_cmd_sn(), false);
    peer.send(&request, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    let request = text_request(8, Some(3), peer.next_cmd_sn(), false);
    peer.send(&request, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
}

#[test]
fn an_empty_text_without_the_final_flag_is_answered() {
    let mut peer = Peer::logged_in();
    let request = text_request(8, None, peer.next_cmd_sn(), true);
    peer.send(&request, &[]);
    let answer = peer.only_pdu::<TextResponse>().0;
    let request = text_request(8, Some(answer.ttt.get()), peer.next_cmd_sn(), false);
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<TextResponse>().0.flags, FINAL);
}

#[test]
fn the_initiator_may_declare_its_segment_limit_again() {
    let mut peer = Peer::logged_in();
    send_text(&mut peer, &text_of(&[("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "512")]));
    assert_eq!(peer.received()[0].pairs(), [("MaxBurstLength", "Reject")]);
    assert_eq!((peer.session.parameters().max_send_segment, peer.session.parameters().max_burst), (1024, 262_144));
    let command = peer.read(1, 2048);
    let data = peer.arena.copy(&[0; 2048]).expect("room").into();
    peer.session.reply(command.task, 0, &[], &mut lunar_core::step::FinalData { offset: 0, data }, 2048);
    assert_eq!(peer.received().len(), 2);
}

#[test]
fn a_discovery_session_has_a_lifetime() {
    use crate::config::{DISCOVERY_LIFETIME, DISCOVERY_LOGOUT};
    let mut peer = Peer::discovering();
    let start = peer.now;
    // It is busy, and answers NOP-Ins: that does not prolong it.
    while peer.now < start + DISCOVERY_LIFETIME {
        peer.now = peer.now + DISCOVERY_LIFETIME / 6;
        send_text(&mut peer, &all());
        query(&mut peer);
        peer.session.targets(&[addresses("iqn.a")]);
        assert_eq!(peer.received().len(), 1);
        assert!(peer.session.deadline().is_some_and(|at| at <= start + DISCOVERY_LIFETIME));
    }
    peer.session.tick(peer.now, &mut peer.actions);
    // RFC 7143 11.9.1, event 1: the target requests a logout.
    assert_eq!(peer.only_pdu::<AsyncMessage>().0.event, AsyncEvent::REQUEST_LOGOUT);
    assert_eq!(peer.session.deadline(), Some(peer.now + DISCOVERY_LOGOUT));
    peer.session.tick(peer.now + DISCOVERY_LOGOUT, &mut peer.actions);
    peer.assert_closed(CloseReason::LogoutTimeout);
}
