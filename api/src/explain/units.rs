//! Explanations of LUNs, paths, volumes and reservations.

use super::{Client, ISCSI, NVME, at, dry_run, protocol_name, protocol_of, remedy, removed, slow};
use crate::audit::Topic;
use crate::control::Control;
use crate::request::{ApiRequest, Outcome, Problem, Reply, shortened};
use lunar_control::api::{ProblemDetails, SessionView, TroubleView};
use lunar_control::check::Checked;
use lunar_control::common_sections::{AluaState, Portal, PortalGroup, Target};
use lunar_control::explain::{
    ExplanationView, LoginQuestion, LoginVerdict, Place, RemedyView, ReservationView, StepView, gone,
};
use lunar_control::live::Later;
use lunar_control::luns::LUN_MAX;
use lunar_control::report::did_you_mean;
use lunar_core::access::audit::shown;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Clients that are listed one by one: an operator reads the first ones.
const CLIENTS_MAX: usize = 8;

/// The troubles of a subject, such as `volume disk`.
fn troubles_of(control: &mut dyn Control, request: &ApiRequest, subject: &str) -> Vec<TroubleView> {
    let mut troubles = request.shared.tell_troubles(control);
    troubles.retain(|trouble| trouble.subject == subject);
    troubles
}

/// A step that a trouble fails.
fn failed_by(trouble: &TroubleView) -> StepView {
    let remedy = if trouble.remedy.is_empty() { String::new() } else { format!("; {}", trouble.remedy) };
    StepView::failed(format!("{}: {}{remedy}", trouble.kind, trouble.words))
}

/// A target at which a client belongs to a group.
struct Seen {
    target: String,
    /// The name of the target in the protocol of the client.
    name: String,
    group: String,
}

/// The targets at which a client belongs to a group, as real logins are decided: of all targets, or of one.
fn seen(
    control: &mut dyn Control,
    checked: &Checked,
    client: &Client,
    (only, source): (&str, Option<IpAddr>),
) -> Result<Vec<Seen>, Problem> {
    let mut all = Vec::new();
    for target in checked.config.targets.keys() {
        let name = protocol_name(checked, client.protocol, target);
        if !only.is_empty() && only != target && !only.eq_ignore_ascii_case(&name) {
            continue;
        }
        let question = LoginQuestion {
            host: client.host.clone(),
            target: Some(name.clone()),
            source: source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            portal_group: None,
            user: None,
            tls: true,
        };
        if let LoginVerdict { outcome: Ok(Some(group)), .. } = dry_run(control, client.protocol, &question)? {
            all.push(Seen { target: target.clone(), name, group });
        }
    }
    Ok(all)
}

/// The command with which a client logs in to a target.
fn log_in(client: &Client, name: &str) -> Option<RemedyView> {
    match client.protocol {
        ISCSI => remedy(Place::Client, "logs the client in", ["iscsiadm", "-m", "node", "-T", name, "--login"]),
        _ => remedy(Place::Client, "connects the host; add -a and -s", ["nvme", "connect", "-t", "tcp", "-n", name]),
    }
}

fn not_seen(client: &Client, subject: String, topic: &'static str) -> Outcome {
    let words = format!("{} belongs to no group of a target", client.host);
    let step = StepView::failed("a group of a target lists the client".to_owned());
    let mut explanation = ExplanationView::of(topic, subject, vec![step], words);
    let command = ["lunar", "explain", "login", &client.host];
    explanation.remedies.extend(remedy(Place::Server, "explains why", command));
    Reply::json(&explanation)
}

/// `GET /v1/explain/lun/{name}/{lun}`
pub fn lun(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let (lun, checked) = (request.lun()?, control.current().clone());
    let client = Client::of(control, &request.name());
    let source = client.source(request.parameter("from"))?;
    let all = seen(control, &checked, &client, (request.parameter("target"), source))?;
    let subject = format!("{} LUN {lun}", client.host);
    if all.is_empty() {
        return not_seen(&client, subject, "lun");
    }
    let mut explanations = Vec::new();
    for seen in &all {
        explanations.push(lun_at(control, request, &checked, (&client, seen, lun)));
    }
    // The one that is well, else that of a target which the client uses, else the one that came furthest.
    let is_used = |target: &str| client.sessions.iter().any(|session| session.target.as_deref() == Some(target));
    let passed = |one: &ExplanationView| one.steps.iter().filter(|step| step.passed).count();
    let of_targets = explanations.into_iter().zip(&all);
    let best = of_targets.max_by_key(|(one, seen)| (one.well, is_used(&seen.target), passed(one)));
    let (mut explanation, _) = best.ok_or_else(|| Problem::not_found("there is no such LUN"))?;
    explanation.subject = subject;
    Reply::json(&explanation)
}

fn lun_at(
    control: &mut dyn Control,
    request: &ApiRequest,
    checked: &Checked,
    (client, seen, lun): (&Client, &Seen, u16),
) -> ExplanationView {
    let Seen { target, name, group } = seen;
    let mut steps = vec![StepView::passed(format!("{} belongs to group {group} of target {target}", client.host))];
    let mapped = control.mapped(group).unwrap_or_default();
    let configured = checked.config.groups.get(group).and_then(|group| group.luns.0.get(&lun));
    let volume = mapped.get(&lun).map(|(volume, _)| volume.clone());
    let volume = volume.or_else(|| configured.map(|lun| lun.volume.name().to_owned()));
    let Some(volume) = volume else {
        steps.push(StepView::failed(format!("group {group} maps LUN {lun}")));
        let words = format!("group {group} maps no volume to LUN {lun}");
        let mut explanation = ExplanationView::of("lun", "", steps, words);
        not_mapped(control, checked, (group, lun), &mut explanation);
        return explanation;
    };
    if let Some(why) = no_namespace(checked, client, &volume) {
        steps.push(StepView::failed(format!("volume {volume} is a namespace: {why}")));
        let words = format!("NVMe hosts do not see volume {volume}: {why}");
        return ExplanationView::of("lun", "", steps, words);
    }
    let read_only = if mapped.get(&lun).is_some_and(|(_, read_only)| *read_only) { ", read-only" } else { "" };
    steps.push(StepView::passed(format!("group {group} maps LUN {lun} to volume {volume}{read_only}")));
    let troubles = troubles_of(control, request, &format!("volume {volume}"));
    if !mapped.contains_key(&lun) {
        steps.extend(troubles.iter().take(1).map(failed_by));
        if troubles.is_empty() {
            steps.push(StepView::failed(format!("volume {volume} is served")));
        }
        return ExplanationView::of("lun", "", steps, format!("volume {volume} of LUN {lun} is not served"));
    }
    steps.push(StepView::passed(format!("volume {volume} is served")));
    let session = client.sessions.iter().find(|session| session.target.as_deref() == Some(target));
    let Some(session) = session else {
        steps.push(StepView::failed(format!("{} is logged in to target {target}", client.host)));
        let words = format!("LUN {lun} is there, and {} is not logged in", client.host);
        let mut explanation = ExplanationView::of("lun", "", steps, words);
        explanation.remedies.extend(log_in(client, name));
        return explanation;
    };
    steps.push(StepView::passed(format!("{} is logged in for {} seconds", client.host, session.seconds)));
    let words = format!("LUN {lun} is volume {volume} for {}", client.host);
    let mut explanation = ExplanationView::of("lun", "", steps, words);
    was_another(control, client, session, (seen, lun, &volume), &mut explanation);
    rescan(control, client, session, &mut explanation);
    explanation
}

/// Why a volume is not visible over the protocol of a client; `None`: it is.
fn no_namespace(checked: &Checked, client: &Client, volume: &str) -> Option<&'static str> {
    let volume = checked.config.volumes.get(volume).filter(|_| client.protocol == NVME)?;
    volume.why_no_namespace()
}

/// The earliest time at which a session may have begun: it has whole seconds, as the times of changes have.
fn earliest_begin(session: &SessionView) -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs().saturating_sub(session.seconds + 1)
}

/// A client that was logged in while the LUN was another volume may take the one for the other.
fn was_another(
    control: &mut dyn Control,
    client: &Client,
    session: &SessionView,
    (seen, lun, volume): (&Seen, u16, &str),
    explanation: &mut ExplanationView,
) {
    let place = (seen.group.as_str(), lun);
    let Some(before) = gone::earlier_volume(control.schema(), control.versions(), place, volume) else { return };
    if before.time < earliest_begin(session) {
        return;
    }
    let (object, when) = (&before.object, at(before.time));
    let words = format!("LUN {lun} has been volume {volume} since the client logged in: it was {object}, until {when}");
    explanation.steps.push(StepView::failed(words));
    explanation.well = false;
    explanation.words =
        format!("LUN {lun} is volume {volume} for {}, which may still take it for {object}", client.host);
    let words = "before the disk is used: ends the session; log in again after that";
    explanation.remedies.extend(match client.protocol {
        ISCSI => remedy(Place::Client, words, ["iscsiadm", "-m", "node", "-T", &seen.name, "--logout"]),
        _ => remedy(Place::Client, words, ["nvme", "disconnect", "-n", &seen.name]),
    });
}

/// The remedy on a client that does not show a LUN that is there.
fn rescan(control: &mut dyn Control, client: &Client, session: &SessionView, explanation: &mut ExplanationView) {
    let changed = control.versions().list().ok().and_then(|all| all.last().map(|version| version.time));
    if changed.is_some_and(|changed| changed >= earliest_begin(session)) {
        let words = "the configuration changed after the client had logged in; it was told so, and must scan again";
        explanation.near.push(words.to_owned());
    }
    let words = "if the client does not show the disk";
    explanation.remedies.extend(match client.protocol {
        ISCSI => remedy(Place::Client, words, ["iscsiadm", "-m", "session", "--rescan"]),
        _ => remedy(Place::Client, words, ["nvme", "ns-rescan", "/dev/nvme0"]),
    });
}

/// The near misses of a LUN that is not mapped.
fn not_mapped(
    control: &mut dyn Control,
    checked: &Checked,
    (group, lun): (&str, u16),
    explanation: &mut ExplanationView,
) {
    let config = &checked.config;
    let others = config.groups.iter().filter_map(|(name, other)| Some((name, other.luns.0.get(&lun)?)));
    for (name, other) in others.take(3) {
        let volume = other.volume.name();
        explanation.near.push(format!("group {name} maps LUN {lun} to volume {volume}"));
        let words = format!("if group {group} may use volume {volume}, too");
        let number = lun.to_string();
        let command = ["lunar", "group", "map", group, &number, volume];
        explanation.remedies.extend(remedy(Place::Server, words, command));
    }
    if let Some(own) = config.groups.get(group) {
        let luns: Vec<String> =
            own.luns.0.iter().take(8).map(|(lun, it)| format!("{lun} = {}", it.volume.name())).collect();
        explanation.near.push(format!("the LUNs of group {group}: {}", luns.join(", ")));
        if own.luns.0.keys().next().is_some_and(|first| *first > 0) {
            let words = "the group has no LUN 0, which some clients ask first";
            explanation.near.push(words.to_owned());
        }
    }
    explanation.near.extend(removed(control, |config| gone::lun(config, group, lun)));
}

/// The portals of a target, with their groups.
fn portals_of<'a>(
    checked: &'a Checked,
    target: &'a Target,
) -> impl Iterator<Item = (&'a String, &'a Arc<Portal>, &'a Arc<PortalGroup>)> {
    let own = checked.config.portals.iter().filter(|(_, portal)| target.portal_groups.contains(portal.group.name()));
    own.filter_map(|(name, portal)| Some((name, portal, checked.config.portal_groups.get(portal.group.name())?)))
}

/// `GET /v1/explain/path/{name}/{volume}`
pub fn path(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let (volume, checked) = (request.parameter("volume").to_owned(), control.current().clone());
    known_volume(control, &checked, &volume)?;
    let client = Client::of(control, &request.name());
    let source = client.source(request.parameter("from"))?;
    let all = seen(control, &checked, &client, (request.parameter("target"), source))?;
    let subject = format!("{} to volume {volume}", client.host);
    if all.is_empty() {
        return not_seen(&client, subject, "path");
    }
    if let Some(why) = no_namespace(&checked, &client, &volume) {
        let step = StepView::failed(format!("volume {volume} is a namespace: {why}"));
        let words = format!("NVMe hosts do not see volume {volume}: {why}");
        return Reply::json(&ExplanationView::of("path", subject, vec![step], words));
    }
    let maps = |control: &mut dyn Control, seen: &Seen| {
        control.mapped(&seen.group).unwrap_or_default().values().any(|(name, _)| *name == volume)
    };
    let mut steps = Vec::new();
    let (mut remedies, mut paths, mut best) = (Vec::new(), 0, 0);
    for seen in &all {
        if !maps(control, seen) {
            let words = format!("group {} of target {} maps volume {volume}", seen.group, seen.target);
            steps.push(StepView::failed(words));
            continue;
        }
        let Some(target) = checked.config.targets.get(&seen.target) else { continue };
        let own = portals_of(&checked, target).filter(|(_, portal, _)| portal.protocol.word() == client.protocol);
        for (name, portal, group) in own {
            let troubles = troubles_of(control, request, &format!("portal {name}"));
            let tag = u16::try_from(group.tag.get()).unwrap_or_default();
            let through = |session: &&SessionView| {
                session.target.as_deref() == Some(&seen.target) && session.portal_group == Some(tag)
            };
            let place = format!("portal {name} at {}", portal.address());
            let has_session = client.sessions.iter().any(|session| through(&session));
            let state = state_word(group.alua_state);
            let step = match (troubles.first(), has_session) {
                (Some(trouble), _) => StepView::failed(format!("{place} listens: {}", trouble.words)),
                (None, false) => StepView::failed(format!("a session goes through {place} ({state})")),
                (None, true) => StepView::passed(format!("a session goes through {place} ({state})")),
            };
            paths += usize::from(step.passed);
            best += usize::from(step.passed && group.alua_state == AluaState::ActiveOptimized);
            if troubles.is_empty() && !has_session {
                remedies.extend(log_in_at(&client, &seen.name, portal));
            }
            steps.push(step);
            if has_session && group.alua_state != AluaState::ActiveOptimized {
                let words = format!("if {name} is a good path");
                let command = ["lunar", "portal-group", "set", portal.group.name(), "--alua-state", "active-optimized"];
                remedies.extend(remedy(Place::Server, words, command));
            }
        }
    }
    let words = match (paths, best) {
        (0, _) => format!("{} has no path to volume {volume}", client.host),
        (_, 0) => format!("all {paths} paths of {} to volume {volume} are not optimized", client.host),
        _ => format!("{} has {paths} paths to volume {volume}, {best} of them optimized", client.host),
    };
    let mut explanation = ExplanationView::of("path", subject, steps, words);
    explanation.well = best > 0;
    explanation.near = slow::facts(&client.sessions);
    explanation.remedies = remedies;
    Reply::json(&explanation)
}

fn state_word(state: AluaState) -> &'static str {
    match state {
        AluaState::ActiveOptimized => "active/optimized",
        AluaState::ActiveNonOptimized => "active/non-optimized",
        AluaState::Standby => "standby",
        AluaState::Unavailable => "unavailable",
    }
}

/// The command with which a client logs in through a portal.
fn log_in_at(client: &Client, name: &str, portal: &Portal) -> Option<RemedyView> {
    let address = portal.advertise().unwrap_or_else(|| portal.address());
    let (ip, port, both) = (address.ip().to_string(), address.port().to_string(), address.to_string());
    match client.protocol {
        ISCSI => {
            let command = ["iscsiadm", "-m", "node", "-T", name, "-p", &both, "--login"];
            remedy(Place::Client, "logs in through it", command)
        }
        _ => {
            let command = ["nvme", "connect", "-t", "tcp", "-n", name, "-a", &ip, "-s", &port];
            remedy(Place::Client, "connects through it", command)
        }
    }
}

/// Refuses a volume that the configuration does not have, with what comes close.
fn known_volume(control: &mut dyn Control, checked: &Checked, volume: &str) -> Result<(), Problem> {
    if checked.config.volumes.contains_key(volume) {
        return Ok(());
    }
    let near = did_you_mean(volume, checked.config.volumes.keys().map(String::as_str));
    let gone = removed(control, |config| gone::volume(config, volume)).map(|words| format!("; {words}"));
    let gone = gone.unwrap_or_default();
    Err(Problem::not_found(format!("there is no volume '{}'{near}{gone}", shortened(volume))))
}

/// `GET /v1/explain/volume/{name}`
pub fn volume(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let (name, checked) = (request.name(), control.current().clone());
    known_volume(control, &checked, &name)?;
    let config = &checked.config;
    let mut steps = vec![StepView::passed(format!("volume {name} is configured"))];
    let troubles = troubles_of(control, request, &format!("volume {name}"));
    steps.extend(troubles.iter().map(failed_by));
    if troubles.is_empty() {
        steps.push(StepView::passed("it is served, and its store has no troubles"));
    }
    let maps = config.groups.iter().flat_map(|(group, model)| {
        let own = model.luns.0.iter().filter(|(_, lun)| lun.volume.name() == name);
        own.map(move |(lun, it)| (group, *lun, it.read_only))
    });
    let maps: Vec<_> = maps.collect();
    let mut explanation = ExplanationView::of("volume", name.clone(), Vec::new(), "");
    for (group, lun, read_only) in &maps {
        let read_only = if *read_only { ", read-only" } else { "" };
        steps.push(StepView::passed(format!("group {group} maps it to LUN {lun}{read_only}")));
    }
    if maps.is_empty() {
        steps.push(StepView::failed("a group maps it to a LUN"));
        if let Some((group, model)) = config.groups.iter().next() {
            let free = (0..=LUN_MAX).find(|lun| !model.luns.0.contains_key(lun)).unwrap_or_default().to_string();
            let command = ["lunar", "group", "map", group, &free, &name];
            explanation.remedies.extend(remedy(Place::Server, format!("shows it to group {group}"), command));
        }
    }
    let sessions = control.sessions();
    let is_client = |session: &&SessionView| maps.iter().any(|(group, ..)| session.group.as_ref() == Some(group));
    let mut hosts: Vec<&str> = sessions.iter().filter(is_client).map(|session| session.initiator.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if !maps.is_empty() {
        let words = if hosts.is_empty() { "no client that sees it is logged in".to_owned() } else { hosts.join(", ") };
        explanation.near.push(format!("clients now: {words}"));
    }
    if let Some(ReservationView { kind: Some(kind), holders, .. }) = control.reservation(&name) {
        explanation.near.push(format!("it is reserved ({kind}) by {}", holders.join(", ")));
    }
    let model = config.volumes.get(&name);
    if let Some(why) = model.and_then(|model| model.why_no_namespace()) {
        explanation.near.push(format!("NVMe hosts do not see it: {why}"));
    }
    if let Some(place) = model.and_then(|model| model.place()) {
        explanation.near.push(format!("its store is {}", place.display()));
    }
    let unread = control.unread_size(&name);
    steps.extend(size_unread(&unread));
    explanation.remedies.extend(rescans(&unread));
    explanation.well = steps.iter().all(|step| step.passed);
    explanation.blame(troubles.first().map(|trouble| trouble.kind));
    explanation.words = match (troubles.first(), maps.is_empty(), unread.len()) {
        (Some(trouble), ..) => format!("volume {name}: {}", trouble.words),
        (None, true, _) => format!("volume {name} is well, and no client can see it"),
        (None, false, 0) => format!("volume {name} is well"),
        (None, false, 1) => format!("volume {name} is well, and 1 client does not know its new size"),
        (None, false, count) => format!("volume {name} is well, and {count} clients do not know its new size"),
    };
    explanation.steps = steps;
    Reply::json(&explanation)
}

/// The commands with which these clients read the new size of a volume.
fn rescans(clients: &[String]) -> impl Iterator<Item = RemedyView> {
    let commands = [
        (ISCSI, "Windows: `Update-HostStorageCache`", ["iscsiadm", "-m", "session", "--rescan"].as_slice()),
        (NVME, "for each controller of theirs", ["nvme", "ns-rescan", "/dev/nvme0"].as_slice()),
    ];
    let is_theirs = |protocol: &str| clients.iter().any(|client| protocol_of(client) == protocol);
    commands.into_iter().filter(move |(protocol, ..)| is_theirs(protocol)).filter_map(|(_, words, command)| {
        remedy(Place::Client, format!("on the clients that have not asked; {words}"), command.iter().copied())
    })
}

/// The steps of clients that do not know the new size of a volume.
fn size_unread(initiators: &[String]) -> impl Iterator<Item = StepView> {
    let words = |initiator: &String| {
        StepView::failed(format!("{} has asked for the size since it changed, as it was told to", shown(initiator)))
    };
    initiators.iter().take(CLIENTS_MAX).map(words)
}

/// The volume of a request, and its reservations.
fn reservations(control: &mut dyn Control, request: &ApiRequest) -> Result<(String, ReservationView), Problem> {
    let (name, checked) = (request.name(), control.current().clone());
    known_volume(control, &checked, &name)?;
    let missing = || Problem::not_found(format!("volume '{name}' is unavailable; `lunar status` shows the reason"));
    let found = control.reservation(&name).ok_or_else(missing)?;
    Ok((name, found))
}

/// `GET /v1/volume/{name}/reservation`
pub fn show_reservation(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    Reply::json(&reservations(control, request)?.1)
}

/// `DELETE /v1/volume/{name}/reservation`
pub fn clear_reservation(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let (name, before) = reservations(control, request)?;
    let missing = || Problem::not_found(format!("volume '{name}' has been removed meanwhile"));
    let clear = control.clear_reservation(&name).ok_or_else(missing)?;
    let (shared, caller) = (request.shared.clone(), request.caller.name.clone());
    Ok(Box::new(move || {
        if !clear() {
            let why = format!("the reservation of volume {name} was not ended: its metadata could not be written");
            return Err(ProblemDetails::new("/problems/disk", "The reservation was not ended", 500, why).into());
        }
        let holders =
            if before.holders.is_empty() { String::new() } else { format!(" of {}", before.holders.join(", ")) };
        let words =
            format!("volume {name}: ended the reservation{holders} and {} registrations", before.registrants.len());
        shared.audit_log.add(Topic::Change, &caller, &words);
        let ReservationView { conflicts, .. } = before;
        Reply::json(&ReservationView { conflicts, ..ReservationView::default() })
    }))
}

/// `GET /v1/explain/reservation/{name}`
pub fn reservation(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let (name, found) = reservations(control, request)?;
    let ReservationView { kind, holders, present, registrants, persists, conflicts } = found;
    let Some(kind) = kind else {
        let words = match registrants.len() {
            0 => format!("volume {name} is not reserved, and has no registrants"),
            count => format!("volume {name} is not reserved; {count} initiator ports are registered"),
        };
        let mut explanation = ExplanationView::of("reservation", name, Vec::new(), words);
        explanation.near = registrants;
        return Reply::json(&explanation);
    };
    let mut steps = vec![StepView::passed(format!("volume {name} is reserved ({kind}) by {}", holders.join(", ")))];
    let holds = format!("a holder is logged in ({present} of {})", holders.len());
    steps.push(StepView { passed: present > 0, words: holds });
    let words = match present {
        0 => format!("volume {name} is reserved by {}, and no holder is logged in", holders.join(", ")),
        _ => format!("volume {name} is reserved by {}", holders.join(", ")),
    };
    let mut explanation = ExplanationView::of("reservation", name.clone(), steps, words);
    explanation.near.push(format!("{} initiator ports are registered: {}", registrants.len(), registrants.join(", ")));
    let kept = if persists { "persist" } else { "do not persist" };
    explanation.near.push(format!("registrations {kept} through power loss"));
    if conflicts > 0 {
        explanation.near.push(format!("{conflicts} commands of other clients were refused"));
    }
    if present == 0 {
        let words = "if no holder comes back: a cluster node that still believes in its reservation may damage data";
        let command = ["lunar", "volume", "reservation", &name, "--clear"];
        explanation.remedies.extend(remedy(Place::Server, words, command));
    }
    Reply::json(&explanation)
}
