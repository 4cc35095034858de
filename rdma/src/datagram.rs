//! Datagrams of packets: headers, payload, padding and check.

use crate::ethernet::station::{self, FRAME_MIN};
use crate::events::{Outgoing, Payload};
use crate::icrc;
use crate::runs::Planned;
use crate::wire::{BASE_LEN, HEADERS_MAX, PORT, TRAILER_MAX, padding};
use lunar_core::mem::{Sg, Slice};
use lunar_reactor::endpoint::{Edges, HEAD_MAX, TAIL_MAX, Wrapped};
use std::net::SocketAddr;

// Headers, also those of a frame, and what is behind a payload have room at the edges. The shortest frame, which is
// padded, has a packet without payload over IPv4: its headers have 42 bytes.
const _: () = assert!(station::HEADERS_MAX + HEADERS_MAX <= HEAD_MAX && TRAILER_MAX <= TAIL_MAX);
const _: () = assert!(FRAME_MIN - (42 + BASE_LEN) <= TAIL_MAX);

/// The datagram of a packet that is sent from this address, and its place in its run, which `place` chooses. `copy`
/// makes a copy of a message of the connection manager; `None`: it has no memory. Nothing else is copied.
pub fn datagram(
    from: SocketAddr,
    outgoing: Outgoing,
    place: impl FnOnce(&Planned) -> u16,
    copy: impl FnOnce(&[u8]) -> Option<Slice>,
) -> Option<(Wrapped, u16)> {
    let Outgoing { peer, head, payload, attempt } = outgoing;
    let data = match payload {
        Payload::Message(message) => copy(&message[..]).map(Sg::from)?,
        Payload::Memory(payload) => payload,
    };
    let (head, pad) = (head.bytes(data.len()), &[0; 3][..padding(data.len())]);
    let parts = data.pieces().iter().map(|piece| &piece[..]).chain(std::iter::once(pad));
    let len = head.len() + data.len() + pad.len() + icrc::LEN;
    let place = place(&Planned { peer, len, pieces: data.pieces().len(), attempt });
    let check = icrc::of_parts(from, SocketAddr::new(peer, PORT), place, &head, parts);
    let mut edges = Edges::default();
    edges.prepend(&head);
    edges.append(pad);
    edges.append(&check.to_le_bytes());
    Some((Wrapped { edges, data }, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::Checker;
    use crate::mad;
    use crate::requester::Attempt;
    use crate::wire::{Extension, Head, Opcode, Packet, Psn, Remote};
    use lunar_core::mem::Arena;

    #[test]
    fn a_datagram_has_one_piece_of_memory() {
        let arena = Arena::new(1 << 20);
        let (from, to): (SocketAddr, SocketAddr) = (([10, 0, 0, 1], 4791).into(), ([10, 0, 0, 2], 4791).into());
        let head = |extension| {
            let opcode = if extension == Extension::None { Opcode::SEND_ONLY } else { Opcode::WRITE_ONLY };
            Head { opcode, qpn: 7, psn: Psn::new(9), wants_acknowledge: true, extension }
        };
        for len in [0, 1, 2, 3, 4, 4096] {
            let payload = arena.copy(&vec![5; len]).map(Sg::from).expect("room");
            let head = head(Extension::Remote(Remote { address: 1, key: 2 }, len as u32));
            let outgoing = Outgoing { peer: to.ip(), head, payload: Payload::Memory(payload), attempt: Attempt::First };
            let mut planned = None;
            let place = |next: &Planned| {
                planned = Some(next.len);
                3
            };
            let built = datagram(from, outgoing, place, |_| panic!("nothing is copied"));
            let (built, place) = built.expect("nothing is copied");
            assert_eq!((planned, place), (Some(built.len()), 3));
            assert!(built.data.pieces().len() <= 1 && built.len().is_multiple_of(4), "{len} bytes");
            let bytes = built.to_vec();
            let packet = Checker::default().check(from, to, &bytes).and_then(Packet::parse).expect("right");
            assert_eq!((packet.payload, packet.extension), (&vec![5; len][..], head.extension));
        }
        let message = Box::new([3; mad::LEN]);
        let payload = || Payload::Message(message.clone());
        let outgoing =
            || Outgoing { peer: to.ip(), head: head(Extension::None), payload: payload(), attempt: Attempt::Only };
        let built = datagram(from, outgoing(), |_| 0, |bytes| arena.copy(bytes)).expect("room").0.to_vec();
        let packet = Checker::default().check(from, to, &built).and_then(Packet::parse).expect("right");
        assert_eq!(packet.payload, &message[..]);
        assert!(datagram(from, outgoing(), |_| 0, |_| None).is_none());
    }
}
