//! Loop devices: files as block devices. Needs root and a kernel with loop devices.

use crate::process;
use crate::report::skip;
use anyhow::Result;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// A loop device, detached when dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
}

impl LoopDevice {
    /// Attaches `image`; skips the case without root or without loop devices.
    pub(crate) fn attach(image: &str) -> Result<Self> {
        Self::attach_with(&[], image)
    }

    /// The same with more options of losetup.
    pub(crate) fn attach_with(options: &[&str], image: &str) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("only root may attach a loop device");
        }
        let attached =
            process::run(Command::new("losetup").args(["--find", "--show"]).args(options).arg(image), LIMIT)?;
        if !attached.status.success() {
            return skip(format!("no loop device here: {}", attached.text.trim()));
        }
        Ok(Self { path: attached.text.trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = process::run(Command::new("losetup").args(["--detach", &self.path]), LIMIT);
        if let Err(why) = detached.and_then(process::Output::succeeded) {
            eprintln!("detaching {}: {why:#}", self.path);
        }
    }
}
