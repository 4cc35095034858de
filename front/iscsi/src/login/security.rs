//! SecurityNegotiation (RFC 7143 6.3.2, 12.1). An initiator that does not have to authenticate is in [`Security`];
//! another one gets there by CHAP.
//!
//! ```text
//! Unauthenticated --AuthMethod--> ChapChosen --CHAP_A--> Challenged --CHAP_N, CHAP_R--> Authenticating
//!                                                                                            |
//! Security <-- the front accepts the answer -------------------------------------------------+
//! ```
//!
//! Each state accepts its own keys once; any other key of CHAP ends the login. `Authenticating` waits for the front,
//! which knows users and secrets. The target answers a challenge of the initiator (CHAP_I, CHAP_C) only after it has
//! accepted the initiator's answer.

use super::{Common, Complete, Establishing, Login, Next, Operational};
use crate::chap::{
    Algorithm, CHALLENGE_MAX, Challenge, ChapAnswer, MutualChallenge, RESPONSE_MAX, Response, TargetAnswer,
};
use crate::keys::Phase;
use crate::pdu_queue::PduQueue;
use crate::text;
use crate::wire::{LoginRequest, LoginStatus, Stage};
use lunar_core::access::USER_MAX;

/// The authentication method.
const CHAP: &str = "CHAP";

/// No authentication is needed, or it has succeeded.
#[derive(Debug)]
pub struct Security(pub(super) Common);

/// The initiator has to authenticate, and no method is chosen.
#[derive(Debug)]
pub struct Unauthenticated {
    pub(super) common: Common,
    pub(super) challenge: Challenge,
}

/// CHAP is chosen, and no algorithm.
#[derive(Debug)]
pub struct ChapChosen {
    common: Common,
    challenge: Challenge,
}

/// The challenge was sent to the initiator.
#[derive(Debug)]
pub struct Challenged {
    common: Common,
    challenge: Challenge,
    algorithm: Algorithm,
}

/// The front checks the answer.
#[derive(Debug)]
pub struct Authenticating {
    pub(super) common: Common,
    /// Whether the initiator has sent a challenge (mutual authentication).
    mutual: bool,
    /// The answers to other keys.
    answer: Vec<u8>,
}

impl Security {
    pub(super) fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let mut common = self.0;
        match common.accept(request, Stage::SECURITY, text, out) {
            Ok(Complete::Text(text)) => Self(common).negotiate(&text, out),
            Ok(Complete::Partial) => Next::State(Login::Security(Self(common))),
            Err(status) => common.refuse(status, out),
        }
    }

    pub(super) fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let mut common = self.0;
        let answer = common.exchange(Phase::Security, text, |key, value, answer| match key {
            "AuthMethod" if list_contains(value, text::NONE) => {
                text::put(answer, key, text::NONE);
                Ok(())
            }
            "AuthMethod" => Err(LoginStatus::AUTHENTICATION_FAILURE),
            _ => Err(LoginStatus::INITIATOR_ERROR),
        });
        match answer {
            Ok(answer) => common.end_security_stage(answer, out),
            Err(status) => common.refuse(status, out),
        }
    }
}

impl Unauthenticated {
    pub(super) fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let Self { mut common, challenge } = self;
        match common.accept(request, Stage::SECURITY, text, out) {
            Ok(Complete::Text(text)) => Self { common, challenge }.negotiate(&text, out),
            Ok(Complete::Partial) => Next::State(Login::Unauthenticated(Self { common, challenge })),
            Err(status) => common.refuse(status, out),
        }
    }

    pub(super) fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let Self { mut common, challenge } = self;
        let mut chosen = false;
        let answer = common.exchange(Phase::Security, text, |key, value, answer| match key {
            "AuthMethod" if list_contains(value, CHAP) => {
                text::put(answer, key, CHAP);
                chosen = true;
                Ok(())
            }
            "AuthMethod" => Err(LoginStatus::AUTHENTICATION_FAILURE),
            _ => Err(LoginStatus::INITIATOR_ERROR),
        });
        match answer {
            Ok(_) if !chosen && common.asked.transit.is_some() => {
                let why = "the initiator has to authenticate, and does not offer CHAP";
                common.refuse_because(LoginStatus::AUTHENTICATION_FAILURE, why, out)
            }
            Ok(answer) => {
                common.respond(None, 0, &answer, out);
                Next::State(match chosen {
                    true => Login::ChapChosen(ChapChosen { common, challenge }),
                    false => Login::Unauthenticated(Self { common, challenge }),
                })
            }
            Err(status) => common.refuse(status, out),
        }
    }
}

impl ChapChosen {
    pub(super) fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let Self { mut common, challenge } = self;
        match common.accept(request, Stage::SECURITY, text, out) {
            Ok(Complete::Text(text)) => Self { common, challenge }.negotiate(&text, out),
            Ok(Complete::Partial) => Next::State(Login::ChapChosen(Self { common, challenge })),
            Err(status) => common.refuse(status, out),
        }
    }

    fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let Self { mut common, challenge } = self;
        let allowed = common.negotiation.config().chap.clone();
        let mut offered = None;
        let answer = common.exchange(Phase::Security, text, |key, value, _| match key {
            "CHAP_A" => {
                offered = Some(strongest(&allowed, value));
                Ok(())
            }
            _ => Err(LoginStatus::INITIATOR_ERROR),
        });
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(status) => return common.refuse(status, out),
        };
        let algorithm = match offered {
            Some(Some(algorithm)) => algorithm,
            Some(None) => {
                let why = "no CHAP algorithm of the initiator is allowed";
                return common.refuse_because(LoginStatus::AUTHENTICATION_FAILURE, why, out);
            }
            None => return common.refuse_because(LoginStatus::INITIATOR_ERROR, "CHAP_A is missing", out),
        };
        text::put(&mut answer, "CHAP_A", algorithm.0);
        text::put(&mut answer, "CHAP_I", challenge.identifier);
        text::put(&mut answer, "CHAP_C", text::as_hex(&challenge.bytes));
        common.respond(None, 0, &answer, out);
        Next::State(Login::Challenged(Challenged { common, challenge, algorithm }))
    }
}

/// The values of CHAP_N, CHAP_R, CHAP_I and CHAP_C of the initiator.
#[derive(Default)]
struct ChapKeys {
    user: Option<String>,
    response: Option<Response>,
    identifier: Option<u8>,
    challenge: Option<Vec<u8>>,
}

impl ChapKeys {
    fn take(&mut self, key: &str, value: &str) -> Result<(), LoginStatus> {
        let taken = match key {
            "CHAP_N" if (1..=USER_MAX).contains(&value.len()) => {
                self.user = Some(value.to_owned());
                true
            }
            "CHAP_R" => {
                self.response = text::binary(value, RESPONSE_MAX).and_then(Response::of);
                self.response.is_some()
            }
            "CHAP_I" => {
                self.identifier = text::number(value).and_then(|number| u8::try_from(number).ok());
                self.identifier.is_some()
            }
            "CHAP_C" => {
                self.challenge = text::binary(value, CHALLENGE_MAX).filter(|challenge| !challenge.is_empty());
                self.challenge.is_some()
            }
            _ => false,
        };
        if taken { Ok(()) } else { Err(LoginStatus::INITIATOR_ERROR) }
    }

    /// The answer of the initiator; `None` if a key is missing.
    fn chap_answer(self, challenge: Challenge, algorithm: Algorithm) -> Option<ChapAnswer> {
        let mutual = match (self.identifier, self.challenge) {
            (Some(identifier), Some(challenge)) => Some(MutualChallenge { identifier, challenge }),
            (None, None) => None,
            _ => return None,
        };
        Some(ChapAnswer { user: self.user?.into(), algorithm, challenge, response: self.response?, mutual })
    }
}

impl Challenged {
    pub(super) fn handle(self, request: &LoginRequest, text: Option<&[u8]>, out: &mut PduQueue) -> Next {
        let Self { mut common, challenge, algorithm } = self;
        match common.accept(request, Stage::SECURITY, text, out) {
            Ok(Complete::Text(text)) => Self { common, challenge, algorithm }.negotiate(&text, out),
            Ok(Complete::Partial) => Next::State(Login::Challenged(Self { common, challenge, algorithm })),
            Err(status) => common.refuse(status, out),
        }
    }

    fn negotiate(self, text: &[u8], out: &mut PduQueue) -> Next {
        let Self { mut common, challenge, algorithm } = self;
        let mut keys = ChapKeys::default();
        let answer = match common.exchange(Phase::Security, text, |key, value, _| keys.take(key, value)) {
            Ok(answer) => answer,
            Err(status) => return common.refuse(status, out),
        };
        let Some(chap_answer) = keys.chap_answer(challenge, algorithm) else {
            return common.refuse_because(LoginStatus::INITIATOR_ERROR, "a CHAP key is missing", out);
        };
        let mutual = chap_answer.mutual.is_some();
        Next::Authenticate(Login::Authenticating(Authenticating { common, mutual, answer }), Box::new(chap_answer))
    }
}

impl Authenticating {
    pub(super) fn answer(self, result: Result<Option<TargetAnswer>, LoginStatus>, out: &mut PduQueue) -> Next {
        let Self { common, mutual, mut answer } = self;
        match (result, mutual) {
            (Ok(Some(target_answer)), true) => {
                text::put(&mut answer, "CHAP_N", target_answer.name);
                text::put(&mut answer, "CHAP_R", text::as_hex(target_answer.response.bytes()));
                common.end_security_stage(answer, out)
            }
            // RFC 7143 11.13.5 has this status also for "target authentication is not supported".
            (Ok(None), true) => common.refuse(LoginStatus::AUTHENTICATION_FAILURE, out),
            (Ok(_), false) => common.end_security_stage(answer, out),
            (Err(status), _) => common.refuse(status, out),
        }
    }
}

impl Common {
    /// The keys of the stage are complete: goes to the stage that the initiator requests, if any.
    fn end_security_stage(mut self, answer: Vec<u8>, out: &mut PduQueue) -> Next {
        match self.asked.transit.map(Stage) {
            None => {
                self.respond(None, 0, &answer, out);
                Next::State(Login::Security(Security(self)))
            }
            Some(Stage::OPERATIONAL) => {
                self.respond(Some(Stage::OPERATIONAL), 0, &answer, out);
                Next::State(Login::Operational(Operational(self)))
            }
            Some(_) => Establishing::begin(self, answer),
        }
    }
}

fn list_contains(list: &str, member: &str) -> bool {
    text::list(list).any(|offered| offered == member)
}

/// The algorithm to use, by the order of the target: RFC 7143 12.1.3 allows any of the proposed ones. Most initiators
/// propose MD5 first out of habit, and a stronger algorithm costs neither side anything.
fn strongest(allowed: &[Algorithm], offered: &str) -> Option<Algorithm> {
    let is_offered =
        |algorithm: &Algorithm| text::list(offered).any(|value| text::number(value) == Some(algorithm.0.into()));
    allowed.iter().copied().find(is_offered)
}

#[cfg(test)]
#[path = "security_tests.rs"]
mod tests;
