//! The nodes of a namespace, by a path to its generic node, to its disk or to a partition of that. A namespace that
//! comes back may have other numbers: then it is found by its name.

use lunar_reactor::block_device::{device_bytes, device_folder, device_name};
use lunar_reactor::nvme_generic::is_node;
use rustix::fs::{FileType, major, makedev, minor, stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the unit in which the kernel tells starts of partitions.
const SECTOR: u64 = 512;
/// The class of all disks and partitions in sysfs.
const BLOCK: &str = "/sys/class/block";
/// Disks and partitions that are searched for a name: far more than a machine has.
const SEARCHED_MAX: usize = 16384;

/// The names of the namespaces that this process has opened, by their configured paths.
static KNOWN: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<PathBuf, String>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a namespace, or a partition of it, is on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nodes {
    /// The generic node: `/dev/ng0n1`.
    pub(crate) generic: PathBuf,
    /// The node of the disk or partition that is served: `/dev/nvme0n1`, `/dev/nvme0n1p2`.
    pub(crate) block: PathBuf,
    /// The number of the disk or partition.
    pub(crate) device: u64,
    /// The number of the disk.
    pub(crate) disk: u64,
    /// Where the partition begins, in bytes.
    pub(crate) start: u64,
    /// Bytes of the disk or partition.
    pub(crate) size: u64,
    /// The number of this instance of the disk: a disk that comes back has another one.
    pub(crate) instance: u64,
}

/// Why a path leads to no namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoNamespace {
    /// The path cannot be looked at.
    Path(Errno),
    /// It is neither the generic node of an NVMe namespace nor an NVMe disk.
    OtherFile,
    /// The kernel has no disk for the namespace: its command set, or its format with metadata, is one that the kernel
    /// does not know.
    NoDisk,
    /// The kernel has no generic node for the disk: it is older than 5.13.
    NoGeneric,
}

impl Nodes {
    /// The name that the namespace reports, and the number of the partition.
    pub(crate) fn name(&self) -> Option<String> {
        device_name(self.device)
    }
}

/// The nodes of the namespace of this path: where the path leads, unless a namespace that was opened by this path is
/// elsewhere now.
pub(crate) fn locate(path: &Path) -> Result<Nodes, NoNamespace> {
    let found = resolve(path);
    let Some(name) = known().get(path).cloned() else { return found };
    match &found {
        Ok(nodes) if nodes.name().as_ref() == Some(&name) => found,
        _ => search(&name).map_or(found, Ok),
    }
}

/// Remembers the name of a namespace that was opened by this path.
pub(crate) fn remember(path: &Path, nodes: &Nodes) {
    match nodes.name() {
        Some(name) => known().insert(path.to_owned(), name),
        None => known().remove(path),
    };
}

/// The disk or partition of this name.
fn search(name: &str) -> Option<Nodes> {
    let all = std::fs::read_dir(BLOCK).ok()?.take(SEARCHED_MAX).filter_map(Result::ok);
    let disks = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"nvme"));
    let mut numbers = disks.filter_map(|entry| number_of(&entry.path()));
    of_block(numbers.find(|number| device_name(*number).as_deref() == Some(name))?).ok()
}

/// The nodes of the namespace that this path leads to.
pub(crate) fn resolve(path: &Path) -> Result<Nodes, NoNamespace> {
    let found = stat(path).map_err(NoNamespace::Path)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::CharacterDevice if is_node(found.st_rdev) => {
            let folder = format!("/sys/dev/char/{}:{}", major(found.st_rdev), minor(found.st_rdev));
            let disk = sibling(Path::new(&folder), "nvme").ok_or(NoNamespace::NoDisk)?;
            let number = number_of(&Path::new(BLOCK).join(&disk)).ok_or(NoNamespace::NoDisk)?;
            nodes(path.to_owned(), Path::new("/dev").join(disk), number, number)
        }
        FileType::BlockDevice => of_block(found.st_rdev),
        _ => Err(NoNamespace::OtherFile),
    }
}

/// The nodes of a disk or partition.
fn of_block(device: u64) -> Result<Nodes, NoNamespace> {
    let folder = device_folder(device);
    let is_partition = folder.join("partition").exists();
    let whole = if is_partition { folder.join("..") } else { folder.clone() };
    let (name, disk) = name_of(&folder).zip(name_of(&whole)).ok_or(NoNamespace::OtherFile)?;
    instance(&disk, "nvme").ok_or(NoNamespace::OtherFile)?;
    let generic = sibling(&whole, "ng").ok_or(NoNamespace::NoGeneric)?;
    let number = number_of(&whole).ok_or(NoNamespace::NoDisk)?;
    nodes(Path::new("/dev").join(generic), Path::new("/dev").join(name), device, number)
}

fn nodes(generic: PathBuf, block: PathBuf, device: u64, disk: u64) -> Result<Nodes, NoNamespace> {
    let size = device_bytes(device).filter(|size| *size > 0).ok_or(NoNamespace::NoDisk)?;
    let start = if device == disk { Some(0) } else { number_in(device, "start") };
    let start = start.and_then(|sectors| sectors.checked_mul(SECTOR)).ok_or(NoNamespace::NoDisk)?;
    Ok(Nodes { generic, block, device, disk, start, size, instance: instance_of(disk).unwrap_or(0) })
}

/// The number of the instance of a disk that the kernel has under this number now; `None` if it has none, or is older
/// than 5.15.
pub(crate) fn instance_of(disk: u64) -> Option<u64> {
    number_in(disk, "diskseq")
}

/// A number from a file of the disk or partition of this number in sysfs.
fn number_in(device: u64, file: &str) -> Option<u64> {
    std::fs::read_to_string(device_folder(device).join(file)).ok()?.trim().parse().ok()
}

/// The number of the device of this folder in sysfs.
fn number_of(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The name of the device of this folder in sysfs.
fn name_of(folder: &Path) -> Option<String> {
    let real = std::fs::canonicalize(folder).ok()?;
    Some(real.file_name()?.to_str()?.to_owned())
}

/// The other device of a namespace, whose name begins with `prefix`: the disk `nvme0n5` of the generic node `ng2n5`.
/// The first number of both may differ: that of a disk is the one of the subsystem, that of a generic node the one of
/// the controller. Both have the same parent in sysfs.
fn sibling(folder: &Path, prefix: &str) -> Option<String> {
    let real = std::fs::canonicalize(folder).ok()?;
    let own = real.file_name()?.to_str()?;
    let number = instance(own, "ng").or_else(|| instance(own, "nvme"))?;
    let all = std::fs::read_dir(real.parent()?).ok()?.filter_map(Result::ok);
    let mut names = all.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| instance(name, prefix) == Some(number))
}

/// The second number in the name of a disk or generic node: 5 in `nvme0n5` and `ng2n5`.
fn instance(name: &str, prefix: &str) -> Option<u32> {
    let (first, second) = name.strip_prefix(prefix)?.split_once('n')?;
    first.parse::<u32>().ok()?;
    second.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_and_its_generic_node_are_beside_each_other() {
        let controller = std::env::temp_dir().join(format!("lunar-nvme-resolve-{}/nvme2", std::process::id()));
        for name in ["ng2n5", "nvme0n5", "ng2n15", "nvme0n15", "nvme0c1n5", "hwmon3", "power"] {
            std::fs::create_dir_all(controller.join(name)).expect("a folder");
        }
        let of = |name: &str, prefix: &str| sibling(&controller.join(name), prefix);
        assert_eq!((of("ng2n5", "nvme"), of("nvme0n5", "ng")), (Some("nvme0n5".into()), Some("ng2n5".into())));
        assert_eq!((of("ng2n15", "nvme"), of("power", "ng")), (Some("nvme0n15".into()), None));
        std::fs::remove_dir_all(controller.parent().expect("ours")).expect("ours");
    }

    #[test]
    fn other_names_have_no_number() {
        assert_eq!((instance("nvme12n34", "nvme"), instance("ng0n1", "ng")), (Some(34), Some(1)));
        for other in ["sda", "nvme-fabrics", "nvme", "nvme0", "nvme0n1p1", "nvme0c1n1", "zd0", ""] {
            assert_eq!((instance(other, "nvme"), instance(other, "ng")), (None, None), "{other}");
        }
    }

    #[test]
    fn a_name_that_no_disk_has_is_not_found() {
        let path = Path::new("/nonexistent");
        known().insert(path.to_owned(), "wwid no such name".into());
        assert_eq!(locate(path), Err(NoNamespace::Path(Errno::NOENT)));
        assert_eq!(search("wwid no such name"), None);
        known().remove(path);
    }

    #[test]
    fn other_paths_are_refused() {
        let why = |path: &str| resolve(Path::new(path)).expect_err(path);
        assert_eq!(why("/nonexistent"), NoNamespace::Path(Errno::NOENT));
        assert_eq!((why("/dev/null"), why("/")), (NoNamespace::OtherFile, NoNamespace::OtherFile));
    }
}
