use super::*;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

/// A folder for this test, and a helper on a thread, which has the system calls of the helper process and ends when the
/// connection is closed.
struct Place {
    folder: PathBuf,
    connection: &'static Connection,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lunar-helper-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (own, its) = pair().expect("two sockets");
        let opener = serve::Opener { owner: rustix::process::geteuid().as_raw(), secrets: Vec::new() };
        std::thread::spawn(move || {
            crate::jail::helper_calls().expect("the kernel takes it");
            serve::serve(&its, &opener).expect("it serves");
        });
        Self { folder, connection: Box::leak(Box::new(Connection::over(own))) }
    }

    fn open(&self, name: &str, access: Access) -> Result<fs::File, Errno> {
        (&self.connection).open(&self.folder.join(name), access, None).map(fs::File::from)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn files_are_created_opened_synced_and_removed() {
    let place = Place::new("life");
    let mut made = place.open("disk.img", Access::Create).expect("it is created");
    made.write_all(b"data").expect("it is writable");
    assert_eq!(made.metadata().expect("its metadata").permissions().mode() & 0o777, 0o600);
    assert_eq!(place.open("disk.img", Access::Create).expect_err("it is there"), Errno::EXIST);
    (&place.connection).sync_folder(&place.folder).expect("the folder is synced");
    let mut text = String::new();
    let mut file = place.open("disk.img", Access::Read).expect("it is opened");
    assert_eq!(file.read_to_string(&mut text).expect("it is read"), 4);
    assert_eq!(text, "data");
    assert!(file.write_all(b"x").is_err(), "it is read-only");
    place.open("disk.img", Access::Write).expect("it is opened").write_all(b"DATA").expect("it is writable");
    (&place.connection).remove(&place.folder.join("disk.img")).expect("it is removed");
    assert_eq!(place.open("disk.img", Access::Read).expect_err("it is gone"), Errno::NOENT);
    assert!(!place.connection.is_lost());
}

#[test]
fn only_regular_files_in_places_for_volumes_are_opened() {
    let place = Place::new("rules");
    let file = |name: &str| place.folder.join(name);
    fs::write(file("disk.img"), "data").expect("a file");
    fs::create_dir(file("folder")).expect("a folder");
    fs::create_dir(file(".hidden")).expect("a folder");
    fs::write(file(".hidden/key"), "key").expect("a file");
    symlink(file("disk.img"), file("good")).expect("a link");
    symlink("/etc/passwd", file("passwd")).expect("a link");
    symlink("/dev/null", file("null")).expect("a link");
    symlink("/etc", file("etc")).expect("a link");
    let socket = std::os::unix::net::UnixListener::bind(file("socket")).expect("a socket");
    place.open("good", Access::Read).expect("a link to a file of a volume");
    let refused = ["passwd", "null", "socket", ".hidden/key", "etc/passwd", "folder/../disk.img"];
    for name in refused {
        for access in [Access::Read, Access::Write] {
            assert_eq!(place.open(name, access).expect_err(name), Errno::ACCESS, "{name}");
        }
    }
    drop(socket);
    assert_eq!(place.open("folder", Access::Read).expect_err("a folder"), Errno::ISDIR);
    for name in ["etc/lunar-test", ".hidden/new", "folder/../new"] {
        assert_eq!(place.open(name, Access::Create).expect_err(name), Errno::ACCESS, "{name}");
    }
    for access in [Access::ReadDevice, Access::WriteDevice, Access::WriteOwnDevice] {
        assert_eq!(place.open("disk.img", access).expect_err("no device"), Errno::ACCESS, "{access:?}");
    }
    for name in ["folder", "good", "socket"] {
        let why = (&place.connection).remove(&file(name)).expect_err(name);
        assert_eq!(why, Errno::ACCESS, "{name}");
    }
    assert!(fs::exists(file("good")).expect("it is looked at"));
}

#[test]
fn magic_links_lead_to_no_file() {
    let place = Place::new("magic");
    let file = |name: &str| place.folder.join(name);
    fs::write(file("disk.img"), "data").expect("a file");
    let held = fs::File::open(file("disk.img")).expect("it is there");
    let below = place.folder.strip_prefix("/").expect("it is absolute");
    let through_root = Path::new("/proc/self/root").join(below);
    symlink(&through_root, file("root")).expect("a link");
    symlink(format!("/proc/self/fd/{}", held.as_raw_fd()), file("descriptor")).expect("a link");
    for name in ["root/disk.img", "descriptor"] {
        assert!(fs::exists(file(name)).expect("it is looked at"), "{name}");
        for access in [Access::Read, Access::Write, Access::ReadSecret, Access::ReadDevice] {
            assert_eq!(place.open(name, access).expect_err(name), Errno::LOOP, "{name} {access:?}");
        }
    }
    assert_eq!(place.open("root/new", Access::Create).expect_err("a magic link"), Errno::LOOP);
    assert_eq!((&place.connection).remove(&file("root/disk.img")), Err(Errno::LOOP));
    assert_eq!((&place.connection).sync_folder(&file("root")), Err(Errno::LOOP));
    for access in Access::ALL {
        let opened = (&place.connection).open(&through_root.join("disk.img"), access, None);
        assert_eq!(opened.expect_err("below /proc"), Errno::ACCESS, "{access:?}");
    }
    for folder in [Path::new("/proc"), &through_root, Path::new("/etc"), Path::new("/usr/lib")] {
        assert_eq!((&place.connection).sync_folder(folder), Err(Errno::ACCESS), "{}", folder.display());
    }
    symlink("/usr", file("usr")).expect("a link");
    assert_eq!((&place.connection).sync_folder(&file("usr")), Err(Errno::ACCESS));
    place.open("disk.img", Access::Write).expect("it is opened");
}

#[test]
fn programs_and_files_with_two_names_are_not_changed() {
    let place = Place::new("change");
    let file = |name: &str| place.folder.join(name);
    for (name, mode) in [("disk.img", 0o640), ("program", 0o700), ("set-id", 0o4600), ("first", 0o600)] {
        fs::write(file(name), "data").expect("a file");
        fs::set_permissions(file(name), fs::Permissions::from_mode(mode)).expect("it is ours");
    }
    fs::hard_link(file("first"), file("second")).expect("a name");
    for name in ["program", "set-id", "first", "second"] {
        assert_eq!(place.open(name, Access::Write).expect_err(name), Errno::ACCESS, "{name}");
        assert_eq!((&place.connection).remove(&file(name)), Err(Errno::ACCESS), "{name}");
    }
    // Their data may be read.
    place.open("first", Access::Read).expect("it is opened");
    // A file of another user; only root can make one.
    if std::os::unix::fs::chown(file("second"), Some(12345), None).is_ok() {
        fs::remove_file(file("first")).expect("our file");
        assert_eq!(place.open("second", Access::Write).expect_err("it has another owner"), Errno::ACCESS);
        assert_eq!((&place.connection).remove(&file("second")), Err(Errno::ACCESS));
    }
    place.open("disk.img", Access::Write).expect("it is opened");
    (&place.connection).remove(&file("disk.img")).expect("it is removed");
}

#[test]
fn secrets_are_small() {
    let place = Place::new("secrets");
    fs::write(place.folder.join("small"), "secret").expect("a file");
    fs::File::create(place.folder.join("large")).and_then(|file| file.set_len(2 << 20)).expect("a file");
    place.open("small", Access::ReadSecret).expect("it is opened");
    assert_eq!(place.open("large", Access::ReadSecret).expect_err("no secret"), Errno::ACCESS);
}

#[test]
fn a_helper_that_has_ended_leaves_the_answer_of_the_sandbox() {
    let (own, its) = pair().expect("two sockets");
    let connection: &'static Connection = Box::leak(Box::new(Connection::over(own)));
    drop(its);
    assert_eq!((&connection).open(Path::new("/tmp/x"), Access::Read, None).expect_err("it has ended"), Errno::ACCESS);
    assert!(connection.is_lost());
}

#[test]
fn late_replies_are_dropped() {
    let (own, its) = pair().expect("two sockets");
    let connection: &'static Connection = Box::leak(Box::new(Connection::over(own)));
    for reply in [Reply { number: 0, errno: 0 }, Reply { number: 1, errno: Errno::NOSPC.raw_os_error() }] {
        socket::send(&its, &reply.emit(), None, SendFlags::empty()).expect("it is sent");
    }
    assert_eq!((&connection).remove(Path::new("/tmp/x")), Err(Errno::NOSPC));
    assert!(!connection.is_lost());
}

#[test]
fn a_helper_that_hangs_is_waited_for_once() {
    let (own, its) = pair().expect("two sockets");
    let patience = Duration::from_millis(50);
    let connection: &'static Connection = Box::leak(Box::new(Connection { patience, ..Connection::over(own) }));
    let remove = || (&connection).remove(Path::new("/tmp/x"));
    let received = || {
        let mut bytes = [0; message::REQUEST_BYTES_MAX];
        let got = socket::receive(&its, &mut bytes, RecvFlags::DONTWAIT).map(|(got, _)| got);
        got.map(|got| Request::parse(&bytes[..got]).expect("a request").number)
    };
    let begin = Instant::now();
    assert_eq!(remove(), Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= patience);
    assert_eq!(received(), Ok(1));
    // The next requests are not even sent.
    assert_eq!((remove(), remove()), (Err(Errno::TIMEDOUT), Err(Errno::TIMEDOUT)));
    assert_eq!(received(), Err(Errno::AGAIN));
    // The late reply has a file, which is closed: then its other end reads the end.
    let (passed, other_end) = pair().expect("two sockets");
    let reply = |number| Reply { number, errno: 0 }.emit();
    socket::send(&its, &reply(1), Some(passed.as_fd()), SendFlags::empty()).expect("it is sent");
    drop(passed);
    socket::send(&its, &reply(4), None, SendFlags::empty()).expect("it is sent");
    assert_eq!(remove(), Ok(()));
    assert_eq!(received(), Ok(4));
    assert_eq!(socket::receive(&other_end, &mut [0], RecvFlags::DONTWAIT).expect("it is closed").0, 0);
    assert!(!connection.is_lost());
}

#[test]
fn a_device_is_opened_once_more_for_its_holder_alone() {
    let place = Place::new("device");
    let connection = place.connection;
    fn open(
        by: &'static Connection,
        path: &Path,
        access: Access,
        held: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, Errno> {
        (&by).open(path, access, held)
    }
    let devices = (0..8).map(|number| PathBuf::from(format!("/dev/loop{number}")));
    let first =
        devices.into_iter().find_map(|path| Some((open(connection, &path, Access::ReadDevice, None).ok()?, path)));
    let Some((first, path)) = first else { return println!("skipped: no device is free here") };
    let (read, write) = (Access::ReadOwnDevice, Access::WriteOwnDevice);
    assert_eq!(open(connection, &path, read, None).expect_err("it shows no file"), Errno::ACCESS);
    assert_eq!(open(connection, &path, write, Some(first.as_fd())).expect_err("the first is read-only"), Errno::ACCESS);
    let named = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).expect("it is there");
    let null = fs::File::open("/dev/null").expect("it is there");
    for other in [named.as_fd(), null.as_fd()] {
        assert_eq!(open(connection, &path, read, Some(other)).expect_err("no file of the device"), Errno::ACCESS);
    }
    open(connection, &path, read, Some(first.as_fd())).expect("it is opened once more");
    // Nothing is left of it in the helper.
    drop(first);
    open(connection, &path, Access::ReadDevice, None).expect("it is free again");
}
