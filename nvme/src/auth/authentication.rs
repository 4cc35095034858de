//! The authentication of the host of one queue, and what it needs from the program around it.

use super::authenticator::LoginAttempt;
use super::exchange::{Computed, Exchange, Work};
use lunar_core::time::Instant;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::Pin;

/// The services that authentication needs from the program around the subsystem.
pub trait AuthServices {
    /// The current time.
    fn now(&self) -> Instant;

    /// Waits until this time.
    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Runs a long computation on a thread that executes no commands. `None` if too many computations are waiting
    /// already, of this source or of all sources.
    fn compute(&self, source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>>;
}

/// The host of a queue, and the state of its authentication.
#[derive(Debug)]
pub struct QueueAuthentication {
    pub(super) attempt: LoginAttempt,
    pub(super) exchange: RefCell<Exchange>,
    /// Whether the host may do more than authenticate.
    pub(super) passes: Cell<bool>,
    /// Whether the authentication failed: the queue ends.
    pub(super) failed: Cell<bool>,
}

impl QueueAuthentication {
    /// The state of a host that has connected. It need not authenticate if it `passes`.
    #[must_use]
    pub(crate) fn new(attempt: LoginAttempt, passes: bool) -> Self {
        Self { attempt, exchange: RefCell::default(), passes: Cell::new(passes), failed: Cell::new(false) }
    }

    /// The Connect command that the queue began with.
    #[must_use]
    pub fn attempt(&self) -> &LoginAttempt {
        &self.attempt
    }

    /// Whether the host may do more than authenticate.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.passes.get()
    }

    /// Whether the queue ends because its host failed to authenticate.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }
}
