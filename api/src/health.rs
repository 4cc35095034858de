//! `GET /livez` and `GET /readyz`: whether the process works, and whether everything that is configured is served. They
//! need no token, so they contain no names.

use crate::request::{Reply, Shared};
use std::time::Duration;

/// The longest wait for the cores: a core never blocks, so one that does not answer within this time hangs or is
/// overloaded.
const CORE_PATIENCE: Duration = Duration::from_secs(2);

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The code: one word.
    pub code: &'static str,
    /// The reason of the failure; `None` if the check passed.
    pub failure: Option<String>,
}

/// The checks of a health route.
pub type Checks = fn(&Shared) -> Vec<Check>;

/// The checks of `/livez`: a process that fails one must be restarted.
#[must_use]
pub fn live(shared: &Shared) -> Vec<Check> {
    // A daemon that starts opens its volumes, and is alive.
    let silent = shared.measured.get().map_or(0, |measured| measured.silent_cores(CORE_PATIENCE).len());
    let words = format!("{silent} cores do not answer within {} seconds", CORE_PATIENCE.as_secs());
    vec![Check { code: "cores", failure: (silent > 0).then_some(words) }]
}

/// The checks of `/readyz`: a process that fails one does not serve everything that is configured.
#[must_use]
pub fn ready(shared: &Shared) -> Vec<Check> {
    let is_starting = shared.starting_status().is_some();
    let seen = shared.seen();
    let count = |section: &str, kinds: &[&str]| {
        let of_section = seen.troubles.iter().filter(|trouble| trouble.subject.starts_with(section));
        of_section.filter(|trouble| kinds.contains(&trouble.kind)).count()
    };
    let (portals, volumes) = (count("portal ", &["unavailable", "closed-portal"]), count("volume ", &["unavailable"]));
    let counted = |count: usize, what: &str| (count > 0).then(|| format!("{count} {what}; see `lunar status`"));
    let mut checks = live(shared);
    checks.extend([
        Check { code: "started", failure: is_starting.then(|| "the volumes are being opened".to_owned()) },
        Check { code: "portals", failure: counted(portals, "portals do not listen") },
        Check { code: "volumes", failure: counted(volumes, "volumes are unavailable") },
    ]);
    checks
}

/// The reply with the results: one line for each check that failed; if `verbose`, for each check.
#[must_use]
pub fn reply(checks: &[Check], verbose: bool) -> Reply {
    let is_well = checks.iter().all(|check| check.failure.is_none());
    let mut text = String::new();
    for check in checks {
        match &check.failure {
            Some(words) => text.push_str(&format!("{}: {words}\n", check.code)),
            None if verbose => text.push_str(&format!("{}: ok\n", check.code)),
            None => {}
        }
    }
    if is_well && !verbose {
        text.push_str("ok\n");
    }
    let status = if is_well { 200 } else { 503 };
    Reply { status, media: "text/plain; charset=utf-8", body: text.into_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_has_a_line_and_the_status_is_503() {
        let checks = [
            Check { code: "cores", failure: None },
            Check { code: "volumes", failure: Some("1 volumes are unavailable".to_owned()) },
        ];
        let of = |checks: &[Check], verbose| {
            let Reply { status, body, .. } = reply(checks, verbose);
            (status, String::from_utf8(body).expect("text"))
        };
        assert_eq!(of(&checks, false), (503, "volumes: 1 volumes are unavailable\n".into()));
        assert_eq!(of(&checks, true), (503, "cores: ok\nvolumes: 1 volumes are unavailable\n".into()));
        assert_eq!(of(&checks[..1], false), (200, "ok\n".into()));
        assert_eq!(of(&checks[..1], true), (200, "cores: ok\n".into()));
    }
}
