//! Requests, replies and problems: the arguments and results of the handlers.

use crate::audit::{AuditLog, Topic};
use crate::certificate::Expiry;
use crate::control::{Control, ControlHandle};
use crate::copies::Copies;
use crate::history::History;
use crate::rights::Caller;
use crate::troubles::{self, TroubleBook};
use lunar_control::api::{PROBLEM_TYPE, PlanView, ProblemDetails, StatusView, TroubleView};
use lunar_control::check::Checked;
use lunar_control::doctor::finding::Finding;
use lunar_control::document::{Edit, Refused};
use lunar_control::in_use::{Author, Force};
use lunar_control::luns::LUN_MAX;
use lunar_control::manager::Failure;
use lunar_control::metrics::Measured;
use lunar_control::trouble::TroubleCode;
use lunar_control::{Kind, Plan, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The media type of text for people.
const TEXT: &str = "text/plain; charset=utf-8";
/// The most steps of a plan that an audit record lists; further ones are counted.
const SUMMARY_STEPS_MAX: usize = 4;

/// The result of a handler.
pub type Outcome = Result<Reply, Problem>;

/// An authorized request.
#[derive(Debug)]
pub struct ApiRequest {
    /// The kind of resource that the route concerns, if it concerns one.
    pub kind: Option<Kind>,
    /// The authenticated caller.
    pub caller: Caller,
    /// The path parameters: name and value.
    pub parameters: Vec<(String, String)>,
    /// Whether only to return the steps that would be done.
    pub dry_run: bool,
    /// Whether to make a change although clients use resources that it removes.
    pub force: Force,
    /// Whether to delete the data of a volume, too.
    pub with_data: bool,
    /// The body.
    pub body: Vec<u8>,
    /// The state that all requests share.
    pub shared: Arc<Shared>,
    /// The handle of the control thread, for work that continues after the response.
    pub control_thread: ControlHandle,
}

/// The state that all requests share.
#[derive(Debug)]
pub struct Shared {
    /// The schema of the configuration.
    pub schema: &'static Schema,
    /// The audit log.
    pub audit_log: Arc<AuditLog>,
    /// The running and the last copies.
    pub copies: Copies,
    /// The version of Lunar.
    pub version: String,
    /// The start time of the daemon.
    pub since: SystemTime,
    /// The times of the troubles.
    pub(crate) troubles: TroubleBook,
    /// While the daemon starts: its file, and a text about the volume that it waits for.
    starting: Mutex<Option<(String, String)>>,
    /// The metrics of the target, once it runs.
    pub measured: OnceLock<Arc<dyn Measured>>,
    /// The rates of the last minutes.
    pub history: History,
    seen: Mutex<Seen>,
    /// The findings of the last examination.
    findings: Mutex<Vec<Finding>>,
    /// The ends of the certificates of listeners.
    certificates: Mutex<BTreeMap<String, Expiry>>,
    /// The configuration at the start: keys that need a restart still have its values.
    pub(crate) initial: OnceLock<Checked>,
}

impl Shared {
    /// Creates the shared state of a daemon of this version that started at `since`.
    #[must_use]
    pub fn new(schema: &'static Schema, audit_log: Arc<AuditLog>, version: &str, since: SystemTime) -> Arc<Self> {
        let (copies, version) = (Copies::default(), version.to_owned());
        let troubles = TroubleBook::default();
        let (starting, initial) = (Mutex::default(), OnceLock::new());
        let (measured, seen, certificates) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Arc::new(Self {
            schema,
            audit_log,
            copies,
            version,
            since,
            troubles,
            starting,
            measured,
            history: History::default(),
            seen,
            findings: Mutex::default(),
            certificates,
            initial,
        })
    }

    fn starting(&self) -> MutexGuard<'_, Option<(String, String)>> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a daemon with this file starts, and a text about its progress. Until [`Shared::has_started`], it
    /// has no control thread.
    pub fn starts(&self, file: &str, words: &str) {
        *self.starting() = Some((file.to_owned(), words.to_owned()));
    }

    /// Records what a daemon that starts waits for.
    pub fn waits(&self, words: &str) {
        if let Some((_, known)) = &mut *self.starting() {
            words.clone_into(known);
        }
    }

    /// Records that the daemon has started.
    pub fn has_started(&self) {
        *self.starting() = None;
    }

    /// The status of a daemon that starts; `None`: it has started.
    #[must_use]
    pub fn starting_status(&self) -> Option<StatusView> {
        let (file, words) = self.starting().clone()?;
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let trouble = TroubleView::told(TroubleCode::Starting, "lunar", format!("starting: {words}"));
        Some(StatusView {
            version: self.version.clone(),
            process: std::process::id(),
            since,
            file,
            things: BTreeMap::new(),
            sessions: 0,
            machines: Vec::new(),
            isns: None,
            certificates: BTreeMap::new(),
            after_restart: Vec::new(),
            stores: Vec::new(),
            unread_sizes: BTreeMap::new(),
            no_namespaces: BTreeMap::new(),
            troubles: vec![TroubleView { since, ..trouble }],
        })
    }

    /// The troubles that there are now, with times. Troubles that begin are added to the audit log.
    pub fn tell_troubles(&self, control: &mut dyn Control) -> Vec<TroubleView> {
        let now = SystemTime::now();
        let mut found = troubles::all(control);
        found.extend(self.certificates().iter().filter_map(|(name, expiry)| expiry.trouble(name, now)));
        let (all, begun) = self.troubles.enter(found, now);
        for trouble in begun {
            self.audit_log.add(Topic::Service, "lunar", &trouble.to_string());
        }
        self.see(control, &all);
        all
    }

    /// The ends of the certificates of listeners, by their names.
    pub(crate) fn certificates(&self) -> BTreeMap<String, Expiry> {
        self.certificates.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the end of the certificate of a listener; `None`: it has none any more.
    pub(crate) fn set_expiry(&self, listener: &str, expiry: Option<Expiry>) {
        let mut all = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        match expiry {
            Some(expiry) => drop(all.insert(listener.to_owned(), expiry)),
            None => drop(all.remove(listener)),
        }
    }

    /// The state that the control thread has reported last.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The findings of the last examination, with which the metrics are written.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the findings of an examination.
    pub(crate) fn find(&self, findings: Vec<Finding>) {
        *self.findings.lock().unwrap_or_else(PoisonError::into_inner) = findings;
    }

    fn see(&self, control: &dyn Control, troubles: &[TroubleView]) {
        let text = control.versions().text();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let text = (text.len(), hasher.finish());
        let known = self.seen();
        // The list is in a folder, and changes with the text.
        let version = match known.text == text {
            true => known.version,
            false => control.versions().list().ok().and_then(|all| all.iter().map(|one| (one.number, one.time)).max()),
        };
        let seen = Seen { troubles: troubles.to_vec(), version, text };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Records the configuration with which the daemon started. Only the first call has an effect.
    pub fn started_with(&self, checked: &Checked) {
        self.initial.get_or_init(|| checked.clone());
    }
}

/// The state that the control thread has reported last: for readers that must not wait for it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Seen {
    /// The troubles.
    pub(crate) troubles: Vec<TroubleView>,
    /// The number of the version of the configuration in force, and when it was written, in seconds since 1970.
    pub(crate) version: Option<(u64, u64)>,
    /// The length and the hash of its text.
    text: (usize, u64),
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The media type of the body.
    pub media: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// The reason why a request failed, as a problem report (RFC 9457).
#[derive(Debug)]
pub struct Problem(Box<ProblemDetails>);

/// The problem of a request for the control thread, which has ended.
pub(crate) fn stopping() -> Problem {
    let why = "Lunar is stopping and accepts no changes".to_owned();
    ProblemDetails::new("/problems/stopping", "Lunar is stopping", 503, why).into()
}

impl Problem {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// The detail text.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn bad_request(why: impl fmt::Display) -> Self {
        ProblemDetails::wrong(why).into()
    }

    pub(crate) fn not_found(what: impl fmt::Display) -> Self {
        ProblemDetails::missing(what).into()
    }
}

impl From<ProblemDetails> for Problem {
    fn from(details: ProblemDetails) -> Self {
        Self(Box::new(details))
    }
}

impl From<Refused> for Problem {
    fn from(why: Refused) -> Self {
        ProblemDetails::from(&why).into()
    }
}

impl From<Failure> for Problem {
    fn from(why: Failure) -> Self {
        ProblemDetails::from(&why).into()
    }
}

impl From<lunar_control::versions::Trouble> for Problem {
    fn from(why: lunar_control::versions::Trouble) -> Self {
        Failure::from(why).into()
    }
}

impl Reply {
    pub(crate) fn json(value: &impl Serialize) -> Outcome {
        Ok(Self { status: 200, media: "application/json", body: bytes(value)? })
    }

    pub(crate) fn text(text: String) -> Outcome {
        Ok(Self { status: 200, media: TEXT, body: text.into_bytes() })
    }
}

impl From<Problem> for Reply {
    fn from(Problem(details): Problem) -> Self {
        let body = serde_json::to_vec(&details).unwrap_or_default();
        Self { status: details.status, media: PROBLEM_TYPE, body }
    }
}

fn bytes(value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    let unable = |why: serde_json::Error| {
        ProblemDetails::new("/problems/internal", "The response could not be encoded", 500, why.to_string())
    };
    Ok(serde_json::to_vec(value).map_err(unable)?)
}

impl ApiRequest {
    /// The value of a path parameter; empty if the route has none of this name.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, Problem> {
        let text = self.parameter(name);
        text.parse().map_err(|_| Problem::bad_request(format!("{name} must be a number, not '{}'", shortened(text))))
    }

    pub(crate) fn lun(&self) -> Result<u16, Problem> {
        let number = self.number("lun")?;
        let lun = u16::try_from(number).ok().filter(|lun| *lun <= LUN_MAX);
        lun.ok_or_else(|| Problem::bad_request(format!("a LUN must be from 0 to {LUN_MAX}")))
    }

    pub(crate) fn kind(&self) -> Result<Kind, Problem> {
        self.kind.ok_or_else(|| Problem::not_found("there is no such resource"))
    }

    pub(crate) fn name(&self) -> String {
        self.parameter("name").to_owned()
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        // The parser's message may quote the body and thus a secret, so only the position is reported.
        serde_json::from_slice(&self.body).map_err(|why| {
            let (line, column) = (why.line(), why.column());
            let what = match why.classify() {
                serde_json::error::Category::Data => "does not have the expected fields",
                _ => "is not valid JSON",
            };
            Problem::bad_request(format!("the body {what} (line {line}, column {column}); see GET /v1/openapi.json"))
        })
    }

    pub(crate) fn text(&self) -> Result<&str, Problem> {
        std::str::from_utf8(&self.body).map_err(|_| Problem::bad_request("the body is not UTF-8 text"))
    }

    /// The author of the change that it requests.
    pub(crate) fn author(&self) -> Author<'_> {
        Author { name: &self.caller.name, force: self.force }
    }

    /// Makes a change, or plans it if `dry-run` is set.
    pub(crate) fn edit(&self, control: &mut dyn Control, edit: Edit) -> Outcome {
        let edits = [edit];
        match self.dry_run {
            true => reply_with_steps(&control.plan_edits(&edits)?),
            false => self.changed(control.change(&edits, self.author())),
        }
    }

    /// Records a change in the audit log, and replies with its steps.
    pub(crate) fn changed(&self, plan: Result<Plan, Failure>) -> Outcome {
        let plan = plan?;
        if !plan.is_empty() {
            self.shared.audit_log.add(Topic::Change, &self.caller.name, &summary_of(&plan));
        }
        reply_with_steps(&plan)
    }
}

/// At most 64 characters of a text of the caller, without control characters.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Replies with the steps of a plan.
pub(crate) fn reply_with_steps(plan: &Plan) -> Outcome {
    Reply::json(&PlanView::of(plan))
}

/// A summary of a plan for the audit log.
#[must_use]
pub fn summary_of(plan: &Plan) -> String {
    let steps: Vec<String> = plan.changes.iter().take(SUMMARY_STEPS_MAX).map(|change| change.words.clone()).collect();
    match plan.changes.len().saturating_sub(SUMMARY_STEPS_MAX) {
        0 => steps.join("; "),
        more => format!("{}; and {more} more steps", steps.join("; ")),
    }
}
