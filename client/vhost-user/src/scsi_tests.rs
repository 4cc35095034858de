use super::*;
use crate::lane::Answer;
use crate::testing::BackEnd;
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use lunar_vhost_user::bytes;
use lunar_vhost_user::scsi::{self, Parsed, address_of, answer, parse};
use lunar_vhost_user::virtio::{FEATURES, PROTOCOL};

const SLOTS: u16 = 4;
const BUFFER: usize = 8192;
/// READ (10) and WRITE (10) of two blocks at LBA 9, TEST UNIT READY.
const READ: [u8; 16] = [0x28, 0, 0, 0, 0, 9, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
const WRITE: [u8; 16] = [0x2a, 0, 0, 0, 0, 9, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
const READY: [u8; 16] = [0; 16];

impl BackEnd {
    /// Takes all that is available; returns the commands.
    fn commands(&mut self) -> Vec<Parsed> {
        self.take_with(|memory, chain| parse(memory, chain).expect("a good driver"))
    }

    /// Answers one of the commands that were taken.
    fn end(&mut self, at: usize, answer: CommandAnswer) {
        self.put_back(at, 0, answer.as_bytes());
    }
}

fn lane() -> (ScsiLane, Layout, BackEnd) {
    let layout = Scsi::layout(1, SLOTS, BUFFER).expect("a small one");
    let memory = Region::zeroed(layout.len());
    let lane = ScsiLane::new(&memory, &layout, 0, usize::MAX).expect("it fits");
    let back_end = BackEnd::new(&memory, &layout);
    (lane, layout, back_end)
}

fn command(cdb: [u8; 16], data: CommandData) -> ScsiCommand {
    ScsiCommand { lun: address_of(300), tag: 77, cdb, data }
}

fn ended(lane: &mut ScsiLane, slot: u16) -> CommandEnd {
    lane.collect(|_| {}).expect("a good back-end");
    match lane.take(slot) {
        Some(Answer::Ended(end)) => end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_arrive_with_their_data() {
    let (mut lane, layout, mut back_end) = lane();
    let data = vec![7; 1024];
    assert!(back_end.memory.write(layout.place(0, 1).data, &data));
    for (slot, command) in [
        (0, command(READ, CommandData::In(1024))),
        (1, command(WRITE, CommandData::Out(1024))),
        (2, command(READY, CommandData::Nothing)),
    ] {
        assert!(lane.begin(slot, &command, Instant(0)));
    }
    assert!(lane.send());
    let lens: Vec<_> = (back_end.commands().into_iter())
        .map(|parsed| match parsed {
            Parsed::Command(command) => (command.cdb.bytes()[0], command.data_in, command.data_out, command.tag),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lens, [(0x28, 1024, 0, 77), (0x2a, 0, 1024, 77), (0, 0, 0, 77)]);
    let (memory, mut found) = (&back_end.device.memory, vec![0; 1024]);
    assert!(bytes::read(memory, &back_end.taken[1].readable, HEADER_LEN as u64, &mut found) && found == data);
    assert!(bytes::write(memory, &back_end.taken[0].writable, ANSWER_LEN as u64, &[9; 1024]));
    assert!(!lane.begin(3, &command(READ, CommandData::In(BUFFER as u32 + 1)), Instant(0)), "longer than its memory");
    for _ in 0..3 {
        back_end.end(0, answer(Response::OK, 0, &[], 0));
    }
    let good = CommandEnd { response: Response::OK, status: 0, residual: 0 };
    assert_eq!(ended(&mut lane, 0), good);
    assert!(back_end.memory.read(layout.place(0, 0).data, &mut found) && found == [9; 1024]);
}

#[test]
fn a_command_that_fails_has_its_sense_data() {
    let (mut lane, _, mut back_end) = lane();
    let sense = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];
    assert!(lane.begin(0, &command(READ, CommandData::In(512)), Instant(0)));
    lane.send();
    back_end.commands();
    back_end.end(0, answer(Response::OK, 2, &sense, 512));
    assert_eq!(ended(&mut lane, 0), CommandEnd { response: Response::OK, status: 2, residual: 512 });
    assert_eq!(lane.sense(0), sense);
    // More sense data than an answer has room for.
    assert!(lane.begin(0, &command(READY, CommandData::Nothing), Instant(0)));
    lane.send();
    back_end.commands();
    back_end.end(0, CommandAnswer { sense_len: u32::MAX.into(), ..answer(Response::BUSY, 0, &[], 0) });
    assert_eq!(ended(&mut lane, 0).response, Response::BUSY);
    assert_eq!(lane.sense(0).len(), scsi::SENSE_MAX);
}

#[test]
fn a_device_that_writes_no_answer_has_given_none() {
    let (mut lane, _, mut back_end) = lane();
    for written in [answer(Response::OK, 0, &[], 0).as_bytes(), &[]] {
        assert!(lane.begin(0, &command(READY, CommandData::Nothing), Instant(0)));
        lane.send();
        back_end.commands();
        back_end.put_back(0, 0, written);
        let response = if written.is_empty() { NO_RESPONSE } else { Response::OK };
        assert_eq!(ended(&mut lane, 0).response, response, "not that of the command before");
    }
}

#[test]
fn a_lane_of_commands_needs_more_room_than_one_of_a_disk() {
    let layout = Layout::new(1, 1, 4096).expect("a small one");
    assert!(ScsiLane::new(&Region::zeroed(layout.len()), &layout, 0, usize::MAX).is_none());
}

#[test]
fn the_first_two_rings_are_not_for_commands() {
    assert_eq!([None, Some(0), Some(2), Some(3), Some(66)].map(queues), [1, 0, 0, 1, 64]);
    let offered = FEATURES | scsi::FEATURES;
    assert_eq!(features(offered), Ok(feature::VERSION_1 | feature::PROTOCOL_FEATURES));
    assert_eq!(features(offered & !feature::VERSION_1), Err(Defect::Lacks("virtio 1")));
    let accepted = protocol_features(PROTOCOL & !protocol::CONFIG);
    assert_eq!(accepted, Ok(protocol::MQ | protocol::REPLY_ACK));
    assert_eq!(protocol_features(protocol::MQ), Err(Defect::Lacks("acknowledgements")));
}
