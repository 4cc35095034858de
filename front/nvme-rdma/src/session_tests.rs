use super::*;
use lunar_nvme::command::{FUSE_FIRST, FUSE_SECOND};
use zerocopy::{FromZeros, IntoBytes};

type Queue = Session<Vec<u8>>;

fn fabrics(kind: u32, cid: u16) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags, sqe.cid, sqe.nsid, sqe.sgl.kind) = (FABRICS, 0x40, cid.into(), kind.into(), 0x40);
    sqe
}

fn io(opcode: u8, fuse: u8, cid: u16) -> Sqe {
    let mut sqe = fabrics(1, cid);
    (sqe.opcode, sqe.flags) = (opcode, 0x40 | fuse);
    sqe
}

fn send(queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Vec<Action<Vec<u8>>> {
    let mut actions = Vec::new();
    let message = [sqe.as_bytes(), data].concat();
    queue.receive(&message, |data| Some(data.to_vec()), &mut actions).expect("within the rules");
    actions
}

fn connected(entries: u16) -> Queue {
    let mut queue = Queue::default();
    assert!(matches!(&send(&mut queue, &fabrics(1, 0), &[])[..], [Action::Connect(_)]));
    let response = queue.connected(0, Ok((1, entries, true)), 7).expect("it was asked");
    assert_eq!((response.completion.result.get(), response.completion.sq_head.get()), (7, 1));
    queue
}

#[test]
fn only_connect_may_be_sent_first() {
    let mut queue = Queue::default();
    let refused = send(&mut queue, &io(2, 0, 5), &[]);
    assert!(matches!(&refused[..], [Action::Refused(_, Status::SEQUENCE_ERROR, _)]), "{refused:?}");
    assert!(matches!(&send(&mut queue, &fabrics(1, 0), &[])[..], [Action::Connect(_)]));
    // A second command before the answer is one more than the queue has room for.
    let message = fabrics(1, 1);
    assert_eq!(queue.receive(message.as_bytes(), |_| None, &mut Vec::new()), Err(Violation::TooMany));
    assert!(queue.connected(0, Err(Status::CONNECT_HOST), 0).is_some() && !queue.is_live());
    assert!(matches!(&send(&mut queue, &fabrics(1, 0), &[])[..], [Action::Connect(_)]), "a host may try again");
}

#[test]
fn keys_are_invalidated_with_the_response_of_their_command() {
    let mut queue = connected(4);
    let mut read = io(2, 0, 9);
    (read.sgl.kind, read.sgl.length, read.sgl.reserved) = (0x4f, 0x4400_0200.into(), [3, 0, 0]);
    let actions = send(&mut queue, &read, &[]);
    let [Action::Command(arrived)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((arrived.command.room, arrived.memory.map(|memory| memory.key)), (512, Some(0x344)));
    let response = queue.complete(9, Status::SUCCESS, 0).expect("there");
    assert_eq!((response.invalidates, response.completion.sq_id.get()), (Some(0x344), 1));
    assert_eq!(queue.complete(9, Status::SUCCESS, 0), None, "each is completed once");
}

#[test]
fn data_of_a_capsule_is_kept() {
    let mut queue = connected(4);
    let mut write = io(1, 0, 2);
    (write.sgl.kind, write.sgl.length) = (0x01, 3.into());
    let actions = send(&mut queue, &write, b"abcd");
    let [Action::Command(arrived)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((arrived.in_capsule.as_deref(), arrived.command.sent), (Some(&b"abc"[..]), 3));
    let (mut actions, message) = (Vec::new(), [write.as_bytes(), b"abcd"].concat());
    write.cid = 3.into();
    let message = [write.as_bytes(), &message[64..]].concat();
    assert_eq!(queue.receive(&message, |_| None, &mut actions), Ok(()));
    assert!(matches!(&actions[..], [Action::Refused(_, Status::NOT_READY, _)]), "no memory: {actions:?}");
}

#[test]
fn identifiers_in_use_are_refused_except_those_of_events() {
    let mut queue = connected(4);
    send(&mut queue, &io(2, 0, 1), &[]);
    assert!(matches!(&send(&mut queue, &io(2, 0, 1), &[])[..], [Action::Refused(_, Status::ID_CONFLICT, _)]));
    queue.park(1);
    assert!(matches!(&send(&mut queue, &io(2, 0, 1), &[])[..], [Action::EventReplaced(1), Action::Command(_)]));
    for cid in 2..5 {
        assert_eq!(send(&mut queue, &io(2, 0, cid), &[]).len(), 1);
    }
    let message = io(2, 0, 5);
    assert_eq!(queue.receive(message.as_bytes(), |_| None, &mut Vec::new()), Err(Violation::TooMany));
    assert_eq!(queue.receive(&[0; 8], |_| None, &mut Vec::new()), Err(Violation::NoCapsule));
}

#[test]
fn halves_of_a_fused_operation_are_executed_together() {
    let mut queue = connected(8);
    assert!(send(&mut queue, &io(5, FUSE_FIRST, 1), &[]).is_empty());
    assert!(matches!(&send(&mut queue, &io(1, FUSE_SECOND, 2), &[])[..], [Action::Fused(_)]));
    // A first half without its second one is a command of its own.
    assert!(send(&mut queue, &io(5, FUSE_FIRST, 3), &[]).is_empty());
    assert!(matches!(&send(&mut queue, &io(2, 0, 4), &[])[..], [Action::Command(_), Action::Command(_)]));
    let mut wrong = io(5, FUSE_FIRST, 5);
    (wrong.sgl.kind, wrong.sgl.length) = (0x5a, 512.into());
    assert!(matches!(&send(&mut queue, &wrong, &[])[..], [Action::Refused(_, Status::SGL_TYPE, _)]));
    let second = send(&mut queue, &io(1, FUSE_SECOND, 6), &[]);
    assert!(matches!(&second[..], [Action::Refused(_, Status::FUSED_FAILED, _)]), "{second:?}");
}

#[test]
fn a_host_that_must_authenticate_is_live_when_it_has() {
    let mut queue = connected(4);
    queue.require_authentication();
    assert!(!queue.is_live() && queue.authenticated() && queue.is_live() && !queue.authenticated());
}
