//! RDMA (RoCEv2) over a UDP socket of this process: the socket, and the connections to a target that share it.
//!
//! The check of a packet covers the header of IPv4. A socket that is not connected and does not fragment sends the
//! identification 0, and counts up from it in a run, so the check can be computed here. For that reason the socket is
//! not connected, and datagrams of others are dropped here.

use crate::connection::ConnectionLost;
use crate::options::{Options, random};
use anyhow::{Context, Result, anyhow, bail, ensure};
use lunar_core::mem::{Arena, Chunks, Sg};
use lunar_core::time;
use lunar_nvme_host::rdma::{self, CapsuleResponse, RESPONSE_LEN};
use lunar_rdma::connection::Why;
use lunar_rdma::datagram::datagram;
use lunar_rdma::engine::{ConnectionId, Ended};
use lunar_rdma::icrc::Checker;
use lunar_rdma::mad::{REJECT_PRIVATE, REPLY_PRIVATE, Reason};
use lunar_rdma::requester::{Failed, Message};
use lunar_rdma::runs::{Planned, Runs};
use lunar_rdma::wire::PORT;
use lunar_rdma_client::client::{Client, Connect, Event};
use lunar_rdma_client::keys::Keys;
use lunar_reactor::endpoint::datagram::{DatagramSocket, DirectSocket, UdpConfig};
use lunar_reactor::endpoint::{Address, BATCH_MAX, Datagram, ReceiveBatch, SendBatch};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The headers of IPv4 and UDP, and of IPv6 and UDP.
const IP_HEADERS: (usize, usize) = (28, 48);
/// Memory for received datagrams, for headers and for short commands.
const ARENA_BYTES: usize = 32 << 20;
/// The room for a run of packets that arrives as one datagram.
const RUN_MAX: usize = 64 << 10;
/// The time between two checks for packets that must be sent again.
const TICK: Duration = Duration::from_millis(10);
/// The time without an answer after which the target is asked whether it has a socket.
const SILENCE: Duration = Duration::from_secs(1);

/// The responses of a queue that wait for its session.
#[derive(Default)]
struct Inbox {
    responses: VecDeque<CapsuleResponse>,
    ended: Option<String>,
    /// Commands without a response, and when the first of them was sent.
    outstanding: u32,
    since: time::Instant,
    /// Signalled when something is there: that of a session that does not receive itself.
    signal: Option<Rc<OwnedFd>>,
}

/// The answer to the request for a connection.
enum Answered {
    Connected(Box<[u8; REPLY_PRIVATE]>),
    Rejected(Reason, Box<[u8; REJECT_PRIVATE]>),
    Unanswered,
}

/// Why a connection was not established.
#[derive(Debug)]
pub(crate) enum NotConnected {
    /// The target has rejected it.
    Rejected(Reason, Box<[u8; REJECT_PRIVATE]>),
    /// It was not established for another reason.
    Other(anyhow::Error),
}

/// A socket, and its connections to a target.
pub(crate) struct Port {
    socket: DirectSocket,
    client: Client,
    local: SocketAddr,
    target: SocketAddr,
    checker: Checker,
    pub(crate) arena: Arena,
    chunks: Chunks,
    receives: Option<Box<ReceiveBatch>>,
    sends: Box<SendBatch>,
    runs: Runs,
    clock: Instant,
    next_tick: Instant,
    /// When the target was asked last whether it has a socket.
    asked: Instant,
    inboxes: HashMap<ConnectionId, Inbox>,
    answered: HashMap<ConnectionId, Answered>,
    /// An epoll descriptor that is readable when datagrams have arrived, when there is room to send again, and at each
    /// tick.
    ready: Rc<OwnedFd>,
    timer: OwnedFd,
    waits_for_room: bool,
    /// The time without any packet after which the target is given up.
    silence_max: Duration,
}

/// The address of a host that packets of this machine reach from `source`, and that source, and the largest packet on
/// the way.
fn ends(host: &str, source: Option<IpAddr>) -> Result<(SocketAddr, IpAddr, usize)> {
    let all = (host, PORT).to_socket_addrs().with_context(|| format!("cannot look up {host}"))?;
    let mut fits = all.filter(|target| source.is_none_or(|source| source.is_ipv4() == target.is_ipv4()));
    let target = fits.next().with_context(|| match source {
        Some(source) => format!("{host} has no address of the family of --source {source}"),
        None => format!("no address found for {host}"),
    })?;
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let own = source.unwrap_or(any);
    let probe = UdpSocket::bind((own, 0)).with_context(|| match source {
        Some(own) => format!("this machine cannot send from --source {own}: give it the address first"),
        None => "cannot open a UDP socket".to_owned(),
    })?;
    probe.connect(target).with_context(|| format!("{target} cannot be reached"))?;
    let mtu = match target {
        SocketAddr::V4(_) => sockopt::ip_mtu(&probe),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&probe),
    };
    Ok((target, probe.local_addr()?.ip(), mtu.map_or(usize::MAX, |mtu| mtu as usize)))
}

/// Why a connection has ended, in words.
fn ending(why: Ended) -> String {
    match why {
        Ended::Peer => "the target has disconnected".to_owned(),
        Ended::Failed(Why::Peer(Failed::Silent)) => "the target does not acknowledge packets".to_owned(),
        Ended::Failed(Why::Peer(Failed::Refused(syndrome))) => format!("the target refuses a message: {syndrome:?}"),
        Ended::Failed(Why::Broken) => {
            "the target violates the protocol of RDMA: a wrong key, memory beyond it, or packets in a wrong order"
                .to_owned()
        }
        other => format!("{other:?}"),
    }
}

/// Opens the UDP socket of RoCEv2.
fn socket(own: IpAddr, target: SocketAddr) -> Result<DirectSocket> {
    ensure!(
        own != target.ip(),
        "{own} is an address of this machine, whose UDP port {PORT} the target has: give an own address with --source, \
         as 127.0.0.2 for a target at 127.0.0.1"
    );
    let address = SocketAddr::new(own, PORT);
    let config = UdpConfig { accepts_no_checksum: true, coalesces: true, ..UdpConfig::new(address) };
    let socket = DatagramSocket::udp(&config).with_context(|| {
        format!(
            "UDP port {PORT} of {own} cannot be used for RDMA: an RDMA device of the kernel (rdma_rxe) uses it on all \
             addresses, or another program has it: give another own address with --source, or remove the device"
        )
    })?;
    Ok(DirectSocket::new(socket))
}

impl Port {
    /// Opens a socket for connections to the target of a URL. `bytes` is the memory for the data of commands.
    pub(crate) fn open(options: &Options, bytes: usize) -> Result<Self> {
        let (target, own, mtu) = ends(&options.url.host, options.source)?;
        let socket = socket(own, target)?;
        let Address::Ip(local) = socket.local() else { bail!("the socket has no IP address") };
        let headers = if target.is_ipv4() { IP_HEADERS.0 } else { IP_HEADERS.1 };
        let largest = socket.largest().min(mtu.saturating_sub(headers));
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let period = Timespec::try_from(TICK)?;
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: period, it_value: period })?;
        epoll::add(&ready, socket.descriptor(), EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&ready, &timer, EventData::new_u64(1), EventFlags::IN)?;
        let clock = Instant::now();
        Ok(Self {
            socket,
            client: Client::new(target.ip(), largest, u64::from_le_bytes(random())),
            local,
            target,
            checker: Checker::default(),
            arena: Arena::new(ARENA_BYTES + bytes),
            chunks: Chunks::default(),
            receives: Some(ReceiveBatch::new(RUN_MAX, BATCH_MAX)),
            sends: SendBatch::new(),
            runs: Runs::default(),
            clock,
            next_tick: clock,
            asked: clock,
            inboxes: HashMap::new(),
            answered: HashMap::new(),
            ready: Rc::new(ready),
            timer,
            waits_for_room: false,
            // The load generator gives up later, without saying why.
            silence_max: options.timeout.mul_f64(0.9),
        })
    }

    fn now(&self) -> time::Instant {
        time::Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A descriptor that is readable when there is something to do.
    pub(crate) fn ready(&self) -> Rc<OwnedFd> {
        self.ready.clone()
    }

    /// The path MTU of a connection.
    pub(crate) fn mtu(&self, id: ConnectionId) -> usize {
        self.client.mtu(id)
    }

    /// The memory of a connection that the target reads and writes; `None`: the connection has ended.
    pub(crate) fn keys(&mut self, id: ConnectionId) -> Option<&mut Keys> {
        self.client.keys(id)
    }

    /// Messages that the target has not acknowledged.
    pub(crate) fn unacknowledged(&self, id: ConnectionId) -> u64 {
        self.client.unacknowledged(id)
    }

    /// Short bytes in the memory for headers.
    pub(crate) fn copy(&self, bytes: &[u8]) -> Option<Sg> {
        self.chunks.copy(&self.arena, &[bytes]).map(Sg::from)
    }

    /// Sends a command. Without a connection it is dropped: the end of the connection is reported.
    pub(crate) fn send(&mut self, id: ConnectionId, data: Sg) {
        let now = self.now();
        if let Some(inbox) = self.inboxes.get_mut(&id) {
            inbox.since = if inbox.outstanding == 0 { now } else { inbox.since };
            inbox.outstanding += 1;
        }
        self.client.send(id, Message::from(data));
    }

    /// The session of a queue is told by this signal when something has arrived.
    pub(crate) fn signal(&mut self, id: ConnectionId, signal: Rc<OwnedFd>) {
        self.inboxes.entry(id).or_default().signal = Some(signal);
    }

    /// The next response of a queue.
    pub(crate) fn next_response(&mut self, id: ConnectionId) -> Option<CapsuleResponse> {
        self.inboxes.get_mut(&id)?.responses.pop_front()
    }

    /// Whether responses of a queue may still come.
    pub(crate) fn check(&self, id: ConnectionId) -> Result<(), ConnectionLost> {
        match self.inboxes.get(&id).and_then(|inbox| inbox.ended.as_ref()) {
            Some(why) => Err(ConnectionLost(io::Error::other(why.clone()))),
            None => Ok(()),
        }
    }

    /// Requests a connection and waits for the answer; returns the data of its reply.
    pub(crate) fn connect(
        &mut self,
        (service, private): (u16, &[u8]),
        timeout: Duration,
    ) -> Result<(ConnectionId, Box<[u8; REPLY_PRIVATE]>), NotConnected> {
        let (now, end) = (self.now(), Instant::now() + timeout);
        let connect = Connect { service, private, message_max: RESPONSE_LEN, timeout };
        let id = self.client.connect(&connect, now);
        let id = id.ok_or_else(|| NotConnected::Other(anyhow!("the MTU of the network is too small for RDMA")))?;
        self.inboxes.insert(id, Inbox::default());
        loop {
            match self.answered.remove(&id) {
                Some(Answered::Connected(private)) => return Ok((id, private)),
                Some(Answered::Rejected(reason, private)) => return Err(NotConnected::Rejected(reason, private)),
                Some(Answered::Unanswered) => break,
                None if Instant::now() > end + TICK => break,
                None => {}
            }
            self.turn().map_err(NotConnected::Other)?;
            let has_answered = self.answered.contains_key(&id);
            if !has_answered && self.is_refused(end - timeout) {
                let (at, port) = (self.target.ip(), PORT);
                return Err(NotConnected::Other(anyhow!(
                    "nothing serves RDMA at UDP port {port} of {at}: start the target with --nvme-rdma {at}"
                )));
            }
        }
        Err(NotConnected::Other(anyhow!(
            "{} does not answer: check the address, that RDMA is served there (UDP port {PORT}), and that no firewall \
             drops its datagrams",
            self.target.ip()
        )))
    }

    /// Whether the target's machine says that it has no such socket. It is asked when it has not answered since
    /// `since`, from another socket, because errors are reported to a connected one only.
    fn is_refused(&mut self, since: Instant) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(self.asked.max(since)) < SILENCE {
            return false;
        }
        self.asked = now;
        let ask = || {
            let probe = UdpSocket::bind((self.local.ip(), 0))?;
            probe.connect(self.target)?;
            probe.set_read_timeout(Some(TICK))?;
            probe.send(&[])?;
            probe.recv(&mut [0])
        };
        ask().is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Waits for something to happen, but not longer than a tick, and follows it.
    pub(crate) fn turn(&mut self) -> Result<()> {
        self.flush()?;
        poll(&mut [PollFd::new(&*self.ready, PollFlags::IN)], Some(&Timespec::try_from(TICK)?))?;
        self.receive()?;
        self.flush()
    }

    /// Receives the datagrams that have arrived, and does what is due.
    pub(crate) fn receive(&mut self) -> Result<()> {
        let mut batch = self.receives.take().context("one receive at a time")?;
        batch.refill(&self.arena);
        let received = self.socket.receive(&mut batch);
        let now = self.now();
        for datagram in batch.drain() {
            let (Address::Ip(from), Some(bytes)) = (datagram.peer, datagram.data.pieces().first()) else { continue };
            if from.ip() != self.target.ip() {
                continue;
            }
            let each = match usize::from(datagram.segment) {
                0 => bytes.len().max(1),
                segment => segment,
            };
            bytes.chunks(each).for_each(|bytes| self.take(from, bytes, now));
        }
        self.receives = Some(batch);
        received.map_err(ConnectionLost)?;
        self.tick();
        self.follow_events();
        Ok(())
    }

    /// Takes a datagram of the target.
    fn take(&mut self, from: SocketAddr, bytes: &[u8], now: time::Instant) {
        let Some(packet) = self.checker.check(from, self.local, bytes) else { return };
        let Some((id, message)) = self.client.receive(packet, now) else { return };
        let Some(inbox) = self.inboxes.get_mut(&id) else { return };
        match rdma::response(&message) {
            Ok(response) if inbox.outstanding > 0 => {
                inbox.outstanding -= 1;
                inbox.responses.push_back(response);
            }
            Ok(_) => inbox.ended = Some("the target sends responses without commands".to_owned()),
            Err(why) => inbox.ended = Some(why.to_string()),
        }
        Self::tell(inbox);
    }

    fn tell(inbox: &Inbox) {
        if let Some(signal) = &inbox.signal {
            let _ = rustix::io::write(signal, &1_u64.to_ne_bytes());
        }
    }

    fn tick(&mut self) {
        if Instant::now() < self.next_tick {
            return;
        }
        // Reset the timer's descriptor.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.next_tick = Instant::now() + TICK;
        let now = self.now();
        self.client.expire(now);
        self.end_silent(now);
    }

    fn follow_events(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Connected(id, private) => _ = self.answered.insert(id, Answered::Connected(private)),
                Event::Rejected(id, reason, private) => {
                    self.answered.insert(id, Answered::Rejected(reason, private));
                }
                Event::Unanswered(id) => _ = self.answered.insert(id, Answered::Unanswered),
                Event::Closed(id, why) => {
                    let why = ending(why);
                    let Some(inbox) = self.inboxes.get_mut(&id) else { continue };
                    inbox.ended.get_or_insert(why);
                    Self::tell(inbox);
                }
            }
        }
    }

    /// Ends connections whose commands wait, and over which the target has been silent for too long.
    fn end_silent(&mut self, now: time::Instant) {
        let silence = |(id, inbox): (&ConnectionId, &Inbox)| {
            let since = inbox.since.max(self.client.heard(*id).unwrap_or_default());
            (inbox.outstanding > 0 && inbox.ended.is_none()).then(|| now.since(since))
        };
        let Some(longest) = self.inboxes.iter().filter_map(silence).max().filter(|time| *time >= SILENCE) else {
            return;
        };
        let why = match () {
            () if longest >= self.silence_max => "the target does not answer",
            () if self.is_refused(Instant::now() - longest) => "the target has closed its UDP socket",
            () => return,
        };
        for inbox in self.inboxes.values_mut().filter(|inbox| inbox.outstanding > 0) {
            inbox.ended.get_or_insert_with(|| why.to_owned());
            Self::tell(inbox);
        }
    }

    /// Sends packets, as far as there is room.
    pub(crate) fn flush(&mut self) -> Result<()> {
        loop {
            let now = self.now();
            while self.sends.len() < BATCH_MAX {
                let Some(outgoing) = self.client.poll_send(now) else { break };
                if self.sends.is_empty() {
                    self.runs.end();
                }
                let (place, copy) =
                    (|next: &Planned| self.runs.place(next), |bytes: &[u8]| self.chunks.copy(&self.arena, &[bytes]));
                let packet = datagram(self.local, outgoing, place, copy);
                // Without memory a packet is lost, as on the network.
                let peer = Address::Ip(self.target);
                if let Some((data, place)) = packet {
                    self.sends.push(Datagram { peer, joins: place > 0, ..data.into() });
                }
            }
            if self.sends.is_empty() {
                break;
            }
            self.socket.send(&mut self.sends).map_err(ConnectionLost)?;
            if self.sends.take_refusal() {
                self.runs.turn_off();
            }
            if !self.sends.is_empty() {
                break;
            }
        }
        let waits = !self.sends.is_empty();
        if waits != self.waits_for_room {
            self.waits_for_room = waits;
            let interest = if waits { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&*self.ready, self.socket.descriptor(), EventData::new_u64(0), interest)?;
        }
        Ok(())
    }

    /// Ends a connection.
    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        let now = self.now();
        self.client.disconnect(id, now);
        // The target notices a lost request by itself.
        let _ = self.flush();
    }

    /// Waits until the target has confirmed the ends of connections, but not longer than this.
    pub(crate) fn close(&mut self, patience: Duration) {
        let end = Instant::now() + patience.min(SILENCE);
        while self.client.is_ending() && Instant::now() < end && self.turn().is_ok() {}
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Also after an error: the target would keep its connections for half a minute.
        let now = self.now();
        self.client.disconnect_all(now);
        let _ = self.flush();
    }
}
