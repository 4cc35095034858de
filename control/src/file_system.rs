//! Properties of the file system that a file is on.

use rustix::fd::AsFd;
use rustix::fs::fstatfs;

/// `f_type` of OpenZFS on Linux (include/os/linux/spl/sys/sysmacros.h: ZFS_SUPER_MAGIC).
const ZFS: i64 = 0x2fc1_2fc1;

/// A file system, as far as Lunar distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// OpenZFS.
    Zfs,
    /// Any other one.
    Other,
}

impl FileSystem {
    /// The file system of an open file.
    #[must_use]
    pub fn of(file: impl AsFd) -> Self {
        fstatfs(file).map_or(Self::Other, |system| Self::of_type(system.f_type))
    }

    fn of_type(number: i64) -> Self {
        if number == ZFS { Self::Zfs } else { Self::Other }
    }

    /// Whether a clone of a range (FICLONE, FICLONERANGE, copy_file_range) has the bytes that a read of the range
    /// returns. OpenZFS 2.2 and 2.3 clone the blocks of the last transaction group that was written to the pool: the
    /// clone of a hole that was punched or zeroed meanwhile has the bytes from before it, and keeps them. Neither fsync
    /// nor sync prevents that, and only root may request the end of a transaction group, so files on ZFS are copied.
    #[must_use]
    pub fn clones_what_it_reads(self) -> bool {
        self != Self::Zfs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zfs_is_found_by_its_number() {
        assert_eq!(FileSystem::of_type(0x2fc1_2fc1), FileSystem::Zfs);
        // xfs, btrfs
        for other in [0x5846_5342, 0x9123_683e] {
            assert_eq!(FileSystem::of_type(other), FileSystem::Other);
        }
        assert!(!FileSystem::Zfs.clones_what_it_reads() && FileSystem::Other.clones_what_it_reads());
        let file = std::fs::File::open("/proc/self/stat").expect("a file");
        assert_eq!(FileSystem::of(&file), FileSystem::Other);
    }
}
