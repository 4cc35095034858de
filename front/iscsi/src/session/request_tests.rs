use super::*;
use crate::config::{ANSWERS_MAX, Config};
use crate::session::{Command, CommandData, ProtocolMachine, PullResult, ReceiveMode, Responsible};
use crate::testing::{LUN, Peer, ReceivedPdu, data_out, pattern};
use crate::wire::{FINAL, First, NopIn, READ, ScsiResponse, WRITE};
use lunar_core::step::FinalData;

fn nop(peer: &mut Peer, itt: u32, ttt: u32) -> NopOut {
    let cmd_sn = U32::new(peer.next_cmd_sn());
    NopOut { lun: LUN, itt: U32::new(itt), ttt: U32::new(ttt), cmd_sn, ..NopOut::blank() }
}

fn immediate(opcode: Opcode) -> First {
    First::new(opcode).immediately()
}

/// An immediate task management function; its CmdSN is that of the next command.
fn function(peer: &Peer, function: Function, tag: u32, ref_cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest {
        first: immediate(Opcode::TASK_MANAGEMENT_REQUEST),
        flags: FINAL | function.0,
        lun: LUN,
        itt: U32::new(0x500),
        referenced_tag: U32::new(tag),
        cmd_sn: U32::new(peer.cmd_sn),
        ref_cmd_sn: U32::new(ref_cmd_sn),
        ..TaskManagementRequest::blank()
    }
}

fn managed(peer: &mut Peer) -> TaskManagement {
    let [Action::TaskManagement(management)] = peer.actions[..] else { panic!("{:?}", peer.actions) };
    peer.actions.clear();
    management
}

fn outcome(peer: &mut Peer) -> FunctionResponse {
    peer.only_pdu::<TaskManagementResponse>().0.response
}

fn logout(peer: &mut Peer, reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest {
        flags: FINAL | reason.0,
        itt: U32::new(0x600),
        cid: U16::new(cid),
        cmd_sn: U32::new(peer.next_cmd_sn()),
        ..LogoutRequest::blank()
    }
}

#[test]
fn a_nop_out_with_a_tag_is_echoed() {
    let mut peer = Peer::logged_in();
    let request = nop(&mut peer, 5, NO_TAG);
    peer.send(&request, b"hello");
    let (answer, data) = peer.only_pdu::<NopIn>();
    assert_eq!((answer.itt.get(), answer.ttt.get(), &data[..]), (5, NO_TAG, &b"hello"[..]));
    assert_eq!((answer.stat_sn.get(), answer.exp_cmd_sn.get(), answer.max_cmd_sn.get()), (501, 101, 228));
}

#[test]
fn an_immediate_nop_out_takes_no_number() {
    let mut peer = Peer::logged_in();
    let request = NopOut { first: immediate(Opcode::NOP_OUT), ..nop(&mut peer, 5, NO_TAG) };
    peer.send(&request, &[]);
    let answer = peer.only_pdu::<NopIn>().0;
    assert_eq!((answer.exp_cmd_sn.get(), answer.max_cmd_sn.get()), (100, 227));
}

#[test]
fn an_echo_is_cut_at_the_limit_of_the_initiator() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("MaxRecvDataSegmentLength", "512")]);
    let request = nop(&mut peer, 5, NO_TAG);
    peer.send(&request, &pattern(600));
    assert_eq!(peer.only_pdu::<NopIn>().1, pattern(512));
}

#[test]
fn a_nop_out_without_a_tag_is_not_answered() {
    let mut peer = Peer::logged_in();
    let request = NopOut { first: immediate(Opcode::NOP_OUT), ..nop(&mut peer, NO_TAG, NO_TAG) };
    peer.send(&request, b"data");
    peer.assert_quiet();
}

#[test]
fn a_nop_out_without_a_tag_must_be_immediate() {
    let mut peer = Peer::logged_in();
    let request = nop(&mut peer, NO_TAG, NO_TAG);
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::INVALID_FIELD);
}

#[test]
fn a_nop_out_with_a_wrong_digest_is_rejected() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("DataDigest", "CRC32C")]);
    let request = nop(&mut peer, 5, NO_TAG);
    let mut bytes = peer.bytes(&request, &[], b"ping");
    bytes[48] ^= 1;
    peer.feed(&bytes);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::DATA_DIGEST);
    peer.read(1, 0);
}

#[test]
fn a_nop_out_without_memory_for_its_data_is_rejected() {
    let mut peer = Peer::logged_in();
    let request = nop(&mut peer, 5, NO_TAG);
    let bytes = peer.bytes(&request, &[], &pattern(1000));
    let hog: Vec<_> = std::iter::from_fn(|| peer.arena.take(1)).collect();
    peer.piece = 500;
    peer.feed(&bytes);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::LONG_OPERATION);
    drop(hog);
}

#[test]
fn a_silent_initiator_is_pinged_and_then_disconnected() {
    let mut peer = Peer::logged_in();
    let (after, timeout) = (Config::default().ping_after, Config::default().ping_timeout);
    assert_eq!(peer.session.deadline(), Some(peer.now + after));
    peer.session.tick(peer.now + after, &mut peer.actions);
    let ping = peer.only_pdu::<NopIn>().0;
    assert_eq!((ping.itt.get(), ping.stat_sn.get()), (NO_TAG, 501));
    assert_ne!(ping.ttt.get(), NO_TAG);
    assert_eq!(peer.session.deadline(), Some(peer.now + after + timeout));
    peer.session.tick(peer.now + after + timeout, &mut peer.actions);
    peer.assert_closed(CloseReason::PingTimeout);
    assert_eq!(CloseReason::PingTimeout.responsible(), Responsible::Peer);
}

#[test]
fn an_initiator_that_answers_a_ping_stays_connected() {
    let mut peer = Peer::logged_in();
    let after = Config::default().ping_after;
    peer.session.tick(peer.now + after, &mut peer.actions);
    let ping = peer.only_pdu::<NopIn>().0;
    peer.now = peer.now + after;
    let answer = NopOut { first: immediate(Opcode::NOP_OUT), ..nop(&mut peer, NO_TAG, ping.ttt.get()) };
    peer.send(&answer, &[]);
    peer.assert_quiet();
    assert_eq!(peer.session.deadline(), Some(peer.now + after));
    // A NOP-In that asks for an answer has no status: it carries the next StatSN.
    peer.cmd_sn = 100;
    let command = peer.read(1, 0);
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    assert_eq!(peer.only_pdu::<ScsiResponse>().0.stat_sn.get(), 501);
}

#[test]
fn an_initiator_that_does_not_read_is_not_read_from() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("MaxRecvDataSegmentLength", "262144")]);
    let mut bytes = Vec::new();
    for itt in 0..10 {
        let request = nop(&mut peer, itt, NO_TAG);
        bytes.extend(peer.bytes(&request, &[], &pattern(100_000)));
    }
    peer.feed(&bytes);
    assert!(matches!(peer.session.receive_mode(), ReceiveMode::Paused));
    let queued = peer.session.queued_bytes();
    assert!(queued > ANSWERS_MAX && queued < ANSWERS_MAX + 110_000, "{queued}");
    // Received PDUs are handled when the queued replies were taken.
    let mut answers = 0;
    loop {
        answers += peer.received().len();
        peer.session.resume(&mut peer.actions);
        if peer.session.queued_bytes() == 0 {
            break;
        }
    }
    assert!(answers >= 3 && matches!(peer.session.receive_mode(), ReceiveMode::Chunk | ReceiveMode::Into(_)));
}

#[test]
fn abort_task_references_a_running_command() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 512);
    let request = function(&peer, Function::ABORT_TASK, 1, 100);
    peer.send(&request, &[]);
    let management = managed(&mut peer);
    assert_eq!((management.function, management.lun, management.tag), (Function::ABORT_TASK, LUN, 1));
    assert_eq!(management.referenced, Some(command.task));
    peer.session.drop_task(command.task);
    peer.session.function_done(management.task, FunctionResponse::COMPLETE, [0; 3]);
    let (answer, _) = peer.only_pdu::<TaskManagementResponse>();
    assert_eq!((answer.response, answer.itt.get()), (FunctionResponse::COMPLETE, 0x500));
    assert_eq!((answer.stat_sn.get(), answer.max_cmd_sn.get()), (501, 228));
    assert_eq!(peer.session.tasks(), 0);
    peer.session.function_done(management.task, FunctionResponse::COMPLETE, [0; 3]);
    peer.assert_quiet();
}

#[test]
fn abort_task_of_an_ended_command_finds_no_task() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 0);
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    peer.received();
    let request = function(&peer, Function::ABORT_TASK, 1, 100);
    peer.send(&request, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::NO_TASK);
}

#[test]
fn abort_task_of_a_command_that_has_not_arrived_prevents_it() {
    let mut peer = Peer::logged_in();
    let late = peer.scsi(1, READ | FINAL, 0);
    let request = function(&peer, Function::ABORT_TASK, 1, 100);
    peer.send(&request, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::COMPLETE);
    peer.send(&late, &[]);
    peer.assert_quiet();
    assert_eq!(peer.session.tasks(), 0);
    peer.read(2, 0);
}

#[test]
fn abort_task_of_a_later_command_number_finds_no_task() {
    let mut peer = Peer::logged_in();
    for ref_cmd_sn in [99, 100, 150, 500] {
        let request = function(&peer, Function::ABORT_TASK, 1, ref_cmd_sn);
        peer.send(&request, &[]);
        assert_eq!(outcome(&mut peer), FunctionResponse::NO_TASK);
    }
}

#[test]
fn abort_task_ends_a_held_command() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 0);
    let second = peer.scsi(2, READ | FINAL, 0);
    peer.send(&second, &[]);
    let request = function(&peer, Function::ABORT_TASK, 2, 101);
    peer.send(&request, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::COMPLETE);
    peer.send(&first, &[]);
    assert_eq!(peer.command().tag, 1);
    peer.read(3, 0);
}

/// A write whose reply waits for the end of its data.
fn draining(peer: &mut Peer) -> Command {
    let header = peer.scsi(1, WRITE, 1024);
    peer.send(&header, &[]);
    let command = peer.command();
    peer.session.reply(command.task, 2, &[1; 18], &mut FinalData::default(), 0);
    peer.assert_quiet();
    command
}

#[test]
fn abort_task_ends_a_command_whose_reply_waits() {
    let mut peer = Peer::logged_in();
    draining(&mut peer);
    let request = function(&peer, Function::ABORT_TASK, 1, 100);
    peer.send(&request, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::COMPLETE);
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &[0; 1024]);
    peer.assert_quiet();
    assert_eq!(peer.session.tasks(), 0);
}

#[test]
fn a_reset_ends_commands_that_are_not_running() {
    for (which, lun, left) in [
        (Function::LOGICAL_UNIT_RESET, LUN, 1),
        (Function::ABORT_TASK_SET, LUN, 1),
        (Function::CLEAR_TASK_SET, LUN, 1),
        (Function::LOGICAL_UNIT_RESET, [0; 8], 3),
        (Function::TARGET_WARM_RESET, [0; 8], 1),
        (Function::TARGET_COLD_RESET, [0; 8], 1),
        (Function::CLEAR_ACA, LUN, 3),
    ] {
        let mut peer = Peer::logged_in();
        draining(&mut peer);
        let _missing = peer.next_cmd_sn();
        let held = peer.scsi(3, READ | FINAL, 0);
        peer.send(&held, &[]);
        let request = TaskManagementRequest { lun, ..function(&peer, which, NO_TAG, 0) };
        peer.send(&request, &[]);
        assert_eq!(peer.session.tasks(), left, "{which:?}");
        let management = managed(&mut peer);
        assert_eq!((management.function, management.referenced), (which, None));
        peer.session.function_done(management.task, FunctionResponse::COMPLETE, [0; 3]);
        assert_eq!(outcome(&mut peer), FunctionResponse::COMPLETE);
    }
}

#[test]
fn a_reset_does_not_end_later_commands() {
    let mut peer = Peer::logged_in();
    let request = function(&peer, Function::LOGICAL_UNIT_RESET, NO_TAG, 0);
    let _missing = peer.next_cmd_sn();
    let held = peer.scsi(3, READ | FINAL, 0);
    peer.send(&held, &[]);
    peer.send(&request, &[]);
    assert_eq!(peer.session.tasks(), 2);
}

#[test]
fn a_function_out_of_order_waits_for_its_turn() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 0);
    let request = TaskManagementRequest {
        first: First::new(Opcode::TASK_MANAGEMENT_REQUEST),
        cmd_sn: U32::new(peer.next_cmd_sn()),
        ..function(&peer, Function::ABORT_TASK, 1, 100)
    };
    peer.send(&request, &[]);
    peer.assert_quiet();
    peer.send(&first, &[]);
    assert!(matches!(peer.actions[..], [Action::Command(_), Action::TaskManagement(_)]));
}

#[test]
fn task_reassign_is_not_supported() {
    let mut peer = Peer::logged_in();
    peer.read(1, 0);
    let request = function(&peer, Function::TASK_REASSIGN, 1, 100);
    peer.send(&request, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::REASSIGN_NOT_SUPPORTED);
}

#[test]
fn functions_of_rfc_7144_need_protocol_level_2() {
    let level = Config { protocol_level: 2, ..Config::default() };
    for code in [0, 9, 10, 11, 12, 13, 127] {
        let mut peer = Peer::logged_in();
        let request = function(&peer, Function(code), 1, 100);
        peer.send(&request, &[]);
        assert_eq!(outcome(&mut peer), FunctionResponse::NOT_SUPPORTED);
        let mut peer = Peer::logged_in_with(level.clone(), &[("iSCSIProtocolLevel", "2")]);
        peer.send(&request, &[]);
        if (9..=12).contains(&code) {
            let management = managed(&mut peer);
            assert_eq!(management.function, Function(code));
            peer.session.function_done(management.task, FunctionResponse::SUCCEEDED, [0x16, 0x2a, 0x09]);
            let (answer, _) = peer.only_pdu::<TaskManagementResponse>();
            assert_eq!((answer.response, answer.information), (FunctionResponse::SUCCEEDED, [0x16, 0x2a, 0x09]));
        } else {
            assert_eq!(outcome(&mut peer), FunctionResponse::NOT_SUPPORTED);
        }
    }
}

#[test]
fn a_function_with_a_tag_in_use_is_rejected() {
    let mut peer = Peer::logged_in();
    peer.read(0x500, 0);
    let request = function(&peer, Function::ABORT_TASK, 0x500, 100);
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::TASK_IN_PROGRESS);
    let request = TaskManagementRequest { itt: U32::new(NO_TAG), ..request };
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::INVALID_FIELD);
}

#[test]
fn a_function_that_references_a_function_finds_no_task() {
    let mut peer = Peer::logged_in();
    let request = function(&peer, Function::LOGICAL_UNIT_RESET, NO_TAG, 0);
    peer.send(&request, &[]);
    let first = managed(&mut peer);
    let second = TaskManagementRequest { itt: U32::new(0x501), ..function(&peer, Function::ABORT_TASK, 0x500, 99) };
    peer.send(&second, &[]);
    assert_eq!(outcome(&mut peer), FunctionResponse::NO_TASK);
    // The key of a function is not the key of a command.
    assert!(!peer.session.reply(first.task, 0, &[], &mut FinalData::default(), 0));
    assert!(matches!(peer.session.pull(first.task, 0, 1), PullResult::Failed(_)));
    assert_eq!(peer.session.tasks(), 1);
}

#[test]
fn too_many_functions_are_rejected() {
    let mut peer = Peer::logged_in();
    let count = u32::try_from(IMMEDIATE_MAX).expect("small");
    for itt in 0..=count {
        let request =
            TaskManagementRequest { itt: U32::new(itt), ..function(&peer, Function::LOGICAL_UNIT_RESET, NO_TAG, 0) };
        peer.send(&request, &[]);
    }
    assert_eq!(peer.actions.len(), IMMEDIATE_MAX);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::TOO_MANY_IMMEDIATE);
}

#[test]
fn a_discovery_session_has_no_functions() {
    let mut peer = Peer::discovering();
    let request = function(&peer, Function::LOGICAL_UNIT_RESET, NO_TAG, 0);
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::PROTOCOL_ERROR);
}

#[test]
fn a_logout_ends_the_session() {
    for (reason, cid) in [(LogoutReason::CLOSE_SESSION, 99), (LogoutReason::CLOSE_CONNECTION, 3)] {
        let mut peer = Peer::logged_in();
        let running = peer.read(1, 512);
        let request = logout(&mut peer, reason, cid);
        peer.send(&request, &[]);
        let (answer, _) = peer.only_pdu::<LogoutResponse>();
        assert_eq!((answer.response, answer.itt.get(), answer.stat_sn.get()), (LogoutOutcome::CLOSED, 0x600, 501));
        assert_eq!((answer.time_to_wait.get(), answer.time_to_retain.get()), (2, 20));
        peer.assert_closed(CloseReason::LoggedOut);
        assert_eq!(CloseReason::LoggedOut.responsible(), Responsible::Nobody);
        assert!(!peer.session.reply(running.task, 0, &[], &mut FinalData::default(), 0));
        assert_eq!(peer.received(), []);
    }
}

#[test]
fn an_invalid_logout_does_not_end_the_session() {
    let mut peer = Peer::logged_in();
    for (reason, cid, response) in [
        (LogoutReason::CLOSE_CONNECTION, 4, LogoutOutcome::NO_CONNECTION),
        (LogoutReason::RECOVER_CONNECTION, 3, LogoutOutcome::RECOVERY_NOT_SUPPORTED),
    ] {
        let request = logout(&mut peer, reason, cid);
        peer.send(&request, &[]);
        assert_eq!(peer.only_pdu::<LogoutResponse>().0.response, response);
    }
    let request = logout(&mut peer, LogoutReason(9), 3);
    peer.send(&request, &[]);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::INVALID_FIELD);
    peer.assert_quiet();
}

#[test]
fn a_logout_waits_for_its_turn() {
    let mut peer = Peer::logged_in();
    let first = peer.scsi(1, READ | FINAL, 0);
    let request = logout(&mut peer, LogoutReason::CLOSE_SESSION, 3);
    let after = peer.scsi(2, READ | FINAL, 0);
    peer.send(&request, &[]);
    peer.send(&after, &[]);
    peer.assert_quiet();
    peer.send(&first, &[]);
    assert_eq!(peer.received().iter().map(ReceivedPdu::pdu::<LogoutResponse>).count(), 1);
    assert!(matches!(peer.actions[..], [Action::Command(_), Action::Close(CloseReason::LoggedOut)]));
}

#[test]
fn the_target_requests_a_logout() {
    let mut peer = Peer::logged_in();
    peer.session.request_logout(Duration::from_secs(10), peer.now);
    let message = peer.only_pdu::<AsyncMessage>().0;
    assert_eq!((message.event, message.parameter3.get()), (AsyncEvent::REQUEST_LOGOUT, 10));
    assert_eq!((message.itt.get(), message.stat_sn.get()), (NO_TAG, 501));
    peer.session.request_logout(Duration::from_secs(10), peer.now);
    peer.assert_quiet();
    let by = peer.now + Duration::from_secs(10);
    assert_eq!(peer.session.deadline(), Some(by));
    peer.session.tick(by, &mut peer.actions);
    peer.assert_closed(CloseReason::LogoutTimeout);
}

#[test]
fn asynchronous_messages_take_a_status_number() {
    let mut peer = Peer::logged_in();
    peer.session.send_async_message(AsyncEvent::DROPS_CONNECTION, [3, 2, 0]);
    peer.session.send_async_message(AsyncEvent::DROPS_SESSION, [0, 2, 0]);
    let got = peer.received();
    assert_eq!(got[0].pdu::<AsyncMessage>().parameter1.get(), 3);
    assert_eq!(got[1].pdu::<AsyncMessage>().stat_sn.get(), 502);
    let mut fresh = Peer::new(Config::default());
    fresh.session.send_async_message(AsyncEvent::DROPS_SESSION, [0; 3]);
    fresh.session.request_logout(Duration::ZERO, fresh.now);
    fresh.assert_quiet();
}

#[test]
fn payload_of_held_requests_is_limited() {
    let mut peer = Peer::logged_in_with(Config { unsolicited_max: 10_000, ..Config::default() }, &[]);
    let first = nop(&mut peer, 1, NO_TAG);
    for itt in 2..5 {
        let request = nop(&mut peer, itt, NO_TAG);
        peer.send(&request, &pattern(1000));
    }
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::LONG_OPERATION);
    peer.send(&first, &[]);
    assert_eq!(peer.received().len(), 3);
    let request = nop(&mut peer, 1, NO_TAG);
    peer.send(&request, &[]);
    assert_eq!(peer.received().len(), 1);
}
