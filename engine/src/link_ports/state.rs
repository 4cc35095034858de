//! The state that all cores share, and that threads of the engine look at.

use crate::core_set::shared::Shared;
use crate::notice::{Notice, NoticeTopic, RefusedLogin};
use lunar_control::api::SessionView;
use lunar_core::access::refusal::RefusalCode;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two attempts to open a link that has failed.
const REOPEN_INTERVAL: Duration = Duration::from_secs(5);

/// Opens links with these settings: those of the operating system, or those of a simulation.
pub type Open<S, O> = fn(&S) -> io::Result<O>;

/// An initiator that is logged in, or a station that uses volumes.
#[derive(Clone, Debug)]
pub struct PortSession {
    /// When it logged in, or sent its first command.
    pub since: Instant,
    /// Its link or address.
    pub source: String,
    /// Its group.
    pub group: Arc<str>,
    /// The target in the configuration.
    pub target: String,
}

/// The sessions of all ports, by the name of the section and the name of the initiator.
pub type PortSessions<I> = BTreeMap<(Arc<str>, I), PortSession>;

/// The shared state of a transport.
pub struct PortState<I, S, O> {
    /// The state of the process.
    pub shared: Arc<Shared>,
    /// Opens links.
    pub open: Open<S, O>,
    /// The name of the front.
    transport: &'static str,
    sessions: Mutex<PortSessions<I>>,
    troubles: Mutex<BTreeMap<Arc<str>, String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insert or remove, so a panic of another thread leaves the state consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: Ord + fmt::Display, S, O> PortState<I, S, O> {
    /// The state of the transport of this name, without sessions.
    #[must_use]
    pub fn new(transport: &'static str, shared: &Arc<Shared>, open: Open<S, O>) -> Self {
        Self { shared: shared.clone(), open, transport, sessions: Mutex::default(), troubles: Mutex::default() }
    }

    /// The sessions.
    pub fn sessions(&self) -> MutexGuard<'_, PortSessions<I>> {
        lock(&self.sessions)
    }

    /// The sessions as the API shows them; `id` returns their IDs.
    pub fn shown(&self, id: impl Fn(&str, &I) -> String) -> Vec<SessionView> {
        let now = self.shared.host.now();
        let view = |((port, initiator), session): (&(Arc<str>, I), &PortSession)| SessionView {
            id: id(port, initiator),
            protocol: self.transport,
            discovery: false,
            initiator: initiator.to_string(),
            source: session.source.clone(),
            target: Some(session.target.clone()),
            group: Some(session.group.to_string()),
            portal_group: None,
            user: None,
            seconds: now.since(session.since).as_secs(),
            parameters: Vec::new(),
            tcp: Vec::new(),
        };
        self.sessions().iter().map(view).collect()
    }

    /// Reports the trouble of a port, or its end.
    pub fn set_trouble(&self, port: &Arc<str>, trouble: Option<String>) {
        match trouble {
            Some(trouble) => lock(&self.troubles).insert(port.clone(), trouble),
            None => lock(&self.troubles).remove(port),
        };
    }

    /// The troubles of all ports.
    pub fn troubles(&self) -> Vec<String> {
        lock(&self.troubles).values().cloned().collect()
    }

    /// Tells operators that an initiator logged in, or that it was refused for this reason at this target.
    pub fn notify(&self, initiator: &I, refused: Option<(RefusalCode, &str)>, words: &str) {
        let (subject, transport) = (initiator.to_string(), self.transport);
        let topic = if refused.is_some() { NoticeTopic::Refusal } else { NoticeTopic::Login };
        let refusal = refused.map(|(code, target)| RefusedLogin { transport, code, source: None, target, user: "" });
        (self.shared.audit)(&Notice { refusal, ..Notice::new(topic, &subject, &words) });
    }
}

impl<I, S, O> PortState<I, S, O> {
    /// Opens a link that has failed, for instance because its interface was removed, again and again until `attach`
    /// takes it; `None`: its port was closed meanwhile.
    pub async fn open_again<T>(
        &self,
        settings: &S,
        (reactor, closed): (&Reactor, &End),
        attach: impl Fn(O) -> io::Result<T>,
    ) -> Option<T> {
        loop {
            closed.unless(reactor.sleep(REOPEN_INTERVAL)).await?;
            if let Ok(attached) = (self.open)(settings).and_then(&attach) {
                return Some(attached);
            }
        }
    }
}

impl<I, S, O> fmt::Debug for PortState<I, S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortState({}, {} sessions)", self.transport, lock(&self.sessions).len())
    }
}
