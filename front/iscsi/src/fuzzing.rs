//! What a fuzzer calls: any bytes make a conversation with a session. It must not panic, must hold no more memory
//! than its limits say, and must give all of it back.
//!
//! The bytes are a tape that decides what comes next: raw bytes, PDUs that are right in most of their fields, so that
//! the deeper states are reached, what the outside does with commands, and how the stream is cut into pieces.

use crate::config::{ANSWERS_MAX, Config, IMMEDIATE_MAX};
use crate::login::Verdict;
use crate::session::{Action, Pull, Session, TargetAddresses, TaskKey, Want};
use crate::text;
use crate::wire::{
    BHS_LEN, DIGEST_LEN, Function, FunctionResponse, LoginRequest, LoginStatus, NO_TAG, NopOut, Opcode, Pdu, R2t,
    Stage, U24, digest, login_flags, padded,
};
use lunar_core::mem::{Arena, BLOCK_MAX, Sg};
use lunar_core::stats::Stats;
use lunar_core::step::Tail;
use lunar_core::time::Instant;
use lunar_core::wire::be::U32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that a connection may hold before its login is over: a text, a segment, a header, a page of answers each.
const LOGIN_MEMORY_MAX: usize = 64 << 10;
/// Commands of the session: few, so that the window's edge is met.
const WINDOW: u32 = 8;
/// Chunks are no longer than this.
const PIECE_MAX: usize = 4096;

/// Decisions, from the fuzzer's bytes; zeroes when they are used up.
struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) * 256 % limit + usize::from(self.byte()) % limit.min(256)
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }
}

/// A session and what the outside knows of it.
struct World {
    arena: Arena,
    session: Session,
    now: Instant,
    running: Vec<(TaskKey, u32)>,
    managing: Vec<TaskKey>,
    /// Transfer tags that the target gave.
    tags: Vec<u32>,
    digests: (bool, bool),
    cmd_sn: u32,
}

impl World {
    fn new(config: Config) -> Self {
        let arena = Arena::new(4 * BLOCK_MAX);
        let now = Instant(0);
        let session = Session::new(Rc::new(config), arena.clone(), Arc::new(Stats::default()), now);
        Self {
            arena,
            session,
            now,
            running: Vec::new(),
            managing: Vec::new(),
            tags: Vec::new(),
            digests: (false, false),
            cmd_sn: 1,
        }
    }

    /// Gives bytes to the session in pieces that the tape decides.
    fn feed(&mut self, mut bytes: &[u8], tape: &mut Tape<'_>) {
        while !bytes.is_empty() {
            let mut actions = Vec::new();
            let piece = (1 + tape.below(PIECE_MAX)).min(bytes.len());
            match self.session.want() {
                Want::Nothing => return,
                Want::Chunk => {
                    let Some(chunk) = self.arena.copy(&bytes[..piece]) else { return };
                    self.session.receive(chunk, self.now, &mut actions);
                    bytes = &bytes[piece..];
                }
                Want::Into(mut memory) => {
                    let piece = piece.min(memory.len());
                    memory.copy_from(0, &bytes[..piece]);
                    self.session.placed(memory, piece, self.now, &mut actions);
                    bytes = &bytes[piece..];
                }
            }
            self.act(actions, tape);
        }
    }

    fn act(&mut self, mut actions: Vec<Action>, tape: &mut Tape<'_>) {
        while let Some(action) = actions.pop() {
            match action {
                Action::Authorize(_) => self.session.authorized(verdict(tape.byte()), &mut actions),
                Action::Establish(_) => {
                    let answer = if tape.byte() == 1 { Err(LoginStatus::OUT_OF_RESOURCES) } else { Ok(1) };
                    self.session.established(answer, &mut actions);
                }
                Action::Command(command) => self.running.push((command.task, command.data_out)),
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

    /// Takes what is to be sent, and notes the tags in it.
    fn drain(&mut self) {
        let bytes = self.session.take_out().to_vec();
        for at in 0..bytes.len().saturating_sub(BHS_LEN - 1) {
            if let Ok((r2t, _)) = R2t::ref_from_prefix(&bytes[at..])
                && r2t.first.opcode() == Opcode::R2T
            {
                self.tags.push(r2t.ttt.get());
            }
        }
        let mut actions = Vec::new();
        self.session.resume(&mut actions);
        self.act(actions, &mut Tape(&[]));
    }

    /// The outside does something with one of the commands.
    fn serve(&mut self, tape: &mut Tape<'_>) {
        if let Some(key) = self.managing.pop() {
            return self.session.function_done(key, FunctionResponse(tape.byte()));
        }
        if self.running.is_empty() {
            return;
        }
        let at = tape.below(self.running.len());
        let (key, expected) = self.running[at];
        let data = || self.arena.copy(&[7; 1000]).map(Sg::from).unwrap_or_default();
        match tape.byte() % 6 {
            0 => {
                self.session.reply(key, tape.byte(), tape.take(20), Tail { offset: 0, data: data() }, 1000);
                self.running.swap_remove(at);
            }
            1 => {
                self.session.drop_task(key);
                self.running.swap_remove(at);
            }
            2 => _ = self.session.push(key, tape.below(2000), data()),
            _ => {
                let len = if tape.byte() % 2 == 0 { expected as usize } else { tape.below(5000) };
                if let Pull::Memory(wanted) = self.session.pull(key, 0, len)
                    && let Some(memory) = self.arena.take_sg(wanted.min(BLOCK_MAX))
                {
                    self.session.supply(key, memory);
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.session.tasks() <= WINDOW as usize + IMMEDIATE_MAX, "more tasks than there may be");
        if !self.session.is_established() && self.session.closed().is_none() {
            assert!(self.arena.used() <= LOGIN_MEMORY_MAX, "{:?} before the login", self.arena);
        }
        // One more PDU, and what the outside has queued itself.
        let pushed = 2048 * (self.session.tasks() + 512);
        assert!(self.session.queued_bytes() <= 2 * ANSWERS_MAX + pushed, "{} queued", self.session.queued_bytes());
    }

    fn end(self) {
        let arena = self.arena.clone();
        drop(self);
        assert_eq!(arena.used(), 0, "memory was lost");
    }

    /// A PDU that is right where it matters most, and the tape's everywhere else.
    fn request(&mut self, tape: &mut Tape<'_>) -> Vec<u8> {
        const REQUESTS: [Opcode; 9] = [
            Opcode::SCSI_COMMAND,
            Opcode::SCSI_COMMAND,
            Opcode::DATA_OUT,
            Opcode::DATA_OUT,
            Opcode::NOP_OUT,
            Opcode::TASK_MANAGEMENT_REQUEST,
            Opcode::TEXT_REQUEST,
            Opcode::SNACK,
            Opcode::LOGOUT_REQUEST,
        ];
        let mut header = [0; BHS_LEN];
        let given = tape.take(BHS_LEN);
        header[..given.len()].copy_from_slice(given);
        let (kind, shape, len) = (tape.byte(), tape.byte(), tape.below(6000));
        let opcode = REQUESTS[usize::from(kind) % REQUESTS.len()];
        let is_immediate = opcode == Opcode::DATA_OUT || opcode == Opcode::SNACK || shape & 1 != 0;
        let Ok(request) = NopOut::mut_from_bytes(&mut header) else { return Vec::new() };
        request.first = NopOut { first: crate::wire::First::new(opcode), ..NopOut::blank() }.first;
        if shape & 1 != 0 {
            request.first = request.first.immediately();
        }
        request.itt = U32::new(request.itt.get() % 16);
        request.ahs_words &= if shape & 2 != 0 { 7 } else { 0 };
        if shape & 4 == 0 {
            request.cmd_sn = U32::new(self.cmd_sn.wrapping_add(u32::from(shape >> 6)));
            self.cmd_sn = self.cmd_sn.wrapping_add(u32::from(!is_immediate && shape >> 6 == 0));
        }
        if shape & 8 == 0 {
            let latest = self.tags.last().copied().unwrap_or(NO_TAG);
            request.ttt = U32::new(if shape & 16 == 0 { latest } else { NO_TAG });
        }
        request.data_len = U24::new(if shape & 32 == 0 { len } else { 0 });
        if opcode == Opcode::TASK_MANAGEMENT_REQUEST {
            request.flags |= Function::ABORT_TASK.0 & shape;
            request.ttt = U32::new(request.ttt.get() % 16);
        }
        if opcode == Opcode::SCSI_COMMAND {
            // The expected length, where NOP-Out has its transfer tag.
            request.ttt = U32::new(request.ttt.get() % 10_000);
        } else {
            request.ahs_words = 0;
        }
        let ahs_len = usize::from(request.ahs_words) * 4;
        let data_len = request.data_len.get();
        self.frame(&header, tape.take(ahs_len), ahs_len, tape.take(data_len), data_len)
    }

    /// A header with segments of these lengths, filled up with zeroes, and digests.
    fn frame(&self, header: &[u8], ahs: &[u8], ahs_len: usize, data: &[u8], data_len: usize) -> Vec<u8> {
        let mut bytes = [header, ahs].concat();
        bytes.resize(header.len() + ahs_len, 0);
        if self.digests.0 {
            bytes.extend(digest(&bytes));
        }
        let start = bytes.len();
        bytes.extend_from_slice(data);
        bytes.resize(start + padded(data_len), 0);
        if self.digests.1 && data_len > 0 {
            bytes.extend(digest(&bytes[start..]));
        }
        debug_assert!(bytes.len() <= BHS_LEN + ahs_len + padded(data_len) + 2 * DIGEST_LEN);
        bytes
    }
}

fn verdict(decision: u8) -> Verdict {
    match decision {
        1 => Verdict::Refused(LoginStatus::NOT_FOUND),
        2 => Verdict::Moved { permanently: true, address: "192.0.2.1:3260".into() },
        _ => Verdict::Accepted { portal_group: 1, alias: Some("x".into()) },
    }
}

fn login_request(flags: u8) -> LoginRequest {
    LoginRequest { flags, cmd_sn: U32::new(1), ..LoginRequest::blank() }
}

/// Any bytes before a login is over.
pub fn fuzz_login(data: &[u8]) {
    let tape = &mut Tape(data);
    let mut world = World::new(Config { window: WINDOW, ..Config::default() });
    while !tape.0.is_empty() && world.session.closed().is_none() && !world.session.is_established() {
        match tape.byte() % 8 {
            0 => {
                let len = tape.below(200);
                let bytes = tape.take(len);
                world.feed(bytes, tape);
            }
            1 => {
                world.now = world.now + Duration::from_millis(u64::from(tape.byte()) * 10);
                let mut actions = Vec::new();
                world.session.tick(world.now, &mut actions);
                world.act(actions, tape);
            }
            2 => world.drain(),
            decision => {
                let mut text = Vec::new();
                if decision < 6 {
                    text::put(&mut text, "InitiatorName", "iqn.x");
                    text::put(&mut text, "TargetName", "iqn.y");
                }
                let flags = tape.byte();
                let len = tape.below(400);
                text.extend_from_slice(tape.take(len));
                let mut header = login_request(flags);
                header.data_len = U24::new(text.len());
                let bytes = world.frame(header.as_bytes(), &[], 0, &text, text.len());
                world.feed(&bytes, tape);
            }
        }
        world.check();
    }
    world.end();
}

/// Any bytes after a login.
pub fn fuzz_full_feature(data: &[u8]) {
    let tape = &mut Tape(data);
    let config = Config { window: WINDOW, unsolicited_max: 40_000, ..Config::default() };
    let mut world = World::new(config);
    log_in(&mut world, tape.byte());
    while !tape.0.is_empty() && world.session.closed().is_none() {
        match tape.byte() % 8 {
            0 => {
                let len = tape.below(200);
                let bytes = tape.take(len);
                world.feed(bytes, tape);
            }
            1 => {
                world.now = world.now + Duration::from_secs(u64::from(tape.byte()));
                let mut actions = Vec::new();
                world.session.tick(world.now, &mut actions);
                world.act(actions, tape);
            }
            2 => world.drain(),
            3 | 4 => world.serve(tape),
            _ => {
                let bytes = world.request(tape);
                world.feed(&bytes, tape);
            }
        }
        world.check();
    }
    world.end();
}

fn log_in(world: &mut World, options: u8) {
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
    world.digests = (options & 64 != 0, options & 128 != 0);
    for (key, on) in [("HeaderDigest", world.digests.0), ("DataDigest", world.digests.1)] {
        text::put(&mut text, key, if on { "CRC32C" } else { text::NONE });
    }
    let mut header = login_request(login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)));
    header.data_len = U24::new(text.len());
    let digests = std::mem::take(&mut world.digests);
    let bytes = world.frame(header.as_bytes(), &[], 0, &text, text.len());
    world.digests = digests;
    world.feed(&bytes, &mut Tape(&[]));
    assert!(world.session.is_established(), "a login without fault");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_login_ends(data in prop::collection::vec(any::<u8>(), 0..3000)) {
            fuzz_login(&data);
        }

        #[test]
        fn any_conversation_ends(data in prop::collection::vec(any::<u8>(), 0..6000)) {
            fuzz_full_feature(&data);
        }
    }
}
