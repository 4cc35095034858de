//! An initiator for tests: it builds requests, parses responses, and acts as the front of a session.

use crate::chap::Challenge;
use crate::config::Config;
use crate::login::LoginDecision;
use crate::session::{Action, Command, CommandData, ProtocolMachine, PullResult, ReceiveMode, Session, TaskKey};
use crate::text;
use crate::wire::{
    Bhs, CONTINUE, DIGEST_LEN, DataOut, FINAL, LoginRequest, LoginStatus, NO_TAG, Pdu, READ, ScsiCommand, Stage,
    TextRequest, WRITE, digest, login_flags, padded,
};
use lunar_core::mem::Arena;
use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use lunar_core::wire::be::{U16, U32};
use std::rc::Rc;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A PDU of the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReceivedPdu {
    pub(crate) header: Bhs,
    pub(crate) data: Vec<u8>,
}

impl ReceivedPdu {
    /// The header as a format; panics if it has another opcode.
    pub(crate) fn pdu<T: Pdu>(&self) -> T {
        *self.header.as_pdu::<T>().unwrap_or_else(|| panic!("{:?} has another opcode", self.header))
    }

    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        text::pairs(&self.data).map(|pair| pair.expect("the target writes text")).collect()
    }
}

/// The text of pairs.
pub(crate) fn text_of(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    pairs.iter().for_each(|(key, value)| text::put(&mut text, key, value));
    text
}

pub(crate) const INITIATOR: &str = "iqn.2026-01.org.example:host";
pub(crate) const TARGET: &str = "iqn.2026-01.org.example:disk";
pub(crate) const NAMES: &[(&str, &str)] = &[("InitiatorName", INITIATOR), ("TargetName", TARGET)];
pub(crate) const LUN: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

/// A session with its initiator and its front.
pub(crate) struct Peer {
    pub(crate) arena: Arena,
    pub(crate) session: Session,
    pub(crate) stats: Arc<Stats>,
    pub(crate) now: Instant,
    pub(crate) actions: Vec<Action>,
    pub(crate) cmd_sn: u32,
    pub(crate) digests: (bool, bool),
    /// Most bytes per receive.
    pub(crate) piece: usize,
    /// The challenge of the front, if any.
    pub(crate) challenge: Option<Challenge>,
}

impl Peer {
    pub(crate) fn new(config: Config) -> Self {
        Self::with(config, &Arena::new(8 << 20), 1)
    }

    /// A session of the host with this number, on a core that others use as well.
    pub(crate) fn of_host(arena: &Arena, host: u8) -> Self {
        Self::with(Config::default(), arena, host)
    }

    fn with(config: Config, arena: &Arena, host: u8) -> Self {
        assert_eq!(config.check(), Ok(()));
        let (arena, stats) = (arena.clone(), Arc::new(Stats::default()));
        let now = Instant(1_000_000_000);
        let unsolicited = arena.join([192, 0, 2, host].into()).unsolicited;
        let session = Session::new(Rc::new(config), arena.clone(), &unsolicited, stats.clone(), now);
        Self {
            arena,
            session,
            stats,
            now,
            actions: Vec::new(),
            cmd_sn: 100,
            digests: (false, false),
            piece: usize::MAX,
            challenge: None,
        }
    }

    /// A session after a login with these pairs and the names.
    pub(crate) fn logged_in_with(config: Config, pairs: &[(&str, &str)]) -> Self {
        let mut peer = Self::new(config);
        peer.log_in_with(pairs);
        let is = |key| pairs.contains(&(key, "CRC32C"));
        peer.digests = (is("HeaderDigest"), is("DataDigest"));
        peer
    }

    pub(crate) fn logged_in() -> Self {
        Self::logged_in_with(Config::default(), &[("InitialR2T", "No"), ("MaxOutstandingR2T", "8")])
    }

    pub(crate) fn discovering() -> Self {
        let mut peer = Self::new(Config::default());
        peer.log_in(&text_of(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery")]));
        peer
    }

    /// Logs in with the names and these pairs.
    pub(crate) fn log_in_with(&mut self, pairs: &[(&str, &str)]) {
        self.log_in(&text_of(&[NAMES, pairs].concat()));
    }

    fn log_in(&mut self, text: &[u8]) {
        let received = self.login(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE), text);
        assert_eq!(received.len(), 1);
        assert!(self.session.is_established(), "{received:?}");
        self.actions.clear();
    }

    /// Sends a login request; the front accepts everything.
    pub(crate) fn login(&mut self, stage: Stage, transit: Option<Stage>, text: &[u8]) -> Vec<ReceivedPdu> {
        self.send(&login_request(stage, transit), text);
        self.accept_login();
        self.received()
    }

    pub(crate) fn accept_login(&mut self) {
        let mut kept = Vec::new();
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Authorize(_) => {
                        let alias = Some("the disk".into());
                        let decision = LoginDecision::Accepted {
                            portal_group: 1,
                            alias,
                            challenge: self.challenge,
                            offer: None,
                            resumed: None,
                        };
                        self.session.authorized(decision, &mut self.actions);
                    }
                    Action::Establish(_) => self.session.established(Ok(7), &mut self.actions),
                    other => kept.push(other),
                }
            }
        }
        self.actions = kept;
    }

    pub(crate) fn send<P: Pdu>(&mut self, header: &P, data: &[u8]) {
        let bytes = self.bytes(header, &[], data);
        self.feed(&bytes);
    }

    /// The bytes of a PDU, with the negotiated digests.
    pub(crate) fn bytes<P: Pdu>(&self, header: &P, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = header.as_bytes().to_vec();
        bytes[4] = u8::try_from(ahs.len() / 4).expect("short");
        bytes[5..8].copy_from_slice(crate::wire::U24::new(data.len()).as_bytes());
        bytes.extend_from_slice(ahs);
        if self.digests.0 {
            bytes.extend(digest(&bytes));
        }
        let start = bytes.len();
        bytes.extend_from_slice(data);
        bytes.resize(start + padded(data.len()), 0);
        if self.digests.1 && !data.is_empty() {
            bytes.extend(digest(&bytes[start..]));
        }
        bytes
    }

    /// Feeds bytes to the session in its receive mode.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = bytes.len().min(self.piece);
            match self.session.receive_mode() {
                ReceiveMode::Chunk => {
                    let count = count.min(256 << 10);
                    let chunk = self.arena.copy(&bytes[..count]).expect("room");
                    self.session.receive(chunk, self.now, &mut self.actions);
                    bytes = &bytes[count..];
                }
                ReceiveMode::Into(mut memory) => {
                    let count = count.min(memory.len());
                    memory.copy_from(0, &bytes[..count]);
                    self.session.placed(memory, count, self.now, &mut self.actions);
                    bytes = &bytes[count..];
                }
                ReceiveMode::Paused => return,
            }
        }
    }

    /// The PDUs that the session sends.
    pub(crate) fn received(&mut self) -> Vec<ReceivedPdu> {
        let bytes = self.session.take_out().to_vec();
        let mut received = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let header = *Bhs::peek(&bytes[at..]).expect("a whole header");
            at += 48;
            if self.digests.0 {
                assert_eq!(bytes[at..at + DIGEST_LEN], digest(&bytes[at - 48..at]));
                at += DIGEST_LEN;
            }
            let len = header.data_len.get();
            let data = bytes[at..at + len].to_vec();
            let end = at + header.padded_len();
            assert!(bytes[at + len..end].iter().all(|byte| *byte == 0), "padding");
            if self.digests.1 && len > 0 {
                assert_eq!(bytes[end..end + DIGEST_LEN], digest(&bytes[at..end]));
                at = end + DIGEST_LEN;
            } else {
                at = end;
            }
            received.push(ReceivedPdu { header, data });
        }
        received
    }

    /// The only PDU that the session sends.
    pub(crate) fn only_pdu<T: Pdu>(&mut self) -> (T, Vec<u8>) {
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        (received[0].pdu(), received[0].data.clone())
    }

    /// Checks that nothing is sent, no action is requested, and the connection is open.
    pub(crate) fn assert_quiet(&mut self) {
        assert_eq!(self.received(), []);
        assert!(self.actions.is_empty(), "{:?}", self.actions);
        assert_eq!(self.session.closed(), None);
    }

    pub(crate) fn next_cmd_sn(&mut self) -> u32 {
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.cmd_sn.wrapping_sub(1)
    }

    /// The commands of the session's actions.
    pub(crate) fn commands(&mut self) -> Vec<Command> {
        let actions = std::mem::take(&mut self.actions);
        let command = |action| match action {
            Action::Command(command) => command,
            other => panic!("{other:?} instead of a command"),
        };
        actions.into_iter().map(command).collect()
    }

    pub(crate) fn command(&mut self) -> Command {
        let mut commands = self.commands();
        assert_eq!(commands.len(), 1);
        commands.remove(0)
    }

    /// The tasks whose pulls may be repeated.
    pub(crate) fn ready(&mut self) -> Vec<TaskKey> {
        let actions = std::mem::take(&mut self.actions);
        let key = |action| match action {
            Action::DataReady(key) => key,
            other => panic!("{other:?} instead of data"),
        };
        actions.into_iter().map(key).collect()
    }

    pub(crate) fn read(&mut self, itt: u32, len: u32) -> Command {
        let header = self.scsi(itt, READ | FINAL, len);
        self.send(&header, &[]);
        self.command()
    }

    /// A write with immediate data, whose rest needs an R2T.
    pub(crate) fn write(&mut self, itt: u32, len: u32, data: &[u8]) -> Command {
        let header = self.scsi(itt, WRITE | FINAL, len);
        self.send(&header, data);
        self.command()
    }

    pub(crate) fn scsi(&mut self, itt: u32, flags: u8, len: u32) -> ScsiCommand {
        let cmd_sn = self.next_cmd_sn();
        ScsiCommand {
            flags: flags | 1,
            lun: LUN,
            itt: U32::new(itt),
            expected_len: U32::new(len),
            cmd_sn: U32::new(cmd_sn),
            cdb: [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ..ScsiCommand::blank()
        }
    }

    pub(crate) fn pull(&mut self, key: TaskKey, offset: usize, len: usize) -> Vec<u8> {
        match self.session.pull(key, offset, len) {
            PullResult::Ready(data) => data.to_vec(),
            other => panic!("{other:?} instead of data"),
        }
    }

    /// Supplies memory to a pull that needs it.
    pub(crate) fn supply(&mut self, key: TaskKey, offset: usize, len: usize) {
        let PullResult::NeedsMemory(wanted) = self.session.pull(key, offset, len) else {
            panic!("the pull needs no memory")
        };
        let memory = self.arena.take_sg(wanted).expect("room");
        self.session.supply(key, memory);
    }

    pub(crate) fn assert_closed(&mut self, why: crate::session::CloseReason) {
        assert_eq!(self.session.closed(), Some(why));
        assert!(matches!(self.actions.last(), Some(Action::Close(last)) if *last == why), "{:?}", self.actions);
        assert!(matches!(self.session.receive_mode(), ReceiveMode::Paused));
    }

    pub(crate) fn assert_refused(&mut self, status: LoginStatus) {
        let received = self.received();
        let last = received.last().expect("a response").pdu::<crate::wire::LoginResponse>();
        assert_eq!(LoginStatus(last.status.get()), status);
        self.assert_closed(crate::session::CloseReason::LoginRefused(status));
    }
}

pub(crate) fn login_request(stage: Stage, transit: Option<Stage>) -> LoginRequest {
    LoginRequest {
        first: crate::wire::First::new(LoginRequest::OPCODE).immediately(),
        flags: login_flags(stage, transit),
        isid: [0x40, 1, 2, 3, 4, 5],
        itt: U32::new(9),
        cid: U16::new(3),
        cmd_sn: U32::new(100),
        exp_stat_sn: U32::new(500),
        ..LoginRequest::blank()
    }
}

pub(crate) fn data_out(itt: u32, ttt: u32, data_sn: u32, offset: u32, last: bool) -> DataOut {
    DataOut {
        flags: if last { FINAL } else { 0 },
        lun: LUN,
        itt: U32::new(itt),
        ttt: U32::new(ttt),
        data_sn: U32::new(data_sn),
        offset: U32::new(offset),
        ..DataOut::blank()
    }
}

pub(crate) fn text_request(itt: u32, ttt: Option<u32>, cmd_sn: u32, continues: bool) -> TextRequest {
    TextRequest {
        flags: if continues { CONTINUE } else { FINAL },
        itt: U32::new(itt),
        ttt: U32::new(ttt.unwrap_or(NO_TAG)),
        cmd_sn: U32::new(cmd_sn),
        ..TextRequest::blank()
    }
}

/// Bytes whose values follow from their offsets.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at ^ at >> 8) & 0xff).expect("masked")).collect()
}
