//! What a fuzzer calls: any bytes are a connection, or a request for one of the routes. It must not panic, must always
//! be answered, must answer nobody who may not, and never with a secret.

use crate::listen::serve_requests;
use crate::rehearsal::Service;
use crate::rights::{Door, Peer, Tokens};
use crate::routes::{Route, Takes, routes};
use crate::server::{State, router};
use crate::work::{Common, Run};
use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use std::cell::RefCell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower_service::Service as _;

/// What nobody may ever read.
const SECRETS: [&str; 2] = ["a secret nobody reads", "a token nobody is told"];
/// What a service begins with, again and again: a thing of each kind that can be there.
const TEXT: &str = "
user.u.secret = 'a secret nobody reads'
api-token.t.secret = 'a token nobody is told'
volume.v = { kind = 'ram', size = '1M', uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6' }
portal-group.p.tag = 1
portal.a = { address = '127.0.0.1', group = 'p' }
target.t = { iqn = 'iqn.2026-01.org.example:t', portal-groups = ['p'], users = ['u'], authentication = 'chap' }
group.g = { targets = ['t'], initiators = ['*'], luns = { 0 = 'v' } }
";
/// The user that the service belongs to; who fuzzes says whether he is that.
const OWNER: u32 = 4711;
/// Bytes of a configuration beyond which it begins again: more of the same finds nothing new.
const TEXT_MAX: usize = 16 << 10;
/// Bytes between the two ends of a connection.
const PIPE: usize = 64 << 10;
/// How long a connection is listened to: a stream of events has no end.
const LISTEN: Duration = Duration::from_millis(50);

/// Each thread of a process has its own.
static FIXTURES: AtomicU32 = AtomicU32::new(0);

/// A service, and the routes to it.
struct Fixture {
    service: Service,
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
        // Where nothing waits for a disk.
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let number = FIXTURES.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("lunar-api-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is room for a folder");
        let text = format!("api.socket = '{}'\n{TEXT}", folder.join("api.sock").display());
        let mut file = std::fs::OpenOptions::new();
        file.create(true).truncate(true).write(true).mode(0o600);
        let mut file = file.open(folder.join("lunar.toml")).expect("there is room for a file");
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("there is room for a small file");
        let service = Service::start(&folder, Vec::new()).expect("the configuration is right");
        let tokens = service.with(|control| Tokens::of(control.current())).expect("the service has just begun");
        let common = Common::new(service.journal.clone(), "1", SystemTime::now());
        let state = State::new(service.desk.clone(), common, Door { owner: OWNER, group: None, tokens });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        Self { service, folder, text, router: router(&state), routes: routes(), runtime }
    }

    /// Begins again if there is too much of it.
    fn trim(&self) {
        let text = self.text.clone();
        let trim = move |control: &mut dyn crate::Control| {
            if control.versions().text().len() > TEXT_MAX || !control.current().config.volumes.contains_key("v") {
                drop(control.replace(&text, "fuzz"));
            }
        };
        assert!(self.service.with(trim).is_some(), "the service has ended");
    }

    /// A connection that carries these bytes and, if it `shuts`, nothing more: what comes back in that time.
    fn connection(&self, peer: Peer, data: &[u8], shuts: bool, patience: Duration) -> Heard {
        let (router, mut bytes) = (self.router.clone(), Vec::new());
        let (mut near, far) = duplex(PIPE);
        let talk = async {
            let sent = near.write_all(data).await;
            if sent.is_ok() && (!shuts || near.shutdown().await.is_ok()) {
                // It keeps what came before it is given up.
                while near.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {}
            }
        };
        let both = async { tokio::join!(talk, serve_requests(far, peer, router)) };
        let is_whole = self.runtime.block_on(async { timeout(patience, both).await.is_ok() });
        Heard { status: None, bytes, is_whole }
    }

    /// A request for a route; `None` if its words make none.
    fn request(&self, peer: Peer, route: &Route, mut words: std::str::Split<'_, char>) -> Option<Heard> {
        let mut path = route.path.clone();
        for name in route.parameters() {
            path = path.replace(&format!("{{{name}}}"), words.next().unwrap_or("v"));
        }
        if let Some(query) = words.next().filter(|query| !query.is_empty()) {
            path = format!("{path}?{query}");
        }
        let body: String = words.collect::<Vec<_>>().join("\n");
        let body = if route.takes == Takes::Nothing { String::new() } else { body };
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
            let is_whole = timeout(LISTEN, all).await.is_ok();
            Heard { status, bytes, is_whole }
        }))
    }
}

/// What came back.
struct Heard {
    /// Of a request for a route.
    status: Option<u16>,
    bytes: Vec<u8>,
    /// Whether it has ended, and was not only given up.
    is_whole: bool,
}

/// Any bytes: who asks, how, and what.
///
/// # Panics
/// When something is wrong, for that is what a fuzzer looks for.
pub fn fuzz_request(data: &[u8]) {
    let [who, what, data @ ..] = data else { return };
    with_fixture(|fixture| {
        let peer = peer(*who);
        let Some(route) = fixture.routes.get(usize::from(*what)) else {
            return check(*who, &fixture.connection(peer, data, true, LISTEN));
        };
        let text = String::from_utf8_lossy(data);
        if let Some(heard) = fixture.request(peer, route, text.split('\n')) {
            let is_stream = matches!(route.run, Run::Events);
            assert!(heard.is_whole || is_stream, "{} {} has no end", route.method.word(), route.path);
            check(*who, &heard);
        }
    });
}

/// Does something with this thread's service, which begins again if there is too much of it.
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

fn peer(who: u8) -> Peer {
    match who % 4 {
        0 => Peer::Local { user: OWNER + 1, group: 0 },
        1 => Peer::Remote(([192, 0, 2, 1], 9).into()),
        _ => Peer::Local { user: OWNER, group: 0 },
    }
}

/// Whether what came back is for those who asked.
fn check(who: u8, heard: &Heard) {
    let (status, text) = (heard.status, String::from_utf8_lossy(&heard.bytes));
    assert!(status.is_none_or(|status| (200..600).contains(&status)), "{status:?}: {text}");
    assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "a secret is shown: {text}");
    if who % 4 < 2 {
        let is_refused = status.is_none_or(|status| [401, 403].contains(&status));
        assert!(is_refused && !text.contains("HTTP/1.1 200"), "{status:?}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that is not a stream of events takes so long.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn whatever_is_sent_is_answered() {
        let count = u8::try_from(routes().len()).expect("few enough");
        for what in 0..count {
            for data in ["", "v", "v\ndry-run=true\n{\"size\":\"2M\"}", "g\n\n{\"volume\":\"v\"}", "\u{0}/..?%\n\n["] {
                for who in 0..3 {
                    fuzz_request(&[&[who, what], data.as_bytes()].concat());
                }
            }
        }
        for data in [
            "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /v1/volume/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{}",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\r\n\r\n",
        ] {
            for who in 0..3 {
                fuzz_request(&[&[who, 255], data.as_bytes()].concat());
            }
        }
    }

    #[test]
    fn whole_requests_are_answered_and_answers_end() {
        let ends = "Host: x\r\nConnection: close\r\n";
        for (data, status) in [
            (format!("GET /v1/status HTTP/1.1\r\n{ends}\r\n"), "200"),
            (format!("POST /v1/volume/x HTTP/1.1\r\n{ends}Content-Length: 2\r\n\r\n{{}}"), "4"),
            (format!("DELETE /v1/nothing HTTP/1.1\r\n{ends}\r\n"), "4"),
            (format!("GET http://[::1/ HTTP/1.1\r\n{ends}\r\n"), "400"),
            (format!("GET /v1/events HTTP/1.1\r\n{ends}\r\n"), "200"),
        ] {
            for who in 0..3 {
                with_fixture(|fixture| {
                    // A stream of events is the one answer that does not end.
                    let is_stream = data.contains("/v1/events") && who == 2;
                    let patience = if is_stream { LISTEN } else { PATIENCE };
                    let heard = fixture.connection(peer(who), data.as_bytes(), false, patience);
                    let text = String::from_utf8_lossy(&heard.bytes);
                    let begins = format!("HTTP/1.1 {}", if who == 2 { status } else { "4" });
                    assert!(text.starts_with(&begins), "{who} {data}: {text}");
                    assert_eq!(heard.is_whole, !is_stream, "{who} {data}: {text}");
                    check(who, &heard);
                });
            }
        }
    }
}
