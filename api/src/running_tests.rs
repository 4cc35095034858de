use super::*;
use crate::client::{Address, Client, Sent, Token, Trouble};
use crate::rehearsal::Service;
use crate::routes::Method;
use crate::server::tests::Place;
use serde_json::{Value as Json, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

fn get(client: &Client, path: &str) -> Result<Json, Trouble> {
    client.json(Method::Get, path, Sent::Nothing)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").mode() & 0o777
}

#[test]
fn a_socket_is_for_its_owner_and_moves_with_the_configuration() {
    let place = Place::new("");
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    assert_eq!((mode(&service.socket), &service.socket), (0o600, &place.0.join("api.sock")));
    let client = Client::local(Some(service.socket.clone()));
    assert_eq!(get(&client, "/v1/status").expect("it answers")["sessions"], json!(0));
    let whose = std::fs::metadata(&place.0).expect("it is there").gid();
    let moved = place.0.join("other.sock");
    let keys = json!({ "socket": moved.display().to_string(), "group": whose.to_string() });
    client.call(Method::Patch, "/v1/api", Sent::Json(keys)).expect("it can be done");
    assert!(!service.socket.exists() && mode(&moved) == 0o660);
    let client = Client::local(Some(moved.clone()));
    get(&client, "/v1/status").expect("it answers there");
    // Nobody takes a socket over that is served.
    let other = Place::new("");
    let text = format!("[api]\nsocket = '{}'\n", moved.display());
    std::fs::write(other.0.join("lunar.toml"), text).expect("it takes it");
    let why = Service::start(&other.0, Vec::new()).expect_err("it is served");
    assert!(why.contains("another process serves"), "{why}");
    drop(service);
    assert!(!moved.exists(), "it takes its socket along");
    let why = get(&client, "/v1/status").expect_err("nobody is there").to_string();
    assert!(why.contains("is not running") && why.contains("systemctl start lunar"), "{why}");
    // What a process that was killed left is in nobody's way.
    drop(UnixListener::bind(&moved).expect("a socket"));
    Service::start(&other.0, Vec::new()).expect("it starts");
}

#[test]
fn a_file_in_the_place_of_the_socket_stays() {
    let place = Place::new("");
    // The second is where it is before it is whole.
    for (name, taken) in [("one.sock", "one.sock"), ("two.sock", "two.sock.new")] {
        let taken = place.0.join(taken);
        std::fs::write(&taken, "somebody's").expect("a file");
        let text = format!("[api]\nsocket = '{}'\n", place.0.join(name).display());
        std::fs::write(place.0.join("lunar.toml"), text).expect("it takes it");
        let why = Service::start(&place.0, Vec::new()).expect_err("it is no socket");
        assert!(why.contains("something else than a socket"), "{why}");
        assert_eq!(std::fs::read(&taken).expect("it stays"), b"somebody's");
        std::fs::remove_file(&taken).expect("it was there");
        Service::start(&place.0, Vec::new()).expect("nothing is in its way");
    }
}

#[test]
fn a_change_that_cannot_be_made_leaves_the_socket() {
    let place = Place::new("");
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    let client = Client::local(Some(service.socket.clone()));
    for keys in [json!({ "group": "no such group" }), json!({ "socket": "/proc/nowhere/api.sock" })] {
        let why = client.call(Method::Patch, "/v1/api", Sent::Json(keys)).expect_err("it cannot be made");
        assert!(matches!(why, Trouble::Refused(409, ..)), "{why}");
        get(&client, "/v1/status").expect("as before");
    }
}

/// A certificate for this machine that nobody else signed.
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
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("it is ours");
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
fn over_the_network_it_takes_tls_and_a_token() {
    let place = Place::new("[api-token.reader]\nsecret = 'the token of a reader'\n");
    let (certificate, key) = certificate(&place.0);
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    let local = Client::local(Some(service.socket.clone()));
    let port = free_port();
    let keys = json!({
        "address": format!("127.0.0.1:{port}"),
        "certificate": certificate.display().to_string(),
        "key": key.display().to_string(),
    });
    local.call(Method::Post, "/v1/api-listener/tls", Sent::Json(keys)).expect("it can be made");
    let own = Some(certificate.clone());
    let reader = remote("https", port, Some("the token of a reader"), own.clone());
    assert_eq!(get(&reader, "/v1/status").expect("it answers")["things"]["api-token"], json!(1));
    let why = reader.call(Method::Delete, "/v1/api-token/reader", Sent::Nothing).expect_err("he may only read");
    assert!(matches!(&why, Trouble::NotAllowed(words) if words.contains("may only read")), "{why}");
    let why = get(&remote("https", port, None, own.clone()), "/v1/status").expect_err("no token");
    assert!(matches!(&why, Trouble::NotAllowed(words) if words.contains("Bearer")), "{why}");
    let why = get(&remote("https", port, Some("the token of a reader"), None), "/v1/status").expect_err("not trusted");
    assert!(matches!(why, Trouble::NotRunning(_)), "{why}");
    // Another certificate takes the place of the one before: it is shown when the file is read again.
    let old = place.0.join("old.pem");
    std::fs::copy(&certificate, &old).expect("it is there");
    self::certificate(&place.0);
    let by_old = remote("https", port, Some("the token of a reader"), Some(old));
    assert!(get(&by_old, "/v1/status").is_ok() && get(&reader, "/v1/status").is_err());
    let plan = local.json(Method::Post, "/v1/reload", Sent::Nothing).expect("it can be done");
    let words = plan["changes"][0]["words"].as_str().unwrap_or_default();
    assert_eq!(words, "change api listener tls: certificate is another one", "{plan}");
    until(|| get(&reader, "/v1/status").is_ok());
    assert!(get(&by_old, "/v1/status").is_err());
    let plan = local.json(Method::Post, "/v1/reload", Sent::Nothing).expect("it can be done");
    assert_eq!(plan["changes"], json!([]), "{plan}");
    // The token goes while it runs, and the listener loses its certificate.
    let keys = json!({ "secret": "the token of a writer", "role": "write" });
    local.call(Method::Post, "/v1/api-token/writer", Sent::Json(keys)).expect("it can be made");
    local.call(Method::Delete, "/v1/api-token/reader", Sent::Nothing).expect("it can be removed");
    assert!(get(&reader, "/v1/status").is_err());
    let keys = json!({ "certificate": null, "key": null });
    local.call(Method::Patch, "/v1/api-listener/tls", Sent::Json(keys)).expect("it is on this machine");
    let writer = remote("http", port, Some("the token of a writer"), None);
    until(|| get(&writer, "/v1/status").is_ok());
    writer.call(Method::Delete, "/v1/api-listener/tls", Sent::Nothing).expect("it may cut its own branch");
    until(|| get(&writer, "/v1/status").is_err());
}

/// What the thread is told, it does a little later.
fn until(done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "it never happens");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_listener_moves_to_the_address_of_one_that_goes() {
    let port = free_port();
    let place = Place::new(&with_listener(port));
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    let client = remote("http", port, Some("the token of one"), None);
    get(&client, "/v1/status").expect("it answers");
    let text = std::fs::read_to_string(place.0.join("lunar.toml")).expect("a file").replace("listener.a", "listener.b");
    let local = Client::local(Some(service.socket.clone()));
    local.call(Method::Post, "/v1/apply", Sent::Text(text)).expect("it can be made");
    until(|| get(&client, "/v1/status").is_ok());
}

#[test]
fn events_are_heard_as_they_come_and_missed_ones_later() {
    let place = Place::new("");
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    service.journal.add(crate::Topic::Service, "lunar", "is ready");
    let socket = service.socket.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let listener = std::thread::spawn(move || {
        Client::local(Some(socket)).follow("/v1/events", |data| tell.send(data.to_owned()).is_ok())
    });
    until(|| {
        service.journal.add(crate::Topic::Login, "iqn.x", "has logged in");
        told.recv_timeout(Duration::from_millis(50)).is_ok_and(|data| data.contains("has logged in"))
    });
    drop(told);
    service.journal.add(crate::Topic::Login, "iqn.y", "has logged in");
    listener.join().expect("it ends").expect("it enough");
    // Whoever says what he heard last hears all that came after it.
    let mut stream = UnixStream::connect(&service.socket).expect("it is served");
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 0\r\n\r\n").expect("it takes it");
    let mut all = String::new();
    let mut bytes = [0; 4096];
    while !all.contains("iqn.y") {
        let count = stream.read(&mut bytes).expect("more comes");
        assert!(count > 0, "{all}");
        all.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(all.contains("event: service") && all.contains("id: 1\n"), "{all}");
}

#[test]
fn strangers_do_not_keep_the_operator_out() {
    let port = free_port();
    let place = Place::new(&with_listener(port));
    let service = Service::start(&place.0, Vec::new()).expect("it starts");
    let mut idle: Vec<TcpStream> =
        (0..crate::listen::SOURCE_MAX).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
    // One too many is closed at once; the operator's socket is another door.
    let mut more = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    more.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
    assert_eq!(more.read(&mut [0; 1]).unwrap_or(0), 0);
    get(&Client::local(Some(service.socket.clone())), "/v1/status").expect("it answers");
    // A head that does not come ends the connection.
    let mut slow = idle.pop().expect("one of them");
    slow.write_all(b"GET /v1/status HTTP/1.1\r\nX: ").expect("it takes it");
    slow.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).expect("it is closed");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_token_is_not_sent_in_the_clear_and_not_shown() {
    let client = remote("http", 1, Some("the token of one"), None);
    assert!(!format!("{client:?}").contains("token of"), "{client:?}");
    let far = Client { address: Address::Url("http://192.0.2.1:1".parse().expect("a URL")), ..client };
    assert!(matches!(get(&far, "/v1/status"), Err(Trouble::NotAllowed(_))));
}
