//! Authentication Send and Authentication Receive on a queue.

use super::authentication::Proof;
use super::exchange::{End, Heard, Proven, Work};
use super::guard::Reason;
use super::wire::Why;
use crate::command::{Refusal, Status};
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use std::time::Duration;

impl Subsystem {
    fn proof<'a>(&self, queue: &'a Queue) -> Result<&'a Proof, Status> {
        // A queue that nobody has connected has nobody who could prove anything.
        queue.proof().ok_or(Status::SEQUENCE_ERROR)
    }

    /// Takes a message of a host.
    ///
    /// # Errors
    /// How the command ends that brought it.
    pub(crate) async fn auth_send(&self, queue: &Queue, message: &[u8]) -> Result<(), Refusal> {
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
    pub(crate) async fn auth_receive(&self, queue: &Queue, room: usize) -> Result<Vec<u8>, Refusal> {
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
