//! Descriptors that a peer has sent.
//!
//! The last close of a descriptor may wait for as long as its sender likes: that of a TCP socket for its peer
//! (SO_LINGER), that of a file for the server of its file system. So another thread closes them, one for each sender,
//! unless they are of a kind whose close does not wait.

use crate::eventfd::is_eventfd;
use crate::shared::{self, quota::Quota};
use crate::unix::{DESCRIPTORS_MAX, receive_some};
use lunar_core::mem::Region;
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Most descriptors of one peer that are open and of no known kind, waiting for their close or not. No message has
/// more than [`DESCRIPTORS_MAX`], and each of them is taken before the next message is received.
const UNKNOWN_MAX: usize = 2 * DESCRIPTORS_MAX;

/// Closes the descriptors of one peer, one after the other, on a thread of its own.
#[derive(Debug, Default)]
pub(crate) struct Closer(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    left: VecDeque<Left>,
    /// A thread closes them.
    is_running: bool,
}

/// A descriptor, or a Unix socket of Lunar, whose unreceived messages may have descriptors.
#[derive(Debug)]
enum Left {
    File(OwnedFd),
    /// A connection that was shut down.
    Stream(Arc<OwnedFd>),
    /// A listening socket that was shut down.
    Listener(Arc<OwnedFd>),
}

impl Left {
    fn close(self) {
        match self {
            Self::File(file) => drop(file),
            Self::Stream(stream) => drain(&stream),
            Self::Listener(listener) => {
                while let Some(stream) =
                    until_done(|| accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
                {
                    // It is no error if the peer has gone already.
                    let _ = shutdown(&stream, Shutdown::Both);
                    drain(&stream);
                }
            }
        }
    }
}

/// Receives all that has arrived, and closes its descriptors.
fn drain(stream: &OwnedFd) {
    let (mut bytes, mut files) = ([0; 4096], Vec::new());
    // The number of bytes is of no interest, nor whether all descriptors were received: the others are closed.
    while until_done(|| receive_some(stream, &mut bytes, &mut files)).is_some_and(|got| got != Some(0)) {
        files.clear();
    }
}

/// Repeats a call that was interrupted. `None` when it fails.
fn until_done<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Option<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome.ok(),
        }
    }
}

impl Closer {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(self: &Arc<Self>, left: Left) {
        let mut waiting = self.waiting();
        waiting.left.push_back(left);
        self.start(&mut waiting);
    }

    fn start(self: &Arc<Self>, waiting: &mut Waiting) {
        if !waiting.is_running && !waiting.left.is_empty() {
            let closer = self.clone();
            let thread = std::thread::Builder::new().name("lunar-close".to_owned()).spawn(move || closer.run());
            // Without a thread, all wait for the next try.
            waiting.is_running = thread.is_ok();
        }
    }

    /// Whether nothing waits for its close.
    pub(crate) fn is_idle(self: &Arc<Self>) -> bool {
        let mut waiting = self.waiting();
        self.start(&mut waiting);
        !waiting.is_running && waiting.left.is_empty()
    }

    fn run(&self) {
        loop {
            let mut waiting = self.waiting();
            let Some(left) = waiting.left.pop_front() else {
                waiting.is_running = false;
                return;
            };
            drop(waiting);
            left.close();
        }
    }

    /// Shuts a connection down and closes it. Other copies of the descriptor may be closed before or after: then
    /// nothing is left in it.
    pub(crate) fn close_stream(self: &Arc<Self>, stream: Arc<OwnedFd>) {
        // It is no error if the peer has gone already.
        let _ = shutdown(&stream, Shutdown::Both);
        self.close(Left::Stream(stream));
    }

    /// Shuts a listening socket down and closes it, in the same way.
    pub(crate) fn close_listener(self: &Arc<Self>, listener: Arc<OwnedFd>) {
        // A shutdown of a listening Unix socket does not fail; no process can connect after it.
        let _ = shutdown(&listener, Shutdown::Both);
        self.close(Left::Listener(listener));
    }

    /// Takes descriptors over. Returns whether few of this peer are open and of no known kind.
    pub(crate) fn take(self: &Arc<Self>, files: Vec<OwnedFd>, into: &mut Vec<PeerFile>) -> bool {
        into.extend(files.into_iter().map(|file| PeerFile { file: Some(file), closer: Some(self.clone()) }));
        Arc::strong_count(self) + self.waiting().left.len() <= UNKNOWN_MAX
    }
}

/// Tells whether a connection and all that its peer has sent is closed.
#[derive(Debug)]
pub struct Closing(Weak<Closer>);

impl Closing {
    pub(crate) fn of(closer: &Arc<Closer>) -> Self {
        Self(Arc::downgrade(closer))
    }

    /// Whether all is closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// A descriptor that a peer has sent.
#[derive(Debug)]
pub struct PeerFile {
    /// `None` once it was taken out.
    file: Option<OwnedFd>,
    /// `None` for a descriptor of Lunar itself.
    closer: Option<Arc<Closer>>,
}

impl PeerFile {
    /// The descriptor, if this holds for it, and what closes it.
    ///
    /// # Errors
    /// `InvalidInput` if it does not hold; else those of `is_one`.
    pub(crate) fn into_checked(
        mut self,
        is_one: impl FnOnce(&OwnedFd) -> io::Result<bool>,
    ) -> io::Result<(OwnedFd, Option<Arc<Closer>>)> {
        match &self.file {
            Some(file) if is_one(file)? => {}
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        self.file.take().map(|file| (file, self.closer.take())).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Maps a part of it: see [`shared::map_within`].
    ///
    /// # Errors
    /// Those of [`shared::map_within`].
    pub fn map(&self, quota: &Quota, offset: u64, len: usize, is_writable: bool) -> io::Result<Region> {
        match &self.file {
            Some(file) => shared::map_within(quota, file, offset, len, is_writable),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The eventfd that it is. Its close does not wait.
    ///
    /// # Errors
    /// `InvalidInput` when it is none: a read or a write of another file may wait. Else the error of the operating
    /// system.
    pub(crate) fn into_eventfd(self) -> io::Result<OwnedFd> {
        self.into_checked(is_eventfd).map(|(file, _)| file)
    }
}

impl From<OwnedFd> for PeerFile {
    fn from(file: OwnedFd) -> Self {
        Self { file: Some(file), closer: None }
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        match (self.file.take(), &self.closer) {
            (Some(file), Some(closer)) if !closes_at_once(&file) => closer.close(Left::File(file)),
            (file, _) => drop(file),
        }
    }
}

/// Memory whose last close takes no time worth mentioning, in the unit of `st_blocks`: the close frees its pages.
const SMALL_BLOCKS: u64 = (4 << 20) / 512;

/// Whether the last close of a descriptor does not wait: little memory, which has seals, and eventfds.
fn closes_at_once(file: &OwnedFd) -> bool {
    let is_small =
        || fstat(file).is_ok_and(|stat| u64::try_from(stat.st_blocks).is_ok_and(|used| used <= SMALL_BLOCKS));
    // Only memory has seals: any other file system might delay the next call.
    (fcntl_get_seals(file).is_ok() && is_small()) || is_eventfd(file).unwrap_or(false)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::unix::{Listener, Stream, send_waiting};
    use crate::{Choice, Config, Reactor};
    use rustix::net::sockopt::set_socket_linger;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    /// Longer than any test takes.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

    /// A TCP socket whose last close waits until its peer reads, which it does not, and that peer.
    pub(crate) fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let far = listener.accept().expect("it connects").0;
        set_socket_linger(&near, Some(PATIENCE * 2)).expect("a socket");
        near.set_nonblocking(true).expect("a socket");
        while near.write(&[0; 1 << 16]).is_ok() {}
        (near, far)
    }

    fn reactor() -> Reactor {
        Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver")
    }

    fn pair(reactor: &Reactor) -> (Stream, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        (Stream::adopt(reactor, OwnedFd::from(ours)).expect("a stream"), theirs.into())
    }

    fn send(socket: &OwnedFd, file: TcpStream) {
        send_waiting(socket, b"!", &[file.as_fd()], PATIENCE).expect("there is room");
    }

    /// The time that a test has taken, and the wait for the closes after their peer has gone.
    fn ends(closing: &Closing, start: Instant, peer: TcpStream) {
        assert!(start.elapsed() < PATIENCE, "it waited");
        assert!(!closing.is_over(), "the peer has read nothing");
        drop(peer);
        while !closing.is_over() {
            assert!(start.elapsed() < PATIENCE * 4, "it is not closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_close_that_waits_for_its_peer_keeps_no_core() {
        let (reactor, (near, far), start) = (reactor(), lingering(), Instant::now());
        let (stream, theirs) = pair(&reactor);
        send(&theirs, near);
        let mut files = Vec::new();
        assert_eq!(reactor.run(stream.receive(&mut [0], &mut files)).expect("it was sent"), 1);
        assert_eq!(files.len(), 1);
        let closing = stream.closing();
        drop((files, stream));
        ends(&closing, start, far);
    }

    #[test]
    fn descriptors_that_nobody_received_keep_no_core() {
        let (reactor, (near, far), start) = (reactor(), lingering(), Instant::now());
        let (stream, theirs) = pair(&reactor);
        send(&theirs, near);
        drop(theirs);
        let closing = stream.closing();
        drop(stream);
        ends(&closing, start, far);
    }

    #[test]
    fn connections_that_nobody_accepted_keep_no_core() {
        let (reactor, (near, far), start) = (reactor(), lingering(), Instant::now());
        let path = std::env::temp_dir().join(format!("lunar-peer-file-{}", std::process::id()));
        let listener = Listener::bind(&reactor, &path, 0o600).expect("it is free");
        let theirs = OwnedFd::from(UnixStream::connect(&path).expect("it listens"));
        send(&theirs, near);
        drop(theirs);
        let closing = listener.closing();
        drop(listener);
        ends(&closing, start, far);
    }

    #[test]
    fn a_peer_has_few_descriptors_of_no_known_kind() {
        let (reactor, (near, far)) = (reactor(), lingering());
        let (stream, theirs) = pair(&reactor);
        let mut count = 0;
        let ended = loop {
            send(&theirs, near.try_clone().expect("a copy"));
            // The first close waits: no other one is the last of its file.
            let mut files = Vec::new();
            match reactor.run(stream.receive(&mut [0], &mut files)) {
                Ok(_) if count > 4 * UNKNOWN_MAX => break None,
                Ok(_) => count += 1,
                Err(why) => break Some(why.kind()),
            }
            std::mem::forget(files);
        };
        assert_eq!(ended, Some(io::ErrorKind::InvalidData));
        assert!(count <= UNKNOWN_MAX, "{count}");
        drop((near, far));
    }

    #[test]
    fn memory_and_eventfds_are_closed_at_once() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        assert!(closes_at_once(&shared::share("test", 4096).expect("a memfd").0) && closes_at_once(&eventfd));
        let (large, pages) = shared::share("test", 5 << 20).expect("a memfd");
        assert!(closes_at_once(&large), "no page of it is used");
        assert!((0..pages.len()).step_by(4096).all(|at| pages.write(at, b"x")) && !closes_at_once(&large));
        assert!(PeerFile::from(eventfd).into_eventfd().is_ok());
        let (near, _) = lingering();
        set_socket_linger(&near, None).expect("a socket");
        assert!(!closes_at_once(&near.try_clone().expect("a copy").into()));
        assert!(PeerFile::from(OwnedFd::from(near)).into_eventfd().is_err());
    }
}
