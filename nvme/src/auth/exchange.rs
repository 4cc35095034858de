//! One queue's exchange of proofs, as a value: messages go in, messages and [`Work`] come out. Randomness, keys and
//! time come from its caller; what takes long to compute is computed elsewhere.
//!
//! A host begins ([`Exchange::hear`]), fetches our challenge ([`Exchange::tell`]), replies, and fetches how that ended;
//! if it wants a proof of ours, it says last what it thinks of it. It may begin again at any time, a few times.

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

/// An exchange that takes longer is forgotten: whoever answers so late did not compute.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Exchanges that a queue may begin until one of them proves something. Each has us compute, and the host nothing.
pub const BEGINNINGS_MAX: u32 = 4;
/// Random bytes of one exchange: sequence number, challenge, private value.
pub const RANDOM: usize = 4 + DIGEST_MAX + group::RANDOM;

/// What we agree to, what we like most first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { hashes: Hash::ALL.into(), groups: Group::ALL.into() }
    }
}

/// Two sides, and what is known of them.
#[derive(Debug)]
pub struct Party {
    /// NQN of the host.
    pub host: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// Who knows one of these keys is who he says he is.
    pub users: Vec<(Arc<str>, Key)>,
    /// What the subsystem proves its own name with.
    pub own: Option<Key>,
    /// What we agree to.
    pub terms: Terms,
}

/// What was agreed.
struct Agreed {
    party: Arc<Party>,
    transaction: u16,
    channel: u8,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    private: Option<Private>,
    public: Vec<u8>,
}

/// How an exchange ends once its last message was fetched.
#[derive(Clone, Debug)]
pub enum End {
    /// The host has proved its name.
    Proven(Proven),
    /// It has, and looks at our own proof.
    Shown(Proven),
    /// It has not.
    Over,
}

/// How a host has proved its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proven {
    /// Whose key it knows.
    pub user: Arc<str>,
    /// Hash function and group.
    pub by: (Hash, Group),
}

enum State {
    /// Nothing is under way.
    Idle,
    /// Something is computed.
    Busy,
    /// Our challenge waits to be fetched, or to be answered.
    Asked(Box<Agreed>),
    /// How it ended waits to be fetched, from then on.
    Verdict(Vec<u8>, Instant, End),
    /// The host looks at our proof.
    Shown(u16, Proven),
    /// It has failed: this queue ends.
    Over,
}

/// What becomes of a message.
#[derive(Debug)]
pub enum Heard {
    /// Nothing has to be done.
    Nothing,
    /// This has to be computed: [`Exchange::computed`] takes what comes of it.
    Work(Work),
    /// The host has proved its name.
    Proven(Proven),
    /// The host does not believe us, or has given up: the queue ends.
    Doubted(Why),
    /// It was wrong, and the host will be told so.
    Failed(Why),
}

/// Something that takes long to compute.
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

/// What came of [`Work`].
pub struct Computed {
    agreed: Box<Agreed>,
    found: Option<Result<Found, Why>>,
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Computed({})", self.agreed.transaction)
    }
}

/// A right reply: whose, and our own proof if it is asked for.
struct Found {
    user: Option<Arc<str>>,
    response: Option<Zeroizing<Vec<u8>>>,
}

impl Computed {
    /// The user whose key the host knows, and what was agreed; `None` where nothing was checked.
    ///
    /// # Errors
    /// Why the host has proved nothing.
    #[must_use]
    pub fn found(&self) -> Option<Result<Proven, Why>> {
        let by = (self.agreed.hash, self.agreed.group);
        let proven = |found: &Found| Ok(Proven { user: found.user.clone().ok_or(Why::FAILED)?, by });
        self.found.as_ref().map(|found| found.as_ref().map_err(|why| *why).and_then(proven))
    }
}

impl Work {
    /// Whether it takes no longer than a command does.
    #[must_use]
    pub fn is_light(&self) -> bool {
        match &self.0 {
            Task::Ask(agreed) => agreed.private.is_none(),
            Task::Check(check) => check.agreed.private.is_none(),
        }
    }

    /// Whether it looks at what shall prove the host's name.
    #[must_use]
    pub fn checks(&self) -> bool {
        matches!(self.0, Task::Check(_))
    }

    /// Computes it.
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

/// Which side computes a response, in the words that go into it.
const HOST: &[u8] = b"HostHost";
const CONTROLLER: &[u8] = b"Controller";

impl Check {
    fn run(&self) -> Result<Found, Why> {
        let Agreed { party, private, challenge, sequence, .. } = &*self.agreed;
        let shared = match private {
            None if self.value.is_empty() => None,
            None => return Err(Why::PAYLOAD),
            Some(private) => Some(private.shared(&self.value).ok_or(Why::PAYLOAD)?),
        };
        let shared = shared.as_ref().map(|shared| self.agreed.hash.digest(&[shared]));
        let sides = [party.host.as_bytes(), party.subsystem.as_bytes()];
        // All keys are looked at, whoever is meant.
        let mut user = None;
        for (name, key) in &party.users {
            let expected = self.response(&key.bound_to(&party.host), &shared, challenge, *sequence, HOST, sides);
            if bool::from(expected.ct_eq(&self.response)) {
                user = Some(name.clone());
            }
        }
        let Some((sequence, challenge)) = self.counter.as_ref().filter(|_| user.is_some()) else {
            return Ok(Found { user, response: None });
        };
        // Nobody is told what he did not prove to be ours.
        let own = party.own.as_ref().ok_or(Why::PROTOCOL)?.bound_to(&party.subsystem);
        let sides = [party.subsystem.as_bytes(), party.host.as_bytes()];
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
        let Agreed { hash, transaction, channel, .. } = *self.agreed;
        let augmented = shared.as_ref().map(|shared| hash.hmac(shared, &[challenge]));
        let challenge = augmented.as_ref().map_or(challenge, |augmented| augmented);
        let (sequence, transaction) = (sequence.to_le_bytes(), transaction.to_le_bytes());
        hash.hmac(key, &[challenge, &sequence, &transaction, &[channel], side, first, &[0], second])
    }
}

/// The exchange of a queue.
pub struct Exchange {
    state: State,
    began: Instant,
    /// Exchanges that began since one of them proved something.
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
    /// Takes a message of the host. `welcome` says what is known of it when it begins, with [`RANDOM`] random bytes.
    ///
    /// # Errors
    /// How the command ends that brought it at a time when none can come.
    pub fn hear(
        &mut self,
        bytes: &[u8],
        now: Instant,
        welcome: impl FnOnce() -> Result<(Arc<Party>, Zeroizing<Vec<u8>>), Why>,
    ) -> Result<Heard, Status> {
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
                welcome().and_then(|(party, random)| agree(head, offers, party, &random)).map(|agreed| {
                    self.state = State::Busy;
                    Heard::Work(Work(Task::Ask(agreed)))
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
                    Ok(Heard::Work(Work(Task::Check(Box::new(Check { agreed, response, counter, value })))))
                }
            }
            (Ok(Message::Success(head)), State::Shown(of, proven)) if head.transaction.get() == of => {
                self.beginnings = 0;
                Ok(Heard::Proven(proven))
            }
            (Ok(Message::Failure(failure)), _) => {
                self.state = State::Over;
                Ok(Heard::Doubted(Why(failure.why)))
            }
            (Ok(_), _) => Err(Why::MESSAGE),
            (Err(why), _) => Err(why),
        };
        Ok(heard.unwrap_or_else(|why| {
            self.fail(transaction, why, now);
            Heard::Failed(why)
        }))
    }

    fn fail(&mut self, transaction: u16, why: Why, at: Instant) {
        self.state = State::Verdict(wire::failure(transaction, why), at, End::Over);
    }

    /// Takes what was computed. What it decides may be fetched from `at` on.
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
            Ok(proven) => {
                let response = found.and_then(Result::ok).and_then(|found| found.response);
                let message = wire::success(agreed.transaction, agreed.hash, response.as_ref().map(|bytes| &bytes[..]));
                let end = if response.is_some() { End::Shown(proven) } else { End::Proven(proven) };
                self.state = State::Verdict(message, at, end);
            }
            Err(why) => self.fail(agreed.transaction, why, at),
        }
    }

    /// What was to be computed is not: the host may begin again.
    pub fn dropped(&mut self) {
        if matches!(self.state, State::Busy) {
            self.state = State::Idle;
        }
    }

    /// When what waits to be fetched may be; `None`: at once.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Verdict(_, at, _) => Some(*at),
            _ => None,
        }
    }

    /// The message that waits for the host, which has room for `room` bytes, and how the exchange ends with it.
    ///
    /// # Errors
    /// How the command ends that cannot have one.
    pub fn tell(&mut self, room: usize) -> Result<(Vec<u8>, Option<End>), Status> {
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
            End::Proven(_) => {
                self.beginnings = 0;
                State::Idle
            }
            End::Shown(proven) => State::Shown(wire::transaction(&message), proven.clone()),
            End::Over => State::Over,
        };
        Ok((message, Some(end)))
    }
}

/// What both sides can do, of the first offer of our protocol.
fn agree(head: &Negotiate, offers: &[Protocol], party: Arc<Party>, random: &[u8]) -> Result<Box<Agreed>, Why> {
    if head.channel != 0 {
        return Err(Why::CONCATENATION);
    }
    let offer = offers.iter().find(|offer| offer.id == DH_HMAC_CHAP).ok_or(Why::PROTOCOL)?;
    let (hashes, groups) = offer.offers().ok_or(Why::PAYLOAD)?;
    let hash = party.terms.hashes.iter().copied().find(|hash| hashes.contains(&hash.0)).ok_or(Why::HASH)?;
    let group = party.terms.groups.iter().copied().find(|group| groups.contains(&group.0)).ok_or(Why::GROUP)?;
    let (sequence, rest) = random.split_first_chunk::<4>().ok_or(Why::FAILED)?;
    let (challenge, rest) = rest.split_at_checked(DIGEST_MAX).ok_or(Why::FAILED)?;
    let private = Private::from_random(group, rest.first_chunk().ok_or(Why::FAILED)?);
    Ok(Box::new(Agreed {
        party,
        transaction: head.head.transaction.get(),
        channel: head.channel,
        hash,
        group,
        // Zero stands for none.
        sequence: u32::from_le_bytes(*sequence).max(1),
        challenge: challenge[..hash.len()].to_vec(),
        private,
        public: Vec::new(),
    }))
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
