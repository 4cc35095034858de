//! A tree of distribution packages for the guest, fetched with this machine's package sources into a cache folder and
//! unpacked without root privileges, without a chroot and without changes to the packages installed here.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::kernel;
use crate::process;
use crate::report::{Report, skip};

/// The contents of a tree.
struct Recipe {
    /// The prefix of its folder's name.
    name: &'static str,
    /// The list of packages, without their dependencies and the kernel's package.
    packages: &'static str,
    /// The Debian release of the packages; `None`: this machine's package sources.
    release: Option<&'static str>,
    /// The components of the release.
    components: &'static str,
    /// Whether a kernel is in the tree, for a guest; else programs of the tree run on this machine.
    has_kernel: bool,
}

const STOCK_RECIPE: Recipe = Recipe {
    name: "guest",
    packages: include_str!("../../guest-packages.txt"),
    release: None,
    components: "main",
    has_kernel: true,
};
/// The first release whose kernel supports NVMe in-band authentication and TLS, with the daemon that does TLS
/// handshakes for the kernel.
const TLS_RECIPE: Recipe = Recipe {
    name: "secure",
    packages: include_str!("../../guest-packages-secure.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// The first release whose kernel has ublk, with the stock packages.
const UBLK_RECIPE: Recipe = Recipe {
    name: "ublk",
    packages: include_str!("../../guest-packages.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// A kernel of today, with the tools of tapes.
const DEVICE_RECIPE: Recipe = Recipe {
    name: "device",
    packages: include_str!("../../guest-packages-device.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// A kernel of today, with Bacula.
const BACULA_RECIPE: Recipe = Recipe {
    name: "bacula",
    packages: include_str!("../../guest-packages-bacula.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// A kernel of today, with the tools of networks and RDMA.
const RDMA_RECIPE: Recipe = Recipe {
    name: "rdma",
    packages: include_str!("../../guest-packages-rdma.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// A kernel of today, with ZFS but for its modules.
const ZFS_RECIPE: Recipe = Recipe {
    name: "zfs",
    packages: include_str!("../../guest-packages-zfs.txt"),
    release: Some("trixie"),
    components: "main contrib",
    has_kernel: true,
};
/// A kernel of today, with a target that is a program.
const FIGURES_RECIPE: Recipe = Recipe {
    name: "figures",
    packages: include_str!("../../guest-packages-figures.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: true,
};
/// The source of the modules of ZFS, and what they are compiled with.
const ZFS_SOURCE_RECIPE: Recipe = Recipe {
    name: "zfs-source",
    packages: include_str!("../../zfs-source-packages.txt"),
    release: Some("trixie"),
    components: "main contrib",
    has_kernel: false,
};
/// A small system, with the loader that boots it.
const SYSTEM_RECIPE: Recipe = Recipe {
    name: "system",
    packages: include_str!("../../guest-packages-system.txt"),
    release: None,
    components: "main",
    has_kernel: true,
};
/// A Ceph cluster of today.
const CEPH_RECIPE: Recipe = Recipe {
    name: "ceph",
    packages: include_str!("../../ceph-packages.txt"),
    release: Some("trixie"),
    components: "main",
    has_kernel: false,
};
/// Names of the kernel's package in the distributions; the first that exists is used.
const KERNELS: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];
/// Must change when trees that older code has built cannot be used any more.
const LAYOUT_VERSION: u32 = 2;
/// The keys that sign Debian's packages.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Package sources that take longer are taken for unreachable.
pub(super) const FETCH_LIMIT: Duration = Duration::from_secs(600);
/// Files that the guest does not need and that make up most of the packages.
const EXCLUDED: [&str; 12] = [
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/share/locale",
    "./usr/share/info",
    "*/kernel/sound",
    "*/kernel/drivers/gpu",
    "*/kernel/drivers/media",
    "*/kernel/drivers/net/wireless",
    "*/kernel/drivers/net/ethernet",
    "*/kernel/drivers/iio",
    "*/kernel/drivers/usb",
    "*/kernel/drivers/staging",
];

/// An unpacked tree and its kernel.
#[derive(Clone)]
pub(crate) struct Sysroot {
    pub path: PathBuf,
    /// The kernel for an emulator, unpacked if that is possible.
    pub kernel: PathBuf,
    /// The kernel for a loader.
    pub packed_kernel: PathBuf,
    /// The kernel's folder under lib/modules.
    pub modules: PathBuf,
}

/// Returns the tree of stock packages; builds it first if necessary.
pub(crate) fn ensure(report: &Report) -> Result<Sysroot> {
    ensure_of(report, &STOCK_RECIPE)
}

/// Returns the tree whose kernel supports NVMe in-band authentication and TLS; builds it first if necessary.
pub(crate) fn ensure_with_tls(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &TLS_RECIPE)
}

/// Returns the tree whose kernel has ublk; builds it first if necessary.
pub(crate) fn ensure_with_ublk(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &UBLK_RECIPE)
}

/// Returns the tree with the tools of tapes; builds it first if necessary.
pub(crate) fn ensure_with_devices(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &DEVICE_RECIPE)
}

/// Returns the tree with Bacula; builds it first if necessary.
pub(crate) fn ensure_with_bacula(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &BACULA_RECIPE)
}

/// Returns the tree with the tools of RDMA; builds it first if necessary.
pub(crate) fn ensure_with_rdma(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &RDMA_RECIPE)
}

/// Returns the tree with ZFS but for its modules; builds it first if necessary.
pub(crate) fn ensure_with_zfs(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &ZFS_RECIPE)
}

/// Returns the tree with the peers that are compared with Lunar; builds it first if necessary.
pub(crate) fn ensure_with_peers(report: &Report) -> Result<Sysroot> {
    ensure_of_debian(report, &FIGURES_RECIPE)
}

/// Returns the root of the tree with the source of ZFS; builds it first if necessary.
pub(super) fn zfs_source(report: &Report) -> Result<PathBuf> {
    needs_keys()?;
    Ok(tree_of(report, &ZFS_SOURCE_RECIPE)?.join("root"))
}

/// Returns the tree of a small system that boots from a disk; builds it first if necessary.
pub(crate) fn ensure_of_system(report: &Report) -> Result<Sysroot> {
    ensure_of(report, &SYSTEM_RECIPE)
}

/// Returns the root of the tree with Ceph; builds it first if necessary.
pub(crate) fn ceph_tree(report: &Report) -> Result<PathBuf> {
    needs_keys()?;
    Ok(tree_of(report, &CEPH_RECIPE)?.join("root"))
}

fn needs_keys() -> Result<()> {
    match Path::new(KEYRING).exists() {
        true => Ok(()),
        false => skip("Debian's packages can only be verified with Debian's archive keys, which are not installed"),
    }
}

fn ensure_of_debian(report: &Report, recipe: &Recipe) -> Result<Sysroot> {
    needs_keys()?;
    ensure_of(report, recipe)
}

fn ensure_of(report: &Report, recipe: &Recipe) -> Result<Sysroot> {
    open(&tree_of(report, recipe)?)
}

/// The folder of a tree, which is built first if necessary.
fn tree_of(report: &Report, recipe: &Recipe) -> Result<PathBuf> {
    if std::env::consts::ARCH != "x86_64" {
        return skip("the packages run on x86_64 only");
    }
    let cache = cache_folder()?;
    std::fs::create_dir_all(&cache).with_context(|| format!("{}", cache.display()))?;
    let path = cache.join(format!("{}-{:016x}", recipe.name, key(recipe)));
    let _lock = lock_exclusively(&cache, recipe.name)?;
    if !path.join("complete").exists() {
        report.note(&format!("fetching the guest's packages into {} (once)", path.display()));
        build(report, &path, recipe)?;
    }
    Ok(path)
}

/// Takes a lock file until the result is dropped, so that two runs do not build the same tree at once.
pub(super) fn lock_exclusively(cache: &Path, name: &str) -> Result<File> {
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

pub(super) fn cache_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("LUNAR_CACHE") {
        return Ok(PathBuf::from(folder));
    }
    if let Some(folder) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(Path::new(&folder).join("lunar"));
    }
    let home = std::env::var_os("HOME").context("neither LUNAR_CACHE nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/lunar"))
}

/// The key of a tree: it changes with the list of packages and with the distribution's release.
fn key(recipe: &Recipe) -> u64 {
    let mut hasher = DefaultHasher::new();
    (LAYOUT_VERSION, recipe.packages, recipe.release, KERNELS, EXCLUDED).hash(&mut hasher);
    std::fs::read_to_string("/etc/os-release").unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn open(path: &Path) -> Result<Sysroot> {
    let root = path.join("root");
    for entry in
        std::fs::read_dir(root.join("usr/lib/modules")).context("the guest's packages have no kernel modules")?
    {
        let modules = entry?.path();
        let version = modules.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
        // Newer packages install the image beside the modules.
        for kernel in [root.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")] {
            if kernel.exists() {
                let unpacked = path.join(kernel::UNPACKED);
                let packed_kernel = kernel.clone();
                let kernel = if unpacked.exists() { unpacked } else { kernel };
                return Ok(Sysroot { path: root, kernel, packed_kernel, modules });
            }
        }
    }
    bail!("{} has no kernel", root.display())
}

fn build(report: &Report, path: &Path, recipe: &Recipe) -> Result<()> {
    let _ = std::fs::remove_dir_all(path);
    let root = path.join("root");
    folders(path)?;
    if let Some(release) = recipe.release {
        let components = recipe.components;
        let source = format!("deb [signed-by={KEYRING}] http://deb.debian.org/debian {release} {components}\n");
        std::fs::write(sources(path), source)?;
    }
    let updated = process::run(apt(path).args(["update", "-q"]), FETCH_LIMIT)?;
    if !updated.status.success() {
        // One of several sources may be unreachable; the next step shows whether the rest is enough.
        report.note(&format!("not every package index could be fetched:\n{}", process::last_lines(&updated.text, 5)));
    }
    let mut packages: Vec<&str> =
        recipe.packages.lines().flat_map(|line| line.split('#').next()).flat_map(str::split_whitespace).collect();
    if recipe.has_kernel {
        packages.push(kernel_package(path)?);
    }
    let mut install = apt(path);
    install.args(["install", "-q", "-y", "--download-only"]).args(&packages);
    process::run(&mut install, FETCH_LIMIT)?.succeeded().context("fetching the guest's packages")?;

    let count = unpack_all(path, &root)?;
    if recipe.has_kernel
        && let Err(why) = kernel::unpack(&open(path)?.kernel, path)
    {
        report.note(&format!("the guest's kernel cannot be unpacked, so it boots slowly: {why:#}"));
    }
    File::create(path.join("complete"))?;
    report.note(&format!("unpacked {count} packages for the guest"));
    Ok(())
}

/// Creates the folders that apt-get requires.
pub(super) fn folders(path: &Path) -> Result<()> {
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(path.join(folder))?;
    }
    Ok(())
}

/// Unpacks all fetched packages and removes their archives; returns the number of packages.
pub(super) fn unpack_all(path: &Path, root: &Path) -> Result<usize> {
    // Make these four folders links, as they are on an installed machine, before packages are unpacked.
    std::fs::create_dir_all(root.join("usr"))?;
    for folder in ["bin", "sbin", "lib", "lib64"] {
        std::fs::create_dir_all(root.join("usr").join(folder))?;
        std::os::unix::fs::symlink(format!("usr/{folder}"), root.join(folder))?;
    }
    let mut count = 0;
    for entry in std::fs::read_dir(path.join("cache/archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            unpack(&package, root)?;
            count += 1;
        }
    }
    for folder in ["state", "cache"] {
        std::fs::remove_dir_all(path.join(folder))?;
    }
    Ok(count)
}

/// The path of the tree's own sources.list, which need not exist.
fn sources(path: &Path) -> PathBuf {
    path.join("sources.list")
}

/// Returns an apt-get command with this machine's settings and, unless the tree has its own, its package sources; it
/// regards no package as installed and keeps all its files in `path`.
pub(super) fn apt(path: &Path) -> Command {
    let mut command = process::bound("apt-get");
    let set = |option: &str, value: &str| ["-o".to_owned(), format!("{option}={value}")];
    let folder = path.to_string_lossy();
    command
        .args(set("Dir::State", &format!("{folder}/state")))
        .args(set("Dir::State::status", "/dev/null"))
        .args(set("Dir::Cache", &format!("{folder}/cache")))
        .args(set("Dir::Cache::archives", "archives"))
        .args(set("APT::Sandbox::User", ""))
        .args(set("APT::Install-Recommends", "false"))
        .args(set("APT::Keep-Downloaded-Packages", "true"))
        .args(set("Acquire::Languages", "none"))
        .args(set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false"))
        .args(set("Acquire::Retries", "3"))
        .args(set("APT::Update::Post-Invoke", ""))
        .args(set("Debug::NoLocking", "true"))
        .env("DEBIAN_FRONTEND", "noninteractive");
    if sources(path).exists() {
        command.args(set("Dir::Etc::sourcelist", &sources(path).to_string_lossy()));
        command.args(set("Dir::Etc::sourceparts", "/dev/null"));
    }
    command
}

fn kernel_package(path: &Path) -> Result<&'static str> {
    for package in KERNELS {
        let mut query = apt(path);
        query.args(["install", "-q", "-y", "--print-uris", package]);
        if process::run(&mut query, FETCH_LIMIT)?.status.success() {
            return Ok(package);
        }
    }
    bail!("the package sources of this machine have none of the kernels {}", KERNELS.join(", "))
}

fn unpack(package: &Path, root: &Path) -> Result<()> {
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb")?;
    let archive = reader.stdout.take().context("the output of dpkg-deb is piped")?;
    let mut writer = Command::new("tar");
    writer.args(["-x", "--keep-directory-symlink", "--no-same-owner", "--wildcards"]);
    writer.args(EXCLUDED.map(|pattern| format!("--exclude={pattern}")));
    let written = writer.arg("-C").arg(root).stdin(archive).status().context("cannot start tar")?;
    ensure!(reader.wait()?.success() && written.success(), "cannot unpack {}", package.display());
    Ok(())
}
