//! A login without effect, for an operator who asks why it is refused: the decisions of [`Directory`] and [`Registry`]
//! in their order.

use crate::directory::{Admission, Directory, LoginRoute};
use crate::registry::Registry;
use lunar_control::explain::{LoginQuestion, LoginVerdict, StepView};
use lunar_core::access::Credentials;
use lunar_core::access::refusal::RefusalCode;

/// The decision about a login.
pub(crate) fn of(directory: &Directory, registry: &Registry, question: &LoginQuestion) -> LoginVerdict {
    let mut steps = Vec::new();
    let outcome = decide(directory, registry, question, &mut steps);
    LoginVerdict { steps, outcome }
}

fn decide(
    directory: &Directory,
    registry: &Registry,
    question: &LoginQuestion,
    steps: &mut Vec<StepView>,
) -> Result<Option<String>, RefusalCode> {
    let (host, source) = (question.host.to_ascii_lowercase(), question.source);
    let target = question.target.as_ref().map(|name| name.to_ascii_lowercase());
    let admission = directory.admit(target.as_deref(), &host, source);
    if let Some(name) = &target {
        let is_known = !matches!(admission, Err(RefusalCode::NoTarget));
        step(steps, is_known, &format!("the target {name} exists and accepts logins"), RefusalCode::NoTarget)?;
    }
    let Admission { entry, group, credentials } = admission.inspect_err(|code| {
        steps.push(StepView::failed(match code {
            RefusalCode::WrongNetwork => format!("a group of the target lists {host} at {source}"),
            _ => format!("a group of the target lists {host}"),
        }));
    })?;
    if let Some(group) = &group {
        steps.push(StepView::passed(format!("group {} lists {host} at {source}", group.name)));
    }
    if let (Some(entry), Some(tag)) = (&entry, question.portal_group) {
        let route = entry.route(tag);
        let reached = "the target is reached through the portal";
        step(steps, route.is_ok(), reached, RefusalCode::OtherPortal)?;
        if let Ok(LoginRoute::Moved(moved)) = route {
            steps.push(StepView::failed(format!("the target is served here, not at {}", moved.address)));
            return Err(RefusalCode::Moved);
        }
    } else if let Some(moved) = entry.as_ref().and_then(|entry| entry.moved) {
        steps.push(StepView::failed(format!("the target is served here, not at {}", moved.address)));
        return Err(RefusalCode::Moved);
    }
    authentication(&credentials, question.user.as_deref(), steps)?;
    if let Some(entry) = &entry {
        let has_room = registry.admits(source, (&entry.name, entry.sessions_max), directory.sessions_max);
        step(steps, has_room, "a session more is within the limits", RefusalCode::Full)?;
    }
    Ok(group.map(|group| group.name.to_string()))
}

fn step(steps: &mut Vec<StepView>, passed: bool, words: &str, code: RefusalCode) -> Result<(), RefusalCode> {
    steps.push(StepView { passed, words: words.to_owned() });
    if passed { Ok(()) } else { Err(code) }
}

fn authentication(credentials: &Credentials, user: Option<&str>, steps: &mut Vec<StepView>) -> Result<(), RefusalCode> {
    if credentials.users.is_empty() {
        steps.push(StepView::passed("no authentication is required"));
        return Ok(());
    }
    let names: Vec<&str> = credentials.users.iter().map(|user| &*user.name).collect();
    let names = names.join(", ");
    match user {
        None => {
            let words = format!("the initiator must authenticate by CHAP as one of these users: {names}");
            steps.push(StepView::passed(words));
        }
        Some(user) => {
            let is_known = credentials.user(user).is_some();
            let words = format!("{} is one of the users that may log in", user.escape_debug());
            step(steps, is_known, &words, RefusalCode::UnknownUser)?;
        }
    }
    if let Some(own) = &credentials.target {
        let words = format!("the target authenticates as {} if the initiator requires it", own.name);
        steps.push(StepView::passed(words));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::directory::TargetEntry;
    use lunar_core::access::{Access, Account, Group, Pattern, Secret};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    fn directory() -> Directory {
        let secret = Secret::new(b"a long secret".to_vec()).expect("long enough");
        let users = vec![Account { name: "esx".into(), secret }];
        let group = Group {
            name: "esx".into(),
            hosts: vec![Pattern::new("iqn.x:esx*")],
            sources: vec!["10.0.0.0/24".parse().expect("a network")],
            credentials: Credentials { users, target: None },
            ..Group::everybody()
        };
        let mut directory = Directory::new(Duration::ZERO);
        directory.add(TargetEntry {
            name: "iqn.x:disk".into(),
            alias: "".into(),
            ports: BTreeMap::from([(1, 1)]),
            access: Arc::new(Access::new(vec![group], Credentials::default()).expect("right")),
            session: Arc::new(Config::default()),
            sessions_max: 1,
            moved: None,
        });
        directory
    }

    fn question() -> LoginQuestion {
        LoginQuestion {
            host: "iqn.X:esx1".into(),
            target: Some("iqn.x:DISK".into()),
            source: [10, 0, 0, 7].into(),
            portal_group: Some(1),
            user: Some("esx".into()),
            tls: false,
        }
    }

    fn outcome(question: &LoginQuestion) -> (Result<Option<String>, RefusalCode>, bool) {
        let dry_run = of(&directory(), &Registry::new(), question);
        let last = dry_run.steps.last().is_some_and(|step| step.passed);
        let failed = dry_run.steps.iter().filter(|step| !step.passed).count();
        assert!(failed <= 1, "{dry_run:?}");
        (dry_run.outcome, last)
    }

    #[test]
    fn a_rehearsal_stops_at_the_first_step_that_is_not_passed() {
        assert_eq!(outcome(&question()), (Ok(Some("esx".into())), true));
        let refused = [
            (RefusalCode::NoTarget, LoginQuestion { target: Some("iqn.x:disc".into()), ..question() }),
            (RefusalCode::NotShown, LoginQuestion { host: "iqn.x:other".into(), ..question() }),
            (RefusalCode::WrongNetwork, LoginQuestion { source: [10, 0, 1, 7].into(), ..question() }),
            (RefusalCode::OtherPortal, LoginQuestion { portal_group: Some(2), ..question() }),
            (RefusalCode::UnknownUser, LoginQuestion { user: Some("ESX".into()), ..question() }),
        ];
        for (code, question) in refused {
            assert_eq!(outcome(&question), (Err(code), false));
        }
        let discovery = LoginQuestion { target: None, user: None, ..question() };
        assert_eq!(outcome(&discovery), (Ok(None), true));
    }
}
