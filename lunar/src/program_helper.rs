//! The program helper: a process that starts the processes of images of Ceph (`lunar-rbd`) for the daemon, which cannot
//! start programs from its sandbox.
//!
//! The daemon starts it before it enters its sandbox, as a program of its own (`lunar program-helper`). Requests and
//! replies are messages on a pair of sockets. The daemon may have been taken over, so the helper starts one program
//! only, with arguments that it makes itself, and with files that were configured when the daemon was started or are in
//! the folder of Ceph. The helper ends with the daemon, and the processes end with the helper.
//!
//! A request to start is its code, flags (1 byte: 1 for a read-only image, 2 to stand by), and image, user,
//! configuration file, keyring, format of the encryption, passphrase file, and the size of an image that is made, the
//! image that a clone is made of, and the identity of an image that a snapshot or a clone is made of, with zero bytes
//! between them; an empty one is not given. The connection of the process goes with it. A request to kill is its code
//! and the number of the process (4 bytes, little endian). A reply is an error number, 0 if there is none, and the
//! number of the process (4 bytes each, little endian); its standard error goes with it.

use crate::file_helper::rules::allows_name;
use crate::file_helper::{pair, socket, wait};
use crate::jail;
use anyhow::{Context, Result};
use lunar_handler_store::rbd::process::{ImageAccess, Order, Started, Starter};
use lunar_handler_store::rbd::schema::ImageEncryption;
use lunar_reactor::log;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
/// The bytes of a request at most: three paths, two images and a user.
const REQUEST_BYTES_MAX: usize = 14_000;
const REPLY_BYTES: usize = 8;
/// The processes at the same time at most: far more images than a machine serves.
const PROCESSES_MAX: usize = 4096;
const START: u8 = 1;
const KILL: u8 = 2;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Request {
    Start(ImageAccess),
    Kill(i32),
}

impl Request {
    /// Its bytes; `None` if a part has a zero byte, or is too long.
    fn emit(&self) -> Option<Vec<u8>> {
        let access = match self {
            Self::Kill(process) => return Some([&[KILL][..], &process.to_le_bytes()].concat()),
            Self::Start(access) => access,
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.as_os_str().to_owned());
        let (format, passphrase) =
            access.encryption.as_ref().map(|(format, file)| (format.word().into(), file)).unzip();
        let passphrase = path(&passphrase.cloned());
        let [config, keyring] = [&access.config, &access.keyring].map(path);
        let (size, source, identity) = match access.order.clone() {
            None => (None, None, None),
            Some(Order::Image(size)) => (Some(size.to_string().into()), None, None),
            Some(Order::Snapshot(identity)) => (None, None, Some(identity)),
            Some(Order::Clone(source, identity)) => (None, Some(source), Some(identity)),
        };
        let (image, user) = (Some(access.image.clone()), access.user.clone());
        let parts = [image, user, config, keyring, format, passphrase, size, source, identity];
        let parts = parts.map(|part| part.unwrap_or_default().into_vec());
        let bytes =
            [vec![START, (u8::from(access.stand_by) << 1) | u8::from(access.read_only)], parts.join(&0)].concat();
        (bytes.len() <= REQUEST_BYTES_MAX && !parts.iter().any(|part| part.contains(&0))).then_some(bytes)
    }

    /// Reads a request; `None` if it is malformed.
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&KILL, process) => Some(Self::Kill(i32::from_le_bytes(process.try_into().ok()?))),
            (&START, [flags @ 0..=3, rest @ ..]) => {
                let parts: Vec<&[u8]> = rest.split(|byte| *byte == 0).collect();
                let [image, user, config, keyring, format, passphrase, size, source, identity] = parts[..] else {
                    return None;
                };
                let given = |part: &[u8]| (!part.is_empty()).then(|| OsStr::from_bytes(part).to_owned());
                let encryption = match (given(format), given(passphrase)) {
                    (None, None) => None,
                    (Some(format), Some(file)) => Some((ImageEncryption::of_word(format.to_str()?)?, file.into())),
                    _ => return None,
                };
                let order = match (given(size), given(source), given(identity)) {
                    (None, None, None) => None,
                    (Some(size), None, None) => Some(Order::Image(size.to_str()?.parse().ok()?)),
                    (None, None, Some(identity)) => Some(Order::Snapshot(identity)),
                    (None, Some(source), Some(identity)) => Some(Order::Clone(source, identity)),
                    _ => return None,
                };
                Some(Self::Start(ImageAccess {
                    image: given(image)?,
                    user: given(user),
                    config: given(config).map(PathBuf::from),
                    keyring: given(keyring).map(PathBuf::from),
                    encryption,
                    stand_by: flags & 2 != 0,
                    read_only: flags & 1 != 0,
                    order,
                }))
            }
            _ => None,
        }
    }
}

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
    serve(&daemon, &mut Programs { files, children: Vec::new() })
}

/// Answers requests until the other end closes the socket.
fn serve(daemon: &OwnedFd, programs: &mut Programs) -> Result<()> {
    // One byte more shows that a request is too long.
    let mut bytes = vec![0; REQUEST_BYTES_MAX + 1];
    loop {
        let (got, connection) = match socket::receive(daemon, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
            other => other?,
        };
        let request = bytes.get(..got).and_then(Request::parse).context("a request of the daemon is malformed")?;
        let done = match request {
            Request::Start(access) => programs.start(&access, connection),
            Request::Kill(process) => programs.kill(process).map(|()| (0, None)),
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
struct Programs {
    /// The files outside of the folder of Ceph that they may read.
    files: Vec<PathBuf>,
    children: Vec<Child>,
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
        let child = self.children.iter_mut().find(|child| u32::try_from(process) == Ok(child.id()));
        // Of a process that has ended, the library sends no signal.
        child.ok_or(Errno::SRCH)?.kill().map_err(|_| Errno::SRCH)
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

/// The connection of the daemon to its helper.
#[derive(Debug)]
pub struct Connection {
    line: Mutex<Line>,
    /// Not waited for: the helper ends with the daemon.
    _child: Child,
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
        Ok(Self { line: Mutex::new(line), _child: command.process_group(0).spawn()? })
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
            log!(error, "the program helper does not answer ({why}): images of Ceph need a restart of Lunar");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let access = ImageAccess { image: "rbd/disk".into(), ..ImageAccess::default() };
        let whole = ImageAccess {
            image: "rbd/disk@a".into(),
            user: Some("lunar".into()),
            config: Some("/etc/ceph/a.conf".into()),
            keyring: Some("/k".into()),
            encryption: Some((ImageEncryption::Luks2, "/p".into())),
            stand_by: true,
            read_only: true,
            order: None,
        };
        let orders =
            [Order::Image(1 << 40), Order::Snapshot("7/2/a".into()), Order::Clone("p/o@s".into(), "7/2/a".into())];
        let made = orders.map(|order| Request::Start(ImageAccess { order: Some(order), ..whole.clone() }));
        let others = [Request::Start(access.clone()), Request::Start(whole), Request::Kill(7)];
        for request in made.into_iter().chain(others) {
            assert_eq!(Request::parse(&request.emit().expect("it is short")), Some(request));
        }
        let zero = ImageAccess { user: Some(OsString::from_vec(b"a\0b".to_vec())), ..access.clone() };
        let long = ImageAccess { image: "a".repeat(REQUEST_BYTES_MAX).into(), ..access };
        assert_eq!((Request::Start(zero).emit(), Request::Start(long).emit()), (None, None));
        let malformed: [&[u8]; 12] = [
            b"",
            b"\x03",
            b"\x01",
            b"\x01\x04a\0\0\0\0\0\0\0\0",
            b"\x01\x00a\0\0\0\0\0\0\0",
            b"\x01\x00\0\0\0\0\0\0\0\0",
            b"\x01\x00a\0\0\0\0luks3\0/p\0\0\0",
            b"\x01\x00a\0\0\0\0luks\0\0\0\0",
            b"\x01\x00a\0\0\0\0\0\0x\0\0",
            b"\x01\x00a\0\0\0\0\0\x001\0\x00i",
            b"\x01\x00a\0\0\0\0\0\0\0p/o\0",
            b"\x02\0\0\0",
        ];
        for bytes in malformed {
            assert_eq!(Request::parse(bytes), None, "{bytes:?}");
        }
    }

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
    fn a_start_that_is_not_allowed_or_cannot_be_is_an_error_of_its_request() {
        let (daemon, helper) = pair().expect("sockets");
        let thread =
            std::thread::spawn(move || serve(&helper, &mut Programs { files: Vec::new(), children: Vec::new() }));
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
        drop(daemon);
        thread.join().expect("no panic").expect("the end of the daemon is no error");
    }
}
