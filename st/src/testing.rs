//! Two engines and a network between them in virtual time, all of it from a seed. The network loses, repeats, delays
//! and reorders packets, and its links die. A shadow of the memory shows that no byte is placed outside of the memory
//! that was granted.

use crate::engine::{Engine, FetchRequest, PutRequest, Settings, Ulp};
use crate::event::{Access, Event, Id, Memory, Outgoing, Payload, Place, Refused, VcId, Wake};
use crate::path::{Path, Peer};
use crate::wire::{FetchCode, Reason};
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A port at which both ends listen.
pub const PORT: u16 = 7;
/// The length of the region that each end grants.
const REGION: u64 = 4096;
/// The bytes at its end that FetchOps change.
const WORDS: u64 = 64;

/// A generator of numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// Whether an event of this probability, in thousandths, happens.
    pub fn hits(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// The bytes of a sequence, with the number of the sequence.
fn content(number: u64, len: u64) -> Vec<u8> {
    let mut chance = Chance(number);
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        bytes.extend(chance.draw().to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// Memory for a sequence.
#[derive(Clone, Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    /// Bytes that were placed; `None`: memory to send from, or a region, in which bytes are placed again.
    placed: Option<Vec<bool>>,
    /// Whether bytes may be placed.
    is_granted: bool,
}

/// The memory of one end.
#[derive(Debug, Default)]
pub struct Shadow {
    pieces: BTreeMap<(VcId, Id), Piece>,
}

impl Shadow {
    fn sink(&mut self, vc: VcId, id: Id, len: u64) {
        let (bytes, placed) = (vec![0; len as usize], Some(vec![false; len as usize]));
        self.pieces.insert((vc, id), Piece { bytes, placed, is_granted: true });
    }

    fn source(&mut self, vc: VcId, id: Id, bytes: Vec<u8>) {
        self.pieces.insert((vc, id), Piece { bytes, placed: None, is_granted: false });
    }

    fn region(&mut self, vc: VcId, id: Id, len: u64) {
        self.pieces.insert((vc, id), Piece { bytes: vec![0; len as usize], placed: None, is_granted: true });
    }

    /// Memory for any use, of which parts may be placed again.
    pub fn give(&mut self, vc: VcId, id: Id, len: u64) {
        self.region(vc, id, len);
    }

    /// Checks that the bytes of a packet are there.
    pub fn check(&mut self, outgoing: &Outgoing) {
        if let Payload::Memory(place, len) = outgoing.payload {
            self.part(place, len);
        }
    }

    fn part(&mut self, place: Place, len: usize) -> (&mut Piece, std::ops::Range<usize>) {
        let piece = self.pieces.get_mut(&(place.vc, place.id)).expect("memory of a sequence");
        let start = place.offset as usize;
        assert!(start + len <= piece.bytes.len(), "{place:?} with {len} bytes of {}", piece.bytes.len());
        (piece, start..start + len)
    }
}

impl Memory for Shadow {
    fn place(&mut self, place: Place, bytes: &[u8]) {
        let (piece, range) = self.part(place, bytes.len());
        assert!(piece.is_granted, "{place:?} is not granted");
        piece.bytes[range.clone()].copy_from_slice(bytes);
        if let Some(placed) = &mut piece.placed {
            assert!(placed[range.clone()].iter().all(|placed| !placed), "{place:?} is placed twice");
            placed[range].fill(true);
        }
    }

    fn change(&mut self, place: Place, len: usize, change: &mut dyn FnMut(&mut [u8])) {
        let (piece, range) = self.part(place, len);
        assert!(piece.is_granted && len <= 8, "{place:?} is not granted");
        change(&mut piece.bytes[range]);
    }
}

/// The faults of a network, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Packets that are lost.
    pub loss: u64,
    /// Packets that arrive twice.
    pub repeat: u64,
    /// Packets that are late by up to some milliseconds.
    pub late: u64,
    /// Packets of which a bit is wrong.
    pub corrupt: u64,
}

/// The sequences that one end has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Started {
    Send(u64),
    Request(u64),
    Put { number: u64 },
    Get { offset: u64, len: u32 },
    Add(u64),
    Region,
}

/// One end.
#[derive(Debug)]
pub struct Side {
    /// The engine.
    pub engine: Engine,
    /// Its memory.
    pub memory: Shadow,
    /// The connection, once it is up.
    pub vc: Option<VcId>,
    /// Why it has ended.
    pub closed: Option<Reason>,
    started: BTreeMap<Id, Started>,
    /// The region of the peer, and that of this end.
    remote: Option<Id>,
    region: Option<Id>,
    /// The numbers of the Transfers that have come whole.
    received: BTreeSet<u64>,
    /// The transfers that this end expects, by its identifiers.
    expected: BTreeMap<Id, u64>,
    /// The sum that successful FetchOps of the peer have added.
    added: u64,
    left: u32,
    refused: u64,
    /// Whether it refuses some Transfers.
    is_picky: bool,
}

impl Side {
    /// The region that it has granted.
    #[must_use]
    pub fn ids(&self) -> Option<Id> {
        self.region
    }

    fn new(secret: u64, ops: u32, settings: Settings) -> Self {
        let mut engine = Engine::new([secret, !secret]);
        engine.listen(PORT, Ulp::RAW, settings).expect("good settings");
        Self {
            engine,
            memory: Shadow::default(),
            vc: None,
            closed: None,
            started: BTreeMap::new(),
            remote: None,
            region: None,
            received: BTreeSet::new(),
            expected: BTreeMap::new(),
            added: 0,
            left: ops,
            refused: 0,
            is_picky: ops > 0,
        }
    }
}

/// Two ends and the network between them.
#[derive(Debug)]
pub struct World {
    /// The ends.
    pub sides: [Side; 2],
    /// The time.
    pub now: Instant,
    /// Decides everything.
    pub chance: Chance,
    /// The faults of now.
    pub faults: Faults,
    /// Links that carry nothing now.
    pub dead: BTreeSet<u8>,
    flight: BTreeMap<(Instant, u64), (usize, Path, Vec<u8>)>,
    packets: u64,
    numbers: u64,
    lens: BTreeMap<u64, u64>,
}

fn mac(side: usize, link: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, side as u8, link])
}

/// The path of an end over a link.
#[must_use]
pub fn path(side: usize, link: u8) -> Path {
    Path { link, peer: Peer::Station(mac(1 - side, link)) }
}

impl World {
    /// Two ends that will each start so many sequences.
    #[must_use]
    pub fn new(seed: u64, ops: u32, settings: [Settings; 2]) -> Self {
        let mut chance = Chance(seed);
        let [one, two] = settings;
        let sides = [Side::new(chance.draw(), ops, one), Side::new(chance.draw(), ops, two)];
        Self {
            sides,
            now: Instant(1_000_000_000),
            chance,
            faults: Faults::default(),
            dead: BTreeSet::new(),
            flight: BTreeMap::new(),
            packets: 0,
            numbers: 0,
            lens: BTreeMap::new(),
        }
    }

    /// The first end connects to the second one over so many links.
    pub fn connect(&mut self, links: u8, settings: Settings) {
        let paths: Vec<Path> = (0..links).map(|link| path(0, link)).collect();
        let vc = self.sides[0].engine.connect(&paths, (PORT, Ulp::RAW), settings, self.now);
        self.sides[0].vc = Some(vc.expect("good settings"));
    }

    /// The bytes of a packet.
    fn bytes(&self, side: usize, outgoing: &Outgoing) -> Vec<u8> {
        let payload = match outgoing.payload {
            Payload::None => Vec::new(),
            Payload::Word(word) => word.to_vec(),
            Payload::Memory(place, len) => {
                let piece = &self.sides[side].memory.pieces[&(place.vc, place.id)];
                let start = place.offset as usize;
                piece.bytes[start..start + len].to_vec()
            }
        };
        assert_eq!(payload.len(), usize::from(outgoing.packet.len));
        let header = match outgoing.is_checked {
            true => outgoing.packet.checked([&payload[..]]),
            false => outgoing.packet.bytes(),
        };
        [&header[..], &payload].concat()
    }

    /// Sends everything that waits.
    fn send(&mut self) {
        for side in 0..2 {
            while let Some(outgoing) = self.sides[side].engine.poll_send(self.now) {
                let mut bytes = self.bytes(side, &outgoing);
                self.check_slots(side);
                let (faults, link) = (self.faults, outgoing.path.link);
                assert_eq!(outgoing.path, path(side, link), "it goes to the peer");
                let copies = 1 + u64::from(self.chance.hits(faults.repeat));
                for _ in 0..copies {
                    if self.dead.contains(&link) || self.chance.hits(faults.loss) {
                        continue;
                    }
                    let late = if self.chance.hits(faults.late) { self.chance.below(8_000_000) } else { 0 };
                    if self.chance.hits(faults.corrupt) {
                        let bit = self.chance.below(bytes.len() as u64 * 8) as usize;
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                    self.packets += 1;
                    // Packets of a link stay in order, unless they are late.
                    let at = self.now + Duration::from_nanos(50_000 + late);
                    self.flight.insert((at, self.packets), (1 - side, path(1 - side, link), bytes.clone()));
                }
            }
        }
    }

    fn check_slots(&self, side: usize) {
        let side = &self.sides[side];
        if let Some((used, slots)) = side.vc.and_then(|vc| side.engine.slots(vc)) {
            assert!(used <= slots, "{used} of {slots} Slots");
        }
    }

    /// One step: packets that arrive, timers that expire. Returns false when nothing happens any more.
    pub fn step(&mut self) -> bool {
        self.send();
        let timers = self.sides.iter().filter_map(|side| side.engine.deadline());
        let next = timers.chain(self.flight.keys().next().map(|(at, _)| *at)).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (side, path, bytes) = entry.remove();
            let Side { engine, memory, .. } = &mut self.sides[side];
            engine.handle(path, &bytes, memory, self.now);
            self.take_events(side);
        }
        for side in 0..2 {
            self.sides[side].engine.expire(self.now);
            self.take_events(side);
            self.act(side);
        }
        true
    }

    fn take_events(&mut self, side: usize) {
        while let Some(event) = self.sides[side].engine.poll_event() {
            self.take(side, event);
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        let now = self.now;
        match event {
            Event::Connected { .. } => self.ask_region(at),
            Event::Accepted { vc, .. } => {
                self.sides[at].vc = Some(vc);
                self.ask_region(at);
            }
            Event::Closed { reason, .. } => {
                self.sides[at].vc = None;
                self.sides[at].closed = Some(reason);
            }
            Event::SendAsked { vc, id, peer_id, len } => {
                let other = &self.sides[1 - at];
                let number = match other.started.get(&peer_id) {
                    Some(Started::Send(number)) => *number,
                    known => panic!("the Transfer {peer_id} of {len} bytes is {known:?}"),
                };
                if self.sides[at].is_picky && self.chance.hits(50) {
                    self.sides[at].refused += 1;
                    self.sides[at].engine.cancel(vc, id, Reason::TOO_LONG, now).expect("it was asked");
                    return;
                }
                let side = &mut self.sides[at];
                side.memory.sink(vc, id, len);
                side.expected.insert(id, number);
                assert_eq!(side.engine.grant(vc, id, now), Ok(len));
            }
            Event::ReceiveAsked { vc, id, peer_id, len } => {
                let Some(Started::Request(number)) = self.sides[1 - at].started.get(&peer_id).copied() else {
                    panic!("{peer_id} has asked for nothing")
                };
                let len = self.chance.below(len + 1);
                self.lens.insert(number, len);
                let side = &mut self.sides[at];
                side.memory.source(vc, id, content(number, len));
                match side.engine.send_asked(vc, id, len, now) {
                    Ok(()) => drop(side.started.insert(id, Started::Send(number))),
                    Err(Refused::Busy) => drop(side.engine.cancel(vc, id, Reason::NO_RESOURCES, now)),
                    Err(why) => panic!("{why}"),
                }
            }
            Event::Received { vc, id, len } => self.received(at, vc, id, len),
            Event::Done { vc, id } => self.done(at, vc, id),
            Event::Failed { vc, id, reason } => self.failed(at, vc, id, reason),
            Event::RegionAsked { vc, id, len, .. } => {
                let side = &mut self.sides[at];
                side.memory.region(vc, id, len);
                side.engine.grant_region(vc, id, (Access::ALL, Wake::Every), now).expect("one region");
                side.region = Some(id);
            }
            Event::RegionGranted { id, access, len, .. } => {
                assert_eq!((access, len), (Access::ALL, REGION));
                self.sides[at].started.remove(&id);
                self.sides[at].remote = Some(id);
            }
            Event::RegionEnded { .. } => panic!("no region was ended"),
            Event::PutArrived { vc, region, offset, len, opaque } => {
                let side = &self.sides[at];
                let bytes = &side.memory.pieces[&(vc, region)].bytes[offset as usize..][..len as usize];
                assert_eq!(bytes, content(opaque.into(), len.into()), "put {opaque} at {offset}");
                assert!(self.sides[at].received.insert(opaque.into()), "put {opaque} is reported twice");
            }
            Event::Fetched { id, .. } => {
                let Some(Started::Add(count)) = self.sides[at].started.remove(&id) else { panic!("no FetchOp {id}") };
                self.sides[1 - at].added += count;
            }
        }
    }

    fn ask_region(&mut self, at: usize) {
        let (now, side) = (self.now, &mut self.sides[at]);
        let vc = side.vc.expect("connected");
        let id = side.engine.request_region(vc, Access::ALL, REGION, now).expect("one region");
        side.started.insert(id, Started::Region);
    }

    fn received(&mut self, at: usize, vc: VcId, id: Id, len: u64) {
        let side = &mut self.sides[at];
        let number = match side.expected.remove(&id) {
            Some(number) => number,
            None => match side.started.remove(&id) {
                Some(Started::Request(number)) => number,
                known => panic!("{id} is {known:?}"),
            },
        };
        assert_eq!(self.lens.get(&number), Some(&len), "all bytes of {number}");
        let piece = side.memory.pieces.get_mut(&(vc, id)).expect("memory");
        let placed = piece.placed.take().expect("a sink");
        assert!(placed[..len as usize].iter().all(|placed| *placed) && !placed[len as usize..].contains(&true));
        assert!(piece.bytes[..len as usize] == content(number, len), "the bytes of {number}");
        piece.is_granted = false;
        assert!(side.received.insert(number), "{number} has come twice");
    }

    fn done(&mut self, at: usize, vc: VcId, id: Id) {
        let started = self.sides[at].started.remove(&id).expect("it was started");
        match started {
            Started::Send(number) | Started::Put { number } => {
                assert!(self.sides[1 - at].received.contains(&number), "{number} has arrived");
            }
            Started::Get { offset, len } => {
                let far = &self.sides[1 - at];
                let (far_vc, region) = (far.vc.expect("up"), far.region.expect("granted"));
                let wanted = &far.memory.pieces[&(far_vc, region)].bytes[offset as usize..][..len as usize];
                let got = &self.sides[at].memory.pieces[&(vc, id)].bytes;
                // Puts may have changed it meanwhile, but not beyond their part.
                assert!(offset < REGION / 2 || got == wanted, "{len} bytes at {offset}");
            }
            other => panic!("{other:?} has no such end"),
        }
    }

    fn failed(&mut self, at: usize, vc: VcId, id: Id, reason: Reason) {
        let side = &mut self.sides[at];
        side.expected.remove(&id);
        let started = side.started.remove(&id);
        if let Some(piece) = side.memory.pieces.get_mut(&(vc, id)) {
            piece.is_granted = false;
        }
        let is_refusal = [Reason::TOO_LONG, Reason::NO_RESOURCES].contains(&reason);
        assert!(is_refusal, "{started:?} has failed: {reason:?}");
        if let (Some(Started::Send(number)), Reason::TOO_LONG) = (started, reason) {
            let far = &mut self.sides[1 - at];
            assert!(!far.received.contains(&number) && far.refused > 0, "{number} was refused");
            far.refused -= 1;
        }
    }

    /// An end starts a Transfer of so many bytes.
    pub fn start_send(&mut self, at: usize, len: u64) {
        self.numbers += 1;
        let (now, number, side) = (self.now, self.numbers, &mut self.sides[at]);
        let vc = side.vc.expect("connected");
        let id = side.engine.send(vc, len, now).expect("room");
        side.memory.source(vc, id, content(number, len));
        side.started.insert(id, Started::Send(number));
        self.lens.insert(number, len);
    }

    /// Starts something, from time to time.
    fn act(&mut self, at: usize) {
        let (now, number) = (self.now, self.numbers + 1);
        let (kind, size) = (self.chance.below(10), self.chance.below(17));
        let len = self.chance.below(1 << size);
        let is_pause = self.chance.hits(400);
        let side = &mut self.sides[at];
        let (Some(vc), Some(region), false) = (side.vc, side.remote, is_pause || side.left == 0) else { return };
        let started = match kind {
            0..4 => side.engine.send(vc, len, now).map(|id| {
                side.memory.source(vc, id, content(number, len));
                (id, Started::Send(number))
            }),
            4..6 => side.engine.request(vc, len, now).map(|id| {
                side.memory.sink(vc, id, len);
                (id, Started::Request(number))
            }),
            // Each Put has a part of its own, so that a late one does not change what a later one has written.
            6..8 => {
                let (offset, len) = (number % 32 * 64, len % 63 + 1);
                let request = PutRequest {
                    region,
                    offset,
                    len: len as u32,
                    opaque: number as u32,
                    is_solicited: true,
                    interrupts: len % 2 == 0,
                };
                let is_free = !side
                    .started
                    .values()
                    .any(|s| matches!(s, Started::Put { number: other } if number % 32 == other % 32));
                let put = if is_free { side.engine.put(vc, &request, now) } else { Err(Refused::Busy) };
                put.map(|id| {
                    side.memory.source(vc, id, content(number, len));
                    (id, Started::Put { number })
                })
            }
            8 => {
                let offset = len % (REGION - WORDS);
                let len = (len % (REGION - WORDS - offset)).max(1) as u32;
                side.engine.get(vc, region, offset, len, now).map(|id| {
                    side.memory.sink(vc, id, len.into());
                    (id, Started::Get { offset, len })
                })
            }
            _ => {
                let is_wide = len.is_multiple_of(2);
                let offset = REGION - if is_wide { 8 } else { 16 };
                let (code, operand) = (FetchCode::ADD, len % 1000);
                let request = FetchRequest { region, offset, code, is_wide, operand, expected: 0 };
                side.engine.fetch(vc, &request, now).map(|id| (id, Started::Add(operand)))
            }
        };
        match started {
            Ok((id, started)) => {
                if matches!(started, Started::Send(_)) {
                    self.lens.insert(number, len);
                }
                let side = &mut self.sides[at];
                assert!(side.started.insert(id, started).is_none(), "{id} names two sequences");
                side.left -= 1;
                self.numbers = number;
            }
            Err(Refused::Busy) => {}
            Err(why) => panic!("{why}"),
        }
    }

    /// Whether all sequences have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_done = |side: &Side| side.left == 0 && side.started.is_empty() && side.expected.is_empty();
        self.sides.iter().all(|side| is_done(side) && side.remote.is_some())
    }

    /// Checks the sums of FetchOps.
    pub fn check_sums(&self) {
        for side in &self.sides {
            let (Some(vc), Some(region)) = (side.vc, side.region) else { panic!("the connection has ended") };
            let bytes = &side.memory.pieces[&(vc, region)].bytes;
            let end = REGION as usize;
            let wide = bytes[end - 8..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            let narrow = bytes[end - 16..end - 12].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            assert_eq!(wide + narrow, side.added, "each FetchOp was executed once");
        }
    }
}

/// Names the seed of a run that fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// Runs a whole life from a seed: faults, links that die and come back, then peace until all is over.
///
/// # Panics
/// When anything was lost, came twice, or was placed where it does not belong.
pub fn run(seed: u64) {
    let _named = Named(seed);
    let mut chance = Chance(seed ^ 0x5eed);
    let links = 1 + chance.below(8) as u8;
    let draw = |chance: &mut Chance| {
        let stu = 8 + chance.below(5) as u8;
        let buffer = stu + chance.below(4) as u8;
        let (slots, block) = (8 + chance.below(60) as u16, stu + chance.below(8) as u8);
        let window = 1 << (stu + chance.below(10) as u8);
        Settings { stu, buffer, slots, block, window, options: chance.below(16) as u32 }
    };
    let settings = [draw(&mut chance), draw(&mut chance)];
    let mut world = World::new(seed, 20, settings);
    let is_checked = settings.iter().all(|settings| settings.options & crate::wire::options::CHECKSUM != 0);
    let faults = Faults {
        loss: [0, 5, 50, 150][chance.below(4) as usize],
        repeat: [0, 20, 200][chance.below(3) as usize],
        late: [0, 20, 300][chance.below(3) as usize],
        corrupt: if is_checked { 10 * chance.below(3) } else { 0 },
    };
    // Requests of a connection have no checksum, which is agreed with them.
    world.connect(links, settings[0]);
    let mut steps = 0_u64;
    while !world.is_over() {
        assert!(world.step(), "seed {seed}: nothing happens any more");
        steps += 1;
        assert!(steps < 2_000_000, "seed {seed} does not end: {world:?}");
        let closed = world.sides.each_ref().map(|side| side.closed);
        assert_eq!(closed, [None, None], "seed {seed}");
        let is_up = world.sides.iter().all(|side| side.remote.is_some());
        world.faults = if is_up { faults } else { Faults { corrupt: 0, ..faults } };
        // One link stays, so that the connection lives.
        if is_up && world.chance.hits(3) {
            let link = 1 + world.chance.below(u64::from(links)) as u8;
            if !world.dead.remove(&link) {
                world.dead.insert(link);
            }
        }
    }
    world.check_sums();
}
