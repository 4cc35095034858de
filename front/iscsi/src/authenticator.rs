//! The outside of logins, one for all cores: login may log in, how he proves his name, how often he may fail, and login is
//! told of it. Decides, and does nothing else: randomness, time and the log come from its maker and its callers.
//!
//! * [`throttle`](lunar_core::access::throttle): login fails waits longer and longer; nobody is locked out
//! * [`audit`]: one record for each login and each refusal, never with a secret
//! * here: the answers that a login waits for, [`Authenticator::login_delay`], [`Authenticator::begin_login`] and [`Authenticator::authenticate`]

pub mod audit;

use crate::chap::{Challenge, ChapAnswer, MutualChallenge, TargetAnswer};
use crate::directory::{Directory, TargetEntry};
use crate::login::Candidate;
use crate::wire::LoginStatus;
use audit::{AuditLog, AuditRecord, LoginDetails, RefusalReason};
use lunar_core::access::throttle::Throttle;
use lunar_core::access::{Account, Proofs};
use lunar_core::time::Instant;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Fills memory with random bytes, as good as those of secrets; tells whether it could.
pub type RandomSource = Box<dyn Fn(&mut [u8]) -> bool + Send + Sync>;
/// Takes records of the audit; at most [`REFUSALS_PER_SECOND`](lunar_core::access::audit::REFUSALS_PER_SECOND) and a
/// few.
pub type AuditSink = Box<dyn Fn(&AuditRecord) + Send + Sync>;

/// LoginDetails may log in.
pub struct Authenticator {
    random: RandomSource,
    sink: AuditSink,
    throttle: Arc<Mutex<Throttle>>,
    state: Mutex<State>,
}

struct State {
    directory: Arc<Directory>,
    audit: AuditLog,
    /// Challenges of ours that are not answered yet, of all connections: none of them is answered by ourselves. As many
    /// as half-open logins at most.
    challenges: BTreeSet<Challenge>,
}

/// A challenge of ours that waits for its answer.
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

/// A login that is not over.
#[derive(Debug)]
pub struct LoginAttempt {
    login: LoginDetails,
    entry: Option<Arc<TargetEntry>>,
    map: Option<Arc<str>>,
    proofs: Arc<Proofs>,
    outstanding: Option<Outstanding>,
}

impl LoginAttempt {
    /// The challenge with which the initiator has to prove its name, if it has to.
    #[must_use]
    pub fn challenge(&self) -> Option<Challenge> {
        self.outstanding.as_ref().map(|outstanding| outstanding.challenge)
    }

    /// The name of the map that says which units it sees; without, it sees all.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<str>> {
        self.map.as_ref()
    }

    /// The target that it wants; none if it only asks what there is.
    #[must_use]
    pub fn entry(&self) -> Option<&Arc<TargetEntry>> {
        self.entry.as_ref()
    }

    /// LoginDetails knocks.
    #[must_use]
    pub fn login(&self) -> &LoginDetails {
        &self.login
    }
}

/// What becomes of a [`ChapAnswer`], and when the initiator may know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthOutcome {
    /// Our own proof, if it is asked for; or how the login ends.
    pub verdict: Result<Option<TargetAnswer>, LoginStatus>,
    /// How long the answer has to wait.
    pub after: Duration,
}

impl Authenticator {
    /// The authenticator of what there is to log in to.
    #[must_use]
    pub fn new(directory: Directory, random: RandomSource, sink: AuditSink) -> Arc<Self> {
        let mut throttle = Throttle::default();
        throttle.set_rate(directory.login_rate);
        let state = State { directory: Arc::new(directory), audit: AuditLog::default(), challenges: BTreeSet::new() };
        Arc::new(Self { random, sink, throttle: Arc::new(Mutex::new(throttle)), state: Mutex::new(state) })
    }

    /// One that tells nobody, and asks for no proofs.
    #[must_use]
    pub fn silent(directory: Directory) -> Arc<Self> {
        Self::new(directory, Box::new(|_| false), Box::new(|_| {}))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half-done here: each change is one insert, remove or assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What failures cost, and how often somebody may come: the same for whatever else lets hosts in at the same
    /// addresses.
    #[must_use]
    pub fn shared_throttle(&self) -> Arc<Mutex<Throttle>> {
        self.throttle.clone()
    }

    /// What there is to log in to now.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.lock().directory.clone()
    }

    /// Goes by another directory from now on. Sessions and logins under way stay what they are until each front looks
    /// after them: [`Front::review`](crate::serve::Front::review).
    pub fn set_directory(&self, directory: Directory) {
        self.throttle().set_rate(directory.login_rate);
        self.lock().directory = Arc::new(directory);
    }

    /// Somebody is at the door; how long he has to wait until he may attempt.
    ///
    /// # Errors
    /// How the login ends, if he comes too often.
    pub fn login_delay(
        &self,
        candidate: &Candidate,
        source: SocketAddr,
        now: Instant,
    ) -> Result<Duration, LoginStatus> {
        let turn = self.throttle().arrive(source.ip(), now);
        turn.ok_or_else(|| {
            self.tell(LoginDetails::new(candidate, source), Err(RefusalReason::TooManyLogins), now);
            LoginStatus::SERVICE_UNAVAILABLE
        })
    }

    /// Somebody wants to log in.
    ///
    /// # Errors
    /// How the login ends. To whom the target is not shown there is none.
    pub fn begin_login(
        self: &Arc<Self>,
        candidate: &Candidate,
        source: SocketAddr,
        now: Instant,
    ) -> Result<LoginAttempt, LoginStatus> {
        let directory = self.directory();
        let mut login = LoginDetails::new(candidate, source);
        // All may ask what there is; what they are shown is another matter.
        let wanted = candidate.target.as_deref().filter(|_| !candidate.discovery);
        let entry = wanted.and_then(|name| directory.target(name)).cloned();
        let group = entry.as_ref().and_then(|entry| entry.access.group(&candidate.initiator, source.ip()));
        login.group = group.map(|group| group.name.clone());
        let (proofs, map) = match group {
            _ if candidate.discovery => (directory.discovery.clone(), None),
            Some(group) => (Arc::new(group.proofs.clone()), group.map.clone()),
            None => {
                self.tell(
                    login,
                    Err(if entry.is_some() { RefusalReason::NoGroup } else { RefusalReason::NoTarget }),
                    now,
                );
                return Err(LoginStatus::NOT_FOUND);
            }
        };
        let outstanding = if proofs.users.is_empty() { None } else { Some(self.challenge()?) };
        Ok(LoginAttempt { login, entry, map, proofs, outstanding })
    }

    fn challenge(self: &Arc<Self>) -> Result<Outstanding, LoginStatus> {
        let mut random = [0; Challenge::RANDOM];
        if !(self.random)(&mut random) {
            return Err(LoginStatus::TARGET_ERROR);
        }
        let challenge = Challenge::from_random(random);
        // A generator that repeats itself is none.
        if !self.lock().challenges.insert(challenge) {
            return Err(LoginStatus::TARGET_ERROR);
        }
        Ok(Outstanding { authenticator: self.clone(), challenge })
    }

    /// Looks at what shall prove the initiator's name.
    pub fn authenticate(&self, attempt: &mut LoginAttempt, chap_answer: &ChapAnswer, now: Instant) -> AuthOutcome {
        (attempt.login.user, attempt.login.algorithm) = (Some(chap_answer.user.clone()), Some(chap_answer.algorithm));
        let source = attempt.login.source.ip();
        let Some(turn) = self.throttle().turn(source, now) else {
            self.tell(attempt.login.clone(), Err(RefusalReason::TooManyFailures), now);
            return AuthOutcome { verdict: Err(LoginStatus::SERVICE_UNAVAILABLE), after: Duration::ZERO };
        };
        match self.examine(&attempt.proofs, chap_answer) {
            Ok(proof) => {
                self.throttle().succeeded(&chap_answer.user);
                AuthOutcome { verdict: Ok(proof), after: turn }
            }
            Err(reason) => {
                let pause = self.throttle().failed(source, &chap_answer.user, now);
                self.tell(attempt.login.clone(), Err(reason), now);
                AuthOutcome { verdict: Err(LoginStatus::AUTHENTICATION_FAILURE), after: turn + pause }
            }
        }
    }

    fn examine<'a>(&self, proofs: &'a Proofs, chap_answer: &ChapAnswer) -> Result<Option<TargetAnswer>, RefusalReason> {
        // All users are looked at, whoever is meant.
        let meant = |found, user: &'a Account| if user.name == chap_answer.user { Some(user) } else { found };
        let user = proofs.users.iter().fold(None, meant);
        // A user that there is not takes the same path and time, with another's secret: what comes out is not used.
        let secret = &user.or_else(|| proofs.users.first()).ok_or(RefusalReason::UnknownUser)?.secret;
        let Challenge { identifier, bytes } = chap_answer.challenge;
        let is_right = chap_answer.algorithm.response(identifier, secret, &bytes) == chap_answer.response;
        match (user, is_right) {
            (None, _) => return Err(RefusalReason::UnknownUser),
            (Some(_), false) => return Err(RefusalReason::WrongResponse),
            (Some(_), true) => {}
        }
        let Some(MutualChallenge { identifier, challenge }) = &chap_answer.mutual else { return Ok(None) };
        // RFC 7143 9.2.1: whoever sends our own challenge back wants us to answer it.
        if self.lock().challenges.iter().any(|ours| ours.bytes[..] == challenge[..]) {
            return Err(RefusalReason::Reflected);
        }
        let own = proofs.target.as_ref().ok_or(RefusalReason::NoTargetSecret)?;
        let response = chap_answer.algorithm.response(*identifier, &own.secret, challenge);
        Ok(Some(TargetAnswer { name: own.name.clone(), response }))
    }

    /// A login has ended well.
    pub fn log_accepted(&self, attempt: &LoginAttempt, now: Instant) {
        self.tell(attempt.login.clone(), Ok(()), now);
    }

    /// A login has ended for a reason that the authenticator does not know of.
    pub fn log_refused(&self, attempt: &LoginAttempt, status: LoginStatus, now: Instant) {
        self.tell(attempt.login.clone(), Err(RefusalReason::Status(status)), now);
    }

    fn tell(&self, login: LoginDetails, outcome: Result<(), RefusalReason>, now: Instant) {
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
