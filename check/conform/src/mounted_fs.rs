//! Small file systems for a test. Needs root, and a kernel with them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;
use crate::target::Lab;

const LIMIT: Duration = Duration::from_secs(20);

/// A file system, unmounted when dropped.
pub(crate) struct MountedFs {
    pub(crate) path: PathBuf,
}

impl MountedFs {
    /// Mounts a tmpfs, ext4 or xfs of `mib` MiB; `None` if that is not possible.
    pub(crate) fn new(lab: &Lab, kind: &str, mib: u64) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let path = lab.scratch.join(format!("mounted-{kind}"));
        std::fs::create_dir_all(&path)?;
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        if kind == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", &size, "none"]);
        } else {
            let image = lab.image(&format!("{kind}.img"), mib)?;
            let mut make = Command::new(format!("mkfs.{kind}"));
            match kind {
                "xfs" => make.args(["-q", "-m", "reflink=1"]),
                _ => make.args(["-q", "-F", "-m", "0"]),
            };
            if !process::run(make.arg(&image), LIMIT).is_ok_and(|made| made.status.success()) {
                return Ok(None);
            }
            mount.args(["-o", "loop", &image]);
        }
        let mounted = process::run(mount.arg(&path), LIMIT)?;
        Ok(mounted.status.success().then_some(Self { path }))
    }
}

impl MountedFs {
    /// Unmounts it before the end of the case, which may mount something else at the place.
    pub(crate) fn unmount(&self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            match process::run(Command::new("umount").arg(&self.path), LIMIT)?.succeeded() {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                outcome => return outcome.map(drop),
            }
        }
    }
}

impl Drop for MountedFs {
    fn drop(&mut self) {
        // The kernel may keep descriptors of an io_uring open a moment longer than its process.
        let end = Instant::now() + LIMIT;
        while !Command::new("umount").arg(&self.path).status().is_ok_and(|status| status.success()) {
            if Instant::now() > end {
                let _ = Command::new("umount").arg("-l").arg(&self.path).status();
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
