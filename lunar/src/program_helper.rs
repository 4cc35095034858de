//! The program helper: a process that starts programs for the daemon, which cannot do it from its sandbox: the
//! processes of images of Ceph (`lunar-rbd`), and `zfs`.
//!
//! The daemon starts it before it enters its sandbox, as a program of its own (`lunar program-helper`). Requests and
//! replies are messages on a pair of sockets. The daemon may have been taken over, so the helper starts these programs
//! only, with arguments that it makes itself: `lunar-rbd` with files that were configured when the daemon was started
//! or are in the folder of Ceph, and `zfs` to remove only what it has made. The helper ends with the daemon, and the
//! processes end with the helper.
//!
//! Requests are in [`request`]. A reply is an error number, 0 if there is none, and the number of the process that was
//! started, or 1 for a call that has succeeded and 0 for one that has failed (4 bytes each, little endian); the
//! standard error of a process goes with it.

mod request;

use crate::file_helper::rules::allows_name;
use crate::file_helper::{pair, socket, wait};
use crate::jail;
use anyhow::{Context, Result};
use lunar_block::zvol::program::{self as zfs, Call};
use lunar_block::zvol::schema::Dataset;
use lunar_handler_store::rbd::process::{ImageAccess, Started, Starter};
use lunar_reactor::log;
use request::{REQUEST_BYTES_MAX, Request};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The command of the program that is the helper.
pub const COMMAND: &str = "program-helper";
/// The folder of the configuration and the keys of Ceph.
const CEPH: &str = "/etc/ceph";
/// How long a start may take: the program is read from a disk.
const PATIENCE: Duration = Duration::from_secs(20);
const REPLY_BYTES: usize = 8;
/// The processes at the same time at most: far more images than a machine serves.
const PROCESSES_MAX: usize = 4096;
/// The calls of `zfs` at the same time at most: one for each copy, one for the space of zvols, and some that do not end
/// because their pool is suspended.
const CALLS_MAX: usize = 64;
/// The datasets that were made, and may be removed, at most: the ones before stay.
const MADE_MAX: usize = 4096;

/// Whether a process may read this file, which outside of the folder of Ceph was configured when the daemon started.
fn allows(file: &Path, configured: &[PathBuf]) -> bool {
    allows_name(file) && (file.starts_with(CEPH) || configured.iter().any(|known| known == file))
}

/// The helper, with the socket to its daemon as standard input, until the daemon ends.
///
/// # Errors
/// When the process cannot be confined, or the socket fails.
pub fn run(files: Vec<PathBuf>) -> Result<()> {
    let daemon = io::stdin().as_fd().try_clone_to_owned().context("the program helper is started by the daemon")?;
    jail::forbid_core_dumps()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_no_new_privs(true)?;
    for signal in [SIGTERM, SIGINT] {
        // systemd signals all processes of a service at its end, and the daemon has commands for them left then.
        signal_hook::flag::register(signal, Arc::default())?;
    }
    serve(&daemon, &mut Programs { files, ..Programs::default() })
}

/// Answers requests until the other end closes the socket.
fn serve(daemon: &OwnedFd, programs: &mut Programs) -> Result<()> {
    // One byte more shows that a request is too long.
    let mut bytes = vec![0; REQUEST_BYTES_MAX + 1];
    loop {
        let (got, with) = match socket::receive(daemon, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
            other => other?,
        };
        let request = bytes.get(..got).and_then(Request::parse).context("a request of the daemon is malformed")?;
        let done = match request {
            Request::Start(access) => programs.start(&access, with),
            Request::Kill(process) => programs.kill(process).map(|()| (0, None)),
            Request::Zfs(call) => programs.call(call, with),
            Request::Result(process) => programs.result(process).map(|is_good| (i32::from(is_good), None)),
        };
        let errno = done.as_ref().err().map_or(0, |why| why.raw_os_error());
        let (process, errors) = done.unwrap_or_default();
        let reply = [errno.to_le_bytes(), process.to_le_bytes()].concat();
        match socket::send(daemon, &reply, errors.as_ref().map(AsFd::as_fd), SendFlags::empty()) {
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            other => other?,
        }
    }
}

/// The processes that were started.
#[derive(Default)]
struct Programs {
    /// The files outside of the folder of Ceph that they may read.
    files: Vec<PathBuf>,
    children: Vec<Child>,
    /// Calls of `zfs` whose result was not asked for, and whether they were killed.
    calls: Vec<(Child, Call, bool)>,
    /// The datasets that the calls have made.
    made: BTreeSet<Dataset>,
}

impl Programs {
    fn start(&mut self, access: &ImageAccess, connection: Option<OwnedFd>) -> Answer {
        // The daemon has opened a handle of each process before it sends another request.
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        // The configuration of Ceph may make the name of the user a part of the path of a log file.
        let is_path = access.user.as_ref().is_some_and(|user| user.as_bytes().contains(&b'/'));
        if is_path || !access.files().all(|file| allows(file, &self.files)) {
            return Err(Errno::ACCESS);
        }
        if self.children.len() >= PROCESSES_MAX {
            return Err(Errno::AGAIN);
        }
        let spawned = access.spawn(connection.ok_or(Errno::BADF)?);
        let mut child = spawned.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::NOENT))?;
        let errors = child.stderr.take().map(OwnedFd::from);
        let process = Pid::from_child(&child).as_raw_nonzero().get();
        self.children.push(child);
        Ok((process, errors))
    }

    fn kill(&mut self, process: i32) -> Result<(), Errno> {
        let is_it = |child: &Child| u32::try_from(process) == Ok(child.id());
        let call = self.calls.iter_mut().find(|(child, ..)| is_it(child)).map(|(child, _, is_killed)| {
            *is_killed = true;
            child
        });
        let child = call.or_else(|| self.children.iter_mut().find(|child| is_it(child)));
        // Of a process that has ended, the library sends no signal.
        child.ok_or(Errno::SRCH)?.kill().map_err(|_| Errno::SRCH)
    }

    /// Starts a call of `zfs`, with its standard output in `output`.
    fn call(&mut self, call: Call, output: Option<OwnedFd>) -> Answer {
        self.calls.retain_mut(|(child, _, is_killed)| !*is_killed || matches!(child.try_wait(), Ok(None)));
        if let Call::Destroy(dataset) | Call::DestroyLater(dataset) = &call
            && !self.made.contains(dataset)
        {
            return Err(Errno::ACCESS);
        }
        if self.calls.len() >= CALLS_MAX {
            return Err(Errno::AGAIN);
        }
        let spawned = call.spawn(output.ok_or(Errno::BADF)?);
        let mut child = spawned.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::NOENT))?;
        let errors = child.stderr.take().map(OwnedFd::from);
        let process = Pid::from_child(&child).as_raw_nonzero().get();
        self.calls.push((child, call, false));
        Ok((process, errors))
    }

    /// Whether a call that has ended has succeeded.
    fn result(&mut self, process: i32) -> Result<bool, Errno> {
        let at = self.calls.iter().position(|(child, ..)| u32::try_from(process) == Ok(child.id()));
        let (mut child, call, is_killed) = self.calls.swap_remove(at.ok_or(Errno::SRCH)?);
        let Ok(Some(status)) = child.try_wait() else {
            self.calls.push((child, call, is_killed));
            return Err(Errno::AGAIN);
        };
        if status.success() {
            self.record(call);
        }
        Ok(status.success())
    }

    /// Records the effect of a call that has succeeded.
    fn record(&mut self, call: Call) {
        match call {
            Call::Create(made, _) | Call::Snapshot(made) | Call::Clone(_, made) if self.made.len() < MADE_MAX => {
                self.made.insert(made);
            }
            Call::Destroy(removed) => _ = self.made.remove(&removed),
            _ => {}
        }
    }
}

/// The socket to the helper.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    /// A reply is missing, and the next one would be taken for it. The socket stays open, because the helper ends with
    /// it, and the processes with the helper.
    is_lost: bool,
}

/// The connection of the daemon to its helper. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Connection {
    line: Arc<Mutex<Line>>,
    /// Not waited for: the helper ends with the daemon.
    _child: Arc<Child>,
}

impl Connection {
    /// Starts the helper. To be called before the process enters its sandbox.
    ///
    /// # Errors
    /// When the program cannot be started again.
    pub fn start(files: &BTreeSet<PathBuf>) -> io::Result<Self> {
        let (own, its) = pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg("--").args(files).env_clear().current_dir("/");
        command.stdin(Stdio::from(its)).stdout(Stdio::null());
        // Signals of a terminal are for the daemon.
        let line = Line { socket: own, is_lost: false };
        Ok(Self { line: Arc::new(Mutex::new(line)), _child: Arc::new(command.process_group(0).spawn()?) })
    }
}

/// The outcome of a request: the number of the process and its standard error, or the error of the helper.
type Answer = Result<(i32, Option<OwnedFd>), Errno>;

/// Sends a request and waits for its reply; an error of the connection is an error of its own.
fn ask(socket: &OwnedFd, request: &Request, with: Option<&OwnedFd>) -> Result<Answer, Errno> {
    let Some(bytes) = request.emit() else { return Ok(Err(Errno::NAMETOOLONG)) };
    socket::send(socket, &bytes, with.map(AsFd::as_fd), SendFlags::empty())?;
    wait(socket, Instant::now() + PATIENCE)?;
    let mut reply = [0; REPLY_BYTES];
    let (got, file) = socket::receive(socket, &mut reply, RecvFlags::DONTWAIT)?;
    let (errno, process) = reply.split_at(REPLY_BYTES / 2);
    let number = |bytes: &[u8]| bytes.try_into().map(i32::from_le_bytes).map_err(|_| Errno::PROTO);
    match number(errno)? {
        _ if got != REPLY_BYTES => Err(Errno::PIPE),
        0 => Ok(Ok((number(process)?, file))),
        errno => Ok(Err(Errno::from_raw_os_error(errno))),
    }
}

impl Connection {
    /// Asks the helper; `then` takes the answer before there is another request. After an error of the connection there
    /// is none any more.
    fn ask<T>(
        &self,
        request: &Request,
        with: Option<&OwnedFd>,
        then: impl FnOnce((i32, Option<OwnedFd>)) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut line = self.line.lock().map_err(|_| Errno::PIPE)?;
        if line.is_lost {
            return Err(Errno::PIPE);
        }
        let answer = ask(&line.socket, request, with).inspect_err(|why| {
            log!(error, "the program helper does not answer ({why}): images of Ceph and zvols need a restart of Lunar");
            line.is_lost = true;
        });
        then(answer??)
    }
}

impl Starter for Connection {
    fn start(&self, access: &ImageAccess, connection: OwnedFd) -> io::Result<Started> {
        let failed = |why: Errno| match why {
            Errno::ACCESS => io::Error::other(
                "lunar-rbd may not be started, or not with `ceph-config`, `keyring` or `passphrase-file`: files \
                 outside of /etc/ceph that are new need a restart: systemctl restart lunar",
            ),
            Errno::NOENT => io::Error::other("lunar-rbd is missing: install it beside `lunar`"),
            why => io::Error::other(format!("lunar-rbd cannot be started by the program helper: {why}")),
        };
        let started = self.ask(&Request::Start(access.clone()), Some(&connection), |(process, errors)| {
            // While no other request is sent, the helper keeps the number of a process that has ended.
            let id = Pid::from_raw(process).ok_or(Errno::PROTO)?;
            let handle = pidfd_open(id, PidfdFlags::empty())?;
            Ok(Started { id, handle, errors: errors.ok_or(Errno::PROTO)?, child: None })
        });
        started.map_err(failed)
    }

    fn kill(&self, process: Pid) {
        // It may have ended.
        let _ = self.ask(&Request::Kill(process.as_raw_nonzero().get()), None, |_| Ok(()));
    }
}

impl zfs::Starter for Connection {
    fn start(&self, call: &Call, output: OwnedFd) -> io::Result<zfs::Started> {
        let failed = |why: Errno| match why {
            Errno::ACCESS => {
                io::Error::other("Lunar removes only zvols and snapshots that it has made since its start")
            }
            Errno::NOENT => io::Error::other("the program `zfs` is missing: install it, and restart Lunar"),
            Errno::AGAIN => {
                io::Error::other("too many calls of zfs have not ended: look at the pools (`zpool status`)")
            }
            why => io::Error::other(format!("zfs cannot be started by the program helper: {why}")),
        };
        let started = self.ask(&Request::Zfs(call.clone()), Some(&output), |(process, errors)| {
            // The helper keeps the number of a call until its result is asked for.
            let id = Pid::from_raw(process).ok_or(Errno::PROTO)?;
            let handle = pidfd_open(id, PidfdFlags::empty())?;
            Ok(zfs::Started { id, handle, errors: errors.ok_or(Errno::PROTO)? })
        });
        started.map_err(failed)
    }

    fn has_succeeded(&self, process: Pid) -> io::Result<bool> {
        let request = Request::Result(process.as_raw_nonzero().get());
        Ok(self.ask(&request, None, |(is_good, _)| Ok(is_good == 1))?)
    }

    fn kill(&self, process: Pid) {
        // It may have ended.
        let _ = self.ask(&Request::Kill(process.as_raw_nonzero().get()), None, |_| Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::value::Textual;

    #[test]
    fn processes_read_files_of_ceph_and_those_that_were_configured() {
        let configured = [PathBuf::from("/srv/keys/lunar")];
        for (file, is_allowed) in [
            ("/etc/ceph/ceph.conf", true),
            ("/srv/keys/lunar", true),
            ("/srv/keys/other", false),
            ("/etc/ceph/../shadow", false),
            ("/var/lib/lunar/made.conf", false),
            ("ceph.conf", false),
        ] {
            assert_eq!(allows(Path::new(file), &configured), is_allowed, "{file}");
        }
    }

    #[test]
    fn what_a_call_has_made_may_be_removed_once() {
        let dataset = |name: &str| Dataset::parse(name).expect("a name");
        let mut programs = Programs::default();
        programs.record(Call::Create(dataset("tank/a"), 4096));
        programs.record(Call::Clone(dataset("tank/a@b"), dataset("tank/c")));
        programs.record(Call::ShowSnapshots(dataset("tank/d")));
        assert!(programs.made.iter().map(Dataset::name).eq(["tank/a", "tank/c"]));
        programs.record(Call::Destroy(dataset("tank/a")));
        assert!(programs.made.iter().map(Dataset::name).eq(["tank/c"]));
    }

    #[test]
    fn a_start_that_is_not_allowed_or_cannot_be_is_an_error_of_its_request() {
        let (daemon, helper) = pair().expect("sockets");
        let thread = std::thread::spawn(move || serve(&helper, &mut Programs::default()));
        let access = ImageAccess { image: "p/i".into(), ..ImageAccess::default() };
        let made = ImageAccess { config: Some("/tmp/made.conf".into()), ..access.clone() };
        let (_own, its) = pair().expect("sockets");
        let refused =
            |request, with: Option<&OwnedFd>| ask(&daemon, &request, with).expect("an answer").expect_err("refused");
        assert_eq!(refused(Request::Start(made), Some(&its)), Errno::ACCESS);
        let path = ImageAccess { user: Some("../../made".into()), ..access.clone() };
        assert_eq!(refused(Request::Start(path), Some(&its)), Errno::ACCESS);
        assert_eq!(refused(Request::Start(access.clone()), None), Errno::BADF);
        // Beside the program of a test there is no lunar-rbd.
        assert_eq!(refused(Request::Start(access), Some(&its)), Errno::NOENT);
        // A process that the helper has not started is not killed.
        assert_eq!(refused(Request::Kill(1), None), Errno::SRCH);
        assert_eq!(refused(Request::Result(1), None), Errno::SRCH);
        // Nor is a dataset removed that it has not made.
        for name in ["tank/a", "tank/a@b"] {
            let dataset = Dataset::parse(name).expect("a name");
            let (_read, write) = pair().expect("sockets");
            assert_eq!(refused(Request::Zfs(Call::Destroy(dataset.clone())), Some(&write)), Errno::ACCESS);
            if dataset.name().contains('@') {
                assert_eq!(refused(Request::Zfs(Call::DestroyLater(dataset)), Some(&write)), Errno::ACCESS);
            }
        }
        drop(daemon);
        thread.join().expect("no panic").expect("the end of the daemon is no error");
    }
}
