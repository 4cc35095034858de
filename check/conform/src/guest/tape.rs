//! The part `tape`: a machine on which `lunar-tape` serves a tape library, which its own initiator uses with mtx, mt
//! and tar.

use anyhow::{Result, ensure};

use super::device::copy_modules;
use super::ublk::{copy_program, copy_stripped};
use super::{Script, Targets, sysroot};
use crate::target::{Driver, Lab, Spec};

/// The driver of tapes, which is loaded by the script.
const MODULES: [&str; 1] = ["st"];
/// Kills of the library under a write: those of the short and of the long form.
const KILLS: u32 = 2;
const KILLS_LONG: u32 = 20;

/// Runs the part; with `--long`, the library is killed more often.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("tape/{}", driver.name());
    let program = lab.built()?.to_owned();
    let library = program.with_file_name("lunar-tape");
    ensure!(library.exists(), "lunar-tape is not built beside the target: cargo build -p lunar-tape");
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_devices(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("tape");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/tape", &*folder));
    let script =
        Script { name: "tape-library", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 2, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        copy_stripped(&library, &folder.join("lunar-tape"))?;
        copy_modules(&sysroot.modules, &MODULES, &folder)?;
        let kills = if lab.long { KILLS_LONG } else { KILLS };
        let settings = format!("DRIVER={}\nKILLS={kills}\n", driver.name());
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
    Ok(())
}
