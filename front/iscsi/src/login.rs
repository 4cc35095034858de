//! The login phase (RFC 7143 6.3): states that are consumed by what they handle, so that an illegal request has
//! nowhere to go.
//!
//! ```text
//! Start -> Authorizing -> Security -> Operational -> Establishing -> done
//!              | |         ^ |            ^               ^
//!              | +- CHAP --+ +------------|---------------+
//!              +--------------------------+  (an initiator may begin with the operational stage)
//! ```
//!
//! Three states wait for an answer from outside: `Authorizing` (may this initiator see this target, and must it prove
//! its name?), `Authenticating` (has it?) and `Establishing` (older sessions of the same name are gone, this is the session's
//! number). The states of CHAP are in [`security`].

pub mod security;

use crate::chap::{Challenge, ChapAnswer, TargetAnswer};
use crate::config::{Config, LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_MAX, PAIRS_MAX, TEXT_MAX};
use crate::keys::{Negotiation, Parameters, Phase, Taken};
use crate::pdu_queue::PduQueue;
use crate::text::{self, TextBuffer};
use crate::wire::{CONTINUE, LoginRequest, LoginResponse, LoginStatus, Pdu, Stage, TRANSIT, login_flags};
use lunar_core::wire::be::{U16, U32};
use security::{Authenticating, Challenged, ChapChosen, Security, Unauthenticated};
use std::rc::Rc;
use std::sync::Arc;

/// The only version there is (11.12.4).
const VERSION: u8 = 0;

/// Whom the answer from outside is asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The initiator's name, in lower case.
    pub initiator: Arc<str>,
    /// What the initiator calls itself.
    pub alias: Option<Arc<str>>,
    /// The target's name, in lower case; always there in a normal session.
    pub target: Option<Arc<str>>,
    /// Whether it is a discovery session.
    pub discovery: bool,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Zero for a new session; else the session that the connection would join.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
}

/// The answer from outside to a [`Candidate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoginDecision {
    /// It may log in, once it has proved its name if that is asked.
    Accepted {
        /// TargetPortalGroupTag of the portal that it came by.
        portal_group: u16,
        /// TargetAlias.
        alias: Option<Arc<str>>,
        /// The challenge with which it has to prove its name by CHAP; without, it is whom it says it is.
        challenge: Option<Challenge>,
        /// What its session is offered, if the target has settings of its own.
        offer: Option<Rc<Config>>,
    },
    /// The target is elsewhere: `address` as in TargetAddress, without the portal group.
    Moved {
        /// For good.
        permanently: bool,
        /// Where.
        address: String,
    },
    /// It may not: [`LoginStatus::NOT_FOUND`], [`LoginStatus::AUTHORIZATION_FAILURE`],
    /// [`LoginStatus::NO_SUCH_SESSION`] and [`LoginStatus::TOO_MANY_CONNECTIONS`] for a `tsih` that is not zero, ...
    Refused(LoginStatus),
}

/// A session at the end of its login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Established {
    /// Whose it is.
    pub candidate: Candidate,
    /// The target's part of the session identifier; zero until it is given.
    pub tsih: u16,
    /// What was agreed.
    pub parameters: Parameters,
    /// MaxRecvDataSegmentLength that the target has declared.
    pub max_recv_segment: u32,
    /// The first command number.
    pub cmd_sn: u32,
    /// The next status number.
    pub stat_sn: u32,
}

/// Where a login stands.
#[derive(Debug)]
pub enum Login {
    /// Before the first text is complete.
    Start(Start),
    /// Waits for a [`LoginDecision`].
    Authorizing(Authorizing),
    /// SecurityNegotiation.
    Security(Security),
    /// SecurityNegotiation of an initiator that has to prove its name.
    Unauthenticated(Unauthenticated),
    /// The same, by CHAP.
    ChapChosen(ChapChosen),
    /// The same, with a challenge.
    Challenged(Challenged),
    /// Waits for whether it has.
    Authenticating(Authenticating),
    /// LoginOperationalNegotiation.
    Operational(Operational),
    /// Waits for the session's number.
    Establishing(Establishing),
}

/// What a request or an answer leads to.
#[derive(Debug)]
pub enum Next {
    /// The initiator's turn.
    State(Login),
    /// The outside's turn: a [`LoginDecision`].
    Authorize(Login, Candidate),
    /// The outside's turn: whether this proves the initiator's name.
    Authenticate(Login, Box<ChapAnswer>),
    /// The outside's turn: the session's number.
    Establish(Login, Box<Established>),
    /// The full-feature phase.
    Done(Box<Established>),
    /// The login has failed; the response is queued.
    Refused(LoginStatus),
}

impl Login {
    /// The state of a fresh connection.
    #[must_use]
    pub fn new(negotiation: Negotiation) -> Self {
        Self::Start(Start(Common {
            negotiation,
            gather: TextBuffer::default(),
            asked: RequestFields::default(),
            requests: 0,
            stat_sn: None,
            greeting: Vec::new(),
            declared: false,
        }))
    }

    /// Takes a login request; `text`: `None` if there was no memory for it.
    pub fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        match self {
            Self::Start(state) => state.handle(request, text, out),
            Self::Security(state) => state.handle(request, text, out),
            Self::Unauthenticated(state) => state.handle(request, text, out),
            Self::ChapChosen(state) => state.handle(request, text, out),
            Self::Challenged(state) => state.handle(request, text, out),
            Self::Operational(state) => state.handle(request, text, out),
            // The session reads nothing while the outside is asked.
            Self::Authorizing(Authorizing { common, .. })
            | Self::Authenticating(Authenticating { common, .. })
            | Self::Establishing(Establishing { common, .. }) => common.refuse(LoginStatus::INVALID_REQUEST, out),
        }
    }

    /// Takes the outside's answer to [`Next::Authorize`].
    pub fn authorized(self, verdict: LoginDecision, out: &mut PduQueue) -> Next {
        match self {
            Self::Authorizing(state) => state.answer(verdict, out),
            other => Next::State(other),
        }
    }

    /// Takes the outside's answer to [`Next::Authenticate`]: our own proof, if the initiator wants one and there is one, or
    /// how the login ends.
    pub fn authenticated(self, answer: Result<Option<TargetAnswer>, LoginStatus>, out: &mut PduQueue) -> Next {
        match self {
            Self::Authenticating(state) => state.answer(answer, out),
            other => Next::State(other),
        }
    }

    /// Takes the outside's answer to [`Next::Establish`]: the session's number, not zero, or how the login ends.
    pub fn established(self, answer: Result<u16, LoginStatus>, out: &mut PduQueue) -> Next {
        match self {
            Self::Establishing(state) => state.answer(answer, out),
            other => Next::State(other),
        }
    }

    /// Whether the outside has to answer before the next request is looked at.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Authorizing(_) | Self::Authenticating(_) | Self::Establishing(_))
    }
}

/// Before the first text is complete: the initiator is not known.
#[derive(Debug)]
pub struct Start(Common);

/// The outside is asked whether this initiator may go on; its first text waits.
#[derive(Debug)]
pub struct Authorizing {
    common: Common,
    text: Vec<u8>,
}

/// LoginOperationalNegotiation.
#[derive(Debug)]
pub struct Operational(Common);

/// All is agreed; the last response waits for the session's number.
#[derive(Debug)]
pub struct Establishing {
    common: Common,
    established: Box<Established>,
    answer: Vec<u8>,
}

/// What every state knows.
#[derive(Debug)]
struct Common {
    negotiation: Negotiation,
    gather: TextBuffer,
    /// The request that is being answered.
    asked: RequestFields,
    requests: u32,
    /// The next status number; the initiator's first request chooses it.
    stat_sn: Option<u32>,
    /// What the first response says of the target.
    greeting: Vec<u8>,
    /// Whether MaxRecvDataSegmentLength has been declared.
    declared: bool,
}

/// What a response repeats of its request, and what it grants.
#[derive(Clone, Copy, Debug, Default)]
struct RequestFields {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
    cmd_sn: u32,
    stage: u8,
    transit: Option<u8>,
}

impl RequestFields {
    fn new(request: &LoginRequest) -> Self {
        Self {
            isid: request.isid,
            tsih: request.tsih.get(),
            cid: request.cid.get(),
            itt: request.itt.get(),
            cmd_sn: request.cmd_sn.get(),
            stage: request.stage().0,
            transit: (request.flags & TRANSIT != 0).then_some(request.next_stage().0),
        }
    }

    fn same_connection(&self, other: &Self) -> bool {
        (self.isid, self.tsih, self.cid) == (other.isid, other.tsih, other.cid)
    }
}

/// A text is complete, or the response to a part of it is queued.
enum Complete {
    Text(Vec<u8>),
    Partly,
}

impl Start {
    fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let mut common = self.0;
        let stage = request.stage();
        let text = match common.accept(request, stage, text, out) {
            Ok(Complete::Text(text)) => text,
            Ok(Complete::Partly) => return Next::State(Login::Start(Self(common))),
            Err(status) => return common.refuse(status, out),
        };
        match common.introduce(&text) {
            Ok(candidate) => Next::Authorize(Login::Authorizing(Authorizing { common, text }), candidate),
            Err(status) => common.refuse(status, out),
        }
    }
}

impl Authorizing {
    fn answer(self, verdict: LoginDecision, out: &mut PduQueue) -> Next {
        let Self { mut common, text } = self;
        match verdict {
            LoginDecision::Accepted { portal_group, alias, challenge, offer } => {
                offer.into_iter().for_each(|offer| common.negotiation.set_config(offer));
                common.greet(portal_group, alias.as_deref());
                match (Stage(common.asked.stage), challenge) {
                    (Stage::SECURITY, None) => Security(common).negotiate(&text, out),
                    (Stage::SECURITY, Some(challenge)) => Unauthenticated { common, challenge }.negotiate(&text, out),
                    (_, None) => Operational(common).negotiate(&text, out),
                    // It has left out the stage in which it would have proved its name.
                    (_, Some(_)) => common.refuse(LoginStatus::AUTHENTICATION_FAILURE, out),
                }
            }
            LoginDecision::Moved { permanently, address } => {
                let status = if permanently { LoginStatus::MOVED_PERMANENTLY } else { LoginStatus::MOVED_TEMPORARILY };
                let mut redirection = Vec::new();
                text::put(&mut redirection, "TargetAddress", address);
                common.emit(None, 0, status, &redirection, out);
                Next::Refused(status)
            }
            LoginDecision::Refused(status) => common.refuse(status, out),
        }
    }
}

impl Operational {
    fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let mut common = self.0;
        match common.accept(request, Stage::OPERATIONAL, text, out) {
            Ok(Complete::Text(text)) => Self(common).negotiate(&text, out),
            Ok(Complete::Partly) => Next::State(Login::Operational(Self(common))),
            Err(status) => common.refuse(status, out),
        }
    }

    fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let mut common = self.0;
        let mut answer = match common.exchange(Phase::Operational, text, |_, _, _| Err(LoginStatus::INITIATOR_ERROR)) {
            Ok(answer) => answer,
            Err(status) => return common.refuse(status, out),
        };
        if !common.declared {
            common.declared = true;
            let limit = common.negotiation.config().max_recv_segment;
            text::put(&mut answer, "MaxRecvDataSegmentLength", limit);
        }
        if common.asked.transit.is_none() {
            common.respond(None, 0, &answer, out);
            return Next::State(Login::Operational(Self(common)));
        }
        Establishing::begin(common, answer)
    }
}

impl Establishing {
    fn begin(common: Common, answer: Vec<u8>) -> Next {
        let Some(candidate) = common.candidate() else {
            // Nobody comes here without a name: `introduce` has asked for it.
            return Next::Refused(LoginStatus::MISSING_PARAMETER);
        };
        let established = Box::new(Established {
            candidate,
            tsih: 0,
            parameters: common.negotiation.parameters,
            max_recv_segment: common.max_recv_segment(),
            cmd_sn: common.asked.cmd_sn,
            stat_sn: 0,
        });
        Next::Establish(Login::Establishing(Self { common, established: established.clone(), answer }), established)
    }

    fn answer(self, answer: Result<u16, LoginStatus>, out: &mut PduQueue) -> Next {
        let Self { mut common, mut established, answer: text } = self;
        match answer {
            Ok(tsih) => {
                common.respond(Some(Stage::FULL_FEATURE), tsih, &text, out);
                established.tsih = tsih;
                established.stat_sn = common.stat_sn.unwrap_or_default();
                Next::Done(established)
            }
            Err(status) => common.refuse(status, out),
        }
    }
}

impl Common {
    /// Checks a request's header and gathers its text.
    fn accept(
        &mut self,
        request: &LoginRequest,
        stage: Stage,
        text: Option<&[u8]>,
        out: &mut PduQueue,
    ) -> Result<Complete, LoginStatus> {
        let asked = RequestFields::new(request);
        let first = self.requests == 0;
        let same = first || self.asked.same_connection(&asked);
        self.asked = asked;
        self.requests += 1;
        self.stat_sn.get_or_insert_with(|| request.exp_stat_sn.get());
        if request.version_min > VERSION {
            return Err(LoginStatus::UNSUPPORTED_VERSION);
        }
        let continues = request.flags & CONTINUE != 0;
        let legal_stage = match (request.stage(), asked.transit.map(Stage)) {
            (current, _) if current != stage => false,
            (Stage::SECURITY, Some(next)) => next == Stage::OPERATIONAL || next == Stage::FULL_FEATURE,
            (Stage::OPERATIONAL, Some(next)) => next == Stage::FULL_FEATURE,
            (Stage::SECURITY | Stage::OPERATIONAL, None) => true,
            _ => false,
        };
        if !same || !legal_stage || continues && asked.transit.is_some() || self.requests > LOGIN_REQUESTS_MAX {
            return Err(LoginStatus::INITIATOR_ERROR);
        }
        let text = text.ok_or(LoginStatus::OUT_OF_RESOURCES)?;
        self.gather.add(text, TEXT_MAX).map_err(|_| LoginStatus::INITIATOR_ERROR)?;
        if continues {
            // The rest shall come: an empty response asks for it.
            self.emit(None, 0, LoginStatus::SUCCESS, &[], out);
            return Ok(Complete::Partly);
        }
        Ok(Complete::Text(self.gather.take()))
    }

    /// Who knocks: the names in the first text, before anything in it is negotiated.
    fn introduce(&mut self, text: &[u8]) -> Result<Candidate, LoginStatus> {
        let mut names = Negotiation::new(self.negotiation.config().clone());
        for pair in text::pairs(text) {
            let (key, value) = pair.map_err(|_| LoginStatus::INITIATOR_ERROR)?;
            if matches!(key, "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType") {
                names.take(Phase::Operational, key, value, &mut Vec::new())?;
            }
        }
        // Known before the first pair is negotiated, wherever in the text they stand.
        self.negotiation.names = names.names;
        let candidate = self.candidate().ok_or(LoginStatus::MISSING_PARAMETER)?;
        if candidate.target.is_none() && !candidate.discovery {
            return Err(LoginStatus::MISSING_PARAMETER);
        }
        Ok(candidate)
    }

    fn candidate(&self) -> Option<Candidate> {
        let (names, asked) = (&self.negotiation.names, &self.asked);
        Some(Candidate {
            initiator: names.initiator.clone()?,
            alias: names.alias.clone(),
            target: names.target.clone(),
            discovery: names.discovery,
            isid: asked.isid,
            tsih: asked.tsih,
            cid: asked.cid,
        })
    }

    /// 13.9: the first response of a normal session names the portal group.
    fn greet(&mut self, portal_group: u16, alias: Option<&str>) {
        if self.negotiation.names.discovery {
            return;
        }
        text::put(&mut self.greeting, "TargetPortalGroupTag", portal_group);
        if let Some(alias) = alias {
            text::put(&mut self.greeting, "TargetAlias", alias);
        }
    }

    /// Takes all pairs of a text and makes the answer; `own` takes those that only a state knows what to do with.
    fn exchange(
        &mut self,
        phase: Phase,
        text: &[u8],
        mut own: impl FnMut(&str, &str, &mut Vec<u8>) -> Result<(), LoginStatus>,
    ) -> Result<Vec<u8>, LoginStatus> {
        let mut answer = std::mem::take(&mut self.greeting);
        for (count, pair) in text::pairs(text).enumerate() {
            let (key, value) = pair.map_err(|_| LoginStatus::INITIATOR_ERROR)?;
            if count == PAIRS_MAX {
                return Err(LoginStatus::INITIATOR_ERROR);
            }
            if self.negotiation.take(phase, key, value, &mut answer)? == Taken::Elsewhere {
                own(key, value, &mut answer)?;
            }
        }
        debug_assert!(answer.len() <= LOGIN_SEGMENT_MAX, "PAIRS_MAX answers fit");
        Ok(answer)
    }

    fn max_recv_segment(&self) -> u32 {
        if self.declared { self.negotiation.config().max_recv_segment } else { Parameters::initial().max_send_segment }
    }

    fn respond(&mut self, transit: Option<Stage>, tsih: u16, answer: &[u8], out: &mut PduQueue) {
        self.emit(transit, tsih, LoginStatus::SUCCESS, answer, out);
    }

    fn refuse(mut self, status: LoginStatus, out: &mut PduQueue) -> Next {
        self.emit(None, 0, status, &[], out);
        Next::Refused(status)
    }

    fn emit(&mut self, transit: Option<Stage>, tsih: u16, status: LoginStatus, text: &[u8], out: &mut PduQueue) {
        let stat_sn = self.stat_sn.unwrap_or_default();
        self.stat_sn = Some(stat_sn.wrapping_add(1));
        let asked = &self.asked;
        let window = self.negotiation.config().window;
        let header = LoginResponse {
            flags: login_flags(Stage(asked.stage), transit),
            version_max: VERSION,
            version_active: VERSION,
            isid: asked.isid,
            tsih: U16::new(if tsih == 0 { asked.tsih } else { tsih }),
            itt: U32::new(asked.itt),
            stat_sn: U32::new(stat_sn),
            exp_cmd_sn: U32::new(asked.cmd_sn),
            max_cmd_sn: U32::new(asked.cmd_sn.wrapping_add(window - 1)),
            status: U16::new(status.0),
            ..LoginResponse::blank()
        };
        out.short(header, &[text]);
    }
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
