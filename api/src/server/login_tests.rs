use super::*;
use crate::rights::Tokens;
use crate::server::tests::{Fixture, OWNER};
use axum::body::to_bytes;
use serde_json::{Value as Json, json};
use tower_service::Service as _;

const READER: &str = "the token of the reader";
const WRITER: &str = "the token of the writer";
const LOOPBACK: Peer = Peer::Remote(std::net::SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 50_000));
const HOST: (&str, &str) = ("host", "127.0.0.1:3280");
const PAGE: (&str, &str) = ("lunar-page", "1");
const BROWSER: (&str, &str) = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)");

/// A response: status, Set-Cookie field, body.
type Answer = (u16, Option<String>, Json);

fn send(fixture: &Fixture, peer: Peer, (method, path): (&str, &str), fields: &[(&str, &str)], body: &Json) -> Answer {
    let request = axum::http::Request::builder().method(method).uri(path).extension(peer);
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Body::from(body)).expect("a request");
    let mut router = fixture.router.clone();
    fixture.runtime.block_on(async {
        let response = router.call(request).await.expect("a response");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let cookie = headers.get(SET_COOKIE).map(|cookie| cookie.to_str().expect("text").to_owned());
        if headers[axum::http::header::CONTENT_TYPE] == "text/event-stream" {
            return (status, cookie, Json::Null);
        }
        let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, cookie, serde_json::from_slice(&bytes).unwrap_or_default())
    })
}

/// Logs in; returns the Cookie field.
fn log_in(fixture: &Fixture, peer: Peer, login: &Json) -> String {
    let (status, cookie, body) = send(fixture, peer, ("POST", "/v1/login"), &[HOST, PAGE, BROWSER], login);
    assert_eq!(status, 200, "{body}");
    cookie.expect("a cookie").split(';').next().expect("a pair").to_owned()
}

#[test]
fn a_browser_logs_in_with_a_token_and_out() {
    let fixture = Fixture::new();
    let cookie = log_in(&fixture, LOOPBACK, &json!({ "token": format!(" {READER}\n") }));
    assert!(cookie.starts_with("lunar-3280=") && cookie.len() == 75, "{cookie}");
    let with = [HOST, ("cookie", cookie.as_str())];
    let (status, _, body) = send(&fixture, LOOPBACK, ("GET", "/v1/login"), &with, &Json::Null);
    assert_eq!((status, body), (200, json!({ "name": "token.reader", "role": "read" })));
    assert_eq!(send(&fixture, LOOPBACK, ("GET", "/v1/status"), &with, &Json::Null).0, 200);
    assert_eq!(send(&fixture, LOOPBACK, ("GET", "/v1/live"), &with, &Json::Null).0, 200);
    // The role holds, and a change needs the field of the page.
    let create = ("POST", "/v1/volume/new");
    let keys = json!({ "kind": "ram", "size": "1M" });
    assert_eq!(send(&fixture, LOOPBACK, create, &[&with[..], &[PAGE]].concat(), &keys).0, 403);
    let cookie = log_in(&fixture, LOOPBACK, &json!({ "token": WRITER }));
    let with = [HOST, ("cookie", cookie.as_str())];
    let (status, _, body) = send(&fixture, LOOPBACK, create, &with, &keys);
    assert_eq!((status, &body["type"]), (403, &json!("/problems/origin")), "a form of another page");
    let foreign = [&with[..], &[PAGE, ("origin", "http://evil.example")]].concat();
    assert_eq!(send(&fixture, LOOPBACK, create, &foreign, &keys).0, 403);
    let rebound = [("host", "evil.example:3280"), PAGE, ("cookie", cookie.as_str())];
    assert_eq!(send(&fixture, LOOPBACK, create, &rebound, &keys).0, 421);
    assert_eq!(send(&fixture, LOOPBACK, create, &[&with[..], &[PAGE]].concat(), &keys).0, 200);
    let out = [&with[..], &[PAGE]].concat();
    let (status, cleared, _) = send(&fixture, LOOPBACK, ("DELETE", "/v1/login"), &out, &Json::Null);
    assert_eq!((status, cleared.expect("a cookie").contains("lunar-3280=; ")), (200, true));
    assert_eq!(send(&fixture, LOOPBACK, ("GET", "/v1/status"), &with, &Json::Null).0, 401);
    let topics: Vec<_> = fixture.state.shared.audit_log.after(0).iter().map(|record| record.topic).collect();
    assert!(topics.iter().filter(|topic| **topic == Topic::Login).count() == 2 && topics.contains(&Topic::Logout));
}

#[test]
fn a_login_ends_with_its_token() {
    let fixture = Fixture::new();
    let cookie = log_in(&fixture, LOOPBACK, &json!({ "token": WRITER }));
    let with = [HOST, ("cookie", cookie.as_str())];
    assert_eq!(send(&fixture, LOOPBACK, ("GET", "/v1/status"), &with, &Json::Null).0, 200);
    fixture.state.change_policy(|policy| policy.tokens = Tokens::default());
    assert_eq!(send(&fixture, LOOPBACK, ("GET", "/v1/status"), &with, &Json::Null).0, 401);
}

#[test]
fn wrong_logins_are_refused_recorded_and_delayed() {
    let fixture = Fixture::new();
    let login = ("POST", "/v1/login");
    let fields = [HOST, PAGE];
    for wrong in [json!({ "token": "the wrong token" }), json!({ "link": "0".repeat(64) })] {
        let (status, cookie, body) = send(&fixture, LOOPBACK, login, &fields, &wrong);
        assert_eq!((status, cookie), (401, None), "{body}");
        assert!(!body.to_string().contains("the wrong token"));
    }
    for malformed in
        [json!({}), json!([]), json!({ "token": "a", "link": "b" }), json!({ "token": WRITER, "more": 1 }), Json::Null]
    {
        let (status, cookie, body) = send(&fixture, LOOPBACK, login, &fields, &malformed);
        assert_eq!((status, cookie), (400, None), "{malformed}");
        assert!(!body.to_string().contains(WRITER));
    }
    // Metrics are not for people.
    assert_eq!(send(&fixture, LOOPBACK, login, &fields, &json!({ "token": "the token of the scraper" })).0, 403);
    let right = json!({ "token": WRITER });
    assert_eq!(send(&fixture, LOOPBACK, login, &[HOST], &right).0, 403, "not by the page");
    assert_eq!(send(&fixture, LOOPBACK, login, &[PAGE, ("host", "evil.example")], &right).0, 421);
    let records = fixture.state.shared.audit_log.after(0);
    assert_eq!(records.iter().filter(|record| record.topic == Topic::Refusal).count(), 2);
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(send(&fixture, LOOPBACK, login, &fields, &json!({ "token": "wrong" })).0, 401);
    }
    assert!(start.elapsed().as_millis() >= 700, "each failure waits longer");
    assert_eq!(send(&fixture, LOOPBACK, login, &fields, &right).0, 200, "the right token is accepted");
}

#[test]
fn a_browser_at_the_socket_needs_a_login() {
    let fixture = Fixture::new();
    let status = ("GET", "/v1/status");
    assert_eq!(send(&fixture, OWNER, status, &[("host", "lunar")], &Json::Null).0, 200, "a program");
    for mark in [BROWSER, ("origin", "http://evil.example"), ("sec-fetch-site", "same-origin"), ("lunar-browser", "1")]
    {
        let (code, _, _) = send(&fixture, OWNER, status, &[HOST, mark], &Json::Null);
        assert!(code == 401 || code == 403, "{mark:?}: {code}");
    }
    assert_eq!(send(&fixture, OWNER, status, &[BROWSER, ("host", "evil.example")], &Json::Null).0, 421);
    // A link of the user gives the rights of the user, once.
    let (code, _, link) = send(&fixture, OWNER, ("POST", "/v1/login/link"), &[("host", "lunar")], &Json::Null);
    assert_eq!((code, &link["seconds"]), (200, &json!(300)));
    let login = json!({ "link": link["key"] });
    let cookie = log_in(&fixture, OWNER, &login);
    let forwarded = [HOST, ("lunar-browser", "1")];
    let with = [&forwarded[..], &[("cookie", cookie.as_str())]].concat();
    let (code, _, caller) = send(&fixture, OWNER, ("GET", "/v1/login"), &with, &Json::Null);
    assert_eq!((code, &caller["role"]), (200, &json!("write")));
    assert_eq!(
        send(&fixture, OWNER, ("POST", "/v1/login"), &[&forwarded[..], &[PAGE]].concat(), &login).0,
        401,
        "twice"
    );
    // The cookie is of no use at another port, and never more than its login.
    let elsewhere = [("host", "127.0.0.1:3281"), BROWSER, ("cookie", cookie.as_str())];
    assert_eq!(send(&fixture, OWNER, status, &elsewhere, &Json::Null).0, 401);
    fixture.state.change_policy(|policy| policy.owner = 1);
    assert_eq!(send(&fixture, OWNER, status, &with, &Json::Null).0, 403);
}

#[test]
fn only_writers_make_links() {
    let fixture = Fixture::new();
    let link = ("POST", "/v1/login/link");
    let bearer = |token: &str| format!("Bearer {token}");
    let (reader, writer) = (bearer(READER), bearer(WRITER));
    assert_eq!(send(&fixture, LOOPBACK, link, &[("authorization", &reader)], &Json::Null).0, 403);
    let (code, _, made) = send(&fixture, LOOPBACK, link, &[("authorization", &writer)], &Json::Null);
    assert_eq!(code, 200);
    let cookie = log_in(&fixture, LOOPBACK, &json!({ "link": made["key"] }));
    let with = [HOST, ("cookie", cookie.as_str())];
    let (_, _, caller) = send(&fixture, LOOPBACK, ("GET", "/v1/login"), &with, &Json::Null);
    assert_eq!(caller, json!({ "name": "token.writer", "role": "write" }));
    let records = fixture.state.shared.audit_log.after(0);
    let key = made["key"].as_str().expect("a key");
    assert!(records.iter().all(|record| !record.to_string().contains(key)), "the log must not have the key");
}
