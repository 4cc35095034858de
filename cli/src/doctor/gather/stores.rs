//! The stores: files, devices, their file systems and disks.

use super::machine::{number, text};
use lunar_control::doctor::facts::{Ceph, Device, FileMode, FileSystem, Store};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, fallocate, makedev, open, statvfs, statx};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Devices below one store that are looked at: more than a RAID of RAIDs has.
const DEVICES_MAX: usize = 64;
/// Bytes of the file with which the freeing of space is tried.
const TRIAL_BYTES: usize = 64 << 10;

/// The folders of libraries, besides those of the architecture in `/usr/lib`.
const LIBRARIES: [&str; 4] = ["/usr/lib64", "/lib64", "/usr/lib", "/usr/local/lib"];

/// Looks for the programs for images of Ceph. `service`: the process of the service, if it runs.
pub(super) fn ceph(service: Option<u32>) -> Ceph {
    let own = service.and_then(|id| std::fs::read_link(format!("/proc/{id}/exe")).ok());
    let program = own.or_else(|| std::env::current_exe().ok()).unwrap_or_default().with_file_name("lunar-rbd");
    let architectures = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = LIBRARIES.iter().map(PathBuf::from).chain(architectures);
    let has_library = folders.into_iter().any(|folder| folder.join("librbd.so.1").exists());
    Ceph { has_program: program.exists(), has_library, program }
}

/// Looks at a store, and at its file system if it is a file.
pub(super) fn read(volume: &str, path: &Path) -> (Store, Option<FileSystem>) {
    let metadata = std::fs::metadata(path);
    let mut store = Store {
        volume: volume.to_owned(),
        path: path.to_owned(),
        exists: match &metadata {
            Ok(_) => Some(true),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
        },
        modes: modes(path),
        ..Store::default()
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = metadata.as_ref().ok().filter(|found| found.file_type().is_block_device());
    if let Some(device) = device {
        store.direct_alignment = direct_alignment(path);
        store.users = users(device.rdev(), &mounts);
        store.devices = devices(device.rdev());
        return (store, None);
    }
    if let Ok(found) = &metadata {
        store.size = found.len();
        store.allocated = found.blocks() * 512;
        store.direct_alignment = direct_alignment(path).filter(|_| found.is_file());
    }
    // A file that is not there has the file system of its folder.
    let existing = path.ancestors().find(|place| place.exists()).unwrap_or_else(|| Path::new("/"));
    let Some((number, real)) =
        std::fs::metadata(existing).ok().map(|found| found.dev()).zip(existing.canonicalize().ok())
    else {
        return (store, None);
    };
    store.file_system = Some(number);
    let Some(mount) = mount_of(&mounts, &real) else { return (store, None) };
    store.devices = mount.device().map(devices).unwrap_or_default();
    let folder = if real.is_dir() { real.as_path() } else { real.parent().unwrap_or_else(|| Path::new("/")) };
    let space = statvfs(&real).ok();
    let space = space.as_ref();
    let system = FileSystem {
        number,
        place: mount.place,
        kind: mount.kind,
        options: mount.options,
        size: space.map_or(0, |space| space.f_blocks * space.f_frsize),
        free: space.map_or(0, |space| space.f_bavail * space.f_frsize),
        punches: frees_space(folder),
    };
    (store, Some(system))
}

/// The owners and permissions of a file and its folders, from the root; as far as they can be seen.
fn modes(path: &Path) -> Vec<FileMode> {
    let mut all: Vec<&Path> = path.ancestors().collect();
    all.reverse();
    let mode = |path: &Path, found: Metadata| {
        let has_acl =
            rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0; 0][..]).is_ok_and(|bytes| bytes > 0);
        FileMode { path: path.to_owned(), mode: found.mode() & 0o7777, owner: found.uid(), group: found.gid(), has_acl }
    };
    all.into_iter().map_while(|path| Some(mode(path, std::fs::metadata(path).ok()?))).collect()
}

/// The alignment of direct I/O; `None` if the kernel does not tell it.
fn direct_alignment(path: &Path) -> Option<u32> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).ok()?;
    StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN).then_some(found.stx_dio_offset_align)
}

/// Whether space inside of a file can be freed; tried with a file without a name.
fn frees_space(folder: &Path) -> Option<bool> {
    let file = open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).ok()?;
    let file = File::from(file);
    file.write_all_at(&[0xa5; TRIAL_BYTES], 0).ok()?;
    match fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, TRIAL_BYTES as u64) {
        Ok(()) => Some(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Some(false),
        Err(_) => None,
    }
}

/// A line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The number of its device: `8:1`.
    number: String,
    place: PathBuf,
    kind: String,
    source: String,
    options: Vec<String>,
}

impl Mount {
    /// The device of the file system: that of its number, or that of its source.
    fn device(&self) -> Option<u64> {
        let (major, minor) = self.number.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        // Btrfs has a number that is no device.
        match major {
            0 => std::fs::metadata(&self.source)
                .ok()
                .filter(|found| found.file_type().is_block_device())
                .map(|found| found.rdev()),
            _ => Some(makedev(major, minor)),
        }
    }
}

/// A path of mountinfo, in which spaces are written in octal.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

fn mounts(table: &str) -> impl Iterator<Item = Mount> + '_ {
    table.lines().filter_map(|line| {
        let (own, system) = line.split_once(" - ")?;
        let (own, mut system): (Vec<_>, _) = (own.split(' ').collect(), system.split(' '));
        let (kind, source, super_options) = (system.next()?, system.next()?, system.next().unwrap_or_default());
        let options = own.get(5)?.split(',').chain(super_options.split(',')).map(str::to_owned);
        // A mount may be read-only although its file system is not, and the reverse.
        let options: BTreeSet<String> = options.collect();
        let is_read_only = options.contains("ro");
        let options = options.into_iter().filter(|option| option != "rw" || !is_read_only).collect();
        let (number, place) = (own.get(2)?.to_string(), PathBuf::from(unescaped(own.get(4)?)));
        Some(Mount { number, place, kind: kind.to_owned(), source: unescaped(source), options })
    })
}

/// The mount of a path without links: the last one with the longest place.
fn mount_of(table: &str, path: &Path) -> Option<Mount> {
    let all = mounts(table).filter(|mount| path.starts_with(&mount.place));
    all.max_by_key(|mount| mount.place.components().count())
}

/// The users of a device on this machine.
fn users(device: u64, table: &str) -> Vec<String> {
    let Some(folder) = folder_of(device) else { return Vec::new() };
    let number = text(folder.join("dev")).unwrap_or_default();
    let mounted = mounts(table).filter(|mount| mount.number == number);
    let mounted = mounted.map(|mount| format!("mounted at {}", mount.place.display()));
    let holders = std::fs::read_dir(folder.join("holders")).into_iter().flatten().flatten();
    mounted.chain(holders.map(|holder| format!("used by {}", holder.file_name().to_string_lossy()))).collect()
}

/// The folder of a device in sysfs.
fn folder_of(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()
}

/// A device and those below it, down to the disks.
fn devices(device: u64) -> Vec<Device> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    let mut next: Vec<PathBuf> = folder_of(device).into_iter().collect();
    while let Some(folder) = next.pop().filter(|_| all.len() < DEVICES_MAX) {
        if !seen.insert(folder.clone()) {
            continue;
        }
        let is_partition = folder.join("partition").exists();
        next.extend(folder.parent().filter(|_| is_partition).map(Path::to_owned));
        let below = std::fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        next.extend(below.filter_map(|slave| slave.path().canonicalize().ok()));
        all.push(device_at(&folder, is_partition));
    }
    all
}

fn device_at(folder: &Path, is_partition: bool) -> Device {
    let disk = if is_partition { folder.parent().unwrap_or(folder) } else { folder };
    let physical: u64 = number(disk.join("queue/physical_block_size")).unwrap_or(512).max(1);
    let start: u64 = number(folder.join("start")).unwrap_or(0);
    let errors = text(folder.join("device/ioerr_cnt"));
    let errors = errors.and_then(|count| u64::from_str_radix(count.trim_start_matches("0x"), 16).ok());
    let disks = std::fs::read_dir(folder.join("device/scsi_disk")).into_iter().flatten().flatten();
    let cache = disks.filter_map(|disk| text(disk.path().join("cache_type"))).next();
    Device {
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        errors: errors.unwrap_or(0),
        degraded: number(folder.join("md/degraded")).unwrap_or(0),
        misalignment: if is_partition { start * 512 % physical } else { 0 },
        cache: cache.unwrap_or_default(),
        cache_of_kernel: text(folder.join("queue/write_cache")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
30 22 8:17 / /srv/my\\040disks ro,noatime shared:9 - xfs /dev/sdb1 rw,attr2\n\
31 22 0:44 / /srv/data rw - btrfs /dev/sdc ro\n";

    #[test]
    fn the_mount_of_a_path_is_the_longest() {
        let of = |path: &str| mount_of(TABLE, Path::new(path)).expect("the root has all");
        assert_eq!((of("/etc/x").kind, of("/srv/my").number), ("ext4".into(), "8:1".into()));
        let disks = of("/srv/my disks/a.img");
        assert_eq!((disks.place.as_path(), disks.device()), (Path::new("/srv/my disks"), Some(makedev(8, 17))));
        let has = |mount: &Mount, option: &str| mount.options.iter().any(|one| one == option);
        assert!(has(&disks, "ro") && !has(&disks, "rw") && has(&disks, "attr2"));
        assert!(has(&of("/srv/data/x"), "ro"), "a file system that became read-only");
        assert!(has(&of("/x"), "rw") && !has(&of("/x"), "ro"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn a_file_is_looked_at() {
        let path = std::env::temp_dir().join(format!("lunar-doctor-{}", std::process::id()));
        std::fs::write(&path, vec![1; 8192]).expect("written");
        let (store, system) = read("disk", &path);
        std::fs::remove_file(&path).expect("ours");
        let system = system.expect("it is on a file system");
        assert_eq!((store.exists, store.size, store.file_system), (Some(true), 8192, Some(system.number)));
        assert!(store.modes.len() > 1 && store.modes[0].path == Path::new("/"), "{:?}", store.modes);
        assert!(system.size > 0 && system.punches != Some(false), "{system:?}");
        let (gone, system) = read("disk", &path);
        assert_eq!((gone.exists, gone.file_system), (Some(false), system.map(|system| system.number)));
    }
}
