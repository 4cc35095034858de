//! What routes do, once it is known that he who asks may have it done.

use crate::copy::Copies;
use crate::desk::{Control, Desk};
use crate::journal::{Journal, Topic};
use crate::rights::Who;
use crate::routes::Route;
use lunar_control::api::{
    Ejection, Mapping, MediumView, PROBLEM_TYPE, PlanView, ProblemDetails, Resource, SessionView, StatusView,
    VersionView,
};
use lunar_control::check::Checked;
use lunar_control::config::Kind;
use lunar_control::document::{Edit, Refused};
use lunar_control::links::LUN_MAX;
use lunar_control::live::{Later, Motion};
use lunar_control::manager::Failure;
use lunar_control::veil::without_secrets;
use lunar_control::versions::difference;
use lunar_control::{Plan, docs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Media type of a text for people.
const TEXT: &str = "text/plain; charset=utf-8";
/// Steps of a plan that a note spells out; of more it says how many there are.
const NOTED_STEPS_MAX: usize = 4;

/// Who carries a request out.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// The thread that owns what runs.
    Job(fn(&mut dyn Control, &Ask) -> Outcome),
    /// That thread begins it, and another goes on: it may take long.
    Long(fn(&mut dyn Control, &Ask) -> Result<Later<Outcome>, Problem>),
    /// The API's own thread.
    Here(fn(&Ask) -> Outcome),
    /// The stream of events.
    Events,
}

/// What an answer is made of.
pub type Outcome = Result<Reply, Problem>;

/// A request that may be carried out.
#[derive(Debug)]
pub struct Ask {
    /// Which.
    pub route: Arc<Route>,
    /// Who asks.
    pub who: Who,
    /// What stands in the path for each of its parameters.
    pub parameters: Vec<(String, String)>,
    /// Whether only to say what would be done.
    pub dry_run: bool,
    /// The body.
    pub body: Vec<u8>,
    /// What all requests have in common.
    pub common: Arc<Common>,
    /// The way to the control thread, for what goes on after the answer.
    pub desk: Desk,
}

/// What all requests have in common.
#[derive(Debug)]
pub struct Common {
    /// What happened.
    pub journal: Arc<Journal>,
    /// Copies that are under way.
    pub copies: Copies,
    /// The version of Lunar.
    pub version: String,
    /// When it was started.
    pub since: SystemTime,
    /// The first configuration that anybody asked about: what needs a restart is still as it says.
    first: OnceLock<Checked>,
}

impl Common {
    /// What is the same for all.
    #[must_use]
    pub fn new(journal: Arc<Journal>, version: &str, since: SystemTime) -> Arc<Self> {
        let (copies, version) = (Copies::default(), version.to_owned());
        Arc::new(Self { journal, copies, version, since, first: OnceLock::new() })
    }

    /// Remembers with what configuration it was started. Before any change: the first call counts.
    pub fn started_with(&self, checked: &Checked) {
        self.first.get_or_init(|| checked.clone());
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its media type.
    pub media: &'static str,
    /// Its body.
    pub body: Vec<u8>,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub struct Problem(Box<ProblemDetails>);

impl Problem {
    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.0.detail
    }

    fn wrong(why: impl fmt::Display) -> Self {
        Refused::Wrong(why.to_string()).into()
    }

    fn missing(what: impl fmt::Display) -> Self {
        Refused::Missing(what.to_string()).into()
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

    fn text(text: String) -> Outcome {
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
        ProblemDetails::new("/problems/internal", "The answer could not be written", 500, why.to_string())
    };
    Ok(serde_json::to_vec(value).map_err(unable)?)
}

impl Ask {
    /// What stands in the path in this place.
    fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, Problem> {
        let text = self.parameter(name);
        text.parse().map_err(|_| Problem::wrong(format!("{name} is a number, not '{}'", shortened(text))))
    }

    fn lun(&self) -> Result<u16, Problem> {
        let number = self.number("lun")?;
        let lun = u16::try_from(number).ok().filter(|lun| *lun <= LUN_MAX);
        lun.ok_or_else(|| Problem::wrong(format!("a logical unit number is 0 to {LUN_MAX}")))
    }

    fn kind(&self) -> Result<Kind, Problem> {
        self.route.kind.ok_or_else(|| Problem::missing("there is nothing here"))
    }

    pub(crate) fn name(&self) -> String {
        self.parameter("name").to_owned()
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        // The parser's words may quote the body, and with it a secret: the place is enough.
        serde_json::from_slice(&self.body).map_err(|why| {
            let (line, column) = (why.line(), why.column());
            let what = match why.classify() {
                serde_json::error::Category::Data => "is not what is wanted here",
                _ => "is no JSON",
            };
            Problem::wrong(format!("the body {what} (line {line}, column {column}); see GET /v1/openapi.json"))
        })
    }

    fn text(&self) -> Result<&str, Problem> {
        std::str::from_utf8(&self.body).map_err(|_| Problem::wrong("the body is no UTF-8 text"))
    }

    /// Makes a change, or says what it would do.
    fn edit(&self, control: &mut dyn Control, edit: Edit) -> Outcome {
        let edits = [edit];
        match self.dry_run {
            true => planned(&control.plan_edits(&edits)?),
            false => self.changed(control.change(&edits, &self.who.name)),
        }
    }

    /// Tells and notes what was changed.
    fn changed(&self, plan: Result<Plan, Failure>) -> Outcome {
        let plan = plan?;
        if !plan.is_empty() {
            self.common.journal.add(Topic::Change, &self.who.name, &noted(&plan));
        }
        planned(&plan)
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn planned(plan: &Plan) -> Outcome {
    Reply::json(&PlanView::of(plan))
}

/// A plan in a few words.
#[must_use]
pub fn noted(plan: &Plan) -> String {
    let steps: Vec<String> = plan.changes.iter().take(NOTED_STEPS_MAX).map(|change| change.words.clone()).collect();
    match plan.changes.len().saturating_sub(NOTED_STEPS_MAX) {
        0 => steps.join("; "),
        more => format!("{}; and {more} steps more", steps.join("; ")),
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// `GET /v1/status`
pub fn status(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let (sessions, troubles) = (control.sessions().len(), control.troubles());
    let (machines, isns) = (control.machines(), control.isns());
    let current = control.current();
    let named = Kind::ALL.iter().filter(|kind| kind.is_named());
    let things = named.map(|kind| (kind.section(), current.config.names(*kind).len())).collect();
    let after_restart = match ask.common.first.get() {
        Some(first) => {
            let plan = Plan::between(first, current);
            let late = plan.changes.into_iter().filter(|change| change.effect == lunar_control::Effect::Restart);
            late.map(|change| change.words).collect()
        }
        None => Vec::new(),
    };
    Reply::json(&StatusView {
        version: ask.common.version.clone(),
        process: std::process::id(),
        since: seconds(ask.common.since),
        file: control.file().to_owned(),
        things,
        sessions,
        machines,
        isns,
        after_restart,
        troubles,
    })
}

/// `GET /v1/statistics`
pub fn statistics(control: &mut dyn Control, _: &Ask) -> Outcome {
    Reply::json(&control.statistics())
}

/// `GET /v1/session`
pub fn sessions(control: &mut dyn Control, _: &Ask) -> Outcome {
    Reply::json(&control.sessions())
}

fn find_session(control: &mut dyn Control, id: &str) -> Result<SessionView, Problem> {
    let found = control.sessions().into_iter().find(|session| session.id == id);
    found.ok_or_else(|| Problem::missing(format!("there is no session {}: it may have ended", shortened(id))))
}

/// `GET /v1/session/{id}`
pub fn session(control: &mut dyn Control, ask: &Ask) -> Outcome {
    Reply::json(&find_session(control, ask.parameter("id"))?)
}

/// `DELETE /v1/session/{id}`
pub fn kick(control: &mut dyn Control, ask: &Ask) -> Result<Later<Outcome>, Problem> {
    let session = find_session(control, ask.parameter("id"))?;
    let gone = || Problem::missing(format!("session {} has just ended by itself", session.id));
    let end = control.kick(&session.id).ok_or_else(gone)?;
    let (common, who) = (ask.common.clone(), ask.who.name.clone());
    Ok(Box::new(move || {
        if !end() {
            let why = format!("session {} waits for what is in the store, and ends then", session.id);
            return Err(ProblemDetails::new("/problems/late", "It takes long", 504, why).into());
        }
        let words = format!("session {} of {} from {} was ended", session.id, session.initiator, session.source);
        common.journal.add(Topic::Logout, &who, &words);
        Reply::json(&session)
    }))
}

fn medium_of(control: &mut dyn Control, volume: &str) -> Result<MediumView, Problem> {
    let found = control.medium(volume);
    let is_away = || control.current().config.volumes.contains_key(volume);
    found.ok_or_else(|| match is_away() {
        true => Problem::missing(format!("volume '{volume}' is away: `lunar status` says why")),
        false => Problem::missing(format!("there is no volume '{}'", shortened(volume))),
    })
}

/// `GET /v1/volume/{name}/medium`
pub fn medium(control: &mut dyn Control, ask: &Ask) -> Outcome {
    Reply::json(&medium_of(control, &ask.name())?)
}

/// `POST /v1/volume/{name}/eject`
pub fn eject(control: &mut dyn Control, ask: &Ask) -> Result<Later<Outcome>, Problem> {
    let Ejection { forced } = ask.json()?;
    move_medium(control, ask, Motion::Eject { forced })
}

/// `POST /v1/volume/{name}/load`
pub fn load(control: &mut dyn Control, ask: &Ask) -> Result<Later<Outcome>, Problem> {
    move_medium(control, ask, Motion::Load)
}

fn move_medium(control: &mut dyn Control, ask: &Ask, motion: Motion) -> Result<Later<Outcome>, Problem> {
    let (common, who, name) = (ask.common.clone(), ask.who.name.clone(), ask.name());
    let before = medium_of(control, &name)?;
    let missing = || Problem::missing(format!("volume {name} has just been removed"));
    let work = control.move_medium(&name, motion).ok_or_else(missing)?;
    Ok(Box::new(move || {
        if let Err(why) = work() {
            let why = format!("volume {name}: {why}");
            return Err(ProblemDetails::new("/problems/stuck", "The medium stays where it is", 409, why).into());
        }
        let (loaded, did) = match motion {
            Motion::Eject { .. } => (false, "ejected"),
            Motion::Load => (true, "loaded"),
        };
        common.journal.add(Topic::Change, &who, &format!("volume {name} was {did}"));
        // Who ejects by force takes the lock along.
        Reply::json(&MediumView { loaded, locked: before.locked && loaded, ..before })
    }))
}

/// `GET /v1/audit`
pub fn audit(ask: &Ask) -> Outcome {
    Reply::json(&ask.common.journal.after(0).iter().map(|note| &**note).collect::<Vec<_>>())
}

/// `GET /v1/config`
pub fn config(control: &mut dyn Control, _: &Ask) -> Outcome {
    Reply::json(&control.current().config.show())
}

/// `GET /v1/config/text`
pub fn text(control: &mut dyn Control, _: &Ask) -> Outcome {
    Reply::text(without_secrets(control.versions().text()))
}

/// `POST /v1/plan`
pub fn plan(control: &mut dyn Control, ask: &Ask) -> Outcome {
    planned(&control.plan(ask.text()?)?)
}

/// `POST /v1/diff`
pub fn diff(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let versions = control.versions();
    let text = match ask.text()? {
        "" => versions.on_disk()?,
        text => text.to_owned(),
    };
    Reply::text(difference(versions.text(), &text))
}

/// `POST /v1/apply`
pub fn apply(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let text = ask.text()?;
    if ask.dry_run {
        return planned(&control.plan(text)?);
    }
    ask.changed(control.replace(text, &ask.who.name))
}

/// `POST /v1/reload`
pub fn reload(control: &mut dyn Control, ask: &Ask) -> Outcome {
    match ask.dry_run {
        true => planned(&control.plan(&control.versions().on_disk()?)?),
        false => ask.changed(control.reload()),
    }
}

/// `GET /v1/version`
pub fn versions(control: &mut dyn Control, _: &Ask) -> Outcome {
    let all = control.versions().list()?;
    Reply::json(&all.iter().map(VersionView::of).collect::<Vec<_>>())
}

/// `GET /v1/version/{number}`
pub fn version(control: &mut dyn Control, ask: &Ask) -> Outcome {
    Reply::text(without_secrets(&control.versions().text_of(ask.number("number")?)?))
}

/// `GET /v1/version/{number}/diff`
pub fn version_diff(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let versions = control.versions();
    Reply::text(difference(&versions.text_of(ask.number("number")?)?, versions.text()))
}

/// `POST /v1/version/{number}/restore`
pub fn restore(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let number = ask.number("number")?;
    match ask.dry_run {
        true => {
            let text = control.versions().text_of(number)?;
            planned(&control.plan(&text)?)
        }
        false => ask.changed(control.restore(number, &ask.who.name)),
    }
}

/// `GET /v1/schema`
pub fn schema(_: &Ask) -> Outcome {
    Reply::json(&docs::schema())
}

/// `GET /v1/openapi.json`
pub fn openapi(_: &Ask) -> Outcome {
    Reply::json(&crate::openapi::document())
}

/// `GET /v1/KIND`
pub fn list(control: &mut dyn Control, ask: &Ask) -> Outcome {
    Reply::json(&Resource::all(&control.current().config, ask.kind()?))
}

/// `GET /v1/KIND/{name}`
pub fn show(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let (kind, name) = (ask.kind()?, ask.name());
    let found = Resource::of(&control.current().config, kind, &name);
    let missing = || Problem::missing(format!("there is no {kind} '{}'", shortened(&name)));
    Reply::json(&found.ok_or_else(missing)?)
}

/// `POST /v1/KIND/{name}`
pub fn create(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let keys: Map<String, Json> = ask.json()?;
    ask.edit(control, lunar_control::api::edit(ask.kind()?, ask.name(), keys, true))
}

/// `PATCH /v1/KIND/{name}`
pub fn set(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let keys: Map<String, Json> = ask.json()?;
    ask.edit(control, lunar_control::api::edit(ask.kind()?, ask.name(), keys, false))
}

/// `DELETE /v1/KIND/{name}`
pub fn delete(control: &mut dyn Control, ask: &Ask) -> Outcome {
    ask.edit(control, Edit::Delete { kind: ask.kind()?, name: ask.name() })
}

/// `PUT /v1/group/{name}/luns/{lun}`
pub fn map(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let mapping: Mapping = ask.json()?;
    ask.edit(control, mapping.edit(ask.name(), ask.lun()?))
}

/// `DELETE /v1/group/{name}/luns/{lun}`
pub fn unmap(control: &mut dyn Control, ask: &Ask) -> Outcome {
    ask.edit(control, Edit::Unmap { group: ask.name(), lun: ask.lun()? })
}
