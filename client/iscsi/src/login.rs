//! The login (RFC 7143 clause 6): two stages, each a value that an answer consumes.

use crate::Error;
use crate::chap::{self, Algorithms, Method, Proof};
use crate::config::{Agreed, Heard, Offer};
use lunar_iscsi::text::{self, TextBuffer};
use lunar_iscsi::wire::{CONTINUE, LoginResponse, LoginStatus, Stage, TRANSIT};

/// Requests until an initiator gives a login up: two stages take two, a talkative target a few more.
const ROUNDS_MAX: u32 = 16;
/// Text that a target may send in one answer of several PDUs.
const TEXT_MAX: usize = 64 << 10;

/// A request to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) stage: Stage,
    /// The stage that is asked for, unless the target's text goes on.
    pub(crate) transit: Option<Stage>,
    pub(crate) text: Vec<u8>,
}

/// What both stages know.
#[derive(Debug)]
pub(crate) struct Talk {
    offer: Offer,
    agreed: Agreed,
    gather: TextBuffer,
    rounds: u32,
}

/// SecurityNegotiation: names are told, no authentication is offered. With it, the states of [`chap`] come instead.
#[derive(Debug)]
pub(crate) struct Security(Box<Talk>);

/// LoginOperationalNegotiation.
#[derive(Debug)]
pub(crate) struct Operational(Box<Talk>);

/// A login under way.
#[derive(Debug)]
pub(crate) enum Login {
    Security(Security),
    Method(Method),
    Algorithms(Algorithms),
    Proof(Proof),
    Operational(Operational),
}

/// What follows an answer.
#[derive(Debug)]
pub(crate) enum Next {
    Send(Login, Request),
    Done(Agreed),
}

impl Login {
    /// The first request.
    pub(crate) fn start(mut offer: Offer) -> (Self, Request) {
        let mut names = offer.names();
        let chap = offer.chap.take();
        let talk = Box::new(Talk { offer, agreed: Agreed::default(), gather: TextBuffer::default(), rounds: 0 });
        if let Some(chap) = chap {
            chap::proposal(&mut names);
            let request = Request { stage: Stage::SECURITY, transit: None, text: names };
            return (Self::Method(Method(talk, Box::new(chap))), request);
        }
        text::put(&mut names, "AuthMethod", text::NONE);
        let request = Request { stage: Stage::SECURITY, transit: Some(Stage::OPERATIONAL), text: names };
        (Self::Security(Security(talk)), request)
    }

    pub(crate) fn handle(self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self {
            Self::Security(state) => state.handle(answer, text),
            Self::Method(state) => state.handle(answer, text),
            Self::Algorithms(state) => state.handle(answer, text),
            Self::Proof(state) => state.handle(answer, text),
            Self::Operational(state) => state.handle(answer, text),
        }
    }
}

impl Security {
    fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self.0.hear(answer, text, Stage::SECURITY, Stage::OPERATIONAL)? {
            Step::More(request) => Ok(Next::Send(Login::Security(self), request)),
            Step::Over(_) => Ok(Operational::begin(self.0)),
        }
    }
}

impl Operational {
    /// The stage's first request.
    pub(crate) fn begin(talk: Box<Talk>) -> Next {
        let text = talk.offer.operational();
        let request = Request { stage: Stage::OPERATIONAL, transit: Some(Stage::FULL_FEATURE), text };
        Next::Send(Login::Operational(Self(talk)), request)
    }

    fn handle(mut self, answer: &LoginResponse, text: &[u8]) -> Result<Next, Error> {
        match self.0.hear(answer, text, Stage::OPERATIONAL, Stage::FULL_FEATURE)? {
            Step::More(request) => Ok(Next::Send(Login::Operational(self), request)),
            Step::Over(unknown) if unknown.is_empty() => {
                let mut agreed = self.0.agreed;
                // A key that was refused, or passed over, leaves its default.
                if let Some(key) = self.0.offer.misses(&agreed) {
                    return Err(Error::Key(key.to_owned()));
                }
                agreed.initiator_segment = self.0.offer.max_recv_data_segment_length;
                // FirstBurstLength must not exceed MaxBurstLength (13.14): the smaller one holds.
                agreed.first_burst_length = agreed.first_burst_length.min(agreed.max_burst_length);
                Ok(Next::Done(agreed))
            }
            Step::Over(_) => Err(Error::Protocol("a login ended with a key of the target unanswered")),
        }
    }
}

/// What an answer says.
pub(crate) enum Listened<const N: usize> {
    /// It goes on.
    More(Request),
    /// All is said.
    All {
        /// The values of the state's own keys.
        own: [Option<String>; N],
        /// The keys that the target asked and that are not known.
        unknown: Vec<u8>,
    },
}

enum Step {
    More(Request),
    /// The stage is over; the keys that the target asked and that are not known.
    Over(Vec<u8>),
}

impl Talk {
    fn hear(&mut self, answer: &LoginResponse, text: &[u8], stage: Stage, next: Stage) -> Result<Step, Error> {
        let ([method], unknown) = match self.listen(answer, text, stage, ["AuthMethod"])? {
            Listened::More(request) => return Ok(Step::More(request)),
            Listened::All { own, unknown } => (own, unknown),
        };
        if method.is_some_and(|method| method != text::NONE) {
            return Err(Error::Key("AuthMethod".to_owned()));
        }
        if answer.flags & TRANSIT == 0 {
            return Ok(Step::More(Request { stage, transit: Some(next), text: unknown }));
        }
        match answer.next_stage() == next {
            true => Ok(Step::Over(unknown)),
            false => Err(Error::Protocol("a login answer grants a stage that was not asked for")),
        }
    }

    /// Takes an answer; the values of these keys are handed on.
    pub(crate) fn listen<const N: usize>(
        &mut self,
        answer: &LoginResponse,
        text: &[u8],
        stage: Stage,
        keys: [&str; N],
    ) -> Result<Listened<N>, Error> {
        if answer.status.get() != LoginStatus::SUCCESS.0 {
            let address = text::pairs(text).flatten().find(|(key, _)| *key == "TargetAddress");
            return Err(Error::Login(LoginStatus(answer.status.get()), address.map(|(_, value)| value.to_owned())));
        }
        if answer.stage() != stage {
            return Err(Error::Protocol("a login answer is of another stage"));
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(Error::Protocol("a login does not end"));
        }
        self.gather.add(text, TEXT_MAX).map_err(|_| Error::Protocol("a login answer is too long"))?;
        if answer.flags & CONTINUE != 0 {
            return Ok(Listened::More(Request { stage, transit: None, text: Vec::new() }));
        }
        let mut own = [const { None }; N];
        let mut unknown = Vec::new();
        for pair in text::pairs(&self.gather.take()) {
            let (key, value) = pair.map_err(|_| Error::Protocol("a login answer is not text"))?;
            if let Some(at) = keys.iter().position(|own| *own == key) {
                if own[at].replace(value.to_owned()).is_some() {
                    return Err(Error::Protocol("a login answer says something twice"));
                }
                continue;
            }
            match self.agreed.take(&self.offer, key, value).map_err(|key| Error::Key(key.to_owned()))? {
                Heard::Understood => {}
                Heard::Unknown => text::put(&mut unknown, key, text::NOT_UNDERSTOOD),
            }
        }
        Ok(Listened::All { own, unknown })
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
    fn two_stages() {
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
    fn text_that_goes_on_is_waited_for_and_unknown_keys_are_answered() {
        let more = answer(login_flags(Stage::OPERATIONAL, None) | CONTINUE);
        let Ok(Next::Send(login, request)) = security_over().handle(&more, b"MaxBurst") else { panic!() };
        assert_eq!(request, Request { stage: Stage::OPERATIONAL, transit: None, text: Vec::new() });
        let last = answer(login_flags(Stage::OPERATIONAL, None));
        let Ok(Next::Send(_, request)) = login.handle(&last, b"Length=512\0X-new=1\0") else { panic!() };
        assert_eq!((request.transit, &request.text[..]), (Some(Stage::FULL_FEATURE), &b"X-new=NotUnderstood\0"[..]));
    }

    #[test]
    fn refusals_and_moves() {
        let mut refused = answer(0);
        refused.status.set(LoginStatus::NOT_FOUND.0);
        assert_eq!(start().handle(&refused, b"").err(), Some(Error::Login(LoginStatus::NOT_FOUND, None)));
        refused.status.set(LoginStatus::MOVED_TEMPORARILY.0);
        let moved = start().handle(&refused, b"TargetAddress=10.0.0.1:3261,1\0").err();
        assert_eq!(moved, Some(Error::Login(LoginStatus::MOVED_TEMPORARILY, Some("10.0.0.1:3261,1".into()))));
    }

    #[test]
    fn what_a_target_may_not_do() {
        let wrong_stage = answer(login_flags(Stage::OPERATIONAL, None));
        assert!(matches!(start().handle(&wrong_stage, b""), Err(Error::Protocol(_))));
        let jump = answer(login_flags(Stage::SECURITY, Some(Stage::FULL_FEATURE)));
        assert!(matches!(start().handle(&jump, b""), Err(Error::Protocol(_))));
        let granted = answer(login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)));
        assert_eq!(start().handle(&granted, b"AuthMethod=CHAP\0").err(), Some(Error::Key("AuthMethod".into())));
        assert!(matches!(start().handle(&granted, b"no end"), Err(Error::Protocol(_))));
    }

    #[test]
    fn a_target_that_never_grants_is_given_up() {
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
