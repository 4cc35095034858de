//! One session and its only connection (RFC 7143, ErrorRecoveryLevel 0, MaxConnections 1), as a value: bytes and time
//! go in, bytes and [`Action`]s come out.
//!
//! * [`ProtocolMachine::receive_mode`] says how to receive; [`ProtocolMachine::receive`] and
//!   [`ProtocolMachine::placed`] take what was received.
//! * An action is a request to the front, which answers with [`Session::authorized`], [`Session::authenticated`],
//!   [`Session::established`], [`Session::targets`], [`Session::reply`] or [`Session::function_done`].
//! * The data of a command moves with [`CommandData::pull`], [`CommandData::supply`] and [`CommandData::push`].
//! * [`ProtocolMachine::take_out`] returns the bytes to send. After it, [`ProtocolMachine::resume`] continues with
//!   received bytes that had to wait.
//! * [`Session::tick`] has to be called no later than [`Session::deadline`].
//! * Once [`Session::closed`] is not `None`, the front sends what is queued, aborts the commands and closes the
//!   connection.

mod action;
mod command;
mod data;
mod data_out;
mod exchange;
mod framing;
mod held;
mod numbers;
mod received;
mod request;
mod tasks;
mod text_request;

pub use action::{
    Action, CloseReason, Command, Responsible, SendTargetsQuery, TargetAddresses, TaskKey, TaskManagement,
};
pub use lunar_stream::protocol::{CommandData, ProtocolMachine, PullResult, ReceiveMode};

use crate::chap::TargetAnswer;
use crate::config::{
    Config, DISCOVERY_LIFETIME, DISCOVERY_LOGOUT, LOGIN_SEGMENT_MAX, MISSING_TIMEOUT, RDMA_ANSWER_MAX,
};
use crate::keys::{Negotiation, Parameters};
use crate::login::{Candidate, Established, Login, LoginDecision, Next};
use crate::pdu_queue::{Digests, PduQueue};
use crate::wire::{Bhs, LoginRequest, LoginResponse, LoginStatus, NO_TAG, Opcode, Pdu, RejectReason};
use exchange::TextExchange;
use held::Held;
use lunar_core::mem::{Arena, Sg, SgMut, Slice};
use lunar_core::shares::{Member, Share};
use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use lunar_core::wire::be::{U16, U32};
use lunar_stream::input::{self, Input, Payload, PayloadPlan};
use numbers::SequenceNumbers;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    FullFeature,
    /// A login state is handling a request or an answer, which decides on the next phase.
    Advancing,
    /// Nothing more is read. Queued bytes are still sent.
    Closed(CloseReason),
}

/// One session.
#[derive(Debug)]
pub struct Session {
    config: Rc<Config>,
    arena: Arena,
    stats: Arc<Stats>,
    phase: Phase,
    input: Input,
    out: PduQueue,
    numbers: SequenceNumbers,
    tasks: Tasks,
    held: Vec<Held>,
    /// Its share of the memory for immediate and unsolicited data that was not pulled.
    unsolicited: Share,
    /// Since when a request has waited for a missing CmdSN.
    gap_since: Option<Instant>,
    next_ttt: u32,
    candidate: Option<Candidate>,
    /// Why the login was refused, if its status does not say it all.
    refusal: Option<String>,
    parameters: Parameters,
    max_recv_segment: usize,
    negotiation: Negotiation,
    exchange: Option<TextExchange>,
    started: Instant,
    last_received: Instant,
    /// When the NOP-In was sent that is not answered yet.
    ping_sent: Option<Instant>,
    logout_by: Option<Instant>,
}

impl Session {
    /// The session of a connection that was just accepted. `unsolicited`: of [`Arena::join`].
    #[must_use]
    pub fn new(config: Rc<Config>, arena: Arena, unsolicited: &Member, stats: Arc<Stats>, now: Instant) -> Self {
        Self {
            phase: Phase::Login(Box::new(Login::new(Negotiation::new(config.clone())))),
            input: Input::default(),
            out: PduQueue::new(arena.clone()),
            numbers: SequenceNumbers::default(),
            tasks: Tasks::default(),
            held: Vec::new(),
            unsolicited: unsolicited.empty_share(),
            gap_since: None,
            next_ttt: 1,
            candidate: None,
            refusal: None,
            parameters: Parameters::initial(),
            max_recv_segment: LOGIN_SEGMENT_MAX,
            negotiation: Negotiation::new(config.clone()),
            exchange: None,
            started: now,
            last_received: now,
            ping_sent: None,
            logout_by: None,
            config,
            arena,
            stats,
        }
    }

    /// Why the connection has to be closed; `None` if it does not.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            Phase::Login(_) | Phase::FullFeature | Phase::Advancing => None,
        }
    }

    /// Whether the session is in its full-feature phase.
    #[must_use]
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// The names of the session, once they are authenticated: from [`Action::Establish`] on.
    #[must_use]
    pub fn candidate(&self) -> Option<&Candidate> {
        self.candidate.as_ref()
    }

    /// Why the login was refused, if its status does not say it all.
    #[must_use]
    pub fn refusal_reason(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The negotiated parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The number of commands and task management functions without a response.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The answer to [`Action::Authorize`].
    pub fn authorized(&mut self, decision: LoginDecision, actions: &mut Vec<Action>) {
        if let LoginDecision::Accepted { offer: Some(offer), .. } = &decision {
            self.config = offer.clone();
            self.negotiation.set_config(offer.clone());
        }
        self.advance_login(actions, |login, out| login.authorized(decision, out));
        input::pump(self, actions);
    }

    /// The login had to wait for its turn: its time begins later.
    pub fn extend_login(&mut self, wait: Duration) {
        self.started = self.started + wait;
    }

    /// The answer to [`Action::Authenticate`]: the target's response to a challenge of the initiator, if there is one,
    /// or how the login ends.
    pub fn authenticated(&mut self, answer: Result<Option<TargetAnswer>, LoginStatus>, actions: &mut Vec<Action>) {
        self.advance_login(actions, |login, out| login.authenticated(answer, out));
        input::pump(self, actions);
    }

    /// The answer to [`Action::Establish`]: the TSIH of the session, not zero, or how the login ends.
    pub fn established(&mut self, answer: Result<u16, LoginStatus>, actions: &mut Vec<Action>) {
        debug_assert!(answer != Ok(0), "TSIH 0 is reserved");
        self.advance_login(actions, |login, out| login.established(answer, out));
        input::pump(self, actions);
    }

    /// When [`Session::tick`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Login(_) => Some(self.started + self.config.login_timeout),
            Phase::FullFeature => {
                let alive = match self.ping_sent {
                    Some(since) => since + self.config.ping_timeout,
                    None => self.last_received + self.config.ping_after,
                };
                let gap = self.gap_since.map(|since| since + MISSING_TIMEOUT);
                [Some(alive), self.logout_by, gap, self.lifetime_ends()].into_iter().flatten().min()
            }
            Phase::Advancing | Phase::Closed(_) => None,
        }
    }

    /// Checks the timeouts: ends a login that takes too long, sends a NOP-In to a silent initiator, and closes a
    /// connection without an answer to that, or whose commands wait for one that does not come.
    pub fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.deadline().is_none_or(|at| now < at) {
            return;
        }
        if matches!(self.phase, Phase::Login(_)) {
            self.close(CloseReason::LoginTimeout, actions);
        } else if self.logout_by.is_some_and(|by| by <= now) {
            self.close(CloseReason::LogoutTimeout, actions);
        } else if self.gap_since.is_some_and(|since| since + MISSING_TIMEOUT <= now) {
            self.close(CloseReason::MissingCommand, actions);
        } else if self.lifetime_ends().is_some_and(|at| at <= now) {
            self.request_logout(DISCOVERY_LOGOUT, now);
        } else if self.ping_sent.is_some_and(|since| since + self.config.ping_timeout <= now) {
            self.close(CloseReason::PingTimeout, actions);
        } else if self.ping_sent.is_none() {
            self.ping();
            self.ping_sent = Some(now);
        }
    }

    /// Asks the initiator to log out within `time` (RFC 7143 11.9.1, event 1); then the connection closes.
    pub fn request_logout(&mut self, time: Duration, now: Instant) {
        if self.is_established() && self.logout_by.is_none() {
            self.send_logout_request(time);
            self.logout_by = Some(now + time);
        }
    }

    /// When a discovery session is asked to log out.
    fn lifetime_ends(&self) -> Option<Instant> {
        let is_asked = self.logout_by.is_some();
        (self.is_discovery() && self.is_established() && !is_asked).then(|| self.started + DISCOVERY_LIFETIME)
    }

    fn note_received(&mut self, now: Instant) {
        self.last_received = now;
        self.ping_sent = None;
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
        if let CloseReason::Malformed(_) | CloseReason::HeaderDigest | CloseReason::MissingCommand = why {
            self.stats.protocol_errors.add(1);
        }
        if self.closed().is_none() {
            self.phase = Phase::Closed(why);
        }
        self.input.clear();
        self.held = Vec::new();
        self.exchange = None;
        self.tasks = Tasks::default();
        self.unsolicited.shrink(usize::MAX);
        self.gap_since = None;
    }

    /// The reason to close the connection if a header is malformed (RFC 7143 7.7): the position of the next header is
    /// then unknown.
    fn malformed(&self, header: &Bhs) -> Option<CloseReason> {
        if header.data_len.get() > self.max_recv_segment {
            return Some(CloseReason::Malformed("a data segment is longer than MaxRecvDataSegmentLength"));
        }
        if header.ahs_words > 0 && header.opcode() != Opcode::SCSI_COMMAND {
            return Some(CloseReason::Malformed("an additional header segment on a PDU that has none"));
        }
        None
    }

    /// Where the payload of a PDU goes.
    fn payload_plan(&mut self, header: &Bhs) -> PayloadPlan {
        match (&self.phase, header.opcode()) {
            (Phase::FullFeature, Opcode::DATA_OUT) => self.open_data_out(header),
            (Phase::FullFeature, Opcode::SCSI_COMMAND | Opcode::NOP_OUT | Opcode::TEXT_REQUEST) => PayloadPlan::Keep,
            (Phase::Login(_), Opcode::LOGIN_REQUEST) => PayloadPlan::Keep,
            _ => PayloadPlan::Discard,
        }
    }

    /// Handles a complete PDU.
    fn handle(&mut self, header: &Bhs, ahs: &[u8], payload: &mut Payload, actions: &mut Vec<Action>) {
        if !payload.intact {
            self.stats.digest_errors.add(1);
        }
        match self.phase {
            Phase::Login(_) => self.handle_login(header, payload, actions),
            Phase::FullFeature => match header.opcode() {
                Opcode::SCSI_COMMAND => self.scsi_command(header, ahs, payload, actions),
                Opcode::DATA_OUT => self.data_out(header, payload, actions),
                Opcode::NOP_OUT | Opcode::TASK_MANAGEMENT_REQUEST | Opcode::TEXT_REQUEST | Opcode::LOGOUT_REQUEST => {
                    self.request(header, payload, actions);
                }
                // At recovery level 0, PDUs are not kept for retransmission.
                Opcode::SNACK => self.reject(RejectReason::SNACK, header),
                Opcode::LOGIN_REQUEST => self.reject(RejectReason::PROTOCOL_ERROR, header),
                _ => self.reject(RejectReason::NOT_SUPPORTED, header),
            },
            Phase::Advancing | Phase::Closed(_) => {}
        }
    }

    fn handle_login(&mut self, header: &Bhs, payload: &Payload, actions: &mut Vec<Action>) {
        let Some(request) = header.as_pdu::<LoginRequest>() else {
            return self.not_a_login(header, actions);
        };
        let text = match payload.data.as_ref().map(Sg::pieces) {
            Some([]) => Some(&[][..]),
            Some([piece]) => Some(&piece[..]),
            // A login text is shorter than a block, and so always one piece.
            Some(_) | None => None,
        };
        self.advance_login(actions, |login, out| login.handle(request, text, out));
    }

    /// RFC 7143 11.13.5: only login requests are allowed before the full-feature phase.
    fn not_a_login(&mut self, header: &Bhs, actions: &mut Vec<Action>) {
        if matches!(&self.phase, Phase::Login(login) if matches!(**login, Login::Start(_))) {
            // The peer does not speak iSCSI, or scans ports: an answer would be of no use.
            return self.close(CloseReason::Malformed("the first PDU is not a login request"), actions);
        }
        let response = LoginResponse {
            flags: 0,
            itt: header.itt,
            status: U16::new(LoginStatus::INVALID_REQUEST.0),
            ..LoginResponse::blank()
        };
        self.out.short(response, &[]);
        self.refusal = Some("a PDU of the login is not a login request".into());
        self.close(CloseReason::LoginRefused(LoginStatus::INVALID_REQUEST), actions);
    }

    fn advance_login(&mut self, actions: &mut Vec<Action>, step: impl FnOnce(Login, &mut PduQueue) -> Next) {
        let login = match std::mem::replace(&mut self.phase, Phase::Advancing) {
            Phase::Login(login) => login,
            other => {
                self.phase = other;
                return;
            }
        };
        match step(*login, &mut self.out) {
            Next::State(login) => self.phase = Phase::Login(Box::new(login)),
            Next::Authorize(login, candidate) => {
                self.phase = Phase::Login(Box::new(login));
                actions.push(Action::Authorize(Box::new(candidate)));
            }
            Next::Authenticate(login, chap_answer) => {
                self.phase = Phase::Login(Box::new(login));
                actions.push(Action::Authenticate(chap_answer));
            }
            Next::Establish(login, established) => {
                self.candidate = Some(established.candidate.clone());
                self.phase = Phase::Login(Box::new(login));
                actions.push(Action::Establish(established));
            }
            Next::Done(established) => self.enter_full_feature(*established),
            Next::Refused(status, why) => {
                self.refusal = why;
                self.close(CloseReason::LoginRefused(status), actions);
            }
        }
    }

    fn enter_full_feature(&mut self, established: Established) {
        let Established { candidate, parameters, max_recv_segment, cmd_sn, stat_sn, .. } = established;
        self.phase = Phase::FullFeature;
        self.numbers = SequenceNumbers::new(cmd_sn, stat_sn, self.config.window);
        self.tasks = Tasks::new();
        self.out.digests = Digests { header: parameters.header_digest, data: parameters.data_digest };
        self.max_recv_segment = max_recv_segment as usize;
        self.negotiation.names.discovery = candidate.discovery;
        self.parameters = parameters;
        // If the initiator offers a first burst longer than its bursts, unsolicited data is limited to one burst.
        self.parameters.first_burst = parameters.first_burst.min(parameters.max_burst);
        if self.is_rdma() {
            // In a discovery session the buffers are those of the login.
            self.parameters.max_send_segment =
                if candidate.discovery { LOGIN_SEGMENT_MAX as u32 } else { RDMA_ANSWER_MAX };
        }
        self.candidate = Some(candidate);
    }

    /// Whether a data mover reads and writes the memory of the initiator.
    fn is_rdma(&self) -> bool {
        self.config.transport.is_rdma()
    }

    fn is_discovery(&self) -> bool {
        self.negotiation.names.discovery
    }

    /// The next target transfer tag. Tags repeat only after 2^32 - 1 others.
    fn tag(&mut self) -> U32 {
        let tag = self.next_ttt;
        self.next_ttt = match tag.wrapping_add(1) {
            NO_TAG => 0,
            next => next,
        };
        U32::new(tag)
    }
}

impl ProtocolMachine for Session {
    type Action = Action;

    fn receive_mode(&mut self) -> ReceiveMode {
        input::receive_mode(self)
    }

    fn receive(&mut self, bytes: Slice, now: Instant, actions: &mut Vec<Action>) {
        if self.closed().is_none() {
            self.note_received(now);
            input::receive(self, bytes, actions);
        }
    }

    fn placed(&mut self, memory: SgMut, count: usize, now: Instant, actions: &mut Vec<Action>) {
        if self.closed().is_some() {
            return;
        }
        if count > 0 {
            self.note_received(now);
        }
        input::placed(self, memory, count, actions);
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
