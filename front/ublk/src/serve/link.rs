//! Links to disks by their names, which stay the same when the kernel gives other numbers.

use crate::wire::disk_at;
use rustix::fs::{CWD, symlinkat};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes or replaces the link at `path` to the disk of this number, and the folder above it.
pub(super) fn make(path: &Path, number: u32) -> io::Result<()> {
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
pub(super) fn remove(path: &Path, number: u32) {
    if std::fs::read_link(path).is_ok_and(|disk| disk == Path::new(&disk_at(number))) {
        // A link that is left leads to a disk that is gone, and the next start replaces it.
        let _ = std::fs::remove_file(path);
    }
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
        remove(&other, 9);
        remove(&path, 3);
        assert!(path.is_symlink(), "it is that of another disk");
        remove(&path, 7);
        assert!(!path.is_symlink());
        remove(&path, 7);
        std::fs::remove_dir_all(&folder).expect("our folder");
    }
}
