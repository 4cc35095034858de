//! Entry point of the fuzz target: a target that sends anything.

use crate::client::{Client, Connect, Event};
use crate::keys::Registered;
use crate::limits::MESSAGES_MAX;
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use lunar_rdma::events::Payload;
use lunar_rdma::mad::{Body, Message, REPLY_PRIVATE, Reply, Request};
use lunar_rdma::wire::{Extension, Head, MANAGER_Q_KEY, MANAGER_QPN, Opcode, Packet, Psn};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 88, 1));
/// The time between two packets.
const STEP: Duration = Duration::from_millis(30);
/// Bytes of the memory that is registered.
const LEN: usize = 3000;
/// Packets that one packet of the peer may cause: responses of all READs that may wait, and others.
const ANSWERS_MAX: usize = 16 * LEN.div_ceil(256) + MESSAGES_MAX + 128;

/// The packet of a message of the connection manager.
fn managed(body: Body) -> Vec<u8> {
    let message = Message { transaction: 7, body }.bytes();
    let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
    let (opcode, qpn, psn) = (Opcode::DATAGRAM, MANAGER_QPN, Psn::default());
    let head = Head { opcode, qpn, psn, wants_acknowledge: false, extension };
    [&head.bytes(message.len())[..], &message].concat()
}

/// A client with a connection, which its target attacks.
struct Victim {
    client: Client,
    arena: Arena,
    now: Instant,
    request: Request,
    /// The numbers of the next packets of the peer, and of acknowledgements.
    next: [u32; 2],
    keys: [u32; 2],
}

impl Victim {
    fn new() -> Option<Self> {
        let (mut client, now) = (Client::new(PEER, 1472, 5), Instant(1));
        let timeout = Duration::from_secs(5);
        let id = client.connect(&Connect { service: 4420, private: &[], message_max: 600, timeout }, now)?;
        let Payload::Message(bytes) = client.poll_send(now)?.payload else { return None };
        let Body::Request(request) = Message::parse(&bytes[..])?.body else { return None };
        let reply =
            Reply { ids: (9, request.id), qpn: 9, psn: 100, reads: 4, guid: [0; 8], private: [0; REPLY_PRIVATE] };
        client.receive(&managed(Body::Reply(reply)), now);
        let arena = Arena::new(8 << 20);
        let keys = client.keys(id)?;
        let readable = Registered::Readable(arena.take_sg(LEN)?.share());
        let keys = [keys.register(0, readable), keys.register(1, Registered::Writable(arena.take_sg(LEN)?))];
        client.send(id, arena.copy(&[1; 50]).map(Sg::from)?.into());
        Some(Self { client, arena, now, request, next: [request.psn, 100], keys })
    }

    /// Takes a packet. Bits of `kind` replace its queue pair, its number and its key by those that fit.
    fn take(&mut self, packet: &[u8], kind: u8) {
        let mut packet = packet.to_vec();
        let mut put = |at: usize, bytes: &[u8]| {
            let place = packet.get_mut(at..at + bytes.len());
            place.into_iter().for_each(|place| place.copy_from_slice(bytes));
        };
        if kind & 2 == 0 {
            put(5, &self.request.qpn.to_be_bytes()[1..]);
        }
        if kind & 8 == 0 {
            let next = &mut self.next[usize::from(kind >> 2 & 1)];
            put(9, &(*next + u32::from(kind >> 6)).to_be_bytes()[1..]);
            *next += 1;
        }
        if kind & 16 == 0 {
            // Small addresses fit, too.
            put(12, &[0; 6]);
            put(20, &self.keys[usize::from(kind >> 5 & 1)].to_be_bytes());
            put(24, &[0; 2]);
        }
        if let Some((id, message)) = self.client.receive(&packet, self.now) {
            assert!(message.len() <= 600);
            let data = self.arena.copy(&[1; 50]).map(Sg::from).unwrap_or_default();
            self.client.send(id, data.into());
        }
        let sent = std::iter::from_fn(|| self.client.poll_send(self.now)).count();
        assert!(sent <= ANSWERS_MAX, "{sent} packets");
        self.now = self.now + STEP;
        self.client.expire(self.now);
        let ended = std::iter::from_fn(|| self.client.poll_event());
        assert!(ended.filter(|event| matches!(event, Event::Closed(..))).count() <= 1);
    }
}

/// A target sends packets: each begins with its length, and a byte that says what of it is replaced.
///
/// # Panics
/// When something grows beyond its limits.
pub fn target(bytes: &[u8]) {
    let Some(mut victim) = Victim::new() else { return };
    let mut rest = bytes;
    while let Some(([len, kind], behind)) = rest.split_first_chunk::<2>() {
        let (packet, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = behind;
        if let Some(packet) = Packet::parse(packet).filter(|_| kind & 1 == 1) {
            // The message of the connection manager for this connection.
            let ids = (9, victim.request.id);
            let body = match packet.psn.get() % 4 {
                0 => Body::Disconnect(ids.0, ids.1, 0),
                1 => Body::Disconnected(ids.0, ids.1),
                2 => Body::Receipt(ids.0, ids.1),
                _ => Body::Ready(ids.0, ids.1),
            };
            victim.take(&managed(body), 0x1a);
        }
        victim.take(packet, *kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            target(&bytes);
        }

        #[test]
        fn requests_that_nearly_fit_are_taken(
            packets in prop::collection::vec(
                (0_u8..0x18, any::<u8>(), prop::collection::vec(any::<u8>(), 12..200)),
                1..30,
            ),
        ) {
            let of = |(opcode, kind, mut packet): (u8, u8, Vec<u8>)| {
                packet[..4].copy_from_slice(&[opcode, 0, 0xff, 0xff]);
                [vec![packet.len() as u8, kind], packet].concat()
            };
            target(&packets.into_iter().flat_map(of).collect::<Vec<u8>>());
        }
    }
}
