//! The files that a change of the configuration creates: they are removed if the change fails.

use lunar_control::files::{self, Access};
use lunar_reactor::log;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The end of the path of the protection store of a volume.
const PROTECTION: &str = ".pi";

/// Files that were not there before a change.
#[derive(Debug, Default)]
pub(crate) struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    /// The files of a volume at this path that are not there now.
    pub(crate) fn of_volume(path: &Path) -> Self {
        let mut protection = OsString::from(path);
        protection.push(PROTECTION);
        let is_missing =
            |path: &PathBuf| std::fs::symlink_metadata(path).is_err_and(|why| why.kind() == ErrorKind::NotFound);
        Self([path.to_owned(), protection.into()].into_iter().filter(is_missing).collect())
    }

    /// Adds those of another step.
    pub(crate) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Removes those that have been created. A file with data stays: another program has put it there meanwhile.
    pub(crate) fn remove(self) {
        for path in self.0.into_iter().filter(|path| is_without_data(path)) {
            if let Err(why) = files::remove(&path) {
                log!("{} was created for a change that failed, and could not be removed: {why}", path.display());
            }
        }
    }
}

/// Whether there is a file without data, as a new volume is.
fn is_without_data(path: &Path) -> bool {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    is_file && files::open(path, Access::Read).is_ok_and(|file| seek(&file, SeekFrom::Data(0)) == Err(Errno::NXIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_fails_leaves_no_file_and_removes_none_that_was_there() {
        let folder = std::env::temp_dir().join(format!("lunar-new-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (old, new) = (folder.join("old.img"), folder.join("new.img"));
        std::fs::write(&old, "data").expect("a file");
        let mut files = NewFiles::of_volume(&old);
        files.add(NewFiles::of_volume(&new));
        let copied = folder.join("copied.img");
        files.add(NewFiles::of_volume(&copied));
        std::fs::write(&copied, "data of another program").expect("a file");
        for path in [&new, &folder.join("new.img.pi"), &folder.join("old.img.pi")] {
            std::fs::write(path, "").expect("a file");
        }
        files.remove();
        let mut left: Vec<_> =
            std::fs::read_dir(&folder).expect("the folder").flatten().map(|file| file.path()).collect();
        left.sort();
        assert_eq!(left, [copied, old]);
        std::fs::remove_dir_all(&folder).expect("our folder");
    }
}
