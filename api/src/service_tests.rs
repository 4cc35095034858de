use super::*;
use crate::client::{Address, Client, ClientError, RequestBody, Token};
use crate::route::Method;
use crate::server::tests::TestFolder;
use crate::test_service::TestService;
use serde_json::{Value as Json, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

fn get(client: &Client, path: &str) -> Result<Json, ClientError> {
    client.json(Method::Get, path, RequestBody::Nothing)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the file").mode() & 0o777
}

#[test]
fn the_socket_is_for_its_owner_and_follows_the_configuration() {
    let place = TestFolder::new("");
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    assert_eq!((mode(&service.socket), &service.socket), (0o600, &place.0.join("api.sock")));
    let client = Client::local(Some(service.socket.clone()));
    assert_eq!(get(&client, "/v1/status").expect("an answer")["sessions"], json!(0));
    let whose = std::fs::metadata(&place.0).expect("the folder").gid();
    let moved = place.0.join("other.sock");
    let keys = json!({ "socket": moved.display().to_string(), "group": whose.to_string() });
    client.call(Method::Patch, "/v1/api", RequestBody::Json(keys)).expect("changed");
    assert!(!service.socket.exists() && mode(&moved) == 0o660);
    let client = Client::local(Some(moved.clone()));
    get(&client, "/v1/status").expect("an answer at the new path");
    // A socket that another process serves is not replaced.
    let other = TestFolder::new("");
    let text = format!("[api]\nsocket = '{}'\n", moved.display());
    std::fs::write(other.0.join("lunar.toml"), text).expect("written");
    let why = TestService::start(&other.0, Vec::new()).expect_err("the socket is served");
    assert!(why.to_string().contains("another process serves"), "{why}");
    drop(service);
    assert!(!moved.exists(), "the socket is removed");
    let why = get(&client, "/v1/status").expect_err("not running").to_string();
    assert!(why.contains("is not running") && why.contains("systemctl start lunar"), "{why}");
    // A socket that a killed process left is replaced.
    drop(UnixListener::bind(&moved).expect("a socket"));
    TestService::start(&other.0, Vec::new()).expect("a daemon");
}

#[test]
fn a_file_at_the_path_of_the_socket_is_not_removed() {
    let place = TestFolder::new("");
    // The second case is the temporary name of the socket.
    for (name, taken) in [("one.sock", "one.sock"), ("two.sock", "two.sock.new")] {
        let taken = place.0.join(taken);
        std::fs::write(&taken, "user data").expect("a file");
        let text = format!("[api]\nsocket = '{}'\n", place.0.join(name).display());
        std::fs::write(place.0.join("lunar.toml"), text).expect("written");
        let why = TestService::start(&place.0, Vec::new()).expect_err("not a socket");
        assert!(why.to_string().contains("is not a socket"), "{why}");
        assert_eq!(std::fs::read(&taken).expect("the file"), b"user data");
        std::fs::remove_file(&taken).expect("the file");
        TestService::start(&place.0, Vec::new()).expect("a daemon");
    }
}

#[test]
fn a_change_that_fails_leaves_the_socket() {
    let place = TestFolder::new("");
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    let client = Client::local(Some(service.socket.clone()));
    for keys in [json!({ "group": "no such group" }), json!({ "socket": "/proc/nowhere/api.sock" })] {
        let why = client.call(Method::Patch, "/v1/api", RequestBody::Json(keys)).expect_err("refused");
        assert!(matches!(why, ClientError::Refused(409, ..)), "{why}");
        get(&client, "/v1/status").expect("an answer as before");
    }
}

/// A self-signed certificate for localhost.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    let made = made.expect("openssl makes a certificate");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("our file");
    (certificate, key)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port()
}

fn with_listener(port: u16) -> String {
    format!("[api-listener.a]\naddress = '127.0.0.1:{port}'\n[api-token.t]\nsecret = 'the token of one'\n")
}

fn remote(scheme: &str, port: u16, token: Option<&str>, trusted: Option<PathBuf>) -> Client {
    let url = format!("{scheme}://127.0.0.1:{port}").parse().expect("a URL");
    Client { address: Address::Url(url), token: token.map(|token| Token(token.into())), trusted }
}

#[test]
fn network_clients_need_tls_and_a_token() {
    let place = TestFolder::new("[api-token.reader]\nsecret = 'the token of a reader'\n");
    let (certificate, key) = certificate(&place.0);
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    let local = Client::local(Some(service.socket.clone()));
    let port = free_port();
    let keys = json!({
        "address": format!("127.0.0.1:{port}"),
        "certificate": certificate.display().to_string(),
        "key": key.display().to_string(),
    });
    local.call(Method::Post, "/v1/api-listener/tls", RequestBody::Json(keys)).expect("created");
    let own = Some(certificate.clone());
    let reader = remote("https", port, Some("the token of a reader"), own.clone());
    assert_eq!(get(&reader, "/v1/status").expect("an answer")["things"]["api-token"], json!(1));
    let status = get(&reader, "/v1/status").expect("an answer");
    assert!(status["certificates"]["tls"].as_u64().is_some_and(|end| end > 1_700_000_000), "{status}");
    let expires = |trouble: &serde_json::Value| trouble["kind"] == "certificate-expires";
    assert!(status["troubles"].as_array().is_some_and(|all| all.iter().any(expires)), "{status}");
    let why = reader.call(Method::Delete, "/v1/api-token/reader", RequestBody::Nothing).expect_err("a read-only token");
    assert!(matches!(&why, ClientError::NotAllowed(why) if why.to_string().contains("may only read")), "{why}");
    let why = get(&remote("https", port, None, own.clone()), "/v1/status").expect_err("no token");
    assert!(matches!(&why, ClientError::NotAllowed(why) if why.to_string().contains("Bearer")), "{why}");
    let why = get(&remote("https", port, Some("the token of a reader"), None), "/v1/status").expect_err("not trusted");
    assert!(matches!(why, ClientError::NotRunning(_)), "{why}");
    // A new certificate at the same path is used after a reload.
    let old = place.0.join("old.pem");
    std::fs::copy(&certificate, &old).expect("the file");
    self::certificate(&place.0);
    let by_old = remote("https", port, Some("the token of a reader"), Some(old));
    assert!(get(&by_old, "/v1/status").is_ok() && get(&reader, "/v1/status").is_err());
    let plan = local.json(Method::Post, "/v1/reload", RequestBody::Nothing).expect("reloaded");
    let words = plan["changes"][0]["words"].as_str().unwrap_or_default();
    assert_eq!(words, "change api listener tls: certificate has a new value", "{plan}");
    until(|| get(&reader, "/v1/status").is_ok());
    assert!(get(&by_old, "/v1/status").is_err());
    let plan = local.json(Method::Post, "/v1/reload", RequestBody::Nothing).expect("reloaded");
    assert_eq!(plan["changes"], json!([]), "{plan}");
    // The token is deleted at run time, and the listener loses its certificate.
    let keys = json!({ "secret": "the token of a writer", "role": "write" });
    local.call(Method::Post, "/v1/api-token/writer", RequestBody::Json(keys)).expect("created");
    local.call(Method::Delete, "/v1/api-token/reader", RequestBody::Nothing).expect("deleted");
    assert!(get(&reader, "/v1/status").is_err());
    let keys = json!({ "certificate": null, "key": null });
    local.call(Method::Patch, "/v1/api-listener/tls", RequestBody::Json(keys)).expect("a loopback address");
    let writer = remote("http", port, Some("the token of a writer"), None);
    until(|| get(&writer, "/v1/status").is_ok());
    writer
        .call(Method::Delete, "/v1/api-listener/tls", RequestBody::Nothing)
        .expect("a client may delete its own listener");
    until(|| get(&writer, "/v1/status").is_err());
}

/// Waits for a condition: the thread executes commands asynchronously.
fn until(done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "timeout");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_listener_takes_over_the_address_of_a_removed_one() {
    let port = free_port();
    let place = TestFolder::new(&with_listener(port));
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    let client = remote("http", port, Some("the token of one"), None);
    get(&client, "/v1/status").expect("an answer");
    let text = std::fs::read_to_string(place.0.join("lunar.toml")).expect("a file").replace("listener.a", "listener.b");
    let local = Client::local(Some(service.socket.clone()));
    local.call(Method::Post, "/v1/apply", RequestBody::Text(text)).expect("applied");
    until(|| get(&client, "/v1/status").is_ok());
}

#[test]
fn streams_have_new_records_and_those_that_a_reader_missed() {
    let place = TestFolder::new("");
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    service.audit_log.add(crate::Topic::Service, "lunar", "is ready");
    let socket = service.socket.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    let listener = std::thread::spawn(move || {
        Client::local(Some(socket)).follow("/v1/events", |data| sender.send(data.to_owned()).is_ok())
    });
    until(|| {
        service.audit_log.add(crate::Topic::Login, "iqn.x", "has logged in");
        receiver.recv_timeout(Duration::from_millis(50)).is_ok_and(|data| data.contains("has logged in"))
    });
    drop(receiver);
    service.audit_log.add(crate::Topic::Login, "iqn.y", "has logged in");
    listener.join().expect("the thread ends").expect("the stream ends");
    // With Last-Event-ID the stream begins after that record.
    let mut stream = UnixStream::connect(&service.socket).expect("a connection");
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 0\r\n\r\n").expect("sent");
    let mut all = String::new();
    let mut bytes = [0; 4096];
    while !all.contains("iqn.y") {
        let count = stream.read(&mut bytes).expect("received");
        assert!(count > 0, "{all}");
        all.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(all.contains("event: service") && all.contains("id: 1\n"), "{all}");
}

#[test]
fn network_clients_cannot_block_the_unix_socket() {
    let port = free_port();
    let place = TestFolder::new(&with_listener(port));
    let service = TestService::start(&place.0, Vec::new()).expect("a daemon");
    let mut idle: Vec<TcpStream> = (0..crate::listen::SOURCE_CONNECTIONS_MAX)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection"))
        .collect();
    // A connection beyond the limit is closed at once; the Unix socket is counted separately.
    let mut more = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    more.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    assert_eq!(more.read(&mut [0; 1]).unwrap_or(0), 0);
    get(&Client::local(Some(service.socket.clone())), "/v1/status").expect("an answer");
    // A connection whose request head does not arrive is closed.
    let mut slow = idle.pop().expect("a connection");
    slow.write_all(b"GET /v1/status HTTP/1.1\r\nX: ").expect("sent");
    slow.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).expect("closed");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_token_is_not_sent_in_the_clear_and_not_printed() {
    let client = remote("http", 1, Some("the token of one"), None);
    assert!(!format!("{client:?}").contains("token of"), "{client:?}");
    let far = Client { address: Address::Url("http://192.0.2.1:1".parse().expect("a URL")), ..client };
    assert!(matches!(get(&far, "/v1/status"), Err(ClientError::NotAllowed(_))));
}
