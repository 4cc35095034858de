//! The handlers of the routes. The server has authorized the caller before it calls a handler.

use crate::audit::Topic;
use crate::control::Control;
use crate::request::{ApiRequest, Outcome, Problem, Reply, Shared, reply_with_steps, shortened, stopping, summary_of};
use lunar_control::api::{
    Ejection, Mapping, MediumView, ProblemDetails, Resource, SessionView, StatusView, VersionView,
};
use lunar_control::check::Checked;
use lunar_control::common_sections::Group;
use lunar_control::config::Config;
use lunar_control::document::Edit;
use lunar_control::live::{Later, Motion, TcpViews};
use lunar_control::names::Pattern;
use lunar_control::redact::without_secrets;
use lunar_control::versions::difference;
use lunar_control::{Kind, Plan, docs};
use lunar_core::access::audit::shown;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most bytes of a version that is compared with the one before it for the list: the control thread reads all of
/// them in a fraction of a second.
const COMPARED_BYTES_MAX: usize = 256 << 10;

/// Clients of a volume that are named because they have not read its size: more than an operator reads.
const UNREAD_MAX: usize = 16;

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// `GET /v1/status`
pub fn status(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    Reply::json(&status_view(control, &request.shared))
}

/// The status of the service.
pub(crate) fn status_view(control: &mut dyn Control, shared: &Shared) -> StatusView {
    let sessions = control.sessions().len();
    let troubles = shared.tell_troubles(control);
    let (machines, isns, stores) = (control.vms(), control.isns(), control.stores());
    let current = control.current();
    let named = shared.schema.kinds().into_iter().filter(|kind| kind.is_named());
    let things = named.map(|kind| (kind.section(), current.config.names(kind).len())).collect();
    let after_restart = match shared.initial.get() {
        Some(first) => {
            let plan = Plan::between(first, current);
            let late = plan.changes.into_iter().filter(|change| change.effect == lunar_control::Effect::Restart);
            late.map(|change| change.words).collect()
        }
        None => Vec::new(),
    };
    let no_namespaces = no_namespaces(&current.config);
    StatusView {
        version: shared.version.clone(),
        process: std::process::id(),
        since: seconds(shared.since),
        file: control.file().to_owned(),
        things,
        sessions,
        machines,
        isns,
        certificates: shared.certificates().into_iter().map(|(name, expiry)| (name, expiry.seconds)).collect(),
        after_restart,
        stores,
        unread_sizes: unread_sizes(control),
        no_namespaces,
        troubles,
    }
}

/// The volumes of groups at targets for NVMe hosts that those hosts do not see, with the reason.
fn no_namespaces(config: &Config) -> BTreeMap<String, &'static str> {
    const OF_SCSI: [&str; 3] = ["iqn.", "eui.", "naa."];
    let may_be_host = |pattern: &Pattern| OF_SCSI.iter().all(|start| !pattern.as_str().starts_with(start));
    let has_hosts = |group: &&Arc<Group>| {
        let mut targets = group.targets.names().filter_map(|target| config.targets.get(target));
        group.initiators.iter().any(may_be_host) && targets.any(|target| target.nqn.is_some())
    };
    let mapped = config.groups.values().filter(has_hosts).flat_map(|group| group.luns.0.values());
    let reason = |name: &str| Some((name.to_owned(), config.volumes.get(name)?.why_no_namespace()?));
    mapped.filter_map(|lun| reason(lun.volume.name())).collect()
}

/// The clients that have not read the new size of a volume, by volume.
fn unread_sizes(control: &mut dyn Control) -> BTreeMap<String, Vec<String>> {
    let volumes: Vec<String> = control.current().config.volumes.keys().cloned().collect();
    let unread = volumes.into_iter().map(|volume| {
        let clients = control.unread_size(&volume);
        (volume, clients.iter().take(UNREAD_MAX).map(|client| shown(client).to_string()).collect::<Vec<_>>())
    });
    unread.filter(|(_, clients)| !clients.is_empty()).collect()
}

/// `GET /v1/statistics`
pub fn statistics(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.statistics())
}

/// `GET /v1/history`
pub fn history(request: &ApiRequest) -> Outcome {
    Reply::json(&request.shared.history.view(request.parameter("volume")))
}

/// `GET /v1/session`
pub fn sessions(control: &mut dyn Control, _: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let mut all = control.sessions();
    let tcp = control.tcp(None);
    Ok(Box::new(move || {
        add_tcp(&mut all, tcp());
        Reply::json(&all)
    }))
}

/// Adds the state of their TCP connections to sessions.
pub(crate) fn add_tcp(sessions: &mut [SessionView], mut states: TcpViews) {
    for session in sessions {
        session.tcp = states.remove(&session.id).unwrap_or_default();
    }
}

/// `GET /v1/handler`
pub fn volume_handlers(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.handlers())
}

/// `GET /v1/local-disk`
pub fn local_disks(control: &mut dyn Control, _: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let ask = control.local_disks();
    Ok(Box::new(move || Reply::json(&ask())))
}

fn find_session(control: &mut dyn Control, id: &str) -> Result<SessionView, Problem> {
    let found = control.sessions().into_iter().find(|session| session.id == id);
    found.ok_or_else(|| Problem::not_found(format!("there is no session {}; it may have ended", shortened(id))))
}

/// `GET /v1/session/{id}`
pub fn session(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let mut session = find_session(control, request.parameter("id"))?;
    let tcp = control.tcp(Some(&session.id));
    Ok(Box::new(move || {
        add_tcp(std::slice::from_mut(&mut session), tcp());
        Reply::json(&session)
    }))
}

/// `DELETE /v1/session/{id}`
pub fn kick(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let session = find_session(control, request.parameter("id"))?;
    let ended = || Problem::not_found(format!("session {} has ended meanwhile", session.id));
    let end = control.kick(&session.id, request.force)?.ok_or_else(ended)?;
    let (shared, caller) = (request.shared.clone(), request.caller.name.clone());
    Ok(Box::new(move || {
        if !end() {
            let why = format!("session {} ends when its commands in the store have completed", session.id);
            return Err(ProblemDetails::new("/problems/late", "The request takes long", 504, why).into());
        }
        let words = format!(
            "session {} of {} from {} was ended by the operator",
            session.id, session.initiator, session.source
        );
        shared.audit_log.add(Topic::Logout, &caller, &words);
        Reply::json(&session)
    }))
}

fn medium_of(control: &mut dyn Control, volume: &str) -> Result<MediumView, Problem> {
    let found = control.medium(volume);
    let is_unavailable = || control.current().config.volumes.contains_key(volume);
    found.ok_or_else(|| match is_unavailable() {
        true => Problem::not_found(format!("volume '{volume}' is unavailable; `lunar status` shows the reason")),
        false => Problem::not_found(format!("there is no volume '{}'", shortened(volume))),
    })
}

/// `GET /v1/volume/{name}/medium`
pub fn medium(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    Reply::json(&medium_of(control, &request.name())?)
}

/// `POST /v1/volume/{name}/eject`
pub fn eject(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let Ejection { forced } = request.json()?;
    move_medium(control, request, Motion::Eject { forced })
}

/// `POST /v1/volume/{name}/load`
pub fn load(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    move_medium(control, request, Motion::Load)
}

/// `POST /v1/volume/{name}/accept`
pub fn accept(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let (shared, caller, name) = (request.shared.clone(), request.caller.name.clone(), request.name());
    let before = medium_of(control, &name)?;
    let answers = control.store_answers(&name);
    let control_thread = request.control_thread.clone();
    Ok(Box::new(move || {
        let volume = name.clone();
        // A store that does not answer would keep the control thread.
        let accepted = match answers() {
            Ok(()) => control_thread.change(move |control| control.accept_store(&volume)).ok_or_else(stopping)?,
            refused => refused,
        };
        accepted.map_err(|why| {
            ProblemDetails::new("/problems/store", "The store was not accepted", 409, format!("volume {name}: {why}"))
        })?;
        let words = format!("volume {name}: the store that is at its place was accepted");
        shared.audit_log.add(Topic::Change, &caller, &words);
        Reply::json(&before)
    }))
}

fn move_medium(control: &mut dyn Control, request: &ApiRequest, motion: Motion) -> Result<Later<Outcome>, Problem> {
    let (shared, caller, name) = (request.shared.clone(), request.caller.name.clone(), request.name());
    let before = medium_of(control, &name)?;
    let missing = || Problem::not_found(format!("volume {name} has been removed meanwhile"));
    let task = control.move_medium(&name, motion).ok_or_else(missing)?;
    Ok(Box::new(move || {
        if let Err(why) = task() {
            let why = format!("volume {name}: {why}");
            return Err(ProblemDetails::new("/problems/stuck", "The medium was not moved", 409, why).into());
        }
        let (loaded, did) = match motion {
            Motion::Eject { .. } => (false, "ejected"),
            Motion::Load => (true, "loaded"),
        };
        shared.audit_log.add(Topic::Change, &caller, &format!("volume {name} was {did}"));
        // A forced ejection ends the lock.
        Reply::json(&MediumView { loaded, locked: before.locked && loaded, ..before })
    }))
}

/// `GET /v1/audit`
pub fn audit(request: &ApiRequest) -> Outcome {
    Reply::json(&request.shared.audit_log.after(0).iter().map(|record| &**record).collect::<Vec<_>>())
}

/// `GET /v1/slow`
pub fn slow(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.slow())
}

/// `GET /v1/stages`
pub fn stages(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.stages())
}

/// `GET /v1/config`
pub fn config(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.current().config.show())
}

/// `GET /v1/config/text`
pub fn text(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::text(without_secrets(control.schema(), control.versions().text()))
}

/// `POST /v1/plan`
pub fn plan(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    reply_with_steps(&control.plan(request.text()?)?)
}

/// `POST /v1/diff`
pub fn diff(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let versions = control.versions();
    let text = match request.text()? {
        "" => versions.on_disk()?,
        text => text.to_owned(),
    };
    Reply::text(difference(control.schema(), versions.text(), &text))
}

/// `POST /v1/apply`
pub fn apply(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let text = request.text()?;
    if request.dry_run {
        return reply_with_steps(&control.plan(text)?);
    }
    request.changed(control.replace(text, request.author()))
}

/// `POST /v1/reload`
pub fn reload(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    match request.dry_run {
        true => {
            let text = control.versions().on_disk()?;
            reply_with_steps(&control.plan(&text)?)
        }
        false => request.changed(control.reload(request.force)),
    }
}

/// `GET /v1/version`
pub fn versions(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    let (schema, versions) = (control.schema(), control.versions());
    let all = versions.list()?;
    let mut before: Option<Checked> = None;
    let mut views = Vec::with_capacity(all.len());
    for version in &all {
        let text = versions.text_of(version.number)?;
        let is_short = text.len() <= COMPARED_BYTES_MAX;
        let now = is_short.then(|| Checked::of_version(schema, &text));
        let changes = before.zip(now.as_ref()).map(|(before, now)| summary_of(&Plan::between(&before, now)));
        views.push(VersionView::of(version, changes.unwrap_or_default()));
        before = now;
    }
    Reply::json(&views)
}

/// `GET /v1/version/{number}`
pub fn version(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    Reply::text(without_secrets(control.schema(), &control.versions().text_of(request.number("number")?)?))
}

/// `GET /v1/version/{number}/diff`
pub fn version_diff(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let versions = control.versions();
    Reply::text(difference(control.schema(), &versions.text_of(request.number("number")?)?, versions.text()))
}

/// `POST /v1/version/{number}/restore`
pub fn restore(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let number = request.number("number")?;
    match request.dry_run {
        true => reply_with_steps(&control.plan_restore(number)?),
        false => request.changed(control.restore(number, request.author())),
    }
}

/// `GET /v1/schema`
pub fn schema(request: &ApiRequest) -> Outcome {
    Reply::json(&docs::json_schema(request.shared.schema))
}

/// `GET /v1/KIND`
pub fn list(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    Reply::json(&Resource::all(&control.current().config, request.kind()?))
}

/// `GET /v1/KIND/{name}`
pub fn show(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let (kind, name) = (request.kind()?, request.name());
    let found = Resource::of(&control.current().config, kind, &name);
    let missing = || Problem::not_found(format!("there is no {kind} '{}'", shortened(&name)));
    let mut found = found.ok_or_else(missing)?;
    // A clone has the size of its file.
    if let Some(identity) = found.identity.as_mut().filter(|identity| identity.bytes.is_none()) {
        let volume = control.current().config.volumes.get(&name).filter(|volume| volume.kind.is_file());
        let path = volume.and_then(|volume| volume.path.as_ref());
        identity.bytes = path.and_then(|path| std::fs::metadata(path.path()).ok()).map(|found| found.len());
    }
    Reply::json(&found)
}

/// `POST /v1/KIND/{name}`
pub fn create(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let keys: Map<String, Json> = request.json()?;
    request.edit(control, lunar_control::api::edit(request.kind()?, request.name(), keys, true))
}

/// `PATCH /v1/KIND/{name}`
pub fn set(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let keys: Map<String, Json> = request.json()?;
    request.edit(control, lunar_control::api::edit(request.kind()?, request.name(), keys, false))
}

/// `DELETE /v1/KIND/{name}`
pub fn delete(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    request.edit(control, Edit::Delete { kind: request.kind()?, name: request.name() })
}

/// The end of the path of the protection information of a volume.
const PROTECTION_SUFFIX: &str = ".pi";

/// The files with the data of a volume.
fn data_files(control: &dyn Control, name: &str) -> Result<Vec<PathBuf>, Problem> {
    let config = &control.current().config;
    let missing = || Problem::not_found(format!("there is no volume '{}'", shortened(name)));
    let volume = config.volumes.get(name).ok_or_else(missing)?;
    let path = volume.path.as_ref().filter(|_| volume.kind.is_file());
    let no_file = || Problem::bad_request(format!("volume {name} is not in a file: delete it without its data"));
    let path = path.ok_or_else(no_file)?.path().to_owned();
    let mut protection = path.clone().into_os_string();
    protection.push(PROTECTION_SUFFIX);
    Ok([path, protection.into()].into_iter().filter(|path| path.exists()).collect())
}

/// `DELETE /v1/volume/{name}`
pub fn delete_volume(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let name = request.name();
    let files = if request.with_data { data_files(control, &name)? } else { Vec::new() };
    let edits = [Edit::Delete { kind: Kind::Volume, name: name.clone() }];
    let mut plan = match request.dry_run {
        true => control.plan_edits(&edits)?,
        false => control.change(&edits, request.author())?,
    };
    plan.notes.extend(files.iter().map(|file| format!("the file {} is deleted", file.display())));
    if request.dry_run {
        return Ok(Box::new(move || reply_with_steps(&plan)));
    }
    let reply = request.changed(Ok(plan))?;
    let wait = control.finalizing();
    let (shared, caller) = (request.shared.clone(), request.caller.name.clone());
    Ok(Box::new(move || {
        // Until then, sessions may write to it.
        wait.into_iter().for_each(|wait| wait());
        for file in files {
            lunar_control::files::remove(&file).map_err(|why| {
                let why = format!("volume {name} is deleted, but {} is not: {why}; remove the file", file.display());
                ProblemDetails::new("/problems/disk", "The data was not deleted", 500, why)
            })?;
            shared.audit_log.add(Topic::Change, &caller, &format!("deleted the file {}", file.display()));
        }
        Ok(reply)
    }))
}

/// `PUT /v1/group/{name}/luns/{lun}`
pub fn map(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let mapping: Mapping = request.json()?;
    request.edit(control, mapping.edit(request.name(), request.lun()?))
}

/// `DELETE /v1/group/{name}/luns/{lun}`
pub fn unmap(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    request.edit(control, Edit::Unmap { group: request.name(), lun: request.lun()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::check::{LocalHost, check};
    use lunar_control::testing::SAMPLE;

    #[test]
    fn volumes_that_nvme_hosts_do_not_see_are_those_of_their_groups_without_a_namespace() {
        let group = |name: &str, target: &str, initiator: &str, luns: &str| {
            format!("[group.{name}]\ntargets = [\"{target}\"]\ninitiators = [\"{initiator}\"]\nluns = {{ {luns} }}\n")
        };
        let text = [
            "[volume.fixed]\nkind = \"ram\"\nsize = \"1M\"\n".to_owned(),
            "[volume.cd]\nkind = \"file\"\npath = \"/srv/install.iso\"\nmedium = \"cd\"\n".to_owned(),
            "[volume.other]\nkind = \"ram\"\nsize = \"1M\"\nmedium = \"removable\"\n".to_owned(),
            "[portal-group.p]\ntag = 1\n".to_owned(),
            "[target.both]\niqn = \"iqn.2026-01.x:a\"\nnqn = \"nqn.2026-01.x:a\"\nportal-groups = [\"p\"]\n".to_owned(),
            "[target.scsi]\niqn = \"iqn.2026-01.x:b\"\nportal-groups = [\"p\"]\n".to_owned(),
            group("all", "both", "*", "0 = \"fixed\", 1 = \"cd\""),
            group("scsi", "both", "iqn.2026-01.x:*", "2 = \"other\""),
            group("no-hosts", "scsi", "*", "2 = \"other\""),
        ];
        let host = LocalHost { config: PathBuf::from("x") };
        let checked = check(&SAMPLE, "x", &text.concat(), &host).expect("it is right");
        let found = no_namespaces(&checked.config);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["cd"], "{found:?}");
        assert!(found["cd"].contains("removable"));
    }
}
