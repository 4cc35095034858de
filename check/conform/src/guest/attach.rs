//! The part `attach`: a machine whose kernel has ublk, with a file system on a volume of another Lunar. That one runs
//! in the same guest, in a network namespace of its own, with two pairs of virtual interfaces between them.

use anyhow::Result;

use super::ublk::copy_program;
use super::{Script, Targets, modules, sysroot};
use crate::target::{Driver, Lab, Spec};

/// The modules besides those of all guests.
const MODULES: [&str; 1] = ["veth"];
/// Kills of the target under load: those of the short and of the long form.
const KILLS: u32 = 2;
const KILLS_LONG: u32 = 30;

/// Runs the part; with `--long`, more kills.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("attach/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        // They have the tools of networks, too.
        found = Some(sysroot::ensure_with_rdma(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("attach");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/attach", &*folder));
    let script =
        Script { name: "attach", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        modules::write_modules(&sysroot.modules, &MODULES, &folder.join("modules"))?;
        let settings = format!("KILLS={}\n", if lab.long { KILLS_LONG } else { KILLS });
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
    Ok(())
}
