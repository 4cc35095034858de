use super::*;
use crate::config::IN_CAPSULE_MAX;
use crate::fuzzing::{Rig, capsule, h2c_data};
use crate::wire::{C2hData, LAST, R2t, digest};
use zerocopy::FromZeros;

/// SGL descriptor types: data block at an offset of the capsule, transport data block.
const INLINE: u8 = 0x01;
const TRANSPORT: u8 = 0x5a;

/// A command that transfers `len` bytes.
fn sqe(opcode: u8, cid: u16, kind: u8, len: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags, sqe.cid, sqe.nsid, sqe.sgl.kind) = (opcode, 0x40, cid.into(), 1.into(), kind);
    sqe.sgl.length = len.into();
    sqe
}

fn read(cid: u16, len: u32) -> Sqe {
    sqe(2, cid, TRANSPORT, len)
}

fn write(cid: u16, kind: u8, len: u32) -> Sqe {
    sqe(1, cid, kind, len)
}

/// The command identifier and the status of the response capsule at the end of `bytes`, which has no digest.
fn response(bytes: &[u8]) -> (u16, Status) {
    let capsule = CapsuleResp::of(&bytes[bytes.len() - 24..]).expect("a response");
    let digest = if capsule.common.flags & HEADER_DIGEST == 0 { 0 } else { 4 };
    assert_eq!((capsule.common.kind, capsule.common.len.get()), (5, 24 + digest));
    (capsule.cid.get(), Status(capsule.status.get() >> 1 & 0x7ff))
}

/// The fatal error status and information of the termination request.
fn termination(rig: &mut Rig) -> (FatalStatus, u32) {
    let bytes = rig.sent();
    let request = TermReq::of(&bytes).expect("a termination request");
    assert_eq!((request.common.kind, request.common.len.get() as usize), (3, bytes.len()));
    assert!(rig.session.closed().is_some());
    (FatalStatus(request.status.get()), request.information.get())
}

#[test]
fn a_connection_is_initialized_and_connects_its_queue() {
    let mut rig = Rig::default();
    let request = IcReq { digests: 3, alignment: 1, max_r2t: 0.into(), ..IcReq::blank(0) };
    rig.receive(request.as_bytes());
    let golden = [&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4, 0][..], &[0; 112]].concat();
    assert_eq!(rig.sent(), golden);
    assert!(!rig.session.is_live());
    let mut connect = sqe(0x7f, 0, INLINE, 1024);
    connect.nsid = 1.into();
    rig.receive(&capsule(&connect, &[7; 1024], 3));
    assert!(
        matches!(&rig.actions[..], [Action::Connect(_, command, data)] if command.sent == 1024 && data.len() == 1024)
    );
    rig.perform_actions();
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[8], sent[1], rig.session.is_live()), (28, 1, 1, true));
    assert_eq!(sent[24..], digest(&sent[..24]));
}

#[test]
fn no_command_is_executed_before_connect() {
    let mut rig = Rig::default();
    rig.receive(IcReq::blank(0).as_bytes());
    rig.receive(&capsule(&read(7, 512), &[], 0));
    assert!(rig.actions.is_empty());
    assert_eq!(response(&rig.sent()), (7, Status::SEQUENCE_ERROR));
    rig.receive(&h2c_data(7, 0, 0, &[1; 8], LAST, 0));
    assert_eq!(termination(&mut rig), (FatalStatus::SEQUENCE, 0));
}

#[test]
fn the_first_pdu_must_be_a_valid_icreq() {
    let first = |bytes: &[u8]| {
        let mut rig = Rig::default();
        rig.receive(bytes);
        termination(&mut rig)
    };
    assert_eq!(first(&capsule(&read(0, 0), &[], 0)), (FatalStatus::SEQUENCE, 0));
    assert_eq!(first(IcResp::blank(0).as_bytes()), (FatalStatus::INVALID_HEADER, 0));
    assert_eq!(first(&[0x55; 128]), (FatalStatus::INVALID_HEADER, 0));
    // A header length below that of the common header.
    assert_eq!(first(&[0x0a, 0x81, 0, 0, 0, 0, 0, 0]), (FatalStatus::INVALID_HEADER, 0));
    let other = |request: IcReq| first(request.as_bytes());
    assert_eq!(other(IcReq { version: 1.into(), ..IcReq::blank(0) }), (FatalStatus::UNSUPPORTED, 8));
    assert_eq!(other(IcReq { alignment: 32, ..IcReq::blank(0) }), (FatalStatus::INVALID_HEADER, 10));
    assert_eq!(other(IcReq { digests: 4, ..IcReq::blank(0) }), (FatalStatus::INVALID_HEADER, 11));
    let mut long = IcReq::blank(0);
    long.common.len = 132.into();
    assert_eq!(other(long), (FatalStatus::INVALID_HEADER, 4));
    let mut twice = Rig::default();
    twice.receive(IcReq::blank(0).as_bytes());
    twice.sent();
    twice.receive(IcReq::blank(0).as_bytes());
    assert_eq!(termination(&mut twice), (FatalStatus::SEQUENCE, 0));
}

#[test]
fn in_capsule_data_is_pulled() {
    for digests in 0..4 {
        for step in [1, 7, 64, 5000] {
            let mut rig = Rig::live(digests);
            let data: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
            let bytes = capsule(&write(9, INLINE, 4096), &data, digests);
            bytes.chunks(step).for_each(|part| rig.receive(part));
            rig.perform_actions();
            assert_eq!(rig.pulled, [data]);
            let sent = rig.sent();
            assert_eq!(response(&sent[..24]), (9, Status::SUCCESS));
        }
    }
}

#[test]
fn requested_data_may_arrive_in_parts() {
    for digests in 0..4 {
        let mut rig = Rig::live(digests);
        rig.receive(&capsule(&write(9, TRANSPORT, 100_000), &[], digests));
        rig.perform_actions();
        let sent = rig.sent();
        let r2t = R2t::of(&sent).expect("a request");
        assert_eq!((r2t.common.kind, r2t.offset.get(), r2t.data_len.get()), (9, 0, 100_000));
        let data: Vec<u8> = (0..100_000_u32).map(|at| (at >> 3) as u8).collect();
        rig.receive(&h2c_data(9, r2t.tag.get(), 0, &data[..60_000], 0, digests));
        rig.perform_actions();
        assert!(rig.pulled.is_empty());
        rig.receive(&h2c_data(9, r2t.tag.get(), 60_000, &data[60_000..], LAST, digests));
        rig.perform_actions();
        assert_eq!(rig.pulled, [data]);
        assert_eq!(response(&rig.sent()[..24]), (9, Status::SUCCESS));
    }
}

#[test]
fn a_read_is_answered_with_data_and_a_response() {
    let mut rig = Rig::live(0);
    rig.receive(&capsule(&read(3, 4096), &[], 0));
    rig.perform_actions();
    let sent = rig.sent();
    let data = C2hData::of(&sent).expect("data");
    assert_eq!((data.common.kind, data.common.flags, data.data_len.get()), (7, LAST, 4096));
    assert_eq!((sent.len(), response(&sent)), (24 + 4096 + 24, (3, Status::SUCCESS)));
}

#[test]
fn without_flow_control_a_read_has_no_response() {
    let mut rig = Rig::default();
    rig.receive(IcReq::blank(0).as_bytes());
    rig.receive(&capsule(&sqe(0x7f, 0, INLINE, 8), &[0; 8], 0));
    for action in std::mem::take(&mut rig.actions) {
        if let Action::Connect(key, ..) = action {
            rig.session.connected(key, Ok((1, 32, false)), 1);
        }
    }
    rig.sent();
    rig.receive(&capsule(&read(3, 4096), &[], 0));
    rig.perform_actions();
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0], sent[1]), (24 + 4096, 7, LAST | crate::wire::SUCCESS));
}

#[test]
fn h2c_data_must_match_its_r2t() {
    let violation = |cid: u16, tag: u16, offset: u32, len: usize, flags: u8| {
        let mut rig = Rig::live(0);
        rig.receive(&capsule(&write(9, TRANSPORT, 8192), &[], 0));
        rig.perform_actions();
        let sent = rig.sent();
        let r2t = R2t::of(&sent).expect("a request").tag.get();
        rig.receive(&h2c_data(cid, r2t.wrapping_add(tag), offset, &vec![0; len], flags, 0));
        termination(&mut rig)
    };
    let header = FatalStatus::INVALID_HEADER;
    assert_eq!(violation(8, 0, 0, 8192, LAST), (header, 8), "no such command");
    assert_eq!(violation(9, 1, 0, 8192, LAST), (header, 10), "no such request");
    assert_eq!(violation(9, 0, 4, 8188, LAST), (FatalStatus::OUT_OF_RANGE, 12), "a gap");
    assert_eq!(violation(9, 0, 0, 8193, LAST), (FatalStatus::OUT_OF_RANGE, 12), "more than was requested");
    assert_eq!(violation(9, 0, 0, 8192, 0), (header, 1), "the last PDU without LAST_PDU");
    assert_eq!(violation(9, 0, 0, 4096, LAST), (header, 1), "an earlier PDU with LAST_PDU");
    assert_eq!(violation(9, 0, 0, 0, 0), (header, 16), "no data");
    let mut early = Rig::live(0);
    early.receive(&h2c_data(9, 0, 0, &[0; 8], LAST, 0));
    assert_eq!(termination(&mut early), (header, 8), "nothing was requested");
    let mut long = Rig::live(0);
    long.receive(&h2c_data(9, 0, 0, &vec![0; (256 << 10) + 4], LAST, 0));
    assert_eq!(termination(&mut long), (FatalStatus::LIMIT, 16));
}

/// NVMe/TCP Transport 1.0 3.6.2.7: DATAL is the length of the data in this PDU.
#[test]
fn h2c_data_that_announces_more_than_its_pdu_has_ends_the_connection() {
    for (digests, data, announced) in [
        (0, &[][..], 8192_u32),
        (0, &[], 1),
        (0, &[0; 512], 8192),
        (0, &[0; 512], 0),
        (HEADER_DIGEST, &[], 8192),
        (HEADER_DIGEST, &[0; 512], 8192),
    ] {
        let mut rig = Rig::live(digests);
        rig.receive(&capsule(&write(9, TRANSPORT, 8192), &[], digests));
        rig.perform_actions();
        let r2t = R2t::of(&rig.sent()).expect("a request").tag.get();
        let mut bytes = h2c_data(9, r2t, 0, data, LAST, digests);
        bytes[16..20].copy_from_slice(&announced.to_le_bytes());
        if digests == HEADER_DIGEST {
            let sum = digest(&bytes[..24]);
            bytes[24..28].copy_from_slice(&sum);
        }
        rig.receive(&bytes);
        let ended = termination(&mut rig);
        assert_eq!(ended, (FatalStatus::INVALID_HEADER, 16), "{announced} announced, {} sent, {digests}", data.len());
    }
}

#[test]
fn wrong_digests_are_reported() {
    let mut rig = Rig::live(3);
    let mut bytes = capsule(&read(3, 512), &[], 3);
    bytes[40] ^= 1;
    let sent = u32::from_le_bytes(*bytes.last_chunk().expect("a digest"));
    rig.receive(&bytes);
    assert_eq!(termination(&mut rig), (FatalStatus::HEADER_DIGEST, sent));
    let mut rig = Rig::live(3);
    let mut bytes = capsule(&write(3, INLINE, 512), &[1; 512], 3);
    bytes[100] ^= 1;
    rig.receive(&bytes);
    assert_eq!(response(&rig.sent()[..24]), (3, Status::TRANSPORT_ERROR), "and the connection continues");
    rig.receive(&capsule(&write(4, TRANSPORT, 1000), &[], 3));
    rig.perform_actions();
    let r2t = R2t::of(&rig.sent()).expect("a request").tag.get();
    let mut bytes = h2c_data(4, r2t, 0, &[1; 1000], LAST, 3);
    bytes[100] ^= 1;
    rig.receive(&bytes);
    rig.perform_actions();
    assert_eq!(response(&rig.sent()[..24]), (4, Status::TRANSPORT_ERROR));
    assert!(rig.session.closed().is_none() && rig.pulled.is_empty());
}

#[test]
fn data_descriptors_are_checked() {
    let refused = |sqe: Sqe, data: &[u8]| {
        let mut rig = Rig::live(0);
        rig.receive(&capsule(&sqe, data, 0));
        assert!(matches!(&rig.actions[..], [Action::Refused(..)]) && rig.session.tasks() == 0);
        response(&rig.sent()).1
    };
    assert_eq!(refused(sqe(2, 1, INLINE, 512), &[0; 512]), Status::SGL_TYPE);
    assert_eq!(refused(write(1, 0x00, 512), &[]), Status::SGL_TYPE);
    assert_eq!(refused(write(1, INLINE, 513), &[0; 512]), Status::SGL_OFFSET);
    let mut beyond = write(1, INLINE, 512);
    beyond.sgl.address = u64::MAX.into();
    assert_eq!(refused(beyond, &[0; 512]), Status::SGL_OFFSET);
    assert_eq!(
        refused(Sqe { flags: 0, ..write(1, TRANSPORT, 512) }, &[]),
        Status::INVALID_FIELD,
        "PRPs are not allowed"
    );
}

#[test]
fn inconsistent_headers_end_the_connection() {
    let violation = |at: usize, byte: u8| {
        let mut rig = Rig::live(0);
        let mut bytes = capsule(&write(1, INLINE, 512), &[0; 512], 0);
        bytes[at] = byte;
        rig.receive(&bytes);
        termination(&mut rig)
    };
    let header = FatalStatus::INVALID_HEADER;
    assert_eq!(violation(0, 0x0b), (header, 0));
    assert_eq!(violation(1, 1), (header, 1), "a digest that was not negotiated");
    assert_eq!(violation(2, 24), (header, 2));
    assert_eq!(violation(3, 8), (header, 3), "the data begins in the header");
    assert_eq!(violation(3, 73), (header, 3), "the data is not aligned");
    assert_eq!(violation(6, 0xff), (header, 4), "more than the capsule limit");
    let mut rig = Rig::live(0);
    let mut bytes = capsule(&write(1, INLINE, 512), &[0; 512], 0);
    bytes[4..6].copy_from_slice(&[71, 0]);
    rig.receive(&bytes);
    assert_eq!(termination(&mut rig), (header, 4), "shorter than its header");
    let mut rig = Rig::live(0);
    rig.receive(&capsule(&write(1, INLINE, 8), &vec![0; IN_CAPSULE_MAX as usize + 4], 0));
    assert_eq!(termination(&mut rig), (header, 4));
}

#[test]
fn a_queue_has_no_more_commands_than_entries() {
    let mut rig = Rig::live(0);
    for cid in 0..32 {
        rig.receive(&capsule(&read(cid, 512), &[], 0));
    }
    rig.receive(&capsule(&read(99, 512), &[], 0));
    assert_eq!(termination(&mut rig), (FatalStatus::SEQUENCE, 8));
    let mut rig = Rig::live(0);
    rig.receive(&capsule(&read(5, 512), &[], 0));
    rig.receive(&capsule(&read(5, 512), &[], 0));
    assert_eq!(response(&rig.sent()), (5, Status::ID_CONFLICT));
    assert!(matches!(rig.actions.pop(), Some(Action::Refused(sqe, Status::ID_CONFLICT)) if sqe.cid.get() == 5));
    let Some(Action::Command(key, _)) = rig.actions.pop() else { panic!("a command") };
    rig.session.park(key);
    rig.receive(&capsule(&read(5, 512), &[], 0));
    assert!(matches!(rig.actions[..], [Action::EventReplaced(5), Action::Command(..)]));
    assert_eq!(rig.session.tasks(), 1);
}

#[test]
fn fused_commands_are_executed_together_or_alone() {
    let half = |cid, fuse: u8| Sqe { flags: 0x40 | fuse, ..write(cid, INLINE, 8) };
    let mut rig = Rig::live(0);
    rig.receive(&capsule(&half(1, 1), &[0; 8], 0));
    assert!(rig.actions.is_empty());
    rig.receive(&capsule(&half(2, 2), &[0; 8], 0));
    assert!(matches!(&rig.actions[..], [Action::Fused(_)]));
    rig.perform_actions();
    rig.receive(&capsule(&half(1, 1), &[0; 8], 0));
    rig.receive(&capsule(&write(2, INLINE, 8), &[0; 8], 0));
    assert!(matches!(&rig.actions[..], [Action::Command(..), Action::Command(..)]));
    rig.perform_actions();
    let _ = rig.sent();
    rig.receive(&capsule(&Sqe { flags: 1, ..half(1, 1) }, &[0; 8], 0));
    assert_eq!(response(&rig.sent()), (1, Status::INVALID_FIELD));
    rig.receive(&capsule(&half(2, 2), &[0; 8], 0));
    assert_eq!(response(&rig.sent()), (2, Status::FUSED_FAILED), "its first command was refused");
    assert!(matches!(rig.actions[..], [Action::Refused(..), Action::Refused(_, Status::FUSED_FAILED)]));
    rig.actions.clear();
    rig.receive(&capsule(&half(3, 1), &[0; 8], 0));
    rig.receive(&capsule(&Sqe { flags: 2, ..half(4, 2) }, &[0; 8], 0));
    assert_eq!(response(&rig.sent()), (4, Status::INVALID_FIELD));
    assert!(
        matches!(&rig.actions[..], [Action::Command(..), Action::Refused(..)]),
        "the first command is executed alone"
    );
}

#[test]
fn a_reply_waits_for_the_requested_data() {
    let mut rig = Rig::live(0);
    rig.receive(&capsule(&write(9, TRANSPORT, 8192), &[], 0));
    let Some(Action::Command(key, _)) = rig.actions.pop() else { panic!("a command") };
    assert!(matches!(rig.session.pull(key, 0, 8192), PullResult::NeedsMemory(8192)));
    rig.session.supply(key, rig.arena.take_sg(8192).expect("room"));
    let r2t = R2t::of(&rig.sent()).expect("a request").tag.get();
    assert!(rig.session.reply(key, Status::ABORTED, 0, &mut lunar_core::step::FinalData::default()));
    assert!(rig.sent().is_empty());
    rig.receive(&h2c_data(9, r2t, 0, &[0; 8192], LAST, 0));
    assert_eq!(response(&rig.sent()), (9, Status::ABORTED));
}

#[test]
fn a_termination_request_closes_the_connection() {
    let mut rig = Rig::live(0);
    let mut request = TermReq { status: 2.into(), ..TermReq::blank(0) };
    request.common.kind = PduType::H2C_TERM_REQ.0;
    rig.receive(request.as_bytes());
    assert_eq!(rig.session.closed(), Some(CloseReason::TerminatedByHost(FatalStatus::SEQUENCE)));
    assert!(rig.sent().is_empty());
}

#[test]
fn a_connection_without_connect_times_out() {
    let mut rig = Rig::default();
    let at = rig.session.deadline().expect("it waits");
    let mut actions = Vec::new();
    rig.session.tick(Instant(at.0 - 1), &mut actions);
    assert!(actions.is_empty());
    rig.session.tick(at, &mut actions);
    assert!(matches!(actions[..], [Action::Close(CloseReason::ConnectTimeout)]));
    assert_eq!(Rig::live(0).session.deadline(), None);
}

#[test]
fn a_host_that_does_not_authenticate_times_out() {
    let mut rig = Rig::live(0);
    assert_eq!(
        (rig.session.deadline(), rig.session.authenticated()),
        (None, false),
        "it does not have to authenticate"
    );
    rig.session.require_authentication();
    assert!(!rig.session.is_live() && rig.session.deadline() == Some(Instant(15_000_000_000)));
    // Its commands go to the front, and may have data: the controller decides which are allowed.
    let mut message = sqe(0x7f, 1, TRANSPORT, 72);
    message.nsid = 5.into();
    rig.receive(&capsule(&message, &[], 0));
    rig.perform_actions();
    let r2t = *R2t::of(&rig.sent()).expect("an R2T");
    rig.receive(&h2c_data(1, r2t.tag.get(), 0, &[9; 72], LAST, 0));
    rig.perform_actions();
    assert_eq!((response(&rig.sent()), &rig.pulled[..]), ((1, Status::SUCCESS), &[vec![9; 72]][..]));
    let mut other = Rig::live(0);
    other.session.require_authentication();
    assert!(rig.session.authenticated() && rig.session.is_live() && !rig.session.authenticated());
    for (rig, ends) in [(&mut rig, None), (&mut other, Some(CloseReason::ConnectTimeout))] {
        let mut actions = Vec::new();
        rig.session.tick(Instant(15_000_000_000), &mut actions);
        assert_eq!(rig.session.closed(), ends);
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_handled(data in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        crate::fuzzing::start(&data);
        crate::fuzzing::queue(&data);
        crate::fuzzing::host(&data);
    }
}
