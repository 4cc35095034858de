use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use testing::let_folder_fail;

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("lunar-durable-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("A.tape")
    }

    fn unfinished(&self) -> PathBuf {
        self.0.join("A.tape.new")
    }

    fn count(&self) -> usize {
        fs::read_dir(&self.0).expect("our folder").count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PRIVATE: Access = Access::AtMost(0o600);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").mode() & 0o7777
}

#[test]
fn a_file_is_created_whole_or_not_at_all() {
    let folder = Folder::new();
    let half = |file: &mut File| file.write_all(b"half").and_then(|()| Err(ErrorKind::StorageFull.into()));
    let failed = create(&folder.file(), PRIVATE, half);
    assert_eq!((failed.unwrap_err().kind(), folder.count()), (ErrorKind::StorageFull, 0));
    create(&folder.file(), PRIVATE, |file| file.write_all(b"whole")).expect("space");
    assert_eq!(fs::read(folder.file()).expect("a file"), b"whole");
    let again = create(&folder.file(), PRIVATE, |file| file.write_all(b"again"));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!((fs::read(folder.file()).expect("a file"), folder.count()), (b"whole".to_vec(), 1));
}

#[test]
fn a_file_that_cannot_be_replaced_stays() {
    let folder = Folder::new();
    replace(&folder.file(), PRIVATE, b"old").expect("space");
    let failed = replace_with(&folder.file(), PRIVATE, |_| Err(ErrorKind::StorageFull.into()));
    assert!(!failed.unwrap_err().is_in_place);
    assert_eq!((fs::read(folder.file()).expect("a file"), folder.count()), (b"old".to_vec(), 1));
    drop(NewFile::write(&folder.file(), PRIVATE, |file| file.write_all(b"new")).expect("space"));
    assert_eq!((fs::read(folder.file()).expect("a file"), folder.count()), (b"old".to_vec(), 1));
    // A folder in the way is not ours.
    fs::create_dir(folder.unfinished()).expect("a name");
    assert!(!replace(&folder.file(), PRIVATE, b"new").unwrap_err().is_in_place);
    assert!(folder.unfinished().is_dir());
}

#[test]
fn an_error_says_whether_the_new_file_is_in_place() {
    let folder = Folder::new();
    replace(&folder.file(), PRIVATE, b"old").expect("space");
    let_folder_fail();
    assert!(replace(&folder.file(), PRIVATE, b"in place").unwrap_err().is_in_place);
    assert_eq!((fs::read(folder.file()).expect("a file"), folder.count()), (b"in place".to_vec(), 1));
}

#[test]
fn nothing_of_a_file_that_a_killed_process_left_survives() {
    let folder = Folder::new();
    let elsewhere = folder.0.join("elsewhere");
    fs::write(&elsewhere, "of somebody").expect("space");
    for is_link in [false, true] {
        match is_link {
            false => {
                fs::write(folder.unfinished(), "a part that is longer").expect("space");
                fs::set_permissions(folder.unfinished(), Permissions::from_mode(0o666)).expect("our file");
            }
            true => std::os::unix::fs::symlink(&elsewhere, folder.unfinished()).expect("a name"),
        }
        replace(&folder.file(), PRIVATE, b"new").expect("space");
        assert_eq!((fs::read(folder.file()).expect("a file"), mode(&folder.file())), (b"new".to_vec(), 0o600));
    }
    assert_eq!((fs::read(elsewhere).expect("a file"), folder.count()), (b"of somebody".to_vec(), 2));
}

#[test]
fn permissions_are_those_that_were_asked_for_once_the_file_is_complete() {
    let folder = Folder::new();
    let owner = fs::metadata(&folder.0).map(|own| (own.uid(), own.gid())).expect("our folder");
    for access in [Access::Exactly(0o664, Some(owner)), Access::Exactly(0o755, None)] {
        let Access::Exactly(wanted, _) = access else { unreachable!("both are exact") };
        let fill = |file: &mut File| {
            assert_eq!(file.metadata()?.mode() & 0o7777, 0o600);
            Ok(())
        };
        replace_with(&folder.file(), access, fill).expect("space");
        assert_eq!(mode(&folder.file()), wanted);
    }
}
