//! The part `ublk`: a machine whose kernel has ublk, on which a script serves volumes as disks of that machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Script, Targets, sysroot};
use crate::process;
use crate::target::{Driver, Lab, Spec};

/// The limit of copying the program without its symbols.
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// Kills of the target under load: those of the short and of the long form.
const KILLS: u32 = 3;
const KILLS_LONG: u32 = 50;

/// Runs the part; with `--long`, more kills and two queues.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("ublk/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_ublk(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("ublk");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/ublk", &*folder));
    // The kernel makes no more queues than there are processors.
    let processors = if lab.long { 2 } else { 1 };
    let script = Script { name: "ublk", is_service: false, part: &part, driver, sysroot: &sysroot, processors, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        let kills = if lab.long { KILLS_LONG } else { KILLS };
        let settings = format!("DRIVER={}\nKILLS={kills}\nPROCESSORS={processors}\n", driver.name());
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
    Ok(())
}

/// Copies the program without its debug information: the initramfs is in the memory of the guest.
pub(super) fn copy_program(program: &Path, folder: &Path) -> Result<()> {
    copy_stripped(program, &folder.join("lunar"))
}

/// Copies a program without its debug information.
pub(super) fn copy_stripped(program: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(to).arg(program);
    process::run(&mut strip, COPY_LIMIT)?.succeeded().context("copying the program")?;
    Ok(())
}
