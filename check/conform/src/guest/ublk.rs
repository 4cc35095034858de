//! The parts `ublk` and `ublk-server`: a machine whose kernel has ublk, on which a script serves volumes as disks of
//! that machine, by the daemon or by a process beside it.

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

/// Kills of the process beside the daemon, in the short and in the long form.
const SERVER_KILLS: u32 = 1;
const SERVER_KILLS_LONG: u32 = 10;

/// Runs the part `ublk`; with `--long`, more kills and two queues.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let kills = if lab.long { KILLS_LONG } else { KILLS };
    run(lab, driver, "ublk", &format!("KILLS={kills}\n"))
}

/// Runs the part `ublk-server`; with `--long`, more kills, and a daemon that hangs.
pub(crate) fn server_part(lab: &Lab, driver: Driver) -> Result<()> {
    let kills = if lab.long { SERVER_KILLS_LONG } else { SERVER_KILLS };
    run(lab, driver, "ublk-server", &format!("KILLS={KILLS}\nSERVER_KILLS={kills}\n"))
}

fn run(lab: &Lab, driver: Driver, name: &'static str, settings: &str) -> Result<()> {
    let part = format!("{name}/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_ublk(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join(name);
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/ublk", &*folder));
    // The kernel makes no more queues than there are processors.
    let processors = if lab.long { 2 } else { 1 };
    let script = Script { name, is_service: false, part: &part, driver, sysroot: &sysroot, processors, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        let settings = format!("DRIVER={}\nPROCESSORS={processors}\n{settings}", driver.name());
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
