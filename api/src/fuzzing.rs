//! What a fuzzer calls: any bytes are a connection, or a request for one of the routes. It must not panic, must always
//! be answered, must answer nobody who may not, and never with a secret.

use crate::listen::serve_requests;
use crate::rehearsal::Service;
use crate::rights::{Door, Peer, Tokens};
use crate::routes::{Route, Takes, routes};
use crate::server::{State, router};
use crate::work::Common;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use std::cell::RefCell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
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
    /// `None`: this machine has no place for it.
    fn new() -> Option<Self> {
        // Where nothing waits for a disk.
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let folder = parent.join(format!("lunar-api-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).ok()?;
        let text = format!("api.socket = '{}'\n{TEXT}", folder.join("api.sock").display());
        let mut file = std::fs::OpenOptions::new();
        file.create(true).truncate(true).write(true).mode(0o600);
        std::io::Write::write_all(&mut file.open(folder.join("lunar.toml")).ok()?, text.as_bytes()).ok()?;
        let service = Service::start(&folder, Vec::new()).ok()?;
        let tokens = service.with(|control| Tokens::of(control.current()))?;
        let common = Common::new(service.journal.clone(), "1", SystemTime::now());
        let state = State::new(service.desk.clone(), common, Door { owner: OWNER, group: None, tokens });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        Some(Self { service, folder, text, router: router(&state), routes: routes(), runtime })
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

    /// A connection that carries these bytes: what comes back.
    fn connection(&self, peer: Peer, data: &[u8]) -> Vec<u8> {
        let router = self.router.clone();
        self.runtime.block_on(async move {
            let (mut near, far) = duplex(PIPE);
            let talk = async move {
                let mut answer = Vec::new();
                if near.write_all(data).await.is_ok() && near.shutdown().await.is_ok() {
                    let _ = near.read_to_end(&mut answer).await;
                }
                answer
            };
            let both = async { tokio::join!(talk, serve_requests(far, peer, router)).0 };
            timeout(LISTEN, both).await.unwrap_or_default()
        })
    }

    /// A request for a route: its status, and what comes back.
    fn request(&self, peer: Peer, route: &Route, mut words: std::str::Split<'_, char>) -> Option<(u16, Vec<u8>)> {
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
            let status = response.status().as_u16();
            let body = timeout(LISTEN, to_bytes(response.into_body(), usize::MAX)).await;
            (status, body.ok().and_then(Result::ok).unwrap_or_default().into())
        }))
    }
}

/// Any bytes: who asks, how, and what.
///
/// # Panics
/// When something is wrong, for that is what a fuzzer looks for.
pub fn fuzz_request(data: &[u8]) {
    thread_local! {
        static FIXTURE: RefCell<Option<Fixture>> = RefCell::new(Fixture::new());
    }
    let [who, what, data @ ..] = data else { return };
    let peer = match who % 4 {
        0 => Peer::Local { user: OWNER + 1, group: 0 },
        1 => Peer::Remote(([192, 0, 2, 1], 9).into()),
        _ => Peer::Local { user: OWNER, group: 0 },
    };
    FIXTURE.with_borrow(|fixture| {
        let Some(fixture) = fixture else { return };
        let (status, answer) = match fixture.routes.get(usize::from(*what)) {
            Some(route) => {
                let text = String::from_utf8_lossy(data);
                let Some(answer) = fixture.request(peer, route, text.split('\n')) else { return };
                answer
            }
            None => (0, fixture.connection(peer, data)),
        };
        let text = String::from_utf8_lossy(&answer);
        assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "a secret is shown: {text}");
        if who % 4 < 2 {
            assert!([0, 401, 403].contains(&status) && !text.contains("HTTP/1.1 200"), "{status}: {text}");
        }
        fixture.trim();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\r\n\r\n",
            "GET http://[::1/ HTTP/1.1\r\n\r\n",
        ] {
            for who in 0..3 {
                fuzz_request(&[&[who, 255], data.as_bytes()].concat());
            }
        }
    }
}
