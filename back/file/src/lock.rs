//! The lock on a file: one process serves it for writing, unless the operator allows several.

use crate::open::Refusal;
use lunar_reactor::linger::until_free;
use lunar_reactor::log;
use rustix::fs::{FlockOperation, Stat, flock, fstat};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Many commands may have been under way: a disk takes its time to answer them.
const PATIENCE: Duration = Duration::from_secs(15);
/// A child of this process has a copy of the lock from its fork until it executes its program: a lock that this process
/// itself seems to hold is waited for so long.
const FORK: Duration = Duration::from_millis(200);
/// A wait that takes longer is logged.
const SILENCE: Duration = Duration::from_secs(1);

/// Locks a file for this process alone, or together with other processes that share it, because they only read or were
/// configured to share. Waits for a holder that has ended already.
pub(crate) fn lock(file: BorrowedFd<'_>, path: &Path, shares: bool) -> Result<(), Refusal> {
    wait_for(path, || try_lock(file, path, shares))
}

/// Makes the lock exclusive on a file that this process has locked already. A lock that is to be shared stays as it is
/// until [`finalize`]. If another process shares the file, the lock is shared again: Linux removes the old lock before
/// it looks for other locks.
pub(crate) fn strengthen(file: BorrowedFd<'_>, path: &Path, shares: bool) -> Result<(), Refusal> {
    if shares {
        return Ok(());
    }
    wait_for(path, || try_lock(file, path, false).inspect_err(|_| finalize(file, path, true)))
}

/// Changes the lock of this process.
pub(crate) fn finalize(file: BorrowedFd<'_>, path: &Path, shares: bool) {
    if let Err(why) = try_lock(file, path, shares) {
        log!(
            error,
            "{}: another process locked the file while Lunar changed its own lock: it {why}; stop one of the two \
             processes",
            path.display()
        );
    }
}

fn wait_for(path: &Path, attempt: impl FnMut() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let begun = Instant::now();
    let mut is_told = false;
    until_free(PATIENCE, attempt, |why| {
        let is_free_soon = match why {
            Refusal::Locked { pid: Some(pid) } if *pid == std::process::id() => begun.elapsed() < FORK,
            Refusal::Locked { pid } => !pid.is_some_and(lives),
            _ => false,
        };
        if is_free_soon && begun.elapsed() >= SILENCE && !std::mem::replace(&mut is_told, true) {
            let seconds = PATIENCE.as_secs();
            log!(warning, "{}: waiting up to {seconds} s for the lock of a process that ended", path.display());
        }
        is_free_soon
    })
}

fn try_lock(file: BorrowedFd<'_>, path: &Path, shares: bool) -> Result<(), Refusal> {
    let how = if shares { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match flock(file, how) {
        Err(Errno::WOULDBLOCK) => Err(Refusal::Locked { pid: holder(file) }),
        // A few network file systems have no locks: that is no reason not to serve from them.
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
            log!(
                warning,
                "{}: this file system does not support flock: make sure that no other process serves this file",
                path.display()
            );
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Whether a process exists and is no zombie (`Z`, `X`).
fn lives(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may hold any character; the state follows it.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// The process that holds a lock on the file, as far as the kernel tells.
fn holder(file: BorrowedFd<'_>) -> Option<u32> {
    let stat = fstat(file).ok()?;
    find_holder(&std::fs::read_to_string("/proc/locks").ok()?, &stat)
}

/// A line is `1: FLOCK  ADVISORY  WRITE 4711 fe:00:9978047 0 EOF`; device numbers are hexadecimal.
fn find_holder(locks: &str, stat: &Stat) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let whole = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let inode = format!(":{}", stat.st_ino);
    let by = |fits: &dyn Fn(&str) -> bool| {
        locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
            pid.parse().ok().filter(|pid| *pid > 0 && fits(place))
        })
    };
    // Some file systems show another device number here than to stat.
    by(&|place| place == whole).or_else(|| by(&|place| place.ends_with(&inode)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_lives_until_it_has_ended() {
        assert!(lives(std::process::id()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is there");
        assert!(lives(child.id()));
        drop(child.stdin.take());
        // Its parent has not waited for it yet, so it becomes a zombie.
        let end = Instant::now() + Duration::from_secs(10);
        while lives(child.id()) {
            assert!(Instant::now() < end, "it ended long ago");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait().expect("it is our child");
        assert!(!lives(child.id()));
    }

    #[test]
    fn a_lock_holder_is_found_among_others() {
        let mut stat = rustix::fs::stat("/").expect("it is there");
        stat.st_dev = rustix::fs::makedev(0xfe, 0x10);
        stat.st_ino = 77;
        let lines = [
            "1: POSIX  ADVISORY  WRITE 10 fe:10:77 0 EOF",
            "2: FLOCK  ADVISORY  WRITE 11 fe:10:777 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 12 00:2f:77 0 EOF",
            "3: -> FLOCK  ADVISORY  WRITE 13 fe:10:77 0 EOF",
            "4: FLOCK  ADVISORY  WRITE 14 fe:10:77 0 EOF",
            "5: FLOCK  ADVISORY  WRITE -1 fe:10:78 0 EOF",
        ];
        assert_eq!(find_holder(&lines.join("\n"), &stat), Some(14));
        assert_eq!(find_holder(&lines[..3].join("\n"), &stat), Some(12), "some file systems have two device numbers");
        assert_eq!(find_holder(lines[1], &stat), None);
        stat.st_ino = 78;
        assert_eq!(find_holder(&lines.join("\n"), &stat), None, "a holder outside of our view has no number");
    }
}
