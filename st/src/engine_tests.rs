use super::*;
use crate::limits::{ENDED_MAX, HALF_OPEN, PROBES_MAX, SILENCE, VCS_MAX};
use crate::testing::{PORT, Shadow, World, path, run};
use crate::wire::{FetchCode, HEADER_LEN};
use std::time::Duration;

/// `LUNAR_SEEDS` is the number of runs; `LUNAR_SEED` repeats one.
#[test]
fn every_sequence_ends_once_and_whole_over_a_bad_network() {
    if let Some(seed) = std::env::var("LUNAR_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed);
    }
    let seeds = std::env::var("LUNAR_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    (0..seeds).for_each(run);
}

const SETTINGS: Settings =
    Settings { stu: 10, buffer: 12, slots: 8, block: 13, window: 1 << 20, options: options::ALL & !options::CHECKSUM };

/// An end that is connected with a peer whose packets a test makes.
struct Rig {
    engine: Engine,
    memory: Shadow,
    vc: VcId,
    now: Instant,
}

/// The Key of the peer, and the port of its end.
const PEER: (u32, u16) = (0xfeed_0001, 0xd001);

impl Rig {
    /// The peer connects to this end.
    fn new() -> Self {
        let mut engine = Engine::new([1, 2]);
        engine.listen(PORT, Ulp::RAW, SETTINGS).expect("good settings");
        let (memory, now) = (Shadow::default(), Instant(1_000_000_000));
        let mut rig = Self { engine, memory, vc: VcId(0), now };
        let cookie = rig.take(&request(7), 0)[0].low();
        let answers = rig.take(&request(cookie), 0);
        assert_eq!((answers[0].op, answers[0].flags, answers[0].key), (Op::CONNECTION_ANSWER, 0, PEER.0));
        rig.vc = VcId(answers[0].block);
        assert!(matches!(rig.event(), Event::Accepted { port: PORT, .. }));
        rig
    }

    /// A packet of the peer.
    fn packet(&self, op: Op, to_id: u16, from_id: u16) -> Packet {
        Packet { to_port: PORT, from_port: PEER.1, key: self.vc.0, to_id, from_id, ..Packet::new(op) }
    }

    /// Takes a packet with a payload of zeroes, on a link; returns the headers of all answers.
    fn take(&mut self, packet: &Packet, link: u8) -> Vec<Packet> {
        let bytes = [&packet.bytes()[..], &vec![0; packet.len.into()]].concat();
        self.engine.handle(path(0, link), &bytes, &mut self.memory, self.now);
        self.sent().into_iter().map(|(_, packet)| packet).collect()
    }

    /// All that is sent now.
    fn sent(&mut self) -> Vec<(u8, Packet)> {
        std::iter::from_fn(|| self.engine.poll_send(self.now)).map(|out| (out.path.link, out.packet)).collect()
    }

    fn event(&mut self) -> Event {
        self.engine.poll_event().expect("an event")
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.engine.expire(self.now);
    }

    /// A Transfer of the peer with this identifier and number that is granted; returns its identifier here and the
    /// Clear_To_Send operations.
    fn granted(&mut self, peer_id: u16, number: u32, len: u64) -> (Id, Vec<Packet>) {
        let rts = Packet { block: number, words: len, param: 30, ..self.packet(Op::REQUEST_TO_SEND, 0, peer_id) };
        self.take(&rts, 0);
        let Event::SendAsked { vc, id, .. } = self.event() else { panic!("it was asked") };
        self.memory.give(vc, id, len);
        assert_eq!(self.engine.grant(vc, id, self.now), Ok(len));
        (id, self.sent().into_iter().map(|(_, packet)| packet).collect())
    }

    /// An STU of a granted Block.
    fn stu(&self, cts: &Packet, index: u16, len: u16) -> Packet {
        let offset = cts.offset + u32::from(index) * 1024;
        let (bufx, offset) = (cts.bufx + offset / 4096, offset % 4096);
        let data = self.packet(Op::DATA, cts.from_id, cts.to_id);
        Packet { param: index, block: cts.block, bufx, offset, len, ..data }
    }
}

/// A Request_Connection of the peer.
fn request(nonce: u32) -> Packet {
    Packet {
        to_port: PORT,
        from_port: PEER.1,
        param: crate::wire::VERSION,
        to_id: 12 << 8 | 10,
        from_id: 8,
        block: PEER.0,
        bufx: options::ALL,
        offset: u32::from(Ulp::RAW.0) << 16 | 13 << 8,
        words: nonce.into(),
        ..Packet::new(Op::REQUEST_CONNECTION)
    }
}

#[test]
fn connections_of_peers_without_end_give_way() {
    let mut rig = Rig::new();
    // The first one is used.
    let (used, question) = (rig.vc, rig.packet(Op::REQUEST_STATE, 0, 0));
    rig.take(&question, 0);
    let connect = |rig: &mut Rig, port: u16| {
        rig.now = rig.now + Duration::from_millis(1);
        let cookie = rig.take(&Packet { from_port: port, ..request(7) }, 0)[0].low();
        let answers = rig.take(&Packet { from_port: port, ..request(cookie) }, 0);
        assert_eq!((answers[0].op, answers[0].flags), (Op::CONNECTION_ANSWER, 0), "port {port:x}");
        VcId(answers[0].block)
    };
    let silent: Vec<VcId> = (0..2 * VCS_MAX as u16).map(|number| connect(&mut rig, 0x1000 + number)).collect();
    assert_eq!((rig.engine.connections(), rig.engine.timers.len()), (VCS_MAX, VCS_MAX));
    let events: Vec<Event> = std::iter::from_fn(|| rig.engine.poll_event()).collect();
    let closed = |vc: VcId| events.contains(&Event::Closed { vc, reason: Reason::NO_RESOURCES });
    assert!(closed(silent[0]) && !closed(silent[2 * VCS_MAX - 1]) && !closed(used), "the oldest ones give way");
    // Connections that this end closes take no place of others, and there is an end of those, too.
    for number in 0..2 * ENDED_MAX as u16 {
        let vc = connect(&mut rig, 0x4000 + number);
        rig.engine.close(vc, Reason::ACCESS, rig.now);
        rig.sent();
        std::iter::from_fn(|| rig.engine.poll_event()).for_each(drop);
    }
    assert!(rig.engine.connections() <= VCS_MAX + ENDED_MAX, "{}", rig.engine.connections());
    assert_eq!(rig.engine.connections(), rig.engine.timers.len());
    assert!(rig.engine.agreed(used).is_some());
    rig.now = rig.now + HALF_OPEN * 2;
    (0..30).for_each(|_| {
        rig.wait(Duration::from_secs(1));
        rig.sent();
    });
    assert_eq!((rig.engine.connections(), rig.engine.timers.len()), (0, 0), "all have ended");
}

#[test]
fn a_request_without_the_cookie_leaves_nothing_behind() {
    let mut engine = Engine::new([1, 2]);
    engine.listen(PORT, Ulp::RAW, SETTINGS).expect("good settings");
    let mut rig = Rig { engine, memory: Shadow::default(), vc: VcId(0), now: Instant(1) };
    for link in [0, 1] {
        let answers = rig.take(&request(7), link);
        let [answer] = answers[..] else { panic!("one answer") };
        assert_eq!((answer.op, Reason(answer.param), answer.high()), (Op::CONNECTION_ANSWER, Reason::COOKIE, 7));
        assert!(answer.has(flags::REJECT));
        // The cookie is for this address.
        let stolen = rig.take(&request(answer.low()), 1 - link);
        assert!(stolen[0].has(flags::REJECT) && rig.engine.connections() == 0);
        assert_eq!(rig.engine.poll_event(), None);
    }
    for (packet, reason) in
        [(Packet { param: 1, ..request(7) }, Reason::VERSION), (Packet { to_port: 9, ..request(7) }, Reason::NO_PORT)]
    {
        assert_eq!(Reason(rig.take(&packet, 0)[0].param), reason);
    }
    for _ in 0..1000 {
        rig.engine.handle(path(0, 0), &request(7).bytes(), &mut rig.memory, rig.now);
    }
    assert_eq!(rig.sent().len(), STRAY_MAX, "a flood is not answered beyond a limit");
}

#[test]
fn packets_with_a_wrong_key_port_or_path_are_not_taken() {
    let mut rig = Rig::new();
    let right = rig.packet(Op::REQUEST_STATE, 0, 0);
    assert_eq!(rig.take(&right, 0)[0].op, Op::REQUEST_STATE_RESPONSE);
    let before = rig.engine.counters().foreign;
    for wrong in [
        Packet { key: right.key ^ 1, ..right },
        Packet { to_port: PORT + 1, ..right },
        Packet { from_port: PEER.1 + 1, ..right },
    ] {
        assert_eq!(rig.take(&wrong, 0), []);
    }
    assert_eq!(rig.take(&right, 1), [], "from another link");
    assert_eq!(rig.engine.counters().foreign, before + 4);
    let end = rig.packet(Op::REQUEST_DISCONNECT, 0, 0);
    rig.take(&Packet { key: 1, ..end }, 0);
    assert_eq!(rig.engine.poll_event(), None, "a stranger ends nothing");
}

#[test]
fn data_is_placed_where_this_end_computes_it_and_once() {
    let mut rig = Rig::new();
    let (id, cts) = rig.granted(5, 1, 5000);
    let [cts] = cts[..] else { panic!("one Block: {cts:?}") };
    assert_eq!((cts.op, cts.param, cts.high(), cts.range()), (Op::CLEAR_TO_SEND, 13, 1, (0, 0)));
    let good = rig.stu(&cts, 1, 1024);
    for wrong in [
        Packet { offset: good.offset + 1, ..good },
        Packet { bufx: good.bufx + 1, ..good },
        Packet { len: 1023, ..good },
        Packet { param: 0, ..good },
        Packet { param: 5, ..good },
        Packet { param: 128, ..good },
    ] {
        assert_eq!(rig.take(&wrong, 0), []);
    }
    assert_eq!(rig.engine.counters().misplaced, 6);
    for wrong in [Packet { block: 1, ..good }, Packet { from_id: 6, ..good }, Packet { to_id: id ^ 0x100, ..good }] {
        assert_eq!(rig.take(&wrong, 0), []);
    }
    for index in 0..4 {
        let stu = rig.stu(&cts, index, 1024);
        assert_eq!((rig.take(&stu, 0), rig.take(&stu, 0)), (vec![], vec![]));
    }
    let last = Packet { flags: flags::LAST, ..rig.stu(&cts, 4, 904) };
    let end = rig.take(&last, 0);
    assert_eq!((end[0].op, end[0].param, end[0].words), (Op::END, 0, 5000));
    assert_eq!(rig.event(), Event::Received { vc: rig.vc, id, len: 5000 });
    assert_eq!((rig.take(&good, 0), rig.engine.poll_event()), (vec![], None), "late data means nothing");
}

#[test]
fn a_hole_is_asked_for_at_once_and_alone() {
    let mut rig = Rig::new();
    let (_, cts) = rig.granted(5, 1, 8192);
    for index in [0, 1, 2, 4, 5, 6] {
        let stu = rig.stu(&cts[0], index, 1024);
        assert_eq!(rig.take(&stu, 0), []);
    }
    let last = Packet { flags: flags::LAST, ..rig.stu(&cts[0], 7, 1024) };
    let again = rig.take(&last, 0);
    assert_eq!((again[0].op, again[0].range()), (Op::CLEAR_TO_SEND, (3, 1)));
    assert!(again[0].has(flags::RESEND));
    rig.wait(Duration::from_secs(1));
    let later: Vec<Packet> = rig.sent().into_iter().map(|(_, packet)| packet).collect();
    assert!(later.iter().any(|packet| packet.op == Op::CLEAR_TO_SEND && packet.range() == (3, 1)), "{later:?}");
}

#[test]
fn a_peer_gets_no_more_transfers_than_slots_and_no_more_bytes_than_granted() {
    let mut rig = Rig::new();
    for number in 0..100 {
        let rts = Packet {
            block: number * 2 + 1,
            words: 10,
            param: 30,
            ..rig.packet(Op::REQUEST_TO_SEND, 0, 1000 + number as u16)
        };
        let answers = rig.take(&rts, 0);
        assert_eq!(answers[0].op, Op::REQUEST_ANSWER);
        assert_eq!(answers[0].has(flags::REJECT), number >= 8, "{number}");
        if number >= 8 {
            assert_eq!(Reason(answers[0].param), Reason::NO_RESOURCES);
        }
    }
    let asked = std::iter::from_fn(|| rig.engine.poll_event()).count();
    assert_eq!(asked, 8);
    let huge = Packet { block: 501, words: u64::MAX, param: 30, ..rig.packet(Op::REQUEST_TO_SEND, 0, 9) };
    assert!(rig.take(&huge, 0)[0].has(flags::REJECT));
}

#[test]
fn a_fetch_op_is_executed_once_and_its_result_is_repeated() {
    let mut rig = Rig::new();
    let ask = Packet { param: 7, block: 1, words: 4096, ..rig.packet(Op::REQUEST_MEMORY_REGION, 0, 3) };
    rig.take(&ask, 0);
    let Event::RegionAsked { vc, id, .. } = rig.event() else { panic!("a region") };
    rig.memory.give(vc, id, 4096);
    rig.engine.grant_region(vc, id, (Access::ALL, Wake::Every), rig.now).expect("asked for");
    let granted = rig.sent()[0].1;
    let again = rig.take(&ask, 0);
    assert_eq!((granted.op, again[0]), (Op::MEMORY_REGION_AVAILABLE, granted), "a repetition has the same answer");
    let fetch = |rig: &Rig, number: u32, code: FetchCode| {
        let packet = rig.packet(Op::FETCH_OP, id, number as u16 + 20);
        Packet { param: code.0.into(), block: number, bufx: granted.bufx, offset: 8, words: 5, ..packet }
    };
    for (number, old) in [(1, 0), (2, 5), (1, 0), (3, 10), (3, 10), (2, 5)] {
        let packet = fetch(&rig, number, FetchCode::ADD);
        let answer = rig.take(&packet, 0)[0];
        assert_eq!((answer.op, answer.to_id, answer.words), (Op::FETCH_OP_COMPLETE, number as u16 + 20, old));
    }
    let far = fetch(&rig, 1000, FetchCode::READ);
    assert_eq!(rig.take(&far, 0)[0].words, 15);
    let ancient = fetch(&rig, 4, FetchCode::ADD);
    assert_eq!(rig.take(&ancient, 0), [], "it is unknown whether it was executed");
    for wrong in [
        Packet { offset: 9, block: 1001, ..far },
        Packet { offset: 4095, block: 1001, ..far },
        Packet { bufx: granted.bufx + 1, block: 1001, ..far },
        Packet { param: 9, block: 1001, ..far },
        Packet { param: 6, block: 1001, ..far },
    ] {
        assert!(rig.take(&wrong, 0)[0].has(flags::REJECT), "{wrong:?}");
    }
    let read = fetch(&rig, 1001, FetchCode::READ);
    assert_eq!(rig.take(&read, 0)[0].words, 15, "refused ones have changed nothing");
}

#[test]
fn a_put_stays_inside_its_region_and_is_reported_once() {
    let mut rig = Rig::new();
    let ask = Packet { param: 1, block: 1, words: 5000, ..rig.packet(Op::REQUEST_MEMORY_REGION, 0, 3) };
    rig.take(&ask, 0);
    let Event::RegionAsked { vc, id, .. } = rig.event() else { panic!("a region") };
    rig.memory.give(vc, id, 5000);
    let access = Access { put: true, ..Access::default() };
    rig.engine.grant_region(vc, id, (access, Wake::Every), rig.now).expect("asked for");
    let bufx = rig.sent()[0].1.bufx;
    let put = |rig: &Rig, (bufx, offset): (u32, u32), len: u16| {
        let packet = rig.packet(Op::PUT, id, 44);
        Packet { flags: flags::LAST | flags::SOLICIT, block: 1, bufx, offset, len, ..packet }
    };
    for place in [(bufx + 1, 1), (bufx + 2, 0), (bufx - 1, 0), (bufx, 4096), (bufx + 1, 905)] {
        let packet = put(&rig, place, 904);
        assert_eq!(rig.take(&packet, 0), [], "{place:?}");
    }
    let whole = put(&rig, (bufx + 1, 0), 904);
    for _ in 0..2 {
        let answer = rig.take(&whole, 0)[0];
        assert_eq!((answer.op, answer.to_id, answer.param), (Op::REQUEST_STATE_RESPONSE, 44, 3));
    }
    assert_eq!(rig.event(), Event::PutArrived { vc, region: id, offset: 4096, len: 904, opaque: 0 });
    assert_eq!(rig.engine.poll_event(), None);
    let get = Packet { block: 10, bufx, ..rig.packet(Op::GET, id, 45) };
    assert_eq!(Reason(rig.take(&get, 0)[0].param), Reason::ACCESS);
}

#[test]
fn a_request_that_was_given_up_before_it_came_means_nothing() {
    let mut rig = Rig::new();
    let end = Packet { param: Reason::ABORTED.0, block: 1, ..rig.packet(Op::END, 0, 5) };
    assert_eq!(rig.take(&end, 0)[0].op, Op::END_ACK);
    let rts = Packet { block: 1, words: 10, param: 30, ..rig.packet(Op::REQUEST_TO_SEND, 0, 5) };
    assert_eq!((rig.take(&rts, 0), rig.engine.poll_event()), (vec![], None));
}

#[test]
fn a_silent_peer_is_asked_and_then_given_up() {
    let mut rig = Rig::new();
    let state = rig.packet(Op::REQUEST_STATE, 0, 0);
    rig.take(&state, 0);
    rig.wait(SILENCE);
    for _ in 0..PROBES_MAX {
        assert_eq!(rig.sent().len(), 1);
        assert_eq!(rig.engine.poll_event(), None);
        rig.wait(Duration::from_millis(1001));
    }
    assert_eq!(rig.event(), Event::Closed { vc: rig.vc, reason: Reason::TIME_OUT });
    assert_eq!(rig.engine.connections(), 0);
}

#[test]
fn a_peer_that_has_restarted_replaces_its_connection() {
    let mut rig = Rig::new();
    let restarted = |nonce| Packet { block: PEER.0 + 1, ..request(nonce) };
    let cookie = rig.take(&restarted(7), 0)[0].low();
    assert_eq!(rig.engine.poll_event(), None, "not before it has the cookie");
    let answer = rig.take(&restarted(cookie), 0)[0];
    assert_eq!((answer.op, answer.flags), (Op::CONNECTION_ANSWER, 0));
    assert_eq!(rig.event(), Event::Closed { vc: rig.vc, reason: Reason::ABORTED });
    assert!(matches!(rig.event(), Event::Accepted { vc, .. } if vc != rig.vc));
    let again = rig.take(&restarted(cookie), 0)[0];
    assert_eq!((again.block, rig.engine.connections()), (answer.block, 1), "a repetition has the same Key");
}

#[test]
fn data_comes_back_on_the_path_of_its_clear_to_send() {
    let mut rig = Rig::new();
    // The nonce of the connection is its cookie, which a stranger does not have.
    let stranger = Packet { flags: flags::JOIN, key: rig.vc.0, ..request(0) };
    assert_eq!(rig.take(&stranger, 1), []);
    assert_eq!(rig.engine.paths(rig.vc).len(), 1);
    let id = rig.engine.send(rig.vc, 20_000, rig.now).expect("room");
    rig.memory.give(rig.vc, id, 20_000);
    let rts = rig.sent()[0].1;
    assert_eq!((rts.op, rts.from_id, rts.words), (Op::REQUEST_TO_SEND, id, 20_000));
    let cts = |rig: &Rig, block: u32, range: u64| {
        let packet = rig.packet(Op::CLEAR_TO_SEND, id, 77);
        Packet { param: 13, block, bufx: 5, words: u64::from(rts.block) << 32 | range, ..packet }
    };
    let (first, part, behind) = (cts(&rig, 0, 0), cts(&rig, 2, 1 << 16 | 2), cts(&rig, 3, 0));
    assert_eq!(rig.take(&behind, 0), [], "behind the end");
    let late = Packet { words: 1 << 32, ..first };
    let end = rig.take(&late, 0)[0];
    assert_eq!((end.op, end.block), (Op::END, 1), "one for an earlier Transfer with this identifier");
    let sent = rig.take(&first, 0);
    assert_eq!(sent.iter().map(|packet| packet.param).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(sent.iter().all(|packet| (packet.op, packet.to_id, packet.block) == (Op::DATA, 77, 0)));
    assert_eq!((sent[4].bufx, sent[4].offset, sent[7].flags), (6, 0, flags::LAST));
    let sent = rig.take(&part, 0);
    assert_eq!(sent.iter().map(|packet| (packet.param, packet.len)).collect::<Vec<_>>(), [(1, 1024), (2, 1024)]);
    assert!(sent[1].has(flags::LAST | flags::FINAL));
    let late = Packet { block: 1, ..rig.packet(Op::END, id, 77) };
    assert_eq!((rig.take(&late, 0)[0].op, rig.engine.poll_event()), (Op::END_ACK, None), "that of an earlier Transfer");
    let done = Packet { block: rts.block, ..late };
    assert_eq!(rig.take(&done, 0)[0].op, Op::END_ACK);
    assert_eq!(rig.event(), Event::Done { vc: rig.vc, id });
    assert_eq!(rig.take(&first, 0)[0].op, Op::END, "a Clear_To_Send for what is over ends it there, too");
}

#[test]
fn a_transfer_survives_the_death_of_a_link() {
    let mut world = World::new(3, 0, [SETTINGS; 2]);
    world.connect(3, SETTINGS);
    while world.sides.iter().any(|side| side.vc.is_none_or(|vc| side.engine.paths(vc).len() < 3)) {
        assert!(world.step());
    }
    let (vc, now) = (world.sides[0].vc.expect("up"), world.now);
    world.start_send(0, 3_000_000);
    world.dead.insert(1);
    while !world.is_over() {
        assert!(world.step() && world.now.since(now) < Duration::from_secs(20));
    }
    let down = |side: usize| -> Vec<bool> {
        let side = &world.sides[side];
        side.engine.paths(side.vc.expect("up")).into_iter().map(|(path, is_up)| path.link == 1 || is_up).collect()
    };
    assert_eq!((down(0), down(1)), (vec![true; 3], vec![true; 3]), "the others are up");
    let far = world.sides[1].vc.expect("up");
    let dead = world.sides[1].engine.paths(far).into_iter().find(|(path, _)| path.link == 1);
    assert_eq!(dead.map(|(_, is_up)| is_up), Some(false), "{:?}", world.sides[0].engine.paths(vc));
    world.dead.clear();
    let later = world.now + Duration::from_secs(3);
    while world.now < later {
        world.step();
    }
    assert!(world.sides[1].engine.paths(far).iter().all(|(_, is_up)| *is_up), "it is used again");
}

#[test]
fn wrong_settings_are_refused() {
    let mut engine = Engine::new([1, 2]);
    for wrong in [
        Settings { stu: 7, ..SETTINGS },
        Settings { stu: 16, ..SETTINGS },
        Settings { stu: 13, ..SETTINGS },
        Settings { slots: 7, ..SETTINGS },
        Settings { slots: 129, ..SETTINGS },
        Settings { block: 9, ..SETTINGS },
        Settings { window: 1000, ..SETTINGS },
    ] {
        assert_eq!(engine.listen(1, Ulp::RAW, wrong), Err(Refused::Settings), "{wrong:?}");
    }
    assert_eq!(engine.connect(&[], (1, Ulp::RAW), SETTINGS, Instant(1)), Err(Refused::Settings));
    assert_eq!(SETTINGS.for_mtu(1500).stu, 10);
    assert_eq!(SETTINGS.for_mtu(9000).stu, 13);
    assert!(SETTINGS.for_mtu(1 << 20).stu == 15 && 1024 + HEADER_LEN <= 1500);
}
