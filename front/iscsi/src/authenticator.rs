//! Decides who may log in; one value for all cores. It has no I/O: its creator and its callers provide randomness, time
//! and the audit sink.
//!
//! * [`throttle`](lunar_core::access::throttle): failed logins are delayed per source address; no account is locked
//! * [`audit`]: one record for each login and each refusal, without secrets
//! * here: the answers that a login waits for: [`Authenticator::login_delay`], [`Authenticator::begin_login`] and
//!   [`Authenticator::authenticate`]

pub mod audit;

use crate::chap::{Challenge, ChapAnswer, MutualChallenge, TargetAnswer};
use crate::directory::{Admission, Directory, TargetEntry};
use crate::login::Candidate;
use crate::wire::LoginStatus;
use audit::{AuditLog, AuditRecord, LoginDetails, RefusalReason};
use lunar_core::access::Credentials;
use lunar_core::access::refusal::{Refusal, RefusalCode, RefusalSink};
use lunar_core::access::throttle::Throttle;
use lunar_core::hosts::Hosts;
use lunar_core::time::Instant;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Fills memory with cryptographically secure random bytes; returns whether it succeeded.
pub type RandomSource = Box<dyn Fn(&mut [u8]) -> bool + Send + Sync>;
/// Takes audit records: per second at most [`REFUSALS_PER_SECOND`](lunar_core::access::audit::REFUSALS_PER_SECOND)
/// refusals; accepted logins, repeated ones summed up.
pub type AuditSink = Box<dyn Fn(&AuditRecord) + Send + Sync>;

/// Decides who may log in.
pub struct Authenticator {
    random: RandomSource,
    sink: AuditSink,
    throttle: Arc<Mutex<Throttle>>,
    state: Mutex<State>,
    /// Where refused logins are counted.
    hosts: OnceLock<Arc<Hosts>>,
    /// Takes all refused logins.
    refusals: OnceLock<Arc<RefusalSink>>,
}

struct State {
    directory: Arc<Directory>,
    audit: AuditLog,
    /// Challenges of the target that are not answered yet, of all connections: the target never answers one of them
    /// itself. There are at most as many as half-open logins.
    challenges: BTreeSet<Challenge>,
}

/// A challenge of the target that is not answered yet.
#[derive(Debug)]
struct Outstanding {
    authenticator: Arc<Authenticator>,
    challenge: Challenge,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.authenticator.lock().challenges.remove(&self.challenge);
    }
}

/// A login that is not complete.
#[derive(Debug)]
pub struct LoginAttempt {
    login: LoginDetails,
    entry: Option<Arc<TargetEntry>>,
    map: Option<Arc<str>>,
    credentials: Arc<Credentials>,
    outstanding: Option<Outstanding>,
}

impl LoginAttempt {
    /// The CHAP challenge for the initiator, if it has to authenticate.
    #[must_use]
    pub fn challenge(&self) -> Option<Challenge> {
        self.outstanding.as_ref().map(|outstanding| outstanding.challenge)
    }

    /// The name of the LUN map of the host group; without one, the initiator accesses all units.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<str>> {
        self.map.as_ref()
    }

    /// The requested target; `None` for a discovery session.
    #[must_use]
    pub fn entry(&self) -> Option<&Arc<TargetEntry>> {
        self.entry.as_ref()
    }

    /// The names and the address of the login.
    #[must_use]
    pub fn login(&self) -> &LoginDetails {
        &self.login
    }
}

/// The result of a [`ChapAnswer`], and when the initiator may learn it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthOutcome {
    /// The target's own CHAP response, if the initiator requests one; or how the login ends.
    pub result: Result<Option<TargetAnswer>, LoginStatus>,
    /// How long the answer is delayed.
    pub delay: Duration,
}

impl Authenticator {
    /// An authenticator for the targets of `directory`.
    #[must_use]
    pub fn new(directory: Directory, random: RandomSource, sink: AuditSink) -> Arc<Self> {
        Self::with_throttle(directory, Arc::default(), random, sink)
    }

    /// An authenticator that shares its throttle with other fronts: failed logins count for all of them together.
    #[must_use]
    pub fn with_throttle(
        directory: Directory,
        throttle: Arc<Mutex<Throttle>>,
        random: RandomSource,
        sink: AuditSink,
    ) -> Arc<Self> {
        throttle.lock().unwrap_or_else(PoisonError::into_inner).set_rate(directory.login_rate);
        let state = State { directory: Arc::new(directory), audit: AuditLog::default(), challenges: BTreeSet::new() };
        Arc::new(Self {
            random,
            sink,
            throttle,
            state: Mutex::new(state),
            hosts: OnceLock::new(),
            refusals: OnceLock::new(),
        })
    }

    /// Counts refused logins in this table and reports them from now on.
    pub fn report_refusals(&self, hosts: &Arc<Hosts>, refusals: &Arc<RefusalSink>) {
        // There is one table and one sink in a process.
        let _ = (self.hosts.set(hosts.clone()), self.refusals.set(refusals.clone()));
    }

    /// An authenticator without audit log and without randomness, so it cannot make challenges.
    #[must_use]
    pub fn silent(directory: Directory) -> Arc<Self> {
        Self::new(directory, Box::new(|_| false), Box::new(|_| {}))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current directory of targets and portals.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.lock().directory.clone()
    }

    /// Replaces the directory. Existing sessions and logins in progress do not change until each front checks them:
    /// [`Front::review`](crate::serve::Front::review).
    pub fn set_directory(&self, directory: Directory) {
        self.throttle().set_rate(directory.login_rate);
        self.lock().directory = Arc::new(directory);
    }

    /// How long a login has to wait, by the rate limit of its source address.
    ///
    /// # Errors
    /// How the login ends, if there are too many from its address.
    pub fn login_delay(
        &self,
        candidate: &Candidate,
        source: SocketAddr,
        now: Instant,
    ) -> Result<Duration, LoginStatus> {
        let turn = self.throttle().arrive(source.ip(), now);
        turn.ok_or_else(|| {
            self.record(LoginDetails::new(candidate, source), Err(RefusalReason::Code(RefusalCode::TooOften)), now);
            LoginStatus::SERVICE_UNAVAILABLE
        })
    }

    /// Begins a login.
    ///
    /// # Errors
    /// How the login ends. A target that the initiator may not access is reported as not found.
    pub fn begin_login(
        self: &Arc<Self>,
        candidate: &Candidate,
        source: SocketAddr,
        now: Instant,
    ) -> Result<LoginAttempt, LoginStatus> {
        let mut login = LoginDetails::new(candidate, source);
        let wanted = candidate.target.as_deref().filter(|_| !candidate.discovery);
        let admission = match self.directory().admit(wanted, &candidate.initiator, source.ip()) {
            Ok(admission) => admission,
            Err(code) => {
                self.record(login, Err(RefusalReason::Code(code)), now);
                return Err(LoginStatus::NOT_FOUND);
            }
        };
        let Admission { entry, group, credentials } = admission;
        login.group = group.as_ref().map(|group| group.name.clone());
        let map = group.and_then(|group| group.map.clone());
        let outstanding = if credentials.users.is_empty() { None } else { Some(self.challenge()?) };
        Ok(LoginAttempt { login, entry, map, credentials, outstanding })
    }

    fn challenge(self: &Arc<Self>) -> Result<Outstanding, LoginStatus> {
        let mut random = [0; Challenge::RANDOM];
        if !(self.random)(&mut random) {
            return Err(LoginStatus::TARGET_ERROR);
        }
        let challenge = Challenge::from_random(random);
        // A repeated challenge means that the random number generator is broken.
        if !self.lock().challenges.insert(challenge) {
            return Err(LoginStatus::TARGET_ERROR);
        }
        Ok(Outstanding { authenticator: self.clone(), challenge })
    }

    /// Checks the CHAP answer of an initiator.
    pub fn authenticate(&self, attempt: &mut LoginAttempt, chap_answer: &ChapAnswer, now: Instant) -> AuthOutcome {
        (attempt.login.user, attempt.login.algorithm) = (Some(chap_answer.user.clone()), Some(chap_answer.algorithm));
        let source = attempt.login.source.ip();
        let Some(turn) = self.throttle().turn(source, now) else {
            self.record(attempt.login.clone(), Err(RefusalReason::Code(RefusalCode::TooMany)), now);
            return AuthOutcome { result: Err(LoginStatus::SERVICE_UNAVAILABLE), delay: Duration::ZERO };
        };
        match self.verify(&attempt.credentials, chap_answer) {
            Ok(answer) => {
                self.throttle().succeeded(&chap_answer.user);
                AuthOutcome { result: Ok(answer), delay: turn }
            }
            Err(code) => {
                let pause = self.throttle().failed(source, &chap_answer.user, now);
                self.record(attempt.login.clone(), Err(RefusalReason::Code(code)), now);
                AuthOutcome { result: Err(LoginStatus::AUTHENTICATION_FAILURE), delay: turn + pause }
            }
        }
    }

    fn verify(&self, credentials: &Credentials, chap_answer: &ChapAnswer) -> Result<Option<TargetAnswer>, RefusalCode> {
        let user = credentials.user(&chap_answer.user);
        // An unknown user takes the same path and time with the secret of another one; the result is not used.
        let secret = &user.or_else(|| credentials.users.first()).ok_or(RefusalCode::UnknownUser)?.secret;
        let Challenge { identifier, bytes } = chap_answer.challenge;
        let is_correct = chap_answer.algorithm.response(identifier, secret, &bytes) == chap_answer.response;
        match (user, is_correct) {
            (None, _) => return Err(RefusalCode::UnknownUser),
            (Some(_), false) => return Err(RefusalCode::WrongSecret),
            (Some(_), true) => {}
        }
        let Some(MutualChallenge { identifier, challenge }) = &chap_answer.mutual else { return Ok(None) };
        // RFC 7143 9.2.1: reject a reflected challenge, whose answer would authenticate the initiator.
        if self.lock().challenges.iter().any(|own| own.bytes[..] == challenge[..]) {
            return Err(RefusalCode::Reflected);
        }
        let own = credentials.target.as_ref().ok_or(RefusalCode::NoProofOfOurs)?;
        let response = chap_answer.algorithm.response(*identifier, &own.secret, challenge);
        Ok(Some(TargetAnswer { name: own.name.clone(), response }))
    }

    /// Records a successful login.
    pub fn log_accepted(&self, attempt: &LoginAttempt, now: Instant) {
        self.record(attempt.login.clone(), Ok(()), now);
    }

    /// Records that a login is refused for this reason.
    pub fn log_refused_as(&self, login: LoginDetails, code: RefusalCode, now: Instant) {
        self.record(login, Err(RefusalReason::Code(code)), now);
    }

    /// Records a login that has failed for a reason outside the authenticator: with what is known of the initiator, and
    /// what it did.
    pub fn log_refused(&self, login: LoginDetails, status: LoginStatus, why: Option<&str>, now: Instant) {
        self.record(login, Err(RefusalReason::Status(status, why.map(Arc::from))), now);
    }

    fn record(&self, login: LoginDetails, outcome: Result<(), RefusalReason>, now: Instant) {
        if let Err(reason) = &outcome {
            let (code, target) = (reason.code(), login.target.as_deref().unwrap_or_default());
            if let Some(hosts) = self.hosts.get() {
                hosts.refused(login.transport.word(), code.word(), target, &login.initiator);
            }
            if let Some(refusals) = self.refusals.get() {
                refusals(&Refusal {
                    transport: login.transport.word(),
                    code,
                    host: &login.initiator,
                    source: login.source.ip(),
                    target,
                    user: login.user.as_deref().unwrap_or_default(),
                    portal_group: login.portal_group,
                    detail: reason.detail(),
                });
            }
        }
        let records = self.lock().audit.records(login, outcome, now);
        records.iter().for_each(|record| (self.sink)(record));
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authenticator({:?})", self.lock().directory)
    }
}

#[cfg(test)]
#[path = "authenticator_tests.rs"]
mod tests;
