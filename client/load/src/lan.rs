//! A disk that an initiator on an Ethernet uses, over a link of this process: ATA over Ethernet, Fibre Channel over
//! Ethernet, and SCSI over Scheduled Transfer, which has UDP datagrams, too.

use crate::connection::ConnectionLost;
use crate::options::Options;
use crate::session::{Outcome, Request, Session, SessionEvent, Work};
use anyhow::{Context, Result, bail};
use lunar_core::mem::Arena;
use lunar_core::time;
use lunar_link::{DirectLink, HEADER_LEN, Header, LinkConfig, MacAddress, ReceiveBatch, SendBatch, open_direct};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Memory for frames, received ones and those to send.
const ARENA_BYTES: usize = 16 << 20;
/// The number of frames of one receive.
const FRAMES: usize = 64;
/// The time between two checks for frames that must be sent again.
const TICK: Duration = Duration::from_millis(10);

/// Memory of a socket for datagrams that wait: those of some commands.
const SOCKET_BYTES: usize = 4 << 20;
/// The headers of IP and UDP.
const IP_HEADERS: usize = 48;
/// The largest packet of the kernel's loopback, which sends larger datagrams in fragments.
const DATAGRAM_MAX: usize = 65_000;

/// The packets of an initiator.
enum Carrier {
    Frames(Box<DirectLink>),
    /// A connected socket.
    Datagrams(UdpSocket),
}

impl Carrier {
    /// A socket that is connected to this address.
    fn datagrams(address: SocketAddr) -> Result<Self> {
        let local = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
        sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
        Ok(Self::Datagrams(socket))
    }

    fn station(&self) -> Result<Station> {
        Ok(match self {
            Self::Frames(link) => link.station().map(|station| (station.mac, station.mtu))?,
            Self::Datagrams(socket) => {
                let mtu = sockopt::ip_mtu(socket)? as usize;
                (MacAddress([0; 6]), mtu.saturating_sub(IP_HEADERS).min(DATAGRAM_MAX))
            }
        })
    }
}

/// An initiator without I/O.
pub(crate) trait FrameInitiator {
    /// Whether commands may start.
    fn is_ready(&self) -> bool;
    /// The next frame to send.
    fn next_frame(&mut self) -> Option<Vec<u8>>;
    /// Starts a command.
    fn start(&mut self, request: &Request, now: time::Instant);
    /// Takes a frame.
    fn receive(&mut self, header: &Header, bytes: &[u8], now: time::Instant, on: &mut dyn FnMut(FrameEvent));
    /// Does what is due.
    fn tick(&mut self, now: time::Instant, on: &mut dyn FnMut(FrameEvent));
}

/// An event of a command.
pub(crate) enum FrameEvent {
    /// Data of a read, from this offset on. Pieces arrive in any order.
    Data(u32, usize, Vec<u8>),
    /// A command has ended, or failed with this error.
    Done(u32, Result<(), String>),
    /// The target refuses the login, for this reason.
    Refused(String),
    /// The target does not answer.
    Lost,
}

/// The station of a link: its MAC address, and the most bytes behind the Ethernet header of a frame.
pub(crate) type Station = (MacAddress, usize);

/// A disk under load.
pub(crate) struct Disk<I> {
    carrier: Carrier,
    pub(crate) initiator: I,
    arena: Arena,
    receives: Option<Box<ReceiveBatch>>,
    sends: Box<SendBatch>,
    clock: Instant,
    next_tick: Instant,
    /// Commands that may be outstanding.
    depth: usize,
    in_progress: usize,
    /// Events that came while frames were sent.
    events: VecDeque<FrameEvent>,
    /// Data of reads in their order: the frames of one command may be answered in any order.
    reads: Vec<Option<Vec<u8>>>,
    /// Why the last login was refused.
    refusal: Option<String>,
    /// An epoll descriptor that is readable when frames have arrived, and at each tick.
    ready: OwnedFd,
    timer: OwnedFd,
}

impl<I: FrameInitiator> Disk<I> {
    /// Opens the link of the URL, whose settings are completed, and finds the disk.
    pub(crate) fn open(
        options: &Options,
        (types, filters): (Vec<u16>, Vec<lunar_link::Filter>),
        initiator: impl FnOnce(Station) -> I,
    ) -> Result<Self> {
        let carrier = match options.url.host.strip_prefix("udp:") {
            Some(address) => Carrier::datagrams(address.parse()?)?,
            None => {
                let address = options.url.link().0.parse()?;
                let config = LinkConfig { address, types, filters, vlan: None, mac: None, mtu: None };
                Carrier::Frames(Box::new(open_direct(&config)?))
            }
        };
        let station = carrier.station()?;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let period = Timespec::try_from(TICK)?;
        let both = Itimerspec { it_interval: period, it_value: period };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &both)?;
        match &carrier {
            Carrier::Frames(link) => epoll::add(&ready, link.descriptor(), EventData::new_u64(0), EventFlags::IN)?,
            Carrier::Datagrams(socket) => epoll::add(&ready, socket, EventData::new_u64(0), EventFlags::IN)?,
        }
        epoll::add(&ready, &timer, EventData::new_u64(1), EventFlags::IN)?;
        let clock = Instant::now();
        let mut disk = Self {
            initiator: initiator(station),
            arena: Arena::new(ARENA_BYTES),
            receives: Some(ReceiveBatch::new(HEADER_LEN + station.1, FRAMES)),
            sends: SendBatch::new(),
            clock,
            next_tick: clock + TICK,
            depth: options.depth as usize,
            in_progress: 0,
            events: VecDeque::new(),
            reads: Vec::new(),
            refusal: None,
            ready,
            timer,
            carrier,
        };
        disk.wait_until_ready(options.timeout)?;
        Ok(disk)
    }

    /// The most bytes behind the Ethernet header of a frame.
    pub(crate) fn mtu(&self) -> Result<usize> {
        Ok(self.carrier.station()?.1)
    }

    fn now(&self) -> time::Instant {
        time::Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends the frames of the initiator, as far as there is room.
    fn flush(&mut self) -> Result<()> {
        if let Carrier::Datagrams(socket) = &self.carrier {
            while let Some(packet) = self.initiator.next_frame() {
                // A datagram that the socket does not take is lost, as on the network.
                let _ = socket.send(&packet);
            }
            return Ok(());
        }
        while self.sends.len() < FRAMES {
            let Some(frame) = self.initiator.next_frame() else { break };
            let frame = self.arena.copy(&frame).context("no memory for frames")?;
            self.sends.push_frame(frame, None);
        }
        if let Carrier::Frames(link) = &mut self.carrier
            && !self.sends.is_empty()
        {
            link.send(&mut self.sends).map_err(ConnectionLost)?;
        }
        Ok(())
    }

    /// Receives the frames that have arrived; returns whether any did.
    fn receive(&mut self) -> Result<bool> {
        if let Carrier::Datagrams(socket) = &self.carrier {
            return receive_datagrams(socket, &mut self.initiator, self.clock, &mut self.events);
        }
        let Carrier::Frames(link) = &mut self.carrier else { return Ok(false) };
        let mut batch = self.receives.take().context("one receive at a time")?;
        batch.refill(&self.arena);
        let received = link.receive(&mut batch);
        let now = self.now();
        let (initiator, events) = (&mut self.initiator, &mut self.events);
        for datagram in batch.drain() {
            let Some(frame) = datagram.data.pieces().first() else { continue };
            let Some(header) = Header::parse(frame) else { continue };
            initiator.receive(&header, &frame[HEADER_LEN..], now, &mut |event| events.push_back(event));
        }
        self.receives = Some(batch);
        Ok(received.map_err(ConnectionLost)? > 0)
    }

    fn tick(&mut self) {
        if Instant::now() < self.next_tick {
            return;
        }
        // Reset the timer's descriptor.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.next_tick = Instant::now() + TICK;
        let (now, events) = (self.now(), &mut self.events);
        self.initiator.tick(now, &mut |event| events.push_back(event));
    }

    /// Waits until the disk is found.
    fn wait_until_ready(&mut self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        while !self.initiator.is_ready() {
            if Instant::now() >= end {
                bail!(self.refusal.take().unwrap_or_else(|| "no target answers at this address".into()));
            }
            self.flush()?;
            poll(&mut [PollFd::new(&self.ready, PollFlags::IN)], Some(&Timespec::try_from(TICK)?))?;
            self.receive()?;
            self.tick();
            for event in self.events.drain(..) {
                if let FrameEvent::Refused(why) = event {
                    self.refusal = Some(why);
                }
            }
        }
        Ok(())
    }
}

/// Receives the datagrams that have arrived; returns whether any did.
fn receive_datagrams(
    socket: &UdpSocket,
    initiator: &mut impl FrameInitiator,
    clock: Instant,
    events: &mut VecDeque<FrameEvent>,
) -> Result<bool> {
    let nowhere = Header { destination: MacAddress([0; 6]), source: MacAddress([0; 6]), ether_type: 0 };
    let mut packet = [0; DATAGRAM_MAX];
    for count in 0..FRAMES {
        match socket.recv(&mut packet) {
            Ok(len) => {
                let now = time::Instant(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX));
                initiator.receive(&nowhere, &packet[..len], now, &mut |event| events.push_back(event));
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(count > 0),
            // The target is not there just now.
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => return Ok(true),
            Err(why) => return Err(ConnectionLost(why).into()),
        }
    }
    Ok(true)
}

impl<I: FrameInitiator> Session for Disk<I> {
    const POLLED_MAX: usize = 1;

    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.in_progress) as u32
    }

    fn start(&mut self, request: Request) {
        let place = request.cookie as usize;
        if self.reads.len() <= place {
            self.reads.resize_with(place + 1, || None);
        }
        if matches!(request.work, Work::Read) {
            self.reads[place] = Some(vec![0; request.bytes as usize]);
        }
        self.in_progress += 1;
        let now = self.now();
        self.initiator.start(&request, now);
    }

    fn send(&mut self) -> Result<bool> {
        // Frames without room now are sent with the next tick.
        self.flush().map(|()| true)
    }

    fn take(&mut self, _buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool> {
        let came = self.receive()?;
        self.tick();
        while let Some(event) = self.events.pop_front() {
            match event {
                FrameEvent::Data(cookie, offset, bytes) => {
                    let read = self.reads.get_mut(cookie as usize).and_then(Option::as_mut);
                    let place = read.and_then(|read| read.get_mut(offset..offset + bytes.len()));
                    place.context("data of no command")?.copy_from_slice(&bytes);
                }
                FrameEvent::Done(cookie, result) => {
                    self.in_progress -= 1;
                    let read = self.reads.get_mut(cookie as usize).and_then(Option::take);
                    let outcome = result.map_or_else(Outcome::Failed, |()| Outcome::Good);
                    if let Some(read) = read.filter(|_| outcome == Outcome::Good) {
                        on(SessionEvent::Data(cookie, &read));
                    }
                    on(SessionEvent::Done(cookie, outcome));
                }
                // It may accept the next one, for instance once it has started again.
                FrameEvent::Refused(why) => self.refusal = Some(why),
                FrameEvent::Lost => {
                    let why = io::Error::new(io::ErrorKind::TimedOut, "the target does not answer");
                    return Err(ConnectionLost(why).into());
                }
            }
        }
        // Frames that wait for the window are sent even if no command has ended.
        self.flush()?;
        Ok(came)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// A station needs no farewell.
pub(crate) fn close<I>(disk: Disk<I>, _patience: Duration) {
    drop(disk);
}
