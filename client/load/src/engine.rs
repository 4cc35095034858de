//! The event loop: one thread serves all sessions. Each wake-up of a session is one receive, as many new commands as
//! completed, and one send.

use crate::connection::ConnectionLost;
use crate::lane::Lane;
use crate::load::Load;
use crate::session::Session;
use anyhow::{Result, bail};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The length of the receive buffer, in bytes. It fits in the second-level cache.
const RECEIVE: usize = 512 << 10;
/// The most sessions that are served per wake-up.
const EVENTS: usize = 128;
/// The interval of progress lines on a terminal.
const PROGRESS: Duration = Duration::from_secs(1);
/// Rounds of polling between two reads of the clock, which cost more than a round.
const LOOKS_PER_CLOCK: u32 = 64;

/// The sessions of a run and their load.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    /// The sessions under load, which have a lane each, then the idle ones.
    sessions: Vec<S>,
    lanes: Vec<Lane>,
    pub(crate) load: Load,
    epoll: OwnedFd,
    /// Whether the socket of a session is full, so that the rest of the output must wait.
    full: Vec<bool>,
    buffer: Vec<u8>,
    clock: Instant,
    spin: bool,
    timeout: Duration,
    /// The time of the last event of a command, in nanoseconds on the clock.
    last_answer: u64,
    /// Receives that returned data.
    pub(crate) receives: u64,
    /// The length of the pauses of `--rest`.
    pub(crate) rest: Duration,
    progress: Option<(Instant, u64)>,
}

/// How a phase of the run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The deadline was reached, or all commands completed.
    Reached,
    /// The connection was lost.
    ConnectionLost(String),
}

impl<S: Session> Engine<S> {
    pub(crate) fn new(
        active: Vec<S>,
        idle: Vec<S>,
        depth: u32,
        load: Load,
        spin: bool,
        timeout: Duration,
    ) -> Result<Self> {
        let lanes = (0..active.len()).map(|number| Lane::new(number, depth, timeout)).collect();
        let sessions: Vec<S> = active.into_iter().chain(idle).collect();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (at, connection) in sessions.iter().enumerate() {
            epoll::add(&epoll, connection.descriptor(), EventData::new_u64(at as u64), EventFlags::IN)?;
        }
        Ok(Self {
            full: vec![false; sessions.len()],
            sessions,
            lanes,
            load,
            epoll,
            buffer: vec![0; RECEIVE],
            clock: Instant::now(),
            spin,
            timeout,
            last_answer: 0,
            receives: 0,
            rest: Duration::ZERO,
            progress: std::io::stderr().is_terminal().then(|| (Instant::now(), 0)),
        })
    }

    fn now(&self) -> u64 {
        nanoseconds(self.clock)
    }

    /// Runs until `deadline`; without a deadline until all commands have completed and the load has no more.
    pub(crate) fn drive(&mut self, deadline: Option<Instant>) -> Result<End> {
        let turned = self.run_until(deadline);
        // Also log the acknowledgements that arrived right before the connection was lost.
        self.flush_log()?;
        match turned {
            Ok(()) => Ok(End::Reached),
            Err(error) if error.is::<ConnectionLost>() => Ok(End::ConnectionLost(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn run_until(&mut self, deadline: Option<Instant>) -> Result<()> {
        self.refill_all()?;
        loop {
            let now = Instant::now();
            let is_over = match deadline {
                Some(deadline) => now >= deadline,
                // Commands that wait for the command window still have to start.
                None => !self.load.has_more() && self.lanes.iter().all(Lane::is_idle),
            };
            if is_over {
                return Ok(());
            }
            self.print_progress(now);
            if self.load.is_pausing() && self.lanes.iter().all(Lane::is_idle) {
                self.rest(deadline.map_or(self.rest, |deadline| self.rest.min(deadline - now)))?;
                continue;
            }
            for _ in 0..if self.spin { LOOKS_PER_CLOCK } else { 1 } {
                self.poll_once(deadline.map_or(PROGRESS, |deadline| (deadline - now).min(PROGRESS)))?;
                if self.load.log.is_some() {
                    self.flush_log()?;
                }
            }
            if now.saturating_duration_since(self.clock).saturating_sub(Duration::from_nanos(self.last_answer))
                > self.timeout
            {
                bail!("the target did not answer for {:?}", self.timeout);
            }
        }
    }

    /// The number of messages sent only to notify the target.
    pub(crate) fn rings(&self) -> u64 {
        self.sessions.iter().map(Session::rings).sum()
    }

    /// Pauses, then starts commands again.
    fn rest(&mut self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        self.load.resume();
        self.refill_all()
    }

    fn refill_all(&mut self) -> Result<()> {
        self.last_answer = self.now();
        (0..self.lanes.len()).try_for_each(|at| self.refill(at, self.last_answer))
    }

    fn flush_log(&mut self) -> Result<()> {
        self.load.log.as_mut().map_or(Ok(()), crate::ack_log::AckLog::flush)
    }

    /// Waits for events and serves the sessions that are ready.
    fn poll_once(&mut self, at_most: Duration) -> Result<()> {
        if self.spin && self.sessions.len() <= S::POLLED_MAX {
            return (0..self.sessions.len()).try_for_each(|at| self.serve(at));
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
        let (mut last_answer, mut outcome) = (None, Ok(()));
        let (connection, load) = (&mut self.sessions[at], &mut self.load);
        let received = match self.lanes.get_mut(at) {
            Some(lane) => connection.take(&mut self.buffer, &mut |event| {
                let now = *last_answer.get_or_insert_with(|| nanoseconds(clock));
                if let Err(error) = lane.handle(load, now, event) {
                    outcome = Err(error);
                }
            })?,
            None => connection.take(&mut self.buffer, &mut |_| {})?,
        };
        outcome?;
        // Only events of commands count: other messages of the target do not show that it will answer commands.
        self.last_answer = last_answer.unwrap_or(self.last_answer);
        self.receives += u64::from(received);
        // With `--spin` this runs often, and a completion of one session may allow a command of another one.
        if received {
            self.refill(at, last_answer.unwrap_or_else(|| nanoseconds(clock)))
        } else if self.full[at] || self.lanes.get(at).is_some_and(Lane::is_idle) {
            self.refill(at, self.now())
        } else {
            Ok(())
        }
    }

    /// Starts new commands of a session and sends its output.
    fn refill(&mut self, at: usize, now: u64) -> Result<()> {
        let connection = &mut self.sessions[at];
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.refill(connection, &mut self.load, now);
        }
        let full = !connection.send()?;
        if full != self.full[at] {
            self.full[at] = full;
            let interest = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, connection.descriptor(), EventData::new_u64(at as u64), interest)?;
        }
        Ok(())
    }

    fn print_progress(&mut self, now: Instant) {
        let Some((last, total)) = &mut self.progress else { return };
        let elapsed = now.saturating_duration_since(*last);
        if elapsed < PROGRESS {
            return;
        }
        let rate = (self.load.total - *total) as f64 / elapsed.as_secs_f64();
        let megabytes = rate * f64::from(self.load.plan.bytes) / 1e6;
        // The terminal may be gone; the run continues.
        let _ =
            write!(std::io::stderr(), "\r{rate:>12.0} IOPS {megabytes:>9.1} MB/s {:>8} errors\x1b[K", self.load.errors);
        (*last, *total) = (now, self.load.total);
    }

    /// Closes all sessions with `close`.
    pub(crate) fn close(mut self, close: impl Fn(S)) -> Load {
        if self.progress.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        self.sessions.drain(..).for_each(close);
        self.load
    }
}

fn nanoseconds(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
