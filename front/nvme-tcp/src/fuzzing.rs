//! Entry points of the fuzz targets, and a host for tests: a session, and a front that executes its commands.

use crate::config::IN_CAPSULE_MAX;
use crate::session::{Action, CommandData, ProtocolMachine, PullResult, ReceiveMode, Session, TaskKey};
use crate::wire::{CapsuleCmd, H2cData, IcReq, LAST, Pdu, R2t};
use lunar_core::mem::{Arena, BLOCK_MAX, Sg};
use lunar_core::step::FinalData;
use lunar_core::time::Instant;
use lunar_nvme::command::{FABRICS, Sqe};
use lunar_nvme::fuzzing::caller;
use lunar_nvme::{Command, Path, Queue, Status};
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of the arena of a rig.
const ARENA_BYTES: usize = 8 << 20;
/// Entries of the queue.
const ENTRIES: u16 = 32;

/// A session whose front accepts every host and reads zeroes.
pub struct Rig {
    /// The session.
    pub session: Session,
    /// The arena.
    pub arena: Arena,
    /// Actions that were not performed.
    pub actions: Vec<Action>,
    /// The bytes that the session has sent.
    pub sent: Vec<u8>,
    /// The data that commands have pulled.
    pub pulled: Vec<Vec<u8>>,
    /// The subsystem that executes Connect; `None`: every host is accepted.
    subsystem: Option<Box<Subsystem>>,
    /// Commands that wait for data, with the length of their pull.
    waiting: Vec<(TaskKey, u32)>,
}

/// A subsystem and its connected queues.
struct Subsystem {
    rig: lunar_nvme::fuzzing::Rig,
    queues: Vec<Rc<Queue>>,
}

impl Default for Rig {
    fn default() -> Self {
        let arena = Arena::new(ARENA_BYTES.max(BLOCK_MAX));
        let session = Session::new(arena.clone(), std::sync::Arc::default(), Instant(0));
        let (actions, sent, pulled, waiting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { session, arena, actions, sent, pulled, subsystem: None, waiting }
    }
}

impl Rig {
    /// A rig with a connected queue and these digests.
    #[must_use]
    pub fn live(digests: u8) -> Self {
        let mut rig = Self::default();
        let request = IcReq { digests, ..IcReq::blank(0) };
        rig.receive(request.as_bytes());
        let mut sqe = Sqe::new_zeroed();
        (sqe.opcode, sqe.flags, sqe.nsid, sqe.sgl.kind) = (FABRICS, 0x40, 1.into(), 0x01);
        sqe.sgl.length = 1024.into();
        rig.receive(&capsule(&sqe, &[0; 1024], digests));
        rig.perform_actions();
        rig.sent.clear();
        rig
    }

    /// Receives bytes as a connection does.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.session.closed().is_none() {
            match self.session.receive_mode() {
                ReceiveMode::Chunk => {
                    let count = bytes.len().min(4096);
                    let Some(chunk) = self.arena.copy(&bytes[..count]) else { return };
                    self.session.receive(chunk, Instant::default(), &mut self.actions);
                    bytes = &bytes[count..];
                }
                ReceiveMode::Into(mut memory) => {
                    let count = bytes.len().min(memory.len());
                    memory.copy_from(0, &bytes[..count]);
                    self.session.placed(memory, count, Instant::default(), &mut self.actions);
                    bytes = &bytes[count..];
                }
                ReceiveMode::Paused => {
                    self.take_output();
                    self.session.resume(&mut self.actions);
                }
            }
        }
        self.take_output();
    }

    fn take_output(&mut self) {
        let sent = self.session.take_out();
        self.sent.extend(sent.to_vec());
    }

    /// The bytes sent since the last call.
    pub fn sent(&mut self) -> Vec<u8> {
        self.take_output();
        std::mem::take(&mut self.sent)
    }

    /// Performs the actions of the session.
    pub fn perform_actions(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Connect(key, command, data) => self.connect(key, &command, &data.to_vec()),
                    Action::Command(key, command) => self.command(key, &command),
                    Action::Fused(halves) => {
                        for (key, command) in *halves {
                            self.command(key, &command);
                        }
                    }
                    Action::DataReady(key) => {
                        if let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == key) {
                            let (key, len) = self.waiting.swap_remove(at);
                            self.pull(key, len);
                        }
                    }
                    Action::Refused(..) | Action::EventReplaced(_) | Action::Close(_) => {}
                }
            }
            self.take_output();
        }
    }

    /// Executes Connect as the front does. A host that has to authenticate does so.
    fn connect(&mut self, key: TaskKey, command: &Command, data: &[u8]) {
        let Some(subsystem) = &mut self.subsystem else {
            return self.session.connected(key, Ok((1, ENTRIES, true)), 1);
        };
        let (core, now) = (&subsystem.rig.subsystem, Instant(0));
        let made = match core.arrive(command, data, &caller(), now) {
            Ok(_) => core.connect(command, data, Path::default(), caller(), now),
            Err(refusal) => Err(refusal),
        };
        match made {
            Ok((queue, result)) => {
                self.session.connected(key, Ok((queue.id, queue.entries, queue.flow_control)), result);
                if !queue.passes() {
                    self.session.require_authentication();
                }
                subsystem.queues.push(queue);
            }
            Err(refusal) => self.session.connected(key, Err(refusal.status), refusal.result),
        }
    }

    fn command(&mut self, key: TaskKey, command: &Command) {
        // Most bytes that the controller transfers at once.
        const TRANSFER_MAX: u32 = 1 << 20;
        if command.sent > 0 {
            return self.pull(key, command.sent.min(TRANSFER_MAX));
        }
        let mut final_data = FinalData::default();
        if command.room > 0 {
            let Some(memory) = self.arena.take_sg(command.room.min(TRANSFER_MAX) as usize) else { return };
            final_data.data = memory.share();
        }
        self.session.reply(key, Status::SUCCESS, 0, &mut final_data);
    }

    fn pull(&mut self, key: TaskKey, len: u32) {
        let status = match self.session.pull(key, 0, len as usize) {
            PullResult::Ready(data) => {
                self.pulled.push(data.to_vec());
                Status::SUCCESS
            }
            PullResult::Pending => return self.waiting.push((key, len)),
            PullResult::NeedsMemory(wanted) => match self.arena.take_sg(wanted) {
                Some(memory) => {
                    self.session.supply(key, memory);
                    return self.pull(key, len);
                }
                None => Status::NOT_READY,
            },
            PullResult::Failed(_) => Status::TRANSPORT_ERROR,
        };
        self.session.reply(key, status, 0, &mut FinalData::default());
    }
}

/// A command capsule with in-capsule data.
#[must_use]
pub fn capsule(sqe: &Sqe, data: &[u8], digests: u8) -> Vec<u8> {
    emit(CapsuleCmd { sqe: *sqe, ..CapsuleCmd::blank(0) }, data, digests)
}

/// An H2CData PDU.
///
/// # Panics
/// When the data is longer than 4 GiB.
#[must_use]
pub fn h2c_data(cid: u16, tag: u16, offset: u32, data: &[u8], flags: u8, digests: u8) -> Vec<u8> {
    let data_len = u32::try_from(data.len()).expect("small").into();
    let header = H2cData { cid: cid.into(), tag: tag.into(), offset: offset.into(), data_len, ..H2cData::blank(flags) };
    emit(header, data, digests)
}

fn emit<P: Pdu>(header: P, data: &[u8], digests: u8) -> Vec<u8> {
    let arena = Arena::new(ARENA_BYTES);
    let mut out = crate::pdu_queue::PduQueue::new(arena.clone());
    out.digests = crate::pdu_queue::Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
    let mut payload = Sg::default();
    if !data.is_empty()
        && let Some(mut memory) = arena.take_sg(data.len())
    {
        memory.copy_from(0, data);
        payload = memory.share();
    }
    out.data(header, payload);
    out.queue.take().to_vec()
}

/// Any bytes at the start of a connection, with a subsystem that executes Connect; the first byte determines how the
/// bytes are divided.
pub fn start(data: &[u8]) {
    let Some((division, data)) = data.split_first() else { return };
    let mut rig = Rig::default();
    rig.subsystem = Some(Box::new(Subsystem { rig: lunar_nvme::fuzzing::Rig::default(), queues: Vec::new() }));
    // Bytes after Connect are received before and after its reply.
    for part in data.chunks(1 + usize::from(*division) * 8) {
        rig.receive(part);
        rig.perform_actions();
    }
    let queues = rig.subsystem.as_ref().map_or(0, |subsystem| subsystem.queues.len());
    assert!(queues <= 1, "a connection has one queue");
    check(&rig);
}

/// Any bytes on a connected queue; the first byte determines the digests.
pub fn queue(data: &[u8]) {
    let Some((digests, data)) = data.split_first() else { return };
    let mut rig = Rig::live(digests & 3);
    for part in data.chunks(1 + usize::from(digests >> 2)) {
        rig.receive(part);
        rig.perform_actions();
    }
    check(&rig);
}

/// A host that mostly follows the protocol: commands, and data for its R2Ts, with occasional errors.
pub fn host(data: &[u8]) {
    let Some((digests, data)) = data.split_first() else { return };
    let digests = digests & 3;
    let mut rig = Rig::live(digests);
    let mut request = R2t::blank(0);
    for step in data.chunks_exact(6) {
        let [what, cid, low, high, mistake, delay] = [step[0], step[1] & 7, step[2], step[3], step[4], step[5]];
        let len = u32::from(u16::from_le_bytes([low, high]));
        let mut sqe = Sqe::new_zeroed();
        (sqe.opcode, sqe.flags, sqe.cid) = (1 + (what >> 7), 0x40 | what >> 4 & 3, u16::from(cid).into());
        (sqe.sgl.kind, sqe.sgl.length) = (0x5a, len.into());
        let bytes = match what & 3 {
            0 => capsule(&sqe, &[], digests),
            1 => {
                sqe.sgl.kind = 0x01;
                capsule(&sqe, &vec![cid; usize::from(high) << 4 | usize::from(low & 15)], digests)
            }
            _ => {
                let (off, size) = (request.offset.get(), request.data_len.get().min(len.max(1)));
                let flags = if size == request.data_len.get() || mistake == 1 { LAST } else { 0 };
                let tag = request.tag.get().wrapping_add(u16::from(mistake == 2));
                let bytes = h2c_data(request.cid.get(), tag, off, &vec![7; size as usize], flags, digests);
                request.offset = (off + size).into();
                request.data_len = (request.data_len.get() - size).into();
                bytes
            }
        };
        rig.receive(&bytes);
        if delay & 1 == 0 {
            rig.perform_actions();
        }
        let sent = rig.sent();
        let found = sent.windows(size_of::<R2t>()).find(|part| part[..4] == R2t::blank(digests & 1).as_bytes()[..4]);
        if let Some(found) = found.and_then(R2t::of) {
            request = *found;
        }
    }
    rig.perform_actions();
    check(&rig);
}

/// Checks the limits that hold for any bytes.
fn check(rig: &Rig) {
    let most = rig.subsystem.as_ref().and_then(|subsystem| subsystem.queues.first()).map(|queue| queue.entries);
    assert!(rig.session.tasks() <= usize::from(most.unwrap_or(ENTRIES)));
    assert!(rig.pulled.iter().all(|data| data.len() <= (1 << 20).max(IN_CAPSULE_MAX as usize)));
}
