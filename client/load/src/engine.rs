//! One thread that serves all sessions: each wake-up is one receive, as many new commands as ended, one send.

use crate::driven::Session;
use crate::lane::Lane;
use crate::link::Lost;
use crate::load::Load;
use anyhow::{Result, bail};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Bytes of one receive. All of it stays in the second-level cache.
const RECEIVE: usize = 512 << 10;
/// Sessions of which as many are served in one wake-up.
const EVENTS: usize = 128;
/// How often somebody at a terminal wants to know.
const PROGRESS: Duration = Duration::from_secs(1);
/// Looks of who polls between two looks at the clock, which cost more.
const LOOKS_PER_CLOCK: u32 = 64;

/// The sessions of a run and their load.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    /// Sessions with a lane first, then those that only stay.
    links: Vec<S>,
    lanes: Vec<Lane>,
    pub(crate) load: Load,
    epoll: OwnedFd,
    /// Whether a session waits until the rest of what it has sent goes.
    full: Vec<bool>,
    buffer: Vec<u8>,
    clock: Instant,
    spin: bool,
    patience: Duration,
    /// When a command was last answered, or brought data, in nanoseconds on the clock.
    heard: u64,
    /// Receives that brought something.
    pub(crate) receives: u64,
    /// How long a load rests that comes and goes.
    pub(crate) rest: Duration,
    progress: Option<(Instant, u64)>,
}

/// How a stretch of the run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// As wished.
    Reached,
    /// A connection was lost.
    Lost(String),
}

impl<S: Session> Engine<S> {
    pub(crate) fn new(
        active: Vec<S>,
        idle: Vec<S>,
        depth: u32,
        load: Load,
        spin: bool,
        patience: Duration,
    ) -> Result<Self> {
        let lanes = (0..active.len()).map(|number| Lane::new(number, depth, patience)).collect();
        let links: Vec<S> = active.into_iter().chain(idle).collect();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (at, link) in links.iter().enumerate() {
            epoll::add(&epoll, link.descriptor(), EventData::new_u64(at as u64), EventFlags::IN)?;
        }
        Ok(Self {
            full: vec![false; links.len()],
            links,
            lanes,
            load,
            epoll,
            buffer: vec![0; RECEIVE],
            clock: Instant::now(),
            spin,
            patience,
            heard: 0,
            receives: 0,
            rest: Duration::ZERO,
            progress: std::io::stderr().is_terminal().then(|| (Instant::now(), 0)),
        })
    }

    fn now(&self) -> u64 {
        nanoseconds(self.clock)
    }

    /// Goes on until `deadline`; without one until all commands have ended and the load has no more.
    pub(crate) fn drive(&mut self, deadline: Option<Instant>) -> Result<End> {
        let turned = self.turns(deadline);
        // What was acknowledged last before the end was acknowledged, too.
        self.flush_log()?;
        match turned {
            Ok(()) => Ok(End::Reached),
            Err(error) if error.is::<Lost>() => Ok(End::Lost(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn turns(&mut self, deadline: Option<Instant>) -> Result<()> {
        self.refill_all()?;
        loop {
            let now = Instant::now();
            let is_over = match deadline {
                Some(deadline) => now >= deadline,
                // What a shut window keeps back is still to come.
                None => !self.load.has_more() && self.lanes.iter().all(Lane::is_idle),
            };
            if is_over {
                return Ok(());
            }
            self.tell(now);
            if self.load.rests() && self.lanes.iter().all(Lane::is_idle) {
                self.rest(deadline.map_or(self.rest, |deadline| self.rest.min(deadline - now)))?;
                continue;
            }
            for _ in 0..if self.spin { LOOKS_PER_CLOCK } else { 1 } {
                self.turn(deadline.map_or(PROGRESS, |deadline| (deadline - now).min(PROGRESS)))?;
                if self.load.log.is_some() {
                    self.flush_log()?;
                }
            }
            if now.saturating_duration_since(self.clock).saturating_sub(Duration::from_nanos(self.heard))
                > self.patience
            {
                bail!("the target has answered nothing for {:?}", self.patience);
            }
        }
    }

    /// Messages that did nothing but wake the target.
    pub(crate) fn rings(&self) -> u64 {
        self.links.iter().map(Session::rings).sum()
    }

    /// Rests for so long, and begins again.
    fn rest(&mut self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        self.load.wake();
        self.refill_all()
    }

    fn refill_all(&mut self) -> Result<()> {
        self.heard = self.now();
        (0..self.lanes.len()).try_for_each(|at| self.refill(at, self.heard))
    }

    fn flush_log(&mut self) -> Result<()> {
        self.load.log.as_mut().map_or(Ok(()), crate::ack_log::AckLog::flush)
    }

    /// Waits, and serves what is ready.
    fn turn(&mut self, at_most: Duration) -> Result<()> {
        if self.spin && self.links.len() <= S::POLLED_MAX {
            return (0..self.links.len()).try_for_each(|at| self.serve(at));
        }
        let timeout = if self.spin { Duration::ZERO } else { at_most };
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::try_from(timeout)?)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            self.serve(usize::try_from(event.data.u64())?)?;
        }
        Ok(())
    }

    fn serve(&mut self, at: usize) -> Result<()> {
        let clock = self.clock;
        let (mut heard, mut outcome) = (None, Ok(()));
        let (link, load) = (&mut self.links[at], &mut self.load);
        let came = match self.lanes.get_mut(at) {
            Some(lane) => link.take(&mut self.buffer, &mut |told| {
                let now = *heard.get_or_insert_with(|| nanoseconds(clock));
                if let Err(error) = lane.take_in(load, now, told) {
                    outcome = Err(error);
                }
            })?,
            None => link.take(&mut self.buffer, &mut |_| {})?,
        };
        outcome?;
        // What answers no command, however often it comes, is no sign that any will be.
        self.heard = heard.unwrap_or(self.heard);
        self.receives += u64::from(came);
        // Who polls comes by often, and what one session has ended may be what another waits for.
        if came {
            self.refill(at, heard.unwrap_or_else(|| nanoseconds(clock)))
        } else if self.full[at] || self.lanes.get(at).is_some_and(Lane::is_idle) {
            self.refill(at, self.now())
        } else {
            Ok(())
        }
    }

    /// Starts new commands of a session and sends what waits.
    fn refill(&mut self, at: usize, now: u64) -> Result<()> {
        let link = &mut self.links[at];
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.refill(link, &mut self.load, now);
        }
        let full = !link.send()?;
        if full != self.full[at] {
            self.full[at] = full;
            let interest = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, link.descriptor(), EventData::new_u64(at as u64), interest)?;
        }
        Ok(())
    }

    fn tell(&mut self, now: Instant) {
        let Some((last, total)) = &mut self.progress else { return };
        let elapsed = now.saturating_duration_since(*last);
        if elapsed < PROGRESS {
            return;
        }
        let rate = (self.load.total - *total) as f64 / elapsed.as_secs_f64();
        let megabytes = rate * f64::from(self.load.plan.bytes) / 1e6;
        // A terminal that went away is no reason to stop.
        let _ =
            write!(std::io::stderr(), "\r{rate:>12.0} IOPS {megabytes:>9.1} MB/s {:>8} errors\x1b[K", self.load.errors);
        (*last, *total) = (now, self.load.total);
    }

    /// Ends all sessions, each with `close`.
    pub(crate) fn close(mut self, close: impl Fn(S)) -> Load {
        if self.progress.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        self.links.drain(..).for_each(close);
        self.load
    }
}

fn nanoseconds(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
