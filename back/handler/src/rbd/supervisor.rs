//! Keeps a process for an image: starts it, logs what it says, and starts it again when it has ended, with a delay that
//! grows as long as it ends again.

use super::process::{ImageAccess, Started, kill, start};
use crate::shared::Shared;
use lunar_reactor::linger::has_ended;
use lunar_reactor::log;
use lunar_reactor::log::Severity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The delay before the first start again. It doubles with each end.
const DELAY_MIN: Duration = Duration::from_millis(200);
/// The longest delay: an image that another client gives free is served soon.
const DELAY_MAX: Duration = Duration::from_secs(30);
/// The longest delay after a process that has served: the cluster is there, and commands wait.
const DELAY_SERVED_MAX: Duration = Duration::from_secs(1);
/// A process that has served for so long ends for another reason than the one before.
const STEADY: Duration = Duration::from_secs(10);
/// How long a process may take to end once its connection is closed: its commands end, and it gives the lock of the
/// image back.
const END_TIME: Duration = Duration::from_secs(10);
/// How long a process may take to end when it is killed.
const KILL_TIME: Duration = Duration::from_secs(2);
/// Time between two looks whether processes may be started again.
const HALT_TIME: Duration = Duration::from_millis(500);
/// Bytes of a line that are logged at once.
const LINE_BYTES_MAX: usize = 1000;
/// Lines that are logged in [`LINES_TIME`]: a process that never stops talking does not fill the log.
const LINES_MAX: u32 = 100;
const LINES_TIME: Duration = Duration::from_secs(60);

/// Lines on their way to the log.
#[derive(Debug)]
pub(super) struct Lines {
    part: Vec<u8>,
    left: u32,
    dropped: u32,
    since: Instant,
    /// The last failure that was logged: it is logged once, however often it returns.
    told: Option<String>,
    /// The failure of the process that runs.
    pub(super) failure: Option<String>,
}

impl Lines {
    pub(super) fn new() -> Self {
        let (part, told, failure) = (Vec::new(), None, None);
        Self { part, left: LINES_MAX, dropped: 0, since: Instant::now(), told, failure }
    }

    /// Takes what a process says.
    fn take(&mut self, bytes: &[u8], name: &str) {
        for byte in bytes {
            if *byte == b'\n' || self.part.len() == LINE_BYTES_MAX {
                self.end(name);
            }
            if *byte != b'\n' {
                self.part.push(*byte);
            }
        }
    }

    pub(super) fn end(&mut self, name: &str) {
        let line = std::mem::take(&mut self.part);
        let line = String::from_utf8_lossy(&line);
        let (severity, text) = severity(line.trim_end());
        let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if clean.is_empty() {
            return;
        }
        if severity == Severity::Error {
            let is_told = self.told.as_ref() == Some(&clean);
            self.failure = Some(clean.clone());
            if is_told {
                return;
            }
            self.told = Some(clean.clone());
        }
        if self.since.elapsed() >= LINES_TIME {
            if self.dropped > 0 {
                log!(warning, "volume {name}: {} lines of lunar-rbd were left out", self.dropped);
            }
            (self.left, self.dropped, self.since) = (LINES_MAX, 0, Instant::now());
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                log::line(severity, format_args!("volume {name}: lunar-rbd: {clean}"));
            }
            None => self.dropped += 1,
        }
    }
}

/// The severity of a line, as its prefix says (sd-daemon(3)), and its text. The libraries of Ceph write lines without
/// one.
fn severity(line: &str) -> (Severity, &str) {
    let known = [Severity::Error, Severity::Warning, Severity::Info, Severity::Debug];
    let prefixed = |severity: &Severity| Some((*severity, line.strip_prefix(&format!("<{}>", *severity as u8))?));
    known.iter().find_map(prefixed).unwrap_or((Severity::Info, line))
}

/// A process that runs.
#[derive(Debug)]
struct Running {
    started: Started,
    /// Its standard error, until it is closed.
    talks: bool,
    /// When it has connected.
    served: Option<Instant>,
    /// Its connection is closed: it has to end until then.
    until: Option<Instant>,
}

/// The process of an image.
#[derive(Debug)]
pub(crate) struct Supervisor {
    running: Option<Running>,
    /// The time of the next start.
    due: Instant,
    delay: Duration,
    lines: Lines,
}

impl Supervisor {
    pub(crate) fn new() -> Self {
        Self { running: None, due: Instant::now(), delay: DELAY_MIN, lines: Lines::new() }
    }

    /// The files that become readable when there is something to do.
    pub(crate) fn sources(&self) -> [Option<&OwnedFd>; 2] {
        let running = self.running.as_ref();
        let errors = running.filter(|running| running.talks).map(|running| &running.started.errors);
        [errors, running.map(|running| &running.started.handle)]
    }

    /// The time at which there is something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.running.as_ref().map_or(Some(self.due), |running| running.until)
    }

    /// The number of the process.
    pub(crate) fn process(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.started.id.as_raw_nonzero().get())
    }

    /// The process has connected.
    pub(crate) fn serves(&mut self) {
        if let Some(running) = &mut self.running {
            running.served = Some(Instant::now());
        }
        self.lines.told = None;
    }

    /// Does what there is to do. `has_connection`: the connection of the process is open. Returns the end of a new
    /// connection if a process was started.
    pub(crate) fn look(&mut self, shared: &Shared, access: &ImageAccess, has_connection: bool) -> Option<OwnedFd> {
        let name = shared.unit().name;
        if let Some(running) = &mut self.running {
            running.talks = running.talks && read(&running.started.errors, &mut self.lines, &name);
            if has_ended(&running.started.handle, Duration::ZERO) {
                self.ended(shared, &name);
            } else if !has_connection {
                let now = Instant::now();
                if now >= *running.until.get_or_insert(now + END_TIME) {
                    log!(warning, "volume {name}: lunar-rbd does not end and is killed");
                    kill(&mut running.started);
                    running.until = Some(now + KILL_TIME);
                }
            }
        }
        if self.running.is_some() || has_connection || Instant::now() < self.due {
            return None;
        }
        if shared.state().is_halted {
            self.due = Instant::now() + HALT_TIME;
            return None;
        }
        match begin(access) {
            Ok((running, connection)) => {
                self.running = Some(running);
                Some(connection)
            }
            Err(why) => {
                let why = why.to_string();
                if self.lines.told.as_ref() != Some(&why) {
                    log!(error, "volume {name}: {why}");
                    self.lines.told = Some(why.clone());
                }
                self.later(shared, why);
                None
            }
        }
    }

    /// The next start is later.
    fn later(&mut self, shared: &Shared, why: String) {
        shared.fail_start(why);
        self.due = Instant::now() + self.delay;
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }

    /// The process has ended.
    fn ended(&mut self, shared: &Shared, name: &str) {
        let Some(mut running) = self.running.take() else { return };
        let status = running.started.child.as_mut().and_then(|child| child.wait().ok());
        read(&running.started.errors, &mut self.lines, name);
        self.lines.end(name);
        let status = status.map_or(String::new(), |status| format!(" ({status})"));
        let why = self.lines.failure.take().unwrap_or_else(|| format!("lunar-rbd has ended{status}"));
        match running.served.map(|since| since.elapsed()) {
            Some(time) if time >= STEADY => self.delay = DELAY_MIN,
            Some(_) => self.delay = self.delay.min(DELAY_SERVED_MAX),
            None => {}
        }
        log!(debug, "volume {name}: lunar-rbd has ended{status}; the next one starts in {:?}", self.delay);
        self.later(shared, why);
    }

    /// The volume is closed, and so is the connection of the process: waits for its end.
    pub(crate) fn end(mut self, shared: &Shared) {
        let name = shared.unit().name;
        let Self { running: Some(running), lines, .. } = &mut self else { return };
        if !running.ends_within(END_TIME, lines, &name) {
            log!(warning, "volume {name}: lunar-rbd does not end and is killed");
            kill(&mut running.started);
            if !running.ends_within(KILL_TIME, lines, &name) {
                // It waits in the kernel, which nothing ends.
                log!(error, "volume {name}: lunar-rbd does not end although it was killed");
                return;
            }
        }
        self.ended(shared, &name);
    }
}

impl Running {
    /// Waits for the end of the process for this time at most; returns whether it has ended. Its messages are
    /// logged meanwhile: a process that waits for a reader does not end.
    fn ends_within(&mut self, patience: Duration, lines: &mut Lines, name: &str) -> bool {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let sources = [Some(&self.started.handle), Some(&self.started.errors).filter(|_| self.talks)];
            let mut polled: Vec<PollFd<'_>> =
                sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            // A signal ends the wait early.
            let _ = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
            self.talks = self.talks && read(&self.started.errors, lines, name);
            if has_ended(&self.started.handle, Duration::ZERO) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}

/// Starts a process.
fn begin(access: &ImageAccess) -> io::Result<(Running, OwnedFd)> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let started = start(access, its)?;
    fcntl_setfl(&started.errors, OFlags::NONBLOCK)?;
    fcntl_setfl(&own, OFlags::NONBLOCK)?;
    Ok((Running { started, talks: true, served: None, until: None }, own))
}

/// Reads what a process says; returns whether it may say more.
pub(super) fn read(errors: &OwnedFd, lines: &mut Lines, name: &str) -> bool {
    let mut bytes = [0; 4096];
    // No longer than a few buffers: a process that never stops talking keeps nothing else waiting.
    for _ in 0..16 {
        match rustix::io::read(errors, &mut bytes) {
            Ok(0) => return false,
            Ok(count) => lines.take(&bytes[..count], name),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_a_failure_is_told_once() {
        let mut lines = Lines::new();
        lines.take(b"<3>no cluster\n<4>careful\nplain", "disk");
        assert_eq!((lines.failure.as_deref(), lines.told.as_deref()), (Some("no cluster"), Some("no cluster")));
        assert_eq!((lines.left, &*lines.part), (LINES_MAX - 2, &b"plain"[..]));
        lines.take(b"\n<3>no cluster\n", "disk");
        assert_eq!(lines.left, LINES_MAX - 3, "the same failure again");
        lines.take(&[b'a'; 10 * LINE_BYTES_MAX], "disk");
        assert!(lines.part.len() <= LINE_BYTES_MAX);
        lines.take(&b"x\n".repeat(2 * LINES_MAX as usize), "disk");
        assert_eq!(lines.left, 0);
        assert!(lines.dropped > LINES_MAX / 2);
        assert_eq!(severity("<7>a"), (Severity::Debug, "a"));
        assert_eq!(severity("<9>a"), (Severity::Info, "<9>a"));
    }
}
