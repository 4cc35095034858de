//! How the initiator proves its name, and has the target prove its own (RFC 7143 12.1.3).
//!
//! ```text
//! Method --AuthMethod--> Algorithms --CHAP_A, CHAP_I, CHAP_C--> Proof --CHAP_N, CHAP_R--> the operational stage
//! ```

use crate::Error;
use crate::login::{Listened, Login, Next, Operational, Request, Talk};
use lunar_core::access::Account;
use lunar_iscsi::chap::{Algorithm, CHALLENGE_MAX, Challenge, RESPONSE_MAX, Response};
use lunar_iscsi::text;
use lunar_iscsi::wire::{LoginResponse, Stage, TRANSIT};

/// What proves this initiator's name, and what the target has to prove.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Who this initiator says it is.
    pub user: Account,
    /// The algorithms that are proposed.
    pub algorithms: Vec<Algorithm>,
    /// What the target has to prove, if it has to.
    pub target: Option<Counter>,
}

/// What the target has to prove.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Who it has to be.
    pub account: Account,
    /// What it is asked: random, and never the same for two sessions.
    pub challenge: Challenge,
}

/// CHAP is proposed.
#[derive(Debug)]
pub(crate) struct Method(pub(crate) Box<Talk>, pub(crate) Box<Chap>);

/// The algorithms are proposed.
#[derive(Debug)]
pub(crate) struct Algorithms(Box<Talk>, Box<Chap>);

/// The proof is sent.
#[derive(Debug)]
pub(crate) struct Proof(Box<Talk>, Box<Chap>, Algorithm);

/// The text of the first request.
pub(crate) fn proposal(names: &mut Vec<u8>) {
    text::put(names, "AuthMethod", "CHAP");
}

impl Method {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let ([method], unknown) = match self.0.listen(answer, text, Stage::SECURITY, ["AuthMethod"])? {
            Listened::More(request) => return Ok(Next::Send(Login::Method(self), request)),
            Listened::All { own, unknown } => (own, unknown),
        };
        still_open(answer)?;
        if method.as_deref() != Some("CHAP") {
            return Err(Error::Authentication("the target does not want CHAP"));
        }
        let mut text = unknown;
        let proposed: Vec<String> = self.1.algorithms.iter().map(|algorithm| algorithm.0.to_string()).collect();
        text::put(&mut text, "CHAP_A", proposed.join(","));
        let request = Request { stage: Stage::SECURITY, transit: None, text };
        Ok(Next::Send(Login::Algorithms(Algorithms(self.0, self.1)), request))
    }
}

impl Algorithms {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let keys = ["CHAP_A", "CHAP_I", "CHAP_C"];
        let ([algorithm, identifier, challenge], unknown) = match self.0.listen(answer, text, Stage::SECURITY, keys)? {
            Listened::More(request) => return Ok(Next::Send(Login::Algorithms(self), request)),
            Listened::All { own, unknown } => (own, unknown),
        };
        still_open(answer)?;
        let byte = |value: Option<String>| value.and_then(|v| text::number(&v)).and_then(|v| u8::try_from(v).ok());
        let Self(talk, chap) = self;
        let algorithm = byte(algorithm).map(Algorithm).filter(|algorithm| chap.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or(Error::Authentication("the target wants an algorithm that is not offered"))?;
        let challenge = challenge.and_then(|value| text::binary(&value, CHALLENGE_MAX));
        let (Some(identifier), Some(challenge)) = (byte(identifier), challenge.filter(|bytes| !bytes.is_empty()))
        else {
            return Err(Error::Authentication("the target's challenge is none"));
        };
        let mut text = unknown;
        text::put(&mut text, "CHAP_N", &chap.user.name);
        let response = algorithm.response(identifier, &chap.user.secret, &challenge);
        text::put(&mut text, "CHAP_R", text::as_hex(response.bytes()));
        if let Some(Counter { challenge: ours, .. }) = &chap.target {
            if ours.bytes[..] == challenge[..] {
                return Err(Error::Authentication("the target sends our own challenge back"));
            }
            text::put(&mut text, "CHAP_I", ours.identifier);
            text::put(&mut text, "CHAP_C", text::as_hex(&ours.bytes));
        }
        let request = Request { stage: Stage::SECURITY, transit: Some(Stage::OPERATIONAL), text };
        Ok(Next::Send(Login::Proof(Proof(talk, chap, algorithm)), request))
    }
}

impl Proof {
    pub(crate) fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        let ([name, response], _) = match self.0.listen(answer, text, Stage::SECURITY, ["CHAP_N", "CHAP_R"])? {
            Listened::More(request) => return Ok(Next::Send(Login::Proof(self), request)),
            Listened::All { own, unknown } => (own, unknown),
        };
        let Self(talk, chap, algorithm) = self;
        if let Some(Counter { account, challenge }) = &chap.target {
            let wanted = algorithm.response(challenge.identifier, &account.secret, &challenge.bytes);
            let said = response.and_then(|value| text::binary(&value, RESPONSE_MAX)).and_then(Response::of);
            if said.is_none_or(|said| said != wanted) || name.as_deref() != Some(&*account.name) {
                return Err(Error::Authentication("the target does not prove its name"));
            }
        }
        if answer.flags & TRANSIT == 0 || answer.next_stage() != Stage::OPERATIONAL {
            return Err(Error::Protocol("a login does not go on after the proof"));
        }
        Ok(Operational::begin(talk))
    }
}

/// The stage must not be over before anything is proved.
fn still_open(answer: &LoginResponse) -> Result<(), Error> {
    match answer.flags & TRANSIT {
        0 => Ok(()),
        _ => Err(Error::Protocol("a login goes on without a proof")),
    }
}

#[cfg(test)]
#[path = "chap_tests.rs"]
mod tests;
