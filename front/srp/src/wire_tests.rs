//! The bytes are those of the initiator and the target of Linux 6.12.

use super::*;
use crate::buffers::{BufferError, Direction, Expected};
use lunar_rdma::golden;
use lunar_rdma::icrc::Checker;
use lunar_rdma::mad::{Body, Message};
use lunar_rdma::wire::{Packet, Remote};

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn payload(golden: &golden::Golden) -> Vec<u8> {
    let (from, to) = golden.addresses();
    let bytes = golden.bytes();
    Checker::default().check(from, to, &bytes).and_then(Packet::parse).expect("a packet").payload.to_vec()
}

#[test]
fn a_recorded_login_is_taken_apart_and_answered() {
    let Some(Body::Request(request)) = Message::parse(&payload(&golden::REQUEST)).map(|message| message.body) else {
        panic!("a request")
    };
    let login = Login::parse(&request.private).expect("a login");
    assert_eq!((login.formats & FORMATS, login.is_another_channel, login.unit_max), (FORMATS, false, 8260));
    assert_eq!(login.initiator.to_string(), "0x0000000000000000505400fffe123402");
    assert_eq!(login.target, PortId::of_guid(0x5054_00ff_fe12_3401));
    let response = LoginResponse::new(&login, 128, 8260, Multichannel::NEW);
    let written = response.as_bytes();
    let wanted = bytes("c000000000000080");
    assert_eq!((&written[..8], written[8..16] == login.tag, written.len()), (&wanted[..], true, 52));
    assert_eq!(written[16..27], bytes("0000204400000124000680")[..]);
    let reject = LoginReject::new(login.tag, RejectReason::UNKNOWN_PORT);
    let written = reject.as_bytes();
    assert_eq!(
        (&written[..8], written[24..26].to_vec(), written.len()),
        (&bytes("c200000000010003")[..], vec![0, 6], 32)
    );
    let mut other = request.private;
    other[10] = 0x81;
    assert!(Login::parse(&other).is_some_and(|login| login.is_another_channel));
    assert_eq!((login.immediate_offset, Login::parse(&request.private[..]).is_some()), (Some(68), true));
    for (flags, offset) in [(0, 68), (0x80, 51)] {
        (other[10], other[49]) = (flags, offset);
        let login = Login::parse(&other).expect("a login");
        let response = LoginResponse::new(&login, 128, 8260, Multichannel::NEW);
        assert_eq!((login.immediate_offset, response.as_bytes()[26]), (None, 0), "{flags:x} {offset}");
    }
    other[11] = 2;
    assert_eq!((Login::parse(&other), Login::parse(&other[..55])), (None, None));
}

#[test]
fn a_recorded_command_is_taken_apart() {
    let unit = payload(&golden::COMMAND);
    let Some(Unit::Command(command)) = Unit::parse(&unit, None) else { panic!("a command") };
    assert_eq!((command.tag, command.cdb[..5].to_vec()), ([0x38, 0, 0, 0, 0, 0, 0, 0], vec![0x12, 0, 0, 0, 0x24]));
    let buffer = command.buffer.expect("right").expect("there");
    let memory = Remote { address: 0xff12_cdfa_12d7_f800, key: 0x33f };
    assert_eq!((buffer.direction, buffer.len), (Direction::In, 36));
    assert_eq!(buffer.range(0, 36, 99).collect::<Vec<_>>(), [(memory, 36)]);
    let test_unit_ready = [&[2, 0, 0, 0, 0, 0, 0, 0, 0x3c][..], &[0; 39]].concat();
    let Some(Unit::Command(command)) = Unit::parse(&test_unit_ready, None) else { panic!("a command") };
    assert_eq!((command.buffer, command.additional), (Ok(None), &[][..]));
    for len in 0..test_unit_ready.len() {
        assert_eq!(Unit::parse(&test_unit_ready[..len], None), None, "{len} bytes");
    }
    let mut longer = test_unit_ready;
    longer[31] = 0x13;
    assert_eq!(Unit::parse(&longer, None), None, "without its additional CDB");
    longer.extend([7; 16]);
    let Some(Unit::Command(command)) = Unit::parse(&longer, None) else { panic!("a command") };
    assert_eq!(command.additional, [7; 16]);
}

#[test]
fn a_recorded_write_with_a_list_of_descriptors_is_taken_apart() {
    let unit = bytes(
        "0200000000200200\
         0a00000000000000000000000000000000000000000000002a000000040000006000000000000000\
         ff1b2799915f2480000002850000002000002000\
         ff1b279983bd70000000028500001000ff1b279983c820000000028500001000",
    );
    let Some(Unit::Command(command)) = Unit::parse(&unit, None) else { panic!("a command") };
    let buffer = command.buffer.expect("right").expect("there");
    assert_eq!((buffer.direction, buffer.len, buffer.table()), (Direction::Out, 8192, None));
    let memory = |address| Remote { address, key: 0x285 };
    let range: Vec<_> = buffer.range(4000, 200, 4096).collect();
    assert_eq!(range, [(memory(0xff1b_2799_83bd_7000 + 4000), 96), (memory(0xff1b_2799_83c8_2000), 104)]);
}

#[test]
fn other_units_of_an_initiator() {
    let reset =
        bytes("0100000000000000010000800000000000000000000000000000000000000800ffffffff000000000000000000000000");
    let (tag, task) = ([1, 0, 0, 0x80, 0, 0, 0, 0], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert_eq!(Unit::parse(&reset, None), Some(Unit::TaskManagement(tag, [0; 8], Function::LOGICAL_UNIT_RESET, task)));
    assert_eq!(Unit::parse(&reset[..47], None), None);
    let short = |kind: u8| [&[kind][..], &[0; 15]].concat();
    assert_eq!(Unit::parse(&short(3), None), Some(Unit::Logout));
    assert_eq!(Unit::parse(&short(0x41), None), Some(Unit::Answer));
    assert_eq!(Unit::parse(&short(0x42), None), Some(Unit::Answer));
    for kind in [0, 4, 0x80, 0xc1] {
        assert_eq!(Unit::parse(&short(kind), None), None, "{kind:x}");
    }
    assert_eq!((Unit::parse(&short(3)[..15], None), Unit::parse(&[], None)), (None, None));
}

#[test]
fn responses_are_built_as_linux_builds_them() {
    let tag = [0x38, 0, 0, 0, 0, 0, 0, 0];
    let good = Response { tag, credit: 1, ..Response::default() };
    assert_eq!(good.bytes()[..], payload(&golden::RESPONSE)[..]);
    let short = Response { residual: -0x180, ..good }.bytes();
    assert_eq!(short[..], bytes("c10000000000000138000000000000000000200000000000000001800000000000000000")[..]);
    let sense = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];
    let refused = Response { status: 2, sense: &sense, ..good }.bytes();
    assert_eq!(refused[..36], bytes("c10000000000000138000000000000000000020200000000000000000000001200000000")[..]);
    assert_eq!(refused[36..], sense);
    let tag = [1, 0, 0, 0x80, 0, 0, 0, 0];
    let reset = Response { tag, credit: 1, code: Some(ResponseCode::COMPLETE), ..Response::default() }.bytes();
    assert_eq!(
        reset[..],
        bytes("c1000000000000010100008000000000000001000000000000000000000000000000000400000000")[..]
    );
    let over = Response { residual: 5, is_out: true, sense: &[1; 300], ..good }.bytes();
    assert_eq!((over[18], &over[20..24], over.len()), (0x06, &[0, 0, 0, 5][..], RESPONSE_MAX - 4));
    assert_eq!(credit_request(7)[..8], [0x81, 0, 0, 0, 0, 0, 0, 7]);
}

#[test]
fn data_in_a_command_begins_where_the_login_says() {
    let mut unit = bytes("0200000000300000");
    unit.extend([0; 40]);
    unit[32] = 0x2a;
    unit.extend(5_u32.to_be_bytes());
    unit.extend([0xaa; 16]);
    unit.extend(b"datum");
    let command = |unit: &[u8], offset| match Unit::parse(unit, offset) {
        Some(Unit::Command(command)) => Some((command.buffer, command.immediate.map(<[u8]>::to_vec))),
        _ => None,
    };
    let (buffer, data) = command(&unit, Some(68)).expect("a command");
    let buffer = buffer.expect("right").expect("there");
    assert_eq!((buffer.direction, buffer.len, data), (Direction::Out, 5, Some(b"datum".to_vec())));
    assert_eq!((buffer.range(0, 5, 99).count(), buffer.table(), buffer.descriptors()), (0, None, 0));
    for len in 0..unit.len() {
        assert_eq!(command(&unit[..len], Some(68)), None, "{len} bytes");
    }
    let refused = Refused { why: BufferError::Format, expected: Expected::default() };
    assert_eq!(command(&unit, None), Some((Err(refused), None)), "it was not granted");
}
