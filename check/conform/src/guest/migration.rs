//! The migration of a running guest from one emulator to another.

use super::qemu;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time in which an emulator's monitor answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two looks at the state of a migration.
const LOOK: Duration = Duration::from_millis(200);

/// The monitor of an emulator (QMP).
pub(super) struct Monitor {
    /// Its socket.
    pub(super) socket: PathBuf,
}

impl Monitor {
    /// The argument with which an emulator opens it.
    pub(super) fn argument(&self) -> String {
        format!("unix:{},server=on,wait=off", self.socket.display())
    }

    /// Runs a command; returns the line of its answer.
    pub(super) fn run(&self, command: &str, arguments: &str) -> Result<String> {
        qemu::monitor(&self.socket, PATIENCE, command, arguments)
    }

    /// Repeats a command until its answer is `wanted`, for `limit` at most.
    fn until(&self, command: &str, limit: Duration, wanted: impl Fn(Result<String>) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + limit;
        while !wanted(self.run(command, "{}"))? {
            ensure!(Instant::now() < end, "{command} of {} does not succeed", self.socket.display());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Migrates the guest of one emulator to another, which waits for it at `incoming`.
///
/// `first` runs the guest in the one emulator, and sends when it may be migrated. `between` runs then. `second` runs
/// the other emulator, to the end of the guest; returns its exit status. Returns the value of `between`.
pub(super) fn migrate<T>(
    [from, to]: [&Monitor; 2],
    (incoming, limit): (&str, Duration),
    first: impl FnOnce(&mpsc::Sender<()>) + Send,
    between: impl FnOnce() -> Result<T>,
    second: impl FnOnce() -> Result<Option<i32>> + Send,
) -> Result<T> {
    let (sender, ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || first(&sender));
        let moved = (|| {
            ready.recv_timeout(limit).context("the guest cannot be migrated")?;
            let value = between()?;
            let second = scope.spawn(second);
            // It can receive a migration as soon as its monitor answers.
            to.until("query-status", limit, |answer| Ok(answer.is_ok()))?;
            from.run("migrate", &format!(r#"{{"uri":"{incoming}"}}"#))?;
            from.until("query-migrate", limit, |answer| Ok(answer?.contains(r#""completed""#)))?;
            // The guest's script waits for the loss of its network link to learn that it was migrated.
            to.run("set_link", r#"{"name":"net","up":false}"#)?;
            let status = second.join().map_err(|_| anyhow!("the thread of the second guest panicked"))??;
            ensure!(status == Some(0), "the migrated guest ended with {status:?}");
            Ok(value)
        })();
        // End both emulators, so that neither thread waits for the limit. The first has no exit status.
        let _ = from.run("quit", "{}");
        if moved.is_err() {
            let _ = to.run("quit", "{}");
        }
        let _ = first.join();
        moved
    })
}
