use super::*;
use std::os::unix::fs::PermissionsExt;
use std::task::{Context, Wake};
use std::thread::Thread;

/// A folder that is removed with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-metadata-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn folder(&self) -> Result<Folder, MetadataError> {
        Folder::at(self.0.join("a/b"), true)
    }

    fn file(&self) -> PathBuf {
        self.0.join("a/b/some")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait(mut saving: Saving) -> Result<(), Fault> {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        if let Poll::Ready(result) = saving.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        std::thread::park();
    }
}

#[test]
fn the_record_written_last_is_there_after_a_restart() {
    let place = Place::new("restart");
    let folder = place.folder().expect("nothing there yet");
    assert_eq!(folder.load("some"), None);
    for bytes in [vec![1; 10], vec![2; METADATA_BYTES_MAX], vec![], vec![3; 3]] {
        assert_eq!(wait(folder.save("some", bytes.clone())), Ok(()));
        assert_eq!(folder.load("some"), Some(bytes.clone()));
        assert_eq!(place.folder().expect("it was written").load("some"), Some(bytes));
    }
    assert_eq!(wait(folder.save("some", vec![0; METADATA_BYTES_MAX + 1])), Err(Fault::NoSpace));
    assert_eq!(place.folder().expect("still there").load("some"), Some(vec![3; 3]));
}

#[test]
fn only_the_owner_reads_metadata() {
    let place = Place::new("mode");
    assert_eq!(wait(place.folder().expect("empty").save("some", vec![1])), Ok(()));
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&place.file()), mode(&place.0.join("a"))), (0o600, 0o700));
}

#[test]
fn an_incomplete_file_is_ignored() {
    let place = Place::new("unfinished");
    assert_eq!(wait(place.folder().expect("empty").save("some", vec![1])), Ok(()));
    std::fs::write(place.0.join("a/b/some.new"), b"half").expect("written");
    let folder = place.folder().expect("the other is whole");
    assert_eq!((folder.load("some"), folder.load("some.new")), (Some(vec![1]), None));
    assert_eq!(wait(folder.save("some", vec![2])), Ok(()));
    assert!(!place.0.join("a/b/some.new").exists());
}

#[test]
fn a_damaged_record_is_refused() {
    let place = Place::new("damaged");
    assert_eq!(wait(place.folder().expect("empty").save("some", vec![1; 40])), Ok(()));
    let whole = std::fs::read(place.file()).expect("there");
    for at in [0, 39, 40, 71] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(place.file(), bytes).expect("written");
        let why = place.folder().expect_err("damaged").to_string();
        assert!(why.contains("rm -r") && why.contains("digest does not match"), "{why}");
    }
    std::fs::write(place.file(), &whole[..DIGEST_BYTES - 1]).expect("written");
    assert!(place.folder().is_err());
    std::fs::write(place.file(), &whole).expect("written");
    assert!(place.folder().is_ok());
}

#[test]
fn a_folder_that_cannot_be_created_is_a_fault() {
    let place = Place::new("blocked");
    std::fs::create_dir_all(&place.0).expect("made");
    std::fs::write(place.0.join("file"), b"").expect("written");
    let path = place.0.join("file/b");
    let folder = Folder { path, records: Arc::default(), work: Mutex::default(), is_exclusive: true };
    assert!(wait(folder.save("some", vec![1])).is_err());
    assert_eq!(folder.load("some"), None);
}

#[test]
fn metadata_that_other_processes_may_replace_is_not_durable() {
    let place = Place::new("others");
    for is_exclusive in [true, false] {
        assert_eq!(Folder::at(place.0.join("a/b"), is_exclusive).expect("empty").is_durable(), is_exclusive);
    }
}

#[test]
fn the_state_folder_is_that_of_systemd_or_of_the_user() {
    for (variables, folder) in [
        (&[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("HOME", "/h")][..], "/var/lib/a"),
        (&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], "/s/lunar"),
        (&[("XDG_STATE_HOME", "s"), ("HOME", "/h")], "/h/.local/state/lunar"),
        (&[("STATE_DIRECTORY", ""), ("HOME", "/h")], "/h/.local/state/lunar"),
        (&[], "/var/lib/lunar"),
    ] {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        assert_eq!(state(variable), Path::new(folder), "{variables:?}");
    }
}

#[test]
fn a_uuid_has_dashes() {
    let uuid = [0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15];
    assert_eq!(spelled(uuid), "00010203-0405-4607-8809-0a0b0c0d0e0f");
}

#[test]
fn a_copy_gets_the_records_of_its_source_and_a_failed_copy_leaves_none() {
    let state = std::env::temp_dir().join(format!("lunar-metadata-copy-{}", std::process::id()));
    let uuid = [7; 16];
    let records = [("protection", vec![1]), ("uncorrectable", vec![2; 16])];
    replace(&state, uuid, &records).expect("it can be written");
    let folder = Folder::of_volume(&state, uuid, true).expect("it can be read");
    for (name, bytes) in records {
        assert_eq!(folder.load(name), Some(bytes));
    }
    replace(&state, uuid, &[]).expect("it can be removed");
    assert!(!folder_of(&state, uuid).exists());
    let _ = std::fs::remove_dir_all(&state);
}
