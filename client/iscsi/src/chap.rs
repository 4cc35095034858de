//! CHAP: the initiator authenticates itself, and optionally the target (RFC 7143 12.1.3).
//!
//! ```text
//! MethodSent --AuthMethod--> AlgorithmsSent --CHAP_A, CHAP_I, CHAP_C--> ResponseSent --CHAP_N, CHAP_R--> Operational
//! ```

use crate::Error;
use crate::login::{Exchange, Login, Next, Operational, Request, StageText};
use lunar_core::access::Account;
use lunar_iscsi::chap::{Algorithm, CHALLENGE_MAX, Challenge, RESPONSE_MAX, Response};
use lunar_iscsi::text;
use lunar_iscsi::wire::{LoginResponse, Stage, TRANSIT};

/// The CHAP credentials of this initiator, and those that it requires of the target.
#[derive(Clone, Debug)]
pub struct Chap {
    /// The name and secret of this initiator.
    pub user: Account,
    /// The algorithms that are offered, in order of preference.
    pub algorithms: Vec<Algorithm>,
    /// The credentials with which the target must authenticate; `None` for one-way authentication.
    pub target: Option<MutualChap>,
}

/// The target's side of mutual CHAP.
#[derive(Clone, Debug)]
pub struct MutualChap {
    /// The name and secret of the target.
    pub account: Account,
    /// The challenge for the target: random, and different for each session.
    pub challenge: Challenge,
}

/// AuthMethod=CHAP was sent.
#[derive(Debug)]
pub(crate) struct MethodSent(pub(crate) Box<Exchange>, pub(crate) Box<Chap>);

/// CHAP_A was sent.
#[derive(Debug)]
pub(crate) struct AlgorithmsSent(Box<Exchange>, Box<Chap>);

/// CHAP_N and CHAP_R were sent.
#[derive(Debug)]
pub(crate) struct ResponseSent(Box<Exchange>, Box<Chap>, Algorithm);

/// Appends AuthMethod to the keys of the first request.
pub(crate) fn put_method(names: &mut Vec<u8>) {
    text::put(names, "AuthMethod", "CHAP");
}

impl MethodSent {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let ([method], unknown) = match self.0.collect(answer, text, Stage::SECURITY, ["AuthMethod"])? {
            StageText::Partial(request) => return Ok(Next::Send(Login::MethodSent(self), request)),
            StageText::Complete { own, unknown } => (own, unknown),
        };
        check_stage_continues(answer)?;
        if method.as_deref() != Some("CHAP") {
            return Err(Error::Authentication("the target does not accept CHAP"));
        }
        let mut text = unknown;
        let proposed: Vec<String> = self.1.algorithms.iter().map(|algorithm| algorithm.0.to_string()).collect();
        text::put(&mut text, "CHAP_A", proposed.join(","));
        let request = Request { stage: Stage::SECURITY, transit: None, text };
        Ok(Next::Send(Login::AlgorithmsSent(AlgorithmsSent(self.0, self.1)), request))
    }
}

impl AlgorithmsSent {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let keys = ["CHAP_A", "CHAP_I", "CHAP_C"];
        let ([algorithm, identifier, challenge], unknown) = match self.0.collect(answer, text, Stage::SECURITY, keys)? {
            StageText::Partial(request) => return Ok(Next::Send(Login::AlgorithmsSent(self), request)),
            StageText::Complete { own, unknown } => (own, unknown),
        };
        check_stage_continues(answer)?;
        let byte = |value: Option<String>| value.and_then(|v| text::number(&v)).and_then(|v| u8::try_from(v).ok());
        let Self(exchange, chap) = self;
        let algorithm = byte(algorithm).map(Algorithm).filter(|algorithm| chap.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or(Error::Authentication("the target chose a CHAP algorithm not on offer"))?;
        let challenge = challenge.and_then(|value| text::binary(&value, CHALLENGE_MAX));
        let (Some(identifier), Some(challenge)) = (byte(identifier), challenge.filter(|bytes| !bytes.is_empty()))
        else {
            return Err(Error::Authentication("the target sent no valid CHAP challenge"));
        };
        let mut text = unknown;
        text::put(&mut text, "CHAP_N", &chap.user.name);
        let response = algorithm.response(identifier, &chap.user.secret, &challenge);
        text::put(&mut text, "CHAP_R", text::as_hex(response.bytes()));
        if let Some(MutualChap { challenge: ours, .. }) = &chap.target {
            if ours.bytes[..] == challenge[..] {
                return Err(Error::Authentication("the target reflected this initiator's challenge"));
            }
            text::put(&mut text, "CHAP_I", ours.identifier);
            text::put(&mut text, "CHAP_C", text::as_hex(&ours.bytes));
        }
        let request = Request { stage: Stage::SECURITY, transit: Some(Stage::OPERATIONAL), text };
        Ok(Next::Send(Login::ResponseSent(ResponseSent(exchange, chap, algorithm)), request))
    }
}

impl ResponseSent {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let ([name, response], _) = match self.0.collect(answer, text, Stage::SECURITY, ["CHAP_N", "CHAP_R"])? {
            StageText::Partial(request) => return Ok(Next::Send(Login::ResponseSent(self), request)),
            StageText::Complete { own, unknown } => (own, unknown),
        };
        let Self(exchange, chap, algorithm) = self;
        if let Some(MutualChap { account, challenge }) = &chap.target {
            let expected = algorithm.response(challenge.identifier, &account.secret, &challenge.bytes);
            let received = response.and_then(|value| text::binary(&value, RESPONSE_MAX)).and_then(Response::of);
            if received.is_none_or(|received| received != expected) || name.as_deref() != Some(&*account.name) {
                return Err(Error::Authentication("the target's CHAP name or response is wrong"));
            }
        }
        if answer.flags & TRANSIT == 0 || answer.next_stage() != Stage::OPERATIONAL {
            return Err(Error::Protocol("the target did not enter the operational stage after CHAP_R"));
        }
        Ok(Operational::begin(exchange))
    }
}

/// Checks that the target does not end the security stage before the initiator was authenticated.
fn check_stage_continues(answer: &LoginResponse) -> Result<(), Error> {
    match answer.flags & TRANSIT {
        0 => Ok(()),
        _ => Err(Error::Protocol("the target ended the security stage without authentication")),
    }
}

#[cfg(test)]
#[path = "chap_tests.rs"]
mod tests;
