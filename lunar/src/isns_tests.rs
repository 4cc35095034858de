use super::*;
use lunar_control::check::{LocalHost, check};
use lunar_isns::wire::{FIRST, FROM_SERVER, HEADER_LEN, LAST};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Instant as Clock;

/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(10);

const TEXT: &str = "
[volume.disk]
kind = 'ram'
size = '1M'
[portal-group.one]
tag = 1
[portal-group.two]
tag = 2
[portal.all]
address = '0.0.0.0:3260'
group = 'one'
[portal.outside]
address = '127.0.0.1:3261'
advertise = '192.0.2.9'
group = 'two'
[portal.nvme]
address = '127.0.0.1'
protocol = 'nvme-tcp'
group = 'two'
[target.a]
iqn = 'iqn.2026-01.org.example:a'
portal-groups = ['one', 'two']
[target.b]
iqn = 'iqn.2026-01.org.example:b'
alias = 'the other'
portal-groups = ['two']
[target.off]
iqn = 'iqn.2026-01.org.example:off'
portal-groups = ['one']
enabled = false
[target.moved]
iqn = 'iqn.2026-01.org.example:moved'
portal-groups = ['one']
moved-to = '192.0.2.1'
[target.nvme]
nqn = 'nqn.2026-01.org.example:nvme'
portal-groups = ['two']
";

fn checked(isns: &str) -> Checked {
    let machine = LocalHost { config: "/nowhere/lunar.toml".into() };
    check(&crate::schema::SCHEMA, "lunar.toml", &format!("{TEXT}{isns}"), &machine)
        .unwrap_or_else(|why| panic!("{why}"))
}

fn wanted(isns: &str) -> Option<Wanted> {
    Wanted::of(&checked(isns), |name| match name {
        "all" => Some(([0, 0, 0, 0], 3260).into()),
        _ => Some(([127, 0, 0, 1], 3261).into()),
    })
}

#[test]
fn what_can_be_logged_in_to_is_registered() {
    assert_eq!(wanted(""), None);
    let Wanted { server, registration } =
        wanted("[isns]\nserver = 'names.example.org'\nentity = 'me'\nperiod = '1m'").expect("there is a server");
    assert_eq!((server.name(), server.port(), registration.period), ("names.example.org", 3205, 60));
    let nodes: Vec<(&str, &str, Vec<String>)> = registration
        .nodes
        .iter()
        .map(|(name, node)| {
            let portals = node.portals.iter().map(|(portal, tag)| format!("{portal},{tag}")).collect();
            (name.rsplit(':').next().unwrap_or_default(), &*node.alias, portals)
        })
        .collect();
    let outside = || "192.0.2.9:3260,2".to_owned();
    assert_eq!(nodes, [("a", "a", vec!["0.0.0.0:3260,1".to_owned(), outside()]), ("b", "the other", vec![outside()])]);
    let named = wanted("[isns]\nserver = '192.0.2.1:99'").expect("there is a server").registration.entity;
    assert_eq!(*named, *rustix::system::uname().nodename().to_string_lossy());
}

/// A server that accepts all requests and records their functions.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<u16>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// It takes one connection.
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let asked = Arc::<Mutex<Vec<u16>>>::default();
        let told = asked.clone();
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("somebody calls");
            socket.set_read_timeout(Some(LIMIT)).expect("it is a socket");
            let mut header = [0; HEADER_LEN];
            while socket.read_exact(&mut header).is_ok() {
                let mut payload = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
                if socket.read_exact(&mut payload).is_err() {
                    return;
                }
                lock(&told).push(u16::from_be_bytes([header[2], header[3]]));
                header[2] |= 0x80;
                header[4..6].copy_from_slice(&4_u16.to_be_bytes());
                header[6..8].copy_from_slice(&(FROM_SERVER | FIRST | LAST).to_be_bytes());
                let _ = socket.write_all(&[&header[..], &[0; 4]].concat());
            }
        });
        Self { address, asked, thread: Some(thread) }
    }

    fn wanted(&self) -> Option<Wanted> {
        wanted(&format!("[isns]\nserver = '{}'", self.address))
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Clock::now() + LIMIT;
    while !holds() {
        assert!(Clock::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn isns() -> (Isns, Arc<Mutex<Vec<String>>>) {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let heard = told.clone();
    (Isns::new(move |words| lock(&heard).push(words.to_owned())), told)
}

#[test]
fn targets_are_registered_and_taken_back() {
    let (mut isns, told) = isns();
    isns.want(None);
    assert!(isns.view().is_none() && isns.thread.is_none(), "without a server there is no thread");
    let mut server = Server::new();
    isns.want(server.wanted());
    until("nothing is registered", || isns.view().is_some_and(|view| view.targets == 2));
    let view = isns.view().expect("there is a server");
    assert_eq!((view.server, view.portals, view.trouble), (server.address.to_string(), 2, None));
    drop(isns);
    assert_eq!(*lock(&server.asked), [1, 4], "a registration, a deregistration");
    let words: Vec<String> = lock(&told).clone();
    let start = format!("iSNS server {}: ", server.address);
    assert_eq!(
        words,
        [format!("{start}registered 2 targets at 2 portals"), format!("{start}all targets are deregistered")]
    );
    server.thread.take().expect("it runs").join().expect("it ends with the connection");
}

#[test]
fn another_server_takes_the_place_of_the_first() {
    let (mut isns, _) = isns();
    let (first, second) = (Server::new(), Server::new());
    for server in [&first, &second] {
        isns.want(server.wanted());
        let is_there = |view: IsnsView| view.targets == 2 && view.server == server.address.to_string();
        until("nothing is registered", || isns.view().is_some_and(is_there));
    }
    assert_eq!((lock(&first.asked).clone(), lock(&second.asked).clone()), (vec![1, 4], vec![1]));
    isns.want(None);
    until("it is still shown", || isns.view().is_none());
}

#[test]
fn a_server_that_is_away_is_told_of_and_keeps_nobody() {
    let (mut isns, told) = isns();
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    isns.want(wanted(&format!("[isns]\nserver = '{address}'")));
    until("no trouble", || isns.trouble().is_some());
    let trouble = isns.trouble().expect("there is one");
    assert!(trouble.starts_with(&format!("iSNS server {address}: it cannot be reached: ")), "{trouble}");
    assert_eq!(*lock(&told), [trouble]);
    let before = Clock::now();
    drop(isns);
    assert!(before.elapsed() < FAREWELL_TIME, "there is nothing to be taken back");
}
