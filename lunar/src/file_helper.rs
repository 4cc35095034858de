//! The file helper: a process that opens files for the daemon, whose sandbox allows only the files that were configured
//! at its start.
//!
//! The daemon starts it before it enters its sandbox, as a program of its own (`lunar file-helper`) with an address
//! space of its own. Requests and replies are messages on a pair of sockets; an open file is passed with SCM_RIGHTS.
//! The helper ends when the socket closes, so with the daemon.
//!
//! * [`message`]: the format of requests and replies, without I/O
//! * [`rules`]: which files are opened for which purpose
//! * [`serve`]: the helper process
//! * `socket`: messages with open files on a socket

pub mod message;
pub mod rules;
pub mod serve;
pub(crate) mod socket;

use lunar_control::files::{Access, FileHelper};
use lunar_reactor::log;
use message::{Operation, REPLY_BYTES, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The command of the program that is the helper.
pub const COMMAND: &str = "file-helper";
/// How long an answer may take: as long as a disk that spins up.
const PATIENCE: Duration = Duration::from_secs(20);

/// The connection of the daemon to its helper.
#[derive(Debug)]
pub struct Connection {
    socket: Mutex<Numbered>,
    /// How long an answer may take.
    patience: Duration,
    /// The helper has ended, or does not answer in its format.
    is_lost: AtomicBool,
    /// Not waited for: the helper ends with the daemon.
    _child: Option<Child>,
}

/// The socket, and the numbers of requests.
#[derive(Debug)]
struct Numbered {
    socket: OwnedFd,
    /// The number of the last request.
    last: u64,
    /// The number of the request that had no reply in time, until its reply comes. The helper answers one request after
    /// the other, so the next one would wait, too.
    late: Option<u64>,
}

/// Every supported kernel has openat2(2), so a filter of system calls refuses it.
fn openat2_error(why: io::Error) -> io::Error {
    let advice =
        "if the systemd unit has RestrictSUIDSGID=yes, remove this line: `lunar install` writes a unit without it";
    io::Error::other(format!("openat2 is refused ({why}): {advice}"))
}

impl Connection {
    /// Starts the helper. `secrets` are the folders below `/etc` with secrets. To be called before the process enters
    /// its sandbox.
    ///
    /// # Errors
    /// When the program cannot be started again, or could not open files.
    pub fn start(secrets: &BTreeSet<PathBuf>) -> io::Result<Self> {
        let root = openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        root.map_err(|why| openat2_error(why.into()))?;
        let (own, its) = pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(COMMAND)
            .arg("--")
            .args(secrets)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(its))
            .stdout(Stdio::null());
        // Signals of a terminal are for the daemon: SIGHUP is a reload.
        let child = command.process_group(0).spawn()?;
        Ok(Self { _child: Some(child), ..Self::over(own) })
    }

    fn over(socket: OwnedFd) -> Self {
        let socket = Mutex::new(Numbered { socket, last: 0, late: None });
        Self { socket, patience: PATIENCE, is_lost: AtomicBool::new(false), _child: None }
    }

    /// Whether the helper has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for its reply.
    fn ask(&self, operation: Operation, path: &Path, held: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>, Errno> {
        let path = std::path::absolute(path).map_err(|_| Errno::INVAL)?;
        let mut locked = self.socket.lock().map_err(|_| Errno::IO)?;
        locked.last += 1;
        let request = Request { number: locked.last, operation, path: &path };
        let bytes = request.emit().ok_or(Errno::NAMETOOLONG)?;
        let (reply, file) = locked.exchange(&bytes, held, self.patience).map_err(|why| match why {
            // The helper does not answer now, but it has not ended.
            Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR => Errno::TIMEDOUT,
            why => {
                if !self.is_lost.swap(true, Ordering::Relaxed) {
                    log!(error, "the file helper has ended ({why}): new folders and devices need a restart of Lunar");
                }
                // The answer of the sandbox.
                Errno::ACCESS
            }
        })?;
        match reply.errno {
            0 => {
                log!("{}: {}, by the file helper, outside of the sandbox", path.display(), operation.past());
                Ok(file)
            }
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

/// A pair of sockets that keep the bounds of messages.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Numbered {
    /// Sends a request and receives its reply.
    fn exchange(
        &mut self,
        request: &[u8],
        held: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<(Reply, Option<OwnedFd>), Errno> {
        self.drop_late_replies()?;
        socket::send(&self.socket, request, held, SendFlags::DONTWAIT)?;
        let end = Instant::now() + patience;
        loop {
            if let Some((reply, file)) = self.receive()? {
                if reply.number == self.last {
                    return Ok((reply, file));
                }
            } else if let Err(why) = wait(&self.socket, end) {
                self.late = Some(self.last);
                return Err(why);
            }
        }
    }

    /// Drops the replies to earlier requests, which came too late, and closes their files: the daemon would have a
    /// device for itself that it does not serve.
    ///
    /// # Errors
    /// TIMEDOUT: the helper is still at work on an earlier request.
    fn drop_late_replies(&mut self) -> Result<(), Errno> {
        while let Some(late) = self.late {
            let (reply, file) = self.receive()?.ok_or(Errno::TIMEDOUT)?;
            let what = if file.is_some() { ": its file is closed" } else { "" };
            log!(warning, "the reply of the file helper to request {} came too late{what}", reply.number);
            self.late = Some(late).filter(|late| *late != reply.number);
        }
        Ok(())
    }

    /// Receives a reply; `None` if there is none yet.
    fn receive(&self) -> Result<Option<(Reply, Option<OwnedFd>)>, Errno> {
        let mut bytes = [0; REPLY_BYTES];
        match socket::receive(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => Ok(None),
            Err(why) => Err(why),
            Ok((0, _)) => Err(Errno::PIPE),
            Ok((got, file)) => {
                let reply = bytes.get(..got).and_then(Reply::parse).ok_or(Errno::PROTO)?;
                Ok(Some((reply, file)))
            }
        }
    }
}

/// Waits for a message until this time.
pub(crate) fn wait(socket: &OwnedFd, end: Instant) -> Result<(), Errno> {
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// The daemon has one connection; [`crate::jail`] looks at its state.
impl FileHelper for &'static Connection {
    fn open(&self, path: &Path, access: Access, held: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
        // A reply without a file is not in the format.
        self.ask(Operation::Open(access), path, held)?.ok_or(Errno::ACCESS)
    }

    fn remove(&self, path: &Path) -> Result<(), Errno> {
        self.ask(Operation::Remove, path, None).map(drop)
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), Errno> {
        self.ask(Operation::SyncFolder, folder, None).map(drop)
    }
}

#[cfg(test)]
#[path = "file_helper_tests.rs"]
mod tests;
