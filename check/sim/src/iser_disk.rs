//! An initiator of iSCSI over RDMA (iSER) with one disk, without I/O: an adapter, its connection manager and the driver
//! of a host in one. It checks that its memory is used as its commands say, and that each command has one response.

use crate::operation::{Operation, StationEvent};
use crate::rdma_adapter::{self, Adapter, INTERVAL, Pair, SILENCE};
use crate::stamp::SECTOR;
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use lunar_iscsi::iser::wire::{HEADER_LEN, Header, Tags};
use lunar_iscsi::wire::{
    BHS_LEN, Bhs, CONTINUE, FINAL, First, LoginRequest, LoginResponse, NO_TAG, NopIn, NopOut, Opcode, Pdu, READ,
    ScsiCommand, ScsiResponse, Stage, U24, WRITE, login_flags,
};
use lunar_rdma::mad::{Body, Message, Reply, Request};
use lunar_rdma::testing::Random;
use lunar_rdma::wire::{Extension, MANAGER_QPN, Packet, Remote};
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The port of the connection manager of the target.
const SERVICE: u16 = 3260;
/// The target.
const TARGET: &str = "iqn.2026-01.io.lunar:lan";
/// The names of initiators.
pub const INITIATORS: &str = "iqn.2026-01.io.lunar:host:*";
/// Memory of a command.
const SLOT_LEN: usize = 32 << 10;
/// Commands in progress.
const SLOTS: usize = 8;
/// Bytes of data that may come with a command.
const IMMEDIATE_MAX: usize = 8192;
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
    /// Whether the initiator allows that keys are invalidated.
    invalidates: bool,
    /// Whether the tag of a write begins with the data that comes with its command.
    tags_all_data: bool,
    is_logged_in: bool,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
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
    /// The last key: none is used again.
    key: u32,
    /// The time of the last response.
    answered: Instant,
    is_lost: bool,
    /// Parts of the text of the next login, which are sent at once.
    flood: usize,
    /// Messages for which the target had no room.
    refused: u32,
}

impl Disk {
    /// The initiator of this number, for the disk of this LUN.
    #[must_use]
    pub fn new(number: u8, lun: u8, now: Instant) -> Self {
        let mut random = Random(u64::from(number) << 32 | now.0 & 0xffff_ffff);
        let request = Self::request(&mut random);
        Self {
            number,
            adapter: Adapter::new(number),
            lun,
            random,
            arena: Arena::new(4 << 20),
            state: State::Asking(Box::new(request), now),
            commands: BTreeMap::new(),
            key: 0,
            answered: now,
            is_lost: false,
            flood: 0,
            refused: 0,
        }
    }

    /// Sends so many requests at once before the next login, without waiting for their responses.
    pub fn flood(&mut self, count: usize) {
        self.flood = count;
    }

    /// Messages that were sent again, because the target had no room for them.
    #[must_use]
    pub fn refused(&self) -> u32 {
        self.refused
    }

    /// A request for a connection. Half of the connections have keys that may be invalidated.
    fn request(random: &mut Random) -> Request {
        let mut private = [0; 56];
        private[0] = if random.below(2) == 0 { 0x80 } else { 0xc0 };
        rdma_adapter::request(SERVICE, private, random)
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(&self.state, State::Up(session) if session.is_logged_in)
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
        let request = Self::request(&mut self.random);
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
                self.manage(&message.body, now);
            }
            return self.pump(now);
        }
        let State::Up(session) = &mut self.state else { return };
        // Another connection has another queue pair.
        if packet.qpn != session.pair.own_qpn {
            return;
        }
        if let Extension::Acknowledge(syndrome, _) = packet.extension {
            self.refused += u32::from(syndrome.not_ready().is_some());
        }
        match self.adapter.take(&mut session.pair, &packet, &bytes, now) {
            Some(messages) => messages.iter().for_each(|message| self.message(message, now, on)),
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
                if matches!(&self.state, State::Up(session) if session.pair.ids == (*here, *there)) {
                    self.reconnect(now);
                }
            }
            Body::Reject(reject) => {
                if let State::Asking(request, next) = &mut self.state
                    && request.id == reject.ids.1
                {
                    *next = now + INTERVAL;
                    **request = Self::request(&mut self.random);
                }
            }
            Body::Request(_) | Body::Receipt(..) | Body::Ready(..) | Body::Disconnected(..) => {}
        }
    }

    fn reply(&mut self, reply: &Reply, now: Instant) {
        if let State::Asking(request, _) = &self.state
            && request.id == reply.ids.1
        {
            assert_eq!(reply.private[0], request.private[0], "what the initiator allows");
            let mut session = Session {
                pair: Pair::new(request, reply, SLOTS * SLOT_LEN, now),
                invalidates: reply.private[0] == 0x80,
                tags_all_data: self.random.below(2) == 0,
                is_logged_in: false,
                cmd_sn: self.random.below(1 << 32) as u32,
                max_cmd_sn: 0,
                exp_stat_sn: 0,
            };
            self.adapter.say(Body::Ready(session.pair.ids.0, session.pair.ids.1));
            let (header, text) = login(self.number, &session);
            for _ in 0..std::mem::take(&mut self.flood) {
                let flags = login_flags(Stage::OPERATIONAL, None) | CONTINUE;
                let part = LoginRequest { flags, data_len: U24::new(0), ..header };
                send(&self.arena, &mut session, &Tags::default(), part.as_bytes(), &[]);
            }
            send(&self.arena, &mut session, &Tags::default(), header.as_bytes(), &text);
            self.state = State::Up(Box::new(session));
        } else if let State::Up(session) = &self.state
            && session.pair.ids == (reply.ids.1, reply.ids.0)
        {
            let ids = session.pair.ids;
            self.adapter.say(Body::Ready(ids.0, ids.1));
        }
    }

    /// Takes a PDU.
    fn message(&mut self, message: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        let State::Up(session) = &mut self.state else { return };
        assert_eq!(message[..HEADER_LEN], *Header::of_target().as_bytes(), "the header of a PDU without tags");
        let pdu = &message[HEADER_LEN..];
        let header = Bhs::peek(pdu).expect("a PDU");
        self.answered = now;
        match header.opcode() {
            Opcode::LOGIN_RESPONSE => {
                let response = LoginResponse::of(header);
                if response.status.get() != 0 {
                    // The target is stopping, or an older session is ending.
                    return self.reconnect(now);
                }
                if response.flags & FINAL == 0 {
                    // The text goes on.
                    return;
                }
                (session.is_logged_in, session.max_cmd_sn) = (true, response.max_cmd_sn.get());
                session.exp_stat_sn = response.stat_sn.get().wrapping_add(1);
                on(StationEvent::Ready);
            }
            Opcode::SCSI_RESPONSE => {
                let response = ScsiResponse::of(header);
                session.max_cmd_sn = response.max_cmd_sn.get();
                session.exp_stat_sn = response.stat_sn.get().wrapping_add(1);
                let key = pdu.get(BHS_LEN + 4).map_or(0, |key| key & 15);
                self.ended(header.itt.get(), (response.status, key), on);
            }
            Opcode::NOP_IN => {
                let ping = NopIn::of(header);
                let answer = NopOut {
                    first: First::new(Opcode::NOP_OUT).immediately(),
                    flags: FINAL,
                    itt: NO_TAG.into(),
                    ttt: ping.ttt,
                    cmd_sn: session.cmd_sn.into(),
                    exp_stat_sn: session.exp_stat_sn.into(),
                    ..NopOut::blank()
                };
                send(&self.arena, session, &Tags::default(), answer.as_bytes(), &[]);
            }
            // A request to log out: the target disconnects soon.
            Opcode::ASYNC_MESSAGE => {}
            other => panic!("{other:?} was not expected"),
        }
    }

    fn ended(&mut self, cookie: u32, (status, key): (u8, u8), on: &mut dyn FnMut(StationEvent<'_>)) {
        let State::Up(session) = &mut self.state else { return };
        let Some(Command { operation, slot }) = self.commands.get_mut(&cookie) else {
            panic!("a response to command {cookie}, which has one");
        };
        let at = slot.take().unwrap_or_else(|| panic!("a response to command {cookie}, which was not sent"));
        match (status, key) {
            (0, _) => {
                if let Operation::Read { count, .. } = operation {
                    let data = &session.pair.peer.memory[at * SLOT_LEN..][..*count as usize * SECTOR];
                    on(StationEvent::Data(cookie, 0, data));
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
        assert!(session.invalidates || session.pair.peer.invalidated.is_empty(), "an invalidation that is not allowed");
    }

    /// Sends what may be sent.
    fn pump(&mut self, now: Instant) {
        let State::Up(session) = &mut self.state else { return };
        for slot in 0..SLOTS {
            // The window is open if MaxCmdSN is not before CmdSN.
            let is_open = session.is_logged_in && session.max_cmd_sn.wrapping_sub(session.cmd_sn) < 1 << 31;
            let is_free = self.commands.values().all(|command| command.slot != Some(slot));
            let waiting = self.commands.iter_mut().find(|(_, command)| command.slot.is_none());
            let Some((cookie, command)) = waiting.filter(|_| is_free && is_open) else { continue };
            command.slot = Some(slot);
            self.key += 1;
            let memory = Remote { address: (slot * SLOT_LEN) as u64, key: self.key };
            let (header, tags, immediate) = scsi_command((*cookie, self.lun), &command.operation, memory, session);
            session.cmd_sn = session.cmd_sn.wrapping_add(1);
            send(&self.arena, session, &tags, header.as_bytes(), &immediate);
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
                let waits = !session.is_logged_in || !self.commands.is_empty();
                let is_silent =
                    session.pair.requester.expire(now).is_err() || waits && now.since(session.pair.heard) > SILENCE;
                if is_silent {
                    self.reconnect(now);
                }
            }
        }
        self.pump(now);
    }
}

/// Sends a PDU.
fn send(arena: &Arena, session: &mut Session, tags: &Tags, pdu: &[u8], data: &[u8]) {
    let message = [Header::of_initiator(tags).as_bytes(), pdu, data].concat();
    let message = arena.copy(&message).map(Sg::from).expect("memory of an initiator");
    session.pair.requester.send(message.into());
}

/// The login request of the initiator of this number, and its text.
fn login(number: u8, session: &Session) -> (LoginRequest, Vec<u8>) {
    let tags_all_data = if session.tags_all_data { "TaggedBufferForSolicitedDataOnly=No\0" } else { "" };
    let text = format!(
        "InitiatorName=iqn.2026-01.io.lunar:host:{number}\0TargetName={TARGET}\0SessionType=Normal\0\
         RDMAExtensions=Yes\0ImmediateData=Yes\0InitialR2T=Yes\0TargetRecvDataSegmentLength={IMMEDIATE_MAX}\0\
         InitiatorRecvDataSegmentLength=8192\0{tags_all_data}"
    );
    let header = LoginRequest {
        first: First::new(Opcode::LOGIN_REQUEST).immediately(),
        flags: login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)),
        data_len: U24::new(text.len()),
        isid: [0x40, 0, 0, 0, 0, number],
        cmd_sn: session.cmd_sn.into(),
        ..LoginRequest::blank()
    };
    (header, text.into_bytes())
}

/// A command, the memory that it names, and the data that comes with it.
fn scsi_command(
    (cookie, lun): (u32, u8),
    operation: &Operation,
    memory: Remote,
    session: &mut Session,
) -> (ScsiCommand, Tags, Vec<u8>) {
    let mut header = ScsiCommand {
        flags: FINAL | 1,
        itt: cookie.into(),
        cmd_sn: session.cmd_sn.into(),
        exp_stat_sn: session.exp_stat_sn.into(),
        ..ScsiCommand::blank()
    };
    header.lun[1] = lun;
    let (mut tags, mut immediate) = (Tags::default(), Vec::new());
    let (code, lba, count) = match operation {
        Operation::Read { lba, count } => {
            header.flags |= READ;
            tags.read = Some(memory);
            (0x28, *lba, *count)
        }
        Operation::Write { lba, data } => {
            header.flags |= WRITE;
            // All data that may come with the command, some of it, or none.
            let most = data.len().min(IMMEDIATE_MAX);
            let len = [most, most / 2, 0][cookie as usize % 3];
            immediate.extend(&data[..len]);
            session.pair.peer.memory[memory.address as usize..][..data.len()].copy_from_slice(data);
            let base = if session.tags_all_data { memory } else { memory.plus(len) };
            tags.write = (len < data.len()).then_some(base);
            (0x2a, *lba, (data.len() / SECTOR) as u32)
        }
        Operation::Flush => (0x35, 0, 0),
    };
    header.cdb[0] = code;
    header.cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
    header.cdb[7..9].copy_from_slice(&(count as u16).to_be_bytes());
    header.expected_len = (count * SECTOR as u32).into();
    header.data_len = U24::new(immediate.len());
    (header, tags, immediate)
}
