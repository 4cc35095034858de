//! Links to disks by their names, which stay the same when the kernel gives other numbers.

use crate::wire::{DISK, disk_at};
use rustix::fs::{CWD, symlinkat};
use std::fs::DirEntry;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes or replaces the link at `path` to the disk of this number, and the folder above it.
///
/// # Errors
/// Errors of the operating system.
pub fn make(path: &Path, number: u32) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Replaced in one step: the path is never without a link. No disk has a name that begins with a dot.
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let new = path.with_file_name(format!(".{}", name.display()));
    match std::fs::remove_file(&new) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    symlinkat(disk_at(number), CWD, &new)?;
    std::fs::rename(&new, path)
}

/// Removes the link at `path`, if it leads to the disk of this number.
pub fn remove(path: &Path, number: u32) {
    if std::fs::read_link(path).is_ok_and(|disk| disk == Path::new(&disk_at(number))) {
        // A link that is left leads to a disk that is gone, and the next start replaces it.
        let _ = std::fs::remove_file(path);
    }
}

/// The links to disks in this folder: their names, and the numbers of the disks.
pub(super) fn all(folder: &Path) -> Vec<(String, u32)> {
    let number = |entry: &DirEntry| {
        let disk = std::fs::read_link(entry.path()).ok()?;
        let number = disk.to_str()?.strip_prefix(DISK)?.parse().ok()?;
        Some((entry.file_name().into_string().ok()?, number))
    };
    std::fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| number(&entry)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_the_number_of_its_disk() {
        let folder = std::env::temp_dir().join(format!("lunar-ublk-link-{}", std::process::id()));
        let path = folder.join("ublk/data.1");
        for number in [3, 7] {
            make(&path, number).expect("the folder can be written to");
            assert_eq!(std::fs::read_link(&path).expect("a link"), Path::new(&disk_at(number)));
        }
        let other = folder.join("ublk/data.1.new");
        make(&other, 9).expect("the folder can be written to");
        make(&path, 7).expect("the folder can be written to");
        assert_eq!(std::fs::read_link(&other).expect("the link of another disk"), Path::new(&disk_at(9)));
        symlinkat("/dev/sda", CWD, path.with_file_name("foreign")).expect("the folder can be written to");
        let mut found = all(&folder.join("ublk"));
        found.sort();
        assert_eq!(found, [("data.1".to_owned(), 7), ("data.1.new".to_owned(), 9)]);
        assert_eq!(all(&folder.join("missing")), []);
        remove(&other, 9);
        remove(&path, 3);
        assert!(path.is_symlink(), "it is that of another disk");
        remove(&path, 7);
        assert!(!path.is_symlink());
        remove(&path, 7);
        std::fs::remove_dir_all(&folder).expect("our folder");
    }
}
