//! The part `zfs`: a machine with a pool of ZFS, whose zvols a script serves.
//!
//! Debian has no compiled modules of ZFS. They are compiled for the guest's kernel once, from Debian's source package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysroot::{self, Sysroot};
use super::ublk::copy_program;
use super::{Script, Targets};
use crate::libiscsi;
use crate::process;
use crate::report::skip;
use crate::target::{Driver, Lab, Spec};

/// The modules, in the order in which they are loaded.
pub(super) const MODULES: [&str; 2] = ["spl", "zfs"];
/// How long the compilation may take: some four minutes on two processors.
const COMPILE_LIMIT: Duration = Duration::from_secs(3600);
/// Times that the pool is filled and emptied: those of the whole and of the long form.
const FILLS: u32 = 3;
const FILLS_LONG: u32 = 100;
/// Kills of the daemon under load.
const KILLS: u32 = 2;
const KILLS_LONG: u32 = 50;
/// Guest memory: ZFS has a cache of its own, and the pool is in a file in memory.
const MEMORY: &str = "2G";

/// Runs the part; with `--long`, the pool is filled and emptied more often, and the daemon is killed more often.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("zfs/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        if !lab.whole {
            return skip(
                "compiling the modules of ZFS, and its guest, take minutes: `make conform CONFORM=zfs` runs it",
            );
        }
        found = Some(sysroot::ensure_with_zfs(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let mut modules = None;
    lab.report.check(&part, "the modules of ZFS are compiled for the guest's kernel", || {
        modules = Some(compiled(lab, &sysroot)?);
        Ok(())
    });
    let Some(modules) = modules else { return Ok(()) };
    let folder = lab.scratch.join("zfs");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/zfs", &*folder));
    let script = Script { name: "zfs", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 2, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        std::fs::write(folder.join("libiscsi"), libiscsi::reasons_of_devices()?)?;
        for module in MODULES {
            std::fs::copy(modules.join(format!("{module}.ko")), folder.join(format!("{module}.ko")))?;
        }
        let fills = if lab.long { FILLS_LONG } else { FILLS };
        // With `--only fills`, the long form is one of fills and suites.
        let kills = if lab.long && lab.only.is_none() { KILLS_LONG } else { KILLS };
        let settings = format!("DRIVER={}\nFILLS={fills}\nKILLS={kills}\n", driver.name());
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        let targets = Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None };
        script.run_with(lab, targets, &["-m".to_owned(), MEMORY.to_owned()])
    });
    Ok(())
}

/// The folder with the compiled modules, which are kept for the kernel.
pub(super) fn compiled(lab: &Lab, sysroot: &Sysroot) -> Result<PathBuf> {
    let kernel = sysroot.modules.file_name().context("the modules have a folder")?.to_string_lossy().into_owned();
    let folder = sysroot::cache_folder()?.join(format!("zfs-modules-{kernel}"));
    if MODULES.iter().all(|module| folder.join(format!("{module}.ko")).exists()) {
        return Ok(folder);
    }
    if !rustix::process::geteuid().is_root() {
        return skip("the modules of ZFS are compiled in a folder with chroot, which needs root");
    }
    let source = sysroot::zfs_source(&lab.report)?;
    lab.report.note(&format!("compiling the modules of ZFS in {} (once)", source.display()));
    compile(&source, &kernel)?;
    std::fs::create_dir_all(&folder)?;
    let built = only(&source.join("usr/src"), "zfs-")?.join("module");
    for module in MODULES {
        let mut strip = Command::new("strip");
        let (name, made) = (format!("{module}.ko"), built.join(format!("{module}.ko")));
        strip.args(["--strip-debug", "-o"]).arg(folder.join(name)).arg(made);
        process::run(&mut strip, COMPILE_LIMIT)?.succeeded().context("copying a module")?;
    }
    Ok(folder)
}

/// Compiles the modules in their tree, which is the root folder meanwhile: its compiler looks for its own files there.
fn compile(source: &Path, kernel: &str) -> Result<()> {
    let headers = source.join(format!("usr/src/linux-headers-{kernel}"));
    ensure!(
        headers.exists(),
        "the guest has the kernel {kernel}, and the source of ZFS has other headers: remove both trees from the cache"
    );
    let zfs = only(&source.join("usr/src"), "zfs-")?;
    let common = only_ending(&source.join("usr/src"), "linux-headers-", "-common")?;
    let inside = |path: &Path| path.strip_prefix(source).map(|path| Path::new("/").join(path).display().to_string());
    let script = format!(
        "set -e\n\
         for name in dev proc sys; do mkdir -p {root}/$name; mount --rbind /$name {root}/$name; done\n\
         mkdir -p {root}/tmp\n\
         ln -sf gawk {root}/usr/bin/awk\n\
         ln -sf gcc {root}/usr/bin/cc\n\
         exec chroot {root} /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/tmp /usr/bin/bash -ec '\n\
         cd {zfs}\n\
         ./configure --with-config=kernel --with-linux={common} --with-linux-obj={headers}\n\
         make -j$(nproc)'\n",
        root = source.display(),
        zfs = inside(&zfs)?,
        common = inside(&common)?,
        headers = inside(&headers)?,
    );
    let mut build = process::bound("unshare");
    build.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    process::run(&mut build, COMPILE_LIMIT)?.succeeded().context("compiling the modules of ZFS")?;
    Ok(())
}

/// The entry of a folder whose name begins so.
fn only(folder: &Path, start: &str) -> Result<PathBuf> {
    only_ending(folder, start, "")
}

/// The entry of a folder whose name begins and ends so.
fn only_ending(folder: &Path, start: &str, end: &str) -> Result<PathBuf> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(start) && name.ends_with(end)) {
            return Ok(entry.path());
        }
    }
    anyhow::bail!("{} has nothing that begins with {start} and ends with {end}", folder.display())
}
