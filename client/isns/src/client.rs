//! The conversation with a server, as a value: bytes and time in, actions out. It registers what it is given, tells the
//! server what changes, and asks from time to time, so that the server knows that we live and we know that it has not
//! forgotten. A server that is away, refuses or talks nonsense is tried again, later and later.

use crate::registration::{Registration, Request};
use crate::wire::{
    Attributes, FIRST, Function, HEADER_LEN, Header, LAST, PAYLOAD_MAX, SIGNED, Status, Tag, VERSION, request,
};
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use zerocopy::FromBytes;

/// How long a server may take for an answer: a database on a slow disk, and no more.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The first wait after a failure; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest: a server that comes back is noticed within a minute.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How many times within the registration period the server hears of us: two messages may get lost.
const RENEWALS: u32 = 3;
/// What is between two renewals at least, whatever period a server asks for.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
/// And at most: a server that has lost what it knew without breaking the connection is noticed.
const RENEWAL_MAX: Duration = Duration::from_secs(600);

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Connect to the server, and say [`Client::connected`] or [`Client::lost`].
    Connect,
    /// Send these bytes.
    Send(Vec<u8>),
    /// Close the connection.
    Close,
    /// Tell the operator.
    Tell(Event),
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// So many targets are registered, at so many portals.
    Registered {
        /// Targets.
        targets: usize,
        /// Portals.
        portals: usize,
    },
    /// Nothing is registered any more, as it was wanted.
    Deregistered,
    /// The server did not know any more what was registered; it is told anew.
    Forgotten,
    /// It does not work: why, and what is done about it.
    Failed(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: &usize| if *count == 1 { "" } else { "s" };
        match self {
            Self::Registered { targets, portals } => {
                write!(f, "registered {targets} target{} at {portals} portal{}", many(targets), many(portals))
            }
            Self::Deregistered => f.write_str("everything is deregistered"),
            Self::Forgotten => f.write_str("the server has forgotten what was registered; it is told anew"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// There is none; the next one may be made then.
    Closed(Instant),
    Connecting,
    /// It ends at this address of ours.
    Open(IpAddr),
}

/// What the server has of us.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Known {
    /// Nobody knows: what an earlier life of ours has left, or a request that was not answered.
    Unknown,
    Nothing,
    This(Registration),
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Call {
    function: Function,
    transaction: u16,
    until: Instant,
    /// What the first PDU of its answer said, while others follow.
    answer: Option<Answer>,
}

/// What an answer says, as far as it matters.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    status: Status,
    /// Names of machines.
    entities: Vec<String>,
    period: Option<u32>,
}

/// The client.
#[derive(Debug)]
pub struct Client {
    wanted: Option<Registration>,
    known: Known,
    line: Line,
    call: Option<Call>,
    /// Requests that come after the one that is not answered.
    queue: VecDeque<Request>,
    /// What the server has when all of them are done.
    goal: Option<Known>,
    /// When the server hears of us again.
    renewal: Instant,
    /// What it said it keeps us for, in seconds.
    period: Option<u32>,
    /// Failures in a row.
    failures: u32,
    /// Answers in a row that did not show what had been registered.
    misses: u32,
    /// Another server may be at the other end, or one that has restarted: it is asked what it knows before it is told
    /// what differs from that.
    is_unsure: bool,
    /// Questions so far: each is about another target, in turn.
    questions: usize,
    /// Why it does not work, if it does not.
    trouble: Option<String>,
    /// What the operator was told last to be registered.
    told: Option<Registration>,
    transaction: u16,
    input: Vec<u8>,
    actions: VecDeque<Action>,
}

impl Client {
    /// A client of a server of which nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self {
            wanted: None,
            known: Known::Unknown,
            line: Line::Closed(Instant::default()),
            call: None,
            queue: VecDeque::new(),
            goal: None,
            renewal: Instant::default(),
            period: None,
            failures: 0,
            misses: 0,
            is_unsure: false,
            questions: 0,
            trouble: None,
            told: None,
            transaction: 0,
            input: Vec::new(),
            actions: VecDeque::new(),
        }
    }

    /// From now on this shall be registered; `None`: nothing.
    pub fn want(&mut self, wanted: Option<Registration>, now: Instant) {
        self.wanted = wanted;
        self.go_on(now);
    }

    /// The connection is there; it ends at this address of ours.
    pub fn connected(&mut self, local: IpAddr, now: Instant) {
        self.line = Line::Open(local);
        self.is_unsure = matches!(self.known, Known::This(_));
        self.go_on(now);
    }

    /// There is no connection, or not any more. `why` in words, which say where.
    pub fn lost(&mut self, why: &str, now: Instant) {
        let was_idle = matches!(self.line, Line::Open(_)) && self.call.is_none();
        self.hang_up(now);
        // Servers close what is idle.
        if !was_idle {
            self.fail(why, now);
        }
        self.go_on(now);
    }

    /// Bytes have come.
    pub fn received(&mut self, bytes: &[u8], now: Instant) {
        if matches!(self.line, Line::Open(_)) {
            self.input.extend_from_slice(bytes);
        }
        while matches!(self.line, Line::Open(_)) {
            match self.take() {
                Ok(Some(answer)) => self.answered(&answer, now),
                Ok(None) => return,
                Err(why) => self.broken(why, now),
            }
        }
        self.go_on(now);
    }

    /// It has become later.
    pub fn tick(&mut self, now: Instant) {
        if self.call.as_ref().is_some_and(|call| call.until <= now) {
            self.broken("it does not answer", now);
        }
        self.go_on(now);
    }

    /// When [`Client::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match (&self.line, &self.call) {
            (Line::Open(_), Some(call)) => Some(call.until),
            (Line::Open(_), None) => matches!(self.known, Known::This(_)).then_some(self.renewal),
            (Line::Closed(at), _) => self.wanted.is_some().then_some(*at),
            (Line::Connecting, _) => None,
        }
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether nothing is wanted, and nothing is left to be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.wanted.is_none() && matches!(self.line, Line::Closed(_)) && self.actions.is_empty()
    }

    /// What is registered, as the server has it.
    #[must_use]
    pub fn registered(&self) -> Option<&Registration> {
        match &self.known {
            Known::This(registration) => Some(registration),
            Known::Unknown | Known::Nothing => None,
        }
    }

    /// Bytes that have come and are no whole message yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.input.len()
    }

    /// Why it does not work, if it does not.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Does what there is to do.
    fn go_on(&mut self, now: Instant) {
        match self.line {
            Line::Connecting => {}
            Line::Closed(at) if self.wanted.is_some() && at <= now => {
                self.line = Line::Connecting;
                self.actions.push_back(Action::Connect);
            }
            Line::Closed(_) => {
                if self.wanted.is_none() {
                    // Who is not there cannot be told: it forgets by itself.
                    (self.known, self.trouble, self.failures) = (Known::Unknown, None, 0);
                }
            }
            Line::Open(local) => {
                while self.call.is_none() && self.line == Line::Open(local) {
                    if let Some(request) = self.queue.pop_front() {
                        self.send(&request, now);
                    } else if let Some(goal) = self.goal.take() {
                        self.reached(goal, now);
                    } else if !self.plan(local, now) {
                        return;
                    }
                }
            }
        }
    }

    /// What has to be asked next; whether there is anything.
    fn plan(&mut self, local: IpAddr, now: Instant) -> bool {
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.seen_from(local));
        let (requests, goal) = match (&self.known, wanted) {
            (Known::This(known), Some(wanted)) if *known == wanted || self.is_unsure => {
                if self.renewal > now && !self.is_unsure {
                    return false;
                }
                let question = known.question(self.questions);
                (self.is_unsure, self.questions) = (false, self.questions.wrapping_add(1));
                self.renewal = self.next_renewal(&wanted, now);
                (vec![question], None)
            }
            (Known::This(known), Some(wanted)) if known.entity == wanted.entity => {
                (wanted.changes(known), Some(Known::This(wanted)))
            }
            (Known::This(known), _) => (vec![known.nothing()], Some(Known::Nothing)),
            (Known::Unknown, Some(wanted)) => (wanted.all(true), Some(Known::This(wanted))),
            (Known::Nothing, Some(wanted)) => (wanted.all(false), Some(Known::This(wanted))),
            (Known::Unknown | Known::Nothing, None) => {
                if self.wanted.is_none() {
                    self.hang_up(now);
                    self.actions.push_back(Action::Close);
                    self.go_on(now);
                } else {
                    self.trouble = Some("no target is reached at an address of the family that it is called by".into());
                }
                return false;
            }
        };
        (self.queue, self.goal) = (requests.into(), goal);
        true
    }

    fn next_renewal(&self, wanted: &Registration, now: Instant) -> Instant {
        let period = self.period.filter(|period| *period > 0).map_or(wanted.period, |told| told.min(wanted.period));
        now + (Duration::from_secs(period.into()) / RENEWALS).clamp(RENEWAL_MIN, RENEWAL_MAX)
    }

    fn send(&mut self, request_: &Request, now: Instant) {
        self.transaction = self.transaction.wrapping_add(1);
        let Request { function, flags, payload } = request_;
        self.actions.push_back(Action::Send(request(*function, *flags, self.transaction, payload)));
        let (transaction, until) = (self.transaction, now + ANSWER_TIME);
        self.call = Some(Call { function: *function, transaction, until, answer: None });
    }

    /// All requests are done.
    fn reached(&mut self, goal: Known, now: Instant) {
        match &goal {
            Known::This(registration) => {
                self.renewal = self.next_renewal(registration, now);
                self.works(&registration.clone());
            }
            Known::Nothing | Known::Unknown => {
                (self.failures, self.trouble, self.told) = (0, None, None);
                self.actions.push_back(Action::Tell(Event::Deregistered));
            }
        }
        self.known = goal;
    }

    /// The server has this: the operator is told if that is news.
    fn works(&mut self, registration: &Registration) {
        let has_failed = self.trouble.take().is_some();
        self.failures = 0;
        if has_failed || self.told.as_ref() != Some(registration) {
            let (targets, portals) = (registration.nodes.len(), registration.portals().len());
            self.actions.push_back(Action::Tell(Event::Registered { targets, portals }));
            self.told = Some(registration.clone());
        }
    }

    /// A request is answered.
    fn answered(&mut self, answer: &Answer, now: Instant) {
        let Some(Call { function, .. }) = self.call.take() else { return };
        match function {
            Function::DEV_ATTR_QRY => self.was_told(answer),
            // What is not there any more is gone (5.7.5.4). Where only a part was to go, others may be gone as well.
            Function::DEV_DEREG if answer.status == Status::NO_SUCH_ENTRY => {
                if matches!(self.goal, Some(Known::This(_))) {
                    (self.goal, self.known) = (None, Known::Unknown);
                    self.queue.clear();
                }
            }
            _ if answer.status != Status::SUCCESS => {
                let what = if function == Function::DEV_DEREG { "a deregistration" } else { "the registration" };
                return self.broken(&format!("it refuses {what}: {:?}", answer.status), now);
            }
            Function::DEV_ATTR_REG => self.period = answer.period.or(self.period),
            _ => {}
        }
        self.go_on(now);
    }

    /// The server has said to which machine a target of ours belongs.
    fn was_told(&mut self, answer: &Answer) {
        let Some(known) = self.registered().cloned() else { return };
        let is_ours = |entity: &String| entity.eq_ignore_ascii_case(&known.entity);
        if answer.status == Status::SUCCESS && answer.entities.iter().any(is_ours) {
            self.misses = 0;
            return self.works(&known);
        }
        // Where discovery domains hide everything nobody who asks is told anything: then it is registered again and
        // again, and that is no news.
        self.misses = self.misses.saturating_add(1);
        if self.misses == 1 {
            self.told = None;
            self.actions.push_back(Action::Tell(Event::Forgotten));
        }
        self.known = Known::Nothing;
    }

    /// The server does not do as it should: it is left, and tried again.
    fn broken(&mut self, why: &str, now: Instant) {
        self.hang_up(now);
        self.actions.push_back(Action::Close);
        self.fail(why, now);
    }

    /// The connection is over, and with it what was under way.
    fn hang_up(&mut self, now: Instant) {
        // What was only asked has changed nothing.
        if self.goal.take().is_some() {
            self.known = Known::Unknown;
        }
        self.call = None;
        self.queue.clear();
        self.input = Vec::new();
        self.line = Line::Closed(now + PAUSE_MIN);
    }

    fn fail(&mut self, why: &str, now: Instant) {
        self.line = Line::Closed(now + PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX));
        self.failures = self.failures.saturating_add(1);
        let why = match &self.wanted {
            Some(_) => format!("{why}; it is tried again from time to time"),
            None => format!("{why}; it will forget by itself what is registered"),
        };
        // The same once more is no news.
        if self.trouble.as_ref() != Some(&why) {
            self.actions.push_back(Action::Tell(Event::Failed(why.clone())));
            self.trouble = Some(why);
        }
    }

    /// The next answer to what was asked, if all of it has come.
    fn take(&mut self) -> Result<Option<Answer>, &'static str> {
        loop {
            let Ok((header, rest)) = Header::read_from_prefix(&self.input) else { return Ok(None) };
            let length = usize::from(header.length.get());
            if header.version.get() != VERSION || length > PAYLOAD_MAX || !length.is_multiple_of(4) {
                return Err("what it says is no iSNS");
            }
            let Some(payload) = rest.get(..length) else { return Ok(None) };
            let concluded = match &mut self.call {
                Some(call) if is_answer(call, &header) => {
                    if header.has(SIGNED) {
                        return Err("it wants signed messages, which Lunar does not send");
                    }
                    call.take(&header, payload)?
                }
                // What nobody asked for, or asks any more.
                _ => None,
            };
            self.input.drain(..HEADER_LEN + length);
            if concluded.is_some() {
                return Ok(concluded);
            }
        }
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

fn is_answer(call: &Call, header: &Header) -> bool {
    header.function() == call.function.response() && header.transaction.get() == call.transaction
}

impl Call {
    /// Takes a PDU of the answer; all of it, if that was the last one. What matters stands at the beginning: the first
    /// PDU has it, and the others are counted only.
    fn take(&mut self, header: &Header, payload: &[u8]) -> Result<Option<Answer>, &'static str> {
        let is_last = header.has(LAST);
        if header.has(FIRST) {
            self.answer = Some(Answer::parse(payload, is_last).ok_or("its answer is malformed")?);
        } else if self.answer.is_none() {
            return Err("its answer has no beginning");
        }
        Ok(if is_last { self.answer.take() } else { None })
    }
}

impl Answer {
    /// What a payload says; one that goes on in another PDU may end anywhere.
    fn parse(payload: &[u8], is_whole: bool) -> Option<Self> {
        let (status, rest) = payload.split_first_chunk()?;
        let mut answer = Self { status: Status(u32::from_be_bytes(*status)), entities: Vec::new(), period: None };
        for attribute in Attributes::of(rest) {
            let Ok(attribute) = attribute else { return (!is_whole).then_some(answer) };
            match attribute.tag {
                Tag::ENTITY_IDENTIFIER => {
                    // There is one, and it may stand twice: as a key and as what was asked for.
                    let text = attribute.text().filter(|_| answer.entities.len() < 2);
                    answer.entities.extend(text.map(str::to_owned));
                }
                Tag::REGISTRATION_PERIOD => answer.period = attribute.number().or(answer.period),
                _ => {}
            }
        }
        Some(answer)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
