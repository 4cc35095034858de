//! The DH-HMAC-CHAP transaction of one queue, as a value: messages go in, messages and [`Work`] come out. The caller
//! supplies randomness, keys and time, and runs the long computations.
//!
//! The host sends AUTH_Negotiate ([`Exchange::auth_send`]), receives DH-HMAC-CHAP_Challenge
//! ([`Exchange::auth_receive`]), sends the Reply, and receives Success1 or Failure1. If it authenticates the subsystem,
//! too, it ends with Success2 or Failure2. It may begin again at any time, a few times.

use super::group::{self, Group, Private};
use super::hash::{DIGEST_MAX, Hash};
use super::key::Key;
use super::wire::{self, DH_HMAC_CHAP, Message, Negotiate, Protocol, Why};
use crate::command::Status;
use lunar_core::time::Instant;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The time limit of an exchange. Computing a reply takes much less.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Exchanges that a queue may begin without a successful one: each costs the controller a computation and the host
/// none.
pub const BEGINNINGS_MAX: u32 = 4;
/// Random bytes of one exchange: sequence number, challenge, private value.
pub const RANDOM: usize = 4 + DIGEST_MAX + group::RANDOM;

/// The accepted hash functions and groups, in order of preference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups.
    pub groups: Vec<Group>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { hashes: Hash::ALL.into(), groups: Group::ALL.into() }
    }
}

/// The host, the subsystem, and the keys of both.
#[derive(Debug)]
pub struct Participants {
    /// NQN of the host.
    pub host: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// The keys of the host: a response that matches one of them authenticates it.
    pub users: Vec<(Arc<str>, Key)>,
    /// The key that authenticates the subsystem.
    pub own: Option<Key>,
    /// The accepted hash functions and groups.
    pub terms: Terms,
}

/// The negotiated parameters.
struct Agreed {
    participants: Arc<Participants>,
    transaction: u16,
    concatenation: u8,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    private: Option<Private>,
    public: Vec<u8>,
}

/// The end of an exchange, after its last message was received.
#[derive(Clone, Debug)]
pub enum End {
    /// The host is authenticated.
    Authenticated(Authenticated),
    /// The host is authenticated, and checks the response of the subsystem.
    Shown(Authenticated),
    /// The authentication failed.
    Over,
}

/// The key and the algorithms that authenticated a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authenticated {
    /// The account of the key.
    pub user: Arc<str>,
    /// Hash function and group.
    pub by: (Hash, Group),
}

enum State {
    /// No exchange is in progress.
    Idle,
    /// A computation is in progress.
    Busy,
    /// The challenge waits for Authentication Receive, or for the reply of the host.
    Asked(Box<Agreed>),
    /// The outcome waits for Authentication Receive, from this time on.
    Verdict(Vec<u8>, Instant, End),
    /// The host checks the response of the subsystem.
    Shown(u16, Authenticated),
    /// The authentication failed: this queue ends.
    Over,
}

/// The outcome of a message of the host.
#[derive(Debug)]
pub enum MessageOutcome {
    /// Nothing is to be done.
    Nothing,
    /// A computation is to be run: [`Exchange::computed`] takes its result.
    Work(Work),
    /// The host is authenticated.
    Authenticated(Authenticated),
    /// The host rejected the response of the subsystem, or gave up: the queue ends.
    Doubted(Why),
    /// The message was wrong: the next Authentication Receive returns the failure.
    Failed(Why),
}

/// A computation that may take long.
pub struct Work(Task);

enum Task {
    Ask(Box<Agreed>),
    Check(Box<Check>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.checks() { "Check" } else { "Ask" })
    }
}

/// A reply that is to be checked.
struct Check {
    agreed: Box<Agreed>,
    response: Vec<u8>,
    counter: Option<(u32, Vec<u8>)>,
    value: Vec<u8>,
}

/// The result of [`Work`].
pub struct Computed {
    agreed: Box<Agreed>,
    found: Option<Result<Found, Why>>,
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Computed({})", self.agreed.transaction)
    }
}

/// A checked reply: its user, and the response of the subsystem if the host asked for it.
struct Found {
    user: Option<Arc<str>>,
    response: Option<Zeroizing<Vec<u8>>>,
}

impl Computed {
    /// The user whose key the host used, and the algorithms; `None` if no reply was checked.
    ///
    /// # Errors
    /// The reason why the host is not authenticated.
    #[must_use]
    pub fn found(&self) -> Option<Result<Authenticated, Why>> {
        let by = (self.agreed.hash, self.agreed.group);
        let authenticated = |found: &Found| Ok(Authenticated { user: found.user.clone().ok_or(Why::FAILED)?, by });
        self.found.as_ref().map(|found| found.as_ref().map_err(|why| *why).and_then(authenticated))
    }
}

impl Work {
    /// Whether it takes no longer than a command.
    #[must_use]
    pub fn is_light(&self) -> bool {
        match &self.0 {
            Task::Ask(agreed) => agreed.private.is_none(),
            Task::Check(check) => check.agreed.private.is_none(),
        }
    }

    /// Whether it checks the reply of the host.
    #[must_use]
    pub fn checks(&self) -> bool {
        matches!(self.0, Task::Check(_))
    }

    /// Runs the computation.
    #[must_use]
    pub fn run(self) -> Computed {
        match self.0 {
            Task::Ask(mut agreed) => {
                agreed.public = agreed.private.as_ref().and_then(Private::public).unwrap_or_default();
                Computed { agreed, found: None }
            }
            Task::Check(check) => {
                let found = check.run();
                Computed { agreed: check.agreed, found: Some(found) }
            }
        }
    }
}

/// The text in a response that names the side which computes it.
const HOST: &[u8] = b"HostHost";
const CONTROLLER: &[u8] = b"Controller";

impl Check {
    fn run(&self) -> Result<Found, Why> {
        let Agreed { participants, private, challenge, sequence, .. } = &*self.agreed;
        let shared = match private {
            None if self.value.is_empty() => None,
            None => return Err(Why::PAYLOAD),
            Some(private) => Some(private.shared(&self.value).ok_or(Why::PAYLOAD)?),
        };
        let shared = shared.as_ref().map(|shared| self.agreed.hash.digest(&[shared]));
        let sides = [participants.host.as_bytes(), participants.subsystem.as_bytes()];
        // All keys are compared, so that the time does not depend on the key that matches.
        let mut user = None;
        for (name, key) in &participants.users {
            let expected = self.response(&key.bound_to(&participants.host), &shared, challenge, *sequence, HOST, sides);
            if bool::from(expected.ct_eq(&self.response)) {
                user = Some(name.clone());
            }
        }
        let Some((sequence, challenge)) = self.counter.as_ref().filter(|_| user.is_some()) else {
            return Ok(Found { user, response: None });
        };
        // The subsystem responds only to a host whose own response was right.
        let own = participants.own.as_ref().ok_or(Why::PROTOCOL)?.bound_to(&participants.subsystem);
        let sides = [participants.subsystem.as_bytes(), participants.host.as_bytes()];
        let response = self.response(&own, &shared, challenge, *sequence, CONTROLLER, sides);
        Ok(Found { user, response: Some(response) })
    }

    fn response(
        &self,
        key: &[u8],
        shared: &Option<Zeroizing<Vec<u8>>>,
        challenge: &[u8],
        sequence: u32,
        side: &[u8],
        [first, second]: [&[u8]; 2],
    ) -> Zeroizing<Vec<u8>> {
        let Agreed { hash, transaction, concatenation, .. } = *self.agreed;
        let augmented = shared.as_ref().map(|shared| hash.hmac(shared, &[challenge]));
        let challenge = augmented.as_ref().map_or(challenge, |augmented| augmented);
        let (sequence, transaction) = (sequence.to_le_bytes(), transaction.to_le_bytes());
        hash.hmac(key, &[challenge, &sequence, &transaction, &[concatenation], side, first, &[0], second])
    }
}

/// The exchange of a queue.
pub struct Exchange {
    state: State,
    began: Instant,
    /// Exchanges that began since the last successful one.
    beginnings: u32,
}

impl Default for Exchange {
    fn default() -> Self {
        Self { state: State::Idle, began: Instant(0), beginnings: 0 }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Idle => "Idle",
            State::Busy => "Busy",
            State::Asked(_) => "Asked",
            State::Verdict(..) => "Verdict",
            State::Shown(..) => "Shown",
            State::Over => "Over",
        })
    }
}

impl Exchange {
    /// Takes a message of the host. `welcome` supplies the keys of the host when an exchange begins, and [`RANDOM`]
    /// random bytes.
    ///
    /// # Errors
    /// The status of the command if no message is expected now.
    pub fn auth_send(
        &mut self,
        bytes: &[u8],
        now: Instant,
        welcome: impl FnOnce() -> Result<(Arc<Participants>, Zeroizing<Vec<u8>>), Why>,
    ) -> Result<MessageOutcome, Status> {
        if now.since(self.began) > EXCHANGE_TIMEOUT && !matches!(self.state, State::Over) {
            self.state = State::Idle;
        }
        if matches!(self.state, State::Busy | State::Over) {
            return Err(Status::SEQUENCE_ERROR);
        }
        let transaction = wire::transaction(bytes);
        let heard = match (Message::parse(bytes), std::mem::replace(&mut self.state, State::Idle)) {
            (Ok(Message::Negotiate(..)), _) if self.beginnings >= BEGINNINGS_MAX => Err(Why::FAILED),
            (Ok(Message::Negotiate(head, offers)), _) => {
                (self.began, self.beginnings) = (now, self.beginnings + 1);
                welcome().and_then(|(participants, random)| agree(head, offers, participants, &random)).map(|agreed| {
                    self.state = State::Busy;
                    MessageOutcome::Work(Work(Task::Ask(agreed)))
                })
            }
            (Ok(Message::Reply { reply, response, challenge, value }), State::Asked(agreed)) => {
                if reply.head.transaction.get() != agreed.transaction {
                    Err(Why::MESSAGE)
                } else if response.len() != agreed.hash.len() {
                    Err(Why::PAYLOAD)
                } else {
                    self.state = State::Busy;
                    let counter = challenge.map(|bytes| (reply.sequence.get(), bytes.to_vec()));
                    let (response, value) = (response.to_vec(), value.to_vec());
                    Ok(MessageOutcome::Work(Work(Task::Check(Box::new(Check { agreed, response, counter, value })))))
                }
            }
            (Ok(Message::Success(head)), State::Shown(of, authenticated)) if head.transaction.get() == of => {
                self.beginnings = 0;
                Ok(MessageOutcome::Authenticated(authenticated))
            }
            (Ok(Message::Failure(failure)), _) => {
                self.state = State::Over;
                Ok(MessageOutcome::Doubted(Why(failure.why)))
            }
            (Ok(_), _) => Err(Why::MESSAGE),
            (Err(why), _) => Err(why),
        };
        Ok(heard.unwrap_or_else(|why| {
            self.fail(transaction, why, now);
            MessageOutcome::Failed(why)
        }))
    }

    fn fail(&mut self, transaction: u16, why: Why, at: Instant) {
        self.state = State::Verdict(wire::failure(transaction, why), at, End::Over);
    }

    /// Takes the result of a computation. The host receives the outcome from `at` on.
    pub fn computed(&mut self, computed: Computed, at: Instant) {
        let verdict = computed.found();
        let Computed { agreed, found } = computed;
        if !matches!(self.state, State::Busy) {
            return;
        }
        let Some(verdict) = verdict else {
            self.state = match agreed.private.is_some() && agreed.public.is_empty() {
                true => State::Verdict(wire::failure(agreed.transaction, Why::GROUP), at, End::Over),
                false => State::Asked(agreed),
            };
            return;
        };
        match verdict {
            Ok(authenticated) => {
                let response = found.and_then(Result::ok).and_then(|found| found.response);
                let message = wire::success(agreed.transaction, agreed.hash, response.as_ref().map(|bytes| &bytes[..]));
                let end =
                    if response.is_some() { End::Shown(authenticated) } else { End::Authenticated(authenticated) };
                self.state = State::Verdict(message, at, end);
            }
            Err(why) => self.fail(agreed.transaction, why, at),
        }
    }

    /// The computation was not run: the host may begin again.
    pub fn dropped(&mut self) {
        if matches!(self.state, State::Busy) {
            self.state = State::Idle;
        }
    }

    /// The time from which the waiting message may be received; `None`: at once.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Verdict(_, at, _) => Some(*at),
            _ => None,
        }
    }

    /// The message that waits for the host, whose buffer has `room` bytes, and the end of the exchange if it ends with
    /// this message.
    ///
    /// # Errors
    /// The status of the command if no message waits, or if the buffer is too small.
    pub fn auth_receive(&mut self, room: usize) -> Result<(Vec<u8>, Option<End>), Status> {
        let message = match &self.state {
            State::Asked(agreed) => {
                let by = (agreed.hash, agreed.group);
                wire::challenge(agreed.transaction, by, agreed.sequence, &agreed.challenge, &agreed.public)
            }
            State::Verdict(message, ..) => message.clone(),
            _ => return Err(Status::SEQUENCE_ERROR),
        };
        if message.len() > room {
            return Err(Status::INVALID_FIELD);
        }
        let State::Verdict(_, _, end) = &self.state else { return Ok((message, None)) };
        let end = end.clone();
        self.state = match &end {
            End::Authenticated(_) => {
                self.beginnings = 0;
                State::Idle
            }
            End::Shown(authenticated) => State::Shown(wire::transaction(&message), authenticated.clone()),
            End::Over => State::Over,
        };
        Ok((message, Some(end)))
    }
}

/// The parameters that both sides support, of the first DH-HMAC-CHAP descriptor.
fn agree(
    head: &Negotiate,
    offers: &[Protocol],
    participants: Arc<Participants>,
    random: &[u8],
) -> Result<Box<Agreed>, Why> {
    if head.concatenation != 0 {
        return Err(Why::CONCATENATION);
    }
    let offer = offers.iter().find(|offer| offer.id == DH_HMAC_CHAP).ok_or(Why::PROTOCOL)?;
    let (hashes, groups) = offer.offers().ok_or(Why::PAYLOAD)?;
    let hash = participants.terms.hashes.iter().copied().find(|hash| hashes.contains(&hash.0)).ok_or(Why::HASH)?;
    let group = participants.terms.groups.iter().copied().find(|group| groups.contains(&group.0)).ok_or(Why::GROUP)?;
    let (sequence, rest) = random.split_first_chunk::<4>().ok_or(Why::FAILED)?;
    let (challenge, rest) = rest.split_at_checked(DIGEST_MAX).ok_or(Why::FAILED)?;
    let private = Private::from_random(group, rest.first_chunk().ok_or(Why::FAILED)?);
    Ok(Box::new(Agreed {
        participants,
        transaction: head.head.transaction.get(),
        concatenation: head.concatenation,
        hash,
        group,
        // Sequence number 0 means that there is no challenge.
        sequence: u32::from_le_bytes(*sequence).max(1),
        challenge: challenge[..hash.len()].to_vec(),
        private,
        public: Vec::new(),
    }))
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
