//! One connection, which is one queue, as a value: bytes and time go in, bytes and [`Action`]s come out.
//!
//! * [`ProtocolMachine::receive_mode`] says how to receive; [`ProtocolMachine::receive`] and [`ProtocolMachine::placed`] take what came.
//! * Actions are what the outside has to do; it answers with [`Session::connected`] and [`Session::reply`].
//! * A command's data moves with [`CommandData::pull`], [`CommandData::supply`] and [`CommandData::push`].
//! * [`ProtocolMachine::take_out`] is what to send. After it, [`ProtocolMachine::resume`] goes on with what was received and had to
//!   wait.
//! * Once [`Session::closed`] is not `None`, the outside sends what is queued, aborts its commands and closes.

mod data;
mod framing;
mod tasks;

pub use lunar_stream::protocol::{CommandData, ProtocolMachine, PullResult, ReceiveMode};
pub use tasks::TaskKey;

use crate::config::{ALIGNMENT_MAX, CONNECT_TIMEOUT, ENTRIES_BEFORE_CONNECT, H2C_DATA_MAX};
use crate::pdu_queue::{Digests, PduQueue};
use crate::wire::{
    COMMON_LEN, CapsuleCmd, CapsuleResp, Common, DATA_DIGEST, FatalStatus, H2cData, HEADER_DIGEST, IcReq, IcResp, Pdu,
    PduType, TOLD_MAX, TermReq,
};
use lunar_core::mem::{Arena, Sg, SgMut, Slice};
use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use lunar_nvme::command::{FABRICS, FUSE, FUSE_FIRST, FUSE_SECOND, Sqe};
use lunar_nvme::{Command, Direction, Status};
use lunar_stream::input::{self, Input, Payload, PayloadPlan};
use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;
use tasks::{State, Tasks};
use zerocopy::IntoBytes;

/// What the outside has to do.
#[derive(Debug)]
pub enum Action {
    /// Carry Connect out, which came with this data: [`Session::connected`].
    Connect(TaskKey, Box<Command>, Sg),
    /// Carry a command out: [`Session::reply`].
    Command(TaskKey, Command),
    /// Carry out both halves of a fused operation: [`Session::reply`] to each.
    Fused(Box<[(TaskKey, Command); 2]>),
    /// Remember this command: it was told that it ends so.
    Refused(Sqe, Status),
    /// Forget the command of this identifier that waits for an event.
    EventReplaced(u16),
    /// PullResult again: what [`PullResult::Pending`] promised is there, or will not come.
    DataReady(TaskKey),
    /// Send what is queued, abort all commands and close the connection.
    Close(CloseReason),
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The host broke the protocol, and was told so.
    ProtocolError(FatalStatus, u32),
    /// The host says that the controller broke the protocol.
    TerminatedByHost(FatalStatus),
    /// There was no queue in time, or no proof of its host's name.
    ConnectTimeout,
    /// The host has ended its queue.
    Disconnected,
    /// There was no memory for a header.
    NoMemory,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolError(status, at) => write!(f, "the host breaks the protocol: {status:?} at {at}"),
            Self::TerminatedByHost(status) => write!(f, "the host gives up: {status:?}"),
            Self::ConnectTimeout => f.write_str("the host did not connect a queue, or prove its name, in time"),
            Self::Disconnected => f.write_str("the host has disconnected"),
            Self::NoMemory => f.write_str("no memory for an answer"),
        }
    }
}

/// Where a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing was agreed.
    Start,
    /// There is no queue.
    Connecting,
    /// There is one, whose host has still to prove its name.
    Authenticating,
    /// There is one.
    Live,
    /// It is over.
    Closed(CloseReason),
}

/// What broke the protocol: why, and where in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fatal(FatalStatus, u32);

fn invalid(at: usize) -> Fatal {
    Fatal(FatalStatus::INVALID_HEADER, at as u32)
}

/// What the last command was to a fused operation.
#[derive(Debug, Default)]
enum Fused {
    #[default]
    Nothing,
    /// The first half, which waits for the second.
    First(TaskKey, Command),
    /// A first half that was refused: its second fails with it.
    Failed,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    arena: Arena,
    stats: Arc<Stats>,
    phase: Phase,
    input: Input,
    out: PduQueue,
    tasks: Tasks,
    entries: u16,
    queue: u16,
    flow_control: bool,
    /// Commands received, modulo the entries.
    head: u16,
    /// What the last command was to a fused operation.
    fused: Fused,
    next_tag: u16,
    started: Instant,
}

impl Session {
    /// The machine of a connection that was just accepted.
    #[must_use]
    pub fn new(arena: Arena, stats: Arc<Stats>, now: Instant) -> Self {
        Self {
            phase: Phase::Start,
            input: Input::default(),
            out: PduQueue::new(arena.clone()),
            tasks: Tasks::default(),
            entries: ENTRIES_BEFORE_CONNECT,
            queue: 0,
            flow_control: true,
            head: 0,
            fused: Fused::Nothing,
            next_tag: 0,
            started: now,
            arena,
            stats,
        }
    }

    /// Why the connection has to be closed, if it has.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            Phase::Start | Phase::Connecting | Phase::Authenticating | Phase::Live => None,
        }
    }

    /// Whether there is a queue.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Commands that have not been answered.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// When [`Session::tick`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        matches!(self.phase, Phase::Start | Phase::Connecting | Phase::Authenticating)
            .then(|| self.started + CONNECT_TIMEOUT)
    }

    /// Looks at the time: a connection that gets no queue, or whose host proves nothing, ends.
    pub fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.close(CloseReason::ConnectTimeout, actions);
        }
    }

    /// The answer to [`Action::Connect`]: the queue, with its identifier, entries and whether its host wants to know
    /// how far it was read; else how Connect ends. `result`: dword 0 of its completion.
    pub fn connected(&mut self, key: TaskKey, answer: Result<(u16, u16, bool), Status>, result: u32) {
        let status = match answer {
            Ok((queue, entries, flow_control)) if self.phase == Phase::Connecting => {
                self.phase = Phase::Live;
                (self.queue, self.entries, self.flow_control) = (queue, entries, flow_control);
                // Connect itself is the first entry that was read.
                self.head = 1 % entries;
                Status::SUCCESS
            }
            Ok(_) => Status::SEQUENCE_ERROR,
            Err(status) => status,
        };
        self.reply(key, status, result.into(), &mut lunar_core::step::Tail::default());
    }

    /// The host of the queue has to prove its name, and has no more time for that than it had for all before.
    pub fn require_authentication(&mut self) {
        if self.phase == Phase::Live {
            self.phase = Phase::Authenticating;
        }
    }

    /// The host has proved its name; `false` if it had before, or had not to.
    pub fn authenticated(&mut self) -> bool {
        let proves = self.phase == Phase::Authenticating;
        if proves {
            self.phase = Phase::Live;
        }
        proves
    }

    /// The command waits for an event: [`Session::reply_to`] ends it.
    pub fn park(&mut self, key: TaskKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.state = State::AwaitsEvent;
        }
    }

    /// The host has disconnected: the queue ends when what is queued was sent.
    pub fn disconnected(&mut self) {
        self.shut(CloseReason::Disconnected);
    }

    fn digests(&self) -> Digests {
        self.out.digests
    }

    fn close(&mut self, why: CloseReason, actions: &mut Vec<Action>) {
        if self.closed().is_none() {
            self.shut(why);
            actions.push(Action::Close(why));
        }
    }

    fn shut(&mut self, why: CloseReason) {
        if self.closed().is_none() {
            self.phase = Phase::Closed(why);
        }
        self.input.clear();
        self.tasks = Tasks::default();
        self.fused = Fused::Nothing;
    }

    /// Tells the host what it broke, and closes. The PDU tells as much of the header as there is.
    fn fail(&mut self, fatal: Fatal, header: &[u8], actions: &mut Vec<Action>) {
        let Fatal(status, information) = fatal;
        if self.closed().is_some() {
            return;
        }
        self.stats.protocol_errors.add(1);
        let told = &header[..header.len().min(TOLD_MAX)];
        let mut request = TermReq { status: status.0.into(), information: information.into(), ..TermReq::blank(0) };
        // At most 24 and 128 bytes.
        request.common.len = ((size_of::<TermReq>() + told.len()) as u32).into();
        // Never with digests.
        self.out.queue.write(request.as_bytes());
        self.out.queue.write(told);
        self.close(CloseReason::ProtocolError(status, information), actions);
    }

    /// A PDU is complete.
    fn handle(&mut self, header: &[u8], payload: &mut Payload, actions: &mut Vec<Action>) {
        if !payload.intact {
            self.stats.digest_errors.add(1);
        }
        let Some(common) = header.get(..COMMON_LEN) else { return };
        let result = match PduType(common[0]) {
            PduType::IC_REQ => self.initialize(header),
            PduType::CAPSULE_CMD => match CapsuleCmd::of(header) {
                Some(capsule) => self.capsule(&capsule.sqe, payload, actions),
                None => Ok(()),
            },
            PduType::H2C_DATA => match H2cData::of(header) {
                Some(data) => self.data_came(data, payload, actions),
                None => Ok(()),
            },
            PduType::H2C_TERM_REQ => {
                let status = TermReq::of(header).map_or(0, |request| request.status.get());
                self.close(CloseReason::TerminatedByHost(FatalStatus(status)), actions);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(fatal) = result {
            self.fail(fatal, header, actions);
        }
    }

    /// ICReq: versions, digests, alignment.
    fn initialize(&mut self, header: &[u8]) -> Result<(), Fatal> {
        const DIGESTS: u8 = HEADER_DIGEST | DATA_DIGEST;
        let Some(request) = IcReq::of(header) else { return Ok(()) };
        if request.version.get() != 0 {
            return Err(Fatal(FatalStatus::UNSUPPORTED, offset_of!(IcReq, version) as u32));
        }
        if request.alignment > ALIGNMENT_MAX {
            return Err(invalid(offset_of!(IcReq, alignment)));
        }
        if request.digests & !DIGESTS != 0 {
            return Err(invalid(offset_of!(IcReq, digests)));
        }
        let response = IcResp { digests: request.digests, max_h2c_data: H2C_DATA_MAX.into(), ..IcResp::blank(0) };
        self.out.queue.write(response.as_bytes());
        self.out.alignment = (usize::from(request.alignment) + 1) * 4;
        self.out.digests =
            Digests { header: request.digests & HEADER_DIGEST != 0, data: request.digests & DATA_DIGEST != 0 };
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// A command.
    fn capsule(&mut self, sqe: &Sqe, payload: &mut Payload, actions: &mut Vec<Action>) -> Result<(), Fatal> {
        let cid = sqe.cid.get();
        if self.tasks.len() >= usize::from(self.entries) {
            // More than the queue has entries for: what a host that counts cannot send.
            return Err(Fatal(FatalStatus::SEQUENCE, offset_of!(CapsuleCmd, sqe) as u32));
        }
        self.head = (self.head + 1) % self.entries;
        let data = payload.data.take();
        let (command, in_capsule) = match self.described(sqe, data, payload) {
            Ok(described) => described,
            Err(status) => {
                self.turn_down(sqe, status, actions);
                return Ok(());
            }
        };
        if let Some(old) = self.tasks.find(cid) {
            // Hosts have been seen that forget what waits for an event before they shut a controller down.
            if !self.tasks.get_mut(old).is_some_and(|task| matches!(task.state, State::AwaitsEvent)) {
                self.turn_down(sqe, Status::ID_CONFLICT, actions);
                return Ok(());
            }
            self.tasks.remove(old);
            actions.push(Action::EventReplaced(cid));
        }
        let key = self.tasks.insert(cid, &command, in_capsule);
        let is_connect = sqe.opcode == FABRICS && sqe.fabrics_type() == 1;
        match self.phase {
            Phase::Live | Phase::Authenticating => self.hand_on(key, command, actions),
            Phase::Connecting if is_connect => {
                let data = self.tasks.get_mut(key).map(|task| task.take_in_capsule()).unwrap_or_default();
                actions.push(Action::Connect(key, Box::new(command), data));
            }
            _ => _ = self.reply(key, Status::SEQUENCE_ERROR, 0, &mut lunar_core::step::Tail::default()),
        }
        Ok(())
    }

    /// Hands a command on; both halves of a fused operation together.
    fn hand_on(&mut self, key: TaskKey, command: Command, actions: &mut Vec<Action>) {
        let half = command.sqe.flags & FUSE;
        match (std::mem::take(&mut self.fused), half) {
            (Fused::First(first, other), FUSE_SECOND) => {
                return actions.push(Action::Fused(Box::new([(first, other), (key, command)])));
            }
            (Fused::Failed, FUSE_SECOND) => {
                self.reply(key, Status::FUSED_FAILED, 0, &mut lunar_core::step::Tail::default());
                return actions.push(Action::Refused(command.sqe, Status::FUSED_FAILED));
            }
            // What does not follow its first half directly is none.
            (Fused::First(first, command), _) => actions.push(Action::Command(first, command)),
            (Fused::Failed | Fused::Nothing, _) => {}
        }
        match half {
            FUSE_FIRST => self.fused = Fused::First(key, command),
            _ => actions.push(Action::Command(key, command)),
        }
    }

    /// A command that is refused before anybody looks at what it asks for.
    fn turn_down(&mut self, sqe: &Sqe, status: Status, actions: &mut Vec<Action>) {
        let now = if sqe.flags & FUSE == FUSE_FIRST { Fused::Failed } else { Fused::Nothing };
        if let Fused::First(first, command) = std::mem::replace(&mut self.fused, now) {
            actions.push(Action::Command(first, command));
        }
        self.complete(sqe.cid.get(), status, 0);
        actions.push(Action::Refused(*sqe, status));
    }

    /// What the entry says of its data: how much the host sends or has room for, and what of it came with the command.
    fn described(&self, sqe: &Sqe, data: Option<Sg>, payload: &Payload) -> Result<(Command, Sg), Status> {
        /// Flags: how the data is described. Only lists are.
        const DESCRIBED: u8 = 0xc0;
        const BY_LIST: u8 = 0x40;
        /// Descriptor types: data block at an offset; transport data block.
        const AT_OFFSET: u8 = 0x01;
        const BY_TRANSPORT: u8 = 0x5a;
        let mut command = Command { sqe: *sqe, sent: 0, room: 0 };
        let length = sqe.sgl.length.get();
        if sqe.direction() == Direction::None || length == 0 {
            return Ok((command, Sg::default()));
        }
        if sqe.flags & DESCRIBED != BY_LIST {
            return Err(Status::INVALID_FIELD);
        }
        match (sqe.sgl.kind, sqe.direction()) {
            (BY_TRANSPORT, Direction::In) => command.room = length,
            (BY_TRANSPORT, _) => command.sent = length,
            (AT_OFFSET, Direction::Out) => {
                if !payload.intact {
                    return Err(Status::TRANSPORT_ERROR);
                }
                let Some(mut data) = data else { return Err(Status::NOT_READY) };
                let start = usize::try_from(sqe.sgl.address.get()).map_err(|_| Status::SGL_OFFSET)?;
                let end = start.checked_add(length as usize).ok_or(Status::SGL_OFFSET)?;
                if end > data.len() {
                    return Err(Status::SGL_OFFSET);
                }
                command.sent = length;
                drop(data.split_to(start));
                return Ok((command, data.split_to(length as usize)));
            }
            _ => return Err(Status::SGL_TYPE),
        }
        Ok((command, Sg::default()))
    }

    /// Queues a completion.
    fn complete(&mut self, cid: u16, status: Status, result: u64) {
        /// Where the host does not want to know.
        const NOT_TOLD: u16 = 0xffff;
        let sq_head = if self.flow_control { self.head } else { NOT_TOLD };
        self.out.header(CapsuleResp {
            result: result.into(),
            sq_head: sq_head.into(),
            sq_id: self.queue.into(),
            cid: cid.into(),
            status: status.field().into(),
            ..CapsuleResp::blank(0)
        });
    }

    /// What no header may say: the bytes after it cannot be trusted.
    fn malformed(&self, common: &Common) -> Option<Fatal> {
        let kind = PduType(common.kind);
        let Some(limits) = framing::limits(kind) else { return Some(invalid(offset_of!(Common, kind))) };
        let fits_phase = match kind {
            PduType::IC_REQ => self.phase == Phase::Start,
            PduType::CAPSULE_CMD => self.phase != Phase::Start,
            PduType::H2C_DATA => matches!(self.phase, Phase::Live | Phase::Authenticating),
            _ => true,
        };
        if !fits_phase {
            return Some(Fatal(FatalStatus::SEQUENCE, offset_of!(Common, kind) as u32));
        }
        if usize::from(common.header_len) != limits.header {
            return Some(invalid(offset_of!(Common, header_len)));
        }
        let flags = common.flags & (HEADER_DIGEST | DATA_DIGEST);
        let shape = self.shape(common);
        let len = common.len.get() as usize;
        let Some(data_len) = shape.data_len else { return Some(invalid(offset_of!(Common, len))) };
        let wanted = match limits.digests {
            false => 0,
            true => {
                (if self.digests().header { HEADER_DIGEST } else { 0 })
                    | if self.digests().data && data_len > 0 { DATA_DIGEST } else { 0 }
            }
        };
        // Some hosts say that there is a digest of data where there is no data.
        if flags & wanted != wanted || flags & !wanted & HEADER_DIGEST != 0 {
            return Some(invalid(offset_of!(Common, flags)));
        }
        if data_len > limits.data {
            return Some(match kind {
                PduType::H2C_DATA => Fatal(FatalStatus::LIMIT, offset_of!(H2cData, data_len) as u32),
                _ => invalid(offset_of!(Common, len)),
            });
        }
        let aligned = common.data_offset.is_multiple_of(4) && usize::from(common.data_offset) <= len;
        if data_len > 0
            && kind != PduType::H2C_TERM_REQ
            && (usize::from(common.data_offset) < shape.head_len || !aligned)
        {
            return Some(invalid(offset_of!(Common, data_offset)));
        }
        None
    }

    /// Where the data of a PDU goes, before it comes.
    fn payload_plan(&mut self, header: &[u8]) -> Result<PayloadPlan, Fatal> {
        match header.first().map(|kind| PduType(*kind)) {
            Some(PduType::CAPSULE_CMD) => Ok(PayloadPlan::Keep),
            Some(PduType::H2C_DATA) => match H2cData::of(header) {
                Some(data) => self.open_data(data),
                None => Ok(PayloadPlan::Discard),
            },
            _ => Ok(PayloadPlan::Discard),
        }
    }
}

impl ProtocolMachine for Session {
    type Action = Action;

    fn receive_mode(&mut self) -> ReceiveMode {
        input::receive_mode(self)
    }

    fn receive(&mut self, bytes: Slice, _now: Instant, actions: &mut Vec<Action>) {
        if self.closed().is_none() {
            input::receive(self, bytes, actions);
        }
    }

    fn placed(&mut self, memory: SgMut, count: usize, _now: Instant, actions: &mut Vec<Action>) {
        if self.closed().is_none() {
            input::placed(self, memory, count, actions);
        }
    }

    fn resume(&mut self, actions: &mut Vec<Action>) {
        input::pump(self, actions);
    }

    fn take_out(&mut self) -> Sg {
        self.input.answers_sent();
        let all = self.out.queue.take();
        if self.out.queue.is_starved() {
            // With a hole in it, nothing of it may be sent.
            self.shut(CloseReason::NoMemory);
            return Sg::default();
        }
        all
    }

    fn queued_bytes(&self) -> usize {
        self.out.queue.len()
    }

    fn is_out_of_memory(&self) -> bool {
        self.out.queue.is_starved() || self.closed() == Some(CloseReason::NoMemory)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
