//! A disk of an ATA over Ethernet target, over a link of this process.

use crate::connection::ConnectionLost;
use crate::options::Options;
use crate::report::{FrameWindow, Negotiated};
use crate::session::{Outcome, Request, Session, SessionEvent, Work};
use crate::target::{Capacity, OpenSessions};
use anyhow::{Context, Result, ensure};
use lunar_aoe::wire::{ETHER_TYPE, SECTOR};
use lunar_aoe_initiator::{Initiator, InitiatorConfig, InitiatorEvent, Operation};
use lunar_core::mem::Arena;
use lunar_core::time;
use lunar_link::{DirectLink, HEADER_LEN, Header, LinkAddress, LinkConfig, ReceiveBatch, SendBatch, open_direct};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Memory for frames, received ones and those to send.
const ARENA_BYTES: usize = 16 << 20;
/// The number of frames of one receive.
const FRAMES: usize = 64;
/// The time between two checks for frames that must be sent again.
const TICK: Duration = Duration::from_millis(10);
/// The most frames of a command: commands of the longest length of other protocols.
const FRAMES_PER_COMMAND: u32 = 4096;

/// A disk under load.
pub(crate) struct Disk {
    link: DirectLink,
    initiator: Initiator,
    arena: Arena,
    receives: Option<Box<ReceiveBatch>>,
    sends: Box<SendBatch>,
    clock: Instant,
    next_tick: Instant,
    /// Commands that may be outstanding.
    depth: usize,
    in_progress: usize,
    /// Events that came while frames were sent.
    events: VecDeque<OwnedEvent>,
    /// Data of reads in their order: the frames of one command may be answered in any order.
    reads: Vec<Option<Vec<u8>>>,
    /// An epoll descriptor that is readable when frames have arrived, and at each tick.
    ready: OwnedFd,
    timer: OwnedFd,
}

/// An event of a command.
enum OwnedEvent {
    Data(u32, usize, Vec<u8>),
    Done(u32, Result<(), (u8, u8)>),
    Lost,
}

impl Disk {
    fn open(options: &Options) -> Result<Self> {
        let address: LinkAddress = options.url.host.parse()?;
        let (types, filters) = (vec![ETHER_TYPE], Vec::new());
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
        let config = InitiatorConfig {
            mac: station.mac,
            target: options.url.address(),
            mtu: station.mtu,
            timeout: options.timeout,
            fresh_tags: false,
        };
        Ok(Self {
            initiator: Initiator::new(config, time::Instant(0)),
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
        })
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
            let Some(header) = Header::parse(frame).filter(|header| header.ether_type == ETHER_TYPE) else { continue };
            initiator.receive(header.source, &frame[HEADER_LEN..], now, &mut |event| keep(events, event));
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
        self.initiator.tick(now, &mut |event| keep(events, event));
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

fn keep(events: &mut VecDeque<OwnedEvent>, event: InitiatorEvent<'_>) {
    events.extend(match event {
        InitiatorEvent::Ready => None,
        InitiatorEvent::Data(cookie, offset, bytes) => Some(OwnedEvent::Data(cookie, offset, bytes.to_vec())),
        InitiatorEvent::Done(cookie, result) => Some(OwnedEvent::Done(cookie, result)),
        InitiatorEvent::Lost => Some(OwnedEvent::Lost),
    });
}

impl Session for Disk {
    const POLLED_MAX: usize = 1;

    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.in_progress) as u32
    }

    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, bytes, .. } = request;
        let place = cookie as usize;
        if self.reads.len() <= place {
            self.reads.resize_with(place + 1, || None);
        }
        let operation = match work {
            Work::Read => {
                self.reads[place] = Some(vec![0; bytes as usize]);
                Operation::Read { lba, count: blocks }
            }
            Work::Write(data) => Operation::Write { lba, data: Rc::from(data.bytes()) },
            Work::Flush => Operation::Flush,
        };
        self.in_progress += 1;
        let now = self.now();
        self.initiator.start(cookie, operation, now);
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
                OwnedEvent::Data(cookie, offset, bytes) => {
                    let read = self.reads.get_mut(cookie as usize).and_then(Option::as_mut);
                    let place = read.and_then(|read| read.get_mut(offset..offset + bytes.len()));
                    place.context("data of no command")?.copy_from_slice(&bytes);
                }
                OwnedEvent::Done(cookie, result) => {
                    self.in_progress -= 1;
                    let read = self.reads.get_mut(cookie as usize).and_then(Option::take);
                    let outcome = match result {
                        Ok(()) => Outcome::Good,
                        Err((status, error)) => {
                            Outcome::Failed(format!("ATA status {status:02x}h, error {error:02x}h"))
                        }
                    };
                    if let Some(read) = read.filter(|_| outcome == Outcome::Good) {
                        on(SessionEvent::Data(cookie, &read));
                    }
                    on(SessionEvent::Done(cookie, outcome));
                }
                OwnedEvent::Lost => {
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

/// Opens the disk.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Disk>> {
    options.check_for_aoe().map_err(anyhow::Error::msg)?;
    let mut disk = Disk::open(options).with_context(|| options.url.to_string())?;
    disk.wait_until_ready(options.timeout).with_context(|| options.url.to_string())?;
    let sectors = disk.initiator.sectors_per_frame();
    let negotiated = Negotiated::Aoe(FrameWindow {
        sectors_per_frame: sectors,
        mtu: disk.link.station()?.mtu,
        window: disk.initiator.buffers() as u32,
    });
    let capacity = Capacity { blocks: disk.initiator.capacity(), block_size: SECTOR as u32 };
    let transfer_max = u32::from(sectors) * SECTOR as u32 * FRAMES_PER_COMMAND;
    let url = options.url.clone();
    Ok(OpenSessions { url, active: vec![disk], idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}

/// A station needs no farewell.
pub(crate) fn close(disk: Disk, _patience: Duration) {
    drop(disk);
}
