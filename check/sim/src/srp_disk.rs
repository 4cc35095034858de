//! An initiator of SRP over RDMA with one disk, without I/O: an adapter, its connection manager and the driver of a
//! host in one. It checks that its memory is used as the descriptors say, and that each command has one response.

use crate::operation::{Operation, StationEvent};
use crate::rdma_adapter::{self, Adapter, INTERVAL, Pair, SILENCE};
use crate::stamp::SECTOR;
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use lunar_rdma::mad::{Body, Message, Reply, Request};
use lunar_rdma::testing::Random;
use lunar_rdma::wire::{MANAGER_QPN, Packet};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The port of the connection manager of the target.
const SERVICE: u16 = 5555;
/// The GUID of its port.
pub const GUID: u64 = 0x5054_00ff_fe12_3401;
/// Memory of a command: its data with gaps, and a table of descriptors.
const SLOT_LEN: usize = 16 << 10;
const TABLE_AT: usize = 15 << 10;
/// Commands in progress.
const SLOTS: usize = 8;
/// Bytes between two pieces of the data.
const GAP: usize = 7;
/// Where the data in a command begins, and the most bytes of it.
const IMMEDIATE_AT: usize = 68;
const IMMEDIATE_MAX: usize = 8 << 10;
/// Bytes of a memory descriptor.
const DESCRIPTOR_LEN: usize = 16;
/// The time without any response after which the target is given up.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A command.
struct Command {
    operation: Operation,
    slot: Option<usize>,
}

/// A connection.
struct Session {
    pair: Pair,
    credit: u32,
    /// Whether there may be data in commands.
    has_immediate: bool,
}

enum State {
    /// A request is sent again at this time.
    Asking(Box<Request>, Instant),
    Up(Box<Session>),
}

/// An initiator with one disk.
pub struct Disk {
    number: u8,
    adapter: Adapter,
    lun: u8,
    random: Random,
    arena: Arena,
    state: State,
    commands: BTreeMap<u32, Command>,
    /// The time of the last response.
    answered: Instant,
    is_lost: bool,
    /// The descriptors of the next command have a format that there is not.
    is_spoilt: bool,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

impl Disk {
    /// The initiator of this number, for the disk of this LUN.
    #[must_use]
    pub fn new(number: u8, lun: u8, now: Instant) -> Self {
        let mut random = Random(u64::from(number) << 32 | now.0 & 0xffff_ffff);
        let request = Self::request(number, &mut random);
        Self {
            number,
            adapter: Adapter::new(number),
            lun,
            random,
            arena: Arena::new(1 << 20),
            state: State::Asking(Box::new(request), now),
            commands: BTreeMap::new(),
            answered: now,
            is_lost: false,
            is_spoilt: false,
        }
    }

    /// The descriptors of the next command are wrong.
    pub fn spoil(&mut self) {
        self.is_spoilt = true;
    }

    /// A request for a connection with the login.
    fn request(number: u8, random: &mut Random) -> Request {
        let mut private = [0; 56];
        private[9] = 6;
        // Half of the connections have data in commands.
        private[10] = if random.below(2) == 0 { 0x80 } else { 0 };
        private[12..16].copy_from_slice(&8260_u32.to_be_bytes());
        private[48..50].copy_from_slice(&(IMMEDIATE_AT as u16).to_be_bytes());
        private[31] = number;
        private[32..48].copy_from_slice(&[GUID.to_be_bytes(), GUID.to_be_bytes()].concat());
        rdma_adapter::request(SERVICE, private, random)
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Up(_))
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
        self.commands.insert(cookie, Command { operation, slot: None });
        self.pump(now);
    }

    /// Begins again with another connection: commands without a response are sent again.
    fn reconnect(&mut self, now: Instant) {
        let request = Self::request(self.number, &mut self.random);
        if let State::Up(session) = std::mem::replace(&mut self.state, State::Asking(Box::new(request), now)) {
            self.adapter.disconnect(&session.pair);
        }
        self.commands.values_mut().for_each(|command| command.slot = None);
    }

    /// Takes a datagram.
    pub fn receive(&mut self, bytes: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        let Some(bytes) = self.adapter.check(bytes) else { return };
        let Some(packet) = Packet::parse(&bytes) else { return };
        if packet.qpn == MANAGER_QPN {
            if let Some(message) = Message::parse(packet.payload) {
                self.manage(&message.body, now, on);
            }
            return self.pump(now);
        }
        let State::Up(session) = &mut self.state else { return };
        // Another connection has another queue pair.
        if packet.qpn != session.pair.own_qpn {
            return;
        }
        match self.adapter.take(&mut session.pair, &packet, &bytes, now) {
            Some(messages) => messages.iter().for_each(|message| self.message(message, now, on)),
            None => self.reconnect(now),
        }
        self.pump(now);
    }

    /// Takes a message of the connection manager.
    fn manage(&mut self, body: &Body, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        match body {
            Body::Reply(reply) => self.reply(reply, now, on),
            Body::Disconnect(there, here, _) => {
                self.adapter.say(Body::Disconnected(*here, *there));
                if matches!(&self.state, State::Up(session) if session.pair.ids == (*here, *there)) {
                    self.reconnect(now);
                }
            }
            Body::Reject(reject) => {
                if let State::Asking(request, next) = &mut self.state
                    && request.id == reject.ids.1
                {
                    *next = now + INTERVAL;
                    **request = Self::request(self.number, &mut self.random);
                }
            }
            Body::Request(_) | Body::Receipt(..) | Body::Ready(..) | Body::Disconnected(..) => {}
        }
    }

    fn reply(&mut self, reply: &Reply, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        if let State::Asking(request, _) = &self.state
            && request.id == reply.ids.1
        {
            assert_eq!(reply.private[0], 0xc0, "a response to the login");
            let session = Session {
                pair: Pair::new(request, reply, SLOTS * SLOT_LEN, now),
                credit: word(&reply.private, 4),
                has_immediate: reply.private[26] & 0x80 != 0,
            };
            self.state = State::Up(Box::new(session));
            on(StationEvent::Ready);
        }
        if let State::Up(session) = &self.state
            && session.pair.ids == (reply.ids.1, reply.ids.0)
        {
            let ids = session.pair.ids;
            self.adapter.say(Body::Ready(ids.0, ids.1));
        }
    }

    /// Takes an information unit.
    fn message(&mut self, unit: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        let State::Up(session) = &mut self.state else { return };
        session.credit += word(unit, 4);
        if unit[0] == 0x81 {
            let mut answer = [0; 16];
            answer[0] = 0x41;
            answer[8..].copy_from_slice(&unit[8..16]);
            let answer = self.arena.copy(&answer).map(Sg::from).unwrap_or_default();
            return session.pair.requester.send(answer.into());
        }
        assert_eq!(unit[0], 0xc1, "a response");
        self.answered = now;
        let cookie = word(unit, 12);
        let Some(Command { operation, slot }) = self.commands.get_mut(&cookie) else {
            panic!("a response to command {cookie}, which has one");
        };
        let at = slot.take().unwrap_or_else(|| panic!("a response to command {cookie}, which was not sent"));
        let key = unit.get(36 + word(unit, 32) as usize + 2).map_or(0, |key| key & 15);
        match (unit[19], key) {
            (0, _) => {
                if let Operation::Read { count, .. } = operation {
                    let len = *count as usize * SECTOR;
                    let data: Vec<u8> = pieces(cookie, len)
                        .flat_map(|(from, len)| &session.pair.peer.memory[at * SLOT_LEN + from..][..len])
                        .copied()
                        .collect();
                    on(StationEvent::Data(cookie, 0, &data));
                }
                self.commands.remove(&cookie);
                on(StationEvent::Done(cookie, Ok(())));
            }
            // BUSY, TASK SET FULL, and a unit attention condition: it is sent again.
            (8 | 0x28, _) | (2, 6) => {}
            (status, key) => {
                self.commands.remove(&cookie);
                on(StationEvent::Done(cookie, Err((status, key))));
            }
        }
    }

    /// Sends what may be sent.
    fn pump(&mut self, now: Instant) {
        let State::Up(session) = &mut self.state else { return };
        for slot in 0..SLOTS {
            let is_free = self.commands.values().all(|command| command.slot != Some(slot));
            let waiting = self.commands.iter_mut().find(|(_, command)| command.slot.is_none());
            let Some((cookie, command)) = waiting.filter(|_| is_free && session.credit > 0) else { continue };
            command.slot = Some(slot);
            session.credit -= 1;
            let memory = &mut session.pair.peer.memory[slot * SLOT_LEN..][..SLOT_LEN];
            let mut unit = match (&command.operation, session.has_immediate) {
                (Operation::Write { lba, data }, true) if data.len() <= IMMEDIATE_MAX && cookie % 3 > 0 => {
                    immediate_unit((*cookie, self.lun), *lba, data)
                }
                (operation, _) => command_unit((*cookie, self.lun), operation, (slot * SLOT_LEN, memory)),
            };
            if std::mem::take(&mut self.is_spoilt) {
                unit[5] = if unit[5] > 0x0f { 0x70 } else { 0x07 };
            }
            let unit = self.arena.copy(&unit).map(Sg::from).unwrap_or_default();
            session.pair.requester.send(unit.into());
        }
        self.adapter.send(&mut session.pair, now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        if !self.commands.is_empty() && now.since(self.answered) > TIMEOUT && !self.is_lost {
            self.is_lost = true;
            on(StationEvent::Lost);
        }
        match &mut self.state {
            State::Asking(request, next) if *next <= now => {
                *next = now + INTERVAL;
                let request = **request;
                self.adapter.say(Body::Request(request));
            }
            State::Asking(..) => {}
            State::Up(session) => {
                let is_silent = session.pair.requester.expire(now).is_err()
                    || !self.commands.is_empty() && now.since(session.pair.heard) > SILENCE;
                if is_silent {
                    self.reconnect(now);
                }
            }
        }
        self.pump(now);
    }
}

/// The pieces of the data of a command in its memory, and their lengths.
fn pieces(cookie: u32, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = 1 + cookie as usize % 7;
    let each = len.div_ceil(count).max(1);
    (0..count).map(move |at| (at * (each + GAP), len.saturating_sub(at * each).min(each))).filter(|(_, len)| *len > 0)
}

/// The information unit of a write whose data is in it.
fn immediate_unit((cookie, lun): (u32, u8), lba: u64, data: &Rc<[u8]>) -> Vec<u8> {
    let nothing = Operation::Write { lba, data: Rc::from([]) };
    let mut unit = command_unit((cookie, lun), &nothing, (0, &mut []));
    unit[5] = 0x30;
    unit[39..41].copy_from_slice(&((data.len() / SECTOR) as u16).to_be_bytes());
    unit.extend((data.len() as u32).to_be_bytes());
    unit.resize(IMMEDIATE_AT, 0xaa);
    unit.extend(&data[..]);
    unit
}

/// The information unit of a command, whose data or memory is at this address.
fn command_unit((cookie, lun): (u32, u8), operation: &Operation, (address, memory): (usize, &mut [u8])) -> Vec<u8> {
    let mut unit = vec![0; 48];
    (unit[0], unit[21]) = (2, lun);
    unit[12..16].copy_from_slice(&cookie.to_be_bytes());
    let (code, lba, count, nibble) = match operation {
        Operation::Read { lba, count } => (0x28, *lba, *count, 0),
        Operation::Write { lba, data } => (0x2a, *lba, (data.len() / SECTOR) as u32, 4),
        Operation::Flush => (0x35, 0, 0, 0),
    };
    unit[32] = code;
    unit[34..38].copy_from_slice(&(lba as u32).to_be_bytes());
    unit[39..41].copy_from_slice(&(count as u16).to_be_bytes());
    let len = count as usize * SECTOR;
    if len == 0 {
        return unit;
    }
    memory.fill(0);
    if let Operation::Write { data, .. } = operation {
        let mut rest = &data[..];
        for (at, len) in pieces(cookie, len) {
            let (piece, behind) = rest.split_at(len);
            memory[at..at + len].copy_from_slice(piece);
            rest = behind;
        }
    }
    let descriptor = |at: usize, len: usize| {
        [&((address + at) as u64).to_be_bytes()[..], &7_u32.to_be_bytes(), &(len as u32).to_be_bytes()].concat()
    };
    let list: Vec<u8> = pieces(cookie, len).flat_map(|(at, len)| descriptor(at, len)).collect();
    if list.len() == DESCRIPTOR_LEN {
        // One piece: a direct descriptor.
        unit[5] = 1 << nibble;
        unit.extend(list);
        return unit;
    }
    // All descriptors are in the unit, or only the first one, or none: then the target reads the table.
    let here = match cookie / 7 % 3 {
        0 => list.len(),
        1 => DESCRIPTOR_LEN,
        _ => 0,
    };
    memory[TABLE_AT..TABLE_AT + list.len()].copy_from_slice(&list);
    unit[5] = 2 << nibble;
    unit[if nibble == 0 { 7 } else { 6 }] = (here / DESCRIPTOR_LEN) as u8;
    unit.extend(descriptor(TABLE_AT, list.len()));
    unit.extend((len as u32).to_be_bytes());
    unit.extend(&list[..here]);
    unit
}
