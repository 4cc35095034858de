//! The state of the service: whether it runs, its troubles, its state folder.

use super::words::{MIB, mib};
use crate::doctor::facts::{Facts, shell};
use crate::doctor::finding::Finding;
use crate::doctor::table::Code;

/// The least free space for the state: several versions of a large configuration.
const STATE_FREE_MIN: u64 = 16 * MIB;

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(why) = &facts.silent {
        let found = Finding::new(Code::ServiceDown, "service lunar").shows("reason", why);
        findings.push(found.command("systemctl start lunar || journalctl -u lunar -n 20 --no-pager"));
    }
    let status = facts.status.as_ref();
    let list = |key: &str| status.and_then(|status| status[key].as_array()).into_iter().flatten();
    for trouble in list("troubles") {
        let of = |key: &str| trouble[key].as_str().unwrap_or_default();
        let found = Finding::new(Code::Trouble, of("subject")).words(of("words")).shows("trouble", of("kind"));
        let command = match of("kind") {
            "pending-edit" => "lunar plan && lunar apply",
            "replaced-program" => "systemctl restart lunar",
            _ => "lunar status",
        };
        let remedy = if of("remedy").is_empty() { Code::Trouble.remedy() } else { of("remedy") };
        findings.push(found.remedy(remedy).command(command));
    }
    for change in list("after-restart").filter_map(|change| change.as_str()) {
        let found = Finding::new(Code::RestartPending, "service lunar").shows("change", change);
        findings.push(found.command("systemctl restart lunar"));
    }
    let Some(state) = &facts.state else { return };
    let subject = format!("state folder {}", state.path.display());
    if let Some(folder) = state.modes.last().filter(|folder| !facts.user.may(folder, 7)) {
        let found = Finding::new(Code::StateNotWritable, &subject)
            .shows("user", &facts.user.name)
            .shows("mode", format!("{:04o}", folder.mode & 0o7777))
            .shows("owner", folder.owner);
        let path = shell(&folder.path);
        findings.push(found.command(format!("chown {} {path} && chmod 700 {path}", facts.user.owner())));
    }
    if let Some(system) = facts.file_system(state).filter(|system| system.free < STATE_FREE_MIN) {
        let found = Finding::new(Code::StateFull, subject).shows("free", mib(system.free));
        findings.push(found.command(format!("du -xh -d 1 {} | sort -h | tail", shell(&system.place))));
    }
}
