//! A host of NVMe over RDMA with one namespace, without I/O: an adapter, its connection manager and the driver of a
//! host in one. It has an admin queue and an I/O queue, each on a connection of its own. It checks that its memory is
//! used as the data pointers say, that keys are invalidated as they say, and that each command has one response.

use crate::operation::{Operation, StationEvent};
use crate::rdma_adapter::{self, Adapter, INTERVAL, Pair, SILENCE};
use crate::stamp::SECTOR;
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use lunar_rdma::mad::{Body, Message, Reply, Request};
use lunar_rdma::testing::Random;
use lunar_rdma::wire::{Extension, MANAGER_QPN, Packet};
use std::collections::BTreeMap;
use std::time::Duration;

/// The NQN of the subsystem.
pub const NQN: &str = "nqn.2026-01.io.lunar:lan";
/// The port of the connection manager of the target.
const SERVICE: u16 = 4420;
/// Memory of a command.
const SLOT_LEN: usize = 16 << 10;
/// Commands in progress.
const SLOTS: usize = 8;
/// The data of Connect, behind the memory of commands.
const CONNECT_AT: usize = SLOTS * SLOT_LEN;
const CONNECT_LEN: usize = 1024;
/// The most bytes of data in a capsule.
const IN_CAPSULE_MAX: usize = 4096;
/// Entries of the queues.
const ENTRIES: [u16; 2] = [32, 16];
/// Identifiers of commands that are no I/O.
const CONNECT: u16 = 0x1000;
const ENABLE: u16 = 0x1001;
const QUEUES: u16 = 0x1002;
const EVENT: u16 = 0x1003;
/// I/O queues that a host asks for: as many as a controller has at most.
const WANTED: u16 = 128;
/// Requests for an event with the same identifier, as some hosts send them: more than a queue has messages for.
const EVENTS: u32 = 200;
/// Do Not Retry, in a status without its phase.
const DO_NOT_RETRY: u16 = 0x4000;
/// The time without any response after which the target is given up.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A command.
struct Command {
    operation: Operation,
    slot: Option<usize>,
    /// The key of its memory, if the target invalidates it.
    key: Option<u32>,
}

/// A host with one namespace.
pub struct Disk {
    number: u8,
    namespace: u8,
    adapter: Adapter,
    random: Random,
    arena: Arena,
    /// The queue whose connection is requested, the request, and when it is sent again.
    asking: Option<(usize, Box<Request>, Instant)>,
    /// The connections of the admin queue and of the I/O queue.
    pairs: [Option<Box<Pair>>; 2],
    controller: u16,
    is_ready: bool,
    /// Requests for an event that were sent over this admin queue.
    events: u32,
    commands: BTreeMap<u32, Command>,
    last_key: u32,
    /// The time of the last response.
    answered: Instant,
    is_lost: bool,
}

/// A submission queue entry without data.
fn entry(opcode: u8, cid: u16, namespace: u32) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[1], entry[39]) = (opcode, 0x40, 0x40);
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    entry[4..8].copy_from_slice(&namespace.to_le_bytes());
    entry
}

/// Points to memory of the host; `invalidates`: the target invalidates its key.
fn point(entry: &mut [u8; 64], (address, len): (usize, usize), key: u32, invalidates: bool) {
    entry[24..32].copy_from_slice(&(address as u64).to_le_bytes());
    entry[32..35].copy_from_slice(&(len as u32).to_le_bytes()[..3]);
    entry[35..39].copy_from_slice(&key.to_le_bytes());
    entry[39] = if invalidates { 0x4f } else { 0x40 };
}

/// Points to data in the capsule.
fn point_behind(entry: &mut [u8; 64], len: usize) {
    entry[24..40].fill(0);
    entry[32..36].copy_from_slice(&(len as u32).to_le_bytes());
    entry[39] = 0x01;
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl Disk {
    /// The host of this number, for the namespace behind this LUN.
    #[must_use]
    pub fn new(number: u8, lun: u8, now: Instant) -> Self {
        let mut disk = Self {
            number,
            namespace: lun + 1,
            adapter: Adapter::new(number),
            random: Random(u64::from(number) << 32 | now.0 & 0xffff_ffff),
            arena: Arena::new(1 << 20),
            asking: None,
            pairs: [None, None],
            controller: 0xffff,
            is_ready: false,
            events: 0,
            commands: BTreeMap::new(),
            last_key: 0,
            answered: now,
            is_lost: false,
        };
        disk.ask(0, now);
        disk
    }

    /// Requests the connection of a queue, from this time on.
    fn ask(&mut self, queue: usize, at: Instant) {
        let mut private = [0; 56];
        let words = [0, queue as u16, ENTRIES[queue], ENTRIES[queue] - 1, if queue == 0 { 0 } else { self.controller }];
        for (word, place) in words.into_iter().zip(private.chunks_mut(2)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let request = rdma_adapter::request(SERVICE, private, &mut self.random);
        self.asking = Some((queue, Box::new(request), at));
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The next datagram to send.
    pub fn next_datagram(&mut self) -> Option<Vec<u8>> {
        self.adapter.next_datagram()
    }

    /// Starts a command.
    pub fn start(&mut self, cookie: u32, operation: Operation, now: Instant) {
        if self.commands.is_empty() {
            self.answered = now;
        }
        self.commands.insert(cookie, Command { operation, slot: None, key: None });
        self.pump(now);
    }

    /// Begins again with another controller: commands without a response are sent again.
    fn reconnect(&mut self, now: Instant) {
        for pair in self.pairs.iter_mut().filter_map(Option::take) {
            self.adapter.disconnect(&pair);
        }
        self.commands.values_mut().for_each(|command| command.slot = None);
        self.is_ready = false;
        self.ask(0, now + INTERVAL);
    }

    /// Takes a datagram.
    pub fn receive(&mut self, bytes: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        let Some(bytes) = self.adapter.check(bytes) else { return };
        let Some(packet) = Packet::parse(&bytes) else { return };
        if packet.qpn == MANAGER_QPN {
            if let Some(message) = Message::parse(packet.payload) {
                self.manage(&message.body, now);
            }
            return self.pump(now);
        }
        // Another connection has another queue pair.
        let own = |pair: &Option<Box<Pair>>| pair.as_ref().is_some_and(|pair| pair.own_qpn == packet.qpn);
        let Some(queue) = self.pairs.iter().position(own) else { return };
        if let (0, Extension::Acknowledge(syndrome, _)) = (queue, packet.extension) {
            // Each command is answered, or replaced by another one: there is always room for one more.
            assert_eq!(syndrome.not_ready(), None, "the admin queue has no room for a message");
        }
        let Some(pair) = &mut self.pairs[queue] else { return };
        match self.adapter.take(pair, &packet, &bytes, now) {
            Some(messages) => messages.iter().for_each(|message| self.response(queue, message, now, on)),
            None => self.reconnect(now),
        }
        self.pump(now);
    }

    /// Takes a message of the connection manager.
    fn manage(&mut self, body: &Body, now: Instant) {
        match body {
            Body::Reply(reply) => self.reply(reply, now),
            Body::Disconnect(there, here, _) => {
                self.adapter.say(Body::Disconnected(*here, *there));
                if self.pairs.iter().flatten().any(|pair| pair.ids == (*here, *there)) {
                    self.reconnect(now);
                }
            }
            Body::Reject(reject) => {
                if self.asking.as_ref().is_some_and(|(_, request, _)| request.id == reject.ids.1) {
                    self.reconnect(now);
                }
            }
            Body::Request(_) | Body::Receipt(..) | Body::Ready(..) | Body::Disconnected(..) => {}
        }
    }

    fn reply(&mut self, reply: &Reply, now: Instant) {
        let is_asked = self.asking.as_ref().is_some_and(|(_, request, _)| request.id == reply.ids.1);
        if let Some((queue, request, _)) = self.asking.take_if(|_| is_asked) {
            assert_eq!(half(&reply.private, 2), ENTRIES[queue], "room for as many commands");
            let pair = Pair::new(&request, reply, CONNECT_AT + CONNECT_LEN, now);
            self.adapter.say(Body::Ready(pair.ids.0, pair.ids.1));
            self.pairs[queue] = Some(Box::new(pair));
            self.events = if queue == 0 { 0 } else { self.events };
            return self.connect(queue);
        }
        if let Some(pair) = self.pairs.iter().flatten().find(|pair| pair.ids == (reply.ids.1, reply.ids.0)) {
            self.adapter.say(Body::Ready(pair.ids.0, pair.ids.1));
        }
    }

    /// Sends Connect: its data is in memory, or in the capsule of an I/O queue.
    fn connect(&mut self, queue: usize) {
        let mut data = [0; CONNECT_LEN];
        let host = format!("nqn.2026-01.io.lunar:host:{}", self.number);
        data[..2].copy_from_slice(&[1, self.number]);
        let controller = if queue == 0 { 0xffff } else { self.controller };
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + NQN.len()].copy_from_slice(NQN.as_bytes());
        data[512..512 + host.len()].copy_from_slice(host.as_bytes());
        let mut entry = entry(0x7f, CONNECT, 1);
        entry[42..44].copy_from_slice(&(queue as u16).to_le_bytes());
        entry[44..46].copy_from_slice(&(ENTRIES[queue] - 1).to_le_bytes());
        self.last_key += 1;
        let key = self.last_key;
        let Some(pair) = &mut self.pairs[queue] else { return };
        if queue == 0 {
            point(&mut entry, (CONNECT_AT, CONNECT_LEN), key, true);
            pair.peer.memory[CONNECT_AT..].copy_from_slice(&data);
            self.send(queue, &entry);
        } else {
            point_behind(&mut entry, CONNECT_LEN);
            self.send(queue, &[&entry[..], &data].concat());
        }
    }

    fn send(&mut self, queue: usize, capsule: &[u8]) {
        let Some(pair) = &mut self.pairs[queue] else { return };
        pair.requester.send(self.arena.copy(capsule).map(Sg::from).unwrap_or_default().into());
    }

    /// Takes a response capsule.
    fn response(&mut self, queue: usize, bytes: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        assert_eq!(bytes.len(), 16, "a response");
        let (cid, status) = (half(bytes, 12), half(bytes, 14) >> 1);
        assert!(status != 0 || usize::from(half(bytes, 10)) == queue, "of its queue");
        self.answered = now;
        match (cid, status) {
            (CONNECT, 0) if queue == 0 => {
                self.controller = half(bytes, 0);
                // Property Set: CC, enabled.
                let mut enable = entry(0x7f, ENABLE, 0);
                enable[44..48].copy_from_slice(&0x14_u32.to_le_bytes());
                enable[48..52].copy_from_slice(&0x46_0001_u32.to_le_bytes());
                self.send(0, &enable);
            }
            (ENABLE, 0) => {
                // Set Features: Number of Queues.
                let mut queues = entry(0x09, QUEUES, 0);
                queues[40] = 7;
                queues[44..46].copy_from_slice(&(WANTED - 1).to_le_bytes());
                queues[46..48].copy_from_slice(&(WANTED - 1).to_le_bytes());
                self.send(0, &queues);
            }
            (QUEUES, 0) => {
                // A port has 256 connections, of which a host leaves as many as it has, and one is the admin queue.
                let granted = half(bytes, 0) + 1;
                assert!((8..WANTED).contains(&granted), "{granted} queues");
                self.ask(1, now);
            }
            // Each is replaced by the next one, until the controller ends.
            (EVENT, _) => {}
            (CONNECT, 0) => {
                self.is_ready = true;
                on(StationEvent::Ready);
            }
            // The target is not ready, or has ended the controller meanwhile.
            (CONNECT | ENABLE | QUEUES, _) => self.reconnect(now),
            _ => self.completion(cid, status, on),
        }
    }

    /// Takes the completion of an I/O command.
    fn completion(&mut self, cid: u16, status: u16, on: &mut dyn FnMut(StationEvent<'_>)) {
        let slot = usize::from(cid);
        let found = self.commands.iter_mut().find(|(_, command)| command.slot == Some(slot));
        let Some((&cookie, command)) = found else { panic!("a response to command {cid}, which was not sent") };
        let Some(pair) = &self.pairs[1] else { return };
        if let Some(key) = command.key.take() {
            assert!(pair.peer.invalidated.contains(&key), "the key of a command was not invalidated");
        }
        command.slot = None;
        match status {
            0 => {
                if let Operation::Read { count, .. } = command.operation {
                    on(StationEvent::Data(cookie, 0, &pair.peer.memory[slot * SLOT_LEN..][..count as usize * SECTOR]));
                }
                self.commands.remove(&cookie);
                on(StationEvent::Done(cookie, Ok(())));
            }
            // It is sent again.
            status if status & DO_NOT_RETRY == 0 => {}
            status => {
                self.commands.remove(&cookie);
                on(StationEvent::Done(cookie, Err(((status >> 8 & 7) as u8, status as u8))));
            }
        }
    }

    /// Sends what may be sent.
    fn pump(&mut self, now: Instant) {
        for slot in 0..SLOTS {
            let is_free = self.commands.values().all(|command| command.slot != Some(slot));
            let waiting = self.commands.iter_mut().find(|(_, command)| command.slot.is_none());
            let waiting = waiting.filter(|_| is_free && self.is_ready);
            let (Some((cookie, command)), Some(pair)) = (waiting, &mut self.pairs[1]) else {
                continue;
            };
            self.last_key += 1;
            let invalidates = !self.last_key.is_multiple_of(3);
            command.slot = Some(slot);
            command.key = None;
            let memory = &mut pair.peer.memory[slot * SLOT_LEN..][..SLOT_LEN];
            memory.fill(0);
            let (opcode, lba, len) = match &command.operation {
                Operation::Read { lba, count } => (2, *lba, *count as usize * SECTOR),
                Operation::Write { lba, data } => (1, *lba, data.len()),
                Operation::Flush => (0, 0, 0),
            };
            let mut entry = entry(opcode, slot as u16, self.namespace.into());
            let mut behind = &[][..];
            if len > 0 {
                entry[40..48].copy_from_slice(&lba.to_le_bytes());
                entry[48..50].copy_from_slice(&((len / SECTOR - 1) as u16).to_le_bytes());
                point(&mut entry, (slot * SLOT_LEN, len), self.last_key, invalidates);
                command.key = Some(self.last_key).filter(|_| invalidates);
            }
            if let Operation::Write { data, .. } = &command.operation {
                if len <= IN_CAPSULE_MAX && cookie % 3 > 0 {
                    point_behind(&mut entry, len);
                    (behind, command.key) = (&data[..], None);
                } else {
                    memory[..len].copy_from_slice(data);
                }
            }
            let capsule = self.arena.copy(&[&entry[..], behind].concat()).map(Sg::from).unwrap_or_default();
            pair.requester.send(capsule.into());
        }
        let is_quiet = self.pairs[0].as_ref().is_some_and(|pair| pair.requester.is_idle());
        if self.is_ready && is_quiet && self.events < EVENTS {
            self.events += 1;
            self.send(0, &entry(0x0c, EVENT, 0));
        }
        for pair in self.pairs.iter_mut().flatten() {
            self.adapter.send(pair, now);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        if !self.commands.is_empty() && now.since(self.answered) > TIMEOUT && !self.is_lost {
            self.is_lost = true;
            on(StationEvent::Lost);
        }
        if let Some((_, request, next)) = &mut self.asking
            && *next <= now
        {
            *next = now + INTERVAL;
            let request = **request;
            self.adapter.say(Body::Request(request));
        }
        // Without a response to Connect, a target that has begun again does not answer, either.
        let is_waiting = !self.is_ready || !self.commands.is_empty();
        let is_silent =
            |pair: &mut Box<Pair>| pair.requester.expire(now).is_err() || is_waiting && now.since(pair.heard) > SILENCE;
        let last = usize::from(self.is_ready);
        let has_failed = self.pairs.iter_mut().enumerate().any(|(queue, pair)| {
            pair.as_mut().is_some_and(|pair| match queue == last {
                true => is_silent(pair),
                // Nothing is sent over an admin queue later.
                false => pair.requester.expire(now).is_err(),
            })
        });
        if has_failed {
            self.reconnect(now);
        }
        self.pump(now);
    }
}
