use super::*;
use std::process::Command as Process;

struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-install-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn install(&self, more: &[&str]) -> Result<(), Failure> {
        let program = Command::new("lunar").subcommands(crate::commands(&lunar_control::testing::SAMPLE));
        let root = self.0.display().to_string();
        let line = ["install", "--root", &root];
        let matches = command().try_get_matches_from(line.iter().chain(more)).expect("valid arguments");
        run(&matches, &program)
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.0.join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn all_files_are_written_below_the_root_and_a_configuration_is_kept() {
    let root = Root::new("all");
    root.install(&["--dry-run"]).expect("printed");
    assert_eq!(std::fs::read_dir(&root.0).expect("the folder").count(), 0, "a dry run writes nothing");
    root.install(&[]).expect("installed");
    let unit = root.text("usr/lib/systemd/system/lunar.service");
    assert!(unit.contains("ExecStart=/usr/bin/lunar daemon --config /etc/lunar/lunar.toml\n"), "{unit}");
    assert!(root.text("usr/share/man/man1/lunar-volume-create.1").contains("lunar"));
    let config = root.0.join("etc/lunar/lunar.toml");
    assert_eq!(std::fs::metadata(&config).expect("the file").permissions().mode() & 0o777, 0o600);
    std::fs::write(&config, "# mine\n").expect("written");
    root.install(&["--program", "/opt/lunar"]).expect("installed");
    assert_eq!(root.text("etc/lunar/lunar.toml"), "# mine\n");
    assert!(root.text("usr/lib/systemd/system/lunar.service").contains("ExecStart=/opt/lunar daemon"));
}

#[test]
fn the_service_starts_a_program_that_it_can_access() {
    let of = |asked: Option<&str>, this: Option<&str>| {
        Program::of(asked.map(PathBuf::from).as_ref(), this.map(PathBuf::from)).ok().map(|program| {
            let from = program.from.map(|from| from.display().to_string());
            (program.path.display().to_string(), from)
        })
    };
    let is = |path: &str, from: Option<&str>| Some((path.to_owned(), from.map(str::to_owned)));
    let built = "/home/ann/lunar/target/release/lunar";
    assert_eq!(of(None, Some(built)), is(OWN, Some(built)));
    assert_eq!(of(None, Some("/usr/bin/lunar")), is("/usr/bin/lunar", None));
    assert_eq!(of(None, None), is("/usr/bin/lunar", None));
    assert_eq!(of(Some("/opt/lunar"), Some(built)), is("/opt/lunar", None));
    for folder in HIDDEN {
        assert_eq!(of(Some(&format!("{folder}/lunar")), Some(built)), None, "{folder}");
    }
    // The unit hides these folders.
    assert!(UNIT.contains("ProtectHome=yes") && UNIT.contains("PrivateTmp=yes"));
    let why = Program::of(Some(&built.into()), None).expect_err("refused");
    assert!(why.to_string().contains(OWN), "{why}");
    // A symbolic link to such a folder is refused too.
    let root = Root::new("links");
    let link = PathBuf::from("/var/lib").join(format!("lunar-install-{}", std::process::id()));
    if std::os::unix::fs::symlink(&root.0, &link).is_ok() {
        let refused = Program::of(Some(&link), None);
        std::fs::remove_file(&link).expect("our link");
        assert!(!root.0.starts_with("/tmp") || refused.is_err());
    }
}

#[test]
fn a_running_program_is_replaced() {
    let root = Root::new("copy");
    let (from, to) = (root.0.join("built"), root.0.join("bin/lunar"));
    std::fs::write(&from, "new").expect("a file");
    for _again in 0..2 {
        copy(&from, &to).expect("copied");
        assert_eq!(std::fs::read_to_string(&to).expect("the file"), "new");
        assert_eq!(std::fs::metadata(&to).expect("the file").permissions().mode() & 0o777, 0o755);
        // A running process keeps the old file open.
        let running = File::open(&to).expect("the file");
        std::fs::write(&from, "newer").expect("a file");
        copy(&from, &to).expect("copied");
        assert_eq!(std::io::read_to_string(running).expect("the old file"), "new");
        std::fs::write(&from, "new").expect("a file");
    }
    assert_eq!(std::fs::read_dir(root.0.join("bin")).expect("a folder").count(), 1);
    copy(&root.0.join("none"), &to).expect_err("no source");
    assert_eq!(std::fs::read_dir(root.0.join("bin")).expect("a folder").count(), 1);
}

#[test]
fn the_first_configuration_is_valid() {
    let outside = lunar_control::check::LocalHost { config: "/nowhere".into() };
    let checked = lunar_control::check(&lunar_control::testing::SAMPLE, "lunar.toml", CONFIG, &outside)
        .map_err(|why| why.to_string());
    let config = checked.expect("valid").config;
    assert_eq!((config.portals.len(), config.targets.len()), (1, 0));
}

#[test]
fn systemd_rates_the_unit_as_well_confined() {
    let root = Root::new("unit");
    root.install(&["--program", "/bin/true"]).expect("installed");
    let unit = root.0.join("usr/lib/systemd/system/lunar.service");
    let analyze = |arguments: &[&str]| Process::new("systemd-analyze").args(arguments).arg(&unit).output();
    let Ok(output) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=20"]) else {
        println!("skipped: this host has no systemd-analyze");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn systemd_creates_the_user_and_its_folders() {
    use std::os::unix::fs::MetadataExt;
    let root = Root::new("user");
    // The user must be able to enter the folder, as on a real system.
    std::fs::set_permissions(&root.0, Permissions::from_mode(0o755)).expect("our folder");
    root.install(&[]).expect("installed");
    if std::fs::metadata(&root.0).expect("the folder").uid() != 0 {
        println!("skipped: only root can change the owner of files");
        return;
    }
    for _again in 0..2 {
        for (program, arguments) in [ACTIVATION[0], ACTIVATION[1]] {
            let below = format!("--root={}", root.0.display());
            let Ok(output) = Process::new(program).arg(below).args(arguments).output() else {
                println!("skipped: this host has no {program}");
                return;
            };
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let users = root.text("etc/passwd");
        let user = users.lines().find(|line| line.starts_with("lunar:")).and_then(|line| line.split(':').nth(2));
        let user: u32 = user.and_then(|id| id.parse().ok()).expect("the user");
        let owned = |path: &str| {
            let found = std::fs::metadata(root.0.join(path)).expect("the file");
            (found.uid(), found.gid(), found.mode() & 0o777)
        };
        let group = owned("etc/lunar").1;
        assert_eq!(owned("etc/lunar/lunar.toml"), (user, group, 0o600));
        // The service writes a new file next to the old one and renames it.
        assert_eq!(owned("etc/lunar"), (0, group, 0o770));
        assert_eq!(owned("srv/lunar"), (user, group, 0o750));
    }
}

#[test]
fn without_systemd_nothing_is_installed() {
    let root = Root::new("booted");
    let why = require_systemd(&root.0.join("none")).expect_err("it does not run");
    assert!(why.exit != 0 && why.message.contains("does not run systemd") && why.message.contains("--root"), "{why}");
    require_systemd(&root.0).expect("it runs");
}
