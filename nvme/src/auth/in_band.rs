//! Authentication Send and Authentication Receive on a queue.

use super::authentication::QueueAuthentication;
use super::authenticator::Reason;
use super::exchange::{Authenticated, End, MessageOutcome, Work};
use super::wire::Why;
use crate::command::{Refusal, Status};
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use std::time::Duration;

impl Subsystem {
    fn authentication<'a>(&self, queue: &'a Queue) -> Result<&'a QueueAuthentication, Status> {
        // A queue without a Connect command has no host to authenticate.
        queue.authentication().ok_or(Status::SEQUENCE_ERROR)
    }

    /// Takes a message of a host.
    ///
    /// # Errors
    /// The status of Authentication Send.
    pub(crate) async fn auth_send(&self, queue: &Queue, message: &[u8]) -> Result<(), Refusal> {
        let authentication = self.authentication(queue)?;
        let (authenticator, services, attempt) =
            (&self.config().authenticator, &self.config().services, &authentication.attempt);
        let now = services.now();
        let heard = authentication.exchange.borrow_mut().auth_send(message, now, || authenticator.welcome(attempt))?;
        match heard {
            MessageOutcome::Nothing => {}
            MessageOutcome::Authenticated(authenticated) => {
                self.has_authenticated(queue, authentication, &authenticated)
            }
            MessageOutcome::Failed(why) => authenticator.refused(attempt, Reason::Protocol(why), now),
            MessageOutcome::Doubted(why) => {
                authenticator.refused(attempt, Reason::Doubts(why), now);
                self.has_failed(authentication);
            }
            MessageOutcome::Work(work) => self.work(authentication, work).await?,
        }
        Ok(())
    }

    async fn work(&self, authentication: &QueueAuthentication, work: Work) -> Result<(), Refusal> {
        let (authenticator, services, attempt) =
            (&self.config().authenticator, &self.config().services, &authentication.attempt);
        let now = services.now();
        let turn = if work.checks() { authenticator.turn(attempt, now) } else { Some(Duration::ZERO) };
        let Some(turn) = turn else {
            // Over the limit of this source, the reply is not checked.
            authenticator.refused(attempt, Reason::TooMany, now);
            self.has_failed(authentication);
            return Err(Status::AUTHENTICATION_REQUIRED.into());
        };
        let computed = match work.is_light() {
            true => Some(work.run()),
            false => services.compute(attempt.source.ip(), work).await,
        };
        let Some(computed) = computed else {
            authentication.exchange.borrow_mut().dropped();
            return Err(Status::NOT_READY.into());
        };
        let pause = match computed.found() {
            None => Duration::ZERO,
            Some(Ok(_)) => {
                authenticator.succeeded(attempt);
                Duration::ZERO
            }
            Some(Err(why)) => {
                let reason = if why == Why::FAILED { Reason::WrongAnswer } else { Reason::Protocol(why) };
                authenticator.refused(attempt, reason, now);
                authenticator.failed(attempt, now)
            }
        };
        authentication.exchange.borrow_mut().computed(computed, now + turn + pause);
        Ok(())
    }

    /// Waits until the next message for the host is due, and returns it.
    ///
    /// # Errors
    /// The status of Authentication Receive.
    pub(crate) async fn auth_receive(&self, queue: &Queue, room: usize) -> Result<Vec<u8>, Refusal> {
        let authentication = self.authentication(queue)?;
        let due = authentication.exchange.borrow().due();
        if let Some(at) = due.filter(|at| *at > self.config().services.now()) {
            self.config().services.until(at).await;
        }
        let (message, end) = authentication.exchange.borrow_mut().auth_receive(room)?;
        match end {
            Some(End::Authenticated(authenticated)) => self.has_authenticated(queue, authentication, &authenticated),
            Some(End::Over) => self.has_failed(authentication),
            Some(End::Shown(_)) | None => {}
        }
        Ok(message)
    }

    fn has_authenticated(&self, queue: &Queue, authentication: &QueueAuthentication, authenticated: &Authenticated) {
        // Reauthentication does not change the state of the queue.
        if authentication.passes() {
            return;
        }
        let (config, attempt) = (self.config(), &authentication.attempt);
        let now = config.services.now();
        if config.controllers.authenticate(&queue.controller) {
            authentication.passes.set(true);
            config.authenticator.entered(attempt, Some(authenticated), now);
            self.count_host(queue);
        } else {
            config.authenticator.refused(attempt, Reason::Full, now);
            self.has_failed(authentication);
        }
    }

    fn has_failed(&self, authentication: &QueueAuthentication) {
        authentication.passes.set(false);
        authentication.failed.set(true);
        self.config().stats.logins_refused.add(1);
    }
}
