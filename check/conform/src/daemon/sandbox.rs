//! The sandbox of a daemon: files that are configured later are opened by its file helper, and its memory is in no core
//! dump.

use super::fixture::{
    Case, ConfigChange, Daemon, INVENTORY, MAIN, expect_sense, expect_undisturbed, lunar, luns, until,
};
use crate::loop_device::LoopDevice;
use crate::mounted_fs::MountedFs;
use crate::report::skip;
use crate::session::Session;
use crate::target::{Driver, Lab};
use crate::tools::expect_text;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const CASES: [Case; 6] = [
    ("a volume in a new folder is created, copied and deleted while the daemon runs", creates_in_a_new_folder),
    ("a secret in a new folder is read by a reload", reads_a_new_secret),
    ("a new device is served without a restart", serves_a_new_device),
    (
        "volumes larger than a file system that was mounted later are a warning until they fit",
        warns_of_over_committed_space,
    ),
    ("without its file helper, the daemon names the folder that is outside of its sandbox", loses_its_helper),
    ("memory for data is in no core dump, and the process makes none", excludes_memory_from_core_dumps),
];
/// How long a process may take to end.
const LIMIT: Duration = Duration::from_secs(10);

/// A folder outside of that of the daemon, made after its start.
fn new_folder(lab: &Lab, daemon: &Daemon, name: &str) -> Result<PathBuf> {
    let folder = lab.scratch.join(format!("{name}-{}", daemon.driver.name()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn started(lab: &Lab, driver: Driver, name: &str) -> Result<Daemon> {
    let daemon = super::fixture::started(lab, driver, name)?;
    if daemon.log_text().contains("no Landlock") {
        return skip("this kernel has no Landlock, so the daemon has no sandbox");
    }
    ensure!(helper(&daemon)?.is_some(), "the daemon has no file helper");
    Ok(daemon)
}

/// The processes that the daemon has started.
fn helper(daemon: &Daemon) -> Result<Option<Pid>> {
    let pid = daemon.target.as_ref().and_then(crate::target::Target::pid).context("the daemon runs")?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let first = children.split_whitespace().next().map(str::parse).transpose()?;
    Ok(first.and_then(Pid::from_raw))
}

fn text_of(path: &Path) -> Result<&str> {
    path.to_str().context("paths of the scratch folder are text")
}

fn creates_in_a_new_folder(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "new-folder")?;
    let folder = new_folder(lab, &daemon, "new-folder")?;
    let (file, copy) = (folder.join("late.img"), folder.join("copy.img"));
    let create = ["volume", "create", "late", "--kind", "file", "--path", text_of(&file)?, "--size", "16M"];
    lunar(lab, &daemon, &create)?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    lunar(lab, &daemon, &["group", "map", "all", "9", "late"])?;
    expect_sense(&mut session, INVENTORY)?;
    ensure!(luns(&mut session)? == [0, 4, 9], "{:?}", luns(&mut session)?);
    let mut late = daemon.session(MAIN, "late", 9)?;
    late.write(7, vec![0x5a; 512], 512)?;
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "other users may read the file");
    expect_text(&daemon.log_text(), &format!("{}: created, by the file helper", file.display()))?;
    // Folders of the system remain outside.
    for (name, refused) in [("system", "/usr/lunar-conform/late.img"), ("hidden", "/srv/.hidden/late.img")] {
        let create = ["volume", "create", name, "--kind", "file", "--path", refused, "--size", "16M"];
        let why = lunar(lab, &daemon, &create).unwrap_or_else(|why| format!("{why:#}"));
        expect_text(&why, "the sandbox of the running process does not include")?;
    }
    late.logout()?;
    session.logout()?;
    lunar(lab, &daemon, &["volume", "set", "late", "--read-only"])?;
    lunar(lab, &daemon, &["volume", "copy", "late", "copy", "--path", text_of(&copy)?])?;
    ensure!(fs::read(&copy)?.get(7 * 512..8 * 512) == Some(&[0x5a; 512][..]), "the copy has other data");
    lunar(lab, &daemon, &["group", "unmap", "all", "9", "--force"])?;
    for (name, file) in [("late", &file), ("copy", &copy)] {
        lunar(lab, &daemon, &["volume", "delete", name, "--with-data", "--yes", "--force"])?;
        ensure!(!file.exists(), "{} is left", file.display());
    }
    // A start has the folder in its sandbox, and does not ask the helper.
    daemon.stop()
}

fn reads_a_new_secret(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "new-secret")?;
    let secret = new_folder(lab, &daemon, "new-secret")?.join("alice");
    fs::write(&secret, "a secret of alice\n")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    let section = format!("[user.alice]\nsecret = {{ file = \"{}\" }}\n", secret.display());
    daemon.write(&(daemon.text(&ConfigChange::default()) + &section))?;
    daemon.reload("create user alice")?;
    expect_text(&daemon.log_text(), &format!("{}: opened for reading, by the file helper", secret.display()))?;
    expect_undisturbed(&mut session)?;
    // The file is renewed, and read again.
    fs::write(&secret, "another secret of alice\n")?;
    daemon.reload("change user alice")?;
    daemon.stop()
}

fn serves_a_new_device(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "new-device")?;
    let image = new_folder(lab, &daemon, "new-device")?.join("image");
    fs::File::create(&image)?.set_len(16 << 20)?;
    let device = LoopDevice::attach(text_of(&image)?)?;
    lunar(lab, &daemon, &["volume", "create", "device", "--kind", "block", "--path", &device.path])?;
    lunar(lab, &daemon, &["group", "map", "all", "9", "device"])?;
    let mut session = daemon.session(MAIN, "host", 9)?;
    session.write(3, vec![0xa5; 512], 512)?;
    ensure!(session.read(3, 1, 512)? == [0xa5; 512], "the device has other data");
    session.logout()?;
    // The device is opened once more, in another way.
    lunar(lab, &daemon, &["volume", "set", "device", "--read-only"])?;
    daemon.stop()
}

/// MiB of the small file system.
const SYSTEM_MIB: u64 = 32;

fn warns_of_over_committed_space(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "space")?;
    let Some(mounted) = MountedFs::new(lab, "tmpfs", SYSTEM_MIB)? else {
        return skip("no file system can be mounted here");
    };
    let create = |name: &str, size| {
        let file = mounted.path.join(format!("{name}.img"));
        let words = ["volume", "create", name, "--kind", "file", "--path", text_of(&file)?, "--size", size];
        lunar(lab, &daemon, &words)
    };
    let fits = create("small", "24M")?;
    ensure!(!fits.contains("file system"), "a volume that fits is warned of:\n{fits}");
    let place = mounted.path.display();
    expect_text(
        &create("large", "16M")?,
        &format!("note: file system of {place}: 2 volumes there may take 40 MiB more"),
    )?;
    until(|| daemon.log_text().contains("warning: file system of"))?;
    expect_text(&lunar(lab, &daemon, &["status"])?, "2 volumes there may take 40 MiB more, and 32 MiB are free")?;
    lunar(lab, &daemon, &["volume", "delete", "large", "--with-data", "--yes"])?;
    until(|| lunar(lab, &daemon, &["status"]).is_ok_and(|shown| !shown.contains("volumes there")))?;
    daemon.stop()
}

fn loses_its_helper(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "no-helper")?;
    let helper = helper(&daemon)?.context("it has a helper")?;
    kill_process(helper, Signal::KILL)?;
    let folder = new_folder(lab, &daemon, "no-helper")?;
    let file = folder.join("late.img");
    let create = ["volume", "create", "late", "--kind", "file", "--path", text_of(&file)?, "--size", "16M"];
    let end = Instant::now() + LIMIT;
    // The first request finds that the helper has ended.
    let why = loop {
        let why = lunar(lab, &daemon, &create).err().context("the volume was created")?;
        let why = format!("{why:#}");
        if why.contains("the sandbox of the running process does not include") || Instant::now() > end {
            break why;
        }
    };
    expect_text(&why, &format!("does not include {}", folder.display()))?;
    expect_text(&why, "systemctl restart lunar")?;
    expect_text(&daemon.log_text(), "the file helper has ended")?;
    ensure!(!file.exists(), "a file is left");
    daemon.session(MAIN, "host", 0)?.logout()?;
    daemon.stop()
}

/// The regions of a process with their flags: `dd` excludes one from core dumps.
fn regions(smaps: &str) -> Vec<(&str, u64, bool)> {
    let mut regions = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Size:") => {
                let kib = words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
                if let Some((_, size, _)) = regions.last_mut() {
                    *size = kib << 10;
                }
            }
            Some("VmFlags:") => {
                let is_excluded = words.any(|flag| flag == "dd");
                if let Some((_, _, excluded)) = regions.last_mut() {
                    *excluded = is_excluded;
                }
            }
            Some(first) if !first.ends_with(':') => regions.push((line, 0, false)),
            _ => {}
        }
    }
    regions
}

fn excludes_memory_from_core_dumps(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "core-dumps")?;
    let mut session: Session = daemon.session(MAIN, "host", 4)?;
    session.read(0, 1, 512)?;
    let pid = daemon.target.as_ref().and_then(crate::target::Target::pid).context("the daemon runs")?;
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("there is such a limit")?;
    let numbers: Vec<_> = core.split_whitespace().skip(4).take(2).collect();
    ensure!(numbers == ["0", "0"], "core dumps are limited to {numbers:?}");
    let kinds = fs::read_to_string(format!("/proc/{pid}/coredump_filter"))?;
    ensure!(kinds.trim().bytes().all(|digit| digit == b'0'), "core dumps have memory of the kinds {kinds}");
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).map_err(|why| anyhow!("only root may look: {why}"))?;
    // The arenas of two cores.
    let large: Vec<_> = regions(&smaps).into_iter().filter(|(_, size, _)| *size >= 16 << 20).collect();
    let writable = |line: &str| line.split_whitespace().nth(1).is_some_and(|rights| rights.starts_with("rw"));
    let large: Vec<_> = large.into_iter().filter(|(line, ..)| writable(line)).collect();
    ensure!(large.len() >= 2, "the arenas are not found:\n{smaps}");
    for (line, size, is_excluded) in large {
        ensure!(is_excluded, "{size} bytes would be in a core dump: {line}");
    }
    session.logout()?;
    daemon.stop()
}
