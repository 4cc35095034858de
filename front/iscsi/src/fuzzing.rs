//! Entry points of the fuzz targets: any bytes make a conversation with a session. The session must not panic, must
//! hold no more memory than its limits allow, and must free all of it.
//!
//! The bytes are a tape of decisions: which raw bytes are sent, which PDUs with mostly valid fields, so that later
//! states are reached, how the front answers, and how the stream is divided.

use crate::chap::{CHALLENGE_LEN, CHALLENGE_MAX, Challenge, RESPONSE_MAX, Response, TargetAnswer};
use crate::config::{ANSWERS_MAX, Config, IMMEDIATE_MAX};
use crate::login::LoginDecision;
use crate::session::{
    Action, CommandData, ProtocolMachine, PullResult, ReceiveMode, Session, TargetAddresses, TaskKey,
};
use crate::text;
use crate::wire::{
    BHS_LEN, Bhs, DIGEST_LEN, DataOut, FINAL, FunctionResponse, LoginRequest, LoginStatus, LogoutRequest, NO_TAG,
    NopOut, Pdu, R2t, READ, ScsiCommand, Snack, Stage, TaskManagementRequest, TextRequest, U24, WRITE, digest,
    login_flags, padded,
};
use lunar_core::access::USER_MAX;
use lunar_core::mem::{Arena, BLOCK_MAX, Sg};
use lunar_core::stats::Stats;
use lunar_core::step::FinalData;
use lunar_core::time::Instant;
use lunar_core::wire::be::U32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes that a connection may hold before its login is complete: a text, a data segment, a header and a page of
/// replies.
const LOGIN_MEMORY_MAX: usize = 64 << 10;
/// The command window: small, so that its limits are reached.
const WINDOW: u32 = 8;
/// The challenge of every initiator.
const CHALLENGE: Challenge = Challenge { identifier: 3, bytes: [0x5c; CHALLENGE_LEN] };
/// Most bytes of a received chunk.
const PIECE_MAX: usize = 4096;
/// Most bytes of a data segment that are fed: twice the longest valid one. A segment that claims to be longer, through
/// a corrupted byte, is cut off here: otherwise a hundred bytes of tape would take seconds.
const SEGMENT_MAX: usize = 128 << 10;

/// The decisions of the fuzzer's bytes; zeroes at their end.
struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn below(&mut self, limit: usize) -> usize {
        (usize::from(self.byte()) * 256 + usize::from(self.byte())) % limit
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }
}

/// A command that is being executed.
struct Running {
    key: TaskKey,
    expected: usize,
    pulled: usize,
}

/// A session and its front.
struct FuzzedSession {
    arena: Arena,
    session: Session,
    now: Instant,
    running: Vec<Running>,
    managing: Vec<TaskKey>,
    /// The requested data of R2Ts, and the unsolicited data of commands.
    tags: Vec<R2t>,
    digests: (bool, bool),
    cmd_sn: u32,
    /// The number of CHAP answers that the front was asked to check.
    chap_answers: usize,
}

impl FuzzedSession {
    fn new(config: Config) -> Self {
        let arena = Arena::new(4 * BLOCK_MAX);
        let now = Instant(0);
        let unsolicited = arena.join([192, 0, 2, 1].into()).unsolicited;
        let session = Session::new(Rc::new(config), arena.clone(), &unsolicited, Arc::new(Stats::default()), now);
        Self {
            arena,
            session,
            now,
            running: Vec::new(),
            managing: Vec::new(),
            tags: Vec::new(),
            digests: (false, false),
            cmd_sn: 1,
            chap_answers: 0,
        }
    }

    /// Feeds bytes to the session in pieces that the tape decides, and in long ones at its end: a burst byte by byte
    /// would take seconds.
    fn feed(&mut self, mut bytes: &[u8], tape: &mut Tape<'_>) {
        while !bytes.is_empty() {
            let mut actions = Vec::new();
            let piece = if tape.0.is_empty() { PIECE_MAX } else { 1 + tape.below(PIECE_MAX) }.min(bytes.len());
            match self.session.receive_mode() {
                ReceiveMode::Paused => return,
                ReceiveMode::Chunk => {
                    let Some(chunk) = self.arena.copy(&bytes[..piece]) else { return };
                    self.session.receive(chunk, self.now, &mut actions);
                    bytes = &bytes[piece..];
                }
                ReceiveMode::Into(mut memory) => {
                    let piece = piece.min(memory.len());
                    memory.copy_from(0, &bytes[..piece]);
                    self.session.placed(memory, piece, self.now, &mut actions);
                    bytes = &bytes[piece..];
                }
            }
            self.perform(actions, tape);
        }
    }

    fn perform(&mut self, mut actions: Vec<Action>, tape: &mut Tape<'_>) {
        while let Some(action) = actions.pop() {
            match action {
                Action::Authorize(_) => self.session.authorized(login_decision(tape.byte()), &mut actions),
                Action::Authenticate(chap_answer) => {
                    assert!((1..=USER_MAX).contains(&chap_answer.user.len()), "a user name has 1 to USER_MAX bytes");
                    assert!(chap_answer.mutual.is_none_or(|c| (1..=CHALLENGE_MAX).contains(&c.challenge.len())));
                    self.chap_answers += 1;
                    self.session.authenticated(chap_result(tape.byte()), &mut actions);
                }
                Action::Establish(_) => {
                    let answer = if tape.byte() == 1 { Err(LoginStatus::OUT_OF_RESOURCES) } else { Ok(1) };
                    self.session.established(answer, &mut actions);
                }
                Action::Command(command) => {
                    let (key, expected) = (command.task, command.data_out as usize);
                    self.running.push(Running { key, expected, pulled: 0 });
                }
                Action::TaskManagement(function) => self.managing.push(function.task),
                Action::SendTargets(_) => {
                    let portals = vec![(([192, 0, 2, 1], 3260).into(), 1)];
                    let name = "iqn.x".repeat(1 + tape.below(300)).into();
                    self.session.targets(&[TargetAddresses { name, portals }]);
                }
                Action::DataReady(_) | Action::Close(_) => {}
            }
        }
    }

    /// Takes the bytes to send, and keeps the R2Ts in them.
    fn drain(&mut self) {
        let bytes = self.session.take_out().to_vec();
        let mut at = 0;
        while let Some(header) = Bhs::peek(&bytes[at..]) {
            if let Some(r2t) = header.as_pdu::<R2t>() {
                self.tags.push(R2t { r2t_sn: U32::new(0), ..*r2t });
            }
            let data_digest = if self.digests.1 && header.data_len.get() > 0 { DIGEST_LEN } else { 0 };
            let header_digest = if self.digests.0 { DIGEST_LEN } else { 0 };
            at += BHS_LEN + header_digest + header.padded_len() + data_digest;
        }
        let mut actions = Vec::new();
        self.session.resume(&mut actions);
        self.perform(actions, &mut Tape(&[]));
    }

    /// The front handles one of the commands or functions.
    fn serve(&mut self, tape: &mut Tape<'_>) {
        if let Some(key) = self.managing.pop() {
            return self.session.function_done(key, FunctionResponse(tape.byte()), [tape.byte(); 3]);
        }
        if self.running.is_empty() {
            return;
        }
        let at = tape.below(self.running.len());
        let Running { key, expected, ref mut pulled } = self.running[at];
        let data = || self.arena.copy(&[7; 1000]).map(Sg::from).unwrap_or_default();
        match tape.byte() % 8 {
            0 => {
                self.session.reply(
                    key,
                    tape.byte() & 2,
                    tape.take(20),
                    &mut FinalData { offset: 0, data: data() },
                    1000,
                );
                self.running.swap_remove(at);
            }
            1 => {
                self.session.drop_task(key);
                self.running.swap_remove(at);
            }
            2 => _ = self.session.push(key, tape.below(2000), data()),
            _ => {
                let rest = expected - *pulled;
                let len = if tape.byte().is_multiple_of(4) { tape.below(5000) } else { rest };
                match self.session.pull(key, *pulled, len) {
                    PullResult::Ready(data) => *pulled += data.len(),
                    PullResult::NeedsMemory(wanted) => {
                        let memory = self.arena.take_sg(wanted.min(BLOCK_MAX)).unwrap_or_default();
                        self.session.supply(key, memory);
                    }
                    PullResult::Pending | PullResult::Failed(_) => {}
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.session.tasks() <= WINDOW as usize + IMMEDIATE_MAX, "more tasks than the limit");
        if !self.session.is_established() && self.session.closed().is_none() {
            assert!(self.arena.used() <= LOGIN_MEMORY_MAX, "{:?} before the login", self.arena);
        }
        // One more PDU, and what the front has queued.
        let pushed = 2048 * (self.session.tasks() + 512);
        assert!(self.session.queued_bytes() <= 2 * ANSWERS_MAX + pushed, "{} queued", self.session.queued_bytes());
    }

    fn end(self) {
        let arena = self.arena.clone();
        drop(self);
        assert_eq!(arena.used(), 0, "memory is leaked");
    }

    /// A request with mostly valid fields: the tape decides which request, and sometimes corrupts bytes.
    fn request(&mut self, tape: &mut Tape<'_>) -> Vec<u8> {
        let (mut header, len) = match tape.byte() % 16 {
            0..6 => self.scsi_command(tape),
            6..11 => self.data_out(tape),
            11 => (self.numbered::<NopOut>(tape), tape.below(600)),
            12 => (self.numbered::<TextRequest>(tape), 0),
            13 | 14 => (self.task_management(tape), 0),
            _ => match tape.byte() {
                0 => (self.numbered::<LogoutRequest>(tape), 0),
                1 => (*Snack::blank().bhs(), 0),
                _ => (self.numbered::<TextRequest>(tape), tape.below(300)),
            },
        };
        header.data_len = U24::new(len);
        let spoil = tape.byte();
        if spoil < 8 {
            let at = tape.below(BHS_LEN);
            header.as_mut_bytes()[at] = tape.byte();
        }
        // One value in 256 gives an additional header segment of the wrong length.
        let ahs: &[u8] = if spoil == 8 { &[0, 5, 1, 0, 1, 2, 3, 4] } else { tape.take(header.ahs_len().min(8)) };
        if spoil == 8 {
            header.ahs_words = 2;
        }
        let text = if header.opcode() == TextRequest::OPCODE { tape.take(header.data_len.get()) } else { &[] };
        self.frame(header.as_bytes(), ahs, header.ahs_len(), text, header.data_len.get())
    }

    /// A request with a tag, a CmdSN that is mostly ExpCmdSN, and flags of the tape.
    fn numbered<T: Pdu>(&mut self, tape: &mut Tape<'_>) -> Bhs {
        let shape = tape.byte();
        let mut header = *T::blank().bhs();
        if let Ok(request) = NopOut::mut_from_bytes(header.as_mut_bytes()) {
            request.itt = U32::new(u32::from(tape.byte() % 16));
            request.ttt = U32::new(if shape & 8 == 0 {
                NO_TAG
            } else {
                self.tags.last().map_or(1, |asked| asked.ttt.get().wrapping_add(1))
            });
            request.flags = if shape & 16 == 0 { FINAL } else { tape.byte() };
            let ahead = if shape & 6 == 0 { u32::from(shape >> 5) } else { 0 };
            request.cmd_sn = U32::new(self.cmd_sn.wrapping_add(ahead));
            if shape & 1 == 0 {
                request.first = request.first.immediately();
            } else if ahead == 0 {
                self.cmd_sn = self.cmd_sn.wrapping_add(1);
            }
        }
        header
    }

    fn scsi_command(&mut self, tape: &mut Tape<'_>) -> (Bhs, usize) {
        let mut header = self.numbered::<ScsiCommand>(tape);
        let expected = [0, 512, 1000, 1024, 3000, 9000][usize::from(tape.byte()) % 6];
        let (flags, len) = match tape.byte() % 8 {
            0 => (READ | FINAL, 0),
            1 | 2 => (WRITE | FINAL, expected.min(1024)),
            3 => (WRITE | FINAL, 0),
            4 | 5 => (WRITE, expected.min(500)),
            6 => (FINAL, 0),
            _ => (tape.byte(), tape.below(1200)),
        };
        if let Ok(command) = ScsiCommand::mut_from_bytes(header.as_mut_bytes()) {
            command.flags = flags;
            command.expected_len = U32::new(u32::try_from(expected).unwrap_or_default());
        }
        if flags & (FINAL | WRITE) == WRITE {
            // The unsolicited data that would follow.
            let rest = expected.min(1024).saturating_sub(len);
            let blank = R2t { itt: header.itt, ttt: U32::new(NO_TAG), ..R2t::blank() };
            let (offset, desired_len) = (U32::new(len as u32), U32::new(rest as u32));
            self.tags.push(R2t { offset, desired_len, ..blank });
        }
        (header, len)
    }

    /// Data for an R2T, or unsolicited data.
    fn data_out(&mut self, tape: &mut Tape<'_>) -> (Bhs, usize) {
        let shape = tape.byte();
        let at = if shape & 3 == 0 { tape.below(1 + self.tags.len()) } else { 0 };
        let Some(asked) = self.tags.get(at).copied() else { return (*DataOut::blank().bhs(), 0) };
        let (whole, data_sn) = (asked.desired_len.get() as usize, asked.r2t_sn.get());
        let (flags, len) = match shape >> 2 & 7 {
            0 => (0, whole / 2),
            1 => (FINAL, whole / 2),
            2 => (0, whole),
            _ => (FINAL, whole),
        };
        if flags == FINAL {
            self.tags.remove(at);
        } else {
            let (offset, rest) = (asked.offset.get() + len as u32, (whole - len) as u32);
            // The R2TSN is not needed: the field counts DataSN.
            let (offset, desired_len, r2t_sn) = (U32::new(offset), U32::new(rest), U32::new(data_sn + 1));
            self.tags[at] = R2t { offset, desired_len, r2t_sn, ..asked };
        }
        let data_sn = U32::new(data_sn);
        let header =
            DataOut { flags, itt: asked.itt, ttt: asked.ttt, data_sn, offset: asked.offset, ..DataOut::blank() };
        (*header.bhs(), len)
    }

    fn task_management(&mut self, tape: &mut Tape<'_>) -> Bhs {
        let mut header = self.numbered::<TaskManagementRequest>(tape);
        if let Ok(request) = TaskManagementRequest::mut_from_bytes(header.as_mut_bytes()) {
            request.flags = FINAL | (tape.byte() % 14);
            request.itt = U32::new(100 + u32::from(tape.byte() % 4));
            request.referenced_tag = U32::new(u32::from(tape.byte() % 16));
            request.ref_cmd_sn = U32::new(self.cmd_sn.wrapping_sub(u32::from(tape.byte() % 8)));
        }
        header
    }

    /// The bytes of a PDU with segments of these lengths, padded with zeroes, and digests.
    fn frame(&self, header: &[u8], ahs: &[u8], ahs_len: usize, data: &[u8], data_len: usize) -> Vec<u8> {
        let mut bytes = [header, ahs].concat();
        bytes.resize(header.len() + ahs_len, 0);
        if self.digests.0 {
            bytes.extend(digest(&bytes));
        }
        let start = bytes.len();
        bytes.extend_from_slice(data);
        bytes.resize(start + padded(data_len.min(SEGMENT_MAX)), 0);
        if self.digests.1 && data_len > 0 {
            bytes.extend(digest(&bytes[start..]));
        }
        debug_assert!(bytes.len() <= BHS_LEN + ahs_len + padded(data_len) + 2 * DIGEST_LEN);
        bytes
    }
}

fn login_decision(decision: u8) -> LoginDecision {
    match decision {
        1 => LoginDecision::Refused(LoginStatus::NOT_FOUND),
        2 => LoginDecision::Moved { permanently: true, address: "192.0.2.1:3260".into() },
        3 => LoginDecision::Accepted {
            portal_group: 1,
            alias: None,
            challenge: Some(CHALLENGE),
            offer: None,
            resumed: None,
        },
        _ => LoginDecision::Accepted {
            portal_group: 1,
            alias: Some("x".into()),
            challenge: None,
            offer: None,
            resumed: None,
        },
    }
}

/// The front's answer to a CHAP answer.
fn chap_result(decision: u8) -> Result<Option<TargetAnswer>, LoginStatus> {
    match decision {
        1 => Err(LoginStatus::AUTHENTICATION_FAILURE),
        2 => Ok(None),
        _ => Ok(Response::of(vec![7; RESPONSE_MAX]).map(|response| TargetAnswer { name: "t".into(), response })),
    }
}

/// Keys that mostly advance a login.
fn put_keys(text: &mut Vec<u8>, step: u8) {
    let pairs: &[(&str, &str)] = match step % 8 {
        1 => &[("AuthMethod", "CHAP,None")],
        2 => &[("CHAP_A", "5,7,8")],
        3 => &[("CHAP_N", "alice"), ("CHAP_R", "0x0102")],
        4 => &[("CHAP_N", "alice"), ("CHAP_R", "0bAAAA"), ("CHAP_I", "7"), ("CHAP_C", "0x0102030405060708")],
        5 => &[("CHAP_I", "1")],
        _ => &[],
    };
    pairs.iter().for_each(|(key, value)| text::put(text, key, value));
}

fn login_request(flags: u8) -> LoginRequest {
    LoginRequest { flags, cmd_sn: U32::new(1), ..LoginRequest::blank() }
}

/// Any bytes during a login.
pub fn fuzz_login(data: &[u8]) {
    let _ = any_login(data);
}

/// Returns how many CHAP answers were checked.
fn any_login(data: &[u8]) -> usize {
    let tape = &mut Tape(data);
    let mut fuzzed = FuzzedSession::new(Config { window: WINDOW, ..Config::default() });
    while !tape.0.is_empty() && fuzzed.session.closed().is_none() && !fuzzed.session.is_established() {
        let step = tape.byte();
        match step % 8 {
            0 => {
                let len = tape.below(200);
                let bytes = tape.take(len);
                fuzzed.feed(bytes, tape);
            }
            1 => {
                fuzzed.now = fuzzed.now + Duration::from_millis(u64::from(tape.byte()) * 10);
                let mut actions = Vec::new();
                fuzzed.session.tick(fuzzed.now, &mut actions);
                fuzzed.perform(actions, tape);
            }
            2 => fuzzed.drain(),
            decision => {
                let mut text = Vec::new();
                if decision < 6 {
                    text::put(&mut text, "InitiatorName", "iqn.x");
                    text::put(&mut text, "TargetName", "iqn.y");
                }
                put_keys(&mut text, step / 8);
                let flags = tape.byte();
                let len = tape.below(400);
                text.extend_from_slice(tape.take(len));
                let mut header = login_request(flags);
                header.data_len = U24::new(text.len());
                let bytes = fuzzed.frame(header.as_bytes(), &[], 0, &text, text.len());
                fuzzed.feed(&bytes, tape);
            }
        }
        fuzzed.check();
    }
    let chap_answers = fuzzed.chap_answers;
    fuzzed.end();
    chap_answers
}

/// Any bytes in the full-feature phase.
pub fn fuzz_full_feature(data: &[u8]) {
    let tape = &mut Tape(data);
    while !tape.0.is_empty() {
        converse(tape);
    }
}

/// One session, until it is closed or the tape ends.
fn converse(tape: &mut Tape<'_>) {
    let mut fuzzed = FuzzedSession::new(Config { window: WINDOW, unsolicited_max: 40_000, ..Config::default() });
    log_in(&mut fuzzed, tape.byte());
    while !tape.0.is_empty() && fuzzed.session.closed().is_none() {
        match tape.byte() {
            0 => {
                let len = tape.below(200);
                let bytes = tape.take(len);
                fuzzed.feed(bytes, tape);
            }
            1..8 => {
                fuzzed.now = fuzzed.now + Duration::from_secs(u64::from(tape.byte() % 32));
                let mut actions = Vec::new();
                fuzzed.session.tick(fuzzed.now, &mut actions);
                fuzzed.perform(actions, tape);
            }
            8..64 => fuzzed.drain(),
            64..150 => fuzzed.serve(tape),
            _ => {
                let bytes = fuzzed.request(tape);
                fuzzed.feed(&bytes, tape);
            }
        }
        fuzzed.check();
    }
    fuzzed.end();
}

fn log_in(fuzzed: &mut FuzzedSession, options: u8) {
    let mut text = Vec::new();
    text::put(&mut text, "InitiatorName", "iqn.x");
    if options & 1 != 0 {
        text::put(&mut text, "SessionType", "Discovery");
    } else {
        text::put(&mut text, "TargetName", "iqn.y");
        text::put(&mut text, "InitialR2T", text::yes_or_no(options & 2 != 0));
        text::put(&mut text, "ImmediateData", text::yes_or_no(options & 4 == 0));
        text::put(&mut text, "MaxBurstLength", if options & 8 == 0 { 1024 } else { 65_536 });
        text::put(&mut text, "FirstBurstLength", if options & 8 == 0 { 1024 } else { 4096 });
        text::put(&mut text, "MaxOutstandingR2T", 1 + (options >> 4 & 3));
    }
    fuzzed.digests = (options & 64 != 0, options & 128 != 0);
    for (key, on) in [("HeaderDigest", fuzzed.digests.0), ("DataDigest", fuzzed.digests.1)] {
        text::put(&mut text, key, if on { "CRC32C" } else { text::NONE });
    }
    let mut header = login_request(login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)));
    header.data_len = U24::new(text.len());
    // Digests apply after the login.
    let digests = std::mem::take(&mut fuzzed.digests);
    let bytes = fuzzed.frame(header.as_bytes(), &[], 0, &text, text.len());
    fuzzed.feed(&bytes, &mut Tape(&[]));
    fuzzed.drain();
    fuzzed.digests = digests;
    assert!(fuzzed.session.is_established(), "the login is valid");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tape of a login with CHAP, which is also a seed of the fuzz target.
    const CHAP: &[u8] = include_bytes!("../../../check/fuzz/seeds/login/chap");

    #[test]
    fn a_chap_login_is_reached() {
        assert_eq!(any_login(CHAP), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_login_with_any_bytes_ends(data in prop::collection::vec(any::<u8>(), 0..3000)) {
            fuzz_login(&data);
        }
    }

    proptest! {
        // Each case is long; the fuzz target runs more of them.
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_session_with_any_bytes_ends(data in prop::collection::vec(any::<u8>(), 0..6000)) {
            fuzz_full_feature(&data);
        }
    }
}
