//! Files that are created or replaced as a whole: after a power cut there is the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The end of the name of a file that is not whole yet.
const UNFINISHED: &str = ".new";

/// Why a file was not replaced.
#[derive(Debug)]
pub(crate) struct ReplaceError {
    pub(crate) why: io::Error,
    /// The new file is in its place, and a power cut may bring the old one back.
    pub(crate) is_in_place: bool,
}

impl From<io::Error> for ReplaceError {
    fn from(why: io::Error) -> Self {
        Self { why, is_in_place: false }
    }
}

/// Replaces a file, or creates it.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), ReplaceError> {
    rename(path, 0o666, |file| file.write_all(content))
}

/// Creates a file with these permissions at most. One process at a time creates files in its folder.
pub(crate) fn create(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if path.try_exists()? {
        return Err(ErrorKind::AlreadyExists.into());
    }
    rename(path, mode, fill).map_err(|failed| failed.why)
}

fn rename(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), ReplaceError> {
    let mut new = path.as_os_str().to_owned();
    new.push(UNFINISHED);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
    fill(&mut file).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
        // It takes space, and is of no use.
        let _ = fs::remove_file(&new);
    })?;
    synchronize_folder_of(path).map_err(|why| ReplaceError { why, is_in_place: true })
}

fn synchronize_folder_of(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::fail_once()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::test_folder::TestFolder;
    use std::cell::Cell;

    thread_local! {
        static FAILS: Cell<bool> = const { Cell::new(false) };
    }

    /// The next synchronization of a folder fails.
    pub(crate) fn let_folder_fail() {
        FAILS.set(true);
    }

    pub(super) fn fail_once() -> io::Result<()> {
        if FAILS.take() { Err(io::Error::other("the disk fails")) } else { Ok(()) }
    }

    #[test]
    fn a_file_is_created_whole_or_not_at_all() {
        let folder = TestFolder::new();
        let path = folder.path().join("A.tape");
        let failed =
            create(&path, 0o600, |file| file.write_all(b"half").and_then(|()| Err(ErrorKind::StorageFull.into())));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // A process that was killed left a part of it.
        fs::write(folder.path().join("A.tape.new"), "a longer part").unwrap();
        create(&path, 0o600, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        let again = create(&path, 0o600, |file| file.write_all(b"again"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        replace(&path, b"replaced").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(folder.path()).unwrap().count()), (b"replaced".to_vec(), 1));
        let_folder_fail();
        assert!(replace(&path, b"in place").unwrap_err().is_in_place);
        assert_eq!(fs::read(&path).unwrap(), b"in place");
    }
}
