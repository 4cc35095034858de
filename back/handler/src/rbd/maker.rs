//! Makes images, snapshots and clones: a process of lunar-rbd does it in the cluster, and ends. It removes what it has
//! made again unless it hears that its volume is created.

use super::process::{ImageAccess, Started, kill, start};
use super::supervisor::{Lines, read};
use lunar_control::live::{MadeStore, StoreNotMade};
use lunar_handler::making::{KEEP, MADE};
use lunar_reactor::linger::has_ended;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a process may take to make something: its cluster may just lose a monitor or a store, and it waits 30 s for
/// a monitor. With the time to open the image and to remove it, that is within the time of a request of the API.
const MAKE_TIME: Duration = Duration::from_secs(45);
/// How long it may take to remove it again: the process of an image that cannot be served may have it open for 35 s.
const REMOVE_TIME: Duration = Duration::from_secs(50);
/// How long it may take to end when nothing is left to do, or when it is killed.
const END_TIME: Duration = Duration::from_secs(10);

/// Why nothing was made.
#[derive(Debug)]
enum MakerError {
    /// The process cannot be started.
    Start(io::Error),
    /// It has ended, and said this.
    Ended(String),
    /// It does not answer.
    Late(String),
    /// It has not removed what it has made.
    Left(String, String),
}

impl fmt::Display for MakerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(why) => why.fmt(f),
            Self::Ended(why) => f.write_str(why),
            Self::Late(image) => write!(
                f,
                "the cluster has not made {image} within {} s: look at `ceph status`, and for what is left of it \
                 (`rbd ls`, `rbd snap ls`)",
                MAKE_TIME.as_secs()
            ),
            Self::Left(image, why) => write!(f, "{image} was made, and is left in the cluster ({why}): remove it"),
        }
    }
}

impl std::error::Error for MakerError {}

/// A process that makes something, or has made it. Dropping it ends it.
#[derive(Debug)]
struct Maker {
    image: String,
    started: Started,
    connection: Option<OwnedFd>,
    lines: Lines,
    /// Its standard error, until it is closed.
    talks: bool,
}

/// Makes what the access says.
///
/// # Errors
/// In words that say what to do.
pub(super) fn make(access: &ImageAccess) -> Result<Box<dyn MadeStore>, StoreNotMade> {
    let mut maker = begin(access).map_err(|why| StoreNotMade::new(MakerError::Start(why)))?;
    match maker.wait() {
        Ok(()) => Ok(Box::new(maker)),
        Err(why) => Err(StoreNotMade::new(why)),
    }
}

fn begin(access: &ImageAccess) -> io::Result<Maker> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let started = start(access, its)?;
    fcntl_setfl(&started.errors, OFlags::NONBLOCK)?;
    let image = access.image.to_string_lossy().into_owned();
    Ok(Maker { image, started, connection: Some(own), lines: Lines::new(), talks: true })
}

impl Maker {
    /// Waits until it has made something.
    fn wait(&mut self) -> Result<(), MakerError> {
        let end = Instant::now() + MAKE_TIME;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(MakerError::Late(self.image.clone()));
            }
            if self.look(left) {
                return Ok(());
            }
            if has_ended(&self.started.handle, Duration::ZERO) {
                return Err(MakerError::Ended(self.why()));
            }
        }
    }

    /// Waits for something that it says, or for its end; returns whether it has made something.
    fn look(&mut self, patience: Duration) -> bool {
        let Some(connection) = &self.connection else { return false };
        let talks = self.talks.then(|| PollFd::new(&self.started.errors, PollFlags::IN));
        let mut sources: Vec<_> = [connection, &self.started.handle]
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .into_iter()
            .chain(talks)
            .collect();
        let _ = poll(&mut sources, Timespec::try_from(patience).ok().as_ref());
        let mut said = [0; MADE.len() + 1];
        let got = recv(connection, &mut said, RecvFlags::DONTWAIT);
        let is_made = got.is_ok_and(|(count, _)| &said[..count] == MADE);
        self.hear();
        is_made
    }

    /// Takes what it says.
    fn hear(&mut self) {
        self.talks = self.talks && read(&self.started.errors, &mut self.lines, &self.image);
    }

    /// Why it has ended.
    fn why(&mut self) -> String {
        self.hear();
        self.lines.end(&self.image);
        let unknown = || "lunar-rbd has ended without a reason: it may be of another version than Lunar".to_owned();
        self.lines.failure.take().unwrap_or_else(unknown)
    }

    /// Closes the connection, and waits for the end of the process; returns whether it has ended by itself.
    fn end(&mut self, patience: Duration) -> bool {
        self.connection = None;
        let ends = has_ended(&self.started.handle, patience);
        if !ends {
            kill(&mut self.started);
            has_ended(&self.started.handle, END_TIME);
        }
        if let Some(child) = &mut self.started.child {
            // A process that was killed has ended; it is not waited for longer.
            let _ = child.try_wait();
        }
        ends
    }
}

impl MadeStore for Maker {
    fn keep(mut self: Box<Self>) {
        if let Some(connection) = &self.connection {
            // A process that has ended has nothing to keep, and its volume says so.
            let _ = send(connection, KEEP, SendFlags::NOSIGNAL);
        }
        // It reads the message before the end of the connection.
        self.end(END_TIME);
    }

    fn remove(mut self: Box<Self>) -> Result<(), StoreNotMade> {
        let ends = self.end(REMOVE_TIME);
        self.hear();
        self.lines.end(&self.image);
        match self.lines.failure.take() {
            Some(why) => Err(StoreNotMade::new(MakerError::Left(self.image.clone(), why))),
            None if !ends => {
                let why = "lunar-rbd does not end, and was killed".to_owned();
                Err(StoreNotMade::new(MakerError::Left(self.image.clone(), why)))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // It removes what it has made, without a task that waits for it here: the service stops.
        self.end(if self.connection.is_some() { END_TIME } else { Duration::ZERO });
    }
}
