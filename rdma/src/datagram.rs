//! Datagrams of packets: headers, payload, padding and check.

use crate::events::{Outgoing, Payload};
use crate::icrc;
use crate::wire::{PORT, padding};
use lunar_core::mem::{Sg, Slice};
use std::net::SocketAddr;

/// The datagram of a packet that is sent from this address. `copy` makes copies of short parts; `None`: it has no
/// memory. The payload is not copied.
pub fn datagram(from: SocketAddr, outgoing: Outgoing, copy: impl FnOnce(&[&[u8]]) -> Option<Slice>) -> Option<Sg> {
    let Outgoing { peer, head, payload } = outgoing;
    let to = SocketAddr::new(peer, PORT);
    let pad = [0; 3];
    match payload {
        Payload::Message(message) => {
            let head = head.bytes(message.len());
            let check = icrc::of_parts(from, to, &head, std::iter::once(&message[..])).to_le_bytes();
            copy(&[&head, &message[..], &check]).map(Sg::from)
        }
        Payload::Memory(payload) => {
            let (head, pad) = (head.bytes(payload.len()), &pad[..padding(payload.len())]);
            let parts = payload.pieces().iter().map(|piece| &piece[..]).chain(std::iter::once(pad));
            let check = icrc::of_parts(from, to, &head, parts).to_le_bytes();
            copy(&[&head, pad, &check]).map(|mut chunk| {
                let mut data: Sg = chunk.split_to(head.len()).into();
                data.append(payload);
                data.push(chunk);
                data
            })
        }
    }
}
