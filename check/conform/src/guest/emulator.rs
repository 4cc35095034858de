//! Finds a QEMU with vfio-user, which also runs programs twice as fast: the machine's own if it is new enough, else one
//! from a newer Debian suite, unpacked into the cache folder.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysroot;
use crate::process;
use crate::report::{Report, skip};

const PACKAGES: &str = include_str!("../../qemu-packages.txt");
/// The suite that has the package and the one that it is based on; the last is preferred.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The limit of a query of the emulator's features.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// Returns the command line of the newer emulator, or of the machine's own if the newer one is not available.
pub(super) fn newest_or_own(report: &Report) -> Vec<String> {
    emulator(report).unwrap_or_else(|why| {
        report.note(&format!("guests run on this machine's QEMU: {why:#}"));
        own()
    })
}

/// Returns the command line of the machine's own emulator.
pub(super) fn own() -> Vec<String> {
    vec!["qemu-system-x86_64".to_owned()]
}

/// Returns the start of the command line of an emulator with vfio-user.
pub(super) fn emulator(report: &Report) -> Result<Vec<String>> {
    if supports_vfio_user(&own()) {
        return Ok(own());
    }
    if !Path::new(KEYRING).exists() {
        return skip("QEMU is older than 10.1, and a newer one cannot be fetched without Debian's archive keys");
    }
    let cache = sysroot::cache_folder()?;
    std::fs::create_dir_all(&cache)?;
    let mut hasher = DefaultHasher::new();
    (PACKAGES, SUITES).hash(&mut hasher);
    let path = cache.join(format!("qemu-{:016x}", hasher.finish()));
    let _lock = sysroot::lock_exclusively(&cache, "qemu")?;
    if !path.join("complete").exists() {
        report.note(&format!("fetching a QEMU with vfio-user into {} (once)", path.display()));
        build(&path).context("fetching QEMU")?;
    }
    let emulator = command(&path.join("root"))?;
    ensure!(supports_vfio_user(&emulator), "{} has no QEMU with vfio-user", path.display());
    Ok(emulator)
}

fn supports_vfio_user(emulator: &[String]) -> bool {
    let mut query = process::bound(&emulator[0]);
    query.args(&emulator[1..]).args(["-device", "vfio-user-pci,help"]);
    // A QEMU without the device prints an error and exits with status zero.
    process::run(&mut query, ASK_LIMIT).is_ok_and(|output| output.status.success() && output.text.contains("socket="))
}

fn build(path: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(path);
    sysroot::folders(path)?;
    let list = path.join("sources.list");
    let lines: String =
        SUITES.map(|suite| format!("deb [arch=amd64 signed-by={KEYRING}] {MIRROR} {suite} main\n")).concat();
    std::fs::write(&list, lines)?;
    let apt = || {
        let mut command = sysroot::apt(path);
        command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", list.display()));
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null"]);
        command.args(["-o", &format!("APT::Default-Release={}", SUITES[1])]);
        command
    };
    process::run(apt().args(["update", "-q"]), sysroot::FETCH_LIMIT)?.succeeded()?;
    let packages = PACKAGES.lines().flat_map(|line| line.split('#').next()).flat_map(str::split_whitespace);
    let mut install = apt();
    install.args(["install", "-q", "-y", "--download-only"]).args(packages);
    process::run(&mut install, sysroot::FETCH_LIMIT)?.succeeded()?;
    sysroot::unpack_all(path, &path.join("root"))?;
    File::create(path.join("complete"))?;
    Ok(())
}

/// Returns the command line that runs the unpacked QEMU with its own loader and libraries.
fn command(root: &Path) -> Result<Vec<String>> {
    // Its modules differ from those of the machine's QEMU.
    let modules = format!("QEMU_MODULE_DIR={}", text(root, "usr/lib/x86_64-linux-gnu/qemu")?);
    let program = of_tree(root, "usr/bin/qemu-system-x86_64")?;
    let firmware = ["usr/share/qemu", "usr/share/seabios"].map(|path| Ok(["-L".to_owned(), text(root, path)?]));
    let firmware: Result<Vec<[String; 2]>> = firmware.into_iter().collect();
    Ok(["env".to_owned(), modules].into_iter().chain(program).chain(firmware?.into_iter().flatten()).collect())
}

/// Returns the command line that runs a program of an unpacked tree with the tree's loader and libraries.
pub(super) fn of_tree(root: &Path, program: &str) -> Result<Vec<String>> {
    let libraries = ["usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64"].map(|path| text(root, path));
    let libraries: Result<Vec<String>> = libraries.into_iter().collect();
    Ok(vec![
        text(root, "lib64/ld-linux-x86-64.so.2")?,
        "--inhibit-cache".to_owned(),
        "--library-path".to_owned(),
        libraries?.join(":"),
        text(root, program)?,
    ])
}

fn text(root: &Path, path: &str) -> Result<String> {
    root.join(path).to_str().map(str::to_owned).context("the cache folder's name is not UTF-8")
}
