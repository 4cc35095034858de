//! The exclusive lock of an image, and the record of the process that has it.
//!
//! A process that was killed leaves the lock, and may leave writes on their way to the cluster. Its successor takes the
//! lock away: the cluster does not execute any command of the dead client from then on, so no late write overtakes a
//! newer one. The metadata of the image say which process has the lock, so that only the lock of a process that has
//! certainly ended is taken away. The lock of another client is never taken as long as it watches the image: it is free
//! when its owner gives it back, or 30 seconds after its owner has died (`osd_client_watch_timeout`).

use crate::library::Failure;
use crate::library::image::Image;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs;
use std::io;

/// The key of the metadata.
const KEY: &CStr = c"lunar.owner";

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The start of its kernel: no two machines have the same.
    boot: String,
    /// The namespace of its processes.
    namespace: String,
    /// Its number.
    pid: u32,
    /// The time of its start, in ticks since the start of the kernel: numbers are used again.
    start: u64,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn own() -> io::Result<Self> {
        let pid = std::process::id();
        let start = start_of(pid).ok_or_else(|| io::Error::other("/proc/self/stat is not understood"))?;
        let namespace = fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot, namespace, pid, start })
    }

    /// Whether it has certainly ended, as this process sees it. Of a process before a restart of the machine nothing is
    /// certain: a copy of a machine has its identifiers, too.
    fn has_ended(&self, own: &Self) -> bool {
        let is_visible = self.boot == own.boot && self.namespace == own.namespace;
        is_visible && start_of(self.pid).map_or_else(|| is_gone(self.pid), |start| start != self.start)
    }
}

/// Whether there is no process of this number. /proc may hide those of other users.
fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The start of a process; `None`: it cannot be read.
fn start_of(pid: u32) -> Option<u64> {
    started(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The 22nd field of `/proc/PID/stat`. The second one is a name in parentheses with any characters.
fn started(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The record in the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Claim {
    process: Process,
    /// The client, as the lock names it.
    client: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { boot, namespace, pid, start } = &self.process;
        // The client comes last: its name may have spaces.
        write!(f, "1 {boot} {namespace} {pid} {start} {}", self.client)
    }
}

impl Claim {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(6, ' ');
        let mut next = || parts.next();
        (next()? == "1").then_some(())?;
        let (boot, namespace) = (next()?.to_owned(), next()?.to_owned());
        let (pid, start) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let client = next()?.to_owned();
        Some(Self { process: Process { boot, namespace, pid, start }, client })
    }
}

/// Why an image cannot be locked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockError {
    /// The image does not have the feature.
    NoFeature,
    /// This client has the lock.
    InUse(String),
    /// The library.
    Failed(Failure),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFeature => f.write_str(
                "the image does not have the feature exclusive-lock, without which the late writes of a process that \
                 has died cannot be stopped: run `rbd feature enable POOL/IMAGE exclusive-lock`",
            ),
            Self::InUse(client) => write!(
                f,
                "client {client} has the lock of the image. End it; if it has died, the lock is free after 30 seconds"
            ),
            Self::Failed(why) => write!(f, "the image cannot be locked: {why}"),
        }
    }
}

impl std::error::Error for LockError {}

impl From<Failure> for LockError {
    fn from(why: Failure) -> Self {
        Self::Failed(why)
    }
}

/// Locks an image.
///
/// # Errors
/// See [`LockError`].
pub fn lock(image: &Image, own: &Process) -> Result<(), LockError> {
    if !image.has_exclusive_lock()? {
        return Err(LockError::NoFeature);
    }
    let owners = image.lock_owners()?;
    if let Some(owner) = owners.first() {
        let name = owner.to_string_lossy();
        let claim = image.metadata(KEY)?.and_then(|text| Claim::parse(&text));
        if claim.is_some_and(|claim| claim.client == name && claim.process.has_ended(own)) {
            match image.break_lock(owner) {
                // Another successor was faster.
                Err(Failure(Errno::NOENT | Errno::BUSY | Errno::AGAIN)) => {}
                other => other?,
            }
        } else if image.watchers()?.contains(owner) {
            // Clients such as virtual machines give the lock to every client that asks, and are not asked here.
            return Err(LockError::InUse(name.into()));
        }
    }
    if let Err(why) = image.acquire_lock() {
        let owners = image.lock_owners()?;
        return Err(owners
            .first()
            .map_or(LockError::Failed(why), |name| LockError::InUse(name.to_string_lossy().into())));
    }
    let owners = image.lock_owners()?;
    let client = owners.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let claim = Claim { process: own.clone(), client }.to_string();
    let claim = CString::new(claim).map_err(|_| Failure(Errno::INVAL))?;
    image.set_metadata(KEY, &claim)?;
    Ok(())
}

/// Gives the lock back. The claim stays: it is of no use to anyone once another client has the lock, and without it a
/// successor would have to wait if this process died before the lock is free.
///
/// # Errors
/// Errors of the library.
pub fn release(image: &Image) -> Result<(), Failure> {
    image.release_lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_and_read() {
        let process = Process::own().expect("there is /proc");
        for client in ["127.0.0.1:0/42", "v2:[::1]:0/7 b"] {
            let claim = Claim { process: process.clone(), client: client.into() };
            assert_eq!(Claim::parse(&claim.to_string()), Some(claim));
        }
        for text in ["", "2 a b 1 2 d", "1 a b x 2 d", "1 a b 1 2"] {
            assert_eq!(Claim::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_process_that_has_certainly_ended_has_ended() {
        let own = Process::own().expect("there is /proc");
        assert!(!own.has_ended(&own));
        assert!(Process { start: own.start + 1, ..own.clone() }.has_ended(&own), "its number is used again");
        assert!(Process { pid: i32::MAX as u32, ..own.clone() }.has_ended(&own));
        let elsewhere = Process { namespace: "pid:[1]".into(), pid: i32::MAX as u32, ..own.clone() };
        assert!(!elsewhere.has_ended(&own), "a container of this machine");
        let before = Process { boot: "before".into(), pid: i32::MAX as u32, ..own.clone() };
        assert!(!before.has_ended(&own), "another machine, or another start of this one");
        assert!(!is_gone(1), "a process of another user is not gone");
    }

    #[test]
    fn the_start_of_a_process_is_behind_its_name() {
        let fields: Vec<String> = (3..=24).map(|field| field.to_string()).collect();
        assert_eq!(started(&format!("1 (a ) 7 (b)) {}", fields.join(" "))), Some(22));
        assert_eq!(started("1 (a"), None);
    }
}
