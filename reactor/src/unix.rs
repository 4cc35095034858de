//! Unix sockets whose peers send descriptors with their bytes, for protocols of virtual machines: few messages, none of
//! them on the path of data. Calls of their own, and the driver only where they would have to wait.

pub use crate::socket_file::{clear, permit};

use crate::Reactor;
use crate::op::{Handle, Op};
use crate::os_error;
use lunar_core::io::Completion;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, accept_with, recvmsg, sendmsg,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Descriptors that come with one receive at most: more is nothing that a protocol here allows.
pub const DESCRIPTORS_MAX: usize = 32;

/// A descriptor of this thread, and the same in its driver, for waiting.
struct Waitable {
    reactor: Reactor,
    fd: OwnedFd,
    handle: Handle,
}

impl Waitable {
    fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        let handle = reactor.driver().adopt(fd.try_clone()?)?;
        Ok(Self { reactor: reactor.clone(), fd, handle })
    }

    async fn ready(&self, to_write: bool) -> io::Result<()> {
        let mut completion = Completion::new();
        self.reactor.submit(Op::Ready { file: self.handle.clone(), to_write }, completion.token());
        completion.wait().await.result.map(|_| ()).map_err(os_error)
    }

    /// Calls until it neither is interrupted nor would have to wait.
    async fn call<T>(&self, to_write: bool, mut call: impl FnMut(&OwnedFd) -> Result<T, Errno>) -> io::Result<T> {
        loop {
            match call(&self.fd) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.ready(to_write).await?,
                other => return Ok(other?),
            }
        }
    }

    fn cancel(&self) {
        self.reactor.driver().cancel(&self.handle);
    }
}

/// A socket that listens at a path, until it is dropped.
pub struct Listener {
    socket: Waitable,
    path: PathBuf,
    /// Whether the path is somebody else's now.
    retired: Cell<bool>,
}

impl Listener {
    /// Listens at `path`, whose file gets the permissions `mode`. A file that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when somebody listens there; else the operating system's.
    pub fn bind(reactor: &Reactor, path: &Path, mode: u32) -> io::Result<Self> {
        match UnixStream::connect(path) {
            Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => clear(path)?,
            // There is none, or none that we may know of: binding tells.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        let path = path.to_owned();
        permit(&path, mode, None, None)?;
        listener.set_nonblocking(true)?;
        Ok(Self { socket: Waitable::new(reactor, listener.into())?, path, retired: Cell::default() })
    }

    /// The next connection.
    ///
    /// # Errors
    /// The operating system's; `Fault::Aborted`'s after [`Listener::cancel`].
    pub async fn accept(&self) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = self.socket.call(false, |fd| accept_with(fd, flags)).await?;
        Ok(Stream(Waitable::new(&self.socket.reactor, fd)?))
    }

    /// Ends what waits for a connection.
    pub fn cancel(&self) {
        self.socket.cancel();
    }

    /// The same, and the path is free for another.
    pub fn retire(&self) {
        if !self.retired.replace(true) {
            // Whoever has taken it away already has done no harm.
            let _ = std::fs::remove_file(&self.path);
        }
        self.cancel();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.retire();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.path.display())
    }
}

/// A connection.
pub struct Stream(Waitable);

impl Stream {
    /// Connects to `path`, at once or not at all.
    ///
    /// # Errors
    /// The operating system's.
    pub fn connect(reactor: &Reactor, path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Self(Waitable::new(reactor, stream.into())?))
    }

    /// Fills `into`; descriptors that come with it are put behind those in `descriptors`. Tells how many bytes there
    /// were: fewer only when the peer has closed its side.
    ///
    /// # Errors
    /// `InvalidData` when more descriptors come than [`DESCRIPTORS_MAX`]; else the operating system's.
    pub async fn receive(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let part = &mut into[done..];
            let got = self.0.call(false, |fd| receive_some(fd, part, descriptors)).await?;
            match got {
                Some(0) => break,
                Some(count) => done += count,
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(done)
    }

    /// Sends all of `bytes`, and `descriptors` with the first of them.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (mut done, mut descriptors) = (0, descriptors);
        while done < bytes.len() {
            done += self.0.call(true, |fd| send_some(fd, &bytes[done..], descriptors)).await?;
            descriptors = &[];
        }
        Ok(())
    }

    /// Ends what waits for the peer.
    pub fn cancel(&self) {
        // A peer that sends all the time would let nobody wait.
        let _ = rustix::net::shutdown(&self.0.fd, rustix::net::Shutdown::Both);
        self.0.cancel();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// Fills `into` like [`Stream::receive`], for a thread that has no reactor and may wait, for `patience` at a time.
///
/// # Errors
/// `UnexpectedEof` when the peer has closed its side, `TimedOut`, `InvalidData` when more descriptors come than
/// [`DESCRIPTORS_MAX`]; else the operating system's.
pub fn receive_waiting(
    fd: &OwnedFd,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    patience: Duration,
) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match wait_for(fd, PollFlags::IN, patience, || receive_some(fd, &mut into[done..], descriptors))? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(count) => done += count,
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

/// Sends like [`Stream::send`], for a thread that has no reactor and may wait, for `patience` at a time.
///
/// # Errors
/// `TimedOut`; else the operating system's.
pub fn send_waiting(fd: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>], patience: Duration) -> io::Result<()> {
    let (mut done, mut descriptors) = (0, descriptors);
    while done < bytes.len() {
        done += wait_for(fd, PollFlags::OUT, patience, || send_some(fd, &bytes[done..], descriptors))?;
        descriptors = &[];
    }
    Ok(())
}

fn wait_for<T>(
    fd: &OwnedFd,
    what: PollFlags,
    patience: Duration,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> io::Result<T> {
    let patience = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = poll(&mut [PollFd::new(fd, what)], Some(&patience));
                if matches!(ready, Ok(0)) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            other => return Ok(other?),
        }
    }
}

/// `None`: more descriptors came than there was room for.
fn receive_some(fd: &OwnedFd, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<Option<usize>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(fd, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    let fits = !got.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() <= DESCRIPTORS_MAX;
    Ok(fits.then_some(got.bytes))
}

fn send_some(fd: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    sendmsg(fd, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// An eventfd of a peer's, which this side rings.
pub struct Signal {
    reactor: Reactor,
    file: Handle,
    completion: RefCell<Completion>,
    is_under_way: Cell<bool>,
}

impl Signal {
    /// Takes it over.
    ///
    /// # Errors
    /// `InvalidInput` when it is something else: who rings that may wait for whoever is behind it. The operating
    /// system's.
    pub fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if name.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // One that is full would hold up whoever rings it. The peer can take this back: then a thread of the kernel's
        // waits, and not this one.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        let file = reactor.driver().adopt(fd)?;
        Ok(Self { reactor: reactor.clone(), file, completion: RefCell::default(), is_under_way: Cell::new(false) })
    }

    /// Rings it; `false`: not yet, for the last time is not over.
    #[must_use]
    pub fn ring(&self) -> bool {
        let mut completion = self.completion.borrow_mut();
        if self.is_under_way.get() && completion.take().is_none() {
            return false;
        }
        self.is_under_way.set(true);
        let done = completion.token();
        self.reactor.submit(Op::Signal { file: self.file.clone() }, done);
        true
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // One that cannot be rung would be rung for ever.
        self.reactor.driver().cancel(&self.file);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Config};

    #[test]
    fn only_eventfds_are_rung() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let pipe = io::pipe().expect("a pipe").1;
        assert_eq!(Signal::new(&reactor, pipe.into()).expect_err("no eventfd").kind(), io::ErrorKind::InvalidInput);
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        assert!(Signal::new(&reactor, eventfd).expect("one").ring());
    }

    #[test]
    fn what_is_no_socket_stays_and_a_stale_one_is_replaced() {
        let folder = std::env::temp_dir().join(format!("lunar-unix-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let (file, link, socket) = (folder.join("file"), folder.join("link"), folder.join("socket"));
        std::fs::write(&file, "somebody's").expect("a file");
        drop(UnixListener::bind(&socket).expect("a socket"));
        std::os::unix::fs::symlink(&socket, &link).expect("a link");
        for path in [&file, &link] {
            let refused = [clear(path), Listener::bind(&reactor, path, 0o600).map(drop)];
            for why in refused.map(|refused| refused.expect_err("it is no socket")) {
                assert_eq!(why.kind(), io::ErrorKind::AlreadyExists, "{why}");
            }
        }
        assert_eq!(std::fs::read(&file).expect("it is there"), b"somebody's");
        assert!(link.is_symlink() && socket.exists());
        let listener = Listener::bind(&reactor, &socket, 0o600).expect("nobody listens there");
        let refused = Listener::bind(&reactor, &socket, 0o600).expect_err("somebody does");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&socket).is_ok());
        drop(listener);
        drop(UnixListener::bind(&socket).expect("the path is free"));
        clear(&socket).expect("it is a socket");
        assert!(!socket.exists() && clear(&socket).is_err());
        let _ = std::fs::remove_dir_all(&folder);
    }
}
