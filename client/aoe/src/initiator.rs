//! One disk of a target.

use crate::timer::RoundTrips;
use lunar_aoe::identify;
use lunar_aoe::wire::{
    ATA_LEN, Address, AtaCommand, AtaPart, Command, ConfigPart, ETHER_TYPE, FAILURE_MASK, FRAME_MIN, Header, SECTOR,
};
use lunar_core::time::Instant;
use lunar_link::{Header as EthernetHeader, MacAddress};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The most frames that are outstanding, whatever the target queues.
pub const WINDOW_MAX: usize = 64;
/// The bits of a tag that number a frame; the others count its uses. The highest bit stays clear.
const FRAME_BITS: u32 = 10;
const USES_MAX: u32 = 1 << (31 - FRAME_BITS);
/// The sectors of a request to a target that reports none.
const SECTORS_DEFAULT: u8 = 2;
/// The tags of discovery: no frame has them.
const DISCOVERY: u32 = (1 << FRAME_BITS) - 1;

/// The settings of an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitiatorConfig {
    /// The own MAC address.
    pub mac: MacAddress,
    /// The target.
    pub target: Address,
    /// The largest payload of a frame.
    pub mtu: usize,
    /// The time after which a target without an answer is given up.
    pub timeout: Duration,
    /// Whether a frame that is sent again has a new tag, as the initiator of Linux does.
    pub fresh_tags: bool,
}

/// The operation of a command.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads sectors.
    Read {
        /// The first one.
        lba: u64,
        /// Their number.
        count: u32,
    },
    /// Writes whole sectors.
    Write {
        /// The first one.
        lba: u64,
        /// The data.
        data: Rc<[u8]>,
    },
    /// Brings what was written to the medium.
    Flush,
}

/// An event of the disk or of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InitiatorEvent<'a> {
    /// The disk was found: commands may start.
    Ready,
    /// Data of a read: the number of the command, the offset in its data, and the data. Pieces arrive in any order.
    Data(u32, usize, &'a [u8]),
    /// A command has ended: with success, or with the ATA status and error.
    Done(u32, Result<(), (u8, u8)>),
    /// The target has not answered for the whole timeout: all commands have ended.
    Lost,
}

/// The state of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Query Config Information was sent.
    Querying,
    /// IDENTIFY DEVICE was sent.
    Identifying,
    Ready,
    Lost,
}

/// A command in progress.
#[derive(Debug)]
struct CommandState {
    cookie: u32,
    /// Frames that are not answered, or not sent yet.
    left: u32,
    failure: Option<(u8, u8)>,
    is_used: bool,
}

/// A frame that is to be sent, or is outstanding.
#[derive(Clone, Debug)]
struct Piece {
    command: usize,
    ata: AtaCommand,
    lba: u64,
    count: u8,
    /// The offset in the data of the command.
    offset: usize,
    data: Option<Rc<[u8]>>,
}

#[derive(Clone, Debug)]
struct Outstanding {
    piece: Piece,
    /// All tags with which it was sent.
    tags: Vec<u32>,
    first_sent: Instant,
    sent: Instant,
    sends: u32,
}

/// One disk of a target.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    phase: Phase,
    target_mac: MacAddress,
    sectors_per_frame: u8,
    capacity: u64,
    buffers: usize,
    /// Frames that may be outstanding now.
    window: usize,
    answered_since_loss: usize,
    times: RoundTrips,
    commands: Vec<CommandState>,
    /// Frames that wait for the window.
    waiting: VecDeque<Piece>,
    outstanding: Vec<Option<Outstanding>>,
    uses: Vec<u32>,
    count: usize,
    /// Frames to send: the payload behind the Ethernet header is built when they are taken.
    to_send: VecDeque<Vec<u8>>,
    discovery: (Instant, Instant, u32),
    /// Frames that were sent again.
    pub resends: u64,
}

impl Initiator {
    /// An initiator that looks for its disk from now on.
    #[must_use]
    pub fn new(config: InitiatorConfig, now: Instant) -> Self {
        let mut initiator = Self {
            config,
            phase: Phase::Querying,
            target_mac: MacAddress::BROADCAST,
            sectors_per_frame: SECTORS_DEFAULT,
            capacity: 0,
            buffers: 1,
            window: 1,
            answered_since_loss: 0,
            times: RoundTrips::default(),
            commands: Vec::new(),
            waiting: VecDeque::new(),
            outstanding: vec![None; WINDOW_MAX],
            uses: vec![0; WINDOW_MAX],
            count: 0,
            to_send: VecDeque::new(),
            discovery: (now, now, 0),
            resends: 0,
        };
        initiator.discover(now);
        initiator
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// The sectors of the disk.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The most sectors of a frame.
    #[must_use]
    pub fn sectors_per_frame(&self) -> u8 {
        self.sectors_per_frame
    }

    /// The frames that the target queues.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.buffers
    }

    /// Commands in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.commands.iter().filter(|command| command.is_used).count()
    }

    /// The next frame to send.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.to_send.pop_front()
    }

    /// Starts a command; `cookie` identifies it in events.
    pub fn start(&mut self, cookie: u32, operation: Operation, now: Instant) {
        let command = self.commands.iter().position(|command| !command.is_used).unwrap_or(self.commands.len());
        let mut pieces = 0;
        let most = u32::from(self.sectors_per_frame);
        let mut cut = |ata: AtaCommand, lba: u64, count: u32, data: Option<Rc<[u8]>>| {
            let mut done = 0;
            while done < count {
                let piece = (count - done).min(most);
                self.waiting.push_back(Piece {
                    command,
                    ata,
                    lba: lba + u64::from(done),
                    // At most `sectors_per_frame`.
                    count: piece as u8,
                    offset: done as usize * SECTOR,
                    data: data.clone(),
                });
                done += piece;
                pieces += 1;
            }
        };
        match operation {
            Operation::Read { lba, count } => cut(AtaCommand::READ_SECTORS_EXT, lba, count, None),
            Operation::Write { lba, data } => {
                let count = (data.len() / SECTOR) as u32;
                cut(AtaCommand::WRITE_SECTORS_EXT, lba, count, Some(data));
            }
            Operation::Flush => {
                let (ata, data) = (AtaCommand::FLUSH_CACHE_EXT, None);
                self.waiting.push_back(Piece { command, ata, lba: 0, count: 0, offset: 0, data });
                pieces = 1;
            }
        }
        let state = CommandState { cookie, left: pieces, failure: None, is_used: true };
        match self.commands.get_mut(command) {
            Some(place) => *place = state,
            None => self.commands.push(state),
        }
        self.fill_window(now);
    }

    /// Takes the payload of a received frame, behind the Ethernet header.
    pub fn receive(
        &mut self,
        source: MacAddress,
        payload: &[u8],
        now: Instant,
        on: &mut impl FnMut(InitiatorEvent<'_>),
    ) {
        let Ok((header, body)) = Header::ref_from_prefix(payload) else { return };
        if !header.is_response() || header.is_error() || header.address() != self.config.target {
            return;
        }
        match (Command(header.command), self.phase) {
            (Command::CONFIG, Phase::Querying) => self.found(source, body, now),
            (Command::ATA, Phase::Identifying) if header.tag.get() == DISCOVERY => self.identified(body, on),
            (Command::ATA, Phase::Ready) => self.answered(header.tag.get(), body, now, on),
            _ => {}
        }
    }

    /// The time at which [`Initiator::tick`] has work.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Lost => None,
            Phase::Querying | Phase::Identifying => Some(self.discovery.1 + self.times.patience(self.discovery.2)),
            Phase::Ready => {
                let all = self.outstanding.iter().flatten();
                all.map(|frame| frame.sent + self.times.patience(frame.sends)).min()
            }
        }
    }

    /// Sends again what was not answered in time.
    pub fn tick(&mut self, now: Instant, on: &mut impl FnMut(InitiatorEvent<'_>)) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.phase != Phase::Ready {
            match now.since(self.discovery.0) > self.config.timeout {
                true => self.lose(on),
                false => self.discover(now),
            }
            return;
        }
        let mut is_late = false;
        for at in 0..self.outstanding.len() {
            let Some(frame) = &self.outstanding[at] else { continue };
            if frame.sent + self.times.patience(frame.sends) > now {
                continue;
            }
            if now.since(frame.first_sent) > self.config.timeout {
                return self.lose(on);
            }
            is_late = true;
            self.resend(at, now);
        }
        if is_late {
            // As the initiator of Linux: a loss halves the window.
            self.window = (self.window / 2).max(1);
            self.answered_since_loss = 0;
        }
    }

    fn lose(&mut self, on: &mut impl FnMut(InitiatorEvent<'_>)) {
        self.phase = Phase::Lost;
        self.waiting.clear();
        self.outstanding.fill(None);
        self.count = 0;
        self.commands.clear();
        on(InitiatorEvent::Lost);
    }

    /// Sends the frame of the phase of discovery.
    fn discover(&mut self, now: Instant) {
        self.discovery = (self.discovery.0, now, self.discovery.2 + 1);
        let frame = match self.phase {
            Phase::Querying => {
                let part = ConfigPart {
                    buffers: 0.into(),
                    firmware: 0.into(),
                    sectors: 0,
                    version_and_command: 0x10,
                    len: 0.into(),
                };
                let header = Header::request(self.config.target, Command::CONFIG, 0);
                self.frame(MacAddress::BROADCAST, &header, part.as_bytes(), &[])
            }
            _ => {
                let part = AtaPart { flags: 0, ..AtaPart::request(AtaCommand::IDENTIFY_DEVICE, 0, 1) };
                let header = Header::request(self.config.target, Command::ATA, DISCOVERY);
                self.frame(self.target_mac, &header, part.as_bytes(), &[])
            }
        };
        self.to_send.push_back(frame);
    }

    fn frame(&self, destination: MacAddress, header: &Header, part: &[u8], data: &[u8]) -> Vec<u8> {
        let ethernet = EthernetHeader { destination, source: self.config.mac, ether_type: ETHER_TYPE };
        let mut frame = Vec::with_capacity((ATA_LEN + data.len()).max(FRAME_MIN));
        frame.extend_from_slice(&ethernet.bytes());
        frame.extend_from_slice(header.as_bytes());
        frame.extend_from_slice(part);
        frame.extend_from_slice(data);
        frame.resize(frame.len().max(FRAME_MIN), 0);
        frame
    }

    fn found(&mut self, source: MacAddress, body: &[u8], now: Instant) {
        let Ok((part, _)) = ConfigPart::ref_from_prefix(body) else { return };
        let own = u8::try_from(self.config.mtu.saturating_sub(ATA_LEN) / SECTOR).unwrap_or(u8::MAX);
        let theirs = if part.sectors == 0 { SECTORS_DEFAULT } else { part.sectors };
        self.sectors_per_frame = theirs.min(own).max(1);
        self.buffers = usize::from(part.buffers.get()).clamp(1, WINDOW_MAX);
        self.window = self.buffers;
        self.target_mac = source;
        self.phase = Phase::Identifying;
        self.discovery.2 = 0;
        self.discover(now);
    }

    fn identified(&mut self, body: &[u8], on: &mut impl FnMut(InitiatorEvent<'_>)) {
        let Ok((part, data)) = AtaPart::ref_from_prefix(body) else { return };
        let sectors = data.get(..SECTOR).and_then(identify::sectors);
        if let Some(sectors) = sectors.filter(|_| part.command_or_status & FAILURE_MASK == 0) {
            self.capacity = sectors;
            self.phase = Phase::Ready;
            on(InitiatorEvent::Ready);
        }
    }

    fn answered(&mut self, tag: u32, body: &[u8], now: Instant, on: &mut impl FnMut(InitiatorEvent<'_>)) {
        let at = (tag & ((1 << FRAME_BITS) - 1)) as usize;
        let Ok((part, data)) = AtaPart::ref_from_prefix(body) else { return };
        let known = self.outstanding.get(at).and_then(Option::as_ref);
        let Some(frame) = known.filter(|frame| frame.tags.contains(&tag)) else { return };
        let status = part.command_or_status;
        let is_good = status & FAILURE_MASK == 0;
        let bytes = usize::from(frame.piece.count) * SECTOR;
        let is_read = frame.piece.ata == AtaCommand::READ_SECTORS_EXT;
        if is_good && is_read && data.len() < bytes {
            return;
        }
        let Some(Outstanding { piece, first_sent, sends, .. }) = self.outstanding[at].take() else { return };
        self.count -= 1;
        if sends == 1 {
            self.times.measure(now.since(first_sent));
        }
        self.answered_since_loss += 1;
        if self.answered_since_loss >= self.window && self.window < self.buffers {
            self.window += 1;
            self.answered_since_loss = 0;
        }
        let command = &mut self.commands[piece.command];
        command.left -= 1;
        if !is_good {
            command.failure.get_or_insert((status, part.feature_or_error));
        }
        if is_good && is_read {
            on(InitiatorEvent::Data(command.cookie, piece.offset, &data[..bytes]));
        }
        if command.left == 0 {
            command.is_used = false;
            let result = command.failure.map_or(Ok(()), Err);
            on(InitiatorEvent::Done(command.cookie, result));
        }
        self.fill_window(now);
    }

    /// Sends what waits, as far as the window allows.
    fn fill_window(&mut self, now: Instant) {
        while self.count < self.window && self.phase == Phase::Ready {
            let Some(piece) = self.waiting.pop_front() else { return };
            let Some(at) = self.outstanding.iter().position(Option::is_none) else { return };
            self.count += 1;
            let tag = self.tag(at);
            let sent = self.build(&piece, tag);
            self.outstanding[at] = Some(Outstanding { piece, tags: vec![tag], first_sent: now, sent: now, sends: 1 });
            self.to_send.push_back(sent);
        }
    }

    /// A new tag for the frame in this place.
    fn tag(&mut self, at: usize) -> u32 {
        self.uses[at] = (self.uses[at] + 1) % USES_MAX;
        self.uses[at] << FRAME_BITS | at as u32
    }

    fn build(&self, piece: &Piece, tag: u32) -> Vec<u8> {
        let header = Header::request(self.config.target, Command::ATA, tag);
        let part = AtaPart::request(piece.ata, piece.lba, piece.count);
        let bytes = usize::from(piece.count) * SECTOR;
        let data = piece.data.as_ref().map_or(&[][..], |data| &data[piece.offset..piece.offset + bytes]);
        self.frame(self.target_mac, &header, part.as_bytes(), data)
    }

    fn resend(&mut self, at: usize, now: Instant) {
        let fresh = self.config.fresh_tags.then(|| self.tag(at));
        let Some(frame) = &mut self.outstanding[at] else { return };
        frame.tags.extend(fresh);
        frame.sent = now;
        frame.sends += 1;
        let (piece, tag) = (frame.piece.clone(), frame.tags[frame.tags.len() - 1]);
        let again = self.build(&piece, tag);
        self.resends += 1;
        self.to_send.push_back(again);
    }
}

#[cfg(test)]
#[path = "initiator_tests.rs"]
mod tests;
