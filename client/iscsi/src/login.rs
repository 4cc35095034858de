//! The login phase (RFC 7143 clause 6): each state is a value, which the next login response consumes.

use crate::Error;
use crate::chap::{self, AlgorithmsSent, MethodSent, ResponseSent};
use crate::config::{Agreed, KeyOutcome, Offer};
use lunar_iscsi::text::{self, TextBuffer};
use lunar_iscsi::wire::{CONTINUE, LoginResponse, LoginStatus, Stage, TRANSIT};

/// Login responses before the initiator gives up: a login without authentication takes two.
const ROUNDS_MAX: u32 = 16;
/// The longest text of one login response, over all its PDUs, in bytes.
const TEXT_MAX: usize = 64 << 10;

/// A login request to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) stage: Stage,
    /// The requested next stage; `None` while the stage continues.
    pub(crate) transit: Option<Stage>,
    pub(crate) text: Vec<u8>,
}

/// The state that all stages share.
#[derive(Debug)]
pub(crate) struct Exchange {
    offer: Offer,
    agreed: Agreed,
    gather: TextBuffer,
    rounds: u32,
}

/// SecurityNegotiation without authentication. With CHAP, the states of [`chap`] take its place.
#[derive(Debug)]
pub(crate) struct Security(Box<Exchange>);

/// LoginOperationalNegotiation.
#[derive(Debug)]
pub(crate) struct Operational(Box<Exchange>);

/// A login in progress.
#[derive(Debug)]
pub(crate) enum Login {
    Security(Security),
    MethodSent(MethodSent),
    AlgorithmsSent(AlgorithmsSent),
    ResponseSent(ResponseSent),
    Operational(Operational),
}

/// The result of a login response: the next request, or the end of the login.
#[derive(Debug)]
pub(crate) enum Next {
    Send(Login, Request),
    Done(Agreed),
}

impl Login {
    /// Starts a login; returns the first request.
    pub(crate) fn start(mut offer: Offer) -> (Self, Request) {
        let mut names = offer.names();
        let chap = offer.chap.take();
        let exchange =
            Box::new(Exchange { offer, agreed: Agreed::default(), gather: TextBuffer::default(), rounds: 0 });
        if let Some(chap) = chap {
            chap::put_method(&mut names);
            let request = Request { stage: Stage::SECURITY, transit: None, text: names };
            return (Self::MethodSent(MethodSent(exchange, Box::new(chap))), request);
        }
        text::put(&mut names, "AuthMethod", text::NONE);
        let request = Request { stage: Stage::SECURITY, transit: Some(Stage::OPERATIONAL), text: names };
        (Self::Security(Security(exchange)), request)
    }

    pub(crate) fn handle(self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self {
            Self::Security(state) => state.handle(answer, text),
            Self::MethodSent(state) => state.handle(answer, text),
            Self::AlgorithmsSent(state) => state.handle(answer, text),
            Self::ResponseSent(state) => state.handle(answer, text),
            Self::Operational(state) => state.handle(answer, text),
        }
    }
}

impl Security {
    fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self.0.negotiate(answer, text, Stage::SECURITY, Stage::OPERATIONAL)? {
            Progress::Continue(request) => Ok(Next::Send(Login::Security(self), request)),
            Progress::Finished(_) => Ok(Operational::begin(self.0)),
        }
    }
}

impl Operational {
    /// Enters the stage; returns its first request.
    pub(crate) fn begin(exchange: Box<Exchange>) -> Next {
        let text = exchange.offer.operational();
        let request = Request { stage: Stage::OPERATIONAL, transit: Some(Stage::FULL_FEATURE), text };
        Next::Send(Login::Operational(Self(exchange)), request)
    }

    fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self.0.negotiate(answer, text, Stage::OPERATIONAL, Stage::FULL_FEATURE)? {
            Progress::Continue(request) => Ok(Next::Send(Login::Operational(self), request)),
            Progress::Finished(unknown) if unknown.is_empty() => {
                let mut agreed = self.0.agreed;
                // A key that the target rejected or ignored keeps its default, which for a digest is None.
                if let Some(key) = self.0.offer.missing_digest(&agreed) {
                    return Err(Error::Key(key.to_owned()));
                }
                agreed.initiator_segment = self.0.offer.max_recv_data_segment_length;
                // FirstBurstLength must not exceed MaxBurstLength (13.14), so the smaller value applies.
                agreed.first_burst_length = agreed.first_burst_length.min(agreed.max_burst_length);
                Ok(Next::Done(agreed))
            }
            Progress::Finished(_) => Err(Error::Protocol("the target ended the login with a key that needs a reply")),
        }
    }
}

/// The text of a login response.
pub(crate) enum StageText<const N: usize> {
    /// The response is continued in another PDU (C bit): the request that asks for it.
    Partial(Request),
    /// The response is complete.
    Complete {
        /// The values of the requested keys.
        own: [Option<String>; N],
        /// The reply to unknown keys: NotUnderstood for each.
        unknown: Vec<u8>,
    },
}

/// The state of a stage after a login response.
enum Progress {
    /// The stage continues with this request.
    Continue(Request),
    /// The target accepted the transition to the next stage. Holds the reply to unknown keys.
    Finished(Vec<u8>),
}

impl Exchange {
    fn negotiate(&mut self, answer: &LoginResponse, text: &[u8], stage: Stage, next: Stage) -> Result<Progress, Error> {
        let ([method], unknown) = match self.collect(answer, text, stage, ["AuthMethod"])? {
            StageText::Partial(request) => return Ok(Progress::Continue(request)),
            StageText::Complete { own, unknown } => (own, unknown),
        };
        if method.is_some_and(|method| method != text::NONE) {
            return Err(Error::Key("AuthMethod".to_owned()));
        }
        if answer.flags & TRANSIT == 0 {
            return Ok(Progress::Continue(Request { stage, transit: Some(next), text: unknown }));
        }
        match answer.next_stage() == next {
            true => Ok(Progress::Finished(unknown)),
            false => Err(Error::Protocol("a login response enters a stage that was not requested")),
        }
    }

    /// Checks a login response, collects its text and applies its keys. Returns the values of `keys`.
    pub(crate) fn collect<const N: usize>(
        &mut self,
        answer: &LoginResponse,
        text: &[u8],
        stage: Stage,
        keys: [&str; N],
    ) -> Result<StageText<N>, Error> {
        if answer.status.get() != LoginStatus::SUCCESS.0 {
            let address = text::pairs(text).flatten().find(|(key, _)| *key == "TargetAddress");
            return Err(Error::Login(LoginStatus(answer.status.get()), address.map(|(_, value)| value.to_owned())));
        }
        if answer.stage() != stage {
            return Err(Error::Protocol("a login response is for another stage"));
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(Error::Protocol("the login takes too many responses"));
        }
        self.gather.add(text, TEXT_MAX).map_err(|_| Error::Protocol("the text of a login response is too long"))?;
        if answer.flags & CONTINUE != 0 {
            return Ok(StageText::Partial(Request { stage, transit: None, text: Vec::new() }));
        }
        let mut own = [const { None }; N];
        let mut unknown = Vec::new();
        for pair in text::pairs(&self.gather.take()) {
            let (key, value) =
                pair.map_err(|_| Error::Protocol("a login response contains no valid key=value text"))?;
            if let Some(at) = keys.iter().position(|own| *own == key) {
                if own[at].replace(value.to_owned()).is_some() {
                    return Err(Error::Protocol("a login response contains a key twice"));
                }
                continue;
            }
            match self.agreed.take(&self.offer, key, value).map_err(|key| Error::Key(key.to_owned()))? {
                KeyOutcome::Understood => {}
                KeyOutcome::Unknown => text::put(&mut unknown, key, text::NOT_UNDERSTOOD),
            }
        }
        Ok(StageText::Complete { own, unknown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_iscsi::wire::{Pdu, login_flags};

    fn answer(flags: u8) -> LoginResponse {
        LoginResponse { flags, ..LoginResponse::blank() }
    }

    fn start() -> Login {
        Login::start(Offer { target: Some("iqn.x".into()), ..Offer::default() }).0
    }

    fn security_over() -> Login {
        let granted = answer(login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)));
        match start().handle(&granted, b"AuthMethod=None\0TargetPortalGroupTag=1\0") {
            Ok(Next::Send(login @ Login::Operational(_), request)) => {
                assert_eq!((request.stage, request.transit), (Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)));
                login
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_login_without_authentication_takes_two_stages() {
        let granted = answer(login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)));
        match security_over().handle(&granted, b"MaxBurstLength=4096\0FirstBurstLength=8192\0") {
            Ok(Next::Done(agreed)) => {
                assert_eq!((agreed.max_burst_length, agreed.first_burst_length), (4096, 4096));
                assert_eq!(agreed.initiator_segment, 262_144);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn continued_text_is_joined_and_unknown_keys_are_answered() {
        let more = answer(login_flags(Stage::OPERATIONAL, None) | CONTINUE);
        let Ok(Next::Send(login, request)) = security_over().handle(&more, b"MaxBurst") else { panic!() };
        assert_eq!(request, Request { stage: Stage::OPERATIONAL, transit: None, text: Vec::new() });
        let last = answer(login_flags(Stage::OPERATIONAL, None));
        let Ok(Next::Send(_, request)) = login.handle(&last, b"Length=512\0X-new=1\0") else { panic!() };
        assert_eq!((request.transit, &request.text[..]), (Some(Stage::FULL_FEATURE), &b"X-new=NotUnderstood\0"[..]));
    }

    #[test]
    fn a_refusal_carries_the_status_and_a_redirection_the_new_address() {
        let mut refused = answer(0);
        refused.status.set(LoginStatus::NOT_FOUND.0);
        assert_eq!(start().handle(&refused, b"").err(), Some(Error::Login(LoginStatus::NOT_FOUND, None)));
        refused.status.set(LoginStatus::MOVED_TEMPORARILY.0);
        let moved = start().handle(&refused, b"TargetAddress=10.0.0.1:3261,1\0").err();
        assert_eq!(moved, Some(Error::Login(LoginStatus::MOVED_TEMPORARILY, Some("10.0.0.1:3261,1".into()))));
    }

    #[test]
    fn invalid_login_responses_are_errors() {
        let wrong_stage = answer(login_flags(Stage::OPERATIONAL, None));
        assert!(matches!(start().handle(&wrong_stage, b""), Err(Error::Protocol(_))));
        let jump = answer(login_flags(Stage::SECURITY, Some(Stage::FULL_FEATURE)));
        assert!(matches!(start().handle(&jump, b""), Err(Error::Protocol(_))));
        let granted = answer(login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)));
        assert_eq!(start().handle(&granted, b"AuthMethod=CHAP\0").err(), Some(Error::Key("AuthMethod".into())));
        assert!(matches!(start().handle(&granted, b"no end"), Err(Error::Protocol(_))));
    }

    #[test]
    fn a_login_that_never_ends_is_given_up() {
        let mut login = start();
        for _ in 0..ROUNDS_MAX {
            match login.handle(&answer(login_flags(Stage::SECURITY, None)), b"") {
                Ok(Next::Send(next, _)) => login = next,
                other => panic!("{other:?}"),
            }
        }
        assert!(login.handle(&answer(login_flags(Stage::SECURITY, None)), b"").is_err());
    }
}
