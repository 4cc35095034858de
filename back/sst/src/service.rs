//! The thread of a volume: its links, the connection, and the requests of all cores.

use crate::address::{End, RemoteAddress};
use crate::disk::{Answer, RemoteDisk, Request};
use crate::error::Why;
use crate::shared::Shared;
use lunar_core::time::Instant;
use lunar_link::LinkConfig;
use lunar_reactor::channel::{Receiver, Sender, channel};
use lunar_reactor::{Config, Reactor, log};
use lunar_sst_initiator::{Bytes, Carrier, DEPTH_MAX, Initiator, InitiatorConfig};
use lunar_st::port::{LinkSpec, OpenedPort, Port};
use lunar_st::{Chunk, ETHER_TYPE, Engine, Event, Id, Path, Peer, VcId};
use rustix::net::sockopt;
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// Memory for packets, as every host of Scheduled Transfer has it.
const ARENA_BYTES: usize = 32 << 20;
/// The time between two looks at what is due, while something is in progress, and otherwise.
const TICK: Duration = Duration::from_millis(50);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Links are opened anew after this time without a connection: addresses, routes and interfaces may have changed. It is
/// longer than the attempt to connect.
const REOPEN: Duration = Duration::from_secs(5);
/// The time between two attempts to open links that are missing, while others work.
const REPAIR: Duration = Duration::from_secs(15);
/// The time after which a target without an answer counts as silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The time for the last packets.
const FAREWELL: Duration = Duration::from_millis(200);
/// The headers of IPv6 and UDP.
const IP_HEADERS: usize = 48;
/// The largest packet of a network of which nothing else is known (IPv6).
const MTU_MIN: usize = 1280 - IP_HEADERS;
/// The largest packet of the kernel's loopback, which sends larger datagrams in fragments.
const DATAGRAM_MAX: usize = 65_000;

/// A message to the thread.
pub(crate) enum Message {
    /// The core with this number wants answers here.
    Open(u32, Sender<Answer>),
    /// The core with this number has closed the volume.
    Close(u32),
    Request(Request),
    /// The terms have changed.
    Terms,
    Stop,
}

/// A port on the links of the thread.
pub(crate) struct PortCarrier(Rc<Port>);

impl std::fmt::Debug for PortCarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Carrier for PortCarrier {
    fn with<T>(&mut self, act: impl FnOnce(&mut Engine) -> T) -> T {
        self.0.with(|engine, _| act(engine))
    }

    fn give(&mut self, vc: VcId, id: Id, bytes: Bytes) {
        let chunk = match bytes {
            Bytes::Own(bytes) => Chunk::Bytes(bytes),
            Bytes::Shared(bytes) => Chunk::Shared(bytes),
        };
        self.0.give(vc, id, chunk);
    }

    fn take(&mut self, vc: VcId, id: Id) -> Option<Vec<u8>> {
        match self.0.take(vc, id)? {
            Chunk::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn part(&mut self, (vc, id): (VcId, Id), offset: usize, len: usize) -> Option<Vec<u8>> {
        let part = |bytes: &mut [u8]| bytes.get(offset..offset.checked_add(len)?).map(<[u8]>::to_vec);
        self.0.with_bytes(vc, id, part).flatten()
    }

    fn forget(&mut self, vc: VcId) {
        self.0.forget(vc);
    }
}

/// Starts the thread of a volume, which must have the identity `known`.
///
/// # Errors
/// When there is no thread or no memory for it.
pub(crate) fn start(shared: &Arc<Shared>, known: Option<String>) -> io::Result<Sender<Message>> {
    let mut secret = [[0; 8]; 2];
    for part in &mut secret {
        getrandom(part, GetRandomFlags::empty())?;
    }
    let secret = secret.map(u64::from_le_bytes);
    let (started, answer) = mpsc::channel();
    let shared = shared.clone();
    std::thread::Builder::new().name("st-volume".into()).spawn(move || {
        let run = || -> io::Result<()> {
            let config = Config { arena_bytes: ARENA_BYTES, register: false, ..Config::default() };
            let reactor = Reactor::new(config)?;
            let (sender, mailbox) = channel(&reactor);
            let service = Service::new(&reactor, shared, known, secret)?;
            // The caller waits for it.
            let _ = started.send(Ok(sender));
            reactor.run(service.serve(mailbox));
            Ok(())
        };
        if let Err(why) = run() {
            let _ = started.send(Err(why));
        }
    })?;
    answer.recv().map_err(|_| io::Error::other("the thread has ended"))?
}

/// The thread.
struct Service {
    reactor: Reactor,
    shared: Arc<Shared>,
    secret: Cell<[u64; 2]>,
    disk: RefCell<RemoteDisk<PortCarrier>>,
    cores: RefCell<BTreeMap<u32, Sender<Answer>>>,
    /// When links are opened anew, unless all of them work.
    open_at: Cell<Instant>,
    /// Links that could not be opened.
    missing: Cell<usize>,
    /// How often links were opened: each time, another one connects.
    attempts: Cell<usize>,
}

/// A port without links, in place of one whose links cannot be opened.
fn no_port(reactor: &Reactor) -> io::Result<PortCarrier> {
    Port::attach(reactor, Vec::new(), [0; 2], Box::new(|_, _| {})).map(PortCarrier)
}

impl Service {
    fn new(reactor: &Reactor, shared: Arc<Shared>, known: Option<String>, secret: [u64; 2]) -> io::Result<Rc<Self>> {
        let unit = shared.unit().clone();
        let config = InitiatorConfig {
            name: unit.initiator.clone(),
            target: String::new(),
            paths: Vec::new(),
            mtu: MTU_MIN,
            depth: DEPTH_MAX,
            timeout: SILENCE,
            command_timeout: None,
            secret,
        };
        let now = reactor.now();
        let initiator = Initiator::over(config, no_port(reactor)?, now);
        let mut disk = RemoteDisk::new(initiator, unit.initiator, unit.address.lun, known);
        disk.set_timeout(unit.timeout);
        Ok(Rc::new(Self {
            reactor: reactor.clone(),
            shared,
            secret: Cell::new(secret),
            disk: RefCell::new(disk),
            cores: RefCell::default(),
            open_at: Cell::new(now),
            missing: Cell::new(0),
            attempts: Cell::new(0),
        }))
    }

    async fn serve(self: Rc<Self>, mut mailbox: Receiver<Message>) {
        let looking = self.clone();
        self.reactor.spawn(async move {
            loop {
                looking.look();
                let pause = if looking.disk.borrow().is_idle() { IDLE_TICK } else { TICK };
                looking.reactor.sleep(pause).await;
            }
        });
        while let Some(message) = mailbox.recv().await {
            match message {
                Message::Open(core, answers) => drop(self.cores.borrow_mut().insert(core, answers)),
                Message::Close(core) => drop(self.cores.borrow_mut().remove(&core)),
                Message::Request(request) => {
                    let now = self.reactor.now();
                    self.disk.borrow_mut().start(request, now);
                    self.settle();
                }
                Message::Terms => {
                    let timeout = self.shared.unit().timeout;
                    self.disk.borrow_mut().set_timeout(timeout);
                }
                Message::Stop => break,
            }
        }
        let port = {
            let mut disk = self.disk.borrow_mut();
            disk.initiator().close(self.reactor.now());
            disk.initiator().carrier().0.clone()
        };
        // The target ends the nexus at once, and not after some silence.
        port.flushed(FAREWELL).await;
        port.close();
    }

    /// Does what is due.
    fn look(self: &Rc<Self>) {
        let now = self.reactor.now();
        let is_connected = self.disk.borrow_mut().initiator().is_connected();
        if self.open_at.get() <= now && (!is_connected || self.missing.get() > 0) {
            self.open(is_connected, now);
        }
        self.disk.borrow_mut().look(now);
        self.settle();
    }

    /// Opens the links anew. Links that are missing while others work are only opened if they are there again.
    fn open(self: &Rc<Self>, is_connected: bool, now: Instant) {
        let unit = self.shared.unit().clone();
        let Opened { links, peers, mtu, why } = open_links(&unit.address);
        let missing = unit.address.ends.len() - links.len();
        self.open_at.set(now + if is_connected { REPAIR } else { REOPEN });
        if is_connected && missing >= self.missing.get() {
            return;
        }
        if let Some(why) = why.filter(|_| links.is_empty()) {
            return self.disk.borrow_mut().has_no_links(why);
        }
        self.missing.set(missing);
        match self.attach(links) {
            Ok(port) => self.use_port(port, (peers, mtu), now),
            Err(why) => self.disk.borrow_mut().has_no_links(why.to_string()),
        }
    }

    fn attach(self: &Rc<Self>, links: Vec<OpenedPort>) -> io::Result<Rc<Port>> {
        let service = Rc::downgrade(self);
        let on_event = move |_: &Rc<Port>, event: Event| {
            service.upgrade().into_iter().for_each(|service| service.event(event));
        };
        // Connections of another engine have other Keys.
        let [one, other] = self.secret.get();
        self.secret.set([one, other.wrapping_add(1)]);
        Port::attach(&self.reactor, links, self.secret.get(), Box::new(on_event))
    }

    fn use_port(self: &Rc<Self>, port: Rc<Port>, (peers, mtu): (Vec<Peer>, usize), now: Instant) {
        let mtu = (0..peers.len()).map(|link| port.mtu(link)).min().unwrap_or(MTU_MIN).min(mtu);
        let mut paths: Vec<Path> = (0..).zip(peers).map(|(link, peer)| Path { link, peer }).collect();
        let attempts = self.attempts.replace(self.attempts.get() + 1);
        let first = attempts.checked_rem(paths.len()).unwrap_or(0);
        paths.rotate_left(first);
        let before = self.disk.borrow_mut().initiator().replace(PortCarrier(port.clone()), (paths, mtu), now);
        before.0.close();
        let service = Rc::downgrade(self);
        self.reactor.spawn(async move {
            port.failure().await;
            // It may be that of a link that was closed meanwhile: another look does no harm.
            let Some(service) = service.upgrade() else { return };
            if Rc::ptr_eq(&service.disk.borrow_mut().initiator().carrier().0, &port) {
                let now = service.reactor.now();
                service.disk.borrow_mut().initiator().close(now);
                service.open_at.set(now + TICK);
            }
        });
    }

    fn event(&self, event: Event) {
        let now = self.reactor.now();
        self.disk.borrow_mut().take(event, now);
        self.settle();
    }

    /// Passes answers and the state of the volume on.
    fn settle(&self) {
        let (answers, view) = {
            let mut disk = self.disk.borrow_mut();
            (disk.take_answers(), disk.view().clone())
        };
        for answer in answers {
            if let Some(core) = self.cores.borrow().get(&answer.core) {
                core.send(answer);
            }
        }
        let mut known = self.shared.view();
        if *known == view {
            return;
        }
        let before = std::mem::replace(&mut *known, view.clone());
        drop(known);
        let (name, timeout) = {
            let unit = self.shared.unit();
            (unit.name.clone(), unit.timeout)
        };
        match (before.why, view.why) {
            (Some(_), None) => log!("volume {name}: its target answers, and commands are executed"),
            (None, Some(why)) => {
                log!(warning, "volume {name}: {why}: {}; commands wait up to {} s", why.remedy(), timeout.as_secs());
            }
            (Some(before), Some(why)) if before != why && why != Why::Silent => {
                log!(warning, "volume {name}: {why}: {}", why.remedy());
            }
            _ => {}
        }
    }
}

/// Links that were opened, the target on each, and why others were not.
struct Opened {
    links: Vec<OpenedPort>,
    peers: Vec<Peer>,
    /// The largest packet on the ways to the targets, as far as it is known.
    mtu: usize,
    why: Option<String>,
}

fn open_links(address: &RemoteAddress) -> Opened {
    let mut all = Opened { links: Vec::new(), peers: Vec::new(), mtu: DATAGRAM_MAX, why: None };
    for end in &address.ends {
        let (opened, peer, name) = match end {
            End::Udp(target) => (open_udp(*target, &mut all.mtu), Peer::Ip(*target), target.to_string()),
            End::Station(link, mac) => {
                let (address, types, filters) = (link.clone(), vec![ETHER_TYPE], Vec::new());
                let config = LinkConfig { address, types, filters, vlan: None, mac: None, mtu: None };
                (LinkSpec::Frames(Box::new(config)).open(), Peer::Station(*mac), link.to_string())
            }
        };
        match opened {
            Ok(link) => {
                all.links.push(link);
                all.peers.push(peer);
            }
            Err(why) => all.why = Some(format!("{name}: {why}")),
        }
    }
    all
}

/// A socket at the address that this machine has on the way to the target, so that each link goes its own way.
fn open_udp(target: SocketAddr, mtu: &mut usize) -> io::Result<OpenedPort> {
    let any = match target {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let route = UdpSocket::bind(any)?;
    route.connect(target)?;
    let packet = if target.is_ipv4() { sockopt::ip_mtu(&route)? } else { sockopt::ipv6_mtu(&route)? };
    *mtu = (*mtu).min((packet as usize).saturating_sub(IP_HEADERS).max(MTU_MIN));
    let mut local = route.local_addr()?;
    local.set_port(0);
    LinkSpec::Udp(local).open()
}
