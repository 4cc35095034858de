use super::*;
use lunar_nvme::command::FABRICS;

/// Bytes of recorded capsules, between the host and the controller of Linux 6.12.
fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn sqe(hex: &str) -> Sqe {
    let (sqe, data) = Sqe::read_from_prefix(&bytes(hex)).map(|(sqe, data)| (sqe, data.len())).expect("64 bytes");
    assert_eq!(data, 0);
    sqe
}

const CONNECT_ADMIN: &str = "7f400000010000000000000000000000000000000000000000b0da8112b62dff\
    000400440300004f000000001f00000000000000000000000000000000000000";
const CONNECT_IO: &str = "7f40000001000000000000000000000000000000000000000000000000000000\
    0004000000000001000001007f00000000000000000000000000000000000000";
const READ: &str = "02400500000000000000000000000000000000000000000000a0e38a12b62dff\
    140000470300004f700004000000000000000000000000000000000000000000";
const WRITE_IN_CAPSULE: &str = "0140740001000000000000000000000000000000000000000000000000000000\
    0002000000000001080000000000000000000000000000000000000000000000";
const WRITE: &str = "0140780001000000000000000000000000000000000000000070e48a12b62dff\
    0000013c4400004f00040000000000007f000000000000000000000000000000";
const PROPERTY_GET: &str = "7f40010004000000000000000000000000000000000000000000000000000000\
    0000000000000040010000000000000000000000000000000000000000000000";
const PROPERTY_GET_RESPONSE: &str = "7f00000f200800000200000001000000";
const CONNECT_RESPONSE: &str = "01000000000000000100000000000000";
const REQUEST: &str = "0000010080007f00010000000000000000000000000000000000000000000000";
const REPLY: &str = "0000800000000000000000000000000000000000000000000000000000000000";

#[test]
fn recorded_private_data_is_taken_apart_and_built() {
    let request = Request::parse(&bytes(REQUEST)).expect("right");
    let fields = [request.format, request.queue, request.responses, request.commands, request.controller];
    assert_eq!(fields.map(le::U16::get), [0, 1, 128, 127, 1]);
    assert_eq!(request.as_bytes(), bytes(REQUEST));
    assert_eq!(Accepted::new(128).as_bytes(), bytes(REPLY));
    assert_eq!(Rejected::new(RejectReason::COMMANDS).as_bytes(), [0, 0, 4, 0]);
    assert_eq!(Request::parse(&[0; 31]), None);
}

#[test]
fn recorded_data_pointers_are_taken_apart() {
    let of = |hex, behind| pointed(&sqe(hex), behind).expect("right");
    let connect = of(CONNECT_ADMIN, 0);
    assert_eq!((connect.command.sent, connect.command.room, connect.in_capsule), (1024, 0, None));
    assert_eq!(connect.memory.map(|memory| memory.key), Some(0x344));
    assert_eq!(invalidated(&sqe(CONNECT_ADMIN)), Some(0x344));
    assert_eq!(connect_fields(&sqe(CONNECT_ADMIN)), (0, 31));
    // Linux sends the data of Connect in the capsule of an I/O queue.
    let connect = of(CONNECT_IO, 1024);
    assert_eq!((connect.command.sent, connect.memory, connect.in_capsule), (1024, None, Some(0..1024)));
    assert_eq!(connect_fields(&sqe(CONNECT_IO)), (1, 127));
    let read = of(READ, 0);
    assert_eq!((read.command.sent, read.command.room), (0, 20));
    assert_eq!(read.memory.map(|memory| memory.key), Some(0x347));
    let write = of(WRITE_IN_CAPSULE, 512);
    assert_eq!((write.command.sent, write.in_capsule), (512, Some(0..512)));
    assert_eq!(invalidated(&sqe(WRITE_IN_CAPSULE)), None);
    let write = of(WRITE, 0);
    assert_eq!((write.command.sent, write.in_capsule), (1 << 16, None));
    assert_eq!(write.memory.map(|memory| memory.key), Some(0x443c));
    // A command without data has a pointer to nothing.
    let nothing = of(PROPERTY_GET, 0);
    assert_eq!((nothing.command.sent, nothing.command.room, nothing.memory), (0, 0, None));
    assert_eq!(sqe(PROPERTY_GET).opcode, FABRICS);
}

#[test]
fn recorded_completions_are_built() {
    let zero = 0.into();
    let built = Completion { result: 1.into(), sq_head: 1.into(), sq_id: zero, cid: zero, status: zero };
    assert_eq!(built.as_bytes(), bytes(CONNECT_RESPONSE));
    let completion = Completion::read_from_bytes(&bytes(PROPERTY_GET_RESPONSE)).expect("16 bytes");
    assert_eq!((completion.cid.get(), completion.status.get()), (1, 0));
    assert_eq!(completion.as_bytes(), bytes(PROPERTY_GET_RESPONSE));
}

#[test]
fn wrong_data_pointers_have_a_status() {
    let mut write = sqe(WRITE_IN_CAPSULE);
    assert_eq!(pointed(&write, 511), Err(Status::SGL_OFFSET));
    write.sgl.address = u64::MAX.into();
    assert_eq!(pointed(&write, 512), Err(Status::SGL_OFFSET));
    let mut read = sqe(READ);
    read.sgl.kind = 0x01;
    assert_eq!(pointed(&read, 4096), Err(Status::SGL_TYPE));
    read.sgl.kind = 0x5a;
    assert_eq!(pointed(&read, 0), Err(Status::SGL_TYPE));
    read.flags = 0;
    assert_eq!(pointed(&read, 0), Err(Status::INVALID_FIELD));
    assert!(capsule(&[0; 63]).is_none() && capsule(&[0; 64 + 4097]).is_none());
    assert_eq!(capsule(&[0; 64 + 4096]).map(|(_, data)| data.len()), Some(4096));
}
