use super::*;
use crate::limits::ENTRY_BYTES;
use crate::requester::{Failed, Message};
use crate::testing::{Lossy, Peer, Random, packet, sent};
use crate::wire::{Opcode, Remote, Syndrome};
use lunar_core::mem::{Arena, Sg};
use std::collections::BTreeSet;
use std::time::Duration;

const RECEIVES: Receives = Receives { bytes: 4000, count: usize::MAX >> 1 };

fn settings(mtu: usize, first: u32, expected: u32) -> Settings {
    Settings { mtu, first: Psn::new(first), expected: Psn::new(expected), reads: 3, receives: RECEIVES }
}

fn take(connection: &mut Connection, bytes: &[u8], now: Instant) -> (Option<Vec<u8>>, Option<Completed>) {
    match connection.receive(&Packet::parse(bytes).expect("well-formed"), now) {
        Effect::None => (None, None),
        Effect::Message(message) => (Some(message.into_owned()), None),
        Effect::Read(completed) => (None, Some(completed)),
        Effect::Failed(why) => panic!("it has failed: {why:?}"),
    }
}

/// Everything that a connection has to send now.
fn all(connection: &mut Connection, now: Instant) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| connection.poll(now)).map(|outgoing| sent(&outgoing)).collect()
}

/// A message of these bytes, which invalidates a key of the peer if one is named.
fn message_of(arena: &Arena, bytes: &[u8], invalidates: Option<u32>) -> Message {
    let data = arena.copy(bytes).map(Sg::from).unwrap_or_default();
    Message { invalidates, ..data.into() }
}

/// A target and a peer with memory on a link with faults: every message arrives once and in order, every write and
/// every read has its bytes.
fn run_against_memory(seed: u64) {
    let mut random = Random(seed);
    let mtu = 256 << random.below(5);
    let psn = 0xff_ff00 + random.below(0x200) as u32;
    let faults = [random.below(60), random.below(30), random.below(30)];
    let (mut there, mut back) = (Lossy::new(faults), Lossy::new(faults));
    let arena = Arena::new(16 << 20);
    let mut connection = Connection::new(&settings(mtu, psn, 0));
    let readable: Vec<u8> = (0..200_000).map(|_| random.below(256) as u8).collect();
    let mut peer = Peer::new(mtu, Psn::new(psn), [readable.clone(), vec![0; 200_000]].concat());
    peer.not_ready = random.below(3) as u32;
    let (mut messages, mut written, mut reads, mut now) = (Vec::new(), readable.clone(), Vec::new(), Instant(1));
    let (mut left, mut invalidated) = (40, BTreeSet::new());
    for _ in 0..200_000 {
        if left > 0 && random.below(4) == 0 {
            left -= 1;
            let len = random.below(9000) as usize;
            match random.below(3) {
                0 => {
                    let message: Vec<u8> = (0..len.min(300)).map(|_| random.below(256) as u8).collect();
                    let invalidates = Some(1000 + messages.len() as u32).filter(|_| random.below(2) == 0);
                    invalidated.extend(invalidates);
                    connection.requester().send(message_of(&arena, &message, invalidates));
                    messages.push(message);
                }
                1 if written.len() + len < 400_000 && len > 0 => {
                    let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                    let to = Remote { address: written.len() as u64, key: 1 };
                    connection.requester().write(to, arena.copy(&data).map(Sg::from).expect("room"));
                    written.extend(data);
                }
                _ => {
                    let len = len.max(1);
                    let at = random.below((readable.len() - len) as u64) as usize;
                    let memory = arena.take_sg(len).expect("room");
                    let from = Remote { address: at as u64, key: 1 };
                    connection.requester().read(from, memory, reads.len() as u64);
                    reads.push((at, len, false));
                }
            }
        }
        let outgoing = connection.poll(now).map(|outgoing| sent(&outgoing));
        let is_quiet = outgoing.is_none();
        outgoing.into_iter().for_each(|packet| there.send(packet, &mut random));
        let arrived = there.receive();
        let answers = arrived.iter().flat_map(|packet| peer.receive(packet)).collect::<Vec<_>>();
        answers.into_iter().for_each(|answer| back.send(answer, &mut random));
        let answer = back.receive();
        if let Some(answer) = &answer
            && let (_, Some(completed)) = take(&mut connection, answer, now)
        {
            let (at, len, is_over) = &mut reads[completed.token as usize];
            assert!(!std::mem::replace(is_over, true), "a READ is complete once");
            assert_eq!(completed.data.to_vec(), readable[*at..*at + *len], "seed {seed}");
        }
        if is_quiet && arrived.is_none() && answer.is_none() {
            if left == 0 && connection.is_idle() {
                break;
            }
            now = connection.deadline().unwrap_or(now).max(now + Duration::from_micros(10));
            assert_eq!(connection.expire(now), None, "seed {seed}");
        }
    }
    assert!(connection.is_idle() && left == 0, "seed {seed} has not ended");
    assert_eq!(peer.messages, messages, "seed {seed}");
    assert_eq!(peer.invalidated, invalidated, "seed {seed}");
    assert!(peer.memory[..written.len()] == written, "seed {seed}");
    assert!(reads.iter().all(|(_, _, is_over)| *is_over), "seed {seed}");
    assert_eq!(connection.queued(), 0);
}

#[test]
fn memory_and_messages_survive_a_link_with_faults() {
    (0..300).for_each(run_against_memory);
}

/// Two ends that send messages to each other.
fn run_both_ways(seed: u64) {
    let mut random = Random(seed);
    let mtu = 256 << random.below(5);
    let psns = [0xff_fff0, random.below(1 << 24) as u32];
    let arena = Arena::new(16 << 20);
    let faults = [random.below(100), random.below(50), random.below(50)];
    let mut ends = [(0, 1), (1, 0)].map(|(own, other): (usize, usize)| {
        (Connection::new(&settings(mtu, psns[own], psns[other])), Lossy::new(faults))
    });
    let (mut sent_messages, mut received) = ([const { Vec::new() }; 2], [const { Vec::<Vec<u8>>::new() }; 2]);
    let mut now = Instant(1);
    for round in 0..100_000 {
        let mut is_quiet = true;
        for own in [0, 1] {
            if round < 200 && random.below(3) == 0 {
                let message: Vec<u8> = (0..1 + random.below(3999)).map(|_| random.below(256) as u8).collect();
                ends[own].0.requester().send(arena.copy(&message).map(Sg::from).expect("room").into());
                sent_messages[own].push(message);
            }
            for packet in all(&mut ends[own].0, now) {
                is_quiet = false;
                ends[own].1.send(packet, &mut random);
            }
            for _ in 0..random.below(8) {
                let Some(packet) = ends[own].1.receive() else { break };
                is_quiet = false;
                let (message, _) = take(&mut ends[1 - own].0, &packet, now);
                received[1 - own].extend(message);
            }
        }
        if is_quiet && round >= 200 {
            if ends.iter().all(|(connection, _)| connection.is_idle()) {
                break;
            }
            now = now + Duration::from_millis(10);
            for (connection, _) in &mut ends {
                assert_eq!(connection.expire(now), None, "seed {seed}");
            }
        }
    }
    for own in [0, 1] {
        assert!(received[1 - own] == sent_messages[own], "seed {seed}");
    }
}

#[test]
fn messages_of_two_ends_arrive_once_and_in_order() {
    (0..100).for_each(run_both_ways);
}

#[test]
fn a_message_is_cut_into_packets_and_acknowledged_as_a_whole() {
    let (arena, now) = (Arena::new(4 << 20), Instant(1));
    let mut connection = Connection::new(&settings(256, 5, 0));
    connection.requester().send(arena.copy(&[7; 600]).map(Sg::from).expect("room").into());
    let packets = all(&mut connection, now);
    let parsed: Vec<_> = packets.iter().map(|packet| Packet::parse(packet).expect("well-formed")).collect();
    let shape: Vec<_> = parsed.iter().map(|packet| (packet.opcode, packet.psn.get(), packet.payload.len())).collect();
    let wanted = [(Opcode::SEND_FIRST, 5, 256), (Opcode::SEND_MIDDLE, 6, 256), (Opcode::SEND_LAST, 7, 88)];
    assert_eq!(shape, wanted);
    assert!(!parsed[0].wants_acknowledge && parsed[2].wants_acknowledge);
    let acknowledge =
        |psn, syndrome| packet(Opcode::ACKNOWLEDGE, Psn::new(psn), false, Extension::Acknowledge(syndrome, 1), &[]);
    // The first one has arrived; the second one is missing.
    take(&mut connection, &acknowledge(6, Syndrome::SEQUENCE_ERROR), now);
    assert_eq!((all(&mut connection, now)[..] == packets[1..], connection.queued()), (true, 600 + ENTRY_BYTES));
    // Once: it may be on its way.
    take(&mut connection, &acknowledge(6, Syndrome::SEQUENCE_ERROR), now);
    assert!(all(&mut connection, now).is_empty());
    take(&mut connection, &acknowledge(9, Syndrome::ACKNOWLEDGED), now);
    assert_eq!(connection.queued(), 600 + ENTRY_BYTES, "nothing of this number was sent");
    take(&mut connection, &acknowledge(7, Syndrome::ACKNOWLEDGED), now);
    assert!(connection.is_idle() && connection.queued() == 0 && connection.deadline().is_none());
}

#[test]
fn a_write_is_acknowledged_with_the_message_behind_it() {
    let (arena, now) = (Arena::new(4 << 20), Instant(1));
    let requests = |writes: usize, has_message: bool| -> Vec<u32> {
        let mut connection = Connection::new(&settings(1024, 5, 0));
        for _ in 0..writes {
            connection.requester().write(Remote::default(), arena.copy(&[7; 60]).map(Sg::from).expect("room"));
        }
        if has_message {
            connection.requester().send(message_of(&arena, &[8; 20], None));
        }
        let packets = all(&mut connection, now);
        let parsed = packets.iter().map(|packet| Packet::parse(packet).expect("well-formed"));
        parsed.filter(|packet| packet.wants_acknowledge).map(|packet| packet.psn.get()).collect()
    };
    assert_eq!((requests(1, true), requests(1, false)), (vec![6], vec![5]));
    // A window is never without a request.
    assert_eq!(requests(100, true), [31, 63, 95, 105]);
}

#[test]
fn a_silent_peer_is_given_up() {
    let arena = Arena::new(4 << 20);
    let mut connection = Connection::new(&settings(1024, 5, 0));
    connection.requester().send(arena.copy(&[7; 60]).map(Sg::from).expect("room").into());
    let (mut now, mut count) = (Instant(1), 0);
    loop {
        count += all(&mut connection, now).len();
        now = connection.deadline().expect("it waits");
        if let Some(why) = connection.expire(now) {
            assert_eq!(why, Why::Peer(Failed::Silent));
            break;
        }
    }
    assert_eq!(count, crate::limits::RETRIES as usize + 1);
    assert!(now.since(Instant(1)) > Duration::from_secs(10) && now.since(Instant(1)) < Duration::from_secs(20));
    assert!(all(&mut connection, now).is_empty() && connection.deadline().is_none());
}

#[test]
fn reads_are_outstanding_up_to_their_limit_and_nothing_overtakes_them() {
    let (arena, now) = (Arena::new(4 << 20), Instant(1));
    let mut connection = Connection::new(&Settings { reads: 2, ..settings(256, 0, 0) });
    for token in 0..3 {
        connection.requester().read(Remote::default(), arena.take_sg(300).expect("room"), token);
    }
    let psns =
        |packets: Vec<Vec<u8>>| packets.iter().map(|p| Packet::parse(p).expect("right").psn.get()).collect::<Vec<_>>();
    assert_eq!(psns(all(&mut connection, now)), [0, 2]);
    let acknowledged = Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1);
    let response = |opcode, psn, len| packet(opcode, Psn::new(psn), false, acknowledged, &vec![7; len]);
    // A wrong length is no response.
    take(&mut connection, &response(Opcode::READ_RESPONSE_FIRST, 0, 200), now);
    take(&mut connection, &response(Opcode::READ_RESPONSE_FIRST, 0, 256), now);
    // The second one is missing: the rest of the READ is requested again, and the one after it.
    take(&mut connection, &response(Opcode::READ_RESPONSE_FIRST, 2, 256), now);
    let again = all(&mut connection, now);
    let first = Packet::parse(&again[0]).expect("right");
    assert_eq!((first.psn.get(), first.extension), (1, Extension::Remote(Remote { address: 256, key: 0 }, 44)));
    assert_eq!(psns(again), [1, 2]);
    let (_, completed) = take(&mut connection, &response(Opcode::READ_RESPONSE_ONLY, 1, 44), now);
    assert_eq!(completed.map(|completed| (completed.token, completed.data.len())), Some((0, 300)));
    // The peer says that it takes fewer.
    connection.requester().limit_reads(1);
    assert_eq!(psns(all(&mut connection, now)), [0; 0]);
    take(&mut connection, &response(Opcode::READ_RESPONSE_FIRST, 2, 256), now);
    take(&mut connection, &response(Opcode::READ_RESPONSE_LAST, 3, 44), now);
    connection.requester().limit_reads(9);
    assert_eq!(psns(all(&mut connection, now)), [4]);
}

#[test]
fn peers_that_break_the_rules_are_refused() {
    let now = Instant(1);
    let remote = Extension::Remote(Remote::default(), 4);
    let send = |opcode, len| vec![packet(opcode, Psn::new(0), true, Extension::None, &vec![1; len])];
    let after_first = |opcode, len| {
        let first = packet(Opcode::SEND_FIRST, Psn::new(0), false, Extension::None, &[1; 256]);
        vec![first, packet(opcode, Psn::new(1), true, Extension::None, &vec![1; len])]
    };
    for (packets, syndrome, what) in [
        (vec![packet(Opcode::WRITE_ONLY, Psn::new(0), true, remote, &[1; 4])], Syndrome::ACCESS_ERROR, "a write"),
        (vec![packet(Opcode::READ_REQUEST, Psn::new(0), true, remote, &[])], Syndrome::ACCESS_ERROR, "a read"),
        (send(Opcode::COMPARE_SWAP, 28), Syndrome::INVALID_REQUEST, "an atomic operation"),
        (send(Opcode::SEND_ONLY_INVALIDATE, 8), Syndrome::INVALID_REQUEST, "an invalidation"),
        (send(Opcode::SEND_MIDDLE, 256), Syndrome::INVALID_REQUEST, "no first packet"),
        (send(Opcode::SEND_FIRST, 255), Syndrome::INVALID_REQUEST, "a first packet that is not full"),
        (send(Opcode::SEND_ONLY, 257), Syndrome::INVALID_REQUEST, "more than the MTU"),
        (after_first(Opcode::SEND_LAST, 0), Syndrome::INVALID_REQUEST, "a last packet of nothing"),
        (after_first(Opcode::SEND_ONLY, 8), Syndrome::INVALID_REQUEST, "another message inside one"),
        (after_first(Opcode::SEND_LAST, 200), Syndrome::INVALID_REQUEST, "more than a receive has"),
    ] {
        let receives = Receives { bytes: 300, count: 9 };
        let mut connection = Connection::new(&Settings { receives, ..settings(256, 0, 0) });
        let (last, before) = packets.split_last().expect("some");
        before.iter().for_each(|packet| drop(take(&mut connection, packet, now)));
        let effect = connection.receive(&Packet::parse(last).expect("well-formed"), now);
        assert!(matches!(effect, Effect::Failed(Why::Broken)), "{what}: {effect:?}");
        let answers = all(&mut connection, now);
        let answer = Packet::parse(&answers[0]).expect("an answer").extension;
        assert!(matches!(answer, Extension::Acknowledge(found, _) if found == syndrome), "{what}: {answer:?}");
    }
}

#[test]
fn a_peer_without_a_receive_is_told_to_wait() {
    let now = Instant(1);
    let receives = Receives { bytes: 300, count: 1 };
    let mut connection = Connection::new(&Settings { receives, ..settings(256, 0, 0) });
    let send = |psn| packet(Opcode::SEND_ONLY, Psn::new(psn), true, Extension::None, &[1; 8]);
    let answer = |connection: &mut Connection| {
        let answers = all(connection, now);
        answers
            .iter()
            .map(|answer| Packet::parse(answer).expect("right"))
            .map(|p| (p.psn.get(), p.extension))
            .collect::<Vec<_>>()
    };
    assert!(take(&mut connection, &send(0), now).0.is_some());
    assert_eq!(answer(&mut connection), [(0, Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1))]);
    for psn in [1, 2] {
        assert!(take(&mut connection, &send(psn), now).0.is_none());
    }
    assert_eq!(answer(&mut connection), [(1, Extension::Acknowledge(Syndrome::WAIT, 1))]);
    connection.post(1);
    assert!(take(&mut connection, &send(1), now).0.is_some());
    // The acknowledgement was lost.
    assert_eq!(answer(&mut connection).len(), 1);
    assert!(take(&mut connection, &send(1), now).0.is_none());
    assert_eq!(answer(&mut connection), [(1, Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 2))]);
    // One is missing: that is reported once.
    connection.post(1);
    for psn in [3, 4] {
        assert!(take(&mut connection, &send(psn), now).0.is_none());
    }
    assert_eq!(answer(&mut connection), [(2, Extension::Acknowledge(Syndrome::SEQUENCE_ERROR, 2))]);
}

#[test]
fn a_slow_peer_is_not_flooded() {
    let arena = Arena::new(4 << 20);
    let mut connection = Connection::new(&settings(1024, 0, 0));
    let slow = Duration::from_millis(500);
    let mut repeated = 0;
    for number in 0..20_u64 {
        let mut now = Instant(1 + number * slow.as_nanos() as u64);
        let end = now + slow;
        connection.requester().send(arena.copy(&[7; 60]).map(Sg::from).expect("room").into());
        let mut count = all(&mut connection, now).len() - 1;
        while let Some(deadline) = connection.deadline().filter(|deadline| *deadline < end) {
            now = deadline;
            assert_eq!(connection.expire(now), None);
            count += all(&mut connection, now).len();
        }
        let acknowledged = Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1);
        let psn = Psn::new(number as u32);
        take(&mut connection, &packet(Opcode::ACKNOWLEDGE, psn, false, acknowledged, &[]), end);
        // It is measured once nothing is repeated: soon.
        repeated += if number < 4 { 0 } else { count };
    }
    assert_eq!(repeated, 0);
}

#[test]
fn a_peer_that_does_not_acknowledge_answers_is_told_to_wait() {
    let (arena, now) = (Arena::new(4 << 20), Instant(1));
    let receives = Receives { bytes: 300, count: 2 };
    let mut connection = Connection::new(&Settings { receives, ..settings(256, 0, 0) });
    let mut most = 0;
    let mut send = |connection: &mut Connection, psn| {
        let request = packet(Opcode::SEND_ONLY, Psn::new(psn), true, Extension::None, &[1; 8]);
        let has_arrived = take(connection, &request, now).0.is_some();
        if has_arrived {
            let data = arena.copy(&[7; 60]).map(Sg::from).expect("room");
            connection.requester().send(Message { data, posts: 1, share: None, invalidates: None });
        }
        all(connection, now);
        most = connection.queued().max(most);
        has_arrived
    };
    assert_eq!([0, 1, 2, 2, 2].map(|psn| send(&mut connection, psn)), [true, true, false, false, false]);
    let acknowledge =
        packet(Opcode::ACKNOWLEDGE, Psn::new(0), false, Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1), &[]);
    take(&mut connection, &acknowledge, now);
    assert_eq!([2, 3].map(|psn| send(&mut connection, psn)), [true, false]);
    assert_eq!((most, connection.counts()), (2 * (60 + ENTRY_BYTES), (3, 1)));
}

#[test]
fn a_share_is_held_until_its_message_is_acknowledged() {
    let shares = lunar_core::shares::PeerShares::new(1000);
    let member = shares.join(std::net::Ipv4Addr::LOCALHOST.into());
    let (now, mut connection) = (Instant(1), Connection::new(&settings(256, 0, 0)));
    connection.requester().send(Message { data: Sg::default(), posts: 0, share: member.take(7), invalidates: None });
    all(&mut connection, now);
    assert_eq!(shares.held(), 7);
    let acknowledged = Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1);
    take(&mut connection, &packet(Opcode::ACKNOWLEDGE, Psn::new(0), false, acknowledged, &[]), now);
    assert_eq!(shares.held(), 0);
}

#[test]
fn each_piece_of_a_write_counts() {
    let mut connection = Connection::new(&settings(256, 0, 0));
    let arena = Arena::new(4 << 20);
    for number in 1..=1000 {
        let byte = arena.zeroes().map(|zeroes| zeroes.part(0..1).into()).expect("room");
        connection.requester().write(Remote::default(), byte);
        assert_eq!(connection.queued(), number * (1 + ENTRY_BYTES));
    }
}
