//! Explanations: the decisions of the running target, step by step, with the near miss and the remedy.
//!
//! * here: logins and refusals
//! * [`units`]: LUNs, paths, volumes, reservations
//! * [`slow`]: slow commands, and the network of their clients

pub mod slow;
pub mod units;

use crate::control::Control;
use crate::request::{ApiRequest, Outcome, Problem, Reply, shortened};
use lunar_control::api::{SessionView, TroubleView};
use lunar_control::check::Checked;
use lunar_control::explain::advice::{Advice, Facts};
use lunar_control::explain::command::line;
use lunar_control::explain::gone::{self, Gone};
use lunar_control::explain::{
    ExplanationView, ISCSI, LoginQuestion, LoginVerdict, NVME, Place, RefusalView, RemedyView, StepView, advice,
};
use lunar_control::report::did_you_mean;
use lunar_control::trouble::TroubleCode;
use lunar_core::access::refusal::RefusalCode;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

/// Refusals of a client that its explanation lists.
const REFUSALS_MAX: usize = 5;

/// A query parameter of the explanation of a login: its name and its description.
pub const LOGIN_QUERY: &[(&str, &str)] = &[
    ("target", "The target, by its name in the configuration or in the protocol."),
    ("from", "The address of the client."),
    ("portal", "The portal, by its name in the configuration."),
    ("user", "The user as whom the client authenticates."),
];
/// The parameters of the explanation of a LUN, and of paths.
pub const LUN_QUERY: &[(&str, &str)] = &[
    ("target", "The target, by its name in the configuration or in the protocol."),
    ("from", "The address of the client."),
];

/// The transport of a client, by its name.
pub(crate) fn protocol_of(host: &str) -> &'static str {
    let is_nqn = host.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("nqn."));
    if is_nqn { NVME } else { ISCSI }
}

/// A remedy with a command that can be quoted for a shell.
pub(crate) fn remedy<'a>(
    place: Place,
    words: impl Into<String>,
    command: impl IntoIterator<Item = &'a str>,
) -> Option<RemedyView> {
    line(command).map(|command| RemedyView { place, words: words.into(), command })
}

/// A time in words.
pub(crate) fn at(seconds: u64) -> String {
    let ago = UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(Duration::from_secs(seconds)).as_secs();
    match ago {
        0..=119 => format!("{ago} seconds ago"),
        120..=7199 => format!("{} minutes ago", ago / 60),
        7200..=172_799 => format!("{} hours ago", ago / 3600),
        _ => format!("{} days ago", ago / 86_400),
    }
}

/// The name of a target in a protocol; the given name if the configuration does not have it.
pub(crate) fn protocol_name(checked: &Checked, protocol: &str, given: &str) -> String {
    let found = checked.config.targets.get(given).and_then(|target| match protocol {
        ISCSI => target.iqn.as_ref().map(|iqn| iqn.as_str().to_owned()),
        _ => target.nqn.as_ref().map(|nqn| nqn.as_str().to_owned()),
    });
    found.unwrap_or_else(|| given.to_owned())
}

/// The facts that the target has about a client.
pub(crate) struct Client {
    pub(crate) host: String,
    pub(crate) protocol: &'static str,
    /// Its sessions, without those for discovery.
    pub(crate) sessions: Vec<SessionView>,
    /// Its refusals, the latest first.
    pub(crate) refusals: Vec<RefusalView>,
}

impl Client {
    pub(crate) fn of(control: &mut dyn Control, host: &str) -> Self {
        let is_it = |name: &str| name.eq_ignore_ascii_case(host);
        let mut sessions = control.sessions();
        sessions.retain(|session| !session.discovery && is_it(&session.initiator));
        let mut refusals = control.refusals();
        refusals.retain(|refusal| is_it(&refusal.initiator));
        Self { host: host.to_owned(), protocol: protocol_of(host), sessions, refusals }
    }

    /// The address of the client: the given one, that of its last refusal, or that of a session.
    pub(crate) fn source(&self, given: &str) -> Result<Option<IpAddr>, Problem> {
        if !given.is_empty() {
            let parsed = given
                .parse()
                .map_err(|_| Problem::bad_request(format!("from must be an address, not '{}'", shortened(given))));
            return parsed.map(Some);
        }
        let of_session = self.sessions.iter().find_map(|session| session.source.parse::<SocketAddr>().ok());
        let of_refusal = self.refusals.first().map(|refusal| refusal.source);
        Ok(of_session.map(|address| address.ip()).or(of_refusal))
    }

    /// The target in question: the given one, the one that the client wanted last, the one that it uses, or the only
    /// one.
    fn target(&self, checked: &Checked, given: &str) -> Result<String, Problem> {
        let wanted = self.refusals.first().and_then(|refusal| refusal.target.clone());
        let used = || self.sessions.first().and_then(|session| session.target.clone());
        let only = || match checked.config.targets.len() {
            1 => checked.config.targets.keys().next().cloned(),
            _ => None,
        };
        let name = Some(given.to_owned()).filter(|given| !given.is_empty());
        let name = name.or(wanted).or_else(used).or_else(only);
        let name = name.ok_or_else(|| Problem::bad_request("say which target: there are several (--target NAME)"))?;
        Ok(protocol_name(checked, self.protocol, &name))
    }
}

/// Whether a refusal concerns authentication, which a dry run cannot check.
fn is_about_proof(code: RefusalCode) -> bool {
    use RefusalCode::{NoProofOfOurs, NotAuthenticated, OtherChannel, Reflected, UnknownUser, WrongSecret};
    use RefusalCode::{TlsBroken, TlsNoIdentity, TlsNoSuite, TlsOtherHash, TlsOtherKey};
    matches!(
        code,
        NotAuthenticated
            | UnknownUser
            | WrongSecret
            | Reflected
            | NoProofOfOurs
            | OtherChannel
            | TlsNoIdentity
            | TlsOtherKey
            | TlsOtherHash
            | TlsNoSuite
            | TlsBroken
    )
}

/// `GET /v1/explain/login/{name}`
pub fn login(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let checked = control.current().clone();
    let client = Client::of(control, &request.name());
    let target = client.target(&checked, request.parameter("target"))?;
    let source = client.source(request.parameter("from"))?;
    let portal_group = portal_group(&checked, request.parameter("portal"))?;
    let user = Some(request.parameter("user").to_owned()).filter(|user| !user.is_empty());
    let question = LoginQuestion {
        host: client.host.clone(),
        target: Some(target.clone()),
        source: source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        portal_group,
        user: user.clone(),
        tls: false,
    };
    let dry_run = dry_run(control, client.protocol, &question)?;
    let mut explanation = explain(&client, &target, dry_run);
    if explanation.well {
        last_proof(&client, &target, &mut explanation);
    }
    let user = user.or_else(|| client.refusals.first().and_then(|refusal| refusal.user.clone()));
    let facts = Facts {
        protocol: client.protocol,
        host: &client.host,
        source,
        target: &target,
        user: user.as_deref().unwrap_or_default(),
        portal_group,
    };
    advise(control, &checked, &facts, &mut explanation);
    named_twice(control, request, &mut explanation);
    if source.is_none() {
        let words = "the address of the client is not known: groups with `sources` count as if it were in none of them";
        explanation.near.push(words.to_owned());
    }
    if client.sessions.is_empty() && client.refusals.is_empty() {
        let words = "no client of this name has tried to log in: it does not reach Lunar, or gives another name";
        explanation.near.push(words.to_owned());
    }
    Reply::json(&explanation)
}

/// A client whose name another machine uses, too, may log in, and does not stay.
fn named_twice(control: &mut dyn Control, request: &ApiRequest, explanation: &mut ExplanationView) {
    let subject = format!("host {}", explanation.subject);
    let code = TroubleCode::DuplicateName.word();
    let is_it = |trouble: &TroubleView| trouble.kind == code && trouble.subject.eq_ignore_ascii_case(&subject);
    let all = request.shared.tell_troubles(control);
    let Some(trouble) = all.into_iter().find(is_it).filter(|_| explanation.well) else { return };
    explanation.words = format!("{} may log in, and does not stay: {}", explanation.subject, trouble.words);
    explanation.steps.push(StepView::failed(format!("one machine has this name: {}", trouble.words)));
    explanation.well = false;
    explanation.blame(Some(code));
    let path = "/etc/iscsi/initiatorname.iscsi";
    let script = format!("echo \"InitiatorName=$(iscsi-iname)\" >{path} && systemctl restart iscsid");
    let words = "on one of the machines: gives it a name of its own, which its group must list";
    explanation.remedies.extend(remedy(Place::Client, words, ["sh", "-c", &script]));
}

fn portal_group(checked: &Checked, portal: &str) -> Result<Option<u16>, Problem> {
    if portal.is_empty() {
        return Ok(None);
    }
    let config = &checked.config;
    let found = config.portals.get(portal).ok_or_else(|| {
        let near = did_you_mean(portal, config.portals.keys().map(String::as_str));
        Problem::not_found(format!("there is no portal '{}'{near}", shortened(portal)))
    })?;
    let group = config.portal_groups.get(found.group.name());
    Ok(group.and_then(|group| u16::try_from(group.tag.get()).ok()))
}

pub(crate) fn dry_run(
    control: &mut dyn Control,
    protocol: &str,
    question: &LoginQuestion,
) -> Result<LoginVerdict, Problem> {
    let missing = || Problem::not_found(format!("clients do not log in over {protocol}"));
    control.dry_run(protocol, question).ok_or_else(missing)
}

/// The explanation of a login without advice.
fn explain(client: &Client, target: &str, dry_run: LoginVerdict) -> ExplanationView {
    let LoginVerdict { steps, outcome } = dry_run;
    let host = &client.host;
    let words = match &outcome {
        Ok(Some(group)) => format!("{host} may log in to {target}, as a client of group {group}"),
        Ok(None) => format!("{host} may log in to {target}"),
        Err(code) => format!("{host} may not log in to {target}: {}", sentence(*code)),
    };
    let mut explanation = ExplanationView::of("login", host.clone(), steps, words);
    explanation.well = outcome.is_ok();
    explanation.blame(outcome.err().map(RefusalCode::word));
    explanation.refusals = client.refusals.iter().take(REFUSALS_MAX).cloned().collect();
    explanation
}

/// The words of a code within a sentence.
fn sentence(code: RefusalCode) -> String {
    let words = code.entry().words;
    let mut letters = words.trim_end_matches('.').chars();
    // TLS stays TLS.
    let first = letters.next().map(String::from).unwrap_or_default();
    let rest: String = letters.collect();
    let is_acronym = rest.starts_with(char::is_uppercase);
    if is_acronym { format!("{first}{rest}") } else { format!("{}{rest}", first.to_lowercase()) }
}

/// A login that would be admitted may still fail to authenticate, as the last refusal of the client may show.
fn last_proof(client: &Client, target: &str, explanation: &mut ExplanationView) {
    let is_it =
        |refusal: &&RefusalView| refusal.target.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(target));
    let Some(last) = client.refusals.iter().find(is_it) else { return };
    let code = RefusalCode::of(&last.code).filter(|code| is_about_proof(*code));
    // A client that is logged in has proved itself meanwhile.
    let Some(code) = code.filter(|_| client.sessions.is_empty()) else { return };
    let when = at(last.last);
    explanation.steps.push(StepView::failed(format!("its last authentication succeeded ({when}: {})", sentence(code))));
    explanation.well = false;
    explanation.blame(Some(code.word()));
    explanation.words =
        format!("{} may log in to {target}, but its last login failed: {}", client.host, sentence(code));
}

/// Adds near misses and remedies.
fn advise(control: &mut dyn Control, checked: &Checked, facts: &Facts<'_>, explanation: &mut ExplanationView) {
    let Some(code) = explanation.code.and_then(RefusalCode::of) else { return };
    let Advice { near, remedies } = advice::of(&checked.config, code, facts);
    (explanation.near, explanation.remedies) = (near, remedies);
    if code == RefusalCode::NoTarget {
        let find = |config: &lunar_control::Config| gone::target(config, facts.target);
        explanation.near.extend(removed(control, find));
    }
}

/// Words about a removed object.
pub(crate) fn removed(
    control: &mut dyn Control,
    find: impl Fn(&lunar_control::Config) -> Option<String>,
) -> Option<String> {
    let found = gone::last(control.schema(), control.versions(), find);
    found.map(|Gone { object, version, time, who }| {
        format!("{object} was removed {} by {who} (version {version}; `lunar history {version}`)", at(time))
    })
}

/// `GET /v1/refusal`
pub fn refusals(control: &mut dyn Control, _: &ApiRequest) -> Outcome {
    Reply::json(&control.refusals())
}

/// `GET /v1/explain/refusal/{number}`
pub fn refusal(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let number = request.number("number")?;
    let checked = control.current().clone();
    let missing = || Problem::not_found(format!("there is no refusal {number}; `lunar explain refusal` lists them"));
    let refusal = control.refusals().into_iter().find(|one| one.number == number).ok_or_else(missing)?;
    let code = RefusalCode::of(&refusal.code).ok_or_else(missing)?;
    let target = refusal.target.clone().unwrap_or_default();
    let question = LoginQuestion {
        host: refusal.initiator.clone(),
        target: refusal.target.clone(),
        source: refusal.source,
        portal_group: refusal.portal_group,
        user: refusal.user.clone(),
        tls: code == RefusalCode::OtherChannel,
    };
    let now = control.dry_run(&refusal.protocol, &question);
    let is_mended = now.as_ref().is_some_and(|now| now.outcome.is_ok()) && !is_about_proof(code);
    let asked = if target.is_empty() { "discovery".to_owned() } else { target.clone() };
    let times = if refusal.count == 1 { "once".to_owned() } else { format!("{} times", refusal.count) };
    let (host, source, when) = (&refusal.initiator, refusal.source, at(refusal.last));
    let mut words = format!("{host} at {source} asked for {asked} {times}, last {when}: {}", sentence(code));
    if is_mended {
        words.push_str("; it would be admitted now");
    }
    let mut steps = now.map(|now| now.steps).unwrap_or_default();
    if !is_mended && steps.iter().all(|step| step.passed) {
        let detail = refusal.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
        steps.push(StepView::failed(format!("the login was accepted: {}{detail}", sentence(code))));
    }
    let mut explanation = ExplanationView::of("refusal", number.to_string(), steps, words);
    explanation.well = is_mended;
    explanation.blame(Some(code.word()));
    let facts = Facts {
        protocol: &refusal.protocol,
        host,
        source: Some(source),
        target: &target,
        user: refusal.user.as_deref().unwrap_or_default(),
        portal_group: refusal.portal_group,
    };
    if !is_mended {
        advise(control, &checked, &facts, &mut explanation);
    }
    explanation.refusals = vec![refusal.clone()];
    Reply::json(&explanation)
}
