//! The part `device`: a machine whose kernel has SCSI devices in memory (scsi_debug), which a script shares among two
//! initiators.

use anyhow::Result;

use super::modules::write_modules;
use super::ublk::copy_program;
use super::{Script, Targets, sysroot};
use crate::target::{Driver, Lab, Spec};

/// Modules that the script loads, with parameters or at a time of its own.
const MODULES: [&str; 2] = ["st", "scsi_debug"];
/// Times that the device vanishes under load: those of the short and of the long form.
const REPLUGS: u32 = 2;
const REPLUGS_LONG: u32 = 20;

/// Runs the part; with `--long`, the device vanishes more often.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("device/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_devices(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("device");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/device", &*folder));
    let script =
        Script { name: "device", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 2, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        write_modules(&sysroot.modules, &MODULES, &folder)?;
        let replugs = if lab.long { REPLUGS_LONG } else { REPLUGS };
        let settings = format!("DRIVER={}\nREPLUGS={replugs}\n", driver.name());
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
    Ok(())
}
