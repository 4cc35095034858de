use super::*;
use crate::keys::Registered;
use lunar_core::mem::{Arena, SgMut};
use lunar_rdma::testing::packet;

const MTU: usize = 256;
/// The bytes of memory that is registered at the places 0 (to be read) and 1 (to be written).
const LEN: usize = 1000;
const FIRST: u32 = 0xff_fffe;

struct Conversation {
    responder: Responder,
    readable: u32,
    writable: u32,
}

fn memory() -> SgMut {
    let mut memory = Arena::new(1 << 20).take_sg(LEN).expect("room");
    memory.copy_from(0, &(0..LEN).map(|at| at as u8).collect::<Vec<_>>());
    memory
}

impl Conversation {
    fn new() -> Self {
        let mut responder = Responder::new(MTU, Psn::new(FIRST), 300, 2);
        let readable = responder.keys.register(0, Registered::Readable(memory().share()));
        let writable = responder.keys.register(1, Registered::Writable(memory()));
        Self { responder, readable, writable }
    }

    /// The packet so many numbers behind the first one arrives. Returns the message that is complete.
    fn arrive(
        &mut self,
        at: u32,
        opcode: Opcode,
        extension: Extension,
        (payload, wants_acknowledge): (&[u8], bool),
    ) -> Result<Option<Vec<u8>>, Broken> {
        let bytes = packet(opcode, Psn::new(FIRST).plus(at), wants_acknowledge, extension, payload);
        let packet = Packet::parse(&bytes).expect("well-formed");
        self.responder.receive(&packet).map(|message| message.map(Cow::into_owned))
    }

    fn write(&mut self, at: u32, opcode: Opcode, to: Option<(u64, u32)>, len: usize) -> Result<(), Broken> {
        let key = self.writable;
        let extension = to.map_or(Extension::None, |(address, len)| Extension::Remote(Remote { address, key }, len));
        self.arrive(at, opcode, extension, (&vec![0xee; len], false)).map(drop)
    }

    fn read(&mut self, at: u32, address: u64, len: u32) -> Result<(), Broken> {
        let extension = Extension::Remote(Remote { address, key: self.readable }, len);
        self.arrive(at, Opcode::READ_REQUEST, extension, (&[], true)).map(drop)
    }

    /// The answers: for each, how many numbers behind the first one it is, its code, and the bytes of its payload.
    fn answers(&mut self) -> Vec<(u32, Opcode, usize)> {
        let next = || self.responder.poll();
        std::iter::from_fn(next)
            .map(|answer| (answer.psn.since(Psn::new(FIRST)), answer.opcode, answer.payload.len()))
            .collect()
    }

    fn syndrome(&mut self) -> Option<(u32, Syndrome)> {
        let answer = self.responder.poll()?;
        let Extension::Acknowledge(syndrome, _) = answer.extension else { panic!("an acknowledgement") };
        Some((answer.psn.since(Psn::new(FIRST)), syndrome))
    }

    fn written(&mut self) -> Vec<u8> {
        let Some(Registered::Writable(memory)) = self.responder.keys.take(1) else { panic!("it is there") };
        memory.share().to_vec()
    }
}

const SEND: (Opcode, Extension) = (Opcode::SEND_ONLY, Extension::None);

#[test]
fn an_acknowledgement_is_sent_when_it_is_requested_and_covers_what_was_before() {
    let mut all = Conversation::new();
    assert_eq!(all.arrive(0, SEND.0, SEND.1, (b"one", false)), Ok(Some(b"one".to_vec())));
    assert_eq!(all.answers(), []);
    assert_eq!(all.write(1, Opcode::WRITE_FIRST, Some((10, 300)), MTU), Ok(()));
    assert_eq!(all.write(2, Opcode::WRITE_LAST, None, 44), Ok(()));
    assert_eq!(all.arrive(3, SEND.0, SEND.1, (b"two", true)), Ok(Some(b"two".to_vec())));
    assert_eq!(all.arrive(4, SEND.0, SEND.1, (b"more", true)), Ok(Some(b"more".to_vec())));
    assert_eq!(all.answers(), [(4, Opcode::ACKNOWLEDGE, 0)], "one for both");
    let written = all.written();
    assert!(written[10..310] == [0xee; 300] && written[9] == 9 && written[310] == 310_u32 as u8);
}

#[test]
fn messages_in_several_packets_are_joined() {
    let mut all = Conversation::new();
    assert_eq!(all.arrive(0, Opcode::SEND_FIRST, Extension::None, (&[1; MTU], false)), Ok(None));
    let last = all.arrive(1, Opcode::SEND_LAST, Extension::None, (&[2; 9], false));
    assert_eq!(last, Ok(Some([&[1; MTU][..], &[2; 9]].concat())));
    assert_eq!(all.arrive(2, Opcode::SEND_FIRST, Extension::None, (&[1; MTU], false)), Ok(None));
    let long = all.arrive(3, Opcode::SEND_LAST, Extension::None, (&[2; 45], false));
    assert_eq!((long, all.syndrome()), (Err(Broken), Some((3, Syndrome::INVALID_REQUEST))));
}

#[test]
fn a_repeated_packet_is_acknowledged_again_and_not_executed() {
    let mut all = Conversation::new();
    assert_eq!(all.write(0, Opcode::WRITE_ONLY, Some((0, 4)), 4), Ok(()));
    let Some(Registered::Writable(mut memory)) = all.responder.keys.take(1) else { panic!("it is there") };
    memory.fill_from(0, 1);
    all.writable = all.responder.keys.register(1, Registered::Writable(memory));
    assert_eq!(all.write(0, Opcode::WRITE_ONLY, Some((0, 4)), 4), Ok(()));
    assert_eq!(all.syndrome(), Some((0, Syndrome::ACKNOWLEDGED)));
    assert_eq!(all.written(), [1; LEN]);
}

#[test]
fn a_gap_is_reported_once() {
    let mut all = Conversation::new();
    for at in [1, 2, 5] {
        assert_eq!(all.arrive(at, SEND.0, SEND.1, (b"later", true)), Ok(None));
    }
    assert_eq!((all.syndrome(), all.syndrome()), (Some((0, Syndrome::SEQUENCE_ERROR)), None));
    assert_eq!(all.arrive(0, SEND.0, SEND.1, (b"it", false)), Ok(Some(b"it".to_vec())));
    assert_eq!(all.arrive(2, SEND.0, SEND.1, (b"later", false)), Ok(None));
    assert_eq!(all.syndrome(), Some((1, Syndrome::SEQUENCE_ERROR)), "another one");
}

#[test]
fn reads_are_answered_in_order_and_again() {
    const READ: [Opcode; 4] = [
        Opcode::READ_RESPONSE_FIRST,
        Opcode::READ_RESPONSE_MIDDLE,
        Opcode::READ_RESPONSE_LAST,
        Opcode::READ_RESPONSE_ONLY,
    ];
    let [first, middle, last, only] = READ;
    let mut all = Conversation::new();
    assert_eq!((all.read(0, 0, 600), all.read(3, 999, 1)), (Ok(()), Ok(())));
    assert_eq!(all.arrive(4, SEND.0, SEND.1, (b"x", true)), Ok(Some(b"x".to_vec())));
    let [whole, acknowledge] = [[(0, first, 256), (1, middle, 256), (2, last, 88)], [(4, Opcode::ACKNOWLEDGE, 0); 3]];
    assert_eq!(all.answers(), [&whole[..], &[(3, only, 1)], &acknowledge[..1]].concat());
    // The second response was lost.
    assert_eq!((all.read(1, 256, 344), all.answers()), (Ok(()), vec![(1, first, 256), (2, last, 88)]));
    // While responses wait, an earlier READ comes first, and none is answered twice.
    assert_eq!((all.read(3, 999, 1), all.read(0, 0, 600), all.read(0, 0, 600)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(all.answers(), [&whole[..], &[(3, only, 1)]].concat());
    // This one was never requested as a whole, and the memory of that one has ended.
    assert_eq!((all.read(3, 0, 600), all.answers()), (Ok(()), vec![]));
    all.responder.keys.take(0);
    assert_eq!((all.read(0, 0, 600), all.answers()), (Ok(()), vec![]));
    assert_eq!((all.read(5, 0, 0), all.answers()), (Ok(()), vec![(5, only, 0)]), "nothing is read without a key");
}

#[test]
fn the_peer_reads_and_writes_only_what_it_may() {
    for (address, len) in [(0, LEN as u32 + 1), (LEN as u64, 1), (u64::MAX, 2), (0, u32::MAX)] {
        let mut all = Conversation::new();
        assert_eq!(all.read(0, address, len), Err(Broken));
        assert_eq!(all.syndrome(), Some((0, Syndrome::ACCESS_ERROR)), "{len} bytes at {address}");
        let mut all = Conversation::new();
        assert_eq!(all.write(0, Opcode::WRITE_FIRST, Some((address, len.max(300))), MTU), Err(Broken));
        assert_eq!(all.syndrome(), Some((0, Syndrome::ACCESS_ERROR)), "{len} bytes at {address}");
    }
    let mut all = Conversation::new();
    all.readable = all.writable;
    assert_eq!((all.read(0, 0, 1), all.syndrome()), (Err(Broken), Some((0, Syndrome::ACCESS_ERROR))));
    let mut all = Conversation::new();
    all.writable ^= 1;
    assert_eq!(all.write(0, Opcode::WRITE_ONLY, Some((0, 1)), 1), Err(Broken));
    let mut all = Conversation::new();
    all.writable = 0;
    assert_eq!(all.write(0, Opcode::WRITE_ONLY, Some((0, 0)), 0), Ok(()), "it asks whether this end is there");
}

#[test]
fn a_key_that_the_peer_has_invalidated_is_not_used_again() {
    let mut all = Conversation::new();
    let invalidate = Extension::Invalidate(all.writable);
    let message = all.arrive(0, Opcode::SEND_ONLY_INVALIDATE, invalidate, (b"done", true));
    assert_eq!((message, all.syndrome()), (Ok(Some(b"done".to_vec())), Some((0, Syndrome::ACKNOWLEDGED))));
    assert_eq!(all.write(1, Opcode::WRITE_ONLY, Some((0, 1)), 1), Err(Broken));
    let mut all = Conversation::new();
    let unknown = Extension::Invalidate(all.writable ^ 1 << 20);
    assert_eq!(all.arrive(0, Opcode::SEND_ONLY_INVALIDATE, unknown, (b"", true)), Err(Broken));
    assert_eq!(all.syndrome(), Some((0, Syndrome::ACCESS_ERROR)));
}

#[test]
fn packets_in_a_wrong_order_or_of_a_wrong_length_end_the_connection() {
    type Packets<'a> = &'a [(Opcode, Option<(u64, u32)>, usize)];
    let wrong: [Packets<'_>; 10] = [
        &[(Opcode::WRITE_MIDDLE, None, MTU)],
        &[(Opcode::WRITE_LAST, None, 1)],
        &[(Opcode::SEND_LAST, None, 1)],
        &[(Opcode::WRITE_FIRST, Some((0, 300)), 4)],
        &[(Opcode::WRITE_FIRST, Some((0, MTU as u32)), MTU)],
        &[(Opcode::WRITE_ONLY, Some((0, 3)), 4)],
        &[(Opcode::WRITE_FIRST, Some((0, 300)), MTU), (Opcode::WRITE_LAST, None, 43)],
        &[(Opcode::WRITE_FIRST, Some((0, 300)), MTU), (Opcode::SEND_ONLY, None, 1)],
        &[(Opcode::WRITE_FIRST, Some((0, 300)), MTU), (Opcode::WRITE_FIRST, Some((0, 300)), MTU)],
        &[(Opcode::SEND_ONLY_IMMEDIATE, None, 4)],
    ];
    for packets in wrong {
        let mut all = Conversation::new();
        let results: Vec<_> =
            (0..).zip(packets).map(|(at, (opcode, to, len))| all.write(at, *opcode, *to, *len).is_ok()).collect();
        assert_eq!(results.iter().filter(|is_right| !**is_right).count(), 1, "{packets:?}");
        assert_eq!(all.syndrome(), Some((packets.len() as u32 - 1, Syndrome::INVALID_REQUEST)), "{packets:?}");
    }
    let mut all = Conversation::new();
    assert_eq!([all.read(0, 0, 1), all.read(1, 0, 1), all.read(2, 0, 1)], [Ok(()), Ok(()), Err(Broken)], "too many");
}
