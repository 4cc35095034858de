//! Unix sockets whose peers send descriptors with their bytes, for protocols of virtual machines: few messages, none
//! of them on the data path. They use calls of their own, and the driver only when they have to wait.

pub use crate::peer_file::{Closing, PeerFile};
pub use crate::socket_file::{Permission, SOCKET_PATH_MAX, clear, make_folder};

use crate::Reactor;
use crate::op::{Handle, LocalSockets, Op};
use crate::os_error;
use crate::peer_file::Closer;
use lunar_core::io::{Completion, Fault};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::sockopt::{set_socket_oobinline, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, recvmsg, sendmsg,
    socket_with,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most descriptors of one receive: no protocol here allows more.
pub const DESCRIPTORS_MAX: usize = 32;
/// Most descriptors that a message can have (SCM_MAX_FD of net/scm.h). There is room for all: the kernel would close
/// the others, and a close may wait.
const RECEIVED_MAX: usize = 253;

/// A socket, and its handle in the driver, for waiting.
struct Waitable {
    reactor: Reactor,
    socket: Socket,
    handle: Handle,
    closer: Arc<Closer>,
}

/// Where the calls of a socket go.
enum Socket {
    /// To the operating system.
    Descriptor(Arc<OwnedFd>),
    /// To the driver.
    Driver,
}

impl Waitable {
    fn new(reactor: &Reactor, fd: OwnedFd, closer: Arc<Closer>) -> io::Result<Self> {
        // The kernel closes the descriptors of an urgent byte that no receive asks for.
        set_socket_oobinline(&fd, true)?;
        let handle = reactor.driver().adopt(fd.try_clone()?)?;
        Ok(Self { reactor: reactor.clone(), socket: Socket::Descriptor(Arc::new(fd)), handle, closer })
    }

    fn of_driver(reactor: &Reactor, handle: Handle) -> Self {
        Self { reactor: reactor.clone(), socket: Socket::Driver, handle, closer: Arc::default() }
    }

    /// Lets another thread close the socket, this way.
    fn close(&self, close: impl FnOnce(&Arc<Closer>, Arc<OwnedFd>)) {
        if let Socket::Descriptor(fd) = &self.socket {
            close(&self.closer, fd.clone());
        }
    }

    fn sockets(&self) -> &dyn LocalSockets {
        self.reactor.driver().local_sockets().expect("only a driver that has sockets of its own gives handles of them")
    }

    fn accept_next(&self) -> Result<Accepted, Errno> {
        match &self.socket {
            Socket::Descriptor(fd) => {
                accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map(Accepted::Descriptor)
            }
            Socket::Driver => self.sockets().accept(&self.handle).map(Accepted::Handle),
        }
    }

    /// `None`: there are too many descriptors.
    fn receive_some(&self, into: &mut [u8], descriptors: &mut Vec<PeerFile>) -> Result<Option<usize>, Errno> {
        let mut files = Vec::new();
        let got = match &self.socket {
            Socket::Descriptor(fd) => receive_some(fd, into, &mut files),
            Socket::Driver => self.sockets().receive(&self.handle, into, &mut files).map(Some),
        };
        let are_few = self.closer.take(files, descriptors) && descriptors.len() <= DESCRIPTORS_MAX;
        Ok(got?.filter(|_| are_few))
    }

    fn send_some(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        match &self.socket {
            Socket::Descriptor(fd) => send_some(fd, bytes, descriptors),
            Socket::Driver => self.sockets().send(&self.handle, bytes, descriptors),
        }
    }

    fn shutdown(&self) {
        match &self.socket {
            // A socket whose peer has gone already is no error.
            Socket::Descriptor(fd) => _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both),
            Socket::Driver => self.sockets().shutdown(&self.handle),
        }
    }

    async fn ready(&self, to_write: bool) -> io::Result<()> {
        let mut completion = Completion::new();
        self.reactor.submit(Op::Ready { file: self.handle.clone(), to_write }, completion.token());
        completion.wait().await.result.map(|_| ()).map_err(os_error)
    }

    /// Repeats a call until it is not interrupted and need not wait.
    async fn call<T>(&self, to_write: bool, mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
        loop {
            match call() {
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

/// A connection that was accepted.
enum Accepted {
    Descriptor(OwnedFd),
    Handle(Handle),
}

/// Whether the Unix sockets of this core are files, which have folders and permissions. Those of the simulator are not.
#[must_use]
pub fn are_files(reactor: &Reactor) -> bool {
    reactor.driver().local_sockets().is_none()
}

/// A listening socket at a path, until it is dropped.
pub struct Listener {
    socket: Waitable,
    path: PathBuf,
    /// Whether the path belongs to another socket now.
    retired: Cell<bool>,
}

impl Listener {
    /// Listens at `path`, whose file gets the permissions `mode`. A file without listener is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when another process listens there; else the error of the operating system.
    pub fn bind(reactor: &Reactor, path: &Path, mode: u32) -> io::Result<Self> {
        if let Some(sockets) = reactor.driver().local_sockets() {
            let socket = Waitable::of_driver(reactor, sockets.listen(path)?);
            return Ok(Self { socket, path: path.to_owned(), retired: Cell::default() });
        }
        match connect_now(path) {
            // Another process listens; perhaps it does not accept.
            Ok(_) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(Errno::CONNREFUSED) => clear(path)?,
            // There is none, or none that is visible to this process: binding reports that.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        let path = path.to_owned();
        Permission { mode, owner: None, group: None }.grant(&path)?;
        listener.set_nonblocking(true)?;
        let socket = Waitable::new(reactor, listener.into(), Arc::default())?;
        Ok(Self { socket, path, retired: Cell::default() })
    }

    /// The next connection.
    ///
    /// # Errors
    /// The error of the operating system; `Fault::Aborted` after [`Listener::cancel`].
    pub async fn accept(&self) -> io::Result<Stream> {
        let reactor = &self.socket.reactor;
        match self.socket.call(false, || self.socket.accept_next()).await? {
            Accepted::Descriptor(fd) => Ok(Stream(Waitable::new(reactor, fd, Arc::default())?)),
            Accepted::Handle(handle) => Ok(Stream(Waitable::of_driver(reactor, handle))),
        }
    }

    /// Ends the wait for a connection.
    pub fn cancel(&self) {
        self.socket.cancel();
    }

    /// Tells, after the drop, whether it is closed, with the connections that were not accepted.
    #[cfg(test)]
    pub(crate) fn closing(&self) -> Closing {
        Closing::of(&self.socket.closer)
    }

    /// The same, and another socket may use the path.
    pub fn retire(&self) {
        if !self.retired.replace(true) {
            match &self.socket.socket {
                // It is no error if the file was removed already.
                Socket::Descriptor(_) => _ = std::fs::remove_file(&self.path),
                Socket::Driver => self.socket.sockets().unlink(&self.socket.handle),
            }
        }
        self.cancel();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.retire();
        self.socket.close(Closer::close_listener);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.path.display())
    }
}

/// A connection to `path`. `EAGAIN`: a process listens there and does not accept any (unix(7)).
fn connect_now(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A connection.
pub struct Stream(Waitable);

impl Stream {
    /// Connects to `path`, without waiting.
    ///
    /// # Errors
    /// The error of the operating system; `WouldBlock` when the peer does not accept connections.
    pub fn connect(reactor: &Reactor, path: &Path) -> io::Result<Self> {
        Ok(Self(Waitable::new(reactor, connect_now(path)?, Arc::default())?))
    }

    /// Takes over a connected socket that a peer has sent.
    ///
    /// # Errors
    /// `InvalidInput` when it is no Unix stream socket: another file may delay its reader. Else the error of the
    /// operating system.
    pub fn adopt(reactor: &Reactor, file: impl Into<PeerFile>) -> io::Result<Self> {
        let (fd, closer) = file.into().into_checked(|fd| {
            Ok(socket_domain(fd)? == AddressFamily::UNIX && socket_type(fd)? == SocketType::STREAM)
        })?;
        Ok(Self(Waitable::new(reactor, fd, closer.unwrap_or_default())?))
    }

    /// Tells, after the drop of the connection, whether it and all that its peer has sent is closed.
    #[must_use]
    pub fn closing(&self) -> Closing {
        Closing::of(&self.0.closer)
    }

    /// Sends `bytes` if there is room for all of them now; a part of them is never followed by the rest.
    ///
    /// # Errors
    /// `WouldBlock` without room, `WriteZero` when only a part was sent; else the error of the operating system.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.send_some(bytes, &[])?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Fills `into`; received descriptors are appended to `descriptors`. Returns the number of bytes: fewer only when
    /// the peer has closed its side.
    ///
    /// # Errors
    /// `InvalidData` when more descriptors arrive than [`DESCRIPTORS_MAX`], or too many of the peer that have no use
    /// here are not closed yet; else the error of the operating system.
    pub async fn receive(&self, into: &mut [u8], descriptors: &mut Vec<PeerFile>) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let part = &mut into[done..];
            let got = self.0.call(false, || self.0.receive_some(part, descriptors)).await?;
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
    /// The error of the operating system.
    pub async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (mut done, mut descriptors) = (0, descriptors);
        while done < bytes.len() {
            done += self.0.call(true, || self.0.send_some(&bytes[done..], descriptors)).await?;
            descriptors = &[];
        }
        Ok(())
    }

    /// Whether the peer has closed its side: nothing comes after what has arrived. `false` for the sockets of a driver,
    /// which do not tell.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let Socket::Descriptor(fd) = &self.0.socket else { return false };
        let mut looked = [PollFd::new(fd, PollFlags::RDHUP)];
        let has_events = poll(&mut looked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0);
        has_events && looked[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Ends the wait for the peer.
    pub fn cancel(&self) {
        // Without a pause, a peer that sends all the time would starve other tasks.
        self.0.shutdown();
        self.0.cancel();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.close(Closer::close_stream);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// Fills `into` like [`Stream::receive`], for a thread without reactor, which may wait for `patience` at a time.
///
/// # Errors
/// `UnexpectedEof` when the peer has closed its side, `TimedOut`, `InvalidData` when more descriptors arrive than
/// [`DESCRIPTORS_MAX`]; else the error of the operating system.
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
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// Sends like [`Stream::send`], for a thread without reactor, which may wait for `patience` at a time.
///
/// # Errors
/// `TimedOut`; else the error of the operating system.
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

/// `None`: more descriptors arrived than there was room for, or than this process may have.
pub(crate) fn receive_some(
    fd: &OwnedFd,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(fd, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    Ok((!got.flags.contains(ReturnFlags::CTRUNC)).then_some(got.bytes))
}

fn send_some(fd: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    sendmsg(fd, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// An eventfd of a peer, which Lunar signals.
pub struct Signal {
    reactor: Reactor,
    file: Handle,
    completion: RefCell<Completion>,
    is_under_way: Cell<bool>,
}

impl Signal {
    /// Takes a descriptor over.
    ///
    /// # Errors
    /// `InvalidInput` when it is no eventfd: a write to another file may wait. Else the error of the operating system.
    pub fn new(reactor: &Reactor, file: impl Into<PeerFile>) -> io::Result<Self> {
        let fd = file.into().into_eventfd()?;
        // A full eventfd would block the writer. The peer can undo this setting: then a thread of the kernel waits,
        // and not this one.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        let file = reactor.driver().adopt(fd)?;
        Ok(Self { reactor: reactor.clone(), file, completion: RefCell::default(), is_under_way: Cell::new(false) })
    }

    /// Signals it; `false`: not yet, because the last signal is in progress.
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
        // A failed write must not be repeated forever.
        self.reactor.driver().cancel(&self.file);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}

/// An eventfd that a peer signals, and Lunar waits for.
pub struct Kick {
    reactor: Reactor,
    fd: OwnedFd,
    handle: Handle,
    is_cancelled: Cell<bool>,
}

impl Kick {
    /// Takes a descriptor over.
    ///
    /// # Errors
    /// `InvalidInput` when it is no eventfd: a read of another file may wait. Else the error of the operating system.
    pub fn new(reactor: &Reactor, file: impl Into<PeerFile>) -> io::Result<Self> {
        let fd = file.into().into_eventfd()?;
        let handle = reactor.driver().adopt(fd.try_clone()?)?;
        Ok(Self { reactor: reactor.clone(), fd, handle, is_cancelled: Cell::new(false) })
    }

    /// Waits until the peer has signalled, and clears the signal.
    ///
    /// # Errors
    /// The error of the operating system; `Fault::Aborted` after [`Kick::cancel`].
    pub async fn signalled(&self) -> io::Result<()> {
        // A driver cancels the operations that it has, not those that come later.
        while !self.is_cancelled.get() {
            let mut completion = Completion::new();
            self.reactor.submit(Op::Ready { file: self.handle.clone(), to_write: false }, completion.token());
            completion.wait().await.result.map_err(os_error)?;
            match self.clear() {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
        Err(os_error(Fault::Aborted))
    }

    /// Sets the counter to zero. The peer may do the same at any moment, and may have made the descriptor blocking: so
    /// each call says that it does not wait.
    fn clear(&self) -> Result<(), Errno> {
        let mut counter = [0; size_of::<u64>()];
        let into = &mut [IoSliceMut::new(&mut counter)];
        // The offset stands for the position of the file, which an eventfd does not have.
        preadv2(&self.fd, into, u64::MAX, ReadWriteFlags::NOWAIT).map(|_| ())
    }

    /// Ends the wait, and each later one at once.
    pub fn cancel(&self) {
        self.is_cancelled.set(true);
        self.reactor.driver().cancel(&self.handle);
    }
}

impl fmt::Debug for Kick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kick")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Config};
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::task::Poll;

    #[test]
    fn only_eventfds_are_rung() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let pipe = io::pipe().expect("a pipe").1;
        assert_eq!(
            Signal::new(&reactor, OwnedFd::from(pipe)).expect_err("no eventfd").kind(),
            io::ErrorKind::InvalidInput
        );
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        assert!(Signal::new(&reactor, eventfd).expect("one").ring());
    }

    #[test]
    fn a_kick_is_cleared_without_a_wait() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let pipe = io::pipe().expect("a pipe").0;
        assert_eq!(
            Kick::new(&reactor, OwnedFd::from(pipe)).expect_err("no eventfd").kind(),
            io::ErrorKind::InvalidInput
        );
        // A blocking one, as a peer can make it at any time.
        let eventfd = rustix::event::eventfd(2, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        let kick = Kick::new(&reactor, eventfd).expect("one");
        assert_eq!([kick.clear(), kick.clear()], [Ok(()), Err(Errno::AGAIN)]);
    }

    #[test]
    fn a_kick_that_was_cancelled_between_two_waits_does_not_wait_again() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        let kick = Kick::new(&reactor, eventfd).expect("one");
        kick.cancel();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Err(why)) = pin!(kick.signalled()).poll(&mut cx) else { panic!("it waits") };
        assert_eq!(why.raw_os_error(), os_error(Fault::Aborted).raw_os_error());
    }

    #[test]
    fn a_process_that_accepts_no_connection_makes_nobody_wait() {
        let folder = std::env::temp_dir().join(format!("lunar-unix-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let path = folder.join("socket");
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("one");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
        rustix::net::listen(&listener, 0).expect("it listens");
        let _waiting = connect_now(&path).expect("the backlog has room for one");
        assert_eq!(connect_now(&path).expect_err("the backlog is full"), Errno::AGAIN);
        let refused = Listener::bind(&reactor, &path, 0o600).expect_err("a process listens there");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn only_stream_sockets_are_adopted() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let (datagrams, _) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        assert!(Stream::adopt(&reactor, OwnedFd::from(datagrams)).is_err());
        assert!(Stream::adopt(&reactor, OwnedFd::from(io::pipe().expect("a pipe").0)).is_err());
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let stream = Stream::adopt(&reactor, OwnedFd::from(ours)).expect("a stream");
        assert!(!stream.is_closed());
        stream.send_now(b"now").expect("there is room");
        let mut read = [0; 3];
        io::Read::read_exact(&mut &theirs, &mut read).expect("it was sent");
        assert_eq!(&read, b"now");
        io::Write::write_all(&mut &theirs, b"last").expect("there is room");
        drop(theirs);
        assert!(stream.is_closed(), "although bytes have arrived");
    }

    #[test]
    fn other_files_are_kept_and_a_stale_socket_is_replaced() {
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
        let listener = Listener::bind(&reactor, &socket, 0o600).expect("no process listens there");
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
