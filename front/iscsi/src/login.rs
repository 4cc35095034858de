//! The login phase (RFC 7143 6.3). A state is consumed by the request that it handles, so a request that it does not
//! expect leads nowhere.
//!
//! ```text
//! Start -> Authorizing -> Security -> Operational -> Establishing -> done
//!              | |         ^ |            ^               ^
//!              | +- CHAP --+ +------------|---------------+
//!              +--------------------------+  (an initiator may begin with the operational stage)
//! ```
//!
//! Three states wait for an answer of the front: `Authorizing` (whether the initiator may access the target, and
//! whether it has to authenticate), `Authenticating` (whether its CHAP answer is correct) and `Establishing` (the TSIH,
//! after an older session of the same name has ended). The states of CHAP are in [`security`].

pub mod security;

use crate::chap::{Challenge, ChapAnswer, TargetAnswer};
use crate::config::{Config, LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_MAX, PAIRS_MAX, TEXT_MAX, Transport};
use crate::keys::{Negotiation, PairResult, Parameters, Phase};
use crate::pdu_queue::PduQueue;
use crate::text::{self, Malformed, TextBuffer};
use crate::wire::{CONTINUE, LoginRequest, LoginResponse, LoginStatus, Pdu, Stage, TRANSIT, login_flags};
use lunar_core::wire::be::{U16, U32};
use security::{Authenticating, Challenged, ChapChosen, Security, Unauthenticated};
use std::rc::Rc;
use std::sync::Arc;

/// The only version of the protocol (RFC 7143 11.12.4).
const VERSION: u8 = 0;

/// The names and identifiers of a login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The initiator name, in lower case.
    pub initiator: Arc<str>,
    /// InitiatorAlias.
    pub alias: Option<Arc<str>>,
    /// The target name, in lower case; always present in a normal session.
    pub target: Option<Arc<str>>,
    /// Whether it is a discovery session.
    pub discovery: bool,
    /// ISID: the initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// TSIH: zero for a new session, else the session that the connection would join.
    pub tsih: u16,
    /// CID.
    pub cid: u16,
    /// The transport of its PDUs.
    pub transport: Transport,
}

/// The answer of the front to a [`Candidate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoginDecision {
    /// The initiator may log in, after authentication if there is a challenge.
    Accepted {
        /// TargetPortalGroupTag of the portal.
        portal_group: u16,
        /// TargetAlias.
        alias: Option<Arc<str>>,
        /// The CHAP challenge that the initiator has to answer; `None`: no authentication.
        challenge: Option<Challenge>,
        /// The settings of the session, if the target has its own.
        offer: Option<Rc<Config>>,
        /// The parameters of the session whose connection this login reinstates (RFC 7143 6.3.4).
        resumed: Option<Parameters>,
    },
    /// The initiator is redirected: `address` as in TargetAddress, without the portal group tag.
    Moved {
        /// Whether the redirection is permanent.
        permanently: bool,
        /// The address to log in to.
        address: String,
    },
    /// The login is refused, for instance with [`LoginStatus::NOT_FOUND`] or [`LoginStatus::AUTHORIZATION_FAILURE`];
    /// for a `tsih` that is not zero, with [`LoginStatus::NO_SUCH_SESSION`] or [`LoginStatus::TOO_MANY_CONNECTIONS`].
    Refused(LoginStatus),
}

/// A session at the end of its login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Established {
    /// The names and identifiers.
    pub candidate: Candidate,
    /// TSIH; zero until it is assigned.
    pub tsih: u16,
    /// The negotiated parameters.
    pub parameters: Parameters,
    /// MaxRecvDataSegmentLength that the target has declared.
    pub max_recv_segment: u32,
    /// The first CmdSN.
    pub cmd_sn: u32,
    /// The next StatSN.
    pub stat_sn: u32,
}

/// The state of a login.
#[derive(Debug)]
pub enum Login {
    /// Before the first text is complete.
    Start(Start),
    /// Waits for a [`LoginDecision`].
    Authorizing(Authorizing),
    /// SecurityNegotiation.
    Security(Security),
    /// SecurityNegotiation of an initiator that has to authenticate.
    Unauthenticated(Unauthenticated),
    /// The same, after the choice of CHAP.
    ChapChosen(ChapChosen),
    /// The same, after the challenge.
    Challenged(Challenged),
    /// Waits for the result of the authentication.
    Authenticating(Authenticating),
    /// LoginOperationalNegotiation.
    Operational(Operational),
    /// Waits for the TSIH.
    Establishing(Establishing),
}

/// The result of a request or of an answer.
#[derive(Debug)]
pub enum Next {
    /// Waits for the next request of the initiator.
    State(Login),
    /// Waits for a [`LoginDecision`] of the front.
    Authorize(Login, Candidate),
    /// Waits for the front to check a CHAP answer.
    Authenticate(Login, Box<ChapAnswer>),
    /// Waits for the front to assign a TSIH.
    Establish(Login, Box<Established>),
    /// The login has succeeded: the full-feature phase begins.
    Done(Box<Established>),
    /// The login has failed; the response is queued. With the reason for the log, if the status does not say it all.
    Refused(LoginStatus, Option<String>),
}

impl Login {
    /// The state of a new connection.
    #[must_use]
    pub fn new(negotiation: Negotiation) -> Self {
        Self::Start(Start(Common {
            negotiation,
            text_buffer: TextBuffer::default(),
            asked: RequestFields::default(),
            requests: 0,
            continued: None,
            stat_sn: None,
            target_keys: Vec::new(),
            has_declared_segment: false,
        }))
    }

    /// Takes a login request; `text` is `None` if there was no memory for it.
    pub fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        match self {
            Self::Start(state) => state.handle(request, text, out),
            Self::Security(state) => state.handle(request, text, out),
            Self::Unauthenticated(state) => state.handle(request, text, out),
            Self::ChapChosen(state) => state.handle(request, text, out),
            Self::Challenged(state) => state.handle(request, text, out),
            Self::Operational(state) => state.handle(request, text, out),
            // The session reads no request while it waits for the front.
            Self::Authorizing(Authorizing { common, .. })
            | Self::Authenticating(Authenticating { common, .. })
            | Self::Establishing(Establishing { common, .. }) => common.refuse(LoginStatus::INVALID_REQUEST, out),
        }
    }

    /// Takes the front's answer to [`Next::Authorize`].
    pub fn authorized(self, decision: LoginDecision, out: &mut PduQueue) -> Next {
        match self {
            Self::Authorizing(state) => state.answer(decision, out),
            other => Next::State(other),
        }
    }

    /// Takes the front's answer to [`Next::Authenticate`]: the CHAP answer of the target, if the initiator requests one
    /// and the target has a secret, or how the login ends.
    pub fn authenticated(self, answer: Result<Option<TargetAnswer>, LoginStatus>, out: &mut PduQueue) -> Next {
        match self {
            Self::Authenticating(state) => state.answer(answer, out),
            other => Next::State(other),
        }
    }

    /// Takes the front's answer to [`Next::Establish`]: the TSIH, not zero, or how the login ends.
    pub fn established(self, answer: Result<u16, LoginStatus>, out: &mut PduQueue) -> Next {
        match self {
            Self::Establishing(state) => state.answer(answer, out),
            other => Next::State(other),
        }
    }

    /// Whether the front has to answer before the next request is read.
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        matches!(self, Self::Authorizing(_) | Self::Authenticating(_) | Self::Establishing(_))
    }
}

/// Before the first text is complete: the names are not known yet.
#[derive(Debug)]
pub struct Start(Common);

/// Waits for a [`LoginDecision`]; the first text is kept until then.
#[derive(Debug)]
pub struct Authorizing {
    common: Common,
    text: Vec<u8>,
}

/// LoginOperationalNegotiation.
#[derive(Debug)]
pub struct Operational(Common);

/// The negotiation has ended; the last response waits for the TSIH.
#[derive(Debug)]
pub struct Establishing {
    common: Common,
    established: Box<Established>,
    answer: Vec<u8>,
}

/// The data of every state.
#[derive(Debug)]
struct Common {
    negotiation: Negotiation,
    text_buffer: TextBuffer,
    /// The fields of the last request.
    asked: RequestFields,
    requests: u32,
    /// The stage of a text that is continued in the next request.
    continued: Option<Stage>,
    /// The next StatSN; the first request of the initiator determines it.
    stat_sn: Option<u32>,
    /// The keys of the target in the first response.
    target_keys: Vec<u8>,
    /// Whether the target has declared MaxRecvDataSegmentLength.
    has_declared_segment: bool,
}

/// The fields of a request that its response repeats or answers.
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

/// The text of a request: complete, or continued in the next request, in which case a response is queued.
enum Complete {
    Text(Vec<u8>),
    Partial,
}

impl Start {
    fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let mut common = self.0;
        let stage = request.stage();
        let text = match common.accept(request, stage, text, out) {
            Ok(Complete::Text(text)) => text,
            Ok(Complete::Partial) => return Next::State(Login::Start(Self(common))),
            Err(status) => return common.refuse(status, out),
        };
        match common.read_names(&text) {
            Ok(candidate) => Next::Authorize(Login::Authorizing(Authorizing { common, text }), candidate),
            Err(status) => common.refuse(status, out),
        }
    }
}

impl Authorizing {
    fn answer(self, decision: LoginDecision, out: &mut PduQueue) -> Next {
        let Self { mut common, text } = self;
        match decision {
            LoginDecision::Accepted { portal_group, alias, challenge, offer, resumed } => {
                offer.into_iter().for_each(|offer| common.negotiation.set_config(offer));
                resumed.into_iter().for_each(|parameters| common.negotiation.resume_session(&parameters));
                common.add_target_keys(portal_group, alias.as_deref());
                match (Stage(common.asked.stage), challenge) {
                    (Stage::SECURITY, None) => Security(common).negotiate(&text, out),
                    (Stage::SECURITY, Some(challenge)) => Unauthenticated { common, challenge }.negotiate(&text, out),
                    (_, None) => Operational(common).negotiate(&text, out),
                    // The initiator has skipped the security stage and so the authentication.
                    (_, Some(_)) => {
                        let why = "the initiator has to authenticate, and skips the security stage";
                        common.refuse_because(LoginStatus::AUTHENTICATION_FAILURE, why, out)
                    }
                }
            }
            LoginDecision::Moved { permanently, address } => {
                let status = if permanently { LoginStatus::MOVED_PERMANENTLY } else { LoginStatus::MOVED_TEMPORARILY };
                let mut redirection = Vec::new();
                text::put(&mut redirection, "TargetAddress", address);
                common.emit(None, 0, status, &redirection, out);
                Next::Refused(status, None)
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
            Ok(Complete::Partial) => Next::State(Login::Operational(Self(common))),
            Err(status) => common.refuse(status, out),
        }
    }

    fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let mut common = self.0;
        let mut answer = match common.exchange(Phase::Operational, text, |_, _, _| Err(LoginStatus::INITIATOR_ERROR)) {
            Ok(answer) => answer,
            Err(status) => return common.refuse(status, out),
        };
        // RFC 7145 6.5: over RDMA, TargetRecvDataSegmentLength takes its place.
        if !common.has_declared_segment && !common.negotiation.config().transport.is_rdma() {
            common.has_declared_segment = true;
            let limit = common.negotiation.config().max_recv_segment;
            text::put(&mut answer, "MaxRecvDataSegmentLength", limit);
        }
        if common.asked.transit.is_none() {
            common.respond(None, 0, &answer, out);
            return Next::State(Login::Operational(Self(common)));
        }
        if common.negotiation.lacks_extensions() {
            let why = "the initiator uses RDMA, and RDMAExtensions=Yes was not negotiated";
            return common.refuse_because(LoginStatus::INITIATOR_ERROR, why, out);
        }
        Establishing::begin(common, answer)
    }
}

impl Establishing {
    fn begin(common: Common, answer: Vec<u8>) -> Next {
        let Some(candidate) = common.candidate() else {
            // `read_names` has refused logins without a name.
            return Next::Refused(LoginStatus::MISSING_PARAMETER, None);
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
    /// Checks the header of a request and collects its text.
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
        // RFC 7143 6.3: a stage ends by a request with the T bit only, so the requests of one text have one stage.
        let stage = self.continued.unwrap_or(stage);
        let legal_stage = match (request.stage(), asked.transit.map(Stage)) {
            (current, _) if current != stage => false,
            (Stage::SECURITY, Some(next)) => next == Stage::OPERATIONAL || next == Stage::FULL_FEATURE,
            (Stage::OPERATIONAL, Some(next)) => next == Stage::FULL_FEATURE,
            (Stage::SECURITY | Stage::OPERATIONAL, None) => true,
            _ => false,
        };
        let mistake = if !same {
            Some("ISID, TSIH or CID has changed within the login")
        } else if !legal_stage {
            Some("the stage is not the one that is negotiated, or cannot follow it")
        } else if continues && asked.transit.is_some() {
            Some("a request has both the C and the T bit")
        } else if self.requests > LOGIN_REQUESTS_MAX {
            Some("the login takes too many requests")
        } else {
            None
        };
        if let Some(why) = mistake {
            return Err(self.negotiation.fails(LoginStatus::INITIATOR_ERROR, why));
        }
        let text = text.ok_or(LoginStatus::OUT_OF_RESOURCES)?;
        if self.text_buffer.add(text, TEXT_MAX).is_err() {
            return Err(self.negotiation.fails(LoginStatus::INITIATOR_ERROR, "the text is too long"));
        }
        self.continued = continues.then_some(stage);
        if continues {
            // An empty response requests the rest of the text.
            self.emit(None, 0, LoginStatus::SUCCESS, &[], out);
            return Ok(Complete::Partial);
        }
        Ok(Complete::Text(self.text_buffer.take()))
    }

    /// Reads the names in the first text, before anything is negotiated.
    fn read_names(&mut self, text: &[u8]) -> Result<Candidate, LoginStatus> {
        let mut names = Negotiation::new(self.negotiation.config().clone());
        for pair in text::pairs(text) {
            let (key, value) = pair.map_err(|malformed| self.malformed(malformed))?;
            if matches!(key, "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType") {
                let taken = names.take(Phase::Operational, key, value, &mut Vec::new());
                taken.map_err(|status| self.negotiation.fails(status, names.take_failure().unwrap_or_default()))?;
            }
        }
        // The rules of other keys depend on the names, wherever in the text they are.
        self.negotiation.names = names.names;
        let Some(candidate) = self.candidate() else {
            return Err(self.negotiation.fails(LoginStatus::MISSING_PARAMETER, "InitiatorName is missing"));
        };
        if candidate.target.is_none() && !candidate.discovery {
            return Err(self.negotiation.fails(LoginStatus::MISSING_PARAMETER, "TargetName is missing"));
        }
        Ok(candidate)
    }

    fn malformed(&mut self, malformed: Malformed) -> LoginStatus {
        self.negotiation.fails(LoginStatus::INITIATOR_ERROR, malformed.to_string())
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
            transport: self.negotiation.config().transport,
        })
    }

    /// RFC 7143 13.9: the first response of a normal session has the portal group tag.
    fn add_target_keys(&mut self, portal_group: u16, alias: Option<&str>) {
        if self.negotiation.names.discovery {
            return;
        }
        text::put(&mut self.target_keys, "TargetPortalGroupTag", portal_group);
        if let Some(alias) = alias {
            text::put(&mut self.target_keys, "TargetAlias", alias);
        }
    }

    /// Negotiates all pairs of a text and returns the answer; `own` handles the keys of the current state.
    fn exchange(
        &mut self,
        phase: Phase,
        text: &[u8],
        mut own: impl FnMut(&str, &str, &mut Vec<u8>) -> Result<(), LoginStatus>,
    ) -> Result<Vec<u8>, LoginStatus> {
        let mut answer = std::mem::take(&mut self.target_keys);
        self.negotiation.begin_text();
        for (count, pair) in text::pairs(text).enumerate() {
            let (key, value) = pair.map_err(|malformed| self.malformed(malformed))?;
            if count == PAIRS_MAX {
                return Err(self.negotiation.fails(LoginStatus::INITIATOR_ERROR, "a text has too many keys"));
            }
            if self.negotiation.take(phase, key, value, &mut answer)? == PairResult::ForCaller {
                let result = own(key, value, &mut answer);
                // Without the value, which may be a CHAP response.
                result.map_err(|status| self.negotiation.fails(status, format!("{key} is not accepted here")))?;
            }
        }
        debug_assert!(answer.len() <= LOGIN_SEGMENT_MAX, "the answers to PAIRS_MAX pairs fit");
        Ok(answer)
    }

    fn max_recv_segment(&self) -> u32 {
        if self.has_declared_segment || self.negotiation.config().transport.is_rdma() {
            self.negotiation.config().max_recv_segment
        } else {
            Parameters::initial().max_send_segment
        }
    }

    fn respond(&mut self, transit: Option<Stage>, tsih: u16, answer: &[u8], out: &mut PduQueue) {
        self.emit(transit, tsih, LoginStatus::SUCCESS, answer, out);
    }

    fn refuse(mut self, status: LoginStatus, out: &mut PduQueue) -> Next {
        self.emit(None, 0, status, &[], out);
        Next::Refused(status, self.negotiation.take_failure())
    }

    fn refuse_because(mut self, status: LoginStatus, why: &str, out: &mut PduQueue) -> Next {
        self.negotiation.fails(status, why);
        self.refuse(status, out)
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
