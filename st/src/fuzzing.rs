//! Entry points of the fuzz targets: a peer that sends anything.

use crate::engine::{Engine, FetchRequest, PutRequest};
use crate::event::{Access, Event, Id, Refused, VcId, Wake};
use crate::limits::VCS_MAX;
use crate::testing::{PORT, Shadow, World, path};
use crate::wire::{FetchCode, HEADER_LEN, Op, Packet, Reason, flags};
use crate::{Settings, Ulp};
use lunar_core::time::Instant;
use std::time::Duration;

/// The most bytes of a Transfer or region that the program has memory for.
const MOST: u64 = 64 << 10;
/// Bytes of an input for a packet.
const PIECE: usize = HEADER_LEN + 16;
/// The time between two packets.
const STEP: Duration = Duration::from_millis(7);

/// Takes bytes apart as a packet, and builds it again.
///
/// # Panics
/// When the bytes that are built are taken apart as another packet.
pub fn codec(bytes: &[u8]) {
    let Some((packet, is_checked, payload)) = Packet::parse(bytes) else { return };
    let mut built = if is_checked { packet.checked([payload]) } else { packet.bytes() }.to_vec();
    built.extend(payload);
    assert_eq!(Packet::parse(&built), Some((packet, is_checked, payload)));
}

/// An end that a peer attacks.
struct Victim {
    engine: Engine,
    memory: Shadow,
    vc: VcId,
    now: Instant,
    ids: Vec<Id>,
}

impl Victim {
    fn started(&mut self, id: Result<Id, Refused>, len: u64) {
        if let Ok(id) = id {
            self.memory.give(self.vc, id, len);
            self.ids.push(id);
        }
    }

    /// Starts sequences of each kind, so that answers have something to fit to.
    fn start(&mut self) {
        let (vc, now) = (self.vc, self.now);
        let sent = self.engine.send(vc, 5000, now);
        self.started(sent, 5000);
        let requested = self.engine.request(vc, 5000, now);
        self.started(requested, 5000);
        let region = self.engine.request_region(vc, Access::ALL, MOST, now);
        self.started(region, 0);
    }

    /// Uses a region that the peer has granted.
    fn use_region(&mut self, region: Id, len: u64) {
        let (vc, now) = (self.vc, self.now);
        let got = self.engine.get(vc, region, 0, len.min(2000) as u32, now);
        self.started(got, 2000);
        let put = PutRequest { region, offset: 0, len: 700, opaque: 1, is_solicited: true, interrupts: true };
        let put = self.engine.put(vc, &put, now);
        self.started(put, 700);
        let code = FetchCode::ADD;
        let fetch = FetchRequest { region, offset: 0, code, is_wide: true, operand: 1, expected: 0 };
        let fetched = self.engine.fetch(vc, &fetch, now);
        self.started(fetched, 0);
    }

    fn respond(&mut self, event: Event) {
        let (now, engine) = (self.now, &mut self.engine);
        let done = match event {
            Event::SendAsked { vc, id, len, .. } if len <= MOST => {
                self.memory.give(vc, id, len);
                self.ids.push(id);
                engine.grant(vc, id, now).map(drop)
            }
            Event::ReceiveAsked { vc, id, len, .. } => {
                self.memory.give(vc, id, len.min(MOST));
                self.ids.push(id);
                engine.send_asked(vc, id, len.min(MOST), now)
            }
            Event::RegionAsked { vc, id, len, .. } if len <= MOST => {
                self.memory.give(vc, id, len);
                self.ids.push(id);
                engine.grant_region(vc, id, (Access::ALL, Wake::Every), now)
            }
            Event::SendAsked { vc, id, .. } | Event::RegionAsked { vc, id, .. } => {
                engine.cancel(vc, id, Reason::NO_RESOURCES, now)
            }
            Event::RegionGranted { id, len, .. } => {
                self.use_region(id, len);
                Ok(())
            }
            _ => Ok(()),
        };
        assert!(matches!(done, Ok(()) | Err(Refused::Busy | Refused::Unknown)), "{event:?}: {done:?}");
    }

    /// Takes a packet, then all that follows from it.
    fn take(&mut self, link: u8, bytes: &[u8]) {
        self.engine.handle(path(0, link), bytes, &mut self.memory, self.now);
        while let Some(event) = self.engine.poll_event() {
            self.respond(event);
        }
        let mut count = 0;
        while let Some(outgoing) = self.engine.poll_send(self.now) {
            // A packet causes no more packets than there are Slots, STUs of granted Blocks, and requests.
            self.memory.check(&outgoing);
            count += 1;
            assert!(count < 100_000, "an answer without an end");
        }
        assert!(self.engine.connections() <= VCS_MAX);
    }
}

/// Gives an end the packets of an input, most of them with the right Key and with identifiers that are in use.
///
/// # Panics
/// When a byte is placed outside of granted memory, or a sequence gets more than its due.
pub fn packets(bytes: &[u8]) {
    let settings = Settings { stu: 8, buffer: 10, block: 12, window: 1 << 14, ..Settings::default() };
    let mut world = World::new(1, 0, [settings; 2]);
    world.connect(2, settings);
    while world.sides.iter().any(|side| side.vc.is_none()) {
        assert!(world.step(), "it connects");
    }
    (0..20).for_each(|_| {
        world.step();
    });
    let [side, peer] = world.sides;
    let (Some(vc), Some(peer_vc)) = (side.vc, peer.vc) else { return };
    let ids = vec![0, side.ids().unwrap_or(0)];
    let mut victim = Victim { engine: side.engine, memory: side.memory, vc, now: world.now, ids };
    victim.engine.listen(PORT + 1, Ulp::RAW, settings).expect("good settings");
    victim.start();
    let ports = victim.engine.ports(vc);
    for piece in bytes.chunks(PIECE) {
        let mut whole = [0; PIECE];
        whole[..piece.len()].copy_from_slice(piece);
        // Its payload is made here, and it has no checksum: a right one is rarely drawn.
        let len = u16::from_be_bytes([whole[14], whole[15]]) % 1024;
        whole[12..16].fill(0);
        let Some((drawn, ..)) = Packet::parse(&whole[..HEADER_LEN]) else { continue };
        let choice = whole[HEADER_LEN];
        let pick = |number: u16| victim.ids[usize::from(number) % victim.ids.len()];
        let mut packet = Packet { len, ..drawn };
        if choice & 1 == 0 {
            let (own, other) = ports;
            (packet.key, packet.to_port, packet.from_port) = (vc.0, own, other);
        }
        if choice & 2 == 0 {
            packet.op = Op::KNOWN[usize::from(drawn.op.0) % Op::KNOWN.len()].0;
        }
        if choice & 4 == 0 {
            (packet.to_id, packet.from_id) = (pick(drawn.to_id), drawn.from_id % 16);
        }
        if choice & 8 == 0 {
            // Small numbers fit more often.
            (packet.block, packet.bufx, packet.offset) = (drawn.block % 64, drawn.bufx % 64, drawn.offset % 1024);
            packet.words = drawn.words % (MOST * 2);
        }
        if packet.op == Op::REQUEST_CONNECTION && packet.has(flags::JOIN) && choice & 16 == 0 {
            packet.block = peer_vc.0;
        }
        let payload = vec![choice; usize::from(packet.len)];
        victim.take(choice >> 6, &[&packet.bytes()[..], &payload].concat());
        victim.now = victim.now + STEP;
        victim.engine.expire(victim.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            codec(&bytes);
            packets(&bytes);
        }
    }
}
