//! Entry points of the fuzz targets.

use crate::disk::{Disk, DiskEvent, Operation};
use crate::initiator::InitiatorConfig;
use lunar_core::time::Instant;
use lunar_st::wire::{HEADER_LEN, Op, Packet, flags};
use lunar_st::{Path, Peer};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The time between two packets.
const STEP: Duration = Duration::from_millis(20);
/// Bytes of an input for a packet.
const PIECE: usize = HEADER_LEN + 8;

/// Gives an initiator the packets of an input, most of them with its ports and its Key.
///
/// # Panics
/// When a command ends twice.
pub fn packets(bytes: &[u8]) {
    let path = Path { link: 0, peer: Peer::Ip(SocketAddr::from(([192, 0, 2, 1], 18181))) };
    let (name, timeout) = ("iqn.2026-01.org.example:fuzz".to_owned(), Duration::from_secs(30));
    let config = InitiatorConfig {
        name,
        target: String::new(),
        paths: vec![path],
        mtu: 1500,
        depth: 8,
        timeout,
        command_timeout: None,
        secret: [1, 2],
    };
    let mut now = Instant(1);
    let (mut disk, mut left) = (Disk::new(config, 0, now), vec![0_u32, 1]);
    disk.start(0, Operation::Read { lba: 1, count: 4 }, now);
    disk.start(1, Operation::Write { lba: 1, data: Rc::from(vec![1; 2048]) }, now);
    let mut sent = Packet::new(Op::END);
    for piece in bytes.chunks(PIECE) {
        let mut whole = [0; PIECE];
        whole[..piece.len()].copy_from_slice(piece);
        let mut on = |event: DiskEvent<'_>| {
            if let DiskEvent::Done(cookie, _) = event {
                let known = left.iter().position(|one| *one == cookie);
                left.remove(known.expect("a command ends once"));
            }
        };
        disk.tick(now, &mut on);
        while let Some((_, packet)) = disk.next_packet() {
            sent = Packet::parse(&packet).map_or(sent, |(packet, ..)| packet);
        }
        // The checksum is absent, and the payload has the last bytes of the piece.
        whole[12..14].fill(0);
        let Some((drawn, ..)) = Packet::parse(&[&whole[..14], &[0, 8], &whole[16..]].concat()) else { continue };
        let key = if sent.op == Op::REQUEST_CONNECTION { sent.block } else { drawn.key };
        let op = Op::KNOWN[usize::from(drawn.op.0) % Op::KNOWN.len()].0;
        let mut packet = Packet { op, key, to_port: sent.from_port, from_port: sent.to_port, ..drawn };
        if op == Op::CONNECTION_ANSWER {
            // One that is granted, so that the login begins.
            let words = sent.words;
            packet = Packet { words, block: 7, len: 0, flags: drawn.flags & !flags::REJECT, ..packet };
            (packet.to_id, packet.from_id, packet.offset) = (sent.to_id, sent.from_id, sent.offset);
        }
        let payload = vec![whole[HEADER_LEN]; usize::from(packet.len)];
        disk.receive(path, &[&packet.bytes()[..], &payload].concat(), now, &mut on);
        now = now + STEP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            packets(&bytes);
        }
    }
}
