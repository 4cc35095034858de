//! Authorizes and executes requests: authenticates the caller, checks the right, bounds the load, and runs the handler.

mod live;
mod login;

use crate::audit::AuditRecord;
use crate::browser;
use crate::control::{Control, ControlHandle};
use crate::logins::Logins;
use crate::metrics::{self, Requests};
use crate::monitoring::Monitoring;
use crate::page;
use crate::request::{ApiRequest, Outcome, Problem, Reply, Shared, stopping};
use crate::rights::{AccessPolicy, Caller, Credentials, Peer, Right, unauthenticated};
use crate::route::{Handler, LoginStep, Method, RequestContent, Route};
use crate::routes::routes;
use crate::scsi;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures_util::stream;
use live::{Live, VIEWERS_MAX};
use lunar_control::api::{ProblemDetails, StatusView};
use lunar_control::config::CONFIG_BYTES_MAX;
use lunar_control::live::Later;
use lunar_control::metrics::Format;
use lunar_control::scsi::COMMANDS_MAX;
use lunar_core::access::throttle::Throttle;
use lunar_core::pace::host;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// The longest body with JSON, in bytes: more than the longest lists of names. The text of a whole configuration may be
/// as long as a configuration.
pub const KEYS_BYTES_MAX: usize = 256 << 10;
/// The longest time for receiving a body: 16 MiB over a slow connection.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time for an answer of the control thread: far longer than any measured apply.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
/// The most requests in progress that read, and the same number that write. The control thread executes one after the
/// other, so more would only wait. A request that writes may have to wait until another change is finalized; requests
/// that read never wait for that. A request with a whole configuration holds up to 16 MiB, so this also bounds memory.
pub const REQUESTS_MAX: usize = 16;
/// The most event streams: a few pages and tools.
pub const STREAMS_MAX: usize = 32;
/// The interval of keep-alive comments in a stream, so that proxies do not cut it.
const STREAM_PULSE: Duration = Duration::from_secs(15);
/// The interval at which a stream checks that the login of its reader has not ended.
const LOGIN_CHECK: Duration = Duration::from_secs(60);

/// The header field with the last record that a reader of the stream received (WHATWG, server-sent events).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The state that all connections share.
#[derive(Debug)]
pub struct State {
    control_thread: ControlHandle,
    shared: Arc<Shared>,
    policy: RwLock<AccessPolicy>,
    /// Notifies the streams that the access policy has changed.
    changes: watch::Sender<()>,
    /// Bounds the requests that read.
    readers: Arc<Semaphore>,
    /// Bounds the requests that write.
    writers: Arc<Semaphore>,
    /// Bounds the SCSI commands: a volume that does not answer them must not keep changes from the service.
    commands: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    viewers: Arc<Semaphore>,
    live: Live,
    requests: Requests,
    monitoring: Monitoring,
    /// The sessions of browsers.
    logins: Logins,
    /// Delays the logins of browsers that fail.
    throttle: Mutex<Throttle>,
    started: Instant,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
struct Authenticated {
    caller: Caller,
    credentials: Credentials,
    /// The key of the session, if it is a browser.
    session: Option<Arc<str>>,
}

impl State {
    /// The state that all requests share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Creates the state. Requests are sent to `control_thread`.
    #[must_use]
    pub fn new(control_thread: ControlHandle, shared: Arc<Shared>, policy: AccessPolicy) -> Arc<Self> {
        let room = |count| Arc::new(Semaphore::new(count));
        let (readers, writers, streams) = (room(REQUESTS_MAX), room(REQUESTS_MAX), room(STREAMS_MAX));
        let changes = watch::Sender::new(());
        Arc::new(Self {
            control_thread,
            shared,
            policy: RwLock::new(policy),
            changes,
            readers,
            writers,
            commands: room(COMMANDS_MAX),
            streams,
            viewers: room(VIEWERS_MAX),
            live: Live::default(),
            requests: Requests::default(),
            monitoring: Monitoring::default(),
            logins: Logins::default(),
            throttle: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Changes the access policy.
    pub fn change_policy(&self, change: impl FnOnce(&mut AccessPolicy)) {
        change(&mut self.policy.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.send_replace(());
    }

    fn policy(&self) -> RwLockReadGuard<'_, AccessPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn authenticate(&self, parts: &Parts) -> Result<Authenticated, Problem> {
        let Some(peer) = parts.extensions.get::<Peer>() else {
            return Err(ProblemDetails::new(
                "/problems/not-let-in",
                "Unknown caller",
                403,
                "the connection has no peer".into(),
            )
            .into());
        };
        let field = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let is_remote = matches!(peer, Peer::Remote(_));
        let found = match browser::cookie(parts) {
            // Another page cannot know the token of a program.
            _ if is_remote && field.is_some() => self.authenticate_program(*peer, field),
            Some(key) => self.authenticate_browser(parts, key),
            None if !is_remote && browser::is_browser(&parts.headers) => self.authenticate_browser(parts, ""),
            None => self.authenticate_program(*peer, field),
        };
        found.map_err(|why| {
            // A browser that is not logged in, or not any more, has made no mistake.
            if why.status == 401 && field.is_none() && browser::is_browser(&parts.headers) {
                return why.into();
            }
            let (source, from) = match peer {
                Peer::Local { user, .. } => (format!("user {user}"), crate::system::user_name(*user)),
                Peer::Remote(from) => (host(from.ip()).to_string(), from.ip().to_string()),
            };
            let words = format!("{} {}: {}", parts.method, path(parts), why.detail);
            self.shared.audit_log.add_refusal(&source, &from, &words);
            why.into()
        })
    }

    fn authenticate_program(&self, peer: Peer, field: Option<&[u8]>) -> Result<Authenticated, ProblemDetails> {
        let (caller, credentials) = self.policy().authenticate(peer, field)?;
        Ok(Authenticated { caller, credentials, session: None })
    }

    /// Authenticates a browser by the key in its cookie.
    fn authenticate_browser(&self, parts: &Parts, key: &str) -> Result<Authenticated, ProblemDetails> {
        browser::check_origin(parts)?;
        let found = self.logins.find(key, Instant::now());
        let credentials = found.ok_or_else(|| unauthenticated("log in at the page, with a token or by `lunar web`"))?;
        let caller = self.policy().caller(&credentials)?;
        Ok(Authenticated { caller, credentials, session: Some(key.into()) })
    }

    /// Whether a caller may still read: for streams, which outlast changes of the access policy and logins.
    fn may_still_read(&self, who: &Authenticated) -> bool {
        let is_logged_in = |key: &Arc<str>| self.logins.find(key, Instant::now()).is_some();
        let now = self.policy().caller(&who.credentials);
        now.is_ok_and(|now| now.name == who.caller.name && now.right >= Right::Read)
            && who.session.as_ref().is_none_or(is_logged_in)
    }

    /// Executes a request for a route.
    async fn answer(self: Arc<Self>, route: Arc<Route>, request: Request) -> Response {
        let state = self.clone();
        let name = route.name.clone();
        let response = self.try_answer(route, request).await.unwrap_or_else(|why| respond(why.into()));
        state.requests.count(&name, response.status().as_u16());
        response
    }

    async fn try_answer(self: Arc<Self>, route: Arc<Route>, request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        if let Handler::Health(checks) = route.handler {
            // The body is not read: anyone may send one.
            let is_verbose = parts.uri.query() == Some("verbose");
            return Ok(respond(self.monitoring.health(&self.shared, (&route.name, checks), is_verbose).await));
        }
        match route.handler {
            Handler::Login(LoginStep::LogIn) => return self.log_in(&route, &parts, body).await,
            Handler::Login(LoginStep::Show) => return self.show_login(&parts),
            _ => {}
        }
        let who = self.authenticate(&parts)?;
        who.caller.check_right(route.right).map_err(|why| {
            let words = format!("{} {}: not allowed", parts.method, path(&parts));
            self.shared.audit_log.add_refusal(&who.caller.name, &who.caller.name, &words);
            Problem::from(why)
        })?;
        match route.handler {
            Handler::EventStream => return self.events(&parts, who),
            Handler::Live => return self.live(who),
            Handler::Metrics => return Ok(respond(self.page_of_metrics(&parts).await)),
            Handler::Login(step) => return self.login_step(step, &parts, &who),
            _ => {}
        }
        let Query { dry_run, force, with_data, texts } = Query::of(&route, parts.uri.query())?;
        let (room, what) = match route.request {
            RequestContent::Scsi => (&self.commands, "SCSI commands"),
            _ if dry_run || route.right == Right::Read => (&self.readers, "requests"),
            _ => (&self.writers, "requests"),
        };
        let _permit = room.clone().try_acquire_owned().map_err(|_| busy(what))?;
        let mut parameters = parameters(&mut parts).await?;
        parameters.extend(texts);
        let body = read(&route, body).await?;
        let kind = route.kind;
        let api_request = ApiRequest {
            kind,
            caller: who.caller,
            parameters,
            dry_run,
            force: force.into(),
            with_data,
            body,
            shared: self.shared.clone(),
            control_thread: self.control_thread.clone(),
        };
        let outcome = match route.handler {
            Handler::Local(work) => work(&api_request),
            Handler::Counters => self.counters(&route).await,
            Handler::Control(_) | Handler::Long(_) => match self.shared.starting_status() {
                Some(status) => while_starting(&route, &status),
                None => self.run_on_control_thread(route, api_request).await,
            },
            Handler::EventStream | Handler::Live | Handler::Metrics | Handler::Login(_) | Handler::Health(_) => {
                Err(not_found())
            }
        };
        Ok(respond(outcome.unwrap_or_else(Reply::from)))
    }

    async fn run_on_control_thread(&self, route: Arc<Route>, api_request: ApiRequest) -> Outcome {
        let mut is_started = false;
        let ended = timeout(ANSWER_TIME_MAX, self.execute(&route, api_request, &mut is_started)).await;
        match ended {
            Ok(outcome) => outcome,
            Err(_) if is_started => {
                let why = "the request takes longer than two minutes and continues: the audit log will have its result";
                Err(problem("/problems/late", "The request takes long", 504, why))
            }
            Err(_) => {
                let why = "another change is still in progress, and nothing was changed: try again later";
                Err(problem("/problems/busy", "Too busy", 503, why))
            }
        }
    }

    /// Runs a request on the control thread. Long work continues on another thread, so that the control thread is free.
    async fn execute(&self, route: &Arc<Route>, mut api_request: ApiRequest, is_started: &mut bool) -> Outcome {
        loop {
            let (sender, received) = oneshot::channel();
            *is_started = true;
            // If the request was given up, the receiver is gone.
            let route = route.clone();
            if !self.control_thread.post(move |control| drop(sender.send(start(control, &route, api_request)))) {
                return Err(stopping());
            }
            match received.await.map_err(|_| stopping())? {
                Progress::Done(outcome) => return outcome,
                Progress::Continues(work) => return spawn_blocking(work).await.unwrap_or_else(|_| Err(stopping())),
                Progress::Waits(wait, same) => {
                    *is_started = false;
                    spawn_blocking(wait).await.map_err(|_| stopping())?;
                    api_request = same;
                }
            }
        }
    }

    /// The event stream. It ends when the caller loses its right to read.
    fn events(self: &Arc<Self>, parts: &Parts, who: Authenticated) -> Result<Response, Problem> {
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| busy("event streams"))?;
        let after = parts.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok());
        let (stored, records) = self.shared.audit_log.subscribe(after);
        let state = self.clone();
        let is_still_allowed = move || state.may_still_read(&who);
        let (mut changes, is_still_allowed) = (self.changes.subscribe(), Box::new(is_still_allowed));
        // The policy may have changed since the caller was authenticated.
        changes.mark_changed();
        let source = EventSource { stored: stored.into(), records, changes, is_still_allowed, _permit: permit };
        let stream = stream::unfold(source, |mut source| async move {
            let event = source.next().await?;
            Some((Ok::<_, Infallible>(event), source))
        });
        Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(STREAM_PULSE)).into_response())
    }

    /// The page of metrics. It is made on a thread of its own: with thousands of series it takes some milliseconds.
    async fn page_of_metrics(self: &Arc<Self>, parts: &Parts) -> Reply {
        let accept = parts.headers.get_all(ACCEPT).iter().filter_map(|field| field.to_str().ok());
        let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
        let state = self.clone();
        let make = move || metrics::page(&state.shared, &state.requests, format);
        self.monitoring.page(format, make).await
    }

    /// The counters. They are read on a thread of its own: of thousands of volumes that takes some milliseconds.
    async fn counters(self: &Arc<Self>, route: &Route) -> Outcome {
        let Some(measured) = self.shared.measured.get().cloned() else {
            let status = self.shared.starting_status();
            let starting = || problem("/problems/starting", "Lunar is starting", 503, "no volume is served yet");
            return while_starting(route, &status.ok_or_else(starting)?);
        };
        let state = self.clone();
        let make = move || {
            let counters = measured.counters(&state.shared.seen().troubles);
            serde_json::to_string(&counters).unwrap_or_default()
        };
        self.monitoring.counters(make).await
    }

    /// Refuses a request that matches no route. Only authenticated callers learn that there is none.
    async fn refuse(self: Arc<Self>, request: Request, status: u16) -> Response {
        let (parts, _) = request.into_parts();
        self.requests.count("none", status);
        let why = match self.authenticate(&parts) {
            Err(why) => why,
            Ok(_) if status == 405 => {
                let why = format!(
                    "the method {} is not allowed for {}; see GET /v1/openapi.json",
                    parts.method,
                    path(&parts)
                );
                problem("/problems/method", "Method not allowed", 405, &why)
            }
            Ok(_) => not_found(),
        };
        respond(why.into())
    }
}

/// The answer of a daemon that has no control thread yet: its status, and nothing else.
fn while_starting(route: &Route, status: &StatusView) -> Outcome {
    if route.method == Method::Get && route.path == "/v1/status" {
        return Reply::json(status);
    }
    let words: Vec<String> = status.troubles.iter().map(|trouble| trouble.words.clone()).collect();
    Err(problem("/problems/starting", "Lunar is starting", 503, &words.join("; ")))
}

/// The progress of a request after its turn on the control thread.
enum Progress {
    /// The request is complete.
    Done(Outcome),
    /// The rest does not need the control thread and may take long.
    Continues(Later<Outcome>),
    /// An earlier change must be finalized first; then the request is sent again.
    Waits(Later<()>, ApiRequest),
}

/// Runs a request on the control thread.
fn start(control: &mut dyn Control, route: &Route, api_request: ApiRequest) -> Progress {
    let is_change = route.takes_dry_run() && !api_request.dry_run;
    if is_change && let Some(wait) = control.finalizing() {
        return Progress::Waits(wait, api_request);
    }
    let outcome = match route.handler {
        Handler::Control(work) => work(control, &api_request),
        Handler::Long(work) => match work(control, &api_request) {
            Ok(work) => return Progress::Continues(work),
            Err(why) => Err(why),
        },
        _ => Err(not_found()),
    };
    match control.finalizing().filter(|_| is_change) {
        // The change is applied; the reply is sent when it is finalized.
        Some(wait) => Progress::Continues(Box::new(move || {
            wait();
            outcome
        })),
        None => Progress::Done(outcome),
    }
}

/// The path of a request, shortened for an audit record.
fn path(parts: &Parts) -> String {
    parts.uri.path().chars().take(128).collect()
}

fn problem(kind: &'static str, title: &'static str, status: u16, why: &str) -> Problem {
    ProblemDetails::new(kind, title, status, why.to_owned()).into()
}

fn busy(what: &str) -> Problem {
    problem("/problems/busy", "Too busy", 503, &format!("too many {what} at the same time: try again later"))
}

fn not_found() -> Problem {
    problem("/problems/missing", "Not found", 404, "there is no such resource; see GET /v1/openapi.json")
}

/// The query parameters of a change.
#[derive(Clone, Default)]
struct Query {
    dry_run: bool,
    force: bool,
    with_data: bool,
    texts: Vec<(String, String)>,
}

impl Query {
    /// The parameters of a query, each at most once. No other parameter is allowed.
    fn of(route: &Route, query: Option<&str>) -> Result<Self, Problem> {
        let wrong = |why| problem("/problems/wrong", "Bad request", 400, why);
        let mut found = Self::default();
        let parts = query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty());
        let mut seen = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            if seen.contains(&name) {
                return Err(wrong("a query parameter is given twice"));
            }
            seen.push(name);
            if route.texts().iter().any(|(known, _)| *known == name) {
                let value = decoded(value).ok_or_else(|| wrong("a query parameter is not UTF-8 text"))?;
                found.texts.push((name.to_owned(), value));
                continue;
            }
            if !route.takes_force() {
                return Err(wrong("this route has no query parameters"));
            }
            let place = match name {
                "dry-run" if route.takes_dry_run() => &mut found.dry_run,
                "force" => &mut found.force,
                "with-data" if route.takes_with_data() => &mut found.with_data,
                _ if !route.takes_dry_run() => return Err(wrong("the query parameter is force")),
                _ => return Err(wrong("the query parameters are dry-run and force, and with-data to delete a volume")),
            };
            *place = match value {
                "true" => true,
                "false" => false,
                _ => return Err(wrong("a query parameter is true or false")),
            };
        }
        Ok(found)
    }
}

/// A value of a query without percent-encoding (RFC 3986 2.1); `None` if it is not UTF-8 text.
fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let encoded = (*first == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        match encoded.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

async fn parameters(parts: &mut Parts) -> Result<Vec<(String, String)>, Problem> {
    let found = RawPathParams::from_request_parts(parts, &()).await;
    let found = found.map_err(|_| problem("/problems/wrong", "Bad request", 400, "the path is not UTF-8 text"))?;
    Ok(found.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

async fn read(route: &Route, body: Body) -> Result<Vec<u8>, Problem> {
    let most = match route.request {
        RequestContent::Nothing => 0,
        RequestContent::Text => CONFIG_BYTES_MAX,
        RequestContent::Keys(_)
        | RequestContent::Login
        | RequestContent::Changes(_)
        | RequestContent::Mapping
        | RequestContent::Copy
        | RequestContent::Ejection => KEYS_BYTES_MAX,
        RequestContent::Scsi => scsi::BODY_BYTES_MAX,
    };
    match timeout(BODY_TIME_MAX, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(_)) => {
            let why = format!("the body is longer than {most} bytes, or ended early");
            Err(problem("/problems/large", "The body cannot be read", 413, &why))
        }
        Err(_) => Err(problem("/problems/slow", "The body took too long", 408, "the body did not arrive in time")),
    }
}

fn respond(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, [(CONTENT_TYPE, reply.media)], reply.body).into_response();
    let fields = response.headers_mut();
    // Responses depend on the caller and the present state.
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    match reply.status {
        401 => drop(fields.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        503 => drop(fields.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    response
}

/// The source of an event stream.
struct EventSource {
    stored: VecDeque<Arc<AuditRecord>>,
    records: broadcast::Receiver<Arc<AuditRecord>>,
    /// Notified when the access policy changes.
    changes: watch::Receiver<()>,
    /// Whether the caller may still read.
    is_still_allowed: Box<dyn Fn() -> bool + Send + Sync>,
    _permit: OwnedSemaphorePermit,
}

impl EventSource {
    async fn next(&mut self) -> Option<Event> {
        loop {
            // Check before the next record is sent: it may be the record of the change that revoked the token.
            if self.changes.has_changed().unwrap_or(true) {
                self.changes.mark_unchanged();
                if !(self.is_still_allowed)() {
                    return None;
                }
            }
            if let Some(record) = self.stored.pop_front() {
                return Some(event(&record));
            }
            tokio::select! {
                biased;
                changed = self.changes.changed() => {
                    changed.ok()?;
                    self.changes.mark_changed();
                }
                record = self.records.recv() => return match record {
                    Ok(record) => Some(event(&record)),
                    Err(RecvError::Lagged(count)) => Some(Event::default().event("missed").data(count.to_string())),
                    Err(RecvError::Closed) => None,
                },
                () = sleep(LOGIN_CHECK) => self.changes.mark_changed(),
            }
        }
    }
}

fn event(record: &AuditRecord) -> Event {
    let data = serde_json::to_string(record).unwrap_or_default();
    Event::default().event(record.topic.word()).id(record.id.to_string()).data(data)
}

/// The router of all routes. Requests must carry their [`Peer`] as an extension.
pub fn router(state: &Arc<State>) -> axum::Router {
    let mut router = axum::Router::new();
    for route in routes(state.shared.schema) {
        let (path, filter) = (route.path.clone(), filter(route.method));
        let (state, route) = (state.clone(), Arc::new(route));
        router = router.route(&path, on(filter, move |request: Request| state.clone().answer(route.clone(), request)));
    }
    let (of_page, other, nowhere) = (state.clone(), state.clone(), state.clone());
    page::add(router, move |status| of_page.requests.count("page", status.as_u16()))
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
