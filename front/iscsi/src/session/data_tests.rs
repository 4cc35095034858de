use super::*;
use crate::config::Config;
use crate::session::{CloseReason, Command, ProtocolMachine};
use crate::testing::{LUN, Peer, ReceivedPdu, data_out, pattern};
use crate::wire::{FINAL, NopOut, READ, Reject, Response, WRITE};
use lunar_core::mem::{Arena, PAGE};

fn final_data(peer: &Peer, offset: usize, bytes: &[u8]) -> FinalData {
    let data = if bytes.is_empty() { Sg::default() } else { sg(peer, bytes) };
    FinalData { offset, data }
}

fn sg(peer: &Peer, bytes: &[u8]) -> Sg {
    let mut memory = peer.arena.take_sg(bytes.len()).expect("room");
    memory.copy_from(0, bytes);
    memory.share()
}

fn response(peer: &mut Peer) -> ScsiResponse {
    peer.only_pdu::<ScsiResponse>().0
}

/// ASC and ASCQ of a CHECK CONDITION with ABORTED COMMAND.
fn aborted(got: &[ReceivedPdu]) -> (u8, u8) {
    let last = got.last().expect("a response");
    let header: ScsiResponse = last.pdu();
    assert_eq!((header.status, last.data.len()), (2, 20));
    assert_eq!((&last.data[..3], last.data[4]), (&[0, 18, 0x70][..], 0x0b));
    (last.data[14], last.data[15])
}

fn r2ts(peer: &mut Peer) -> Vec<R2t> {
    peer.received().iter().map(ReceivedPdu::pdu).collect()
}

/// A write whose data is all solicited, and the R2Ts of its first pull.
fn write_with_r2ts(peer: &mut Peer, len: u32) -> (Command, Vec<R2t>) {
    let command = peer.write(1, len, &[]);
    peer.supply(command.task, 0, len as usize);
    let write_with_r2ts = r2ts(peer);
    (command, write_with_r2ts)
}

#[test]
fn the_last_data_in_of_a_read_carries_the_status() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 512);
    let data = pattern(512);
    let mut final_data = final_data(&peer, 0, &data);
    assert!(peer.session.reply(command.task, 0, &[], &mut final_data, 512));
    let (header, got) = peer.only_pdu::<DataIn>();
    assert_eq!((header.flags, header.status, header.residual.get()), (FINAL | STATUS, 0, 0));
    assert_eq!((header.itt.get(), header.ttt.get(), header.data_sn.get()), (1, NO_TAG, 0));
    assert_eq!((header.stat_sn.get(), header.exp_cmd_sn.get(), header.max_cmd_sn.get()), (501, 101, 228));
    assert_eq!(got, data);
    assert_eq!(peer.session.tasks(), 0);
}

#[test]
fn data_in_is_split_at_the_limit_of_the_initiator() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 20_000);
    let data = pattern(20_000);
    let mut final_data = final_data(&peer, 0, &data);
    peer.session.reply(command.task, 0, &[], &mut final_data, 20_000);
    let got = peer.received();
    let headers: Vec<DataIn> = got.iter().map(ReceivedPdu::pdu).collect();
    let fields: Vec<_> = headers.iter().map(|h| (h.flags, h.data_sn.get(), h.offset.get(), h.data_len.get())).collect();
    assert_eq!(fields, [(0, 0, 0, 8192), (0, 1, 8192, 8192), (FINAL | STATUS, 2, 16_384, 3616)]);
    assert_eq!(got.iter().flat_map(|pdu| pdu.data.clone()).collect::<Vec<u8>>(), data);
}

#[test]
fn a_data_in_sequence_is_no_longer_than_a_burst() {
    let offers = [("MaxBurstLength", "1024"), ("MaxRecvDataSegmentLength", "768")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let command = peer.read(1, 2500);
    let mut final_data = final_data(&peer, 0, &pattern(2500));
    peer.session.reply(command.task, 0, &[], &mut final_data, 2500);
    let fields: Vec<_> = peer
        .received()
        .iter()
        .map(ReceivedPdu::pdu::<DataIn>)
        .map(|h| (h.flags & FINAL != 0, h.data_len.get()))
        .collect();
    assert_eq!(fields, [(false, 768), (true, 256), (false, 768), (true, 256), (true, 452)]);
}

#[test]
fn data_pushed_before_the_reply_is_sent_first() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 1024);
    assert_eq!(peer.session.push(command.task, 0, sg(&peer, &[1; 512])), Ok(()));
    let mut final_data = final_data(&peer, 512, &[2; 512]);
    peer.session.reply(command.task, 0, &[], &mut final_data, 1024);
    let headers: Vec<DataIn> = peer.received().iter().map(ReceivedPdu::pdu).collect();
    assert_eq!(headers[0].flags, FINAL);
    assert_eq!((headers[0].stat_sn.get(), headers[0].data_sn.get()), (0, 0));
    assert_eq!((headers[1].flags, headers[1].data_sn.get(), headers[1].offset.get()), (FINAL | STATUS, 1, 512));
}

#[test]
fn a_status_that_is_not_good_has_its_own_response() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 512);
    let mut final_data = final_data(&peer, 0, &[0; 512]);
    peer.session.reply(command.task, 2, &[0x70, 0, 3], &mut final_data, 512);
    let got = peer.received();
    assert_eq!(got[0].pdu::<DataIn>().flags, FINAL);
    let header: ScsiResponse = got[1].pdu();
    assert_eq!((header.flags, header.status, header.response), (FINAL, 2, Response::COMPLETED));
    assert_eq!((header.exp_data_sn.get(), header.stat_sn.get()), (1, 501));
    assert_eq!(got[1].data, [0, 3, 0x70, 0, 3]);
}

#[test]
fn a_command_without_data_has_a_response() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 0);
    peer.session.reply(command.task, 0x18, &[], &mut FinalData::default(), 0);
    let header = response(&mut peer);
    assert_eq!((header.flags, header.status, header.itt.get(), header.residual.get()), (FINAL, 0x18, 1, 0));
}

#[test]
fn sense_data_is_cut_at_its_limit() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 0);
    peer.session.reply(command.task, 2, &[7; 300], &mut FinalData::default(), 0);
    assert_eq!(peer.received()[0].data.len(), 254);
}

#[test]
fn less_data_than_expected_is_an_underflow() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 1000);
    let mut final_data = final_data(&peer, 0, &[0; 512]);
    peer.session.reply(command.task, 0, &[], &mut final_data, 512);
    let header = peer.only_pdu::<DataIn>().0;
    assert_eq!((header.flags, header.residual.get()), (FINAL | STATUS | UNDERFLOW, 488));
}

#[test]
fn more_data_than_expected_is_cut_off_and_an_overflow() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 500);
    let mut final_data = final_data(&peer, 0, &[0; 512]);
    peer.session.reply(command.task, 0, &[], &mut final_data, 512);
    let (header, data) = peer.only_pdu::<DataIn>();
    assert_eq!((header.flags, header.residual.get(), data.len()), (FINAL | STATUS | OVERFLOW, 12, 500));
}

#[test]
fn data_for_an_initiator_that_expects_none_is_an_overflow() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 0);
    let mut final_data = final_data(&peer, 0, &[0; 512]);
    peer.session.reply(command.task, 0, &[], &mut final_data, 512);
    let header = response(&mut peer);
    assert_eq!((header.flags, header.residual.get()), (FINAL | OVERFLOW, 512));
}

#[test]
fn a_write_reports_residuals() {
    let mut peer = Peer::logged_in();
    for (itt, wanted, flags, count) in [(1, 512, UNDERFLOW, 512), (2, 1024, 0, 0), (3, 2048, OVERFLOW, 1024)] {
        let command = peer.write(itt, 1024, &[0; 1024]);
        peer.session.reply(command.task, 0, &[], &mut FinalData::default(), wanted);
        let header = response(&mut peer);
        assert_eq!((header.flags, header.residual.get()), (FINAL | flags, count));
    }
}

#[test]
fn a_reply_to_an_ended_task_is_ignored() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 512);
    assert!(peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0));
    peer.received();
    assert!(!peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0));
    let more = sg(&peer, &[0; 4]);
    assert_eq!(peer.session.push(command.task, 0, more), Err(Fault::Aborted));
    assert!(matches!(peer.session.pull(command.task, 0, 1), PullResult::Failed(Fault::Aborted)));
    peer.session.drop_task(command.task);
    peer.session.supply(command.task, SgMut::default());
    peer.assert_quiet();
}

#[test]
fn immediate_data_is_pulled_without_a_copy() {
    let mut peer = Peer::logged_in();
    let data = pattern(4096);
    let command = peer.write(1, 4096, &data);
    assert_eq!((command.data_in, command.data_out), (0, 4096));
    let PullResult::Ready(pulled) = peer.session.pull(command.task, 0, 4096) else { panic!("the data is there") };
    assert_eq!((pulled.pieces().len(), pulled.to_vec()), (1, data));
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 4096);
    assert_eq!(response(&mut peer).exp_data_sn.get(), 0);
}

#[test]
fn data_is_pulled_in_parts() {
    let mut peer = Peer::logged_in();
    let command = peer.write(1, 1000, &pattern(1000));
    assert_eq!(peer.pull(command.task, 0, 300), pattern(1000)[..300]);
    assert_eq!(peer.pull(command.task, 300, 700), pattern(1000)[300..]);
}

#[test]
fn a_pull_beyond_the_expected_length_fails() {
    let mut peer = Peer::logged_in();
    let command = peer.write(1, 512, &[0; 512]);
    assert!(matches!(peer.session.pull(command.task, 0, 513), PullResult::Failed(Fault::Protocol)));
    assert!(matches!(peer.session.pull(command.task, 1, 500), PullResult::Failed(Fault::Protocol)));
    assert!(matches!(peer.session.pull(command.task, usize::MAX, 2), PullResult::Failed(Fault::Protocol)));
    assert!(matches!(peer.session.pull(command.task, 0, 512), PullResult::Ready(_)));
}

#[test]
fn an_r2t_requests_the_rest() {
    let mut peer = Peer::logged_in();
    let command = peer.write(1, 4096, &pattern(1024));
    let PullResult::NeedsMemory(wanted) = peer.session.pull(command.task, 0, 4096) else { panic!("memory first") };
    assert_eq!((wanted, peer.session.queued_bytes()), (3072, 0));
    let memory = peer.arena.take_sg(wanted).expect("room");
    peer.session.supply(command.task, memory);
    let r2t = peer.only_pdu::<R2t>().0;
    assert_eq!((r2t.flags, r2t.lun, r2t.itt.get()), (FINAL, LUN, 1));
    assert_eq!((r2t.offset.get(), r2t.desired_len.get(), r2t.r2t_sn.get()), (1024, 3072, 0));
    assert_eq!((r2t.stat_sn.get(), r2t.exp_cmd_sn.get(), r2t.max_cmd_sn.get()), (501, 101, 227));
    assert!(matches!(peer.session.pull(command.task, 0, 4096), PullResult::Pending));
    let data = pattern(4096);
    peer.send(&data_out(1, r2t.ttt.get(), 0, 1024, false), &data[1024..2048]);
    assert_eq!(peer.ready(), []);
    peer.send(&data_out(1, r2t.ttt.get(), 1, 2048, true), &data[2048..]);
    assert_eq!(peer.ready(), [command.task]);
    let PullResult::Ready(pulled) = peer.session.pull(command.task, 0, 4096) else { panic!("the data is there") };
    assert_eq!((pulled.pieces().len(), pulled.to_vec()), (2, data));
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 4096);
    assert_eq!(response(&mut peer).exp_data_sn.get(), 1);
}

#[test]
fn no_more_r2ts_than_negotiated_are_outstanding() {
    let offers = [("MaxBurstLength", "1024"), ("MaxOutstandingR2T", "2")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let (command, first) = write_with_r2ts(&mut peer, 3500);
    let fields: Vec<_> = first.iter().map(|r2t| (r2t.r2t_sn.get(), r2t.offset.get(), r2t.desired_len.get())).collect();
    assert_eq!(fields, [(0, 0, 1024), (1, 1024, 1024)]);
    assert_ne!(first[0].ttt, first[1].ttt);
    let data = pattern(3500);
    assert!(matches!(peer.session.pull(command.task, 0, 3500), PullResult::Pending));
    peer.send(&data_out(1, first[0].ttt.get(), 0, 0, true), &data[..1024]);
    let third = peer.only_pdu::<R2t>().0;
    assert_eq!((third.r2t_sn.get(), third.offset.get(), third.desired_len.get()), (2, 2048, 1024));
    peer.send(&data_out(1, first[1].ttt.get(), 0, 1024, true), &data[1024..2048]);
    let fourth = peer.only_pdu::<R2t>().0;
    assert_eq!((fourth.r2t_sn.get(), fourth.offset.get(), fourth.desired_len.get()), (3, 3072, 428));
    peer.send(&data_out(1, third.ttt.get(), 0, 2048, true), &data[2048..3072]);
    peer.send(&data_out(1, fourth.ttt.get(), 0, 3072, true), &data[3072..]);
    assert_eq!(peer.ready(), [command.task]);
    assert_eq!(peer.pull(command.task, 0, 3500), data);
}

#[test]
fn data_in_one_block_of_memory_is_pulled_as_one_piece() {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 65_536);
    let data = pattern(65_536);
    assert!(matches!(peer.session.pull(command.task, 0, 65_536), PullResult::Pending));
    for (sn, at) in (0..).zip((0..65_536).step_by(8192)) {
        let header = data_out(1, r2t[0].ttt.get(), sn, at, at == 65_536 - 8192);
        peer.send(&header, &data[at as usize..at as usize + 8192]);
    }
    let PullResult::Ready(pulled) = peer.session.pull(command.task, 0, 65_536) else { panic!("the data is there") };
    assert_eq!((pulled.pieces().len(), pulled.to_vec()), (1, data));
}

#[test]
fn memory_beyond_a_pull_requests_data_ahead() {
    let mut peer = Peer::logged_in();
    let command = peer.write(1, 2048, &[]);
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::NeedsMemory(1024)));
    let memory = peer.arena.take_sg(4096).expect("room");
    peer.session.supply(command.task, memory);
    assert_eq!(peer.only_pdu::<R2t>().0.desired_len.get(), 2048);
}

#[test]
fn a_large_payload_is_received_into_its_memory() {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 65_536);
    assert!(matches!(peer.session.pull(command.task, 0, 65_536), PullResult::Pending));
    let data = pattern(65_536);
    let header = data_out(1, r2t[0].ttt.get(), 0, 0, true);
    let bytes = peer.bytes(&header, &[], &data);
    peer.feed(&bytes[..1048]);
    let crate::session::ReceiveMode::Into(memory) = peer.session.receive_mode() else { panic!("the payload is large") };
    assert_eq!(memory.len(), 65_536 - 1000);
    peer.session.placed(memory, 0, peer.now, &mut peer.actions);
    peer.piece = 50_000;
    peer.feed(&bytes[1048..]);
    assert_eq!(peer.ready(), [command.task]);
    let PullResult::Ready(pulled) = peer.session.pull(command.task, 0, 65_536) else { panic!("the data is there") };
    assert_eq!((pulled.pieces().len(), pulled.to_vec()), (1, data));
}

#[test]
fn payload_in_transit_to_a_dropped_task_is_discarded() {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 65_536);
    let bytes = peer.bytes(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &[], &pattern(65_536));
    peer.feed(&bytes[..100]);
    let crate::session::ReceiveMode::Into(memory) = peer.session.receive_mode() else { panic!("the payload is large") };
    peer.session.drop_task(command.task);
    peer.session.placed(memory, 10, peer.now, &mut peer.actions);
    peer.feed(&bytes[110..]);
    peer.assert_quiet();
    assert_eq!(peer.session.tasks(), 0);
    peer.read(2, 0);
}

#[test]
fn unsolicited_data_needs_no_r2t() {
    let mut peer = Peer::logged_in();
    let data = pattern(3000);
    let header = peer.scsi(1, WRITE, 3000);
    peer.send(&header, &data[..1000]);
    let command = peer.command();
    assert!(matches!(peer.session.pull(command.task, 0, 3000), PullResult::Pending));
    peer.send(&data_out(1, NO_TAG, 0, 1000, false), &data[1000..2000]);
    peer.send(&data_out(1, NO_TAG, 1, 2000, true), &data[2000..]);
    assert_eq!(peer.ready(), [command.task]);
    assert_eq!(peer.pull(command.task, 0, 3000), data);
    assert_eq!(peer.received(), []);
}

#[test]
fn data_beyond_the_first_burst_is_requested() {
    let offers = [("InitialR2T", "No"), ("FirstBurstLength", "1024")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let data = pattern(3000);
    let header = peer.scsi(1, WRITE, 3000);
    peer.send(&header, &[]);
    let command = peer.command();
    assert!(matches!(peer.session.pull(command.task, 0, 3000), PullResult::Pending));
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &data[..1024]);
    assert_eq!(peer.ready(), [command.task]);
    peer.supply(command.task, 0, 3000);
    let r2t = peer.only_pdu::<R2t>().0;
    assert_eq!((r2t.offset.get(), r2t.desired_len.get()), (1024, 1976));
    peer.send(&data_out(1, r2t.ttt.get(), 0, 1024, true), &data[1024..]);
    assert_eq!(peer.pull(command.task, 0, 3000), data);
}

#[test]
fn a_short_command_may_send_a_part_after_an_r2t() {
    let mut peer = Peer::logged_in();
    let data = pattern(3000);
    let header = peer.scsi(1, WRITE, 3000);
    peer.send(&header, &[]);
    let command = peer.command();
    assert!(matches!(peer.session.pull(command.task, 0, 3000), PullResult::Pending));
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &data[..1024]);
    assert_eq!(peer.ready(), [command.task]);
    peer.supply(command.task, 0, 3000);
    assert_eq!(peer.only_pdu::<R2t>().0.offset.get(), 1024);
}

#[test]
fn an_incomplete_first_burst_fails_the_command() {
    let offers = [("InitialR2T", "No"), ("FirstBurstLength", "1024")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let header = peer.scsi(1, WRITE, 3000);
    peer.send(&header, &[]);
    let command = peer.command();
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &[0; 512]);
    assert!(matches!(peer.session.pull(command.task, 0, 3000), PullResult::Failed(Fault::Protocol)));
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0d));
}

#[test]
fn unsolicited_data_that_was_not_negotiated_fails_the_command() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("InitialR2T", "Yes")]);
    let header = peer.scsi(1, WRITE, 3000);
    peer.send(&header, &[0; 100]);
    // The response waits for the end of the announced sequence.
    peer.assert_quiet();
    peer.send(&data_out(1, NO_TAG, 0, 100, false), &[0; 100]);
    peer.assert_quiet();
    peer.send(&data_out(1, NO_TAG, 1, 200, true), &[0; 100]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0c));
    assert_eq!(peer.session.tasks(), 0);
}

#[test]
fn immediate_data_that_was_not_negotiated_fails_the_command() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("ImmediateData", "No")]);
    let header = peer.scsi(1, WRITE | FINAL, 3000);
    peer.send(&header, &[0; 100]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0c));
}

#[test]
fn immediate_data_of_a_read_fails_the_command() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, FINAL | READ, 3000);
    peer.send(&header, &[0; 100]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0c));
}

#[test]
fn more_immediate_data_than_expected_fails_the_command() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, WRITE | FINAL, 99);
    peer.send(&header, &[0; 100]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0d));
    let mut peer = Peer::logged_in_with(Config::default(), &[("FirstBurstLength", "512")]);
    let header = peer.scsi(1, WRITE | FINAL, 2000);
    peer.send(&header, &[0; 513]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0d));
}

#[test]
fn data_of_an_unknown_task_is_discarded() {
    let mut peer = Peer::logged_in();
    peer.send(&data_out(77, NO_TAG, 0, 0, true), &[0; 512]);
    peer.send(&data_out(77, 5, 0, 0, true), &[]);
    peer.assert_quiet();
}

#[test]
fn data_with_an_unknown_transfer_tag_is_rejected() {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::Pending));
    let bad = data_out(1, r2t[0].ttt.get() + 1, 0, 0, true);
    peer.send(&bad, &[9; 1024]);
    let (reject, data) = peer.only_pdu::<Reject>();
    assert_eq!((reject.reason, reject.itt.get(), data.len()), (RejectReason::INVALID_FIELD, NO_TAG, 48));
    assert_eq!(data[..4], bad.as_bytes()[..4]);
    // The command continues.
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &pattern(1024));
    assert_eq!(peer.ready(), [command.task]);
    assert_eq!(peer.pull(command.task, 0, 1024), pattern(1024));
}

/// Sends an invalid Data-Out for a command of 1,024 bytes and then the end of its sequence; returns the responses.
fn responses_to_invalid(bad: impl Fn(u32) -> DataOut, len: usize) -> Vec<ReceivedPdu> {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    let ttt = r2t[0].ttt.get();
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::Pending));
    peer.send(&bad(ttt), &vec![0; len]);
    assert_eq!(peer.ready(), [command.task]);
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::Failed(Fault::Protocol)));
    assert!(peer.session.reply(command.task, 2, &[1; 18], &mut FinalData::default(), 0));
    if bad(ttt).flags & FINAL == 0 {
        // The response waits for the end of the sequence.
        assert_eq!(peer.session.tasks(), 1);
        peer.send(&data_out(1, ttt, 9, 77, true), &[0; 300]);
    }
    assert_eq!(peer.session.tasks(), 0);
    peer.received()
}

#[test]
fn a_gap_in_data_sn_fails_the_command() {
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 1, 0, true), 1024);
    assert_eq!((got.len(), aborted(&got)), (1, (0x47, 0x05)));
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 27, 0, false), 512);
    assert_eq!((got.len(), aborted(&got)), (1, (0x47, 0x05)));
}

#[test]
fn a_wrong_offset_is_rejected_and_fails_the_command() {
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 0, 4, true), 1020);
    assert_eq!(got[0].pdu::<Reject>().reason, RejectReason::INVALID_FIELD);
    assert_eq!((got.len(), aborted(&got)), (2, (0x0c, 0x0d)));
}

#[test]
fn data_beyond_the_sequence_is_rejected_and_fails_the_command() {
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 0, 0, false), 1025);
    assert_eq!(got[0].pdu::<Reject>().reason, RejectReason::INVALID_FIELD);
    assert_eq!((got.len(), aborted(&got)), (2, (0x0c, 0x0d)));
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 0, u32::MAX, false), 1);
    assert_eq!(aborted(&got), (0x0c, 0x0d));
}

#[test]
fn a_burst_that_goes_on_beyond_its_r2t_fails_the_command() {
    // RFC 7143 11.7.1, 11.8: the last PDU of a burst has the F bit; a burst is as long as its R2T says.
    for is_answered in [false, true] {
        let mut peer = Peer::logged_in();
        let (command, r2t) = write_with_r2ts(&mut peer, 1000);
        let ttt = r2t[0].ttt.get();
        peer.send(&data_out(1, ttt, 0, 0, false), &pattern(1000));
        assert_eq!(peer.pull(command.task, 0, 1000), pattern(1000));
        if is_answered {
            peer.session.reply(command.task, GOOD, &[], &mut FinalData::default(), 1000);
            assert_eq!(peer.received(), [], "the response waits for the F bit");
        }
        peer.actions.clear();
        peer.send(&data_out(1, ttt, 1, 1000, true), &[7; 100]);
        if !is_answered {
            peer.session.reply(command.task, GOOD, &[], &mut FinalData::default(), 1000);
        }
        let got = peer.received();
        assert_eq!(got[0].pdu::<Reject>().reason, RejectReason::INVALID_FIELD);
        assert_eq!(aborted(&got), (0x0c, 0x0d));
    }
    // A PDU without data may end the burst.
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 1000);
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, false), &pattern(1000));
    assert_eq!(peer.pull(command.task, 0, 1000), pattern(1000));
    peer.session.reply(command.task, GOOD, &[], &mut FinalData::default(), 1000);
    peer.send(&data_out(1, r2t[0].ttt.get(), 1, 1000, true), &[]);
    assert_eq!(response(&mut peer).status, GOOD);
}

#[test]
fn less_data_than_requested_fails_the_command() {
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 0, 0, true), 512);
    assert_eq!((got.len(), aborted(&got)), (1, (0x0c, 0x0d)));
    let got = responses_to_invalid(|ttt| data_out(1, ttt, 0, 0, true), 0);
    assert_eq!((got.len(), aborted(&got)), (1, (0x0c, 0x0d)));
}

#[test]
fn a_sequence_out_of_order_fails_the_command() {
    let offers = [("MaxBurstLength", "512"), ("MaxOutstandingR2T", "2")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    peer.send(&data_out(1, r2t[1].ttt.get(), 0, 512, true), &[0; 512]);
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    assert_eq!(peer.session.tasks(), 1);
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &[0; 512]);
    assert_eq!(aborted(&peer.received()), (0x0c, 0x0d));
}

#[test]
fn a_response_waits_for_the_end_of_the_data() {
    let mut peer = Peer::logged_in();
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    assert!(peer.session.reply(command.task, 2, &[5; 18], &mut FinalData::default(), 0));
    peer.assert_quiet();
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, false), &[0; 512]);
    peer.assert_quiet();
    assert!(!peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0), "the command was answered");
    peer.session.drop_task(command.task);
    peer.send(&data_out(1, r2t[0].ttt.get(), 1, 512, true), &[0; 512]);
    let (header, sense) = peer.only_pdu::<ScsiResponse>();
    assert_eq!((header.status, sense.len(), header.residual.get()), (2, 20, 1024));
    assert_eq!(header.exp_data_sn.get(), 1);
}

#[test]
fn no_r2t_is_sent_after_the_reply() {
    let offers = [("MaxBurstLength", "512"), ("MaxOutstandingR2T", "1")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &[0; 512]);
    response(&mut peer);
}

#[test]
fn a_data_digest_that_does_not_match_fails_the_command() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("DataDigest", "CRC32C")]);
    let (command, r2t) = write_with_r2ts(&mut peer, 1024);
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::Pending));
    let mut bytes = peer.bytes(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &[], &[0; 1024]);
    bytes[100] ^= 1;
    peer.feed(&bytes);
    assert_eq!(peer.only_pdu::<Reject>().0.reason, RejectReason::DATA_DIGEST);
    assert_eq!(peer.ready(), [command.task]);
    assert!(matches!(peer.session.pull(command.task, 0, 1024), PullResult::Failed(Fault::Protocol)));
    peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0);
    assert_eq!(aborted(&peer.received()), (0x47, 0x05));
    assert_eq!((peer.stats.digest_errors.get(), peer.stats.rejects.get()), (1, 1));
}

#[test]
fn immediate_data_whose_digest_does_not_match_fails_the_command() {
    let mut peer = Peer::logged_in_with(Config::default(), &[("DataDigest", "CRC32C")]);
    let header = peer.scsi(1, WRITE | FINAL, 512);
    let mut bytes = peer.bytes(&header, &[], &[0; 512]);
    bytes[560] ^= 1;
    peer.feed(&bytes);
    let got = peer.received();
    assert_eq!(got[0].pdu::<Reject>().reason, RejectReason::DATA_DIGEST);
    assert_eq!((got.len(), aborted(&got)), (2, (0x47, 0x05)));
    // The CmdSN is used: the next command is executed.
    peer.read(2, 0);
}

#[test]
fn digests_are_checked_and_sent() {
    let offers = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C"), ("InitialR2T", "No")];
    let mut peer = Peer::logged_in_with(Config::default(), &offers);
    for piece in [usize::MAX, 1, 7, 48, 52] {
        peer.piece = piece;
        let command = peer.write(1, 1001, &pattern(1001));
        assert_eq!(peer.pull(command.task, 0, 1001), pattern(1001));
        peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 1001);
        response(&mut peer);
        let command = peer.read(2, 513);
        let mut final_data = final_data(&peer, 0, &pattern(513));
        peer.session.reply(command.task, 0, &[], &mut final_data, 513);
        assert_eq!(peer.only_pdu::<DataIn>().1, pattern(513));
    }
}

#[test]
fn a_command_without_memory_for_its_data_is_busy() {
    let mut peer = Peer::logged_in();
    let header = peer.scsi(1, WRITE | FINAL, 40_000);
    let bytes = peer.bytes(&header, &[], &pattern(40_000));
    let hog: Vec<_> = std::iter::from_fn(|| peer.arena.take(1)).collect();
    peer.piece = 10_000;
    peer.feed(&bytes);
    let header = response(&mut peer);
    assert_eq!((header.status, header.residual.get()), (8, 40_000));
    drop(hog);
    peer.read(2, 0);
}

#[test]
fn an_unsolicited_burst_without_memory_is_busy_after_its_end() {
    let mut peer = Peer::logged_in();
    let hog: Vec<_> = std::iter::from_fn(|| peer.arena.take(1)).collect();
    let header = peer.scsi(1, WRITE, 2000);
    peer.send(&header, &[]);
    peer.assert_quiet();
    peer.send(&data_out(1, NO_TAG, 0, 0, true), &[0; 2000]);
    assert_eq!(response(&mut peer).status, 8);
    drop(hog);
}

#[test]
fn more_unsolicited_data_than_the_limit_is_busy() {
    let mut peer = Peer::logged_in_with(Config { unsolicited_max: 6000, ..Config::default() }, &[]);
    let first = peer.write(1, 1000, &[0; 1000]);
    let header = peer.scsi(2, WRITE | FINAL, 1000);
    peer.send(&header, &[0; 1000]);
    assert_eq!(response(&mut peer).status, 8);
    assert_eq!(peer.pull(first.task, 0, 1000).len(), 1000);
    let third = peer.write(3, 1000, &[0; 1000]);
    peer.session.drop_task(third.task);
    peer.write(4, 1000, &[0; 1000]);
}

/// The headers of writes whose unsolicited data never comes, until the session refuses one: how many it took.
fn unsolicited_writes_that_fit(peer: &mut Peer, first_itt: u32) -> u32 {
    for count in 0..128 {
        let header = peer.scsi(first_itt + count, WRITE, 65_536);
        peer.send(&header, &[]);
        if peer.actions.is_empty() {
            return count;
        }
        peer.actions.clear();
    }
    128
}

#[test]
fn hosts_share_the_memory_for_unsolicited_data() {
    let arena = Arena::new(32 << 20);
    // RFC 7143 11.3.5 (no F bit): unsolicited data follows. One host has sixteen sessions, and sends headers only.
    let keys = [("InitialR2T", "No")];
    let mut attackers: Vec<_> = (0..16).map(|_| Peer::of_host(&arena, 1)).collect();
    for peer in &mut attackers {
        peer.log_in_with(&keys);
    }
    let taken: u32 = attackers.iter_mut().map(|peer| unsolicited_writes_that_fit(peer, 1)).sum();
    assert!((1..=64).contains(&taken), "{taken} bursts of 64 KiB, of a quarter of 32 MiB at most the half");
    let mut victim = Peer::of_host(&arena, 2);
    victim.log_in_with(&keys);
    assert!(unsolicited_writes_that_fit(&mut victim, 1) >= 4);
    drop((attackers, victim));
    assert_eq!((arena.unsolicited(), arena.used()), (0, 0));
}

#[test]
fn a_command_that_waits_does_not_keep_the_receive_buffer() {
    let mut peer = Peer::logged_in();
    let before = peer.arena.used();
    let missing = peer.scsi(1, READ | FINAL, 0);
    let held = peer.scsi(2, WRITE | FINAL, 16);
    let ping = NopOut { itt: U32::new(NO_TAG), ttt: U32::new(NO_TAG), ..NopOut::blank() };
    let mut bytes = peer.bytes(&held, &[], &pattern(16));
    let other = peer.bytes(&NopOut { first: ping.first.immediately(), ..ping }, &[], &pattern(100_000));
    bytes.extend(other);
    peer.feed(&bytes);
    assert!(peer.arena.used() <= before + PAGE, "{} bytes", peer.arena.used() - before);
    peer.send(&missing, &[]);
    let commands = peer.commands();
    assert_eq!(peer.pull(commands[1].task, 0, 16), pattern(16));
}

#[test]
fn a_dropped_task_frees_its_memory_and_its_data_is_discarded() {
    let mut peer = Peer::logged_in();
    let before = peer.arena.used();
    let (command, r2t) = write_with_r2ts(&mut peer, 65_536);
    assert!(peer.arena.used() > before + 60_000);
    peer.session.drop_task(command.task);
    assert!(peer.arena.used() < before + 20_000);
    peer.send(&data_out(1, r2t[0].ttt.get(), 0, 0, true), &[0; 512]);
    peer.assert_quiet();
    // The window has opened again.
    peer.read(2, 0);
    peer.read(1, 0);
}

#[test]
fn a_connection_without_memory_for_a_header_is_closed() {
    let mut peer = Peer::logged_in();
    let command = peer.read(1, 0);
    let hog: Vec<_> = std::iter::from_fn(|| peer.arena.take_reserved(1)).collect();
    // First use up the block that the login response is in.
    while peer.session.closed().is_none() {
        peer.session.ping();
        peer.session.take_out();
    }
    assert_eq!(peer.session.closed(), Some(CloseReason::NoMemory));
    assert!(!peer.session.reply(command.task, 0, &[], &mut FinalData::default(), 0));
    drop(hog);
}

#[test]
fn residual_counts_follow_the_standard() {
    assert_eq!(residual(512, 512), (0, 0));
    assert_eq!(residual(0, 512), (UNDERFLOW, 512));
    assert_eq!(residual(1024, 512), (OVERFLOW, 512));
    assert_eq!(residual(u64::MAX, 0), (OVERFLOW, u32::MAX));
}
