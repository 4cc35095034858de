use super::*;
use crate::golden::{self, Golden};
use crate::icrc::Checker;
use crate::wire::Packet;

fn message(golden: &Golden) -> Message {
    let (from, to) = golden.addresses();
    let bytes = golden.bytes();
    let packet = Checker::default().check(from, to, &bytes).and_then(Packet::parse).expect("a packet");
    Message::parse(packet.payload).expect("a message")
}

#[test]
fn a_recorded_login_is_taken_apart() {
    let Body::Request(request) = message(&golden::REQUEST).body else { panic!("a request") };
    assert_eq!((request.port, request.mtu, request.reads, request.is_reliable), (Some(5555), 3, 4, true));
    // The private data of SRP: its port identifiers.
    assert_eq!(request.private[24..32], [0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x02]);
    let Body::Reply(reply) = message(&golden::REPLY).body else { panic!("a reply") };
    assert_eq!((reply.ids.1, reply.reads, reply.private[0]), (request.id, 4, 0xc0));
    let ids = (reply.ids.1, reply.ids.0);
    assert_eq!(message(&golden::READY).body, Body::Ready(ids.0, ids.1));
    assert_eq!(message(&golden::DISCONNECT).body, Body::Disconnect(ids.0, ids.1, reply.qpn));
    assert_eq!(message(&golden::DISCONNECTED).body, Body::Disconnected(ids.1, ids.0));
    let Body::Reject(reject) = message(&golden::REJECT).body else { panic!("a reject") };
    assert_eq!((reject.ids.0, reject.rejected, reject.reason), (0, Rejected::REQUEST, Reason::INVALID_SERVICE));
}

#[test]
fn messages_are_built_and_taken_apart_again() {
    for golden in
        [golden::REQUEST, golden::REPLY, golden::READY, golden::DISCONNECT, golden::DISCONNECTED, golden::REJECT]
    {
        let message = message(&golden);
        assert_eq!(Message::parse(&message.bytes()), Some(message));
    }
    let reject = Reject {
        ids: (0, 7),
        rejected: Rejected::REQUEST,
        reason: Reason::INVALID_MTU,
        mtu: Some(3),
        private: [5; REJECT_PRIVATE],
    };
    let message = Message { transaction: 9, body: Body::Reject(reject) };
    assert_eq!(Message::parse(&message.bytes()), Some(message));
    let receipt = Message { transaction: 9, body: Body::Receipt(1, 2) };
    assert_eq!(Message::parse(&receipt.bytes()), Some(receipt));
}

#[test]
fn a_reply_is_built_as_linux_builds_it() {
    let (from, to) = golden::REPLY.addresses();
    let bytes = golden::REPLY.bytes();
    let recorded = Checker::default().check(from, to, &bytes).and_then(Packet::parse).expect("a packet").payload;
    let mut built = message(&golden::REPLY).bytes();
    // Responder resources, which a target does not have, its delay, and flow control.
    for at in [24 + 24, 24 + 26, 24 + 27] {
        built[at] = recorded[at];
    }
    assert_eq!(built[..], *recorded);
}

#[test]
fn other_messages_are_dropped() {
    let good = message(&golden::READY).bytes();
    for (at, byte) in [(0, 2), (1, 1), (2, 1), (3, 0x81), (17, 0x17)] {
        let mut bad = good;
        bad[at] = byte;
        assert_eq!(Message::parse(&bad), None, "byte {at}");
    }
    assert_eq!(Message::parse(&good[..LEN - 1]), None);
}
