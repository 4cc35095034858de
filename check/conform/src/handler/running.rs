//! Processes of handlers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::process::{bound, signal, wait};

/// Bytes of each volume.
pub(super) const SIZE: u64 = 64 << 20;
pub(super) const BLOCK: usize = 512;
/// How long a step may take on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A process of the example. Dropping it kills it.
pub(crate) struct Handler {
    child: Option<Child>,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Handler {
    /// Starts the example, for the volume of a socket. Its file lies beside the socket.
    pub(crate) fn on(program: PathBuf, socket: PathBuf) -> Result<Self> {
        let file = socket.with_extension("img");
        if !file.exists() {
            std::fs::File::create(&file)?.set_len(SIZE)?;
        }
        Self::with(program, vec![socket.into(), file.into()])
    }

    /// Starts a program with these arguments.
    pub(super) fn with(program: PathBuf, arguments: Vec<OsString>) -> Result<Self> {
        let mut handler = Self { child: None, program, arguments };
        handler.start()?;
        Ok(handler)
    }

    pub(super) fn start(&mut self) -> Result<()> {
        let mut command = bound(&self.program);
        // A handler that comes before Lunar has noticed the end of the last one is refused, and connects again.
        command.args(&self.arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().context("cannot start the handler")?);
        Ok(())
    }

    pub(crate) fn signal(&self, number: Signal) -> Result<()> {
        signal(self.child.as_ref().context("it runs")?, number)
    }

    /// Waits until it has ended by itself, with success.
    pub(super) fn ended(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("it runs") };
        let status = wait(&mut child, LIMIT)?.context("the handler does not end")?;
        ensure!(status.success(), "the handler ends with {status}");
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("it runs") };
        let ended = child.try_wait()?;
        ensure!(ended.is_none(), "the handler has ended by itself: {ended:?}");
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
