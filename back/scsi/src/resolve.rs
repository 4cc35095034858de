//! The generic node of a path: `/dev/sgN` itself, or the node of a disk, drive or tape (`/dev/disk/by-id/...`,
//! `/dev/tape/by-id/...`, `/dev/bsg/H:C:T:L`), whose generic node the kernel names in sysfs.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Generic nodes in sysfs.
const CLASS: &str = "/sys/class/scsi_generic";
/// The major number of generic nodes (SCSI_GENERIC_MAJOR of linux/major.h).
const GENERIC_MAJOR: u32 = 21;
/// Devices that are looked through at most for one that came back with another number.
const SEARCHED_MAX: usize = 1024;

/// The nodes of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nodes {
    /// The generic node.
    pub(crate) generic: PathBuf,
    /// The node of the disk or CD drive, if it has one: a program that mounts it opens this node.
    pub(crate) block: Option<PathBuf>,
    /// Commands that the kernel sends to the device at a time.
    pub(crate) queue_depth: usize,
    /// Commands that the host adapter takes at a time.
    pub(crate) adapter_depth: usize,
}

/// The nodes of the device at this path.
///
/// # Errors
/// `NotFound` if there is nothing; `InvalidInput` if it is no SCSI device.
pub(crate) fn resolve(path: &Path) -> io::Result<Nodes> {
    let found = std::fs::metadata(path)?;
    let (kind, number) = match found.file_type() {
        kind if kind.is_char_device() => ("char", found.rdev()),
        kind if kind.is_block_device() => ("block", found.rdev()),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    if kind == "char" && major == GENERIC_MAJOR {
        return nodes(&format!("sg{minor}"));
    }
    let generics = PathBuf::from(format!("/sys/dev/{kind}/{major}:{minor}/device/scsi_generic"));
    nodes(&only_name(&generics).ok_or(io::ErrorKind::InvalidInput)?)
}

/// The nodes of all generic devices with this vendor and product, as INQUIRY reports them.
pub(crate) fn alike(vendor: &str, product: &str) -> Vec<Nodes> {
    let is = |name: &str, file: &str, text: &str| {
        let found = std::fs::read_to_string(Path::new(CLASS).join(name).join("device").join(file));
        found.is_ok_and(|found| found.trim() == text)
    };
    let all = std::fs::read_dir(CLASS).into_iter().flatten().take(SEARCHED_MAX).filter_map(Result::ok);
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| is(name, "vendor", vendor) && is(name, "model", product))
        .filter_map(|n| nodes(&n).ok())
        .collect()
}

/// The nodes of the generic device of this name.
fn nodes(name: &str) -> io::Result<Nodes> {
    let device = Path::new(CLASS).join(name).join("device");
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    // "H:C:T:L"
    let place = std::fs::canonicalize(&device)?;
    let host = place.file_name().and_then(|name| name.to_str()).and_then(|name| name.split(':').next());
    let adapter = host.and_then(|host| number(format!("/sys/class/scsi_host/host{host}/can_queue").into()));
    Ok(Nodes {
        generic: Path::new("/dev").join(name),
        block: only_name(&device.join("block")).map(|name| Path::new("/dev").join(name)),
        queue_depth: number(device.join("queue_depth")).unwrap_or(1).max(1),
        adapter_depth: adapter.unwrap_or(1).max(1),
    })
}

/// The name in a folder with one entry.
fn only_name(folder: &Path) -> Option<String> {
    std::fs::read_dir(folder).ok()?.next()?.ok()?.file_name().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_without_a_scsi_device_are_refused() {
        let kind = |path: &str| resolve(Path::new(path)).expect_err(path).kind();
        assert_eq!(kind("/nonexistent"), io::ErrorKind::NotFound);
        assert_eq!(kind("/dev/null"), io::ErrorKind::InvalidInput);
        assert_eq!(kind("/"), io::ErrorKind::InvalidInput);
    }
}
