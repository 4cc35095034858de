//! The part `tape`: machines on which `lunar-tape` serves a tape library, which their own initiator uses: with mtx, mt
//! and tar, and with Bacula.

use std::path::Path;

use anyhow::{Result, ensure};

use super::modules::write_modules;
use super::sysroot::{self, Sysroot};
use super::ublk::{copy_program, copy_stripped};
use super::{Script, Targets};
use crate::report::Report;
use crate::target::{Driver, Lab, Spec};

/// The driver of tapes, which is loaded by the script.
const MODULES: [&str; 1] = ["st"];
/// Kills of the library under a write: those of the short and of the long form.
const KILLS: u32 = 2;
const KILLS_LONG: u32 = 20;

/// Runs the part; with `--long`, the library is killed more often, and Bacula uses it.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let library = lab.built()?.with_file_name("lunar-tape");
    ensure!(library.exists(), "lunar-tape is not built beside the target: cargo build -p lunar-tape");
    let kills = if lab.long { KILLS_LONG } else { KILLS };
    let settings = format!("DRIVER={}\nKILLS={kills}\n", driver.name());
    if lab.only.as_deref() != Some("bacula") {
        guest(lab, driver, (&library, "tape-library", sysroot::ensure_with_devices), settings.clone());
    }
    if lab.long {
        guest(lab, driver, (&library, "bacula", sysroot::ensure_with_bacula), settings);
    }
    Ok(())
}

/// Makes the packages of a guest available.
type Packages = fn(&Report) -> Result<Sysroot>;

/// Runs a script in a guest with the packages that it needs.
fn guest(lab: &Lab, driver: Driver, (library, name, packages): (&Path, &str, Packages), settings: String) {
    let part = format!("tape/{}", driver.name());
    let mut found = None;
    lab.report.check(&part, &format!("packages for the guest of {name}"), || {
        found = Some(packages(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return };
    let folder = lab.scratch.join("tape");
    let more = Some(("test/tape", &*folder));
    let script = Script { name, is_service: false, part: &part, driver, sysroot: &sysroot, processors: 2, more };
    lab.report.check(&part, &format!("the guest of {name} ran to its end"), || {
        std::fs::create_dir_all(&folder)?;
        copy_program(lab.built()?, &folder)?;
        copy_stripped(library, &folder.join("lunar-tape"))?;
        write_modules(&sysroot.modules, &MODULES, &folder)?;
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
}
