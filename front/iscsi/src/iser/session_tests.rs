//! Conversations of a session over RDMA, between its login and its data mover.

use crate::config::{Config, RDMA_ANSWER_MAX, Transport};
use crate::testing::{INITIATOR, NAMES, Peer, ReceivedPdu, pattern, text_of};
use crate::wire::{DataIn, LoginStatus, NopIn, NopOut, Pdu, R2t, ScsiResponse, Stage};
use lunar_core::mem::Sg;
use lunar_core::step::FinalData;

const OFFERS: &[(&str, &str)] = &[
    ("InitialR2T", "No"),
    ("MaxOutstandingR2T", "8"),
    ("InitiatorRecvDataSegmentLength", "262144"),
    ("TargetRecvDataSegmentLength", "65536"),
    ("RDMAExtensions", "Yes"),
];

fn config() -> Config {
    Config::default().over(Transport::Rdma)
}

fn logged_in() -> Peer {
    Peer::logged_in_with(config(), OFFERS)
}

#[test]
fn the_keys_of_rdma_are_negotiated() {
    let mut peer = Peer::new(config());
    let received = peer.login(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE), &text_of(&[NAMES, OFFERS].concat()));
    let pairs = received[0].pairs();
    for pair in [
        ("InitialR2T", "Yes"),
        ("MaxOutstandingR2T", "1"),
        ("InitiatorRecvDataSegmentLength", "262144"),
        ("TargetRecvDataSegmentLength", "8192"),
        ("RDMAExtensions", "Yes"),
    ] {
        assert!(pairs.contains(&pair), "{pair:?} in {pairs:?}");
    }
    assert!(pairs.iter().all(|(key, _)| *key != "MaxRecvDataSegmentLength"), "{pairs:?}");
    assert!(peer.session.is_established());
}

#[test]
fn over_tcp_they_are_not_understood() {
    let mut peer = Peer::new(Config::default());
    let received = peer.login(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE), &text_of(&[NAMES, OFFERS].concat()));
    let pairs = received[0].pairs();
    assert!(pairs.contains(&("RDMAExtensions", "No")), "{pairs:?}");
    assert!(pairs.contains(&("TargetRecvDataSegmentLength", "NotUnderstood")), "{pairs:?}");
}

#[test]
fn a_session_that_is_not_negotiated_as_one_over_rdma_is_refused() {
    for offers in [&[][..], &[("RDMAExtensions", "No")]] {
        let mut peer = Peer::new(config());
        peer.send(
            &crate::testing::login_request(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)),
            &text_of(&[NAMES, offers].concat()),
        );
        peer.accept_login();
        assert!(peer.session.refusal_reason().is_some_and(|why| why.contains("RDMAExtensions")));
        peer.assert_refused(LoginStatus::INITIATOR_ERROR);
    }
    // Discovery needs no data of commands.
    let mut peer = Peer::new(config());
    let text = text_of(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery")]);
    peer.login(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE), &text);
    assert!(peer.session.is_established());
}

#[test]
fn data_of_a_read_has_no_status_and_no_limit() {
    let mut peer = logged_in();
    let command = peer.read(1, 20_000);
    let data = Sg::from(peer.arena.copy(&pattern(20_000)).expect("room"));
    peer.session.reply(command.task, 0, &[], &mut FinalData { offset: 0, data }, 20_000);
    let received = peer.received();
    let data_in: DataIn = received[0].pdu();
    assert_eq!((data_in.data_len.get(), data_in.flags & 1, received[0].data.clone()), (20_000, 0, pattern(20_000)));
    let response: ScsiResponse = received[1].pdu();
    assert_eq!((received.len(), response.status, response.residual.get()), (2, 0, 0));
}

#[test]
fn the_data_mover_reads_what_an_r2t_requests() {
    let mut peer = logged_in();
    let data = pattern(300_000);
    let command = peer.write(1, 300_000, &data[..8192]);
    assert_eq!(peer.pull(command.task, 0, 8192), data[..8192]);
    peer.supply(command.task, 8192, 300_000 - 8192);
    let mut at = 8192;
    while at < data.len() {
        // One burst after the other.
        let r2t = peer.only_pdu::<R2t>().0;
        let len = r2t.desired_len.get() as usize;
        assert_eq!((r2t.offset.get() as usize, len), (at, (data.len() - at).min(256 << 10)));
        let mut memory = peer.session.begin_read(&r2t).expect("memory for the data");
        memory.copy_from(0, &data[at..at + len]);
        peer.session.read(1, r2t.ttt.get(), Some(memory.share()), &mut peer.actions);
        at += len;
    }
    assert_eq!(peer.ready(), [command.task]);
    assert_eq!(peer.pull(command.task, 8192, data.len() - 8192), data[8192..]);
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 300_000);
    assert_eq!(peer.only_pdu::<ScsiResponse>().0.status, 0);
}

#[test]
fn data_that_is_not_wanted_is_not_read() {
    let mut peer = logged_in();
    let command = peer.write(1, 4096, &[]);
    peer.supply(command.task, 0, 4096);
    let r2t = peer.only_pdu::<R2t>().0;
    // The reply waits for the end of the sequence.
    peer.session.reply(command.task, 2, &[0x70, 0, 3], &mut FinalData::default(), 4096);
    peer.assert_quiet();
    assert!(peer.session.begin_read(&r2t).is_none());
    peer.session.read(1, r2t.ttt.get(), None, &mut peer.actions);
    assert_eq!(peer.only_pdu::<ScsiResponse>().0.status, 2);
    assert!(peer.session.begin_read(&r2t).is_none() && !peer.session.has_task(1));
}

#[test]
fn answers_fit_the_buffers_of_initiators() {
    let mut peer = logged_in();
    let command = peer.read(1, 512);
    peer.session.reply(command.task, 2, &[0x72; 252], &mut FinalData::default(), 0);
    let most = RDMA_ANSWER_MAX as usize;
    assert_eq!(peer.only_pdu::<ScsiResponse>().1.len(), most);
    let cmd_sn = peer.next_cmd_sn();
    let ping = NopOut { itt: 5.into(), ttt: u32::MAX.into(), cmd_sn: cmd_sn.into(), ..NopOut::blank() };
    peer.send(&ping, &pattern(1000));
    assert_eq!(peer.only_pdu::<NopIn>().1, pattern(most));
    assert_eq!(peer.received().iter().map(ReceivedPdu::pdu::<NopIn>).count(), 0);
}
