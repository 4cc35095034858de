use crate::config::Config;
use crate::session::{Action, Command, CommandData, ProtocolMachine, PullResult};
use crate::testing::{Peer, data_out, pattern, text_request};
use crate::wire::{
    FINAL, First, NO_TAG, NopOut, Opcode, Pdu, R2t, READ, ScsiCommand, Snack, TaskManagementRequest, WRITE,
    extended_cdb,
};
use lunar_core::step::FinalData;
use lunar_core::wire::be::U32;
use proptest::prelude::*;

/// A PDU that an initiator sends.
#[derive(Clone, Debug)]
enum Sent {
    Read(u16),
    LongCdb(u8),
    Write { immediate: u16, rest: u16 },
    Unsolicited { immediate: u16, rest: u16 },
    Ping(u16),
    Text(u8),
    Snack,
    StrayData(u16),
    Abort(u8),
    BadTag,
    Disorder,
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        any::<u16>().prop_map(Sent::Read),
        (17..64u8).prop_map(Sent::LongCdb),
        (0..3000u16, 0..3000u16).prop_map(|(immediate, rest)| Sent::Write { immediate, rest }),
        (0..3000u16, 1..30_000u16).prop_map(|(immediate, rest)| Sent::Unsolicited { immediate, rest }),
        (0..500u16).prop_map(Sent::Ping),
        (0..50u8).prop_map(Sent::Text),
        Just(Sent::Snack),
        (0..40_000u16).prop_map(Sent::StrayData),
        any::<u8>().prop_map(Sent::Abort),
        Just(Sent::BadTag),
        Just(Sent::Disorder),
    ]
}

/// The bytes of a script. Task tags count up from 1.
fn stream(peer: &mut Peer, script: &[Sent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (what, itt) in script.iter().zip(1u32..) {
        match *what {
            Sent::Read(len) => {
                let header = peer.scsi(itt, READ | FINAL, len.into());
                bytes.extend(peer.bytes(&header, &[], &[]));
            }
            Sent::LongCdb(len) => {
                let header = peer.scsi(itt, READ | FINAL, 512);
                bytes.extend(peer.bytes(&header, &extended_cdb(&vec![1; len.into()]), &[]));
            }
            Sent::Write { immediate, rest } => {
                let header = peer.scsi(itt, WRITE | FINAL, u32::from(immediate) + u32::from(rest));
                bytes.extend(peer.bytes(&header, &[], &pattern(immediate.into())));
            }
            Sent::Unsolicited { immediate, rest } => {
                let (len, at) = (usize::from(immediate) + usize::from(rest), usize::from(immediate));
                let header = peer.scsi(itt, WRITE, u32::from(immediate) + u32::from(rest));
                bytes.extend(peer.bytes(&header, &[], &pattern(len)[..at]));
                bytes.extend(peer.bytes(&data_out(itt, NO_TAG, 0, immediate.into(), true), &[], &pattern(len)[at..]));
            }
            Sent::Ping(len) => {
                let (itt, ttt, cmd_sn) = (U32::new(itt), U32::new(NO_TAG), U32::new(peer.next_cmd_sn()));
                bytes.extend(peer.bytes(&NopOut { itt, ttt, cmd_sn, ..NopOut::blank() }, &[], &pattern(len.into())));
            }
            Sent::Text(len) => {
                let header = text_request(itt, None, peer.next_cmd_sn(), false);
                bytes.extend(peer.bytes(&header, &[], format!("X-{}=y\0", "z".repeat(len.into())).as_bytes()));
            }
            Sent::Snack => bytes.extend(peer.bytes(&Snack::blank(), &[], &[])),
            Sent::StrayData(len) => {
                bytes.extend(peer.bytes(&data_out(9999, NO_TAG, 0, 0, true), &[], &pattern(len.into())));
            }
            Sent::Abort(tag) => {
                let header = TaskManagementRequest {
                    first: First::new(Opcode::TASK_MANAGEMENT_REQUEST).immediately(),
                    flags: FINAL | 1,
                    itt: U32::new(itt),
                    referenced_tag: U32::new(u32::from(tag) % (itt + 1)),
                    cmd_sn: U32::new(peer.cmd_sn),
                    ..TaskManagementRequest::blank()
                };
                bytes.extend(peer.bytes(&header, &[], &[]));
            }
            Sent::BadTag => {
                let header = peer.scsi(NO_TAG, READ | FINAL, 512);
                bytes.extend(peer.bytes(&header, &[], &[]));
            }
            Sent::Disorder => {
                let later = peer.scsi(itt, READ | FINAL, 512);
                let cmd_sn = U32::new(later.cmd_sn.get() + 1);
                let _its_number = peer.next_cmd_sn();
                bytes.extend(peer.bytes(&ScsiCommand { cmd_sn, ..later }, &[], &[]));
                bytes.extend(peer.bytes(&ScsiCommand { itt: U32::new(itt + 5000), ..later }, &[], &[]));
            }
        }
    }
    bytes
}

/// Executes all commands; returns the data that they pulled.
fn serve(peer: &mut Peer, commands: &[Command]) -> Vec<Vec<u8>> {
    let mut pulled = Vec::new();
    for command in commands {
        let len = command.data_out as usize;
        match peer.session.pull(command.task, 0, len) {
            PullResult::Ready(data) => pulled.push(data.to_vec()),
            PullResult::NeedsMemory(wanted) => {
                let memory = peer.arena.take_sg(wanted).expect("room");
                peer.session.supply(command.task, memory);
                pulled.push(Vec::new());
            }
            other => panic!("{other:?}"),
        }
        let data = peer.arena.copy(&pattern(command.data_in as usize)).expect("room").into();
        peer.session.reply(command.task, 0, &[], &mut FinalData { offset: 0, data }, 512);
    }
    pulled
}

/// The outcome of a script: the actions as text, the bytes sent for requests, the data that commands pulled, and the
/// bytes sent for commands.
fn outcome(script: &[Sent], digests: bool, pieces: &[usize]) -> (String, Vec<u8>, Vec<Vec<u8>>, Vec<u8>) {
    let value = if digests { "CRC32C" } else { "None" };
    let offers = [("InitialR2T", "No"), ("HeaderDigest", value), ("DataDigest", value)];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let bytes = stream(&mut peer, script);
    let mut at = 0;
    for piece in pieces.iter().cycle() {
        let end = bytes.len().min(at + piece);
        peer.feed(&bytes[at..end]);
        at = end;
        if at == bytes.len() {
            break;
        }
    }
    let actions = std::mem::take(&mut peer.actions);
    let words = format!("{actions:?} {:?}", peer.session.closed());
    let first = peer.session.take_out().to_vec();
    let command = |action| if let Action::Command(command) = action { Some(command) } else { None };
    let commands: Vec<Command> = actions.into_iter().filter_map(command).collect();
    let pulled = serve(&mut peer, &commands);
    (words, first, pulled, peer.session.take_out().to_vec())
}

proptest! {
    #[test]
    fn the_outcome_does_not_depend_on_how_the_stream_is_divided(
        script in prop::collection::vec(sent(), 1..20),
        digests: bool,
        pieces in prop::collection::vec(prop_oneof![1..64usize, 1..40_000usize], 1..20),
    ) {
        let whole = outcome(&script, digests, &[usize::MAX / 2]);
        prop_assert_eq!(outcome(&script, digests, &pieces), whole);
    }
}

#[test]
fn pdus_are_read_one_byte_at_a_time() {
    let script = [
        Sent::Read(3000),
        Sent::Disorder,
        Sent::Unsolicited { immediate: 100, rest: 20_000 },
        Sent::Ping(77),
        Sent::LongCdb(32),
        Sent::Abort(3),
        Sent::Write { immediate: 9, rest: 9 },
    ];
    assert_eq!(outcome(&script, true, &[1]), outcome(&script, true, &[usize::MAX / 2]));
}

#[test]
fn a_dropped_session_frees_all_memory() {
    let mut peer = Peer::logged_in();
    for round in 0..50u32 {
        let command = peer.write(1, 100_000, &pattern(500));
        peer.supply(command.task, 0, 100_000);
        let ttt = peer.only_pdu::<R2t>().0.ttt.get();
        let bytes = peer.bytes(&data_out(1, ttt, 0, 500, true), &[], &pattern(99_500));
        peer.piece = 1 + round as usize * 1000;
        peer.feed(&bytes);
        peer.actions.clear();
        assert_eq!(peer.pull(command.task, 0, 100_000).len(), 100_000);
        peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 100_000);
        peer.received();
    }
    let arena = peer.arena.clone();
    assert!(arena.used() <= 2 * lunar_core::mem::PAGE, "{arena:?}");
    drop(peer);
    assert_eq!(arena.used(), 0);
}

#[test]
fn a_close_reason_names_the_cause_and_the_responsible_side() {
    use crate::session::{CloseReason, Responsible};
    use crate::wire::LoginStatus;
    for (why, responsible, words) in [
        (CloseReason::LoggedOut, Responsible::Nobody, "logged out"),
        (CloseReason::LoginRefused(LoginStatus::NOT_FOUND), Responsible::Peer, "NOT_FOUND (0x0203)"),
        (CloseReason::LoginRefused(LoginStatus::SERVICE_UNAVAILABLE), Responsible::Target, "0x0301"),
        (CloseReason::LoginTimeout, Responsible::Peer, "too long"),
        (CloseReason::PingTimeout, Responsible::Peer, "did not answer a NOP-In"),
        (CloseReason::HeaderDigest, Responsible::Peer, "digest"),
        (CloseReason::Malformed("a reason"), Responsible::Peer, "a reason"),
        (CloseReason::NoMemory, Responsible::Target, "memory"),
        (CloseReason::LogoutTimeout, Responsible::Nobody, "log out"),
    ] {
        assert_eq!(why.responsible(), responsible);
        assert!(why.to_string().contains(words), "{why}");
    }
}
