use super::*;
use io::ErrorKind;
use lunar_reactor::endpoint::packet::{PacketLink, XdpConfig};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-jail-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, "as it was").expect("a file");
        path
    }
}

#[test]
fn replaced_files_are_read_through_links_and_shared_folders_stay_closed() {
    let place = Place::new();
    let (real, link) = (place.file("archive/key1"), place.0.join("live/key"));
    fs::create_dir_all(place.0.join("live")).expect("a folder");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let real = fs::canonicalize(&real).expect("it is there");
    let all = [real.parent().expect("a folder").to_owned(), place.0.join("live"), link.clone()];
    assert_eq!(renewed(&link), BTreeSet::from(all));
    for file in ["/etc/lunar.key", "/run/key", "/home/somebody/key", "/etc/ssl/private/key"] {
        assert_eq!(renewed(Path::new(file)), BTreeSet::from([PathBuf::from(file)]), "{file}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A jail confines its thread, so each test confines a thread of its own.
fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().expect("it does not panic")
}

fn denied<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|why| why.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn paths_that_are_not_named_are_denied() {
    let place = Place::new();
    let (disk, secret) = (place.file("volumes/disk.img"), place.file("volumes/other.img"));
    let (read, kept) = (place.file("etc/secret"), place.file("state/file"));
    let paths = Paths {
        read: vec![read.clone()],
        write: vec![disk.clone()],
        keep: vec![place.0.join("state")],
        ..Paths::default()
    };
    let held = in_a_thread(move || {
        let held = files(&paths).expect("the kernel takes it");
        if held == Held::No {
            return held;
        }
        // Named paths are accessible.
        assert!(fs::write(&disk, "more").is_ok() && fs::read(&read).is_ok());
        let folder = kept.parent().expect("a folder");
        fs::write(folder.join("new"), "x")
            .and_then(|()| fs::rename(folder.join("new"), &kept))
            .expect("it is kept there");
        UnixListener::bind(folder.join("api.sock")).expect("a socket");
        fs::create_dir_all(folder.join("units/x")).expect("folders");
        fs::read_to_string("/proc/self/mountinfo").expect_err("nothing was said of it");
        // All other paths are denied.
        assert!(denied(fs::read(&secret)) && denied(fs::write(&secret, "x")) && denied(fs::write(&read, "x")));
        assert!(denied(fs::write(disk.with_extension("new"), "x")) && denied(fs::remove_file(&disk)));
        assert!(denied(fs::read_dir("/")) && denied(fs::read("/etc/passwd")) && denied(fs::read("/proc/self/environ")));
        assert!(fs::hard_link(&disk, folder.join("link")).is_err() && denied(fs::write("/dev/full", "x")));
        // A symbolic link to a path outside of the jail cannot be made in a writable folder.
        assert!(std::os::unix::fs::symlink(&secret, folder.join("way")).is_err());
        assert!(Command::new("/bin/true").status().is_err(), "no program is started");
        // Threads that are started in the jail are confined, too.
        assert!(in_a_thread(move || denied(fs::read(&secret))));
        held
    });
    if held == Held::No {
        println!("skipped: this kernel has no Landlock");
    }
}

#[test]
fn system_calls_that_the_daemon_does_not_make_are_refused() {
    let place = Place::new();
    let disk = place.file("disk.img");
    in_a_thread(move || {
        let program = filter(false).expect("it is right");
        seccompiler::apply_filter(&program).expect("the kernel takes it");
        let is_refused = |result: io::Result<()>| result.is_err_and(|why| why.raw_os_error() == Some(libc::EPERM));
        let rustix_error = |why: rustix::io::Errno| io::Error::from(why);
        assert!(is_refused(Command::new("/bin/true").status().map(drop)), "no program is started");
        assert!(is_refused(std::env::set_current_dir("/")));
        assert!(is_refused(std::os::unix::fs::symlink("/", "/tmp/lunar-jail-link")));
        assert!(is_refused(rustix::process::setsid().map(drop).map_err(rustix_error)));
        let group = rustix::process::getpid();
        assert!(is_refused(rustix::process::setpgid(Some(group), Some(group)).map_err(rustix_error)));
        let netlink = rustix::net::socket(rustix::net::AddressFamily::NETLINK, rustix::net::SocketType::RAW, None);
        assert!(
            is_refused(netlink.map(drop).map_err(rustix_error)),
            "only the address families of its peers are allowed"
        );
        // Links through XDP load programs: not without the permission.
        let config = XdpConfig { interface: "lo".into(), types: vec![0x88b5], vlan: None, filters: Vec::new() };
        let why = PacketLink::xdp(&config).expect_err("bpf(2) is refused").to_string();
        match why.contains("setcap") {
            true => println!("skipped: no capabilities here: {why}"),
            false => assert!(why.contains("a seccomp filter refuses bpf(2)"), "{why}"),
        }
        // No file becomes set-user-ID or set-group-ID.
        let mode = |bits: u32| fs::set_permissions(&disk, fs::Permissions::from_mode(bits));
        assert!(is_refused(mode(0o4700)) && is_refused(mode(0o2750)) && mode(0o600).is_ok());
        let created = |bits: u32| fs::File::options().append(true).create(true).mode(bits).open(&disk).map(drop);
        assert!(is_refused(created(0o4700)) && created(0o600).is_ok());
        // The calls of the daemon are allowed.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        assert!(in_a_thread(|| fs::read("/proc/self/stat").is_ok()), "threads and files go on");
        // The mark of a volume is an extended attribute of its file.
        let file = fs::File::options().write(true).open(&disk).expect("it is there");
        let (name, mut value) = ("user.lunar.test", [0; 8]);
        match rustix::fs::fsetxattr(&file, name, b"mark", rustix::fs::XattrFlags::empty()) {
            Err(rustix::io::Errno::OPNOTSUPP) => println!("skipped: no extended attributes here"),
            other => assert_eq!(other.and_then(|()| rustix::fs::fgetxattr(&file, name, &mut value[..])), Ok(4)),
        }
    });
}

#[test]
fn the_file_helper_is_told_of_the_folders_below_etc_with_secrets() {
    let folders = |file: &str| secret_folders(&Config::default(), Path::new(file));
    assert_eq!(folders("/etc/lunar-test-nowhere/lunar.toml"), BTreeSet::from(["/etc/lunar-test-nowhere".into()]));
    for file in ["/etc/lunar.toml", "/srv/lunar/lunar.toml"] {
        assert_eq!(folders(file), BTreeSet::new(), "{file}");
    }
}

#[test]
fn system_calls_that_the_file_helper_does_not_make_are_refused() {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    in_a_thread(|| {
        helper_calls().expect("the kernel takes it");
        let open = |path: &str| openat2(CWD, path, OFlags::PATH, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        assert_eq!(open("/tmp").map(drop), Ok(()));
        assert_eq!(open("/proc/self/root").map(drop), Err(rustix::io::Errno::LOOP));
        let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
        assert_eq!(socket.map(drop), Err(rustix::io::Errno::PERM));
    });
}

#[test]
fn host_names_are_resolved_in_both_confinements() {
    use std::net::ToSocketAddrs;
    let lookup = || ("localhost", 1).to_socket_addrs().map(Iterator::count);
    let Ok(known @ 1..) = lookup() else { return println!("skipped: this machine does not know localhost") };
    let config = Config::default();
    in_a_thread(move || {
        let paths = Paths::of(&config, Path::new("/nowhere/x"), Path::new("/nowhere"), None);
        files(&paths).expect("the kernel takes it");
        seccompiler::apply_filter(&filter(false).expect("it is right")).expect("the kernel takes it");
        assert_eq!(lookup().expect("it is known as before"), known);
    });
}

#[test]
fn the_paths_are_those_of_the_configuration() {
    let place = Place::new();
    let disk = place.file("srv/disk1.img");
    let new = place.0.join("new/disk2.img");
    let protected = [place.file("made/disk3.img"), place.file("whole/disk4.img")];
    place.file("whole/disk4.img.pi");
    let secret = place.file("keys/secret");
    fs::write(&secret, "correct horse battery").expect("it is there");
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let mut text = format!(
        "[volume.a]\nkind = 'file'\npath = '{}'\n[volume.b]\nkind = 'file'\npath = '{}'\nsize = '1M'\n\
         [volume.c]\nkind = 'ram'\nsize = '1M'\n[server]\nfolders = ['/srv/more']\n[api]\nsocket = '/run/x/api.sock'\n\
         [user.u]\nsecret = {{ file = '{}' }}\n",
        disk.display(),
        new.display(),
        secret.display()
    );
    for (name, path) in ["d", "e"].iter().zip(&protected) {
        let path = path.display();
        text += &format!("[volume.{name}]\nkind = 'file'\npath = '{path}'\nprotection = 'type-1'\n");
    }
    let outside = lunar_control::check::LocalHost { config: place.0.join("etc/lunar.toml") };
    let checked = lunar_control::check(&crate::schema::SCHEMA, "lunar.toml", &text, &outside)
        .map_err(|why| why.to_string())
        .expect("it is right");
    let (file, state) = (place.0.join("etc/lunar.toml"), place.0.join("state"));
    let paths = Paths::of(&checked.config, &file, &state, Some(Path::new("/run/x/api.sock")));
    assert!(paths.write.contains(&disk) && !paths.keep.contains(&place.0.join("srv")), "{paths:?}");
    assert!(paths.reach(&disk) && paths.reach(Path::new("/srv/more/new.img")) && paths.reach(&new));
    // A new file under the path of a secret can be read, too, and protection stores can be created.
    assert!(paths.read.contains(&place.0.join("keys")), "{paths:?}");
    assert!(paths.keep.contains(&place.0.join("made")) && !paths.keep.contains(&place.0.join("whole")), "{paths:?}");
    assert!(!paths.reach(&disk.with_extension("other")) && !paths.reach(Path::new("/srv/more")));
    for folder in [place.0.join("etc"), state, place.0.join("new"), "/srv/more".into(), "/run/x".into()] {
        assert!(paths.keep.contains(&folder), "{} in {paths:?}", folder.display());
    }
}

#[test]
fn files_that_appear_after_the_confinement_are_recognized() {
    let place = std::env::temp_dir().join(format!("lunar-late-{}", std::process::id()));
    let (kept, aside) = (place.join("kept"), place.join("aside"));
    fs::create_dir_all(&kept).expect("a folder");
    let (early, late, file) = (place.join("early"), place.join("late"), kept.join("v.img"));
    fs::write(&early, b"").expect("a file");
    let write = vec![early.clone(), late.clone()];
    let left = Left::of(Paths { write, keep: vec![kept.clone()], ..Paths::default() });
    let is_late = || [&early, &late, &file].map(|path| left.is_late(path));
    assert_eq!(is_late(), [false; 3], "what is not there is not late");
    fs::write(&file, b"").expect("a file");
    assert_eq!(is_late(), [false; 3], "what is made in a folder is reached");
    fs::write(&late, b"").expect("a device, as it were");
    // As if a file system were mounted there.
    fs::rename(&kept, &aside).expect("it is ours");
    fs::create_dir(&kept).expect("a folder");
    fs::write(&file, b"").expect("a file");
    assert_eq!(is_late(), [false, true, true]);
    fs::remove_dir_all(place).expect("it is ours");
}
