//! The group `nvme` of blktests, which has to be fetched by whoever wants to run it: `LUNAR_BLKTESTS` names its folder.
//! Of its cases those run that set their target up through a program of the tester's (`NVME_TARGET_CONTROL`).

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::{Script, nvme_targets, packages};
use crate::report::skip;
use crate::target::{Driver, Lab};

/// Where blktests lies.
const FOLDER: &str = "LUNAR_BLKTESTS";

/// Boots the guest with the test suite in it.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("blktests/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "the test suite is there", || match std::env::var_os(FOLDER).map(PathBuf::from) {
        Some(folder) => {
            ensure!(folder.join("tests/nvme/rc").is_file(), "{} is no checkout of blktests", folder.display());
            found = Some(folder);
            Ok(())
        }
        None => skip(format!("{FOLDER} names no checkout of blktests")),
    });
    let (Some(folder), Some(sysroot)) = (found, packages(lab, &part)) else { return Ok(()) };
    let more = Some(("test/blktests", &*folder));
    let script = Script { name: "blktests", is_service: false, part: &part, driver, sysroot: &sysroot, more };
    // The suite expects one namespace.
    lab.report.check(&part, "guest ran to its end", || script.run(lab, nvme_targets(lab, driver, &[])?));
    Ok(())
}
