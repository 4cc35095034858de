use super::*;
use crate::audit::{AuditLog, Topic};
use crate::openapi;
use crate::refusals::RECORDED_MAX;
use crate::rights::Tokens;
use crate::test_service::TestService;
use lunar_control::api::SessionView;
use lunar_control::testing::SAMPLE;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;
use tower_service::Service as _;

/// A temporary folder with a configuration file for its owner only.
pub(crate) struct TestFolder(pub(crate) PathBuf);

impl TestFolder {
    pub(crate) fn new(text: &str) -> Self {
        use std::os::unix::fs::OpenOptionsExt;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-api-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let text = format!("{text}\n[api]\nsocket = '{}'\n", path.join("api.sock").display());
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(path.join("lunar.toml"));
        std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("written");
        Self(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SECRETS: [&str; 5] = [
    "correct horse battery",
    "the token of the reader",
    "the token of the writer",
    "a secret that is new",
    "the token of the scraper",
];

const TEXT: &str = "
[user.esx]
secret = 'correct horse battery'
[api-token.reader]
secret = 'the token of the reader'
[api-token.writer]
secret = 'the token of the writer'
role = 'write'
[api-token.scraper]
secret = 'the token of the scraper'
role = 'metrics'
[volume.disk1]
kind = 'ram'
size = '1M'
[portal-group.main]
tag = 1
[portal.all]
address = '127.0.0.1'
group = 'main'
[target.main]
iqn = 'iqn.2026-01.org.example:main'
portal-groups = ['main']
users = ['esx']
authentication = 'chap'
[group.hosts]
targets = ['main']
initiators = ['*']
[group.hosts.luns]
0 = 'disk1'
[api-listener.local]
address = '127.0.0.1:3299'
";

fn session(id: u64) -> SessionView {
    SessionView {
        id: format!("iscsi-{id}"),
        protocol: "iscsi",
        discovery: false,
        initiator: "iqn.1998-01.com.vmware:esx1".into(),
        source: "192.0.2.1:50000".into(),
        target: Some("main".into()),
        group: Some("hosts".into()),
        portal_group: None,
        user: Some("esx".into()),
        seconds: 75,
        parameters: Vec::new(),
        tcp: Vec::new(),
    }
}

/// A daemon and its routes without sockets, so that a test chooses the peer of each request.
pub(crate) struct Fixture {
    pub(crate) service: TestService,
    pub(crate) state: Arc<State>,
    pub(crate) router: axum::Router,
    pub(crate) runtime: tokio::runtime::Runtime,
    place: TestFolder,
}

pub(crate) const OWNER: Peer = Peer::Local { user: 4711, group: 4711 };

impl Fixture {
    pub(crate) fn new() -> Self {
        // Another test uses the listener of the text.
        let place = TestFolder::new(TEXT.split("[api-listener").next().expect("the first part"));
        let service = TestService::start(&place.0, vec![session(7), session(8)]).expect("a daemon");
        let shared = Shared::new(&SAMPLE, service.audit_log.clone(), "1.2.3", SystemTime::now());
        let tokens = service.with(|control| Tokens::of(control.current())).expect("a daemon");
        let state =
            State::new(service.control_thread.clone(), shared, AccessPolicy { owner: 4711, group: None, tokens });
        let router = router(&state);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { service, state, router, runtime, place }
    }

    /// The status of a request of the owner, as a future.
    fn status(&self, method: &str, path: &str, body: &'static str) -> impl Future<Output = u16> + Send + use<> {
        let request = axum::http::Request::builder().method(method).uri(path).extension(OWNER);
        let (request, mut router) = (request.body(Body::from(body)).expect("a request"), self.router.clone());
        async move { router.call(request).await.expect("a response").status().as_u16() }
    }

    fn request_(&mut self, peer: Peer, token: Option<&str>, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut request = axum::http::Request::builder().method(method).uri(path).extension(peer);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let mut router = self.router.clone();
        self.runtime.block_on(async {
            let response = router.call(request).await.expect("a response");
            let status = response.status().as_u16();
            if response.headers()[CONTENT_TYPE] == "text/event-stream" {
                return (status, String::new());
            }
            let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            (status, String::from_utf8(bytes.to_vec()).expect("text"))
        })
    }

    fn own(&mut self, method: &str, path: &str, body: &str) -> (u16, Json) {
        let (status, text) = self.request_(OWNER, None, method, path, body);
        (status, serde_json::from_str(&text).unwrap_or(Json::String(text)))
    }
}

/// All operations of the document: method, path with a value for each parameter, right.
fn operations() -> Vec<(String, String, String)> {
    let document = openapi::document(&SAMPLE, &routes(&SAMPLE));
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let name = if path.contains("volume") { "disk1" } else { "main" };
            let path = path
                .replace("{name}", name)
                .replace("{lun}", "0")
                .replace("{volume}", "disk1")
                .replace("{id}", if path.contains("copy") { "7" } else { "iscsi-7" })
                .replace("{number}", "1");
            let right = operation["x-right"].as_str().expect("a right");
            all.push((method.to_uppercase(), path, right.to_owned()));
        }
    }
    assert!(all.len() > 60, "{}", all.len());
    all
}

#[test]
fn every_route_requires_its_right() {
    let mut fixture = Fixture::new();
    let (stranger, remote) = (Peer::Local { user: 5, group: 5 }, Peer::Remote(([192, 0, 2, 9], 1).into()));
    for (method, path, right) in operations() {
        let place = format!("{method} {path}");
        if place == "POST /v1/login" {
            // It is how a browser gets a right; it is refused without credentials.
            assert_eq!(fixture.request_(remote, None, &method, &path, "").0, 421, "{place}");
            continue;
        }
        if right == "none" {
            for peer in [stranger, remote] {
                assert_eq!(fixture.request_(peer, None, &method, &path, "").0, 200, "{place}");
            }
            continue;
        }
        assert_eq!(fixture.request_(stranger, None, &method, &path, "").0, 403, "{place}");
        assert_eq!(fixture.request_(stranger, Some(SECRETS[2]), &method, &path, "").0, 403, "{place}");
        assert_eq!(fixture.request_(remote, None, &method, &path, "").0, 401, "{place}");
        assert_eq!(fixture.request_(remote, Some("an unknown token"), &method, &path, "").0, 401, "{place}");
        if right == "write" {
            assert_eq!(fixture.request_(remote, Some(SECRETS[1]), &method, &path, "").0, 403, "{place}");
        }
        if right != "metrics" {
            assert_eq!(fixture.request_(remote, Some(SECRETS[4]), &method, &path, "").0, 403, "{place}");
        }
    }
    // The same for paths and methods without a route.
    for (method, path) in
        [("GET", "/nothing"), ("GET", "/v1/nothing"), ("PUT", "/v1/status"), ("GET", "/v1/volume/%ff")]
    {
        assert_eq!(fixture.request_(stranger, None, method, path, "").0, 403, "{method} {path}");
        assert_eq!(fixture.request_(remote, None, method, path, "").0, 401, "{method} {path}");
    }
    let refused = fixture.service.audit_log.after(0);
    assert!(refused.iter().all(|record| record.topic == Topic::Refusal));
    // Refusals of a user, an address and two tokens, each up to the limit of recorded refusals.
    assert_eq!(refused.len(), 4 * RECORDED_MAX as usize);
    // With the right, the routes answer.
    for (method, path, right) in operations() {
        let token = match right.as_str() {
            "write" => SECRETS[2],
            "metrics" => SECRETS[4],
            _ => SECRETS[1],
        };
        let (status, _) = fixture.request_(remote, Some(token), &method, &path, "");
        assert!(
            ![401, 403, 404, 405].contains(&status)
                // The daemon of the tests has no logins and no reservations.
                || status == 404 && (path.contains("/v1/explain/") || path.ends_with("/reservation"))
                || path.contains("main")
                || path.contains('7')
                || path.contains("copy"),
            "{method} {path}: {status}"
        );
        let (status, _) = fixture.request_(OWNER, None, &method, &path, "");
        assert!(![401, 403].contains(&status), "{method} {path}: {status}");
    }
}

/// A target whose metrics are few, and whose cores may hang.
#[derive(Debug)]
pub(crate) struct FakeMetrics(pub(crate) std::sync::atomic::AtomicBool);

lunar_control::families! {
    pub(super),
    UP = "lunar_volume_up" Gauge ["volume"] "Whether it is served.";
}

impl lunar_control::metrics::Measured for FakeMetrics {
    fn write(&self, page: &mut lunar_control::metrics::Page, _troubles: &[lunar_control::api::TroubleView]) {
        page.family(&UP, |samples| samples.add(&["disk1"], 1));
    }

    fn counters(&self, _troubles: &[lunar_control::api::TroubleView]) -> lunar_control::counters::CountersView {
        static READINGS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let sequence = READINGS.fetch_add(1, Ordering::Relaxed);
        lunar_control::counters::CountersView { start: 7, sequence, ..Default::default() }
    }

    fn commands(&self) -> u64 {
        0
    }

    fn silent_cores(&self, _patience: Duration) -> Vec<usize> {
        if self.0.load(Ordering::Relaxed) { vec![1] } else { Vec::new() }
    }
}

#[test]
fn metrics_have_the_format_that_the_scraper_prefers() {
    let fixture = Fixture::new();
    let _ = fixture.state.shared.measured.set(Arc::new(FakeMetrics(false.into())));
    fixture.service.with(|control| drop(control.troubles())).expect("a daemon");
    let get = |accept: Option<&str>| {
        let mut request = axum::http::Request::builder().uri("/metrics").extension(OWNER);
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        let (request, mut router) = (request.body(Body::empty()).expect("a request"), fixture.router.clone());
        fixture.runtime.block_on(async {
            let response = router.call(request).await.expect("a response");
            let media = response.headers()[CONTENT_TYPE].to_str().expect("text").to_owned();
            let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            (media, String::from_utf8(bytes.to_vec()).expect("text"))
        })
    };
    let (media, text) = get(None);
    assert_eq!(media, "text/plain; version=0.0.4; charset=utf-8");
    for line in ["lunar_volume_up{volume=\"disk1\"} 1", "lunar_config_last_apply_success 1"] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains("\nprocess_open_fds ") && text.contains("\nprocess_cpu_seconds_total "), "{text}");
    let (media, text) = get(Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
    assert_eq!(media, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("# EOF\n") && text.contains("lunar_api_requests_total{route=\"metrics\",status=\"200\"} 1"));
}

#[test]
fn counters_are_read_once_for_all_that_ask_at_the_same_time() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.request_(OWNER, None, "GET", "/v1/counters", "").0, 503, "no target runs yet");
    let _ = fixture.state.shared.measured.set(Arc::new(FakeMetrics(false.into())));
    let begin = Instant::now();
    let mut get = || {
        let (status, text) = fixture.request_(OWNER, None, "GET", "/v1/counters", "");
        let counters = serde_json::from_str::<lunar_control::counters::CountersView>(&text).expect("counters");
        assert_eq!((status, counters.start), (200, 7));
        counters.sequence
    };
    let first = get();
    let mut last = first;
    for _ in 0..50 {
        last = get();
    }
    let most = begin.elapsed().as_millis() as u64 / 200;
    assert!(last - first <= most, "{} readings in {:?}", last - first, begin.elapsed());
    std::thread::sleep(Duration::from_millis(250));
    assert!(get() > first, "a reading gets old");
}

#[test]
fn health_needs_no_token_and_names_nothing() {
    let mut fixture = Fixture::new();
    let remote = Peer::Remote(([192, 0, 2, 9], 1).into());
    assert_eq!(fixture.request_(remote, None, "GET", "/livez", ""), (200, "ok\n".into()));
    assert_eq!(fixture.request_(remote, None, "GET", "/livez?verbose", "a body"), (200, "cores: ok\n".into()));
    fixture.state.shared.starts("/etc/lunar/lunar.toml", "waiting for volume disk1");
    let (status, text) = fixture.request_(remote, None, "GET", "/readyz", "");
    assert_eq!((status, text.as_str()), (503, "started: the volumes are being opened\n"));
    fixture.state.shared.has_started();
    let _ = fixture.state.shared.measured.set(Arc::new(FakeMetrics(true.into())));
    let mut status = 200;
    // The results of other requests are used for a second.
    for _ in 0..100 {
        status = fixture.request_(remote, None, "GET", "/livez", "").0;
        if status == 503 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(status, 503, "a core hangs");
    for (method, path) in [("POST", "/livez"), ("GET", "/livez/x"), ("GET", "/metrics")] {
        assert_eq!(fixture.request_(remote, None, method, path, "").0, 401, "{method} {path}");
    }
}

#[test]
fn no_response_contains_a_secret() {
    let mut fixture = Fixture::new();
    let secret = json!({ "secret": SECRETS[3] }).to_string();
    let broken = format!("[user.x]\nsecret = '{}'\nbroken", SECRETS[3]);
    let wrong = format!("[user.x]\nsecert = '{}'\n", SECRETS[3]);
    let whole = format!("{TEXT}\n[user.x]\nsecret = '{}'\n", SECRETS[3]);
    let bodies = ["", &secret, &broken, &wrong, &whole, &secret[..secret.len() - 1], &format!("[{secret}]")];
    let mut all = operations();
    all.push(("POST".into(), "/v1/user/new".into(), "write".into()));
    all.push(("GET".into(), "/v1/user/new".into(), "read".into()));
    // Deletions come last.
    all.sort_by_key(|(method, ..)| method == "DELETE");
    let mut answered = 0;
    for (method, path, _) in all {
        for body in bodies {
            let (status, text) = fixture.request_(OWNER, None, &method, &path, body);
            answered += usize::from(status == 200);
            for secret in SECRETS {
                assert!(!text.contains(secret), "{method} {path} answers {status}: {text}");
            }
        }
    }
    assert!(answered > 50, "{answered}");
    for record in fixture.service.audit_log.after(0) {
        assert!(!SECRETS.iter().any(|secret| record.to_string().contains(secret)), "{record}");
    }
    let shown = format!("{:?} {:?}", fixture.state, fixture.service);
    assert!(!SECRETS.iter().any(|secret| shown.contains(secret)), "{shown}");
}

#[test]
fn resources_are_created_shown_changed_and_deleted() {
    let mut fixture = Fixture::new();
    let (status, plan) = fixture.own("POST", "/v1/volume/disk2?dry-run=true", r#"{"kind":"ram","size":"2M"}"#);
    assert_eq!((status, &plan["changes"][0]["action"]), (200, &json!("create")), "{plan}");
    assert_eq!(fixture.own("GET", "/v1/volume/disk2", "").0, 404);
    let (status, plan) = fixture.own("POST", "/v1/volume/disk2", r#"{"kind":"ram","size":"2M"}"#);
    assert_eq!((status, &plan["changes"][0]["words"]), (200, &json!("create volume disk2 (2 MiB ram)")));
    assert_eq!(fixture.own("POST", "/v1/volume/disk2", r#"{"kind":"ram","size":"2M"}"#).0, 409);
    assert_eq!(fixture.own("PATCH", "/v1/volume/disk2", r#"{"size":"4M"}"#).0, 200);
    let (_, volume) = fixture.own("GET", "/v1/volume/disk2", "");
    assert_eq!((&volume["kind"], &volume["keys"]["size"]), (&json!("volume"), &json!("4M")));
    assert_eq!(fixture.own("PUT", "/v1/group/hosts/luns/5", r#"{"volume":"disk2","read-only":true}"#).0, 200);
    let (_, group) = fixture.own("GET", "/v1/group/hosts", "");
    assert_eq!(group["keys"]["luns"]["5"], json!({ "volume": "disk2", "read-only": true, "metadata": false }));
    // A LUN refers to the volume, so it cannot be deleted.
    let (status, problem) = fixture.own("DELETE", "/v1/volume/disk2", "");
    assert_eq!((status, &problem["type"]), (409, &json!("/problems/used")), "{problem}");
    let words = "volume disk2 is LUN 5 of group hosts: unmap it first (`lunar group unmap hosts 5`)";
    assert_eq!(problem["detail"], json!(words));
    assert_eq!(fixture.own("DELETE", "/v1/group/hosts/luns/5?force=true", "").0, 200);
    assert_eq!(fixture.own("DELETE", "/v1/volume/disk2", "").0, 200);
    let (_, all) = fixture.own("GET", "/v1/volume", "");
    assert_eq!(all.as_array().map(Vec::len), Some(1));
    assert_eq!(fixture.own("PATCH", "/v1/limits", r#"{"sessions":5}"#).0, 200);
    assert_eq!(fixture.own("GET", "/v1/limits", "").1["keys"]["sessions"], json!(5));
    let (_, records) = fixture.own("GET", "/v1/audit", "");
    let words: Vec<&str> =
        records.as_array().expect("notes").iter().filter_map(|record| record["words"].as_str()).collect();
    assert_eq!(words.len(), 6, "{words:?}");
    assert!(words[0].starts_with("create volume disk2") && words[5].starts_with("change limits"), "{words:?}");
}

#[test]
fn a_configuration_is_planned_applied_and_restored() {
    let mut fixture = Fixture::new();
    let (_, text) = fixture.request_(OWNER, None, "GET", "/v1/config/text", "");
    assert!(text.contains("[volume.disk1]") && text.contains("(hidden)"), "{text}");
    // A secret that is hidden in the text is the one in force.
    let (status, plan) = fixture.own("POST", "/v1/apply", &text);
    assert_eq!((status, &plan["changes"]), (200, &json!([])), "{plan}");
    let mut whole = text;
    for (at, secret) in [
        "'correct horse battery'",
        "'the token of the reader'",
        "'the token of the writer'",
        "'the token of the scraper'",
    ]
    .iter()
    .enumerate()
    {
        assert!(at < 4);
        whole = whole.replacen("\"(hidden)\"", secret, 1);
    }
    assert_eq!(fixture.own("POST", "/v1/plan", &whole), (200, json!({ "changes": [], "needs-restart": false })));
    let more = whole.replace("'1M'", "'8M'") + "[server]\ncores = 3\n";
    let (_, diff) = fixture.request_(OWNER, None, "POST", "/v1/diff", &more);
    assert!(diff.contains("-size = '1M'") && diff.contains("+size = '8M'"), "{diff}");
    fixture.own("GET", "/v1/status", "");
    let (status, plan) = fixture.own("POST", "/v1/apply", &more);
    assert_eq!((status, &plan["needs-restart"]), (200, &json!(true)), "{plan}");
    let (_, versions) = fixture.own("GET", "/v1/version", "");
    let first = versions[0]["number"].as_u64().expect("a number");
    let last = versions.as_array().and_then(|all| all.last()).expect("a version");
    let words = "change volume disk1: size 1M -> 8M; change server: cores none -> 3";
    assert_eq!((&versions[0]["changes"], &last["changes"]), (&json!(""), &json!(words)), "{versions}");
    let (_, diff) = fixture.request_(OWNER, None, "GET", &format!("/v1/version/{first}/diff"), "");
    assert!(diff.contains("+size = '8M'"), "{diff}");
    let (status, plan) = fixture.own("POST", &format!("/v1/version/{first}/restore?dry-run"), "");
    let note = format!("volume disk1 keeps its size 8M: it had 1M in version {first}");
    assert_eq!((status, plan["changes"].as_array().map(Vec::len)), (200, Some(1)), "{plan}");
    assert_eq!(plan["notes"], json!([note]));
    let (status, plan) = fixture.own("POST", &format!("/v1/version/{first}/restore"), "");
    assert_eq!((status, &plan["notes"]), (200, &json!([note])), "{plan}");
    assert_eq!(fixture.own("GET", "/v1/volume/disk1", "").1["keys"]["size"], json!("8M"));
    assert_eq!(fixture.own("GET", "/v1/server", "").1["keys"]["cores"], Json::Null);
    let (status, problem) = fixture.own("POST", "/v1/apply", "[volume.x]\nkind = 'rom'\n");
    assert_eq!((status, &problem["errors"][0]["line"]), (422, &json!(2)), "{problem}");
}

#[test]
fn reload_and_diff_use_the_file_on_disk() {
    let mut fixture = Fixture::new();
    let file = fixture.place.0.join("lunar.toml");
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, text.replace("size = '1M'", "size = '2M'")).expect("written");
    let (status, plan) = fixture.own("POST", "/v1/reload?dry-run=true", "");
    assert_eq!((status, plan["changes"].as_array().map(Vec::len)), (200, Some(1)), "{plan}");
    let (status, diff) = fixture.request_(OWNER, None, "POST", "/v1/diff", "");
    assert!(status == 200 && diff.contains("-size = '1M'") && diff.contains("+size = '2M'"), "{diff}");
    assert!(!SECRETS.iter().any(|secret| diff.contains(secret)), "{diff}");
    assert_eq!(fixture.own("GET", "/v1/volume/disk1", "").1["keys"]["size"], json!("1M"));
    assert_eq!(fixture.own("POST", "/v1/reload", "").0, 200);
    assert_eq!(fixture.own("GET", "/v1/volume/disk1", "").1["keys"]["size"], json!("2M"));
}

#[test]
fn a_copy_is_a_whole_volume_or_fails() {
    let mut fixture = Fixture::new();
    let folder = fixture.place.0.clone();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(folder.join("a.img"), &bytes).expect("written");
    let path = |name: &str| folder.join(name).display().to_string();
    let keys = json!({ "kind": "file", "path": path("a.img") }).to_string();
    assert_eq!(fixture.own("POST", "/v1/volume/a", &keys).0, 200);
    let order = |name: &str, file: &str| json!({ "name": name, "path": path(file) }).to_string();
    let (status, copy) = fixture.own("POST", "/v1/volume/a/copy", &order("b", "b.img"));
    assert_eq!((status, &copy["total"]), (200, &json!(300_000)), "{copy}");
    let end = end_of_copy(&mut fixture, &copy["id"]);
    assert_eq!((&end["why"], &end["done"]), (&Json::Null, &json!(300_000)), "{end}");
    assert!(std::fs::read(folder.join("b.img")).expect("the file") == bytes);
    assert_eq!(fixture.own("GET", "/v1/volume/b", "").1["keys"]["path"], json!(path("b.img")));
    // Obstacles are reported before the copy starts.
    for (order, status) in [
        (order("b", "c.img"), 409),
        (order("c", "b.img"), 422),
        (order("c", "lunar.toml"), 409),
        (json!({ "name": "c", "path": "c.img" }).to_string(), 400),
        (json!({ "name": "c", "path": path("c.img"), "fast": true }).to_string(), 400),
    ] {
        assert_eq!(fixture.own("POST", "/v1/volume/a/copy", &order).0, status, "{order}");
    }
    assert_eq!(fixture.own("POST", "/v1/volume/disk1/copy", &order("c", "c.img")).0, 400, "the volume is not a file");
    // While bytes are copied, no LUN map may allow writes.
    let still = fixture.service.with(|control| control.freeze_writes("a")).expect("a daemon");
    let still = still.expect("no client can write");
    for place in ["/v1/group/hosts/luns/1", "/v1/group/hosts/luns/1?dry-run=true"] {
        let (status, problem) = fixture.own("PUT", place, r#"{"volume":"a"}"#);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 409 && detail.contains("volume a: it is being copied"), "{status} {problem}");
    }
    assert_eq!(fixture.own("PUT", "/v1/group/hosts/luns/1", r#"{"volume":"a","read-only":true}"#).0, 200);
    drop(still);
    // If a client may write, the copy shares blocks or fails.
    assert_eq!(fixture.own("PUT", "/v1/group/hosts/luns/1", r#"{"volume":"a"}"#).0, 200);
    let (_, copy) = fixture.own("POST", "/v1/volume/a/copy", &order("c", "c.img"));
    let end = end_of_copy(&mut fixture, &copy["id"]);
    let is_whole = std::fs::read(folder.join("c.img")).is_ok_and(|copied| copied == bytes);
    match end["why"].as_str() {
        Some(why) => assert!(why.contains("read-only") && !folder.join("c.img").exists(), "{why}"),
        None => assert!(is_whole, "the file system shares blocks"),
    }
}

/// The end of a copy.
fn end_of_copy(fixture: &mut Fixture, id: &Json) -> Json {
    for _ in 0..500 {
        let (_, copy) = fixture.own("GET", &format!("/v1/copy/{id}"), "");
        if copy["ended"] == true {
            return copy;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the copy does not end");
}

#[test]
fn a_store_that_its_system_makes_stays_only_with_its_volume() {
    let mut fixture = Fixture::new();
    let keys = |size: &str| json!({ "kind": "image", "image": "/pool/a", "waits": true, "size": size }).to_string();
    let (status, plan) = fixture.own("POST", "/v1/volume/a?dry-run=true", &keys("20G"));
    assert!(status == 200 && plan["notes"][0].to_string().contains("is made, with 20 GiB"), "{plan}");
    assert_eq!(fixture.own("POST", "/v1/volume/a", &keys("20X")).0, 400);
    assert_eq!(fixture.own("POST", "/v1/volume/a", &keys("0")).0, 400);
    fixture.service.refuses.store(true, Ordering::Release);
    let (status, problem) = fixture.own("POST", "/v1/volume/a", &keys("20G"));
    assert!(status != 200 && problem["detail"].to_string().contains("told to fail"), "{problem}");
    assert!(fixture.service.made.all().is_empty(), "it is left");
    fixture.service.refuses.store(false, Ordering::Release);
    assert_eq!(fixture.own("POST", "/v1/volume/a", &keys("20G")).0, 200);
    assert_eq!(fixture.service.made.all(), [PathBuf::from("/pool/a")]);
    let (_, volume) = fixture.own("GET", "/v1/volume/a", "");
    assert_eq!((&volume["keys"]["size"], &volume["keys"]["image"]), (&Json::Null, &json!("/pool/a")), "{volume}");
    assert_eq!(fixture.own("DELETE", "/v1/volume/a", "").0, 200, "its store stays");
    let (status, problem) = fixture.own("POST", "/v1/volume/a", &keys("20G"));
    assert!(status == 409 && problem["detail"].to_string().contains("there is one"), "{problem}");
    // Without a size, it is there already.
    let keys = json!({ "kind": "image", "image": "/pool/old" }).to_string();
    assert_eq!(fixture.own("POST", "/v1/volume/old", &keys).0, 200);
    assert_eq!(fixture.service.made.all().len(), 1);
}

#[test]
fn copies_that_a_system_makes_are_volumes() {
    let mut fixture = Fixture::new();
    let keys = json!({ "kind": "image", "image": "/pool/a", "waits": true, "block-size": "4096" }).to_string();
    assert_eq!(fixture.own("POST", "/v1/volume/a", &keys).0, 200);
    let order = |name: &str, is_snapshot: bool| json!({ "name": name, "share": true, "read-only": is_snapshot });
    let copy = |fixture: &mut Fixture, volume: &str, order: &Json| {
        let (status, copy) = fixture.own("POST", &format!("/v1/volume/{volume}/copy"), &order.to_string());
        if status == 200 { end_of_copy(fixture, &copy["id"]) } else { json!({ "status": status, "told": copy }) }
    };
    let end = copy(&mut fixture, "a", &order("before", true));
    assert_eq!((&end["why"], &end["place"]), (&Json::Null, &json!("/pool/a@before")), "{end}");
    let (_, snapshot) = fixture.own("GET", "/v1/volume/before", "");
    let keys = &snapshot["keys"];
    let found = (&keys["image"], &keys["read-only"], &keys["block-size"], &keys["waits"]);
    assert_eq!(found, (&json!("/pool/a@before"), &json!(true), &json!("4096"), &json!(false)), "{snapshot}");
    let end = copy(&mut fixture, "before", &order("c", false));
    assert_eq!((&end["why"], &end["place"]), (&Json::Null, &json!("/pool/a@before-c")), "{end}");
    assert_eq!(fixture.own("GET", "/v1/volume/c", "").1["keys"]["read-only"], json!(false));
    assert_eq!(copy(&mut fixture, "before", &order("d", true))["status"], 400, "a snapshot of a snapshot");
    assert_eq!(copy(&mut fixture, "a", &json!({ "name": "d" }))["status"], 400, "the bytes are not copied");
    assert_eq!(fixture.own("DELETE", "/v1/volume/c", "").0, 200, "its store stays");
    let taken = json!({ "name": "d", "share": true, "path": "/pool/a@before-c" });
    assert_ne!(copy(&mut fixture, "a", &taken)["why"], Json::Null);
    fixture.service.refuses.store(true, Ordering::Release);
    let end = copy(&mut fixture, "a", &order("e", false));
    assert!(end["why"].to_string().contains("told to fail"), "{end}");
    assert_eq!(fixture.service.made.all().len(), 2, "a copy without a volume is left");
}

#[test]
fn a_deleted_session_ends() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.own("GET", "/v1/session", "").1.as_array().map(Vec::len), Some(2));
    assert_eq!(fixture.own("GET", "/v1/session/iscsi-8", "").1["initiator"], json!(session(8).initiator));
    assert_eq!(fixture.own("DELETE", "/v1/session/iscsi-8?dry-run=true", "").0, 400);
    assert_eq!(fixture.own("DELETE", "/v1/session/iscsi-8?force=true", "").0, 200);
    assert_eq!(fixture.own("DELETE", "/v1/session/iscsi-8", "").0, 404);
    assert_eq!(fixture.own("GET", "/v1/session/x", "").0, 404);
    let status = fixture.own("GET", "/v1/status", "").1;
    assert_eq!((&status["sessions"], &status["things"]["volume"]), (&json!(1), &json!(1)), "{status}");
}

#[test]
fn requests_are_bounded() {
    let mut fixture = Fixture::new();
    let long = format!("{{\"alias\":\"{}\"}}", "x".repeat(KEYS_BYTES_MAX));
    assert_eq!(fixture.own("PATCH", "/v1/target/main", &long).0, 413);
    assert_eq!(fixture.own("GET", "/v1/status", "x").0, 413, "a GET request has no body");
    for query in ["?x", "?dry-run=maybe", "?dry-run=true&x=1"] {
        assert_eq!(fixture.own("DELETE", &format!("/v1/volume/disk1{query}"), "").0, 400, "{query}");
    }
    assert_eq!(fixture.own("GET", "/v1/status?dry-run=true", "").0, 400);
    let held: Vec<_> = (0..REQUESTS_MAX).map(|_| fixture.state.readers.clone().try_acquire_owned()).collect();
    assert_eq!(fixture.own("GET", "/v1/status", "").0, 503);
    drop(held);
    assert_eq!(fixture.own("GET", "/v1/status", "").0, 200);
    let held: Vec<_> = (0..STREAMS_MAX).map(|_| fixture.state.streams.clone().try_acquire_owned()).collect();
    assert_eq!(fixture.request_(OWNER, None, "GET", "/v1/events", "").0, 503);
    drop(held);
    assert_eq!(fixture.request_(OWNER, None, "GET", "/v1/events", "").0, 200);
    assert_eq!(fixture.state.streams.available_permits(), STREAMS_MAX, "a stream that ended is not counted");
}

#[test]
fn requests_to_a_stopping_daemon_are_refused_with_retry_after() {
    let control_thread = ControlHandle::new(|_| false);
    let shared = Shared::new(&SAMPLE, AuditLog::new(|_| ()), "1", SystemTime::now());
    let state = State::new(control_thread, shared, AccessPolicy { owner: 4711, ..AccessPolicy::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let request = axum::http::Request::builder().uri("/v1/status").extension(OWNER).body(Body::empty());
    let response = runtime.block_on(router(&state).call(request.expect("a request"))).expect("a response");
    assert_eq!((response.status().as_u16(), &response.headers()[RETRY_AFTER]), (503, &HeaderValue::from_static("1")));
}

#[test]
fn media_are_ejected_and_loaded() {
    let mut fixture = Fixture::new();
    let keys = r#"{"kind":"ram","size":"1M","medium":"removable"}"#;
    assert_eq!(fixture.own("POST", "/v1/volume/stick", keys).0, 200);
    let place = "/v1/volume/stick";
    let medium = |loaded| json!({ "volume": "stick", "medium": "removable", "loaded": loaded, "locked": false });
    assert_eq!(fixture.own("GET", &format!("{place}/medium"), ""), (200, medium(true)));
    assert_eq!(fixture.own("POST", &format!("{place}/eject"), "{}"), (200, medium(false)));
    assert_eq!(fixture.own("GET", &format!("{place}/medium"), ""), (200, medium(false)));
    assert_eq!(fixture.own("POST", &format!("{place}/load"), ""), (200, medium(true)));
    assert_eq!(fixture.own("POST", &format!("{place}/eject"), r#"{"force":true}"#).0, 400, "the key is called forced");
    assert_eq!(fixture.own("POST", &format!("{place}/eject"), r#"{"forced":true}"#), (200, medium(false)));
    let (status, problem) = fixture.own("POST", "/v1/volume/disk1/eject", "{}");
    assert_eq!(
        (status, &problem["detail"]),
        (409, &json!("volume disk1: the volume is a fixed disk; only volumes with removable media can be ejected"))
    );
    assert_eq!(fixture.own("POST", "/v1/volume/nothing/load", "").0, 404);
    let records: Vec<String> = fixture.service.audit_log.after(0).iter().map(|record| record.words.clone()).collect();
    let moves = records.iter().filter(|words| words.starts_with("volume stick was")).count();
    assert_eq!(moves, 3, "{records:?}");
    let (status, problem) = fixture.own("POST", "/v1/volume/disk1/accept", "");
    let words = "volume disk1: the store of the volume is available: nothing is to be accepted";
    assert_eq!((status, &problem["detail"]), (409, &json!(words)));
}

#[test]
fn an_event_stream_ends_when_its_token_is_revoked() {
    let fixture = Fixture::new();
    let listen = |peer, token: Option<&str>| {
        let mut request = axum::http::Request::builder().uri("/v1/events").extension(peer);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let (request, mut router) = (request.body(Body::empty()).expect("a request"), fixture.router.clone());
        async move { router.call(request).await.expect("a response").into_body() }
    };
    fixture.runtime.block_on(async {
        let remote = Peer::Remote(([192, 0, 2, 9], 1).into());
        let (reader, writer) = (listen(remote, Some(SECRETS[1])).await, listen(remote, Some(SECRETS[2])).await);
        let owner = listen(OWNER, None).await;
        let writer_alone = fixture.service.with(|control| {
            let mut checked = control.current().clone();
            checked.config.api_tokens.remove("reader");
            Tokens::of(&checked)
        });
        fixture.state.change_policy(|policy| policy.tokens = writer_alone.expect("a daemon"));
        fixture.service.audit_log.add(Topic::Change, "ann", "took the token away");
        let rest = timeout(Duration::from_secs(10), to_bytes(reader, 1 << 20)).await.expect("the stream ends");
        assert_eq!(rest.expect("the rest"), "", "no record after the revocation");
        for goes_on in [writer, owner] {
            let wait = timeout(Duration::from_millis(50), to_bytes(goes_on, 1 << 20));
            assert!(wait.await.is_err(), "other streams continue");
        }
    });
}

#[test]
fn requests_that_read_do_not_wait_for_a_change_in_progress() {
    let fixture = Fixture::new();
    fixture.service.finalizing.store(true, Ordering::Release);
    let request_ = |method: &str, path: &str, body: &'static str| fixture.status(method, path, body);
    fixture.runtime.block_on(async {
        let change = tokio::spawn(request_("PATCH", "/v1/limits", r#"{"sessions":5}"#));
        for path in ["/v1/status", "/v1/session", "/v1/volume", "/v1/statistics"] {
            let answer = timeout(Duration::from_secs(10), request_("GET", path, "")).await;
            assert_eq!(answer.expect("an answer without waiting"), 200, "{path}");
        }
        let dry = timeout(Duration::from_secs(10), request_("PATCH", "/v1/limits?dry-run", r#"{"sessions":6}"#)).await;
        assert_eq!(dry.expect("an answer without waiting"), 200);
        assert!(!change.is_finished(), "changes are executed one after the other");
        fixture.service.finalizing.store(false, Ordering::Release);
        let answer = timeout(Duration::from_secs(10), change).await.expect("the change ends");
        assert_eq!(answer.expect("a status"), 200);
    });
    let sessions = fixture.service.with(|control| control.current().config.limits.sessions.get());
    assert_eq!(sessions, Some(5));
}

#[test]
fn requests_do_not_wait_for_a_store_that_is_to_be_accepted_and_does_not_answer() {
    let fixture = Fixture::new();
    fixture.service.silent.store(true, Ordering::Release);
    let request_ = |method: &str, path: &str, body: &'static str| fixture.status(method, path, body);
    fixture.runtime.block_on(async {
        let accept = tokio::spawn(request_("POST", "/v1/volume/disk1/accept", ""));
        for (method, path, body) in [("GET", "/v1/status", ""), ("PATCH", "/v1/limits", r#"{"sessions":5}"#)] {
            let answer = timeout(Duration::from_secs(10), request_(method, path, body)).await;
            assert_eq!(answer.expect("an answer without waiting"), 200, "{path}");
        }
        assert!(!accept.is_finished(), "nothing is known about the store yet");
        fixture.service.silent.store(false, Ordering::Release);
        let answer = timeout(Duration::from_secs(10), accept).await.expect("the request ends");
        assert_eq!(answer.expect("a status"), 409, "the store is available");
    });
}

#[test]
fn requests_that_read_are_answered_however_many_changes_wait() {
    let fixture = Fixture::new();
    fixture.service.finalizing.store(true, Ordering::Release);
    let request_ = |method: &str, path: &str, body: &'static str| fixture.status(method, path, body);
    fixture.runtime.block_on(async {
        let change = || tokio::spawn(request_("PATCH", "/v1/limits", r#"{"sessions":5}"#));
        let changes: Vec<_> = (0..REQUESTS_MAX + 4).map(|_| change()).collect();
        while fixture.state.writers.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            for path in ["/v1/status", "/v1/session", "/v1/volume", "/v1/audit"] {
                let answer = timeout(Duration::from_secs(10), request_("GET", path, "")).await;
                assert_eq!(answer.expect("an answer without waiting"), 200, "{path}");
            }
            let dry =
                timeout(Duration::from_secs(10), request_("PATCH", "/v1/limits?dry-run", r#"{"sessions":6}"#)).await;
            assert_eq!(dry.expect("an answer without waiting"), 200);
        }
        fixture.service.finalizing.store(false, Ordering::Release);
        let mut ended = Vec::new();
        for change in changes {
            let answer = timeout(Duration::from_secs(10), change).await.expect("the change ends");
            ended.push(answer.expect("a status"));
        }
        let refused = ended.iter().filter(|status| **status == 503).count();
        assert_eq!((refused, ended.iter().filter(|status| **status == 200).count()), (4, REQUESTS_MAX));
    });
}

#[test]
fn changes_are_made_however_many_scsi_commands_hang() {
    let fixture = Fixture::new();
    fixture.service.silent.store(true, Ordering::Release);
    let request_ = |method: &str, path: &str, body: &'static str| fixture.status(method, path, body);
    fixture.runtime.block_on(async {
        let command = || tokio::spawn(request_("POST", "/v1/volume/disk1/scsi", r#"{"command":"00"}"#));
        let commands: Vec<_> = (0..COMMANDS_MAX + 4).map(|_| command()).collect();
        while fixture.state.commands.available_permits() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        for (method, path, body) in [("GET", "/v1/status", ""), ("PATCH", "/v1/limits", r#"{"sessions":5}"#)] {
            let answer = timeout(Duration::from_secs(10), request_(method, path, body)).await;
            assert_eq!(answer.expect("an answer without waiting"), 200, "{path}");
        }
        fixture.service.silent.store(false, Ordering::Release);
        let mut ended = Vec::new();
        for command in commands {
            let answer = timeout(Duration::from_secs(10), command).await.expect("the command ends");
            ended.push(answer.expect("a status"));
        }
        let refused = ended.iter().filter(|status| **status == 503).count();
        assert_eq!((refused, ended.iter().filter(|status| **status == 200).count()), (4, COMMANDS_MAX));
    });
}

#[test]
fn a_change_that_takes_something_from_sessions_needs_force() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.own("POST", "/v1/volume/disk2", r#"{"kind":"ram","size":"1M"}"#).0, 200);
    let (place, body) = ("/v1/group/hosts/luns/0", r#"{"volume":"disk2"}"#);
    let (status, plan) = fixture.own("PUT", &format!("{place}?dry-run=true"), body);
    let host = "iqn.1998-01.com.vmware:esx1";
    assert_eq!((status, &plan["changes"][0]["hosts"]), (200, &json!([host])), "{plan}");
    let (status, problem) = fixture.own("PUT", place, body);
    assert_eq!((status, &problem["type"]), (409, &json!("/problems/in-use")), "{problem}");
    let loses = json!(["LUN 0 becomes volume disk2 instead of disk1"]);
    let expected = json!({
        "session": "iscsi-7", "initiator": host, "source": "192.0.2.1:50000", "target": "main", "loses": loses,
    });
    assert_eq!((&problem["hosts"][0], problem["hosts"].as_array().map(Vec::len)), (&expected, Some(2)), "{problem}");
    assert_eq!(fixture.own("GET", "/v1/group/hosts", "").1["keys"]["luns"]["0"]["volume"], json!("disk1"));
    assert_eq!(fixture.own("PUT", &format!("{place}?force=false"), body).0, 409);
    assert_eq!(fixture.own("PUT", &format!("{place}?force=maybe"), body).0, 400);
    assert_eq!(fixture.own("PUT", &format!("{place}?force=true"), body).0, 200);
    assert_eq!(fixture.own("GET", "/v1/group/hosts", "").1["keys"]["luns"]["0"]["volume"], json!("disk2"));
    // The edited file takes the LUN away.
    let file = fixture.place.0.join("lunar.toml");
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, text.replace("0 = \"disk2\"", "1 = \"disk2\"")).expect("written");
    assert_eq!(fixture.own("POST", "/v1/reload", "").0, 409);
    let trouble = fixture.own("GET", "/v1/status", "").1["troubles"][0].to_string();
    assert!(trouble.contains("2 sessions use") && trouble.contains("lunar apply --force"), "{trouble}");
    assert_eq!(fixture.own("POST", "/v1/reload?force", "").0, 200);
    assert_eq!(fixture.own("GET", "/v1/status", "").1["troubles"], json!([]));
}

#[test]
fn the_identity_that_hosts_see_is_shown() {
    let mut fixture = Fixture::new();
    let file = fixture.place.0.join("clone.img");
    std::fs::write(&file, [0; 8192]).expect("a file");
    let uuid = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6";
    let keys = json!({ "kind": "file", "path": file.display().to_string(), "uuid": uuid });
    assert_eq!(fixture.own("POST", "/v1/volume/clone", &keys.to_string()).0, 200);
    let (_, volume) = fixture.own("GET", "/v1/volume/clone", "");
    let expected = json!({
        "serial": "f81d4fae7dec41d0a76500a0c91e6bf6", "naa": "376500a0c91e6bf6", "uuid": uuid,
        "by-id": ["wwn-0x376500a0c91e6bf6", format!("nvme-uuid.{uuid}")], "bytes": 8192,
    });
    assert_eq!(volume["identity"], expected, "{volume}");
    assert_eq!(fixture.own("GET", "/v1/target/main", "").1["identity"], Json::Null);
}

#[test]
fn a_volume_is_deleted_with_its_data_only_if_that_is_asked_for() {
    let mut fixture = Fixture::new();
    let file = fixture.place.0.join("data.img");
    let beside = fixture.place.0.join("data.img.pi");
    let keys = json!({ "kind": "file", "path": file.display().to_string(), "size": "1M" }).to_string();
    let create = |fixture: &mut Fixture| {
        std::fs::write(&file, "data").expect("a file");
        std::fs::write(&beside, "protection").expect("a file");
        assert_eq!(fixture.own("POST", "/v1/volume/data", &keys).0, 200);
    };
    create(&mut fixture);
    assert_eq!(fixture.own("DELETE", "/v1/volume/data", "").0, 200);
    assert!(file.exists() && beside.exists(), "its data stays");
    create(&mut fixture);
    let (status, plan) = fixture.own("DELETE", "/v1/volume/data?with-data=true&dry-run=true", "");
    assert_eq!((status, plan["notes"].as_array().map(Vec::len)), (200, Some(2)), "{plan}");
    assert!(file.exists() && plan["notes"][0].to_string().contains("data.img is deleted"), "{plan}");
    // A volume that a session uses keeps its data, too.
    assert_eq!(fixture.own("PUT", "/v1/group/hosts/luns/7", r#"{"volume":"data"}"#).0, 200);
    assert_eq!(fixture.own("DELETE", "/v1/volume/data?with-data=true", "").0, 409);
    assert!(file.exists());
    assert_eq!(fixture.own("DELETE", "/v1/group/hosts/luns/7?force", "").0, 200);
    assert_eq!(fixture.own("DELETE", "/v1/volume/data?with-data=true", "").0, 200);
    assert!(!file.exists() && !beside.exists());
    let (status, problem) = fixture.own("DELETE", "/v1/volume/disk1?with-data=true&force=true", "");
    assert!(status == 400 && problem["detail"].to_string().contains("not in a file"), "{problem}");
    assert_eq!(fixture.own("DELETE", "/v1/target/main?with-data=true", "").0, 400);
}
