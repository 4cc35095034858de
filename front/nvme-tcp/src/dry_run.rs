//! A Connect without effect, for an operator who asks why it is refused: the decisions of the directory of subsystems
//! and of the [`Authenticator`] in their order.

use crate::schema::WORD;
use lunar_control::explain::{LoginQuestion, LoginVerdict, StepView};
use lunar_nvme::auth::authenticator::{Authenticator, LoginAttempt, Reason};
use lunar_nvme::connect::is_qualified;
use lunar_nvme::path::DISCOVERY_NQN;
use lunar_nvme::{Kind, SubsystemRegistry};
use std::net::SocketAddr;

/// The decision about a Connect.
pub(crate) fn of(
    authenticator: &Authenticator,
    subsystems: &SubsystemRegistry,
    question: &LoginQuestion,
) -> LoginVerdict {
    let mut steps = Vec::new();
    let outcome = decide(authenticator, subsystems, question, &mut steps);
    LoginVerdict { steps, outcome: outcome.map_err(Reason::code) }
}

fn decide(
    authenticator: &Authenticator,
    subsystems: &SubsystemRegistry,
    question: &LoginQuestion,
    steps: &mut Vec<StepView>,
) -> Result<Option<String>, Reason> {
    let (host, source) = (&question.host, question.source);
    let mut step = |words: String, outcome: Result<(), Reason>| {
        steps.push(StepView { passed: outcome.is_ok(), words });
        outcome
    };
    let directory = subsystems.directory();
    if let Some(name) = &question.target {
        let found = directory.subsystem(name).map(|_| ()).ok_or(Reason::NoSubsystem);
        step(format!("the subsystem {name} exists and accepts hosts"), found)?;
        if let Some(group) = question.portal_group {
            let reached = directory.reached(name, group).map(|_| ());
            step("the subsystem is reached through the portal".to_owned(), reached)?;
        }
    }
    let named = if is_qualified(host) { Ok(()) } else { Err(Reason::NotQualified) };
    step(format!("{} is an NQN", host.escape_debug()), named)?;
    let (subsystem, kind) = match &question.target {
        Some(name) => (name.as_str(), Kind::Io),
        None => (DISCOVERY_NQN, Kind::Discovery),
    };
    let attempt = LoginAttempt {
        host: host.as_str().into(),
        subsystem: subsystem.into(),
        kind,
        queue: 0,
        transport: WORD,
        source: SocketAddr::new(source, 0),
        // A connection with TLS exists only with a key that is configured for the host.
        tls_peer: if question.tls { authenticator.tls_peer(host, subsystem) } else { None },
    };
    let admitted = authenticator.admit(&attempt);
    match admitted.as_ref().map_err(|reason| *reason) {
        Err(reason @ (Reason::NotShown | Reason::WrongNetwork)) => {
            return step(format!("a group of the subsystem lists the host at {source}"), Err(reason)).map(|()| None);
        }
        Err(_) => step(format!("a group of the subsystem lists the host at {source}"), Ok(()))?,
        Ok(entry) => step(format!("group {} lists the host at {source}", entry.group), Ok(()))?,
    }
    let entry = admitted.or_else(|reason| {
        let words = match reason {
            Reason::TlsRequired => "the connection uses TLS with a key of the group",
            Reason::NoKey => "a user of the group has a DH-HMAC-CHAP key for the host",
            _ => "the host is admitted",
        };
        step(words.to_owned(), Err(reason)).and(Err(reason))
    })?;
    let words = match &entry.participants {
        None => "no authentication is required",
        Some(_) => "the host must authenticate by DH-HMAC-CHAP, and a user of the group has a key for it",
    };
    step(words.to_owned(), Ok(()))?;
    Ok(Some(entry.group.to_string()).filter(|_| kind == Kind::Io))
}
