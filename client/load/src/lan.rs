//! A disk that an initiator on an Ethernet uses, over a link of this process: ATA over Ethernet, and Fibre Channel over
//! Ethernet.

use crate::connection::ConnectionLost;
use crate::options::Options;
use crate::session::{Outcome, Request, Session, SessionEvent, Work};
use anyhow::{Context, Result, ensure};
use lunar_core::mem::Arena;
use lunar_core::time;
use lunar_link::{DirectLink, HEADER_LEN, Header, LinkConfig, ReceiveBatch, SendBatch, open_direct};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// Memory for frames, received ones and those to send.
const ARENA_BYTES: usize = 16 << 20;
/// The number of frames of one receive.
const FRAMES: usize = 64;
/// The time between two checks for frames that must be sent again.
const TICK: Duration = Duration::from_millis(10);

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
    /// The target does not answer.
    Lost,
}

/// The station of a link: its MAC address, and the most bytes behind the Ethernet header of a frame.
pub(crate) type Station = (lunar_link::MacAddress, usize);

/// A disk under load.
pub(crate) struct Disk<I> {
    link: DirectLink,
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
        let address = options.url.host.parse()?;
        let link = open_direct(&LinkConfig { address, types, filters, vlan: None, mac: None, mtu: None })?;
        let station = link.station()?;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let period = Timespec::try_from(TICK)?;
        let both = Itimerspec { it_interval: period, it_value: period };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &both)?;
        epoll::add(&ready, link.descriptor(), EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&ready, &timer, EventData::new_u64(1), EventFlags::IN)?;
        let clock = Instant::now();
        let mut disk = Self {
            initiator: initiator((station.mac, station.mtu)),
            arena: Arena::new(ARENA_BYTES),
            receives: Some(ReceiveBatch::new(HEADER_LEN + station.mtu, FRAMES)),
            sends: SendBatch::new(),
            clock,
            next_tick: clock + TICK,
            depth: options.depth as usize,
            in_progress: 0,
            events: VecDeque::new(),
            reads: Vec::new(),
            ready,
            timer,
            link,
        };
        disk.wait_until_ready(options.timeout)?;
        Ok(disk)
    }

    /// The most bytes behind the Ethernet header of a frame.
    pub(crate) fn mtu(&self) -> Result<usize> {
        Ok(self.link.station()?.mtu)
    }

    fn now(&self) -> time::Instant {
        time::Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends the frames of the initiator, as far as there is room.
    fn flush(&mut self) -> Result<()> {
        while self.sends.len() < FRAMES {
            let Some(frame) = self.initiator.next_frame() else { break };
            let frame = self.arena.copy(&frame).context("no memory for frames")?;
            self.sends.push_frame(frame, None);
        }
        if !self.sends.is_empty() {
            self.link.send(&mut self.sends).map_err(ConnectionLost)?;
        }
        Ok(())
    }

    /// Receives the frames that have arrived; returns whether any did.
    fn receive(&mut self) -> Result<bool> {
        let mut batch = self.receives.take().context("one receive at a time")?;
        batch.refill(&self.arena);
        let received = self.link.receive(&mut batch);
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
            ensure!(Instant::now() < end, "no target answers at this address");
            self.flush()?;
            poll(&mut [PollFd::new(&self.ready, PollFlags::IN)], Some(&Timespec::try_from(TICK)?))?;
            self.receive()?;
            self.tick();
        }
        Ok(())
    }
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
