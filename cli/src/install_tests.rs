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
        let program = Command::new("lunar").subcommands(crate::commands());
        let root = self.0.display().to_string();
        let line = ["install", "--root", &root];
        let matches = command().try_get_matches_from(line.iter().chain(more)).expect("it is right");
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
fn everything_is_written_below_the_root_and_a_configuration_is_kept() {
    let root = Root::new("all");
    root.install(&["--dry-run"]).expect("it prints");
    assert_eq!(std::fs::read_dir(&root.0).expect("it is there").count(), 0, "a look writes nothing");
    root.install(&[]).expect("it takes all");
    let unit = root.text("usr/lib/systemd/system/lunar.service");
    assert!(unit.contains("ExecStart=/usr/bin/lunar daemon --config /etc/lunar/lunar.toml\n"), "{unit}");
    assert!(root.text("usr/share/man/man1/lunar-volume-create.1").contains("lunar"));
    let config = root.0.join("etc/lunar/lunar.toml");
    assert_eq!(std::fs::metadata(&config).expect("it is there").permissions().mode() & 0o777, 0o600);
    std::fs::write(&config, "# mine\n").expect("it is ours");
    root.install(&["--program", "/opt/lunar"]).expect("it takes all");
    assert_eq!(root.text("etc/lunar/lunar.toml"), "# mine\n");
    assert!(root.text("usr/lib/systemd/system/lunar.service").contains("ExecStart=/opt/lunar daemon"));
}

#[test]
fn the_service_starts_a_program_that_it_sees() {
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
    // The unit is what hides them.
    assert!(UNIT.contains("ProtectHome=yes") && UNIT.contains("PrivateTmp=yes"));
    let why = Program::of(Some(&built.into()), None).expect_err("it would not start");
    assert!(why.contains(OWN), "{why}");
    // A name elsewhere leads there, too.
    let root = Root::new("links");
    let link = PathBuf::from("/var/lib").join(format!("lunar-install-{}", std::process::id()));
    if std::os::unix::fs::symlink(&root.0, &link).is_ok() {
        let refused = Program::of(Some(&link), None);
        std::fs::remove_file(&link).expect("it is ours");
        assert!(!root.0.starts_with("/tmp") || refused.is_err());
    }
}

#[test]
fn a_program_that_runs_is_replaced() {
    let root = Root::new("copy");
    let (from, to) = (root.0.join("built"), root.0.join("bin/lunar"));
    std::fs::write(&from, "new").expect("a file");
    for _again in 0..2 {
        copy(&from, &to).expect("there is room");
        assert_eq!(std::fs::read_to_string(&to).expect("it is there"), "new");
        assert_eq!(std::fs::metadata(&to).expect("it is there").permissions().mode() & 0o777, 0o755);
        // Who runs it has it open.
        let running = std::fs::File::open(&to).expect("it is there");
        std::fs::write(&from, "newer").expect("a file");
        copy(&from, &to).expect("there is room");
        assert_eq!(std::io::read_to_string(running).expect("it is open"), "new");
        std::fs::write(&from, "new").expect("a file");
    }
    assert_eq!(std::fs::read_dir(root.0.join("bin")).expect("a folder").count(), 1);
    copy(&root.0.join("none"), &to).expect_err("there is nothing");
    assert_eq!(std::fs::read_dir(root.0.join("bin")).expect("a folder").count(), 1);
}

#[test]
fn the_configuration_to_begin_with_is_right() {
    let outside = lunar_control::check::Machine { config: "/nowhere".into() };
    let checked = lunar_control::check("lunar.toml", CONFIG, &outside).map_err(|why| why.to_string());
    let config = checked.expect("nothing is wrong with it").config;
    assert_eq!((config.portals.len(), config.targets.len()), (1, 0));
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_little_that_it_could_do() {
    let root = Root::new("unit");
    root.install(&["--program", "/bin/true"]).expect("it takes all");
    let unit = root.0.join("usr/lib/systemd/system/lunar.service");
    let analyze = |arguments: &[&str]| Process::new("systemd-analyze").args(arguments).arg(&unit).output();
    let Ok(output) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=20"]) else {
        println!("skipped: this machine has no systemd-analyze");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn systemd_makes_the_user_and_gives_it_its_folders() {
    use std::os::unix::fs::MetadataExt;
    let root = Root::new("user");
    // As it is on a machine: who comes by is not kept out.
    std::fs::set_permissions(&root.0, Permissions::from_mode(0o755)).expect("it is ours");
    root.install(&[]).expect("it takes all");
    if std::fs::metadata(&root.0).expect("it is there").uid() != 0 {
        println!("skipped: only root gives files to other users");
        return;
    }
    for _again in 0..2 {
        for (program, arguments) in [AFTERWARDS[0], AFTERWARDS[1]] {
            let below = format!("--root={}", root.0.display());
            let Ok(output) = Process::new(program).arg(below).args(arguments).output() else {
                println!("skipped: this machine has no {program}");
                return;
            };
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let users = root.text("etc/passwd");
        let user = users.lines().find(|line| line.starts_with("lunar:")).and_then(|line| line.split(':').nth(2));
        let user: u32 = user.and_then(|id| id.parse().ok()).expect("the user is there");
        let owned = |path: &str| {
            let found = std::fs::metadata(root.0.join(path)).expect("it is there");
            (found.uid(), found.gid(), found.mode() & 0o777)
        };
        let group = owned("etc/lunar").1;
        assert_eq!(owned("etc/lunar/lunar.toml"), (user, group, 0o600));
        // It writes the file anew beside the old one.
        assert_eq!(owned("etc/lunar"), (0, group, 0o770));
        assert_eq!(owned("srv/lunar"), (user, group, 0o750));
    }
}
