//! DH-HMAC-CHAP: how a host proves its name in band, and the subsystem its own (NVMe Base 2.0 8.13.5).
//!
//! * [`key`]: keys as they are written; [`hash`] and [`group`]: what is computed; [`wire`]: the messages
//! * [`psk`]: keys of secure channels
//! * [`exchange`]: the exchange of one queue, as a value
//! * [`guard`]: who may come in, how often he may fail, and who is told
//! * [`host`]: the other side, for tests and fuzzers
//! * here: what a queue has of all that, and the ways of its messages

pub mod exchange;
pub mod group;
pub mod guard;
pub mod hash;
pub mod host;
pub mod key;
pub mod psk;
pub mod wire;

use crate::command::{Refusal, Status};
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use exchange::{Computed, End, Exchange, Heard, Proven, Work};
use guard::{Reason, Visitor};
use lunar_core::time::Instant;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;
use wire::Why;

/// What proofs need from where the subsystem runs.
pub trait Outside {
    /// What time it is.
    fn now(&self) -> Instant;

    /// Waits until then.
    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Computes what takes long, where no command waits for it. `None` if too much is to be computed already: for who
    /// comes from there, or for all.
    fn compute(&self, source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>>;
}

/// Who is at the other end of a queue, and what it has proved.
#[derive(Debug)]
pub struct Proof {
    visitor: Visitor,
    exchange: RefCell<Exchange>,
    /// Whether it may do more than prove its name.
    passes: Cell<bool>,
    /// Whether its proof failed: the queue ends.
    failed: Cell<bool>,
}

impl Proof {
    /// Of a visitor that may do more than prove its name at once if it `passes`.
    #[must_use]
    pub(crate) fn new(visitor: Visitor, passes: bool) -> Self {
        Self { visitor, exchange: RefCell::default(), passes: Cell::new(passes), failed: Cell::new(false) }
    }

    /// Who it is.
    #[must_use]
    pub fn visitor(&self) -> &Visitor {
        &self.visitor
    }

    /// Whether the host may do more than prove its name.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.passes.get()
    }

    /// Whether the queue ends, for its host has proved nothing.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }
}

impl Subsystem {
    fn proof<'a>(&self, queue: &'a Queue) -> Result<&'a Proof, Status> {
        // A queue that nobody has connected has nobody who could prove anything.
        queue.proof().ok_or(Status::SEQUENCE_ERROR)
    }

    /// Takes a message of a host.
    ///
    /// # Errors
    /// How the command ends that brought it.
    pub(crate) async fn hear(&self, queue: &Queue, message: &[u8]) -> Result<(), Refusal> {
        let proof = self.proof(queue)?;
        let (guard, outside, visitor) = (&self.config().guard, &self.config().outside, &proof.visitor);
        let now = outside.now();
        let heard = proof.exchange.borrow_mut().hear(message, now, || guard.welcome(visitor))?;
        match heard {
            Heard::Nothing => {}
            Heard::Proven(proven) => self.has_proven(queue, proof, &proven),
            Heard::Failed(why) => guard.refused(visitor, Reason::Protocol(why), now),
            Heard::Doubted(why) => {
                guard.refused(visitor, Reason::Doubts(why), now);
                self.has_failed(proof);
            }
            Heard::Work(work) => self.work(proof, work).await?,
        }
        Ok(())
    }

    async fn work(&self, proof: &Proof, work: Work) -> Result<(), Refusal> {
        let (guard, outside, visitor) = (&self.config().guard, &self.config().outside, &proof.visitor);
        let now = outside.now();
        let turn = if work.checks() { guard.turn(visitor, now) } else { Some(Duration::ZERO) };
        let Some(turn) = turn else {
            // One too many is not even looked at.
            guard.refused(visitor, Reason::TooMany, now);
            self.has_failed(proof);
            return Err(Status::AUTHENTICATION_REQUIRED.into());
        };
        let computed = match work.is_light() {
            true => Some(work.run()),
            false => outside.compute(visitor.source.ip(), work).await,
        };
        let Some(computed) = computed else {
            proof.exchange.borrow_mut().dropped();
            return Err(Status::NOT_READY.into());
        };
        let pause = match computed.found() {
            None => Duration::ZERO,
            Some(Ok(_)) => {
                guard.succeeded(visitor);
                Duration::ZERO
            }
            Some(Err(why)) => {
                let reason = if why == Why::FAILED { Reason::WrongAnswer } else { Reason::Protocol(why) };
                guard.refused(visitor, reason, now);
                guard.failed(visitor, now)
            }
        };
        proof.exchange.borrow_mut().computed(computed, now + turn + pause);
        Ok(())
    }

    /// The message that waits for a host, when it may have it.
    ///
    /// # Errors
    /// How the command ends that fetches it.
    pub(crate) async fn tell(&self, queue: &Queue, room: usize) -> Result<Vec<u8>, Refusal> {
        let proof = self.proof(queue)?;
        let due = proof.exchange.borrow().due();
        if let Some(at) = due.filter(|at| *at > self.config().outside.now()) {
            self.config().outside.until(at).await;
        }
        let (message, end) = proof.exchange.borrow_mut().tell(room)?;
        match end {
            Some(End::Proven(proven)) => self.has_proven(queue, proof, &proven),
            Some(End::Over) => self.has_failed(proof),
            Some(End::Shown(_)) | None => {}
        }
        Ok(message)
    }

    fn has_proven(&self, queue: &Queue, proof: &Proof, proven: &Proven) {
        // Who proves its name once more is where it was.
        if proof.passes() {
            return;
        }
        let (config, visitor) = (self.config(), &proof.visitor);
        let now = config.outside.now();
        if config.controllers.prove(&queue.controller) {
            proof.passes.set(true);
            config.guard.entered(visitor, Some(proven), now);
        } else {
            config.guard.refused(visitor, Reason::Full, now);
            self.has_failed(proof);
        }
    }

    fn has_failed(&self, proof: &Proof) {
        proof.passes.set(false);
        proof.failed.set(true);
        self.config().stats.logins_refused.add(1);
    }
}
