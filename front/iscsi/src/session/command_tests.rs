use super::*;
use crate::config::{Config, MISSING_TIMEOUT};
use crate::session::{Action, CloseReason, ProtocolMachine};
use crate::testing::{LUN, Peer, ReceivedPdu, data_out, text_request};
use crate::wire::{DataIn, NopIn, NopOut, Opcode, Reject, ScsiResponse, extended_cdb};
use lunar_core::step::FinalData;
use lunar_core::wire::be::U32;
use std::time::Duration;
use zerocopy::IntoBytes;

fn rejected(peer: &mut Peer) -> RejectReason {
    peer.only_pdu::<Reject>().0.reason
}

fn sense_of(peer: &mut Peer) -> (u8, u8, u8) {
    let (header, data) = peer.only_pdu::<ScsiResponse>();
    assert_eq!((header.status, data.len()), (CHECK_CONDITION, 20));
    (data[4], data[14], data[15])
}

fn with_ahs(peer: &Peer, header: &ScsiCommand, ahs: &[u8]) -> Vec<u8> {
    peer.bytes(header, ahs, &[])
}

#[test]
fn a_command_action_has_all_fields_of_the_pdu() {
    let mut peer = Peer::logged_in();
    let mut header = peer.scsi(0x1234, READ | FINAL, 4096);
    header.flags = FINAL | READ | 2;
    peer.send(&header, &[]);
    let command = peer.command();
    assert_eq!((command.tag, command.lun, command.attribute), (0x1234, LUN, 2));
    assert_eq!((command.data_in, command.data_out, command.cdb_len), (4096, 0, 16));
    assert_eq!((command.cdb[0], &command.cdb[16..]), (0x88, &[0; 16][..]));
}

#[test]
fn a_command_without_read_and_write_flags_expects_no_data() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, FINAL, 4096);
    peer.send(&header, &[]);
    let command = peer.command();
    assert_eq!((command.data_in, command.data_out), (0, 0));
}

/// Lets time pass; returns why the connection is closed then.
fn after(peer: &mut Peer, time: Duration) -> Option<CloseReason> {
    peer.now = peer.now + time;
    peer.session.tick(peer.now, &mut peer.actions);
    peer.session.closed()
}

#[test]
fn commands_behind_a_missing_cmdsn_time_out() {
    // RFC 7143 4.2.2.1: on one connection, CmdSN increases; what is missing does not come.
    let mut peer = Peer::logged_in();
    let (first, second, third) = (peer.scsi(1, READ | FINAL, 0), peer.scsi(2, READ | FINAL, 0), peer.next_cmd_sn());
    peer.send(&second, &[]);
    assert_eq!(peer.session.deadline(), Some(peer.now + MISSING_TIMEOUT));
    // The gap is closed in time; another one begins then.
    assert_eq!(after(&mut peer, MISSING_TIMEOUT - Duration::from_secs(1)), None);
    peer.send(&first, &[]);
    assert_eq!(peer.commands().len(), 2);
    assert_eq!(after(&mut peer, Duration::from_secs(2)), None);
    let fourth = peer.scsi(4, WRITE, 65_536);
    assert_eq!(fourth.cmd_sn.get(), third + 1);
    peer.send(&fourth, &[]);
    assert!(peer.arena.unsolicited() > 0);
    // The initiator is alive, and answers NOP-Ins: that does not help.
    assert_eq!(after(&mut peer, MISSING_TIMEOUT - Duration::from_secs(1)), None);
    let alive = NopOut { itt: U32::new(NO_TAG), ttt: U32::new(NO_TAG), ..NopOut::blank() };
    peer.send(&NopOut { first: alive.first.immediately(), ..alive }, &[]);
    assert_eq!(after(&mut peer, Duration::from_secs(1)), Some(CloseReason::MissingCommand));
    assert_eq!(peer.arena.unsolicited(), 0);
}

#[test]
fn a_cdb_of_32_bytes_is_accepted() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, READ | FINAL, 512);
    let mut cdb: Vec<u8> = (0..32).collect();
    cdb[..16].copy_from_slice(&header.cdb);
    let bytes = with_ahs(&peer, &header, &extended_cdb(&cdb));
    peer.feed(&bytes);
    let command = peer.command();
    assert_eq!((command.cdb_len, &command.cdb[..]), (32, &cdb[..]));
}

#[test]
fn a_cdb_longer_than_32_bytes_is_an_unknown_operation() {
    for len in [33, 64, 260] {
        let mut peer = Peer::logged_in();
        let header = peer.scsi(1, READ | FINAL, 512);
        let bytes = with_ahs(&peer, &header, &extended_cdb(&vec![0; len]));
        peer.feed(&bytes);
        assert_eq!(sense_of(&mut peer), (ILLEGAL_REQUEST, 0x20, 0));
        assert_eq!(peer.session.tasks(), 0);
    }
}

#[test]
fn a_bidirectional_command_is_refused() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, READ | WRITE | FINAL, 512);
    let bytes = with_ahs(&peer, &header, &[0, 5, 2, 0, 0, 0, 2, 0]);
    peer.feed(&bytes);
    assert_eq!(sense_of(&mut peer), (ILLEGAL_REQUEST, 0x0e, 3));
    let header = peer.scsi(1, READ | WRITE, 512);
    peer.send(&header, &[]);
    peer.assert_quiet();
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &[0; 512]);
    assert_eq!(sense_of(&mut peer), (ILLEGAL_REQUEST, 0x0e, 3));
}

#[test]
fn additional_headers_with_wrong_lengths_are_rejected() {
    let twice = [extended_cdb(&[0; 20]), extended_cdb(&[0; 20])].concat();
    // Longer than the segments present, shorter than its type needs, as short as the basic header allows.
    let cdbs = [&[0, 17, 1, 0, 1, 2, 3, 4][..], &[0, 0, 1, 0], &[0, 1, 1, 0], &twice];
    let others = [&[0, 99, 1, 0][..], &[0, 5, 2, 0, 0, 0, 2, 0, 1, 2, 3, 4], &[0, 1, 7, 0], &[0xff; 1020]];
    for bad in cdbs.into_iter().chain(others) {
        let mut peer = Peer::logged_in();
        let header = peer.scsi(1, READ | FINAL, 512);
        let bytes = with_ahs(&peer, &header, bad);
        peer.feed(&bytes);
        assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
        // The CmdSN is used, the task tag is not.
        peer.read(1, 512);
    }
}

#[test]
fn a_tag_that_is_in_use_is_rejected() {
    let mut peer = Peer::logged_in();
    let first = peer.read(1, 512);
    let header = peer.scsi(1, READ | FINAL, 512);
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::TASK_IN_PROGRESS);
    assert!(peer.session.reply(first.task, 0, &[], &mut FinalData::default(), 0));
    peer.received();
    peer.read(1, 512);
}

#[test]
fn commands_with_contradicting_flags_are_rejected() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(NO_TAG, READ | FINAL, 512);
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    let header = peer.scsi(1, READ, 512);
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    let mut header = peer.scsi(1, READ | FINAL, 512);
    header.flags |= ATTRIBUTE_MASK;
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    peer.read(1, 512);
}

#[test]
fn commands_are_executed_in_the_order_of_cmd_sn() {
    let mut peer = Peer::logged_in();
    let headers: Vec<ScsiCommand> = (1..=4).map(|itt| peer.scsi(itt, READ | FINAL, 512)).collect();
    for at in [2, 1, 3] {
        peer.send(&headers[at], &[]);
        peer.assert_quiet();
    }
    peer.send(&headers[0], &[]);
    let tags: Vec<u32> = peer.commands().iter().map(|command| command.tag).collect();
    assert_eq!(tags, [1, 2, 3, 4]);
}

#[test]
fn requests_of_all_kinds_wait_for_their_turn() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 512);
    let cmd_sn = U32::new(peer.next_cmd_sn());
    peer.send(&NopOut { itt: U32::new(2), ttt: U32::new(NO_TAG), cmd_sn, ..NopOut::blank() }, b"ping");
    let text = text_request(3, None, peer.next_cmd_sn(), false);
    peer.send(&text, b"X-a=b\0");
    let later = peer.scsi(4, READ | FINAL, 512);
    peer.send(&later, &[]);
    peer.assert_quiet();
    peer.send(&first, &[]);
    let opcodes: Vec<Opcode> = peer.received().iter().map(|got| got.header.opcode()).collect();
    assert_eq!(opcodes, [Opcode::NOP_IN, Opcode::TEXT_RESPONSE]);
    assert_eq!(peer.commands().len(), 2);
}

#[test]
fn data_of_a_held_command_is_kept() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 512);
    let second = peer.scsi(2, WRITE, 1024);
    peer.send(&second, &[1; 512]);
    peer.send(&data_out(2, NO_TAG, 0, 512, true), &[2; 512]);
    peer.assert_quiet();
    peer.send(&first, &[]);
    let command = peer.commands().remove(1);
    assert_eq!(peer.pull(command.task, 0, 1024), [[1; 512], [2; 512]].concat());
}

#[test]
fn requests_outside_the_window_are_ignored() {
    let mut peer = Peer::logged_in_with(Config { window: 4, ..Config::default() }, &[]);
    let first = peer.scsi(1, READ | FINAL, 512);
    peer.send(&first, &[]);
    peer.command();
    for cmd_sn in [99, 100, 104, 105, 100 + (1 << 31)] {
        let header = ScsiCommand { cmd_sn: U32::new(cmd_sn), itt: U32::new(2), ..first };
        peer.send(&header, &[]);
        peer.assert_quiet();
    }
    let held = ScsiCommand { cmd_sn: U32::new(103), itt: U32::new(4), ..first };
    peer.send(&held, &[]);
    let again = ScsiCommand { itt: U32::new(5), ..held };
    peer.send(&again, &[]);
    peer.assert_quiet();
    assert_eq!(peer.session.tasks(), 2);
    peer.send(&ScsiCommand { cmd_sn: U32::new(101), itt: U32::new(2), ..first }, &[]);
    peer.send(&ScsiCommand { cmd_sn: U32::new(102), itt: U32::new(3), ..first }, &[]);
    let tags: Vec<u32> = peer.commands().iter().map(|command| command.tag).collect();
    assert_eq!(tags, [2, 3, 4]);
}

#[test]
fn the_window_opens_with_every_response() {
    let mut peer = Peer::logged_in_with(Config { window: 2, ..Config::default() }, &[]);
    let first = peer.read(1, 0);
    peer.read(2, 0);
    let third = peer.scsi(3, FINAL, 0);
    peer.send(&third, &[]);
    peer.assert_quiet();
    peer.session.reply(first.task, 0, &[], &mut FinalData::default(), 0);
    let header = peer.only_pdu::<ScsiResponse>().0;
    assert_eq!((header.exp_cmd_sn.get(), header.max_cmd_sn.get()), (102, 102));
    peer.send(&third, &[]);
    assert_eq!(peer.command().tag, 3);
}

#[test]
fn cmd_sn_wraps_around() {
    let mut peer = Peer::new(Config::default());
    let header = crate::wire::LoginRequest {
        cmd_sn: U32::new(u32::MAX),
        exp_stat_sn: U32::new(u32::MAX),
        ..crate::testing::login_request(crate::wire::Stage::OPERATIONAL, Some(crate::wire::Stage::FULL_FEATURE))
    };
    peer.send(&header, &crate::testing::text_of(crate::testing::NAMES));
    peer.accept_login();
    peer.received();
    peer.cmd_sn = u32::MAX;
    for (itt, exp_cmd_sn) in [(1, 0), (2, 1)] {
        let command = peer.read(itt, 0);
        peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
        let header = peer.only_pdu::<ScsiResponse>().0;
        assert_eq!((header.stat_sn.get(), header.exp_cmd_sn.get()), (itt - 1, exp_cmd_sn));
    }
}

#[test]
fn immediate_commands_take_no_number_and_do_not_wait() {
    let mut peer = Peer::logged_in();
    let mut header = peer.scsi(1, READ | FINAL, 0);
    peer.cmd_sn -= 1;
    header.first = header.first.immediately();
    peer.send(&header, &[]);
    let command = peer.command();
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    let header = peer.only_pdu::<ScsiResponse>().0;
    assert_eq!((header.exp_cmd_sn.get(), header.max_cmd_sn.get()), (100, 227));
    peer.read(2, 0);
}

#[test]
fn too_many_immediate_commands_are_rejected() {
    let mut peer = Peer::logged_in();
    let mut tasks = Vec::new();
    for itt in 0..u32::try_from(IMMEDIATE_MAX).expect("small") {
        let mut header = peer.scsi(itt, READ | FINAL, 0);
        header.first = header.first.immediately();
        peer.send(&header, &[]);
        tasks.push(peer.command().task);
    }
    let mut header = peer.scsi(999, READ | FINAL, 0);
    header.first = header.first.immediately();
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::TOO_MANY_IMMEDIATE);
    peer.session.reply(tasks[0], 0, &[], &mut FinalData::default(), 0);
    peer.received();
    peer.send(&header, &[]);
    peer.command();
}

#[test]
fn tasks_are_limited_to_the_window_and_the_immediate_ones() {
    let mut peer = Peer::logged_in_with(Config { window: 8, ..Config::default() }, &[]);
    for itt in 0..1000 {
        let mut header = peer.scsi(itt, READ | FINAL, 0);
        if itt % 2 == 0 {
            header.first = header.first.immediately();
        }
        peer.send(&header, &[]);
    }
    assert!(peer.session.tasks() <= 8 + IMMEDIATE_MAX);
}

#[test]
fn a_discovery_session_has_no_commands() {
    let mut peer = Peer::discovering();
    let header = peer.scsi(1, READ | FINAL, 0);
    peer.send(&header, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
}

#[test]
fn a_rejected_command_out_of_order_keeps_its_number() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 0);
    let bad = peer.scsi(NO_TAG, READ | FINAL, 0);
    let third = peer.scsi(3, READ | FINAL, 0);
    peer.send(&bad, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::INVALID_FIELD);
    peer.send(&third, &[]);
    peer.send(&first, &[]);
    let tags: Vec<u32> = peer.commands().iter().map(|command| command.tag).collect();
    assert_eq!(tags, [1, 3]);
}

#[test]
fn a_failed_command_out_of_order_is_answered_in_its_turn() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 0);
    let bidirectional = peer.scsi(2, READ | WRITE | FINAL, 0);
    peer.send(&bidirectional, &[]);
    peer.assert_quiet();
    peer.send(&first, &[]);
    assert_eq!(peer.command().tag, 1);
    assert_eq!(sense_of(&mut peer), (ILLEGAL_REQUEST, 0x0e, 3));
}

#[test]
fn a_snack_is_rejected() {
    let mut peer = Peer::logged_in();
    peer.send(&crate::wire::Snack { itt: U32::new(1), ..crate::wire::Snack::blank() }, &[]);
    assert_eq!(rejected(&mut peer), RejectReason::SNACK);
}

#[test]
fn opcodes_of_responses_are_rejected() {
    let mut peer = Peer::logged_in();
    for opcode in [Opcode(0x07), Opcode(0x1c), Opcode::NOP_IN, Opcode::DATA_IN, Opcode::REJECT] {
        let header = NopIn { first: First::new(opcode), ..NopIn::blank() };
        peer.send(&header, b"data");
        assert_eq!(rejected(&mut peer), RejectReason::NOT_SUPPORTED, "{opcode:?}");
    }
    let (stage, next) = (crate::wire::Stage::OPERATIONAL, crate::wire::Stage::FULL_FEATURE);
    peer.send(&crate::testing::login_request(stage, Some(next)), &[]);
    assert_eq!(rejected(&mut peer), RejectReason::PROTOCOL_ERROR);
    assert_eq!(peer.session.closed(), None);
}

#[test]
fn a_reject_carries_the_rejected_header() {
    let mut peer = Peer::logged_in();
    let snack = crate::wire::Snack { itt: U32::new(1), run_len: U32::new(7), ..crate::wire::Snack::blank() };
    peer.send(&snack, &[]);
    let (reject, data) = peer.only_pdu::<Reject>();
    assert_eq!((reject.itt.get(), reject.stat_sn.get(), data), (NO_TAG, 501, snack.bhs().as_bytes().to_vec()));
    assert_eq!(peer.stats.rejects.get(), 1);
}

#[test]
fn a_header_digest_that_does_not_match_closes_the_connection() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("HeaderDigest", "CRC32C")]);
    let header = peer.scsi(1, READ | FINAL, 0);
    for piece in [usize::MAX, 1] {
        let mut peer = Peer::logged_in_with(Config::default(), &[("HeaderDigest", "CRC32C")]);
        peer.piece = piece;
        let mut bytes = peer.bytes(&header, &[], &[]);
        bytes[33] ^= 0x10;
        peer.feed(&bytes);
        peer.assert_closed(CloseReason::HeaderDigest);
        assert_eq!(peer.received(), []);
        assert_eq!((peer.stats.digest_errors.get(), peer.stats.protocol_errors.get()), (1, 1));
    }
}

#[test]
fn a_data_segment_over_the_declared_limit_closes_the_connection_early() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, WRITE | FINAL, 1 << 20);
    let mut bytes = peer.bytes(&header, &[], &vec![0; (256 << 10) + 1]);
    bytes.truncate(48);
    let used = peer.arena.used();
    peer.feed(&bytes);
    assert!(matches!(peer.session.closed(), Some(CloseReason::Malformed(_))));
    assert!(matches!(peer.actions[..], [Action::Close(_)]));
    assert!(peer.arena.used() <= used);
}

#[test]
fn additional_headers_of_other_requests_close_the_connection() {
    let mut peer = Peer::logged_in();
    let bytes = peer.bytes(&NopOut::blank(), &[0; 4], &[]);
    peer.feed(&bytes);
    assert!(matches!(peer.session.closed(), Some(CloseReason::Malformed(_))));
}

#[test]
fn a_closed_session_ignores_received_bytes() {
    let mut peer = Peer::logged_in();
    let running = peer.read(1, 512);
    let bytes = peer.bytes(&NopOut::blank(), &[0; 4], &[]);
    peer.feed(&bytes);
    peer.actions.clear();
    let header = peer.scsi(2, READ | FINAL, 0);
    let chunk = peer.arena.copy(&peer.bytes(&header, &[], &[])).expect("room");
    peer.session.receive(chunk, peer.now, &mut peer.actions);
    assert!(!peer.session.reply(running.task, 0, &[], &mut FinalData::default(), 0));
    assert!(peer.actions.is_empty());
    assert_eq!((peer.received(), peer.session.tasks()), (vec![], 0));
}

#[test]
fn an_exp_stat_sn_that_was_not_sent_is_ignored() {
    let mut peer = Peer::logged_in();
    let header = ScsiCommand { exp_stat_sn: U32::new(0x7000_0000), ..peer.scsi(1, READ | FINAL, 0) };
    peer.send(&header, &[]);
    let command = peer.command();
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    assert_eq!(peer.only_pdu::<ScsiResponse>().0.stat_sn.get(), 501);
}

#[test]
fn many_commands_in_one_chunk_are_answered_in_one_send() {
    let mut peer = Peer::logged_in();
    let mut bytes = Vec::new();
    for itt in 0..100 {
        let header = peer.scsi(itt, READ | FINAL, 512);
        bytes.extend(peer.bytes(&header, &[], &[]));
    }
    peer.feed(&bytes);
    let commands = peer.commands();
    assert_eq!(commands.len(), 100);
    for command in commands {
        let data = peer.arena.copy(&[7; 512]).expect("room");
        peer.session.reply(command.task, 0, &[], &mut FinalData { offset: 0, data: data.into() }, 512);
    }
    let got = peer.received();
    assert_eq!(got.iter().map(ReceivedPdu::pdu::<DataIn>).map(|header| header.itt.get()).max(), Some(99));
    assert_eq!((got.len(), got[99].pdu::<DataIn>().stat_sn.get()), (100, 600));
}
