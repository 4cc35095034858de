//! The state that all cores share, and that threads of the engine look at.

use crate::names::PortId;
use crate::schema::WORD;
use lunar_core::access::refusal::RefusalCode;
use lunar_core::time::Instant;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::notice::{Notice, NoticeTopic, RefusedLogin};
use lunar_reactor::endpoint::Endpoint;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Opens the socket of an address.
pub type OpenSocket = fn(IpAddr) -> io::Result<Endpoint>;

/// An initiator that is logged in.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// When it logged in.
    pub(crate) since: Instant,
    /// Its address.
    pub(crate) source: String,
    /// Its group.
    pub(crate) group: Arc<str>,
    /// The target in the configuration.
    pub(crate) target: String,
}

/// The initiators of all ports, by the name of the section and their names.
pub(crate) type Sessions = BTreeMap<(Arc<str>, PortId), Session>;

/// The shared state.
pub(crate) struct Common {
    pub(crate) shared: Arc<Shared>,
    pub(crate) open: OpenSocket,
    sessions: Mutex<Sessions>,
    troubles: Mutex<BTreeMap<Arc<str>, String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insert or remove, so a panic of another thread leaves the state consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Common {
    pub(crate) fn new(shared: &Arc<Shared>, open: OpenSocket) -> Arc<Self> {
        Arc::new(Self { shared: shared.clone(), open, sessions: Mutex::default(), troubles: Mutex::default() })
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    /// Reports the trouble of a port, or its end.
    pub(crate) fn set_trouble(&self, port: &Arc<str>, trouble: Option<String>) {
        match trouble {
            Some(trouble) => lock(&self.troubles).insert(port.clone(), trouble),
            None => lock(&self.troubles).remove(port),
        };
    }

    pub(crate) fn troubles(&self) -> Vec<String> {
        lock(&self.troubles).values().cloned().collect()
    }

    /// Tells operators that an initiator logged in, or that it was refused for this reason at this target.
    pub(crate) fn notify(&self, initiator: PortId, refused: Option<(RefusalCode, &str)>, words: &str) {
        let subject = initiator.to_string();
        let topic = if refused.is_some() { NoticeTopic::Refusal } else { NoticeTopic::Login };
        let refusal =
            refused.map(|(code, target)| RefusedLogin { transport: WORD, code, source: None, target, user: "" });
        (self.shared.audit)(&Notice { refusal, ..Notice::new(topic, &subject, &words) });
    }
}

impl std::fmt::Debug for Common {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Common({} sessions)", self.sessions().len())
    }
}
