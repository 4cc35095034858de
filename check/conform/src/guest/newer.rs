//! A new emulator, which knows vfio-user and starts programs in half the time: this machine's own if it is new enough,
//! else one from a newer suite of Debian, unpacked into a folder of the cache.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysroot;
use crate::process;
use crate::report::{Report, skip};

const PACKAGES: &str = include_str!("../../qemu-packages.txt");
/// The suite that has it, and the one that it is built on.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// An emulator tells what it can in a moment.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// The command line of whatever emulator there is, the newer one if it can be had.
pub(super) fn whatever(report: &Report) -> Vec<String> {
    emulator(report).unwrap_or_else(|why| {
        report.note(&format!("guests run on this machine's own emulator: {why:#}"));
        own()
    })
}

fn own() -> Vec<String> {
    vec!["qemu-system-x86_64".to_owned()]
}

/// The emulator's command line, as far as it is the same for every guest.
pub(super) fn emulator(report: &Report) -> Result<Vec<String>> {
    if knows(&own()) {
        return Ok(own());
    }
    if !Path::new(KEYRING).exists() {
        return skip("QEMU here is older than 10.1, and this machine has no keys of Debian to fetch a newer one");
    }
    let cache = sysroot::cache_folder()?;
    std::fs::create_dir_all(&cache)?;
    let mut hasher = DefaultHasher::new();
    (PACKAGES, SUITES).hash(&mut hasher);
    let path = cache.join(format!("qemu-{:016x}", hasher.finish()));
    let _lock = sysroot::alone(&cache, "qemu")?;
    if !path.join("complete").exists() {
        report.note(&format!("fetching an emulator that knows vfio-user into {} (once)", path.display()));
        make(&path).context("fetching QEMU")?;
    }
    let newer = command(&path.join("root"))?;
    ensure!(knows(&newer), "{} holds no QEMU that knows vfio-user", path.display());
    Ok(newer)
}

fn knows(emulator: &[String]) -> bool {
    let mut ask = process::bound(&emulator[0]);
    ask.args(&emulator[1..]).args(["-device", "vfio-user-pci,help"]);
    // One that does not know it says so, and ends well.
    process::run(&mut ask, ASK_LIMIT).is_ok_and(|said| said.status.success() && said.text.contains("socket="))
}

fn make(path: &Path) -> Result<()> {
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

/// Started by its own loader, with its own libraries.
fn command(root: &Path) -> Result<Vec<String>> {
    let text = |path: &str| root.join(path).to_str().map(str::to_owned).context("the cache's name is no text");
    let libraries = ["usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64"].map(text);
    let libraries: Result<Vec<String>> = libraries.into_iter().collect();
    Ok(vec![
        // Its modules are not those of this machine's own.
        "env".to_owned(),
        format!("QEMU_MODULE_DIR={}", text("usr/lib/x86_64-linux-gnu/qemu")?),
        text("lib64/ld-linux-x86-64.so.2")?,
        "--inhibit-cache".to_owned(),
        "--library-path".to_owned(),
        libraries?.join(":"),
        text("usr/bin/qemu-system-x86_64")?,
        "-L".to_owned(),
        text("usr/share/qemu")?,
        "-L".to_owned(),
        text("usr/share/seabios")?,
    ])
}
