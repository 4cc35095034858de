//! The file system of a machine, on the first of its disks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::disks::{Disks, unmount};
use super::medium::{CutCount, Loss};
use crate::process;
use crate::report::skip;
use crate::target::{Lab, Target};
use crate::test_data::Random;

const LIMIT: Duration = Duration::from_secs(30);
/// MiB of the disk with the file system: XFS is not made smaller than 300 MiB.
const SYSTEM_MIB: usize = 320;

/// A machine: its disks, and its file system, which is mounted while it has power.
pub(super) struct Machine {
    pub(super) disks: Disks,
    kind: &'static str,
    folder: PathBuf,
    is_mounted: bool,
}

impl Machine {
    /// A machine with a new file system, and with more disks of these sizes in MiB.
    pub(super) fn new(lab: &Lab, name: &str, kind: &'static str, more: &[usize]) -> Result<Self> {
        let sizes: Vec<usize> = [SYSTEM_MIB].iter().chain(more).copied().collect();
        let disks = Disks::new(lab, name, &sizes)?;
        let mut make = Command::new(format!("mkfs.{kind}"));
        match kind {
            "xfs" => make.args(["-q", "-K", "-f"]),
            _ => make.args(["-q", "-F", "-E", "nodiscard"]),
        };
        let made = process::run(make.arg(disks.device(0)), LIMIT);
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            return skip(format!(
                "no {kind} can be made here: {}",
                made.map_or_else(|why| why.to_string(), |m| m.text)
            ));
        }
        disks.flush();
        let folder = lab.scratch.join(format!("{name}-mounted"));
        std::fs::create_dir_all(&folder)?;
        let mut machine = Self { disks, kind, folder, is_mounted: false };
        match machine.mount() {
            Err(why) => skip(format!("no {kind} can be mounted here: {why:#}")),
            Ok(()) => Ok(machine),
        }
    }

    /// The folder of the file system.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Brings everything that was written to the media.
    pub(super) fn sync(&self) -> Result<()> {
        process::run(Command::new("sync").arg("--file-system").arg(&self.folder), LIMIT)?.succeeded()?;
        self.disks.flush();
        Ok(())
    }

    fn mount(&mut self) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind]).arg(self.disks.device(0)).arg(&self.folder);
        process::run(&mut mount, LIMIT)?.succeeded()?;
        self.is_mounted = true;
        Ok(())
    }

    /// Cuts the power of the disks, ends the target, and takes the machine apart.
    pub(super) fn cut(&mut self, target: Target, loss: Loss, random: &mut Random) -> Result<CutCount> {
        self.disks.cut();
        // Before the requests in progress fail: a machine without power reports no errors.
        target.signal(rustix::process::Signal::KILL)?;
        self.disks.abort()?;
        target.kill()?;
        self.is_mounted = false;
        unmount(&self.folder).context("after the power cut")?;
        self.disks.lose(loss, random)
    }

    /// Gives the machine its power back: its file system recovers.
    pub(super) fn power_on(&mut self) -> Result<()> {
        self.disks.power_on()?;
        self.mount().context("the file system does not recover from the power cut")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(why) = unmount(&self.folder)
        {
            eprintln!("{why:#}");
        }
    }
}
