//! The protocol state machine: bytes and time in, actions out. It registers what it is given, sends only what changes,
//! and queries from time to time: the query renews the registration, and its response shows whether the server still
//! has it. If the server is unreachable, refuses a request or violates the protocol, the client retries with growing
//! pauses.

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

/// The longest time for a response: enough for a database on a slow disk.
pub const RESPONSE_TIME: Duration = Duration::from_secs(10);
/// The pause after the first failure; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: a server that is reachable again is noticed within a minute.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Renewals within the registration period: two of them may get lost.
const RENEWALS: u32 = 3;
/// The shortest time between renewals, whatever period a server requests.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
/// The longest: a server that lost the registration while the connection stayed open is noticed within this time.
const RENEWAL_MAX: Duration = Duration::from_secs(600);

/// An action for the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Connect to the server, then call [`Client::connected`] or [`Client::lost`].
    Connect,
    /// Send these bytes.
    Send(Vec<u8>),
    /// Close the connection.
    Close,
    /// Report this event to the operator.
    Report(Event),
}

/// An event that concerns the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// So many targets are registered at so many portals.
    Registered {
        /// The number of targets.
        targets: usize,
        /// The number of portals.
        portals: usize,
    },
    /// The registration was removed, as requested.
    Deregistered,
    /// The server lost the registration; it is registered again.
    Forgotten,
    /// Registration failed: the reason, and what the client does about it.
    Failed(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: &usize| if *count == 1 { "" } else { "s" };
        match self {
            Self::Registered { targets, portals } => {
                write!(f, "registered {targets} target{} at {portals} portal{}", many(targets), many(portals))
            }
            Self::Deregistered => f.write_str("all targets are deregistered"),
            Self::Forgotten => f.write_str("the server lost the registration; the targets are registered again"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connection {
    /// There is no connection; the next attempt is due at this time.
    Closed(Instant),
    Connecting,
    /// Open, with this local address.
    Open(IpAddr),
}

/// The registration that the server has.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ServerState {
    /// Not known: an earlier process may have left one, or a request was not answered.
    Unknown,
    Empty,
    Registered(Registration),
}

/// The request that waits for its response.
#[derive(Debug)]
struct PendingRequest {
    function: Function,
    transaction: u16,
    until: Instant,
    /// The first PDU of the response, while further PDUs are expected.
    response: Option<Response>,
}

/// The parts of a response that the client uses.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Response {
    status: Status,
    /// Entity Identifiers (6.2.1).
    entities: Vec<String>,
    period: Option<u32>,
}

/// The client of one server.
#[derive(Debug)]
pub struct Client {
    desired: Option<Registration>,
    server: ServerState,
    connection: Connection,
    pending: Option<PendingRequest>,
    /// Requests to send after the current one is answered.
    queue: VecDeque<Request>,
    /// The registration that the server has when all queued requests have succeeded.
    next_state: Option<ServerState>,
    /// The time of the next renewal.
    renewal: Instant,
    /// The registration period that the server returned, in seconds.
    period: Option<u32>,
    /// Consecutive failures.
    failures: u32,
    /// Consecutive query responses that did not contain the registration.
    misses: u32,
    /// Set after a reconnect: the server may have restarted, or may be another one, so the registration is queried
    /// before changes are sent.
    must_verify: bool,
    /// Queries sent so far: each query names another target, in turn.
    queries: usize,
    /// The current failure, if any.
    trouble: Option<String>,
    /// The registration that was last reported to the operator.
    reported: Option<Registration>,
    transaction: u16,
    input: Vec<u8>,
    actions: VecDeque<Action>,
}

impl Client {
    /// Creates a client that knows nothing of its server.
    #[must_use]
    pub fn new() -> Self {
        Self {
            desired: None,
            server: ServerState::Unknown,
            connection: Connection::Closed(Instant::default()),
            pending: None,
            queue: VecDeque::new(),
            next_state: None,
            renewal: Instant::default(),
            period: None,
            failures: 0,
            misses: 0,
            must_verify: false,
            queries: 0,
            trouble: None,
            reported: None,
            transaction: 0,
            input: Vec::new(),
            actions: VecDeque::new(),
        }
    }

    /// Sets the registration that the server shall have; `None` removes it.
    pub fn set_desired(&mut self, desired: Option<Registration>, now: Instant) {
        self.desired = desired;
        self.advance(now);
    }

    /// The connection is established, with this local address.
    pub fn connected(&mut self, local: IpAddr, now: Instant) {
        self.connection = Connection::Open(local);
        self.must_verify = matches!(self.server, ServerState::Registered(_));
        self.advance(now);
    }

    /// The connection was lost or could not be established. `why` is a message that names the server.
    pub fn lost(&mut self, why: &str, now: Instant) {
        let was_idle = matches!(self.connection, Connection::Open(_)) && self.pending.is_none();
        self.disconnect(now);
        // A server may close an idle connection: that is no failure.
        if !was_idle {
            self.fail(why, now);
        }
        self.advance(now);
    }

    /// Takes received bytes.
    pub fn received(&mut self, bytes: &[u8], now: Instant) {
        if matches!(self.connection, Connection::Open(_)) {
            self.input.extend_from_slice(bytes);
        }
        while matches!(self.connection, Connection::Open(_)) {
            match self.take() {
                Ok(Some(response)) => self.handle_response(&response, now),
                Ok(None) => return,
                Err(why) => self.close_after_error(why, now),
            }
        }
        self.advance(now);
    }

    /// Handles timeouts and renewals that are due.
    pub fn tick(&mut self, now: Instant) {
        if self.pending.as_ref().is_some_and(|pending| pending.until <= now) {
            self.close_after_error("the server does not answer", now);
        }
        self.advance(now);
    }

    /// The time at which [`Client::tick`] must be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match (&self.connection, &self.pending) {
            (Connection::Open(_), Some(pending)) => Some(pending.until),
            (Connection::Open(_), None) => matches!(self.server, ServerState::Registered(_)).then_some(self.renewal),
            (Connection::Closed(at), _) => self.desired.is_some().then_some(*at),
            (Connection::Connecting, _) => None,
        }
    }

    /// The next action to carry out.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether the registration is removed and no action is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.desired.is_none() && matches!(self.connection, Connection::Closed(_)) && self.actions.is_empty()
    }

    /// The registration that the server confirmed.
    #[must_use]
    pub fn registered(&self) -> Option<&Registration> {
        match &self.server {
            ServerState::Registered(registration) => Some(registration),
            ServerState::Unknown | ServerState::Empty => None,
        }
    }

    /// The number of buffered bytes of an incomplete message.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.input.len()
    }

    /// The current failure, if any.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Starts whatever can be started in the current state.
    fn advance(&mut self, now: Instant) {
        match self.connection {
            Connection::Connecting => {}
            Connection::Closed(at) if self.desired.is_some() && at <= now => {
                self.connection = Connection::Connecting;
                self.actions.push_back(Action::Connect);
            }
            Connection::Closed(_) => {
                if self.desired.is_none() {
                    // Without a connection nothing can be deregistered: the server's registration period removes it.
                    (self.server, self.trouble, self.failures) = (ServerState::Unknown, None, 0);
                }
            }
            Connection::Open(local) => {
                while self.pending.is_none() && self.connection == Connection::Open(local) {
                    if let Some(request) = self.queue.pop_front() {
                        self.send(&request, now);
                    } else if let Some(next_state) = self.next_state.take() {
                        self.succeeded(next_state, now);
                    } else if !self.plan(local, now) {
                        return;
                    }
                }
            }
        }
    }

    /// Queues the next requests. Returns whether there are any.
    fn plan(&mut self, local: IpAddr, now: Instant) -> bool {
        let desired = self.desired.as_ref().and_then(|desired| desired.resolved_for(local));
        let (requests, next_state) = match (&self.server, desired) {
            (ServerState::Registered(server), Some(desired)) if *server == desired || self.must_verify => {
                if self.renewal > now && !self.must_verify {
                    return false;
                }
                let query = server.query(self.queries);
                (self.must_verify, self.queries) = (false, self.queries.wrapping_add(1));
                self.renewal = self.next_renewal(&desired, now);
                (vec![query], None)
            }
            (ServerState::Registered(server), Some(desired)) if server.entity == desired.entity => {
                (desired.changes(server), Some(ServerState::Registered(desired)))
            }
            (ServerState::Registered(server), _) => (vec![server.deregistration()], Some(ServerState::Empty)),
            (ServerState::Unknown, Some(desired)) => (desired.all(true), Some(ServerState::Registered(desired))),
            (ServerState::Empty, Some(desired)) => (desired.all(false), Some(ServerState::Registered(desired))),
            (ServerState::Unknown | ServerState::Empty, None) => {
                if self.desired.is_none() {
                    self.disconnect(now);
                    self.actions.push_back(Action::Close);
                    self.advance(now);
                } else {
                    self.trouble =
                        Some("no target has a portal of the address family by which the server is reached".into());
                }
                return false;
            }
        };
        (self.queue, self.next_state) = (requests.into(), next_state);
        true
    }

    fn next_renewal(&self, desired: &Registration, now: Instant) -> Instant {
        let period =
            self.period.filter(|period| *period > 0).map_or(desired.period, |period| period.min(desired.period));
        now + (Duration::from_secs(period.into()) / RENEWALS).clamp(RENEWAL_MIN, RENEWAL_MAX)
    }

    fn send(&mut self, request_: &Request, now: Instant) {
        self.transaction = self.transaction.wrapping_add(1);
        let Request { function, flags, payload } = request_;
        self.actions.push_back(Action::Send(request(*function, *flags, self.transaction, payload)));
        let (transaction, until) = (self.transaction, now + RESPONSE_TIME);
        self.pending = Some(PendingRequest { function: *function, transaction, until, response: None });
    }

    /// Handles the success of all queued requests.
    fn succeeded(&mut self, next_state: ServerState, now: Instant) {
        match &next_state {
            ServerState::Registered(registration) => {
                self.renewal = self.next_renewal(registration, now);
                self.confirm(&registration.clone());
            }
            ServerState::Empty | ServerState::Unknown => {
                (self.failures, self.trouble, self.reported) = (0, None, None);
                self.actions.push_back(Action::Report(Event::Deregistered));
            }
        }
        self.server = next_state;
    }

    /// Records a confirmed registration; reports it if it is new.
    fn confirm(&mut self, registration: &Registration) {
        let has_failed = self.trouble.take().is_some();
        self.failures = 0;
        if has_failed || self.reported.as_ref() != Some(registration) {
            let (targets, portals) = (registration.nodes.len(), registration.portals().len());
            self.actions.push_back(Action::Report(Event::Registered { targets, portals }));
            self.reported = Some(registration.clone());
        }
    }

    /// Handles a response.
    fn handle_response(&mut self, response: &Response, now: Instant) {
        let Some(PendingRequest { function, .. }) = self.pending.take() else { return };
        match function {
            Function::DEV_ATTR_QRY => self.query_answered(response),
            // NO_SUCH_ENTRY of a deregistration is success (5.7.5.4), unless only a part was to be removed: then the
            // remaining part may be missing too.
            Function::DEV_DEREG if response.status == Status::NO_SUCH_ENTRY => {
                if matches!(self.next_state, Some(ServerState::Registered(_))) {
                    (self.next_state, self.server) = (None, ServerState::Unknown);
                    self.queue.clear();
                }
            }
            _ if response.status != Status::SUCCESS => {
                let what = if function == Function::DEV_DEREG { "a deregistration" } else { "the registration" };
                return self.close_after_error(&format!("the server refused {what}: {:?}", response.status), now);
            }
            Function::DEV_ATTR_REG => self.period = response.period.or(self.period),
            _ => {}
        }
        self.advance(now);
    }

    /// Handles a query response: the entity to which a target of this registration belongs.
    fn query_answered(&mut self, response: &Response) {
        let Some(server) = self.registered().cloned() else { return };
        let is_ours = |entity: &String| entity.eq_ignore_ascii_case(&server.entity);
        if response.status == Status::SUCCESS && response.entities.iter().any(is_ours) {
            self.misses = 0;
            return self.confirm(&server);
        }
        // If discovery domains hide the registration from queries, it is registered again at each renewal. That is
        // reported once only.
        self.misses = self.misses.saturating_add(1);
        if self.misses == 1 {
            self.reported = None;
            self.actions.push_back(Action::Report(Event::Forgotten));
        }
        self.server = ServerState::Empty;
    }

    /// Closes the connection after an error of the server; schedules a retry.
    fn close_after_error(&mut self, why: &str, now: Instant) {
        self.disconnect(now);
        self.actions.push_back(Action::Close);
        self.fail(why, now);
    }

    /// Drops the connection and the requests in progress.
    fn disconnect(&mut self, now: Instant) {
        // A query changed nothing, so the state of the server is still known.
        if self.next_state.take().is_some() {
            self.server = ServerState::Unknown;
        }
        self.pending = None;
        self.queue.clear();
        self.input = Vec::new();
        self.connection = Connection::Closed(now + PAUSE_MIN);
    }

    fn fail(&mut self, why: &str, now: Instant) {
        self.connection = Connection::Closed(now + PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX));
        self.failures = self.failures.saturating_add(1);
        let why = match &self.desired {
            Some(_) => format!("{why}; Lunar keeps trying"),
            None => format!("{why}; the server removes the registration when its period ends"),
        };
        // The same failure is reported once.
        if self.trouble.as_ref() != Some(&why) {
            self.actions.push_back(Action::Report(Event::Failed(why.clone())));
            self.trouble = Some(why);
        }
    }

    /// Takes the next complete response to the current request.
    fn take(&mut self) -> Result<Option<Response>, &'static str> {
        loop {
            let Ok((header, rest)) = Header::read_from_prefix(&self.input) else { return Ok(None) };
            let length = usize::from(header.length.get());
            if header.version.get() != VERSION || length > PAYLOAD_MAX || !length.is_multiple_of(4) {
                return Err("the server does not speak iSNS");
            }
            let Some(payload) = rest.get(..length) else { return Ok(None) };
            let concluded = match &mut self.pending {
                Some(pending) if is_response(pending, &header) => {
                    if header.has(SIGNED) {
                        return Err("the server requires authenticated messages (5.5), which Lunar does not support");
                    }
                    pending.take(&header, payload)?
                }
                // A message that answers no current request is ignored.
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

fn is_response(pending: &PendingRequest, header: &Header) -> bool {
    header.function() == pending.function.response() && header.transaction.get() == pending.transaction
}

impl PendingRequest {
    /// Takes one PDU of the response; returns the response after the last PDU. The attributes that matter are at the
    /// beginning, so only the first PDU is parsed.
    fn take(&mut self, header: &Header, payload: &[u8]) -> Result<Option<Response>, &'static str> {
        let is_last = header.has(LAST);
        if header.has(FIRST) {
            self.response = Some(Response::parse(payload, is_last).ok_or("the server's response is malformed")?);
        } else if self.response.is_none() {
            return Err("the server's response lacks its first PDU");
        }
        Ok(if is_last { self.response.take() } else { None })
    }
}

impl Response {
    /// Parses a payload. If the response is continued in another PDU, an attribute may be cut off at the end.
    fn parse(payload: &[u8], is_whole: bool) -> Option<Self> {
        let (status, rest) = payload.split_first_chunk()?;
        let mut response = Self { status: Status(u32::from_be_bytes(*status)), entities: Vec::new(), period: None };
        for attribute in Attributes::of(rest) {
            let Ok(attribute) = attribute else { return (!is_whole).then_some(response) };
            match attribute.tag {
                Tag::ENTITY_IDENTIFIER => {
                    // At most two: the attribute is a message key and an operating attribute.
                    let text = attribute.text().filter(|_| response.entities.len() < 2);
                    response.entities.extend(text.map(str::to_owned));
                }
                Tag::REGISTRATION_PERIOD => response.period = attribute.number().or(response.period),
                _ => {}
            }
        }
        Some(response)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
