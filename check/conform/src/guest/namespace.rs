//! The part `namespace`: a machine with an NVMe drive of its own, whose kernel goes on using it while a script serves
//! partitions and namespaces of it.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use super::ublk::copy_program;
use super::{Script, Targets, sysroot};
use crate::target::{Driver, Lab, Spec};

/// The namespaces of the drive: MiB, and options of QEMU.
const NAMESPACES: [(u64, &str); 3] =
    [(192, "discard_granularity=4096"), (64, "logical_block_size=4096,physical_block_size=4096"), (16, "ms=8")];
/// Times that the drive vanishes under load: those of the short and of the long form.
const REPLUGS: u32 = 1;
const REPLUGS_LONG: u32 = 10;

/// Runs the part; with `--long`, the drive vanishes more often.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("namespace/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_ublk(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("namespace");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/namespace", &*folder));
    let script =
        Script { name: "namespace", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 2, more };
    lab.report.check(&part, "guest ran to its end", || {
        let drive = drive(&lab.scratch)?;
        copy_program(&program, &folder)?;
        let replugs = if lab.long { REPLUGS_LONG } else { REPLUGS };
        let settings = format!("DRIVER={}\nREPLUGS={replugs}\n", driver.name());
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        let targets = Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None };
        script.run_with(lab, targets, &drive)
    });
    Ok(())
}

/// Makes the files of a drive; returns the arguments of the emulator.
fn drive(folder: &Path) -> Result<Vec<String>> {
    let mut arguments = vec!["-device".to_owned(), "nvme,id=controller,serial=lunar".to_owned()];
    for (at, (mebibytes, options)) in NAMESPACES.into_iter().enumerate() {
        let (file, number) = (folder.join(format!("namespace-{at}.img")), at + 1);
        File::create(&file).and_then(|file| file.set_len(mebibytes << 20)).context("the file of a namespace")?;
        let drive = format!("file={},if=none,id=ns{number},format=raw,discard=unmap", file.display());
        let device = format!("nvme-ns,drive=ns{number},bus=controller,nsid={number},{options}");
        arguments.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
    }
    Ok(arguments)
}
