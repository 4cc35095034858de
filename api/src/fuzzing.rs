//! The entry point of the fuzz target: arbitrary bytes are a connection, or a request for one of the routes. The API
//! must not panic, must answer every request, must refuse unauthorized callers and must not return a secret.

use crate::listen::serve_requests;
use crate::request::Shared;
use crate::rights::{AccessPolicy, Peer, Right, Tokens};
use crate::route::{Handler, RequestContent, Route};
use crate::routes::routes;
use crate::server::{State, router};
use crate::test_service::TestService;
use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use lunar_control::testing::SAMPLE;
use std::cell::RefCell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower_service::Service as _;

/// Secrets that no response may contain.
const SECRETS: [&str; 2] = ["chap-secret-0123456789", "api-token-0123456789"];
/// The configuration of the daemon, with a resource of each kind that needs no files.
const TEXT: &str = "
user.u.secret = 'chap-secret-0123456789'
api-token.t.secret = 'api-token-0123456789'
volume.v = { kind = 'ram', size = '1M', uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6' }
portal-group.p.tag = 1
portal.a = { address = '127.0.0.1', group = 'p' }
target.t = { iqn = 'iqn.2026-01.org.example:t', portal-groups = ['p'], users = ['u'], authentication = 'chap' }
group.g = { targets = ['t'], initiators = ['*'], luns = { 0 = 'v' } }
";
/// The user that owns the service; the input selects whether the caller is that user.
const OWNER: u32 = 4711;
/// The length of a configuration at which it is reset, in bytes: longer ones find nothing new.
const TEXT_MAX: usize = 16 << 10;
/// The buffer size of a connection, in bytes.
const PIPE: usize = 64 << 10;
/// How long a connection is read: an event stream does not end.
const LISTEN: Duration = Duration::from_millis(50);

/// Numbers the fixtures: each thread of the process has its own.
static FIXTURES: AtomicU32 = AtomicU32::new(0);

/// A daemon and its routes.
struct Fixture {
    service: TestService,
    folder: PathBuf,
    text: String,
    router: axum::Router,
    routes: Vec<Route>,
    runtime: Runtime,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Fixture {
    fn new() -> Self {
        // In memory, so that no test waits for a disk.
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let number = FIXTURES.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("lunar-api-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let text = format!("api.socket = '{}'\n{TEXT}", folder.join("api.sock").display());
        let mut file = std::fs::OpenOptions::new();
        file.create(true).truncate(true).write(true).mode(0o600);
        let mut file = file.open(folder.join("lunar.toml")).expect("a file");
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        let service = TestService::start(&folder, Vec::new()).expect("a valid configuration");
        let tokens = service.with(|control| Tokens::of(control.current())).expect("a daemon");
        let shared = Shared::new(&SAMPLE, service.audit_log.clone(), "1", SystemTime::now());
        let state =
            State::new(service.control_thread.clone(), shared, AccessPolicy { owner: OWNER, group: None, tokens });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        Self { service, folder, text, router: router(&state), routes: routes(&SAMPLE), runtime }
    }

    /// Resets the configuration if it has become too long.
    fn trim(&self) {
        let text = self.text.clone();
        let trim = move |control: &mut dyn crate::Control| {
            if control.versions().text().len() > TEXT_MAX || !control.current().config.volumes.contains_key("v") {
                drop(control.replace(&text, "fuzz".into()));
            }
        };
        assert!(self.service.with(trim).is_some(), "the control thread has ended");
    }

    /// Sends `data` on a connection and reads the response; `shut_down` selects whether to shut down the sending side.
    fn connection(&self, peer: Peer, data: &[u8], shut_down: bool, limit: Duration) -> Received {
        let (router, mut bytes) = (self.router.clone(), Vec::new());
        let (mut client, server) = duplex(PIPE);
        let exchange = async {
            let sent = client.write_all(data).await;
            if sent.is_ok() && (!shut_down || client.shutdown().await.is_ok()) {
                // Keep what was received before the timeout.
                while client.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {}
            }
        };
        let both = async { tokio::join!(exchange, serve_requests(server, (peer, None), router)) };
        let has_ended = self.runtime.block_on(async { timeout(limit, both).await.is_ok() });
        Received { status: None, bytes, has_ended }
    }

    /// Sends a request for a route; `None` if `words` form no valid request.
    fn request(&self, peer: Peer, route: &Route, mut words: std::str::Split<'_, char>) -> Option<Received> {
        let mut path = route.path.clone();
        for name in route.parameters() {
            path = path.replace(&format!("{{{name}}}"), words.next().unwrap_or("v"));
        }
        if let Some(query) = words.next().filter(|query| !query.is_empty()) {
            path = format!("{path}?{query}");
        }
        let body: String = words.collect::<Vec<_>>().join("\n");
        let body = if route.request == RequestContent::Nothing { String::new() } else { body };
        let request = Request::builder().method(route.method.word()).uri(path).extension(peer).body(Body::from(body));
        let (mut router, request) = (self.router.clone(), request.ok()?);
        Some(self.runtime.block_on(async move {
            let Ok(response) = router.call(request).await;
            let (status, mut bytes) = (Some(response.status().as_u16()), Vec::new());
            let mut body = response.into_body().into_data_stream();
            let all = async {
                while let Some(Ok(part)) = body.next().await {
                    bytes.extend_from_slice(&part);
                }
            };
            let has_ended = timeout(LISTEN, all).await.is_ok();
            Received { status, bytes, has_ended }
        }))
    }
}

/// A response.
struct Received {
    /// The status, for requests of a route.
    status: Option<u16>,
    bytes: Vec<u8>,
    /// Whether the response ended before the timeout.
    has_ended: bool,
}

/// Runs one input: caller, route, and the request.
///
/// # Panics
/// If the API violates one of the rules above.
pub fn fuzz_request(data: &[u8]) {
    let [caller, selector, data @ ..] = data else { return };
    // The fuzzer learns the secrets from the comparisons. A name in a request or in the configuration is no secret.
    if SECRETS.iter().any(|secret| data.windows(secret.len()).any(|part| part == secret.as_bytes())) {
        return;
    }
    with_fixture(|fixture| {
        let peer = peer(*caller);
        let Some(route) = fixture.routes.get(usize::from(*selector)) else {
            // A request without a token may name a route that needs none.
            let text = String::from_utf8_lossy(data);
            let is_open = fixture.routes.iter().any(|route| route.right == Right::None && text.contains(&route.path));
            return check(*caller, is_open, &fixture.connection(peer, data, true, LISTEN));
        };
        let text = String::from_utf8_lossy(data);
        if let Some(received) = fixture.request(peer, route, text.split('\n')) {
            let is_stream = matches!(route.handler, Handler::EventStream | Handler::Live);
            assert!(received.has_ended || is_stream, "{} {} does not end", route.method.word(), route.path);
            check(*caller, route.right == Right::None, &received);
        }
    });
}

/// Runs `work` on the fixture of this thread, then resets the configuration if it has become too long.
fn with_fixture(work: impl FnOnce(&Fixture)) {
    thread_local! {
        static FIXTURE: RefCell<Option<Fixture>> = const { RefCell::new(None) };
    }
    FIXTURE.with_borrow_mut(|fixture| {
        let fixture = fixture.get_or_insert_with(Fixture::new);
        work(fixture);
        fixture.trim();
    });
}

fn peer(caller: u8) -> Peer {
    match caller % 4 {
        0 => Peer::Local { user: OWNER + 1, group: 0 },
        1 => Peer::Remote(([192, 0, 2, 1], 9).into()),
        _ => Peer::Local { user: OWNER, group: 0 },
    }
}

/// Checks that the response is allowed for the caller. `is_open`: the route may need no right.
fn check(caller: u8, is_open: bool, received: &Received) {
    let (status, text) = (received.status, String::from_utf8_lossy(&received.bytes));
    assert!(status.is_none_or(|status| (200..600).contains(&status)), "{status:?}: {text}");
    assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "a secret is returned: {text}");
    if caller % 4 < 2 && !is_open {
        let is_refused = status.is_none_or(|status| [401, 403].contains(&status));
        assert!(is_refused && !text.contains("HTTP/1.1 200"), "{status:?}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only event streams take longer.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn all_input_is_answered() {
        let count = u8::try_from(routes(&SAMPLE).len()).expect("few enough");
        for selector in 0..count {
            for data in ["", "v", "v\ndry-run=true\n{\"size\":\"2M\"}", "g\n\n{\"volume\":\"v\"}", "\u{0}/..?%\n\n["] {
                for caller in 0..3 {
                    fuzz_request(&[&[caller, selector], data.as_bytes()].concat());
                }
            }
        }
        for data in [
            "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /v1/volume/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{}",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\r\n\r\n",
        ] {
            for caller in 0..3 {
                fuzz_request(&[&[caller, 255], data.as_bytes()].concat());
            }
        }
    }

    #[test]
    fn complete_requests_are_answered_and_responses_end() {
        let ends = "Host: x\r\nConnection: close\r\n";
        for (data, status) in [
            (format!("GET /v1/status HTTP/1.1\r\n{ends}\r\n"), "200"),
            (format!("POST /v1/volume/x HTTP/1.1\r\n{ends}Content-Length: 2\r\n\r\n{{}}"), "4"),
            (format!("DELETE /v1/nothing HTTP/1.1\r\n{ends}\r\n"), "4"),
            (format!("GET http://[::1/ HTTP/1.1\r\n{ends}\r\n"), "400"),
            (format!("GET /v1/events HTTP/1.1\r\n{ends}\r\n"), "200"),
        ] {
            for caller in 0..3 {
                with_fixture(|fixture| {
                    // An event stream is the only response that does not end.
                    let is_stream = data.contains("/v1/events") && caller == 2;
                    let limit = if is_stream { LISTEN } else { PATIENCE };
                    let received = fixture.connection(peer(caller), data.as_bytes(), false, limit);
                    let text = String::from_utf8_lossy(&received.bytes);
                    let begins = format!("HTTP/1.1 {}", if caller == 2 { status } else { "4" });
                    assert!(text.starts_with(&begins), "{caller} {data}: {text}");
                    assert_eq!(received.has_ended, !is_stream, "{caller} {data}: {text}");
                    check(caller, false, &received);
                });
            }
        }
    }
}
