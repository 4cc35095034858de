//! One connection, which is one queue, as a value: bytes and time go in, bytes and [`Action`]s come out.
//!
//! * [`ProtocolMachine::receive_mode`] says how to receive; [`ProtocolMachine::receive`] and
//!   [`ProtocolMachine::placed`] take what was received.
//! * An action is a request to the front, which answers with [`Session::connected`] and [`Session::reply`].
//! * The data of a command moves with [`CommandData::pull`], [`CommandData::supply`] and [`CommandData::push`].
//! * [`ProtocolMachine::take_out`] returns the bytes to send. After it, [`ProtocolMachine::resume`] continues with
//!   received bytes that had to wait.
//! * Once [`Session::closed`] is not `None`, the front sends what is queued, aborts the commands and closes the
//!   connection.

mod data;
mod framing;
mod tasks;

pub use lunar_stream::protocol::{CommandData, ProtocolMachine, PullResult, ReceiveMode};
pub use tasks::TaskKey;

use crate::config::{ALIGNMENT_MAX, CONNECT_TIMEOUT, ENTRIES_BEFORE_CONNECT, H2C_DATA_MAX};
use crate::pdu_queue::{Digests, PduQueue};
use crate::wire::{
    COMMON_LEN, CapsuleCmd, CapsuleResp, Common, DATA_DIGEST, FatalStatus, H2cData, HEADER_DIGEST, IcReq, IcResp, Pdu,
    PduType, RETURNED_HEADER_MAX, TermReq,
};
use lunar_core::mem::{Arena, Sg, SgMut, Slice};
use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use lunar_nvme::command::{FABRICS, Sqe};
use lunar_nvme::fused::{Fused, Use};
use lunar_nvme::{Command, Direction, Status};
use lunar_stream::input::{self, Input, Payload, PayloadPlan};
use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;
use tasks::{State, Tasks};
use zerocopy::IntoBytes;

/// A request of the session to its front.
#[derive(Debug)]
pub enum Action {
    /// Execute Connect with its data. The answer is [`Session::connected`].
    Connect(TaskKey, Box<Command>, Sg),
    /// Execute a command. The answer is [`Session::reply`].
    Command(TaskKey, Command),
    /// Execute both commands of a fused operation. The answer is [`Session::reply`] for each.
    Fused(Box<[(TaskKey, Command); 2]>),
    /// Record the error of a command that the session has completed with this status.
    Refused(Sqe, Status),
    /// Drop the Asynchronous Event Request with this command identifier: the host has sent another command with it.
    EventReplaced(u16),
    /// Repeat a pull that was [`PullResult::Pending`]: the data has arrived, or will not arrive.
    DataReady(TaskKey),
    /// Send what is queued, abort all commands and close the connection.
    Close(CloseReason),
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The host has violated the protocol: the fatal error status and information that it was sent.
    ProtocolError(FatalStatus, u32),
    /// The host has sent a termination request.
    TerminatedByHost(FatalStatus),
    /// The host has not connected a queue, or not authenticated, in time.
    ConnectTimeout,
    /// The host has not sent data that it was asked for, in time.
    DataTimeout,
    /// The host has disconnected the queue.
    Disconnected,
    /// There was no memory for a header.
    NoMemory,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolError(status, at) => write!(f, "the host violates the protocol: {status:?} at {at}"),
            Self::TerminatedByHost(status) => write!(f, "the host has terminated the connection: {status:?}"),
            Self::ConnectTimeout => f.write_str("the host did not connect a queue, or did not authenticate, in time"),
            Self::DataTimeout => f.write_str("the host did not send the data of a write in time"),
            Self::Disconnected => f.write_str("the host has disconnected"),
            Self::NoMemory => f.write_str("no memory for a reply"),
        }
    }
}

/// The phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Before ICReq.
    Start,
    /// Before Connect.
    Connecting,
    /// The queue is connected, and its host has to authenticate.
    Authenticating,
    /// The queue is connected.
    Live,
    /// Nothing more is read. Queued bytes are still sent.
    Closed(CloseReason),
}

/// A violation of the protocol: fatal error status, and fatal error information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Violation(FatalStatus, u32);

fn invalid(at: usize) -> Violation {
    Violation(FatalStatus::INVALID_HEADER, at as u32)
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
    /// SQHD: the number of commands received, modulo the queue size.
    head: u16,
    /// The role of the last command in a fused operation.
    fused: Fused<(TaskKey, Command)>,
    next_tag: u16,
    started: Instant,
}

impl Session {
    /// The session of a connection that was just accepted.
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

    /// Why the connection has to be closed; `None` if it does not.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            Phase::Start | Phase::Connecting | Phase::Authenticating | Phase::Live => None,
        }
    }

    /// Whether the queue is connected, and its host authenticated if it has to be.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// The number of commands without a reply.
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

    /// Checks the timeout of Connect and of authentication.
    pub fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.close(CloseReason::ConnectTimeout, actions);
        }
    }

    /// The answer to [`Action::Connect`]: the identifier of the queue, its size, and whether it uses flow control
    /// (SQHD); or the status of Connect. `result`: dword 0 of the completion.
    pub fn connected(&mut self, key: TaskKey, answer: Result<(u16, u16, bool), Status>, result: u32) {
        let status = match answer {
            Ok((queue, entries, flow_control)) if self.phase == Phase::Connecting => {
                self.phase = Phase::Live;
                (self.queue, self.entries, self.flow_control) = (queue, entries, flow_control);
                // Connect is the first entry of the queue.
                self.head = 1 % entries;
                Status::SUCCESS
            }
            Ok(_) => Status::SEQUENCE_ERROR,
            Err(status) => status,
        };
        self.reply(key, status, result.into(), &mut lunar_core::step::FinalData::default());
    }

    /// The host of the queue has to authenticate, within the timeout of the connection.
    pub fn require_authentication(&mut self) {
        if self.phase == Phase::Live {
            self.phase = Phase::Authenticating;
        }
    }

    /// The host has authenticated; `false` if it did not have to, or had already.
    pub fn authenticated(&mut self) -> bool {
        let was_authenticating = self.phase == Phase::Authenticating;
        if was_authenticating {
            self.phase = Phase::Live;
        }
        was_authenticating
    }

    /// The command waits for an event: [`Session::reply_to`] completes it.
    pub fn park(&mut self, key: TaskKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.state = State::AwaitsEvent;
        }
    }

    /// The host has disconnected the queue. The connection ends when what is queued was sent.
    pub fn disconnected(&mut self) {
        self.shut(CloseReason::Disconnected);
    }

    /// The digests of its PDUs.
    #[must_use]
    pub fn digests(&self) -> Digests {
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

    /// Sends a termination request with the invalid header, as far as it was received, and closes the connection.
    fn fail(&mut self, violation: Violation, header: &[u8], actions: &mut Vec<Action>) {
        let Violation(status, information) = violation;
        if self.closed().is_some() {
            return;
        }
        self.stats.protocol_errors.add(1);
        let returned = &header[..header.len().min(RETURNED_HEADER_MAX)];
        let mut request = TermReq { status: status.0.into(), information: information.into(), ..TermReq::blank(0) };
        // At most 24 and 128 bytes.
        request.common.len = ((size_of::<TermReq>() + returned.len()) as u32).into();
        // A termination request has no digests.
        self.out.queue.write(request.as_bytes());
        self.out.queue.write(returned);
        self.close(CloseReason::ProtocolError(status, information), actions);
    }

    /// Handles a complete PDU.
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
                Some(data) => self.receive_data(data, payload, actions),
                None => Ok(()),
            },
            PduType::H2C_TERM_REQ => {
                let status = TermReq::of(header).map_or(0, |request| request.status.get());
                self.close(CloseReason::TerminatedByHost(FatalStatus(status)), actions);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(violation) = result {
            self.fail(violation, header, actions);
        }
    }

    /// Handles ICReq: version, digests, alignment.
    fn initialize(&mut self, header: &[u8]) -> Result<(), Violation> {
        const DIGESTS: u8 = HEADER_DIGEST | DATA_DIGEST;
        let Some(request) = IcReq::of(header) else { return Ok(()) };
        if request.version.get() != 0 {
            return Err(Violation(FatalStatus::UNSUPPORTED, offset_of!(IcReq, version) as u32));
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

    /// Handles a command.
    fn capsule(&mut self, sqe: &Sqe, payload: &mut Payload, actions: &mut Vec<Action>) -> Result<(), Violation> {
        let cid = sqe.cid.get();
        if self.tasks.len() >= usize::from(self.entries) {
            // More commands than the queue has entries.
            return Err(Violation(FatalStatus::SEQUENCE, offset_of!(CapsuleCmd, sqe) as u32));
        }
        self.head = (self.head + 1) % self.entries;
        let data = payload.data.take();
        let (command, in_capsule) = match self.data_of(sqe, data, payload) {
            Ok(data_of) => data_of,
            Err(status) => {
                self.refuse(sqe, status, actions);
                return Ok(());
            }
        };
        if let Some(old) = self.tasks.find(cid) {
            // Some hosts reuse the identifiers of their Asynchronous Event Requests when they shut a controller down.
            if !self.tasks.get_mut(old).is_some_and(|task| matches!(task.state, State::AwaitsEvent)) {
                self.refuse(sqe, Status::ID_CONFLICT, actions);
                return Ok(());
            }
            self.tasks.remove(old);
            actions.push(Action::EventReplaced(cid));
        }
        let key = self.tasks.insert(cid, &command, in_capsule);
        let is_connect = sqe.opcode == FABRICS && sqe.fabrics_type() == 1;
        match self.phase {
            Phase::Live | Phase::Authenticating => self.start(key, command, actions),
            Phase::Connecting if is_connect => {
                let data = self.tasks.get_mut(key).map(|task| task.take_in_capsule()).unwrap_or_default();
                actions.push(Action::Connect(key, Box::new(command), data));
            }
            _ => _ = self.reply(key, Status::SEQUENCE_ERROR, 0, &mut lunar_core::step::FinalData::default()),
        }
        Ok(())
    }

    /// Starts a command, and both commands of a fused operation together.
    fn start(&mut self, key: TaskKey, command: Command, actions: &mut Vec<Action>) {
        let (before, now) = self.fused.arrived(command.sqe.flags, (key, command));
        actions.extend(before.map(|(first, command)| Action::Command(first, command)));
        match now {
            Use::Waits => {}
            Use::Alone((key, command)) => actions.push(Action::Command(key, command)),
            Use::Both(both) => actions.push(Action::Fused(Box::new(both))),
            Use::Fails((key, command)) => {
                self.reply(key, Status::FUSED_FAILED, 0, &mut lunar_core::step::FinalData::default());
                actions.push(Action::Refused(command.sqe, Status::FUSED_FAILED));
            }
        }
    }

    /// Completes a command that is invalid for the transport.
    fn refuse(&mut self, sqe: &Sqe, status: Status, actions: &mut Vec<Action>) {
        let before = self.fused.refused(sqe.flags);
        actions.extend(before.map(|(first, command)| Action::Command(first, command)));
        self.complete(sqe.cid.get(), status, 0);
        actions.push(Action::Refused(*sqe, status));
    }

    /// The command with the amount of its data, and its in-capsule data, by its data pointer.
    fn data_of(&self, sqe: &Sqe, data: Option<Sg>, payload: &Payload) -> Result<(Command, Sg), Status> {
        /// PSDT: how the data is described. Only SGLs are allowed.
        const PSDT_MASK: u8 = 0xc0;
        const PSDT_SGL: u8 = 0x40;
        /// SGL descriptor types and subtypes: data block at an offset of the capsule, transport data block.
        const SGL_OFFSET: u8 = 0x01;
        const SGL_TRANSPORT: u8 = 0x5a;
        let mut command = Command { sqe: *sqe, sent: 0, room: 0 };
        let length = sqe.sgl.length.get();
        if sqe.direction() == Direction::None || length == 0 {
            return Ok((command, Sg::default()));
        }
        if sqe.flags & PSDT_MASK != PSDT_SGL {
            return Err(Status::INVALID_FIELD);
        }
        match (sqe.sgl.kind, sqe.direction()) {
            (SGL_TRANSPORT, Direction::In) => command.room = length,
            (SGL_TRANSPORT, _) => command.sent = length,
            (SGL_OFFSET, Direction::Out) => {
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

    /// Queues a response capsule.
    fn complete(&mut self, cid: u16, status: Status, result: u64) {
        /// SQHD without flow control.
        const NO_HEAD: u16 = 0xffff;
        let sq_head = if self.flow_control { self.head } else { NO_HEAD };
        self.out.header(CapsuleResp {
            result: result.into(),
            sq_head: sq_head.into(),
            sq_id: self.queue.into(),
            cid: cid.into(),
            status: status.field().into(),
            ..CapsuleResp::blank(0)
        });
    }

    /// The violation if a header is malformed: the position of the next header is then unknown.
    fn malformed(&self, common: &Common) -> Option<Violation> {
        let kind = PduType(common.kind);
        let Some(limits) = framing::limits(kind) else { return Some(invalid(offset_of!(Common, kind))) };
        let fits_phase = match kind {
            PduType::IC_REQ => self.phase == Phase::Start,
            PduType::CAPSULE_CMD => self.phase != Phase::Start,
            PduType::H2C_DATA => matches!(self.phase, Phase::Live | Phase::Authenticating),
            _ => true,
        };
        if !fits_phase {
            return Some(Violation(FatalStatus::SEQUENCE, offset_of!(Common, kind) as u32));
        }
        if usize::from(common.header_len) != limits.header {
            return Some(invalid(offset_of!(Common, header_len)));
        }
        let flags = common.flags & (HEADER_DIGEST | DATA_DIGEST);
        let shape = self.shape(common);
        let len = common.len.get() as usize;
        let Some(data_len) = shape.data_len else { return Some(invalid(offset_of!(Common, len))) };
        let expected = match limits.digests {
            false => 0,
            true => {
                (if self.digests().header { HEADER_DIGEST } else { 0 })
                    | if self.digests().data && data_len > 0 { DATA_DIGEST } else { 0 }
            }
        };
        // Some hosts set DDGSTF in PDUs without data.
        if flags & expected != expected || flags & !expected & HEADER_DIGEST != 0 {
            return Some(invalid(offset_of!(Common, flags)));
        }
        if data_len > limits.data {
            return Some(match kind {
                PduType::H2C_DATA => Violation(FatalStatus::LIMIT, offset_of!(H2cData, data_len) as u32),
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

    /// Where the data of a PDU goes.
    fn payload_plan(&mut self, header: &[u8]) -> Result<PayloadPlan, Violation> {
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
        if self.out.queue.lacks_memory() {
            // The queued bytes have a gap: none of them may be sent.
            self.shut(CloseReason::NoMemory);
            return Sg::default();
        }
        all
    }

    fn queued_bytes(&self) -> usize {
        self.out.queue.len()
    }

    fn is_out_of_memory(&self) -> bool {
        self.out.queue.lacks_memory() || self.closed() == Some(CloseReason::NoMemory)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
