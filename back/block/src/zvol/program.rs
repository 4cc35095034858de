//! The program `zfs`.
//!
//! A daemon cannot start programs from its sandbox: then a [`Starter`] does it.

use super::schema::Dataset;
use lunar_control::value::Textual;
use lunar_reactor::linger::has_ended;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The places of the program.
const PROGRAMS: [&str; 3] = ["/usr/sbin/zfs", "/sbin/zfs", "/usr/local/sbin/zfs"];
/// Bytes of the output of the program at most: the properties of [`ASKED_BYTES_MAX`] bytes of names take less.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the names in one call of [`Call::Space`] at most, each with its end.
pub const ASKED_BYTES_MAX: usize = 12_000;

/// A call of the program. There are no others, so a starter checks each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Makes a zvol of so many bytes. It takes space when blocks are first written.
    Create(Dataset, u64),
    /// Makes this snapshot.
    Snapshot(Dataset),
    /// Lets the kernel make devices of the snapshots of this zvol.
    ShowSnapshots(Dataset),
    /// Makes a clone of the first one, a snapshot.
    Clone(Dataset, Dataset),
    /// Removes a zvol or a snapshot that has no snapshots or clones itself.
    Destroy(Dataset),
    /// Removes a snapshot when its last clone is gone.
    DestroyLater(Dataset),
    /// Asks for the number of a dataset.
    Identity(Dataset),
    /// Asks for the space of zvols and of their pools.
    Space(Vec<Dataset>),
}

/// The properties that [`Call::Space`] asks for.
const PROPERTIES: &str = "available,used,referenced,volsize,usedbyrefreservation,guid";

impl Call {
    /// The arguments of the program. No name begins with a dash: see [`Dataset`].
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Create(zvol, bytes) => words(&["create", "-s", "-V", &bytes.to_string(), zvol.name()]),
            Self::Snapshot(snapshot) => words(&["snapshot", snapshot.name()]),
            Self::ShowSnapshots(zvol) => words(&["set", "snapdev=visible", zvol.name()]),
            Self::Clone(snapshot, zvol) => words(&["clone", snapshot.name(), zvol.name()]),
            Self::Destroy(dataset) => words(&["destroy", dataset.name()]),
            Self::DestroyLater(snapshot) => words(&["destroy", "-d", snapshot.name()]),
            Self::Identity(dataset) => words(&["get", "-Hp", "-o", "value", "guid", dataset.name()]),
            Self::Space(zvols) => {
                let mut pools: Vec<&str> = zvols.iter().map(Dataset::pool).collect();
                pools.sort_unstable();
                pools.dedup();
                let asked = ["get", "-Hp", "-o", "name,property,value", PROPERTIES];
                words(&asked).into_iter().chain(words(&pools)).chain(zvols.iter().map(Dataset::text)).collect()
            }
        }
    }

    /// Starts the program, with its standard output in `output`.
    ///
    /// # Errors
    /// When the program is missing or cannot be started.
    pub fn spawn(&self, output: OwnedFd) -> io::Result<Child> {
        let program = program().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, Missing))?;
        let mut command = Command::new(program);
        command
            .args(self.arguments())
            .env_clear()
            // Messages as the documentation has them.
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped());
        // Signals of a terminal are for Lunar.
        command.process_group(0).spawn()
    }
}

/// The place of the program, if it is installed.
#[must_use]
pub fn program() -> Option<&'static Path> {
    PROGRAMS.iter().map(Path::new).find(|path| path.exists())
}

/// The program is not installed.
#[derive(Debug)]
struct Missing;

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program `zfs` is missing: install it (`apt install zfsutils-linux`) and restart Lunar")
    }
}

impl std::error::Error for Missing {}

/// A program that was started.
#[derive(Debug)]
pub struct Started {
    /// Its number.
    pub id: Pid,
    /// The process, which is readable when it has ended.
    pub handle: OwnedFd,
    /// Its standard error.
    pub errors: OwnedFd,
}

/// Starts the program for a process that cannot do it.
pub trait Starter: Send + Sync + fmt::Debug {
    /// Starts the program, with its standard output in `output`.
    ///
    /// # Errors
    /// When it cannot be started, or not for this call.
    fn start(&self, call: &Call, output: OwnedFd) -> io::Result<Started>;

    /// Whether the program has ended without an error. It has ended.
    ///
    /// # Errors
    /// When that is not known.
    fn has_succeeded(&self, process: Pid) -> io::Result<bool>;

    /// Ends the program at once.
    fn kill(&self, process: Pid);
}

static STARTER: OnceLock<Box<dyn Starter>> = OnceLock::new();

/// Sets the starter of this process; the first one stays.
pub fn set_starter(starter: Box<dyn Starter>) {
    // A process enters its sandbox once, so it has one.
    let _ = STARTER.set(starter);
}

/// The starter of a process without a sandbox.
#[derive(Debug, Default)]
struct Children(Mutex<Vec<Child>>);

impl Children {
    /// Calls `act` for the child of this number.
    fn with<T>(&self, process: Pid, act: impl FnOnce(&mut Child) -> io::Result<T>) -> io::Result<T> {
        let mut children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = children.iter_mut().find(|child| u32::try_from(process.as_raw_nonzero().get()) == Ok(child.id()));
        act(child.ok_or_else(|| io::Error::other("there is no such process"))?)
    }
}

impl Starter for Children {
    fn start(&self, call: &Call, output: OwnedFd) -> io::Result<Started> {
        let mut child = call.spawn(output)?;
        let id = Pid::from_child(&child);
        let errors = child.stderr.take().ok_or_else(|| io::Error::other("the program has no standard error"))?.into();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        Ok(Started { id, handle: pidfd_open(id, PidfdFlags::empty())?, errors })
    }

    fn has_succeeded(&self, process: Pid) -> io::Result<bool> {
        let status = self.with(process, Child::wait)?;
        let id = u32::try_from(process.as_raw_nonzero().get());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|child| Ok(child.id()) != id);
        Ok(status.success())
    }

    fn kill(&self, process: Pid) {
        // It may have ended.
        let _ = self.with(process, Child::kill);
    }
}

fn starter() -> &'static dyn Starter {
    static CHILDREN: OnceLock<Children> = OnceLock::new();
    match STARTER.get() {
        Some(starter) => &**starter,
        None => CHILDREN.get_or_init(Children::default),
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The program cannot be started, or is not known to have ended well.
    Start(io::Error),
    /// The program says this.
    Failed(String),
    /// The program has not ended in time, and was killed.
    Late(Duration),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(why) => why.fmt(f),
            Self::Failed(words) if words.contains("permission denied") => {
                write!(f, "zfs: {words}; `zfs allow` gives the user of Lunar the right")
            }
            Self::Failed(words) => write!(f, "zfs: {words}"),
            Self::Late(limit) => {
                write!(f, "zfs has not ended within {} s: look at the pool (`zpool status`)", limit.as_secs())
            }
        }
    }
}

impl std::error::Error for CallError {}

/// Calls the program, and returns its output. A call that has not ended after `limit` is killed.
pub(super) fn call(call: &Call, limit: Duration) -> Result<String, CallError> {
    let (told, said, has_succeeded) = call_anyway(call, limit)?;
    match has_succeeded {
        true => Ok(told),
        false => Err(CallError::Failed(said.split_whitespace().collect::<Vec<_>>().join(" "))),
    }
}

/// Calls the program; returns its output, its errors, and whether it has succeeded.
pub(super) fn call_anyway(call: &Call, limit: Duration) -> Result<(String, String, bool), CallError> {
    let starter = starter();
    let (output, its_output) = io::pipe().map_err(CallError::Start)?;
    let started = starter.start(call, its_output.into()).map_err(CallError::Start)?;
    let end = Instant::now() + limit;
    let told = Collected::new(File::from(OwnedFd::from(output)), end);
    let said = Collected::new(File::from(started.errors), end);
    // Both are read at the same time: a program that waits for the reader of one does not write the other.
    let (told, said) = collect(told, said);
    if !has_ended(&started.handle, end.saturating_duration_since(Instant::now())) {
        starter.kill(started.id);
        // A call that waits for a suspended pool does not end.
        return Err(CallError::Late(limit));
    }
    let has_succeeded = starter.has_succeeded(started.id).map_err(CallError::Start)?;
    Ok((told, said, has_succeeded))
}

/// Which of these can be read; none at the end of the time.
fn is_readable(sources: &[rustix::fd::BorrowedFd<'_>], end: Instant) -> Vec<bool> {
    let left = end.saturating_duration_since(Instant::now());
    let mut polled: Vec<_> = sources.iter().map(|source| PollFd::from_borrowed_fd(*source, PollFlags::IN)).collect();
    // A signal ends the wait early, as nothing that can be read.
    let _ = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
    polled.iter().map(|source| !source.revents().is_empty()).collect()
}

/// The text that comes out of a pipe.
struct Collected {
    pipe: Option<File>,
    bytes: Vec<u8>,
    end: Instant,
}

impl Collected {
    fn new(pipe: File, end: Instant) -> Self {
        Self { pipe: Some(pipe), bytes: Vec::new(), end }
    }

    /// Takes what can be read.
    fn take(&mut self) {
        let mut part = [0; 4096];
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.read(&mut part) {
            Ok(count) if count > 0 && self.bytes.len() + count <= OUTPUT_BYTES_MAX => {
                self.bytes.extend_from_slice(&part[..count]);
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            _ => self.pipe = None,
        }
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Reads both to their ends, or until the time is up.
fn collect(mut first: Collected, mut second: Collected) -> (String, String) {
    while (first.pipe.is_some() || second.pipe.is_some()) && Instant::now() < first.end {
        let open: Vec<_> = [&first, &second].into_iter().filter_map(|one| one.pipe.as_ref()).map(AsFd::as_fd).collect();
        let mut readable = is_readable(&open, first.end).into_iter();
        for one in [&mut first, &mut second] {
            if one.pipe.is_some() && readable.next() == Some(true) {
                one.take();
            }
        }
    }
    (first.text(), second.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn dataset(name: &str) -> Dataset {
        Dataset::parse(name).expect("a name")
    }

    #[test]
    fn calls_are_what_the_manual_says() {
        let (a, snapshot) = (dataset("tank/a"), dataset("tank/a@b"));
        let space = "get -Hp -o name,property,value available,used,referenced,volsize,usedbyrefreservation,guid";
        for (call, words) in [
            (Call::Create(a.clone(), 1 << 30), "create -s -V 1073741824 tank/a"),
            (Call::Snapshot(snapshot.clone()), "snapshot tank/a@b"),
            (Call::ShowSnapshots(a.clone()), "set snapdev=visible tank/a"),
            (Call::Clone(snapshot.clone(), dataset("tank/c")), "clone tank/a@b tank/c"),
            (Call::Destroy(a.clone()), "destroy tank/a"),
            (Call::Identity(snapshot.clone()), "get -Hp -o value guid tank/a@b"),
            (Call::DestroyLater(snapshot), "destroy -d tank/a@b"),
            (
                Call::Space(vec![a, dataset("dozer/x"), dataset("tank/c")]),
                &format!("{space} dozer tank tank/a dozer/x tank/c"),
            ),
        ] {
            assert_eq!(call.arguments().join(" "), words);
        }
    }

    /// The reader of a pipe, and its other end.
    fn pipe(end: Instant) -> (Collected, io::PipeWriter) {
        let (read, write) = io::pipe().expect("a pipe");
        (Collected::new(File::from(OwnedFd::from(read)), end), write)
    }

    #[test]
    fn both_outputs_are_read_at_the_same_time() {
        let end = Instant::now() + Duration::from_secs(20);
        let ((first, mut told), (second, mut said)) = (pipe(end), pipe(end));
        let writer = std::thread::spawn(move || {
            // More than a pipe takes.
            said.write_all(&[b'e'; 200_000]).expect("it is read");
            told.write_all(b"tank\tused\t1\n").expect("it is read");
        });
        let (told, said) = collect(first, second);
        assert_eq!((told.as_str(), said.len()), ("tank\tused\t1\n", 200_000));
        writer.join().expect("no panic");
    }

    #[test]
    fn output_is_bounded() {
        let end = Instant::now() + Duration::from_secs(20);
        let ((first, mut told), (second, said)) = (pipe(end), pipe(end));
        drop(said);
        let writer = std::thread::spawn(move || told.write_all(&vec![b'x'; 2 * OUTPUT_BYTES_MAX]));
        assert!(collect(first, second).0.len() <= OUTPUT_BYTES_MAX);
        assert!(writer.join().expect("no panic").is_err(), "the pipe is closed");
    }
}
