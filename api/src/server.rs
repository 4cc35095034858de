//! From a request to an answer: who asks, may he, is there room, and then the work.

use crate::desk::{Control, Desk};
use crate::journal::Note;
use crate::rights::{Door, Peer, Right, Who};
use crate::routes::{Method, Route, Takes, routes};
use crate::work::{Ask, Common, Outcome, Problem, Reply, Run};
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures_util::stream;
use lunar_control::api::ProblemDetails;
use lunar_control::config::CONFIG_BYTES_MAX;
use lunar_control::live::Later;
use lunar_core::pace::host;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Bytes of a body that holds keys: the longest lists of names with room to spare. The text of a whole configuration
/// may be as long as a configuration.
pub const KEYS_BYTES_MAX: usize = 256 << 10;
/// How long a body may take to come: 16 MiB over a slow line.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the control thread may take: longer than any apply that was ever measured, by far.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
/// Requests under way at once that only look, and as many again that do something: the control thread does one after
/// the other, and more would only wait. What does something may have to wait for the end of another change; who looks
/// never waits for that. Those with the text of a whole configuration hold up to 16 MiB each, so this bounds memory,
/// too.
pub const REQUESTS_MAX: usize = 16;
/// Streams of events at once: some pages and some tools.
pub const STREAMS_MAX: usize = 32;
/// How often a stream says that it is still there, so that whoever is between does not cut it.
const STREAM_PULSE: Duration = Duration::from_secs(15);

/// The field that says after which note a stream shall begin (the WHATWG's server-sent events).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What all connections have in common.
#[derive(Debug)]
pub struct State {
    desk: Desk,
    common: Arc<Common>,
    door: RwLock<Door>,
    /// Whom it lets in has changed.
    changes: watch::Sender<()>,
    /// Room for those who look.
    lookers: Arc<Semaphore>,
    /// Room for those who do something.
    doers: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl State {
    /// What is asked goes to this desk.
    #[must_use]
    pub fn new(desk: Desk, common: Arc<Common>, door: Door) -> Arc<Self> {
        let room = |count| Arc::new(Semaphore::new(count));
        let (lookers, doers, streams) = (room(REQUESTS_MAX), room(REQUESTS_MAX), room(STREAMS_MAX));
        let changes = watch::Sender::new(());
        Arc::new(Self { desk, common, door: RwLock::new(door), changes, lookers, doers, streams })
    }

    /// Changes whom it lets in.
    pub fn change_door(&self, change: impl FnOnce(&mut Door)) {
        change(&mut self.door.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.send_replace(());
    }

    fn who(&self, parts: &Parts) -> Result<Who, Problem> {
        let Some(peer) = parts.extensions.get::<Peer>() else {
            return Err(ProblemDetails::new("/problems/not-let-in", "Nobody asks", 403, "from nowhere".into()).into());
        };
        let field = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let door = self.door.read().unwrap_or_else(PoisonError::into_inner);
        door.who(*peer, field).map_err(|why| {
            let (source, from) = match peer {
                Peer::Local { user, .. } => (format!("user {user}"), crate::place::user_name(*user)),
                Peer::Remote(from) => (host(from.ip()).to_string(), from.ip().to_string()),
            };
            let words = format!("{} {}: {}", parts.method, path(parts), why.detail);
            self.common.journal.refused(&source, &from, &words);
            why.into()
        })
    }

    /// Answers a request for a route.
    async fn answer(self: Arc<Self>, route: Arc<Route>, request: Request) -> Response {
        self.try_answer(route, request).await.unwrap_or_else(|why| respond(why.into()))
    }

    async fn try_answer(self: Arc<Self>, route: Arc<Route>, request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let who = self.who(&parts)?;
        who.may(route.right).map_err(|why| {
            let words = format!("{} {}: not allowed", parts.method, path(&parts));
            self.common.journal.refused(&who.name, &who.name, &words);
            Problem::from(why)
        })?;
        if matches!(route.run, Run::Events) {
            return self.events(&parts, who);
        }
        let dry_run = dry_run(&route, parts.uri.query())?;
        let room = if dry_run || route.right == Right::Read { &self.lookers } else { &self.doers };
        let _permit = room.clone().try_acquire_owned().map_err(|_| busy("requests"))?;
        let parameters = parameters(&mut parts).await?;
        let body = read(&route, body).await?;
        let ask = Ask { route, who, parameters, dry_run, body, common: self.common.clone(), desk: self.desk.clone() };
        let outcome = match ask.route.run {
            Run::Here(work) => work(&ask),
            Run::Job(_) | Run::Long(_) => self.done_by_the_control_thread(ask).await,
            Run::Events => Err(nothing_here()),
        };
        Ok(respond(outcome.unwrap_or_else(Reply::from)))
    }

    async fn done_by_the_control_thread(&self, ask: Ask) -> Outcome {
        let mut is_begun = false;
        let ended = timeout(ANSWER_TIME_MAX, self.carried_out(ask, &mut is_begun)).await;
        match ended {
            Ok(outcome) => outcome,
            Err(_) if is_begun => {
                let why = "it takes longer than two minutes, and goes on: look at the audit log for how it ends";
                Err(problem("/problems/late", "It takes long", 504, why))
            }
            Err(_) => {
                let why = "another change is still being carried out, and nothing was done: try again later";
                Err(problem("/problems/busy", "Too much at once", 503, why))
            }
        }
    }

    /// Has the control thread do what is asked for. What takes long goes on elsewhere, so that it has time for others.
    async fn carried_out(&self, mut ask: Ask, is_begun: &mut bool) -> Outcome {
        let stopping = || problem("/problems/stopping", "Lunar stops", 503, "it stops, and changes nothing any more");
        loop {
            let (tell, told) = oneshot::channel();
            *is_begun = true;
            // Who does not wait any more is not told.
            if !self.desk.post(move |control| drop(tell.send(begin(control, ask)))) {
                return Err(stopping());
            }
            match told.await.map_err(|_| stopping())? {
                Begun::Done(outcome) => return outcome,
                Begun::Goes(work) => return spawn_blocking(work).await.unwrap_or_else(|_| Err(stopping())),
                Begun::Waits(wait, same) => {
                    *is_begun = false;
                    spawn_blocking(wait).await.map_err(|_| stopping())?;
                    ask = same;
                }
            }
        }
    }

    /// The stream of events. It ends when who asked for it may not look any more.
    fn events(self: &Arc<Self>, parts: &Parts, who: Who) -> Result<Response, Problem> {
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| busy("streams of events"))?;
        let after = parts.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok());
        let (missed, coming) = self.common.journal.listen(after);
        let peer = parts.extensions.get::<Peer>().copied();
        let token = parts.headers.get(AUTHORIZATION).cloned();
        let judge = self.clone();
        let may_go_on = move || {
            let door = judge.door.read().unwrap_or_else(PoisonError::into_inner);
            let now = peer.and_then(|peer| door.who(peer, token.as_ref().map(HeaderValue::as_bytes)).ok());
            now.is_some_and(|now| now.name == who.name)
        };
        let (mut changes, may_go_on) = (self.changes.subscribe(), Box::new(may_go_on));
        // He was let in before: what has changed since then counts.
        changes.mark_changed();
        let source = Source { missed: missed.into(), coming, changes, may_go_on, _permit: permit };
        let stream = stream::unfold(source, |mut source| async move {
            let event = source.next().await?;
            Some((Ok::<_, Infallible>(event), source))
        });
        Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(STREAM_PULSE)).into_response())
    }

    /// Answers what is no route: like everything, only to those who may look.
    async fn refuse(self: Arc<Self>, request: Request, status: u16) -> Response {
        let (parts, _) = request.into_parts();
        let why = match self.who(&parts) {
            Err(why) => why,
            Ok(_) if status == 405 => {
                let why = format!("{} is not for {}; GET /v1/openapi.json tells what is", parts.method, path(&parts));
                problem("/problems/method", "It does not work this way", 405, &why)
            }
            Ok(_) => nothing_here(),
        };
        respond(why.into())
    }
}

/// How far the control thread has come with what it was asked for.
enum Begun {
    /// It is done.
    Done(Outcome),
    /// The rest needs it no more, and may take long.
    Goes(Later<Outcome>),
    /// The change before this one has to end first; the request comes back.
    Waits(Later<()>, Ask),
}

/// What the control thread does with a request.
fn begin(control: &mut dyn Control, ask: Ask) -> Begun {
    let is_change = ask.route.is_plan() && !ask.dry_run;
    if is_change && let Some(wait) = control.settling() {
        return Begun::Waits(wait, ask);
    }
    let outcome = match ask.route.run {
        Run::Job(work) => work(control, &ask),
        Run::Long(work) => match work(control, &ask) {
            Ok(work) => return Begun::Goes(work),
            Err(why) => Err(why),
        },
        Run::Here(_) | Run::Events => Err(nothing_here()),
    };
    match control.settling().filter(|_| is_change) {
        // It is in force; who asked is told when all is over.
        Some(wait) => Begun::Goes(Box::new(move || {
            wait();
            outcome
        })),
        None => Begun::Done(outcome),
    }
}

/// The path of a request, bounded for a note.
fn path(parts: &Parts) -> String {
    parts.uri.path().chars().take(128).collect()
}

fn problem(kind: &'static str, title: &'static str, status: u16, why: &str) -> Problem {
    ProblemDetails::new(kind, title, status, why.to_owned()).into()
}

fn busy(what: &str) -> Problem {
    problem("/problems/busy", "Too much at once", 503, &format!("there are too many {what} at once: try again later"))
}

fn nothing_here() -> Problem {
    problem(
        "/problems/missing",
        "There is no such thing",
        404,
        "there is nothing here; GET /v1/openapi.json tells what is",
    )
}

/// Whether the query says only to look; nothing else may stand in it.
fn dry_run(route: &Route, query: Option<&str>) -> Result<bool, Problem> {
    match query.unwrap_or_default() {
        "" => Ok(false),
        "dry-run" | "dry-run=true" if route.is_plan() => Ok(true),
        "dry-run=false" if route.is_plan() => Ok(false),
        _ if route.is_plan() => {
            Err(problem("/problems/wrong", "The request makes no sense", 400, "the query may be dry-run=true"))
        }
        _ => Err(problem("/problems/wrong", "The request makes no sense", 400, "this takes no query")),
    }
}

async fn parameters(parts: &mut Parts) -> Result<Vec<(String, String)>, Problem> {
    let found = RawPathParams::from_request_parts(parts, &()).await;
    let found =
        found.map_err(|_| problem("/problems/wrong", "The request makes no sense", 400, "the path is no text"))?;
    Ok(found.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

async fn read(route: &Route, body: Body) -> Result<Vec<u8>, Problem> {
    let most = match route.takes {
        Takes::Nothing => 0,
        Takes::Text => CONFIG_BYTES_MAX,
        Takes::Keys(_) | Takes::Changes(_) | Takes::Mapping | Takes::Copy | Takes::Ejection => KEYS_BYTES_MAX,
    };
    match timeout(BODY_TIME_MAX, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(_)) => {
            let why = format!("the body is longer than {most} bytes, or ended early");
            Err(problem("/problems/large", "The body cannot be read", 413, &why))
        }
        Err(_) => Err(problem("/problems/slow", "The body did not come", 408, "the body took too long to come")),
    }
}

fn respond(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, [(CONTENT_TYPE, reply.media)], reply.body).into_response();
    let fields = response.headers_mut();
    // What is shown is for who asked, and true for now.
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    match reply.status {
        401 => drop(fields.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        503 => drop(fields.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    response
}

/// Where a stream of events takes them from.
struct Source {
    missed: VecDeque<Arc<Note>>,
    coming: broadcast::Receiver<Arc<Note>>,
    /// Whom the API lets in has changed.
    changes: watch::Receiver<()>,
    /// Whether who listens still may.
    may_go_on: Box<dyn Fn() -> bool + Send + Sync>,
    _permit: OwnedSemaphorePermit,
}

impl Source {
    async fn next(&mut self) -> Option<Event> {
        loop {
            // Before anything else is told: what revoked a token may be the next note.
            if self.changes.has_changed().unwrap_or(true) {
                self.changes.mark_unchanged();
                if !(self.may_go_on)() {
                    return None;
                }
            }
            if let Some(note) = self.missed.pop_front() {
                return Some(event(&note));
            }
            tokio::select! {
                biased;
                changed = self.changes.changed() => {
                    changed.ok()?;
                    self.changes.mark_changed();
                }
                note = self.coming.recv() => return match note {
                    Ok(note) => Some(event(&note)),
                    Err(RecvError::Lagged(count)) => Some(Event::default().event("missed").data(count.to_string())),
                    Err(RecvError::Closed) => None,
                },
            }
        }
    }
}

fn event(note: &Note) -> Event {
    let data = serde_json::to_string(note).unwrap_or_default();
    Event::default().event(note.topic.word()).id(note.id.to_string()).data(data)
}

/// All routes, ready to answer requests that carry their [`Peer`].
pub fn router(state: &Arc<State>) -> axum::Router {
    let mut router = axum::Router::new();
    for route in routes() {
        let (path, filter) = (route.path.clone(), filter(route.method));
        let (state, route) = (state.clone(), Arc::new(route));
        router = router.route(&path, on(filter, move |request: Request| state.clone().answer(route.clone(), request)));
    }
    let (other, nowhere) = (state.clone(), state.clone());
    router
        .method_not_allowed_fallback(move |request: Request| other.clone().refuse(request, 405))
        .fallback(move |request: Request| nowhere.clone().refuse(request, 404))
}

fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
pub(crate) mod tests;
