//! The part `figures`: guests that compare Lunar with the kernel's own targets and disks. Emulated processors say
//! nothing about a real machine, except how two programs on them compare.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use super::modules::write_modules;
use super::sysroot::{self, Sysroot};
use super::ublk::copy_program;
use super::{Script, Targets, figures_vhost, zfs};
use crate::report::{Report, skip};
use crate::target::{Driver, Lab, Spec};

/// A guest with one comparison.
struct Comparison {
    /// The name of the script.
    script: &'static str,
    packages: fn(&Report) -> Result<Sysroot>,
    /// The modules that the script loads, in their order.
    modules: &'static [&'static str],
    /// Adds files to the folder of the guest, and devices to the emulator.
    prepare: fn(&Lab, &Sysroot, &Path) -> Result<Vec<String>>,
}

const COMPARISONS: [Comparison; 6] = [
    Comparison {
        script: "figures-scsi",
        packages: sysroot::ensure_with_peers,
        modules: &["scsi_debug", "target_core_pscsi", "iscsi_target_mod"],
        prepare: nothing,
    },
    Comparison { script: "figures-nvme", packages: sysroot::ensure_with_peers, modules: &[], prepare: drive },
    Comparison {
        script: "figures-ublk",
        packages: sysroot::ensure_with_peers,
        modules: &["null_blk", "brd"],
        prepare: peer,
    },
    Comparison {
        script: "figures-zvol",
        packages: sysroot::ensure_with_zfs,
        modules: &["target_core_iblock", "iscsi_target_mod"],
        prepare: pool,
    },
    Comparison {
        script: "figures-fcoe",
        packages: sysroot::ensure_with_rdma,
        modules: &["veth", "fcoe", "tcm_fc"],
        prepare: nothing,
    },
    Comparison {
        script: "figures-rdma",
        packages: sysroot::ensure_with_rdma,
        // Software RoCE requests its check by name.
        modules: &[
            "veth",
            "brd",
            "crc32_generic?",
            "rdma_rxe",
            "ib_srp",
            "ib_srpt",
            "ib_iser",
            "ib_isert",
            "nvme_rdma",
            "nvmet_rdma",
            // RDMA for programs.
            "rdma_ucm",
        ],
        prepare: nothing,
    },
];
/// Guest memory.
const MEMORY: &str = "2G";
/// The names of the namespaces of the drive, and their MiB.
const NAMESPACES: [&str; 3] = ["disk", "block", "nvme"];
const NAMESPACE_BYTES: u64 = 128 << 20;

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    if !lab.long {
        lab.report.check("figures", "comparisons with other targets", || {
            skip("they take half an hour: `make conform CONFORM='figures --long'` runs them")
        });
        return Ok(());
    }
    let program = lab.built()?.to_owned();
    let wants = |script: &str| lab.only.as_ref().is_none_or(|only| script.contains(only.as_str()));
    if wants(figures_vhost::SCRIPT) {
        figures_vhost::part(lab, driver);
    }
    for comparison in COMPARISONS.iter().filter(|comparison| wants(comparison.script)) {
        lab.report.check("figures", comparison.script, || compare(lab, driver, comparison, &program));
    }
    Ok(())
}

fn compare(lab: &Lab, driver: Driver, comparison: &Comparison, program: &Path) -> Result<()> {
    let sysroot = (comparison.packages)(&lab.report)?;
    let folder = lab.scratch.join(comparison.script);
    std::fs::create_dir_all(&folder)?;
    copy_program(program, &folder)?;
    write_modules(&sysroot.modules, comparison.modules, &folder.join("modules"))?;
    let devices = (comparison.prepare)(lab, &sysroot, &folder)?;
    let more = Some(("test/figures", &*folder));
    let (name, part) = (comparison.script, "figures");
    let script = Script { name, is_service: false, part, driver, sysroot: &sysroot, processors: 2, more };
    let settings = format!("DRIVER={}\n", driver.name());
    let nothing = Spec::new(driver, Vec::<String>::new())?;
    let targets = Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None };
    script.run_with(lab, targets, &[&["-m".to_owned(), MEMORY.to_owned()], &devices[..]].concat())
}

fn nothing(_: &Lab, _: &Sysroot, _: &Path) -> Result<Vec<String>> {
    Ok(Vec::new())
}

/// A drive with equal namespaces.
fn drive(lab: &Lab, _: &Sysroot, _: &Path) -> Result<Vec<String>> {
    let mut arguments = vec!["-device".to_owned(), "nvme,id=controller,serial=lunar".to_owned()];
    for (at, name) in NAMESPACES.into_iter().enumerate() {
        let file = lab.scratch.join(format!("{name}.img"));
        File::create(&file).and_then(|file| file.set_len(NAMESPACE_BYTES)).context("the file of a namespace")?;
        let drive = format!("file={},if=none,id={name},format=raw,cache=unsafe", file.display());
        let device = format!("nvme-ns,drive={name},bus=controller,nsid={}", at + 1);
        arguments.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
    }
    Ok(arguments)
}

/// Another server of ublk, if LUNAR_CONFORM_RUBLK names the program of the crate rublk.
fn peer(_: &Lab, _: &Sysroot, folder: &Path) -> Result<Vec<String>> {
    if let Some(program) = std::env::var_os("LUNAR_CONFORM_RUBLK") {
        std::fs::copy(program, folder.join("rublk")).context("LUNAR_CONFORM_RUBLK")?;
    }
    Ok(Vec::new())
}

/// The modules of ZFS.
fn pool(lab: &Lab, sysroot: &Sysroot, folder: &Path) -> Result<Vec<String>> {
    let modules = zfs::compiled(lab, sysroot)?;
    for module in zfs::MODULES {
        std::fs::copy(modules.join(format!("{module}.ko")), folder.join(format!("{module}.ko")))?;
    }
    Ok(Vec::new())
}
