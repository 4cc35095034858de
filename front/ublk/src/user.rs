//! The user of a disk or of a partition of it, as the kernel knows it: a mounted file system, swap, a block device on
//! top of it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The user of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskUser {
    /// A file system on this device is mounted at this place.
    Mounted(String, String),
    /// The kernel swaps to this device.
    Swap(String),
    /// A block device on top of this device: of the device mapper, of a RAID.
    Holder(String, String),
}

impl DiskUser {
    /// The user of the disk of this number; `None`: nothing that is known. A file system that is mounted in another
    /// mount namespace only is not known.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        user_in(Path::new("/sys/block"), &format!("ublkb{number}"), &mounts, &swaps)
    }

    /// How the disk is given back.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Mounted(_, place) => format!("umount {place}"),
            Self::Swap(device) => format!("swapoff /dev/{device}"),
            Self::Holder(_, holder) if holder.starts_with("md") => format!("mdadm --stop /dev/{holder}"),
            Self::Holder(_, holder) if holder.starts_with("dm-") => {
                format!("dmsetup remove /dev/{holder}, or vgchange -an for a volume group")
            }
            Self::Holder(_, holder) => format!("remove /dev/{holder}"),
        }
    }
}

impl fmt::Display for DiskUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(device, place) => write!(f, "/dev/{device} is mounted at {place}"),
            Self::Swap(device) => write!(f, "/dev/{device} is swapped to"),
            Self::Holder(device, holder) => write!(f, "/dev/{holder} uses /dev/{device}"),
        }
    }
}

/// The place at which a device is mounted, by its name, its number, and a table of mounts.
fn mounted_at<'a>(name: &str, number: &str, mounts: &'a str) -> Option<&'a str> {
    let node = format!("/dev/{name}");
    mounts.lines().find_map(|line| {
        // A line is `36 35 98:0 /root /mountpoint options [fields] - type source options`. Some file systems, such as
        // btrfs, have a number of their own; their source is the device.
        let (mount, of) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let is_it = words.next()? == number || of.split(' ').nth(1) == Some(&node);
        is_it.then(|| words.nth(1)).flatten()
    })
}

/// The user of a disk, by the folder of block devices, the table of mounts and that of swaps.
fn user_in(blocks: &Path, disk: &str, mounts: &str, swaps: &str) -> Option<DiskUser> {
    let whole = blocks.join(disk);
    let parts = fs::read_dir(&whole).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(disk)) && path.join("dev").exists()
    };
    for device in std::iter::once(whole.clone()).chain(parts.filter(is_part)) {
        let name = device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = fs::read_to_string(device.join("dev")).unwrap_or_default();
        if let Some(place) = mounted_at(&name, number.trim(), mounts) {
            return Some(DiskUser::Mounted(name, place.to_owned()));
        }
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&*format!("/dev/{name}"))) {
            return Some(DiskUser::Swap(name));
        }
        let holder = fs::read_dir(device.join("holders")).into_iter().flatten().flatten().next();
        if let Some(holder) = holder {
            return Some(DiskUser::Holder(name, holder.file_name().to_string_lossy().into_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_disk_and_of_its_partitions_are_found() {
        let blocks = std::env::temp_dir().join(format!("lunar-ublk-{}", std::process::id()));
        let part = blocks.join("ublkb3/ublkb3p1");
        fs::create_dir_all(part.join("holders")).expect("room");
        fs::write(blocks.join("ublkb3/dev"), "259:4\n").expect("room");
        fs::write(part.join("dev"), "259:5\n").expect("room");
        let user = |mounts: &str, swaps: &str| user_in(&blocks, "ublkb3", mounts, swaps);
        let words = |mounts: &str, swaps: &str| {
            user(mounts, swaps).map(|user| format!("{user}: {}", user.remedy())).unwrap_or_default()
        };
        assert_eq!(user("36 35 259:6 / /mnt rw - ext4 /dev/ublkb31 rw", "/dev/ublkb31 partition 1 0 -2"), None);
        let mounted = "/dev/ublkb3p1 is mounted at /mnt: umount /mnt";
        assert_eq!(words("36 35 259:5 / /mnt rw - ext4 x rw", ""), mounted);
        assert_eq!(
            words("36 35 0:41 /sub /mnt rw shared:1 - btrfs /dev/ublkb3p1 rw", ""),
            mounted,
            "not by its number"
        );
        assert_eq!(words("", "Filename\n/dev/ublkb3 partition"), "/dev/ublkb3 is swapped to: swapoff /dev/ublkb3");
        fs::create_dir_all(part.join("holders/dm-0")).expect("room");
        assert!(words("", "").starts_with("/dev/dm-0 uses /dev/ublkb3p1: dmsetup remove /dev/dm-0"));
        fs::remove_dir_all(&blocks).expect("it is ours");
    }
}
