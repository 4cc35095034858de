//! The connection to the iSNS server, on a thread of its own. It looks up names, connects, and moves bytes between the
//! server and the [`Client`], which implements the protocol. Only the end of the daemon waits for the thread, for a
//! bounded time.

use lunar_control::Checked;
use lunar_control::api::IsnsView;
use lunar_control::common_sections::ISNS_PORT;
use lunar_control::names::Host;
use lunar_control::value::Textual;
use lunar_core::time::Instant;
use lunar_engine::name_service::NameService;
use lunar_isns::{Action, Client, Node, Registration};
use lunar_reactor::clock::now;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a connection to one address may take.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// The time for deregistration at a server: at the end of the daemon, or when another server is configured. The
/// registration also expires by itself.
const FAREWELL_TIME: Duration = Duration::from_secs(3);
/// Most bytes of one receive.
const PIECE: usize = 16 << 10;
/// The pause of the thread when poll fails.
const REST: Duration = Duration::from_millis(100);

/// The registration that is wanted, and its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    server: Host<ISNS_PORT>,
    registration: Registration,
}

impl Wanted {
    /// The registration of a configuration; `listens` returns the address at which a portal of this name listens.
    /// `None` without a server.
    #[must_use]
    pub fn of(wanted: &Checked, listens: impl Fn(&str) -> Option<SocketAddr>) -> Option<Self> {
        let config = &wanted.config;
        let server = config.isns.server.clone()?;
        let iscsi = config.portals.iter().filter(|(_, portal)| portal.protocol.word() == lunar_iscsi::schema::WORD);
        // By portal group: the addresses for initiators, and its tag.
        let mut portals: BTreeMap<&str, BTreeMap<SocketAddr, u16>> = BTreeMap::new();
        for (name, portal) in iscsi {
            let group = portal.group.name();
            let tag = config.portal_groups.get(group).map(|group| group.tag.get() as u16);
            if let (Some(address), Some(tag)) = (portal.advertise().or_else(|| listens(name)), tag) {
                portals.entry(group).or_default().insert(address, tag);
            }
        }
        let here = config.targets.iter().filter(|(_, target)| target.enabled && target.moved_to.is_none());
        let node = |(name, target): (&String, &Arc<lunar_control::common_sections::Target>)| {
            let iqn = target.iqn.as_ref()?.as_str().to_ascii_lowercase();
            let reached = target.portal_groups.names().filter_map(|group| portals.get(group));
            let portals = reached.flatten().map(|(address, tag)| (*address, *tag)).collect();
            let alias = target.alias.as_ref().map_or(name.as_str(), |alias| alias.as_str()).into();
            Some((iqn.into(), Node { alias, portals }))
        };
        let entity = match &config.isns.entity {
            Some(entity) => entity.as_str().into(),
            None => rustix::system::uname().nodename().to_string_lossy().into(),
        };
        // The check of the configuration allows a day at most.
        let period = config.isns.period.0.as_secs() as u32;
        let nodes = here.filter_map(node).collect();
        Some(Self { server, registration: Registration { entity, period, nodes } })
    }
}

/// The wanted registration, and the state of the thread.
#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    view: Mutex<Option<IsnsView>>,
}

#[derive(Default)]
struct Orders {
    wanted: Option<Wanted>,
    ends: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one assignment, so a panic of another thread leaves the state consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client of the server. Its thread starts with the first server, and ends when the client is stopped.
pub struct Isns {
    shared: Arc<Shared>,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
    thread: Option<Thread>,
    /// The reason why the thread could not be started.
    trouble: Option<String>,
}

struct Thread {
    /// A byte to this socket wakes the thread.
    waker: UnixStream,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl fmt::Debug for Isns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isns({:?})", lock(&self.shared.view))
    }
}

impl Isns {
    /// A client without a server. `tell` logs its events.
    #[must_use]
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { shared: Arc::default(), tell: Arc::new(tell), thread: None, trouble: None }
    }

    /// Sets the wanted registration, without waiting for it.
    pub fn want(&mut self, wanted: Option<Wanted>) {
        if wanted.is_none() && self.thread.is_none() {
            self.trouble = None;
            return;
        }
        lock(&self.shared.orders).wanted = wanted;
        if self.thread.is_none() {
            match Thread::start(&self.shared, &self.tell) {
                Ok(thread) => (self.thread, self.trouble) = (Some(thread), None),
                Err(why) => self.trouble = Some(format!("iSNS: no thread for it: {why}")),
            }
        }
        self.thread.iter().for_each(Thread::wake);
    }

    /// The state of the registration.
    #[must_use]
    pub fn view(&self) -> Option<IsnsView> {
        lock(&self.shared.view).clone()
    }

    /// The present trouble, in words.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let of_server = |view: IsnsView| Some(format!("iSNS server {}: {}", view.server, view.trouble?));
        self.trouble.clone().or_else(|| self.view().and_then(of_server))
    }
}

impl NameService for Isns {
    fn register(&mut self, wanted: &Checked, portals: &BTreeMap<String, SocketAddr>) {
        self.want(Wanted::of(wanted, |name| portals.get(name).copied()));
    }

    fn view(&self) -> Option<IsnsView> {
        Self::view(self)
    }

    fn trouble(&self) -> Option<String> {
        Self::trouble(self)
    }
}

/// Deregisters, and waits for that for a bounded time.
impl Drop for Isns {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        *lock(&self.shared.orders) = Orders { wanted: None, ends: true };
        thread.wake();
        // The thread may be blocked in a name lookup: then it is abandoned.
        let _ = thread.ended.recv_timeout(FAREWELL_TIME);
    }
}

impl Thread {
    fn start(shared: &Arc<Shared>, tell: &Arc<dyn Fn(&str) + Send + Sync>) -> io::Result<Self> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let (ends, ended) = mpsc::channel();
        let (shared, tell) = (shared.clone(), tell.clone());
        let run = move || run(&shared, &*tell, &wakes, ends);
        std::thread::Builder::new().name("isns".into()).spawn(run)?;
        Ok(Self { waker, ended })
    }

    fn wake(&self) {
        // If the socket is full, earlier bytes will wake the thread.
        let _ = (&self.waker).write_all(&[0]);
    }
}

/// The thread.
fn run(shared: &Shared, tell: &dyn Fn(&str), mut wakes: &UnixStream, _ends: Sender<()>) {
    let mut line: Option<Line> = None;
    loop {
        let (wanted, ends) = {
            let orders = lock(&shared.orders);
            (orders.wanted.clone(), orders.ends)
        };
        if line.as_mut().is_some_and(|line| line.is_left(wanted.as_ref())) {
            line = None;
        }
        match &mut line {
            None => line = wanted.map(|wanted| Line::new(&wanted)),
            Some(line) => line.go_by(wanted),
        }
        if let Some(line) = &mut line {
            line.act(tell);
        }
        *lock(&shared.view) = line.as_ref().map(Line::view);
        if line.is_none() && ends {
            return;
        }
        wait(line.as_ref(), wakes);
        // All bytes mean the same.
        while let Ok(1..) = wakes.read(&mut [0; 64]) {}
        if let Some(line) = &mut line {
            line.carry();
        }
    }
}

/// Waits for the next event.
fn wait(line: Option<&Line>, wakes: &UnixStream) {
    let mut watched = vec![PollFd::new(wakes, PollFlags::IN)];
    if let Some((line, socket)) = line.and_then(|line| Some((line, line.socket.as_ref()?))) {
        let out = if line.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        watched.push(PollFd::new(socket, PollFlags::IN | out));
    }
    let until = line.and_then(Line::deadline);
    let time = until.and_then(|until| Timespec::try_from(until.since(now())).ok());
    // If poll fails, everything is checked after a pause.
    if poll(&mut watched, time.as_ref()).is_err() {
        std::thread::sleep(REST);
    }
}

/// A server, and the client of its protocol.
struct Line {
    server: Host<ISNS_PORT>,
    entity: Arc<str>,
    client: Client,
    socket: Option<TcpStream>,
    unsent: Vec<u8>,
    /// When the server is abandoned at the latest.
    farewell: Option<Instant>,
}

impl Line {
    fn new(wanted: &Wanted) -> Self {
        let mut client = Client::new();
        client.set_desired(Some(wanted.registration.clone()), now());
        Self {
            server: wanted.server.clone(),
            entity: wanted.registration.entity.clone(),
            client,
            socket: None,
            unsent: Vec::new(),
            farewell: None,
        }
    }

    /// Applies the wanted registration.
    fn go_by(&mut self, wanted: Option<Wanted>) {
        match wanted.filter(|wanted| wanted.server == self.server) {
            Some(Wanted { registration, .. }) => {
                self.farewell = None;
                self.entity = registration.entity.clone();
                self.client.set_desired(Some(registration), now());
            }
            None if self.farewell.is_none() => {
                self.farewell = Some(now() + FAREWELL_TIME);
                self.client.set_desired(None, now());
            }
            None => {}
        }
    }

    /// Whether this server is no longer wanted.
    fn is_left(&self, wanted: Option<&Wanted>) -> bool {
        let is_wanted = wanted.is_some_and(|wanted| wanted.server == self.server);
        !is_wanted && self.farewell.is_some_and(|at| self.client.is_over() || at <= now())
    }

    fn deadline(&self) -> Option<Instant> {
        // The time is over: the server is abandoned at once.
        let left = self.farewell.map(|at| if self.client.is_over() { Instant::default() } else { at });
        [self.client.deadline(), left].into_iter().flatten().min()
    }

    /// Performs the actions of the client.
    fn act(&mut self, tell: &dyn Fn(&str)) {
        self.client.tick(now());
        while let Some(action) = self.client.next_action() {
            match action {
                Action::Connect => match connect(&self.server) {
                    Ok((socket, local)) => {
                        self.socket = Some(socket);
                        self.client.connected(local.ip(), now());
                    }
                    Err(why) => self.client.lost(&format!("it cannot be reached: {why}"), now()),
                },
                Action::Send(bytes) => self.unsent.extend(bytes),
                Action::Close => self.close(),
                Action::Report(event) => tell(&format!("iSNS server {}: {event}", self.server.text())),
            }
        }
        self.send();
    }

    fn close(&mut self) {
        self.socket = None;
        self.unsent.clear();
    }

    fn lost(&mut self, why: &str) {
        self.close();
        self.client.lost(why, now());
    }

    fn send(&mut self) {
        while let (Some(socket), false) = (&mut self.socket, self.unsent.is_empty()) {
            match socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => self.lost(&format!("the connection is broken: {why}")),
            }
        }
    }

    /// Receives bytes, one piece at a time, so that a server that never stops sending cannot block the thread.
    fn carry(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        let mut piece = [0; PIECE];
        match socket.read(&mut piece) {
            Ok(0) => self.lost("it has closed the connection"),
            Ok(count) => self.client.received(&piece[..count], now()),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => self.lost(&format!("the connection is broken: {why}")),
        }
    }

    fn view(&self) -> IsnsView {
        let registered = self.client.registered();
        IsnsView {
            server: self.server.text(),
            entity: self.entity.to_string(),
            targets: registered.map_or(0, |registration| registration.nodes.len()),
            portals: registered.map_or(0, |registration| registration.portals().len()),
            trouble: self.client.trouble().map(str::to_owned),
        }
    }
}

/// A connection to a server, and its local address.
fn connect(server: &Host<ISNS_PORT>) -> io::Result<(TcpStream, SocketAddr)> {
    let mut outcome = Err(io::Error::new(ErrorKind::NotFound, "its name has no address"));
    for address in (server.name(), server.port()).to_socket_addrs()?.take(ADDRESSES_MAX) {
        outcome = TcpStream::connect_timeout(&address, CONNECT_TIME);
        if outcome.is_ok() {
            break;
        }
    }
    let socket = outcome?;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    let local = socket.local_addr()?;
    Ok((socket, local))
}

#[cfg(test)]
#[path = "isns_tests.rs"]
mod tests;
